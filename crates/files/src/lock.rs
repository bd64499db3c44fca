//! A file that one program at a time brings up to date.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Held from reading a file until it is replaced. The lock is on an empty hidden file beside it (`.NAME.lock`), since
/// replacing leaves another file under the name; dropped, it is gone. One that a killed program left does no harm.
#[derive(Debug)]
pub struct Lock {
    path: PathBuf,
    file: File,
}

impl Lock {
    /// Waits until nobody else holds it. `None`: what is there is no ordinary file, or the file system has no locks.
    ///
    /// # Errors
    /// The file beside cannot be made or locked; the error names it.
    pub fn hold(path: &Path) -> io::Result<Option<Self>> {
        if fs::metadata(path).is_ok_and(|there| !there.is_file()) {
            return Ok(None);
        }
        // A path through a link and the path itself share one lock.
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let Some(name) = path.file_name() else { return Ok(None) };
        let mut hidden = OsString::from(".");
        hidden.push(name);
        hidden.push(".lock");
        let path = path.with_file_name(hidden);
        let named = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", path.display()));
        loop {
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(&path)
                .map_err(named)?;
            match file.lock() {
                Ok(()) => {}
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) if e.kind() == ErrorKind::Unsupported => {
                    let _ = fs::remove_file(&path);
                    return Ok(None);
                }
                Err(e) => return Err(named(e)),
            }
            let lock = Self { path: path.clone(), file };
            // Its last holder took it away meanwhile: then others hold another one.
            if lock.is_there() {
                return Ok(Some(lock));
            }
        }
    }

    fn is_there(&self) -> bool {
        let id = |m: fs::Metadata| (m.dev(), m.ino());
        let (here, there) = (self.file.metadata().map(id), fs::metadata(&self.path).map(id));
        here.is_ok_and(|here| there.is_ok_and(|there| here == there))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // What is not empty is not ours. When it cannot be removed it stays, and does no harm.
        if self.is_there() && self.file.metadata().is_ok_and(|m| m.is_file() && m.len() == 0) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_s_update_is_lost() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("n"), dir.path().join("link"));
        fs::write(&file, "0").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        std::thread::scope(|scope| {
            for path in [&file, &link, &file, &link] {
                scope.spawn(move || {
                    for _ in 0..50 {
                        let lock = Lock::hold(path).unwrap();
                        assert!(lock.is_some());
                        let n: u32 = fs::read_to_string(path).unwrap().parse().unwrap();
                        crate::replace(path, (n + 1).to_string().as_bytes()).unwrap();
                    }
                });
            }
        });
        assert_eq!(fs::read_to_string(&file).unwrap(), "200");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "nothing is left behind");
    }

    #[test]
    fn what_is_no_lock_of_ours_stays() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(".n.lock"), "mine").unwrap();
        drop(Lock::hold(&dir.path().join("n")).unwrap());
        assert_eq!(fs::read(dir.path().join(".n.lock")).unwrap(), b"mine");
        assert!(Lock::hold(Path::new("/dev/null")).unwrap().is_none());
        let error = Lock::hold(&dir.path().join("no/n")).unwrap_err().to_string();
        assert!(error.contains(".n.lock"), "{error}");
    }
}

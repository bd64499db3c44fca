//! Files that answers go to.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Writes a file so that nobody sees half of it: beside it first, then under its name. What is no ordinary file, such as
/// `/dev/stdout`, is written to as it is: it must not be replaced.
///
/// # Errors
/// When it cannot be written; the file is then as it was.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let there = match fs::metadata(path) {
        Ok(there) => Some(there),
        Err(e) if e.kind() == ErrorKind::NotFound => None,
        Err(e) => return Err(e),
    };
    if there.as_ref().is_some_and(fs::Metadata::is_dir) {
        return Err(io::Error::new(ErrorKind::IsADirectory, "it is a directory"));
    }
    if there.as_ref().is_some_and(|there| !there.is_file()) {
        return OpenOptions::new().write(true).open(path)?.write_all(bytes);
    }
    // A link stays one: what it leads to is replaced.
    let path = if there.is_some() { fs::canonicalize(path)? } else { path.to_owned() };
    let (beside, mut file) = create_beside(&path, there.is_some())?;
    // What is in it is for those alone who could read it before, also while it is written.
    let written = there
        .map_or(Ok(()), |there| file.set_permissions(there.permissions()))
        .and_then(|()| file.write_all(bytes))
        .and_then(|()| file.sync_all())
        .and_then(|()| fs::rename(&beside, &path));
    if written.is_err() {
        // The first error is the one to tell.
        let _ = fs::remove_file(&beside);
    }
    written
}

/// A new file in the same folder, since only there it can take the place of the other. `private`: nobody else may open it.
fn create_beside(path: &Path, private: bool) -> io::Result<(PathBuf, File)> {
    let mode = if private { 0o600 } else { 0o666 };
    let name = path.file_name().ok_or_else(|| io::Error::new(ErrorKind::InvalidInput, "it names no file"))?;
    for n in 0..100 {
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".{}-{n}.tmp", std::process::id()));
        let beside = path.with_file_name(hidden);
        match OpenOptions::new().write(true).create_new(true).mode(mode).open(&beside) {
            Ok(file) => return Ok((beside, file)),
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
            Err(e) => return Err(e),
        }
    }
    Err(io::Error::new(ErrorKind::AlreadyExists, "its folder is full of left-over temporary files"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn names(dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(dir).unwrap();
        let mut names: Vec<_> =
            entries.map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_is_there_whole_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("out.html");
        replace(&file, b"one").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        replace(&file, b"two").unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"two");
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o640);
        let link = dir.path().join("link.html");
        symlink(&file, &link).unwrap();
        replace(&link, b"three").unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"three");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(names(dir.path()), ["link.html", "out.html"]);
    }

    #[test]
    fn nobody_else_opens_what_takes_the_place_of_a_private_file() {
        let dir = tempfile::tempdir().unwrap();
        let mode = |private| {
            let (_, file) = create_beside(&dir.path().join("model.json"), private).unwrap();
            file.metadata().unwrap().permissions().mode() & 0o777
        };
        assert_eq!((mode(true), mode(false) & 0o600), (0o600, 0o600));
        assert_ne!(mode(false), 0o600, "it is as other new files are");
    }

    #[test]
    fn what_cannot_be_written_leaves_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        assert!(replace(&dir.path().join("no/such/out.html"), b"x").is_err());
        assert!(replace(dir.path(), b"x").is_err());
        replace(Path::new("/dev/null"), b"x").unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
        assert!(names(dir.path()).is_empty());
    }
}

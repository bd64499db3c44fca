//! A temporary folder for what another program is to read.

use rustix::fs::{FlockOperation, flock};
use std::fs::File;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Name of those with files for another program.
const TRACE: &str = "carma-trace";

/// A folder of our own that goes when we go. It is locked meanwhile, or it would be taken for one that a killed process
/// left behind.
#[derive(Debug)]
pub struct Folder(
    /// Where it is.
    pub PathBuf,
    #[expect(dead_code, reason = "held")] Option<File>,
);

impl Folder {
    /// Makes one in the temporary folder, with files of these names and texts.
    ///
    /// # Errors
    /// It cannot be made or written; the error names the place.
    pub fn with(files: &[(&str, &str)]) -> io::Result<Self> {
        let folder = Self::new(TRACE, &std::env::temp_dir())?;
        for (name, text) in files {
            let file = folder.0.join(name);
            std::fs::write(&file, text)
                .map_err(|e| io::Error::new(e.kind(), format!("cannot write {}: {e}", file.display())))?;
        }
        Ok(folder)
    }

    /// Leaves it where it is.
    pub fn keep(self) {
        std::mem::forget(self);
    }

    /// Such folders of our user whose processes were killed.
    #[must_use]
    pub fn left() -> Vec<PathBuf> {
        left(TRACE, &std::env::temp_dir())
    }

    /// Makes an empty one in memory where there is such a place, for small files that change often.
    ///
    /// # Errors
    /// It can be made nowhere; the error names the place.
    pub fn in_memory(name: &str) -> io::Result<Self> {
        let (memory, temporary) = (Path::new("/dev/shm"), std::env::temp_dir());
        sweep(name, memory);
        sweep(name, &temporary);
        Self::new(name, memory).or_else(|_| Self::new(name, &temporary))
    }

    fn new(name: &str, base: &Path) -> io::Result<Self> {
        let mut last = io::Error::from(io::ErrorKind::AlreadyExists);
        for attempt in 0..100 {
            let path = base.join(format!("{name}-{}-{attempt}", std::process::id()));
            // Fails if the name exists: another user could have prepared the folder.
            match std::fs::DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => {
                    let lock = File::open(&path).ok();
                    if let Some(lock) = &lock {
                        let _ = flock(lock, FlockOperation::NonBlockingLockExclusive);
                    }
                    return Ok(Self(path, lock));
                }
                Err(e) => last = e,
            }
        }
        Err(io::Error::new(last.kind(), format!("cannot make a folder in {}: {last}", base.display())))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A folder that cannot be removed stays, with scripts of carma in it and nothing else.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Removes our user's folders of this name whose processes were killed.
fn sweep(name: &str, base: &Path) {
    for path in left(name, base) {
        // A folder that cannot be removed stays.
        let _ = std::fs::remove_dir_all(&path);
    }
}

/// Our user's folders of this name whose processes were killed. A process that is not seen may live in another
/// container; it then holds its lock.
fn left(name: &str, base: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(base).into_iter().flatten().flatten() {
        let file_name = entry.file_name();
        let numbers =
            file_name.to_str().and_then(|n| n.strip_prefix(name)?.strip_prefix('-')?.split_once('-'));
        let Some((Ok(pid), Ok(_))) = numbers.map(|(pid, n)| (pid.parse::<u32>(), n.parse::<u32>())) else {
            continue;
        };
        let is_ours =
            entry.metadata().is_ok_and(|m| m.is_dir() && m.uid() == rustix::process::geteuid().as_raw());
        if !is_ours || Path::new(&format!("/proc/{pid}")).exists() {
            continue;
        }
        let path = entry.path();
        if File::open(&path)
            .is_ok_and(|folder| flock(&folder, FlockOperation::NonBlockingLockExclusive).is_ok())
        {
            found.push(path);
        }
    }
    found
}

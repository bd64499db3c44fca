//! A piece of the journal's disk that no other program can take: when the disk is full, it is given up for the commit.

use rustix::fs::{CWD, FallocateFlags, Mode, OFlags, fallocate, fstat, fstatvfs, openat, statvfs};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

/// How often it is tried to take it again.
const PACE: Duration = Duration::from_secs(60);
/// The least that is allocated to a file, bytes.
const LEAST: u64 = 1 << 16;
/// The most of its file system that it takes, 1 over this.
const SHARE: u64 = 16;
/// What the journal needs at a start beside what is written to it (an index of 32 KiB, the directory of records of this
/// life), with plenty to spare, bytes; or a quarter of the reserve where that is less.
const LEFT: u64 = 1 << 20;
/// A disk on which less is free is full to SQLite: its index takes 32 KiB at once.
const FULL: u64 = 1 << 16;

/// The reserve.
#[derive(Debug)]
pub(super) struct Reserve {
    file: Option<File>,
    size: u64,
    held: bool,
    tried: Instant,
}

impl Reserve {
    /// Takes `size` bytes in a directory, or less on a small disk. Without it, carma runs: the log says why.
    pub(super) fn take(dir: &Path, size: u64) -> Self {
        let mut reserve = Self { file: None, size: 0, held: false, tried: Instant::now() };
        let path = dir.join("reserve");
        let open = || File::options().create(true).truncate(false).write(true).mode(0o600).open(&path);
        if size == 0 {
            let _ = std::fs::remove_file(&path);
            return reserve;
        }
        let made = open().and_then(|file| {
            let disk = fstatvfs(&file)?;
            reserve.size = size.min(disk.f_blocks.saturating_mul(disk.f_frsize) / SHARE);
            file.set_len(reserve.size.min(file.metadata()?.len()))?;
            reserve.file = Some(file);
            reserve.fill()
        });
        if let Err(e) = made {
            tracing::warn!("no reserve for the journal can be kept in {}: {e}", path.display());
        }
        reserve
    }

    /// Releases the space and allocates it to a file at once, beyond its end: else any process that writes to the disk would take it, such as
    /// a job whose log fills it. `false`: there was none.
    pub(super) fn release(&mut self, to: &Path) -> bool {
        self.give(to, 0)
    }

    /// The same at a start, where a part is needed for other files than that one.
    pub(super) fn release_at_start(&mut self, to: &Path) -> bool {
        self.give(to, LEFT.min(self.size / 4))
    }

    /// Releases what an earlier daemon took in a directory, before the journal can be opened. `false`: there is none.
    pub(super) fn give_up(dir: &Path, to: &Path) -> bool {
        let Ok(file) = File::options().write(true).open(dir.join("reserve")) else { return false };
        let size = file.metadata().map_or(0, |meta| meta.blocks() * 512);
        Self { file: Some(file), size, held: size > 0, tried: Instant::now() }.release_at_start(to)
    }

    /// `left`: bytes that are not allocated to that file.
    fn give(&mut self, to: &Path, left: u64) -> bool {
        let Some(file) = self.file.as_ref().filter(|_| self.held) else { return false };
        self.held = false;
        self.tried = Instant::now();
        match file.set_len(0) {
            Ok(()) => {
                let kept = keep_for(to, self.size - left).unwrap_or(0) >> 10;
                tracing::warn!(
                    "the disk is full: the journal's reserve of {} KiB is used, of which {kept} KiB are kept for it",
                    self.size >> 10
                );
                true
            }
            Err(e) => {
                tracing::error!("the journal's reserve cannot be given up: {e}");
                false
            }
        }
    }

    /// How long until it is tried to take it again.
    pub(super) fn due(&self) -> Option<Duration> {
        (!self.held && self.file.is_some()).then(|| PACE.saturating_sub(self.tried.elapsed()))
    }

    /// Takes the space again, if there is room by now.
    pub(super) fn retake(&mut self) {
        self.tried = Instant::now();
        match self.fill() {
            Ok(()) if self.held => tracing::info!("the journal's reserve is kept again"),
            Ok(()) => {}
            Err(e) => tracing::debug!("the journal's reserve cannot be taken again: {e}"),
        }
    }

    /// Takes the space where twice as much is free: what is about to be full is left to the journal.
    fn fill(&mut self) -> io::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        let there = u64::try_from(fstat(file)?.st_blocks).unwrap_or(0).saturating_mul(512);
        let disk = fstatvfs(file)?;
        if there < self.size && disk.f_bavail.saturating_mul(disk.f_frsize) < 2 * self.size {
            return Ok(());
        }
        fallocate(file, FallocateFlags::empty(), 0, self.size)?;
        self.held = true;
        Ok(())
    }
}

/// Allocates space beyond the end of a file: so many bytes, or what is left of them. Returns the number.
fn keep_for(path: &Path, mut size: u64) -> io::Result<u64> {
    let file = File::options().write(true).open(path)?;
    let end = file.metadata()?.len();
    loop {
        match fallocate(&file, FallocateFlags::KEEP_SIZE, end, size) {
            Ok(()) => return Ok(size),
            // Another process has taken a part of it.
            Err(_) if size > LEAST => size -= size / 8,
            Err(e) => return Err(e.into()),
        }
    }
}

/// Bytes that are free on the disk of a directory; some file systems keep a little more for root. `None`: that cannot be told.
pub(super) fn free_on(dir: &Path) -> Option<u64> {
    let disk = statvfs(dir).ok()?;
    Some(disk.f_bavail.saturating_mul(disk.f_frsize))
}

/// Whether the disk of a directory is full. It is tried, with a file that has no name: of what a file system counts as free,
/// some is kept for itself.
pub(super) fn is_full(dir: &Path) -> bool {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let tried = openat(CWD, dir, flags, Mode::RUSR | Mode::WUSR)
        .and_then(|file| fallocate(&file, FallocateFlags::empty(), 0, FULL));
    match tried {
        Ok(()) => false,
        Err(Errno::NOSPC | Errno::DQUOT) => true,
        Err(_) => free_on(dir).is_some_and(|free| free < FULL),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_taken_given_up_and_taken_again() {
        let dir = tempfile::tempdir().unwrap();
        let blocks = || std::fs::metadata(dir.path().join("reserve")).unwrap().blocks() * 512;
        let journal = dir.path().join("journal");
        std::fs::write(&journal, "written").unwrap();
        let mut reserve = Reserve::take(dir.path(), 1 << 20);
        assert!(blocks() >= 1 << 20 && reserve.due().is_none());
        assert!(reserve.release(&journal));
        assert_eq!(blocks(), 0);
        let given = std::fs::metadata(&journal).unwrap();
        assert!(given.blocks() * 512 >= 1 << 20 && given.len() == 7);
        assert!(!reserve.release(&journal), "once");
        assert!(reserve.due().is_some());
        reserve.retake();
        assert!(blocks() >= 1 << 20 && reserve.due().is_none());
        // A smaller one gives the rest back, and none is none.
        drop(reserve);
        drop(Reserve::take(dir.path(), 1 << 16));
        assert!(blocks() < 1 << 20);
        drop(Reserve::take(dir.path(), 0));
        assert!(!dir.path().join("reserve").exists());
    }
}

//! The heartbeat file: the task rewrites it with its count or appends counts to it.

use super::event::Event;
use super::{MeterError, Owner};
use carma_interference::rate::beat;
use rustix::fs::{FallocateFlags, fallocate};
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The most that the file may take, bytes. It is in memory, which is all users': of one that appends its counts, what was
/// read is given back.
const MOST: u64 = 64 << 10;
/// Space is given back in blocks.
const BLOCK: u64 = 4096;

#[derive(Debug)]
pub(super) struct HeartbeatFile {
    path: PathBuf,
    /// The file as it was made: open, so that the task can't take away the right to cut it.
    made: File,
    /// Inode, length and time of the last change that was read.
    read: (u64, u64, i64, i64),
    /// When it was last looked at, on the caller's clock.
    looked_s: f64,
    pub(super) garbage: u64,
}

impl HeartbeatFile {
    /// A new one, or one that is there already: a task of an earlier daemon's may be about to write to it.
    pub(super) fn create(path: &Path, owner: Option<Owner>) -> Result<Self, MeterError> {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let me = rustix::process::geteuid().as_raw();
        let uid = owner.map_or(me, |owner| owner.uid);
        let its = |meta: &std::fs::Metadata| meta.is_file() && meta.uid() == uid;
        let there = std::fs::symlink_metadata(&path).is_ok_and(|meta| its(&meta));
        if !there {
            let _ = std::fs::remove_file(&path);
        }
        let make = || {
            let mut options = File::options();
            options.write(true);
            if there {
                let file = options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(&path)?;
                return if its(&file.metadata()?) {
                    Ok(file)
                } else {
                    Err(io::Error::other("something else was put in its place"))
                };
            }
            let file = options.create_new(true).mode(0o600).open(&path)?;
            if let Some(owner) = owner {
                std::os::unix::fs::fchown(&file, Some(owner.uid), Some(owner.gid))?;
            }
            Ok(file)
        };
        match make() {
            Ok(made) => Ok(Self { path, made, read: (0, 0, 0, 0), looked_s: f64::NEG_INFINITY, garbage: 0 }),
            Err(why) => Err(MeterError::Path { path, why }),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Keeps it from filling the memory that it lies in.
    fn cut(&self) {
        let size =
            || self.made.metadata().map_or((0, 0), |meta| (meta.len(), meta.blocks().saturating_mul(512)));
        let (length, taken) = size();
        if taken <= MOST {
            return;
        }
        // The end stays, and its length, by which a task that keeps it open goes on writing.
        let read = length.saturating_sub(beat::LONGEST as u64) / BLOCK * BLOCK;
        if read > 0 {
            let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let _ = fallocate(&self.made, mode, 0, read);
        }
        // Where no hole can be made, or space was set aside beyond the end.
        if size().1 > MOST {
            let _ = self.made.set_len(0);
        }
    }

    pub(super) fn read(&mut self, at_s: f64, events: &mut Vec<Event>) {
        self.cut();
        let since = std::mem::replace(&mut self.looked_s, at_s);
        // The task may have put anything in its place: links are not followed, and a pipe is not waited for.
        let options = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC;
        let Ok(file) = File::options().read(true).custom_flags(options).open(&self.path) else { return };
        let Ok(meta) = file.metadata() else { return };
        let change = (meta.ino(), meta.len(), meta.mtime(), meta.mtime_nsec());
        if !meta.is_file() || change == self.read || meta.len() == 0 {
            return;
        }
        let mut buffer = [0; beat::LONGEST];
        let start = meta.len().saturating_sub(beat::LONGEST as u64);
        let Ok(length) = file.read_at(&mut buffer, start) else { return };
        // When it was emptied and not yet written again, there is nothing to read and nothing to remember.
        if length == 0 {
            return;
        }
        self.read = change;
        match beat::file(&buffer[..length], start == 0) {
            Some(said) => {
                // It was written some time since the last look: the file itself says when.
                let age = meta.modified().ok().and_then(|at| SystemTime::now().duration_since(at).ok());
                let age = age.map_or(0.0, |age| age.as_secs_f64()).clamp(0.0, (at_s - since).max(0.0));
                events.push(Event::Count { at_s: at_s - age, source: "file".into(), said });
            }
            None => self.garbage += 1,
        }
    }
}

impl Drop for HeartbeatFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

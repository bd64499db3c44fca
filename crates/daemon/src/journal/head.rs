//! A small file beside the journal that says how far the journal surely goes, so that a copy from the past, a part
//! that was cut off or an empty file in its place is noticed before numbers of jobs are used again.
//!
//! It never says more than what is on disk: it is written after the commit that it tells of, in one piece over the last
//! one, and not waited for. After a power cut it may be older than the journal, or not there; both say nothing against
//! the journal. With `sync = "normal"` commits are on disk when SQLite's checkpoint is through, so that is what it
//! tells of then.

use super::schema::Meta;
use rusqlite::Connection;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How often it is written at most, but for jobs that are accepted.
const PACE: Duration = Duration::from_secs(1);
/// The same where a checkpoint comes first.
const CHECKPOINT_PACE: Duration = Duration::from_secs(60);

/// How far a journal goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Claim {
    /// Name of the journal.
    pub(super) id: String,
    /// Its last input.
    pub(super) seq: i64,
    /// The smallest number that no job had.
    pub(super) next_job: u64,
}

impl Claim {
    pub(super) fn of(meta: &Meta) -> Self {
        Self { id: meta.id.clone(), seq: meta.seq, next_job: meta.next_job }
    }

    /// Always of the same length, so that one write replaces the last one whole.
    fn to_line(&self) -> String {
        let text = format!("carma-journal 1 {} {:020} {:020}", self.id, self.seq, self.next_job);
        format!("{text} {:08x}\n", crc32fast::hash(text.as_bytes()))
    }

    fn parse(line: &str) -> Option<Self> {
        let (text, sum) = line.strip_suffix('\n')?.rsplit_once(' ')?;
        if u32::from_str_radix(sum, 16).ok()? != crc32fast::hash(text.as_bytes()) {
            return None;
        }
        let mut words = text.strip_prefix("carma-journal 1 ")?.split(' ');
        let claim = Self {
            id: words.next()?.to_owned(),
            seq: words.next()?.parse().ok()?,
            next_job: words.next()?.parse().ok()?,
        };
        words.next().is_none().then_some(claim)
    }
}

/// The path of the file that belongs to a journal.
pub(super) fn path_of(journal: &Path) -> PathBuf {
    super::with_ending(journal, ".head")
}

/// What the file says. `None`: it is not there, or a power cut left nothing of use.
pub(super) fn read(journal: &Path) -> Option<Claim> {
    Claim::parse(&std::fs::read_to_string(path_of(journal)).ok()?)
}

/// Writes the file anew and waits for the disk.
pub(super) fn replace(journal: &Path, claim: &Claim) -> io::Result<()> {
    let file = open(journal)?;
    file.write_all_at(claim.to_line().as_bytes(), 0)?;
    file.sync_all()
}

fn open(journal: &Path) -> io::Result<File> {
    File::options().create(true).truncate(false).write(true).mode(0o600).open(path_of(journal))
}

/// Writes the file as the journal goes on.
#[derive(Debug)]
pub(super) struct Head {
    file: File,
    /// Whether each commit waits for the disk.
    full: bool,
    written: Option<(Instant, Claim)>,
}

impl Head {
    /// Opens the file; what is in it stays until the first claim.
    pub(super) fn open(journal: &Path, full: bool) -> io::Result<Self> {
        // The journal's own name must be on disk before anything is claimed of it.
        if let Some(dir) = journal.parent() {
            File::open(dir)?.sync_all()?;
        }
        Ok(Self { file: open(journal)?, full, written: None })
    }

    /// How long until there is something to write.
    pub(super) fn due(&self, meta: &Meta) -> Option<Duration> {
        let pace = if self.full { PACE } else { CHECKPOINT_PACE };
        match &self.written {
            None => Some(Duration::ZERO),
            Some((_, claim)) if *claim == Claim::of(meta) => None,
            Some((at, _)) => Some(pace.saturating_sub(at.elapsed())),
        }
    }

    /// The same at once, before a user is told that a job was accepted: its number is never given again then, whatever
    /// is cut off the journal. Where commits do not wait for the disk this is not so.
    pub(super) fn accepted(&mut self, meta: &Meta) -> io::Result<()> {
        if !self.full {
            return Ok(());
        }
        let claim = Claim::of(meta);
        self.file.write_all_at(claim.to_line().as_bytes(), 0)?;
        self.written = Some((Instant::now(), claim));
        Ok(())
    }

    /// Writes what is committed, once that is surely on disk.
    pub(super) fn write(&mut self, db: &Connection, meta: &Meta) -> io::Result<()> {
        let claim = Claim::of(meta);
        if !self.full && !checkpoint(db).map_err(io::Error::other)? {
            return Ok(());
        }
        self.file.write_all_at(claim.to_line().as_bytes(), 0)?;
        self.written = Some((Instant::now(), claim));
        Ok(())
    }
}

/// Brings what was committed into the main file and waits for the disk. `false`: a reader was in the way.
pub(super) fn checkpoint(db: &Connection) -> rusqlite::Result<bool> {
    db.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| {
        let (busy, frames, moved): (i64, i64, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
        Ok(busy == 0 && frames == moved)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let journal = dir.path().join("j.db");
        assert_eq!(read(&journal), None);
        let claim = Claim { id: "0123456789abcdef0123456789abcdef".into(), seq: 12, next_job: 7 };
        replace(&journal, &claim).unwrap();
        assert_eq!(read(&journal), Some(claim.clone()));
        let whole = std::fs::read(path_of(&journal)).unwrap();
        for at in 0..whole.len() {
            let mut flipped = whole.clone();
            flipped[at] ^= 1;
            std::fs::write(path_of(&journal), &flipped).unwrap();
            assert_eq!(read(&journal), None, "a flip of byte {at} is seen");
            std::fs::write(path_of(&journal), &whole[..at]).unwrap();
            assert_eq!(read(&journal), None, "a cut at byte {at} is seen");
        }
        let later = Claim { seq: i64::MAX, next_job: u64::MAX, ..claim };
        replace(&journal, &later).unwrap();
        assert_eq!(read(&journal), Some(later), "it has the same length");
    }
}

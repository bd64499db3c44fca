//! The journal: one SQLite file that holds every input in order, snapshots of the state, what jobs
//! were submitted, and the history.
//!
//! Replaying the inputs after the last snapshot is crash recovery; replaying them elsewhere is audit.
//!
//! Each row has a checksum, and one row ([`schema::Meta`]) says what the tables must hold, so that a file that was cut
//! off, changed or put in the place of another is noticed before anything is started from it.

mod backup;
mod check;
mod ended;
mod environments;
mod head;
mod read;
mod repair;
mod reserve;
mod schema;
mod sums;
mod write;

pub use crate::error::JournalError;
pub use backup::backup;
pub use check::{Finding, check};
pub use ended::Keep;
pub use read::{Reader, Which};
pub use repair::{Repair, RepairError, repair};

use crate::config::{JournalConfig, Sync};
use carma_api::wire::{EstimateView, SubmitRequest};
use carma_core::input::Input;
use carma_core::model::{Finished, JobId};
use carma_core::units::Millis;
use carma_memory::history::HistoryRow;
use ended::Ended;
use environments::Environments;
use head::Head;
use reserve::Reserve;
use rusqlite::Connection;
use schema::Meta;
use serde::{Deserialize, Serialize};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Kinds of rows beside those about memory.
const SLOWDOWNS: &str = "slowdown";
const RUN_TIMES: &str = "run-time";

/// A file that belongs to a journal: the same name with an ending (`-wal`, `-shm`, `-journal`, `.head`).
fn with_ending(journal: &Path, ending: &str) -> PathBuf {
    let mut name = journal.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

fn sql(doing: &'static str) -> impl Fn(rusqlite::Error) -> JournalError {
    move |source| JournalError::Sqlite { doing, source }
}

/// Bytes that should be free where the disk is full, so that all there is to do at a start can be done.
const NEEDED: u64 = 4 << 20;

/// Where there is no more room on the disk, that is what is said, whatever could not be done for it: it tells nothing
/// of what the journal holds. `needed`: bytes that should be free.
fn or_full(journal: &Path, needed: u64, error: JournalError) -> JournalError {
    let dir = journal.parent().unwrap_or(Path::new("."));
    let full = match &error {
        JournalError::File { why, .. } => is_full(why),
        // SQLite says of a file that it cannot make larger that reading or writing failed, as of a broken disk.
        _ => error.is_full() && (error.is_surely_full() || reserve::is_full(dir)),
    };
    if !full {
        return error;
    }
    JournalError::Full { dir: dir.to_owned(), free: reserve::free_on(dir).unwrap_or(0), needed }
}

/// Whether the system refused something since there is no room.
fn is_full(why: &std::io::Error) -> bool {
    matches!(why.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

/// What the daemon keeps of a submission, beside what the core knows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredJob {
    /// The submission; its environment is stored apart, once for all jobs that share it.
    pub request: SubmitRequest,
    /// User to run as.
    pub uid: u32,
    /// Primary group to run as.
    pub gid: u32,
    /// File of the output.
    pub log: String,
    /// What was expected of its memory at submission, with reasons.
    pub estimate: Option<EstimateView>,
}

/// What one commit writes.
#[derive(Default)]
pub struct Batch {
    /// Inputs in order.
    pub inputs: Vec<(Millis, Input)>,
    /// New jobs.
    pub jobs: Vec<(JobId, StoredJob)>,
    /// Jobs that are over.
    pub finished: Vec<Finished>,
    /// What was learned of memory.
    pub learned: Vec<HistoryRow>,
    /// What was learned of slowdowns: key, and JSON or nothing where the row goes.
    pub slowdowns: Vec<(String, Option<String>)>,
    /// What was learned of run times, likewise.
    pub run_times: Vec<(String, Option<String>)>,
    /// What is expected now of jobs that wait.
    pub expected: Vec<(JobId, EstimateView)>,
}

impl Batch {
    /// Whether there is nothing to write.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.inputs.is_empty()
            && self.jobs.is_empty()
            && self.finished.is_empty()
            && self.learned.is_empty()
            && self.slowdowns.is_empty()
            && self.run_times.is_empty()
            && self.expected.is_empty()
    }
}

/// One run of the daemon on this journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Life {
    /// When it began, later than everything that was in the journal by then.
    pub started: Millis,
    /// Its name.
    pub life: String,
    /// Name of the machine.
    pub host: String,
    /// The machine's boot.
    pub boot: String,
}

/// How a journal is kept.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// When to wait for the disk.
    pub sync: Sync,
    /// Inputs kept after they are folded into a snapshot.
    pub inputs: u64,
    /// Finished jobs kept in the history.
    pub keep: Keep,
    /// Finished jobs of which the environment is kept.
    pub environments: usize,
    /// Bytes on its disk that no other program can take.
    pub reserve: u64,
}

impl From<&JournalConfig> for Settings {
    fn from(config: &JournalConfig) -> Self {
        Self {
            sync: config.sync.unwrap_or(Sync::Full),
            inputs: config.keep_inputs.unwrap_or(100_000),
            keep: Keep {
                jobs: config.keep_jobs.unwrap_or(100_000),
                bytes: config.history_size.map_or(512, |size| size.0.0).saturating_mul(1 << 20),
            },
            environments: config.keep_environments.unwrap_or(1000),
            reserve: config.reserve.map_or(32, |size| size.0.0).saturating_mul(1 << 20),
        }
    }
}

/// The open journal. One writer; readers open their own with [`Journal::reader`].
pub struct Journal {
    db: Connection,
    path: PathBuf,
    settings: Settings,
    meta: Meta,
    ended: Ended,
    environments: Environments,
    head: Head,
    reserve: Reserve,
    /// What must stay where it is for anything to be kept.
    anchors: Vec<Anchor>,
    since_snapshot: u64,
    /// When space was last given back to the disk, and whether there is more.
    swept: Instant,
    shrinking: bool,
}

/// A file or directory that must stay what it is.
struct Anchor {
    path: PathBuf,
    /// Device and inode.
    is: (u64, u64),
}

impl Anchor {
    fn of(path: &Path) -> std::io::Result<Self> {
        let meta = std::fs::metadata(path)?;
        Ok(Self { path: path.to_owned(), is: (meta.dev(), meta.ino()) })
    }

    fn holds(&self) -> bool {
        self.holds_by(std::fs::metadata(&self.path).map(|meta| (meta.dev(), meta.ino())))
    }

    /// Whether it holds by what the system says is there. A look that failed says nothing: the next one will.
    fn holds_by(&self, found: std::io::Result<(u64, u64)>) -> bool {
        match found {
            Ok(found) => found == self.is,
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => false,
            Err(e) => {
                tracing::warn!(
                    "whether {} is still there cannot be told for the present: {e}",
                    self.path.display()
                );
                true
            }
        }
    }
}

impl Journal {
    /// Opens or creates the file, if what is there is what was written.
    ///
    /// # Errors
    /// When the disk, the file or its version does not allow it.
    pub fn open(path: &Path, settings: &Settings) -> Result<Self, JournalError> {
        let dir = path.parent().unwrap_or(Path::new("."));
        let open = || Self::try_open(path, settings).map_err(|e| or_full(path, NEEDED, e));
        match open() {
            Err(JournalError::Full { .. }) if Reserve::give_up(dir, &with_ending(path, "-wal")) => open(),
            other => other,
        }
    }

    fn try_open(path: &Path, settings: &Settings) -> Result<Self, JournalError> {
        let there = check::at_start(path)?;
        let failed = sql("opened");
        let mut db = Connection::open(path).map_err(&failed)?;
        db.busy_timeout(Duration::from_secs(5)).map_err(&failed)?;
        let sync = match settings.sync {
            Sync::Full => "FULL",
            Sync::Normal => "NORMAL",
        };
        if !there {
            // Before the first table, or never: what is deleted gives its space back in small pieces.
            db.execute_batch("PRAGMA auto_vacuum = INCREMENTAL;").map_err(&failed)?;
        }
        db.execute_batch(&format!(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = {sync}; PRAGMA journal_size_limit = {};",
            16 << 20
        ))
        .map_err(&failed)?;
        schema::migrate(&mut db)?;
        let meta = check::whole(&db)?;
        let file = |why| JournalError::File { path: head::path_of(path), why };
        let head = Head::open(path, settings.sync == Sync::Full).map_err(file)?;
        let reserve = Reserve::take(path.parent().unwrap_or(Path::new(".")), settings.reserve);
        let mut journal = Self {
            db,
            path: path.to_owned(),
            settings: *settings,
            meta,
            ended: Ended::new(settings.keep),
            environments: Environments::default(),
            head,
            reserve,
            anchors: Vec::new(),
            since_snapshot: 0,
            swept: Instant::now(),
            shrinking: false,
        };
        journal.anchor(path)?;
        journal.compact();
        Ok(journal)
    }

    /// Does what is to be done at a start; where the disk is full, once more without the reserve.
    ///
    /// # Errors
    /// When it cannot be done; [`JournalError::Full`] where the disk is still full.
    pub fn with_room<T>(
        &mut self,
        work: impl Fn(&mut Self) -> Result<T, JournalError>,
    ) -> Result<T, JournalError> {
        let path = self.path.clone();
        let work = |journal: &mut Self| work(journal).map_err(|e| or_full(&path, NEEDED, e));
        match work(self) {
            Err(JournalError::Full { .. }) if self.reserve.release_at_start(&self.log()) => work(self),
            other => other,
        }
    }

    /// Says that nothing can be kept once this file or directory is deleted or replaced.
    ///
    /// # Errors
    /// When it is not there now.
    pub fn anchor(&mut self, path: &Path) -> Result<(), JournalError> {
        let anchor = Anchor::of(path).map_err(|why| JournalError::File { path: path.to_owned(), why })?;
        self.anchors.push(anchor);
        Ok(())
    }

    /// Whether everything is where it was: a few microseconds.
    ///
    /// # Errors
    /// What is not.
    pub fn still_there(&self) -> Result<(), JournalError> {
        match self.anchors.iter().find(|anchor| !anchor.holds()) {
            None => Ok(()),
            Some(anchor) => Err(JournalError::Gone(anchor.path.clone())),
        }
    }

    /// Name of this journal: 128 random bits, in hex, drawn when it was made. Copies have the same.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.meta.id
    }

    /// The smallest number that no job of this journal ever had, as far as the journal knows.
    #[must_use]
    pub const fn next_job(&self) -> JobId {
        JobId(self.meta.next_job)
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        if self.still_there().is_ok()
            && let Err(e) = self.head.write(&self.db, &self.meta)
        {
            tracing::debug!("how far the journal goes cannot be noted: {e}");
        }
    }
}

fn to_json(seq: i64, value: &impl Serialize) -> Result<String, JournalError> {
    serde_json::to_string(value).map_err(|e| JournalError::Entry { seq, why: e.to_string() })
}

#[cfg(test)]
pub(crate) mod tests;
#[cfg(test)]
mod tests_care;

//! The journal: one SQLite file that holds every input in order, snapshots of the state, what jobs
//! were submitted, and the history.
//!
//! Replaying the inputs after the last snapshot is crash recovery; replaying them elsewhere is audit.
//!
//! Each row has a checksum, and one row ([`schema::Meta`]) says what the tables must hold, so that a file that was cut
//! off, changed or put in the place of another is noticed before anything is started from it.

mod read;
mod schema;
mod sums;
mod write;

pub use read::Reader;

use crate::config::Sync;
use carma_api::wire::{EstimateView, SubmitRequest};
use carma_core::input::Input;
use carma_core::model::{Finished, JobId};
use carma_core::units::Millis;
use carma_memory::history::Row;
use rusqlite::Connection;
use schema::Meta;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::time::Duration;

/// Kind of the rows about slowdowns, beside those about memory.
const SLOWDOWNS: &str = "slowdown";

/// The journal failed.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// SQLite or the disk.
    #[error("the journal cannot be {doing}: {source}")]
    Sqlite {
        /// What was tried.
        doing: &'static str,
        /// What SQLite says.
        source: rusqlite::Error,
    },
    /// An entry is not understood.
    #[error(
        "entry {seq} of the journal is not understood ({why}); it was written by another version of carma, or the file is damaged"
    )]
    Entry {
        /// Which.
        seq: i64,
        /// What is wrong.
        why: String,
    },
    /// The file is newer than this program.
    #[error("the journal has format {found}, this carma knows up to {known}; start the newer carma")]
    TooNew {
        /// Its format.
        found: usize,
        /// Ours.
        known: usize,
    },
    /// What the file holds is not what was written to it.
    #[error("the journal is damaged: {0}")]
    Damaged(String),
    /// The environment of a job that is over was deleted.
    #[error(
        "the environment of job {0} is no longer kept (journal.keep-environments says of how many finished jobs it is); submit it anew"
    )]
    NoEnvironment(JobId),
    /// A life of the daemon that began before what the journal has.
    #[error(
        "a life of the daemon cannot begin at {started} ms: the journal already has something of {latest} ms"
    )]
    NotLater {
        /// When it was to begin.
        started: u64,
        /// What is there.
        latest: u64,
    },
}

fn sql(doing: &'static str) -> impl Fn(rusqlite::Error) -> JournalError {
    move |source| JournalError::Sqlite { doing, source }
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
    pub learned: Vec<Row>,
    /// What was learned of slowdowns: key, and JSON or nothing where the row goes.
    pub slowdowns: Vec<(String, Option<String>)>,
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

/// The open journal. One writer; readers open their own with [`Journal::reader`].
pub struct Journal {
    db: Connection,
    meta: Meta,
    since_snapshot: u64,
    keep_inputs: u64,
    keep_jobs: u64,
}

impl Journal {
    /// Opens or creates the file.
    ///
    /// # Errors
    /// When the disk, the file or its version does not allow it.
    pub fn open(path: &Path, sync: Sync, keep_inputs: u64, keep_jobs: u64) -> Result<Self, JournalError> {
        let mut db = Connection::open(path).map_err(sql("opened"))?;
        let sync = match sync {
            Sync::Full => "FULL",
            Sync::Normal => "NORMAL",
        };
        db.busy_timeout(Duration::from_secs(5)).map_err(sql("opened"))?;
        db.execute_batch(&format!("PRAGMA journal_mode = WAL; PRAGMA synchronous = {sync};"))
            .map_err(sql("opened"))?;
        schema::migrate(&mut db)?;
        let meta = Meta::read(&db).map_err(sql("read"))?;
        let meta =
            meta.ok_or_else(|| JournalError::Damaged("the row about the whole is not valid".into()))?;
        Ok(Self { db, meta, since_snapshot: 0, keep_inputs, keep_jobs })
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

fn to_json(seq: i64, value: &impl Serialize) -> Result<String, JournalError> {
    serde_json::to_string(value).map_err(|e| JournalError::Entry { seq, why: e.to_string() })
}

#[cfg(test)]
mod tests;

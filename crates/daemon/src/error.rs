//! Why the daemon cannot run, and what may be wrong with its journal.

use carma_core::model::JobId;
use rusqlite::ErrorCode;
use std::io;
use std::path::{Path, PathBuf};

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
        /// Number of the input in the journal.
        seq: i64,
        /// What is wrong.
        why: String,
    },
    /// The file is newer than this program.
    #[error("the journal has format {found}, this carma knows up to {known}; start the newer carma")]
    TooNew {
        /// Its format.
        found: usize,
        /// Number of the newest format that this carma knows.
        known: usize,
    },
    /// The disk is full, also without the reserve. Nothing is wrong with the journal.
    #[error(
        "the disk of {} is full: {} KiB are free there. Free at least {} MiB on it and try again. A full disk is no \
         damage to the journal, nothing was changed, and jobs that run go on",
        dir.display(), free >> 10, needed.div_ceil(1 << 20)
    )]
    Full {
        /// A directory on it.
        dir: PathBuf,
        /// Bytes that are free.
        free: u64,
        /// Bytes that should be.
        needed: u64,
    },
    /// What the file holds is not what was written to it.
    #[error("the journal is damaged: {0}")]
    Damaged(String),
    /// It must not be used as it is.
    #[error(
        "the journal {} cannot be trusted: {why}. Nothing was started, and the file is as it was. \
         `carma journal check --state {1}` says what is broken; `carma journal repair --state {1}` puts the file aside \
         and saves what can be read of it",
        journal.display(),
        journal.parent().unwrap_or(Path::new(".")).display()
    )]
    Refused {
        /// The file.
        journal: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// A file or directory that must stay is not there any more, or another is in its place.
    #[error(
        "{} was deleted or replaced while the daemon ran, so that nothing can be kept. Put it back from a backup, or \
         accept its loss, and start the daemon again; jobs that run go on",
        .0.display()
    )]
    Gone(PathBuf),
    /// A file beside the journal.
    #[error("{}: {why}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// What happened.
        why: io::Error,
    },
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

impl JournalError {
    /// Whether the disk is full, as far as SQLite can tell that from other trouble with it.
    pub(crate) fn is_full(&self) -> bool {
        matches!(self.code(), Some(ErrorCode::DiskFull | ErrorCode::SystemIoFailure))
    }

    /// Whether SQLite knows that the disk is full.
    pub(crate) fn is_surely_full(&self) -> bool {
        self.code() == Some(ErrorCode::DiskFull)
    }

    /// Whether another process holds the lock.
    pub(crate) fn is_locked(&self) -> bool {
        matches!(self.code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
    }

    const fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Sqlite { source: rusqlite::Error::SqliteFailure(error, _), .. } => Some(error.code),
            _ => None,
        }
    }
}

/// Why the daemon cannot run.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// A file or directory.
    #[error("{what} {}: {why}", path.display())]
    Path {
        /// What was tried.
        what: &'static str,
        /// With which path.
        path: PathBuf,
        /// What happened.
        why: io::Error,
    },
    /// Another daemon is there.
    #[error("{0}")]
    InUse(String),
    /// The journal.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The GPUs.
    #[error("{0}")]
    Gpus(String),
    /// The configuration or the command line makes no sense.
    #[error("{0}")]
    Config(String),
    /// The system.
    #[error("{what}: {why}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What happened.
        why: io::Error,
    },
}

pub(crate) fn path_error(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ServeError {
    let path = path.to_owned();
    move |why| ServeError::Path { what, path, why }
}

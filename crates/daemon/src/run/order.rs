//! What the daemon tells a supervisor to do, and what the supervisor says back once it has begun.

use super::cgroup::HostLimits;
use super::identity::AttemptId;
use carma_api::wire::Session;
use carma_core::model::ProcessRef;
use carma_process::progress::Owner;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What a supervisor is told to do.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Order {
    /// Which attempt.
    pub id: AttemptId,
    /// Directory of the records of its life.
    pub records: PathBuf,
    /// Directory of the sockets and heartbeat files of all attempts; see [`carma_process::progress`].
    pub pace: PathBuf,
    /// Directory of the cgroups of all attempts; `None`: there are none.
    pub groups: Option<PathBuf>,
    /// Limits on what it takes of the host.
    pub limits: HostLimits,
    /// Program and arguments.
    pub command: Vec<String>,
    /// Directory to start in.
    pub cwd: String,
    /// Environment, but for the names that the supervisor adds.
    pub env: BTreeMap<String, String>,
    /// What it takes over from the session in which it was submitted.
    pub session: Session,
    /// Whom to become; `None`: stay who we are.
    pub user: Option<Owner>,
    /// What that user was called when the job was submitted: who has the number by now may be somebody else.
    pub user_name: Arc<str>,
    /// Launches of it in a row before this one of which nothing came.
    pub not_launched: usize,
    /// Where the output goes.
    pub log: Log,
    /// Directory for what it saves, if it wants one.
    pub checkpoint: Option<CheckpointDir>,
    /// Longest time between two signs of life of its supervisor, milliseconds in life.
    pub alive_ms: u64,
}

/// Where the output of a job goes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Log {
    /// A file in a directory of carma's, which no user may enter.
    Kept {
        /// Path of the log.
        path: PathBuf,
        /// Longest that it may become, bytes: beyond, its middle is cut out.
        limit: u64,
    },
    /// A path that the user named: opened, read and written with the user's rights alone.
    Users(PathBuf),
}

/// Where a job saves its work. All of its attempts have the same place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckpointDir {
    /// A path that the user named.
    Named(PathBuf),
    /// A directory of its own in the user's home.
    Own(PathBuf),
    /// It would have one of its own, and its environment names no home.
    Homeless,
}

impl CheckpointDir {
    /// The path, where there is one.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Named(path) | Self::Own(path) => Some(path),
            Self::Homeless => None,
        }
    }
}

/// What a supervisor tells its daemon over the pipe, once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hello {
    /// The command runs.
    Running {
        /// The supervisor.
        supervisor: ProcessRef,
        /// Its first process.
        child: ProcessRef,
    },
    /// It ended before it ran; the record says why.
    NotStarted,
    /// It could not even claim the attempt.
    NotClaimed {
        /// The cause, in words.
        why: String,
    },
}

impl Hello {
    /// Most bytes of one: a write of so many to a pipe is read whole or not at all (`PIPE_BUF`, pipe(7)).
    pub const MOST: usize = 4096;

    /// As it is written. Of a long reason the beginning: a character takes up to six bytes.
    #[must_use]
    pub fn line(mut self) -> Vec<u8> {
        if let Self::NotClaimed { why } = &mut self {
            why.truncate(why.char_indices().nth(600).map_or(why.len(), |(end, _)| end));
        }
        serde_json::to_vec(&self).unwrap_or_default()
    }
}

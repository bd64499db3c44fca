//! The files by which supervisor and daemon tell each other what happened.

use carma_core::model::{Exit, JobId, ProcessRef};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// What a supervisor is told to do.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Order {
    /// Job.
    pub job: JobId,
    /// Attempt, from 1.
    pub attempt: u32,
    /// Directory of the records.
    pub run_dir: PathBuf,
    /// Program and arguments.
    pub command: Vec<String>,
    /// Directory to start in.
    pub cwd: String,
    /// Complete environment.
    pub env: BTreeMap<String, String>,
    /// Whom to become; `None`: stay who we are.
    pub become_user: Option<Identity>,
    /// File of the output.
    pub log: PathBuf,
    /// Whether the file lies in carma's own directory, where carma creates it for the user.
    pub own_log: bool,
}

/// A user to become.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Identity {
    /// User id.
    pub uid: u32,
    /// Primary group.
    pub gid: u32,
    /// Login name, for the supplementary groups; `None` when the system does not know the user.
    pub name: Option<String>,
}

/// Who claimed an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Claim {
    /// This supervisor.
    Supervisor(ProcessRef),
    /// A daemon that made sure that no supervisor ever will.
    Fenced,
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
    /// It ended before it ran; the exit record says why.
    NotStarted,
}

/// The records of one attempt.
#[derive(Debug, Clone)]
pub struct Records {
    stem: PathBuf,
}

impl Records {
    /// Records of an attempt in a directory.
    #[must_use]
    pub fn new(run_dir: &Path, job: JobId, attempt: u32) -> Self {
        Self { stem: run_dir.join(format!("{job}.{attempt}")) }
    }

    fn file(&self, kind: &str) -> PathBuf {
        self.stem.with_added_extension(kind)
    }

    /// Claims the attempt. `false`: somebody else has.
    ///
    /// # Errors
    /// When the directory cannot be written.
    pub fn claim(&self, claim: &Claim) -> io::Result<bool> {
        // Written aside and linked, so that the claim appears whole or not at all.
        let aside = self.file(&format!("claim-{}", std::process::id()));
        write_whole(&aside, claim)?;
        let linked = fs::hard_link(&aside, self.file("claim"));
        let _ = fs::remove_file(&aside);
        match linked {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Who claimed the attempt.
    #[must_use]
    pub fn claimed(&self) -> Option<Claim> {
        read(&self.file("claim"))
    }

    /// Records the job's first process.
    ///
    /// # Errors
    /// When the directory cannot be written.
    pub fn write_child(&self, child: ProcessRef) -> io::Result<()> {
        self.replace("child", &child)
    }

    /// The job's first process.
    #[must_use]
    pub fn child(&self) -> Option<ProcessRef> {
        read(&self.file("child"))
    }

    /// Leaves the exit record.
    ///
    /// # Errors
    /// When the directory cannot be written.
    pub fn write_exit(&self, exit: &Exit) -> io::Result<()> {
        self.replace("exit", exit)
    }

    /// How the attempt ended.
    #[must_use]
    pub fn exit(&self) -> Option<Exit> {
        read(&self.file("exit"))
    }

    /// Removes everything, once the journal has it.
    pub fn remove(&self) {
        for kind in ["child", "exit", "claim"] {
            let _ = fs::remove_file(self.file(kind));
        }
    }

    fn replace(&self, kind: &str, value: &impl Serialize) -> io::Result<()> {
        let aside = self.file(&format!("{kind}-new"));
        write_whole(&aside, value)?;
        fs::rename(&aside, self.file(kind))
    }
}

fn write_whole(path: &Path, value: &impl Serialize) -> io::Result<()> {
    let body = serde_json::to_vec(value).map_err(io::Error::other)?;
    let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(&body)
}

fn read<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_is_claimed_once() {
        let dir = tempfile::tempdir().unwrap();
        let records = Records::new(dir.path(), JobId(7), 1);
        let me = ProcessRef { pid: 1, start_ticks: 2 };
        assert!(records.claim(&Claim::Fenced).unwrap());
        assert!(!records.claim(&Claim::Supervisor(me)).unwrap());
        assert_eq!(records.claimed(), Some(Claim::Fenced));
        records.remove();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}

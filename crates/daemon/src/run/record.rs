//! The files by which supervisor and daemon tell each other what happened.

use carma_core::model::{Exit, JobId, ProcessRef};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
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

/// What a record file says, one line each, in the order in which it happened.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Entry {
    Claim(Claim),
    Child(ProcessRef),
    Exit(Exit),
}

/// The record of one attempt: one file, since file systems take their time over files that come and
/// go, and a job of a millisecond would wait for that.
#[derive(Debug, Clone)]
pub struct Records {
    file: PathBuf,
}

impl Records {
    /// The record of an attempt in a directory.
    #[must_use]
    pub fn new(run_dir: &Path, job: JobId, attempt: u32) -> Self {
        Self { file: run_dir.join(format!("{job}.{attempt}.record")) }
    }

    /// Claims the attempt. `false`: somebody else has.
    ///
    /// # Errors
    /// When the directory cannot be written.
    pub fn claim(&self, claim: &Claim) -> io::Result<bool> {
        // Written aside and linked, so that the claim appears whole or not at all.
        let aside = self.file.with_added_extension(std::process::id().to_string());
        let mut options = fs::OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&aside)?;
        let written = file.write_all(&line(&Entry::Claim(*claim))?);
        let linked = written.and_then(|()| fs::hard_link(&aside, &self.file));
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
        self.find(|entry| match entry {
            Entry::Claim(claim) => Some(claim),
            _ => None,
        })
    }

    /// Records the job's first process. For the claimant only.
    ///
    /// # Errors
    /// When the disk does not take it.
    pub fn write_child(&self, child: ProcessRef) -> io::Result<()> {
        self.add(&Entry::Child(child))
    }

    /// The job's first process.
    #[must_use]
    pub fn child(&self) -> Option<ProcessRef> {
        self.find(|entry| match entry {
            Entry::Child(child) => Some(child),
            _ => None,
        })
    }

    /// Leaves the exit record. For the claimant only; may be tried again after a failure.
    ///
    /// # Errors
    /// When the disk does not take it.
    pub fn write_exit(&self, exit: &Exit) -> io::Result<()> {
        self.add(&Entry::Exit(exit.clone()))
    }

    /// How the attempt ended.
    #[must_use]
    pub fn exit(&self) -> Option<Exit> {
        self.find(|entry| match entry {
            Entry::Exit(exit) => Some(exit),
            _ => None,
        })
    }

    /// Removes the file, once the journal has it.
    pub fn remove(&self) {
        let _ = fs::remove_file(&self.file);
    }

    fn find<T>(&self, wanted: impl Fn(Entry) -> Option<T>) -> Option<T> {
        let text = fs::read(&self.file).ok()?;
        let (whole, _) = text.split_at(whole_lines(&text));
        whole.split(|b| *b == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).find_map(wanted)
    }

    fn add(&self, entry: &Entry) -> io::Result<()> {
        let file = fs::OpenOptions::new().read(true).write(true).open(&self.file)?;
        let mut text = Vec::new();
        (&file).read_to_end(&mut text)?;
        // What a full disk cut off is overwritten.
        let end = whole_lines(&text) as u64;
        if text.len() as u64 > end {
            file.set_len(end)?;
        }
        file.write_all_at(&line(entry)?, end)
    }
}

fn line(entry: &Entry) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(entry).map_err(io::Error::other)?;
    line.push(b'\n');
    Ok(line)
}

/// Length up to the last newline. What follows it was not written to its end.
fn whole_lines(text: &[u8]) -> usize {
    text.iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1)
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

    #[test]
    fn an_entry_counts_once_it_is_whole() {
        let dir = tempfile::tempdir().unwrap();
        let records = Records::new(dir.path(), JobId(7), 1);
        let (me, child) = (ProcessRef { pid: 1, start_ticks: 2 }, ProcessRef { pid: 3, start_ticks: 4 });
        let exit = Exit { status: carma_core::model::ExitStatus::Code(0), evidence: None, not_started: None };
        assert!(records.claim(&Claim::Supervisor(me)).unwrap());
        records.write_child(child).unwrap();
        // The disk was full in the middle of the exit record.
        let whole = fs::read(&records.file).unwrap();
        let cut = line(&Entry::Exit(exit.clone())).unwrap();
        fs::write(&records.file, [&whole[..], &cut[..cut.len() - 1]].concat()).unwrap();
        assert_eq!(records.exit(), None);
        records.write_exit(&exit).unwrap();
        assert_eq!(records.exit(), Some(exit));
        assert_eq!(records.child(), Some(child));
        assert_eq!(records.claimed(), Some(Claim::Supervisor(me)));
    }
}

//! After a restart: what became of the attempts that the journal says are under way.

use super::process;
use super::record::{Claim, Records};
use carma_core::model::{Exit, ExitStatus, JobId, ProcessRef};
use rustix::fd::OwnedFd;
use std::path::Path;

/// What became of an attempt.
#[derive(Debug)]
pub enum Found {
    /// It is over.
    Exited(Exit),
    /// Its supervisor lives and is to be watched.
    Alive {
        /// The supervisor.
        supervisor: ProcessRef,
        /// The job's first process, if recorded by now.
        child: Option<ProcessRef>,
        /// Handle of the supervisor, or of the command if the supervisor was killed.
        pidfd: OwnedFd,
    },
    /// It was never started, and never will be.
    NeverStarted,
}

/// Finds out what became of an attempt, and makes sure that it cannot start any more if it has not.
///
/// # Errors
/// When the records cannot be written: nothing is known then, and nothing may be started.
pub fn find(run_dir: &Path, job: JobId, attempt: u32) -> std::io::Result<Found> {
    let records = Records::new(run_dir, job, attempt);
    if let Some(exit) = records.exit() {
        return Ok(Found::Exited(exit));
    }
    if records.claimed().is_none() && records.claim(&Claim::Fenced)? {
        return Ok(Found::NeverStarted);
    }
    let Some(Claim::Supervisor(supervisor)) = records.claimed() else {
        return Ok(Found::NeverStarted);
    };
    let child = records.child();
    if let Some(pidfd) = process::open(supervisor) {
        return Ok(Found::Alive { supervisor, child, pidfd });
    }
    // It may have ended between the two looks.
    if let Some(exit) = records.exit() {
        return Ok(Found::Exited(exit));
    }
    if let Some(pidfd) = child.and_then(process::open) {
        return Ok(Found::Alive { supervisor, child, pidfd });
    }
    Ok(Found::Exited(Exit { status: ExitStatus::Unknown, evidence: None, not_started: None }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_claim_it_is_fenced_off() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(find(dir.path(), JobId(1), 1), Ok(Found::NeverStarted)));
        let late = ProcessRef { pid: 1, start_ticks: 1 };
        let records = Records::new(dir.path(), JobId(1), 1);
        assert!(!records.claim(&Claim::Supervisor(late)).unwrap(), "a late supervisor starts nothing");
        // And a second restart comes to the same end.
        assert!(matches!(find(dir.path(), JobId(1), 1), Ok(Found::NeverStarted)));
    }

    #[test]
    fn a_dead_supervisor_without_a_record_leaves_an_unknown_end() {
        let dir = tempfile::tempdir().unwrap();
        let gone = ProcessRef { pid: u32::MAX >> 2, start_ticks: 1 };
        Records::new(dir.path(), JobId(1), 1).claim(&Claim::Supervisor(gone)).unwrap();
        let found = find(dir.path(), JobId(1), 1).unwrap();
        assert!(matches!(found, Found::Exited(Exit { status: ExitStatus::Unknown, .. })));
    }

    #[test]
    fn a_living_supervisor_is_adopted() {
        let dir = tempfile::tempdir().unwrap();
        let me = process::identify(std::process::id()).unwrap();
        Records::new(dir.path(), JobId(1), 1).claim(&Claim::Supervisor(me)).unwrap();
        assert!(matches!(find(dir.path(), JobId(1), 1), Ok(Found::Alive { .. })));
    }
}

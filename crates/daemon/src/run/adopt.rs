//! What became of an attempt whose supervisor this daemon has not seen end, or has.

use super::cgroup::Group;
use super::identity::Life;
use super::record::{Claim, Records};
use carma_core::model::{Exit, ExitStatus, ProcessRef};
use carma_process::process;
use rustix::fd::OwnedFd;
use std::io::{self, ErrorKind};

/// What became of an attempt.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "one for each end of an attempt, and moved a few times")]
pub enum Found {
    /// It is over.
    Exited(Exit),
    /// Its supervisor lives and is to be watched.
    Alive {
        /// The supervisor.
        supervisor: ProcessRef,
        /// The job's first process, if recorded by now.
        child: Option<ProcessRef>,
        /// Handle of the supervisor.
        pidfd: OwnedFd,
    },
    /// Its supervisor was killed; its command goes on, and its end can be seen, but not its status.
    Orphan {
        /// The supervisor that was.
        supervisor: ProcessRef,
        /// The job's first process.
        child: ProcessRef,
        /// Handle of that process.
        pidfd: OwnedFd,
    },
    /// Its command was never started, and never will be.
    NeverStarted,
}

/// What is known of an attempt beforehand.
#[derive(Debug, Clone, Copy)]
pub struct Known<'a> {
    /// The life in which it was decided.
    pub life: &'a Life,
    /// The present one.
    pub here: &'a Life,
    /// Its supervisor, if the journal has seen it start.
    pub supervisor: Option<ProcessRef>,
    /// Its first process, if the journal knows it.
    pub child: Option<ProcessRef>,
    /// Its cgroup, where attempts have one.
    pub group: Option<&'a Group>,
}

/// Finds out what became of an attempt, and makes sure that it cannot start any more if it has not.
///
/// # Errors
/// When its record cannot be read or written now: nothing is known then, nothing may be started, and it is to be asked
/// again.
pub fn find(records: &Records, known: Known<'_>) -> io::Result<Found> {
    let unknown = Found::Exited(Exit::of(ExitStatus::Unknown));
    // Of another boot or host no process lives here, whatever number a process has.
    let may_live = known.life.is_of(known.here);
    let open = |process: ProcessRef| if may_live { process::open(process) } else { Ok(None) };
    // Between two looks a claim may come, and an exit record.
    for _ in 0..3 {
        let read = match records.read() {
            Err(e) if e.kind() == ErrorKind::InvalidData => return damaged(known, open, e),
            read => read?,
        };
        let Some(record) = read else {
            if let Some(supervisor) = known.supervisor {
                // It ran, and its record is gone: to start it again would be to run it twice.
                return Ok(match open(supervisor)? {
                    Some(pidfd) => Found::Alive { supervisor, child: None, pidfd },
                    None => unknown,
                });
            }
            if records.claim(&Claim::Fenced)?.is_some() || records.read()?.is_none() {
                return Ok(Found::NeverStarted);
            }
            continue;
        };
        if let Some(exit) = record.exit {
            return Ok(Found::Exited(exit));
        }
        let Claim::Supervisor(supervisor) = record.claim else { return Ok(Found::NeverStarted) };
        if let Some(pidfd) = open(supervisor)? {
            let child = record.child;
            return Ok(Found::Alive { supervisor, child, pidfd });
        }
        // It is gone, and writes no more.
        let Some(record) = records.read()? else { return Ok(unknown) };
        if let Some(exit) = record.exit {
            return Ok(Found::Exited(exit));
        }
        // A record may have lost its later lines with the power.
        return Ok(match record.child.or(known.child) {
            Some(child) => match open(child)? {
                Some(pidfd) => Found::Orphan { supervisor, child, pidfd },
                None => unknown,
            },
            // A copy of a state directory does not show what came after the claim.
            None if record.tells_of_child && !known.life.is_elsewhere(known.here) => Found::NeverStarted,
            None => unknown,
        });
    }
    Err(io::Error::other("its record comes and goes"))
}

/// What became of an attempt whose record is damaged, as after a power loss before its bytes were on the disk. Claims are not
/// synced: that takes 4 ms a launch, and changes no verdict on what ran. The attempt is never started again, since it may
/// have run.
///
/// # Errors
/// That of the record, where a process of the attempt may live and the journal does not know it.
fn damaged(
    known: Known<'_>,
    open: impl Fn(ProcessRef) -> io::Result<Option<OwnedFd>>,
    why: io::Error,
) -> io::Result<Found> {
    let unknown = Found::Exited(Exit::of(ExitStatus::Unknown));
    if !known.life.is_of(known.here) {
        return Ok(unknown);
    }
    // The supervisor that claimed it may be about to start it.
    let Some(supervisor) = known.supervisor else { return Err(why) };
    if let Some(pidfd) = open(supervisor)? {
        return Ok(Found::Alive { supervisor, child: known.child, pidfd });
    }
    match known.child {
        Some(child) => Ok(match open(child)? {
            Some(pidfd) => Found::Orphan { supervisor, child, pidfd },
            None => unknown,
        }),
        None if known.group.is_some_and(Group::is_populated) => Err(why),
        None => Ok(unknown),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::cgroup::HostLimits;
    use crate::run::identity::AttemptId;
    use carma_core::model::JobId;
    use carma_core::units::Millis;

    struct Case {
        dir: tempfile::TempDir,
        life: Life,
    }

    impl Case {
        fn new() -> Self {
            Self { dir: tempfile::tempdir().unwrap(), life: Life::begin(Millis(1), "1-2").unwrap() }
        }

        fn id(&self) -> AttemptId {
            let Life { name, host, boot, .. } = self.life.clone();
            AttemptId { journal: "j".into(), life: name, host, boot, job: JobId(1), attempt: 1 }
        }

        fn records(&self) -> Records {
            Records::new(self.dir.path(), self.id())
        }

        fn find_in(&self, here: &Life, supervisor: Option<ProcessRef>) -> io::Result<Found> {
            find(&self.records(), Known { here, supervisor, ..self.known() })
        }

        /// What is known of it here, before anything of it was seen.
        fn known(&self) -> Known<'_> {
            Known { life: &self.life, here: &self.life, supervisor: None, child: None, group: None }
        }

        /// The record as a power loss leaves it: its name was on the disk, its bytes were not.
        fn empties(&self) {
            self.records().claim(&Claim::Supervisor(GONE)).unwrap().unwrap();
            std::fs::write(self.dir.path().join("1.1.record"), "").unwrap();
        }

        fn find(&self) -> Found {
            self.find_in(&self.life, None).unwrap()
        }
    }

    fn me() -> ProcessRef {
        process::identify(std::process::id()).unwrap()
    }

    const GONE: ProcessRef = ProcessRef { pid: u32::MAX >> 2, start_ticks: 1 };

    #[test]
    fn without_a_claim_it_is_fenced_off() {
        let case = Case::new();
        assert!(matches!(case.find(), Found::NeverStarted));
        let late = case.records().claim(&Claim::Supervisor(GONE)).unwrap();
        assert!(late.is_none(), "a late supervisor starts nothing");
        // And a second restart comes to the same end.
        assert!(matches!(case.find(), Found::NeverStarted));
    }

    #[test]
    fn what_ran_and_left_no_record_is_not_started_again() {
        let case = Case::new();
        let found = case.find_in(&case.life, Some(GONE)).unwrap();
        assert!(matches!(found, Found::Exited(Exit { status: ExitStatus::Unknown, .. })));
        assert!(matches!(case.find_in(&case.life, Some(me())), Ok(Found::Alive { .. })));
    }

    #[test]
    fn a_supervisor_that_died_before_it_started_anything() {
        let case = Case::new();
        case.records().claim(&Claim::Supervisor(GONE)).unwrap().unwrap();
        assert!(matches!(case.find(), Found::NeverStarted));
    }

    #[test]
    fn a_dead_supervisor_without_an_exit_leaves_an_unknown_end() {
        let case = Case::new();
        let mut claimed = case.records().claim(&Claim::Supervisor(GONE)).unwrap().unwrap();
        claimed.write_child(me()).unwrap();
        assert!(matches!(case.find(), Found::Orphan { .. }));
        let other = Case::new();
        let mut claimed = other.records().claim(&Claim::Supervisor(GONE)).unwrap().unwrap();
        claimed.write_child(GONE).unwrap();
        assert!(matches!(other.find(), Found::Exited(Exit { status: ExitStatus::Unknown, .. })));
    }

    #[test]
    fn a_damaged_record_holds_up_nothing_that_cannot_live() {
        let case = Case::new();
        case.empties();
        let known = case.known();
        let find = |known| find(&case.records(), known);
        let is_over = |found| matches!(found, Ok(Found::Exited(Exit { status: ExitStatus::Unknown, .. })));
        let later = Life { boot: "later".into(), ..case.life.clone() };
        for (supervisor, child) in [(None, None), (Some(me()), Some(me()))] {
            assert!(is_over(find(Known { here: &later, supervisor, child, ..known })));
        }
        // On this boot the journal says which processes to look for.
        let gone = Known { supervisor: Some(GONE), ..known };
        assert!(is_over(find(gone)));
        assert!(is_over(find(Known { child: Some(GONE), ..gone })));
        assert!(matches!(find(Known { child: Some(me()), ..gone }), Ok(Found::Orphan { .. })));
        assert!(matches!(find(Known { supervisor: Some(me()), ..known }), Ok(Found::Alive { .. })));
        // Whose supervisor may live unseen, or whose first process in its cgroup, is not called dead.
        assert!(find(known).is_err());
        let groups = tempfile::tempdir().unwrap();
        let group = Group::create(groups.path(), &case.id(), HostLimits::default()).unwrap();
        let full = Known { group: Some(&group), ..gone };
        std::fs::write(group.dir().join("cgroup.events"), "populated 1\n").unwrap();
        assert!(find(full).is_err());
        std::fs::write(group.dir().join("cgroup.events"), "populated 0\n").unwrap();
        assert!(is_over(find(full)));
    }

    /// The claim was on the disk when the power was lost, what came after it was not.
    #[test]
    fn what_the_journal_saw_run_is_not_started_again_by_half_a_record() {
        let case = Case::new();
        case.records().claim(&Claim::Supervisor(GONE)).unwrap().unwrap();
        let ran = Known { supervisor: Some(GONE), child: Some(GONE), ..case.known() };
        let found = find(&case.records(), ran).unwrap();
        assert!(matches!(found, Found::Exited(Exit { status: ExitStatus::Unknown, .. })));
    }

    #[test]
    fn a_living_supervisor_is_adopted_on_its_own_boot_alone() {
        let case = Case::new();
        let mut claimed = case.records().claim(&Claim::Supervisor(me())).unwrap().unwrap();
        claimed.write_child(GONE).unwrap();
        assert!(matches!(case.find(), Found::Alive { .. }));
        let later = Life { boot: "later".into(), ..case.life.clone() };
        let found = case.find_in(&later, None).unwrap();
        assert!(matches!(found, Found::Exited(Exit { status: ExitStatus::Unknown, .. })));
    }
}

//! What is agreed with a job that saves its work before it goes back into the queue: where it saves, and which process to ask.
//!
//! The directory is the user's, in the user's own space: what is saved there counts for the user and fills no disk of
//! carma's. Here it is a name alone; the supervisor makes it, with the user's rights ([`super::supervise`]).

use super::cgroup::Group;
use super::order::CheckpointDir;
use super::watch::announce;
use carma_api::wire::{CheckpointSignal, SubmitRequest};
use carma_core::model::{JobId, ProcessRef};
use carma_process::process::Stat;
use carma_process::{catch, process};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Where a job saves its work, if it wants to. `journal`: the name of the journal, since numbers of jobs are unique in one
/// alone.
#[must_use]
pub fn directory(request: &SubmitRequest, journal: &str, job: JobId) -> Option<CheckpointDir> {
    if let Some(named) = &request.checkpoint_dir {
        return Some(CheckpointDir::Named(named.into()));
    }
    // A path that is not absolute is to be ignored (XDG Base Directory Specification).
    let absolute = |name: &str| request.env.get(name).map(Path::new).filter(|path| path.is_absolute());
    let state = absolute("XDG_STATE_HOME").map(Path::to_owned);
    let state: Option<PathBuf> = state.or_else(|| Some(absolute("HOME")?.join(".local/state")));
    let journal = journal.get(..8).unwrap_or(journal);
    let own =
        |state: PathBuf| CheckpointDir::Own(state.join("carma").join(journal).join(format!("job-{job}")));
    request.saves_at_home().then(|| state.map_or(CheckpointDir::Homeless, own))
}

/// Asks a job to save its work: sends the signal to the top-most processes of it that catch it, and returns their pids.
///
/// # Errors
/// Why no process was signalled, in words.
pub fn ask(
    supervisor: ProcessRef,
    child: Option<ProcessRef>,
    group: Option<&Group>,
    signal: CheckpointSignal,
) -> Result<Vec<u32>, String> {
    let number = match signal {
        CheckpointSignal::Usr1 => Signal::USR1,
        CheckpointSignal::Usr2 => Signal::USR2,
        CheckpointSignal::Hup => Signal::HUP,
        CheckpointSignal::Int => Signal::INT,
        CheckpointSignal::Term => Signal::TERM,
    };
    match catch::send(|| members(supervisor, child, group), number, || announce(supervisor)) {
        Ok(sent) if sent.is_empty() => Err(format!("no process of it catches {signal}")),
        Ok(sent) => Ok(sent),
        Err(e) => Err(format!("{signal} cannot be sent: {e}")),
    }
}

/// The processes of a job now, without its supervisor: those in its cgroup, and those that descend from its first ones.
pub(super) fn members(
    supervisor: ProcessRef,
    child: Option<ProcessRef>,
    group: Option<&Group>,
) -> BTreeMap<u32, Stat> {
    let lives = |process: &ProcessRef| process::identify(process.pid) == Some(*process);
    let roots: Vec<u32> =
        [Some(supervisor), child].into_iter().flatten().filter(lives).map(|root| root.pid).collect();
    let mut pids = group.map(Group::pids).unwrap_or_default();
    pids.extend(process::descendants_of(&roots).into_iter().flatten());
    pids.extend(roots);
    pids.into_iter()
        .filter(|pid| *pid != supervisor.pid)
        .filter_map(|pid| Some((pid, process::stat(pid).filter(|stat| !stat.zombie)?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(signal: Option<CheckpointSignal>, dir: Option<&str>, env: &[(&str, &str)]) -> SubmitRequest {
        SubmitRequest {
            checkpoint_signal: signal,
            checkpoint_dir: dir.map(str::to_owned),
            env: env.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
            ..SubmitRequest::default()
        }
    }

    #[test]
    fn each_job_of_each_journal_has_a_directory_of_its_own() {
        let usr1 = Some(CheckpointSignal::Usr1);
        let at = |env: &[(&str, &str)]| directory(&request(usr1, None, env), "0123456789ab", JobId(7));
        let own = |path: &str| Some(CheckpointDir::Own(path.into()));
        let home = ("HOME", "/home/a");
        assert_eq!(at(&[home]), own("/home/a/.local/state/carma/01234567/job-7"));
        assert_eq!(at(&[home, ("XDG_STATE_HOME", "/x")]), own("/x/carma/01234567/job-7"));
        assert_eq!(at(&[home, ("XDG_STATE_HOME", "x")]), own("/home/a/.local/state/carma/01234567/job-7"));
        for env in [&[][..], &[("HOME", "")], &[("HOME", "relative")]] {
            assert_eq!(at(env), Some(CheckpointDir::Homeless));
        }
        // The user's word counts as it is; and who asks for nothing gets nothing.
        let named = Some(CheckpointDir::Named("/scratch/run-1".into()));
        assert_eq!(directory(&request(usr1, Some("/scratch/run-1"), &[]), "j", JobId(7)), named);
        assert_eq!(directory(&request(None, Some("/scratch/run-1"), &[]), "j", JobId(7)), named);
        assert_eq!(directory(&request(None, None, &[home]), "j", JobId(7)), None);
    }

    #[test]
    fn a_supervisor_is_no_member_of_its_job_nor_is_a_stranger_with_its_pid() {
        let me = process::identify(std::process::id()).unwrap();
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let first = process::identify(child.id()).unwrap();
        let found = members(me, Some(first), None);
        assert!(found.contains_key(&child.id()) && !found.contains_key(&me.pid));
        // Its supervisor was killed, and another process has the number.
        let gone = ProcessRef { start_ticks: me.start_ticks + 1, ..me };
        assert_eq!(members(gone, Some(first), None).into_keys().collect::<Vec<_>>(), [child.id()]);
        let none = ProcessRef { start_ticks: first.start_ticks + 1, ..first };
        assert!(members(gone, Some(none), None).is_empty());
        let error = ask(gone, Some(first), None, CheckpointSignal::Usr1).unwrap_err();
        assert_eq!(error, "no process of it catches SIGUSR1");
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

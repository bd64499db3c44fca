//! Which processes of a job are told of a signal: those that catch it. And which a signal need not end.
//!
//! A signal that a process does not catch ends it, so it is not sent to a whole job: of a shell script that runs a program
//! the shell would die. It goes to the top-most process of each branch that catches it. What runs below one of those, a
//! data loader's workers say, is that one's to tell.

use crate::process::{self, Stat};
use carma_core::model::ProcessRef;
use rustix::process::{Signal, pidfd_send_signal};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read};

/// Bytes of `/proc/PID/status` that are read: the masks stand within the first two thousand, but for a process in very many
/// groups.
const STATUS: u64 = 1 << 20;

/// Whether a process has a handler for a signal (`SigCgt` in `/proc/PID/status`, proc(5)). One that is gone has none.
#[must_use]
pub fn catches(pid: u32, signal: Signal) -> bool {
    status(pid).and_then(|status| mask(&status, CAUGHT)).is_some_and(|caught| has(caught, signal))
}

/// Whether a process may go on, or end in its own way, after a signal that ends those which have nothing set up for it: it catches, ignores
/// or blocks that one. So may one of which that cannot be read.
#[must_use]
pub fn may_survive(pid: u32, signal: Signal) -> bool {
    let Some(status) = status(pid) else { return true };
    [CAUGHT, "SigIgn:", "SigBlk:"].iter().any(|name| mask(&status, name).is_none_or(|mask| has(mask, signal)))
}

/// The line of the signals that a process has a handler for.
const CAUGHT: &str = "SigCgt:";

fn status(pid: u32) -> Option<String> {
    let mut bytes = Vec::new();
    let file = File::open(format!("/proc/{pid}/status")).ok()?;
    file.take(STATUS).read_to_end(&mut bytes).ok()?;
    // The name of a process need not be text.
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

fn mask(status: &str, name: &str) -> Option<u64> {
    // The name of the process comes before it, and a line break in that is escaped.
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

fn has(mask: u64, signal: Signal) -> bool {
    let bit = signal.as_raw() - 1;
    u32::try_from(bit).ok().and_then(|bit| mask.checked_shr(bit)).is_some_and(|mask| mask & 1 == 1)
}

/// The top-most process of each branch that catches a signal, in the order of their pids. `members`: the processes of a
/// job. A member whose parent is none is the top of a branch.
#[must_use]
pub fn topmost(members: &BTreeMap<u32, Stat>, catches: impl Fn(u32) -> bool) -> Vec<u32> {
    let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    let mut next = Vec::new();
    for stat in members.values() {
        if members.contains_key(&stat.parent) && stat.parent != stat.pid {
            children.entry(stat.parent).or_default().push(stat.pid);
        } else {
            next.push(stat.pid);
        }
    }
    let mut found = BTreeSet::new();
    while let Some(pid) = next.pop() {
        if catches(pid) {
            found.insert(pid);
        } else {
            // Taken out, so that this ends whatever the parents are said to be.
            next.extend(children.remove(&pid).unwrap_or_default());
        }
    }
    found.into_iter().collect()
}

/// Sends a signal to the top-most processes of each branch of a job that catch it, and returns their pids. `members` says
/// which processes are the job's now. It is asked twice: a pid that is another process's by the time of the signal is not
/// signalled, nor is a process whose number passed from the job to a stranger while it was looked at. `announce` is called before the
/// first signal, and not at all where there is none to send.
///
/// # Errors
/// When the machine refuses a descriptor, or every signal.
pub fn send(
    members: impl Fn() -> BTreeMap<u32, Stat>,
    signal: Signal,
    announce: impl FnOnce(),
) -> io::Result<Vec<u32>> {
    let first = members();
    let chosen = topmost(&first, |pid| catches(pid, signal));
    let mut opened = Vec::new();
    for pid in chosen {
        let Some(stat) = first.get(&pid) else { continue };
        // The same process as before its mask was read, or none.
        if let Some(pidfd) = process::open(ProcessRef { pid, start_ticks: stat.start_ticks })? {
            opened.push((*stat, pidfd));
        }
    }
    let now = members();
    opened.retain(|(stat, _)| now.get(&stat.pid).is_some_and(|now| now.start_ticks == stat.start_ticks));
    if !opened.is_empty() {
        announce();
    }
    let (mut sent, mut refused) = (Vec::new(), None);
    for (stat, pidfd) in opened {
        match pidfd_send_signal(&pidfd, signal) {
            Ok(()) => sent.push(stat.pid),
            // It has ended meanwhile.
            Err(rustix::io::Errno::SRCH) => {}
            Err(e) => refused = Some(e),
        }
    }
    match refused {
        Some(e) if sent.is_empty() => Err(e.into()),
        _ => Ok(sent),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    fn family(parents: &[(u32, u32)]) -> BTreeMap<u32, Stat> {
        let stat = |pid, parent| Stat { pid, parent, session: 1, start_ticks: 1, zombie: false };
        parents.iter().map(|(pid, parent)| (*pid, stat(*pid, *parent))).collect()
    }

    fn chosen(parents: &[(u32, u32)], catching: &[u32]) -> Vec<u32> {
        topmost(&family(parents), |pid| catching.contains(&pid))
    }

    #[test]
    fn a_shell_without_a_trap_is_passed_over() {
        // bash 10 runs python 11, which has workers 12 and 13 that inherited its handler.
        let tree = [(10, 1), (11, 10), (12, 11), (13, 11)];
        assert_eq!(chosen(&tree, &[11, 12, 13]), [11]);
        // A shell with a trap is the one that is told.
        assert_eq!(chosen(&tree, &[10, 11, 12, 13]), [10]);
        assert_eq!(chosen(&tree, &[]), [0; 0]);
    }

    #[test]
    fn each_branch_is_told() {
        // torchrun 20 starts ranks 21, 22 and 23; rank 23 is a wrapper of 24.
        let tree = [(20, 1), (21, 20), (22, 20), (23, 20), (24, 23), (25, 21)];
        assert_eq!(chosen(&tree, &[21, 22, 24, 25]), [21, 22, 24]);
        // 31 lost its parent and is the supervisor's child: a branch of its own.
        assert_eq!(chosen(&[(30, 1), (31, 1), (32, 31)], &[30, 32]), [30, 32]);
    }

    #[test]
    fn parents_that_make_no_sense_do_no_harm() {
        assert_eq!(chosen(&[(5, 5), (6, 5)], &[6]), [6]);
        // A circle, as a reused pid may show it, has no top.
        assert_eq!(chosen(&[(7, 8), (8, 7)], &[7, 8]), [0; 0]);
        assert_eq!(chosen(&[], &[1]), [0; 0]);
    }

    #[test]
    fn masks_as_the_kernel_writes_them() {
        let status = "Name:\ta\\nSigCgt:\\tffff\nSigBlk:\t0000000000000200\nSigCgt:\t0000000000000201\n";
        let caught = mask(status, CAUGHT).unwrap();
        assert!(has(caught, Signal::HUP) && has(caught, Signal::USR1));
        assert!(!has(caught, Signal::USR2) && !has(caught, Signal::TERM));
        assert_eq!(mask("Name:\tx\n", CAUGHT), None);
        assert_eq!(mask("SigCgt:\tnonsense\n", CAUGHT), None);
        assert!(!catches(u32::MAX >> 2, Signal::USR1));
    }

    fn members(root: u32) -> BTreeMap<u32, Stat> {
        let all = process::all();
        let own = process::descendants(root);
        [root].into_iter().chain(own).filter_map(|pid| Some((pid, *all.get(&pid)?))).collect()
    }

    fn until(what: &str, check: impl Fn() -> bool) {
        let started = Instant::now();
        while !check() {
            assert!(started.elapsed() < Duration::from_secs(30), "waited in vain: {what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn shell(line: &str) -> Child {
        Command::new("bash").args(["-c", line]).stdout(Stdio::null()).spawn().unwrap()
    }

    #[test]
    fn a_trap_below_a_shell_is_sprung_and_the_shell_lives() {
        let dir = tempfile::tempdir().unwrap();
        let (ready, saved) = (dir.path().join("ready"), dir.path().join("saved"));
        let inner = format!(
            "trap 'echo saved > {}; exit 0' USR1; echo > {}; while :; do sleep 0.01; done",
            saved.display(),
            ready.display()
        );
        let mut outer = shell(&format!("bash -c \"{inner}\"; exit 7"));
        until("the trap", || ready.exists());
        // A process that is the job's no more, or bears the number of one that was, is left alone.
        let stale = || {
            let mut members = members(outer.id());
            members.values_mut().for_each(|stat| stat.start_ticks += 1);
            members
        };
        assert_eq!(send(stale, Signal::USR1, || unreachable!()).unwrap(), [0; 0]);
        let looks = Cell::new(0);
        let gone = || {
            looks.set(looks.get() + 1);
            if looks.get() == 1 { members(outer.id()) } else { BTreeMap::new() }
        };
        assert_eq!(send(gone, Signal::USR1, || unreachable!()).unwrap(), [0; 0]);
        let announced = Cell::new(false);
        let sent = send(|| members(outer.id()), Signal::USR1, || announced.set(!saved.exists())).unwrap();
        assert!(announced.get(), "before the signal");
        assert!(sent.len() == 1 && sent != [outer.id()], "{sent:?}");
        // The shell goes on after its program has ended.
        assert_eq!(outer.wait().unwrap().code(), Some(7));
        assert!(saved.exists());
    }

    #[test]
    fn what_a_signal_need_not_end() {
        let dir = tempfile::tempdir().unwrap();
        let survives = |trap: &str| {
            let ready = dir.path().join("ready");
            let mut child = shell(&format!("{trap} echo > {}; exec sleep 600", ready.display()));
            until("the trap", || ready.exists() && !members(child.id()).is_empty());
            let survives = may_survive(child.id(), Signal::TERM);
            child.kill().unwrap();
            until("its end", || process::stat(child.id()).is_some_and(|stat| stat.zombie));
            // As long as it is not reaped, it is as it was.
            assert_eq!(may_survive(child.id(), Signal::TERM), survives);
            child.wait().unwrap();
            std::fs::remove_file(&ready).unwrap();
            survives
        };
        assert!(!survives(""));
        assert!(survives("trap '' TERM;"));
        assert!(may_survive(u32::MAX >> 2, Signal::TERM), "of that one nothing is known");
    }

    #[test]
    fn where_no_process_catches_it_none_is_signalled() {
        let mut child = shell("sleep 600; true");
        until("its program", || members(child.id()).len() == 2);
        assert_eq!(send(|| members(child.id()), Signal::USR1, || unreachable!()).unwrap(), [0; 0]);
        assert!(child.try_wait().unwrap().is_none());
        for pid in process::descendants(child.id()).into_iter().chain([child.id()]) {
            let pid = rustix::process::Pid::from_raw(pid.cast_signed()).unwrap();
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
        child.wait().unwrap();
    }
}

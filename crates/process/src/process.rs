//! Processes by pid and start time, and which descends from which.

use carma_core::model::ProcessRef;
use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::path::Path;

/// Bytes of a short file of the kernel's, and more.
const KERNEL_FILE: usize = 4096;

/// The fields of `/proc/PID/stat` that carma needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// Process id.
    pub pid: u32,
    /// Pid of its parent.
    pub parent: u32,
    /// Session, the pid of its leader.
    pub session: u32,
    /// Start time, clock ticks since boot.
    pub start_ticks: u64,
    /// Dead, and not yet reaped.
    pub zombie: bool,
}

/// Reads `/proc/PID/stat`; `None` when there is no such process.
#[must_use]
pub fn stat(pid: u32) -> Option<Stat> {
    parse(pid, &kernel_file(Path::new(&format!("/proc/{pid}/stat"))).ok()?)
}

/// Reads a short file of the kernel's, which has no size, in one piece. The name of a process in it need not be text.
///
/// # Errors
/// When it is not there.
pub fn kernel_file(path: &Path) -> io::Result<String> {
    let mut text = Vec::with_capacity(KERNEL_FILE);
    fs::File::open(path)?.take(KERNEL_FILE as u64).read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

fn parse(pid: u32, text: &str) -> Option<Stat> {
    // The command name stands in parentheses and may itself contain any of them.
    let (_, rest) = text.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    Some(Stat {
        pid,
        zombie: matches!(*fields.first()?, "Z" | "X"),
        parent: fields.get(1)?.parse().ok()?,
        session: fields.get(3)?.parse().ok()?,
        start_ticks: fields.get(19)?.parse().ok()?,
    })
}

/// Identity of a process that lives now.
#[must_use]
pub fn identify(pid: u32) -> Option<ProcessRef> {
    stat(pid).map(|s| ProcessRef { pid, start_ticks: s.start_ticks })
}

/// Opens a pidfd of exactly this process; `None` when it is gone, zombies included.
///
/// # Errors
/// When the machine cannot tell now: out of descriptors, say.
pub fn open(process: ProcessRef) -> io::Result<Option<OwnedFd>> {
    let Some(pid) = Pid::from_raw(process.pid.cast_signed()) else { return Ok(None) };
    let fd = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(fd) => fd,
        Err(rustix::io::Errno::SRCH) => return Ok(None),
        Err(e) => return Err(e.into()),
    };
    // The pid may have been reused before the fd was opened, but not after.
    let stat = match kernel_file(Path::new(&format!("/proc/{}/stat", process.pid))) {
        Ok(text) => parse(process.pid, &text),
        Err(e) if matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => None,
        Err(e) => return Err(e),
    };
    Ok(stat.filter(|s| s.start_ticks == process.start_ticks && !s.zombie).map(|_| fd))
}

/// All processes, by pid.
#[must_use]
pub fn all() -> BTreeMap<u32, Stat> {
    let Ok(entries) = fs::read_dir("/proc") else { return BTreeMap::new() };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(|pid| Some((pid, stat(pid)?)))
        .collect()
}

/// Living descendants of a process, children before their own children.
#[must_use]
pub fn descendants(root: u32) -> Vec<u32> {
    descendants_of(&[root]).pop().unwrap_or_default()
}

/// The same of several processes at one look.
#[must_use]
pub fn descendants_of(roots: &[u32]) -> Vec<Vec<u32>> {
    let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for stat in all().into_values().filter(|s| !s.zombie) {
        children.entry(stat.parent).or_default().push(stat.pid);
    }
    let of = |root: &u32| {
        let mut found = vec![*root];
        let mut at = 0;
        while let Some(parent) = found.get(at) {
            found.extend(children.get(parent).into_iter().flatten());
            at += 1;
        }
        found.remove(0);
        found
    };
    roots.iter().map(of).collect()
}

/// Number of the user who owns a process; `None` when it is gone.
#[must_use]
pub fn owner(pid: u32) -> Option<u32> {
    use std::os::unix::fs::MetadataExt;
    Some(fs::metadata(format!("/proc/{pid}")).ok()?.uid())
}

/// Login name of a user, or the number where the system knows no name. May block for as long as the user database does.
#[must_use]
pub fn user_name(uid: u32) -> String {
    uzers::get_user_by_uid(uid)
        .map_or_else(|| uid.to_string(), |user| user.name().to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_command_name_does_not_confuse() {
        let text = "42 (a) R 1 (b) S 7 8 9 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 12345 0 0";
        let stat = parse(42, text).unwrap();
        assert_eq!((stat.parent, stat.session, stat.start_ticks), (7, 9, 12345));
    }

    #[test]
    fn a_name_that_is_cut_within_a_letter_does_not_hide_a_process() {
        let dir = tempfile::tempdir().unwrap();
        // The kernel keeps 15 bytes.
        let program = dir.path().join("aaaaaaaaaaaaaaä");
        std::os::unix::fs::symlink("/bin/sleep", &program).unwrap();
        let mut child = std::process::Command::new(&program).arg("60").spawn().unwrap();
        let name = fs::read(format!("/proc/{}/comm", child.id())).unwrap();
        let seen = identify(child.id()).map(|process| open(process).unwrap().is_some());
        let used = crate::usage::Usage::default().look(0.0, &[child.id()]);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(std::str::from_utf8(&name).is_err(), "{name:?}");
        assert_eq!((seen, used.memory_mib > 0.0), (Some(true), true));
    }

    #[test]
    fn another_process_with_the_same_pid_is_not_opened() {
        let me = identify(std::process::id()).unwrap();
        assert!(open(me).unwrap().is_some());
        assert!(open(ProcessRef { start_ticks: me.start_ticks + 1, ..me }).unwrap().is_none());
    }
}

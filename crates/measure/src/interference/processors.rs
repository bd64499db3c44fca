//! Processors of their own for the members of a window.
//!
//! Tasks that are bound by launches lose speed to what runs on the other half of their core, and differently each
//! time the kernel moves them. Bound to cores that no other process has, they compete for the GPU alone.

use rustix::thread::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::fs;
use std::io;

/// The processors, so many for each member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Processors {
    each: usize,
    /// Numbers of those that we may use; halves of a core are neighbours.
    order: Vec<usize>,
}

impl Processors {
    /// So many for each of so many members, of those that this process may use.
    ///
    /// # Errors
    /// There are not so many.
    pub(super) fn divided(each: usize, members: usize) -> Result<Self, String> {
        let usable = sched_getaffinity(None).map_err(|e| format!("processors_each: {e}"))?;
        let mut order: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| usable.is_set(*cpu)).collect();
        order.sort_by_key(|cpu| (core(*cpu), *cpu));
        if each == 0 || each * members > order.len() {
            return Err(format!(
                "processors_each is {each}: {members} members at a time would need {}, there are {}",
                each * members,
                order.len()
            ));
        }
        Ok(Self { each, order })
    }

    /// Those of a member, by its place among the members.
    fn of(&self, at: usize) -> CpuSet {
        let mut set = CpuSet::new();
        self.order.iter().skip(at * self.each).take(self.each).for_each(|cpu| set.set(*cpu));
        set
    }

    /// Binds all threads of a member's processes to its processors; threads that they start later follow.
    ///
    /// # Errors
    /// The kernel refuses. Threads that end meanwhile are none of it.
    pub(super) fn give(&self, at: usize, pids: &[u32]) -> io::Result<()> {
        let set = self.of(at);
        for pid in pids {
            for thread in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
                let number = thread.file_name().to_str().and_then(|name| name.parse().ok());
                let Some(thread) = number.and_then(Pid::from_raw) else { continue };
                match sched_setaffinity(Some(thread), &set) {
                    Ok(()) | Err(rustix::io::Errno::SRCH) => {}
                    Err(e) => return Err(e.into()),
                }
            }
        }
        Ok(())
    }
}

/// What halves of one core have in common: the first of them. A processor that the kernel says nothing of is a core.
fn core(cpu: usize) -> usize {
    let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
    fs::read_to_string(path).ok().and_then(|list| first(&list)).unwrap_or(cpu)
}

/// The first number of a list such as `0,8` or `2-3`.
fn first(list: &str) -> Option<usize> {
    list.split([',', '-']).next()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_of_a_core_go_to_one_member() {
        assert_eq!([first("0,8\n"), first("2-3"), first("")], [Some(0), Some(2), None]);
        let processors = Processors { each: 2, order: vec![0, 8, 1, 9] };
        let numbers = |at: usize| -> Vec<usize> {
            let set = processors.of(at);
            (0..16).filter(|cpu| set.is_set(*cpu)).collect()
        };
        assert_eq!([numbers(0), numbers(1), numbers(2)], [vec![0, 8], vec![1, 9], vec![]]);
    }

    #[test]
    fn more_than_there_are_is_refused() {
        assert!(Processors::divided(1, 1).is_ok());
        let why = Processors::divided(4000, 4).unwrap_err();
        assert!(why.contains("4 members at a time would need 16000"), "{why}");
        assert!(Processors::divided(0, 1).is_err());
    }

    #[test]
    fn all_threads_of_a_process_are_bound() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let processors = Processors::divided(1, 1).unwrap();
        processors.give(0, &[child.id(), u32::MAX >> 1]).unwrap();
        let bound = sched_getaffinity(Some(Pid::from_child(&child))).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(bound.count(), 1);
    }
}

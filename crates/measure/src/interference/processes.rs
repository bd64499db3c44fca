//! The processes of a group: which they are, how much CPU and memory they take.

use std::fs;

/// A group of processes at one instant.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Group {
    pub(super) pids: Vec<u32>,
    /// CPU time so far, seconds.
    pub(super) cpu_s: f64,
    /// Resident memory, MiB. Pages that processes share count once for each.
    pub(super) memory_mib: u64,
}

/// Reads several groups at once; processes that end meanwhile are left out.
pub(super) fn read(groups: &[u32]) -> Vec<Group> {
    let mut found = vec![Group::default(); groups.len()];
    let tick = rustix::param::clock_ticks_per_second() as f64;
    let page = rustix::param::page_size() as u64;
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let Some(stat) = fs::read_to_string(entry.path().join("stat")).ok() else { continue };
        let Some(stat) = Stat::parse(&stat) else { continue };
        if let Some(at) = groups.iter().position(|&group| group == stat.group) {
            found[at].pids.push(pid);
            found[at].cpu_s += stat.cpu_ticks as f64 / tick;
            found[at].memory_mib += (stat.resident_pages * page) >> 20;
        }
    }
    found
}

#[derive(Debug, PartialEq)]
struct Stat {
    group: u32,
    cpu_ticks: u64,
    resident_pages: u64,
}

impl Stat {
    /// `pid (comm) state ppid pgrp ...`: the name may hold anything, so what follows its last bracket counts.
    fn parse(line: &str) -> Option<Self> {
        let fields: Vec<&str> = line.rsplit_once(')')?.1.split_whitespace().collect();
        let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
        // Fields 14 to 17 of proc(5): its own time, and that of children that it has waited for.
        let cpu_ticks = (11..=14).map(number).sum::<Option<u64>>()?;
        Some(Self { group: u32::try_from(number(2)?).ok()?, cpu_ticks, resident_pages: number(21)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_stat_is_read_whatever_the_name() {
        let rest = "S 1 77 77 0 -1 0 0 0 0 0 10 20 3 4 20 0 1 0 100 1000 55 0";
        let expected = Stat { group: 77, cpu_ticks: 37, resident_pages: 55 };
        assert_eq!(Stat::parse(&format!("5 (a) b) {rest}")), Some(expected));
        for bad in ["", "5 (a", "5 (a) S 1", "5 (a) S x y z"] {
            assert_eq!(Stat::parse(bad), None);
        }
    }

    #[test]
    fn this_process_is_found_in_its_group() {
        let own = rustix::process::getpgrp().as_raw_nonzero().get().cast_unsigned();
        let group = &read(&[own, u32::MAX])[0];
        assert!(group.pids.contains(&std::process::id()) && group.memory_mib > 0);
    }
}

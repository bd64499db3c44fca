//! All small sets of jobs that fit on one GPU, with the rates that the law gives them.

use carma_sim::event::clairvoyant::{Known, Rates};

/// The largest size of sets that are listed.
pub(super) const LARGEST: usize = 12;
/// The most sets that are listed.
const MOST: usize = 400_000;

/// A class of the workload as far as sets are concerned.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Member {
    /// Position among the known's classes.
    pub(super) class: u16,
    /// Jobs of it.
    pub(super) count: usize,
    /// Memory that each holds at least, MiB.
    pub(super) least: u64,
}

/// Sets of members, of up to `size` jobs.
#[derive(Debug, Clone)]
pub(super) struct Sets {
    pub(super) size: usize,
    /// Whether there is any larger one.
    pub(super) larger: bool,
    /// Members of each set and their progress, one after the other.
    members: Vec<u16>,
    progress: Vec<f64>,
    begins: Vec<usize>,
    /// Clock of each over the clock without a power limit.
    pub(super) clocks: Vec<f64>,
}

impl Sets {
    /// Lists the sets up to a size, or less where there are too many.
    pub(super) fn new(known: &Known, members: &[Member], memory: u64, largest: usize) -> Self {
        let mut rates = Rates::default();
        let mut size = 1_usize;
        while size < largest && count(members, memory, size + 1) <= MOST {
            size += 1;
        }
        let mut sets = Self {
            size,
            larger: count_of(members, memory, size + 1) > 0,
            members: Vec::new(),
            progress: Vec::new(),
            begins: vec![0],
            clocks: Vec::new(),
        };
        walk(members, memory, size, usize::MAX, &mut |set| {
            let mut classes: Vec<u16> = set.iter().map(|at| members[*at as usize].class).collect();
            classes.sort_unstable();
            let shared = rates.once(known, &classes);
            // Members stand in the order of their classes, and so does what the law says.
            sets.members.extend_from_slice(set);
            sets.progress.extend_from_slice(&shared.progress);
            sets.begins.push(sets.members.len());
            sets.clocks.push(shared.clock);
        });
        sets
    }

    pub(super) fn len(&self) -> usize {
        self.begins.len() - 1
    }

    /// Jobs of a set.
    pub(super) fn count(&self, at: usize) -> usize {
        self.begins[at + 1] - self.begins[at]
    }

    /// Members of a set and their progress.
    pub(super) fn get(&self, at: usize) -> impl Iterator<Item = (usize, f64)> + Clone {
        let range = self.begins[at]..self.begins[at + 1];
        self.members[range.clone()]
            .iter()
            .map(|member| *member as usize)
            .zip(self.progress[range].iter().copied())
    }

    /// What a set's progress is worth.
    pub(super) fn worth(&self, at: usize, values: &[f64]) -> f64 {
        self.get(at).map(|(member, p)| values[member] * p).sum()
    }
}

/// Calls `with` for each set of up to `size` members, until it has been called `most` times. Returns how often it was.
fn walk(members: &[Member], memory: u64, size: usize, most: usize, with: &mut dyn FnMut(&[u16])) -> usize {
    fn step(
        members: &[Member],
        set: &mut Vec<u16>,
        left: u64,
        (size, most): (usize, usize),
        calls: &mut usize,
        with: &mut dyn FnMut(&[u16]),
    ) {
        if set.len() == size {
            return;
        }
        let from = set.last().map_or(0, |last| *last as usize);
        for at in from..members.len() {
            let member = members[at];
            let there = set.iter().filter(|it| **it as usize == at).count();
            if there < member.count && member.least <= left && *calls < most {
                set.push(at as u16);
                *calls += 1;
                with(set);
                step(members, set, left - member.least, (size, most), calls, with);
                set.pop();
            }
        }
    }
    let mut calls = 0;
    step(members, &mut Vec::new(), memory, (size, most), &mut calls, with);
    calls
}

/// Sets of up to so many members, counted up to one more than may be listed.
fn count(members: &[Member], memory: u64, size: usize) -> usize {
    walk(members, memory, size, MOST + 1, &mut |_| ())
}

/// Whether there are sets of exactly this size: the smallest members are tried.
fn count_of(members: &[Member], memory: u64, size: usize) -> usize {
    let mut least: Vec<u64> = members.iter().flat_map(|it| std::iter::repeat_n(it.least, it.count)).collect();
    least.sort_unstable();
    usize::from(least.len() >= size && least[..size].iter().sum::<u64>() <= memory)
}

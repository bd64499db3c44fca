//! A scheduler that knows everything: true run times, memory and rates. It starts jobs from a list, in the order of the list,
//! where its rules allow it, and takes nothing back: no preemption, no eviction, no limits on threads, no MIG instances.
//!
//! No daemon can decide like this. It is for searches over orders and rules (`carma lab bound`): every play is a run of the
//! event engine, so that its figures stand beside those of `carma simulate`.

mod known;
mod list;

pub use known::{Class, Known, KnownJob, Rates, Shared};

use super::engine::Engine;
use super::outcome::RunResult;
use list::ListScheduler;
use std::sync::Arc;

/// Which of the GPUs that would do is taken; the first of equals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Placement {
    /// Where total progress grows most.
    Gain,
    /// Where the newcomer itself goes fastest.
    Own,
    /// Where the slowest of all goes fastest.
    Slowest,
    /// Where the least memory is left.
    Tight,
    /// Where the most memory is left.
    Roomy,
}

impl Placement {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Gain, Self::Own, Self::Slowest, Self::Tight, Self::Roomy];
}

/// What must hold before a job starts.
#[derive(Debug, Clone, PartialEq)]
pub struct Rules {
    /// Every job's progress on each of its GPUs with it there, over progress alone, at least.
    pub floor: f64,
    /// By how much total progress on each of its GPUs grows at least: 1 on an idle one.
    pub gain: f64,
    /// Jobs on a GPU at most.
    pub most: usize,
    /// Which GPUs are taken.
    pub placement: Placement,
    /// How many jobs that can't start are passed over before no job further down the list starts; 0: a strict list.
    pub passed: usize,
    /// What a unit of progress of each class counts for in gains, by class; `None`: 1 for all.
    pub values: Option<Arc<[f64]>>,
}

impl Default for Rules {
    fn default() -> Self {
        Self { floor: 0.5, gain: 0.2, most: 4, placement: Placement::Gain, passed: usize::MAX, values: None }
    }
}

/// Plays what is known by a list of jobs and rules. Jobs that are not on the list come after it in the order of arrival;
/// jobs that the cluster can't hold are left out. `rates` keeps what it computed; it changes no result.
#[must_use]
pub fn play(known: &Known, rates: &mut Rates, order: &[u32], rules: &Rules) -> RunResult {
    let mut scheduler = ListScheduler::new(known, rates, order, rules);
    Engine::new(known.workload(), known.cluster(), known.setup(), &mut scheduler).run(&|_| ())
}

#[cfg(test)]
mod tests;

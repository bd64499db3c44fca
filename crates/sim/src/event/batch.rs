//! Many runs on many threads. Which thread makes a run does not change it.

use super::baselines::BaselineError;
use super::outcome::RunResult;
use super::{Cluster, Setup, engine, run};
use crate::trace::Workload;
use carma_core::model::SharingMode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Makes all runs, on so many threads, in the order of the setups. `report` is told how many more
/// jobs are over, from any thread.
///
/// # Errors
/// [`BaselineError`]: a setup names a baseline that can't be played on this cluster, or with its sharing mode.
pub fn simulate_all(
    workload: &Workload,
    cluster: &Cluster,
    setups: &[Setup],
    threads: usize,
    report: &(dyn Fn(u64) + Sync),
) -> Result<Vec<RunResult>, BaselineError> {
    // What a workload leaves open is filled in once for each sharing mode, not for each run.
    let mut complete: Vec<(SharingMode, Workload)> = Vec::new();
    for setup in setups {
        let mode = setup.options.sharing;
        if !complete.iter().any(|(known, _)| *known == mode) {
            complete.push((mode, engine::complete(workload, cluster, mode)));
        }
    }
    let workload_of = |setup: &Setup| {
        let known = complete.iter().find(|(mode, _)| *mode == setup.options.sharing);
        known.map_or(workload, |(_, workload)| workload)
    };
    let next = AtomicUsize::new(0);
    let done: Vec<Mutex<Option<Result<RunResult, BaselineError>>>> =
        setups.iter().map(|_| Mutex::new(None)).collect();
    let work = || {
        while let Some((setup, slot)) = {
            let at = next.fetch_add(1, Ordering::Relaxed);
            setups.get(at).zip(done.get(at))
        } {
            let result = run(workload_of(setup), cluster, setup, report);
            // No thread panics while holding it.
            *slot.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(result);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.clamp(1, setups.len().max(1)) {
            scope.spawn(work);
        }
        work();
    });
    let take = |slot: Mutex<Option<_>>| slot.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    done.into_iter().filter_map(take).collect()
}

//! How many attempts run out of memory, by what is asked of a GPU before a job starts there and by the order in which
//! the tasks arrive.

use super::{Bench, CRASH_SEEDS, first, interval};
use crate::Error;
use crate::traces::{self, H60, T1, preset};
use carma_core::model::SharingMode;
use carma_core::policy::{Gate, MemoryScreen, Policy};
use carma_core::units::MiB;
use carma_sim::event::Setup;
use carma_sim::report::seeds::Interval;
use carma_sim::trace::Trace;
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64;
use serde::Serialize;

/// What is asked of a GPU before a job starts there.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Precondition {
    /// In words, or the preset that asks it.
    pub name: String,
    /// On T1.
    pub t1: Crashes,
    /// On H60.
    pub h60: Crashes,
}

/// Attempts out of memory.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Crashes {
    /// In the trace's order: seeds change the start-up times only.
    pub recorded: Interval,
    /// At the same arrival times, with the tasks dealt to them anew by each seed.
    pub shuffled: Interval,
}

pub(super) fn rows(bench: &Bench) -> Result<Vec<Precondition>, Error> {
    let (t1, h60) = (bench.traces.trace(T1)?, bench.traces.trace(H60)?);
    let row = |policy: Policy| {
        Ok(Precondition {
            t1: crashes(bench, &t1, &policy)?,
            h60: crashes(bench, &h60, &policy)?,
            name: policy.name,
        })
    };
    preconditions()?.into_iter().map(row).collect()
}

fn preconditions() -> Result<[Policy; 10], Error> {
    let (carma, magm, aegis) = (preset("or-magm")?, preset("magm")?, preset("aegis")?);
    let with =
        |name: &str, base: &Policy, memory, gate| Policy { name: name.into(), memory, gate, ..base.clone() };
    let floor = |mib| MemoryScreen::Floor(MiB(mib));
    Ok([
        with("none", &carma, MemoryScreen::None, Gate::None),
        with("2 GiB free", &carma, floor(2048), Gate::None),
        with("5 GiB free", &magm, floor(5120), Gate::None),
        with("5 GiB free, SMACT gate .80", &carma, floor(5120), carma.gate),
        with("5 GiB free, SMACT gate .65", &carma, floor(5120), aegis.gate),
        with("10 GiB free, SMACT gate .65", &carma, floor(10_240), aegis.gate),
        preset("est-magm:faketensor")?,
        preset("est-magm:horus")?,
        preset("est-magm:gpumemnet")?,
        preset("oracle-magm")?,
    ])
}

fn crashes(bench: &Bench, trace: &Trace, policy: &Policy) -> Result<Crashes, Error> {
    let recorded = bench.seeds(&bench.traces.resolve(trace)?, policy, CRASH_SEEDS)?;
    let shuffled = |seed| {
        let workload = bench.traces.resolve(&dealt(trace, seed))?;
        let setup = Setup::new(policy.clone(), SharingMode::Mps, None, seed);
        Ok(first(traces::runs(&workload, &bench.cluster, &[setup], 1)?)?.oom as f64)
    };
    let shuffled: Vec<f64> = (1..=CRASH_SEEDS).map(shuffled).collect::<Result<_, Error>>()?;
    Ok(Crashes { recorded: interval(&recorded, |s| s.oom as f64), shuffled: Interval::of(shuffled) })
}

/// The same arrivals with the tasks dealt anew.
fn dealt(trace: &Trace, seed: u64) -> Trace {
    let mut trace = trace.clone();
    let mut random = Pcg64::seed_from_u64(seed);
    for i in (1..trace.jobs.len()).rev() {
        let j = (random.next_u64() % (i as u64 + 1)) as usize;
        let task = trace.jobs[i].task.clone();
        trace.jobs[i].task = std::mem::replace(&mut trace.jobs[j].task, task);
    }
    trace
}

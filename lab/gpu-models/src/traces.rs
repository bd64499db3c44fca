//! CARMA's traces, and the machine on which CARMA and AEGIS were measured.

use crate::Error;
use carma_core::model::SharingMode;
use carma_core::policy::{Policy, presets};
use carma_sim::event::outcome::Summary;
use carma_sim::event::{Cluster, Setup, simulate_all};
use carma_sim::trace::{Catalogue, Trace, TraceError, Workload, read};
use std::path::{Path, PathBuf};

/// The machine.
pub(crate) const CLUSTER: &str = "4xA100-40GB";
pub(crate) const T1: &str = "philly_trace-t1";
pub(crate) const T2: &str = "philly_trace-t2";
pub(crate) const H60: &str = "philly_heavy-60-tasks";
pub(crate) const M90: &str = "philly_mix-90-tasks";

/// The traces of a folder, with what their tasks do alone.
#[derive(Debug)]
pub(crate) struct Traces {
    arrivals: PathBuf,
    catalogue: Catalogue,
}

impl Traces {
    pub(crate) fn read(folder: &Path) -> Result<Self, Error> {
        Ok(Self {
            arrivals: folder.join("philly_evaluation_arrivals.csv"),
            catalogue: Catalogue::read_file(&folder.join("workloads.csv")).map_err(wrong)?,
        })
    }

    pub(crate) fn trace(&self, name: &str) -> Result<Trace, Error> {
        read::trace_file(&self.arrivals, Some(name)).map_err(wrong)
    }

    pub(crate) fn resolve(&self, trace: &Trace) -> Result<Workload, Error> {
        Workload::resolve(trace, Some(&self.catalogue)).map_err(wrong)
    }

    pub(crate) fn workload(&self, name: &str) -> Result<Workload, Error> {
        self.resolve(&self.trace(name)?)
    }
}

#[expect(clippy::needless_pass_by_value, reason = "what `map_err` hands over")]
fn wrong(error: TraceError) -> Error {
    Error(error.to_string())
}

pub(crate) fn preset(name: &str) -> Result<Policy, Error> {
    presets::by_name(name).ok_or_else(|| Error(format!("no preset `{name}`")))
}

/// One policy under MPS, once a seed.
pub(crate) fn seeds(policy: &Policy, seeds: u64) -> Vec<Setup> {
    (1..=seeds).map(|seed| Setup::new(policy.clone(), SharingMode::Mps, None, seed)).collect()
}

/// Runs of one workload, in the order of the set-ups.
pub(crate) fn runs(
    workload: &Workload,
    cluster: &Cluster,
    setups: &[Setup],
    threads: usize,
) -> Result<Vec<Summary>, Error> {
    let results = simulate_all(workload, cluster, setups, threads, &|_| ());
    let results = results.map_err(|e| Error(e.to_string()))?;
    Ok(results.into_iter().map(|run| run.summary).collect())
}

/// As many threads as there are processors.
pub(crate) fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

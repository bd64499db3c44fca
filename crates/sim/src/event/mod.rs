//! The simulator: the core's `apply` and `plan`, driven by events on a virtual clock.
//!
//! ```text
//! trace ──> events ──> world (progress, memory, power) ──> scheduler: inputs ──> core ──> plan
//!             ^                                                                        │
//!             └────────────────────────── decisions ───────────────────────────────────┘
//! ```
//!
//! The same seed gives the same result, to the byte, whatever the number of threads: a run is one
//! thread, and runs do not know of each other.

mod activity;
pub mod baselines;
mod batch;
#[cfg(test)]
mod bound_tests;
pub mod clairvoyant;
mod cluster;
mod core;
mod counts;
mod engine;
pub mod knowledge;
mod lucid;
pub mod outcome;
mod outlooks;
mod scheduler;
mod startup;
mod summary;
pub mod sweep;
#[cfg(test)]
mod watched;
mod window;
mod world;

use crate::trace::Workload;
use baselines::{Baseline, BaselineError};
use carma_core::model::SharingMode;
use carma_core::policy::{Options, Policy, RecoveryMethod};
use carma_interference::kace::trained::Trained;
use knowledge::Knowledge;
use outcome::RunResult;
use std::sync::Arc;

pub use batch::simulate_all;
pub use cluster::{Cluster, ClusterError, MOST_GPUS};

/// What a run is made with.
#[derive(Debug, Clone, PartialEq)]
pub struct Setup {
    /// Name in results.
    pub label: String,
    /// Options of the core, the policy among them.
    pub options: Options,
    /// Seed of what is drawn.
    pub seed: u64,
    /// Whether to keep the GPUs' activity over time.
    pub record: bool,
    /// What decides, if it is not the core.
    pub baseline: Option<Baseline>,
    /// What the policy `kace` predicts with; `None`: what carma ships.
    pub kace: Option<Arc<Trained>>,
    /// What the core knows of jobs before they run. Baselines know all.
    pub knowledge: Knowledge,
}

impl Setup {
    /// A run of one of the core's policies as its authors ran it ([`Options::of`]), recovery by another method if one is named,
    /// with one MPS server for all users.
    #[must_use]
    pub fn new(policy: Policy, sharing: SharingMode, recovery: Option<RecoveryMethod>, seed: u64) -> Self {
        let label = policy.name.clone();
        let theirs = Options::of(policy);
        let recovery = recovery.unwrap_or(theirs.recovery);
        let options = Options { sharing, recovery, mps_multi_user: true, ..theirs };
        Self {
            label,
            options,
            seed,
            record: false,
            baseline: None,
            kace: None,
            knowledge: Knowledge::default(),
        }
    }

    /// A run of a baseline, for [`play`]. Of the options, only the window and the sharing mode
    /// mean anything to it; [`play`] refuses exclusive sharing.
    #[must_use]
    pub fn for_baseline(baseline: Baseline, sharing: SharingMode, seed: u64) -> Self {
        let options = Options { sharing, ..Options::default() };
        let label = baseline.name().to_owned();
        Self {
            label,
            options,
            seed,
            record: false,
            baseline: Some(baseline),
            kace: None,
            knowledge: Knowledge::default(),
        }
    }
}

/// Plays a workload by the scheduler that the setup names. `report` is told now and then how many more jobs are
/// over.
///
/// # Errors
/// [`BaselineError`]: the setup names a baseline that can't be played on this cluster, or with this sharing mode.
pub fn play(
    workload: &Workload,
    cluster: &Cluster,
    setup: &Setup,
    report: &dyn Fn(u64),
) -> Result<RunResult, BaselineError> {
    run(&engine::complete(workload, cluster, setup.options.sharing), cluster, setup, report)
}

/// Plays a workload by the core, whatever scheduler the setup names.
#[must_use]
pub fn simulate(workload: &Workload, cluster: &Cluster, setup: &Setup, report: &dyn Fn(u64)) -> RunResult {
    run_core(&engine::complete(workload, cluster, setup.options.sharing), cluster, setup, report)
}

/// [`play`] of a workload that is [complete](engine::complete) already.
fn run(
    workload: &Workload,
    cluster: &Cluster,
    setup: &Setup,
    report: &dyn Fn(u64),
) -> Result<RunResult, BaselineError> {
    let Some(baseline) = setup.baseline else {
        return Ok(run_core(workload, cluster, setup, report));
    };
    let mut scheduler = baseline.scheduler(workload, cluster, setup)?;
    Ok(engine::Engine::new(workload, cluster, setup, &mut *scheduler).run(report))
}

fn run_core(workload: &Workload, cluster: &Cluster, setup: &Setup, report: &dyn Fn(u64)) -> RunResult {
    let mut scheduler = core::CoreScheduler::new(workload, cluster.inventory(), setup);
    let result = engine::Engine::new(workload, cluster, setup, &mut scheduler).run(report);
    debug_assert!(scheduler.refused.is_empty(), "the core refused: {:?}", scheduler.refused);
    result
}

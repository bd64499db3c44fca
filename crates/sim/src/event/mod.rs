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

mod batch;
mod cluster;
mod core;
mod engine;
mod lucid;
pub mod outcome;
pub mod rivals;
mod scheduler;
mod startup;
mod summary;
pub mod sweep;
mod window;
mod world;

use crate::trace::Workload;
use carma_core::model::SharingMode;
use carma_core::policy::{Options, Policy, RecoveryMethod, presets};
use outcome::RunResult;
use rivals::{Rival, RivalError};

pub use batch::simulate_all;
pub use cluster::{Cluster, ClusterError, MOST_GPUS};

/// What a run is made with.
#[derive(Debug, Clone, PartialEq)]
pub struct Setup {
    /// Name in results.
    pub label: String,
    /// Options of the core, the policy among them.
    pub options: Options,
    /// How jobs share a GPU.
    pub sharing: SharingMode,
    /// Seed of what is drawn.
    pub seed: u64,
    /// Whether to keep the GPUs' activity over time.
    pub record: bool,
    /// Who decides, if it is not the core.
    pub rival: Option<Rival>,
}

impl Setup {
    /// A run of one of the core's policies as its authors ran it: recovery from out-of-memory by
    /// their method (unless another is named), hard caps only under carma's own policy, one MPS
    /// server for all users.
    #[must_use]
    pub fn new(policy: Policy, sharing: SharingMode, recovery: Option<RecoveryMethod>, seed: u64) -> Self {
        let recovery = recovery.unwrap_or_else(|| presets::recovery_of(&policy.name));
        let label = policy.name.clone();
        let caps = policy.name == "carma";
        let options = Options { policy, sharing, recovery, caps, mps_multi_user: true, ..Options::default() };
        Self { label, options, sharing, seed, record: false, rival: None }
    }

    /// A run of a rival, for [`simulate_rival`]. Of the options, only the window and the sharing mode
    /// mean anything to it; exclusive sharing counts as MPS.
    #[must_use]
    pub fn for_rival(rival: Rival, sharing: SharingMode, seed: u64) -> Self {
        let options = Options { sharing, ..Options::default() };
        Self { label: rival.name().to_owned(), options, sharing, seed, record: false, rival: Some(rival) }
    }
}

/// Plays a workload by whoever the setup says. `report` is told now and then how many more jobs are
/// over.
///
/// # Errors
/// [`RivalError`]: the setup names a rival that can't be played on this cluster.
pub fn play(
    workload: &Workload,
    cluster: &Cluster,
    setup: &Setup,
    report: &dyn Fn(u64),
) -> Result<RunResult, RivalError> {
    match setup.rival {
        None => Ok(simulate(workload, cluster, setup, report)),
        Some(rival) => simulate_rival(rival, workload, cluster, setup, report),
    }
}

/// Plays a workload by the core.
#[must_use]
pub fn simulate(workload: &Workload, cluster: &Cluster, setup: &Setup, report: &dyn Fn(u64)) -> RunResult {
    let workload = engine::complete(workload, cluster, setup.sharing);
    let mut scheduler = core::CoreScheduler::new(&workload, cluster.inventory(), setup.options.clone());
    let result = engine::Engine::new(&workload, cluster, setup, &mut scheduler).run(report);
    debug_assert!(scheduler.refused.is_empty(), "the core refused: {:?}", scheduler.refused);
    result
}

/// Plays a workload by a policy that is not the core's. What differs from [`simulate`] is who decides.
///
/// # Errors
/// [`RivalError`]: the rival can't be played on this cluster.
pub fn simulate_rival(
    rival: Rival,
    workload: &Workload,
    cluster: &Cluster,
    setup: &Setup,
    report: &dyn Fn(u64),
) -> Result<RunResult, RivalError> {
    let workload = engine::complete(workload, cluster, setup.sharing);
    let mut scheduler = rival.scheduler(&workload, cluster, setup)?;
    Ok(engine::Engine::new(&workload, cluster, setup, &mut *scheduler).run(report))
}

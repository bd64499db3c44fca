//! Policies that carma is compared with and that need powers which its daemon does not have: to
//! suspend any job at any time, under MPS too, to cut a GPU anew while jobs wait, to throttle one
//! tenant for another, to know how long each job will run.
//!
//! They decide for the simulator only, each as its paper says where the paper says it; what had to be
//! decided in its place is marked "our reading" in the module of each. Common to all:
//!  - A job that was taken off its GPUs goes on where it was, after loading again: a checkpoint costs
//!    nothing, a resume costs the start-up of the task. (Gandiva and AntMan suspend inside the
//!    framework within a second; here they pay more.)
//!  - What these systems profile or forecast before they decide (memory, utilisation, speed of pairs or
//!    slices, run time) is known to them, exactly, from the trace, the catalogue and the GPU's model: they
//!    are shown at their best.
//!  - A job that runs out of memory nevertheless gets GPUs alone the next time.

mod antman;
mod desk;
mod eaco;
mod gandiva;
mod gavel;
mod miso;
mod opportunistic;
mod sjf_bsbf;
mod tgs;

#[cfg(test)]
mod tests;

use super::cluster::Cluster;
use super::scheduler::Scheduler;
use super::{Setup, SharingMode};
use crate::trace::Workload;
use std::fmt;

/// A policy that only the simulator can play.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Baseline {
    /// Gandiva (OSDI 2018): packs, measures, undoes what does not pay.
    Gandiva,
    /// Gavel (OSDI 2020): max-min fairness over jobs and pairs, in rounds.
    Gavel,
    /// MISO (SoCC 2022): cuts each GPU into the MIG instances that suit its jobs.
    Miso,
    /// AntMan (OSDI 2020): opportunistic jobs beside guaranteed ones.
    AntMan,
    /// TGS (NSDI 2023): opportunistic jobs get what production jobs leave.
    Tgs,
    /// SJF-BSBF (arXiv 2407.13088): shortest first, pairs where sharing beats waiting.
    SjfBsbf,
    /// `EaCO` (arXiv 2412.08294): packs onto GPUs in use for the sake of energy, undoes what is late.
    Eaco,
}

/// Names of all, in the order of listings.
pub const NAMES: &[&str] = &["gandiva", "gavel", "miso", "antman", "tgs", "sjf-bsbf", "eaco"];

/// Systems that share GPUs inside or below the process, and what it would take to simulate them. A
/// simulator of tasks has nothing to say of them.
pub const NOT_TASK_LEVEL: &[(&str, &str)] = &[
    (
        "salus",
        "it switches jobs between iterations within one process and keeps their memory in lanes of it, which takes the times and the memory of single iterations",
    ),
    (
        "reef",
        "it resets running kernels within microseconds and pads them with kernels of other tasks, which takes a model of single kernels and of a GPU driver changed for it",
    ),
    (
        "orion",
        "it intercepts each kernel launch and delays it by the class and size of the kernels that run, which takes a profile of every operator of every task",
    ),
];

/// The baseline of a name.
#[must_use]
pub fn baseline(name: &str) -> Option<Baseline> {
    Baseline::ALL.into_iter().find(|baseline| baseline.name() == name)
}

/// Why there is no policy of this name although there is a system; `None`: not known either.
#[must_use]
pub fn not_task_level(name: &str) -> Option<BaselineError> {
    let (name, needed) = NOT_TASK_LEVEL.iter().find(|(known, _)| *known == name)?;
    Some(BaselineError::NotTaskLevel { name, needed })
}

/// Why a baseline can't be played.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BaselineError {
    /// It does not decide about tasks.
    #[error("{name} can't be simulated at the level of tasks: {needed}")]
    NotTaskLevel {
        /// The system.
        name: &'static str,
        /// What it does, and what that would take.
        needed: &'static str,
    },
    /// MISO on GPUs that can't be cut.
    #[error(
        "miso cuts whole GPUs into MIG instances, and {gpu} (GPU {index}) {why}; take A100, A30, H100 or H200 GPUs"
    )]
    NoMig {
        /// Type of the GPU.
        gpu: String,
        /// Its index.
        index: usize,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Exclusive GPUs for a policy that is there to share them.
    #[error("{name} shares GPUs: --sharing mps or time-slice")]
    Exclusive {
        /// The policy.
        name: &'static str,
    },
}

impl Baseline {
    /// All of them, in the order of [`NAMES`].
    pub const ALL: [Self; 7] =
        [Self::Gandiva, Self::Gavel, Self::Miso, Self::AntMan, Self::Tgs, Self::SjfBsbf, Self::Eaco];

    /// Its name in results and on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gandiva => "gandiva",
            Self::Gavel => "gavel",
            Self::Miso => "miso",
            Self::AntMan => "antman",
            Self::Tgs => "tgs",
            Self::SjfBsbf => "sjf-bsbf",
            Self::Eaco => "eaco",
        }
    }

    /// What it does, in a line.
    #[must_use]
    pub const fn about(self) -> &'static str {
        match self {
            Self::Gandiva => "packs onto the least utilised GPU, keeps what beats time slicing (OSDI 2018)",
            Self::Gavel => "max-min fairness over jobs and pairs by a linear program, in rounds (OSDI 2020)",
            Self::Miso => "cuts each GPU into the MIG instances that suit its jobs (SoCC 2022)",
            Self::AntMan => "opportunistic jobs on GPUs that guaranteed jobs leave idle (OSDI 2020)",
            Self::Tgs => "opportunistic jobs throttled to what production jobs leave (NSDI 2023)",
            Self::SjfBsbf => {
                "shortest first, beside the job with which sharing beats waiting most (arXiv 2407.13088)"
            }
            Self::Eaco => {
                "packs onto the most utilised GPU, undoes what misses its deadline, to save energy (arXiv 2412.08294)"
            }
        }
    }

    /// Whether it can be played on this cluster.
    ///
    /// # Errors
    /// [`BaselineError::NoMig`].
    pub fn check(self, cluster: &Cluster) -> Result<(), BaselineError> {
        if self == Self::Miso { miso::check(cluster) } else { Ok(()) }
    }

    /// It, about to play a workload.
    ///
    /// # Errors
    /// What [`Self::check`] says, or [`BaselineError::Exclusive`].
    pub(super) fn scheduler(
        self,
        workload: &Workload,
        cluster: &Cluster,
        setup: &Setup,
    ) -> Result<Box<dyn Scheduler>, BaselineError> {
        self.check(cluster)?;
        let mode = setup.options.sharing;
        if mode == SharingMode::Exclusive {
            return Err(BaselineError::Exclusive { name: self.name() });
        }
        let desk = desk::Desk::new(workload, cluster, mode);
        Ok(match self {
            Self::Gandiva => Box::new(gandiva::Gandiva::new(desk)),
            Self::Gavel => Box::new(gavel::Gavel::new(desk)),
            Self::Miso => Box::new(miso::Miso::new(desk, cluster)),
            Self::AntMan => Box::new(antman::scheduler(desk, setup.seed)),
            Self::Tgs => Box::new(tgs::scheduler(desk, setup.seed)),
            Self::SjfBsbf => Box::new(sjf_bsbf::SjfBsbf::new(desk)),
            Self::Eaco => Box::new(eaco::Eaco::new(desk)),
        })
    }
}

impl fmt::Display for Baseline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

//! What would let a job that waits start sooner, as data and as text. What that is the plan finds out
//! ([`crate::plan`] stands above this room).

use crate::spec::JobId;
use crate::units::{Fraction, MiB, Millis};
use std::fmt;
use std::sync::Arc;

/// Something with which a job that waits would start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sooner {
    /// What it is.
    pub by: Help,
    /// Indices of the GPUs on which it would start.
    pub gpus: Vec<u32>,
}

/// What helps a job that waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Help {
    /// Submitted again with this as its memory.
    Memory {
        /// The most with which it would start now.
        most: MiB,
        /// What it says now; `None`: nothing.
        declared: Option<MiB>,
    },
    /// Submitted again with this as its time limit.
    Time {
        /// The longest that was tried with which it would start now.
        limit: Millis,
    },
    /// Submitted again with fewer GPUs.
    FewerGpus {
        /// The most with which it would start now.
        gpus: u32,
    },
    /// Submitted again without what keeps it alone.
    Sharing {
        /// It has `--exclusive`.
        exclusive: bool,
        /// It has `--sharing exclusive`.
        mode: bool,
    },
    /// Submitted again with another limit of slowdown.
    MaxSlowdown {
        /// The limit with which it would start now; `None`: without one.
        limit: Option<Fraction>,
    },
    /// Submitted again without a limit of latency.
    Latency,
    /// A GPU that is drained is used again.
    Resume {
        /// Index of the GPU.
        gpu: u32,
        /// Name of the user who drained it.
        drained_by: Arc<str>,
    },
    /// A job ends.
    End {
        /// Number of that job.
        job: JobId,
    },
}

impl Help {
    /// One-word name, stable for programs.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Memory { .. } => "GpuMemory",
            Self::Time { .. } => "Time",
            Self::FewerGpus { .. } => "Gpus",
            Self::Sharing { .. } => "Sharing",
            Self::MaxSlowdown { .. } => "MaxSlowdown",
            Self::Latency => "Latency",
            Self::Resume { .. } => "Resume",
            Self::End { .. } => "End",
        }
    }
}

/// As `--gpu-memory` takes it.
fn typed(memory: MiB) -> String {
    if memory.0.is_multiple_of(1024) { format!("{}G", memory.0 / 1024) } else { format!("{}M", memory.0) }
}

impl fmt::Display for Help {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory { most, declared: None } => {
                write!(
                    f,
                    "if it takes no more: cancelled and submitted again with --gpu-memory {}",
                    typed(*most)
                )
            }
            Self::Memory { most, declared: Some(declared) } => {
                write!(
                    f,
                    "if it takes no more: cancelled and submitted again with --gpu-memory {} (not {declared})",
                    typed(*most)
                )
            }
            Self::Time { limit } => {
                let minutes = limit.0 / 60_000;
                write!(f, "if it takes no longer: cancelled and submitted again with --time {minutes}m")
            }
            Self::FewerGpus { gpus } => write!(f, "cancelled and submitted again with --gpus {gpus}"),
            Self::Sharing { exclusive, mode } => {
                let what = match (exclusive, mode) {
                    (true, true) => "--exclusive and --sharing exclusive",
                    (false, true) => "--sharing exclusive",
                    (_, false) => "--exclusive",
                };
                write!(f, "cancelled and submitted again without {what}")
            }
            Self::MaxSlowdown { limit: Some(limit) } => {
                write!(f, "cancelled and submitted again with --max-slowdown {limit}")
            }
            Self::MaxSlowdown { limit: None } => {
                f.write_str("cancelled and submitted again without --max-slowdown")
            }
            Self::Latency => f.write_str("cancelled and submitted again without --latency"),
            Self::Resume { gpu, drained_by } => {
                write!(f, "`carma resume --gpu {gpu}` (drained by {drained_by})")
            }
            Self::End { job } => write!(f, "once job {job} ends"),
        }
    }
}

impl fmt::Display for Sooner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gpus: Vec<String> = self.gpus.iter().map(u32::to_string).collect();
        write!(f, "{}: on GPU{} {}", self.by, if gpus.len() == 1 { "" } else { "s" }, gpus.join(", "))
    }
}

//! The answer of every estimator.

use crate::MiB;
use crate::alloc::Peak;
use serde::{Deserialize, Serialize};
use std::fmt;

/// What an estimate rests on, best first. The order is that in which [`crate`]'s `auto` prefers.
///
/// Not the core's `Basis`: that is of what carma computed, journalled and never the user's own number, which is an
/// estimate here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tier {
    /// The same command ran before on the same kind of GPU.
    Exact,
    /// The same program ran before, with another batch size or on another GPU.
    Scaled,
    /// The program's own settings: it takes a share of the GPU, whatever its model.
    Share,
    /// A recorded sequence of allocations.
    Trace,
    /// A graph of operators with shapes (ONNX).
    Graph,
    /// The configuration of a known family (Hugging Face).
    Config,
    /// A printed summary: layers and shapes, without what happens between them.
    Summary,
    /// A few numbers and a formula or a trained network.
    Formula,
    /// The user said so.
    Declared,
}

impl Tier {
    /// For people.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Scaled => "scaled",
            Self::Share => "share",
            Self::Trace => "trace",
            Self::Graph => "graph",
            Self::Config => "config",
            Self::Summary => "summary",
            Self::Formula => "formula",
            Self::Declared => "declared",
        }
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// What the numbers are made of. History stores this, so that the part which depends on the task
/// carries over to another GPU and the part which depends on the GPU does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Parts {
    /// CUDA context of one process.
    pub context_mib: MiB,
    /// Most that tensors take at once, in blocks of the allocator.
    pub allocated_mib: MiB,
    /// Most that the allocator holds at once.
    pub reserved_mib: MiB,
    /// Bound of what libraries ask for beside tensors (convolution workspaces).
    pub workspace_mib: MiB,
}

impl Parts {
    /// Of a replay: the context, the allocator's peak, and the bytes of its largest convolution.
    pub(crate) const fn of_replay(context_mib: MiB, peak: &Peak, convolution_bytes: u64) -> Self {
        Self {
            context_mib,
            allocated_mib: MiB::from_bytes(peak.max_allocated),
            reserved_mib: MiB::from_bytes(peak.max_reserved),
            workspace_mib: MiB::from_bytes(convolution_bytes),
        }
    }
}

/// Memory that a task needs on each of its GPUs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// Below this it cannot run: peak allocated, context and workspaces.
    pub need_mib: MiB,
    /// What it takes when memory is free: peak reserved, context and workspaces.
    pub use_mib: MiB,
    /// The bound used for admission, at the configured coverage.
    pub upper_mib: MiB,
    /// What it rests on.
    pub tier: Tier,
    /// Which estimator, and by which front end: `allocator/summary`, `horus`, `history`.
    pub source: String,
    /// Family of the model as far as it could be told: `resnet`, `bert`, `mlp`, `cnn`, `unknown`.
    pub family: String,
    /// What the numbers are made of, where the estimator knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parts: Option<Parts>,
    /// Nothing but a hard limit bounds what it may take: the numbers are what was seen, and more may come.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub elastic: bool,
    /// How the numbers came about, and what widened the bound; a sentence each.
    pub reasons: Vec<String>,
}

/// Always added to a bound: rounding of segments, a library's small buffers.
pub(crate) const FLOOR: MiB = MiB(64);
/// How the reason of a bound begins.
pub(crate) const BOUND: &str = "bound: ";

/// Where a peak has no bound: far enough above what was seen that it is not taken for one.
const NO_BOUND: f64 = 1.0;

impl Estimate {
    /// Says that its peak has no bound, and why.
    pub fn unbound(&mut self, why: &str) {
        self.elastic = true;
        self.widen(NO_BOUND, why);
    }

    /// Cuts it at what a process can hold at most. `ends`: what happens to a task that needs more.
    pub(crate) fn cut(&mut self, most: MiB, ends: &str) {
        if self.need_mib > most {
            self.reasons.push(format!("{ends}: it needs {} MiB, and can have {}", self.need_mib.0, most.0));
        }
        for mib in [&mut self.need_mib, &mut self.use_mib, &mut self.upper_mib] {
            *mib = (*mib).min(most);
        }
    }

    /// Bounds it at least this share above what it takes beside the CUDA context, and says why.
    pub fn widen(&mut self, share: f64, why: &str) {
        if self.reasons.iter().any(|reason| reason.ends_with(why)) {
            return;
        }
        let context = self.parts.map_or(MiB::ZERO, |parts| parts.context_mib);
        let upper = self.use_mib + times(self.use_mib - context, share) + FLOOR;
        let reason = format!("{BOUND}{:.0} %: {why}", share * 100.0);
        if upper > self.upper_mib {
            self.upper_mib = upper;
            self.reasons.retain(|reason| !reason.starts_with(BOUND));
            self.reasons.push(reason);
        } else {
            self.reasons.push(format!("known, and within the bound: {why}"));
        }
    }
}

/// So many times as much, rounded up.
pub(crate) fn times(mib: MiB, factor: f64) -> MiB {
    MiB((mib.0 as f64 * factor).ceil() as u64)
}

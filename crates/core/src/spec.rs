//! What a job is before carma has done anything with it: its number, its user, what is asked and what is known of it.
//!
//! Nothing here changes once a job is accepted, but for the computed forecast. What becomes of a job is in
//! [`crate::model`], which is also the public path of these types.

use crate::units::{Fraction, MiB, Millis};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// Number of a job, given at acceptance, never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct JobId(pub u64);

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Position of a GPU in the state. The UUID is the identity outside; this is the handle inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct GpuId(pub u32);

/// Who submitted or asked for something.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    /// Numeric user id, from the kernel, never self-declared.
    pub uid: u32,
    /// Login name, for people.
    pub name: Arc<str>,
    /// May do what root may: a member of the operators' group when it was asked. Part of the input, so that a replay
    /// needs no user database.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub operator: bool,
}

impl User {
    /// A user without any authority over others.
    #[must_use]
    pub fn new(uid: u32, name: impl Into<Arc<str>>) -> Self {
        Self { uid, name: name.into(), operator: false }
    }
}

/// How processes share a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SharingMode {
    /// One job holds the GPU alone.
    Exclusive,
    /// The driver's default: kernels of different processes take turns.
    TimeSlice,
    /// NVIDIA's Multi-Process Service: kernels of different processes run at once.
    Mps,
}

impl fmt::Display for SharingMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Exclusive => "exclusive",
            Self::TimeSlice => "time-slice",
            Self::Mps => "mps",
        })
    }
}

/// What a job asks for. Memory is per GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Number of GPUs, at least one; all are given at once.
    pub gpus: u32,
    /// The user wants the GPUs alone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub exclusive: bool,
    /// Sharing mode that the user wants; `None`: the policy's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sharing: Option<SharingMode>,
    /// Share of the SMs' threads under MPS, percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread_percent: Option<u8>,
    /// Longest run time, per attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_limit: Option<Millis>,
    /// Higher goes first.
    #[serde(default)]
    pub priority: i32,
    /// How often an out-of-memory may be retried; `None`: the configured number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_retries: Option<u32>,
    /// How much neighbours may slow it down: its speed alone over its speed beside them, at most. `None`: the
    /// configured number, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_slowdown: Option<Fraction>,
}

/// What is known beforehand of the memory that a job needs on each of its GPUs, by source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Forecasts {
    /// The user said so (`--gpu-memory`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub declared: Option<MiB>,
    /// Measured in an earlier solo run (line 8 of a `.rad` file).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<MiB>,
    /// The Horus formula.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub horus: Option<MiB>,
    /// PyTorch's fake tensors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub faketensor: Option<MiB>,
    /// GPUMemNet's class, upper edge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpumemnet: Option<MiB>,
    /// Computed at submission from earlier runs or from what is known of the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub computed: Option<Computed>,
}

/// What carma itself computed of a job's memory on each of its GPUs. A float went into it somewhere;
/// what is kept and replayed are these integers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Computed {
    /// Below this it cannot run.
    pub need: MiB,
    /// What it takes when memory is free.
    pub likely: MiB,
    /// The bound for admission. It has its margin.
    pub upper: MiB,
    /// What it rests on.
    pub basis: Basis,
    /// Probability with which the bound is meant to hold, percent.
    pub coverage: u8,
    /// Nothing but a hard limit bounds what it may take: `cudnn.benchmark`, several GPUs never seen.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub elastic: bool,
}

/// What a computed forecast rests on, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Basis {
    /// The same command ran before on the same kind of GPU.
    Exact,
    /// The same program ran before, with another batch size or on another GPU.
    Scaled,
    /// A recorded sequence of allocations.
    Trace,
    /// A graph of operators.
    Graph,
    /// The configuration of a known family.
    Config,
    /// A printed summary.
    Summary,
    /// A few numbers and a formula or a trained network.
    Formula,
}

impl Basis {
    /// Whether runs of the same program were measured.
    #[must_use]
    pub const fn is_measured(self) -> bool {
        matches!(self, Self::Exact | Self::Scaled)
    }
}

impl fmt::Display for Basis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Exact => "earlier runs of the same command",
            Self::Scaled => "earlier runs of the same program, scaled",
            Self::Trace => "allocator model from a trace",
            Self::Graph => "allocator model from the graph",
            Self::Config => "allocator model from the configuration",
            Self::Summary => "allocator model from the summary",
            Self::Formula => "a formula",
        })
    }
}

/// What is known beforehand of a job's activity when it has its GPUs alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct Profile {
    /// Share of time with a kernel resident ("GPU utilisation").
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_util: Option<Fraction>,
    /// Lucid's sharing score: 0 tiny, 1 medium, 2 jumbo.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub score: Option<u8>,
}

impl Profile {
    fn is_unknown(&self) -> bool {
        *self == Self::default()
    }
}

/// What the core must know of a job to accept it. The command line, directory and environment stay
/// with the daemon: no decision depends on them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewJob {
    /// Its number.
    pub id: JobId,
    /// Who submitted it.
    pub user: User,
    /// Short name for listings.
    pub name: Arc<str>,
    /// Hash of the command: jobs with the same key run the same program with the same arguments.
    pub command_key: u64,
    /// What it asks for.
    pub request: Request,
    /// What is known of its memory.
    pub forecasts: Forecasts,
    /// What is known of its activity.
    #[serde(default, skip_serializing_if = "Profile::is_unknown")]
    pub profile: Profile,
    /// Accepted, but not to be started before it is released.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hold: bool,
}

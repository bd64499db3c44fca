//! The nouns: jobs, GPUs, tenants, placements. One type for each idea.

use crate::explain::Reason;
use crate::recovery::Blame;
use crate::slowdown::Measured;
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

/// A process, identified so that a reused pid is not mistaken for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessRef {
    /// Process id.
    pub pid: u32,
    /// Start time in clock ticks since boot (`/proc/PID/stat`, field 22).
    pub start_ticks: u64,
}

/// Where and how an attempt of a job runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// Number of the attempt, from 1.
    pub attempt: u32,
    /// Its GPUs.
    pub gpus: Vec<GpuId>,
    /// How they are shared.
    pub sharing: SharingMode,
    /// Hard limit of GPU memory for each process on each GPU.
    pub cap: Option<MiB>,
    /// Share of the SMs' threads under MPS, percent.
    pub thread_percent: Option<u8>,
    /// When it was decided.
    pub at: Millis,
    /// Why there.
    pub reason: Reason,
}

/// Why a running job is being ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndCause {
    /// Its owner or the administrator cancelled it.
    Cancelled {
        /// Who.
        by: Arc<str>,
    },
    /// It ran longer than its time limit.
    TimeLimit(Millis),
    /// Its owner or the administrator wants it back in the queue.
    Requeued {
        /// Who.
        by: Arc<str>,
    },
    /// Its placement broke a promise and is undone.
    Undone {
        /// Whose promise.
        job: JobId,
        /// What was measured.
        slowdown: Fraction,
        /// What was promised.
        limit: Fraction,
        /// Jobs that it is not placed beside again.
        apart: Vec<JobId>,
    },
}

/// How hard a job is asked to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndLevel {
    /// Politely: leave MPS, then SIGTERM.
    Terminate,
    /// SIGKILL to everything of the job.
    Kill,
    /// The same, and the end of its supervisor, which did not answer: stopped, or stuck in a file system that hangs.
    Abandon,
}

/// A job on its way out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ending {
    /// Why.
    pub cause: EndCause,
    /// The last signal decided, and when; `None` right after the request.
    pub sent: Option<(EndLevel, Millis)>,
}

/// Where a live job is on its way. Data of a phase exists only in that phase.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Waits for GPUs.
    Pending,
    /// Waits to be released.
    Held {
        /// Who holds it.
        by: Arc<str>,
    },
    /// It was decided to start it; whether its supervisor runs is not known yet.
    Launching {
        /// Where.
        placement: Placement,
        /// Set if it is to end as soon as it has started.
        ending: Option<Ending>,
    },
    /// It runs.
    Running {
        /// Where.
        placement: Placement,
        /// When it started.
        started: Millis,
        /// The supervisor.
        supervisor: ProcessRef,
        /// The job's first process, once known.
        child: Option<ProcessRef>,
        /// Set while it is being ended.
        ending: Option<Ending>,
    },
    /// It died of a fault that may have been a neighbour's, and waits for the verdict.
    Judging {
        /// Where it ran.
        placement: Placement,
        /// How it ended.
        exit: Exit,
        /// When the fault was seen.
        at: Millis,
    },
}

/// State as a user sees it; Slurm's words with Slurm's meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum JobState {
    /// Waits.
    Pending,
    /// Runs.
    Running,
    /// Ended with exit code 0.
    Completed,
    /// Ended otherwise.
    Failed,
    /// Cancelled by its owner or the administrator.
    Cancelled,
    /// Ended at its time limit.
    Timeout,
    /// Ran out of GPU memory and could not be recovered.
    OutOfMemory,
}

impl JobState {
    /// Slurm's word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "PENDING",
            Self::Running => "RUNNING",
            Self::Completed => "COMPLETED",
            Self::Failed => "FAILED",
            Self::Cancelled => "CANCELLED",
            Self::Timeout => "TIMEOUT",
            Self::OutOfMemory => "OUT_OF_MEMORY",
        }
    }

    /// Whether the job is over.
    #[must_use]
    pub const fn is_final(self) -> bool {
        !matches!(self, Self::Pending | Self::Running)
    }
}

impl fmt::Display for JobState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExitStatus {
    /// It returned this code.
    Code(i32),
    /// This signal killed it.
    Signal(i32),
    /// Nobody saw: the supervisor was gone.
    Unknown,
}

impl ExitStatus {
    /// The code a shell would show: 128 + signal for a killed process.
    #[must_use]
    pub const fn shell_code(self) -> Option<i32> {
        match self {
            Self::Code(code) => Some(code),
            Self::Signal(signal) => Some(128 + signal),
            Self::Unknown => None,
        }
    }
}

impl fmt::Display for ExitStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal(signal) => match signal_name(*signal) {
                Some(name) => write!(f, "signal {signal} ({name})"),
                None => write!(f, "signal {signal}"),
            },
            Self::Unknown => f.write_str("exit status unknown"),
        }
    }
}

/// Names of the signals that end jobs in practice (Linux numbers).
const fn signal_name(signal: i32) -> Option<&'static str> {
    Some(match signal {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        11 => "SIGSEGV",
        13 => "SIGPIPE",
        15 => "SIGTERM",
        24 => "SIGXCPU",
        _ => return None,
    })
}

/// The end of an attempt, with what its log says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// How the first process ended.
    pub status: ExitStatus,
    /// What the tail of the log gives away.
    pub evidence: Option<crate::recovery::Evidence>,
    /// Set when the command never ran: why (no such program, directory gone, ...).
    pub not_started: Option<String>,
    /// With `not_started`: the machine lacked something (memory, descriptors, room on its disk), which is no fault of
    /// the job's.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub machine: bool,
    /// What the attempt took of the host, where its cgroup tells.
    #[serde(default, skip_serializing_if = "HostUse::is_unknown")]
    pub host: HostUse,
}

impl Exit {
    /// An end of this kind, of which nothing more is known.
    #[must_use]
    pub const fn of(status: ExitStatus) -> Self {
        Self { status, evidence: None, not_started: None, machine: false, host: HostUse::UNKNOWN }
    }
}

/// What an attempt took of the host, from its cgroup (kernel documentation, `cgroup-v2.rst`). What the hierarchy has no
/// controller for is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct HostUse {
    /// Most memory that all its processes had together (`memory.peak`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_peak: Option<MiB>,
    /// The limit that was set (`memory.max`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_limit: Option<MiB>,
    /// Time on processors, user and system (`cpu.stat`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Millis>,
    /// Most processes and threads at once (`pids.peak`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processes_peak: Option<u32>,
    /// Kills for want of memory (`oom_kill` in `memory.events`). Where the whole group is ended, the kernel counts its
    /// first process twice (Linux 6.1), so this is no number of processes.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub oom_kills: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_zero(n: &u32) -> bool {
    *n == 0
}

impl HostUse {
    const UNKNOWN: Self =
        Self { memory_peak: None, memory_limit: None, cpu: None, processes_peak: None, oom_kills: 0 };

    /// Whether nothing is known.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        *self == Self::UNKNOWN
    }
}

/// One finished attempt, kept with the job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// Where and how it ran.
    pub placement: Placement,
    /// When it started, if it did.
    pub started: Option<Millis>,
    /// When it ended.
    pub ended: Millis,
    /// How it ended; `None` when it never started.
    pub exit: Option<Exit>,
    /// Largest memory seen on one GPU.
    pub peak: Option<MiB>,
    /// What it did to its GPUs while it had them for itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alone: Option<crate::ledger::Alone>,
    /// How its memory was seen to grow; `None`: it was not seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seen: Option<SeenMemory>,
    /// What was concluded.
    pub verdict: Reason,
}

/// How an attempt's memory was seen to grow, for those who learn from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeenMemory {
    /// How long it was seen on its GPUs.
    pub active: Millis,
    /// How long before its end the peak last rose notably.
    pub still: Millis,
    /// Whether it rose again and again long after the start.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub growing: bool,
}

/// What the next attempt needs after an out-of-memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Floor {
    /// This much memory on each GPU.
    Memory(MiB),
    /// A GPU alone, without a cap.
    ExclusiveGpu,
}

impl fmt::Display for Floor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory(m) => write!(f, "at least {m}"),
            Self::ExclusiveGpu => f.write_str("a GPU of its own"),
        }
    }
}

/// A live job: accepted and not over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// What was submitted.
    pub spec: NewJob,
    /// When it was accepted.
    pub submitted: Millis,
    /// When it last entered the queue (acceptance, release or a retry).
    pub queued: Millis,
    /// Where it is.
    pub phase: Phase,
    /// Number of attempts decided so far.
    pub attempts: u32,
    /// Retries charged to the job (its own out-of-memory).
    pub charged_retries: u32,
    /// Times it was put back without charge (a neighbour's fault).
    pub free_retries: u32,
    /// Raised by out-of-memory: what the next attempt needs. `Some` means the recovery queue.
    pub floor: Option<Floor>,
    /// Not to be started before this time (pause after a failed launch).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_before: Option<Millis>,
    /// Its progress beside its present neighbours, once measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<Measured>,
    /// Attempts that are over.
    pub past: Vec<Attempt>,
}

impl Job {
    /// State as a user sees it.
    #[must_use]
    pub const fn state(&self) -> JobState {
        match self.phase {
            Phase::Pending | Phase::Held { .. } | Phase::Judging { .. } | Phase::Launching { .. } => {
                JobState::Pending
            }
            Phase::Running { .. } => JobState::Running,
        }
    }

    /// Where it runs or is about to run.
    #[must_use]
    pub const fn placement(&self) -> Option<&Placement> {
        match &self.phase {
            Phase::Launching { placement, .. } | Phase::Running { placement, .. } => Some(placement),
            _ => None,
        }
    }

    /// Memory that a GPU must have at least to be worth another attempt, by what is known from earlier
    /// ones: the most that was seen, and more than a GPU that it had alone and filled.
    #[must_use]
    pub fn least_capacity(&self) -> MiB {
        let least = |attempt: &Attempt| match &attempt.verdict {
            Reason::OutOfMemoryRetry { blame: Blame::WholeGpu { capacity }, .. } => Some(*capacity + MiB(1)),
            _ => attempt.peak,
        };
        self.past.iter().filter_map(least).max().unwrap_or_default()
    }

    /// Key of the queue: recovery first, then higher priority, then the order of submission.
    #[must_use]
    pub const fn queue_key(&self) -> QueueKey {
        QueueKey {
            recovery: std::cmp::Reverse(self.floor.is_some() || self.free_retries > 0),
            priority: std::cmp::Reverse(self.spec.request.priority),
            id: self.spec.id,
        }
    }
}

/// Order of the pending jobs. Recovered jobs form their own queue, looked at first, which never
/// blocks the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct QueueKey {
    /// Whether it waits in the recovery queue.
    pub recovery: std::cmp::Reverse<bool>,
    /// Priority, higher first.
    pub priority: std::cmp::Reverse<i32>,
    /// Submission order.
    pub id: JobId,
}

/// A job that is over, as it leaves the state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finished {
    /// The job, all attempts in `past`.
    pub job: Job,
    /// Its end.
    pub state: JobState,
    /// Why.
    pub reason: Reason,
    /// How the last attempt ended; `None` when none ran.
    pub exit: Option<ExitStatus>,
    /// When.
    pub at: Millis,
}

//! What travels between client and daemon.

use carma_core::model::SharingMode;
use carma_core::state::Unbounded;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Header of a piece of a log: where it begins.
pub const LOG_AT: &str = "carma-log-at";
/// Header of a piece of a log: how long the log is.
pub const LOG_END: &str = "carma-log-end";

/// A job as submitted. Refuses unknown keys by name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SubmitRequest {
    /// Program and arguments; started without a shell.
    pub command: Vec<String>,
    /// Absolute directory to start in.
    pub cwd: String,
    /// Complete environment of the job, before carma adds its own variables.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Short name for listings; the program's name when absent.
    #[serde(default)]
    pub name: Option<String>,
    /// Number of GPUs; 1 when absent.
    #[serde(default)]
    pub gpus: Option<u32>,
    /// Memory needed on each GPU.
    #[serde(default)]
    pub gpu_memory_mib: Option<u64>,
    /// No neighbours wanted.
    #[serde(default)]
    pub exclusive: bool,
    /// Sharing mode wanted; the daemon's when absent.
    #[serde(default)]
    pub sharing: Option<SharingMode>,
    /// Share of the SMs' threads under MPS.
    #[serde(default)]
    pub thread_pct: Option<u8>,
    /// Longest run time of one attempt.
    #[serde(default)]
    pub time_limit_ms: Option<u64>,
    /// Higher goes first.
    #[serde(default)]
    pub priority: i32,
    /// Out-of-memory retries; the daemon's number when absent.
    #[serde(default)]
    pub max_retries: Option<u32>,
    /// How much neighbours may slow it down, percent: 130 is 1.3 times its time alone. The daemon's number when
    /// absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_slowdown_pct: Option<u32>,
    /// What the 99th percentile of its requests' latency must not exceed beside others, microseconds: 100 to 3,600,000,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_us: Option<u32>,
    /// Accept, but do not start before it is released.
    #[serde(default)]
    pub hold: bool,
    /// File for the job's output, absolute; a file of the daemon's when absent. `%j` in it is the job's number, `%x` its name,
    /// `%u` its user, `%%` a percent sign.
    #[serde(default)]
    pub output: Option<String>,
    /// Memory measured in an earlier solo run.
    #[serde(default)]
    pub measured_mib: Option<u64>,
    /// Forecast of the Horus formula.
    #[serde(default)]
    pub horus_mib: Option<u64>,
    /// Forecast by fake tensors.
    #[serde(default)]
    pub faketensor_mib: Option<u64>,
    /// Forecast of GPUMemNet.
    #[serde(default)]
    pub gpumemnet_mib: Option<u64>,
    /// What front ends say of its memory. Computed by the client, with its user's rights: the daemon
    /// opens no file of a user.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub estimates: Vec<EstimateView>,
    /// What is known of the task beside its command.
    #[serde(default, skip_serializing_if = "TaskFacts::is_empty")]
    pub task: TaskFacts,
    /// Limit of host memory of all its processes together, enforced by a cgroup.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_memory_mib: Option<u64>,
    /// Limit of host processors, percent of one: 400 is four.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_cpu_pct: Option<u32>,
    /// Limit of processes and threads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_processes: Option<u32>,
    /// Most that carma keeps of its output: beyond, the middle is cut out. The daemon's limit, where this is absent or
    /// larger; a file of the user's own (`output`) has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_limit_mib: Option<u64>,
    /// Signal by which it is asked to save its work before it goes back into the queue. Absent: it is not asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint_signal: Option<CheckpointSignal>,
    /// How long that may take; 2 minutes when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_ms: Option<u64>,
    /// Directory for what it saves, absolute; one of its own in its user's home when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint_dir: Option<String>,
    /// What it takes over from the session in which it is submitted.
    #[serde(default, skip_serializing_if = "Session::is_empty")]
    pub session: Session,
}

impl SubmitRequest {
    /// The limits on the host that it asks for.
    #[must_use]
    pub const fn host_limits(&self) -> HostLimitsView {
        HostLimitsView {
            memory_mib: self.host_memory_mib,
            cpu_pct: self.host_cpu_pct,
            processes: self.host_processes,
        }
    }

    /// How long it may take to save its work, milliseconds, if it is to be asked to.
    #[must_use]
    pub fn save_grace_ms(&self) -> Option<u64> {
        self.checkpoint_signal.map(|_| self.grace_ms.unwrap_or(USUAL_GRACE_MS))
    }

    /// Whether an attempt of it may go on where an earlier one was.
    #[must_use]
    pub const fn saves_its_work(&self) -> bool {
        self.checkpoint_signal.is_some() || self.checkpoint_dir.is_some()
    }

    /// Whether what it saves goes into a directory of its own in its user's home.
    #[must_use]
    pub const fn saves_at_home(&self) -> bool {
        self.checkpoint_signal.is_some() && self.checkpoint_dir.is_none()
    }
}

/// How long saving may take where a job does not say: 2 minutes, in milliseconds.
pub const USUAL_GRACE_MS: u64 = 120_000;
/// Longest that saving may take: an hour, in milliseconds. Its neighbours are slowed down meanwhile.
pub const LONGEST_GRACE_MS: u64 = 3_600_000;

/// A signal by which a job is asked to save its work: one that programs catch and that means nothing else to the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum CheckpointSignal {
    /// SIGUSR1.
    Usr1,
    /// SIGUSR2.
    Usr2,
    /// SIGHUP.
    Hup,
    /// SIGINT.
    Int,
    /// SIGTERM, which comes again when the grace is over.
    Term,
}

impl CheckpointSignal {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Usr1, Self::Usr2, Self::Hup, Self::Int, Self::Term];

    /// Its name in full.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Usr1 => "SIGUSR1",
            Self::Usr2 => "SIGUSR2",
            Self::Hup => "SIGHUP",
            Self::Int => "SIGINT",
            Self::Term => "SIGTERM",
        }
    }
}

impl std::fmt::Display for CheckpointSignal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

impl std::str::FromStr for CheckpointSignal {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let name = text.trim().to_ascii_uppercase();
        let is = |signal: &Self| signal.name() == name || signal.name().strip_prefix("SIG") == Some(&name);
        Self::ALL.into_iter().find(is).ok_or_else(|| {
            format!(
                "'{}' is no signal by which a job can be asked to save its work; write USR1, USR2, HUP, INT or TERM, \
                 the one that the program catches",
                text.escape_debug()
            )
        })
    }
}

impl TryFrom<String> for CheckpointSignal {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<CheckpointSignal> for String {
    fn from(signal: CheckpointSignal) -> Self {
        signal.name().to_owned()
    }
}

/// What was agreed with a job for the case that it goes back into the queue.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointView {
    /// Signal by which it is asked to save its work; absent: it is not asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<CheckpointSignal>,
    /// How long that may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_ms: Option<u64>,
    /// Directory for what it saves, the same for all its attempts; absent: it has none, or its environment, which names
    /// its home, is not kept any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dir: Option<String>,
    /// When it was asked, Unix time, while it saves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub saving_since_ms: Option<u64>,
}

/// What a job takes over from the session in which it is submitted, beside directory and environment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Session {
    /// File mode creation mask.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub umask: Option<u32>,
    /// Limits of resources by the names of limits.conf(5), in the kernel's units (getrlimit(2)).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub limits: BTreeMap<String, ResourceLimit>,
    /// Run by the user's login shell, which reads the profile first.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub login: bool,
}

impl Session {
    /// Whether nothing is taken over.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A limit of a resource; absent: none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResourceLimit {
    /// What holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub soft: Option<u64>,
    /// Up to where the job may raise it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hard: Option<u64>,
}

/// What tells runs of one program apart, and what makes its memory hard to tell.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskFacts {
    /// Samples a step; where it is absent the daemon looks for it in the command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch_size: Option<u64>,
    /// Fingerprint of the script and of the files that configure it; `unread`: there is a script, and it could not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub script: Option<String>,
    /// Fingerprint of the model's description.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The data set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dataset: Option<String>,
    /// Framework and its version, as in `torch 2.11`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub framework: Option<String>,
    /// Nothing but a hard limit bounds what it may take.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub elastic: bool,
}

impl TaskFacts {
    /// Whether nothing is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// An estimate of the memory that a job needs on each of its GPUs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EstimateView {
    /// Below this it cannot run.
    pub need_mib: u64,
    /// What it takes when memory is free.
    pub use_mib: u64,
    /// The bound used for admission.
    pub upper_mib: u64,
    /// What it rests on: `exact`, `scaled`, `trace`, `graph`, `config`, `summary`, `formula`, `declared`.
    pub tier: String,
    /// Which estimator, and by which front end: `allocator/summary`, `history`.
    pub source: String,
    /// Family of the model as far as it could be told.
    pub family: String,
    /// What the numbers are made of, where the estimator knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parts: Option<PartsView>,
    /// Probability with which the bound is meant to hold, percent; only in answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub coverage_pct: Option<u8>,
    /// Nothing but a hard limit bounds what it may take.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub elastic: bool,
    /// With tier `share`: memory of the GPU that the numbers are for; in proportion on another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of_gpu_mib: Option<u64>,
    /// How the numbers came about; a sentence each.
    #[serde(default)]
    pub reasons: Vec<String>,
}

/// What an estimate is made of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartsView {
    /// CUDA context of one process.
    pub context_mib: u64,
    /// Most that tensors take at once.
    pub allocated_mib: u64,
    /// Most that the allocator holds at once.
    pub reserved_mib: u64,
    /// Bound of what libraries ask for beside tensors.
    pub workspace_mib: u64,
}

/// Most copies of a job that one submission asks for, and most jobs that one order is about.
pub const MOST_AT_ONCE: u32 = 10_000;

/// Answer to a submission. When the client reads it, the job is on disk, and so are its copies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubmitReply {
    /// Wire version.
    pub version: u32,
    /// The job's number.
    pub id: u64,
    /// Where its output goes.
    pub log: String,
    /// Whether carma keeps that file, and hands it out at `GET /v1/jobs/ID/log`.
    #[serde(default)]
    pub log_kept: bool,
    /// What carma expects of its memory, where it knows anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimate: Option<EstimateView>,
    /// Set where the policy in force has no bound of its memory to go by: what it gets all the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unbounded: Option<Unbounded>,
    /// Copies that were taken with it, where several jobs were asked for (`?count=`): as many as there was time for and limits allow. What
    /// is expected of them is the same.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub copies: Vec<CopyView>,
}

impl SubmitReply {
    /// The answer as one of each job.
    pub fn each(self) -> impl Iterator<Item = Self> {
        let Self { copies, .. } = &self;
        let of = |CopyView { id, log }: &CopyView| (*id, log.clone());
        let jobs: Vec<_> = [(self.id, self.log.clone())].into_iter().chain(copies.iter().map(of)).collect();
        let one = Self { copies: Vec::new(), ..self };
        jobs.into_iter().map(move |(id, log)| Self { id, log, ..one.clone() })
    }
}

/// A further job of a submission.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyView {
    /// The job's number.
    pub id: u64,
    /// Where its output goes.
    pub log: String,
}

/// An order about several jobs. Refuses unknown keys by name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OrdersRequest {
    /// Their numbers, in the order in which it is to be given.
    pub ids: Vec<u64>,
}

/// Answer to an order about several jobs. What it says was done is on disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrdersReply {
    /// Wire version.
    pub version: u32,
    /// What came of it for the first of them, in their order: for as many as there was time for, one at least. The order was not given to the others.
    pub outcomes: Vec<OrderOutcome>,
}

/// What came of an order about one of several jobs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrderOutcome {
    /// The job's number.
    pub id: u64,
    /// What was done, or why it was refused.
    pub text: String,
    /// Set where it was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<RefusedView>,
}

/// How an order about one of several jobs was refused: as alone it would have been.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedView {
    /// HTTP status.
    pub status: u16,
    /// Stable word.
    pub code: String,
}

/// Why something is as it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReasonView {
    /// Stable word for programs.
    pub code: String,
    /// Sentence for people.
    pub text: String,
}

/// How long a job is expected to run alone on its GPUs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunTimeView {
    /// With 10 % probability it is over by then.
    pub low_s: u64,
    /// Half of such runs are over by then.
    pub median_s: u64,
    /// With 90 % probability it is over by then.
    pub high_s: u64,
    /// It rests on runs of so few other commands that low and high say nothing of this one. Never set where the job is another user's.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub guess: bool,
    /// What it rests on, in words.
    pub source: String,
}

/// How long a job still has to run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftView {
    /// Seconds; of a job that waits, from its start.
    pub left_s: u64,
    /// Whether the job itself counts what is left; else earlier runs say it.
    pub counted: bool,
    /// What it rests on, in words.
    pub source: String,
}

/// A job in a listing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobView {
    /// Its number.
    pub id: u64,
    /// Short name.
    pub name: String,
    /// Login name of its owner.
    pub user: String,
    /// Slurm's word for its state.
    pub state: String,
    /// Why it waits, where it runs, how it ended.
    pub reason: ReasonView,
    /// Indices of its GPUs; empty while it waits.
    pub gpus: Vec<u32>,
    /// GPUs that it asks for.
    pub gpus_requested: u32,
    /// How it shares them, while it runs or last ran.
    pub sharing: Option<SharingMode>,
    /// Memory reserved for it on each GPU, where known; of a job that is over, for its last attempt.
    #[serde(alias = "memory_set_aside_mib")]
    pub memory_reserved_mib: Option<u64>,
    /// Most memory seen on one of its GPUs.
    pub memory_peak_mib: Option<u64>,
    /// Most memory of the host that an attempt of it had, where cgroups tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_memory_peak_mib: Option<u64>,
    /// Attempts so far.
    pub attempts: u32,
    /// Its priority: higher goes first.
    pub priority: i32,
    /// By how much neighbours may slow it down, percent: 130 is 1.3 times its time alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_slowdown_pct: Option<u32>,
    /// What the 99th percentile of its requests' latency must not exceed beside others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_latency_ms: Option<f64>,
    /// What it is alone, of this process or of an earlier run of the command; absent: not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_alone_ms: Option<f64>,
    /// How its limit was kept; absent: it has none, or nothing was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_kept: Option<LimitKeptView>,
    /// Its speed beside its neighbours over its speed alone, percent, as measured last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress_pct: Option<u32>,
    /// That is an upper bound: it was never seen alone, and is compared with the fastest that its command was seen.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub progress_at_most: bool,
    /// How long it was expected to run when it was submitted, or when it last waited; absent where nothing is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_time: Option<RunTimeView>,
    /// How much of its work is done by its own count, percent, while it runs and says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub done_pct: Option<u32>,
    /// How long it still has to run, while it is not over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left: Option<LeftView>,
    /// Energy of all its attempts by share of its GPUs' counters; absent: no counter was read, or the job is another user's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub energy_j: Option<f64>,
    /// Energy that the same progress would have taken alone, by its power alone; absent where that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub energy_alone_j: Option<f64>,
    /// Of its time on GPUs, added up over them, that of which the energy is not known: `energy_j` is without it, and
    /// `energy_alone_j` with it. Absent: none, or the job is another user's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unmetered_gpu_s: Option<f64>,
    /// Acceptance, Unix time.
    pub submitted_ms: u64,
    /// Start of the current or last attempt, Unix time.
    pub started_ms: Option<u64>,
    /// For how long that attempt was suspended; absent: it never was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspended_ms: Option<u64>,
    /// End of that attempt, Unix time, of a job that is over: it may have waited again before its own end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ran_until_ms: Option<u64>,
    /// For how long a job that is over has waited: before its first attempt, between them and after the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waited_ms: Option<u64>,
    /// Since when a job that waits and was tried before has waited in all, Unix time: its submission, later by what its attempts took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_since_ms: Option<u64>,
    /// For how long the attempts of a job that is over ran, all together, without the time in which they were suspended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ran_ms: Option<u64>,
    /// End, Unix time.
    pub ended_ms: Option<u64>,
    /// Exit code of the last attempt as a shell would show it.
    pub exit_code: Option<i32>,
}

impl JobView {
    /// Until when its last attempt ran. A daemon before carma told that tells the end of the job alone.
    #[must_use]
    pub fn ran_until(&self) -> Option<u64> {
        self.ran_until_ms.or(self.ended_ms)
    }
}

/// The daemon's disk does not take what it has to keep: nothing is accepted or started, and no end is taken in, until it does.
/// Jobs that run go on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnwrittenView {
    /// Since when, Unix time of the daemon's clock.
    pub since_ms: u64,
    /// What failed, and why.
    pub why: String,
    /// What to do.
    pub advice: String,
}

/// A list of jobs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobsReply {
    /// Wire version.
    pub version: u32,
    /// The daemon's time, Unix.
    pub now_ms: u64,
    /// The jobs.
    pub jobs: Vec<JobView>,
    /// Set while the journal cannot be written: what is listed stands as of then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unwritten: Option<UnwrittenView>,
}

/// One attempt of a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AttemptView {
    /// From 1.
    pub attempt: u32,
    /// Indices of its GPUs.
    pub gpus: Vec<u32>,
    /// How it shared them.
    pub sharing: SharingMode,
    /// Share of the SMs' threads under MPS, percent; `None`: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread_pct: Option<u8>,
    /// Hard cap of GPU memory for each process.
    pub cap_mib: Option<u64>,
    /// Why it went there.
    pub placed: ReasonView,
    /// When that was decided, Unix time.
    pub decided_ms: u64,
    /// Start, Unix time.
    pub started_ms: Option<u64>,
    /// End, Unix time.
    pub ended_ms: Option<u64>,
    /// For how long it was suspended; absent: it never was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspended_ms: Option<u64>,
    /// When it was on which GPUs, by time, if it was suspended; absent: on its GPUs from start to end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub spells: Vec<SpellView>,
    /// Exit code as a shell would show it.
    pub exit_code: Option<i32>,
    /// Most memory seen on one GPU.
    pub memory_peak_mib: Option<u64>,
    /// What it took of the host, where its cgroup tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<HostView>,
    /// Activity while it had its GPUs for itself: mean SMACT, SMOCC and DRAMA, basis points.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alone_bp: Option<[Option<u32>; 3]>,
    /// Energy by share of its GPUs' counters; absent: no counter was read, or the job is another user's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub energy_j: Option<f64>,
    /// Of its time on GPUs, that of which the energy is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unmetered_gpu_s: Option<f64>,
    /// Time on GPUs, added up over them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_gpu_s: Option<f64>,
    /// Time alone on GPUs that would have brought as much, as measured or predicted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress_gpu_s: Option<f64>,
    /// Of its time on GPUs, that beside others in which its speed was not measured: the progress is what was predicted, else 1 over the
    /// number of jobs there. Absent: none, or it began under an older carma.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unmeasured_gpu_s: Option<f64>,
    /// What was concluded from its end; absent while it runs.
    pub verdict: Option<ReasonView>,
}

/// A time of an attempt on GPUs, between suspensions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpellView {
    /// Indices of the GPUs.
    pub gpus: Vec<u32>,
    /// When it began, Unix time.
    pub from_ms: u64,
    /// When it was over, Unix time; absent: it goes on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_ms: Option<u64>,
}

/// What a job may take of the host, as asked for at submission; its cgroup enforces it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostLimitsView {
    /// Memory of all its processes together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<u64>,
    /// Processors, percent of one: 400 is four.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_pct: Option<u32>,
    /// Processes and threads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processes: Option<u32>,
}

impl HostLimitsView {
    /// Whether there is no limit.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// What an attempt took of the host, by its cgroup.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostView {
    /// Most memory of all its processes together.
    pub memory_peak_mib: Option<u64>,
    /// Its limit.
    pub memory_limit_mib: Option<u64>,
    /// Time on processors.
    pub cpu_ms: Option<u64>,
    /// Most processes and threads at once.
    pub processes_peak: Option<u32>,
    /// Kills for want of memory, as the kernel counts them: one that ends the whole group counts its first process twice.
    pub oom_kills: u32,
}

/// How a job's limit of slowdown, or of latency, was kept: over the full windows in which it was measured beside others, in all attempts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitKeptView {
    /// Windows that show whether it was.
    pub windows: u32,
    /// Those in which it was not.
    pub beyond: u32,
    /// The most of these in a row.
    pub longest: u32,
    /// The least speed in a window over the speed alone, percent.
    pub least_progress_pct: u32,
}

/// How fast a running job goes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RateView {
    /// Units of work a second, measured last; absent where nothing was counted.
    pub per_s: Option<f64>,
    /// The same alone on its GPUs, of this process or of an earlier run of the command.
    pub alone_per_s: Option<f64>,
    /// What is counted.
    pub unit: Option<String>,
    /// Where the number comes from: `heartbeat`, `printed progress`, `activity of the GPU`. Without a number: where counts came from so far.
    pub source: Option<String>,
    /// Speed beside its neighbours over its speed alone.
    pub progress: Option<f64>,
    /// The 99th percentile of its requests' latency over the last window, for a job that asks for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_p99_ms: Option<f64>,
    /// Requests that it is of; absent beside a percentile: the job's own, the highest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<u64>,
}

/// What is known of jobs alone, and what was learned of slowdowns, for `carma predict`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SlowdownsReply {
    /// Wire version.
    pub version: u32,
    /// Product name of the GPUs that the profiles are of: the first type on which all jobs were seen alone, else the first.
    pub gpu: String,
    /// How jobs share GPUs where they do not say.
    pub sharing: Option<SharingMode>,
    /// A file of solo profiles (docs/interference.md): one task a job that was asked about, named by its number.
    pub profiles: serde_json::Value,
    /// Jobs that were not seen alone on that type yet.
    pub unknown: Vec<u64>,
    /// A file of the predictor.
    pub model: serde_json::Value,
}

/// Everything about one job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobDetail {
    /// Wire version.
    pub version: u32,
    /// The row of listings.
    pub job: JobView,
    /// Program and arguments.
    pub command: Vec<String>,
    /// Directory in which the command starts.
    pub cwd: String,
    /// File of its output; empty for jobs of other users.
    pub log: String,
    /// Whether carma keeps that file, and hands it out at `GET /v1/jobs/ID/log`: nobody else may enter its directory.
    #[serde(default)]
    pub log_kept: bool,
    /// Pid of its first process, while it runs.
    pub pid: Option<u32>,
    /// Forecasts of its memory by source.
    pub forecasts_mib: BTreeMap<String, u64>,
    /// Whether what earlier runs took goes before what was declared, under the policy in force.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub declared_overruled: bool,
    /// What carma computed of its memory at submission.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimate: Option<EstimateView>,
    /// How fast it goes, while it runs and once that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<RateView>,
    /// Time limit of an attempt.
    pub time_limit_ms: Option<u64>,
    /// What it may take of the host.
    #[serde(default, skip_serializing_if = "HostLimitsView::is_none")]
    pub host_limits: HostLimitsView,
    /// How it saves its work before it goes back into the queue, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointView>,
    /// Its attempts, oldest first, the current one last.
    pub attempts: Vec<AttemptView>,
}

/// Why a job waits, or why it went where it went.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExplainReply {
    /// Wire version.
    pub version: u32,
    /// The daemon's time, Unix.
    #[serde(default)]
    pub now_ms: u64,
    /// The row of listings.
    pub job: JobView,
    /// Policy in force.
    pub policy: String,
    /// What carma computed of its memory at submission.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimate: Option<EstimateView>,
    /// Of a job that is in the queue: where, why there, and until when. Of a suspended one that is to come back: its place among those, and
    /// whose end it waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<WaitingView>,
    /// For a job in the queue: what each GPU says to it now. For a suspended one that is to come back: those that it may come back to.
    pub gpus: Vec<GpuVerdict>,
    /// For a job in the queue: with what it would start now. Each was tried on a copy of the state.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sooner: Vec<SoonerView>,
    /// Of a job that runs: what it keeps of its speed, and beside whom.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running: Option<RunningView>,
    /// Its attempts, oldest first.
    pub attempts: Vec<AttemptView>,
    /// Set while the journal cannot be written: what is said stands as of then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unwritten: Option<UnwrittenView>,
}

/// A job in the queue.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitingView {
    /// Its place in the order in which jobs are looked at, from 1.
    pub place: u64,
    /// Number of jobs in the queue.
    pub of: u64,
    /// Since when it is in the queue, Unix time.
    pub since_ms: u64,
    /// The policy's order: `arrival`, `shortest` or `longest`; `return` of a suspended job that is to come back.
    pub order: String,
    /// What of it gives it that place, in words.
    pub why: String,
    /// How long it is taken to run, seconds; where nothing is known, an hour.
    pub run_s: u64,
    /// Where jobs go by length: the bound on its start, Unix time, from when it would have started without sharing if
    /// all went in the order of submission, by what is known of their run times (docs/policies.md). Absent, too, where how long it
    /// runs is a guess, or not known at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due_ms: Option<u64>,
    /// Whether that bound has passed: such jobs are looked at first, and GPUs are kept for them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub overdue: bool,
    /// It has no such bound now: its user's quota is spent, and the clock of the user's bounds stands until there is more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stands: bool,
    /// An operator's urgent job for which GPUs are kept from when it comes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub urgent: bool,
    /// The job whose end it waits for; absent where time alone brings what it waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<EndView>,
    /// What it waits for that comes by time alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<TimeView>,
}

/// What a job waits for that comes by time alone.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimeView {
    /// What, after "waits for".
    pub text: String,
    /// How long that takes from now on, seconds, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_s: Option<u64>,
}

/// The end of a job that others wait for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndView {
    /// Number of the job that runs.
    pub job: u64,
    /// Its GPUs.
    pub gpus: Vec<u32>,
    /// It is being ended or suspended for the one that waits.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub makes_room: bool,
    /// How long it is expected to run on, where known; of one that is being ended, at most so long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left: Option<LeftView>,
    /// GPUs on which the one that waits would start, were it over now; empty: that alone is not known to do, and it is
    /// the first that is expected to end.
    pub starts_on: Vec<u32>,
    /// Jobs that wait, this one among them, of which memory or run time is not known: what is learned of them until that end may change what they
    /// need and their order, and so where this one starts.
    #[serde(default)]
    pub unknown: u64,
}

/// Something with which a job that waits would start now.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SoonerView {
    /// Stable word: `GpuMemory`, `Gpus`, `Sharing`, `MaxSlowdown`, `Latency`, `Resume`.
    pub code: String,
    /// Sentence for people.
    pub text: String,
    /// GPUs on which it would start.
    pub gpus: Vec<u32>,
}

/// What one GPU says to a waiting job.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuVerdict {
    /// GPU index.
    pub gpu: u32,
    /// Whether it would do.
    pub fits: bool,
    /// Why not, or what speaks for it.
    pub text: String,
    /// The kind of answer: the same words for the same cause, without numbers.
    #[serde(default)]
    pub cause: String,
    /// The answer in few words.
    #[serde(default)]
    pub brief: String,
    /// Memory free for another job, where known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub free_mib: Option<u64>,
    /// Memory that must be free for this one, where an amount is asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub need_mib: Option<u64>,
    /// Jobs that are on it.
    #[serde(default)]
    pub jobs: Vec<u64>,
    /// Number of processes on it that carma did not start.
    #[serde(default)]
    pub foreign: u32,
    /// What is predicted of all jobs that would be on it, this one among them; empty where nothing is predicted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub predicted: Vec<ProgressView>,
    /// What this job would add to the sum of their progress, percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gain_pct: Option<u32>,
}

/// What a job keeps of its speed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgressView {
    /// Number of the job.
    pub job: u64,
    /// Its speed beside others over its speed alone, percent.
    pub progress_pct: u32,
}

/// A job that runs, and those beside it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunningView {
    /// Why it went where it is, in few words.
    pub placed: String,
    /// Its supervisor was killed: what it prints is not followed, and its exit code will not be known.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unsupervised: bool,
    /// It stands still: it has told no step for so long, seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub silent_s: Option<u64>,
    /// What was predicted that it keeps of its speed beside its present neighbours, percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicted_pct: Option<u32>,
    /// The floor for its measured speed, percent of its speed alone: below it no job joins, and the newest neighbour may be evicted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub floor_pct: Option<u32>,
    /// The same over its whole run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub whole_run_pct: Option<u32>,
    /// Why its speed beside its neighbours is not measured, in words: nothing is undone for its sake until it is. Absent: it is, or it is
    /// alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unmeasured: Option<String>,
    /// Why no neighbour is evicted although it is measured below that floor, in words. Absent: it is not below, or one is evicted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_undone: Option<String>,
    /// The latest neighbour that was evicted for it, in this attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub relieved: Option<RelievedView>,
    /// Its memory rises again and again, so that more than a tenth above what it has stays reserved.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub grows: bool,
    /// What happens if it runs out of GPU memory, in words.
    pub out_of_memory: String,
    /// Jobs on its GPUs.
    pub neighbours: Vec<NeighbourView>,
    /// Number of processes on its GPUs that carma did not start.
    #[serde(default)]
    pub foreign: u32,
}

/// A neighbour that was evicted, or suspended, since it slowed a job down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RelievedView {
    /// Number of the neighbour.
    pub job: u64,
    /// It was suspended, and did not lose its work.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub suspended: bool,
    /// When that was decided, Unix time.
    pub at_ms: u64,
    /// The job's speed alone over its speed, percent: 250 is two and a half times as slow.
    pub slowdown_pct: u32,
    /// The limit that this is beyond, by the same measure.
    pub limit_pct: u32,
    /// Such evictions in this attempt, this one included.
    pub times: u32,
}

/// A job beside another.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NeighbourView {
    /// GPU on which they are together.
    pub gpu: u32,
    /// Number of the job.
    pub job: u64,
    /// Login name of its owner.
    pub user: String,
    /// Memory reserved for it there; absent: no amount is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_reserved_mib: Option<u64>,
    /// Memory seen last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<u64>,
    /// What was predicted that it keeps of its speed, percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicted_pct: Option<u32>,
    /// What it keeps, as measured last, percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress_pct: Option<u32>,
    /// That is an upper bound, as of [`JobView::progress_at_most`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub progress_at_most: bool,
    /// Its limit of slowdown, percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_slowdown_pct: Option<u32>,
}

/// A process on a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForeignView {
    /// Process id.
    pub pid: u32,
    /// Owner, where known.
    pub user: Option<String>,
    /// GPU memory, where known.
    pub memory_mib: Option<u64>,
}

/// A job on a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenantView {
    /// Job number.
    pub job: u64,
    /// Memory reserved; `null`: all of it or nothing, see `reservation`.
    #[serde(alias = "promised_mib")]
    pub reserved_mib: Option<u64>,
    /// `memory`, `whole` or `none`.
    #[serde(alias = "promise")]
    pub reservation: String,
    /// Memory seen last.
    pub observed_mib: Option<u64>,
    /// Whether its first window is full.
    pub settled: bool,
    /// Whether it has the GPU for itself, however little of it it takes.
    #[serde(default)]
    pub exclusive: bool,
}

/// One GPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GpuView {
    /// Index in listings.
    pub index: u32,
    /// UUID, as the driver says it.
    pub uuid: String,
    /// Product name.
    pub name: String,
    /// `gpu`, `mig` or `virtual`: a virtual GPU is a model, never a measurement.
    pub kind: String,
    /// `ok`, `drained`, `lost`, `unreadable`, `gone` or `unknown`.
    pub status: String,
    /// More on the status.
    pub status_text: Option<String>,
    /// Age of the reading.
    pub age_ms: Option<u64>,
    /// Memory that it has.
    pub memory_mib: u64,
    /// Memory in use by anyone.
    pub memory_used_mib: Option<u64>,
    /// Memory that carma could give to another job.
    pub memory_free_for_placement_mib: Option<u64>,
    /// SM active, mean over the window.
    pub smact: Option<f64>,
    /// SM occupancy, mean over the window.
    pub smocc: Option<f64>,
    /// DRAM active, mean over the window.
    pub drama: Option<f64>,
    /// Time with any kernel resident, last sample.
    pub gpu_util: Option<f64>,
    /// Time in which device memory was read or written, last sample.
    #[serde(default)]
    pub mem_util: Option<f64>,
    /// Graphics or compute engine active, last sample, as all that follow.
    #[serde(default)]
    pub gract: Option<f64>,
    /// Any tensor pipe active.
    #[serde(default)]
    pub tensor: Option<f64>,
    /// FP64 pipe active.
    #[serde(default)]
    pub fp64: Option<f64>,
    /// FP32 pipe active.
    #[serde(default)]
    pub fp32: Option<f64>,
    /// FP16 pipe active.
    #[serde(default)]
    pub fp16: Option<f64>,
    /// PCIe traffic from the GPU.
    #[serde(default)]
    pub pcie_tx_mib_s: Option<u32>,
    /// PCIe traffic to the GPU.
    #[serde(default)]
    pub pcie_rx_mib_s: Option<u32>,
    /// Clock of the SMs.
    #[serde(default)]
    pub sm_clock_mhz: Option<u32>,
    /// Power.
    pub power_w: Option<f64>,
    /// Energy counter; only differences mean anything.
    pub energy_j: Option<f64>,
    /// Where its energy went; absent: its counter was not read yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metered: Option<MeteredView>,
    /// How jobs share it that do not say: `mps`, `time-slice` or `exclusive`.
    #[serde(default)]
    pub sharing: Option<SharingMode>,
    /// Why MPS cannot be had here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_mps: Option<String>,
    /// Our jobs on it.
    pub tenants: Vec<TenantView>,
    /// Processes that carma did not start.
    pub foreign: Vec<ForeignView>,
}

/// Where the energy of a GPU went: what its counter went on by is the sum of the three parts.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct MeteredView {
    /// Index of the GPU.
    pub gpu: u32,
    /// When its counter was first read, Unix time.
    pub since_ms: u64,
    /// What the counter went on by since.
    pub counter_j: f64,
    /// Charged to jobs.
    pub jobs_j: f64,
    /// While no job was there.
    pub idle_j: f64,
    /// The part of processes that carma did not start.
    pub others_j: f64,
    /// Times that the counter began anew: what it had counted since the reading before is lost.
    pub resets: u64,
}

/// All GPUs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GpusReply {
    /// Wire version.
    pub version: u32,
    /// The daemon's time, Unix.
    pub now_ms: u64,
    /// Span of the activity window.
    pub window_ms: u64,
    /// The GPUs.
    pub gpus: Vec<GpuView>,
    /// Set while the journal cannot be written: who has what stands as of then, while GPUs are read on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unwritten: Option<UnwrittenView>,
}

/// Whether jobs have cgroups of their own.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupsView {
    /// Directory in which they are; absent: there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dir: Option<String>,
    /// Controllers that they have: limits need `memory`, `cpu`, `pids`.
    #[serde(default)]
    pub controllers: Vec<String>,
    /// Why there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why_not: Option<String>,
}

/// How the daemon is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusReply {
    /// Wire version.
    pub version: u32,
    /// carma's version.
    pub carma: String,
    /// The daemon's pid.
    pub pid: u32,
    /// Policy in force.
    pub policy: String,
    /// Sharing mode in force.
    pub sharing: SharingMode,
    /// Jobs by state.
    pub jobs: BTreeMap<String, u64>,
    /// Where its state lives.
    pub state_dir: String,
    /// Whether jobs have cgroups of their own, with which controllers; or why not.
    #[serde(default)]
    pub cgroups: CgroupsView,
    /// Where jobs find the sockets that they need; empty from an older daemon.
    #[serde(default)]
    pub runtime_dir: String,
    /// What the GPUs are: `nvml` or `virtual:...`.
    pub gpus: String,
    /// How much faster than life its clock runs; 1 but for virtual GPUs.
    pub speed: u32,
    /// Set while the journal cannot be written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unwritten: Option<UnwrittenView>,
    /// Submit-to-spawn latencies since the start, for benchmarks.
    pub launches: LaunchStats,
}

/// What users have had of the GPUs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct UsageReply {
    /// Wire version.
    pub version: u32,
    /// Time of the daemon's clock, Unix epoch.
    pub now_ms: u64,
    /// What was had this long ago counts half in `lately_gpu_s`.
    pub half_life_s: u64,
    /// When the present quota period began, Unix epoch.
    pub period_begins_ms: u64,
    /// When the next one begins.
    pub period_ends_ms: u64,
    /// Users, by name: those whose accounts the asker may see.
    pub users: Vec<UsageView>,
    /// All others together; absent where there are none, or one user was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub others: Option<OthersView>,
    /// Where the energy of GPUs went; empty where one user was asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<MeteredView>,
}

/// What one user has had. Times on a GPU are in GPU-seconds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct UsageView {
    /// Login name.
    pub user: String,
    /// Its number.
    pub uid: u32,
    /// Jobs that run or start.
    pub running: u32,
    /// Jobs that wait or are held.
    pub waiting: u32,
    /// Time that jobs had GPUs, shared or not.
    pub held_gpu_s: f64,
    /// The same, of a shared GPU in equal parts: what counts.
    pub charged_gpu_s: f64,
    /// Progress received: time alone on a GPU that would have brought as much, as measured or predicted.
    pub progress_gpu_s: f64,
    /// Energy by share; `null`: no counter was read yet.
    pub energy_j: Option<f64>,
    /// Of the time charged, that of which the energy is not known.
    pub unmetered_gpu_s: f64,
    /// Energy that attempts which are over would have taken alone: of those of which the power alone is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub energy_alone_j: Option<f64>,
    /// What those attempts took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub energy_alone_of_j: Option<f64>,
    /// Share where several users wait.
    pub share: u32,
    /// Time charged lately, halved with each half-life.
    pub lately_gpu_s: f64,
    /// Time charged in the present quota period.
    pub period_gpu_s: f64,
    /// Energy in the present quota period, as far as it is known.
    pub period_energy_j: f64,
    /// The most time charged in a period; `null`: no limit.
    pub quota_gpu_s: Option<f64>,
    /// The most energy in a period; `null`: no limit.
    pub quota_energy_j: Option<f64>,
}

/// What users have had whose accounts the asker may not see, summed up.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct OthersView {
    /// How many users.
    pub users: u32,
    /// Jobs that run or start.
    pub running: u32,
    /// Jobs that wait or are held.
    pub waiting: u32,
    /// Time that jobs had GPUs, shared or not.
    pub held_gpu_s: f64,
    /// The same, of a shared GPU in equal parts.
    pub charged_gpu_s: f64,
    /// Progress received.
    pub progress_gpu_s: f64,
}

/// Latencies of launches since the daemon started.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchStats {
    /// Number of launches.
    pub count: u64,
    /// From acceptance to the running command, median of the latest 4,096, microseconds.
    pub submit_to_spawn_p50_us: u64,
    /// The same, 99th percentile.
    pub submit_to_spawn_p99_us: u64,
    /// Time of one plan, 99th percentile of the latest 4,096, microseconds.
    pub plan_p99_us: u64,
}

/// What was learned of memory from runs: `GET /v1/memory`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct MemoryReply {
    /// Wire version.
    pub version: u32,
    /// Runs by program, batch size and place. Those of other users are left out, unless root asks.
    pub runs: Vec<LearnedRuns>,
    /// How far front ends are off.
    pub ratios: Vec<LearnedRatio>,
    /// CUDA contexts.
    pub contexts: Vec<LearnedContext>,
}

/// Runs of one program with one batch size on one kind of place.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LearnedRuns {
    /// Who ran it.
    pub uid: u32,
    /// The command without what does not change memory.
    pub command: String,
    /// Samples a step.
    pub batch_size: Option<u64>,
    /// Type of the GPU.
    pub gpu: String,
    /// Framework and version.
    pub framework: String,
    /// Version of the driver.
    pub driver: String,
    /// Runs that reached their peak.
    pub runs: u32,
    /// Largest peak.
    pub max_mib: Option<u64>,
    /// Smallest peak.
    pub min_mib: Option<u64>,
    /// It takes at least this much: the most that a run had which was cut off.
    pub at_least_mib: Option<u64>,
    /// Its memory went on growing.
    pub growing: bool,
    /// CUDA context that was reckoned with.
    pub context_mib: u64,
    /// Front end that simulated it.
    pub simulated_by: Option<String>,
    /// What that said, without the context.
    pub simulated_mib: Option<u64>,
}

/// How far a front end is off.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LearnedRatio {
    /// Front end, family, GPU and framework, from narrow to wide.
    pub group: String,
    /// Number of runs that it rests on.
    pub runs: u64,
    /// Median of measured over expected, contexts apart; `null` below a handful.
    pub median: Option<f64>,
    /// What its bound must be multiplied with to hold; `null` below 20.
    pub bound_factor: Option<f64>,
}

/// A CUDA context.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LearnedContext {
    /// Type of the GPU.
    pub gpu: String,
    /// Version of the driver.
    pub driver: String,
    /// Framework and version.
    pub framework: String,
    /// Its size; `null` while runs do not agree.
    pub mib: Option<u64>,
    /// Whether a probe measured it.
    pub probed: bool,
}

/// A probe of a context: `POST /v1/memory/contexts`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ContextProbe {
    /// Index of the GPU.
    pub gpu: u32,
    /// Framework and version, as in `torch 2.11`.
    pub framework: String,
    /// What was measured.
    pub context_mib: u64,
}

/// An order was carried out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DoneReply {
    /// Wire version.
    pub version: u32,
    /// The job or GPU concerned; a requeued finished job has a new number.
    pub id: u64,
    /// What happens now.
    pub text: String,
}

/// Something went wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorReply {
    /// Wire version.
    pub version: u32,
    /// Stable word; docs/reference/exit-codes-and-reasons.md has them all.
    pub code: String,
    /// What, where, why, what to do.
    pub error: String,
}

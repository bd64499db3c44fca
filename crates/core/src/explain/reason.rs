//! The reasons, as data. Journals hold them: a name that serde writes never changes.
//!
//! Their words are in [`super::text`], their one-word names in [`super::code`], what any user may read in
//! [`super::public`].

use super::refusal::NoGpu;
use crate::policy::{NeedSource, Order};
use crate::progress::Predicted;
use crate::recovery::{Blame, Evidence, Floor};
use crate::spec::{JobId, SharingMode};
use crate::units::{Fraction, MiB, Millis};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The limit of a user that keeps a job waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UserLimit {
    /// Jobs that run at once.
    Jobs {
        /// The most.
        most: u32,
    },
    /// GPUs of all of them.
    Gpus {
        /// What the job asks for.
        wanted: u32,
        /// What the user has.
        used: u32,
        /// The most.
        most: u32,
    },
    /// GPU time in the quota period, that on shared GPUs in part.
    GpuHours {
        /// What the user has had.
        used: Millis,
        /// The most, hours.
        most: u32,
        /// Until the next period begins.
        left: Millis,
    },
    /// Energy in the quota period.
    Energy {
        /// What the user has had, as far as it is known, joules.
        used_j: u64,
        /// The most, joules.
        most_j: u64,
        /// Until the next period begins.
        left: Millis,
    },
}

/// A GPU that was about to run full, and the job that had to leave it for that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Filling {
    /// Index of the GPU.
    pub gpu: u32,
    /// Its memory.
    pub memory: MiB,
    /// What of it was not in use.
    pub free: MiB,
    /// What of that was not reserved for other jobs.
    pub left: MiB,
    /// What the job held.
    pub held: MiB,
    /// What was reserved for it, where it held more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exceeded: Option<MiB>,
}

/// Fewer threads than all under MPS, for the sake of another job's limit of slowdown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Narrowed {
    /// Share of the SMs' threads, percent.
    pub percent: u8,
    /// Whose limit.
    pub job: JobId,
    /// The limit.
    pub limit: Fraction,
    /// By how much that job might be slowed down beside all threads: what counted against the limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upper: Option<Fraction>,
    /// What this job was predicted to keep with all threads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keeps: Option<Fraction>,
}

/// The neighbour for which a job was evicted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Eviction {
    /// Whose limit.
    pub job: JobId,
    /// What was measured, in times of its time alone.
    pub slowdown: Fraction,
    /// The limit.
    pub limit: Fraction,
    /// Jobs that it is not placed beside again.
    pub apart: Vec<JobId>,
    /// What the jobs on its GPU did together, in speeds alone, where that is the cause: less than one of them alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub together: Option<Fraction>,
}

impl Eviction {
    /// Whether the limit is the policy's, for every job, and no user's: no jobs are kept apart then, but their commands.
    #[must_use]
    pub const fn is_by_policy(&self) -> bool {
        self.apart.is_empty()
    }
}

/// Why the policy took a running job off its GPU for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Aside {
    /// Its GPU was about to run full.
    GrowthGuard(Filling),
    /// A neighbour was slowed down by more than its limit.
    Evicted {
        /// Whose limit.
        job: JobId,
        /// What was measured.
        slowdown: Fraction,
        /// The limit.
        limit: Fraction,
        /// It is the policy's, for every job, and no user's.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        by_policy: bool,
        /// What the jobs on its GPU did together, in speeds alone, where that is the cause: less than one of them alone.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        together: Option<Fraction>,
    },
    /// It makes room for a job that waits.
    Room {
        /// Which.
        job: JobId,
    },
    /// It moves to a GPU that was idle.
    Spread,
}

/// Why something was decided or is as it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// Placed on idle GPUs.
    PlacedIdle {
        /// GPU indices.
        gpus: Vec<u32>,
        /// What is reserved on each, where known.
        need: Option<MiB>,
        /// Where that number comes from, if carma computed it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        source: Option<NeedSource>,
    },
    /// Placed beside others.
    PlacedShared {
        /// GPU indices.
        gpus: Vec<u32>,
        /// What is reserved on each, where known.
        need: Option<MiB>,
        /// Where that number comes from.
        source: Option<NeedSource>,
        /// Of several, the fullest: all that follows is said of it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        fullest: Option<u32>,
        /// Memory that was free there.
        free: MiB,
        /// How many were there already: jobs, and processes that are not ours.
        neighbours: u32,
        /// Risk of SMACT, where known.
        smact: Option<Fraction>,
        /// The order that chose.
        order: Order,
        /// Number of GPUs that would have done.
        candidates: u32,
        /// How it shares.
        sharing: SharingMode,
        /// Predicted progress of each job there. Stored as `foreseen`.
        #[serde(default, skip_serializing_if = "Vec::is_empty", rename = "foreseen")]
        predicted: Vec<Predicted>,
        /// Jobs that are expected to be over before this one works: nothing is predicted of them.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        over: Vec<JobId>,
        /// The threads that it gets, where a limit of another job does not let it have all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        threads: Option<Narrowed>,
        /// The share of its speed that is enough for it since it has waited for long, where it keeps less than others must.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        floor: Option<Fraction>,
    },
    /// Waits: no GPUs for it now.
    NoGpu {
        /// GPUs wanted.
        gpus: u32,
        /// Memory wanted on each, guard included; `None`: not known or not looked at.
        need: Option<MiB>,
        /// How much of it is the policy's guard.
        guard: MiB,
        /// Where the rest comes from.
        source: Option<NeedSource>,
        /// GPU by GPU.
        detail: Arc<NoGpu>,
    },
    /// Waits behind another job.
    Behind {
        /// Number of the job.
        job: JobId,
        /// How long that one may be overtaken; `None`: strict first in, first out.
        overtaken_for: Option<Millis>,
    },
    /// Waits behind many others that found nothing; it is looked at once some of them have.
    Later {
        /// The last that was looked at.
        #[serde(alias = "first")]
        last: JobId,
    },
    /// Waits until its user has less at once.
    UserLimit {
        /// Name of the user.
        user: Arc<str>,
        /// What is limited.
        limit: UserLimit,
    },
    /// Held back by a user.
    Held {
        /// Name of the user who asked for it.
        by: Arc<str>,
        /// Its user may not release it.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        operator: bool,
    },
    /// Held by carma: the uid of its user is deleted or has another name, and it runs as no other user.
    UserGone {
        /// Name of the user who submitted it.
        user: Arc<str>,
        /// The user's number.
        uid: u32,
        /// The user who has that uid now; `None`: no user has.
        now: Option<Arc<str>>,
    },
    /// Waits a little after the machine failed to start it.
    Pause {
        /// What failed.
        error: String,
        /// Until when.
        until: Millis,
    },
    /// Being started.
    Launching,
    /// Not looked at yet.
    NotPlannedYet,
    /// Its fault is being judged.
    Judging,
    /// Ended with code 0.
    Completed,
    /// Ended with an error of its own.
    CommandFailed {
        /// Exit code or signal, in words.
        status: String,
        /// What the log says.
        evidence: Option<Evidence>,
    },
    /// The command never ran.
    NotStarted {
        /// The cause, in words.
        why: String,
    },
    /// It was not launched, through no fault of its own; back to the queue.
    NotLaunched {
        /// The cause, in words.
        why: String,
    },
    /// The machine could not start it, and it was given up (journals of carma before 0.2).
    LaunchFailed {
        /// The error, in words.
        error: String,
    },
    /// How it ended was not seen.
    ExitUnknown,
    /// A user cancelled it.
    Cancelled {
        /// Name of the user who asked for it.
        by: Arc<str>,
    },
    /// Put back into the queue by a user.
    RequeuedByUser {
        /// Name of the user who asked for it.
        by: Arc<str>,
    },
    /// Evicted: a neighbour was slowed down by more than its limit. Back to the queue without charge. Journals say
    /// "undone".
    #[serde(rename = "undone")]
    Evicted(Eviction),
    /// Its GPU was about to run full, and it was the last to come of those that grew. Back to the queue without charge.
    GrowthGuard {
        /// The GPU, and what the job held.
        filling: Filling,
        /// What the next attempt gets; `None`: as before, another job took the memory.
        next: Option<Floor>,
    },
    /// It made room for a job that waited. Back to the queue without charge.
    MadeRoom {
        /// Which.
        job: JobId,
    },
    /// The policy suspended it. It comes back by itself.
    SetAside {
        /// Why.
        cause: Aside,
        /// What it waits for; `None`: that is not known yet.
        waits: Option<Box<Reason>>,
    },
    /// It is suspended: its GPU memory is in the host's.
    Suspended {
        /// Name of the user who asked for it.
        by: Arc<str>,
        /// Memory of the host that it takes.
        host: MiB,
    },
    /// It was told to end, or to save its work first, and has not ended yet.
    Ending {
        /// Why it is to end.
        why: Box<Reason>,
    },
    /// It is about to leave its GPUs, or to be put back on them.
    Moving {
        /// Whether it leaves them.
        off: bool,
    },
    /// It was moved to the GPU that it runs on.
    Moved {
        /// Name of the user who asked for it; carma, where its own GPU had no room.
        by: Arc<str>,
        /// Index of the GPU that it left.
        from: u32,
    },
    /// It could not be suspended or moved, and runs on.
    RunsOn {
        /// What went wrong, in words.
        why: String,
    },
    /// It could not be put back on its GPUs, and that is tried again.
    NotResumed {
        /// What went wrong, in words.
        why: String,
        /// When it is tried again.
        until: Millis,
    },
    /// It could neither run nor stay suspended, or ended on the way. Back to the queue without charge.
    Stuck {
        /// What went wrong, in words.
        why: String,
    },
    /// Over its time limit.
    TimeLimit {
        /// The limit.
        limit: Millis,
    },
    /// Ran out of GPU memory; goes back to the queue.
    OutOfMemoryRetry {
        /// The job that is to blame.
        blame: Blame,
        /// What the next attempt gets; `None`: what any job gets of which no more is known.
        next: Option<Floor>,
        /// Retries charged so far.
        retries: u32,
        /// How many it may have.
        max_retries: u32,
    },
    /// Ran out of GPU memory for good.
    OutOfMemoryFinal {
        /// The job that is to blame.
        blame: Blame,
        /// Why it is not tried again.
        why: Arc<str>,
    },
    /// Ran out of the host's memory: another GPU does not help.
    HostOutOfMemory {
        /// What the log says.
        line: String,
    },
    /// The kernel killed processes of it for want of host memory: its cgroup says so.
    HostMemoryLimit {
        /// The limit that was set; `None`: the machine's own memory was exhausted.
        limit: Option<MiB>,
        /// The most that it had.
        peak: Option<MiB>,
        /// Processes that were killed.
        killed: u32,
    },
    /// Its MPS server was torn down under it, or took it on no more; back to the queue without charge.
    FaultVictim {
        /// The job that is held responsible, if one is.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        culprit: Option<JobId>,
        /// What the log says.
        line: String,
    },
    /// Of those that died of a fault under MPS it is the likeliest to have caused it; back to the queue without charge, to
    /// run outside MPS, where only its own fault can end it.
    FaultSuspect {
        /// What the log says.
        line: String,
        /// Jobs that died with it.
        others: Vec<JobId>,
        /// Why it is suspected.
        because: Arc<str>,
    },
    /// Its fault tore down the MPS server.
    FaultCulprit {
        /// What the log says.
        line: String,
        /// Jobs that died with it.
        victims: Vec<JobId>,
        /// Why it is held responsible.
        because: Arc<str>,
    },
    /// The GPU under it went away.
    GpuLost {
        /// What the log or the driver says.
        line: String,
    },
}

impl Reason {
    /// Whether its user has had all that there is in this period.
    pub(crate) const fn is_of_quota(&self) -> bool {
        matches!(self, Self::UserLimit { limit: UserLimit::GpuHours { .. } | UserLimit::Energy { .. }, .. })
    }
}

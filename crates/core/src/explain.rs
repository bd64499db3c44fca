//! Reasons: data made with the decision, rendered once for terminal, JSON and web.

use crate::model::{Floor, JobId, SharingMode};
use crate::policy::{GateVerdict, NeedSource, Order, Pack};
use crate::recovery::{Blame, Evidence};
use crate::slowdown::Foreseen;
use crate::units::{Fraction, MiB, Millis};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// Somebody who holds memory of a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Holder {
    /// One of our jobs: what is set aside for it or what it takes, whichever is more.
    Job {
        /// Which.
        job: JobId,
        /// How much.
        memory: MiB,
    },
    /// A process that carma did not start.
    Foreign {
        /// Its pid.
        pid: u32,
        /// Its owner.
        user: Option<Arc<str>>,
        /// How much, where known.
        memory: Option<MiB>,
    },
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Job { job, memory } => write!(f, "{memory} held by job {job}"),
            Self::Foreign { pid, user, memory } => {
                match memory {
                    Some(memory) => write!(f, "{memory} held by pid {pid}")?,
                    None => write!(f, "unknown memory held by pid {pid}")?,
                }
                if let Some(user) = user {
                    write!(f, " of {user}")?;
                }
                f.write_str(", not ours")
            }
        }
    }
}

/// Why one GPU did not do for a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Refusal {
    /// It is gone from the machine.
    Gone,
    /// It does not answer.
    Unhealthy {
        /// What it says.
        why: String,
    },
    /// The administrator took it out of use.
    Drained {
        /// Who.
        by: Arc<str>,
    },
    /// It has not been looked at, or not lately: unknown is not free.
    Stale {
        /// Age of the last reading.
        age: Option<Millis>,
    },
    /// The policy or the job wants an idle GPU, and somebody is on it.
    Busy {
        /// Who.
        holders: Vec<Holder>,
    },
    /// A job that wants no neighbours is on it.
    Exclusive {
        /// Which.
        job: JobId,
    },
    /// It has less memory in all than the job needs.
    TooSmall {
        /// What it has.
        memory: MiB,
    },
    /// Not enough memory.
    Memory {
        /// Available for placement.
        free: MiB,
        /// Who has the rest.
        holders: Vec<Holder>,
    },
    /// A job on it is still starting, and for it or for the newcomer there is no forecast.
    Starting {
        /// Which.
        job: JobId,
        /// Since when its activity was seen; `None`: not yet.
        active_for: Option<Millis>,
        /// How long it must have been seen.
        window: Millis,
    },
    /// A job on it took more than was expected, and may go on to.
    Rising {
        /// Which.
        job: JobId,
        /// What it holds.
        holds: MiB,
        /// What was expected.
        forecast: MiB,
        /// For how long its memory must be still.
        window: Millis,
    },
    /// Too busy, or a metric that the gate needs is missing.
    Gate(GateVerdict),
    /// As many jobs are on it as the policy puts together.
    Full {
        /// The most.
        most: u32,
    },
    /// The policy does not put these jobs together.
    Pack {
        /// By which rule.
        rule: Pack,
        /// Load of the jobs that are there, in the rule's unit; `None`: not known.
        load: Option<u32>,
        /// Load of the newcomer.
        newcomer: Option<u32>,
    },
    /// A job would be slowed down by more than it is promised.
    Slowdown {
        /// Whose promise.
        job: JobId,
        /// Slowdown that is foreseen.
        expected: Fraction,
        /// What it may be with the model's confidence: this counts.
        upper: Fraction,
        /// What is promised.
        limit: Fraction,
    },
    /// Somebody is promised a slowdown, and what this placement would do cannot be foreseen.
    Unforeseen {
        /// The job of which too little is known; `None`: the forecast is not there yet.
        job: Option<JobId>,
    },
    /// The job is promised a slowdown, and processes that are not ours are there.
    Uncontrolled,
    /// They were together before, and a promise was broken.
    Apart {
        /// With whom.
        job: JobId,
    },
    /// The MPS server was torn down by a fault and takes no clients yet.
    MpsCooldown {
        /// Time left.
        left: Millis,
    },
}

impl Refusal {
    /// How close the GPU came, for choosing which refusal to show first: higher is closer.
    const fn closeness(&self) -> u8 {
        match self {
            Self::Gone => 0,
            Self::Unhealthy { .. } => 1,
            Self::Drained { .. } => 2,
            Self::Stale { .. } => 3,
            Self::TooSmall { .. } => 4,
            Self::Exclusive { .. } => 5,
            Self::Busy { .. } => 6,
            Self::Memory { .. } => 7,
            Self::Gate(_) => 8,
            Self::Full { .. } => 9,
            Self::Pack { .. } | Self::Apart { .. } | Self::Uncontrolled => 10,
            Self::Slowdown { .. } | Self::Unforeseen { .. } => 11,
            Self::Starting { .. } | Self::Rising { .. } => 12,
            Self::MpsCooldown { .. } => 13,
        }
    }
}

fn holders(f: &mut fmt::Formatter<'_>, holders: &[Holder]) -> fmt::Result {
    const SHOWN: usize = 3;
    for (i, holder) in holders.iter().take(SHOWN).enumerate() {
        write!(f, "{}{holder}", if i == 0 { ": " } else { "; " })?;
    }
    if holders.len() > SHOWN {
        write!(f, "; and {} more", holders.len() - SHOWN)?;
    }
    Ok(())
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone => f.write_str("no longer in this machine"),
            Self::Unhealthy { why } => write!(f, "not usable: {why}"),
            Self::Drained { by } => write!(f, "drained by {by}"),
            Self::Stale { age: None } => f.write_str("not read yet"),
            Self::Stale { age: Some(age) } => write!(f, "last reading is {age} old"),
            Self::Busy { holders: h } if h.is_empty() => {
                f.write_str("its processes could not be read, so it may be in use")
            }
            Self::Busy { holders: h } => {
                f.write_str("in use")?;
                holders(f, h)
            }
            Self::TooSmall { memory } => write!(f, "it has only {memory} in all"),
            Self::Exclusive { job } => write!(f, "job {job} has it exclusively"),
            Self::Memory { free, holders: h } => {
                write!(f, "{free} free")?;
                holders(f, h)
            }
            Self::Starting { job, active_for: None, .. } => {
                write!(f, "job {job} is starting: no GPU activity seen yet")
            }
            Self::Starting { job, active_for: Some(active), window } => {
                write!(f, "job {job} is starting: seen active for {active} of {window}")
            }
            Self::Rising { job, holds, forecast, window } => write!(
                f,
                "job {job} holds {holds} where {forecast} was expected: nobody joins it before that has not risen for {window}"
            ),
            Self::Gate(GateVerdict::Open) => f.write_str("gate open"),
            Self::Gate(GateVerdict::Busy { smact, smocc, drama, limits: [a, o, d] }) => {
                write!(
                    f,
                    "too busy: SMACT {smact} (limit {a}), SMOCC {smocc} (limit {o}), DRAMA {drama} (limit {d})"
                )
            }
            Self::Gate(GateVerdict::Missing(metric)) => {
                write!(f, "{} is not known here, so the GPU is not shared", metric.name())
            }
            Self::Full { most } => write!(f, "{most} jobs are on it, the most that the policy puts together"),
            Self::Pack { rule, load: Some(load), newcomer: Some(newcomer) } => match *rule {
                Pack::Any => f.write_str("the policy keeps them apart"),
                Pack::Scores { sum } | Pack::Utilisation { sum: Fraction(sum) } => write!(
                    f,
                    "{} {} there and {} of the newcomer are more than {}",
                    rule.describe(),
                    rule.show(*load),
                    rule.show(*newcomer),
                    rule.show(sum)
                ),
            },
            Self::Pack { rule, newcomer: None, .. } => {
                write!(f, "the job's {} not known, so it gets a GPU alone", known_as(*rule))
            }
            Self::Pack { rule, .. } => {
                write!(f, "{} of a job there not known, so it stays alone", known_as(*rule))
            }
            Self::Slowdown { job, expected, upper, limit } => write!(
                f,
                "job {job} would go slower by {expected} (up to {upper}), and is promised at most {limit}"
            ),
            Self::Unforeseen { job: Some(job) } => {
                write!(f, "a slowdown is promised there, and job {job} has not been seen alone yet")
            }
            Self::Unforeseen { job: None } => f.write_str("a slowdown is promised, and none is foreseen yet"),
            Self::Uncontrolled => {
                f.write_str("the job is promised a slowdown, and processes that are not ours are on it")
            }
            Self::Apart { job } => write!(f, "beside job {job} a promise was broken before"),
            Self::MpsCooldown { left } => {
                write!(f, "its MPS server restarts after a fault, {left} left")
            }
        }
    }
}

const fn known_as(rule: Pack) -> &'static str {
    match rule {
        Pack::Any => "load is",
        Pack::Scores { .. } => "sharing score is",
        Pack::Utilisation { .. } => "GPU utilisation is",
    }
}

/// Why nothing was found for a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NoGpu {
    /// GPUs that would have done, fewer than wanted.
    pub fitting: u32,
    /// Why each of the others did not, by GPU index.
    pub refusals: Vec<(u32, Refusal)>,
}

impl NoGpu {
    /// The refusal that came closest: among memory refusals the one with the most memory.
    #[must_use]
    pub fn closest(&self) -> Option<&(u32, Refusal)> {
        self.refusals.iter().max_by_key(|(index, refusal)| {
            let free = match refusal {
                Refusal::Memory { free, .. } => free.0,
                _ => 0,
            };
            (refusal.closeness(), free, std::cmp::Reverse(*index))
        })
    }
}

/// Why something was decided or is as it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// Placed on GPUs that nobody was on.
    PlacedIdle {
        /// GPU indices.
        gpus: Vec<u32>,
        /// What is set aside on each, where known.
        need: Option<MiB>,
        /// Where that number comes from, if carma computed it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        source: Option<NeedSource>,
    },
    /// Placed beside others.
    PlacedShared {
        /// GPU indices.
        gpus: Vec<u32>,
        /// What is set aside on each, where known.
        need: Option<MiB>,
        /// Where that number comes from.
        source: Option<NeedSource>,
        /// Memory that was free on the first.
        free: MiB,
        /// How many were on the first already: jobs, and processes that are not ours.
        neighbours: u32,
        /// Risk of SMACT on the first, where known.
        smact: Option<Fraction>,
        /// The order that chose.
        order: Order,
        /// Number of GPUs that would have done.
        candidates: u32,
        /// How it shares.
        sharing: SharingMode,
        /// Progress that was foreseen on the first, of everybody.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        foreseen: Vec<Foreseen>,
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
        /// Which.
        job: JobId,
        /// How long that one may be overtaken; `None`: strict first in, first out.
        overtaken_for: Option<Millis>,
    },
    /// Held back by a user.
    Held {
        /// Who.
        by: Arc<str>,
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
        /// How.
        status: String,
        /// What the log says.
        evidence: Option<Evidence>,
    },
    /// The command never ran.
    NotStarted {
        /// Why.
        why: String,
    },
    /// It was not launched, through no fault of its own; back to the queue.
    NotLaunched {
        /// Why.
        why: String,
    },
    /// The machine could not start it, and it was given up (journals of carma before 0.2).
    LaunchFailed {
        /// Why.
        error: String,
    },
    /// Nobody saw how it ended.
    ExitUnknown,
    /// Cancelled.
    Cancelled {
        /// Who.
        by: Arc<str>,
    },
    /// Put back into the queue by a user.
    RequeuedByUser {
        /// Who.
        by: Arc<str>,
    },
    /// Its placement broke a promise; back to the queue without charge.
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
    /// Over its time limit.
    TimeLimit {
        /// The limit.
        limit: Millis,
    },
    /// Ran out of GPU memory; goes back to the queue.
    OutOfMemoryRetry {
        /// Who is to blame.
        blame: Blame,
        /// What the next attempt gets.
        next: Floor,
        /// Retries charged so far.
        retries: u32,
        /// How many it may have.
        max_retries: u32,
    },
    /// Ran out of GPU memory for good.
    OutOfMemoryFinal {
        /// Who is to blame.
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
    /// A neighbour's fault tore down the MPS server; back to the queue without charge.
    FaultVictim {
        /// Who is held responsible.
        culprit: JobId,
        /// What the log says.
        line: String,
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
    /// Slurm-like one-word name of the reason, stable for programs.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::PlacedIdle { .. } => "PlacedIdle",
            Self::PlacedShared { .. } => "PlacedShared",
            Self::NoGpu { detail, .. } => match detail.closest() {
                Some((_, Refusal::Memory { .. } | Refusal::TooSmall { .. })) => "GpuMemory",
                Some((_, Refusal::Gate(GateVerdict::Missing(_)))) => "MetricMissing",
                Some((_, Refusal::Gate(_) | Refusal::Full { .. } | Refusal::Pack { .. })) => "GpuBusy",
                Some((
                    _,
                    Refusal::Slowdown { .. }
                    | Refusal::Unforeseen { .. }
                    | Refusal::Uncontrolled
                    | Refusal::Apart { .. },
                )) => "MaxSlowdown",
                Some((_, Refusal::Starting { .. })) => "StartingNeighbour",
                Some((_, Refusal::Rising { .. })) => "RisingNeighbour",
                Some((_, Refusal::Stale { .. } | Refusal::Unhealthy { .. } | Refusal::Gone)) => {
                    "GpuUnavailable"
                }
                Some((_, Refusal::Drained { .. })) => "GpuDrained",
                Some((_, Refusal::MpsCooldown { .. })) => "MpsCooldown",
                Some((_, Refusal::Busy { .. } | Refusal::Exclusive { .. })) | None => "Resources",
            },
            Self::Behind { .. } => "Priority",
            Self::Held { .. } => "Held",
            Self::Pause { .. } => "LaunchPause",
            Self::Launching => "Launching",
            Self::NotPlannedYet => "NotPlannedYet",
            Self::Judging => "JudgingFault",
            Self::Completed => "Completed",
            Self::CommandFailed { .. } => "NonZeroExit",
            Self::NotStarted { .. } => "NotStarted",
            Self::NotLaunched { .. } => "NotLaunched",
            Self::LaunchFailed { .. } => "LaunchFailed",
            Self::ExitUnknown => "ExitUnknown",
            Self::Cancelled { .. } => "Cancelled",
            Self::RequeuedByUser { .. } => "Requeued",
            Self::Undone { .. } => "Undone",
            Self::TimeLimit { .. } => "TimeLimit",
            Self::OutOfMemoryRetry { .. } => "OutOfMemoryRetry",
            Self::OutOfMemoryFinal { .. } => "OutOfMemory",
            Self::HostOutOfMemory { .. } => "HostOutOfMemory",
            Self::HostMemoryLimit { .. } => "HostMemoryLimit",
            Self::FaultVictim { .. } => "MpsFaultVictim",
            Self::FaultCulprit { .. } => "MpsFault",
            Self::GpuLost { .. } => "GpuLost",
        }
    }
}

const fn was(gpus: &[u32]) -> &'static str {
    if gpus.len() == 1 { "was" } else { "were" }
}

fn list(gpus: &[u32]) -> String {
    let numbers: Vec<String> = gpus.iter().map(u32::to_string).collect();
    format!("GPU{} {}", if gpus.len() == 1 { "" } else { "s" }, numbers.join(", "))
}

/// "20.0 GiB (declared) + 2.0 GiB guard"; `total` includes the guard.
fn amount(total: MiB, guard: MiB, source: Option<NeedSource>) -> String {
    let mut text = (total - guard).to_string();
    if let Some(source) = source {
        text.push_str(&format!(" ({source})"));
    }
    if guard > MiB::ZERO {
        text.push_str(&format!(" + {guard} guard"));
    }
    text
}

/// "1 job", "2 jobs".
fn count(n: u32, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// What a job that found no GPUs is told, by the GPU that came closest.
fn no_gpu(
    f: &mut fmt::Formatter<'_>,
    gpus: u32,
    need: impl FnOnce() -> Option<String>,
    detail: &NoGpu,
) -> fmt::Result {
    let all = detail.refusals.len() + detail.fitting as usize;
    let Some((index, refusal)) = detail.closest() else {
        return f.write_str("there is no GPU");
    };
    if matches!(refusal, Refusal::Busy { holders } if !holders.is_empty()) {
        return match (gpus, all) {
            (1, 1) => f.write_str("needs an idle GPU; the only one is in use"),
            (1, _) => write!(f, "needs an idle GPU; none of {all} is idle"),
            (_, _) => write!(f, "needs {gpus} idle GPUs; {} of {all} idle", detail.fitting),
        };
    }
    if gpus > 1 {
        write!(f, "{} of {gpus} GPUs found; ", detail.fitting)?;
    }
    if let Refusal::Memory { free, holders: h } = refusal {
        if let Some(need) = need() {
            write!(f, "need {need}; ")?;
        }
        write!(f, "best is GPU {index} with {free} free")?;
        return holders(f, h);
    }
    if detail.refusals.len() > 1 {
        f.write_str("closest is ")?;
    }
    write!(f, "GPU {index}: {refusal}")
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PlacedIdle { gpus, need, source } => match need {
                Some(need) => {
                    let need = amount(*need, MiB::ZERO, *source);
                    write!(f, "{} {} idle; {need} set aside", list(gpus), was(gpus))
                }
                None => write!(f, "{} {} idle", list(gpus), was(gpus)),
            },
            Self::PlacedShared {
                gpus,
                need,
                source,
                free,
                neighbours,
                smact,
                order,
                candidates,
                sharing,
                foreseen,
            } => {
                let aside = need.map_or("nothing".into(), |m| amount(m, MiB::ZERO, *source));
                write!(
                    f,
                    "{} shared by {sharing}: {aside} set aside of {free} free beside {}",
                    list(gpus),
                    count(*neighbours, "other")
                )?;
                if let Some(smact) = smact {
                    write!(f, ", SMACT {smact}")?;
                }
                if *candidates as usize > gpus.len() {
                    write!(f, "; {} of {candidates} that would do", order.describe())?;
                } else {
                    f.write_str("; no other would do")?;
                }
                for (i, task) in foreseen.iter().enumerate() {
                    let before = if i == 0 { "; progress foreseen: " } else { ", " };
                    write!(f, "{before}job {} {}", task.job, task.expected)?;
                }
                Ok(())
            }
            Self::NoGpu { gpus, need, guard, source, detail } => {
                write!(f, "{}(", self.code())?;
                no_gpu(f, *gpus, || need.map(|m| amount(m, *guard, *source)), detail)?;
                f.write_str(")")
            }
            Self::Behind { job, overtaken_for: None } => {
                write!(f, "Priority(job {job} is first; this policy lets nobody overtake)")
            }
            Self::Behind { job, overtaken_for: Some(t) } => {
                write!(f, "Priority(job {job} is first and has waited for more than {t})")
            }
            Self::Held { by } => write!(f, "Held(by {by}; `carma release` lets it go)"),
            Self::Pause { error, .. } => write!(f, "LaunchPause({error}; tried again in a moment)"),
            Self::Launching => f.write_str("starting"),
            Self::NotPlannedYet => f.write_str("just submitted"),
            Self::Judging => {
                f.write_str("JudgingFault(it died of a fault under MPS; whose is being found out)")
            }
            Self::Completed => f.write_str("completed"),
            Self::CommandFailed { status, evidence } => {
                write!(f, "the command failed: {status}")?;
                match evidence {
                    Some(e) => write!(f, "; log: {}", e.line),
                    None => Ok(()),
                }
            }
            Self::NotStarted { why } => write!(f, "the command was not started: {why}"),
            Self::NotLaunched { why } => {
                write!(f, "not started, through no fault of its own: {why}; it is tried again")
            }
            Self::LaunchFailed { error } => write!(f, "could not be started: {error}"),
            Self::ExitUnknown => {
                f.write_str("its supervisor is gone, so nobody saw how it ended; its log may tell")
            }
            Self::Cancelled { by } => write!(f, "cancelled by {by}"),
            Self::RequeuedByUser { by } => write!(f, "put back into the queue by {by}"),
            Self::Undone { job, slowdown, limit, .. } => write!(
                f,
                "undone: job {job} was slowed down by {slowdown} where {limit} is promised; requeued without charge"
            ),
            Self::TimeLimit { limit } => write!(f, "over its time limit of {limit}"),
            Self::OutOfMemoryRetry { blame, next, retries, max_retries } => {
                write!(f, "out of GPU memory: {blame}; retried with {next}")?;
                if blame.is_own_fault() {
                    write!(f, " (retry {retries} of {max_retries})")
                } else {
                    f.write_str(" (not charged to its retries)")
                }
            }
            Self::OutOfMemoryFinal { blame, why } => write!(f, "out of GPU memory: {blame}; {why}"),
            Self::HostOutOfMemory { line } => {
                write!(f, "out of host memory, which another GPU does not help; log: {line}")
            }
            Self::HostMemoryLimit { limit, peak, killed } => {
                match limit {
                    Some(limit) => write!(f, "out of host memory: it reached its limit of {limit}")?,
                    None => f.write_str("out of host memory: the machine had none left")?,
                }
                if let Some(peak) = peak {
                    write!(f, "; it had {peak} at most")?;
                }
                let processes = if *killed == 1 { "process" } else { "processes" };
                write!(f, "; the kernel killed {killed} {processes} of it (cgroup)")
            }
            Self::FaultVictim { culprit, line } => {
                write!(
                    f,
                    "a fault of job {culprit} ended all MPS clients of its GPU; requeued without charge; log: {line}"
                )
            }
            Self::FaultCulprit { line, victims, because } => {
                write!(f, "a fatal GPU fault under MPS")?;
                if !victims.is_empty() {
                    let ids: Vec<String> = victims.iter().map(ToString::to_string).collect();
                    let jobs = if ids.len() == 1 { "job" } else { "jobs" };
                    write!(f, " took {jobs} {} down", ids.join(", "))?;
                }
                write!(f, " ({because}); this command no longer runs under MPS; log: {line}")
            }
            Self::GpuLost { line } => write!(f, "its GPU went away: {line}"),
        }
    }
}

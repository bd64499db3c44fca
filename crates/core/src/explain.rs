//! Reasons: data made with the decision, rendered once for terminal, JSON and web.

use crate::policy::{GateVerdict, NeedSource, Order, Pack};
use crate::progress::Foreseen;
use crate::recovery::{Blame, Evidence, Floor};
use crate::spec::{JobId, SharingMode};
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

/// What of a user's is limited.
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
    /// Waits until its user has less at once.
    UserLimit {
        /// Who.
        user: Arc<str>,
        /// What is limited.
        limit: UserLimit,
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
            Self::UserLimit { .. } => "UserLimit",
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

/// What anybody may read of a reason: numbers, names of users, carma's own words. No line of a log, path, program or
/// text of an error, which belong to the job's owner.
///
/// Every field of every variant is named here, so that a new one does not compile before somebody has decided.
impl Reason {
    /// The text for those who may not read the job.
    #[must_use]
    pub fn public_text(&self) -> String {
        match self {
            Self::PlacedIdle { gpus: _, need: _, source: _ }
            | Self::PlacedShared {
                gpus: _,
                need: _,
                source: _,
                free: _,
                neighbours: _,
                smact: _,
                order: _,
                candidates: _,
                sharing: _,
                foreseen: _,
            }
            | Self::Behind { job: _, overtaken_for: _ }
            | Self::UserLimit { user: _, limit: _ }
            | Self::Held { by: _ }
            | Self::Launching
            | Self::NotPlannedYet
            | Self::Judging
            | Self::Completed
            | Self::ExitUnknown
            | Self::Cancelled { by: _ }
            | Self::RequeuedByUser { by: _ }
            | Self::Undone { job: _, slowdown: _, limit: _, apart: _ }
            | Self::TimeLimit { limit: _ }
            | Self::HostMemoryLimit { limit: _, peak: _, killed: _ }
            | Self::OutOfMemoryRetry { blame: _, next: _, retries: _, max_retries: _ } => self.to_string(),
            Self::NoGpu { gpus, need, guard, source, detail } => {
                let detail = Arc::new(detail.public());
                let (gpus, need, guard, source) = (*gpus, *need, *guard, *source);
                Self::NoGpu { gpus, need, guard, source, detail }.to_string()
            }
            Self::Pause { error: _, until: _ } => {
                "LaunchPause(it could not be started; tried again in a moment)".into()
            }
            Self::CommandFailed { status, evidence: _ } => match public_status(status) {
                Some(status) => format!("the command failed: {status}"),
                None => "the command failed".into(),
            },
            Self::NotStarted { why: _ } => "the command was not started".into(),
            Self::NotLaunched { why: _ } => {
                "not started, through no fault of its own; it is tried again".into()
            }
            Self::LaunchFailed { error: _ } => "could not be started".into(),
            Self::OutOfMemoryFinal { blame, why: _ } => format!("out of GPU memory: {blame}"),
            Self::HostOutOfMemory { line: _ } => "out of host memory, which another GPU does not help".into(),
            Self::FaultVictim { culprit, line: _ } => {
                format!("a fault of job {culprit} ended all MPS clients of its GPU; requeued without charge")
            }
            Self::FaultCulprit { line: _, victims, because: _ } => {
                let mut text = "a fatal GPU fault under MPS".to_owned();
                took_down(&mut text, victims);
                text
            }
            Self::GpuLost { line: _ } => "its GPU went away".into(),
        }
    }
}

/// An exit status, if that is all that the text is.
fn public_status(text: &str) -> Option<&str> {
    let number = |text: &str| text.strip_prefix('-').unwrap_or(text).parse::<u32>().is_ok();
    let code = text.strip_prefix("exit code ").is_some_and(number);
    let signal = text.strip_prefix("signal ").is_some_and(|rest| {
        let (n, name) = rest.split_once(' ').unwrap_or((rest, "()"));
        let name = name.strip_prefix('(').and_then(|name| name.strip_suffix(')'));
        number(n) && name.is_some_and(|name| name.len() < 12 && name.bytes().all(|b| b.is_ascii_uppercase()))
    });
    (code || signal || text == "exit status unknown").then_some(text)
}

impl NoGpu {
    /// The same without what a driver or a file says.
    fn public(&self) -> Self {
        let refusals = self.refusals.iter().map(|(gpu, refusal)| (*gpu, refusal.public())).collect();
        Self { fitting: self.fitting, refusals }
    }
}

impl Refusal {
    /// The same without texts that carma did not write.
    #[must_use]
    pub fn public(&self) -> Self {
        match self {
            Self::Unhealthy { why: _ } => Self::Unhealthy { why: "it does not answer".into() },
            Self::Gone
            | Self::Drained { by: _ }
            | Self::Stale { age: _ }
            | Self::Busy { holders: _ }
            | Self::Exclusive { job: _ }
            | Self::TooSmall { memory: _ }
            | Self::Memory { free: _, holders: _ }
            | Self::Starting { job: _, active_for: _, window: _ }
            | Self::Rising { job: _, holds: _, forecast: _, window: _ }
            | Self::Gate(_)
            | Self::Full { most: _ }
            | Self::Pack { rule: _, load: _, newcomer: _ }
            | Self::Slowdown { job: _, expected: _, upper: _, limit: _ }
            | Self::Unforeseen { job: _ }
            | Self::Uncontrolled
            | Self::Apart { job: _ }
            | Self::MpsCooldown { left: _ } => self.clone(),
        }
    }
}

fn took_down(text: &mut String, victims: &[JobId]) {
    if !victims.is_empty() {
        let ids: Vec<String> = victims.iter().map(ToString::to_string).collect();
        let jobs = if ids.len() == 1 { "job" } else { "jobs" };
        text.push_str(&format!(" took {jobs} {} down", ids.join(", ")));
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
            Self::UserLimit { user, limit: UserLimit::Jobs { most } } => {
                write!(
                    f,
                    "UserLimit({user} has {} running, the most at once for one user)",
                    count(*most, "job")
                )
            }
            Self::UserLimit { user, limit: UserLimit::Gpus { wanted, used, most } } => {
                write!(
                    f,
                    "UserLimit(asks for {}; {user} has {used} of at most {most})",
                    count(*wanted, "GPU")
                )
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
            Self::HostMemoryLimit { limit, peak, killed: _ } => {
                match limit {
                    Some(limit) => write!(f, "out of host memory: it reached its limit of {limit}")?,
                    None => f.write_str("out of host memory: the machine had none left")?,
                }
                if let Some(peak) = peak {
                    write!(f, "; it had {peak} at most")?;
                }
                f.write_str("; the kernel killed it (memory.events of its cgroup)")
            }
            Self::FaultVictim { culprit, line } => {
                write!(
                    f,
                    "a fault of job {culprit} ended all MPS clients of its GPU; requeued without charge; log: {line}"
                )
            }
            Self::FaultCulprit { line, victims, because } => {
                let mut text = "a fatal GPU fault under MPS".to_owned();
                took_down(&mut text, victims);
                write!(f, "{text} ({because}); this command no longer runs under MPS; log: {line}")
            }
            Self::GpuLost { line } => write!(f, "its GPU went away: {line}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recovery::EvidenceKind;
    use serde_json::Value;

    const SECRET: &str = "password-of-the-db";

    /// One of each, with everything in it that can be.
    fn all() -> Vec<Reason> {
        let text = || "text".to_owned();
        let (job, gpus, m) = (JobId(7), vec![1, 2], MiB(900));
        let holders = vec![
            Holder::Job { job, memory: m },
            Holder::Foreign { pid: 9, user: Some("bob".into()), memory: Some(m) },
        ];
        let refusals = vec![
            Refusal::Gone,
            Refusal::Unhealthy { why: text() },
            Refusal::Drained { by: "root".into() },
            Refusal::Stale { age: None },
            Refusal::Busy { holders: holders.clone() },
            Refusal::Exclusive { job },
            Refusal::TooSmall { memory: m },
            Refusal::Memory { free: m, holders },
            Refusal::Starting { job, active_for: None, window: Millis(1) },
            Refusal::Rising { job, holds: m, forecast: m, window: Millis(1) },
            Refusal::Gate(GateVerdict::Open),
            Refusal::Full { most: 1 },
            Refusal::Pack { rule: Pack::Any, load: None, newcomer: None },
            Refusal::Slowdown { job, expected: Fraction(1), upper: Fraction(2), limit: Fraction(3) },
            Refusal::Unforeseen { job: None },
            Refusal::Uncontrolled,
            Refusal::Apart { job },
            Refusal::MpsCooldown { left: Millis(1) },
        ];
        let no_gpu = refusals.into_iter().map(|refusal| Reason::NoGpu {
            gpus: 1,
            need: Some(m),
            guard: m,
            source: None,
            detail: Arc::new(NoGpu { fitting: 0, refusals: vec![(0, refusal)] }),
        });
        let neighbour = Blame::Neighbour { job: None, pid: Some(1), user: Some("bob".into()) };
        let mut reasons = vec![
            Reason::PlacedIdle { gpus: gpus.clone(), need: Some(m), source: None },
            Reason::PlacedShared {
                gpus,
                need: Some(m),
                source: Some(NeedSource::Declared),
                free: m,
                neighbours: 1,
                smact: Some(Fraction(1)),
                order: Order::Magm,
                candidates: 3,
                sharing: SharingMode::Mps,
                foreseen: Vec::new(),
            },
            Reason::Behind { job, overtaken_for: None },
            Reason::UserLimit { user: "bob".into(), limit: UserLimit::Gpus { wanted: 1, used: 2, most: 2 } },
            Reason::Held { by: "bob".into() },
            Reason::Pause { error: text(), until: Millis(1) },
            Reason::Launching,
            Reason::NotPlannedYet,
            Reason::Judging,
            Reason::Completed,
            Reason::CommandFailed {
                status: text(),
                evidence: Some(Evidence { kind: EvidenceKind::OwnError, line: text() }),
            },
            Reason::NotStarted { why: text() },
            Reason::LaunchFailed { error: text() },
            Reason::NotLaunched { why: text() },
            Reason::HostMemoryLimit { limit: Some(m), peak: Some(m), killed: 2 },
            Reason::HostMemoryLimit { limit: None, peak: None, killed: 1 },
            Reason::ExitUnknown,
            Reason::Cancelled { by: "bob".into() },
            Reason::RequeuedByUser { by: "bob".into() },
            Reason::Undone { job, slowdown: Fraction(1), limit: Fraction(1), apart: vec![job] },
            Reason::TimeLimit { limit: Millis(1) },
            Reason::OutOfMemoryRetry {
                blame: neighbour.clone(),
                next: Floor::Memory(m),
                retries: 1,
                max_retries: 2,
            },
            Reason::OutOfMemoryFinal { blame: neighbour, why: "text".into() },
            Reason::HostOutOfMemory { line: text() },
            Reason::FaultVictim { culprit: job, line: text() },
            Reason::FaultCulprit { line: text(), victims: vec![job], because: "text".into() },
            Reason::GpuLost { line: text() },
        ];
        reasons.extend(no_gpu);
        reasons
    }

    /// Puts the secret into one string after the other, wherever the reason still is one then. Names of users and
    /// words of an enumeration are no texts.
    fn marked(reason: &Reason) -> Reason {
        fn leaves(value: &Value, at: &str, found: &mut Vec<String>) {
            match value {
                Value::String(_) => found.push(at.to_owned()),
                Value::Array(items) => {
                    items.iter().enumerate().for_each(|(i, v)| leaves(v, &format!("{at}/{i}"), found));
                }
                Value::Object(map) => map.iter().for_each(|(k, v)| leaves(v, &format!("{at}/{k}"), found)),
                _ => {}
            }
        }
        let mut value = serde_json::to_value(reason).unwrap();
        let mut found = Vec::new();
        leaves(&value, "", &mut found);
        for at in found.iter().filter(|at| !at.ends_with("/by") && !at.ends_with("/user")) {
            let mut with = value.clone();
            *with.pointer_mut(at).unwrap() = Value::String(SECRET.into());
            if serde_json::from_value::<Reason>(with.clone()).is_ok() {
                value = with;
            }
        }
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn the_public_text_of_no_reason_has_a_word_that_is_a_users_own() {
        let mut hidden = 0;
        for reason in all() {
            let marked = marked(&reason);
            let public = marked.public_text();
            assert!(!public.is_empty() && !public.contains(SECRET), "{marked:?}: {public}");
            hidden += usize::from(marked.to_string().contains(SECRET));
        }
        // The markers do arrive where the full text shows them.
        assert_eq!(hidden, 11, "reasons whose full text has a text of its own");
    }

    /// Does not compile when a variant is new, and fails when [`all`] does not have it.
    #[test]
    fn every_reason_is_tried() {
        let number = |reason: &Reason| match reason {
            Reason::PlacedIdle { .. } => 0,
            Reason::PlacedShared { .. } => 1,
            Reason::NoGpu { .. } => 2,
            Reason::Behind { .. } => 3,
            Reason::UserLimit { .. } => 4,
            Reason::Held { .. } => 5,
            Reason::Pause { .. } => 6,
            Reason::Launching => 7,
            Reason::NotPlannedYet => 8,
            Reason::Judging => 9,
            Reason::Completed => 10,
            Reason::CommandFailed { .. } => 11,
            Reason::NotStarted { .. } => 12,
            Reason::LaunchFailed { .. } => 13,
            Reason::ExitUnknown => 14,
            Reason::Cancelled { .. } => 15,
            Reason::RequeuedByUser { .. } => 16,
            Reason::Undone { .. } => 17,
            Reason::TimeLimit { .. } => 18,
            Reason::OutOfMemoryRetry { .. } => 19,
            Reason::OutOfMemoryFinal { .. } => 20,
            Reason::HostOutOfMemory { .. } => 21,
            Reason::FaultVictim { .. } => 22,
            Reason::FaultCulprit { .. } => 23,
            Reason::GpuLost { .. } => 24,
            Reason::NotLaunched { .. } => 25,
            Reason::HostMemoryLimit { .. } => 26,
        };
        let tried: std::collections::BTreeSet<usize> = all().iter().map(number).collect();
        assert_eq!(tried.into_iter().collect::<Vec<_>>(), (0..27).collect::<Vec<_>>());
    }

    #[test]
    fn an_exit_status_is_public_and_nothing_that_looks_like_one() {
        for text in ["exit code 1", "exit code -1", "signal 9 (SIGKILL)", "signal 64", "exit status unknown"]
        {
            assert_eq!(public_status(text), Some(text));
        }
        for text in [
            "exit code 1; log: x",
            "exit code",
            "signal 9 (secret)",
            "signal 9 (A) b",
            "exit code 99999999999",
        ] {
            assert_eq!(public_status(text), None, "{text}");
        }
    }
}

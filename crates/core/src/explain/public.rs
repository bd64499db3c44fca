//! What any user may read of a reason: numbers, names of users, carma's own words. No line of a log, path, program or text
//! of an error, which belong to the job's owner.

use super::text::{ending, fault_under_mps, set_aside, torn_down};
use super::{Eviction, Filling, NoGpu, Reason, Refusal, UserLimit};
use std::sync::Arc;

/// Every field of every variant is named here, so that a new field does not compile until it is shown or hidden here.
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
                fullest: _,
                free: _,
                neighbours: _,
                smact: _,
                order: _,
                candidates: _,
                sharing: _,
                predicted: _,
                over: _,
                threads: _,
                floor: _,
            }
            | Self::Behind { job: _, overtaken_for: _ }
            | Self::Later { last: _ }
            | Self::UserLimit { user: _, limit: UserLimit::Jobs { most: _ } }
            | Self::UserLimit { user: _, limit: UserLimit::Gpus { wanted: _, used: _, most: _ } }
            | Self::Held { by: _, operator: _ }
            | Self::UserGone { user: _, uid: _, now: _ }
            | Self::Launching
            | Self::NotPlannedYet
            | Self::Judging
            | Self::Completed
            | Self::ExitUnknown
            | Self::Cancelled { by: _ }
            | Self::RequeuedByUser { by: _ }
            | Self::Evicted(Eviction { job: _, slowdown: _, limit: _, apart: _, together: _ })
            | Self::GrowthGuard {
                filling: Filling { gpu: _, memory: _, free: _, left: _, held: _, exceeded: _ },
                next: _,
            }
            | Self::MadeRoom { job: _ }
            | Self::Suspended { by: _, host: _ }
            | Self::Moving { off: _ }
            | Self::Moved { by: _, from: _ }
            | Self::TimeLimit { limit: _ }
            | Self::HostMemoryLimit { limit: _, peak: _, killed: _ }
            | Self::OutOfMemoryRetry { blame: _, next: _, retries: _, max_retries: _ } => self.to_string(),
            Self::Ending { why } => ending(&why.public_text()),
            // What a user has had is that user's.
            Self::UserLimit {
                user,
                limit:
                    UserLimit::GpuHours { used: _, most: _, left }
                    | UserLimit::Energy { used_j: _, most_j: _, left },
            } => format!("UserLimit({user} has used up a quota; the next period begins in {left})"),
            Self::NoGpu { gpus, need, guard, source, detail } => {
                let detail = Arc::new(detail.public());
                let (gpus, need, guard, source) = (*gpus, *need, *guard, *source);
                Self::NoGpu { gpus, need, guard, source, detail }.to_string()
            }
            Self::SetAside { cause, waits } => set_aside(cause, waits.as_ref().map(|why| why.public_text())),
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
            Self::RunsOn { why: _ } => "could not be suspended or moved, and runs on".into(),
            Self::NotResumed { why: _, until: _ } => {
                "NotResumed(it stays suspended; tried again in a moment)".into()
            }
            Self::Stuck { why: _ } => "could neither run nor stay suspended; requeued without charge".into(),
            Self::OutOfMemoryFinal { blame, why: _ } => format!("out of GPU memory: {blame}"),
            Self::HostOutOfMemory { line: _ } => "out of host memory, which another GPU does not help".into(),
            Self::FaultVictim { culprit, line: _ } => {
                format!("{}; requeued without charge", torn_down(*culprit))
            }
            Self::FaultSuspect { line: _, others, because: _ } => {
                let text = fault_under_mps(others);
                format!("{text}, and this job is suspected; requeued without charge, to run outside MPS")
            }
            Self::FaultCulprit { line: _, victims, because: _ } => fault_under_mps(victims),
            Self::GpuLost { line: _ } => "its GPU went away".into(),
        }
    }
}

/// An exit status, if that is all that the text is.
pub(super) fn public_status(text: &str) -> Option<&str> {
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
        Self { fitting: self.fitting, refusals, left_by: self.left_by, may_move: self.may_move }
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
            | Self::Slice
            | Self::Memory { free: _, holders: _ }
            | Self::Starting { job: _, active_for: _, window: _ }
            | Self::Rising { job: _, holds: _, forecast: _, window: _ }
            | Self::Gate(_)
            | Self::Full { most: _ }
            | Self::Pack { rule: _, load: _, newcomer: _ }
            | Self::Held { job: _ }
            | Self::MpsCooldown { left: _ }
            // Numbers alone.
            | Self::Progress(_) => self.clone(),
        }
    }
}

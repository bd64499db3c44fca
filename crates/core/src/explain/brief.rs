//! Reasons in few words, for tables and for screens of one page. The whole sentence is in [`super::text`].

use super::refusal::{Holder, Refusal};
use super::{Narrowed, Objection, Reason};
use crate::policy::{GateVerdict, Pack};
use crate::units::MiB;
use std::fmt::Write as _;

/// Holders that are named.
const NAMED: usize = 2;

impl Holder {
    fn brief(&self) -> String {
        match self {
            Self::Job { job, memory, has: _, untouched_for: None } => format!("job {job} {memory}"),
            Self::Job { job, memory, has: _, untouched_for: Some(time) } => {
                format!("job {job} {memory}, GPU untouched for {time}")
            }
            Self::Foreign { pid, user, memory } => {
                let mut text = format!("pid {pid}");
                if let Some(user) = user {
                    let _ = write!(text, " of {user}");
                }
                if let Some(memory) = memory {
                    let _ = write!(text, " {memory}");
                }
                text
            }
        }
    }
}

/// ": job 3 12.0 GiB, job 1 10.0 GiB, 2 more".
fn held(holders: &[Holder]) -> String {
    let mut words: Vec<String> = holders.iter().take(NAMED).map(Holder::brief).collect();
    if holders.len() > NAMED {
        words.push(format!("{} more", holders.len() - NAMED));
    }
    if words.is_empty() { String::new() } else { format!(": {}", words.join(", ")) }
}

impl Objection {
    const fn cause(&self) -> &'static str {
        match self {
            Self::Slowdown { .. } => "beyond a limit of slowdown",
            Self::Unpredicted { .. } | Self::Unprofiled { .. } => "not predicted yet",
            Self::Uncontrolled => "others' processes there",
            Self::Apart { .. } => "kept apart",
            Self::Floor { .. } | Self::TooSlow { .. } | Self::WholeRun { .. } => "below the floor",
            Self::Unmeasured { .. } => "not measured yet",
            Self::Gain { .. } => "too little gain",
            Self::Bad => "went wrong before",
        }
    }

    fn brief(&self) -> String {
        let cause = self.cause();
        match self {
            Self::Uncontrolled
            | Self::Bad
            | Self::Unpredicted { job: None, limited: _ }
            | Self::Unprofiled { job: None } => cause.to_owned(),
            Self::Slowdown { job, expected: _, upper, limit } => {
                format!("job {job} slower by up to {upper}, limit {limit}")
            }
            Self::Unpredicted { job: Some(job), limited: _ } | Self::Unprofiled { job: Some(job) } => {
                format!("job {job} not known well enough")
            }
            Self::Apart { job } => format!("kept apart from job {job}"),
            Self::Floor { job, expected: _, floor, unsure: _ } => format!("{cause} of {floor}: job {job}"),
            Self::TooSlow { job, measured: _, least } => format!("{cause} of {least} as measured: job {job}"),
            Self::Unmeasured { job } => format!("{cause} after an eviction: job {job}"),
            Self::WholeRun { job, whole: _, least, unsure: _ } => {
                format!("{cause} of {least} over its run: job {job}")
            }
            Self::Gain { gain: _, least } => format!("{cause}: {least} wanted"),
        }
    }
}

impl Refusal {
    /// What kind of answer it is: the same words for every GPU that refuses for the same cause, whatever the numbers.
    #[must_use]
    pub const fn cause(&self) -> &'static str {
        match self {
            Self::Gone => "gone",
            Self::Unhealthy { .. } => "not usable",
            Self::Drained { .. } => "drained",
            Self::Stale { .. } => "not read lately",
            Self::Busy { .. } => "in use",
            Self::Exclusive { .. } => "a job has it alone",
            Self::TooSmall { .. } => "too small",
            Self::Slice => "a MIG instance",
            Self::Memory { .. } => "too little memory",
            Self::Starting { .. } => "a job is starting",
            Self::Rising { .. } => "a job takes more than expected",
            Self::Gate(GateVerdict::Missing(_)) => "activity not known",
            Self::Gate(_) => "too busy",
            Self::Full { .. } => "most jobs there",
            Self::Pack { .. } => "loads do not go together",
            Self::Progress(objection) => objection.cause(),
            Self::Held { .. } => "kept for another job",
            Self::MpsCooldown { .. } => "MPS restarts",
        }
    }

    /// The answer in few words, with its numbers.
    #[must_use]
    pub fn brief(&self) -> String {
        let cause = self.cause();
        match self {
            Self::Gone | Self::Slice | Self::Stale { age: None } | Self::Gate(GateVerdict::Open) => {
                cause.to_owned()
            }
            Self::Unhealthy { why } => format!("{cause}: {why}"),
            Self::Drained { by } => format!("{cause} by {by}"),
            Self::Stale { age: Some(age) } => format!("{cause}: {age} ago"),
            Self::Busy { holders } | Self::Memory { free: _, holders } => format!("{cause}{}", held(holders)),
            Self::Exclusive { job } => format!("job {job} has it alone"),
            Self::TooSmall { memory } => format!("{cause}: {memory} in all"),
            Self::Starting { job, active_for: None, window: _ } => {
                format!("job {job} is starting: no activity yet")
            }
            Self::Starting { job, active_for: Some(active), window } => {
                format!("job {job} is starting: active for {active} of {window}")
            }
            Self::Rising { job, holds, forecast: MiB::ZERO, window: _ } => {
                format!("job {job} takes {holds}, more than reserved")
            }
            Self::Rising { job, holds, forecast, window: _ } => {
                format!("job {job} takes {holds}, expected {forecast}")
            }
            Self::Gate(GateVerdict::Busy { smact, smocc: _, drama: _, limits: [limit, ..] }) => {
                format!("{cause}: SMACT {smact}, limit {limit}")
            }
            Self::Gate(GateVerdict::Missing(metric)) => format!("{} not known", metric.name()),
            Self::Full { most } => format!("{most} jobs there, the most"),
            Self::Pack { rule, load: Some(load), newcomer: Some(newcomer) } if *rule != Pack::Any => {
                format!("{cause}: {} and {}", rule.show(*load), rule.show(*newcomer))
            }
            Self::Pack { .. } => cause.to_owned(),
            Self::Progress(objection) => objection.brief(),
            Self::Held { job } => format!("kept for job {job}"),
            Self::MpsCooldown { left } => format!("{cause}: {left} left"),
        }
    }
}

impl Reason {
    /// Why a job went where it went, in few words; `None`: that is not what this reason says.
    #[must_use]
    pub fn chosen_for(&self) -> Option<String> {
        match self {
            Self::PlacedIdle { gpus, .. } if gpus.len() == 1 => Some("the GPU was idle".to_owned()),
            Self::PlacedIdle { .. } => Some("the GPUs were idle".to_owned()),
            Self::PlacedShared {
                gpus, fullest, free, neighbours, order, candidates, threads, floor, ..
            } => {
                let others = if *neighbours == 1 { "other" } else { "others" };
                let mut text = if *candidates as usize > gpus.len() {
                    format!("{} of {candidates} that would do", order.describe())
                } else {
                    "no other would do".to_owned()
                };
                let _ = write!(text, "; {free} were free beside {neighbours} {others}");
                if let Some(gpu) = fullest {
                    let _ = write!(text, " on GPU {gpu}");
                }
                if let Some(Narrowed { percent, job, limit, .. }) = threads {
                    let _ = write!(
                        text,
                        "; {percent} % of the threads, so that job {job} keeps its limit of {limit}"
                    );
                }
                if let Some(floor) = floor {
                    let _ = write!(text, "; {floor} of its speed is enough, since it has waited for long");
                }
                Some(text)
            }
            _ => None,
        }
    }
}

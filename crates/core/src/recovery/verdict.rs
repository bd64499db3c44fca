//! Who is to blame for an out-of-memory, and what the next attempt gets.

use crate::model::{Floor, JobId};
use crate::units::MiB;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// Steps of the retry ladder never rise by more than this.
const MAX_STEP: MiB = MiB(8192);

/// Who is to blame for an out-of-memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Blame {
    /// The job ran into its hard cap.
    OwnCap {
        /// The cap.
        cap: MiB,
    },
    /// The job wanted more than was forecast for it.
    OwnForecast {
        /// What it wanted at least.
        wanted: MiB,
        /// What was forecast.
        forecast: MiB,
    },
    /// The job was alone on the GPU and does not fit.
    WholeGpu {
        /// The GPU's memory.
        capacity: MiB,
    },
    /// The job stayed within its forecast; a neighbour filled the GPU.
    Neighbour {
        /// Which job, if it was one of ours.
        job: Option<JobId>,
        /// The process, if it was not ours.
        pid: Option<u32>,
        /// Its owner.
        user: Option<Arc<str>>,
    },
    /// No forecast, several tenants: together they were too much.
    Contention {
        /// Most memory seen of this job, where known.
        peak: Option<MiB>,
    },
}

impl Blame {
    /// Whether the retry is charged to the job.
    #[must_use]
    pub const fn is_own_fault(&self) -> bool {
        !matches!(self, Self::Neighbour { .. })
    }
}

impl fmt::Display for Blame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OwnCap { cap } => write!(f, "culprit, it reached its own cap of {cap}"),
            Self::OwnForecast { wanted, forecast } => {
                write!(f, "culprit, it wanted {wanted} where {forecast} was expected")
            }
            Self::WholeGpu { capacity } => {
                write!(f, "culprit, it was alone on a GPU of {capacity} and does not fit")
            }
            Self::Neighbour { job: Some(job), .. } => {
                write!(f, "victim, job {job} took more than was set aside for it")
            }
            Self::Neighbour { pid: Some(pid), user, .. } => {
                write!(f, "victim, pid {pid}")?;
                if let Some(user) = user {
                    write!(f, " of {user}")?;
                }
                f.write_str(" (not ours) filled the GPU")
            }
            Self::Neighbour { .. } => f.write_str("victim, the GPU was full without its doing"),
            Self::Contention { peak: Some(peak) } => {
                write!(f, "no forecast to judge by, it held {peak} when the shared GPU was full")
            }
            Self::Contention { peak: None } => {
                f.write_str("no forecast to judge by, the shared GPU was full")
            }
        }
    }
}

/// What is known at an out-of-memory, about the GPU that had the least memory left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OomFacts {
    /// Most memory seen of the job on one GPU.
    pub peak: Option<MiB>,
    /// What the failing allocation wanted on top.
    pub wanted: Option<MiB>,
    /// Forecast or floor that its placement was made with.
    pub forecast: Option<MiB>,
    /// Its hard cap.
    pub cap: Option<MiB>,
    /// The GPU's memory.
    pub capacity: MiB,
    /// Whether others were ever beside it.
    pub shared: bool,
    /// The neighbour that exceeded its own promise the most.
    pub offender: Option<JobId>,
    /// The largest foreign process.
    pub foreign: Option<(u32, Option<Arc<str>>)>,
}

impl OomFacts {
    /// What the job wanted at least: its peak plus the allocation that failed.
    fn reached(&self) -> Option<MiB> {
        self.peak.map(|peak| peak + self.wanted.unwrap_or_default())
    }
}

/// Culprit or victim: did it exceed its own cap or forecast, or did a neighbour fill the GPU?
#[must_use]
pub fn blame(facts: &OomFacts) -> Blame {
    let reached = facts.reached();
    if let Some(cap) = facts.cap {
        // Sampling may miss the last allocations before the failure, hence 90 %; and where the
        // driver enforces a cap and the GPU was not full, nothing else explains the failure.
        if reached.is_none_or(|r| r >= cap.percent(90)) || !facts.shared {
            return Blame::OwnCap { cap };
        }
    }
    // Alone and without a cap it had all there is, whatever was forecast.
    if !facts.shared {
        return Blame::WholeGpu { capacity: facts.capacity };
    }
    match (facts.forecast, reached) {
        (Some(forecast), Some(wanted)) if wanted > forecast => Blame::OwnForecast { wanted, forecast },
        // It died before anybody saw what it held, and nobody else is known to have taken too much.
        (Some(_), None) if facts.offender.is_none() && facts.foreign.is_none() => {
            Blame::Contention { peak: None }
        }
        (Some(_), _) => Blame::Neighbour {
            job: facts.offender,
            pid: facts.foreign.as_ref().map(|(pid, _)| *pid),
            user: facts.foreign.as_ref().and_then(|(_, user)| user.clone()),
        },
        (None, _) => Blame::Contention { peak: facts.peak },
    }
}

/// Steps of the graded retry on a GPU of this capacity: 25, 50 and 75 %, with steps between so that
/// none rises by more than 8 GiB. On 40,960 MiB: 10,240, 18,432, 20,480, 28,672, 30,720 (AEGIS).
#[must_use]
pub fn ladder(capacity: MiB) -> Vec<MiB> {
    let mut steps: Vec<MiB> = Vec::new();
    for percent in [25, 50, 75] {
        let anchor = capacity.percent(percent);
        while let Some(&last) = steps.last() {
            if anchor - last <= MAX_STEP {
                break;
            }
            steps.push(last + MAX_STEP);
        }
        steps.push(anchor);
    }
    steps.dedup();
    steps
}

/// The first step above `needed`, else a GPU alone. `None` when a GPU alone was tried already.
#[must_use]
pub fn next_floor(needed: Option<Floor>, capacity: MiB) -> Option<Floor> {
    let needed = match needed {
        Some(Floor::ExclusiveGpu) => return None,
        Some(Floor::Memory(m)) => m,
        None => MiB::ZERO,
    };
    Some(ladder(capacity).into_iter().find(|step| *step > needed).map_or(Floor::ExclusiveGpu, Floor::Memory))
}

/// Floor of the first retry: what the job was seen to want plus a margin, if that is more than it was
/// given; otherwise the next step of the ladder.
#[must_use]
pub fn first_floor(facts: &OomFacts, margin_percent: u64, margin_min: MiB) -> Option<Floor> {
    let given = facts.forecast.max(facts.cap).unwrap_or_default();
    if let Some(reached) = facts.reached() {
        let seen = reached + reached.percent(margin_percent).max(margin_min);
        if seen > given && seen < facts.capacity.percent(75) {
            return Some(Floor::Memory(seen));
        }
        return next_floor(Some(Floor::Memory(given.max(reached))), facts.capacity);
    }
    next_floor(Some(Floor::Memory(given)), facts.capacity)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> OomFacts {
        OomFacts {
            peak: Some(MiB(9_000)),
            wanted: Some(MiB(2_000)),
            forecast: Some(MiB(10_240)),
            cap: None,
            capacity: MiB(40_960),
            shared: true,
            offender: None,
            foreign: None,
        }
    }

    #[test]
    fn the_ladder_is_the_published_one() {
        let steps = [10_240, 18_432, 20_480, 28_672, 30_720].map(MiB).to_vec();
        assert_eq!(ladder(MiB(40_960)), steps);
        for pair in ladder(MiB(143_771)).windows(2) {
            assert!(pair[1] - pair[0] <= MAX_STEP && pair[1] > pair[0]);
        }
    }

    #[test]
    fn floors_rise_to_a_gpu_alone_and_stop() {
        let mut floor = None;
        let mut seen = Vec::new();
        while let Some(next) = next_floor(floor, MiB(40_960)) {
            seen.push(next);
            floor = Some(next);
        }
        assert_eq!(seen.len(), 6);
        assert_eq!(seen.last(), Some(&Floor::ExclusiveGpu));
    }

    #[test]
    fn culprit_and_victim() {
        assert!(matches!(blame(&facts()), Blame::OwnForecast { wanted: MiB(11_000), .. }));
        let within = OomFacts { wanted: Some(MiB(500)), offender: Some(JobId(3)), ..facts() };
        assert!(matches!(blame(&within), Blame::Neighbour { job: Some(JobId(3)), .. }));
        assert!(!blame(&within).is_own_fault());
        let alone = OomFacts { shared: false, ..facts() };
        assert!(matches!(blame(&alone), Blame::WholeGpu { .. }));
        let capped = OomFacts { cap: Some(MiB(11_000)), ..facts() };
        assert!(matches!(blame(&capped), Blame::OwnCap { .. }));
        let unknown = OomFacts { forecast: None, ..facts() };
        assert!(matches!(blame(&unknown), Blame::Contention { .. }));
        // Nobody saw it, and nobody else did wrong: putting it back for nothing would loop.
        let unseen = OomFacts { peak: None, ..facts() };
        assert!(matches!(blame(&unseen), Blame::Contention { peak: None }));
        let unseen = OomFacts { offender: Some(JobId(3)), ..unseen };
        assert!(matches!(blame(&unseen), Blame::Neighbour { .. }));
    }

    #[test]
    fn the_first_retry_gets_what_was_seen() {
        // 9,000 + 2,000 wanted, plus 10 %.
        assert_eq!(first_floor(&facts(), 10, MiB(512)), Some(Floor::Memory(MiB(12_100))));
        // Nothing seen: the ladder above what it was given.
        let blind = OomFacts { peak: None, ..facts() };
        assert_eq!(first_floor(&blind, 10, MiB(512)), Some(Floor::Memory(MiB(18_432))));
    }
}

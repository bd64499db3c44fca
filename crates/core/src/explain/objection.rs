//! What predictions, limits of slowdown and earlier experience have against a job on a GPU.

use crate::spec::JobId;
use crate::units::Fraction;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Why a job may not join a GPU, as far as progress goes. Numbers alone: any user may read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Objection {
    /// A job would be slowed down by more than its limit.
    Slowdown {
        /// Whose limit.
        job: JobId,
        /// Predicted slowdown.
        expected: Fraction,
        /// What it may be with the model's confidence: this counts.
        upper: Fraction,
        /// The limit.
        limit: Fraction,
    },
    /// A job has a limit of slowdown, and what this placement would do cannot be predicted. Journals say "unforeseen".
    #[serde(rename = "unforeseen")]
    Unpredicted {
        /// The job of which too little is known; `None`: the forecast is not there yet.
        job: Option<JobId>,
        /// Whose limit. Journals from before carma kept it do not say.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        limited: Option<JobId>,
    },
    /// The policy puts jobs together by what they are predicted to get done.
    Unprofiled {
        /// The job of which too little is known; `None`: nothing is predicted yet.
        job: Option<JobId>,
    },
    /// The job has a limit of slowdown, and processes that are not ours are there.
    Uncontrolled,
    /// They were together before, and one was evicted.
    Apart {
        /// With which job.
        job: JobId,
    },
    /// A job would be slower than the policy asks for.
    Floor {
        /// Whose progress.
        job: JobId,
        /// What is predicted of it.
        expected: Fraction,
        /// The floor.
        floor: Fraction,
        /// It is higher since a command there was seen at work beside others only.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        unsure: bool,
    },
    /// A job there is measured to keep less than the policy asks for: no other joins meanwhile.
    TooSlow {
        /// Which.
        job: JobId,
        /// What it keeps.
        measured: Fraction,
        /// What it must be measured to keep.
        least: Fraction,
    },
    /// A job had to leave since another was too slow: no other joins before the jobs that are left were measured, for two minutes at most.
    Unmeasured {
        /// The first of which it is not known.
        job: JobId,
    },
    /// A job there would keep less of its speed over its whole run than the policy asks for.
    WholeRun {
        /// Which.
        job: JobId,
        /// What it would keep over its whole run.
        whole: Fraction,
        /// What the policy asks for.
        least: Fraction,
        /// That is more since a command there was seen at work beside others only.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        unsure: bool,
    },
    /// All jobs there together would gain less than the policy asks for.
    Gain {
        /// What is predicted.
        gain: Fraction,
        /// What the policy asks for.
        least: Fraction,
    },
    /// Jobs of the same commands were together before, and one of them was measured below the floor, or all of them did less than one alone.
    Bad,
}

impl Objection {
    /// As that of a refusal.
    pub(super) const fn closeness(self) -> u8 {
        match self {
            Self::Apart { .. } | Self::Uncontrolled | Self::Unprofiled { .. } => 10,
            Self::Slowdown { .. }
            | Self::Unpredicted { .. }
            | Self::Floor { .. }
            | Self::TooSlow { .. }
            | Self::Unmeasured { .. }
            | Self::WholeRun { .. }
            | Self::Gain { .. }
            | Self::Bad => 11,
        }
    }

    /// Whether a user's limit is the cause, and not what the policy asks for.
    pub(super) const fn is_of_a_limit(self) -> bool {
        match self {
            Self::Slowdown { .. } | Self::Unpredicted { .. } | Self::Uncontrolled | Self::Apart { .. } => {
                true
            }
            Self::Unprofiled { .. }
            | Self::Floor { .. }
            | Self::TooSlow { .. }
            | Self::Unmeasured { .. }
            | Self::WholeRun { .. }
            | Self::Gain { .. }
            | Self::Bad => false,
        }
    }
}

/// Of a job of which it is not known what it does alone, after "has not": how that becomes known, too.
const UNSEEN: &str = "been seen alone yet (half a minute of work on a GPU of its own is enough)";

/// A value below a threshold, and the threshold: where both would be printed alike, the value is rounded down.
struct Below(Fraction, Fraction);

impl fmt::Display for Below {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(share, wanted) = self;
        let alike = share < wanted && share.to_string() == wanted.to_string();
        let shown = if alike { Fraction(share.0 / HUNDREDTH * HUNDREDTH) } else { *share };
        write!(f, "{shown}")
    }
}

/// A hundredth in basis points.
const HUNDREDTH: u32 = 100;

/// Why more is asked than usual.
const fn never_alone(unsure: bool) -> &'static str {
    if unsure { " with a command that was never seen alone" } else { "" }
}

impl fmt::Display for Objection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Slowdown { job, expected, upper, limit } => {
                write!(f, "job {job} would go slower by {expected} (up to {upper}); its limit is {limit}")
            }
            Self::Unpredicted { job, limited } => {
                match limited {
                    Some(limited) => write!(f, "job {limited} limits its slowdown or latency, and ")?,
                    None => f.write_str("a job limits its slowdown or latency, and ")?,
                }
                match job {
                    Some(job) if *limited == Some(*job) => write!(f, "has not {UNSEEN}"),
                    Some(job) => write!(f, "job {job} has not {UNSEEN}"),
                    None => f.write_str("what it would keep of its speed together is not predicted"),
                }
            }
            Self::Unprofiled { job: Some(job) } => {
                write!(
                    f,
                    "too little is known of what job {job} does alone, and the policy predicts from that"
                )
            }
            Self::Unprofiled { job: None } => {
                f.write_str("what would get done together is not predicted yet")
            }
            Self::Floor { job, expected, floor, unsure } => {
                let (kept, why) = (Below(*expected, *floor), never_alone(*unsure));
                write!(f, "job {job} would keep {kept} of its speed, and the policy asks for {floor}{why}")
            }
            Self::TooSlow { job, measured, least } => {
                let kept = Below(*measured, *least);
                write!(f, "job {job} keeps {kept} of its speed, measured, and no job joins below {least}")
            }
            Self::Unmeasured { job } => {
                write!(
                    f,
                    "a job had to leave since another was too slow, and what job {job} keeps of its speed since is not measured yet"
                )
            }
            Self::WholeRun { job, whole, least, unsure } => {
                let (kept, why) = (Below(*whole, *least), never_alone(*unsure));
                write!(
                    f,
                    "job {job} would keep {kept} of its speed over its whole run, and the policy asks for {least}{why}"
                )
            }
            Self::Gain { gain, least } => {
                let gained = Below(*gain, *least);
                write!(f, "all there would get {gained} more done together, and the policy asks for {least}")
            }
            Self::Bad => f.write_str(
                "jobs of these commands were together before, and slowed each other down too much",
            ),
            Self::Uncontrolled => f.write_str(
                "the job limits its slowdown or latency, and processes that are not ours are on it",
            ),
            Self::Apart { job } => write!(f, "beside job {job} a limit of slowdown was exceeded before"),
        }
    }
}

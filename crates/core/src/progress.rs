//! How fast jobs go beside each other, predicted and measured, in integers.
//!
//! What slowdown is allowed, and what follows from that, is in [`crate::slowdown`], which is also the public path of these
//! types.

use crate::spec::{GpuId, JobId, SharingMode};
use crate::units::{Fraction, Millis};
use serde::{Deserialize, Serialize};

/// Progress of one job of a group: its speed together over its speed alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Predicted {
    /// The job that this is predicted of.
    pub job: JobId,
    /// What is expected.
    pub expected: Fraction,
    /// What it is not below, with the model's confidence. Limits are compared with this one.
    pub lower: Fraction,
}

/// What is predicted if a job that waits joins those that are on a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outlook {
    /// Who would join.
    pub newcomer: JobId,
    /// The GPU that it would join.
    pub gpu: GpuId,
    /// How it would share.
    pub sharing: SharingMode,
    /// The newcomer and those that are there, by job number; those in `unknown` are missing.
    pub tasks: Vec<Predicted>,
    /// Jobs of which too little is known to predict anything: then `tasks` is empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<JobId>,
    /// Sum of the expected progress of those that are there, without the newcomer.
    pub before: Fraction,
    /// What all of them get done together, as KACE predicts it, for a policy that goes by that: thousandths of the unit
    /// that its model was trained in, comparable between GPUs. A regression may say less than 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub throughput: Option<i64>,
}

impl Outlook {
    /// What the newcomer adds to the sum of progress; nothing if it costs the others more than it gains.
    #[must_use]
    pub fn gain(&self) -> Fraction {
        let after: u32 = self.tasks.iter().map(|t| t.expected.0).fold(0, u32::saturating_add);
        Fraction(after.saturating_sub(self.before.0))
    }

    /// Whether it speaks of the newcomer beside exactly these jobs.
    pub(crate) fn is_of(&self, there: impl Iterator<Item = JobId>, sharing: SharingMode) -> bool {
        let mut group: Vec<JobId> = there.chain([self.newcomer]).collect();
        group.sort_unstable();
        let mut named = self.tasks.iter().map(|task| &task.job).chain(&self.unknown);
        let whole = if self.unknown.is_empty() {
            named.eq(&group)
        } else {
            named.all(|job| group.binary_search(job).is_ok())
        };
        self.sharing == sharing && whole
    }
}

/// Progress of a running job as it was measured, since its neighbours last changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Measured {
    /// When the measurement ended.
    pub at: Millis,
    /// Speed over the speed alone.
    pub progress: Fraction,
    /// How long was measured.
    pub over: Millis,
    /// What was measured beside the same neighbours just before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Fraction>,
}

/// Least progress within a limit: 1 over the slowdown, rounded down.
#[must_use]
pub fn least_progress(max_slowdown: Fraction) -> Fraction {
    let one = u64::from(Fraction::ONE.0);
    let least = (one * one).checked_div(u64::from(max_slowdown.0)).unwrap_or(one);
    Fraction(u32::try_from(least.min(one)).unwrap_or(Fraction::ONE.0))
}

/// The slowdown that stands for a progress. No progress is a slowdown without end, shown as 10,000.
#[must_use]
pub fn slowdown(progress: Fraction) -> Fraction {
    let one = u64::from(Fraction::ONE.0);
    let slowdown = (one * one).checked_div(u64::from(progress.0)).unwrap_or(u64::MAX);
    Fraction(u32::try_from(slowdown.min(one * one)).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slowdown_and_progress_are_each_others_inverse() {
        assert_eq!(least_progress(Fraction(13_000)), Fraction(7692));
        assert_eq!(slowdown(Fraction(5_000)), Fraction(20_000));
        assert_eq!(least_progress(Fraction(0)), Fraction::ONE);
        // A limit of less than 1 asks for all of the speed, and no more.
        assert_eq!(least_progress(Fraction(5_000)), Fraction::ONE);
        assert_eq!(slowdown(Fraction(0)), Fraction(100_000_000));
    }
}

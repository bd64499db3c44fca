//! A running job that is taken off its GPUs for a while, its memory in the host's.

use super::EndCause;
use crate::ledger::Tenant;
use crate::spec::{GpuId, JobId};
use crate::units::{MiB, Millis, is_zero};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Where a job is on its way off its GPUs and back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SuspendStep {
    /// It is to be suspended. It runs.
    Asked,
    /// It is being suspended, and has its GPUs as before.
    Suspending,
    /// It is suspended, and has no GPU.
    Suspended,
    /// It is being put back on GPUs that it has again.
    Resuming,
}

/// The wish that a suspended job goes on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wanted {
    /// Name of the user who asked for it.
    pub by: Arc<str>,
    /// Since when.
    pub at: Millis,
    /// The GPU that it is to move to, if it has room; `None`: where it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<GpuId>,
}

/// A suspension under way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Suspension {
    /// Name of the user who asked for it; of one that the policy takes off, carma.
    pub by: Arc<str>,
    /// Why the policy took it off; `None`: a user asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<Box<EndCause>>,
    /// It could not be put back on another GPU than its own, so that this is not tried again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub bound: bool,
    /// How far it is.
    pub step: SuspendStep,
    /// When it had left its GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub off: Option<Millis>,
    /// Memory of the host that it takes.
    #[serde(default, skip_serializing_if = "MiB::is_zero")]
    pub host: MiB,
    /// Its GPUs when it was suspended: there its processes come from when they are put back.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub home: Vec<GpuId>,
    /// What it was on each of them; while it leaves, what it was before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kept: Vec<Tenant>,
    /// Set when it is to go on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wanted: Option<Wanted>,
    /// How often in a row it could not be put back.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub failures: u32,
    /// Not to be tried again before this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_before: Option<Millis>,
}

impl Suspension {
    /// One that was just asked for.
    #[must_use]
    pub const fn new(by: Arc<str>) -> Self {
        Self {
            by,
            cause: None,
            bound: false,
            step: SuspendStep::Asked,
            off: None,
            host: MiB::ZERO,
            home: Vec::new(),
            kept: Vec::new(),
            wanted: None,
            failures: 0,
            not_before: None,
        }
    }

    /// The job for which the policy took it off, if it was for one that waits.
    #[must_use]
    pub fn makes_room_for(&self) -> Option<JobId> {
        self.cause.as_ref()?.makes_room_for()
    }

    /// Whether it is for the job's own sake, which moves to an idle GPU.
    pub(crate) fn is_spread(&self) -> bool {
        matches!(self.cause.as_deref(), Some(EndCause::Spread { .. }))
    }

    /// Whether the job has no GPU.
    #[must_use]
    pub fn is_off(&self) -> bool {
        self.step == SuspendStep::Suspended
    }
}

/// How a job came to a GPU that it was not placed on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Move {
    /// Name of the user who asked for it; carma, where its own GPU had no room.
    pub by: Arc<str>,
    /// Index of the GPU that it left last.
    pub from: u32,
    /// A user wanted it to move there, or away from where it was: the policy leaves it where it is.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ordered: bool,
}

/// A time that a running job was off its GPUs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Absence {
    /// When it had left them.
    pub from: Millis,
    /// When it ran again; of one that goes on, the time up to which it is told.
    pub until: Millis,
    /// The GPUs that it left.
    pub left: Vec<GpuId>,
}

/// Absences of an attempt that are kept one by one.
const MOST_ABSENCES: usize = 64;

/// How a running job was and is suspended.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Halt {
    /// The suspension under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub now: Option<Box<Suspension>>,
    /// For how long it was suspended before.
    #[serde(default, skip_serializing_if = "Millis::is_zero")]
    pub before: Millis,
    /// When that was, by time. Journals from before carma kept it do not say.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub absences: Vec<Absence>,
    /// How often the policy took it off.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub times: u32,
    /// Jobs that it is not put beside again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub apart: Vec<JobId>,
    /// Its last move.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moved: Option<Move>,
    /// Why it could not be suspended or put back when that was last tried, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

impl Halt {
    /// Whether it never was.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// For how long it has been suspended until a time, in all.
    #[must_use]
    pub fn until(&self, now: Millis) -> Millis {
        let off = self.now.as_ref().and_then(|suspension| suspension.off);
        self.before + off.map_or(Millis::ZERO, |off| now.since(off))
    }

    /// When it was off its GPUs until a time, by time: also that which goes on.
    #[must_use]
    pub fn absences_until(&self, now: Millis) -> Vec<Absence> {
        let mut absences = self.absences.clone();
        if let Some(suspension) = &self.now
            && let Some(from) = suspension.off
        {
            absences.push(Absence { from, until: now.max(from), left: suspension.home.clone() });
        }
        absences
    }

    /// It runs again.
    pub(crate) fn comes_back(&mut self, now: Millis) {
        self.before = self.until(now);
        self.absences = self.absences_until(now);
        self.now = None;
        // The state must not grow with what users do. The oldest two become one that is as long as both.
        if self.absences.len() > MOST_ABSENCES {
            let oldest = self.absences.remove(0);
            let next = &mut self.absences[0];
            next.from = Millis(next.from.0.saturating_sub(oldest.until.since(oldest.from).0));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_off_the_gpu_are_kept_and_do_not_become_ever_more() {
        let mut halt = Halt::default();
        for round in 0..100_u32 {
            let at = Millis::secs(u64::from(round) * 10);
            let off = Suspension { off: Some(at), home: vec![GpuId(round)], ..Suspension::new("a".into()) };
            halt.now = Some(Box::new(off));
            let off_for = |until: Millis| {
                halt.absences_until(until).iter().map(|a| a.until.since(a.from).0).sum::<u64>()
            };
            assert_eq!(off_for(at + Millis(500)), halt.until(at + Millis(500)).0);
            halt.comes_back(at + Millis::secs(2));
            assert_eq!(halt.until(Millis::secs(9999)), Millis::secs(u64::from(round + 1) * 2));
            assert!(halt.absences.windows(2).all(|pair| pair[0].until <= pair[1].from), "{halt:?}");
        }
        assert_eq!(halt.absences.len(), MOST_ABSENCES);
        let last = halt.absences.last().unwrap();
        assert_eq!(
            (last.from, last.until, &last.left[..]),
            (Millis::secs(990), Millis::secs(992), &[GpuId(99)][..])
        );
    }
}

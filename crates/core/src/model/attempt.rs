//! One attempt of a job: where it runs, why it is being ended, and what is kept of it.

use super::exit::Exit;
use super::suspension::Absence;
use crate::explain::{Aside, Eviction, Filling, Reason};
use crate::ledger::{Alone, SeenMemory};
use crate::spec::{GpuId, JobId, SharingMode};
use crate::units::{Fraction, MiB, Millis, is_zero};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// A process, identified so that a reused pid is not mistaken for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessRef {
    /// Process id.
    pub pid: u32,
    /// Start time in clock ticks since boot (`/proc/PID/stat`, field 22).
    pub start_ticks: u64,
}

/// Where and how an attempt of a job runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// Number of the attempt, from 1.
    pub attempt: u32,
    /// Its GPUs.
    pub gpus: Vec<GpuId>,
    /// How they are shared.
    pub sharing: SharingMode,
    /// Hard limit of GPU memory for each process on each GPU.
    pub cap: Option<MiB>,
    /// What is reserved on each GPU of a job of whose memory nothing is known; `None`: what its forecast says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<MiB>,
    /// The floor of progress with which it joined others, where that is below the policy's ([`crate::policy::Progress::after_waiting`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub floor: Option<Fraction>,
    /// Share of the SMs' threads under MPS, percent.
    pub thread_percent: Option<u8>,
    /// When it was decided.
    pub at: Millis,
    /// Why there.
    pub reason: Reason,
}

/// Why a running job is being ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndCause {
    /// Its owner or the administrator cancelled it.
    Cancelled {
        /// Name of the user who asked for it.
        by: Arc<str>,
    },
    /// It ran longer than its time limit.
    TimeLimit(Millis),
    /// Its owner or the administrator wants it back in the queue.
    Requeued {
        /// Name of the user who asked for it.
        by: Arc<str>,
    },
    /// It slows a neighbour down by more than that one's limit, so that it is evicted. Journals say "undone".
    #[serde(rename = "undone")]
    Evicted(Eviction),
    /// A GPU of it is about to run full, and of the jobs that grow there it came last.
    GrowthGuard(Filling),
    /// It makes room for a job that waits: one on several GPUs that is overdue, or an operator's urgent one.
    Room {
        /// The job that waits.
        job: JobId,
    },
    /// It moves to an idle GPU that no waiting job can use. It is suspended for that, and never ended.
    Spread {
        /// The GPU.
        to: GpuId,
    },
    /// It was suspended or put back only in part, so that it can neither run nor wait.
    Stuck {
        /// What went wrong, in words.
        why: String,
    },
}

impl EndCause {
    /// Whether a job that is ended for it goes back into the queue.
    #[must_use]
    pub const fn requeues(&self) -> bool {
        matches!(
            self,
            Self::Requeued { .. }
                | Self::Evicted(_)
                | Self::GrowthGuard(_)
                | Self::Room { .. }
                | Self::Spread { .. }
                | Self::Stuck { .. }
        )
    }

    /// Whether a job that is ended for it is given the time to save its work: where that is of use to it, and the GPU is
    /// not full before.
    #[must_use]
    pub const fn saves(&self) -> bool {
        matches!(self, Self::Requeued { .. } | Self::Evicted(_) | Self::Room { .. })
    }

    /// What is said of an attempt that is or was ended for it. What a job gets next after the growth guard is known when it has ended.
    #[must_use]
    pub fn reason(&self) -> Reason {
        match self.clone() {
            Self::Cancelled { by } => Reason::Cancelled { by },
            Self::TimeLimit(limit) => Reason::TimeLimit { limit },
            Self::Requeued { by } => Reason::RequeuedByUser { by },
            Self::Evicted(eviction) => Reason::Evicted(eviction),
            Self::GrowthGuard(filling) => Reason::GrowthGuard { filling, next: None },
            Self::Room { job } => Reason::MadeRoom { job },
            Self::Spread { .. } => Reason::SetAside { cause: Aside::Spread, waits: None },
            Self::Stuck { why } => Reason::Stuck { why },
        }
    }

    /// The job that room is made for.
    #[must_use]
    pub const fn makes_room_for(&self) -> Option<JobId> {
        match self {
            Self::Room { job } => Some(*job),
            _ => None,
        }
    }
}

/// How hard a job is asked to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndLevel {
    /// To save its work and end by itself: the signal that its user has named, to those of its processes that catch it.
    Checkpoint,
    /// Politely: leave MPS, then SIGTERM.
    Terminate,
    /// SIGKILL to everything of the job.
    Kill,
    /// The same, and the end of its supervisor, which did not answer: stopped, or stuck in a file system that hangs.
    Abandon,
}

/// A job on its way out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ending {
    /// Why it is to end.
    pub cause: EndCause,
    /// The last signal decided, and when; `None` right after the request.
    pub sent: Option<(EndLevel, Millis)>,
    /// It could not be asked to save its work, so that it is not waited for.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cannot_save: bool,
}

/// One finished attempt, kept with the job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// Where and how it ran.
    pub placement: Placement,
    /// When it started, if it did.
    pub started: Option<Millis>,
    /// When it ended.
    pub ended: Millis,
    /// How it ended; `None` when it never started.
    pub exit: Option<Exit>,
    /// What was reserved on each GPU when it ended, where that was an amount. Journals from before carma kept it do not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved: Option<MiB>,
    /// Largest memory seen on one GPU.
    pub peak: Option<MiB>,
    /// What it did to its GPUs while it had them for itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alone: Option<Alone>,
    /// How its memory was seen to grow; `None`: it was not seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seen: Option<SeenMemory>,
    /// What it had of its GPUs. Journals of carma 0.2 do not say it.
    #[serde(default, skip_serializing_if = "Had::is_none")]
    pub had: Had,
    /// For how long it was suspended.
    #[serde(default, skip_serializing_if = "Millis::is_zero")]
    pub suspended: Millis,
    /// When that was, by time. Journals from before carma kept it do not say.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub absences: Vec<Absence>,
    /// Jobs that it is not put beside again, since it was suspended for their limits or its own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub apart: Vec<JobId>,
    /// What was concluded.
    pub verdict: Reason,
}

/// What an attempt had of its GPUs, added up over them: an hour on two GPUs is two hours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Had {
    /// Time on GPUs, shared or not.
    pub held: Millis,
    /// Progress, in basis points of a millisecond alone on a GPU.
    progress: u64,
    /// Progress that neighbours cost it, in the same unit, where that was measured or predicted. Journals from before carma kept it do
    /// not say.
    #[serde(default, skip_serializing_if = "is_zero")]
    lost: u64,
    /// Of the time, that beside others in which its speed was not measured, so that its progress is what was predicted, else 1 over the
    /// number of jobs there. Journals from before carma kept it do not say.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unmeasured: Millis,
    /// Of the time, that without others on the GPU. Journals from before carma kept it do not say.
    #[serde(default, skip_serializing_if = "is_zero")]
    solo: Millis,
    /// Energy by share, millijoules, as far as counters were read.
    pub energy_mj: u64,
    /// Of the time, that of which the energy is not known.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unmetered: Millis,
    /// The part of its progress that was start-up, on GPUs whose idle power is known.
    #[serde(default, skip_serializing_if = "is_zero")]
    starting: Millis,
    /// Energy of these GPUs over that time at their idle power, millijoules.
    #[serde(default, skip_serializing_if = "is_zero")]
    starting_mj: u64,
}

impl Had {
    fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// It had a GPU for a span, at this speed over its speed alone. `known`: that was measured or predicted.
    pub(crate) fn charge(&mut self, span: Millis, pace: Fraction, known: bool) {
        self.held = self.held + span;
        self.progress = self.progress.saturating_add(span.0.saturating_mul(u64::from(pace.0)));
        if known {
            let cost = u64::from(Fraction::ONE.0.saturating_sub(pace.0));
            self.lost = self.lost.saturating_add(span.0.saturating_mul(cost));
        }
    }

    /// Of a span that was charged, this part was beside others without a measured speed.
    pub(crate) fn was_unmeasured(&mut self, span: Millis) {
        self.unmeasured = self.unmeasured + span;
    }

    /// In a span that was charged there were no others on the GPU.
    pub(crate) fn was_alone(&mut self, span: Millis) {
        self.solo = self.solo + span;
    }

    /// Of a span that was charged, this part was start-up. `floor_mw`: the GPU's idle power, milliwatts.
    pub(crate) fn starts(&mut self, span: Millis, floor_mw: u64) {
        self.starting = self.starting + span;
        self.starting_mj = self.starting_mj.saturating_add(span.0.saturating_mul(floor_mw) / 1000);
    }

    /// So much time alone on a GPU would have brought as much: as measured, else as predicted, else 1 over the number of jobs.
    #[must_use]
    pub const fn progress(&self) -> Millis {
        Millis(self.progress / Fraction::ONE.0 as u64)
    }

    /// Time that neighbours cost an attempt that had so many GPUs, as measured, else as predicted; none where neither is known.
    #[must_use]
    pub const fn lost(&self, gpus: usize) -> Millis {
        let all = self.lost / Fraction::ONE.0 as u64;
        Millis(if gpus == 0 { all } else { all / gpus as u64 })
    }

    /// Energy, millijoules. `None`: no counter was read over any of the time.
    #[must_use]
    pub fn energy_mj(&self) -> Option<u64> {
        (self.energy_mj > 0 || self.unmetered < self.held).then_some(self.energy_mj)
    }

    /// Energy that the same progress would have taken alone, millijoules. `power_mw`: power of a GPU while the job works alone on it,
    /// milliwatts; start-up counts at idle power. One that was alone all the time took what it takes alone.
    #[must_use]
    pub fn alone_mj(&self, power_mw: u32) -> u64 {
        if self.solo == self.held && self.unmetered == Millis::ZERO {
            return self.energy_mj;
        }
        let works = self.progress().since(self.starting);
        let mj = u128::from(works.0) * u128::from(power_mw) / 1000;
        u64::try_from(mj).unwrap_or(u64::MAX).saturating_add(self.starting_mj)
    }

    /// Both together.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self {
            held: self.held + other.held,
            progress: self.progress.saturating_add(other.progress),
            lost: self.lost.saturating_add(other.lost),
            unmeasured: self.unmeasured + other.unmeasured,
            solo: self.solo + other.solo,
            energy_mj: self.energy_mj.saturating_add(other.energy_mj),
            unmetered: self.unmetered + other.unmetered,
            starting: self.starting + other.starting,
            starting_mj: self.starting_mj.saturating_add(other.starting_mj),
        }
    }
}

impl Attempt {
    /// Whether its command really began to run.
    #[must_use]
    pub fn began(&self) -> bool {
        match &self.exit {
            Some(exit) => exit.not_started.is_none(),
            None => self.started.is_some(),
        }
    }
}

//! A job from its acceptance to its end.

use super::attempt::{Attempt, Ending, Placement, ProcessRef};
use super::exit::{Exit, ExitStatus, UserGone};
use super::suspension::{Halt, SuspendStep, Suspension};
use crate::explain::Reason;
use crate::policy::Line;
use crate::progress::{Class, Counted, Kept, Measured};
use crate::recovery::{Blame, Floor};
use crate::spec::{JobId, NewJob, RunTime};
use crate::units::{Fraction, MiB, Millis};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// Where a live job is on its way. Data of a phase exists only in that phase.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Waits for GPUs.
    Pending,
    /// Waits to be released.
    Held {
        /// Who holds it.
        by: Arc<str>,
        /// The holder is an operator or root, so that the job's user may not release it.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        operator: bool,
        /// Set where carma holds it, since its user is no more.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        gone: Option<UserGone>,
    },
    /// It was decided to start it; whether its supervisor runs is not known yet.
    Launching {
        /// Its GPUs, and how it shares them.
        placement: Placement,
        /// Set if it is to end as soon as it has started.
        ending: Option<Ending>,
    },
    /// It runs.
    Running {
        /// Its GPUs, and how it shares them.
        placement: Placement,
        /// When it started.
        started: Millis,
        /// The supervisor.
        supervisor: ProcessRef,
        /// The job's first process, once known.
        child: Option<ProcessRef>,
        /// Set while it is being ended.
        ending: Option<Ending>,
        /// How it was and is suspended.
        #[serde(default, skip_serializing_if = "Halt::is_none")]
        halt: Halt,
    },
    /// It died of a fault that may have been a neighbour's, and waits for the verdict.
    Judging {
        /// Where it ran.
        placement: Placement,
        /// How it ended.
        exit: Exit,
        /// When the fault was seen.
        at: Millis,
    },
}

/// State as a user sees it; Slurm's words with Slurm's meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum JobState {
    /// It waits in the queue.
    Pending,
    /// Its command runs, or is being started.
    Running,
    /// Its command was taken off its GPUs and stands still.
    Suspended,
    /// Ended with exit code 0.
    Completed,
    /// Ended otherwise.
    Failed,
    /// Cancelled by its owner or the administrator.
    Cancelled,
    /// Ended at its time limit.
    Timeout,
    /// Ran out of GPU memory and could not be recovered.
    OutOfMemory,
}

impl JobState {
    /// Slurm's word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "PENDING",
            Self::Running => "RUNNING",
            Self::Suspended => "SUSPENDED",
            Self::Completed => "COMPLETED",
            Self::Failed => "FAILED",
            Self::Cancelled => "CANCELLED",
            Self::Timeout => "TIMEOUT",
            Self::OutOfMemory => "OUT_OF_MEMORY",
        }
    }
}

impl fmt::Display for JobState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A neighbour was taken off a GPU, since it slowed a job down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Relief {
    /// The neighbour.
    pub evicted: JobId,
    /// It was suspended, and did not lose its work.
    pub suspended: bool,
    /// When that was decided.
    pub at: Millis,
    /// By how much the job was slowed down: its speed alone over its speed.
    pub slowdown: Fraction,
    /// The limit that this is beyond, by the same measure.
    pub limit: Fraction,
    /// Such evictions in the job's present attempt, this one included.
    pub times: u32,
}

/// A live job: accepted and not over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// What was submitted.
    pub spec: NewJob,
    /// When it was accepted.
    pub submitted: Millis,
    /// When it last entered the queue (acceptance, release or a retry).
    pub queued: Millis,
    /// Where it is.
    pub phase: Phase,
    /// Number of attempts decided so far.
    pub attempts: u32,
    /// Retries charged to the job (its own out-of-memory).
    pub charged_retries: u32,
    /// Times it was put back without charge (a neighbour's fault).
    pub free_retries: u32,
    /// Raised by out-of-memory: what the next attempt needs. `Some` means the recovery queue.
    pub floor: Option<Floor>,
    /// Not to be started before this time (pause after a failed launch).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_before: Option<Millis>,
    /// By when it would have started without sharing, all in the order of submission, each for as long as it was
    /// expected to run: the bound on its start where the policy lets shorter ones overtake. `None`: there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due: Option<Millis>,
    /// Its progress beside its present neighbours, once measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<Measured>,
    /// The latest eviction of a neighbour that slowed it down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub relief: Option<Relief>,
    /// How its limit of slowdown was kept, in all attempts; `None`: it has none, or no window was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<Kept>,
    /// How far its attempt is by its own count, where it tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counted: Option<Counted>,
    /// Attempts that are over.
    pub past: Vec<Attempt>,
}

impl Job {
    /// State as a user sees it.
    #[must_use]
    pub fn state(&self) -> JobState {
        match self.phase {
            Phase::Pending | Phase::Held { .. } | Phase::Judging { .. } | Phase::Launching { .. } => {
                JobState::Pending
            }
            Phase::Running { .. } => match self.suspension().map(|suspension| suspension.step) {
                Some(SuspendStep::Suspended | SuspendStep::Resuming) => JobState::Suspended,
                Some(SuspendStep::Asked | SuspendStep::Suspending) | None => JobState::Running,
            },
        }
    }

    /// Its limit of slowdown: its own or the one for all, `of_all`; and where it says how long requests may take, no more than keeps
    /// their 99th percentile below that. What that is alone has to be known for it: before, nothing may slow the job down.
    #[must_use]
    pub fn limit(&self, of_all: Option<Fraction>) -> Option<Fraction> {
        let said = self.spec.request.max_slowdown.or(of_all);
        let of_latency = self.spec.request.latency_us.map(|most| match self.spec.profile.latency_us {
            // Rounded so that it is never looser.
            Some(alone) => {
                let factor = u64::from(most) * u64::from(Fraction::ONE.0) / u64::from(alone.max(1));
                Fraction(u32::try_from(factor).unwrap_or(u32::MAX)).max(Fraction::ONE)
            }
            None => Fraction::ONE,
        });
        match (said, of_latency) {
            (Some(said), Some(of_latency)) => Some(said.min(of_latency)),
            (said, of_latency) => said.or(of_latency),
        }
    }

    /// The suspension under way.
    #[must_use]
    pub fn suspension(&self) -> Option<&Suspension> {
        match &self.phase {
            Phase::Running { halt, .. } => halt.now.as_deref(),
            _ => None,
        }
    }

    /// How it was and is suspended, if it runs.
    #[must_use]
    pub const fn halt(&self) -> Option<&Halt> {
        match &self.phase {
            Phase::Running { halt, .. } => Some(halt),
            _ => None,
        }
    }

    /// Whether it is suspended, and so has no GPU.
    #[must_use]
    pub fn is_off(&self) -> bool {
        self.suspension().is_some_and(Suspension::is_off)
    }

    /// How it is being ended, or is to end as soon as it has started.
    #[must_use]
    pub const fn ending(&self) -> Option<&Ending> {
        match &self.phase {
            Phase::Launching { ending, .. } | Phase::Running { ending, .. } => ending.as_ref(),
            Phase::Pending | Phase::Held { .. } | Phase::Judging { .. } => None,
        }
    }

    /// Where it runs or is about to run; of one that is suspended, where it ran.
    #[must_use]
    pub const fn placement(&self) -> Option<&Placement> {
        match &self.phase {
            Phase::Launching { placement, .. } | Phase::Running { placement, .. } => Some(placement),
            _ => None,
        }
    }

    /// Earlier attempts whose command really began to run.
    #[must_use]
    pub fn restarts(&self) -> usize {
        self.past.iter().filter(|attempt| attempt.began()).count()
    }

    /// What runs such as its own say of how long it takes, where an attempt that was cut off ran for longer. One that saves its work goes on
    /// where that had come to.
    #[must_use]
    pub fn takes_beyond_its_attempts(&self, run_time: RunTime) -> RunTime {
        if self.spec.request.save_grace.is_some() {
            return run_time;
        }
        let gpus = u64::from(self.spec.request.gpus.max(1));
        let ran = self.past.iter().map(|attempt| attempt.had.progress().0 / gpus / 1000).max();
        run_time.beyond(ran.unwrap_or_default())
    }

    /// Launches in a row, up to now, of which nothing came.
    #[must_use]
    pub fn not_launched_in_a_row(&self) -> usize {
        let rows = self.past.iter().rev();
        rows.take_while(|attempt| matches!(attempt.verdict, Reason::NotLaunched { .. })).count()
    }

    /// How long its attempt takes alone in all, by its own count.
    #[must_use]
    pub fn counted_run(&self) -> Option<Millis> {
        self.counted?.run
    }

    /// Its class, as far as predictions go.
    #[must_use]
    pub fn class(&self) -> Class {
        let threads =
            self.placement().map_or(self.spec.request.thread_percent, |placed| placed.thread_percent);
        let asked = threads.is_some() && threads == self.spec.request.thread_percent;
        Class { command: self.spec.command_key, threads, asked }
    }

    /// Memory that a GPU must have at least to be worth another attempt, by what is known from earlier
    /// ones: the most that was seen, and more than a GPU that it had alone and filled. What was seen on one of several GPUs says
    /// nothing of the others: a job may hold more on the first one or on a large one.
    pub(crate) fn least_capacity(&self) -> MiB {
        let least = |attempt: &Attempt| match &attempt.verdict {
            Reason::OutOfMemoryRetry { blame: Blame::WholeGpu { capacity }, .. } => Some(*capacity + MiB(1)),
            _ => attempt.peak.filter(|_| attempt.placement.gpus.len() == 1),
        };
        self.past.iter().filter_map(least).max().unwrap_or_default()
    }

    /// Whether it goes before all others: an operator has said so, since users give no priority above 0.
    #[must_use]
    pub const fn is_urgent(&self) -> bool {
        self.spec.request.priority > 0
    }

    /// GPU-seconds that it is expected to take alone.
    fn gpu_seconds(&self) -> u64 {
        self.spec.run_s().saturating_mul(u64::from(self.spec.request.gpus))
    }

    /// Key of the queue: recovery first, then higher priority, then as the policy says, then the order of submission.
    #[must_use]
    pub fn queue_key(&self, line: Line) -> QueueKey {
        QueueKey {
            recovery: std::cmp::Reverse(self.floor.is_some() || self.free_retries > 0),
            priority: std::cmp::Reverse(self.spec.request.priority),
            length: match line {
                Line::Arrival => 0,
                Line::Shortest => self.gpu_seconds(),
                Line::Longest => INVERSE / self.gpu_seconds().max(1),
            },
            id: self.spec.id,
            due: self.due.filter(|_| line.is_by_length()).unwrap_or(Millis(u64::MAX)),
        }
    }
}

/// What the length is divided by where the longest goes first.
const INVERSE: u64 = 1 << 60;

/// Order of the pending jobs. Recovered jobs form their own queue, looked at first, which never
/// blocks the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct QueueKey {
    /// Whether it waits in the recovery queue.
    pub recovery: std::cmp::Reverse<bool>,
    /// Priority, higher first.
    pub priority: std::cmp::Reverse<i32>,
    /// GPU-seconds that it is expected to take, where the shortest goes first; 2^60 by that, where the longest does; else 0.
    /// Either way a user's weight is a factor of it.
    pub length: u64,
    /// Submission order.
    pub id: JobId,
    /// The bound on its start, on its user's clock, where the policy goes by one; else the end of time. Orders nothing: no two keys
    /// are alike before it.
    pub due: Millis,
}

impl QueueKey {
    /// The same as [`Job::is_urgent`].
    #[must_use]
    pub const fn is_urgent(&self) -> bool {
        self.priority.0 > 0
    }
}

/// A job that is over, as it leaves the state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finished {
    /// The job, all attempts in `past`.
    pub job: Job,
    /// Its end.
    pub state: JobState,
    /// Why, with the numbers behind it.
    pub reason: Reason,
    /// How the last attempt ended; `None` when none ran.
    pub exit: Option<ExitStatus>,
    /// Time of it, on the journal's clock.
    pub at: Millis,
}

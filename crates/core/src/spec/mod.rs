//! What a job is before carma has done anything with it: its number, its user, what is asked and what is known of it.
//!
//! Nothing here changes once a job is accepted, but for what earlier runs tell: forecasts of memory and run time, and the
//! profile. What becomes of a job is in
//! [`crate::model`], which is also the public path of these types.

mod forecasts;
mod run_time;

pub use forecasts::{Basis, Computed, Estimates, Estimator, Forecasts};
pub use run_time::{RunTime, RunsOf};

use crate::units::{Fraction, Millis};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// Number of a job, given at acceptance, never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct JobId(pub u64);

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Position of a GPU in the state. The UUID is the identity outside; this is the handle inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct GpuId(pub u32);

/// Who submitted or asked for something.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    /// Numeric user id, from the kernel, never self-declared.
    pub uid: u32,
    /// Login name, for people.
    pub name: Arc<str>,
    /// May do what root may: a member of the operators' group when it was asked. Part of the input, so that a replay
    /// needs no user database.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub operator: bool,
}

/// No login name: it has spaces.
const REPAIR: &str = "carma journal repair";

impl User {
    /// A user without any authority over others.
    #[must_use]
    pub fn new(uid: u32, name: impl Into<Arc<str>>) -> Self {
        Self { uid, name: name.into(), operator: false }
    }

    /// The user in whose name `carma journal repair` acts: root. It holds jobs that may have run already; their owners, who know, may release them.
    #[must_use]
    pub fn repair() -> Self {
        Self::new(0, REPAIR)
    }

    /// Whether this is the user that [`Self::repair`] makes.
    pub(crate) fn is_repair(&self) -> bool {
        self.uid == 0 && &*self.name == REPAIR
    }

    /// Whether this is the same person: a number that its user has left is given to the next one. Root is root under any name.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        self.uid == other.uid && (self.uid == 0 || self.name == other.name)
    }
}

/// How processes share a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SharingMode {
    /// One job holds the GPU alone.
    Exclusive,
    /// The driver's default: kernels of different processes take turns.
    TimeSlice,
    /// NVIDIA's Multi-Process Service: kernels of different processes run at once.
    Mps,
}

impl fmt::Display for SharingMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Exclusive => "exclusive",
            Self::TimeSlice => "time-slice",
            Self::Mps => "mps",
        })
    }
}

/// What a job asks for. Memory is per GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Number of GPUs, at least one; all are given at once.
    pub gpus: u32,
    /// The user wants the GPUs alone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub exclusive: bool,
    /// Sharing mode that the user wants; `None`: the policy's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sharing: Option<SharingMode>,
    /// Share of the SMs' threads under MPS, percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread_percent: Option<u8>,
    /// Longest run time, per attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_limit: Option<Millis>,
    /// Higher goes first.
    #[serde(default)]
    pub priority: i32,
    /// How often an out-of-memory may be retried; `None`: the configured number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_retries: Option<u32>,
    /// How much neighbours may slow it down: its speed alone over its speed beside them, at most. `None`: the
    /// configured number, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_slowdown: Option<Fraction>,
    /// What the 99th percentile of its requests' latency must not exceed while others share its GPUs, microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_us: Option<u32>,
    /// How long it may take to save its work once it is asked to, before it goes back into the queue. `None`: it is not
    /// asked. By which signal is the daemon's to know: no decision depends on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub save_grace: Option<Millis>,
}

impl Request {
    /// Whether its user wants it alone on its GPUs.
    pub(crate) fn is_alone(&self) -> bool {
        self.exclusive || self.sharing == Some(SharingMode::Exclusive)
    }

    /// So many GPUs, and nothing else.
    #[must_use]
    pub const fn of(gpus: u32) -> Self {
        Self {
            gpus,
            exclusive: false,
            sharing: None,
            thread_percent: None,
            time_limit: None,
            priority: 0,
            max_retries: None,
            max_slowdown: None,
            latency_us: None,
            save_grace: None,
        }
    }

    /// Whether it says how much neighbours may cost it.
    #[must_use]
    pub const fn is_limited(&self) -> bool {
        self.max_slowdown.is_some() || self.latency_us.is_some()
    }
}

/// What is known beforehand of a job's activity when it has its GPUs alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct Profile {
    /// Share of time with a kernel resident ("GPU utilisation").
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_util: Option<Fraction>,
    /// SM activity alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub smact: Option<Fraction>,
    /// Power that a GPU draws under it, milliwatts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_mw: Option<u32>,
    /// Lucid's sharing score: 0 tiny, 1 medium, 2 jumbo.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub score: Option<u8>,
    /// The 99th percentile of its requests' latency, microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_us: Option<u32>,
}

impl Profile {
    fn is_unknown(&self) -> bool {
        *self == Self::default()
    }
}

/// What the core must know of a job to accept it. The command line, directory and environment stay
/// with the daemon: no decision depends on them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewJob {
    /// Its number.
    pub id: JobId,
    /// Who submitted it.
    pub user: User,
    /// Short name for listings.
    pub name: Arc<str>,
    /// Hash of the command: jobs with the same key run the same program with the same arguments.
    pub command_key: u64,
    /// Hash of what runs, whatever its arguments: jobs with the same key are of one user and one script or program. `None`: not
    /// known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program_key: Option<u64>,
    /// What it asks for.
    pub request: Request,
    /// What is known of its memory.
    pub forecasts: Forecasts,
    /// What is known of its activity.
    #[serde(default, skip_serializing_if = "Profile::is_unknown")]
    pub profile: Profile,
    /// How long it is expected to run; `None`: nothing is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_time: Option<RunTime>,
    /// Accepted, but not to be started before it is released.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hold: bool,
}

/// What a job of which nothing is known is taken to run, seconds.
const USUAL_RUN_S: u64 = 3600;

/// What it is taken to run at most where that is asked. What was tried: docs/research/tried.md.
pub(crate) const MOST_UNKNOWN_S: u64 = 4 * USUAL_RUN_S;

/// What it is taken to run where it waits for others that keep it off: most jobs are shorter than an hour.
pub(crate) const BRIEF_UNKNOWN_S: u64 = USUAL_RUN_S / 4;

impl NewJob {
    /// Whether anything is known of how long it runs.
    pub(crate) const fn is_run_known(&self) -> bool {
        self.run_time.is_some() || self.request.time_limit.is_some()
    }

    /// What is known of its run time that its place in the queue goes by: what earlier runs say, but where that is a guess from what other
    /// programs took and its user gives a time limit.
    #[must_use]
    pub fn told_run(&self) -> Option<&RunTime> {
        self.run_time.as_ref().filter(|run| self.request.time_limit.is_none() || !run.is_of_others())
    }

    /// How long it is taken to run alone, seconds, at least one: what earlier runs say, else its time limit, else an hour.
    #[must_use]
    pub fn run_s(&self) -> u64 {
        self.taken_to_run(self.told_run())
    }

    /// The same where a GPU is lent that is kept for another job.
    pub(crate) fn known_run_s(&self) -> u64 {
        self.taken_to_run(self.known_run())
    }

    fn taken_to_run(&self, told: Option<&RunTime>) -> u64 {
        told.map(|run| run.median_s).or(self.limit_s()).unwrap_or(USUAL_RUN_S).max(1)
    }

    fn limit_s(&self) -> Option<u64> {
        self.request.time_limit.map(|limit| limit.0 / 1000)
    }

    fn known_run(&self) -> Option<&RunTime> {
        self.run_time.as_ref().filter(|run| !run.is_of_others())
    }

    /// How long it runs alone at most, seconds: by its time limit, and in nine of ten cases by earlier runs. `None`: nothing is known.
    pub(crate) fn most_run_s(&self) -> Option<u64> {
        [self.limit_s(), self.run_time.map(|run| run.high_s)].into_iter().flatten().min()
    }

    /// The same where a GPU is lent that is kept for another job. What a few other programs took is nothing: that one would wait for hours
    /// for a job of "a second".
    pub(crate) fn most_lent_run_s(&self) -> Option<u64> {
        [self.limit_s(), self.known_run().map(|run| run.high_s)].into_iter().flatten().min()
    }

    /// What many jobs such as this one take in the mean, seconds, at least one: the sum of many run times goes by that.
    pub(crate) fn mean_run_s(&self) -> u64 {
        self.told_run().map_or(self.run_s(), RunTime::mean_s).max(1)
    }
}

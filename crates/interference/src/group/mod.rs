//! Groups of tasks that share a GPU, and what can be predicted of them: the words of question and answer, which the
//! learner and the policies have in common and neither owns.

mod gpu;

pub use gpu::GpuType;

use crate::profile::Profile;
pub use crate::share::Mode;
use serde::Serialize;
use std::fmt;

/// One task of a group.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Member<'a> {
    /// What it does alone.
    pub profile: &'a Profile,
    /// `CUDA_MPS_ACTIVE_THREAD_PERCENTAGE`, 1 to 100; `None`: no limit. Time-slicing ignores it.
    pub threads_pct: Option<f64>,
}

impl<'a> Member<'a> {
    /// A task without a thread limit.
    #[must_use]
    pub const fn of(profile: &'a Profile) -> Self {
        Self { profile, threads_pct: None }
    }
}

/// Tasks that share one GPU. One that is named twice runs in two processes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Group<'a> {
    /// The GPU.
    pub gpu: &'a GpuType,
    /// How they share it.
    pub sharing: Mode,
    /// The tasks that share it.
    pub members: &'a [Member<'a>],
}

/// Most members of a group.
pub const MOST_MEMBERS: usize = 48;

/// Why a group cannot be predicted: which task, what, what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadGroup(pub String);

impl fmt::Display for BadGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadGroup {}

impl Group<'_> {
    /// # Errors
    /// No members, more than [`MOST_MEMBERS`], a thread percentage outside 1 to 100, or a profile that
    /// [`Profile::check`] refuses.
    pub fn check(&self) -> Result<(), BadGroup> {
        if self.members.is_empty() || self.members.len() > MOST_MEMBERS {
            return Err(BadGroup(format!(
                "a group has {} members, expected 1 to {MOST_MEMBERS}",
                self.members.len()
            )));
        }
        for member in self.members {
            member.profile.check().map_err(|e| BadGroup(e.to_string()))?;
            if let Some(pct) = member.threads_pct
                && !(1.0..=100.0).contains(&pct)
            {
                return Err(BadGroup(format!(
                    "task `{}`: a thread percentage of {pct}, expected 1 to 100",
                    member.profile.name
                )));
            }
        }
        Ok(())
    }

    /// Whether thread limits are in force.
    #[must_use]
    pub fn is_split(&self) -> bool {
        self.sharing == Mode::Mps && self.members.iter().any(|m| m.threads_pct.is_some_and(|pct| pct < 100.0))
    }
}

/// A number with its 90 % bounds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Bounded {
    /// Median of what is predicted.
    pub expected: f64,
    /// The true value is below this in 5 % of cases.
    pub lower: f64,
    /// And above this in 5 %.
    pub upper: f64,
}

/// What is predicted of one task.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TaskForecast {
    /// Its name.
    pub name: String,
    /// Speed together over speed alone, above 0; 1 is no slowdown. A little above 1 is possible: solo rates are noisy.
    pub progress: Bounded,
    /// Speed alone over speed together: `1 / progress.expected`.
    pub slowdown: f64,
    /// What the law says of it before anything is learned.
    pub prior: f64,
    /// Its rate together, in the unit of its solo rate; `None`: there is neither a solo rate nor an
    /// observed one.
    pub rate: Option<Bounded>,
    /// Observations of its class behind the forecast.
    pub observations: u32,
}

/// What is predicted of a group.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Forecast {
    /// In the order of the group's members.
    pub tasks: Vec<TaskForecast>,
    /// Expected progress of all together: how many times the work of one exclusive GPU.
    pub sum: f64,
    /// Expected progress of the slowest.
    pub min: f64,
    /// What it rests on: capacities, what binds, what was learned, what was missing.
    pub reasons: Vec<String>,
}

/// What a choice among groups maximises.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Objective {
    /// Sum of progress.
    #[default]
    WeightedSpeedup,
    /// Progress of the slowest, as far as it is sure: the least lower bound. A median would prefer groups of
    /// which little is known.
    MaxMin,
    /// Sum of rates in their own units (KACE's objective): rules only where units are one.
    Throughput,
}

impl Forecast {
    /// Value of this forecast, larger is better. [`Objective::Throughput`] counts unknown rates as 0.
    #[must_use]
    pub fn value(&self, objective: Objective) -> f64 {
        match objective {
            Objective::WeightedSpeedup => self.sum,
            Objective::MaxMin => self.tasks.iter().map(|t| t.progress.lower).fold(f64::INFINITY, f64::min),
            Objective::Throughput => self.tasks.iter().filter_map(|t| Some(t.rate?.expected)).sum(),
        }
    }
}

//! Bounds and searches of several workloads: what `carma lab bound` prints.

use crate::Error;
use crate::bound::{Bound, Bounds, Starts};
use crate::figures::{Figures, alone, geometric_mean, late, ratio};
use crate::search::{Budget, Objective, search};
use crate::traces::Named;
use carma_core::model::SharingMode;
use carma_sim::event::Cluster;
use carma_sim::event::clairvoyant::Known;
use carma_sim::event::outcome::Summary;
use serde::{Deserialize, Serialize};
use std::time::Instant;

/// Makespan, mean JCT and energy over exclusive's.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// From the first arrival to the last end.
    pub makespan: f64,
    /// Mean time from arrival to end.
    pub jct: f64,
    /// Energy of all GPUs.
    pub energy: f64,
}

impl Limits {
    fn of(bound: &Bound, exclusive: &Summary) -> Self {
        Self {
            makespan: ratio(bound.makespan_s, exclusive.makespan_s),
            jct: ratio(bound.jct_s, exclusive.jct_s.mean),
            energy: ratio(bound.energy_j, exclusive.energy_j),
        }
    }

    /// All three.
    #[must_use]
    pub const fn values(&self) -> [f64; 3] {
        [self.makespan, self.jct, self.energy]
    }
}

/// What a search for one objective came to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Searched {
    /// The objective.
    pub objective: String,
    /// The figures of the best schedule.
    pub figures: Figures,
    /// The most by which a job first started later than on exclusive GPUs, over exclusive's makespan; not below 0.
    pub later: f64,
}

/// One workload under one way of sharing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Case {
    /// Name of the trace.
    pub trace: String,
    /// Number of its jobs.
    pub jobs: usize,
    /// How jobs share: `mps` or `time-slice`.
    pub sharing: String,
    /// No schedule in which every job completes at its first attempt is below this. `None`: there is no bound for this
    /// cluster or these jobs, `no_bound` says why.
    pub bound: Option<Limits>,
    /// No schedule is below this, whichever attempts complete.
    pub bound_any: Option<Limits>,
    /// Why there is no bound.
    pub no_bound: Option<String>,
    /// Size up to which sets of jobs were listed for it, and their number.
    pub listed: Option<(usize, usize)>,
    /// The searches, one an objective.
    pub searched: Vec<Searched>,
    /// Runs of the engine.
    pub evaluations: u64,
    /// Seconds that they took on all threads together. Not part of what the seed decides.
    pub search_s: f64,
    /// Seconds that the bounds took.
    pub bound_s: f64,
}

/// Bounds and searches of workloads on one cluster.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The cluster.
    pub cluster: String,
    /// Runs of the engine for each objective of each case.
    pub evaluations: u64,
    /// Of start-up times and of the search.
    pub seed: u64,
    /// Every workload and way of sharing.
    pub cases: Vec<Case>,
}

impl Report {
    /// The cases of a way of sharing.
    pub fn of<'a>(&'a self, sharing: &'a str) -> impl Iterator<Item = &'a Case> + Clone {
        self.cases.iter().filter(move |case| case.sharing == sharing)
    }

    /// Geometric mean of the figures that the searches for an objective found.
    #[must_use]
    pub fn searched(&self, sharing: &str, objective: &str) -> Option<Figures> {
        let of: Vec<Figures> = self
            .of(sharing)
            .filter_map(|case| case.searched.iter().find(|it| it.objective == objective))
            .map(|it| it.figures)
            .collect();
        (!of.is_empty()).then(|| Figures::geometric_mean(&of))
    }

    /// The latest start of all schedules that the searches for an objective found; see [`Searched::later`].
    #[must_use]
    pub fn later(&self, sharing: &str, objective: &str) -> f64 {
        let of = self.of(sharing).flat_map(|case| &case.searched).filter(|it| it.objective == objective);
        of.map(|it| it.later).fold(0.0, f64::max)
    }

    /// Geometric mean of the bounds; `None` where a case has none.
    #[must_use]
    pub fn bound(&self, sharing: &str) -> Option<Limits> {
        let all: Vec<Limits> = self.of(sharing).map(|case| case.bound).collect::<Option<_>>()?;
        let mean = |value: fn(&Limits) -> f64| geometric_mean(all.iter().map(value));
        let limits =
            Limits { makespan: mean(|l| l.makespan), jct: mean(|l| l.jct), energy: mean(|l| l.energy) };
        (!all.is_empty()).then_some(limits)
    }
}

/// The ways of sharing, in the order of tables.
pub const SHARING: [SharingMode; 2] = [SharingMode::Mps, SharingMode::TimeSlice];

/// Bound and search of one workload.
///
/// # Errors
/// A linear program that could not be solved.
pub fn case(it: &Named, cluster: &Cluster, sharing: SharingMode, budget: &Budget) -> Result<Case, Error> {
    let exclusive = alone(&it.workload, cluster, budget.seed)?;
    let known = Known::new(&it.workload, cluster, sharing, budget.seed);
    let begin = Instant::now();
    let (bounds, no_bound) = match Bounds::new(&known) {
        Ok(bounds) => (Some(bounds), None),
        Err(why) => (None, Some(why.to_string())),
    };
    let values = bounds.as_ref().map(Bounds::values).transpose()?;
    let mut bound_s = begin.elapsed().as_secs_f64();
    let begin = Instant::now();
    let found = search(&known, &exclusive, &Objective::ALL, values.as_ref(), budget);
    let search_s = begin.elapsed().as_secs_f64();
    let begin = Instant::now();
    let reached = found
        .iter()
        .find(|it| it.objective == Objective::Jct)
        .map_or(&exclusive.summary, |it| &it.run.summary);
    let limits = |starts| -> Result<Option<Limits>, Error> {
        let bound = bounds.as_ref().map(|bounds| bounds.bound(starts, reached)).transpose()?;
        Ok(bound.map(|bound| Limits::of(&bound, &exclusive.summary)))
    };
    let (bound, bound_any) = (limits(Starts::First)?, limits(Starts::Any)?);
    bound_s += begin.elapsed().as_secs_f64();
    let first = (budget.evaluations / 5).max(1);
    Ok(Case {
        trace: it.name.clone(),
        jobs: it.workload.jobs.len(),
        sharing: sharing.to_string(),
        bound,
        bound_any,
        no_bound,
        listed: bounds.as_ref().map(|bounds| (bounds.listed().0, bounds.listed().1)),
        searched: found
            .iter()
            .map(|it| Searched {
                objective: it.objective.name().to_owned(),
                figures: Figures::of(&it.run.summary, &exclusive.summary),
                later: late(&it.run, &exclusive),
            })
            .collect(),
        evaluations: first + budget.evaluations.saturating_sub(first) * Objective::ALL.len() as u64,
        search_s,
        bound_s,
    })
}

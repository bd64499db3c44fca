//! What the core is told of jobs before they run, and how wrong that is.
//!
//! A trace says everything of a job, and life does not: here is how much of it the core may know.

use crate::trace::{CatalogueTask, WorkJob};
use carma_core::model::{Basis, Computed, Estimator, Forecasts, RunTime, RunsOf};
use carma_core::policy::{ForecastSource, MemoryScreen, Options};
use carma_core::units::{Fraction, MiB};
use std::collections::{BTreeMap, BTreeSet};

/// How much the core knows beforehand.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Knowledge {
    /// Of run times.
    pub run_times: RunTimesKnown,
    /// Of memory and activity.
    pub tasks: TasksKnown,
    /// How wrong it is.
    pub errors: Errors,
}

/// What is known of run times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RunTimesKnown {
    /// What the trace's own earlier jobs teach, as in life.
    #[default]
    Learned,
    /// The same, and what running jobs count of themselves, as `step 300/1000`.
    Counted,
    /// Each job's own.
    True,
}

/// What is known of memory and activity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TasksKnown {
    /// What the catalogue says.
    #[default]
    Catalogue,
    /// Nothing before a job of the same task has run: its memory is known when that one is over, and what it does to a GPU
    /// once that one was alone there for a while. Until then that is assumed, by what GPUs do under several.
    Learned,
}

/// How wrong forecasts are: each is off by so much, upwards or downwards by the toss of a coin for each task.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Errors {
    /// Predicted progress: times 1 + this, or 1 - this. The same tasks together are always off alike.
    pub progress: f64,
    /// Run time: times 1 + this, or divided by it; 1 is a factor of 2.
    pub run_time: f64,
    /// Memory: times 1 + this, or 1 - this.
    pub memory: f64,
    /// Which coins are tossed.
    pub seed: u64,
}

/// Whose forecast of GPU memory a policy goes by, and the jobs that get none at any time. It starts those on idle GPUs only, as `exclusive` does
/// every job. `None`: it gets one for every job, or does without.
#[must_use]
pub fn without_forecast<'a>(
    jobs: &'a [WorkJob],
    options: &Options,
    knowledge: Knowledge,
) -> Option<(ForecastSource, Vec<&'a WorkJob>)> {
    let MemoryScreen::Forecast { source, .. } = options.policy.memory else { return None };
    let known = Known::new(knowledge);
    // What was measured of earlier jobs is a forecast, too.
    let is_learned = known.learns_tasks()
        && matches!(source, ForecastSource::Best | ForecastSource::By(Estimator::Measured));
    if options.policy.blind || is_learned {
        return None;
    }
    let lacks = |job: &&WorkJob| source.pick(&known.forecasts(0, &job.task, options)).is_none();
    let jobs: Vec<&WorkJob> = jobs.iter().filter(lacks).collect();
    (!jobs.is_empty()).then_some((source, jobs))
}

/// A coin, the same for the same number.
fn heads(seed: u64, number: u64, what: u64) -> bool {
    // SplitMix64.
    let mut z = (seed ^ what.wrapping_mul(0xD6E8_FEB8_6659_FD93))
        .wrapping_add(number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    (z ^ (z >> 31)) >> 63 == 1
}

impl Errors {
    fn memory(&self, command: u64, memory: MiB) -> MiB {
        if self.memory == 0.0 {
            return memory;
        }
        let up = heads(self.seed, command, 1);
        MiB((memory.0 as f64 * if up { 1.0 + self.memory } else { 1.0 - self.memory }).round() as u64)
    }

    fn run_time(&self, command: u64, seconds: f64) -> f64 {
        let factor = 1.0 + self.run_time;
        if heads(self.seed, command, 2) { seconds * factor } else { seconds / factor }
    }

    /// A predicted progress of those of a company, by a number of it.
    pub(super) fn progress(&self, company: u64, progress: Fraction) -> Fraction {
        if self.progress == 0.0 {
            return progress;
        }
        let up = heads(self.seed, company, 3);
        let wrong = progress.to_f64() * if up { 1.0 + self.progress } else { 1.0 - self.progress };
        Fraction::from_f64(wrong.min(1.0)).unwrap_or_default()
    }
}

/// What the daemon's history adds to what earlier runs took, percent (docs/reference/configuration.md, `exact-margin-percent`): after one or
/// two runs of a command, and from the third on.
const EXACT_FEW: u64 = 5;
const EXACT_MANY: u64 = 2;
/// To what runs of something alike took (`scaled-margin-percent`).
const SCALED: u64 = 15;

/// A bound on what a command takes of which so many runs took so much at most, as the daemon's history says it.
fn bound(most: MiB, runs: u32) -> Computed {
    bounded(most, Basis::Exact, if runs < 3 { EXACT_FEW } else { EXACT_MANY })
}

/// The same from runs of something alike.
fn scaled(most: MiB) -> Computed {
    bounded(most, Basis::Scaled, SCALED)
}

fn bounded(most: MiB, basis: Basis, margin: u64) -> Computed {
    let upper = most + most.percent(margin);
    Computed { need: most, likely: most, upper, basis, coverage: 95, elastic: false, of_gpu: None }
}

/// What is known so far. A command is the first job of a task.
#[derive(Debug, Default)]
pub(super) struct Known {
    knowledge: Knowledge,
    /// Most memory that each command was seen to take, and by how many runs.
    memory: BTreeMap<u64, (MiB, u32)>,
    active: BTreeSet<u64>,
}

impl Known {
    pub(super) fn new(knowledge: Knowledge) -> Self {
        Self { knowledge, ..Self::default() }
    }

    /// What is known of the memory of a task.
    pub(super) fn forecasts(&self, command: u64, task: &CatalogueTask, options: &Options) -> Forecasts {
        let errors = &self.knowledge.errors;
        let wrong = |memory: Option<MiB>| memory.map(|memory| errors.memory(command, memory));
        // The published policies go by the measured number alone.
        let bounded = options.policy.blind;
        match self.knowledge.tasks {
            TasksKnown::Catalogue => {
                let known = task.forecasts;
                let measured = wrong(known.estimates.of(Estimator::Measured));
                let estimates = known.estimates.with(Estimator::Measured, measured);
                // What is wrong is no measurement.
                let told = |most| if errors.memory == 0.0 { bound(most, 1) } else { scaled(most) };
                let computed = measured.filter(|_| bounded).map(told).or(known.computed);
                Forecasts { declared: wrong(known.declared), estimates, computed }
            }
            TasksKnown::Learned => {
                let seen = self.memory.get(&command).copied();
                let measured = seen.map(|(most, _)| most);
                let estimates = Forecasts::default().estimates.with(Estimator::Measured, measured);
                let computed = seen.filter(|_| bounded).map(|(most, runs)| bound(most, runs));
                Forecasts { estimates, computed, ..Forecasts::default() }
            }
        }
    }

    /// A job of a command is over: what is known of the command now, if that is news.
    pub(super) fn ran(&mut self, command: u64, memory: MiB) -> Option<Computed> {
        if !self.learns_tasks() {
            return None;
        }
        let (most, runs) = self.memory.get(&command).copied().unwrap_or_default();
        let (before, now) = ((most, runs), (most.max(memory), runs.saturating_add(1)));
        self.memory.insert(command, now);
        let told = |(most, runs)| bound(most, runs);
        (runs == 0 || told(before) != told(now)).then(|| told(now))
    }

    /// A job of a command was alone on its GPUs for long enough; whether that is news.
    pub(super) fn seen_alone(&mut self, command: u64) -> bool {
        self.learns_tasks() && self.active.insert(command)
    }

    /// Whether it is learned what tasks do.
    pub(super) fn learns_tasks(&self) -> bool {
        self.knowledge.tasks == TasksKnown::Learned
    }

    /// Whether it is known what a command does to a GPU.
    pub(super) fn is_active_known(&self, command: u64) -> bool {
        !self.learns_tasks() || self.active.contains(&command)
    }

    pub(super) const fn errors(&self) -> &Errors {
        &self.knowledge.errors
    }

    /// What is known of run times.
    pub(super) const fn run_times(&self) -> RunTimesKnown {
        self.knowledge.run_times
    }

    /// How long a job is expected to run, where that is not learned.
    pub(super) fn run_time(&self, command: u64, job: &WorkJob) -> Option<RunTime> {
        if self.knowledge.run_times != RunTimesKnown::True {
            return None;
        }
        let errors = &self.knowledge.errors;
        let seconds = errors.run_time(command, job.duration.as_secs_f64());
        let s = seconds.round().max(1.0) as u64;
        Some(RunTime { exact: errors.run_time == 0.0, ..RunTime::of(s, RunsOf::Command) })
    }

    /// What was learned of a job's run time, with the error that is asked for.
    pub(super) fn learned(&self, command: u64, of: RunTime) -> RunTime {
        let errors = &self.knowledge.errors;
        if errors.run_time == 0.0 {
            return of;
        }
        let off = |seconds: u64| errors.run_time(command, seconds as f64).round().max(1.0) as u64;
        RunTime { low_s: off(of.low_s), median_s: off(of.median_s), high_s: off(of.high_s), ..of }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coins_are_fair_and_do_not_depend_on_each_other() {
        let all: Vec<[bool; 2]> = (0..10_000).map(|n| [1, 2].map(|what| heads(7, n, what))).collect();
        let share = |of: fn(&[bool; 2]) -> bool| all.iter().filter(|toss| of(toss)).count() as f64 / 1e4;
        assert!((share(|t| t[0]) - 0.5).abs() < 0.02 && (share(|t| t[1]) - 0.5).abs() < 0.02);
        assert!((share(|t| t[0] && t[1]) - 0.25).abs() < 0.02);
    }

    #[test]
    fn margins_are_those_of_the_daemons_history() {
        let carma_memory::history::Margins { exact_few, exact_many, scaled, .. } = Default::default();
        let percent = [exact_few, exact_many, scaled].map(|share| (share * 100.0).round() as u64);
        assert_eq!(percent, [EXACT_FEW, EXACT_MANY, SCALED]);
    }

    #[test]
    fn without_errors_all_is_as_it_is() {
        let none = Errors::default();
        assert_eq!(none.memory(3, MiB(999)), MiB(999));
        assert_eq!(none.progress(3, Fraction(7000)), Fraction(7000));
        assert!((none.run_time(3, 12.5) - 12.5).abs() < 1e-12);
        let some = Errors { progress: 0.3, run_time: 1.0, memory: 0.25, seed: 1 };
        let memory: BTreeSet<MiB> = (0..20).map(|n| some.memory(n, MiB(1000))).collect();
        assert_eq!(memory.into_iter().collect::<Vec<_>>(), [MiB(750), MiB(1250)]);
        let progress: BTreeSet<Fraction> = (0..20).map(|n| some.progress(n, Fraction(9000))).collect();
        assert_eq!(progress.into_iter().collect::<Vec<_>>(), [Fraction(6300), Fraction(10_000)]);
    }
}

//! How good forecasts of run time are on the later half of a trace.

use crate::traces::{Job, Log};
use carma_run_time::{Run, RunTimes, Running};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// Jobs whose ends are known before the baseline of all jobs says anything else than the forecast: its memory.
const ALL: usize = 1000;
/// The middle of all jobs is computed again after so many ends.
const AGAIN: usize = 50;

/// How good a method is on the jobs of a half. Errors are of the natural logarithm of seconds: run times span six orders of
/// magnitude, and an hour more is nothing for a week and all for a minute.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Quality {
    /// Jobs.
    pub jobs: usize,
    /// Pinball loss at 10 %, 50 % and 90 %, mean. A method that says one number says it for all three.
    pub pinball: [f64; 3],
    /// Share of jobs between the 10 % and the 90 % quantile; `None` for a single number.
    pub covered: Option<f64>,
    /// Median of the factor by which the median is off, 1 or more.
    pub factor: f64,
    /// Share of jobs whose time is within a factor of two of the median.
    pub within_two: f64,
}

/// What a method reached.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Result {
    /// Which method.
    pub method: &'static str,
    /// On the earlier half, on which the constants were chosen.
    pub tuned: Quality,
    /// On the later half.
    pub held_out: Quality,
}

/// A trace and what each method reached on it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Test {
    /// Name of the trace.
    pub trace: String,
    /// What stands for user, program and command there.
    pub classes: String,
    /// Each method's result, the forecast first.
    pub results: Vec<Result>,
}

impl Test {
    /// Where a baseline's loss on the later half is no larger than the forecast's: its name, and the quantile in percent.
    #[must_use]
    pub fn falls_short(&self) -> Vec<(&'static str, u32)> {
        let Some((ours, others)) = self.results.split_first() else { return Vec::new() };
        let worse = |other: &Result, at: usize| other.held_out.pinball[at] <= ours.held_out.pinball[at];
        let quantiles = [10, 50, 90].into_iter().enumerate();
        quantiles
            .flat_map(|(at, percent)| {
                others.iter().filter(move |other| worse(other, at)).map(move |other| (other.method, percent))
            })
            .collect()
    }
}

/// The methods, in the order of [`Said`].
const METHODS: [&str; 5] = [
    "history",
    "history without running jobs",
    "the user's last job",
    "quantiles of all jobs",
    "median of all jobs",
];

/// 10 %, 50 % and 90 % of what each method says of a job, seconds.
type Said = [[f64; 3]; METHODS.len()];

/// Scores each method: a job is forecast when it is submitted, from the jobs that had ended by then.
#[must_use]
pub fn of(log: &Log) -> Test {
    let mut scores: [[Score; 2]; METHODS.len()] = Default::default();
    let half = log.jobs.len() / 2;
    let mut past = Past::default();
    // By their ends; the times are finite and not negative, so that their bits are in their order.
    let mut running: BinaryHeap<Reverse<(u64, usize)>> = BinaryHeap::new();
    for (at, job) in log.jobs.iter().enumerate() {
        while let Some(Reverse((end, ended))) = running.peek().copied()
            && f64::from_bits(end) <= job.at_s
        {
            running.pop();
            past.learn(&log.jobs[ended]);
        }
        let others: Vec<Running> =
            running.iter().map(|Reverse((_, at))| runs(&log.jobs[*at], job.at_s)).collect();
        running.push(Reverse((job.end_s.max(0.0).to_bits(), at)));
        if let Some(said) = past.say(job, &others) {
            let which = usize::from(at >= half);
            for (score, said) in scores.iter_mut().zip(said) {
                score[which].add(job.run_s as f64, said);
            }
        }
    }
    let results = METHODS.into_iter().zip(&scores).map(|(method, [tuned, held_out])| Result {
        method,
        tuned: tuned.quality(),
        held_out: held_out.quality(),
    });
    Test { trace: log.name.clone(), classes: log.classes.clone(), results: results.collect() }
}

/// A job that has not ended at a time. One that has not begun has done nothing.
fn runs(job: &Job, now_s: f64) -> Running {
    let done_s = (now_s - (job.end_s - job.run_s as f64)).max(0.0) as u64;
    Running { class: job.class, done_s, count_s: None }
}

/// What is known of the jobs that have ended.
#[derive(Default)]
struct Past {
    times: RunTimes,
    last: BTreeMap<u64, f64>,
    all: std::collections::VecDeque<f64>,
    ended: usize,
    quantiles: Option<[f64; 3]>,
}

impl Past {
    fn learn(&mut self, job: &Job) {
        self.times.learn(&job.class, Run { seconds: job.run_s, cut: false });
        self.last.insert(job.class.user, job.run_s as f64);
        if self.all.len() >= ALL {
            self.all.pop_front();
        }
        self.all.push_back(job.run_s as f64);
        self.ended += 1;
        if self.ended <= AGAIN || self.ended.is_multiple_of(AGAIN) {
            let sorted = carma_stats::sorted(self.all.iter().copied().collect());
            let at = |q| carma_stats::quantile(&sorted, q);
            self.quantiles =
                at(0.1).zip(at(0.5)).zip(at(0.9)).map(|((low, median), high)| [low, median, high]);
        }
    }

    /// What each method says; `None` before any job has ended.
    fn say(&self, job: &Job, running: &[Running]) -> Option<Said> {
        let history = |running| {
            let forecast = self.times.forecast(&job.class, || running)?;
            Some([forecast.low_s, forecast.median_s, forecast.high_s].map(|s| s as f64))
        };
        let all = self.quantiles?;
        let last = self.last.get(&job.class.user).copied().unwrap_or(all[1]);
        Some([history(running)?, history(&[])?, [last; 3], all, [all[1]; 3]])
    }
}

/// A method's losses.
#[derive(Default)]
struct Score {
    errors: Vec<f64>,
    pinball: [f64; 3],
    covered: usize,
    /// It says more than a single number.
    interval: bool,
}

impl Score {
    fn add(&mut self, truth: f64, said: [f64; 3]) {
        let error = said.map(|s| truth.ln() - s.max(1.0).ln());
        for ((sum, error), share) in self.pinball.iter_mut().zip(error).zip([0.1, 0.5, 0.9]) {
            *sum += if error >= 0.0 { share * error } else { (share - 1.0) * error };
        }
        self.errors.push(error[1].abs());
        self.interval |= said[0] < said[2];
        self.covered += usize::from(said[0] <= truth && truth <= said[2]);
    }

    fn quality(&self) -> Quality {
        let jobs = self.errors.len();
        let share = |n: usize| n as f64 / jobs.max(1) as f64;
        let within = self.errors.iter().filter(|error| **error <= std::f64::consts::LN_2).count();
        Quality {
            jobs,
            pinball: self.pinball.map(|sum| sum / jobs.max(1) as f64),
            covered: self.interval.then(|| share(self.covered)),
            factor: carma_stats::median(self.errors.iter().copied()).unwrap_or_default().exp(),
            within_two: share(within),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use carma_run_time::Class;

    fn log(jobs: &[(f64, u64, &str)]) -> Log {
        let jobs = jobs.iter().map(|&(at_s, run_s, user)| Job {
            at_s,
            run_s,
            end_s: at_s + run_s as f64,
            class: Class::of(user, "", ""),
        });
        Log { name: "t".into(), classes: String::new(), jobs: jobs.collect() }
    }

    #[test]
    fn a_job_is_forecast_from_those_that_had_ended() {
        // The second comes while the first runs: nothing is known of either.
        let test = of(&log(&[(0.0, 100, "a"), (50.0, 100, "a"), (1000.0, 200, "a"), (2000.0, 200, "b")]));
        let ours = &test.results[0];
        assert_eq!((ours.tuned.jobs, ours.held_out.jobs), (0, 2));
        // 200 where 100 was said; then 200 where 100, 100 and 200 are known of another user.
        assert!((ours.held_out.factor - 2.0).abs() < 1e-9, "{ours:?}");
        let expected = (0.5 * 2.0_f64.ln() * 2.0) / 2.0;
        assert!((ours.held_out.pinball[1] - expected).abs() < 1e-12, "{ours:?}");
    }

    #[test]
    fn users_that_differ_are_told_apart() {
        let jobs: Vec<(f64, u64, &str)> = (0..200)
            .map(|i| (f64::from(i) * 1000.0, if i % 2 == 0 { 10 } else { 900 }, ["a", "b"][i as usize % 2]))
            .collect();
        let test = of(&log(&jobs));
        let [ours, _, last, all, _] = &test.results[..] else { panic!() };
        assert_eq!((ours.held_out.within_two, last.held_out.within_two), (1.0, 1.0));
        assert_eq!((ours.held_out.jobs, last.held_out.covered), (100, None));
        assert!(all.held_out.within_two < 0.6 && all.held_out.covered == Some(1.0));
        // As good as the last job where that is always right: not better.
        assert!(test.falls_short().contains(&("the user's last job", 50)), "{:?}", test.falls_short());
        assert!(!test.falls_short().contains(&("median of all jobs", 50)));
    }

    #[test]
    fn jobs_that_run_say_that_the_first_ends_are_those_of_short_jobs() {
        // Of each ten one is short; the others are not over when the later half comes.
        let jobs: Vec<(f64, u64, &str)> =
            (0..40).map(|i| (f64::from(i) * 1000.0, if i % 10 == 0 { 10 } else { 100_000 }, "a")).collect();
        let test = of(&log(&jobs));
        let [ours, ends, ..] = &test.results[..] else { panic!() };
        assert!(ours.held_out.pinball[1] < 0.5 * ends.held_out.pinball[1], "{ours:?} {ends:?}");
    }
}

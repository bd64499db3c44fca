//! Several runs that differ in the seed: means and 95 % confidence intervals.

use super::json::{Figures, PolicyRow};
use crate::event::outcome::{RunResult, Summary};
use serde::{Deserialize, Serialize};

/// A mean over seeds.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Interval {
    /// Arithmetic mean.
    pub mean: f64,
    /// Half the width of its 95 % confidence interval (Student's t).
    pub ci95: f64,
    /// Smallest value.
    pub least: f64,
    /// Largest value.
    pub most: f64,
}

/// Figures over seeds.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct OverSeeds {
    /// Makespan, seconds.
    pub makespan_s: Interval,
    /// Mean wait, seconds.
    pub wait_mean_s: Interval,
    /// Mean job completion time, seconds.
    pub jct_mean_s: Interval,
    /// Mean slowdown.
    pub slowdown_mean: Interval,
    /// Attempts that ran out of memory.
    pub oom: Interval,
    /// Attempts that were ended because they slowed a neighbour down beyond its limit. Documents of carma before December 2026 lack it.
    #[serde(default)]
    pub evictions: Interval,
    /// Energy, joules.
    pub energy_j: Interval,
}

impl Interval {
    /// Of these values.
    #[must_use]
    pub fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let values: Vec<f64> = values.into_iter().collect();
        let n = values.len();
        if n == 0 {
            return Self::default();
        }
        let mean = values.iter().sum::<f64>() / n as f64;
        let squares = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>();
        let ci95 = match n {
            1 => 0.0,
            _ => t975(n - 1) * (squares / (n - 1) as f64 / n as f64).sqrt(),
        };
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        Self { mean, ci95, least, most }
    }
}

/// 97.5th percentile of Student's t with so many degrees of freedom, to three digits.
fn t975(freedom: usize) -> f64 {
    const TABLE: [f64; 10] = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228];
    match TABLE.get(freedom.wrapping_sub(1)) {
        Some(t) => *t,
        // Cornish-Fisher to the second order: within 0.002 from 11 on.
        None => {
            let (z, n) = (1.959_964_f64, freedom as f64);
            z + (z.powi(3) + z) / (4.0 * n) + (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / (96.0 * n * n)
        }
    }
}

impl OverSeeds {
    /// Of these runs.
    #[must_use]
    pub fn of(runs: &[RunResult]) -> Self {
        let over = |f: fn(&Summary) -> f64| Interval::of(runs.iter().map(|run| f(&run.summary)));
        Self {
            makespan_s: over(|s| s.makespan_s),
            wait_mean_s: over(|s| s.wait_s.mean),
            jct_mean_s: over(|s| s.jct_s.mean),
            slowdown_mean: over(|s| s.slowdown.mean),
            oom: over(|s| s.oom as f64),
            evictions: over(|s| s.evictions as f64),
            energy_j: over(|s| s.energy_j),
        }
    }
}

/// One row for runs of one policy that differ in the seed: means, of the jobs that completed the fewest, the detail (if wanted) of
/// the first.
#[must_use]
pub fn row(runs: &[RunResult]) -> Option<PolicyRow> {
    let first = runs.first()?;
    let figures: Vec<Figures> = runs.iter().map(|run| Figures::from(&run.summary)).collect();
    let several = runs.len() > 1;
    // A mean would be rounded to all jobs where few seeds lose one.
    let completed = figures.iter().map(|figures| figures.completed).min().unwrap_or(0);
    let mean = || {
        let mean = Figures::mean(&figures);
        Figures { completed, not_completed: mean.jobs.saturating_sub(completed), ..mean }
    };
    Some(PolicyRow {
        seeds: u32::try_from(runs.len()).unwrap_or(u32::MAX),
        events: runs.iter().map(|run| run.events).sum(),
        figures: if several { mean() } else { figures[0] },
        over_seeds: several.then(|| OverSeeds::of(runs)),
        ..PolicyRow::from(first)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::example;

    #[test]
    fn an_interval_is_students() {
        let i = Interval::of([1.0, 2.0, 3.0]);
        assert_eq!((i.mean, i.least, i.most), (2.0, 1.0, 3.0));
        assert!((i.ci95 - 4.303 / 3_f64.sqrt()).abs() < 1e-9);
        assert_eq!(Interval::of([5.0]).ci95, 0.0);
        assert_eq!(Interval::of([]), Interval::default());
    }

    #[test]
    fn t_follows_the_table() {
        for (freedom, t) in [(11, 2.201), (20, 2.086), (30, 2.042), (99, 1.984)] {
            assert!((t975(freedom) - t).abs() < 0.003, "{freedom}: {}", t975(freedom));
        }
    }

    #[test]
    fn a_job_that_one_seed_of_many_loses_is_told() {
        let mut runs: Vec<RunResult> =
            (1..=20).map(|seed| example::runs(1, 60, &["magm"], seed).remove(0)).collect();
        let told =
            |runs: &[RunResult]| row(runs).map(|row| (row.figures.completed, row.figures.not_completed));
        assert_eq!(told(&runs), Some((60, 0)));
        (runs[7].summary.completed, runs[7].summary.not_completed) = (59, 1);
        assert_eq!(told(&runs), Some((59, 1)));
    }
}

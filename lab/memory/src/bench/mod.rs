//! Estimators against measurements: the tests that `carma lab estimate-bench` runs and prints.

pub mod activity;
pub mod carma_campaign;
mod data;
pub mod gpumemnet;
pub mod h200;
pub mod mlp;
pub mod timm;
pub mod traces;
pub mod unseen;
pub mod vectors;

pub use data::Data;

use crate::gpumemnet::Folder;
use carma_memory::gpumemnet::AuthorsNetworks;
use serde::Serialize;
use std::sync::Arc;

/// A group of tests.
type Group = (&'static str, fn(&Data) -> Vec<Test>);

/// The tests by what they are on.
const GROUPS: [Group; 8] = [
    ("mlp", mlp::tests),
    ("gpumemnet", gpumemnet::tests),
    ("campaign", carma_campaign::tests),
    ("timm", timm::run),
    ("traces", traces::run),
    ("models", h200::tests),
    ("unseen", unseen::tests),
    ("activity", activity::tests),
];

/// Names of the groups of tests.
#[must_use]
pub fn groups() -> Vec<&'static str> {
    GROUPS.iter().map(|(name, _)| *name).collect()
}

/// Runs every test for which there is data, or those of one group.
#[must_use]
pub fn run(data: &Data, only: Option<&str>) -> Vec<Test> {
    let asked = GROUPS.iter().filter(|(name, _)| only.is_none_or(|only| only == *name));
    asked.flat_map(|(_, tests)| tests(data)).collect()
}

/// Estimators to compare with on real models: those that CARMA compares, ours and their authors' networks. The published
/// networks say a class; its upper edge is the estimate, as their authors have it.
const BASELINES: &[&str] = &[
    "horus",
    "faketensor-raw",
    "faketensor",
    "gpumemnet",
    "gpumemnet-transformer",
    "gpumemnet-published",
    "gpumemnet-published-transformer",
    "dnnperf",
];

/// The authors' networks, where their checkpoints are.
fn authors(data: &Data) -> Option<Arc<dyn AuthorsNetworks>> {
    data.shared("gpumemnet/weights").ok().map(|folder| Arc::new(Folder(folder)) as _)
}

/// One task: measured, and as estimated.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Pair {
    /// Which task.
    pub label: String,
    /// Measured peak, MiB.
    pub measured_mib: f64,
    /// Estimated `use`, MiB.
    pub estimated_mib: f64,
    /// Estimated bound, MiB, where the estimator gives one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upper_mib: Option<f64>,
}

impl Pair {
    /// Relative error of `use`, signed: positive is too much.
    #[must_use]
    pub fn error(&self) -> f64 {
        (self.estimated_mib - self.measured_mib) / self.measured_mib
    }
}

/// How good an estimator is on a set of tasks.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Score {
    /// Number of tasks.
    pub n: usize,
    /// Mean relative error, absolute.
    pub mre: f64,
    /// Median relative error, absolute.
    pub median: f64,
    /// The largest relative error, signed.
    pub worst: f64,
    /// Task with the largest error.
    pub worst_task: String,
    /// Share of the tasks that are right to half a MiB.
    pub exact: f64,
    /// Share of the tasks that took more than estimated.
    pub under: f64,
    /// Share of the tasks whose measured peak is not above the bound; `None` without bounds.
    pub covered: Option<f64>,
    /// Median of bound over measured; `None` without bounds.
    pub tightness: Option<f64>,
}

/// Scores a set; `None` for an empty one.
#[must_use]
pub fn score(pairs: &[Pair]) -> Option<Score> {
    let n = pairs.len();
    let worst = pairs.iter().max_by(|a, b| a.error().abs().total_cmp(&b.error().abs()))?;
    let errors: Vec<f64> = pairs.iter().map(|p| p.error().abs()).collect();
    let ratios: Vec<f64> = pairs.iter().filter_map(|p| Some(p.upper_mib? / p.measured_mib)).collect();
    let bounded = !ratios.is_empty();
    let share = |count: usize, of: usize| count as f64 / of as f64;
    Some(Score {
        n,
        mre: errors.iter().sum::<f64>() / n as f64,
        median: carma_stats::median(errors).unwrap_or(f64::NAN),
        worst: worst.error(),
        worst_task: worst.label.clone(),
        exact: share(pairs.iter().filter(|p| (p.estimated_mib - p.measured_mib).abs() < 0.5).count(), n),
        under: share(pairs.iter().filter(|p| p.estimated_mib < p.measured_mib - 0.5).count(), n),
        covered: bounded.then(|| share(ratios.iter().filter(|r| **r >= 1.0).count(), ratios.len())),
        tightness: bounded.then(|| carma_stats::median(ratios.clone()).unwrap_or(f64::NAN)),
    })
}

/// A limit that a test is to keep, and whether it does.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Target {
    /// In words: `MRE <= 0.3 %`.
    pub text: String,
    /// Whether the measured number keeps it.
    pub holds: bool,
}

/// A line of the table.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Test {
    /// What was tested.
    pub name: String,
    /// Which estimator.
    pub estimator: String,
    /// The result, or why it was not run.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// Limits, where there are any; none for baselines.
    pub targets: Vec<Target>,
    /// The tasks behind a score, one by one.
    #[serde(skip)]
    pub pairs: Vec<Pair>,
}

/// What came of a test.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Errors of a set of tasks.
    Score(Score),
    /// Another number: accuracy of a classifier, milliseconds, rows that agree.
    Figures {
        /// Name and value with its unit.
        figures: Vec<(String, String)>,
    },
    /// Not run, and why: data that is not there.
    Skipped {
        /// Why it was left out.
        reason: String,
    },
}

impl Test {
    /// A test over a set of tasks; `limits` says for a score which targets there are and whether they hold.
    #[must_use]
    pub fn of(
        name: &str,
        estimator: &str,
        pairs: &[Pair],
        limits: impl FnOnce(&Score) -> Vec<Target>,
    ) -> Self {
        let (outcome, targets) = match score(pairs) {
            Some(score) => {
                let targets = limits(&score);
                (Outcome::Score(score), targets)
            }
            None => (Outcome::Skipped { reason: "no tasks".to_owned() }, Vec::new()),
        };
        let (name, estimator) = (name.to_owned(), estimator.to_owned());
        Self { name, estimator, outcome, targets, pairs: pairs.to_vec() }
    }

    /// A test whose data is not there.
    #[must_use]
    pub fn skipped(name: &str, estimator: &str, reason: impl Into<String>) -> Self {
        Self {
            name: name.to_owned(),
            estimator: estimator.to_owned(),
            outcome: Outcome::Skipped { reason: reason.into() },
            targets: Vec::new(),
            pairs: Vec::new(),
        }
    }
}

impl Target {
    /// A limit and whether it holds.
    #[must_use]
    pub fn new(text: impl Into<String>, holds: bool) -> Self {
        Self { text: text.into(), holds }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn scores() {
        let pair = |m: f64, e: f64, u: f64| Pair {
            label: format!("{m}"),
            measured_mib: m,
            estimated_mib: e,
            upper_mib: Some(u),
        };
        let s = score(&[pair(100.0, 100.2, 120.0), pair(200.0, 180.0, 190.0), pair(400.0, 420.0, 600.0)])
            .unwrap();
        assert_eq!(s.n, 3);
        assert!((s.mre - (0.002 + 0.1 + 0.05) / 3.0).abs() < 1e-9);
        assert!((s.median - 0.05).abs() < 1e-9);
        assert!((s.worst + 0.1).abs() < 1e-9);
        assert_eq!(s.worst_task, "200");
        assert!((s.exact - 1.0 / 3.0).abs() < 1e-9);
        assert!((s.under - 1.0 / 3.0).abs() < 1e-9);
        assert!((s.covered.unwrap() - 2.0 / 3.0).abs() < 1e-9);
        assert!((s.tightness.unwrap() - 1.2).abs() < 1e-9);
        assert_eq!(score(&[]), None);
    }
}

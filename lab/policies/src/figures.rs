//! The figures of a run that are compared.

use crate::Error;
use carma_core::model::SharingMode;
use carma_core::policy::presets;
use carma_sim::event::outcome::{RunResult, Summary};
use carma_sim::event::{Cluster, Setup, simulate};
use carma_sim::trace::Workload;
use serde::{Deserialize, Serialize};

/// Figures of a run, over those of exclusive GPUs, first in, first out, where nothing else is said.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Figures {
    /// From the first arrival to the last end.
    pub makespan: f64,
    /// Mean time from arrival to end.
    pub jct: f64,
    /// Mean wait; 1 where exclusive GPUs let nobody wait and neither does the run.
    pub wait: f64,
    /// Mean time on GPUs.
    pub exec: f64,
    /// 95th percentile of the time on GPUs.
    pub exec_p95: f64,
    /// Energy.
    pub energy: f64,
    /// 95th percentile of the slowdown: time on GPUs over time alone, not over exclusive's.
    pub slowdown_p95: f64,
}

/// Names of the figures, in the order of [`Figures::values`].
pub const NAMES: [&str; 7] =
    ["makespan", "mean JCT", "mean wait", "mean exec", "p95 exec", "energy", "p95 slowdown"];

impl Figures {
    /// Those of a run.
    #[must_use]
    pub fn of(run: &Summary, exclusive: &Summary) -> Self {
        Self {
            makespan: ratio(run.makespan_s, exclusive.makespan_s),
            jct: ratio(run.jct_s.mean, exclusive.jct_s.mean),
            wait: ratio(run.wait_s.mean, exclusive.wait_s.mean),
            exec: ratio(run.exec_s.mean, exclusive.exec_s.mean),
            exec_p95: ratio(run.exec_s.p95, exclusive.exec_s.p95),
            energy: ratio(run.energy_j, exclusive.energy_j),
            slowdown_p95: run.slowdown.p95,
        }
    }

    /// All of them, in the order of [`NAMES`].
    #[must_use]
    pub const fn values(&self) -> [f64; 7] {
        [self.makespan, self.jct, self.wait, self.exec, self.exec_p95, self.energy, self.slowdown_p95]
    }

    /// Geometric means of all figures; a wait of nothing counts as a thousandth.
    #[must_use]
    pub fn geometric_mean(of: &[Self]) -> Self {
        let mean = |value: fn(&Self) -> f64| geometric_mean(of.iter().map(value));
        Self {
            makespan: mean(|f| f.makespan),
            jct: mean(|f| f.jct),
            wait: mean(|f| f.wait),
            exec: mean(|f| f.exec),
            exec_p95: mean(|f| f.exec_p95),
            energy: mean(|f| f.energy),
            slowdown_p95: mean(|f| f.slowdown_p95),
        }
    }
}

/// Geometric mean; what is below a thousandth counts as that, and of nothing it is 1.
#[must_use]
pub fn geometric_mean(of: impl Iterator<Item = f64>) -> f64 {
    let logs: Vec<f64> = of.map(|value| value.max(1e-3).ln()).collect();
    if logs.is_empty() { 1.0 } else { (logs.iter().sum::<f64>() / logs.len() as f64).exp() }
}

/// One over the other; two of nothing are alike.
#[must_use]
pub fn ratio(a: f64, b: f64) -> f64 {
    if b > 0.0 {
        a / b
    } else if a > 0.0 {
        f64::INFINITY
    } else {
        1.0
    }
}

/// The most by which a job starts later than on exclusive GPUs, over exclusive's makespan; not below 0.
#[must_use]
pub fn late(run: &RunResult, exclusive: &RunResult) -> f64 {
    ratio(run.latest_behind(exclusive).as_secs_f64(), exclusive.summary.makespan_s)
}

/// Exclusive GPUs, first in, first out: what everything is compared with.
#[must_use]
pub fn exclusive(workload: &Workload, cluster: &Cluster, seed: u64) -> Option<RunResult> {
    let policy = presets::by_name("exclusive")?;
    let setup = Setup::new(policy, SharingMode::Mps, None, seed);
    Some(simulate(workload, cluster, &setup, &|_| ()))
}

/// The same where there has to be such a policy.
pub(crate) fn alone(workload: &Workload, cluster: &Cluster, seed: u64) -> Result<RunResult, Error> {
    exclusive(workload, cluster, seed).ok_or_else(|| Error("there is no policy `exclusive`".to_owned()))
}

//! How good an ensemble is on tasks that it did not see.

use super::Published;
use carma_memory::gpumemnet::{Measured, Network, Outlook, Sample, class_of};
use serde::Serialize;

/// Figures of one ensemble on some tasks, at one width of classes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Score {
    /// Tasks with a measured peak; those that ended out of memory have no class and count below alone.
    pub tasks: usize,
    /// Share of them whose class is right.
    pub accuracy: f64,
    /// Share whose class is below the right one: trusting it ends out of memory.
    pub under: f64,
    /// Share of them, with those that ended out of memory, for which `upper` is enough.
    pub covered: f64,
    /// Median of `upper` over the measured peak.
    pub upper_ratio: f64,
    /// Mean relative error of `use`.
    pub mre: f64,
    /// Tasks that ended out of memory, or were pressed.
    pub lower_bounds: usize,
    /// Share of these whose class is not below that of the bound.
    pub bounds_met: f64,
}

/// What an estimator says of one task.
pub(crate) struct Said {
    pub(crate) class: usize,
    pub(crate) middle: f64,
    pub(crate) upper: f64,
}

/// Scores a network at a width of classes and a coverage. Classes from `last` on are one.
#[must_use]
pub fn score(network: &Network, samples: &[&Sample], width: u64, last: usize, coverage: f64) -> Score {
    let context = network.card.target.context_mib as f64;
    let at = |o: &Outlook, level: f64| o.at(network.card.coverage.score(level)) + context;
    let outlooks = network.outlook_all(samples);
    let said = outlooks.iter().map(|o| Said {
        class: o.class(width, last),
        middle: at(o, 0.5),
        upper: at(o, coverage),
    });
    summary(said, &measured(samples), |mib| class_of(mib, width, last))
}

/// Scores the authors' ensemble in its own classes.
#[must_use]
pub fn score_published(network: &Published, samples: &[&Sample]) -> Score {
    let said = samples.iter().map(|s| {
        let class = network.class(&s.model, &s.task);
        let (low, high) = network.edges(class);
        Said { class, middle: (low + high) as f64 / 2.0, upper: high as f64 }
    });
    summary(said, &measured(samples), |mib| {
        (0..6).find(|k| mib <= network.edges(*k).1).unwrap_or(5).min(network.classes() - 1)
    })
}

/// Figures of what was said of measured tasks.
pub(crate) fn summary(
    said: impl Iterator<Item = Said>,
    measured: &[Measured],
    class: impl Fn(u64) -> usize,
) -> Score {
    let (mut tasks, mut right, mut under, mut covered, mut bounds, mut met) = (0, 0, 0, 0, 0, 0);
    let (mut ratios, mut error) = (Vec::new(), 0.0);
    for (said, measured) in said.zip(measured) {
        let mib = measured.mib();
        let truth = class(mib);
        covered += usize::from(said.upper >= mib as f64);
        match measured {
            Measured::Peak(_) => {
                tasks += 1;
                right += usize::from(said.class == truth);
                under += usize::from(said.class < truth);
                ratios.push(said.upper / (mib as f64).max(1.0));
                error += (said.middle / (mib as f64).max(1.0) - 1.0).abs();
            }
            Measured::AtLeast(_) => {
                bounds += 1;
                met += usize::from(said.class >= truth);
            }
        }
    }
    let share = |n: usize, of: usize| n as f64 / of.max(1) as f64;
    ratios.sort_by(f64::total_cmp);
    Score {
        tasks,
        accuracy: share(right, tasks),
        under: share(under, tasks),
        covered: share(covered, tasks + bounds),
        upper_ratio: carma_stats::high_median(&ratios).unwrap_or(f64::NAN),
        mre: error / tasks.max(1) as f64,
        lower_bounds: bounds,
        bounds_met: share(met, bounds),
    }
}

fn measured(samples: &[&Sample]) -> Vec<Measured> {
    samples.iter().map(|s| s.measured).collect()
}

//! What an ensemble says of one task: a distribution over memory.

use super::net::Beyond;
use crate::{Estimate, MiB, Parts, Platform, Tier};
use carma_nn::Logistic;
use serde::{Deserialize, Serialize};

/// What the last layer of the networks says.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Head {
    /// Middle and scale of a logistic distribution of the logarithm of memory: one network for every width
    /// of classes, and beyond the largest one that was seen.
    Logistic,
    /// A probability for each class of memory, as published.
    Classes {
        /// Width of a class, MiB. The first begins at 0.
        width_mib: u64,
        /// How many; the last has no upper edge.
        count: usize,
    },
}

/// How memory becomes the number that networks learn: the logarithm of what exceeds the context,
/// standardised.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Target {
    /// CUDA context in the training data, MiB.
    pub context_mib: u64,
    /// Mean of the logarithms.
    pub center: f64,
    /// Their deviation.
    pub spread: f64,
}

impl Target {
    /// Fitted on memory with context, MiB.
    pub fn fit(context_mib: u64, memory: impl Iterator<Item = u64>) -> Self {
        let logs: Vec<f64> = memory.map(|mib| excess(mib, context_mib).ln()).collect();
        let n = logs.len().max(1) as f64;
        let center = logs.iter().sum::<f64>() / n;
        let variance = logs.iter().map(|v| (v - center) * (v - center)).sum::<f64>() / n;
        Self { context_mib, center, spread: variance.sqrt().max(1e-3) }
    }

    /// The number for a memory with context.
    pub fn of(&self, mib: u64) -> f32 {
        ((excess(mib, self.context_mib).ln() - self.center) / self.spread) as f32
    }

    /// Memory without context, MiB.
    fn without_context(&self, z: f64) -> f64 {
        (self.center + self.spread * z).min(40.0).exp()
    }
}

/// What exceeds the context, at least 1 MiB.
fn excess(mib: u64, context_mib: u64) -> f64 {
    mib.saturating_sub(context_mib).max(1) as f64
}

/// The distribution of one task's memory.
#[derive(Debug, Clone, PartialEq)]
pub struct Outlook {
    pub(crate) form: Form,
    pub(crate) target: Target,
    /// How far the task lies beyond the training data.
    pub(crate) beyond: Beyond,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Form {
    Logistic { middle: f64, scale: f64 },
    Classes { probabilities: Vec<f64>, width: f64 },
}

impl Form {
    /// One distribution of several networks'. Where they disagree, it is wider.
    pub(crate) fn pooled(all: impl ExactSizeIterator<Item = Logistic>) -> Self {
        let n = all.len().max(1) as f64;
        let all: Vec<Logistic> = all.collect();
        let middle = all.iter().map(|l| f64::from(l.middle)).sum::<f64>() / n;
        let spread = all.iter().map(|l| (f64::from(l.middle) - middle).powi(2)).sum::<f64>() / n;
        let log_scale = all.iter().map(|l| f64::from(l.log_scale)).sum::<f64>() / n;
        Self::Logistic { middle, scale: ((2.0 * log_scale).exp() + spread).sqrt() }
    }
}

impl Outlook {
    /// What it says at a coverage, with the context of the platform: the networks learned memory beside theirs.
    pub(crate) fn estimate(
        &self,
        (calibrated, coverage): (&Coverage, f64),
        platform: &Platform,
        source: String,
        family: String,
        reasons: Vec<String>,
    ) -> Estimate {
        let context = platform.context_mib;
        let at = |level: f64| {
            let beside = self.at(calibrated.score(level)).clamp(1.0, 1e12);
            context + MiB(beside.ceil() as u64)
        };
        let use_mib = at(0.5);
        Estimate {
            need_mib: at(1.0 - coverage).min(use_mib),
            use_mib,
            upper_mib: at(coverage).max(use_mib),
            tier: Tier::Formula,
            source,
            family,
            parts: Some(Parts { context_mib: context, reserved_mib: use_mib - context, ..Parts::default() }),
            elastic: false,
            reasons,
        }
    }

    /// What to say of a task beyond the training data.
    pub fn beyond_reason(&self) -> Option<String> {
        let Beyond { log, more_mib } = self.beyond;
        (log > 0.0 || more_mib > 0.0).then(|| {
            let factor = log.exp();
            format!(
                "larger than anything it was trained on: extended by a factor of {factor:.2} for its activations and \
                 {more_mib:.0} MiB for its parameters"
            )
        })
    }

    /// Where a memory lies in this distribution, a number that grows with it: what is comparable between
    /// tasks, and what coverage is calibrated on. MiB with context.
    #[must_use]
    pub fn score(&self, mib: u64) -> f64 {
        let inner = (excess(mib, self.target.context_mib) - self.beyond.more_mib).max(1.0);
        let inner = inner / self.beyond.log.exp();
        match &self.form {
            Form::Logistic { middle, scale } => {
                ((inner.ln() - self.target.center) / self.target.spread - middle) / scale
            }
            Form::Classes { probabilities, width } => {
                let at = (inner + self.target.context_mib as f64) / width;
                let whole = (at.floor() as usize).min(probabilities.len());
                let below: f64 = probabilities[..whole].iter().sum();
                below + probabilities.get(whole).map_or(0.0, |p| p * (at - whole as f64))
            }
        }
    }

    /// The memory with that score, MiB without context.
    #[must_use]
    pub fn at(&self, score: f64) -> f64 {
        let inner = match &self.form {
            Form::Logistic { middle, scale } => self.target.without_context(middle + scale * score),
            Form::Classes { probabilities, width } => {
                let (mut below, mut k) = (0.0, 0);
                while k + 1 < probabilities.len() && below + probabilities[k] < score {
                    below += probabilities[k];
                    k += 1;
                }
                let p = probabilities.get(k).copied().unwrap_or(1.0);
                let part = if p > 0.0 { ((score - below) / p).clamp(0.0, 1.0) } else { 1.0 };
                ((k as f64 + part) * width - self.target.context_mib as f64).max(1.0)
            }
        };
        inner * self.beyond.log.exp() + self.beyond.more_mib
    }

    /// Probability of at most this memory, MiB with context.
    fn below(&self, mib: f64) -> f64 {
        match &self.form {
            Form::Logistic { .. } if mib <= self.target.context_mib as f64 + 1.0 => 0.0,
            Form::Logistic { .. } => 1.0 / (1.0 + (-self.score(mib as u64)).exp()),
            Form::Classes { .. } => self.score(mib as u64),
        }
    }

    /// The most probable class of `width` MiB, from 0: class k is above `k width` and at most `(k+1) width`.
    /// Of the classes from `last` on, one is made.
    #[must_use]
    pub fn class(&self, width: u64, last: usize) -> usize {
        let mut best = (0, -1.0);
        let mut below = 0.0;
        for k in 0..=last {
            let upto = if k == last { 1.0 } else { self.below((width * (k as u64 + 1)) as f64) };
            if upto - below > best.1 {
                best = (k, upto - below);
            }
            below = upto;
        }
        best.0
    }
}

/// Class of a measured memory, as [`Outlook::class`] counts.
#[must_use]
pub fn class_of(mib: u64, width: u64, last: usize) -> usize {
    ((mib.saturating_sub(1) / width.max(1)) as usize).min(last)
}

/// Scores that cover given shares of what was measured: calibrated, not assumed.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Coverage {
    /// Level and score, ascending.
    pub levels: Vec<(f64, f64)>,
}

impl Coverage {
    const LEVELS: [f64; 9] = [0.02, 0.05, 0.1, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99];

    /// Split conformal (Vovk et al.): the score at rank `ceil((n+1) level)` of rows that were not fitted on.
    pub fn fit(mut scores: Vec<f64>) -> Self {
        scores.retain(|s| s.is_finite());
        scores.sort_by(f64::total_cmp);
        let n = scores.len();
        let at = |level: f64| scores.get(carma_stats::conformal_rank(n, level).min(n.max(1)) - 1).copied();
        Self { levels: Self::LEVELS.iter().filter_map(|level| Some((*level, at(*level)?))).collect() }
    }

    /// The score that covers a share; between two levels, in between.
    pub fn score(&self, level: f64) -> f64 {
        let Some(first) = self.levels.first() else { return 0.0 };
        let mut before = *first;
        for now in &self.levels {
            if level <= now.0 {
                let span = now.0 - before.0;
                let part = if span > 0.0 { (level - before.0) / span } else { 1.0 };
                return before.1 + (now.1 - before.1) * part.clamp(0.0, 1.0);
            }
            before = *now;
        }
        before.1
    }
}

//! How far a front end is off, by family: a robust ratio and a conformal upper quantile.

use serde::{Deserialize, Serialize};

/// Samples that a group keeps, the latest.
const KEPT: usize = 256;
/// Samples of one program in a group: repeats of one task say nothing of others.
const OF_ONE: usize = 3;
/// Below so many samples a group says nothing of a quantile. At a coverage of 95 % the smallest number
/// for which a conformal quantile exists at all is 19.
pub const ENOUGH: usize = 20;
/// Below so many it says nothing of the middle either.
const FEW: usize = 5;
/// Unit of the stored ratios.
const UNIT: f64 = 10_000.0;
/// Measured over expected beyond these says that the front end and the run are about different things.
const RATIOS: std::ops::RangeInclusive<f64> = 0.33..=3.0;

/// One run against what a front end said of it, both without context, in units of 1/10,000.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Sample {
    /// When it came, in updates of the history.
    pub(super) at: u64,
    /// Program.
    key: u64,
    /// Measured / expected use.
    of_use: u32,
    /// Measured / stated bound: carries over to tasks whose bound is wider or narrower.
    of_upper: u32,
}

/// A run against what a front end said of it, MiB without context.
pub(super) struct Ratio {
    pub(super) measured: u64,
    pub(super) expected: u64,
    pub(super) upper: u64,
}

impl Ratio {
    /// `None`: it says nothing of the front end.
    pub(super) fn sample(&self, at: u64, key: u64) -> Option<Sample> {
        let Self { measured, expected, upper } = *self;
        let sound =
            expected > 0 && upper >= expected && RATIOS.contains(&(measured as f64 / expected as f64));
        sound.then(|| Sample { at, key, of_use: unit(measured, expected), of_upper: unit(measured, upper) })
    }
}

/// Runs of one front end and family. Samples have places of their own, so that a new one changes one
/// stored row and not all of them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Group {
    samples: Vec<Sample>,
}

impl Group {
    /// Number of samples.
    #[must_use]
    pub fn len(&self) -> usize {
        self.samples.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    /// When it was last used.
    pub(super) fn used(&self) -> u64 {
        self.samples.iter().map(|sample| sample.at).max().unwrap_or_default()
    }

    /// Takes a run. Returns the place that changed.
    pub(super) fn add(&mut self, sample: Sample) -> Option<usize> {
        let same = |s: &Sample| s.key == sample.key;
        let crowded = self.samples.iter().filter(|s| same(s)).count() >= OF_ONE;
        if !crowded && self.samples.len() < KEPT {
            self.samples.push(sample);
            return Some(self.samples.len() - 1);
        }
        let places = (0..self.samples.len()).filter(|i| !crowded || same(&self.samples[*i]));
        let oldest = places.min_by_key(|i| self.samples[*i].at)?;
        self.samples[oldest] = sample;
        Some(oldest)
    }

    /// What stands at a place.
    pub(super) fn at(&self, place: usize) -> Option<&Sample> {
        self.samples.get(place)
    }

    /// Puts a stored sample back. Places are not kept: any order of the same samples says the same.
    pub(super) fn restore(&mut self, place: usize, sample: Sample) {
        if let Some(there) = self.samples.get_mut(place) {
            *there = sample;
        } else if self.samples.len() < KEPT {
            // Rows come in the order of their places; a gap closes.
            self.samples.push(sample);
        }
    }

    /// Median of measured / expected; `None` below a handful.
    #[must_use]
    pub fn median(&self) -> Option<f64> {
        let ratios = self.sorted(|s| s.of_use);
        let median = carma_stats::low_median(&ratios).filter(|_| ratios.len() >= FEW)?;
        Some(f64::from(median) / UNIT)
    }

    /// What to multiply a stated bound with so that it holds with this probability for the next task
    /// that is like those seen (split conformal prediction, one-sided: the ceil((n+1)q)-th smallest
    /// ratio). `None`: too few.
    #[must_use]
    pub fn quantile(&self, coverage: f64) -> Option<f64> {
        let ratios = self.sorted(|s| s.of_upper);
        if ratios.len() < ENOUGH {
            return None;
        }
        let rank = carma_stats::conformal_rank(ratios.len(), coverage);
        // Beyond the largest seen nothing is known: then the bound is not for this data to give.
        ratios.get(rank - 1).map(|r| f64::from(*r) / UNIT)
    }

    fn sorted(&self, of: impl Fn(&Sample) -> u32) -> Vec<u32> {
        let mut ratios: Vec<u32> = self.samples.iter().map(of).collect();
        ratios.sort_unstable();
        ratios
    }
}

fn unit(a: u64, b: u64) -> u32 {
    (a as f64 / b as f64 * UNIT).round() as u32
}

//! Means with intervals: a bootstrap that draws whole clusters, the same on every machine.

use serde::Serialize;
use std::collections::BTreeMap;

/// Small and the same everywhere: SplitMix64 (Steele, Lea, Flood 2014).
#[derive(Debug, Clone)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Below `n`, which is above 0. The bias of the remainder is far below what is printed.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }
}

/// A mean with its 95 % interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Mean {
    /// The mean over all values.
    pub mean: f64,
    /// 2.5th percentile of the resampled means.
    pub low: f64,
    /// 97.5th percentile.
    pub high: f64,
    /// Number of values.
    pub n: usize,
    /// Clusters that are drawn whole.
    pub clusters: usize,
}

const RESAMPLES: usize = 2000;

/// Values by the cluster that they belong to.
#[derive(Debug, Clone, Default)]
pub(crate) struct Clustered(BTreeMap<String, Vec<f64>>);

impl Clustered {
    pub(crate) fn add(&mut self, cluster: &str, value: f64) {
        if value.is_finite() {
            self.0.entry(cluster.to_owned()).or_default().push(value);
        }
    }

    /// Adds values with their clusters.
    pub(crate) fn extend(&mut self, values: impl IntoIterator<Item = (String, f64)>) {
        values.into_iter().for_each(|(cluster, value)| self.add(&cluster, value));
    }

    /// Adds another's values.
    pub(crate) fn join(&mut self, other: Self) {
        other.0.into_iter().for_each(|(cluster, values)| self.0.entry(cluster).or_default().extend(values));
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = f64> {
        self.0.values().flatten().copied()
    }

    pub(crate) fn median(&self) -> f64 {
        carma_stats::high_median(&carma_stats::sorted(self.values().collect())).unwrap_or(f64::NAN)
    }

    /// Mean and interval; `None` for no values.
    pub(crate) fn mean(&self) -> Option<Mean> {
        let sums: Vec<(f64, f64)> = self.0.values().map(|v| (v.iter().sum(), v.len() as f64)).collect();
        let n = self.values().count();
        if n == 0 {
            return None;
        }
        let mean = self.values().sum::<f64>() / n as f64;
        let mut dice = Dice::new(5);
        let mut means: Vec<f64> = (0..RESAMPLES)
            .map(|_| {
                let drawn = (0..sums.len()).map(|_| sums[dice.below(sums.len())]);
                let (sum, count) = drawn.fold((0.0, 0.0), |(s, c), (sum, count)| (s + sum, c + count));
                sum / count
            })
            .collect();
        means.sort_by(f64::total_cmp);
        let at = |share: f64| means[((RESAMPLES - 1) as f64 * share).round() as usize];
        Some(Mean { mean, low: at(0.025), high: at(0.975), n, clusters: sums.len() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_hold_the_mean_and_narrow_with_clusters() {
        let of = |clusters: usize| {
            let mut values = Clustered::default();
            for c in 0..clusters {
                for v in 0..4 {
                    values.add(&c.to_string(), (c % 7) as f64 + v as f64 / 10.0);
                }
            }
            values.mean().unwrap()
        };
        let (few, many) = (of(7), of(70));
        assert!(few.low < few.mean && few.mean < few.high);
        assert!(many.high - many.low < few.high - few.low);
        assert_eq!(of(7), few, "the same again");
        assert!(Clustered::default().mean().is_none());
        let mut one = Clustered::default();
        one.add("a", 2.0);
        one.add("a", f64::NAN);
        assert_eq!(one.mean().map(|m| (m.mean, m.low, m.n)), Some((2.0, 2.0, 1)));
    }

    #[test]
    fn a_shuffle_keeps_all() {
        let mut items: Vec<usize> = (0..50).collect();
        Dice::new(1).shuffle(&mut items);
        assert_ne!(items[..5], [0, 1, 2, 3, 4]);
        items.sort_unstable();
        assert_eq!(items, (0..50).collect::<Vec<_>>());
    }
}

//! Confidence intervals by resampling clusters.

use carma_nn::Rng;
use serde::Serialize;
use std::collections::BTreeMap;

/// Draws of the bootstrap.
const DRAWS: usize = 2000;

/// A mean with its 95 % interval, percent.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Percent {
    /// Mean over all cases.
    pub mean_pct: f64,
    /// 2.5th and 97.5th percentile of the means of resampled clusters (Efron's bootstrap).
    pub ci95_pct: (f64, f64),
}

/// Of ratios with the cluster of each. Cases of one cluster (a target in several splits) are not independent, so whole
/// clusters are drawn. Deterministic.
#[must_use]
pub fn percent<'a>(cases: impl Iterator<Item = (&'a str, f64)>) -> Percent {
    let mut clusters: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
    for (cluster, ratio) in cases {
        let (sum, n) = clusters.entry(cluster).or_default();
        *sum += 100.0 * ratio;
        *n += 1.0;
    }
    let clusters: Vec<(f64, f64)> = clusters.into_values().collect();
    let mean = |drawn: &mut dyn Iterator<Item = (f64, f64)>| {
        let (sum, n) = drawn.fold((0.0, 0.0), |(s, n), (ds, dn)| (s + ds, n + dn));
        if n > 0.0 { sum / n } else { 0.0 }
    };
    let mut rng = Rng::new(1, 95);
    let mut means: Vec<f64> = (0..DRAWS)
        .map(|_| mean(&mut (0..clusters.len()).map(|_| clusters[rng.below(clusters.len())])))
        .collect();
    means.sort_by(f64::total_cmp);
    let at = |q: f64| means[((DRAWS - 1) as f64 * q).round() as usize];
    Percent { mean_pct: mean(&mut clusters.iter().copied()), ci95_pct: (at(0.025), at(0.975)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_of_one_cluster_count_as_one_draw() {
        let spread = |cluster: fn(usize) -> String| {
            let names: Vec<String> = (0..400).map(cluster).collect();
            let p = percent(
                names.iter().enumerate().map(|(i, n)| (n.as_str(), if i % 20 < 10 { 0.0 } else { 1.0 })),
            );
            assert_eq!(p.mean_pct, 50.0);
            p.ci95_pct.1 - p.ci95_pct.0
        };
        let (apart, together) = (spread(|i| format!("{i}")), spread(|i| format!("{}", i % 20)));
        // 1.96 standard errors each way: 400 and 20 independent draws.
        assert!((apart - 9.8).abs() < 1.5 && (together - 43.8).abs() < 8.0, "{apart} {together}");
        assert_eq!(percent([].into_iter()).mean_pct, 0.0);
        assert_eq!(percent([("a", 0.5)].into_iter()).ci95_pct, (50.0, 50.0));
    }
}

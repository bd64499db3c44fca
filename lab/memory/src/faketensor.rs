//! Fits the correction of FakeTensor's peak ([`Correction`]) to measured runs.

use carma_memory::formula::faketensor::{Correction, Corrections, FIXED_MIB, Inputs, Terms, family, series};
use std::collections::{BTreeMap, BTreeSet};

/// Rounds of reweighting; the coefficients stand still long before.
const ROUNDS: usize = 100;
/// Relative deviations below this weigh alike.
const SMALLEST: f64 = 1e-4;
/// A family of `n` models is trusted `n / (n + SHRINK)`; chosen by cross-validation in the training half.
const SHRINK: f64 = 1.0;
/// A family's factor stays within e^-LIMIT to e^LIMIT: beyond, a run of `cudnn.benchmark` made it.
const LIMIT: f64 = 0.15;
/// Folds, by model, from which the bound is taken.
const FOLDS: usize = 5;
/// Share of unseen runs that the bound is to cover.
const COVERAGE: f64 = 0.95;

/// A measured run.
#[derive(Debug, Clone, PartialEq)]
pub struct TimmRun {
    /// Model's name.
    pub model: String,
    /// Samples a step.
    pub batch: u64,
    /// Peak under `FakeTensorMode`, MiB.
    pub peak_mib: f64,
    /// Alive after the forward pass, MiB.
    pub after_forward_mib: f64,
    /// Weights in 32 bits, MiB.
    pub weights_mib: f64,
    /// Measured peak of the GPU, MiB.
    pub measured_mib: f64,
}

impl TimmRun {
    /// All but the measurement.
    #[must_use]
    pub fn inputs(&self) -> Inputs<'_> {
        Inputs {
            model: &self.model,
            batch: self.batch,
            peak_mib: self.peak_mib,
            after_forward_mib: Some(self.after_forward_mib),
            weights_mib: Some(self.weights_mib),
        }
    }
}

/// All four corrections, fitted on the same runs; `None` for too few of them.
#[must_use]
pub fn fit_all(rows: &[TimmRun]) -> Option<Corrections> {
    Some(Corrections {
        peak: fit(rows, Terms::Peak, false)?,
        peak_weights: fit(rows, Terms::PeakWeights, false)?,
        all: fit(rows, Terms::All, false)?,
        named: fit(rows, Terms::All, true)?,
    })
}

/// Fits coefficients, then factors of families where `named`, then the bound on models that were left
/// out in turn. `None` where there are too few runs.
#[must_use]
pub fn fit(rows: &[TimmRun], terms: Terms, named: bool) -> Option<Correction> {
    let all: Vec<&TimmRun> = rows.iter().collect();
    let mut correction = fit_point(&all, terms, named)?;
    let models: Vec<&str> =
        rows.iter().map(|r| r.model.as_str()).collect::<BTreeSet<_>>().into_iter().collect();
    let fold: BTreeMap<&str, usize> = models.iter().enumerate().map(|(i, m)| (*m, i % FOLDS)).collect();
    let mut ratios = Vec::new();
    for k in 0..FOLDS {
        let (out, kept): (Vec<&TimmRun>, Vec<&TimmRun>) =
            rows.iter().partition(|r| fold.get(r.model.as_str()) == Some(&k));
        let point = fit_point(&kept, terms, named)?;
        ratios.extend(out.iter().filter_map(|r| Some(r.measured_mib / point.mib(&r.inputs())?)));
    }
    ratios.sort_by(f64::total_cmp);
    // Conformal: the quantile of n + 1, so that coverage holds for the next run.
    let rank = carma_stats::conformal_rank(ratios.len(), COVERAGE);
    correction.upper = ratios.get(rank.clamp(1, ratios.len()) - 1).copied()?.max(1.0);
    Some(correction)
}

fn fit_point(rows: &[&TimmRun], terms: Terms, named: bool) -> Option<Correction> {
    let x: Vec<Vec<f64>> = rows.iter().map(|r| terms.values(&r.inputs())).collect::<Option<_>>()?;
    let y: Vec<f64> = rows.iter().map(|r| r.measured_mib).collect();
    let mut correction = Correction {
        terms,
        coefficients: least_relative_deviations(&x, &y)?,
        families: BTreeMap::new(),
        series: BTreeMap::new(),
        upper: 1.0,
    };
    if named {
        correction.families = factors(&correction, rows, family);
        correction.series = factors(&correction, rows, series);
    }
    Some(correction)
}

/// Median of what is left by each group of models, shrunk towards 1.
fn factors(correction: &Correction, rows: &[&TimmRun], group: fn(&str) -> &str) -> BTreeMap<String, f64> {
    let mut left: BTreeMap<&str, (BTreeSet<&str>, Vec<f64>)> = BTreeMap::new();
    for row in rows {
        let Some(fitted) = correction.mib(&row.inputs()) else { continue };
        let over = |mib: f64| (mib - FIXED_MIB).max(50.0);
        let (models, logs) = left.entry(group(&row.model)).or_default();
        models.insert(&row.model);
        logs.push((over(row.measured_mib) / over(fitted)).ln());
    }
    left.into_iter()
        .map(|(key, (models, logs))| {
            let n = models.len() as f64;
            let log = (carma_stats::median(logs).unwrap_or(f64::NAN) * n / (n + SHRINK)).clamp(-LIMIT, LIMIT);
            (key.to_owned(), log.exp())
        })
        .collect()
}

/// Coefficients with the least sum of `|x b - y| / y`, by reweighted least squares.
fn least_relative_deviations(x: &[Vec<f64>], y: &[f64]) -> Option<Vec<f64>> {
    let n = x.first()?.len();
    if x.len() <= n {
        return None;
    }
    // Columns are scaled, as they differ by a thousand times and the normal equations square that.
    let scale: Vec<f64> =
        (0..n).map(|j| x.iter().map(|row| row[j].abs()).fold(0.0, f64::max).max(1e-12)).collect();
    let mut weights = vec![1.0; x.len()];
    let mut b = vec![0.0; n];
    for _ in 0..ROUNDS {
        let mut m = vec![vec![0.0; n + 1]; n];
        for ((row, y), w) in x.iter().zip(y).zip(&weights) {
            let w = w / (y * y);
            for i in 0..n {
                let xi = row[i] / scale[i] * w;
                for j in 0..n {
                    m[i][j] += xi * row[j] / scale[j];
                }
                m[i][n] += xi * y;
            }
        }
        b = solve(m)?;
        for ((row, y), w) in x.iter().zip(y).zip(&mut weights) {
            let fitted: f64 = row.iter().zip(&scale).zip(&b).map(|((x, s), b)| x / s * b).sum();
            *w = 1.0 / ((fitted - y) / y).abs().max(SMALLEST);
        }
    }
    Some(b.iter().zip(&scale).map(|(b, s)| b / s).collect())
}

/// Gauss with pivots, on rows that end in the right-hand side.
fn solve(mut m: Vec<Vec<f64>>) -> Option<Vec<f64>> {
    let n = m.len();
    for i in 0..n {
        let pivot = (i..n).max_by(|a, b| m[*a][i].abs().total_cmp(&m[*b][i].abs()))?;
        m.swap(i, pivot);
        if m[i][i].abs() < 1e-300 {
            return None;
        }
        let (above, below) = m.split_at_mut(i + 1);
        let top = above.last()?;
        for row in below {
            let f = row[i] / top[i];
            row.iter_mut().zip(top).skip(i).for_each(|(r, t)| *r -= f * t);
        }
    }
    let mut b = vec![0.0; n];
    for i in (0..n).rev() {
        let known: f64 = (i + 1..n).map(|j| m[i][j] * b[j]).sum();
        b[i] = (m[i][n] - known) / m[i][i];
    }
    b.iter().all(|v| v.is_finite()).then_some(b)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn row(i: usize, measured_mib: f64) -> TimmRun {
        TimmRun {
            model: format!("{}{i}_x", if i.is_multiple_of(2) { "even" } else { "odd" }),
            batch: 8,
            peak_mib: 100.0 * i as f64,
            after_forward_mib: 50.0,
            weights_mib: (i * i % 17) as f64 * 10.0,
            measured_mib,
        }
    }

    #[test]
    fn outliers_do_not_move_the_line() {
        let line = |r: &TimmRun| 1500.0 + 1.2 * r.peak_mib + 2.0 * r.weights_mib;
        let mut rows: Vec<TimmRun> = (0..60).map(|i| row(i, 0.0)).collect();
        for (i, r) in rows.iter_mut().enumerate() {
            r.measured_mib = line(r) * if i % 10 == 3 { 5.0 } else { 1.0 };
        }
        let c = fit(&rows, Terms::PeakWeights, false).unwrap();
        for (found, wanted) in c.coefficients.iter().zip([1500.0, 1.2, 2.0]) {
            assert!((found / wanted - 1.0).abs() < 1e-3, "{:?}", c.coefficients);
        }
        assert!((c.upper - 5.0).abs() < 0.01, "a tenth of the runs lies that far above: {}", c.upper);
    }

    #[test]
    fn families_get_a_factor_within_limits() {
        let mut rows: Vec<TimmRun> = (1..60).map(|i| row(i, 0.0)).collect();
        for (i, r) in rows.iter_mut().enumerate() {
            r.measured_mib = FIXED_MIB + (100.0 + r.peak_mib) * if i.is_multiple_of(2) { 1.05 } else { 0.95 };
        }
        let c = fit(&rows, Terms::Peak, true).unwrap();
        assert!(c.families["odd"] > c.families["even"]);
        assert!(c.families.values().chain(c.series.values()).all(|f| f.ln().abs() <= LIMIT + 1e-9));
        let rows: Vec<TimmRun> = rows.into_iter().take(2).collect();
        assert_eq!(fit(&rows, Terms::Peak, true), None);
    }
}

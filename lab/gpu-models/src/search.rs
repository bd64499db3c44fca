//! Least squares over a few parameters, bootstrap intervals, and errors on what was left out.

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;
use serde::Serialize;
use std::collections::BTreeSet;

/// Resamples of a bootstrap.
pub(super) const RESAMPLES: usize = if cfg!(test) { 8 } else { 200 };
/// Their seed: the same rows always give the same interval.
pub(super) const SEED: u64 = 20_261_121;
/// Points of the first look at a parameter's range.
const GRID: u32 = 24;
/// Golden-section steps after that.
const STEPS: u32 = 20;
/// How much further along its way a round looks, in lengths of it.
const FAR: f64 = 24.0;
/// Most rounds over all parameters.
const ROUNDS: u32 = 200;

/// A parameter to be fitted, by its key in a model file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Key {
    pub(super) key: &'static str,
    /// Value before the fit; kept where the rows don't say.
    pub(super) start: f64,
    pub(super) low: f64,
    pub(super) high: f64,
}

/// What is fitted to what: minimises the mean of `(model / measured - 1)^2`.
pub(super) struct Problem<'a, O> {
    pub(super) keys: Vec<Key>,
    pub(super) model: &'a dyn Fn(&[f64], &O) -> f64,
    /// What errors are taken of, where that is not what is best fitted: power below the limit is fitted
    /// without the limit, which would hide how far off a trial is.
    pub(super) said: &'a dyn Fn(&[f64], &O) -> f64,
    pub(super) measured: &'a dyn Fn(&O) -> f64,
    /// Resamples of the rows for an interval, at least 1.
    pub(super) resamples: usize,
    /// The groups that leaving one out leaves out; a row may belong to several.
    pub(super) families: &'a dyn Fn(&O) -> Vec<String>,
}

/// A fitted parameter.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Fitted {
    /// Its key in a model file.
    pub key: String,
    /// Its value: the fitted one, or the one before where the rows don't say.
    pub value: f64,
    /// Its value before.
    pub before: f64,
    /// 5 % quantile of the bootstrap over rows.
    pub low: f64,
    /// 95 % quantile.
    pub high: f64,
    /// Whether the rows say anything about it: false where a change by a fifth in either direction
    /// raises the squared error by less than 2 %.
    pub identified: bool,
}

/// Errors of a model, relative to what was measured.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Errors {
    /// Number of rows.
    pub rows: usize,
    /// Mean absolute relative error.
    pub mape: f64,
    /// Median absolute relative error.
    pub median: f64,
    /// Mean relative error: positive where the model says too much.
    pub bias: f64,
}

impl Errors {
    /// From relative errors; all zero for no rows.
    #[must_use]
    pub fn of(errors: &[f64]) -> Self {
        let count = errors.len().max(1) as f64;
        let mut sizes: Vec<f64> = errors.iter().map(|e| e.abs()).collect();
        sizes.sort_by(f64::total_cmp);
        Self {
            rows: errors.len(),
            mape: sizes.iter().sum::<f64>() / count,
            median: sizes.get(sizes.len() / 2).copied().unwrap_or(0.0),
            bias: errors.iter().sum::<f64>() / count,
        }
    }
}

impl<O> Problem<'_, O> {
    /// Relative errors of the model with these values.
    pub(super) fn errors<'o>(&self, values: &[f64], rows: impl IntoIterator<Item = &'o O>) -> Vec<f64>
    where
        O: 'o,
    {
        rows.into_iter().map(|row| (self.said)(values, row) / (self.measured)(row) - 1.0).collect()
    }

    fn loss(&self, values: &[f64], rows: &[&O]) -> f64 {
        let error = |row: &&O| (self.model)(values, row) / (self.measured)(row) - 1.0;
        rows.iter().map(error).map(|e| e * e).sum::<f64>() / rows.len().max(1) as f64
    }

    /// The values of least squared error: one parameter after the other by golden section, then all
    /// along the way that the round went (Powell's idea), until a round improves nothing. It begins in
    /// the middle of the ranges, so that what a model said before has no say in the result.
    pub(super) fn solve(&self, rows: &[&O]) -> Vec<f64> {
        let mut values: Vec<f64> = self.keys.iter().map(|key| f64::midpoint(key.low, key.high)).collect();
        let mut best = self.loss(&values, rows);
        for round in 0..ROUNDS {
            let before = best;
            let from = values.clone();
            for (at, key) in self.keys.iter().enumerate() {
                let mut trial = values.clone();
                let mut at_value = |value: f64| {
                    trial[at] = value;
                    self.loss(&trial, rows)
                };
                // The first rounds look everywhere, later ones near by.
                let span = key.high - key.low;
                let (reach, grid) = if round < 2 { (span, GRID) } else { (span * 0.1, 4) };
                let (low, high) = ((values[at] - reach).max(key.low), (values[at] + reach).min(key.high));
                let (value, loss) = lowest(&mut at_value, low, high, grid);
                if loss < best {
                    (values[at], best) = (value, loss);
                }
            }
            let along = |far: f64| -> Vec<f64> {
                let steps = values.iter().zip(&from).zip(&self.keys);
                steps.map(|((to, from), key)| (to + far * (to - from)).clamp(key.low, key.high)).collect()
            };
            if self.keys.len() > 1 {
                let (far, loss) = lowest(&mut |far| self.loss(&along(far), rows), 0.0, FAR, 4);
                if loss < best {
                    best = loss;
                    values = along(far);
                }
            }
            if before - best <= 1e-8 * before {
                break;
            }
        }
        values
    }

    /// Solves, says what the rows identify, and resamples them for an interval.
    pub(super) fn fit(&self, rows: &[&O]) -> Vec<Fitted> {
        let mut values = self.solve(rows);
        let identified = self.identified(&values, rows);
        for ((value, key), identified) in values.iter_mut().zip(&self.keys).zip(&identified) {
            if !identified {
                *value = key.start;
            }
        }
        let mut rng = Pcg64::seed_from_u64(SEED);
        let mut samples: Vec<Vec<f64>> = vec![Vec::with_capacity(self.resamples); self.keys.len()];
        for _ in 0..self.resamples {
            let resample: Vec<&O> =
                (0..rows.len()).filter_map(|_| rows.get(rng.random_range(0..rows.len())).copied()).collect();
            for (sample, value) in samples.iter_mut().zip(self.solve(&resample)) {
                sample.push(value);
            }
        }
        let mut fitted = Vec::new();
        for (at, key) in self.keys.iter().enumerate() {
            samples[at].sort_by(f64::total_cmp);
            let quantile = |q: f64| samples[at].get((q * (self.resamples - 1) as f64) as usize).copied();
            fitted.push(Fitted {
                key: key.key.to_owned(),
                value: round3(values[at]),
                before: key.start,
                low: round3(quantile(0.05).unwrap_or(values[at])),
                high: round3(quantile(0.95).unwrap_or(values[at])),
                identified: identified[at],
            });
        }
        fitted
    }

    fn identified(&self, values: &[f64], rows: &[&O]) -> Vec<bool> {
        let loss = self.loss(values, rows);
        let mut trial = values.to_vec();
        let mut identified = Vec::new();
        for (at, key) in self.keys.iter().enumerate() {
            let step = (values[at] * 0.2).max(0.05);
            identified.push([-step, step].into_iter().any(|step| {
                trial[at] = (values[at] + step).clamp(key.low, key.high);
                let worse = self.loss(&trial, rows) > loss * 1.02 + 1e-9;
                trial[at] = values[at];
                worse
            }));
        }
        identified
    }

    /// Leaves each family out in turn, fits the rest, and returns the errors on all rows that have the
    /// family: errors on tasks that the fit never saw.
    pub(super) fn leave_one_out(&self, rows: &[&O]) -> Vec<f64> {
        let families: BTreeSet<String> = rows.iter().flat_map(|row| (self.families)(row)).collect();
        let mut errors = Vec::new();
        for family in families {
            let (out, rest): (Vec<&O>, Vec<&O>) =
                rows.iter().copied().partition(|row| (self.families)(row).contains(&family));
            if !rest.is_empty() {
                errors.extend(self.errors(&self.solve(&rest), out));
            }
        }
        errors
    }
}

/// Three digits after the point: more would feign knowledge.
fn round3(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

/// The lowest point of a function on a range: the best of a grid, then golden section around it.
fn lowest(of: &mut dyn FnMut(f64) -> f64, low: f64, high: f64, grid: u32) -> (f64, f64) {
    const GOLDEN: f64 = 0.618_033_988_749_895;
    let step = (high - low) / f64::from(grid);
    let mut best = (low, f64::INFINITY);
    let mut look = |x: f64, best: &mut (f64, f64)| {
        let y = of(x);
        if y < best.1 {
            *best = (x, y);
        }
        y
    };
    for i in 0..=grid {
        look(low + step * f64::from(i), &mut best);
    }
    let (mut a, mut b) = ((best.0 - step).max(low), (best.0 + step).min(high));
    let (mut left, mut right) = (b - GOLDEN * (b - a), a + GOLDEN * (b - a));
    let (mut at_left, mut at_right) = (look(left, &mut best), look(right, &mut best));
    for _ in 0..STEPS {
        if at_left <= at_right {
            (b, right, at_right) = (right, left, at_left);
            left = b - GOLDEN * (b - a);
            at_left = look(left, &mut best);
        } else {
            (a, left, at_left) = (left, right, at_right);
            right = a + GOLDEN * (b - a);
            at_right = look(right, &mut best);
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_found_again_and_what_no_row_depends_on_is_not() {
        let keys = vec![
            Key { key: "a", start: 1.0, low: 0.0, high: 5.0 },
            Key { key: "b", start: 1.0, low: 0.0, high: 5.0 },
            Key { key: "c", start: 0.8, low: 0.0, high: 5.0 },
        ];
        let rows: Vec<(f64, f64)> = (1..20).map(|i| (f64::from(i), 0.7 + 0.3 * f64::from(i))).collect();
        let problem = Problem {
            keys,
            model: &|v: &[f64], &(x, _): &(f64, f64)| v[0] + v[1] * x,
            said: &|v: &[f64], &(x, _): &(f64, f64)| v[0] + v[1] * x,
            measured: &|&(_, y)| y,
            resamples: RESAMPLES,
            families: &|&(x, _)| vec![format!("{}", x % 3.0)],
        };
        let rows: Vec<&(f64, f64)> = rows.iter().collect();
        let fitted = problem.fit(&rows);
        assert!((fitted[0].value - 0.7).abs() < 0.01 && (fitted[1].value - 0.3).abs() < 0.01, "{fitted:?}");
        assert!(fitted[0].identified && !fitted[2].identified);
        assert_eq!(fitted[2].value, 0.8);
        let errors = Errors::of(&problem.leave_one_out(&rows));
        assert!(errors.rows == rows.len() && errors.mape < 0.01);
    }

    #[test]
    fn errors_are_summed_up() {
        let errors = Errors::of(&[0.1, -0.3, 0.2]);
        assert!((errors.mape - 0.2).abs() < 1e-12 && errors.median == 0.2 && errors.bias.abs() < 1e-12);
        assert_eq!(Errors::of(&[]).rows, 0);
    }
}

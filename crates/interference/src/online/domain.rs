//! What is learned for one type of GPU and one way of sharing: a Gaussian over few global constants, and
//! for each class a Gaussian given those.
//!
//! The model of a rate in a group is
//!
//! ```text
//! log rate_i = log solo_i + s_class(i) + log p_i
//! log p_i    = log law_i(C_k, w, g, o) + phi_i . beta + b_class(i)
//! log w_j    = x_j . theta + u_class(j);  logit g_j = logit engine_j + d_class(j);  logit o_j = omega + v_class(j)
//! ```
//!
//! so a class has five numbers: `u` how aggressive it is, `d` how much more it loads than its profile
//! says, `v` how far its host runs ahead, `b` how sensitive it is, `s` how wrong its solo rate is. The
//! offset of the number of members goes with the capacity `C_k`. `s` is a latent of wide variance where the
//! solo rate is not known, and becomes one when the rates seen contradict it time and again.
//!
//! An observation is a step of recursive least squares on the law linearised at what is known
//! (an extended Kalman filter) with forgetting 0.99 that stops at the prior. Classes are kept conditional
//! on the global constants and independent of each other given those, so that a step touches the
//! members' classes only and a class costs less than 1 KiB however many there are.

use super::conformal::Scores;
use super::features::{Features, WEIGHTS};
use super::law;
use super::local::{Linear, Local, capacity};
use super::matrix::Matrix;
use super::prior::{BETA, CLASS, CLASS_SD, GLOBALS, SOLO, SPREAD_COUNTS, THETA, class_sd, prior};
use crate::group::Mode;

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Forgetting of one observation.
const FORGET: f64 = 0.99;
/// Standard deviation of what no constant explains, in log rate.
const NOISE: f64 = 0.1;
/// Linearisations of one observation.
const ROUNDS: usize = 2;
/// Beyond this many standard deviations an error counts less and less.
const ROBUST: f64 = 4.0;
/// A solo rate that errors of one sign contradict by this many standard deviations is not believed any
/// more: twice in a row where it was measured here, once where it comes from elsewhere.
const CONTRADICTED: f64 = 3.0;
/// A number that is farther from 0 than this is nonsense: all are logarithms or factors of such.
const FARTHEST: f64 = 50.0;
/// Standard deviation of the log of a solo rate from elsewhere.
const FROM_ELSEWHERE: f64 = 0.15;
/// What a class is known by.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Class {
    /// Mean of its numbers where all global constants are 0.
    pub(super) intercept: [f64; CLASS],
    /// What they change with those.
    pub(super) slope: [[f64; GLOBALS]; CLASS],
    /// Covariance given those.
    pub(super) cov: [[f64; CLASS]; CLASS],
    /// Log of the solo rate of its tasks that have none in their profile; `None`: nothing is known.
    pub(crate) solo: Option<f64>,
    /// Number of observations.
    pub(crate) seen: u32,
    /// Errors in a row that contradict, with their sign.
    pub(super) against: i8,
    /// Whether its solo rate is not believed.
    pub(crate) doubted: bool,
}

impl Class {
    /// Means of its numbers where the global constants are these.
    pub(super) fn at(&self, globals: &[f64; GLOBALS]) -> [f64; CLASS] {
        let shift = |a: usize| -> f64 { self.slope[a].iter().zip(globals).map(|(k, g)| k * g).sum() };
        std::array::from_fn(|a| self.intercept[a] + shift(a))
    }
}

/// All that is learned for one type of GPU and way of sharing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Domain {
    pub(super) mean: [f64; GLOBALS],
    pub(super) cov: [[f64; GLOBALS]; GLOBALS],
    prior_mean: [f64; GLOBALS],
    prior_var: [f64; GLOBALS],
    pub(super) classes: BTreeMap<String, Class>,
    /// How much wider classes turned out to differ than the prior has it: factor of the first four standard
    /// deviations of a class that is new.
    pub(super) spread: [f64; SOLO],
    scores: Scores,
    /// Groups observed.
    pub(crate) seen: u64,
}

/// One member as the domain sees it.
pub(crate) struct Seat<'a> {
    pub class: &'a str,
    pub features: &'a Features,
}

/// What is predicted, in logarithms.
pub(crate) struct Guess {
    /// Log progress: mean and standard deviation.
    pub progress: (f64, f64),
    /// Log rate, where a solo rate is known or learned.
    pub rate: Option<(f64, f64)>,
    /// Law with the prior's constants.
    pub prior: f64,
    pub seen: u32,
    pub doubted: bool,
    /// Factors learned for its class: weight, demand, progress.
    pub learned: [f64; 3],
}

/// A measured value for one member, as a logarithm.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Label {
    Progress(f64),
    Rate(f64),
}

impl Domain {
    pub(crate) fn new(mode: Mode, split: bool, capacity: f64) -> Self {
        let (mean, sd) = prior(mode, split, capacity);
        let mut cov = [[0.0; GLOBALS]; GLOBALS];
        for (at, sd) in sd.iter().enumerate() {
            cov[at][at] = sd * sd;
        }
        Self {
            mean,
            cov,
            prior_mean: mean,
            prior_var: sd.map(|sd| sd * sd),
            classes: BTreeMap::new(),
            spread: [1.0; SOLO],
            scores: Scores::default(),
            seen: 0,
        }
    }

    /// Exponents of the weight's features as learned, and the capacity.
    pub(crate) fn constants(&self, members: usize) -> (f64, [f64; WEIGHTS]) {
        let mut theta = [0.0; WEIGHTS];
        theta.copy_from_slice(&self.mean[THETA..BETA]);
        (capacity(&self.mean, members), theta)
    }

    /// Predicts the members of a group. `clock` is the log of what the power limit leaves each of them.
    pub(crate) fn guess(&self, mode: Mode, seats: &[Seat<'_>], split: bool, clock: &[f64]) -> Vec<Guess> {
        let local = Local::new(self, seats);
        let linear = local.linear(mode, seats, split, clock);
        let through = linear.slope.times(&local.cov);
        let mut prior = vec![0.0; local.mean.len()];
        prior[..GLOBALS].copy_from_slice(&self.prior_mean);
        let prior_law = law::progress(mode, &local.clients(&prior, seats), capacity(&prior, seats.len()));
        let noise = if seats.len() > 1 { NOISE } else { 0.02 };
        (0..seats.len())
            .map(|i| {
                let at = local.at(i);
                let class = &local.classes[local.seat[i]];
                let row = linear.slope.row(i);
                let variance: f64 = through.row(i).iter().zip(row).map(|(a, b)| a * b).sum();
                let total = (variance.max(0.0) + noise * noise).sqrt();
                let rate = local.solo(&seats[i], i).map(|solo| {
                    let s = at + SOLO;
                    let more = 2.0 * through.at(i, s) + local.cov.at(s, s);
                    let sd = ((variance + more).max(0.0) + noise * noise).sqrt();
                    (linear.value[i] + solo + local.mean[s], sd)
                });
                Guess {
                    progress: (linear.value[i], total),
                    rate,
                    prior: (prior_law[i].ln() + clock[i]).exp(),
                    seen: class.seen,
                    doubted: class.doubted,
                    learned: [local.mean[at].exp(), local.mean[at + 1].exp(), local.mean[at + 3].exp()],
                }
            })
            .collect()
    }

    /// Factor of the standard deviation for 90 % bounds.
    pub(crate) fn bounds(&self, members: usize, seen: u32) -> (f64, usize) {
        self.scores.factor(members, seen)
    }

    /// Learns from what was measured of the members; `None`: that one was not.
    pub(crate) fn learn(
        &mut self,
        mode: Mode,
        seats: &[Seat<'_>],
        split: bool,
        clock: &[f64],
        labels: &[Option<Label>],
    ) {
        self.forget(seats);
        let mut local = Local::new(self, seats);
        let linear = local.linear(mode, seats, split, clock);
        set_first_rates(seats, &mut local, &linear, labels);
        let Some(rows) = Rows::of(&local, &linear, seats, labels) else { return };
        let weights = self.judge(&mut local, &rows, seats, labels);
        let before = local.mean.clone();
        let mut last = None;
        // The law bends: what is learned is linearised again where it leads to.
        for _ in 0..ROUNDS {
            let linear = local.linear(mode, seats, split, clock);
            let Some(rows) = Rows::of(&local, &linear, seats, labels) else { return };
            let Some((gain, through)) = rows.gain(&local.cov, &weights) else { return };
            let back: Vec<f64> = before.iter().zip(&local.mean).map(|(b, now)| b - now).collect();
            let errors: Vec<f64> = (0..rows.errors.len())
                .map(|r| {
                    rows.errors[r] - rows.slope.row(r).iter().zip(&back).map(|(s, b)| s * b).sum::<f64>()
                })
                .collect();
            for (c, mean) in local.mean.iter_mut().enumerate() {
                *mean = before[c] + gain.row(c).iter().zip(&errors).map(|(g, e)| g * e).sum::<f64>();
            }
            last = Some(gain.times(&through));
        }
        let Some(less) = last else { return };
        for (value, less) in local.cov.data.iter_mut().zip(&less.data) {
            *value -= less;
        }
        self.keep(seats, local, labels);
    }

    /// Scores of predictions that have not seen this observation, and what contradicts solo rates. Returns how
    /// much each measured value counts.
    fn judge(
        &mut self,
        local: &mut Local,
        rows: &Rows,
        seats: &[Seat<'_>],
        labels: &[Option<Label>],
    ) -> Vec<f64> {
        let through = rows.slope.times(&local.cov);
        let mut weights = Vec::with_capacity(rows.errors.len());
        for (r, (&i, error)) in rows.members.iter().zip(&rows.errors).enumerate() {
            let variance: f64 = through.row(r).iter().zip(rows.slope.row(r)).map(|(a, b)| a * b).sum();
            let score = error / (variance.max(0.0) + NOISE * NOISE).sqrt();
            let solo = local.at(i) + SOLO;
            let class = &mut local.classes[local.seat[i]];
            self.scores.add(seats.len(), class.seen, score);
            class.against = if score.abs() < CONTRADICTED {
                0
            } else if (score > 0.0) == (class.against > 0) {
                (class.against + score.signum() as i8).clamp(-100, 100)
            } else {
                score.signum() as i8
            };
            let elsewhere = seats[i].features.rate.is_some_and(|(_, sd)| sd >= FROM_ELSEWHERE);
            let needed = if elsewhere { 1 } else { 2 };
            if matches!(labels[i], Some(Label::Rate(_))) && class.against.abs() >= needed && !class.doubted {
                class.doubted = true;
                class.against = 0;
                let value = local.cov.at(solo, solo) + 1.0;
                local.cov.set(solo, solo, value);
                weights.push(1.0);
            } else {
                weights.push(1.0 / (1.0 + (score / ROBUST).powi(2)));
            }
        }
        weights
    }

    fn forget(&mut self, seats: &[Seat<'_>]) {
        // Each number forgets up to its prior and no further.
        for i in 0..GLOBALS {
            let room = self.prior_var[i] / self.cov[i][i].max(1e-12);
            let root = (1.0 / FORGET).min(room).max(1.0).sqrt();
            for j in 0..GLOBALS {
                self.cov[i][j] *= root;
                self.cov[j][i] *= root;
            }
        }
        for seat in seats {
            if let Some(class) = self.classes.get_mut(seat.class) {
                let sd = class_sd(seat.features, &self.spread);
                // A task's own solo rate does not age: it was measured, or is learned anew each time.
                for (a, sd) in sd.iter().enumerate().take(SOLO) {
                    let room = sd * sd / class.cov[a][a].max(1e-12);
                    let root = (1.0 / FORGET).min(room).max(1.0).sqrt();
                    for b in 0..CLASS {
                        class.cov[a][b] *= root;
                        class.cov[b][a] *= root;
                    }
                }
            }
        }
    }

    /// Takes the local state back: globals, and each class given them.
    fn keep(&mut self, seats: &[Seat<'_>], local: Local, labels: &[Option<Label>]) {
        let n = local.mean.len();
        let sound = local.mean.iter().all(|v| v.is_finite() && v.abs() < FARTHEST)
            && (0..n).all(|i| local.cov.at(i, i).is_finite() && local.cov.at(i, i) > 0.0);
        let mut global = Matrix::zero(GLOBALS, GLOBALS);
        for i in 0..GLOBALS {
            for j in 0..GLOBALS {
                global.set(i, j, 0.5 * (local.cov.at(i, j) + local.cov.at(j, i)));
            }
        }
        // An update that left nonsense is dropped whole: the state stays what it was.
        let (true, Some(factor)) = (sound, global.cholesky()) else { return };
        for i in 0..GLOBALS {
            self.mean[i] = local.mean[i];
            self.cov[i].copy_from_slice(global.row(i));
        }
        for (c, mut class) in local.classes.into_iter().enumerate() {
            let at = GLOBALS + CLASS * c;
            let mut slope = Matrix::zero(CLASS, GLOBALS);
            for a in 0..CLASS {
                slope.data[a * GLOBALS..][..GLOBALS].copy_from_slice(&local.cov.row(at + a)[..GLOBALS]);
            }
            let cross = slope.clone();
            factor.solve_rows(&mut slope);
            let explained = slope.times_transposed(&cross);
            for a in 0..CLASS {
                class.slope[a].copy_from_slice(slope.row(a));
                let shift: f64 = slope.row(a).iter().zip(&self.mean).map(|(k, g)| k * g).sum();
                class.intercept[a] = local.mean[at + a] - shift;
                for b in 0..CLASS {
                    let half = |a: usize, b: usize| local.cov.at(at + a, at + b) - explained.at(a, b);
                    class.cov[a][b] = 0.5 * (half(a, b) + half(b, a));
                }
                class.cov[a][a] = class.cov[a][a].max(1e-9);
            }
            let measured = local.seat.iter().zip(labels).any(|(s, label)| *s == c && label.is_some());
            class.seen = class.seen.saturating_add(u32::from(measured));
            if let Some(first) = local.seat.iter().position(|s| *s == c) {
                self.classes.insert(seats[first].class.to_owned(), class);
            }
        }
        self.seen += 1;
        self.widen();
    }

    /// Learns from the classes known how far a new one may lie from the prior.
    fn widen(&mut self) {
        for (a, sd) in CLASS_SD.into_iter().enumerate() {
            let (mut sum, mut count) = (SPREAD_COUNTS, SPREAD_COUNTS);
            for class in self.classes.values() {
                let mean = class.at(&self.mean)[a];
                sum += (mean * mean + class.cov[a][a]) / (sd * sd);
                count += 1.0;
            }
            self.spread[a] = (sum / count).sqrt().clamp(0.3, 5.0);
        }
    }

    /// Whether numbers from a file can be worked with.
    pub(crate) fn is_sound(&self) -> bool {
        let finite = |v: &[f64]| v.iter().all(|x| x.is_finite() && x.abs() < 1e6);
        let positive = |cov: &[&[f64]]| {
            let n = cov.len();
            let data = cov.iter().flat_map(|row| row.iter().copied()).collect();
            Matrix { rows: n, cols: n, data }.cholesky().is_some()
        };
        let rows: Vec<&[f64]> = self.cov.iter().map(<[f64; GLOBALS]>::as_slice).collect();
        let near = |v: &[f64]| v.iter().all(|x| x.abs() < FARTHEST);
        finite(&self.mean)
            && near(&self.mean)
            && near(&self.prior_mean)
            && finite(&self.prior_mean)
            && finite(&self.prior_var)
            && self.spread.iter().all(|v| (0.01..=100.0).contains(v))
            && self.prior_var.iter().all(|v| *v > 0.0)
            && finite(self.cov.as_flattened())
            && positive(&rows)
            && self.scores.is_sound()
            && self.classes.values().all(|class| {
                finite(&class.intercept)
                    && finite(class.slope.as_flattened())
                    && finite(class.cov.as_flattened())
                    // A class that was seen long ago moves with the constants.
                    && class.at(&self.mean).iter().all(|v| v.abs() < 20.0 * FARTHEST)
                    && (0..CLASS).all(|a| class.cov[a][a] >= 0.0)
                    && class.solo.is_none_or(|log| log.is_finite() && log.abs() < 500.0)
            })
    }
}

/// The measured values: whose, how far off the prediction, and the slopes there.
struct Rows {
    members: Vec<usize>,
    errors: Vec<f64>,
    slope: Matrix,
}

impl Rows {
    /// `None`: nothing was measured that can be used.
    fn of(local: &Local, linear: &Linear, seats: &[Seat<'_>], labels: &[Option<Label>]) -> Option<Self> {
        let (mut members, mut errors) = (Vec::new(), Vec::new());
        let n = local.mean.len();
        let mut slope = Matrix::zero(0, n);
        for (i, label) in labels.iter().enumerate() {
            let solo = local.at(i) + SOLO;
            let (measured, predicted) = match label {
                Some(Label::Progress(log)) => (*log, linear.value[i]),
                Some(Label::Rate(log)) => match local.solo(&seats[i], i) {
                    Some(rate) => (*log, linear.value[i] + rate + local.mean[solo]),
                    None => continue,
                },
                None => continue,
            };
            if !(measured - predicted).is_finite() {
                continue;
            }
            slope.data.extend_from_slice(linear.slope.row(i));
            slope.rows += 1;
            if matches!(label, Some(Label::Rate(_))) {
                slope.set(slope.rows - 1, solo, 1.0);
            }
            members.push(i);
            errors.push(measured - predicted);
        }
        (!members.is_empty()).then_some(Self { members, errors, slope })
    }

    /// The Kalman gain, a row for each number, and `slope * cov`.
    fn gain(&self, cov: &Matrix, weights: &[f64]) -> Option<(Matrix, Matrix)> {
        let through = self.slope.times(cov);
        let mut inner = through.times_transposed(&self.slope);
        for (r, weight) in weights.iter().enumerate().take(inner.rows) {
            inner.set(r, r, inner.at(r, r) + NOISE * NOISE / weight);
        }
        let factor = inner.cholesky()?;
        let mut gain = Matrix::zero(through.cols, through.rows);
        for r in 0..through.rows {
            for c in 0..through.cols {
                gain.set(c, r, through.at(r, c));
            }
        }
        factor.solve_rows(&mut gain);
        Some((gain, through))
    }
}

/// A class without a solo rate takes its first observed one, as far from it as the law says.
fn set_first_rates(seats: &[Seat<'_>], local: &mut Local, linear: &Linear, labels: &[Option<Label>]) {
    for (i, seat) in seats.iter().enumerate() {
        let at = local.at(i) + SOLO;
        if let (None, Some(Label::Rate(log))) = (local.solo(seat, i), labels[i]) {
            local.classes[local.seat[i]].solo = Some(log - linear.value[i]);
            // As good as unknown: the step that follows makes it as sure as the law is.
            local.cov.set(at, at, 4.0);
        }
    }
}

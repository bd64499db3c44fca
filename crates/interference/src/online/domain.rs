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
use super::matrix::Matrix;
use crate::predict::Mode;
use crate::predict::features::{Features, WEIGHTS};
use crate::predict::law::{self, Client, Scratch};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Global constants: log capacity; its offsets for 3, 4, 5 and more members; logit of the host's
/// overlap; weight exponents; residual's coefficients; log of what a thread limit's neighbours cost.
pub(crate) const GLOBALS: usize = 5 + WEIGHTS + RESIDUALS + 1;
const CAPACITY: usize = 0;
const OVERLAP: usize = 4;
const THETA: usize = 5;
const BETA: usize = THETA + WEIGHTS;
const SPLIT: usize = BETA + RESIDUALS;
const RESIDUALS: usize = 3;

/// Numbers of a class, in order: weight, demand, overlap, sensitivity, solo rate.
pub(crate) const CLASS: usize = 5;
const SOLO: usize = 4;

/// Forgetting of one observation.
const FORGET: f64 = 0.99;
/// Standard deviation of what no constant explains, in log rate.
const NOISE: f64 = 0.1;
/// Beyond this many standard deviations an error counts less and less.
const ROBUST: f64 = 4.0;
/// A solo rate that errors of one sign contradict by this many standard deviations is not believed any
/// more: twice in a row where it was measured here, once where it comes from elsewhere.
const CONTRADICTED: f64 = 3.0;
/// Standard deviation of the log of a solo rate from elsewhere.
const FROM_ELSEWHERE: f64 = 0.15;
const STEP: f64 = 1e-3;

/// What a class is known by.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Class {
    /// Mean of its numbers where all global constants are 0.
    intercept: [f64; CLASS],
    /// What they change with those.
    slope: [[f64; GLOBALS]; CLASS],
    /// Covariance given those.
    cov: [[f64; CLASS]; CLASS],
    /// Log of the solo rate of its tasks that have none in their profile; `None`: nothing is known.
    pub(crate) solo: Option<f64>,
    /// Observations.
    pub(crate) seen: u32,
    /// Errors in a row that contradict, with their sign.
    against: i8,
    /// Whether its solo rate is not believed.
    pub(crate) doubted: bool,
}

/// All that is learned for one type of GPU and way of sharing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Domain {
    mean: [f64; GLOBALS],
    cov: [[f64; GLOBALS]; GLOBALS],
    prior_mean: [f64; GLOBALS],
    prior_var: [f64; GLOBALS],
    pub(crate) classes: BTreeMap<String, Class>,
    /// How much wider classes turned out to differ than the prior has it: factor of the first four standard
    /// deviations of a class that is new.
    spread: [f64; SOLO],
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

fn logistic(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn logit(p: f64) -> f64 {
    (p / (1.0 - p)).ln()
}

/// Prior mean and standard deviation of the global constants.
fn prior(mode: Mode, split: bool, capacity: f64) -> ([f64; GLOBALS], [f64; GLOBALS]) {
    let (mut mean, mut sd) = ([0.0; GLOBALS], [0.0; GLOBALS]);
    mean[CAPACITY] = capacity.ln();
    sd[CAPACITY] = 0.1;
    // How levels change with the number of members does not carry over (reference: errors of 50 % and 80 %).
    sd[1..OVERLAP].fill(0.15);
    // A fifth of the host's time is hidden: between tasks that wait for each kernel and such that queue.
    mean[OVERLAP] = logit(0.2);
    sd[OVERLAP] = 1.0;
    if mode == Mode::Mps {
        // Who has more resident gets more: occupancy, and registers where only Nsight Compute knows.
        mean[THETA..BETA].copy_from_slice(&[0.3, 0.5, 0.0, 0.3]);
        sd[THETA..BETA].copy_from_slice(&[0.3, 0.3, 0.2, 0.6]);
    } else {
        // The driver's slices are equal.
        sd[THETA..BETA].fill(0.05);
    }
    sd[BETA..SPLIT].fill(0.1);
    mean[SPLIT] = if split { 0.92_f64.ln() } else { 0.0 };
    sd[SPLIT] = if split { 0.1 } else { 1e-3 };
    (mean, sd)
}

/// Prior standard deviations of a class' numbers, but for the solo rate's, of a task whose profile is whole.
const CLASS_SD: [f64; SOLO] = [0.5, 0.3, 1.0, 0.08];
/// The prior counts as much as this many classes in [`Domain::spread`].
const SPREAD_COUNTS: f64 = 4.0;

/// Prior standard deviations of a class' numbers.
fn class_sd(features: &Features, spread: &[f64; SOLO]) -> [f64; CLASS] {
    let doubt = features.doubt;
    let [u, d, v, b] = [0, 1, 2, 3].map(|a| CLASS_SD[a] * spread[a]);
    [u * doubt, d * doubt, v, b * doubt.min(1.5), features.rate.map_or(0.0, |(_, sd)| sd)]
}

fn fresh(features: &Features, spread: &[f64; SOLO]) -> Class {
    let mut cov = [[0.0; CLASS]; CLASS];
    for (at, sd) in class_sd(features, spread).into_iter().enumerate() {
        cov[at][at] = sd * sd;
    }
    Class {
        intercept: [0.0; CLASS],
        slope: [[0.0; GLOBALS]; CLASS],
        cov,
        solo: None,
        seen: 0,
        against: 0,
        doubted: false,
    }
}

/// The members of a group over the local state: globals, then each distinct class.
struct Local {
    classes: Vec<Class>,
    /// Class of each seat.
    seat: Vec<usize>,
    mean: Vec<f64>,
    cov: Matrix,
}

/// Values and slopes of the members' log progress, without `s`.
struct Linear {
    value: Vec<f64>,
    slope: Matrix,
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

    fn local(&self, seats: &[Seat<'_>]) -> Local {
        let mut names: Vec<&str> = Vec::new();
        let mut classes = Vec::new();
        let mut seat = Vec::with_capacity(seats.len());
        for s in seats {
            let at = names.iter().position(|name| *name == s.class).unwrap_or_else(|| {
                names.push(s.class);
                classes.push(
                    self.classes.get(s.class).cloned().unwrap_or_else(|| fresh(s.features, &self.spread)),
                );
                names.len() - 1
            });
            seat.push(at);
        }
        let n = GLOBALS + CLASS * classes.len();
        let mut mean = vec![0.0; n];
        mean[..GLOBALS].copy_from_slice(&self.mean);
        let global = Matrix { rows: GLOBALS, cols: GLOBALS, data: self.cov.as_flattened().to_vec() };
        let mut slopes = Matrix::zero(CLASS * classes.len(), GLOBALS);
        for (c, class) in classes.iter().enumerate() {
            for a in 0..CLASS {
                let row = &class.slope[a];
                let shift: f64 = row.iter().zip(&self.mean).map(|(k, g)| k * g).sum();
                mean[GLOBALS + CLASS * c + a] = class.intercept[a] + shift;
                slopes.data[(CLASS * c + a) * GLOBALS..][..GLOBALS].copy_from_slice(row);
            }
        }
        let cross = slopes.times(&global);
        let between = cross.times_transposed(&slopes);
        let mut cov = Matrix::zero(n, n);
        for i in 0..GLOBALS {
            for j in 0..GLOBALS {
                cov.set(i, j, global.at(i, j));
            }
        }
        for i in 0..cross.rows {
            for j in 0..GLOBALS {
                cov.set(GLOBALS + i, j, cross.at(i, j));
                cov.set(j, GLOBALS + i, cross.at(i, j));
            }
            for j in 0..cross.rows {
                let mut value = between.at(i, j);
                if i / CLASS == j / CLASS {
                    value += classes[i / CLASS].cov[i % CLASS][j % CLASS];
                }
                cov.set(GLOBALS + i, GLOBALS + j, value);
            }
        }
        Local { classes, seat, mean, cov }
    }

    /// Where in the local state the numbers of a seat's class begin.
    fn of(local: &Local, seat: usize) -> usize {
        GLOBALS + CLASS * local.seat[seat]
    }

    fn clients(mean: &[f64], local: &Local, seats: &[Seat<'_>]) -> Vec<Client> {
        let mut logs: Vec<f64> = seats
            .iter()
            .enumerate()
            .map(|(i, s)| {
                let x: f64 = s.features.weight.iter().zip(&mean[THETA..BETA]).map(|(x, t)| x * t).sum();
                x + mean[Self::of(local, i)]
            })
            .collect();
        let middle = logs.iter().sum::<f64>() / logs.len().max(1) as f64;
        logs.iter_mut().for_each(|l| *l = (*l - middle).clamp(-12.0, 12.0));
        seats
            .iter()
            .enumerate()
            .map(|(i, s)| {
                let at = Self::of(local, i);
                let f = s.features;
                Client {
                    engine: logistic(logit(f.engine) + mean[at + 1]),
                    fill: f.fill,
                    dram: f.dram,
                    tensor: f.tensor,
                    pcie: f.pcie,
                    weight: logs[i].exp(),
                    overlap: logistic(mean[OVERLAP] + mean[at + 2]),
                    limit: f.limit,
                    cap: f.cap,
                }
            })
            .collect()
    }

    fn linear(mode: Mode, local: &Local, seats: &[Seat<'_>], split: bool, clock: &[f64]) -> Linear {
        let k = seats.len();
        let mut scratch = Scratch::default();
        let mut clients = Self::clients(&local.mean, local, seats);
        let capacity = capacity(&local.mean, k);
        let mut run = |clients: &[Client], capacity: f64| {
            let mut out = Vec::with_capacity(k);
            law::progress_into(mode, clients, capacity, &mut scratch, &mut out);
            out.iter_mut().for_each(|p| *p = p.ln());
            out
        };
        let base = run(&clients, capacity);
        let mut slope = Matrix::zero(k, local.mean.len());
        let add = |column: usize, moved: &[f64], factor: f64, slope: &mut Matrix| {
            for (i, (m, b)) in moved.iter().zip(&base).enumerate() {
                let value = slope.at(i, column) + factor * (m - b) / STEP;
                slope.set(i, column, value);
            }
        };
        if k > 1 {
            let moved = run(&clients, capacity * STEP.exp());
            add(CAPACITY, &moved, 1.0, &mut slope);
            for column in 1..=offsets(k) {
                add(column, &moved, 1.0, &mut slope);
            }
            for j in 0..k {
                let at = Self::of(local, j);
                let client = clients[j];
                clients[j].weight = client.weight * STEP.exp();
                let moved = run(&clients, capacity);
                add(at, &moved, 1.0, &mut slope);
                for (x, column) in seats[j].features.weight.iter().zip(THETA..BETA) {
                    if *x != 0.0 {
                        add(column, &moved, *x, &mut slope);
                    }
                }
                clients[j] = Client { engine: logistic(logit(client.engine) + STEP), ..client };
                let moved = run(&clients, capacity);
                add(at + 1, &moved, 1.0, &mut slope);
                clients[j] = Client { overlap: logistic(logit(client.overlap) + STEP), ..client };
                let moved = run(&clients, capacity);
                add(at + 2, &moved, 1.0, &mut slope);
                add(OVERLAP, &moved, 1.0, &mut slope);
                clients[j] = client;
            }
        }
        let mut value = base;
        for i in 0..k {
            value[i] += clock[i];
            if k < 2 {
                continue;
            }
            let phi = residual_features(&clients, &value, i);
            for (column, phi) in (BETA..SPLIT).zip(phi) {
                slope.set(i, column, phi);
            }
            let at = Self::of(local, i);
            value[i] += phi.iter().zip(&local.mean[BETA..SPLIT]).map(|(x, b)| x * b).sum::<f64>();
            slope.set(i, at + 3, slope.at(i, at + 3) + 1.0);
            value[i] += local.mean[at + 3];
            if split {
                slope.set(i, SPLIT, 1.0);
                value[i] += local.mean[SPLIT];
            }
        }
        Linear { value, slope }
    }

    /// Predicts the members of a group. `clock` is the log of what the power limit leaves each of them.
    pub(crate) fn guess(&self, mode: Mode, seats: &[Seat<'_>], split: bool, clock: &[f64]) -> Vec<Guess> {
        let local = self.local(seats);
        let linear = Self::linear(mode, &local, seats, split, clock);
        let through = linear.slope.times(&local.cov);
        let mut prior = vec![0.0; local.mean.len()];
        prior[..GLOBALS].copy_from_slice(&self.prior_mean);
        let prior_law =
            law::progress(mode, &Self::clients(&prior, &local, seats), capacity(&prior, seats.len()));
        let noise = if seats.len() > 1 { NOISE } else { 0.02 };
        (0..seats.len())
            .map(|i| {
                let at = Self::of(&local, i);
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
        let mut local = self.local(seats);
        let linear = Self::linear(mode, &local, seats, split, clock);
        set_first_rates(seats, &mut local, &linear, labels);
        let n = local.mean.len();
        let rows: Vec<(usize, f64)> = labels
            .iter()
            .enumerate()
            .filter_map(|(i, label)| {
                let predicted = match label.as_ref()? {
                    Label::Progress(_) => linear.value[i],
                    Label::Rate(_) => {
                        linear.value[i] + local.solo(&seats[i], i)? + local.mean[Self::of(&local, i) + SOLO]
                    }
                };
                let (Label::Progress(measured) | Label::Rate(measured)) = (*label)?;
                let error = measured - predicted;
                error.is_finite().then_some((i, error))
            })
            .collect();
        if rows.is_empty() {
            return;
        }
        let mut slope = Matrix::zero(rows.len(), n);
        for (r, &(i, _)) in rows.iter().enumerate() {
            slope.data[r * n..(r + 1) * n].copy_from_slice(linear.slope.row(i));
            if matches!(labels[i], Some(Label::Rate(_))) {
                slope.set(r, Self::of(&local, i) + SOLO, 1.0);
            }
        }
        let through = slope.times(&local.cov);
        let spread = |r: usize, through: &Matrix, slope: &Matrix| {
            let variance: f64 = through.row(r).iter().zip(slope.row(r)).map(|(a, b)| a * b).sum();
            (variance.max(0.0) + NOISE * NOISE).sqrt()
        };
        // Scores and contradictions are of predictions that have not seen this observation.
        let mut doubts = Vec::new();
        let mut weights = Vec::with_capacity(rows.len());
        for (r, &(i, error)) in rows.iter().enumerate() {
            let score = error / spread(r, &through, &slope);
            let known = local.classes[local.seat[i]].seen;
            self.scores.add(seats.len(), known, score);
            let class = &mut local.classes[local.seat[i]];
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
                doubts.push(Self::of(&local, i) + SOLO);
                weights.push(1.0);
            } else {
                weights.push(1.0 / (1.0 + (score / ROBUST).powi(2)));
            }
        }
        for at in doubts {
            let value = local.cov.at(at, at) + 1.0;
            local.cov.set(at, at, value);
        }
        let through = slope.times(&local.cov);
        let mut inner = through.times_transposed(&slope);
        for (r, weight) in weights.iter().enumerate() {
            let value = inner.at(r, r) + NOISE * NOISE / weight;
            inner.set(r, r, value);
        }
        let Some(factor) = inner.cholesky() else { return };
        // Gain transposed: S^-1 (J P), one row per measured value.
        let mut gain = Matrix::zero(n, rows.len());
        for r in 0..rows.len() {
            for c in 0..n {
                gain.set(c, r, through.at(r, c));
            }
        }
        factor.solve_rows(&mut gain);
        for c in 0..n {
            let step: f64 = gain.row(c).iter().zip(&rows).map(|(g, (_, error))| g * error).sum();
            local.mean[c] += step;
        }
        let less = gain.times(&through);
        for (value, less) in local.cov.data.iter_mut().zip(&less.data) {
            *value -= less;
        }
        self.keep(seats, local, labels);
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
                for a in 0..SOLO {
                    let room = sd[a] * sd[a] / class.cov[a][a].max(1e-12);
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
        let sound = local.mean.iter().all(|v| v.is_finite() && v.abs() < 50.0)
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
        for a in 0..SOLO {
            let (mut sum, mut count) = (SPREAD_COUNTS, SPREAD_COUNTS);
            for class in self.classes.values() {
                let shift: f64 = class.slope[a].iter().zip(&self.mean).map(|(k, g)| k * g).sum();
                let mean = class.intercept[a] + shift;
                sum += (mean * mean + class.cov[a][a]) / (CLASS_SD[a] * CLASS_SD[a]);
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
        finite(&self.mean)
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
                    && (0..CLASS).all(|a| class.cov[a][a] >= 0.0)
                    && class.solo.is_none_or(|log| log.is_finite() && log.abs() < 500.0)
            })
    }
}

/// A class without a solo rate takes its first observed one, as far from it as the law says.
fn set_first_rates(seats: &[Seat<'_>], local: &mut Local, linear: &Linear, labels: &[Option<Label>]) {
    for (i, seat) in seats.iter().enumerate() {
        let at = Domain::of(local, i) + SOLO;
        if let (None, Some(Label::Rate(log))) = (local.solo(seat, i), labels[i]) {
            local.classes[local.seat[i]].solo = Some(log - linear.value[i]);
            // As good as unknown: the step that follows makes it as sure as the law is.
            local.cov.set(at, at, 4.0);
        }
    }
}

impl Local {
    /// Log of the solo rate of a seat: its profile's, else what its class is known by.
    fn solo(&self, seat: &Seat<'_>, at: usize) -> Option<f64> {
        seat.features.rate.map(|(log, _)| log).or(self.classes[self.seat[at]].solo)
    }
}

fn offsets(members: usize) -> usize {
    members.saturating_sub(2).min(3)
}

fn capacity(mean: &[f64], members: usize) -> f64 {
    mean[..=offsets(members)].iter().sum::<f64>().clamp(-2.5, 2.5).exp()
}

/// What the residual sees of member `i`: what it and the others ask together of DRAM, of the tensor pipes,
/// and of SMs while both run.
fn residual_features(clients: &[Client], log_progress: &[f64], i: usize) -> [f64; RESIDUALS] {
    let own = &clients[i];
    let (mut dram, mut tensor, mut sm) = (0.0, 0.0, 0.0);
    for (j, other) in clients.iter().enumerate() {
        if j != i {
            let busy = other.engine * log_progress[j].exp().min(1.0);
            dram += busy * other.dram;
            tensor += busy * other.tensor;
            sm += busy * other.fill;
        }
    }
    [own.engine * own.dram * dram, own.engine * own.tensor * tensor, own.engine * own.fill * sm]
}

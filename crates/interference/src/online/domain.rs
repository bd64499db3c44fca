//! What is learned for one type of GPU and one way of sharing: a Gaussian over few global constants, and
//! a Gaussian for each class.
//!
//! The model of a rate in a group is
//!
//! ```text
//! log rate_i = log solo_i + s_class(i) + log p_i
//! log p_i    = log law_i(C_k, h, s, w, g, o) + b_class(i)
//! log w_j    = x_j . theta + u_class(j);  logit g_j = logit engine_j + d_class(j)
//! logit o_j  = omega + kappa (engine_j - 0.7) + v_class(j)
//! ```
//!
//! so a class has five numbers: `u` how aggressive it is, `d` how much more it loads than its profile
//! says, `v` how far its host runs ahead, `b` how sensitive it is, `s` how wrong its solo rate is. The
//! offset of the number of members goes with the capacity `C_k`. `s` is a latent of wide variance where the
//! solo rate is not known, and becomes one when the rates seen contradict it time and again.
//!
//! Classes are learned as observations come: a step of recursive least squares on the law linearised at what is known (an
//! extended Kalman filter) with forgetting 0.99 that stops at the prior. What the global constants leave open counts as
//! noise there, and they stay where they are, so that neither the order of observations nor a single task moves them.
//! They are fitted in batch ([`Domain::fit`]), together with the numbers of all classes of the rows, whose priors bound
//! what one task can do to them: to those rows that are given, and, as observations come, to the last of them.

use super::conformal::{Kind, Scores};
use super::features::{FROM_ELSEWHERE, Features, WEIGHTS};
use super::local::{Linear, Local, capacity, constants};
use super::matrix::Matrix;
use super::prior::{
    CAPACITY, CLASS, CLASS_SD, GLOBALS, SOLO, SPLIT, SPREAD_COUNTS, THETA, class_sd, fresh, prior,
};
use crate::group::{MOST_MEMBERS, Mode};
use crate::law;

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

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
/// How much less sure global constants are on a type of GPU on which they were not learned.
const ELSEWHERE: f64 = 2.0;
/// Rows that are kept to fit the global constants to, and after how many observations that is done first; then after twice
/// as many, and from a hundred on after each hundred.
const KEPT: usize = 200;
const FIRST_FIT: u64 = 10;
/// Classes of the rows that constants are fitted to as observations come: a fit takes the cube of their number, and the daemon
/// waits for it (480 took over a minute).
const FITTED: usize = 64;
/// Rounds of a fit in batch, and a change of all numbers that ends it.
const FIT_ROUNDS: usize = 20;
const SETTLED: f64 = 1e-3;

/// Precision of what a stage of a fit holds where it is.
const HELD: f64 = 1e12;

/// What a fit in batch moves: one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The global constants, all classes new but for solo rates that are not known.
    Globals,
    /// The classes given those.
    Classes,
}

impl Stage {
    /// Standard deviation of an error, and where errors begin to count less, in log rate. Errors of new tasks are larger,
    /// and those of one task go together: few of them say as much as many.
    const fn noise(self) -> (f64, f64) {
        match self {
            Self::Globals => (0.6, 0.3),
            Self::Classes => (NOISE, ROBUST * NOISE),
        }
    }

    /// How much a measured value of each class counts, 1 where nothing is said.
    fn weights(self, rows: &[Row]) -> BTreeMap<&str, f64> {
        let mut counts: BTreeMap<&str, f64> = BTreeMap::new();
        if self == Self::Globals {
            for ((class, _), _) in rows.iter().flat_map(|row| row.members.iter().zip(&row.labels)) {
                *counts.entry(class).or_default() += 1.0;
            }
            let middle = carma_stats::median(counts.values().copied().collect::<Vec<f64>>()).unwrap_or(1.0);
            counts.values_mut().for_each(|count| *count = (middle / *count).min(1.0));
        }
        counts
    }
}

/// What a class is known by beyond the rows of a fit.
struct ClassPrior {
    mean: Vec<f64>,
    precision: Matrix,
}

/// Prior standard deviations of a class that is to be fitted: what is not known of its solo rate is as wide as it was.
fn prior_sd(known: &Class, features: &Features, spread: &[f64; SOLO]) -> [f64; CLASS] {
    let mut sd = class_sd(features, spread);
    if known.doubted || known.solo.is_some() {
        sd[SOLO] = 1.0;
    }
    sd
}

/// In how many of the rows each class was measured, and in how many others alone.
fn counts_of(rows: &[Row]) -> BTreeMap<&str, (u32, u32)> {
    let mut counts: BTreeMap<&str, (u32, u32)> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.labels.iter().any(Option::is_some)) {
        let members = row.members.iter().zip(&row.labels);
        let mut measured: BTreeMap<&str, bool> = BTreeMap::new();
        members.for_each(|((class, _), label)| *measured.entry(class).or_default() |= label.is_some());
        for (class, measured) in measured {
            let (seen, beside) = counts.entry(class).or_default();
            *if measured { seen } else { beside } += 1;
        }
    }
    counts
}

/// The classes of rows: which one it is, and the features of its first task.
fn classes_of(rows: &[Row]) -> BTreeMap<&str, (usize, &Features)> {
    let mut names: BTreeMap<&str, (usize, &Features)> = BTreeMap::new();
    for (class, features) in rows.iter().flat_map(|row| &row.members) {
        let next = names.len();
        names.entry(class).or_insert((next, features));
    }
    names
}

/// What a class is known by.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Class {
    /// Mean of its numbers.
    pub(super) mean: [f64; CLASS],
    /// Their covariance given the global constants.
    pub(super) cov: [[f64; CLASS]; CLASS],
    /// Log of the solo rate of its tasks that have none in their profile; `None`: nothing is known.
    pub(crate) solo: Option<f64>,
    /// Number of observations.
    pub(crate) seen: u32,
    /// Number of those of its groups in which it was not measured, and others were.
    #[serde(default)]
    pub(super) beside: u32,
    /// Errors in a row that contradict, with their sign.
    pub(super) against: i8,
    /// Whether its solo rate is not believed.
    pub(crate) doubted: bool,
}

/// All that is learned for one type of GPU and way of sharing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Domain {
    pub(super) mean: [f64; GLOBALS],
    pub(super) cov: [[f64; GLOBALS]; GLOBALS],
    prior_mean: [f64; GLOBALS],
    prior_cov: [[f64; GLOBALS]; GLOBALS],
    pub(super) classes: BTreeMap<String, Class>,
    /// How much wider classes turned out to differ than the prior has it: factor of the first four standard
    /// deviations of a class that is new.
    pub(super) spread: [f64; SOLO],
    scores: Scores,
    /// Groups observed.
    pub(crate) seen: u64,
    /// The last of them.
    #[serde(default, skip_serializing_if = "VecDeque::is_empty")]
    rows: VecDeque<Row>,
}

/// An observation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    /// Class and features of each member.
    pub members: Vec<(String, Features)>,
    /// Log of what the power limit leaves each of them.
    pub clock: Vec<f64>,
    /// What was measured of them.
    pub labels: Vec<Option<Label>>,
}

impl Row {
    /// Whether a row from a file can be worked with.
    fn is_sound(&self) -> bool {
        let k = self.members.len();
        let label = |label: &Option<Label>| {
            label.is_none_or(|(Label::Progress(log) | Label::Rate(log))| log.is_finite() && log.abs() < 500.0)
        };
        (1..=MOST_MEMBERS).contains(&k)
            && self.clock.len() == k
            && self.labels.len() == k
            && self.clock.iter().all(|log| log.is_finite() && log.abs() < FARTHEST)
            && self.labels.iter().all(label)
            && self.members.iter().all(|(_, features)| features.is_sound())
    }

    fn seats(&self) -> Vec<Seat<'_>> {
        self.members.iter().map(|(class, features)| Seat { class, features }).collect()
    }
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
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
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
        Self::begin(mean, cov)
    }

    /// With these global constants as the prior, and nothing observed.
    fn begin(mean: [f64; GLOBALS], cov: [[f64; GLOBALS]; GLOBALS]) -> Self {
        Self {
            mean,
            cov,
            prior_mean: mean,
            prior_cov: cov,
            classes: BTreeMap::new(),
            spread: [1.0; SOLO],
            scores: Scores::default(),
            seen: 0,
            rows: VecDeque::new(),
        }
    }

    /// As much of it as holds on another type of GPU, which has this capacity.
    pub(crate) fn elsewhere(&self, capacity: f64) -> Self {
        let mut cov = self.cov;
        cov.as_flattened_mut().iter_mut().for_each(|value| *value *= ELSEWHERE * ELSEWHERE);
        let mut mean = self.mean;
        mean[CAPACITY] = capacity.ln();
        cov[CAPACITY].fill(0.0);
        cov.iter_mut().for_each(|row| row[CAPACITY] = 0.0);
        cov[CAPACITY][CAPACITY] = 0.01;
        Self { spread: self.spread, scores: self.scores.clone(), ..Self::begin(mean, cov) }
    }

    /// Forgets every class and row; what holds for all tasks is where learning goes on from.
    pub(crate) fn publish(&mut self) {
        self.classes.clear();
        self.rows.clear();
        (self.prior_mean, self.prior_cov) = (self.mean, self.cov);
    }

    /// Forgets a class, and the rows that it is in: by them the next fit would know it again.
    pub(super) fn drop_class(&mut self, class: &str) {
        self.classes.remove(class);
        self.rows.retain(|row| row.members.iter().all(|(of, _)| of != class));
    }

    /// What predictions of these classes go by. The rows, which may be many, are not copied first.
    pub(crate) fn of_classes(&self, classes: &BTreeSet<String>) -> Self {
        let of = |class: &String| Some((class.clone(), self.classes.get(class)?.clone()));
        Self {
            prior_mean: self.prior_mean,
            prior_cov: self.prior_cov,
            classes: classes.iter().filter_map(of).collect(),
            spread: self.spread,
            scores: self.scores.clone(),
            seen: self.seen,
            ..Self::begin(self.mean, self.cov)
        }
    }

    /// Exponents of the weight's features as learned, and the capacity.
    pub(crate) fn constants(&self, members: usize) -> (f64, [f64; WEIGHTS]) {
        let mut theta = [0.0; WEIGHTS];
        theta.copy_from_slice(&self.mean[THETA..SPLIT]);
        (capacity(&self.mean, members), theta)
    }

    /// Predicts the members of a group. `clock` is the log of what the power limit leaves each of them.
    pub(crate) fn guess(&self, mode: Mode, seats: &[Seat<'_>], split: bool, clock: &[f64]) -> Vec<Guess> {
        let local = Local::new(self, seats);
        let linear = local.linear(mode, seats, split, clock);
        let through = linear.slope.times(&local.cov);
        let mut prior = vec![0.0; local.mean.len()];
        prior[..GLOBALS].copy_from_slice(&self.prior_mean);
        let prior_law = law::progress(mode, &local.clients(&prior, seats), constants(&prior, seats.len()));
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

    /// Log of what is expected of each member's progress.
    pub(crate) fn expect(&self, mode: Mode, seats: &[Seat<'_>], split: bool, clock: &[f64]) -> Vec<f64> {
        Local::without_spread(self, seats).expect(mode, seats, split, clock)
    }

    /// Factor of the standard deviation for 90 % bounds.
    pub(crate) fn bounds(&self, kind: Kind) -> (f64, usize) {
        self.scores.factor(kind)
    }

    /// Learns from what was measured of the members; `None`: that one was not.
    pub(crate) fn learn(&mut self, mode: Mode, split: bool, row: Row) {
        self.step(mode, split, &row);
        if split {
            // Limits differ from row to row, and there are few of any one kind: such rows are not kept.
            return;
        }
        self.keep_row(row);
        let tens = self.seen / FIRST_FIT;
        if self.seen.is_multiple_of(FIRST_FIT) && (tens.is_power_of_two() || tens.is_multiple_of(10)) {
            let rows = self.latest();
            self.fit(mode, split, &rows, rows.len());
        }
    }

    /// The last rows with no more than [`FITTED`] classes among them, oldest first.
    fn latest(&self) -> Vec<Row> {
        let mut classes = BTreeSet::new();
        let few = self.rows.iter().rev().take_while(|row| {
            classes.extend(row.members.iter().map(|(class, _)| class));
            classes.len() <= FITTED
        });
        let mut rows: Vec<Row> = few.cloned().collect();
        rows.reverse();
        rows
    }

    /// One step for the classes of a row.
    fn step(&mut self, mode: Mode, split: bool, row: &Row) {
        let (seats, clock, labels) = (&row.seats()[..], &row.clock[..], &row.labels[..]);
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
            for (c, mean) in local.mean.iter_mut().enumerate().skip(GLOBALS) {
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

    /// Fits the global constants to these rows, then the numbers of all classes in them: the most likely ones, by Gauss and
    /// Newton with errors that count less the farther they are. The order of rows means nothing.
    ///
    /// The constants are those that serve tasks of which nothing is learned: all classes are taken for new, and none counts
    /// for more than the middle one, however many rows it has. A class begins with what it was known by beyond these rows;
    /// `told` of them, the first, are among those that it has seen. `false`: nothing came of it, and nothing has changed.
    pub(crate) fn fit(&mut self, mode: Mode, split: bool, rows: &[Row], told: usize) -> bool {
        let priors = self.priors(rows, told);
        let mut work = self.clone();
        for (class, features) in rows.iter().flat_map(|row| &row.members) {
            let known = self.classes.get(class);
            let (doubted, solo) = known.map_or((false, None), |known| (known.doubted, known.solo));
            let (seen, beside) = known.map_or((0, 0), |known| (known.seen, known.beside));
            let begun = Class { doubted, solo, seen, beside, ..fresh(features, &self.spread) };
            work.classes.insert(class.clone(), begun);
        }
        let Some(precision) = work.settle(mode, split, rows, Stage::Globals, &BTreeMap::new()) else {
            return false;
        };
        let Some(cov) = inverse(&precision) else { return false };
        for i in 0..GLOBALS {
            work.cov[i].copy_from_slice(&cov.row(i)[..GLOBALS]);
        }
        let Some(precision) = work.settle(mode, split, rows, Stage::Classes, &priors) else { return false };
        let Some(cov) = inverse(&precision) else { return false };
        for (class, (at, _)) in classes_of(rows) {
            if let Some(class) = work.classes.get_mut(class) {
                for a in 0..CLASS {
                    let row = cov.row(GLOBALS + CLASS * at + a);
                    class.cov[a].copy_from_slice(&row[GLOBALS + CLASS * at..][..CLASS]);
                }
            }
        }
        work.widen();
        *self = work;
        true
    }

    /// What the classes of rows were known by beyond these: the part of their information that is of earlier observations,
    /// and of a new class the rest. Classes of which these rows are all that was seen are not among them.
    fn priors(&self, rows: &[Row], told: usize) -> BTreeMap<String, ClassPrior> {
        let among = counts_of(&rows[..told]);
        let mut priors = BTreeMap::new();
        for (name, (_, features)) in classes_of(rows) {
            let Some(known) = self.classes.get(name) else { continue };
            // What others show beside it teaches it, too.
            let (seen, beside) = among.get(name).copied().unwrap_or_default();
            let (count, of) = (seen + beside, known.seen.saturating_add(known.beside));
            if of <= count {
                continue;
            }
            // Each observation makes the earlier ones count less.
            let left = |observations: u32| FORGET.powi(i32::try_from(observations).unwrap_or(i32::MAX));
            let (since, all) = (left(count), left(of));
            let earlier = (since - all) / (1.0 - all);
            let cov = Matrix { rows: CLASS, cols: CLASS, data: known.cov.as_flattened().to_vec() };
            let Some(mut precision) = inverse(&cov) else { continue };
            let told: Vec<f64> = (0..CLASS)
                .map(|a| precision.row(a).iter().zip(&known.mean).map(|(p, m)| earlier * p * m).sum())
                .collect();
            precision.data.iter_mut().for_each(|value| *value *= earlier);
            for (a, sd) in prior_sd(known, features, &self.spread).into_iter().enumerate() {
                precision.set(a, a, precision.at(a, a) + (1.0 - earlier) / (sd * sd).max(1e-8));
            }
            let Some(factor) = precision.cholesky() else { continue };
            let mut mean = Matrix { rows: 1, cols: CLASS, data: told };
            factor.solve_rows(&mut mean);
            priors.insert(name.to_owned(), ClassPrior { mean: mean.data, precision });
        }
        priors
    }

    /// What is believed of the numbers of [`Self::settle`] before its rows are seen: their mean and precision, and where they are now.
    fn believed(
        &self,
        stage: Stage,
        names: &BTreeMap<&str, (usize, &Features)>,
        priors: &BTreeMap<String, ClassPrior>,
    ) -> Option<(Vec<f64>, Matrix, Vec<f64>)> {
        let n = GLOBALS + CLASS * names.len();
        let mut prior_mean = vec![0.0; n];
        let mut around = Matrix::zero(n, n);
        match stage {
            Stage::Globals => {
                prior_mean[..GLOBALS].copy_from_slice(&self.prior_mean);
                let precision = inverse(&square(&self.prior_cov))?;
                for i in 0..GLOBALS {
                    around.data[i * n..][..GLOBALS].copy_from_slice(precision.row(i));
                }
            }
            Stage::Classes => {
                prior_mean[..GLOBALS].copy_from_slice(&self.mean);
                (0..GLOBALS).for_each(|i| around.set(i, i, HELD));
            }
        }
        let mut mean = prior_mean.clone();
        mean[..GLOBALS].copy_from_slice(&self.mean);
        for (class, (at, features)) in names {
            let known = self.classes.get(*class)?;
            let first = GLOBALS + CLASS * at;
            if let Some(prior) = priors.get(*class) {
                prior_mean[first..][..CLASS].copy_from_slice(&prior.mean);
                mean[first..][..CLASS].copy_from_slice(&prior.mean);
                for a in 0..CLASS {
                    around.data[(first + a) * n + first..][..CLASS].copy_from_slice(prior.precision.row(a));
                }
                continue;
            }
            mean[first..][..CLASS].copy_from_slice(&known.mean);
            for (a, sd) in prior_sd(known, features, &self.spread).into_iter().enumerate() {
                let place = first + a;
                let free = stage == Stage::Classes || a == SOLO;
                around.set(place, place, if free { 1.0 / (sd * sd).max(1e-8) } else { HELD });
            }
        }
        Some((prior_mean, around, mean))
    }

    /// Moves the numbers of one stage to where rows and prior have them, and returns the precision there of all: globals,
    /// then the classes of the rows. What is not of the stage is held. Classes without a prior of their own are new.
    fn settle(
        &mut self,
        mode: Mode,
        split: bool,
        rows: &[Row],
        stage: Stage,
        priors: &BTreeMap<String, ClassPrior>,
    ) -> Option<Matrix> {
        let names = classes_of(rows);
        let n = GLOBALS + CLASS * names.len();
        let (prior_mean, around, mut mean) = self.believed(stage, &names, priors)?;
        let weights = stage.weights(rows);
        // Where the last step began, the step, and what the errors cost there.
        let mut from = (mean.clone(), vec![0.0; n], f64::INFINITY);
        let mut precision = around.clone();
        for _ in 0..FIT_ROUNDS {
            precision.clone_from(&around);
            let back: Vec<f64> = prior_mean.iter().zip(&mean).map(|(prior, now)| prior - now).collect();
            let mut force: Vec<f64> =
                (0..n).map(|i| around.row(i).iter().zip(&back).map(|(a, b)| a * b).sum()).collect();
            let mut cost: f64 = back.iter().zip(&force).map(|(b, f)| b * f).sum();
            for row in rows {
                let seats = row.seats();
                let local = Local::new(self, &seats);
                let linear = local.linear(mode, &seats, split, &row.clock);
                let Some(measured) = Rows::of(&local, &linear, &seats, &row.labels) else { continue };
                // Local numbers among all.
                let place: Vec<usize> = (0..GLOBALS)
                    .chain(local.names(&seats).into_iter().flat_map(|class| {
                        let at = GLOBALS + CLASS * names.get(class).map_or(0, |(at, _)| *at);
                        at..at + CLASS
                    }))
                    .collect();
                for (r, error) in measured.errors.iter().enumerate() {
                    let counts = weights.get(seats[measured.members[r]].class).copied().unwrap_or(1.0);
                    let (noise, far) = stage.noise();
                    let far_off = 1.0 + (error / far).powi(2);
                    cost += counts * (far / noise).powi(2) * far_off.ln();
                    let weight = counts / (noise * noise * far_off);
                    let slope = measured.slope.row(r);
                    for (a, sa) in slope.iter().enumerate().filter(|(_, s)| **s != 0.0) {
                        force[place[a]] += weight * sa * error;
                        for (b, sb) in slope.iter().enumerate().filter(|(_, s)| **s != 0.0) {
                            precision.data[place[a] * n + place[b]] += weight * sa * sb;
                        }
                    }
                }
            }
            if cost.is_finite() && cost <= from.2 {
                let factor = precision.cholesky()?;
                let mut step = Matrix { rows: 1, cols: n, data: force };
                factor.solve_rows(&mut step);
                step.data.iter_mut().for_each(|s| *s = s.clamp(-0.5, 0.5));
                from = (mean.clone(), step.data, cost);
            } else {
                // Too far: the law bends more than its slope says.
                from.1.iter_mut().for_each(|s| *s *= 0.3);
            }
            let mut moved = 0.0_f64;
            for ((value, begun), step) in mean.iter_mut().zip(&from.0).zip(&from.1) {
                *value = begun + step;
                moved = moved.max(step.abs());
            }
            if !mean.iter().all(|v| v.is_finite() && v.abs() < FARTHEST) {
                return None;
            }
            self.mean.copy_from_slice(&mean[..GLOBALS]);
            for (class, (at, _)) in &names {
                if let Some(class) = self.classes.get_mut(*class) {
                    class.mean.copy_from_slice(&mean[GLOBALS + CLASS * at..][..CLASS]);
                }
            }
            if moved < SETTLED {
                break;
            }
        }
        Some(precision)
    }

    /// Fits to these rows and those that were kept ([`Domain::fit`]), and keeps the last of them. How far off predictions of
    /// known classes are is what one step after the other says, with the constants that were fitted.
    pub(crate) fn teach(&mut self, mode: Mode, split: bool, new: Vec<Row>) {
        if split && !self.classes.is_empty() {
            new.into_iter().for_each(|row| self.learn(mode, split, row));
            return;
        }
        let count = new.len() as u64;
        let told = self.rows.len();
        let rows: Vec<Row> = std::mem::take(&mut self.rows).into_iter().chain(new).collect();
        let among = counts_of(&rows[..told]);
        let earlier = |(name, class): (&String, &Class)| {
            let (seen, beside) = among.get(name.as_str()).copied().unwrap_or_default();
            (name.clone(), (class.seen.saturating_sub(seen), class.beside.saturating_sub(beside)))
        };
        let earlier: BTreeMap<String, (u32, u32)> = self.classes.iter().map(earlier).collect();
        if self.fit(mode, split, &rows, told) {
            let scores = std::mem::take(&mut self.scores);
            let mut again = Self { classes: BTreeMap::new(), scores: Scores::default(), ..self.clone() };
            rows.iter().for_each(|row| again.step(mode, split, row));
            self.scores = scores.with_known_of(again.scores);
            self.seen += count;
            for (class, learned) in &mut self.classes {
                let (seen, beside) = earlier.get(class).copied().unwrap_or_default();
                if let Some(again) = again.classes.get(class) {
                    (learned.seen, learned.beside) = (seen + again.seen, beside + again.beside);
                }
            }
        }
        if !split {
            rows.into_iter().for_each(|row| self.keep_row(row));
        }
    }

    fn keep_row(&mut self, row: Row) {
        self.rows.push_back(row);
        if self.rows.len() > KEPT {
            self.rows.pop_front();
        }
    }

    /// What the errors of a prediction of this observation are in standard deviations, and of which kind each is.
    pub(crate) fn errors(&self, mode: Mode, split: bool, row: &Row) -> Vec<(Kind, f64)> {
        let seats = row.seats();
        let local = Local::new(self, &seats);
        let linear = local.linear(mode, &seats, split, &row.clock);
        let Some(rows) = Rows::of(&local, &linear, &seats, &row.labels) else { return Vec::new() };
        let scores = rows.scores(&local.cov);
        rows.members
            .iter()
            .zip(scores)
            .map(|(&i, score)| {
                let seen = local.classes[local.seat[i]].seen;
                (Kind::of(seats.len(), seen, seats[i].features.engine), score)
            })
            .collect()
    }

    /// Takes errors of predictions in standard deviations.
    pub(crate) fn calibrate(&mut self, errors: &[(Kind, f64)]) {
        errors.iter().for_each(|(kind, score)| self.scores.add(*kind, *score));
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
        let scores = rows.scores(&local.cov);
        let mut weights = Vec::with_capacity(rows.errors.len());
        for (&i, score) in rows.members.iter().zip(scores) {
            let solo = local.at(i) + SOLO;
            let class = &mut local.classes[local.seat[i]];
            self.scores.add(Kind::of(seats.len(), class.seen, seats[i].features.engine), score);
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

    /// Takes the classes back.
    fn keep(&mut self, seats: &[Seat<'_>], local: Local, labels: &[Option<Label>]) {
        let n = local.mean.len();
        // An update that left nonsense is dropped whole: the state stays what it was. The solo rate of a task that tells no
        // steps has a variance of 0.
        let sound = local.mean.iter().all(|v| v.is_finite() && v.abs() < FARTHEST)
            && (GLOBALS..n).all(|i| local.cov.at(i, i).is_finite() && local.cov.at(i, i) >= 0.0);
        if !sound {
            return;
        }
        for (c, mut class) in local.classes.into_iter().enumerate() {
            let at = GLOBALS + CLASS * c;
            class.mean.copy_from_slice(&local.mean[at..][..CLASS]);
            for a in 0..CLASS {
                for b in 0..CLASS {
                    class.cov[a][b] = 0.5 * (local.cov.at(at + a, at + b) + local.cov.at(at + b, at + a));
                }
                class.cov[a][a] = class.cov[a][a].max(1e-9);
            }
            let measured = local.seat.iter().zip(labels).any(|(s, label)| *s == c && label.is_some());
            let count = if measured { &mut class.seen } else { &mut class.beside };
            *count = count.saturating_add(1);
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
                let mean = class.mean[a];
                sum += (mean * mean + class.cov[a][a]) / (sd * sd);
                count += 1.0;
            }
            self.spread[a] = (sum / count).sqrt().clamp(0.3, 5.0);
        }
    }

    /// Whether numbers from a file can be worked with.
    pub(crate) fn is_sound(&self) -> bool {
        let finite = |v: &[f64]| v.iter().all(|x| x.is_finite() && x.abs() < 1e6);
        let positive = |cov: &[[f64; GLOBALS]; GLOBALS]| square(cov).cholesky().is_some();
        let near = |v: &[f64]| v.iter().all(|x| x.abs() < FARTHEST);
        finite(&self.mean)
            && near(&self.mean)
            && near(&self.prior_mean)
            && finite(&self.prior_mean)
            && self.spread.iter().all(|v| (0.01..=100.0).contains(v))
            && finite(self.cov.as_flattened())
            && finite(self.prior_cov.as_flattened())
            && positive(&self.cov)
            && positive(&self.prior_cov)
            && self.scores.is_sound()
            && self.rows.len() <= KEPT
            && self.rows.iter().all(Row::is_sound)
            && self.classes.values().all(|class| {
                near(&class.mean)
                    && finite(&class.mean)
                    && finite(class.cov.as_flattened())
                    && (0..CLASS).all(|a| class.cov[a][a] >= 0.0)
                    && class.solo.is_none_or(|log| log.is_finite() && log.abs() < 500.0)
            })
    }
}

fn square(data: &[[f64; GLOBALS]; GLOBALS]) -> Matrix {
    Matrix { rows: GLOBALS, cols: GLOBALS, data: data.as_flattened().to_vec() }
}

/// `None`: it is not positive definite.
fn inverse(of: &Matrix) -> Option<Matrix> {
    let factor = of.cholesky()?;
    let mut out = Matrix::zero(of.rows, of.rows);
    (0..of.rows).for_each(|i| out.set(i, i, 1.0));
    factor.solve_rows(&mut out);
    Some(out)
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

    /// Errors in the standard deviations that they were predicted with.
    fn scores(&self, cov: &Matrix) -> Vec<f64> {
        let through = self.slope.times(cov);
        let of = |(r, error): (usize, &f64)| {
            let variance: f64 = through.row(r).iter().zip(self.slope.row(r)).map(|(a, b)| a * b).sum();
            error / (variance.max(0.0) + NOISE * NOISE).sqrt()
        };
        self.errors.iter().enumerate().map(of).collect()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::GpuType;
    use crate::profile::{Metrics, Profile, Rate, Stat};

    fn features(gpu: &GpuType, rate: Option<f64>) -> Features {
        let metrics = Metrics {
            gract_pct: Some(Stat::of(90.0)),
            smact_pct: Some(Stat::of(60.0)),
            ..Metrics::default()
        };
        let rate = rate.map(|per_s| Rate { per_s, ..Rate::default() });
        Features::of(&Profile { metrics, rate, ..Profile::default() }, None, Mode::Mps, gpu)
    }

    #[test]
    fn a_window_with_a_task_that_tells_no_steps_teaches_what_the_others_show() {
        let gpu = GpuType::named("H200");
        let silent_or_not = |rate: Option<f64>| {
            let mut domain = Domain::new(Mode::Mps, false, gpu.capacity(Mode::Mps));
            let members = vec![
                ("tells".into(), features(&gpu, Some(10.0))),
                ("neighbour".into(), features(&gpu, rate)),
            ];
            let seats: Vec<Seat<'_>> =
                members.iter().map(|(class, features): &(String, _)| Seat { class, features }).collect();
            let guess = |domain: &Domain| domain.guess(Mode::Mps, &seats, false, &[0.0; 2])[0].progress.0;
            let before = guess(&domain);
            let labels = vec![Some(Label::Progress(before - 0.4)), None];
            for _ in 0..3 {
                let row = Row { members: members.clone(), clock: vec![0.0; 2], labels: labels.clone() };
                domain.learn(Mode::Mps, false, row);
            }
            (domain.seen, domain.classes["tells"].seen, guess(&domain) - before)
        };
        let (seen, of_class, learned) = silent_or_not(None);
        assert_eq!((seen, of_class), (3, 3));
        assert!((-0.45..-0.25).contains(&learned), "{learned}");
        // Whether the rate alone of a neighbour is known changes nothing of it.
        let (.., with_rate) = silent_or_not(Some(10.0));
        assert!((learned - with_rate).abs() < 0.02, "{learned} {with_rate}");
    }

    #[test]
    fn a_class_is_known_by_what_others_showed_beside_it() {
        let gpu = GpuType::named("H200");
        let members = ["tells", "silent"].map(|class| (class.to_owned(), features(&gpu, Some(10.0))));
        let row = || Row {
            members: members.to_vec(),
            clock: vec![0.0; 2],
            labels: vec![Some(Label::Progress(-1.2)), None],
        };
        let mut domain = Domain::new(Mode::Mps, false, gpu.capacity(Mode::Mps));
        (0..9).for_each(|_| domain.learn(Mode::Mps, false, row()));
        assert_eq!((domain.classes["silent"].seen, domain.classes["silent"].beside), (0, 9));
        // Of three of these rows a fit knows no more than them; of the others it has what was learned.
        let rows: Vec<Row> = (0..3).map(|_| row()).collect();
        let beyond = domain.priors(&rows, 3);
        assert!(beyond.contains_key("tells") && beyond.contains_key("silent"));
        let rows: Vec<Row> = (0..9).map(|_| row()).collect();
        assert!(domain.priors(&rows, 9).is_empty(), "these are all that was seen");
    }

    #[test]
    fn a_fit_is_of_few_classes_however_many_there_are() {
        let gpu = GpuType::named("H200");
        let features = features(&gpu, Some(10.0));
        let row = |classes: std::ops::Range<usize>| Row {
            members: classes.clone().map(|class| (format!("task {class}"), features.clone())).collect(),
            clock: vec![0.0; classes.len()],
            labels: vec![Some(Label::Progress(-0.5)); classes.len()],
        };
        let mut domain = Domain::new(Mode::Mps, false, gpu.capacity(Mode::Mps));
        (0..100).for_each(|at| domain.keep_row(row(4 * at..4 * at + 4)));
        domain.seen = FIRST_FIT - 1;
        domain.learn(Mode::Mps, false, row(400..404));
        // Those of the rows that it was fitted to, and no others.
        assert_eq!((domain.seen, domain.classes.len()), (FIRST_FIT, FITTED));
        assert!(domain.classes.contains_key("task 340") && !domain.classes.contains_key("task 339"));
        // Those of known classes cost nothing more.
        let few = domain.latest().len();
        (0..50).for_each(|_| domain.keep_row(row(400..404)));
        assert_eq!((few, domain.latest().len()), (FITTED / 4, FITTED / 4 + 50));
    }
}

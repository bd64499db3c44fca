//! What is believed before anything is observed, and where each number stands. Means are those of the table of GPU facts.

use super::domain::Class;
use super::features::{Features, WEIGHTS};
use crate::group::Mode;

use carma_hardware::Prior;

/// Global constants: log capacity; its offsets for 3, 4, 5 and more members; logit of the host's overlap, and what engine
/// time adds to it; log of the seconds that a step waits; log of the crowding; weight exponents; log of what a thread
/// limit's neighbours cost.
pub(super) const GLOBALS: usize = 8 + WEIGHTS + 1;
pub(super) const CAPACITY: usize = 0;
pub(super) const OVERLAP: usize = 4;
pub(super) const OVERLAP_ENGINE: usize = 5;
pub(super) const WAIT: usize = 6;
pub(super) const CROWDING: usize = 7;
pub(super) const THETA: usize = 8;
pub(super) const SPLIT: usize = THETA + WEIGHTS;

/// Engine time at which [`OVERLAP`] holds.
pub(super) const MIDDLE_ENGINE: f64 = 0.7;

/// Numbers of a class, in order: weight, demand, overlap, sensitivity, solo rate.
pub(super) const CLASS: usize = 5;
pub(super) const SOLO: usize = 4;

pub(super) fn logistic(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

pub(super) fn logit(p: f64) -> f64 {
    (p / (1.0 - p)).ln()
}

/// Prior mean and standard deviation of the global constants.
pub(super) fn prior(mode: Mode, split: bool, capacity: f64) -> ([f64; GLOBALS], [f64; GLOBALS]) {
    let Prior { time_slice, mps, crowding, weights } = carma_hardware::Unmeasured::get().prior;
    let (mut mean, mut sd) = ([0.0; GLOBALS], [0.0; GLOBALS]);
    mean[CAPACITY] = capacity.ln();
    sd[CAPACITY] = 0.1;
    // How levels change with the number of members does not carry over (errors of 50 % and 80 % where it was tried).
    sd[1..OVERLAP].fill(0.15);
    let waiting = if mode == Mode::Mps { mps } else { time_slice };
    mean[OVERLAP] = logit(waiting.overlap);
    mean[OVERLAP_ENGINE] = waiting.overlap_engine;
    mean[WAIT] = waiting.wait_s.ln();
    sd[WAIT] = 0.7;
    if mode == Mode::Mps {
        sd[OVERLAP] = 0.7;
        sd[OVERLAP_ENGINE] = 0.5;
        mean[CROWDING] = crowding.ln();
        sd[CROWDING] = 0.5;
        mean[THETA..SPLIT].copy_from_slice(&weights);
        sd[THETA..SPLIT].copy_from_slice(&[0.3, 0.3, 0.2, 1.0]);
    } else {
        sd[OVERLAP] = 1.0;
        sd[OVERLAP_ENGINE] = 1.0;
        sd[CROWDING] = 1e-3;
        // The driver's slices are equal.
        sd[THETA..SPLIT].fill(0.05);
    }
    mean[SPLIT] = if split { 0.92_f64.ln() } else { 0.0 };
    sd[SPLIT] = if split { 0.1 } else { 1e-3 };
    (mean, sd)
}

/// Prior standard deviations of a class' numbers, but for the solo rate's, of a task whose profile is whole.
pub(super) const CLASS_SD: [f64; SOLO] = [0.5, 0.3, 1.0, 0.08];
/// The prior counts as much as this many classes in [`super::domain::Domain::spread`].
pub(super) const SPREAD_COUNTS: f64 = 4.0;

/// Prior standard deviations of a class' numbers.
pub(super) fn class_sd(features: &Features, spread: &[f64; SOLO]) -> [f64; CLASS] {
    let doubt = features.doubt;
    let [u, d, v, b] = [0, 1, 2, 3].map(|a| CLASS_SD[a] * spread[a]);
    [u * doubt, d * doubt, v, b * doubt.min(1.5), features.rate.map_or(0.0, |(_, sd)| sd)]
}

pub(super) fn fresh(features: &Features, spread: &[f64; SOLO]) -> Class {
    let mut cov = [[0.0; CLASS]; CLASS];
    for (at, sd) in class_sd(features, spread).into_iter().enumerate() {
        cov[at][at] = sd * sd;
    }
    Class { mean: [0.0; CLASS], cov, solo: None, seen: 0, beside: 0, against: 0, doubted: false }
}

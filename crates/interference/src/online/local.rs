//! The few numbers that one group touches: the global constants and its members' classes, with all that is
//! known of how they go together; and the model linearised there.

use super::domain::{Class, Domain, Seat};
use super::matrix::Matrix;
use super::prior::{
    CAPACITY, CLASS, CROWDING, GLOBALS, MIDDLE_ENGINE, OVERLAP, OVERLAP_ENGINE, SPLIT, THETA, WAIT, fresh,
    logistic, logit,
};
use crate::group::Mode;
use crate::law::{self, Client, Constants, Scratch};

/// Step of the slopes, which are taken by differences.
const STEP: f64 = 1e-3;
/// Where no slope is wanted, the law counts as solved once no chance that a task has a kernel on the GPU changes by more:
/// progress is told in ten-thousandths.
const SETTLED: f64 = 1e-7;

/// The members of a group over the local state: globals, then each distinct class.
pub(super) struct Local {
    pub(super) classes: Vec<Class>,
    /// Class of each seat.
    pub(super) seat: Vec<usize>,
    pub(super) mean: Vec<f64>,
    pub(super) cov: Matrix,
}

/// Values and slopes of the members' log progress, without `s`.
pub(super) struct Linear {
    pub(super) value: Vec<f64>,
    pub(super) slope: Matrix,
}

impl Local {
    /// The part of a domain that these members touch.
    pub(super) fn new(domain: &Domain, seats: &[Seat<'_>]) -> Self {
        let mut local = Self::without_spread(domain, seats);
        let n = local.mean.len();
        local.cov = Matrix::zero(n, n);
        for (i, row) in domain.cov.iter().enumerate() {
            local.cov.data[i * n..][..GLOBALS].copy_from_slice(row);
        }
        for (c, class) in local.classes.iter().enumerate() {
            let at = GLOBALS + CLASS * c;
            for (a, row) in class.cov.iter().enumerate() {
                local.cov.data[(at + a) * n + at..][..CLASS].copy_from_slice(row);
            }
        }
        local
    }

    /// The same without what is known of how its numbers go together, for what is expected alone.
    pub(super) fn without_spread(domain: &Domain, seats: &[Seat<'_>]) -> Self {
        let mut names: Vec<&str> = Vec::new();
        let mut classes = Vec::new();
        let mut seat = Vec::with_capacity(seats.len());
        for s in seats {
            let at = names.iter().position(|name| *name == s.class).unwrap_or_else(|| {
                names.push(s.class);
                classes.push(
                    domain.classes.get(s.class).cloned().unwrap_or_else(|| fresh(s.features, &domain.spread)),
                );
                names.len() - 1
            });
            seat.push(at);
        }
        let n = GLOBALS + CLASS * classes.len();
        let mut mean = vec![0.0; n];
        mean[..GLOBALS].copy_from_slice(&domain.mean);
        for (c, class) in classes.iter().enumerate() {
            mean[GLOBALS + CLASS * c..][..CLASS].copy_from_slice(&class.mean);
        }
        Self { classes, seat, mean, cov: Matrix::zero(0, 0) }
    }

    /// Where in the local state the numbers of a seat's class begin.
    pub(super) fn at(&self, seat: usize) -> usize {
        GLOBALS + CLASS * self.seat[seat]
    }

    /// Names of the classes, in their order here.
    pub(super) fn names<'s>(&self, seats: &[Seat<'s>]) -> Vec<&'s str> {
        let first = |c: usize| self.seat.iter().position(|s| *s == c).map_or("", |at| seats[at].class);
        (0..self.classes.len()).map(first).collect()
    }

    /// Log of the solo rate of a seat: its profile's, else what its class is known by.
    pub(super) fn solo(&self, seat: &Seat<'_>, at: usize) -> Option<f64> {
        seat.features.rate.map(|(log, _)| log).or(self.classes[self.seat[at]].solo)
    }

    /// The members in the law's terms, with these numbers.
    pub(super) fn clients(&self, mean: &[f64], seats: &[Seat<'_>]) -> Vec<Client> {
        let of = |(i, s): (usize, &Seat<'_>)| {
            let at = self.at(i);
            let f = s.features;
            let weight: f64 = f.weight.iter().zip(&mean[THETA..SPLIT]).map(|(x, t)| x * t).sum();
            let engine = logistic(logit(f.engine) + mean[at + 1]);
            let overlap = mean[OVERLAP] + mean[OVERLAP_ENGINE] * (f.engine - MIDDLE_ENGINE) + mean[at + 2];
            Client {
                engine,
                fill: f.fill,
                dram: f.dram,
                tensor: f.tensor,
                pcie: f.pcie,
                log_weight: weight + mean[at],
                overlap: logistic(overlap),
                steps_per_s: f.steps_per_s,
                limit: f.limit,
                cap: f.cap,
            }
        };
        seats.iter().enumerate().map(of).collect()
    }

    /// What the model says at what is known: [`Linear::value`] alone.
    pub(super) fn expect(&self, mode: Mode, seats: &[Seat<'_>], split: bool, clock: &[f64]) -> Vec<f64> {
        let (clients, constants) = (self.clients(&self.mean, seats), constants(&self.mean, seats.len()));
        let (mut scratch, mut value) = (Scratch::default(), Vec::with_capacity(seats.len()));
        law::begin(&clients, &mut scratch);
        law::settle_to(SETTLED, mode, &clients, constants, &mut scratch, &mut value);
        value.iter_mut().for_each(|p| *p = p.ln());
        self.correct(&mut value, split, clock);
        value
    }

    /// What comes on top of the law: the clock, and what was learned of each class.
    fn correct(&self, value: &mut [f64], split: bool, clock: &[f64]) {
        let shares = value.len() > 1;
        for (i, value) in value.iter_mut().enumerate() {
            *value += clock[i];
            if shares {
                *value += self.mean[self.at(i) + 3];
            }
            if shares && split {
                *value += self.mean[SPLIT];
            }
        }
    }

    /// The model and its slopes at what is known. `clock`: log of what the power limit leaves each.
    pub(super) fn linear(&self, mode: Mode, seats: &[Seat<'_>], split: bool, clock: &[f64]) -> Linear {
        let k = seats.len();
        let mut scratch = Scratch::default();
        let mut clients = self.clients(&self.mean, seats);
        let constants = constants(&self.mean, k);
        let mut base = Vec::with_capacity(k);
        law::progress_into(mode, &clients, constants, &mut scratch, &mut base);
        base.iter_mut().for_each(|p| *p = p.ln());
        let settled = scratch.clone();
        let mut run = |clients: &[Client], constants: Constants| {
            scratch.clone_from(&settled);
            let mut out = Vec::with_capacity(k);
            law::settle(mode, clients, constants, &mut scratch, &mut out);
            out.iter_mut().for_each(|p| *p = p.ln());
            out
        };
        let mut slope = Matrix::zero(k, self.mean.len());
        let add = |column: usize, moved: &[f64], factor: f64, slope: &mut Matrix| {
            for (i, (m, b)) in moved.iter().zip(&base).enumerate() {
                let value = slope.at(i, column) + factor * (m - b) / STEP;
                slope.set(i, column, value);
            }
        };
        if k > 1 {
            let more = STEP.exp();
            let moved = run(&clients, Constants { capacity: constants.capacity * more, ..constants });
            for column in CAPACITY..=offsets(k) {
                add(column, &moved, 1.0, &mut slope);
            }
            if clients.iter().any(|c| c.steps_per_s > 0.0) {
                let moved = run(&clients, Constants { wait_s: constants.wait_s * more, ..constants });
                add(WAIT, &moved, 1.0, &mut slope);
            }
            if mode == Mode::Mps && k > 2 {
                let moved = run(&clients, Constants { crowding: constants.crowding * more, ..constants });
                add(CROWDING, &moved, 1.0, &mut slope);
            }
            for j in 0..k {
                let at = self.at(j);
                let client = clients[j];
                clients[j].log_weight += STEP;
                let moved = run(&clients, constants);
                add(at, &moved, 1.0, &mut slope);
                for (x, column) in seats[j].features.weight.iter().zip(THETA..SPLIT) {
                    if *x != 0.0 {
                        add(column, &moved, *x, &mut slope);
                    }
                }
                clients[j] = Client { engine: logistic(logit(client.engine) + STEP), ..client };
                let moved = run(&clients, constants);
                add(at + 1, &moved, 1.0, &mut slope);
                clients[j] = Client { overlap: logistic(logit(client.overlap) + STEP), ..client };
                let moved = run(&clients, constants);
                add(at + 2, &moved, 1.0, &mut slope);
                add(OVERLAP, &moved, 1.0, &mut slope);
                add(OVERLAP_ENGINE, &moved, seats[j].features.engine - MIDDLE_ENGINE, &mut slope);
                clients[j] = client;
            }
        }
        let mut value = base;
        self.correct(&mut value, split, clock);
        for i in (0..k).filter(|_| k > 1) {
            let at = self.at(i);
            slope.set(i, at + 3, slope.at(i, at + 3) + 1.0);
            if split {
                slope.set(i, SPLIT, 1.0);
            }
        }
        Linear { value, slope }
    }
}

/// How many offsets of the capacity hold for so many members.
fn offsets(members: usize) -> usize {
    members.saturating_sub(2).min(3)
}

/// Capacity for so many members.
pub(super) fn capacity(mean: &[f64], members: usize) -> f64 {
    mean[..=offsets(members)].iter().sum::<f64>().clamp(-2.5, 2.5).exp()
}

/// The law's constants for so many members.
pub(super) fn constants(mean: &[f64], members: usize) -> Constants {
    Constants {
        capacity: capacity(mean, members),
        crowding: mean[CROWDING].clamp(-7.0, 1.0).exp(),
        wait_s: mean[WAIT].clamp(-14.0, -1.0).exp(),
    }
}

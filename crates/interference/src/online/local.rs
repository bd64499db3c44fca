//! The few numbers that one group touches: the global constants and its members' classes, with all that is
//! known of how they go together; and the model linearised there.

use super::domain::{Class, Domain, Seat};
use super::law::{self, Client, Scratch};
use super::matrix::Matrix;
use super::prior::{
    BETA, CAPACITY, CLASS, GLOBALS, OVERLAP, RESIDUALS, SPLIT, THETA, fresh, logistic, logit,
};
use crate::group::Mode;

/// Step of the slopes, which are taken by differences.
const STEP: f64 = 1e-3;

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
        let global = Matrix { rows: GLOBALS, cols: GLOBALS, data: domain.cov.as_flattened().to_vec() };
        let mut slopes = Matrix::zero(CLASS * classes.len(), GLOBALS);
        for (c, class) in classes.iter().enumerate() {
            mean[GLOBALS + CLASS * c..][..CLASS].copy_from_slice(&class.at(&domain.mean));
            for (a, row) in class.slope.iter().enumerate() {
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
        Self { classes, seat, mean, cov }
    }

    /// Where in the local state the numbers of a seat's class begin.
    pub(super) fn at(&self, seat: usize) -> usize {
        GLOBALS + CLASS * self.seat[seat]
    }

    /// Log of the solo rate of a seat: its profile's, else what its class is known by.
    pub(super) fn solo(&self, seat: &Seat<'_>, at: usize) -> Option<f64> {
        seat.features.rate.map(|(log, _)| log).or(self.classes[self.seat[at]].solo)
    }

    /// The members in the law's terms, with these numbers.
    pub(super) fn clients(&self, mean: &[f64], seats: &[Seat<'_>]) -> Vec<Client> {
        let mut logs: Vec<f64> = seats
            .iter()
            .enumerate()
            .map(|(i, s)| {
                let x: f64 = s.features.weight.iter().zip(&mean[THETA..BETA]).map(|(x, t)| x * t).sum();
                x + mean[self.at(i)]
            })
            .collect();
        let middle = logs.iter().sum::<f64>() / logs.len().max(1) as f64;
        logs.iter_mut().for_each(|l| *l = (*l - middle).clamp(-12.0, 12.0));
        seats
            .iter()
            .enumerate()
            .map(|(i, s)| {
                let at = self.at(i);
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

    /// The model and its slopes at what is known. `clock`: log of what the power limit leaves each.
    pub(super) fn linear(&self, mode: Mode, seats: &[Seat<'_>], split: bool, clock: &[f64]) -> Linear {
        let k = seats.len();
        let mut scratch = Scratch::default();
        let mut clients = self.clients(&self.mean, seats);
        let capacity = capacity(&self.mean, k);
        let mut run = |clients: &[Client], capacity: f64| {
            let mut out = Vec::with_capacity(k);
            law::progress_into(mode, clients, capacity, &mut scratch, &mut out);
            out.iter_mut().for_each(|p| *p = p.ln());
            out
        };
        let base = run(&clients, capacity);
        let mut slope = Matrix::zero(k, self.mean.len());
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
                let at = self.at(j);
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
            let at = self.at(i);
            value[i] += phi.iter().zip(&self.mean[BETA..SPLIT]).map(|(x, b)| x * b).sum::<f64>();
            slope.set(i, at + 3, slope.at(i, at + 3) + 1.0);
            value[i] += self.mean[at + 3];
            if split {
                slope.set(i, SPLIT, 1.0);
                value[i] += self.mean[SPLIT];
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

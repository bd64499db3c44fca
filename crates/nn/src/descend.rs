//! The training loop: Adam along a cosine, early stopping, the best state kept.

use super::{Adam, Mat, Module, Rng};
use std::f32::consts::PI;

/// A network that learns from batches of some kind.
pub trait Learner: Module {
    /// Inputs of some samples.
    type Batch;
    /// What its backward pass needs.
    type Cache;

    /// `[outputs, samples]`; what else is in the batch does not matter.
    fn infer(&self, batch: &Self::Batch) -> Mat;
    /// The same by the batch's statistics.
    fn train(&mut self, batch: &Self::Batch) -> (Mat, Self::Cache);
    /// Adds to the gradients.
    fn backward(&mut self, batch: &Self::Batch, cache: &Self::Cache, grad: Mat);
}

/// How long and how fast.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// Most passes over the data.
    pub epochs: usize,
    /// Passes without a better validation loss before it stops.
    pub patience: usize,
    /// Adam's rate at the start; it falls to a fiftieth.
    pub rate: f32,
    /// Samples a step.
    pub batch: usize,
}

/// Batch normalisation says nothing about a handful: a rest smaller than this waits for the next pass.
const FEWEST: usize = 8;

/// Trains on the samples `fit` until the loss on `validation` stops falling. `batch` makes the inputs of some
/// samples, `loss` says how wrong outputs are for them, summed, with the gradient.
pub fn descend<L: Learner>(
    learner: &mut L,
    pace: Pace,
    rng: &mut Rng,
    fit: &[usize],
    validation: &[usize],
    batch: impl Fn(&[usize]) -> L::Batch,
    loss: impl Fn(&[usize], &Mat) -> (f32, Mat),
) {
    let held: Vec<(&[usize], L::Batch)> = validation.chunks(512).map(|part| (part, batch(part))).collect();
    let mut order = fit.to_vec();
    let (mut best, mut best_loss, mut since) = (learner.save(), f32::INFINITY, 0);
    let mut adam = Adam::default();
    for epoch in 0..pace.epochs {
        let progress = epoch as f32 / pace.epochs as f32;
        let rate = pace.rate * (0.02 + 0.98 * 0.5 * (1.0 + (PI * progress).cos()));
        rng.shuffle(&mut order);
        for part in order.chunks(pace.batch.max(FEWEST)) {
            if part.len() < FEWEST {
                continue;
            }
            let inputs = batch(part);
            let (output, cache) = learner.train(&inputs);
            let (_, mut grad) = loss(part, &output);
            grad.data.iter_mut().for_each(|g| *g /= part.len() as f32);
            learner.backward(&inputs, &cache, grad);
            adam.step(learner, rate);
        }
        let now: f32 = held.iter().map(|(part, inputs)| loss(part, &learner.infer(inputs)).0).sum();
        if now < best_loss {
            (best, best_loss, since) = (learner.save(), now, 0);
        } else {
            since += 1;
            if since > pace.patience {
                break;
            }
        }
    }
    learner.load(&best);
}

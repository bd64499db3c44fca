//! Batch and layer normalisation.

use super::mat::{axpy, dot, sum};
use super::{Mat, Module, Weights};

/// PyTorch's default.
const EPS: f32 = 1e-5;
/// Share of a batch in the running statistics; PyTorch's default.
const MOMENTUM: f32 = 0.1;

/// Normalises each feature over the batch while training, by running statistics afterwards: a
/// prediction never depends on what else is in its batch.
#[derive(Debug, Clone, PartialEq)]
pub struct BatchNorm {
    /// Factor of each feature.
    pub scale: Weights,
    /// Added to each feature.
    pub shift: Weights,
    /// Running mean.
    pub mean: Vec<f32>,
    /// Running variance.
    pub var: Vec<f32>,
}

/// What the backward pass of a normalisation needs.
#[derive(Debug)]
pub struct NormCache {
    normed: Mat,
    inverse: Vec<f32>,
}

impl BatchNorm {
    /// Scale 1, shift 0.
    pub fn new(features: usize) -> Self {
        Self {
            scale: Weights::new(vec![1.0; features]),
            shift: Weights::new(vec![0.0; features]),
            mean: vec![0.0; features],
            var: vec![1.0; features],
        }
    }

    /// By the statistics of this batch, which enter the running ones.
    pub fn train(&mut self, x: &Mat) -> (Mat, NormCache) {
        let n = x.cols as f32;
        let mut normed = x.clone();
        let mut inverse = Vec::with_capacity(x.rows);
        for r in 0..x.rows {
            let row = normed.row_mut(r);
            let mean = sum(row) / n;
            row.iter_mut().for_each(|v| *v -= mean);
            let var = dot(row, row) / n;
            let inv = 1.0 / (var + EPS).sqrt();
            row.iter_mut().for_each(|v| *v *= inv);
            inverse.push(inv);
            self.mean[r] += MOMENTUM * (mean - self.mean[r]);
            let unbiased = var * n / (n - 1.0).max(1.0);
            self.var[r] += MOMENTUM * (unbiased - self.var[r]);
        }
        let mut y = normed.clone();
        for r in 0..y.rows {
            let (scale, shift) = (self.scale.value[r], self.shift.value[r]);
            y.row_mut(r).iter_mut().for_each(|v| *v = *v * scale + shift);
        }
        (y, NormCache { normed, inverse })
    }

    /// By the running statistics.
    pub fn infer(&self, x: &Mat) -> Mat {
        let mut y = x.clone();
        for r in 0..y.rows {
            let scale = self.scale.value[r] / (self.var[r] + EPS).sqrt();
            let (mean, shift) = (self.mean[r], self.shift.value[r]);
            y.row_mut(r).iter_mut().for_each(|v| *v = (*v - mean) * scale + shift);
        }
        y
    }

    /// Adds to the gradients; gives that of the input.
    pub fn backward(&mut self, cache: &NormCache, dy: &Mat) -> Mat {
        let n = dy.cols as f32;
        let mut dx = dy.clone();
        for r in 0..dy.rows {
            let (grad, normed) = (dy.row(r), cache.normed.row(r));
            let (ds, db) = (dot(grad, normed), sum(grad));
            self.scale.grad[r] += ds;
            self.shift.grad[r] += db;
            let factor = self.scale.value[r] * cache.inverse[r];
            for (d, x) in dx.row_mut(r).iter_mut().zip(normed) {
                *d = factor * (*d - db / n - x * ds / n);
            }
        }
        dx
    }
}

impl Module for BatchNorm {
    fn weights(&mut self, visit: &mut dyn FnMut(&mut Weights)) {
        visit(&mut self.scale);
        visit(&mut self.shift);
    }

    fn state(&mut self, visit: &mut dyn FnMut(&mut Vec<f32>)) {
        visit(&mut self.scale.value);
        visit(&mut self.shift.value);
        visit(&mut self.mean);
        visit(&mut self.var);
    }
}

/// Normalises each sample over its features.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerNorm {
    /// Factor of each feature.
    pub scale: Weights,
    /// Added to each feature.
    pub shift: Weights,
}

impl LayerNorm {
    /// Scale 1, shift 0.
    pub fn new(features: usize) -> Self {
        Self { scale: Weights::new(vec![1.0; features]), shift: Weights::new(vec![0.0; features]) }
    }

    /// The same shape.
    pub fn forward(&self, x: &Mat) -> (Mat, NormCache) {
        let n = x.rows as f32;
        let mut mean = vec![0.0; x.cols];
        for r in 0..x.rows {
            axpy(1.0 / n, x.row(r), &mut mean);
        }
        let mut normed = x.clone();
        let mut inverse = vec![0.0; x.cols];
        for r in 0..x.rows {
            let row = normed.row_mut(r);
            for ((v, m), i) in row.iter_mut().zip(&mean).zip(&mut inverse) {
                *v -= m;
                *i += *v * *v / n;
            }
        }
        inverse.iter_mut().for_each(|v| *v = 1.0 / (*v + EPS).sqrt());
        let mut y = Mat::zeros(x.rows, x.cols);
        for r in 0..x.rows {
            let (scale, shift) = (self.scale.value[r], self.shift.value[r]);
            let row = normed.row_mut(r);
            for ((v, i), y) in row.iter_mut().zip(&inverse).zip(y.row_mut(r)) {
                *v *= i;
                *y = *v * scale + shift;
            }
        }
        (y, NormCache { normed, inverse })
    }

    /// Adds to the gradients; gives that of the input.
    pub fn backward(&mut self, cache: &NormCache, dy: &Mat) -> Mat {
        let n = dy.rows as f32;
        let mut dx = dy.clone();
        let (mut total, mut along) = (vec![0.0; dy.cols], vec![0.0; dy.cols]);
        for r in 0..dy.rows {
            let normed = cache.normed.row(r);
            self.scale.grad[r] += dot(dy.row(r), normed);
            self.shift.grad[r] += sum(dy.row(r));
            let scale = self.scale.value[r];
            for (c, d) in dx.row_mut(r).iter_mut().enumerate() {
                *d *= scale;
                total[c] += *d / n;
                along[c] += *d * normed[c] / n;
            }
        }
        for r in 0..dy.rows {
            let normed = cache.normed.row(r);
            for (c, d) in dx.row_mut(r).iter_mut().enumerate() {
                *d = cache.inverse[c] * (*d - total[c] - normed[c] * along[c]);
            }
        }
        dx
    }
}

impl Module for LayerNorm {
    fn weights(&mut self, visit: &mut dyn FnMut(&mut Weights)) {
        visit(&mut self.scale);
        visit(&mut self.shift);
    }
}

//! The linear layer.

use super::mat::{axpy, dot, sum};
use super::{Mat, Module, Rng, Weights};

/// `y = W x + b`, `W` of `out` by `inp`.
#[derive(Debug, Clone, PartialEq)]
pub struct Linear {
    /// Number of inputs.
    pub inp: usize,
    /// Number of outputs.
    pub out: usize,
    /// `out` by `inp`, row by row.
    pub weight: Weights,
    /// One an output.
    pub bias: Weights,
}

impl Linear {
    /// Initialised as PyTorch does: uniform within `1/sqrt(inp)`.
    pub fn new(inp: usize, out: usize, rng: &mut Rng) -> Self {
        let bound = 1.0 / (inp.max(1) as f32).sqrt();
        Self {
            inp,
            out,
            weight: Weights::new(rng.uniform(inp * out, bound)),
            bias: Weights::new(rng.uniform(out, bound)),
        }
    }

    /// `[inp, n]` to `[out, n]`.
    pub fn forward(&self, x: &Mat) -> Mat {
        let mut y = Mat::zeros(self.out, x.cols);
        for o in 0..self.out {
            let row = y.row_mut(o);
            row.fill(self.bias.value[o]);
            for i in 0..self.inp {
                axpy(self.weight.value[o * self.inp + i], x.row(i), row);
            }
        }
        y
    }

    /// Adds to the gradients; gives that of the input.
    pub fn backward(&mut self, x: &Mat, dy: &Mat) -> Mat {
        let mut dx = Mat::zeros(self.inp, x.cols);
        for o in 0..self.out {
            let grad = dy.row(o);
            self.bias.grad[o] += sum(grad);
            for i in 0..self.inp {
                self.weight.grad[o * self.inp + i] += dot(grad, x.row(i));
                axpy(self.weight.value[o * self.inp + i], grad, dx.row_mut(i));
            }
        }
        dx
    }
}

impl Module for Linear {
    fn weights(&mut self, visit: &mut dyn FnMut(&mut Weights)) {
        visit(&mut self.weight);
        visit(&mut self.bias);
    }
}

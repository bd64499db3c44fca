//! A stack of linear layer, batch normalisation and ReLU, and a linear layer at its end.

use super::norm::NormCache;
use super::{BatchNorm, Linear, Mat, Module, Rng, Weights, relu, relu_backward};

/// One hidden layer.
#[derive(Debug, Clone, PartialEq)]
pub struct Hidden {
    /// Its weights.
    pub linear: Linear,
    /// Its normalisation.
    pub norm: BatchNorm,
}

/// A multi-layer perceptron as in GPUMemNet's ensembles.
#[derive(Debug, Clone, PartialEq)]
pub struct Mlp {
    /// In order.
    pub hidden: Vec<Hidden>,
    /// The outputs.
    pub last: Linear,
}

/// What the backward pass needs: of each hidden layer its input, its normalisation and its output.
#[derive(Debug)]
pub struct MlpCache {
    inputs: Vec<Mat>,
    norms: Vec<NormCache>,
}

impl Mlp {
    /// Hidden layers of these widths.
    pub fn new(inp: usize, widths: &[usize], out: usize, rng: &mut Rng) -> Self {
        let mut from = inp;
        let mut hidden = Vec::with_capacity(widths.len());
        for width in widths {
            hidden.push(Hidden { linear: Linear::new(from, *width, rng), norm: BatchNorm::new(*width) });
            from = *width;
        }
        Self { hidden, last: Linear::new(from, out, rng) }
    }

    /// `[inp, n]` to `[out, n]`, by running statistics.
    pub fn infer(&self, x: &Mat) -> Mat {
        let mut owned: Option<Mat> = None;
        for h in &self.hidden {
            let mut y = h.norm.infer(&h.linear.forward(owned.as_ref().unwrap_or(x)));
            relu(&mut y);
            owned = Some(y);
        }
        self.last.forward(owned.as_ref().unwrap_or(x))
    }

    /// `[inp, n]` to `[out, n]`, by the batch's statistics.
    pub fn train(&mut self, x: Mat) -> (Mat, MlpCache) {
        let mut inputs = vec![x];
        let mut norms = Vec::with_capacity(self.hidden.len());
        for (i, h) in self.hidden.iter_mut().enumerate() {
            let (mut y, cache) = h.norm.train(&h.linear.forward(&inputs[i]));
            relu(&mut y);
            norms.push(cache);
            inputs.push(y);
        }
        let y = self.last.forward(&inputs[norms.len()]);
        (y, MlpCache { inputs, norms })
    }

    /// Adds to the gradients; gives that of the input.
    pub fn backward(&mut self, cache: &MlpCache, dy: &Mat) -> Mat {
        let depth = self.hidden.len();
        let mut grad = self.last.backward(&cache.inputs[depth], dy);
        for i in (0..depth).rev() {
            relu_backward(&cache.inputs[i + 1], &mut grad);
            let h = &mut self.hidden[i];
            grad = h.norm.backward(&cache.norms[i], &grad);
            grad = h.linear.backward(&cache.inputs[i], &grad);
        }
        grad
    }
}

impl Module for Mlp {
    fn weights(&mut self, visit: &mut dyn FnMut(&mut Weights)) {
        for h in &mut self.hidden {
            h.linear.weights(visit);
            h.norm.weights(visit);
        }
        self.last.weights(visit);
    }

    fn state(&mut self, visit: &mut dyn FnMut(&mut Vec<f32>)) {
        for h in &mut self.hidden {
            h.linear.state(visit);
            h.norm.state(visit);
        }
        self.last.state(visit);
    }
}

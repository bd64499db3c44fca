//! Self-attention over the layers of a model, and the encoder layer around it.

use super::mat::{axpy, dot};
use super::norm::NormCache;
use super::{LayerNorm, Linear, Mat, Module, Rng, Weights, relu, relu_backward};
use std::ops::Range;

/// Which columns belong to which sample, and how often each stands for the same thing.
///
/// A model with 24 equal blocks has 24 equal tokens of each kind. Attention without positions treats
/// them alike, so one column with the logarithm of 24 added to its score gives exactly the same result as
/// 24 columns; [`Segments::pool`] weighs it 24-fold.
#[derive(Debug, Clone, Default)]
pub struct Segments {
    /// Columns of each sample.
    pub ranges: Vec<Range<usize>>,
    /// How many tokens each column stands for, at least 1.
    pub count: Vec<f32>,
}

impl Segments {
    /// Mean over the tokens of each sample: `[features, tokens]` to `[features, samples]`.
    pub fn pool(&self, x: &Mat) -> Mat {
        let mut y = Mat::zeros(x.rows, self.ranges.len());
        for r in 0..x.rows {
            for (s, range) in self.ranges.iter().enumerate() {
                let total: f32 = self.count[range.clone()].iter().sum();
                y.data[r * y.cols + s] =
                    dot(&x.row(r)[range.clone()], &self.count[range.clone()]) / total.max(1.0);
            }
        }
        y
    }

    /// Gradient through [`Segments::pool`].
    pub fn spread(&self, dy: &Mat) -> Mat {
        let mut dx = Mat::zeros(dy.rows, self.count.len());
        for r in 0..dy.rows {
            for (s, range) in self.ranges.iter().enumerate() {
                let total: f32 = self.count[range.clone()].iter().sum();
                let grad = dy.at(r, s) / total.max(1.0);
                for c in range.clone() {
                    dx.data[r * dx.cols + c] = grad * self.count[c];
                }
            }
        }
        dx
    }
}

/// Multi-head self-attention within each sample.
#[derive(Debug, Clone, PartialEq)]
pub struct Attention {
    /// Divides the width.
    pub heads: usize,
    /// Query, key and value, one below the other.
    pub qkv: Linear,
    /// Mixes the heads.
    pub out: Linear,
}

/// What the backward pass needs.
#[derive(Debug)]
pub(crate) struct AttentionCache {
    qkv: Mat,
    /// Probabilities by sample, head, query and key.
    probabilities: Vec<f32>,
    mixed: Mat,
}

impl Attention {
    fn new(width: usize, heads: usize, rng: &mut Rng) -> Self {
        Self { heads, qkv: Linear::new(width, 3 * width, rng), out: Linear::new(width, width, rng) }
    }

    fn forward(&self, x: &Mat, segments: &Segments) -> (Mat, AttentionCache) {
        let width = x.rows;
        let each = width / self.heads;
        let scale = 1.0 / (each as f32).sqrt();
        let qkv = self.qkv.forward(x);
        let mut mixed = Mat::zeros(width, x.cols);
        let squares: usize = segments.ranges.iter().map(|r| r.len() * r.len()).sum();
        let mut probabilities = Vec::with_capacity(squares * self.heads);
        for range in &segments.ranges {
            let bias: Vec<f32> = segments.count[range.clone()].iter().map(|c| c.ln()).collect();
            for h in 0..self.heads {
                for i in range.clone() {
                    let mut scores = bias.clone();
                    for f in h * each..(h + 1) * each {
                        axpy(scale * qkv.at(f, i), &qkv.row(width + f)[range.clone()], &mut scores);
                    }
                    let most = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                    scores.iter_mut().for_each(|s| *s = (*s - most).exp());
                    let total: f32 = scores.iter().sum();
                    scores.iter_mut().for_each(|s| *s /= total);
                    for f in h * each..(h + 1) * each {
                        mixed.data[f * x.cols + i] = dot(&scores, &qkv.row(2 * width + f)[range.clone()]);
                    }
                    probabilities.extend_from_slice(&scores);
                }
            }
        }
        (self.out.forward(&mixed), AttentionCache { qkv, probabilities, mixed })
    }

    fn backward(&mut self, x: &Mat, segments: &Segments, cache: &AttentionCache, dy: &Mat) -> Mat {
        let width = x.rows;
        let each = width / self.heads;
        let scale = 1.0 / (each as f32).sqrt();
        let dmixed = self.out.backward(&cache.mixed, dy);
        let qkv = &cache.qkv;
        let mut dqkv = Mat::zeros(3 * width, x.cols);
        let mut at = 0;
        for range in &segments.ranges {
            let len = range.len();
            let mut dscores = vec![0.0; len];
            for h in 0..self.heads {
                for i in range.clone() {
                    let p = &cache.probabilities[at..at + len];
                    at += len;
                    dscores.fill(0.0);
                    for f in h * each..(h + 1) * each {
                        let g = dmixed.at(f, i);
                        axpy(g, &qkv.row(2 * width + f)[range.clone()], &mut dscores);
                        axpy(g, p, &mut dqkv.row_mut(2 * width + f)[range.clone()]);
                    }
                    let along = dot(&dscores, p);
                    for (d, p) in dscores.iter_mut().zip(p) {
                        *d = p * (*d - along) * scale;
                    }
                    for f in h * each..(h + 1) * each {
                        dqkv.data[f * x.cols + i] += dot(&dscores, &qkv.row(width + f)[range.clone()]);
                        axpy(qkv.at(f, i), &dscores, &mut dqkv.row_mut(width + f)[range.clone()]);
                    }
                }
            }
        }
        self.qkv.backward(x, &dqkv)
    }
}

/// Attention, sum, normalisation; two linear layers, sum, normalisation (as PyTorch's
/// `TransformerEncoderLayer` without dropout), within each sample.
#[derive(Debug, Clone, PartialEq)]
pub struct Encoder {
    /// Over the tokens.
    pub attention: Attention,
    /// After the attention.
    pub first: LayerNorm,
    /// To the wide layer.
    pub widen: Linear,
    /// From the inner width back to the outer one.
    pub narrow: Linear,
    /// At the end.
    pub second: LayerNorm,
}

/// What the backward pass needs.
#[derive(Debug)]
pub struct EncoderCache {
    x: Mat,
    attention: AttentionCache,
    first: NormCache,
    between: Mat,
    wide: Mat,
    second: NormCache,
}

impl Encoder {
    /// Features of a token, heads, features of the wide layer.
    pub fn new(width: usize, heads: usize, wide: usize, rng: &mut Rng) -> Self {
        Self {
            attention: Attention::new(width, heads, rng),
            first: LayerNorm::new(width),
            widen: Linear::new(width, wide, rng),
            narrow: Linear::new(wide, width, rng),
            second: LayerNorm::new(width),
        }
    }

    /// `[width, tokens]` to the same shape.
    pub fn forward(&self, x: Mat, segments: &Segments) -> (Mat, EncoderCache) {
        let (mut y, attention) = self.attention.forward(&x, segments);
        y.add(&x);
        let (between, first) = self.first.forward(&y);
        let mut wide = self.widen.forward(&between);
        relu(&mut wide);
        let mut y = self.narrow.forward(&wide);
        y.add(&between);
        let (y, second) = self.second.forward(&y);
        (y, EncoderCache { x, attention, first, between, wide, second })
    }

    /// Adds to the gradients; gives that of the input.
    pub fn backward(&mut self, segments: &Segments, cache: &EncoderCache, dy: &Mat) -> Mat {
        let dsum = self.second.backward(&cache.second, dy);
        let mut dwide = self.narrow.backward(&cache.wide, &dsum);
        relu_backward(&cache.wide, &mut dwide);
        let mut dbetween = self.widen.backward(&cache.between, &dwide);
        dbetween.add(&dsum);
        let dsum = self.first.backward(&cache.first, &dbetween);
        let mut dx = self.attention.backward(&cache.x, segments, &cache.attention, &dsum);
        dx.add(&dsum);
        dx
    }
}

impl Module for Encoder {
    fn weights(&mut self, visit: &mut dyn FnMut(&mut Weights)) {
        self.attention.qkv.weights(visit);
        self.attention.out.weights(visit);
        self.first.weights(visit);
        self.widen.weights(visit);
        self.narrow.weights(visit);
        self.second.weights(visit);
    }
}

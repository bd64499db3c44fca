//! Networks of one ensemble, and what goes into them.

use super::Ensemble;
use super::features::Features;
use carma_nn::{
    Encoder, EncoderCache, Learner, Linear, Mat, Mlp, MlpCache, Module, Rng, Segments, Weights, relu,
    relu_backward,
};
use serde::{Deserialize, Serialize};

/// Mean and inverse deviation of each feature, and its least and largest value in the training data.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Scaling {
    /// Mean of each feature.
    pub mean: Vec<f32>,
    /// 1 / deviation; 0 for a feature that never varies.
    pub inverse: Vec<f32>,
    /// Least value in the training data.
    pub least: Vec<f32>,
    /// Largest value in the training data.
    pub most: Vec<f32>,
}

impl Scaling {
    /// Fitted on rows; those that never vary have an inverse of 0. Without `standardise`
    /// numbers pass as they are.
    pub fn fit(rows: &[&[f32]], standardise: bool) -> Self {
        let width = rows.first().map_or(0, |r| r.len());
        let n = rows.len().max(1) as f64;
        let mut scaling = Self::default();
        for f in 0..width {
            let values = || rows.iter().map(|r| f64::from(r[f]));
            let mean = values().sum::<f64>() / n;
            let deviation = (values().map(|v| (v - mean) * (v - mean)).sum::<f64>() / n).sqrt();
            let (least, most) =
                values().fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), v| (a.min(v), b.max(v)));
            let (mean, inverse) = match (standardise, deviation > 1e-6) {
                (false, _) => (0.0, 1.0),
                (true, true) => (mean, 1.0 / deviation),
                (true, false) => (mean, 0.0),
            };
            scaling.mean.push(mean as f32);
            scaling.inverse.push(inverse as f32);
            scaling.least.push(least as f32);
            scaling.most.push(most as f32);
        }
        scaling
    }

    /// How many features vary: the others are left out.
    pub fn active(&self) -> usize {
        self.inverse.iter().filter(|i| **i != 0.0).count()
    }

    /// A row within the range of the training data, standardised; only what varies there.
    pub fn apply(&self, row: &[f32]) -> Vec<f32> {
        let active = row.iter().enumerate().filter(|(f, _)| self.inverse[*f] != 0.0);
        let scaled = active.map(|(f, v)| {
            let v = v.clamp(self.least[f], self.most[f]);
            (v - self.mean[f]) * self.inverse[f]
        });
        scaled.collect()
    }

    /// A row within the range of the training data, standardised; what never varies is 0.
    pub fn apply_all(&self, row: &[f32]) -> Vec<f32> {
        let scaled = row.iter().enumerate();
        scaled.map(|(f, v)| (v.clamp(self.least[f], self.most[f]) - self.mean[f]) * self.inverse[f]).collect()
    }

    /// Whether it is for so many features, and sound.
    pub fn is_of(&self, features: usize) -> bool {
        [&self.mean, &self.inverse, &self.least, &self.most].iter().all(|v| v.len() == features)
            && self.least.iter().zip(&self.most).all(|(a, b)| a <= b)
    }

    /// How far a row lies beyond the training data, given which features are logarithms of bytes.
    pub fn beyond(&self, row: &[f32], sizes: Sizes) -> Beyond {
        let excess = |f: &usize| row[*f] - self.most[*f];
        let log = sizes.activations.iter().map(excess).fold(0.0, f32::max);
        let more =
            sizes.states.map_or(0.0, |f| f64::from(row[f]).exp_m1() - f64::from(self.most[f]).exp_m1());
        Beyond { log: f64::from(log), more_mib: more.max(0.0) / crate::MIB as f64 }
    }
}

/// Features that are logarithms of bytes, by their places.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    /// Of activations.
    pub activations: &'static [usize],
    /// Of parameters, gradients and states of the optimizer.
    pub states: Option<usize>,
}

/// How far a task lies beyond the training data. Networks are asked about the nearest that they know; what
/// is missing is added: memory grows at most in proportion to the activations, and by the bytes of the states.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Beyond {
    /// Logarithm of the factor.
    pub log: f64,
    /// MiB on top.
    pub more_mib: f64,
}

/// Tasks as matrices: `[features, tasks]`, `[token features, tokens]`.
#[derive(Debug, Clone, Default)]
pub struct Batch {
    /// `[features of the whole, tasks]`.
    pub whole: Mat,
    /// `[features of a token, tokens of all tasks]`.
    pub tokens: Mat,
    /// Tokens of each task.
    pub segments: Segments,
}

/// Tasks, scaled.
pub struct Table {
    rows: Vec<Features>,
}

impl Table {
    /// Scales features.
    pub fn new<'a>(features: impl Iterator<Item = &'a Features>, whole: &Scaling, tokens: &Scaling) -> Self {
        let rows = features.map(|f| Features {
            whole: whole.apply(&f.whole),
            tokens: f.tokens.iter().map(|(t, n)| (tokens.apply(t), *n)).collect(),
        });
        Self { rows: rows.collect() }
    }

    /// Some of them as matrices.
    pub fn batch(&self, which: &[usize]) -> Batch {
        let picked: Vec<&Features> = which.iter().map(|i| &self.rows[*i]).collect();
        let width = picked.first().map_or(0, |f| f.whole.len());
        let whole = Mat::from_samples(width, picked.iter().map(|f| f.whole.as_slice()));
        let mut segments = Segments::default();
        let mut columns: Vec<&[f32]> = Vec::new();
        for features in &picked {
            let from = columns.len();
            for (token, n) in &features.tokens {
                columns.push(token);
                segments.count.push(*n as f32);
            }
            segments.ranges.push(from..columns.len());
        }
        let width = columns.first().map_or(0, |t| t.len());
        Batch { whole, tokens: Mat::from_samples(width, columns.into_iter()), segments }
    }

    /// All of them.
    pub fn all(&self) -> Batch {
        self.batch(&(0..self.rows.len()).collect::<Vec<_>>())
    }
}

/// Sizes of a member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    /// Features of the whole task.
    pub whole: usize,
    /// Features of a token.
    pub token: usize,
    /// Width of the tokens inside; 0: no attention.
    pub width: usize,
    /// Encoder layers.
    pub encoders: usize,
    /// Width between the two linear layers of an encoder.
    pub wide: usize,
    /// Hidden layers of each perceptron.
    pub depths: Vec<usize>,
    /// Width of a perceptron's first hidden layer; halved from layer to layer, down to 4.
    pub first: usize,
    /// Number of outputs.
    pub out: usize,
}

impl Shape {
    /// Members of an ensemble, after the published code: perceptrons of depths 1 to 7 and 1 to 6; or
    /// attention of width 6 with 3 layers and of width 4 with 2, each twice, with perceptrons behind.
    pub fn members(ensemble: Ensemble, whole: usize, token: usize, out: usize, first: usize) -> Vec<Self> {
        let shape = |width, encoders, depths: &[usize]| Self {
            whole,
            token: if width == 0 { 0 } else { token },
            width,
            encoders,
            wide: if width == 0 { 0 } else { 4 },
            depths: depths.to_vec(),
            first,
            out,
        };
        match ensemble {
            Ensemble::Mlp => [1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 4, 5, 6].map(|d| shape(0, 0, &[d])).into(),
            Ensemble::Transformer => {
                [(6, 3), (4, 2), (6, 3), (4, 2)].map(|(w, e)| shape(w, e, &[1, 2, 3])).into()
            }
        }
    }

    /// Numbers that such a member can have at most; bounds what a file may ask for.
    pub fn believable(&self) -> bool {
        let small = [self.whole, self.token, self.width, self.wide, self.first, self.out];
        small.iter().all(|n| *n <= 512)
            && self.encoders <= 16
            && (1..=16).contains(&self.depths.len())
            && self.depths.iter().all(|d| (1..=16).contains(d))
            && self.out >= 1
            && self.first >= 1
            && (self.width == 0 || self.wide >= 1)
    }
}

/// One network: perceptrons over the whole task and, where there is attention, the mean of its tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct Member {
    embed: Vec<Linear>,
    encoders: Vec<Encoder>,
    heads: Vec<Mlp>,
}

/// What the backward pass needs.
pub struct Cache {
    /// Input of each embedding layer, and the output of the last.
    embedded: Vec<Mat>,
    encoded: Vec<EncoderCache>,
    heads: Vec<MlpCache>,
}

impl Member {
    /// Fresh, initialised from a seed.
    pub fn new(shape: &Shape, rng: &mut Rng) -> Self {
        let (mut embed, mut encoders) = (Vec::new(), Vec::new());
        if shape.width > 0 {
            embed =
                vec![Linear::new(shape.token, shape.width, rng), Linear::new(shape.width, shape.width, rng)];
            encoders = (0..shape.encoders).map(|_| Encoder::new(shape.width, 1, shape.wide, rng)).collect();
        }
        let heads = shape.depths.iter().map(|depth| {
            let widths: Vec<usize> = (0..*depth).map(|i| (shape.first >> i.min(16)).max(4)).collect();
            Mlp::new(shape.width + shape.whole, &widths, shape.out, rng)
        });
        Self { heads: heads.collect(), embed, encoders }
    }
}

impl Learner for Member {
    type Batch = Batch;
    type Cache = Cache;

    fn infer(&self, batch: &Batch) -> Mat {
        let input = if self.embed.is_empty() {
            None
        } else {
            let mut x = None;
            for linear in &self.embed {
                let mut y = linear.forward(x.as_ref().unwrap_or(&batch.tokens));
                relu(&mut y);
                x = Some(y);
            }
            let x = self.encoders.iter().fold(x.unwrap_or_default(), |x, e| e.forward(x, &batch.segments).0);
            Some(batch.segments.pool(&x).stack(&batch.whole))
        };
        let input = input.as_ref().unwrap_or(&batch.whole);
        mean(self.heads.iter().map(|h| h.infer(input)))
    }

    fn train(&mut self, batch: &Batch) -> (Mat, Cache) {
        let mut cache = Cache { embedded: Vec::new(), encoded: Vec::new(), heads: Vec::new() };
        let input = if self.embed.is_empty() {
            batch.whole.clone()
        } else {
            cache.embedded.push(batch.tokens.clone());
            for linear in &self.embed {
                let mut y = linear.forward(&cache.embedded[cache.embedded.len() - 1]);
                relu(&mut y);
                cache.embedded.push(y);
            }
            let mut x = cache.embedded[self.embed.len()].clone();
            for encoder in &self.encoders {
                let (y, encoded) = encoder.forward(x, &batch.segments);
                cache.encoded.push(encoded);
                x = y;
            }
            batch.segments.pool(&x).stack(&batch.whole)
        };
        let mut outputs = Vec::with_capacity(self.heads.len());
        for head in &mut self.heads {
            let (y, head_cache) = head.train(input.clone());
            cache.heads.push(head_cache);
            outputs.push(y);
        }
        (mean(outputs.into_iter()), cache)
    }

    fn backward(&mut self, batch: &Batch, cache: &Cache, mut dy: Mat) {
        let share = 1.0 / self.heads.len() as f32;
        dy.data.iter_mut().for_each(|g| *g *= share);
        let mut dinput: Option<Mat> = None;
        for (head, cache) in self.heads.iter_mut().zip(&cache.heads) {
            let d = head.backward(cache, &dy);
            match &mut dinput {
                Some(sum) => sum.add(&d),
                None => dinput = Some(d),
            }
        }
        let (Some(first), Some(dinput)) = (self.embed.first(), dinput) else { return };
        let mut grad = batch.segments.spread(&dinput.top(first.out));
        for (encoder, cache) in self.encoders.iter_mut().zip(&cache.encoded).rev() {
            grad = encoder.backward(&batch.segments, cache, &grad);
        }
        for (i, linear) in self.embed.iter_mut().enumerate().rev() {
            relu_backward(&cache.embedded[i + 1], &mut grad);
            grad = linear.backward(&cache.embedded[i], &grad);
        }
    }
}

impl Module for Member {
    fn weights(&mut self, visit: &mut dyn FnMut(&mut Weights)) {
        self.embed.iter_mut().for_each(|l| l.weights(visit));
        self.encoders.iter_mut().for_each(|e| e.weights(visit));
        self.heads.iter_mut().for_each(|h| h.weights(visit));
    }

    fn state(&mut self, visit: &mut dyn FnMut(&mut Vec<f32>)) {
        self.embed.iter_mut().for_each(|l| l.state(visit));
        self.encoders.iter_mut().for_each(|e| e.state(visit));
        self.heads.iter_mut().for_each(|h| h.state(visit));
    }
}

/// Mean of matrices of one shape.
fn mean(mats: impl ExactSizeIterator<Item = Mat>) -> Mat {
    let n = mats.len().max(1) as f32;
    let mut sum: Option<Mat> = None;
    for mat in mats {
        match &mut sum {
            Some(sum) => sum.add(&mat),
            None => sum = Some(mat),
        }
    }
    let mut sum = sum.unwrap_or_default();
    if n > 1.0 {
        sum.data.iter_mut().for_each(|v| *v /= n);
    }
    sum
}

//! What our networks see of a task: numbers of the whole, and a token for each kind of layer.
//!
//! [`FeatureSet::Published`] is what the authors feed theirs: raw counts. [`FeatureSet::Extended`] adds what theirs
//! do not see (optimizer, precision, attention kernel, checkpointing, true activations of language
//! models), in logarithms, because memory is a sum of products of these numbers and they span six powers of ten.

use super::model::{Layer, LayerKind, ModelLayers};
use super::net::Sizes;
use super::published::{circle, extras, tokens, whole};
use super::{Ensemble, Family};
use crate::{Attention, Mode, ModelTask, Optimizer, Precision};
use serde::{Deserialize, Serialize};

/// Which features.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FeatureSet {
    /// As the authors publish them: raw counts.
    Published,
    /// Logarithms, with optimizer and precision.
    #[default]
    Extended,
}

/// Features of a layer, and how many such layers there are.
type Tokens = Vec<(Vec<f32>, u32)>;

/// A task as numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct Features {
    /// Of the whole task.
    pub whole: Vec<f32>,
    /// One a distinct layer, and how many such layers there are. Empty for the MLP ensemble.
    pub tokens: Tokens,
}

/// Places of bytes among the extended features.
const SIZES: Sizes = Sizes { activations: &[5, 7, 8], states: Some(4) };

impl FeatureSet {
    /// Numbers of a task for one of the ensembles.
    pub fn of(self, ensemble: Ensemble, family: Family, model: &ModelLayers, task: &ModelTask) -> Features {
        let tokens = match (ensemble, self) {
            (Ensemble::Mlp, _) => Vec::new(),
            (Ensemble::Transformer, Self::Published) => published_tokens(family, model, task),
            (Ensemble::Transformer, Self::Extended) => extended_tokens(model, task),
        };
        let whole = match (self, ensemble) {
            (Self::Published, Ensemble::Mlp) => whole(family, model, task),
            (Self::Published, Ensemble::Transformer) => extras(family, model, task),
            (Self::Extended, _) => extended(family, model, task),
        };
        Features { whole, tokens }
    }

    /// Which features are bytes.
    pub const fn sizes(self) -> Sizes {
        match self {
            Self::Published => Sizes { activations: &[], states: None },
            Self::Extended => SIZES,
        }
    }

    /// Whether features are standardised. The published ones are not: the first batch normalisation does it.
    pub const fn scaled(self) -> bool {
        matches!(self, Self::Extended)
    }
}

fn published_tokens(family: Family, model: &ModelLayers, task: &ModelTask) -> Tokens {
    let mut all = Tokens::new();
    for token in tokens(family, model, task) {
        match all.iter_mut().find(|(t, _)| *t == token) {
            Some((_, n)) => *n += 1,
            None => all.push((token, 1)),
        }
    }
    all
}

/// `ln(1 + x)`.
fn log(x: f64) -> f32 {
    x.ln_1p() as f32
}

/// Bytes that a parameter takes with its gradient and the optimizer's states at the step.
fn state_bytes(task: &ModelTask) -> f64 {
    let element = if matches!(task.precision, Precision::Bf16 | Precision::Fp16) { 2.0 } else { 4.0 };
    if task.mode == Mode::Infer {
        return element;
    }
    let numbers = match task.optimizer {
        Optimizer::Sgd => 2.0,
        Optimizer::SgdMomentum => 3.0,
        Optimizer::AdamFused | Optimizer::Rmsprop | Optimizer::Adagrad => 4.0,
        Optimizer::Adam | Optimizer::Adamw => 5.0,
        Optimizer::Adam8bit => 2.5,
    };
    numbers * element
}

/// Bytes of an activation.
fn activation_bytes(task: &ModelTask) -> f64 {
    if task.precision == Precision::Fp32 { 4.0 } else { 2.0 }
}

/// Features of a sample, where the first layer tells: a linear layer's parameters are its outputs times
/// its inputs. Autograd keeps them, and no layer lists them.
fn inputs(model: &ModelLayers) -> f64 {
    match model.layers.iter().find(|l| l.params > 0) {
        Some(l) if l.kind == LayerKind::Linear && l.activations > 0 => (l.params / l.activations) as f64,
        _ => 0.0,
    }
}

fn extended(family: Family, model: &ModelLayers, task: &ModelTask) -> Vec<f32> {
    let any = model.activations(|_| true) as f64;
    let batch = task.batch_size as f64;
    let params = model.params as f64;
    let bytes = activation_bytes(task);
    let state = params * state_bytes(task);
    let input = inputs(model) * batch * bytes;
    let saved = any * batch * bytes + input;
    let largest = |of: fn(&Layer) -> u64| model.layers.iter().map(of).max().unwrap_or(0) as f64;
    let last = model.layers.iter().rev().find(|l| l.activations > 0).map_or(0, |l| l.activations) as f64;
    let mut all = vec![
        // SIZES knows these by their places.
        log(params),
        log(any),
        log(any * batch),
        log(batch),
        log(state),
        log(saved),
        log(state + saved),
        log(input),
        log(largest(|l| l.activations) * batch * bytes),
        log(largest(|l| l.params) * bytes),
        log(last * batch * 4.0),
        log(model.layers.len() as f64),
    ];
    for kinds in GROUPS {
        all.push(log(model.count(kinds) as f64));
        // Which part of the activations such layers make: what they keep differs.
        all.push((model.activations(kinds) as f64 / any.max(1.0)) as f32);
    }
    all.extend(circle(family, model));
    // How likely it is that just ReLU keeps its output only; Identity keeps nothing.
    for function in ["ReLU", "Identity", "PReLU"] {
        let is = super::model::FUNCTIONS.iter().position(|f| *f == function);
        all.push(f32::from(u8::from(model.count(|k| k == LayerKind::Function(is)) > 0)));
    }
    let flag = |is: bool| f32::from(u8::from(is));
    all.push(flag(matches!(task.precision, Precision::Bf16Autocast | Precision::Fp16Autocast)));
    all.push(flag(matches!(task.precision, Precision::Bf16 | Precision::Fp16)));
    all.push(flag(task.gradient_checkpointing));
    all.push(flag(task.mode == Mode::Infer));
    let eager = task.attention == Attention::Eager;
    all.push(flag(eager));
    let seq = task.seq_len.unwrap_or(0) as f64;
    all.push(log(seq));
    all.push(if eager { log(seq * seq * batch * bytes) } else { 0.0 });
    all
}

/// Groups of kinds that are counted.
const GROUPS: [fn(LayerKind) -> bool; 7] = [
    |k| k == LayerKind::Linear,
    |k| k == LayerKind::Conv,
    |k| k == LayerKind::Attention,
    |k| matches!(k, LayerKind::BatchNorm | LayerKind::LayerNorm),
    |k| matches!(k, LayerKind::Function(_)),
    |k| k == LayerKind::Dropout,
    |k| k == LayerKind::Embedding,
];

fn extended_tokens(model: &ModelLayers, task: &ModelTask) -> Tokens {
    let bytes = activation_bytes(task) * task.batch_size as f64;
    let state = state_bytes(task);
    let token = |layer: &Layer| {
        let mut token: Vec<f32> = GROUPS.iter().map(|of| f32::from(u8::from(of(layer.kind)))).collect();
        token.push(log(layer.activations as f64));
        token.push(log(layer.activations as f64 * bytes));
        token.push(log(layer.params as f64));
        token.push(log(layer.params as f64 * state));
        token
    };
    model.distinct().iter().map(|(layer, n)| (token(layer), *n)).collect()
}

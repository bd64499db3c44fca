//! What GPUMemNet sees of a model: its layers, as lists of kind, activations and parameters.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Families of tasks, each with networks of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Family {
    /// Fully connected layers.
    Mlp,
    /// Convolutional networks.
    Cnn,
    /// Networks of attention.
    Transformer,
}

impl Family {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Mlp, Self::Cnn, Self::Transformer];

    /// As on the command line and in files.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Mlp => "mlp",
            Self::Cnn => "cnn",
            Self::Transformer => "transformer",
        }
    }

    /// The family of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|f| f.as_str() == name)
    }
}

impl std::fmt::Display for Family {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

/// Kinds of layers that the networks tell apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LayerKind {
    /// Fully connected.
    Linear,
    /// The output projection inside PyTorch's `MultiheadAttention`, or that module as a whole.
    Attention,
    /// A convolution.
    Conv,
    /// Batch normalisation.
    BatchNorm,
    /// Layer, group or RMS normalisation.
    LayerNorm,
    /// A dropout.
    Dropout,
    /// An elementwise function, by its place in [`FUNCTIONS`]; `None`: another one.
    Function(Option<usize>),
    /// Adaptive average pooling.
    AdaptivePool,
    /// Other pooling.
    Pool,
    /// An embedding.
    Embedding,
    /// Anything else.
    Other,
}

/// The functions that GPUMemNet's MLP set knows, in the order in which it encodes them. The CNN set knows
/// all but `Identity`.
pub const FUNCTIONS: [&str; 11] =
    ["ELU", "GELU", "Identity", "LeakyReLU", "Mish", "PReLU", "ReLU", "SELU", "SiLU", "Softplus", "Tanh"];

impl LayerKind {
    /// By the name of a PyTorch class, or by the words of GPUMemNet's MLP set (`linear`,
    /// `batch_normalization`).
    #[must_use]
    pub fn of(class: &str) -> Self {
        let function = |name: &str| FUNCTIONS.iter().position(|f| *f == name);
        match class {
            "linear" | "Linear" | "LazyLinear" | "Conv1D" => Self::Linear,
            "NonDynamicallyQuantizableLinear" | "MultiheadAttention" => Self::Attention,
            "dropout" => Self::Dropout,
            "batch_normalization" => Self::BatchNorm,
            "ReLU6" => Self::Function(function("ReLU")),
            "GELUActivation"
            | "NewGELUActivation"
            | "FastGELUActivation"
            | "QuickGELUActivation"
            | "GELUTanh"
            | "PytorchGELUTanh" => Self::Function(function("GELU")),
            "SiLUActivation" | "Swish" => Self::Function(function("SiLU")),
            "Sigmoid" | "Softmax" | "LogSoftmax" | "Softmax2d" | "Hardswish" | "Hardsigmoid" | "Hardtanh"
            | "LogSigmoid" | "CELU" | "GLU" | "Threshold" | "Tanhshrink" | "Softsign" | "RReLU"
            | "MishActivation" => Self::Function(None),
            _ if function(class).is_some() => Self::Function(function(class)),
            "Embedding" | "EmbeddingBag" => Self::Embedding,
            "DropPath" | "StochasticDepth" => Self::Dropout,
            _ if class.starts_with("AdaptiveAvgPool") => Self::AdaptivePool,
            _ if with_dimension(class, &["MaxPool", "AvgPool", "AdaptiveMaxPool", "LPPool"]) => Self::Pool,
            _ if with_dimension(class, CONVOLUTIONS) => Self::Conv,
            _ if with_dimension(class, &["Dropout", "FeatureAlphaDropout", "AlphaDropout"]) => Self::Dropout,
            _ if is_norm(class, "BatchNorm") => Self::BatchNorm,
            _ if NORMS.iter().any(|n| is_norm(class, n)) => Self::LayerNorm,
            _ => Self::Other,
        }
    }
}

const CONVOLUTIONS: &[&str] =
    &["Conv", "ConvTranspose", "LazyConv", "LazyConvTranspose", "StdConv", "WSConv"];
const NORMS: &[&str] = &["LayerNorm", "GroupNorm", "InstanceNorm", "RMSNorm", "RmsNorm"];

/// Whether a class is one of these words, alone or with `1d`, `2d`, `3d` behind it (and timm's `Same`).
fn with_dimension(class: &str, words: &[&str]) -> bool {
    let stem = class.trim_end_matches("Same");
    words.iter().any(|w| stem.strip_prefix(w).is_some_and(|rest| matches!(rest, "" | "1d" | "2d" | "3d")))
}

/// Whether a class is a normalisation: `BatchNorm2d`, `FrozenBatchNorm2d`, `LlamaRMSNorm`, but not a block
/// that has one (`Conv2dNormActivation`).
fn is_norm(class: &str, word: &str) -> bool {
    class.split_once(word).is_some_and(|(before, after)| {
        after.len() <= 6 && ["Conv", "Linear", "Pre"].iter().all(|w| !before.contains(w))
    })
}

/// A leaf of the model, in the order of the forward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Layer {
    /// What it is.
    pub kind: LayerKind,
    /// Elements of its output for one sample.
    pub activations: u64,
    /// Its parameters.
    pub params: u64,
}

/// A model, as much of it as the networks see.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelLayers {
    /// Its family.
    pub family: Family,
    /// Its leaves.
    pub layers: Vec<Layer>,
    /// All parameters; a parameter used twice counts once.
    pub params: u64,
    /// What a summary prints as their total, where it does. modelsummary counts the replicas of `DataParallel`;
    /// the authors' networks are fed this.
    pub printed_params: Option<u64>,
}

impl ModelLayers {
    /// A model of these layers; its parameters are theirs.
    #[must_use]
    pub fn new(family: Family, layers: Vec<Layer>) -> Self {
        let params = layers.iter().fold(0_u64, |n, l| n.saturating_add(l.params));
        Self { family, layers, params, printed_params: None }
    }

    /// How many layers are of a kind.
    #[must_use]
    pub fn count(&self, of: impl Fn(LayerKind) -> bool) -> usize {
        self.layers.iter().filter(|l| of(l.kind)).count()
    }

    /// Activations of the layers of some kinds, a sample.
    #[must_use]
    pub fn activations(&self, of: impl Fn(LayerKind) -> bool) -> u64 {
        self.layers.iter().filter(|l| of(l.kind)).fold(0, |n, l| n.saturating_add(l.activations))
    }

    /// The most frequent function among `known`, the first of them at a tie; `ReLU` where there is none.
    /// Gives its place among `known`.
    #[must_use]
    pub fn function(&self, known: &[&str]) -> usize {
        let mut counts = BTreeMap::new();
        for layer in &self.layers {
            if let LayerKind::Function(Some(f)) = layer.kind
                && let Some(place) = known.iter().position(|k| *k == FUNCTIONS[f])
            {
                *counts.entry(place).or_insert(0_usize) += 1;
            }
        }
        let most = counts.iter().max_by_key(|(place, n)| (**n, std::cmp::Reverse(**place)));
        most.map_or_else(|| known.iter().position(|k| *k == "ReLU").unwrap_or(0), |(place, _)| *place)
    }

    /// The kind of each layer, its activations and parameters, and how often just this occurs: what is
    /// left when the order does not matter. A language model of 24 blocks has about ten.
    #[must_use]
    pub fn distinct(&self) -> Vec<(Layer, u32)> {
        let mut counts = BTreeMap::new();
        for layer in &self.layers {
            *counts.entry(*layer).or_insert(0_u32) += 1;
        }
        counts.into_iter().collect()
    }
}

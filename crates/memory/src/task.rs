//! How a model will be run: what decides memory beside the model itself.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Training or inference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Forward, backward, optimizer step.
    #[default]
    Train,
    /// Forward without autograd.
    Infer,
}

/// Optimizers by their PyTorch names and implementations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Optimizer {
    /// SGD without momentum: no state.
    Sgd,
    /// SGD with momentum: one state a parameter.
    SgdMomentum,
    /// Adam, `foreach` as by default: two states, one temporary list at the step.
    #[default]
    Adam,
    /// AdamW, likewise.
    Adamw,
    /// Adam or AdamW, `fused=True`: two states, no temporary list.
    AdamFused,
    /// Adam with states in 8 bits (bitsandbytes): two bytes a parameter and a little.
    Adam8bit,
    /// RMSprop: one state a parameter.
    Rmsprop,
    /// Adagrad: one state a parameter.
    Adagrad,
}

/// Types of numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Precision {
    /// Everything in 32 bits.
    #[default]
    Fp32,
    /// `torch.autocast` in bfloat16: weights in 32 bits, cast for the forward pass.
    Bf16Autocast,
    /// `torch.autocast` in float16, with a gradient scaler.
    Fp16Autocast,
    /// Weights, gradients and activations in bfloat16.
    Bf16,
    /// Weights, gradients and activations in float16.
    Fp16,
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Fp32 => "fp32",
            Self::Bf16Autocast => "bf16-autocast",
            Self::Fp16Autocast => "fp16-autocast",
            Self::Bf16 => "bf16",
            Self::Fp16 => "fp16",
        })
    }
}

/// Kernel of the attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Attention {
    /// `scaled_dot_product_attention` with a fused kernel: no matrix of probabilities.
    #[default]
    Sdpa,
    /// Matrix products and softmax: keeps the probabilities.
    Eager,
}

/// Low-rank adapters (LoRA, PEFT): the model is frozen, these are trained.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lora {
    /// Rank of the adapters.
    pub rank: u32,
    /// Ends of names of the linear layers that get one, as PEFT's `target_modules`; empty: PEFT's
    /// default for the family (the query and value projections).
    pub targets: Vec<String>,
}

/// How the task uses several GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Parallel {
    /// One GPU.
    #[default]
    None,
    /// `nn.DataParallel`: one process, the batch is split, GPU 0 gathers.
    DataParallel,
    /// `DistributedDataParallel`: a process a GPU, gradients in buckets.
    Ddp,
    /// ZeRO stage 2 (DeepSpeed, FSDP `SHARD_GRAD_OP`).
    Zero2,
    /// ZeRO stage 3 (DeepSpeed, FSDP `FULL_SHARD`).
    Zero3,
}

/// How a model will be run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelTask {
    /// Training or inference.
    pub mode: Mode,
    /// Samples a step on one GPU (with [`Parallel::DataParallel`]: on all together).
    pub batch_size: u64,
    /// Tokens a sample, for language models.
    pub seq_len: Option<u64>,
    /// Tokens that the decoder of an encoder-decoder sees; `None`: as many as the encoder.
    #[serde(default)]
    pub target_len: Option<u64>,
    /// Samples of the data set, where known: the last batch of an epoch may be partial.
    pub samples: Option<u64>,
    /// Optimizer of a training.
    pub optimizer: Optimizer,
    /// Types of numbers.
    pub precision: Precision,
    /// Kernel of the attention.
    pub attention: Attention,
    /// Blocks keep only their inputs, and run again in the backward pass.
    pub gradient_checkpointing: bool,
    /// Adapters instead of full training.
    pub lora: Option<Lora>,
    /// Tensors in NHWC (`memory_format=torch.channels_last`).
    pub channels_last: bool,
    /// `torch.backends.cudnn.benchmark`: the peak becomes elastic.
    pub cudnn_benchmark: bool,
    /// Batches differ in length (`seq_len` is the longest): the peak depends on what comes together.
    #[serde(default)]
    pub variable_length: bool,
    /// GPUs that it uses.
    pub gpus: u32,
    /// How it uses them.
    pub parallel: Parallel,
}

impl Default for ModelTask {
    fn default() -> Self {
        Self {
            mode: Mode::default(),
            batch_size: 1,
            seq_len: None,
            target_len: None,
            samples: None,
            optimizer: Optimizer::default(),
            precision: Precision::default(),
            attention: Attention::default(),
            gradient_checkpointing: false,
            lora: None,
            channels_last: false,
            cudnn_benchmark: false,
            variable_length: false,
            gpus: 1,
            parallel: Parallel::default(),
        }
    }
}

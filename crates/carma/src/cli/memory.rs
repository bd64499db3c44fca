//! Options that say what model a task trains, how, and where: shared by `estimate`, `submit`, `run`,
//! `trace-model` and `dry-run`.

use carma_memory::{Attention, Lora, Mode, ModelTask, Optimizer, Parallel, Precision};
use clap::Args;
use clap::builder::{NonEmptyStringValueParser, PossibleValuesParser, TypedValueParser};
use serde::de::DeserializeOwned;
use std::ffi::OsString;
use std::path::PathBuf;

/// What is known of the model.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = "The model")]
pub(crate) struct ModelArgs {
    /// Printed summary: torchsummary, torchinfo or modelsummary
    #[arg(long, value_name = "FILE")]
    pub(crate) summary: Option<PathBuf>,
    /// config.json of a Hugging Face model, or the model's folder
    #[arg(long, value_name = "FILE")]
    pub(crate) hf_config: Option<PathBuf>,
    /// Weights in safetensors format (only the header is read), or their index
    #[arg(long, value_name = "FILE")]
    pub(crate) safetensors: Option<PathBuf>,
    /// Model in ONNX format
    #[arg(long, value_name = "FILE")]
    pub(crate) onnx: Option<PathBuf>,
    /// Log of `carma trace-model` or `carma dry-run`
    #[arg(long = "trace", value_name = "LOG")]
    pub(crate) trace: Option<PathBuf>,
}

/// How the model will be run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = "How it is run")]
pub(crate) struct TaskArgs {
    /// Samples a step [default: as the command says; 1 where there is none]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) batch_size: Option<u64>,
    /// Tokens a sample, for language models [default: the most that the model takes]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) seq_len: Option<u64>,
    /// Tokens that the decoder of an encoder-decoder sees, as of a summary [default: as many as --seq-len]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) target_len: Option<u64>,
    /// Samples of the data set: the last batch of an epoch may be partial
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) samples: Option<u64>,
    /// Optimizer [default: adam]
    #[arg(long, value_parser = words::<Optimizer>(
        ["sgd", "sgd-momentum", "adam", "adamw", "adam-fused", "adam8bit", "rmsprop", "adagrad"]))]
    pub(crate) optimizer: Option<Optimizer>,
    /// Types of numbers [default: fp32]
    #[arg(long, value_parser = words::<Precision>(["fp32", "bf16-autocast", "fp16-autocast", "bf16", "fp16"]))]
    pub(crate) precision: Option<Precision>,
    /// Inference: no gradients, no optimizer
    #[arg(long)]
    pub(crate) inference: bool,
    /// Kernel of the attention [default: what the model says, else sdpa]
    #[arg(long, value_parser = words::<Attention>(["sdpa", "eager"]))]
    pub(crate) attention: Option<Attention>,
    /// Blocks keep only their inputs and run again in the backward pass
    #[arg(long)]
    pub(crate) gradient_checkpointing: bool,
    /// Train low-rank adapters of this rank instead of the model
    #[arg(long, value_name = "RANK", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) lora: Option<u32>,
    /// Ends of the names of the linear layers with an adapter, of which the model must have one, or all-linear
    /// [default: PEFT's for the family]
    #[arg(
        long,
        value_name = "NAME,...",
        value_delimiter = ',',
        requires = "lora",
        value_parser = NonEmptyStringValueParser::new()
    )]
    pub(crate) lora_targets: Vec<String>,
    /// Tensors in NHWC
    #[arg(long)]
    pub(crate) channels_last: bool,
    /// torch.backends.cudnn.benchmark is on: the peak is elastic
    #[arg(long)]
    pub(crate) cudnn_benchmark: bool,
    /// Batches differ in length; --seq-len is the longest
    #[arg(long)]
    pub(crate) variable_length: bool,
    /// How several GPUs are used [default: none]
    #[arg(long, value_parser = words::<Parallel>(["none", "data-parallel", "ddp", "zero2", "zero3"]))]
    pub(crate) parallel: Option<Parallel>,
}

impl TaskArgs {
    /// The task on so many GPUs. What was not said has the defaults of the help.
    pub(crate) fn task(&self, gpus: u32) -> ModelTask {
        let default = ModelTask::default();
        ModelTask {
            mode: if self.inference { Mode::Infer } else { Mode::Train },
            batch_size: self.batch_size.unwrap_or(default.batch_size),
            seq_len: self.seq_len,
            target_len: self.target_len,
            samples: self.samples,
            optimizer: self.optimizer.unwrap_or(default.optimizer),
            precision: self.precision.unwrap_or(default.precision),
            attention: self.attention.unwrap_or(default.attention),
            gradient_checkpointing: self.gradient_checkpointing,
            lora: self.lora.map(|rank| Lora { rank, targets: self.lora_targets.clone() }),
            channels_last: self.channels_last,
            cudnn_benchmark: self.cudnn_benchmark,
            variable_length: self.variable_length,
            gpus,
            parallel: self.parallel.unwrap_or(default.parallel),
        }
    }
}

/// Where it will run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = "Where it runs")]
pub(crate) struct PlatformArgs {
    /// Type of GPU: H200, A100-40GB, ... [default: that of GPU 0, where there is one]
    #[arg(long, value_name = "TYPE")]
    pub(crate) gpu: Option<String>,
    /// Version of PyTorch [default: 2.11]
    #[arg(long, value_name = "X.Y", value_parser = version)]
    pub(crate) torch: Option<(u32, u32)>,
    /// CUDA context of one process in MiB, where you have measured it [default: from the table]
    #[arg(long, value_name = "MIB")]
    pub(crate) context_mib: Option<u64>,
    /// Settings of the caching allocator [default: your PYTORCH_ALLOC_CONF]
    #[arg(long, value_name = "SETTINGS")]
    pub(crate) alloc_conf: Option<String>,
}

/// Options of a traced run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = "The trace")]
pub(crate) struct TracerArgs {
    /// Python with PyTorch 2.1 or newer [default: the command's own, else python3]
    #[arg(long, value_name = "PROGRAM")]
    pub(crate) python: Option<OsString>,
    /// Keep the log of allocations in this file; compressed if its name ends in .gz
    #[arg(long, short, value_name = "LOG")]
    pub(crate) output: Option<PathBuf>,
    /// Seconds after which the run is stopped; what was seen until then counts
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub(crate) timeout: u32,
}

/// `carma trace-model`.
#[derive(Debug, Clone, Args)]
pub(crate) struct TraceModelArgs {
    /// Function without arguments that returns a model, or (model, batch), or
    /// (model, (inputs, target), loss), or the same and an optimizer
    #[arg(long, value_name = "MODULE:FUNCTION")]
    pub(crate) entry: String,
    /// Shape of one sample, for a model that comes alone: 3,224,224
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) shape: Vec<u64>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// The run.
    #[command(flatten)]
    pub(crate) tracer: TracerArgs,
    /// How the model is run.
    #[command(flatten)]
    pub(crate) task: TaskArgs,
    /// Where it runs.
    #[command(flatten)]
    pub(crate) platform: PlatformArgs,
}

/// `carma dry-run`.
#[derive(Debug, Clone, Args)]
pub(crate) struct DryRunArgs {
    /// The command as you would submit it, after `--`: python train.py --epochs 3
    #[arg(value_name = "CMD", required = true, trailing_var_arg = true, value_parser = clap::value_parser!(OsString))]
    pub(crate) command: Vec<OsString>,
    /// Number of GPUs that the program sees [default: 1, or one for each process that the command starts]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) gpus: Option<u32>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// The run.
    #[command(flatten)]
    pub(crate) tracer: TracerArgs,
    /// What else is known of the model: used if the run fails.
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// How it is run: used if the run fails.
    #[command(flatten)]
    pub(crate) task: TaskArgs,
    /// Where it runs.
    #[command(flatten)]
    pub(crate) platform: PlatformArgs,
}

fn version(text: &str) -> Result<(u32, u32), String> {
    let mut parts = text.split('.').map(str::parse);
    match (parts.next(), parts.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => Ok((major, minor)),
        _ => Err("expected two numbers, as in 2.11".into()),
    }
}

/// The words of a type's serde representation.
fn words<T: DeserializeOwned + Clone + Send + Sync + 'static>(
    words: impl IntoIterator<Item = &'static str>,
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(words).try_map(|word| serde_json::from_value::<T>(word.into()))
}

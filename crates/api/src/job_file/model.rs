//! What a job file says of the model: names of files and words of options, as written. Which words
//! there are is for those to say who estimate; here they are text.

use std::path::PathBuf;

/// What a job file says of the model and how it is run. The fields are the options of the command line.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModelOptions {
    /// Printed summary.
    pub summary: Option<PathBuf>,
    /// `config.json` of Hugging Face.
    pub hf_config: Option<PathBuf>,
    /// Weights whose header is read.
    pub safetensors: Option<PathBuf>,
    /// Model in ONNX format.
    pub onnx: Option<PathBuf>,
    /// Log of a traced run.
    pub trace: Option<PathBuf>,
    /// Samples a step.
    pub batch_size: Option<u64>,
    /// Tokens a sample.
    pub seq_len: Option<u64>,
    /// Tokens that the decoder of an encoder-decoder sees.
    pub target_len: Option<u64>,
    /// Samples of the data set.
    pub samples: Option<u64>,
    /// Name of the optimizer.
    pub optimizer: Option<String>,
    /// Types of numbers.
    pub precision: Option<String>,
    /// No gradients.
    pub inference: bool,
    /// Kernel of the attention.
    pub attention: Option<String>,
    /// Blocks run again in the backward pass.
    pub gradient_checkpointing: bool,
    /// Rank of low-rank adapters.
    pub lora: Option<u32>,
    /// Layers with an adapter.
    pub lora_targets: Vec<String>,
    /// Tensors in NHWC.
    pub channels_last: bool,
    /// `torch.backends.cudnn.benchmark` is on.
    pub cudnn_benchmark: bool,
    /// Batches differ in length.
    pub variable_length: bool,
    /// How several GPUs are used.
    pub parallel: Option<String>,
    /// The data set.
    pub dataset: Option<String>,
}

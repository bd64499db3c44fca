//! First and last line of a log.

use serde::{Deserialize, Serialize};

/// How a log tells storages apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ids {
    /// By numbers of their own: `a 12 4096`, `f 12`.
    #[default]
    Named,
    /// By how many allocations ago they came: `a 4096`, `f 0`. Equal layers look equal, which a
    /// compressor likes.
    Counted,
}

/// First line: what wrote the log.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Header {
    /// Always `carma-trace`.
    pub format: String,
    /// Version of the format.
    pub version: u32,
    /// How storages are told apart.
    #[serde(default)]
    pub ids: Ids,
    /// Version of PyTorch: `2.11.0+cu130`.
    #[serde(default)]
    pub torch: String,
    /// Version of Python.
    #[serde(default)]
    pub python: String,
    /// What was run.
    #[serde(default)]
    pub what: String,
    /// Script and arguments, word by word; empty where a function was run, and in logs from before it was noted.
    #[serde(default)]
    pub command: Vec<String>,
    /// Fingerprint of the script and of its configuration files, where the caller of the tracer gave one.
    #[serde(default)]
    pub edition: Option<String>,
    /// What the tracer was told.
    #[serde(default)]
    pub options: Told,
}

/// What the tracer was told, as far as it matters to what a trace is good for.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Told {
    /// Samples a step of a function's model.
    #[serde(default)]
    pub batch_size: Option<u64>,
    /// GPUs that the program sees; a log has what it puts on any of them.
    #[serde(default)]
    pub gpus: Option<u32>,
}

/// How a traced run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// Enough was seen.
    Complete,
    /// Stopped before; what was seen is a lower bound.
    #[default]
    Partial,
    /// The program failed before its third optimizer step.
    Failed,
}

/// Last line: what ran.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct End {
    /// How the run ended.
    #[serde(default)]
    pub status: Status,
    /// Why it failed or stopped, with the user's line.
    #[serde(default)]
    pub reason: Option<String>,
    /// Optimizer steps.
    #[serde(default)]
    pub steps: u64,
    /// Backward passes.
    #[serde(default)]
    pub backwards: u64,
    /// Parameters on the GPU, elements.
    #[serde(default)]
    pub parameters: u64,
    /// Those with gradients, elements.
    #[serde(default)]
    pub trainable: u64,
    /// Class of the model.
    #[serde(default)]
    pub model: Option<String>,
    /// Batch sizes of the data loaders, in the order in which they were used.
    #[serde(default)]
    pub batch_sizes: Vec<u64>,
    /// Those of loaders in which a backward pass came; empty in logs from before they were noted.
    #[serde(default)]
    pub train_batch_sizes: Vec<u64>,
    /// Whether `torch.backends.cudnn.benchmark` was on.
    #[serde(default)]
    pub cudnn_benchmark: bool,
    /// Whether the program compiles (`torch.compile`), which is off in a trace.
    #[serde(default)]
    pub compiled: bool,
    /// Whether it shares its weights out among processes (FSDP), of which a trace has one.
    #[serde(default)]
    pub sharded: bool,
    /// Whether other processes of the program may work on a GPU; a trace has the first alone.
    #[serde(default)]
    pub untraced: bool,
    /// Whether it asked how much memory is free, by which it may decide how much it takes.
    #[serde(default)]
    pub asks_free: bool,
    /// Other programs that it started.
    #[serde(default)]
    pub started: Vec<String>,
    /// Numbers that the program asked for and that were answered plausibly, and the like.
    #[serde(default)]
    pub doubts: Vec<String>,
}

impl End {
    /// Batch sizes that may be the one of training: of the loaders that trained, where that was noted.
    pub(super) fn trained(&self) -> &[u64] {
        if self.train_batch_sizes.is_empty() { &self.batch_sizes } else { &self.train_batch_sizes }
    }

    /// Family of the model by its class, in the words of the margins: `resnet`, `bert`, `cnn`.
    #[must_use]
    pub fn family(&self, convolutions: bool) -> &'static str {
        const FAMILIES: [(&str, &str); 24] = [
            ("resnet", "resnet"),
            ("vgg", "vgg"),
            ("densenet", "densenet"),
            ("efficientnet", "efficientnet"),
            ("mobilenet", "mobilenet"),
            ("inception", "inception"),
            ("xception", "xception"),
            ("convnext", "convnext"),
            ("unet", "unet"),
            ("bert", "bert"),
            ("electra", "bert"),
            ("gpt", "gpt2"),
            ("llama", "llama"),
            ("mistral", "llama"),
            ("qwen", "llama"),
            ("gemma", "llama"),
            ("xlnet", "xlnet"),
            ("t5", "t5"),
            ("vit", "vit"),
            ("visiontransformer", "vit"),
            ("deit", "vit"),
            ("swin", "vit"),
            ("beit", "vit"),
            ("transformer", "transformer"),
        ];
        let class = self.model.as_deref().unwrap_or_default().to_ascii_lowercase();
        FAMILIES
            .iter()
            .find(|(part, _)| class.contains(part))
            .map_or(if convolutions { "cnn" } else { "mlp" }, |(_, family)| family)
    }
}

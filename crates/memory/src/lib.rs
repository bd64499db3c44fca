//! Forecasts of GPU memory: how much will this task need?
//!
//! Every estimator answers the same question with an [`Estimate`]. The main one is *allocator*: a front
//! end (summary text, Hugging Face configuration, ONNX) turns what is known of a model into a [`graph::Graph`], its rules
//! turn that into allocations and frees, and [`alloc`] replays them through a model of PyTorch's caching
//! allocator; a recorded log feeds the replay instead where there is one. The others are published
//! formulas, GPUMemNet, and what earlier runs taught.
//!
//! Floats are fine here: an estimate is an input of the decision core, journalled as integers.

pub mod activity;
pub mod alloc;
pub mod allocator;
pub mod auto;
pub mod command;
pub mod cudnn;
pub mod dnnperf;
mod estimate;
pub mod estimators;
pub mod formula;
pub mod gpumemnet;
pub mod graph;
pub mod hf;
pub mod history;
pub mod margin;
pub mod onnx;
mod platform;
pub mod summary;
mod task;
pub mod trace;
pub mod weights;

pub use carma_core::units::MiB;
pub use estimate::{Estimate, Parts, Tier};
pub use platform::{ContextSaves, Gpu, Platform, Uses};
pub use task::{Attention, Lora, Mode, ModelTask, Optimizer, Parallel, Precision};

/// Bytes of a MiB.
pub const MIB: u64 = 1 << 20;

/// Why there is no estimate.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The input is not what the reader expects. Says where and what was expected.
    #[error("{place}: {what}")]
    Bad {
        /// File, line, layer or field.
        place: String,
        /// What is wrong, what was expected.
        what: String,
    },
    /// A size is beyond what any GPU holds, or overflows. Names the layer.
    #[error("{layer}: {what}; no GPU holds such a tensor")]
    Absurd {
        /// Layer or tensor.
        layer: String,
        /// The shape and why it is refused.
        what: String,
    },
    /// The estimator needs something that was not given.
    #[error("{estimator} needs {what}")]
    Missing {
        /// Which estimator.
        estimator: &'static str,
        /// What to give it.
        what: String,
    },
}

impl From<carma_files::FileError> for Error {
    fn from(e: carma_files::FileError) -> Self {
        Self::bad(e.file.display().to_string(), e.why.to_string())
    }
}

impl Error {
    /// Input that is not what a reader expects.
    pub fn bad(place: impl Into<String>, what: impl Into<String>) -> Self {
        Self::Bad { place: place.into(), what: what.into() }
    }

    /// Whether an option of the command line is wrong, and no file.
    #[must_use]
    pub fn is_of_option(&self) -> bool {
        matches!(self, Self::Bad { place, .. } if place.starts_with("--"))
    }

    /// As an estimator tells it: with its name, but for what no estimator can answer.
    pub(crate) fn told_by(&self, estimator: &'static str) -> Self {
        if self.is_of_option() { self.clone() } else { Self::bad(estimator, self.to_string()) }
    }
}

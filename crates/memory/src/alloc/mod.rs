//! A model of PyTorch's caching allocator, and what feeds it.
//!
//! Source of constants and rules: `c10/cuda/CUDACachingAllocator.cpp` and
//! `c10/core/AllocatorConfig.h` of PyTorch 2.x.

mod caching;
mod settings;

pub use caching::{Caching, Peak};
pub use settings::Settings;

use crate::cudnn::Convolution;

/// Handle of a tensor in a sequence of events. The producer chooses it; a handle that was freed may be
/// used again.
pub type Handle = u64;

/// One step of a sequence: what a trace records and what a graph's rules produce.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A tensor's storage of so many bytes comes into being.
    Alloc {
        /// Its handle.
        handle: Handle,
        /// Size, bytes.
        bytes: u64,
    },
    /// A storage is let go of.
    Free {
        /// Its handle.
        handle: Handle,
    },
    /// The first matrix product on a thread: a cuBLAS workspace of that thread comes and stays.
    /// PyTorch has one for the forward thread (0) and one for autograd's (1).
    CublasWorkspace {
        /// Which thread.
        thread: u8,
    },
    /// A convolution with so many bytes of input, output and weight runs: bounds cuDNN's workspace.
    Convolution {
        /// Input, output and weight, bytes.
        bytes: u64,
    },
    /// A convolution runs, and what cuDNN takes for it is to be reckoned by its sizes.
    Cudnn(Box<Convolution>),
    /// So many bytes are taken and given back at once: a workspace of a kernel.
    Transient {
        /// Size, bytes.
        bytes: u64,
    },
    /// The program gives cached segments back (`torch.cuda.empty_cache()`).
    EmptyCache,
    /// A point in the run, for people and for peaks by phase: `model`, `forward`, `backward`, `step`.
    Mark {
        /// The phase that begins.
        name: String,
    },
}

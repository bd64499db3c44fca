//! Where a task will run: the GPU, the framework, the CUDA context that they cost.

use crate::alloc::Settings;
use serde::{Deserialize, Serialize};

/// A type of GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    /// As in carma's GPU models: `A100-40GB`, `H200`.
    pub name: String,
    /// Compute capability, major and minor: decides the size of cuBLAS workspaces.
    pub compute_capability: (u8, u8),
    /// All of its memory, MiB.
    pub total_mib: u64,
}

/// GPU, framework, context, and settings of the allocator.
#[derive(Debug, Clone, PartialEq)]
pub struct Platform {
    /// The GPU.
    pub gpu: Gpu,
    /// Version of PyTorch, major and minor.
    pub torch: (u32, u32),
    /// CUDA context of one process, MiB.
    pub context_mib: u64,
    /// Where the context's size comes from: probed, learned, or which row of the table.
    pub context_source: String,
    /// Settings of the caching allocator (`PYTORCH_ALLOC_CONF`).
    pub alloc: Settings,
}

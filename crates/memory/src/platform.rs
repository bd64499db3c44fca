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

impl Platform {
    /// The platform of a GPU type by name, with the context of the table.
    ///
    /// # Errors
    /// A name that the table does not have.
    pub fn lookup(name: &str, torch: (u32, u32)) -> Result<Self, crate::Error> {
        let (compute_capability, total_mib, context_mib) = match name {
            "A100-40GB" => ((8, 0), 40_960, 524),
            "H200" => ((9, 0), 143_771, 650),
            _ => return Err(crate::Error::bad(format!("GPU type `{name}`"), "not in the table")),
        };
        Ok(Self {
            gpu: Gpu { name: name.to_owned(), compute_capability, total_mib },
            torch,
            context_mib,
            context_source: "table".to_owned(),
            alloc: Settings::default(),
        })
    }
}

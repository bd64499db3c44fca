//! Ways of sharing a GPU.

use serde::{Deserialize, Serialize};
use std::fmt;

/// How the tenants share the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// The driver's default: one process' kernels are resident at a time, so engine time (GRACT) is
    /// what they divide, whatever their kernels fill of the SMs. Copies over PCIe overlap.
    #[default]
    TimeSlice,
    /// Kernels of several processes are resident together: they divide SMs, DRAM, tensor pipes and
    /// PCIe; engine time does not bind.
    Mps,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TimeSlice => "time-slice",
            Self::Mps => "mps",
        })
    }
}

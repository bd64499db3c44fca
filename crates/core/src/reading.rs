//! What a probe reports of the GPUs at one instant. Unknown is a value: every reading that can be
//! missing is an `Option`, never 0.

use crate::units::{Fraction, MiB, Millis};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// What kind of device a [`GpuInfo`] describes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GpuKind {
    /// A whole GPU.
    Whole,
    /// A MIG instance, which can be targeted like a GPU.
    Mig {
        /// UUID of the GPU that it is a slice of.
        parent: String,
        /// Profile name, e.g. `1g.10gb`.
        profile: String,
    },
    /// A virtual GPU: a model inside carma, never a measurement.
    Virtual,
}

/// A device that can be given to jobs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuInfo {
    /// Stable identity, e.g. `GPU-5f2c...` or `MIG-...`, fit for `CUDA_VISIBLE_DEVICES`.
    pub uuid: Arc<str>,
    /// Index in the driver's order (MIG instances follow their parents).
    pub index: u32,
    /// Product name, e.g. `NVIDIA H200`.
    pub name: String,
    /// Memory that the device has.
    pub memory: MiB,
    /// Whole GPU, MIG instance or virtual.
    pub kind: GpuKind,
    /// Whether fine-grain activity (SMACT, SMOCC, DRAMA) can be read here.
    pub has_activity: bool,
    /// Why jobs cannot share it by MPS; `None`: as far as is known, they can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_mps: Option<Arc<str>>,
}

impl GpuInfo {
    /// Whether it is a MIG instance. A process sees only one of them, and NCCL does not work between them (NVIDIA, MIG User Guide,
    /// "Application Considerations"): jobs on several GPUs get none.
    #[must_use]
    pub const fn is_mig(&self) -> bool {
        matches!(self.kind, GpuKind::Mig { .. })
    }

    /// Whether it is of the same type, so that the driver moves processes from one to the other.
    #[must_use]
    pub fn is_like(&self, other: &Self) -> bool {
        (&self.name, self.memory) == (&other.name, other.memory)
    }
}

/// Activity over the last sampling interval, each the share of time or of the peak rate.
/// Names and meanings are DCGM's fields 1001-1008; `None` where the device does not tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Activity {
    /// Graphics or compute engine active.
    pub gract: Option<Fraction>,
    /// SM active, mean over the SMs.
    pub smact: Option<Fraction>,
    /// Resident warps over the most that fit, mean over the SMs.
    pub smocc: Option<Fraction>,
    /// DRAM active.
    pub drama: Option<Fraction>,
    /// Any tensor pipe active.
    pub tensor: Option<Fraction>,
    /// FP64 pipe active.
    pub fp64: Option<Fraction>,
    /// FP32 pipe active.
    pub fp32: Option<Fraction>,
    /// FP16 pipe active.
    pub fp16: Option<Fraction>,
    /// PCIe traffic from the GPU, MiB/s.
    pub pcie_tx_mib_s: Option<u32>,
    /// PCIe traffic to the GPU, MiB/s.
    pub pcie_rx_mib_s: Option<u32>,
    /// NVML's coarse "GPU utilisation": time with any kernel resident. Shown, never used as demand.
    pub gpu_util: Option<Fraction>,
    /// NVML's coarse "memory utilisation": time in which device memory was read or written. Shown, never used as
    /// demand.
    #[serde(default)]
    pub mem_util: Option<Fraction>,
}

/// A process that holds a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessReading {
    /// Process id in the host's namespace.
    pub pid: u32,
    /// Device memory it holds; `None` where the driver does not tell.
    pub memory: Option<MiB>,
}

/// Whether the device answers.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Health {
    /// It answers.
    #[default]
    Ok,
    /// It fell off the bus or needs a reset.
    Lost(String),
    /// It could not be read this time: a call failed or missed its deadline.
    Unreadable(String),
}

/// One device at one instant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuReading {
    /// Which device.
    pub uuid: Arc<str>,
    /// Whether it answers; with anything but `Ok` the other fields may be empty.
    pub health: Health,
    /// Memory in use by anyone, driver included.
    pub memory_used: Option<MiB>,
    /// Activity over the interval since the previous tick.
    pub activity: Activity,
    /// Power draw, milliwatts.
    pub power_mw: Option<u32>,
    /// Energy counter, millijoules since some fixed start; only differences mean anything.
    pub energy_mj: Option<u64>,
    /// Clock of the SMs at this instant, MHz.
    #[serde(default)]
    pub sm_clock_mhz: Option<u32>,
    /// Clock of the memory at this instant, MHz.
    #[serde(default)]
    pub memory_clock_mhz: Option<u32>,
    /// Processes on the device; `None` where the list could not be read. An MPS server is
    /// listed like others, since a job may have taken its name.
    pub processes: Option<Vec<ProcessReading>>,
}

impl GpuReading {
    /// A reading of a device that told nothing.
    #[must_use]
    pub fn empty(uuid: Arc<str>, health: Health) -> Self {
        Self {
            uuid,
            health,
            memory_used: None,
            activity: Activity::default(),
            power_mw: None,
            energy_mj: None,
            sm_clock_mhz: None,
            memory_clock_mhz: None,
            processes: None,
        }
    }
}

/// All devices at one instant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// When it was taken.
    pub at: Millis,
    /// One reading a device, in the order of the inventory.
    pub gpus: Vec<GpuReading>,
}

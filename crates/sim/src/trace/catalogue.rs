//! The catalogue of tasks: what each kind of job needs and does when it has its GPUs alone.

use super::Weight;
use carma_core::model::Forecasts;
use carma_core::units::{MiB, Millis};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What a task does to each of its GPUs when alone: shares of the peak, 0 to 1, under the meanings of
/// DCGM's fields 1001-1005. `None`: not known.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Activity {
    /// Share of time with a kernel resident (GRACT).
    pub gract: Option<f64>,
    /// SM activity (SMACT).
    pub smact: Option<f64>,
    /// Warp occupancy (SMOCC).
    pub smocc: Option<f64>,
    /// DRAM activity (DRAMA).
    pub drama: Option<f64>,
    /// Tensor pipes.
    pub tensor: Option<f64>,
    /// PCIe traffic, share of the link.
    pub pcie: Option<f64>,
    /// Host CPU, share of the cores that belong to one GPU (cores of the machine over its GPUs).
    pub cpu: Option<f64>,
}

/// One kind of task.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Task {
    /// Name in traces.
    pub name: Arc<str>,
    /// Model and data, for people.
    pub model: String,
    /// How heavy it is.
    pub weight: Option<Weight>,
    /// Number of GPUs; 0 counts as 1.
    pub gpus: u32,
    /// Run time alone, start-up included.
    pub duration: Option<Millis>,
    /// Most GPU memory on each of its GPUs. One entry stands for all of them.
    pub memory: Vec<MiB>,
    /// Memory over time: share of the active run (0 to 1) and share of the peak (0 to 1), ascending.
    /// Empty: all of it from the first activity on.
    pub memory_over_time: Vec<(f64, f64)>,
    /// What it does when alone.
    pub activity: Activity,
    /// From start to the first GPU activity.
    pub startup: Option<Millis>,
    /// What the estimators say of its memory.
    pub forecasts: Forecasts,
    /// Lucid's sharing score: 0 tiny, 1 medium, 2 jumbo.
    pub lucid_score: Option<u8>,
    /// Rate alone by MPS thread percentage: (percent, share of the full rate), ascending.
    pub mps_curve: Vec<(f64, f64)>,
}

/// Tasks by name.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Catalogue {
    /// The tasks.
    pub tasks: BTreeMap<Arc<str>, Arc<Task>>,
}

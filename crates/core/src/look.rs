//! A GPU as it was seen at one instant, with its processes matched with jobs.
//!
//! What a probe tells is in [`crate::reading`]; what is kept of the looks is in the ledger. [`crate::input`] is the public
//! path.

use crate::reading::Health;
use crate::spec::JobId;
use crate::units::{MiB, Millis};
use crate::windows::WindowSummary;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// A process on a GPU that carma did not start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Foreign {
    /// Process id.
    pub pid: u32,
    /// Its owner, where known.
    pub user: Option<Arc<str>>,
    /// GPU memory that it holds, where known.
    pub memory: Option<MiB>,
}

/// One GPU as seen at one instant, processes already matched with jobs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observation {
    /// Time of it, on the journal's clock.
    pub at: Millis,
    /// Whether it answers.
    pub health: Health,
    /// Memory in use by anyone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used: Option<MiB>,
    /// Memory of each job that has a process here; `None` where the driver does not tell.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub jobs: Vec<(JobId, Option<MiB>)>,
    /// Processes that carma did not start.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub foreign: Vec<Foreign>,
    /// Whether the process list could be read at all.
    pub processes_known: bool,
    /// Activity over the window that ends here.
    pub window: WindowSummary,
    /// The energy counter, millijoules since some fixed start; `None`: the device has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub energy_mj: Option<u64>,
}

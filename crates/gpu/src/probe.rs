//! The one way that carma reads GPUs.

use carma_core::reading::{GpuInfo, Snapshot};
use carma_core::units::Millis;

/// Why GPUs cannot be read at all.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// No driver library, no driver, or no device.
    #[error("{0}")]
    Unavailable(String),
    /// The driver refused or failed.
    #[error("{what}: {why}")]
    Failed {
        /// Which call.
        what: &'static str,
        /// What the driver answered.
        why: String,
    },
}

/// Reads a fixed set of devices. A probe owns the state that it needs between ticks (GPM metrics,
/// for example, are differences of two samples).
pub trait Probe: Send {
    /// The devices, in a fixed order, as found when the probe was opened.
    fn inventory(&self) -> &[GpuInfo];

    /// Reads every device. Never fails and never blocks beyond the probe's own deadline: what could
    /// not be read is `None`, and the reading's health says why. `at` stamps the snapshot.
    fn tick(&mut self, at: Millis) -> Snapshot;
}

//! A measured task, and the name of a data set: what a trained network says it was trained on.

use super::ModelLayers;
use crate::ModelTask;
use serde::{Deserialize, Serialize};

/// What a run told of the task's memory, MiB, with the context of its process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Measured {
    /// Its peak.
    Peak(u64),
    /// It ended out of memory, or was pressed: it needs at least this.
    AtLeast(u64),
}

impl Measured {
    /// The number, whichever it is.
    #[must_use]
    pub const fn mib(self) -> u64 {
        match self {
            Self::Peak(mib) | Self::AtLeast(mib) => mib,
        }
    }
}

/// One measured task.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// Its name in the file.
    pub id: String,
    /// The model.
    pub model: ModelLayers,
    /// How it ran.
    pub task: ModelTask,
    /// What it took.
    pub measured: Measured,
}

/// Which data a network was trained on: its file, number of rows, checksum of names and measurements.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fingerprint {
    /// File, without folders.
    pub name: String,
    /// Number of tasks.
    pub rows: usize,
    /// Those of them that are lower bounds.
    pub lower_bounds: usize,
    /// CRC-32 of names and measurements.
    pub checksum: u32,
}

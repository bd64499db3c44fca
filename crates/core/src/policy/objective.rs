//! What `adaptive` is after where not all can be had at once.
//!
//! What each one changes is in [`super::presets::adaptive`]; what that brings and costs: docs/research/policies.md.

use serde::{Deserialize, Serialize};

/// What `adaptive` is after.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Objective {
    /// Jobs are done soon, in the mean: shortest first.
    #[default]
    Jct,
    /// The last of many jobs is done soon: longest first, and more slowdown by neighbours.
    Makespan,
    /// Fewer GPUs are at work: idle ones stay idle while a job can join others.
    Energy,
    /// Waiting users get equal progress: past usage weighs more than under the other objectives.
    Fair,
}

impl Objective {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Jct, Self::Makespan, Self::Energy, Self::Fair];

    /// Its name, as in the configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Jct => "jct",
            Self::Makespan => "makespan",
            Self::Energy => "energy",
            Self::Fair => "fair",
        }
    }

    /// The one with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|objective| objective.name() == name)
    }
}

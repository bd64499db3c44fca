//! The two designs of GPUMemNet.

use super::net::Shape;
use serde::{Deserialize, Serialize};

/// Which of the two designs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ensemble {
    /// Perceptrons over counts of the whole model.
    Mlp,
    /// Attention over its layers.
    Transformer,
}

impl Ensemble {
    /// All designs.
    pub const ALL: [Self; 2] = [Self::Mlp, Self::Transformer];

    /// Networks of an ensemble of ours.
    #[must_use]
    pub fn members(self) -> usize {
        Shape::members(self, 0, 0, 1, 1).len()
    }

    /// As on the command line and in files.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Mlp => "mlp",
            Self::Transformer => "transformer",
        }
    }
}

impl std::fmt::Display for Ensemble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

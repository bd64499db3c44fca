//! Which jobs may be together, by what is known of each from a profile.
//!
//! What is measured while they are together is not looked at here.

use crate::spec::Profile;
use crate::units::Fraction;
use serde::{Deserialize, Serialize};

/// Which jobs may be together on a GPU, by what is known of each from a profile. A job without one
/// gets a GPU alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pack {
    /// Jobs of every kind go together.
    #[default]
    Any,
    /// Those whose sharing scores add up to at most so much (Lucid).
    Scores {
        /// Sum of the scores.
        sum: u32,
    },
    /// Those whose profiled GPU utilisation adds up to at most so much (Horus).
    Utilisation {
        /// Sum of the utilisations.
        sum: Fraction,
    },
}

impl Pack {
    pub(super) fn is_any(&self) -> bool {
        *self == Self::Any
    }

    /// What is limited, for people.
    #[must_use]
    pub const fn describe(self) -> &'static str {
        match self {
            Self::Any => "nothing",
            Self::Scores { .. } => "sharing scores",
            Self::Utilisation { .. } => "profiled GPU utilisation",
        }
    }

    /// A load as people write it.
    #[must_use]
    pub fn show(self, load: u32) -> String {
        match self {
            Self::Any | Self::Scores { .. } => load.to_string(),
            Self::Utilisation { .. } => Fraction(load).to_string(),
        }
    }

    /// What a job adds to the sum that is limited: a score, or basis points. `None`: not known.
    #[must_use]
    pub fn load(self, profile: Profile) -> Option<u32> {
        match self {
            Self::Any => Some(0),
            Self::Scores { .. } => profile.score.map(u32::from),
            Self::Utilisation { .. } => profile.gpu_util.map(|f| f.0),
        }
    }

    /// Whether a job with this load may join so many others with that load between them. `None`:
    /// the load of one of them is not known.
    #[must_use]
    pub fn allows(self, others: u32, load: Option<u32>, newcomer: Option<u32>) -> bool {
        if others == 0 {
            return true;
        }
        match self {
            Self::Any => true,
            Self::Scores { sum } => within(load, newcomer, sum),
            Self::Utilisation { sum } => within(load, newcomer, sum.0),
        }
    }
}

fn within(load: Option<u32>, newcomer: Option<u32>, most: u32) -> bool {
    matches!((load, newcomer), (Some(a), Some(b)) if a.saturating_add(b) <= most)
}

//! Which GPUs are too busy to be shared, by their activity.
//!
//! What is missing closes a gate. Memory is not looked at here.

use crate::units::Fraction;
use crate::windows::{Metric, Risk, WindowSummary};
use serde::{Deserialize, Serialize};

/// Which GPUs are too busy to be shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Gate {
    /// None is.
    None,
    /// Those with risk(SMACT) >= smact AND (risk(SMOCC) >= smocc OR risk(DRAMA) >= drama).
    Thresholds {
        /// How a window of samples becomes one number.
        risk: Risk,
        /// Limit of SMACT.
        smact: Fraction,
        /// Limit of SMOCC.
        smocc: Fraction,
        /// Limit of DRAMA.
        drama: Fraction,
    },
    /// Those whose worst metric has at least this risk.
    Score {
        /// How a window of samples becomes one number.
        risk: Risk,
        /// The score from which on no job joins.
        limit: Fraction,
    },
}

/// What a gate says of one GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GateVerdict {
    /// It may be shared.
    Open,
    /// It is too busy.
    Busy {
        /// risk(SMACT).
        smact: Fraction,
        /// risk(SMOCC).
        smocc: Fraction,
        /// risk(DRAMA).
        drama: Fraction,
        /// The limits that apply to the three.
        limits: [Fraction; 3],
    },
    /// A metric that the gate needs is not there: fail closed.
    Missing(Metric),
}

impl Gate {
    /// Judges a GPU by its windows. A missing metric closes the gate.
    #[must_use]
    pub fn judge(&self, window: &WindowSummary) -> GateVerdict {
        let (risk, limits) = match *self {
            Self::None => return GateVerdict::Open,
            Self::Thresholds { risk, smact, smocc, drama } => (risk, [smact, smocc, drama]),
            Self::Score { risk, limit } => (risk, [limit; 3]),
        };
        let mut values = [Fraction(0); 3];
        for (value, metric) in values.iter_mut().zip(Metric::ALL) {
            match window.get(metric) {
                Some(summary) => *value = risk.of(summary),
                None => return GateVerdict::Missing(metric),
            }
        }
        let [smact, smocc, drama] = values;
        let [a, o, d] = [0, 1, 2].map(|i| values[i] >= limits[i]);
        let busy = match self {
            Self::Score { .. } => a || o || d,
            Self::None | Self::Thresholds { .. } => a && (o || d),
        };
        if busy { GateVerdict::Busy { smact, smocc, drama, limits } } else { GateVerdict::Open }
    }
}

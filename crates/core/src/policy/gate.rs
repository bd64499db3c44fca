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
    /// How it turns a window into one number, if it looks at any.
    const fn risk(self) -> Option<Risk> {
        match self {
            Self::None => None,
            Self::Thresholds { risk, .. } | Self::Score { risk, .. } => Some(risk),
        }
    }

    /// Whether two windows of one GPU differ by less than `within` in all that is decided by or shown of an attempt: the means,
    /// which say what a job does alone, CARMA's risk, by which GPUs are ranked, and the risk that this gate looks at. A statistic
    /// that none of them has (the median of a mean, say) may differ.
    #[must_use]
    pub fn sees_alike(self, a: &WindowSummary, b: &WindowSummary, within: Fraction) -> bool {
        Metric::ALL.iter().all(|metric| match (a.get(*metric), b.get(*metric)) {
            (Some(a), Some(b)) => {
                let risks = [Some(Risk::Mean), Some(Risk::Carma), self.risk()];
                risks.into_iter().flatten().all(|risk| risk.of(a).0.abs_diff(risk.of(b).0) < within.0)
            }
            (a, b) => a.is_none() == b.is_none(),
        })
    }

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::windows::Summary;

    #[test]
    fn windows_are_alike_where_all_that_is_decided_by_them_is() {
        let window = |summary| WindowSummary { smact: Some(summary), ..WindowSummary::default() };
        let level = |percent| Fraction::percent(percent);
        let still = Summary {
            mean: level(50),
            median: level(50),
            p95: level(90),
            ema: level(50),
            ..Summary::default()
        };
        let score = |risk| Gate::Score { risk, limit: level(80) };
        let within = |gate: Gate, other| gate.sees_alike(&window(still), &window(other), level(1));
        let (none, pattern) = (Gate::None, score(Risk::Pattern));
        for gate in [none, score(Risk::Carma), pattern, score(Risk::Ema), score(Risk::Mean)] {
            assert!(within(gate, Summary { samples: 7, ..still }), "{gate:?}");
            assert!(!within(gate, Summary { mean: level(52), ..still }), "{gate:?}");
            assert!(
                !within(gate, Summary { median: level(90), ..still }),
                "{gate:?}: .30 of it is in CARMA's risk"
            );
            assert!(!gate.sees_alike(&window(still), &WindowSummary::default(), level(1)), "{gate:?}");
        }
        let half = Summary { ema_half: level(90), ..still };
        assert!(within(none, half) && within(score(Risk::Carma), half) && !within(score(Risk::Ema), half));
        let varied = Summary { cv: level(20), ..still };
        let rising = Summary { slope_micro_per_s: 4_000, ..still };
        assert!(within(none, varied) && !within(pattern, varied));
        assert!(within(none, rising) && !within(pattern, rising));
    }
}

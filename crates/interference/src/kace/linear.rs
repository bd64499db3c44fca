//! Linear regression: what was fitted, and what it predicts.

use serde::{Deserialize, Serialize};

/// `y = intercept + weights x`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Linear {
    /// At the mean of all features.
    pub intercept: f64,
    /// One a feature.
    pub weights: Vec<f64>,
}

impl Linear {
    /// For one row.
    #[must_use]
    pub fn predict(&self, x: &[f64]) -> f64 {
        self.intercept + self.weights.iter().zip(x).map(|(w, v)| w * v).sum::<f64>()
    }

    /// Whether it has a weight for each of so many features, and all of its numbers are finite.
    #[must_use]
    pub fn is_whole(&self, features: usize) -> bool {
        self.weights.len() == features
            && self.weights.iter().all(|w| w.is_finite())
            && self.intercept.is_finite()
    }
}

//! KACE's neural network: layers of 128, 64, 32 and 1, ReLU between them. What was trained, and what it predicts.

use serde::{Deserialize, Serialize};

/// Outputs of each layer.
pub const WIDTHS: [usize; 4] = [128, 64, 32, 1];

/// The network, as it is in a file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Stored")]
pub struct Network {
    /// How many features it was trained with.
    pub features: usize,
    /// Of each layer its weights, output by output, then one bias an output.
    pub weights: Vec<f32>,
}

/// What a file holds: perhaps not one network's weights.
#[derive(Deserialize)]
struct Stored {
    features: usize,
    weights: Vec<f32>,
}

impl TryFrom<Stored> for Network {
    type Error = &'static str;

    fn try_from(stored: Stored) -> Result<Self, Self::Error> {
        let Stored { features, weights } = stored;
        if features.saturating_mul(WIDTHS[0]) > weights.len() {
            return Err("too few weights for so many features");
        }
        if weights.len() != count(features) {
            return Err("another number of weights than the network has");
        }
        Ok(Self { features, weights })
    }
}

/// Inputs and outputs of each layer.
fn layers(features: usize) -> impl Iterator<Item = (usize, usize)> {
    std::iter::once(features).chain(WIDTHS).zip(WIDTHS)
}

/// Weights and biases of all layers.
fn count(features: usize) -> usize {
    let of = |(inp, out): (usize, usize)| inp.saturating_add(1).saturating_mul(out);
    layers(features).map(of).fold(0, usize::saturating_add)
}

impl Network {
    /// For one normalised row; features that it lacks count as 0.
    #[must_use]
    pub fn predict(&self, x: &[f64]) -> f64 {
        let mut values: Vec<f32> = x.iter().map(|v| *v as f32).collect();
        values.resize(self.features, 0.0);
        let mut left = self.weights.as_slice();
        for (at, (inp, out)) in layers(self.features).enumerate() {
            let Some((layer, rest)) = left.split_at_checked((inp + 1) * out) else { return 0.0 };
            left = rest;
            let (weights, biases) = layer.split_at(inp * out);
            let output = |(o, bias): (usize, &f32)| {
                let own = &weights[o * inp..(o + 1) * inp];
                let y = own.iter().zip(&values).fold(*bias, |y, (w, v)| y + w * v);
                if at + 1 < WIDTHS.len() { y.max(0.0) } else { y }
            };
            values = biases.iter().enumerate().map(output).collect();
        }
        values.first().map_or(0.0, |y| f64::from(*y))
    }

    /// Whether it takes so many features, and has as many weights as it needs, all of them finite.
    #[must_use]
    pub fn is_whole(&self, features: usize) -> bool {
        self.features == features
            && self.weights.len() == count(features)
            && self.weights.iter().all(|w| w.is_finite())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Adds up its two features, above 0, in the first neuron of each layer.
    fn sum() -> Network {
        let mut weights = Vec::new();
        for (at, (inp, out)) in layers(2).enumerate() {
            let mut layer = vec![0.0; (inp + 1) * out];
            layer[0] = 1.0;
            layer[1] = if at == 0 { 1.0 } else { 0.0 };
            weights.extend(layer);
        }
        Network { features: 2, weights }
    }

    #[test]
    fn layers_are_linear_with_nothing_below_0_between_them() {
        let network = sum();
        assert_eq!([[2.0, 3.0], [2.0, -1.5], [-2.0, 1.0]].map(|x| network.predict(&x)), [5.0, 0.5, 0.0]);
        assert_eq!((network.predict(&[2.0]), network.predict(&[2.0, 3.0, 9.0])), (2.0, 5.0));
        let mut biased = network.clone();
        *biased.weights.last_mut().unwrap() = -7.0;
        assert_eq!(biased.predict(&[2.0, 3.0]), -2.0);
        biased.weights[5] = f32::NAN;
        assert!(network.is_whole(2) && !network.is_whole(3) && !biased.is_whole(2));
        biased.weights.pop();
        assert_eq!(biased.predict(&[2.0, 3.0]), 0.0);
    }

    #[test]
    fn files_hold_as_many_weights_as_the_network_has() {
        let text = serde_json::to_string(&sum()).unwrap();
        assert_eq!(serde_json::from_str::<Network>(&text).unwrap(), sum());
        assert!(serde_json::from_str::<Network>(&text.replacen("0.0", "0.0,0.0", 1)).is_err());
        assert!(serde_json::from_str::<Network>(r#"{"features":99999999,"weights":[1.0]}"#).is_err());
        assert!(
            serde_json::from_str::<Network>(r#"{"features":18446744073709551615,"weights":[]}"#).is_err()
        );
        assert!(serde_json::from_str::<Network>(r#"{"features":0,"weights":[1.0]}"#).is_err());
    }
}

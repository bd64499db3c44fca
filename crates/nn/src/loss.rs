//! What the last layer says, and how wrong it is, for values that were seen and for lower bounds.

use super::Mat;

/// A value that was seen, or the bound below which it does not lie (a run that ended out of memory).
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Seen<T> {
    /// This value.
    Value(T),
    /// This or more.
    AtLeast(T),
}

/// Widest and narrowest scale that a network may state, as logarithms; outside, no gradient.
const SCALE: (f32, f32) = (-6.0, 3.0);

/// A logistic distribution: its middle and the logarithm of its scale, the two outputs of a network.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Logistic {
    /// Median and mean.
    pub middle: f32,
    /// Logarithm of the scale.
    pub log_scale: f32,
}

impl Logistic {
    /// Of a network's outputs: two rows.
    pub fn of(output: &Mat, sample: usize) -> Self {
        Self { middle: output.at(0, sample), log_scale: output.at(1, sample).clamp(SCALE.0, SCALE.1) }
    }

    /// Negative log-likelihood, summed over samples, and its gradient by the two outputs: density at a
    /// value, probability of more at a lower bound.
    pub fn loss(output: &Mat, seen: &[Seen<f32>]) -> (f32, Mat) {
        let mut grad = Mat::zeros(2, output.cols);
        let mut loss = 0.0;
        for (s, seen) in seen.iter().enumerate() {
            let at = Self::of(output, s);
            let inverse = (-at.log_scale).exp();
            let (dm, ds) = match *seen {
                Seen::Value(z) => {
                    let u = (z - at.middle) * inverse;
                    let tanh = (u / 2.0).tanh();
                    loss += u.abs() + 2.0 * (-u.abs()).exp().ln_1p() + at.log_scale;
                    (-tanh * inverse, 1.0 - u * tanh)
                }
                Seen::AtLeast(z) => {
                    let u = (z - at.middle) * inverse;
                    let above = sigmoid(u);
                    loss += u.max(0.0) + (-u.abs()).exp().ln_1p();
                    (-above * inverse, -u * above)
                }
            };
            let raw = output.at(1, s);
            grad.data[s] = dm;
            grad.data[output.cols + s] = if raw > SCALE.0 && raw < SCALE.1 { ds } else { 0.0 };
        }
        (loss, grad)
    }
}

/// `1 / (1 + exp(-u))`.
pub(crate) fn sigmoid(u: f32) -> f32 {
    1.0 / (1.0 + (-u).exp())
}

/// Cross entropy of classes, summed over samples, and its gradient: of the class, or of that class or
/// any above it.
pub fn softmax_loss(output: &Mat, seen: &[Seen<usize>]) -> (f32, Mat) {
    let mut grad = Mat::zeros(output.rows, output.cols);
    let mut loss = 0.0;
    for (s, seen) in seen.iter().enumerate() {
        let p = softmax_class(output, s);
        let last = p.len() - 1;
        let hit = match *seen {
            Seen::Value(k) => k.min(last)..k.min(last) + 1,
            Seen::AtLeast(k) => k.min(last)..last + 1,
        };
        let mass = p[hit.clone()].iter().sum::<f32>().max(f32::MIN_POSITIVE);
        loss -= mass.ln();
        for (k, p) in p.iter().enumerate() {
            grad.data[k * output.cols + s] = p - if hit.contains(&k) { p / mass } else { 0.0 };
        }
    }
    (loss, grad)
}

/// Probabilities of the classes of one sample.
pub fn softmax_class(output: &Mat, sample: usize) -> Vec<f32> {
    let most = (0..output.rows).map(|k| output.at(k, sample)).fold(f32::NEG_INFINITY, f32::max);
    let mut p: Vec<f32> = (0..output.rows).map(|k| (output.at(k, sample) - most).exp()).collect();
    let total: f32 = p.iter().sum();
    p.iter_mut().for_each(|p| *p /= total);
    p
}

//! Gradients against finite differences: for the tests of crates that build networks from these layers.

use crate::Module;

/// How gradients compare with differences of the loss.
#[derive(Debug, Clone, PartialEq)]
pub struct Compared {
    /// How many weights there are.
    pub weights: usize,
    /// The largest gradient.
    pub largest: f32,
    /// Those that differ: index of the weight, difference quotient, gradient.
    pub off: Vec<(usize, f32, f32)>,
}

impl Compared {
    /// There are gradients, and at most one in fifty differs: a difference across the kink of a ReLU is
    /// wrong, and that is rare.
    #[must_use]
    pub fn agree(&self) -> bool {
        self.largest > 0.0 && self.off.len() * 50 <= self.weights
    }
}

/// Compares the gradients that `run(module, true)` adds up with differences of the loss that it returns.
pub fn compare_gradients<M: Module>(module: &mut M, mut run: impl FnMut(&mut M, bool) -> f32) -> Compared {
    module.weights(&mut |w| w.grad.fill(0.0));
    run(module, true);
    let mut analytic = Vec::new();
    module.weights(&mut |w| analytic.extend_from_slice(&w.grad));
    let largest = analytic.iter().fold(0.0_f32, |a, g| a.max(g.abs()));
    let nudge = |module: &mut M, i: usize, by: f32| {
        let mut at = 0;
        module.weights(&mut |w| {
            if (at..at + w.value.len()).contains(&i) {
                w.value[i - at] += by;
            }
            at += w.value.len();
        });
    };
    let mut off = Vec::new();
    for (i, analytic) in analytic.iter().enumerate() {
        let h = 1e-3;
        nudge(module, i, h);
        let up = run(module, false);
        nudge(module, i, -2.0 * h);
        let down = run(module, false);
        nudge(module, i, h);
        let numeric = (up - down) / (2.0 * h);
        if (numeric - analytic).abs() > 0.01 * largest + 0.02 * numeric.abs() {
            off.push((i, numeric, *analytic));
        }
    }
    Compared { weights: analytic.len(), largest, off }
}

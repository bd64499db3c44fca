//! Adam (Kingma and Ba, 2015) with PyTorch's defaults.

use super::Module;

const BETA1: f32 = 0.9;
const BETA2: f32 = 0.999;
const EPS: f32 = 1e-8;

/// Moments of every weight, in the order in which a module shows them.
#[derive(Debug, Default)]
pub struct Adam {
    first: Vec<f32>,
    second: Vec<f32>,
    steps: i32,
}

impl Adam {
    /// One step along the gradients, which are forgotten.
    pub fn step(&mut self, module: &mut impl Module, rate: f32) {
        self.steps += 1;
        let correct1 = 1.0 - BETA1.powi(self.steps);
        let correct2 = (1.0 - BETA2.powi(self.steps)).sqrt();
        let mut at = 0;
        let (first, second) = (&mut self.first, &mut self.second);
        module.weights(&mut |w| {
            let end = at + w.value.len();
            if first.len() < end {
                first.resize(end, 0.0);
                second.resize(end, 0.0);
            }
            for (i, (value, grad)) in w.value.iter_mut().zip(&mut w.grad).enumerate() {
                let (m, v) = (&mut first[at + i], &mut second[at + i]);
                *m += (1.0 - BETA1) * (*grad - *m);
                *v += (1.0 - BETA2) * (*grad * *grad - *v);
                *value -= rate / correct1 * *m / (v.sqrt() / correct2 + EPS);
                *grad = 0.0;
            }
            at = end;
        });
    }
}

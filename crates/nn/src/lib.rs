//! Neural networks of a few thousand parameters: layers with forward and backward passes, Adam, losses.
//!
//! Written here and not taken from a framework: what GPUMemNet, DNNPerf and KACE need is six layers, in 32 bits,
//! on a CPU. candle and burn, which have far more, bring more than 125 crates and minutes of compilation
//! into everyone's build; this crate has no dependency beyond a random number generator, trains the
//! largest network here in minutes, and answers in microseconds. Gradients are checked against finite
//! differences in its tests.
//!
//! A [`Mat`] holds one feature a row and one sample (or one layer of a model, a *token*) a column: the
//! loops over samples are then over neighbouring numbers, which compilers vectorise. Nothing here depends on
//! the number of threads: a network is trained by one thread, and draws from its own seed;
//! [`parallel`] trains several at once.

mod adam;
mod attention;
pub mod check;
mod dense;
mod descend;
mod loss;
mod mat;
mod mlp;
mod norm;
mod parallel;
mod rng;

pub use adam::Adam;
pub use attention::{Attention, Encoder, EncoderCache, Segments};
pub use dense::Linear;
pub use descend::{Learner, Pace, descend};
pub use loss::{Logistic, Seen, softmax_class, softmax_loss};
pub use mat::Mat;
pub use mlp::{Hidden, Mlp, MlpCache};
pub use norm::{BatchNorm, LayerNorm, NormCache};
pub use parallel::parallel;
pub use rng::Rng;

/// Numbers that are trained, with their gradient.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Weights {
    /// The numbers.
    pub value: Vec<f32>,
    /// Gradient of the loss, added up until the optimizer's next step.
    pub grad: Vec<f32>,
}

impl Weights {
    /// With gradients of 0.
    #[must_use]
    pub fn new(value: Vec<f32>) -> Self {
        let grad = vec![0.0; value.len()];
        Self { value, grad }
    }
}

/// Something with numbers: visited in a fixed order, by the optimizer and by what saves and loads.
pub trait Module {
    /// Visits what is trained.
    fn weights(&mut self, visit: &mut dyn FnMut(&mut Weights));

    /// Visits everything that must be saved: what is trained, and running statistics.
    fn state(&mut self, visit: &mut dyn FnMut(&mut Vec<f32>)) {
        self.weights(&mut |w| visit(&mut w.value));
    }

    /// All state in one list.
    fn save(&mut self) -> Vec<f32> {
        let mut all = Vec::new();
        self.state(&mut |v| all.extend_from_slice(v));
        all
    }

    /// Takes what [`Module::save`] gave; returns how many numbers were used, `None` if there are too few.
    fn load(&mut self, from: &[f32]) -> Option<usize> {
        let mut at = 0;
        let mut enough = true;
        self.state(&mut |v| {
            if let Some(part) = from.get(at..at + v.len()) {
                v.copy_from_slice(part);
            } else {
                enough = false;
            }
            at += v.len();
        });
        enough.then_some(at)
    }
}

/// Negative numbers become 0.
pub fn relu(x: &mut Mat) {
    x.data.iter_mut().for_each(|v| *v = v.max(0.0));
}

/// Gradient through [`relu`], given its output.
pub fn relu_backward(output: &Mat, grad: &mut Mat) {
    for (g, y) in grad.data.iter_mut().zip(&output.data) {
        if *y <= 0.0 {
            *g = 0.0;
        }
    }
}

#[cfg(test)]
mod tests;

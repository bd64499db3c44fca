//! Context, parameters, saved activations: three terms from the same three numbers that [`super::horus`] takes.
//!
//! `context + 20 P + 8 A B` bytes for Adam in 32 bits: weights, gradients, two
//! states and the list of square roots at the step; an activation is kept once as a layer's output and
//! once as its function's. Measured on the 6,000 MLP runs of GPUMemNet (see `carma lab estimate-bench`);
//! on other models it is a guess: no lifetimes, no workspaces, no allocator. The bound is twice the
//! part that is not context, and 64 MiB for library workspaces and the rounding of segments.

use super::{Totals, answer, mib};
use crate::{Estimate, MiB, Mode, ModelTask, Optimizer, Platform, Precision};

/// Workspaces and rounding.
const FLOOR: MiB = MiB(64);

/// Bytes a parameter at the step: weight, gradient, states, temporaries.
#[must_use]
pub const fn bytes_a_parameter(task: &ModelTask) -> f64 {
    let weight = match task.precision {
        Precision::Bf16 | Precision::Fp16 => 2.0,
        Precision::Fp32 | Precision::Bf16Autocast | Precision::Fp16Autocast => 4.0,
    };
    match task.mode {
        Mode::Infer => weight,
        Mode::Train => match task.optimizer {
            Optimizer::Sgd => 2.0 * weight,
            Optimizer::SgdMomentum => 3.0 * weight,
            Optimizer::Adam | Optimizer::Adamw => 5.0 * weight,
            Optimizer::AdamFused | Optimizer::Rmsprop | Optimizer::Adagrad => 4.0 * weight,
            Optimizer::Adam8bit => 2.0 * weight + 2.0,
        },
    }
}

/// The estimate.
#[must_use]
pub fn estimate(totals: Totals, family: &str, task: &ModelTask, platform: &Platform) -> Estimate {
    let number = if task.precision == Precision::Fp32 { 4.0 } else { 2.0 };
    let activation = match task.mode {
        // Input and output of one layer at a time are a small part; half of all is far above it.
        Mode::Infer => number / 2.0,
        Mode::Train => 2.0 * number,
    };
    let a_parameter = bytes_a_parameter(task);
    let held =
        mib(a_parameter * totals.parameters as f64
            + activation * totals.activations as f64 * totals.batch as f64);
    let reasons = vec![
        format!(
            "{a_parameter} bytes for each of {} parameters, {activation} for each of {} x {} activations",
            totals.parameters, totals.batch, totals.activations
        ),
        format!("CUDA context {} MiB ({})", platform.context_mib.0, platform.context_source),
        format!("bound: twice and {FLOOR}, as lifetimes, workspaces and the allocator are left out"),
    ];
    let context = platform.context_mib;
    answer("quick", family, context + held, context + held + held + FLOOR, reasons)
}

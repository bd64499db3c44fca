//! What a task will do to a GPU that it has for itself, told by the description of its model: activity of the SMs, their
//! occupancy, activity of DRAM, time of a step.
//!
//! A roofline for each kernel, beside the time that the host needs to launch them all:
//!
//! ```text
//! t_k   = max(operations / rate, bytes / bandwidth, floor)     forward; twice as much and more backward
//! gpu   = sum of t_k, and what the optimizer reads and writes
//! host  = launches x time of one
//! step  = (gpu^q + host^q)^(1/q)                               neither hides the other wholly
//! SMACT = (gpu / step)^a x mean over t_k of how far a kernel's numbers go round the SMs
//! ```
//!
//! Source: the constants are fitted to 283 runs of 78 models that were measured on an H200 (`bench/h200/activity_fit.py`,
//! `docs/research/memory-estimation.md`). Nothing is known of other types of GPU.

use crate::graph::Graph;
use crate::graph::kernels::{Kind, kernels};
use crate::{Error, Mode, ModelTask, Optimizer, Platform, Precision};
use serde::Serialize;

/// A value and what lies around it with a chance of 90 %.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Range {
    /// The likeliest value.
    pub expected: f64,
    /// With a chance of 5 % it is less.
    pub lower: f64,
    /// With a chance of 5 % it is more.
    pub upper: f64,
}

/// What a task does alone, means over time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Activity {
    /// Share of the SMs with a warp on them, 0 to 1 (DCGM's SMACT).
    pub smact: Range,
    /// Share of the warps that the SMs can hold, 0 to 1 (SMOCC).
    pub smocc: Range,
    /// Share of the time in which DRAM moves data, 0 to 1 (DRAMA).
    pub drama: Range,
    /// Time of a step, ms.
    pub step_ms: Range,
}

/// The type of GPU that was measured.
const MEASURED: &str = "H200";
/// Numbers that all SMs work on at once: 132 SMs, 2048 threads.
const WAVE: f64 = 132.0 * 2048.0;
/// Operations a second: matrix products in 32 bits (no TF32, as PyTorch's default) and in 16, convolutions in TF32 and in 16 bits.
const PRODUCTS: [f64; 2] = [40.2e12, 897e12];
const CONVOLUTIONS: [f64; 2] = [199e12, 292e12];
/// Bytes a second that kernels of such networks move, and the share of it that grouped convolutions reach.
const BANDWIDTH: f64 = 1.33e12;
const GROUPED: f64 = 0.496;
/// Seconds that a kernel takes at least.
const FLOOR: f64 = 7.88e-6;
/// Bytes of the backward pass over those of the forward pass.
const BACKWARD: f64 = 2.49;
/// Seconds of the host for a kernel forward, for those of its backward pass, for a tensor of the optimizer.
const LAUNCH: f64 = 23.0e-6;
const LAUNCH_BACKWARD: f64 = 73.3e-6;
const LAUNCH_TENSOR: f64 = 5.27e-6;
/// `q`.
const BESIDE: f64 = 2.32;
/// `a`, and how numbers go round the SMs: `min(1, waves / FULL)^FILLS`, of which this share is seen.
const ENGINE: f64 = 1.36;
const FULL: f64 = 0.749;
const FILLS: f64 = 0.575;
const SEEN: f64 = 0.921;
const MOST: f64 = 0.97;
/// SMOCC = c SMACT^e, DRAMA = c (share of time bound by traffic)^e.
const OCCUPANCY: [f64; 2] = [0.361, 0.76];
const TRAFFIC: [f64; 2] = [0.35, 1.29];

/// What the task does alone on this GPU.
///
/// # Errors
/// A type of GPU that was not measured, several GPUs, a graph without operators.
pub fn activity(graph: &Graph, task: &ModelTask, platform: &Platform) -> Result<Activity, Error> {
    let missing = |what: &str| Error::Missing { estimator: "activity", what: what.to_owned() };
    if !platform.gpu.name.contains(MEASURED) {
        return Err(missing("an H200: no activity was measured on other types of GPU"));
    }
    if task.gpus > 1 {
        return Err(missing("a task of one GPU"));
    }
    let training = task.mode == Mode::Train;
    let full = task.precision == Precision::Fp32;
    let autocast = matches!(task.precision, Precision::Bf16Autocast | Precision::Fp16Autocast);
    let at = usize::from(!full);
    let (mut gpu, mut filled, mut moved, mut launches) = (0.0_f64, 0.0, 0.0, 0.0);
    for kernel in kernels(graph) {
        let traffic = kernel.kind == Kind::Traffic;
        // Under autocast elementwise operators run in both types.
        let width = if full {
            4.0
        } else if autocast && traffic {
            3.0
        } else {
            2.0
        };
        let bytes = (kernel.numbers + kernel.parameters) * width / BANDWIDTH;
        let arithmetic = match kernel.kind {
            Kind::Product => kernel.flops / PRODUCTS[at],
            Kind::Convolution => kernel.flops / CONVOLUTIONS[at],
            Kind::Grouped => (kernel.flops / CONVOLUTIONS[at]).max(bytes / GROUPED),
            Kind::Traffic => 0.0,
        };
        let least = FLOOR * kernel.launches;
        let forward = arithmetic.max(bytes).max(least);
        let backward = if traffic {
            (BACKWARD * bytes).max(least)
        } else {
            (2.0 * arithmetic).max(BACKWARD * bytes).max(2.0 * FLOOR)
        };
        let time = forward + if training { backward } else { 0.0 };
        let waves = (kernel.numbers / 2.0 / WAVE).max(1e-3);
        gpu += time;
        filled += time * (waves / FULL).min(1.0).powf(FILLS);
        moved += time * (bytes / forward).min(1.0);
        launches += kernel.launches;
    }
    if gpu <= 0.0 {
        return Err(missing("a model with operators"));
    }
    let (fill, traffic) = (filled / gpu, moved / gpu);
    let mut host = launches * LAUNCH;
    if training {
        let tensors = graph.params.len() as f64;
        let state = if full || autocast { 1.0 } else { 0.5 };
        gpu +=
            state * optimizer_bytes(task.optimizer) * graph.parameters() as f64 / BANDWIDTH + tensors * 1e-7;
        host += launches * LAUNCH_BACKWARD + tensors * LAUNCH_TENSOR;
    }
    let step = (gpu.powf(BESIDE) + host.powf(BESIDE)).powf(1.0 / BESIDE);
    let engine = (gpu / step).min(1.0);
    let smact = engine.powf(ENGINE) * (fill * SEEN).clamp(0.0, MOST);
    let power = |[c, e]: [f64; 2], x: f64| c * x.max(1e-3).powf(e);
    let bounds = &BOUNDS[usize::from(!training)];
    let share = |expected: f64, [under, over]: [f64; 2]| Range {
        expected,
        lower: (expected + under).clamp(0.0, 1.0),
        upper: (expected + over).clamp(0.0, 1.0),
    };
    Ok(Activity {
        smact: share(smact, bounds.smact),
        smocc: share(power(OCCUPANCY, smact), bounds.smocc),
        drama: share(power(TRAFFIC, traffic * engine), bounds.drama),
        step_ms: Range {
            expected: step * 1e3,
            lower: step * 1e3 * bounds.step[0],
            upper: step * 1e3 * bounds.step[1],
        },
    })
}

/// What an optimizer reads and writes for a parameter in 32 bits, bytes.
const fn optimizer_bytes(optimizer: Optimizer) -> f64 {
    match optimizer {
        Optimizer::Adam | Optimizer::Adamw | Optimizer::Adam8bit => 44.0,
        Optimizer::AdamFused => 28.0,
        Optimizer::Sgd | Optimizer::SgdMomentum | Optimizer::Rmsprop | Optimizer::Adagrad => 20.0,
    }
}

/// How far off it was about families that it was not fitted to: 5 % and 95 % of the errors; of the step's time as a factor.
struct Bounds {
    smact: [f64; 2],
    smocc: [f64; 2],
    drama: [f64; 2],
    step: [f64; 2],
}

/// Of training and of inference.
const BOUNDS: [Bounds; 2] = [
    Bounds { smact: [-0.22, 0.39], smocc: [-0.15, 0.23], drama: [-0.08, 0.21], step: [0.51, 2.23] },
    Bounds { smact: [-0.22, 0.16], smocc: [-0.18, 0.32], drama: [-0.14, 0.21], step: [0.57, 3.48] },
];

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::hf;

    fn of(batch_size: u64, task: ModelTask) -> Activity {
        let config =
            hf::Config::parse(r#"{"model_type": "bert", "vocab_size": 30522, "hidden_size": 768}"#).unwrap();
        let task = ModelTask { batch_size, seq_len: Some(128), ..task };
        let platform = Platform::lookup("H200", (2, 11)).unwrap();
        activity(&hf::graph(&config, &task).unwrap(), &task, &platform).unwrap()
    }

    /// A large batch fills the GPU, a small one is bound by the host; 16 bits are faster.
    #[test]
    fn a_batch_fills_the_gpu() {
        let train = ModelTask::default();
        let (small, large) = (of(1, train.clone()), of(64, train.clone()));
        assert!(small.smact.expected < 0.4 && large.smact.expected > 0.6, "{small:?} {large:?}");
        assert!(large.step_ms.expected > 4.0 * small.step_ms.expected);
        let half = of(64, ModelTask { precision: Precision::Bf16, ..train });
        assert!(half.step_ms.expected < large.step_ms.expected / 2.0);
        for Range { expected, lower, upper } in [large.smact, large.smocc, large.drama, large.step_ms] {
            assert!(lower <= expected && expected <= upper && lower >= 0.0);
        }
    }

    #[test]
    fn nothing_is_said_of_what_was_not_measured() {
        let graph = Graph::default();
        let of = |gpu: &str, gpus| {
            let platform = Platform::lookup(gpu, (2, 11)).unwrap();
            activity(&graph, &ModelTask { gpus, ..ModelTask::default() }, &platform).unwrap_err().to_string()
        };
        assert!(of("A100-40GB", 1).contains("H200"));
        assert!(of("H200", 2).contains("one GPU"));
        assert!(of("H200", 1).contains("operators"));
    }
}

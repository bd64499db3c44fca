//! Hugging Face's `accelerate estimate-memory`.
//!
//! The model on the `meta` device: the sum of its weights and its largest layer. "Training with Adam" is
//! the largest of model, gradients, optimizer and step; in 32 bits the step, four times the weights; in
//! half precision twice the weights in 32 bits. A batch of one and no activations.
//! For inference its authors say to expect 20 % more, which is the bound here; for training no
//! bound follows.

use super::{answer, no_bound};
use crate::estimate::times;
use crate::formula::deepspeed::largest_layer;
use crate::graph::Graph;
use crate::{Estimate, MIB, MiB, Mode, ModelTask, Platform, Precision};

/// What the tool prints of a model, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// Weights and buffers in the precision asked for.
    pub total: u64,
    /// Weights of the largest layer in that precision.
    pub largest_layer: u64,
    /// Training with Adam.
    pub training: u64,
}

/// Sizes of a model with so many parameters (buffers included), of which the largest layer has so many.
#[must_use]
pub const fn sizes(parameters: u64, largest_layer: u64, precision: Precision) -> Sizes {
    let full = parameters.saturating_mul(4);
    let (number, training) = match precision {
        Precision::Fp32 => (4, full.saturating_mul(4)),
        Precision::Bf16Autocast | Precision::Fp16Autocast | Precision::Bf16 | Precision::Fp16 => {
            (2, full.saturating_mul(2))
        }
    };
    Sizes {
        total: parameters.saturating_mul(number),
        largest_layer: largest_layer.saturating_mul(number),
        training,
    }
}

/// Sizes of a graph; the largest layer is the node with the most parameters.
#[must_use]
pub fn from_graph(graph: &Graph, task: &ModelTask) -> Sizes {
    let all = graph.params.iter().fold(0_u64, |n, p| n.saturating_add(p.elements()));
    sizes(all, largest_layer(graph), task.precision)
}

/// The estimate.
#[must_use]
pub fn estimate(sizes: Sizes, family: &str, task: &ModelTask, platform: &Platform) -> Estimate {
    let mut reasons = vec![format!(
        "weights {} MiB, largest layer {} MiB, training with Adam {} MiB; no activations, no context",
        sizes.total.div_ceil(MIB),
        sizes.largest_layer.div_ceil(MIB),
        sizes.training.div_ceil(MIB)
    )];
    match task.mode {
        Mode::Train => {
            let (upper, bound) = no_bound(platform);
            reasons.push(bound);
            answer("accelerate", family, MiB::from_bytes(sizes.training), upper, reasons)
        }
        Mode::Infer => {
            let total = MiB::from_bytes(sizes.total);
            reasons.push("bound: 20 % more, as its authors say, and the CUDA context".to_owned());
            let upper = platform.context_mib + times(total, 1.2);
            answer("accelerate", family, total, upper, reasons)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_precision_trains_in_half_of_full() {
        let full = sizes(1000, 10, Precision::Fp32);
        assert_eq!(full, Sizes { total: 4000, largest_layer: 40, training: 16_000 });
        let half = sizes(1000, 10, Precision::Fp16);
        assert_eq!(half, Sizes { total: 2000, largest_layer: 20, training: 8000 });
    }
}

//! DNNMem (Gao et al., ESEC/FSE 2020): a computation graph walked with lifetimes, through the framework's
//! allocator.
//!
//! Its design is that of carma's main estimator: operators in order, each with weights, gradients,
//! inputs, outputs and ephemeral tensors; what is alive at once; the framework's rounding and segments;
//! the CUDA context measured once. It is closed source. **Reproduced**: the design, on an ONNX file, as its
//! authors feed it framework-independent graphs. **Not reproduced**: its library of operators for
//! TensorFlow, PyTorch and MXNet, its workspace sizes by operator, its context sizes. In their place
//! stand our rules of autograd ([`crate::graph::replay`]), one bound for convolution workspaces, and the
//! platform's context. So the number is that of `allocator/onnx`; it stands here under the name of its
//! idea, with a wider bound: errors of 10 to 16 % are told of it (unverified), more on transformers.

use super::answer;
use crate::estimate::times;
use crate::graph::{Graph, Replay};
use crate::{Estimate, ModelTask, Parts, Platform, Uses};

/// Bound over what is not context: twice what is told of its errors.
const UPPER: f64 = 1.32;

/// The estimate from a graph and its replay.
#[must_use]
pub fn estimate(graph: &Graph, replay: &Replay, task: &ModelTask, platform: &Platform) -> Estimate {
    let context = platform.context(Uses::of(task.mode));
    let parts = Parts::of_replay(context, &replay.peak, replay.convolution_bytes);
    let held = parts.reserved_mib + parts.workspace_mib;
    let mut reasons = vec![
        "DNNMem's design with carma's rules and allocator model: its own operator library is closed"
            .to_owned(),
    ];
    reasons.extend(replay.notes());
    reasons.push(format!("CUDA context {} MiB ({})", context.0, platform.context_source));
    reasons.push(format!("bound: {:.0} %, twice the errors that are told of it", (UPPER - 1.0) * 100.0));
    reasons.extend(graph.doubts.iter().map(|doubt| format!("not understood: {doubt}")));
    let upper = parts.context_mib + times(held, UPPER);
    let estimate = answer("dnnmem", &graph.family, parts.context_mib + held, upper, reasons);
    Estimate {
        need_mib: parts.context_mib + parts.allocated_mib + parts.workspace_mib,
        parts: Some(parts),
        ..estimate
    }
}

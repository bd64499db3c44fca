//! Estimators that others published: a few numbers in, a number out, each in a file of its own.
//!
//! | name | reproduced | not reproduced |
//! | --- | --- | --- |
//! | [`horus`] | the formula as the authors of GPUMemNet and CARMA used it, with its variants, to the digit of their published values | the memory formula of the paper itself (TPDS'22), which could not be retrieved |
//! | [`faketensor`] | the raw number and corrections of it, fitted on 1,017 timm models | running a model under `FakeTensorMode`: the number is given |
//! | [`deepspeed`] | ZeRO-2 and ZeRO-3 model states, every offload case, GPU and CPU | activations: it never counted them |
//! | [`llmem`] | the formulas by strategy, and the search of the largest batch | its base, which it measures on the GPU: computed here |
//! | [`accelerate`] | `estimate-memory`: weights, gradients, optimizer; largest layer | activations: it never counted them |
//! | [`quick`] | context + 20 bytes a parameter + saved activations (ours) | |
//! | [`dnnmem`] | the design: graph walk with liveness through the framework's allocator | its operator library, closed source: our rules and allocator stand in |
//! | dnnperf | nothing: a trained graph network whose weights and 10,000 runs were not published. A formula would bear its name without being it | everything |
//!
//! None of them says how sure it is. The bound that each gets here is stated in its file and comes from
//! its published errors; where a formula leaves activations out, no bound follows from it, and the
//! bound is the whole GPU.

pub mod accelerate;
pub mod deepspeed;
pub mod dnnmem;

pub mod faketensor;
pub mod horus;
pub mod llmem;
pub mod quick;

use crate::graph::{Graph, Op};
use crate::{Estimate, MiB, ModelTask, Platform, Tier};

/// What the simplest formulas know of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Totals {
    /// Elements of all layers' outputs, of one sample.
    pub activations: u64,
    /// Elements of all parameters.
    pub parameters: u64,
    /// Samples a step.
    pub batch: u64,
}

impl Totals {
    /// Totals of a graph, whose shapes include the batch. Views count as a summary counts them not:
    /// they are no layers.
    #[must_use]
    pub fn from_graph(graph: &Graph, task: &ModelTask) -> Self {
        let batch = task.batch_size.max(1);
        let outputs = graph
            .nodes
            .iter()
            .filter(|node| !matches!(node.op, Op::Input | Op::View | Op::Loss | Op::CrossEntropy))
            .flat_map(|node| &node.outputs)
            .fold(0_u64, |sum, id| sum.saturating_add(graph.tensor(*id).elements()));
        Self { activations: outputs / batch, parameters: graph.parameters(), batch }
    }
}

/// So many bytes, rounded up.
fn mib(bytes: f64) -> MiB {
    // Floats saturate when cast, and NaN becomes 0: nothing here panics.
    MiB((bytes / crate::MIB as f64).ceil() as u64)
}

/// An estimate of a formula that knows one number only.
fn answer(source: &str, family: &str, use_mib: MiB, upper_mib: MiB, reasons: Vec<String>) -> Estimate {
    Estimate {
        need_mib: use_mib,
        use_mib,
        upper_mib: upper_mib.max(use_mib),
        tier: Tier::Formula,
        source: source.to_owned(),
        family: family.to_owned(),
        parts: None,
        elastic: false,
        reasons,
    }
}

/// The bound of a formula that leaves activations out: all of the GPU.
fn no_bound(platform: &Platform) -> (MiB, String) {
    (
        platform.gpu.total_mib,
        format!(
            "bound: activations are not in the formula, so only the GPU bounds it ({} MiB)",
            platform.gpu.total_mib.0
        ),
    )
}

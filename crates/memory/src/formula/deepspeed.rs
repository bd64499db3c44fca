//! DeepSpeed's estimators of model states under ZeRO-2 and ZeRO-3, every offload case.
//!
//! Weights, gradients and optimizer states of mixed-precision Adam: 18 bytes a parameter, of which 2 are
//! the half-precision weight and 16 master weight, gradient and two states. No activations, buffers or
//! context: a lower bound. Formulas as in DeepSpeed's `runtime/zero/stage_1_and_2.py` and `stage3.py`.

use super::{answer, no_bound};
use crate::graph::Graph;
use crate::{Estimate, MIB, ModelTask, Parallel, Platform};

/// DeepSpeed's factor on host memory for additional buffers.
const BUFFERS: f64 = 1.5;

/// Where a stage keeps what is not at work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Optimizer states and gradients are sharded.
    Zero2 {
        /// Optimizer states live in host memory.
        offload: bool,
    },
    /// Parameters are sharded too.
    Zero3 {
        /// What lives in host memory.
        offload: Offload,
        /// Parameters are sharded as they are made (`zero.Init`), not after.
        zero_init: bool,
    },
}

/// What ZeRO-3 keeps in host memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offload {
    /// Nothing: all of it stays on the GPU.
    None,
    /// Optimizer states.
    Optimizer,
    /// Parameters and optimizer states.
    All,
}

/// Model and machines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setup {
    /// Parameters of the model.
    pub parameters: u64,
    /// Parameters of its largest layer.
    pub largest_layer: u64,
    /// GPUs of one node.
    pub gpus_per_node: u64,
    /// Number of nodes.
    pub nodes: u64,
}

/// Bytes of model states.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct States {
    /// On each GPU.
    pub gpu: f64,
    /// In each node's host memory.
    pub cpu: f64,
}

impl Setup {
    /// A graph on one node. The largest layer is the node of the graph with the most parameters.
    #[must_use]
    pub fn from_graph(graph: &Graph, task: &ModelTask) -> Self {
        Self {
            parameters: graph.parameters(),
            largest_layer: largest_layer(graph),
            gpus_per_node: u64::from(task.gpus.max(1)),
            nodes: 1,
        }
    }

    /// Memory of a stage.
    #[must_use]
    pub fn states(&self, stage: Stage) -> States {
        let (p, largest) = (self.parameters as f64, self.largest_layer as f64);
        let (a_node, nodes) = (self.gpus_per_node.max(1) as f64, self.nodes.max(1) as f64);
        let all = a_node * nodes;
        let (gpu, cpu) = match stage {
            Stage::Zero2 { offload: true } => (2.0 * p, p * f64::max(4.0 * all, 16.0)),
            Stage::Zero2 { offload: false } => (2.0 * p + 18.0 * p / all, 4.0 * p * a_node),
            Stage::Zero3 { offload: Offload::All, zero_init } => {
                (4.0 * largest, host(p, 18.0, a_node, nodes, zero_init))
            }
            Stage::Zero3 { offload: Offload::Optimizer, zero_init } => {
                (4.0 * largest + 2.0 * p / all, host(p, 16.0, a_node, nodes, zero_init))
            }
            Stage::Zero3 { offload: Offload::None, zero_init } => {
                let held = if zero_init { largest } else { p };
                (4.0 * largest + 18.0 * p / all, 4.0 * held * a_node)
            }
        };
        States { gpu, cpu: cpu * BUFFERS }
    }
}

/// Host memory for states of so many bytes a parameter: without `zero.Init` each process of a node
/// first makes the whole model.
fn host(p: f64, bytes: f64, a_node: f64, nodes: f64, zero_init: bool) -> f64 {
    let sharded = bytes / nodes;
    p * if zero_init { sharded } else { f64::max(4.0 * a_node, sharded) }
}

/// Parameters of the node that has the most.
#[must_use]
pub fn largest_layer(graph: &Graph) -> u64 {
    let of = |node: &crate::graph::Node| {
        node.params
            .iter()
            .map(|id| graph.param(*id))
            .filter(|p| !p.buffer)
            .fold(0_u64, |n, p| n + p.elements())
    };
    graph.nodes.iter().map(of).max().unwrap_or(0)
}

/// The estimate for the task's stage without offload (ZeRO-2 where the task names no stage), with the
/// offload cases among the reasons.
#[must_use]
pub fn estimate(setup: &Setup, family: &str, task: &ModelTask, platform: &Platform) -> Estimate {
    let zero3 = task.parallel == Parallel::Zero3;
    let (stage, others): (Stage, &[(&str, Stage)]) = if zero3 {
        let case = |offload| Stage::Zero3 { offload, zero_init: true };
        (
            case(Offload::None),
            &[
                ("optimizer in host memory", Stage::Zero3 { offload: Offload::Optimizer, zero_init: true }),
                (
                    "parameters and optimizer in host memory",
                    Stage::Zero3 { offload: Offload::All, zero_init: true },
                ),
            ],
        )
    } else {
        (Stage::Zero2 { offload: false }, &[("optimizer in host memory", Stage::Zero2 { offload: true })])
    };
    let states = setup.states(stage);
    let (upper, bound) = no_bound(platform);
    let words = |what: &str, s: States| {
        format!("{what}: {:.0} MiB a GPU, {:.0} MiB of host memory", s.gpu / MIB as f64, s.cpu / MIB as f64)
    };
    let name = if zero3 { "ZeRO-3" } else { "ZeRO-2" };
    let mut reasons = vec![words(&format!("{name}, nothing in host memory"), states)];
    reasons
        .extend(others.iter().map(|(what, stage)| words(&format!("{name}, {what}"), setup.states(*stage))));
    reasons.push("model states only: no activations, no buffers; a lower bound".to_owned());
    reasons.push(format!("CUDA context {} MiB ({})", platform.context_mib.0, platform.context_source));
    reasons.push(bound);
    answer("deepspeed", family, platform.context_mib + super::mib(states.gpu), upper, reasons)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What DeepSpeed itself printed for t5-small (60,506,624 parameters, 16,449,536 of them in the
    /// embedding) on one GPU, in GB of 2^30 bytes with two decimals.
    #[test]
    fn agrees_with_what_deepspeed_prints() {
        let t5 = Setup { parameters: 60_506_624, largest_layer: 16_449_536, gpus_per_node: 1, nodes: 1 };
        let printed = [
            (Offload::All, true, 1.52, 0.06),
            (Offload::All, false, 1.52, 0.06),
            (Offload::Optimizer, true, 1.35, 0.17),
            (Offload::Optimizer, false, 1.35, 0.17),
            (Offload::None, true, 0.09, 1.08),
            (Offload::None, false, 0.34, 1.08),
        ];
        for (offload, zero_init, cpu, gpu) in printed {
            let s = t5.states(Stage::Zero3 { offload, zero_init });
            let gib = |bytes: f64| (bytes / 1_073_741_824.0 * 100.0).round() / 100.0;
            assert_eq!((gib(s.cpu), gib(s.gpu)), (cpu, gpu), "{offload:?} {zero_init}");
        }
    }

    #[test]
    fn zero2() {
        let s = Setup { parameters: 1000, largest_layer: 10, gpus_per_node: 4, nodes: 2 };
        assert_eq!(s.states(Stage::Zero2 { offload: true }), States { gpu: 2000.0, cpu: 48_000.0 });
        assert_eq!(s.states(Stage::Zero2 { offload: false }), States { gpu: 4250.0, cpu: 24_000.0 });
    }
}

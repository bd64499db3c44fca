//! A graph model in the manner of DNNPerf (Gao et al., ICSE-SEIP 2023): attention between the nodes of a
//! computation graph, and a regression of its memory.
//!
//! What is reproduced: the idea (nodes with operator, FLOPs, tensor sizes and hyper-parameters; edges with tensor
//! sizes; rounds in which a node hears from its neighbours with attention; one number for the whole graph). What is
//! not: their network in detail, their corpus of more than 10,000 runs on several GPUs, their features of devices,
//! their prediction of time; none of these was published. This one is trained on carma's own measurements on one GPU
//! type, with runs that ended out of memory as lower bounds; the context of the platform is added to what it
//! says. Their reported error, 13.7 % of memory, is therefore not comparable with ours.

mod build;
mod file;
mod net;
mod nodes;
mod shipped;
mod train;

pub use build::{Cells, graph};
pub use file::Bundle;
pub use shipped::{estimate, shipped};
pub use train::{Fold, Graphs, cross_validate, read, score, train};

use crate::gpumemnet::outlook::{Coverage, Form, Outlook, Target};
use crate::gpumemnet::{Fingerprint, net::Scaling};
use crate::graph::Graph;
use crate::{Estimate, Parts, Platform, Task, Tier};
use carma_nn::{Learner as _, Logistic};
use net::{GraphNet, Shape};
use nodes::{EDGE, NODE, Numbers, SIZES, WHOLE};
use serde::{Deserialize, Serialize};

/// Everything about a network but its numbers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Card {
    trained_on: Vec<Fingerprint>,
    seed: u64,
    target: Target,
    node: Scaling,
    edge: Scaling,
    whole: Scaling,
    shape: Shape,
    members: usize,
    coverage: Coverage,
}

impl Card {
    /// Tasks of all its files.
    fn rows(&self) -> usize {
        self.trained_on.iter().map(|f| f.rows).sum()
    }
}

/// A trained ensemble.
#[derive(Debug, Clone, PartialEq)]
pub struct Perf {
    card: Card,
    members: Vec<GraphNet>,
}

impl Perf {
    /// What it was trained on.
    #[must_use]
    pub fn trained_on(&self) -> &[Fingerprint] {
        &self.card.trained_on
    }

    /// The distribution of a graph's memory on the platform that it was trained on.
    #[must_use]
    pub fn outlook(&self, graph: &Graph, task: &Task) -> Outlook {
        let numbers = Numbers::of(graph, task);
        self.outlooks(&[&numbers]).swap_remove(0)
    }

    fn outlooks(&self, graphs: &[&Numbers]) -> Vec<Outlook> {
        let batch = train::batch(&self.card, graphs.iter().copied());
        let outputs: Vec<_> = self.members.iter().map(|m| m.infer(&batch)).collect();
        let one = |(s, numbers): (usize, &&Numbers)| Outlook {
            form: Form::pooled(outputs.iter().map(|o| Logistic::of(o, s))),
            target: self.card.target,
            beyond: self.card.whole.beyond(&numbers.whole, SIZES),
        };
        graphs.iter().enumerate().map(one).collect()
    }

    /// The answer at a coverage.
    #[must_use]
    pub fn estimate(&self, graph: &Graph, task: &Task, platform: &Platform, coverage: f64) -> Estimate {
        let outlook = self.outlook(graph, task);
        let context = platform.context_mib;
        let mib = |level: f64| context + outlook.mib(self.card.coverage.score(level));
        let use_mib = mib(0.5);
        let rows = self.card.rows();
        let mut reasons = vec![format!(
            "graph of {} nodes, {} networks trained on {rows} tasks; upper covers {:.0} % of tasks like those",
            graph.nodes.len(),
            self.members.len(),
            coverage * 100.0
        )];
        reasons.extend(outlook.beyond_reason());
        reasons.extend(graph.doubts.iter().map(|d| format!("not understood: {d}")));
        Estimate {
            need_mib: mib(1.0 - coverage).min(use_mib),
            use_mib,
            upper_mib: mib(coverage).max(use_mib),
            tier: Tier::Formula,
            source: "dnnperf".to_owned(),
            family: graph.family.clone(),
            parts: Some(Parts { context_mib: context, reserved_mib: use_mib - context, ..Parts::default() }),
            reasons,
        }
    }
}

#[cfg(test)]
mod tests;

//! A graph model in the manner of DNNPerf (Gao et al., ICSE-SEIP 2023): attention between the nodes of a
//! computation graph, and a regression of its memory.
//!
//! What is reproduced: the idea (nodes with operator, FLOPs, tensor sizes and hyper-parameters; edges with tensor
//! sizes; rounds in which a node hears from its neighbours with attention; one number for the whole graph). What is
//! not: their network in detail, their corpus of more than 10,000 runs on several GPUs, their features of devices,
//! their prediction of time; none of these was published. This one is trained on carma's own measurements on one GPU
//! type, with runs that ended out of memory as lower bounds; the context of the platform is added to what it
//! says. Their reported error, 13.7 % of memory, is therefore not comparable with ours.

mod file;
pub mod net;
pub mod nodes;
mod shipped;

pub use shipped::{estimate, shipped};

use crate::gpumemnet::outlook::{Coverage, Form, Outlook, Target};
use crate::gpumemnet::{Fingerprint, net::Scaling};
use crate::graph::Graph;
use crate::{Estimate, ModelTask, Platform};
use carma_nn::{Learner as _, Logistic, Mat, Segments};
use net::{Batch, GraphNet, Shape};
use nodes::{EDGE, NODE, Numbers, SIZES, WHOLE};
use serde::{Deserialize, Serialize};

/// Ensembles of one training, as they are kept in a file.
pub type Bundle = crate::weights::Bundle<Perf>;

/// Everything about a network but its numbers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Card {
    /// The data, a file each.
    pub trained_on: Vec<Fingerprint>,
    /// Seed of the training, and of the folds.
    pub seed: u64,
    /// How memory became the number that they learned.
    pub target: Target,
    /// Scaling of the features of a node.
    pub node: Scaling,
    /// Scaling of the features of an edge.
    pub edge: Scaling,
    /// Scaling of the features of the whole graph.
    pub whole: Scaling,
    /// Sizes of each network.
    pub shape: Shape,
    /// How many networks.
    pub members: usize,
    /// Calibrated coverage.
    pub coverage: Coverage,
}

impl Card {
    /// Tasks of all its files.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.trained_on.iter().map(|f| f.rows).sum()
    }
}

/// A trained ensemble.
#[derive(Debug, Clone, PartialEq)]
pub struct Perf {
    /// Everything but its numbers.
    pub card: Card,
    /// Its networks.
    pub members: Vec<GraphNet>,
}

impl Perf {
    /// What it was trained on.
    #[must_use]
    pub fn trained_on(&self) -> &[Fingerprint] {
        &self.card.trained_on
    }

    /// The distribution of a graph's memory on the platform that it was trained on.
    #[must_use]
    pub fn outlook(&self, graph: &Graph, task: &ModelTask) -> Outlook {
        let numbers = Numbers::of(graph, task);
        self.outlooks(&[&numbers]).swap_remove(0)
    }

    /// As [`Perf::outlook`], for many at once.
    #[must_use]
    pub fn outlooks(&self, graphs: &[&Numbers]) -> Vec<Outlook> {
        let batch = batch(&self.card, graphs.iter().copied());
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
    pub fn estimate(&self, graph: &Graph, task: &ModelTask, platform: &Platform, coverage: f64) -> Estimate {
        let outlook = self.outlook(graph, task);
        let rows = self.card.rows();
        let mut reasons = vec![format!(
            "graph of {} nodes, {} networks trained on {rows} tasks; upper covers {:.0} % of tasks like those",
            graph.nodes.len(),
            self.members.len(),
            coverage * 100.0
        )];
        reasons.extend(outlook.beyond_reason());
        reasons.extend(graph.doubts.iter().map(|d| format!("not understood: {d}")));
        let calibrated = (&self.card.coverage, coverage);
        outlook.estimate(calibrated, platform, "dnnperf".to_owned(), graph.family.clone(), reasons)
    }
}

/// Graphs as one, scaled.
#[must_use]
pub fn batch<'a>(card: &Card, graphs: impl ExactSizeIterator<Item = &'a Numbers>) -> Batch {
    let (mut nodes, mut edges, mut whole) = (Vec::new(), Vec::new(), Vec::new());
    let mut segments = Segments::default();
    for numbers in graphs {
        let first = nodes.len();
        nodes.extend(numbers.nodes.iter().map(|n| card.node.apply_all(n)));
        let shifted = numbers
            .edges
            .iter()
            .map(|(a, b, e)| ((first + *a as usize, first + *b as usize), card.edge.apply_all(e)));
        edges.extend(shifted);
        whole.push(card.whole.apply_all(&numbers.whole));
        segments.ranges.push(first..nodes.len());
    }
    segments.count = vec![1.0; nodes.len()];
    // By receiver, for the softmax over what it hears.
    edges.sort_by_key(|((_, to), _)| *to);
    Batch {
        nodes: Mat::from_samples(NODE, nodes.iter().map(Vec::as_slice)),
        edges: Mat::from_samples(EDGE, edges.iter().map(|(_, e)| e.as_slice())),
        ends: edges.iter().map(|(ends, _)| *ends).collect(),
        whole: Mat::from_samples(WHOLE, whole.iter().map(Vec::as_slice)),
        segments,
    }
}

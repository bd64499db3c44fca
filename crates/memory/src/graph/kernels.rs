//! What a forward pass asks of the GPU: a kernel or a few for each operator, with its arithmetic and traffic.

use super::{Graph, Node, Norm, Op};

/// What a kernel mostly does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A matrix product: linear layers, attention, recurrent layers.
    Product,
    /// A convolution over all channels.
    Convolution,
    /// A convolution in groups of channels.
    Grouped,
    /// Elementwise functions, sums over rows, copies, tables.
    Traffic,
}

/// The kernels of one operator in the forward pass.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Kernel {
    /// What it does.
    pub kind: Kind,
    /// Floating-point operations.
    pub flops: f64,
    /// Numbers that it reads and writes, without parameters.
    pub numbers: f64,
    /// Numbers of its parameters.
    pub parameters: f64,
    /// How many kernels it is.
    pub launches: f64,
}

/// Those of all operators but views, in their order.
#[must_use]
pub fn kernels(graph: &Graph) -> Vec<Kernel> {
    graph.nodes.iter().filter_map(|node| kernel(graph, node)).collect()
}

fn kernel(graph: &Graph, node: &Node) -> Option<Kernel> {
    let elements =
        |ids: &[super::TensorId]| ids.iter().map(|t| graph.tensor(*t).elements() as f64).sum::<f64>();
    let (read, made) = (elements(&node.inputs), elements(&node.outputs));
    let parameters: f64 = node.params.iter().map(|p| graph.param(*p).elements() as f64).sum();
    // A dimension of an input, counted from the last.
    let from_last = |input: usize, back: usize| {
        let shape = node.inputs.get(input).map(|t| graph.tensor(*t).shape.as_slice()).unwrap_or_default();
        shape.iter().rev().nth(back).map_or(1.0, |n| *n as f64)
    };
    let (kind, flops, launches) = match &node.op {
        Op::Input | Op::View => return None,
        Op::Linear | Op::MatMul => (Kind::Product, 2.0 * made * from_last(0, 0), 1.0),
        // Scores and their product with the values: twice over the keys.
        Op::Attention { .. } => (Kind::Product, 4.0 * made * from_last(1, 1), 1.0),
        Op::Recurrent { .. } => (Kind::Product, 2.0 * parameters * read / from_last(0, 0), 20.0),
        Op::Conv { groups } => {
            let shape = node.outputs.first().map(|t| graph.tensor(*t).shape.as_slice()).unwrap_or_default();
            let channels = shape.get(1).map_or(1.0, |n| *n as f64).max(1.0);
            let weights = node.params.first().map_or(0.0, |p| graph.param(*p).elements() as f64);
            let kind = if *groups > 1 { Kind::Grouped } else { Kind::Convolution };
            (kind, 2.0 * made * (weights / channels).max(1.0), 1.0)
        }
        Op::Norm(Norm::Rms) => (Kind::Traffic, 0.0, 5.0),
        Op::CrossEntropy => (Kind::Traffic, 0.0, 3.0),
        // As many layers as such a node stands for are not known.
        Op::Unknown => (Kind::Traffic, 0.0, 4.0),
        _ => (Kind::Traffic, 0.0, 1.0),
    };
    Some(Kernel { kind, flops, numbers: read + made, parameters, launches })
}

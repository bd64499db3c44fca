//! A graph as numbers: features of nodes, of edges, and of the whole.

use crate::gpumemnet::net::Sizes;
use crate::graph::{Graph, Keeps, Norm, Op, Tensor, TensorId};
use crate::{Mode, ModelTask, Optimizer, Precision};

/// Nodes beyond this are left out; no model in use has as many.
const MAX_NODES: usize = 20_000;
/// Groups of operators.
const GROUPS: usize = 16;
/// Features of a node: its group, then logarithms and flags.
pub const NODE: usize = GROUPS + 6;
/// Features of an edge: bytes of its tensor, and whether it is followed forwards or backwards.
pub const EDGE: usize = 2;
/// Features of the whole.
pub const WHOLE: usize = 13;
/// Places of bytes among them.
pub const SIZES: Sizes = Sizes { activations: &[1, 3], states: Some(0) };

/// A graph as numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct Numbers {
    /// Features of each node.
    pub nodes: Vec<[f32; NODE]>,
    /// From, to, features.
    pub edges: Vec<(u32, u32, [f32; EDGE])>,
    /// Features of the whole graph.
    pub whole: [f32; WHOLE],
}

fn log(x: f64) -> f32 {
    x.ln_1p() as f32
}

fn group(op: &Op) -> usize {
    match op {
        Op::Input => 0,
        Op::Linear => 1,
        Op::Conv { groups: 1 } => 2,
        Op::Conv { .. } => 3,
        Op::MatMul | Op::Attention { .. } => 4,
        Op::Norm(Norm::Batch) => 5,
        Op::Norm(_) => 6,
        Op::Activation { keeps: Keeps::Output, .. } => 7,
        Op::Activation { .. } => 8,
        Op::Softmax => 9,
        Op::Dropout { .. } => 10,
        Op::MaxPool | Op::AvgPool => 11,
        Op::Embedding => 12,
        Op::CrossEntropy | Op::Loss => 13,
        Op::Add { .. } | Op::Mul | Op::Cat => 14,
        _ => 15,
    }
}

fn in_place(op: &Op) -> bool {
    matches!(
        op,
        Op::Activation { inplace: true, .. }
            | Op::Dropout { inplace: true }
            | Op::Add { inplace: true }
            | Op::View
    )
}

/// Bytes of a floating-point number of the task.
fn element(task: &ModelTask) -> f64 {
    if task.precision == Precision::Fp32 { 4.0 } else { 2.0 }
}

/// Numbers of 32 bits that the step holds a parameter.
fn state(task: &ModelTask) -> f64 {
    let half = if matches!(task.precision, Precision::Bf16 | Precision::Fp16) { 0.5 } else { 1.0 };
    let numbers = match (task.mode, task.optimizer) {
        (Mode::Infer, _) => 1.0,
        (_, Optimizer::Sgd) => 2.0,
        (_, Optimizer::Adam8bit) => 2.5,
        (_, Optimizer::SgdMomentum) => 3.0,
        (_, Optimizer::AdamFused | Optimizer::Rmsprop | Optimizer::Adagrad) => 4.0,
        (_, Optimizer::Adam | Optimizer::Adamw) => 5.0,
    };
    numbers * half
}

/// Multiplications and additions of the forward pass.
fn flops(graph: &Graph, op: &Op, inputs: &[TensorId], out: f64, params: f64) -> f64 {
    let input = |i: usize| inputs.get(i).map(|t| graph.tensor(*t));
    let last = |t: Option<&Tensor>| t.and_then(|t| t.shape.last().copied()).unwrap_or(1) as f64;
    match op {
        Op::Linear | Op::MatMul => 2.0 * out * last(input(0)),
        Op::Conv { groups } => {
            let ins = input(0).and_then(|t| t.shape.get(1).copied()).unwrap_or(1) as f64;
            let outs = input(0).map_or(1.0, |_| out.max(1.0));
            // Weights an output channel, times outputs.
            let channels = (params / (ins / *groups as f64).max(1.0)).max(1.0).min(outs);
            2.0 * out * (params / channels)
        }
        Op::Attention { .. } => {
            let keys = input(1).and_then(|t| t.shape.get(1).copied()).unwrap_or(1) as f64;
            4.0 * out * keys
        }
        Op::Norm(_) | Op::Softmax | Op::CrossEntropy => 8.0 * out,
        _ => out,
    }
}

impl Numbers {
    /// Of a graph and how it is run.
    pub fn of(graph: &Graph, task: &ModelTask) -> Self {
        let bytes = element(task);
        let mut producer: Vec<Option<u32>> = vec![None; graph.tensors.len()];
        let mut seen = vec![false; graph.params.len()];
        let (mut nodes, mut edges) = (Vec::new(), Vec::new());
        let (mut all_flops, mut outputs, mut largest, mut last) = (0.0_f64, 0.0_f64, 0.0_f64, 0.0_f64);
        for (at, node) in graph.nodes.iter().take(MAX_NODES).enumerate() {
            let elements =
                |ids: &[TensorId]| ids.iter().map(|t| graph.tensor(*t).elements() as f64).sum::<f64>();
            let (ins, out) = (elements(&node.inputs), elements(&node.outputs));
            let mut params = 0.0;
            for id in &node.params {
                let param = graph.param(*id);
                if !param.buffer && !std::mem::replace(&mut seen[id.0 as usize], true) {
                    params += param.elements() as f64;
                }
            }
            let work = flops(graph, &node.op, &node.inputs, out, params);
            all_flops += work;
            if !in_place(&node.op) {
                outputs += out;
            }
            largest = largest.max(out);
            if node.op != Op::CrossEntropy && node.op != Op::Loss && out > 1.0 {
                last = out;
            }
            let mut features = [0.0; NODE];
            features[group(&node.op)] = 1.0;
            let rest = [
                log(work),
                log(ins * bytes),
                log(out * bytes),
                log(params * 4.0 * state(task)),
                f32::from(u8::from(in_place(&node.op))),
                f32::from(u8::from(node.block.is_some() && task.gradient_checkpointing)),
            ];
            features[GROUPS..].copy_from_slice(&rest);
            nodes.push(features);
            for input in &node.inputs {
                if let Some(from) = producer.get(input.0 as usize).copied().flatten() {
                    let size = log(graph.tensor(*input).elements() as f64 * bytes);
                    edges.push((from, at as u32, [size, 1.0]));
                    edges.push((at as u32, from, [size, -1.0]));
                }
            }
            for output in &node.outputs {
                producer[output.0 as usize] = Some(at as u32);
            }
        }
        let params = graph.parameters() as f64;
        let held = params * 4.0 * state(task);
        let kept = outputs * bytes;
        let flag = |is: bool| f32::from(u8::from(is));
        let half = matches!(task.precision, Precision::Bf16 | Precision::Fp16);
        let whole = [
            // SIZES knows these by their places.
            log(held),
            log(kept),
            log(held + kept),
            log(largest * bytes),
            log(all_flops),
            log(task.batch_size as f64),
            log(last * 4.0),
            log(nodes.len() as f64),
            flag(half),
            flag(task.precision != Precision::Fp32 && !half),
            flag(task.gradient_checkpointing),
            flag(task.attention == crate::Attention::Eager),
            flag(task.mode == Mode::Infer),
        ];
        Self { nodes, edges, whole }
    }
}

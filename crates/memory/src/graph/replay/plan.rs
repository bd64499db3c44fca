//! What is known before the run: types, which values need a gradient, how the batch scales.

use crate::graph::{Graph, Number, Op, ParamId, Tensor, TensorId};
use crate::{Error, Mode, ModelTask, Precision};

/// Elements of the largest tensor that is believed, as in the builder.
const MOST_ELEMENTS: u64 = 1 << 44;
/// Inputs, outputs and parameters of all nodes together.
const MOST_LINKS: usize = 1 << 22;

/// Types of numbers of a task.
#[derive(Debug, Clone, Copy)]
pub(super) struct Types {
    /// Bytes of a weight.
    pub(super) weight: u64,
    /// Under autocast: bytes of a number in matrix products.
    pub(super) auto: Option<u64>,
    /// The 16 bits are bfloat16: some kernels need a copy in 32 bits where float16 does without.
    pub(super) bfloat: bool,
}

impl Types {
    pub(super) const fn of(precision: Precision) -> Self {
        match precision {
            Precision::Fp32 => Self { weight: 4, auto: None, bfloat: false },
            Precision::Bf16Autocast => Self { weight: 4, auto: Some(2), bfloat: true },
            Precision::Fp16Autocast => Self { weight: 4, auto: Some(2), bfloat: false },
            Precision::Bf16 => Self { weight: 2, auto: None, bfloat: true },
            Precision::Fp16 => Self { weight: 2, auto: None, bfloat: false },
        }
    }

    /// Bytes of a number, where its type leaves no choice.
    pub(super) const fn fixed(number: Number) -> Option<u64> {
        match number {
            Number::Float => None,
            Number::Float32 => Some(4),
            Number::Int64 => Some(8),
            Number::Bool => Some(1),
        }
    }
}

/// A graph that was checked, for a task.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) types: Types,
    /// By tensor: the backward pass makes a gradient of it.
    pub(super) needs: Vec<bool>,
    /// By tensor: how many inputs of nodes it is, and once more where Python keeps it.
    pub(super) readers: Vec<u32>,
    /// By node: a loss, or computed from one.
    pub(super) loss: Vec<bool>,
    /// What the run keeps until the next step: the model's outputs.
    pub(super) outputs: Vec<TensorId>,
    /// Tensors that hold losses.
    pub(super) losses: Vec<TensorId>,
    /// The node after which the model's outputs are all there.
    pub(super) last_output: usize,
    /// Bytes of a number, by parameter.
    pub(super) param_width: Vec<u64>,
}

impl Plan {
    pub(super) fn new(graph: &Graph, task: &ModelTask) -> Result<Self, Error> {
        let types = Types::of(task.precision);
        let needs = needs(graph, task);
        let mut readers = vec![0_u32; graph.tensors.len()];
        for input in graph.nodes.iter().flat_map(|node| &node.inputs) {
            readers[input.0 as usize] += 1;
        }
        let mut loss = vec![false; graph.nodes.len()];
        let mut of_loss = vec![false; graph.tensors.len()];
        let mut losses = Vec::new();
        for (at, node) in graph.nodes.iter().enumerate() {
            let is_loss = matches!(node.op, Op::CrossEntropy | Op::Loss);
            loss[at] = is_loss || node.inputs.iter().any(|t| of_loss[t.0 as usize]);
            if loss[at] {
                for out in &node.outputs {
                    of_loss[out.0 as usize] = true;
                }
            }
            if is_loss {
                losses.extend(node.outputs.first());
            }
        }
        // A front end that does not say what the model returns: what no node reads.
        let unread = |t: &TensorId| readers[t.0 as usize] == 0 && !of_loss[t.0 as usize];
        let outputs: Vec<TensorId> = if graph.outputs.is_empty() {
            graph
                .nodes
                .iter()
                .filter(|n| n.op != Op::Input)
                .flat_map(|n| &n.outputs)
                .copied()
                .filter(unread)
                .collect()
        } else {
            graph.outputs.clone()
        };
        let last_output = graph
            .nodes
            .iter()
            .rposition(|node| node.outputs.iter().any(|t| outputs.contains(t)))
            .unwrap_or(graph.nodes.len().saturating_sub(1));
        for kept in outputs.iter().chain(&losses) {
            readers[kept.0 as usize] += 1;
        }
        let param_width =
            graph.params.iter().map(|p| Types::fixed(p.number).unwrap_or(types.weight)).collect();
        Ok(Self { types, needs, readers, loss, outputs, losses, last_output, param_width })
    }

    pub(super) fn needs(&self, tensor: TensorId) -> bool {
        self.needs[tensor.0 as usize]
    }

    pub(super) fn param_bytes(&self, graph: &Graph, param: ParamId) -> u64 {
        graph.param(param).elements() * self.param_width[param.0 as usize]
    }
}

/// Elements of a tensor when the graph, made for `base` samples, runs with `batch`. Tensors whose first
/// dimension is no multiple of the batch are taken for independent of it.
pub(super) fn scaled(tensor: &Tensor, base: u64, batch: u64) -> u64 {
    let elements = tensor.elements();
    match tensor.shape.first() {
        Some(first) if base > 0 && batch != base && first % base == 0 => {
            (elements / base).saturating_mul(batch)
        }
        _ => elements,
    }
}

fn needs(graph: &Graph, task: &ModelTask) -> Vec<bool> {
    let mut needs = vec![false; graph.tensors.len()];
    if task.mode == Mode::Infer {
        return needs;
    }
    // Adapters with checkpoints: PEFT has the embeddings' output ask for a gradient, else checkpointed
    // blocks would see nothing to differentiate.
    let from_embedding = task.lora.is_some() && task.gradient_checkpointing;
    for node in &graph.nodes {
        let any = node.inputs.iter().any(|t| needs[t.0 as usize])
            || node.params.iter().any(|p| graph.param(*p).trainable)
            || (from_embedding && node.op == Op::Embedding);
        for out in &node.outputs {
            let float = matches!(graph.tensor(*out).number, Number::Float | Number::Float32);
            needs[out.0 as usize] = any && float && node.op != Op::Input;
        }
    }
    needs
}

/// Everything that the run relies on: indices in range, tensors made once and before they are read,
/// sizes that can be added up.
pub(super) fn check(graph: &Graph) -> Result<(), Error> {
    let mut made = vec![false; graph.tensors.len()];
    let links: usize = graph.nodes.iter().map(|n| n.inputs.len() + n.outputs.len() + n.params.len()).sum();
    if links > MOST_LINKS {
        return Err(Error::bad(
            "graph",
            format!("{links} links between nodes; at most {MOST_LINKS} are taken"),
        ));
    }
    for tensor in &graph.tensors {
        size("a tensor", &tensor.shape)?;
    }
    for param in &graph.params {
        size(&param.name, &param.shape)?;
    }
    for node in &graph.nodes {
        let bad = |what: String| Err(Error::bad(format!("graph, node `{}`", node.name), what));
        let least = match node.op {
            Op::Input => 0,
            Op::Mul if !node.params.is_empty() => 1,
            Op::MatMul | Op::Mul => 2,
            _ => 1,
        };
        if node.inputs.len() < least {
            return bad(format!("{} inputs, expected {least} or more", node.inputs.len()));
        }
        if node.outputs.is_empty() {
            return bad("no output".to_owned());
        }
        for input in &node.inputs {
            if made.get(input.0 as usize) != Some(&true) {
                return bad(format!("reads tensor {} before it is made", input.0));
            }
        }
        for output in &node.outputs {
            match made.get_mut(output.0 as usize) {
                Some(made) if !*made => *made = true,
                _ => return bad(format!("makes tensor {}, which is unknown or made already", output.0)),
            }
        }
        for param in &node.params {
            if param.0 as usize >= graph.params.len() {
                return bad(format!("parameter {} is unknown", param.0));
            }
        }
    }
    for output in &graph.outputs {
        if made.get(output.0 as usize) != Some(&true) {
            return Err(Error::bad("graph, outputs", format!("tensor {} is not made", output.0)));
        }
    }
    Ok(())
}

fn size(name: &str, shape: &[u64]) -> Result<(), Error> {
    match shape.iter().try_fold(1_u64, |n, d| n.checked_mul(*d)) {
        Some(n) if n <= MOST_ELEMENTS => Ok(()),
        _ => Err(Error::Absurd { layer: name.to_owned(), what: format!("shape {shape:?}") }),
    }
}

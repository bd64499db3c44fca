//! Low-rank adapters put into a graph whose front end knows nothing of them (a summary, ONNX).
//!
//! PEFT, `tuners/lora/layer.py`: the layer is frozen; beside it the input, cast to the adapter's 32 bits,
//! goes through two small matrices and a scaling, and is added to the layer's output.

use super::{Graph, Keeps, Node, Number, Op, Param, ParamId, Tensor, TensorId};
use crate::{Error, Lora, ModelTask, Precision};
use std::collections::BTreeSet;

/// Ends of names that PEFT adapts by default in one family or another.
const USUAL: &[&str] =
    &["q_proj", "v_proj", "query", "value", "query_key_value", "c_attn", "q_lin", "v_lin", "q", "v", "qkv"];

/// PEFT's word for all linear layers but the output's.
const ALL_LINEAR: &str = "all-linear";

/// Names of layers that an error shows at most.
const SHOWN: usize = 8;

/// Whether it is a linear layer with weights of its own, which can get adapters.
fn has_weights(node: &Node) -> bool {
    node.op == Op::Linear && !node.params.is_empty()
}

/// Whether a name ends in a target, as PEFT compares them: in whole parts.
fn ends_in(node: &Node, end: &str) -> bool {
    node.name.strip_suffix(end).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

impl Graph {
    /// The graph with adapters as the task wants them: `None` where it wants none, or where the graph has
    /// them already. Adapted are linear layers whose names end in one of the targets; without targets, in
    /// a name that PEFT adapts by default; where no layer has such a name, and for `all-linear`, all linear
    /// layers but those whose output the model returns.
    ///
    /// # Errors
    /// Targets of which no linear layer has any. PEFT also adapts convolutions and embeddings, of whose adapters nothing
    /// is known here.
    pub fn adapted(&self, task: &ModelTask) -> Result<Option<Self>, Error> {
        let Some(lora) = &task.lora else { return Ok(None) };
        if self.params.iter().any(|p| p.name.contains(".lora_")) {
            return Ok(None);
        }
        let chosen = self.chosen(lora)?;
        let mut graph = Self { nodes: Vec::with_capacity(self.nodes.len()), ..self.clone() };
        for param in &mut graph.params {
            param.trainable = false;
        }
        let pure = matches!(task.precision, Precision::Bf16 | Precision::Fp16);
        for (at, node) in self.nodes.iter().enumerate() {
            match (chosen.contains(&at), node.inputs.first(), node.outputs.first()) {
                (true, Some(x), Some(y)) => graph.adapt(node, *x, *y, u64::from(lora.rank), pure),
                _ => graph.nodes.push(node.clone()),
            }
        }
        Ok(Some(graph))
    }

    /// What is to be said of targets that no linear layer has, while another target has some.
    pub(crate) fn targets_without_layer(&self, task: &ModelTask) -> Vec<String> {
        let targets =
            task.lora.iter().filter(|lora| lora.targets != [ALL_LINEAR]).flat_map(|lora| &lora.targets);
        let missing = |end: &&String| !self.nodes.iter().any(|node| has_weights(node) && ends_in(node, end));
        targets
            .filter(missing)
            .map(|end| format!("no linear layer has a name that ends in `{end}` (--lora-targets): its adapters are left out"))
            .collect()
    }

    fn chosen(&self, lora: &Lora) -> Result<BTreeSet<usize>, Error> {
        let which = |wanted: &dyn Fn(&Node) -> bool| -> BTreeSet<usize> {
            let nodes = self.nodes.iter().enumerate();
            nodes.filter(|(_, node)| has_weights(node) && wanted(node)).map(|(at, _)| at).collect()
        };
        if lora.targets.is_empty() || lora.targets == [ALL_LINEAR] {
            let usual = which(&|node| lora.targets.is_empty() && USUAL.iter().any(|end| ends_in(node, end)));
            let inner = |node: &Node| !node.outputs.iter().any(|t| self.outputs.contains(t));
            return Ok(if usual.is_empty() { which(&inner) } else { usual });
        }
        let by_name = which(&|node| lora.targets.iter().any(|end| ends_in(node, end)));
        if by_name.is_empty() {
            return Err(self.no_such(&lora.targets));
        }
        Ok(by_name)
    }

    fn no_such(&self, targets: &[String]) -> Error {
        let linear = self.nodes.iter().filter(|node| has_weights(node));
        let ends: BTreeSet<&str> = linear.filter_map(|node| node.name.rsplit('.').next()).collect();
        let more = if ends.len() > SHOWN { ", ..." } else { "" };
        let ends: Vec<&str> = ends.into_iter().take(SHOWN).collect();
        let has = if ends.is_empty() {
            "the model has no linear layer".to_owned()
        } else {
            format!("its linear layers are named {}{more}", ends.join(", "))
        };
        Error::bad(
            "--lora-targets",
            format!(
                "no linear layer of the model has a name that ends in {}; {has}. Name some of them, or leave the \
                 option out",
                targets.join(" or ")
            ),
        )
    }

    fn adapt(&mut self, node: &Node, x: TensorId, y: TensorId, rank: u64, pure: bool) {
        let shape = self.tensor(y).shape.clone();
        let inner = self.tensor(x).shape.clone();
        let last = |shape: &[u64]| shape.last().copied().unwrap_or(1);
        let number = if pure { Number::Float32 } else { Number::Float };
        let mut low_shape = inner.clone();
        if let Some(last) = low_shape.last_mut() {
            *last = rank;
        }
        // The layer's output becomes a tensor of its own; the sum takes its name for all that read it.
        let plain = self.tensor_of(shape.clone(), self.tensor(y).number);
        self.nodes.push(Node { outputs: vec![plain], ..node.clone() });
        let push = |graph: &mut Self, op: Op, inputs: Vec<TensorId>, outputs: Vec<TensorId>, param| {
            let name = format!("{}.lora", node.name);
            let params = Option::into_iter(param).collect();
            graph.nodes.push(Node { name, op, inputs, outputs, params, block: node.block });
        };
        let mut wide = x;
        if pure {
            wide = self.tensor_of(inner.clone(), number);
            push(self, Op::Copy, vec![x], vec![wide], None);
        }
        let low = self.tensor_of(low_shape, number);
        let a = self.adapter(&format!("{}.lora_A.weight", node.name), [rank, last(&inner)]);
        push(self, Op::Linear, vec![wide], vec![low], Some(a));
        let high = self.tensor_of(shape.clone(), number);
        let b = self.adapter(&format!("{}.lora_B.weight", node.name), [last(&shape), rank]);
        push(self, Op::Linear, vec![low], vec![high], Some(b));
        let scaled = self.tensor_of(shape.clone(), number);
        let scale = Op::Activation { keeps: Keeps::Nothing, inplace: false };
        push(self, scale, vec![high], vec![scaled], None);
        let sum = Op::Add { inplace: false };
        if pure {
            let wide_sum = self.tensor_of(shape, Number::Float32);
            push(self, sum, vec![plain, scaled], vec![wide_sum], None);
            push(self, Op::Copy, vec![wide_sum], vec![y], None);
        } else {
            push(self, sum, vec![plain, scaled], vec![y], None);
        }
    }

    fn tensor_of(&mut self, shape: Vec<u64>, number: Number) -> TensorId {
        self.tensors.push(Tensor { shape, number });
        TensorId((self.tensors.len() - 1) as u32)
    }

    /// Adapters stay in 32 bits when the model does not (`autocast_adapter_dtype`).
    fn adapter(&mut self, name: &str, shape: [u64; 2]) -> ParamId {
        self.params.push(Param {
            name: name.to_owned(),
            shape: shape.to_vec(),
            number: Number::Float32,
            trainable: true,
            buffer: false,
        });
        ParamId((self.params.len() - 1) as u32)
    }
}

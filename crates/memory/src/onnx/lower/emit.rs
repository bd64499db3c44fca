//! One node of ONNX, one of the graph: what PyTorch would have run.

use super::{Lower, Source, is_param_name, union};
use crate::graph::{Keeps, Norm, Op, ParamId, TensorId};
use crate::onnx::model::{Id, Node, NumberKind};
use crate::onnx::shape::elements;
use crate::{Error, Mode};

/// What a node reads: tensors, and weights beside them.
struct Operands {
    tensors: Vec<TensorId>,
    weights: Vec<Id>,
}

impl Lower<'_> {
    fn operands(&self, node: &Node) -> Operands {
        let mut o = Operands { tensors: Vec::new(), weights: Vec::new() };
        for id in node.inputs.iter().flatten() {
            match self.source(*id) {
                Source::Tensor(t) => o.tensors.push(t),
                Source::Weights(ids) => o.weights.extend(ids),
                Source::Constant => {}
            }
        }
        o
    }

    pub(super) fn emit(&mut self, n: usize) -> Result<(), Error> {
        let model = self.model;
        let node = &model.nodes[n];
        let Some(out) = node.outputs.first().copied() else { return Ok(()) };
        if self.values.get(out).is_none_or(|v| v.known.is_some()) {
            // Computed already, or nothing of which there is a shape.
            for id in &node.outputs {
                self.sources.insert(*id, Source::Constant);
            }
            return Ok(());
        }
        let operands = self.operands(node);
        if operands.tensors.is_empty() && !matches!(node.op.as_str(), "LSTM" | "GRU" | "RNN") {
            let sources: Vec<Source> = node.inputs.iter().flatten().map(|id| self.source(*id)).collect();
            let source = union(sources);
            for id in &node.outputs {
                self.sources.insert(*id, source.clone());
            }
            return Ok(());
        }
        if self.values.unknown.contains(&n) && !self.computes(&node.op) {
            *self.unknown.entry(node.op.clone()).or_default() += 1;
            let params = self.weights(operands.weights)?;
            self.put(&node.name, Op::Unknown, &operands.tensors, &params, out)?;
            return self.rest(node, Op::View, &operands.tensors);
        }
        self.known(node, out, operands)
    }

    /// Operators that are what they are even where their shape was taken from the file's own statement.
    fn computes(&self, op: &str) -> bool {
        matches!(
            op,
            "Conv"
                | "Gemm"
                | "MatMul"
                | "MaxPool"
                | "AveragePool"
                | "Concat"
                | "Reshape"
                | "Slice"
                | "Resize"
        )
    }

    /// Further outputs that other nodes may read.
    fn rest(&mut self, node: &Node, op: Op, inputs: &[TensorId]) -> Result<(), Error> {
        for id in node.outputs.iter().skip(1) {
            if self.model.name(*id).is_empty() || self.values.get(*id).is_none() {
                continue;
            }
            self.put(&node.name, op.clone(), inputs, &[], *id)?;
        }
        Ok(())
    }

    fn alias(&mut self, out: Id, tensor: TensorId) {
        self.sources.insert(out, Source::Tensor(tensor));
    }

    fn known(&mut self, node: &Node, out: Id, o: Operands) -> Result<(), Error> {
        let name = node.name.as_str();
        let Some(x) = o.tensors.first().copied() else { return Ok(()) };
        let (xs, first) = (o.tensors.as_slice(), node.input(0));
        let activation = |keeps| Op::Activation { keeps, inplace: false };
        let op = match node.op.as_str() {
            "Conv" | "ConvTranspose" => return self.conv(node, out, x),
            "Gemm" | "MatMul" => return self.product(node, out, &o),
            "BatchNormalization" => return self.batch_norm(node, out, x),
            "Gather" => return self.gather(node, out, &o),
            "Dropout" => return self.dropout(node, out, x),
            "LSTM" | "GRU" | "RNN" => return self.recurrent(node, out, x),
            "Cast" | "CastLike" if first.is_some_and(|id| self.kind(id) == self.kind(out)) => {
                self.alias(out, x);
                return Ok(());
            }
            "Identity" => {
                self.alias(out, x);
                return Ok(());
            }
            "Transpose" => {
                self.permuted.insert(out);
                Op::View
            }
            "Reshape" | "Flatten" => {
                // Merging what lies apart copies: the output of attention written out.
                let permuted = first.is_some_and(|id| self.permuted.contains(&id) && self.merges(id, out));
                if permuted { Op::Copy } else { Op::View }
            }
            "Split" => {
                for id in &node.outputs {
                    if self.values.get(*id).is_some() {
                        self.put(name, Op::View, &[x], &[], *id)?;
                    }
                }
                return Ok(());
            }
            "Squeeze" | "Unsqueeze" | "Expand" | "Slice" => {
                if first.is_some_and(|id| self.permuted.contains(&id)) {
                    self.permuted.insert(out);
                }
                Op::View
            }
            "Pad" if first.is_some_and(|id| self.shape(id) == self.shape(out)) => {
                self.alias(out, x);
                return Ok(());
            }
            "Concat" => Op::Cat,
            "MaxPool" | "GlobalMaxPool" => {
                self.put(name, Op::MaxPool, &[x], &[], out)?;
                return Ok(());
            }
            "AveragePool" | "LpPool" | "ReduceMax" | "ReduceMin" | "ReduceProd" | "ReduceL2"
            | "ReduceLogSumExp" => Op::AvgPool,
            "Softmax" | "LogSoftmax" => Op::Softmax,
            "LayerNormalization" => Op::Norm(Norm::Layer),
            "RMSNormalization" => Op::Norm(Norm::Rms),
            "InstanceNormalization" | "GroupNormalization" => Op::Norm(Norm::Group),
            "Attention" => return self.attention(node, out, &o),
            "Einsum" => Op::MatMul,
            "Add" | "Sub" | "Sum" | "Mean" if self.kind(out) == NumberKind::Float => {
                // A constant is added in place of nothing: a new tensor, nothing kept.
                if xs.len() + o.weights.len() > 1 {
                    Op::Add { inplace: first.is_some_and(|id| self.residual(node, id, out)) }
                } else {
                    activation(Keeps::Nothing)
                }
            }
            "Mul" | "Div" if self.kind(out) == NumberKind::Float => {
                let divides_constant = node.op == "Div" && first.is_some_and(|id| self.tensor(id).is_none());
                if xs.len() + o.weights.len() > 1 {
                    Op::Mul
                } else if divides_constant {
                    activation(Keeps::Output)
                } else {
                    activation(Keeps::Nothing)
                }
            }
            "Pow" if first.is_some_and(|id| self.tensor(id).is_some()) => activation(Keeps::Input),
            "PRelu" | "Max" | "Min" if self.kind(out) == NumberKind::Float => {
                if xs.len() + o.weights.len() > 1 { Op::Mul } else { activation(Keeps::Input) }
            }
            "Relu" => {
                let inplace = first.is_some_and(|id| self.overwritable.contains(&id));
                Op::Activation { keeps: Keeps::Output, inplace }
            }
            "Sigmoid" | "Tanh" | "Exp" | "Sqrt" | "Reciprocal" => activation(Keeps::Output),
            "Neg" | "Floor" | "Ceil" | "Round" | "Sign" => activation(Keeps::Nothing),
            "Erf"
            | "Log"
            | "Abs"
            | "Sin"
            | "Cos"
            | "Clip"
            | "LeakyRelu"
            | "Elu"
            | "Selu"
            | "Celu"
            | "Gelu"
            | "Mish"
            | "Swish"
            | "Softplus"
            | "Softsign"
            | "HardSigmoid"
            | "HardSwish"
            | "ThresholdedRelu"
            | "com.microsoft::QuickGelu"
            | "com.microsoft::FastGelu"
            | "com.microsoft::Gelu" => activation(Keeps::Input),
            // Means and sums know the gradient from the shape alone; the others move or compare elements.
            _ => Op::Copy,
        };
        let params = match op {
            Op::View | Op::Copy => Vec::new(),
            _ => self.weights(o.weights)?,
        };
        let tensors = match op {
            Op::View | Op::Norm(_) | Op::AvgPool | Op::Activation { .. } => &xs[..1],
            _ => xs,
        };
        self.put(name, op, tensors, &params, out)?;
        self.rest(node, Op::Copy, &[x])
    }

    /// Whether a reshape of a permuted value joins dimensions.
    fn merges(&self, from: Id, to: Id) -> bool {
        let (a, b) = (self.shape(from), self.shape(to));
        let mut rest = a.iter().filter(|d| **d > 1);
        !b.iter().filter(|d| **d > 1).all(|d| rest.next() == Some(d))
    }

    /// Whether a sum is `out += identity` before a ReLU, as the residual blocks of torchvision and timm
    /// write it: onto what a convolution or normalisation made.
    fn residual(&self, node: &Node, first: Id, out: Id) -> bool {
        node.op == "Add"
            && self.overwritable.contains(&first)
            && self.rectified.contains(&out)
            && self.shape(first) == self.shape(out)
            && self.tensor(first).is_some()
    }

    fn conv(&mut self, node: &Node, out: Id, x: TensorId) -> Result<(), Error> {
        let groups = node.int("group").and_then(|g| u64::try_from(g).ok()).unwrap_or(1).max(1);
        let restored = self.task.mode == Mode::Train && self.folded(node, out);
        let mut params: Vec<ParamId> = Vec::new();
        // A folded bias is the normalisation's.
        for at in if restored { 1..2 } else { 1..3 } {
            if let Some(id) = node.input(at) {
                params.extend(self.weight(id)?);
            }
        }
        if !restored && self.may_be_folded(node, out) {
            self.unnormed += 1;
        }
        let y = self.put(&node.name, Op::Conv { groups }, &[x], &params, out)?;
        if restored {
            self.restored += 1;
            let channels = self.shape(out).get(1).copied().unwrap_or(1);
            let name = format!("{}.norm", node.name);
            let y = self.b.norm(&name, Norm::Batch, y, channels, true)?;
            self.sources.insert(out, Source::Tensor(y));
        }
        Ok(())
    }

    /// Whether a batch normalisation was folded into a convolution. PyTorch's exporter names a convolution's
    /// output after the operator that made it, and that of a batch normalisation (the first of a tuple)
    /// `getitem`; the older exporter renames the weights that it computed.
    fn folded(&self, node: &Node, out: Id) -> bool {
        let named = |at: usize| node.input(at).map(|id| self.model.name(id));
        let by_output = self.model.name(out).rsplit('/').next().is_some_and(|n| n.starts_with("getitem"));
        let recomputed = |name: &str| name.starts_with("onnx::Conv_");
        let by_weights = named(1).is_some_and(recomputed) && named(2).is_some_and(recomputed);
        // Optimizers call what they computed after what it was computed from.
        let by_bias = named(1).zip(named(2)).is_some_and(|(weight, bias)| {
            is_param_name(weight) && bias.strip_prefix(weight).is_some_and(|rest| rest.contains("bias"))
        });
        by_output || by_weights || by_bias
    }

    /// Whether nothing tells that a convolution's bias was its own: neither its output's name nor its bias's.
    fn may_be_folded(&self, node: &Node, out: Id) -> bool {
        let Some((weight, bias)) = node.input(1).zip(node.input(2)) else { return false };
        let own_output = self.model.name(out).rsplit('/').next().is_some_and(|n| n.starts_with("conv"));
        let own_bias = self
            .model
            .name(weight)
            .strip_suffix(".weight")
            .is_some_and(|layer| self.model.name(bias).strip_prefix(layer) == Some(".bias"));
        !own_output && !own_bias
    }

    fn product(&mut self, node: &Node, out: Id, o: &Operands) -> Result<(), Error> {
        let weights: Vec<Id> = node
            .inputs
            .iter()
            .flatten()
            .copied()
            .filter(|id| self.tensor(*id).is_none() && elements(self.shape(*id)) > 1)
            .collect();
        let op = if o.tensors.len() > 1 && node.op == "MatMul" { Op::MatMul } else { Op::Linear };
        // What a weight was reshaped from is trained, not the reshape.
        let mut ids = Vec::new();
        for id in weights {
            match self.source(id) {
                Source::Weights(from) => ids.extend(from),
                _ => ids.push(id),
            }
        }
        let params = self.weights(ids)?;
        self.put(&node.name, op, &o.tensors, &params, out)?;
        Ok(())
    }

    fn batch_norm(&mut self, node: &Node, out: Id, x: TensorId) -> Result<(), Error> {
        let mut params = Vec::new();
        for at in 1..5 {
            let Some(id) = node.input(at) else { continue };
            params.extend(if at < 3 { self.weight(id)? } else { self.buffer(id)? });
        }
        // `num_batches_tracked`, 64 bits, which no exporter writes.
        params.push(self.b.buffer(format!("{}.num_batches_tracked", node.name), &[2])?);
        self.put(&node.name, Op::Norm(Norm::Batch), &[x], &params, out)?;
        Ok(())
    }

    fn gather(&mut self, node: &Node, out: Id, o: &Operands) -> Result<(), Error> {
        let (Some(data), Some(indices)) = (node.input(0), node.input(1)) else { return Ok(()) };
        let rows = self.tensor(data).is_none();
        if rows && self.kind(data) == NumberKind::Float {
            let ids = match self.source(data) {
                Source::Weights(ids) => ids,
                _ => vec![data],
            };
            let params = self.weights(ids)?;
            if let ([table], [rows, width]) = (params.as_slice(), self.shape(data)) {
                self.tables.insert((*rows, *width), (data, *table));
            }
            self.put(&node.name, Op::Embedding, &o.tensors, &params, out)?;
            return Ok(());
        }
        // One index is a view; a list of them copies.
        let single = self.shape(indices).is_empty() && self.tensor(indices).is_none();
        self.put(&node.name, if single { Op::View } else { Op::Copy }, &o.tensors, &[], out)?;
        Ok(())
    }

    fn dropout(&mut self, node: &Node, out: Id, x: TensorId) -> Result<(), Error> {
        let ratio = match node.float("ratio") {
            Some(ratio) => Some(ratio),
            None => node.input(1).and_then(|id| self.values.get(id)?.scalar()),
        };
        if ratio.unwrap_or(0.5) == 0.0 || self.task.mode == Mode::Infer {
            self.alias(out, x);
            return Ok(());
        }
        self.dropouts += 1;
        self.put(&node.name, Op::Dropout { inplace: false }, &[x], &[], out)?;
        Ok(())
    }

    fn recurrent(&mut self, node: &Node, out: Id, x: TensorId) -> Result<(), Error> {
        let gates = match node.op.as_str() {
            "LSTM" => 4,
            "GRU" => 3,
            _ => 1,
        };
        let weights: Vec<Id> = (1..4).filter_map(|at| node.input(at)).collect();
        let of = |at: usize, from: usize| {
            node.input(at).and_then(|id| self.shape(id).get(from).copied()).unwrap_or(1)
        };
        let (layers, hidden) = (of(1, 0), of(2, 2));
        let params = self.weights(weights)?;
        self.put(&node.name, Op::Recurrent { gates, hidden, layers }, &[x], &params, out)?;
        self.rest(node, Op::Copy, &[x])
    }

    /// ONNX's own attention, since opset 23.
    fn attention(&mut self, node: &Node, out: Id, o: &Operands) -> Result<(), Error> {
        let q = node.input(0).map(|id| self.shape(id).to_vec()).unwrap_or_default();
        let heads = match (node.int("q_num_heads"), q.as_slice()) {
            (Some(heads), _) => u64::try_from(heads).unwrap_or(1),
            (None, [_, heads, _, _]) => *heads,
            _ => 1,
        };
        self.attentions += 1;
        let mask = node.input(3).is_some() || node.int("is_causal") == Some(1);
        let tensors = o.tensors.get(..3).unwrap_or(&o.tensors);
        self.put(&node.name, Op::Attention { heads, dropout: false, mask }, tensors, &[], out)?;
        Ok(())
    }
}

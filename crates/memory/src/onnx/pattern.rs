//! Operators that exporters write out: found in the graph and taken as the one that PyTorch runs.
//!
//! | written out | taken as |
//! | --- | --- |
//! | `MatMul`, `Add` of a vector | a linear layer with bias |
//! | `softmax(Q K^T * s + mask) V` | scaled dot-product attention, unless the task's attention is eager |
//! | `x (1 + erf(x / sqrt 2)) / 2` | GELU |
//! | `x sigmoid(x)`, `x hardsigmoid(x)`, `x tanh(softplus(x))` | SiLU, Hardswish, Mish |
//! | `(x - mean) / sqrt(var + eps)`, scaled and shifted | layer normalisation |
//! | `x / sqrt(mean(x^2) + eps)`, scaled | RMS normalisation |
//! | `InstanceNormalization` between reshapes, scaled and shifted | group normalisation |
//!
//! GELU by `tanh` stays written out: Hugging Face's `gelu_new` is so in PyTorch too, and each step keeps
//! its tensors.

use super::model::{Id, OnnxModel};
use super::shape::{Value, Values};
use std::collections::{BTreeMap, BTreeSet};

/// Casts in a row.
const LONGEST_CHAIN: usize = 8;
/// Nodes before and after a softmax that may belong to an attention.
const LONGEST_GROUP: usize = 16;

/// What a group of nodes stands for.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Fused {
    /// A linear layer: weight and bias.
    Linear { weight: Id, bias: Id },
    /// Attention; query, key (as it was before it was transposed) and value.
    Attention { heads: u64, mask: bool, dropout: bool },
    /// An elementwise function that keeps its input.
    Activation,
    /// Layer normalisation with scale and shift.
    LayerNorm(Vec<Id>),
    /// RMS normalisation with scale.
    RmsNorm(Vec<Id>),
    /// Group normalisation with scale and shift.
    GroupNorm(Vec<Id>),
}

/// A group of nodes that is taken as one.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Group {
    pub(super) fused: Fused,
    /// What it reads, weights aside.
    pub(super) inputs: Vec<Id>,
    /// Nodes that are in it; the last makes the group's output.
    pub(super) nodes: BTreeSet<usize>,
    pub(super) last: usize,
}

/// Groups by their last node, and all nodes that are in one.
#[derive(Debug, Default)]
pub(super) struct Groups {
    pub(super) by_last: BTreeMap<usize, Group>,
    pub(super) taken: BTreeSet<usize>,
}

/// Which node makes each value, and which read it.
struct Net<'m> {
    model: &'m OnnxModel,
    values: &'m Values,
    maker: BTreeMap<Id, usize>,
    readers: BTreeMap<Id, Vec<usize>>,
    outputs: BTreeSet<Id>,
}

/// Finds all groups. `fuse_attention`: the training will use fused attention.
pub(super) fn find(model: &OnnxModel, values: &Values, fuse_attention: bool) -> Groups {
    let mut net = Net {
        model,
        values,
        maker: BTreeMap::new(),
        readers: BTreeMap::new(),
        outputs: model.outputs.iter().copied().collect(),
    };
    for (n, node) in model.nodes.iter().enumerate() {
        for id in &node.outputs {
            net.maker.insert(*id, n);
        }
        for id in node.inputs.iter().flatten() {
            net.readers.entry(*id).or_default().push(n);
        }
    }
    let mut groups = Groups::default();
    for n in 0..model.nodes.len() {
        let found = match model.nodes[n].op.as_str() {
            "Erf" => net.gelu(n),
            "Sigmoid" | "HardSigmoid" | "Tanh" => net.gated(n),
            "Softmax" if fuse_attention => net.attention(n),
            "Div" => net.layer_norm(n).or_else(|| net.rms_norm(n)),
            "Reciprocal" => net.rms_norm(n),
            "InstanceNormalization" => net.group_norm(n),
            "Add" => net.linear(n),
            _ => None,
        };
        let Some(group) = found else { continue };
        if group.nodes.is_disjoint(&groups.taken) && net.closed(&group) {
            groups.taken.extend(&group.nodes);
            groups.by_last.insert(group.last, group);
        }
    }
    groups
}

impl<'m> Net<'m> {
    fn op(&self, n: usize) -> &'m str {
        &self.model.nodes[n].op
    }

    fn input(&self, n: usize, at: usize) -> Option<Id> {
        self.model.nodes[n].input(at)
    }

    fn output(&self, n: usize) -> Option<Id> {
        self.model.nodes[n].outputs.first().copied()
    }

    /// The node that makes a value, if it is of one of these operators.
    fn made_by(&self, id: Id, ops: &[&str]) -> Option<usize> {
        self.maker.get(&id).copied().filter(|n| ops.contains(&self.op(*n)))
    }

    /// The only reader of a node's first output, if it is of one of these operators.
    fn next(&self, n: usize, ops: &[&str]) -> Option<usize> {
        let id = self.output(n)?;
        match self.readers.get(&id)?.as_slice() {
            [only] if ops.contains(&self.op(*only)) && !self.outputs.contains(&id) => Some(*only),
            _ => None,
        }
    }

    fn scalar(&self, id: Id) -> Option<f64> {
        self.values.get(id).and_then(Value::scalar)
    }

    /// Of a node with two inputs, the one that is not this one.
    fn other(&self, n: usize, id: Id) -> Option<Id> {
        let (a, b) = (self.input(n, 0)?, self.input(n, 1)?);
        if a == id { Some(b) } else { (b == id).then_some(a) }
    }

    /// Of a node with two inputs, the one that is no scalar constant, and that constant.
    fn with_scalar(&self, n: usize) -> Option<(Id, f64)> {
        let (a, b) = (self.input(n, 0)?, self.input(n, 1)?);
        match (self.scalar(a), self.scalar(b)) {
            (None, Some(s)) => Some((a, s)),
            (Some(s), None) => Some((b, s)),
            _ => None,
        }
    }

    /// Whether nothing but the group reads what its nodes make, its output aside.
    fn closed(&self, group: &Group) -> bool {
        group.nodes.iter().filter(|n| **n != group.last).all(|n| {
            self.model.nodes[*n].outputs.iter().all(|id| {
                !self.outputs.contains(id)
                    && self
                        .readers
                        .get(id)
                        .is_none_or(|r| r.iter().all(|n| group.nodes.contains(n) || self.op(*n) == "Shape"))
            })
        })
    }

    fn group(&self, fused: Fused, inputs: Vec<Id>, nodes: Vec<usize>, last: usize) -> Option<Group> {
        Some(Group { fused, inputs, nodes: nodes.into_iter().collect(), last })
    }

    fn linear(&self, add: usize) -> Option<Group> {
        let (a, b) = (self.input(add, 0)?, self.input(add, 1)?);
        let product =
            self.made_by(a, &["MatMul"]).map(|n| (n, b)).or_else(|| Some((self.made_by(b, &["MatMul"])?, a)));
        let (product, bias) = product?;
        let (x, weight) = (self.input(product, 0)?, self.input(product, 1)?);
        let (w, v) = (self.values.get(weight)?, self.values.get(bias)?);
        let fits = w.shape.len() == 2 && !w.varies && !v.varies && self.values.varies(x);
        let vector = v.elements() == *w.shape.last()? && v.shape.last() == w.shape.last();
        if !fits || !vector {
            return None;
        }
        self.group(Fused::Linear { weight, bias }, vec![x], vec![product, add], add)
    }

    fn gelu(&self, erf: usize) -> Option<Group> {
        let scaled = self.made_by(self.input(erf, 0)?, &["Div", "Mul"])?;
        let (x, _) = self.with_scalar(scaled)?;
        let plus_one = self.next(erf, &["Add"])?;
        if self.with_scalar(plus_one)?.1 != 1.0 {
            return None;
        }
        let mut nodes = vec![scaled, erf, plus_one];
        let (mut at, mut by_x, mut by_half) = (plus_one, false, false);
        while let Some(product) = self.next(at, &["Mul"]) {
            let other = self.other(product, self.output(at)?)?;
            if !by_half && self.scalar(other) == Some(0.5) {
                by_half = true;
            } else if !by_x && other == x {
                by_x = true;
            } else if let Some(half) = self
                .made_by(other, &["Mul"])
                .filter(|n| !by_x && !by_half && self.with_scalar(*n) == Some((x, 0.5)))
            {
                (by_x, by_half) = (true, true);
                nodes.push(half);
            } else {
                break;
            }
            nodes.push(product);
            at = product;
            if by_x && by_half {
                return self.group(Fused::Activation, vec![x], nodes, at);
            }
        }
        None
    }

    /// `x f(x)`
    fn gated(&self, gate: usize) -> Option<Group> {
        let mut x = self.input(gate, 0)?;
        let mut nodes = vec![gate];
        if self.op(gate) == "Tanh" {
            let soft = self.made_by(x, &["Softplus"])?;
            nodes.push(soft);
            x = self.input(soft, 0)?;
        }
        let product = self.next(gate, &["Mul"])?;
        nodes.push(product);
        (self.other(product, self.output(gate)?)? == x).then_some(())?;
        self.group(Fused::Activation, vec![x], nodes, product)
    }

    /// Past casts, which autocast and older exporters put everywhere.
    fn uncast(&self, id: Id, nodes: &mut Vec<usize>) -> Id {
        let mut id = id;
        for _ in 0..LONGEST_CHAIN {
            let Some(cast) = self.made_by(id, &["Cast"]) else { break };
            let Some(x) = self.input(cast, 0) else { break };
            nodes.push(cast);
            id = x;
        }
        id
    }

    /// After a normalisation: scaled, and shifted, by what does not depend on the data.
    fn affine(&self, mut last: usize, shift: bool, nodes: &mut Vec<usize>) -> (Vec<Id>, usize) {
        let mut params = Vec::new();
        for op in ["Mul", "Add"].into_iter().take(if shift { 2 } else { 1 }) {
            let step = || {
                let mut at = last;
                let mut casts = Vec::new();
                for _ in 0..LONGEST_CHAIN {
                    let Some(cast) = self.next(at, &["Cast"]) else { break };
                    casts.push(cast);
                    at = cast;
                }
                let n = self.next(at, &[op])?;
                let other = self.other(n, self.output(at)?)?;
                let weight = !self.values.varies(other) && self.scalar(other).is_none();
                casts.push(n);
                weight.then_some((casts, n, other))
            };
            let Some((more, n, param)) = step() else { break };
            nodes.extend(more);
            params.push(param);
            last = n;
        }
        (params, last)
    }

    /// `mean(f(y)) + eps` under a root, where `f` is a square: the node of the root's input chain.
    fn root_of_mean_square(&self, root: usize, nodes: &mut Vec<usize>) -> Option<Id> {
        let plus = self.made_by(self.input(root, 0)?, &["Add"])?;
        let (mean, _) = self.with_scalar(plus)?;
        let mean = self.made_by(mean, &["ReduceMean"])?;
        let square = self.made_by(self.input(mean, 0)?, &["Pow", "Mul"])?;
        let y = self.input(square, 0)?;
        let squared = match self.op(square) {
            "Pow" => self.scalar(self.input(square, 1)?) == Some(2.0),
            _ => self.input(square, 1) == Some(y),
        };
        nodes.extend([root, plus, mean, square]);
        squared.then_some(y)
    }

    fn layer_norm(&self, div: usize) -> Option<Group> {
        let difference = self.made_by(self.input(div, 0)?, &["Sub"])?;
        let mut nodes = vec![div, difference];
        let root = self.made_by(self.input(div, 1)?, &["Sqrt"])?;
        let squared = self.root_of_mean_square(root, &mut nodes)?;
        let squared = self.uncast(squared, &mut nodes);
        let x = self.input(difference, 0)?;
        let mean = self.made_by(self.input(difference, 1)?, &["ReduceMean"])?;
        nodes.push(mean);
        if self.input(mean, 0) != Some(x) || squared != self.output(difference)? {
            // Some exporters write the difference twice.
            let second = self.made_by(squared, &["Sub"])?;
            if self.input(second, 0) != Some(x) {
                return None;
            }
            nodes.push(second);
        }
        let (params, last) = self.affine(div, true, &mut nodes);
        self.group(Fused::LayerNorm(params), vec![x], nodes, last)
    }

    /// From `1 / sqrt(...)`, as a division or a reciprocal, times `x`; or from `x / sqrt(...)`.
    fn rms_norm(&self, n: usize) -> Option<Group> {
        let mut nodes = vec![n];
        let reciprocal = self.op(n) == "Reciprocal";
        let root = self.made_by(self.input(n, usize::from(!reciprocal))?, &["Sqrt"])?;
        let y = self.root_of_mean_square(root, &mut nodes)?;
        let one_over = reciprocal || self.input(n, 0).and_then(|id| self.scalar(id)) == Some(1.0);
        let last = if one_over {
            let product = self.next(n, &["Mul"])?;
            nodes.push(product);
            (self.other(product, self.output(n)?)? == y).then_some(product)?
        } else {
            (self.input(n, 0)? == y).then_some(n)?
        };
        let x = self.uncast(y, &mut nodes);
        let (params, last) = self.affine(last, false, &mut nodes);
        // A cast of the input that others read too stays outside.
        let whole = self.group(Fused::RmsNorm(params), vec![x], nodes, last)?;
        if x == y || self.closed(&whole) {
            return Some(whole);
        }
        let nodes = whole.nodes.iter().copied().filter(|n| self.op(*n) != "Cast" || *n > root).collect();
        Some(Group { inputs: vec![y], nodes, ..whole })
    }

    fn group_norm(&self, norm: usize) -> Option<Group> {
        let before = self.made_by(self.input(norm, 0)?, &["Reshape"])?;
        let after = self.next(norm, &["Reshape"])?;
        let x = self.input(before, 0)?;
        let mut nodes = vec![before, norm, after];
        let (params, last) = self.affine(after, true, &mut nodes);
        self.group(Fused::GroupNorm(params), vec![x], nodes, last)
    }

    fn attention(&self, softmax: usize) -> Option<Group> {
        let mut nodes = vec![softmax];
        let mut mask = false;
        // Backwards from the softmax to the product of query and key.
        let mut id = self.input(softmax, 0)?;
        let product = loop {
            if nodes.len() > LONGEST_GROUP {
                return None;
            }
            let n = *self.maker.get(&id)?;
            nodes.push(n);
            match self.op(n) {
                "MatMul" => break n,
                "Cast" => id = self.input(n, 0)?,
                "Add" | "Mul" | "Div" | "Where" => {
                    if let Some((x, _)) = self.with_scalar(n) {
                        id = x;
                        continue;
                    }
                    // A mask is smaller, or depends on other data; the scores come from a product.
                    mask = true;
                    let inputs = &self.model.nodes[n].inputs;
                    id = inputs.iter().flatten().copied().find(|id| self.is_scores(*id))?;
                }
                _ => return None,
            }
        };
        let query = self.unscaled(self.input(product, 0)?, &mut nodes);
        let key = self.unscaled(self.input(product, 1)?, &mut nodes);
        // SDPA takes the key untransposed; the transpose is a view either way.
        let width = self.values.get(query).and_then(|v| v.shape.last().copied());
        let key = match self.untransposed(key, width, &nodes) {
            Some((from, passed)) => {
                nodes.extend(passed);
                self.unscaled(from, &mut nodes)
            }
            None => key,
        };
        // Forwards to the product with the value.
        let (mut at, mut dropout) = (softmax, false);
        let last = loop {
            if nodes.len() > 2 * LONGEST_GROUP {
                return None;
            }
            if let Some(n) = self.next(at, &["MatMul"]) {
                nodes.push(n);
                break n;
            }
            if let Some(n) = self.next(at, &["Dropout", "Cast"]) {
                dropout |= self.op(n) == "Dropout";
                nodes.push(n);
                at = n;
                continue;
            }
            // Rows of which all is masked become zero: Where(IsNaN(p), 0, p).
            let readers = self.readers.get(&self.output(at)?)?;
            let nan = *readers.iter().find(|n| self.op(**n) == "IsNaN")?;
            let chosen = self.next(nan, &["Where"])?;
            nodes.extend([nan, chosen]);
            mask = true;
            at = chosen;
        };
        let value = self.other(last, self.output(at)?)?;
        let shape = &self.values.get(query)?.shape;
        let heads = match shape.len() {
            4 => shape[1],
            // Heads folded into the batch.
            _ => 1,
        };
        self.group(Fused::Attention { heads, mask, dropout }, vec![query, key, value], nodes, last)
    }

    /// The key before it was turned, where only the group reads it turned: past one transpose and the reshapes
    /// around it, back to a value whose last dimension is the query's.
    fn untransposed(&self, key: Id, width: Option<u64>, group: &[usize]) -> Option<(Id, Vec<usize>)> {
        let (mut id, mut passed, mut turned) = (key, Vec::new(), false);
        while passed.len() < 3 {
            let n = self.made_by(id, &["Transpose", "Reshape"])?;
            let inside = |r: &usize| group.contains(r) || passed.contains(r);
            // Exporters read the shapes of what they reshape: that is computed, not run.
            let shape = |r: &usize| self.op(*r) == "Shape";
            if !self.readers.get(&id)?.iter().all(|r| inside(r) || shape(r)) {
                return None;
            }
            turned |= self.op(n) == "Transpose";
            passed.push(n);
            id = self.input(n, 0)?;
            let last = self.values.get(id).and_then(|v| v.shape.last().copied());
            let rank = |id: Id| self.values.get(id).map(|v| v.shape.len());
            if turned && last == width && rank(id) == rank(key) {
                return Some((id, passed));
            }
        }
        None
    }

    /// Whether a value comes from a product of two values that depend on the data, through scalings.
    fn is_scores(&self, id: Id) -> bool {
        let mut id = id;
        for _ in 0..6 {
            let Some(n) = self.maker.get(&id).copied() else { return false };
            match self.op(n) {
                "MatMul" => {
                    return [0, 1]
                        .iter()
                        .all(|at| self.input(n, *at).is_some_and(|id| self.values.varies(id)));
                }
                "Mul" | "Div" | "Cast" | "Add" | "Where" => {
                    let varying = self.model.nodes[n]
                        .inputs
                        .iter()
                        .flatten()
                        .copied()
                        .max_by_key(|id| self.values.get(*id).map_or(0, Value::elements));
                    let Some(next) = varying else { return false };
                    id = next;
                }
                _ => return false,
            }
        }
        false
    }

    /// Past a multiplication by a constant that only the group reads.
    fn unscaled(&self, id: Id, nodes: &mut Vec<usize>) -> Id {
        let scaled = self.made_by(id, &["Mul", "Div"]).and_then(|n| Some((n, self.with_scalar(n)?.0)));
        match scaled {
            Some((n, x)) => {
                nodes.push(n);
                x
            }
            None => id,
        }
    }
}

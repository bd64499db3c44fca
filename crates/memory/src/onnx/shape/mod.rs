//! Shapes of all values for the task's batch and sequence length, and values of those that are shapes
//! themselves.
//!
//! Exporters write sizes as little programs (`Shape`, `Gather`, `Concat`, `Reshape`): those are computed
//! here, on lists of at most 2,048 numbers. A model that was exported with a fixed batch is gone through
//! twice: once as it stands, and once with the task's batch, where a `Reshape` to fixed numbers follows
//! what it made in the first pass.

mod arrange;
mod fold;
mod known;
mod rebatch;
mod sizes;
mod window;

use super::model::{Dim, Id, MOST_DIMENSIONS, MOST_KNOWN, Node, NumberKind, OnnxModel};
use crate::{Error, ModelTask};
use sizes::Sizes;
use std::collections::{BTreeMap, BTreeSet};

/// What is known of a value.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Value {
    pub(super) shape: Vec<u64>,
    pub(super) kind: NumberKind,
    /// Its elements, where they are few and do not depend on the data.
    pub(super) known: Option<Vec<f64>>,
    /// Whether it depends on the model's inputs' data.
    pub(super) varies: bool,
}

impl Value {
    fn new(shape: Vec<u64>, kind: NumberKind) -> Self {
        Self { shape, kind, known: None, varies: true }
    }

    fn known(shape: Vec<u64>, kind: NumberKind, values: Vec<f64>) -> Self {
        Self { shape, kind, known: Some(values), varies: false }
    }

    /// Elements; saturates.
    pub(super) fn elements(&self) -> u64 {
        elements(&self.shape)
    }

    /// The one element of a scalar constant.
    pub(super) fn scalar(&self) -> Option<f64> {
        self.known.as_deref().and_then(|v| if let [one] = v { Some(*one) } else { None })
    }

    fn ints(&self) -> Option<Vec<i64>> {
        Some(self.known.as_ref()?.iter().map(|v| *v as i64).collect())
    }

    /// The same values under a new shape.
    fn reshaped(&self, shape: Vec<u64>) -> Self {
        Self { shape, ..self.clone() }
    }
}

/// All values after inference, by number.
#[derive(Debug, Default)]
pub(super) struct Values {
    all: BTreeMap<Id, Value>,
    /// Nodes whose operator or shape was not understood.
    pub(super) unknown: BTreeSet<usize>,
    /// What was assumed.
    pub(super) doubts: Vec<String>,
}

impl Values {
    pub(super) fn get(&self, id: Id) -> Option<&Value> {
        self.all.get(&id)
    }

    fn insert(&mut self, id: Id, mut value: Value, varies: bool) {
        if value.shape.len() > MOST_DIMENSIONS {
            return;
        }
        if value.known.as_ref().is_some_and(|k| k.len() as u64 != value.elements()) {
            value.known = None;
        }
        // What comes of shapes alone does not vary, though the tensors whose shapes they are do.
        value.varies = varies && value.known.is_none();
        self.all.insert(id, value);
    }

    /// Whether a value depends on the data.
    pub(super) fn varies(&self, id: Id) -> bool {
        self.get(id).is_some_and(|v| v.varies)
    }
}

/// Shapes of everything for a task.
///
/// # Errors
/// Inputs of absurd sizes.
pub(super) fn infer(model: &OnnxModel, task: &ModelTask) -> Result<Values, Error> {
    let batch = task.batch_size.max(1);
    // Where the first input's first dimension is a number, that is the batch of the export.
    let fixed = model.inputs.iter().find_map(|(_, s)| match (s.dims.len() > 1, s.dims.first()) {
        (true, Some(Dim::Number(n))) if *n > 0 => Some(*n),
        _ => None,
    });
    let open = model.inputs.iter().any(|(_, s)| s.dims.first().is_some_and(|d| !matches!(d, Dim::Number(_))));
    let fixed = fixed.filter(|n| !open && *n != batch);
    let mut sizes = Sizes { task, names: BTreeMap::new(), fixed, batch, doubts: Vec::new() };
    let first = match fixed {
        Some(n) => {
            let mut as_exported =
                Sizes { task, names: BTreeMap::new(), fixed: None, batch: n, doubts: Vec::new() };
            Some(pass(model, &mut as_exported, None)?)
        }
        None => None,
    };
    let mut values = pass(model, &mut sizes, first.as_ref())?;
    if let Some(tokens) = task.seq_len {
        let fixed_tokens = model.inputs.iter().find_map(|(_, s)| match (s.kind, s.dims.get(1)) {
            (NumberKind::Int, Some(Dim::Number(n))) if *n != tokens => Some(*n),
            _ => None,
        });
        if let Some(n) = fixed_tokens {
            values.doubts.push(format!(
                "the file was exported for sequences of {n} tokens, not {tokens}; export it with an open dimension"
            ));
        }
    }
    values.doubts.append(&mut sizes.doubts);
    Ok(values)
}

fn pass(model: &OnnxModel, sizes: &mut Sizes<'_>, first: Option<&Values>) -> Result<Values, Error> {
    let mut values = Values::default();
    for (id, constant) in &model.constants {
        let known = constant.values.clone();
        values
            .all
            .insert(*id, Value { shape: constant.shape.clone(), kind: constant.kind, known, varies: false });
    }
    for (id, stated) in &model.inputs {
        let name = model.name(*id);
        let shape = sizes.input(name, stated);
        let elements = shape.iter().try_fold(1_u64, |n, d| n.checked_mul(*d));
        if elements.is_none_or(|n| n > 1 << 44) {
            return Err(Error::Absurd { layer: format!("input {name}"), what: format!("shape {shape:?}") });
        }
        values.all.insert(*id, Value::new(shape, stated.kind));
    }
    for (number, node) in model.nodes.iter().enumerate() {
        let (made, varies) = infer_node(model, node, &values, sizes, first);
        let Some(made) = made else {
            values.unknown.insert(number);
            for id in &node.outputs {
                if let Some(value) = guess(model, node, *id, &values, sizes) {
                    values.insert(*id, value, varies);
                }
            }
            continue;
        };
        for (at, id) in node.outputs.iter().enumerate() {
            let value = match made.get(at) {
                Some(value) => Some(value.clone()),
                None => guess(model, node, *id, &values, sizes),
            };
            if let Some(value) = value {
                values.insert(*id, value, varies);
            }
        }
    }
    Ok(values)
}

/// What a node makes, and whether that depends on the data.
fn infer_node(
    model: &OnnxModel,
    node: &Node,
    values: &Values,
    sizes: &Sizes<'_>,
    first: Option<&Values>,
) -> (Option<Vec<Value>>, bool) {
    let inputs: Vec<Option<&Value>> = node.inputs.iter().map(|id| id.and_then(|id| values.get(id))).collect();
    let missing = node.inputs.iter().zip(&inputs).any(|(id, v)| id.is_some() && v.is_none());
    let varies = inputs.iter().flatten().any(|v| v.varies);
    let call = Call { node, inputs: &inputs, opset: model.opset };
    let mut made = if missing { None } else { call.infer() };
    if let (Some(made), Some(first)) = (&mut made, first) {
        call.follow(made, first, sizes);
    }
    (made, varies)
}

/// Without a rule: as the file states, else as the largest input, which is right for most of what has none.
fn guess(model: &OnnxModel, node: &Node, id: Id, values: &Values, sizes: &Sizes<'_>) -> Option<Value> {
    let stated = || {
        let stated = model.stated.get(&id)?;
        Some(Value::new(sizes.stated(stated)?, stated.kind))
    };
    let as_input = || {
        let inputs = node.inputs.iter().flatten().filter_map(|id| values.get(*id));
        let largest = inputs.max_by_key(|v| v.elements())?;
        Some(Value::new(largest.shape.clone(), largest.kind))
    };
    stated().or_else(as_input)
}

/// A node with its inputs.
struct Call<'c> {
    node: &'c Node,
    inputs: &'c [Option<&'c Value>],
    opset: i64,
}

impl Call<'_> {
    fn input(&self, at: usize) -> Option<&Value> {
        self.inputs.get(at).copied().flatten()
    }

    /// Ints from an attribute, or since some version from an input.
    fn list(&self, attribute: &str, input: usize) -> Option<Vec<i64>> {
        match self.node.ints(attribute) {
            Some(ints) => Some(ints.to_vec()),
            None => self.input(input)?.ints(),
        }
    }

    /// An axis, which may count from the end.
    fn axis(axis: i64, rank: usize) -> Option<usize> {
        let at = if axis < 0 { axis + rank as i64 } else { axis };
        usize::try_from(at).ok().filter(|at| *at < rank.max(1))
    }

    /// What the node makes; `None` where there is no rule or the inputs do not fit.
    fn infer(&self) -> Option<Vec<Value>> {
        if let Some(made) = self.infer_known() {
            return Some(made);
        }
        let x = || self.input(0);
        let like = |v: &Value| Value::new(v.shape.clone(), v.kind);
        let one = |v: Value| Some(vec![v]);
        match self.node.op.as_str() {
            "Relu"
            | "Sigmoid"
            | "Tanh"
            | "Erf"
            | "Sqrt"
            | "Exp"
            | "Log"
            | "Neg"
            | "Abs"
            | "Floor"
            | "Ceil"
            | "Round"
            | "Sign"
            | "Reciprocal"
            | "Sin"
            | "Cos"
            | "Clip"
            | "LeakyRelu"
            | "Elu"
            | "Selu"
            | "Celu"
            | "ThresholdedRelu"
            | "HardSigmoid"
            | "HardSwish"
            | "Softplus"
            | "Softsign"
            | "Gelu"
            | "Mish"
            | "Swish"
            | "Softmax"
            | "LogSoftmax"
            | "Hardmax"
            | "Identity"
            | "InstanceNormalization"
            | "GroupNormalization"
            | "RMSNormalization"
            | "LRN"
            | "LpNormalization"
            | "CumSum"
            | "Trilu"
            | "ScatterND"
            | "ScatterElements"
            | "Scatter"
            | "BitwiseNot"
            | "com.microsoft::QuickGelu"
            | "com.microsoft::FastGelu"
            | "com.microsoft::Gelu"
            | "RotaryEmbedding" => one(like(x()?)),
            "Not" | "IsNaN" | "IsInf" => one(Value::new(x()?.shape.clone(), NumberKind::Bool)),
            "Cast" | "CastLike" => one(Value::new(x()?.shape.clone(), self.cast_kind()?)),
            "Dropout" => Some(vec![like(x()?), Value::new(x()?.shape.clone(), NumberKind::Bool)]),
            "BatchNormalization" => {
                let channel = Value::new(self.input(1)?.shape.clone(), NumberKind::Float);
                let mut made = vec![like(x()?)];
                made.resize(self.node.outputs.len().max(1), channel);
                Some(made)
            }
            "LayerNormalization" => {
                let v = x()?;
                let axis = Self::axis(self.node.int("axis").unwrap_or(-1), v.shape.len())?;
                let mut rows = v.shape.clone();
                rows.iter_mut().skip(axis).for_each(|d| *d = 1);
                Some(vec![
                    like(v),
                    Value::new(rows.clone(), NumberKind::Float),
                    Value::new(rows, NumberKind::Float),
                ])
            }
            "Add" | "Sub" | "Mul" | "Div" | "Pow" | "Mod" | "Min" | "Max" | "Sum" | "Mean" | "PRelu"
            | "BitShift" | "And" | "Or" | "Xor" | "BitwiseAnd" | "BitwiseOr" | "BitwiseXor" => {
                one(Value::new(self.broadcast(0)?, x()?.kind))
            }
            "Equal" | "Less" | "Greater" | "LessOrEqual" | "GreaterOrEqual" => {
                one(Value::new(self.broadcast(0)?, NumberKind::Bool))
            }
            "Where" => one(Value::new(self.broadcast(0)?, self.input(1)?.kind)),
            "MatMul" | "MatMulInteger" | "com.microsoft::FusedMatMul" => {
                one(Value::new(self.matmul()?, x()?.kind))
            }
            "Gemm" => one(Value::new(self.gemm()?, x()?.kind)),
            "Einsum" => one(Value::new(self.einsum()?, x()?.kind)),
            "Conv" | "ConvTranspose" | "MaxPool" | "AveragePool" | "LpPool" | "GlobalAveragePool"
            | "GlobalMaxPool" | "Resize" | "Upsample" | "DepthToSpace" | "SpaceToDepth" | "GridSample" => {
                self.window()
            }
            "LSTM" | "GRU" | "RNN" => self.recurrent(),
            "Attention" => self.attention(),
            _ => self.arrange(),
        }
    }

    /// `TensorProto.DataType` of a cast's target.
    fn cast_kind(&self) -> Option<NumberKind> {
        Some(match self.node.int("to") {
            Some(2..=7 | 12 | 13) => NumberKind::Int,
            Some(9) => NumberKind::Bool,
            Some(_) => NumberKind::Float,
            None => self.input(1)?.kind,
        })
    }

    /// Shape of elementwise operators over all inputs from one on.
    fn broadcast(&self, from: usize) -> Option<Vec<u64>> {
        let mut shape: Vec<u64> = Vec::new();
        for v in self.inputs.get(from..)? {
            shape = broadcast(&shape, &v.as_ref()?.shape)?;
        }
        Some(shape)
    }

    fn matmul(&self) -> Option<Vec<u64>> {
        let (a, b) = (&self.input(0)?.shape, &self.input(1)?.shape);
        let (mut rows, mut columns) = (a.clone(), b.clone());
        if self.node.int("transA") == Some(1) && rows.len() > 1 {
            let n = rows.len();
            rows.swap(n - 1, n - 2);
        }
        if self.node.int("transB") == Some(1) && columns.len() > 1 {
            let n = columns.len();
            columns.swap(n - 1, n - 2);
        }
        let vector = (rows.len() == 1, columns.len() == 1);
        if vector.0 {
            rows.insert(0, 1);
        }
        if vector.1 {
            columns.push(1);
        }
        let (inner, m) = (rows.pop()?, rows.pop()?);
        let (n, other) = (columns.pop()?, columns.pop()?);
        if inner != other {
            return None;
        }
        let mut shape = broadcast(&rows, &columns)?;
        if !vector.0 {
            shape.push(m);
        }
        if !vector.1 {
            shape.push(n);
        }
        Some(shape)
    }

    fn gemm(&self) -> Option<Vec<u64>> {
        let side = |at: usize, attribute: &str, outer: usize| {
            let shape = &self.input(at)?.shape;
            let turned = self.node.int(attribute) == Some(1);
            shape.get(if turned { 1 - outer } else { outer }).copied().filter(|_| shape.len() == 2)
        };
        let fits = side(0, "transA", 1)? == side(1, "transB", 0)?;
        fits.then_some(vec![side(0, "transA", 0)?, side(1, "transB", 1)?])
    }

    fn einsum(&self) -> Option<Vec<u64>> {
        let equation: String = self.node.text("equation")?.chars().filter(|c| !c.is_whitespace()).collect();
        let (left, right) = equation.split_once("->")?;
        let mut sizes: BTreeMap<char, u64> = BTreeMap::new();
        for (term, v) in left.split(',').zip(self.inputs) {
            let v = v.as_ref()?;
            if term.chars().count() != v.shape.len() {
                return None;
            }
            sizes.extend(term.chars().zip(v.shape.iter().copied()));
        }
        right.chars().map(|c| sizes.get(&c).copied()).collect()
    }

    /// ONNX's own operator, since opset 23: query, key, value in 3 or 4 dimensions.
    fn attention(&self) -> Option<Vec<Value>> {
        let (q, v) = (self.input(0)?, self.input(2)?);
        let mut shape = q.shape.clone();
        if shape.len() == 4 {
            *shape.last_mut()? = *v.shape.last()?;
        } else if let (Some(heads), Some(kv)) = (self.node.int("q_num_heads"), self.node.int("kv_num_heads"))
        {
            let width = v.shape.last()?.checked_div(u64::try_from(kv).ok()?)?;
            *shape.last_mut()? = width.checked_mul(u64::try_from(heads).ok()?)?;
        }
        Some(vec![Value::new(shape, q.kind)])
    }
}

/// Shape of an elementwise operator (numpy's rule).
fn broadcast(a: &[u64], b: &[u64]) -> Option<Vec<u64>> {
    let rank = a.len().max(b.len());
    (0..rank)
        .map(|i| {
            let at = |s: &[u64]| (i + s.len()).checked_sub(rank).and_then(|i| s.get(i).copied()).unwrap_or(1);
            match (at(a), at(b)) {
                (x, y) if x == y => Some(x),
                (1, y) => Some(y),
                (x, 1) => Some(x),
                _ => None,
            }
        })
        .collect()
}

/// Elements of a shape; saturates.
pub(super) fn elements(shape: &[u64]) -> u64 {
    shape.iter().fold(1, |n: u64, d| n.saturating_mul(*d))
}

/// Whether so many elements are few enough to be computed.
fn few(shape: &[u64]) -> Option<usize> {
    let n = shape.iter().try_fold(1_u64, |n, d| n.checked_mul(*d))?;
    (n <= MOST_KNOWN as u64).then_some(n as usize)
}

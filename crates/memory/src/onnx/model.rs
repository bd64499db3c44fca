//! A decoded model: values and nodes by number, functions put in place, small constants read.

use super::proto;
use crate::Error;
use prost::Message as _;
use std::collections::{BTreeMap, HashMap, HashSet};

/// Nodes after functions were put in place.
const MOST_NODES: usize = 400_000;
/// Functions within functions.
const MOST_CALLS: usize = 32;
/// Characters of a name.
const LONGEST_NAME: usize = 200;
/// Elements of a constant whose values are read.
pub(super) const MOST_KNOWN: usize = 128;
/// Dimensions of a tensor.
pub(super) const MOST_DIMENSIONS: usize = 64;
/// Bytes of attributes after functions were put in place.
const MOST_ATTRIBUTES: usize = 256 << 20;

/// A value: graph input, weight, or what a node makes.
pub(super) type Id = usize;

/// Type of a value's numbers, as far as it matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NumberKind {
    /// Floats of any width.
    Float,
    /// Integers of any width.
    Int,
    /// Truth values.
    Bool,
}

impl NumberKind {
    /// `TensorProto.DataType`.
    const fn of(data_type: i32) -> Self {
        match data_type {
            2..=7 | 12 | 13 => Self::Int,
            9 => Self::Bool,
            _ => Self::Float,
        }
    }
}

/// A constant: its dimensions, and its values where they are few.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Constant {
    pub(super) shape: Vec<u64>,
    pub(super) kind: NumberKind,
    pub(super) values: Option<Vec<f64>>,
    /// Its first and last element, as bytes, where they are in the file.
    pub(super) ends: Option<(Vec<u8>, Vec<u8>)>,
}

/// A dimension of an input or of an annotated value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Dim {
    Number(u64),
    Name(String),
    Unknown,
}

/// Dimensions and type that the file states for a value.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Stated {
    pub(super) dims: Vec<Dim>,
    pub(super) kind: NumberKind,
}

/// A node.
#[derive(Debug, Clone)]
pub(super) struct Node {
    /// As in the file, else operator and number.
    pub(super) name: String,
    /// Operator; with its domain where that is not ONNX's own.
    pub(super) op: String,
    pub(super) inputs: Vec<Option<Id>>,
    pub(super) outputs: Vec<Id>,
    attributes: Vec<proto::Attribute>,
}

impl Node {
    /// The input at a place, if it is there.
    pub(super) fn input(&self, at: usize) -> Option<Id> {
        self.inputs.get(at).copied().flatten()
    }

    fn attribute(&self, name: &str) -> Option<&proto::Attribute> {
        self.attributes.iter().find(|a| a.name == name)
    }

    pub(super) fn int(&self, name: &str) -> Option<i64> {
        self.attribute(name).map(|a| a.i)
    }

    pub(super) fn float(&self, name: &str) -> Option<f64> {
        self.attribute(name).map(|a| f64::from(a.f))
    }

    pub(super) fn ints(&self, name: &str) -> Option<&[i64]> {
        self.attribute(name).map(|a| a.ints.as_slice())
    }

    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.attribute(name).and_then(|a| std::str::from_utf8(&a.s).ok())
    }

    /// The value of a node `Constant`, in whichever attribute it stands.
    pub(super) fn constant(&self) -> Option<Constant> {
        let list = |values: Vec<f64>, kind| Constant {
            ends: None,
            shape: vec![values.len() as u64],
            kind,
            values: Some(values),
        };
        let scalar =
            |value: f64, kind| Constant { ends: None, shape: Vec::new(), kind, values: Some(vec![value]) };
        let a = self.attributes.first()?;
        Some(match a.name.as_str() {
            "value" => constant(a.t.as_ref()?).ok()?,
            "value_int" => scalar(a.i as f64, NumberKind::Int),
            "value_float" => scalar(f64::from(a.f), NumberKind::Float),
            "value_ints" => {
                list(a.ints.iter().take(MOST_KNOWN).map(|i| *i as f64).collect(), NumberKind::Int)
            }
            "value_floats" => {
                list(a.floats.iter().take(MOST_KNOWN).map(|f| f64::from(*f)).collect(), NumberKind::Float)
            }
            _ => return None,
        })
    }

    /// The tensor in an attribute (`ConstantOfShape`).
    pub(super) fn tensor(&self, name: &str) -> Option<Constant> {
        self.attribute(name)?.t.as_ref().and_then(|t| constant(t).ok())
    }
}

/// A model.
#[derive(Debug, Clone, Default)]
pub(super) struct OnnxModel {
    /// Names of values.
    pub(super) names: Vec<String>,
    /// Weights and other constants of the file.
    pub(super) constants: BTreeMap<Id, Constant>,
    /// Inputs that are not constants.
    pub(super) inputs: Vec<(Id, Stated)>,
    /// What the model returns.
    pub(super) outputs: Vec<Id>,
    /// Stated shapes of values between.
    pub(super) stated: BTreeMap<Id, Stated>,
    /// Nodes, in the order in which they run.
    pub(super) nodes: Vec<Node>,
    /// Version of ONNX's own operators.
    pub(super) opset: i64,
}

/// Dimensions, type, and values where they are few.
fn constant(t: &proto::Tensor) -> Result<Constant, Error> {
    if t.dims.len() > MOST_DIMENSIONS {
        let what = format!("{} dimensions; at most {MOST_DIMENSIONS} are believed", t.dims.len());
        return Err(Error::bad(format!("ONNX, tensor {}", short(&t.name)), what));
    }
    let shape =
        t.dims.iter().map(|d| u64::try_from(*d)).collect::<Result<Vec<_>, _>>().map_err(|_| {
            Error::bad(format!("ONNX, tensor {}", t.name), format!("dimensions {:?}", t.dims))
        })?;
    let elements = shape.iter().try_fold(1_u64, |n, d| n.checked_mul(*d));
    let values = elements.filter(|n| *n <= MOST_KNOWN as u64).and_then(|n| values(t, n as usize));
    Ok(Constant { shape, kind: NumberKind::of(t.data_type), values, ends: ends(t) })
}

/// First and last element of a tensor, of floats that are not in lists.
fn ends(t: &proto::Tensor) -> Option<(Vec<u8>, Vec<u8>)> {
    let width = match t.data_type {
        1 => 4,
        10 | 16 => 2,
        11 => 8,
        _ => return None,
    };
    let bytes = t.raw_data.as_slice();
    let last = bytes.len().checked_sub(width)?;
    Some((bytes[..width].to_vec(), bytes[last..].to_vec()))
}

/// The values of a small tensor, if all of them are there.
fn values(t: &proto::Tensor, n: usize) -> Option<Vec<f64>> {
    fn raw<const N: usize>(bytes: &[u8], number: fn([u8; N]) -> f64) -> Vec<f64> {
        bytes.chunks_exact(N).filter_map(|c| c.try_into().ok()).map(number).collect()
    }
    let bytes = t.raw_data.as_slice();
    let found: Vec<f64> = match t.data_type {
        1 if bytes.is_empty() => t.float_data.iter().map(|v| f64::from(*v)).collect(),
        1 => raw(bytes, |b| f64::from(f32::from_le_bytes(b))),
        11 if bytes.is_empty() => t.double_data.clone(),
        11 => raw(bytes, f64::from_le_bytes),
        7 if bytes.is_empty() => t.int64_data.iter().map(|v| *v as f64).collect(),
        7 => raw(bytes, |b| i64::from_le_bytes(b) as f64),
        6 | 9 if bytes.is_empty() => t.int32_data.iter().map(|v| f64::from(*v)).collect(),
        6 => raw(bytes, |b| f64::from(i32::from_le_bytes(b))),
        9 => bytes.iter().map(|b| f64::from(*b)).collect(),
        10 if !bytes.is_empty() => raw(bytes, |b| half(u16::from_le_bytes(b))),
        16 if !bytes.is_empty() => {
            raw(bytes, |b| f64::from(f32::from_bits(u32::from(u16::from_le_bytes(b)) << 16)))
        }
        _ => return None,
    };
    (found.len() == n).then_some(found)
}

/// A 16-bit float of IEEE 754.
fn half(bits: u16) -> f64 {
    let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
    let (exponent, fraction) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023) / 1024.0);
    sign * match exponent {
        0 => fraction * 2_f64.powi(-14),
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        e => (1.0 + fraction) * 2_f64.powi(e - 15),
    }
}

fn stated(info: &proto::ValueInfo) -> Option<Stated> {
    let tensor = info.r#type.as_ref()?.tensor_type.as_ref()?;
    let dims = &tensor.shape.as_ref()?.dim;
    if dims.len() > MOST_DIMENSIONS {
        return None;
    }
    let dims = dims
        .iter()
        .map(|d| match &d.value {
            Some(proto::DimValue::Number(n)) => u64::try_from(*n).map_or(Dim::Unknown, Dim::Number),
            Some(proto::DimValue::Name(name)) if !name.is_empty() => Dim::Name(name.clone()),
            _ => Dim::Unknown,
        })
        .collect();
    Some(Stated { dims, kind: NumberKind::of(tensor.elem_type) })
}

/// A name that is not absurdly long: functions within functions would multiply it.
fn short(name: &str) -> &str {
    match name.char_indices().nth(LONGEST_NAME) {
        Some((end, _)) => &name[..end],
        None => name,
    }
}

fn join(prefix: &str, name: &str) -> String {
    format!("{}{}", short(prefix), short(name))
}

/// Gives every name of a scope its number.
struct Linker<'m> {
    model: OnnxModel,
    functions: HashMap<(&'m str, &'m str), &'m proto::Function>,
    calls: usize,
    /// Bytes of attributes so far.
    attributes: usize,
    /// Values that were made or read.
    seen: HashSet<Id>,
}

type Scope<'m> = HashMap<&'m str, Id>;

impl<'m> Linker<'m> {
    fn id(&mut self, scope: &mut Scope<'m>, name: &'m str, prefix: &str) -> Id {
        *scope.entry(name).or_insert_with(|| {
            self.model.names.push(join(prefix, name));
            self.model.names.len() - 1
        })
    }

    fn nodes(
        &mut self,
        nodes: &'m [proto::Node],
        scope: &mut Scope<'m>,
        prefix: &str,
        caller: &[proto::Attribute],
        depth: usize,
    ) -> Result<(), Error> {
        if depth > MOST_CALLS {
            return Err(Error::bad(
                "ONNX file",
                format!("functions call each other more than {MOST_CALLS} deep"),
            ));
        }
        for node in nodes {
            let mut inputs = Vec::with_capacity(node.input.len());
            for name in &node.input {
                inputs.push(if name.is_empty() { None } else { Some(self.id(scope, name, prefix)) });
            }
            let attributes = resolve(&node.attribute, caller);
            self.attributes += attributes.iter().map(|a| a.encoded_len()).sum::<usize>();
            if self.attributes > MOST_ATTRIBUTES {
                return Err(Error::bad(
                    "ONNX file",
                    format!("more than {} MiB of attributes", MOST_ATTRIBUTES >> 20),
                ));
            }
            let number = self.model.nodes.len();
            let name = match node.name.as_str() {
                "" => join(prefix, &format!("{} {number}", short(&node.op_type))),
                name => join(prefix, name),
            };
            if let Some(function) =
                self.functions.get(&(node.domain.as_str(), node.op_type.as_str())).copied()
            {
                self.calls += 1;
                if self.calls > MOST_NODES {
                    return Err(Error::bad(
                        "ONNX file",
                        format!("more than {MOST_NODES} calls of functions"),
                    ));
                }
                let mut inner: Scope<'m> = HashMap::new();
                for (formal, actual) in function.input.iter().zip(&inputs) {
                    if let Some(actual) = actual {
                        inner.insert(formal, *actual);
                    }
                }
                for (formal, actual) in function.output.iter().zip(&node.output) {
                    // An output that is also an input is passed through by the function's own node.
                    if !actual.is_empty() && !inner.contains_key(formal.as_str()) {
                        let id = self.id(scope, actual, prefix);
                        inner.insert(formal, id);
                    }
                }
                let mut defaults = attributes;
                for default in &function.attribute_proto {
                    if defaults.iter().all(|a| a.name != default.name) {
                        defaults.push(default.clone());
                    }
                }
                self.nodes(&function.node, &mut inner, &format!("{name}/"), &defaults, depth + 1)?;
                continue;
            }
            let mut outputs = Vec::with_capacity(node.output.len());
            for out in &node.output {
                if out.is_empty() {
                    // An output that is not wanted has a number all the same.
                    self.model.names.push(String::new());
                    outputs.push(self.model.names.len() - 1);
                } else {
                    outputs.push(self.id(scope, out, prefix));
                }
            }
            // Each value is made once, before it is read: with that, no chain of nodes ends in itself.
            self.seen.extend(inputs.iter().flatten());
            for id in &outputs {
                if !self.seen.insert(*id) {
                    return Err(Error::bad(
                        format!("ONNX, node {name}"),
                        format!("it makes {}, which was made or read before", self.model.name(*id)),
                    ));
                }
            }
            let op = match node.domain.as_str() {
                "" | "ai.onnx" => node.op_type.clone(),
                domain => format!("{domain}::{}", node.op_type),
            };
            if self.model.nodes.len() >= MOST_NODES {
                return Err(Error::bad("ONNX file", format!("more than {MOST_NODES} nodes")));
            }
            self.model.nodes.push(Node { name, op, inputs, outputs, attributes });
        }
        Ok(())
    }
}

/// Attributes of a node within a function take those of the call where they say so.
fn resolve(attributes: &[proto::Attribute], caller: &[proto::Attribute]) -> Vec<proto::Attribute> {
    attributes
        .iter()
        .filter_map(|a| {
            if a.ref_attr_name.is_empty() {
                return Some(a.clone());
            }
            let found = caller.iter().find(|c| c.name == a.ref_attr_name)?;
            Some(proto::Attribute { name: a.name.clone(), ..found.clone() })
        })
        .collect()
}

impl OnnxModel {
    /// Links a decoded file.
    ///
    /// # Errors
    /// No graph, or more in it than any model has.
    pub(super) fn link(file: &proto::ModelProto) -> Result<Self, Error> {
        let graph = file
            .graph
            .as_ref()
            .filter(|g| !g.node.is_empty())
            .ok_or_else(|| Error::bad("ONNX file", "it has no graph with nodes; is it an ONNX model?"))?;
        let opset = file
            .opset_import
            .iter()
            .find(|o| o.domain.is_empty() || o.domain == "ai.onnx")
            .map_or(1, |o| o.version);
        let functions = file.functions.iter().map(|f| ((f.domain.as_str(), f.name.as_str()), f)).collect();
        let mut linker = Linker {
            model: Self { opset, ..Self::default() },
            functions,
            calls: 0,
            attributes: 0,
            seen: HashSet::new(),
        };
        let mut scope = HashMap::new();
        for tensor in &graph.initializer {
            let id = linker.id(&mut scope, &tensor.name, "");
            linker.model.constants.insert(id, constant(tensor)?);
        }
        for info in &graph.input {
            let id = linker.id(&mut scope, &info.name, "");
            // Files of old versions list weights among the inputs.
            if !linker.model.constants.contains_key(&id) {
                let stated = stated(info).ok_or_else(|| {
                    Error::bad(format!("ONNX, input {}", info.name), "it states no shape; export it with one")
                })?;
                linker.model.inputs.push((id, stated));
            }
        }
        let given: Vec<Id> = (0..linker.model.names.len()).collect();
        linker.seen.extend(given);
        linker.nodes(&graph.node, &mut scope, "", &[], 0)?;
        for info in &graph.value_info {
            if let (Some(id), Some(stated)) = (scope.get(info.name.as_str()), stated(info)) {
                linker.model.stated.insert(*id, stated);
            }
        }
        for info in &graph.output {
            let id = linker.id(&mut scope, &info.name, "");
            linker.model.outputs.push(id);
            if let Some(stated) = stated(info) {
                linker.model.stated.entry(id).or_insert(stated);
            }
        }
        Ok(linker.model)
    }

    /// Name of a value.
    pub(super) fn name(&self, id: Id) -> &str {
        self.names.get(id).map_or("", String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves() {
        for (bits, value) in
            [(0x3c00, 1.0), (0xc000, -2.0), (0x3800, 0.5), (0x0001, 2_f64.powi(-24)), (0, 0.0)]
        {
            assert_eq!(half(bits), value);
        }
        assert!(half(0x7c00).is_infinite() && half(0x7e00).is_nan());
    }
}

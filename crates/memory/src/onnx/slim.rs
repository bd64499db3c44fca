//! Copies a model without the weights themselves (the ends of each stay: see [`ENDS`]), and counts what is in it, before anything is decoded.
//!
//! A model's file is nearly all weights, of which only the dimensions matter here. And two bytes of a
//! hostile file can stand for a message of hundreds once decoded; so the messages are counted first.

use crate::Error;
use prost::encoding::{WireType, decode_key, decode_varint, encode_key, encode_varint};

/// Data of a tensor up to this is copied: shapes, scalars, lists of positions.
pub(super) const SMALL_BYTES: usize = 16 << 10;
/// Bytes at either end of a weight that are copied. A matrix and its transpose begin and end alike: that
/// tells an output matrix that is tied to the embedding from one of its own.
pub(super) const ENDS: usize = 8;
/// `TensorProto.raw_data`.
const RAW_DATA: u32 = 9;
/// Messages in a model: the largest exported models have a few hundred thousand.
const MOST_MESSAGES: usize = 1_000_000;
/// Bytes of all that is copied.
const MOST_COPIED: usize = 64 << 20;
/// Graphs within attributes of graphs.
const MOST_DEPTH: usize = 32;

/// Kinds of messages that are walked into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MessageKind {
    Model,
    Graph,
    Function,
    Node,
    Attribute,
    Tensor,
    Leaf,
}

impl MessageKind {
    /// What a field holds: a message to walk into, data to drop when large, text to drop.
    const fn field(self, tag: u32) -> Field {
        match (self, tag) {
            (Self::Model, 7) => Field::Message(Self::Graph),
            (Self::Model, 25) => Field::Message(Self::Function),
            (Self::Graph, 1) | (Self::Function, 7) => Field::Message(Self::Node),
            (Self::Graph, 5) | (Self::Attribute, 5) => Field::Message(Self::Tensor),
            (Self::Function, 11) | (Self::Node, 5) => Field::Message(Self::Attribute),
            (Self::Model, 8) | (Self::Graph, 11..=13) => Field::Message(Self::Leaf),
            // Names count as messages: each becomes a string of its own.
            (Self::Node, 1..=4) | (Self::Function, 4 | 5) | (Self::Leaf, _) => Field::Counted,
            (Self::Node, 7) | (Self::Function, 1 | 10) | (Self::Attribute, 1 | 4 | 7 | 8 | 21) => {
                Field::Counted
            }
            (Self::Tensor, 4 | 5 | 7 | 9 | 10) => Field::Data,
            (Self::Tensor, 1 | 8) => Field::Counted,
            _ => Field::Unwanted,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    Message(MessageKind),
    Counted,
    Data,
    Unwanted,
}

/// Counts down what may still come.
#[derive(Debug)]
struct Budget {
    messages: usize,
    bytes: usize,
}

/// The model without large data.
///
/// # Errors
/// No protobuf, truncated, or more in it than any model has.
pub(super) fn slim(bytes: &[u8]) -> Result<Vec<u8>, Error> {
    let mut budget = Budget { messages: MOST_MESSAGES, bytes: MOST_COPIED };
    let mut out = Vec::new();
    copy(bytes, MessageKind::Model, 0, &mut budget, &mut out)?;
    Ok(out)
}

fn bad(what: impl Into<String>) -> Error {
    Error::bad("ONNX file", what)
}

fn copy(
    mut from: &[u8],
    kind: MessageKind,
    depth: usize,
    budget: &mut Budget,
    out: &mut Vec<u8>,
) -> Result<(), Error> {
    if depth > MOST_DEPTH {
        return Err(bad(format!("messages are nested more than {MOST_DEPTH} deep")));
    }
    let protobuf = |e: prost::DecodeError| bad(format!("not a protobuf message of ONNX: {e}"));
    while !from.is_empty() {
        let (tag, wire) = decode_key(&mut from).map_err(protobuf)?;
        let field = kind.field(tag);
        let start = from;
        let skip = |from: &mut &[u8], n: usize| {
            *from = from.get(n..).ok_or_else(|| bad("it ends within a field; is the file truncated?"))?;
            Ok::<_, Error>(())
        };
        match wire {
            WireType::Varint => {
                decode_varint(&mut from).map_err(protobuf)?;
            }
            WireType::SixtyFourBit => skip(&mut from, 8)?,
            WireType::ThirtyTwoBit => skip(&mut from, 4)?,
            WireType::LengthDelimited => {
                let length = decode_varint(&mut from).map_err(protobuf)?;
                let length = usize::try_from(length).unwrap_or(usize::MAX);
                let body = from
                    .get(..length)
                    .ok_or_else(|| bad("a field is longer than the file; is it truncated?"))?;
                skip(&mut from, length)?;
                if field != Field::Unwanted {
                    budget.messages = budget
                        .messages
                        .checked_sub(1)
                        .ok_or_else(|| bad(format!("more than {MOST_MESSAGES} nodes, names and tensors")))?;
                }
                if let Field::Message(inner) = field {
                    let mut slimmed = Vec::new();
                    if inner == MessageKind::Leaf {
                        census(body, depth + 1, budget)?;
                        slimmed.extend_from_slice(body);
                    } else {
                        copy(body, inner, depth + 1, budget, &mut slimmed)?;
                    }
                    encode_key(tag, wire, out);
                    encode_varint(slimmed.len() as u64, out);
                    out.extend_from_slice(&slimmed);
                    continue;
                }
                if field == Field::Data && body.len() > SMALL_BYTES {
                    if tag == RAW_DATA {
                        encode_key(tag, wire, out);
                        encode_varint(2 * ENDS as u64, out);
                        out.extend_from_slice(&body[..ENDS]);
                        out.extend_from_slice(&body[body.len() - ENDS..]);
                    }
                    continue;
                }
            }
            WireType::StartGroup | WireType::EndGroup => {
                return Err(bad("it has groups, which ONNX has not; is it an ONNX file?"));
            }
        }
        if field == Field::Unwanted && wire == WireType::LengthDelimited {
            continue;
        }
        let taken = start.len() - from.len();
        budget.bytes = budget
            .bytes
            .checked_sub(taken + 8)
            .ok_or_else(|| bad(format!("more than {} MiB beside its weights", MOST_COPIED >> 20)))?;
        encode_key(tag, wire, out);
        out.extend_from_slice(&start[..taken]);
    }
    Ok(())
}

/// Counts the fields of a message of names and dimensions, whatever they are.
fn census(mut from: &[u8], depth: usize, budget: &mut Budget) -> Result<(), Error> {
    budget.bytes = budget
        .bytes
        .checked_sub(from.len())
        .ok_or_else(|| bad(format!("more than {} MiB beside its weights", MOST_COPIED >> 20)))?;
    // Text may look like fields; what does not parse was text.
    while let Ok((_, wire)) = decode_key(&mut from) {
        let fixed = match wire {
            WireType::LengthDelimited => None,
            WireType::Varint if decode_varint(&mut from).is_ok() => Some(0),
            WireType::SixtyFourBit => Some(8),
            WireType::ThirtyTwoBit => Some(4),
            _ => break,
        };
        if let Some(n) = fixed {
            let Some(rest) = from.get(n..) else { break };
            from = rest;
            continue;
        }
        let Ok(length) = decode_varint(&mut from) else { break };
        let Some(body) = usize::try_from(length).ok().and_then(|n| from.get(..n)) else { break };
        from = &from[body.len()..];
        budget.messages = budget
            .messages
            .checked_sub(1)
            .ok_or_else(|| bad(format!("more than {MOST_MESSAGES} nodes, names and tensors")))?;
        if depth < MOST_DEPTH {
            census(body, depth + 1, budget)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::proto;
    use super::*;
    use prost::Message as _;

    #[test]
    fn large_data_goes_and_dimensions_stay() {
        let tensor = |name: &str, n: usize| proto::Tensor {
            dims: vec![n as i64],
            data_type: 1,
            raw_data: vec![0; n * 4],
            name: name.to_owned(),
            ..proto::Tensor::default()
        };
        let graph = proto::Graph {
            initializer: vec![tensor("w", 1 << 20), tensor("s", 1)],
            ..proto::Graph::default()
        };
        let model = proto::ModelProto { graph: Some(graph), ..proto::ModelProto::default() };
        let slimmed = slim(&model.encode_to_vec()).unwrap();
        assert!(slimmed.len() < 120);
        let back = proto::ModelProto::decode(slimmed.as_slice()).unwrap().graph.unwrap();
        assert_eq!(back.initializer[0].dims, [1 << 20]);
        assert_eq!(back.initializer[0].raw_data.len(), 2 * ENDS);
        assert_eq!(back.initializer[1].raw_data.len(), 4);
    }

    #[test]
    fn a_bomb_of_empty_messages_is_refused() {
        // Graph with 50 million empty nodes of two bytes each would be gigabytes once decoded.
        let body = [0x0a, 0x00].repeat(MOST_MESSAGES + 1);
        let mut bytes = vec![0x3a];
        encode_varint(body.len() as u64, &mut bytes);
        bytes.extend(body);
        assert!(slim(&bytes).unwrap_err().to_string().contains("more than 1000000"));
    }
}

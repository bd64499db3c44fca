//! Front end for ONNX: the file's forward graph becomes a [`Graph`], to which the rules of training apply.
//!
//! Weights are not read, only their dimensions; nor are files that hold them apart. Open dimensions take
//! the task's batch and sequence length; a batch that the export fixed is replaced by the task's.
//! Operators that exporters write out (attention, GELU, normalisations) are taken as what PyTorch runs;
//! see `pattern.rs`.
//!
//! **What a file does not say.** An exporter writes what inference needs. Batch normalisation is folded
//! into convolutions: where names show that, it is put back. Dropout is gone: said as a doubt where a
//! transformer has none. Whether a function wrote over its input, where checkpointing cuts, whether a
//! GELU by `tanh` was one kernel or several: not in the file, and taken as PyTorch's own models do.
//! Buffers that were folded into other constants are lost. The bound is wider for each doubt.
//!
//! **Limits.** Opsets 7 to 25 of ONNX's own operators, functions of the file itself; operators of other domains
//! are listed as unknown. `If`, `Loop`, `Scan`: unknown. At most 2 GiB, a million messages, 400,000 nodes.
//!
//! Source: the operators' definitions in ONNX's `Operators.md` and `Changelog.md`.

mod lower;
mod model;
mod pattern;
mod proto;
mod shape;
mod slim;

#[cfg(test)]
mod tests;

use crate::graph::Graph;
use crate::{Error, ModelTask};
use prost::Message as _;

/// A protobuf message cannot be longer.
const MOST_BYTES: usize = 2 << 30;

/// Reads a model.
///
/// # Errors
/// No ONNX, truncated, too large, or of absurd sizes; says where.
pub fn graph(bytes: &[u8], task: &ModelTask) -> Result<Graph, Error> {
    let file = decode(bytes)?;
    let model = model::OnnxModel::link(&file)?;
    let values = shape::infer(&model, task)?;
    lower::lower(&model, &values, task)
}

/// Whether the bytes are a model at all, be it one with operators that are not known.
///
/// # Errors
/// No ONNX, truncated or too large.
pub fn check(bytes: &[u8]) -> Result<(), Error> {
    model::OnnxModel::link(&decode(bytes)?).map(|_| ())
}

fn decode(bytes: &[u8]) -> Result<proto::ModelProto, Error> {
    if bytes.len() > MOST_BYTES {
        return Err(Error::bad("ONNX file", "larger than 2 GiB; export it with its weights in a file apart"));
    }
    if bytes.is_empty() {
        return Err(Error::bad("ONNX file", "it is empty"));
    }
    let slim = slim::slim(bytes)?;
    proto::ModelProto::decode(slim.as_slice())
        .map_err(|e| Error::bad("ONNX file", format!("not a protobuf message of ONNX: {e}")))
}

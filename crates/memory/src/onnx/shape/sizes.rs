//! Sizes of open dimensions: batch, tokens, and what can only be assumed.

use crate::ModelTask;
use crate::onnx::model::{Dim, NumberKind, Stated};
use std::collections::BTreeMap;

/// Batches and names of dimensions.
pub(super) struct Sizes<'t> {
    pub(super) task: &'t ModelTask,
    pub(super) names: BTreeMap<String, u64>,
    /// Batch in the file, where it is a number.
    pub(super) fixed: Option<u64>,
    pub(super) batch: u64,
    pub(super) doubts: Vec<String>,
}

/// Side of an image whose size the file leaves open.
const USUAL_SIDE: u64 = 224;
/// Tokens of a sequence where neither file nor task says.
const USUAL_TOKENS: u64 = 128;

impl Sizes<'_> {
    fn named(&mut self, name: &str, input: &str, axis: usize, rank: usize, kind: NumberKind) -> u64 {
        if let Some(size) = self.names.get(name) {
            return *size;
        }
        let lower = name.to_lowercase();
        let is = |words: &[&str]| words.iter().any(|w| lower.contains(w));
        let sequence = is(&["seq", "len", "token", "time", "ctx"]);
        let size = if is(&["batch"]) || (axis == 0 && !sequence) {
            self.batch
        } else if sequence || (axis == 1 && (kind != NumberKind::Float || rank == 3)) {
            self.task.seq_len.unwrap_or_else(|| {
                self.doubts.push(format!(
                    "input {input}: dimension {name} is taken for {USUAL_TOKENS} tokens; --seq-len says it"
                ));
                USUAL_TOKENS
            })
        } else if rank >= 4 && axis == 1 {
            self.doubts.push(format!("input {input}: dimension {name} is taken for 3 channels"));
            3
        } else {
            self.doubts.push(format!("input {input}: dimension {name} is open and taken for {USUAL_SIDE}"));
            USUAL_SIDE
        };
        self.names.insert(name.to_owned(), size);
        size
    }

    /// Dimensions of an input for the task.
    pub(super) fn input(&mut self, name: &str, stated: &Stated) -> Vec<u64> {
        let rank = stated.dims.len();
        (0..rank)
            .map(|axis| match &stated.dims[axis] {
                Dim::Number(n) if axis == 0 && self.fixed == Some(*n) => self.batch,
                Dim::Number(n) => *n,
                Dim::Name(dim) => self.named(dim, name, axis, rank, stated.kind),
                Dim::Unknown => self.named(&format!("{name}.{axis}"), name, axis, rank, stated.kind),
            })
            .collect()
    }

    /// A stated shape, if all of its names have sizes.
    pub(super) fn stated(&self, stated: &Stated) -> Option<Vec<u64>> {
        stated
            .dims
            .iter()
            .enumerate()
            .map(|(axis, d)| match d {
                Dim::Number(n) if axis == 0 && self.fixed == Some(*n) => Some(self.batch),
                Dim::Number(n) => Some(*n),
                Dim::Name(name) => self.names.get(name).copied(),
                Dim::Unknown => None,
            })
            .collect()
    }
}

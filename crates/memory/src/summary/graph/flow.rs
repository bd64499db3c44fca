//! Wires printed layers into a graph: each finds or makes the tensor that it must have read.
//!
//! A summary does not say what a layer reads. The last tensor is tried first; if it cannot be the input
//! (channels, sizes and the number of weights do not agree), others that fit are, and what a functional
//! operator could have made of them: a concatenation, a pool, a view, an attention.

use super::row::{Dims, LayerRow};
use crate::graph::{Builder, Graph, ParamId, TensorId};
use crate::{Error, ModelTask};
use std::collections::HashMap;

/// Tensors that are looked at, back from the last.
pub(super) const REACH: usize = 400;
/// Doubts that are listed one by one.
const MAX_DOUBTS: usize = 40;

/// A tensor on the way.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    pub(super) id: TensorId,
    pub(super) shape: Dims,
    /// How many layers read it.
    pub(super) uses: u32,
    /// Which step made it.
    pub(super) step: usize,
    /// Made by a matrix product (query, key and value are told by it).
    pub(super) product: bool,
    /// The next block reads only half of it (ShuffleNet).
    pub(super) halves: bool,
    /// Came out of a block with a sum: a later shortcut may read it.
    pub(super) block_end: bool,
}

pub(super) struct Flow<'a> {
    pub(super) b: Builder,
    pub(super) task: &'a ModelTask,
    pub(super) seen: Vec<Seen>,
    /// The last tensor.
    pub(super) cur: usize,
    pub(super) step: usize,
    /// Whether dropout in this family has a probability above 0.
    pub(super) dropout: bool,
    /// Heads, where a shape told them.
    pub(super) heads: u64,
    /// The last layer was a norm; was a product.
    pub(super) after_norm: bool,
    pub(super) after_product: bool,
    pub(super) after_activation: bool,
    /// Scores were written out, and no softmax came yet.
    pub(super) scores: bool,
    /// timm: activations work in place wherever they can.
    pub(super) timm: bool,
    shared: HashMap<String, Vec<ParamId>>,
    doubts: usize,
}

impl<'a> Flow<'a> {
    pub(super) fn new(family: &str, task: &'a ModelTask) -> Self {
        Self {
            b: Builder::new(family),
            task,
            seen: Vec::new(),
            cur: 0,
            step: 0,
            dropout: true,
            heads: 0,
            after_norm: false,
            after_product: false,
            after_activation: false,
            scores: false,
            timm: false,
            shared: HashMap::new(),
            doubts: 0,
        }
    }

    pub(super) fn doubt(&mut self, what: impl Into<String>) {
        self.doubts += 1;
        if self.doubts <= MAX_DOUBTS {
            self.b.doubt(what);
        }
    }

    /// The graph, with what the model returns.
    pub(super) fn finish(mut self, outputs: Vec<TensorId>) -> Graph {
        if self.doubts > MAX_DOUBTS {
            self.b.doubt(format!("{} more", self.doubts - MAX_DOUBTS));
        }
        self.b.finish(outputs)
    }

    /// Remembers a new tensor, which becomes the last.
    pub(super) fn push(&mut self, id: TensorId) -> usize {
        let shape = self.b.shape(id).to_vec();
        self.seen.push(Seen {
            id,
            shape,
            uses: 0,
            step: self.step,
            product: false,
            halves: false,
            block_end: false,
        });
        self.cur = self.seen.len() - 1;
        self.cur
    }

    pub(super) fn shape(&self, at: usize) -> &[u64] {
        self.seen.get(at).map_or(&[], |s| &s.shape)
    }

    /// Reads a tensor: it is no longer open.
    pub(super) fn read(&mut self, at: usize) -> TensorId {
        if let Some(seen) = self.seen.get_mut(at) {
            seen.uses += 1;
            return seen.id;
        }
        TensorId(0)
    }

    /// The last tensors, newest first, without the very last.
    pub(super) fn recent(&self) -> impl Iterator<Item = usize> + '_ {
        let cur = self.cur;
        (0..self.seen.len()).rev().take(REACH).filter(move |i| *i != cur)
    }

    /// Tensors since a step that nothing read yet, oldest first.
    pub(super) fn open_since(&self, step: usize) -> Vec<usize> {
        let from = self.seen.len().saturating_sub(REACH);
        (from..self.seen.len()).filter(|i| self.seen[*i].uses == 0 && self.seen[*i].step >= step).collect()
    }

    // --- parameters ---

    /// Parameters of a layer: `pieces` are shapes; the rest of the printed number is one more.
    pub(super) fn params(
        &mut self,
        row: &LayerRow,
        pieces: &[(&str, Vec<u64>)],
    ) -> Result<Vec<ParamId>, Error> {
        if row.recursive
            && let Some(ids) = self.shared.get(&row.name)
        {
            return Ok(ids.clone());
        }
        let mut rest = row.params;
        let mut ids = Vec::new();
        for (part, shape) in pieces {
            let size = elements(shape);
            if size == 0 || size > rest {
                continue;
            }
            rest -= size;
            ids.push(self.b.param(format!("{}.{part}", row.name), shape)?);
        }
        if rest > 0 {
            ids.push(self.b.param(format!("{}.parameters", row.name), &[rest])?);
        }
        if row.frozen {
            for id in &ids {
                self.b.freeze(*id);
            }
        }
        self.shared.insert(row.name.clone(), ids.clone());
        Ok(ids)
    }
}

pub(super) fn elements(shape: &[u64]) -> u64 {
    shape.iter().fold(1_u64, |n, d| n.saturating_mul(*d))
}

//! Attention: the fused kernels, and the one written out.

use super::player::Player;
use super::store::Storage;
use crate::Attention;
use crate::Error;
use crate::graph::{Node, TensorId};

/// Sizes of an attention, in elements.
struct Sizes {
    /// Heads times rows of the query, over the batch.
    rows: u64,
    /// Probabilities: `rows` times keys.
    probabilities: u64,
    /// Query; it is as large as the output.
    query: u64,
}

impl Player<'_, '_> {
    /// Query, key and value: three inputs, or one that holds them packed.
    fn operands(node: &Node) -> [TensorId; 3] {
        let first = node.inputs[0];
        let nth = |n: usize| node.inputs.get(n).copied().unwrap_or(first);
        [first, nth(1), nth(2)]
    }

    fn sizes_of(&self, node: &Node, heads: u64) -> Sizes {
        let [q, k, _] = Self::operands(node);
        let query = self.elements_of(node.outputs[0]).max(1);
        let shape = |t: TensorId| self.graph.tensor(t).shape.as_slice();
        // [batch, length, width], or [batch, heads, length, size of a head].
        let length = |shape: &[u64]| match shape {
            [_, h, s, _] if *h == heads => *s,
            [_, _, h, s, _] if *h == heads => *s,
            [_, s, ..] => *s,
            [s] => *s,
            [] => 1,
        };
        let of_head = match shape(q) {
            [.., h, _, d] if *h == heads && shape(q).len() >= 4 => *d,
            [.., d] if q != k || node.inputs.len() > 1 => d / heads.max(1),
            [.., d] => d / (3 * heads.max(1)),
            [] => 1,
        };
        let rows = query / of_head.max(1);
        Sizes { rows, probabilities: rows.saturating_mul(length(shape(k))), query }
    }

    fn fused(&self) -> bool {
        self.task.attention == Attention::Sdpa
    }

    pub(super) fn attention(
        &mut self,
        at: usize,
        node: &Node,
        heads: u64,
        dropout: bool,
        mask: bool,
    ) -> Result<(), Error> {
        let dropout = dropout && self.task.mode == crate::Mode::Train;
        let sizes = self.sizes_of(node, heads);
        let operands = Self::operands(node);
        let packed = node.inputs.len() == 1;
        let width = self.width_in_gemm(operands[0]);
        let count = if packed { 1 } else { 3 };
        let mut held = Vec::with_capacity(3);
        for tensor in &operands[..count] {
            held.push(self.cast(*tensor, width)?);
        }
        if self.fused() {
            // A mask that is a tensor of the graph (a trained bias by position) is kept as well.
            if let Some(added) = node.inputs.get(3).filter(|_| !packed) {
                held.push(self.cast(*added, width)?);
            }
            let out = self.output(node, width)?;
            // The memory-efficient kernel rounds the rows of its log-sum-exp up to 32.
            let sums = self.bytes_new(sizes.rows.saturating_mul(4))?;
            for kept in held.iter().copied().chain([out, sums]) {
                self.keep(at, kept);
            }
            self.store.release(sums)?;
            if dropout {
                for _ in 0..2 {
                    let seed = self.bytes_new(8)?;
                    self.keep(at, seed);
                    self.store.release(seed)?;
                }
            }
            self.store.release_all(held)?;
            return self.give(node, out);
        }
        // Products need heads apart: copies of query, key and value, which are kept instead of them.
        let mut copies = Vec::with_capacity(3);
        for tensor in operands {
            let elements = if packed { sizes.query } else { self.elements_of(tensor) };
            let copy = self.bytes_new(elements.saturating_mul(width))?;
            self.keep(at, copy);
            copies.push(copy);
        }
        self.store.release_all(held)?;
        let square = |width: u64| sizes.probabilities.saturating_mul(width);
        self.gemm()?;
        let mut scores = self.bytes_new(square(width))?;
        // Scaled, then masked: a new matrix each.
        for _ in 0..1 + usize::from(mask) {
            let next = self.bytes_new(square(width))?;
            self.store.release(scores)?;
            scores = next;
        }
        let wide = if self.plan.types.auto.is_some() { 4 } else { width };
        let input = if wide != width && self.plan.types.bfloat {
            self.bytes_new(square(wide))?
        } else {
            self.store.hold(scores)
        };
        let mut weights = self.bytes_new(square(wide))?;
        self.keep(at, weights);
        self.store.release_all([input, scores])?;
        if dropout {
            let dropped = self.bytes_new(square(wide))?;
            let mask = self.bytes_new(sizes.probabilities)?;
            self.keep(at, mask);
            self.store.release_all([mask, weights])?;
            weights = dropped;
        }
        if wide != width {
            let cast = self.bytes_new(square(width))?;
            self.store.release(weights)?;
            weights = cast;
        }
        self.keep(at, weights);
        let product = self.bytes_new(sizes.query.saturating_mul(width))?;
        self.store.release(weights)?;
        self.store.release_all(copies)?;
        let out = self.output(node, width)?;
        self.store.release(product)?;
        self.give(node, out)
    }

    /// Gradients of query, key and value that are asked for, with their width.
    pub(super) fn attention_backward(
        &mut self,
        node: &Node,
        heads: u64,
        dropout: bool,
        mask: bool,
    ) -> Result<Vec<(TensorId, Storage, u64)>, Error> {
        let sizes = self.sizes_of(node, heads);
        let width = self.width_of(node.outputs[0]);
        let mut temporaries = Vec::new();
        if self.fused() {
            // Products of output and gradient by row; the flash kernel adds up the query's gradient in
            // 32 bits.
            temporaries.push(self.bytes_new(sizes.rows.saturating_mul(4))?);
            if width == 2 && !mask {
                temporaries.push(self.bytes_new(sizes.query.saturating_mul(4))?);
            }
        } else {
            self.gemm()?;
            let square = |width: u64| sizes.probabilities.saturating_mul(width);
            let wide = if self.plan.types.auto.is_some() { 4 } else { width };
            let mut at = self.bytes_new(square(width))?;
            let mut step = |player: &mut Self, width: u64| {
                let next = player.bytes_new(square(width))?;
                let old = std::mem::replace(&mut at, next);
                player.store.release(old)
            };
            if wide != width {
                step(self, wide)?;
            }
            if dropout {
                step(self, wide)?;
            }
            // Softmax, then back to 16 bits, then the scale.
            step(self, wide)?;
            if wide != width {
                step(self, width)?;
            }
            step(self, width)?;
            temporaries.push(at);
        }
        let mut gradients = Vec::with_capacity(3);
        for (nth, tensor) in node.inputs.iter().enumerate() {
            if self.plan.needs(*tensor) {
                // The kernel makes one gradient of a bias for each sample, then they are summed.
                if nth == 3 && self.elements_of(*tensor) < sizes.probabilities {
                    temporaries.push(self.bytes_new(sizes.probabilities.saturating_mul(width))?);
                }
                gradients.push((*tensor, self.temporary(*tensor, width)?, width));
            }
        }
        self.store.release_all(temporaries)?;
        Ok(gradients)
    }
}

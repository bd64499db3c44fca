//! Attention in its printed forms: one layer, windows, products side by side or apart.

use super::flow::Flow;
use super::row::LayerRow;
use crate::Error;
use crate::graph::{Number, Op, TensorId};

impl Flow<'_> {
    pub(super) fn multi_head(&mut self, row: &LayerRow) -> Result<(), Error> {
        let Some(out) = row.output.clone() else { return self.unknown(row) };
        let at = self.input_of(row, Some(&out))?;
        let width = out.last().copied().unwrap_or(1);
        // torchsummary does not count the projections (they are not called weight).
        let counted = LayerRow {
            params: row.params.max(width.saturating_mul(width).saturating_mul(4) + 4 * width),
            ..row.clone()
        };
        let params = self.params(
            &counted,
            &[
                ("in_proj_weight", vec![3 * width, width]),
                ("in_proj_bias", vec![3 * width]),
                ("out_proj.weight", vec![width, width]),
                ("out_proj.bias", vec![width]),
            ],
        )?;
        let (inward, outward) = params.split_at(params.len().min(2));
        let x = self.read(at);
        let mut wide = self.shape(at).to_vec();
        if let Some(last) = wide.last_mut() {
            *last = width.saturating_mul(3);
        }
        let id =
            self.b.node(&format!("{}.in_proj", row.name), Op::Linear, &[x], inward, &wide, Number::Float)?;
        // PyTorch makes query, key and value contiguous in one copy.
        let id =
            self.b.node(&format!("{}.contiguous", row.name), Op::Copy, &[id], &[], &wide, Number::Float)?;
        let shape = self.shape(at).to_vec();
        let attended = self.attend(&row.name, &[id, id, id], &shape)?;
        let x = self.read(attended);
        let id = self.b.node(
            &format!("{}.out_proj", row.name),
            Op::Linear,
            &[x],
            outward,
            &shape,
            Number::Float,
        )?;
        self.push(id);
        Ok(())
    }

    /// torchvision's attention in shifted windows, which calls functions only: windows are cut out, query,
    /// key and value made, probabilities kept, and all is put back.
    pub(super) fn windows(&mut self, row: &LayerRow) -> Result<(), Error> {
        let Some(out) = row.output.clone() else { return self.unknown(row) };
        let at = self.input_of(row, Some(&out))?;
        let shape = self.shape(at).to_vec();
        let &[batch, height, width, channels] = shape.as_slice() else { return self.unknown(row) };
        let side: u64 = if row.kind.ends_with("V2") { 8 } else { 7 };
        let (across, down) = (width.div_ceil(side), height.div_ceil(side));
        let count = batch.saturating_mul(across.saturating_mul(down));
        let tokens = side * side;
        // Swin's heads are 32 wide.
        let heads = (channels / 32).max(1);
        let name = |part: &str| format!("{}{part}", row.name);
        let windows = [count, tokens, channels];
        let weights = channels.saturating_mul(channels);
        let table = (2 * side - 1).pow(2) * heads;
        let all = weights.saturating_mul(4).saturating_add(4 * channels).saturating_add(table);
        let counted = LayerRow { params: row.params.max(all), ..row.clone() };
        let params = self.params(
            &counted,
            &[
                ("qkv.weight", vec![3 * channels, channels]),
                ("qkv.bias", vec![3 * channels]),
                ("proj.weight", vec![channels, channels]),
                ("proj.bias", vec![channels]),
            ],
        )?;
        let (inward, rest) = params.split_at(params.len().min(2));
        let (outward, bias) = rest.split_at(rest.len().min(2));
        let copy = |flow: &mut Self, part: &str, x, shape: &[u64]| {
            flow.b.node(&name(part), Op::Copy, &[x], &[], shape, Number::Float)
        };
        let x = self.read(at);
        let rolled = copy(self, " (roll)", x, &shape)?;
        let x = copy(self, " (windows)", rolled, &windows)?;
        let wide = [count, tokens, channels.saturating_mul(3)];
        let qkv = self.b.node(&name(".qkv"), Op::Linear, &[x], inward, &wide, Number::Float)?;
        let query = copy(self, " (query)", qkv, &windows)?;
        let key = copy(self, " (key)", qkv, &windows)?;
        let value = copy(self, " (value)", qkv, &windows)?;
        let square = [count, heads, tokens, tokens];
        let scores =
            self.b.node(&name(" (scores)"), Op::MatMul, &[query, key], &[], &square, Number::Float)?;
        let sum = Op::Add { inplace: false };
        let scores = if side == 8 {
            // Version 2 scales cosines by a trained factor.
            let scale = self.b.param(name(".logit_scale"), &[heads])?;
            self.b.node(&name(" (scaled)"), Op::Mul, &[scores], &[scale], &square, Number::Float)?
        } else {
            scores
        };
        let scores = self.b.node(&name(" (bias)"), sum, &[scores], bias, &square, Number::Float)?;
        let scores = self.b.like(&name(" (softmax)"), Op::Softmax, &[scores])?;
        let x =
            self.b.node(&name(" (context)"), Op::MatMul, &[scores, value], &[], &windows, Number::Float)?;
        let x = copy(self, " (heads)", x, &windows)?;
        let x = self.b.node(&name(".proj"), Op::Linear, &[x], outward, &windows, Number::Float)?;
        let x = copy(self, " (merge)", x, &shape)?;
        let x = copy(self, " (roll back)", x, &shape)?;
        self.push(x);
        Ok(())
    }

    /// Query, key and value as three products that no layer read: the next linear layer reads what attention
    /// makes of them.
    pub(super) fn separate(&mut self, row: &LayerRow, at: usize) -> Result<usize, Error> {
        let shape = self.shape(at).to_vec();
        if shape.len() != 3 || !self.seen[at].product || self.seen[at].uses > 0 {
            return Ok(at);
        }
        let others: Vec<usize> = self
            .recent()
            .filter(|i| *i != at)
            .take(2)
            .filter(|i| {
                self.seen[*i].product && self.seen[*i].uses == 0 && self.seen[*i].shape.last() == shape.last()
            })
            .collect();
        let &[key, query] = others.as_slice() else { return Ok(at) };
        let out = self.shape(query).to_vec();
        let qkv = [self.read(query), self.read(key), self.read(at)];
        self.attend(&row.name, &qkv, &out)
    }

    /// Scaled dot-product attention over query, key and value.
    pub(super) fn attend(&mut self, name: &str, qkv: &[TensorId], out: &[u64]) -> Result<usize, Error> {
        let width = out.last().copied().unwrap_or(64);
        let heads =
            if self.heads > 0 && width.is_multiple_of(self.heads) { self.heads } else { (width / 64).max(1) };
        let op = Op::Attention { heads, dropout: false, mask: false };
        let id = self.b.node(&format!("{name} (attention)"), op, qkv, &[], out, Number::Float)?;
        Ok(self.push(id))
    }

    /// The softmax over scores, where it is a function.
    pub(super) fn softmax(&mut self, name: &str) -> Result<(), Error> {
        if self.scores {
            self.scores = false;
            let x = self.read(self.cur);
            let id = self.b.like(&format!("{name} (softmax)"), Op::Softmax, &[x])?;
            self.push(id);
        }
        Ok(())
    }

    /// `[batch, heads, tokens, width]` tells the heads.
    pub(super) fn note_heads(&mut self, row: &LayerRow) {
        if let Some([_, heads, _, width]) = row.output.as_deref()
            && let Some(last) = self.shape(self.cur).last()
            && heads.checked_mul(*width).is_some_and(|all| all == *last || all.checked_mul(3) == Some(*last))
        {
            self.heads = *heads;
        }
    }
}

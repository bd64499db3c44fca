//! Wires printed layers into a graph: each finds or makes the tensor that it must have read.
//!
//! A summary does not say what a layer reads. The last tensor is tried first; if it cannot be the input
//! (channels, sizes and the number of weights do not agree), others that fit are, and what a functional
//! operator could have made of them: a concatenation, a pool, a view, an attention.

use super::fit::{self, Fit};
use super::role::Role;
use super::row::{Dims, Row};
use crate::graph::{Builder, Graph, Keeps, Norm, Number, Op, ParamId, TensorId};
use crate::{Error, Mode, Task};
use std::collections::HashMap;

/// Tensors that are looked at, back from the last.
pub(super) const REACH: usize = 400;
/// Layers that stand for what a container hides.
const MAX_INSIDE: u64 = 64;
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

/// How a wanted shape comes about.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Plan {
    Use(usize),
    View(usize),
    /// Half or a third of it, without a copy.
    Part(usize),
    Cat(Vec<usize>),
    /// Attention over a product three times as wide.
    Attend(usize),
    /// Attention of a query over key and value side by side.
    Cross(usize, usize),
    /// Scores of query and key, written out.
    Scores(usize),
    /// Scores over values, written out.
    Weighted(usize, usize),
    Pool(usize),
    Resize(usize),
    /// Tokens are put in front.
    Token(usize),
    Unknown(usize),
}

pub(super) struct Flow<'a> {
    pub(super) b: Builder,
    pub(super) task: &'a Task,
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
    scores: bool,
    /// timm: activations work in place wherever they can.
    pub(super) timm: bool,
    shared: HashMap<String, Vec<ParamId>>,
    doubts: usize,
}

impl<'a> Flow<'a> {
    pub(super) fn new(family: &str, task: &'a Task) -> Self {
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
    fn recent(&self) -> impl Iterator<Item = usize> + '_ {
        let cur = self.cur;
        (0..self.seen.len()).rev().take(REACH).filter(move |i| *i != cur)
    }

    /// Tensors since a step that nothing read yet, oldest first.
    pub(super) fn open_since(&self, step: usize) -> Vec<usize> {
        let from = self.seen.len().saturating_sub(REACH);
        (from..self.seen.len()).filter(|i| self.seen[*i].uses == 0 && self.seen[*i].step >= step).collect()
    }

    // --- finding inputs ---

    /// How a tensor of this shape could be had for an elementwise layer, a norm, a linear layer.
    pub(super) fn plan(&self, want: &[u64]) -> (f64, Plan) {
        let cur = self.shape(self.cur);
        if cur == want {
            return (0.0, Plan::Use(self.cur));
        }
        let size = elements(cur);
        let wanted = elements(want);
        if size == wanted {
            return (1.0, Plan::View(self.cur));
        }
        if let Some(plan) = self.attention(want) {
            return (1.5, plan);
        }
        if let Some(parts) = self.cat(want) {
            return (2.0, Plan::Cat(parts));
        }
        if let Some(at) = self.recent().find(|i| self.seen[*i].shape == want) {
            return (2.5, Plan::Use(at));
        }
        if size == wanted.saturating_mul(3) && want.len() >= 2 {
            return (3.2, Plan::Part(self.cur));
        }
        if size == wanted.saturating_mul(2) {
            return (3.3, Plan::Part(self.cur));
        }
        if let Some(plan) = self.functional(want) {
            return plan;
        }
        // An older tensor under another shape.
        if let Some(at) =
            self.recent().find(|i| self.seen[*i].uses == 0 && elements(&self.seen[*i].shape) == wanted)
        {
            return (6.0, Plan::View(at));
        }
        (10.0, Plan::Unknown(self.cur))
    }

    /// What attention makes of the last tensor, where that is a product nobody read yet: query, key and
    /// value side by side, key and value after a query, scores written out, scores over values.
    fn attention(&self, want: &[u64]) -> Option<Plan> {
        let seen = self.seen.get(self.cur)?;
        let cur = seen.shape.as_slice();
        let (last, width) = (*cur.last()?, *want.last()?);
        let heads_last = cur.len() == 4 && cur[1] == cur[2] && cur[3] <= 128;
        if cur.len() == 4 && want.len() == 3 && (cur[1] != want[1] || heads_last) {
            // Scores [batch, heads, tokens, others] over values.
            let others = if cur[1] == want[1] { cur[2] } else { cur[3] };
            if cur[2] != want[1] && cur[1] != want[1] || cur.first() < want.first() {
                return None;
            }
            let value = self.recent().take(12).find(|i| {
                let v = &self.seen[*i];
                v.product
                    && v.shape.len() == 3
                    && v.shape[0] == cur[0]
                    && v.shape[1] == others
                    && v.shape[2] >= width
            })?;
            return Some(Plan::Weighted(self.cur, value));
        }
        if !seen.product || seen.uses > 0 {
            return None;
        }
        if want.len() == 4 && cur.len() == 3 {
            // Heads first or last.
            let tokens = cur[1];
            let (heads, others) = if want[1] == tokens && want[2] == tokens {
                (want[3], tokens)
            } else if want[2] == tokens {
                (want[1], want[3])
            } else if want[1] == tokens {
                (want[3], want[2])
            } else {
                return None;
            };
            let known = others == tokens
                || self
                    .recent()
                    .take(6)
                    .any(|i| self.seen[i].shape.len() == 3 && self.seen[i].shape[1] == others);
            return (known && heads <= 128 && heads < tokens.max(2)).then_some(Plan::Scores(self.cur));
        }
        if cur.len() < 3 || want.len() < 2 {
            return None;
        }
        let rows = elements(cur) / last.max(1);
        let wanted_rows = elements(want) / width.max(1);
        // torchsummary prints one window for all.
        let whole =
            rows == wanted_rows || rows > wanted_rows && wanted_rows > 0 && rows.is_multiple_of(wanted_rows);
        if last == width.saturating_mul(3) && whole && cur.len() == want.len() {
            return Some(Plan::Attend(self.cur));
        }
        let query = self.recent().take(8).find(|i| {
            let q = &self.seen[*i];
            q.product && q.uses == 0 && q.shape.last() == Some(&width) && q.shape.first() == cur.first()
        });
        if last == width.saturating_mul(2)
            && let Some(query) = query
        {
            return Some(Plan::Cross(query, self.cur));
        }
        if last == width.saturating_mul(2) && rows == wanted_rows {
            return Some(Plan::Part(self.cur));
        }
        None
    }

    /// What a functional pool, interpolation or class token would make of the last tensor.
    fn functional(&self, want: &[u64]) -> Option<(f64, Plan)> {
        let cur = self.shape(self.cur);
        let at = self.cur;
        let channels_first = cur.len() >= 3 && want.len() == cur.len() && cur[..2] == want[..2];
        if channels_first {
            let smaller = cur[2..].iter().zip(&want[2..]).all(|(a, b)| a >= b);
            return Some(if smaller { (4.0, Plan::Pool(at)) } else { (4.5, Plan::Resize(at)) });
        }
        let same_ends = cur.first() == want.first() && cur.last() == want.last();
        if cur.len() == 3 && want.len() == 3 && same_ends {
            let (have, need) = (cur[1], want[1]);
            if need > have && need - have <= 16 {
                return Some((4.0, Plan::Token(at)));
            }
            if have > need && have - need <= 16 {
                return Some((4.0, Plan::Part(at)));
            }
        }
        // A number a channel, in whatever shape (ECA).
        if cur.len() == 4 && want.len() == 3 && elements(want) == cur[0].saturating_mul(cur[1]) {
            return Some((4.0, Plan::Pool(at)));
        }
        // Mean over what is not batch and channel.
        if want.len() == 2 && cur.len() > 2 && cur.first() == want.first() {
            if cur[1] == want[1] || cur.last() == want.last() {
                return Some((4.0, Plan::Pool(at)));
            }
        }
        if want.len() > 2 && cur.len() > 2 && same_ends {
            let smaller = elements(cur) > elements(want);
            return Some(if smaller { (4.5, Plan::Pool(at)) } else { (4.8, Plan::Resize(at)) });
        }
        None
    }

    /// Tensors of which a concatenation along the channels has this shape: those that nothing read,
    /// or the last one and an older one.
    fn cat(&self, want: &[u64]) -> Option<Vec<usize>> {
        if want.len() < 3 {
            return None;
        }
        let fits = |s: &[u64]| s.len() == want.len() && s[0] == want[0] && s[2..] == want[2..];
        let cur = self.shape(self.cur);
        if !fits(cur) || cur[1] >= want[1] {
            return None;
        }
        let mut rest = want[1] - cur[1];
        let mut parts = vec![self.cur];
        for i in self.recent() {
            let seen = &self.seen[i];
            if seen.uses == 0 && fits(&seen.shape) && seen.shape[1] <= rest {
                rest -= seen.shape[1];
                parts.push(i);
                if rest == 0 {
                    parts.reverse();
                    return Some(parts);
                }
            }
        }
        let missing = want[1] - cur[1];
        let older =
            self.recent().find(|i| fits(&self.seen[*i].shape) && self.seen[*i].shape[1] == missing)?;
        Some(vec![older, self.cur])
    }

    /// Carries a plan out; the tensor becomes the last.
    pub(super) fn carry_out(&mut self, name: &str, want: &[u64], plan: &Plan) -> Result<usize, Error> {
        match plan {
            Plan::Use(at) => Ok(*at),
            Plan::View(at) => {
                let have = self.shape(*at);
                // Channels and tokens change places, and the product wants them in a row.
                let turned = have.len() == 3 && want.len() == 3 && have[1] == want[2] && have[2] == want[1];
                let turned = turned && have[1] != have[2];
                let x = self.read(*at);
                let id = if turned {
                    self.b.node(&format!("{name} (transposed)"), Op::Copy, &[x], &[], want, Number::Float)?
                } else {
                    self.b.view(name, x, want)?
                };
                Ok(self.push(id))
            }
            Plan::Part(at) => {
                // A slice shares the storage of the whole. It stays open for the other parts.
                let x = self.seen[*at].id;
                let id = self.b.view(name, x, want)?;
                let open = self.seen[*at].uses;
                self.seen[*at].uses = open + 1;
                Ok(self.push(id))
            }
            Plan::Cat(parts) => {
                let ids: Vec<TensorId> = parts.iter().map(|i| self.read(*i)).collect();
                let id = self.b.node(
                    &format!("{name} (concatenation)"),
                    Op::Cat,
                    &ids,
                    &[],
                    want,
                    Number::Float,
                )?;
                Ok(self.push(id))
            }
            Plan::Attend(at) => {
                let x = self.read(*at);
                let mut out = self.shape(*at).to_vec();
                if let Some(last) = out.last_mut() {
                    *last /= 3;
                }
                self.attend(name, &[x, x, x], &out)
            }
            Plan::Cross(query, at) => {
                let out = self.shape(*query).to_vec();
                let (q, kv) = (self.read(*query), self.read(*at));
                self.attend(name, &[q, kv, kv], &out)
            }
            Plan::Scores(at) => {
                let (shape, x) = (self.shape(*at).to_vec(), self.read(*at));
                let mut square = want.to_vec();
                square[0] = shape[0];
                // The query is scaled; query and key are made contiguous for the product.
                let third: Vec<u64> = vec![shape[0], shape[1], (shape[2] / 3).max(1)];
                let copy = |flow: &mut Self, part: &str| {
                    flow.b.node(&format!("{name} ({part})"), Op::Copy, &[x], &[], &third, Number::Float)
                };
                let (query, key) = (copy(self, "query")?, copy(self, "key")?);
                let id = self.b.node(
                    &format!("{name} (scores)"),
                    Op::MatMul,
                    &[query, key],
                    &[],
                    &square,
                    Number::Float,
                )?;
                self.scores = true;
                Ok(self.push(id))
            }
            Plan::Weighted(at, value) => {
                self.cur = *at;
                self.softmax(name)?;
                let (scores, x) = (self.read(self.cur), self.read(*value));
                let batch = self.shape(*at).first().copied().unwrap_or(1);
                let mut out = want.to_vec();
                out[0] = batch;
                let copied =
                    self.b.node(&format!("{name} (value)"), Op::Copy, &[x], &[], &out, Number::Float)?;
                let id = self.b.node(
                    &format!("{name} (context)"),
                    Op::MatMul,
                    &[scores, copied],
                    &[],
                    &out,
                    Number::Float,
                )?;
                let id =
                    self.b.node(&format!("{name} (heads)"), Op::Copy, &[id], &[], &out, Number::Float)?;
                Ok(self.push(id))
            }
            Plan::Pool(at) => {
                let x = self.read(*at);
                let id =
                    self.b.node(&format!("{name} (pool)"), Op::AvgPool, &[x], &[], want, Number::Float)?;
                Ok(self.push(id))
            }
            Plan::Resize(at) => {
                let x = self.read(*at);
                let id =
                    self.b.node(&format!("{name} (resize)"), Op::Copy, &[x], &[], want, Number::Float)?;
                Ok(self.push(id))
            }
            Plan::Token(at) => {
                // Class token in front, then the positions are added.
                let x = self.read(*at);
                let width = want.last().copied().unwrap_or(1);
                let tokens = want.get(1).copied().unwrap_or(1);
                let have = self.shape(*at).get(1).copied().unwrap_or(0);
                let token =
                    self.b.param(format!("{name}.token"), &[tokens.saturating_sub(have).max(1), width])?;
                let id = self.b.node(
                    &format!("{name} (class token)"),
                    Op::Cat,
                    &[x],
                    &[token],
                    want,
                    Number::Float,
                )?;
                let table = self.b.param(format!("{name}.positions"), &[tokens, width])?;
                let op = Op::Add { inplace: false };
                let id =
                    self.b.node(&format!("{name} (positions)"), op, &[id], &[table], want, Number::Float)?;
                Ok(self.push(id))
            }
            Plan::Unknown(at) => {
                let have = self.shape(*at).to_vec();
                self.doubt(format!("{name}: how {want:?} comes out of {have:?} is not known"));
                let x = self.read(*at);
                let id = self.b.node(name, Op::Unknown, &[x], &[], want, Number::Float)?;
                Ok(self.push(id))
            }
        }
    }

    /// The softmax over scores, where it is a function.
    fn softmax(&mut self, name: &str) -> Result<(), Error> {
        if self.scores {
            self.scores = false;
            let x = self.read(self.cur);
            let id = self.b.like(&format!("{name} (softmax)"), Op::Softmax, &[x])?;
            self.push(id);
        }
        Ok(())
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

    /// The tensor that a layer of this output and input shape reads.
    pub(super) fn obtain(&mut self, name: &str, want: &[u64]) -> Result<usize, Error> {
        // torchsummary prints the batch for every first dimension: windows of the last tensor are told by
        // the number of elements.
        let (cost, plan) = self.plan(want);
        if cost >= 4.0 && want.len() >= 3 {
            let cur = self.shape(self.cur);
            let (size, wanted) = (elements(cur), elements(want));
            let channels = cur.last() == want.last() || cur.len() == 4 && cur.get(1) == want.last();
            if wanted > 0 && size > wanted && size.is_multiple_of(wanted) && channels {
                let mut scaled = want.to_vec();
                scaled[0] = scaled[0].saturating_mul(size / wanted);
                if scaled == cur {
                    return Ok(self.cur);
                }
                // Windows are cut out and made contiguous.
                let x = self.read(self.cur);
                let id =
                    self.b.node(&format!("{name} (windows)"), Op::Copy, &[x], &[], &scaled, Number::Float)?;
                return Ok(self.push(id));
            }
        }
        self.carry_out(name, want, &plan)
    }

    // --- parameters ---

    /// Parameters of a layer: `pieces` are shapes; the rest of the printed number is one more.
    pub(super) fn params(&mut self, row: &Row, pieces: &[(&str, Vec<u64>)]) -> Result<Vec<ParamId>, Error> {
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

    // --- layers ---

    pub(super) fn leaf(&mut self, row: &Row) -> Result<(), Error> {
        self.step += 1;
        if row.role != Role::Identity {
            self.after_norm = matches!(row.role, Role::Norm(_));
            self.after_product = matches!(row.role, Role::Linear | Role::Conv { .. });
            self.after_activation = matches!(row.role, Role::Activation(Keeps::Output));
        }
        match row.role {
            Role::Conv { transposed } => self.conv(row, transposed),
            Role::Linear => self.linear(row),
            Role::MultiHead => self.multi_head(row),
            Role::Embedding => self.embedding(row),
            Role::Recurrent { gates } => self.recurrent(row, gates),
            Role::MaxPool => self.pool(row, Op::MaxPool),
            Role::AvgPool => self.pool(row, Op::AvgPool),
            Role::Identity => {
                self.note_heads(row);
                Ok(())
            }
            Role::Reshape | Role::Move => self.reshape(row),
            Role::Loss => Ok(()),
            Role::Norm(norm) => self.norm(row, norm),
            Role::Activation(keeps) => {
                // Models with known classes work in place, but not on what a shortcut reads as well.
                let shared = self.seen.get(self.cur).is_some_and(|s| s.block_end);
                let result = self.timm && matches!(row.kind.as_str(), "LeakyReLU" | "ELU" | "CELU" | "SELU");
                let keeps = if result { Keeps::Output } else { keeps };
                let inplace = keeps == Keeps::Output && !shared;
                self.elementwise(row, Op::Activation { keeps, inplace })
            }
            Role::Softmax => {
                self.elementwise(row, Op::Softmax)?;
                self.scores = false;
                Ok(())
            }
            Role::Dropout if self.dropout => self.elementwise(row, Op::Dropout { inplace: false }),
            // Dropout of attention is printed only where the scores are written out.
            Role::Dropout => match row.output.as_deref() {
                Some(want) if want.len() == 4 => {
                    if matches!(self.attention(want), Some(Plan::Scores(_))) {
                        self.cur = self.obtain(&row.name, &want.to_vec())?;
                    }
                    self.softmax(&row.name)
                }
                _ => Ok(()),
            },
            Role::DropPath => self.elementwise(row, Op::Copy),
            Role::Scale => self.scale(row),
            Role::Windows => self.windows(row),
            Role::Holder | Role::Block => self.unknown(row),
        }
    }

    /// `[batch, heads, tokens, width]` tells the heads.
    fn note_heads(&mut self, row: &Row) {
        if let Some([_, heads, _, width]) = row.output.as_deref()
            && let Some(last) = self.shape(self.cur).last()
            && heads.checked_mul(*width).is_some_and(|all| all == *last || all.checked_mul(3) == Some(*last))
        {
            self.heads = *heads;
        }
    }

    fn input_of(&mut self, row: &Row, otherwise: Option<&[u64]>) -> Result<usize, Error> {
        match (row.input.as_deref(), otherwise) {
            (Some(want), _) if !want.is_empty() => self.obtain(&row.name, &want.to_vec()),
            (_, Some(want)) => self.obtain(&row.name, &want.to_vec()),
            _ => Ok(self.cur),
        }
    }

    fn elementwise(&mut self, row: &Row, op: Op) -> Result<(), Error> {
        let at = self.input_of(row, row.output.as_deref())?;
        let params = self.params(row, &[])?;
        let x = self.read(at);
        let shape = self.shape(at).to_vec();
        let id = self.b.node(&row.name, op, &[x], &params, &shape, Number::Float)?;
        self.push(id);
        Ok(())
    }

    /// What a block came with, for the first layer of one of its branches side by side.
    fn branch(&self, row: &Row) -> Option<usize> {
        let entry = self.seen.iter().rposition(|s| s.block_end).unwrap_or(0);
        let fits = match (&row.input, &row.output) {
            (Some(want), _) => self.shape(entry) == want,
            (None, Some(out)) => self.shape(entry).len() == out.len(),
            _ => false,
        };
        (row.branch && fits).then_some(entry)
    }

    fn norm(&mut self, row: &Row, norm: Norm) -> Result<(), Error> {
        let at = match self.branch(row).filter(|at| Some(self.shape(*at)) == row.output.as_deref()) {
            Some(at) => at,
            None => self.input_of(row, row.output.as_deref())?,
        };
        let features = if row.params > 0 && row.params.is_multiple_of(2) && norm != Norm::Rms {
            row.params / 2
        } else {
            row.params
        };
        let mut params = self.params(row, &[("weight", vec![features]), ("bias", vec![features])])?;
        if norm == Norm::Batch && !row.recursive {
            let channels = self.shape(at).get(1).copied().unwrap_or(features).max(1);
            params.push(self.b.buffer(format!("{}.running_mean", row.name), &[channels])?);
            params.push(self.b.buffer(format!("{}.running_var", row.name), &[channels])?);
            params.push(self.b.buffer(format!("{}.num_batches_tracked", row.name), &[2])?);
        }
        let x = self.read(at);
        let shape = self.shape(at).to_vec();
        let id = self.b.node(&row.name, Op::Norm(norm), &[x], &params, &shape, Number::Float)?;
        self.push(id);
        Ok(())
    }

    /// A factor a channel: the product keeps its input, since the factor is trained.
    fn scale(&mut self, row: &Row) -> Result<(), Error> {
        let at = self.input_of(row, row.output.as_deref())?;
        let params = if row.params > 0 {
            self.params(row, &[])?
        } else {
            // torchsummary counts only parameters that are called weight or bias.
            let channels = self.shape(at).last().copied().unwrap_or(1).max(1);
            vec![self.b.param(format!("{}.gamma", row.name), &[channels])?]
        };
        let x = self.read(at);
        let shape = self.shape(at).to_vec();
        let id = self.b.node(&row.name, Op::Mul, &[x], &params, &shape, Number::Float)?;
        self.push(id);
        Ok(())
    }

    fn pool(&mut self, row: &Row, op: Op) -> Result<(), Error> {
        let Some(out) = row.output.clone() else { return self.unknown(row) };
        let at = match row.input.as_deref() {
            Some(want) => self.obtain(&row.name, &want.to_vec())?,
            None => self.poolable(&out),
        };
        let x = self.read(at);
        // Pools of windows: the batch of the input.
        let mut shape = out;
        if let (Some(first), Some(real)) = (shape.first_mut(), self.shape(at).first()) {
            *first = *real;
        }
        let params = self.params(row, &[])?;
        let id = self.b.node(&row.name, op, &[x], &params, &shape, Number::Float)?;
        self.push(id);
        Ok(())
    }

    /// The last tensor if it has the channels, else the newest that has them and is large enough.
    fn poolable(&self, out: &[u64]) -> usize {
        let fits = |s: &[u64]| {
            let same = s.len() == out.len() && s.len() >= 2 && s[1] == out[1];
            same && s.iter().zip(out).skip(2).all(|(a, b)| a >= b)
        };
        if fits(self.shape(self.cur)) {
            return self.cur;
        }
        self.recent().find(|i| fits(&self.seen[*i].shape)).unwrap_or(self.cur)
    }

    fn reshape(&mut self, row: &Row) -> Result<(), Error> {
        let Some(out) = row.output.clone() else { return Ok(()) };
        if let Some(want) = row.input.as_deref() {
            self.cur = self.obtain(&row.name, &want.to_vec())?;
        }
        let cur = self.shape(self.cur);
        if cur == out {
            return Ok(());
        }
        let x = self.read(self.cur);
        let same = elements(self.shape(self.cur)) == elements(&out);
        let id = if same && row.role == Role::Reshape {
            self.b.view(&row.name, x, &out)?
        } else {
            self.b.node(&row.name, Op::Copy, &[x], &[], &out, Number::Float)?
        };
        self.push(id);
        Ok(())
    }

    fn conv(&mut self, row: &Row, transposed: bool) -> Result<(), Error> {
        let Some(out) = row.output.clone().filter(|out| out.len() >= 3) else { return self.unknown(row) };
        let outer = out[1].max(1);
        let branch = self.branch(row);
        let at = match (branch, row.input.as_deref()) {
            (Some(at), _) => at,
            (None, Some(want)) => self.obtain(&row.name, &want.to_vec())?,
            (None, None) => self.conv_input(row, &out, transposed)?,
        };
        let inner = self.shape(at).get(1).copied().unwrap_or(1);
        let fit = self.fit(row, at, &out, transposed).map(|(fit, _)| fit);
        let at = if row.pooled && at != self.cur && fit.is_some_and(|f| f.area == 1) {
            // Inception pools what it reads in the last branch, by a function.
            let shape = self.shape(at).to_vec();
            let x = self.read(at);
            let id = self.b.node(
                &format!("{} (pool)", row.name),
                Op::AvgPool,
                &[x],
                &[],
                &shape,
                Number::Float,
            )?;
            self.push(id)
        } else {
            at
        };
        let groups = row.groups.or(fit.map(|f| f.groups)).unwrap_or(1).max(1);
        let bias = fit.is_some_and(|f| f.bias);
        let weights = row.params.saturating_sub(if bias { outer } else { 0 });
        let per = (inner / groups).max(1);
        let weight = if weights.is_multiple_of(outer * per) {
            vec![outer, per, weights / (outer * per)]
        } else {
            vec![weights]
        };
        let params = self.params(row, &[("weight", weight), ("bias", vec![outer])])?;
        let x = self.read(at);
        let mut shape = out;
        if let (Some(first), Some(real)) = (shape.first_mut(), self.shape(at).first()) {
            *first = *real;
        }
        let id = self.b.node(&row.name, Op::Conv { groups }, &[x], &params, &shape, Number::Float)?;
        let at = self.push(id);
        self.seen[at].product = true;
        Ok(())
    }

    /// How well a tensor fits as input of a convolution; the second cost is that of its sides.
    fn fit(&self, row: &Row, at: usize, out: &[u64], transposed: bool) -> Option<(Fit, f64)> {
        let shape = self.shape(at);
        if shape.len() != out.len() || shape.len() < 3 {
            return None;
        }
        let (weights, small) = (row.weights(out[1]), shape[2..].iter().all(|d| *d == 1));
        // A kernel over a single cell has one.
        let single = if small { fit::pointwise(shape[1], out[1], weights) } else { None };
        let fit = single.or_else(|| fit::channels(shape[1], out[1], weights, true))?;
        let mut cost = 0.0;
        for (inner, outer) in shape[2..].iter().zip(&out[2..]) {
            cost += if transposed {
                if outer >= inner { 0.0 } else { return None }
            } else {
                fit::side(*inner, *outer, fit.area)?
            };
        }
        Some((fit, cost))
    }

    fn conv_input(&mut self, row: &Row, out: &[u64], transposed: bool) -> Result<usize, Error> {
        let mut best: Option<(f64, usize)> = None;
        let mut offer = |cost: f64, at: usize| {
            if best.is_none_or(|(c, _)| cost < c) {
                best = Some((cost, at));
            }
        };
        if let Some((fit, sides)) = self.fit(row, self.cur, out, transposed) {
            offer(fit.cost + sides, self.cur);
            // No other would be better.
            if fit.cost + sides <= 0.5 {
                return Ok(self.cur);
            }
        }
        if let Some(map) = self.as_map(row, out) {
            return self.carry_out(&row.name, &map, &Plan::View(self.cur));
        }
        if self.seen[self.cur].halves
            && let Some(half) = self.half_of(row, out)
        {
            return self.carry_out(&row.name, &half, &Plan::Part(self.cur));
        }
        for (distance, at) in self.recent().enumerate() {
            if let Some((fit, sides)) = self.fit(row, at, out, transposed) {
                let open = match &self.seen[at] {
                    seen if seen.block_end => -0.1,
                    seen if seen.uses == 0 => 0.0,
                    _ => 0.1,
                };
                offer(fit.cost + sides + 0.5 + open + distance as f64 * 0.005, at);
            }
        }
        if let Some((cost, at)) = best
            && cost < 3.5
        {
            return Ok(at);
        }
        // Functional operators in between: a mean (squeeze and excitation), a concatenation, a chunk.
        for want in self.conv_wants(row, out) {
            let (cost, plan) = self.plan(&want);
            if cost < 5.0 {
                return self.carry_out(&row.name, &want, &plan);
            }
        }
        if let Some((_, at)) = best {
            return Ok(at);
        }
        let shape = self.shape(self.cur).to_vec();
        self.doubt(format!("{}: {} weights do not fit an input {shape:?}", row.name, row.params));
        Ok(self.cur)
    }

    /// Tokens or a map with the channels last, as the map that a convolution to `out` reads.
    fn as_map(&self, row: &Row, out: &[u64]) -> Option<Dims> {
        let cur = self.shape(self.cur);
        if out.len() != 4 || cur.len() < 3 {
            return None;
        }
        let channels = *cur.last()?;
        let fit = fit::channels(channels, out[1], row.params, true)?;
        if fit.cost > 1.0 {
            return None;
        }
        if cur.len() == 4 {
            let same = cur[0] == out[0] && fit::side(cur[1], out[2], fit.area)? < 1.0;
            return same.then(|| vec![cur[0], channels, cur[1], cur[2]]);
        }
        // Windows of the same map count as well.
        let cells = elements(cur) / out[0].max(1) / channels.max(1);
        let cells = if elements(cur) == out[0].saturating_mul(channels).saturating_mul(cells) {
            cells
        } else {
            return None;
        };
        (1..=32).find_map(|stride| {
            let (h, w) = (out[2].checked_mul(stride)?, out[3].checked_mul(stride)?);
            (h.checked_mul(w)? == cells).then(|| vec![out[0], channels, h, w])
        })
    }

    /// The shape of half of the last tensor's channels, if that fits.
    fn half_of(&self, row: &Row, out: &[u64]) -> Option<Dims> {
        let mut half = self.shape(self.cur).to_vec();
        *half.get_mut(1)? /= 2;
        let fit = fit::channels(half[1], *out.get(1)?, row.params, true)?;
        (fit.cost < 0.5).then_some(half)
    }

    /// Shapes of inputs that would fit, likeliest first.
    fn conv_wants(&self, row: &Row, out: &[u64]) -> Vec<Dims> {
        let outer = out.get(1).copied().unwrap_or(1).max(1);
        let mut wants = Vec::new();
        let cur = self.shape(self.cur);
        let mut sides: Vec<Vec<u64>> = Vec::new();
        if out.iter().skip(2).all(|d| *d == 1) {
            sides.push(out[2..].to_vec());
        }
        if cur.len() == out.len() {
            sides.push(cur[2..].to_vec());
        }
        sides.push(out[2.min(out.len())..].to_vec());
        sides.push(out[2.min(out.len())..].iter().map(|d| d.saturating_mul(2)).collect());
        for side in sides {
            let areas: &[u64] = if out.len() == 3 { &[1, 3, 5, 7, 9] } else { &[1, 9, 25, 49] };
            for area in areas.iter().copied() {
                for bias in [0, outer] {
                    let weights = row.params.saturating_sub(bias);
                    if weights > 0 && weights.is_multiple_of(outer * area) {
                        let inner = weights / outer / area;
                        if inner > 1 || area == 1 || out.len() == 3 {
                            let mut want = vec![out[0], inner];
                            want.extend(&side);
                            wants.push(want);
                        }
                    }
                }
            }
            // Depthwise over a chunk.
            let mut want = vec![out[0], outer];
            want.extend(&side);
            wants.push(want);
        }
        wants
    }

    fn linear(&mut self, row: &Row) -> Result<(), Error> {
        let Some(out) = row.output.clone() else { return self.unknown(row) };
        let width = out.last().copied().unwrap_or(1).max(1);
        if row.attends && self.shape(self.cur) == out {
            // BEiT multiplies by the weights of query, key and value in a function.
            let x = self.read(self.cur);
            let mut wide = out.clone();
            wide[out.len() - 1] = width.saturating_mul(3);
            let weight = self.b.param(format!("{}.qkv", row.name), &[width.saturating_mul(3), width])?;
            let qkv = self.b.node(
                &format!("{} (qkv)", row.name),
                Op::Linear,
                &[x],
                &[weight],
                &wide,
                Number::Float,
            )?;
            self.attend(&row.name, &[qkv, qkv, qkv], &out)?;
        }
        let at = match row.input.as_deref() {
            Some(want) => self.obtain(&row.name, &want.to_vec())?,
            None => {
                let mut best: Option<(f64, Dims)> = None;
                for inner in [row.params.saturating_sub(width) / width, row.params / width] {
                    if inner == 0 || !(row.params % width == 0) {
                        continue;
                    }
                    let mut want = out.clone();
                    if let Some(last) = want.last_mut() {
                        *last = inner;
                    }
                    let (cost, _) = self.plan(&want);
                    if best.as_ref().is_none_or(|(c, _)| cost < *c) {
                        best = Some((cost, want));
                    }
                }
                match best {
                    Some((_, want)) => self.obtain(&row.name, &want)?,
                    None => self.cur,
                }
            }
        };
        let at = self.separate(row, at)?;
        let inner = self.shape(at).last().copied().unwrap_or(1);
        let params = self.params(row, &[("weight", vec![width, inner]), ("bias", vec![width])])?;
        let x = self.read(at);
        let mut shape = self.shape(at).to_vec();
        if let Some(last) = shape.last_mut() {
            *last = width;
        }
        let id = self.b.node(&row.name, Op::Linear, &[x], &params, &shape, Number::Float)?;
        let at = self.push(id);
        self.seen[at].product = true;
        Ok(())
    }

    /// Query, key and value as three products that nobody read: the next linear layer reads what attention
    /// makes of them.
    fn separate(&mut self, row: &Row, at: usize) -> Result<usize, Error> {
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

    fn multi_head(&mut self, row: &Row) -> Result<(), Error> {
        let Some(out) = row.output.clone() else { return self.unknown(row) };
        let at = self.input_of(row, Some(&out))?;
        let width = out.last().copied().unwrap_or(1);
        // torchsummary does not count the projections (they are not called weight).
        let counted = Row {
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
    fn windows(&mut self, row: &Row) -> Result<(), Error> {
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
        let counted = Row { params: row.params.max(all), ..row.clone() };
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

    fn embedding(&mut self, row: &Row) -> Result<(), Error> {
        let Some(out) = row.output.clone() else { return self.unknown(row) };
        let width = out.last().copied().unwrap_or(1).max(1);
        let ids_shape = &out[..out.len().saturating_sub(1)];
        let ids = self.b.input(&format!("{}.ids", row.name), ids_shape, Number::Int64)?;
        let params = self.params(row, &[("weight", vec![row.params / width, width])])?;
        let id = self.b.node(&row.name, Op::Embedding, &[ids], &params, &out, Number::Float)?;
        self.push(id);
        Ok(())
    }

    fn recurrent(&mut self, row: &Row, gates: u64) -> Result<(), Error> {
        let Some(out) = row.output.clone() else { return self.unknown(row) };
        let at = self.input_of(row, None)?;
        let hidden = out.last().copied().unwrap_or(1).max(1);
        let inner = self.shape(at).last().copied().unwrap_or(1);
        let one = gates
            .saturating_mul(hidden)
            .saturating_mul(inner.saturating_add(hidden).saturating_add(2))
            .max(1);
        let layers = (row.params / one).max(1);
        let params = self.params(row, &[])?;
        let x = self.read(at);
        let op = Op::Recurrent { gates, hidden, layers };
        let id = self.b.node(&row.name, op, &[x], &params, &out, Number::Float)?;
        self.push(id);
        Ok(())
    }

    /// Layers inside that are not printed: as many unknown ones as make their numbers.
    fn inside(&mut self, row: &Row, out: &[u64]) -> Result<(), Error> {
        let Some(hidden) = row.hidden else { return Ok(()) };
        let batch = self.task.batch_size.max(1);
        let own = elements(out) / batch;
        let rest = hidden.saturating_sub(own);
        let large = own.max(elements(self.shape(self.cur)) / batch).max(1);
        let count = rest.div_ceil(large).min(MAX_INSIDE);
        for i in 0..count {
            let x = self.read(self.cur);
            let shape = [batch, rest / count];
            let id =
                self.b.node(&format!("{}/{i}", row.name), Op::Unknown, &[x], &[], &shape, Number::Float)?;
            self.push(id);
        }
        Ok(())
    }

    /// A layer of which nothing is known: it keeps what it reads and what it makes.
    pub(super) fn unknown(&mut self, row: &Row) -> Result<(), Error> {
        let out = row.output.clone().unwrap_or_else(|| self.shape(self.cur).to_vec());
        if self.seen.is_empty() {
            let id = self.b.input("input", &out, Number::Float)?;
            self.push(id);
        }
        if row.output.is_some()
            && row.kind.contains("Pool")
            && row.params == 0
            && out.len() == self.shape(self.cur).len()
            && out.len() > 2
        {
            return self.pool(row, Op::AvgPool);
        }
        if row.params == 0 && out == self.shape(self.cur) {
            self.doubt(format!("{}: {} is not known; taken for nothing", row.name, row.kind));
            return Ok(());
        }
        self.doubt(format!("{}: {} is not known", row.name, row.kind));
        if let Some(want) = row.input.as_deref()
            && want != self.shape(self.cur)
            && let (cost, Plan::Use(at)) = self.plan(want)
            && cost < 3.0
        {
            self.cur = at;
        }
        self.inside(row, &out)?;
        let params = self.params(row, &[])?;
        let x = self.read(self.cur);
        let id = self.b.node(&row.name, Op::Unknown, &[x], &params, &out, Number::Float)?;
        self.push(id);
        Ok(())
    }

    /// The loss, unless the task only infers.
    pub(super) fn loss(&mut self, outputs: &[usize]) -> Result<Vec<TensorId>, Error> {
        let mut returned = Vec::new();
        for at in outputs {
            let x = self.read(*at);
            let shape = self.shape(*at).to_vec();
            returned.push(x);
            if self.task.mode == Mode::Infer {
                continue;
            }
            let classes = shape.get(1).copied().unwrap_or(1);
            if shape.len() < 2 || classes <= 1 {
                let labels = self.b.input("targets", &shape, Number::Float32)?;
                self.b.node("loss", Op::Loss, &[x, labels], &[], &[], Number::Float32)?;
                continue;
            }
            // Over the classes, which stand second in maps: the log-softmax has the same size.
            let mut label_shape = shape.clone();
            let logits = if shape.len() > 2 {
                label_shape.remove(1);
                let mut last = label_shape.clone();
                last.push(classes);
                self.b.view("logits", x, &last)?
            } else {
                label_shape.pop();
                x
            };
            let labels = self.b.input("labels", &label_shape, Number::Int64)?;
            self.b.node("loss", Op::CrossEntropy, &[logits, labels], &[], &[], Number::Float32)?;
        }
        Ok(returned)
    }
}

pub(super) fn elements(shape: &[u64]) -> u64 {
    shape.iter().fold(1_u64, |n, d| n.saturating_mul(*d))
}

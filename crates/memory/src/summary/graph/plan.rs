//! How a wanted input comes about: what a layer reads, or what functions in between made of it.

use super::flow::{Flow, elements};
use crate::Error;
use crate::graph::{Number, Op, TensorId};

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
    /// Made as large as an older one and put beside it (U-Net).
    Joined(usize, usize),
    /// Tokens are put in front.
    Token(usize),
    Unknown(usize),
}

impl Flow<'_> {
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
        if let Some(skip) = self.skip_of(want) {
            return (3.4, Plan::Joined(self.cur, skip));
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

    /// What attention makes of the last tensor, where that is a product no layer read yet: query, key and
    /// value side by side, key and value after a query, scores written out, scores over values.
    pub(super) fn attention(&self, want: &[u64]) -> Option<Plan> {
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

    /// The older map that makes up the channels of a larger one (U-Net's skip).
    fn skip_of(&self, want: &[u64]) -> Option<usize> {
        let cur = self.shape(self.cur);
        if cur.len() != 4 || want.len() != 4 || cur[1] >= want[1] || cur[2] >= want[2] || cur[3] >= want[3] {
            return None;
        }
        let missing = want[1] - cur[1];
        self.recent().find(|i| {
            let s = self.shape(*i);
            s.len() == 4 && s[1] == missing && s[0] == want[0] && s[2..] == want[2..]
        })
    }

    /// What a functional pool, interpolation or class token would make of the last tensor.
    pub(super) fn functional(&self, want: &[u64]) -> Option<(f64, Plan)> {
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
        if want.len() == 2
            && cur.len() > 2
            && cur.first() == want.first()
            && (cur[1] == want[1] || cur.last() == want.last())
        {
            return Some((4.0, Plan::Pool(at)));
        }
        if want.len() > 2 && cur.len() > 2 && same_ends {
            let smaller = elements(cur) > elements(want);
            return Some(if smaller { (4.5, Plan::Pool(at)) } else { (4.8, Plan::Resize(at)) });
        }
        None
    }

    /// Tensors of which a concatenation along the channels has this shape: those that nothing read,
    /// or the last one and an older one.
    pub(super) fn cat(&self, want: &[u64]) -> Option<Vec<usize>> {
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
            Plan::Joined(at, skip) => {
                let mut large = want.to_vec();
                if let (Some(to), Some(from)) = (large.get_mut(1), self.shape(*at).get(1)) {
                    *to = *from;
                }
                let (x, y) = (self.read(*at), self.read(*skip));
                let x =
                    self.b.node(&format!("{name} (resize)"), Op::Copy, &[x], &[], &large, Number::Float)?;
                let name = format!("{name} (concatenation)");
                let id = self.b.node(&name, Op::Cat, &[x, y], &[], want, Number::Float)?;
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
}

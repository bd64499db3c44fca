//! Attention, from projected query, key and value to what the output matrix takes.

use super::Family;
use super::maker::{Made, Maker};
use crate::graph::{Number, Op, TensorId};
use crate::{Error, Precision};

/// How one attention differs from another.
#[derive(Clone, Copy, Default)]
pub(super) struct How {
    /// An additive mask, with a bias by position in it where a fused kernel takes both as one.
    pub(super) mask: Option<TensorId>,
    /// A bias by position that is added before the mask where the attention is written out.
    pub(super) bias: Option<TensorId>,
    /// Each token sees those before it.
    pub(super) causal: bool,
    /// Softmax in 32 bits and a cast back (Llama and its kin).
    pub(super) upcast: bool,
    /// Key and value are views of matrices, as is the query: products copy them first. Keys and values
    /// from a cache lie in order.
    pub(super) views: bool,
    /// Dropout on the probabilities.
    pub(super) dropout: bool,
    /// Scores are scaled after the product (else the query was, or a fused kernel does it).
    pub(super) scaled: bool,
    /// No fused kernel takes the mask: `scaled_dot_product_attention` falls back to its own mathematics.
    pub(super) fallback: bool,
}

/// Largest head that fused kernels take (`sdpa_attention.py`).
const FUSED_HEAD: u64 = 256;

impl Maker<'_> {
    /// `[batch, tokens, heads * d]` seen as `[batch, heads, tokens, d]`.
    pub(super) fn split(&mut self, x: TensorId, heads: u64, d: u64) -> Made {
        let (batch, seq) = (self.batch, self.b.shape(x).get(1).copied().unwrap_or(1));
        self.b.view("heads", x, &[batch, heads, seq, d])
    }

    /// Rotary positions: `x cos + cat(-x2, x1) sin` over the first `turned` numbers of a head.
    pub(super) fn rotate(&mut self, x: TensorId, turned: u64) -> Made {
        let mut shape = self.b.shape(x).to_vec();
        let d = shape.last().copied().unwrap_or(0);
        let (whole, number) = (shape.clone(), self.mixed());
        let set = |shape: &mut Vec<u64>, n: u64| {
            if let Some(last) = shape.last_mut() {
                *last = n;
            }
        };
        set(&mut shape, turned);
        let part = if turned < d { self.b.view("rotary_part", x, &shape)? } else { x };
        let nothing = Op::Activation { keeps: crate::graph::Keeps::Nothing, inplace: false };
        let mut half = shape.clone();
        set(&mut half, turned / 2);
        let cos = self.b.node("rotary_cos", nothing.clone(), &[part], &[], &shape, number)?;
        let negative = self.b.view("rotary_half", part, &half)?;
        let negative = self.scale("rotary_negative", negative)?;
        let other = self.b.view("rotary_half", part, &half)?;
        let turned_over =
            self.b.node("rotary_cat", Op::Cat, &[negative, other], &[], &shape, Number::Float)?;
        let sin = self.b.node("rotary_sin", nothing, &[turned_over], &[], &shape, number)?;
        let sum = self.b.node("rotary_sum", Op::Add { inplace: false }, &[cos, sin], &[], &shape, number)?;
        if turned == d && !(self.c.fused && self.c.family == Family::Llama) {
            return Ok(sum);
        }
        // What was not turned is put behind; Phi-3 does so even when nothing is left.
        let inputs = if turned < d {
            set(&mut shape, d - turned);
            let rest = self.b.view("rotary_rest", x, &shape)?;
            vec![sum, rest]
        } else {
            vec![sum]
        };
        self.b.node("rotary_join", Op::Cat, &inputs, &[], &whole, number)
    }

    /// Keys or values go through the cache, which copies them (`DynamicCache`: a concatenation with
    /// nothing), and the holder of the model's output keeps them.
    pub(super) fn remember(&mut self, x: TensorId, number: Number) -> Made {
        if !self.caches() {
            return Ok(x);
        }
        let shape = self.b.shape(x).to_vec();
        let kept = self.b.node("cache", Op::Cat, &[x], &[], &shape, number)?;
        self.kept.push(kept);
        Ok(kept)
    }

    /// Attention over `[batch, heads, tokens, d]`: what the output matrix takes, `[batch, tokens, heads * d]`.
    pub(super) fn attend(&mut self, q: TensorId, k: TensorId, v: TensorId, how: How) -> Made {
        let [batch, heads, seq, d] = self.four(q);
        let [_, kv_heads, keys, _] = self.four(k);
        let grouped = kv_heads != heads;
        // In 32 bits no fused kernel takes fewer heads of keys than of queries (PyTorch's `sdp_utils.cpp`).
        let ungrouped = grouped && how.mask.is_none() && !self.half() && d <= FUSED_HEAD;
        let made = if self.eager() {
            self.written_out(q, k, v, how)?
        } else if how.fallback || ungrouped {
            self.math(q, k, v, how)?
        } else {
            let (mut k, mut v) = (k, v);
            // With a mask transformers repeats keys and values, since no kernel takes both.
            if grouped && (how.mask.is_some() || d > FUSED_HEAD) {
                let shape = [batch, heads, keys, d];
                k = self.b.node("repeat_k", Op::Copy, &[k], &[], &shape, Number::Float)?;
                v = self.b.node("repeat_v", Op::Copy, &[v], &[], &shape, Number::Float)?;
            }
            let mut inputs = vec![q, k, v];
            inputs.extend(how.mask);
            let dropout = how.dropout && self.training();
            let op = Op::Attention { heads, dropout, mask: how.mask.is_some() };
            self.b.node("attention", op, &inputs, &[], &[batch, heads, seq, d], Number::Float)?
        };
        self.b.view("merge_heads", made, &[batch, seq, heads * d])
    }

    pub(super) fn four(&self, x: TensorId) -> [u64; 4] {
        let shape = self.b.shape(x);
        std::array::from_fn(|i| shape.get(i).copied().unwrap_or(1))
    }

    /// A product over heads needs its operands in order: views of a projection are copied, unless there is
    /// one sample only, where the view is in order by itself.
    pub(super) fn in_order(&mut self, x: TensorId) -> Made {
        if self.b.shape(x).first().is_some_and(|batch| *batch > 1) {
            return self.b.like("contiguous", Op::Copy, &[x]);
        }
        Ok(x)
    }

    fn written_out(&mut self, q: TensorId, k: TensorId, v: TensorId, how: How) -> Result<TensorId, Error> {
        let [batch, heads, seq, d] = self.four(q);
        let [_, kv_heads, keys, _] = self.four(k);
        let (mut k, mut v, mut views) = (k, v, how.views);
        if kv_heads != heads {
            let shape = [batch, heads, keys, d];
            k = self.b.node("repeat_k", Op::Copy, &[k], &[], &shape, Number::Float)?;
            v = self.b.node("repeat_v", Op::Copy, &[v], &[], &shape, Number::Float)?;
            views = false;
        }
        let q = self.in_order(q)?;
        if views {
            k = self.in_order(k)?;
        }
        let shape = [batch, heads, seq, keys];
        let mut scores = self.b.node("scores", Op::MatMul, &[q, k], &[], &shape, Number::Float)?;
        // GPT-Neo does not scale, but fills in what must not be seen: a new matrix as well.
        if how.scaled {
            scores = self.scale("scores_scaled", scores)?;
        }
        if self.c.scores_softcap {
            scores = self.squash(scores)?;
        }
        for added in [how.bias, how.mask].into_iter().flatten() {
            scores = self.add("scores_masked", scores, added)?;
        }
        let pure = matches!(self.task.precision, Precision::Bf16 | Precision::Fp16);
        let mut chances = if how.upcast && pure {
            let wide = self.b.node("softmax", Op::Softmax, &[scores], &[], &shape, Number::Float32)?;
            self.b.node("softmax_cast", Op::Copy, &[wide], &[], &shape, Number::Float)?
        } else {
            self.b.like("softmax", Op::Softmax, &[scores])?
        };
        chances = self.dropout(how.dropout, chances)?;
        if views {
            v = self.in_order(v)?;
        }
        let out = self.b.node(
            "weighted",
            Op::MatMul,
            &[chances, v],
            &[],
            &[batch, heads, seq, d],
            Number::Float,
        )?;
        self.b.like("contiguous", Op::Copy, &[out])
    }

    /// What `scaled_dot_product_attention` falls back to, without a word, where no fused kernel fits: its own
    /// mathematics, in 32 bits throughout (PyTorch's `attention.cpp`).
    fn math(&mut self, q: TensorId, k: TensorId, v: TensorId, how: How) -> Result<TensorId, Error> {
        let [batch, heads, seq, d] = self.four(q);
        let [_, kv_heads, keys, _] = self.four(k);
        let (mut q, mut k, mut v) = (q, k, v);
        let mask = match how.mask {
            None if how.causal => Some(self.mask(&[seq, keys])?),
            given => given,
        };
        if self.half() {
            for x in [&mut q, &mut k, &mut v] {
                let shape = self.b.shape(*x).to_vec();
                *x = self.b.node("widened", Op::Copy, &[*x], &[], &shape, Number::Float32)?;
            }
        }
        let wide = if self.half() { Number::Float32 } else { Number::Float };
        if kv_heads != heads {
            let shape = [batch, heads, keys, d];
            k = self.b.node("repeat_k", Op::Copy, &[k], &[], &shape, wide)?;
            v = self.b.node("repeat_v", Op::Copy, &[v], &[], &shape, wide)?;
        }
        let q = self.scale("query_scaled", q)?;
        let k = self.scale("key_scaled", k)?;
        let q = self.in_order(q)?;
        let square = [batch, heads, seq, keys];
        let mut scores = self.b.node("scores", Op::MatMul, &[q, k], &[], &square, wide)?;
        if let Some(mask) = mask {
            scores = self.add("scores_masked", scores, mask)?;
        }
        let chances = self.b.like("softmax", Op::Softmax, &[scores])?;
        let chances = self.dropout(how.dropout, chances)?;
        let shape = [batch, heads, seq, d];
        let mut out = self.b.node("weighted", Op::MatMul, &[chances, v], &[], &shape, wide)?;
        if self.half() {
            out = self.b.node("narrowed", Op::Copy, &[out], &[], &shape, Number::Float)?;
        }
        self.b.like("contiguous", Op::Copy, &[out])
    }
}

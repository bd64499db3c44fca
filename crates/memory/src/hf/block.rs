//! Layers of encoders and decoders that differ in few things: self-attention, MLP, norms, sums.

use super::attention::How;
use super::maker::{Made, Maker};
use super::names::{self, Names};
use super::{Act, Family};
use crate::Error;
use crate::graph::{Keeps, Number, Op, TensorId};

impl Maker<'_> {
    pub(super) fn names(&self) -> Names {
        names::of(self.c.family, self.c.fused)
    }

    /// Query, key and value `[batch, heads, tokens, d]`, by one matrix or by three, turned by rotary positions
    /// and passed through the cache.
    pub(super) fn project(&mut self, at: &str, x: TensorId) -> Result<[TensorId; 3], Error> {
        let (c, n) = (self.c, self.names());
        let d = c.head_dim;
        let (wide, narrow) = (c.heads * d, c.kv_heads * d);
        let [mut q, mut k, v] = if n.k.is_empty() {
            let all = self.linear(&format!("{at}.{}", n.q), x, wide + 2 * narrow, c.qkv_bias)?;
            let shape = |heads| [self.batch, heads, self.seq, d];
            let (q, kv) = (shape(c.heads), shape(c.kv_heads));
            exactly(self.b.parts("qkv", all, &[&q, &kv, &kv])?)?
        } else {
            let q = self.linear(&format!("{at}.{}", n.q), x, wide, c.qkv_bias)?;
            let q = self.head_norm(&format!("{at}.q_norm"), q, c.heads)?;
            // OPT scales the query before it is split.
            let q = if c.family == Family::Opt { self.scale("query_scaled", q)? } else { q };
            let q = self.split(q, c.heads, d)?;
            let k = self.linear(&format!("{at}.{}", n.k), x, narrow, c.qkv_bias)?;
            let k = self.head_norm(&format!("{at}.k_norm"), k, c.kv_heads)?;
            let v = self.linear(&format!("{at}.{}", n.v), x, narrow, c.qkv_bias)?;
            let k = self.split(k, c.kv_heads, d)?;
            [q, k, self.split(v, c.kv_heads, d)?]
        };
        let mut turned = Number::Float;
        if c.rotary > 0 {
            q = self.rotate(q, c.rotary)?;
            k = self.rotate(k, c.rotary)?;
            turned = self.mixed();
        }
        // The cache has one type for both, that of the keys.
        Ok([q, self.remember(k, turned)?, self.remember(v, turned)?])
    }

    /// Norm of each head's query or key; OLMo 2 takes all heads at once.
    fn head_norm(&mut self, name: &str, x: TensorId, heads: u64) -> Made {
        if !self.c.qk_norm {
            return Ok(x);
        }
        if self.c.model_type.starts_with("olmo") {
            return self.norm(name, x);
        }
        let (batch, seq) = (self.batch, self.seq);
        let x = self.b.view("heads", x, &[batch, seq, heads, self.c.head_dim])?;
        self.norm(name, x)
    }

    /// Self-attention with its output matrix.
    pub(super) fn self_attention(&mut self, at: &str, x: TensorId, how: How) -> Made {
        let [q, k, v] = self.project(at, x)?;
        let views = how.views && !self.caches();
        let y = self.attend(q, k, v, How { views, dropout: self.c.dropout.attention, ..how })?;
        let (hidden, bias) = (self.c.hidden, self.c.out_bias);
        let y = self.linear(&format!("{at}.{}", self.names().out), y, hidden, bias)?;
        // Variables of `forward`: they go when it returns.
        self.until(y, &[q, k, v, x])
    }

    /// The MLP, gated or not.
    pub(super) fn mlp(&mut self, at: &str, x: TensorId, width: u64) -> Made {
        let (c, n) = (self.c, self.names());
        let up = format!("{at}.{}", n.up);
        let y = if c.gated && c.fused {
            let both = self.linear(&up, x, 2 * width, c.mlp_bias)?;
            let mut shape = self.b.shape(both).to_vec();
            if let Some(last) = shape.last_mut() {
                *last = width;
            }
            let [gate, up] = exactly(self.b.parts("gate_up", both, &[&shape, &shape])?)?;
            let gate = self.act(c.act, gate)?;
            self.multiply("gated", up, gate)?
        } else if c.gated {
            let gate = self.linear(&format!("{at}.{}", n.gate), x, width, c.mlp_bias)?;
            let gate = self.act(c.act, gate)?;
            let up = self.linear(&up, x, width, c.mlp_bias)?;
            self.multiply("gated", gate, up)?
        } else {
            let y = self.linear(&up, x, width, c.mlp_bias)?;
            self.act(c.act, y)?
        };
        let y = self.dropout(c.dropout.activation, y)?;
        let y = self.linear(&format!("{at}.{}", n.down), y, c.hidden, c.mlp_bias)?;
        self.until(y, &[x])
    }

    /// The MLP of a layer, or its experts.
    pub(super) fn feed_forward(&mut self, at: &str, layer: u64, x: TensorId) -> Made {
        match self.c.experts {
            Some(experts) if layer >= experts.dense_layers => self.experts(at, x),
            _ => self.mlp(at, x, self.c.intermediate),
        }
    }

    /// A mixture of experts: each token's state is copied once for each expert that it goes to; all experts'
    /// weights lie in two tensors.
    fn experts(&mut self, at: &str, x: TensorId) -> Made {
        let c = self.c;
        let Some(e) = c.experts else { return Ok(x) };
        let chances = self.linear(&format!("{at}.gate"), x, e.count, false)?;
        let shape = self.b.shape(chances).to_vec();
        let chances = self.b.node("router_softmax", Op::Softmax, &[chances], &[], &shape, Number::Float32)?;
        let rows = self.batch * self.seq * e.per_token;
        let weights = self.b.node("router_weights", Op::Copy, &[chances], &[], &[rows, 1], Number::Float)?;
        let sent = self.b.node("experts_in", Op::Copy, &[x], &[], &[rows, c.hidden], Number::Float)?;
        let up =
            self.b.param(format!("{at}.experts.gate_up_proj"), &[e.count, 2 * e.intermediate, c.hidden])?;
        let both = self.product("experts_up", sent, &[up], 2 * e.intermediate)?;
        let shape = [rows, e.intermediate];
        let [gate, other] = exactly(self.b.parts("gate_up", both, &[&shape, &shape])?)?;
        let gate = self.act(Act::KeepsInput, gate)?;
        let y = self.multiply("gated", gate, other)?;
        let down = self.b.param(format!("{at}.experts.down_proj"), &[e.count, c.hidden, e.intermediate])?;
        let y = self.product("experts_down", y, &[down], c.hidden)?;
        let y = self.multiply("experts_weighted", y, weights)?;
        let shape = self.states(&[c.hidden]);
        let y = self.b.node("experts_out", Op::Copy, &[y], &[], &shape, Number::Float)?;
        if e.shared == 0 {
            return Ok(y);
        }
        let shared = self.mlp(&format!("{at}.shared_expert"), x, e.shared)?;
        self.add("experts_sum", y, shared)
    }

    /// Norm first, then attention, sum, norm, MLP, sum. `how` says what the attention is like.
    pub(super) fn layer_pre(&mut self, layer: u64, x: TensorId, how: How) -> Made {
        let (c, at) = (self.c, format!("layers.{layer}"));
        let y = self.norm(&format!("{at}.input_layernorm"), x)?;
        let y = self.self_attention(&format!("{at}.self_attn"), y, how)?;
        let y = if c.post_norms { self.norm(&format!("{at}.post_attention_norm"), y)? } else { y };
        let y = self.dropout(c.dropout.hidden, y)?;
        let x = self.add("residual", y, x)?;
        let y = self.norm(&format!("{at}.post_attention_layernorm"), x)?;
        let y = self.feed_forward(&format!("{at}.mlp"), layer, y)?;
        let y = if c.post_norms { self.norm(&format!("{at}.post_mlp_norm"), y)? } else { y };
        let y = self.dropout(c.dropout.hidden, y)?;
        self.add("residual", x, y)
    }

    /// Attention, sum, norm, MLP, sum, norm.
    pub(super) fn layer_post(&mut self, layer: u64, x: TensorId, how: How) -> Made {
        let (c, at) = (self.c, format!("layers.{layer}"));
        let y = self.self_attention(&format!("{at}.attention"), x, how)?;
        // DistilBERT and ALBERT without dropout: nothing.
        let y = self.dropout(c.dropout.hidden && c.family != Family::DistilBert, y)?;
        let x = self.add("residual", y, x)?;
        let x = self.norm(&format!("{at}.attention.LayerNorm"), x)?;
        let y = self.feed_forward(&at, layer, x)?;
        let y = self.dropout(c.dropout.hidden, y)?;
        let x = self.add("residual", y, x)?;
        self.norm(&format!("{at}.output.LayerNorm"), x)
    }

    /// Norm only of what attention and MLP give, before the sum (OLMo 2).
    pub(super) fn layer_after(&mut self, layer: u64, x: TensorId, how: How) -> Made {
        let at = format!("layers.{layer}");
        let y = self.self_attention(&format!("{at}.self_attn"), x, how)?;
        let y = self.norm(&format!("{at}.post_attention_layernorm"), y)?;
        let x = self.add("residual", x, y)?;
        let y = self.feed_forward(&format!("{at}.mlp"), layer, x)?;
        let y = self.norm(&format!("{at}.post_feedforward_layernorm"), y)?;
        self.add("residual", x, y)
    }

    /// Attention and MLP beside each other: over one norm (GPT-J, Phi, Cohere) or over two (GPT-NeoX).
    pub(super) fn layer_parallel(&mut self, layer: u64, x: TensorId, how: How) -> Made {
        let (c, at) = (self.c, format!("layers.{layer}"));
        let normed = self.norm(&format!("{at}.input_layernorm"), x)?;
        let attended = self.self_attention(&format!("{at}.self_attn"), normed, how)?;
        let attended = self.dropout(c.dropout.hidden, attended)?;
        let normed = if c.family == Family::NeoX {
            self.norm(&format!("{at}.post_attention_layernorm"), x)?
        } else {
            normed
        };
        let y = self.feed_forward(&format!("{at}.mlp"), layer, normed)?;
        let y = self.dropout(c.dropout.hidden, y)?;
        let sum = self.add("residual", y, attended)?;
        self.add("residual", sum, x)
    }

    /// As [`Self::layer_pre`], with a trained factor for each number of what attention and MLP give (DINOv2).
    pub(super) fn layer_scaled(&mut self, layer: u64, x: TensorId, how: How) -> Made {
        let (c, at) = (self.c, format!("layers.{layer}"));
        let scale = |m: &mut Self, name: &str, y: TensorId| {
            let factor = m.b.param(format!("{at}.{name}"), &[c.hidden])?;
            let shape = m.b.shape(y).to_vec();
            // The factor's gradient needs what it multiplies.
            let keeps = Op::Activation { keeps: Keeps::Input, inplace: false };
            m.b.node(name, keeps, &[y], &[factor], &shape, Number::Float)
        };
        let y = self.norm(&format!("{at}.norm1"), x)?;
        let y = self.self_attention(&format!("{at}.attention"), y, how)?;
        let y = scale(self, "layer_scale1", y)?;
        let x = self.add("residual", y, x)?;
        let y = self.norm(&format!("{at}.norm2"), x)?;
        let y = self.feed_forward(&format!("{at}.mlp"), layer, y)?;
        let y = scale(self, "layer_scale2", y)?;
        self.add("residual", y, x)
    }
}

/// As many parts as were asked for.
fn exactly<const N: usize>(parts: Vec<TensorId>) -> Result<[TensorId; N], Error> {
    <[TensorId; N]>::try_from(parts)
        .map_err(|parts| Error::bad("graph", format!("{} parts where {N} were asked for", parts.len())))
}

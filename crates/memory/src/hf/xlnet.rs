//! XLNet and DeBERTa: attention with positions of its own, written out in products.

use super::encoder;
use super::maker::{Made, Maker};
use super::{Config, Head};
use crate::Error;
use crate::graph::{Keeps, Number, Op, TensorId};

/// XLNet: positions `[2 tokens, batch, hidden]` beside the states; content and position each give scores.
pub(super) fn xlnet(m: &mut Maker<'_>) -> Result<(), Error> {
    let (c, batch, seq) = (m.c, m.batch, m.seq);
    let ids = m.ids("input_ids")?;
    let (x, table) = m.embedding("word_embedding", ids, c.vocab, c.hidden)?;
    let mut x = m.dropout(c.dropout.hidden, x)?;
    let steps = m.b.input("positions", &[2 * seq], Number::Int64)?;
    let places = m.b.node("sinusoids", Op::Copy, &[steps], &[], &[2 * seq, c.hidden], Number::Float)?;
    let places = m.b.view("positions", places, &[2 * seq, batch, c.hidden])?;
    let places = m.dropout(c.dropout.hidden, places)?;
    for layer in 0..c.layers {
        // `use_mems_eval`: the states that enter each layer are returned.
        if !m.training() {
            m.kept.push(x);
        }
        m.b.begin_block();
        let y = relative_attention(m, &format!("layer.{layer}.rel_attn"), x, places)?;
        x = feed_forward(m, &format!("layer.{layer}.ff"), y)?;
        m.b.end_block();
    }
    let x = m.dropout(c.dropout.hidden, x)?;
    let x = m.b.like("permute", Op::Copy, &[x])?;
    match c.head {
        Head::CausalLm | Head::MaskedLm => m.vocabulary(x, Some(table), true),
        Head::SequenceClassification => {
            let last = m.first(x)?;
            let pooled = m.linear("sequence_summary", last, c.hidden, true)?;
            let pooled = m.b.activation("tanh", Keeps::Output, false, pooled)?;
            let pooled = m.dropout(c.dropout.hidden, pooled)?;
            m.classes("logits_proj", pooled, true)
        }
        head => m.plain_head(x, head),
    }
}

fn relative_attention(m: &mut Maker<'_>, at: &str, x: TensorId, places: TensorId) -> Made {
    let (c, batch, seq) = (m.c, m.batch, m.seq);
    let (heads, d, wide) = (c.heads, c.head_dim, c.heads * c.head_dim);
    let four = [batch, heads, seq, d];
    let mut project = |name: &str, x: TensorId| m.linear(&format!("{at}.{name}"), x, wide, false);
    let (q, k, v) = (project("q", x)?, project("k", x)?, project("v", x)?);
    let r = project("r", places)?;
    let q = m.b.view("heads", q, &four)?;
    let k = m.b.view("heads", k, &four)?;
    let v = m.b.view("heads", v, &four)?;
    let r = m.b.view("heads", r, &[batch, heads, 2 * seq, d])?;
    let square = [batch, heads, seq, seq];
    let biased = |m: &mut Maker<'_>, name: &str| {
        let bias = m.b.param(format!("{at}.{name}"), &[heads, d])?;
        let nothing = Op::Activation { keeps: Keeps::Nothing, inplace: false };
        m.b.node(name, nothing, &[q], &[bias], &four, Number::Float)
    };
    // For segments, which are never given; they have no gradient then, and no state.
    m.b.buffer(format!("{at}.r_s_bias"), &[heads, d])?;
    m.b.buffer(format!("{at}.seg_embed"), &[2, heads, d])?;
    let by_content = biased(m, "r_w_bias")?;
    let content = m.b.node("scores", Op::MatMul, &[by_content, k], &[], &square, Number::Float)?;
    let by_place = biased(m, "r_r_bias")?;
    let double = [batch, heads, seq, 2 * seq];
    let place = m.b.node("scores_place", Op::MatMul, &[by_place, r], &[], &double, Number::Float)?;
    let place = m.b.node("rel_shift", Op::Copy, &[place], &[], &square, Number::Float)?;
    let sum = m.add("scores_sum", content, place)?;
    let sum = m.scale("scores_segments", sum)?;
    let sum = m.scale("scores_scaled", sum)?;
    let chances = m.b.like("softmax", Op::Softmax, &[sum])?;
    let chances = m.dropout(c.dropout.attention, chances)?;
    let out = m.b.node("weighted", Op::MatMul, &[chances, v], &[], &four, Number::Float)?;
    let out = m.b.like("contiguous", Op::Copy, &[out])?;
    let out = m.b.view("merge_heads", out, &[batch, seq, wide])?;
    let out = m.linear(&format!("{at}.o"), out, c.hidden, false)?;
    let out = m.dropout(c.dropout.hidden, out)?;
    let sum = m.add("residual", out, x)?;
    m.layer_norm(&format!("{at}.layer_norm"), sum)
}

fn feed_forward(m: &mut Maker<'_>, at: &str, x: TensorId) -> Made {
    let c = m.c;
    let y = m.linear(&format!("{at}.layer_1"), x, c.intermediate, true)?;
    let y = m.act(c.act, y)?;
    let y = m.dropout(c.dropout.activation, y)?;
    let y = m.linear(&format!("{at}.layer_2"), y, c.hidden, true)?;
    let y = m.dropout(c.dropout.hidden, y)?;
    let sum = m.add("residual", y, x)?;
    m.layer_norm(&format!("{at}.layer_norm"), sum)
}

/// Half of the rows of DeBERTa's table of relative positions.
fn span(c: &Config) -> u64 {
    if c.buckets > 0 { c.buckets } else { c.positions }
}

/// DeBERTa: content against position and position against content, each gathered from a product.
pub(super) fn deberta(m: &mut Maker<'_>) -> Result<(), Error> {
    let c = m.c;
    let (mut x, table) = encoder::embeddings(m)?;
    let rows = 2 * span(c);
    let index = m.b.input("relative_positions", &[rows], Number::Int64)?;
    let (places, _) = m.embedding("rel_embeddings", index, rows, c.hidden)?;
    let places = m.layer_norm("encoder.LayerNorm", places)?;
    for layer in 0..c.layers {
        m.b.begin_block();
        let at = format!("layers.{layer}");
        let y = disentangled(m, &format!("{at}.attention"), x, places)?;
        let y = m.dropout(c.dropout.hidden, y)?;
        x = m.add("residual", y, x)?;
        x = m.layer_norm(&format!("{at}.attention.LayerNorm"), x)?;
        let y = m.mlp(&at, x, c.intermediate)?;
        let y = m.dropout(c.dropout.hidden, y)?;
        x = m.add("residual", y, x)?;
        x = m.layer_norm(&format!("{at}.output.LayerNorm"), x)?;
        m.b.end_block();
    }
    encoder::head(m, x, table)
}

fn disentangled(m: &mut Maker<'_>, at: &str, x: TensorId, places: TensorId) -> Made {
    let (c, batch, seq, n) = (m.c, m.batch, m.seq, m.names());
    let (heads, d, rows) = (c.heads, c.head_dim, 2 * span(m.c));
    let four = [batch, heads, seq, d];
    let square = [batch, heads, seq, seq];
    let mut project = |name: &str| {
        let y = m.linear(&format!("{at}.{name}"), x, heads * d, true)?;
        m.b.node("contiguous", Op::Copy, &[y], &[], &four, Number::Float)
    };
    let (q, k, v) = (project(n.q)?, project(n.k)?, project(n.v)?);
    let scaled = m.scale("key_scaled", k)?;
    let mut scores = m.b.node("scores", Op::MatMul, &[q, scaled], &[], &square, Number::Float)?;
    let places = m.dropout(c.dropout.hidden, places)?;
    let mut by_place = None;
    for (name, shared, other) in [("pos_key_proj", n.k, q), ("pos_query_proj", n.q, k)] {
        // With `share_att_key` the matrices of the content serve positions as well.
        let y = if c.shared_positions {
            let weights = m.b.named(&[&format!("{at}.{shared}.weight"), &format!("{at}.{shared}.bias")]);
            m.product(shared, places, &weights, heads * d)?
        } else {
            m.linear(&format!("{at}.{name}"), places, heads * d, true)?
        };
        // One copy a sample.
        let y = m.b.node("repeat", Op::Copy, &[y], &[], &[batch, heads, rows, d], Number::Float)?;
        let wide = [batch, heads, seq, rows];
        let y = m.b.node("scores_place", Op::MatMul, &[other, y], &[], &wide, Number::Float)?;
        // The backward pass of `gather` keeps what was gathered from.
        let gather = Op::Activation { keeps: Keeps::Input, inplace: false };
        let y = m.b.node("gather", gather, &[y], &[], &square, Number::Float)?;
        let y = m.scale("scores_scaled", y)?;
        by_place = Some(match by_place {
            None => y,
            Some(sum) => m.b.like("scores_sum", Op::Add { inplace: true }, &[sum, y])?,
        });
    }
    if let Some(by_place) = by_place {
        scores = m.add("scores_sum", scores, by_place)?;
    }
    let scores = m.scale("masked_fill", scores)?;
    let chances = m.b.like("softmax", Op::Softmax, &[scores])?;
    let chances = m.dropout(c.dropout.attention, chances)?;
    let out = m.b.node("weighted", Op::MatMul, &[chances, v], &[], &four, Number::Float)?;
    let out = m.b.like("contiguous", Op::Copy, &[out])?;
    let out = m.b.view("merge_heads", out, &[batch, seq, heads * d])?;
    m.linear(&format!("{at}.{}", n.out), out, c.hidden, true)
}

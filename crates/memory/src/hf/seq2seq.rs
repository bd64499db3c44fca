//! Encoder-decoders: T5, BART and Whisper with their kin.

use super::attention::How;
use super::maker::{Made, Maker};
use super::{Config, Family, Head};
use crate::Error;
use crate::graph::{Keeps, Number, Op, ParamId, TensorId};

/// Inputs to logits and loss.
pub(super) fn build(m: &mut Maker<'_>) -> Result<(), Error> {
    if m.c.family == Family::Whisper {
        return whisper(m);
    }
    let ids = m.ids("input_ids")?;
    let shared = m.b.param("shared.weight", &[m.c.vocab, m.c.hidden])?;
    m.remembers = false;
    let states = stack(m, ids, shared, None)?;
    m.remembers = true;
    if matches!(m.c.head, Head::CausalLm | Head::None) {
        m.seq = m.task.target_len.unwrap_or(m.seq);
        let ids = m.ids("decoder_input_ids")?;
        let x = stack(m, ids, shared, Some(states))?;
        return output(m, x, shared);
    }
    let x = m.first(states)?;
    let x = m.linear("classification_head.dense", x, m.c.hidden, true)?;
    let x = m.b.activation("tanh", Keeps::Output, false, x)?;
    m.classes("classification_head.out_proj", x, true)
}

fn output(m: &mut Maker<'_>, x: TensorId, shared: ParamId) -> Result<(), Error> {
    m.kept.extend(m.caches().then_some(x));
    if m.c.head == Head::None {
        return m.bare(x);
    }
    if m.c.family == Family::T5 {
        // A tied table was not made for this: T5 scales the states first.
        let x = if m.c.tied { m.scale("output_scaled", x)? } else { x };
        return m.vocabulary(x, m.c.tied.then_some(shared), false);
    }
    m.vocabulary(x, Some(shared), false)
}

/// Encoder, or decoder where states of an encoder are given.
fn stack(m: &mut Maker<'_>, ids: TensorId, shared: ParamId, states: Option<TensorId>) -> Made {
    let decoder = states.is_some();
    let (c, at) = (m.c, if decoder { "decoder" } else { "encoder" });
    let shape = m.states(&[c.hidden]);
    let mut x = m.b.node("embed_tokens", Op::Embedding, &[ids], &[shared], &shape, Number::Float)?;
    if c.family == Family::Bart {
        x = m.scale("embedding_scaled", x)?;
        let positions = m.positions(if decoder { 1 } else { m.batch })?;
        let (added, _) =
            m.embedding(&format!("{at}.embed_positions"), positions, c.positions + 2, c.hidden)?;
        x = m.add("embedding_sum", x, added)?;
        x = m.layer_norm(&format!("{at}.layernorm_embedding"), x)?;
    }
    x = m.dropout(c.dropout.embedding, x)?;
    let bias = if c.family == Family::T5 { Some(relative(m, at)?) } else { None };
    let layers = if decoder { c.decoder_layers } else { c.layers };
    let mask = if decoder && m.eager() {
        let (batch, seq) = (m.batch, m.seq);
        Some(m.mask(&[batch, 1, seq, seq])?)
    } else {
        None
    };
    // Cross-attention of T5 has a bias too: zeros, made once.
    let cross = match states {
        Some(states) if bias.is_some() => {
            let keys = m.b.shape(states).get(1).copied().unwrap_or(1);
            let seq = m.seq;
            Some(m.mask(&[1, c.heads, seq, keys])?)
        }
        _ => None,
    };
    for layer in 0..layers {
        m.b.begin_block();
        let at = format!("{at}.layers.{layer}");
        let how = How { mask, bias, causal: decoder, views: true, scaled: true, ..How::default() };
        let how = with_bias(m, how)?;
        x = layer_of(m, &at, x, states, how, cross)?;
        m.b.end_block();
    }
    if c.family == Family::T5 || c.pre_norm {
        x = m.norm(&format!("{at}.final_layer_norm"), x)?;
    }
    if c.family == Family::T5 { m.dropout(c.dropout.hidden, x) } else { Ok(x) }
}

/// T5's bias by relative position `[1, heads, tokens, tokens]`: a row of a small table for each pair.
fn relative(m: &mut Maker<'_>, at: &str) -> Made {
    let (seq, heads) = (m.seq, m.c.heads);
    let buckets = m.b.input("relative_positions", &[seq, seq], Number::Int64)?;
    let (bias, _) = m.embedding(&format!("{at}.relative_attention_bias"), buckets, m.c.buckets, heads)?;
    m.b.view("position_bias", bias, &[1, heads, seq, seq])
}

/// The bias becomes the mask of a fused kernel: each layer makes its own, with minus infinity where a decoder
/// must not look (`sdpa_attention.py`).
///
/// While it is trained no kernel takes it as it lies in memory, its heads last. Seen on an H200 with
/// transformers 5.17 and PyTorch 2.11, in encoder and decoder; the zeros of the cross-attention are taken.
/// transformers 5.23 puts it in order first, and a fused kernel takes it. Which release will run is not known
/// here: the larger of the two is what counts.
fn with_bias(m: &mut Maker<'_>, how: How) -> Result<How, Error> {
    let Some(bias) = how.bias.filter(|_| !m.eager()) else { return Ok(how) };
    let masked = if how.causal { m.scale("bias_masked", bias)? } else { bias };
    if m.training() {
        return Ok(How { mask: Some(masked), bias: None, fallback: true, ..how });
    }
    let copied = m.b.like("bias_contiguous", Op::Copy, &[masked])?;
    Ok(How { mask: Some(copied), bias: None, ..how })
}

fn layer_of(
    m: &mut Maker<'_>,
    at: &str,
    x: TensorId,
    states: Option<TensorId>,
    how: How,
    cross: Option<TensorId>,
) -> Made {
    let c = m.c;
    let x = sublayer(m, &format!("{at}.self_attn_layer_norm"), x, |m, y| {
        attention(m, &format!("{at}.self_attn"), y, y, how)
    })?;
    let x = match states {
        None => x,
        Some(states) => sublayer(m, &format!("{at}.encoder_attn_layer_norm"), x, |m, y| {
            let how = How { mask: cross, bias: None, causal: false, fallback: false, ..how };
            attention(m, &format!("{at}.encoder_attn"), y, states, how)
        })?,
    };
    let width = if states.is_some() { c.decoder_intermediate } else { c.intermediate };
    sublayer(m, &format!("{at}.final_layer_norm"), x, |m, y| m.mlp(at, y, width))
}

/// Norm, part, dropout, sum; or part, dropout, sum, norm.
fn sublayer(
    m: &mut Maker<'_>,
    norm: &str,
    x: TensorId,
    part: impl FnOnce(&mut Maker<'_>, TensorId) -> Made,
) -> Made {
    let first = m.c.pre_norm || m.c.family == Family::T5;
    let y = if first { m.norm(norm, x)? } else { x };
    let y = part(m, y)?;
    let y = m.dropout(m.c.dropout.hidden, y)?;
    let sum = m.add("residual", x, y)?;
    if first { Ok(sum) } else { m.norm(norm, sum) }
}

/// Attention of `x` over `states`, which are `x` itself or an encoder's.
fn attention(m: &mut Maker<'_>, at: &str, x: TensorId, states: TensorId, how: How) -> Made {
    let (c, n) = (m.c, m.names());
    let width = c.heads * c.head_dim;
    let whisper = c.family == Family::Whisper;
    let mut q = m.linear(&format!("{at}.{}", n.q), x, width, c.qkv_bias)?;
    if whisper {
        q = m.scale("query_scaled", q)?;
    }
    let mut q = m.split(q, c.heads, c.head_dim)?;
    let k = m.linear(&format!("{at}.{}", n.k), states, width, c.qkv_bias && !whisper)?;
    let v = m.linear(&format!("{at}.{}", n.v), states, width, c.qkv_bias)?;
    let mut k = m.split(k, c.heads, c.head_dim)?;
    let mut v = m.split(v, c.heads, c.head_dim)?;
    if whisper {
        for x in [&mut q, &mut k, &mut v] {
            *x = m.b.like("contiguous", Op::Copy, &[*x])?;
        }
    }
    let k = m.remember(k, Number::Float)?;
    let v = m.remember(v, Number::Float)?;
    let views = how.views && !m.caches() && !whisper;
    let y = m.attend(q, k, v, How { views, dropout: c.dropout.attention, ..how })?;
    m.linear(&format!("{at}.{}", n.out), y, c.hidden, c.out_bias)
}

/// Frames of the spectrogram for each state of the encoder.
const STRIDE: u64 = 2;

fn whisper(m: &mut Maker<'_>) -> Result<(), Error> {
    let (c, batch, tokens) = (m.c, m.batch, m.seq);
    let frames = c.positions;
    let sound = m.b.input("input_features", &[batch, c.mel_bins, STRIDE * frames], Number::Float)?;
    let x = m.b.conv("conv1", sound, &[batch, c.hidden, STRIDE * frames], &[3], 1, true)?;
    let x = m.b.activation("gelu", Keeps::Input, false, x)?;
    let x = m.b.conv("conv2", x, &[batch, c.hidden, frames], &[3], 1, true)?;
    let x = m.b.activation("gelu", Keeps::Input, false, x)?;
    let x = m.b.view("permute", x, &[batch, frames, c.hidden])?;
    // The table of positions is not trained.
    m.b.buffer("encoder.embed_positions", &[frames, c.hidden])?;
    let mut x = m.scale("embedding_sum", x)?;
    x = m.dropout(c.dropout.embedding, x)?;
    m.seq = frames;
    m.remembers = false;
    let how = How { views: true, scaled: false, ..How::default() };
    x = whisper_layers(m, "encoder", x, None, how)?;
    m.seq = tokens;
    m.remembers = true;
    let ids = m.ids("decoder_input_ids")?;
    let (y, table) = m.embedding("decoder.embed_tokens", ids, c.vocab, c.hidden)?;
    let positions = m.positions(batch)?;
    let (added, _) = m.embedding("decoder.embed_positions", positions, 448, c.hidden)?;
    let y = m.add("embedding_sum", y, added)?;
    let y = m.dropout(c.dropout.embedding, y)?;
    let mask = if m.eager() { Some(m.mask(&[batch, 1, tokens, tokens])?) } else { None };
    let y = whisper_layers(m, "decoder", y, Some(x), How { mask, causal: true, ..how })?;
    m.kept.push(x);
    if c.head == Head::None { m.bare(y) } else { m.vocabulary(y, Some(table), false) }
}

fn whisper_layers(m: &mut Maker<'_>, at: &str, mut x: TensorId, states: Option<TensorId>, how: How) -> Made {
    let c: &Config = m.c;
    for layer in 0..if states.is_some() { c.decoder_layers } else { c.layers } {
        m.b.begin_block();
        x = layer_of(m, &format!("{at}.layers.{layer}"), x, states, how, None)?;
        m.b.end_block();
    }
    m.norm(&format!("{at}.layer_norm"), x)
}

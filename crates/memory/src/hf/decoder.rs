//! Decoders: GPT-2 and Llama with their kin, and unknown models in their manner.

use super::attention::How;
use super::maker::{Made, Maker};
use super::{Family, Head};
use crate::Error;
use crate::graph::{Number, TensorId};

/// Token ids to logits and loss.
pub(super) fn build(m: &mut Maker<'_>) -> Result<(), Error> {
    let c = m.c;
    let ids = m.ids("input_ids")?;
    let (mut x, table) = m.embedding("embed_tokens", ids, c.vocab, c.embedding)?;
    if c.family == Family::Gemma {
        x = m.scale("embedding_scaled", x)?;
    }
    if c.embedding != c.hidden {
        x = m.linear("project_in", x, c.hidden, false)?;
    }
    // OPT counts its positions for each sample, and keeps two rows for padding.
    let learned = match c.family {
        Family::Gpt2 | Family::GptNeo => Some((1, c.positions)),
        Family::Opt => Some((m.batch, c.positions + 2)),
        Family::Unknown if c.rotary == 0 && c.positions > 0 => Some((1, c.positions)),
        _ => None,
    };
    if let Some((batch, rows)) = learned {
        let positions = m.positions(batch)?;
        let (added, _) = m.embedding("embed_positions", positions, rows, c.hidden)?;
        x = m.add("embedding_sum", x, added)?;
    }
    if c.family == Family::Bloom {
        x = m.layer_norm("word_embeddings_layernorm", x)?;
    }
    x = m.dropout(c.dropout.embedding, x)?;
    let how = how(m)?;
    let embedded = x;
    for layer in 0..c.layers {
        m.b.begin_block();
        x = layer_of(m, layer, x, how)?;
        m.b.end_block();
    }
    if c.family != Family::Opt || c.pre_norm {
        x = m.norm("norm", x)?;
    }
    // A variable of the model's `forward`.
    x = m.until(x, &[embedded])?;
    if c.embedding != c.hidden {
        x = m.linear("project_out", x, c.embedding, false)?;
    }
    match c.head {
        Head::CausalLm | Head::MaskedLm => {
            let bias = matches!(c.family, Family::GptJ | Family::Phi);
            m.vocabulary(x, c.tied.then_some(table), bias)
        }
        // A score for each token, of which the last is taken.
        Head::SequenceClassification => {
            let scores = m.linear("score", x, c.labels, false)?;
            let last = m.first(scores)?;
            m.kept.push(last);
            if m.training() {
                let batch = m.batch;
                let labels = m.b.input("labels", &[batch], Number::Int64)?;
                m.loss(last, labels)?;
            }
            Ok(())
        }
        head => m.plain_head(x, head),
    }
}

fn layer_of(m: &mut Maker<'_>, layer: u64, x: TensorId, how: How) -> Made {
    let c = m.c;
    if c.family == Family::GptNeo {
        // Which positions see which, a byte each.
        m.b.buffer_of(format!("layers.{layer}.attn.bias"), &[c.positions, c.positions], Number::Bool)?;
    }
    if c.parallel {
        m.layer_parallel(layer, x, how)
    } else if !c.pre_norm {
        m.layer_post(layer, x, how)
    } else if c.model_type.starts_with("olmo") && c.qk_norm && c.experts.is_none() {
        m.layer_after(layer, x, how)
    } else {
        m.layer_pre(layer, x, how)
    }
}

fn how(m: &mut Maker<'_>) -> Result<How, Error> {
    let c = m.c;
    // Attention written out adds a mask of zeros and minus infinity; a fused kernel is told that it is
    // causal, unless the window is shorter than the sequence.
    let windowed = c.window.is_some_and(|w| w < m.seq);
    let (batch, seq) = (m.batch, m.seq);
    let mask = if m.eager() || windowed { Some(m.mask(&[batch, 1, seq, seq])?) } else { None };
    let upcast = matches!(c.family, Family::Llama | Family::Gemma | Family::Opt | Family::NeoX | Family::Phi);
    let scaled = !matches!(c.family, Family::Opt | Family::Bloom);
    Ok(How { mask, causal: true, upcast, views: true, scaled, ..How::default() })
}

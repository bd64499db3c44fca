//! Two models in one, whose answers are compared: CLIP's and SigLIP's towers of images and of text.

use super::attention::How;
use super::maker::{Made, Maker};
use super::{Config, vision};
use crate::Error;
use crate::graph::{Number, Op, TensorId};

/// Pixels and token ids to the matrix of similarities and its loss.
pub(super) fn build(m: &mut Maker<'_>) -> Result<(), Error> {
    let (c, batch) = (m.c, m.batch);
    let Some(text) = c.text.as_deref() else { return vision::build(m) };
    let states = vision::tower(m)?;
    let image = feature(m, states, "visual_projection", text.hidden)?;
    (m.c, m.seq) = (text, tokens(text, m.task.seq_len));
    let states = text_tower(m)?;
    let words = feature(m, states, "text_projection", text.hidden)?;
    let shape = [batch, batch];
    let mut logits = m.b.node("logits", Op::MatMul, &[words, image], &[], &shape, Number::Float)?;
    logits = m.b.activation("logits_scaled", crate::graph::Keeps::Input, false, logits)?;
    m.kept.push(logits);
    if m.training() {
        let target = m.b.input("labels", &[batch], Number::Int64)?;
        // Over the rows, and over the columns.
        for _ in 0..2 {
            m.loss(logits, target)?;
        }
    }
    m.c = c;
    Ok(())
}

/// A text tower by itself.
pub(super) fn text_alone(m: &mut Maker<'_>) -> Result<(), Error> {
    let x = text_tower(m)?;
    m.bare(x)
}

/// Longer texts are cut to the table of positions, as the tokenizer does.
fn tokens(text: &Config, asked: Option<u64>) -> u64 {
    asked.map_or(text.positions, |n| n.min(text.positions)).max(1)
}

/// Token ids to the last hidden states.
fn text_tower(m: &mut Maker<'_>) -> Made {
    let c = m.c;
    let ids = m.ids("input_ids")?;
    let (x, _) = m.embedding("token_embedding", ids, c.vocab, c.hidden)?;
    let positions = m.positions(1)?;
    let (added, _) = m.embedding("position_embedding", positions, c.positions, c.hidden)?;
    let mut x = m.add("embedding_sum", x, added)?;
    // SigLIP's sees the whole text.
    let causal = !c.model_type.starts_with("siglip");
    let how = How { views: true, scaled: true, causal, ..How::default() };
    for layer in 0..c.layers {
        m.b.begin_block();
        x = m.layer_pre(layer, x, how)?;
        m.b.end_block();
    }
    m.norm("final_layer_norm", x)
}

/// One state a sample, projected and of length 1. The states are part of what the model returns.
fn feature(m: &mut Maker<'_>, states: TensorId, name: &str, width: u64) -> Made {
    m.kept.push(states);
    let first = m.first(states)?;
    let pooled = m.norm("pooled_norm", first)?;
    m.kept.push(pooled);
    let y = m.linear(name, pooled, width, false)?;
    let y = m.b.activation("normalised", crate::graph::Keeps::Input, false, y)?;
    m.kept.push(y);
    Ok(y)
}

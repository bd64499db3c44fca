//! Image towers: ViT, DeiT, DINOv2, CLIP, SigLIP.

use super::attention::How;
use super::maker::{Made, Maker};
use super::{Head, Image};
use crate::Error;
use crate::graph::{Number, Op};

/// Pixels to the head and its loss.
pub(super) fn build(m: &mut Maker<'_>) -> Result<(), Error> {
    let c = m.c;
    let x = tower(m)?;
    if c.head != Head::SequenceClassification {
        return m.bare(x);
    }
    let first = m.first(x)?;
    if c.model_type.starts_with("dinov2") {
        // The class token beside the mean of the patches.
        let batch = m.batch;
        let both = m.b.node("cat_mean", Op::Copy, &[x], &[], &[batch, 2 * c.hidden], Number::Float)?;
        m.kept.push(first);
        return m.classes("classifier", both, true);
    }
    m.classes("classifier", first, true)
}

/// Pixels to the last hidden states.
pub(super) fn tower(m: &mut Maker<'_>) -> Made {
    let (c, batch, tokens) = (m.c, m.batch, m.seq);
    let image = c.image.unwrap_or(Image { size: 224, patch: 16, channels: 3, prefix: 1 });
    let side = image.size / image.patch.max(1);
    let pixels =
        m.b.input("pixel_values", &[batch, image.channels, image.size, image.size], Number::Float)?;
    let clip = c.model_type.starts_with("clip");
    let out = [batch, c.hidden, side, side];
    let patches = m.b.conv("patch_embeddings.projection", pixels, &out, &[image.patch; 2], 1, !clip)?;
    let mut x = m.b.view("patches", patches, &[batch, side * side, c.hidden])?;
    let shape = [batch, tokens, c.hidden];
    if image.prefix > 0 {
        let prefix = m.b.param("cls_token", &[1, image.prefix, c.hidden])?;
        x = m.b.node("cat_prefix", Op::Cat, &[x], &[prefix], &shape, Number::Float)?;
    }
    let positions = m.b.param("position_embeddings", &[1, tokens, c.hidden])?;
    let nothing = Op::Activation { keeps: crate::graph::Keeps::Nothing, inplace: false };
    x = m.b.node("embedding_sum", nothing, &[x], &[positions], &shape, Number::Float)?;
    x = m.dropout(c.dropout.embedding, x)?;
    if clip {
        x = m.norm("pre_layrnorm", x)?;
    }
    let how = How { views: true, scaled: true, ..How::default() };
    let scaled = c.model_type.starts_with("dinov2");
    let embedded = x;
    for layer in 0..c.layers {
        m.b.begin_block();
        x = if scaled { m.layer_scaled(layer, x, how)? } else { m.layer_pre(layer, x, how)? };
        m.b.end_block();
    }
    // CLIP normalises its first state alone.
    if !clip {
        x = m.norm("layernorm", x)?;
    }
    // A variable of the model's `forward`.
    m.until(x, &[embedded])
}

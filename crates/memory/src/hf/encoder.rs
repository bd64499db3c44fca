//! Encoders of text: BERT and its kin, and unknown encoders in their manner.

use super::attention::How;
use super::maker::Maker;
use super::{Family, Head};
use crate::Error;
use crate::graph::{Keeps, ParamId, TensorId};

/// Token ids to the head and its loss.
pub(super) fn build(m: &mut Maker<'_>) -> Result<(), Error> {
    let c = m.c;
    let (mut x, table) = embeddings(m)?;
    if c.embedding != c.hidden {
        x = m.linear("embeddings_project", x, c.hidden, true)?;
    }
    // The attention written out has no mask either, where no token is padding.
    let how = How { views: true, scaled: true, ..How::default() };
    let embedded = x;
    if c.family == Family::Albert {
        albert(m, x, how, table)
    } else {
        for layer in 0..c.layers {
            m.b.begin_block();
            x = if c.pre_norm { m.layer_pre(layer, x, how)? } else { m.layer_post(layer, x, how)? };
            m.b.end_block();
        }
        if c.pre_norm {
            x = m.norm("norm", x)?;
        }
        // A variable of the model's `forward`.
        x = m.until(x, &[embedded])?;
        head(m, x, table)
    }
}

/// Tables of tokens, positions and token types; their sum, norm and dropout.
pub(super) fn embeddings(m: &mut Maker<'_>) -> Result<(TensorId, ParamId), Error> {
    let (c, width) = (m.c, m.c.embedding);
    let ids = m.ids("input_ids")?;
    let (mut x, table) = m.embedding("word_embeddings", ids, c.vocab, width)?;
    if c.token_types > 0 {
        let types = m.ids("token_type_ids")?;
        let (added, _) = m.embedding("token_type_embeddings", types, c.token_types, width)?;
        x = m.add("embedding_sum", x, added)?;
    }
    if c.positions > 0 && c.rotary == 0 && c.position_table {
        // RoBERTa counts positions for each sample, past its padding.
        let each = matches!(c.model_type.as_str(), "roberta" | "xlm-roberta" | "camembert");
        let positions = m.positions(if each { m.batch } else { 1 })?;
        let (added, _) = m.embedding("position_embeddings", positions, c.positions, width)?;
        x = m.add("embedding_sum", x, added)?;
    }
    x = m.norm("embeddings.LayerNorm", x)?;
    Ok((m.dropout(c.dropout.embedding, x)?, table))
}

/// One layer's weights, run as often as there are layers: the first run makes them, the others repeat it.
fn albert(m: &mut Maker<'_>, mut x: TensorId, how: How, table: ParamId) -> Result<(), Error> {
    let mut shared: Option<usize> = None;
    for layer in 0..m.c.layers {
        m.b.begin_block();
        let before = m.b.params();
        x = m.layer_post(layer, x, how)?;
        m.b.end_block();
        match shared {
            None => shared = Some(before),
            Some(first) => m.b.share(first, before),
        }
    }
    head(m, x, table)
}

pub(super) fn head(m: &mut Maker<'_>, x: TensorId, table: ParamId) -> Result<(), Error> {
    let c = m.c;
    match c.head {
        Head::MaskedLm => {
            let width = if c.embedding == c.hidden { c.hidden } else { c.embedding };
            let x = m.linear("transform.dense", x, width, true)?;
            // ELECTRA's is GELU whatever the layers use.
            let x = m.act(c.act, x)?;
            let x = m.layer_norm("transform.LayerNorm", x)?;
            m.vocabulary(x, c.tied.then_some(table), true)
        }
        Head::CausalLm => m.vocabulary(x, c.tied.then_some(table), false),
        Head::SequenceClassification => {
            let first = m.first(x)?;
            let pooled = m.linear("pooler", first, c.hidden, true)?;
            let pooled = m.b.activation("pooler_act", Keeps::Output, false, pooled)?;
            let pooled = m.dropout(c.dropout.classifier, pooled)?;
            m.classes("classifier", pooled, true)
        }
        Head::None => {
            let first = m.first(x)?;
            let pooled = m.linear("pooler", first, c.hidden, true)?;
            let pooled = m.b.activation("pooler_act", Keeps::Output, false, pooled)?;
            m.kept.push(pooled);
            m.bare(x)
        }
        other => m.plain_head(x, other),
    }
}

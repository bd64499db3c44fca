//! Encoders of sound from its waveform: wav2vec 2.0, HuBERT, WavLM and their kin.

use super::Head;
use super::attention::How;
use super::maker::Maker;
use crate::graph::{Keeps, Norm, Number, Op};
use crate::{Error, ModelTask};

/// Ten seconds of 16 kHz.
const USUAL_SAMPLES: u64 = 160_000;

/// Numbers of the waveform of one sample, and what to say where they were not given.
pub(super) fn samples(task: &ModelTask) -> Result<(u64, Option<String>), Error> {
    match task.seq_len {
        Some(n) if n > 1 << 30 => {
            Err(Error::bad("sequence length", format!("at most {} numbers of sound, found {n}", 1_u64 << 30)))
        }
        Some(n) => Ok((n, None)),
        None => Ok((
            USUAL_SAMPLES,
            Some(format!(
                "no length of the sound was given: {USUAL_SAMPLES} numbers (10 s of 16 kHz) are assumed; say --seq-len"
            )),
        )),
    }
}

/// A waveform to the head and its loss.
pub(super) fn build(m: &mut Maker<'_>) -> Result<(), Error> {
    let (c, batch, samples) = (m.c, m.batch, m.seq);
    let Some(waveform) = &c.waveform else {
        return Err(Error::bad("config.json, conv_dim", "expected a list"));
    };
    let sound = m.b.input("input_values", &[batch, samples], Number::Float)?;
    let mut length = samples;
    let mut x = m.b.view("channels", sound, &[batch, 1, length])?;
    for (at, [channels, kernel, stride]) in waveform.layers.iter().copied().enumerate() {
        if length < kernel {
            return Err(Error::bad(
                "sequence length",
                format!("{samples} numbers of sound are too few for the model's convolutions"),
            ));
        }
        length = (length - kernel) / stride + 1;
        let name = format!("feature_extractor.conv_layers.{at}");
        let shape = [batch, channels, length];
        x = m.b.conv(&format!("{name}.conv"), x, &shape, &[kernel], 1, waveform.bias)?;
        if waveform.layer_norms {
            // Over the channels, which are put last and back.
            let last =
                m.b.node("transposed", Op::Copy, &[x], &[], &[batch, length, channels], Number::Float)?;
            let normed = m.layer_norm(&format!("{name}.layer_norm"), last)?;
            x = m.b.view("transposed", normed, &shape)?;
        } else if at == 0 {
            x = m.b.norm(&format!("{name}.layer_norm"), Norm::Group, x, channels, true)?;
        }
        x = m.b.activation("gelu", Keeps::Input, false, x)?;
    }
    let features = m.b.shape(x).get(1).copied().unwrap_or(1);
    m.seq = length;
    let x = m.b.node("transposed", Op::Copy, &[x], &[], &[batch, length, features], Number::Float)?;
    let x = m.layer_norm("feature_projection.layer_norm", x)?;
    m.kept.push(x);
    let x = m.linear("feature_projection.projection", x, c.hidden, true)?;
    let x = m.dropout(c.dropout.embedding, x)?;
    // Positions come from a convolution with one state too many.
    let [kernel, groups] = waveform.positions;
    let last = m.b.node("transposed", Op::Copy, &[x], &[], &[batch, c.hidden, length], Number::Float)?;
    let wide = [batch, c.hidden, length + 1 - kernel % 2];
    let y = m.b.conv("pos_conv_embed.conv", last, &wide, &[kernel], groups, true)?;
    let y = m.b.activation("gelu", Keeps::Input, false, y)?;
    let y = m.b.view("transposed", y, &[batch, length, c.hidden])?;
    let mut x = m.add("embedding_sum", x, y)?;
    if !c.pre_norm {
        x = m.norm("encoder.layer_norm", x)?;
    }
    x = m.dropout(c.dropout.hidden, x)?;
    let how = How { views: true, scaled: true, ..How::default() };
    for layer in 0..c.layers {
        m.b.begin_block();
        x = if c.pre_norm { m.layer_pre(layer, x, how)? } else { m.layer_post(layer, x, how)? };
        m.b.end_block();
    }
    if c.pre_norm {
        x = m.norm("encoder.layer_norm", x)?;
    }
    match c.head {
        Head::MaskedLm => {
            x = m.dropout(c.dropout.classifier, x)?;
            m.vocabulary(x, None, true)
        }
        _ => m.bare(x),
    }
}

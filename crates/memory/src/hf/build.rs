//! From a configuration and a task to a graph: checks, the sequence's length, the family's builder.

use super::maker::Maker;
use super::safetensors::Weights;
use super::{Config, Family, Head, decoder, encoder, seq2seq, speech, towers, vision, xlnet};
use crate::graph::{Graph, Number, Param};
use crate::{Error, ModelTask};

/// Tokens that are assumed where neither the task nor a short table of positions says how many.
const USUAL_TOKENS: u64 = 1024;

/// Operators of the model as the task runs it.
pub(super) fn graph(c: &Config, task: &ModelTask) -> Result<Graph, Error> {
    check(c, task)?;
    let (seq, doubt) = length(c, task)?;
    let mut m = Maker::new(c, task, seq);
    if let Some(doubt) = doubt {
        m.b.doubt(doubt);
    }
    match c.family {
        Family::Bert | Family::DistilBert | Family::Albert => encoder::build(&mut m)?,
        Family::Deberta => xlnet::deberta(&mut m)?,
        Family::XlNet => xlnet::xlnet(&mut m)?,
        Family::T5 | Family::Bart | Family::Whisper => seq2seq::build(&mut m)?,
        Family::Vit if c.text.is_some() => towers::build(&mut m)?,
        Family::Vit => vision::build(&mut m)?,
        Family::ClipText => towers::text_alone(&mut m)?,
        Family::Wav2Vec => speech::build(&mut m)?,
        Family::Unknown if c.image.is_some() && c.vocab == 0 => vision::build(&mut m)?,
        Family::Unknown if c.head != Head::CausalLm => encoder::build(&mut m)?,
        Family::Unknown
        | Family::Gpt2
        | Family::GptNeo
        | Family::GptJ
        | Family::Opt
        | Family::Bloom
        | Family::NeoX
        | Family::Phi
        | Family::Llama
        | Family::Gemma => decoder::build(&mut m)?,
    }
    Ok(m.finish())
}

/// What would make a graph of nothing, or of more than any machine has.
fn check(c: &Config, task: &ModelTask) -> Result<(), Error> {
    let needed = [("hidden_size", c.hidden), ("num_attention_heads", c.heads), ("head_dim", c.head_dim)];
    for (name, value) in needed {
        if value == 0 || value > 1 << 20 {
            return Err(Error::bad(
                format!("config.json, {name}"),
                format!("expected 1 to 1048576, found {value}"),
            ));
        }
    }
    if let Some(text) = &c.text {
        check(text, task)?;
    }
    if c.kv_heads == 0 || !c.heads.is_multiple_of(c.kv_heads) {
        return Err(Error::bad(
            "config.json, num_key_value_heads",
            format!("{} heads of the query can't share {} of the keys", c.heads, c.kv_heads),
        ));
    }
    if c.image.is_none() && c.mel_bins == 0 && c.vocab == 0 {
        return Err(Error::Missing { estimator: "config.json", what: "vocab_size".to_owned() });
    }
    for (name, value, most) in [("layers", c.layers, 2048), ("decoder layers", c.decoder_layers, 2048)] {
        if value > most {
            return Err(Error::bad(format!("config.json, {name}"), format!("at most {most}, found {value}")));
        }
    }
    if let Some(n) = task.target_len.filter(|n| c.family == Family::Bart && *n > c.positions) {
        return Err(Error::bad(
            "target length",
            format!(
                "{n} tokens, but the model has a table of {} positions (max_position_embeddings)",
                c.positions
            ),
        ));
    }
    if task.batch_size == 0 || task.batch_size > 1 << 24 {
        return Err(Error::bad("batch size", format!("expected 1 to 16777216, found {}", task.batch_size)));
    }
    Ok(())
}

/// Tokens of a sample, and what to say where they were not given.
fn length(c: &Config, task: &ModelTask) -> Result<(u64, Option<String>), Error> {
    let pictures = c.family == Family::Vit || c.vocab == 0;
    if let Some(image) = c.image.filter(|_| pictures) {
        let side = image.size / image.patch.max(1);
        return Ok((side * side + image.prefix, None));
    }
    if c.family == Family::Wav2Vec {
        return speech::samples(task);
    }
    // RoBERTa's table has two rows for padding.
    let roberta = matches!(c.model_type.as_str(), "roberta" | "xlm-roberta" | "camembert");
    let most = if roberta { c.positions.saturating_sub(2) } else { c.positions };
    let table = match c.family {
        Family::Bert | Family::DistilBert | Family::Albert | Family::Gpt2 | Family::GptNeo | Family::Opt => {
            true
        }
        Family::Bart | Family::ClipText => true,
        Family::Unknown => c.rotary == 0 && most > 0,
        _ => false,
    };
    match task.seq_len {
        Some(0) => Err(Error::bad("sequence length", "expected at least 1 token")),
        Some(n) if n > 1 << 24 => {
            Err(Error::bad("sequence length", format!("at most {} tokens, found {n}", 1_u64 << 24)))
        }
        Some(n) if table && n > most => Err(Error::bad(
            "sequence length",
            format!("{n} tokens, but the model has a table of {most} positions (max_position_embeddings)"),
        )),
        Some(n) => Ok((n, None)),
        // Whisper's positions are those of the sound; its text has 448 tokens at most.
        None if c.family == Family::Whisper => Ok((448, None)),
        None if most > 0 && most <= USUAL_TOKENS => Ok((most, None)),
        None => Ok((
            USUAL_TOKENS,
            Some(format!(
                "no sequence length was given: {USUAL_TOKENS} tokens are assumed{}; say --seq-len",
                if most > 0 { format!(" (the model takes {most})") } else { String::new() }
            )),
        )),
    }
}

/// Share of the parameters by which a template may differ from the weights without a word: norms, tables of
/// positions, buffers that a file holds.
const TOLERATED: f64 = 0.01;

/// The file has the last word on how many parameters there are.
pub(super) fn reconcile(graph: &mut Graph, weights: &Weights) {
    let (made, held) = (graph.parameters(), weights.elements());
    if weights.tensors.is_empty() || held == 0 {
        return;
    }
    let trainable =
        graph.params.iter().filter(|p| !p.buffer).any(|p| p.trainable && !p.name.contains(".lora_"));
    if held > made {
        let name = "weights that the template lacks".to_owned();
        graph.params.push(Param {
            name,
            shape: vec![held - made],
            number: Number::Float,
            trainable,
            buffer: false,
        });
    }
    if held.abs_diff(made) as f64 > TOLERATED * held as f64 {
        graph.doubts.push(format!(
            "the file holds {held} numbers, the template of {} has {made}{}",
            graph.family,
            if held > made { ": the difference is counted as weights" } else { ": the larger count is kept" }
        ));
    }
}

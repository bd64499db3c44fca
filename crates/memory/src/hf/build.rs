//! From a configuration and a task to a graph: checks, the sequence's length, the family's builder.

use super::maker::Maker;
use super::{Config, Family, Head, decoder, encoder};
use crate::graph::Graph;
use crate::{Error, Task};

/// Tokens that are assumed where neither the task nor a short table of positions says how many.
const USUAL_TOKENS: u64 = 1024;

/// Operators of the model as the task runs it.
pub(super) fn graph(c: &Config, task: &Task) -> Result<Graph, Error> {
    check(c, task)?;
    let (seq, doubt) = length(c, task)?;
    let mut m = Maker::new(c, task, seq);
    if let Some(doubt) = doubt {
        m.b.doubt(doubt);
    }
    match c.family {
        Family::Bert | Family::DistilBert | Family::Albert => encoder::build(&mut m)?,
        Family::Unknown if c.head != Head::CausalLm => encoder::build(&mut m)?,
        family if family.is_decoder() || family == Family::Unknown => decoder::build(&mut m)?,
        other => {
            return Err(Error::bad("config.json, model_type", format!("no builder for {}", other.as_str())));
        }
    }
    Ok(m.finish())
}

/// What would make a graph of nothing, or of more than anybody has.
fn check(c: &Config, task: &Task) -> Result<(), Error> {
    let needed = [("hidden_size", c.hidden), ("num_attention_heads", c.heads), ("head_dim", c.head_dim)];
    for (name, value) in needed {
        if value == 0 || value > 1 << 20 {
            return Err(Error::bad(
                format!("config.json, {name}"),
                format!("expected 1 to 1048576, found {value}"),
            ));
        }
    }
    if c.kv_heads == 0 || c.heads % c.kv_heads != 0 {
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
    if task.batch_size == 0 || task.batch_size > 1 << 24 {
        return Err(Error::bad("batch size", format!("expected 1 to 16777216, found {}", task.batch_size)));
    }
    Ok(())
}

/// Tokens of a sample, and what to say where they were not given.
fn length(c: &Config, task: &Task) -> Result<(u64, Option<String>), Error> {
    if let (Some(image), false) = (c.image, c.vocab > 0) {
        let side = image.size / image.patch.max(1);
        return Ok((side * side + image.prefix, None));
    }
    // RoBERTa's table has two rows for padding.
    let roberta = matches!(c.model_type.as_str(), "roberta" | "xlm-roberta" | "camembert");
    let most = if roberta { c.positions.saturating_sub(2) } else { c.positions };
    let table = match c.family {
        Family::Bert | Family::DistilBert | Family::Albert | Family::Gpt2 | Family::GptNeo | Family::Opt => {
            true
        }
        Family::Bart => true,
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

//! A configuration from names and shapes of weights, where there is no `config.json`.

use super::safetensors::{Weight, Weights};
use super::{Config, Family, Head, Image, NormKind};
use crate::{Error, Precision};
use std::collections::{BTreeMap, BTreeSet};

/// What tells a family: the end of a name that only it has.
const SIGNS: &[(&str, Family)] = &[
    ("layer.0.rel_attn.q", Family::XlNet),
    ("encoder.block.0.layer.0.SelfAttention.q.weight", Family::T5),
    ("encoder.conv1.weight", Family::Whisper),
    ("decoder.layers.0.encoder_attn.k_proj.weight", Family::Bart),
    ("encoder.layer.0.attention.self.query_proj.weight", Family::Deberta),
    ("albert_layer_groups.0.albert_layers.0.attention.query.weight", Family::Albert),
    ("embeddings.patch_embeddings.projection.weight", Family::Vit),
    ("vision_model.embeddings.patch_embedding.weight", Family::Vit),
    ("encoder.layer.0.attention.self.query.weight", Family::Bert),
    ("transformer.layer.0.attention.q_lin.weight", Family::DistilBert),
    ("layer.0.attention.q_lin.weight", Family::DistilBert),
    ("h.0.attn.c_attn.weight", Family::Gpt2),
    ("h.0.attn.attention.q_proj.weight", Family::GptNeo),
    ("h.0.mlp.fc_in.weight", Family::GptJ),
    ("h.0.self_attention.query_key_value.weight", Family::Bloom),
    ("layers.0.attention.query_key_value.weight", Family::NeoX),
    ("decoder.layers.0.self_attn.q_proj.weight", Family::Opt),
    ("layers.0.self_attn.dense.weight", Family::Phi),
    ("layers.0.mlp.gate_proj.weight", Family::Llama),
    ("layers.0.mlp.gate_up_proj.weight", Family::Llama),
    ("layers.0.block_sparse_moe.gate.weight", Family::Llama),
    ("layers.0.mlp.gate.weight", Family::Llama),
];

/// Reads a configuration off the weights' names and shapes.
pub(super) fn config(weights: &Weights) -> Result<Config, Error> {
    if weights.tensors.is_empty() {
        return Err(Error::Missing {
            estimator: "safetensors",
            what: if weights.names_only.is_empty() {
                "weights: the header lists no tensor".to_owned()
            } else {
                "shapes: an index alone has only names; give the folder, one of its files, or config.json"
                    .to_owned()
            },
        });
    }
    let Some(family) = SIGNS.iter().find(|(end, _)| weights.find(end).is_some()).map(|(_, f)| *f) else {
        let shown: Vec<String> = weights
            .tensors
            .iter()
            .take(3)
            .map(|w| super::parse::printable(&w.name).chars().take(60).collect())
            .collect();
        return Err(Error::Missing {
            estimator: "safetensors",
            what: format!("config.json: no family has tensors with such names ({})", shown.join(", ")),
        });
    };
    let mut c = Config::of(family);
    c.doubts.push(format!("no config.json: a {} is read off the weights' names and shapes", family.as_str()));
    (c.head, c.tied) = head(weights, family);
    c.layers = numbered(weights, |name| !name.contains("decoder."));
    if c.layers == 0 {
        c.layers = numbered(weights, |_| true);
    }
    let table =
        ["word_embeddings.weight", "embed_tokens.weight", "wte.weight", "shared.weight", "embed_in.weight"];
    let table = table.iter().chain(&["word_embedding.weight"]).find_map(|end| two(weights, end));
    if let Some([rows, width]) = table {
        (c.vocab, c.embedding, c.hidden) = (rows, width, width);
    }
    shapes(weights, &mut c)?;
    c.dtype = common_type(weights);
    Ok(c)
}

fn two(weights: &Weights, end: &str) -> Option<[u64; 2]> {
    weights.shape(end).and_then(|s| <[u64; 2]>::try_from(s).ok())
}

/// Layers: the highest number that stands in a name, and one.
fn numbered(weights: &Weights, of: impl Fn(&str) -> bool) -> u64 {
    let mut layers = BTreeSet::new();
    for w in weights.tensors.iter().filter(|w| of(&w.name)) {
        let mut parts = w.name.split('.');
        while let Some(part) = parts.next() {
            if matches!(part, "layer" | "layers" | "h" | "block") {
                layers.extend(parts.next().and_then(|n| n.parse::<u64>().ok()).filter(|n| *n < 2048));
                break;
            }
        }
    }
    layers.last().map_or(0, |n| n + 1)
}

fn head(weights: &Weights, family: Family) -> (Head, bool) {
    let has = |end: &str| weights.find(end).is_some();
    let separate = has("lm_head.weight") || has("embed_out.weight");
    let head = if family.is_decoder() || family.is_seq2seq() {
        if has("score.weight") { Head::SequenceClassification } else { Head::CausalLm }
    } else if has("qa_outputs.weight") {
        Head::QuestionAnswering
    } else if has("classifier.weight") || has("classifier.out_proj.weight") {
        Head::SequenceClassification
    } else if family == Family::Vit {
        Head::None
    } else {
        Head::MaskedLm
    };
    (head, !separate)
}

/// Widths from the first layer's matrices.
fn shapes(weights: &Weights, c: &mut Config) -> Result<(), Error> {
    let first = |ends: &[&str]| ends.iter().find_map(|end| two(weights, end));
    // Rows out, columns in; GPT-2 has them the other way round.
    let q = first(&[
        "0.attention.self.query.weight",
        "0.attention.attention.query.weight",
        "0.attention.self.query_proj.weight",
        "0.attention.query.weight",
        "0.attention.q_lin.weight",
        "0.self_attn.q_proj.weight",
        "0.attn.q_proj.weight",
        "0.attn.attention.q_proj.weight",
        "0.layer.0.SelfAttention.q.weight",
    ]);
    let k = first(&["0.self_attn.k_proj.weight"]);
    let fused = first(&[
        "0.attn.c_attn.weight",
        "0.self_attn.qkv_proj.weight",
        "0.attention.query_key_value.weight",
        "0.self_attention.query_key_value.weight",
    ]);
    if let Some([_, inner]) = q {
        c.hidden = inner;
    } else if let Some([a, b]) = fused {
        c.hidden = a.min(b);
    } else if let Some(w) = weights.shape("layer.0.rel_attn.r_w_bias")
        && let [heads, d] = *w
    {
        (c.heads, c.kv_heads, c.head_dim, c.hidden) = (heads, heads, d, heads.saturating_mul(d));
    }
    let up = first(&[
        "0.intermediate.dense.weight",
        "0.ffn.lin1.weight",
        "0.ffn.weight",
        "0.mlp.c_fc.weight",
        "0.mlp.fc_in.weight",
        "0.mlp.fc1.weight",
        "0.fc1.weight",
        "0.mlp.dense_h_to_4h.weight",
        "0.mlp.up_proj.weight",
        "0.mlp.gate_up_proj.weight",
        "0.layer.1.DenseReluDense.wi.weight",
        "0.layer.1.DenseReluDense.wi_0.weight",
        "0.ff.layer_1.weight",
    ]);
    if let Some([a, b]) = up {
        c.intermediate = if a == c.hidden { b } else { a };
    }
    let wide = q.map_or(c.hidden, |[out, _]| out);
    heads(weights, c, wide);
    if let (Some([out, _]), Family::Llama) = (k, c.family) {
        c.kv_heads = (out / c.head_dim.max(1)).max(1);
    }
    if c.heads == 0 || c.kv_heads == 0 || !c.heads.is_multiple_of(c.kv_heads) {
        return Err(Error::bad(
            "safetensors header, q_proj and k_proj",
            format!("{} and {} heads of {} numbers don't fit together", c.heads, c.kv_heads, c.head_dim),
        ));
    }
    if c.rotary > 0 && matches!(c.family, Family::Llama | Family::Gemma) {
        c.rotary = c.head_dim;
    }
    c.qkv_bias = [".query.bias", ".q_proj.bias", ".c_attn.bias", ".q_lin.bias", ".query_key_value.bias"]
        .iter()
        .any(|end| weights.tensors.iter().any(|w| w.name.ends_with(end)));
    let rows = |ends: &[&str]| first(ends).map(|[rows, _]| rows);
    if let Some(n) = rows(&["position_embeddings.weight", "wpe.weight", "embed_positions.weight"]) {
        let extra = if matches!(c.family, Family::Opt | Family::Bart) { 2 } else { 0 };
        c.positions = n.saturating_sub(extra);
    }
    if c.family == Family::Whisper
        && let Some([rows, _]) = two(weights, "encoder.embed_positions.weight")
    {
        c.positions = rows;
    }
    c.token_types = rows(&["token_type_embeddings.weight"]).unwrap_or(0);
    if c.family.is_seq2seq() {
        c.decoder_layers = numbered(weights, |name| name.contains("decoder."));
        (c.decoder_heads, c.decoder_intermediate) = (c.heads, c.intermediate);
        c.gated = weights.find("0.layer.1.DenseReluDense.wi_0.weight").is_some();
    }
    if c.family == Family::Llama {
        llama(weights, c);
    }
    if c.family == Family::Vit {
        vision(weights, c);
    }
    Ok(())
}

/// Shapes say how wide all heads are together; how many there are is a guess, but for a few families.
fn heads(weights: &Weights, c: &mut Config, wide: u64) {
    let each_head = ["0.self_attn.q_norm.weight", "0.self_attn.k_norm.weight"];
    let norm = each_head.iter().find_map(|end| weights.shape(end)).and_then(|s| s.first()).copied();
    let table = two(weights, "relative_attention_bias.weight");
    let (heads, sure) = match (c.family, norm, table) {
        (Family::XlNet, ..) => (c.heads, true),
        (Family::T5, _, Some([buckets, heads])) => {
            c.buckets = buckets;
            (heads, true)
        }
        (_, Some(d), _) if d > 0 && d < wide => {
            c.qk_norm = true;
            (wide / d, true)
        }
        (Family::Llama, ..) if wide >= 3072 => (wide / 128, false),
        (Family::GptJ, ..) => (wide / 256, false),
        _ => (wide / 64, false),
    };
    c.heads = heads.max(1);
    c.kv_heads = c.heads;
    c.head_dim = (wide / c.heads).max(1);
    if !sure {
        c.doubts.push(format!("heads of {} numbers are a guess: the weights don't say", c.head_dim));
    }
}

fn llama(weights: &Weights, c: &mut Config) {
    c.fused = weights.find("0.self_attn.qkv_proj.weight").is_some();
    if c.fused {
        c.intermediate /= 2;
    }
    if weights.find("0.pre_feedforward_layernorm.weight").is_some() {
        c.post_norms = true;
    }
    let experts: BTreeSet<u64> = weights
        .tensors
        .iter()
        .filter_map(|w| w.name.split_once(".experts.")?.1.split('.').next()?.parse().ok())
        .collect();
    if let Some(last) = experts.last() {
        let width = ["experts.0.gate_proj.weight", "experts.0.w1.weight"]
            .iter()
            .find_map(|end| two(weights, end))
            .map_or(c.intermediate, |[rows, _]| rows);
        let count = (last + 1).min(4096);
        c.experts = Some(super::Experts {
            count,
            per_token: 2.min(count),
            intermediate: width,
            shared: 0,
            dense_layers: 0,
        });
        c.doubts.push("experts that a token goes to are a guess: the weights don't say".to_owned());
    }
    if weights.find("0.input_layernorm.bias").is_some() {
        c.norm = NormKind::Layer;
    }
}

fn vision(weights: &Weights, c: &mut Config) {
    let kernel = ["patch_embeddings.projection.weight", "patch_embedding.weight"];
    let Some([out, channels, patch, _]) =
        kernel.iter().find_map(|end| weights.shape(end)).and_then(|s| <[u64; 4]>::try_from(s).ok())
    else {
        return;
    };
    c.hidden = out;
    let positions = ["position_embeddings", "position_embedding.weight"];
    let tokens = positions
        .iter()
        .find_map(|end| weights.shape(end))
        .and_then(|s| s.iter().rev().nth(1).copied())
        .unwrap_or(197);
    let side = (tokens as f64).sqrt() as u64;
    c.image = Some(Image {
        size: side.saturating_mul(patch.max(1)).max(1),
        patch: patch.max(1),
        channels,
        prefix: tokens - side * side,
    });
    let labels = weights.shape("classifier.weight").and_then(|s| s.first()).copied();
    c.labels = labels.unwrap_or(c.labels);
    c.embedding = c.hidden;
}

/// The type that most bytes have.
fn common_type(weights: &Weights) -> Option<Precision> {
    let mut bytes: BTreeMap<&str, u64> = BTreeMap::new();
    for Weight { dtype, bytes: n, .. } in &weights.tensors {
        let sum = bytes.entry(dtype).or_default();
        *sum = sum.saturating_add(*n);
    }
    match *bytes.iter().max_by_key(|(_, n)| **n)?.0 {
        "F32" => Some(Precision::Fp32),
        "BF16" => Some(Precision::Bf16),
        "F16" => Some(Precision::Fp16),
        _ => None,
    }
}

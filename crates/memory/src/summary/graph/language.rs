//! Hugging Face models in a summary: class names tell the family, layers the dimensions, and the builders
//! of [`crate::hf`] do the rest.
//!
//! Summaries of such models show few of their operators (attention, additions and the loss are functions),
//! and modelsummary shows no shapes at all.

use super::role::{Role, role};
use crate::graph::Graph;
use crate::summary::{Layer, Summary};
use crate::{Error, ModelTask, Parallel, hf};
use serde_json::{Map, Value, json};

/// Beginnings of class names, longer before shorter, and `model_type`.
const FAMILIES: &[(&str, &str)] = &[
    ("XLMRobertaXL", "xlm-roberta-xl"),
    ("XLMRoberta", "xlm-roberta"),
    ("RobertaPreLayerNorm", "roberta-prelayernorm"),
    ("Roberta", "roberta"),
    ("Camembert", "camembert"),
    ("DistilBert", "distilbert"),
    ("Albert", "albert"),
    ("MegatronBert", "megatron-bert"),
    ("Bert", "bert"),
    ("Electra", "electra"),
    ("Ernie", "ernie"),
    ("DebertaV2", "deberta-v2"),
    ("Deberta", "deberta"),
    ("XLNet", "xlnet"),
    ("GPT2", "gpt2"),
    ("GPTNeoX", "gpt_neox"),
    ("GPTNeo", "gpt_neo"),
    ("GPTJ", "gptj"),
    ("GPTBigCode", "gpt_bigcode"),
    ("OPT", "opt"),
    ("Bloom", "bloom"),
    ("Phi3", "phi3"),
    ("Phi", "phi"),
    ("Llama", "llama"),
    ("Mistral", "mistral"),
    ("Mixtral", "mixtral"),
    ("Qwen3Moe", "qwen3_moe"),
    ("Qwen3", "qwen3"),
    ("Qwen2Moe", "qwen2_moe"),
    ("Qwen2", "qwen2"),
    ("Gemma3", "gemma3_text"),
    ("Gemma2", "gemma2"),
    ("Gemma", "gemma"),
    ("Olmo2", "olmo2"),
    ("Olmo", "olmo"),
    ("SmolLM3", "smollm3"),
    ("StableLm", "stablelm"),
    ("Starcoder2", "starcoder2"),
    ("Cohere", "cohere"),
    ("Granite", "granite"),
    ("Glm", "glm"),
    ("MT5", "mt5"),
    ("UMT5", "umt5"),
    ("T5", "t5"),
    ("MBart", "mbart"),
    ("Bart", "bart"),
    ("Pegasus", "pegasus"),
    ("Marian", "marian"),
    ("Whisper", "whisper"),
    ("ViT", "vit"),
    ("DeiT", "deit"),
    ("Dinov2", "dinov2"),
    ("Beit", "beit"),
];

/// How class names of whole models go on.
const ENDS: &[&str] = &["For", "Model", "LMHead", "DoubleHeads", "MTModel", "WithLMHead", "EncoderModel"];

/// The graph, if the summary is one of a Hugging Face model.
pub(super) fn graph(summary: &Summary, task: &ModelTask) -> Option<Result<Graph, Error>> {
    let (at, model_type) = summary.layers.iter().enumerate().take(8).find_map(|(i, l)| {
        let (front, model_type) = FAMILIES.iter().find(|(front, _)| l.kind.starts_with(front))?;
        let rest = &l.kind[front.len()..];
        ENDS.iter().any(|end| rest.starts_with(end)).then_some((i, *model_type))
    })?;
    Some(build(summary, at, model_type, task))
}

fn build(summary: &Summary, at: usize, model_type: &str, task: &ModelTask) -> Result<Graph, Error> {
    let view = View { layers: &summary.layers[at..] };
    let class = summary.layers[at].kind.clone();
    let mut doubts = Vec::new();
    let map = view.config(&class, model_type, &mut doubts)?;
    let text = serde_json::to_string(&Value::Object(map)).unwrap_or_default();
    let mut config = hf::Config::parse(&text).map_err(|e| match e {
        // The reader names fields of a file that the user never saw.
        Error::Bad { what, .. } => Error::bad(format!("summary of {class}"), what),
        other => other,
    })?;
    // What the text does not tell is what the family's first model has; the reader need not say it again.
    config.doubts.extend(doubts);
    let mut task = task.clone();
    if task.seq_len.is_none()
        && let Some(printed) = view.printed_length()
    {
        config
            .doubts
            .push(format!("no sequence length was given: that of the text, {printed} tokens, is taken"));
        task.seq_len = Some(printed);
    }
    if at > 0 && summary.layers[0].kind == "DataParallel" && task.parallel == Parallel::None {
        config.doubts.push("the text says DataParallel, the task one GPU; the task is believed".to_owned());
    }
    let mut graph = hf::graph(&config, &task)?;
    if task.seq_len.is_none()
        && config.image.is_none()
        && !graph.doubts.iter().any(|d| d.contains("sequence length"))
    {
        graph
            .doubts
            .push("no sequence length was given: the longest that the model takes is assumed".to_owned());
    }
    graph.doubts.extend(summary.doubts.iter().cloned());
    Ok(graph)
}

/// The layers of the model.
struct View<'a> {
    layers: &'a [Layer],
}

/// Rows and width of a table.
fn table(layer: &Layer) -> Option<(u64, u64)> {
    if role(&layer.kind) != Role::Embedding && !layer.kind.contains("Embedding") {
        return None;
    }
    if let (Some(rows), Some(width)) = (layer.number("0"), layer.number("1")) {
        return Some((rows, width));
    }
    // BART's tables have classes of their own; one that holds others is no table.
    if !layer.kind.ends_with("Embedding") && layer.kind != "EmbeddingBag" {
        return None;
    }
    let width = u64::try_from(*layer.outputs.first()?.last()?).ok().filter(|w| *w > 0)?;
    (layer.params > 0 && layer.params.is_multiple_of(width)).then_some((layer.params / width, width))
}

/// Width of what goes into and out of a linear layer.
fn widths(layer: &Layer) -> Option<(u64, u64)> {
    if role(&layer.kind) != Role::Linear {
        return None;
    }
    if let (Some(inner), Some(outer)) = (layer.number("in_features"), layer.number("out_features")) {
        return Some((inner, outer));
    }
    if let (Some(inner), Some(outer)) = (layer.number("nx"), layer.number("nf")) {
        return Some((inner, outer));
    }
    let outer = u64::try_from(*layer.outputs.first()?.last()?).ok().filter(|w| *w > 0)?;
    let inner = layer.params / outer;
    // With a bias the quotient is one too large; widths are even.
    Some((if inner % 2 == 1 { inner - 1 } else { inner }, outer))
}

/// A class that stands once for each layer of the model.
fn is_layer(kind: &str) -> bool {
    (kind.ends_with("Layer") || kind.ends_with("Block"))
        && !kind.contains("Attention")
        && !kind.contains("Mlp")
        && !kind.contains("MLP")
        && !kind.starts_with("T5Layer")
        && !kind.starts_with("MT5Layer")
}

impl View<'_> {
    fn config(
        &self,
        class: &str,
        model_type: &str,
        doubts: &mut Vec<String>,
    ) -> Result<Map<String, Value>, Error> {
        let mut map = Map::new();
        let mut set = |key: &str, value: Value| {
            map.insert(key.to_owned(), value);
        };
        set("model_type", json!(model_type));
        set("architectures", json!([class]));
        let image = matches!(model_type, "vit" | "deit" | "dinov2" | "beit");
        let tables: Vec<(usize, u64, u64)> = self
            .layers
            .iter()
            .enumerate()
            .filter_map(|(i, l)| table(l).map(|(rows, width)| (i, rows, width)))
            .collect();
        let hidden = self.hidden(&tables).ok_or_else(|| {
            Error::bad(
                format!("summary of {class}"),
                "neither an embedding nor a norm tells the width of the model",
            )
        })?;
        set("hidden_size", json!(hidden));
        if let Some((_, rows, width)) = tables.first().filter(|_| !image) {
            set("vocab_size", json!(rows));
            if *width != hidden {
                set("embedding_size", json!(width));
                set("word_embed_proj_dim", json!(width));
            }
        }
        for (i, rows, width) in tables.iter().skip(1) {
            let layer = &self.layers[*i];
            let named = |part: &str| layer.name.contains(part);
            if named("relative_attention_bias") {
                set("relative_attention_num_buckets", json!(rows));
                set("num_attention_heads", json!(width));
            } else if named("token_type") || *rows <= 16 && *width == tables[0].2 {
                set("type_vocab_size", json!(rows));
            } else if named("position")
                || named("wpe")
                || *rows >= 64 && !named("shared") && !named("embed_tokens")
            {
                // OPT and BART keep two rows for padding.
                let spare = if matches!(model_type, "opt" | "bart" | "mbart") { 2 } else { 0 };
                set("max_position_embeddings", json!(rows - spare.min(*rows)));
            }
        }
        self.stacks(hidden, model_type, doubts, &mut set);
        if gated(model_type)
            && let Some((_, m)) = self.hidden_layer(hidden)
        {
            set("intermediate_size", json!(m));
        }
        let norm_head = self.layers.iter().find(|l| l.attribute == "q_norm").and_then(|l| l.number("0"));
        let head = norm_head.filter(|h| *h < hidden).unwrap_or(if gated(model_type) && hidden > 2048 {
            128
        } else {
            64
        });
        let (query, value) = self.projections(hidden, head);
        let told = self.layers.iter().any(|l| l.name.contains("relative_attention_bias"));
        if !told && !model_type.starts_with("xlnet") {
            set("num_attention_heads", json!((query / head).max(1)));
        } else if !told {
            set("num_attention_heads", json!((hidden / 64).max(1)));
        }
        if gated(model_type) {
            set("head_dim", json!(head));
            if let Some(value) = value {
                set("num_key_value_heads", json!((value / head).max(1)));
            }
            if matches!(model_type, "qwen2" | "qwen3")
                && hidden <= 2560
                && (model_type == "qwen3" || hidden <= 1536)
            {
                doubts.push("whether the table of tokens is also the output matrix is not told; it is in published models of this size".to_owned());
                set("tie_word_embeddings", json!(true));
            }
        }
        let has = |part: &str| self.layers.iter().any(|l| l.kind.contains(part));
        if has("Sdpa") || has("FlashAttention") {
            set("_attn_implementation", json!("sdpa"));
        }
        self.dropout(&mut set);
        if let Some((_, outer)) = self.layers.iter().rev().find_map(widths)
            && class.contains("Classification")
        {
            set("num_labels", json!(outer));
        }
        if image {
            self.image(&mut set);
        }
        Ok(map)
    }

    /// Widths of query and value: by name, else by their order within the first layer.
    fn projections(&self, hidden: u64, head: u64) -> (u64, Option<u64>) {
        let named = |name: &str| self.layers.iter().find(|l| l.attribute == name).and_then(widths);
        if let Some((_, query)) = named("q_proj") {
            return (query, named("k_proj").map(|(_, outer)| outer));
        }
        let Some(at) = self.layers.iter().position(|l| is_layer(&l.kind)) else { return (hidden, None) };
        let mut inside =
            self.layers[at + 1..].iter().take_while(|l| l.depth > self.layers[at].depth).filter_map(widths);
        match (inside.next(), inside.next(), inside.next()) {
            (Some((_, query)), Some((_, key)), Some((_, value))) if key == value => (query, Some(value)),
            _ => (hidden, self.hidden_layer(hidden).map(|(kv, _)| kv.max(head))),
        }
    }

    /// Width of key and value, and of the MLP, of a gated layer whose inside is cut off:
    /// `2h^2 + 2hk + 3hm + 2h`, with the usual shares of heads.
    fn hidden_layer(&self, hidden: u64) -> Option<(u64, u64)> {
        let layer = self.layers.iter().enumerate().find(|(_, l)| is_layer(&l.kind))?;
        let inside = self.layers.get(layer.0 + 1).is_some_and(|next| next.depth > layer.1.depth);
        if inside {
            return None;
        }
        let rest = layer.1.params.checked_sub(2 * hidden * hidden + 2 * hidden)?;
        [256, 128, 64].into_iter().find_map(|unit| {
            [4, 1, 8, 7, 6, 2, 3, 5].into_iter().find_map(|share| {
                let kv = hidden / share;
                [0, hidden + 2 * kv].into_iter().find_map(|bias| {
                    let left = rest.checked_sub(2 * hidden * kv + bias)?;
                    let m = left / (3 * hidden);
                    (left % (3 * hidden) == 0 && m > 0 && m.is_multiple_of(unit)).then_some((kv, m))
                })
            })
        })
    }

    /// Width of the hidden states: that of the first layer's norm, else of the first table.
    fn hidden(&self, tables: &[(usize, u64, u64)]) -> Option<u64> {
        let layer = self.layers.iter().position(|l| is_layer(&l.kind));
        let width = |l: &Layer| u64::try_from(*l.outputs.first()?.last()?).ok();
        let norm = layer.and_then(|at| {
            // Of a layer whose inside is cut off its output tells; the next norm may be a narrower one, of ALBERT's head.
            if self.layers.get(at + 1).is_none_or(|next| next.depth <= self.layers[at].depth)
                && let Some(width) = width(&self.layers[at])
            {
                return Some(width);
            }
            self.layers[at..]
                .iter()
                .find(|l| l.kind.contains("LayerNorm"))
                .and_then(|l| width(l).or_else(|| l.number("0")))
        });
        let table = tables.first().map(|t| t.2);
        // ELECTRA's table is narrower than its layers.
        let encoder = self.layers.iter().find(|l| l.kind.ends_with("Encoder") || l.kind.ends_with("Model"));
        let printed =
            encoder.and_then(|l| u64::try_from(*l.outputs.first().filter(|s| s.len() == 3)?.last()?).ok());
        // Layers wider than what goes in and out (OPT-350m): a list of them has that many parameters.
        let fits = |h: &u64| {
            let block = layer_params(*h);
            self.layers.iter().any(|l| block > 0 && l.params >= block && l.params.is_multiple_of(block))
        };
        let wider = printed.or(table).filter(|_| layer.is_none());
        let wider = wider.and_then(|h| [h, 2 * h, 4 * h].into_iter().find(fits));
        norm.or(wider).or(printed).or(table).filter(|h| *h > 0 && *h < 1 << 20)
    }

    /// Layers and the width of their MLP; of encoder and decoder where there are two stacks.
    fn stacks(
        &self,
        hidden: u64,
        model_type: &str,
        doubts: &mut Vec<String>,
        set: &mut impl FnMut(&str, Value),
    ) {
        let decoder_at = self.layers.iter().position(|l| {
            l.attribute == "decoder" && !l.kind.contains("Linear") || l.kind.ends_with("Decoder")
        });
        let seq2seq =
            matches!(model_type, "t5" | "mt5" | "umt5" | "bart" | "mbart" | "pegasus" | "marian" | "whisper");
        let mut count = [0_u64; 2];
        let mut stacks_seen = 0;
        for (i, layer) in self.layers.iter().enumerate() {
            if layer.kind.ends_with("Stack") {
                stacks_seen += 1;
            }
            if is_layer(&layer.kind) {
                let decoder = seq2seq
                    && (decoder_at.is_some_and(|at| i > at)
                        || stacks_seen > 1
                        || layer.kind.contains("Decoder"));
                count[usize::from(decoder)] += 1;
            }
        }
        // A tree cut above the layers tells only their parameters; those of BERT's and GPT-2's kind follow.
        let block = layer_params(hidden);
        if count[0] == 0 && block > 0 {
            let whole = self.layers.iter().find(|l| l.params >= block && l.params.is_multiple_of(block));
            if let Some(list) = whole {
                count[0] = list.params / block;
                set("intermediate_size", json!(4 * hidden));
            }
        }
        // ALBERT runs one layer many times; a tree of modules shows it once.
        if model_type == "albert" && count[0] <= 1 {
            doubts.push("how often the layer is run is not told; 12 times is taken".to_owned());
        } else if count[0] == 0 {
            doubts.push(
                "the layers are not in the text; their number is that of the family's first model".to_owned(),
            );
        } else {
            set("num_hidden_layers", json!(count[0]));
        }
        if seq2seq && count[1] > 0 {
            set("decoder_layers", json!(count[1]));
            set("num_decoder_layers", json!(count[1]));
        }
        let first = self.layers.iter().position(|l| is_layer(&l.kind));
        let down = first.and_then(|at| {
            self.layers[at..]
                .iter()
                .filter_map(widths)
                .find(|(inner, outer)| *outer == hidden && *inner > hidden)
        });
        // GPT-2's Conv1D prints no widths in older versions: the number of its parameters tells them.
        let up = first.and_then(|at| {
            self.layers[at..].iter().find(|l| l.attribute == "c_fc").map(|l| l.params / (hidden + 1))
        });
        let whole = first.and_then(|at| {
            // A layer whose inside is cut off: attention 4h(h + 1), norms 4h, MLP 2hm + m + h.
            let p = self.layers[at].params.checked_sub(4 * hidden * hidden + 9 * hidden)?;
            (p > 0 && p.is_multiple_of(2 * hidden + 1)).then_some(p / (2 * hidden + 1))
        });
        if let Some(m) = down.map(|(inner, _)| inner).or(up).or(whole).filter(|m| *m > 0) {
            set("intermediate_size", json!(m));
        } else if first.is_some() && !(gated(model_type) && self.hidden_layer(hidden).is_some()) {
            doubts.push(format!("the width of the MLP is not in the text; {} is taken", 4 * hidden));
            set("intermediate_size", json!(4 * hidden));
        }
    }

    /// Printed probabilities that are all 0.
    fn dropout(&self, set: &mut impl FnMut(&str, Value)) {
        let mut chances =
            self.layers.iter().filter(|l| l.kind == "Dropout").filter_map(|l| l.attributes.get("p"));
        let printed = chances.clone().next().is_some();
        if printed && chances.all(|p| p.trim().parse::<f64>().is_ok_and(|p| p == 0.0)) {
            for key in
                ["hidden_dropout_prob", "attention_probs_dropout_prob", "embd_pdrop", "classifier_dropout"]
            {
                set(key, json!(0.0));
            }
        }
    }

    fn image(&self, set: &mut impl FnMut(&str, Value)) {
        let Some(conv) = self.layers.iter().find(|l| matches!(role(&l.kind), Role::Conv { .. })) else {
            return;
        };
        let kernel = conv.numbers("kernel_size").first().copied();
        if let Some(kernel) = kernel {
            set("patch_size", json!(kernel));
        }
        let cells = conv.outputs.first().and_then(|s| s.last()).and_then(|n| u64::try_from(*n).ok());
        let printed = conv.inputs.first().and_then(|s| s.last()).and_then(|n| u64::try_from(*n).ok());
        if let Some(size) = printed.or_else(|| Some(cells? * kernel.unwrap_or(16))) {
            set("image_size", json!(size));
        }
    }

    /// Tokens of a sample, where a shape tells them.
    fn printed_length(&self) -> Option<u64> {
        let table = self.layers.iter().find(|l| role(&l.kind) == Role::Embedding)?;
        let shape = table.outputs.first()?;
        if shape.len() != 3 {
            return None;
        }
        // XLNet puts the tokens first.
        let at = usize::from(!self.layers.iter().any(|l| l.kind.starts_with("XLNet")));
        u64::try_from(shape[at]).ok().filter(|n| *n > 0)
    }
}

/// Parameters of a layer of BERT's or GPT-2's kind, with an MLP of four times the width; 0 beyond belief.
fn layer_params(hidden: u64) -> u64 {
    if hidden < 1 << 24 { hidden * (12 * hidden + 13) } else { 0 }
}

/// Llama and its relatives.
fn gated(model_type: &str) -> bool {
    matches!(
        model_type,
        "llama"
            | "mistral"
            | "mixtral"
            | "qwen2"
            | "qwen2_moe"
            | "qwen3"
            | "qwen3_moe"
            | "gemma"
            | "gemma2"
            | "gemma3_text"
            | "olmo"
            | "olmo2"
            | "smollm3"
            | "phi3"
            | "granite"
            | "cohere"
            | "glm"
            | "stablelm"
    )
}

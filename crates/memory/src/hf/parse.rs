//! `config.json` to [`Config`].

use super::fields::Fields;
use super::{Act, Config, Experts, Family, Head, Image};
use crate::{Attention, Error, Precision};
use serde_json::{Map, Value};

/// Largest file that is read, bytes. The largest published ones (with a label for each of 21,843
/// classes) have 2 MB.
const MOST_BYTES: usize = 16 << 20;
/// Limits far beyond any published model, and small enough that nothing built from them overflows or
/// takes long.
const MOST_WIDTH: u64 = 1 << 20;
const MOST_LAYERS: u64 = 2048;
const MOST_HEADS: u64 = 1 << 14;
const MOST_ROWS: u64 = 1 << 28;

/// What errors call the file.
const PLACE: &str = "config.json";

/// Reads a file's text.
pub(super) fn config(text: &str) -> Result<Config, Error> {
    object(PLACE, &fields(text)?)
}

/// The fields of a file's text, whatever they are.
pub(super) fn fields(text: &str) -> Result<Map<String, Value>, Error> {
    if text.len() > MOST_BYTES {
        return Err(Error::bad(
            PLACE,
            format!("{} bytes; a configuration has at most {} MiB", text.len(), MOST_BYTES >> 20),
        ));
    }
    let value: Value = serde_json::from_str(text)
        .map_err(|e| Error::bad(PLACE, format!("not JSON: {}", printable(&e.to_string()))))?;
    match value {
        Value::Object(map) => Ok(map),
        _ => Err(Error::bad(PLACE, "expected an object { ... } as transformers saves it")),
    }
}

/// Control characters would garble a terminal.
pub(super) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

fn object(place: &str, map: &Map<String, Value>) -> Result<Config, Error> {
    let top = Fields::new(place, map);
    // Models of several kinds nest one configuration for each; the one of the text is the largest.
    let heads = top.texts(&["architectures"])?;
    if let Some(config) = two_towers(place, &top)? {
        return Ok(config);
    }
    let towers = ["text_config", "llm_config", "thinker_config", "vision_config"];
    let wants_vision =
        heads.iter().any(|h| h.contains("ForImage") || h.contains("Vision") && !h.contains("ForConditional"));
    for name in towers {
        let Some(inner) = top.object(name)? else { continue };
        if inner.is_empty()
            || (name == "vision_config") != wants_vision && top.object("text_config")?.is_some()
        {
            continue;
        }
        let path = format!("{place}, {name}");
        let mut merged = inner.clone();
        for key in ["architectures", "dtype", "torch_dtype", "tie_word_embeddings"] {
            if let Some(value) = map.get(key) {
                merged.entry(key).or_insert_with(|| value.clone());
            }
        }
        let mut config = flat(&Fields::new(&path, &merged))?;
        for other in ["text_config", "vision_config", "audio_config"] {
            if other != name && top.object(other)?.is_some_and(|o| !o.is_empty()) {
                config.doubts.push(format!(
                    "only {name} is counted; {other} is a second model inside this one, and it is not"
                ));
            }
        }
        return Ok(config);
    }
    flat(&top)
}

/// Models that run one tower of images and one of text for each sample. Their file says of a tower only what is not
/// as in the first model of the family, and older ones leave out what it is.
fn two_towers(place: &str, top: &Fields<'_>) -> Result<Option<Config>, Error> {
    let kind = top.text(&["model_type"])?.unwrap_or_default();
    let heads = top.texts(&["architectures"])?;
    let one = heads
        .iter()
        .any(|head| head.contains("Vision") || head.contains("Text") || head.contains("ForImage"));
    if one || !matches!(kind, "clip" | "siglip" | "metaclip_2") {
        return Ok(None);
    }
    let tower = |name: &'static str, model_type: String| -> Result<Config, Error> {
        let mut inner = top.object(name)?.cloned().unwrap_or_default();
        inner.entry("model_type").or_insert_with(|| model_type.into());
        flat(&Fields::new(&format!("{place}, {name}"), &inner))
    };
    let mut config = tower("vision_config", format!("{kind}_vision_model"))?;
    let mut text = tower("text_config", format!("{kind}_text_model"))?;
    config.doubts.append(&mut text.doubts);
    config.doubts.dedup();
    config.text = Some(Box::new(text));
    Ok(Some(config))
}

/// `model_type` to family. Two entries for a name would be an error of ours: the first counts.
fn family(model_type: &str) -> (Family, Option<&'static str>) {
    let exact = match model_type {
        "bert"
        | "roberta"
        | "xlm-roberta"
        | "camembert"
        | "electra"
        | "roberta-prelayernorm"
        | "xlm-roberta-xl"
        | "ernie"
        | "megatron-bert"
        | "data2vec-text"
        | "mpnet"
        | "nezha"
        | "layoutlm" => Family::Bert,
        "distilbert" => Family::DistilBert,
        "albert" => Family::Albert,
        "deberta" | "deberta-v2" => Family::Deberta,
        "xlnet" => Family::XlNet,
        "gpt2" | "openai-gpt" | "imagegpt" | "gpt_bigcode" => Family::Gpt2,
        "gpt_neo" => Family::GptNeo,
        "gptj" | "codegen" => Family::GptJ,
        "opt" => Family::Opt,
        "bloom" => Family::Bloom,
        "gpt_neox" | "gpt_neox_japanese" => Family::NeoX,
        "phi" => Family::Phi,
        "llama" | "mistral" | "qwen2" | "qwen3" | "phi3" | "olmo" | "olmo2" | "olmo3" | "smollm3"
        | "ministral" | "granite" | "internlm2" | "internlm3" | "yi" | "aquila" | "exaone" | "exaone4"
        | "glm" | "glm4" | "helium" | "seed_oss" | "apertus" | "starcoder2" | "stablelm" | "cohere"
        | "cohere2" | "nemotron" | "arcee" | "hunyuan_v1_dense" | "ernie4_5" | "mixtral" | "qwen2_moe"
        | "qwen3_moe" | "olmoe" | "phimoe" | "granitemoe" => Family::Llama,
        "gemma" | "gemma2" | "gemma3" | "gemma3_text" => Family::Gemma,
        "t5" | "mt5" | "umt5" | "longt5" | "switch_transformers" | "t5gemma" => Family::T5,
        "bart" | "mbart" | "marian" | "pegasus" | "blenderbot" | "blenderbot-small" | "m2m_100"
        | "plbart" => Family::Bart,
        "whisper" => Family::Whisper,
        "vit"
        | "deit"
        | "beit"
        | "data2vec-vision"
        | "dinov2"
        | "dinov2_with_registers"
        | "clip_vision_model"
        | "siglip_vision_model"
        | "metaclip_2_vision_model"
        | "vit_mae"
        | "vit_msn"
        | "ijepa"
        | "yolos" => Family::Vit,
        "clip_text_model" | "siglip_text_model" | "metaclip_2_text_model" => Family::ClipText,
        "wav2vec2" | "hubert" | "wavlm" | "data2vec-audio" | "unispeech" | "unispeech-sat" => Family::Wav2Vec,
        _ => Family::Unknown,
    };
    // Built from the nearest template: right in most operators, not in all.
    let near = match model_type {
        "longt5" | "switch_transformers" | "t5gemma" => Some("its attention or MLP differs from T5's"),
        "gpt_bigcode" | "openai-gpt" | "imagegpt" | "codegen" => Some("built as its nearest relative"),
        "mpnet" => Some("its bias by relative position is not counted"),
        "beit" | "data2vec-vision" => Some("its attention adds a bias by relative position"),
        "mixtral" | "qwen2_moe" | "qwen3_moe" | "olmoe" | "phimoe" | "granitemoe" => {
            Some("how many tokens each expert gets varies from step to step")
        }
        "deberta" => Some("built as its second version"),
        "siglip_vision_model" => Some("its pooling by attention is not counted"),
        "wavlm" => Some("its attention adds a bias by relative position"),
        "data2vec-audio" => Some("its convolutions for positions are counted as one"),
        "starcoder2"
        | "stablelm"
        | "cohere"
        | "cohere2"
        | "nemotron"
        | "glm"
        | "glm4"
        | "olmo"
        | "arcee"
        | "apertus"
        | "exaone4"
        | "helium"
        | "blenderbot"
        | "blenderbot-small"
        | "m2m_100"
        | "plbart"
        | "umt5"
        | "vit_mae"
        | "yolos"
        | "nezha"
        | "layoutlm"
        | "xlm-roberta-xl"
        | "roberta-prelayernorm" => Some("built as its nearest relative"),
        _ => None,
    };
    (exact, near)
}

fn head(architectures: &[&str]) -> Option<Head> {
    let name = architectures.first()?;
    // `LMHeadModel` of GPT-2 and XLNet, `DoubleHeadsModel`, `ForPreTraining` of BERT.
    let table = [
        ("ForCausalLM", Head::CausalLm),
        ("ForConditionalGeneration", Head::CausalLm),
        ("LMHeadModel", Head::CausalLm),
        ("ForMaskedLM", Head::MaskedLm),
        ("ForPreTraining", Head::MaskedLm),
        ("WithLMHead", Head::MaskedLm),
        ("ForSequenceClassification", Head::SequenceClassification),
        ("ForImageClassification", Head::SequenceClassification),
        ("ForTokenClassification", Head::TokenClassification),
        ("ForQuestionAnswering", Head::QuestionAnswering),
        ("ForMultipleChoice", Head::SequenceClassification),
        ("MTModel", Head::CausalLm),
        ("ForCTC", Head::MaskedLm),
    ];
    Some(
        table
            .iter()
            .find(|(end, _)| name.ends_with(end) || name.contains(end))
            .map_or(Head::None, |(_, h)| *h),
    )
}

fn flat(f: &Fields<'_>) -> Result<Config, Error> {
    let model_type = f.text(&["model_type"])?.unwrap_or_default();
    let (family, near) = family(model_type);
    let mut c = Config::of(family);
    c.model_type = printable(model_type);
    if let Some(why) = near {
        c.doubts.push(format!("{}: {why}", c.model_type));
    }
    if family == Family::Unknown {
        require(f, model_type)?;
        c.doubts.push(format!(
            "no template for model_type `{}`: counted as a usual transformer of these dimensions",
            c.model_type.chars().take(60).collect::<String>()
        ));
    }
    dimensions(f, &mut c)?;
    let architectures = f.texts(&["architectures"])?;
    match head(&architectures) {
        Some(head) => c.head = head,
        None => c.head = default_head(&c),
    }
    if let Some(labels) = f.number(&["num_labels"], 1, MOST_WIDTH)?.or_else(|| f.length("id2label")) {
        c.labels = labels.max(1);
    }
    habits(f, &mut c)?;
    super::habits::of_model(f, &mut c)?;
    running(f, &mut c)?;
    Ok(c)
}

/// Without `architectures` the file says nothing of a head; what such models are trained for is assumed.
fn default_head(c: &Config) -> Head {
    match c.family {
        f if f.is_decoder() || f.is_seq2seq() => Head::CausalLm,
        Family::Vit => Head::SequenceClassification,
        Family::ClipText | Family::Wav2Vec => Head::None,
        Family::Unknown if c.image.is_none() && c.vocab > 0 => Head::CausalLm,
        Family::Unknown => Head::None,
        _ => Head::MaskedLm,
    }
}

const HIDDEN: &[&str] = &["hidden_size", "n_embd", "d_model", "dim", "embed_dim", "model_dim"];
const LAYERS: &[&str] =
    &["num_hidden_layers", "n_layer", "n_layers", "encoder_layers", "num_layers", "num_encoder_layers"];
const HEADS: &[&str] = &[
    "num_attention_heads",
    "n_head",
    "n_heads",
    "num_heads",
    "encoder_attention_heads",
    "num_encoder_heads",
];
const INTERMEDIATE: &[&str] = &[
    "intermediate_size",
    "n_inner",
    "encoder_ffn_dim",
    "ffn_dim",
    "d_ff",
    "hidden_dim",
    "d_inner",
    "ffn_hidden_size",
];

/// An unknown model needs its dimensions: nothing can be assumed of it.
fn require(f: &Fields<'_>, model_type: &str) -> Result<(), Error> {
    let missing: Vec<&str> =
        [(HIDDEN, "hidden_size"), (LAYERS, "num_hidden_layers"), (HEADS, "num_attention_heads")]
            .iter()
            .filter(|(names, _)| f.get(names).is_none())
            .map(|(_, name)| *name)
            .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let model = if model_type.is_empty() {
        "no model_type, so".to_owned()
    } else {
        let model: String = printable(model_type).chars().take(60).collect();
        format!("no template for model_type `{model}`, and")
    };
    Err(Error::Missing {
        estimator: "config.json",
        what: format!(
            "{} ({model} the dimensions must be in the file; is it a transformer's config.json?)",
            missing.join(", ")
        ),
    })
}

fn dimensions(f: &Fields<'_>, c: &mut Config) -> Result<(), Error> {
    let given = f.number(HIDDEN, 1, MOST_WIDTH)?;
    if let Some(n) = given {
        c.hidden = n;
    }
    if let Some(n) = f.number(LAYERS, 0, MOST_LAYERS)? {
        c.layers = n;
    }
    if let Some(n) = f.number(HEADS, 1, MOST_HEADS)? {
        c.heads = n;
    }
    let image = c.family == Family::Vit || f.get(&["patch_size"]).is_some();
    let inner = f.number(INTERMEDIATE, 1, MOST_WIDTH << 2)?;
    c.intermediate = match (inner, f.float(&["mlp_ratio"])?) {
        (Some(n), _) => n,
        (None, Some(r)) if (0.0..=64.0).contains(&r) => (r * c.hidden as f64) as u64,
        // 4 times the width where a family leaves it open (GPT-2, GPT-J, BLOOM).
        _ => 4 * c.hidden,
    };
    c.kv_heads = f
        .number(
            &["num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num"],
            1,
            MOST_HEADS,
        )?
        .unwrap_or(c.heads);
    c.head_dim = match f.number(&["head_dim", "d_kv", "attention_head_dim", "d_head"], 1, MOST_WIDTH)? {
        Some(n) => n,
        None => c.hidden / c.heads,
    };
    if c.head_dim == 0 {
        return Err(Error::bad(
            "config.json, num_attention_heads",
            format!("{} heads share {} numbers: less than one each", c.heads, c.hidden),
        ));
    }
    if !c.heads.is_multiple_of(c.kv_heads) {
        return Err(Error::bad(
            "config.json, num_key_value_heads",
            format!("{} heads of the query can't share {} of the keys", c.heads, c.kv_heads),
        ));
    }
    if let Some(n) = f.number(&["vocab_size"], 1, MOST_ROWS)? {
        c.vocab = n;
    }
    let positions =
        ["max_position_embeddings", "n_positions", "max_source_positions", "n_ctx", "max_seq_len"];
    if let Some(n) = f.number(&positions, 0, MOST_ROWS)? {
        c.positions = n;
    }
    if let Some(n) = f.number(&["type_vocab_size"], 0, MOST_ROWS)? {
        c.token_types = n;
    }
    c.embedding = f.number(&["embedding_size", "word_embed_proj_dim"], 1, MOST_WIDTH)?.unwrap_or(c.hidden);
    if c.family == Family::Albert && f.get(&["embedding_size"]).is_none() {
        c.embedding = 128;
    }
    if c.family.is_seq2seq() {
        let layers = f.number(&["decoder_layers", "num_decoder_layers"], 0, MOST_LAYERS)?;
        c.decoder_layers = layers.unwrap_or(c.layers);
        c.decoder_heads = f.number(&["decoder_attention_heads"], 1, MOST_HEADS)?.unwrap_or(c.heads);
        c.decoder_intermediate =
            f.number(&["decoder_ffn_dim"], 1, MOST_WIDTH << 2)?.unwrap_or(c.intermediate);
    }
    let buckets = ["relative_attention_num_buckets", "position_buckets"];
    if let Some(n) = f.number(&buckets, 1, MOST_ROWS)? {
        c.buckets = n;
    }
    if image {
        let usual = c.image.unwrap_or(Image { size: 224, patch: 16, channels: 3, prefix: 1 });
        let size = f.side(&["image_size"], 1, 1 << 16)?.unwrap_or(usual.size);
        let patch = f.side(&["patch_size"], 1, 1 << 16)?.unwrap_or(usual.patch);
        if patch > size {
            return Err(Error::bad(
                "config.json, patch_size",
                format!("patches of {patch} pixels in an image of {size}"),
            ));
        }
        let channels = f.number(&["num_channels"], 1, 4096)?.unwrap_or(usual.channels);
        let registers = f.number(&["num_register_tokens"], 0, 4096)?.unwrap_or(0);
        let prefix = match c.model_type.as_str() {
            "deit" => 2,
            "siglip_vision_model" | "ijepa" => 0,
            _ => 1 + registers,
        };
        c.image = Some(Image { size, patch, channels, prefix });
    }
    if let Some(n) = f.number(&["num_mel_bins"], 1, 1 << 16)? {
        c.mel_bins = n;
    }
    if given.is_none() && f.get(LAYERS).is_none() {
        c.doubts.push(format!(
            "neither a width nor a number of layers is given: those of the first {} are assumed",
            c.family.as_str()
        ));
    }
    Ok(())
}

/// What most families name alike.
fn habits(f: &Fields<'_>, c: &mut Config) -> Result<(), Error> {
    let act = [
        "hidden_act",
        "activation_function",
        "hidden_activation",
        "activation",
        "dense_act_fn",
        "ff_activation",
    ];
    if let Some(name) = f.text(&act)? {
        c.act = self::act(name, c);
    }
    let embedding = f.chance(&["embd_pdrop", "embedding_dropout", "embed_dropout"])?;
    let hidden = f.chance(&[
        "hidden_dropout_prob",
        "resid_pdrop",
        "hidden_dropout",
        "dropout_rate",
        "dropout",
        "resid_dropout",
    ])?;
    let d = &mut c.dropout;
    d.hidden = hidden.unwrap_or(d.hidden);
    // Most families have one probability for both; OPT has none after its embedding.
    d.embedding = embedding.or(hidden).unwrap_or(d.embedding) && c.family != Family::Opt;
    let attention = ["attention_probs_dropout_prob", "attn_pdrop", "attention_dropout", "attn_dropout"];
    // T5 and XLNet have a single probability.
    let everywhere = matches!(c.family, Family::T5 | Family::XlNet).then_some(hidden).flatten();
    d.attention = f.chance(&attention)?.or(everywhere).unwrap_or(d.attention);
    d.activation = f.chance(&["activation_dropout"])?.or(everywhere).unwrap_or(d.activation);
    let classifier = ["classifier_dropout", "seq_classif_dropout", "classifier_dropout_prob"];
    let usual = if c.family == Family::Bert { Some(c.dropout.hidden) } else { None };
    c.dropout.classifier = f.chance(&classifier)?.or(usual).unwrap_or(c.dropout.classifier);
    if let Some(tied) = f.boolean(&["tie_word_embeddings"])? {
        c.tied = tied;
    }
    if let Some(on) = f.boolean(&["use_cache"])? {
        c.cache &= on;
    }
    if f.get(&["sliding_window"]).is_some() && f.boolean(&["use_sliding_window"])?.unwrap_or(true) {
        c.window = f.number(&["sliding_window"], 1, MOST_ROWS)?;
    }
    let counts = ["num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"];
    if let Some(count) = f.number(&counts, 1, 1 << 12)?.filter(|n| *n > 1) {
        let per_token =
            f.number(&["num_experts_per_tok", "moe_topk", "top_k"], 1, count)?.unwrap_or(2.min(count));
        let width = f.number(&["moe_intermediate_size"], 1, MOST_WIDTH << 2)?;
        let shared = f.number(&["shared_expert_intermediate_size"], 0, MOST_WIDTH << 2)?;
        let shared = match f.number(&["n_shared_experts"], 0, 1 << 12)? {
            Some(n) => n * width.unwrap_or(c.intermediate),
            None => shared.unwrap_or(0),
        };
        let dense_layers = f.number(&["first_k_dense_replace"], 0, MOST_LAYERS)?.unwrap_or(0);
        c.experts = Some(Experts {
            count,
            per_token,
            intermediate: width.unwrap_or(c.intermediate),
            shared,
            dense_layers,
        });
    }
    Ok(())
}

fn act(name: &str, c: &mut Config) -> Act {
    match name {
        "relu" | "tanh" | "sigmoid" => Act::KeepsOutput,
        "gelu" | "silu" | "swish" | "gelu_pytorch_tanh" | "gelu_python_tanh" | "mish" | "relu6"
        | "leaky_relu" | "selu" => Act::KeepsInput,
        "gelu_new" | "gelu_fast" | "gelu_accurate" | "gelu_python" | "gelu_10" => Act::GeluNew,
        "quick_gelu" => Act::QuickGelu,
        "relu2" => Act::ReluSquared,
        "xielu" | "laplace" | "linear" => {
            c.doubts.push(format!("activation {name} is counted as GELU"));
            Act::KeepsInput
        }
        other => {
            let name: String = printable(other).chars().take(40).collect();
            c.doubts.push(format!("unknown activation `{name}` is counted as GELU"));
            Act::KeepsInput
        }
    }
}

/// How it is loaded.
fn running(f: &Fields<'_>, c: &mut Config) -> Result<(), Error> {
    c.attention = match f.text(&["_attn_implementation", "attn_implementation"])? {
        Some("eager") => Some(Attention::Eager),
        Some("sdpa" | "flash_attention_2" | "flash_attention_3" | "flex_attention") => Some(Attention::Sdpa),
        _ => None,
    };
    c.dtype = match f.text(&["dtype", "torch_dtype"])? {
        Some("bfloat16") => Some(Precision::Bf16),
        Some("float16") => Some(Precision::Fp16),
        Some("float32") => Some(Precision::Fp32),
        _ => None,
    };
    if let Some(quantization) = f.object("quantization_config")? {
        let method = quantization.get("quant_method").and_then(Value::as_str).unwrap_or("unknown");
        c.doubts.push(format!(
            "weights are quantised ({}): counted as if they were not",
            printable(method).chars().take(40).collect::<String>()
        ));
    }
    Ok(())
}

//! Whatever a configuration, a header or an index holds, reading it ends in a value or in an error that
//! says what is wrong: never in a panic. Runs as tests on random input from a seed, and under libFuzzer with
//! `cargo bolero test`.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use bolero::TypeGenerator;
use carma_memory::hf::safetensors::Weights;
use carma_memory::hf::{self, Config};
use carma_memory::{Error, ModelTask, Precision};
use carma_seeded::check;

const ITERATIONS: usize = 3000;

/// Values that have a meaning somewhere, or are just outside of one.
const VALUES: &[&str] = &[
    "0",
    "1",
    "2",
    "3",
    "8",
    "64",
    "512",
    "4096",
    "1048576",
    "1048577",
    "268435456",
    "4294967296",
    "18446744073709551615",
    "18446744073709551616",
    "-1",
    "0.1",
    "12.0",
    "1e18",
    "1e308",
    "-0.0",
    "true",
    "false",
    "null",
    "\"\"",
    "\"gelu\"",
    "\"gated-gelu\"",
    "\"relu2\"",
    "\"bfloat16\"",
    "\"eager\"",
    "\"\\u0000\\u001b[31m\"",
    "\"數\"",
    "[]",
    "[16, 16]",
    "[-1]",
    "[\"BertForMaskedLM\"]",
    "[\"GPT2LMHeadModel\", 5]",
    "[\"CLIPVisionModel\"]",
    "{}",
    "{\"model_type\": \"llama\"}",
    "{\"model_type\": \"vit\", \"patch_size\": 0}",
    "{\"a\": {\"b\": []}}",
];

const TYPES: &[&str] = &[
    "bert",
    "roberta",
    "distilbert",
    "albert",
    "electra",
    "deberta-v2",
    "xlnet",
    "gpt2",
    "gpt_neo",
    "gptj",
    "opt",
    "bloom",
    "gpt_neox",
    "phi",
    "llama",
    "phi3",
    "qwen3",
    "mixtral",
    "olmo2",
    "gemma2",
    "t5",
    "bart",
    "whisper",
    "vit",
    "dinov2",
    "clip_vision_model",
    "siglip_vision_model",
    "llava",
    "nobody",
    "",
];

const FIELDS: &[&str] = &[
    "hidden_size",
    "n_embd",
    "d_model",
    "num_hidden_layers",
    "n_layer",
    "num_layers",
    "encoder_layers",
    "decoder_layers",
    "num_attention_heads",
    "n_head",
    "num_heads",
    "num_key_value_heads",
    "head_dim",
    "d_kv",
    "intermediate_size",
    "n_inner",
    "d_ff",
    "mlp_ratio",
    "vocab_size",
    "max_position_embeddings",
    "n_positions",
    "type_vocab_size",
    "embedding_size",
    "word_embed_proj_dim",
    "rotary_dim",
    "rotary_pct",
    "rope_parameters",
    "rms_norm_eps",
    "relative_attention_num_buckets",
    "position_buckets",
    "image_size",
    "patch_size",
    "num_channels",
    "num_register_tokens",
    "num_mel_bins",
    "max_source_positions",
    "num_labels",
    "id2label",
    "hidden_act",
    "activation_function",
    "feed_forward_proj",
    "attention_dropout",
    "dropout_rate",
    "tie_word_embeddings",
    "use_cache",
    "sliding_window",
    "num_local_experts",
    "num_experts_per_tok",
    "n_shared_experts",
    "moe_intermediate_size",
    "first_k_dense_replace",
    "architectures",
    "dtype",
    "_attn_implementation",
    "quantization_config",
    "text_config",
    "vision_config",
    "qk_layernorm",
    "attention_bias",
    "final_logit_softcapping",
    "share_att_key",
    "use_swiglu_ffn",
    "do_layer_norm_before",
];

/// Mostly a configuration.
#[derive(Debug, Clone, TypeGenerator)]
struct File {
    kind: u8,
    fields: Vec<(u8, u8)>,
    /// So many bytes lost at the end.
    cut: Option<u8>,
    batch: u8,
    seq: Option<u8>,
    precision: u8,
    checkpointing: bool,
}

impl File {
    fn text(&self) -> String {
        let pick = |list: &[&'static str], at: u8| list[usize::from(at) % list.len()];
        // Dimensions that hold together, so that many files get as far as a graph; what follows wins.
        let mut text = format!(
            "{{\"model_type\": \"{}\", \"hidden_size\": 64, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"vocab_size\": 99",
            pick(TYPES, self.kind)
        );
        // Few of them: one wrong value ends the reading.
        for (field, value) in self.fields.iter().take(3) {
            text.push_str(&format!(", \"{}\": {}", pick(FIELDS, *field), pick(VALUES, *value)));
        }
        text.push('}');
        if let Some(cut) = self.cut.filter(|cut| *cut > 128) {
            let keep = text.len().saturating_sub(usize::from(cut));
            let keep = (0..=keep).rev().find(|at| text.is_char_boundary(*at)).unwrap();
            text.truncate(keep);
        }
        text
    }

    fn task(&self) -> ModelTask {
        let precisions = [
            Precision::Fp32,
            Precision::Bf16,
            Precision::Fp16Autocast,
            Precision::Bf16Autocast,
            Precision::Fp16,
        ];
        ModelTask {
            batch_size: u64::from(self.batch),
            seq_len: self.seq.map(u64::from),
            precision: precisions[usize::from(self.precision) % precisions.len()],
            gradient_checkpointing: self.checkpointing,
            ..ModelTask::default()
        }
    }
}

fn judge(error: &Error) {
    let said = error.to_string();
    assert!(!said.is_empty() && said.len() < 2000 && !said.chars().any(char::is_control), "{said:?}");
}

fn used(text: &str, task: &ModelTask) {
    match Config::parse(text) {
        Err(error) => judge(&error),
        // Hundreds of layers are no other paths than a few.
        Ok(config) if config.layers > 8 || config.decoder_layers > 8 => {}
        Ok(config) => match hf::graph(&config, task) {
            Err(error) => judge(&error),
            Ok(graph) => {
                assert!(graph.doubts.iter().all(|d| !d.chars().any(char::is_control)), "{:?}", graph.doubts);
                let mut made = vec![false; graph.tensors.len()];
                for node in &graph.nodes {
                    assert!(
                        node.inputs.iter().all(|t| made[t.0 as usize]),
                        "{} reads what is not there",
                        node.name
                    );
                    assert!(node.params.iter().all(|p| (p.0 as usize) < graph.params.len()));
                    node.outputs.iter().for_each(|t| made[t.0 as usize] = true);
                }
            }
        },
    }
}

#[test]
fn configurations() {
    check!(ITERATIONS).with_type::<File>().for_each(|file| used(&file.text(), &file.task()));
    check!(ITERATIONS).with_type::<Vec<u8>>().for_each(|bytes| {
        used(&String::from_utf8_lossy(bytes), &ModelTask::default());
    });
}

/// A header of an announced length, right or not, over entries that are mostly right.
#[derive(Debug, Clone, TypeGenerator)]
struct Header {
    entries: Vec<(u8, u8, u8, u8)>,
    length: Option<u64>,
    cut: u8,
    rest: Vec<u8>,
}

const NAMES: &[&str] = &[
    "model.embed_tokens.weight",
    "model.layers.0.self_attn.q_proj.weight",
    "model.layers.0.self_attn.k_proj.weight",
    "model.layers.0.mlp.gate_proj.weight",
    "model.layers.1.mlp.up_proj.weight",
    "lm_head.weight",
    "bert.encoder.layer.0.attention.self.query.weight",
    "bert.embeddings.position_embeddings.weight",
    "transformer.h.0.attn.c_attn.weight",
    "transformer.h.99999999999999999999.attn.c_attn.weight",
    "encoder.block.0.layer.0.SelfAttention.q.weight",
    "relative_attention_bias.weight",
    "vit.embeddings.patch_embeddings.projection.weight",
    "vit.embeddings.position_embeddings",
    "transformer.layer.0.rel_attn.q",
    "layer.0.rel_attn.r_w_bias",
    "model.layers.0.self_attn.q_norm.weight",
    "model.layers.0.mlp.experts.4095.gate_proj.weight",
    "__metadata__",
    "\\u001b",
    "layers.0.mlp.gate_up_proj.weight",
];

const SHAPES: &[(&str, u64)] = &[
    ("[64, 64]", 4096),
    ("[16, 64]", 1024),
    ("[256, 64]", 16384),
    ("[64]", 64),
    ("[8, 3, 4, 4]", 384),
    ("[1, 10, 64]", 640),
    ("[]", 1),
    ("[0]", 0),
    ("[4, 16]", 64),
    ("[4294967296, 4294967296]", 4),
    ("[18446744073709551615]", 4),
    ("[-1]", 4),
    ("7", 4),
];

impl Header {
    fn bytes(&self) -> Vec<u8> {
        let mut json = String::from("{");
        for (i, (name, shape, dtype, damage)) in self.entries.iter().take(24).enumerate() {
            // Mostly shapes that can be.
            let choice = if *shape < 248 { shape % 9 } else { shape % SHAPES.len() as u8 };
            let (shape, elements) = SHAPES[usize::from(choice)];
            let (dtype, width) =
                [("F32", 4), ("BF16", 2), ("F16", 2), ("I64", 8), ("X7", 1)][usize::from(*dtype) % 5];
            let end = match damage {
                0..=250 => elements * width,
                251..=253 => 0,
                _ => u64::MAX,
            };
            if i > 0 {
                json.push(',');
            }
            json.push_str(&format!(
                "\"{}\": {{\"dtype\": \"{dtype}\", \"shape\": {shape}, \"data_offsets\": [0, {end}]}}",
                NAMES[usize::from(*name) % NAMES.len()]
            ));
        }
        json.push('}');
        let length = self.length.filter(|n| n % 4 == 0).unwrap_or(json.len() as u64);
        let mut bytes = [&length.to_le_bytes()[..], json.as_bytes(), &self.rest].concat();
        bytes.truncate(bytes.len().saturating_sub(usize::from(self.cut / 64)));
        bytes
    }
}

fn weights(bytes: &[u8]) {
    match Weights::parse(bytes) {
        Err(error) => judge(&error),
        Ok(weights) => {
            assert!(weights.tensors.iter().all(|t| t.elements() <= 1 << 44));
            match Config::of_weights(&weights) {
                Err(error) => judge(&error),
                Ok(config) => {
                    let task = ModelTask { seq_len: Some(16), ..ModelTask::default() };
                    if config.layers <= 8
                        && let Err(error) = hf::graph_with(&config, &weights, &task)
                    {
                        judge(&error);
                    }
                }
            }
        }
    }
}

#[test]
fn headers() {
    check!(ITERATIONS).with_type::<Header>().for_each(|header| weights(&header.bytes()));
    check!(ITERATIONS).with_type::<Vec<u8>>().for_each(|bytes| weights(bytes));
}

#[test]
fn indices() {
    check!(ITERATIONS).with_type::<(Vec<(u8, u8)>, u8, u8)>().for_each(|(entries, total, cut)| {
        let pick = |list: &[&'static str], at: u8| list[usize::from(at) % list.len()];
        let map: Vec<String> = entries
            .iter()
            .take(24)
            .map(|(name, file)| {
                // A file's name, or something else altogether.
                let file = if *file < 200 { "\"a.safetensors\"" } else { pick(VALUES, *file) };
                format!("\"{}\": {file}", pick(NAMES, *name))
            })
            .collect();
        let total = if *total < 128 { "123456" } else { pick(VALUES, *total) };
        let text =
            format!("{{\"metadata\": {{\"total_size\": {total}}}, \"weight_map\": {{{}}}}}", map.join(","));
        let keep = text.len().saturating_sub(usize::from(*cut % 3));
        weights(&text.as_bytes()[..keep]);
    });
}

#[test]
fn adapters() {
    check!(ITERATIONS).with_type::<Vec<(u8, u8)>>().for_each(|fields| {
        let names = ["peft_type", "r", "target_modules", "lora_alpha"];
        let fields: Vec<String> = fields
            .iter()
            .take(6)
            .map(|(name, value)| {
                format!(
                    "\"{}\": {}",
                    names[usize::from(*name) % 4],
                    VALUES[usize::from(*value) % VALUES.len()]
                )
            })
            .collect();
        if let Err(error) = hf::adapter(&format!("{{{}}}", fields.join(","))) {
            judge(&error);
        }
    });
}

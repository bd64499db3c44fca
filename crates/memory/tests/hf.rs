//! Hugging Face front ends against traces of real models, measured runs, and wrong input.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use carma_memory::graph::{self, Op};
use carma_memory::hf::safetensors::Weights;
use carma_memory::hf::{Config, Family, Head};
use carma_memory::margin::Margin;
use carma_memory::{
    Attention, Lora, MIB, MiB, Mode, ModelTask, Optimizer, Parallel, Platform, Precision, Tier, hf,
};
use serde_json::{Value, json};

fn platform(name: &str) -> Platform {
    Platform::lookup(name, (2, 11)).unwrap()
}

/// Peak allocated and reserved, MiB, and the graph.
fn run(config: &Value, task: &ModelTask, gpu: &str) -> (f64, f64, graph::Graph) {
    let config = Config::parse(&config.to_string()).unwrap();
    let graph = hf::graph(&config, task).unwrap();
    let peak = graph::replay(&graph, task, &platform(gpu)).unwrap().peak;
    let mib = |bytes: u64| bytes as f64 / MIB as f64;
    (mib(peak.max_allocated), mib(peak.max_reserved), graph)
}

fn task_of(run: &Value) -> ModelTask {
    let text = |name: &str| run[name].as_str().unwrap_or_default();
    ModelTask {
        batch_size: run["B"].as_u64().unwrap(),
        seq_len: run["S"].as_u64(),
        optimizer: if text("opt") == "sgd" { Optimizer::Sgd } else { Optimizer::Adamw },
        precision: match text("precision") {
            "bf16" => Precision::Bf16,
            "bf16-autocast" => Precision::Bf16Autocast,
            _ => Precision::Fp32,
        },
        attention: if text("attn") == "eager" { Attention::Eager } else { Attention::Sdpa },
        gradient_checkpointing: run["ckpt"] == json!(true),
        mode: if text("mode") == "infer" { Mode::Infer } else { Mode::Train },
        lora: run["lora"]["r"].as_u64().map(|r| Lora { rank: r as u32, targets: Vec::new() }),
        ..ModelTask::default()
    }
}

/// Every operator counts: what tensors take agrees almost to the tensor, what the allocator holds as far as
/// fragmentation allows. Where the graph says that it doubts, the margin for doubts covers the difference.
#[test]
fn graphs_take_what_traces_of_the_models_take() {
    let text = include_str!("data/hf_traces.jsonl");
    let (mut sure, mut doubted): (Vec<[f64; 2]>, Vec<[f64; 2]>) = (Vec::new(), Vec::new());
    for line in text.lines().skip(1) {
        let row: Value = serde_json::from_str(line).unwrap();
        let label = format!("{} {}", row["name"], row["run"]);
        let task = task_of(&row["run"]);
        if row["config"]["model_type"].as_str().is_some_and(|t| t.ends_with("t5"))
            && (task.attention, task.mode) == (Attention::Sdpa, Mode::Train)
        {
            // The traces are of transformers 5.23, where a fused kernel takes the trained bias. The graph is for
            // releases before, where none does: see `with_bias`.
            continue;
        }
        let a100 = row["run"]["cc"][0] == json!(8);
        let (allocated, reserved, graph) =
            run(&row["config"], &task_of(&row["run"]), if a100 { "A100-40GB" } else { "H200" });
        let off = |value: f64, name: &str| value / row[name].as_f64().unwrap() - 1.0;
        let errors = [off(allocated, "allocated_mib"), off(reserved, "reserved_mib")];
        if graph.doubts.is_empty() {
            let limit = if row["run"].get("precision").is_none() { 0.025 } else { 0.035 };
            assert!(errors[0].abs() < limit, "{label}: allocated {allocated:.0} MiB, {errors:?}");
            assert!(errors[1].abs() < 0.11, "{label}: reserved {reserved:.0} MiB, {errors:?}");
            let traced = row["parameters"].as_u64().unwrap();
            // A table that is not trained, a token for masks, biases of segments.
            let off = graph.parameters().abs_diff(traced) as f64;
            assert!(off <= 0.016 * traced as f64, "{label}: {} of {traced}", graph.parameters());
            sure.push(errors);
        } else {
            let task = task_of(&row["run"]);
            let margin = Margin::of(Tier::Config, false, &task, graph.doubts.len());
            let upper = margin.upper(MiB::ZERO, MiB(reserved as u64));
            assert!(upper.0 as f64 >= row["reserved_mib"].as_f64().unwrap(), "{label}: {errors:?}");
            assert!(errors[1] < 0.2, "{label}: {errors:?}");
            doubted.push(errors);
        }
    }
    for (name, rows, limits) in
        [("no doubt", &sure, [0.005, 0.015]), ("with a doubt", &doubted, [0.06, 0.06])]
    {
        let mean = |i: usize| rows.iter().map(|e| e[i].abs()).sum::<f64>() / rows.len() as f64;
        let worst = rows.iter().fold(0.0_f64, |w, e| if e[1].abs() > w.abs() { e[1] } else { w });
        println!(
            "{name}: {} traces, mean error of allocated {:.2} %, of reserved {:.2} %, worst {:+.1} %",
            rows.len(),
            mean(0) * 100.0,
            mean(1) * 100.0,
            worst * 100.0
        );
        assert!(rows.len() > 20 && mean(0) < limits[0] && mean(1) < limits[1]);
    }
}

/// Two campaigns of itu-rad on one type of machine. XLNet's sequences had varying lengths, and one of
/// its two GPUs idled: printed, not judged.
#[test]
fn language_models_of_the_campaigns() {
    // (a file that shows the data is there, context of the campaign, MiB)
    let shown = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/data/carma/workloads.csv");
    if !std::path::Path::new(shown).exists() {
        eprintln!("skipped: ../shared/data/carma/workloads.csv is not there");
        return;
    }
    let bert = |hidden: u64, layers: u64| {
        json!({"model_type": "bert", "architectures": ["BertForMaskedLM"], "vocab_size": 28996,
            "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": hidden / 64,
            "intermediate_size": 4 * hidden})
    };
    let gpt2 = json!({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 1280,
        "n_layer": 36, "n_head": 20});
    let xlnet = |hidden: u64, layers: u64| {
        json!({"model_type": "xlnet", "architectures": ["XLNetLMHeadModel"], "d_model": hidden,
            "n_layer": layers, "n_head": hidden / 64, "d_inner": 4 * hidden, "vocab_size": 32000})
    };
    let one = |batch_size: u64| ModelTask {
        batch_size,
        seq_len: Some(512),
        optimizer: Optimizer::Adamw,
        ..ModelTask::default()
    };
    let two = |batch_size: u64| ModelTask { gpus: 2, parallel: Parallel::DataParallel, ..one(batch_size) };
    let mut sum = 0.0;
    let rows = [
        ("BERT_base, CARMA", bert(768, 12), one(32), 524, 19_828, true),
        ("BERT_base, GPUMemNet", bert(768, 12), one(32), 1429, 20_774, true),
        ("BERT_large, CARMA", bert(1024, 24), one(8), 524, 12_622, true),
        ("BERT_large, GPUMemNet", bert(1024, 24), one(8), 1429, 13_568, true),
        ("gpt2_large on two GPUs, CARMA", gpt2, two(8), 524, 28_356, true),
        ("xlnet_base, GPUMemNet", xlnet(768, 12), one(8), 1429, 9_718, false),
        ("xlnet_large, GPUMemNet", xlnet(1024, 24), one(4), 1429, 14_546, false),
        ("xlnet_base, CARMA", xlnet(768, 12), one(8), 524, 9_192, false),
    ];
    let judged = rows.iter().filter(|row| row.5).count() as f64;
    for (name, config, task, context, measured, fixed) in rows {
        let (_, reserved, _) = run(&config, &task, "A100-40GB");
        let error = (reserved + f64::from(context)) / f64::from(measured) - 1.0;
        println!(
            "{name}: {:.0}, measured {measured}: {:+.1} %",
            reserved + f64::from(context),
            error * 100.0
        );
        if fixed {
            sum += error.abs();
            assert!(error.abs() < 0.05, "{name}");
        }
    }
    let mre = sum / judged;
    println!("fixed length: MRE {:.2} %", mre * 100.0);
    assert!(mre <= 0.02, "{mre}");
}

fn llama() -> Value {
    json!({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 256,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "intermediate_size": 512, "vocab_size": 1000, "max_position_embeddings": 512})
}

fn with(mut config: Value, name: &str, value: Value) -> Value {
    config[name] = value;
    config
}

#[test]
fn wrong_fields_are_named() {
    let huge = json!(1e18);
    for (name, value, expected) in [
        ("hidden_size", huge.clone(), "hidden_size: expected a whole number from 1 to 1048576"),
        (
            "num_hidden_layers",
            json!(1_000_000_000),
            "num_hidden_layers: expected a whole number from 0 to 2048",
        ),
        ("num_hidden_layers", json!(-3), "num_hidden_layers"),
        ("vocab_size", huge, "vocab_size"),
        (
            "hidden_size",
            json!("many"),
            "hidden_size: expected a whole number from 1 to 1048576, found \"many\"",
        ),
        ("hidden_size", json!([1, 2]), "hidden_size"),
        ("hidden_size", json!(1.5), "hidden_size"),
        ("num_attention_heads", json!(0), "num_attention_heads"),
        ("num_key_value_heads", json!(3), "num_key_value_heads: 4 heads of the query can't share 3"),
        ("num_attention_heads", json!(1000), "num_attention_heads: 1000 heads share 256 numbers"),
        ("attention_dropout", json!(7), "attention_dropout: expected a probability"),
        ("tie_word_embeddings", json!("yes"), "tie_word_embeddings: expected true or false"),
        ("architectures", json!("LlamaForCausalLM"), "architectures: expected a list of texts"),
        ("model_type", json!(5), "model_type: expected a text"),
        ("partial_rotary_factor", json!(9), "partial_rotary_factor"),
        ("text_config", json!(3), "text_config: expected an object"),
    ] {
        let error = Config::parse(&with(llama(), name, value.clone()).to_string()).unwrap_err().to_string();
        assert!(error.contains(expected), "{name} = {value}: {error}");
        assert!(!error.contains('\n') && error.len() < 300, "{error}");
    }
}

#[test]
fn what_is_no_configuration_is_said() {
    for (text, expected) in [
        (String::new(), "not JSON"),
        ("[]".to_owned(), "expected an object"),
        ("\u{7f}ELF\0\0".to_owned(), "not JSON"),
        (llama().to_string()[..100].to_owned(), "not JSON"),
        ("{}".to_owned(), "hidden_size, num_hidden_layers, num_attention_heads"),
        ("[".repeat(100_000), "not JSON"),
        (format!("{{\"a\": \"{}\"}}", "x".repeat(17 << 20)), "at most 16 MiB"),
        (
            json!({"model_type": "wav\u{1b}[31m", "hidden_size": 5}).to_string(),
            "num_hidden_layers, num_attention_heads",
        ),
    ] {
        let error = Config::parse(&text).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert!(!error.chars().any(char::is_control), "{error:?}");
    }
}

/// An absurd product of possible numbers is refused with the layer's name, before anything is built of it.
#[test]
fn absurd_products_are_refused() {
    let config = Config::parse(&with(llama(), "vocab_size", json!(1 << 28)).to_string()).unwrap();
    let task = ModelTask { batch_size: 1 << 20, seq_len: Some(512), ..ModelTask::default() };
    let error = hf::graph(&config, &task).unwrap_err().to_string();
    assert!(error.contains("lm_head") && error.contains("no GPU holds"), "{error}");
    let task = ModelTask { seq_len: Some(0), ..ModelTask::default() };
    assert!(hf::graph(&config, &task).unwrap_err().to_string().contains("sequence length"));
}

#[test]
fn a_table_of_positions_ends() {
    let bert = json!({"model_type": "bert"});
    let config = Config::parse(&bert.to_string()).unwrap();
    let long = ModelTask { seq_len: Some(513), ..ModelTask::default() };
    let error = hf::graph(&config, &long).unwrap_err().to_string();
    assert!(error.contains("513 tokens") && error.contains("512 positions"), "{error}");
    // Rotary positions have no table.
    assert!(hf::graph(&Config::parse(&llama().to_string()).unwrap(), &long).is_ok());
}

#[test]
fn a_length_that_nobody_gave_is_stated() {
    let long = with(llama(), "max_position_embeddings", json!(131_072));
    let graph = hf::graph(&Config::parse(&long.to_string()).unwrap(), &ModelTask::default()).unwrap();
    assert!(graph.doubts.iter().any(|d| d.contains("1024 tokens are assumed (the model takes 131072)")));
    let short = hf::graph(&Config::parse(&llama().to_string()).unwrap(), &ModelTask::default()).unwrap();
    assert_eq!(short.doubts, Vec::<String>::new());
}

#[test]
fn an_unknown_model_is_counted_with_a_doubt() {
    let config = with(llama(), "model_type", json!("brand_new"));
    let config = Config::parse(&config.to_string()).unwrap();
    assert_eq!((config.family, config.head), (Family::Unknown, Head::CausalLm));
    let graph = hf::graph(&config, &ModelTask { seq_len: Some(64), ..ModelTask::default() }).unwrap();
    assert!(
        graph.doubts.iter().any(|d| d.contains("no template for model_type `brand_new`")),
        "{:?}",
        graph.doubts
    );
    assert!(graph.parameters() > 500_000);
}

#[test]
fn nested_configurations() {
    let both = json!({"model_type": "llava", "architectures": ["LlavaForConditionalGeneration"],
        "text_config": llama(), "vision_config": {"model_type": "clip_vision_model"}});
    let config = Config::parse(&both.to_string()).unwrap();
    assert_eq!((config.family, config.hidden), (Family::Llama, 256));
    assert!(config.doubts.iter().any(|d| d.contains("vision_config")));
    let bad = json!({"model_type": "llava", "text_config": {"model_type": "llama", "hidden_size": -1}});
    let error = Config::parse(&bad.to_string()).unwrap_err().to_string();
    assert!(error.contains("text_config, hidden_size"), "{error}");
}

#[test]
fn fp32_attention_over_shared_keys_is_written_out() {
    let config = Config::parse(&llama().to_string()).unwrap();
    let ops = |precision: Precision| {
        let task = ModelTask { precision, seq_len: Some(64), ..ModelTask::default() };
        let graph = hf::graph(&config, &task).unwrap();
        graph.nodes.iter().filter(|n| matches!(n.op, Op::Attention { .. })).count()
    };
    assert_eq!((ops(Precision::Fp32), ops(Precision::Bf16)), (0, 2));
}

#[test]
fn adapters_are_all_that_is_trained() {
    let config = Config::parse(&llama().to_string()).unwrap();
    let lora =
        |targets: &[&str]| Lora { rank: 4, targets: targets.iter().map(|t| (*t).to_owned()).collect() };
    let trained = |lora: Lora| {
        let task = ModelTask { lora: Some(lora), ..ModelTask::default() };
        let graph = hf::graph(&config, &task).unwrap();
        graph.params.iter().filter(|p| p.trainable).map(graph::Param::elements).sum::<u64>()
    };
    // Query 256 -> 256, value 256 -> 128, in two layers.
    assert_eq!(trained(lora(&[])), 2 * 4 * (256 + 256 + 256 + 128));
    assert_eq!(trained(lora(&["down_proj"])), 2 * 4 * (512 + 256));
    assert_eq!(trained(lora(&["nothing_of_this_name"])), 0);
    let file = r#"{"peft_type": "LORA", "r": 16, "target_modules": ["q_proj", "v_proj"], "lora_alpha": 32}"#;
    assert_eq!(
        hf::adapter(file).unwrap(),
        Lora { rank: 16, targets: vec!["q_proj".into(), "v_proj".into()] }
    );
    assert!(hf::adapter(r#"{"peft_type": "IA3"}"#).unwrap_err().to_string().contains("peft_type"));
    assert!(hf::adapter(r#"{"r": -1}"#).unwrap_err().to_string().contains("adapter_config.json, r"));
}

/// A safetensors file without data: its header says how much there would be.
fn safetensors(tensors: &[(String, Vec<u64>)]) -> Vec<u8> {
    let mut at = 0;
    let mut header = serde_json::Map::new();
    header.insert("__metadata__".to_owned(), json!({"format": "pt"}));
    for (name, shape) in tensors {
        let bytes = 4 * shape.iter().product::<u64>();
        header
            .insert(name.clone(), json!({"dtype": "F32", "shape": shape, "data_offsets": [at, at + bytes]}));
        at += bytes;
    }
    let json = serde_json::to_vec(&header).unwrap();
    let mut file = (json.len() as u64).to_le_bytes().to_vec();
    file.extend(json);
    file
}

/// Names and shapes as a graph has them, under transformers' prefixes.
fn weights_of(config: &Config, prefix: &str) -> Vec<(String, Vec<u64>)> {
    let graph = hf::graph(config, &ModelTask { seq_len: Some(16), ..ModelTask::default() }).unwrap();
    let named = |p: &graph::Param| (format!("{prefix}{}", p.name), p.shape.clone());
    graph.params.iter().filter(|p| !p.buffer).map(named).collect()
}

#[test]
fn headers_are_read_and_tell_the_dimensions() {
    let mut wanted = Config::parse(&llama().to_string()).unwrap();
    let weights = Weights::parse(&safetensors(&weights_of(&wanted, "model."))).unwrap();
    let found = Config::of_weights(&weights).unwrap();
    assert_eq!(found.family, Family::Llama);
    assert_eq!(
        (found.hidden, found.layers, found.heads, found.kv_heads, found.intermediate, found.vocab),
        (256, 2, 4, 2, 512, 1000)
    );
    assert_eq!(found.dtype, Some(Precision::Fp32));
    assert!(found.doubts.iter().any(|d| d.contains("guess")));
    let task = ModelTask { seq_len: Some(16), ..ModelTask::default() };
    assert_eq!(hf::graph(&found, &task).unwrap().parameters(), weights.elements());
    // More weights than the template has are counted.
    wanted.layers = 1;
    let graph = hf::graph_with(&wanted, &weights, &task).unwrap();
    assert_eq!(graph.parameters(), weights.elements());
    assert!(graph.doubts.iter().any(|d| d.contains("the template of llama has")), "{:?}", graph.doubts);
}

#[test]
fn broken_headers_are_refused() {
    let good = safetensors(&[("a.weight".to_owned(), vec![4, 4])]);
    assert_eq!(Weights::parse(&good).unwrap().elements(), 16);
    let with_length = |length: u64| [&length.to_le_bytes()[..], &good[8..]].concat();
    let entry = |text: &str| {
        let json = format!("{{\"layer\\u001b.w\": {text}}}");
        [&(json.len() as u64).to_le_bytes()[..], json.as_bytes()].concat()
    };
    for (file, expected) in [
        (Vec::new(), "expected 8 bytes with its length, found 0 bytes"),
        (good[..5].to_vec(), "found 5 bytes"),
        (good[..20].to_vec(), "cut: a header of"),
        (with_length(1 << 40), "the limit is 100000000"),
        (with_length(u64::MAX), "the limit is 100000000"),
        (with_length(0), "holds no JSON"),
        (with_length(9), "safetensors header:"),
        (b"PK\x03\x04 a zip file and so on".to_vec(), "the limit is 100000000"),
        (entry(r#"{"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}"#), "ends before it begins"),
        (entry(r#"{"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}"#), "does not fit into 8 bytes"),
        (
            entry(r#"{"dtype": "F32", "shape": [4294967296, 4294967296], "data_offsets": [0, 8]}"#),
            "no GPU holds",
        ),
        (entry(r#"{"dtype": "F32", "shape": [-1], "data_offsets": [0, 8]}"#), "safetensors header:"),
        (entry("7"), "safetensors header:"),
    ] {
        let error = Weights::parse(&file).unwrap_err().to_string();
        assert!(error.contains(expected), "{expected}: {error}");
        assert!(!error.chars().any(char::is_control), "{error:?}");
    }
}

#[test]
fn files_and_their_index() {
    let folder = tempfile::tempdir().unwrap();
    let config = Config::parse(&llama().to_string()).unwrap();
    let tensors = weights_of(&config, "model.");
    let (first, second) = tensors.split_at(tensors.len() / 2);
    let mut map = serde_json::Map::new();
    for (name, part) in
        [("model-00001-of-00002.safetensors", first), ("model-00002-of-00002.safetensors", second)]
    {
        let mut file = safetensors(part);
        // The data is not read, but it must be there.
        file.resize(
            file.len() + part.iter().map(|(_, s)| 4 * s.iter().product::<u64>()).sum::<u64>() as usize,
            0,
        );
        std::fs::write(folder.path().join(name), file).unwrap();
        map.extend(part.iter().map(|(tensor, _)| (tensor.clone(), json!(name))));
    }
    let index = json!({"metadata": {"total_size": 9e6}, "weight_map": map});
    std::fs::write(folder.path().join("model.safetensors.index.json"), index.to_string()).unwrap();
    let weights = Weights::open(folder.path()).unwrap();
    assert_eq!(weights.tensors.len(), tensors.len());
    assert_eq!(Config::of_weights(&weights).unwrap().hidden, 256);

    let alone = Weights::parse(index.to_string().as_bytes()).unwrap();
    assert_eq!((alone.bytes, alone.names_only.len()), (9_000_000, tensors.len()));
    assert!(Config::of_weights(&alone).unwrap_err().to_string().contains("an index alone has only names"));

    let cut = folder.path().join("model-00002-of-00002.safetensors");
    let half = std::fs::read(&cut).unwrap();
    std::fs::write(&cut, &half[..half.len() - 10]).unwrap();
    let error = Weights::open(folder.path()).unwrap_err().to_string();
    assert!(error.contains("is it cut?") && error.contains("00002-of-00002"), "{error}");

    let elsewhere = json!({"weight_map": {"a": "../../etc/passwd"}});
    std::fs::write(folder.path().join("model.safetensors.index.json"), elsewhere.to_string()).unwrap();
    assert!(Weights::open(folder.path()).unwrap_err().to_string().contains("no name of a file beside it"));

    for other in ["[1]", "{}"] {
        let file = folder.path().join("model.safetensors.index.json");
        std::fs::write(&file, other).unwrap();
        let error = Weights::open(&file).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{}, safetensors index: ", file.display())), "{error}");
        assert!(error.contains("expected an object with `weight_map`"), "{error}");
    }
}

/// Every family builds, in every way of running it, and the rules can play it.
#[test]
fn every_family_in_every_way() {
    let families = [
        Family::Bert,
        Family::DistilBert,
        Family::Albert,
        Family::Deberta,
        Family::XlNet,
        Family::Gpt2,
        Family::GptNeo,
        Family::GptJ,
        Family::Opt,
        Family::Bloom,
        Family::NeoX,
        Family::Phi,
        Family::Llama,
        Family::Gemma,
        Family::T5,
        Family::Bart,
        Family::Whisper,
        Family::Vit,
    ];
    let heads = [
        Head::None,
        Head::CausalLm,
        Head::MaskedLm,
        Head::SequenceClassification,
        Head::TokenClassification,
        Head::QuestionAnswering,
    ];
    let ways = [
        ModelTask::default(),
        ModelTask { precision: Precision::Bf16Autocast, attention: Attention::Eager, ..ModelTask::default() },
        ModelTask { precision: Precision::Fp16, gradient_checkpointing: true, ..ModelTask::default() },
        ModelTask { lora: Some(Lora { rank: 2, targets: Vec::new() }), ..ModelTask::default() },
        ModelTask { mode: Mode::Infer, precision: Precision::Bf16, ..ModelTask::default() },
    ];
    for family in families {
        let mut config = Config { layers: 2, decoder_layers: 2, vocab: 500, ..Config::of(family) };
        for head in heads {
            config.head = head;
            for way in &ways {
                let task = ModelTask { batch_size: 2, seq_len: Some(32), ..way.clone() };
                let graph = hf::graph(&config, &task).unwrap();
                let replay = graph::replay(&graph, &task, &platform("H200")).unwrap();
                assert!(replay.peak.max_allocated > 4 * MIB, "{family:?} {head:?} {task:?}");
                assert!(!graph.outputs.is_empty());
            }
        }
    }
}

fn graph_of(config: &str, task: &ModelTask) -> Result<carma_memory::graph::Graph, carma_memory::Error> {
    hf::graph(&Config::parse(config)?, task)
}

/// CLIP ViT-B/32 has 151 million parameters, of which the image tower has 88; wav2vec 2.0 base has 94.4 million.
#[test]
fn towers_and_waveforms() {
    let task = ModelTask { batch_size: 4, ..ModelTask::default() };
    let clip = r#"{"model_type": "clip", "text_config": {"hidden_size": 512}, "vision_config": {"model_type": "clip_vision_model", "hidden_size": 768, "patch_size": 32}}"#;
    let graph = graph_of(clip, &task).unwrap();
    assert!(graph.parameters().abs_diff(151_277_313) < 800_000, "{}", graph.parameters());
    assert!(graph.doubts.is_empty(), "{:?}", graph.doubts);
    let one = clip.replace("{\"model", "{\"architectures\": [\"CLIPVisionModel\"], \"model");
    assert!(graph_of(&one, &task).unwrap().parameters() < 90_000_000);

    let wave = r#"{"model_type": "wav2vec2", "architectures": ["Wav2Vec2ForCTC"], "vocab_size": 32, "hidden_size": 768}"#;
    let second = ModelTask { seq_len: Some(16_000), ..task };
    let graph = graph_of(wave, &second).unwrap();
    assert!(graph.parameters().abs_diff(94_396_320) < 500_000, "{}", graph.parameters());
    assert!(graph.doubts.is_empty(), "{:?}", graph.doubts);
    // 16,000 numbers become 49 states.
    assert!(graph.tensors.iter().any(|t| t.shape == [4, 49, 768]));
    for (tokens, config, says) in [
        (100, wave, "too few"),
        (
            16_000,
            r#"{"model_type": "hubert", "conv_dim": [512], "conv_kernel": [3, 3], "conv_stride": [2]}"#,
            "same length",
        ),
        (
            16_000,
            r#"{"model_type": "hubert", "conv_dim": [512], "conv_kernel": [3], "conv_stride": [0]}"#,
            "conv_stride",
        ),
    ] {
        let error = graph_of(config, &ModelTask { seq_len: Some(tokens), ..second.clone() }).unwrap_err();
        assert!(error.to_string().contains(says), "{error}");
    }
}

#[test]
fn the_decoder_has_a_length_of_its_own() {
    let bart = r#"{"model_type": "bart", "vocab_size": 50265}"#;
    let task = ModelTask { seq_len: Some(512), ..ModelTask::default() };
    let short = ModelTask { target_len: Some(64), ..task.clone() };
    let logits = |task: &ModelTask, tokens: u64| {
        graph_of(bart, task).unwrap().tensors.iter().any(|t| t.shape == [1, tokens, 50265])
    };
    assert!(logits(&task, 512) && logits(&short, 64) && !logits(&short, 512));
    let long = ModelTask { target_len: Some(2000), ..task.clone() };
    assert!(graph_of(bart, &long).unwrap_err().to_string().contains("table of 1024 positions"));
}

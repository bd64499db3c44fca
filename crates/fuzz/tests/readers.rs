//! Every reader of bytes that come from outside. A new reader belongs here.
//!
//! | where they come from | readers |
//! |---|---|
//! | files that a user names | `summary`, `hf_config`, `lora_adapter`, `safetensors`, `onnx`, `trace_log`, `command`, `job_toml`, `job_rad`, `profiles`, `measured`, `measured_log`, `bench_play`, `learned_model`, `kace_model`, `kace_table`, `kernels`, `report`, `trace_csv`, `catalogue`, `trace_import_*`, `gpu_model`, `dataset`, `networks`, `dnnperf_networks`, `checkpoint`, `gzip` |
//! | files of the operator | `config`, `gpu_spec` |
//! | the socket | `wire_submit`, `wire_replies`, `memory_sizes` |
//! | tasks while they run | `heartbeat_datagram`, `heartbeat_file`, `output` |
//! | carma's own files, which a crash or a bad disk may have damaged | `journal_input`, `journal_state`, `supervisor_order`, `supervisor_hello`, `supervisor_record`, `recorder_file`, `recorder_rows` |
//!
//! Structured targets, which get deeper into one format, lie with their crates (`tests/*fuzz*.rs`, and
//! `bolero::check!` beside the code). Files of `carma bench interference` (tasks, groups) are read by `toml` within
//! 1 MiB and tried by `crates/carma/tests/readers.rs`.

#![allow(clippy::unwrap_used, reason = "a failing helper may end the test")]

use carma_api::wire::{
    ContextProbe, ErrorReply, ExplainReply, GpusReply, JobDetail, JobsReply, MemoryReply, SlowdownsReply,
    StatusReply, SubmitReply, SubmitRequest,
};
use carma_fuzz::reader;
use carma_memory::command::{Command, Processes, Taker};
use carma_memory::trace::Asked;
use carma_memory::{ModelTask, Platform};
use carma_sim::trace::import::{Format, import};
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::path::Path;

const FILE: &str = "input";

fn text(bytes: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}

fn json<T: DeserializeOwned>(bytes: &[u8]) {
    let _ = serde_json::from_slice::<T>(bytes);
}

fn platform() -> Platform {
    Platform::lookup("H200", (2, 11)).unwrap()
}

#[test]
fn summary() {
    let torchsummary = "        Layer (type)               Output Shape         Param #\n\
        ================================================================\n            Conv2d-1         [-1, 32, 112, 112]             864\n\
        ================================================================\nTotal params: 864\n";
    let torchinfo = "Layer (type (var_name):depth-idx)        Kernel Shape   Input Shape      Output Shape   Param #   Trainable\n\
        ===============\n├─Sequential (body): 1-1                 --   [8, 3, 32, 32]   [8, 16, 32, 32]   --   False\n\
        │    └─Conv2d (0): 2-1                   [3, 3]   [8, 3, 32, 32]   [8, 16, 32, 32]   (448)   False\n\
        ├─Linear (fc): 1-2                       --   [8, 16384]   [8, 10]   163,850   True\n===============\nTotal params: 164,298\n";
    reader("summary").sample(torchsummary).sample(torchinfo).reads(|bytes| {
        if let Ok(summary) = carma_memory::summary::parse_bytes(bytes) {
            let _ = carma_memory::gpumemnet::ModelLayers::of_summary(&summary, &ModelTask::default());
        }
    });
}

#[test]
fn hf_config() {
    let llama = r#"{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 1000, "max_position_embeddings": 64}"#;
    let vit = r#"{"model_type": "vit", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128, "image_size": 32, "patch_size": 8}"#;
    reader("hf_config").sample(llama).sample(vit).reads(|bytes| {
        if let Ok(config) = carma_memory::hf::Config::parse(&text(bytes)) {
            let _ = carma_memory::hf::graph(&config, &ModelTask::default());
        }
    });
}

#[test]
fn lora_adapter() {
    let sample = r#"{"peft_type": "LORA", "r": 8, "target_modules": ["q_proj", "v_proj"]}"#;
    reader("lora_adapter").sample(sample).reads(|bytes| drop(carma_memory::hf::adapter(&text(bytes))));
}

#[test]
fn safetensors() {
    let header = r#"{"model.embed_tokens.weight":{"dtype":"F32","shape":[4,4],"data_offsets":[0,64]}}"#;
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    file.extend_from_slice(&[0; 64]);
    let index =
        r#"{"metadata": {"total_size": 64}, "weight_map": {"a.weight": "model-00001-of-00001.safetensors"}}"#;
    reader("safetensors").sample(file).sample(index).reads(|bytes| {
        if let Ok(weights) = carma_memory::hf::safetensors::Weights::parse(bytes) {
            let _ = carma_memory::hf::Config::of_weights(&weights);
        }
    });
}

#[test]
fn onnx() {
    reader("onnx")
        .sample(include_bytes!("../../memory/tests/onnx/vgg11.train.onnx"))
        .sample(include_bytes!("../../memory/tests/onnx/gpt2.eval.onnx"))
        .reads(|bytes| drop(carma_memory::onnx::graph(bytes, &ModelTask::default())));
}

#[test]
fn trace_log() {
    let sample = "{\"format\":\"carma-trace\",\"version\":1,\"torch\":\"2.11.0\",\"what\":\"train.py\"}\nm forward\na 7 4194304\n\
        w 0\nf 7\nc 3000000\nt 64\ne\na 9 600\n{\"end\":{\"status\":\"complete\",\"steps\":3,\"backwards\":3,\"model\":\"ResNet\"}}\n";
    let counted = "{\"format\":\"carma-trace\",\"version\":1,\"ids\":\"counted\"}\na 512\na 512\nf 0\n";
    // Its last row becomes many: small storages that nobody gives back.
    let leak = "{\"format\":\"carma-trace\",\"version\":1,\"ids\":\"counted\"}\na 1\n{\"end\":{\"status\":\"complete\"}}\n";
    let platform = platform();
    // Asked for another command and batch than it may name.
    let asked = Asked {
        program: vec!["train.py".into(), "--bs".into(), "64".into()],
        batch: Some(64),
        edition: Some("1".into()),
        unread: false,
    };
    reader("trace_log").sample(sample).sample(counted).sample(leak).unpacks().reads(move |bytes| {
        let _ = carma_memory::trace::estimate_for(bytes, &asked, &ModelTask::default(), &platform);
        if let Ok(mut log) = carma_memory::trace::read(bytes) {
            let _ = carma_memory::trace::replay(&mut log, &platform);
        }
    });
}

/// A command's words, its script, and the files of settings that it names.
#[test]
fn command() {
    let script = "import os, jax\nos.environ['XLA_CLIENT_MEM_FRACTION'] = '.5'\nllm = LLM(gpu_memory_utilization=0.4)\n";
    let yaml =
        "distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: FULL_SHARD\nnum_processes: 4\n";
    let line = "env A=1 accelerate launch --num_processes 2 --use_fsdp t.py --lora_r 8";
    let sample = reader("command").sample(script).sample(yaml).sample(line);
    sample.sample("{\"zero_optimization\": {\"stage\": 3}}").reads(|bytes| {
        let said: Vec<String> = text(bytes).split(' ').map(str::to_owned).collect();
        let named = ["accelerate launch --config_file a.yaml t.py --deepspeed d.json".to_owned()];
        for words in [&said[..], &named] {
            let command = Command::new(words, &BTreeMap::new()).with_script(bytes);
            let taker = Taker::of(&command).and_then(|taker| taker.estimate(&platform()));
            assert!(taker.is_none_or(|e| e.need_mib <= e.use_mib && e.use_mib <= e.upper_mib));
            let processes = Processes::of(&command, &|_| Some(text(bytes).into_owned()));
            assert!(processes.on_one_gpu(1) >= 1);
            let _ = (command.compiles(), command.lora(), command.uses_peft(), command.scripts());
        }
    });
}

#[test]
fn job_toml() {
    let sample = "command = [\"python\", \"train.py\"]\ngpus = 2\ngpu-memory = \"20G\"\ntime = \"1h\"\nname = \"a\"\n[env]\nA = \"b\"\n";
    reader("job_toml").sample(sample).reads(|bytes| {
        bounded(bytes, carma_api::job_file::MAX_FILE, |file| {
            if let Ok(text) = carma_api::job_file::read(file) {
                let _ = carma_api::job_file::toml::parse(file, &text);
            }
        });
    });
}

#[test]
fn job_rad() {
    let sample = "#!/bin/bash\n#RAD --gpus=1\n#RAD --mem=12\n#RAD --batch_size=32\ncd /tmp\npython train.py --batch-size 32\n";
    reader("job_rad").sample(sample).reads(|bytes| {
        bounded(bytes, carma_api::job_file::MAX_FILE, |file| {
            if let Ok(text) = carma_api::job_file::read(file) {
                let _ = carma_api::job_file::rad::parse(file, &text);
            }
        });
    });
}

/// Gives bytes to a reader of files. Larger ones than it takes it must refuse by itself.
fn bounded(bytes: &[u8], most: u64, read: impl FnOnce(&Path)) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), bytes).unwrap();
    let refused = carma_files::read(file.path(), most).is_err();
    assert_eq!(refused, bytes.len() as u64 > most);
    read(file.path());
}

#[test]
fn config() {
    let commented = include_str!("../../../packaging/carma.toml");
    let set: String = commented
        .lines()
        .map(|line| line.strip_prefix("# ").unwrap_or(line))
        .filter(|line| line.contains(" = ") || line.starts_with('['))
        .flat_map(|line| [line, "\n"])
        .collect();
    reader("config").sample(commented).sample(set).sample("policy = \"magm\"\n[gate]\nsmact = 0.5\n").reads(
        |bytes| {
            bounded(bytes, 1 << 20, |file| drop(carma_daemon::config::load(file)));
        },
    );
}

#[test]
fn gpu_spec() {
    reader("gpu_spec").sample("virtual:2xA100-40GB+1xH200/7x1g.18gb").reads(|bytes| {
        let _ = text(bytes).parse::<carma_virtual_gpu::VirtualSpec>();
    });
}

#[test]
fn memory_sizes() {
    reader("memory_sizes").sample("20.5G").sample("1h30m").reads(|bytes| {
        let text = text(bytes);
        let _ = (
            carma_api::parse::memory(&text),
            carma_api::parse::duration(&text),
            carma_api::parse::slowdown(&text),
        );
    });
}

const PROFILES: &str = r#"{"version":1,"gpu":"NVIDIA H200","tasks":[
{"name":"a","rate":31.4,"metrics":{"gract_pct":100,"smact_pct":{"mean":83,"p95":90,"cv":0.1},"memory_mib":7627},"rate_by_threads_pct":{"10":5,"100":31.4}},
{"name":"b","class":"a","rate":{"per_s":487,"source":"activity"},"kernels":{"threads":1e5,"registers":1e7}},
{"name":"c"}]}"#;

const MEASURED: &str = r#"{"version":1,"machine":{"gpu":"NVIDIA H200","gpu_memory_mib":1,"cpus":1},
"tasks":[{"name":"a"},{"name":"b"}],"sessions":[],"profiles":{"version":1,"tasks":[{"name":"a","rate":2.0}]},
"combinations":[{"members":["a","b"],"sharing":"mps","threads_pct":[50,50],"rates":[1.0,2.0],"progress":[0.5,0.4],"window_s":1.5}],"left":0}"#;

#[test]
fn profiles() {
    reader("profiles")
        .sample(PROFILES)
        .reads(|bytes| drop(carma_interference::profile::Profiles::read(&text(bytes))));
}

#[test]
fn measured() {
    reader("measured").sample(MEASURED).reads(|bytes| {
        let text = text(bytes);
        if carma_interference::measured::Measured::is_meant(&text) {
            let _ = carma_interference::measured::Measured::read(&text);
        }
    });
}

#[test]
fn measured_log() {
    let sample = "{ \"line\": \"header\", \"version\": 1, \"machine\": {\"gpu\": \"NVIDIA H200\", \"gpu_memory_mib\": 1, \"cpus\": 1}, \"tasks\": [{\"name\": \"a\"}] }\n";
    reader("measured_log")
        .sample(sample)
        .reads(|bytes| drop(carma_interference::measured::read_log(&text(bytes))));
}

#[test]
fn bench_play() {
    let sample = r#"{"version": 1, "policy": "adaptive", "repeat": 1, "began": "2026-11-24T00:00:00Z", "carma": "0.1.0",
        "machine": {"gpus": ["a"], "gpu_memory_mib": 1, "is_virtual": true, "speed": 1, "cpus": 1},
        "trace": {"kinds": [{"name": "k", "gpus": 1, "command": ["x"]}], "arrivals": [{"at_s": 0.5, "kind": "k"}]},
        "jobs": [{"kind": "k", "submitted_s": 0.0, "state": "COMPLETED", "reason": "", "ended_s": 9.0, "attempts": [
            {"decided_s": 0.0, "started_s": 1.0, "ended_s": 9.0, "gpus": [0], "sharing": "mps", "code": "Completed", "text": ""}]}],
        "samples": [{"at_s": 0.0, "gpus": [{"smact": 0.5, "energy_j": 1.0}]}, {"at_s": 9.0, "gpus": [{"smact": 0.5}]}],
        "plan_p99_us": 5, "launches": 1}"#;
    reader("bench_play").sample(sample).reads(|bytes| {
        if let Ok(play) = serde_json::from_slice::<carma_measure::trace::Play>(bytes) {
            let _ = carma_measure::trace::Summary::of(&[play]);
        }
    });
}

#[test]
fn learned_model() {
    reader("learned_model")
        .sample(include_str!("../../interference/models/shipped.json"))
        .reads(|bytes| drop(carma_interference::online::SlowdownModel::read(&text(bytes))));
}

#[test]
fn kace_model() {
    let sample = r#"{"version":1,"target":"sum_throughput","features":["sm%"],"rows":4,"model":{"linear":{"weights":[1.0],"bias":0.5}}}"#;
    reader("kace_model")
        .sample(sample)
        .reads(|bytes| drop(carma_interference::kace::trained::Trained::read(FILE, &text(bytes))));
}

#[test]
fn kace_table() {
    let sample = "workload_1,workload_2,tput_1,tput_2,sm%_1,sm%_2\na,b,1.5,2.5,80,20\nc,d,1,2,30,40\n";
    reader("kace_table")
        .sample(sample)
        .unpacks()
        .reads(|bytes| drop(carma_lab_interference::kace::table::Table::parse(FILE, bytes)));
}

#[test]
fn kernels() {
    let sample = "==PROF== Connected\n\"ID\",\"Kernel Name\",\"Metric Name\",\"Metric Unit\",\"Metric Value\"\n\"0\",\"k\",\"gpu__time_duration.sum\",\"nsecond\",\"1,024\"\n";
    reader("kernels").sample(sample).reads(|bytes| drop(carma_interference::kernels::read(&text(bytes))));
}

#[test]
fn report() {
    let sample = r#"{"version":1,"trace":"t","cluster":"1xH200","notes":[],"rows":[]}"#;
    reader("report").sample(sample).reads(|bytes| drop(carma_sim::report::json::SimulateReply::read(bytes)));
}

#[test]
fn trace_csv() {
    let day = include_str!("../../../examples/h200-day.csv");
    let short: String = day.split_inclusive('\n').take(12).collect();
    reader("trace_csv")
        .sample(short)
        .sample("job,arrival_s,duration_s,gpus,user,memory_mib\n1,0,10,1,u,900\n2,3,10,1,u,900\n")
        .unpacks()
        .reads(|bytes| drop(carma_sim::trace::read::trace(bytes, Path::new(FILE), None)));
}

#[test]
fn catalogue() {
    let tasks = include_str!("../../../examples/h200-day.tasks.csv");
    let short: String = tasks.split_inclusive('\n').take(6).collect();
    reader("catalogue").sample(short).unpacks().reads(|bytes| {
        let _ = carma_sim::trace::Catalogue::read(bytes, Path::new(FILE));
    });
}

fn imports(name: &str, format: Format, sample: &str) {
    // Gavel's table is looked for beside the file: there is none, which is an error of its own.
    reader(name).sample(sample).unpacks().reads(|bytes| drop(import(format, bytes, Path::new(FILE))));
}

#[test]
fn trace_import_philly() {
    imports(
        "trace_import_philly",
        Format::Philly,
        "timestamp,duration,num_gpus,status\n2017-10-09 07:01:55,900,1,Pass\n2017-10-09 07:02:55,900,1,Pass\n",
    );
}

#[test]
fn trace_import_alibaba() {
    imports(
        "trace_import_alibaba",
        Format::AlibabaOpenb,
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\np1,1000,2000,1,1000,,LS,Running,0,100,1\np2,1000,2000,1,1000,,LS,Running,0,100,1\n",
    );
}

#[test]
fn trace_import_gavel() {
    imports(
        "trace_import_gavel",
        Format::Gavel,
        "A3C\tcmd\tdir\t1\t100\t0\t1\nA3C\tcmd\tdir\t1\t100\t0\t1\n",
    );
}

#[test]
fn trace_import_helios() {
    imports(
        "trace_import_helios",
        Format::Helios,
        "job_id,user,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue\n1,u,1,1,1,COMPLETED,2020-05-01 00:00:00,2020-05-01 00:00:01,2020-05-01 00:10:00,599,1\n2,u,1,1,1,COMPLETED,2020-05-01 00:00:00,2020-05-01 00:00:01,2020-05-01 00:10:00,599,1\n",
    );
}

#[test]
fn trace_import_lucid() {
    imports(
        "trace_import_lucid",
        Format::Lucid,
        "job_id,user,vc,gpu_num,submit_time,duration,state\n1,u,v,1,2020-05-01 00:00:00,599,COMPLETED\n2,u,v,1,2020-05-01 00:00:00,599,COMPLETED\n",
    );
}

#[test]
fn trace_import_slurm() {
    imports(
        "trace_import_slurm",
        Format::SlurmSacct,
        "JobID|Submit|Start|End|Elapsed|AllocTRES|State|User\n1|2024-01-02T03:04:05|2024-01-02T03:04:06|2024-01-02T03:14:06|00:10:00|gres/gpu=2|COMPLETED|u\n2|2024-01-02T03:04:05|2024-01-02T03:04:06|2024-01-02T03:14:06|00:10:00|gres/gpu=2|COMPLETED|u\n",
    );
}

#[test]
fn gpu_model() {
    reader("gpu_model").sample(include_str!("../../hardware/gpus/h200.toml")).reads(|bytes| {
        bounded(bytes, 1 << 20, |file| {
            let _ = carma_sim::gpu::add_file(&mut carma_hardware::GpuTypes::built_in(), file);
        });
    });
}

#[test]
fn dataset() {
    let sample = "id,family,batch_size,memory_mib\n1,cnn,32,900\n2,cnn,64,1800\n";
    reader("dataset").sample(sample).reads(|bytes| {
        if let Ok(table) = carma_lab_memory::dataset::Table::parse(FILE, bytes) {
            let _ = carma_lab_memory::dataset::clean(table, &carma_lab_memory::dataset::Table::default());
        }
        let _ = carma_lab_memory::gpumemnet::Data::parse(FILE, bytes);
    });
}

#[test]
fn networks() {
    reader("networks")
        .sample(include_bytes!("../../memory/weights/a100-mlp-step1-mlp.net"))
        .reads(|bytes| drop(carma_memory::gpumemnet::Bundle::read(FILE, bytes)));
}

#[test]
fn dnnperf_networks() {
    reader("dnnperf_networks")
        .sample(include_bytes!("../../memory/weights/h200-dnnperf.net"))
        .reads(|bytes| drop(carma_memory::dnnperf::Bundle::read(FILE, bytes)));
}

#[test]
fn checkpoint() {
    // Pickles within zips are tried by `lab/memory/tests/gpumemnet_fuzz.rs`.
    let empty = b"PK\x05\x06\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
    reader("checkpoint")
        .sample(empty)
        .reads(|bytes| drop(carma_lab_memory::gpumemnet::checkpoint::read(bytes)));
}

#[test]
fn gzip() {
    reader("gzip").sample("text\n").unpacks().reads(|bytes| {
        if let Ok(text) = carma_files::unpack(bytes, 1 << 20) {
            assert!(text.len() <= bytes.len().max(1 << 20));
        }
    });
}

const SUBMIT: &str = r#"{"command":["python","train.py"],"cwd":"/home/a","env":{"A":"b"},"gpus":1,"gpu_memory_mib":20480,"priority":0,
"task":{"batch_size":32},"estimates":[{"source":"allocator","use_mib":900,"upper_mib":1000,"tier":"model","reasons":["a"]}]}"#;

#[test]
fn wire_submit() {
    let probe = r#"{"driver":"580","context_mib":500,"gpu":"H200"}"#;
    reader("wire_submit").sample(SUBMIT).sample(probe).reads(|bytes| {
        json::<SubmitRequest>(bytes);
        json::<ContextProbe>(bytes);
    });
}

/// What a client believes of what listens on the socket.
#[test]
fn wire_replies() {
    reader("wire_replies").sample(r#"{"version":1,"jobs":[],"id":7,"gpus":[],"error":"no"}"#).reads(
        |bytes| {
            json::<SubmitReply>(bytes);
            json::<JobsReply>(bytes);
            json::<JobDetail>(bytes);
            json::<ExplainReply>(bytes);
            json::<GpusReply>(bytes);
            json::<StatusReply>(bytes);
            json::<SlowdownsReply>(bytes);
            json::<MemoryReply>(bytes);
            json::<carma_api::record::RecordReply>(bytes);
            json::<ErrorReply>(bytes);
        },
    );
}

#[test]
fn heartbeat_datagram() {
    reader("heartbeat_datagram").sample("3/100 epochs").sample("17").reads(|bytes| {
        let _ = carma_interference::rate::beat::datagram(bytes);
    });
}

#[test]
fn heartbeat_file() {
    use carma_interference::rate::beat;
    reader("heartbeat_file").sample("1 steps\n2 steps\n3").reads(|bytes| {
        // No more than this of a file's end is looked at.
        let end = &bytes[bytes.len().saturating_sub(beat::LONGEST)..];
        let _ = (beat::file(end, true), beat::file(end, false));
    });
}

#[test]
fn output() {
    let bar = "Epoch 3/90:  12%|#2        | 120/1000 [00:12<01:30,  9.8it/s, loss=0.3]\r\x1b[2K\x1b]0;title\x07step 7/9 loss 0.1\n";
    reader("output").sample(bar).reads(|bytes| {
        let mut reports = Vec::new();
        let mut printed = carma_interference::rate::printed::Printed::new();
        for (at, piece) in bytes.chunks(4096).enumerate() {
            printed.feed(at as f64, piece, &mut reports);
            reports.clear();
        }
        printed.settle(1e9, &mut reports);
    });
}

#[test]
fn journal_input() {
    let sample = r#"{"Cancel":{"job":7,"by":1000}}"#;
    reader("journal_input").sample(sample).reads(json::<carma_core::input::Input>);
}

#[test]
fn journal_state() {
    let fresh = serde_json::to_vec(&carma_core::state::State::default()).unwrap_or_default();
    reader("journal_state").sample(fresh).reads(json::<carma_core::state::State>);
}

#[test]
fn supervisor_order() {
    let sample = r#"{"id":{"journal":"j","life":"l","host":"h","boot":"b","job":7,"attempt":1},"records":"/r","pace":"/p","groups":null,"limits":{"memory":1,"cpu_pct":null,"processes":null},"command":["true"],"cwd":"/","env":{"A":"b"},"session":{"umask":18,"limits":{"core":{"soft":0}}},"user":{"uid":1,"gid":1},"log":{"kept":{"path":"/l","limit":1}},"alive_ms":1000}"#;
    reader("supervisor_order").sample(sample).reads(json::<carma_daemon::run::order::Order>);
}

#[test]
fn supervisor_hello() {
    let sample = r#"{"running":{"supervisor":{"pid":1,"start_ticks":2},"child":{"pid":3,"start_ticks":4}}}"#;
    reader("supervisor_hello").sample(sample).reads(json::<carma_daemon::run::order::Hello>);
}

#[test]
fn supervisor_record() {
    use carma_core::model::JobId;
    let sample = "{\"claim\":{\"supervisor\":{\"pid\":1,\"start_ticks\":2}}}\n{\"child\":{\"pid\":3,\"start_ticks\":4}}\n{\"exit\":{\"status\":{\"code\":0}}}\n";
    let dir = tempfile::tempdir().unwrap();
    let records = carma_daemon::run::record::Records::nameless(dir.path(), JobId(7), 1);
    reader("supervisor_record").sample(sample).reads(move |bytes| {
        std::fs::write(dir.path().join("7.1.record"), bytes).unwrap();
        let _ = records.read();
    });
}

/// A block of the recorder's files, with the sum that it should have.
fn block(begin: u64, end: u64, text: &[u8]) -> Vec<u8> {
    let mut payload = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut payload, text).unwrap();
    let payload = payload.finish().unwrap();
    let times = [begin.to_le_bytes(), end.to_le_bytes()].concat();
    let sum = crc32fast::hash(&[&times[..], &payload].concat());
    let length = u32::try_from(payload.len()).unwrap();
    [&length.to_le_bytes()[..], &sum.to_le_bytes(), &times, &payload].concat()
}

const RECORDED: &str = r#"{"at_ms":2000,"span_ms":1000,"host":{"cpu_pct":12.5},"gpus":[{"gpu":0,"span_ms":1000,"smact":0.5,"energy_j":1.5,"tenants":[{"job":7,"uid":1,"span_ms":1000,"activity_share":1.0}]}]}
"#;

fn recorder_header() -> Vec<u8> {
    let gpu = r#"{"gpu":0,"uuid":"GPU-0","name":"H200","kind":"gpu","memory_mib":1}"#;
    let header = format!(r#"{{"version":1,"carma":"0","journal":"j","life":"l","boot":"b","gpus":[{gpu}]}}"#);
    block(1000, 1000, header.as_bytes())
}

/// What a report gets of a file of the recorder with these bytes.
fn recorder_reads(dir: &Path, bytes: &[u8]) -> usize {
    use carma_core::units::Millis;
    std::fs::write(dir.join("00000001.rec"), bytes).unwrap();
    let read =
        |step| carma_daemon::recorder::read(dir, Millis(0), Millis(u64::MAX), step, Vec::new()).unwrap();
    let _ = read(Millis::secs(60));
    read(Millis(1)).rows.len()
}

#[test]
fn recorder_file() {
    let dir = tempfile::tempdir().unwrap();
    let sample = [recorder_header(), block(1000, 2000, RECORDED.as_bytes())].concat();
    assert_eq!(recorder_reads(dir.path(), &sample), 1);
    reader("recorder_file").sample(sample).reads(move |bytes| {
        recorder_reads(dir.path(), bytes);
    });
}

#[test]
fn recorder_rows() {
    let dir = tempfile::tempdir().unwrap();
    reader("recorder_rows").sample(RECORDED).reads(move |bytes| {
        recorder_reads(dir.path(), &[recorder_header(), block(1000, 2000, bytes)].concat());
    });
}

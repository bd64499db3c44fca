//! TOML job files with the words of the command line.
//!
//! ```toml
//! command = ["python", "train.py", "--bs", "32"]
//! gpus = 1
//! gpu-memory = "20G"
//! time = "2h"
//! env = { OMP_NUM_THREADS = "4" }
//! summary = "resnet50.txt"
//! batch-size = 32
//! ```

use super::{Described, FileError, ModelOptions};
use crate::parse;
use crate::wire::{CheckpointSignal, Session, SubmitRequest};
use carma_core::model::SharingMode;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct JobFile {
    command: Option<Vec<String>>,
    wrap: Option<Filled>,
    #[serde(alias = "chdir")]
    cwd: Option<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    #[serde(alias = "job-name")]
    name: Option<Filled>,
    gpus: Option<u32>,
    gpu_memory: Option<Size>,
    #[serde(default)]
    exclusive: bool,
    sharing: Option<SharingMode>,
    #[serde(alias = "mps-threads")]
    thread_percent: Option<u8>,
    time: Option<Span>,
    #[serde(default)]
    priority: i32,
    max_retries: Option<u32>,
    max_slowdown: Option<Slowdown>,
    latency: Option<Latency>,
    #[serde(default)]
    hold: bool,
    output: Option<String>,
    mem: Option<Size>,
    cpus: Option<Cpus>,
    pids: Option<u32>,
    checkpoint_signal: Option<CheckpointSignal>,
    grace: Option<Grace>,
    checkpoint_dir: Option<String>,
    #[serde(default)]
    login: bool,
    // What is known of the model. Flattening [`ModelOptions`] would let unknown keys pass.
    summary: Option<PathBuf>,
    hf_config: Option<PathBuf>,
    safetensors: Option<PathBuf>,
    onnx: Option<PathBuf>,
    trace: Option<PathBuf>,
    batch_size: Option<u64>,
    seq_len: Option<u64>,
    target_len: Option<u64>,
    samples: Option<u64>,
    optimizer: Option<String>,
    precision: Option<String>,
    #[serde(default)]
    inference: bool,
    attention: Option<String>,
    #[serde(default)]
    gradient_checkpointing: bool,
    lora: Option<u32>,
    #[serde(default)]
    lora_targets: Vec<String>,
    #[serde(default)]
    channels_last: bool,
    #[serde(default)]
    cudnn_benchmark: bool,
    #[serde(default)]
    variable_length: bool,
    parallel: Option<String>,
    dataset: Option<String>,
}

#[derive(Deserialize)]
#[serde(try_from = "String")]
struct Size(u64);

impl TryFrom<String> for Size {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        parse::memory(&text).map(|m| Self(m.0))
    }
}

#[derive(Deserialize)]
#[serde(try_from = "String")]
struct Filled(String);

impl TryFrom<String> for Filled {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        Ok(Self(parse::filled(&text)?))
    }
}

#[derive(Deserialize)]
#[serde(try_from = "f64")]
struct Slowdown(u32);

impl TryFrom<f64> for Slowdown {
    type Error = String;
    fn try_from(factor: f64) -> Result<Self, String> {
        parse::slowdown(&factor.to_string()).map(Self)
    }
}

#[derive(Deserialize)]
#[serde(try_from = "String")]
struct Latency(u32);

impl TryFrom<String> for Latency {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        parse::latency(&text).map(Self)
    }
}

#[derive(Deserialize)]
#[serde(try_from = "f64")]
struct Cpus(u32);

impl TryFrom<f64> for Cpus {
    type Error = String;
    fn try_from(number: f64) -> Result<Self, String> {
        parse::cpus(&number.to_string()).map(Self)
    }
}

#[derive(Deserialize)]
#[serde(try_from = "String")]
struct Grace(u64);

impl TryFrom<String> for Grace {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        parse::grace(&text).map(|m| Self(m.0))
    }
}

#[derive(Deserialize)]
#[serde(try_from = "String")]
struct Span(u64);

impl TryFrom<String> for Span {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        parse::duration(&text).map(|m| Self(m.0))
    }
}

/// Reads a TOML job file. `cwd`, where it is not given, stays empty for the caller to fill in.
///
/// # Errors
/// File, line and what was expected; unknown keys are refused by name.
pub fn parse(file: &Path, text: &str) -> Result<Described, FileError> {
    let error =
        |line, what: &str| FileError { file: file.to_owned(), line: Some(line), what: what.to_owned() };
    let job: JobFile = ::toml::from_str(text)
        .map_err(|e| error(carma_files::line_at(text, e.span().map_or(0, |s| s.start)), e.message()))?;
    let model = ModelOptions {
        summary: job.summary,
        hf_config: job.hf_config,
        safetensors: job.safetensors,
        onnx: job.onnx,
        trace: job.trace,
        batch_size: job.batch_size,
        seq_len: job.seq_len,
        target_len: job.target_len,
        samples: job.samples,
        optimizer: job.optimizer,
        precision: job.precision,
        inference: job.inference,
        attention: job.attention,
        gradient_checkpointing: job.gradient_checkpointing,
        lora: job.lora,
        lora_targets: job.lora_targets,
        channels_last: job.channels_last,
        cudnn_benchmark: job.cudnn_benchmark,
        variable_length: job.variable_length,
        parallel: job.parallel,
        dataset: job.dataset,
    };
    let name = job.name.map(|name| name.0);
    let (command, name) = match (job.command, job.wrap) {
        (Some(command), None) => (command, name),
        // Slurm's name for it; "sh" would say less.
        (None, Some(Filled(line))) => {
            (vec!["/bin/sh".into(), "-c".into(), line], name.or_else(|| Some("wrap".into())))
        }
        (None, None) => return Err(error(1, "there is neither `command` nor `wrap`")),
        (Some(_), Some(_)) => {
            return Err(error(1, "`command` and `wrap` are both there; a job has one of them"));
        }
    };
    let request = SubmitRequest {
        command,
        cwd: job.cwd.unwrap_or_default(),
        env: job.env,
        name,
        gpus: job.gpus,
        gpu_memory_mib: job.gpu_memory.map(|s| s.0),
        exclusive: job.exclusive,
        sharing: job.sharing,
        thread_pct: job.thread_percent,
        time_limit_ms: job.time.map(|s| s.0),
        priority: job.priority,
        max_retries: job.max_retries,
        max_slowdown_pct: job.max_slowdown.map(|s| s.0),
        latency_us: job.latency.map(|l| l.0),
        hold: job.hold,
        output: job.output,
        host_memory_mib: job.mem.map(|m| m.0),
        host_cpu_pct: job.cpus.map(|c| c.0),
        host_processes: job.pids,
        checkpoint_signal: job.checkpoint_signal,
        grace_ms: job.grace.map(|g| g.0),
        checkpoint_dir: job.checkpoint_dir,
        session: Session { login: job.login, ..Session::default() },
        ..SubmitRequest::default()
    };
    Ok(Described { request, model })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_the_command_line() {
        let job = parse(
            Path::new("j.toml"),
            "command = ['python', 't.py']\ngpu-memory = '20G'\ntime = '2h'\nsharing = 'mps'\n",
        )
        .unwrap()
        .request;
        assert_eq!(job.gpu_memory_mib, Some(20_480));
        assert_eq!(job.time_limit_ms, Some(7_200_000));
        assert_eq!(job.sharing, Some(SharingMode::Mps));
    }

    #[test]
    fn a_line_for_the_shell_takes_the_place_of_a_command() {
        let read = |text: &str| parse(Path::new("j.toml"), text);
        let job = read("wrap = 'a | b'\nchdir = '/x'\nmps-threads = 30\n").unwrap().request;
        assert_eq!(job.command, ["/bin/sh", "-c", "a | b"]);
        assert_eq!((job.name.as_deref(), job.cwd.as_str(), job.thread_pct), (Some("wrap"), "/x", Some(30)));
        let named = read("wrap = 'a'\njob-name = 'b'\n").unwrap().request;
        assert_eq!(named.name.as_deref(), Some("b"));
        for (text, line) in [("gpus = 1\nwrap = ''\n", 2), ("name = ' '\nwrap = 'a'\n", 1)] {
            let error = read(text).unwrap_err();
            assert!(error.line == Some(line) && error.what.contains("expected some text"), "{error}");
        }
        assert!(read("gpus = 1\n").unwrap_err().what.contains("neither"));
        assert!(read("command = ['x']\nwrap = 'y'\n").unwrap_err().what.contains("both"));
    }

    #[test]
    fn how_it_saves_its_work() {
        let read = |text: &str| parse(Path::new("j.toml"), &format!("command = ['x']\n{text}"));
        let job =
            read("checkpoint-signal = 'usr1'\ngrace = '5m'\ncheckpoint-dir = 'ckpt'\n").unwrap().request;
        assert_eq!(job.checkpoint_signal, Some(CheckpointSignal::Usr1));
        assert_eq!((job.save_grace_ms(), job.checkpoint_dir.as_deref()), (Some(300_000), Some("ckpt")));
        let job = read("checkpoint-signal = 'SIGTERM'\n").unwrap().request;
        assert_eq!((job.save_grace_ms(), job.saves_at_home()), (Some(120_000), true));
        assert!(!read("").unwrap().request.saves_at_home());
        let error = read("checkpoint-signal = 'KILL'\n").unwrap_err();
        assert!(error.line == Some(2) && error.what.contains("USR1"), "{}", error.what);
        let error = read("checkpoint-signal = 'USR1'\ngrace = '2h'\n").unwrap_err();
        assert!(error.line == Some(3) && error.what.contains("1h"), "{}", error.what);
    }

    #[test]
    fn what_tells_its_memory() {
        let text = "command = ['x']\nhf-config = 'c.json'\nseq-len = 512\nlora-targets = ['q', 'v']\nchannels-last = true\n";
        let model = parse(Path::new("j.toml"), text).unwrap().model;
        let expected = ModelOptions {
            hf_config: Some("c.json".into()),
            seq_len: Some(512),
            lora_targets: vec!["q".into(), "v".into()],
            channels_last: true,
            ..ModelOptions::default()
        };
        assert_eq!(model, expected);
        assert_eq!(
            parse(Path::new("j.toml"), "command = ['x']\nbatch-size = 'a'\n").unwrap_err().line,
            Some(2)
        );
    }

    #[test]
    fn mistakes_are_named_with_their_line() {
        let error = parse(Path::new("j.toml"), "command = ['x']\ngpu_memory = '20G'\n").unwrap_err();
        assert_eq!(error.line, Some(2));
        assert!(error.what.contains("gpu_memory"), "{}", error.what);
        assert_eq!(parse(Path::new("j.toml"), "command = ['x']\ngpus = -1\n").unwrap_err().line, Some(2));
        assert_eq!(
            parse(Path::new("j.toml"), "command = ['x']\n\ngpu-memory = '20'\n").unwrap_err().line,
            Some(3)
        );
    }
}

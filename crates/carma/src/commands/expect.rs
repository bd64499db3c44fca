//! What is known of a job's memory before it runs: the files that describe its model are read and
//! estimated here, by the client, with its user's rights. The daemon opens no file of a user; it gets
//! numbers, and lays what earlier runs taught over them.

use super::estimate;
use super::spoken::Spoken;
use super::tracer::Launch;
use crate::cli::memory::{ModelArgs, TaskArgs};
use carma_api::Client;
use carma_api::job_file::ModelOptions;
use carma_api::wire::{EstimateView, GpusReply, SubmitRequest, TaskFacts};
use carma_cli::failure::Failure;
use carma_daemon::memory::to_view;
use carma_memory::alloc::Settings;
use carma_memory::command::Taker;
use carma_memory::estimators::{self, Known};
use carma_memory::history::{Facts, Signature, fingerprint};
use carma_memory::{Gpu, MiB, ModelTask, Platform, Tier, trace};
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Folder beside that of the `.rad` files in which the original keeps model summaries.
const SUMMARIES: &str = "summaries";

/// What is known of the model of a job.
#[derive(Debug, Default)]
pub(crate) struct Modelled {
    known: Known,
    task: ModelTask,
}

impl Modelled {
    /// With the log of a dry run of the job, which goes before whatever else is known of its model.
    pub(crate) fn traced(&mut self, log: Vec<u8>) {
        self.known.trace = Some(log);
        self.known.files.remove("trace");
    }

    /// Tells the tracer of the job what it cannot know.
    pub(crate) fn tell(&self, launch: &mut Launch) {
        launch.tell(self.task.gpus, &self.known.asked);
    }

    /// The program that takes memory by its settings, whatever a dry run would show.
    pub(crate) const fn taker(&self) -> Option<&Taker> {
        self.known.taker.as_ref()
    }
}

/// Where the words on a model come from besides the command line.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Source<'a> {
    /// The command line alone.
    Options,
    /// A TOML job file.
    Toml(&'a Path, &'a ModelOptions),
    /// A `.rad` file.
    Rad(&'a Path, &'a ModelOptions),
}

/// Gathers what is known, and puts facts about the task into the request.
///
/// # Errors
/// Files that were named and cannot be read, words that no option has.
pub(crate) fn gather(
    request: &mut SubmitRequest,
    source: Source<'_>,
    model: &ModelArgs,
    task: &TaskArgs,
    here: &Path,
) -> Result<Modelled, Failure> {
    let (mut model, mut task) = (model.clone(), task.clone());
    let mut dataset = None;
    match source {
        Source::Options => {}
        Source::Toml(file, said) => {
            lay_under(&mut model, &mut task, file, said)?;
            let beside = file.parent().unwrap_or(Path::new(""));
            for path in paths(&mut model) {
                // Beside the file that names it, if it is there; else as an option would be.
                let there = beside.join(&*path);
                if there.exists() {
                    *path = there;
                }
            }
            dataset.clone_from(&said.dataset);
        }
        Source::Rad(file, said) => {
            lay_under(&mut model, &mut task, file, said)?;
            if let Some(name) = &said.summary
                && model.summary.as_ref() == Some(name)
            {
                model.summary = find_summary(file, name, here);
                if model.summary.is_none() {
                    tell(format!(
                        "{}: no estimate from its model summary, for there is no {} beside it, in ../{SUMMARIES} or here",
                        file.display(),
                        name.display()
                    ));
                }
            }
            dataset.clone_from(&said.dataset);
        }
    }
    let mut known = estimate::read(&model)?;
    let spoken = Spoken::of(&request.command, &request.env, Path::new(&request.cwd));
    let gpus = request.gpus.unwrap_or(1);
    let mut run = task.task(gpus);
    spoken.lay_under(&mut known, &mut run, &task);
    if let Some(text) = spoken.warning(gpus) {
        tell(text);
    }
    run.cudnn_benchmark |= spoken.script.as_deref().is_some_and(sets_benchmark);
    let batch = batch_size(&task, &request.command);
    let text = known.summary.as_deref().or(known.hf_config.as_deref());
    request.task = TaskFacts {
        batch_size: batch,
        script: spoken.edition.clone(),
        model: text.map(|text| fingerprint(text.as_bytes())),
        dataset,
        framework: spoken.installed().torch(),
        // Under MPS a hard limit is one of each process. Of another edition a trace gives no bound.
        elastic: run.cudnn_benchmark || known.processes > 1 || was_edited(&known),
    };
    known.asked.batch = batch;
    let Some(batch) = batch.or_else(|| known.trace.is_some().then_some(run.batch_size)) else {
        forget_model(&mut known);
        return Ok(Modelled { known, task: run });
    };
    run.batch_size = batch;
    Ok(Modelled { known, task: run })
}

/// Whether the program was edited since the trace was made that is given for it.
fn was_edited(known: &Known) -> bool {
    let made = known.trace.as_deref().and_then(|log| trace::read(log).ok());
    made.is_some_and(|made| known.asked.is_of_another_edition(made.header()))
}

/// Samples a step, as its user or the command says them.
pub(crate) fn batch_size(said: &TaskArgs, command: &[String]) -> Option<u64> {
    said.batch_size.or_else(|| Signature::of(&Facts { command, ..Facts::default() }).batch)
}

/// Leaves out what describes the model, where the batch size is not known: one sample would be a guess, and on the wrong side.
pub(crate) fn forget_model(known: &mut Known) {
    if known.has_model() {
        tell("no estimate from the model, for the batch size is not known; give --batch-size".into());
    }
    known.forget_model();
}

/// Puts estimates into the request, made for the daemon's types of GPU.
///
/// # Errors
/// When the daemon does not answer.
pub(crate) fn fill(
    client: &mut Client,
    request: &mut SubmitRequest,
    modelled: &Modelled,
) -> Result<(), Failure> {
    if !modelled.known.says_something() {
        return Ok(());
    }
    let gpus: GpusReply = client.get("/v1/gpus")?;
    let mut types: BTreeMap<&str, MiB> = BTreeMap::new();
    for gpu in &gpus.gpus {
        let memory = types.entry(&gpu.name).or_default();
        *memory = MiB(gpu.memory_mib).max(*memory);
    }
    // Of each estimator the answer for the type on which it expects the most.
    let mut best: BTreeMap<&str, EstimateView> = BTreeMap::new();
    let mut why_not: BTreeMap<&str, String> = BTreeMap::new();
    for (name, total_mib) in types {
        let platform = platform(name, total_mib, request);
        let Ok(answers) = estimators::run("all", &modelled.known, &modelled.task, &platform) else {
            continue;
        };
        // `auto` is for the daemon to say, and the user's own number travels as such.
        for answer in answers.into_iter().filter(|a| !matches!(a.estimator, "auto" | "declared")) {
            match answer.result {
                Ok(estimate) => {
                    let known = best.get(answer.estimator);
                    if known.is_none_or(|known: &EstimateView| estimate.upper_mib.0 > known.upper_mib) {
                        let of_gpu_mib = (estimate.tier == Tier::Share).then_some(total_mib.0);
                        best.insert(answer.estimator, EstimateView { of_gpu_mib, ..to_view(&estimate) });
                    }
                }
                Err(error) => {
                    why_not.insert(answer.estimator, error.to_string());
                }
            }
        }
    }
    let unanswered = modelled.known.has_model() && !best.contains_key("allocator");
    if let Some(why) = why_not.get("allocator").filter(|_| unanswered) {
        tell(format!("no estimate from the model: {why}"));
    }
    if let Some(why) = why_not.get("share").filter(|_| modelled.known.taker.is_some()) {
        tell(why.clone());
    }
    let mut sent: Vec<EstimateView> = best.into_values().collect();
    sent.sort_by(|a, b| a.source.cmp(&b.source));
    request.estimates = sent;
    Ok(())
}

fn tell(text: String) {
    Failure::new(format!("warning: {text}")).tell();
}

fn paths(model: &mut ModelArgs) -> impl Iterator<Item = &mut PathBuf> {
    let files =
        [&mut model.summary, &mut model.hf_config, &mut model.safetensors, &mut model.onnx, &mut model.trace];
    files.into_iter().flatten()
}

/// What a file says, where the options say nothing.
fn lay_under(
    model: &mut ModelArgs,
    task: &mut TaskArgs,
    file: &Path,
    said: &ModelOptions,
) -> Result<(), Failure> {
    fn word<T: DeserializeOwned>(
        file: &Path,
        key: &str,
        word: &Option<String>,
    ) -> Result<Option<T>, Failure> {
        let Some(word) = word else { return Ok(None) };
        serde_json::from_value(serde_json::Value::String(word.clone()))
            .map(Some)
            .map_err(|e| Failure::usage(format!("{}: {key}: {e}", file.display())))
    }
    fn under<T: Clone>(option: &mut Option<T>, said: &Option<T>) {
        if option.is_none() {
            option.clone_from(said);
        }
    }
    under(&mut model.summary, &said.summary);
    under(&mut model.hf_config, &said.hf_config);
    under(&mut model.safetensors, &said.safetensors);
    under(&mut model.onnx, &said.onnx);
    under(&mut model.trace, &said.trace);
    for (key, number) in [
        ("batch-size", said.batch_size),
        ("seq-len", said.seq_len),
        ("target-len", said.target_len),
        ("samples", said.samples),
    ] {
        if number == Some(0) {
            return Err(Failure::usage(format!("{}: {key} is 0; give 1 or more", file.display())));
        }
    }
    under(&mut task.batch_size, &said.batch_size);
    under(&mut task.seq_len, &said.seq_len);
    under(&mut task.target_len, &said.target_len);
    under(&mut task.samples, &said.samples);
    under(&mut task.optimizer, &word(file, "optimizer", &said.optimizer)?);
    under(&mut task.precision, &word(file, "precision", &said.precision)?);
    under(&mut task.attention, &word(file, "attention", &said.attention)?);
    under(&mut task.parallel, &word(file, "parallel", &said.parallel)?);
    under(&mut task.lora, &said.lora);
    if task.lora_targets.is_empty() {
        task.lora_targets.clone_from(&said.lora_targets);
    }
    task.inference |= said.inference;
    task.gradient_checkpointing |= said.gradient_checkpointing;
    task.channels_last |= said.channels_last;
    task.cudnn_benchmark |= said.cudnn_benchmark;
    task.variable_length |= said.variable_length;
    Ok(())
}

/// The model summary of a `.rad` file: beside it, in the folder of summaries beside its own, or here.
/// The published files do not agree with theirs on capital letters.
fn find_summary(rad: &Path, name: &Path, here: &Path) -> Option<PathBuf> {
    let beside = rad.parent().unwrap_or(Path::new(""));
    let folders = [beside.to_owned(), beside.join("..").join(SUMMARIES), here.to_owned()];
    let exact = folders.iter().map(|folder| folder.join(name)).find(|path| path.is_file());
    exact.or_else(|| {
        let wanted = name.to_str()?.to_lowercase();
        folders.iter().find_map(|folder| {
            let mut like: Vec<PathBuf> = std::fs::read_dir(folder)
                .ok()?
                .filter_map(|entry| Some(entry.ok()?.path()))
                .filter(|path| {
                    let name = path.file_name().and_then(|n| n.to_str());
                    name.is_some_and(|n| n.to_lowercase() == wanted) && path.is_file()
                })
                .collect();
            // Two that differ in capitals only: neither is meant more than the other.
            if like.len() == 1 { like.pop() } else { None }
        })
    })
}

/// Whether a script turns cuDNN's search for algorithms on, as far as its text says.
fn sets_benchmark(script: &[u8]) -> bool {
    let text = String::from_utf8_lossy(script);
    text.lines().any(|line| {
        let line: String = line.chars().filter(|c| !c.is_whitespace()).collect();
        !line.starts_with('#') && line.contains("cudnn.benchmark=True")
    })
}

/// As in the table, whether the name is the driver's or a virtual GPU's; with cautious guesses where that lacks it.
pub(crate) fn platform_named(name: &str, total_mib: MiB, torch: (u32, u32)) -> Platform {
    Platform::lookup(name, torch).unwrap_or_else(|_| {
        // The larger workspaces: rather too much than too little.
        let gpu = Gpu { name: name.to_owned(), compute_capability: (9, 0), total_mib };
        Platform::unknown(gpu, torch)
    })
}

/// The platform of the daemon's largest type of GPU, for a dry run of a job.
///
/// # Errors
/// When the daemon does not answer, or has no GPU.
pub(crate) fn largest(client: &mut Client, request: &SubmitRequest) -> Result<Platform, Failure> {
    let gpus: GpusReply = client.get("/v1/gpus")?;
    let largest = gpus.gpus.iter().max_by_key(|gpu| gpu.memory_mib);
    let largest = largest.ok_or_else(|| Failure::new("the daemon has no GPU to make a dry run for"))?;
    Ok(platform(&largest.name, MiB(largest.memory_mib), request))
}

/// The platform of a type of GPU, with the framework and the settings that the job has.
fn platform(name: &str, total_mib: MiB, request: &SubmitRequest) -> Platform {
    let torch = request.task.framework.as_deref().and_then(|text| {
        let (major, minor) = text.strip_prefix("torch ")?.split_once('.')?;
        Some((major.parse().ok()?, minor.parse().ok()?))
    });
    let torch = torch.unwrap_or((2, 11));
    let mut platform = platform_named(name, total_mib, torch);
    let conf = Settings::variable(|key| request.env.get(key));
    if let Some(settings) = conf.and_then(|text| Settings::parse(text).ok()) {
        platform.alloc = settings;
    }
    platform
}

#[cfg(test)]
mod tests {
    use super::*;
    use carma_memory::history::UNREAD;
    use carma_memory::{Optimizer, Precision};
    use std::fs;

    /// As PyTorch prints a module.
    const SUMMARY: &str = "Net(\n  (fc): Linear(in_features=4, out_features=4, bias=True)\n)\n";

    fn request(line: &str, cwd: &Path) -> SubmitRequest {
        SubmitRequest {
            command: line.split(' ').map(str::to_owned).collect(),
            cwd: cwd.display().to_string(),
            ..SubmitRequest::default()
        }
    }

    #[test]
    fn a_summary_is_found_where_the_original_has_it() {
        let dir = tempfile::tempdir().unwrap();
        let (tasks, summaries, here) = (dir.path().join("tasks"), dir.path().join("summaries"), dir.path());
        fs::create_dir(&tasks).unwrap();
        fs::create_dir(&summaries).unwrap();
        let rad = tasks.join("a.rad");
        let find = |name: &str| find_summary(&rad, Path::new(name), here);
        assert_eq!(find("r.model"), None);
        fs::write(here.join("r.model"), "here").unwrap();
        assert_eq!(find("r.model"), Some(here.join("r.model")));
        fs::write(summaries.join("r.model"), "s").unwrap();
        assert_eq!(fs::read_to_string(find("r.model").unwrap()).unwrap(), "s");
        assert_eq!(fs::read_to_string(find("R.model").unwrap()).unwrap(), "s");
        fs::write(tasks.join("r.model"), "beside").unwrap();
        assert_eq!(fs::read_to_string(find("r.model").unwrap()).unwrap(), "beside");
    }

    #[test]
    fn options_go_before_files_and_files_before_defaults() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("s.txt"), SUMMARY).unwrap();
        fs::write(dir.path().join("t.py"), "torch.backends.cudnn.benchmark = True\n").unwrap();
        let said = ModelOptions {
            summary: Some("s.txt".into()),
            batch_size: Some(32),
            optimizer: Some("sgd".into()),
            precision: Some("bf16".into()),
            dataset: Some("cifar".into()),
            ..ModelOptions::default()
        };
        let file = dir.path().join("j.toml");
        let task =
            TaskArgs { batch_size: Some(64), optimizer: Some(Optimizer::Adamw), ..TaskArgs::default() };
        let mut job = request("python t.py", dir.path());
        let source = Source::Toml(&file, &said);
        let modelled = gather(&mut job, source, &ModelArgs::default(), &task, Path::new("/")).unwrap();
        assert_eq!(modelled.known.summary.as_deref(), Some(SUMMARY));
        let run = &modelled.task;
        assert_eq!((run.batch_size, run.optimizer, run.precision), (64, Optimizer::Adamw, Precision::Bf16));
        assert!(run.cudnn_benchmark && job.task.elastic);
        assert_eq!((job.task.batch_size, job.task.dataset.as_deref()), (Some(64), Some("cifar")));
        assert!(job.task.script.is_some() && job.task.model.is_some());
        let odd = ModelOptions { optimizer: Some("shampoo".into()), ..ModelOptions::default() };
        let failure =
            gather(&mut job, Source::Toml(&file, &odd), &ModelArgs::default(), &task, Path::new("/"));
        let message = failure.unwrap_err().message.unwrap();
        assert!(message.contains("j.toml: optimizer") && message.contains("shampoo"), "{message}");
    }

    #[test]
    fn another_text_of_a_configuration_is_another_edition() {
        let dir = tempfile::tempdir().unwrap();
        let edition_of = |mut job: SubmitRequest| {
            let (model, task) = (ModelArgs::default(), TaskArgs::default());
            gather(&mut job, Source::Options, &model, &task, Path::new("/")).unwrap();
            job.task.script
        };
        let edition = |line: &str| edition_of(request(line, dir.path()));
        fs::write(dir.path().join("t.py"), "x").unwrap();
        fs::write(dir.path().join("c.yaml"), "width: 6").unwrap();
        fs::write(dir.path().join("d.json"), "").unwrap();
        let (plain, with) = (edition("python t.py"), edition("python t.py --config c.yaml"));
        // As ever where there is no such file.
        assert_eq!(plain, Some(fingerprint(b"x")));
        assert_eq!(edition("python t.py --config absent.yaml"), plain);
        assert_ne!(with, plain);
        assert_eq!(edition("python t.py --config=c.yaml --out d.json"), with);
        assert_ne!(edition("python t.py c.yaml d.json"), edition("python t.py d.json c.yaml"));
        assert_ne!(edition("python t.py c.yaml d.json"), edition("python t.py c.yaml absent.json"));
        // Also of a program that has no script here.
        let installed = edition("axolotl train c.yaml");
        assert!(installed.is_some() && edition("axolotl train absent.yaml").is_none());
        fs::write(dir.path().join("c.yaml"), "width: 60").unwrap();
        assert_ne!(edition("python t.py --config c.yaml"), with);
        assert_ne!(edition("axolotl train c.yaml"), installed);
        // They lie where the command changes to.
        let sub = dir.path().join("sub");
        fs::create_dir(&sub).unwrap();
        fs::write(sub.join("t.py"), "y").unwrap();
        let there = |line: &str| {
            let command = ["sh", "-c", line].map(str::to_owned).to_vec();
            edition_of(SubmitRequest { command, ..request("", dir.path()) })
        };
        for line in
            ["cd sub && python3 t.py --config c.yaml", "cd sub; python3 t.py --config c.yaml > log 2>&1"]
        {
            let _ = fs::remove_file(sub.join("c.yaml"));
            assert_eq!(there(line), Some(fingerprint(b"y")), "{line}");
            fs::write(sub.join("c.yaml"), "width: 6").unwrap();
            let first = there(line);
            fs::write(sub.join("c.yaml"), "width: 60").unwrap();
            assert_ne!(there(line), first, "{line}");
        }
    }

    #[test]
    fn an_edited_script_of_any_kind_is_another_edition() {
        let dir = tempfile::tempdir().unwrap();
        let edition = |words: &[&str]| {
            let command = words.iter().map(ToString::to_string).collect();
            let mut job = SubmitRequest { command, ..request("", dir.path()) };
            gather(&mut job, Source::Options, &ModelArgs::default(), &TaskArgs::default(), Path::new("/"))
                .unwrap();
            job.task.script
        };
        fs::create_dir_all(dir.path().join("src/pk")).unwrap();
        fs::write(dir.path().join("t.py"), "").unwrap();
        fs::write(dir.path().join("exe"), "").unwrap();
        for (line, file) in [
            ("bash run.sh", "run.sh"),
            ("./run.sh --x 1", "run.sh"),
            ("python t.py --config cfg.py", "cfg.py"),
            ("python t.py cfg.py", "cfg.py"),
            ("env PYTHONPATH=src python -m pk.tr", "src/pk/tr.py"),
            ("python -m src.pk.tr", "src/pk/tr.py"),
            ("python -m cProfile run.py", "run.py"),
            ("python t.py; python run.py", "run.py"),
        ] {
            let (file, words) = (dir.path().join(file), line.split(' ').collect::<Vec<_>>());
            let plain = if line.contains(';') { &["sh", "-c", line][..] } else { &words };
            let of = || [edition(plain), edition(&["sh", "-c", &format!("{line} > log")])];
            fs::write(&file, "4G").unwrap();
            let first = of();
            assert!(
                first.iter().all(|edition| edition.as_deref().is_some_and(|text| text != UNREAD)),
                "{line}"
            );
            fs::write(&file, "30G").unwrap();
            assert!(first.iter().zip(of()).all(|(before, now)| *before != now), "{line}");
        }
        // Also of what a script for a shell starts.
        fs::write(
            dir.path().join("run.sh"),
            "#!/bin/bash\nset -e\ncd src\npython t2.py --config c.yaml \"$@\"\n",
        )
        .unwrap();
        for file in ["src/t2.py", "src/c.yaml"] {
            let before = edition(&["bash", "run.sh"]);
            fs::write(dir.path().join(file), "30G").unwrap();
            assert_ne!(edition(&["bash", "run.sh"]), before, "{file}");
        }
        for line in ["python absent.py", "bash absent.sh", "python -m absent.tr t.py", "cd $X && python t.py"]
        {
            assert_eq!(edition(&["sh", "-c", line]).as_deref(), Some(UNREAD), "{line}");
        }
        // Of a program that is no text size and time count.
        let first = edition(&["./exe"]);
        assert!(first.as_deref().is_some_and(|text| text != UNREAD));
        fs::write(dir.path().join("exe"), b"\x7fELF\0").unwrap();
        assert_ne!(edition(&["./exe"]), first);
    }

    /// Edition of a command before and after one of its files was edited, from a folder with these.
    fn editions(files: &[(&str, &str)], words: &[&str], edited: &str) -> [Option<String>; 2] {
        let dir = tempfile::tempdir().unwrap();
        for (file, text) in files {
            let file = dir.path().join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        let of = || {
            let command = words.iter().map(ToString::to_string).collect();
            let mut job = SubmitRequest { command, ..request("", dir.path()) };
            gather(&mut job, Source::Options, &ModelArgs::default(), &TaskArgs::default(), Path::new("/"))
                .unwrap();
            job.task.script
        };
        let before = of();
        let text = fs::read_to_string(dir.path().join(edited)).unwrap();
        fs::write(dir.path().join(edited), text + "# 30G").unwrap();
        [before, of()]
    }

    fn is_unread(edition: &Option<String>) -> bool {
        edition.as_deref() == Some(UNREAD)
    }

    #[test]
    fn whatever_a_command_runs_is_read_or_known_to_be_unread() {
        let own = "#!/usr/bin/env python3\n";
        // What is edited, how it comes to run, and what else there is.
        for (edited, line, script) in [
            ("t.py", "bash x/../run.sh", "cd \"$(dirname \"$0\")\"\npython t.py"),
            ("a/t.py", "bash a/run.sh", "cd $(dirname \"${BASH_SOURCE[0]}\") && python t.py"),
            ("a/t.py", "bash a/run.sh", "python ${0%/*}/t.py"),
            ("a/t.py", "bash a/run.sh", "HERE=\"$(cd \"$(dirname \"$0\")\" && pwd)\"\npython $HERE/t.py"),
            ("t.py", "bash run.sh", "DIR=$(pwd)\npython ${DIR}/t.py"),
            ("t.py", "bash run.sh", "python \"$PWD/t.py\""),
            ("conf/e1.yaml", "bash run.sh e1", "python t.py --config conf/$1.yaml"),
            ("conf/e1.yaml", "bash run.sh conf/e1.yaml", "NAME=${1:-e2}\ncd conf\npython ../t.py ../$NAME"),
            ("b/t.py", "bash run.sh", "cd a && python prep.py && cd ../b && python t.py"),
            ("b/t.py", "bash run.sh", "(cd a; python prep.py); python b/t.py"),
            ("t.py", "bash run.sh", "./inner.sh"),
            ("t.py", "bash run.sh", "for i in 1 2; do\n  nohup bash ./inner.sh --seed $i\ndone"),
            ("run", "bash run", ""),
            ("t.py", "bash shell", ""),
            ("train", "./train", ""),
            ("train", "python -u train --x 1", ""),
            ("pk/__main__.py", "python pk", ""),
            ("t.py", "./shell", ""),
            ("env", "bash run.sh", "source env\npython t.py --seed $SEED"),
            ("args.txt", "python t.py --config args.txt", ""),
            ("conf/base", "python t.py --config=conf/base", ""),
            ("C.YAML", "python t.py C.YAML", ""),
            ("conf/e1.yaml", "python t.py conf/e2.yaml,conf/e1.yaml", ""),
            ("args.txt", "python t.py @args.txt", ""),
        ] {
            let files = [
                ("run.sh", script),
                ("a/run.sh", script),
                ("inner.sh", "#!/bin/sh\npython t.py"),
                ("shell", "#!/bin/bash\nexec python t.py"),
                ("run", "python t.py"),
                ("train", own),
                ("pk/__main__.py", ""),
                ("t.py", ""),
                ("x/y", ""),
                ("a/t.py", ""),
                ("a/prep.py", ""),
                ("b/t.py", ""),
                ("env", "SEED=1"),
                ("args.txt", ""),
                ("conf/base", ""),
                ("conf/e1.yaml", ""),
                ("conf/e2.yaml", ""),
                ("C.YAML", ""),
            ];
            let [before, after] = editions(&files, &line.split(' ').collect::<Vec<_>>(), edited);
            assert!(before.is_some() && !is_unread(&before) && before != after, "{line}: {script}");
        }
    }

    #[test]
    fn what_only_a_shell_can_tell_is_unread() {
        let large = format!("x: {}", "y".repeat(2 << 20));
        let many: String = (0..40).map(|i| format!("python t.py --config c{i}.yaml\n")).collect();
        for (line, script) in [
            ("bash run.sh", "cd \"$(find . -name exp)\"; python t.py"),
            ("bash run.sh", "for i in a b; do python t.py --config $i.yaml; done"),
            ("bash run.sh", "if x; then C=a.yaml; else C=b.yaml; fi; python t.py $C"),
            ("bash run.sh", "source env; python t.py --config $CFG"),
            ("bash run.sh", "shift; python t.py \"$@\""),
            ("bash run.sh a", "python $(cat name).py"),
            ("bash run.sh", "bash absent.sh"),
            ("bash run.sh", "bash run.sh"),
            ("bash run.sh", &many),
            ("python t.py --config large.json", ""),
            ("python absent", ""),
            ("./absent", ""),
        ] {
            let files = [("run.sh", script), ("t.py", ""), ("large.json", &large), ("env", "")];
            let [edition, _] = editions(&files, &line.split(' ').collect::<Vec<_>>(), "t.py");
            assert!(is_unread(&edition), "{line}: {script}: {edition:?}");
        }
    }

    #[test]
    fn what_runs_write_and_read_is_no_edition() {
        for line in [
            "python t.py --log-file x.txt",
            "python t.py --data x.txt --resume x.txt --output=x.txt --ckpt x.txt",
            "python t.py --metrics x.txt x.log x.csv",
            "python t.py > x.txt",
            "python t.py 2>&1 | tee x.txt",
            "mkdir -p out; rm -f x.txt; echo done > x.txt; python t.py",
            "python t.py --train_file large.json",
        ] {
            let large = "y".repeat(2 << 20);
            let files = [("t.py", ""), ("x.txt", ""), ("x.log", ""), ("x.csv", ""), ("large.json", &large)];
            let edited = if line.contains("large") { "large.json" } else { "x.txt" };
            let [before, after] = editions(&files, &["sh", "-c", line], edited);
            assert!(before == after && before == Some(fingerprint(b"")), "{line}: {before:?} {after:?}");
        }
    }

    #[test]
    fn a_trace_is_believed_less_where_what_runs_is_not_known() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("t.py"), "x").unwrap();
        let unread = |words: &[&str]| {
            let command = words.iter().map(ToString::to_string).collect();
            let mut job = SubmitRequest { command, ..request("", dir.path()) };
            let (model, task) = (ModelArgs::default(), TaskArgs::default());
            gather(&mut job, Source::Options, &model, &task, Path::new("/")).unwrap().known.asked.unread
        };
        for words in [&["make", "train"][..], &["./bin"], &["sh", "-c", "cd $X && python t.py"]] {
            assert!(unread(words), "{words:?}");
        }
        assert!(!unread(&["python", "t.py"]));
    }

    #[test]
    fn a_trace_of_another_edition_gives_no_bound() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("t.py"), "x").unwrap();
        let log = dir.path().join("t.log");
        let elastic = |edition: &str| {
            let head = format!("{{\"format\":\"carma-trace\",\"version\":2,\"edition\":\"{edition}\"}}\n");
            fs::write(&log, head).unwrap();
            let mut job = request("python t.py", dir.path());
            let model = ModelArgs { trace: Some(log.clone()), ..ModelArgs::default() };
            gather(&mut job, Source::Options, &model, &TaskArgs::default(), Path::new("/")).unwrap();
            job.task.elastic
        };
        assert!(!elastic(&fingerprint(b"x")) && elastic(&fingerprint(b"y")));
    }

    #[test]
    fn a_file_that_is_not_what_it_is_given_as_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("garbage.bin");
        let gathered = |model: &ModelArgs| {
            let mut job = request("python x.py --batch-size 8", dir.path());
            gather(&mut job, Source::Options, model, &TaskArgs::default(), Path::new("/")).map(|m| m.known)
        };
        let named = || Some(file.clone());
        let none = ModelArgs::default;
        for text in [&b"\x01\x02 no model of any kind \xff"[..], b""] {
            fs::write(&file, text).unwrap();
            for model in [
                ModelArgs { summary: named(), ..none() },
                ModelArgs { hf_config: named(), ..none() },
                ModelArgs { safetensors: named(), ..none() },
                ModelArgs { onnx: named(), ..none() },
                ModelArgs { trace: named(), ..none() },
            ] {
                let failure = gathered(&model).unwrap_err();
                let message = failure.message.unwrap();
                assert!(failure.code == 2 && message.contains("garbage.bin"), "{model:?}: {message}");
            }
        }
        // A configuration that no estimate can be made of is one, and that it was named is said later.
        fs::write(&file, "{\"model_type\": \"resnet\"}").unwrap();
        let known = gathered(&ModelArgs { hf_config: named(), ..none() }).unwrap();
        let platform = platform_named("NVIDIA H200", MiB(143_771), (2, 11));
        let answers = estimators::run("allocator", &known, &ModelTask::default(), &platform).unwrap();
        let error = answers[0].result.as_ref().unwrap_err().to_string();
        assert!(error.contains("garbage.bin"), "{error}");
    }

    #[test]
    fn without_a_batch_size_there_is_no_guess() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("s.txt"), SUMMARY).unwrap();
        let model = ModelArgs { summary: Some(dir.path().join("s.txt")), ..ModelArgs::default() };
        let gathered = |line: &str| {
            let mut job = request(line, dir.path());
            gather(&mut job, Source::Options, &model, &TaskArgs::default(), Path::new("/")).unwrap()
        };
        assert!(!gathered("python x.py").known.has_model());
        assert_eq!(gathered("python x.py --batch-size 8").task.batch_size, 8);
        assert_eq!(gathered("python x.py train.batch_size=64 val.batch_size=8").task.batch_size, 64);
    }
}

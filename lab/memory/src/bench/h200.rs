//! Real models measured on an H200: torchvision, timm and transformers, by batch, precision, optimizer,
//! training and inference (`bench/h200/memory_models.py`, docs/research/datasets.md).
//!
//! **Halves** are by family of model: families in the order of their names, even ones to tune on, odd ones
//! for the test. What was tuned on the first half is the factor of convolution workspaces on this GPU and
//! the margins of [`crate::margin`]; rules and templates come from PyTorch's and the models' sources.
//!
//! **Measured** is the most that the allocator held, and the CUDA context that a fresh process of the kind has
//! by NVML; the workers' own contexts were up to 120 MiB larger, since they had run other models before.

use super::{BASELINES, Data, Pair, Score, Target, Test, authors};
use carma_memory::estimators::{self, Known};
use carma_memory::gpumemnet::AuthorsNetworks;
use carma_memory::{Attention, Error, Estimate, Lora, Mode, ModelTask, Optimizer, Platform, Precision};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, Cursor};
use std::path::Path;
use std::sync::Arc;

/// Runs with cudnn.benchmark have no bound that could be told beforehand; they stand apart.
pub(super) const NAME: &str = "real models on an H200";

/// One measured run.
#[derive(Debug, Clone)]
pub struct Run {
    /// Model, and number of the run.
    pub id: String,
    /// Name of the model.
    pub model: String,
    /// Family of the model.
    pub family: String,
    /// How it was run.
    pub task: ModelTask,
    /// Memory of the process, by NVML, MiB.
    pub measured_mib: f64,
    /// Activity alone, where it was measured.
    pub alone: Option<Alone>,
}

/// What a run did to a GPU that it had for itself: shares of 1, and the time of a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Alone {
    /// GPM's activities.
    pub gract: f64,
    /// See there.
    pub smact: f64,
    /// See there.
    pub smocc: f64,
    /// Of DRAM.
    pub drama: f64,
    /// Milliseconds.
    pub step_ms: f64,
}

#[derive(Debug, Deserialize)]
struct Line {
    id: String,
    model: String,
    model_family: String,
    mode: String,
    batch_size: u64,
    seq_len: Option<u64>,
    optimizer: String,
    precision: String,
    #[serde(default)]
    attention: String,
    #[serde(default)]
    gradient_checkpointing: String,
    #[serde(default)]
    lora_rank: Option<u32>,
    #[serde(default)]
    channels_last: String,
    #[serde(default)]
    cudnn_benchmark: String,
    status: String,
    process_mib: Option<f64>,
    /// After a window of some hundred steps.
    #[serde(default)]
    later_process_mib: Option<f64>,
    /// What a sample is; where it is no text, `seq_len` is the size of an image and the like.
    #[serde(default)]
    kind: String,
    #[serde(default)]
    gract: Option<f64>,
    #[serde(default)]
    smact: Option<f64>,
    #[serde(default)]
    smocc: Option<f64>,
    #[serde(default)]
    dram: Option<f64>,
    #[serde(default)]
    step_ms: Option<f64>,
}

#[derive(Debug, Deserialize)]
struct Text {
    model: String,
    dialect: String,
    text: String,
}

/// The word of a type's serde form; its default for an empty one.
fn word<T: DeserializeOwned + Default>(word: &str, id: &str) -> Result<T, Error> {
    if word.is_empty() {
        return Ok(T::default());
    }
    serde_json::from_value(word.into()).map_err(|e| Error::bad(id, e.to_string()))
}

fn run(line: Line) -> Result<Option<Run>, Error> {
    let Some(measured_mib) = line.process_mib.filter(|_| line.status == "SUCCESSFUL") else {
        return Ok(None);
    };
    let measured_mib = line.later_process_mib.map_or(measured_mib, |later| later.max(measured_mib));
    let of_text = ["", "masked", "causal", "seq2seq", "speech"].contains(&&*line.kind);
    let task = ModelTask {
        mode: word::<Mode>(&line.mode, &line.id)?,
        // The batch of a graph network is counted in edges there, and in its summary in nodes.
        batch_size: if line.kind == "graph" { line.batch_size / 10 } else { line.batch_size },
        seq_len: line.seq_len.filter(|_| of_text),
        // Such batches have half as many tokens to write as to read (`memory_unseen.py`).
        target_len: line.seq_len.filter(|_| line.kind == "seq2seq").map(|n| n / 2),
        optimizer: word::<Optimizer>(&line.optimizer, &line.id)?,
        precision: word::<Precision>(&line.precision, &line.id)?,
        attention: word::<Attention>(&line.attention, &line.id)?,
        gradient_checkpointing: line.gradient_checkpointing == "true",
        lora: line.lora_rank.filter(|rank| *rank > 0).map(|rank| Lora { rank, targets: Vec::new() }),
        channels_last: line.channels_last == "true",
        cudnn_benchmark: line.cudnn_benchmark == "true",
        ..ModelTask::default()
    };
    let alone = || {
        Some(Alone {
            gract: line.gract?,
            smact: line.smact?,
            smocc: line.smocc?,
            drama: line.dram?,
            step_ms: line.step_ms?,
        })
    };
    let alone = alone();
    Ok(Some(Run { id: line.id, model: line.model, family: line.model_family, task, measured_mib, alone }))
}

fn open(path: &Path) -> Result<Cursor<Vec<u8>>, Error> {
    Ok(Cursor::new(carma_files::read_unpacked(path, carma_files::MOST)?))
}

/// Reads the runs that ended well.
///
/// # Errors
/// The file cannot be read, or has other columns or words.
pub fn runs(path: &Path) -> Result<Vec<Run>, Error> {
    let bad = |e: csv::Error| Error::bad(path.display().to_string(), e.to_string());
    let mut runs = Vec::new();
    for line in csv::Reader::from_reader(open(path)?).into_deserialize() {
        runs.extend(run(line.map_err(bad)?)?);
    }
    Ok(runs)
}

/// Texts of each model by dialect.
pub(super) type Texts = BTreeMap<(String, String), String>;

pub(super) fn texts(path: &Path) -> Result<Texts, Error> {
    let bad = |e: String| Error::bad(path.display().to_string(), e);
    open(path)?
        .lines()
        .map(|line| {
            let text: Text = serde_json::from_str(&line.map_err(|e| bad(e.to_string()))?)
                .map_err(|e| bad(e.to_string()))?;
            Ok(((text.model, text.dialect), text.text))
        })
        .collect()
}

/// Families to tune on: every second, in the order of their names.
#[must_use]
pub fn tuned(runs: &[Run]) -> BTreeSet<String> {
    let families: BTreeSet<&String> = runs.iter().map(|run| &run.family).collect();
    families.into_iter().step_by(2).cloned().collect()
}

/// A front end or baseline: its name for people, the estimator's, and the texts that it takes.
struct Way {
    name: &'static str,
    estimator: &'static str,
    dialects: &'static [&'static str],
    limits: fn(&Score) -> Vec<Target>,
}

fn none(_: &Score) -> Vec<Target> {
    Vec::new()
}

/// The limits: mean error, coverage and tightness of the bound.
pub(super) fn limits(score: &Score, mre: f64) -> Vec<Target> {
    vec![
        Target::new(format!("MRE <= {:.0} %", mre * 100.0), score.mre <= mre),
        Target::new("covered >= 95 %", score.covered.is_some_and(|share| share >= 0.95)),
        Target::new("median of upper/measured <= 1.25", score.tightness.is_some_and(|ratio| ratio <= 1.25)),
    ]
}

const SUMMARIES: &[&str] = &["torchsummary", "torchinfo", "modelsummary"];

const WAYS: &[Way] = &[
    Way {
        name: "torchsummary",
        estimator: "allocator/summary",
        dialects: &["torchsummary"],
        limits: |s| limits(s, 0.12),
    },
    Way {
        name: "torchinfo",
        estimator: "allocator/summary",
        dialects: &["torchinfo"],
        limits: |s| limits(s, 0.12),
    },
    Way {
        name: "modelsummary",
        estimator: "allocator/summary",
        dialects: &["modelsummary"],
        limits: |s| limits(s, 0.12),
    },
    Way {
        name: "config.json",
        estimator: "allocator/hf-config",
        dialects: &["config"],
        limits: |s| limits(s, 0.08),
    },
];

/// Those that are asked for comparison, from any summary that there is.
fn baselines() -> impl Iterator<Item = Way> {
    let others = BASELINES.iter().chain(&["quick", "accelerate"]);
    others.map(|estimator| Way { name: "any summary", estimator, dialects: SUMMARIES, limits: none })
}

/// What estimates are made from.
struct Sources {
    texts: Texts,
    platform: Platform,
    authors: Option<Arc<dyn AuthorsNetworks>>,
}

/// A configuration as a run has it: texts were written as the Trainer sets models up; inference keeps keys and values.
pub(super) fn as_run(config: &str, mode: Mode) -> String {
    let caches = if mode == Mode::Infer { ["false", "true"] } else { ["true", "false"] };
    let [from, to] = caches.map(|word| format!("\"use_cache\": {word}"));
    config.replace(&from, &to)
}

fn estimate(way: &Way, run: &Run, sources: &Sources) -> Option<Result<Estimate, Error>> {
    let Sources { texts, platform, authors } = sources;
    let text = way.dialects.iter().find_map(|d| texts.get(&(run.model.clone(), (*d).to_owned())))?.clone();
    let mut known = Known { authors: authors.clone(), ..Known::default() };
    if way.dialects == ["config"] {
        known.hf_config = Some(as_run(&text, run.task.mode));
    } else {
        known.summary = Some(text);
    }
    let answer = estimators::run(way.estimator, &known, &run.task, platform).map(|mut answers| answers.pop());
    match answer {
        Ok(Some(answer)) => Some(answer.result),
        Ok(None) => None,
        Err(error) => Some(Err(error)),
    }
}

/// Estimates of one way for all runs; those that fail are named with why.
fn pairs<'a>(way: &Way, runs: impl Iterator<Item = &'a Run>, sources: &Sources) -> (Vec<Pair>, Vec<String>) {
    let (mut pairs, mut failed) = (Vec::new(), Vec::new());
    for run in runs {
        match estimate(way, run, sources) {
            None => {}
            Some(Err(error)) => failed.push(format!("{}: {error}", run.id)),
            Some(Ok(estimate)) => pairs.push(Pair {
                label: run.id.clone(),
                measured_mib: run.measured_mib,
                estimated_mib: estimate.use_mib.0 as f64,
                upper_mib: Some(estimate.upper_mib.0 as f64),
            }),
        }
    }
    (pairs, failed)
}

fn load(data: &Data) -> Result<(Vec<Run>, Sources), String> {
    let all = runs(&data.own("memory-models.csv.gz")?).map_err(|e| e.to_string())?;
    let texts = texts(&data.own("memory-texts.jsonl.gz")?).map_err(|e| e.to_string())?;
    let platform = Platform::lookup("H200", (2, 11)).map_err(|e| e.to_string())?;
    Ok((all, Sources { texts, platform, authors: authors(data) }))
}

/// What was measured over the bound, both beside the context, for the runs of the half to tune on that an estimator
/// answers from a summary; with the family that it says.
///
/// # Errors
/// The measurements are not there, or cannot be read.
pub fn over_bounds(data: &Data, estimator: &'static str) -> Result<Vec<(String, f64)>, String> {
    let (all, sources) = load(data)?;
    let tuned = tuned(&all);
    let way = Way { name: "", estimator, dialects: SUMMARIES, limits: none };
    let context = sources.platform.context_mib.0 as f64;
    let chosen = all.iter().filter(|run| tuned.contains(&run.family) && !run.task.cudnn_benchmark);
    let answers = chosen.filter_map(|run| Some((run, estimate(&way, run, &sources)?.ok()?)));
    Ok(answers
        .map(|(run, estimate)| {
            let bound = (estimate.upper_mib.0 as f64 - context).max(1.0);
            (estimate.family, (run.measured_mib - context).max(0.0) / bound)
        })
        .collect())
}

/// All tests over the set.
#[must_use]
pub fn tests(data: &Data) -> Vec<Test> {
    let (all, sources) = match load(data) {
        Ok(loaded) => loaded,
        Err(reason) => return vec![Test::skipped(NAME, "all", reason)],
    };
    let tuned = tuned(&all);
    let mut tests = Vec::new();
    let baselines: Vec<Way> = baselines().collect();
    for way in WAYS.iter().chain(&baselines) {
        if way.estimator.starts_with("gpumemnet-published") && sources.authors.is_none() {
            let why = "../shared/data/gpumemnet/weights is not there";
            tests.push(Test::skipped(&format!("{NAME}, held out"), way.estimator, why));
            continue;
        }
        let mut test = |what: &str, chosen: &dyn Fn(&Run) -> bool, limits: fn(&Score) -> Vec<Target>| {
            let (pairs, failed) = pairs(way, all.iter().filter(|run| chosen(run)), &sources);
            let mut name = format!("{NAME}, {what}, {}", way.name);
            let baseline = !way.estimator.starts_with("allocator");
            if baseline && !failed.is_empty() {
                // They say themselves what they cannot answer; that is their limit, not a mistake.
                name.push_str(&format!(" ({} runs that it cannot answer left out)", failed.len()));
            }
            let mut test = Test::of(&name, way.estimator, &pairs, limits);
            if !baseline && !failed.is_empty() {
                test.targets.push(Target::new(
                    format!("every run has an estimate (first of {}: {})", failed.len(), failed[0]),
                    false,
                ));
            }
            tests.push(test);
        };
        test("held out", &|run| !tuned.contains(&run.family) && !run.task.cudnn_benchmark, way.limits);
        if way.estimator.starts_with("allocator") {
            test("tuned on", &|run| tuned.contains(&run.family) && !run.task.cudnn_benchmark, none);
            if way.name == "torchsummary" {
                test("cudnn.benchmark", &|run| run.task.cudnn_benchmark, none);
            }
        }
    }
    tests
}

//! Models measured on an H200 by `bench/h200/memory_unseen.py`: until memory was steady, each run in a process of its own.
//!
//! Three sets. *Known* has models of [`super::h200`] again, to develop on. *First* has 24 models that were a test set once and
//! have been developed on since (`bench/h200/MEMORY_UNSEEN_DATA.md`). *Later* has 24 others: its rows were compared with
//! estimates once, after these were fixed (`bench/h200/MEMORY_LATER_DATA.md`).

use super::h200::{Run, texts};
use super::{Data, Pair, Score, Target, Test, h200, traces};
use carma_memory::estimators::{self, Known};
use carma_memory::{Estimate, Mode, Platform};

/// A set: its file, its folder of traces, its summaries and configurations, its name.
struct Set {
    runs: &'static str,
    traces: &'static str,
    texts: &'static str,
    name: &'static str,
}

const KNOWN: Set = Set {
    runs: "memory-known.csv.gz",
    traces: "traces/known",
    texts: "",
    name: "known models on an H200 until steady",
};
const FIRST: Set = Set {
    runs: "memory-unseen.csv.gz",
    traces: "traces/unseen",
    texts: "memory-unseen-texts.jsonl.gz",
    name: "24 models of the first test on an H200 until steady",
};
const LATER: Set = Set {
    runs: "memory-later.csv.gz",
    traces: "traces/later",
    texts: "memory-later-texts.jsonl.gz",
    name: "24 unseen models on an H200 until steady",
};
/// Torchinfo at several depths, and others.
const DIALECTS: [(&str, &str); 5] = [
    ("torchinfo-2", "torchinfo, depth 2"),
    ("torchinfo-3", "torchinfo, depth 3"),
    ("torchinfo-6", "torchinfo, depth 6"),
    ("torchsummary", "torchsummary"),
    ("config", "config.json"),
];
/// Models of [`super::h200`] as ONNX files without weights (`bench/memory/onnx_models.py`).
const ONNX: &str = "onnx";

/// What a text in a dialect says of a run's model.
fn known_by(dialect: &str, text: &str, run: &Run) -> Known {
    if dialect == "config" {
        return Known { hf_config: Some(h200::as_run(text, run.task.mode)), ..Known::default() };
    }
    Known { summary: Some(text.to_owned()), ..Known::default() }
}

/// A run with a description of its model, and what was measured of it alone.
#[derive(Debug)]
pub(super) struct Described {
    /// Of the three sets.
    pub(super) set: &'static str,
    pub(super) dialect: String,
    pub(super) run: Run,
    pub(super) known: Known,
}

/// All runs whose models have a tree or a configuration.
pub(super) fn described(data: &Data) -> Result<Vec<Described>, String> {
    let mut all = Vec::new();
    for (set, texts_of) in [(&KNOWN, "memory-texts.jsonl.gz"), (&FIRST, FIRST.texts), (&LATER, LATER.texts)] {
        let texts = texts(&data.own(texts_of)?).map_err(|e| e.to_string())?;
        for run in runs(data, set.runs)? {
            for dialect in ["torchinfo", "torchinfo-3", "torchinfo-6", "config"] {
                let Some(text) = texts.get(&(run.model.clone(), dialect.to_owned())) else { continue };
                let known = known_by(dialect, text, &run);
                all.push(Described { set: set.runs, dialect: dialect.to_owned(), run: run.clone(), known });
            }
        }
    }
    Ok(all)
}

/// The file of the later set.
pub(super) const LATER_RUNS: &str = LATER.runs;

/// Tests, or why there are none.
type Part = fn(&Data) -> Result<Vec<Test>, String>;

/// All tests over both sets, and those from ONNX.
#[must_use]
pub fn tests(data: &Data) -> Vec<Test> {
    let parts: [(&str, Part); 6] = [
        (KNOWN.name, |data| from_traces(data, &KNOWN)),
        (FIRST.name, |data| from_traces(data, &FIRST)),
        (FIRST.name, |data| from_texts(data, &FIRST)),
        (LATER.name, |data| from_traces(data, &LATER)),
        (LATER.name, |data| from_texts(data, &LATER)),
        (ONNX, from_onnx),
    ];
    parts
        .into_iter()
        .flat_map(|(name, part)| part(data).unwrap_or_else(|why| vec![Test::skipped(name, "all", why)]))
        .collect()
}

fn limits(mre: f64, covered: f64, tightness: f64) -> impl Fn(&Score) -> Vec<Target> {
    move |score| {
        vec![
            Target::new(format!("MRE <= {:.1} %", mre * 100.0), score.mre <= mre),
            Target::new(
                format!("covered >= {:.0} %", covered * 100.0),
                score.covered.is_some_and(|share| share >= covered),
            ),
            Target::new(
                format!("median of upper/measured <= {tightness:.2}"),
                score.tightness.is_some_and(|ratio| ratio <= tightness),
            ),
        ]
    }
}

fn h200_platform() -> Result<Platform, String> {
    Platform::lookup("H200", (2, 11)).map_err(|e| e.to_string())
}

fn runs(data: &Data, file: &str) -> Result<Vec<Run>, String> {
    h200::runs(&data.own(file)?).map_err(|e| e.to_string())
}

fn pair(run: &Run, estimate: &Estimate) -> Pair {
    Pair {
        label: run.id.clone(),
        measured_mib: run.measured_mib,
        estimated_mib: estimate.use_mib.0 as f64,
        upper_mib: Some(estimate.upper_mib.0 as f64),
    }
}

fn from_traces(data: &Data, set: &Set) -> Result<Vec<Test>, String> {
    let (runs, platform) = (runs(data, set.runs)?, h200_platform()?);
    let (mut training, mut inference) = (Vec::new(), Vec::new());
    for run in &runs {
        let Ok(path) = data.own(&format!("{}/{}.trace.gz", set.traces, run.id)) else { continue };
        let replay = traces::replay_file(&path, &platform).map_err(|e| e.to_string())?;
        let estimate = replay.estimate(&run.task, &platform).map_err(|e| format!("{}: {e}", run.id))?;
        if run.task.mode == Mode::Infer { &mut inference } else { &mut training }.push(pair(run, &estimate));
    }
    let all = [training.clone(), inference.clone()].concat();
    let test = |what: &str, pairs: &[Pair], mre: f64| {
        Test::of(&format!("{}, trace, {what}", set.name), "allocator/trace", pairs, limits(mre, 0.98, 1.10))
    };
    Ok(vec![test("all", &all, 0.02), test("training", &training, 0.02), test("inference", &inference, 0.03)])
}

/// An estimator's answers for runs; those that it refuses are counted in the test's name.
fn asked<'a>(
    name: &str,
    estimator: &str,
    runs: impl Iterator<Item = (&'a Run, Known)>,
    platform: &Platform,
    limits: impl FnOnce(&Score) -> Vec<Target>,
) -> Test {
    let (mut pairs, mut refused) = (Vec::new(), 0);
    for (run, known) in runs {
        let answer = estimators::run(estimator, &known, &run.task, platform).map(|mut all| all.pop());
        match answer {
            Ok(Some(answer)) => match answer.result {
                Ok(estimate) => pairs.push(pair(run, &estimate)),
                Err(_) => refused += 1,
            },
            _ => refused += 1,
        }
    }
    let more = if refused > 0 { format!(" ({refused} runs refused)") } else { String::new() };
    Test::of(&format!("{name}{more}"), estimator, &pairs, limits)
}

fn from_texts(data: &Data, set: &Set) -> Result<Vec<Test>, String> {
    let (runs, platform) = (runs(data, set.runs)?, h200_platform()?);
    let texts = texts(&data.own(set.texts)?).map_err(|e| e.to_string())?;
    let of = |dialects: &[&str]| -> Vec<(&Run, Known)> {
        let found = runs.iter().flat_map(|run| dialects.iter().map(move |dialect| (run, *dialect)));
        found
            .filter_map(|(run, dialect)| {
                let text = texts.get(&(run.model.clone(), dialect.to_owned()))?;
                Some((run, known_by(dialect, text, run)))
            })
            .collect()
    };
    let mut tests = Vec::new();
    let any = ["torchinfo-2", "torchinfo-3", "torchinfo-6"];
    let name = |what: &str| format!("{}, {what}", set.name);
    tests.push(asked(
        &name("torchinfo, any depth"),
        "allocator/summary",
        of(&any).into_iter(),
        &platform,
        limits(0.045, 0.97, 1.25),
    ));
    for (dialect, what) in DIALECTS {
        let config = dialect == "config";
        let estimator = if config { "allocator/hf-config" } else { "allocator/summary" };
        let limit = limits(0.02, 0.98, 1.12);
        tests.push(asked(&name(what), estimator, of(&[dialect]).into_iter(), &platform, |score| {
            if config { limit(score) } else { Vec::new() }
        }));
    }
    for estimator in ["horus", "faketensor", "gpumemnet", "dnnperf"] {
        tests.push(asked(
            &name("torchinfo, depth 6"),
            estimator,
            of(&["torchinfo-6"]).into_iter(),
            &platform,
            |_| Vec::new(),
        ));
    }
    Ok(tests)
}

fn from_onnx(data: &Data) -> Result<Vec<Test>, String> {
    let (runs, platform) = (runs(data, "memory-models.csv.gz")?, h200_platform()?);
    let mut known = Vec::new();
    for run in runs.iter().filter(|run| !run.task.cudnn_benchmark) {
        let Ok(path) = data.own(&format!("{ONNX}/{}.onnx", run.model)) else { continue };
        let bytes = carma_files::read(&path, carma_files::MOST).map_err(|e| e.to_string())?;
        known.push((run, Known { onnx: Some(bytes), ..Known::default() }));
    }
    Ok(["dnnmem", "allocator/onnx"]
        .map(|estimator| {
            let name = "real models on an H200, ONNX";
            asked(name, estimator, known.iter().cloned(), &platform, |_| Vec::new())
        })
        .to_vec())
}

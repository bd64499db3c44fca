//! Recorded traces against measurements.
//!
//! The logs are our own recordings (`bench/memory/campaign.py`, `bench/memory/trace_rows.py`); what was
//! measured is other people's for the campaign. The bound of the convolutions' workspaces was chosen on
//! the 30 rows of the campaign: its figures are in-sample, those without the bound
//! are not and stand beside them. Everything else is the allocator model and the context of the table.

use super::{Data, Outcome, Pair, Target, Test, h200};
use carma_memory::trace::{Replay, read, replay};
use carma_memory::{Error, Estimate, MiB, ModelTask, Platform};
use serde::Deserialize;
use std::io::BufReader;
use std::path::Path;
use std::time::Instant;

const CNN: &str = "30 CNN tasks of the CARMA campaign, A100-40GB";
const LANGUAGE: &str = "Language models of the CARMA campaign with fixed length, A100-40GB";
const TIME: &str = "Replay of a trace";
const ESTIMATOR: &str = "allocator/trace";

/// Language models of the campaign and the logs of them.
const LANGUAGE_TASKS: [(&str, &str); 3] =
    [("BERT_base", "BERT_base-32"), ("BERT_large", "BERT_large-8"), ("gpt2_large_2", "gpt2_large-8")];

/// All tests on traces.
#[must_use]
pub fn run(data: &Data) -> Vec<Test> {
    let mut tests = cnn(data).unwrap_or_else(|why| vec![Test::skipped(CNN, ESTIMATOR, why)]);
    tests.push(language(data).unwrap_or_else(|why| Test::skipped(LANGUAGE, ESTIMATOR, why)));
    tests.extend(models(data).unwrap_or_else(|why| vec![Test::skipped(h200::NAME, ESTIMATOR, why)]));
    tests.push(time(data).unwrap_or_else(|why| Test::skipped(TIME, ESTIMATOR, why)));
    tests
}

/// Reads and replays a log.
///
/// # Errors
/// No such file, or no log.
pub fn replay_file(path: &Path, platform: &Platform) -> Result<Replay, Error> {
    let file = carma_files::open(path)?;
    let at = |e: Error| Error::bad(path.display().to_string(), e.to_string());
    replay(&mut read(BufReader::new(file)).map_err(at)?, platform).map_err(at)
}

fn campaign_log(data: &Data, name: &str, platform: &Platform) -> Result<Estimate, String> {
    let path = data.own(&format!("traces/campaign/{name}.trace.gz"))?;
    let replay = replay_file(&path, platform).map_err(|e| e.to_string())?;
    replay.estimate(&ModelTask::default(), platform).map_err(|e| e.to_string())
}

fn a100() -> Result<Platform, String> {
    Platform::lookup("A100-40GB", (2, 8)).map_err(|e| e.to_string())
}

#[derive(Debug, Deserialize)]
struct CnnRow {
    workload: String,
    batch: u64,
    measured_mib: f64,
}

fn rows<T: for<'de> Deserialize<'de>>(path: &Path) -> Result<Vec<T>, String> {
    let bad = |e: csv::Error| format!("{}: {e}", path.display());
    let file = carma_files::open_bounded(path, carma_files::MOST).map_err(|e| e.to_string())?;
    csv::Reader::from_reader(file).deserialize().collect::<Result<_, _>>().map_err(bad)
}

fn pair(label: String, measured_mib: f64, estimate: &Estimate) -> Pair {
    Pair {
        label,
        measured_mib,
        estimated_mib: estimate.use_mib.0 as f64,
        upper_mib: Some(estimate.upper_mib.0 as f64),
    }
}

fn cnn(data: &Data) -> Result<Vec<Test>, String> {
    let platform = a100()?;
    let (mut pairs, mut without) = (Vec::new(), Vec::new());
    for row in rows::<CnnRow>(&data.shared("gpumemnet/proto_eval_carma.csv")?)? {
        let label = format!("{}-{}", row.workload, row.batch);
        let estimate = campaign_log(data, &label, &platform)?;
        let workspace = estimate.parts.map_or(MiB::ZERO, |p| p.workspace_mib);
        let bare = (estimate.use_mib - workspace).0 as f64;
        without.push(Pair {
            label: label.clone(),
            measured_mib: row.measured_mib,
            estimated_mib: bare,
            upper_mib: None,
        });
        pairs.push(pair(label, row.measured_mib, &estimate));
    }
    Ok(vec![
        Test::of(CNN, ESTIMATOR, &pairs, |s| {
            vec![
                Target::new("MRE <= 4 %", s.mre <= 0.04),
                Target::new("worst <= 10 %", s.worst.abs() <= 0.10),
            ]
        }),
        Test::of(CNN, "allocator/trace, no bound of workspaces", &without, |_| Vec::new()),
    ])
}

#[derive(Debug, Deserialize)]
struct WorkloadRow {
    rad: String,
    measured_mib: Option<f64>,
}

fn language(data: &Data) -> Result<Test, String> {
    let platform = a100()?;
    let all: Vec<WorkloadRow> = rows(&data.shared("carma/workloads.csv")?)?;
    let mut pairs = Vec::new();
    for (task, log) in LANGUAGE_TASKS {
        let measured = all.iter().find(|row| row.rad == task).and_then(|row| row.measured_mib);
        let measured = measured.ok_or_else(|| format!("workloads.csv has no measurement of {task}"))?;
        pairs.push(pair(task.to_owned(), measured, &campaign_log(data, log, &platform)?));
    }
    Ok(Test::of(LANGUAGE, ESTIMATOR, &pairs, |s| vec![Target::new("MRE <= 5 %", s.mre <= 0.05)]))
}

/// The real models that were measured on an H200, traced by the code that measured them.
fn models(data: &Data) -> Result<Vec<Test>, String> {
    let all = h200::runs(&data.own("memory-models.csv.gz")?).map_err(|e| e.to_string())?;
    let platform = Platform::lookup("H200", (2, 11)).map_err(|e| e.to_string())?;
    let tuned = h200::tuned(&all);
    let (mut held_out, mut tuned_on, mut elastic) = (Vec::new(), Vec::new(), Vec::new());
    for run in &all {
        // Not every run has a log in the repository: they would be too large together.
        let Ok(path) = data.own(&format!("traces/models/{}.trace.gz", run.id)) else { continue };
        let replay = replay_file(&path, &platform).map_err(|e| e.to_string())?;
        let estimate = replay.estimate(&run.task, &platform).map_err(|e| format!("{}: {e}", run.id))?;
        let pairs = if run.task.cudnn_benchmark {
            &mut elastic
        } else if tuned.contains(&run.family) {
            &mut tuned_on
        } else {
            &mut held_out
        };
        pairs.push(pair(run.id.clone(), run.measured_mib, &estimate));
    }
    let name = |what: &str| format!("{}, {what}, trace", h200::NAME);
    Ok(vec![
        Test::of(&name("held out"), ESTIMATOR, &held_out, |s| h200::limits(s, 0.05)),
        Test::of(&name("tuned on"), ESTIMATOR, &tuned_on, |_| Vec::new()),
        Test::of(&name("cudnn.benchmark"), ESTIMATOR, &elastic, |_| Vec::new()),
    ])
}

/// Reads and replays the longest log, from memory.
fn time(data: &Data) -> Result<Test, String> {
    let platform = a100()?;
    let path = data.own("traces/campaign/gpt2_large-8.trace.gz")?;
    let log = carma_files::read(&path, carma_files::MOST).map_err(|e| e.to_string())?;
    let mut best = f64::INFINITY;
    let mut events = 0;
    for _ in 0..5 {
        let began = Instant::now();
        let replay = read(&log[..])
            .and_then(|mut reader| replay(&mut reader, &platform))
            .map_err(|e| format!("{}: {e}", path.display()))?;
        best = best.min(began.elapsed().as_secs_f64() * 1000.0);
        events = replay.events;
    }
    let per_22k = best * 22_000.0 / events.max(1) as f64;
    Ok(Test {
        name: TIME.to_owned(),
        estimator: ESTIMATOR.to_owned(),
        outcome: Outcome::Figures {
            figures: vec![
                ("events".to_owned(), events.to_string()),
                ("best of five, decompression included".to_owned(), format!("{best:.1} ms")),
                ("for 22,000 events".to_owned(), format!("{per_22k:.1} ms")),
            ],
        },
        targets: vec![Target::new("22,000 events < 10 ms", per_22k < 10.0)],
        pairs: Vec::new(),
    })
}

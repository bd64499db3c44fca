//! What a description says of a task's activity alone, against what was measured on an H200.
//!
//! The constants of [`carma_memory::activity`] are fitted to the known and the first models (`bench/h200/activity_fit.py`); the later
//! ones had no part in the fit.

use super::h200::Alone;
use super::unseen::{Described, LATER_RUNS, described};
use super::{Data, Outcome, Target, Test};
use carma_memory::activity::{Activity, Range};
use carma_memory::graph::kernels::{Kind, kernels};
use carma_memory::{Mode, Platform, estimators};
use std::fmt::Write as _;

const NAME: &str = "activity alone on an H200, by description";

/// Scores by set and kind of description.
#[must_use]
pub fn tests(data: &Data) -> Vec<Test> {
    scored(data).unwrap_or_else(|why| vec![Test::skipped(NAME, "activity", why)])
}

fn scored(data: &Data) -> Result<Vec<Test>, String> {
    let platform = Platform::lookup("H200", (2, 11)).map_err(|e| e.to_string())?;
    let mut rows = Vec::new();
    for row in described(data)? {
        let Some(alone) = row.run.alone else { continue };
        if let Ok(said) = estimators::activity(&row.known, &row.run.task, &platform) {
            rows.push((row, alone, said));
        }
    }
    let later = |row: &Described| row.set == LATER_RUNS;
    let fitted: Vec<&(Described, Alone, Activity)> = rows.iter().filter(|(row, ..)| !later(row)).collect();
    // The one-line baseline: what the middle one of the fitted runs does.
    let middle = |mode: Mode| {
        let of = fitted.iter().filter(|(row, ..)| row.run.task.mode == mode);
        carma_stats::median(of.map(|(_, alone, _)| alone.smact).collect::<Vec<_>>()).unwrap_or(0.5)
    };
    let (training, inference) = (middle(Mode::Train), middle(Mode::Infer));
    let test = |what: &str, rows: Vec<&(Described, Alone, Activity)>, judged: bool| {
        if rows.is_empty() {
            return Test::skipped(&format!("{NAME}, {what}"), "activity", "no rows");
        }
        let n = rows.len() as f64;
        let mean =
            |f: &dyn Fn(&(Described, Alone, Activity)) -> f64| rows.iter().map(|r| f(r)).sum::<f64>() / n;
        let smact = mean(&|(_, alone, said)| (said.smact.expected - alone.smact).abs());
        let baseline = mean(&|(row, alone, _)| {
            let said = if row.run.task.mode == Mode::Train { training } else { inference };
            (said - alone.smact).abs()
        });
        let inside =
            |range: Range, value: f64| f64::from(u8::from((range.lower..=range.upper).contains(&value)));
        let times = rows.iter().map(|(_, alone, said)| (said.step_ms.expected / alone.step_ms).ln().abs());
        let time = carma_stats::median(times.collect::<Vec<_>>()).unwrap_or(f64::NAN).exp();
        let figures = [
            ("rows", format!("{n}")),
            ("SMACT off by", format!("{smact:.3}")),
            ("by its median", format!("{baseline:.3}")),
            ("SMOCC", format!("{:.3}", mean(&|(_, alone, said)| (said.smocc.expected - alone.smocc).abs()))),
            ("DRAMA", format!("{:.3}", mean(&|(_, alone, said)| (said.drama.expected - alone.drama).abs()))),
            ("step, median factor", format!("{time:.2}")),
            (
                "SMACT covered",
                format!("{:.1} %", 100.0 * mean(&|(_, alone, said)| inside(said.smact, alone.smact))),
            ),
            (
                "step covered",
                format!("{:.1} %", 100.0 * mean(&|(_, alone, said)| inside(said.step_ms, alone.step_ms))),
            ),
        ];
        let figures = figures.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        let targets =
            if judged { vec![Target::new("SMACT off by <= 0.10", smact <= 0.1)] } else { Vec::new() };
        Test {
            name: format!("{NAME}, {what}"),
            estimator: "activity".to_owned(),
            outcome: Outcome::Figures { figures },
            targets,
            pairs: Vec::new(),
        }
    };
    let unseen =
        |dialect: &str| rows.iter().filter(|(row, ..)| later(row) && row.dialect == dialect).collect();
    Ok(vec![
        test("78 models that it was fitted to", fitted.clone(), false),
        test("24 unseen models", rows.iter().filter(|(row, ..)| later(row)).collect(), true),
        test("24 unseen models, config.json", unseen("config"), false),
        test("24 unseen models, torchinfo, depth 3", unseen("torchinfo-3"), false),
        test("24 unseen models, torchinfo, depth 6", unseen("torchinfo-6"), false),
    ])
}

/// A line of JSON for each run: its kernels and what was measured, as `bench/h200/activity_fit.py` reads them.
///
/// # Errors
/// The data cannot be read.
pub fn rows(data: &Data) -> Result<String, String> {
    let mut text = String::new();
    for row in described(data)? {
        let Some(alone) = row.run.alone else { continue };
        let Ok(graph) = estimators::graph(&row.known, &row.run.task) else { continue };
        let kernels: Vec<_> = kernels(&graph)
            .into_iter()
            .map(|k| {
                let kind = match k.kind {
                    Kind::Product => "product",
                    Kind::Convolution => "convolution",
                    Kind::Grouped => "grouped",
                    Kind::Traffic => "traffic",
                };
                (kind, k.flops, k.numbers, k.parameters, k.launches)
            })
            .collect();
        let task = &row.run.task;
        let line = serde_json::json!({
            "later": row.set == LATER_RUNS, "id": row.run.id, "family": row.run.family, "dialect": row.dialect,
            "mode": task.mode, "precision": task.precision, "optimizer": task.optimizer,
            "parameters": graph.parameters(), "tensors": graph.params.len(), "kernels": kernels,
            "gract": alone.gract, "smact": alone.smact, "smocc": alone.smocc, "drama": alone.drama, "step_ms": alone.step_ms,
        });
        let _ = writeln!(text, "{line}");
    }
    Ok(text)
}

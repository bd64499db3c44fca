//! Writes traces and catalogues, as [`super::read`] and [`Catalogue::read`] read them.

use super::catalogue::forecast_column;
use super::{Activity, Catalogue, CatalogueTask, Trace};
use carma_core::model::Estimator;
use carma_core::units::{MiB, Millis};
use std::io::{self, Write};

/// Writes a trace. Columns in which no job has a value are left out.
///
/// # Errors
/// When `out` cannot be written to.
pub fn trace(trace: &Trace, out: impl Write) -> io::Result<()> {
    let columns = ["job", "arrival_s", "task", "duration_s", "gpus", "user", "memory_mib", "thread_percent"];
    let columns = columns.iter().chain(&Activity::NAMES).copied();
    let rows = trace.jobs.iter().map(|job| {
        let mut row = vec![
            line(&job.id),
            seconds(job.arrival),
            job.task.as_deref().map(line).unwrap_or_default(),
            job.duration.map(seconds).unwrap_or_default(),
            job.gpus.map(|n| n.to_string()).unwrap_or_default(),
            line(&job.user),
            mib(job.memory),
            job.threads.map(|n| n.to_string()).unwrap_or_default(),
        ];
        row.extend(job.activity.fields().map(share));
        row
    });
    write(columns, rows, 2, out)
}

/// Writes a catalogue. Columns in which no task has a value are left out.
///
/// # Errors
/// When `out` cannot be written to.
pub fn catalogue(catalogue: &Catalogue, out: impl Write) -> io::Result<()> {
    let before = ["task", "model", "class", "gpus", "duration_s", "memory_mib"];
    let after = [
        "startup_s",
        "memory_over_time",
        "mps_curve",
        "lucid_score",
        "mps_weight",
        "steps_per_s",
        "declared_mib",
    ];
    let estimates = Estimator::ALL.map(forecast_column);
    let columns = before.iter().chain(&Activity::NAMES).chain(&after).copied();
    let columns = columns.chain(estimates.iter().map(String::as_str));
    write(columns, catalogue.tasks.values().map(|task| task_row(task)), 1, out)
}

fn task_row(task: &CatalogueTask) -> Vec<String> {
    let mut row = vec![
        line(&task.name),
        line(&task.model),
        task.weight.map(|w| w.as_str().to_owned()).unwrap_or_default(),
        if task.gpus == 0 { String::new() } else { task.gpus.to_string() },
        task.duration.map(seconds).unwrap_or_default(),
        task.memory.iter().map(|m| m.0.to_string()).collect::<Vec<_>>().join(";"),
    ];
    row.extend(task.activity.fields().map(share));
    let forecasts = &task.forecasts;
    row.extend([
        task.startup.map(seconds).unwrap_or_default(),
        pairs(&task.memory_over_time),
        pairs(&task.mps_curve),
        task.lucid_score.map(|score| score.to_string()).unwrap_or_default(),
        task.mps_weight.map(|weight| weight.to_string()).unwrap_or_default(),
        task.steps_per_s.map(|steps| steps.to_string()).unwrap_or_default(),
        mib(forecasts.declared),
    ]);
    row.extend(Estimator::ALL.map(|estimator| mib(forecasts.estimates.of(estimator))));
    row
}

/// Writes the columns that hold something, and the first `always` in any case.
fn write<'a>(
    columns: impl Iterator<Item = &'a str>,
    rows: impl Iterator<Item = Vec<String>> + Clone,
    always: usize,
    out: impl Write,
) -> io::Result<()> {
    let columns: Vec<&str> = columns.collect();
    let mut kept: Vec<bool> = (0..columns.len()).map(|i| i < always).collect();
    for row in rows.clone() {
        for (kept, field) in kept.iter_mut().zip(&row) {
            *kept |= !field.is_empty();
        }
    }
    let mut csv = csv::Writer::from_writer(out);
    csv.write_record(columns.iter().zip(&kept).filter(|(_, kept)| **kept).map(|(name, _)| name))?;
    for row in rows {
        csv.write_record(row.iter().zip(&kept).filter(|(_, kept)| **kept).map(|(field, _)| field))?;
    }
    csv.flush()
}

/// Seconds with the milliseconds that there are.
fn seconds(time: Millis) -> String {
    let text = format!("{}.{:03}", time.0 / 1000, time.0 % 1000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn mib(memory: Option<MiB>) -> String {
    memory.map(|m| m.0.to_string()).unwrap_or_default()
}

fn share(share: Option<f64>) -> String {
    share.map(|s| s.to_string()).unwrap_or_default()
}

fn pairs(pairs: &[(f64, f64)]) -> String {
    pairs.iter().map(|(a, b)| format!("{a}:{b}")).collect::<Vec<_>>().join(";")
}

/// A name on one line: rows never span lines.
fn line(name: &str) -> String {
    name.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

//! Checks of what was measured, and a data set without the traces of how it was measured.
//!
//! Rows that can't be true are dropped, each with its reason. Two things stay that need care, and are told by
//! columns: a run that hit its cap (`status` OOM) says only that it needs more than `cap_mib`, and one that gave
//! memory back to stay below its cap (`alloc_retries` above 0) would have taken more.
//!
//! Resident workers' CUDA contexts grow with the kernels of earlier runs. A fresh process has none of them, so
//! `context_mib` becomes the median of runs of the same kind (family, source of the model, mode, precision,
//! attention) that had a process of their own; where there are none, the least context of the kind's runs in
//! workers. `process_mib` becomes that plus `reserved_mib`, and the readings move to `worker_context_mib` and
//! `worker_process_mib`.

use super::file::Table;
use carma_memory::Error;
use std::collections::{BTreeMap, BTreeSet};

/// A row that was left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dropped {
    /// Its id.
    pub id: String,
    /// Why it was dropped.
    pub reason: String,
}

/// A checked data set.
#[derive(Debug, Clone, Default)]
pub struct Cleaned {
    /// What is left, sorted by id.
    pub table: Table,
    /// What is not.
    pub dropped: Vec<Dropped>,
}

/// Segments of PyTorch's allocator come in multiples of this.
const SEGMENT_MIB: f64 = 2.0;
/// A context that differs by more than this from the median of its kind is a wrong reading.
const CONTEXT_SPREAD_MIB: f64 = 300.0;
/// Full steps of a run.
const STEPS: usize = 3;
/// A step of training holds the weights and their gradients.
const WEIGHTS_AND_GRADIENTS: f64 = 2.0;
/// Columns that tell how a row was measured, not what: two rows that agree in all others are the same twice.
const NOT_CONFIGURATION: [&str; 3] = ["id", "cap_mib", "predicted_mib"];
const RESULTS: [&str; 20] = [
    "status",
    "reason",
    "params",
    "activations",
    "model_mib",
    "allocated_mib",
    "reserved_mib",
    "process_mib",
    "context_mib",
    "worker_process_mib",
    "worker_context_mib",
    "start_mib",
    "steps_mib",
    "alloc_retries",
    "asked_mib",
    "residue_mib",
    "fresh",
    "seconds",
    "layer_list",
    "source_file",
];

/// A number of a row; `None` where the cell is empty or there is no such column.
fn number(row: &BTreeMap<&str, &str>, column: &str) -> Result<Option<f64>, String> {
    let cell = row.get(column).map_or("", |c| c.trim());
    if cell.is_empty() {
        return Ok(None);
    }
    match cell.parse::<f64>() {
        Ok(n) if (0.0..1e15).contains(&n) => Ok(Some(n)),
        _ => Err(format!("{column} is `{}`", cell.chars().take(40).collect::<String>())),
    }
}

fn required(row: &BTreeMap<&str, &str>, column: &str) -> Result<f64, String> {
    number(row, column)?.ok_or_else(|| format!("{column} is empty"))
}

/// Runs of a kind load the same kernels.
fn kind(row: &BTreeMap<&str, &str>) -> String {
    ["family", "source", "mode", "precision", "attention"]
        .map(|c| row.get(c).copied().unwrap_or(""))
        .join(" ")
}

fn median(sorted: &[f64]) -> f64 {
    carma_stats::high_median(sorted).unwrap_or_default()
}

/// Checks a table and takes the workers' contexts out of it; `alone` holds runs that had a process of their own
/// (`carma lab dataset measure --fresh`), perhaps none.
///
/// # Errors
/// A column that every data set has is missing.
pub fn clean(mut table: Table, alone: &Table) -> Result<Cleaned, Error> {
    for needed in ["id", "family", "batch_size", "status", "params", "allocated_mib", "reserved_mib"] {
        if !table.columns.iter().any(|c| c == needed) {
            let what = format!("no column `{needed}`; `carma lab dataset measure` writes such files");
            return Err(Error::bad("data set", what));
        }
    }
    for added in ["process_mib", "context_mib", "worker_process_mib", "worker_context_mib"] {
        table.column(added);
    }
    let mut contexts = contexts(&table);
    for (kind, (_, median)) in self::contexts(alone) {
        contexts.entry(kind).or_insert((median, median)).0 = median;
    }
    let configuration: Vec<usize> = (0..table.columns.len())
        .filter(|at| {
            let name = table.columns[*at].as_str();
            !NOT_CONFIGURATION.contains(&name) && !RESULTS.contains(&name)
        })
        .collect();
    let (mut ids, mut seen) = (BTreeSet::new(), BTreeSet::new());
    let (mut kept, mut dropped) = (Vec::new(), Vec::new());
    for at in 0..table.rows.len() {
        let row = table.row(at);
        let id = row.get("id").copied().unwrap_or_default().to_owned();
        let cells: Vec<String> = configuration.iter().map(|i| table.rows[at][*i].clone()).collect();
        let verdict = check(&row, &contexts).and_then(|()| {
            if !ids.insert(id.clone()) {
                Err("the id is there twice".to_owned())
            } else if !seen.insert(cells) {
                Err("the same configuration is there under another id".to_owned())
            } else {
                Ok(())
            }
        });
        match verdict {
            Ok(()) => kept.push(at),
            Err(reason) => dropped.push(Dropped { id, reason }),
        }
    }
    let mut rows: Vec<Vec<String>> = kept.into_iter().map(|at| fresh(&table, at, &contexts)).collect();
    rows.sort_by(|a, b| a.first().cmp(&b.first()));
    Ok(Cleaned { table: Table { columns: table.columns, rows }, dropped })
}

/// Least and median context by kind, of runs that went through.
fn contexts(table: &Table) -> BTreeMap<String, (f64, f64)> {
    let mut all: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for at in 0..table.rows.len() {
        let row = table.row(at);
        if row.get("status") == Some(&"SUCCESSFUL")
            && let Some(context) = reading(&row, "context_mib")
        {
            all.entry(kind(&row)).or_default().push(context);
        }
    }
    all.into_iter()
        .map(|(kind, mut values)| {
            values.sort_by(f64::total_cmp);
            let middle = median(&values);
            // A wrong reading must not become the context of all.
            let least = values.iter().copied().find(|v| middle - v <= CONTEXT_SPREAD_MIB).unwrap_or(middle);
            (kind, (least, middle))
        })
        .collect()
}

/// What the worker read: in a file that was cleaned before, it stands in another column.
fn reading(row: &BTreeMap<&str, &str>, column: &str) -> Option<f64> {
    let before = format!("worker_{column}");
    let of = |column: &str| number(row, column).ok().flatten();
    of(&before).or_else(|| of(column))
}

/// Why a row can't be used.
fn check(row: &BTreeMap<&str, &str>, contexts: &BTreeMap<String, (f64, f64)>) -> Result<(), String> {
    if row["id"].is_empty() {
        return Err("no id".to_owned());
    }
    let went_through = match row["status"] {
        "SUCCESSFUL" => true,
        "OOM" => false,
        "FAILED" => {
            return Err(format!(
                "the run failed: {}",
                row.get("reason").copied().unwrap_or("no reason given")
            ));
        }
        other => return Err(format!("the status is `{}`", other.chars().take(40).collect::<String>())),
    };
    let (params, batch) = (required(row, "params")?, required(row, "batch_size")?);
    let (allocated, reserved) = (required(row, "allocated_mib")?, required(row, "reserved_mib")?);
    let cap = number(row, "cap_mib")?;
    if params < 1.0 || batch < 1.0 {
        return Err(format!("{params} parameters, batches of {batch}"));
    }
    if allocated > reserved + 1e-6 {
        return Err(format!("{allocated} MiB allocated, but only {reserved} reserved"));
    }
    if (reserved / SEGMENT_MIB).fract() > 1e-9 {
        return Err(format!("{reserved} MiB reserved: the allocator takes multiples of {SEGMENT_MIB} MiB"));
    }
    if let Some(cap) = cap
        && reserved > cap + SEGMENT_MIB
    {
        return Err(format!("{reserved} MiB reserved under a cap of {cap}"));
    }
    if number(row, "residue_mib")?.unwrap_or(0.0) > 0.0 {
        return Err("the worker held memory of an earlier run".to_owned());
    }
    if let (Some(process), Some(context)) = (reading(row, "process_mib"), reading(row, "context_mib")) {
        if process < context {
            return Err(format!("{process} MiB in the process, {context} of it context"));
        }
        if let Some((_, middle)) = contexts.get(&kind(row))
            && went_through
            && (context - middle).abs() > CONTEXT_SPREAD_MIB
        {
            return Err(format!("a context of {context} MiB, {middle} in the median of its kind"));
        }
    }
    if !went_through {
        return if cap.is_some_and(|c| c > 0.0) {
            Ok(())
        } else {
            Err("out of memory, but no cap".to_owned())
        };
    }
    let steps = row.get("steps_mib").map(|s| s.split_whitespace().count());
    if steps.is_some_and(|n| n < STEPS) {
        return Err(format!("ended well after {} of {STEPS} steps", steps.unwrap_or(0)));
    }
    let training = row.get("mode").is_none_or(|m| *m != "infer");
    let adapted = row.get("lora_rank").is_some_and(|r| !r.is_empty() && *r != "0");
    let size = if row.get("precision").is_some_and(|p| matches!(*p, "bf16" | "fp16")) { 2.0 } else { 4.0 };
    let copies = if training && !adapted { WEIGHTS_AND_GRADIENTS } else { 1.0 };
    let least = params * size * copies / f64::from(1 << 20);
    if allocated < least * 0.999 {
        return Err(format!(
            "{allocated:.0} MiB allocated, but parameters alone take {least:.0}: it did not train"
        ));
    }
    Ok(())
}

/// The row as a fresh process would have had it.
fn fresh(table: &Table, at: usize, contexts: &BTreeMap<String, (f64, f64)>) -> Vec<String> {
    let row = table.row(at);
    let (process, context) = (reading(&row, "process_mib"), reading(&row, "context_mib"));
    let least = contexts.get(&kind(&row)).map(|(least, _)| *least);
    let reserved = number(&row, "reserved_mib").ok().flatten();
    let mut cells = table.rows[at].clone();
    let mut set = |name: &str, value: Option<f64>| {
        if let (Some(at), Some(value)) = (table.columns.iter().position(|c| c == name), value) {
            cells[at] = value.to_string();
        }
    };
    set("worker_process_mib", process);
    set("worker_context_mib", context);
    // A run that was cut short may have loaded less than others of its kind.
    let context = match (context, least) {
        (Some(read), Some(least)) => Some(read.min(least)),
        (read, _) => read,
    };
    set("context_mib", context);
    if let (Some(reserved), Some(context)) = (reserved, context) {
        set("process_mib", Some(reserved + context));
    }
    cells
}

#[cfg(test)]
mod tests;

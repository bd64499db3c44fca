//! What a data set holds: counts, quantiles, classes.

use super::file::Table;
use serde::Serialize;
use std::collections::BTreeMap;

/// Tasks in a class of memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Class {
    /// Lower end, GB of 1,000 MiB as in GPUMemNet.
    pub from_gb: u64,
    /// Tasks whose memory is above the lower end and not above the upper one.
    pub tasks: usize,
}

/// What a data set holds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Description {
    /// Number of rows.
    pub rows: usize,
    /// Rows by family.
    pub families: BTreeMap<String, usize>,
    /// Runs that needed more than their cap: lower bounds.
    pub out_of_memory: usize,
    /// Runs that gave memory back to stay below their cap: lower bounds, too.
    pub squeezed: usize,
    /// Memory of the process, MiB, of all other runs: least, 5, 25, 50, 75, 95 %, most.
    pub process_mib: Vec<f64>,
    /// CUDA contexts, MiB, as fresh processes have them: least and most.
    pub context_mib: Option<(f64, f64)>,
    /// CUDA contexts, MiB, as the workers had them: least and most.
    pub worker_context_mib: Option<(f64, f64)>,
    /// By width, GB: classes that have tasks.
    pub classes: BTreeMap<u64, Vec<Class>>,
    /// Values of the columns that say what was run, with their counts; of those with few values.
    pub words: BTreeMap<String, BTreeMap<String, usize>>,
}

const WIDTHS_GB: [u64; 3] = [1, 2, 8];
const SHARES: [f64; 7] = [0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0];
const WORDS: [&str; 13] = [
    "arch",
    "mode",
    "precision",
    "optimizer",
    "activation",
    "batch_norm",
    "attention",
    "gradient_checkpointing",
    "channels_last",
    "cudnn_benchmark",
    "lora_rank",
    "source",
    "status",
];

/// Describes a data set, best after [`super::clean`].
#[must_use]
pub fn describe(table: &Table) -> Description {
    let mut families: BTreeMap<String, usize> = BTreeMap::new();
    let mut words: BTreeMap<String, BTreeMap<String, usize>> = BTreeMap::new();
    let (mut out_of_memory, mut squeezed) = (0, 0);
    let (mut memory, mut contexts, mut workers) = (Vec::new(), Vec::new(), Vec::new());
    for at in 0..table.rows.len() {
        let row = table.row(at);
        let word = |c: &str| row.get(c).copied().unwrap_or_default();
        *families.entry(word("family").to_owned()).or_default() += 1;
        for column in WORDS.iter().filter(|c| row.contains_key(**c)) {
            *words.entry((*column).to_owned()).or_default().entry(word(column).to_owned()).or_default() += 1;
        }
        if word("status") != "SUCCESSFUL" {
            out_of_memory += usize::from(word("status") == "OOM");
            continue;
        }
        contexts.extend(number(word("context_mib")));
        workers.extend(number(word("worker_context_mib")));
        if number(word("alloc_retries")).is_some_and(|n| n > 0.0) {
            squeezed += 1;
        } else {
            memory.extend(number(word("process_mib")));
        }
    }
    memory.sort_by(f64::total_cmp);
    let last = memory.len().saturating_sub(1);
    #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let place = |share: f64| (share * last as f64).round() as usize;
    Description {
        rows: table.rows.len(),
        families,
        out_of_memory,
        squeezed,
        process_mib: SHARES.iter().filter_map(|share| memory.get(place(*share)).copied()).collect(),
        context_mib: ends(&contexts),
        worker_context_mib: ends(&workers),
        classes: WIDTHS_GB.into_iter().map(|width| (width, classes(&memory, width))).collect(),
        words,
    }
}

pub(super) fn number(cell: &str) -> Option<f64> {
    cell.trim().parse().ok().filter(|n: &f64| n.is_finite())
}

fn ends(values: &[f64]) -> Option<(f64, f64)> {
    let least = values.iter().copied().reduce(f64::min)?;
    Some((least, values.iter().copied().fold(least, f64::max)))
}

/// The class of so many MiB, counted from 0: `(k w, (k + 1) w]`.
#[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
pub(super) fn class(mib: f64, width_gb: u64) -> u64 {
    let width = (width_gb * 1000) as f64;
    ((mib.max(1.0) / width).ceil() as u64).saturating_sub(1)
}

fn classes(memory: &[f64], width_gb: u64) -> Vec<Class> {
    let mut counts: BTreeMap<u64, usize> = BTreeMap::new();
    for mib in memory {
        *counts.entry(class(*mib, width_gb)).or_default() += 1;
    }
    counts.into_iter().map(|(k, tasks)| Class { from_gb: k * width_gb, tasks }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_quantiles() {
        let text = "id,family,status,process_mib,context_mib,worker_context_mib,alloc_retries,precision\n\
            a,mlp,SUCCESSFUL,900,742,750,0,fp32\n\
            b,mlp,SUCCESSFUL,1000,742,742,0,fp32\n\
            c,mlp,SUCCESSFUL,1001,742,744,0,bf16\n\
            d,mlp,SUCCESSFUL,9000,742,744,3,bf16\n\
            e,mlp,OOM,,,,,fp32\n";
        let found = describe(&Table::parse("t", text.as_bytes()).unwrap());
        assert_eq!((found.rows, found.out_of_memory, found.squeezed), (5, 1, 1));
        assert_eq!(found.process_mib, [900.0, 900.0, 1000.0, 1000.0, 1001.0, 1001.0, 1001.0]);
        // A class holds its upper end.
        let of = |from_gb, tasks| Class { from_gb, tasks };
        assert_eq!(found.classes[&1], [of(0, 2), of(1, 1)]);
        assert_eq!(found.classes[&8], [of(0, 3)]);
        assert_eq!(found.context_mib, Some((742.0, 742.0)));
        assert_eq!(found.worker_context_mib, Some((742.0, 750.0)));
        assert_eq!(found.words["precision"]["fp32"], 3);
    }

    #[test]
    fn an_empty_set_is_described_too() {
        let found = describe(&Table::parse("t", b"id,family,status\n").unwrap());
        assert_eq!((found.rows, found.process_mib.len(), found.context_mib), (0, 0, None));
    }
}

//! The measurements that models are fitted to, read where they lie.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The folder with other people's data, beside the repository; `None`: it is not there.
#[must_use]
pub fn shared() -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
    path.is_dir().then_some(path)
}

/// MISO's solo progress of one task on one kind of MIG instance of an A100-40GB.
#[derive(Debug, Clone, PartialEq)]
pub struct SliceRow {
    /// Model and batch size.
    pub task: String,
    /// The profile, e.g. `3g.20gb`.
    pub slice: String,
    /// nvidia-smi's GPU utilisation of the task on the whole GPU, 0 to 1.
    pub util_sm: f64,
    /// nvidia-smi's memory utilisation of the task on the whole GPU, 0 to 1.
    pub util_mem: f64,
    /// Speed on the instance over speed on 7g.
    pub progress: f64,
}

/// The rows of MISO (SoCC 2022, MIT licence) for 1g to 4g; `None` where the data isn't there.
#[must_use]
pub fn miso_slices() -> Option<Vec<SliceRow>> {
    let folder = shared()?.join("boringlee24__socc22-miso");
    let read = |file: &str| {
        let mut reader = csv::Reader::from_path(folder.join(file)).ok()?;
        Some(reader.records().filter_map(Result::ok).collect::<Vec<_>>())
    };
    let number = |record: &csv::StringRecord, at: usize| record.get(at).and_then(|v| v.parse::<f64>().ok());
    let task = |record: &csv::StringRecord| {
        format!("{} {}", record.get(0).unwrap_or_default(), record.get(1).unwrap_or_default())
    };
    let mut util = BTreeMap::new();
    for record in read("solo_a100_nvidia_smi.csv")? {
        util.insert(task(&record), (number(&record, 2)? / 100.0, number(&record, 3)? / 100.0));
    }
    // model, batch, slice, iterations, mean seconds
    let latencies = read("solo_a100_mig_iteration_latency.csv")?;
    let mut whole = BTreeMap::new();
    for record in &latencies {
        if record.get(2) == Some("7g.40gb") {
            whole.insert(task(record), number(record, 4)?);
        }
    }
    let mut rows = Vec::new();
    for record in &latencies {
        let slice = record.get(2).unwrap_or_default();
        let task = task(record);
        if slice == "7g.40gb" {
            continue;
        }
        if let (Some(&(util_sm, util_mem)), Some(&alone), Some(seconds)) =
            (util.get(&task), whole.get(&task), number(record, 4))
        {
            let slice = slice.to_owned();
            rows.push(SliceRow { task, slice, util_sm, util_mem, progress: alone / seconds });
        }
    }
    Some(rows)
}

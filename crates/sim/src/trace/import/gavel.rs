//! Gavel's jobs (OSDI'20): a job type, a number of steps, an arrival in seconds and a number of GPUs
//! (`scale_factor`). Run time is steps over the type's throughput alone on a V100, from Gavel's table of
//! throughputs, which must lie beside the trace. Read are the table of all virtual clusters
//! (`virtual_cluster,job_type,total_steps,arrival_s,scale_factor`) and Gavel's own `.trace` files, which
//! are separated by tabs and have no header.

use super::{Draft, Imported, Jobs, given};
use crate::trace::error::{TraceError, shown};
use crate::trace::lines::{open, unzipped};
use crate::trace::resolve::counted;
use crate::trace::table::{Separator, Shape, Table};
use crate::trace::{Catalogue, CatalogueTask};
use carma_core::units::Millis;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

/// Names of the table of throughputs, in the order of preference, also with `.gz`.
const TABLES: [&str; 2] = ["simulation_throughputs.json", "physical_cluster_throughputs.json"];
/// The largest of them is 5 MB.
const MOST_BYTES: u64 = 256 << 20;

const TAB: Separator = Separator::Plain('\t');

/// Gavel's format grew; what a line holds is told by its number of fields.
const OF_7: &[&str] =
    &["job_type", "command", "steps_arg", "data_dir", "total_steps", "arrival_s", "scale_factor"];
const OF_9: &[&str] = &[
    "job_type",
    "command",
    "steps_arg",
    "data_dir",
    "total_steps",
    "scale_factor",
    "priority",
    "slo",
    "arrival_s",
];
const OF_10: &[&str] = &[
    "job_type",
    "command",
    "directory",
    "steps_arg",
    "data_dir",
    "total_steps",
    "scale_factor",
    "priority",
    "slo",
    "arrival_s",
];

pub(super) fn import(reader: impl Read, file: &Path) -> Result<Imported, TraceError> {
    let throughputs = Throughputs::beside(file)?;
    let mut table = Table::guess(reader, file, |first| match first.split('\t').count() {
        1 => Shape::Header(Separator::Comma),
        7 => Shape::Row(TAB, OF_7),
        10 => Shape::Row(TAB, OF_10),
        // Another number is refused with its line, as the wrong number of fields.
        _ => Shape::Row(TAB, OF_9),
    })?;
    let [kind, steps, at, gpus] =
        table.require([&["job_type"], &["total_steps"], &["arrival_s"], &["scale_factor"]])?;
    let user = table.column(&["virtual_cluster"]);
    let mut jobs = Jobs::default();
    let mut catalogue = Catalogue::default();
    let mut scaled = (0_u64, BTreeSet::new());
    while let Some(row) = table.next()? {
        let kind_name = given(&row, kind, row.name(kind)?, "the type of the job")?;
        let count = given(&row, gpus, row.count(gpus)?, "a number of GPUs")?;
        let steps_done = row.number(steps, 0.0..=1e15, "a number of steps")?;
        let steps_done = given(&row, steps, steps_done, "a number of steps")?;
        let arrival = given(&row, at, row.seconds(at)?, "seconds since the beginning")?;
        if count == 0 {
            jobs.skip("uses no GPU");
            continue;
        }
        let rate = match throughputs.of(kind_name, count) {
            Some(rate) => rate,
            None => {
                let rate = throughputs.of(kind_name, 1).ok_or_else(|| {
                    row.fail(format!(
                        "{} has no throughput on a V100 in {}",
                        shown(kind_name),
                        throughputs.file
                    ))
                })?;
                scaled.0 += 1;
                scaled.1.insert(kind_name.to_owned());
                rate
            }
        };
        let duration = Millis((steps_done / rate * 1000.0).round().clamp(0.0, 1e15) as u64);
        if duration == Millis::ZERO {
            jobs.skip("has no run time");
            continue;
        }
        if duration > Millis::secs(3_155_760_000) {
            return Err(row.bad(steps, "steps for at most 100 years"));
        }
        if !catalogue.tasks.contains_key(kind_name) {
            let name: Arc<str> = kind_name.into();
            let task = CatalogueTask {
                name: Arc::clone(&name),
                model: kind_name.to_owned(),
                ..CatalogueTask::default()
            };
            catalogue.tasks.insert(name, Arc::new(task));
        }
        let draft = Draft {
            at: i64::try_from(arrival.0).unwrap_or(i64::MAX),
            user: row.name(user)?.unwrap_or_default(),
            gpus: count,
            duration,
            task: Some(kind_name),
            ..Draft::default()
        };
        jobs.add(&row, &draft);
    }
    let (trace, mut notes) = jobs.finish(file)?;
    notes.push(format!("run time is steps over the throughput alone on a V100, from {}", throughputs.file));
    if scaled.0 > 0 {
        notes.push(format!(
            "{} of {} ask for a number of GPUs without a measured throughput; that of one GPU is taken",
            counted(scaled.0, "job"),
            counted(scaled.1.len() as u64, "type")
        ));
    }
    if user.is_some() {
        notes.push(
            "the virtual cluster is taken as the user; each cluster's arrivals count from its own first job"
                .into(),
        );
    }
    notes.push(
        "no memory and no activity in this source; draw tasks from a catalogue, or they are assumed".into(),
    );
    Ok(Imported { trace, catalogue: Some(catalogue), notes })
}

/// Steps a second alone, by job type and number of GPUs.
struct Throughputs {
    file: String,
    rates: BTreeMap<(String, u32), f64>,
}

/// The part of the table that is needed. Its keys look like `('ResNet-18 (batch size 16)', 1)`, and the
/// throughput alone stands under `null`, among those beside each other type.
#[derive(Deserialize)]
struct Json {
    v100: BTreeMap<String, Solo>,
}

#[derive(Deserialize)]
struct Solo {
    null: f64,
}

impl Throughputs {
    fn beside(trace: &Path) -> Result<Self, TraceError> {
        let names = TABLES.iter().flat_map(|name| [(*name).to_owned(), format!("{name}.gz")]);
        let Some(file) = names.map(|name| trace.with_file_name(name)).find(|file| file.is_file()) else {
            let what = format!(
                "needs Gavel's table of throughputs beside it, {} (or .gz), for its run times; \
                 Gavel's repository has both under scheduler/",
                TABLES.join(" or ")
            );
            return Err(TraceError::new(trace, 0, what));
        };
        Self::read(open(&file)?, &file)
    }

    fn read(reader: impl Read, file: &Path) -> Result<Self, TraceError> {
        let text = unzipped(reader, file)?.take(MOST_BYTES);
        let json: Json = serde_json::from_reader(text)
            .map_err(|e| TraceError::new(file, 0, format!("is no table of throughputs: {e}")))?;
        let mut rates = BTreeMap::new();
        for (key, solo) in json.v100 {
            let parts = key.strip_prefix("('").and_then(|key| key.strip_suffix(')')?.rsplit_once("', "));
            let parts = parts.and_then(|(kind, gpus)| Some((kind.to_owned(), gpus.parse().ok()?)));
            let key = parts.ok_or_else(|| {
                let what = format!("expected a key like `('A3C', 1)` under v100, found {}", shown(&key));
                TraceError::new(file, 0, what)
            })?;
            // Zero marks what was never measured.
            if solo.null.is_finite() && solo.null > 0.0 {
                rates.insert(key, solo.null);
            }
        }
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Self { file: name, rates })
    }

    fn of(&self, kind: &str, gpus: u32) -> Option<f64> {
        self.rates.get(&(kind.to_owned(), gpus)).copied()
    }
}

//! Lucid's simulator (ASPLOS'23), `cluster_full_log.csv`: Helios or Philly jobs, each with a model drawn
//! by its authors and that model's solo profile on an RTX 3090 (`gpu_util` and `gmem_util` in percent
//! as nvidia-smi counts them, `gmem` in MiB).

use super::{Clock, Draft, Imported, Jobs, given};
use crate::trace::error::TraceError;
use crate::trace::read::Words;
use crate::trace::table::{Column, Separator, Table, TableRow};
use crate::trace::{Activity, Catalogue, CatalogueTask};
use carma_core::units::Millis;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

pub(super) fn import(reader: impl Read, file: &Path) -> Result<Imported, TraceError> {
    let mut table = Table::new(reader, file, Separator::Comma)?;
    let [id, gpus, at, duration, model] =
        table.require([&["job_id", "jobname"], &["gpu_num"], &["submit_time"], &["duration"], &["model"]])?;
    let user = table.column(&["user"]);
    let [dataset, batch, amp] = ["dataset", "batchsize", "amp"].map(|name| table.column(&[name]));
    let [util, memory] = ["gpu_util", "gmem"].map(|name| table.column(&[name]));
    let unused = table.unused();
    let (mut jobs, mut clock) = (Jobs::default(), Clock::default());
    let mut catalogue = Catalogue::default();
    let mut words = Words::default();
    while let Some(row) = table.next()? {
        let gpu_count = given(&row, gpus, row.count(gpus)?, "a number of GPUs")?;
        let ran = given(&row, duration, row.seconds(duration)?, "a run time in seconds")?;
        let submitted = given(&row, at, submitted(&mut clock, &row, at)?, "the time of submission")?;
        if gpu_count == 0 {
            jobs.skip("uses no GPU");
            continue;
        }
        if ran == Millis::ZERO {
            jobs.skip("has no run time");
            continue;
        }
        let mut name = given(&row, model, row.name(model)?, "the model")?.to_owned();
        for part in [row.name(dataset)?, row.name(batch)?] {
            name.extend(part.iter().flat_map(|part| ["/", part]));
        }
        if row.text(amp).is_some_and(|amp| amp != "0") {
            name.push_str("/amp");
        }
        if name.len() > 256 {
            return Err(row.bad(model, "model, data set and batch size of at most 256 bytes together"));
        }
        let used = row.mib(memory)?;
        let busy = row.number(util, 0.0..=100.0, "percent, from 0 to 100")?.map(|util| util / 100.0);
        let activity = Activity { gract: busy, ..Activity::default() };
        let name = words.get(&name);
        let task = catalogue.tasks.entry(Arc::clone(&name)).or_insert_with(|| {
            Arc::new(CatalogueTask {
                name: Arc::clone(&name),
                memory: used.into_iter().collect(),
                activity,
                ..CatalogueTask::default()
            })
        });
        // A profile that differs from its task's first one stays with the job.
        let own_memory = used.filter(|used| task.memory.first() != Some(used));
        let own_activity = if task.activity == activity { Activity::default() } else { activity };
        let draft = Draft {
            at: submitted,
            id: row.name(id)?,
            user: row.name(user)?.unwrap_or_default(),
            gpus: gpu_count,
            duration: ran,
            task: Some(&name),
            memory: own_memory,
            activity: own_activity,
        };
        jobs.add(&row, &draft);
    }
    let (trace, mut notes) = jobs.finish(file)?;
    notes.extend(clock.note());
    notes.push("gpu_util is taken as the share of time with a kernel resident (gract)".into());
    notes.extend(unused);
    Ok(Imported { trace, catalogue: Some(catalogue), notes })
}

/// A point in time, or seconds since the beginning, as the logs of Lucid's physical runs have it.
fn submitted(clock: &mut Clock, row: &TableRow<'_>, column: Column) -> Result<Option<i64>, TraceError> {
    match row.text(column).map(str::parse::<f64>) {
        Some(Ok(_)) => Ok(row.seconds(column)?.and_then(|t| i64::try_from(t.0).ok())),
        _ => clock.time(row, column),
    }
}

//! SenseTime's Helios (SC'21), `cluster_log.csv`: Slurm jobs with `gpu_num`, `submit_time` in local
//! time and `duration` in seconds. Failed and cancelled jobs occupied their GPUs too and are kept.

use super::{Draft, Imported, Jobs, LOCAL_TIMES, given, time};
use crate::trace::Activity;
use crate::trace::error::TraceError;
use crate::trace::table::{Separator, Table};
use std::io::Read;
use std::path::Path;

pub(super) fn import(reader: impl Read, file: &Path) -> Result<Imported, TraceError> {
    let mut table = Table::new(reader, file, Separator::Comma)?;
    let [id, gpus, at, duration] =
        table.require([&["job_id"], &["gpu_num"], &["submit_time"], &["duration"]])?;
    let user = table.column(&["user"]);
    let unused = table.unused();
    let mut jobs = Jobs::default();
    while let Some(row) = table.next()? {
        let draft = Draft {
            at: given(&row, at, time(&row, at)?, "the time of submission")?,
            id: row.name(id)?,
            user: row.name(user)?.unwrap_or_default(),
            gpus: given(&row, gpus, row.count(gpus)?, "a number of GPUs")?,
            duration: given(&row, duration, row.seconds(duration)?, "a run time in seconds")?,
            task: None,
            memory: None,
            activity: Activity::default(),
        };
        jobs.add(&row, &draft);
    }
    let (trace, mut notes) = jobs.finish(file)?;
    notes.push(LOCAL_TIMES.into());
    notes.push(
        "no memory and no activity in this source; draw tasks from a catalogue, or they are assumed".into(),
    );
    notes.extend(unused);
    Ok(Imported { trace, catalogue: None, notes })
}

//! Microsoft's Philly cluster (ATC'19), in the form of AdaptDL's artifact (OSDI'21): `timestamp` of
//! submission in local time, `duration` in seconds, `num_gpus`, `cluster` (the virtual cluster).

use super::{Draft, Imported, Jobs, LOCAL_TIMES, given, time};
use crate::trace::Activity;
use crate::trace::error::TraceError;
use crate::trace::table::{Separator, Table};
use std::io::Read;
use std::path::Path;

pub(super) fn import(reader: impl Read, file: &Path) -> Result<Imported, TraceError> {
    let mut table = Table::new(reader, file, Separator::Comma)?;
    let [at, duration, gpus] = table.require([&["timestamp"], &["duration"], &["num_gpus"]])?;
    let user = table.column(&["cluster"]);
    // GPUs times duration: nothing new.
    table.column(&["gpu_time"]);
    let unused = table.unused();
    let mut jobs = Jobs::default();
    while let Some(row) = table.next()? {
        let draft = Draft {
            at: given(&row, at, time(&row, at)?, "the time of submission")?,
            id: None,
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
    notes.push("the virtual cluster is taken as the user".into());
    notes.push(
        "no memory and no activity in this source; draw tasks from a catalogue, or they are assumed".into(),
    );
    notes.extend(unused);
    Ok(Imported { trace, catalogue: None, notes })
}

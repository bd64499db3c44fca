//! Alibaba's GPU cluster of 2023 (`cluster-trace-gpu-v2023`, `openb_pod_list_*.csv`): pods of
//! Kubernetes with `num_gpu`, `gpu_milli` (thousandths of a GPU that a pod asks for) and times of
//! creation, scheduling and deletion in seconds.

use super::{Draft, Imported, Jobs, given};
use crate::trace::Activity;
use crate::trace::error::TraceError;
use crate::trace::table::{Separator, Table};
use carma_core::units::Millis;
use std::io::Read;
use std::path::Path;

pub(super) fn import(reader: impl Read, file: &Path) -> Result<Imported, TraceError> {
    let mut table = Table::new(reader, file, Separator::Comma)?;
    let [name, gpus, share, created, deleted, scheduled] = table.require([
        &["name"],
        &["num_gpu"],
        &["gpu_milli"],
        &["creation_time"],
        &["deletion_time"],
        &["scheduled_time"],
    ])?;
    let user = table.column(&["qos"]);
    let unused = table.unused();
    let mut jobs = Jobs::default();
    while let Some(row) = table.next()? {
        let gpu_count = given(&row, gpus, row.count(gpus)?, "a number of GPUs")?;
        let share = row.number(share, 0.0..=1000.0, "thousandths of a GPU, 0 to 1000")?;
        let at = given(&row, created, row.seconds(created)?, "the time of creation in seconds")?;
        let (from, to) = (row.seconds(scheduled)?, row.seconds(deleted)?);
        if gpu_count == 0 {
            jobs.skip("uses no GPU");
            continue;
        }
        let (from, to) = match (from, to) {
            (None, _) => {
                jobs.skip("was never scheduled");
                continue;
            }
            (_, None) => {
                jobs.skip("was never deleted");
                continue;
            }
            (Some(from), Some(to)) => (from, to),
        };
        if to < from {
            return Err(row.bad(deleted, "a time after the scheduled_time"));
        }
        let duration = to.since(from);
        if duration == Millis::ZERO {
            jobs.skip("has no run time");
            continue;
        }
        let draft = Draft {
            at: i64::try_from(at.0).unwrap_or(i64::MAX),
            id: row.name(name)?,
            user: row.name(user)?.unwrap_or_default(),
            gpus: gpu_count,
            duration,
            activity: Activity { smact: share.map(|share| share / 1000.0), ..Activity::default() },
            ..Draft::default()
        };
        jobs.add(&row, &draft);
    }
    let (trace, mut notes) = jobs.finish(file)?;
    notes.push("the share of a GPU that a pod asks for (gpu_milli) is taken as its SM activity".into());
    notes.push(
        "run time is from scheduling to deletion; pods that ran on when the trace ended are cut there".into(),
    );
    notes.push("the class of service (qos) is taken as the user".into());
    notes.push("no GPU memory in this source".into());
    notes.extend(unused);
    Ok(Imported { trace, catalogue: None, notes })
}

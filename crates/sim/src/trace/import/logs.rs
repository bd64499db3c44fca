//! Logs of clusters with a row a job: when it was submitted, for how long it ran, on how many GPUs; nothing of
//! what it did there.

use super::{Clock, Draft, Imported, Jobs, given};
use crate::trace::error::TraceError;
use crate::trace::table::{Separator, Table};
use std::io::Read;
use std::path::Path;

/// Names of a log's columns. Times of submission are local, run times in seconds.
pub(super) struct Log {
    /// `None`: the jobs have no names and are numbered.
    id: Option<&'static str>,
    submitted: &'static str,
    duration: &'static str,
    gpus: &'static str,
    /// Taken as the user.
    user: &'static str,
    /// Columns that follow from the others.
    derived: &'static [&'static str],
    /// What is to be said of the user's column.
    note: Option<&'static str>,
}

/// SenseTime's Helios (SC'21), `cluster_log.csv`: jobs of Slurm. Failed and cancelled jobs occupied their GPUs too
/// and are kept.
pub(super) const HELIOS: Log = Log {
    id: Some("job_id"),
    submitted: "submit_time",
    duration: "duration",
    gpus: "gpu_num",
    user: "user",
    derived: &[],
    note: None,
};

/// Microsoft's Philly cluster (ATC'19), in the form of AdaptDL's artifact (OSDI'21). `cluster` is the virtual
/// cluster, `gpu_time` the product of GPUs and duration.
pub(super) const PHILLY: Log = Log {
    id: None,
    submitted: "timestamp",
    duration: "duration",
    gpus: "num_gpus",
    user: "cluster",
    derived: &["gpu_time"],
    note: Some("the virtual cluster is taken as the user"),
};

impl Log {
    pub(super) fn import(&self, reader: impl Read, file: &Path) -> Result<Imported, TraceError> {
        let mut table = Table::new(reader, file, Separator::Comma)?;
        let names: [&[&str]; 3] = [&[self.submitted], &[self.duration], &[self.gpus]];
        let (id, [at, duration, gpus]) = match self.id {
            None => (None, table.require(names)?),
            Some(id) => {
                let [id, others @ ..] = table.require([&[id], names[0], names[1], names[2]])?;
                (Some(id), others)
            }
        };
        let user = table.column(&[self.user]);
        for name in self.derived {
            table.column(&[name]);
        }
        let unused = table.unused();
        let (mut jobs, mut clock) = (Jobs::default(), Clock::default());
        while let Some(row) = table.next()? {
            let draft = Draft {
                at: given(&row, at, clock.time(&row, at)?, "the time of submission")?,
                id: row.name(id)?,
                user: row.name(user)?.unwrap_or_default(),
                gpus: given(&row, gpus, row.count(gpus)?, "a number of GPUs")?,
                duration: given(&row, duration, row.seconds(duration)?, "a run time in seconds")?,
                ..Draft::default()
            };
            jobs.add(&row, &draft);
        }
        let (trace, mut notes) = jobs.finish(file)?;
        notes.extend(clock.note());
        notes.extend(self.note.map(Into::into));
        notes.push(
            "no memory and no activity in this source; draw tasks from a catalogue, or they are assumed"
                .into(),
        );
        notes.extend(unused);
        Ok(Imported { trace, catalogue: None, notes })
    }
}

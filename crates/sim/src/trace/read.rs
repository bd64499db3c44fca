//! Reads traces.

use super::error::{TraceError, shown};
use super::lines::open;
use super::table::{Column, Separator, Table, TableRow};
use super::{Activity, Trace, TraceJob};
use std::collections::{BTreeSet, HashSet};
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

/// Names that a trace of several may have at most; more are no names of traces.
const MOST_TRACES: usize = 1000;

/// Reads a trace from a file, gzipped or not; of a file that holds several, the one called `wanted`.
///
/// # Errors
/// The file, the line, and what is wrong.
pub fn trace_file(file: &Path, wanted: Option<&str>) -> Result<Trace, TraceError> {
    trace(open(file)?, file, wanted)
}

/// Reads a trace from anything; `file` is for messages and gives the trace its name.
///
/// # Errors
/// As [`trace_file`].
pub fn trace(reader: impl Read, file: &Path, wanted: Option<&str>) -> Result<Trace, TraceError> {
    let mut table = Table::new(reader, file, Separator::Comma)?;
    let [arrival] = table.require([&["arrival_s"]])?;
    let name = table.column(&["trace"]);
    let id = table.column(&["job", "seq", "job_id"]);
    let task = table.column(&["task"]);
    let duration = table.column(&["duration_s"]);
    let gpus = table.column(&["gpus"]);
    let user = table.column(&["user"]);
    let memory = table.column(&["memory_mib"]);
    let threads = table.column(&["thread_percent"]);
    let activity = ActivityColumns::of(&mut table, false);
    let mut notes: Vec<String> = table.unused().into_iter().collect();

    let mut names = BTreeSet::new();
    let mut jobs = Vec::new();
    let mut words = Words::default();
    while let Some(row) = table.next()? {
        let trace = row.name(name)?.unwrap_or_default();
        if !names.contains(trace) {
            names.insert(trace.to_owned());
            if names.len() > MOST_TRACES {
                return Err(row.fail(format!("more than {MOST_TRACES} names in the column `trace`")));
            }
        }
        if wanted.is_some_and(|wanted| wanted != trace) {
            continue;
        }
        let job = TraceJob {
            line: row.line,
            id: match row.name(id)? {
                Some(id) => id.into(),
                None => (jobs.len() + 1).to_string().into(),
            },
            arrival: row.seconds(arrival)?.ok_or_else(|| row.bad(arrival, "seconds since the beginning"))?,
            task: row.name(task)?.map(|task| words.get(task)),
            duration: row.duration(duration)?,
            gpus: row.gpus(gpus)?,
            user: words.get(row.name(user)?.unwrap_or_default()),
            memory: row.mib(memory)?,
            threads: row.percent(threads)?,
            activity: activity.read(&row)?,
        };
        jobs.push(job);
    }

    let listed = || names.iter().map(|n| shown(n)).collect::<Vec<_>>().join(", ");
    match wanted {
        Some(wanted) if jobs.is_empty() && name.is_none() => {
            let what = format!("has no column `trace` to find {} in; leave the name out", shown(wanted));
            return Err(TraceError::new(file, 0, what));
        }
        Some(wanted) if jobs.is_empty() => {
            let what = format!("holds no trace {}; it holds {}", shown(wanted), listed());
            return Err(TraceError::new(file, 0, what));
        }
        None if names.len() > 1 => {
            let what = format!("holds several traces; choose one with --trace-name: {}", listed());
            return Err(TraceError::new(file, 0, what));
        }
        _ => {}
    }
    if jobs.is_empty() {
        return Err(TraceError::new(file, 0, "has a header and no job"));
    }
    if !jobs.is_sorted_by_key(|job| job.arrival) {
        jobs.sort_by_key(|job| job.arrival);
        notes.push(format!(
            "the jobs of {} were not in the order of arrival; they were sorted",
            file.display()
        ));
    }
    let name = names.pop_first().filter(|name| wanted.is_none() && !name.is_empty());
    let name = wanted.map(str::to_owned).or(name).unwrap_or_else(|| stem(file));
    Ok(Trace { name, file: Some(file.to_owned()), jobs, notes })
}

/// The name of a file without folder, `.gz` and extension.
pub(crate) fn stem(file: &Path) -> String {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let name = name.strip_suffix(".gz").unwrap_or(&name);
    name.rsplit_once('.').map_or(name, |(stem, _)| stem).to_owned()
}

/// The columns of [`Activity`].
#[derive(Clone, Copy)]
pub(crate) struct ActivityColumns([Option<Column>; 7]);

impl ActivityColumns {
    /// Finds them; `solo` also under the names of the CARMA table of tasks.
    pub(crate) fn of(table: &mut Table<'_>, solo: bool) -> Self {
        let names: [[&str; 2]; 7] = [
            ["gract", "gract"],
            ["smact", "solo_smact_mean"],
            ["smocc", "solo_smocc_mean"],
            ["drama", "solo_drama_mean"],
            ["tensor", "tensor"],
            ["pcie", "pcie"],
            ["cpu", "cpu"],
        ];
        Self(names.map(|names| table.column(if solo { &names } else { &names[..1] })))
    }

    pub(crate) fn read(&self, row: &TableRow<'_>) -> Result<Activity, TraceError> {
        let mut values = [None; 7];
        for (value, column) in values.iter_mut().zip(self.0) {
            *value = row.share(column)?;
        }
        Ok(Activity::from_fields(values))
    }
}

/// Shares equal names: 80,000 jobs have a dozen users.
#[derive(Default)]
pub(crate) struct Words(HashSet<Arc<str>>);

impl Words {
    pub(crate) fn get(&mut self, word: &str) -> Arc<str> {
        if let Some(known) = self.0.get(word) {
            return Arc::clone(known);
        }
        let new: Arc<str> = word.into();
        self.0.insert(Arc::clone(&new));
        new
    }
}

//! Turns public traces and accounting dumps into traces: one file for each source; those that differ in the names
//! of their columns alone are in `logs`.
//!
//! All of them take the arrivals relative to the first job that is kept, leave out the jobs that no GPU
//! server would have seen, and count what they left out, by reason. A row that makes no sense is an
//! error with its line: a trace with holes that nobody knows of is worse than none.

mod gavel;
mod logs;
mod lucid;
mod openb;
mod sacct;

use super::error::TraceError;
use super::lines::open;
use super::read::{Words, stem};
use super::resolve::counted;
use super::table::{Column, TableRow};
use super::{Activity, Catalogue, Trace, TraceJob};
use carma_core::units::{MiB, Millis};
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

/// A source of traces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Microsoft's Philly cluster, as AdaptDL's artifact (OSDI'21) has it.
    Philly,
    /// Alibaba's GPU cluster of 2023, `openb_pod_list_*.csv`.
    AlibabaOpenb,
    /// Gavel's (OSDI'20) jobs with Philly's arrivals.
    Gavel,
    /// SenseTime's Helios, `cluster_log.csv`.
    Helios,
    /// Lucid's (ASPLOS'23) simulator, `cluster_full_log.csv`.
    Lucid,
    /// `sacct --parsable2`.
    SlurmSacct,
}

impl Format {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Philly, Self::AlibabaOpenb, Self::Gavel, Self::Helios, Self::Lucid, Self::SlurmSacct];

    /// As on the command line.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Philly => "philly",
            Self::AlibabaOpenb => "alibaba-openb",
            Self::Gavel => "gavel",
            Self::Helios => "helios",
            Self::Lucid => "lucid",
            Self::SlurmSacct => "slurm-sacct",
        }
    }

    /// The format of this name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.as_str() == name)
    }
}

/// What an importer made.
#[derive(Debug, Clone, PartialEq)]
pub struct Imported {
    /// The trace.
    pub trace: Trace,
    /// Its tasks, where the source tells tasks apart.
    pub catalogue: Option<Catalogue>,
    /// What was left out, and what was assumed: one sentence each.
    pub notes: Vec<String>,
}

/// Imports a file, gzipped or not.
///
/// # Errors
/// The file, the line, and what is wrong.
pub fn import_file(format: Format, file: &Path) -> Result<Imported, TraceError> {
    import(format, open(file)?, file)
}

/// Imports from anything; `file` is for messages and gives the trace its name. Gavel's jobs need a
/// second file, which is looked for beside it.
///
/// # Errors
/// As [`import_file`].
pub fn import(format: Format, reader: impl Read, file: &Path) -> Result<Imported, TraceError> {
    match format {
        Format::Philly => logs::PHILLY.import(reader, file),
        Format::AlibabaOpenb => openb::import(reader, file),
        Format::Gavel => gavel::import(reader, file),
        Format::Helios => logs::HELIOS.import(reader, file),
        Format::Lucid => lucid::import(reader, file),
        Format::SlurmSacct => sacct::import(reader, file),
    }
}

/// A job on its way into the trace.
#[derive(Default)]
struct Draft<'a> {
    /// When it came, milliseconds since anything.
    at: i64,
    /// `None`: it is numbered.
    id: Option<&'a str>,
    user: &'a str,
    gpus: u32,
    duration: Millis,
    task: Option<&'a str>,
    memory: Option<MiB>,
    activity: Activity,
}

/// Collects jobs, and counts those that are left out.
#[derive(Default)]
struct Jobs {
    jobs: Vec<(i64, TraceJob)>,
    skipped: BTreeMap<&'static str, u64>,
    words: Words,
}

impl Jobs {
    fn skip(&mut self, reason: &'static str) {
        *self.skipped.entry(reason).or_default() += 1;
    }

    /// Takes a job; one without GPU or run time is left out and counted.
    fn add(&mut self, row: &TableRow<'_>, draft: &Draft<'_>) {
        if draft.gpus == 0 {
            return self.skip("uses no GPU");
        }
        if draft.duration == Millis::ZERO {
            return self.skip("has no run time");
        }
        let id = match draft.id {
            Some(id) => id.into(),
            None => (self.jobs.len() + 1).to_string().into(),
        };
        let job = TraceJob {
            threads: None,
            line: row.line,
            id,
            arrival: Millis::ZERO,
            task: draft.task.map(|task| self.words.get(task)),
            duration: Some(draft.duration),
            gpus: Some(draft.gpus),
            user: self.words.get(draft.user),
            memory: draft.memory,
            activity: draft.activity,
        };
        self.jobs.push((draft.at, job));
    }

    /// The trace, arrivals counted from the first, and a note for each reason to leave out.
    fn finish(mut self, file: &Path) -> Result<(Trace, Vec<String>), TraceError> {
        let notes = self
            .skipped
            .iter()
            .map(|(reason, n)| format!("{} left out: {reason}", counted(*n, "job")))
            .collect::<Vec<_>>();
        self.jobs.sort_by_key(|(at, _)| *at);
        let Some(first) = self.jobs.first().map(|(at, _)| *at) else {
            let why = if notes.is_empty() { String::new() } else { format!(" ({})", notes.join("; ")) };
            return Err(TraceError::new(file, 0, format!("holds no job to import{why}")));
        };
        const CENTURY_MS: u64 = 3_155_760_000_000;
        let mut jobs = Vec::with_capacity(self.jobs.len());
        for (at, mut job) in self.jobs {
            job.arrival = Millis(at.abs_diff(first));
            if job.arrival.0 > CENTURY_MS {
                let what =
                    "came more than a hundred years after the first job; one of the two times is wrong";
                return Err(TraceError::new(file, job.line, what));
            }
            jobs.push(job);
        }
        Ok((Trace { name: stem(file), file: None, jobs, notes: Vec::new() }, notes))
    }
}

/// Reads points in time, and knows whether those of a file bear an offset from UTC.
#[derive(Debug, Default)]
struct Clock {
    offsets: Option<bool>,
}

impl Clock {
    /// A point in time in milliseconds: `2017-10-09 07:01:55` with a blank or a `T`, and perhaps an offset or a `Z` behind
    /// it. Without one the clock's zone is taken for UTC: only differences matter.
    fn time(&mut self, row: &TableRow<'_>, column: Column) -> Result<Option<i64>, TraceError> {
        let Some(text) = row.text(column) else { return Ok(None) };
        // What Slurm and pandas write where there is no time.
        if ["unknown", "none", "null", "nat"].iter().any(|none| text.eq_ignore_ascii_case(none)) {
            return Ok(None);
        }
        let exact = text.parse::<Timestamp>().ok();
        let local = || text.parse::<DateTime>().ok()?.to_zoned(TimeZone::UTC).ok().map(|at| at.timestamp());
        let time = exact.or_else(local).ok_or_else(|| row.bad(column, "a time like 2020-06-09 18:41:01"))?;
        if *self.offsets.get_or_insert(exact.is_some()) != exact.is_some() {
            return Err(row.bad(column, "a time as those before it: all with an offset from UTC, or none"));
        }
        Ok(Some(time.as_millisecond()))
    }

    /// What a reader should know of these times.
    fn note(&self) -> Option<String> {
        let text =
            "times bear no zone; where clocks were changed, gaps between jobs are off by an hour there";
        (self.offsets == Some(false)).then(|| text.to_owned())
    }
}

/// What must be there.
fn given<T>(row: &TableRow<'_>, column: Column, value: Option<T>, expected: &str) -> Result<T, TraceError> {
    value.ok_or_else(|| row.bad(column, expected))
}

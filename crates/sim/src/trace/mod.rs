//! Traces: which jobs came when, and what kind of task each of them is.
//!
//! The format is CSV with a header line, beside a catalogue of tasks ([`catalogue`]), also CSV. CSV
//! because the field's public traces are CSV or come as such from their tools (Philly, Helios,
//! Alibaba, `sacct`), because it can be read by eye and by every tool, and because the largest trace
//! at hand is 5 MB: a columnar format would gain nothing.

pub mod catalogue;
pub mod draw;
mod error;
pub mod import;
mod lines;
pub mod read;
mod resolve;
pub mod summary;
pub mod synthesize;
mod table;
pub mod write;

use carma_core::units::{MiB, Millis};
use std::path::PathBuf;
use std::sync::Arc;

pub use catalogue::{Activity, Catalogue, CatalogueTask};
pub use error::TraceError;
pub use resolve::TOLD_AS_MEASURED;

/// How heavy a task is, as the CARMA evaluation sorts its tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Weight {
    /// CIFAR-sized: a tenth to a fifth of the SMs, up to 2 GB.
    Light,
    /// ImageNet-sized.
    Medium,
    /// Large language models.
    Heavy,
}

impl Weight {
    /// All of them, the lightest first.
    pub const ALL: [Self; 3] = [Self::Light, Self::Medium, Self::Heavy];

    /// As written in catalogues.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Light => "light",
            Self::Medium => "medium",
            Self::Heavy => "heavy",
        }
    }
}

/// One job of a trace, as written there.
#[derive(Debug, Clone, PartialEq)]
pub struct TraceJob {
    /// Line of the file that it stands on, from 1; 0 when it comes from no file.
    pub line: u64,
    /// Its name in the source.
    pub id: Arc<str>,
    /// When it came, since the beginning of the trace.
    pub arrival: Millis,
    /// Its kind, a name in the catalogue.
    pub task: Option<Arc<str>>,
    /// Run time alone; overrides the catalogue's.
    pub duration: Option<Millis>,
    /// Number of GPUs; overrides the catalogue's.
    pub gpus: Option<u32>,
    /// Who submitted it; empty when the source does not say.
    pub user: Arc<str>,
    /// GPU memory on each of its GPUs; overrides the catalogue's.
    pub memory: Option<MiB>,
    /// Share of the SMs' threads that it asks for under MPS, percent.
    pub threads: Option<u8>,
    /// What it does to a GPU when alone; what is given overrides the catalogue's.
    pub activity: Activity,
}

/// A trace as read: jobs in the order of arrival (ties keep the file's order).
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Trace {
    /// Name, for reports.
    pub name: String,
    /// The file that it was read from.
    pub file: Option<PathBuf>,
    /// The jobs.
    pub jobs: Vec<TraceJob>,
    /// What the reader has to say, for people: one sentence each.
    pub notes: Vec<String>,
}

/// One job ready to be simulated: the trace's and the catalogue's word put together.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkJob {
    /// Line in the trace, for messages.
    pub line: u64,
    /// Name in the source.
    pub id: Arc<str>,
    /// When it comes.
    pub arrival: Millis,
    /// Run time alone on the GPUs that it asks for, start-up included.
    pub duration: Millis,
    /// Number of GPUs, at least one.
    pub gpus: u32,
    /// Position in [`Workload::users`].
    pub user: u32,
    /// Share of the SMs' threads that it asks for under MPS, percent.
    pub threads: Option<u8>,
    /// What it is. Jobs of one kind share it.
    pub task: Arc<CatalogueTask>,
}

/// A trace that is ready to be simulated.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Workload {
    /// Name of the trace.
    pub name: String,
    /// Who submits.
    pub users: Vec<Arc<str>>,
    /// The jobs, by arrival.
    pub jobs: Vec<WorkJob>,
    /// What had to be assumed, for people: one sentence each.
    pub notes: Vec<String>,
}

impl Trace {
    /// Keeps the jobs that came within a window; arrivals then count from the first of them.
    pub fn keep_window(&mut self, from: Millis, span: Option<Millis>) {
        let end = span.map_or(Millis(u64::MAX), |span| Millis(from.0.saturating_add(span.0)));
        self.jobs.retain(|job| from <= job.arrival && job.arrival < end);
        let first = self.jobs.first().map_or(Millis::ZERO, |job| job.arrival);
        for job in &mut self.jobs {
            job.arrival = Millis(job.arrival.since(first).0);
        }
    }
}

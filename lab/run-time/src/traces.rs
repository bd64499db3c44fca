//! Jobs of traces, as far as run time is concerned.

use carma_files::FileError;
use carma_run_time::Class;
use carma_sim::trace::TraceError;
use carma_sim::trace::import::{Format, import_file};
use carma_sim::trace::read::trace_file;
use serde::Deserialize;
use std::path::Path;

/// One job that came to an end.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// When it was submitted, seconds since anything.
    pub at_s: f64,
    /// How long it ran, seconds, at least 1.
    pub run_s: u64,
    /// When it ended as far as the trace says: waiting included where it is known.
    pub end_s: f64,
    /// Its classes.
    pub class: Class,
}

/// The jobs of a trace in the order of submission.
#[derive(Debug, Clone, PartialEq)]
pub struct Log {
    /// Name, for tables.
    pub name: String,
    /// What stands for user, program and command.
    pub classes: String,
    /// The jobs.
    pub jobs: Vec<Job>,
}

/// Why a trace could not be read.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The file itself.
    #[error(transparent)]
    File(#[from] FileError),
    /// A trace that can be imported.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// A table of Alibaba's.
    #[error("{file}: {why}")]
    Table {
        /// Which.
        file: String,
        /// What is wrong, with its line.
        why: csv::Error,
    },
}

/// A public trace that is looked for.
#[derive(Debug, Clone, Copy)]
pub struct Public {
    /// Below the folder with the data of others.
    pub file: &'static str,
    read: fn(&Path) -> Result<Log, LogError>,
}

/// Those that are tested on.
pub const PUBLIC: [Public; 3] = [
    Public { file: "petuum__adaptdl/philly.csv.gz", read: philly },
    Public { file: "alibaba__clusterdata/gpu-v2023_openb_pod_list_default.csv.gz", read: openb },
    Public { file: "alibaba__clusterdata/gpu-v2025_disaggregated_DLRM_trace.csv.gz", read: dlrm },
];

impl Public {
    /// Reads it from below a folder. `None`: it is not there.
    ///
    /// # Errors
    /// What keeps it from being read.
    pub fn read(&self, data: &Path) -> Option<Result<Log, LogError>> {
        let file = data.join(self.file);
        file.exists().then(|| (self.read)(&file))
    }
}

impl Log {
    fn new(name: &str, classes: &str, mut jobs: Vec<Job>) -> Self {
        jobs.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
        Self { name: name.to_owned(), classes: classes.to_owned(), jobs }
    }
}

/// A trace that [`carma_sim`] reads: in the format of an importer, or in carma's own. The trace's tasks, and the number of
/// GPUs, tell a user's programs apart.
///
/// # Errors
/// What is wrong with the file, and where.
pub fn imported(file: &Path, format: Option<Format>) -> Result<Log, LogError> {
    let trace = match format {
        Some(format) => import_file(format, file)?.trace,
        None => trace_file(file, None)?,
    };
    let jobs = trace.jobs.iter().filter_map(|job| {
        let run_ms = job.duration?.0;
        let at_s = job.arrival.as_secs_f64();
        let program = format!("{}/{}", job.task.as_deref().unwrap_or_default(), job.gpus.unwrap_or(1));
        let class = Class::of(&job.user, &program, "");
        // When it began is not in the trace: without waiting.
        Some(Job { at_s, run_s: (run_ms / 1000).max(1), end_s: at_s + run_ms as f64 / 1e3, class })
    });
    Ok(Log::new(&trace.name, "user; task and number of GPUs", jobs.collect()))
}

fn philly(file: &Path) -> Result<Log, LogError> {
    let log = imported(file, Some(Format::Philly))?;
    Ok(Log {
        name: "Philly (2017)".into(),
        classes: "user: virtual cluster; program: number of GPUs; no names".into(),
        ..log
    })
}

fn rows<T: for<'de> Deserialize<'de>>(file: &Path) -> Result<Vec<T>, LogError> {
    let bytes = carma_files::read_unpacked(file, carma_files::MOST)?;
    let rows = csv::Reader::from_reader(bytes.as_slice()).deserialize().collect::<Result<_, _>>();
    rows.map_err(|why| LogError::Table { file: file.display().to_string(), why })
}

/// A pod that was placed and deleted. `None`: it never ran, or was not deleted when the trace ended.
fn pod(created: Option<f64>, placed: Option<f64>, deleted: Option<f64>, class: Class) -> Option<Job> {
    let (placed, end_s) = (placed?, deleted?);
    let run_s = end_s - placed;
    // Finite and above zero.
    let at_s = created.unwrap_or(placed);
    (run_s > 0.0 && at_s.is_finite()).then(|| Job { at_s, run_s: (run_s as u64).max(1), end_s, class })
}

fn openb(file: &Path) -> Result<Log, LogError> {
    #[derive(Deserialize)]
    struct Row {
        cpu_milli: String,
        memory_mib: String,
        num_gpu: String,
        gpu_milli: String,
        gpu_spec: String,
        qos: String,
        creation_time: Option<f64>,
        deletion_time: Option<f64>,
        scheduled_time: Option<f64>,
    }
    let jobs = rows::<Row>(file)?.into_iter().filter(|row| row.num_gpu != "0").filter_map(|row| {
        let program = [row.cpu_milli, row.memory_mib, row.num_gpu, row.gpu_milli, row.gpu_spec].join("|");
        pod(row.creation_time, row.scheduled_time, row.deletion_time, Class::of(&row.qos, &program, ""))
    });
    let classes = "user: class of service; program: what it asks for; no names";
    Ok(Log::new("Alibaba openb (2023)", classes, jobs.collect()))
}

fn dlrm(file: &Path) -> Result<Log, LogError> {
    #[derive(Deserialize)]
    struct Row {
        role: String,
        app_name: String,
        creation_time: Option<f64>,
        scheduled_time: Option<f64>,
        deletion_time: Option<f64>,
    }
    let jobs = rows::<Row>(file)?.into_iter().filter_map(|row| {
        let class = Class::of(&row.app_name, &row.role, "");
        pod(row.creation_time, row.scheduled_time, row.deletion_time, class)
    });
    let classes = "user: application; program: role in it; serving, not training";
    Ok(Log::new("Alibaba DLRM (2025)", classes, jobs.collect()))
}

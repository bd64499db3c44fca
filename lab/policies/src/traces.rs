//! CARMA's traces, and the machine on which they were measured.

use crate::Error;
use carma_hardware::GpuTypes;
use carma_sim::event::Cluster;
use carma_sim::trace::{Catalogue, Workload, read};
use std::path::Path;

/// The machine.
pub const MACHINE: &str = "4xA100-40GB";

/// The traces: short name, name in the file.
pub const TRACES: [(&str, &str); 4] = [
    ("T1", "philly_trace-t1"),
    ("T2", "philly_trace-t2"),
    ("H60", "philly_heavy-60-tasks"),
    ("M90", "philly_mix-90-tasks"),
];

/// A workload and its name.
#[derive(Debug, Clone)]
pub struct Named {
    /// Short name.
    pub name: String,
    /// What is played.
    pub workload: Workload,
}

/// Reads the catalogue of CARMA's tasks, from `carma/` in the folder that is named or in `../shared/data` below the folder
/// where the program was started.
///
/// # Errors
/// It is not there, or cannot be read.
pub fn catalogue(named: Option<&Path>) -> Result<Catalogue, Error> {
    Catalogue::read_file(&folder(named)?.join("workloads.csv")).map_err(|e| Error(e.to_string()))
}

/// Reads the four traces.
///
/// # Errors
/// As [`catalogue`].
pub fn published(named: Option<&Path>) -> Result<Vec<Named>, Error> {
    let (catalogue, arrivals) = (catalogue(named)?, folder(named)?.join("philly_evaluation_arrivals.csv"));
    let one = |(short, name): (&str, &str)| {
        let trace = read::trace_file(&arrivals, Some(name)).map_err(|e| Error(e.to_string()))?;
        let workload = Workload::resolve(&trace, Some(&catalogue)).map_err(|e| Error(e.to_string()))?;
        Ok(Named { name: short.to_owned(), workload })
    };
    TRACES.into_iter().map(one).collect()
}

/// Reads a trace of the user's.
///
/// # Errors
/// A file that cannot be read; a task that the catalogue lacks.
pub fn own(trace: &Path, tasks: Option<&Path>) -> Result<Named, Error> {
    let catalogue = tasks.map(Catalogue::read_file).transpose().map_err(|e| Error(e.to_string()))?;
    let trace = read::trace_file(trace, None).map_err(|e| Error(e.to_string()))?;
    let workload = Workload::resolve(&trace, catalogue.as_ref()).map_err(|e| Error(e.to_string()))?;
    Ok(Named { name: workload.name.clone(), workload })
}

/// Reads a cluster.
///
/// # Errors
/// The part that makes no sense.
pub fn cluster(spec: &str) -> Result<Cluster, Error> {
    Cluster::parse(spec, &GpuTypes::built_in()).map_err(|e| Error(e.to_string()))
}

fn folder(named: Option<&Path>) -> Result<std::path::PathBuf, Error> {
    let folder = named.unwrap_or(Path::new("../shared/data")).join("carma");
    if folder.is_dir() {
        return Ok(folder);
    }
    Err(Error(format!("CARMA's traces are not at {}", folder.display())))
}

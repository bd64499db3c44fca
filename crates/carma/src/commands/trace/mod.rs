//! `carma trace`: traces for the simulator.

mod export_history;
mod import;
mod show;
mod synthesize;

use super::Context;
use crate::cli::TraceVerb;
use carma_cli::failure::{Failure, Outcome};
use carma_core::units::Millis;
use carma_files::replace;
use carma_sim::trace::{Catalogue, Trace, TraceError, write};
use std::fmt::Write as _;

use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Runs the verb.
pub(crate) fn run(context: &Context, verb: &TraceVerb) -> Outcome {
    match verb {
        TraceVerb::Import(args) => import::run(args),
        TraceVerb::Synthesize(args) => synthesize::run(args),
        TraceVerb::Show(args) => show::run(args),
        TraceVerb::ExportHistory(args) => export_history::run(context, args),
    }
}

/// A file on the command line makes no sense.
/// What is written may not take the place of what is read.
pub(super) fn keep_apart<'a>(
    option: &str,
    output: &Path,
    inputs: impl IntoIterator<Item = &'a Path>,
) -> Result<(), Failure> {
    let same = |a: &Path| a.canonicalize().ok();
    let Some(written) = same(output) else { return Ok(()) };
    match inputs.into_iter().find(|input| same(input).is_some_and(|read| read == written)) {
        Some(input) => {
            Err(Failure::usage(format!("{option} names {}, which is read; choose another", input.display())))
        }
        None => Ok(()),
    }
}

fn bad(error: TraceError) -> Failure {
    Failure::usage(error.to_string())
}

/// The catalogue that was named, else the one beside the trace, if there.
pub(super) fn catalogue_of(trace: &Path, named: Option<&Path>) -> Result<Option<Catalogue>, Failure> {
    let beside = || Some(tasks_beside(trace)).filter(|file| file.is_file());
    let file = named.map(Path::to_owned).or_else(beside);
    file.map(|file| Catalogue::read_file(&file).map_err(bad)).transpose()
}

/// Where the catalogue of a trace goes: `x.csv` has `x.tasks.csv`.
pub(super) fn tasks_beside(trace: &Path) -> PathBuf {
    if trace.extension().is_some_and(|e| e == "csv") {
        return trace.with_extension("tasks.csv");
    }
    let mut name = trace.file_name().unwrap_or_default().to_owned();
    name.push(".tasks.csv");
    trace.with_file_name(name)
}

fn save_trace(trace: &Trace, file: &Path) -> Result<(), Failure> {
    save(file, |out| write::trace(trace, out))
}

fn save_catalogue(catalogue: &Catalogue, file: &Path) -> Result<(), Failure> {
    save(file, |out| write::catalogue(catalogue, out))
}

/// Puts the catalogue that the tasks of a trace were drawn from beside it, unless it lies there; where it is.
fn save_drawn_from(catalogue: &Catalogue, file: &Path, trace: &Path) -> Result<PathBuf, Failure> {
    let beside = tasks_beside(trace);
    let is_there =
        beside.canonicalize().is_ok_and(|beside| file.canonicalize().is_ok_and(|file| file == beside));
    if !is_there {
        save_catalogue(catalogue, &beside)?;
    }
    Ok(beside)
}

/// Writes a file in one piece: a reader sees meanwhile the old one or the new one.
fn save(file: &Path, write: impl Fn(&mut dyn Write) -> io::Result<()>) -> Result<(), Failure> {
    let mut bytes = Vec::new();
    write(&mut bytes)
        .and_then(|()| replace(file, &bytes))
        .map_err(|e| Failure::new(format!("cannot write {}: {e}", file.display())))
}

/// Says what was written, and what there is to say about it.
fn report(trace: &Trace, file: &Path, tasks: Option<&Path>, notes: &[String]) -> String {
    let span = trace.jobs.last().map_or(Millis::ZERO, |job| job.arrival);
    let mut text = String::new();
    let _ = writeln!(
        text,
        "{} {} that arrive within {span}: {}",
        trace.jobs.len(),
        if trace.jobs.len() == 1 { "job" } else { "jobs" },
        file.display()
    );
    if let Some(tasks) = tasks {
        let _ = writeln!(text, "tasks: {}", tasks.display());
    }
    for note in notes {
        let _ = writeln!(text, "note: {}", carma_cli::clean(note));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn the_catalogue_lies_beside_its_trace() {
        assert_eq!(tasks_beside(Path::new("a/x.csv")), Path::new("a/x.tasks.csv"));
        assert_eq!(tasks_beside(Path::new("x.v2")), Path::new("x.v2.tasks.csv"));
    }

    #[test]
    fn a_failed_write_leaves_the_old_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("x.csv");
        save(&file, |out| out.write_all(b"old")).unwrap();
        let failure =
            save(&file, |out| out.write_all(b"new").and(Err(io::ErrorKind::StorageFull.into()))).unwrap_err();
        assert!(failure.message.unwrap().starts_with(&format!("cannot write {}", file.display())));
        assert_eq!(fs::read(&file).unwrap(), b"old");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}

//! `carma report`: the page of a simulation, from what `carma simulate --json` printed.

use crate::cli::ReportArgs;
use carma_cli::failure::{Failure, Outcome};
use carma_cli::{clean, shell_line};
use carma_files::{Why, replace};
use carma_sim::report::html::{PageInput, page};
use carma_sim::report::json::SimulateReply;
use jiff::Zoned;
use std::io;
use std::path::Path;

/// The largest document that is read, in bytes. Three policies with a hundred thousand jobs each come to
/// a fifth of it, detail and indentation included.
const LARGEST: u64 = 1 << 30;

/// Runs the verb.
pub(crate) fn run(args: &ReportArgs) -> Outcome {
    let name = source_name(&args.file);
    let bytes = read(&args.file).map_err(|why| match why {
        Why::TooLarge { .. } | Why::Longer { .. } => {
            Failure::usage(format!("{name}: {why}")).hint("simulate fewer jobs, or without --detail")
        }
        Why::Io(why) => Failure::new(format!("cannot read {name}: {why}")),
        why => Failure::usage(format!("{name}: {why}")),
    })?;
    let reply = SimulateReply::read(&bytes).map_err(|e| {
        Failure::usage(format!("{name}: {e}")).hint("carma report reads what `carma simulate --json` prints")
    })?;
    let mut notes = reply.notes.clone();
    notes.extend(remarks(&reply));
    let runs = reply.runs();
    let text = page(&PageInput {
        title: &format!("{} on {}", reply.trace, reply.cluster),
        trace: &reply.trace,
        cluster: &reply.cluster,
        command: reply.command.as_deref().unwrap_or_default(),
        date: &now(),
        notes: &notes,
        runs: &runs,
    });
    write_page(&args.output, &text)?;
    Ok(0)
}

/// What the page cannot show as it stands in the document.
fn remarks(reply: &SimulateReply) -> Vec<String> {
    let mut remarks = Vec::new();
    let without = reply.rows.iter().filter(|row| row.detail.is_none()).count();
    if without > 0 {
        remarks.push(format!(
            "{} of the {} policies come without jobs and activity: those are missing from the drawings. \
             `carma simulate --json --detail` writes them.",
            without,
            reply.rows.len()
        ));
    }
    if let Some(row) = reply.rows.iter().find(|row| row.seeds > 1) {
        remarks.push(format!(
            "Figures are means of {} runs with seeds from {} on; drawings show one of them.",
            row.seeds, row.seed
        ));
    }
    remarks
}

/// The time, as a page shows it.
pub(crate) fn now() -> String {
    Zoned::now().strftime("%Y-%m-%d %H:%M %Z").to_string()
}

/// Writes a page so that nobody sees half of one.
///
/// # Errors
/// When it cannot be written; the file is then as it was.
pub(crate) fn write_page(path: &Path, text: &str) -> Result<(), Failure> {
    let name = clean(&path.display().to_string()).into_owned();
    replace(path, text.as_bytes()).map_err(|e| Failure::new(format!("cannot write {name}: {e}")))
}

fn source_name(file: &Path) -> String {
    if file == Path::new("-") {
        return "standard input".into();
    }
    shell_line(&[file.display().to_string()])
}

fn read(file: &Path) -> Result<Vec<u8>, Why> {
    if file == Path::new("-") {
        return carma_files::read_stream(io::stdin().lock(), LARGEST);
    }
    carma_files::read(file, LARGEST).map_err(|e| e.why)
}

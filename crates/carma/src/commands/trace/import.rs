//! `carma trace import`: a public trace or an accounting dump becomes a trace.

use super::{bad, keep_apart, report, save_catalogue, save_drawn_from, save_trace, tasks_beside};
use crate::cli::TraceImportArgs;
use carma_cli::failure::{Failure, Outcome};
use carma_cli::print;
use carma_sim::trace::Catalogue;
use carma_sim::trace::draw::{Mix, assign};
use carma_sim::trace::import::{Format, import_file};

/// Imports it.
pub(crate) fn run(args: &TraceImportArgs) -> Outcome {
    let format = Format::parse(&args.format)
        .ok_or_else(|| Failure::usage(format!("there is no importer for {}", args.format)))?;
    // Read first: a mistake there must not wait for a long import.
    let mix = Mix::parse(&args.mix).map_err(|why| Failure::usage(format!("--mix: {why}")))?;
    let given = args.catalogue.as_deref().map(Catalogue::read_file).transpose().map_err(bad)?;
    keep_apart("--output", &args.output, args.catalogue.as_deref().into_iter().chain([args.file.as_path()]))?;

    let mut made = import_file(format, &args.file).map_err(bad)?;
    if args.from.is_some() || args.span.is_some() {
        let all = made.trace.jobs.len();
        made.trace.keep_window(args.from.unwrap_or_default(), args.span);
        let kept = made.trace.jobs.len();
        if kept == 0 {
            return Err(Failure::usage(format!("none of the {all} jobs came within that window"))
                .hint("`carma trace show` of the whole trace says how long it is"));
        }
        made.notes
            .push(format!("{kept} of {all} jobs came within the window; times count from the first of them"));
    }
    if let Some(limit) = args.limit {
        let all = made.trace.jobs.len();
        made.trace.jobs.truncate(limit.get());
        if made.trace.jobs.len() < all {
            made.notes.push(format!("{all} jobs could be imported; --limit keeps the first {limit}"));
        }
    }
    let mut notes = made.notes;
    if let (Some(given), Some(file)) = (&given, &args.catalogue) {
        assign(&mut made.trace, given, mix, args.seed).map_err(bad)?;
        notes.push(format!(
            "tasks drawn from {} ({}, seed {}); their run times, GPUs, memory and activity replace the source's",
            file.display(),
            args.mix,
            args.seed
        ));
    }
    save_trace(&made.trace, &args.output)?;
    let tasks = match (&given, &args.catalogue, &made.catalogue) {
        // The jobs' tasks are the given catalogue's now.
        (Some(given), Some(file), _) => Some(save_drawn_from(given, file, &args.output)?),
        (_, _, Some(catalogue)) => {
            let file = tasks_beside(&args.output);
            save_catalogue(catalogue, &file)?;
            Some(file)
        }
        _ => None,
    };
    print(&report(&made.trace, &args.output, tasks.as_deref(), &notes))?;
    Ok(0)
}

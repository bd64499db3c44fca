//! `carma lab dataset`: makes, measures and checks data sets of GPU memory.

use crate::cli::dataset::{DatasetCleanArgs, DatasetGenerateArgs, DatasetMeasureArgs, DatasetVerb};
use carma_cli::failure::{Failure, GENERAL, Outcome};
use carma_cli::{Column, Screen, Table as Listing, print, print_json};
use carma_files::{Folder, replace};
use carma_lab_memory::dataset::{self, Description, Dropped, SCRIPTS, Table};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

/// Runs the verb.
pub(crate) fn run(verb: &DatasetVerb) -> Outcome {
    match verb {
        DatasetVerb::Generate(args) => generate(args),
        DatasetVerb::Measure(args) => measure(args),
        DatasetVerb::Clean(args) => clean(args),
    }
}

fn failure(error: carma_memory::Error) -> Failure {
    Failure::new(error.to_string())
}

fn generate(args: &DatasetGenerateArgs) -> Outcome {
    let count = usize::try_from(args.count).unwrap_or(usize::MAX);
    let table = dataset::generate(args.family, count, args.seed);
    table.write(&args.output).map_err(failure)?;
    Ok(0)
}

fn measure(args: &DatasetMeasureArgs) -> Outcome {
    // A file that makes no sense is found before PyTorch is loaded.
    let table = Table::read(&args.rows).map_err(|e| Failure::usage(e.to_string()))?;
    for needed in ["id", "family"] {
        if !table.columns.iter().any(|c| c == needed) {
            let what = format!("{}: no column `{needed}`", args.rows.display());
            return Err(Failure::usage(what).hint("`carma lab dataset generate` writes such files"));
        }
    }
    let family = table.columns.iter().position(|c| c == "family").unwrap_or_default();
    if args.models.is_none() && table.rows.iter().any(|r| r.get(family).is_some_and(|f| f == "model")) {
        let what = format!("{}: rows of the family `model`", args.rows.display());
        return Err(Failure::usage(what).hint("--models names the Python file that builds them"));
    }
    let folder = Folder::with(&SCRIPTS).map_err(|e| Failure::new(e.to_string()))?;
    // Python reads plain text; a compressed file of rows is as good to the user.
    let rows = folder.0.join("rows.csv");
    table.write(&rows).map_err(failure)?;
    let mut command = Command::new(&args.python);
    command.arg(folder.0.join("measure.py")).arg(&rows).arg("-o").arg(&args.output);
    command.arg("--workers").arg(args.workers.to_string());
    let options: [(&str, Option<OsString>); 5] = [
        ("--memory-budget-mib", args.memory_budget.map(|n| n.to_string().into())),
        ("--models", args.models.as_ref().map(|m| m.clone().into_os_string())),
        ("--budget-s", args.budget.map(|n| n.to_string().into())),
        ("--device", args.rehearse.clone().map(Into::into)),
        ("--worker-command", args.worker_command.clone().map(Into::into)),
    ];
    for (name, value) in options {
        if let Some(value) = value {
            command.arg(name).arg(value);
        }
    }
    if args.fresh {
        command.arg("--fresh");
    }
    let status = command.status().map_err(|e| {
        Failure::new(format!("cannot start {}: {e}", args.python.display()))
            .hint("--python names a Python that has PyTorch")
    })?;
    // What was wrong, the script has said.
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(GENERAL))
}

fn clean(args: &DatasetCleanArgs) -> Outcome {
    if args.picture.as_ref().is_some_and(|p| p.extension().is_none_or(|e| e != "svg")) {
        return Err(Failure::usage("--picture: pictures are SVG; a name that ends in .svg is needed"));
    }
    let mut table = Table::default();
    for file in &args.files {
        table.append(Table::read(file).map_err(failure)?);
    }
    let alone = args.fresh.as_deref().map(Table::read).transpose().map_err(failure)?.unwrap_or_default();
    let cleaned = dataset::clean(table, &alone).map_err(failure)?;
    if let Some(out) = &args.out {
        cleaned.table.write(out).map_err(failure)?;
    }
    if let Some(path) = &args.picture {
        let text = dataset::picture(&cleaned.table, args.class_gb).map_err(failure)?;
        write(path, &text)?;
    }
    let found = dataset::describe(&cleaned.table);
    if args.json {
        let dropped: Vec<_> =
            cleaned.dropped.iter().map(|d| serde_json::json!({"id": d.id, "reason": d.reason})).collect();
        let mut value = serde_json::json!(found);
        value["dropped"] = dropped.into();
        value["version"] = carma_api::VERSION.into();
        print_json(&value)?;
    } else {
        print(&render(&found, &cleaned.dropped, &Screen::stdout()))?;
    }
    Ok(0)
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    replace(path, text.as_bytes()).map_err(|e| Failure::new(format!("cannot write {}: {e}", path.display())))
}

fn render(found: &Description, dropped: &[Dropped], screen: &Screen) -> String {
    let families: Vec<String> = found.families.iter().map(|(name, n)| format!("{n} {name}")).collect();
    let mut text = format!("{} tasks ({}), {} left out\n", found.rows, families.join(", "), dropped.len());
    let _ = writeln!(
        text,
        "{} needed more than their cap, {} gave memory back to stay below it: lower bounds",
        found.out_of_memory, found.squeezed
    );
    if let [least, p5, p25, middle, p75, p95, most] = found.process_mib[..] {
        let _ = writeln!(
            text,
            "memory of the others, MiB: {least:.0} to {most:.0}, median {middle:.0}, quartiles {p25:.0} and {p75:.0}, 5 and 95 % \
             {p5:.0} and {p95:.0}"
        );
    }
    if let (Some((low, high)), Some((worker_low, worker_high))) =
        (found.context_mib, found.worker_context_mib)
    {
        let _ = writeln!(
            text,
            "CUDA context, MiB: {low:.0} to {high:.0} in a fresh process; {worker_low:.0} to {worker_high:.0} in the workers"
        );
    }
    for (width, members) in &found.classes {
        let classes: Vec<String> = members.iter().map(|c| format!("{}: {}", c.from_gb, c.tasks)).collect();
        let _ = writeln!(text, "classes of {width} GB, from GB: tasks: {}", classes.join(", "));
    }
    for (column, values) in &found.words {
        let values: Vec<String> = values
            .iter()
            .map(|(word, n)| format!("{n} {}", if word.is_empty() { "(none)" } else { word }))
            .collect();
        let _ = writeln!(text, "{column}: {}", values.join(", "));
    }
    if !dropped.is_empty() {
        let mut out = Listing::new(vec![Column::Left("LEFT OUT"), Column::Left("WHY")], screen);
        for one in dropped {
            out.row([one.id.clone(), one.reason.clone()]);
        }
        let _ = write!(text, "\n{}", out.render());
    }
    text
}

//! `carma lab interference-bench`: the predictor and its baselines against what was measured.

use crate::cli::InterferenceBenchArgs;
use carma_cli::failure::{Failure, Outcome};
use carma_cli::{Column, Screen, Table, print, print_json};
use carma_files::replace;
use carma_lab_interference::bench::{self, Data, Line};
use std::fmt::Write as _;

/// Runs the verb. Exit code 1 with `--check`: a target is missed.
pub(crate) fn run(args: &InterferenceBenchArgs) -> Outcome {
    let data = Data::find(args.data.as_deref());
    if let Some(path) = &args.learn {
        let model = bench::learn(&data).map_err(|e| Failure::new(e.to_string()))?;
        let text = model.to_json().map_err(|e| Failure::new(e.to_string()))?;
        replace(path, (text + "\n").as_bytes())
            .map_err(|e| Failure::new(format!("{}: cannot be written: {e}", path.display())))?;
        return Ok(0);
    }
    let lines = bench::run(&data, args.only.as_deref());
    if args.json {
        print_json(&serde_json::json!({"version": carma_api::VERSION, "lines": lines}))?;
    } else if args.markdown {
        print(&markdown(&lines))?;
    } else {
        print(&render(&lines, &Screen::stdout()))?;
    }
    if args.check && lines.iter().all(|line| line.target.is_none()) {
        return Err(Failure::new("nothing was there to check; the lines say what is missing"));
    }
    Ok(u8::from(args.check && lines.iter().any(|l| l.target.as_ref().is_some_and(|t| !t.holds))))
}

const TITLES: [&str; 8] = ["TEST", "WHO", "NUMBER", "95 % CI", "N", "UNIT", "TARGET", "NOTE"];

fn cells(line: &Line) -> [String; 8] {
    let (number, interval, n) = line.value.map_or_else(
        || ("-".to_owned(), "-".to_owned(), "-".to_owned()),
        |v| {
            (
                format!("{:.1}", v.mean),
                format!("{:.1}-{:.1}", v.low, v.high),
                format!("{} of {}", v.n, v.clusters),
            )
        },
    );
    let target = line
        .target
        .as_ref()
        .map_or_else(String::new, |t| format!("{}: {}", t.text, if t.holds { "yes" } else { "NO" }));
    let mut note = line.note.clone();
    if let Some(median) = line.median {
        let gap = if note.is_empty() { "" } else { "; " };
        note = format!("median {median:.1}{gap}{note}");
    }
    [line.test.clone(), line.who.clone(), number, interval, n, line.unit.to_owned(), target, note]
}

fn render(lines: &[Line], screen: &Screen) -> String {
    let columns = TITLES.iter().enumerate().map(|(i, title)| match i {
        2..=4 => Column::Right(title),
        _ => Column::Left(title),
    });
    let mut table = Table::new(columns.collect(), screen);
    for line in lines {
        table.row(cells(line));
    }
    table.render()
}

fn markdown(lines: &[Line]) -> String {
    let mut text = String::new();
    let mut part = "";
    for line in lines {
        if line.part != part {
            part = line.part;
            let titles = TITLES.join(" | ").to_lowercase();
            let _ = writeln!(text, "\n## {part}\n\n| {titles} |\n|{}", "---|".repeat(TITLES.len()));
        }
        let _ = writeln!(text, "| {} |", cells(line).join(" | "));
    }
    text
}

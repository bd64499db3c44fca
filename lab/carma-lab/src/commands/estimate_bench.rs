//! `carma lab estimate-bench`: all estimators against what was measured.

use crate::cli::EstimateBenchArgs;
use carma_cli::failure::{Failure, Outcome};
use carma_cli::{Column, Screen, Table, print, print_json};
use carma_lab_memory::bench::{self, Data, Outcome as Came, Score, Test};
use std::fmt::Write as _;

/// Runs the verb.
pub(crate) fn run(args: &EstimateBenchArgs) -> Outcome {
    let data = Data::find(args.data.as_deref());
    let write = |path: &std::path::Path, text: String| {
        carma_files::replace(path, text.as_bytes())
            .map_err(|e| Failure::new(format!("{}: cannot be written: {e}", path.display())))
    };
    if let Some(path) = &args.kernels {
        write(path, bench::activity::rows(&data).map_err(Failure::new)?)?;
    }
    let tests = bench::run(&data, args.only.as_deref());
    if let Some(path) = &args.rows {
        write(path, rows(&tests))?;
    }
    if args.json {
        print_json(&serde_json::json!({"version": carma_api::VERSION, "tests": tests}))?;
    } else if args.markdown {
        print(&markdown(&tests))?;
    } else {
        print(&render(&tests, &Screen::stdout()))?;
    }
    Ok(u8::from(tests.iter().any(|t| t.targets.iter().any(|target| !target.holds))))
}

/// Every single estimate, as CSV. Names of tests have commas.
fn rows(tests: &[Test]) -> String {
    let mut text = String::from("test,estimator,task,measured_mib,use_mib,upper_mib\n");
    for test in tests {
        for pair in &test.pairs {
            let upper = pair.upper_mib.map_or_else(String::new, |mib| mib.to_string());
            let (measured, expected) = (pair.measured_mib, pair.estimated_mib);
            let _ = writeln!(
                text,
                "\"{}\",{},\"{}\",{measured},{expected},{upper}",
                test.name, test.estimator, pair.label
            );
        }
    }
    text
}

/// The cells of a test: test, estimator, n, MRE, median, worst, under, covered, upper/measured, target.
fn cells(test: &Test) -> [String; 10] {
    let percent = |share: f64| format!("{:.1} %", share * 100.0);
    let bound = |value: Option<f64>, text: fn(f64) -> String| value.map_or_else(|| "-".to_owned(), text);
    let dash = || "-".to_owned();
    let (n, mre, median, worst, under, covered, tightness) = match &test.outcome {
        Came::Score(Score { n, mre, median, worst, under, covered, tightness, .. }) => (
            n.to_string(),
            percent(*mre),
            percent(*median),
            format!("{:+.1} %", worst * 100.0),
            percent(*under),
            bound(*covered, |v| format!("{:.1} %", v * 100.0)),
            bound(*tightness, |v| format!("{v:.2}")),
        ),
        Came::Figures { .. } | Came::Skipped { .. } => {
            (dash(), dash(), dash(), dash(), dash(), dash(), dash())
        }
    };
    let mut said: Vec<String> = match &test.outcome {
        Came::Figures { figures } => figures.iter().map(|(name, value)| format!("{name} {value}")).collect(),
        Came::Skipped { reason } => vec![format!("skipped: {reason}")],
        Came::Score(_) => Vec::new(),
    };
    said.extend(test.targets.iter().map(|t| format!("{}: {}", t.text, if t.holds { "yes" } else { "NO" })));
    [
        test.name.clone(),
        test.estimator.clone(),
        n,
        mre,
        median,
        worst,
        under,
        covered,
        tightness,
        said.join("; "),
    ]
}

const TITLES: [&str; 10] =
    ["TEST", "ESTIMATOR", "N", "MRE", "MEDIAN", "WORST", "UNDER", "COVERED", "UPPER/TRUE", "TARGET"];

fn render(tests: &[Test], screen: &Screen) -> String {
    let columns = TITLES.iter().enumerate().map(|(i, title)| match i {
        2..=8 => Column::Right(title),
        _ => Column::Left(title),
    });
    let mut table = Table::new(columns.collect(), screen);
    for test in tests {
        table.row(cells(test));
    }
    table.render()
}

fn markdown(tests: &[Test]) -> String {
    let mut text = format!("| {} |\n|{}\n", TITLES.join(" | ").to_lowercase(), "---|".repeat(TITLES.len()));
    for test in tests {
        let _ = writeln!(text, "| {} |", cells(test).join(" | "));
    }
    text
}

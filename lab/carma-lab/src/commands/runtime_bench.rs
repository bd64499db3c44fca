//! `carma lab runtime-bench`: forecasts of run time on public traces, as in docs/research/runtime.md.

use crate::cli::RuntimeBenchArgs;
use carma_cli::failure::{Failure, Outcome};
use carma_cli::{Column, Screen, Table, print, print_json};
use carma_lab_run_time::{PUBLIC, Quality, Test, imported, of};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Runs the verb. Exit code 1 with `--check`: a baseline is better.
pub(crate) fn run(args: &RuntimeBenchArgs) -> Outcome {
    let failed = |e: carma_lab_run_time::LogError| Failure::new(e.to_string());
    let (mut tests, mut missing) = (Vec::new(), Vec::new());
    if let Some(file) = &args.trace {
        tests.push(of(&imported(file, args.format).map_err(failed)?));
    } else {
        let data = args.data.clone().unwrap_or_else(|| PathBuf::from("../shared/data"));
        for public in PUBLIC {
            match public.read(&data) {
                Some(log) => tests.push(of(&log.map_err(failed)?)),
                None => missing.push(data.join(public.file)),
            }
        }
    }
    if tests.is_empty() {
        let file = missing.first().map(|file| file.display().to_string()).unwrap_or_default();
        return Err(Failure::new(format!("no trace is there to test on, as {file}"))
            .hint("--data names a folder with the data of others, --trace a trace of yours"));
    }
    if args.json {
        print_json(&serde_json::json!({"version": carma_api::VERSION, "tests": tests, "missing": missing}))?;
    } else if args.markdown {
        print(&page(&tests, &missing))?;
    } else {
        print(&render(&tests, &missing, &Screen::stdout()))?;
    }
    Ok(u8::from(args.check && tests.iter().any(|test| !test.falls_short().is_empty())))
}

const TITLES: [&str; 10] =
    ["TRACE", "HALF", "METHOD", "JOBS", "LOSS 10 %", "50 %", "90 %", "COVERED", "FACTOR", "WITHIN 2"];

/// A line for each trace, half and method.
fn lines(tests: &[Test]) -> Vec<[String; 10]> {
    let line = |test: &Test, half: &str, method: &str, quality: &Quality| {
        let [low, median, high] = quality.pinball.map(|loss| format!("{loss:.3}"));
        let percent = |share: f64| format!("{:.0} %", share * 100.0);
        [
            test.trace.clone(),
            half.to_owned(),
            method.to_owned(),
            quality.jobs.to_string(),
            low,
            median,
            high,
            quality.covered.map_or_else(|| "-".to_owned(), percent),
            format!("{:.2}", quality.factor),
            percent(quality.within_two),
        ]
    };
    let mut lines = Vec::new();
    for test in tests {
        lines.extend(test.results.iter().map(|r| line(test, "later", r.method, &r.held_out)));
        // How much is lost from the half that was tuned on to the other.
        lines.extend(test.results.iter().take(1).map(|r| line(test, "earlier (tuned)", r.method, &r.tuned)));
    }
    lines
}

fn render(tests: &[Test], missing: &[PathBuf], screen: &Screen) -> String {
    let columns = TITLES.iter().enumerate().map(|(i, title)| match i {
        0..=2 => Column::Left(title),
        _ => Column::Right(title),
    });
    let mut table = Table::new(columns.collect(), screen);
    for line in lines(tests) {
        table.row(line);
    }
    let mut text = table.render();
    for file in missing {
        let _ = writeln!(text, "skipped: {} is not there", file.display());
    }
    text
}

/// The whole page, so that no number in it is copied by hand.
fn page(tests: &[Test], missing: &[PathBuf]) -> String {
    let today = jiff::Zoned::now().strftime("%Y-%m-%d");
    let mut text = format!(
        "# How well run time is forecast\n\n\
         Written by `carma lab runtime-bench --markdown` (`--json` for programs), carma {}, {today}. What a forecast is, and\n\
         what it is made of: [run time](../run-time.md).\n\n\
         Each job of a trace is forecast when it is submitted, from the jobs that had ended by then and\n\
         from how long those had run that had not (*history without running jobs*: from ends alone). The earlier half of a\n\
         trace, by time of submission, is what the constants were chosen on; the later half is the test.\n\n\
         *loss* is the pinball loss of the natural logarithm of the seconds, at the 10 %, 50 % and 90 % quantile: smaller is\n\
         better, and twice the loss at 50 % is the mean error of the logarithm. *covered* is the share of jobs between the\n\
         10 % and the 90 % quantile, which should be 80 %; *factor* is the median of the factor by which the median is off;\n\
         *within 2* is the share of jobs within a factor of two of it. A baseline that says one number says it for all three\n\
         quantiles.\n\n",
        env!("CARGO_PKG_VERSION")
    );
    let titles = TITLES.join(" | ").to_lowercase();
    let _ = writeln!(text, "| {titles} |\n|{}", "---|".repeat(TITLES.len()));
    for line in lines(tests) {
        let _ = writeln!(text, "| {} |", line.join(" | "));
    }
    for file in missing {
        let name = file.file_name().map(Path::new).unwrap_or(file);
        let _ = writeln!(text, "\nSkipped: {} is not there.", name.display());
    }
    text.push_str("\n## What falls short\n\n");
    for test in tests {
        for (method, percent) in test.falls_short() {
            let _ = writeln!(
                text,
                "- {}: \"{method}\" has no larger a loss at the {percent} % quantile.",
                test.trace
            );
        }
    }
    if tests.iter().all(|test| test.falls_short().is_empty()) {
        text.push_str("No baseline reaches the forecast's loss, at any quantile of any trace.\n");
    }
    text.push_str("\n## What stands for user and program\n\n");
    for test in tests {
        let _ = writeln!(text, "- {}: {}.", test.trace, test.classes);
    }
    text.push_str(WHAT_IT_SAYS);
    text
}

const WHAT_IT_SAYS: &str = "
## What this does and does not say

- No trace that we can read has users with names *and* commands: Helios and the full Philly trace are not among the data
  of others here. The widest levels are what is tested: a class of user, a class of user and program. The level of the very
  command, which is what a daemon sees most, is not tested by any of them, and its constant (one run of the command counts
  twice as much as all else that is known) is a choice.
- No trace has the user's time limit, so that the baseline \"the user's limit\" cannot be computed.
  `carma lab runtime-bench --trace FILE --format helios` does the rest on a trace of yours.
- The traces do not say which runs were cut off, so that all ends count as ends. Alibaba's pods serve requests for the most
  part: how long they stay is decided by people.
- Philly's trace does not say when a job began: it is taken to end its run time after its submission.

## What was tuned on what

On the earlier halves of the three traces (every seventh job of Philly, every second of the others), by the sum of the
losses: how many runs of a class are kept (32 or 64), the half-life of their weight (4 to 32 runs), for how many runs the
wider levels count (1 to 12), and where the bounds are read (3 to 10 % from the ends, so that the bounds hold more often).
All settings are within 7 % of each other, and the chosen ones within 1 % of the best: the gain is in the classes and not in
the constants. The later halves were read twice, after that: the second time with 64 runs of all jobs in place of 512, which was
chosen for speed and is the same on the earlier halves. When jobs that run came to count, both halves were printed twice more. First all of
them counted, and the loss at 50 % was four to seven times as large on Philly: those that run are the long ones. They now count only until a class
has as many ends as are kept. On Philly that changes nothing; on Alibaba's pods, of which most serve and many never end, it costs up to a tenth;
it is there for the first jobs of a user or a command, where it is worth a tenth to a fifth of the mean completion time in the
simulator ([policies](policies.md), CHANGELOG).
";

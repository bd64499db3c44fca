//! The evaluation of the predictor: every number with its interval, and the target beside it.
//!
//! Nothing is fitted to a row that it is scored on. What was chosen by people after looking at such rows is said
//! in `docs/research/interference.md`.

mod baselines;
mod kace;
mod measured;
mod never_alone;
mod others;
mod set;
mod stats;
mod tests_h200;
mod tests_kace;
mod tests_new;
mod tests_others;

pub(crate) use measured::{of_measured, text};
pub use stats::Mean;

use serde::Serialize;
use std::path::{Path, PathBuf};

/// Data of others, from the root of the repository.
const SHARED: &str = "../shared/data";
/// Our own records, from there as well.
const H200: &str = "bench/h200/results";

/// Where the data lies.
#[derive(Debug, Clone)]
pub struct Data {
    /// Data of others, one folder each.
    pub shared: PathBuf,
    /// Our own records of an H200.
    pub h200: PathBuf,
    /// Threads to work with.
    pub threads: usize,
}

impl Data {
    /// The given folder, else `../shared/data`; our own records in `bench/h200/results`. Both are looked for from the
    /// folder where the program was started, so a copy of the program never reads what lies where it was built.
    #[must_use]
    pub fn find(shared: Option<&Path>) -> Self {
        Self::of(shared.unwrap_or(Path::new(SHARED)).to_path_buf(), PathBuf::from(H200))
    }

    /// As found by a program that was started in the root of a repository: tests are started in their crate's folder.
    #[cfg(test)]
    fn in_repository(root: &Path) -> Self {
        Self::of(root.join(SHARED), root.join(H200))
    }

    fn of(shared: PathBuf, h200: PathBuf) -> Self {
        Self { shared, h200, threads: std::thread::available_parallelism().map_or(1, usize::from) }
    }
}

/// A limit that a number is to keep, and whether it does.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Target {
    /// In words: `>= 93.5`.
    pub text: String,
    /// Whether the mean keeps it.
    pub holds: bool,
}

/// A line of the table.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Line {
    /// Which part: `kace`, `splits`, `lucid`, `igniter`, `gavel`, `h200`, `new-tasks`.
    pub part: &'static str,
    /// What was tested.
    pub test: String,
    /// Which predictor.
    pub who: String,
    /// What the number is: `% of oracle`, `MAPE %`, `% covered`.
    pub unit: &'static str,
    /// The number; `None`: the line was skipped.
    pub value: Option<Mean>,
    /// Median, where errors are skewed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub median: Option<f64>,
    /// How often it was repeated in another random order.
    pub repeats: u64,
    /// What it is to reach.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<Target>,
    /// What else is to be known; why it was skipped.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub note: String,
}

impl Line {
    fn new(part: &'static str, test: impl Into<String>, who: impl Into<String>, unit: &'static str) -> Self {
        Self {
            part,
            test: test.into(),
            who: who.into(),
            unit,
            value: None,
            median: None,
            repeats: 1,
            target: None,
            note: String::new(),
        }
    }

    /// With values of 0 to 1 as percent.
    fn of(mut self, values: &stats::Clustered, repeats: u64) -> Self {
        let percent = |m: Mean| Mean { mean: m.mean * 100.0, low: m.low * 100.0, high: m.high * 100.0, ..m };
        self.value = values.mean().map(percent);
        if self.unit == MAPE {
            self.median = Some(values.median() * 100.0).filter(|v| v.is_finite());
        }
        self.repeats = repeats;
        self
    }

    fn note(mut self, note: impl Into<String>) -> Self {
        self.note = note.into();
        self
    }

    fn judged(mut self, text: String, holds: impl Fn(f64) -> bool) -> Self {
        self.target = self.value.map(|v| Target { text, holds: holds(v.mean) });
        self
    }

    fn at_least(self, limit: f64) -> Self {
        self.judged(format!(">= {limit}"), |v| v >= limit)
    }

    fn at_most(self, limit: f64) -> Self {
        self.judged(format!("<= {limit}"), |v| v <= limit)
    }

    fn within(self, low: f64, high: f64) -> Self {
        self.judged(format!("{low} to {high}"), |v| (low..=high).contains(&v))
    }
}

const ORACLE: &str = "% of oracle";
const MAPE: &str = "MAPE %";
const COVERED: &str = "% covered";

/// Names of the parts.
pub const PARTS: [&str; 8] =
    ["kace", "splits", "lucid", "igniter", "gavel", "h200", "new-tasks", "never-alone"];

/// Runs the parts, or one of them. Data that is absent or wrong becomes a line that says so.
#[must_use]
pub fn run(data: &Data, only: Option<&str>) -> Vec<Line> {
    type Part = fn(&Data) -> Result<Vec<Line>, crate::kace::Error>;
    let parts: [(&'static str, Part); 8] = [
        ("kace", tests_kace::kace),
        ("splits", tests_kace::splits),
        ("lucid", tests_others::lucid),
        ("igniter", tests_others::igniter),
        ("gavel", tests_others::gavel),
        ("h200", tests_h200::h200),
        ("new-tasks", tests_new::new_tasks),
        ("never-alone", never_alone::never_alone),
    ];
    let mut lines = Vec::new();
    for (name, part) in parts {
        if only.is_some_and(|only| only != name) {
            continue;
        }
        match part(data) {
            Ok(part) => lines.extend(part),
            Err(e) => lines.push(Line::new(name, "all", "-", "").note(format!("skipped: {e}"))),
        }
    }
    lines
}

/// A model that has learned from our own records of an H200 and keeps what holds for every task: `models/shipped.json`.
///
/// # Errors
/// There are none, or one cannot be read.
pub fn learn(data: &Data) -> Result<carma_interference::online::SlowdownModel, crate::kace::Error> {
    tests_h200::learn(data)
}

/// Cold, after observations, and how often bounds held: what all data sets have in common.
fn errors_lines(part: &'static str, label: &str, who: &str, errors: &set::Errors, repeats: u64) -> [Line; 2] {
    [
        Line::new(part, label, who, MAPE).of(&errors.error, repeats),
        Line::new(part, label, who, COVERED)
            .of(&errors.covered, repeats)
            .note(format!("90 % bounds; median upper/lower {:.2}", errors.width.median())),
    ]
}

#[cfg(test)]
mod tests;

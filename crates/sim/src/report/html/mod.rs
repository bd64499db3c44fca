//! The page of a simulation, or of a recorded run beside one: one file that opens offline, for reading, printing and talks.
//!
//! All drawings are SVG made here; nothing is fetched. The script only lets a reader choose which
//! policies the activity section compares, and the page is complete without it.

mod activity;
mod crashes;
mod energy;
mod figures;
mod gantt;
mod kinds;
mod plot;
mod spread;
#[cfg(test)]
mod tests;
mod text;

use crate::event::outcome::RunResult;
pub use kinds::{Kinds, room_on_bar};
pub use plot::time_axis;
use plot::{COLOURS, stroke};
use std::collections::BTreeSet;
use std::fmt::Write as _;
pub use text::{Esc, Whole};
use text::{Short, plural};

/// The top of a page of carma's, up to where its content begins: it fetches nothing, and runs a script only where it has one.
#[must_use]
pub fn top(title: &str, has_script: bool) -> String {
    format!(
        r#"<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width,initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none';style-src 'unsafe-inline';{script}img-src data:">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>
{style}</style></head><body><main>
"#,
        script = if has_script { "script-src 'unsafe-inline';" } else { "" },
        title = Esc(title),
        style = include_str!("page.css"),
    )
}

/// Where the runs of a page come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// All of them are simulated.
    Simulated,
    /// The first was recorded on GPUs. Others are simulated, and their names say so.
    Recorded,
    /// The same on virtual GPUs.
    RecordedVirtual,
}

impl Origin {
    /// The badge at the top, and the words at the end.
    const fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Simulated => (
                "<strong>Simulated:</strong> a model, not a measurement",
                "Simulated: a model, not a measurement.",
            ),
            Self::Recorded => (
                "<strong>Recorded</strong> by carma as it ran; what is called simulated is a model",
                "Recorded; what is called simulated is a model.",
            ),
            Self::RecordedVirtual => (
                "<strong>Virtual GPUs:</strong> a model, not a measurement",
                "Virtual GPUs: a model, not a measurement.",
            ),
        }
    }
}

/// Energy of a job.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct JobEnergy {
    /// Its number.
    pub id: String,
    /// What it is.
    pub task: String,
    /// Who submitted it.
    pub user: String,
    /// What it took, joules.
    pub energy_j: f64,
    /// What the same progress would have taken alone; `None`: not known.
    pub alone_j: Option<f64>,
    /// Of its time on GPUs, seconds that no counter tells of: `energy_j` is without them.
    pub unmetered_s: f64,
}

/// What the page shows.
#[derive(Debug, Clone, Copy)]
pub struct PageInput<'a> {
    /// Where the runs come from.
    pub origin: Origin,
    /// Title of the page.
    pub title: &'a str,
    /// Name of the trace.
    pub trace: &'a str,
    /// The GPUs, as on the command line.
    pub cluster: &'a str,
    /// The command that simulated; empty when it is not known.
    pub command: &'a str,
    /// When the page is written, as it shall be shown; empty for none.
    pub date: &'a str,
    /// What a reader should know.
    pub notes: &'a [String],
    /// One for each policy; the first is what the others are compared with.
    pub runs: &'a [RunResult],
    /// Of a recorded run, what its jobs took; empty where nothing is known of it.
    pub joules: &'a [JobEnergy],
}

/// The most runs of a page: no person compares more, and a browser shows them.
const RUNS: usize = 1000;

/// The page, a complete HTML document.
///
/// Its size is bounded: of very many runs, bars, curves or crashes a part is shown, and the page says
/// which.
#[must_use]
pub fn page(input: &PageInput<'_>) -> String {
    let runs = &input.runs[..input.runs.len().min(RUNS)];
    let names = names(runs);
    let mut out = top(input.title, true);
    head(&mut out, input);
    if input.runs.len() > RUNS {
        absent(
            &mut out,
            &format!("The first {RUNS} of {} runs are shown.", text::count(input.runs.len() as u64)),
        );
    }
    if runs.is_empty() {
        out.push_str("<p class=\"absent\">There are no runs to show.</p>\n");
    } else {
        figures::section(&mut out, runs, &names);
        activity::section(&mut out, runs, &names);
        gantt::section(&mut out, runs, &names, input.origin);
        spread::section(&mut out, runs, &names, input.origin);
        energy::section(&mut out, runs, &names, input.joules);
        crashes::section(&mut out, runs, &names, input.origin);
    }
    let _ = write!(
        out,
        "<footer>Written by carma {}. {}</footer>\n</main>\n<script>\n{}</script>\n</body></html>\n",
        env!("CARGO_PKG_VERSION"),
        input.origin.words().1,
        include_str!("page.js"),
    );
    out
}

/// Words of a heading that a narrow screen must not break, as a date at its hyphens. Longer ones do not fit it.
fn whole_words(escaped: &str) -> String {
    const LONGEST: usize = 28;
    let words = escaped.split(' ').map(|word| match word.chars().count() {
        2..=LONGEST if word.contains('-') => format!("<span>{word}</span>"),
        _ => word.to_owned(),
    });
    words.collect::<Vec<_>>().join(" ")
}

/// What ran, and whether that was simulated.
fn head(out: &mut String, input: &PageInput<'_>) {
    let _ = write!(
        out,
        "<header><p class=\"badge\">{}</p>\n<h1>{}</h1>\n<dl>",
        input.origin.words().0,
        whole_words(&Esc(input.title).to_string())
    );
    let mut item = |name: &str, value: &str| {
        if !value.is_empty() {
            let _ = write!(out, "<div><dt>{name}</dt><dd>{value}</dd></div>");
        }
    };
    item("Trace", &Esc(input.trace).to_string());
    item("Cluster", &Esc(input.cluster).to_string());
    let most = input.runs.iter().map(|r| r.summary.jobs).max();
    let users = input.runs.iter().map(|r| r.summary.users).max().unwrap_or(0);
    item(
        "Jobs",
        &most.map_or_else(String::new, |n| match users {
            0 => text::count(n),
            _ => format!("{} of {}", text::count(n), plural(users, "user", "users")),
        }),
    );
    item("Policies", &listed(input.runs.iter().map(|r| r.policy.as_str())));
    item("Sharing", &listed(input.runs.iter().map(|r| r.sharing.as_str())));
    if input.origin == Origin::Simulated {
        let seeds: Vec<String> = input.runs.iter().map(|r| r.seed.to_string()).collect();
        item("Seed", &listed(seeds.iter().map(String::as_str)));
    }
    item("Page written", &Esc(input.date).to_string());
    out.push_str("</dl>\n");
    if !input.command.is_empty() {
        // Long enough for any command that a person typed.
        let _ = writeln!(out, "<p class=\"command\"><code>{}</code></p>", Short(input.command, 4000));
    }
    if !input.notes.is_empty() {
        out.push_str("<ul class=\"notes\">");
        for note in input.notes {
            let _ = write!(out, "<li>{}</li>", Short(note, 2000));
        }
        out.push_str("</ul>\n");
    }
    out.push_str("</header>\n");
}

/// Different values in order of appearance, escaped; of many, the first few.
fn listed<'a>(values: impl Iterator<Item = &'a str>) -> String {
    const MOST: usize = 8;
    let mut known = BTreeSet::new();
    let seen: Vec<&str> = values.filter(|value| known.insert(*value)).collect();
    let mut text = seen.iter().take(MOST).map(|v| Short(v, 60).to_string()).collect::<Vec<_>>().join(", ");
    if seen.len() > MOST {
        let _ = write!(text, " and {} more", seen.len() - MOST);
    }
    text
}

/// A name for each run that tells it from the others: the policy, with what else differs.
fn names(runs: &[RunResult]) -> Vec<String> {
    let name = |run: &RunResult| {
        let alike = || runs.iter().filter(|other| other.policy == run.policy);
        let mut name = run.policy.clone();
        if alike().any(|other| other.sharing != run.sharing) {
            let _ = write!(name, " {}", run.sharing);
        }
        if alike().any(|other| other.sharing == run.sharing && other.seed != run.seed) {
            let _ = write!(name, " seed {}", run.seed);
        }
        name
    };
    runs.iter().map(name).collect()
}

/// Whether it is known that no job of any run ever had a GPU.
fn nothing_ran(runs: &[RunResult]) -> bool {
    runs.iter().all(|run| !run.jobs.is_empty() && run.jobs.iter().all(|job| job.attempts == 0))
}

/// What stands in place of a drawing then.
const NOTHING_RAN: &str = "No job ran.";

/// Opens a section.
fn open(out: &mut String, id: &str, heading: &str) {
    let _ = writeln!(out, "<section id=\"{id}\"><h2>{heading}</h2>");
}

/// Says why a drawing is not there.
fn absent(out: &mut String, why: &str) {
    let _ = writeln!(out, "<p class=\"absent\">{why}</p>");
}

/// A line in a policy's colour and dash, to stand before its name.
fn swatch(run: usize) -> String {
    format!(
        r#"<svg class="swatch" viewBox="0 0 26 10" aria-hidden="true"><path class="line {}" d="M1 5h24"/></svg>"#,
        stroke(run)
    )
}

/// A filled square in a policy's colour.
fn block(run: usize) -> String {
    format!(
        r#"<svg class="block" viewBox="0 0 10 10" aria-hidden="true"><rect class="fill p{}" width="10" height="10" rx="2"/></svg>"#,
        run % COLOURS
    )
}

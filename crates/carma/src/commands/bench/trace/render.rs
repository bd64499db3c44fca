//! What people read of a bench of policies.

use carma_cli::{Column, Screen, blocks, clean, wrap};
use carma_measure::trace::{BASE, Figures, Job, Kind, Play, Policy, Summary, run_s};
use std::fmt::Write as _;
use std::path::Path;

const LEGEND: &str = "OVER is over exclusive; the page says what all mean.";

/// Lines of what went wrong that are shown.
const SHOWN: usize = 8;

pub(super) fn render(summary: &Summary, left: &[String], output: &Path, screen: &Screen) -> String {
    let mut text = format!(
        "{}: {}, the last comes after {:.0} s\n",
        summary.machine.describe(),
        summary.counted(),
        summary.arrivals_s
    );
    if summary.machine.is_virtual {
        text.push_str("Virtual GPUs are a model, not a measurement; seconds are virtual.\n");
    }
    if let Some(caveat) = summary.caveat() {
        let _ = writeln!(text, "{}.", clean(&caveat));
    }
    if !summary.policies.is_empty() {
        let _ = write!(text, "\n{}", table(summary, screen));
        text.push('\n');
        for line in wrap(&format!("{}{LEGEND}", of_several(summary)), screen, 0) {
            let _ = writeln!(text, "{line}");
        }
        if !summary.policies.iter().any(|policy| policy.policy == BASE) {
            text.push_str(
                "Nothing to compare with: `--policy exclusive` says how long each task runs alone.\n",
            );
        }
    }
    let mut list = |heading: &str, lines: &[String]| {
        if !lines.is_empty() {
            let _ = writeln!(text, "\n{heading}");
            for line in lines.iter().take(SHOWN) {
                let _ = writeln!(text, "  {}", clean(line));
            }
            if lines.len() > SHOWN {
                let _ = writeln!(text, "  and {} more", lines.len() - SHOWN);
            }
        }
    };
    list("Not completed:", &summary.failed_alike);
    list("Broken off, and not counted:", &summary.cut);
    list("Left:", left);
    let page = output.join("index.html");
    // Where no play was over, the page has nothing to show but why.
    let _ = if summary.policies.is_empty() {
        writeln!(text, "\nNo play was over: {} has no figures", page.display())
    } else {
        writeln!(text, "\nPage: {}; rows: jobs.csv and plays/ beside it", page.display())
    };
    text
}

/// A figure: its mean, and the least and the greatest where plays differ.
pub(super) struct Cell {
    pub(super) mean: String,
    pub(super) range: Option<String>,
}

impl Cell {
    fn one(mean: impl Into<String>) -> Self {
        Self { mean: mean.into(), range: None }
    }
}

/// What a policy's figures are taken from.
struct Of<'a> {
    summary: &'a Summary,
    policy: &'a Policy,
}

impl Of<'_> {
    fn of(&self, digits: usize, pick: impl Fn(&Figures) -> Option<f64>) -> Cell {
        let Some([mean, least, most]) = self.policy.spread(&pick) else { return Cell::one("-") };
        let [mean, least, most] = [mean, least, most].map(|value| format!("{value:.digits$}"));
        Cell { mean, range: (least != most).then(|| format!("{least}-{most}")) }
    }

    fn over(&self, pick: impl Fn(&Figures) -> Option<f64>) -> Cell {
        let ratio = self.summary.over_base(self.policy, pick);
        Cell::one(ratio.map_or_else(|| "-".into(), |ratio| format!("{ratio:.2}")))
    }
}

/// A column: its title in a table of a terminal, on a page, and what it means.
pub(super) struct Title {
    pub(super) short: &'static str,
    pub(super) name: &'static str,
    pub(super) meaning: &'static str,
}

const fn title(short: &'static str, name: &'static str, meaning: &'static str) -> Title {
    Title { short, name, meaning }
}

/// The times that a policy is compared by.
const TIMES: [Title; 10] = [
    title("PLAYS", "plays", "how often it was played"),
    title("MAKESPAN S", "makespan, s", "from the first submission to the last end"),
    title("OVER", "over", "makespan over that of exclusive"),
    title("JCT S", "JCT, s", "from submission to end, mean of the jobs that completed"),
    title("OVER", "over", "JCT over that of exclusive"),
    title("WAIT S", "wait, s", "from submission to the first start, mean of the jobs that completed"),
    title("RUN S", "run, s", "all attempts of a job, mean of the jobs that completed"),
    title(
        "START S",
        "start, s",
        "from the start of a command to its first step, mean of those that print steps",
    ),
    title("SLOWDOWN", "slowdown", "run time over that of the same kind alone, mean"),
    title("SLOWDOWN P95", "slowdown, P95", "its 95th percentile"),
];

/// What it takes, and what becomes of its jobs.
const RESOURCES: [Title; 9] = [
    title("KJ", "energy, kJ", "of all GPUs by their counters"),
    title("OVER", "over", "energy over that of exclusive"),
    title("SMACT", "SMACT", "SM active, mean over time and GPUs"),
    title("JOBS/GPU", "jobs/GPU", "jobs on a GPU, mean over time and GPUs"),
    title("DONE", "done", "jobs completed, of a play the fewest"),
    title("UNDONE", "undone", "attempts that were not their job's last"),
    title("OOM", "OOM", "attempts that ended out of GPU memory"),
    title("VICTIMS", "victims", "attempts that ended out of memory or by a fault, through another job"),
    title("OVERHEAD%", "overhead, %", "plans, and decision to running command, of the makespan"),
];

/// More of them, where jobs have limits.
const LIMITS: [Title; 3] = [
    title("WINDOWS", "windows", "in which it was measured whether a job's limit was kept"),
    title("BEYOND", "beyond", "windows in which it was not"),
    title("IN A ROW", "in a row", "the most of these one after another, of one job"),
];

/// The columns of these results: times, and the others.
pub(super) fn columns(summary: &Summary) -> [Vec<&'static Title>; 2] {
    let limits = if is_limited(summary) { &LIMITS[..] } else { &[] };
    [TIMES.iter().collect(), RESOURCES.iter().chain(limits).collect()]
}

fn is_limited(summary: &Summary) -> bool {
    summary.policies.iter().flat_map(|policy| &policy.plays).any(|play| play.limited > 0)
}

/// A policy's figures, one for each of [`columns`].
pub(super) fn cells(summary: &Summary, policy: &Policy) -> [Vec<Cell>; 2] {
    let of = Of { summary, policy };
    let count = |n: usize| Some(n as f64);
    let times = vec![
        Cell::one(policy.plays.len().to_string()),
        of.of(1, |f| Some(f.makespan_s)),
        of.over(|f| Some(f.makespan_s)),
        of.of(1, |f| f.jct_s),
        of.over(|f| f.jct_s),
        of.of(1, |f| f.wait_s),
        of.of(1, |f| f.run_s),
        of.of(1, |f| f.startup_s),
        of.of(2, |f| f.slowdown),
        of.of(2, |f| f.slowdown_p95),
    ];
    let fewest = policy.plays.iter().map(|f| f.completed).min().unwrap_or(0);
    let mut resources = vec![
        of.of(1, |f| f.energy_kj),
        of.over(|f| f.energy_kj),
        of.of(2, |f| f.smact),
        of.of(2, |f| Some(f.tenants)),
        Cell::one(format!("{fewest}/{}", summary.jobs)),
        of.of(0, |f| count(f.undone)),
        of.of(0, |f| count(f.oom)),
        of.of(0, |f| count(f.oom_victims + f.fault_victims)),
        of.of(2, |f| f.overhead_pct),
    ];
    if is_limited(summary) {
        resources.extend([
            of.of(0, |f| Some(f64::from(f.limit_windows))),
            of.of(0, |f| Some(f64::from(f.limit_beyond))),
            of.of(0, |f| Some(f64::from(f.limit_longest))),
        ]);
    }
    [times, resources]
}

/// What is to be said where plays differ; empty where no figure has a range.
pub(super) fn of_several(summary: &Summary) -> &'static str {
    let ranges = |policy| cells(summary, policy).iter().flatten().any(|cell| cell.range.is_some());
    if summary.policies.iter().any(ranges) {
        "Means over the plays, and below them the least and the greatest. "
    } else {
        ""
    }
}

/// Means, and below them the least and the greatest; on a narrow screen in tables one above the other.
fn table(summary: &Summary, screen: &Screen) -> String {
    let titles = columns(summary).into_iter().flatten().map(|title| Column::Right(title.short));
    let columns: Vec<Column> = std::iter::once(Column::Left("POLICY")).chain(titles).collect();
    let mut rows: Vec<Vec<String>> = Vec::new();
    for policy in &summary.policies {
        let cells = || cells(summary, policy).into_iter().flatten();
        rows.push(std::iter::once(policy.policy.clone()).chain(cells().map(|cell| cell.mean)).collect());
        let ranges = cells().map(|cell| cell.range.unwrap_or_default());
        rows.push(std::iter::once(String::new()).chain(ranges).collect());
    }
    blocks(&columns, &rows, screen)
}

/// How long a job was suspended for; `None`: it never was.
fn suspended_s(job: &Job) -> Option<f64> {
    let sum: f64 = job.attempts.iter().map(|attempt| attempt.suspended_s).sum();
    (sum > 0.0).then_some(sum)
}

/// A row a job: CSV.
pub(super) fn rows(plays: &[Play]) -> Result<Vec<u8>, csv::Error> {
    let mut out = csv::Writer::from_writer(Vec::new());
    out.write_record([
        "policy",
        "play",
        "job",
        "task",
        "class",
        "gpus",
        "submitted_s",
        "started_s",
        "first_step_s",
        "ended_s",
        "run_s",
        "attempts",
        "gpu",
        "sharing",
        "told_mib",
        "cap_mib",
        "peak_mib",
        "state",
        "codes",
        "waited_for",
        "placed",
        "suspended_s",
        "limit",
        "limit_windows",
        "limit_beyond",
        "limit_in_a_row",
        "latency_alone_ms",
    ])?;
    let seconds = |value: Option<f64>| value.map_or_else(String::new, |s| format!("{s:.3}"));
    let number = |value: Option<u64>| value.map_or_else(String::new, |n| n.to_string());
    for play in plays.iter().filter(|play| play.cut.is_none()) {
        for (at, job) in play.jobs.iter().enumerate() {
            let kind = play.trace.kinds.iter().find(|kind| kind.name == job.kind);
            let last = job.attempts.last();
            let gpus = last.map(|a| a.gpus.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "));
            let codes: Vec<&str> = job.attempts.iter().map(|a| a.code.as_str()).collect();
            let waited: Vec<String> =
                job.waited_for().iter().map(|(code, s)| format!("{code}:{s:.1}")).collect();
            out.write_record([
                play.policy.clone(),
                play.repeat.to_string(),
                (at + 1).to_string(),
                job.kind.clone(),
                kind.and_then(|kind| kind.class.clone()).unwrap_or_default(),
                kind.map_or(1, |kind| kind.gpus).to_string(),
                seconds(Some(job.submitted_s)),
                seconds(job.attempts.iter().find_map(|a| a.started_s)),
                seconds(job.first_step_s),
                seconds(job.ended_s),
                seconds(Some(run_s(job))),
                job.attempts.len().to_string(),
                gpus.unwrap_or_default(),
                last.map(|a| a.sharing.clone()).unwrap_or_default(),
                number(job.told_mib),
                number(last.and_then(|a| a.cap_mib)),
                number(job.peak_mib),
                job.state.clone(),
                codes.join(" "),
                waited.join(" "),
                job.placed_for().unwrap_or_default().to_owned(),
                seconds(suspended_s(job)),
                kind.and_then(Kind::limit).unwrap_or_default(),
                number(job.limit_kept.map(|kept| kept.windows.into())),
                number(job.limit_kept.map(|kept| kept.beyond.into())),
                number(job.limit_kept.map(|kept| kept.longest.into())),
                job.latency_alone_ms.map_or_else(String::new, |ms| format!("{ms:.3}")),
            ])?;
        }
    }
    out.into_inner().map_err(|e| e.into_error().into())
}

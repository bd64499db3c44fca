//! What people read of a bench of policies.

use carma_cli::{Column, Screen, Table, clean};
use carma_measure::trace::{BASE, Figures, Job, Kind, Play, Policy, Summary, run_s};
use std::fmt::Write as _;
use std::path::Path;

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
        text.push_str(
            "\nMeans over the plays, with the least and the greatest in brackets. OVER is over exclusive; the page says what all mean.\n",
        );
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
    list("Not completed:", &summary.failed);
    list("Broken off, and not counted:", &summary.cut);
    list("Left:", left);
    let _ = writeln!(
        text,
        "\nPage: {}; rows: jobs.csv and plays/ beside it",
        output.join("index.html").display()
    );
    text
}

/// A number with its spread, and what it is of the base's.
struct Cell<'a> {
    summary: &'a Summary,
    policy: &'a Policy,
}

impl Cell<'_> {
    fn of(&self, digits: usize, pick: impl Fn(&Figures) -> Option<f64>) -> String {
        let Some([mean, least, most]) = self.policy.spread(&pick) else { return "-".into() };
        let [mean, least, most] = [mean, least, most].map(|value| format!("{value:.digits$}"));
        if least == most { mean } else { format!("{mean} ({least}-{most})") }
    }

    fn over(&self, pick: impl Fn(&Figures) -> Option<f64>) -> String {
        self.summary.over_base(self.policy, pick).map_or_else(|| "-".into(), |ratio| format!("{ratio:.2}"))
    }
}

/// The figures that a policy is compared by, and what they mean.
const COLUMNS: [(&str, &str); 19] = [
    ("PLAYS", "how often it was played"),
    ("MAKESPAN S", "from the first submission to the last end"),
    ("OVER", "makespan over that of exclusive"),
    ("JCT S", "from submission to end, mean of the jobs that completed"),
    ("OVER", "JCT over that of exclusive"),
    ("WAIT S", "from submission to the first start, mean of the jobs that completed"),
    ("RUN S", "all attempts of a job, mean of the jobs that completed"),
    ("START S", "from the start of a command to its first step, mean of those that print steps"),
    ("SLOWDOWN", "run time over that of the same kind alone, mean"),
    ("P95", "slowdown, 95th percentile"),
    ("KJ", "energy of all GPUs by their counters"),
    ("OVER", "energy over that of exclusive"),
    ("SMACT", "SM active, mean over time and GPUs"),
    ("JOBS/GPU", "jobs on a GPU, mean over time and GPUs"),
    ("DONE", "jobs completed, of a play the fewest"),
    ("UNDONE", "attempts that were not their job's last"),
    ("OOM", "attempts that ended out of GPU memory"),
    ("VICTIMS", "attempts that ended out of memory or by a fault, through another job"),
    ("OVERHEAD%", "plans, and decision to running command, of the makespan"),
];

/// More of them, where jobs have limits.
const LIMITS: [(&str, &str); 3] = [
    ("WINDOWS", "in which it was measured whether a job's limit was kept"),
    ("BEYOND", "windows in which it was not"),
    ("IN A ROW", "the most of these one after another, of one job"),
];

/// The columns of these results, and what they mean.
pub(super) fn columns(summary: &Summary) -> Vec<(&'static str, &'static str)> {
    let limits = if is_limited(summary) { &LIMITS[..] } else { &[] };
    COLUMNS.iter().chain(limits).copied().collect()
}

fn is_limited(summary: &Summary) -> bool {
    summary.policies.iter().flat_map(|policy| &policy.plays).any(|play| play.limited > 0)
}

/// A policy's figures, a text for each of [`columns`].
pub(super) fn cells(summary: &Summary, policy: &Policy) -> Vec<String> {
    let cell = Cell { summary, policy };
    let count = |n: usize| Some(n as f64);
    let mut cells = vec![
        policy.plays.len().to_string(),
        cell.of(1, |f| Some(f.makespan_s)),
        cell.over(|f| Some(f.makespan_s)),
        cell.of(1, |f| f.jct_s),
        cell.over(|f| f.jct_s),
        cell.of(1, |f| f.wait_s),
        cell.of(1, |f| f.run_s),
        cell.of(1, |f| f.startup_s),
        cell.of(2, |f| f.slowdown),
        cell.of(2, |f| f.slowdown_p95),
        cell.of(1, |f| f.energy_kj),
        cell.over(|f| f.energy_kj),
        cell.of(2, |f| f.smact),
        cell.of(2, |f| Some(f.tenants)),
        format!("{}/{}", policy.plays.iter().map(|f| f.completed).min().unwrap_or(0), summary.jobs),
        cell.of(0, |f| count(f.undone)),
        cell.of(0, |f| count(f.oom)),
        cell.of(0, |f| count(f.oom_victims + f.fault_victims)),
        cell.of(2, |f| f.overhead_pct),
    ];
    if is_limited(summary) {
        cells.extend([
            cell.of(0, |f| Some(f64::from(f.limit_windows))),
            cell.of(0, |f| Some(f64::from(f.limit_beyond))),
            cell.of(0, |f| Some(f64::from(f.limit_longest))),
        ]);
    }
    cells
}

fn table(summary: &Summary, screen: &Screen) -> String {
    let mut titles = vec![Column::Left("POLICY")];
    titles.extend(columns(summary).into_iter().map(|(title, _)| Column::Right(title)));
    // Figures side by side are for comparing: a narrow terminal wraps the lines, and a file has them whole.
    let wide = screen.clone().unlimited();
    let mut table = Table::new(titles, &wide);
    for policy in &summary.policies {
        table.row(std::iter::once(policy.policy.clone()).chain(cells(summary, policy)));
    }
    table.render()
}

/// The limit of a kind's jobs, as `--limit` takes it.
fn limit(kind: &Kind) -> Option<String> {
    let factor = kind.max_slowdown_pct.map(|pct| format!("{:.2}", f64::from(pct) / 100.0));
    let latency = kind.latency_us.map(|us| format!("{}ms", f64::from(us) / 1000.0));
    let limits: Vec<String> = factor.into_iter().chain(latency).collect();
    (!limits.is_empty()).then(|| limits.join(" "))
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
                kind.and_then(limit).unwrap_or_default(),
                number(job.limit_kept.map(|kept| kept.windows.into())),
                number(job.limit_kept.map(|kept| kept.beyond.into())),
                number(job.limit_kept.map(|kept| kept.longest.into())),
                job.latency_alone_ms.map_or_else(String::new, |ms| format!("{ms:.3}")),
            ])?;
        }
    }
    out.into_inner().map_err(|e| e.into_error().into())
}

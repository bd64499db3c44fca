//! What each policy took from the socket.

use super::plot::{At, WIDTH};
use super::text::{Short, UNKNOWN, Unit, energy_unit, largest, number, time_unit, watt_hours};
use super::{COLOURS, JobEnergy};
use crate::event::outcome::{RunResult, Summary};
use std::fmt::Write as _;

/// The most bars.
const RUNS: usize = 40;
const ROW: f64 = 30.0;

/// Characters of a policy's name.
const NAME: usize = 36;

/// How wide a bold one of them is at most, in the mean of a name: of what a sweep changed it is the last that counts.
const BOLD: f64 = 8.6;

/// The most jobs of the table.
const JOBS: usize = 50;

/// Writes the section.
pub(super) fn section(out: &mut String, runs: &[RunResult], names: &[String], joules: &[JobEnergy]) {
    super::open(out, "energy", "Energy and power");
    let runs = &runs[..runs.len().min(RUNS)];
    // Names of policies may be long, and bars must start at one place.
    let longest = names.iter().map(|n| n.chars().count().min(NAME)).max().unwrap_or(0);
    let label = (longest as f64 * BOLD + 16.0).max(60.0);
    let height = runs.len() as f64 * ROW + 30.0;
    out.push_str("<div class=\"chart\">");
    super::plot::open(out, "plot", height, &"Energy and mean power by policy");
    for (i, name) in names.iter().enumerate().take(runs.len()) {
        let _ = write!(
            out,
            r#"<text class="name" x="0" y="{}">{}</text>"#,
            At(24.0 + i as f64 * ROW + ROW / 2.0 + 4.0),
            Short(name, NAME)
        );
    }
    let half = (WIDTH - label) / 2.0;
    let told: Vec<Summary> = runs.iter().map(|run| run.summary.told()).collect();
    let energy = largest(told.iter().map(|s| s.energy_j));
    let unit = energy_unit(energy);
    bars(
        out,
        "Energy of all GPUs",
        &told,
        |s| s.energy_j,
        label,
        half,
        |v| format!("{} {} ({})", number(unit.of(v)), unit.name, watt_hours(v)),
    );
    let watts = Unit { name: "W", size: 1.0 };
    bars(
        out,
        "Mean power of a GPU",
        &told,
        |s| s.power_w,
        label + half,
        half,
        |v| format!("{} {}", number(watts.of(v)), watts.name),
    );
    out.push_str("</svg></div>\n");
    if names.len() > runs.len() {
        let _ =
            writeln!(out, "<p class=\"remark\">The first {RUNS} of {} policies are drawn.</p>", names.len());
    }
    if !joules.is_empty() {
        jobs(out, joules);
    }
    out.push_str("</section>\n");
}

/// What jobs took, the most first.
fn jobs(out: &mut String, joules: &[JobEnergy]) {
    let mut order: Vec<&JobEnergy> = joules.iter().collect();
    order.sort_by(|a, b| b.energy_j.total_cmp(&a.energy_j));
    let unit = energy_unit(largest(joules.iter().map(|job| job.energy_j)));
    out.push_str(
        "<h3>Energy of jobs</h3><div class=\"wide\"><table><thead><tr><th class=\"text\">Job</th><th class=\"text\">Task</th>\
         <th class=\"text\">User</th>",
    );
    let _ = write!(out, "<th>Energy, {}</th><th>Alone, {}</th></tr></thead><tbody>", unit.name, unit.name);
    for job in order.iter().take(JOBS) {
        let alone = job.alone_j.map_or_else(|| UNKNOWN.to_owned(), |joules| number(unit.of(joules)));
        let _ = writeln!(
            out,
            "<tr><td class=\"text\">{}</td><td class=\"text\">{}</td><td class=\"text\">{}</td><td>{}{}</td><td>{alone}</td></tr>",
            Short(&job.id, 40),
            Short(&job.task, 60),
            Short(&job.user, 40),
            if job.unmetered_s > 0.0 { "\u{2265}\u{a0}" } else { "" },
            number(unit.of(job.energy_j)),
        );
    }
    let partly: Vec<f64> = joules.iter().map(|job| job.unmetered_s).filter(|time| *time > 0.0).collect();
    let (of_time, without) = if partly.is_empty() {
        ("each over all of its time and", String::new())
    } else {
        let time = time_unit(partly.iter().sum());
        let without = format!(
            " \u{2265}: of {} of them no counter tells of a part of their time, {} {} on GPUs together; Alone is for all of it.",
            partly.len(),
            number(time.of(partly.iter().sum())),
            time.name
        );
        ("each over its time as far as it was metered,", without)
    };
    let sum: f64 = joules.iter().map(|job| job.energy_j).sum();
    let _ = writeln!(
        out,
        "</tbody></table></div>\n<p class=\"remark\">All {} took {} {} ({}), {of_time} by its share of the GPUs\u{2019} \
         energy counters. Alone: what the same progress would have taken on a GPU alone, as forecast.{without}{}</p>",
        joules.len(),
        number(unit.of(sum)),
        unit.name,
        watt_hours(sum),
        if joules.len() > JOBS { " Those that took most are listed." } else { "" },
    );
}

fn bars(
    out: &mut String,
    heading: &str,
    runs: &[Summary],
    value: impl Fn(&Summary) -> f64,
    x: f64,
    room: f64,
    shown: impl Fn(f64) -> String,
) {
    // What the label at the end of the longest bar needs.
    const VALUE: f64 = 150.0;
    let most = largest(runs.iter().map(&value));
    let _ = write!(out, r#"<text class="name" x="{}" y="12">{heading}</text>"#, At(x));
    let _ = write!(out, r#"<path class="base" d="M{} 22v{}"/>"#, At(x), At(runs.len() as f64 * ROW + 4.0));
    for (i, run) in runs.iter().enumerate() {
        let v = value(run);
        let top = 24.0 + i as f64 * ROW;
        let known = v.is_finite() && v >= 0.0;
        let wide = if known && most > 0.0 { v / most * (room - VALUE) } else { 0.0 };
        let text = if known { shown(v) } else { UNKNOWN.into() };
        let _ = write!(
            out,
            r#"<rect class="fill p{}" x="{}" y="{}" width="{}" height="{}"/><text x="{}" y="{}">{text}</text>"#,
            i % COLOURS,
            At(x),
            At(top + 5.0),
            At(wide),
            At(ROW - 10.0),
            At(x + wide + 7.0),
            At(top + ROW / 2.0 + 4.0),
        );
    }
}

//! What each policy took from the socket.

use super::COLOURS;
use super::plot::{At, WIDTH};
use super::text::{Short, UNKNOWN, Unit, energy_unit, largest, number, watt_hours};
use crate::event::outcome::RunResult;
use std::fmt::Write as _;

/// The most bars.
const RUNS: usize = 40;
const ROW: f64 = 30.0;

/// Writes the section.
pub(super) fn section(out: &mut String, runs: &[RunResult], names: &[String]) {
    super::open(out, "energy", "Energy and power");
    let runs = &runs[..runs.len().min(RUNS)];
    // Names of policies may be long, and bars must start at one place.
    let longest = names.iter().map(|n| n.chars().count().min(32)).max().unwrap_or(0);
    let label = (longest as f64 * 7.4 + 16.0).clamp(60.0, 250.0);
    let height = runs.len() as f64 * ROW + 30.0;
    out.push_str("<div class=\"chart\">");
    super::plot::open(out, "plot", height, &"Energy and mean power by policy");
    for (i, name) in names.iter().enumerate().take(runs.len()) {
        let _ = write!(
            out,
            r#"<text class="name" x="0" y="{}">{}</text>"#,
            At(24.0 + i as f64 * ROW + ROW / 2.0 + 4.0),
            Short(name, 32)
        );
    }
    let half = (WIDTH - label) / 2.0;
    let energy = largest(runs.iter().map(|r| r.summary.energy_j));
    let unit = energy_unit(energy);
    bars(
        out,
        "Energy of all GPUs",
        runs,
        |r| r.summary.energy_j,
        label,
        half,
        |v| format!("{} {} ({})", number(unit.of(v)), unit.name, watt_hours(v)),
    );
    let watts = Unit { name: "W", size: 1.0 };
    bars(
        out,
        "Mean power of a GPU",
        runs,
        |r| r.summary.power_w,
        label + half,
        half,
        |v| format!("{} {}", number(watts.of(v)), watts.name),
    );
    out.push_str("</svg></div>\n");
    if names.len() > runs.len() {
        let _ =
            writeln!(out, "<p class=\"remark\">The first {RUNS} of {} policies are drawn.</p>", names.len());
    }
    out.push_str("</section>\n");
}

fn bars(
    out: &mut String,
    heading: &str,
    runs: &[RunResult],
    value: impl Fn(&RunResult) -> f64,
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

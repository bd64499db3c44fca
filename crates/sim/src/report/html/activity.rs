//! SMACT, memory and power of each GPU over time, two policies over each other.

use super::plot::{At, Panel, WIDTH, labelled, mean, open, steps, thinned, ticks, time_ticks};
use super::text::{Short, largest, plural, span};
use super::{COLOURS, NOTHING_RAN, absent, nothing_ran};
use crate::event::outcome::{GpuSeries, RunResult};
use std::fmt::Write as _;

/// More GPUs than this are shown as their mean.
const GPUS: usize = 16;
/// The most policies to choose from, which all are in the page.
const RUNS: usize = 8;
/// The most steps of a line: more are finer than a pixel or two.
const STEPS: usize = 240;
/// What is drawn from left to right.
const MEASURES: [&str; 3] = ["SMACT", "Memory, GiB", "Power, W"];

/// The lines of one GPU of one run, thinned, and the step that they are left with.
struct Lines {
    /// Position of the run among those that have activity.
    nth: usize,
    /// Position among all runs.
    run: usize,
    step: f64,
    values: [Vec<f64>; 3],
}

/// Writes the section.
pub(super) fn section(out: &mut String, runs: &[RunResult], names: &[String]) {
    super::open(out, "activity", "Activity of the GPUs over time");
    let with: Vec<usize> = (0..runs.len()).filter(|i| has_series(&runs[*i])).take(RUNS).collect();
    if with.is_empty() {
        let unrecorded = "The result holds no activity over time. It is recorded by <code>carma simulate --html</code> \
                          and by <code>carma simulate --json --detail</code>.";
        absent(out, if nothing_ran(runs) { NOTHING_RAN } else { unrecorded });
        out.push_str("</section>\n");
        return;
    }
    let gpus = with.iter().map(|i| runs[*i].series.len()).max().unwrap_or(0);
    legend(out, names, &with);
    let of = |nth: usize, series: &GpuSeries| lines(&runs[with[nth]], nth, with[nth], series);
    let rows: Vec<(String, Vec<Lines>)> = if gpus > GPUS {
        let lines = (0..with.len()).map(|nth| of(nth, &mean_of_all(&runs[with[nth]])));
        vec![(format!("Mean of {gpus}"), lines.collect())]
    } else {
        let row = |gpu: usize| {
            // Policies may have been simulated on different numbers of GPUs.
            let lines = (0..with.len()).filter_map(|nth| Some(of(nth, runs[with[nth]].series.get(gpu)?)));
            (format!("GPU {gpu}"), lines.collect())
        };
        (0..gpus).map(row).collect()
    };
    let long = largest(with.iter().map(|i| seconds(&runs[*i])));
    let all = |m: usize| largest(rows.iter().flat_map(|(_, l)| l).flat_map(|l| l.values[m].iter().copied()));
    let scales = [vec![0.0, 0.5, 1.0], ticks(all(1), 3), ticks(all(2), 3)];
    // Few rows stay on one sheet of paper, many may go on on the next.
    out.push_str(if rows.len() <= 6 { "<div class=\"chart figure\">" } else { "<div class=\"chart\">" });
    let last = rows.len().saturating_sub(1);
    for (i, (name, lines)) in rows.iter().enumerate() {
        row(out, name, lines, &scales, long, (i == 0, i == last));
    }
    out.push_str("</div>\n");
    if gpus > GPUS {
        let _ = writeln!(
            out,
            "<p class=\"remark\">The lines are means over all {}; up to {GPUS} GPUs are shown one by one.</p>",
            plural(gpus as u64, "GPU", "GPUs")
        );
    }
    let left_out = runs.iter().filter(|r| has_series(r)).count() - with.len();
    if left_out > 0 {
        let _ = writeln!(
            out,
            "<p class=\"remark\">{left_out} more of the policies have activity that is not in this page.</p>"
        );
    }
    let coarse = with.iter().map(|i| runs[*i].step_s * group(&runs[*i]) as f64);
    let _ = write!(
        out,
        "<p class=\"remark\">Each step of a line is a mean over {}.</p>\n</section>\n",
        span(largest(coarse))
    );
}

fn has_series(run: &RunResult) -> bool {
    run.step_s.is_finite() && run.step_s > 0.0 && run.series.iter().any(|s| !s.smact.is_empty())
}

fn length(run: &RunResult) -> usize {
    run.series.iter().map(|s| s.smact.len().max(s.memory_mib.len()).max(s.power_w.len())).max().unwrap_or(0)
}

fn seconds(run: &RunResult) -> f64 {
    length(run) as f64 * run.step_s
}

fn group(run: &RunResult) -> usize {
    length(run).div_ceil(STEPS).max(1)
}

fn legend(out: &mut String, names: &[String], with: &[usize]) {
    out.push_str("<ul class=\"legend\">");
    for (nth, i) in with.iter().enumerate() {
        let _ = write!(
            out,
            "<li data-run=\"{nth}\"{}>{}{}</li>",
            if nth > 1 { " class=\"off\"" } else { "" },
            swatch(*i, nth == 0),
            Short(&names[*i], 60),
        );
    }
    out.push_str("</ul>\n");
    if with.len() > 2 {
        // Shown by the script, without which it would do nothing.
        out.push_str("<p class=\"choice\" hidden><label>Compare with <select id=\"second\">");
        for (nth, i) in with.iter().enumerate().skip(1) {
            let _ = write!(out, "<option value=\"{nth}\">{}</option>", Short(&names[*i], 60));
        }
        out.push_str("</select></label></p>\n");
    }
}

fn lines(result: &RunResult, nth: usize, run: usize, series: &GpuSeries) -> Lines {
    let group = group(result);
    let thin = |values: &[f32], size: f64| {
        let most = values.len().div_ceil(group);
        thinned(values, most).0.into_iter().map(|v| v / size).collect::<Vec<_>>()
    };
    Lines {
        nth,
        run,
        step: result.step_s * group as f64,
        values: [thin(&series.smact, 1.0), thin(&series.memory_mib, 1024.0), thin(&series.power_w, 1.0)],
    }
}

/// The mean over all GPUs at each step.
fn mean_of_all(run: &RunResult) -> GpuSeries {
    let over = |pick: fn(&GpuSeries) -> &[f32]| -> Vec<f32> {
        (0..length(run))
            .map(|i| mean(run.series.iter().filter_map(|s| pick(s).get(i)).map(|v| f64::from(*v))) as f32)
            .collect()
    };
    GpuSeries {
        smact: over(|s| &s.smact),
        memory_mib: over(|s| &s.memory_mib),
        power_w: over(|s| &s.power_w),
    }
}

/// One GPU: three panels side by side.
fn row(
    out: &mut String,
    name: &str,
    lines: &[Lines],
    scales: &[Vec<f64>; 3],
    long: f64,
    (top, bottom): (bool, bool),
) {
    const LABEL: f64 = 66.0;
    const GAP: f64 = 44.0;
    const HEIGHT: f64 = 74.0;
    let above = if top { 26.0 } else { 8.0 };
    let below = if bottom { 24.0 } else { 6.0 };
    open(out, "plot", above + HEIGHT + below, &format_args!("SMACT, memory and power over time: {name}"));
    // Words of two lines: there is little room before the axis.
    let (first, second) = name.split_once(" of ").map_or((name, None), |(a, b)| (a, Some(b)));
    let middle = above + HEIGHT / 2.0 + if second.is_some() { -4.0 } else { 4.0 };
    let _ = write!(out, r#"<text class="name" x="0" y="{}">{first}</text>"#, At(middle));
    if let Some(second) = second {
        let _ = write!(out, r#"<text class="cap" x="0" y="{}">of {second}</text>"#, At(middle + 16.0));
    }
    let w = (WIDTH - LABEL - 2.0 * GAP - 36.0) / 3.0;
    for (m, measure) in MEASURES.iter().enumerate() {
        let panel = Panel {
            x: LABEL + 30.0 + m as f64 * (w + GAP),
            y: above,
            w,
            h: HEIGHT,
            x_min: 0.0,
            x_max: long,
            y_max: scales[m].last().copied().unwrap_or(1.0),
        };
        if top {
            let _ = write!(out, r#"<text class="name" x="{}" y="14">{measure}</text>"#, At(panel.x));
        }
        // The last one ends where the drawing does.
        let edge = (panel.x + w + GAP).min(WIDTH);
        panel.x_axis(out, &time_ticks(0.0, long, 6), bottom.then_some(edge));
        panel.y_axis(out, &labelled(scales[m].clone()));
        panel.base(out);
        for line in lines {
            let values = &line.values[m];
            let path = steps(&panel, values, line.step);
            if path.is_empty() {
                continue;
            }
            let colour = line.run % COLOURS;
            let off = if line.nth > 1 { " class=\"off\"" } else { "" };
            let _ = write!(out, "<g data-run=\"{}\"{off}>", line.nth);
            // The first also as an area, so that the two can be told apart without colour. An area
            // would fill gaps.
            if line.nth == 0 && values.iter().all(|v| v.is_finite()) {
                let end = panel.px(values.len() as f64 * line.step);
                let _ = write!(
                    out,
                    r#"<path class="area p{colour}" d="{path}H{}V{}H{}Z"/>"#,
                    At(end),
                    At(panel.bottom()),
                    At(panel.x)
                );
            }
            let _ = write!(out, r#"<path class="line p{colour}" d="{path}"/></g>"#);
        }
    }
    out.push_str("</svg>\n");
}

/// How a policy is drawn here: never dashed, since steps are short; the first with an area.
fn swatch(run: usize, first: bool) -> String {
    let colour = run % COLOURS;
    let area =
        if first { format!(r#"<path class="area p{colour}" d="M1 2h24v8h-24z"/>"#) } else { String::new() };
    let y = if first { 2 } else { 5 };
    format!(
        r#"<svg class="swatch" viewBox="0 0 26 10" aria-hidden="true">{area}<path class="line p{colour}" d="M1 {y}h24"/></svg>"#
    )
}

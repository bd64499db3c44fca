//! How waits and slowdowns are spread over the jobs: cumulative distributions of all policies.

use super::plot::{At, Panel, labelled, stroke, ticks, time_ticks};
use super::text::{Short, largest, plural};
use super::{NOTHING_RAN, Origin, absent, nothing_ran, swatch};
use crate::event::outcome::{End, RunResult};
use std::fmt::Write as _;

/// The most curves in one drawing.
const RUNS: usize = 8;
/// The most points of a curve.
const POINTS: usize = 400;
const W: f64 = 590.0;
const H: f64 = 330.0;

/// Writes the section.
pub(super) fn section(out: &mut String, runs: &[RunResult], names: &[String], origin: Origin) {
    super::open(out, "spread", "Waits and slowdowns of the jobs");
    let ran_nothing = nothing_ran(runs);
    if ran_nothing || runs.iter().all(|r| r.jobs.is_empty()) {
        let unrecorded = "The result does not hold the jobs. It does after <code>carma simulate --html</code> and after \
                          <code>carma simulate --json --detail</code>.";
        absent(out, if ran_nothing { NOTHING_RAN } else { unrecorded });
        out.push_str("</section>\n");
        return;
    }
    out.push_str("<ul class=\"legend\">");
    for (i, name) in names.iter().enumerate().take(RUNS) {
        let _ = write!(out, "<li>{}{}</li>", swatch(i), Short(name, 60));
    }
    out.push_str("</ul>\n<div class=\"pair\">");
    let (mut waits, mut slowdowns) = (Vec::new(), Vec::new());
    for (i, run) in runs.iter().take(RUNS).enumerate() {
        let on_gpus = on_gpus(run);
        // The first run of a page of a recording is the recording.
        let waited =
            if i == 0 && origin != Origin::Simulated { until_start(run) } else { wait(run, &on_gpus) };
        // Under a policy jobs that never complete are a result; in a recording most of them still wait or run.
        let completed = run.jobs.iter().filter(|job| job.end.is_some()).count();
        let of = if origin == Origin::Simulated { run.jobs.len() } else { completed };
        waits.push(Curve::of(of, waited.into_iter()));
        slowdowns.push(Curve::of(of - unknown_alone(run), slowdown(run, &on_gpus).into_iter()));
    }
    let longest = largest(waits.iter().filter_map(|c| c.values.last().copied()));
    let wait_ticks = time_ticks(0.0, if longest > 0.0 { longest } else { 1.0 }, 6);
    chart(out, "Wait", &waits, 0.0, longest, &wait_ticks);
    // Alone is 1. No job is faster, but rounding may say so: those lie on the left edge.
    let worst = largest(slowdowns.iter().filter_map(|c| c.values.last().copied()));
    let marks = labelled(ticks((worst - 1.0).max(0.2), 5).into_iter().map(|t| t + 1.0).collect());
    let to = marks.last().map_or(2.0, |(to, _)| *to);
    chart(out, "Slowdown", &slowdowns, 1.0, to, &marks);
    out.push_str("</div>\n");
    let first = runs.first().filter(|_| origin != Origin::Simulated);
    let over = first.map_or(0, |run| run.jobs.iter().filter(|job| job.end.is_some()).count());
    if let Some(run) = first.filter(|run| over < run.jobs.len()) {
        let of = plural(run.jobs.len() as u64, "job", "jobs");
        let _ = writeln!(out, "<p class=\"remark\">Of the {over} of {of} that completed.</p>");
    }
    let unknown = runs.iter().map(unknown_alone).max().unwrap_or(0);
    if unknown > 0 {
        let _ = writeln!(
            out,
            "<p class=\"remark\">Slowdown: without {} whose time alone is not known, or next to nothing.</p>",
            plural(unknown as u64, "job", "jobs")
        );
    }
    let never: usize = waits.iter().map(|c| c.of - c.values.len()).max().unwrap_or(0);
    if never > 0 {
        let _ = writeln!(
            out,
            "<p class=\"remark\">A curve that ends below 100 % belongs to a policy under which jobs never completed (up to {}).</p>",
            plural(never as u64, "job", "jobs")
        );
    }
    if runs.len() > RUNS {
        let _ =
            writeln!(out, "<p class=\"remark\">The first {RUNS} of {} policies are drawn.</p>", runs.len());
    }
    out.push_str("</section>\n");
}

/// Values in order, and how many jobs there are, those without a value included.
struct Curve {
    values: Vec<f64>,
    of: usize,
}

impl Curve {
    fn of(jobs: usize, values: impl Iterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.filter(|v| v.is_finite()).collect();
        values.sort_by(f64::total_cmp);
        Self { values, of: jobs }
    }
}

/// Of each job: its time on GPUs since it last had to begin anew.
fn on_gpus(run: &RunResult) -> Vec<f64> {
    let mut on_gpus = vec![0.0; run.jobs.len()];
    for stretch in &run.stretches {
        let time = usize::try_from(stretch.job).ok().and_then(|job| on_gpus.get_mut(job));
        if let Some(time) = time {
            match stretch.how {
                // What came before was lost.
                End::OutOfMemory | End::Evicted | End::GrowthGuard | End::Requeued | End::Failed => {
                    *time = 0.0
                }
                End::Completed | End::Preempted | End::Running | End::Suspended => {
                    *time += stretch.end.since(stretch.start).as_secs_f64()
                }
            }
        }
    }
    on_gpus
}

/// Of each job that completed: from arrival to the start of the attempt that completed, and of one that was taken off and went
/// on, all time off its GPUs, as the table has it.
fn wait(run: &RunResult, on_gpus: &[f64]) -> Vec<f64> {
    let waits = run.jobs.iter().zip(on_gpus).filter_map(|(job, time)| {
        let turnaround = job.end?.since(job.arrival).as_secs_f64();
        Some((turnaround - time).max(0.0))
    });
    waits.collect()
}

/// The same of a recorded run, whose table has it up to the last start.
fn until_start(run: &RunResult) -> Vec<f64> {
    let waits = run.jobs.iter().filter(|job| job.end.is_some());
    waits.filter_map(|job| Some(job.last_start?.since(job.arrival).as_secs_f64())).collect()
}

/// Jobs that completed and have no time alone to compare with.
fn unknown_alone(run: &RunResult) -> usize {
    run.jobs.iter().filter(|job| job.end.is_some() && job.solo.0 == 0).count()
}

/// Of each job that completed: its time on GPUs over the time alone.
fn slowdown(run: &RunResult, on_gpus: &[f64]) -> Vec<f64> {
    let jobs = run.jobs.iter().zip(on_gpus).filter(|(job, _)| job.end.is_some() && job.solo.0 > 0);
    jobs.map(|(job, time)| time / job.solo.as_secs_f64()).collect()
}

fn chart(out: &mut String, name: &str, curves: &[Curve], from: f64, to: f64, marks: &[(f64, String)]) {
    let panel = Panel {
        x: 52.0,
        y: 26.0,
        w: W - 52.0 - 24.0,
        h: H - 26.0 - 46.0,
        x_min: from,
        x_max: to,
        y_max: 1.0,
    };
    let _ = write!(
        out,
        r#"<div class="figure"><svg class="plot" viewBox="0 0 {W} {H}" role="img" aria-label="Cumulative distribution: {name}"><text class="cap" x="0" y="12">Share of jobs</text>"#
    );
    let shares: Vec<(f64, String)> =
        (0..=4).map(|i| (f64::from(i) * 0.25, format!("{} %", i * 25))).collect();
    panel.x_axis(out, marks, Some(W));
    panel.y_axis(out, &shares);
    panel.base(out);
    let _ = write!(
        out,
        r#"<text class="name" x="{}" y="{}" text-anchor="middle">{name}</text>"#,
        At(panel.x + panel.w / 2.0),
        At(H - 8.0)
    );
    // The first policy on top.
    for (i, curve) in curves.iter().enumerate().rev() {
        let _ = write!(out, r#"<path class="line {}" d="{}"/>"#, stroke(i), path(&panel, curve));
    }
    out.push_str("</svg></div>");
}

/// A staircase from the bottom up.
fn path(panel: &Panel, curve: &Curve) -> String {
    let mut path = format!("M{} {}", At(panel.x), At(panel.bottom()));
    let n = curve.values.len();
    let group = n.div_ceil(POINTS).max(1);
    for (i, value) in curve.values.iter().enumerate() {
        // Always the last, which is the worst.
        if (i + 1) % group == 0 || i + 1 == n {
            let share = (i + 1) as f64 / curve.of.max(1) as f64;
            let _ = write!(path, "H{}V{}", At(panel.px(*value)), At(panel.py(share)));
        }
    }
    let _ = write!(path, "H{}", At(panel.x + if n == 0 { 0.0 } else { panel.w }));
    path
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::outcome::{JobOutcome, Stretch, Summary};
    use carma_core::units::Millis;

    /// On GPUs from 10 s to 30 s and from 70 s on, to 100 s: it waited 10 s and 40 s, not 70 s.
    #[test]
    fn a_job_that_was_taken_off_waits_while_it_is_off() {
        let job = JobOutcome {
            id: "x".into(),
            task: String::new(),
            user: String::new(),
            gpus: 1,
            arrival: Millis::ZERO,
            first_start: Some(Millis::secs(10)),
            last_start: Some(Millis::secs(70)),
            end: Some(Millis::secs(100)),
            exec: Millis::secs(50),
            solo: Millis::secs(50),
            attempts: 2,
            ooms: 0,
        };
        let stretch = |from, to, how| Stretch {
            job: 0,
            attempt: 1,
            gpus: vec![0],
            start: Millis::secs(from),
            end: Millis::secs(to),
            how,
            shared: false,
        };
        let run = |first| RunResult {
            policy: "gandiva".into(),
            precondition: String::new(),
            sharing: "mps".into(),
            seed: 1,
            summary: Summary::default(),
            events: 0,
            jobs: vec![job.clone()],
            stretches: vec![stretch(10, 30, first), stretch(70, 100, End::Completed)],
            ooms: Vec::new(),
            step_s: 0.0,
            series: Vec::new(),
        };
        let waited = |first| wait(&run(first), &on_gpus(&run(first)));
        assert_eq!(waited(End::Preempted), [50.0]);
        // What was lost counts as waiting, as does all before the attempt that completed.
        assert_eq!(waited(End::OutOfMemory), [70.0]);
        assert_eq!(until_start(&run(End::Suspended)), [70.0]);
    }
}

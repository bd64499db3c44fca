//! Which task was when on which GPU.

use super::kinds::{Kinds, room_on_bar};
use super::plot::{At, Panel, WIDTH, open, time_ticks};
use super::text::{Esc, Short, largest, plural, span};
use super::{NOTHING_RAN, Origin, absent, nothing_ran};
use crate::event::outcome::{End, RunResult, Stretch};
use carma_core::units::Millis;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

/// The most bars of one policy; of more, the busiest time is drawn.
const BARS: usize = 2000;
/// The most GPUs of one policy.
const GPUS: usize = 32;
/// The most policies.
const RUNS: usize = 8;

/// A stretch on one GPU.
struct Bar<'a> {
    gpu: u32,
    stretch: &'a Stretch,
    /// Which of the sub-lanes of its GPU.
    lane: usize,
}

/// Writes the section.
pub(super) fn section(out: &mut String, runs: &[RunResult], names: &[String], origin: Origin) {
    super::open(out, "gantt", "Tasks on the GPUs");
    if runs.iter().all(|r| r.stretches.is_empty()) {
        absent(
            out,
            match origin {
                Origin::Simulated if nothing_ran(runs) => NOTHING_RAN,
                Origin::Simulated => {
                    "The result does not say which task ran where. It does after <code>carma simulate --html</code> \
                     and after <code>carma simulate --json --detail</code>."
                }
                Origin::Recorded | Origin::RecordedVirtual => NOTHING_RAN,
            },
        );
        out.push_str("</section>\n");
        return;
    }
    let families = families(runs);
    legend(out, &families, runs);
    let end = largest(runs.iter().flat_map(|r| r.stretches.iter()).map(|s| s.end.as_secs_f64()));
    for (run, name) in runs.iter().zip(names).take(RUNS) {
        let _ = write!(out, "<div class=\"figure\"><h3>{}</h3>", Short(name, 80));
        if run.stretches.is_empty() {
            let unknown = "Nothing ran, or the result does not say what.";
            absent(out, if nothing_ran(std::slice::from_ref(run)) { NOTHING_RAN } else { unknown });
        } else {
            chart(out, run, name, &families, end);
        }
        out.push_str("</div>\n");
    }
    if runs.len() > RUNS {
        let _ =
            writeln!(out, "<p class=\"remark\">The first {RUNS} of {} policies are drawn.</p>", runs.len());
    }
    out.push_str("</section>\n");
}

/// The family that a task belongs to: its name up to the first mark that parts words.
fn family(task: &str) -> &str {
    let name = task.split(['-', '/', ':', ' ', ',', '@', '(']).next().unwrap_or("");
    if name.is_empty() { "unnamed" } else { name }
}

/// Families of tasks over all policies, so that a colour means the same in every drawing.
fn families(runs: &[RunResult]) -> Kinds<'_> {
    let spent =
        |stretch: &Stretch| stretch.end.since(stretch.start).as_secs_f64() * stretch.gpus.len() as f64;
    let all = runs.iter().flat_map(|run| run.stretches.iter().map(move |stretch| (run, stretch)));
    Kinds::of(all.map(|(run, stretch)| (family(task(run, stretch)), spent(stretch))))
}

fn legend(out: &mut String, families: &Kinds<'_>, runs: &[RunResult]) {
    out.push_str("<ul class=\"legend\">");
    families.legend(out);
    let ended = |how: End| runs.iter().flat_map(|r| &r.stretches).any(|s| s.how == how);
    let mut mark = |drawn: String, name: &str| {
        let _ = write!(
            out,
            r#"<li><svg class="mark" viewBox="0 0 14 14" aria-hidden="true">{drawn}</svg>{name}</li>"#
        );
    };
    if ended(End::OutOfMemory) {
        mark(crash(7.0, 7.0, 6.0), "ended out of memory");
    }
    if [End::Preempted, End::Evicted, End::GrowthGuard].into_iter().any(ended) {
        mark(taken_back(7.0, 7.0, 5.0), "taken back by the policy");
    }
    if ended(End::Suspended) {
        mark(suspended(7.0, 7.0, 5.0), "suspended or moved: no bar until it goes on");
    }
    out.push_str("</ul>\n");
}

fn task<'a>(run: &'a RunResult, stretch: &Stretch) -> &'a str {
    usize::try_from(stretch.job).ok().and_then(|job| run.jobs.get(job)).map_or("", |job| &job.task)
}

/// The GPUs to draw and how many there are: those that have activity or a task.
fn gpus(run: &RunResult) -> (Vec<u32>, usize) {
    let mut all: BTreeSet<u32> = run.stretches.iter().flat_map(|s| s.gpus.iter().copied()).collect();
    all.extend(0..u32::try_from(run.series.len()).unwrap_or(u32::MAX));
    let count = all.len();
    (all.into_iter().take(GPUS).collect(), count)
}

/// The bars to draw and the time that they are from, if it is not all of the run.
fn bars<'a>(run: &'a RunResult, shown: &[u32]) -> (Vec<Bar<'a>>, Option<(f64, f64)>) {
    let shown: BTreeSet<u32> = shown.iter().copied().collect();
    let mut bars: Vec<Bar<'_>> = run
        .stretches
        .iter()
        .flat_map(|stretch| {
            // A GPU that is named twice is still one.
            let gpus: BTreeSet<u32> = stretch.gpus.iter().copied().filter(|g| shown.contains(g)).collect();
            gpus.into_iter().map(move |gpu| Bar { gpu, stretch, lane: 0 })
        })
        .collect();
    bars.sort_by_key(|b| (b.stretch.start, b.stretch.end, b.gpu));
    if bars.len() <= BARS {
        return (bars, None);
    }
    // As many starts as leave room for what was there before, in the shortest time.
    let starts = BARS * 3 / 4;
    let first = (0..bars.len() - starts)
        .min_by_key(|i| bars[i + starts - 1].stretch.start.since(bars[*i].stretch.start))
        .unwrap_or(0);
    let (from, to) = (bars[first].stretch.start, bars[first + starts - 1].stretch.start);
    // At least a second, should all start at once.
    let to = to.max(from + Millis::secs(1));
    bars.retain(|b| b.stretch.end > from && b.stretch.start < to);
    bars.truncate(BARS);
    (bars, Some((from.as_secs_f64(), to.as_secs_f64())))
}

/// Gives bars that overlap on a GPU lanes of their own; returns how many each GPU needs.
fn stack(bars: &mut [Bar<'_>]) -> BTreeMap<u32, usize> {
    let mut free: BTreeMap<u32, Vec<Millis>> = BTreeMap::new();
    for bar in bars {
        let lanes = free.entry(bar.gpu).or_default();
        let lane = lanes.iter().position(|until| *until <= bar.stretch.start).unwrap_or(lanes.len());
        match lanes.get_mut(lane) {
            Some(until) => *until = bar.stretch.end,
            None => lanes.push(bar.stretch.end),
        }
        bar.lane = lane;
    }
    free.into_iter().map(|(gpu, lanes)| (gpu, lanes.len())).collect()
}

fn chart(out: &mut String, run: &RunResult, name: &str, families: &Kinds<'_>, end: f64) {
    const LABEL: f64 = 66.0;
    let (gpus, all) = gpus(run);
    let (mut bars, window) = bars(run, &gpus);
    let lanes = stack(&mut bars);
    let total: usize = gpus.iter().map(|g| lanes.get(g).copied().unwrap_or(1).max(1)).sum();
    let thick = (700.0 / total as f64).clamp(5.0, 17.0);
    let between = if gpus.len() > 8 { 3.0 } else { 6.0 };
    let height = total as f64 * thick + gpus.len() as f64 * between;
    let (x_min, x_max) = window.unwrap_or((0.0, end));
    let panel = Panel { x: LABEL, y: 20.0, w: WIDTH - LABEL - 14.0, h: height, x_min, x_max, y_max: 1.0 };
    out.push_str("<div class=\"chart\">");
    open(out, "plot", height + 46.0, &format_args!("Tasks on the GPUs over time: {}", Short(name, 80)));
    let mut tops: BTreeMap<u32, f64> = BTreeMap::new();
    let mut y = panel.y;
    for gpu in &gpus {
        let tall = lanes.get(gpu).copied().unwrap_or(1).max(1) as f64 * thick;
        let _ = write!(
            out,
            r#"<rect class="lane" x="{}" y="{}" width="{}" height="{}"/><text class="name" x="0" y="{}">GPU {gpu}</text>"#,
            At(panel.x),
            At(y),
            At(panel.w),
            At(tall),
            At(y + tall / 2.0 + 4.0),
        );
        tops.insert(*gpu, y);
        y += tall + between;
    }
    panel.x_axis(out, &time_ticks(x_min, x_max, 10), Some(WIDTH));
    panel.base(out);
    let mut marks = String::new();
    for bar in &bars {
        let top = tops.get(&bar.gpu).copied().unwrap_or(panel.y) + bar.lane as f64 * thick;
        draw(out, &mut marks, run, bar, &panel, top, thick, families);
    }
    let last = largest(run.stretches.iter().map(|s| s.end.as_secs_f64()));
    if window.is_none() && last > 0.0 {
        let x = panel.px(last);
        // Near the right edge the words stand before the line.
        let (anchor, words) = if x > WIDTH - 180.0 { ("end", x + 2.0) } else { ("start", x - 2.0) };
        let _ = write!(
            out,
            r#"<path class="end" d="M{} {}v{}"/><text class="cap" x="{}" y="{}" text-anchor="{anchor}">{}</text>"#,
            At(x),
            At(panel.y - 4.0),
            At(panel.h + 4.0),
            At(words),
            At(panel.y - 8.0),
            at_the_end(run, last),
        );
    }
    // On top of all bars, so that none hides a crash.
    out.push_str(&marks);
    out.push_str("</svg></div>\n");
    if let Some((from, to)) = window {
        let _ = write!(
            out,
            "<p class=\"remark\">There are more than {BARS} bars; this is the busiest time, from {} to {}, of {} in all.</p>",
            span(from),
            span(to),
            span(last),
        );
    }
    if all > gpus.len() {
        let _ = write!(
            out,
            "<p class=\"remark\">The first {} of {}.</p>",
            gpus.len(),
            plural(all as u64, "GPU", "GPUs")
        );
    }
}

/// What stands where the last bar ends: that all is done only where it is.
fn at_the_end(run: &RunResult, last: f64) -> String {
    if run.stretches.iter().any(|stretch| stretch.how == End::Running) {
        return format!("{}: jobs go on", span(last));
    }
    let what = if run.jobs.iter().all(|job| job.end.is_some()) { "all done" } else { "last end" };
    format!("{what} at {}", span(last))
}

#[allow(clippy::too_many_arguments, reason = "all of them are what one bar needs")]
fn draw(
    out: &mut String,
    marks: &mut String,
    run: &RunResult,
    bar: &Bar<'_>,
    panel: &Panel,
    top: f64,
    thick: f64,
    families: &Kinds<'_>,
) {
    let stretch = bar.stretch;
    let (start, end) = (stretch.start.as_secs_f64(), stretch.end.as_secs_f64());
    let (left, right) = (panel.px(start), panel.px(end));
    let wide = (right - left).max(1.5);
    let job = usize::try_from(stretch.job).ok().and_then(|job| run.jobs.get(job));
    let id = job.map_or("unknown", |job| job.id.as_str());
    let colour = families.colour(family(task(run, stretch)));
    let how = match stretch.how {
        End::Completed => "completed",
        End::OutOfMemory => "out of memory",
        End::Preempted => "taken back, goes on later",
        End::Evicted => "evicted: it slowed a neighbour down beyond its limit; begins anew",
        End::GrowthGuard => "growth guard: its GPU was about to run full; begins anew",
        End::Requeued => "put back into the queue by its user; begins anew",
        End::Failed => "failed, cancelled or timed out",
        End::Running => "goes on",
        End::Suspended => "suspended or moved, goes on later",
    };
    let _ = write!(
        out,
        r#"<g><title>{} · {}
GPU {} · attempt {}
{} to {} ({}): {how}</title><rect class="bar f{colour}" x="{}" y="{}" width="{}" height="{}" rx="2"/>"#,
        Esc(id),
        Esc(task(run, stretch)),
        bar.gpu,
        stretch.attempt,
        span(start),
        span(end),
        span(end - start),
        At(left),
        At(top + 0.5),
        At(wide),
        At(thick - 1.0),
    );
    if (1..=room_on_bar(wide, thick)).contains(&id.chars().count()) {
        let _ = write!(
            out,
            r#"<text class="on on{colour}" x="{}" y="{}">{}</text>"#,
            At(left + 4.0),
            At(top + thick / 2.0 + 3.8),
            Esc(id)
        );
    }
    out.push_str("</g>");
    // Within the bar where there is room, so that it does not hide the name of the next.
    let y = top + thick / 2.0;
    let mark = |r: f64| (left + wide - r).max(left + wide / 2.0);
    match stretch.how {
        End::OutOfMemory => {
            let r = (thick * 0.42).clamp(3.0, 6.0);
            marks.push_str(&crash(mark(r), y, r));
        }
        End::Preempted | End::Evicted | End::GrowthGuard => {
            let r = (thick * 0.4).clamp(2.5, 5.0);
            marks.push_str(&taken_back(mark(r), y, r));
        }
        End::Suspended => {
            let r = (thick * 0.4).clamp(2.5, 5.0);
            marks.push_str(&suspended(mark(r), y, r));
        }
        End::Completed | End::Requeued | End::Failed | End::Running => {}
    }
}

/// A cross in a circle: out of memory.
fn crash(x: f64, y: f64, r: f64) -> String {
    let d = r * 0.5;
    format!(
        r#"<g class="oom"><circle cx="{}" cy="{}" r="{}"/><path d="M{} {}l{} {}m0 {}l{} {}"/></g>"#,
        At(x),
        At(y),
        At(r),
        At(x - d),
        At(y - d),
        At(2.0 * d),
        At(2.0 * d),
        At(-2.0 * d),
        At(-2.0 * d),
        At(2.0 * d),
    )
}

/// An open triangle that points back: the policy took the job off its GPUs.
fn taken_back(x: f64, y: f64, r: f64) -> String {
    format!(
        r#"<g class="back"><path d="M{} {}l{} {}v{}z"/></g>"#,
        At(x - r),
        At(y),
        At(1.6 * r),
        At(-r),
        At(2.0 * r)
    )
}

/// Two upright strokes: it stands still.
fn suspended(x: f64, y: f64, r: f64) -> String {
    let d = r * 0.5;
    format!(
        r#"<g class="still"><path d="M{} {}v{}M{} {}v{}"/></g>"#,
        At(x - d),
        At(y - r),
        At(2.0 * r),
        At(x + d),
        At(y - r),
        At(2.0 * r)
    )
}

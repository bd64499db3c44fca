//! The page of a bench of policies: figures, tasks on the GPUs over time, SM activity over time. One file that opens offline.

use super::render::{cells, columns, of_several};
use carma_measure::trace::{Attempt, Play, Summary};
use carma_sim::report::html::{Esc, Kinds, Whole, room_on_bar, time_axis, top};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Width of a drawing.
const WIDTH: f64 = 1200.0;
/// Left of it, for names of GPUs.
const MARGIN: f64 = 60.0;
/// Height of a bar, with room for a name.
const BAR: f64 = 13.0;
/// Height of the curve of SM activity.
const CURVE: f64 = 56.0;
/// Height of the labels of the time axis.
const LABELS: f64 = 20.0;
/// The most plays, bars of a play, and points of a curve that are drawn.
const MOST: (usize, usize, usize) = (24, 2000, 1200);

/// The page, a complete HTML document.
pub(super) fn page(summary: &Summary, plays: &[Play]) -> String {
    let (badge, seconds) = if summary.machine.is_virtual {
        ("<strong>Virtual GPUs:</strong> a model, not a measurement", "virtual seconds")
    } else {
        ("<strong>Measured</strong> on real GPUs", "seconds")
    };
    let machine = summary.machine.describe();
    let mut out = top(&format!("A trace under several policies: {machine}"), false);
    let _ = write!(
        out,
        r#"<header><p class="badge">{badge}</p>
<h1>{jobs} under {policies} polic{ies}</h1>
<dl><div><dt>GPUs</dt><dd>{machine}</dd></div><div><dt>The last job comes after</dt><dd>{last:.0} s</dd></div>"#,
        machine = Esc(&machine),
        jobs = summary.counted(),
        policies = summary.policies.len(),
        ies = if summary.policies.len() == 1 { "y" } else { "ies" },
        last = summary.arrivals_s,
    );
    let mut fact = |name: &str, value: Option<&String>| {
        if let Some(value) = value {
            let _ = write!(out, "<div><dt>{name}</dt><dd>{}</dd></div>", Esc(value));
        }
    };
    fact("Driver", summary.machine.driver.as_ref());
    fact("Kernel", summary.machine.kernel.as_ref());
    fact("Processors", Some(&summary.machine.cpus.to_string()));
    fact("carma", plays.first().map(|play| &play.carma));
    fact("First play", plays.iter().map(|play| &play.began).min());
    out.push_str("</dl>");
    if let Some(caveat) = summary.caveat() {
        let _ = write!(out, "<p class=\"remark\">{}.</p>", Whole(&caveat));
    }
    out.push_str("</header>\n");
    figures(&mut out, summary);
    drawings(&mut out, plays, seconds);
    alone(&mut out, summary);
    for (heading, lines) in
        [("Not completed", &summary.failed_alike), ("Broken off, and not counted", &summary.cut)]
    {
        if !lines.is_empty() {
            let _ = write!(out, "<section><h2>{heading}</h2><ul class=\"notes\">");
            for line in lines {
                let _ = write!(out, "<li>{}</li>", Esc(line));
            }
            out.push_str("</ul></section>\n");
        }
    }
    let _ = write!(
        out,
        "<footer>Written by carma {}. The rows behind it: jobs.csv and plays/ beside this page.</footer>\n</main></body></html>\n",
        env!("CARGO_PKG_VERSION")
    );
    out
}

fn figures(out: &mut String, summary: &Summary) {
    out.push_str("<section id=\"figures\"><h2>Figures</h2>");
    let columns = columns(summary);
    // Side by side they would be wider than a page.
    for (at, titles) in columns.iter().enumerate() {
        out.push_str("<div class=\"wide\"><table><thead><tr><th class=\"text\">policy</th>");
        for title in titles {
            let _ = write!(out, "<th title=\"{}\">{}</th>", title.meaning, title.name);
        }
        out.push_str("</tr></thead><tbody>");
        for policy in &summary.policies {
            // Where a page is narrow, long names of policies break at their parts.
            let parts = policy.policy.split_inclusive([':', '+']).map(|part| Esc(part).to_string());
            let name = parts.collect::<Vec<_>>().join("<wbr>");
            let _ = write!(out, "<tr><th>{name}</th>");
            for cell in cells(summary, policy).get(at).into_iter().flatten() {
                let _ = write!(out, "<td>{}", Esc(&cell.mean));
                if let Some(range) = &cell.range {
                    let _ = write!(out, "<small>{}</small>", Esc(range));
                }
                out.push_str("</td>");
            }
            out.push_str("</tr>");
        }
        out.push_str("</tbody></table></div>");
    }
    let meanings: Vec<String> = columns
        .iter()
        .flatten()
        .map(|title| format!("{}: {}", title.name.replace(", ", " "), title.meaning))
        .collect();
    let _ =
        writeln!(out, "<p class=\"remark\">{}{}.</p></section>", of_several(summary), meanings.join("; "));
}

/// Kinds by their time on GPUs in all plays.
fn kinds(plays: &[Play]) -> Kinds<'_> {
    let jobs = plays.iter().flat_map(|play| &play.jobs);
    Kinds::of(jobs.map(|job| (job.kind.as_str(), carma_measure::trace::run_s(job))))
}

fn drawings(out: &mut String, plays: &[Play], seconds: &str) {
    let kinds = kinds(plays);
    let shown: Vec<&Play> = plays.iter().filter(|play| play.cut.is_none()).take(MOST.0).collect();
    let end_s = shown.iter().flat_map(|play| &play.jobs).filter_map(|job| job.ended_s).fold(1.0, f64::max);
    let _ = write!(
        out,
        "<section id=\"tasks\"><h2>Tasks on the GPUs, and SM activity</h2><p class=\"lead\">From 0 to {end_s:.0} {seconds}; the curve \
         is SM active, mean over the GPUs, from 0 to 1. Bars that ended undone are hollow, with the outline in the colour of their task.</p><ul class=\"legend\">"
    );
    kinds.legend(out);
    out.push_str("</ul>\n");
    for play in shown {
        drawing(out, play, &kinds, end_s);
    }
    out.push_str("</section>\n");
}

/// An attempt on one GPU, and its lane there.
struct Bar<'a> {
    gpu: u32,
    lane: usize,
    kind: &'a str,
    attempt: &'a Attempt,
    span_s: (f64, f64),
}

/// Attempts in lanes: each in the first lane of its GPU that is free by then.
fn bars(play: &Play) -> Vec<Bar<'_>> {
    let mut spans: Vec<(f64, f64, &str, &Attempt)> = play
        .jobs
        .iter()
        .flat_map(|job| job.attempts.iter().map(move |attempt| (job, attempt)))
        .filter_map(|(job, attempt)| Some((attempt.started_s?, attempt.ended_s?, job.kind.as_str(), attempt)))
        .collect();
    spans.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut lanes: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
    let mut bars = Vec::new();
    for (from, to, kind, attempt) in spans.into_iter().take(MOST.1) {
        for gpu in &attempt.gpus {
            let ends = lanes.entry(*gpu).or_default();
            let lane = ends.iter().position(|end| *end <= from).unwrap_or(ends.len());
            match ends.get_mut(lane) {
                Some(end) => *end = to,
                None => ends.push(to),
            }
            bars.push(Bar { gpu: *gpu, lane, kind, attempt, span_s: (from, to) });
        }
    }
    bars
}

fn drawing(out: &mut String, play: &Play, kinds: &Kinds<'_>, end_s: f64) {
    let x = |s: f64| MARGIN + (s / end_s).clamp(0.0, 1.0) * (WIDTH - MARGIN);
    let bars = bars(play);
    let mut tops: BTreeMap<u32, f64> = BTreeMap::new();
    let mut height = 0.0;
    for gpu in bars.iter().map(|bar| bar.gpu).collect::<std::collections::BTreeSet<_>>() {
        let lanes = bars.iter().filter(|bar| bar.gpu == gpu).map(|bar| bar.lane + 1).max().unwrap_or(1);
        tops.insert(gpu, height);
        height += lanes as f64 * (BAR + 1.0) + 6.0;
    }
    let name = Esc(&play.policy);
    let killed = match play.kills {
        0 => "",
        _ => ", the daemon killed and started again",
    };
    let _ = write!(
        out,
        "<div class=\"figure\"><h3>{name}, play {}{killed}</h3><svg class=\"plot\" viewBox=\"0 0 {WIDTH} {:.0}\" role=\"img\" \
         aria-label=\"Tasks on the GPUs under {name}\">",
        play.repeat,
        height + CURVE + 4.0 + LABELS
    );
    time_axis(out, MARGIN, height + CURVE + 4.0, end_s);
    for (gpu, top) in &tops {
        let _ = write!(out, "<text class=\"tick\" x=\"0\" y=\"{:.1}\">GPU {gpu}</text>", top + BAR);
    }
    for bar in &bars {
        let (from, to) = (x(bar.span_s.0), x(bar.span_s.1));
        let colour = kinds.colour(bar.kind);
        let completed = bar.attempt.code == "Completed";
        let class = if completed { format!("f{colour}") } else { format!("undone o{colour}") };
        let (top, wide) = (
            tops.get(&bar.gpu).copied().unwrap_or(0.0) + bar.lane as f64 * (BAR + 1.0),
            (to - from).max(1.0),
        );
        let _ = write!(
            out,
            "<rect class=\"{class}\" x=\"{from:.1}\" y=\"{top:.1}\" width=\"{wide:.1}\" height=\"{BAR}\" rx=\"2\"><title>{} {:.0}-{:.0} s, {}: {}</title></rect>",
            Esc(bar.kind),
            bar.span_s.0,
            bar.span_s.1,
            Esc(&bar.attempt.sharing),
            Esc(&bar.attempt.text)
        );
        // As much of its name as fits: of many kinds the last share a colour.
        let room = room_on_bar(wide, BAR);
        if room > 0 {
            // On a hollow bar it stands on the page.
            let class = if completed { format!("on on{colour}") } else { "cap".to_owned() };
            let name: String = bar.kind.chars().take(room).collect();
            let _ = write!(
                out,
                "<text class=\"{class}\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                from + 4.0,
                top + BAR - 3.0,
                Esc(&name)
            );
        }
    }
    curve(out, play, height + CURVE + 4.0, x);
    out.push_str("</svg></div>\n");
}

fn curve(out: &mut String, play: &Play, bottom: f64, x: impl Fn(f64) -> f64) {
    let points: Vec<(f64, f64)> = play
        .samples
        .iter()
        .filter(|sample| sample.at_s >= 0.0)
        .filter_map(|sample| {
            let seen: Vec<f64> = sample.gpus.iter().filter_map(|gpu| gpu.smact).collect();
            (!seen.is_empty()).then(|| (sample.at_s, seen.iter().sum::<f64>() / seen.len() as f64))
        })
        .collect();
    let mut path = String::new();
    // Neighbouring readings together, so that a long play makes no large page.
    for group in points.chunks(points.len().div_ceil(MOST.2).max(1)) {
        let n = group.len() as f64;
        let at = group.iter().map(|p| p.0).sum::<f64>() / n;
        let share = group.iter().map(|p| p.1).sum::<f64>() / n;
        let mark = if path.is_empty() { 'M' } else { 'L' };
        let _ = write!(path, "{mark}{:.1} {:.1}", x(at), bottom - share.clamp(0.0, 1.0) * CURVE);
    }
    let _ = write!(
        out,
        "<text class=\"tick\" x=\"0\" y=\"{:.1}\">SMACT</text><path class=\"grid\" d=\"M{MARGIN} {:.1}H{WIDTH}\"/>\
         <path class=\"base\" d=\"M{MARGIN} {bottom:.1}H{WIDTH}\"/><path class=\"line p0\" d=\"{path}\"/>",
        bottom - CURVE / 2.0,
        bottom - CURVE
    );
}

fn alone(out: &mut String, summary: &Summary) {
    if summary.solo_s.is_empty() {
        return;
    }
    out.push_str("<section><h2>Alone</h2><p class=\"lead\">How long each kind ran under exclusive, mean, start-up included.</p><div class=\"wide\"><table><thead><tr><th class=\"text\">kind</th><th>s</th></tr></thead><tbody>");
    for (kind, seconds) in &summary.solo_s {
        let _ = write!(out, "<tr><th>{}</th><td>{seconds:.1}</td></tr>", Esc(kind));
    }
    out.push_str("</tbody></table></div></section>\n");
}

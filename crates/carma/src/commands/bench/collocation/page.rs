//! The page of a bench of collocation: a figure a training, gain over number by way, beside what the papers found.

use carma_interference::measured::Measured;
use carma_measure::collocation::{Row, THEIRS};
use carma_sim::report::html::{Esc, top};
use std::fmt::Write as _;

/// Size of a figure, and its margin.
const SIZE: (f64, f64) = (860.0, 310.0);
const MARGIN: f64 = 44.0;
/// Where the drawing ends on the right; behind it stand the papers' figures, which no curve crosses there.
const RIGHT: f64 = SIZE.0 - 150.0;

/// The page, a complete HTML document.
pub(super) fn page(measured: &Measured, rows: &[Row]) -> String {
    let is_model = measured.machine.gpu.starts_with("Virtual");
    let badge = if is_model {
        "<strong>Virtual GPU:</strong> a model, not a measurement"
    } else {
        "<strong>Measured</strong> on a real GPU"
    };
    let gpu = &measured.machine.gpu;
    let mut out = top(&format!("Trainings that share a GPU: {gpu}"), false);
    let _ = write!(
        out,
        r#"<header><p class="badge">{badge}</p>
<h1>Trainings that share a GPU</h1>
<dl><div><dt>GPU</dt><dd>{gpu}</dd></div><div><dt>Windows</dt><dd>{windows}</dd></div></dl></header>
"#,
        gpu = Esc(gpu),
        windows = measured.combinations.len()
    );
    let mut families: Vec<&str> = Vec::new();
    for row in rows {
        if !families.contains(&row.family.as_str()) {
            families.push(&row.family);
        }
    }
    for family in families {
        let rows: Vec<&Row> = rows.iter().filter(|row| row.family == family).collect();
        section(&mut out, family, &rows);
    }
    let _ = writeln!(
        out,
        "<footer>Written by carma {}. The windows behind it: measured.json beside this page.</footer>\n</main></body></html>",
        env!("CARGO_PKG_VERSION")
    );
    out
}

fn section(out: &mut String, family: &str, rows: &[&Row]) {
    let theirs: Vec<(&str, f64)> =
        THEIRS.iter().filter(|(of, ..)| *of == family).map(|(_, way, gain)| (*way, *gain)).collect();
    let most =
        rows.iter().filter_map(|row| row.gain).chain(theirs.iter().map(|t| t.1)).fold(1.0, f64::max).ceil();
    let counts = rows.iter().map(|row| row.count).max().unwrap_or(1).max(2);
    let x = |count: f64| MARGIN + (count - 1.0) / (counts - 1) as f64 * (RIGHT - MARGIN);
    let y = |gain: f64| SIZE.1 - MARGIN - gain / most * (SIZE.1 - 1.5 * MARGIN);
    let mut ways: Vec<&str> = Vec::new();
    for row in rows.iter().filter(|row| row.way != "alone") {
        if !ways.contains(&row.way.as_str()) {
            ways.push(&row.way);
        }
    }
    let _ = write!(
        out,
        "<section><h2>{}</h2><p class=\"lead\">Samples a second of all trainings, over one alone, by their number.</p><ul class=\"legend\">",
        Esc(family)
    );
    for (at, way) in ways.iter().enumerate() {
        let _ = write!(
            out,
            r#"<li><svg class="swatch" viewBox="0 0 26 10" aria-hidden="true"><path class="line p{at} d{at}" d="M1 5h24"/></svg>{}</li>"#,
            Esc(way)
        );
    }
    let _ = write!(
        out,
        "</ul><svg class=\"plot\" style=\"max-width:{}px;min-width:0\" viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"Gain by number\">",
        SIZE.0, SIZE.0, SIZE.1
    );
    for gain in 0..=most as u32 {
        let at = y(f64::from(gain));
        let _ = write!(
            out,
            "<path class=\"grid\" d=\"M{MARGIN} {at:.1}H{:.1}\"/><text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{gain}</text>",
            RIGHT,
            MARGIN - 6.0,
            at + 4.0
        );
    }
    for count in 1..=counts {
        let _ = write!(
            out,
            "<text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{count}</text>",
            x(count as f64),
            SIZE.1 - MARGIN + 18.0
        );
    }
    let _ = write!(
        out,
        "<text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">trainings at once</text>",
        f64::midpoint(MARGIN, RIGHT),
        SIZE.1 - 8.0
    );
    for (way, gain) in &theirs {
        let _ = write!(
            out,
            "<path class=\"end\" d=\"M{MARGIN} {0:.1}H{1:.1}\"/><text class=\"tick\" x=\"{2:.1}\" y=\"{3:.1}\">papers: {gain} by {way}</text>",
            y(*gain),
            RIGHT,
            RIGHT + 6.0,
            y(*gain) + 4.0
        );
    }
    for (at, way) in ways.iter().enumerate() {
        let mut path = format!("M{:.1} {:.1}", x(1.0), y(1.0));
        for row in rows.iter().filter(|row| row.way == *way && row.count > 1) {
            if let Some(gain) = row.gain {
                let _ = write!(path, "L{:.1} {:.1}", x(row.count as f64), y(gain));
            }
        }
        let _ = write!(out, "<path class=\"line p{at} d{at}\" d=\"{path}\"/>");
    }
    out.push_str("</svg>");
    if !theirs.is_empty() {
        out.push_str("<p class=\"remark\">Straight dashed lines: the most that the papers found on an A100 (40 GB).</p>");
    }
    out.push_str("<div class=\"wide\"><table><thead><tr><th class=\"text\">shared by</th>");
    for title in ["k", "samples/s", "gain", "epoch s", "W", "kJ an epoch", "SMACT %", "MiB"] {
        let _ = write!(out, "<th>{title}</th>");
    }
    out.push_str("</tr></thead><tbody>");
    for row in rows {
        let _ = write!(out, "<tr><th>{}</th><td>{}</td>", Esc(&row.way), row.count);
        for (value, digits) in [
            (Some(row.per_s), 0),
            (row.gain, 2),
            (row.epoch_s, 0),
            (row.power_w, 0),
            (row.epoch_kj, 1),
            (row.smact_pct, 0),
            (row.memory_mib, 0),
        ] {
            let text = value.map_or_else(|| "–".to_owned(), |value| format!("{value:.digits$}"));
            let _ = write!(out, "<td>{text}</td>");
        }
        out.push_str("</tr>");
    }
    out.push_str("</tbody></table></div></section>\n");
}

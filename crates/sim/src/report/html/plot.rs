//! Axes, scales and paths: the little that all drawings share.

use super::text::{fixed, span};
use std::fmt::{self, Display, Write as _};

/// Width of every drawing, in its own units (pixels when the page is wide enough).
pub(super) const WIDTH: f64 = 1200.0;

/// How many colours there are for policies before they repeat with another dash.
pub(super) const COLOURS: usize = 7;

/// A coordinate: one decimal at most, never something that is no number.
pub(super) struct At(pub(super) f64);

impl Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = if self.0.is_finite() { (self.0.clamp(-1e6, 1e6) * 10.0).round() / 10.0 } else { 0.0 };
        // Not "-0".
        write!(f, "{}", value + 0.0)
    }
}

/// Class names that give a policy's line its colour and dash.
pub(super) fn stroke(run: usize) -> String {
    format!("p{} d{}", run % COLOURS, (run + run / COLOURS) % 5)
}

/// An area to draw in, with its scales. Both start at `x_min` and 0.
#[derive(Debug, Clone, Copy)]
pub(super) struct Panel {
    /// Left edge.
    pub(super) x: f64,
    /// Top edge.
    pub(super) y: f64,
    /// Width, pixels.
    pub(super) w: f64,
    /// Height, pixels.
    pub(super) h: f64,
    /// Value at the left edge.
    pub(super) x_min: f64,
    /// Value at the right edge.
    pub(super) x_max: f64,
    /// Value at the top edge.
    pub(super) y_max: f64,
}

impl Panel {
    /// Where a value lies from left to right, kept within the panel.
    pub(super) fn px(&self, value: f64) -> f64 {
        let range = self.x_max - self.x_min;
        let share = if range > 0.0 { (value - self.x_min) / range } else { 0.0 };
        self.x + self.w * share.clamp(0.0, 1.0)
    }

    /// Where a value lies from bottom to top, kept within the panel.
    pub(super) fn py(&self, value: f64) -> f64 {
        let share = if self.y_max > 0.0 { value / self.y_max } else { 0.0 };
        self.y + self.h - self.h * share.clamp(0.0, 1.0)
    }

    /// The bottom edge.
    pub(super) fn bottom(&self) -> f64 {
        self.y + self.h
    }

    /// Horizontal grid lines with their labels on the left.
    pub(super) fn y_axis(&self, out: &mut String, ticks: &[(f64, String)]) {
        for (value, label) in ticks {
            let y = self.py(*value);
            let _ = write!(
                out,
                r#"<path class="grid" d="M{} {}h{}"/><text class="tick" x="{}" y="{}" text-anchor="end">{label}</text>"#,
                At(self.x),
                At(y),
                At(self.w),
                At(self.x - 6.0),
                At(y + 3.5),
            );
        }
    }

    /// Vertical grid lines, with labels below if wanted: none beyond this right edge, where it would be cut, and of two in the same
    /// place the first.
    pub(super) fn x_axis(&self, out: &mut String, ticks: &[(f64, String)], labels_within: Option<f64>) {
        const BETWEEN: f64 = 4.0;
        let mut free_from = f64::NEG_INFINITY;
        for (value, label) in ticks {
            let x = self.px(*value);
            let _ = write!(out, r#"<path class="grid" d="M{} {}v{}"/>"#, At(x), At(self.y), At(self.h));
            let Some(edge) = labels_within else { continue };
            let half = tick_width(label) / 2.0;
            let middle = x.min(edge - half);
            if middle - half >= free_from {
                free_from = middle + half + BETWEEN;
                let _ = write!(
                    out,
                    r#"<text class="tick" x="{}" y="{}" text-anchor="middle">{label}</text>"#,
                    At(middle),
                    At(self.bottom() + 16.0),
                );
            }
        }
    }

    /// The base line.
    pub(super) fn base(&self, out: &mut String) {
        let _ =
            write!(out, r#"<path class="base" d="M{} {}h{}"/>"#, At(self.x), At(self.bottom()), At(self.w));
    }
}

/// About how wide a label of an axis is, pixels: page.css has its size.
fn tick_width(label: &str) -> f64 {
    label.chars().count() as f64 * 6.5
}

/// Vertical grid lines of a drawing of time from 0 to `end_s` seconds, which fills the width from `x` on and is as high as `bottom`; their
/// labels are below it.
pub fn time_axis(out: &mut String, x: f64, bottom: f64, end_s: f64) {
    let panel = Panel { x, y: 0.0, w: WIDTH - x, h: bottom, x_min: 0.0, x_max: end_s, y_max: 1.0 };
    panel.x_axis(out, &time_ticks(0.0, end_s, 10), Some(WIDTH));
}

/// Opens a drawing.
pub(super) fn open(out: &mut String, class: &str, height: f64, label: &dyn Display) {
    let _ = write!(
        out,
        r#"<svg class="{class}" viewBox="0 0 {} {}" role="img" aria-label="{label}">"#,
        At(WIDTH),
        At(height)
    );
}

/// Round values from 0 to at least `most`, about `wanted` of them: multiples of 1, 2 or 5 times a power
/// of ten.
pub(super) fn ticks(most: f64, wanted: u32) -> Vec<f64> {
    if !(most.is_finite() && most > 0.0 && most < 1e300) {
        return vec![0.0, 1.0];
    }
    let rough = most / f64::from(wanted.max(1));
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|m| m * power).into_iter().find(|s| *s >= rough * 0.999);
    multiples(step.unwrap_or(power * 10.0), most)
}

/// Multiples of a step from 0 to the first that is at least `most`.
fn multiples(step: f64, most: f64) -> Vec<f64> {
    // A step too small to tell from nothing beside `most` cannot come from a caller, yet would loop.
    let n = (most / step * 0.999_999).ceil().clamp(1.0, 1000.0) as u32;
    (0..=n).map(|i| f64::from(i) * step).collect()
}

/// Labels of plain ticks, all with as many decimals as their step needs.
pub(super) fn labelled(ticks: Vec<f64>) -> Vec<(f64, String)> {
    let step = if let [first, second, ..] = *ticks { second - first } else { 1.0 };
    let decimals = (-step.log10().floor()).clamp(0.0, 6.0) as usize;
    ticks.into_iter().map(|t| (t, fixed(t, decimals))).collect()
}

/// Round times within `from..=to` seconds, about `wanted` of them, in the units of clocks.
pub(super) fn time_ticks(from: f64, to: f64, wanted: u32) -> Vec<(f64, String)> {
    const STEPS: [f64; 21] = [
        1.0,
        2.0,
        5.0,
        10.0,
        15.0,
        30.0,
        60.0,
        120.0,
        300.0,
        600.0,
        900.0,
        1800.0,
        3600.0,
        7200.0,
        3.0 * 3600.0,
        6.0 * 3600.0,
        12.0 * 3600.0,
        86_400.0,
        2.0 * 86_400.0,
        5.0 * 86_400.0,
        10.0 * 86_400.0,
    ];
    let range = to - from;
    if !(from.is_finite() && range.is_finite() && range > 0.0) {
        return vec![(from, "0".into())];
    }
    let rough = range / f64::from(wanted.max(1));
    let step = STEPS.into_iter().find(|s| *s >= rough).unwrap_or_else(|| {
        let days = rough / 86_400.0;
        let power = 10f64.powf(days.log10().floor());
        [1.0, 2.0, 5.0, 10.0].map(|m| m * power).into_iter().find(|s| *s >= days).unwrap_or(power) * 86_400.0
    });
    let first = (from / step).ceil();
    (0..100)
        .map(|i| (first + f64::from(i)) * step)
        .take_while(|t| *t <= to + step * 1e-6)
        .map(|t| (t, clock(t, step)))
        .collect()
}

/// A time on an axis with this step: `0`, `45 s`, `30 min`, `1 h 30`, `2 h`, `3 d`.
fn clock(t: f64, step: f64) -> String {
    let s = t.round() as u64;
    if s == 0 {
        return "0".into();
    }
    if step >= 86_400.0 {
        return format!("{} d", fixed((t / 86_400.0).round(), 0));
    }
    match (s / 3600, s % 3600 / 60, s % 60) {
        (h, 0, 0) => format!("{h} h"),
        (0, m, 0) => format!("{m} min"),
        (0, 0, s) => format!("{s} s"),
        (h, m, 0) => format!("{h} h {m:02}"),
        _ => span(t),
    }
}

/// Steps as a path: each value holds over its interval. What is not known leaves a gap.
pub(super) fn steps(panel: &Panel, values: &[f64], step: f64) -> String {
    let mut path = String::new();
    let mut pen_down = false;
    for (i, value) in values.iter().enumerate() {
        if !value.is_finite() {
            pen_down = false;
            continue;
        }
        let (left, right) = (panel.px(i as f64 * step), panel.px((i + 1) as f64 * step));
        let verb = if pen_down { 'V' } else { 'M' };
        if pen_down {
            let _ = write!(path, "{verb}{}H{}", At(panel.py(*value)), At(right));
        } else {
            let _ = write!(path, "{verb}{} {}H{}", At(left), At(panel.py(*value)), At(right));
        }
        pen_down = true;
    }
    path
}

/// Means of equal groups of values so that at most `most` are left, and how many went into each.
pub(super) fn thinned(values: &[f32], most: usize) -> (Vec<f64>, usize) {
    let group = values.len().div_ceil(most.max(1)).max(1);
    (values.chunks(group).map(|chunk| mean(chunk.iter().map(|v| f64::from(*v)))).collect(), group)
}

/// The mean of the values that are known; not a number when none is.
pub(super) fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, n) =
        values.filter(|v| v.is_finite()).fold((0.0, 0u32), |(sum, n), v| (sum + v, n.saturating_add(1)));
    if n == 0 { f64::NAN } else { sum / f64::from(n) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(ticks: Vec<(f64, String)>) -> Vec<String> {
        ticks.into_iter().map(|(_, label)| label).collect()
    }

    #[test]
    fn axes_end_at_round_values() {
        assert_eq!(ticks(0.93, 5), [0.0, 0.2, 0.4, 0.6000000000000001, 0.8, 1.0]);
        assert_eq!(ticks(39.0, 4), [0.0, 10.0, 20.0, 30.0, 40.0]);
        assert_eq!(ticks(400.0, 4), [0.0, 100.0, 200.0, 300.0, 400.0]);
        assert_eq!(texts(labelled(ticks(0.93, 5))), ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]);
        for odd in [0.0, -1.0, f64::NAN, f64::INFINITY, f64::MAX] {
            assert_eq!(ticks(odd, 5), [0.0, 1.0]);
        }
        assert!(ticks(1e-300, 5).len() < 10);
    }

    #[test]
    fn clocks() {
        assert_eq!(texts(time_ticks(0.0, 2.2 * 3600.0, 5)), ["0", "30 min", "1 h", "1 h 30", "2 h"]);
        assert_eq!(texts(time_ticks(0.0, 100.0, 4)), ["0", "30 s", "1 min", "1 min 30 s"]);
        assert_eq!(texts(time_ticks(1000.0, 2000.0, 4)), ["20 min", "25 min", "30 min"]);
        assert_eq!(texts(time_ticks(0.0, 40.0 * 86_400.0, 4)), ["0", "10 d", "20 d", "30 d", "40 d"]);
        assert_eq!(texts(time_ticks(0.0, f64::NAN, 4)), ["0"]);
        assert!(time_ticks(0.0, 1.8e16, 8).len() < 12);
    }

    #[test]
    fn labels_stay_within_the_drawing_and_apart() {
        let panel =
            Panel { x: 66.0, y: 0.0, w: WIDTH - 66.0 - 14.0, h: 10.0, x_min: 0.0, x_max: 100.0, y_max: 1.0 };
        let at = |ticks: &[(f64, &str)]| -> Vec<(f64, String)> {
            let ticks: Vec<(f64, String)> =
                ticks.iter().map(|(at, text)| (*at, (*text).to_owned())).collect();
            let mut out = String::new();
            panel.x_axis(&mut out, &ticks, Some(WIDTH));
            let texts = out.split("<text class=\"tick\" x=\"").skip(1);
            let parsed = texts.map(|text| {
                let (x, rest) = text.split_once('"').unwrap();
                let label = rest.split_once('>').unwrap().1.split('<').next().unwrap();
                (x.parse().unwrap(), label.to_owned())
            });
            parsed.collect()
        };
        let shown = at(&[(0.0, "0"), (50.0, "50 s"), (100.0, "1 min 40 s")]);
        assert_eq!((shown[0].0, shown[1].0), (66.0, 626.0));
        assert!(shown[2].0 + tick_width("1 min 40 s") / 2.0 <= WIDTH, "{shown:?}");
        let shown = at(&[(94.0, "1 min 34 s"), (100.0, "1 min 40 s")]);
        assert_eq!((shown.len(), shown[0].1.as_str()), (1, "1 min 34 s"));
    }

    #[test]
    fn gaps_are_gaps() {
        let panel = Panel { x: 0.0, y: 0.0, w: 40.0, h: 10.0, x_min: 0.0, x_max: 4.0, y_max: 1.0 };
        assert_eq!(steps(&panel, &[0.5, 1.0, f64::NAN, 0.0], 1.0), "M0 5H10V0H20M30 10H40");
        assert_eq!(steps(&panel, &[], 1.0), "");
        assert_eq!(At(f64::NAN).to_string(), "0");
        assert_eq!(At(-0.01).to_string(), "0");
    }

    #[test]
    fn thinning_keeps_the_mean() {
        assert_eq!(thinned(&[1.0, 3.0, 5.0, f32::NAN, 9.0], 3), (vec![2.0, 5.0, 9.0], 2));
        assert_eq!(thinned(&[], 3), (vec![], 1));
    }
}

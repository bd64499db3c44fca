//! Text on the page: what comes from outside made harmless, numbers made readable.

use std::fmt::{self, Display, Write as _};

/// What stands for a figure that is not known.
pub(super) const UNKNOWN: &str = "–";

/// The most characters of a name that are shown.
const LONGEST: usize = 200;

/// Text from outside, safe between tags and within quoted attributes.
///
/// Names of jobs and tasks come from traces that others wrote. Beside what HTML needs, control
/// characters (not allowed in HTML) and the marks that reverse the reading direction are replaced, and
/// overlong names are cut.
pub struct Esc<'a>(pub &'a str);

impl Display for Esc<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_escaped(f, self.0, LONGEST)
    }
}

/// The same of text of ours, which is as long as it has to be.
pub struct Whole<'a>(pub &'a str);

impl Display for Whole<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_escaped(f, self.0, usize::MAX)
    }
}

/// The same, cut to a number of characters that fits a label.
pub(super) struct Short<'a>(pub(super) &'a str, pub(super) usize);

impl Display for Short<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_escaped(f, self.0, self.1)
    }
}

fn write_escaped(f: &mut fmt::Formatter<'_>, text: &str, most: usize) -> fmt::Result {
    for (i, c) in text.chars().enumerate() {
        if i + 1 >= most && text.chars().nth(most).is_some() {
            return f.write_char('…');
        }
        match c {
            '&' => f.write_str("&amp;")?,
            '<' => f.write_str("&lt;")?,
            '>' => f.write_str("&gt;")?,
            '"' => f.write_str("&quot;")?,
            '\'' => f.write_str("&#39;")?,
            c if c.is_control() => f.write_char('\u{fffd}')?,
            '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
                f.write_char('\u{fffd}')?;
            }
            c => f.write_char(c)?,
        }
    }
    Ok(())
}

/// A number with the given decimals, a narrow blank between thousands and a true minus sign.
pub(super) fn fixed(value: f64, decimals: usize) -> String {
    if !value.is_finite() {
        return UNKNOWN.into();
    }
    if value.abs() >= 1e15 {
        return format!("{value:.2e}");
    }
    let text = format!("{:.decimals$}", value.abs());
    let (whole, fraction) = text.split_once('.').map_or((text.as_str(), None), |(w, f)| (w, Some(f)));
    let mut out = String::new();
    // Not for what rounds to zero.
    if value < 0.0 && text.chars().any(|c| c.is_ascii_digit() && c != '0') {
        out.push('−');
    }
    for (i, digit) in whole.chars().enumerate() {
        if i > 0 && whole.len() > 4 && (whole.len() - i).is_multiple_of(3) {
            out.push('\u{202f}');
        }
        out.push(digit);
    }
    if let Some(fraction) = fraction {
        let _ = write!(out, ".{fraction}");
    }
    out
}

/// A number with about three significant digits.
pub(super) fn number(value: f64) -> String {
    fixed(value, decimals(value))
}

/// The decimals that show about three significant digits of numbers up to `most`.
pub(super) fn decimals(most: f64) -> usize {
    match most.abs() {
        a if a >= 99.95 => 0,
        a if a >= 9.995 => 1,
        _ => 2,
    }
}

/// A whole number.
pub(super) fn count(value: u64) -> String {
    // Exact up to 2^53, beyond which nobody counts jobs.
    fixed(value as f64, 0)
}

/// A span of time as people say it, from seconds: `42 s`, `3 min 20 s`, `2 h 05 min`, `3 d 04 h`.
pub(super) fn span(seconds: f64) -> String {
    if !seconds.is_finite() {
        return UNKNOWN.into();
    }
    if seconds < 0.0 {
        return format!("−{}", span(-seconds));
    }
    if seconds > 0.0 && seconds < 1.0 {
        return format!("{} ms", fixed(seconds * 1000.0, 0));
    }
    let s = seconds.round() as u64;
    let (big, unit, small, small_unit) = match s {
        0..=59 => return format!("{s} s"),
        60..=3599 => (s / 60, "min", s % 60, "s"),
        3600..=86_399 => (s / 3600, "h", s % 3600 / 60, "min"),
        _ => (s / 86_400, "d", s % 86_400 / 3600, "h"),
    };
    if small == 0 { format!("{big} {unit}") } else { format!("{big} {unit} {small:02} {small_unit}") }
}

/// A unit to show a column or an axis in: name, and how many of the base unit it is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Unit {
    /// Name in the legend.
    pub(super) name: &'static str,
    /// Size in the base unit.
    pub(super) size: f64,
}

impl Unit {
    /// The value in this unit.
    pub(super) fn of(self, value: f64) -> f64 {
        value / self.size
    }
}

/// The unit of time that suits spans up to `most` seconds.
pub(super) fn time_unit(most: f64) -> Unit {
    if most >= 3600.0 {
        Unit { name: "h", size: 3600.0 }
    } else if most >= 120.0 {
        Unit { name: "min", size: 60.0 }
    } else {
        Unit { name: "s", size: 1.0 }
    }
}

/// The unit of energy that suits up to `most` joules.
pub(super) fn energy_unit(most: f64) -> Unit {
    if most >= 1e9 {
        Unit { name: "GJ", size: 1e9 }
    } else if most >= 1e6 {
        Unit { name: "MJ", size: 1e6 }
    } else if most >= 1e3 {
        Unit { name: "kJ", size: 1e3 }
    } else {
        Unit { name: "J", size: 1.0 }
    }
}

/// Joules as kilowatt-hours or watt-hours.
pub(super) fn watt_hours(joules: f64) -> String {
    let wh = joules / 3600.0;
    if wh.abs() >= 100.0 { format!("{} kWh", number(wh / 1000.0)) } else { format!("{} Wh", number(wh)) }
}

/// The largest finite value, 0 when there is none.
pub(super) fn largest(values: impl IntoIterator<Item = f64>) -> f64 {
    values.into_iter().filter(|v| v.is_finite()).fold(0.0, f64::max)
}

/// `1 GPU`, `2 GPUs`.
pub(super) fn plural(n: u64, one: &str, many: &str) -> String {
    format!("{} {}", count(n), if n == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_from_outside_becomes_markup() {
        assert_eq!(
            Esc("<script>alert('x')</script> & \"y\"").to_string(),
            "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt; &amp; &quot;y&quot;"
        );
        assert_eq!(Esc("a\0b\u{1b}[2J\u{202e}c").to_string(), "a\u{fffd}b\u{fffd}[2J\u{fffd}c");
        assert_eq!(Esc("数 é").to_string(), "数 é");
    }

    #[test]
    fn long_names_are_cut() {
        assert_eq!(Short("abcdef", 6).to_string(), "abcdef");
        assert_eq!(Short("abcdefg", 6).to_string(), "abcde…");
        assert_eq!(Short("<<<<<<<", 3).to_string(), "&lt;&lt;…");
        assert_eq!(Esc(&"x".repeat(100_000)).to_string().chars().count(), 200);
    }

    #[test]
    fn numbers() {
        assert_eq!(
            [number(0.123_4), number(12.34), number(123.4), number(99.96)],
            ["0.12", "12.3", "123", "100"]
        );
        assert_eq!(fixed(1_234_567.8, 1), "1\u{202f}234\u{202f}567.8");
        assert_eq!(fixed(1234.0, 0), "1234");
        assert_eq!([fixed(-3.21, 1), fixed(-0.001, 1), fixed(f64::NAN, 1)], ["−3.2", "0.0", "–"]);
        assert_eq!(fixed(1e300, 1), "1.00e300");
        assert_eq!(count(0), "0");
    }

    #[test]
    fn spans() {
        assert_eq!(span(0.25), "250 ms");
        assert_eq!(
            [span(0.0), span(42.0), span(200.0), span(7500.0)],
            ["0 s", "42 s", "3 min 20 s", "2 h 05 min"]
        );
        assert_eq!(span(273_600.0), "3 d 04 h");
        assert_eq!([span(120.0), span(7200.0)], ["2 min", "2 h"]);
        assert_eq!(span(f64::INFINITY), "–");
        assert_eq!(span(-42.0), "−42 s");
    }

    #[test]
    fn units() {
        assert_eq!(time_unit(7200.0).name, "h");
        assert_eq!(time_unit(600.0).of(600.0), 10.0);
        assert_eq!(energy_unit(3.2e7).of(3.2e7), 32.0);
        assert_eq!(watt_hours(3.6e6), "1.00 kWh");
        assert_eq!(largest([f64::NAN, 2.0, f64::INFINITY]), 2.0);
    }
}

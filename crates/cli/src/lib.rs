//! What carma's command lines share: how answers look (tables and blocks for people, JSON for programs), and how
//! commands fail.
//!
//! What renders is a function from a reply and a [`Screen`] to a text, so that tests read what users
//! read.

pub mod failure;
mod json;
mod table;
mod time;

pub use json::print_json;
pub use table::{Column, JOINED, Table, blocks, cut_to, sparing, sparing_after_names};
pub use time::{short_stamp, span, stamp, time_of_day};

use carma_api::parse;
use jiff::tz::TimeZone;
use rustix::termios::{isatty, tcgetwinsize};
use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, Write};

/// What the text is for.
#[derive(Debug, Clone)]
pub struct Screen {
    /// Columns of the terminal; `None`: not a terminal, lines may have any length.
    pub width: Option<u16>,
    /// Lines of the terminal; `None`: not a terminal, or one that does not tell.
    pub height: Option<u16>,
    /// Whether state words may be coloured.
    pub colour: bool,
    /// Time zone of the times shown.
    pub zone: TimeZone,
}

impl Screen {
    /// Standard output. Colours need a terminal, and that nobody set `NO_COLOR`.
    pub fn stdout() -> Self {
        let out = io::stdout();
        let size = isatty(&out).then(|| tcgetwinsize(&out).map_or((0, 0), |size| (size.ws_col, size.ws_row)));
        // Serial lines do not know their width.
        let width = size.map(|(columns, _)| if columns == 0 { 80 } else { columns });
        let height = size.map(|(_, rows)| rows).filter(|rows| *rows > 0);
        let plain = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty())
            || std::env::var_os("TERM").is_some_and(|v| v == "dumb");
        Self { width, height, colour: width.is_some() && !plain, zone: TimeZone::system() }
    }

    /// The same without a limit on the length of lines or their number.
    pub fn unlimited(self) -> Self {
        Self { width: None, height: None, ..self }
    }
}

impl Screen {
    /// For tests: UTC, no colour.
    #[must_use]
    pub fn of_width(width: Option<u16>) -> Self {
        Self { width, height: None, colour: false, zone: TimeZone::UTC }
    }
}

/// Prints a finished text.
pub fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Text from others, made harmless: names and log lines may hold control characters that would move
/// the cursor, colour the screen or write to the clipboard of a user who lists the queue.
pub fn clean(text: &str) -> Cow<'_, str> {
    // Besides controls: what reverses the reading direction or is not seen, with which a line can lie.
    let harmful = |c: char| c.is_control() || parse::is_deceptive(c);
    if !text.contains(harmful) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if harmful(c) {
            safe.extend(c.escape_default());
        } else {
            safe.push(c);
        }
    }
    Cow::Owned(safe)
}

/// Four figures that count; powers of ten for what is very large or small.
pub fn figure(value: f64) -> String {
    if !value.is_finite() || value == 0.0 {
        return format!("{value}");
    }
    if !(1e-3..1e6).contains(&value.abs()) {
        return format!("{value:.3e}");
    }
    let digits = (3 - value.abs().log10().floor() as i32).clamp(0, 9) as usize;
    format!("{value:.digits$}")
}

/// A command as one could type it into a shell.
pub fn shell_line(words: &[String]) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-+=./:,@%^".contains(c);
    let quoted = |word: &String| {
        if !word.is_empty() && word.chars().all(plain) {
            word.clone()
        } else {
            format!("'{}'", word.replace('\'', r"'\''"))
        }
    };
    words.iter().map(quoted).collect::<Vec<_>>().join(" ")
}

/// `Key:   value` lines, aligned. Values that run over the width go on under themselves.
#[derive(Debug, Default)]
pub struct Block {
    lines: Vec<(&'static str, String)>,
}

impl Block {
    /// Adds a line.
    pub fn line(&mut self, key: &'static str, value: impl Into<String>) -> &mut Self {
        self.lines.push((key, value.into()));
        self
    }

    /// Adds a line if there is a value.
    pub fn line_if(&mut self, key: &'static str, value: Option<String>) -> &mut Self {
        if let Some(value) = value {
            self.line(key, value);
        }
        self
    }

    /// As text.
    pub fn render(&self, screen: &Screen) -> String {
        let indent = self.lines.iter().map(|(key, _)| key.len() + 2).max().unwrap_or(0);
        let mut text = String::new();
        for (key, value) in &self.lines {
            let key = format!("{key}:");
            for (i, part) in wrap(&clean(value), screen, indent).iter().enumerate() {
                let head = if i == 0 { key.as_str() } else { "" };
                let _ = writeln!(text, "{}", format!("{head:<indent$}{part}").trim_end());
            }
        }
        text
    }
}

/// Cuts a text to what fills so many lines beside an indentation; on anything but a terminal it stays whole.
pub fn clip(text: &str, screen: &Screen, indent: usize, lines: usize) -> String {
    let mut wrapped = wrap(text, screen, indent);
    if wrapped.len() <= lines {
        return text.to_owned();
    }
    wrapped.truncate(lines);
    let room = screen.width.map_or(usize::MAX, |width| usize::from(width).saturating_sub(indent));
    if let Some(last) = wrapped.last_mut() {
        let kept: String = last.chars().take(room.saturating_sub(1)).collect();
        *last = format!("{}…", kept.trim_end());
    }
    wrapped.join(" ")
}

/// Says which columns a narrow screen went without; nothing where it has all.
pub fn spared_line(spared: &[&str]) -> Option<String> {
    (!spared.is_empty()).then(|| format!("Not shown, as this screen is narrow: {}.", spared.join(", ")))
}

/// Splits a text into lines that fit beside an indentation, at blanks. A word longer than the line
/// stays whole, so that paths can be copied.
pub fn wrap(text: &str, screen: &Screen, indent: usize) -> Vec<String> {
    let room = match screen.width {
        // On a very narrow screen the terminal wraps as well as we could.
        Some(width) if usize::from(width) >= indent + 20 => usize::from(width) - indent,
        _ => return vec![text.to_owned()],
    };
    let mut lines = vec![String::new()];
    let mut length = 0;
    for word in text.split(' ') {
        let chars = word.chars().count();
        if length > 0 && length + 1 + chars > room {
            lines.push(String::new());
            length = 0;
        }
        if let Some(line) = lines.last_mut() {
            if length > 0 {
                line.push(' ');
                length += 1;
            }
            line.push_str(word);
            length += chars;
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_writes_to_the_terminal_through_a_name() {
        assert_eq!(clean("train é 数"), "train é 数");
        assert_eq!(clean("a\x1b[2Jb\n\u{9b}c\u{202e}"), "a\\u{1b}[2Jb\\n\\u{9b}c\\u{202e}");
        assert_eq!(clean("roo\u{200b}t\u{feff}"), "roo\\u{200b}t\\u{feff}");
    }

    #[test]
    fn figures_count() {
        let of = |value: f64| figure(value);
        assert_eq!([of(0.0), of(21.6), of(487.0), of(123_456.7)], ["0", "21.60", "487.0", "123457"]);
        assert_eq!([of(0.00123), of(0.000_21), of(-1.5e6)], ["0.001230", "2.100e-4", "-1.500e6"]);
        assert_eq!([of(1e308), of(f64::NEG_INFINITY)], ["1.000e308", "-inf"]);
    }

    #[test]
    fn commands_can_be_pasted() {
        let words = ["sh", "-c", "echo 'a' $B", "", "--lr=1e-3"].map(String::from);
        assert_eq!(shell_line(&words), r"sh -c 'echo '\''a'\'' $B' '' --lr=1e-3");
    }

    #[test]
    fn long_values_go_on_under_themselves() {
        let mut block = Block::default();
        block.line("job", "7").line("reason", "one two three four five six seven");
        block.line_if("pid", None);
        insta::assert_snapshot!(block.render(&Screen::of_width(Some(30))), @r"
        job:    7
        reason: one two three four
                five six seven
        ");
        assert_eq!(block.render(&Screen::of_width(None)).lines().count(), 2);
    }

    #[test]
    fn what_is_too_long_is_cut_on_a_terminal() {
        let text = "one two three four five six seven";
        assert_eq!(clip(text, &Screen::of_width(Some(30)), 8, 1), "one two three four…");
        assert_eq!(clip(text, &Screen::of_width(Some(30)), 8, 2), text);
        assert_eq!(clip(text, &Screen::of_width(None), 8, 1), text);
    }

    #[test]
    fn words_are_never_cut() {
        let screen = Screen::of_width(Some(24));
        assert_eq!(
            wrap("/a/very/long/path/that/has/no/blank x", &screen, 0),
            ["/a/very/long/path/that/has/no/blank", "x"]
        );
        assert_eq!(wrap("", &screen, 0), [""]);
        assert_eq!(wrap("two words", &Screen::of_width(Some(10)), 4), ["two words"]);
    }
}

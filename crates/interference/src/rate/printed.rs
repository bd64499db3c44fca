//! Finds progress in what a task prints, byte by byte as it comes.
//!
//! Bars end in a carriage return, a cursor movement or nothing at all until the next one is drawn; colours stand
//! between the figures. What is kept is one line, cut at a fixed length.

use super::latency::{self, Told};
use super::{Said, line};

/// Longest line that is read; the rest of a longer one is passed over. Bars that fill a wide terminal have three
/// bytes a column.
const LONGEST: usize = 2048;
/// A line without an end is taken for whole when nothing has come for this long, seconds.
const SETTLED_S: f64 = 0.2;

/// What a task printed of its progress, and when.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// When the text came, seconds on the caller's clock.
    pub at_s: f64,
    /// What it says.
    pub said: Said,
}

/// What a server printed of its latency, and when: seconds on the caller's clock.
pub type Latency = (f64, Told);

/// Latencies of one call that are kept.
const MOST_LATENCIES: usize = 4096;

/// Where in an escape sequence the last byte was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Escape {
    #[default]
    None,
    /// After ESC.
    Begun,
    /// In a control sequence (`ESC [ ... letter`).
    Control,
    /// In a command to the terminal (`ESC ] ... BEL`), which may end in `ESC \`.
    Command,
}

/// Reads one stream of output.
#[derive(Debug, Clone, Default)]
pub struct Printed {
    line: Vec<u8>,
    /// When the last byte of the line came.
    at_s: f64,
    escape: Escape,
    /// Whether the line was read already, because it had settled.
    read: bool,
    latencies: Vec<Latency>,
}

impl Printed {
    /// A stream from its beginning.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes in what came at `at_s`, and adds what it tells to `reports`. A report bears the time of its own text,
    /// not that of the line end, which with bars comes as late as the next bar.
    pub fn feed(&mut self, at_s: f64, bytes: &[u8], reports: &mut Vec<Report>) {
        for &byte in bytes {
            match (self.escape, byte) {
                (_, 0x1b) => self.escape = Escape::Begun,
                (Escape::Begun, b'[') => self.escape = Escape::Control,
                (Escape::Begun, b']' | b'P' | b'_' | b'^') => self.escape = Escape::Command,
                (Escape::Begun, _) => self.escape = Escape::None,
                (Escape::Control, 0x40..=0x7e) => {
                    self.escape = Escape::None;
                    // Colours stand inside a line; everything else moves to another or wipes this one.
                    if byte != b'm' {
                        self.end(reports);
                    }
                }
                (Escape::Control, 0x20..=0x3f) | (Escape::Command, 0x20..=0x7e | 0x80..) => {}
                (Escape::Command, 0x07) => self.escape = Escape::None,
                // A sequence that breaks off, at the end of a line for instance.
                (_, b'\n' | b'\r') => {
                    self.escape = Escape::None;
                    self.end(reports);
                }
                // Older Keras goes back to the line's start with as many of these as it takes.
                (Escape::None, 0x08) => self.end(reports),
                (Escape::Control | Escape::Command, _) => self.escape = Escape::None,
                (Escape::None, _) => {
                    if self.line.len() < LONGEST {
                        self.line.push(byte);
                    }
                    self.at_s = at_s;
                    self.read = false;
                }
            }
        }
    }

    /// Reads a last line without an end if nothing has been added to it for a while.
    pub fn settle(&mut self, now_s: f64, reports: &mut Vec<Report>) {
        if !self.read && !self.line.is_empty() && now_s - self.at_s >= SETTLED_S {
            self.look(reports);
            self.read = true;
        }
    }

    /// Something of the stream is missing here. A line that has no end yet is dropped: half a number is another number.
    pub fn tear(&mut self) {
        self.line.clear();
        (self.escape, self.read) = (Escape::None, false);
    }

    /// The stream is at its end.
    pub fn finish(&mut self, reports: &mut Vec<Report>) {
        self.end(reports);
    }

    /// The latencies that were printed since the last call.
    pub fn latencies(&mut self) -> impl Iterator<Item = Latency> {
        std::mem::take(&mut self.latencies).into_iter()
    }

    fn end(&mut self, reports: &mut Vec<Report>) {
        if !self.read {
            self.look(reports);
        }
        self.line.clear();
        self.read = false;
    }

    fn look(&mut self, reports: &mut Vec<Report>) {
        // Most lines of a log tell no figure.
        if !self.line.iter().any(u8::is_ascii_digit) {
            return;
        }
        let text = String::from_utf8_lossy(&self.line);
        let at_s = self.at_s;
        if let Some(told) = latency::read(&text).filter(|_| self.latencies.len() < MOST_LATENCIES) {
            self.latencies.push((at_s, told));
        }
        reports.extend(line::read(&text).into_iter().map(|said| Report { at_s, said }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(text: &[u8]) -> Vec<(String, f64)> {
        let mut reports = Vec::new();
        let mut printed = Printed::new();
        printed.feed(0.0, text, &mut reports);
        printed.finish(&mut reports);
        reports.into_iter().map(|r| (r.said.unit, r.said.count.unwrap())).collect()
    }

    fn it(counts: &[f64]) -> Vec<(String, f64)> {
        counts.iter().map(|count| ("it".to_owned(), *count)).collect()
    }

    #[test]
    fn bars_are_drawn_over_each_other() {
        let text = "\r  0%|          | 0/1000 [00:00<?, ?it/s]\r 45%|\u{2588}\u{2588}  | 450/1000 [00:12<00:15, 36.2it/s]\
                    \r100%|\u{2588}\u{2588}\u{2588}| 1000/1000 [00:27<00:00, 36.2it/s]\n";
        assert_eq!(counts(text.as_bytes()), it(&[0.0, 450.0, 1000.0]));
    }

    #[test]
    fn cut_anywhere_it_reads_the_same() {
        let text = "\x1b[32mEpoch 1:\x1b[0m 45%|\u{2588} | 450/1000 [00:12<00:15, 36.2it/s]\rstep 7/9\n\x1b[1A\x1b[2K\
                    \x1b]0;title step 3/9\x07 iter 12\n";
        let whole = counts(text.as_bytes());
        assert_eq!(whole, [("it".into(), 450.0), ("steps".into(), 7.0), ("it".into(), 12.0)]);
        for cut in 0..text.len() {
            let mut reports = Vec::new();
            let mut printed = Printed::new();
            let (a, b) = text.as_bytes().split_at(cut);
            printed.feed(0.0, a, &mut reports);
            printed.feed(0.1, b, &mut reports);
            printed.finish(&mut reports);
            let parts: Vec<_> = reports.into_iter().map(|r| (r.said.unit, r.said.count.unwrap())).collect();
            assert_eq!(parts, whole, "cut at {cut}");
        }
    }

    #[test]
    fn a_report_bears_the_time_of_its_text() {
        let (mut printed, mut reports) = (Printed::new(), Vec::new());
        printed.feed(1.0, b"step 5/10", &mut reports);
        printed.settle(1.1, &mut reports);
        assert_eq!(reports.len(), 0, "it may go on");
        printed.settle(1.5, &mut reports);
        assert_eq!(reports.iter().map(|r| r.at_s).collect::<Vec<_>>(), [1.0]);
        printed.settle(2.0, &mut reports);
        printed.feed(9.0, b"\rstep 6/10\r", &mut reports);
        let seen: Vec<_> = reports.iter().map(|r| (r.at_s, r.said.count)).collect();
        assert_eq!(seen, [(1.0, Some(5.0)), (9.0, Some(6.0))]);
    }

    #[test]
    fn a_line_that_is_torn_says_nothing() {
        let (mut printed, mut reports) = (Printed::new(), Vec::new());
        printed.feed(0.0, b"\x1b[3", &mut reports);
        printed.tear();
        printed.feed(0.0, b"step 1", &mut reports);
        printed.tear();
        printed.feed(1.0, b"step 450/1000\nstep 4", &mut reports);
        printed.settle(2.0, &mut reports);
        printed.tear();
        printed.feed(3.0, b"step 451/1000\n", &mut reports);
        let counts: Vec<_> = reports.iter().map(|r| r.said.count.unwrap()).collect();
        assert_eq!(counts, [450.0, 4.0, 451.0], "one that stood for a while was whole");
    }

    #[test]
    fn a_line_without_end_takes_no_more_memory() {
        let (mut printed, mut reports) = (Printed::new(), Vec::new());
        for _ in 0..1000 {
            printed.feed(0.0, &[b'7'; 4096], &mut reports);
        }
        assert!(printed.line.len() <= LONGEST && printed.line.capacity() <= 2 * LONGEST);
        printed.feed(0.0, b"\nstep 5/10\n", &mut reports);
        assert_eq!(reports.len(), 1);
    }
}

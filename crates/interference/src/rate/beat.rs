//! One heartbeat of a task: a datagram to `CARMA_PROGRESS`, or what `CARMA_HEARTBEAT` holds.

use super::Said;
use super::latency::{self, Told};
use super::line::{number, unit_word};

/// Longest text that is read, bytes.
pub const LONGEST: usize = 256;

/// A heartbeat.
#[derive(Debug, Clone, PartialEq)]
pub enum Beat {
    /// One more step is done: an empty datagram.
    Step,
    /// The task gives its count.
    Count(Said),
    /// A server says how long a request took, or its percentile.
    Latency(Told),
}

/// Reads a datagram: nothing is one step; otherwise `N`, `N/M`, `N unit`, `N/M unit`, `latency N unit` or `p99 N unit`. `None`: something else.
#[must_use]
pub fn datagram(bytes: &[u8]) -> Option<Beat> {
    if bytes.len() > LONGEST {
        return None;
    }
    let text = std::str::from_utf8(bytes).ok()?.trim_matches(|c: char| c.is_whitespace() || c == '\0');
    if text.is_empty() {
        return Some(Beat::Step);
    }
    latency::datagram(text).map(Beat::Latency).or_else(|| count(text).map(Beat::Count))
}

/// Reads the end of a heartbeat file: its last line that is whole and holds a count. A task that rewrites the file
/// leaves one line, perhaps without an end; one that appends may be seen in the middle of its last line, which is
/// then passed over: `is_start` says whether `bytes` begin where the file does.
#[must_use]
pub fn file(bytes: &[u8], is_start: bool) -> Option<Said> {
    let text = String::from_utf8_lossy(bytes);
    let mut lines: Vec<&str> = text.split('\n').collect();
    if !is_start && !lines.is_empty() {
        lines.remove(0);
    }
    // A last line without an end counts only where it is the only one: then the file was rewritten.
    if lines.len() > 1 || !is_start {
        lines.pop();
    }
    lines.iter().rev().map(|line| line.trim()).find(|line| !line.is_empty()).and_then(count)
}

fn count(text: &str) -> Option<Said> {
    let (done, rest) = number(text)?;
    let rest = rest.trim_start();
    let (total, rest) = match rest.strip_prefix('/') {
        Some(rest) => {
            let (total, rest) = number(rest.trim_start())?;
            (Some(total), rest.trim_start())
        }
        None => (None, rest),
    };
    let unit = if rest.is_empty() { "steps".to_owned() } else { unit_word(rest)? };
    Some(Said { unit, count: Some(done), total, per_s: None, label: String::new() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(count: f64, total: Option<f64>, unit: &str) -> Said {
        Said { unit: unit.into(), count: Some(count), total, per_s: None, label: String::new() }
    }

    #[test]
    fn datagrams() {
        assert_eq!(datagram(b""), Some(Beat::Step));
        assert_eq!(datagram(b"\n"), Some(Beat::Step));
        assert_eq!(datagram(b"450"), Some(Beat::Count(said(450.0, None, "steps"))));
        assert_eq!(datagram(b"450/1000\n"), Some(Beat::Count(said(450.0, Some(1000.0), "steps"))));
        assert_eq!(datagram(b"450 / 1000 tokens"), Some(Beat::Count(said(450.0, Some(1000.0), "tokens"))));
        assert_eq!(datagram(b"12.5 epochs"), Some(Beat::Count(said(12.5, None, "epochs"))));
        for bad in [&b"-3"[..], b"nan", b"1e400", b"450/", b"x", b"\xff\xfe", b"5 a b", &[b'1'; 300]] {
            assert_eq!(datagram(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn files() {
        let whole = |text: &str| file(text.as_bytes(), true).and_then(|said| said.count);
        assert_eq!(whole(""), None);
        assert_eq!(whole("17"), Some(17.0));
        assert_eq!(whole("17\n"), Some(17.0));
        assert_eq!(whole("17\n18\n19\n"), Some(19.0));
        assert_eq!(whole("17\n18\n1"), Some(18.0), "the last line is not whole");
        assert_eq!(whole("garbage\n"), None);
        assert_eq!(file(b"7\n18\n19\n2", false).and_then(|said| said.count), Some(19.0));
        assert_eq!(file(b"17", false), None, "the beginning of a line that was cut");
    }
}

//! The log as a stream of events.

use super::{End, Header, Ids};
use crate::Error;
use crate::alloc::Event;
use crate::cudnn::Convolution;
use flate2::bufread::MultiGzDecoder;
use serde::Deserialize;
use std::io::{BufRead, BufReader, Read as _};

/// Longest line: the last one lists doubts.
const LONGEST_LINE: usize = 1 << 16;
/// Most bytes that are read, after decompression: a log of 22,000 events has 0.3 MB.
const MOST_BYTES: u64 = 256 << 20;
/// Most lines. Each may be an allocation that is never freed, which takes fifty bytes of memory in the replay.
const MOST_LINES: u64 = 10_000_000;
/// The newest version of the format that this reader knows; 2 brought `v`.
const VERSION: u32 = 2;

enum Input<R: BufRead> {
    Plain(R),
    Gzip(Box<BufReader<MultiGzDecoder<R>>>),
}

/// Events of a log, one after another.
pub struct Reader<R: BufRead> {
    input: Input<R>,
    header: Header,
    end: Option<End>,
    line: Vec<u8>,
    number: u64,
    bytes: u64,
    /// Allocations so far, where they have no names.
    allocations: u64,
}

/// Opens a log: decompresses it if need be and reads its first line.
///
/// # Errors
/// Something else than a log, or a log of a newer version.
pub fn read<R: BufRead>(mut input: R) -> Result<Reader<R>, Error> {
    let start = input.fill_buf().map_err(|e| broken(1, &e))?;
    let gzip = start.starts_with(&[0x1f, 0x8b]);
    let input = if gzip {
        Input::Gzip(Box::new(BufReader::new(MultiGzDecoder::new(input))))
    } else {
        Input::Plain(input)
    };
    let header = Header::default();
    let mut reader =
        Reader { input, header, end: None, line: Vec::new(), number: 0, bytes: 0, allocations: 0 };
    let none = || {
        Error::bad("line 1", "this is no log of carma's tracer: expected {\"format\":\"carma-trace\",...}")
    };
    if !reader.next_line()? || reader.line.first() != Some(&b'{') {
        return Err(none());
    }
    reader.header = serde_json::from_slice(&reader.line).map_err(|_| none())?;
    if reader.header.format != "carma-trace" {
        return Err(none());
    }
    if !(1..=VERSION).contains(&reader.header.version) {
        return Err(Error::bad(
            "line 1",
            format!("the log has version {}, this carma reads up to {VERSION}", reader.header.version),
        ));
    }
    Ok(reader)
}

fn broken(line: u64, error: &std::io::Error) -> Error {
    Error::bad(format!("line {line}"), format!("the log cannot be read: {error}"))
}

/// A JSON line after the first.
#[derive(Deserialize)]
struct More {
    end: Option<End>,
}

impl<R: BufRead> Reader<R> {
    /// The first line.
    #[must_use]
    pub const fn header(&self) -> &Header {
        &self.header
    }

    /// The last line, once it was read; `None` at the end: the log was cut off.
    #[must_use]
    pub const fn end(&self) -> Option<&End> {
        self.end.as_ref()
    }

    /// The next event; `None` at the end of the log.
    ///
    /// # Errors
    /// A line that is no event, with its number; a log beyond all limits.
    pub fn next_event(&mut self) -> Result<Option<Event>, Error> {
        while self.next_line()? {
            if self.line.is_empty() {
                continue;
            }
            if self.line[0] == b'{' {
                let more: More = serde_json::from_slice(&self.line)
                    .map_err(|e| Error::bad(self.place(), format!("not the JSON of a log: {e}")))?;
                if more.end.is_some() {
                    self.end = more.end;
                }
                continue;
            }
            let allocations = (self.header.ids == Ids::Counted).then_some(&mut self.allocations);
            return match event(&self.line, allocations) {
                Some(event) => Ok(Some(event)),
                None => {
                    let text: String = String::from_utf8_lossy(&self.line).chars().take(40).collect();
                    Err(Error::bad(self.place(), format!("no event of a log: `{}`", text.escape_debug())))
                }
            };
        }
        Ok(None)
    }

    fn place(&self) -> String {
        format!("line {}", self.number)
    }

    /// Reads the next line into `self.line`; false at the end.
    fn next_line(&mut self) -> Result<bool, Error> {
        self.number += 1;
        self.line.clear();
        let found = match &mut self.input {
            Input::Plain(input) => take_line(input, &mut self.line),
            Input::Gzip(input) => take_line(input.as_mut(), &mut self.line),
        };
        match found {
            Ok(taken) => self.bytes += taken as u64,
            // A compressed log that was cut off: what is there counts, and the last line is missing.
            Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(false),
            Err(e) => return Err(broken(self.number, &e)),
        }
        let is_whole = self.line.pop_if(|last| *last == b'\n').is_some();
        if self.line.len() > LONGEST_LINE {
            return Err(Error::bad(self.place(), format!("longer than {LONGEST_LINE} bytes")));
        }
        if self.number > MOST_LINES {
            return Err(Error::bad(self.place(), format!("the log has more than {MOST_LINES} lines")));
        }
        if self.bytes > MOST_BYTES {
            return Err(Error::bad(self.place(), format!("the log has more than {} MiB", MOST_BYTES >> 20)));
        }
        if is_whole {
            self.line.pop_if(|last| *last == b'\r');
        }
        // A last line without its end was cut off in the middle, unless it is JSON, which is checked.
        Ok(is_whole || self.line.first() == Some(&b'{'))
    }
}

/// Takes a line with its end, or as much of it as shows that it is too long; says how many bytes that is.
fn take_line(input: &mut impl BufRead, line: &mut Vec<u8>) -> std::io::Result<usize> {
    input.take(LONGEST_LINE as u64 + 1).read_until(b'\n', line)
}

/// Reads a line: a letter, then numbers or a name. `allocations`: how many there were, if they are counted.
fn event(line: &[u8], allocations: Option<&mut u64>) -> Option<Event> {
    let (kind, rest) = line.split_first()?;
    let rest = match rest.split_first() {
        None => rest,
        Some((b' ', rest)) => rest,
        Some(_) => return None,
    };
    match kind {
        b'a' if let Some(count) = allocations => {
            *count += 1;
            Some(Event::Alloc { handle: *count - 1, bytes: number(rest)? })
        }
        b'f' if let Some(count) = allocations => {
            Some(Event::Free { handle: count.checked_sub(1)?.checked_sub(number(rest)?)? })
        }
        b'a' => {
            let space = rest.iter().position(|b| *b == b' ')?;
            Some(Event::Alloc { handle: number(&rest[..space])?, bytes: number(&rest[space + 1..])? })
        }
        b'f' => Some(Event::Free { handle: number(rest)? }),
        b'w' => Some(Event::CublasWorkspace { thread: u8::try_from(number(rest)?).ok()? }),
        b'c' => Some(Event::Convolution { bytes: number(rest)? }),
        b'v' => Convolution::read(std::str::from_utf8(rest).ok()?).map(|c| Event::Cudnn(Box::new(c))),
        b't' => Some(Event::Transient { bytes: number(rest)? }),
        b'e' if rest.is_empty() => Some(Event::EmptyCache),
        b'm' => Some(Event::Mark { name: std::str::from_utf8(rest).ok()?.to_owned() }),
        _ => None,
    }
}

fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0_u64, |n, digit| {
        let digit = digit.checked_sub(b'0').filter(|d| *d < 10)?;
        n.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn lines() {
        let event = |line: &[u8]| event(line, None);
        assert_eq!(event(b"a 12 4096"), Some(Event::Alloc { handle: 12, bytes: 4096 }));
        assert_eq!(event(b"f 12"), Some(Event::Free { handle: 12 }));
        assert_eq!(event(b"w 1"), Some(Event::CublasWorkspace { thread: 1 }));
        assert_eq!(event(b"t 64"), Some(Event::Transient { bytes: 64 }));
        assert_eq!(event(b"e"), Some(Event::EmptyCache));
        assert_eq!(event(b"m step"), Some(Event::Mark { name: "step".into() }));
        for bad in [
            "",
            "a",
            "a 1",
            "a 1 ",
            "a  1",
            "a 1 2 3",
            "a -1 2",
            "f 18446744073709551616",
            "x 1",
            "w 256",
            "e 1",
            "f12",
            "v f 4",
        ] {
            assert_eq!(event(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn counted_lines() {
        let mut count = 0;
        let mut of = |line: &str| event(line.as_bytes(), Some(&mut count));
        assert_eq!(of("f 0"), None);
        assert_eq!(of("a 512"), Some(Event::Alloc { handle: 0, bytes: 512 }));
        assert_eq!(of("a 64"), Some(Event::Alloc { handle: 1, bytes: 64 }));
        assert_eq!(of("f 0"), Some(Event::Free { handle: 1 }));
        assert_eq!(of("f 1"), Some(Event::Free { handle: 0 }));
        assert_eq!(of("f 2"), None);
        assert_eq!(of("a 1 2"), None);
    }
}

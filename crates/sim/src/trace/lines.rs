//! Lines of a text that may be anything: gzipped or not, cut off, binary, endless.
//!
//! Whatever comes, memory stays bounded: a line is refused as soon as it is too long, and the text as
//! soon as it has too many lines or bytes, so that a small gzip file cannot unfold into a large harm.

use super::error::TraceError;
use flate2::bufread::MultiGzDecoder;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

/// How large a text may be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Bytes in one line.
    pub(crate) line: usize,
    /// Number of lines read.
    pub(crate) lines: u64,
    /// Bytes in all, uncompressed.
    pub(crate) bytes: u64,
}

/// The largest public trace has 3.4 million jobs and 343 MB. A job takes about 150 bytes of memory here, and may be
/// five of the file: it is their number that bounds the memory.
pub(crate) const LIMITS: Limits = Limits { line: 1 << 20, lines: 10_000_000, bytes: 2 << 30 };

/// Opens a file for [`unzipped`].
pub(crate) fn open(file: &Path) -> Result<File, TraceError> {
    carma_files::open(file).map_err(|e| TraceError::new(file, 0, e.why.to_string()))
}

/// The text itself: what is gzipped, by its first bytes and not by its name, is unzipped.
pub(crate) fn unzipped<'a>(reader: impl Read + 'a, file: &Path) -> Result<Box<dyn BufRead + 'a>, TraceError> {
    let mut reader = BufReader::new(reader);
    // The first read of a pipe may bring a single byte; a trace comes from a file, where it does not.
    let start = reader.fill_buf().map_err(|e| TraceError::new(file, 0, format!("cannot be read: {e}")))?;
    Ok(if start.starts_with(&[0x1f, 0x8b]) {
        Box::new(BufReader::new(MultiGzDecoder::new(reader)))
    } else {
        Box::new(reader)
    })
}

/// Reads a text line by line.
pub(crate) struct Lines<'a> {
    file: PathBuf,
    input: Box<dyn BufRead + 'a>,
    limits: Limits,
    buffer: Vec<u8>,
    number: u64,
    bytes: u64,
}

impl<'a> Lines<'a> {
    pub(crate) fn new(input: Box<dyn BufRead + 'a>, file: &Path, limits: Limits) -> Self {
        Self { file: file.to_owned(), input, limits, buffer: Vec::new(), number: 0, bytes: 0 }
    }

    /// The next line with its number, without its end, and without the byte order mark of the first;
    /// `None` after the last.
    pub(crate) fn next(&mut self) -> Result<Option<(u64, &str)>, TraceError> {
        self.number += 1;
        let number = self.number;
        let fail = |what: String| Err(TraceError::new(&self.file, number, what));
        self.buffer.clear();
        // One byte more than allowed, so that too much can be told from just enough.
        let most = self.limits.line as u64 + 1;
        match self.input.by_ref().take(most).read_until(b'\n', &mut self.buffer) {
            Ok(0) => return Ok(None),
            Ok(read) => self.bytes += read as u64,
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
                return fail("the compressed file ends too early; it was cut off: fetch it again".into());
            }
            Err(e) => return fail(format!("cannot be read further: {e}")),
        }
        if self.buffer.len() as u64 == most {
            return fail(format!(
                "the line is longer than {} KiB; this is no trace, or its line ends are missing",
                self.limits.line >> 10
            ));
        }
        if number > self.limits.lines {
            return fail(format!("more than {} lines; split the trace", self.limits.lines));
        }
        if self.bytes > self.limits.bytes {
            return fail(format!("more than {} GiB of text; split the trace", self.limits.bytes >> 30));
        }
        if self.buffer.contains(&0) {
            return fail("a NUL byte; this is a binary file, or damaged".into());
        }
        match std::str::from_utf8(&self.buffer) {
            Ok(line) => {
                let line = line.strip_suffix('\n').unwrap_or(line);
                let line = line.strip_suffix('\r').unwrap_or(line);
                if line.contains('\r') {
                    return fail("a carriage return (CR) within the line; lines end with LF or CR LF: convert the file, e.g. with `tr '\\r' '\\n'`".into());
                }
                let line = if number == 1 { line.strip_prefix('\u{feff}').unwrap_or(line) } else { line };
                Ok(Some((number, line)))
            }
            Err(e) => {
                let at = e.valid_up_to() + 1;
                fail(format!("byte {at} of the line is not UTF-8; convert the file, e.g. with iconv"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::repeat;

    const SMALL: Limits = Limits { line: 1024, lines: 4, bytes: 3000 };

    fn all(input: impl Read) -> Result<Vec<String>, String> {
        let file = Path::new("t.csv");
        let input = unzipped(input, file).map_err(|e| e.to_string())?;
        let mut lines = Lines::new(input, file, SMALL);
        let mut found = Vec::new();
        while let Some((_, line)) = lines.next().map_err(|e| e.to_string())? {
            found.push(line.to_owned());
        }
        Ok(found)
    }

    #[test]
    fn line_ends_and_byte_order_marks_are_no_text() {
        assert_eq!(all("\u{feff}a,b\r\nc\n\nd".as_bytes()).unwrap(), ["a,b", "c", "", "d"]);
        assert_eq!(all("".as_bytes()).unwrap(), [""; 0]);
        let error = all("a,b\rc,d\r".as_bytes()).unwrap_err();
        assert!(error.starts_with("t.csv:1: a carriage return"), "{error}");
    }

    #[test]
    fn an_endless_line_is_refused_while_it_is_read() {
        let error = all(repeat(b'x')).unwrap_err();
        assert!(error.starts_with("t.csv:1: the line is longer than 1 KiB"), "{error}");
        assert_eq!(all([b'x'; 1024].as_slice()).unwrap().len(), 1);
    }

    #[test]
    fn there_is_an_end_to_lines_and_bytes() {
        assert!(all("\n\n\n\n\n".as_bytes()).unwrap_err().starts_with("t.csv:5: more than 4 lines"));
        let long = format!("{0}\n{0}\n{0}\n{0}\n", "x".repeat(1000));
        assert!(all(long.as_bytes()).unwrap_err().starts_with("t.csv:3: more than"));
    }

    #[test]
    fn what_is_no_text_is_refused() {
        assert!(all(b"a\nb\0c\n".as_slice()).unwrap_err().starts_with("t.csv:2: a NUL byte"));
        assert!(
            all(b"a\nbc\xff\n".as_slice()).unwrap_err().starts_with("t.csv:2: byte 3 of the line is not")
        );
    }
}

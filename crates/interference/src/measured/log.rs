//! The log of a measurement: one JSON object a line, each written as soon as it is known, so that
//! whatever ends the tool leaves what was measured.

use super::{BadMeasurement, Combination, Machine, Session, TaskNote, VERSION};
use serde::{Deserialize, Serialize};
use std::string::FromUtf8Error;

/// Whether a text is a log, and not a file of results: by its first line, however that is spaced.
pub(super) fn is_log(text: &str) -> bool {
    #[derive(Deserialize)]
    struct Beginning {
        line: String,
    }
    let first = text.trim_start().lines().next().unwrap_or_default();
    serde_json::from_str::<Beginning>(first).is_ok_and(|beginning| beginning.line == "header")
}

/// Whether the torn line with which a log begins may be its header, as it is written here.
fn may_be_header(line: &[u8]) -> bool {
    const BEGINNING: &[u8] = br#"{"line":"header""#;
    let line = line.trim_ascii_start();
    line.starts_with(BEGINNING) || BEGINNING.starts_with(line)
}

/// The bytes of a file of measurements as text. Of a log whose last line is torn, maybe inside a character, that line is left out.
///
/// # Errors
/// Bytes that are no UTF-8 elsewhere.
pub fn text_of(bytes: Vec<u8>) -> Result<String, FromUtf8Error> {
    String::from_utf8(bytes).or_else(|e| {
        let bytes = e.as_bytes();
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        match std::str::from_utf8(&bytes[..whole]) {
            Ok(text) if is_log(text) || text.trim().is_empty() && may_be_header(&bytes[whole..]) => {
                Ok(text.to_owned())
            }
            _ => Err(e),
        }
    })
}

/// A line of the log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "line", rename_all = "snake_case")]
pub enum Line {
    /// The first: what is measured and where.
    Header {
        /// Version of the format, [`VERSION`].
        version: u32,
        /// The machine that was measured on.
        machine: Machine,
        /// The tasks.
        tasks: Vec<TaskNote>,
    },
    /// A task that came later than the header.
    Task(TaskNote),
    /// A call of the tool begins.
    Session(Session),
    /// A window is over. Boxed: it is much larger than the others.
    Combination(Box<Combination>),
}

/// A log, read.
#[derive(Debug, Clone, PartialEq)]
pub struct Log {
    /// Where it was measured.
    pub machine: Machine,
    /// The tasks.
    pub tasks: Vec<TaskNote>,
    /// In order.
    pub sessions: Vec<Session>,
    /// In order, without `progress`.
    pub combinations: Vec<Combination>,
    /// Length of what was read, bytes: less than the text's when its last line is torn.
    pub whole: usize,
}

/// Reads a log. A last line without its end was torn by whatever ended the tool and is left out.
/// `None`: there is no whole line.
///
/// # Errors
/// A line that cannot be read, a first line that is no header (torn ones, too), a second header, a newer version.
pub fn read_log(text: &str) -> Result<Option<Log>, BadMeasurement> {
    let whole = text.rfind('\n').map_or(0, |end| end + 1);
    let mut log: Option<Log> = None;
    for (number, line) in text[..whole].lines().enumerate() {
        let bad = |why: String| Err(BadMeasurement(format!("line {}: {why}", number + 1)));
        if line.trim().is_empty() {
            continue;
        }
        let line = match serde_json::from_str::<Line>(line) {
            Ok(line) => line,
            Err(e) => return bad(format!("not a line of measurements: {e}")),
        };
        match (line, &mut log) {
            (Line::Header { version, .. }, _) if version == 0 || version > VERSION => {
                return bad(format!("version {version} is not known to this program, which reads {VERSION}"));
            }
            (Line::Header { machine, tasks, .. }, None) => {
                log = Some(Log { machine, tasks, sessions: Vec::new(), combinations: Vec::new(), whole });
            }
            (Line::Header { .. }, Some(_)) => return bad("a second header".into()),
            (_, None) => return bad("the header is missing".into()),
            (Line::Task(task), Some(log)) => log.tasks.push(task),
            (Line::Session(session), Some(log)) => log.sessions.push(session),
            (Line::Combination(window), Some(log)) => log.combinations.push(*window),
        }
    }
    // What is torn is cut off before more is written, and a line without its end may be anything.
    if log.is_none() && !may_be_header(&text.as_bytes()[whole..]) {
        let number = text.lines().count();
        return Err(BadMeasurement(format!("line {number}: not a line of measurements, and it has no end")));
    }
    Ok(log)
}

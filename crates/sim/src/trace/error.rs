//! What is wrong with a trace, and where.

use std::path::{Path, PathBuf};

/// Why a trace, a catalogue or a public data set cannot be used.
///
/// Shown as `FILE:LINE: what is wrong, why, what to do`; the line is left out where no single one is
/// to blame, the file where there is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{what}", place(file, *line))]
pub struct TraceError {
    /// The file; empty when the fault lies in no file.
    pub file: PathBuf,
    /// Its line, from 1; 0: the file as a whole.
    pub line: u64,
    /// What is wrong, why, and what to do.
    pub what: String,
}

impl TraceError {
    /// About one line of a file (0: about all of it).
    pub(crate) fn new(file: &Path, line: u64, what: impl Into<String>) -> Self {
        Self { file: file.to_owned(), line, what: what.into() }
    }

    /// About something that stands in no file.
    pub(crate) fn general(what: impl Into<String>) -> Self {
        Self::new(Path::new(""), 0, what)
    }
}

fn place(file: &Path, line: u64) -> String {
    match (file.as_os_str().is_empty(), line) {
        (true, _) => String::new(),
        (false, 0) => format!("{}: ", file.display()),
        (false, line) => format!("{}:{line}: ", file.display()),
    }
}

/// A text from a file for use in a message: short, and without anything that a terminal would obey.
pub(crate) fn shown(text: &str) -> String {
    const MOST: usize = 60;
    let mut short: String = text.chars().take(MOST).flat_map(char::escape_debug).collect();
    if text.chars().nth(MOST).is_some() {
        short.push('…');
    }
    format!("`{short}`")
}

//! Jobs in files: TOML with the words of the command line, and the original's `.rad` files.

mod model;
pub mod rad;
pub mod toml;

pub use model::Model;

use crate::wire::SubmitRequest;
use std::path::PathBuf;

/// What a job file describes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Described {
    /// The job.
    pub request: SubmitRequest,
    /// What is known of the model that it trains.
    pub model: Model,
}

/// A file that does not describe a job.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}:{line}: {what}", file.display())]
pub struct FileError {
    /// Which file.
    pub file: PathBuf,
    /// Line, from 1.
    pub line: usize,
    /// What was found and what was expected.
    pub what: String,
}

/// Largest file that is read, bytes: a job file is a few lines.
pub const MAX_FILE: u64 = 1 << 20;

/// Reads a job file of sensible size as text.
///
/// # Errors
/// When it cannot be read, is larger than [`MAX_FILE`] or is not text.
pub fn read(file: &std::path::Path) -> Result<String, FileError> {
    let fail = |what: String| FileError { file: file.to_owned(), line: 1, what };
    let size = std::fs::metadata(file).map_err(|e| fail(e.to_string()))?.len();
    if size > MAX_FILE {
        return Err(fail(format!("the file has {size} bytes; a job file has at most {MAX_FILE}")));
    }
    let bytes = std::fs::read(file).map_err(|e| fail(e.to_string()))?;
    String::from_utf8(bytes).map_err(|e| {
        let line = e.as_bytes()[..e.utf8_error().valid_up_to()].iter().filter(|b| **b == b'\n').count() + 1;
        FileError { file: file.to_owned(), line, what: "not UTF-8 text".into() }
    })
}

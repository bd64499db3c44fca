//! Jobs in files: TOML with the words of the command line, and the original's `.rad` files.

mod model;
pub mod rad;
pub mod toml;

pub use model::ModelOptions;

use crate::wire::SubmitRequest;
use carma_files::Why;
use std::path::PathBuf;

/// What a job file describes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Described {
    /// The job.
    pub request: SubmitRequest,
    /// What is known of the model that it trains.
    pub model: ModelOptions,
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
/// When it cannot be read, is no regular file, is larger than [`MAX_FILE`] or is not text.
pub fn read(file: &std::path::Path) -> Result<String, FileError> {
    carma_files::read_text(file, MAX_FILE).map_err(|e| {
        let (line, what) = match e.why {
            Why::NotText { line, .. } => (line, "not UTF-8 text".to_owned()),
            why => (1, why.to_string()),
        };
        FileError { file: e.file, line, what }
    })
}

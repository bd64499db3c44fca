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
#[error("{}{}: {what}", file.display(), line.map(|line| format!(":{line}")).unwrap_or_default())]
pub struct FileError {
    /// Which file.
    pub file: PathBuf,
    /// Line, from 1. `None`: it is not read at all.
    pub line: Option<usize>,
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
            Why::NotText { line, .. } => (Some(line), "not UTF-8 text".to_owned()),
            why => (None, why.to_string()),
        };
        FileError { file: e.file, line, what }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_not_there_has_no_line() {
        let dir = tempfile::tempdir().unwrap();
        let none = dir.path().join("none.toml");
        let error = read(&none).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{}: cannot be read: No such file", none.display())), "{error}");
        std::fs::write(&none, b"a = 1\nb = '\xff'\n").unwrap();
        assert_eq!(read(&none).unwrap_err().to_string(), format!("{}:2: not UTF-8 text", none.display()));
    }
}

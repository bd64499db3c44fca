//! Why a file is not read.

use std::fmt::{self, Display};
use std::io;
use std::path::{Path, PathBuf};

/// A file that is not read, and why.
#[derive(Debug, thiserror::Error)]
#[error("{}: {why}", file.display())]
pub struct FileError {
    /// As it was named.
    pub file: PathBuf,
    /// What is wrong with it.
    pub why: Why,
}

/// What is wrong with a file, for who names the file himself.
#[derive(Debug, thiserror::Error)]
pub enum Why {
    /// The system refuses.
    #[error("cannot be read: {0}")]
    Io(#[from] io::Error),
    /// A directory.
    #[error("is a directory; name a file in it")]
    Directory,
    /// A device, pipe or socket.
    #[error("is a {0}, not a regular file; copy what it holds into a file and name that")]
    NotRegular(&'static str),
    /// Too large, as its length says.
    #[error("has {}, at most {} are read of such a file", Size(*size), Size(*limit))]
    TooLarge {
        /// Bytes that it has.
        size: u64,
        /// Bytes that are read.
        limit: u64,
    },
    /// Longer than it said, or of a length that nobody knew.
    #[error("has more than {}, which is the most that is read of such a file", Size(*limit))]
    Longer {
        /// Bytes that are read.
        limit: u64,
    },
    /// Compressed, and too large without it.
    #[error("unpacks to more than {}, which is the most that is read of such a file", Size(*limit))]
    Unpacks {
        /// Bytes that are read.
        limit: u64,
    },
    /// Compressed, and damaged.
    #[error("is not whole gzip: {0}; copy it again")]
    Gzip(io::Error),
    /// Something else than text.
    #[error("is not text in UTF-8: byte {byte}, in line {line}")]
    NotText {
        /// Line of the first byte that is no text, from 1.
        line: usize,
        /// Its place in the file, from 1.
        byte: usize,
    },
}

impl FileError {
    pub(crate) fn new(file: &Path, why: Why) -> Self {
        Self { file: file.to_owned(), why }
    }
}

impl Why {
    pub(crate) fn not_text(error: &std::string::FromUtf8Error) -> Self {
        let at = error.utf8_error().valid_up_to();
        let line = error.as_bytes()[..at].iter().filter(|b| **b == b'\n').count() + 1;
        Self::NotText { line, byte: at + 1 }
    }
}

/// Bytes, for people. Just above a limit a rounded figure would read as the limit itself.
struct Size(u64);

impl Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            n if n > 0 && n % (1 << 30) == 0 => write!(f, "{} GiB", n >> 30),
            n if n > 0 && n % (1 << 20) == 0 => write!(f, "{} MiB", n >> 20),
            n if n >= 16 << 20 => write!(f, "{:.1} MiB ({n} bytes)", n as f64 / f64::from(1 << 20)),
            n => write!(f, "{n} bytes"),
        }
    }
}

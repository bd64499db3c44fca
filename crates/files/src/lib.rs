//! Files that a user names.
//!
//! **Reading.** A name may lead anywhere: to a device that never ends, to a pipe without a writer, to a file
//! larger than the memory, to a few kilobytes of gzip that unpack to as much. Every reader of carma
//! opens its files here: only regular files are opened, nothing waits, and no more is read than the
//! caller allows. [`MOST`] is the usual limit; a reader with a larger one says in its documentation
//! which real files need it.
//!
//! What is read from a pipe on purpose (`carma report -`) goes through [`read_stream`], which has the
//! same limit.
//!
//! **Writing.** [`replace`] writes a file whole or not at all, [`Lock`] lets one program at a time bring one up to date,
//! and a [`Folder`] is a temporary one that goes with the process.

mod error;
mod folder;
mod lock;
mod replace;

pub use error::{FileError, Why};
pub use folder::Folder;
pub use lock::Lock;
pub use replace::replace;

use flate2::read::MultiGzDecoder;
use std::borrow::Cow;
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// The most that is read of a file where nothing else is said: 64 MiB. Configurations, job files,
/// summaries and models are a thousandth of it.
pub const MOST: u64 = 64 << 20;

/// The first bytes of gzip.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// The line of a byte of a text, from 1: for parsers that say where a mistake is in bytes.
#[must_use]
pub fn line_at(text: &str, byte: usize) -> usize {
    let before = &text.as_bytes()[..byte.min(text.len())];
    before.iter().filter(|b| **b == b'\n').count() + 1
}

/// A mistake in a text for people: its line's number, the line itself, cut where it is long, and what is wrong with it.
#[must_use]
pub fn mistake(text: &str, byte: usize, what: &str) -> String {
    const MOST: usize = 60;
    let number = line_at(text, byte);
    let line = text.lines().nth(number - 1).unwrap_or_default().trim();
    let cut: String = line.chars().take(MOST).collect();
    let more = if cut.len() < line.len() { "..." } else { "" };
    format!("line {number}, `{cut}{more}`: {what}")
}

/// Opens a regular file for reading. Nothing else is opened, and nothing is waited for.
///
/// `/dev/null` counts as an empty file, as everywhere.
///
/// # Errors
/// The file is not there, may not be read, or is a directory, device, pipe or socket.
pub fn open(path: &Path) -> Result<File, FileError> {
    open_as(path).map_err(|why| FileError::new(path, why))
}

/// As [`open`], and refuses a file that is larger than `limit` bytes.
///
/// The file may still grow: who reads it bounds the reading as well, with [`Bounded`].
///
/// # Errors
/// As [`open`]; the file is too large.
pub fn open_bounded(path: &Path, limit: u64) -> Result<Bounded<File>, FileError> {
    let file = open(path)?;
    let size = file.metadata().map_err(|e| FileError::new(path, Why::Io(e)))?.len();
    if size > limit {
        return Err(FileError::new(path, Why::TooLarge { size, limit }));
    }
    Ok(Bounded::new(file, limit))
}

/// Reads a whole regular file of at most `limit` bytes.
///
/// # Errors
/// As [`open`]; the file is too large, or cannot be read.
pub fn read(path: &Path, limit: u64) -> Result<Vec<u8>, FileError> {
    collect(open_bounded(path, limit)?).map_err(|why| FileError::new(path, why))
}

/// As [`read`], for text in UTF-8.
///
/// # Errors
/// As [`read`]; a byte that is no UTF-8.
pub fn read_text(path: &Path, limit: u64) -> Result<String, FileError> {
    let bytes = read(path, limit)?;
    String::from_utf8(bytes).map_err(|e| FileError::new(path, Why::not_text(&e)))
}

/// As [`read`]; what is gzip, by its first bytes and not by its name, is unpacked. Neither the file nor
/// what it unpacks to may have more than `limit` bytes.
///
/// # Errors
/// As [`read`]; damaged gzip, or gzip that unpacks to more.
pub fn read_unpacked(path: &Path, limit: u64) -> Result<Vec<u8>, FileError> {
    unpack(read(path, limit)?, limit).map(Cow::into_owned).map_err(|why| FileError::new(path, why))
}

/// Unpacks bytes that are gzip; others stay as they are.
///
/// # Errors
/// Damaged gzip, or gzip that unpacks to more than `limit` bytes.
pub fn unpack<'a>(bytes: impl Into<Cow<'a, [u8]>>, limit: u64) -> Result<Cow<'a, [u8]>, Why> {
    let bytes = bytes.into();
    if !bytes.starts_with(&GZIP) {
        return Ok(bytes);
    }
    let mut text = Vec::new();
    match Bounded::new(MultiGzDecoder::new(&*bytes), limit).read_to_end(&mut text) {
        Ok(_) => Ok(text.into()),
        Err(e) if is_beyond(&e) => Err(Why::Unpacks { limit }),
        Err(e) => Err(Why::Gzip(e)),
    }
}

/// Reads a stream to its end, e.g. standard input: at most `limit` bytes.
///
/// # Errors
/// The stream is longer, or cannot be read.
pub fn read_stream(stream: impl Read, limit: u64) -> Result<Vec<u8>, Why> {
    collect(Bounded::new(stream, limit))
}

/// The number, from 1, of the first line that has more than `most` bytes. A table is refused for one before its cells are
/// taken apart: a line of nothing but separators takes tens of bytes of memory for each.
#[must_use]
pub fn too_long_line(text: &[u8], most: usize) -> Option<usize> {
    text.split(|byte| *byte == b'\n').position(|line| line.len() > most).map(|at| at + 1)
}

/// A reader that fails once more than so many bytes were read, for what is read piece by piece.
#[derive(Debug)]
pub struct Bounded<R> {
    inner: R,
    limit: u64,
    left: u64,
}

impl<R> Bounded<R> {
    /// Lets `limit` bytes pass.
    pub const fn new(inner: R, limit: u64) -> Self {
        Self { inner, limit, left: limit }
    }

    /// The reader within, e.g. to look at its metadata.
    pub const fn get_ref(&self) -> &R {
        &self.inner
    }
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        if self.left == 0 {
            // One byte more tells too much from just enough.
            return match self.inner.read(&mut [0])? {
                0 => Ok(0),
                _ => Err(io::Error::new(io::ErrorKind::FileTooLarge, Why::Longer { limit: self.limit })),
            };
        }
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        let read = self.inner.read(&mut buffer[..most])?;
        self.left = self.left.saturating_sub(read as u64);
        Ok(read)
    }
}

/// Whether an error of a reader came from a [`Bounded`] below it.
#[must_use]
pub fn is_beyond(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| matches!(inner.downcast_ref(), Some(Why::Longer { .. })))
}

fn collect(mut stream: Bounded<impl Read>) -> Result<Vec<u8>, Why> {
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Ok(_) => Ok(bytes),
        Err(e) if is_beyond(&e) => Err(Why::Longer { limit: stream.limit }),
        Err(e) => Err(Why::Io(e)),
    }
}

fn open_as(path: &Path) -> Result<File, Why> {
    // Opening a device can already do something (rewind a tape, start a watchdog): it is looked at first.
    regular(&std::fs::metadata(path)?)?;
    // Between the look and the open the name may have come to lead elsewhere: a pipe must not make us
    // wait for its writer, a terminal must not become ours.
    let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY;
    let file = File::options().read(true).custom_flags(flags.bits().cast_signed()).open(path)?;
    regular(&file.metadata()?)?;
    Ok(file)
}

fn regular(meta: &Metadata) -> Result<(), Why> {
    let kind = meta.file_type();
    if kind.is_file() || (kind.is_char_device() && meta.rdev() == rustix::fs::makedev(1, 3)) {
        return Ok(());
    }
    Err(match () {
        () if kind.is_dir() => Why::Directory,
        () if kind.is_fifo() => Why::NotRegular("pipe"),
        () if kind.is_socket() => Why::NotRegular("socket"),
        () => Why::NotRegular("device"),
    })
}

#[cfg(test)]
mod tests;

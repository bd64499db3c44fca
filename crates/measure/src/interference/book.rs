//! The log beside the results: what was measured is there at once, and what is there is not measured again.

use super::plan::Key;
use crate::Error;
use carma_files::replace;
use carma_interference::measured::{
    Combination, Line, Log, Machine, Measured, Session, TaskNote, VERSION, read_log, text_of,
};
use carma_interference::share::Mode;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

/// An open log.
pub(super) struct Book {
    output: PathBuf,
    path: PathBuf,
    file: File,
    log: Log,
}

/// `mine.log.jsonl` beside `mine.json`.
fn log_beside(output: &Path) -> PathBuf {
    if output.extension().is_some_and(|extension| extension == "json") {
        return output.with_extension("log.jsonl");
    }
    // What follows another dot is part of the name.
    let mut name = output.as_os_str().to_owned();
    name.push(".log.jsonl");
    PathBuf::from(name)
}

/// Whether it is a window of a task alone without limits, which each session measures for itself.
fn is_reference(window: &Combination) -> bool {
    window.k() == 1 && !window.is_split()
}

/// The most that is read of a log, bytes: one of a campaign of a thousand windows has 2 MiB.
const LARGEST: u64 = 256 << 20;

impl Book {
    /// Opens the log beside `output`, or begins it.
    ///
    /// # Errors
    /// A file that cannot be read or written; a log of another GPU, or in which a task of the same name is another.
    pub(super) fn open(output: &Path, machine: &Machine, tasks: &[TaskNote]) -> Result<Self, Error> {
        let path = log_beside(output);
        let failed = |what: &str, e: std::io::Error| Error::new(format!("{what} {}: {e}", path.display()));
        let mut options = File::options();
        let file = options
            .read(true)
            .append(true)
            .create(true)
            .open(&path)
            .map_err(|e| failed("cannot write", e))?;
        // Two that begin one log would both write its header.
        if let Err(std::fs::TryLockError::WouldBlock) = file.try_lock() {
            return Err(Error::new(format!("another carma measures into {}", path.display()))
                .hint("wait for it, or name another --output"));
        }
        if !file.metadata().is_ok_and(|meta| meta.is_file()) {
            return Err(Error::usage(format!("{} is no regular file", path.display()))
                .hint("name another --output: the measurements are kept beside it"));
        }
        let mut bytes = Vec::new();
        carma_files::Bounded::new(&file, LARGEST)
            .read_to_end(&mut bytes)
            .map_err(|e| failed("cannot read", e))?;
        let length = bytes.len();
        let text = text_of(bytes)
            .map_err(|e| failed("cannot read", std::io::Error::new(ErrorKind::InvalidData, e)))?;
        let found = read_log(&text).map_err(|e| {
            Error::new(format!("{}: {e}", path.display()))
                .hint("move it away, or name another --output: then everything is measured anew")
        })?;
        // A line that was torn when the tool ended would spoil the next one.
        let whole = found.as_ref().map_or(0, |log| log.whole);
        if whole < length {
            file.set_len(whole as u64).map_err(|e| failed("cannot shorten", e))?;
        }
        let mut new = Vec::new();
        let log = match found {
            Some(log) => {
                let other = |what: String| {
                    Error::usage(format!("{}: {what}", path.display()))
                        .hint("name another --output for other measurements")
                };
                if log.machine.gpu != machine.gpu {
                    return Err(other(format!(
                        "it was measured on {}, this is {}",
                        log.machine.gpu, machine.gpu
                    )));
                }
                for task in tasks {
                    match log.tasks.iter().find(|known| known.name == task.name) {
                        Some(known) if known != task => {
                            return Err(other(format!(
                                "its task `{}` is another than that of --tasks",
                                task.name
                            )));
                        }
                        Some(_) => {}
                        None => new.push(task.clone()),
                    }
                }
                log
            }
            None => Log {
                machine: machine.clone(),
                tasks: tasks.to_vec(),
                sessions: Vec::new(),
                combinations: Vec::new(),
                whole: 0,
            },
        };
        let mut book = Self { output: output.to_owned(), path, file, log };
        if whole == 0 {
            let (machine, tasks) = (machine.clone(), tasks.to_vec());
            book.write(&Line::Header { version: VERSION, machine, tasks })?;
        }
        for task in new {
            book.write(&Line::Task(task.clone()))?;
            book.log.tasks.push(task);
        }
        Ok(book)
    }

    fn write(&mut self, line: &Line) -> Result<(), Error> {
        let failed = |e: std::io::Error| Error::new(format!("cannot write {}: {e}", self.path.display()));
        let mut text = serde_json::to_vec(line).map_err(|e| failed(e.into()))?;
        text.push(b'\n');
        self.file.write_all(&text).and_then(|()| self.file.flush()).map_err(failed)
    }

    /// Begins a session; its number.
    pub(super) fn begin(
        &mut self,
        sharing: Mode,
        seed: u64,
        gpu_uuid: &str,
        processors_each: Option<usize>,
    ) -> Result<u32, Error> {
        let number = self.log.sessions.iter().map(|session| session.number + 1).max().unwrap_or(0);
        let session = Session {
            number,
            began: jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            sharing,
            carma: env!("CARGO_PKG_VERSION").to_owned(),
            seed,
            gpu_uuid: Some(gpu_uuid.to_owned()),
            processors_each,
        };
        self.write(&Line::Session(session.clone()))?;
        self.log.sessions.push(session);
        Ok(number)
    }

    /// Notes a window.
    pub(super) fn add(&mut self, window: Combination) -> Result<(), Error> {
        let line = Line::Combination(Box::new(window));
        self.write(&line)?;
        if let Line::Combination(window) = line {
            self.log.combinations.push(*window);
        }
        Ok(())
    }

    /// What is measured already; with `retry`, not what failed.
    pub(super) fn done(&self, retry: bool) -> BTreeSet<Key> {
        let counts = |w: &&Combination| w.failed.is_none() || !retry;
        self.log.combinations.iter().filter(counts).map(Key::of).collect()
    }

    /// How many windows this task has alone without limits under this sharing, in all sessions; with `retry`, not those that
    /// failed.
    pub(super) fn references(&self, sharing: Mode, task: &str, retry: bool) -> usize {
        let counts = |w: &&Combination| {
            is_reference(w) && w.sharing == sharing && w.members[0] == task && (w.failed.is_none() || !retry)
        };
        self.log.combinations.iter().filter(counts).count()
    }

    /// Writes the results.
    pub(super) fn finish(&self, left: usize) -> Result<Measured, Error> {
        let mut log = self.log.clone();
        // A window that was measured again after it had failed.
        let good: BTreeSet<Key> =
            log.combinations.iter().filter(|w| w.failed.is_none() && !is_reference(w)).map(Key::of).collect();
        // Alone each session counts from 0 again.
        let mut alone: BTreeMap<(Mode, String), u32> = BTreeMap::new();
        for w in log.combinations.iter().filter(|w| w.failed.is_none() && is_reference(w)) {
            let last = alone.entry((w.sharing, w.members[0].clone())).or_default();
            *last = w.session.max(*last);
        }
        log.combinations.retain(|w| {
            let again = if is_reference(w) {
                alone.get(&(w.sharing, w.members[0].clone())).is_some_and(|last| *last > w.session)
            } else {
                good.contains(&Key::of(w))
            };
            w.failed.is_none() || !again
        });
        let measured = log.assemble(left);
        measured.check().map_err(|e| Error::new(format!("{}: {e}", self.path.display())))?;
        let failed = |e: std::io::Error| Error::new(format!("cannot write {}: {e}", self.output.display()));
        let text = serde_json::to_vec(&measured).map_err(|e| failed(e.into()))?;
        replace(&self.output, &text).map_err(failed)?;
        Ok(measured)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_that_is_torn_anywhere_in_its_last_line_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        let output = dir.path().join("out.json");
        let machine = Machine { gpu: "Virtual H200".into(), cpus: 1, ..Machine::default() };
        let open = || {
            let tasks = [TaskNote { name: "größe".into(), ..TaskNote::default() }];
            Book::open(&output, &machine, &tasks)
        };
        let mut book = open().unwrap();
        book.begin(Mode::Mps, 1, "GPU-1", None).unwrap();
        let whole = std::fs::read(&book.path).unwrap().len();
        let why = "größe ended: kein Speicher für 5 MiB".to_owned();
        let window =
            Combination { members: vec!["größe".into()], failed: Some(why), ..Combination::default() };
        book.add(window).unwrap();
        let path = book.path.clone();
        drop(book);
        let bytes = std::fs::read(&path).unwrap();
        for end in whole..=bytes.len() {
            std::fs::write(&path, &bytes[..end]).unwrap();
            let book = open().map_err(|e| format!("{end}: {e}")).unwrap();
            let left = std::fs::read(&path).unwrap().len();
            assert_eq!(left, if end == bytes.len() { end } else { whole });
            assert_eq!(book.log.combinations.len(), usize::from(end == bytes.len()));
        }
        // What is no text before the last line is another thing.
        let mut spoilt = bytes.clone();
        spoilt[whole - 3] = 0xff;
        std::fs::write(&path, spoilt).unwrap();
        assert!(open().is_err_and(|e| e.message.contains("cannot read")));
    }

    #[test]
    fn a_file_that_is_no_log_stays_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let output = dir.path().join("out.json");
        let machine = Machine { gpu: "Virtual H200".into(), ..Machine::default() };
        for other in [&b"\x93\xff\x00\x12 weights"[..], "einige Wörter".as_bytes(), b"\n\n\xff"] {
            std::fs::write(log_beside(&output), other).unwrap();
            let error = Book::open(&output, &machine, &[]).map(drop).unwrap_err();
            assert!(error.message.contains("out.log.jsonl"), "{}", error.message);
            assert_eq!(std::fs::read(log_beside(&output)).unwrap(), other);
        }
    }

    #[test]
    fn logs_of_different_outputs_differ() {
        let log = |output: &str| log_beside(Path::new(output)).display().to_string();
        assert_eq!(log("a/mine.json"), "a/mine.log.jsonl");
        assert_ne!(log("r.v1"), log("r.v2"));
    }
}

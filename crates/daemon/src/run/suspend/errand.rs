//! The process that makes the driver's calls: carma itself, re-executed, one for each errand.

use super::Driver;
use carma_core::model::ProcessRef;
use carma_gpu::Checkpoint;
use carma_gpu::checkpoint::steps::{Failed, Took, resume, suspend_again, undo};
use carma_gpu::checkpoint::{Pair, cuda};
use carma_process::process;
use carma_virtual_gpu::VirtualCheckpoint;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Argument by which the binary knows that it is to call the driver.
pub const ARGUMENT: &str = "__suspend";

/// Longest book or errand that is read, bytes.
const LONGEST: u64 = 1 << 20;

/// What is to be done.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Errand {
    pub(super) driver: Driver,
    pub(super) work: Work,
    /// The processes that it is about, beside those that the book names.
    pub(super) processes: Vec<ProcessRef>,
    /// Directory of the job's cgroup.
    pub(super) group: Option<PathBuf>,
    pub(super) book: PathBuf,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Work {
    /// They leave their GPUs, and stand still.
    Suspend {
        /// How long each may take to finish its work there.
        lock: Duration,
    },
    /// They come back and go on.
    Resume {
        /// Where to; none: where they were.
        pairs: Vec<Pair>,
    },
    /// What an errand began that was to have them leave is undone.
    Undo,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Answer {
    /// It is done.
    Done(Took),
    /// It is not.
    Failed(Failed),
}

/// Does one errand; it comes on standard input, the answer goes to standard output.
#[must_use]
pub fn main() -> ExitCode {
    let mut text = Vec::new();
    let errand = io::stdin()
        .take(LONGEST)
        .read_to_end(&mut text)
        .and_then(|_| serde_json::from_slice::<Errand>(&text).map_err(io::Error::other));
    let errand = match errand {
        Ok(errand) => errand,
        Err(e) => {
            complain!("carma suspend: no errand on standard input: {e}");
            return ExitCode::from(2);
        }
    };
    let answer = match errand.carry_out() {
        Ok(took) => Answer::Done(took),
        Err(failed) => Answer::Failed(failed),
    };
    // A daemon that is gone asks again when it is back.
    let told = serde_json::to_vec(&answer).map_err(io::Error::other);
    let _ = told.and_then(|text| io::stdout().write_all(&text));
    ExitCode::SUCCESS
}

impl Errand {
    fn carry_out(&self) -> Result<Took, Failed> {
        let failed = |why: String| Failed { why, stuck: None };
        let mut book = Book::open(&self.book)
            .map_err(|e| failed(format!("{} cannot be written: {e}", self.book.display())))?;
        let mut processes = book.processes.clone();
        processes.extend(self.processes.iter().filter(|process| !book.processes.contains(process)));
        // A number that another process has by now does not count.
        processes.retain(|process| process::identify(process.pid) == Some(*process));
        let pids: Vec<u32> = processes.iter().map(|process| process.pid).collect();
        let touched = processes.iter().filter(|process| book.processes.contains(process));
        let touched: Vec<u32> = touched.map(|process| process.pid).collect();
        let driver: Box<dyn Checkpoint> = match &self.driver {
            Driver::Virtual(socket) => Box::new(VirtualCheckpoint::new(socket)),
            Driver::Cuda => {
                let cuda = cuda::open(None).map_err(failed)?;
                cuda.init().map_err(failed)?;
                Box::new(cuda)
            }
        };
        // What stands still answers no call.
        self.freeze(false);
        match &self.work {
            Work::Suspend { .. } if pids.is_empty() => {
                Err(failed("none of its processes uses a GPU now".into()))
            }
            Work::Suspend { lock } => {
                book.write(&processes).map_err(|e| failed(format!("{}: {e}", self.book.display())))?;
                suspend_again(driver.as_ref(), &pids, &touched, *lock)
                    .inspect(|_| self.freeze(true))
                    .inspect_err(|failed| {
                        if failed.stuck.is_none() {
                            book.forget();
                        }
                    })
            }
            Work::Resume { pairs } => resume(driver.as_ref(), &pids, pairs)
                .inspect_err(|failed| self.freeze(failed.stuck.is_none()))
                .inspect(|_| book.forget()),
            Work::Undo => undo(driver.as_ref(), &pids).inspect(|_| book.forget()),
        }
    }

    /// Has the whole job stand still or go on, where it has a cgroup. Its processes that use no GPU would else go on as far
    /// as they can without the others.
    fn freeze(&self, on: bool) {
        if let Some(group) = &self.group
            && let Err(e) = std::fs::write(group.join("cgroup.freeze"), if on { "1" } else { "0" })
        {
            complain!("carma suspend: {}: {e}", group.display());
        }
    }
}

/// Whether errands with this book that were given up may have touched a process. Of a book that cannot be read that is not known.
pub(super) fn may_have_touched(book: &Path) -> bool {
    match File::options().read(true).custom_flags(libc::O_NOFOLLOW).open(book).and_then(Book::named) {
        Ok(processes) => !processes.is_empty(),
        Err(e) => e.kind() != ErrorKind::NotFound,
    }
}

/// Which processes of a job have been touched: lists, a line each, of which the last counts that is whole. An earlier one is not written
/// over, since it is all that tells of a job that an earlier errand was cut off from.
struct Book {
    file: File,
    processes: Vec<ProcessRef>,
}

impl Book {
    /// Waits until no other errand has it.
    fn open(path: &Path) -> io::Result<Self> {
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.custom_flags(libc::O_NOFOLLOW).open(path)?;
        file.lock()?;
        let processes = Self::named(&file)?;
        Ok(Self { file, processes })
    }

    fn named(file: impl Read) -> io::Result<Vec<ProcessRef>> {
        let mut text = Vec::new();
        file.take(LONGEST).read_to_end(&mut text)?;
        // One that was cut off while it was written was written before those processes were touched that it adds.
        let mut lists =
            text.rsplit(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok());
        Ok(lists.next().unwrap_or_default())
    }

    /// All of them run. That they may be named once more does no harm.
    fn forget(&mut self) {
        let _ = self.file.set_len(0);
    }

    fn write(&mut self, processes: &[ProcessRef]) -> io::Result<()> {
        if processes == self.processes {
            return Ok(());
        }
        let mut text = vec![b'\n'];
        serde_json::to_writer(&mut text, processes).map_err(io::Error::other)?;
        self.file.seek(SeekFrom::End(0))?;
        self.file.write_all(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_book_without_names_says_that_nobody_was_touched() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("1.1.suspend");
        assert!(!may_have_touched(&path), "no errand came so far");
        let mut book = Book::open(&path).unwrap();
        assert!(!may_have_touched(&path));
        book.write(&[ProcessRef { pid: 1, start_ticks: 1 }]).unwrap();
        assert!(may_have_touched(&path));
        book.forget();
        assert!(!may_have_touched(&path));
        assert!(may_have_touched(dir.path()), "what cannot be read");
    }

    #[test]
    fn a_list_that_was_cut_off_leaves_the_one_before() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("1.1.suspend");
        let process = |pid| ProcessRef { pid, start_ticks: 1 };
        let named = || Book::open(&path).unwrap().processes;
        // As it is written by an older carma: one list.
        std::fs::write(&path, serde_json::to_vec(&[process(1)]).unwrap()).unwrap();
        assert_eq!(named(), [process(1)]);
        Book::open(&path).unwrap().write(&[process(1), process(2)]).unwrap();
        assert_eq!(named(), [process(1), process(2)]);
        let whole = std::fs::read(&path).unwrap();
        Book::open(&path).unwrap().write(&[process(3)]).unwrap();
        let longer = std::fs::read(&path).unwrap();
        for end in whole.len()..longer.len() {
            std::fs::write(&path, &longer[..end]).unwrap();
            assert_eq!(named(), [process(1), process(2)], "{end} bytes");
        }
        // The next one is whole again.
        Book::open(&path).unwrap().write(&[process(4)]).unwrap();
        assert_eq!(named(), [process(4)]);
    }

    /// An errand that was cut off named it; now the driver answers nothing at all.
    #[test]
    fn who_was_touched_before_is_not_forgotten_where_the_driver_does_not_answer() {
        let dir = tempfile::tempdir().unwrap();
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let process = process::identify(child.id()).unwrap();
        for touched in [true, false] {
            let path = dir.path().join(format!("{touched}.suspend"));
            if touched {
                Book::open(&path).unwrap().write(&[process]).unwrap();
            }
            let errand = Errand {
                driver: Driver::Virtual(dir.path().join("nobody")),
                work: Work::Suspend { lock: Duration::from_secs(1) },
                processes: vec![process],
                group: None,
                book: path.clone(),
            };
            let failed = errand.carry_out().unwrap_err();
            assert_eq!((failed.stuck.is_some(), may_have_touched(&path)), (touched, touched), "{failed:?}");
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

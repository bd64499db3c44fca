//! What a task says of its progress: by heartbeats, or by what it prints.
//!
//! A task that wants to be counted finds two names in its environment ([`ENV_SOCKET`], [`ENV_FILE`]) and needs one
//! line (docs/profiling.md). One that knows nothing of carma is read from its output.
//!
//! [`Meter`] has no thread and no clock: what runs the task calls [`Meter::poll`], at best whenever
//! [`Meter::as_fd`] is readable. The queue of a datagram socket is short (`net.unix.max_dgram_qlen`, often 10), and a
//! task that sends without `MSG_DONTWAIT` waits while it is full.

mod event;
mod file;
mod socket;

use carma_interference::rate::printed::{Printed, Report};
use carma_interference::rate::tally::Tally;
pub use event::Event;
use file::HeartbeatFile;
use rustix::fd::{AsFd, BorrowedFd};
use serde::{Deserialize, Serialize};
use socket::ProgressSocket;
use std::io;
use std::path::{Path, PathBuf};

/// Environment variable with the path of a datagram socket: an empty datagram is a step, a number the count so far.
pub const ENV_SOCKET: &str = "CARMA_PROGRESS";
/// Environment variable with the path of a file to which the task writes its count.
pub const ENV_FILE: &str = "CARMA_HEARTBEAT";

/// Longest path of a socket, bytes (`sockaddr_un`).
const LONGEST_SOCKET: usize = 107;

/// Why there is no meter.
#[derive(Debug, thiserror::Error)]
pub enum MeterError {
    /// The path of the socket would be too long.
    #[error("{} is longer than the {LONGEST_SOCKET} bytes of a socket's path; choose a shorter directory", .0.display())]
    TooLong(PathBuf),
    /// The socket or the file cannot be made.
    #[error("cannot make {}: {why}", .path.display())]
    Path {
        /// Path of the file.
        path: PathBuf,
        /// What happened.
        why: io::Error,
    },
}

/// A user to whom a task belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// User id that the command runs under.
    pub uid: u32,
    /// Primary group.
    pub gid: u32,
}

/// Which of a task's streams a text is from. Where both go to one file, take [`Output::Standard`] for all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// Standard output.
    Standard,
    /// Standard error, to which most bars are drawn.
    Error,
}

/// Hears the heartbeats of one task.
#[derive(Debug)]
pub struct Heartbeats {
    socket: ProgressSocket,
    file: HeartbeatFile,
}

impl Heartbeats {
    /// Makes the socket `p` and the file `beat` in a directory which the task must be able to enter. A file that
    /// was left there goes on to be used. `owner`: the user to whom they are given (needs root); `None`: this process's
    /// user. The directory must be this process's user's own: another could put a link where the socket was a moment
    /// ago, and have root change what it leads to.
    ///
    /// # Errors
    /// A directory with too long a path or without room or permission.
    pub fn open(dir: &Path, owner: Option<Owner>) -> Result<Self, MeterError> {
        Ok(Self {
            socket: ProgressSocket::bind(&dir.join("p"), owner)?,
            file: HeartbeatFile::create(&dir.join("beat"), owner)?,
        })
    }

    /// What to set in the task's environment.
    #[must_use]
    pub fn env(&self) -> Vec<(String, String)> {
        [(ENV_SOCKET, self.socket.path()), (ENV_FILE, self.file.path())]
            .map(|(name, path)| (name.to_owned(), path.to_string_lossy().into_owned()))
            .into()
    }

    /// Adds those that have come, `at_s` seconds on the caller's clock. Bounded work: of a flood it leaves some for the next
    /// call. Never waits.
    pub fn poll(&mut self, at_s: f64, events: &mut Vec<Event>) {
        self.socket.read(at_s, events);
        self.file.read(at_s, events);
    }
}

impl AsFd for Heartbeats {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Reads what one task prints.
#[derive(Debug)]
pub struct Prints {
    standard: Printed,
    error: Printed,
    reports: Vec<Report>,
}

impl Default for Prints {
    fn default() -> Self {
        Self { standard: Printed::new(), error: Printed::new(), reports: Vec::new() }
    }
}

impl Prints {
    /// Adds what stands by now, `at_s` seconds on the caller's clock, of what was printed before.
    pub fn settle(&mut self, at_s: f64, events: &mut Vec<Event>) {
        for printed in [&mut self.standard, &mut self.error] {
            printed.settle(at_s, &mut self.reports);
        }
        self.report(events);
    }

    /// Adds what the task has printed.
    pub fn feed(&mut self, at_s: f64, output: Output, bytes: &[u8], events: &mut Vec<Event>) {
        let printed = match output {
            Output::Standard => &mut self.standard,
            Output::Error => &mut self.error,
        };
        printed.feed(at_s, bytes, &mut self.reports);
        self.report(events);
    }

    /// What the task prints next does not follow what came last, and begins with a line.
    pub fn tear(&mut self, output: Output) {
        match output {
            Output::Standard => self.standard.tear(),
            Output::Error => self.error.tear(),
        }
    }

    fn report(&mut self, events: &mut Vec<Event>) {
        events.extend(self.reports.drain(..).map(|Report { at_s, said }| Event::Printed { at_s, said }));
        for printed in [&mut self.standard, &mut self.error] {
            events.extend(printed.latencies().map(|(at_s, told)| Event::Latency { at_s, told }));
        }
    }
}

/// Counts what one task says.
#[derive(Debug)]
pub struct Meter {
    heartbeats: Heartbeats,
    prints: Prints,
    tally: Tally,
    events: Vec<Event>,
}

impl Meter {
    /// Makes what [`Heartbeats::open`] makes.
    ///
    /// # Errors
    /// The same.
    pub fn open(dir: &Path, owner: Option<Owner>) -> Result<Self, MeterError> {
        let heartbeats = Heartbeats::open(dir, owner)?;
        Ok(Self { heartbeats, prints: Prints::default(), tally: Tally::new(), events: Vec::new() })
    }

    /// What to set in the task's environment.
    #[must_use]
    pub fn env(&self) -> Vec<(String, String)> {
        self.heartbeats.env()
    }

    /// Takes in the heartbeats that have come, see [`Heartbeats::poll`].
    pub fn poll(&mut self, at_s: f64) {
        self.heartbeats.poll(at_s, &mut self.events);
        self.prints.settle(at_s, &mut self.events);
        self.count();
    }

    /// Takes in what the task has printed.
    pub fn feed(&mut self, at_s: f64, output: Output, bytes: &[u8]) {
        self.prints.feed(at_s, output, bytes, &mut self.events);
        self.count();
    }

    /// Takes in how much the GPU has done for the task so far ([`Tally::activity`]): what stands for progress where
    /// the task says nothing.
    pub fn activity(&mut self, at_s: f64, unit: &str, done: f64) {
        self.tally.activity(at_s, unit, done);
    }

    /// The counts.
    #[must_use]
    pub const fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Heartbeats that made no sense, and heartbeats of other users, which were refused.
    #[must_use]
    pub const fn refused(&self) -> (u64, u64) {
        let Heartbeats { socket, file } = &self.heartbeats;
        (socket.garbage + file.garbage, socket.strangers)
    }

    fn count(&mut self) {
        for event in self.events.drain(..) {
            event.count(&mut self.tally);
        }
    }
}

impl AsFd for Meter {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.heartbeats.as_fd()
    }
}

#[cfg(test)]
mod tests;

//! The command that is profiled: started in a process group of its own, its output passed through, ended with
//! everything that it started.

use carma_cli::failure::Failure;
use carma_daemon::run::process;
use carma_daemon::run::progress::Output;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, kill_process_group, pidfd_open};
use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// Most bytes of output that wait to be read for progress. What comes meanwhile is passed on unread: neither may the
/// memory grow nor the command wait, which would then go slower than it does.
const MOST_WAITING: usize = 512 << 10;
/// Most bytes of a piece.
const PIECE: usize = 16 << 10;
/// Bytes that a piece takes besides its text.
const OVERHEAD: usize = 64;
/// Most bytes that are still read of a line once too much waits.
const MOST_REST: usize = 4 << 10;

/// Wakes whoever polls it.
#[derive(Debug, Clone)]
pub(super) struct Bell(Arc<OwnedFd>);

impl Bell {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self(Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)))
    }

    pub(super) fn ring(&self) {
        // Fails only when it rings already.
        let _ = rustix::io::write(&*self.0, &1_u64.to_ne_bytes());
    }

    pub(super) fn hush(&self) {
        let _ = rustix::io::read(&*self.0, &mut [0_u8; 8]);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// What a task printed, and when.
pub(super) struct Piece {
    pub(super) at: Instant,
    pub(super) output: Output,
    /// Empty: the stream is at its end.
    pub(super) bytes: Vec<u8>,
}

/// A running command.
pub(super) struct Task {
    child: Child,
    handle: OwnedFd,
    status: Option<ExitStatus>,
    pieces: Receiver<Piece>,
    waiting: Arc<Waiting>,
    /// Descendants of this process that are not its own: they were there before, or belong to MPS.
    not_its: Box<dyn Fn(u32) -> bool>,
}

impl Task {
    /// Starts the command. Its standard output goes to ours, or to standard error where ours is for JSON.
    pub(super) fn start(
        words: &[OsString],
        env: &[(String, String)],
        to_stderr: bool,
        bell: &Bell,
        not_its: Box<dyn Fn(u32) -> bool>,
    ) -> Result<Self, Failure> {
        let (program, arguments) =
            words.split_first().ok_or_else(|| Failure::usage("the command is empty"))?;
        let shown = program.to_string_lossy().into_owned();
        // What the command leaves behind becomes our child, so that it can be found and ended.
        let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
        let mut command = Command::new(program);
        command.args(arguments).envs(env.iter().map(|(key, value)| (key, value)));
        if std::env::var_os("PYTHONUNBUFFERED").is_none() {
            command.env("PYTHONUNBUFFERED", "1");
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        end_with_us(&mut command);
        let mut child =
            command.spawn().map_err(|e| Failure::usage(format!("cannot start '{shown}': {e}")))?;
        let handle = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())
            .map_err(|e| Failure::new(format!("cannot watch '{shown}': {e}")))?;
        let (sender, pieces) = channel();
        let waiting = Arc::new(Waiting::default());
        let to_us = |output| ToUs::new(output, sender.clone(), Arc::clone(&waiting));
        if let Some(out) = child.stdout.take() {
            if to_stderr {
                pass(out, io::stderr(), to_us(Output::Standard), bell.clone());
            } else {
                pass(out, io::stdout(), to_us(Output::Standard), bell.clone());
            }
        }
        if let Some(err) = child.stderr.take() {
            pass(err, io::stderr(), to_us(Output::Error), bell.clone());
        }
        Ok(Self { child, handle, status: None, pieces, waiting, not_its })
    }

    /// The next piece of its output, which is waited for as long as this.
    pub(super) fn piece(&self, wait: Duration) -> Option<Piece> {
        let piece =
            if wait.is_zero() { self.pieces.try_recv().ok() } else { self.pieces.recv_timeout(wait).ok() }?;
        self.waiting.bytes.fetch_sub(piece.bytes.len() + OVERHEAD, Ordering::AcqRel);
        Some(piece)
    }

    /// Bytes of its output that were not read because they came too fast.
    pub(super) fn unread(&self) -> u64 {
        self.waiting.unread.load(Ordering::Acquire)
    }

    /// Its processes: the command, and what it started.
    pub(super) fn pids(&self) -> Vec<u32> {
        let all = process::descendants(std::process::id());
        all.into_iter().filter(|pid| !(self.not_its)(*pid)).collect()
    }

    /// How it ended, once it has.
    pub(super) fn status(&mut self) -> Option<ExitStatus> {
        if self.status.is_none() {
            self.status = self.child.try_wait().ok().flatten();
        }
        self.status
    }

    /// Signals everything of it.
    pub(super) fn signal(&mut self, signal: Signal) {
        // The group's number is the command's as long as that is not waited for.
        if self.status.is_none() {
            let _ = kill_process_group(Pid::from_child(&self.child), signal);
        }
        for pid in self.pids().into_iter().filter_map(|pid| Pid::from_raw(pid.cast_signed())) {
            let _ = kill_process(pid, signal);
        }
    }
}

impl AsFd for Task {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }
}

impl Drop for Task {
    /// Nothing of it stays behind, whatever went wrong here.
    fn drop(&mut self) {
        if self.status().is_none() {
            self.signal(Signal::KILL);
            let _ = self.child.wait();
        }
    }
}

/// Has the kernel kill the command should this process be killed, of which it would otherwise know nothing. It does so
/// when the *thread* that starts the command ends: here the main thread, which lives as long as the process. What the
/// command itself started is not reached by it.
fn end_with_us(command: &mut Command) {
    let us = rustix::process::getpid();
    let ask = move || {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        // Killed before that call.
        if rustix::process::getppid() == Some(us) { Ok(()) } else { Err(rustix::io::Errno::SRCH.into()) }
    };
    #[expect(unsafe_code, reason = "the closure makes two system calls and takes no memory: safe after fork")]
    unsafe {
        command.pre_exec(ask);
    }
}

/// Output on its way from the threads that pass it on to the one that reads it.
#[derive(Debug, Default)]
struct Waiting {
    bytes: AtomicUsize,
    unread: AtomicU64,
}

/// What becomes of a stream's next bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Course {
    /// They are read.
    Read,
    /// So many more, until the line ends: half a number is another number.
    ReadLine(usize),
    /// They are passed over until a line begins when there is room.
    PassOver,
}

/// Where one stream's output goes to be read for progress.
struct ToUs {
    output: Output,
    pieces: Sender<Piece>,
    waiting: Arc<Waiting>,
    course: Course,
}

impl ToUs {
    const fn new(output: Output, pieces: Sender<Piece>, waiting: Arc<Waiting>) -> Self {
        Self { output, pieces, waiting, course: Course::Read }
    }

    /// Hands over what came, or as much of it as is to be read. `false`: nobody listens any more.
    fn give(&mut self, bytes: &[u8]) -> bool {
        let has_room = self.waiting.bytes.load(Ordering::Acquire) < MOST_WAITING;
        let line_end = bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r')).map(|at| at + 1);
        let (line, rest) = bytes.split_at(line_end.unwrap_or(bytes.len()));
        let given = match self.course {
            Course::Read | Course::ReadLine(_) if has_room => {
                self.course = Course::Read;
                bytes
            }
            Course::Read | Course::ReadLine(_) => {
                let most = if let Course::ReadLine(most) = self.course { most } else { MOST_REST };
                let line = line.get(..most).unwrap_or(line);
                let left = most - line.len();
                self.course =
                    if line_end.is_some() || left == 0 { Course::PassOver } else { Course::ReadLine(left) };
                line
            }
            Course::PassOver if has_room && line_end.is_some() => {
                self.course = Course::Read;
                rest
            }
            Course::PassOver => &[],
        };
        self.waiting.unread.fetch_add((bytes.len() - given.len()) as u64, Ordering::AcqRel);
        given.is_empty() || self.send(given)
    }

    /// The stream is at its end.
    fn end(&self) {
        self.send(&[]);
    }

    fn send(&self, bytes: &[u8]) -> bool {
        let piece = Piece { at: Instant::now(), output: self.output, bytes: bytes.to_vec() };
        self.waiting.bytes.fetch_add(bytes.len() + OVERHEAD, Ordering::AcqRel);
        self.pieces.send(piece).is_ok()
    }
}

/// Copies a stream as it comes, on a thread of its own that ends with the stream. It is not waited for: something that
/// the command left behind may hold the stream open.
fn pass(
    mut from: impl Read + Send + 'static,
    mut to: impl Write + Send + 'static,
    mut to_us: ToUs,
    bell: Bell,
) {
    let copy = move || {
        let mut buffer = vec![0; PIECE];
        let mut open = true;
        loop {
            let length = match from.read(&mut buffer) {
                Ok(length) => length,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => 0,
            };
            let bytes = buffer.get(..length).unwrap_or_default();
            // A reader of ours that went away (`| head`) is no reason to stop the command.
            open = open && to.write_all(bytes).and_then(|()| to.flush()).is_ok();
            if length == 0 {
                to_us.end();
                bell.ring();
                return;
            }
            let listened = to_us.give(bytes);
            bell.ring();
            if !listened && !open {
                return;
            }
        }
    };
    // Without a thread the command sees a closed stream.
    let _ = std::thread::Builder::new().name("output".into()).spawn(copy);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_read_in_whole_lines_and_takes_no_more_memory() {
        let (sender, pieces) = channel();
        let waiting = Arc::new(Waiting::default());
        let mut to_us = ToUs::new(Output::Standard, sender, Arc::clone(&waiting));
        let text: String = (100_000..400_000).map(|i| format!("step {i}\n")).collect();
        let mut read = String::new();
        let mut take = |most: usize| {
            for piece in pieces.try_iter().take(most) {
                waiting.bytes.fetch_sub(piece.bytes.len() + OVERHEAD, Ordering::AcqRel);
                read += std::str::from_utf8(&piece.bytes).unwrap();
            }
        };
        // Cut at any place, and read less often than it comes.
        for (i, bytes) in text.as_bytes().chunks(1009).enumerate() {
            assert!(to_us.give(bytes));
            assert!(waiting.bytes.load(Ordering::Acquire) < MOST_WAITING + MOST_REST + PIECE);
            if i % 4 == 0 {
                take(1);
            }
        }
        take(usize::MAX);
        assert!(read.lines().all(|line| line.len() == 11 && line.starts_with("step ")));
        let unread = waiting.unread.load(Ordering::Acquire);
        assert!(unread > 0 && unread + read.len() as u64 == text.len() as u64, "{unread}");
        assert!(read.lines().count() > 75_000, "{}", read.lines().count());
        // A flood without lines.
        for _ in 0..10_000 {
            assert!(to_us.give(b"7777777777777777777777777777777777777777777777777777777777777777"));
        }
        assert!(waiting.bytes.load(Ordering::Acquire) < MOST_WAITING + MOST_REST * OVERHEAD);
        for piece in pieces.try_iter() {
            waiting.bytes.fetch_sub(piece.bytes.len() + OVERHEAD, Ordering::AcqRel);
        }
        assert!(to_us.give(b"777\rstep 5\n"));
        assert_eq!(pieces.try_recv().unwrap().bytes, b"step 5\n");
    }
}

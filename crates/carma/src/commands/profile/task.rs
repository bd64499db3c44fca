//! The command that is profiled: started in a process group of its own, its output passed through, ended with
//! everything that it started.

use crate::failure::Failure;
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
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Instant;

/// Most pieces of output that wait to be read for progress. More make the command wait, not the memory grow.
const MOST_WAITING: usize = 256;
/// Most bytes of a piece.
const PIECE: usize = 16 << 10;

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
    /// Its output.
    pub(super) pieces: Receiver<Piece>,
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
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .map_err(|e| Failure::usage(format!("cannot start '{shown}': {e}")))?;
        let handle = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())
            .map_err(|e| Failure::new(format!("cannot watch '{shown}': {e}")))?;
        let (sender, pieces) = sync_channel(MOST_WAITING);
        if let Some(out) = child.stdout.take() {
            let sender = sender.clone();
            if to_stderr {
                pass(out, io::stderr(), Output::Standard, sender, bell.clone());
            } else {
                pass(out, io::stdout(), Output::Standard, sender, bell.clone());
            }
        }
        if let Some(err) = child.stderr.take() {
            pass(err, io::stderr(), Output::Error, sender, bell.clone());
        }
        Ok(Self { child, handle, status: None, pieces, not_its })
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

/// Copies a stream as it comes, on a thread of its own that ends with the stream. It is not waited for: something that
/// the command left behind may hold the stream open.
fn pass(
    mut from: impl Read + Send + 'static,
    mut to: impl Write + Send + 'static,
    output: Output,
    pieces: SyncSender<Piece>,
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
            let piece = Piece { at: Instant::now(), output, bytes: bytes.to_vec() };
            let listened = pieces.send(piece).is_ok();
            bell.ring();
            if length == 0 || (!listened && !open) {
                return;
            }
        }
    };
    // Without a thread the command sees a closed stream.
    let _ = std::thread::Builder::new().name("output".into()).spawn(copy);
}

//! The command that is profiled: started in a process group of its own, its output passed through, ended with
//! everything that it started.

use super::interrupts::Bell;
use super::output::{Outlets, Passed, Piece};
use crate::Error;
use crate::child::end_with_us;
use carma_process::process;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, kill_process_group, pidfd_open};
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

/// A running command.
pub(super) struct Task {
    child: Child,
    handle: OwnedFd,
    status: Option<ExitStatus>,
    output: Passed,
    /// Descendants of this process that are not its own: they were there before, or belong to MPS.
    not_its: Box<dyn Fn(u32) -> bool>,
}

impl Task {
    /// Starts the command. What it prints goes on to the outlets.
    ///
    /// # Errors
    /// A program that cannot be started, or a kernel without pidfd.
    pub(super) fn start(
        words: &[OsString],
        env: &[(String, String)],
        outlets: Outlets,
        bell: &Bell,
        not_its: Box<dyn Fn(u32) -> bool>,
    ) -> Result<Self, Error> {
        let (program, arguments) = words.split_first().ok_or_else(|| Error::usage("the command is empty"))?;
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
        let mut child = command.spawn().map_err(|e| Error::usage(format!("cannot start '{shown}': {e}")))?;
        let handle = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())
            .map_err(|e| Error::new(format!("cannot watch '{shown}': {e}")))?;
        let output = Passed::of(&mut child, outlets, bell);
        Ok(Self { child, handle, status: None, output, not_its })
    }

    /// The next piece of its output, which is waited for as long as this.
    pub(super) fn piece(&self, wait: Duration) -> Option<Piece> {
        self.output.next(wait)
    }

    /// Bytes of its output that were not read because they came too fast.
    pub(super) fn unread(&self) -> u64 {
        self.output.unread()
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

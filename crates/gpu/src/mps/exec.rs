//! One run of the control program, bounded in time and output.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use std::io::{self, PipeReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

/// More than any answer to our questions; whatever talks longer is broken.
const MOST_OUTPUT: usize = 64 << 10;

/// How a run ended.
pub(super) struct Output {
    /// Whether the exit status was 0.
    pub(super) ok: bool,
    /// Standard output and error, as they came.
    pub(super) text: String,
}

/// Makes `command` run as `uid`, with that user's groups; that takes root. Its files get the usual modes, since
/// carma's own umask would keep users from the pipes that they share.
pub(super) fn become_user(command: &mut Command, uid: u32, gid: u32) -> io::Result<()> {
    use nix::unistd::{Gid, Uid, User, getgrouplist, setgid, setgroups, setuid};
    let stays = uid == 0 || !Uid::effective().is_root();
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    // All of the user's groups, as sites may allow /dev/nvidia* to one group only. Looked up here,
    // since only system calls are safe between fork and exec.
    let groups = match if stays { None } else { User::from_uid(uid)? } {
        Some(user) => getgrouplist(&std::ffi::CString::new(user.name)?, gid)?,
        None => vec![gid],
    };
    let change = move || {
        nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o022));
        if stays {
            return Ok(());
        }
        setgroups(&groups)?;
        setgid(gid)?;
        setuid(uid)?;
        Ok(())
    };
    #[expect(
        unsafe_code,
        reason = "the closure makes a few system calls on memory that it owns: safe after fork"
    )]
    unsafe {
        command.pre_exec(change);
    }
    Ok(())
}

/// Runs `command` with `input` on its standard input. Whatever happens, it is over by `deadline`:
/// a child still running then is killed with its process group, and reaped.
///
/// # Errors
/// `TimedOut` at the deadline; else why it could not be started or read.
pub(super) fn run(mut command: Command, input: &str, deadline: Instant) -> io::Result<Output> {
    // Not read to its end: a daemon that the child leaves behind may keep the other end open.
    let (reader, writer) = io::pipe()?;
    rustix::io::ioctl_fionbio(&reader, true)?;
    command.stdin(Stdio::piped()).stdout(writer.try_clone()?).stderr(writer).process_group(0);
    let mut child = command.spawn()?;
    drop(command);
    if let Some(mut stdin) = child.stdin.take() {
        // Fits the pipe, so it cannot block; a child that left already explains itself by its status.
        let _ = stdin.write_all(input.as_bytes());
    }
    let outcome = collect(&child, reader, deadline).and_then(|text| Ok((child.wait()?, text)));
    match outcome {
        Ok((status, text)) => {
            Ok(Output { ok: status.success(), text: String::from_utf8_lossy(&text).trim().to_owned() })
        }
        Err(error) => {
            let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
            // Reaped elsewhere: a process stuck inside the driver survives SIGKILL for a while.
            let _ = std::thread::Builder::new().name("mps-reaper".into()).spawn(move || child.wait());
            Err(error)
        }
    }
}

/// What the child printed, once it has ended.
fn collect(child: &Child, mut reader: PipeReader, deadline: Instant) -> io::Result<Vec<u8>> {
    let exit = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
    let (mut text, mut open) = (Vec::new(), true);
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).map_err(io::Error::other)?;
        let mut fds = [PollFd::new(&exit, PollFlags::IN), PollFd::new(&reader, PollFlags::IN)];
        let watched = if open { 2 } else { 1 };
        if rustix::io::retry_on_intr(|| poll(&mut fds[..watched], Some(&left)))? == 0 {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let ended = !fds[0].revents().is_empty();
        open = open && drain(&mut reader, &mut text)?;
        if ended {
            return Ok(text);
        }
    }
}

/// Reads what is there now; false at the end of the stream.
fn drain(reader: &mut PipeReader, text: &mut Vec<u8>) -> io::Result<bool> {
    let mut buffer = [0; 4096];
    loop {
        match reader.read(&mut buffer) {
            Ok(0) => return Ok(false),
            Ok(n) if text.len() + n > MOST_OUTPUT => {
                return Err(io::Error::other("it printed too much"));
            }
            Ok(n) => text.extend_from_slice(&buffer[..n]),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(true),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}

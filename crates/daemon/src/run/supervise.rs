//! The supervisor: carma itself, re-executed, one per running job.
//!
//! It claims the attempt, opens the log as the user, becomes a session of its own, starts the
//! command as the user, forwards signals, waits, reads the tail of the log, ends what the command
//! left behind, and leaves the exit record. It outlives the daemon and never talks to it but by the
//! first line on its standard output and by files.

use super::process;
use super::record::{Claim, Hello, Identity, Order, Records};
use carma_core::model::{Exit, ExitStatus, ProcessRef};
use carma_core::recovery::scan;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, SigmaskHow, Signal, kill, sigprocmask};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Gid, Pid, Uid, initgroups, setegid, seteuid, setgroups, setsid};
use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Argument by which the binary knows that it is to supervise.
pub const ARGUMENT: &str = "__supervise";

/// Bytes of the log's end that are searched for evidence.
const TAIL: u64 = 64 << 10;

/// How long what the command left behind may take to end.
const LEFTOVER_GRACE: Duration = Duration::from_secs(2);

/// Runs one attempt; the order comes on standard input. Returns the process's exit code, which
/// nobody looks at: the exit record counts.
#[must_use]
pub fn main() -> std::process::ExitCode {
    let mut text = Vec::new();
    let order: Order = match io::stdin()
        .read_to_end(&mut text)
        .and_then(|_| serde_json::from_slice(&text).map_err(io::Error::other))
    {
        Ok(order) => order,
        Err(e) => {
            eprintln!("carma supervisor: no order on standard input: {e}");
            return std::process::ExitCode::from(2);
        }
    };
    drop(text);
    match supervise(&order) {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("carma supervisor of job {}: {e}", order.job);
            std::process::ExitCode::FAILURE
        }
    }
}

fn supervise(order: &Order) -> io::Result<()> {
    // A session of our own: a terminal or service manager that ends the daemon's does not reach us.
    let _ = setsid();
    let signals = signals();
    sigprocmask(SigmaskHow::SIG_SETMASK, Some(&signals), None)?;
    // What the command leaves behind becomes our child, so that we can find and end it.
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));

    let me = process::identify(std::process::id()).ok_or_else(|| io::Error::other("no /proc"))?;
    let records = Records::new(&order.run_dir, order.job, order.attempt);
    if !records.claim(&Claim::Supervisor(me))? {
        return Ok(());
    }
    let not_started = |why: String| {
        let exit = Exit { status: ExitStatus::Code(127), evidence: None, not_started: Some(why) };
        let written = records.write_exit(&exit);
        hello(&Hello::NotStarted);
        written
    };
    let mut log = match open_log(order) {
        Ok(log) => log,
        Err(e) => return not_started(format!("its log file {} cannot be opened: {e}", order.log.display())),
    };
    if order.attempt > 1 {
        let _ = writeln!(log, "--- carma: attempt {} of job {} ---", order.attempt, order.job);
    }
    let log_start = log.metadata().map_or(0, |m| m.len());
    let child = match spawn(order, &log) {
        Ok(child) => child,
        Err(why) => return not_started(why),
    };
    let child_ref = process::identify(child.id()).unwrap_or(ProcessRef { pid: child.id(), start_ticks: 0 });
    // A full disk must not stop the job: the pipe tells the daemon too.
    let _ = records.write_child(child_ref);
    hello(&Hello::Running { supervisor: me, child: child_ref });

    let status = wait(child.id(), &signals);
    end_leftovers();
    let evidence = match status {
        ExitStatus::Code(0) => None,
        _ => scan(&tail(&log, log_start)),
    };
    let exit = Exit { status, evidence, not_started: None };
    // The record is all that is left of the job's end, so a full disk is waited for.
    let mut pause = Duration::from_millis(100);
    while let Err(e) = records.write_exit(&exit) {
        if !order.run_dir.is_dir() {
            return Err(e);
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_secs(10));
    }
    Ok(())
}

/// Tells the daemon, if it is still there, and lets go of the pipe.
fn hello(hello: &Hello) {
    if let Ok(line) = serde_json::to_vec(hello) {
        let _ = io::stdout().write_all(&line);
        let _ = io::stdout().flush();
    }
    // Standard output becomes /dev/null: the daemon sees the end of the pipe.
    if let Ok(null) = File::options().write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdout(null);
    }
}

fn signals() -> SigSet {
    let mut set = SigSet::empty();
    for signal in [
        Signal::SIGCHLD,
        Signal::SIGTERM,
        Signal::SIGUSR1,
        Signal::SIGINT,
        Signal::SIGHUP,
        Signal::SIGQUIT,
        Signal::SIGPIPE,
    ] {
        set.add(signal);
    }
    set
}

/// Opens the log for appending, with the rights of the user whose job it is.
fn open_log(order: &Order) -> io::Result<File> {
    let mut options = File::options();
    options.read(true).append(true).create(true).mode(0o600);
    let Some(user) = &order.become_user else { return options.open(&order.log) };
    if order.own_log {
        let log = options.custom_flags(libc::O_NOFOLLOW).open(&order.log)?;
        if log.metadata()?.uid() != user.uid {
            std::os::unix::fs::fchown(&log, Some(user.uid), Some(user.gid))?;
        }
        return Ok(log);
    }
    set_groups(user)?;
    setegid(Gid::from_raw(user.gid))?;
    seteuid(Uid::from_raw(user.uid))?;
    let log = options.mode(0o644).open(&order.log);
    seteuid(Uid::from_raw(0))?;
    setegid(Gid::from_raw(0))?;
    log
}

fn set_groups(user: &Identity) -> nix::Result<()> {
    let gid = Gid::from_raw(user.gid);
    match user.name.as_deref().and_then(|name| CString::new(name).ok()) {
        Some(name) => initgroups(&name, gid),
        None => setgroups(&[gid]),
    }
}

/// Starts the command as the user. The error is a sentence for the user.
fn spawn(order: &Order, log: &File) -> Result<std::process::Child, String> {
    let (program, arguments) = order.command.split_first().ok_or("the command is empty")?;
    let out = log.try_clone().map_err(|e| e.to_string())?;
    let err = log.try_clone().map_err(|e| e.to_string())?;
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env_clear()
        .envs(&order.env)
        .current_dir(&order.cwd)
        .stdin(Stdio::null())
        .stdout(out)
        .stderr(err);
    let user = order.become_user.clone();
    #[expect(unsafe_code, reason = "pre_exec: this process has one thread, so any call is sound after fork")]
    unsafe {
        command.pre_exec(move || {
            setsid()?;
            // What this process blocks or ignores must not be so for the command.
            for signal in nix::sys::signal::Signal::iterator() {
                if !matches!(signal, Signal::SIGKILL | Signal::SIGSTOP) {
                    let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
                    nix::sys::signal::sigaction(signal, &default)?;
                }
            }
            sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None)?;
            // The daemon may be protected when the kernel chooses whom to end for want of memory; the command
            // is as any process of a session.
            let _ = fs::write("/proc/self/oom_score_adj", "0");
            if let Some(user) = &user {
                set_groups(user)?;
                nix::unistd::setgid(Gid::from_raw(user.gid))?;
                nix::unistd::setuid(Uid::from_raw(user.uid))?;
            }
            Ok(())
        });
    }
    command.spawn().map_err(|e| {
        let there = fs::metadata(&order.cwd).is_ok_and(|m| m.is_dir());
        if there {
            format!("cannot run '{program}': {e}")
        } else {
            format!("cannot run '{program}': the directory {} is gone or is not a directory", order.cwd)
        }
    })
}

/// Waits for the command, forwarding signals: SIGTERM as it is, SIGUSR1 as SIGKILL to everything.
fn wait(child: u32, signals: &SigSet) -> ExitStatus {
    let pid = Pid::from_raw(child.cast_signed());
    loop {
        // All children are reaped here: with a subreaper, strangers arrive too.
        loop {
            match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(who, code)) if who == pid => return ExitStatus::Code(code),
                Ok(WaitStatus::Signaled(who, signal, _)) if who == pid => {
                    return ExitStatus::Signal(signal as i32);
                }
                Ok(WaitStatus::StillAlive) => break,
                Ok(_) | Err(nix::errno::Errno::EINTR) => {}
                Err(_) => return ExitStatus::Unknown,
            }
        }
        match signals.wait() {
            Ok(Signal::SIGTERM) => {
                let _ = kill(Pid::from_raw(-pid.as_raw()), Signal::SIGTERM);
            }
            Ok(Signal::SIGUSR1) => {
                let _ = kill(Pid::from_raw(-pid.as_raw()), Signal::SIGKILL);
                for pid in process::descendants(std::process::id()) {
                    let _ = kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL);
                }
            }
            // SIGCHLD, and those that are none of our business.
            Ok(_) | Err(_) => {}
        }
    }
}

/// Ends what the command left behind: it would hold GPU memory that nobody accounts for.
fn end_leftovers() {
    let started = Instant::now();
    let mut signal = Signal::SIGTERM;
    let mut sent = false;
    loop {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Err(nix::errno::Errno::ECHILD) => return,
            Ok(WaitStatus::StillAlive) => {
                if started.elapsed() > LEFTOVER_GRACE {
                    signal = Signal::SIGKILL;
                    sent = false;
                }
                if !sent {
                    for pid in process::descendants(std::process::id()) {
                        let _ = kill(Pid::from_raw(pid.cast_signed()), signal);
                    }
                    sent = true;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            Ok(_) | Err(_) => {}
        }
    }
}

/// The end of what this attempt wrote.
fn tail(log: &File, start: u64) -> String {
    let Ok(meta) = log.metadata() else { return String::new() };
    let from = start.max(meta.len().saturating_sub(TAIL));
    let length = usize::try_from(meta.len().saturating_sub(from)).unwrap_or(0);
    let mut bytes = vec![0; length.min(TAIL as usize)];
    let read = log.read_at(&mut bytes, from).unwrap_or(0);
    bytes.truncate(read);
    String::from_utf8_lossy(&bytes).into_owned()
}

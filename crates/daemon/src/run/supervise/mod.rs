//! The supervisor: carma itself, re-executed, one per running job.
//!
//! It claims the attempt, makes the job's cgroup, becomes the user before it looks at anything that the user named,
//! starts the command, forwards signals, hears the command's progress, ends what the command left behind, and leaves the
//! exit record. It outlives the daemon. What it touches of the user's it touches with the user's rights, and alone: a
//! file system that hangs holds up this job and no other.
//!
//! As root it keeps its real user id, so that the user can neither stop nor end it.

mod checkpoint;
mod command;
mod listen;
mod log;
mod user;

use super::cgroup::Group;
use super::order::{Hello, Log, Order};
use super::record::{Claim, Claimed, Records};
use carma_core::model::{Exit, ExitStatus, ProcessRef};
use carma_process::catch::may_survive;
use carma_process::inherited::set_to_default;
use carma_process::process;
use checkpoint::{DIRECTORY, Prepared};
use command::{NotStarted, Started};
use listen::{Listener, Said};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill, sigprocmask};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};
use nix::unistd::{Pid, setsid};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::WaitOptions;
use std::fs::File;
use std::io::{self, Read};
use std::time::{Duration, Instant};
use user::User;

pub use log::shorten;

/// Argument by which the binary knows that it is to supervise.
pub const ARGUMENT: &str = "__supervise";

/// The daemon's word that it asks the command itself, past its supervisor ([`super::watch::announce`]).
const ASKS: Signal = Signal::SIGHUP;

/// How long a command may run at most to count as one that ends at once.
const AT_ONCE: Duration = Duration::from_millis(50);
/// How long a command may run that failed at once: what it printed last is why.
const AT_FIRST: Duration = Duration::from_secs(10);
/// A disk with fewer bytes left is full.
const NO_ROOM: u64 = 64 << 10;
/// How long what the command left behind may take to end.
const LEFTOVER_GRACE: Duration = Duration::from_secs(2);

/// Runs one attempt; the order comes on standard input. Returns the process's exit code, which
/// nobody looks at: the record counts.
#[must_use]
pub fn main() -> std::process::ExitCode {
    let mut text = Vec::with_capacity(16 << 10);
    let order: Order = match io::stdin()
        .read_to_end(&mut text)
        .and_then(|_| serde_json::from_slice(&text).map_err(io::Error::other))
    {
        Ok(order) => order,
        Err(e) => {
            complain!("carma supervisor: no order on standard input: {e}");
            return std::process::ExitCode::from(2);
        }
    };
    drop(text);
    match supervise(order) {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(e) => {
            complain!("carma supervisor: {e}");
            hello(Hello::NotClaimed { why: e.to_string() });
            std::process::ExitCode::FAILURE
        }
    }
}

fn supervise(mut order: Order) -> io::Result<()> {
    // A session of our own: a terminal or service manager that ends the daemon's does not reach us.
    let _ = setsid();
    let signals = signals();
    sigprocmask(SigmaskHow::SIG_SETMASK, Some(&signals), None)?;
    // One that is ignored, as it may have been since before the daemon, is never seen; SIGPIPE the runtime ignores for the threads.
    set_to_default(signals.iter().filter(|signal| *signal != Signal::SIGPIPE))?;
    // What the command leaves behind becomes our child, so that we can find and end it.
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
    // The memory of a process that acts for a user holds the user's environment, and root's rights.
    let _ = nix::sys::prctl::set_dumpable(false);

    let me = process::identify(std::process::id()).ok_or_else(|| io::Error::other("no /proc"))?;
    let records = Records::new(&order.records, order.id.clone());
    let Some(claimed) = records.claim(&Claim::Supervisor(me))? else { return Ok(()) };
    let mut attempt = Attempt { claimed, group: None };
    let (child, mut listener) = match attempt.begin(&mut order) {
        Ok(begun) => begun,
        Err(NotStarted { why, machine, user_gone }) => {
            let exit = Exit {
                not_started: Some(why),
                machine,
                user_gone: user_gone.map(Box::new),
                ..Exit::of(ExitStatus::Code(127))
            };
            let written = attempt.end(&order, &exit);
            hello(Hello::NotStarted);
            return written;
        }
    };
    hello(Hello::Running { supervisor: me, child });
    let began = Instant::now();

    if !ends_at_once(child.pid, &signals, listen::alive(&order)) {
        listener.begin();
    }
    let (status, asked) = wait(child.pid, &signals, attempt.group.as_ref());
    end_leftovers(attempt.group.as_ref());
    let ran = began.elapsed();
    let Said { evidence, last_line } = listener.finish(status != ExitStatus::Code(0));
    // Later it is anything: a step of the training, or what a library says at the end.
    let last_line = last_line.filter(|_| ran < AT_FIRST);
    let full = if status == ExitStatus::Code(0) { None } else { without_room(&order.log) };
    let last_line = full.map(str::to_owned).or(last_line).filter(|_| evidence.is_none());
    let host = attempt.group.as_ref().map(Group::usage).unwrap_or_default();
    let last_line = last_line.map(Into::into);
    let written =
        attempt.end(&order, &Exit { evidence, last_line, host, asked: Some(asked), ..Exit::of(status) });
    if status == ExitStatus::Code(0) {
        checkpoint::tidy_up(&order);
    }
    written
}

/// Of a log that carma keeps, that its disk is full: a command that printed something may have failed of that. A file system may keep the
/// last blocks for itself.
fn without_room(log: &Log) -> Option<&'static str> {
    let Log::Kept { path, .. } = log else { return None };
    let disk = rustix::fs::statvfs(path).ok()?;
    let left = disk.f_bavail.saturating_mul(disk.f_frsize);
    (left < NO_ROOM)
        .then_some("its disk is full (that of carma's state), so that the command could not print")
}

/// The attempt that this process has claimed.
struct Attempt {
    claimed: Claimed,
    group: Option<Group>,
}

impl Attempt {
    /// Starts the command.
    fn begin(&mut self, order: &mut Order) -> Result<(ProcessRef, Listener), NotStarted> {
        let user = User::told(order.user, &order.user_name, order.not_launched)?;
        if let Some(groups) = &order.groups {
            match Group::create(groups, &order.id, order.limits) {
                Ok(group) => self.group = Some(group),
                Err(e) if order.limits.needs().next().is_some() => {
                    return Err(NotStarted::by("its limits cannot be set", e));
                }
                Err(e) => complain!("carma supervisor of job {}: no cgroup: {e}", order.id.job),
            }
        }
        let heartbeats = listen::heartbeats(order);
        if let Some(heartbeats) = &heartbeats {
            order.env.extend(heartbeats.env());
        }
        let mut log =
            log::Opened::open(&order.log, &user, order.session.umask, order.id.attempt).map_err(|e| {
                let (Log::Kept { path, .. } | Log::Users(path)) = &order.log;
                NotStarted::by(&format!("its log file {} cannot be opened", path.display()), e)
            })?;
        match checkpoint::prepare(order, &user)? {
            Prepared::Nothing => {}
            Prepared::At(path) => drop(order.env.insert(DIRECTORY.into(), path)),
            Prepared::Without { why } => {
                log.say(&why);
                order.env.remove(DIRECTORY);
            }
        }
        if asked_to_end() {
            return Err(NotStarted::because("it was to be ended before it had begun"));
        }
        let record =
            self.claimed.try_clone().map_err(|e| NotStarted::by("its record cannot be opened again", e))?;
        let started = command::start(order, &user, &log, self.group.as_ref(), record);
        // It has written to the record, also where it failed after that.
        let recorded = self.claimed.catch_up();
        let Started { pid, in_group } = started?;
        if !in_group {
            self.discard_group();
        }
        let child = recorded.ok().flatten().unwrap_or(ProcessRef { pid, start_ticks: 0 });
        Ok((child, Listener::new(order, user, log, heartbeats)))
    }

    fn discard_group(&mut self) {
        if let Some(group) = self.group.take() {
            group.remove();
        }
    }

    /// Closes the log and leaves the exit record. That is all that is left of the job's end, so a full disk is waited for.
    fn end(&mut self, order: &Order, exit: &Exit) -> io::Result<()> {
        self.discard_group();
        log::close(&order.log, order.user.is_some());
        let mut pause = Duration::from_millis(100);
        while let Err(e) = self.claimed.write_exit(exit) {
            // Without its directory the record is no longer wanted: a daemon removes it when it needs no record
            // in it. Any other error of this look says nothing.
            if order.records.metadata().is_err_and(|e| e.kind() == io::ErrorKind::NotFound) {
                return Err(e);
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_secs(10));
        }
        Ok(())
    }
}

/// Tells the daemon, if it is still there, and lets go of the pipe.
fn hello(hello: Hello) {
    // One write, so that the daemon reads it whole.
    let line = hello.line();
    let _ = rustix::io::retry_on_intr(|| rustix::io::write(rustix::stdio::stdout(), &line));
    // Standard output becomes /dev/null: nothing else gets into the pipe.
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

/// Whether a signal of the daemon's waits that asks for the end: nothing is started then.
fn asked_to_end() -> bool {
    has_come(&[Signal::SIGTERM, Signal::SIGUSR1])
}

/// Whether one of these signals waits. It is taken.
fn has_come(signals: &[Signal]) -> bool {
    let signals: SigSet = signals.iter().copied().collect();
    let waiting = SignalFd::with_flags(&signals, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC);
    waiting.and_then(|waiting| waiting.read_signal()).is_ok_and(|signal| signal.is_some())
}

/// Waits a moment, and says whether the command ended in it. Such a command gets no thread that listens for heartbeats.
fn ends_at_once(child: u32, signals: &SigSet, look: Duration) -> bool {
    let Ok(signal) = SignalFd::with_flags(signals, SfdFlags::SFD_CLOEXEC) else { return false };
    // A signal is left for those who wait for it.
    let mut ready = [PollFd::new(&signal, PollFlags::IN)];
    let _ = poll(&mut ready, Some(&AT_ONCE.min(look).try_into().unwrap_or_default()));
    has_ended(Pid::from_raw(child.cast_signed()))
}

/// Whether the command has ended. It is not reaped.
fn has_ended(child: Pid) -> bool {
    let over = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    // nix takes a process that a real-time signal ended for an error.
    !matches!(waitid(Id::Pid(child), over), Ok(WaitStatus::StillAlive))
}

/// Waits for the command, forwarding signals: SIGTERM as it is, SIGUSR1 as SIGKILL to everything. Returns also whether something may have
/// asked it to end before it did: an end that comes of itself while a signal is on its way is no answer to that.
fn wait(child: u32, signals: &SigSet, group: Option<&Group>) -> (ExitStatus, bool) {
    let pid = Pid::from_raw(child.cast_signed());
    let mut asked = false;
    // The daemon's word that it asks comes before it does.
    let with_asked = |status, asked| (status, asked || has_come(&[ASKS]));
    loop {
        // All children are reaped here: with a subreaper, strangers arrive too.
        loop {
            // Not nix's, which takes a process and answers an error where a real-time signal ended it.
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some((who, status))) if who.as_raw_nonzero().get() == pid.as_raw() => {
                    match (status.exit_status(), status.terminating_signal()) {
                        (Some(code), _) => return with_asked(ExitStatus::Code(code), asked),
                        (None, Some(signal)) => return with_asked(ExitStatus::Signal(signal), asked),
                        (None, None) => {}
                    }
                }
                Ok(None) => break,
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Err(_) => return with_asked(ExitStatus::Unknown, asked),
            }
        }
        match signals.wait() {
            // What has ended may be seen after a signal that came later.
            Ok(Signal::SIGTERM) if has_ended(pid) => {}
            Ok(Signal::SIGTERM) => {
                // One that SIGTERM ends, and that exits with 0 all the same, was on its way out. Looked at before and after: it may set
                // itself up for the signal in between, or have been and be so no more.
                let survives = || may_survive(child, rustix::process::Signal::TERM);
                asked |= survives();
                let _ = kill(Pid::from_raw(-pid.as_raw()), Signal::SIGTERM);
                asked |= survives();
            }
            Ok(ASKS) => asked = true,
            // Nothing exits with 0 because of SIGKILL.
            Ok(Signal::SIGUSR1) => {
                let _ = kill(Pid::from_raw(-pid.as_raw()), Signal::SIGKILL);
                kill_all(group);
            }
            // SIGCHLD, and those that are none of our business.
            Ok(_) | Err(_) => {}
        }
    }
}

/// Kills what there is of the job.
fn kill_all(group: Option<&Group>) {
    if group.is_none_or(|group| group.kill().is_err()) {
        signal_descendants(Signal::SIGKILL);
    }
}

fn signal_descendants(signal: Signal) {
    for pid in process::descendants(std::process::id()) {
        let _ = kill(Pid::from_raw(pid.cast_signed()), signal);
    }
}

/// Ends what the command left behind: it would hold GPU memory that is charged to no job.
fn end_leftovers(group: Option<&Group>) {
    let started = Instant::now();
    let (mut asked, mut killed) = (false, false);
    loop {
        let reaped = loop {
            match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                Err(nix::errno::Errno::ECHILD) => break true,
                Ok(WaitStatus::StillAlive) => break false,
                Ok(_) | Err(_) => {}
            }
        };
        if reaped && !group.is_some_and(Group::is_populated) {
            return;
        }
        if !asked {
            asked = true;
            let members = group.map(Group::pids).unwrap_or_default();
            for pid in members {
                let _ = kill(Pid::from_raw(pid.cast_signed()), Signal::SIGTERM);
            }
            signal_descendants(Signal::SIGTERM);
        } else if started.elapsed() > LEFTOVER_GRACE {
            // Again and again without a group: what forks may be a step ahead.
            if !killed || group.is_none() {
                kill_all(group);
                signal_descendants(Signal::SIGKILL);
            }
            killed = true;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

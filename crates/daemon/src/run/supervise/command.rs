//! Starts the command: as the user, in its cgroup, with the session's limits.

use super::log::Opened;
use super::user::User;
use crate::run::cgroup::Group;
use crate::run::order::Order;
use crate::run::record::Claimed;
use carma_api::wire::Session;
use carma_core::model::UserGone;
use carma_process::inherited::{close_at_exec, set_to_default};
use carma_process::process;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, sigprocmask};
use nix::sys::stat::{Mode, umask};
use nix::unistd::{ForkResult, setsid};
use rustix::fd::AsRawFd;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// Why a command does not run.
#[derive(Debug)]
pub(super) struct NotStarted {
    /// A sentence for the user.
    pub(super) why: String,
    /// The machine lacked something, which is no fault of the job's.
    pub(super) machine: bool,
    /// Set where its user is no more.
    pub(super) user_gone: Option<UserGone>,
}

impl NotStarted {
    /// The job's own doing, or that of who asks for its end.
    pub(super) fn because(why: impl Into<String>) -> Self {
        Self { why: why.into(), machine: false, user_gone: None }
    }

    /// What failed, and how.
    pub(super) fn by(what: &str, error: io::Error) -> Self {
        Self { machine: is_machines(&error), ..Self::because(format!("{what}: {error}")) }
    }

    /// What the machine's user database does not tell: no fault of the job's, whatever the error.
    pub(super) fn untold(what: &str, error: &io::Error) -> Self {
        let why = format!("the user database of this machine does not tell {what}: {error}");
        Self { machine: true, ..Self::because(why) }
    }

    /// The number of its user is not that user's any more.
    pub(super) fn user_gone(user: &str, uid: u32, now: Option<String>) -> Self {
        let why = match &now {
            Some(now) => format!("user {uid} was {user} when it was submitted, and is {now} now"),
            None => format!("there is no user {user}, {uid}, any more"),
        };
        Self { user_gone: Some(UserGone { now: now.map(Into::into) }), ..Self::because(why) }
    }
}

/// Whether the machine lacks something: descriptors, memory, processes, room on its disk.
fn is_machines(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::EAGAIN | libc::ENOSPC | libc::EINTR)
    ) || matches!(error.kind(), ErrorKind::OutOfMemory | ErrorKind::StorageFull)
}

/// What the child was about to do, for the case that it fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Stage {
    /// Session, signals, limits.
    Session = b's',
    /// Becoming the user.
    User = b'u',
    /// Entering the directory.
    Directory = b'd',
    /// Running the program.
    Program = b'p',
}

/// A command that was started.
pub(super) struct Started {
    /// Its process.
    pub(super) pid: u32,
    /// Whether it is in the job's cgroup.
    pub(super) in_group: bool,
}

/// Starts the command. This process has one thread until then.
pub(super) fn start(
    order: &Order,
    user: &User,
    log: &Opened,
    group: Option<&Group>,
    mut record: Claimed,
) -> Result<Started, NotStarted> {
    let words = words(order, user)?;
    let (program, arguments) =
        words.split_first().ok_or_else(|| NotStarted::because("the command is empty"))?;
    let prepare = |e: io::Error| NotStarted::by("its start cannot be prepared", e);
    let out = log.file().try_clone().map_err(prepare)?;
    let err = log.file().try_clone().map_err(prepare)?;
    // Closed when the program begins; before, the child says what went wrong.
    let (reader, writer) =
        rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(|e| prepare(e.into()))?;
    let (mut heard, mut said) = (File::from(reader), File::from(writer));
    let mut command = Command::new(program);
    command.args(arguments).env_clear().envs(&order.env).stdin(Stdio::null()).stdout(out).stderr(err);
    let supervisor = rustix::process::getpid();
    let (forked, in_group) = fork(order, group)?;
    let pid = match forked {
        ForkResult::Child => {
            let (stage, error) = match become_the_job(order, user, supervisor, &mut record) {
                // Returns only if it fails.
                Ok(()) => (Stage::Program, command.exec()),
                Err(failed) => failed,
            };
            let errno = error.raw_os_error().unwrap_or(libc::EIO);
            let _ = said.write_all(&[&[stage as u8], &errno.to_ne_bytes()[..]].concat());
            #[expect(
                unsafe_code,
                reason = "a copy of the supervisor ends here, without running its exit handlers"
            )]
            unsafe {
                libc::_exit(127)
            }
        }
        ForkResult::Parent { child } => child,
    };
    drop((said, command));
    let mut text = Vec::new();
    let _ = heard.read_to_end(&mut text);
    let Some((stage, errno)) = text.split_first() else {
        return Ok(Started { pid: pid.as_raw().unsigned_abs(), in_group });
    };
    let _ = nix::sys::wait::waitpid(pid, None);
    let error = errno.try_into().map_or(libc::EIO, i32::from_ne_bytes);
    let what = match stage {
        b's' => "its session cannot be set up".to_owned(),
        b'u' => "its user cannot be taken on".to_owned(),
        b'd' => format!("its directory {} is gone or cannot be entered", order.cwd),
        _ => match not_on_path(program, order.env.get("PATH").map_or("", |path| path), &order.cwd, user) {
            Some(why) => return Err(NotStarted::because(why)),
            None => format!("cannot run '{program}'"),
        },
    };
    let failed = NotStarted::by(&what, io::Error::from_raw_os_error(error));
    // The limits are the job's own by then (`ulimit -n`), and will be no other ones in a moment.
    let limited = *stage == Stage::Program as u8 && error == libc::EMFILE;
    Err(NotStarted { machine: failed.machine && !limited, ..failed })
}

/// That a program is in no directory of a PATH, as far as its user may look, where that is so. The kernel's word is of a directory that
/// it could not look into, as root's is where a job came from `su`.
fn not_on_path(program: &str, path: &str, cwd: &str, user: &User) -> Option<String> {
    if program.contains('/') {
        return None;
    }
    let find = |name: &str| {
        let mut at = path.split(':').map(|dir| Path::new(cwd).join(dir).join(name));
        user.act(|| Ok(at.find(|file| file.is_file()))).ok()
    };
    if find(program)?.is_some() {
        return None;
    }
    let other = (program == "python").then(|| find("python3")).flatten().flatten();
    let hint = other.map(|file| format!("; there is {}", file.display())).unwrap_or_default();
    Some(format!("'{program}' is not on PATH{hint}"))
}

/// A copy of this process, in the job's cgroup if that can be: outside of it the job is tracked by its descent, and no
/// limit would hold.
fn fork(order: &Order, group: Option<&Group>) -> Result<(ForkResult, bool), NotStarted> {
    let none = |e: io::Error| NotStarted::by("a process cannot be had", e);
    if let Some(group) = group {
        #[expect(unsafe_code, reason = "this process has one thread, so the copy is whole")]
        match unsafe { group.fork() } {
            Ok(forked) => return Ok((forked, true)),
            Err(e) if is_machines(&e) => return Err(none(e)),
            Err(e) if order.limits.needs().next().is_some() => {
                return Err(NotStarted::by("its limits cannot be set, since it cannot enter its cgroup", e));
            }
            Err(e) => complain!("carma supervisor of job {}: not in its cgroup: {e}", order.id.job),
        }
    }
    #[expect(unsafe_code, reason = "this process has one thread, so the copy is whole")]
    let forked = unsafe { nix::unistd::fork() };
    forked.map(|forked| (forked, false)).map_err(|e| none(e.into()))
}

/// Makes of the supervisor's copy the user's process, ready to run the program.
fn become_the_job(
    order: &Order,
    user: &User,
    supervisor: rustix::process::Pid,
    record: &mut Claimed,
) -> Result<(), (Stage, io::Error)> {
    enter_the_record(supervisor, record).and_then(|()| session(order)).map_err(|e| (Stage::Session, e))?;
    user.become_for_good().map_err(|e| (Stage::User, e))?;
    // As the user, who may not be allowed to see what lies on the way.
    nix::unistd::chdir(Path::new(&order.cwd)).map_err(|e| (Stage::Directory, e.into()))
}

/// Writes the command's process into the record. Until then the command dies with its supervisor: a command that is in
/// no record could be found by no daemon, and the attempt would be started a second time.
fn enter_the_record(supervisor: rustix::process::Pid, record: &mut Claimed) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    if rustix::process::getppid() != Some(supervisor) {
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    }
    let me = process::identify(std::process::id()).ok_or_else(|| io::Error::other("no /proc"))?;
    record.write_child(me)?;
    // From here on it goes on whatever happens to its supervisor.
    Ok(rustix::process::set_parent_process_death_signal(None)?)
}

/// A session of its own, like the one in which the job was submitted.
fn session(order: &Order) -> io::Result<()> {
    setsid()?;
    // What this process blocks or ignores must not be so for the command.
    set_to_default(Signal::iterator().filter(|signal| !matches!(signal, Signal::SIGKILL | Signal::SIGSTOP)))?;
    sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None)?;
    // The daemon may be protected when the kernel chooses what to end for want of memory; the command
    // is as any process of a session.
    let _ = std::fs::write("/proc/self/oom_score_adj", "0");
    // Nothing that this process or the daemon has open is the command's. Before the limits, of which one may leave no descriptor to look with.
    close_at_exec(io::stderr().as_raw_fd() + 1)?;
    Ok(take_over(&order.session)?)
}

/// The words to run: the command, or a login shell that runs it.
fn words(order: &Order, user: &User) -> Result<Vec<String>, NotStarted> {
    if !order.session.login {
        return Ok(order.command.clone());
    }
    let shell = user.shell().map_err(|e| NotStarted::untold("its user's login shell", &e))?;
    let name = shell.rsplit('/').next().unwrap_or_default();
    let line = match name {
        "sh" | "bash" | "dash" | "zsh" | "ksh" | "mksh" | "ash" => "exec \"$0\" \"$@\"",
        "fish" => "exec $argv",
        _ => {
            let why =
                format!("--login: carma does not know how to run a command in the login shell '{shell}'");
            return Err(NotStarted::because(why));
        }
    };
    let start = [shell.as_str(), "-l", "-c", line].map(str::to_owned);
    Ok(start.into_iter().chain(order.command.iter().cloned()).collect())
}

/// The limits that a session has a name for, as Slurm propagates them.
const LIMITS: &[(&str, Resource)] = &[
    ("as", Resource::RLIMIT_AS),
    ("core", Resource::RLIMIT_CORE),
    ("cpu", Resource::RLIMIT_CPU),
    ("data", Resource::RLIMIT_DATA),
    ("fsize", Resource::RLIMIT_FSIZE),
    ("memlock", Resource::RLIMIT_MEMLOCK),
    ("nofile", Resource::RLIMIT_NOFILE),
    ("nproc", Resource::RLIMIT_NPROC),
    ("rss", Resource::RLIMIT_RSS),
    ("stack", Resource::RLIMIT_STACK),
];

/// The mask of a job that brings none.
const USUAL_MASK: u32 = 0o022;

/// Takes over mask and limits. A limit never goes above what this process has: a user may claim anything.
fn take_over(session: &Session) -> nix::Result<()> {
    // The daemon's own mask is for what is carma's.
    umask(Mode::from_bits_truncate(session.umask.unwrap_or(USUAL_MASK) & 0o777));
    for (name, resource) in LIMITS {
        let Some(wanted) = session.limits.get(*name) else { continue };
        let (_, ours) = getrlimit(*resource)?;
        let hard = wanted.hard.map_or(ours, |hard| hard.min(ours));
        let soft = wanted.soft.map_or(hard, |soft| soft.min(hard));
        setrlimit(*resource, soft, hard)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_nowhere_is_told_from_one_that_cannot_be_run() {
        let dir = tempfile::tempdir().unwrap();
        let user = User::find(None).unwrap();
        let at = dir.path().display().to_string();
        let why = |program: &str| not_on_path(program, &format!("/no/such:{at}"), "/", &user);
        assert_eq!(why("python").as_deref(), Some("'python' is not on PATH"));
        File::create(dir.path().join("python3")).unwrap();
        assert_eq!(why("python"), Some(format!("'python' is not on PATH; there is {at}/python3")));
        // It is there, and what the kernel says of it is true; and who names a path is told of that.
        assert_eq!((why("python3"), why("./train.sh")), (None, None));
        assert_eq!(not_on_path("python3", "", &at, &user), None, "an empty part is the job's directory");
    }
}

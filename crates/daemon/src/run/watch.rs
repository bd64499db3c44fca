//! Waits for supervisors: one thread, one epoll, a pidfd and a pipe for each. Nothing polls, but for what the machine
//! refused at first: that is tried again until it works, so that no end is ever missed.

use super::adopt::{self, Found, Known};
use super::cgroup::Group;
use super::identity::Life;
use super::order::Hello;
use super::record::{Claim, Record, Records};
use carma_core::model::{Exit, JobId, ProcessRef};
use carma_process::process;
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::fd::{AsFd, OwnedFd};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::collections::BTreeMap;
use std::io;
use std::process::Child;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What happened to an attempt.
#[derive(Debug, Clone)]
#[expect(clippy::large_enum_variant, reason = "one for each end of an attempt, and moved a few times")]
pub enum Event {
    /// Its command runs.
    Running {
        /// The supervisor.
        supervisor: ProcessRef,
        /// Its first process, where known.
        child: Option<ProcessRef>,
    },
    /// Its supervisor was killed; its command goes on, and what it prints and how it ends will not be known.
    Orphaned {
        /// The supervisor that was.
        supervisor: ProcessRef,
        /// Its first process.
        child: ProcessRef,
    },
    /// It is over.
    Exited(Exit),
    /// Its command was never started, and never will be.
    NeverStarted {
        /// Why, where that is known.
        why: Option<String>,
    },
}

/// Where events go.
pub type Sink = Box<dyn Fn(JobId, u32, Event) + Send + Sync>;

/// An attempt to watch.
#[derive(Debug)]
pub struct Attempt {
    /// Number of the job.
    pub job: JobId,
    /// Number of the attempt, from 1.
    pub attempt: u32,
    /// Its record.
    pub records: Records,
    /// The life in which it was decided.
    pub life: Life,
    /// Its cgroup, where attempts have one.
    pub group: Option<Group>,
    /// Its supervisor, if it was seen to run.
    pub supervisor: Option<ProcessRef>,
    /// Its first process, if that was seen.
    pub child: Option<ProcessRef>,
}

struct Watched {
    attempt: Attempt,
    /// Of the supervisor, or of the command that outlives it; `None` while the machine refuses one.
    pidfd: Option<OwnedFd>,
    /// Read end of the pipe to the supervisor's standard output, until it has said hello.
    pipe: Option<OwnedFd>,
    /// Set when we are the parent and must reap it.
    parent_of: Option<Child>,
    /// Set once the supervisor was found dead and the orphaned command is watched instead.
    orphan: bool,
    /// What it said why it did nothing.
    why: Option<String>,
    /// Set while its hello could not be read: its record says the same.
    unheard: bool,
    /// Set once the log says that what became of it cannot be found out: it is asked again five times a second.
    told: bool,
}

impl Watched {
    /// An attempt of which nothing is at hand.
    const fn of(attempt: Attempt) -> Self {
        Self {
            attempt,
            pidfd: None,
            pipe: None,
            parent_of: None,
            orphan: false,
            why: None,
            unheard: false,
            told: false,
        }
    }
}

/// Watches supervisors and, where one was killed, the command that it left.
pub struct Watcher {
    epoll: OwnedFd,
    watched: Mutex<BTreeMap<u64, Watched>>,
    next: std::sync::atomic::AtomicU64,
    here: Life,
    sink: Sink,
    /// Makes the thread look at what was refused.
    wake: OwnedFd,
}

/// How often what the machine refused is tried again, milliseconds.
const AGAIN_MS: i64 = 200;
/// Token of the descriptor that wakes the thread.
const WAKE: u64 = u64::MAX;

/// Tokens: even for a pidfd, odd for a pipe of the same entry.
const fn tokens(key: u64) -> (u64, u64) {
    (key * 2, key * 2 + 1)
}

impl Watcher {
    /// Starts the thread. `here`: the present life.
    ///
    /// # Errors
    /// When the kernel gives no epoll or thread.
    pub fn start(here: Life, sink: Sink) -> io::Result<Arc<Self>> {
        let watcher = Arc::new(Self {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            watched: Mutex::default(),
            next: 0.into(),
            here,
            sink,
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        });
        register(&watcher.epoll, &watcher.wake, WAKE)?;
        let thread = watcher.clone();
        std::thread::Builder::new().name("watch".into()).spawn(move || thread.run())?;
        Ok(watcher)
    }

    fn run(&self) {
        let mut events = Vec::with_capacity(256);
        let again = Timespec { tv_sec: 0, tv_nsec: AGAIN_MS * 1_000_000 };
        loop {
            events.clear();
            let waits = |watched: &Watched| watched.pidfd.is_none() || watched.unheard;
            let refused: Vec<u64> =
                self.lock().iter().filter(|(_, w)| waits(w)).map(|(key, _)| *key).collect();
            let space = rustix::buffer::spare_capacity(&mut events);
            match epoll::wait(&self.epoll, space, (!refused.is_empty()).then_some(&again)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => {
                    tracing::error!("waiting for jobs failed: {e}");
                    std::thread::sleep(std::time::Duration::from_secs(1));
                }
            }
            for event in &events {
                match { event.data }.u64() {
                    WAKE => drop(rustix::io::read(&self.wake, &mut [0_u8; 8])),
                    token => self.react(token),
                }
            }
            for key in refused {
                self.try_again(key);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Watched>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches a supervisor that we have just spawned. Its hello comes over its standard output. Never fails: what the
    /// machine refuses now is tried again.
    pub fn spawned(&self, attempt: Attempt, mut child: Child) {
        let pipe = child.stdout.take().map(OwnedFd::from);
        // Not reaped yet, so the pid is its own.
        let pidfd =
            Pid::from_raw(child.id().cast_signed()).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        self.add(Watched { pidfd, pipe, parent_of: Some(child), ..Watched::of(attempt) });
    }

    /// Watches an attempt of an earlier life, by what was found of it.
    pub fn adopted(&self, attempt: Attempt, pidfd: OwnedFd, orphan: bool) {
        self.add(Watched { pidfd: Some(pidfd), orphan, ..Watched::of(attempt) });
    }

    /// Watches an attempt of which nothing could be found out for the present, which the log says already.
    pub fn undecided(&self, attempt: Attempt) {
        self.add(Watched { told: true, ..Watched::of(attempt) });
    }

    fn add(&self, watched: Watched) {
        let key = self.next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let (pid_token, pipe_token) = tokens(key);
        // The lock is held while adding, so that the thread finds the entry when it wakes.
        let mut map = self.lock();
        let entry = map.entry(key).or_insert(watched);
        if let Some(pipe) = &entry.pipe
            && let Err(e) = register(&self.epoll, pipe, pipe_token)
        {
            // That it runs is read in the record; how it began, if not, at its end.
            entry.unheard = true;
            tracing::warn!("job {} is not heard to start for the present: {e}", entry.attempt.job);
        }
        if let Some(pidfd) = &entry.pidfd
            && let Err(e) = register(&self.epoll, pidfd, pid_token)
        {
            tracing::warn!("job {} cannot be watched for the present: {e}", entry.attempt.job);
            entry.pidfd = None;
        }
        if entry.pidfd.is_none() || entry.unheard {
            // The thread may wait without end: it is told that there is something to try again.
            let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
        }
    }

    /// Something can be read of an entry: its hello, or its end.
    fn react(&self, token: u64) {
        let (key, is_pipe) = (token / 2, token % 2 == 1);
        let mut map = self.lock();
        let Some(entry) = map.get_mut(&key) else { return };
        // A hello that is still unread comes before the end.
        let hello = match entry.pipe.take() {
            Some(pipe) => {
                let hello = self.hello(pipe);
                entry.unheard = hello.is_none();
                hello
            }
            None => None,
        };
        let (job, attempt) = (entry.attempt.job, entry.attempt.attempt);
        match hello {
            Some(Hello::Running { supervisor, child }) => {
                (entry.attempt.supervisor, entry.attempt.child) = (Some(supervisor), Some(child));
                (self.sink)(job, attempt, Event::Running { supervisor, child: Some(child) });
            }
            Some(Hello::NotClaimed { why }) => entry.why = Some(why),
            Some(Hello::NotStarted) | None => {}
        }
        if is_pipe {
            return;
        }
        if let Some(pidfd) = entry.pidfd.take() {
            let _ = epoll::delete(&self.epoll, pidfd.as_fd());
        }
        if let Some(mut child) = entry.parent_of.take() {
            let _ = child.wait();
        }
        let Some(entry) = map.remove(&key) else { return };
        drop(map);
        self.settle(key, entry);
    }

    /// What is in the pipe now: all attempts are watched from this thread, so that it waits for none of them, and not for
    /// the end of the pipe either, which a supervisor in trouble may not close.
    fn hello(&self, pipe: OwnedFd) -> Option<Hello> {
        let _ = epoll::delete(&self.epoll, pipe.as_fd());
        rustix::io::ioctl_fionbio(&pipe, true).ok()?;
        let mut line = [0; Hello::MOST];
        let read = rustix::io::retry_on_intr(|| rustix::io::read(&pipe, &mut line)).ok()?;
        serde_json::from_slice(line.get(..read)?).ok()
    }

    /// Tries again what the machine refused.
    fn try_again(&self, key: u64) {
        let mut map = self.lock();
        let Some(entry) = map.get_mut(&key) else { return };
        if entry.pidfd.is_some() {
            // It runs, or is about to; until its record says so there is nothing to tell.
            if let Ok(Some(Record { claim: Claim::Supervisor(supervisor), child: Some(child), .. })) =
                entry.attempt.records.read()
            {
                entry.unheard = false;
                // What it says now is known.
                entry.pipe = None;
                let (job, attempt) = (entry.attempt.job, entry.attempt.attempt);
                (self.sink)(job, attempt, Event::Running { supervisor, child: Some(child) });
            }
            return;
        }
        if let Some(child) = &mut entry.parent_of {
            match child.try_wait() {
                // Reaped below.
                Ok(Some(_)) => {}
                Ok(None) => {
                    let pid = Pid::from_raw(child.id().cast_signed());
                    let pidfd = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
                    let (pid_token, _) = tokens(key);
                    entry.pidfd = pidfd.filter(|pidfd| register(&self.epoll, pidfd, pid_token).is_ok());
                    return;
                }
                Err(_) => return,
            }
            drop(map);
            // It is over: the same as if its descriptor had said so.
            let (pid_token, _) = tokens(key);
            return self.react(pid_token);
        }
        let Some(entry) = map.remove(&key) else { return };
        drop(map);
        self.settle(key, entry);
    }

    /// What became of an attempt whose supervisor is gone, or of which nothing was known.
    fn settle(&self, key: u64, mut entry: Watched) {
        let Attempt { job, attempt, .. } = entry.attempt;
        let known = Known {
            life: &entry.attempt.life,
            here: &self.here,
            supervisor: entry.attempt.supervisor,
            child: entry.attempt.child,
            group: entry.attempt.group.as_ref(),
        };
        let event = match adopt::find(&entry.attempt.records, known) {
            Ok(Found::Exited(exit)) => Event::Exited(exit),
            Ok(Found::NeverStarted) => Event::NeverStarted { why: entry.why.take() },
            Ok(Found::Alive { supervisor, child, pidfd }) => {
                entry.attempt.supervisor = Some(supervisor);
                entry.attempt.child = child.or(entry.attempt.child);
                entry.told = false;
                (self.sink)(job, attempt, Event::Running { supervisor, child });
                return self.watch_on(key, entry, pidfd);
            }
            Ok(Found::Orphan { supervisor, child, pidfd }) => {
                if !entry.orphan {
                    tracing::warn!(
                        "the supervisor of job {job} was killed; its command goes on unsupervised"
                    );
                    (self.sink)(job, attempt, Event::Orphaned { supervisor, child });
                }
                entry.orphan = true;
                entry.attempt.child = Some(child);
                entry.told = false;
                return self.watch_on(key, entry, pidfd);
            }
            Err(e) => {
                if !std::mem::replace(&mut entry.told, true) {
                    tracing::warn!(
                        "what became of job {job} cannot be found out for the present: {e}; it is asked again until it can"
                    );
                }
                self.lock().insert(key, entry);
                return;
            }
        };
        // Whatever the command left behind has no supervisor any more that would end it.
        if let Some(group) = &entry.attempt.group {
            if group.is_populated() {
                let _ = group.kill();
            }
            group.remove_soon();
        }
        (self.sink)(job, attempt, event);
    }

    fn watch_on(&self, key: u64, mut entry: Watched, pidfd: OwnedFd) {
        let (pid_token, _) = tokens(key);
        let mut map = self.lock();
        entry.pidfd = register(&self.epoll, &pidfd, pid_token).is_ok().then_some(pidfd);
        map.insert(key, entry);
    }
}

fn register(epoll: &OwnedFd, fd: &OwnedFd, token: u64) -> io::Result<()> {
    epoll::add(epoll, fd.as_fd(), epoll::EventData::new_u64(token), epoll::EventFlags::IN)
        .map_err(io::Error::from)
}

/// Ends an attempt: through its supervisor, which knows exactly which processes are its own, or directly where that was
/// killed or does not answer.
///
/// Returns whether there was a process to signal.
#[must_use]
pub fn signal(
    supervisor: ProcessRef,
    child: Option<ProcessRef>,
    group: Option<&Group>,
    level: carma_core::model::EndLevel,
) -> bool {
    use carma_core::model::EndLevel;
    use rustix::process::{Signal, kill_process_group, pidfd_send_signal};
    let to_supervisor = match level {
        // That is asked of its processes: `super::checkpoint`.
        EndLevel::Checkpoint => return false,
        EndLevel::Terminate => Signal::TERM,
        EndLevel::Kill => Signal::USR1,
        EndLevel::Abandon => Signal::KILL,
    };
    let mut found = false;
    if let Ok(Some(pidfd)) = process::open(supervisor) {
        // One that was stopped goes on, and then does as it is told.
        let _ = pidfd_send_signal(&pidfd, Signal::CONT);
        found = pidfd_send_signal(&pidfd, to_supervisor).is_ok();
        if level == EndLevel::Terminate {
            return found;
        }
    }
    // It may be stopped again, or stuck: what is the job's ends all the same.
    if level != EndLevel::Terminate
        && let Some(group) = group
    {
        found |= group.kill().is_ok();
    }
    let Some(child) = child.filter(|child| matches!(process::open(*child), Ok(Some(_)))) else {
        return found;
    };
    // The command leads its own session, so its pid names the group as long as it lives.
    let signal = if level == EndLevel::Terminate { Signal::TERM } else { Signal::KILL };
    found | Pid::from_raw(child.pid.cast_signed()).is_some_and(|pid| kill_process_group(pid, signal).is_ok())
}

/// Tells a supervisor that its command is about to be asked past it, to save its work or to leave MPS: exit code 0 after that is no sign that
/// it was done. It comes before what the command does then, so that the supervisor has it when that one ends.
pub fn announce(supervisor: ProcessRef) {
    if let Ok(Some(pidfd)) = process::open(supervisor) {
        // Supervisors from before it meant something block it and let it pass. One that has ended has told what it knew.
        let _ = rustix::process::pidfd_send_signal(&pidfd, rustix::process::Signal::HUP);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::identity::AttemptId;
    use carma_core::units::Millis;
    use std::io::{Read, Write};
    use std::process::Command;
    use std::sync::mpsc;
    use std::time::Duration;

    /// What is told of a supervisor with a record of its command, which has said this through this pipe.
    fn told_of(pipe: OwnedFd, hello: impl FnOnce(ProcessRef)) -> (Event, ProcessRef) {
        let dir = tempfile::tempdir().unwrap();
        let life = Life::begin(Millis(0), "1-2").unwrap();
        let id = AttemptId {
            journal: "j".into(),
            life: life.name.clone(),
            host: life.host.clone(),
            boot: life.boot.clone(),
            job: JobId(1),
            attempt: 1,
        };
        let (tell, told) = mpsc::channel();
        let sink: Sink = Box::new(move |_, _, event| drop(tell.send(event)));
        let watcher = Watcher::start(life.clone(), sink).unwrap();
        let mut supervisor = Command::new("sleep").arg("600").spawn().unwrap();
        let me = process::identify(supervisor.id()).unwrap();
        hello(me);
        let records = Records::new(dir.path(), id);
        records.claim(&Claim::Supervisor(me)).unwrap().unwrap().write_child(me).unwrap();
        let pid = Pid::from_raw(supervisor.id().cast_signed()).unwrap();
        let attempt =
            Attempt { job: JobId(1), attempt: 1, records, life, group: None, supervisor: None, child: None };
        let pidfd = Some(pidfd_open(pid, PidfdFlags::empty()).unwrap());
        watcher.add(Watched { pidfd, pipe: Some(pipe), ..Watched::of(attempt) });
        let event = told.recv_timeout(Duration::from_secs(20)).unwrap();
        supervisor.kill().unwrap();
        supervisor.wait().unwrap();
        (event, me)
    }

    #[test]
    fn an_attempt_whose_pipe_cannot_be_watched_is_seen_to_run_by_its_record() {
        // epoll refuses a regular file.
        let (event, me) = told_of(tempfile::tempfile().unwrap().into(), |_| ());
        assert!(matches!(event, Event::Running { child: Some(child), .. } if child == me), "{event:?}");
    }

    #[test]
    fn a_supervisor_that_keeps_its_pipe_open_holds_up_nothing() {
        let (read, write) = std::io::pipe().unwrap();
        let (event, me) = told_of(read.into(), |me| {
            let hello = serde_json::to_vec(&Hello::Running { supervisor: me, child: me }).unwrap();
            (&write).write_all(&hello).unwrap();
        });
        drop(write);
        assert!(matches!(event, Event::Running { child: Some(child), .. } if child == me), "{event:?}");
    }

    #[test]
    fn a_reason_of_any_length_fits_into_the_pipe() {
        let (mut read, write) = std::io::pipe().unwrap();
        let line = Hello::NotClaimed { why: "\u{1}\u{e9}".repeat(100_000) }.line();
        assert!(line.len() <= Hello::MOST && line.len() > 100, "{}", line.len());
        (&write).write_all(&line).unwrap();
        drop(write);
        let mut all = Vec::new();
        read.read_to_end(&mut all).unwrap();
        let Hello::NotClaimed { why } = serde_json::from_slice(&all).unwrap() else { panic!() };
        assert!(why.starts_with("\u{1}\u{e9}"));
    }
}

//! Waits for supervisors: one thread, one epoll, a pidfd and a pipe for each. Nothing polls.

use super::process;
use super::record::{Hello, Records};
use carma_core::model::{Exit, ExitStatus, JobId, ProcessRef};
use rustix::event::epoll;
use rustix::fd::{AsFd, OwnedFd};
use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::PathBuf;
use std::process::Child;
use std::sync::{Arc, Mutex, PoisonError};

/// What happened to an attempt.
#[derive(Debug, Clone)]
pub enum Event {
    /// Its command runs.
    Running {
        /// The supervisor.
        supervisor: ProcessRef,
        /// Its first process.
        child: ProcessRef,
    },
    /// It is over.
    Exited(Exit),
}

/// Where events go.
pub type Sink = Box<dyn Fn(JobId, u32, Event) + Send>;

struct Watched {
    job: JobId,
    attempt: u32,
    pidfd: OwnedFd,
    /// Read end of the pipe to the supervisor's standard output, until it has said hello.
    pipe: Option<OwnedFd>,
    /// Set when we are the parent and must reap it.
    parent_of: Option<Child>,
    /// Set once the supervisor was found dead and the orphaned command is watched instead.
    orphan: bool,
}

/// Watches supervisors and, where one was killed, the command that it left.
pub struct Watcher {
    epoll: Arc<OwnedFd>,
    watched: Arc<Mutex<BTreeMap<u64, Watched>>>,
    next: std::sync::atomic::AtomicU64,
    run_dir: PathBuf,
}

/// Tokens: even for a pidfd, odd for a pipe of the same entry.
const fn tokens(key: u64) -> (u64, u64) {
    (key * 2, key * 2 + 1)
}

impl Watcher {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the kernel gives no epoll or thread.
    pub fn start(run_dir: PathBuf, sink: Sink) -> io::Result<Self> {
        let watcher = Self {
            epoll: Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?),
            watched: Arc::default(),
            next: 0.into(),
            run_dir,
        };
        let (epoll, watched, run_dir) =
            (watcher.epoll.clone(), watcher.watched.clone(), watcher.run_dir.clone());
        std::thread::Builder::new().name("watch".into()).spawn(move || {
            let mut events = Vec::with_capacity(256);
            loop {
                events.clear();
                let space = rustix::buffer::spare_capacity(&mut events);
                match epoll::wait(&*epoll, space, None) {
                    Ok(_) | Err(rustix::io::Errno::INTR) => {}
                    Err(e) => {
                        tracing::error!("waiting for jobs failed: {e}");
                        return;
                    }
                }
                for event in &events {
                    let token = { event.data }.u64();
                    react(&epoll, &watched, &run_dir, token, &sink);
                }
            }
        })?;
        Ok(watcher)
    }

    /// Watches a supervisor. With `child`, we are its parent and read its hello from its pipe.
    ///
    /// # Errors
    /// When the supervisor is gone or the kernel refuses.
    pub fn watch(
        &self,
        job: JobId,
        attempt: u32,
        pidfd: OwnedFd,
        mut parent_of: Option<Child>,
    ) -> io::Result<()> {
        let key = self.next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let (pid_token, pipe_token) = tokens(key);
        let pipe = parent_of.as_mut().and_then(|c| c.stdout.take()).map(OwnedFd::from);
        let entry = Watched { job, attempt, pidfd, pipe, parent_of, orphan: false };
        // The lock is held while adding, so that the thread finds the entry when it wakes.
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = watched.entry(key).or_insert(entry);
        if let Some(pipe) = &entry.pipe {
            add(&self.epoll, pipe, pipe_token)?;
        }
        add(&self.epoll, &entry.pidfd, pid_token)
    }
}

fn add(epoll: &OwnedFd, fd: &OwnedFd, token: u64) -> io::Result<()> {
    epoll::add(epoll, fd.as_fd(), epoll::EventData::new_u64(token), epoll::EventFlags::IN)
        .map_err(io::Error::from)
}

fn react(
    epoll: &OwnedFd,
    watched: &Mutex<BTreeMap<u64, Watched>>,
    run_dir: &std::path::Path,
    token: u64,
    sink: &Sink,
) {
    let (key, is_pipe) = (token / 2, token % 2 == 1);
    let mut map = watched.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(entry) = map.get_mut(&key) else { return };
    let (job, attempt) = (entry.job, entry.attempt);
    // A hello that is still unread comes before the end.
    if let Some(pipe) = entry.pipe.take() {
        let _ = epoll::delete(epoll, pipe.as_fd());
        let mut line = String::new();
        let read = std::fs::File::from(pipe).take(4096).read_to_string(&mut line);
        if let (Ok(_), Ok(Hello::Running { supervisor, child })) = (read, serde_json::from_str(&line)) {
            sink(job, attempt, Event::Running { supervisor, child });
        }
    }
    if is_pipe {
        return;
    }
    let _ = epoll::delete(epoll, entry.pidfd.as_fd());
    if let Some(mut child) = entry.parent_of.take() {
        let _ = child.wait();
    }
    let records = Records::new(run_dir, job, attempt);
    if let Some(exit) = records.exit() {
        map.remove(&key);
        drop(map);
        sink(job, attempt, Event::Exited(exit));
        return;
    }
    // The supervisor was killed. Its command may go on; its end can still be seen, not its status.
    if !entry.orphan
        && let Some(pidfd) = records.child().and_then(process::open)
    {
        tracing::warn!("the supervisor of job {job} was killed; its command goes on unsupervised");
        entry.orphan = true;
        entry.pidfd = pidfd;
        if add(epoll, &entry.pidfd, token).is_ok() {
            return;
        }
    }
    map.remove(&key);
    drop(map);
    let exit = Exit { status: ExitStatus::Unknown, evidence: None, not_started: None };
    sink(job, attempt, Event::Exited(exit));
}

//! How fast running jobs go: two threads that take in what they say of their progress, one by heartbeats, one by their
//! logs, so that a log on a file system that hangs does not keep tasks waiting that send heartbeats.
//!
//! Each attempt has a meter (heartbeats, see [`super::progress`]) and a log that is read as it grows. Heartbeats
//! are taken in when they come, since a task that sends them may wait for room; logs and heartbeat files once a
//! second of the daemon's clock. What the jobs take of the host is looked at as often as that costs next to nothing.

use super::process;
use super::progress::{Meter, Output, Owner};
use super::usage::{Host, Usage};
use crate::clock::Clock;
use carma_core::model::JobId;
use carma_core::units::Millis;
use carma_interference::rate::tally::Measured;
use rustix::event::{Timespec, epoll};
use rustix::fd::{AsFd, OwnedFd};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Bytes of a log that are read at a time: what is written faster is skipped.
const PIECE: usize = 64 << 10;

/// Shortest time between two looks at the host, in life.
const HOST_PACE: Duration = Duration::from_secs(1);
/// A look at all processes of a large machine takes its time: it may take so much of one processor, 1 over this.
const HOST_SHARE: u32 = 200;

/// What a job takes of the host, and when that was seen.
#[derive(Debug, Clone, Copy)]
pub struct HostLook {
    /// When.
    pub at: Instant,
    /// What.
    pub host: Host,
}

/// One attempt.
struct Paced {
    meter: Meter,
    log: PathBuf,
    /// Whose file the log must be.
    uid: u32,
    /// Up to where the log was read; `None`: from its end on, as it is found.
    read: Option<u64>,
}

/// Job and attempt.
pub type Key = (JobId, u32);

/// The meters of all running jobs.
pub struct Paces {
    dir: PathBuf,
    clock: Clock,
    epoll: OwnedFd,
    paced: Mutex<BTreeMap<Key, Paced>>,
    /// Jobs that run, and their supervisors.
    running: Mutex<Vec<(JobId, u32)>>,
    hosts: Mutex<BTreeMap<JobId, HostLook>>,
}

/// Token of a meter in epoll: attempts of one job do not overlap.
const fn token(key: Key) -> u64 {
    key.0.0
}

impl Paces {
    /// Starts the threads. `dir` is for the sockets and files of the jobs.
    ///
    /// # Errors
    /// When the kernel gives no epoll or thread.
    pub fn start(dir: PathBuf, clock: Clock) -> io::Result<Arc<Self>> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let paces = Arc::new(Self {
            dir,
            clock,
            epoll,
            paced: Mutex::default(),
            running: Mutex::default(),
            hosts: Mutex::default(),
        });
        let (beats, logs) = (paces.clone(), paces.clone());
        std::thread::Builder::new().name("pace".into()).spawn(move || beats.hear())?;
        std::thread::Builder::new().name("logs".into()).spawn(move || logs.read())?;
        Ok(paces)
    }

    /// Removes what attempts left that are over, e.g. while no daemon ran.
    pub fn clear(&self, live: &[Key]) {
        let live: Vec<String> = live.iter().map(|(job, attempt)| format!("{job}.{attempt}")).collect();
        for entry in std::fs::read_dir(&self.dir).into_iter().flatten().flatten() {
            if !live.iter().any(|name| entry.file_name() == name.as_str()) {
                let _ = std::fs::remove_dir_all(entry.path());
            }
        }
    }

    /// Makes the meter of an attempt that is about to start, or that was found running (`running`). Returns what to
    /// set in its environment. `owner`: its user, where jobs become their users. A job goes on without a meter: where
    /// none can be made, the log says why.
    #[must_use]
    pub fn open(
        &self,
        job: JobId,
        attempt: u32,
        log: &Path,
        user: Owner,
        as_root: bool,
        running: bool,
    ) -> Vec<(String, String)> {
        let dir = self.dir_of(job, attempt);
        let made = own(&dir, as_root.then_some(user))
            .map_err(|e| format!("{}: {e}", dir.display()))
            .and_then(|()| Meter::open(&dir, as_root.then_some(user)).map_err(|e| e.to_string()));
        let meter = match made {
            Ok(meter) => meter,
            Err(why) => {
                tracing::warn!("the progress of job {job} cannot be counted: {why}");
                return Vec::new();
            }
        };
        let env = meter.env();
        // An earlier attempt may have written to the same log.
        let read = (!running).then(|| std::fs::metadata(log).map_or(0, |meta| meta.len()));
        let key = (job, attempt);
        let data = epoll::EventData::new_u64(token(key));
        if let Err(e) = epoll::add(&self.epoll, meter.as_fd(), data, epoll::EventFlags::IN) {
            tracing::warn!("heartbeats of job {job} are taken in once a second only: {e}");
        }
        self.lock().insert(key, Paced { meter, log: log.to_owned(), uid: user.uid, read });
        env
    }

    fn dir_of(&self, job: JobId, attempt: u32) -> PathBuf {
        self.dir.join(format!("{job}.{attempt}"))
    }

    /// Takes in the last of it and forgets the attempt.
    pub fn close(&self, job: JobId, attempt: u32) {
        // Closing the socket takes it out of epoll. An attempt that ended while no daemon ran has no meter.
        drop(self.lock().remove(&(job, attempt)));
        let _ = std::fs::remove_dir_all(self.dir_of(job, attempt));
    }

    /// The rate of an attempt over a span of the daemon's time.
    #[must_use]
    pub fn rate(&self, job: JobId, attempt: u32, from: Millis, to: Millis) -> Option<Measured> {
        self.lock().get(&(job, attempt))?.meter.tally().best(seconds(from), seconds(to))
    }

    /// Tells which jobs run, with the pids of their supervisors.
    pub fn set_running(&self, jobs: Vec<(JobId, u32)>) {
        *self.running.lock().unwrap_or_else(PoisonError::into_inner) = jobs;
    }

    /// The latest look at what a job takes of the host.
    #[must_use]
    pub fn host(&self, job: JobId) -> Option<HostLook> {
        self.hosts.lock().unwrap_or_else(PoisonError::into_inner).get(&job).copied()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Key, Paced>> {
        self.paced.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in heartbeats: datagrams when they come, files once a second.
    fn hear(&self) {
        let mut events = Vec::with_capacity(64);
        let mut next = self.clock.now();
        loop {
            events.clear();
            let left = self.clock.until(next).max(Duration::from_millis(20));
            let left = Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(1),
                tv_nsec: i64::from(left.subsec_nanos()),
            };
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&left)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => {
                    tracing::error!("heartbeats cannot be waited for: {e}");
                    return;
                }
            }
            {
                // The time with the lock held, as for logs.
                let mut paced = self.lock();
                let now = self.clock.now();
                for event in &events {
                    let job = JobId({ event.data }.u64());
                    for (_, paced) in paced.range_mut((job, 0)..=(job, u32::MAX)) {
                        paced.meter.poll(seconds(now));
                    }
                }
                if now >= next {
                    next = now + Millis::secs(1);
                    paced.values_mut().for_each(|paced| paced.meter.poll(seconds(now)));
                }
            }
            // A flood of heartbeats is taken in by the batch.
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Reads logs and looks at the host, once a second.
    fn read(&self) {
        let mut usages: BTreeMap<JobId, Usage> = BTreeMap::new();
        let start = Instant::now();
        let mut next_host = start;
        loop {
            let now = self.clock.now();
            self.read_all();
            let began = Instant::now();
            if began >= next_host {
                self.look_at_hosts(start, &mut usages);
                next_host = began + HOST_PACE.max(began.elapsed() * HOST_SHARE);
            }
            std::thread::sleep(self.clock.until(now + Millis::secs(1)).max(Duration::from_millis(20)));
        }
    }

    /// Looks at what the running jobs take of the host; the times of `usages` are since `start`. Supervisors themselves
    /// do not count.
    fn look_at_hosts(&self, start: Instant, usages: &mut BTreeMap<JobId, Usage>) {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner).clone();
        usages.retain(|job, _| running.iter().any(|(running, _)| running == job));
        let mut hosts = BTreeMap::new();
        if !running.is_empty() {
            let supervisors: Vec<u32> = running.iter().map(|(_, pid)| *pid).collect();
            let at = Instant::now();
            let since = at.duration_since(start).as_secs_f64();
            for ((job, _), pids) in running.iter().zip(process::descendants_of(&supervisors)) {
                let host = usages.entry(*job).or_default().look(since, &pids);
                hosts.insert(*job, HostLook { at, host });
            }
        }
        *self.hosts.lock().unwrap_or_else(PoisonError::into_inner) = hosts;
    }

    /// Reads what logs have grown by. Files are read with the lock released: a slow file system delays nobody.
    fn read_all(&self) {
        let known: Vec<(Key, PathBuf, u32, Option<u64>)> =
            self.lock().iter().map(|(key, p)| (*key, p.log.clone(), p.uid, p.read)).collect();
        for (key, log, uid, from) in known {
            let (bytes, read) = match grown(&log, uid, from) {
                Some((bytes, read)) => (bytes, Some(read)),
                None => (Vec::new(), from),
            };
            if let Some(paced) = self.lock().get_mut(&key) {
                paced.read = read;
                // The time with the lock held, since heartbeats are taken in meanwhile: times only rise.
                paced.meter.feed(seconds(self.clock.now()), Output::Standard, &bytes);
            }
        }
    }
}

/// Seconds on the daemon's clock.
fn seconds(at: Millis) -> f64 {
    at.0 as f64 / 1000.0
}

/// A directory of our own. A root daemon's user may enter it by way of the group, find there what is his, and change
/// nothing in it.
fn own(dir: &Path, user: Option<Owner>) -> io::Result<()> {
    match std::fs::create_dir(dir) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
            let there = std::fs::symlink_metadata(dir)?;
            if !there.is_dir() || there.uid() != rustix::process::geteuid().as_raw() {
                std::fs::remove_dir_all(dir)?;
                std::fs::create_dir(dir)?;
            }
        }
        made => made?,
    }
    let mode = match user {
        Some(user) => {
            std::os::unix::fs::lchown(dir, None, Some(user.gid))?;
            0o710
        }
        None => 0o700,
    };
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(mode))
}

/// What a log holds beyond `from`, and up to where that is. The file must be a plain one of that user: its name is
/// the user's, and a link or a pipe put in its place is not followed or waited for.
fn grown(log: &Path, uid: u32, from: Option<u64>) -> Option<(Vec<u8>, u64)> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC;
    let file = File::options().read(true).custom_flags(flags).open(log).ok()?;
    let meta = file.metadata().ok()?;
    if !meta.is_file() || meta.uid() != uid {
        return None;
    }
    let end = meta.len();
    let from = from.unwrap_or(end);
    if end < from {
        // It was cut off: whatever is written now is new.
        return Some((Vec::new(), end));
    }
    let start = from.max(end.saturating_sub(PIECE as u64));
    let mut bytes = vec![0; usize::try_from(end - start).ok()?.min(PIECE)];
    let length = file.read_at(&mut bytes, start).ok()?;
    bytes.truncate(length);
    Some((bytes, start + length as u64))
}

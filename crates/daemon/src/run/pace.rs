//! How fast running jobs go, by what their supervisors hear of them: one thread that takes in their messages, and one
//! that looks at what the jobs take of the host. Neither touches anything of a user's.

use crate::clock::Clock;
use carma_core::model::{Job, JobId, ProcessRef};
use carma_core::state::State;
use carma_core::units::Millis;
use carma_interference::profile::{Pauses, Rate, RateSource};
use carma_interference::rate::latency::P99;
use carma_interference::rate::tally::{Done, Measured, Tally};
#[cfg(test)]
use carma_interference::rate::{
    Said,
    printed::{Printed, Report},
};
use carma_process::process;
use carma_process::progress::Event;
use carma_process::usage::{Host, Usage};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, setsockopt, sockopt};
use rustix::fd::AsRawFd;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{self, IoSliceMut};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Name of the socket to which supervisors send their news, in the directory of the heartbeats.
pub const SOCKET: &str = "daemon";

/// Shortest time between two looks at the host, in life.
const HOST_PACE: Duration = Duration::from_secs(1);
/// A look at all processes of a large machine takes its time: it may take so much of one processor, 1 over this.
const HOST_SHARE: u32 = 200;
/// When nothing has come from a supervisor for this long, in life, nothing is known of its job's progress: its log may
/// be on a file system that hangs.
const SILENCE: Duration = Duration::from_secs(5);
/// Longest message, bytes.
const LONGEST: usize = 128 << 10;

/// What a supervisor heard since its last message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct News {
    /// Short name of the attempt.
    pub attempt: String,
    /// When it was sent, seconds since the machine's boot: up to then it has heard everything.
    pub at_s: f64,
    /// What it heard, with times since boot.
    pub events: Vec<Event>,
}

/// What a job takes of the host, and when that was seen.
#[derive(Debug, Clone, Copy)]
pub struct HostLook {
    /// Time of the reading.
    pub at: Instant,
    /// CPU time and memory of the host.
    pub host: Host,
}

/// The present attempt of a job.
struct Paced {
    /// Its short name.
    name: String,
    tally: Tally,
    /// When its supervisor sent something last.
    heard: Instant,
    /// Since when it has not been silent.
    since: Millis,
    /// Up to when it has told all that it heard, seconds on the daemon's clock; `None`: it has sent nothing yet.
    told_s: Option<f64>,
    /// Its supervisor was killed: nothing more will come.
    lost: bool,
}

/// How far the running jobs are by their own counts.
#[derive(Debug, Default)]
pub struct Counts {
    /// Those that are heard, and say.
    pub done: BTreeMap<JobId, Done>,
    /// Those that are heard, and have counted nothing for so long that they stand still.
    pub still: BTreeMap<JobId, Millis>,
    /// Those whose supervisor was killed, with how far they were when it was heard last, if they had said.
    pub lost: BTreeMap<JobId, Option<Done>>,
}

/// What is counted of all running jobs.
pub struct Paces {
    dir: PathBuf,
    clock: Clock,
    socket: UnixDatagram,
    paced: Mutex<BTreeMap<JobId, Paced>>,
    /// Jobs that run, and their supervisors.
    running: Mutex<Vec<(JobId, ProcessRef)>>,
    hosts: Mutex<BTreeMap<JobId, HostLook>>,
}

impl Paced {
    /// Whether what its supervisor told last is of now.
    fn is_heard(&self) -> bool {
        !self.lost && self.heard.elapsed() <= SILENCE
    }

    /// As much of the time up to then as it has told of, seconds: what it is still to tell of is no silence of its job.
    fn told_by_s(&self, at: Millis) -> f64 {
        at.as_secs_f64().min(self.told_s.unwrap_or(f64::INFINITY))
    }
}

impl Paces {
    /// Makes the socket, which is read from [`Self::hear`] on, and starts to look at hosts. `dir` is for the sockets and files of the jobs, and for the socket of their supervisors.
    ///
    /// # Errors
    /// When the kernel gives no socket or thread.
    pub fn start(dir: PathBuf, clock: Clock) -> io::Result<Arc<Self>> {
        let path = dir.join(SOCKET);
        match std::fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            Ok(()) | Err(_) => {}
        }
        let socket = UnixDatagram::bind(&path)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
        setsockopt(&socket, sockopt::PassCred, &true)?;
        let paces = Arc::new(Self {
            dir,
            clock,
            socket,
            paced: Mutex::default(),
            running: Mutex::default(),
            hosts: Mutex::default(),
        });
        let hosts = paces.clone();
        std::thread::Builder::new().name("hosts".into()).spawn(move || hosts.look())?;
        Ok(paces)
    }

    /// Starts to hear supervisors. Before the jobs that run were opened, what is told of them would be lost: until then the kernel and the
    /// supervisors keep it.
    ///
    /// # Errors
    /// When the kernel gives no thread.
    pub fn hear(self: &Arc<Self>) -> io::Result<()> {
        let paces = self.clone();
        std::thread::Builder::new().name("pace".into()).spawn(move || paces.hear_all())?;
        Ok(())
    }

    /// Directory of the sockets and files of the jobs.
    #[must_use]
    pub const fn dir(&self) -> &PathBuf {
        &self.dir
    }

    /// Removes what attempts left that are over, e.g. while no daemon ran. `live`: job and attempt.
    pub fn clear(&self, live: &[(JobId, u32)]) {
        let live: Vec<String> = live.iter().map(|(job, attempt)| format!("{job}.{attempt}")).collect();
        for entry in std::fs::read_dir(&self.dir).into_iter().flatten().flatten() {
            let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if is_dir && !live.iter().any(|name| entry.file_name() == name.as_str()) {
                let _ = std::fs::remove_dir_all(entry.path());
            }
        }
    }

    /// Takes in news of an attempt from now on.
    pub fn open(&self, job: JobId, name: String) {
        let (heard, since) = (Instant::now(), self.clock.now());
        self.lock().insert(job, Paced { name, tally: Tally::new(), heard, since, told_s: None, lost: false });
    }

    /// The supervisor of a job's present attempt was killed: what it had told is all that will be told.
    pub fn lose(&self, job: JobId) {
        if let Some(paced) = self.lock().get_mut(&job) {
            paced.lost = true;
        }
    }

    /// Forgets the attempt of a job. What a supervisor that was killed left of its heartbeats goes with them.
    pub fn close(&self, job: JobId, attempt: u32) {
        self.lock().remove(&job);
        let _ = std::fs::remove_dir_all(self.dir.join(format!("{job}.{attempt}")));
    }

    /// The rate of a job's present attempt over a span of the daemon's time; `None` also while its supervisor is silent. `own`: a
    /// rate of the count of its work, as far as that is known.
    #[must_use]
    pub fn rate(&self, job: JobId, from: Millis, to: Millis, own: Option<&Rate>) -> Option<Measured> {
        self.rate_between(job, from, to, None, own)
    }

    /// The same without the job's own pauses.
    #[must_use]
    pub fn rate_between(
        &self,
        job: JobId,
        from: Millis,
        to: Millis,
        pauses: Option<Pauses>,
        own: Option<&Rate>,
    ) -> Option<Measured> {
        let paced = self.lock();
        let paced = paced.get(&job).filter(|paced| paced.is_heard())?;
        let pause_s = pauses.map_or(f64::INFINITY, |pauses| pauses.over_s);
        paced.tally.best_between(from.as_secs_f64(), paced.told_by_s(to), pause_s, own)
    }

    /// For how long a job's present attempt has counted nothing; `None`: its count is at its end, or it has none.
    #[must_use]
    pub fn silence(&self, job: JobId, own: Option<&Rate>, now: Millis) -> Option<Millis> {
        let paced = self.lock();
        let paced = paced.get(&job)?;
        let since_s = paced.tally.silent_since_s(own)?;
        Some(Millis(((paced.told_by_s(now) - since_s).max(0.0) * 1000.0) as u64))
    }

    /// When a job's present attempt first counted its work itself (not an evaluation, say), as far as it was heard.
    #[must_use]
    pub fn began(&self, job: JobId) -> Option<Millis> {
        let paced = self.lock();
        let began_s = paced.get(&job)?.tally.began_s()?;
        Some(Millis((began_s.max(0.0) * 1000.0) as u64))
    }

    /// Where a job's present attempt has counted anything itself, the best of these.
    #[must_use]
    pub fn counts(&self, job: JobId) -> Option<RateSource> {
        self.lock().get(&job)?.tally.counts()
    }

    /// Whether a job's supervisor has told all that it heard since then: where nothing was counted, the job stood still.
    #[must_use]
    pub fn is_heard(&self, job: JobId, from: Millis) -> bool {
        let paced = self.lock();
        let paced = paced.get(&job);
        paced.is_some_and(|paced| paced.is_heard() && paced.since <= from)
    }

    /// The 99th percentile of the latencies that a job's present attempt told over a span of the daemon's time; `None` also while its
    /// supervisor is silent.
    #[must_use]
    pub fn p99(&self, job: JobId, from: Millis, to: Millis) -> Option<P99> {
        let paced = self.lock();
        let paced = paced.get(&job).filter(|paced| paced.is_heard())?;
        paced.tally.p99(from.as_secs_f64(), to.as_secs_f64())
    }

    /// How far the running jobs are by their own counts, those that say, and do not go on after the end of what they count. While they
    /// are suspended they do nothing.
    #[must_use]
    pub fn done(&self, state: &State, now: Millis) -> BTreeMap<JobId, Done> {
        self.counts_of_all(state, now).done
    }

    /// The same, and what is known of those that are not heard any more.
    #[must_use]
    pub fn counts_of_all(&self, state: &State, now: Millis) -> Counts {
        let still = |job: JobId| {
            let halt = state.job(job).and_then(Job::halt);
            let absences = halt.map(|halt| halt.absences_until(now)).unwrap_or_default();
            absences.iter().map(|off| (off.from.as_secs_f64(), off.until.as_secs_f64())).collect::<Vec<_>>()
        };
        let changed_s = |job: JobId| {
            let gpus = state.job(job).and_then(Job::placement).into_iter().flat_map(|placed| &placed.gpus);
            gpus.filter_map(|gpu| state.gpu(*gpu)?.changed).max().map(Millis::as_secs_f64)
        };
        let paced = self.lock();
        let heard = || paced.iter().filter(|(_, paced)| paced.is_heard());
        let lost = paced.iter().filter(|(_, paced)| paced.lost);
        let done = |job: JobId, paced: &Paced| {
            let done = paced.tally.done(&still(job), changed_s(job));
            done.filter(|d| !d.is_past(now.as_secs_f64()))
        };
        let stands_still = |job: JobId, paced: &Paced| {
            let still_s = paced.tally.stands_still_s(&still(job), paced.told_by_s(now))?;
            Some(Millis((still_s * 1000.0) as u64))
        };
        Counts {
            done: heard().filter_map(|(job, paced)| Some((*job, done(*job, paced)?))).collect(),
            still: heard().filter_map(|(job, paced)| Some((*job, stands_still(*job, paced)?))).collect(),
            lost: lost.map(|(job, paced)| (*job, done(*job, paced))).collect(),
        }
    }

    /// Tells which jobs run, with their supervisors.
    pub fn set_running(&self, jobs: Vec<(JobId, ProcessRef)>) {
        *self.running.lock().unwrap_or_else(PoisonError::into_inner) = jobs;
    }

    /// The latest look at what a job takes of the host.
    #[must_use]
    pub fn host(&self, job: JobId) -> Option<HostLook> {
        self.hosts.lock().unwrap_or_else(PoisonError::into_inner).get(&job).copied()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<JobId, Paced>> {
        self.paced.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in what supervisors send.
    fn hear_all(&self) {
        let me = rustix::process::geteuid().as_raw();
        let mut buffer = vec![0; LONGEST];
        loop {
            match self.receive(&mut buffer) {
                // Root's daemon hears root alone; a user's, the user's processes.
                Ok((length, uid)) if uid == Some(me) || uid == Some(0) => {
                    match serde_json::from_slice(buffer.get(..length).unwrap_or_default()) {
                        Ok(news) => self.take(news),
                        Err(e) => tracing::debug!("news of a supervisor are not understood: {e}"),
                    }
                }
                Ok(_) | Err(nix::errno::Errno::EINTR) => {}
                Err(e) => {
                    tracing::error!("supervisors cannot be heard: {e}");
                    std::thread::sleep(Duration::from_secs(1));
                }
            }
        }
    }

    fn receive(&self, buffer: &mut [u8]) -> nix::Result<(usize, Option<u32>)> {
        // Room for the sender's identity and nothing else: file descriptors that come along are not taken.
        let mut space = nix::cmsg_space!(nix::sys::socket::UnixCredentials);
        let mut parts = [IoSliceMut::new(buffer)];
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        let message = recvmsg::<()>(self.socket.as_raw_fd(), &mut parts, Some(&mut space), flags)?;
        let uid = message.cmsgs().ok().and_then(|mut all| {
            all.find_map(|one| match one {
                ControlMessageOwned::ScmCredentials(who) => Some(who.uid()),
                _ => None,
            })
        });
        Ok((message.bytes, uid))
    }

    fn take(&self, news: News) {
        let mut paced = self.lock();
        let job = news.attempt.split('.').next().and_then(|job| job.parse().ok()).map(JobId);
        let paced = job.and_then(|job| paced.get_mut(&job)).filter(|paced| paced.name == news.attempt);
        let Some(paced) = paced else { return };
        if paced.heard.elapsed() > SILENCE {
            paced.since = self.clock.now();
        }
        paced.heard = Instant::now();
        // No later than now: a user's daemon hears the user's processes, who may say anything.
        let now_s = self.clock.now().as_secs_f64();
        let told_s = self.clock.at_boot_s(news.at_s).min(now_s);
        paced.told_s = Some(paced.told_s.map_or(told_s, |before| before.max(told_s)));
        for event in news.events {
            let event = event.at(|boot_s| self.clock.at_boot_s(boot_s).min(now_s));
            event.count(&mut paced.tally);
        }
    }

    /// As if a job's supervisor had told that it made a step.
    #[cfg(test)]
    pub fn step(&self, job: JobId, at: Millis) {
        if let Some(paced) = self.lock().get_mut(&job) {
            paced.tally.steps(at.as_secs_f64(), "process", 1);
        }
    }

    /// As if a job's supervisor had told that it printed a bar.
    #[cfg(test)]
    pub fn bar(&self, job: JobId, at: Millis, label: &str, count: f64, per_s: Option<f64>) {
        let (unit, label) = ("it".to_owned(), label.to_owned());
        let said = Said { unit, count: Some(count), total: None, per_s, label };
        if let Some(paced) = self.lock().get_mut(&job) {
            // The time that is told may be before the clock's.
            paced.since = Millis::ZERO;
            paced.tally.printed(&Report { at_s: at.as_secs_f64(), said: said.clone() });
        }
    }

    /// As if a job's supervisor had told that it printed a line.
    #[cfg(test)]
    pub fn print(&self, job: JobId, at: Millis, line: &str) {
        let (mut printed, mut reports) = (Printed::new(), Vec::new());
        printed.feed(at.as_secs_f64(), format!("{line}\n").as_bytes(), &mut reports);
        if let Some(paced) = self.lock().get_mut(&job) {
            paced.since = Millis::ZERO;
            reports.iter().for_each(|report| paced.tally.printed(report));
            printed.latencies().for_each(|(at_s, told)| paced.tally.latency(at_s, told));
        }
    }

    /// Looks at the host again and again; the times of the looks are since the start.
    fn look(&self) {
        let mut usages: BTreeMap<JobId, Usage> = BTreeMap::new();
        let start = Instant::now();
        loop {
            let began = Instant::now();
            self.look_at_hosts(start, &mut usages);
            std::thread::sleep(HOST_PACE.max(began.elapsed() * HOST_SHARE));
        }
    }

    /// Looks at what the running jobs take of the host; the times of `usages` are since `start`. Supervisors themselves
    /// do not count.
    fn look_at_hosts(&self, start: Instant, usages: &mut BTreeMap<JobId, Usage>) {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // A command may outlive its supervisor, whose pid is a stranger's then.
        running.retain(|(_, supervisor)| process::identify(supervisor.pid) == Some(*supervisor));
        usages.retain(|job, _| running.iter().any(|(running, _)| running == job));
        let mut hosts = BTreeMap::new();
        if !running.is_empty() {
            let supervisors: Vec<u32> = running.iter().map(|(_, supervisor)| supervisor.pid).collect();
            let at = Instant::now();
            let since = at.duration_since(start).as_secs_f64();
            for ((job, _), pids) in running.iter().zip(process::descendants_of(&supervisors)) {
                let host = usages.entry(*job).or_default().look(since, &pids);
                hosts.insert(*job, HostLook { at, host });
            }
        }
        *self.hosts.lock().unwrap_or_else(PoisonError::into_inner) = hosts;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Else a job would count as one that stands still while its log hangs, and its neighbours be ended.
    #[test]
    fn of_a_supervisor_that_is_silent_nothing_is_known_until_it_speaks_again() {
        let dir = tempfile::tempdir().unwrap();
        let paces = Paces::start(dir.path().to_owned(), Clock::start(Millis::ZERO, 1)).unwrap();
        let job = JobId(1);
        paces.open(job, "1.1".into());
        let opened = paces.clock.now();
        assert!(paces.is_heard(job, opened) && !paces.is_heard(JobId(2), opened));
        let silent = Instant::now().checked_sub(SILENCE + Duration::from_secs(1)).unwrap();
        paces.lock().get_mut(&job).unwrap().heard = silent;
        assert!(!paces.is_heard(job, opened));
        std::thread::sleep(Duration::from_millis(5));
        paces.take(News { attempt: "1.1".into(), at_s: 0.0, events: Vec::new() });
        assert!(!paces.is_heard(job, opened), "what it did before is not known");
        assert!(paces.is_heard(job, paces.clock.now()));
        // An attempt before the present one tells nothing of that.
        paces.lock().get_mut(&job).unwrap().heard = silent;
        paces.take(News { attempt: "1.0".into(), at_s: 0.0, events: Vec::new() });
        assert!(!paces.is_heard(job, paces.clock.now()));
    }

    #[test]
    fn of_a_supervisor_that_was_killed_the_last_that_it_told_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let clock = Clock::start(Millis::secs(100), 1);
        let paces = Paces::start(dir.path().to_owned(), clock).unwrap();
        let job = JobId(1);
        paces.open(job, "1.1".into());
        for step in 1..=4 {
            paces.print(job, Millis::secs(90 + step), &format!("step {step}/10"));
        }
        let counts = |paces: &Paces| paces.counts_of_all(&State::default(), clock.now());
        assert!(counts(&paces).done.contains_key(&job) && counts(&paces).lost.is_empty());
        paces.lose(job);
        let lost = counts(&paces);
        assert!(lost.done.is_empty() && paces.done(&State::default(), clock.now()).is_empty());
        assert_eq!(lost.lost[&job].unwrap().share, 0.4);
        // Nor is it known how fast it is, or whether it stands still.
        let now = clock.now();
        assert!(
            paces.rate(job, Millis::secs(90), now, None).is_none() && !paces.is_heard(job, Millis::secs(90))
        );
        // Before that was known, the time of which it told nothing did not count as one without steps.
        paces.lock().get_mut(&job).unwrap().lost = false;
        paces.lock().get_mut(&job).unwrap().told_s = Some(94.0);
        let rate = paces.rate(job, Millis::secs(90), Millis::secs(154), None).unwrap();
        assert!((0.9..1.1).contains(&rate.rate.per_s), "{rate:?}");
        assert_eq!(paces.silence(job, None, Millis::secs(154)), Some(Millis::ZERO));
        // Its next attempt has a supervisor.
        paces.open(job, "1.2".into());
        assert!(counts(&paces).lost.is_empty());
    }

    #[test]
    fn what_a_stranger_with_the_pid_of_a_dead_supervisor_takes_is_no_jobs() {
        let dir = tempfile::tempdir().unwrap();
        let paces = Paces::start(dir.path().to_owned(), Clock::start(Millis::ZERO, 1)).unwrap();
        let me = process::identify(std::process::id()).unwrap();
        let dead = ProcessRef { start_ticks: me.start_ticks - 1, ..me };
        paces.set_running(vec![(JobId(1), me), (JobId(2), dead)]);
        paces.look_at_hosts(Instant::now(), &mut BTreeMap::new());
        assert!(paces.host(JobId(1)).is_some() && paces.host(JobId(2)).is_none());
    }
}

//! Looks at the GPUs: one thread, one probe, rings of samples, processes matched with jobs.

use crate::clock::Clock;
use crate::run::cgroup::Hierarchy;
use carma_core::input::{Foreign, Observation};
use carma_core::model::{JobId, ProcessRef};
use carma_core::reading::{GpuReading, ProcessReading};
use carma_core::units::{Fraction, MiB, Millis};
use carma_core::windows::{GpuWindows, WindowSummary};
use carma_gpu::{Probe, Sharing};
use carma_process::process;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The latest look at one GPU.
#[derive(Debug, Clone)]
pub struct Look {
    /// What decisions may see.
    pub seen: Observation,
    /// The reading itself.
    pub reading: GpuReading,
}

/// Jobs that run, for matching processes with them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Roster {
    /// Job, supervisor, first process.
    pub jobs: Vec<(JobId, ProcessRef, Option<ProcessRef>)>,
}

/// Jobs on GPUs by UUID, for the recorder.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tenants(pub BTreeMap<Arc<str>, Vec<Placed>>);

/// A job on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placed {
    /// Which.
    pub job: JobId,
    /// Its user.
    pub uid: u32,
    /// Its part of what the GPU does, where known.
    pub share: Option<Fraction>,
}

/// Where the sampler leaves what it saw, and learns which jobs run.
#[derive(Debug, Default)]
pub struct Board {
    looks: Mutex<Arc<Vec<Look>>>,
    roster: Mutex<Arc<Roster>>,
    tenants: Mutex<Arc<Tenants>>,
    /// Notable looks that the engine has not taken, the oldest first.
    untaken: Mutex<VecDeque<Arc<Vec<Look>>>>,
    /// Looks that were asked for, and that were taken on request: see [`Board::ask`].
    asked: AtomicU64,
    answered: AtomicU64,
}

/// Notable looks kept for the engine at most: some seconds, should it be busy that long.
const UNTAKEN: usize = 64;

impl Board {
    /// The latest looks, in the order of the inventory.
    #[must_use]
    pub fn looks(&self) -> Arc<Vec<Look>> {
        lock(&self.looks).clone()
    }

    /// Notable looks since the last call, the oldest first, and the latest one: what came and went between two turns
    /// of the engine may be what a job died of.
    pub fn take(&self) -> Vec<Arc<Vec<Look>>> {
        let latest = self.looks();
        let mut taken: Vec<_> = std::mem::take(&mut *lock(&self.untaken)).into();
        if taken.last().is_none_or(|last| !Arc::ptr_eq(last, &latest)) {
            taken.push(latest);
        }
        taken
    }

    /// Asks for a look that begins from now on, and for a call of `changed` when it is there. Returns its number.
    pub fn ask(&self) -> u64 {
        self.asked.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Whether the look of this number is there.
    pub fn has(&self, number: u64) -> bool {
        self.answered.load(Ordering::Acquire) >= number
    }

    /// The processes on GPUs of these UUIDs, by a look that begins from now on; by the latest one, if none comes within
    /// `patience`.
    #[must_use]
    pub fn processes_on(&self, gpus: &[Arc<str>], patience: Duration) -> Vec<u32> {
        let (look, since) = (self.ask(), Instant::now());
        while !self.has(look) && since.elapsed() < patience {
            std::thread::sleep(Duration::from_millis(10));
        }
        let looks = self.looks();
        let there = looks.iter().filter(|look| gpus.contains(&look.reading.uuid));
        there.flat_map(|look| look.reading.processes.iter().flatten()).map(|process| process.pid).collect()
    }

    /// Tells which jobs run.
    pub fn set_roster(&self, roster: Roster) {
        *lock(&self.roster) = Arc::new(roster);
    }

    /// Tells which jobs have which GPUs, by UUID.
    pub fn set_tenants(&self, tenants: Tenants) {
        *lock(&self.tenants) = Arc::new(tenants);
    }

    /// Which jobs have which GPUs.
    #[must_use]
    pub fn tenants(&self) -> Arc<Tenants> {
        lock(&self.tenants).clone()
    }

    fn roster(&self) -> Arc<Roster> {
        lock(&self.roster).clone()
    }

    /// Publishes looks that answer what was asked up to a number; `notable`: they differ from the last.
    pub(crate) fn publish(&self, looks: Arc<Vec<Look>>, asked: u64, notable: bool) {
        if notable {
            let mut untaken = lock(&self.untaken);
            if untaken.len() >= UNTAKEN {
                untaken.pop_front();
            }
            untaken.push_back(looks.clone());
        }
        *lock(&self.looks) = looks;
        self.answered.store(asked, Ordering::Release);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How to sample.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// Between two samples, in life.
    pub sample: Duration,
    /// Between two summaries of the windows, in life.
    pub summarise: Duration,
    /// How far the windows reach back, on the daemon's clock.
    pub window: Millis,
}

/// Starts the sampling thread. `looked` is given every look, and told whether it was asked for or processes came or went,
/// memory moved or a GPU's health changed: things that a decision should not wait for.
///
/// # Errors
/// When the kernel gives no threads.
pub fn start(
    probe: Box<dyn Probe>,
    sharing: Arc<dyn Sharing>,
    clock: Clock,
    pace: Pace,
    board: Arc<Board>,
    hierarchy: Option<Arc<Hierarchy>>,
    looked: impl Fn(Millis, &Arc<Vec<Look>>, bool) + Send + 'static,
) -> std::io::Result<()> {
    let gpus = probe.inventory().len();
    let mut sampler = Sampler {
        probe,
        sharing,
        hierarchy,
        owners: BTreeMap::new(),
        names: Names::start(process::user_name)?,
        roster: Arc::default(),
        windows: vec![GpuWindows::new(pace.window); gpus],
        summaries: vec![WindowSummary::default(); gpus],
    };
    std::thread::Builder::new().name("sample".into()).spawn(move || {
        let mut next = Instant::now();
        let mut summarised: Option<Instant> = None;
        loop {
            let started = Instant::now();
            let due = summarised.is_none_or(|at| started.duration_since(at) >= pace.summarise);
            if due {
                summarised = Some(started);
            }
            // Read before the look begins, so that it answers nothing that was asked during it.
            let asked = board.asked.load(Ordering::Acquire);
            let at = clock.now();
            let looks = Arc::new(sampler.look(at, due, &board));
            let differs = differ(&board.looks(), &looks);
            let news = differs || !board.has(asked);
            board.publish(looks.clone(), asked, differs);
            looked(at, &looks, news);
            next += pace.sample;
            let now = Instant::now();
            if next < now {
                // A slow driver must not be followed by a burst of reads.
                next = now + pace.sample / 2;
            }
            std::thread::sleep(next - now);
        }
    })?;
    Ok(())
}

/// Memory changes below this wait for the next summary.
const NOTABLE: MiB = MiB(64);

fn differ(before: &[Look], after: &[Look]) -> bool {
    before.len() != after.len()
        || before.iter().zip(after).any(|(a, b)| {
            let (a, b) = (&a.seen, &b.seen);
            let pids = |o: &Observation| -> Vec<u32> { o.foreign.iter().map(|f| f.pid).collect() };
            let jobs = |o: &Observation| -> Vec<JobId> { o.jobs.iter().map(|(j, _)| *j).collect() };
            let memory = |o: &Observation| o.used.unwrap_or_default().0;
            a.health != b.health
                || a.processes_known != b.processes_known
                || jobs(a) != jobs(b)
                || pids(a) != pids(b)
                || memory(a).abs_diff(memory(b)) >= NOTABLE.0
        })
}

/// Whose a process is.
#[derive(Debug, Clone)]
enum Owner {
    Job(JobId),
    /// By the number of its user, where that is known.
    Foreign(Option<u32>),
    /// The sharing machinery itself.
    Ours,
}

/// Users that the database is still to be asked for, at most.
const UNASKED: usize = 64;

/// Login names of users. The database is asked by a thread of its own: as long as it hangs, GPUs are looked at all the same.
struct Names {
    /// `None`: asked for.
    of: Arc<Mutex<BTreeMap<u32, Option<Arc<str>>>>>,
    ask: SyncSender<u32>,
}

impl Names {
    /// `look_up` may block.
    fn start(look_up: impl Fn(u32) -> String + Send + 'static) -> std::io::Result<Self> {
        let of = Arc::<Mutex<BTreeMap<u32, Option<Arc<str>>>>>::default();
        let (ask, asked) = sync_channel(UNASKED);
        let found = of.clone();
        std::thread::Builder::new().name("names".into()).spawn(move || {
            for uid in asked {
                let name = look_up(uid).into();
                lock(&found).insert(uid, Some(name));
            }
        })?;
        Ok(Self { of, ask })
    }

    /// The name of a user; the number until it is known.
    fn of(&self, uid: u32) -> Arc<str> {
        let mut of = lock(&self.of);
        if !of.contains_key(&uid) && self.ask.try_send(uid).is_ok() {
            of.insert(uid, None);
        }
        of.get(&uid).cloned().flatten().unwrap_or_else(|| uid.to_string().into())
    }

    /// Forgets the names of all other users, which may change.
    fn keep(&self, uids: &BTreeSet<u32>) {
        lock(&self.of).retain(|uid, name| name.is_none() || uids.contains(uid));
    }
}

struct Sampler {
    probe: Box<dyn Probe>,
    sharing: Arc<dyn Sharing>,
    hierarchy: Option<Arc<Hierarchy>>,
    /// By pid, with the start time that tells a reused pid.
    owners: BTreeMap<u32, (u64, Owner)>,
    names: Names,
    roster: Arc<Roster>,
    windows: Vec<GpuWindows>,
    summaries: Vec<WindowSummary>,
}

impl Sampler {
    fn look(&mut self, at: Millis, summarise: bool, board: &Board) -> Vec<Look> {
        let roster = board.roster();
        if roster != self.roster {
            // A process taken for a stranger, or for an MPS server, may turn out to belong to a job that just started.
            self.owners.retain(|_, (_, owner)| matches!(owner, Owner::Job(_)));
            self.roster = roster;
        }
        let snapshot = self.probe.tick(at);
        let mut looks = Vec::with_capacity(snapshot.gpus.len());
        let mut alive = Vec::new();
        for (i, reading) in snapshot.gpus.into_iter().enumerate() {
            if let (Some(windows), Some(summary)) = (self.windows.get_mut(i), self.summaries.get_mut(i)) {
                windows.push(at, &reading.activity);
                if summarise {
                    *summary = windows.summary();
                }
            }
            let mut seen = Observation {
                at,
                health: reading.health.clone(),
                used: reading.memory_used,
                jobs: Vec::new(),
                foreign: Vec::new(),
                processes_known: reading.processes.is_some(),
                window: self.summaries.get(i).copied().unwrap_or_default(),
                energy_mj: reading.energy_mj,
            };
            for process in reading.processes.iter().flatten() {
                let (owner, lives) = self.owner(process.pid);
                alive.extend(lives.then_some(process.pid));
                assign(process, owner, &self.names, &mut seen);
            }
            seen.jobs.sort_unstable_by_key(|(job, _)| *job);
            looks.push(Look { seen, reading });
        }
        self.owners.retain(|pid, _| alive.contains(pid));
        let uid = |(_, owner): &(u64, Owner)| if let Owner::Foreign(uid) = owner { *uid } else { None };
        self.names.keep(&self.owners.values().filter_map(uid).collect());
        looks
    }

    /// Whose a process of the snapshot is, and whether it is still there.
    fn owner(&mut self, pid: u32) -> (Owner, bool) {
        let known = self.owners.get(&pid);
        let Some(stat) = process::stat(pid) else {
            // Gone since the snapshot: it is the one that was there at the last look, and no stranger to be blamed for what a job of
            // ours took. Else in another pid namespace.
            return (known.map_or(Owner::Foreign(None), |(_, owner)| owner.clone()), false);
        };
        if let Some((_, owner)) = known.filter(|(start, _)| *start == stat.start_ticks) {
            return (owner.clone(), true);
        }
        let owner = match self.job_of(stat) {
            Some(job) => Owner::Job(job),
            None if self.sharing.is_own_process(pid) => Owner::Ours,
            None => Owner::Foreign(process::owner(pid)),
        };
        self.owners.insert(pid, (stat.start_ticks, owner.clone()));
        (owner, true)
    }

    /// The job that a process belongs to: by its cgroup, which it cannot leave; else by its session or its ancestors.
    fn job_of(&self, stat: process::Stat) -> Option<JobId> {
        if let Some(job) = self.hierarchy.as_ref().and_then(|hierarchy| hierarchy.job_of(stat.pid)) {
            return Some(job);
        }
        let mut at = Some(stat);
        for _ in 0..64 {
            let s = at?;
            // By pid and start: the pid of a supervisor that was killed may be a stranger's by now.
            let is = |it: &ProcessRef| (it.pid, it.start_ticks) == (s.pid, s.start_ticks);
            let is_in_session = |c: &ProcessRef| c.pid == s.session && c.start_ticks <= s.start_ticks;
            let job = self.roster.jobs.iter().find(|(_, supervisor, child)| {
                is(supervisor) || child.as_ref().is_some_and(|c| is(c) || is_in_session(c))
            });
            if let Some((job, _, _)) = job {
                return Some(*job);
            }
            if s.parent <= 1 {
                return None;
            }
            at = process::stat(s.parent);
        }
        None
    }
}

/// Counts a process as its owner's.
fn assign(process: &ProcessReading, owner: Owner, names: &Names, seen: &mut Observation) {
    match owner {
        Owner::Ours => {}
        Owner::Job(job) => match seen.jobs.iter_mut().find(|(j, _)| *j == job) {
            // A job with several processes: unknown plus anything is unknown.
            Some((_, memory)) => {
                *memory = memory.zip(process.memory).map(|(a, b)| a + b);
            }
            None => seen.jobs.push((job, process.memory)),
        },
        Owner::Foreign(uid) => {
            let user = uid.map(|uid| names.of(uid));
            seen.foreign.push(Foreign { pid: process.pid, user, memory: process.memory });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use carma_core::reading::{GpuInfo, Health, Snapshot};
    use carma_gpu::{Mps, MpsOptions};
    use std::process::Command;

    /// One GPU with one process.
    struct One(u32);

    impl Probe for One {
        fn inventory(&self) -> &[GpuInfo] {
            &[]
        }

        fn tick(&mut self, at: Millis) -> Snapshot {
            let memory = Some(MiB(30_000));
            let processes = Some(vec![ProcessReading { pid: self.0, memory }]);
            let reading = GpuReading { processes, ..GpuReading::empty("GPU-a".into(), Health::Ok) };
            Snapshot { at, gpus: vec![reading] }
        }
    }

    #[test]
    fn whose_a_process_is() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("nvidia-cuda-mps-server");
        // Not fs::copy: a child forked by another test would have the file open for writing, and it could not be run.
        assert!(Command::new("cp").arg("/bin/sleep").arg(&program).status().unwrap().success());
        let mut named = Command::new(&program).arg("60").spawn().unwrap();
        let mut sampler = Sampler {
            probe: Box::new(One(named.id())),
            sharing: Arc::new(Mps::new(MpsOptions::new(folder.path()))),
            hierarchy: None,
            owners: BTreeMap::new(),
            names: Names::start(process::user_name).unwrap(),
            roster: Arc::default(),
            windows: Vec::new(),
            summaries: Vec::new(),
        };
        let board = Board::default();
        let mut seen = || sampler.look(Millis(1), false, &board).remove(0).seen;
        let server = seen();
        let process = process::identify(named.id()).unwrap();
        let supervisor = ProcessRef { pid: u32::MAX, start_ticks: 0 };
        // One that had its pid before.
        let earlier = ProcessRef { start_ticks: process.start_ticks - 1, ..process };
        board.set_roster(Roster { jobs: vec![(JobId(6), earlier, Some(earlier))] });
        let of_none = seen();
        assert_eq!((of_none.jobs, of_none.foreign), (vec![], vec![]), "of no job, it is the server");
        board.set_roster(Roster { jobs: vec![(JobId(7), supervisor, Some(process))] });
        let job = seen();
        named.kill().unwrap();
        named.wait().unwrap();
        let [dying, left_behind] = [seen(), seen()];
        assert_eq!((server.jobs, server.foreign), (vec![], vec![]), "of no job, it is the server");
        for seen in [job, dying] {
            assert_eq!((seen.jobs, seen.foreign), (vec![(JobId(7), Some(MiB(30_000)))], vec![]));
        }
        // What stays on a GPU without a process is not the job's, which has ended: what it is is not known.
        assert_eq!((left_behind.jobs, left_behind.foreign.len()), (vec![], 1));
    }

    /// A directory service that is down.
    #[test]
    fn a_user_database_that_hangs_keeps_nobody_from_looking_at_gpus() {
        let folder = tempfile::tempdir().unwrap();
        let mut process = Command::new("/bin/sleep").arg("60").spawn().unwrap();
        let (answer, answers) = std::sync::mpsc::channel::<String>();
        let mut sampler = Sampler {
            probe: Box::new(One(process.id())),
            sharing: Arc::new(Mps::new(MpsOptions::new(folder.path()))),
            hierarchy: None,
            owners: BTreeMap::new(),
            names: Names::start(move |_| answers.recv().unwrap()).unwrap(),
            roster: Arc::default(),
            windows: Vec::new(),
            summaries: Vec::new(),
        };
        let board = Board::default();
        let mut user = || sampler.look(Millis(1), false, &board).remove(0).seen.foreign.remove(0).user;
        let number = rustix::process::getuid().as_raw().to_string();
        assert_eq!([user(), user()], [(); 2].map(|()| Some(number.as_str().into())));
        answer.send("alice".into()).unwrap();
        while user().as_deref() != Some("alice") {
            std::thread::sleep(Duration::from_millis(5));
        }
        // What jobs there are changes, and the name stays known.
        board.set_roster(Roster {
            jobs: vec![(JobId(1), ProcessRef { pid: u32::MAX, start_ticks: 0 }, None)],
        });
        assert_eq!(user().as_deref(), Some("alice"));
        process.kill().unwrap();
        process.wait().unwrap();
    }
}

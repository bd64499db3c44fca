//! Starts supervisors, off the engine's thread. Nothing here touches a path that a user named.

use super::cgroup::Hierarchy;
use super::checkpoint;
use super::identity::{AttemptId, Life};
use super::order::{Log, Order};
use super::pace::Paces;
use super::record::{Claim, Records};
use super::watch::{Attempt, Watcher};
use crate::fault::{self, Point};
use crate::journal::StoredJob;
use carma_api::wire::ResourceLimit;
use carma_core::model::{JobId, SharingMode};
use carma_core::units::MiB;
use carma_gpu::{Sharing, SharingRequest};
use carma_process::progress::Owner;
use rustix::fs::{MemfdFlags, memfd_create};
use std::fs::File;
use std::io::{self, Seek, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, mpsc};

/// Whether a variable makes a program a client of an MPS server, or limits it there (NVIDIA's "Multi-Process Service"; there
/// are more with each version), or does so on virtual GPUs.
fn is_of_mps(variable: &str) -> bool {
    variable.starts_with("CUDA_MPS_") || variable == carma_virtual_gpu::ENV_MPS
}

/// A launch that was decided.
pub struct Launch {
    /// Number of the job.
    pub job: JobId,
    /// Number of the attempt, from 1.
    pub attempt: u32,
    /// What was submitted.
    pub stored: StoredJob,
    /// What its user was called then.
    pub user_name: Arc<str>,
    /// UUIDs of its GPUs.
    pub gpus: Vec<Arc<str>>,
    /// How it shares them.
    pub sharing: SharingMode,
    /// Hard cap of memory.
    pub cap: Option<MiB>,
    /// Share of the SMs' threads.
    pub thread_percent: Option<u8>,
    /// Its identity.
    pub id: AttemptId,
    /// Its record, still unwritten.
    pub records: Records,
    /// Earlier attempts that really began.
    pub restarts: usize,
    /// Launches in a row before this one of which nothing came.
    pub not_launched: usize,
}

/// What came of a launch, as far as the launcher can tell.
pub enum Outcome {
    /// It is about to be spawned in another mode than the one decided.
    Fallback {
        /// How it shares its GPUs.
        sharing: SharingMode,
        /// The cause, in words.
        note: String,
    },
    /// Nothing was spawned, and nothing of it ever will run.
    NotSpawned {
        /// The cause, in words.
        why: String,
        /// Whether the machine lacked something: the next attempt waits a little then.
        machine: bool,
        /// Whether a fence sees to that, since a supervisor may still come.
        fenced: bool,
    },
}

/// Where outcomes go.
pub type Report = Arc<dyn Fn(JobId, u32, Outcome) + Send + Sync>;

/// What launches need to know.
pub struct Context {
    /// The present life.
    pub life: Life,
    /// Directory of the records of the present life.
    pub records: PathBuf,
    /// Directory of the logs that carma keeps.
    pub log_dir: PathBuf,
    /// Whether we are root and jobs become their users.
    pub as_root: bool,
    /// Variables that every job gets.
    pub env: Vec<(String, String)>,
    /// Starts and stops MPS daemons.
    pub sharing: Arc<dyn Sharing>,
    /// Where cgroups are made, if anywhere.
    pub hierarchy: Option<Arc<Hierarchy>>,
    /// Soft limit of descriptors with which the daemon was started: what jobs get that do not bring one.
    pub descriptors: Option<u64>,
    /// Watches what was spawned.
    pub watcher: Arc<Watcher>,
    /// Counts its progress.
    pub paces: Arc<Paces>,
    /// Longest time between two signs of life of a supervisor, milliseconds in life.
    pub alive_ms: u64,
    /// Takes the outcomes.
    pub report: Report,
}

/// The thread that launches, in the order in which launches were decided.
pub struct Launcher {
    orders: mpsc::Sender<Launch>,
    paces: Arc<Paces>,
}

impl Launcher {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the kernel gives no thread.
    pub fn start(context: Context) -> io::Result<Self> {
        let (orders, queue) = mpsc::channel::<Launch>();
        let (paces, context) = (context.paces.clone(), Arc::new(context));
        std::thread::Builder::new().name("launch".into()).spawn(move || {
            for launch in queue {
                if launch.sharing == SharingMode::Mps {
                    // Starting an MPS daemon takes seconds; no other launch waits for it.
                    let (thread, name) = (context.clone(), (launch.job, launch.attempt));
                    let launching = std::thread::Builder::new().name("launch mps".into());
                    if let Err(e) = launching.spawn(move || thread.launch(launch)) {
                        let why = format!("a thread cannot be had: {e}");
                        (context.report)(
                            name.0,
                            name.1,
                            Outcome::NotSpawned { why, machine: true, fenced: false },
                        );
                    }
                } else {
                    context.launch(launch);
                }
            }
        })?;
        Ok(Self { orders, paces })
    }

    /// Takes a launch. News of it are taken in from now on: by the thread that has decided it, which is told of its end as well, so that what
    /// ended before it was spawned stays forgotten.
    pub fn launch(&self, launch: Launch) {
        self.paces.open(launch.job, launch.id.short());
        if self.orders.send(launch).is_err() {
            tracing::error!("the launching thread is gone");
        }
    }
}

impl Context {
    fn launch(&self, launch: Launch) {
        let (job, attempt) = (launch.job, launch.attempt);
        let mut env = Vec::new();
        if launch.sharing == SharingMode::Mps {
            let request = SharingRequest {
                uid: launch.stored.uid,
                gid: launch.stored.gid,
                gpus: launch.gpus.clone(),
                cap: launch.cap,
                thread_percent: launch.thread_percent,
            };
            match self.sharing.prepare(&request) {
                Ok(grant) => env = grant.env,
                Err(e) => {
                    tracing::warn!("job {job} shares by time-slice, since MPS cannot be had: {e}");
                    // Reported before the spawn, so that it is known before the job is seen to run.
                    let note = format!("MPS cannot be had ({e}); shares by time-slice");
                    (self.report)(job, attempt, Outcome::Fallback { sharing: SharingMode::TimeSlice, note });
                }
            }
        }
        // A cancel that came meanwhile has fenced it off.
        if let Ok(Some(record)) = launch.records.read()
            && record.claim == Claim::Fenced
        {
            let why = "it was to be ended before it had begun".to_owned();
            return (self.report)(job, attempt, Outcome::NotSpawned { why, machine: false, fenced: false });
        }
        fault::inject(Point::HoldLaunch);
        let spawned = self.spawn(&launch, env);
        fault::inject(Point::AfterSpawn);
        match spawned {
            Ok(child) => {
                let attempt = Attempt {
                    job,
                    attempt,
                    records: launch.records,
                    life: self.life.clone(),
                    group: self.hierarchy.as_ref().map(|h| h.group(&launch.id.short())),
                    supervisor: None,
                    child: None,
                };
                self.watcher.spawned(attempt, child);
            }
            Err(e) => {
                let why = format!("its supervisor cannot be started: {e}");
                (self.report)(job, attempt, Outcome::NotSpawned { why, machine: true, fenced: false });
            }
        }
    }

    /// Spawns the supervisor. With an error, nothing was spawned.
    fn spawn(&self, launch: &Launch, sharing_env: Vec<(String, String)>) -> io::Result<Child> {
        let stored = &launch.stored;
        let mut env = stored.request.env.clone();
        let gpus: Vec<&str> = launch.gpus.iter().map(|g| &**g).collect();
        env.insert("CUDA_VISIBLE_DEVICES".into(), gpus.join(","));
        env.insert("CUDA_DEVICE_ORDER".into(), "PCI_BUS_ID".into());
        env.insert("CARMA_JOB_ID".into(), launch.job.to_string());
        env.insert("CARMA_ATTEMPT".into(), launch.attempt.to_string());
        env.insert("CARMA_RESTART".into(), launch.restarts.to_string());
        env.extend(self.env.iter().cloned());
        // Those of the session in which it was submitted: a job that was not placed under MPS would be a client all the same.
        env.retain(|variable, _| !is_of_mps(variable));
        env.extend(sharing_env);
        let mut session = stored.request.session.clone();
        if let Some(soft) = self.descriptors {
            let limit = || ResourceLimit { soft: Some(soft), hard: None };
            session.limits.entry("nofile".into()).or_insert_with(limit);
        }
        let order = Order {
            id: launch.id.clone(),
            records: self.records.clone(),
            pace: self.paces.dir().clone(),
            groups: self.hierarchy.as_ref().map(|h| h.dir().to_owned()),
            limits: stored.request.host_limits().into(),
            command: stored.request.command.clone(),
            cwd: stored.request.cwd.clone(),
            env,
            session,
            user: self.as_root.then_some(Owner { uid: stored.uid, gid: stored.gid }),
            user_name: launch.user_name.clone(),
            not_launched: launch.not_launched,
            log: log_of(&self.log_dir, launch.job, stored),
            checkpoint: checkpoint::directory(&stored.request, &launch.id.journal, launch.job),
            alive_ms: self.alive_ms,
        };
        // A file in memory, since an environment may be larger than a pipe holds.
        let mut stdin = File::from(memfd_create("carma-order", MemfdFlags::CLOEXEC)?);
        stdin.write_all(&serde_json::to_vec(&order).map_err(io::Error::other)?)?;
        stdin.rewind()?;
        // No pre_exec here: without it the standard library uses posix_spawn, which does not copy
        // the daemon's page tables. /proc/self/exe is this very program, also after an upgrade.
        Command::new("/proc/self/exe")
            .arg0("carma-supervisor")
            .arg(super::supervise::ARGUMENT)
            .env_clear()
            // One heap for its two threads: a second one costs more than waiting for the first.
            .env("MALLOC_ARENA_MAX", "1")
            .stdin(stdin)
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .current_dir("/")
            .spawn()
    }
}

/// Where the output of a job goes: to a log in this directory, unless its user named a file.
fn log_of(dir: &Path, job: JobId, stored: &StoredJob) -> Log {
    match &stored.request.output {
        None => Log::Kept { path: kept_log(dir, job), limit: log_limit(&stored.request) },
        Some(_) => Log::Users(PathBuf::from(&stored.log)),
    }
}

/// The log that carma keeps of a job. Not by the path that the job was told when it was submitted: the state directory may have
/// been moved since.
pub(crate) fn kept_log(dir: &Path, job: JobId) -> PathBuf {
    dir.join(format!("{job}.log"))
}

/// Longest that a log which carma keeps may become, bytes.
pub(crate) fn log_limit(request: &carma_api::wire::SubmitRequest) -> u64 {
    request.log_limit_mib.map_or(u64::MAX, |mib| mib.saturating_mul(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;
    use carma_api::wire::SubmitRequest;

    /// Its supervisor finds the fence: its end is not reported a second time, and what was opened for it must not stay.
    #[test]
    fn a_job_that_is_cancelled_before_it_is_spawned_is_not_listened_to() {
        let dir = tempfile::tempdir().unwrap();
        let clock = crate::clock::Clock::start(carma_core::units::Millis(1), 1);
        let life = Life::begin(carma_core::units::Millis(1), "1-2").unwrap();
        let pace = dir.path().join("pace");
        std::fs::create_dir(&pace).unwrap();
        let paces = Paces::start(pace, clock).unwrap();
        let (tell, told) = mpsc::channel();
        let sink = Box::new(move |job, _, _| {
            let _ = tell.send(job);
        });
        let launcher = Launcher::start(Context {
            life: life.clone(),
            records: dir.path().to_owned(),
            log_dir: dir.path().to_owned(),
            as_root: false,
            env: Vec::new(),
            sharing: Arc::new(carma_gpu::Mps::new(carma_gpu::MpsOptions::new(dir.path().join("mps")))),
            hierarchy: None,
            descriptors: None,
            watcher: Watcher::start(life.clone(), sink).unwrap(),
            paces: paces.clone(),
            alive_ms: 1000,
            report: Arc::new(|_, _, _| ()),
        })
        .unwrap();
        let job = JobId(7);
        let id = AttemptId {
            journal: "j".into(),
            life: life.name.clone(),
            host: life.host.clone(),
            boot: life.boot.clone(),
            job,
            attempt: 1,
        };
        // As carma, this program does nothing when it is asked to supervise.
        let request = SubmitRequest::default();
        launcher.launch(Launch {
            job,
            attempt: 1,
            stored: StoredJob { request, uid: 1, gid: 1, log: String::new(), estimate: None },
            user_name: "u".into(),
            gpus: Vec::new(),
            sharing: SharingMode::TimeSlice,
            cap: None,
            thread_percent: None,
            records: Records::new(dir.path(), id.clone()),
            id,
            restarts: 0,
            not_launched: 0,
        });
        assert!(paces.is_heard(job, clock.now()), "it is listened to from when it was decided");
        paces.close(job, 1);
        // It was spawned, and is over.
        assert_eq!(told.recv_timeout(std::time::Duration::from_secs(60)).unwrap(), job);
        assert!(!paces.is_heard(job, clock.now()));
    }

    /// `mv state moved`, while a job waits.
    #[test]
    fn the_log_of_a_job_is_where_the_state_directory_is_now() {
        let of = |output: Option<&str>, log: &str| {
            let request = SubmitRequest { output: output.map(str::to_owned), ..SubmitRequest::default() };
            let stored = StoredJob { request, uid: 1, gid: 1, log: log.into(), estimate: None };
            log_of(Path::new("/moved/logs"), JobId(7), &stored)
        };
        let kept = Log::Kept { path: "/moved/logs/7.log".into(), limit: u64::MAX };
        assert_eq!(of(None, "/state/logs/7.log"), kept);
        assert_eq!(of(Some("/home/u/out"), "/home/u/out"), Log::Users("/home/u/out".into()));
        // Named by the user, it is the user's to open, wherever it lies.
        assert_eq!(
            of(Some("/moved/logs/7.log"), "/moved/logs/7.log"),
            Log::Users("/moved/logs/7.log".into())
        );
    }
}

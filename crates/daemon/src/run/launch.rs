//! Starts supervisors, off the engine's thread.

use super::pace::Paces;
use super::progress::Owner;
use super::record::{Identity, Order};
use super::watch::Watcher;
use crate::fault::{self, Point};
use crate::journal::StoredJob;
use carma_core::model::{JobId, ProcessRef, SharingMode};
use carma_core::units::MiB;
use carma_gpu::{Sharing, SharingRequest};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::fs::File;
use std::io::{self, Seek, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, mpsc};

/// A launch that was decided.
pub struct Launch {
    /// Job.
    pub job: JobId,
    /// Attempt.
    pub attempt: u32,
    /// What was submitted.
    pub stored: StoredJob,
    /// UUIDs of its GPUs.
    pub gpus: Vec<Arc<str>>,
    /// How it shares them.
    pub sharing: SharingMode,
    /// Hard cap of memory.
    pub cap: Option<MiB>,
    /// Share of the SMs' threads.
    pub thread_percent: Option<u8>,
}

/// What came of a launch, as far as the launcher can tell.
pub enum Outcome {
    /// It is about to be spawned in another mode than the one decided.
    Fallback {
        /// Mode.
        sharing: SharingMode,
        /// Why.
        note: String,
    },
    /// It was not.
    Failed {
        /// Why.
        error: String,
    },
}

/// Where outcomes go.
pub type Report = Arc<dyn Fn(JobId, u32, Outcome) + Send + Sync>;

/// What launches need to know.
pub struct Context {
    /// Directory of the records.
    pub run_dir: PathBuf,
    /// Directory of the logs that carma creates.
    pub log_dir: PathBuf,
    /// Whether we are root and jobs become their users.
    pub as_root: bool,
    /// Variables that every job gets.
    pub env: Vec<(String, String)>,
    /// MPS.
    pub sharing: Arc<dyn Sharing>,
    /// Watches what was spawned.
    pub watcher: Arc<Watcher>,
    /// Counts its progress.
    pub paces: Arc<Paces>,
    /// Takes the outcomes.
    pub report: Report,
}

/// The thread that launches, in the order in which launches were decided.
pub struct Launcher {
    orders: mpsc::Sender<Launch>,
}

impl Launcher {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the kernel gives no thread.
    pub fn start(context: Context) -> io::Result<Self> {
        let (orders, queue) = mpsc::channel::<Launch>();
        let context = Arc::new(context);
        std::thread::Builder::new().name("launch".into()).spawn(move || {
            for launch in queue {
                if launch.sharing == SharingMode::Mps {
                    // Starting an MPS daemon takes seconds; nobody else waits for it.
                    let context = context.clone();
                    std::thread::spawn(move || context.launch(&launch));
                } else {
                    context.launch(&launch);
                }
            }
        })?;
        Ok(Self { orders })
    }

    /// Takes a launch.
    pub fn launch(&self, launch: Launch) {
        if self.orders.send(launch).is_err() {
            tracing::error!("the launching thread is gone");
        }
    }
}

impl Context {
    fn launch(&self, launch: &Launch) {
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
                    tracing::warn!("job {} shares by time-slice, since MPS cannot be had: {e}", launch.job);
                    // Reported before the spawn, so that it is known before the job is seen to run.
                    let note = format!("MPS cannot be had ({e}); shares by time-slice");
                    let fallback = Outcome::Fallback { sharing: SharingMode::TimeSlice, note };
                    (self.report)(launch.job, launch.attempt, fallback);
                }
            }
        }
        if let Err(e) = self.spawn(launch, env) {
            let error = format!("its supervisor cannot be started: {e}");
            (self.report)(launch.job, launch.attempt, Outcome::Failed { error });
        }
        fault::inject(Point::AfterSpawn);
    }

    fn spawn(&self, launch: &Launch, sharing_env: Vec<(String, String)>) -> io::Result<()> {
        let stored = &launch.stored;
        let mut env = stored.request.env.clone();
        let gpus: Vec<&str> = launch.gpus.iter().map(|g| &**g).collect();
        env.insert("CUDA_VISIBLE_DEVICES".into(), gpus.join(","));
        env.insert("CUDA_DEVICE_ORDER".into(), "PCI_BUS_ID".into());
        env.insert("CARMA_JOB_ID".into(), launch.job.to_string());
        env.insert("CARMA_ATTEMPT".into(), launch.attempt.to_string());
        let log = PathBuf::from(&stored.log);
        let owner = Owner { uid: stored.uid, gid: stored.gid };
        env.extend(self.paces.open(launch.job, launch.attempt, &log, owner, self.as_root, false));
        env.extend(self.env.iter().cloned());
        env.extend(sharing_env);
        let become_user = self.as_root.then(|| Identity {
            uid: stored.uid,
            gid: stored.gid,
            name: uzers::get_user_by_uid(stored.uid).map(|u| u.name().to_string_lossy().into_owned()),
        });
        let order = Order {
            job: launch.job,
            attempt: launch.attempt,
            run_dir: self.run_dir.clone(),
            command: stored.request.command.clone(),
            cwd: stored.request.cwd.clone(),
            env,
            become_user,
            own_log: log.parent() == Some(&*self.log_dir),
            log,
        };
        // A file in memory, since an environment may be larger than a pipe holds.
        let mut stdin = File::from(memfd_create("carma-order", MemfdFlags::CLOEXEC)?);
        stdin.write_all(&serde_json::to_vec(&order).map_err(io::Error::other)?)?;
        stdin.rewind()?;
        // No pre_exec here: without it the standard library uses posix_spawn, which does not copy
        // the daemon's page tables. /proc/self/exe is this very program, also after an upgrade.
        let child = Command::new("/proc/self/exe")
            .arg0("carma-supervisor")
            .arg(super::supervise::ARGUMENT)
            .env_clear()
            .stdin(stdin)
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .current_dir("/")
            .spawn()?;
        let pid = Pid::from_raw(child.id().cast_signed()).ok_or_else(|| io::Error::other("pid 0"))?;
        // Not reaped yet, so the pid is its own.
        let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
        self.watcher.watch(launch.job, launch.attempt, pidfd, Some(child))
    }
}

/// Signals a job: through its supervisor, which knows exactly which processes are its own, or
/// directly where the supervisor was killed.
///
/// Returns whether anybody was there to be signalled.
#[must_use]
pub fn signal(supervisor: ProcessRef, child: Option<ProcessRef>, kill: bool) -> bool {
    use rustix::process::{Signal, kill_process_group, pidfd_send_signal};
    let to_supervisor = if kill { Signal::USR1 } else { Signal::TERM };
    if let Some(pidfd) = super::process::open(supervisor) {
        return pidfd_send_signal(pidfd, to_supervisor).is_ok();
    }
    let Some(child) = child else { return false };
    if super::process::open(child).is_none() {
        return false;
    }
    // The command leads its own session, so its pid names the group as long as it lives.
    let signal = if kill { Signal::KILL } else { Signal::TERM };
    Pid::from_raw(child.pid.cast_signed()).is_some_and(|pid| kill_process_group(pid, signal).is_ok())
}

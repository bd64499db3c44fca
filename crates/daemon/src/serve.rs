//! Puts the daemon together and runs it.

use crate::clock::Clock;
use crate::config::{Config, Sync};
use crate::engine::{Engine, Message, Parts};
use crate::http::{self, App, Credentials};
use crate::journal::{Journal, JournalError};
use crate::memory::Memory;
use crate::notify::{Notify, Watchdog};
use crate::perform::Performer;
use crate::run::launch::{Context, Launcher, Report};
use crate::run::pace::Paces;
use crate::run::watch::Watcher;
use crate::sampler::{self, Board, Pace};
use crate::slowdown::Slowdowns;
use carma_core::Input;
use carma_core::reading::GpuInfo;
use carma_core::state::State;
use carma_core::units::Millis;
use carma_gpu::nvml::{self, NvmlOptions, parse_visible};
use carma_gpu::{Mps, MpsOptions, Probe, Sharing};
use carma_sim::virtual_gpu::{VirtualGpus, VirtualSpec};
use rustix::fs::{FlockOperation, flock};
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use tokio::net::{UnixListener, UnixStream};
use tokio::signal::unix::{SignalKind, signal};

/// What to serve.
#[derive(Debug, Clone)]
pub struct ServeOptions {
    /// The configuration; the fields below win over it.
    pub config: Config,
    /// Unix socket that clients use.
    pub socket: PathBuf,
    /// Directory of everything that carma keeps.
    pub state_dir: PathBuf,
    /// `auto`, `nvml` or `virtual:...`.
    pub gpus: String,
    /// How much faster than life time runs; above 1 for virtual GPUs only.
    pub speed: u32,
}

/// Why the daemon cannot run.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// A file or directory.
    #[error("{what} {}: {why}", path.display())]
    Path {
        /// What was tried.
        what: &'static str,
        /// With which path.
        path: PathBuf,
        /// What happened.
        why: io::Error,
    },
    /// Somebody else is there.
    #[error("{0}")]
    InUse(String),
    /// The journal.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The GPUs.
    #[error("{0}")]
    Gpus(String),
    /// The configuration.
    #[error("{0}")]
    Config(String),
    /// The system.
    #[error("{what}: {why}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What happened.
        why: io::Error,
    },
}

fn path_error(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ServeError {
    let path = path.to_owned();
    move |why| ServeError::Path { what, path, why }
}

fn system(what: &'static str) -> impl FnOnce(io::Error) -> ServeError {
    move |why| ServeError::System { what, why }
}

/// The directories of the daemon.
struct Layout {
    run: PathBuf,
    pace: PathBuf,
    logs: PathBuf,
    journal: PathBuf,
    mps: PathBuf,
    virtual_gpus: PathBuf,
    /// Held as long as the daemon lives.
    _lock: File,
}

impl Layout {
    fn prepare(state_dir: &Path, as_root: bool) -> Result<Self, ServeError> {
        let make = |path: PathBuf, mode: u32| -> Result<PathBuf, ServeError> {
            fs::create_dir_all(&path).map_err(path_error("cannot create", &path))?;
            fs::set_permissions(&path, Permissions::from_mode(mode))
                .map_err(path_error("cannot set the permissions of", &path))?;
            Ok(path)
        };
        // Users of a root daemon reach their own log files, and see no names of others.
        let searchable = if as_root { 0o711 } else { 0o700 };
        make(state_dir.to_owned(), searchable)?;
        let lock_path = state_dir.join("lock");
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&lock_path)
            .map_err(path_error("cannot open", &lock_path))?;
        // A child that a killed daemon had not quite started holds it for a moment.
        let free = (0..RETRIES).any(|at| {
            std::thread::sleep(if at > 0 { RETRY } else { Duration::ZERO });
            flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok()
        });
        if !free {
            return Err(ServeError::InUse(format!(
                "another carma daemon uses {}; stop it, or give this one a directory of its own with --state",
                state_dir.display()
            )));
        }
        Ok(Self {
            run: make(state_dir.join("run"), 0o700)?,
            logs: make(state_dir.join("logs"), searchable)?,
            mps: make(state_dir.join("mps"), searchable)?,
            pace: match in_memory(state_dir, as_root) {
                Some(dir) => dir,
                None => make(state_dir.join("pace"), searchable)?,
            },
            journal: state_dir.join("carma.db"),
            virtual_gpus: state_dir.join("virtual-gpus.sock"),
            _lock: lock,
        })
    }
}

/// A directory of this daemon's in memory, for sockets and heartbeat files of jobs: on a disk, a heartbeat file costs
/// a task half a millisecond a step. The same after a restart, since jobs keep the name. `None`: there is no such file
/// system, or somebody else has put something in its place.
///
/// Root's is in `/run`: of `/dev/shm` logind removes what belongs to a user when that user logs out (`RemoveIPC=`).
fn in_memory(state_dir: &Path, as_root: bool) -> Option<PathBuf> {
    let state = fs::canonicalize(state_dir).ok()?.metadata().ok()?;
    let uid = rustix::process::geteuid().as_raw();
    // Device and inode name the state directory, and are short: paths of sockets have 107 bytes.
    let place = if as_root { "/run" } else { "/dev/shm" };
    let dir = Path::new(place).join(format!("carma-{uid}-{:x}-{:x}", state.dev(), state.ino()));
    match fs::DirBuilder::new().mode(0o711).create(&dir) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return None,
        Ok(()) | Err(_) => {}
    }
    let found = fs::symlink_metadata(&dir).ok()?;
    if !found.is_dir() || found.uid() != uid {
        return None;
    }
    fs::set_permissions(&dir, Permissions::from_mode(0o711)).ok()?;
    Some(dir)
}

/// The GPUs, real or virtual.
struct Gpus {
    probe: Box<dyn Probe>,
    sharing: Arc<dyn Sharing>,
    env: Vec<(String, String)>,
    inventory: Vec<GpuInfo>,
    /// Version of the driver.
    driver: String,
    /// Hosts virtual GPUs as long as it lives.
    _virtual: Option<VirtualGpus>,
}

impl Gpus {
    fn open(options: &ServeOptions, layout: &Layout) -> Result<Self, ServeError> {
        if options.gpus.starts_with("virtual:") {
            return Self::virtual_gpus(options, layout);
        }
        if !matches!(options.gpus.as_str(), "auto" | "nvml") {
            return Err(ServeError::Gpus(format!(
                "--gpus {}: expected auto, nvml or virtual:NxTYPE, e.g. virtual:4xA100-40GB",
                options.gpus
            )));
        }
        if options.speed != 1 {
            return Err(ServeError::Gpus(
                "--speed is for virtual GPUs only: real time runs as it does".into(),
            ));
        }
        // An outer limit, of a Slurm allocation say, is carma's own.
        let visible = std::env::var("CUDA_VISIBLE_DEVICES").ok().map(|v| parse_visible(&v));
        let limited = visible.is_some();
        let probe = nvml::open(&NvmlOptions { visible, ..NvmlOptions::default() })
            .map_err(|e| ServeError::Gpus(e.to_string()))?;
        let inventory = probe.inventory().to_vec();
        let driver = probe.driver_version().to_owned();
        let config = &options.config.mps;
        let mut mps = MpsOptions::new(&layout.mps);
        mps.multi_user = config.multi_user.unwrap_or(false);
        if let Some(control) = &config.control {
            mps.control.clone_from(control);
        }
        if limited {
            mps.gpus = inventory.iter().map(|g| g.uuid.clone()).collect();
        }
        Ok(Self {
            probe: Box::new(probe),
            sharing: Arc::new(Mps::new(mps)),
            env: Vec::new(),
            inventory,
            driver,
            _virtual: None,
        })
    }

    fn virtual_gpus(options: &ServeOptions, layout: &Layout) -> Result<Self, ServeError> {
        let spec: VirtualSpec = options
            .gpus
            .parse()
            .map_err(|e: carma_sim::virtual_gpu::SpecError| ServeError::Gpus(e.to_string()))?;
        let host = VirtualGpus::start(&spec, &layout.virtual_gpus, f64::from(options.speed))
            .map_err(|e| ServeError::Gpus(e.to_string()))?;
        Ok(Self {
            probe: Box::new(host.probe()),
            sharing: Arc::new(host.mps()),
            env: host.env_for_jobs(),
            inventory: host.inventory().to_vec(),
            driver: "none".to_owned(),
            _virtual: Some(host),
        })
    }
}

/// How often to look, in life and on the daemon's clock.
fn pace(config: &Config, speed: u32, window: Millis) -> (Pace, Millis) {
    let hz = config.sampling.hz.unwrap_or(10);
    let sample = Duration::from_secs(1) / hz;
    // A virtual second of a fast clock is short: look more often, but not without end.
    let sample = (sample / speed).max(sample.min(Duration::from_millis(20)));
    let summarise = (Duration::from_secs(1) / speed).max(sample).max(Duration::from_millis(50));
    let cadence = u64::try_from(summarise.as_millis()).unwrap_or(1000) * u64::from(speed);
    (Pace { sample, summarise, window }, Millis(cadence.max(1000)))
}

/// Has the allocator give large blocks back when they are freed. With a long queue each plan and each
/// listing takes megabytes for a moment; glibc by itself soon keeps blocks of that size.
#[cfg(target_env = "gnu")]
fn return_large_blocks() {
    #[expect(unsafe_code, reason = "mallopt has no safe wrapper; a number goes in and no memory is touched")]
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 1 << 20);
    }
}

#[cfg(not(target_env = "gnu"))]
fn return_large_blocks() {}

/// Runs the daemon until SIGTERM or SIGINT. Jobs go on afterwards.
///
/// # Errors
/// When it cannot start; says what is in the way.
pub fn serve(options: &ServeOptions) -> Result<(), ServeError> {
    return_large_blocks();
    let notify = Notify::from_env().map_err(system("cannot reach the service manager (NOTIFY_SOCKET)"))?;
    let uid = rustix::process::geteuid().as_raw();
    let as_root = uid == 0;
    let layout = Layout::prepare(&options.state_dir, as_root)?;
    let keep = options.config.journal;
    let mut journal = Journal::open(
        &layout.journal,
        keep.sync.unwrap_or(Sync::Full),
        keep.keep_inputs.unwrap_or(100_000),
        keep.keep_jobs.unwrap_or(100_000),
    )?;
    let state = journal.recover()?;
    let gpus = Gpus::open(options, &layout)?;
    let memory = Memory::new(&options.config.memory, gpus.driver.clone(), &journal.learned()?);
    let clock = Clock::start(state.now(), options.speed);
    let mut core = options.config.options(uid).map_err(|(_, why)| ServeError::Config(why))?;
    let (pace, cadence) = pace(&options.config, options.speed, core.window);
    // At a high speed one look a cadence must still count as fresh.
    core.stale_after = core.stale_after.max(Millis(cadence.0 * 4));
    let mut inputs = Vec::new();
    if *state.options() != core {
        inputs.push(Input::Configured(Box::new(core.clone())));
    }
    if !same_inventory(&state, &gpus.inventory) {
        inputs.push(Input::Inventory(gpus.inventory.clone()));
    }

    let (engine, inbox) = mpsc::channel();
    let board = Arc::new(Board::default());
    let to_engine = engine.clone();
    let watcher = Watcher::start(
        layout.run.clone(),
        Box::new(move |job, attempt, event| drop(to_engine.send(Message::Watched(job, attempt, event)))),
    );
    let watcher = Arc::new(watcher.map_err(system("cannot watch jobs"))?);
    let to_engine = engine.clone();
    let report: Report =
        Arc::new(move |job, attempt, outcome| drop(to_engine.send(Message::Launched(job, attempt, outcome))));
    let paces = Paces::start(layout.pace.clone(), clock).map_err(system("cannot count progress"))?;
    let slowdowns = Slowdowns::new(paces.clone(), &journal.slowdowns()?);
    let launcher = Launcher::start(Context {
        run_dir: layout.run.clone(),
        log_dir: layout.logs.clone(),
        as_root,
        env: job_env(&gpus, options),
        sharing: gpus.sharing.clone(),
        watcher: watcher.clone(),
        paces: paces.clone(),
        report: report.clone(),
    })
    .map_err(system("cannot start the launching thread"))?;
    let rates = slowdowns.rates();
    let parts = Parts {
        journal,
        memory,
        slowdowns,
        as_root,
        clock,
        board: board.clone(),
        performer: Performer { launcher, sharing: gpus.sharing.clone(), report },
        watcher,
        run_dir: layout.run.clone(),
        log_dir: layout.logs.clone(),
        only_uid: (!as_root).then_some(uid),
        cadence,
        watchdog: Watchdog::from_env(notify.clone()),
    };
    let to_engine = engine.clone();
    let looked = move || drop(to_engine.send(Message::Look));
    sampler::start(gpus.probe, gpus.sharing.clone(), clock, pace, board.clone(), looked)
        .map_err(system("cannot start the sampling thread"))?;

    let mut owner = Engine::new(state, parts, inbox);
    owner.adopt(inputs);
    let thread = std::thread::Builder::new()
        .name("engine".into())
        .spawn(move || owner.run())
        .map_err(system("cannot start the engine"))?;
    let app = Arc::new(App {
        engine: engine.clone(),
        board,
        rates,
        clock,
        journal: layout.journal.clone(),
        state_dir: options.state_dir.clone(),
        gpus: options.gpus.clone(),
        speed: options.speed,
        uid,
    });
    let served = listen(options, app, as_root, &notify);
    notify.stopping();
    let _ = engine.send(Message::Stop);
    let _ = thread.join();
    gpus.sharing.shutdown();
    // Jobs that go on keep theirs in it.
    let _ = fs::remove_dir(&layout.pace);
    served
}

fn job_env(gpus: &Gpus, options: &ServeOptions) -> Vec<(String, String)> {
    let socket = std::path::absolute(&options.socket).unwrap_or_else(|_| options.socket.clone());
    let mut env = gpus.env.clone();
    env.push(("CARMA_SOCKET".into(), socket.display().to_string()));
    env
}

fn same_inventory(state: &State, inventory: &[GpuInfo]) -> bool {
    let present: Vec<&GpuInfo> = state.gpus().iter().filter(|g| g.present).map(|g| &g.info).collect();
    present.len() == inventory.len() && inventory.iter().all(|gpu| present.contains(&gpu))
}

/// Answers clients until a signal comes.
fn listen(options: &ServeOptions, app: Arc<App>, as_root: bool, notify: &Notify) -> Result<(), ServeError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(system("cannot start answering"))?;
    runtime.block_on(async {
        let listener = bind(&options.socket, as_root).await?;
        tracing::info!(
            "carma serves {} with policy {} at {}",
            app.gpus,
            options.config.policy.as_deref().unwrap_or("carma"),
            options.socket.display()
        );
        notify.ready(&format!("serves {} at {}", app.gpus, options.socket.display()));
        let mut terminate = signal(SignalKind::terminate()).map_err(system("cannot wait for signals"))?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(system("cannot wait for signals"))?;
        let service = http::router(app).into_make_service_with_connect_info::<Credentials>();
        let server = axum::serve(listener, service);
        tokio::select! {
            result = server => result.map_err(system("cannot answer clients"))?,
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        let _ = fs::remove_file(&options.socket);
        tracing::info!("carma stops; running jobs go on");
        Ok(())
    })
}

/// How often, and after what time, something that a killed daemon may have left is looked at again.
const RETRIES: u32 = 10;
const RETRY: Duration = Duration::from_millis(50);

async fn bind(socket: &Path, as_root: bool) -> Result<UnixListener, ServeError> {
    if let Some(dir) = socket.parent().filter(|d| !d.as_os_str().is_empty()) {
        fs::create_dir_all(dir).map_err(path_error("cannot create", dir))?;
    }
    if socket.exists() {
        let mut answers = true;
        for _ in 0..RETRIES {
            answers = UnixStream::connect(socket).await.is_ok();
            if !answers {
                break;
            }
            tokio::time::sleep(RETRY).await;
        }
        if answers {
            return Err(ServeError::InUse(format!(
                "another daemon answers at {}; stop it, or give this one a socket of its own with --socket",
                socket.display()
            )));
        }
        // Left behind by a daemon that was killed.
        fs::remove_file(socket).map_err(path_error("cannot remove the stale socket", socket))?;
    }
    let listener = UnixListener::bind(socket).map_err(path_error("cannot listen at", socket))?;
    // The kernel says who connects, so a root daemon is open to every user.
    let mode = if as_root { 0o666 } else { 0o600 };
    fs::set_permissions(socket, Permissions::from_mode(mode))
        .map_err(path_error("cannot set the permissions of", socket))?;
    Ok(listener)
}

//! Puts the daemon together and runs it.

use crate::clock::{Clock, utc};
use crate::config::{self, Config};
use crate::engine::{Engine, Parts};
use crate::error::{ServeError, path_error};
use crate::gist;
use crate::http::{self, App, Readers};
use crate::journal::{Journal, JournalError};
use crate::layout::{self, Layout, RETRIES, RETRY};
use crate::limits;
use crate::logs;
use crate::memory::Memory;
use crate::messages::Message;
use crate::notify::{Notify, Watchdog};
use crate::people::{self, People};
use crate::perform::Performer;
use crate::recorder::{self, Recorder};
use crate::run::cgroup::{Hierarchy, Names};
use crate::run::identity::Life;
use crate::run::launch::{Context, Launcher, Report};
use crate::run::lives::Lives;
use crate::run::pace::{Paces, SOCKET};
use crate::run::suspend::{self, Suspender};
use crate::run::watch::Watcher;
use crate::run_time::Durations;
use crate::sampler::{self, Board, Look, Pace};
use crate::slowdown::Slowdowns;
use carma_api::wire::CgroupsView;
use carma_core::Input;
use carma_core::model::JobId;
use carma_core::policy::Options;
use carma_core::reading::GpuInfo;
use carma_core::state::State;
use carma_core::units::Millis;
use carma_gpu::nvml::{self, NvmlOptions, parse_visible};
use carma_gpu::{Mps, MpsOptions, Probe, Sharing};
use carma_process::inherited::{close_at_exec, set_to_default};
use carma_virtual_gpu::{VirtualGpus, VirtualSpec};
use nix::sys::signal::Signal;
use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::io::{self, IsTerminal};
use std::os::unix::fs::PermissionsExt;
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

fn system(what: &'static str) -> impl FnOnce(io::Error) -> ServeError {
    move |why| ServeError::System { what, why }
}

/// The GPUs, real or virtual.
struct Gpus {
    probe: Box<dyn Probe>,
    sharing: Arc<dyn Sharing>,
    env: Vec<(String, String)>,
    inventory: Vec<GpuInfo>,
    /// Version of the driver.
    driver: String,
    /// UUIDs of GPUs that carma may not use.
    hidden: Vec<Arc<str>>,
    /// Whose calls suspend jobs; or why none can.
    driver_of_suspensions: Result<suspend::Driver, String>,
    /// Hosts virtual GPUs as long as it lives.
    _virtual: Option<VirtualGpus>,
}

impl Gpus {
    /// The model that is meant; `None`: the GPUs of the machine.
    fn model(options: &ServeOptions) -> Result<Option<VirtualSpec>, ServeError> {
        let model = config::virtual_gpus(&options.gpus)
            .map_err(|why| ServeError::Config(format!("--gpus: {why}")))?;
        if model.is_none() && options.speed != 1 {
            return Err(ServeError::Config(
                "--speed is for virtual GPUs only: real time runs as it does".into(),
            ));
        }
        Ok(model)
    }

    fn open(
        model: Option<&VirtualSpec>,
        options: &ServeOptions,
        layout: &Layout,
    ) -> Result<Self, ServeError> {
        if let Some(model) = model {
            return Self::virtual_gpus(model, options, layout);
        }
        // An outer limit, of a Slurm allocation say, is carma's own.
        let visible = std::env::var("CUDA_VISIBLE_DEVICES").ok().map(|v| parse_visible(&v));
        let limited = visible.is_some();
        let probe = nvml::open(&NvmlOptions { visible, ..NvmlOptions::default() })
            .map_err(|e| ServeError::Gpus(e.to_string()))?;
        let mut inventory = probe.inventory().to_vec();
        let driver = probe.driver_version().to_owned();
        let hidden = probe.hidden().to_vec();
        let config = &options.config.mps;
        let mut mps = MpsOptions::new(&layout.mps);
        mps.multi_user = config.multi_user.unwrap_or(false);
        if let Some(control) = &config.control {
            mps.control.clone_from(control);
        }
        if limited {
            mps.gpus = inventory.iter().map(|g| g.uuid.clone()).collect();
        }
        let mps = Mps::new(mps);
        for gpu in &mut inventory {
            gpu.no_mps = gpu.no_mps.take().or_else(|| mps.obstacle(gpu).map(Into::into));
        }
        Ok(Self {
            probe: Box::new(probe),
            sharing: Arc::new(mps),
            env: Vec::new(),
            inventory,
            driver,
            hidden,
            driver_of_suspensions: suspend::Driver::find(),
            _virtual: None,
        })
    }

    fn virtual_gpus(spec: &VirtualSpec, options: &ServeOptions, layout: &Layout) -> Result<Self, ServeError> {
        let host = VirtualGpus::start(spec, &layout.virtual_gpus, f64::from(options.speed))
            .map_err(|e| ServeError::Gpus(e.to_string()))?;
        Ok(Self {
            probe: Box::new(host.probe()),
            sharing: Arc::new(host.mps()),
            env: host.env_for_jobs(),
            inventory: host.inventory().to_vec(),
            driver: "none".to_owned(),
            hidden: Vec::new(),
            driver_of_suspensions: Ok(suspend::Driver::Virtual(host.socket().to_owned())),
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

/// What a look stands for at most, on the daemon's clock: what was between looks that are further apart was not seen.
fn longest(pace: &Pace, speed: u32) -> Millis {
    let look = u64::try_from(pace.sample.as_millis()).unwrap_or(u64::MAX);
    Millis(look.saturating_mul(u64::from(speed)).saturating_mul(4)).max(Millis::secs(2))
}

/// Times of the journal that are further ahead of the clock are told of.
const AHEAD: Millis = Millis::secs(60);
/// How long a look at the GPUs is waited for where a job is to leave one.
const LOOK_PATIENCE: Duration = Duration::from_secs(5);

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

/// Marks every descriptor that this process was given, but for the standard streams, to be closed in those that it
/// starts: what a shell or service manager left open is no user's.
fn keep_inherited_from_jobs() {
    if let Err(e) = close_at_exec(3) {
        // Supervisors do the same for their command, or do not start it.
        tracing::warn!("inherited descriptors cannot be marked: {e}");
    }
}

/// Runs the daemon until SIGTERM or SIGINT, or until its terminal closes, if it has one. Jobs go on afterwards.
///
/// # Errors
/// When it cannot start; says what is in the way.
pub fn serve(options: &ServeOptions) -> Result<(), ServeError> {
    end_at_a_panic();
    return_large_blocks();
    keep_inherited_from_jobs();
    // Children of one that ignores it reap themselves, and how they ended is not known. Some service wrappers leave it so. Signals
    // that end the daemon stay as they are until they are caught.
    set_to_default([Signal::SIGCHLD]).map_err(|e| system("cannot wait for processes")(e.into()))?;
    let descriptors = limits::raise_nofile();
    // What carma makes is its own; what users need is opened to them one by one.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    // Supervisors work in another directory than this.
    let absolute = |path: &Path| std::path::absolute(path).map_err(path_error("cannot use", path));
    let options = &ServeOptions {
        socket: absolute(&options.socket)?,
        state_dir: absolute(&options.state_dir)?,
        ..options.clone()
    };
    layout::check_socket(&options.socket)?;
    // Before anything is written: a mistake in the options leaves nothing behind.
    let model = Gpus::model(options)?;
    let notify = Notify::from_env().map_err(system("cannot reach the service manager (NOTIFY_SOCKET)"))?;
    let uid = rustix::process::geteuid().as_raw();
    let as_root = uid == 0;
    // Nor does a daemon that finds another one in its place leave a directory behind.
    if is_taken(&options.socket) {
        return Err(in_use(&options.socket));
    }
    let layout = Layout::prepare(&options.state_dir, as_root)?;
    let mut journal = Journal::open(&layout.journal, &(&options.config.journal).into())?;
    journal.anchor(&layout.run)?;
    let state = journal.with_room(Journal::recover)?;
    layout.has_records_of(&state)?;
    let gpus = Gpus::open(model.as_ref(), options, &layout)?;
    let memory = Memory::new(&options.config.memory, gpus.driver.clone(), &journal.learned()?);
    let durations = Durations::new(&journal.run_times()?);
    // Later than all that the journal holds, so that its life can be told from what came before.
    let clock = Clock::start(state.now().max(journal.latest()?) + Millis(1), options.speed);
    tell_of_time(clock, options.speed);
    let (life, lives) = begin_life(&mut journal, clock, options, &layout)?;
    let hierarchy = prepare_cgroups(as_root, &Names::of(journal.id(), &lives));
    let cgroups = cgroups_view(&hierarchy);
    let groups = cgroups.dir.clone();
    let mut core = options.config.options(uid).map_err(|mistake| ServeError::Config(mistake.what))?;
    let people =
        Arc::new(People::new(options.config.operators.as_deref(), options.config.limits.clone(), uid));
    allow_owners(&mut core, &people, &state);
    core.suspends &= gpus.driver_of_suspensions.is_ok();
    core.moves &= gpus.driver_of_suspensions.as_ref().is_ok_and(suspend::Driver::moves);
    let policy = core.policy.name.clone();
    let (pace, cadence) = pace(&options.config, options.speed, core.window);
    // At a high speed one look a cadence must still count as fresh.
    core.stale_after = core.stale_after.max(Millis(cadence.0 * 4));
    let mut inputs = Vec::new();
    if *state.options() != core {
        inputs.push(Input::Configured(Box::new(core)));
    }
    if !same_inventory(&state, &gpus.inventory) {
        inputs.push(Input::Inventory(gpus.inventory.clone()));
    }

    let (engine, inbox) = mpsc::channel();
    let board = Arc::new(Board::default());
    let start = Start {
        options,
        layout: &layout,
        gpus: &gpus,
        life: &life,
        hierarchy: hierarchy.as_ref().ok(),
        as_root,
        engine: &engine,
        board: &board,
    };
    let watcher = start.watcher()?;
    let paces = Paces::start(layout.pace.clone(), clock).map_err(system("cannot count progress"))?;
    let slowdowns = Slowdowns::new(
        paces.clone(),
        options.config.kace().map_err(ServeError::Config)?,
        &journal.slowdowns()?,
    );
    let recorder = start.recorder(journal.id(), longest(&pace, options.speed));
    let performer = start.performer(lives.present_dir(), &watcher, &paces)?;
    logs::watch(layout.logs.clone(), layout.journal.clone())
        .map_err(system("cannot start the thread that looks after logs"))?;
    let looked = start.looked(recorder.clone());
    let rates = slowdowns.rates();
    let journal_id = journal.id().to_owned();
    let parts = Parts {
        journal,
        memory,
        durations,
        slowdowns,
        clock,
        board: board.clone(),
        performer,
        watcher,
        lives,
        hierarchy: hierarchy.clone(),
        log_dir: layout.logs.clone(),
        journal_file: layout.journal.clone(),
        only_uid: (!as_root).then_some(uid),
        cadence,
        watchdog: Watchdog::from_env(notify.clone()),
    };
    sampler::start(gpus.probe, gpus.sharing.clone(), clock, pace, board.clone(), hierarchy.ok(), looked)
        .map_err(system("cannot start the sampling thread"))?;

    let mut owner = Engine::new(state, parts, inbox);
    owner.adopt(inputs);
    paces.hear().map_err(system("cannot count progress"))?;
    let to_engine = engine.clone();
    let tell = move |job, gist| drop(to_engine.send(Message::Gist(job, Box::new(gist))));
    if let Err(e) = gist::of_earlier(owner.state(), layout.journal.clone(), tell) {
        tracing::warn!("earlier jobs hear no news of their forecasts: {e}");
    }
    let thread = std::thread::Builder::new()
        .name("engine".into())
        .spawn(move || owner.run())
        .map_err(system("cannot start the engine"))?;
    let app = Arc::new(App {
        engine: engine.clone(),
        board,
        recorder: recorder.clone(),
        rates,
        paces,
        clock,
        readers: Arc::new(Readers::new(layout.journal.clone(), descriptors.readers)),
        people,
        descriptors,
        journal_id,
        cgroups,
        state_dir: options.state_dir.clone(),
        log_dir: layout.logs.clone(),
        runtime_dir: layout.runtime.clone(),
        gpus: options.gpus.clone(),
        speed: options.speed,
        uid,
    });
    let served = listen(options, &policy, app, as_root, &notify);
    notify.stopping();
    let _ = engine.send(Message::Stop);
    let (users_of_mps, jobs_go_on) = thread.join().unwrap_or_default();
    if let Some(recorder) = recorder {
        recorder.stop();
    }
    gpus.sharing.shutdown(&users_of_mps);
    // Supervisors of jobs that go on find the next daemon's.
    let _ = fs::remove_file(layout.pace.join(SOCKET));
    drop(gpus._virtual);
    // The supervisor of a job that was just launched makes its directory there only once it knows the job's user.
    if !jobs_go_on {
        layout.leave();
    }
    if let Some(groups) = groups {
        // Those of jobs that go on keep it.
        let _ = fs::remove_dir(groups);
    }
    served
}

/// Says in the log that times of the journal are ahead of those of the machine.
fn tell_of_time(clock: Clock, speed: u32) {
    let ahead = clock.ahead();
    // A virtual clock that goes faster is ahead by design.
    if speed == 1 && ahead > AHEAD {
        tracing::warn!(
            "the journal's last entry is of {}, which is {} ahead of this machine's clock. Times go on from there, and those of jobs are \
             ahead of all others by as much, also after a restart. Set the clock if it is wrong (see timedatectl). If it was wrong when \
             the journal was written, they stay so until it has caught up; a new directory (--state) begins with the time of now",
            utc(clock.now()),
            ahead
        );
    }
}

/// Begins a life of the daemon, which the journal and the records of attempts then know.
fn begin_life(
    journal: &mut Journal,
    clock: Clock,
    options: &ServeOptions,
    layout: &Layout,
) -> Result<(Life, Lives), ServeError> {
    let life = Life::begin(clock.now(), &layout.place).map_err(system("cannot begin"))?;
    let lives = journal.with_room(|journal| {
        let earlier = journal.lives()?.into_iter().map(Into::into).collect();
        Lives::begin(layout.run.clone(), journal.id().to_owned(), earlier, life.clone())
            .map_err(|why| JournalError::File { path: layout.run.clone(), why })
    })?;
    journal.with_room(|journal| journal.begin_life(life.started, &life.name, &life.host, &life.boot))?;
    if lives.is_copy() {
        tracing::warn!(
            "{} is a copy of another state directory: jobs that ran when it was made are not this daemon's, and end here with an unknown status",
            options.state_dir.display()
        );
    }
    Ok((life, lives))
}

/// Where attempts have their cgroups; or why they have none. The log says so, too.
fn prepare_cgroups(as_root: bool, names: &Names) -> Result<Arc<Hierarchy>, String> {
    let hierarchy = Hierarchy::prepare(as_root, names).map(Arc::new);
    match &hierarchy {
        Ok(found) => tracing::info!(
            "each job has a cgroup in {}, controllers: {}",
            found.dir().display(),
            if found.controllers().is_empty() { "none".into() } else { found.controllers().join(" ") }
        ),
        Err(why) => tracing::warn!("jobs have no cgroups of their own: {why}"),
    }
    hierarchy
}

/// Gives the users who have jobs, and those whose accounts are shown, the limits that the configuration says.
fn allow_owners(core: &mut Options, people: &Arc<People>, state: &State) {
    let owners = state.jobs().values().map(|job| job.spec.user.uid);
    let owners: BTreeSet<u32> = owners.chain(state.accounts_at(state.now()).into_keys()).collect();
    // Before clients are answered and the service manager knows that carma is there: a database that hangs holds up no start.
    let mut told = people.look_up_all(owners.clone(), people::PATIENCE);
    for owner in owners {
        match told.remove(&owner).unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into())) {
            Ok(person) => drop(core.allowances.set(owner, person.limits.allowance())),
            Err(e) => {
                tracing::warn!(
                    "the user database does not say who user {owner} is, whose limits stay as they were until that user's next request: {e}"
                );
                if let Some(kept) = state.options().allowances.of.get(&owner) {
                    core.allowances.set(owner, *kept);
                }
            }
        }
    }
}

/// What the threads around the engine are started with.
struct Start<'a> {
    options: &'a ServeOptions,
    layout: &'a Layout,
    gpus: &'a Gpus,
    life: &'a Life,
    hierarchy: Option<&'a Arc<Hierarchy>>,
    as_root: bool,
    engine: &'a mpsc::Sender<Message>,
    board: &'a Arc<Board>,
}

impl Start<'_> {
    /// What tells the engine of a job's attempt.
    fn to_engine<T>(
        &self,
        message: fn(JobId, u32, T) -> Message,
    ) -> impl Fn(JobId, u32, T) + Send + Sync + 'static
    where
        T: 'static,
    {
        let engine = self.engine.clone();
        move |job, attempt, what| drop(engine.send(message(job, attempt, what)))
    }

    fn watcher(&self) -> Result<Arc<Watcher>, ServeError> {
        Watcher::start(self.life.clone(), Box::new(self.to_engine(Message::Watched)))
            .map_err(system("cannot watch jobs"))
    }

    /// `None`: the configuration wants none.
    fn recorder(&self, journal: &str, longest: Millis) -> Option<Arc<Recorder>> {
        let of = recorder::Of {
            journal,
            life: &self.life.name,
            boot: &self.life.boot,
            inventory: &self.gpus.inventory,
        };
        Recorder::start(&self.layout.recorder, &self.options.config.recorder, &of, longest)
    }

    /// What carries out decisions. `records`: the directory of the records of this life.
    fn performer(
        &self,
        records: PathBuf,
        watcher: &Arc<Watcher>,
        paces: &Arc<Paces>,
    ) -> Result<Performer, ServeError> {
        let report: Report = Arc::new(self.to_engine(Message::Launched));
        let launcher = Launcher::start(Context {
            life: self.life.clone(),
            records,
            log_dir: self.layout.logs.clone(),
            as_root: self.as_root,
            env: job_env(self.gpus, self.options),
            sharing: self.gpus.sharing.clone(),
            hierarchy: self.hierarchy.cloned(),
            descriptors: limits::inherited_nofile(),
            watcher: watcher.clone(),
            paces: paces.clone(),
            // Once a second of the daemon's clock.
            alive_ms: (1000 / u64::from(self.options.speed.max(1))).max(20),
            report: report.clone(),
        });
        let board = self.board.clone();
        Ok(Performer {
            launcher: launcher.map_err(system("cannot start the launching thread"))?,
            sharing: self.gpus.sharing.clone(),
            hierarchy: self.hierarchy.cloned(),
            report,
            suspender: Suspender {
                driver: self.gpus.driver_of_suspensions.clone(),
                hidden: self.gpus.hidden.clone(),
                on_gpus: Arc::new(move |gpus| board.processes_on(gpus, LOOK_PATIENCE)),
                report: Arc::new(self.to_engine(Message::Suspension)),
            },
            cannot_save: Arc::new(self.to_engine(Message::CannotSave)),
        })
    }

    /// What is done with each look at the GPUs.
    fn looked(
        &self,
        recorder: Option<Arc<Recorder>>,
    ) -> impl Fn(Millis, &Arc<Vec<Look>>, bool) + Send + 'static {
        let (engine, board) = (self.engine.clone(), self.board.clone());
        move |at, looks, news| {
            if news {
                drop(engine.send(Message::Look));
            }
            if let Some(recorder) = &recorder {
                recorder.offer(at, looks, &board);
            }
        }
    }
}

fn cgroups_view(hierarchy: &Result<Arc<Hierarchy>, String>) -> CgroupsView {
    match hierarchy {
        Ok(found) => CgroupsView {
            dir: Some(found.dir().display().to_string()),
            controllers: found.controllers().to_vec(),
            why_not: None,
        },
        Err(why) => CgroupsView { why_not: Some(why.clone()), ..CgroupsView::default() },
    }
}

fn job_env(gpus: &Gpus, options: &ServeOptions) -> Vec<(String, String)> {
    let mut env = gpus.env.clone();
    env.push(("CARMA_SOCKET".into(), options.socket.display().to_string()));
    env
}

fn same_inventory(state: &State, inventory: &[GpuInfo]) -> bool {
    let present: Vec<&GpuInfo> = state.gpus().iter().filter(|g| g.present).map(|g| &g.info).collect();
    present.len() == inventory.len() && inventory.iter().all(|gpu| present.contains(&gpu))
}

/// Exit code after a panic (`EX_SOFTWARE`).
const PANICKED: i32 = 70;

/// Ends the daemon when a thread panics, so that systemd starts it again: without the engine, say, it would decide nothing
/// and never end. Jobs go on, and no user was told of anything that is not in the journal. A panic in a request ends that
/// request alone.
fn end_at_a_panic() {
    let say = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |what| {
        say(what);
        if std::thread::current().name() != Some(REQUESTS) {
            complain!(
                "carma: this is an error in carma; the daemon stops, jobs go on. Start it again, and please report it"
            );
            std::process::exit(PANICKED);
        }
    }));
}

/// Name of the threads that answer requests.
const REQUESTS: &str = "requests";

/// Threads for what may block: reads of the journal, the user database.
const BLOCKING_THREADS: usize = 64;
/// How long those are waited for at the end: the user database may hang.
const LAST_READERS: Duration = Duration::from_secs(1);

/// Answers clients until a signal comes.
fn listen(
    options: &ServeOptions,
    policy: &str,
    app: Arc<App>,
    as_root: bool,
    notify: &Notify,
) -> Result<(), ServeError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name(REQUESTS)
        .max_blocking_threads(BLOCKING_THREADS)
        .enable_all()
        .build()
        .map_err(system("cannot start answering"))?;
    let served = runtime.block_on(async {
        let listener = bind(&options.socket, as_root).await?;
        tracing::info!(
            "carma serves {} with policy {} at {}",
            app.gpus,
            policy,
            options.socket.display()
        );
        let d = app.descriptors;
        let former = limits::inherited_nofile().map_or("no limit".to_owned(), |n| n.to_string());
        tracing::info!(
            "descriptors: {} (soft limit at the start: {former}, which jobs get): at most {} connections, {} of one user, {} kept for root, and {} readers of the journal; the rest is for jobs",
            d.all, d.connections, d.per_user, d.kept, d.readers
        );
        let (people, named) = (app.people.clone(), options.config.operators.is_some());
        // Nobody waits for the user database.
        drop(tokio::task::spawn_blocking(move || tell_operators(&people, named)));
        let stop = stop_signal().map_err(system("cannot wait for signals"))?;
        notify.ready(&format!("serves {} at {}", app.gpus, options.socket.display()));
        tokio::select! {
            () = http::serve(listener, app) => {}
            () = stop => {}
        }
        let _ = fs::remove_file(&options.socket);
        tracing::info!("carma stops; running jobs go on");
        Ok(())
    });
    runtime.shutdown_timeout(LAST_READERS);
    served
}

/// Waits for a signal that ends the daemon. Others that would end it are caught: systemd takes an end by SIGHUP for a clean
/// one, after which it starts nothing again. They are not set to be ignored, which jobs would inherit.
fn stop_signal() -> io::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let ignored = is_hangup_ignored();
    let mut hangup = signal(SignalKind::hangup())?;
    let mut one = signal(SignalKind::user_defined1())?;
    let mut two = signal(SignalKind::user_defined2())?;
    // One that is run by hand ends with its terminal, as by Ctrl-C, unless its shell was told to ignore that.
    let by_hand = io::stdin().is_terminal() && !ignored;
    Ok(async move {
        loop {
            let name = tokio::select! {
                _ = terminate.recv() => return,
                _ = interrupt.recv() => return,
                _ = hangup.recv() => {
                    if by_hand {
                        return;
                    }
                    tracing::info!("SIGHUP: the configuration is read at the start only; restart the daemon to have it read");
                    continue;
                }
                _ = one.recv() => "SIGUSR1",
                _ = two.recv() => "SIGUSR2",
            };
            tracing::info!("{name} has no meaning here, and changes nothing");
        }
    })
}

/// Whether the daemon was started with SIGHUP ignored, as in a shell after `trap '' HUP`.
fn is_hangup_ignored() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    // Signal 1 is the lowest bit.
    mask.is_some_and(|mask| mask & 1 == 1)
}

/// Says in the log who may act on the jobs of others, and whose limits are nobody's. `named`: operators, in the configuration.
fn tell_operators(people: &People, named: bool) {
    match people.operators() {
        Some((group, true)) => tracing::info!("operators: the members of group {group}"),
        Some((group, false)) if named => {
            tracing::warn!(
                "operators: there is no group {group}, so only root may act on the jobs of others"
            );
        }
        Some(_) | None => {}
    }
    for line in people.unknown() {
        tracing::warn!("{line}");
    }
}

/// Whether another daemon answers at a socket, and is not just leaving.
fn is_taken(socket: &Path) -> bool {
    use rustix::net;
    // One whose connections all wait to be accepted would let us wait, too.
    let answers = || {
        let flags = net::SocketFlags::NONBLOCK | net::SocketFlags::CLOEXEC;
        let ours = net::socket_with(net::AddressFamily::UNIX, net::SocketType::STREAM, flags, None).ok()?;
        let connected = net::connect(&ours, &net::SocketAddrUnix::new(socket).ok()?);
        (!matches!(connected, Err(rustix::io::Errno::CONNREFUSED | rustix::io::Errno::NOENT))).then_some(())
    };
    for _ in 0..RETRIES {
        if answers().is_none() {
            return false;
        }
        std::thread::sleep(RETRY);
    }
    true
}

fn in_use(socket: &Path) -> ServeError {
    ServeError::InUse(format!(
        "another daemon answers at {}; stop it, or give this one a socket of its own with --socket",
        socket.display()
    ))
}

async fn bind(socket: &Path, as_root: bool) -> Result<UnixListener, ServeError> {
    if let Some(dir) = socket.parent() {
        layout::make_socket_dir(dir, as_root).map_err(path_error("cannot create", dir))?;
    }
    layout::check_socket(socket)?;
    if socket.exists() {
        let mut answers = true;
        for _ in 0..RETRIES {
            // No daemon listens where the connection is refused. Where it fails otherwise, one may.
            answers = !matches!(
                UnixStream::connect(socket).await.map_err(|e| e.kind()),
                Err(io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound)
            );
            if !answers {
                break;
            }
            tokio::time::sleep(RETRY).await;
        }
        if answers {
            return Err(in_use(socket));
        }
        // Left behind by a daemon that was killed, or by one that was just leaving.
        match fs::remove_file(socket) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                return Err(path_error("cannot remove the stale socket", socket)(e));
            }
            Ok(()) | Err(_) => {}
        }
    }
    let listener = UnixListener::bind(socket).map_err(path_error("cannot listen at", socket))?;
    // The kernel says who connects, so a root daemon is open to every user.
    let mode = if as_root { 0o666 } else { 0o600 };
    fs::set_permissions(socket, Permissions::from_mode(mode))
        .map_err(path_error("cannot set the permissions of", socket))?;
    Ok(listener)
}

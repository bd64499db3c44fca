use super::looks::METER;
use super::outage::COMPLAIN_AGAIN;
use super::*;
use crate::config::limits::UserLimits;
use crate::config::{MemoryConfig, Sync};
use crate::gist::Gist;
use crate::journal::{Keep, Settings, StoredJob};
use crate::messages::{OfOne, Order, Peer};
use crate::run::identity::Life;
use crate::run::launch::{Context, Launcher};
use crate::run::pace::Paces;
use crate::run::record::Claim;
use crate::run::suspend::{Driver, Suspender};
use crate::run::watch::Event;
use crate::sampler::Look;
use crate::submission::Submission;
use carma_api::wire::{SubmitReply, SubmitRequest};
use carma_core::explain::Reason;
use carma_core::input::Observation;
use carma_core::model::{
    EndCause, EndLevel, Exit, ExitStatus, Forecasts, NewJob, Placement, ProcessRef, Profile, Request, RunsOf,
    SharingMode, SuspendStep, User,
};
use carma_core::policy::{Options, presets};
use carma_core::reading::{GpuInfo, GpuKind, GpuReading, Health};
use carma_core::units::{Fraction, MiB};
use carma_core::windows::{Summary, WindowSummary};
use carma_gpu::mps::{Mps, MpsOptions};
use carma_gpu::{Grant, Sharing, SharingError, SharingRequest};
use std::sync::Mutex;
use tempfile::TempDir;

#[test]
fn percentiles_of_few_values() {
    assert_eq!(percentile(&[], 99), 0);
    assert_eq!(percentile(&[5, 1, 3], 50), 3);
    assert_eq!(percentile(&[5, 1, 3], 99), 5);
}

const SUPERVISOR: ProcessRef = ProcessRef { pid: u32::MAX >> 2, start_ticks: 1 };

/// An engine with a journal and two GPUs, without a sampler: readings and jobs come as inputs.
struct Machine {
    engine: Engine,
    to_engine: mpsc::Sender<Message>,
    dir: TempDir,
}

fn journal(dir: &TempDir) -> Journal {
    let settings = Settings {
        sync: Sync::Normal,
        inputs: 100,
        keep: Keep { jobs: 10, bytes: 64 << 20 },
        environments: 5,
        reserve: 0,
    };
    Journal::open(&dir.path().join("carma.db"), &settings).unwrap()
}

impl Machine {
    fn new() -> Self {
        Self::at_speed(1)
    }

    /// One whose clock goes so many times as fast.
    fn at_speed(speed: u32) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| {
            let path = dir.path().join(name);
            std::fs::create_dir(&path).unwrap();
            path
        };
        let (run, log_dir, pace, mps) = (at("run"), at("logs"), at("pace"), at("mps"));
        let mut journal = journal(&dir);
        let state = journal.recover().unwrap();
        let clock = Clock::start(Millis(1), speed);
        let life = Life::begin(Millis(1), "1-2").unwrap();
        let lives = Lives::begin(run, journal.id().to_owned(), Vec::new(), life.clone()).unwrap();
        let watcher = Watcher::start(life.clone(), Box::new(|_, _, _| ())).unwrap();
        let paces = Paces::start(pace, clock).unwrap();
        let sharing = Arc::new(Mps::new(MpsOptions::new(mps)));
        let report: crate::run::launch::Report = Arc::new(|_, _, _| ());
        let launcher = Launcher::start(Context {
            life,
            records: lives.present_dir(),
            log_dir: log_dir.clone(),
            as_root: false,
            env: Vec::new(),
            sharing: sharing.clone(),
            hierarchy: None,
            descriptors: None,
            watcher: watcher.clone(),
            paces: paces.clone(),
            alive_ms: 1000,
            report: report.clone(),
        });
        let parts = Parts {
            journal,
            memory: Memory::new(&MemoryConfig::default(), "580".into(), &[]),
            durations: Durations::new(&[]),
            slowdowns: Slowdowns::new(paces, None, &[]),
            clock,
            board: Arc::default(),
            performer: Performer {
                launcher: launcher.unwrap(),
                sharing,
                hierarchy: None,
                report,
                suspender: Suspender {
                    driver: Ok(Driver::Cuda),
                    hidden: Vec::new(),
                    on_gpus: Arc::new(|_| Vec::new()),
                    report: Arc::new(|_, _, _| ()),
                },
                cannot_save: Arc::new(|_, _, _| ()),
            },
            watcher,
            lives,
            hierarchy: Err("a test".into()),
            log_dir,
            journal_file: dir.path().join("carma.db"),
            only_uid: None,
            cadence: Millis::secs(1),
            watchdog: Watchdog::from_env(crate::notify::Notify::default()),
        };
        let (to_engine, inbox) = mpsc::channel();
        let mut machine = Self { engine: Engine::new(state, parts, inbox), to_engine, dir };
        let gpu = |index| GpuInfo {
            uuid: format!("GPU-{index}").into(),
            index,
            name: "NVIDIA H200".into(),
            memory: MiB::gib(140),
            kind: GpuKind::Whole,
            has_activity: true,
            no_mps: None,
        };
        machine.written(Input::Inventory(vec![gpu(0), gpu(1)]));
        machine
    }

    /// An input that is on the disk.
    fn written(&mut self, input: Input) {
        self.engine.try_apply(input).unwrap();
        self.engine.turn_end();
    }

    /// A job that runs on this GPU, in turns, and is seen to hold so much there. Its record is there, too.
    fn runs(&mut self, gpu: u32, held: MiB) -> JobId {
        self.runs_as(gpu, held, SharingMode::TimeSlice, SUPERVISOR)
    }

    /// The same in this way, with this supervisor.
    fn runs_as(&mut self, gpu: u32, held: MiB, sharing: SharingMode, supervisor: ProcessRef) -> JobId {
        let job = self.engine.state.next_id();
        let user = User::new(0, "root");
        let request = Request { sharing: Some(sharing), ..Request::of(1) };
        let new = NewJob {
            id: job,
            user,
            name: "train".into(),
            command_key: job.0,
            program_key: None,
            request,
            forecasts: Forecasts { declared: Some(MiB::gib(8)), ..Forecasts::default() },
            profile: Profile::default(),
            run_time: None,
            hold: false,
        };
        self.engine.batch.jobs.push((job, stored()));
        self.written(Input::Submitted(Box::new(new)));
        self.starts(job, gpu, sharing, supervisor);
        let seen = Observation {
            at: self.engine.state.now(),
            health: Health::Ok,
            used: Some(held),
            jobs: vec![(job, Some(held))],
            foreign: Vec::new(),
            processes_known: true,
            window: WindowSummary::default(),
            energy_mj: None,
        };
        self.written(Input::Observed { gpu: GpuId(gpu), seen: Box::new(seen) });
        job
    }

    /// A job that was held runs, and has for a moment.
    fn launched(&mut self, job: JobId) {
        self.written(Input::Release { job, by: User::new(7, "u") });
        self.starts(job, 0, SharingMode::TimeSlice, SUPERVISOR);
        std::thread::sleep(Duration::from_millis(2));
    }

    fn starts(&mut self, job: JobId, gpu: u32, sharing: SharingMode, supervisor: ProcessRef) {
        let gpu = GpuId(gpu);
        let at = self.engine.state.now();
        let placement = Placement {
            attempt: 1,
            gpus: vec![gpu],
            sharing,
            cap: None,
            part: None,
            floor: None,
            thread_percent: None,
            at,
            reason: Reason::NotPlannedYet,
        };
        let claim = self.records(job).claim(&Claim::Supervisor(supervisor));
        assert!(claim.unwrap().is_some());
        self.decided(Action::Launch { job, placement });
        self.written(Input::Started { job, attempt: 1, supervisor, child: None, sharing, note: None });
    }

    /// A job that runs is about to leave its GPU.
    fn suspends(&mut self, job: JobId) {
        self.written(Input::Suspend { job, by: User::new(0, "root") });
        self.decided(Action::Suspend { job, attempt: 1, cause: None });
    }

    /// One that was about to leave its GPU has left it.
    fn is_off(&mut self, job: JobId) {
        self.written(Input::Suspended { job, attempt: 1, host: MiB::gib(4) });
    }

    /// ... and is about to come back.
    fn comes_back(&mut self, job: JobId) {
        self.written(Input::Unsuspend { job, by: User::new(0, "root") });
        self.decided(Action::Resume { job, attempt: 1, gpus: vec![GpuId(0)] });
    }

    fn decided(&mut self, action: Action) {
        self.written(Input::Decided(Box::new(action)));
    }

    fn performs(&self, action: &Action) {
        let Engine { state, parts, .. } = &self.engine;
        parts.performer.perform(action, state, &parts.journal, &parts.lives);
    }

    /// The record of a job's attempt names its first process.
    fn has_command(&self, job: JobId, child: ProcessRef) {
        let record = self.engine.parts.lives.present_dir().join(format!("{job}.1.record"));
        let line = format!("{{\"child\":{{\"pid\":{},\"start_ticks\":{}}}}}\n", child.pid, child.start_ticks);
        let mut file = std::fs::File::options().append(true).open(record).unwrap();
        std::io::Write::write_all(&mut file, line.as_bytes()).unwrap();
    }

    fn records(&self, job: JobId) -> Records {
        self.engine.parts.lives.present_records(job, 1)
    }

    /// The journal does not take what this turn brings.
    fn refuses(&mut self) {
        // A row that is there already.
        self.engine.batch.jobs.push((JobId(1), stored()));
    }

    /// Runs until it is told to stop, which it is already. What is on the disk afterwards.
    fn stops(self) -> (State, TempDir) {
        self.to_engine.send(Message::Stop).unwrap();
        self.engine.run();
        (journal(&self.dir).recover().unwrap(), self.dir)
    }
}

fn stored() -> StoredJob {
    let request = SubmitRequest { command: vec!["x".into()], ..SubmitRequest::default() };
    StoredJob { request, uid: 0, gid: 0, log: "/log".into(), estimate: None }
}

#[test]
fn a_record_goes_when_its_end_is_on_the_disk_and_not_before() {
    for refuses in [false, true] {
        let mut machine = Machine::new();
        let job = machine.runs(0, MiB::gib(4));
        let records = machine.records(job);
        if refuses {
            machine.refuses();
        }
        machine.engine.watched(job, 1, Event::Exited(Exit::of(ExitStatus::Code(0))));
        let (state, _dir) = machine.stops();
        let (known, kept) = (state.job(job).is_none(), records.read().unwrap().is_some());
        assert_eq!((known, kept), (!refuses, refuses));
    }
}

#[test]
fn what_came_of_a_suspension_is_not_lost_with_a_commit() {
    use suspend::Outcome::{Failed, Resumed, Suspended};
    let failed = || Failed { why: "out of memory".into(), stuck: false };
    let cases = [
        (false, Suspended(MiB::gib(4)), Some(SuspendStep::Suspended)),
        (false, failed(), None),
        (true, Resumed, None),
        (true, failed(), Some(SuspendStep::Suspended)),
    ];
    for (off, outcome, step) in cases {
        let mut machine = Machine::new();
        let job = machine.runs(0, MiB::gib(4));
        machine.suspends(job);
        if off {
            machine.is_off(job);
            machine.comes_back(job);
        }
        machine.engine.handle(Message::Suspension(job, 1, outcome.clone()));
        machine.refuses();
        machine.engine.turn_end();
        let (state, _dir) = machine.stops();
        let job = state.job(job).unwrap();
        assert_eq!(job.suspension().map(|suspension| suspension.step), step, "{outcome:?}");
        let told = job.halt().and_then(|halt| halt.failed.as_deref());
        assert_eq!(told, matches!(outcome, Failed { .. }).then_some("out of memory"));
    }
}

/// A disk that is full when the daemon comes back must not leave a job between its GPU and the host until the next start.
#[test]
fn a_job_that_cannot_be_put_back_begins_anew_in_the_end() {
    let mut machine = Machine::new();
    let job = machine.runs(0, MiB::gib(4));
    machine.suspends(job);
    machine.is_off(job);
    machine.comes_back(job);
    for failures in 1..=6 {
        let why = "restore of process 7: invalid value".into();
        machine.engine.handle(Message::Suspension(job, 1, suspend::Outcome::Failed { why, stuck: false }));
        let ending = machine.engine.state.job(job).unwrap().ending().is_some();
        assert_eq!(ending, failures == 6, "{failures}");
        if !ending {
            machine.decided(Action::Resume { job, attempt: 1, gpus: vec![GpuId(0)] });
        }
    }
}

#[test]
fn a_suspension_goes_on_though_the_disk_refuses_what_was_found_at_the_start() {
    for comes_back in [false, true] {
        let mut machine = Machine::new();
        let job = machine.runs(0, MiB::gib(4));
        machine.suspends(job);
        if comes_back {
            machine.is_off(job);
            machine.comes_back(job);
        }
        // Its command goes on: as which this process stands.
        machine.has_command(job, carma_process::process::identify(std::process::id()).unwrap());
        let (tell, told) = mpsc::channel();
        let suspender = &mut machine.engine.parts.performer.suspender;
        suspender.driver = Err("there is no driver".into());
        suspender.report = Arc::new(move |job, _, outcome| drop(tell.send((job, outcome))));
        machine.refuses();
        machine.engine.adopt(Vec::new());
        assert!(told.try_recv().is_err(), "nothing is done that the disk has not taken");
        machine.engine.turn(Duration::ZERO);
        let (of, outcome) = told.try_recv().unwrap();
        assert!(of == job && matches!(outcome, suspend::Outcome::Failed { .. }), "{outcome:?}");
        machine.engine.turn(Duration::ZERO);
        assert!(told.try_recv().is_err(), "and it is done once");
    }
}

/// What a supervisor tells meanwhile, and later, counts.
#[test]
fn a_job_is_heard_of_which_nothing_can_be_found_out_at_first() {
    let mut machine = Machine::new();
    let job = machine.runs(0, MiB::gib(4));
    let record = machine.engine.parts.lives.present_dir().join(format!("{job}.1.record"));
    std::fs::remove_file(&record).unwrap();
    std::fs::create_dir(&record).unwrap();
    machine.engine.adopt(Vec::new());
    assert!(machine.engine.state.active().contains(&job));
    assert!(machine.engine.parts.slowdowns.paces().is_heard(job, machine.engine.parts.clock.now()));
}

/// A disk that is full when the daemon comes back must not have a job killed that was never asked to end.
#[test]
fn an_end_is_repeated_though_the_disk_refuses_what_was_found_at_the_start() {
    use std::os::unix::process::{CommandExt, ExitStatusExt};
    let mut machine = Machine::new();
    let job = machine.runs(0, MiB::gib(4));
    machine.written(Input::Requeue { job, by: User::new(0, "root") });
    let cause = machine.engine.state.job(job).unwrap().ending().unwrap().cause.clone();
    // The daemon dies before it has told it.
    let end = Action::End { job, attempt: 1, level: EndLevel::Terminate, cause };
    machine.engine.try_apply(Input::Decided(Box::new(end))).unwrap();
    machine.engine.turn_end();
    let mut command = std::process::Command::new("sleep").arg("600").process_group(0).spawn().unwrap();
    machine.has_command(job, carma_process::process::identify(command.id()).unwrap());
    machine.refuses();
    machine.engine.adopt(Vec::new());
    assert!(command.try_wait().unwrap().is_none(), "nothing is done that the disk has not taken");
    assert!(!machine.records(job).was_told(EndLevel::Terminate));
    machine.engine.turn(Duration::ZERO);
    assert!(machine.records(job).was_told(EndLevel::Terminate));
    assert_eq!(command.wait().unwrap().signal(), Some(15));
}

#[test]
fn an_end_of_an_earlier_attempt_does_not_end_a_later_one() {
    let mut machine = Machine::new();
    let job = machine.runs(0, MiB::gib(4));
    for (attempt, told) in [(2, false), (1, true)] {
        let cause = EndCause::Requeued { by: "root".into() };
        let end = Action::End { job, attempt, level: EndLevel::Terminate, cause };
        machine.performs(&end);
        assert_eq!(machine.records(job).was_told(EndLevel::Terminate), told);
    }
}

/// What is done to a client of MPS through the control daemon makes its work fail, and its command may exit with 0 for all that: its
/// supervisor hears of it first.
#[test]
fn a_supervisor_hears_that_its_job_is_taken_off_mps() {
    struct OneClient(Mutex<mpsc::Sender<bool>>, PathBuf);
    impl Sharing for OneClient {
        fn obstacle(&self, _: &GpuInfo) -> Option<String> {
            None
        }
        fn prepare(&self, _: &SharingRequest) -> Result<Grant, SharingError> {
            Ok(Grant { env: Vec::new() })
        }
        fn clients(&self, _: u32, _: &[u32]) -> Result<Vec<u32>, SharingError> {
            Ok(vec![1])
        }
        fn terminate_clients(&self, _: u32, _: &[u32]) -> Result<usize, SharingError> {
            let began = Instant::now();
            while !self.1.exists() && began.elapsed() < Duration::from_secs(20) {
                std::thread::sleep(Duration::from_millis(5));
            }
            let _ = self.0.lock().unwrap().send(self.1.exists());
            Ok(1)
        }
        fn is_own_process(&self, _: u32) -> bool {
            false
        }
        fn shutdown(&self, _: &[u32]) {}
    }
    let mut machine = Machine::new();
    let (ready, heard) = (machine.dir.path().join("ready"), machine.dir.path().join("heard"));
    let line = format!(
        "trap 'echo > {}' HUP; echo > {}; while :; do sleep 0.01; done",
        heard.display(),
        ready.display()
    );
    let mut supervisor = std::process::Command::new("sh").args(["-c", &line]).spawn().unwrap();
    while !ready.exists() {
        std::thread::sleep(Duration::from_millis(5));
    }
    let (tell, told) = mpsc::channel();
    machine.engine.parts.performer.sharing = Arc::new(OneClient(Mutex::new(tell), heard));
    let me = carma_process::process::identify(supervisor.id()).unwrap();
    let job = machine.runs_as(0, MiB::gib(4), SharingMode::Mps, me);
    let cause = EndCause::Requeued { by: "root".into() };
    let end = Action::End { job, attempt: 1, level: EndLevel::Terminate, cause };
    machine.performs(&end);
    assert!(told.recv_timeout(Duration::from_secs(60)).unwrap());
    supervisor.kill().unwrap();
    supervisor.wait().unwrap();
}

#[test]
fn memory_of_the_host_is_for_jobs_that_are_about_to_leave_their_gpu() {
    // More than any host has.
    let much = MiB::gib(1 << 30);
    let mut machine = Machine::new();
    let (large, small) = (machine.runs(0, much), machine.runs(1, MiB(1)));
    let can = |machine: &Machine, job| machine.engine.check_suspension(job).is_ok();
    assert_eq!((can(&machine, large), can(&machine, small)), (false, true));
    machine.suspends(large);
    assert!(!can(&machine, small), "its memory goes to the host first");
    machine.is_off(large);
    assert_eq!((can(&machine, large), can(&machine, small)), (true, true), "it is there");
    machine.comes_back(large);
    assert!(can(&machine, small), "it takes no more");
}

/// What the driver and the host say is the owner's to hear.
#[test]
fn who_may_not_suspend_a_job_is_not_told_why_it_cannot_be() {
    let mut machine = Machine::new();
    // More than any host has.
    let job = machine.runs(0, MiB::gib(1 << 30));
    let orders = || [Order::Suspend(job), Order::Move(job, None), Order::Move(job, Some(9))];
    for driver in [Ok(Driver::Cuda), Err("there is no driver".to_owned())] {
        machine.engine.parts.performer.suspender.driver = driver;
        for order in orders() {
            let refused = machine.engine.try_order(order, &peer(7)).unwrap_err();
            assert_eq!((refused.status, refused.code), (403, "not_allowed"), "{}", refused.text);
        }
        for order in orders() {
            assert_eq!(machine.engine.try_order(order, &peer(0)).unwrap_err().status, 409);
        }
    }
}

#[test]
fn nothing_moves_beside_gpus_in_mig_mode() {
    let mut machine = Machine::new();
    let job = machine.runs(0, MiB(1));
    let mut there: Vec<GpuInfo> = machine.engine.state.gpus().iter().map(|gpu| gpu.info.clone()).collect();
    let kind = GpuKind::Mig { parent: "GPU-2".into(), profile: "1g.18gb".into() };
    there.push(GpuInfo { uuid: "MIG-2".into(), index: 2, kind, ..there[0].clone() });
    machine.written(Input::Inventory(there.clone()));
    let refused = |machine: &Machine| machine.engine.check_move(job, Some(1)).map_err(|e| e.text);
    let why = refused(&machine).unwrap_err();
    assert!(why.contains("GPUs in MIG mode"), "{why}");
    there.pop();
    machine.written(Input::Inventory(there));
    assert!(refused(&machine).err().is_none_or(|why| !why.contains("MIG")), "its instances are gone");
}

#[test]
fn a_job_whose_gpu_is_gone_is_told_to_move() {
    let mut machine = Machine::new();
    let job = machine.runs(0, MiB(1));
    machine.suspends(job);
    machine.is_off(job);
    let resumed = |machine: &mut Machine| {
        let root = Peer { user: User::new(0, "root"), ..peer(0) };
        machine.engine.try_order(Order::Unsuspend(job), &root).unwrap().text
    };
    assert!(resumed(&mut machine).ends_with("as soon as GPU 0, which it left, has room"));
    let left = machine.engine.state.gpus().iter().skip(1).map(|gpu| gpu.info.clone()).collect();
    machine.written(Input::Inventory(left));
    let told = resumed(&mut machine);
    assert!(told.contains("once GPU 0") && told.contains(&format!("`carma move {job}`")), "{told}");
}

#[test]
fn a_gpu_that_a_job_cannot_have_at_all_is_told_before_what_it_would_need_there() {
    let mut machine = Machine::new();
    machine.engine.parts.performer.suspender.driver = Ok(Driver::Virtual("/none".into()));
    let job = machine.runs(0, MiB(1));
    let mut there: Vec<GpuInfo> = machine.engine.state.gpus().iter().map(|gpu| gpu.info.clone()).collect();
    there.push(GpuInfo {
        uuid: "GPU-2".into(),
        index: 2,
        name: "A100".into(),
        memory: MiB(1),
        ..there[0].clone()
    });
    machine.written(Input::Inventory(there));
    let root = || Peer { user: User::new(0, "root"), ..peer(0) };
    let refused =
        |machine: &mut Machine, to| machine.engine.try_order(Order::Move(job, to), &root()).unwrap_err().text;
    let why = refused(&mut machine, Some(2));
    assert!(why.contains("one type only"), "{why}");
    // GPU 1 was not looked at yet.
    let why = refused(&mut machine, None);
    assert!(why.ends_with("no other GPU of its type would do: GpuUnavailable(GPU 1: not read yet)"), "{why}");
    let by = || User::new(0, "root");
    machine.written(Input::Drain { gpu: GpuId(1), by: by() });
    let (why, all) = (refused(&mut machine, Some(1)), refused(&mut machine, None));
    assert!(
        why.contains("that GPU is drained") && all.ends_with("the other GPU of its type is drained"),
        "{why}, {all}"
    );
    let left = machine.engine.state.gpus().iter().filter(|gpu| gpu.info.index != 1);
    let left = left.map(|gpu| gpu.info.clone()).collect();
    machine.written(Input::Inventory(left));
    let why = refused(&mut machine, None);
    assert!(why.ends_with("there is no other GPU of its type"), "{why}");
}

fn peer(uid: u32) -> Peer {
    Peer { user: User::new(uid, "u"), gid: uid, pid: None, limits: UserLimits::NONE }
}

fn submission(request: SubmitRequest) -> Submission {
    submission_of(request, 7)
}

fn submission_of(request: SubmitRequest, uid: u32) -> Submission {
    let request = SubmitRequest { cwd: "/".into(), ..request };
    Submission::check(request, uid, &UserLimits::NONE).ok().unwrap()
}

/// Clients that are refused ask again at once: a turn that went on for as long as messages come would go on for ever.
#[test]
fn a_turn_ends_though_messages_wait() {
    let mut machine = Machine::new();
    machine.engine.takes = Duration::ZERO;
    let (viewer, mut view) = oneshot::channel();
    machine.to_engine.send(Message::View(viewer)).unwrap();
    let (answer, mut refusal) = oneshot::channel();
    let large = SubmitRequest { command: vec!["x".into()], gpus: Some(u32::MAX), ..SubmitRequest::default() };
    machine.to_engine.send(Message::Submit(Box::new(submission(large)), peer(7), answer)).unwrap();
    assert!(!machine.engine.turn(Duration::ZERO));
    assert!(view.try_recv().is_ok() && refusal.try_recv().is_err());
    machine.engine.turn(Duration::ZERO);
    assert!(refusal.try_recv().is_ok_and(|refusal| refusal.is_err()));
}

/// Asks for so many copies of a job that is held.
fn ask_for(machine: &mut Machine, count: u32, peer: Peer) -> oneshot::Receiver<Result<SubmitReply, Refused>> {
    let request = SubmitRequest {
        command: vec!["x".into()],
        output: Some("/out/%j".into()),
        hold: true,
        ..SubmitRequest::default()
    };
    let (answer, answered) = oneshot::channel();
    let bulk = Bulk::Submit(Box::new(submission(request)), count, peer, answer);
    machine.to_engine.send(Message::Bulk(bulk)).unwrap();
    answered
}

/// Gives an order to several jobs.
fn order_all(
    machine: &mut Machine,
    order: fn(JobId) -> Order,
    jobs: &[u64],
    uid: u32,
) -> oneshot::Receiver<Result<Vec<OfOne>, Refused>> {
    let (answer, answered) = oneshot::channel();
    let jobs = jobs.iter().copied().map(JobId).collect();
    machine.to_engine.send(Message::Bulk(Bulk::Order(order, jobs, peer(uid), answer))).unwrap();
    answered
}

/// Numbers of jobs, and where their outputs go.
fn told(reply: SubmitReply) -> Vec<(u64, String)> {
    reply.each().map(|reply| (reply.id, reply.log)).collect()
}

#[test]
fn copies_of_a_job_are_on_the_disk_together_up_to_the_first_that_is_refused() {
    let mut machine = Machine::new();
    machine.engine.takes = Duration::from_secs(600);
    let limits = UserLimits { pending_jobs: Some(6), ..UserLimits::NONE };
    let few = Peer { limits, ..peer(7) };
    let mut answered = ask_for(&mut machine, 10, few.clone());
    let plans = machine.engine.plans;
    machine.engine.turn(Duration::ZERO);
    assert!(machine.engine.plans <= plans + 1, "one plan for all");
    let expected: Vec<_> = (1..=6).map(|id| (id, format!("/out/{id}"))).collect();
    assert_eq!(told(answered.try_recv().unwrap().unwrap()), expected);
    let mut answered = ask_for(&mut machine, 4, few);
    machine.engine.turn(Duration::ZERO);
    let refused = answered.try_recv().unwrap().unwrap_err();
    assert!(refused.status == 429 && refused.text.contains("you have 6 jobs waiting"), "{}", refused.text);
    let mut answered = ask_for(&mut machine, 4, peer(7));
    machine.refuses();
    machine.engine.turn(Duration::ZERO);
    assert_eq!(answered.try_recv().unwrap().unwrap_err().status, 507);
    let file = machine.engine.parts.journal_file.clone();
    let (state, _dir) = machine.stops();
    assert_eq!(state.jobs().len(), 6, "all or nothing of a commit");
    let logs: Vec<String> = {
        let file = rusqlite::Connection::open(file).unwrap();
        let mut rows = file.prepare("SELECT log FROM jobs ORDER BY id").unwrap();
        rows.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
    };
    assert_eq!(logs, expected.into_iter().map(|(_, log)| log).collect::<Vec<_>>());
}

/// A megabyte of environment, ten thousand times.
#[test]
fn copies_of_a_large_job_come_a_few_at_a_time() {
    let mut machine = Machine::new();
    machine.engine.takes = Duration::from_secs(600);
    let env = (0..8).map(|n| (format!("V{n}"), "x".repeat(130_000))).collect();
    let request = SubmitRequest { command: vec!["x".into()], hold: true, env, ..SubmitRequest::default() };
    let reply = machine.engine.try_submit(submission(request), 10_000, &peer(7)).unwrap();
    assert_eq!(reply.copies.len() + 1, 4, "of 4 MiB");
}

#[test]
fn an_order_for_several_jobs_says_of_each_what_came_of_it_in_their_order() {
    let mut machine = Machine::new();
    machine.engine.takes = Duration::from_secs(600);
    let mut answered = ask_for(&mut machine, 5, peer(7));
    machine.engine.turn(Duration::ZERO);
    assert_eq!(answered.try_recv().unwrap().unwrap().copies.len(), 4);
    let mut of = |order, jobs: &[u64], uid| -> Vec<(u64, Result<String, u16>)> {
        let mut answered = order_all(&mut machine, order, jobs, uid);
        machine.engine.turn(Duration::ZERO);
        let outcomes = answered.try_recv().unwrap().unwrap().into_iter();
        outcomes.map(|(job, done)| (job.0, done.map(|done| done.text).map_err(|r| r.status))).collect()
    };
    let cancelled = |job| (job, Ok(format!("job {job} is being cancelled")));
    assert_eq!(of(Order::Cancel, &[4, 2], 8), [(4, Err(403)), (2, Err(403))]);
    assert_eq!(of(Order::Cancel, &[4, 99, 2], 7), [cancelled(4), (99, Err(404)), cancelled(2)]);
    assert_eq!(of(Order::Cancel, &[1, 2, 3], 7), [cancelled(1), (2, Err(409)), cancelled(3)]);
    assert_eq!(of(Order::Release, &[5], 7), [(5, Ok("job 5 is released".to_owned()))]);
    let (state, _dir) = machine.stops();
    assert_eq!(state.jobs().keys().copied().collect::<Vec<_>>(), [JobId(5)]);
}

/// What is asked of many jobs is done piece by piece, by turns, after all that is asked of single ones.
#[test]
fn what_asks_something_of_many_jobs_keeps_no_other_waiting() {
    let mut machine = Machine::new();
    let (mut many, mut more) =
        (ask_for(&mut machine, 10_000, peer(7)), ask_for(&mut machine, 10_000, peer(7)));
    let (answer, mut single) = oneshot::channel();
    let request = SubmitRequest { hold: true, ..stored().request };
    machine.to_engine.send(Message::Submit(Box::new(submission(request)), peer(8), answer)).unwrap();
    // All three messages are read, and of the rest there is time for one job.
    machine.engine.takes = Duration::from_secs(600);
    while let Ok(message) = machine.engine.inbox.try_recv() {
        machine.engine.handle(message);
    }
    machine.engine.takes = Duration::ZERO;
    machine.engine.turn(Duration::ZERO);
    assert_eq!(single.try_recv().unwrap().unwrap().id, 1);
    assert_eq!(many.try_recv().unwrap().unwrap().each().map(|reply| reply.id).collect::<Vec<_>>(), [2]);
    assert!(more.try_recv().is_err());
    assert_eq!(machine.engine.patience(), Duration::ZERO, "there is more to do");
    let mut cancelled = order_all(&mut machine, Order::Cancel, &[1, 2], 7);
    machine.engine.turn(Duration::ZERO);
    assert_eq!(more.try_recv().unwrap().unwrap().id, 3);
    machine.engine.turn(Duration::ZERO);
    let outcomes = cancelled.try_recv().unwrap().unwrap();
    assert!(matches!(&outcomes[..], [(JobId(1), Err(_))]), "so far as there was time");
    assert_ne!(machine.engine.patience(), Duration::ZERO);
}

/// Bulk requests of clients that have disconnected are dropped: no client would learn what was done.
#[test]
fn what_is_asked_of_many_jobs_by_a_client_that_is_gone_is_not_done() {
    let mut machine = Machine::new();
    machine.engine.takes = Duration::from_secs(600);
    drop(ask_for(&mut machine, 5, peer(7)));
    drop(ask_for(&mut machine, 5, peer(7)));
    let mut answered = ask_for(&mut machine, 1, peer(7));
    machine.engine.turn(Duration::ZERO);
    assert_eq!(answered.try_recv().unwrap().unwrap().id, 1);
    assert_eq!(machine.stops().0.jobs().len(), 1);
}

#[test]
fn a_job_that_is_held_is_journalled_as_held_once() {
    let mut machine = Machine::new();
    let job = held(&mut machine, 1);
    machine.engine.turn_end();
    let mut hold = |peer: &Peer| {
        let told = machine.engine.try_order(Order::Hold(job), peer).map(|done| done.text);
        (told.map_err(|refused| refused.status), machine.engine.batch.inputs.len())
    };
    let mut root = peer(0);
    root.user.operator = true;
    assert_eq!(hold(&peer(7)), (Ok("job 1 is held already".into()), 0));
    assert_eq!(hold(&peer(8)), (Err(403), 0));
    // What its own user holds an operator may hold as well.
    assert_eq!(hold(&root), (Ok("job 1 is held".into()), 1));
    assert_eq!(hold(&peer(7)), (Ok("job 1 is held already".into()), 1));
}

/// A job that is held, of the one program that there is. A GPU has room for many.
fn held(machine: &mut Machine, n: usize) -> JobId {
    let command = ["python3".to_owned(), "train.py".to_owned(), format!("--lr={n}")];
    let request = SubmitRequest {
        command: command.into(),
        gpu_memory_mib: Some(100),
        sharing: Some(SharingMode::TimeSlice),
        hold: true,
        ..SubmitRequest::default()
    };
    JobId(machine.engine.try_submit(submission(request), 1, &peer(7)).ok().unwrap().id)
}

/// One end is news to all jobs of the program. However large they are, none is read for it, and there is no turn that goes on
/// until all have heard.
#[test]
fn an_end_costs_the_same_however_many_wait_and_whatever_they_submitted() {
    let mut machine = Machine::new();
    let waiting: Vec<JobId> = (0..54).map(|n| held(&mut machine, n)).collect();
    let ends: Vec<JobId> = (0..40).map(|n| held(&mut machine, 100 + n)).collect();
    machine.engine.turn_end();
    for id in &ends {
        machine.launched(*id);
    }
    // What was submitted cannot be read any more.
    let file = rusqlite::Connection::open(machine.dir.path().join("carma.db")).unwrap();
    file.execute("UPDATE jobs SET spec = 'x'", []).unwrap();
    let engine = &mut machine.engine;
    engine.takes = Duration::ZERO;
    let exit = || Exit::of(ExitStatus::Code(0));
    for id in ends {
        let since = Instant::now() - LOOK_PATIENCE;
        engine.dying.push(Dying { job: id, attempt: 1, exit: exit(), look: u64::MAX, since });
    }
    let heard = |engine: &Engine| {
        let jobs = waiting.iter().filter(|id| engine.state.job(**id).unwrap().spec.run_time.is_some());
        jobs.count()
    };
    for turn in 1..=40 {
        assert_eq!(engine.patience(), Duration::ZERO, "there is more to do");
        engine.turn(Duration::ZERO);
        assert_eq!((engine.dying.len(), heard(engine)), (40 - turn, turn), "one of each a turn");
    }
    let mut turns = 0;
    while engine.patience() == Duration::ZERO {
        engine.turn(Duration::ZERO);
        turns += 1;
    }
    assert_eq!(heard(engine), 54);
    assert!(turns < 3 * 54, "each hears of all ends at once: {turns}");
}

#[test]
fn earlier_jobs_hear_news_again_once_they_are_read() {
    let mut machine = Machine::new();
    let (first, second) = (held(&mut machine, 1), held(&mut machine, 2));
    machine.engine.turn_end();
    // As after a restart.
    for id in [first, second] {
        machine.engine.parts.memory.over(id);
    }
    let (to_engine, file) = (machine.to_engine.clone(), machine.dir.path().join("carma.db"));
    let tell = move |job, gist| drop(to_engine.send(Message::Gist(job, Box::new(gist))));
    crate::gist::of_earlier(&machine.engine.state, file, tell).unwrap();
    while machine.engine.parts.memory.gist(second).is_none() {
        machine.engine.turn(Duration::from_secs(10));
    }
    machine.launched(first);
    machine.engine.exited(first, 1, Exit::of(ExitStatus::Code(0)));
    machine.engine.turn(Duration::ZERO);
    assert!(machine.engine.state.job(second).unwrap().spec.run_time.is_some());
}

/// What a job that ended while no daemon ran teaches is learned before the gists of those that wait are there.
#[test]
fn earlier_jobs_hear_what_was_taught_before_they_were_read() {
    let mut machine = Machine::new();
    let (first, second) = (held(&mut machine, 1), held(&mut machine, 2));
    machine.engine.turn_end();
    machine.launched(first);
    let stored = machine.engine.parts.journal.job(second).unwrap().unwrap();
    machine.engine.parts.memory.over(second);
    machine.engine.exited(first, 1, Exit::of(ExitStatus::Code(0)));
    machine.engine.turn(Duration::ZERO);
    assert!(machine.engine.state.job(second).unwrap().spec.run_time.is_none());
    let gist = Gist::of(&stored.request, stored.uid);
    machine.engine.handle(Message::Gist(second, Box::new(gist)));
    machine.engine.turn(Duration::ZERO);
    assert!(machine.engine.state.job(second).unwrap().spec.run_time.is_some());
}

/// A restart says nothing of how long jobs take: that one has run on meanwhile moves no bound.
#[test]
fn at_a_restart_no_bound_moves() {
    let mut machine = Machine::at_speed(50);
    let ids = [1, 2, 3].map(|n| held(&mut machine, n));
    let [runs, ended, waits] = ids;
    machine.engine.turn_end();
    machine.launched(ended);
    machine.engine.exited(ended, 1, Exit::of(ExitStatus::Code(0)));
    machine.engine.turn(Duration::ZERO);
    machine.launched(runs);
    let options = presets::by_name("adaptive").unwrap();
    machine.written(Input::Configured(Box::new(Options { policy: options, ..Options::default() })));
    machine.written(Input::Release { job: waits, by: User::new(7, "u") });
    let job = |machine: &Machine| machine.engine.state.job(waits).unwrap().clone();
    let before = job(&machine);
    assert!(before.due.is_some() && before.spec.run_time.is_some());
    // The one that runs takes for longer than expected.
    std::thread::sleep(Duration::from_millis(500));
    machine.written(Input::Tick);
    assert!(machine.engine.state.done(machine.engine.state.job(runs).unwrap()) > Millis::secs(20));
    let restarted = |machine: &mut Machine, taught| {
        let stored = machine.engine.parts.journal.job(waits).unwrap().unwrap();
        machine.engine.parts.memory.over(waits);
        machine.engine.taught = taught;
        machine.engine.handle(Message::Gist(waits, Box::new(Gist::of(&stored.request, stored.uid))));
        machine.engine.turn(Duration::ZERO);
        job(machine)
    };
    let after = restarted(&mut machine, false);
    assert_eq!((after.due, after.spec.run_time), (before.due, before.spec.run_time));
    // What an end taught meanwhile counts.
    let taught = restarted(&mut machine, true);
    assert!(taught.spec.run_time != before.spec.run_time, "{:?}", taught.spec.run_time);
}

#[test]
fn what_a_job_heard_while_the_disk_refused_it_hears_again() {
    let mut machine = Machine::new();
    let (first, second) = (held(&mut machine, 1), held(&mut machine, 2));
    machine.engine.turn_end();
    machine.launched(first);
    machine.engine.exited(first, 1, Exit::of(ExitStatus::Code(0)));
    machine.engine.turn_end();
    machine.refuses();
    machine.engine.turn(Duration::ZERO);
    assert!(machine.engine.state.job(second).unwrap().spec.run_time.is_none());
    machine.engine.turn(Duration::ZERO);
    assert!(machine.engine.state.job(second).unwrap().spec.run_time.is_some());
}

/// Of what a script takes with other arguments its jobs hear after each end, though memory takes each for another program.
#[test]
fn each_end_of_a_script_is_news_to_its_jobs_in_the_queue() {
    let mut machine = Machine::new();
    let mut submitted = |n: u32, hold| {
        let command = ["python3".to_owned(), "train.py".to_owned(), n.to_string()].into();
        let sharing = Some(SharingMode::TimeSlice);
        let request = SubmitRequest { command, sharing, hold, ..SubmitRequest::default() };
        JobId(machine.engine.try_submit(submission(request), 1, &peer(7)).ok().unwrap().id)
    };
    let (waits, ends) = (submitted(1, false), [2, 3].map(|n| submitted(n, true)));
    machine.engine.turn_end();
    for (runs, id) in (1..).zip(ends) {
        machine.launched(id);
        machine.engine.exited(id, 1, Exit::of(ExitStatus::Code(0)));
        machine.engine.turn(Duration::ZERO);
        let told = machine.engine.state.job(waits).unwrap().spec.run_time.unwrap();
        assert_eq!((told.basis, told.runs), (RunsOf::Program, runs));
    }
}

/// What an earlier version found room for runs, also where this one would not have launched it.
#[test]
fn what_a_journal_says_was_launched_is_there() {
    let mut machine = Machine::new();
    // 17 times 8 GiB of 140.
    let held: Vec<JobId> = (0..17).map(|_| machine.runs(0, MiB::gib(4))).collect();
    let mut state = machine.engine.state.clone();
    let job = state.next_id();
    let new = |job| NewJob { id: job, ..state.job(held[0]).unwrap().spec.clone() };
    let submitted = Input::Submitted(Box::new(new(job)));
    let now = state.now();
    state.apply(now, &submitted).unwrap();
    let placement = state.job(held[0]).unwrap().placement().unwrap().clone();
    let launch = Input::Decided(Box::new(Action::Launch { job, placement }));
    assert!(state.clone().apply(now, &launch).is_err());
    state.replay(now, &launch).unwrap();
    assert_eq!(state.gpu(GpuId(0)).unwrap().tenants.len(), 18);
    // Of what comes now room is asked.
    let next = state.next_id();
    let submitted = Input::Submitted(Box::new(NewJob { id: next, ..state.job(job).unwrap().spec.clone() }));
    state.apply(now, &submitted).unwrap();
    let placement = state.job(job).unwrap().placement().unwrap().clone();
    let launch = Input::Decided(Box::new(Action::Launch { job: next, placement }));
    assert!(state.apply(now, &launch).is_err());
}

/// Of what takes the same, byte for byte, other users hear how long it took, and nothing of its memory.
#[test]
fn an_end_is_news_to_the_same_command_of_another_user() {
    let mut machine = Machine::new();
    let mut submitted = |uid, hold| {
        let command = ["python3", "train.py", "--layers", "9"].map(str::to_owned).into();
        let sharing = Some(SharingMode::TimeSlice);
        let mut request = SubmitRequest { command, sharing, hold, ..SubmitRequest::default() };
        request.task.script = Some("5ca1ab1e".to_owned());
        JobId(machine.engine.try_submit(submission_of(request, uid), 1, &peer(uid)).ok().unwrap().id)
    };
    let (waits, ends) = (submitted(8, false), [0, 1].map(|_| submitted(7, true)));
    machine.engine.turn_end();
    for (runs, id) in (1..).zip(ends) {
        machine.launched(id);
        machine.engine.exited(id, 1, Exit::of(ExitStatus::Code(0)));
        machine.engine.turn(Duration::ZERO);
        let spec = &machine.engine.state.job(waits).unwrap().spec;
        let told = spec.run_time.unwrap();
        assert_eq!((told.basis, told.runs), (RunsOf::Shared, runs));
        assert_eq!(spec.forecasts.computed, None);
    }
}

/// It ran until its record says so, and no longer.
#[test]
fn what_ended_while_no_daemon_ran_ended_then() {
    let mut machine = Machine::new();
    let [first, second, fresh] = [0, 1, 1].map(|gpu| machine.runs(gpu, MiB::gib(4)));
    let began = machine.engine.state.now();
    let now = began + Millis::secs(3600);
    machine.engine.parts.clock = Clock::start(now, 1);
    for (job, age) in [(first, 3540), (second, 3570), (fresh, 8)] {
        let file = machine.records(job).write_end(&Exit::of(ExitStatus::Code(0)));
        file.set_modified(std::time::SystemTime::now() - Duration::from_secs(age)).unwrap();
    }
    machine.engine.adopt(vec![Input::Configured(Box::new(machine.engine.state.options().clone()))]);
    let account = machine.engine.state.accounts_at(now)[&0].clone();
    let (_, dir) = machine.stops();
    let reader = Journal::reader(&dir.path().join("carma.db")).unwrap();
    let ran_s = |job| {
        let over = reader.finished(job).unwrap().unwrap();
        assert_eq!(over.at, over.job.past[0].ended);
        over.at.since(began).0 / 1000
    };
    // One of a moment ago is told of now, after a look at its GPU: what it drew until then is its own.
    let ran = [first, second, fresh].map(ran_s);
    let is_right = (60..65).contains(&ran[0]) && (30..35).contains(&ran[1]) && (3592..3597).contains(&ran[2]);
    assert!(is_right, "{ran:?}");
    let held = account.held.0 / 1000;
    assert!((3690..3700).contains(&held), "{held}");
}

#[test]
fn what_counters_said_last_is_kept_when_the_daemon_stops() {
    let mut machine = Machine::new();
    machine.runs(0, MiB::gib(4));
    let told = |seconds, mj| {
        let mut seen = machine.engine.state.gpu(GpuId(0)).unwrap().seen.clone().unwrap();
        (seen.at, seen.energy_mj) = (seen.at + Millis::secs(seconds), Some(mj));
        let reading = GpuReading { energy_mj: Some(mj), ..GpuReading::empty("GPU-0".into(), Health::Ok) };
        Arc::new(vec![Look { seen, reading }])
    };
    // All else stays, so that the second one is no news.
    let looks = [told(1, 1000), told(2, 1700)];
    for look in looks {
        machine.engine.parts.clock = Clock::start(look[0].seen.at, 1);
        machine.engine.parts.board.publish(look, 0, true);
        machine.engine.refresh(false);
    }
    let counter = |state: &State| state.gpu(GpuId(0)).unwrap().seen.as_ref().unwrap().energy_mj;
    assert_eq!(counter(&machine.engine.state), Some(1000));
    let (state, _dir) = machine.stops();
    assert_eq!(counter(&state), Some(1700));
}

/// A look at the first GPU, on which nothing is.
fn idle_look(at: Millis, mj: u64) -> Arc<Vec<Look>> {
    let seen = Observation {
        at,
        health: Health::Ok,
        used: Some(MiB::ZERO),
        jobs: Vec::new(),
        foreign: Vec::new(),
        processes_known: true,
        window: WindowSummary::default(),
        energy_mj: Some(mj),
    };
    let reading = GpuReading { energy_mj: Some(mj), ..GpuReading::empty("GPU-0".into(), Health::Ok) };
    Arc::new(vec![Look { seen, reading }])
}

/// A median jumps between the levels of a load that goes up and down, while mean, p95 and EMA stand still.
#[test]
fn the_state_has_a_window_that_differs_in_what_is_decided_by_it() {
    let mut machine = Machine::new();
    machine.runs(0, MiB::gib(4));
    let policy = presets::by_name("or-magm").unwrap();
    machine.written(Input::Configured(Box::new(Options { policy, ..Options::default() })));
    let seen = machine.engine.state.gpu(GpuId(0)).unwrap().seen.clone().unwrap();
    let mut at = seen.at;
    let mut is_told = |summary: Summary| {
        at = at + Millis::secs(1);
        let window = WindowSummary { smact: Some(summary), ..WindowSummary::default() };
        let reading = GpuReading::empty("GPU-0".into(), Health::Ok);
        let look = Look { seen: Observation { at, window, ..seen.clone() }, reading };
        machine.engine.parts.clock = Clock::start(at, 1);
        machine.engine.parts.board.publish(Arc::new(vec![look]), 0, false);
        machine.engine.refresh(false);
        machine.engine.state.gpu(GpuId(0)).unwrap().seen.as_ref().unwrap().window.smact == Some(summary)
    };
    let level = Fraction::percent;
    let low =
        Summary { mean: level(48), median: level(5), p95: level(90), ema: level(48), ..Summary::default() };
    let high = Summary { median: level(90), ..low };
    assert!(is_told(low) && is_told(high) && is_told(low));
    assert!(!is_told(Summary { ema_half: level(90), ..low }), "no rule of this policy looks at it");
}

#[test]
fn counters_of_a_machine_without_jobs_are_read_at_the_start_then_now_and_then_and_at_the_stop() {
    let mut machine = Machine::new();
    let counter = |state: &State| state.gpu(GpuId(0)).unwrap().seen.as_ref().and_then(|seen| seen.energy_mj);
    let (began, mut written) = (machine.engine.state.now(), 0);
    // Seconds since the start, what the counter says, and what is told of it.
    for (seconds, mj, told) in [(1, 1000, 1000), (2, 1700, 1000), (590, 2000, 1000), (602, 3000, 3000)] {
        let at = began + Millis::secs(seconds);
        machine.engine.parts.clock = Clock::start(at, 1);
        machine.engine.parts.board.publish(idle_look(at, mj), 0, false);
        machine.engine.plan();
        assert_eq!(counter(&machine.engine.state), Some(told), "after {seconds} s");
        let wake = machine.engine.wake.unwrap();
        assert!(wake > at && wake.since(at) < METER + Millis::secs(5), "after {seconds} s: {wake:?}");
        written += machine.engine.batch.inputs.len();
        machine.engine.turn_end();
    }
    assert_eq!(written, 2, "the journal takes no more");
    let at = began + Millis::secs(700);
    machine.engine.parts.clock = Clock::start(at, 1);
    machine.engine.parts.board.publish(idle_look(at, 4500), 0, false);
    let (state, _dir) = machine.stops();
    assert_eq!(counter(&state), Some(4500));
    let tally = state.metered_at(state.now(), &BTreeMap::new()).gpus[&GpuId(0)];
    assert_eq!(tally.total_mj(), 3500);
}

#[test]
fn an_end_that_the_disk_refused_was_when_it_came() {
    let mut machine = Machine::new();
    let job = machine.runs(0, MiB::gib(4));
    machine.refuses();
    machine.engine.watched(job, 1, Event::Exited(Exit::of(ExitStatus::Code(0))));
    let came = machine.engine.state.now();
    machine.engine.turn_end();
    std::thread::sleep(Duration::from_millis(2));
    let (_, dir) = machine.stops();
    let over = Journal::reader(&dir.path().join("carma.db")).unwrap().finished(job).unwrap().unwrap();
    assert_eq!(over.job.past[0].ended, came);
}

#[test]
fn of_a_job_that_was_forgotten_nobody_is_sent_in_a_circle() {
    let mut machine = Machine::new();
    let job = machine.runs(0, MiB(1));
    machine.written(Input::Exited { job, attempt: 1, exit: Exit::of(ExitStatus::Code(0)) });
    let refused = |machine: &mut Machine| machine.engine.try_order(Order::Cancel(job), &peer(0)).unwrap_err();
    assert_eq!(refused(&mut machine).text, format!("job {job} is over already; see `carma show {job}`"));
    let file = rusqlite::Connection::open(machine.dir.path().join("carma.db")).unwrap();
    file.execute("DELETE FROM jobs", []).unwrap();
    let text = refused(&mut machine).text;
    assert!(text.contains("is over and no longer kept (journal.keep-jobs"), "{text}");
}

/// A request that is refused again and again costs nothing but the look that refuses it.
#[test]
fn what_the_machine_can_never_run_is_refused_before_all_else() {
    let mut machine = Machine::new();
    let asks = Peer { limits: UserLimits { running_jobs: Some(3), ..UserLimits::NONE }, ..peer(7) };
    let command = vec!["x".into()];
    let large = SubmitRequest { command, gpus: Some(u32::MAX), ..SubmitRequest::default() };
    let refused = machine.engine.try_submit(submission(large), 1, &asks).err().unwrap();
    assert!(refused.status == 400 && refused.text.contains("GPUs"), "{}", refused.text);
    assert!(machine.engine.batch.inputs.is_empty());
}

#[test]
fn a_limit_of_memory_that_is_no_number_of_bytes_is_refused() {
    let mut machine = Machine::new();
    let mut refused = |mib| {
        let command = vec!["x".into()];
        let request = SubmitRequest { command, host_memory_mib: Some(mib), ..SubmitRequest::default() };
        machine.engine.try_submit(submission(request), 1, &peer(7)).err().unwrap().text
    };
    for mib in [1 << 44, u64::MAX] {
        assert!(refused(mib).starts_with("--mem is more than a limit in bytes can be"), "{}", refused(mib));
    }
    assert!(refused((1 << 44) - 1).starts_with("this carma cannot limit"), "{}", refused((1 << 44) - 1));
}

/// Who asks for a job that is over reads it beside the engine.
#[test]
fn the_engine_reads_no_job_that_is_over() {
    let mut machine = Machine::new();
    let job = machine.runs(0, MiB(1));
    machine.written(Input::Exited { job, attempt: 1, exit: Exit::of(ExitStatus::Code(0)) });
    let file = rusqlite::Connection::open(machine.dir.path().join("carma.db")).unwrap();
    file.execute("UPDATE jobs SET spec = 'x'", []).unwrap();
    let refused = machine.engine.try_order(Order::Requeue(job), &peer(0)).unwrap_err();
    assert!(refused.status == 409 && refused.text.contains("over already"), "{}", refused.text);
}

#[test]
fn a_job_that_waits_on_after_a_cancel_that_the_disk_refused_hears_news() {
    let mut machine = Machine::new();
    let id = held(&mut machine, 1);
    machine.engine.turn_end();
    for refuses in [true, false] {
        if refuses {
            machine.refuses();
        }
        machine.engine.try_order(Order::Cancel(id), &peer(7)).unwrap();
        machine.engine.turn_end();
        assert_eq!(machine.engine.state.job(id).is_some(), refuses);
        assert_eq!(machine.engine.parts.memory.gist(id).is_some(), refuses);
    }
}

#[test]
fn nothing_is_left_of_a_job_that_is_cancelled_while_it_waits() {
    let mut machine = Machine::new();
    let id = machine.engine.try_submit(submission(stored().request), 1, &peer(0)).unwrap().id;
    assert_eq!(machine.engine.submitted.len(), 1);
    machine.written(Input::Cancel { job: JobId(id), by: User::new(0, "root") });
    assert!(machine.engine.state.job(JobId(id)).is_none() && machine.engine.submitted.is_empty());
}

#[test]
fn readers_hear_that_the_journal_cannot_be_written_until_it_can() {
    let mut machine = Machine::new();
    let unwritten = |machine: &mut Machine| {
        let (viewer, mut view) = oneshot::channel();
        machine.to_engine.send(Message::View(viewer)).unwrap();
        machine.engine.turn(Duration::ZERO);
        view.try_recv().unwrap().1.unwritten
    };
    machine.runs(0, MiB(1));
    assert_eq!(unwritten(&mut machine), None);
    machine.refuses();
    let told = unwritten(&mut machine).unwrap();
    let dir = machine.dir.path().display().to_string();
    assert!(told.why.contains("the journal cannot be written") && told.advice.contains(&dir), "{told:?}");
    // The log hears of it once, and then rarely.
    let complained = machine.engine.complained;
    machine.refuses();
    let again = unwritten(&mut machine).unwrap();
    assert!(complained.is_some() && machine.engine.complained == complained);
    machine.engine.complained = complained.unwrap().checked_sub(COMPLAIN_AGAIN);
    machine.refuses();
    assert_eq!(unwritten(&mut machine), Some(again));
    assert!(machine.engine.complained > complained);
    // Nothing is there to be written: it is tried all the same, after a while.
    assert_eq!(unwritten(&mut machine), Some(told));
    assert!(machine.engine.patience() <= TRY_AGAIN);
    machine.engine.unwritten.as_mut().unwrap().1 -= TRY_AGAIN;
    assert_eq!(unwritten(&mut machine), None);
}

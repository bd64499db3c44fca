use super::*;
use crate::config::{MemoryConfig, Sync};
use crate::journal::{Keep, Settings};
use crate::run::identity::Life;
use crate::run::launch::{Context, Launcher};
use crate::run::pace::Paces;
use crate::run::record::Claim;
use crate::run::suspend::{Driver, Suspender};
use carma_core::explain::Reason;
use carma_core::model::{
    ExitStatus, Forecasts, NewJob, Placement, ProcessRef, Profile, Request, SharingMode, User,
};
use carma_core::reading::{GpuInfo, GpuKind, Health};
use carma_core::windows::WindowSummary;
use carma_gpu::mps::{Mps, MpsOptions};
use tempfile::TempDir;

#[test]
fn percentiles_of_few_values() {
    assert_eq!(percentile(&[], 99), 0);
    assert_eq!(percentile(&[5, 1, 3], 50), 3);
    assert_eq!(percentile(&[5, 1, 3], 99), 5);
}

const SUPERVISOR: ProcessRef = ProcessRef { pid: u32::MAX, start_ticks: 1 };

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
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| {
            let path = dir.path().join(name);
            std::fs::create_dir(&path).unwrap();
            path
        };
        let (run, log_dir, pace, mps) = (at("run"), at("logs"), at("pace"), at("mps"));
        let mut journal = journal(&dir);
        let state = journal.recover().unwrap();
        let clock = Clock::start(Millis(1), 1);
        let life = Life::begin(Millis(1)).unwrap();
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
            look_ms: 1000,
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
        let job = self.engine.state.next_id();
        let user = User::new(0, "root");
        let request = Request { sharing: Some(SharingMode::TimeSlice), ..Request::of(1) };
        let new = NewJob {
            id: job,
            user,
            name: "train".into(),
            command_key: job.0,
            request,
            forecasts: Forecasts { declared: Some(MiB::gib(8)), ..Forecasts::default() },
            profile: Profile::default(),
            run_time: None,
            hold: false,
        };
        self.engine.batch.jobs.push((job, stored()));
        self.written(Input::Submitted(Box::new(new)));
        let (gpu, sharing) = (GpuId(gpu), SharingMode::TimeSlice);
        let at = self.engine.state.now();
        let placement = Placement {
            attempt: 1,
            gpus: vec![gpu],
            sharing,
            cap: None,
            part: None,
            thread_percent: None,
            at,
            reason: Reason::NotPlannedYet,
        };
        let claim = self.records(job).claim(&Claim::Supervisor(SUPERVISOR));
        assert!(claim.unwrap().is_some());
        self.decided(Action::Launch { job, placement });
        self.written(Input::Started {
            job,
            attempt: 1,
            supervisor: SUPERVISOR,
            child: None,
            sharing,
            note: None,
        });
        let seen = Observation {
            at,
            health: Health::Ok,
            used: Some(held),
            jobs: vec![(job, Some(held))],
            foreign: Vec::new(),
            processes_known: true,
            window: WindowSummary::default(),
            energy_mj: None,
        };
        self.written(Input::Observed { gpu, seen: Box::new(seen) });
        job
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

fn peer(uid: u32) -> Peer {
    Peer { user: User::new(uid, "u"), gid: uid, pid: None, limits: UserLimits::NONE }
}

fn submission(request: SubmitRequest) -> Submission {
    let request = SubmitRequest { cwd: "/".into(), ..request };
    Submission::check(request, &UserLimits::NONE).ok().unwrap()
}

/// Those who are refused ask again at once: a turn that went on for as long as messages come would go on for ever.
#[test]
fn a_turn_ends_though_messages_wait() {
    const ASKED: usize = 300;
    let machine = Machine::new();
    let (viewer, mut view) = oneshot::channel();
    machine.to_engine.send(Message::View(viewer)).unwrap();
    let mut refusals = Vec::new();
    // Refused by the state, after much else.
    let command = vec!["x".repeat(1000); 100];
    let large = SubmitRequest { command, gpus: Some(u32::MAX), ..SubmitRequest::default() };
    for _ in 0..ASKED {
        let (answer, refusal) = oneshot::channel();
        let submission = Box::new(submission(large.clone()));
        machine.to_engine.send(Message::Submit(submission, peer(7), answer)).unwrap();
        refusals.push(refusal);
    }
    machine.to_engine.send(Message::Stop).unwrap();
    let slow = std::thread::spawn(move || machine.engine.run());
    while view.try_recv().is_err() {
        std::thread::yield_now();
    }
    let given = refusals.iter_mut().map(|refusal| refusal.try_recv().is_ok());
    let refused = given.filter(|given| *given).count();
    assert!(refused < ASKED, "{refused}");
    slow.join().unwrap();
}

#[test]
fn nothing_is_left_of_a_job_that_is_cancelled_while_it_waits() {
    let mut machine = Machine::new();
    let id = machine.engine.try_submit(submission(stored().request), &peer(0)).unwrap().id;
    assert_eq!(machine.engine.submitted.len(), 1);
    machine.written(Input::Cancel { job: JobId(id), by: User::new(0, "root") });
    assert!(machine.engine.state.job(JobId(id)).is_none() && machine.engine.submitted.is_empty());
}

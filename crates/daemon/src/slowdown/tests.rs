//! Jobs on a GPU that is told what it does; time is told, too.

use super::*;
use crate::clock::Clock;
use carma_core::input::{Action, Foreign, Observation};
use carma_core::model::{Forecasts, GpuId, NewJob, Placement, ProcessRef, Request, User};
use carma_core::plan;
use carma_core::policy::Options;
use carma_core::reading::{GpuInfo, GpuKind, GpuReading, Health};
use carma_core::units::MiB;
use carma_core::windows::{Summary, WindowSummary};
use carma_interference::assumed::typical;
use carma_interference::group::{Group, Member, Mode};
use carma_interference::online::Observed;
use carma_run_time::news::MOST_COUNTS;

const GPU: &str = "NVIDIA H200";

struct Host {
    state: State,
    slowdowns: Slowdowns,
    now: Millis,
    /// How jobs are placed.
    sharing: SharingMode,
    /// Threads that they ask for and get.
    threads: Option<u8>,
    /// The jobs that have processes on the first GPU.
    there: Vec<JobId>,
    strangers: bool,
    processes_known: bool,
    /// SM activity and engine time of the first GPU, percent; `None`: it does not tell.
    busy: Option<f64>,
    /// What the GPUs draw, mW.
    power: Option<u32>,
    /// Latency that jobs may have, microseconds.
    latency_us: Option<u32>,
    /// Steps that commands say that they are to do.
    iterations: Option<u64>,
    _dir: tempfile::TempDir,
}

impl Host {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let paces = Paces::start(dir.path().to_owned(), Clock::start(Millis::ZERO, 1)).unwrap();
        let mut host = Self {
            state: State::default(),
            slowdowns: Slowdowns::new(paces, None, &[]),
            now: Millis::secs(1_000),
            sharing: SharingMode::Mps,
            threads: None,
            there: Vec::new(),
            strangers: false,
            processes_known: true,
            busy: Some(0.0),
            power: None,
            latency_us: None,
            iterations: None,
            _dir: dir,
        };
        host.feed(Input::Configured(Box::default()));
        let info = |index| GpuInfo {
            uuid: format!("GPU-{index}").into(),
            index,
            name: GPU.into(),
            memory: MiB::gib(140),
            kind: GpuKind::Virtual,
            has_activity: true,
            no_mps: None,
        };
        host.feed(Input::Inventory(vec![info(0), info(1)]));
        // What is tested is which jobs join others.
        host.feed(Input::Drain { gpu: GpuId(1), by: User::new(0, "root") });
        host.see(1);
        host
    }

    fn feed(&mut self, input: Input) {
        self.state.apply(self.now, &input).unwrap();
    }

    /// A job of a command of its own, which waits.
    fn submit(&mut self, gpus: u32, max_slowdown: Option<f64>) -> JobId {
        self.submit_like(self.state.next_id(), gpus, max_slowdown)
    }

    /// A job with the command of this one.
    fn submit_like(&mut self, one: JobId, gpus: u32, max_slowdown: Option<f64>) -> JobId {
        let id = self.state.next_id();
        self.feed(Input::Submitted(Box::new(NewJob {
            id,
            user: User::new(1000, "a"),
            name: "train".into(),
            command_key: one.0,
            program_key: None,
            request: Request {
                thread_percent: self.threads,
                latency_us: self.latency_us,
                max_slowdown: max_slowdown.and_then(Fraction::from_f64),
                ..Request::of(gpus)
            },
            profile: spec::Profile::default(),
            run_time: None,
            forecasts: Forecasts { declared: Some(MiB(2048)), ..Forecasts::default() },
            hold: false,
        })));
        id
    }

    /// The same, placed on these GPUs.
    fn place(&mut self, gpus: &[u32]) -> JobId {
        let job = self.submit(gpus.len() as u32, None);
        self.launch(job, gpus);
        job
    }

    fn launch(&mut self, job: JobId, gpus: &[u32]) {
        let placement = Placement {
            attempt: 1,
            gpus: gpus.iter().copied().map(GpuId).collect(),
            sharing: self.sharing,
            cap: None,
            part: None,
            floor: None,
            thread_percent: self.threads,
            at: self.now,
            reason: carma_core::explain::Reason::NotPlannedYet,
        };
        self.feed(Input::Decided(Box::new(Action::Launch { job, placement })));
        let supervisor = ProcessRef { pid: 1, start_ticks: 1 };
        let sharing = self.sharing;
        self.feed(Input::Started { job, attempt: 1, supervisor, child: None, sharing, note: None });
    }

    /// It has processes on the first GPU.
    fn begin(&mut self, job: JobId) {
        self.there.push(job);
        self.see(1);
    }

    /// The same, and makes steps.
    fn work(&mut self) -> JobId {
        let job = self.place(&[0]);
        self.begin(job);
        self.feed(Input::Stepped { job, attempt: 1, ago: Millis::ZERO });
        job
    }

    /// So many looks, a second apart.
    fn see(&mut self, seconds: u64) {
        for _ in 0..seconds {
            self.now = self.now + Millis::secs(1);
            let looks = [0, 1].map(|gpu| self.look(gpu));
            for (gpu, look) in (0..).map(GpuId).zip(&looks) {
                self.feed(Input::Observed { gpu, seen: Box::new(look.seen.clone()) });
            }
            for input in self.slowdowns.look(self.now, &self.state, &looks, |_| self.iterations) {
                self.feed(input);
            }
            for input in self.slowdowns.profiles_of_running(&self.state) {
                self.feed(input);
            }
        }
    }

    fn look(&self, gpu: u32) -> Look {
        let (there, busy) = if gpu == 0 { (&self.there[..], self.busy) } else { (&[][..], Some(0.0)) };
        let memory = Some(MiB(1024));
        let summary = Some(Summary { samples: 300, ..Summary::default() });
        let stranger = Foreign { pid: 4711, user: None, memory };
        let mut reading = GpuReading::empty(format!("GPU-{gpu}").into(), Health::Ok);
        let share = busy.and_then(|percent| Fraction::from_f64(percent / 100.0));
        (reading.activity.smact, reading.activity.gract) = (share, share);
        reading.activity.gpu_util = Some(Fraction::ONE);
        reading.power_mw = self.power;
        let seen = Observation {
            at: self.now,
            health: Health::Ok,
            used: Some(MiB(1024 * there.len() as u64)),
            jobs: there.iter().filter(|_| self.processes_known).map(|job| (*job, memory)).collect(),
            foreign: Some(stranger).filter(|_| self.strangers && gpu == 0).into_iter().collect(),
            processes_known: self.processes_known,
            window: WindowSummary { smact: summary, smocc: summary, drama: summary },
            energy_mj: None,
        };
        Look { seen, reading }
    }

    /// SM activity that is assumed of a job; `None`: nothing was learned.
    fn assumed(&self, job: JobId) -> Option<f64> {
        let profile = self.slowdowns.assumed.get(&(job.0, GPU.into()))?;
        Some(profile.metrics.smact_pct.unwrap().mean)
    }

    /// What the core asks is answered; the jobs that are launched then.
    fn launched(&mut self) -> Vec<JobId> {
        loop {
            let answers = self.slowdowns.answers(&self.state);
            if answers.is_empty() {
                break;
            }
            answers.into_iter().for_each(|input| self.feed(input));
        }
        let actions = plan(&self.state, self.now).actions;
        let launched = |action| match action {
            Action::Launch { job, .. } => Some(job),
            _ => None,
        };
        actions.into_iter().filter_map(launched).collect()
    }

    fn outlook(&self, newcomer: JobId) -> &Outlook {
        self.state.outlooks().find(|outlook| outlook.newcomer.command == newcomer.0).unwrap()
    }
}

fn rows(of: Vec<(String, Option<String>)>) -> Vec<(String, String)> {
    of.into_iter().filter_map(|(key, body)| Some((key, body?))).collect()
}

#[test]
fn light_jobs_that_were_never_alone_get_more_company_than_typical_ones() {
    let mut host = Host::new();
    let jobs = [(); 4].map(|()| host.work());
    host.see(1);
    let next = host.submit(1, None);
    assert_eq!(host.launched(), []);
    let before = host.outlook(next).joins.expected;
    host.busy = Some(12.0);
    host.see(60);
    assert!(
        jobs.iter()
            .all(|job| host.assumed(*job).unwrap() < 15.0 && host.slowdowns.profile(job.0, GPU).is_none())
    );
    assert_eq!(host.launched(), [next]);
    let after = host.outlook(next);
    assert!(after.joins.expected > before, "{after:?}");
    assert_eq!(after.unknown.len(), jobs.len() + 1);
    // Of its command nothing was seen; of one more of theirs it was, beside others.
    assert!(!after.seen_beside);
    host.submit_like(jobs[0], 1, None);
    host.launched();
    assert!(host.outlook(jobs[0]).seen_beside);
}

#[test]
fn where_a_limit_counts_what_is_assumed_is_not_known() {
    let mut host = Host::new();
    let jobs = [host.work(), host.work()];
    host.busy = Some(5.0);
    host.see(60);
    let limited = host.submit(1, Some(10.0));
    assert_eq!(host.launched(), []);
    let outlook = host.outlook(limited);
    assert_eq!(outlook.unknown.len(), 3);
    let least = |pace: &carma_core::slowdown::Pace| pace.lower.unwrap().0 * 2 <= pace.expected.0 + 1;
    assert!(outlook.paces.iter().chain([&outlook.joins]).all(least), "{outlook:?}");
    // Nor does it teach the predictor.
    let before = host.slowdowns.model.to_json().unwrap();
    let progress: BTreeMap<JobId, f64> = jobs.iter().map(|job| (*job, 0.2)).collect();
    host.slowdowns.learn(&host.state, &progress);
    assert_eq!(host.slowdowns.model.to_json().unwrap(), before);
    assert!(!host.slowdowns.model_changed);
    // Nor is it told as what they do alone.
    assert_eq!(host.slowdowns.known(&host.state, jobs[0].0, None), spec::Profile::default());
    let asked = Subject { id: jobs[0], command: jobs[0].0, readable: true };
    assert_eq!(host.slowdowns.tell(&host.state, &[asked], None).unknown, [jobs[0].0]);
}

#[test]
fn profiles_are_told_of_one_type_of_gpu() {
    let mut host = Host::new();
    let info =
        |index, name: &str| GpuInfo { name: name.into(), ..host.state.gpus()[index as usize].info.clone() };
    let inventory = vec![info(0, "NVIDIA A100-SXM4-40GB"), info(1, GPU)];
    host.feed(Input::Inventory(inventory));
    let spec = |host: &mut Host| {
        let id = host.submit(1, None);
        host.state.job(id).unwrap().spec.clone()
    };
    let [both, first, second] = [(); 3].map(|()| spec(&mut host));
    let gpus = ["NVIDIA A100-SXM4-40GB", GPU];
    for (spec, gpu) in [(&both, 0), (&both, 1), (&first, 0), (&second, 1)] {
        let gpu: &str = gpus[gpu];
        let profile = Profile { gpu: Some(gpu.into()), ..Profile::default() };
        host.slowdowns.keep(spec, gpu, profile, host.now);
    }
    let tell = |specs: &[&spec::NewJob], asked: Option<&str>| {
        let of = |spec: &&spec::NewJob| Subject { id: spec.id, command: spec.command_key, readable: true };
        let jobs: Vec<Subject> = specs.iter().map(of).collect();
        let told = host.slowdowns.tell(&host.state, &jobs, asked).reply();
        let tasks = Profiles::read(&told.profiles.to_string()).unwrap().tasks;
        assert!(tasks.iter().all(|task| task.gpu.as_ref() == Some(&told.gpu)));
        (told.gpu, told.unknown)
    };
    // The first on which all were seen.
    assert_eq!(tell(&[&both], None), (gpus[0].into(), vec![]));
    assert_eq!(tell(&[&both, &second], None), (gpus[1].into(), vec![]));
    assert_eq!(tell(&[&first, &second], None), (gpus[0].into(), vec![second.id.0]));
    // Of the type that is meant.
    for asked in ["H200", "nvidia h200"] {
        assert_eq!(tell(&[&both], Some(asked)), (gpus[1].into(), vec![]));
        assert_eq!(tell(&[&both, &first], Some(asked)), (gpus[1].into(), vec![first.id.0]));
    }
    // There is none of that: the forecast doubts what is told.
    assert_eq!(tell(&[&second], Some("V100")), (gpus[1].into(), vec![]));
}

#[test]
fn of_a_job_of_others_no_more_is_told_than_what_it_does_on_the_gpu() {
    let mut host = Host::new();
    let id = host.submit(1, None);
    let spec = host.state.job(id).unwrap().spec.clone();
    let stat = |mean| Some(Stat::of(mean));
    let profile = Profile {
        gpu: Some(GPU.into()),
        rate: Some(Rate { per_s: 4.0, unit: Some("steps".into()), ..Rate::default() }),
        metrics: Metrics {
            smact_pct: stat(70.0),
            memory_mib: stat(9000.0),
            power_w: stat(400.0),
            cpu_pct: stat(800.0),
            host_memory_mib: stat(64000.0),
            ..Metrics::default()
        },
        rate_by_threads_pct: BTreeMap::from([(50, 3.0)]),
        latency_p99_ms: Some(12.0),
        watched_s: Some(30.0),
        ..Profile::default()
    };
    host.slowdowns.keep(&spec, GPU, profile.clone(), host.now);
    let tell = |readable| {
        let asked = Subject { id, command: spec.command_key, readable };
        let told = host.slowdowns.tell(&host.state, &[asked], None).reply();
        Profiles::read(&told.profiles.to_string()).unwrap().tasks.remove(0)
    };
    assert_eq!(tell(true), Profile { name: id.to_string(), ..profile.clone() });
    let told = tell(false);
    assert_eq!(told.curve(), [(50.0, 0.75), (100.0, 1.0)], "as much as a share of the threads costs");
    let metrics = Metrics { smact_pct: stat(70.0), memory_mib: stat(9000.0), ..Metrics::default() };
    let expected = Profile {
        name: id.to_string(),
        gpu: Some(GPU.into()),
        metrics,
        rate_by_threads_pct: told.rate_by_threads_pct.clone(),
        ..Profile::default()
    };
    assert_eq!(told, expected);
}

#[test]
fn a_window_begins_anew_when_one_comes_to_work_and_before_it_tells_what_holds_either_way() {
    let mut host = Host::new();
    host.busy = Some(20.0);
    let a = host.place(&[0]);
    host.begin(a);
    // It starts up.
    host.see(8);
    assert_eq!(host.assumed(a), None);
    host.feed(Input::Stepped { job: a, attempt: 1, ago: Millis::ZERO });
    let b = host.work();
    host.see(4);
    assert_eq!(host.assumed(a), None);
    host.see(1);
    let first = host.assumed(a).unwrap();
    assert!(first < 40.0 && host.assumed(b) == Some(first));
    // One that was placed does not keep the others from being seen until it has a process there.
    let c = host.place(&[0]);
    host.see(2);
    let second = host.assumed(a).unwrap();
    assert!(second < first && host.assumed(c).is_none());
    // It has a process there and reports no steps. An increase that one typical job explains is attributed to none of the others.
    host.busy = Some(50.0);
    host.begin(c);
    host.see(7);
    assert_eq!((host.assumed(a), host.assumed(c)), (Some(second), None));
    // That they do less is so with it and without it, and that they do more.
    host.busy = Some(20.0);
    host.see(4);
    let third = host.assumed(a).unwrap();
    assert!(third < second && host.assumed(c).is_none());
    host.busy = Some(95.0);
    host.see(2);
    assert!(host.assumed(a).unwrap() > third && host.assumed(c).is_none());
    host.feed(Input::Stepped { job: c, attempt: 1, ago: Millis::ZERO });
    host.see(4);
    assert_eq!(host.assumed(c), None);
    host.see(1);
    assert!(host.assumed(c).is_some());
}

/// What the GPU does says nothing of a newcomer where it is full; how much slower the others are does, and how much faster once it has left.
#[test]
fn a_newcomer_to_a_full_gpu_is_told_by_what_it_costs_the_others() {
    // The newcomer leaves the two this share of their speed, and then leaves them to each other again.
    let told = |share: f64| {
        let mut host = Host::new();
        host.busy = Some(100.0);
        let (a, b) = (host.work(), host.work());
        let open = |host: &Host, job: JobId| host.slowdowns.paces().open(job, format!("{job}"));
        let go_on = |host: &mut Host, seconds: u64, per_s: u64| {
            for _ in 0..seconds {
                for at in 0..per_s {
                    let at = host.now + Millis(1000 * at / per_s);
                    [a, b].iter().for_each(|job| host.slowdowns.paces().step(*job, at));
                }
                host.see(1);
            }
        };
        [a, b].iter().for_each(|job| open(&host, *job));
        go_on(&mut host, 20, 40);
        let c = host.work();
        go_on(&mut host, 10, (40.0 * share) as u64);
        let came = host.assumed(c).unwrap();
        let exit = carma_core::model::Exit::of(carma_core::model::ExitStatus::Code(0));
        host.feed(Input::Exited { job: c, attempt: 1, exit });
        host.there.retain(|job| *job != c);
        go_on(&mut host, 8, 40);
        (came, host.assumed(c).unwrap())
    };
    let (heavy, light) = (told(0.4), told(0.95));
    let typical = typical().metrics.smact_pct.unwrap().mean;
    for (heavy, light) in [(heavy.0, light.0), (heavy.1, light.1)] {
        assert!(heavy > 1.5 * typical && light < 0.8 * typical, "{heavy} {light}");
    }
}

#[test]
fn nothing_is_assumed_of_what_cannot_be_seen_or_stands_still() {
    let learns = |change: fn(&mut Host, JobId)| {
        let mut host = Host::new();
        host.busy = Some(15.0);
        host.sharing = SharingMode::TimeSlice;
        let (a, b) = (host.work(), host.work());
        change(&mut host, b);
        host.see(14);
        host.assumed(a).is_some()
    };
    assert!(learns(|_, _| {}));
    // Before Hopper the driver tells utilisation alone.
    assert!(!learns(|host, _| host.busy = None));
    assert!(!learns(|host, _| host.strangers = true));
    assert!(!learns(|host, _| {
        host.place(&[0]);
        host.processes_known = false;
    }));
    assert!(!learns(|host, job| host.feed(Input::Cancel { job, by: User::new(1000, "a") })));
    assert!(!learns(|host, job| host.feed(Input::Suspend { job, by: User::new(1000, "a") })));
    // On another GPU besides it does about the same on either.
    assert!(learns(|host, _| {
        host.feed(Input::Resume { gpu: GpuId(1), by: User::new(0, "root") });
        let job = host.place(&[0, 1]);
        host.begin(job);
        host.feed(Input::Stepped { job, attempt: 1, ago: Millis::ZERO });
    }));
}

#[test]
fn when_the_first_step_began_is_found_out_from_the_counts_of_a_job_that_has_settled() {
    let mut host = Host::new();
    let job = host.place(&[0]);
    host.slowdowns.paces.open(job, "1.1".into());
    host.begin(job);
    let tenant = |host: &Host| host.state.gpu(GpuId(0)).unwrap().tenant(job).cloned().unwrap();
    let active = host.now;
    // It loads for longer than it takes to settle, and then makes a step every four seconds.
    host.see(60);
    assert!(tenant(&host).settled && tenant(&host).stepped.is_none());
    // That its progress is not to be measured, as with fewer threads than it asked for, is another thing.
    host.slowdowns.watched.get_mut(&job).unwrap().breaks(host.now);
    let works = host.now;
    let step = |host: &mut Host| {
        host.see(4);
        host.slowdowns.paces.step(job, host.now);
    };
    for _ in 0..4 {
        assert_eq!(tenant(&host).stepped, None);
        step(&mut host);
    }
    host.see(1);
    assert_eq!(tenant(&host).stepped, Some(works));

    // One whose memory was there long before it was looked at was found at work.
    let mut found = Host::new();
    found.place(&[0]);
    found.slowdowns.paces.open(job, "1.1".into());
    found.begin(job);
    assert_eq!(tenant(&found).active_since, Some(active));
    found.slowdowns.ended(job, 1);
    found.slowdowns.paces.open(job, "1.1".into());
    found.now = found.now + Millis::secs(60);
    (0..6).for_each(|_| step(&mut found));
    found.see(1);
    assert_eq!(tenant(&found).stepped, None);
}

#[test]
fn what_is_assumed_is_stored_until_more_is_known() {
    let mut host = Host::new();
    host.busy = Some(12.0);
    let (a, b) = (host.work(), host.work());
    host.see(30);
    let stored = rows(host.slowdowns.changes(host.now));
    let names: Vec<&str> = stored.iter().map(|(name, _)| name.as_str()).collect();
    let name = |job: JobId| format!("assumed/{:016x}/{GPU}", job.0);
    assert_eq!(names, [name(a), name(b)]);
    // Small changes are no news.
    host.see(5);
    assert_eq!(host.slowdowns.changes(host.now), []);
    let hostile = [
        ("assumed/1".to_owned(), "{}".to_owned()),
        (format!("assumed/zz/{GPU}"), stored[0].1.clone()),
        (format!("assumed/09/{GPU}"), r#"{"name":"a","metrics":{"smact_pct":1e300}}"#.to_owned()),
        (format!("guessed/09/{GPU}"), stored[0].1.clone()),
    ];
    host.slowdowns.restore(&[&hostile[..], &stored].concat());
    assert_eq!(host.slowdowns.assumed.get(&(9, GPU.into())), None);
    let known = host.assumed(a).unwrap();
    assert!((5.0..15.0).contains(&known), "{known}");
    assert_eq!(host.slowdowns.changes(host.now), []);
    // Once it was alone, that counts.
    let profile = Profile { name: "train".into(), ..typical() };
    let spec = host.state.job(a).unwrap().spec.clone();
    host.slowdowns.keep(&spec, GPU, profile, host.now);
    let changes = host.slowdowns.changes(host.now);
    assert!(changes.iter().any(|row| *row == (name(a), None)), "{changes:?}");
    assert_eq!(host.assumed(a), None);
    // An older carma stores profiles and leaves what was assumed.
    let all = [&stored[..], &rows(changes)].concat();
    host.slowdowns.restore(&all);
    assert_eq!(host.slowdowns.changes(host.now), [(name(a), None)]);
    assert!(host.assumed(a).is_none() && host.assumed(b).is_some());
}

#[test]
fn what_is_assumed_is_bounded() {
    let mut assumed = Assumptions::default();
    for command in 0..MOST_PROFILES as u64 + 10 {
        assumed.restore((command, GPU.into()), typical(), Beside::default());
    }
    let forgotten = assumed.changes().filter(|(_, row)| row.is_none()).count();
    assert_eq!(forgotten, 10);
    let left = (0..MOST_PROFILES as u64 + 10).filter(|at| assumed.get(&(*at, GPU.into())).is_some()).count();
    assert_eq!(left, MOST_PROFILES);
}

#[test]
fn one_user_drives_out_no_others_commands() {
    let mut host = Host::new();
    let job = host.submit(1, None);
    let spec = |command: u64, uid: u32| {
        let mut spec = host.state.job(job).unwrap().spec.clone();
        (spec.command_key, spec.user.uid) = (command, uid);
        spec
    };
    let (first, many) = (spec(0, 7), (1..MOST_PROFILES as u64 + 10).map(|at| spec(at, 8)));
    let many: Vec<_> = many.collect();
    let slowdowns = &mut host.slowdowns;
    let assumed = |slowdowns: &mut Slowdowns, command, uid| {
        let beside = Beside { uid: Some(uid), used: Millis::ZERO };
        slowdowns.assumed.restore((command, "A100".into()), typical(), beside);
    };
    slowdowns.keep(&first, GPU, typical(), Millis(1));
    assumed(slowdowns, 0, 7);
    // Whose they are is stored.
    let stored = rows(slowdowns.last_changes());
    slowdowns.restore(&stored);
    assumed(slowdowns, 0, 7);
    for (at, spec) in (2..).zip(&many) {
        slowdowns.keep(spec, GPU, typical(), Millis(at));
        assumed(slowdowns, spec.command_key, 8);
    }
    assert_eq!(slowdowns.profiles.iter().count(), MOST_PROFILES);
    assert!(slowdowns.profile(0, GPU).is_some() && slowdowns.profile(1, GPU).is_none());
    let assumed = |command| slowdowns.assumed.get(&(command, "A100".into())).is_some();
    assert!(assumed(0) && !assumed(1));
    // So is when they were last seen: after a start the least recent goes, not the first by number.
    let oldest =
        1 + many.iter().take_while(|spec| slowdowns.profile(spec.command_key, GPU).is_none()).count();
    slowdowns.keep(&many[oldest - 1], GPU, typical(), Millis::secs(1));
    let all = [stored, rows(slowdowns.last_changes())].concat();
    slowdowns.restore(&all);
    slowdowns.keep(&many[0], GPU, typical(), Millis::secs(2));
    let is_kept = |command: usize| slowdowns.profile(command as u64, GPU).is_some();
    assert_eq!([1, oldest, oldest + 1, oldest + 2].map(is_kept), [true, true, false, true]);
    // A command that is seen each day is stored as often (a new one once there is something to store).
    let mut seen: Rows<Profile> = Rows::default();
    let stored = |seen: &mut Rows<Profile>, hours: u64| {
        seen.used(Millis::secs(3600 * hours), &(1, GPU.into()), Some(7), typical);
        seen.changes(|profile| profile).count()
    };
    assert_eq!([25, 26, 49, 50].map(|hours| stored(&mut seen, hours)), [0, 0, 1, 0]);
    // Rows of older versions do not tell.
    let row = ("profile/000000000000000a/A100".to_owned(), serde_json::to_string(&typical()).unwrap());
    slowdowns.restore(&[row]);
    assert!(slowdowns.profile(10, "A100").is_some());
}

#[test]
fn what_was_learned_of_a_command_stays_as_long_as_a_profile_of_it() {
    let mut host = Host::new();
    let job = host.submit(1, None);
    let spec = host.state.job(job).unwrap().spec.clone();
    let slowdowns = &mut host.slowdowns;
    let [one, two] = [1, 2].map(|command| Profile { class: Some(class(command)), ..typical() });
    let members = [Member::of(&one), Member::of(&two)];
    let group = Group { gpu: &GpuType::named(GPU), sharing: Mode::Mps, members: &members };
    slowdowns.model.observe(&group, &Observed::Progress(vec![Some(0.7); 2])).unwrap();
    let mut keep = |command: u64, gpu: &str, at: u64| {
        slowdowns.keep(&NewJob { command_key: command, ..spec.clone() }, gpu, typical(), Millis(at));
    };
    keep(1, "A100", 1);
    keep(1, GPU, 2);
    (2..=MOST_PROFILES as u64).for_each(|command| keep(command, GPU, 3));
    let is_learned = |slowdowns: &Slowdowns| {
        let json = slowdowns.model.of_classes(&[class(1)].into()).to_json().unwrap();
        json.contains(&format!("\"{}\":", class(1)))
    };
    assert!(host.slowdowns.profile(1, "A100").is_none() && is_learned(&host.slowdowns));
    let spec = NewJob { command_key: 0, ..spec };
    host.slowdowns.keep(&spec, GPU, typical(), Millis(4));
    assert!(host.slowdowns.profile(1, GPU).is_none() && !is_learned(&host.slowdowns));
}

#[test]
fn a_job_is_alone_until_its_neighbour_has_begun() {
    let mut host = Host::new();
    host.busy = Some(30.0);
    let a = host.place(&[0]);
    host.begin(a);
    host.see(8);
    // Placed, and not yet on the GPU: what is seen is the first one's.
    let b = host.place(&[0]);
    host.see(8);
    assert!(host.slowdowns.profile(a.0, GPU).is_some());
    // What it does beside the other is not taken for what it does alone.
    host.busy = Some(90.0);
    host.begin(b);
    host.see(40);
    let smact = |host: &Host| host.slowdowns.profile(a.0, GPU).unwrap().metrics.smact_pct.unwrap().mean;
    assert!((smact(&host) - 30.0).abs() < 0.1);
    assert!(host.slowdowns.profile(b.0, GPU).is_none());
    assert_eq!(host.assumed(a), None);
}

#[test]
fn what_a_job_does_alone_begins_with_its_work() {
    let smact = |host: &Host, job: JobId| {
        Some(host.slowdowns.profile(job.0, GPU)?.metrics.smact_pct.unwrap().mean.round())
    };
    // It holds memory and does nothing until its first activity, or its first step.
    let mut host = Host::new();
    let a = host.place(&[0]);
    host.begin(a);
    host.see(60);
    assert_eq!(smact(&host, a), None);
    host.busy = Some(80.0);
    host.see(11);
    assert_eq!(smact(&host, a), Some(80.0));
    let mut host = Host::new();
    host.busy = Some(5.0);
    let b = host.place(&[0]);
    host.begin(b);
    host.see(20);
    assert_eq!(smact(&host, b), Some(5.0), "of one that tells no steps it is not known that it loads");
    host.power = Some(90_000);
    host.see(30);
    let told = |host: &Host| host.state.job(b).unwrap().spec.profile.power_mw;
    assert_eq!(told(&host), Some(90_000));
    host.feed(Input::Stepped { job: b, attempt: 1, ago: Millis::ZERO });
    (host.busy, host.power) = (Some(80.0), Some(500_000));
    host.see(13);
    assert_eq!(smact(&host, b), Some(80.0));
    // Its energy is compared with what it would draw alone, which is another one now.
    assert_eq!(told(&host), Some(500_000));
    // A context that is made, and a minute of loading, is no work of a command that has told of no step.
    let mut host = Host::new();
    let d = host.place(&[0]);
    host.begin(d);
    host.busy = Some(10.0);
    host.see(6);
    host.busy = Some(0.3);
    host.see(30);
    assert_eq!(smact(&host, d), None);
    host.see(40);
    assert_eq!(smact(&host, d), Some(0.0));
    // What holds a GPU idle for minutes does no more than that.
    let mut host = Host::new();
    let c = host.place(&[0]);
    host.begin(c);
    host.see(320);
    assert_eq!(smact(&host, c), Some(0.0));
}

/// Measured on an H200: `step 1/1320 0.1 it/s`, printed after a start-up of 23 s, was taken for a training's speed alone.
#[test]
fn what_a_job_prints_at_its_first_step_is_not_its_speed() {
    let mut host = Host::new();
    let a = host.place(&[0]);
    host.slowdowns.paces.open(a, "1.1".into());
    host.begin(a);
    host.see(20);
    // It compiles, say.
    host.busy = Some(1.0);
    host.slowdowns.paces.bar(a, host.now, "", 1.0, Some(0.1));
    host.see(20);
    assert!(host.slowdowns.profile(a.0, GPU).is_none());
    host.busy = Some(80.0);
    for second in 1..20 {
        host.slowdowns.paces.bar(a, host.now, "", 39.0 * f64::from(second), Some(f64::from(second)));
        host.see(1);
    }
    let profile = host.slowdowns.profile(a.0, GPU).unwrap();
    assert!((profile.metrics.smact_pct.unwrap().mean - 80.0).abs() < 0.1, "{profile:?}");
    assert!((profile.rate.as_ref().unwrap().per_s - 39.0).abs() < 1.0, "{profile:?}");
    // One that counts epochs has no more to tell for long.
    let mut host = Host::new();
    let b = host.place(&[0]);
    host.slowdowns.paces.open(b, "1.2".into());
    host.begin(b);
    host.busy = Some(80.0);
    host.slowdowns.paces.bar(b, host.now, "", 1.0, None);
    host.see(75);
    let profile = host.slowdowns.profile(b.0, GPU).unwrap();
    assert_eq!(profile.rate, None);
}

#[test]
fn with_fewer_threads_a_command_is_not_as_it_is_alone() {
    let known = |threads: Option<u8>| {
        let mut host = Host::new();
        (host.busy, host.threads) = (Some(50.0), threads);
        let job = host.work();
        host.slowdowns.paces.open(job, "1.1".into());
        for _ in 0..30 {
            host.see(1);
            host.slowdowns.paces.step(job, host.now);
        }
        (host.slowdowns.profile(job.0, GPU).is_some(), host.slowdowns.watched[&job].rate.is_some())
    };
    assert_eq!((known(None), known(Some(100))), ((true, true), (true, true)));
    // Its speed is its own: what it asked for is no neighbour's doing.
    assert_eq!(known(Some(50)), (false, true));
}

#[test]
fn where_processes_cannot_be_seen_a_placed_neighbour_counts() {
    let mut host = Host::new();
    host.busy = Some(30.0);
    let a = host.place(&[0]);
    host.begin(a);
    host.place(&[0]);
    host.processes_known = false;
    host.see(40);
    assert!(host.slowdowns.profile(a.0, GPU).is_none());
    host.processes_known = true;
    host.see(20);
    assert!(host.slowdowns.profile(a.0, GPU).is_some());
}

#[test]
fn a_process_of_others_begins_the_time_alone_anew() {
    let mut host = Host::new();
    host.busy = Some(90.0);
    let a = host.place(&[0]);
    host.begin(a);
    host.see(14);
    host.strangers = true;
    host.see(1);
    (host.strangers, host.busy) = (false, Some(30.0));
    host.see(14);
    assert!(host.slowdowns.profile(a.0, GPU).is_none());
    host.see(3);
    let profile = host.slowdowns.profile(a.0, GPU).unwrap();
    assert!((profile.metrics.smact_pct.unwrap().mean - 30.0).abs() < 0.1, "{profile:?}");
}

/// Neighbours leave a job a fiftieth at the least: one that is slowed down that far makes a step now and then, and one that hangs makes none.
#[test]
fn a_job_that_makes_a_step_now_and_then_is_slow_and_one_that_makes_none_stands_still() {
    let mut bars = Bars::new();
    let bar = (" 20%|## | ", 100_000);
    let told = |bars: &Bars| {
        bars.host.state.job(bars.job).unwrap().measured.map(|m| (m.progress.to_f64(), m.before))
    };
    // Half a second a step alone, ...
    bars.print(bar, 2, 60);
    bars.neighbour();
    // ... and twenty seconds beside the other.
    for _ in 0..6 {
        bars.print(bar, 1, 1);
        bars.print(bar, 0, 19);
    }
    let (progress, before) = told(&bars).unwrap();
    let is_slow = |progress: f64| (0.01..0.06).contains(&progress);
    assert!(
        is_slow(progress) && before.is_some_and(|before| is_slow(before.to_f64())),
        "{progress} {before:?}"
    );
    // It hangs: that is told once it could be nothing else.
    bars.print(bar, 2, 20);
    bars.print(bar, 0, 40);
    assert!(told(&bars).unwrap().0 > 0.0, "{:?}", told(&bars));
    bars.print(bar, 0, 40);
    assert_eq!(told(&bars).unwrap().0, 0.0);
    let still = bars.host.slowdowns.paces.counts_of_all(&bars.host.state, bars.host.now).still;
    assert!(still[&bars.job].0.abs_diff(80_000) <= 1_000, "{still:?}");
    bars.print(bar, 2, 1);
    assert!(bars.host.slowdowns.paces.counts_of_all(&bars.host.state, bars.host.now).still.is_empty());
}

#[test]
fn a_speed_that_is_not_the_present_one_is_not_shown() {
    let mut host = Host::new();
    (host.latency_us, host.sharing) = (Some(20_000), SharingMode::TimeSlice);
    let mut bars = Bars::on(host);
    let bar = (" 20%|## | ", 100_000);
    let shown = |bars: &Bars| bars.host.slowdowns.rates.lock().unwrap().get(&bars.job).cloned();
    let serve = |bars: &mut Bars| {
        for _ in 0..30 {
            bars.host.slowdowns.paces.print(bars.job, bars.host.now, "latency 8.0 ms");
            bars.print(bar, 10, 1);
        }
    };
    serve(&mut bars);
    let alone = shown(&bars).unwrap();
    assert!(about(alone.per_s, 10.0) && about(alone.latency_p99_ms, 8.0), "{alone:?}");
    // Beside a stranger it counts, at an unknown speed.
    bars.host.strangers = true;
    serve(&mut bars);
    let beside = shown(&bars).unwrap();
    assert_eq!((beside.per_s, beside.alone_per_s), (None, None));
    assert!(beside.source.is_some() && about(beside.latency_p99_ms, 8.0), "{beside:?}");
    bars.host.strangers = false;
    bars.neighbour();
    serve(&mut bars);
    assert!(about(shown(&bars).unwrap().progress, 1.0));
    // One that is to end takes its time: what is measured then is not how they go together.
    let neighbour = *bars.host.there.last().unwrap();
    bars.host.feed(Input::Cancel { job: neighbour, by: User::new(1000, "a") });
    bars.host.see(1);
    let ends = shown(&bars).unwrap();
    assert!(ends.progress.is_none() && ends.per_s.is_some(), "{ends:?}");
    bars.host.feed(Input::Suspend { job: bars.job, by: User::new(1000, "a") });
    bars.host.see(1);
    assert_eq!(shown(&bars), None);
}

#[test]
fn a_count_is_passed_on_as_it_grows_and_not_for_ever() {
    let mut watch = Watch::new(1, Millis::ZERO);
    let mut counts = |share| {
        watch
            .counts(Some(&Done { share, per_s: None, at_s: 0.0, took_s: 0.0, goes_on_s: 0.0 }))
            .map(|share| share.0)
    };
    assert_eq!(
        [0.01, 0.05, 0.07, 0.11, 0.13].map(&mut counts),
        [Some(100), None, Some(700), None, Some(1300)]
    );
    // How long it takes in all is known soon.
    let mut long = Watch::new(1, Millis::ZERO);
    let mut after = |took_s, share| {
        let done = Done { share, per_s: None, at_s: 0.0, took_s, goes_on_s: 0.0 };
        long.counts(Some(&done)).map(|share| share.0)
    };
    let counted = [(0.0, 0.01), (20.0, 0.011), (40.0, 0.011), (60.0, 0.014), (90.0, 0.017), (99.0, 0.05)];
    let told = counted.map(|(took_s, share)| after(took_s, share));
    assert_eq!(told, [Some(100), None, Some(110), None, Some(170), None]);
    // It counts something else.
    assert_eq!(counts(0.02), Some(200));
    // One that counts nonsense is soon heard no more.
    let heard = (0..1000).filter(|n| counts(f64::from(n % 2)).is_some()).count();
    assert_eq!(heard, MOST_COUNTS as usize - 4);
}

#[test]
fn a_speed_is_held_against_the_fastest_that_its_command_was_seen() {
    let rate = |per_s: f64, unit: &str| Rate { per_s, unit: Some(unit.into()), ..Rate::default() };
    let mut fastest = Fastest::default();
    let mut at_most = |command: u64, rate: &Rate| {
        let share = fastest.share_of(Millis::ZERO, &(command, GPU.into()), 7, rate);
        share.map(|of| (of * 100.0).round())
    };
    assert_eq!(at_most(1, &rate(4.0, "step")), Some(100.0));
    assert_eq!(at_most(1, &rate(1.0, "step")), Some(25.0));
    assert_eq!(at_most(1, &rate(8.0, "step")), Some(100.0));
    assert_eq!(at_most(1, &rate(4.0, "step")), Some(50.0));
    assert_eq!(at_most(2, &rate(1.0, "step")), Some(100.0));
    // Another counter begins anew.
    assert_eq!(at_most(1, &rate(1.0, "epoch")), None);
    assert_eq!(at_most(1, &rate(0.5, "epoch")), Some(50.0));
    assert_eq!(at_most(3, &rate(0.0, "step")), None);
}

/// Trainings and their evaluations print bars of one unit.
#[test]
fn an_evaluation_is_no_slowdown() {
    let mut host = Host::new();
    host.busy = Some(50.0);
    let a = host.place(&[0]);
    host.slowdowns.paces.open(a, "1.1".into());
    host.begin(a);
    let mut done = BTreeMap::new();
    let mut print = |host: &mut Host, label: &'static str, per_s: f64, seconds: u32| {
        for _ in 0..seconds * 2 {
            let count = done.entry(label).or_insert(0.0);
            *count += per_s / 2.0;
            host.slowdowns.paces.bar(a, host.now + Millis(500), label, *count, None);
            host.see(1);
            host.now = Millis(host.now.0 - 500);
        }
    };
    let alone = |host: &Host| host.slowdowns.watched[&a].rate.clone().unwrap();
    let kept = |host: &Host| host.slowdowns.profile(a.0, GPU).unwrap().rate.clone().unwrap();
    print(&mut host, "training", 10.0, 40);
    assert!((alone(&host).per_s - 10.0).abs() < 0.5 && !alone(&host).aside, "{:?}", alone(&host));
    // Nor is it the speed alone, however long it takes.
    host.strangers = true;
    host.see(1);
    host.strangers = false;
    print(&mut host, "evaluating", 2.0, 60);
    assert!((alone(&host).per_s - 10.0).abs() < 0.5 && (kept(&host).per_s - 10.0).abs() < 0.5);
    let b = host.place(&[0]);
    host.begin(b);
    print(&mut host, "training", 10.0, 40);
    let measured =
        |host: &Host| host.state.job(a).unwrap().measured.map(|measured| measured.progress.to_f64());
    assert!(measured(&host).unwrap() > 0.9);
    let lowest = |host: &mut Host, print: &mut dyn FnMut(&mut Host, &'static str, f64, u32)| {
        (0..60).fold(1.0_f64, |low, _| {
            print(host, "evaluating", 2.0, 1);
            low.min(measured(host).unwrap())
        })
    };
    let low = lowest(&mut host, &mut print);
    assert!(low > 0.9, "{low}");
    print(&mut host, "training", 5.0, 60);
    assert!((measured(&host).unwrap() - 0.5).abs() < 0.1, "a slowdown is");
}

/// With the same counts a bar may be silent for longer than a window while the job evaluates or saves.
#[test]
fn silences_of_its_own_are_no_slowdown_and_longer_ones_are() {
    let mut host = Host::new();
    host.busy = Some(50.0);
    let a = host.place(&[0]);
    host.slowdowns.paces.open(a, "1.1".into());
    host.begin(a);
    let mut count = 0.0;
    let mut print = |host: &mut Host, per_s: f64, seconds: u32| {
        for _ in 0..seconds {
            count += per_s;
            if per_s > 0.0 {
                host.slowdowns.paces.bar(a, host.now, "training", count, None);
            }
            host.see(1);
        }
    };
    for _ in 0..5 {
        print(&mut host, 10.0, 40);
        print(&mut host, 0.0, 40);
    }
    let alone = host.slowdowns.watched[&a].rate.clone().unwrap();
    assert!((alone.per_s - 10.0).abs() < 0.5 && alone.pauses.is_some(), "{alone:?}");
    assert!(host.slowdowns.profile(a.0, GPU).unwrap().rate.as_ref().unwrap().pauses.is_some());
    let b = host.place(&[0]);
    host.begin(b);
    let measured =
        |host: &Host| host.state.job(a).unwrap().measured.map(|measured| measured.progress.to_f64());
    let mut seen = Vec::new();
    for second in 0..300 {
        print(&mut host, if second % 80 < 40 { 10.0 } else { 0.0 }, 1);
        seen.extend(measured(&host));
    }
    assert!(!seen.is_empty() && seen.iter().all(|progress| (0.9..1.1).contains(progress)), "{seen:?}");
    print(&mut host, 5.0, 40);
    assert!((measured(&host).unwrap() - 0.5).abs() < 0.05);
    print(&mut host, 0.0, 120);
    assert_eq!(measured(&host), Some(0.0));
}

#[test]
fn what_a_neighbour_leaves_while_it_loads_is_not_learned() {
    let mut host = Host::new();
    let options = Options { max_slowdown: Fraction::from_f64(1.5), ..host.state.options().clone() };
    host.feed(Input::Configured(Box::new(options)));
    host.busy = Some(90.0);
    let [a, b] = [(); 2].map(|()| host.place(&[0]));
    for job in [a, b] {
        let spec = host.state.job(job).unwrap().spec.clone();
        let rate = Rate {
            per_s: 1.0,
            unit: Some("steps".into()),
            source: Some(profile::RateSource::Heartbeat),
            ..Rate::default()
        };
        let class = Some(class(spec.command_key));
        let profile = Profile { class, rate: Some(rate), ..typical() };
        host.slowdowns.keep(&spec, GPU, profile, host.now);
        host.slowdowns.paces.open(job, format!("{job}.1"));
        host.begin(job);
    }
    let steps = |host: &mut Host, of: &[JobId], seconds: u32| {
        for _ in 0..seconds {
            of.iter().for_each(|job| host.slowdowns.paces.step(*job, host.now));
            host.see(1);
        }
    };
    steps(&mut host, &[a], 120);
    assert!(host.state.gpu(GpuId(0)).unwrap().tenant(b).unwrap().settled);
    assert!(
        host.state.job(a).unwrap().measured.is_some_and(|measured| measured.progress > Fraction::percent(90))
    );
    assert!(!host.slowdowns.model_changed);
    assert_eq!(host.state.job(a).unwrap().kept, None);
    steps(&mut host, &[a, b], 60);
    assert!(host.slowdowns.model_changed);
    assert!(host.state.job(a).unwrap().kept.is_some_and(|kept| kept.windows > 0 && kept.beyond == 0));
    // Of what was learned others are told nothing of these jobs, nor what was observed.
    let model = |readable| {
        let asked = [a, b].map(|id| Subject { id, command: id.0, readable: readable && id == a });
        host.slowdowns.tell(&host.state, &asked, None).reply().model.to_string()
    };
    let (own, of_others) = (model(true), model(false));
    let has = |model: &str, job: JobId| model.contains(&format!("\"{}\":", class(job.0)));
    assert!(has(&own, a) && !has(&own, b) && !own.contains("rows"));
    assert!(!has(&of_others, a) && of_others.contains("mean"));
    assert!(SlowdownModel::read(&own).is_ok());
}

#[test]
fn what_one_does_that_ends_or_leaves_is_not_learned() {
    let by = || User::new(1000, "a");
    let leaves: [fn(JobId, User) -> Input; 2] =
        [|job, by| Input::Requeue { job, by }, |job, by| Input::Suspend { job, by }];
    for leaves in leaves {
        let mut host = Host::new();
        host.busy = Some(90.0);
        host.sharing = SharingMode::TimeSlice;
        let [a, b] = [(); 2].map(|()| host.work());
        for job in [a, b] {
            let spec = host.state.job(job).unwrap().spec.clone();
            let source = Some(profile::RateSource::Heartbeat);
            let rate = Rate { per_s: 2.0, unit: Some("steps".into()), source, ..Rate::default() };
            host.slowdowns.keep(&spec, GPU, Profile { rate: Some(rate), ..typical() }, host.now);
            host.slowdowns.paces.open(job, format!("{job}.1"));
        }
        let steps = |host: &mut Host, of: &[JobId], seconds: u32| {
            for _ in 0..seconds {
                of.iter().for_each(|job| host.slowdowns.paces.step(*job, host.now));
                host.see(1);
            }
        };
        steps(&mut host, &[a, b], 60);
        assert!(std::mem::take(&mut host.slowdowns.model_changed));
        let measured = host.state.job(a).unwrap().measured.unwrap();
        // It saves its work, or gives back its memory: the other goes as if it were alone.
        host.feed(leaves(b, by()));
        steps(&mut host, &[a, a], 60);
        assert!(!host.slowdowns.model_changed);
        assert_eq!(host.state.job(a).unwrap().measured, Some(measured));
    }
}

#[test]
fn what_the_journal_did_not_take_is_told_again() {
    let mut host = Host::new();
    let job = host.work();
    let spec = host.state.job(job).unwrap().spec.clone();
    for watts in [300.0, 400.0] {
        host.see(1);
        let mut known = typical();
        known.metrics.power_w = Some(Stat::of(watts));
        host.slowdowns.keep(&spec, GPU, known, host.now);
    }
    let told = |host: &mut Host| host.slowdowns.profiles_of_running(&host.state);
    let lost = told(&mut host);
    assert_eq!((lost.len(), told(&mut host).len()), (1, 0));
    host.slowdowns.tell_again(&host.state);
    assert_eq!(told(&mut host), lost);

    let done = |share| Done { share, per_s: None, at_s: 0.0, took_s: 0.0, goes_on_s: 0.0 };
    let counts = |host: &mut Host, done: Option<&Done>| {
        host.slowdowns.watched.get_mut(&job).unwrap().counts(done).map(|share| share.0)
    };
    assert_eq!(counts(&mut host, Some(&done(0.3))), Some(3000));
    assert_eq!(counts(&mut host, Some(&done(0.31))), None);
    host.slowdowns.tell_again(&host.state);
    assert_eq!(counts(&mut host, Some(&done(0.31))), Some(3100));
    assert_eq!(counts(&mut host, None), Some(0));
    host.slowdowns.tell_again(&host.state);
    assert_eq!(counts(&mut host, None), Some(0));
}

#[test]
fn what_neighbours_cost_outlives_the_daemon() {
    let mut host = Host::new();
    let (a, _) = (host.work(), host.work());
    host.see(20);
    host.feed(Input::Measured {
        job: a,
        attempt: 1,
        progress: Fraction::percent(50),
        over: Millis::secs(15),
        at_most: false,
        loading: false,
    });
    host.see(50);
    host.state = serde_json::from_str(&serde_json::to_string(&host.state).unwrap()).unwrap();
    host.slowdowns.restore(&[]);
    host.slowdowns.watched.clear();
    host.see(50);
    let exit = carma_core::model::Exit::of(carma_core::model::ExitStatus::Code(0));
    let applied = host.state.apply(host.now, &Input::Exited { job: a, attempt: 1, exit }).unwrap();
    let had = applied.finished[0].job.past[0].had;
    assert!((45..80).contains(&(had.lost(1).0 / 1000)), "{had:?}");
    assert!(had.lost(2) < had.lost(1));
}

#[test]
fn a_job_with_gpus_is_known_by_what_it_does_on_that_type() {
    let mut host = Host::new();
    let info =
        |index, name: &str| GpuInfo { name: name.into(), ..host.state.gpus()[index as usize].info.clone() };
    let inventory = vec![info(0, "NVIDIA L4"), info(1, GPU)];
    host.feed(Input::Inventory(inventory));
    let draws = |watts: f64| {
        let mut profile = typical();
        profile.metrics.power_w = Some(Stat::of(watts));
        profile
    };
    let job = host.submit(1, None);
    let spec = host.state.job(job).unwrap().spec.clone();
    host.slowdowns.keep(&spec, GPU, draws(500.0), host.now);
    let on = |host: &mut Host, gpu| host.slowdowns.known(&host.state, job.0, gpu).power_mw;
    assert_eq!(on(&mut host, None), Some(500_000));
    assert_eq!(on(&mut host, Some("NVIDIA L4")), None, "it was never seen there");
    host.slowdowns.keep(&spec, "NVIDIA L4", draws(60.0), host.now);
    assert_eq!(
        [None, Some("NVIDIA L4"), Some(GPU)].map(|gpu| on(&mut host, gpu)),
        [500_000, 60_000, 500_000].map(Some)
    );
    // As the core hears it.
    let profile = host.slowdowns.known(&host.state, job.0, None);
    host.feed(Input::Profiled { job, profile });
    host.slowdowns.powers = false;
    host.launch(job, &[0]);
    host.see(1);
    let told = |host: &Host| host.state.job(job).unwrap().spec.profile.power_mw;
    assert_eq!(told(&host), Some(60_000));
    host.feed(Input::Requeue { job, by: User::new(1000, "a") });
    let exit = carma_core::model::Exit::of(carma_core::model::ExitStatus::Signal(15));
    host.feed(Input::Exited { job, attempt: 1, exit });
    host.see(1);
    assert_eq!(told(&host), Some(500_000));
}

#[test]
fn what_fewer_threads_cost_that_a_user_asked_for_is_no_neighbours_doing() {
    let joins = |threads: Option<u8>| {
        let mut host = Host::new();
        host.threads = threads;
        let a = host.place(&[0]);
        host.begin(a);
        host.feed(Input::Stepped { job: a, attempt: 1, ago: Millis::ZERO });
        host.threads = None;
        let light = host.submit(1, None);
        for (job, smact) in [(a, 60.0), (light, 5.0)] {
            let mut profile = typical();
            profile.metrics.smact_pct = Some(Stat::of(smact));
            let spec = host.state.job(job).unwrap().spec.clone();
            host.slowdowns.keep(&spec, GPU, profile, host.now);
        }
        host.see(60);
        let launched = host.launched();
        (launched == [light], host.outlook(light).paces[0].expected.to_f64())
    };
    let (all, fewer) = (joins(None), joins(Some(25)));
    assert!(all.0 && fewer.0 && fewer.1 > 0.8, "{all:?} {fewer:?}");
}

/// A job that prints bars on the first GPU, and what is seen of it.
struct Bars {
    host: Host,
    job: JobId,
    /// What each bar has counted.
    done: BTreeMap<&'static str, u32>,
}

impl Bars {
    fn new() -> Self {
        Self::on(Host::new())
    }

    fn on(mut host: Host) -> Self {
        host.busy = Some(50.0);
        let job = host.place(&[0]);
        host.slowdowns.paces.open(job, format!("{job}.1"));
        host.begin(job);
        Self { host, job, done: BTreeMap::new() }
    }

    /// So many steps a second for so many seconds of a bar with these words before and this total after its count.
    fn print(&mut self, bar: (&'static str, u32), per_s: u32, seconds: u32) {
        for _ in 0..seconds {
            for step in 1..=per_s {
                let done = self.done.entry(bar.0).or_default();
                *done += 1;
                let line = format!("{}{done}/{} [00:12<00:15, 9it/s]", bar.0, bar.1);
                let at = Millis(self.host.now.0 + 1000 * u64::from(step) / u64::from(per_s));
                self.host.slowdowns.paces.print(self.job, at, &line);
            }
            self.host.see(1);
        }
    }

    /// Its time alone begins anew.
    fn interrupt(&mut self) {
        self.host.strangers = true;
        self.host.see(1);
        self.host.strangers = false;
    }

    fn neighbour(&mut self) {
        let neighbour = self.host.place(&[0]);
        self.host.begin(neighbour);
    }

    fn alone(&self) -> Option<f64> {
        Some(self.host.slowdowns.watched[&self.job].rate.as_ref()?.per_s)
    }

    fn kept(&self) -> Option<f64> {
        Some(self.host.slowdowns.profile(self.job.0, GPU)?.rate.as_ref()?.per_s)
    }

    fn measured(&self) -> Option<f64> {
        Some(self.host.state.job(self.job)?.measured?.progress.to_f64())
    }

    fn stepped(&self) -> Option<Millis> {
        self.host.state.gpu(GpuId(0))?.tenant(self.job)?.stepped
    }
}

fn about(value: Option<f64>, expected: f64) -> bool {
    value.is_some_and(|value| (value / expected - 1.0).abs() < 0.1)
}

/// Else a job of unknown memory would settle with what it has loaded so far.
#[test]
fn loading_is_no_first_step_and_an_evaluation_is() {
    for (words, steps) in [
        ("Loading safetensors checkpoint shards:  20%|## | ", false),
        ("Capturing CUDA graph shapes:  20%|## | ", false),
        ("Tokenizing:  20%|## | ", false),
        ("Map:  20%|## | ", false),
        ("Filter:  20%|## | ", false),
        ("train: Scanning /data/coco/labels/train2017... 512 images, 0 corrupt:  20%|## | ", false),
        ("Generating train split: ", false),
        ("Generating:  20%|## | ", true),
        ("Saving images:  20%|## | ", true),
        ("Evaluating:  20%|## | ", true),
        ("  20%|## | ", true),
    ] {
        let mut bars = Bars::new();
        bars.print((words, 100), 1, 8);
        assert_eq!(bars.stepped().is_some(), steps, "{words}");
    }
    // Nor does its speed count as that of the job.
    let mut bars = Bars::new();
    bars.print(("Loading checkpoint shards:  20%|## | ", 200), 1, 120);
    assert_eq!((bars.alone(), bars.kept()), (None, None));
    bars.print(("  20%|## | ", 10_000), 10, 40);
    assert!(about(bars.alone(), 10.0) && about(bars.kept(), 10.0));
}

/// The Hugging Face Trainer, Keras and others give their bars of evaluation no words.
#[test]
fn an_evaluation_without_a_word_is_no_slowdown() {
    let (training, evaluation) = (("  20%|## | ", 10_000), (" 20%|## | ", 200));
    let mut bars = Bars::new();
    bars.print(training, 10, 40);
    bars.interrupt();
    bars.print(evaluation, 1, 100);
    assert!(about(bars.alone(), 10.0) && about(bars.kept(), 10.0), "{:?} {:?}", bars.alone(), bars.kept());
    bars.neighbour();
    let judged = |bars: &mut Bars| {
        bars.print(training, 10, 40);
        assert!(about(bars.measured(), 1.0), "{:?}", bars.measured());
        for _ in 0..60 {
            bars.print(evaluation, 1, 1);
            assert!(about(bars.measured(), 1.0), "{:?}", bars.measured());
        }
        bars.print(training, 5, 40);
        assert!(about(bars.measured(), 0.5), "a slowdown is: {:?}", bars.measured());
    };
    judged(&mut bars);
    // Another run of the command, which is longer and was never alone.
    let mut next = Bars::new();
    let spec = next.host.state.job(next.job).unwrap().spec.clone();
    let profile = bars.host.slowdowns.profile(bars.job.0, GPU).unwrap().clone();
    next.host.slowdowns.keep(&spec, GPU, profile, next.host.now);
    next.neighbour();
    next.done.insert(evaluation.0, 0);
    judged(&mut next);
    // A bar that is gone for good makes way.
    let mut bars = Bars::new();
    bars.print(("  20%|## | ", 30), 2, 15);
    bars.print((" 20%|## | ", 10_000), 10, 60);
    assert!(about(bars.alone(), 10.0), "{:?}", bars.alone());
}

/// A bar that is at its end tells no more, whatever the job does.
#[test]
fn what_is_finished_and_silent_does_not_stand_still() {
    for (total, still) in [(400, false), (1_000, true)] {
        let mut bars = Bars::new();
        bars.print(("Processing:  20%|## | ", total), 10, 40);
        assert!(about(bars.alone(), 10.0));
        bars.neighbour();
        bars.host.see(120);
        assert_eq!(bars.measured(), still.then_some(0.0));
        let done = bars.host.slowdowns.paces.done(&bars.host.state, bars.host.now);
        assert_eq!(done.contains_key(&bars.job), still, "{done:?}");
    }
}

/// Python without `-u` writes 8 KiB at a time.
#[test]
fn what_comes_in_bursts_has_a_speed() {
    for pieces in [1, 2] {
        let mut bars = Bars::new();
        let burst = |bars: &mut Bars, per_s: u32| {
            for line in 0..9 * per_s {
                let done = bars.done.entry("").or_default();
                *done += 1;
                let at = bars.host.now + Millis(if pieces == 2 && line > 5 * per_s { 50 } else { 0 });
                bars.host.slowdowns.paces.print(bars.job, at, &format!("step {done}/100000 loss 2.1"));
            }
            bars.host.see(9);
        };
        burst(&mut bars, 10);
        burst(&mut bars, 10);
        assert!(pieces > 1 || bars.stepped().is_none(), "two instants are no three steps");
        (0..20).for_each(|_| burst(&mut bars, 10));
        assert!(about(bars.alone(), 10.0), "{pieces}: {:?}", bars.alone());
        bars.neighbour();
        (0..12).for_each(|_| burst(&mut bars, 5));
        // Windows are of a few bursts: what came with the first one's second piece counts too much.
        let measured = bars.measured().unwrap();
        assert!((0.4..if pieces == 1 { 0.6 } else { 0.75 }).contains(&measured), "{pieces}: {measured}");
    }
}

/// A resume counts what it passes over as one step.
#[test]
fn the_first_step_comes_after_what_is_skipped() {
    let mut bars = Bars::new();
    bars.host.see(2);
    bars.host.slowdowns.paces.print(bars.job, bars.host.now, "  0%| | 0/10000 [00:00<?, ?it/s]");
    bars.host.see(120);
    bars.done.insert("  50%|## | ", 5000);
    let begins = bars.host.now;
    bars.print(("  50%|## | ", 10_000), 5, 40);
    let stepped = bars.stepped().unwrap();
    assert!(stepped + Millis::secs(1) >= begins, "{} s before", (begins.0 - stepped.0) / 1000);
    assert!(about(bars.alone(), 5.0) && about(bars.kept(), 5.0), "{:?}", bars.alone());
}

/// Of a server that is slowed down few requests may come.
#[test]
fn latency_is_judged_where_few_requests_come() {
    for (every, expected) in [(2, Some(0.25)), (70, Some(0.25)), (1_000, None)] {
        let mut bars = Bars::new();
        let mut spec = bars.host.state.job(bars.job).unwrap().spec.clone();
        spec.request.latency_us = Some(20_000);
        spec.profile.latency_us = Some(10_000);
        let job = Job { spec, ..bars.host.state.job(bars.job).unwrap().clone() };
        let looks = [bars.host.look(0)];
        let neighbourhood = Neighbourhood {
            alone: false,
            since: Millis::ZERO,
            changed: Millis::ZERO,
            settled_at: Some(bars.host.now),
        };
        bars.host.slowdowns.look(bars.host.now, &bars.host.state, &looks, |_| None);
        let mut seen = Vec::new();
        for second in 1..700 {
            bars.host.now = bars.host.now + Millis::secs(1);
            if second % every == 0 {
                bars.host.slowdowns.paces.print(bars.job, bars.host.now, "latency 40.0 ms");
            }
            let Host { slowdowns, state, now, .. } = &mut bars.host;
            seen.extend(slowdowns.look_at_latency(*now, state, &job, &neighbourhood));
        }
        let progress = seen.first().map(|window| (window.progress * 100.0).round() / 100.0);
        assert_eq!(progress, expected, "a request every {every} s");
    }
}

/// A server that counts steps, too: what the core was told of it last, and before that, a second at a time.
fn served(phases: &[(u32, u32, u32, f64)]) -> Vec<(f64, Option<f64>)> {
    let mut host = Host::new();
    host.latency_us = Some(20_000);
    let mut bars = Bars::on(host);
    let bar = (" 20%|## | ", 100_000);
    let mut told = Vec::new();
    for (phase, (seconds, per_s, requests, ms)) in phases.iter().enumerate() {
        if phase == 1 {
            let profile = spec::Profile { latency_us: Some(8_000), ..spec::Profile::default() };
            bars.host.feed(Input::Profiled { job: bars.job, profile });
            bars.neighbour();
        }
        for _ in 0..*seconds {
            for _ in 0..*requests {
                let line = format!("latency {ms} ms");
                bars.host.slowdowns.paces.print(bars.job, bars.host.now, &line);
            }
            bars.print(bar, *per_s, 1);
            let measured = bars.host.state.job(bars.job).unwrap().measured.filter(|m| m.at == bars.host.now);
            told.extend(measured.map(|m| (m.progress.to_f64(), m.before.map(Fraction::to_f64))));
        }
    }
    told
}

#[test]
fn a_latency_beyond_its_limit_is_undone_where_the_server_counts_steps_too() {
    // After a lull of requests the windows of the two end in different looks.
    let told = served(&[(40, 10, 30, 8.0), (30, 10, 30, 8.0), (20, 10, 1, 32.0), (75, 10, 30, 32.0)]);
    let bad = |(progress, before): &(f64, Option<f64>)| {
        *progress < 0.4 && before.is_some_and(|before| before < 0.4)
    };
    assert!(told.iter().any(bad), "{told:?}");
    // The other way round: the requests are served in time, and nothing else gets done.
    let told = served(&[(40, 10, 30, 8.0), (30, 10, 30, 8.0), (20, 10, 1, 8.0), (75, 2, 30, 8.0)]);
    assert!(told.iter().any(bad), "{told:?}");
}

#[test]
fn one_pause_of_a_server_is_not_two_windows_beyond_its_limit() {
    for lull in 16..24 {
        let phases =
            [(40, 10, 30, 8.0), (30, 10, 30, 8.0), (lull, 10, 1, 8.0), (35, 10, 30, 8.0), (9, 1, 30, 80.0)];
        let told = served(&[&phases[..], &[(60, 10, 30, 8.0)]].concat());
        let low = told.iter().filter(|(progress, _)| *progress < 0.4).count();
        let twice = told.iter().any(|(now, before)| *now < 0.4 && before.is_some_and(|before| before < 0.4));
        assert!(low > 0 && !twice && told.last().unwrap().0 > 0.8, "{lull}: {told:?}");
    }
}

impl Bars {
    /// The same from the beginning of the bar, and the least progress that was measured meanwhile.
    fn pass(&mut self, bar: (&'static str, u32), per_s: u32, seconds: u32) -> f64 {
        self.done.insert(bar.0, 0);
        self.least(bar, per_s, seconds)
    }

    /// The same of a bar that goes on.
    fn least(&mut self, bar: (&'static str, u32), per_s: u32, seconds: u32) -> f64 {
        (0..seconds).fold(1.0_f64, |least, _| {
            self.print(bar, per_s, 1);
            least.min(self.measured().unwrap_or(1.0))
        })
    }

    /// Another run of the command, with what was stored of this one.
    fn again(&mut self) -> Self {
        let mut next = Self::new();
        assert_eq!(next.job, self.job);
        next.host.slowdowns.restore(&rows(self.host.slowdowns.last_changes()));
        next
    }
}

/// Nearly every bar counts `it`: that of a preparation, of an evaluation and of the training.
#[test]
fn a_count_is_compared_with_its_own_speed_alone_or_with_nothing() {
    let (prepares, trains) = (("  20%|## | ", 3_000), (" 20%|## | ", 100_000));
    let prepare = |bars: &mut Bars, alone: u32| {
        bars.print(prepares, 50, alone);
        bars.neighbour();
        let least = bars.least(prepares, 50, 60 - alone);
        assert!(least > 0.9, "{least}");
    };
    let train = |bars: &mut Bars| {
        let least = bars.least(trains, 8, 150);
        assert!(least > 0.9, "{least}");
        bars.print(trains, 4, 60);
        assert!(about(bars.measured(), 0.5), "of the fastest that it was seen: {:?}", bars.measured());
    };
    let mut first = Bars::new();
    prepare(&mut first, 40);
    assert!(about(first.kept(), 50.0));
    train(&mut first);
    // Where its training is seen alone, that is its speed.
    let mut second = Bars::new();
    second.print(prepares, 50, 60);
    second.print(trains, 8, 120);
    assert!(about(second.alone(), 8.0) && about(second.kept(), 8.0));
    // Runs that were never alone: one of a command that was cancelled while it prepared, and one of another.
    let mut next = first.again();
    next.neighbour();
    train(&mut next);
    let mut never = Bars::new();
    never.neighbour();
    prepare(&mut never, 0);
    train(&mut never);
}

/// Beside one that loads it goes nearly as fast as alone.
#[test]
fn a_command_that_was_never_alone_is_held_against_its_fastest_seconds_of_all_runs() {
    let bar = (" 20%|## | ", 100_000);
    let run = |stored: &[(String, String)], phases: &[(u32, u32)]| {
        let mut run = Bars::new();
        run.host.slowdowns.restore(stored);
        run.neighbour();
        phases.iter().for_each(|(per_s, seconds)| run.print(bar, *per_s, *seconds));
        run
    };
    // Ten seconds are no window beside the neighbour.
    let mut first = run(&[], &[(20, 10), (4, 60)]);
    assert!(about(first.measured(), 0.2), "{:?}", first.measured());
    let stored = rows(first.host.slowdowns.last_changes());
    assert!(stored.iter().any(|(key, _)| key.starts_with("fastest/")), "{stored:?}");
    let second = run(&stored, &[(4, 60)]);
    assert!(about(second.measured(), 0.2) && second.alone().is_none(), "{:?}", second.measured());
    // Nothing was stored, and one that was fast for a moment was not: its counts came late.
    for phases in [&[(4, 60)][..], &[(4, 3), (8, 2), (4, 60)]] {
        let other = run(&[], phases).measured();
        assert!(other.is_none_or(|progress| progress > 0.8), "{phases:?}: {other:?}");
    }
    // Once its speed alone is known, that counts.
    let mut alone = Bars::new();
    alone.host.slowdowns.restore(&stored);
    alone.print(bar, 40, 30);
    let gone = alone.host.slowdowns.last_changes();
    assert!(gone.iter().any(|(key, row)| key.starts_with("fastest/") && row.is_none()), "{gone:?}");
}

/// A loop that runs over what was done before the checkpoint, and counts it.
#[test]
fn steps_that_a_training_passes_over_are_not_its_speed() {
    let bar = (" 20%|## | ", 100_000);
    for passed_over in [6, 30, 200] {
        let mut alone = Bars::new();
        alone.print(bar, 300, passed_over);
        alone.print(bar, 10, 60);
        assert!(
            about(alone.alone(), 10.0) && about(alone.kept(), 10.0),
            "{passed_over} s: {:?}",
            alone.kept()
        );
    }
    let beside = |stored: &[(String, String)], phases: &[(u32, u32)]| {
        let mut run = Bars::new();
        run.host.slowdowns.restore(stored);
        run.host.work();
        phases.iter().for_each(|(per_s, seconds)| run.print(bar, *per_s, *seconds));
        run
    };
    for passed_over in [6, 20, 200] {
        let mut run = beside(&[], &[(300, passed_over), (10, 120)]);
        let progress = run.measured();
        assert!(progress.is_none_or(|progress| progress > 0.8), "{passed_over} s: {progress:?}");
        let stored = rows(run.host.slowdowns.last_changes());
        let next = beside(&stored, &[(10, 60)]).measured();
        assert!(next.is_none_or(|progress| progress > 0.8), "{passed_over} s: {next:?}");
    }
    // What its command was seen to do in earlier runs stays.
    let mut earlier = beside(&[], &[(20, 60)]);
    let stored = rows(earlier.host.slowdowns.last_changes());
    let resumed = beside(&stored, &[(300, 6), (4, 120)]).measured();
    assert!(about(resumed, 0.2), "{resumed:?}");
    // One that comes to its steps after it may be why it is slower.
    let mut joined = beside(&[], &[(20, 10)]);
    joined.host.work();
    joined.print(bar, 4, 90);
    assert!(about(joined.measured(), 0.2), "{:?}", joined.measured());
}

/// Their sum is all that a full GPU shows.
#[test]
fn jobs_that_are_slow_on_a_full_gpu_are_assumed_to_want_more_than_it_shows() {
    let bar = (" 20%|## | ", 100_000);
    let mut earlier = Bars::new();
    earlier.neighbour();
    earlier.print(bar, 20, 10);
    let mut stored = rows(earlier.host.slowdowns.last_changes());
    stored.retain(|(key, _)| key.starts_with("fastest/"));
    let assumed = |per_s: u32| {
        let mut bars = Bars::new();
        bars.host.slowdowns.restore(&stored);
        bars.host.busy = Some(97.0);
        for _ in 0..3 {
            bars.host.work();
        }
        bars.print(bar, per_s, 50);
        bars.host.assumed(bars.job).unwrap()
    };
    let (slow, fast) = (assumed(4), assumed(20));
    assert!(slow > 1.15 * fast, "{slow} {fast}");
}

/// `step 20/2070` of `--steps 2070` is what `step 20/300` of `--steps 300` is, where what is prepared is as long in each run.
#[test]
fn a_count_whose_length_the_command_says_is_known_again_at_another() {
    let prepares = (" 20%|## | ", 30);
    let bar = |steps| ("  20%|## | ", steps);
    let mut first = Bars::new();
    first.host.iterations = Some(2_000);
    first.print(bar(2_000), 8, 60);
    assert!(about(first.kept(), 8.0));
    let stored = rows(first.host.slowdowns.last_changes());
    let run = || {
        let mut next = Bars::new();
        next.host.slowdowns.restore(&stored);
        next
    };
    let beside = |steps: u32, said: u64| {
        let mut next = run();
        next.host.iterations = Some(said);
        next.neighbour();
        let least = next.least(prepares, 1, 30);
        assert!(least > 0.9, "{least}");
        next.print(bar(steps), 2, 120);
        next.measured()
    };
    // The last is of a count that does not go by it.
    let expected = [(300, 300, 0.25), (8_000, 8_000, 0.25), (300, 5_000, 1.0)];
    for (steps, said, expected) in expected {
        let measured = beside(steps, said);
        assert!(about(measured, expected), "{steps} of {said}: {measured:?}");
    }
    // A run that was seen alone at another length says the same of the command.
    let mut again = run();
    again.host.iterations = Some(300);
    again.print(bar(300), 8, 30);
    assert!(about(again.kept(), 8.0) && again.host.slowdowns.last_changes().is_empty());
}

/// The usual loop: `tqdm(training)`, then `tqdm(validation)`, of another length, slower, and not much shorter.
#[test]
fn an_evaluation_between_epochs_never_takes_the_place_of_the_training() {
    let (trains, validates) = (("  20%|## | ", 480), (" 20%|## | ", 90));
    let mut bars = Bars::new();
    for _ in 0..3 {
        bars.pass(trains, 8, 60);
        bars.pass(validates, 2, 45);
    }
    assert!(about(bars.alone(), 8.0) && about(bars.kept(), 8.0), "{:?} {:?}", bars.alone(), bars.kept());
    bars.neighbour();
    for _ in 0..3 {
        let least = bars.pass(trains, 8, 60).min(bars.pass(validates, 2, 45));
        assert!(least > 0.9, "{least}");
    }
    bars.pass(trains, 4, 60);
    assert!(about(bars.measured(), 0.5), "a slowdown is one: {:?}", bars.measured());
}

/// Keras learns how long the dataset is in the first epoch.
#[test]
fn a_bar_whose_length_is_told_later_is_the_same() {
    let mut bars = Bars::new();
    let first = |bars: &mut Bars, seconds: u64| {
        for step in 1..=8 * seconds {
            let at = Millis(bars.host.now.0 + 125 * (1 + (step - 1) % 8));
            let line = format!("    {step}/Unknown 2s 125ms/step - loss: 0.3");
            bars.host.slowdowns.paces.print(bars.job, at, &line);
            if step % 8 == 0 {
                bars.host.see(1);
            }
        }
    };
    first(&mut bars, 60);
    bars.host.slowdowns.paces.print(bars.job, bars.host.now, "480/480 ━━━━━━━━━━ 60s 125ms/step - loss: 0.3");
    assert!(about(bars.alone(), 8.0));
    bars.neighbour();
    for (per_s, expected) in [(8, 1.0), (2, 0.25)] {
        bars.host.slowdowns.paces.print(bars.job, bars.host.now, "Epoch 2/50");
        for step in 1..=480 {
            let line = format!("{step}/480 ━━━━━━━━━━ 60s 125ms/step - loss: 0.3");
            let at = Millis(bars.host.now.0 + 1000 * (1 + (step - 1) % per_s) / per_s);
            bars.host.slowdowns.paces.print(bars.job, at, &line);
            if step % per_s == 0 {
                bars.host.see(1);
            }
        }
        assert!(about(bars.measured(), expected), "{expected}: {:?}", bars.measured());
    }
    // In the next run it is not known again.
    let mut next = bars.again();
    next.neighbour();
    first(&mut next, 60);
    assert!(about(next.measured(), 1.0), "{:?}", next.measured());
}

/// The bar of one epoch counts as the whole until it starts anew.
#[test]
fn a_count_that_proved_wrong_is_taken_back() {
    let mut bars = Bars::new();
    let epoch = ("  20%|## | ", 480);
    let counted =
        |bars: &Bars| bars.host.state.job(bars.job).unwrap().counted.and_then(|counted| counted.run);
    bars.print(epoch, 8, 60);
    assert!(counted(&bars).is_some());
    bars.pass(epoch, 8, 30);
    assert_eq!(counted(&bars), None);
}

/// What `carma show` says of its rate.
#[test]
fn of_a_job_that_counts_it_is_known_by_what() {
    let mut bars = Bars::new();
    let shown = |bars: &Bars| {
        let rates = bars.host.slowdowns.rates();
        let rates = rates.lock().unwrap();
        rates.get(&bars.job).map(|view| (view.per_s.is_some(), view.source.clone()))
    };
    let printed = Some("printed progress".to_owned());
    bars.print(("  20%|## | ", 100_000), 8, 40);
    assert_eq!(shown(&bars), Some((true, printed.clone())));
    bars.interrupt();
    bars.host.see(40);
    assert_eq!(shown(&bars), Some((false, printed)));
    let mut silent = Bars::new();
    silent.host.see(40);
    assert_eq!(shown(&silent), Some((false, None)));
}

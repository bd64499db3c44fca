//! The simulator and the daemon, given the same jobs, start them in the same order on the same GPUs.
//!
//! The daemon runs real processes that know the work to do, and finds out the rest by sampling. So the
//! two agree on times to a resolution only, and the workloads are such that a few seconds here or there
//! decide nothing: that is checked first, by simulating them with all times shaken.

use crate::support::{Setup, task};
use carma_api::wire::{EstimateView, SubmitRequest};
use carma_core::model::{Basis, Computed, Estimator, Forecasts, SharingMode};
use carma_core::policy::{RecoveryMethod, presets};
use carma_core::units::{MiB, Millis};
use carma_hardware::GpuTypes;
use carma_interference::group::GpuType;
use carma_interference::lucid;
use carma_interference::online::SlowdownModel;
use carma_interference::outlook::mode;
use carma_interference::profile::{Metrics, Profile, Stat};
use carma_sim::event::knowledge::{RunTimesKnown, TasksKnown};
use carma_sim::event::{self, Cluster, simulate};
use carma_sim::trace::{Activity, CatalogueTask, WorkJob, Workload};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Virtual seconds per real second.
const SPEED: u32 = 20;
/// Starts within this time of each other count as simultaneous.
const RESOLUTION: Millis = Millis::secs(3);
/// Activity window, short beside the jobs.
const WINDOW: Millis = Millis::secs(10);
/// From start to work.
const STARTUP: Millis = Millis::secs(2);
const JOBS: u64 = 10;
const GPUS: &str = "3xA100-40GB";

/// What is known of jobs beforehand.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Known {
    /// What users declare of their memory.
    Declared,
    /// What a front end says of it.
    Estimated,
    /// What was seen in a run of each: memory, activity and run time.
    Seen,
    /// Nothing.
    Nothing,
}

/// Policy, sharing, what is known, and the seed of a workload that suits it.
const RUNS: [(&str, SharingMode, Known, u64); 12] = [
    ("exclusive", SharingMode::TimeSlice, Known::Declared, 38),
    ("aegis-oracle", SharingMode::Mps, Known::Declared, 36),
    ("or-magm", SharingMode::TimeSlice, Known::Declared, 202),
    ("carma", SharingMode::Mps, Known::Declared, 17),
    ("est-magm:allocator", SharingMode::TimeSlice, Known::Estimated, 36),
    ("lucid", SharingMode::Mps, Known::Seen, 10),
    ("horus", SharingMode::TimeSlice, Known::Seen, 11),
    ("kace", SharingMode::Mps, Known::Seen, 16),
    ("adaptive", SharingMode::Mps, Known::Nothing, 4),
    ("adaptive", SharingMode::TimeSlice, Known::Nothing, 214),
    ("adaptive", SharingMode::Mps, Known::Seen, 123),
    ("adaptive", SharingMode::TimeSlice, Known::Seen, 170),
];

/// A small generator: the same jobs in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

fn workload(seed: u64) -> Workload {
    let mut random = Random(seed);
    let mut arrival = 0;
    let jobs = (0..JOBS).map(|n| {
        arrival += random.below(3) * 17_000;
        let memory = MiB::gib([3, 6, 9, 14][random.below(4) as usize]);
        let sm = 0.15 + 0.1 * random.below(7) as f64;
        // One job in four says nothing of its memory.
        let declared = (random.below(4) > 0).then_some(memory);
        let task = CatalogueTask {
            // No two are of one kind: what is seen of one says nothing of the others.
            name: format!("task {n}").into(),
            memory: vec![memory],
            activity: Activity {
                gract: Some((sm + 0.1).min(1.0)),
                smact: Some(sm),
                smocc: Some(sm * 0.7),
                drama: Some(sm * 0.6),
                ..Activity::default()
            },
            startup: Some(STARTUP),
            forecasts: Forecasts { declared, ..Forecasts::default() },
            ..CatalogueTask::default()
        };
        WorkJob {
            threads: None,
            line: n + 1,
            id: n.to_string().into(),
            arrival: Millis(arrival),
            duration: Millis(40_000 + random.below(12) * 11_000),
            gpus: 1 + u32::from(random.below(6) == 0),
            user: 0,
            task: Arc::new(task),
        }
    });
    Workload { name: "mix".into(), users: vec!["ann".into()], jobs: jobs.collect(), notes: Vec::new() }
}

/// The same as the simulator gets it: with what the daemon knows of each job.
fn told(workload: &Workload, known: Known, sharing: SharingMode) -> Workload {
    let mut told = workload.clone();
    let profiles: Vec<Profile> = told.jobs.iter().map(|job| profile(&job.task)).collect();
    let (model, gpu) = (SlowdownModel::shipped(), GpuType::named("Virtual A100-40GB"));
    let all: Vec<&Profile> = profiles.iter().collect();
    for (job, profile) in told.jobs.iter_mut().zip(&profiles) {
        let mut task = CatalogueTask::clone(&job.task);
        let (memory, forecasts) = (task.memory[0], &mut task.forecasts);
        match known {
            Known::Declared => {}
            Known::Nothing => forecasts.declared = None,
            Known::Estimated => {
                let said = forecasts.declared.take();
                forecasts.estimates = forecasts.estimates.with(Estimator::Allocator, said);
            }
            Known::Seen => {
                forecasts.declared = None;
                forecasts.estimates = forecasts.estimates.with(Estimator::Measured, Some(memory));
                // One run: 5 % more.
                let upper = MiB((memory.0 * 105).div_ceil(100));
                let (basis, coverage) = (Basis::Exact, 95);
                let computed = Computed {
                    need: memory,
                    likely: memory,
                    upper,
                    basis,
                    coverage,
                    elastic: false,
                    of_gpu: None,
                };
                forecasts.computed = Some(computed);
                task.lucid_score = lucid::score(&model, &gpu, mode(sharing), profile, &all);
            }
        }
        job.task = Arc::new(task);
    }
    told
}

/// What the daemon sees of a task alone, as far as scores depend on it.
fn profile(task: &CatalogueTask) -> Profile {
    let percent = |share: Option<f64>| share.map(|share| Stat::of(100.0 * share));
    let metrics = Metrics {
        gract_pct: percent(task.activity.gract),
        smact_pct: percent(task.activity.smact),
        smocc_pct: percent(task.activity.smocc),
        drama_pct: percent(task.activity.drama),
        ..Metrics::default()
    };
    Profile { name: task.name.to_string(), metrics, ..Profile::default() }
}

/// When each job started, and where.
type Starts = Vec<(Millis, Vec<u32>)>;

fn in_theory(workload: &Workload, run: &Run, window: Millis) -> Option<Starts> {
    let &Run { policy, sharing, known } = run;
    let workload = &told(workload, known, sharing);
    let mut setup =
        event::Setup::new(presets::by_name(policy).unwrap(), sharing, Some(RecoveryMethod::Graded), 1);
    // As a daemon has it that was told nothing else.
    setup.options.caps = true;
    setup.options.mps_multi_user = false;
    setup.options.window = window;
    match known {
        Known::Declared | Known::Estimated => {}
        Known::Seen => setup.knowledge.run_times = RunTimesKnown::True,
        Known::Nothing => setup.knowledge.tasks = TasksKnown::Learned,
    }
    let cluster = Cluster::parse(GPUS, &GpuTypes::built_in()).unwrap();
    let run = simulate(workload, &cluster, &setup, &|_| ());
    // One attempt each: what a job wants when it runs out of memory depends on how it fills it.
    (run.summary.oom == 0 && run.summary.completed == JOBS).then(|| {
        let mut starts = vec![(Millis::ZERO, Vec::new()); workload.jobs.len()];
        for stretch in run.stretches {
            starts[stretch.job as usize] = (stretch.start, stretch.gpus);
        }
        starts
    })
}

/// Says where two runs differ: in the order of two starts that are further apart than the
/// resolution, or in the place of one.
fn difference(a: &Starts, b: &Starts) -> Option<String> {
    for (n, (one, other)) in a.iter().zip(b).enumerate() {
        if one.1 != other.1 {
            return Some(format!("job {n} on GPUs {:?}, and on {:?}", one.1, other.1));
        }
        for (m, (earlier, late)) in a.iter().zip(b).enumerate() {
            if earlier.0 + RESOLUTION < one.0 && late.0 > other.0 + RESOLUTION {
                return Some(format!("job {m} starts before job {n}, and after it"));
            }
        }
    }
    None
}

/// How a workload is played.
struct Run {
    policy: &'static str,
    sharing: SharingMode,
    known: Known,
}

/// Whether the same comes out when arrivals, run times, activity and the window are a little off. Run
/// times only grow: a daemon notices late, never early.
fn is_steady(workload: &Workload, run: &Run, starts: &Starts) -> bool {
    let mut random = Random(7);
    // Where predictions count, who is still there when a job comes changes more than its start, and a machine under load is
    // later than that. With predictions each run takes several times as long.
    let (times, late) = if run.policy == "adaptive" { (30, 12_000) } else { (100, 3_000) };
    (0..times).all(|_| {
        let mut shaken = workload.clone();
        let mut activity = 0.97 + 0.000_6 * random.below(100) as f64;
        for job in &mut shaken.jobs {
            // Profiles are measured one by one.
            if run.known == Known::Seen {
                activity = 0.97 + 0.000_6 * random.below(100) as f64;
            }
            job.arrival = job.arrival + Millis(random.below(1_500));
            job.duration = job.duration + Millis(random.below(late));
            let mut task = CatalogueTask::clone(&job.task);
            let fields = task.activity.fields().map(|share| share.map(|share| (share * activity).min(1.0)));
            task.activity = Activity::from_fields(fields);
            job.task = Arc::new(task);
        }
        // Jobs that come together keep their order.
        for at in 1..shaken.jobs.len() {
            shaken.jobs[at].arrival = shaken.jobs[at].arrival.max(shaken.jobs[at - 1].arrival);
        }
        let window = Millis(WINDOW.0 - 2_000 + random.below(4_000));
        in_theory(&shaken, run, window).is_some_and(|other| difference(starts, &other).is_none())
    })
}

fn request(job: &WorkJob, &Run { policy, known, .. }: &Run) -> SubmitRequest {
    // A few milliseconds tell commands apart.
    let (a, work) = (&job.task.activity, job.duration.0 - STARTUP.0 + job.line);
    let words = [
        format!("--memory={}M", job.task.memory[0].0),
        format!("--sm={}", a.smact.unwrap()),
        format!("--gract={}", a.gract.unwrap()),
        format!("--occupancy={}", a.smocc.unwrap()),
        format!("--dram={}", a.drama.unwrap()),
        format!("--work={work}ms"),
        format!("--startup={}ms", STARTUP.0),
    ];
    let mut request = task(&words.each_ref().map(String::as_str), None);
    let said = job.task.forecasts.declared.map(|memory| memory.0);
    match known {
        Known::Declared => request.gpu_memory_mib = said,
        Known::Estimated => request.estimates = said.into_iter().map(summary).collect(),
        Known::Seen | Known::Nothing => {}
    }
    if policy == "adaptive" {
        // The simulator knows no steps, and how many a second a task takes changes what is predicted of it.
        request.command.push("--progress=silent".into());
    }
    request.gpus = Some(job.gpus);
    request
}

/// What the client would send of a model's summary.
fn summary(upper_mib: u64) -> EstimateView {
    EstimateView {
        need_mib: upper_mib / 2,
        use_mib: upper_mib * 9 / 10,
        upper_mib,
        tier: "summary".into(),
        source: "allocator/summary".into(),
        ..EstimateView::default()
    }
}

/// Plays a workload through a real daemon.
fn in_life(workload: &Workload, run: &Run) -> Starts {
    let &Run { policy, sharing, known } = run;
    let speed = SPEED.to_string();
    let daemon = Setup::new("virtual:3xA100-40GB")
        .args(&["--policy", policy, "--sharing", &sharing.to_string(), "--speed", &speed])
        .config("[sampling]\nwindow = '10s'\n")
        .start();
    if known == Known::Seen {
        let before = workload
            .jobs
            .iter()
            .map(|job| daemon.submit(SubmitRequest { exclusive: true, ..request(job, run) }));
        for id in before.collect::<Vec<_>>() {
            assert_eq!(daemon.end_of(id).job.state, "COMPLETED");
        }
    }
    // In the simulator each task is a program of its own.
    let programs = tempfile::tempdir().unwrap();
    let begin = Instant::now();
    let mut ids = Vec::new();
    for job in &workload.jobs {
        let mut request = request(job, run);
        if known == Known::Nothing {
            let own = programs.path().join(&*job.id);
            std::fs::create_dir(&own).unwrap();
            request.cwd = own.display().to_string();
        }
        let due = begin + Duration::from_millis(job.arrival.0) / SPEED;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        ids.push(daemon.submit(request));
    }
    let details: Vec<_> = ids.iter().map(|id| daemon.end_of(*id)).collect();
    let first = details[0].job.submitted_ms;
    let starts = details.iter().map(|detail| {
        assert_eq!((detail.job.state.as_str(), detail.attempts.len()), ("COMPLETED", 1), "{detail:?}");
        let attempt = &detail.attempts[0];
        (workload.jobs[0].arrival + Millis(attempt.decided_ms - first), attempt.gpus.clone())
    });
    starts.collect()
}

fn play((policy, sharing, known, seed): (&'static str, SharingMode, Known, u64)) {
    let (workload, run) = (workload(seed), Run { policy, sharing, known });
    let expected = in_theory(&workload, &run, WINDOW).unwrap();
    assert!(is_steady(&workload, &run, &expected), "{policy}: seconds decide");
    let seen = in_life(&workload, &run);
    let apart = expected.iter().zip(&seen).map(|(a, b)| a.0.0.abs_diff(b.0.0)).max();
    println!("{policy}: starts are at most {} ms apart", apart.unwrap());
    assert_eq!(difference(&expected, &seen), None, "{policy}\n{expected:?}\n{seen:?}");
}

/// Some at a time: each is a daemon with processes that must keep to time.
fn play_together(runs: &[(&'static str, SharingMode, Known, u64)]) {
    std::thread::scope(|scope| {
        let playing: Vec<_> = runs.iter().map(|run| scope.spawn(move || play(*run))).collect();
        let failed: Vec<bool> = playing.into_iter().map(|run| run.join().is_err()).collect();
        assert!(!failed.contains(&true), "{failed:?} of {runs:?}");
    });
}

#[test]
fn it_starts_the_same_jobs_in_the_same_order_on_the_same_gpus() {
    play_together(&RUNS[..4]);
}

#[test]
fn what_is_known_beforehand_leads_to_the_same_order_too() {
    play_together(&RUNS[4..8]);
}

#[test]
fn the_default_policy_starts_them_in_the_same_order_too() {
    play_together(&RUNS[8..]);
}

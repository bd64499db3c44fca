//! The simulator and the daemon, given the same jobs, start them in the same order on the same GPUs.
//!
//! The daemon runs real processes that know the work to do, and finds out the rest by sampling. So the
//! two agree on times to a resolution only, and the workloads are such that a few seconds here or there
//! decide nothing: that is checked first, by simulating them with all times shaken.

use crate::support::{Setup, task};
use carma_core::model::{Forecasts, SharingMode};
use carma_core::policy::{RecoveryMethod, presets};
use carma_core::units::{MiB, Millis};
use carma_hardware::GpuTypes;
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

/// Policy, sharing and the seed of a workload that suits it.
const RUNS: [(&str, SharingMode, u64); 4] = [
    ("exclusive", SharingMode::TimeSlice, 38),
    ("aegis-oracle", SharingMode::Mps, 36),
    ("or-magm", SharingMode::TimeSlice, 202),
    ("carma", SharingMode::Mps, 25),
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
            name: "task".into(),
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

/// When each job started, and where.
type Starts = Vec<(Millis, Vec<u32>)>;

fn in_theory(workload: &Workload, policy: &str, sharing: SharingMode, window: Millis) -> Option<Starts> {
    let mut setup =
        event::Setup::new(presets::by_name(policy).unwrap(), sharing, Some(RecoveryMethod::Graded), 1);
    // As a daemon has it that was told nothing else.
    setup.options.caps = true;
    setup.options.mps_multi_user = false;
    setup.options.window = window;
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

/// Whether the same comes out when arrivals, run times, activity and the window are a little off. Run
/// times only grow: a daemon notices late, never early.
fn is_steady(workload: &Workload, policy: &str, sharing: SharingMode, starts: &Starts) -> bool {
    let mut random = Random(7);
    (0..100).all(|_| {
        let mut shaken = workload.clone();
        let activity = 0.97 + 0.000_6 * random.below(100) as f64;
        for job in &mut shaken.jobs {
            job.arrival = job.arrival + Millis(random.below(1_500));
            job.duration = job.duration + Millis(random.below(3_000));
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
        in_theory(&shaken, policy, sharing, window).is_some_and(|other| difference(starts, &other).is_none())
    })
}

/// Plays a workload through a real daemon.
fn in_life(workload: &Workload, policy: &str, sharing: SharingMode) -> Starts {
    let speed = SPEED.to_string();
    let daemon = Setup::new("virtual:3xA100-40GB")
        .args(&["--policy", policy, "--sharing", &sharing.to_string(), "--speed", &speed])
        .config("[sampling]\nwindow = '10s'\n")
        .start();
    let begin = Instant::now();
    let mut ids = Vec::new();
    for job in &workload.jobs {
        let due = begin + Duration::from_millis(job.arrival.0) / SPEED;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let (a, work) = (&job.task.activity, job.duration.0 - STARTUP.0);
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
        request.gpu_memory_mib = job.task.forecasts.declared.map(|memory| memory.0);
        request.gpus = Some(job.gpus);
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

#[test]
fn it_starts_the_same_jobs_in_the_same_order_on_the_same_gpus() {
    let play = |(policy, sharing, seed): (&str, SharingMode, u64)| {
        let workload = workload(seed);
        let expected = in_theory(&workload, policy, sharing, WINDOW).unwrap();
        assert!(is_steady(&workload, policy, sharing, &expected), "{policy}: seconds decide");
        let seen = in_life(&workload, policy, sharing);
        let apart = expected.iter().zip(&seen).map(|(a, b)| a.0.0.abs_diff(b.0.0)).max();
        println!("{policy}: starts are at most {} ms apart", apart.unwrap());
        assert_eq!(difference(&expected, &seen), None, "{policy}\n{expected:?}\n{seen:?}");
    };
    std::thread::scope(|scope| {
        let runs = RUNS.map(|run| scope.spawn(move || play(run)));
        let failed = runs.map(|run| run.join().is_err());
        assert_eq!(failed, [false; 4], "of {RUNS:?}");
    });
}

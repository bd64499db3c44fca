//! The event engine against laws that hold whatever the policy, against a closed form, and against
//! itself.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that fails says so by panicking")]

use carma_core::model::{Estimates, Estimator, Forecasts, SharingMode};
use carma_core::policy::{Order, RecoveryMethod, presets};
use carma_core::units::{Fraction, MiB, Millis};
use carma_hardware::{GpuType, GpuTypes};
use carma_sim::event::knowledge::{RunTimesKnown, TasksKnown};
use carma_sim::event::outcome::{End, RunResult, Stretch};
use carma_sim::event::{Cluster, Setup, simulate};
use carma_sim::trace::{Activity, Catalogue, CatalogueTask, WorkJob, Workload, read};
use proptest::prelude::*;
use std::path::{Path, PathBuf};
use std::sync::Arc;

// --- what is drawn -------------------------------------------------------------------------------

/// GPU types of the random clusters: specification, and the names of the devices that it makes.
const PARTS: [(&str, &[&str]); 6] = [
    ("A100-40GB", &["A100-40GB"]),
    ("2xA100-40GB", &["A100-40GB", "A100-40GB"]),
    ("V100-16GB", &["V100-16GB"]),
    ("2xT4", &["T4", "T4"]),
    ("H200", &["H200"]),
    ("A100-40GB/3g.20gb,2g.10gb", &["A100-40GB/3g.20gb", "A100-40GB/2g.10gb"]),
];

#[derive(Debug, Clone)]
struct World {
    spec: String,
    gpus: Vec<GpuType>,
}

impl World {
    fn cluster(&self) -> Cluster {
        Cluster::parse(&self.spec, &GpuTypes::built_in()).unwrap()
    }

    /// Whether a job of this size would run on GPUs of its own. Which GPU of a gang takes which entry
    /// of a list of memory is the policy's choice, so the largest entry counts for all.
    fn holds(&self, job: &WorkJob) -> bool {
        let peak = peak(&job.task);
        // Of MIG instances a process sees one.
        let serves = |gpu: &&GpuType| job.gpus == 1 || !gpu.name.contains('/');
        let large = |gpu: &&GpuType| MiB(gpu.memory_mib) >= peak;
        self.gpus.iter().filter(serves).filter(large).count() >= job.gpus as usize
    }
}

/// Most memory that a task ever takes on a GPU.
fn peak(task: &CatalogueTask) -> MiB {
    let most = task.memory.iter().copied().max().unwrap_or_default();
    let share = task.memory_over_time.iter().map(|(_, share)| *share).reduce(f64::max).unwrap_or(1.0);
    MiB((most.0 as f64 * share).round() as u64)
}

fn worlds() -> impl Strategy<Value = World> {
    prop::collection::vec(prop::sample::select(PARTS.to_vec()), 1..4).prop_map(|parts| {
        let names = parts.iter().flat_map(|(_, names)| *names);
        World {
            spec: parts.iter().map(|(spec, _)| *spec).collect::<Vec<_>>().join("+"),
            gpus: names.map(|name| GpuType::find(name).unwrap()).collect(),
        }
    })
}

fn share() -> impl Strategy<Value = f64> {
    prop_oneof![Just(0.0), Just(1.0), 0.0..1.0]
}

fn maybe<T: Clone + std::fmt::Debug + 'static>(
    value: impl Strategy<Value = T> + 'static,
) -> impl Strategy<Value = Option<T>> {
    prop::option::weighted(0.5, value)
}

fn memory() -> impl Strategy<Value = MiB> {
    prop_oneof![
        4 => (100_u64..12_000).prop_map(MiB),
        3 => (5_000_u64..41_000).prop_map(MiB),
        1 => (10_000_u64..200_000).prop_map(MiB),
    ]
}

fn activities() -> impl Strategy<Value = Activity> {
    (maybe(share()), maybe(share()), maybe(share()), maybe(share())).prop_map(|(gract, sm, smocc, drama)| {
        // A GPU whose engine is idle does nothing else.
        let least = sm.unwrap_or(0.0).max(drama.unwrap_or(0.0));
        Activity { gract: gract.map(|g| g.max(least)), smact: sm, smocc, drama, ..Activity::default() }
    })
}

/// A forecast: right, or anything.
fn forecast(truth: MiB) -> impl Strategy<Value = Option<MiB>> {
    prop_oneof![Just(None), Just(Some(truth)), memory().prop_map(Some)]
}

fn tasks() -> impl Strategy<Value = CatalogueTask> {
    let over_time = prop_oneof![
        2 => Just(Vec::new()),
        1 => prop::collection::vec((0.0..1.0, 0.05..=1.0), 1..4).prop_map(|mut steps| {
            steps.sort_by(|a, b| f64::total_cmp(&a.0, &b.0));
            steps
        }),
    ];
    let startup = maybe(0_u64..100_000).prop_map(|ms| ms.map(Millis));
    let curve = prop_oneof![Just(Vec::new()), Just(vec![(10.0, 0.3), (50.0, 0.9), (100.0, 1.0)])];
    (memory(), over_time, activities(), startup, maybe(0_u8..=2), curve).prop_flat_map(
        |(most, memory_over_time, activity, startup, lucid_score, mps_curve)| {
            let task = CatalogueTask {
                memory: vec![most],
                memory_over_time,
                activity,
                startup,
                ..CatalogueTask::default()
            };
            let task = CatalogueTask { name: "task".into(), lucid_score, mps_curve, ..task };
            let truth = peak(&task);
            let guesses = prop::collection::vec(forecast(truth), Estimator::ALL.len());
            // No job is declared to take more than it does: then it is refused where it would have run.
            let declared = prop_oneof![3 => Just(None), 1 => Just(Some(truth))];
            (declared, guesses).prop_map(move |(declared, guesses)| CatalogueTask {
                forecasts: Forecasts {
                    declared,
                    estimates: Estimates::by(|estimator| guesses[estimator as usize]),
                    computed: None,
                },
                ..task.clone()
            })
        },
    )
}

fn jobs(
    tasks: impl Strategy<Value = CatalogueTask>,
    count: usize,
    gpus: u32,
) -> impl Strategy<Value = Workload> {
    let arrival =
        prop_oneof![1 => Just(0_u64), 2 => (0_u64..40).prop_map(|m| m * 60_000), 3 => 0_u64..9_000_000];
    let duration = prop_oneof![1 => 1_u64..2_000, 6 => 1_000_u64..7_200_000];
    let gpus = prop_oneof![3 => Just(1), 1 => 1..=gpus];
    let job = (arrival, duration, gpus, 0_u32..3, any::<prop::sample::Index>());
    let tasks = prop::collection::vec(tasks.prop_map(Arc::new), 1..6);
    (tasks, prop::collection::vec(job, 1..=count)).prop_map(|(tasks, mut jobs)| {
        jobs.sort_by_key(|job| job.0);
        let jobs = (1..).zip(jobs).map(|(line, (arrival, duration, gpus, user, task))| WorkJob {
            threads: None,
            line,
            id: line.to_string().into(),
            arrival: Millis(arrival),
            duration: Millis(duration),
            gpus,
            user,
            task: Arc::clone(task.get(&tasks)),
        });
        let users = ["ann", "bob", "eve"].map(Arc::from).into();
        Workload { name: "random".into(), users, jobs: jobs.collect(), notes: Vec::new() }
    })
}

fn setups() -> impl Strategy<Value = Setup> {
    let policy = prop::sample::select(presets::NAMES);
    let sharing = prop::sample::select(vec![SharingMode::TimeSlice, SharingMode::Mps]);
    let recovery =
        prop::sample::select(vec![None, Some(RecoveryMethod::Graded), Some(RecoveryMethod::Exclusive)]);
    let by_speedup = prop::bool::weighted(0.25);
    let limit = prop::option::weighted(0.25, (100_u32..400).prop_map(Fraction::percent));
    (policy, sharing, recovery, any::<u64>(), by_speedup, limit).prop_map(
        |(name, sharing, recovery, seed, by_speedup, limit)| {
            let mut setup = Setup::new(presets::by_name(name).unwrap(), sharing, recovery, seed);
            let order = &mut setup.options.policy.order;
            if by_speedup && *order != Order::Exclusive {
                *order = Order::Speedup;
            }
            setup.options.max_slowdown = limit;
            setup
        },
    )
}

fn play(workload: &Workload, cluster: &Cluster, setup: &Setup) -> RunResult {
    simulate(workload, cluster, setup, &|_| ())
}

fn setup(policy: &str, sharing: SharingMode) -> Setup {
    Setup::new(presets::by_name(policy).unwrap(), sharing, None, 7)
}

// --- the laws ------------------------------------------------------------------------------------

/// No job is lost: what did not complete could not have.
fn nobody_is_lost(workload: &Workload, world: &World, run: &RunResult) {
    assert_eq!(run.jobs.len(), workload.jobs.len());
    let completed = run.jobs.iter().filter(|job| job.end.is_some()).count() as u64;
    assert_eq!(run.summary.jobs, workload.jobs.len() as u64);
    assert_eq!((run.summary.completed, run.summary.not_completed), (completed, run.summary.jobs - completed));
    for (at, (job, outcome)) in workload.jobs.iter().zip(&run.jobs).enumerate() {
        if outcome.end.is_none() && world.holds(job) {
            let task = &job.task;
            let mine = |job: &u32| *job as usize == at;
            panic!(
                "job {at} did not complete and could have, under {} with {}:\n{outcome:?}\n{:?} MiB, {:?}, {:?}\n{:#?}\n{:#?}",
                run.policy,
                run.sharing,
                task.memory,
                task.memory_over_time,
                task.forecasts,
                run.stretches.iter().filter(|s| mine(&s.job)).collect::<Vec<_>>(),
                run.ooms.iter().filter(|oom| mine(&oom.job)).collect::<Vec<_>>(),
            );
        }
    }
}

/// A job is in one place at a time, on as many GPUs as it asks for, and what is said of it in total
/// is what its stretches add up to.
fn stretches_add_up(workload: &Workload, world: &World, run: &RunResult) {
    let (mut evictions, mut guarded, mut preemptions) = (0, 0, 0);
    for (at, (job, outcome)) in workload.jobs.iter().zip(&run.jobs).enumerate() {
        let mine: Vec<&Stretch> = run.stretches.iter().filter(|s| s.job as usize == at).collect();
        for (n, stretch) in mine.iter().enumerate() {
            // One that was suspended goes on as the same attempt.
            let before = mine[..n].iter().filter(|s| s.how != End::Preempted).count();
            assert_eq!(stretch.attempt as usize, before + 1);
            assert_eq!(stretch.gpus.len(), job.gpus as usize);
            let mut gpus = stretch.gpus.clone();
            gpus.sort_unstable();
            gpus.dedup();
            assert_eq!(gpus.len(), job.gpus as usize, "a GPU twice: {stretch:?}");
            assert!(gpus.iter().all(|gpu| (*gpu as usize) < world.gpus.len()));
            assert!(job.arrival <= stretch.start && stretch.start <= stretch.end, "{stretch:?}");
            assert_eq!(stretch.how == End::Completed, outcome.end.is_some() && n + 1 == mine.len());
        }
        assert!(mine.windows(2).all(|pair| pair[0].end <= pair[1].start), "in two places: {mine:?}");
        let preempted = mine.iter().filter(|s| s.how == End::Preempted).count();
        preemptions += preempted as u64;
        assert_eq!(outcome.attempts as usize, mine.len() - preempted);
        assert_eq!(outcome.ooms as usize, mine.iter().filter(|s| s.how == End::OutOfMemory).count());
        evictions += mine.iter().filter(|s| s.how == End::Evicted).count() as u64;
        guarded += mine.iter().filter(|s| s.how == End::GrowthGuard).count() as u64;
        assert_eq!(outcome.exec.0, mine.iter().map(|s| s.end.0 - s.start.0).sum::<u64>());
        assert_eq!(outcome.first_start, mine.first().map(|s| s.start));
        assert_eq!(outcome.last_start, mine.last().map(|s| s.start));
        if let Some(end) = outcome.end {
            assert_eq!(Some(end), mine.last().map(|s| s.end));
            let last = mine.last().unwrap().attempt;
            let took: u64 = mine.iter().filter(|s| s.attempt == last).map(|s| s.end.0 - s.start.0).sum();
            // Neighbours slow a job down, never up.
            assert!(took >= job.duration.0, "faster than alone: {outcome:?}");
            if mine.len() == 1 {
                let waited = outcome.first_start.unwrap().0 - job.arrival.0;
                assert_eq!(end.0 - job.arrival.0, waited + outcome.exec.0);
            }
        }
    }
    let summary = &run.summary;
    assert_eq!(
        (summary.evictions, summary.growth_guard, summary.preemptions),
        (evictions, guarded, preemptions)
    );
    assert_eq!(run.ooms.len() as u64, run.summary.oom);
    assert_eq!(run.summary.oom, run.jobs.iter().map(|job| u64::from(job.ooms)).sum::<u64>());
}

/// No job is beside another that has the GPU for itself, under the policy without sharing.
fn exclusive_is_exclusive(run: &RunResult) {
    for (n, a) in run.stretches.iter().enumerate() {
        for b in &run.stretches[n + 1..] {
            let together =
                a.start < b.end && b.start < a.end && a.gpus.iter().any(|gpu| b.gpus.contains(gpu));
            assert!(!together, "{a:?} and {b:?}");
        }
    }
}

/// A job that is alone on whole GPUs for all of its attempt takes its run time, to the millisecond.
fn alone_is_alone(workload: &Workload, world: &World, run: &RunResult) {
    for stretch in run.stretches.iter().filter(|s| s.how == End::Completed) {
        let beside = |other: &&Stretch| {
            other.job != stretch.job
                && other.start < stretch.end
                && stretch.start < other.end
                && other.gpus.iter().any(|gpu| stretch.gpus.contains(gpu))
        };
        let whole = stretch.gpus.iter().all(|gpu| !world.gpus[*gpu as usize].name.contains('/'));
        let parts = run.stretches.iter().filter(|s| (s.job, s.attempt) == (stretch.job, stretch.attempt));
        if whole && parts.count() == 1 && run.stretches.iter().find(beside).is_none() {
            let solo = workload.jobs[stretch.job as usize].duration.0;
            assert_eq!(stretch.end.0 - stretch.start.0, solo, "{stretch:?}");
        }
    }
}

/// What the GPUs did is what the jobs had to do: the integral of DRAM activity is the sum over jobs of
/// activity alone times work, however they were slowed down. Only where no job died of memory or
/// had to begin anew, and where the start-up is known. Not with MIG instances, of which each tells shares of its own part.
fn work_is_conserved(workload: &Workload, world: &World, run: &RunResult) {
    let known = workload.jobs.iter().all(|job| job.task.startup.is_some());
    let whole = world.gpus.iter().all(|gpu| !gpu.name.contains('/'));
    if !run.ooms.is_empty() || run.summary.evictions + run.summary.growth_guard > 0 || !known || !whole {
        return;
    }
    let (mut expected, mut slack) = (0.0, 1.0);
    for (job, outcome) in workload.jobs.iter().zip(&run.jobs).filter(|(_, outcome)| outcome.end.is_some()) {
        let startup = job.task.startup.unwrap_or_default().0.min(job.duration.0 / 2);
        let work = (job.duration.0 - startup) as f64;
        expected += work * f64::from(outcome.gpus) * job.task.activity.drama.unwrap_or(0.0);
        // Ends are rounded up to a millisecond.
        slack += f64::from(outcome.gpus);
    }
    let done = run.summary.drama * run.summary.makespan_s * 1000.0 * world.gpus.len() as f64;
    assert!((done - expected).abs() <= slack + expected * 1e-9, "done {done}, to do {expected}");
}

/// Figures stay within what is physical.
fn figures_are_physical(workload: &Workload, world: &World, run: &RunResult) {
    let s = &run.summary;
    let watts = |f: &dyn Fn(&GpuType) -> f64| world.gpus.iter().map(f).sum::<f64>();
    // The instances of [`PARTS`] have 5 of 7 slices, and draw idle power for all.
    let all = |gpu: &GpuType| if gpu.name.contains('/') { 7.0 / 5.0 } else { 1.0 };
    let least = watts(&|gpu| gpu.empty_w * all(gpu)) * s.makespan_s;
    let most = watts(&|gpu| gpu.power.cap_w + gpu.power.idle_w * (all(gpu) - 1.0)) * s.makespan_s;
    let slack = 1e-9 * most;
    assert!(least - slack <= s.energy_j && s.energy_j <= most + slack, "{least} {} {most}", s.energy_j);
    for share in [s.smact, s.smocc, s.drama, s.busy, s.active.smact, s.active.smocc, s.active.drama] {
        assert!((0.0..=1.0 + 1e-9).contains(&share), "{s:?}");
    }
    let memory = world.gpus.iter().map(|gpu| gpu.memory_mib).sum::<u64>() as f64 / world.gpus.len() as f64;
    assert!(s.memory_mib <= memory * (1.0 + 1e-9), "{s:?}");
    for index in [s.fairness_wait, s.fairness_slowdown] {
        assert!((0.0..=1.0 + 1e-9).contains(&index), "{s:?}");
    }
    let begin = workload.jobs[0].arrival.0;
    let ends = run.jobs.iter().zip(&workload.jobs).filter(|(outcome, _)| outcome.end.is_some());
    let bound = ends.map(|(_, job)| job.arrival.0 + job.duration.0 - begin).max().unwrap_or(0);
    assert!(s.makespan_s * 1000.0 + 0.5 >= bound as f64);
    assert!(s.completed == 0 || s.slowdown.median >= 1.0);
}

/// Without sharing the GPUs' time is all that there is.
fn makespan_is_bounded(workload: &Workload, world: &World, run: &RunResult) {
    let done = run.jobs.iter().zip(&workload.jobs).filter(|(outcome, _)| outcome.end.is_some());
    let time: u64 = done.map(|(_, job)| job.duration.0 * u64::from(job.gpus)).sum();
    assert!(run.summary.makespan_s * 1000.0 * world.gpus.len() as f64 + 1.0 >= time as f64);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, max_shrink_iters: 400, ..ProptestConfig::default() })]

    /// In debug builds the engine itself checks memory, tenancies and the core's invariants at every
    /// instant, and that the core refuses nothing.
    #[test]
    fn laws_hold_under_any_policy(world in worlds(), workload in jobs(tasks(), 40, 4), setup in setups()) {
        let run = play(&workload, &world.cluster(), &setup);
        stretches_add_up(&workload, &world, &run);
        nobody_is_lost(&workload, &world, &run);
        alone_is_alone(&workload, &world, &run);
        work_is_conserved(&workload, &world, &run);
        figures_are_physical(&workload, &world, &run);
        if setup.options.policy.name == "exclusive" {
            exclusive_is_exclusive(&run);
            makespan_is_bounded(&workload, &world, &run);
        }
    }
}

// --- bugs that the laws have found ---------------------------------------------------------------

fn single(task: CatalogueTask, gpus: u32) -> Workload {
    let (id, task) = ("1".into(), Arc::new(task));
    let (arrival, duration) = (Millis::ZERO, Millis::secs(600));
    let job = WorkJob { threads: None, line: 1, id, arrival, duration, gpus, user: 0, task };
    Workload { name: "one".into(), users: vec!["ann".into()], jobs: vec![job], notes: Vec::new() }
}

fn cluster(spec: &str) -> Cluster {
    Cluster::parse(spec, &GpuTypes::built_in()).unwrap()
}

#[test]
fn a_task_that_throttles_the_board_alone_is_not_slowed_twice() {
    let activity = Activity { smact: Some(0.9), drama: Some(0.9), gract: Some(1.0), ..Activity::default() };
    let run = play(
        &single(CatalogueTask { activity, ..CatalogueTask::default() }, 1),
        &cluster("A100-40GB"),
        &setup("magm", SharingMode::Mps),
    );
    assert_eq!(run.jobs[0].exec, Millis::secs(600));
}

/// Alone on two sevenths of the SMs a task goes at 1 / (.4 + .4 * 7 / 2) of its speed: .4 of the whole are busy for that share of
/// the time, which is .78 of the two sevenths.
#[test]
fn a_mig_instance_tells_shares_of_what_it_has() {
    let activity = Activity {
        gract: Some(0.6),
        smact: Some(0.4),
        smocc: Some(0.2),
        drama: Some(0.1),
        ..Activity::default()
    };
    let task = CatalogueTask { activity, startup: Some(Millis::ZERO), ..CatalogueTask::default() };
    let mut two = single(task, 1);
    let later = WorkJob { arrival: Millis::secs(120), ..two.jobs[0].clone() };
    let one = play(&two, &cluster("A100-40GB/2g.10gb"), &setup("exclusive", SharingMode::Mps)).summary;
    for (told, whole, part) in
        [(one.smact, 0.4, 2.0 / 7.0), (one.smocc, 0.2, 2.0 / 7.0), (one.drama, 0.1, 2.0 / 8.0)]
    {
        let expected = whole / 1.8 / part;
        assert!((told - expected).abs() < 1e-3, "{told}, not {expected}");
    }
    // A gate at .65 sees it, too.
    two.jobs.push(later);
    let shared = |spec: &str| {
        let run = play(&two, &cluster(spec), &setup("aegis", SharingMode::Mps));
        run.stretches.iter().any(|stretch| stretch.shared)
    };
    assert!(shared("A100-40GB") && !shared("A100-40GB/2g.10gb"));
}

#[test]
fn a_gang_that_overflows_the_smallest_of_its_gpus_gets_larger_ones() {
    let task = CatalogueTask { memory: vec![MiB(13_000)], ..CatalogueTask::default() };
    let run = play(&single(task, 2), &cluster("A100-40GB+T4+2xA100-40GB"), &setup("magm", SharingMode::Mps));
    assert_eq!(run.stretches.len(), 1, "13,000 MiB fit a T4");
    let task = CatalogueTask { memory: vec![MiB(20_000)], ..CatalogueTask::default() };
    let run = play(&single(task, 2), &cluster("A100-40GB+T4+2xA100-40GB"), &setup("magm", SharingMode::Mps));
    let gpus: Vec<&[u32]> = run.stretches.iter().map(|s| &*s.gpus).collect();
    assert_eq!(gpus, [[0, 1], [0, 2]], "once it is known that the T4 is too small");
    assert!(run.jobs[0].end.is_some());
}

#[test]
fn however_wrong_a_forecast_the_last_retry_has_a_gpu_alone() {
    let forecasts = Forecasts {
        estimates: Estimates::default().with(Estimator::Measured, Some(MiB(100))),
        ..Forecasts::default()
    };
    let mixed = "2xA100-40GB+A100-40GB/3g.20gb,2g.10gb";
    for (gpu, memory) in [("A100-40GB", 38_000), ("H200", 140_000), (mixed, 40_035), ("T4+A100-40GB", 40_000)]
    {
        let task = CatalogueTask { memory: vec![MiB(memory)], forecasts, ..CatalogueTask::default() };
        let run = play(&single(task, 1), &cluster(gpu), &setup("carma", SharingMode::Mps));
        assert!(run.jobs[0].end.is_some(), "{gpu}: {:?}", run.stretches);
    }
}

#[test]
fn a_floor_that_too_few_gpus_could_give_is_no_floor() {
    let big = Arc::new(CatalogueTask { memory: vec![MiB(30_000)], ..CatalogueTask::default() });
    let mut workload = single(CatalogueTask { memory: vec![MiB(15_000)], ..CatalogueTask::default() }, 3);
    // Two neighbours fill the large GPUs when the gang comes, so that it runs out of memory there.
    for at in [0, 1] {
        let job = WorkJob { task: Arc::clone(&big), gpus: 1, ..workload.jobs[0].clone() };
        workload.jobs.insert(at, job);
    }
    workload.jobs[2].arrival = Millis::secs(60);
    let run = play(&workload, &cluster("2xA100-40GB+V100-16GB"), &setup("magm", SharingMode::Mps));
    assert!(run.jobs[2].ooms > 0 && run.jobs[2].end.is_some(), "{:#?}", run.stretches);
}

// --- first in, first out, in closed form ---------------------------------------------------------

/// Starts under strict FIFO on GPUs of one's own: a job starts when it has come, all before it
/// have started, and enough GPUs are free.
fn fifo(workload: &Workload, gpus: usize) -> Vec<(u64, u64)> {
    let mut free = vec![0; gpus];
    let mut before = 0;
    let mut times = Vec::new();
    for job in &workload.jobs {
        let wanted = job.gpus as usize;
        free.sort_unstable();
        before = job.arrival.0.max(before).max(free[wanted - 1]);
        let end = before + job.duration.0;
        free[..wanted].fill(end);
        times.push((before, end));
    }
    times
}

/// Tasks that take any GPU without harm.
fn modest() -> impl Strategy<Value = CatalogueTask> {
    (1_u64..16_000, activities(), maybe(0_u64..100_000)).prop_map(|(memory, activity, startup)| {
        CatalogueTask {
            memory: vec![MiB(memory)],
            activity,
            startup: startup.map(Millis),
            ..CatalogueTask::default()
        }
    })
}

fn times(run: &RunResult) -> Vec<(u64, u64)> {
    run.jobs.iter().map(|job| (job.last_start.unwrap().0, job.end.unwrap().0)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, max_shrink_iters: 400, ..ProptestConfig::default() })]

    #[test]
    fn exclusive_is_the_closed_form(workload in jobs(modest(), 40, 4), gpus in 4_usize..8) {
        let run = play(&workload, &cluster(&format!("{gpus}xA100-40GB")), &setup("exclusive", SharingMode::TimeSlice));
        prop_assert_eq!(times(&run), fifo(&workload, gpus));
    }
}

/// A file of the shared data, or a printed line that it is not there.
fn shared(name: &str) -> Option<PathBuf> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data").join(name);
    if !file.is_file() {
        eprintln!("skipped: ../shared/data/{name} is absent");
        return None;
    }
    Some(file)
}

/// One of the traces of the CARMA evaluation.
fn published(name: &str) -> Option<Workload> {
    let catalogue = Catalogue::read_file(&shared("carma/workloads.csv")?).unwrap();
    let trace = read::trace_file(&shared("carma/philly_evaluation_arrivals.csv")?, Some(name)).unwrap();
    Some(Workload::resolve(&trace, Some(&catalogue)).unwrap())
}

/// Name, makespan in seconds and mean wait in minutes, both by an independent calculation.
const PUBLISHED: [(&str, f64, f64); 4] = [
    ("philly_trace-t1", 25_973.0, 111.8),
    ("philly_trace-t2", 31_243.0, 75.5),
    ("philly_heavy-60-tasks", 35_026.0, 204.5),
    ("philly_mix-90-tasks", 39_755.0, 166.3),
];

#[test]
fn exclusive_is_the_closed_form_on_the_traces_of_the_carma_evaluation() {
    for (name, makespan, wait) in PUBLISHED {
        let Some(workload) = published(name) else { return };
        let run = play(&workload, &cluster("4xA100-40GB"), &setup("exclusive", SharingMode::TimeSlice));
        assert_eq!(times(&run), fifo(&workload, 4), "{name}");
        println!(
            "{name}: makespan {} s, mean wait {} min",
            run.summary.makespan_s,
            run.summary.wait_s.mean / 60.0
        );
        assert_eq!(run.summary.makespan_s.round(), makespan, "{name}");
        assert_eq!((run.summary.wait_s.mean / 6.0).round() / 10.0, wait, "{name}");
    }
}

// --- limits of slowdown ---------------------------------------------------------------------------

/// The example of eight tasks that were measured on an H200.
fn h200_day() -> Workload {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let catalogue = Catalogue::read_file(&examples.join("h200-day.tasks.csv")).unwrap();
    let trace = read::trace_file(&examples.join("h200-day.csv"), None).unwrap();
    Workload::resolve(&trace, Some(&catalogue)).unwrap()
}

/// Predictions keep most jobs within their limit, and who exceeds one is evicted when that is measured: no job that
/// completed took longer than its limit, but for the windows in which that was found out.
#[test]
fn limits_of_slowdown_hold_and_sharing_still_pays() {
    let (workload, cluster) = (h200_day(), cluster("4xH200"));
    let run = |limit: Option<u32>| {
        let mut setup = setup("carma", SharingMode::Mps);
        setup.options.max_slowdown = limit.map(Fraction::percent);
        play(&workload, &cluster, &setup)
    };
    let alone = play(&workload, &cluster, &setup("exclusive", SharingMode::Mps));
    let (free, strict, generous) = (run(None), run(Some(150)), run(Some(300)));
    assert!(free.summary.slowdown.max > 3.0, "{:?}", free.summary.slowdown);
    for (kept, limit) in [(&strict, 1.5), (&generous, 3.0)] {
        assert!(kept.summary.slowdown.max <= limit, "{:?}", kept.summary.slowdown);
        assert!(kept.summary.jct_s.mean < alone.summary.jct_s.mean * 0.9, "{:?}", kept.summary.jct_s);
        assert_eq!(kept.summary.completed, workload.jobs.len() as u64);
    }
    assert!(strict.summary.slowdown.mean < generous.summary.slowdown.mean);
    // A forecast was wrong, and that was noticed.
    assert!(strict.summary.evictions > 0 && strict.stretches.iter().any(|s| s.how == End::Evicted));
}

/// The n-th job, of one GPU: they come 100 s after each other.
fn job_of_its_own_task(n: u64, duration: Millis, task: CatalogueTask) -> WorkJob {
    WorkJob {
        line: n + 1,
        id: n.to_string().into(),
        arrival: Millis(n * 100_000),
        duration,
        gpus: 1,
        user: 0,
        threads: None,
        task: Arc::new(CatalogueTask { name: format!("task {n}").into(), ..task }),
    }
}

/// Time-sliced, the older of two jobs of unknown memory takes more halfway. Under `adaptive` the younger one, which has
/// grown to all that was left, has left before that, and neither runs out of memory. It is suspended, or begins anew.
#[test]
fn the_growth_guard_keeps_an_older_job_from_running_out_of_memory() {
    let job = |n: u64, peak: u64, steps: &[(f64, f64)]| {
        let task = CatalogueTask {
            memory: vec![MiB(peak)],
            memory_over_time: steps.to_vec(),
            activity: Activity { smact: Some(0.2), drama: Some(0.1), ..Activity::default() },
            startup: Some(Millis(1000)),
            ..CatalogueTask::default()
        };
        job_of_its_own_task(n, Millis(1_000_000), task)
    };
    let jobs = vec![job(0, 6_000, &[(0.0, 0.8), (0.5, 1.0)]), job(1, 36_000, &[(0.0, 0.7), (0.02, 1.0)])];
    let workload = Workload { name: "two".into(), users: vec!["ann".into()], jobs, notes: Vec::new() };
    let run = |blind, suspends| {
        let mut setup = setup("adaptive", SharingMode::TimeSlice);
        setup.options.policy.blind = blind;
        setup.options.suspends = suspends;
        play(&workload, &cluster("1xA100-40GB"), &setup)
    };
    let runs = [(true, End::Preempted, 1), (false, End::GrowthGuard, 2)];
    let ends = runs.map(|(suspends, how, attempts)| {
        let kept = run(true, suspends);
        let of = |job: u32| kept.stretches.iter().filter(|s| s.job == job).map(|s| s.how).collect::<Vec<_>>();
        assert_eq!((of(0), of(1)), (vec![End::Completed], vec![how, End::Completed]));
        let summary = &kept.summary;
        assert_eq!((summary.oom, summary.growth_guard + summary.preemptions), (0, 1));
        assert_eq!(kept.jobs[1].attempts, attempts);
        // By then the older one is over.
        let shared: Vec<bool> = kept.stretches.iter().filter(|s| s.job == 1).map(|s| s.shared).collect();
        assert_eq!(shared, [true, false]);
        kept.jobs[1].end.unwrap()
    });
    assert!(ends[0] < ends[1], "what it did is kept: {ends:?}");
    // Where jobs of unknown memory have GPUs of their own there is nothing to guard.
    let alone = run(false, true).summary;
    assert_eq!((alone.growth_guard, alone.preemptions), (0, 0));
}

/// A job that wants both GPUs passes the bound on its start while a shorter job runs on one of them. The shorter job is suspended to make
/// room, and resumes afterwards. Without suspension the wide job waits for its end.
#[test]
fn a_job_makes_room_for_one_on_two_gpus_that_is_overdue() {
    let job = |n: u64, (arrival, seconds, gpus): (u64, u64, u32)| {
        let task = CatalogueTask {
            memory: vec![MiB(25_000)],
            forecasts: Forecasts { declared: Some(MiB(25_000)), ..Forecasts::default() },
            activity: Activity { smact: Some(0.9), drama: Some(0.3), ..Activity::default() },
            startup: Some(Millis(1000)),
            ..CatalogueTask::default()
        };
        let job = job_of_its_own_task(n, Millis::secs(seconds), task);
        WorkJob { arrival: Millis::secs(arrival), gpus, ..job }
    };
    let jobs = [(0, 3600, 1), (0, 1800, 1), (60, 900, 2), (120, 1700, 1), (200, 1790, 1)];
    let jobs = (0..).zip(jobs).map(|(n, of)| job(n, of)).collect();
    let workload = Workload { name: "wide".into(), users: vec!["ann".into()], jobs, notes: Vec::new() };
    let run = |suspends| {
        let mut setup = setup("adaptive", SharingMode::TimeSlice);
        setup.knowledge.run_times = RunTimesKnown::True;
        setup.options.suspends = suspends;
        play(&workload, &cluster("2xA100-40GB"), &setup)
    };
    let (with, without) = (run(true), run(false));
    let start = |run: &RunResult| run.jobs[2].first_start.unwrap();
    assert_eq!((with.summary.preemptions, without.summary.preemptions), (1, 0));
    // Memory is full with one job. Job 4 starts at 3500 s, and its end frees the second GPU.
    assert_eq!(start(&without), Millis::secs(3500 + 1790));
    // The bound is at 3600 s and a twentieth of the 4440 s until all would be done alone; 24.4 GiB take 17.4 s to the host.
    assert_eq!(start(&with), Millis::secs(3600 + 222) + Millis(17_433));
    let last: Vec<_> = with.stretches.iter().filter(|s| s.job == 4).map(|s| (s.attempt, s.how)).collect();
    assert_eq!(last, [(1, End::Preempted), (1, End::Completed)]);
    // It stood still while it left and while it came back, and did nothing twice.
    assert_eq!(with.jobs[4].exec, Millis::secs(1790) + Millis(17_433 + 6_103));
    assert!(with.jobs.iter().all(|job| job.end.is_some() && job.attempts == 1));
}

/// Predicted gain orders GPUs: the same workload goes otherwise than by free memory.
#[test]
fn the_order_by_predicted_speedup_is_one_of_its_own() {
    let (workload, cluster) = (h200_day(), cluster("4xH200"));
    let mut setup = setup("carma", SharingMode::Mps);
    let plain = play(&workload, &cluster, &setup);
    setup.options.policy.order = Order::Speedup;
    let ordered = play(&workload, &cluster, &setup);
    assert!(ordered.stretches != plain.stretches);
    assert_eq!(ordered.summary.completed, workload.jobs.len() as u64);
    assert_eq!(ordered, play(&workload, &cluster, &setup));
}

/// KACE's rule: a newcomer goes where most gets done, by what the catalogue says of each task; one of which it says too
/// little waits for an idle GPU.
#[test]
fn kace_puts_a_job_beside_the_one_that_is_least_in_its_way() {
    let job = |n: u64, busy: f64, memory: Option<u64>| {
        let activity =
            Activity { gract: Some(busy), smact: Some(busy), drama: Some(busy / 2.0), ..Activity::default() };
        let task = CatalogueTask {
            memory: memory.map(MiB).into_iter().collect(),
            activity,
            forecasts: Forecasts { declared: Some(MiB(4_000)), ..Forecasts::default() },
            ..CatalogueTask::default()
        };
        job_of_its_own_task(n, Millis(2_000_000), task)
    };
    let place = |last: WorkJob| {
        let jobs = vec![job(0, 0.95, Some(4_000)), job(1, 0.15, Some(4_000)), last];
        let workload = Workload { name: "three".into(), users: vec!["ann".into()], jobs, notes: Vec::new() };
        let run = play(&workload, &cluster("2xH200"), &setup("kace", SharingMode::Mps));
        let of = |n: u32| run.stretches.iter().find(|stretch| stretch.job == n).unwrap().clone();
        assert_eq!((of(0).gpus, of(1).gpus, run.summary.completed), (vec![0], vec![1], 3));
        (of(2).gpus, of(2).start)
    };
    assert_eq!(place(job(2, 0.3, Some(4_000))), (vec![1], Millis(200_000)));
    // `memcap` is one of the features of the model that is shipped.
    let (gpus, start) = place(job(2, 0.3, None));
    assert!(gpus == [0] && start >= Millis(2_000_000), "{gpus:?} {start}");
}

// --- the same again ------------------------------------------------------------------------------

/// A fixed mix of light and heavy tasks, so that every policy shares, gates and recovers.
fn mix() -> Workload {
    let task = |n: u32| {
        let n = f64::from(n);
        let smact = (n * 0.37) % 1.0;
        Arc::new(CatalogueTask {
            name: format!("task {n}").into(),
            memory: vec![MiB(1_000 + (n * 5_300.0) as u64 % 30_000)],
            memory_over_time: if n % 2.0 == 0.0 { vec![(0.0, 0.4), (0.3, 1.0)] } else { Vec::new() },
            activity: Activity {
                smact: Some(smact),
                smocc: Some(smact * 0.6),
                drama: Some(smact * 0.7),
                ..Activity::default()
            },
            ..CatalogueTask::default()
        })
    };
    let tasks: Vec<_> = (1..=7).map(task).collect();
    let jobs = (0..40_u32).map(|n| WorkJob {
        threads: None,
        line: u64::from(n) + 1,
        id: n.to_string().into(),
        arrival: Millis(u64::from(n) * 47_000),
        duration: Millis(120_000 + u64::from(n * 7_919 % 900) * 1_000),
        gpus: 1 + u32::from(n % 9 == 8),
        user: n % 3,
        task: Arc::clone(&tasks[n as usize % tasks.len()]),
    });
    let users = ["ann", "bob", "eve"].map(Arc::from).into();
    Workload { name: "mix".into(), users, jobs: jobs.collect(), notes: Vec::new() }
}

#[test]
fn the_same_seed_gives_the_same_bytes_on_any_number_of_threads() {
    let (workload, cluster) = (mix(), cluster("2xA100-40GB+V100-16GB"));
    let setups: Vec<Setup> = presets::NAMES
        .iter()
        .flat_map(|name| [SharingMode::TimeSlice, SharingMode::Mps].map(|sharing| setup(name, sharing)))
        .flat_map(|setup| [1, 2].map(|seed| Setup { seed, record: true, ..setup.clone() }))
        .collect();
    let bytes = |setup: &Setup| serde_json::to_string(&play(&workload, &cluster, setup)).unwrap();
    let first: Vec<String> = setups.iter().map(bytes).collect();
    for threads in [1, 2, 8] {
        let next = std::sync::atomic::AtomicUsize::new(0);
        let run = || {
            loop {
                let at = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                let Some(setup) = setups.get(at) else { break };
                assert!(bytes(setup) == first[at], "{} on {threads} threads", setup.label);
            }
        };
        std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(run))));
        assert!(next.into_inner() >= setups.len());
    }
    // That they are the same means something only where runs could differ.
    assert!(first.chunks(2).filter(|pair| pair[0] != pair[1]).count() > setups.len() / 4);
    assert!(setups.iter().any(|setup| play(&workload, &cluster, setup).summary.oom > 0));
}

/// That a trace names no tasks is no reason to share less.
#[test]
fn jobs_of_unnamed_tasks_share_as_others_do() {
    let text = |task: &str| {
        let head = format!("job,arrival_s,duration_s,memory_mib,gract,smact,drama{task}\n");
        let row = |n: u32| {
            let named = if task.is_empty() { String::new() } else { format!(",t{n}") };
            format!("{n},{},600,3000,.{},.{},.1{named}\n", 10 * n, 20 + n, 10 + n)
        };
        head + &(0..20).map(row).collect::<String>()
    };
    let run = |text: &str| {
        let trace = read::trace(text.as_bytes(), Path::new("t.csv"), None).unwrap();
        let workload = Workload::resolve(&trace, None).unwrap();
        play(&workload, &cluster("2xA100-40GB"), &setup("adaptive", SharingMode::Mps))
    };
    let (named, unnamed) = (run(&text(",task")), run(&text("")));
    assert_eq!(times(&named), times(&unnamed));
    assert!(unnamed.summary.jobs_per_gpu > 1.5, "{:?}", unnamed.summary);
}

/// Jobs of an hour that arrive at these seconds. Their memory grows once more soon after they have loaded; the first declares so much.
fn light(arrivals: &[u64], declared: u64) -> Workload {
    let job = |(n, arrival): (u64, &u64)| {
        let of = |mib| Forecasts { declared: Some(MiB(mib)), ..Forecasts::default() };
        let task = CatalogueTask {
            memory: vec![MiB(3_000)],
            memory_over_time: vec![(0.0, 0.8), (0.005, 1.0)],
            forecasts: of(if n == 0 { declared } else { 3_000 }),
            activity: Activity { smact: Some(0.1), drama: Some(0.05), ..Activity::default() },
            startup: Some(Millis(10_000)),
            ..CatalogueTask::default()
        };
        let job = job_of_its_own_task(n, Millis::secs(3600), task);
        WorkJob { arrival: Millis::secs(*arrival), ..job }
    };
    let jobs = (0..).zip(arrivals).map(job).collect();
    Workload { name: "light".into(), users: vec!["ann".into()], jobs, notes: Vec::new() }
}

/// A job of unknown memory that was given all of a GPU gives back what it doesn't take once that has stood still for a window, whether or not
/// anything else happens then. What one declared stays reserved under `adaptive` as long as it runs.
#[test]
fn a_job_gives_back_what_it_does_not_take_but_not_what_it_declared() {
    let second = |policy: &str, tasks: TasksKnown, sharing: SharingMode| {
        let mut setup = setup(policy, sharing);
        setup.knowledge.tasks = tasks;
        let run = play(&light(&[0, 20], 39_000), &cluster("1xA100-40GB"), &setup);
        let first = &run.jobs[0];
        (run.jobs[1].first_start.map(|at| at.0 / 1000), first.end.map(|at| at.0 / 1000))
    };
    let taken_back = Some(10 + 17 + 30);
    assert_eq!(second("adaptive", TasksKnown::Learned, SharingMode::TimeSlice).0, taken_back);
    for sharing in [SharingMode::Mps, SharingMode::TimeSlice] {
        // It begins at 10 s, and takes the last of its memory 18 s later.
        assert_eq!(second("carma", TasksKnown::Catalogue, sharing).0, Some(40), "{sharing:?}");
        let (start, end) = second("adaptive", TasksKnown::Catalogue, sharing);
        assert!(end.is_some() && start == end, "{sharing:?}: {start:?}, {end:?}");
    }
}

/// As in life, where the daemon plans again once a job was launched.
#[test]
fn light_jobs_that_come_at_once_start_at_once() {
    let run = play(&light(&[0; 4], 3_000), &cluster("1xA100-40GB"), &setup("adaptive", SharingMode::Mps));
    let starts: Vec<Millis> = run.jobs.iter().filter_map(|job| job.first_start).collect();
    assert_eq!(starts.len(), 4);
    assert!(starts.iter().all(|at| *at < Millis::secs(1)), "{starts:?}");
}

/// Of two GPUs one is kept for an overdue job on both, which waits for a job that has taken longer than expected. The longer that one goes on
/// the longer it is taken to go on, until a job of which nothing is known may have the GPU meanwhile: though nothing happens that would say so.
#[test]
fn while_a_job_waits_time_alone_may_let_it_start() {
    let job = |n: u64, (arrival, seconds, gpus, memory): (u64, u64, u32, u64)| {
        let task = CatalogueTask {
            memory: vec![MiB(memory)],
            forecasts: Forecasts { declared: Some(MiB(memory)), ..Forecasts::default() },
            activity: Activity { smact: Some(0.1), drama: Some(0.05), ..Activity::default() },
            ..CatalogueTask::default()
        };
        let job = job_of_its_own_task(n, Millis::secs(seconds), task);
        WorkJob { arrival: Millis::secs(arrival), gpus, ..job }
    };
    let jobs = [(0, 100_000, 1, 3_000), (10, 60, 2, 39_000), (22_000, 280, 1, 30_000)];
    let jobs = (0..).zip(jobs).map(|(n, of)| job(n, of)).collect();
    let workload = Workload { name: "kept".into(), users: vec!["ann".into()], jobs, notes: Vec::new() };
    let run = play(&workload, &cluster("2xA100-40GB"), &setup("adaptive", SharingMode::Mps));
    // Half of what it has done is left of the first: four hours, which such a job may take, from 28,800 s on. From 23,800 s on, when the last has
    // waited for twice the quarter of an hour that one counts for there of which nothing is known, the hour that it is expected to take does.
    let start = run.jobs[2].first_start.unwrap();
    assert!((Millis::secs(23_800)..Millis::secs(23_900)).contains(&start), "{start:?}");
    assert!(run.jobs[1].first_start.unwrap() >= Millis::secs(100_000));
}

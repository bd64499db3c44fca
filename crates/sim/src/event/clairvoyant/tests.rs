//! The list in the smallest cases, by hand, and what holds for every list.

use super::*;
use crate::event::{Cluster, SharingMode};
use crate::trace::{Activity, CatalogueTask, WorkJob, Workload};
use carma_core::units::{MiB, Millis};
use carma_hardware::GpuTypes;
use proptest::prelude::*;

/// A kind of job: its memory in MiB, SMACT, start-up in seconds.
fn task(name: &str, memory: u64, smact: f64, startup: u64) -> Arc<CatalogueTask> {
    Arc::new(CatalogueTask {
        name: name.into(),
        memory: vec![MiB(memory)],
        activity: Activity { gract: Some(smact), smact: Some(smact), ..Activity::default() },
        startup: Some(Millis::secs(startup)),
        steps_per_s: Some(0.0),
        ..CatalogueTask::default()
    })
}

/// Jobs by arrival and duration, in seconds, GPUs, and their tasks.
fn workload(jobs: &[(u64, u64, u32, &Arc<CatalogueTask>)]) -> Workload {
    let job =
        |(line, (arrival, duration, gpus, task)): (u64, &(u64, u64, u32, &Arc<CatalogueTask>))| WorkJob {
            threads: None,
            line,
            id: line.to_string().into(),
            arrival: Millis::secs(*arrival),
            duration: Millis::secs(*duration),
            gpus: *gpus,
            user: 0,
            task: Arc::clone(task),
        };
    Workload {
        name: "test".into(),
        users: vec!["-".into()],
        jobs: (0..).zip(jobs).map(job).collect(),
        notes: Vec::new(),
    }
}

fn known(jobs: &[(u64, u64, u32, &Arc<CatalogueTask>)], spec: &str, sharing: SharingMode) -> Known {
    let cluster = Cluster::parse(spec, &GpuTypes::built_in()).unwrap();
    Known::new(&workload(jobs), &cluster, sharing, 1)
}

fn ends(known: &Known, order: &[u32], rules: &Rules) -> Vec<f64> {
    let result = play(known, &mut Rates::default(), order, rules);
    result.jobs.iter().map(|job| job.end.map_or(f64::NAN, Millis::as_secs_f64)).collect()
}

const ALONE: Rules =
    Rules { floor: 1.0, gain: 1.0, most: 1, placement: Placement::Gain, passed: 0, values: None };

#[test]
fn the_list_says_who_goes_first() {
    let full = task("full", 1000, 1.0, 0);
    let it = known(
        &[(0, 100, 1, &full), (0, 200, 1, &full), (0, 50, 1, &full)],
        "1xCUSTOM-40GB",
        SharingMode::Mps,
    );
    assert_eq!(ends(&it, &[0, 1, 2], &ALONE), [100.0, 300.0, 350.0]);
    assert_eq!(ends(&it, &[2, 0, 1], &ALONE), [150.0, 350.0, 50.0]);
    // A job that is not on the list comes after it.
    assert_eq!(ends(&it, &[1], &ALONE), [300.0, 200.0, 350.0]);
}

#[test]
fn a_job_that_can_not_start_is_passed_over_as_the_rules_say() {
    let full = task("full", 1000, 1.0, 0);
    let jobs = [(0, 100, 1, &full), (0, 100, 2, &full), (0, 50, 1, &full)];
    let it = known(&jobs, "2xCUSTOM-40GB", SharingMode::Mps);
    assert_eq!(ends(&it, &[0, 1, 2], &ALONE), [100.0, 200.0, 250.0]);
    assert_eq!(ends(&it, &[0, 1, 2], &Rules { passed: 1, ..ALONE }), [100.0, 200.0, 50.0]);
}

#[test]
fn floor_gain_number_and_memory_keep_jobs_apart() {
    let full = task("full", 1000, 1.0, 0);
    let it = known(&[(0, 100, 1, &full), (0, 100, 1, &full)], "1xCUSTOM-40GB", SharingMode::TimeSlice);
    // Two halves of a GPU that has no loss.
    let free = Rules { floor: 0.0, gain: -1.0, most: 2, ..ALONE };
    assert_eq!(ends(&it, &[0, 1], &free), [200.0, 200.0]);
    let apart = [100.0, 200.0];
    assert_eq!(ends(&it, &[0, 1], &Rules { floor: 0.51, ..free.clone() }), apart);
    assert_eq!(ends(&it, &[0, 1], &Rules { gain: 0.01, ..free.clone() }), apart);
    assert_eq!(ends(&it, &[0, 1], &Rules { most: 1, ..free.clone() }), apart);
    let large = task("large", 30_000, 1.0, 0);
    let it = known(&[(0, 100, 1, &large), (0, 100, 1, &large)], "1xCUSTOM-40GB", SharingMode::TimeSlice);
    assert_eq!(ends(&it, &[0, 1], &free), apart);
}

#[test]
fn a_job_that_the_cluster_can_not_hold_is_left_out() {
    let (large, small) = (task("large", 50_000, 0.5, 0), task("small", 100, 0.5, 0));
    let it = known(
        &[(0, 100, 1, &large), (0, 100, 2, &small), (0, 100, 1, &small)],
        "1xCUSTOM-40GB",
        SharingMode::Mps,
    );
    let ends = ends(&it, &[], &Rules::default());
    assert!(ends[0].is_nan() && ends[1].is_nan() && ends[2] == 100.0, "{ends:?}");
    assert_eq!(it.jobs().iter().map(|job| job.fits).collect::<Vec<_>>(), [false, false, true]);
}

#[test]
fn classes_are_of_jobs_that_are_alike_to_a_gpu() {
    let (one, two) = (task("one", 1000, 0.5, 0), task("two", 1000, 0.5, 0));
    let other = task("other", 1000, 0.6, 7);
    let it =
        known(&[(0, 100, 1, &one), (0, 10, 1, &two), (0, 100, 1, &other)], "1xCUSTOM-40GB", SharingMode::Mps);
    assert_eq!(it.jobs().iter().map(|job| job.class).collect::<Vec<_>>(), [0, 0, 1]);
    let start = it.jobs()[2];
    assert_eq!(
        (start.startup, start.longest_startup, it.startup(2, 9)),
        (Millis::secs(7), Millis::secs(7), Millis::secs(7))
    );
    assert!(it.one_type().is_some() && known(&[], "1xT4+1xH200", SharingMode::Mps).one_type().is_none());
}

fn rules() -> impl Strategy<Value = Rules> {
    let placement = prop::sample::select(Placement::ALL.to_vec());
    (0.0..1.0, -0.5..1.0, 1_usize..6, placement, prop_oneof![Just(0), Just(usize::MAX)]).prop_map(
        |(floor, gain, most, placement, passed)| Rules { floor, gain, most, placement, passed, values: None },
    )
}

proptest! {
    /// All jobs complete at the first attempt, none earlier than alone, and the same list gives the same bytes
    /// whatever was asked of the rates before.
    #[test]
    fn everybody_completes(
        jobs in prop::collection::vec((0_u64..500, 1_u64..900, 1_u32..3, 0_usize..3), 1..12),
        rules in rules(), shuffle in any::<u64>(), slices in any::<bool>(),
    ) {
        let tasks = [task("a", 9000, 0.3, 5), task("b", 17_000, 0.8, 20), task("c", 500, 0.1, 1)];
        let mut jobs: Vec<_> = jobs.iter().map(|(at, time, gpus, task)| (*at, *time, *gpus, &tasks[*task])).collect();
        jobs.sort_by_key(|job| job.0);
        let sharing = if slices { SharingMode::TimeSlice } else { SharingMode::Mps };
        let known = known(&jobs, "2xA100-40GB", sharing);
        let mut order: Vec<u32> = (0..jobs.len() as u32).collect();
        order.sort_by_key(|job| u64::from(*job + 1).wrapping_mul(shuffle | 1));
        let mut rates = Rates::default();
        let first = play(&known, &mut rates, &order, &rules);
        prop_assert_eq!(first.summary.completed, jobs.len() as u64);
        for (job, it) in first.jobs.iter().zip(known.jobs()) {
            prop_assert_eq!(job.attempts, 1);
            prop_assert!(job.end.unwrap() >= it.arrival + it.solo);
        }
        prop_assert_eq!(&play(&known, &mut rates, &order, &rules), &first);
        prop_assert_eq!(&play(&known, &mut Rates::default(), &order, &rules), &first);
    }
}

//! What holds for all baselines, and what each does in the smallest cases, worked out by hand.

use super::*;
use crate::event::engine::Engine;
use crate::event::outcome::{End, RunResult};
use crate::event::{self, simulate};
use crate::trace::{self, Activity, Catalogue, CatalogueTask, WorkJob};
use carma_core::policy::presets;
use carma_core::units::{MiB, Millis};
use carma_hardware::GpuTypes;
use proptest::prelude::*;
use std::path::Path;
use std::sync::Arc;

/// A kind of job that has no start-up: its memory in MiB, GRACT and SMACT.
pub(super) fn task(name: &str, memory: u64, gract: f64, smact: f64) -> Arc<CatalogueTask> {
    Arc::new(CatalogueTask {
        name: name.into(),
        memory: vec![MiB(memory)],
        activity: Activity { gract: Some(gract), smact: Some(smact), ..Activity::default() },
        startup: Some(Millis::ZERO),
        // They never wait for an answer: what is tested here are schedulers.
        steps_per_s: Some(0.0),
        ..CatalogueTask::default()
    })
}

/// Jobs by arrival and duration, in seconds, and their tasks.
pub(super) fn workload(jobs: &[(u64, u64, u32, &Arc<CatalogueTask>)]) -> Workload {
    let job =
        |(line, (arrival, duration, gpus, task)): (usize, &(u64, u64, u32, &Arc<CatalogueTask>))| WorkJob {
            threads: None,
            line: line as u64,
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
        jobs: jobs.iter().enumerate().map(job).collect(),
        notes: Vec::new(),
    }
}

pub(super) fn cluster(spec: &str) -> Cluster {
    Cluster::parse(spec, &GpuTypes::built_in()).unwrap()
}

pub(super) fn play(baseline: Baseline, workload: &Workload, spec: &str, sharing: SharingMode) -> RunResult {
    let setup = Setup::for_baseline(baseline, sharing, 1);
    event::play(workload, &cluster(spec), &setup, &|_| ()).unwrap()
}

/// When each job ended, seconds.
pub(super) fn ends(result: &RunResult) -> Vec<f64> {
    result.jobs.iter().map(|job| job.end.map_or(f64::NAN, Millis::as_secs_f64)).collect()
}

fn close(result: &RunResult, expected: &[f64]) {
    let ends = ends(result);
    let close = ends.len() == expected.len() && ends.iter().zip(expected).all(|(a, b)| (a - b).abs() < 0.01);
    assert!(close, "{ends:?}, not {expected:?}");
}

#[test]
fn names_are_known_both_ways() {
    let names: Vec<&str> = Baseline::ALL.into_iter().map(Baseline::name).collect();
    assert_eq!(names, NAMES);
    for name in NAMES {
        assert_eq!(baseline(name).unwrap().to_string(), *name);
        assert!(presets::by_name(name).is_none() && not_task_level(name).is_none());
    }
    assert!(baseline("orion").is_none());
    assert!(not_task_level("orion").unwrap().to_string().contains("kernel launch"));
    assert!(not_task_level("nobody").is_none());
}

#[test]
fn miso_says_which_gpu_it_can_not_cut() {
    let check = |spec: &str| Baseline::Miso.check(&cluster(spec)).map_err(|e| e.to_string());
    assert!(check("1xA100-40GB+2xV100-32GB").unwrap_err().contains("V100-32GB (GPU 1) has no MIG"));
    assert!(check("1xA100-40GB/2x3g.20gb").unwrap_err().contains("an instance already"));
    assert_eq!(check("2xH200+1xA100-80GB"), Ok(()));
    assert_eq!(Baseline::Tgs.check(&cluster("1xV100-32GB")), Ok(()));
}

#[test]
fn none_of_them_is_played_on_exclusive_gpus() {
    let jobs = workload(&[(0, 10, 1, &task("small", 1000, 0.5, 0.2))]);
    for baseline in Baseline::ALL {
        let setup = Setup::for_baseline(baseline, SharingMode::Exclusive, 1);
        let refused = event::play(&jobs, &cluster("1xA100-40GB"), &setup, &|_| ()).unwrap_err();
        assert_eq!(refused.to_string(), format!("{baseline} shares GPUs: --sharing mps or time-slice"));
    }
}

/// SM demand 0.5 + 0.5 is less than the 1.15 that MPS has: neither slows down, the packing stays.
#[test]
fn gandiva_keeps_a_packing_that_pays() {
    let half = task("half", 1000, 0.5, 0.5);
    let jobs = workload(&[(0, 1000, 1, &half), (0, 1000, 1, &half)]);
    let result = play(Baseline::Gandiva, &jobs, "1xCUSTOM-40GB", SharingMode::Mps);
    // Kernels that each fill all SMs half of the time wait for each other now and then.
    assert!(ends(&result).iter().all(|end| (1000.0..1200.0).contains(end)), "{:?}", ends(&result));
    assert_eq!(result.summary.preemptions, 0);
}

/// Time-sliced, two full tasks run at half speed each: after 60 s, of which each got 30, the newcomer
/// goes, and this pair is not tried again.
#[test]
fn gandiva_undoes_a_packing_that_does_not_pay() {
    let full = task("full", 1000, 1.0, 1.0);
    let jobs = workload(&[(0, 1000, 1, &full), (0, 1000, 1, &full), (100, 1000, 1, &full)]);
    let result = play(Baseline::Gandiva, &jobs, "1xCUSTOM-40GB", SharingMode::TimeSlice);
    close(&result, &[1030.0, 2000.0, 3000.0]);
    assert_eq!(result.summary.preemptions, 1);
}

/// Memory fits only on the busier GPU.
#[test]
fn gandiva_packs_where_memory_fits() {
    let (large, small) = (task("large", 30_000, 0.1, 0.1), task("small", 1000, 0.5, 0.5));
    let jobs = workload(&[(0, 1000, 1, &large), (0, 1000, 1, &small), (10, 1000, 1, &large)]);
    let result = play(Baseline::Gandiva, &jobs, "2xCUSTOM-40GB", SharingMode::Mps);
    let ends = ends(&result);
    assert!(ends[0] == 1000.0 && (1010.0..1050.0).contains(&ends[2]), "{ends:?}");
    assert_eq!(result.stretches.iter().find(|s| s.job == 2).unwrap().gpus, [1]);
}

/// Under MPS two full tasks run at 1.15 / 2 each: a pair all of the time.
#[test]
fn gavel_pairs_what_pays() {
    let full = task("full", 1000, 1.0, 1.0);
    let jobs = workload(&[(0, 1000, 1, &full), (0, 1000, 1, &full)]);
    let result = play(Baseline::Gavel, &jobs, "1xCUSTOM-40GB", SharingMode::Mps);
    close(&result, &[1000.0 / 0.575, 1000.0 / 0.575]);
}

/// Time-sliced a pair gains nothing: the two take turns, in rounds of 360 s. The first is taken off
/// after one; then both have had as much, and the job that is on the GPU stays.
#[test]
fn gavel_takes_turns_in_rounds() {
    let full = task("full", 1000, 1.0, 1.0);
    let jobs = workload(&[(0, 720, 1, &full), (0, 720, 1, &full)]);
    let result = play(Baseline::Gavel, &jobs, "1xCUSTOM-40GB", SharingMode::TimeSlice);
    close(&result, &[1440.0, 1080.0]);
    assert_eq!(result.summary.preemptions, 1);
    // A job that comes within a round waits for the next.
    let jobs = workload(&[(0, 720, 1, &full), (100, 100, 1, &full)]);
    let result = play(Baseline::Gavel, &jobs, "2xCUSTOM-40GB", SharingMode::TimeSlice);
    close(&result, &[720.0, 460.0]);
}

/// 4g and 3g give both their full speed; the one that ran waits for the cut with the other.
#[test]
fn miso_cuts_for_who_comes() {
    let (small, large) = (task("small", 1000, 0.5, 0.2), task("large", 1000, 0.6, 0.3));
    let jobs = workload(&[(0, 1000, 1, &small), (100, 1000, 1, &large)]);
    let result = play(Baseline::Miso, &jobs, "1xA100-40GB", SharingMode::Mps);
    close(&result, &[1004.0, 1104.0]);
    assert_eq!(result.summary.preemptions, 1);
}

/// A job of two GPUs gets two whole ones. They are held for it, and others pass it elsewhere.
#[test]
fn miso_holds_gpus_for_the_first_without_room() {
    let small = task("small", 1000, 0.5, 0.2);
    let jobs = workload(&[
        (0, 1000, 1, &small),
        (0, 500, 1, &small),
        (0, 800, 1, &small),
        (10, 100, 2, &small),
        (20, 100, 1, &small),
    ]);
    let result = play(Baseline::Miso, &jobs, "3xA100-40GB", SharingMode::Mps);
    // GPUs 0 and 1 are held from 10 s on. Job 4 joins job 2 on GPU 2, which is cut for both and is made
    // whole again for job 3, as soon as it and GPU 1 are free.
    close(&result, &[1000.0, 500.0, 804.0, 908.0, 124.0]);
}

fn tiers(
    scheduler: fn(desk::Desk, u64) -> opportunistic::Tiers,
    jobs: &Workload,
    opportunistic: &[u32],
) -> RunResult {
    let cluster = cluster("1xCUSTOM-40GB");
    let setup = Setup::for_baseline(Baseline::AntMan, SharingMode::Mps, 1);
    let desk = desk::Desk::new(jobs, &cluster, SharingMode::Mps);
    let mut scheduler = scheduler(desk, 1).with(opportunistic);
    Engine::new(jobs, &cluster, &setup, &mut scheduler).run(&|_| ())
}

/// Of 1.15 the guaranteed job takes 0.6 and loses nothing; the other runs at 0.55 / 0.6, then alone.
#[test]
fn an_opportunistic_job_gets_what_is_left() {
    let half = task("half", 1000, 0.6, 0.6);
    let jobs = workload(&[(0, 1000, 1, &half), (0, 1000, 1, &half)]);
    // The guaranteed one comes first even where it came last. The other's kernels run in the 0.4 of the time in which it does
    // not: 0.6 of a second of them take 1.5, part of which passes while its host works.
    for (guaranteed, opportunistic) in [(0, 1), (1, 0)] {
        let ends = ends(&tiers(antman::scheduler, &jobs, &[opportunistic]));
        assert!((ends[guaranteed] - 1000.0).abs() < 0.1, "{ends:?}");
        assert!((1400.0..1500.0).contains(&ends[opportunistic as usize]), "{ends:?}");
    }
    // Two guaranteed jobs run one after the other.
    for scheduler in [antman::scheduler, tgs::scheduler] {
        close(&tiers(scheduler, &jobs, &[]), &[1000.0, 2000.0]);
    }
}

/// TGS finds what is left by the production job's rate: that one loses a little while it is found, and the other has less
/// than all of what is left.
#[test]
fn tgs_holds_the_opportunistic_job_back_until_the_other_keeps_its_pace() {
    let half = task("half", 1000, 0.6, 0.6);
    let jobs = workload(&[(0, 1000, 1, &half), (0, 1000, 1, &half)]);
    for (production, opportunistic) in [(0, 1), (1, 0)] {
        let ends = ends(&tiers(tgs::scheduler, &jobs, &[opportunistic]));
        let (production, opportunistic) = (ends[production], ends[opportunistic as usize]);
        // It keeps 98 % of its pace, and less while the rate is found.
        assert!((1000.0..=1025.0).contains(&production), "{ends:?}");
        // With all that is left it would end at 1433 s, with nothing at 2000 s.
        assert!((1433.0..1900.0).contains(&opportunistic), "{ends:?}");
    }
    // Where there is room for both, neither loses more than the slow start and kernels that meet now and then.
    let small = task("small", 1000, 0.2, 0.2);
    let both = ends(&tiers(tgs::scheduler, &workload(&[(0, 1000, 1, &small), (0, 1000, 1, &small)]), &[1]));
    assert!(both[0] < 1010.0 && both[1] < 1050.0, "{both:?}");
}

#[test]
fn antman_leaves_busy_gpus_alone_and_tgs_does_not() {
    let busy = task("busy", 1000, 0.9, 0.6);
    let jobs = workload(&[(0, 1000, 1, &busy), (0, 1000, 1, &busy)]);
    close(&tiers(antman::scheduler, &jobs, &[1]), &[1000.0, 2000.0]);
    let ends = ends(&tiers(tgs::scheduler, &jobs, &[1]));
    assert!(ends[0] < 1025.0 && ends[1] < 1300.0, "{ends:?}");
}

#[test]
fn an_opportunistic_job_gives_way_where_memory_is_short() {
    let (large, small) = (task("large", 30_000, 0.1, 0.1), task("small", 20_000, 0.1, 0.1));
    let jobs = workload(&[(0, 1000, 1, &large), (100, 1000, 1, &small)]);
    for scheduler in [antman::scheduler, tgs::scheduler] {
        let result = tiers(scheduler, &jobs, &[0]);
        close(&result, &[2000.0, 1100.0]);
        assert_eq!((result.summary.preemptions, result.summary.oom), (1, 0));
    }
}

/// GPUs of each job's first stretch.
fn places(result: &RunResult) -> Vec<Vec<u32>> {
    let mut stretches: Vec<_> = result.stretches.iter().collect();
    stretches.sort_by_key(|stretch| (stretch.job, stretch.start));
    stretches.dedup_by_key(|stretch| stretch.job);
    stretches.into_iter().map(|stretch| stretch.gpus.clone()).collect()
}

#[test]
fn sjf_bsbf_takes_the_shortest_first() {
    let large = task("large", 30_000, 0.1, 0.1);
    let jobs = workload(&[(0, 1000, 1, &large), (10, 800, 1, &large), (20, 300, 1, &large)]);
    let result = play(Baseline::SjfBsbf, &jobs, "1xCUSTOM-40GB", SharingMode::Mps);
    // Their memory does not fit together, however much they would gain.
    close(&result, &[1000.0, 2100.0, 1300.0]);
}

/// Time-sliced, two full tasks run at half speed each. A job of 100 s ends at 200 s instead of at 1000 s and delays
/// the other by 100 s; one of 1000 s would end when it would end anyway, and the other 900 s later.
#[test]
fn sjf_bsbf_shares_only_where_that_beats_waiting() {
    let full = task("full", 1000, 1.0, 1.0);
    let play = |second: u64| {
        let jobs = workload(&[(0, 1000, 1, &full), (100, second, 1, &full)]);
        play(Baseline::SjfBsbf, &jobs, "1xCUSTOM-40GB", SharingMode::TimeSlice)
    };
    close(&play(100), &[1100.0, 300.0]);
    close(&play(1000), &[1000.0, 2000.0]);
    // 900 s are left of the first: the bound is twice the run time.
    close(&play(449), &[1449.0, 998.0]);
    close(&play(451), &[1000.0, 1451.0]);
}

#[test]
fn sjf_bsbf_joins_whom_it_gains_most_with() {
    let (small, full) = (task("small", 1000, 0.2, 0.2), task("full", 1000, 1.0, 1.0));
    // Beside the full one it is slower and slows more.
    let jobs = workload(&[(0, 1000, 1, &full), (0, 1000, 1, &small), (10, 100, 1, &small)]);
    let result = play(Baseline::SjfBsbf, &jobs, "2xCUSTOM-40GB", SharingMode::Mps);
    assert_eq!(places(&result), [[0], [1], [1]]);
    // Of alike partners, the one for which it would wait longer.
    let jobs = workload(&[(0, 1000, 1, &small), (0, 2000, 1, &small), (10, 100, 1, &small)]);
    let result = play(Baseline::SjfBsbf, &jobs, "2xCUSTOM-40GB", SharingMode::Mps);
    assert_eq!(places(&result), [[0], [1], [1]]);
    assert_eq!(result.summary.preemptions, 0);
}

#[test]
fn sjf_bsbf_has_two_jobs_on_a_gpu_at_most() {
    let tiny = task("tiny", 1000, 0.05, 0.05);
    let jobs = workload(&[(0, 1000, 1, &tiny), (0, 1000, 1, &tiny), (0, 1000, 1, &tiny)]);
    let result = play(Baseline::SjfBsbf, &jobs, "1xCUSTOM-40GB", SharingMode::Mps);
    let ends = ends(&result);
    assert!(ends[1] < 1010.0 && ends[2] > 1999.0, "{ends:?}");
}

/// A job of two GPUs takes the idle one and that of a partner. Neither has GPUs for itself then, and the job that comes next
/// waits until one of them is alone, which it has not been before.
#[test]
fn sjf_bsbf_joins_on_some_gpus_and_is_idle_on_none() {
    let tiny = task("tiny", 1000, 0.05, 0.05);
    let jobs = workload(&[(0, 500, 1, &tiny), (10, 1000, 2, &tiny), (20, 2000, 1, &tiny)]);
    let result = play(Baseline::SjfBsbf, &jobs, "2xCUSTOM-40GB", SharingMode::Mps);
    let mut of_two = places(&result)[1].clone();
    of_two.sort_unstable();
    assert_eq!(of_two, [0, 1]);
    let starts: Vec<u64> = result.jobs.iter().map(|job| job.first_start.unwrap().0 / 1000).collect();
    assert_eq!(starts[..2], [0, 10]);
    assert!((500..=501).contains(&starts[2]), "{starts:?}");
}

/// A job that has found one of two partners remembers it, and starts when the other comes to be alone.
#[test]
fn sjf_bsbf_gathers_partners() {
    let tiny = task("tiny", 1000, 0.05, 0.05);
    let jobs =
        workload(&[(0, 2000, 1, &tiny), (0, 2500, 1, &tiny), (10, 500, 1, &tiny), (20, 600, 2, &tiny)]);
    let result = play(Baseline::SjfBsbf, &jobs, "2xCUSTOM-40GB", SharingMode::Mps);
    assert_eq!(places(&result)[..3], [[0], [1], [1]]);
    assert!((510..=511).contains(&(result.jobs[3].first_start.unwrap().0 / 1000)), "{:?}", result.jobs[3]);
}

/// GPUs in use come first, the most utilised first, up to the bound; then idle ones.
#[test]
fn eaco_packs_onto_the_most_utilised_gpu_within_the_bound() {
    let [most, more, some, little] = [0.7, 0.6, 0.5, 0.1].map(|gract| task("any", 1000, gract, 0.01));
    let jobs = workload(&[
        (0, 1000, 1, &most),
        (10, 1000, 1, &more),
        (20, 1000, 1, &little),
        (90, 1000, 1, &some),
        (160, 1000, 1, &most),
    ]);
    let result = play(Baseline::Eaco, &jobs, "4xCUSTOM-40GB", SharingMode::Mps);
    // 0.6 is too much beside 0.7, 0.1 is not; then 0.5 is too much beside 0.8 and not beside 0.6.
    assert_eq!(places(&result), [[0], [1], [0], [1], [2]]);
    // So does memory bound it.
    let large = task("large", 30_000, 0.1, 0.01);
    let jobs = workload(&[(0, 1000, 1, &large), (10, 1000, 1, &large)]);
    let result = play(Baseline::Eaco, &jobs, "2xCUSTOM-40GB", SharingMode::Mps);
    assert_eq!(places(&result), [[0], [1]]);
}

#[test]
fn eaco_watches_one_newcomer_at_a_time() {
    let tiny = task("tiny", 1000, 0.05, 0.05);
    let jobs = workload(&[(0, 1000, 1, &tiny), (0, 1000, 1, &tiny), (0, 1000, 1, &tiny)]);
    let result = play(Baseline::Eaco, &jobs, "1xCUSTOM-40GB", SharingMode::Mps);
    let starts: Vec<u64> = result.jobs.iter().map(|job| job.first_start.unwrap().0 / 1000).collect();
    assert_eq!(starts, [0, 0, 60]);
    assert_eq!(result.summary.preemptions, 0);
}

/// Time-sliced, a full task runs at 0.72 of its speed beside one that needs a fifth of the time. When it is half done,
/// it meets its deadline nevertheless; when it has just begun, it would not.
#[test]
fn eaco_undoes_what_misses_a_deadline_and_remembers_it() {
    let (full, light) = (task("full", 1000, 1.0, 1.0), task("light", 1000, 0.2, 0.2));
    let play = |second: u64, third: u64| {
        let jobs = workload(&[(0, 1000, 1, &full), (second, 1000, 1, &light), (third, 1000, 1, &light)]);
        play(Baseline::Eaco, &jobs, "1xCUSTOM-40GB", SharingMode::TimeSlice)
    };
    let kept = play(500, 5000);
    assert_eq!(kept.summary.preemptions, 0);
    assert!(ends(&kept)[0] < 1200.0 && ends(&kept)[1] < 1530.0, "{:?}", ends(&kept));
    // After 60 s the second is taken off; it goes on, and the third comes, when the first has ended.
    let undone = play(100, 600);
    let ends = ends(&undone);
    assert_eq!(undone.summary.preemptions, 1);
    assert!((1015.0..1018.0).contains(&ends[0]), "{ends:?}");
    assert!((1956.0..1980.0).contains(&ends[1]) && ends[2] > 2015.0, "{ends:?}");
}

/// What a job waits, and loads again, does not count against its deadline: it was taken off and shares again.
#[test]
fn eaco_counts_time_on_gpus_only() {
    let (full, light) = (task("full", 1000, 1.0, 1.0), task("light", 1000, 0.2, 0.2));
    let slow = Arc::new(CatalogueTask { startup: Some(Millis::secs(400)), ..(*light).clone() });
    let jobs = workload(&[(0, 3000, 1, &full), (0, 1000, 1, &slow), (0, 1000, 1, &light)]);
    let result = play(Baseline::Eaco, &jobs, "1xCUSTOM-40GB", SharingMode::TimeSlice);
    // Both were tried beside the first, the third only where it was another set: they have one name.
    assert_eq!(result.summary.preemptions, 1);
    // From 3000 s on the two share.
    let last = result.stretches.iter().filter(|stretch| stretch.how == End::Completed);
    assert_eq!(last.filter(|stretch| stretch.start > Millis::secs(3000)).count(), 2);
}

/// What it lost to earlier neighbours counts: 17 s to the first, before that was undone. The third costs it 31 s, and it
/// may lose 40.
#[test]
fn eaco_adds_up_what_a_job_has_lost() {
    let (full, light) = (task("full", 1000, 1.0, 1.0), task("light", 1000, 0.2, 0.2));
    let mild = task("mild", 1000, 0.1, 0.1);
    let jobs = workload(&[(0, 160, 1, &light), (0, 200, 1, &full), (100, 2000, 1, &mild)]);
    let result = play(Baseline::Eaco, &jobs, "1xCUSTOM-40GB", SharingMode::TimeSlice);
    assert_eq!(result.jobs[1].attempts, 3, "{:?}", result.stretches);
}

/// A job that can't meet its deadline any more does not keep jobs away that cost it nothing.
#[test]
fn eaco_blames_only_who_slows_a_job_down() {
    let (full, none) = (task("full", 30_000, 1.0, 1.0), task("none", 1000, 0.0, 0.0));
    let wide = task("wide", 1000, 0.2, 0.2);
    let loads = task("loads", 30_000, 0.2, 0.2);
    let loads = Arc::new(CatalogueTask { startup: Some(Millis::secs(400)), ..(*loads).clone() });
    let jobs =
        workload(&[(0, 600, 1, &full), (0, 2000, 1, &loads), (10, 3000, 2, &wide), (500, 1000, 1, &none)]);
    let result = play(Baseline::Eaco, &jobs, "2xCUSTOM-40GB", SharingMode::TimeSlice);
    // The third slows the first down unseen while the second loads.
    assert!(result.jobs[2].attempts > 1 && ends(&result)[0] > 720.0, "{:?}", result.stretches);
    assert_eq!((result.jobs[3].attempts, &places(&result)[3]), (1, &vec![0]));
}

/// Every stretch has as many GPUs as its job, of which it is on no others meanwhile.
fn check(result: &RunResult, jobs: &Workload) {
    let summary = &result.summary;
    assert!(summary.energy_j.is_finite() && summary.energy_j > 0.0);
    let mut by_job: Vec<Vec<&crate::event::outcome::Stretch>> = vec![Vec::new(); jobs.jobs.len()];
    for stretch in &result.stretches {
        by_job[stretch.job as usize].push(stretch);
    }
    for ((job, outcome), stretches) in jobs.jobs.iter().zip(&result.jobs).zip(&mut by_job) {
        stretches.sort_by_key(|s| s.start);
        for stretch in &*stretches {
            let mut gpus = stretch.gpus.clone();
            gpus.sort_unstable();
            gpus.dedup();
            assert_eq!(gpus.len(), job.gpus as usize, "{stretch:?}");
            assert!(stretch.start >= job.arrival);
        }
        assert!(stretches.windows(2).all(|pair| pair[0].end <= pair[1].start), "{stretches:?}");
        let completed = stretches.iter().filter(|s| s.how == End::Completed).count();
        assert_eq!(completed, usize::from(outcome.end.is_some()));
        if let (Some(end), Some(last)) = (outcome.end, stretches.last()) {
            assert!(last.end == end && last.how == End::Completed);
        }
    }
}

fn any_job() -> impl Strategy<Value = (u64, u64, u32, Arc<CatalogueTask>)> {
    let gib = prop_oneof![3 => 0_u64..12, 1 => 12_u64..50];
    let shares = (0.01..=1.0_f64, 0.0..=1.0_f64, 0.0..=0.7_f64, 0.0..=1.0_f64);
    let startup = prop_oneof![Just(None), Just(Some(0)), (1_u64..600).prop_map(Some)];
    let gpus = prop_oneof![4 => Just(1_u32), 1 => 2_u32..=4];
    (0_u64..4000, 1_u64..4000, gpus, gib, shares, startup, any::<bool>()).prop_map(
        |(arrival, duration, gpus, gib, (gract, smact, drama, tensor), startup, steps)| {
            let task = CatalogueTask {
                name: format!("t{}", gib % 5).into(),
                memory: vec![MiB::gib(gib)],
                memory_over_time: if steps { vec![(0.0, 0.3), (0.5, 1.0)] } else { Vec::new() },
                activity: Activity {
                    gract: Some(gract.max(smact)),
                    smact: Some(smact),
                    drama: Some(drama),
                    tensor: Some(tensor.min(smact)),
                    ..Activity::default()
                },
                startup: startup.map(Millis::secs),
                ..CatalogueTask::default()
            };
            (arrival, duration, gpus, Arc::new(task))
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn every_job_that_fits_completes(
        mut jobs in prop::collection::vec(any_job(), 1..16),
        spec in prop_oneof![
            Just("1xA100-40GB"), Just("3xA100-40GB"), Just("1xA100-40GB+2xH200"), Just("3xV100-16GB"),
            Just("1xA100-40GB/3x2g.10gb"), Just("1xV100-16GB+1xH200"),
        ],
        time_slice in any::<bool>(),
        seed in any::<u64>(),
    ) {
        jobs.sort_by_key(|job| job.0);
        let jobs: Vec<_> = jobs.iter().map(|(arrival, d, gpus, task)| (*arrival, *d, *gpus, task)).collect();
        let jobs = workload(&jobs);
        let cluster = cluster(spec);
        let sharing = if time_slice { SharingMode::TimeSlice } else { SharingMode::Mps };
        let fits = |job: &&WorkJob| {
            let large = cluster.devices().iter().filter(|d| job.task.memory[0] <= MiB(d.gpu.memory_mib)).count();
            large >= job.gpus as usize
        };
        let fit = jobs.jobs.iter().filter(fits).count() as u64;
        for baseline in Baseline::ALL.into_iter().filter(|baseline| baseline.check(&cluster).is_ok()) {
            let setup = Setup::for_baseline(baseline, sharing, seed);
            let run = || event::play(&jobs, &cluster, &setup, &|_| ()).unwrap();
            let result = run();
            prop_assert_eq!((baseline, result.summary.completed), (baseline, fit));
            prop_assert_eq!((baseline, result.summary.oom), (baseline, 0));
            if fit > 0 {
                check(&result, &jobs);
            }
            prop_assert_eq!(&result, &run());
        }
    }
}

/// The traces of the CARMA evaluation, all baselines against exclusive. Prints a table.
#[test]
fn all_of_the_carma_evaluations_jobs_complete() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/carma");
    let Ok(catalogue) = Catalogue::read_file(&data.join("workloads.csv")) else {
        println!("skipped: {} is not there", data.display());
        return;
    };
    let cluster = cluster("4xA100-40GB");
    for name in ["philly_trace-t1", "philly_trace-t2"] {
        let file = data.join("philly_evaluation_arrivals.csv");
        let trace = trace::read::trace_file(&file, Some(name)).unwrap();
        let jobs = Workload::resolve(&trace, Some(&catalogue)).unwrap();
        let core = |name: &str| {
            let setup = Setup::new(presets::by_name(name).unwrap(), SharingMode::Mps, None, 1);
            simulate(&jobs, &cluster, &setup, &|_| ())
        };
        let base = core("exclusive");
        let baselines = Baseline::ALL.into_iter().map(|baseline| {
            let setup = Setup::for_baseline(baseline, SharingMode::Mps, 1);
            event::play(&jobs, &cluster, &setup, &|_| ()).unwrap()
        });
        let results: Vec<RunResult> = [base.clone(), core("carma")].into_iter().chain(baselines).collect();
        println!("{name}: {} jobs, modelled, not measured", jobs.jobs.len());
        for result in results {
            let (s, b) = (&result.summary, &base.summary);
            println!(
                "{:10} makespan {:6.0} {:.3}  wait {:6.0} {:.3}  exec {:5.0} {:.3}  JCT {:6.0} {:.3}  p95 JCT {:.3}  energy {:.3}  preempted {:3}  OOM {}  events {}",
                result.policy,
                s.makespan_s,
                s.makespan_s / b.makespan_s,
                s.wait_s.mean,
                s.wait_s.mean / b.wait_s.mean,
                s.exec_s.mean,
                s.exec_s.mean / b.exec_s.mean,
                s.jct_s.mean,
                s.jct_s.mean / b.jct_s.mean,
                s.jct_s.p95 / b.jct_s.p95,
                s.energy_j / b.energy_j,
                s.preemptions,
                s.oom,
                result.events,
            );
            assert_eq!(s.completed, jobs.jobs.len() as u64, "{}", result.policy);
            check(&result, &jobs);
        }
    }
}

/// What a trace says of jobs without naming their tasks makes them no task in common.
#[test]
fn jobs_of_unnamed_tasks_are_told_apart() {
    let mut text = String::from("job,arrival_s,duration_s,memory_mib,gract,smact,drama\n");
    (0..2).for_each(|n| text += &format!("h{n},{n},3000,1000,.95,.9,.5\n"));
    (0..6).for_each(|n| text += &format!("l{n},{},1000,1000,.1,.1,.1\n", 4000 + n));
    let read = |text: &str| {
        let trace = trace::read::trace(text.as_bytes(), Path::new("t.csv"), None).unwrap();
        Workload::resolve(&trace, None).unwrap()
    };
    let unnamed = read(&text);
    assert!(unnamed.jobs.iter().all(|job| job.task.name.is_empty()));
    let result = play(Baseline::Gandiva, &unnamed, "1xA100-40GB", SharingMode::TimeSlice);
    // That the heavy ones would not do says nothing of the light ones.
    assert!(result.summary.jobs_per_gpu > 2.0, "{:?}", result.summary);
}

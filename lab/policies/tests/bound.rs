//! No policy beats the bounds, and no set of jobs makes more than they take it to make.

#![allow(clippy::unwrap_used, reason = "a test that fails says so by panicking")]

use carma_core::model::SharingMode;
use carma_core::policy::presets;
use carma_core::units::{MiB, Millis};
use carma_hardware::GpuTypes;
use carma_lab_policies::bound::{Bounds, Starts};
use carma_lab_policies::search::{Budget, Objective, search};
use carma_sim::event::baselines::Baseline;
use carma_sim::event::clairvoyant::{Known, Placement, Rates, Rules, play};
use carma_sim::event::outcome::RunResult;
use carma_sim::event::{Cluster, Setup, play as simulate};
use carma_sim::trace::{Activity, CatalogueTask, WorkJob, Workload};
use proptest::prelude::*;
use std::sync::Arc;

fn tasks() -> impl Strategy<Value = CatalogueTask> {
    let share = || prop_oneof![3 => 0.02..0.99_f64, 1 => 0.02..0.3_f64];
    let memory = prop_oneof![3 => 200_u64..6_000, 2 => 3_000_u64..20_000, 1 => 15_000_u64..50_000];
    let startup = prop_oneof![Just(None), (0_u64..60_000).prop_map(|ms| Some(Millis(ms)))];
    let over_time = prop_oneof![3 => Just(Vec::new()), 1 => Just(vec![(0.0, 0.4), (0.5, 1.0)])];
    let steps = prop_oneof![Just(None), Just(Some(0.0)), (1.0..2000.0_f64).prop_map(Some)];
    let weight = prop_oneof![2 => Just(None), 1 => (0.2..5.0_f64).prop_map(Some)];
    let more = (0.0..0.6_f64, 0.0..0.9_f64, 0.0..0.5_f64, prop::option::of(0.0..0.5_f64));
    (memory, share(), more, startup, over_time, steps, weight).prop_map(
        |(memory, sm, (dram, tensor, pcie, host), startup, memory_over_time, steps_per_s, mps_weight)| {
            CatalogueTask {
                name: format!("{memory} {sm}").into(),
                memory: vec![MiB(memory)],
                memory_over_time,
                activity: Activity {
                    gract: host.map(|host| (sm + host).min(1.0)),
                    smact: Some(sm),
                    drama: Some(dram * sm),
                    tensor: Some(tensor * sm),
                    pcie: Some(pcie),
                    ..Activity::default()
                },
                startup,
                steps_per_s,
                mps_weight,
                ..CatalogueTask::default()
            }
        },
    )
}

fn workloads() -> impl Strategy<Value = Workload> {
    let arrival = prop_oneof![1 => Just(0_u64), 1 => 0_u64..3_600_000];
    let gpus = prop_oneof![4 => Just(1_u32), 1 => Just(2)];
    let job = (arrival, 60_000_u64..5_000_000, gpus, any::<prop::sample::Index>());
    let tasks = prop::collection::vec(tasks().prop_map(Arc::new), 1..7);
    (tasks, prop::collection::vec(job, 1..14)).prop_map(|(tasks, mut jobs)| {
        jobs.sort_by_key(|job| job.0);
        let jobs = (1..).zip(jobs).map(|(line, (arrival, duration, gpus, task))| WorkJob {
            threads: None,
            line,
            id: line.to_string().into(),
            arrival: Millis(arrival),
            duration: Millis(duration),
            gpus,
            user: 0,
            task: Arc::clone(task.get(&tasks)),
        });
        Workload { name: "random".into(), users: vec!["-".into()], jobs: jobs.collect(), notes: Vec::new() }
    })
}

fn clusters() -> impl Strategy<Value = Cluster> {
    let specs =
        vec!["1xA100-40GB", "2xA100-40GB", "3xA100-40GB", "2xH200", "1xV100-32GB", "2xT4", "2xCUSTOM-40GB"];
    prop::sample::select(specs).prop_map(|spec| Cluster::parse(spec, &GpuTypes::built_in()).unwrap())
}

fn modes() -> impl Strategy<Value = SharingMode> {
    prop::sample::select(vec![SharingMode::Mps, SharingMode::TimeSlice])
}

/// Every preset, every baseline that starts jobs on plain terms, and a few clairvoyant lists.
fn runs(known: &Known, sharing: SharingMode) -> Vec<RunResult> {
    let presets =
        presets::NAMES.iter().map(|name| Setup::new(presets::by_name(name).unwrap(), sharing, None, 1));
    // The others cut GPUs into instances, weigh jobs, or hold their kernels back.
    let baselines = [Baseline::Gandiva, Baseline::Gavel].into_iter();
    let baselines = baselines.map(|baseline| Setup::for_baseline(baseline, sharing, 1));
    let setups = presets.chain(baselines);
    let mut runs: Vec<RunResult> =
        setups.map(|setup| simulate(known.workload(), known.cluster(), &setup, &|_| ()).unwrap()).collect();
    let mut rates = Rates::default();
    let (mut arrival, mut shortest): (Vec<u32>, Vec<u32>) =
        ((0..known.jobs().len() as u32).collect(), (0..known.jobs().len() as u32).collect());
    shortest.sort_by_key(|job| known.jobs()[*job as usize].solo);
    arrival.reverse();
    for order in [&arrival, &shortest] {
        for (floor, gain, most, placement) in [
            (0.0, -1.0, 20, Placement::Tight),
            (0.3, 0.1, 4, Placement::Gain),
            (0.0, 0.0, 6, Placement::Roomy),
        ] {
            let rules = Rules { floor, gain, most, placement, ..Rules::default() };
            runs.push(play(known, &mut rates, order, &rules));
        }
    }
    runs
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn no_policy_beats_the_bounds(
        workload in workloads(), cluster in clusters(), sharing in modes(), largest in 1_usize..6,
    ) {
        let known = Known::new(&workload, &cluster, sharing, 1);
        let possible = known.jobs().iter().filter(|job| job.fits).count() as u64;
        let bounds = Bounds::listing(&known, largest).unwrap();
        let runs = runs(&known, sharing);
        let complete = |run: &&RunResult| run.summary.completed == possible && possible > 0;
        let Some(reached) = runs.iter().filter(complete).map(|run| run.summary.clone())
            .reduce(|a, b| if b.jct_s.mean < a.jct_s.mean { b } else { a }) else { return Ok(()) };
        let first = bounds.bound(Starts::First, &reached).unwrap();
        let any = bounds.bound(Starts::Any, &reached).unwrap();
        prop_assert!(any.makespan_s <= first.makespan_s * 1.0001 && first.makespan_s > 0.0 && first.energy_j > 0.0);
        for run in runs.iter().filter(complete) {
            let s = &run.summary;
            let bound = if s.oom + s.evictions + s.growth_guard == 0 { &first } else { &any };
            let ms = 0.002;
            prop_assert!(s.makespan_s >= bound.makespan_s - ms, "{}: {} < {}", run.policy, s.makespan_s, bound.makespan_s);
            prop_assert!(s.jct_s.mean >= bound.jct_s - ms, "{}: {} < {}", run.policy, s.jct_s.mean, bound.jct_s);
            prop_assert!(s.energy_j >= bound.energy_j * 0.99999, "{}: {} < {}", run.policy, s.energy_j, bound.energy_j);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// With few sets listed, the rows for larger ones hold for every set that fits.
    #[test]
    fn no_set_makes_more_than_it_is_taken_to_make(
        workload in workloads(), cluster in clusters(), sharing in modes(), largest in 1_usize..5,
        values in prop::collection::vec(0.0..1.0_f64, 8),
        picks in prop::collection::vec(prop::collection::vec(any::<prop::sample::Index>(), 1..14), 40),
    ) {
        let known = Known::new(&workload, &cluster, sharing, 1);
        let fitting: Vec<usize> = known.jobs().iter().filter(|job| job.fits).map(|job| job.class).collect();
        if fitting.is_empty() {
            return Ok(());
        }
        let (_, memory) = known.one_type().unwrap();
        let bounds = Bounds::listing(&known, largest).unwrap();
        let values: Vec<f64> = (0..known.classes().len()).map(|at| values[at % values.len()]).collect();
        let most = bounds.most(&values);
        let mut rates = Rates::default();
        for picks in picks {
            let mut left = memory.0;
            let mut jobs: Vec<usize> = picks.iter().map(|pick| pick.index(fitting.len())).collect();
            jobs.sort_unstable();
            jobs.dedup();
            jobs.retain(|job| {
                let least = known.classes()[fitting[*job]].least.0;
                let fits = least <= left;
                left -= if fits { least } else { 0 };
                fits
            });
            let mut set: Vec<u16> = jobs.iter().map(|job| fitting[*job] as u16).collect();
            set.sort_unstable();
            let shared = rates.of(&known, &set);
            let worth: f64 = set.iter().zip(&shared.progress).map(|(at, p)| values[*at as usize] * p).sum();
            prop_assert!(worth <= most * (1.0 + 1e-6), "{worth} > {most}: {set:?}");
        }
    }

    /// The more sets are listed the closer, and a search is never below.
    #[test]
    fn more_sets_are_closer_and_the_search_stays_above(workload in workloads(), cluster in clusters(), sharing in modes()) {
        let known = Known::new(&workload, &cluster, sharing, 1);
        let Some(exclusive) = carma_lab_policies::figures::exclusive(&workload, &cluster, 1) else { return Ok(()) };
        if known.jobs().iter().all(|job| !job.fits) {
            return Ok(());
        }
        let budget = Budget { evaluations: 60, seed: 3, threads: 1 };
        let found = search(&known, &exclusive, &Objective::ALL, None, &budget);
        prop_assert_eq!(&search(&known, &exclusive, &Objective::ALL, None, &Budget { threads: 3, ..budget }), &found);
        let (few, many) = (Bounds::listing(&known, 1).unwrap(), Bounds::new(&known).unwrap());
        let few = few.bound(Starts::First, &exclusive.summary).unwrap();
        let many = many.bound(Starts::First, &exclusive.summary).unwrap();
        prop_assert!(few.makespan_s <= many.makespan_s * 1.002, "{few:?} {many:?}");
        for it in &found {
            let s = &it.run.summary;
            prop_assert_eq!(s.not_completed, exclusive.summary.not_completed);
            prop_assert!(s.makespan_s >= many.makespan_s - 0.002 && s.jct_s.mean >= many.jct_s - 0.002);
            prop_assert!(s.energy_j >= many.energy_j * 0.99999);
        }
    }
}

fn one(memory: u64, sm: f64) -> Arc<CatalogueTask> {
    Arc::new(CatalogueTask {
        name: "one".into(),
        memory: vec![MiB(memory)],
        activity: Activity { gract: Some(sm), smact: Some(sm), ..Activity::default() },
        startup: Some(Millis::ZERO),
        steps_per_s: Some(0.0),
        ..CatalogueTask::default()
    })
}

fn at_once(count: usize, seconds: u64, task: &Arc<CatalogueTask>) -> Workload {
    let job = |line: usize| WorkJob {
        threads: None,
        line: line as u64,
        id: line.to_string().into(),
        arrival: Millis::ZERO,
        duration: Millis::secs(seconds),
        gpus: 1,
        user: 0,
        task: Arc::clone(task),
    };
    Workload {
        name: "at once".into(),
        users: vec!["-".into()],
        jobs: (0..count).map(job).collect(),
        notes: Vec::new(),
    }
}

fn bound(workload: &Workload, spec: &str, sharing: SharingMode) -> [f64; 2] {
    let cluster = Cluster::parse(spec, &GpuTypes::built_in()).unwrap();
    let known = Known::new(workload, &cluster, sharing, 1);
    let exclusive = carma_lab_policies::figures::exclusive(workload, &cluster, 1).unwrap();
    let bound = Bounds::new(&known).unwrap().bound(Starts::First, &exclusive.summary).unwrap();
    [bound.makespan_s, bound.jct_s]
}

/// Tasks that fill a GPU gain nothing: six of 100 s on two GPUs take 300 s, and end in the mean after 200 s at best, of which
/// the fluid bound knows all but what cutting jobs into parts saves.
#[test]
fn where_nothing_is_gained_the_bound_is_that_of_a_queue() {
    let full = one(30_000, 1.0);
    let [makespan, jct] = bound(&at_once(6, 100, &full), "2xCUSTOM-40GB", SharingMode::TimeSlice);
    assert!((makespan - 300.0).abs() < 0.1, "{makespan}");
    assert!((195.0..=200.0).contains(&jct), "{jct}");
    // Alone each is as fast as it can be.
    let [makespan, jct] = bound(&at_once(2, 100, &full), "2xCUSTOM-40GB", SharingMode::Mps);
    assert!((makespan - 100.0).abs() < 0.1 && (jct - 100.0).abs() < 0.1, "{makespan} {jct}");
}

/// Two that do not fit together can't be faster than one after the other, whatever the SMs would allow.
#[test]
fn memory_keeps_jobs_apart() {
    let large = one(30_000, 0.3);
    let [makespan, _] = bound(&at_once(4, 100, &large), "1xCUSTOM-40GB", SharingMode::Mps);
    assert!((makespan - 400.0).abs() < 0.1, "{makespan}");
}

#[test]
fn what_there_is_no_bound_for_is_said() {
    let mut workload = at_once(2, 100, &one(1000, 0.5));
    let no = |workload: &Workload, spec: &str| {
        let cluster = Cluster::parse(spec, &GpuTypes::built_in()).unwrap();
        let known = Known::new(workload, &cluster, SharingMode::Mps, 1);
        Bounds::new(&known).err().map(|e| e.to_string()).unwrap_or_default()
    };
    assert!(no(&workload, "1xT4+1xH200").contains("one type"));
    assert!(no(&workload, "1xA100-40GB/3g.20gb").contains("whole GPUs"));
    assert!(no(&workload, "2xT4").is_empty());
    workload.jobs[0].threads = Some(50);
    assert!(no(&workload, "2xT4").contains("threads"));
}

//! The bound on a job's start under `adaptive`, on random traces: how late a job may be, whatever else comes.
//!
//! What is stated in docs/fairness.md: while a job is the first of those over their bounds, its GPUs are kept. On each of
//! these the last job has some time left that it would take alone, and with true run times that is known. No job may join a
//! GPU that is kept, so that this time only gets shorter, and another GPU is kept in its place only where less is left. So
//! the job starts within the longest of these times over the least speed that neighbours leave a job. Time-sliced, jobs that have made
//! room for one before it come back before it: as much once more, and the time that they take off their GPUs and back.

use super::core::{CoreScheduler, id};
use super::engine::complete;
use super::knowledge::RunTimesKnown;
use super::scheduler::Decision;
use super::watched::{Notes, play};
use super::world::JobIndex;
use super::{Cluster, Setup};
use crate::trace::{Activity, CatalogueTask, WorkJob, Workload};
use carma_core::model::{Forecasts, JobId, SharingMode};
use carma_core::policy::{Objective, presets};
use carma_core::units::{Fraction, MiB, Millis};
use carma_hardware::GpuTypes;
use proptest::prelude::*;
use std::sync::Arc;

const GPUS: usize = 4;
const CLUSTER: &str = "4xA100-40GB";
/// A job of 40 GiB takes 29 s off its GPU, and 10 s back.
const MOVES: Millis = Millis::secs(39);

/// A job that is the first of those over their bounds.
#[derive(Debug, Clone, Copy)]
struct First {
    job: JobId,
    since: Millis,
}

/// A job that was the first of those over their bounds until it started.
#[derive(Debug)]
struct Wait {
    first: First,
    start: Millis,
}

/// How long those over their bounds waited.
#[derive(Default)]
struct Witness {
    /// The bound of each job when it came.
    bounds: Vec<Option<Millis>>,
    first: Option<First>,
    waits: Vec<Wait>,
}

impl Notes for Witness {
    fn came(&mut self, core: &CoreScheduler<'_>, now: Millis, job: JobIndex) {
        let state = &core.state;
        self.bounds.push(state.job(id(job)).and_then(|job| state.bound_on_start(job, now)));
    }

    fn decided(&mut self, core: &CoreScheduler<'_>, now: Millis, decisions: &[Decision]) {
        for decision in decisions {
            if let Decision::Start { job, .. } = decision
                && let Some(first) = self.first.take_if(|first| first.job == id(*job))
            {
                self.waits.push(Wait { first, start: now });
            }
        }
        // Who is the first of those over their bounds now.
        let state = &core.state;
        let head = state.queue().line(now).next().map(|(_, job)| job);
        let Some(job) = head.filter(|job| state.is_overdue(job, now)) else {
            self.first = None;
            return;
        };
        if self.first.is_none_or(|first| first.job != job.spec.id) {
            self.first = Some(First { job: job.spec.id, since: now });
        }
    }
}

fn activity(level: f64) -> Activity {
    let share = |part: f64| Some(level * part);
    Activity {
        gract: share(1.0),
        smact: share(0.8),
        smocc: share(0.3),
        drama: share(0.4),
        ..Activity::default()
    }
}

/// Jobs of one to three users, at a load of .6 to 3 of what the GPUs can do without sharing.
fn traces() -> impl Strategy<Value = Workload> {
    let tasks = prop::collection::vec((2_u64..34, 0.05..1.0), 1..6);
    let minutes = prop_oneof![3 => 1_u64..30, 1 => 30_u64..400];
    let gpus = prop_oneof![4 => Just(1_u32), 1 => 2_u32..=4];
    let job = (minutes, gpus, 0_u32..3, any::<prop::sample::Index>(), 0.0..1.0);
    let jobs = prop::collection::vec(job, 10..60);
    (tasks, jobs, 1_u32..=3, 0.6..3.0).prop_map(|(tasks, jobs, users, load)| {
        let tasks: Vec<_> = tasks
            .into_iter()
            .zip(0..)
            .map(|((gib, level), n)| {
                let memory = MiB::gib(gib);
                let forecasts = Forecasts { declared: Some(memory), ..Forecasts::default() };
                let (name, activity) = (format!("task {n}").into(), activity(level));
                Arc::new(CatalogueTask {
                    name,
                    memory: vec![memory],
                    activity,
                    forecasts,
                    ..CatalogueTask::default()
                })
            })
            .collect();
        let work: u64 = jobs.iter().map(|(minutes, gpus, ..)| minutes * 60_000 * u64::from(*gpus)).sum();
        let span = work as f64 / GPUS as f64 / load;
        let jobs = jobs.into_iter().map(|(minutes, gpus, user, task, at)| WorkJob {
            line: 0,
            id: "x".into(),
            arrival: Millis((at * span) as u64),
            duration: Millis::secs(60 * minutes),
            gpus,
            user: user % users,
            threads: None,
            task: Arc::clone(task.get(&tasks)),
        });
        let mut jobs: Vec<WorkJob> = jobs.collect();
        jobs.sort_by_key(|job| job.arrival);
        let users = (0..users).map(|user| format!("u{user}").into()).collect();
        Workload { name: "random".into(), users, jobs, notes: Vec::new() }
    })
}

/// When each job would start if all went in the order of arrival, each with its GPUs alone.
fn without_sharing(workload: &Workload) -> Vec<Millis> {
    let (mut free, mut last) = ([Millis::ZERO; GPUS], Millis::ZERO);
    let start = |job: &WorkJob| {
        free.sort_unstable();
        let gpus = job.gpus as usize;
        last = last.max(job.arrival).max(free[gpus - 1]);
        free[..gpus].fill(last + job.duration);
        last
    };
    workload.jobs.iter().map(start).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, max_shrink_iters: 400, ..ProptestConfig::default() })]

    #[test]
    fn the_first_of_those_over_their_bounds_starts_when_its_gpus_have_emptied(
        workload in traces(),
        sharing in prop::sample::select(vec![SharingMode::Mps, SharingMode::TimeSlice]),
    ) {
        let cluster = Cluster::parse(CLUSTER, &GpuTypes::built_in()).unwrap();
        let mut setup = Setup::new(presets::adaptive(Objective::Jct), sharing, None, 1);
        setup.knowledge.run_times = RunTimesKnown::True;
        let workload = complete(&workload, &cluster, sharing);
        let (run, witness) = play(&workload, &cluster, &setup, Witness::default());
        prop_assert_eq!(run.summary.not_completed, 0);
        let longest = workload.jobs.iter().map(|job| job.duration).max().unwrap_or_default();
        let slowest = setup.options.policy.progress.unwrap().dip();
        let most = Millis(longest.0 * u64::from(Fraction::ONE.0) / u64::from(slowest.0));
        let most = if sharing == SharingMode::Mps { most } else { most + most + MOVES };
        for wait in &witness.waits {
            prop_assert!(wait.start.since(wait.first.since) <= most, "{wait:?} {most}");
        }
        // Of one user alone the bound is the wait without sharing.
        if workload.users.len() == 1 {
            let bounds: Vec<_> = without_sharing(&workload).into_iter().map(Some).collect();
            prop_assert_eq!(witness.bounds, bounds);
        }
    }
}

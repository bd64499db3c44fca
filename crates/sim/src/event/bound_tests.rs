//! The bound on a job's start under `adaptive`, on random traces: how late a job may be, whatever else comes.
//!
//! What docs/fairness.md states ("How late a job may be"), and what of it is tested here:
//!
//! 1. **The first of those over their bounds.** Its GPUs are kept. On each of these the last job has some time left that it would
//!    take alone, and with true run times that is known. No job may join a GPU that is kept, but for one that is over in time, so that
//!    this time only gets shorter, and another GPU is kept in its place only where less is left. So the job starts within that time over
//!    the least speed that neighbours leave each of these jobs. Time-sliced, jobs that have made room for one before it come back before it: as much
//!    once more, and the time that they take off their GPUs and back.
//! 2. **Those behind it.** Each job before it may add as much, that is the longest run over the least speed. Where all users have
//!    the same share no job that comes to be over its bound later gets before it; where they have not, those of a user with a
//!    larger share may, and count as well.
//! 3. **Run times that are learned.** The docs promise nothing that could be computed beforehand: what is taken to be left may
//!    be anything, and bounds move. Tested is that each job starts, within twice of what 2 says from when it was last seen to
//!    be over its bound, and before two and a half times of when (a job has .4 of its speed at least) all would be done without sharing.
//! 4. **Jobs of unknown memory and activity, run times true.** As 2, and an attempt that ran out of memory comes back
//!    with the bound that it had, and counts once more for those that are then behind it. 1 does not hold for each single wait: the least speed
//!    is as predicted, and what is not known is assumed.
//!
//! In all of them each job is done in the end.

use super::core::{CoreScheduler, id, index};
use super::engine::complete;
use super::knowledge::{RunTimesKnown, TasksKnown};
use super::outcome::RunResult;
use super::scheduler::Decision;
use super::watched::{Notes, play};
use super::world::{JobIndex, World};
use super::{Cluster, Setup};
use crate::trace::{Activity, CatalogueTask, WorkJob, Workload};
use carma_core::State;
use carma_core::ledger::Gpu;
use carma_core::model::{Forecasts, Job, JobId, SharingMode};
use carma_core::policy::{Allowance, Objective, presets};
use carma_core::units::{MiB, Millis};
use carma_hardware::GpuTypes;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const GPUS: usize = 4;
const CLUSTER: &str = "4xA100-40GB";
/// A job of 40 GiB takes 29 s off its GPU, and 10 s back.
const MOVES: Millis = Millis::secs(39);
/// Clocks of users are in whole milliseconds: whose turn it is comes out so much late at most.
const TICKS: Millis = Millis(100);
/// Of the first user of a trace.
const FIRST_UID: u32 = 1000;

/// A job that was over its bound, until it started.
#[derive(Debug)]
struct Wait {
    job: JobId,
    /// Since when it was.
    since: Millis,
    /// Since when it was the first of those that were.
    first_since: Option<Millis>,
    /// Time that the last jobs on as many GPUs as it wants would then have taken at their least speed, those with the least left.
    empty_in: Millis,
    /// The longest that one so takes which was then off its GPUs, and comes back.
    off_for: Millis,
    start: Millis,
    /// Jobs that were over their bounds and before it when it came to be, by number and attempts.
    before: BTreeSet<(JobId, u32)>,
    /// Those that were before it at some time.
    ever_before: BTreeSet<(JobId, u32)>,
}

impl Wait {
    /// Whether it was no longer than each of these and the job itself may add.
    fn is_within(&self, each: Millis, before: &BTreeSet<(JobId, u32)>) -> bool {
        self.start.since(self.since) <= Millis(each.0 * (before.len() as u64 + 1))
    }
}

/// How long those over their bounds waited.
#[derive(Default)]
struct Witness {
    /// The bound of each job when it came.
    bounds: Vec<Option<Millis>>,
    /// When each job started first.
    starts: BTreeMap<JobId, Millis>,
    overdue: BTreeMap<JobId, Wait>,
    waits: Vec<Wait>,
}

impl Notes for Witness {
    fn came(&mut self, core: &CoreScheduler<'_>, now: Millis, job: JobIndex) {
        let state = &core.state;
        self.bounds.push(state.job(id(job)).and_then(|job| state.bound_on_start(job, now)));
    }

    fn decided(&mut self, core: &CoreScheduler<'_>, now: Millis, decisions: &[Decision], world: &World) {
        let state = &core.state;
        // On its user's clock, as the line goes.
        let turn = |job: &Job| (state.bound_on_start(job, now), job.spec.id);
        let mut started = Vec::new();
        for decision in decisions {
            let Decision::Start { job, .. } = decision else { continue };
            self.starts.entry(id(*job)).or_insert(now);
            started.extend(state.job(id(*job)).filter(|job| state.is_overdue(job, now)));
            self.waits.extend(self.overdue.remove(&id(*job)).map(|wait| Wait { start: now, ..wait }));
        }
        let line = state.queue().line(now).map(|(_, job)| job);
        let overdue: Vec<_> = line.take_while(|job| state.is_overdue(job, now)).collect();
        let mut before = BTreeSet::new();
        // Of those whose bounds have moved on meanwhile, nothing is left.
        let mut were = std::mem::take(&mut self.overdue);
        for job in overdue {
            let id = job.spec.id;
            let mut wait = if let Some(mut wait) = were.remove(&id) {
                // Where it came to be before this one, and started, in one plan.
                let overtook = started.iter().filter(|other| turn(other) < turn(job));
                let overtook: Vec<_> = overtook.map(|other| (other.spec.id, other.attempts - 1)).collect();
                if !overtook.is_empty() {
                    wait.first_since = None;
                }
                wait.ever_before.extend(overtook);
                wait
            } else {
                Wait {
                    job: id,
                    since: now,
                    first_since: None,
                    empty_in: Millis::ZERO,
                    off_for: Millis::ZERO,
                    start: now,
                    before: before.clone(),
                    ever_before: BTreeSet::new(),
                }
            };
            wait.ever_before.extend(&before);
            wait.first_since = wait.first_since.filter(|_| before.is_empty());
            if before.is_empty() && wait.first_since.is_none() {
                wait.first_since = Some(now);
                wait.empty_in = empty_in(state, now, world, job.spec.request.gpus);
                let off = state.halted().iter().map(|job| left(state, now, world, *job)).max();
                wait.off_for = off.unwrap_or_default();
            }
            self.overdue.insert(id, wait);
            before.insert((id, job.attempts));
        }
    }
}

/// Time that a job takes from now on at the least speed that neighbours leave it. One that joined at the lower floor may be left less than others.
fn left(state: &State, now: Millis, world: &World, job: JobId) -> Millis {
    let it = &world.jobs[index(job) as usize];
    // A job that has just been placed is not there yet.
    let alone = if it.gpus.is_empty() {
        Millis(it.solo)
    } else {
        Millis(world.left(now.0, index(job)).ceil() as u64 + it.startup)
    };
    let floor = state.job(job).and_then(|job| job.placement()?.floor);
    alone.at_speed(state.options().policy.progress.unwrap().with(floor).dip())
}

/// Time that the last job on each of so many GPUs so takes, of those with the least left.
fn empty_in(state: &State, now: Millis, world: &World, gpus: u32) -> Millis {
    let last = |gpu: &Gpu| gpu.tenants.iter().map(|tenant| left(state, now, world, tenant.job)).max();
    let mut lefts: Vec<Millis> = state.gpus().iter().map(|gpu| last(gpu).unwrap_or_default()).collect();
    lefts.sort_unstable();
    lefts[gpus as usize - 1]
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

/// When each job would start if all went in the order of arrival, each with its GPUs alone, and how much later it may be.
fn without_sharing(workload: &Workload) -> Vec<(Millis, Millis)> {
    let (mut free, mut last) = ([Millis::ZERO; GPUS], Millis::ZERO);
    let start = |job: &WorkJob| {
        free.sort_unstable();
        let gpus = job.gpus as usize;
        last = last.max(job.arrival).max(free[gpus - 1]);
        free[..gpus].fill(last + job.duration);
        let until = free.iter().copied().max().unwrap_or_default();
        let slack = if last > job.arrival { until.since(job.arrival).0 / 20 } else { 0 };
        (last, Millis(slack))
    };
    workload.jobs.iter().map(start).collect()
}

/// The longest run over the least speed that neighbours leave, and as much as that is time-sliced: what one job that goes first adds.
fn most_of_one(workload: &Workload, setup: &Setup) -> Millis {
    let longest = workload.jobs.iter().map(|job| job.duration).max().unwrap_or_default();
    let longest = longest.at_speed(setup.options.policy.progress.unwrap().dip());
    most(longest, longest, setup)
}

/// For so long a job waits for GPUs whose jobs take so long, and after which others come back that do.
fn most(there: Millis, back: Millis, setup: &Setup) -> Millis {
    match setup.options.sharing {
        SharingMode::Mps | SharingMode::Exclusive => there,
        SharingMode::TimeSlice => there + back + MOVES,
    }
}

fn sharing() -> impl Strategy<Value = SharingMode> {
    prop::sample::select(vec![SharingMode::Mps, SharingMode::TimeSlice])
}

/// What users' shares are.
fn shares() -> impl Strategy<Value = [u32; 3]> {
    prop_oneof![Just([1; 3]), prop::array::uniform3(1_u32..8)]
}

fn setup(sharing: SharingMode, run_times: RunTimesKnown, tasks: TasksKnown) -> Setup {
    let mut setup = Setup::new(presets::adaptive(Objective::Jct), sharing, None, 1);
    setup.knowledge.run_times = run_times;
    setup.knowledge.tasks = tasks;
    setup
}

/// Of users with these shares; all is known.
fn with_shares(sharing: SharingMode, shares: [u32; 3]) -> Setup {
    let mut setup = setup(sharing, RunTimesKnown::True, TasksKnown::Catalogue);
    let users = FIRST_UID..;
    setup.options.allowances.of =
        users.zip(shares).map(|(uid, share)| (uid, Allowance { share, ..Allowance::default() })).collect();
    setup
}

fn played(workload: &Workload, setup: &Setup) -> (RunResult, Witness) {
    let cluster = Cluster::parse(CLUSTER, &GpuTypes::built_in()).unwrap();
    let workload = complete(workload, &cluster, setup.options.sharing);
    play(&workload, &cluster, setup, Witness::default())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, max_shrink_iters: 400, ..ProptestConfig::default() })]

    #[test]
    fn the_first_of_those_over_their_bounds_starts_when_its_gpus_have_emptied(
        workload in traces(),
        sharing in sharing(),
        shares in shares(),
    ) {
        let setup = with_shares(sharing, shares);
        let (run, witness) = played(&workload, &setup);
        prop_assert_eq!(run.summary.not_completed, 0);
        for wait in &witness.waits {
            let Some(since) = wait.first_since else { continue };
            let most = most(wait.empty_in, wait.off_for, &setup) + TICKS;
            prop_assert!(wait.start.since(since) <= most, "{} of {most}: {wait:?}", wait.job);
        }
        // Of one user alone the bound is the wait without sharing, and a twentieth of what has come.
        if workload.users.len() == 1 {
            let bounds = without_sharing(&workload).into_iter().map(|(start, slack)| Some(start + slack));
            let bounds: Vec<_> = bounds.collect();
            prop_assert_eq!(witness.bounds, bounds);
        }
    }

    #[test]
    fn each_of_those_over_their_bounds_starts_after_those_before_it(
        workload in traces(),
        sharing in sharing(),
        shares in shares(),
    ) {
        let setup = with_shares(sharing, shares);
        let (run, witness) = played(&workload, &setup);
        prop_assert_eq!(run.summary.not_completed, 0);
        let each = most_of_one(&workload, &setup);
        let alike = shares[1..].iter().all(|share| *share == shares[0]);
        for wait in &witness.waits {
            let before = if alike { &wait.before } else { &wait.ever_before };
            prop_assert!(wait.is_within(each, before), "{} of {each} each: {wait:?}", wait.job);
            if alike {
                prop_assert!(wait.ever_before.is_subset(&wait.before), "{} of {each} each: {wait:?}", wait.job);
            }
        }
    }

    #[test]
    fn with_run_times_that_are_learned_nobody_starves(
        workload in traces(),
        sharing in sharing(),
        tasks in prop::sample::select(vec![TasksKnown::Catalogue, TasksKnown::Learned]),
    ) {
        let setup = setup(sharing, RunTimesKnown::Learned, tasks);
        let (run, witness) = played(&workload, &setup);
        prop_assert_eq!(run.summary.not_completed, 0);
        let each = most_of_one(&workload, &setup);
        for wait in &witness.waits {
            prop_assert!(wait.is_within(each + each, &wait.ever_before), "{} of {each} each: {wait:?}", wait.job);
        }
        let starts = without_sharing(&workload);
        let end = starts.iter().zip(&workload.jobs).map(|((start, _), job)| *start + job.duration).max().unwrap();
        prop_assert_eq!(witness.starts.len(), workload.jobs.len());
        for (job, start) in &witness.starts {
            prop_assert!(start.0 * 2 <= end.0 * 5, "{job:?} at {start}, all without sharing by {end}");
        }
    }

    #[test]
    fn jobs_of_unknown_memory_start_after_those_before_them(workload in traces(), sharing in sharing()) {
        let setup = setup(sharing, RunTimesKnown::True, TasksKnown::Learned);
        let (run, witness) = played(&workload, &setup);
        prop_assert_eq!(run.summary.not_completed, 0);
        let each = most_of_one(&workload, &setup);
        for wait in &witness.waits {
            prop_assert!(wait.is_within(each, &wait.ever_before), "{} of {each} each: {wait:?}", wait.job);
        }
    }
}

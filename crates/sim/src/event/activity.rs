//! What is learned of tasks' activity where nothing is said of it: of a task that was alone on its GPUs it is known, of others it is
//! assumed by what GPUs do under several, as in the daemon.

use super::core::index;
use super::knowledge::Known;
use super::outlooks::FromTrace;
use super::world::{JobIndex, Stage, World};
use crate::trace::Workload;
use carma_core::State;
use carma_core::model::{GpuId, Job};
use carma_core::units::Millis;
use carma_interference::assumed::{Going, Guess};
use carma_interference::online::SlowdownModel;
use carma_interference::outlook::{self, ASSUME_WINDOW, PROFILE, SETTLING, Together, WARM_UP};
use std::collections::{BTreeMap, BTreeSet};

/// Steps after which what is assumed of jobs that are together has come to rest: each goes half of the way.
const MOST_STEPS: u64 = 10;

/// A speed that a job kept for so long it may be compared with, as in the daemon.
const SPRINT: Millis = Millis::secs(4);

/// What is assumed, by command.
pub(super) type Guesses = BTreeMap<u64, Guess>;

/// Jobs at work on a GPU.
#[derive(Debug, Default)]
struct Group {
    members: Vec<JobIndex>,
    /// The command of the one job that is there, if none is beside it on its other GPUs either.
    alone: Option<u64>,
    since: Millis,
    /// Steps that were learned from them.
    steps: u64,
}

/// What is assumed, and the GPUs that are watched for it.
#[derive(Debug, Default)]
pub(super) struct Learner {
    pub(super) guesses: Guesses,
    /// The fastest that jobs of each command were seen, as a share of their speed alone, which is not known: it is at least that.
    fastest: BTreeMap<u64, f64>,
    groups: Vec<Group>,
}

impl Learner {
    pub(super) fn new(gpus: usize) -> Self {
        let groups = std::iter::repeat_with(Group::default).take(gpus).collect();
        Self { guesses: Guesses::new(), fastest: BTreeMap::new(), groups }
    }

    /// Looks at all GPUs. The commands of which something notable was learned, and when there is more to learn, if nothing changes.
    pub(super) fn look(
        &mut self,
        now: Millis,
        (state, world): (&State, &World),
        workload: &Workload,
        known: &mut Known,
        model: &SlowdownModel,
    ) -> (BTreeSet<u64>, Option<Millis>) {
        let Self { guesses, fastest, groups } = self;
        let mut news = BTreeSet::new();
        let mut next: Option<Millis> = None;
        let mut look_at = |at: Millis| next = Some(next.map_or(at, |next| next.min(at)));
        for ((id, gpu), group) in (0..).map(GpuId).zip(state.gpus()).zip(groups) {
            let at_work = gpu.tenants.iter().filter_map(|tenant| state.job(tenant.job));
            let at_work =
                at_work.filter(|job| world.jobs[index(job.spec.id) as usize].stage == Stage::Active);
            let jobs: Vec<&Job> = at_work.collect();
            let members: Vec<JobIndex> = jobs.iter().map(|job| index(job.spec.id)).collect();
            let alone = match jobs[..] {
                [job] if world.is_alone(index(job.spec.id)) => Some(job.spec.command_key),
                _ => None,
            };
            // Of one that has just left, too.
            if let Some(command) = group.alone
                && now.since(group.since) >= WARM_UP + PROFILE
                && known.seen_alone(command)
            {
                guesses.remove(&command);
                news.insert(command);
            }
            if group.members != members || group.alone != alone {
                *group = Group { members, alone, since: now, steps: 0 };
            }
            if jobs.iter().all(|job| known.is_active_known(job.spec.command_key)) {
                continue;
            }
            if group.alone.is_some() {
                look_at(group.since + WARM_UP + PROFILE);
            }
            let steps = (now.since(group.since).since(SETTLING).0 / ASSUME_WINDOW.0).min(MOST_STEPS);
            let seen = world.gpus[id.0 as usize].seen();
            let rate = |job: &Job| world.jobs[index(job.spec.id) as usize].rate;
            if now.since(group.since) >= SPRINT {
                for job in &jobs {
                    let fastest = fastest.entry(job.spec.command_key).or_default();
                    *fastest = fastest.max(rate(job));
                }
            }
            let going = |job: &Job| match known.is_active_known(job.spec.command_key) {
                true => Some(Going::At(rate(job))),
                false => Some(Going::AtMost(rate(job) / fastest.get(&job.spec.command_key)?)),
            };
            for _ in std::mem::replace(&mut group.steps, steps)..steps {
                let alone = FromTrace { workload, known, guesses };
                for (command, profile) in
                    outlook::assume(model, Together::of(state, gpu, &jobs), &seen, &going, &alone)
                {
                    if guesses.entry(command).or_default().becomes(profile) {
                        news.insert(command);
                    }
                }
            }
            if steps < MOST_STEPS {
                look_at(group.since + SETTLING + Millis(ASSUME_WINDOW.0 * (steps + 1)));
            }
        }
        (news, next)
    }
}

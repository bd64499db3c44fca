//! What is assumed of commands of which no job was ever alone: learned from what GPUs do under several.
//!
//! It serves what is expected of a group, and nothing else: a command that was never alone stays unknown to limits, and the predictor learns
//! nothing of it.

use super::rows::{Key, Rows};
use super::{KnownAlone, Profiled, Samples, Stored};
use crate::sampler::Look;
use carma_core::ledger::{Gpu, Tenant};
use carma_core::model::{GpuId, Job, JobId};
use carma_core::state::State;
use carma_core::units::Millis;
use carma_interference::assumed::{Going, Guess};
use carma_interference::online::SlowdownModel;
use carma_interference::outlook::{self, ASSUME_WINDOW, SETTLING, Together};
use carma_interference::profile::{Metrics, Profile};
use std::collections::{BTreeMap, BTreeSet};

/// What is assumed, and the GPUs that are watched for it.
#[derive(Default)]
pub(super) struct Assumptions {
    guesses: Rows<Guess>,
    groups: BTreeMap<GpuId, Group>,
}

/// Jobs at work on a GPU.
struct Group {
    members: Vec<(JobId, u32)>,
    /// Since when they are together and have settled.
    since: Millis,
    /// From when on what the GPU does counts.
    from: Millis,
    samples: Samples,
}

impl Assumptions {
    /// What is assumed of a command, if anything was learned.
    pub(super) fn get(&self, key: &Key) -> Option<&Profile> {
        self.guesses.get(key).map(Guess::profile)
    }

    /// What was stored.
    pub(super) fn restore(&mut self, key: Key, profile: Profile, uid: Option<u32>) {
        self.guesses.restore(key, profile.into(), uid);
    }

    /// It is known now what the command does alone.
    pub(super) fn forget(&mut self, key: &Key) {
        self.guesses.forget(key);
    }

    /// Rows that changed since the last time; `None`: one that is forgotten.
    pub(super) fn changes(&mut self) -> impl Iterator<Item = (Key, Option<Stored<'_>>)> {
        self.guesses.changes(Guess::profile)
    }

    /// Looks at all GPUs, and learns of those under which a command is that was never seen alone. `counting`: jobs that count, though
    /// when their first step began is not known yet. `going`: how fast a job goes since then on GPUs of this product. The
    /// commands of which notably other things are assumed now.
    pub(super) fn look(
        &mut self,
        now: Millis,
        state: &State,
        (looks, counting): (&[Look], &BTreeSet<JobId>),
        going: &impl Fn(&Job, &str, Millis) -> Option<Going>,
        model: &SlowdownModel,
        profiles: &Profiled,
    ) -> BTreeSet<u64> {
        let (mut news, forgotten) = (BTreeSet::new(), self.guesses.forgotten().len());
        for (id, gpu) in (0..).map(GpuId).zip(state.gpus()) {
            let key = |command| (command, gpu.info.name.clone());
            let any_unknown = |(jobs, _): &(Vec<&Job>, Vec<&Job>)| {
                jobs.iter().any(|job| !profiles.contains_key(&key(job.spec.command_key)))
            };
            let Some((jobs, unsure)) = at_work(state, gpu, counting).filter(any_unknown) else {
                self.groups.remove(&id);
                continue;
            };
            let members = jobs.iter().map(|job| (job.spec.id, job.attempts)).collect();
            let group = self.groups.entry(id).or_insert_with(|| Group::new(Vec::new(), now));
            if group.members != members {
                *group = Group::new(members, now);
            }
            let since = group.since;
            let Some(seen) = group.look(now, gpu, looks) else { continue };
            let alone = KnownAlone { profiles, assumed: self };
            let all: Vec<&Job> = jobs.iter().chain(&unsure).copied().collect();
            let there = |jobs| Together::of(state, gpu, jobs);
            let going = |job: &Job| going(job, &gpu.info.name, since);
            let follows = match &unsure[..] {
                [] => outlook::assume(model, there(&jobs), &seen, &going, &alone),
                _ => outlook::assume_either(model, there(&jobs), there(&all), &seen, &going, &alone),
            };
            for (command, profile) in follows {
                let of = jobs.iter().find(|job| job.spec.command_key == command);
                if self.keep(key(command), of.map(|job| job.spec.user.uid), profile, now) {
                    news.insert(command);
                }
            }
        }
        news.extend(self.guesses.forgotten().iter().skip(forgotten).map(|(command, _)| *command));
        news
    }

    /// Whether this is notably other than before.
    fn keep(&mut self, key: Key, uid: Option<u32>, profile: Profile, now: Millis) -> bool {
        let is_new = self.guesses.used(now, &key, uid, Guess::default).becomes(profile);
        if is_new {
            self.guesses.changed(key);
        }
        is_new
    }
}

impl Group {
    fn new(members: Vec<(JobId, u32)>, now: Millis) -> Self {
        let since = now + SETTLING;
        Self { members, since, from: since, samples: Samples::default() }
    }

    /// What the GPU did over a window, when it is full.
    fn look(&mut self, now: Millis, gpu: &Gpu, looks: &[Look]) -> Option<Metrics> {
        if now < self.from {
            return None;
        }
        self.samples.take(&[gpu], looks, None);
        if now.since(self.from) < ASSUME_WINDOW {
            return None;
        }
        self.from = now;
        Some(std::mem::take(&mut self.samples).metrics())
    }
}

/// The jobs on a GPU that make steps or have settled; and those that have a process there and may be at work or not: they load, or
/// tell no steps. `None`: one of the first is suspended or ends, or processes that are not ours may be active.
fn at_work<'a>(
    state: &'a State,
    gpu: &Gpu,
    counting: &BTreeSet<JobId>,
) -> Option<(Vec<&'a Job>, Vec<&'a Job>)> {
    // Without the driver's list of processes it is unknown whether a job has begun.
    let unseen = |tenant: &Tenant| tenant.active_since.is_none() && !super::is_absent(gpu, tenant);
    if !gpu.present || !gpu.foreign().is_empty() || gpu.tenants.iter().any(unseen) {
        return None;
    }
    let (mut sure, mut unsure) = (Vec::new(), Vec::new());
    for tenant in gpu.tenants.iter().filter(|tenant| tenant.active_since.is_some()) {
        let job = state.job(tenant.job)?;
        if !(tenant.settled || tenant.stepped.is_some() || counting.contains(&tenant.job)) {
            unsure.push(job);
        } else if job.suspension().is_none() && job.ending().is_none() {
            sure.push(job);
        } else {
            return None;
        }
    }
    Some((sure, unsure))
}

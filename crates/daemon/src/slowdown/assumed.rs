//! What is assumed of commands of which no job was ever alone: learned from what GPUs do under several.
//!
//! It serves what is expected of a group, and nothing else: who was never alone stays unknown to limits, and the predictor learns
//! nothing of it.

use super::{KnownAlone, MOST_PROFILES, Profiled, Samples, Stored};
use crate::sampler::Look;
use carma_core::ledger::{Gpu, Tenant};
use carma_core::model::{GpuId, Job, JobId};
use carma_core::state::State;
use carma_core::units::Millis;
use carma_interference::assumed::Guess;
use carma_interference::online::SlowdownModel;
use carma_interference::outlook::{self, ASSUME_WINDOW, SETTLING, Together};
use carma_interference::profile::{Metrics, Profile};
use carma_memory::history::oldest_of_most;
use std::collections::{BTreeMap, BTreeSet};

/// Command, and product name of the GPU.
type Key = (u64, String);

/// What is assumed, and the GPUs that are watched for it.
#[derive(Default)]
pub(super) struct Assumptions {
    guesses: BTreeMap<Key, Kept>,
    groups: BTreeMap<GpuId, Group>,
    /// Rows to store.
    changed: BTreeSet<Key>,
    forgotten: Vec<Key>,
}

struct Kept {
    guess: Guess,
    used: Millis,
    /// Whose command it is. `None`: an older version stored it.
    uid: Option<u32>,
}

/// Jobs at work on a GPU.
struct Group {
    members: Vec<(JobId, u32)>,
    /// From when on what the GPU does counts.
    from: Millis,
    samples: Samples,
}

impl Assumptions {
    /// What is assumed of a command, if anything was learned.
    pub(super) fn get(&self, key: &Key) -> Option<&Profile> {
        self.guesses.get(key).map(|kept| kept.guess.profile())
    }

    /// What was stored.
    pub(super) fn restore(&mut self, key: Key, profile: Profile, uid: Option<u32>) {
        self.make_room(&key, uid);
        self.guesses.insert(key, Kept { guess: profile.into(), used: Millis::ZERO, uid });
    }

    /// It is known now what the command does alone.
    pub(super) fn forget(&mut self, key: &Key) {
        if self.guesses.remove(key).is_some() {
            self.changed.remove(key);
            self.forgotten.push(key.clone());
        }
    }

    /// Rows that changed since the last time; `None`: one that is forgotten.
    pub(super) fn changes(&mut self) -> impl Iterator<Item = (Key, Option<Stored<'_>>)> {
        let forgotten = std::mem::take(&mut self.forgotten).into_iter().map(|key| (key, None));
        let changed = std::mem::take(&mut self.changed);
        forgotten.chain(changed.into_iter().map(|key| {
            let kept = self.guesses.get(&key);
            (key, kept.map(|kept| Stored { profile: kept.guess.profile(), uid: kept.uid }))
        }))
    }

    /// Looks at all GPUs, and learns of those under which a command is that was never seen alone. `counting`: jobs that count, though
    /// when their first step began is not known yet. The commands of which notably other things are assumed now.
    pub(super) fn look(
        &mut self,
        now: Millis,
        state: &State,
        (looks, counting): (&[Look], &BTreeSet<JobId>),
        model: &SlowdownModel,
        profiles: &Profiled,
    ) -> BTreeSet<u64> {
        let (mut news, forgotten) = (BTreeSet::new(), self.forgotten.len());
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
            let Some(seen) = group.look(now, gpu, looks) else { continue };
            let alone = KnownAlone { profiles, assumed: self };
            let all: Vec<&Job> = jobs.iter().chain(&unsure).copied().collect();
            let there = |jobs| Together::of(state, gpu, jobs);
            let follows = match &unsure[..] {
                [] => outlook::assume(model, there(&jobs), &seen, &alone),
                _ => outlook::assume_either(model, there(&jobs), there(&all), &seen, &alone),
            };
            for (command, profile) in follows {
                let of = jobs.iter().find(|job| job.spec.command_key == command);
                if self.keep(key(command), of.map(|job| job.spec.user.uid), profile, now) {
                    news.insert(command);
                }
            }
        }
        news.extend(self.forgotten.iter().skip(forgotten).map(|(command, _)| *command));
        news
    }

    /// Whether this is notably other than before.
    fn keep(&mut self, key: Key, uid: Option<u32>, profile: Profile, now: Millis) -> bool {
        self.make_room(&key, uid);
        let new = || Kept { guess: Guess::default(), used: now, uid };
        let kept = self.guesses.entry(key.clone()).or_insert_with(new);
        (kept.used, kept.uid) = (now, uid);
        let is_new = kept.guess.becomes(profile);
        if is_new {
            self.changed.insert(key);
        }
        is_new
    }

    /// Of the user who has the most, the one used least lately goes.
    fn make_room(&mut self, key: &Key, by: Option<u32>) {
        if self.guesses.len() >= MOST_PROFILES && !self.guesses.contains_key(key) {
            let all = || self.guesses.iter().map(|(key, kept)| (kept.uid, kept.used, key));
            if let Some(oldest) = oldest_of_most(all, by).cloned() {
                self.forget(&oldest);
            }
        }
    }
}

impl Group {
    fn new(members: Vec<(JobId, u32)>, now: Millis) -> Self {
        Self { members, from: now + SETTLING, samples: Samples::default() }
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

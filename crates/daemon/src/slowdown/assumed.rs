//! What is assumed of commands of which no job was ever alone: learned from what GPUs do under several, and from how much slower those are
//! once one more has come, or faster once one has left.
//!
//! It serves what is expected of a group, and nothing else: a command that was never alone stays unknown to limits, and the predictor learns
//! nothing of it.

use super::rows::{Key, Rows};
use super::{Beside, KnownAlone, Samples, Stored};
use crate::sampler::Look;
use carma_core::ledger::{Gpu, Tenant};
use carma_core::model::{GpuId, Job, JobId, SharingMode};
use carma_core::slowdown::Class;
use carma_core::state::State;
use carma_core::units::Millis;
use carma_interference::assumed::{Going, Guess, Part, SpeedRatio};
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

/// Shortest stretch over which the speeds of jobs at work together are compared with those beside others,
const STRETCH: Millis = Millis::secs(1);
/// and the longest after a change: what comes later may have other causes.
const LONG_STRETCH: Millis = Millis::secs(6);
/// What was before a change is forgotten so long after it.
const LATE: Millis = Millis::secs(20);
/// Before it is seen at work, a job has been for up to so long; and so long after a change speeds are those after it.
const UNSEEN: Millis = Millis(500);

/// Jobs at work on a GPU.
struct Group {
    members: Vec<Member>,
    sharing: SharingMode,
    /// Since when they are the ones.
    began: Millis,
    /// Since when they are together and have settled.
    since: Millis,
    /// From when on what the GPU does counts.
    from: Millis,
    samples: Samples,
    /// Those that were at work before the last change, until their speeds are compared.
    before: Option<Stretch>,
}

/// One of them.
#[derive(Clone, Copy, PartialEq)]
struct Member {
    job: JobId,
    attempt: u32,
    class: Class,
    uid: u32,
    /// On several GPUs it goes as the slowest of them lets it.
    is_wide: bool,
}

/// Some seconds of the same jobs at work.
#[derive(Clone)]
struct Stretch {
    members: Vec<Member>,
    sharing: SharingMode,
    from: Millis,
    until: Millis,
}

/// How fast a job went from one time to another: counts a second, and how many were counted.
pub(super) type Speed<'a> = &'a dyn Fn(JobId, Millis, Millis) -> Option<(f64, usize)>;

impl Assumptions {
    /// What is assumed of a command, if anything was learned.
    pub(super) fn get(&self, key: &Key) -> Option<&Profile> {
        self.guesses.get(key).map(Guess::profile)
    }

    /// What was stored.
    pub(super) fn restore(&mut self, key: Key, profile: Profile, beside: Beside) {
        self.guesses.restore(key, profile.into(), beside);
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
        (going, speed): (&impl Fn(&Job, &str, Millis) -> Option<Going>, Speed<'_>),
        model: &SlowdownModel,
        profiles: &Rows<Profile>,
    ) -> BTreeSet<u64> {
        let (mut news, forgotten) = (BTreeSet::new(), self.guesses.forgotten().len());
        for (id, gpu) in (0..).map(GpuId).zip(state.gpus()) {
            let name = &gpu.info.name;
            let key = |command| (command, name.clone());
            let Some((jobs, unsure)) = at_work(state, gpu, counting) else {
                self.groups.remove(&id);
                continue;
            };
            let present = jobs.iter().map(|job| Member::of(job)).collect();
            let group = self.groups.entry(id).or_insert_with(|| Group::new(now));
            let changes = group.changes(now, present, state.sharing_among(&jobs));
            if let Some((before, after)) = changes {
                let parts = parts(&before, &after, speed);
                let classes: Vec<_> = parts.iter().map(|(member, part)| (member.class, *part)).collect();
                let alone = KnownAlone { profiles, assumed: self };
                for (command, profile) in outlook::assume_by_change(model, name, &classes, &alone) {
                    let of = parts.iter().find(|(member, _)| member.class.command == command);
                    if self.keep(key(command), of.map(|(member, _)| member.uid), profile, now) {
                        news.insert(command);
                    }
                }
            }
            if jobs.iter().all(|job| profiles.get(&key(job.spec.command_key)).is_some()) {
                continue;
            }
            let Some(group) = self.groups.get_mut(&id) else { continue };
            let since = group.since;
            let Some(seen) = group.look(now, gpu, looks) else { continue };
            let alone = KnownAlone { profiles, assumed: self };
            let all: Vec<&Job> = jobs.iter().chain(&unsure).copied().collect();
            let there = |jobs| Together::of(state, gpu, jobs);
            let going = |job: &Job| going(job, name, since);
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

impl Member {
    fn of(job: &Job) -> Self {
        Self {
            job: job.spec.id,
            attempt: job.attempts,
            class: job.class(),
            uid: job.spec.user.uid,
            is_wide: job.placement().is_some_and(|placement| placement.gpus.len() > 1),
        }
    }
}

fn is_among(member: &Member, all: &[Member]) -> bool {
    all.iter().any(|one| (one.job, one.attempt) == (member.job, member.attempt))
}

/// All jobs before and after a change, and the part of each in it. Empty: not all shared by MPS.
fn parts(before: &Stretch, after: &Stretch, speed: Speed<'_>) -> Vec<(Member, Part)> {
    // One that has the GPU for itself shares with no other.
    let takes_turns = |stretch: &Stretch| stretch.members.len() > 1 && stretch.sharing != SharingMode::Mps;
    if takes_turns(before) || takes_turns(after) {
        return Vec::new();
    }
    let ratio = |member: &Member| {
        let (was, counts_before) = speed(member.job, before.from, before.until)?;
        let (is, counts_after) = speed(member.job, after.from, after.until)?;
        // Between the first and the last of the counts the speed is exact; what is between one and the next is not known.
        let variance = [counts_before, counts_after].map(|counts| (0.5 / counts as f64).powi(2)).iter().sum();
        (was > 0.0 && is > 0.0 && !member.is_wide).then(|| SpeedRatio { ratio: is / was, variance })
    };
    let before_it = before.members.iter().map(|member| match is_among(member, &after.members) {
        true => (*member, Part::Stayed(ratio(member))),
        false => (*member, Part::Left),
    });
    let came = after.members.iter().filter(|member| !is_among(member, &before.members));
    before_it.chain(came.map(|member| (*member, Part::Came))).collect()
}

impl Group {
    fn new(now: Millis) -> Self {
        Self {
            members: Vec::new(),
            sharing: SharingMode::Exclusive,
            began: now,
            since: now + SETTLING,
            from: now + SETTLING,
            samples: Samples::default(),
            before: None,
        }
    }

    /// The last of what these jobs did since they have settled, if it is long enough to tell their speeds.
    fn stretch(&self, until: Millis) -> Option<Stretch> {
        let from = (self.began + UNSEEN).max(Millis(until.0.saturating_sub(LONG_STRETCH.0)));
        (until.0 >= from.0 + STRETCH.0).then(|| Stretch {
            members: self.members.clone(),
            sharing: self.sharing,
            from,
            until,
        })
    }

    /// The jobs that are at work are these. What was before the last change and what was after it, once both are long enough to be
    /// compared and the second is as long as it will be.
    fn changes(
        &mut self,
        now: Millis,
        present: Vec<Member>,
        sharing: SharingMode,
    ) -> Option<(Stretch, Stretch)> {
        let comes = present.iter().any(|member| !is_among(member, &self.members));
        let is_same =
            !comes && self.members.len() == present.len() && (present.len() < 2 || self.sharing == sharing);
        if is_same {
            self.before.take_if(|before| now.since(before.until) > LATE);
            let is_due = now.since(self.began) >= LONG_STRETCH + UNSEEN;
            return self.before.take_if(|_| is_due).zip(self.stretch(now));
        }
        // It was at work before it was seen to be.
        let until = if comes { Millis(now.0.saturating_sub(UNSEEN.0)) } else { now };
        let last = self.stretch(until);
        let mut before = self.before.take();
        let told = before.take_if(|_| last.is_some()).zip(last.clone());
        *self = Self { members: present, sharing, before: last.or(before), ..Self::new(now) };
        told
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

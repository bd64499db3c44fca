//! What is assumed of commands of which no job was ever alone: learned from what GPUs do under several.

use super::{MOST_PROFILES, Samples};
use crate::sampler::Look;
use carma_core::ledger::Gpu;
use carma_core::model::{GpuId, Job, JobId};
use carma_core::state::State;
use carma_core::units::Millis;
use carma_interference::online::SlowdownModel;
use carma_interference::outlook::{self, Alone};
use carma_interference::profile::{Profile, Stat};
use std::collections::{BTreeMap, BTreeSet};

/// Jobs that begin load, compile and warm up.
const WARM_UP: Millis = Millis::secs(5);
/// What a GPU does is taken over so long.
const WINDOW: Millis = Millis::secs(5);
/// Changes of engine and SM activity below this, in points, are noise.
const NOTABLE: f64 = 2.0;

/// Command, and product name of the GPU.
type Key = (u64, String);

/// What is assumed, and the GPUs that are watched for it.
#[derive(Default)]
pub(super) struct Assumptions {
    /// With when it was last used.
    profiles: BTreeMap<Key, (Profile, Millis)>,
    companies: BTreeMap<GpuId, Company>,
    /// Rows to store.
    changed: BTreeSet<Key>,
    forgotten: Vec<Key>,
}

/// Who works on a GPU.
struct Company {
    members: Vec<(JobId, u32)>,
    /// From when on what the GPU does counts.
    from: Millis,
    samples: Samples,
}

impl Assumptions {
    /// What is assumed of a command, if anything was learned.
    pub(super) fn get(&self, key: &Key) -> Option<&Profile> {
        self.profiles.get(key).map(|(profile, _)| profile)
    }

    /// What was stored.
    pub(super) fn restore(&mut self, key: Key, profile: Profile) {
        self.profiles.insert(key, (profile, Millis::ZERO));
    }

    /// It is known now what the command does alone.
    pub(super) fn forget(&mut self, key: &Key) {
        if self.profiles.remove(key).is_some() {
            self.changed.remove(key);
            self.forgotten.push(key.clone());
        }
    }

    /// Rows that changed since the last time; `None`: one that is forgotten.
    pub(super) fn changes(&mut self) -> Vec<(Key, Option<&Profile>)> {
        let mut rows: Vec<_> = self.forgotten.drain(..).map(|key| (key, None)).collect();
        for key in std::mem::take(&mut self.changed) {
            let profile = self.profiles.get(&key).map(|(profile, _)| profile);
            rows.push((key, profile));
        }
        rows
    }

    /// Looks at all GPUs. Learns of those on which commands are that were never seen alone (`known` says which were), and says
    /// whether what is assumed has changed notably.
    pub(super) fn look(
        &mut self,
        now: Millis,
        state: &State,
        looks: &[Look],
        model: &SlowdownModel,
        known: impl Fn(&Key) -> Option<Profile>,
    ) -> bool {
        let mut news = false;
        for (id, gpu) in (0..).map(GpuId).zip(state.gpus()) {
            let key = |job: &Job| (job.spec.command_key, gpu.info.name.clone());
            let jobs = working(state, gpu).unwrap_or_default();
            if !jobs.iter().any(|job| known(&key(job)).is_none()) {
                self.companies.remove(&id);
                continue;
            }
            let members: Vec<(JobId, u32)> = jobs.iter().map(|job| (job.spec.id, job.attempts)).collect();
            let company = self.companies.entry(id).or_insert_with(|| Company::new(members.clone(), now));
            if company.members != members {
                *company = Company::new(members, now);
            }
            if now < company.from {
                continue;
            }
            company.samples.take(&[gpu], looks, None);
            if now.since(company.from) < WINDOW {
                continue;
            }
            company.from = now;
            let seen = std::mem::take(&mut company.samples).metrics();
            let alone = Both { known: &known, assumed: &self.profiles };
            for (command, new) in outlook::assume(model, gpu, &jobs, &seen, &alone) {
                let key = (command, gpu.info.name.clone());
                if let Some((old, used)) = self.profiles.get_mut(&key) {
                    *used = now;
                    if alike(old, &new) {
                        continue;
                    }
                }
                self.make_room(&key);
                news = true;
                self.changed.insert(key.clone());
                self.profiles.insert(key, (new, now));
            }
        }
        news
    }

    /// The one used least lately goes.
    fn make_room(&mut self, key: &Key) {
        if self.profiles.len() >= MOST_PROFILES && !self.profiles.contains_key(key) {
            let oldest = self.profiles.iter().min_by_key(|(_, (_, used))| *used).map(|(key, _)| key.clone());
            if let Some(oldest) = oldest {
                self.forget(&oldest);
            }
        }
    }
}

impl Company {
    fn new(members: Vec<(JobId, u32)>, now: Millis) -> Self {
        Self { members, from: now + WARM_UP, samples: Samples::default() }
    }
}

fn alike(old: &Profile, new: &Profile) -> bool {
    let percent = |of: Option<Stat>| of.map_or(0.0, |stat| stat.mean);
    let near = |a, b| (percent(a) - percent(b)).abs() < NOTABLE;
    let (old, new) = (&old.metrics, &new.metrics);
    near(old.gract_pct, new.gract_pct) && near(old.smact_pct, new.smact_pct)
}

/// Jobs that have begun on a GPU. `None`: others may be at work there, too.
fn working<'a>(state: &'a State, gpu: &Gpu) -> Option<Vec<&'a Job>> {
    let begun = gpu.tenants.iter().filter(|tenant| tenant.active_since.is_some());
    let jobs: Option<Vec<&Job>> = begun.map(|tenant| state.job(tenant.job)).collect();
    jobs.filter(|_| gpu.present && gpu.foreign().is_empty())
}

/// What is known of commands alone, and what is assumed of others.
struct Both<'a, F> {
    known: &'a F,
    assumed: &'a BTreeMap<Key, (Profile, Millis)>,
}

impl<F: Fn(&Key) -> Option<Profile>> Alone for Both<'_, F> {
    fn knows(&self, command: u64, gpu: &str) -> bool {
        self.profile(command, gpu).is_some()
    }

    fn profile(&self, command: u64, gpu: &str) -> Option<Profile> {
        (self.known)(&(command, gpu.to_owned()))
    }

    fn assumed(&self, command: u64, gpu: &str) -> Option<Profile> {
        self.assumed.get(&(command, gpu.to_owned())).map(|(profile, _)| profile.clone())
    }
}

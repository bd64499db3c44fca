//! What would let a job that waits start sooner ([`Sooner`]), or a suspended one come back.
//!
//! Nothing is guessed: each thing is tried on a copy of the state, and what is told is what the plan then does. A trial
//! costs a plan, so there are few of them where the queue is long.

use super::{Detail, answers::answers, plan_in};
use crate::explain::{Help, Objection, OfTheGpu, Refusal, Sooner};
use crate::input::Action;
use crate::model::{GpuId, Job, JobId, NewJob, SharingMode};
use crate::policy::MemoryScreen;
use crate::state::State;
use crate::units::{Fraction, MiB, Millis};
use std::collections::BTreeSet;

/// Trials for one answer: so many while jobs are few ...
const MOST_TRIALS: usize = 40;
/// ... and so many however many there are.
const LEAST_TRIALS: usize = 4;
/// Live jobs over all trials of one answer: a copy of the state and a plan cost about a microsecond for each.
const JOBS_TRIED: usize = 100_000;

/// Amounts of memory that are tried, most first.
const AMOUNTS: usize = 4;

/// Time limits that are tried, longest first.
const LIMITS: [Millis; 3] = [Millis::secs(3600), Millis::secs(600), Millis::secs(60)];

/// What would let a job that waits start: each thing alone, as if it were done now. `ends`: running jobs in the order in
/// which they are expected to end; the first whose end helps is told. `took`: what runs of its command are known to take, also where more is
/// declared of it. Of a suspended job that is to come back nothing but that end.
#[must_use]
pub fn sooner(state: &State, now: Millis, job: &Job, ends: &[JobId], took: MiB) -> Vec<Sooner> {
    let left = (JOBS_TRIED / state.jobs().len().max(1)).clamp(LEAST_TRIALS, MOST_TRIALS);
    let mut trials = Trials { state, now: now.max(state.now()), job, left };
    // It starts anyway.
    if trials.starts(state, job.spec.id).is_some() {
        return Vec::new();
    }
    if job.is_off() {
        return trials.end(ends, trials.left).into_iter().collect();
    }
    // The other questions are to be asked, too.
    let end = trials.end(ends, trials.left / 2);
    // What an out-of-memory has taught would be forgotten.
    let again = if job.floor.is_none() { trials.submitted_again(took) } else { Vec::new() };
    end.into_iter().chain(again).chain(trials.resumed()).collect()
}

struct Trials<'a> {
    state: &'a State,
    now: Millis,
    job: &'a Job,
    /// How many more there may be.
    left: usize,
}

impl Trials<'_> {
    /// Where a job starts in this state, or comes back to.
    fn starts(&mut self, state: &State, id: JobId) -> Option<Vec<u32>> {
        self.left = self.left.checked_sub(1)?;
        let made = plan_in(state, self.now, Detail::Actions);
        let gpus = made.actions.iter().find_map(|action| match action {
            Action::Launch { job, placement } if *job == id => Some(&placement.gpus),
            Action::Resume { job, gpus, .. } if *job == id => Some(gpus),
            _ => None,
        })?;
        let mut gpus: Vec<u32> = gpus.iter().filter_map(|gpu| Some(state.gpu(*gpu)?.info.index)).collect();
        gpus.sort_unstable();
        Some(gpus)
    }

    /// Where it starts if it is submitted again, changed.
    fn again(&mut self, change: impl FnOnce(&mut NewJob)) -> Option<Vec<u32>> {
        // A copy costs as much as a plan.
        if self.left == 0 {
            return None;
        }
        let (supposed, id) = self.state.if_submitted_again(self.job.spec.id, change)?;
        self.starts(&supposed, id)
    }

    fn submitted_again(&mut self, took: MiB) -> Vec<Sooner> {
        let answers = answers(self.state, self.now, self.job);
        let mut found = Vec::new();
        let free = answers.iter().filter_map(|answer| {
            let of_the_gpu = answer.refusal.as_ref().and_then(Refusal::of_the_gpu);
            let shut = matches!(of_the_gpu, Some(OfTheGpu::OutOfUse | OfTheGpu::Unread));
            answer.free.filter(|_| !shut)
        });
        found.extend(self.memory(free, took));
        found.extend(self.time());
        found.extend(self.fewer_gpus());
        found.extend(self.sharing());
        let refusals = answers.iter().filter_map(|answer| answer.refusal.as_ref());
        found.extend(self.max_slowdown(refusals.clone()));
        found.extend(self.latency(refusals));
        found
    }

    /// The most memory that it could have now, where nothing is known of its own or it is only said.
    fn memory(&mut self, free: impl Iterator<Item = MiB>, took: MiB) -> Option<Sooner> {
        let forecasts = self.job.spec.forecasts;
        let computed = forecasts.computed;
        if forecasts.estimates.iter().next().is_some() || computed.is_some_and(|c| c.basis.is_measured()) {
            return None;
        }
        // What is computed is not argued down, nor what its command was seen to take.
        let taken = self.state.taken_by(self.job.spec.command_key).max(self.job.least_capacity());
        let least = computed.map_or(MiB::ZERO, |c| c.upper).max(taken).max(took);
        let most = forecasts.declared.or(computed.map(|c| c.upper)).unwrap_or(MiB(u64::MAX));
        // That a job takes less than a quarter of what its user declares is hardly so.
        let quarter = forecasts.declared.map_or(MiB::ZERO, |declared| MiB(declared.0.div_ceil(4)));
        let guard = match self.state.options().policy.memory {
            MemoryScreen::Forecast { guard, .. } => guard,
            MemoryScreen::None | MemoryScreen::Floor(_) => return None,
        };
        let mut amounts: Vec<MiB> = free.map(|free| as_typed(free - guard)).collect();
        amounts.sort_unstable_by_key(|amount| std::cmp::Reverse(*amount));
        // So many GPUs must have it.
        let enough =
            amounts.split_off((self.job.spec.request.gpus as usize).saturating_sub(1).min(amounts.len()));
        let amounts: BTreeSet<MiB> =
            enough.into_iter().filter(|m| *m < most && *m >= least.max(quarter) && !m.is_zero()).collect();
        amounts.into_iter().rev().take(AMOUNTS).find_map(|most| {
            let gpus = self.again(|job| job.forecasts.declared = Some(most))?;
            Some(Sooner { by: Help::Memory { most, declared: forecasts.declared }, gpus })
        })
    }

    /// The longest `--time` with which it would start now: a job that ends soon may use a GPU that is kept for another. No shorter than
    /// its expected run time, where that is known from runs of its command or program.
    fn time(&mut self) -> Option<Sooner> {
        let spec = &self.job.spec;
        let known = spec.run_time.as_ref().filter(|known| !known.is_guess());
        let least = known.map_or(Millis::ZERO, |known| Millis::secs(known.high_s.min(u64::from(u32::MAX))));
        let most = spec.request.time_limit.unwrap_or(Millis(u64::MAX));
        LIMITS.into_iter().filter(|limit| (least..most).contains(limit)).find_map(|limit| {
            let gpus = self.again(|job| job.request.time_limit = Some(limit))?;
            Some(Sooner { by: Help::Time { limit }, gpus })
        })
    }

    fn fewer_gpus(&mut self) -> Option<Sooner> {
        let wanted = self.job.spec.request.gpus;
        let fewer = wanted.saturating_sub(8).max(1)..wanted;
        fewer.rev().find_map(|number| {
            let gpus = self.again(|job| job.request.gpus = number)?;
            Some(Sooner { by: Help::FewerGpus { gpus: number }, gpus })
        })
    }

    fn sharing(&mut self) -> Option<Sooner> {
        let request = &self.job.spec.request;
        if !request.is_alone() {
            return None;
        }
        let (exclusive, mode) = (request.exclusive, request.sharing == Some(SharingMode::Exclusive));
        let gpus = self.again(|job| {
            job.request.exclusive = false;
            job.request.sharing = job.request.sharing.filter(|mode| *mode != SharingMode::Exclusive);
        })?;
        Some(Sooner { by: Help::Sharing { exclusive, mode }, gpus })
    }

    /// Another limit of its own: one that what is predicted does not exceed, else none.
    fn max_slowdown<'a>(&mut self, refusals: impl Iterator<Item = &'a Refusal> + Clone) -> Option<Sooner> {
        let own = self.job.spec.id;
        let upper = refusals.clone().filter_map(|refusal| match refusal {
            Refusal::Progress(Objection::Slowdown { job, upper, .. }) if *job == own => Some(*upper),
            _ => None,
        });
        if let Some(upper) = upper.min() {
            // Rounded up to a twentieth, as people type it.
            let limit = Fraction((upper.0 / 500).saturating_add(1).saturating_mul(500));
            if let Some(gpus) = self.again(|job| job.request.max_slowdown = Some(limit)) {
                return Some(Sooner { by: Help::MaxSlowdown { limit: Some(limit) }, gpus });
            }
        }
        self.job.spec.request.max_slowdown.filter(|_| refusals.clone().any(is_of_limit))?;
        let gpus = self.again(|job| job.request.max_slowdown = None)?;
        Some(Sooner { by: Help::MaxSlowdown { limit: None }, gpus })
    }

    /// No limit of its own on latency. Another target is not tried: what a server must keep its user knows.
    fn latency<'a>(&mut self, mut refusals: impl Iterator<Item = &'a Refusal>) -> Option<Sooner> {
        let own = self.job.spec.id;
        let exceeds = |refusal: &Refusal| {
            let Refusal::Progress(Objection::Slowdown { job, .. }) = refusal else { return false };
            *job == own
        };
        let barred = refusals.any(|refusal| is_of_limit(refusal) || exceeds(refusal));
        self.job.spec.request.latency_us.filter(|_| barred)?;
        let gpus = self.again(|job| job.request.latency_us = None)?;
        Some(Sooner { by: Help::Latency, gpus })
    }

    fn resumed(&mut self) -> Option<Sooner> {
        let state = self.state;
        (0..).map(GpuId).zip(state.gpus()).filter(|(_, gpu)| gpu.present).find_map(|(id, gpu)| {
            let drained_by = gpu.drained_by.clone().filter(|_| self.left > 0)?;
            let gpus = self.starts(&state.if_resumed(id)?, self.job.spec.id)?;
            Some(Sooner { by: Help::Resume { gpu: gpu.info.index, drained_by }, gpus })
        })
    }

    /// The first of these ends that helps, of so many at most.
    fn end(&mut self, ends: &[JobId], most: usize) -> Option<Sooner> {
        for job in ends.iter().take(most) {
            let Some(supposed) = self.state.if_ended(*job) else { continue };
            if let Some(gpus) = self.starts(&supposed, self.job.spec.id) {
                return Some(Sooner { by: Help::End { job: *job }, gpus });
            }
        }
        None
    }
}

/// Whether a limit keeps a job off a GPU because nothing can be predicted there.
const fn is_of_limit(refusal: &Refusal) -> bool {
    matches!(refusal, Refusal::Progress(Objection::Unpredicted { .. } | Objection::Uncontrolled))
}

/// An amount as people type it, not more than this one: whole gibibytes, or eighths of the first.
fn as_typed(memory: MiB) -> MiB {
    let step = if memory >= MiB::gib(1) { 1024 } else { 128 };
    MiB(memory.0 / step * step)
}

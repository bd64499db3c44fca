//! One GPU while a plan is made: what the ledger says plus what the plan has placed there already, and why it does not do
//! for a job.
//!
//! Which GPU is taken among those that do is in [`super::search`].

use super::want::Want;
use crate::explain::{Holder, Refusal};
use crate::ledger::{Gpu, Reservation};
use crate::model::{GpuId, JobId, SharingMode};
use crate::policy::{GateVerdict, Options, Order, Pack};
use crate::reading::Health;
use crate::slowdown::{self, Objection, Outlook};
use crate::state::State;
use crate::units::{Fraction, MiB, Millis};
use crate::windows::Risk;

/// Why a GPU does not do for a job, in short: asked of every GPU for many jobs, so without details.
#[derive(Clone, Copy)]
pub(super) enum Bar {
    Closed,
    TooSmall,
    Busy,
    Exclusive(JobId),
    Starting(JobId, Option<Millis>),
    Rising(JobId),
    Memory,
    Gate,
    Full(u32),
    Pack,
    MpsCooldown(Millis),
    Slowdown(Objection),
}

/// One GPU while a plan is made: the ledger plus what this plan has placed already.
pub(super) struct Slot<'a> {
    pub(super) id: GpuId,
    pub(super) gpu: &'a Gpu,
    /// Nobody can have it, whatever they want.
    pub(super) closed: bool,
    pub(super) free: Option<MiB>,
    pub(super) idle: bool,
    pub(super) tenants: u32,
    exclusive: Option<JobId>,
    /// A tenant that is still starting.
    starting: Option<(JobId, Option<Millis>)>,
    /// A tenant that is still starting and has no forecast.
    starting_blind: Option<(JobId, Option<Millis>)>,
    /// A tenant that is still starting and for which everything is reserved.
    starting_unknown: Option<(JobId, Option<Millis>)>,
    /// A tenant that took more than was reserved for it, just now.
    rising: Option<JobId>,
    gate: GateVerdict,
    pub(super) smact: Option<Fraction>,
    /// Rule by which jobs go together, and the load of those that are there; `None`: not known.
    pack: Pack,
    pub(super) load: Option<u32>,
    most_jobs: Option<u32>,
    cooldown: Option<Millis>,
    state: &'a State,
    /// A tenant has a limit of slowdown.
    pub(super) limited: bool,
    /// Placed by this plan.
    added: Vec<(JobId, Option<MiB>)>,
}

impl<'a> Slot<'a> {
    pub(super) fn new(id: GpuId, gpu: &'a Gpu, state: &'a State, now: Millis) -> Self {
        let options = state.options();
        let pack = options.policy.pack;
        let mut slot = Self {
            id,
            gpu,
            closed: closed(gpu, options, now).is_some(),
            free: gpu.free(options.policy.reserve),
            idle: gpu.is_idle(),
            tenants: u32::try_from(gpu.tenants.len()).unwrap_or(u32::MAX),
            exclusive: gpu.tenants.iter().find(|t| t.exclusive).map(|t| t.job),
            starting: None,
            starting_blind: None,
            starting_unknown: None,
            rising: None,
            gate: GateVerdict::Open,
            smact: None,
            pack,
            load: Some(0),
            most_jobs: options.policy.most_jobs,
            cooldown: cooldown(gpu, options, now),
            state,
            limited: slowdown::is_limited(state, gpu),
            added: Vec::new(),
        };
        for tenant in &gpu.tenants {
            if tenant.rising_until(options).is_some_and(|until| until > now) {
                slot.rising = slot.rising.or(Some(tenant.job));
            }
            let waiting = tenant.active_since.is_none();
            let given_up = waiting && now.since(tenant.placed) >= options.startup_patience;
            if tenant.settled || given_up {
                continue;
            }
            let entry = Some((tenant.job, tenant.active_since.map(|at| now.since(at))));
            slot.starting = slot.starting.or(entry);
            if !matches!(tenant.reservation, Reservation::Memory(_)) {
                slot.starting_blind = slot.starting_blind.or(entry);
            }
            if tenant.reservation == Reservation::Whole {
                slot.starting_unknown = slot.starting_unknown.or(entry);
            }
        }
        if pack != Pack::Any {
            let loads = gpu.tenants.iter().map(|t| pack.load(state.job(t.job)?.spec.profile));
            slot.load = loads.sum();
        }
        if let Some(seen) = &gpu.seen {
            slot.gate = options.policy.gate.judge(&seen.window);
            slot.smact = seen.window.smact.as_ref().map(|s| Risk::Carma.of(s));
        }
        slot
    }

    /// Why a job that wants an idle GPU may not have this one.
    pub(super) fn bars_idle(&self, want: &Want) -> Option<Bar> {
        if self.closed {
            Some(Bar::Closed)
        } else if self.gpu.info.memory < want.least_capacity {
            Some(Bar::TooSmall)
        } else if !self.idle {
            Some(Bar::Busy)
        } else {
            self.bars_mps(want)
        }
    }

    /// Why a job may not share this one.
    pub(super) fn bars_shared(&self, want: &Want) -> Option<Bar> {
        if self.closed {
            return Some(Bar::Closed);
        }
        if self.gpu.info.memory < want.least_capacity {
            return Some(Bar::TooSmall);
        }
        if let Some(job) = self.exclusive {
            return Some(Bar::Exclusive(job));
        }
        // All of it is reserved, but only until that job's need is known: say that rather than
        // that it holds all the memory.
        if let Some((job, active_for)) = self.starting_unknown {
            return Some(Bar::Starting(job, active_for));
        }
        if let Some(job) = self.rising {
            return Some(Bar::Rising(job));
        }
        if want.need_on(self.gpu.info.memory).is_some_and(|need| self.free.unwrap_or_default() < need) {
            return Some(Bar::Memory);
        }
        self.bars_at_any_memory(want)
    }

    /// The part of [`Self::bars_shared`] that comes after memory.
    fn bars_at_any_memory(&self, want: &Want) -> Option<Bar> {
        let starting = match want.reservation {
            Reservation::Memory(_) => self.starting_blind,
            Reservation::Whole | Reservation::None => self.starting,
        };
        if let Some((job, active_for)) = starting {
            Some(Bar::Starting(job, active_for))
        } else if self.gate != GateVerdict::Open {
            Some(Bar::Gate)
        } else if let Some(most) = self.most_jobs.filter(|most| self.tenants >= *most) {
            Some(Bar::Full(most))
        } else if !self.pack.allows(self.tenants, self.load, want.load) {
            Some(Bar::Pack)
        } else if let Some(objection) = self.objection(want) {
            Some(Bar::Slowdown(objection))
        } else {
            self.bars_mps(want)
        }
    }

    /// Why limits of slowdown keep a job off this one.
    fn objection(&self, want: &Want) -> Option<Objection> {
        if !want.particular && !self.limited {
            return None;
        }
        let job = self.state.job(want.job)?;
        if let Some(apart) = slowdown::kept_apart(self.state, job, self.gpu) {
            return Some(Objection::Apart(apart));
        }
        let by_throughput = self.state.options().policy.order == Order::Throughput && !self.idle;
        let limited = self.limited || want.limited;
        // Jobs that this plan has placed here change what was predicted: the next plan knows.
        if !self.added.is_empty() && (limited || by_throughput) {
            return Some(if limited { Objection::NotYet } else { Objection::Unprofiled(None) });
        }
        if by_throughput
            && let Some(objection) =
                slowdown::unprofiled(self.state, want.job, self.id, self.gpu, want.sharing)
        {
            return Some(objection);
        }
        if !limited {
            return None;
        }
        slowdown::objection(self.state, job, self.id, self.gpu, want.sharing)
    }

    fn bars_mps(&self, want: &Want) -> Option<Bar> {
        match want.sharing {
            SharingMode::Mps => self.cooldown.map(Bar::MpsCooldown),
            SharingMode::Exclusive | SharingMode::TimeSlice => None,
        }
    }

    /// What is predicted of a job here, if this plan has placed no other here.
    pub(super) fn outlook(&self, want: &Want) -> Option<&Outlook> {
        let outlook = slowdown::outlook(self.state, want.job, self.id, self.gpu, want.sharing)?;
        self.added.is_empty().then_some(outlook)
    }

    /// A bar in full, for people.
    pub(super) fn refusal(&self, bar: Bar, want: &Want, options: &Options, now: Millis) -> Refusal {
        match bar {
            Bar::Closed => closed(self.gpu, options, now).unwrap_or(Refusal::Gone),
            Bar::TooSmall => Refusal::TooSmall { memory: self.gpu.info.memory },
            Bar::Busy => Refusal::Busy { holders: self.holders() },
            Bar::Exclusive(job) => Refusal::Exclusive { job },
            Bar::Starting(job, active_for) => Refusal::Starting { job, active_for, window: options.window },
            Bar::Rising(job) => Refusal::Rising {
                job,
                holds: self.gpu.tenant(job).and_then(|t| t.observed).unwrap_or_default(),
                forecast: self.gpu.tenant(job).and_then(|t| t.forecast).unwrap_or_default(),
                window: options.window,
            },
            Bar::Memory => Refusal::Memory { free: self.free.unwrap_or_default(), holders: self.holders() },
            Bar::Gate => Refusal::Gate(self.gate),
            Bar::Full(most) => Refusal::Full { most },
            Bar::Pack => Refusal::Pack { rule: self.pack, load: self.load, newcomer: want.load },
            Bar::MpsCooldown(left) => Refusal::MpsCooldown { left },
            Bar::Slowdown(objection) => match objection {
                Objection::Exceeded { job, expected, upper, limit } => {
                    Refusal::Slowdown { job, expected, upper, limit }
                }
                Objection::Unknown(job) => Refusal::Unpredicted { job: Some(job) },
                Objection::NotYet => Refusal::Unpredicted { job: None },
                Objection::Foreign => Refusal::Uncontrolled,
                Objection::Apart(job) => Refusal::Apart { job },
                Objection::Unprofiled(job) => Refusal::Unprofiled { job },
            },
        }
    }

    /// Who has the GPU's memory, largest first.
    fn holders(&self) -> Vec<Holder> {
        let capacity = self.gpu.info.memory;
        let mut holders: Vec<(MiB, Holder)> = Vec::new();
        for tenant in &self.gpu.tenants {
            let memory = tenant.takes(capacity);
            holders.push((memory, Holder::Job { job: tenant.job, memory }));
        }
        for (job, memory) in &self.added {
            let memory = memory.unwrap_or_default();
            holders.push((memory, Holder::Job { job: *job, memory }));
        }
        // Processes of jobs that are over and linger.
        for (job, memory) in self.gpu.seen.iter().flat_map(|s| &s.jobs) {
            if self.gpu.tenant(*job).is_none() {
                let memory = memory.unwrap_or_default();
                holders.push((memory, Holder::Job { job: *job, memory }));
            }
        }
        for f in self.gpu.foreign() {
            let holder = Holder::Foreign { pid: f.pid, user: f.user.clone(), memory: f.memory };
            holders.push((f.memory.unwrap_or_default(), holder));
        }
        holders.sort_by_key(|(memory, _)| std::cmp::Reverse(*memory));
        holders.into_iter().map(|(_, holder)| holder).collect()
    }

    pub(super) fn take(&mut self, job: JobId, want: &Want) {
        let capacity = self.gpu.info.memory;
        let memory = match want.reservation {
            Reservation::Memory(_) => want.reserved_on(capacity).map(|m| m.min(capacity)),
            Reservation::Whole => Some(capacity),
            Reservation::None => None,
        };
        self.free = self.free.map(|free| free - memory.unwrap_or_default());
        self.idle = false;
        self.tenants += 1;
        self.limited |= want.limited;
        self.load = self.load.zip(want.load).map(|(there, new)| there.saturating_add(new));
        self.added.push((job, memory));
        if want.alone {
            self.exclusive = Some(job);
        }
        let entry = Some((job, None));
        self.starting = self.starting.or(entry);
        if !matches!(want.reservation, Reservation::Memory(_)) {
            self.starting_blind = self.starting_blind.or(entry);
        }
        if want.reservation == Reservation::Whole {
            self.starting_unknown = self.starting_unknown.or(entry);
        }
    }
}

/// How long a GPU takes no MPS clients yet, after a fault.
pub(super) fn cooldown(gpu: &Gpu, options: &Options, now: Millis) -> Option<Millis> {
    let left = (gpu.last_fault? + options.mps_cooldown).since(now);
    (left > Millis::ZERO).then_some(left)
}

/// Why nobody may be placed on a GPU, whatever they want.
pub(super) fn closed(gpu: &Gpu, options: &Options, now: Millis) -> Option<Refusal> {
    if !gpu.present {
        return Some(Refusal::Gone);
    }
    let Some(seen) = &gpu.seen else {
        return Some(Refusal::Stale { age: None });
    };
    match &seen.health {
        Health::Ok => {}
        Health::Lost(why) | Health::Unreadable(why) => {
            return Some(Refusal::Unhealthy { why: why.clone() });
        }
    }
    if let Some(by) = &gpu.drained_by {
        return Some(Refusal::Drained { by: by.clone() });
    }
    let age = now.since(seen.at);
    if age > options.stale_after {
        return Some(Refusal::Stale { age: Some(age) });
    }
    if seen.used.is_none() {
        return Some(Refusal::Unhealthy { why: "its memory use could not be read".into() });
    }
    None
}

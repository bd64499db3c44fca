//! One GPU while a plan is made: what the ledger says plus what the plan has placed there already, and why it does not do
//! for a job.
//!
//! Which GPU is taken among those that do is in [`super::search`].

mod objection;

use super::beside::{Beside, Neighbour};
use super::want::Want;
use crate::explain::{Holder, Objection, Refusal};
use crate::ledger::{Gpu, Reservation, Tenant};
use crate::model::{GpuId, JobId, SharingMode};
use crate::policy::{GateVerdict, Options, Pack};
use crate::progress::{Outlook, Pace, Predicted};
use crate::reading::Health;
use crate::slowdown::{limit, limited_tenant, was_parted};
use crate::state::{Server, Startup, State};
use crate::units::{Fraction, MiB, Millis};
use crate::windows::Risk;
use objection::not_predicted;
use std::borrow::Cow;

/// Why a GPU does not do for a job, in short: asked of every GPU for many jobs, so without details.
#[derive(Clone, Copy)]
pub(super) enum Bar {
    Closed,
    TooSmall,
    /// A MIG instance, for a job on several GPUs.
    Slice,
    Busy,
    Exclusive(JobId),
    Starting(JobId, Option<Millis>),
    Rising(JobId),
    Memory,
    Gate,
    Full(u32),
    Pack,
    MpsCooldown(Millis),
    Progress(Objection),
    /// Kept for another job: one that is overdue, urgent or suspended, or for which room is made.
    Held(JobId),
}

/// One GPU while a plan is made: the ledger plus what this plan has placed already.
pub(super) struct Slot<'a> {
    pub(super) id: GpuId,
    pub(super) gpu: &'a Gpu,
    /// No job can be placed on it.
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
    now: Millis,
    state: &'a State,
    /// A tenant that has a limit of slowdown.
    pub(super) limited: Option<JobId>,
    /// A tenant was parted from another before.
    any_parted: bool,
    /// The jobs that are there, where predictions count.
    beside: Option<Beside<'a>>,
    /// The job that it is kept for.
    held: Option<JobId>,
    /// For so long another may have it all the same: until that job can have all that it wants.
    lent_for: Millis,
    /// For so long to a job that hardly slows down those that are here.
    lent_beside: Millis,
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
            now,
            state,
            limited: limited_tenant(state, gpu),
            any_parted: gpu.tenants.iter().any(|t| state.job(t.job).is_some_and(was_parted)),
            beside: None,
            held: None,
            lent_for: Millis::ZERO,
            lent_beside: Millis::ZERO,
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
        if self.closed { Some(Bar::Closed) } else { self.bars_idle_if_open(want) }
    }

    fn bars_idle_if_open(&self, want: &Want) -> Option<Bar> {
        if let Some(bar) = self.unsuited(want) {
            Some(bar)
        } else if !self.idle {
            Some(Bar::Busy)
        } else if let Some(job) = self.held_from(want) {
            Some(Bar::Held(job))
        } else {
            self.bars_mps(want)
        }
    }

    /// Why a job may not share this one.
    pub(super) fn bars_shared(&self, want: &Want) -> Option<Bar> {
        if self.closed {
            return Some(Bar::Closed);
        }
        if let Some(bar) = self.unsuited(want) {
            return Some(bar);
        }
        if let Some(bar) = self.kept(want) {
            return Some(bar);
        }
        if let Some(job) = self.rising {
            return Some(Bar::Rising(job));
        }
        if !self.has_room(want) {
            return Some(Bar::Memory);
        }
        self.bars_at_any_memory(want)
    }

    /// Why a job could not have it even if it were free.
    fn unsuited(&self, want: &Want) -> Option<Bar> {
        let info = &self.gpu.info;
        let why = if info.memory < want.least_capacity { Bar::TooSmall } else { Bar::Slice };
        (!want.suits(info)).then_some(why)
    }

    /// Which job has it alone, for now or for good.
    fn kept(&self, want: &Want) -> Option<Bar> {
        if let Some(job) = self.exclusive {
            return Some(Bar::Exclusive(job));
        }
        if let Some(job) = self.held_from(want) {
            return Some(Bar::Held(job));
        }
        // All of it is reserved, but only until that job's need is known: say that rather than
        // that it holds all the memory.
        self.starting_unknown.map(|(job, active_for)| Bar::Starting(job, active_for))
    }

    /// Whether it would do for a job once our jobs have left it. What else is here, and has been for long, may stay for ever.
    pub(super) fn does_once_empty(&self, want: &Want) -> bool {
        if !want.suits(&self.gpu.info) {
            return false;
        }
        if !self.is_taken() {
            return true;
        }
        // What strangers do to a job with a limit of slowdown is not predicted.
        let barred = want.idle_only || (want.limited && !self.gpu.foreign().is_empty());
        let free = self.gpu.free_without_jobs(self.state.options().policy.reserve);
        !barred && self.need_of(want).is_none_or(|need| free >= need.max(MiB(1)))
    }

    /// Whether something is here, and has been for long, that does not leave with our jobs.
    fn is_taken(&self) -> bool {
        self.gpu.passes_until().is_some_and(|until| until <= self.now)
    }

    /// Whether no other job has it for itself.
    pub(super) fn is_open_to(&self, want: &Want) -> bool {
        !self.closed
            && self.exclusive.is_none()
            && self.held_from(want).is_none()
            && self.unsuited(want).is_none()
    }

    /// Another job that it is kept for.
    pub(super) fn held_from(&self, want: &Want) -> Option<JobId> {
        self.held.filter(|job| *job != want.job && !self.is_over_in_time(want))
    }

    /// Why a suspended job may not come back to this one. `off`: when it left it; `None`: it was on another. Nothing is
    /// predicted anew, and what it does to others is measured; but no job with a limit of slowdown that came meanwhile is slowed
    /// down by it, and it is not slowed down beyond its own limit by neighbours that are new to it. `although_drained`: it was to move away
    /// from here, and cannot.
    pub(super) fn bars_return(
        &self,
        want: &Want,
        off: Option<Millis>,
        although_drained: bool,
    ) -> Option<Bar> {
        let is_usable = || unusable(self.gpu, self.state.options(), self.now).is_none();
        if self.closed && !(although_drained && is_usable()) {
            return Some(Bar::Closed);
        }
        if want.alone {
            return self.bars_idle_if_open(want);
        }
        if let Some(bar) = self.kept(want) {
            return Some(bar);
        }
        if !self.has_room(want) {
            return Some(Bar::Memory);
        }
        if let Some(most) = self.most_jobs.filter(|most| self.tenants >= *most) {
            return Some(Bar::Full(most));
        }
        if want.limited && off.is_none() && self.tenants > 0 {
            return Some(Bar::Progress(not_predicted(want.job)));
        }
        let came = |t: &&Tenant| off.is_none_or(|off| t.placed > off);
        let limited = |t: &&Tenant| self.state.job(t.job).is_some_and(|job| limit(self.state, job).is_some());
        let newcomer = self.gpu.tenants.iter().filter(came).find(limited);
        newcomer.map(|tenant| Bar::Progress(not_predicted(tenant.job)))
    }

    /// Memory that must be free here for the job, guard included; `None`: no amount is asked for.
    pub(super) fn need_of(&self, want: &Want) -> Option<MiB> {
        let memory = self.gpu.info.memory;
        match want.blind {
            Some(blind) => Some(blind.least_on(memory, self.sharing_for(want))),
            None => want.need_on(memory),
        }
    }

    /// Whether as much memory is free as the job needs.
    pub(super) fn has_room(&self, want: &Want) -> bool {
        let need = self.need_of(want);
        // All of it may be reserved where nothing is free: that leaves no room for one that needs nothing, either.
        need.is_none_or(|need| self.free.unwrap_or_default() >= need.max(MiB(1)))
    }

    /// The part of [`Self::bars_shared`] that comes after memory.
    fn bars_at_any_memory(&self, want: &Want) -> Option<Bar> {
        // What a hard limit keeps a job to is known of it.
        let known = matches!(want.reservation, Reservation::Memory(_)) || self.caps(want);
        let starting = if known { self.starting_blind } else { self.starting };
        if let Some((job, active_for)) = starting {
            Some(Bar::Starting(job, active_for))
        } else if self.gate != GateVerdict::Open {
            Some(Bar::Gate)
        } else if let Some(most) = self.most_jobs.filter(|most| self.tenants >= *most) {
            Some(Bar::Full(most))
        } else if !self.pack.allows(self.tenants, self.load, want.load) {
            Some(Bar::Pack)
        } else if let Some(objection) = self.objection(want) {
            Some(Bar::Progress(objection))
        } else {
            self.bars_mps(want)
        }
    }

    /// Time that the last job here takes from now on at the least speed that it is to keep, where predictions count.
    pub(super) fn left(&self) -> Millis {
        let rule = self.state.options().policy.progress;
        self.beside.as_ref().map_or(Millis::ZERO, |beside| beside.left(rule))
    }

    /// Time until no job is here, as far as is known: without end where what is here is not ours. Zero where predictions do not count.
    pub(super) fn idle_in(&self) -> Millis {
        if self.is_taken() {
            return Millis(u64::MAX);
        }
        self.beside.as_ref().map_or(Millis::ZERO, Beside::idle_in)
    }

    /// The same, if no further job takes longer than expected.
    pub(super) fn idle_as_expected_in(&self) -> Millis {
        self.beside.as_ref().map_or(Millis::ZERO, Beside::idle_as_expected_in)
    }

    /// Time that it likely takes alone, also if it has taken longer than expected.
    pub(super) fn likely_left(&self) -> Millis {
        self.beside.as_ref().map_or(Millis::ZERO, Beside::likely_left)
    }

    /// Whether this plan has placed a job here.
    pub(super) const fn has_added(&self) -> bool {
        !self.added.is_empty()
    }

    /// Whether only a prediction is missing for a job to join, as far as is known.
    pub(super) fn is_unpredicted(&self, want: &Want) -> bool {
        matches!(
            self.bars_shared(want),
            Some(Bar::Progress(
                Objection::Unpredicted { job: None, .. } | Objection::Unprofiled { job: None }
            ))
        )
    }

    fn bars_mps(&self, want: &Want) -> Option<Bar> {
        cooldown(self.gpu, want, self.state.options(), self.now).map(Bar::MpsCooldown)
    }

    /// How a job would share this one: where MPS cannot be had, by taking turns.
    pub(super) fn sharing_for(&self, want: &Want) -> SharingMode {
        self.gpu.shares_by(want.sharing)
    }

    /// The MPS server that it would have here.
    fn server_for(&self, want: &Want) -> Option<u32> {
        (self.sharing_for(want) == SharingMode::Mps).then_some(want.server)
    }

    /// The one MPS server of the jobs here, where predictions count.
    pub(super) fn server(&self) -> Option<u32> {
        match self.beside.as_ref()?.server() {
            Server::One(server) => Some(server),
            Server::Unused | Server::Several => None,
        }
    }

    /// What is predicted of a job here, beside the jobs that are there once it works.
    pub(super) fn outlook(&self, want: &Want) -> Option<Cow<'a, Outlook>> {
        let (beside, now) = self.outlook_now(want)?;
        Some(beside.outlook_at_work(now, self.server_for(want), want.start))
    }

    /// The jobs that are there now, and what is predicted of a job beside them.
    fn outlook_now(&self, want: &Want) -> Option<(&Beside<'a>, &'a Outlook)> {
        let beside = self.beside.as_ref()?;
        Some((beside, beside.outlook(want.class, self.server_for(want))?))
    }

    /// What is predicted, job by job.
    pub(super) fn predicted(&self, want: &Want) -> Vec<Predicted> {
        let told = self.beside.as_ref().zip(self.outlook(want));
        told.map(|(beside, outlook)| beside.predicted(want.job, &outlook, want.start)).unwrap_or_default()
    }

    /// The jobs here of which nothing is predicted, since they are taken to be over before this one works.
    pub(super) fn over_before(&self, want: &Want) -> Vec<JobId> {
        let told = self.beside.as_ref().filter(|_| self.outlook(want).is_some());
        told.map(|beside| beside.over_before(want.start)).unwrap_or_default()
    }

    /// Time until one more of the jobs here is taken to be over before one works that starts up like this.
    pub(super) fn next_over_before(&self, start: Startup) -> Option<Millis> {
        self.beside.as_ref()?.next_over_before(start)
    }

    /// Looks at the jobs that are there, for predictions.
    pub(super) fn look_beside(&mut self) {
        self.beside = Some(Beside::new(self.state, self.id, self.gpu));
    }

    /// Keeps it for a job, unless it is kept for another.
    pub(super) fn hold_for(&mut self, job: JobId) {
        self.held = self.held.or(Some(job));
    }

    /// Others may have it for so long, although it is kept for a job; and jobs that hardly slow down those that are here, for as long as
    /// that job waits at least.
    pub(super) fn lend(&mut self, time: Millis, waits_at_least: Millis) {
        (self.lent_for, self.lent_beside) = (time, waits_at_least);
    }

    /// How long a job waits at least until enough of the jobs here have ended for it, each alone and as expected: one of them where only its
    /// speed or theirs keeps it off. Zero where it may come, and where this plan has placed one of them.
    pub(super) fn waits_at_least(&self, want: &Want) -> Millis {
        let Some((ends, mut free)) = self.beside.as_ref().and_then(Beside::ends).zip(self.free) else {
            return Millis::ZERO;
        };
        let need = self.need_of(want);
        let mut waits = Millis::ZERO;
        for (left, job) in ends {
            let has_room = !want.idle_only && need.is_none_or(|need| need <= free);
            if has_room && (waits > Millis::ZERO || self.objection(want).is_none()) {
                break;
            }
            free += self.gpu.tenant(job).map(|tenant| tenant.takes(self.gpu.info.memory)).unwrap_or_default();
            waits = left;
        }
        waits
    }

    pub(super) fn is_lent(&self) -> bool {
        self.lent_for > Millis::ZERO
    }

    /// Whether a job, and all that it would be together with here, would be over before the one that this is kept
    /// for can have it, even if each keeps no more of its speed than it must. Where that one waits for the ends of jobs that it hardly
    /// slows down, anyway, it is to be over before them at the speed that is predicted.
    fn is_over_in_time(&self, want: &Want) -> bool {
        if !self.is_lent() {
            return false;
        }
        let takes = want.lent_at_most();
        if self.idle {
            return takes <= self.lent_for;
        }
        let rule = self.state.options().policy.progress;
        let Some((rule, beside)) = rule.zip(self.beside.as_ref()) else { return false };
        let own = takes.at_speed(rule.with(want.floor).dip());
        own.max(beside.idle_at_least_speed_in(rule)) <= self.lent_for || self.hardly_slows_down(want)
    }

    /// Whether a job is predicted to be over before the jobs here, and these to keep most of the speed that they have until then, or to
    /// lose little of the time for which the one that this is kept for waits.
    fn hardly_slows_down(&self, want: &Want) -> bool {
        self.outlook_now(want).is_some_and(|(beside, outlook)| {
            let stays = want.lent_at_most().at_speed(outlook.joins.expected);
            if stays > self.lent_beside {
                return false;
            }
            let may_lose = Millis(stays.0 / 20).max(Millis(self.lent_beside.0 / 100));
            let keeps = |(neighbour, pace): (&Neighbour, Pace)| {
                let now = beside.pace_now(neighbour).unwrap_or(Fraction::ONE);
                let loses = u128::from(now.0.saturating_sub(pace.expected.0)) * u128::from(stays.0);
                loses <= u128::from(now.0) * u128::from(may_lose.0)
            };
            outlook.has_paces() && beside.paces(outlook).all(keeps)
        })
    }

    pub(super) const fn held(&self) -> Option<JobId> {
        self.held
    }

    /// A bar with its numbers, for people.
    pub(super) fn refusal(&self, bar: Bar, want: &Want, options: &Options, now: Millis) -> Refusal {
        match bar {
            Bar::Closed => closed(self.gpu, options, now).unwrap_or(Refusal::Gone),
            Bar::TooSmall => Refusal::TooSmall { memory: self.gpu.info.memory },
            Bar::Slice => Refusal::Slice,
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
            Bar::Progress(objection) => Refusal::Progress(objection),
            Bar::Held(job) => Refusal::Held { job },
        }
    }

    /// What holds the GPU's memory, largest first.
    fn holders(&self) -> Vec<Holder> {
        let capacity = self.gpu.info.memory;
        let is_known = self.gpu.seen.as_ref().is_some_and(|seen| seen.processes_known);
        let mut holders: Vec<(MiB, Holder)> = Vec::new();
        for tenant in &self.gpu.tenants {
            let (memory, has) = (tenant.takes(capacity), tenant.observed);
            let untouched_for = tenant.untouched_for(self.now, self.state.options()).filter(|_| is_known);
            holders.push((memory, Holder::Job { job: tenant.job, memory, has, untouched_for }));
        }
        for (job, memory) in &self.added {
            let memory = memory.unwrap_or_default();
            holders.push((memory, Holder::Job { job: *job, memory, has: None, untouched_for: None }));
        }
        // Processes of jobs that are over and linger.
        for (job, memory) in self.gpu.seen.iter().flat_map(|s| &s.jobs) {
            if self.gpu.tenant(*job).is_none() {
                let memory = memory.unwrap_or_default();
                let has = Some(memory);
                holders.push((memory, Holder::Job { job: *job, memory, has, untouched_for: None }));
            }
        }
        for f in self.gpu.foreign() {
            let holder = Holder::Foreign { pid: f.pid, user: f.user.clone(), memory: f.memory };
            holders.push((f.memory.unwrap_or_default(), holder));
        }
        holders.sort_by_key(|(memory, _)| std::cmp::Reverse(*memory));
        holders.into_iter().map(|(_, holder)| holder).collect()
    }

    /// Whether a hard limit would keep a job of unknown memory to its part here.
    fn caps(&self, want: &Want) -> bool {
        want.blind.is_some_and(|blind| blind.is_capped(self.sharing_for(want)))
    }

    /// `part`: what a job of unknown memory gets of each of its GPUs.
    pub(super) fn take(&mut self, job: JobId, want: &Want, part: Option<MiB>) {
        let capacity = self.gpu.info.memory;
        let memory = match want.reservation {
            _ if want.blind.is_some() => part,
            Reservation::Memory(_) => want.reserved_on(capacity).map(|m| m.min(capacity)),
            Reservation::Whole => Some(capacity),
            Reservation::None => None,
        };
        self.free = self.free.map(|free| free - memory.unwrap_or_default());
        self.idle = false;
        self.tenants += 1;
        self.limited = self.limited.or(want.limited.then_some(job));
        self.load = self.load.zip(want.load).map(|(there, new)| there.saturating_add(new));
        self.added.push((job, memory));
        let server = self.server_for(want);
        if let Some(beside) = &mut self.beside {
            beside.join(job, want, server);
        }
        if want.alone {
            self.exclusive = Some(job);
        }
        let entry = Some((job, None));
        self.starting = self.starting.or(entry);
        let part = want.blind.is_some();
        if !part && !matches!(want.reservation, Reservation::Memory(_)) {
            self.starting_blind = self.starting_blind.or(entry);
        }
        if !part && want.reservation == Reservation::Whole {
            self.starting_unknown = self.starting_unknown.or(entry);
        }
    }
}

/// MPS servers of which a GPU takes no clients yet, after a fault, and for how long.
pub(super) fn cooldowns(gpu: &Gpu, options: &Options, now: Millis) -> impl Iterator<Item = (u32, Millis)> {
    let left = move |at: Millis| (at + options.mps_cooldown).since(now);
    let servers = gpu.faults.iter().map(move |(server, at)| (*server, left(*at)));
    servers.filter(|(_, left)| *left > Millis::ZERO)
}

/// How long the MPS server that a job would have on a GPU takes no clients yet.
pub(super) fn cooldown(gpu: &Gpu, want: &Want, options: &Options, now: Millis) -> Option<Millis> {
    let mut left = cooldowns(gpu, options, now).filter(|(server, _)| *server == want.server);
    left.next().map(|(_, left)| left).filter(|_| gpu.shares_by(want.sharing) == SharingMode::Mps)
}

/// Why no job may be placed on a GPU.
pub(super) fn closed(gpu: &Gpu, options: &Options, now: Millis) -> Option<Refusal> {
    let why = unusable(gpu, options, now);
    match &gpu.drained_by {
        // It stays out of use until it is resumed, whatever its next reading.
        Some(by) if matches!(why, None | Some(Refusal::Stale { age: Some(_) })) => {
            Some(Refusal::Drained { by: by.clone() })
        }
        _ => why,
    }
}

/// Why no job can be on a GPU, drained or not.
fn unusable(gpu: &Gpu, options: &Options, now: Millis) -> Option<Refusal> {
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
    let age = now.since(seen.at);
    if age > options.stale_after {
        return Some(Refusal::Stale { age: Some(age) });
    }
    if seen.used.is_none() {
        return Some(Refusal::Unhealthy { why: "its memory use could not be read".into() });
    }
    None
}

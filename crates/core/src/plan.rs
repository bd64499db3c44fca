//! The plan: what to do now, and why.
//!
//! A pure function of state and time. It does not change the state: each action taken comes back as
//! [`crate::Input::Decided`].

use crate::explain::{Holder, NoGpu, Reason, Refusal};
use crate::input::Action;
use crate::ledger::{Gpu, Promise};
use crate::model::{Floor, GpuId, Job, JobId, JobState, Phase, Placement, SharingMode};
use crate::policy::{GateVerdict, MemoryScreen, Options, Order};
use crate::reading::Health;
use crate::state::{State, end_due};
use crate::units::{Fraction, MiB, Millis};
use crate::windows::Risk;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What to do now.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    /// In order.
    pub actions: Vec<Action>,
    /// Why each job that stays pending does, in queue order.
    pub waiting: Vec<(JobId, Reason)>,
    /// When, at the latest, another plan may differ because of the time alone.
    pub wake: Option<Millis>,
}

/// Decides what to do in this state at this time.
#[must_use]
pub fn plan(state: &State, now: Millis) -> Plan {
    let now = now.max(state.now());
    let mut plan = Plan::default();
    end_jobs(state, now, &mut plan);
    judge_faults(state, now, &mut plan);
    place_jobs(state, now, &mut plan);
    plan
}

/// Why a job waits, looked at alone: what each GPU says to it now.
#[must_use]
pub fn evaluate(state: &State, now: Millis, job: &Job) -> Reason {
    let now = now.max(state.now());
    let slots = Slots::new(state, now);
    match slots.find(state, &Want::of(state, job)) {
        Ok(found) => found.reason,
        Err(reason) => reason,
    }
}

impl Plan {
    fn wake_at(&mut self, at: Millis) {
        self.wake = Some(self.wake.map_or(at, |w| w.min(at)));
    }
}

/// Signals that are due, and when the next ones are.
fn end_jobs(state: &State, now: Millis, plan: &mut Plan) {
    let grace = state.options().kill_grace;
    for job in state.active().iter().filter_map(|id| state.job(*id)) {
        let Phase::Running {
            placement,
            started,
            ending,
            ..
        } = &job.phase
        else {
            continue;
        };
        if let Some((level, cause)) = end_due(job, now, grace) {
            plan.actions.push(Action::End {
                job: job.spec.id,
                attempt: placement.attempt,
                level,
                cause,
            });
            plan.wake_at(now + grace);
        } else if let Some((_, at)) = ending.as_ref().and_then(|e| e.sent) {
            plan.wake_at((at + grace).max(now + Millis(1)));
        } else if let Some(limit) = job.spec.request.time_limit {
            plan.wake_at(*started + limit);
        }
    }
}

/// A job that died of a fatal fault under MPS.
struct Fallen<'a> {
    job: &'a Job,
    placement: &'a Placement,
    at: Millis,
    line: String,
}

/// Verdicts on faults under MPS. Everybody on the server dies with the same message, so the culprit
/// is inferred: the command that has faulted before, else the first to report.
fn judge_faults(state: &State, now: Millis, plan: &mut Plan) {
    let options = state.options();
    let mut fallen: Vec<Fallen<'_>> = Vec::new();
    for job in state.active().iter().filter_map(|id| state.job(*id)) {
        if let Phase::Judging {
            placement,
            exit,
            at,
        } = &job.phase
        {
            let line = exit
                .evidence
                .as_ref()
                .map_or_else(String::new, |e| e.line.clone());
            fallen.push(Fallen {
                job,
                placement,
                at: *at,
                line,
            });
        }
    }
    fallen.sort_by_key(|f| (f.at, f.job.spec.id));
    while !fallen.is_empty() {
        let first = fallen.remove(0);
        let (mut group, rest): (Vec<_>, Vec<_>) = fallen.into_iter().partition(|other| {
            same_server(
                options,
                first.job,
                first.placement,
                other.job,
                other.placement,
            ) && other.at.since(first.at) <= options.fault_window
        });
        fallen = rest;
        let still_running = state.active().iter().filter_map(|id| state.job(*id)).any(|other| {
            matches!(&other.phase, Phase::Running { placement, .. } | Phase::Launching { placement, .. }
                if same_server(options, first.job, first.placement, other, placement))
        });
        let due = first.at + options.fault_window;
        if still_running && now < due {
            plan.wake_at(due);
            continue;
        }
        group.insert(0, first);
        verdicts(state, &group, plan);
    }
}

/// Whether two jobs were clients of one MPS server on some GPU.
fn same_server(options: &Options, a: &Job, pa: &Placement, b: &Job, pb: &Placement) -> bool {
    pa.sharing == SharingMode::Mps
        && pb.sharing == SharingMode::Mps
        && (options.mps_multi_user || a.spec.user.uid == b.spec.user.uid)
        && pa.gpus.iter().any(|g| pb.gpus.contains(g))
}

fn verdicts(state: &State, group: &[Fallen<'_>], plan: &mut Plan) {
    let faults = |f: &Fallen<'_>| state.faults_of(f.job.spec.command_key);
    let most = group.iter().map(faults).max().unwrap_or(0);
    let Some(culprit) = group.iter().find(|f| faults(f) == most) else {
        return;
    };
    let because: Arc<str> = match (most, group.len()) {
        (_, 1) => "no other job died with it".into(),
        (0, _) => "it was the first to report".into(),
        (n, _) => format!("its command faulted {n} time(s) before").into(),
    };
    let id = culprit.job.spec.id;
    let victims: Vec<JobId> = group
        .iter()
        .map(|f| f.job.spec.id)
        .filter(|v| *v != id)
        .collect();
    for fallen in group {
        let own = fallen.job.spec.id == id;
        let reason = if own {
            Reason::FaultCulprit {
                line: fallen.line.clone(),
                victims: victims.clone(),
                because: because.clone(),
            }
        } else {
            Reason::FaultVictim {
                culprit: id,
                line: fallen.line.clone(),
            }
        };
        plan.actions.push(Action::SetState {
            job: fallen.job.spec.id,
            state: if own {
                JobState::Failed
            } else {
                JobState::Pending
            },
            reason,
        });
    }
}

/// What a pending job wants of a GPU.
struct Want {
    gpus: u32,
    /// Only GPUs that nobody is on.
    idle_only: bool,
    /// A GPU with less memory than this cannot do.
    least_capacity: MiB,
    /// Memory that must be available for sharing, guard included.
    need: Option<MiB>,
    /// What is set aside.
    promise: Promise,
    source: Option<&'static str>,
    sharing: SharingMode,
    /// Whether neighbours are refused afterwards.
    alone: bool,
}

/// Jobs with the same key differ in memory at most: if one needs no less than another that did not
/// fit, it does not fit either.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct WantClass {
    gpus: u32,
    idle_only: bool,
    sharing: SharingMode,
    forecast: bool,
}

impl Want {
    fn of(state: &State, job: &Job) -> Self {
        let options = state.options();
        let policy = &options.policy;
        let (promise, forecast) = state.promise_for(job);
        let recovering_alone = job.floor == Some(Floor::ExclusiveGpu);
        let alone = job.spec.request.exclusive
            || recovering_alone
            || policy.order == Order::Exclusive
            || job.spec.request.sharing == Some(SharingMode::Exclusive);
        let floor = match job.floor {
            Some(Floor::Memory(m)) => m,
            Some(Floor::ExclusiveGpu) | None => MiB::ZERO,
        };
        let need = match policy.memory {
            MemoryScreen::None => job.floor.is_some().then_some(floor),
            MemoryScreen::Floor(least) => Some(least.max(floor)),
            MemoryScreen::Forecast { guard, .. } => forecast.map(|m| m + guard),
        };
        let faulty = state.faults_of(job.spec.command_key) > 0;
        let sharing = if alone {
            SharingMode::Exclusive
        } else {
            match job.spec.request.sharing.unwrap_or(options.sharing) {
                SharingMode::Mps if faulty => SharingMode::TimeSlice,
                mode => mode,
            }
        };
        Self {
            gpus: job.spec.request.gpus,
            idle_only: alone || promise == Promise::Whole,
            least_capacity: floor.max(job.spec.forecasts.declared.unwrap_or_default()),
            need,
            promise,
            source: if floor > MiB::ZERO {
                Some("after out-of-memory")
            } else {
                policy
                    .forecast(&job.spec.forecasts)
                    .map(|(_, source)| source)
            },
            sharing,
            alone,
        }
    }

    const fn class(&self) -> WantClass {
        WantClass {
            gpus: self.gpus,
            idle_only: self.idle_only,
            sharing: self.sharing,
            forecast: matches!(self.promise, Promise::Memory(_)),
        }
    }

    /// Memory by which jobs of one class are compared: what sharing needs, and what a GPU must have.
    fn weight(&self) -> (MiB, MiB) {
        (self.need.unwrap_or_default(), self.least_capacity)
    }

    fn set_aside(&self) -> Option<MiB> {
        match self.promise {
            Promise::Memory(m) => Some(m),
            Promise::Whole | Promise::None => None,
        }
    }
}

/// One GPU while a plan is made: the ledger plus what this plan has placed already.
struct Slot<'a> {
    id: GpuId,
    gpu: &'a Gpu,
    /// Nobody can have it, whatever they want.
    closed: Option<Refusal>,
    free: Option<MiB>,
    idle: bool,
    tenants: u32,
    exclusive: Option<JobId>,
    /// A tenant that is still starting.
    starting: Option<(JobId, Option<Millis>)>,
    /// A tenant that is still starting and has no forecast.
    starting_blind: Option<(JobId, Option<Millis>)>,
    gate: GateVerdict,
    smact: Option<Fraction>,
    cooldown: Option<Millis>,
    /// Placed by this plan.
    added: Vec<(JobId, Option<MiB>)>,
}

impl<'a> Slot<'a> {
    fn new(id: GpuId, gpu: &'a Gpu, options: &Options, now: Millis) -> Self {
        let mut slot = Self {
            id,
            gpu,
            closed: closed(gpu, options, now),
            free: gpu.free(options.policy.reserve),
            idle: gpu.is_idle(),
            tenants: u32::try_from(gpu.tenants.len()).unwrap_or(u32::MAX),
            exclusive: gpu.tenants.iter().find(|t| t.exclusive).map(|t| t.job),
            starting: None,
            starting_blind: None,
            gate: GateVerdict::Open,
            smact: None,
            cooldown: gpu
                .last_fault
                .map(|at| (at + options.mps_cooldown).since(now))
                .filter(|left| *left > Millis::ZERO),
            added: Vec::new(),
        };
        for tenant in &gpu.tenants {
            let waiting = tenant.active_since.is_none();
            let given_up = waiting && now.since(tenant.placed) >= options.startup_patience;
            if tenant.settled || given_up {
                continue;
            }
            let entry = Some((tenant.job, tenant.active_since.map(|at| now.since(at))));
            slot.starting = slot.starting.or(entry);
            if !matches!(tenant.promise, Promise::Memory(_)) {
                slot.starting_blind = slot.starting_blind.or(entry);
            }
        }
        if let Some(seen) = &gpu.seen {
            slot.gate = options.policy.gate.judge(&seen.window);
            slot.smact = seen.window.smact.as_ref().map(|s| Risk::Carma.of(s));
        }
        slot
    }

    /// Whether a job that wants an idle GPU may have this one.
    fn refuses_idle(&self, want: &Want) -> Option<Refusal> {
        if let Some(refusal) = &self.closed {
            return Some(refusal.clone());
        }
        if !self.idle {
            return Some(Refusal::Busy {
                holders: self.holders(),
            });
        }
        if self.gpu.info.memory < want.least_capacity {
            return Some(Refusal::Memory {
                free: self.gpu.info.memory,
                holders: Vec::new(),
            });
        }
        self.refuses_mps(want)
    }

    /// Whether a job may share this one.
    fn refuses_shared(&self, want: &Want, options: &Options) -> Option<Refusal> {
        if let Some(refusal) = &self.closed {
            return Some(refusal.clone());
        }
        if let Some(job) = self.exclusive {
            return Some(Refusal::Exclusive { job });
        }
        let free = self.free.unwrap_or_default();
        let lacks = want.need.is_some_and(|need| free < need);
        if lacks || self.gpu.info.memory < want.least_capacity {
            return Some(Refusal::Memory {
                free,
                holders: self.holders(),
            });
        }
        let has_forecast = matches!(want.promise, Promise::Memory(_));
        let starting = if has_forecast {
            self.starting_blind
        } else {
            self.starting
        };
        if let Some((job, active_for)) = starting {
            return Some(Refusal::Starting {
                job,
                active_for,
                window: options.window,
            });
        }
        if self.gate != GateVerdict::Open {
            return Some(Refusal::Gate(self.gate));
        }
        self.refuses_mps(want)
    }

    fn refuses_mps(&self, want: &Want) -> Option<Refusal> {
        match (want.sharing, self.cooldown) {
            (SharingMode::Mps, Some(left)) => Some(Refusal::MpsCooldown { left }),
            _ => None,
        }
    }

    /// Who has the GPU's memory, largest first.
    fn holders(&self) -> Vec<Holder> {
        let capacity = self.gpu.info.memory;
        let mut holders: Vec<(MiB, Holder)> = Vec::new();
        for tenant in &self.gpu.tenants {
            let memory = tenant.takes(capacity);
            holders.push((
                memory,
                Holder::Job {
                    job: tenant.job,
                    memory,
                },
            ));
        }
        for (job, memory) in &self.added {
            let memory = memory.unwrap_or_default();
            holders.push((memory, Holder::Job { job: *job, memory }));
        }
        for f in self.gpu.foreign() {
            let holder = Holder::Foreign {
                pid: f.pid,
                user: f.user.clone(),
                memory: f.memory,
            };
            holders.push((f.memory.unwrap_or_default(), holder));
        }
        holders.sort_by_key(|(memory, _)| std::cmp::Reverse(*memory));
        holders.into_iter().map(|(_, holder)| holder).collect()
    }

    fn take(&mut self, job: JobId, want: &Want) {
        let capacity = self.gpu.info.memory;
        let memory = match want.promise {
            Promise::Memory(m) => Some(m.min(capacity)),
            Promise::Whole => Some(capacity),
            Promise::None => None,
        };
        self.free = self.free.map(|free| free - memory.unwrap_or_default());
        self.idle = false;
        self.tenants += 1;
        self.added.push((job, memory));
        if want.alone {
            self.exclusive = Some(job);
        }
        let entry = Some((job, None));
        self.starting = self.starting.or(entry);
        if !matches!(want.promise, Promise::Memory(_)) {
            self.starting_blind = self.starting_blind.or(entry);
        }
    }
}

/// Why nobody may be placed on a GPU, whatever they want.
fn closed(gpu: &Gpu, options: &Options, now: Millis) -> Option<Refusal> {
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
    if age > options.stale_after || seen.used.is_none() {
        return Some(Refusal::Stale { age: Some(age) });
    }
    None
}

/// A place that was found.
struct Found {
    slots: Vec<usize>,
    reason: Reason,
}

struct Slots<'a> {
    slots: Vec<Slot<'a>>,
    ring: u32,
}

impl<'a> Slots<'a> {
    fn new(state: &'a State, now: Millis) -> Self {
        let slots = (0..).map(GpuId).zip(state.gpus());
        let mut slots: Vec<_> = slots
            .map(|(id, gpu)| Slot::new(id, gpu, state.options(), now))
            .collect();
        slots.sort_by_key(|s| (s.gpu.info.index, s.id));
        Self {
            slots,
            ring: state.ring(),
        }
    }

    fn find(&self, state: &State, want: &Want) -> Result<Found, Reason> {
        let options = state.options();
        let policy = &options.policy;
        let wanted = want.gpus as usize;
        if policy.idle_first || want.idle_only {
            let idle: Vec<usize> = (0..self.slots.len())
                .filter(|i| self.slots[*i].refuses_idle(want).is_none())
                .collect();
            if idle.len() >= wanted {
                let slots = idle[..wanted].to_vec();
                let gpus = self.indices(&slots);
                return Ok(Found {
                    slots,
                    reason: Reason::PlacedIdle {
                        gpus,
                        need: want.set_aside(),
                    },
                });
            }
        }
        let mut refusals = Vec::new();
        let mut fitting: Vec<usize> = Vec::new();
        for (i, slot) in self.slots.iter().enumerate() {
            let refusal = if want.idle_only {
                slot.refuses_idle(want)
            } else {
                slot.refuses_shared(want, options)
            };
            match refusal {
                Some(refusal) => refusals.push((slot.gpu.info.index, refusal)),
                None => fitting.push(i),
            }
        }
        if fitting.len() < wanted || want.idle_only {
            return Err(Reason::NoGpu {
                gpus: want.gpus,
                need: want.need,
                source: want.source.map(Into::into),
                detail: Arc::new(NoGpu {
                    fitting: u32::try_from(fitting.len()).unwrap_or(u32::MAX),
                    refusals,
                }),
            });
        }
        self.sort(policy.order, &mut fitting);
        let candidates = u32::try_from(fitting.len()).unwrap_or(u32::MAX);
        fitting.truncate(wanted);
        Ok(Found {
            reason: self.shared_reason(want, policy.order, &fitting, candidates),
            slots: fitting,
        })
    }

    fn shared_reason(
        &self,
        want: &Want,
        order: Order,
        chosen: &[usize],
        candidates: u32,
    ) -> Reason {
        let gpus = self.indices(chosen);
        let first = &self.slots[chosen[0]];
        if chosen.iter().all(|i| self.slots[*i].idle) {
            return Reason::PlacedIdle {
                gpus,
                need: want.set_aside(),
            };
        }
        Reason::PlacedShared {
            gpus,
            need: want.set_aside(),
            source: want.source.map(Into::into),
            free: first.free.unwrap_or_default(),
            neighbours: first.tenants,
            smact: first.smact,
            order,
            candidates,
            sharing: want.sharing,
        }
    }

    /// Sorts by the policy's order; ties keep the index order.
    fn sort(&self, order: Order, fitting: &mut [usize]) {
        let slot = |i: &usize| &self.slots[*i];
        match order {
            Order::Exclusive | Order::FirstFit => {}
            Order::RoundRobin => {
                fitting.sort_by_key(|i| (slot(i).id.0 < self.ring, *i));
            }
            Order::BestFit => fitting.sort_by_key(|i| slot(i).free),
            Order::Magm => fitting.sort_by_key(|i| std::cmp::Reverse(slot(i).free)),
            // Unknown activity counts as full.
            Order::Lug => fitting.sort_by_key(|i| slot(i).smact.unwrap_or(Fraction::ONE)),
        }
    }

    fn indices(&self, chosen: &[usize]) -> Vec<u32> {
        chosen
            .iter()
            .map(|i| self.slots[*i].gpu.info.index)
            .collect()
    }

    fn take(&mut self, job: JobId, want: &Want, chosen: &[usize], order: Order) -> Vec<GpuId> {
        let mut ids = Vec::with_capacity(chosen.len());
        for i in chosen {
            self.slots[*i].take(job, want);
            ids.push(self.slots[*i].id);
        }
        if let (Order::RoundRobin, Some(last)) = (order, ids.last()) {
            self.ring = last.0 + 1;
        }
        ids
    }

    /// Whether the job could ever be placed on the GPUs that are in use now.
    fn can_ever_fit(&self, want: &Want) -> bool {
        let out = |s: &&Slot<'_>| {
            !matches!(
                s.closed,
                Some(Refusal::Gone | Refusal::Drained { .. } | Refusal::Unhealthy { .. })
            ) && s.gpu.info.memory >= want.least_capacity
        };
        self.slots.iter().filter(out).count() >= want.gpus as usize
    }
}

fn place_jobs(state: &State, now: Millis, plan: &mut Plan) {
    if state.queue().is_empty() {
        return;
    }
    let policy = &state.options().policy;
    let mut slots = Slots::new(state, now);
    let mut failed: BTreeMap<WantClass, ((MiB, MiB), Arc<NoGpu>)> = BTreeMap::new();
    // Set once a job that may not be overtaken did not fit.
    let mut barrier: Option<Reason> = None;
    for slot in &slots.slots {
        if let Some(left) = slot.cooldown {
            plan.wake_at(now + left);
        }
    }
    for job in state.queue().iter().filter_map(|key| state.job(key.id)) {
        let id = job.spec.id;
        if let Some(reason) = &barrier {
            plan.waiting.push((id, reason.clone()));
            continue;
        }
        if let Some(until) = job.not_before.filter(|until| *until > now) {
            plan.wake_at(until);
            let error = job
                .past
                .last()
                .map_or_else(String::new, |a| a.verdict.to_string());
            plan.waiting.push((id, Reason::Pause { error, until }));
            continue;
        }
        let want = Want::of(state, job);
        let known = failed.get(&want.class()).filter(|((need, capacity), _)| {
            let (n, c) = want.weight();
            n >= *need && c >= *capacity
        });
        let outcome = match known {
            Some((_, detail)) => Err(Reason::NoGpu {
                gpus: want.gpus,
                need: want.need,
                source: want.source.map(Into::into),
                detail: detail.clone(),
            }),
            None => slots.find(state, &want),
        };
        match outcome {
            Ok(found) => {
                let gpus = slots.take(id, &want, &found.slots, policy.order);
                let cap = cap_for(state.options(), job, &want);
                let placement = Placement {
                    attempt: job.attempts + 1,
                    gpus,
                    sharing: want.sharing,
                    cap,
                    thread_percent: job
                        .spec
                        .request
                        .thread_percent
                        .filter(|_| want.sharing == SharingMode::Mps),
                    at: now,
                    reason: found.reason,
                };
                plan.actions.push(Action::Launch { job: id, placement });
            }
            Err(reason) => {
                if let Reason::NoGpu { detail, .. } = &reason {
                    let entry = failed.entry(want.class());
                    entry
                        .and_modify(|(weight, d)| {
                            if want.weight() < *weight {
                                *weight = want.weight();
                                *d = detail.clone();
                            }
                        })
                        .or_insert_with(|| (want.weight(), detail.clone()));
                }
                // Recovered jobs wait without blocking anybody.
                let recovering = job.queue_key().recovery.0;
                let blocks = match policy.backfill {
                    _ if recovering => false,
                    None => true,
                    Some(limit) => now.since(job.queued) > limit && slots.can_ever_fit(&want),
                };
                if blocks {
                    barrier = Some(Reason::Behind {
                        job: id,
                        overtaken_for: policy.backfill,
                    });
                }
                plan.waiting.push((id, reason));
            }
        }
    }
}

/// The hard memory limit of an MPS client: its forecast or floor, off where caps are off or nothing
/// is known.
fn cap_for(options: &Options, job: &Job, want: &Want) -> Option<MiB> {
    if want.sharing != SharingMode::Mps || !options.caps || job.floor == Some(Floor::ExclusiveGpu) {
        return None;
    }
    want.set_aside()
}

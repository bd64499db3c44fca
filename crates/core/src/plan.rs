//! The plan: what to do now, and why.
//!
//! A pure function of state and time. It does not change the state: each action taken comes back as
//! [`crate::Input::Decided`].

use crate::explain::{Holder, NoGpu, Reason, Refusal, UserLimit};
use crate::input::Action;
use crate::ledger::{Gpu, Promise};
use crate::model::{
    Attempt, EndCause, EndLevel, Ending, Exit, Floor, GpuId, Job, JobId, JobState, Phase, Placement,
    SharingMode,
};
use crate::policy::{GateVerdict, MemoryScreen, NeedSource, Options, Order, Pack};
use crate::reading::Health;
use crate::recovery::EvidenceKind;
use crate::slowdown::{self, Objection, Outlook, keep_promises};
use crate::state::{State, Usage};
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
    /// When, at the latest, another plan is due without another input: because of the time alone, or
    /// at once where this one requeues jobs.
    pub wake: Option<Millis>,
}

/// What a plan says besides what to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// Why each other job waits.
    Reasons,
    /// Nothing: [`Plan::waiting`] stays empty. The actions are the same, and a long queue costs less.
    Actions,
}

/// Decides what to do in this state at this time.
#[must_use]
pub fn plan(state: &State, now: Millis) -> Plan {
    plan_in(state, now, Detail::Reasons)
}

/// The same with a choice of detail.
#[must_use]
pub fn plan_in(state: &State, now: Millis, detail: Detail) -> Plan {
    let now = now.max(state.now());
    let mut plan = Plan::default();
    end_jobs(state, now, &mut plan);
    keep_promises(state, now, &mut plan);
    judge_faults(state, now, &mut plan);
    place_jobs(state, now, detail, &mut plan);
    plan
}

/// Why a job waits, looked at alone: what each GPU says to it now.
#[must_use]
pub fn evaluate(state: &State, now: Millis, job: &Job) -> Reason {
    let now = now.max(state.now());
    let slots = Slots::new(state, now);
    let want = Want::of(state, job);
    match slots.find(&want) {
        Some(found) => found.reason,
        None => want.no_gpu(Arc::new(slots.refusals(&want))),
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
    for job in state.ending().iter().filter_map(|id| state.job(*id)) {
        let (placement, started, ending) = match &job.phase {
            Phase::Running { placement, started, ending, .. } => (placement, Some(*started), ending),
            Phase::Launching { placement, ending } => (placement, None, ending),
            Phase::Pending | Phase::Held { .. } | Phase::Judging { .. } => continue,
        };
        if let Some((level, cause)) = end_due(job, now, grace) {
            plan.actions.push(Action::End { job: job.spec.id, attempt: placement.attempt, level, cause });
            plan.wake_at(now + grace);
        } else if let Some((_, at)) = ending.as_ref().and_then(|e| e.sent) {
            plan.wake_at(at + grace);
        } else if let (Some(limit), Some(started)) = (job.spec.request.time_limit, started) {
            plan.wake_at(started + limit);
        }
    }
}

/// A job that died of a fatal fault under MPS.
struct Fallen<'a> {
    job: &'a Job,
    placement: &'a Placement,
    at: Millis,
    exit: &'a Exit,
}

/// How far ahead of all others the first to report must be for that to mean something. Measured on an
/// H200: culprit and victims report within 0.08 s of each other, victims first.
const CLEAR_LEAD: Millis = Millis::secs(1);

impl Fallen<'_> {
    fn line(&self) -> String {
        self.exit.evidence.as_ref().map_or_else(String::new, |e| e.line.clone())
    }

    /// Whether its own log names the fault, rather than an error that may be an echo of it.
    fn names_fault(&self) -> bool {
        self.exit.evidence.as_ref().is_some_and(|e| e.kind == EvidenceKind::FatalGpuFault)
    }

    /// How long it had run without fault.
    fn ran(&self) -> Millis {
        self.at.since(self.job.past.last().and_then(|a| a.started).unwrap_or(self.at))
    }
}

/// Verdicts on faults under MPS. Everybody on the server dies of it, so the culprit is inferred: see
/// [`culprit`].
fn judge_faults(state: &State, now: Millis, plan: &mut Plan) {
    let options = state.options();
    let mut fallen: Vec<Fallen<'_>> = Vec::new();
    for job in state.judging().iter().filter_map(|id| state.job(*id)) {
        if let Phase::Judging { placement, exit, at } = &job.phase {
            fallen.push(Fallen { job, placement, at: *at, exit });
        }
    }
    fallen.sort_by_key(|f| (f.at, f.job.spec.id));
    while !fallen.is_empty() {
        let first = fallen.remove(0);
        let (mut group, rest): (Vec<_>, Vec<_>) = fallen.into_iter().partition(|other| {
            same_server(options, first.job, first.placement, other.job, other.placement)
                && other.at.since(first.at) <= options.fault_window
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
        // Victims are pending from then on: they want a plan of their own.
        plan.wake_at(now);
    }
}

/// Whether two jobs were clients of one MPS server on some GPU.
fn same_server(options: &Options, a: &Job, pa: &Placement, b: &Job, pb: &Placement) -> bool {
    pa.sharing == SharingMode::Mps
        && pb.sharing == SharingMode::Mps
        && (options.mps_multi_user || a.spec.user.uid == b.spec.user.uid)
        && pa.gpus.iter().any(|g| pb.gpus.contains(g))
}

/// The likely culprit and why: the command that has faulted before, else the first to report if it was
/// well ahead, else the job that had run for the shortest time, since the others have shown for longer
/// that they do not fault. The wording of the error tells nothing: it depends on the call that noticed.
fn culprit<'a, 'b>(state: &State, group: &'b [Fallen<'a>]) -> Option<(&'b Fallen<'a>, Arc<str>)> {
    let faults = |f: &Fallen<'_>| state.faults_of(f.job.spec.command_key);
    let most = group.iter().map(faults).max()?;
    let worst: Vec<&Fallen<'_>> = group.iter().filter(|f| faults(f) == most).collect();
    let first = *worst.first()?;
    let because: Arc<str> = match (most, group.len()) {
        (_, 1) => "no other job died with it".into(),
        (1, _) => "its command faulted once before".into(),
        (2.., _) => format!("its command faulted {most} times before").into(),
        (0, _) => {
            if worst.get(1).is_none_or(|second| second.at.since(first.at) >= CLEAR_LEAD) {
                return Some((first, "it was the first to report".into()));
            }
            let newest = *worst.iter().min_by_key(|f| f.ran())?;
            return Some((newest, format!("it had run for the shortest time, {}", newest.ran()).into()));
        }
    };
    Some((first, because))
}

fn verdicts(state: &State, group: &[Fallen<'_>], plan: &mut Plan) {
    let Some((culprit, because)) = culprit(state, group) else {
        return;
    };
    if group.len() == 1 && !culprit.names_fault() {
        // Nobody else died: it was an error of its own.
        let reason = Reason::CommandFailed {
            status: culprit.exit.status.to_string(),
            evidence: culprit.exit.evidence.clone(),
        };
        plan.actions.push(Action::SetState { job: culprit.job.spec.id, state: JobState::Failed, reason });
        return;
    }
    let id = culprit.job.spec.id;
    let victims: Vec<JobId> = group.iter().map(|f| f.job.spec.id).filter(|v| *v != id).collect();
    for fallen in group {
        let own = fallen.job.spec.id == id;
        let reason = if own {
            Reason::FaultCulprit { line: fallen.line(), victims: victims.clone(), because: because.clone() }
        } else {
            Reason::FaultVictim { culprit: id, line: fallen.line() }
        };
        plan.actions.push(Action::SetState {
            job: fallen.job.spec.id,
            state: if own { JobState::Failed } else { JobState::Pending },
            reason,
        });
    }
}

/// What a pending job wants of a GPU.
#[derive(Clone, Copy)]
struct Want {
    job: JobId,
    gpus: u32,
    /// Only GPUs that nobody is on.
    idle_only: bool,
    /// A GPU with less memory than this cannot do.
    least_capacity: MiB,
    /// Memory that must be available for sharing, guard included.
    need: Option<MiB>,
    /// The part of it that the policy adds to be safe.
    guard: MiB,
    /// What is set aside.
    promise: Promise,
    source: Option<NeedSource>,
    sharing: SharingMode,
    /// Whether neighbours are refused afterwards.
    alone: bool,
    /// What it adds to the load that the policy limits; `None`: not known.
    load: Option<u32>,
    /// It is promised a slowdown.
    promised: bool,
    /// No other job stands for it: it is promised a slowdown, was kept from somebody before, or goes where it
    /// gains most.
    particular: bool,
}

/// All that a GPU's answer to a job depends on, besides the memory that the job needs free.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct WantKind {
    idle_only: bool,
    sharing: SharingMode,
    forecast: bool,
    /// Memory of the smallest GPUs that are large enough: stands for all needs between two sizes.
    size: MiB,
    load: Option<u32>,
    /// The job itself, where its answers are its own: slowdowns are promised.
    job: Option<JobId>,
}

impl Want {
    fn of(state: &State, job: &Job) -> Self {
        let options = state.options();
        let policy = &options.policy;
        let forecast = options.forecast(&job.spec);
        let given = match policy.memory {
            MemoryScreen::None => None,
            MemoryScreen::Floor(least) => Some((least, NeedSource::PolicyFloor)),
            MemoryScreen::Forecast { .. } => forecast,
        };
        let (promise, forecast) = state.promise_from(forecast.map(|(m, _)| m), job.floor);
        let shares = state.sharing_for(job);
        let alone = shares.is_none();
        let floor = match job.floor {
            Some(Floor::Memory(m)) => m,
            Some(Floor::ExclusiveGpu) | None => MiB::ZERO,
        };
        // After an out-of-memory, a GPU that is known to be too small would not do.
        let seen = job.floor.map_or(MiB::ZERO, |_| job.least_capacity());
        let source = match given {
            Some((m, source)) if m >= floor => Some(source),
            _ => (floor > MiB::ZERO).then_some(NeedSource::OutOfMemory),
        };
        let (need, guard) = match policy.memory {
            MemoryScreen::None => (job.floor.is_some().then_some(floor), MiB::ZERO),
            MemoryScreen::Floor(least) => (Some(least.max(floor)), MiB::ZERO),
            MemoryScreen::Forecast { guard, .. } => (forecast.map(|m| m + guard), guard),
        };
        let promised = slowdown::limit(state, job).is_some();
        let undone = |a: &Attempt| matches!(a.verdict, Reason::Undone { .. });
        Self {
            job: job.spec.id,
            gpus: job.spec.request.gpus,
            idle_only: alone || promise == Promise::Whole,
            least_capacity: floor.max(seen).max(job.spec.forecasts.declared.unwrap_or_default()),
            need,
            guard,
            promise,
            source,
            sharing: shares.unwrap_or(SharingMode::Exclusive),
            alone,
            load: policy.pack.load(job.spec.profile),
            promised,
            particular: promised || policy.order == Order::Speedup || job.past.iter().any(undone),
        }
    }

    /// Why nothing was found for it.
    fn no_gpu(&self, detail: Arc<NoGpu>) -> Reason {
        Reason::NoGpu { gpus: self.gpus, need: self.need, guard: self.guard, source: self.source, detail }
    }

    /// Where the number comes from, if carma computed it: the others need no word on an idle GPU.
    fn computed(&self) -> Option<NeedSource> {
        self.source.filter(|s| matches!(s, NeedSource::Computed { .. }) && self.set_aside().is_some())
    }

    fn set_aside(&self) -> Option<MiB> {
        match self.promise {
            Promise::Memory(m) => Some(m),
            Promise::Whole | Promise::None => None,
        }
    }
}

/// Why a GPU does not do for a job, in short: asked of every GPU for many jobs, so without details.
#[derive(Clone, Copy)]
enum Bar {
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
    Promise(Objection),
}

/// One GPU while a plan is made: the ledger plus what this plan has placed already.
struct Slot<'a> {
    id: GpuId,
    gpu: &'a Gpu,
    /// Nobody can have it, whatever they want.
    closed: bool,
    free: Option<MiB>,
    idle: bool,
    tenants: u32,
    exclusive: Option<JobId>,
    /// A tenant that is still starting.
    starting: Option<(JobId, Option<Millis>)>,
    /// A tenant that is still starting and has no forecast.
    starting_blind: Option<(JobId, Option<Millis>)>,
    /// A tenant that is still starting and for which everything is set aside.
    starting_unknown: Option<(JobId, Option<Millis>)>,
    /// A tenant that took more than was set aside for it, just now.
    rising: Option<JobId>,
    gate: GateVerdict,
    smact: Option<Fraction>,
    /// Rule by which jobs go together, and the load of those that are there; `None`: not known.
    pack: Pack,
    load: Option<u32>,
    most_jobs: Option<u32>,
    cooldown: Option<Millis>,
    state: &'a State,
    /// Somebody there is promised a slowdown.
    promised: bool,
    /// Placed by this plan.
    added: Vec<(JobId, Option<MiB>)>,
}

impl<'a> Slot<'a> {
    fn new(id: GpuId, gpu: &'a Gpu, state: &'a State, now: Millis) -> Self {
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
            promised: slowdown::is_promised(state, gpu),
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
            if !matches!(tenant.promise, Promise::Memory(_)) {
                slot.starting_blind = slot.starting_blind.or(entry);
            }
            if tenant.promise == Promise::Whole {
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
    fn bars_idle(&self, want: &Want) -> Option<Bar> {
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
    fn bars_shared(&self, want: &Want) -> Option<Bar> {
        if self.closed {
            return Some(Bar::Closed);
        }
        if self.gpu.info.memory < want.least_capacity {
            return Some(Bar::TooSmall);
        }
        if let Some(job) = self.exclusive {
            return Some(Bar::Exclusive(job));
        }
        // All of it is set aside, but only until that job's need is known: say that rather than
        // that it holds all the memory.
        if let Some((job, active_for)) = self.starting_unknown {
            return Some(Bar::Starting(job, active_for));
        }
        if let Some(job) = self.rising {
            return Some(Bar::Rising(job));
        }
        if want.need.is_some_and(|need| self.free.unwrap_or_default() < need) {
            return Some(Bar::Memory);
        }
        self.bars_at_any_memory(want)
    }

    /// The part of [`Self::bars_shared`] that comes after memory.
    fn bars_at_any_memory(&self, want: &Want) -> Option<Bar> {
        let starting = match want.promise {
            Promise::Memory(_) => self.starting_blind,
            Promise::Whole | Promise::None => self.starting,
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
            Some(Bar::Promise(objection))
        } else {
            self.bars_mps(want)
        }
    }

    /// Why promises keep a job off this one.
    fn objection(&self, want: &Want) -> Option<Objection> {
        if !want.particular && !self.promised {
            return None;
        }
        let job = self.state.job(want.job)?;
        if let Some(apart) = slowdown::kept_apart(self.state, job, self.gpu) {
            return Some(Objection::Apart(apart));
        }
        if !self.promised && !want.promised {
            return None;
        }
        // Those whom this plan has placed here change what was foreseen: the next plan knows.
        if !self.added.is_empty() {
            return Some(Objection::NotYet);
        }
        slowdown::objection(self.state, job, self.id, self.gpu, want.sharing)
    }

    fn bars_mps(&self, want: &Want) -> Option<Bar> {
        match want.sharing {
            SharingMode::Mps => self.cooldown.map(Bar::MpsCooldown),
            SharingMode::Exclusive | SharingMode::TimeSlice => None,
        }
    }

    /// What is foreseen of a job here, if this plan has placed nobody else here.
    fn outlook(&self, want: &Want) -> Option<&Outlook> {
        let outlook = slowdown::outlook(self.state, want.job, self.id, self.gpu, want.sharing)?;
        self.added.is_empty().then_some(outlook)
    }

    /// A bar in full, for people.
    fn refusal(&self, bar: Bar, want: &Want, options: &Options, now: Millis) -> Refusal {
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
            Bar::Promise(objection) => match objection {
                Objection::Broken { job, expected, upper, limit } => {
                    Refusal::Slowdown { job, expected, upper, limit }
                }
                Objection::Unknown(job) => Refusal::Unforeseen { job: Some(job) },
                Objection::NotYet => Refusal::Unforeseen { job: None },
                Objection::Foreign => Refusal::Uncontrolled,
                Objection::Apart(job) => Refusal::Apart { job },
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
        self.promised |= want.promised;
        self.load = self.load.zip(want.load).map(|(there, new)| there.saturating_add(new));
        self.added.push((job, memory));
        if want.alone {
            self.exclusive = Some(job);
        }
        let entry = Some((job, None));
        self.starting = self.starting.or(entry);
        if !matches!(want.promise, Promise::Memory(_)) {
            self.starting_blind = self.starting_blind.or(entry);
        }
        if want.promise == Promise::Whole {
            self.starting_unknown = self.starting_unknown.or(entry);
        }
    }
}

/// How long a GPU takes no MPS clients yet, after a fault.
fn cooldown(gpu: &Gpu, options: &Options, now: Millis) -> Option<Millis> {
    let left = (gpu.last_fault? + options.mps_cooldown).since(now);
    (left > Millis::ZERO).then_some(left)
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
    if age > options.stale_after {
        return Some(Refusal::Stale { age: Some(age) });
    }
    if seen.used.is_none() {
        return Some(Refusal::Unhealthy { why: "its memory use could not be read".into() });
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
    options: &'a Options,
    now: Millis,
    ring: u32,
    /// Memory sizes of the GPUs, each once, ascending.
    sizes: Vec<MiB>,
    /// Somebody on some GPU is promised a slowdown: kept here, since every job in the queue asks.
    promised: bool,
}

impl<'a> Slots<'a> {
    fn new(state: &'a State, now: Millis) -> Self {
        let options = state.options();
        let gpus = state.order().iter().filter_map(|id| Some((*id, state.gpu(*id)?)));
        let slots: Vec<_> = gpus.map(|(id, gpu)| Slot::new(id, gpu, state, now)).collect();
        let mut sizes: Vec<MiB> = slots.iter().map(|s| s.gpu.info.memory).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let promised = slots.iter().any(|slot| slot.promised);
        Self { slots, options, now, ring: state.ring(), sizes, promised }
    }

    fn kind(&self, want: &Want) -> WantKind {
        let at = self.sizes.partition_point(|size| *size < want.least_capacity);
        WantKind {
            idle_only: want.idle_only,
            sharing: want.sharing,
            forecast: matches!(want.promise, Promise::Memory(_)),
            size: self.sizes.get(at).copied().unwrap_or(MiB(u64::MAX)),
            load: want.load,
            job: (want.particular || self.promised).then_some(want.job),
        }
    }

    /// GPUs for a job, if there are enough.
    fn find(&self, want: &Want) -> Option<Found> {
        let policy = &self.options.policy;
        if policy.idle_first || want.idle_only {
            let idle = self.find_idle(want);
            if idle.is_some() || want.idle_only {
                return idle;
            }
        }
        let wanted = want.gpus as usize;
        let mut fitting: Vec<usize> =
            (0..self.slots.len()).filter(|i| self.slots[*i].bars_shared(want).is_none()).collect();
        if fitting.len() < wanted {
            // A need that never leaves room for the guard, or a gate that still sees the load of a
            // job that is gone, must not keep a job off a GPU that nobody is on.
            return if policy.idle_first { None } else { self.find_idle(want) };
        }
        let candidates = u32::try_from(fitting.len()).unwrap_or(u32::MAX);
        // Ties keep the index order.
        if wanted == 1 {
            let best = fitting.into_iter().min_by_key(|i| self.rank(policy.order, *i, want));
            fitting = best.into_iter().collect();
        } else {
            fitting.sort_by_key(|i| self.rank(policy.order, *i, want));
            fitting.truncate(wanted);
        }
        Some(Found { reason: self.shared_reason(want, policy.order, &fitting, candidates), slots: fitting })
    }

    /// After a failed search: the largest need with which a job of this kind, asking for as many
    /// GPUs, would still find them. Placing others never raises it.
    fn room(&self, want: &Want) -> Option<MiB> {
        if want.idle_only {
            return None;
        }
        let any = Want { need: None, ..*want };
        let mut free: Vec<MiB> = self
            .slots
            .iter()
            .filter(|slot| slot.bars_shared(&any).is_none())
            .map(|slot| slot.free.unwrap_or_default())
            .collect();
        let last = (want.gpus as usize).checked_sub(1)?;
        if last >= free.len() {
            return None;
        }
        let (_, room, _) = free.select_nth_unstable_by_key(last, |free| std::cmp::Reverse(*free));
        Some(*room)
    }

    /// What each GPU says to a job.
    fn refusals(&self, want: &Want) -> NoGpu {
        let mut refusals = Vec::new();
        for slot in &self.slots {
            let bar = if want.idle_only { slot.bars_idle(want) } else { slot.bars_shared(want) };
            if let Some(bar) = bar {
                let refusal = slot.refusal(bar, want, self.options, self.now);
                refusals.push((slot.gpu.info.index, refusal));
            }
        }
        NoGpu { fitting: u32::try_from(self.slots.len() - refusals.len()).unwrap_or(u32::MAX), refusals }
    }

    /// The first idle GPUs in index order, if there are enough.
    fn find_idle(&self, want: &Want) -> Option<Found> {
        let wanted = want.gpus as usize;
        let slots: Vec<usize> =
            (0..self.slots.len()).filter(|i| self.slots[*i].bars_idle(want).is_none()).take(wanted).collect();
        (slots.len() == wanted).then(|| Found {
            reason: Reason::PlacedIdle {
                gpus: self.indices(&slots),
                need: want.set_aside(),
                source: want.computed(),
            },
            slots,
        })
    }

    fn shared_reason(&self, want: &Want, order: Order, chosen: &[usize], candidates: u32) -> Reason {
        let gpus = self.indices(chosen);
        let first = &self.slots[chosen[0]];
        if chosen.iter().all(|i| self.slots[*i].idle) {
            return Reason::PlacedIdle { gpus, need: want.set_aside(), source: want.computed() };
        }
        Reason::PlacedShared {
            gpus,
            need: want.set_aside(),
            source: want.source.filter(|_| want.set_aside().is_some()),
            free: first.free.unwrap_or_default(),
            neighbours: first.tenants + u32::try_from(first.gpu.foreign().len()).unwrap_or(0),
            smact: first.smact,
            order,
            candidates,
            sharing: want.sharing,
            foreseen: first.outlook(want).map(|outlook| outlook.tasks.clone()).unwrap_or_default(),
        }
    }

    /// Place of a GPU in the policy's order, least first.
    fn rank(&self, order: Order, at: usize, want: &Want) -> u64 {
        let slot = &self.slots[at];
        let free = slot.free.unwrap_or_default().0;
        match order {
            Order::Exclusive | Order::FirstFit => 0,
            Order::RoundRobin => u64::from(slot.id.0 < self.ring),
            Order::BestFit => free,
            Order::Magm => u64::MAX - free,
            // Unknown activity counts as full.
            Order::Lug => u64::from(slot.smact.unwrap_or(Fraction::ONE).0),
            Order::Speedup if slot.idle => 0,
            // Where nothing is foreseen, nothing is gained.
            Order::Speedup => {
                let gain = slot.outlook(want).map_or(0, |outlook| outlook.gain().0);
                u64::from(u32::MAX - gain)
            }
            // Less than 2^44 MiB is free on any GPU.
            Order::LeastLoad => {
                let load = u64::from(slot.load.unwrap_or(u32::MAX).min(0xF_FFFF));
                (load << 44) | ((1 << 44) - 1 - free.min((1 << 44) - 1))
            }
        }
    }

    fn indices(&self, chosen: &[usize]) -> Vec<u32> {
        chosen.iter().map(|i| self.slots[*i].gpu.info.index).collect()
    }

    /// Gives a job the GPUs that were found.
    fn place(&mut self, job: &Job, want: &Want, found: Found) -> Placement {
        let mut gpus = Vec::with_capacity(found.slots.len());
        self.promised |= want.promised;
        for i in found.slots {
            self.slots[i].take(job.spec.id, want);
            gpus.push(self.slots[i].id);
        }
        if let (Order::RoundRobin, Some(last)) = (self.options.policy.order, gpus.last()) {
            self.ring = last.0 + 1;
        }
        placement(self.options, job, want, gpus, self.now, found.reason)
    }

    /// Whether the job could ever be placed on the GPUs that are in use now.
    fn can_ever_fit(&self, want: &Want) -> bool {
        let out = |s: &&Slot<'_>| {
            let usable = || {
                !matches!(
                    closed(s.gpu, self.options, self.now),
                    Some(Refusal::Gone | Refusal::Drained { .. } | Refusal::Unhealthy { .. })
                )
            };
            s.gpu.info.memory >= want.least_capacity && (!s.closed || usable())
        };
        self.slots.iter().filter(out).count() >= want.gpus as usize
    }
}

/// What is remembered of failed searches while a plan is made, so that of many jobs that wait for
/// the same only the first one is searched for.
#[derive(Default)]
struct Failed {
    kinds: Vec<FailedKind>,
    /// Number of details built.
    details: usize,
}

struct FailedKind {
    kind: WantKind,
    /// By number of GPUs, ascending: up to which need another search may succeed; `None`: none.
    room: Vec<(u32, Option<MiB>)>,
    /// By need, ascending: what each GPU says.
    details: Vec<(MiB, Arc<NoGpu>)>,
}

/// Refusals built in one plan, at most (about): beyond, jobs share the details of a similar one.
const DETAIL_BUDGET: usize = 2048;

impl Failed {
    /// Position of a kind; kinds are few.
    fn kind(&mut self, kind: WantKind) -> usize {
        let at = self.kinds.iter().position(|k| k.kind == kind);
        at.unwrap_or_else(|| {
            self.kinds.push(FailedKind { kind, room: Vec::new(), details: Vec::new() });
            self.kinds.len() - 1
        })
    }

    /// Whether a search is known to be in vain.
    fn knows(&self, kind: usize, want: &Want) -> bool {
        let known = &self.kinds[kind].room;
        match known.binary_search_by_key(&want.gpus, |(gpus, _)| *gpus) {
            Ok(at) => known[at].1.is_none_or(|room| want.need.unwrap_or_default() > room),
            Err(_) => false,
        }
    }

    fn learn(&mut self, slots: &Slots<'_>, kind: usize, want: &Want) {
        let room = slots.room(want);
        let known = &mut self.kinds[kind].room;
        match known.binary_search_by_key(&want.gpus, |(gpus, _)| *gpus) {
            Ok(at) => known[at].1 = room,
            Err(at) => known.insert(at, (want.gpus, room)),
        }
    }

    /// Why nothing was found. Past the budget it may be the answer to a job that needs less (or,
    /// failing that, more); [`evaluate`] gives the exact one.
    fn reason(&mut self, slots: &Slots<'_>, kind: usize, want: &Want) -> Reason {
        let need = match want.need {
            Some(need) if !want.idle_only => need,
            _ => MiB::ZERO,
        };
        let spent = self.details >= (DETAIL_BUDGET / slots.slots.len().max(1)).max(16);
        let known = &mut self.kinds[kind].details;
        let after = known.partition_point(|(at, _)| *at <= need);
        let detail = match known.get(after.saturating_sub(1)) {
            Some((at, detail)) if spent || *at == need => detail.clone(),
            _ => {
                let detail = Arc::new(slots.refusals(want));
                self.details += 1;
                known.insert(after, (need, detail.clone()));
                detail
            }
        };
        want.no_gpu(detail)
    }
}

/// Jobs touched at a time.
const AHEAD: usize = 32;

/// Reads a little of some jobs that are looked at next. In a long queue each job is a miss of the
/// cache; reads that do not wait for each other overlap, which takes a quarter off a plan for
/// 100,000 jobs.
fn touch<'a>(jobs: impl Iterator<Item = &'a Job>) {
    let sum = jobs.fold(0u64, |sum, job| {
        let (spec, forecasts) = (&job.spec, &job.spec.forecasts);
        let rest = [
            job.not_before.is_some(),
            job.floor.is_some(),
            forecasts.declared.is_some(),
            forecasts.gpumemnet.is_some(),
        ];
        let rest = rest.into_iter().map(u64::from).sum::<u64>();
        sum ^ u64::from(spec.request.gpus) ^ job.queued.0 ^ rest
    });
    std::hint::black_box(sum);
}

/// The GPUs while a plan is made. Where jobs take idle GPUs first and there are enough, the other
/// GPUs need not be looked at at all: of thousands, most plans touch a few.
struct Places<'a> {
    state: &'a State,
    now: Millis,
    slots: Option<Slots<'a>>,
    /// Given away before the slots were built.
    taken: Vec<(GpuId, JobId, Want)>,
}

impl<'a> Places<'a> {
    const fn new(state: &'a State, now: Millis) -> Self {
        Self { state, now, slots: None, taken: Vec::new() }
    }

    /// All GPUs, looked at.
    fn slots(&mut self) -> &mut Slots<'a> {
        let (state, now, taken) = (self.state, self.now, &mut self.taken);
        self.slots.get_or_insert_with(|| {
            let mut slots = Slots::new(state, now);
            if let (Order::RoundRobin, Some((last, ..))) = (slots.options.policy.order, taken.last()) {
                slots.ring = last.0 + 1;
            }
            for (gpu, job, want) in taken.drain(..) {
                slots.promised |= want.promised;
                if let Some(slot) = slots.slots.iter_mut().find(|slot| slot.id == gpu) {
                    slot.take(job, &want);
                }
            }
            slots
        })
    }

    /// Gives a job idle GPUs without looking at the others, where the policy takes those first.
    fn place_idle(&mut self, job: &Job, want: &Want) -> Option<Placement> {
        let options = self.state.options();
        if self.slots.is_some() || !(options.policy.idle_first || want.idle_only) {
            return None;
        }
        let fits = |id: &GpuId| {
            let Some(gpu) = self.state.gpu(*id) else { return false };
            gpu.info.memory >= want.least_capacity
                && closed(gpu, options, self.now).is_none()
                && (want.sharing != SharingMode::Mps || cooldown(gpu, options, self.now).is_none())
                && !self.taken.iter().any(|(taken, ..)| taken == id)
        };
        let wanted = want.gpus as usize;
        let gpus: Vec<GpuId> = self.state.idle().filter(fits).take(wanted).collect();
        if gpus.len() < wanted {
            return None;
        }
        let indices = gpus.iter().filter_map(|id| Some(self.state.gpu(*id)?.info.index)).collect();
        let reason = Reason::PlacedIdle { gpus: indices, need: want.set_aside(), source: want.computed() };
        self.taken.extend(gpus.iter().map(|id| (*id, job.spec.id, *want)));
        Some(placement(options, job, want, gpus, self.now, reason))
    }
}

fn placement(
    options: &Options,
    job: &Job,
    want: &Want,
    gpus: Vec<GpuId>,
    at: Millis,
    reason: Reason,
) -> Placement {
    Placement {
        attempt: job.attempts + 1,
        gpus,
        sharing: want.sharing,
        cap: cap_for(options, job, want),
        thread_percent: job.spec.request.thread_percent.filter(|_| want.sharing == SharingMode::Mps),
        at,
        reason,
    }
}

/// What users take while a plan is made, held against what they may have.
struct Takes<'a> {
    state: &'a State,
    /// What this plan adds.
    added: BTreeMap<u32, Usage>,
    /// Jobs that wait for GPUs of their own user's and may not be overtaken by that user's others.
    first: BTreeMap<u32, JobId>,
}

impl<'a> Takes<'a> {
    const fn new(state: &'a State) -> Self {
        Self { state, added: BTreeMap::new(), first: BTreeMap::new() }
    }

    /// Why a job waits for others of the same user, if it does. It keeps nobody else waiting.
    fn bars(&mut self, job: &Job, recovering: bool, now: Millis) -> Option<Reason> {
        let options = self.state.options();
        if options.allowances.is_unlimited() {
            return None;
        }
        let user = &job.spec.user;
        let may = options.allowances.of(user.uid);
        if let Some(first) = self.first.get(&user.uid) {
            return Some(Reason::Behind { job: *first, overtaken_for: options.policy.backfill });
        }
        let has = self.state.usage(user.uid).with(self.added.get(&user.uid).copied().unwrap_or_default());
        let limit = match (may.jobs, may.gpus) {
            (Some(most), _) if has.running >= most => UserLimit::Jobs { most },
            (_, Some(most)) if has.gpus.saturating_add(job.spec.request.gpus) > most => {
                UserLimit::Gpus { wanted: job.spec.request.gpus, used: has.gpus, most }
            }
            _ => return None,
        };
        // Else smaller jobs of the same user would keep a large one out for ever.
        let patient = options.policy.backfill.is_some_and(|limit| now.since(job.queued) <= limit);
        let possible = matches!(limit, UserLimit::Gpus { wanted, most, .. } if wanted <= most);
        if possible && !patient && !recovering {
            self.first.insert(user.uid, job.spec.id);
        }
        Some(Reason::UserLimit { user: user.name.clone(), limit })
    }

    fn take(&mut self, job: &Job) {
        if !self.state.options().allowances.is_unlimited() {
            let new = Usage { waiting: 0, running: 1, gpus: job.spec.request.gpus };
            let added = self.added.entry(job.spec.user.uid).or_default();
            *added = added.with(new);
        }
    }
}

fn place_jobs(state: &State, now: Millis, detail: Detail, plan: &mut Plan) {
    if state.queue().is_empty() {
        return;
    }
    let options = state.options();
    let policy = &options.policy;
    let mut places = Places::new(state, now);
    let mut failed = Failed::default();
    let mut takes = Takes::new(state);
    // Set once a job that may not be overtaken did not fit.
    let mut barrier: Option<Reason> = None;
    if state.latest_fault().is_some_and(|at| at + options.mps_cooldown > now) {
        for left in state.gpus().iter().filter_map(|gpu| cooldown(gpu, options, now)) {
            plan.wake_at(now + left);
        }
    }
    if detail == Detail::Reasons {
        plan.waiting.reserve(state.queue().len());
    }
    let mut left_waiting = false;
    let mut ahead = state.queue().jobs().map(|(_, job)| job);
    for (n, (key, job)) in state.queue().jobs().enumerate() {
        if n % AHEAD == 0 && barrier.is_none() && state.queue().len() > AHEAD {
            touch(ahead.by_ref().take(AHEAD));
        }
        if let Some(reason) = &barrier {
            if detail == Detail::Actions {
                break;
            }
            plan.waiting.push((key.id, reason.clone()));
            continue;
        }
        if let Some(until) = job.not_before.filter(|until| *until > now) {
            plan.wake_at(until);
            left_waiting = true;
            if detail == Detail::Reasons {
                let error = job.past.last().map_or_else(String::new, |a| match &a.verdict {
                    Reason::NotLaunched { why } => why.clone(),
                    other => other.to_string(),
                });
                plan.waiting.push((key.id, Reason::Pause { error, until }));
            }
            continue;
        }
        if let Some(reason) = takes.bars(job, key.recovery.0, now) {
            if detail == Detail::Reasons {
                plan.waiting.push((key.id, reason));
            }
            continue;
        }
        let want = Want::of(state, job);
        if let Some(placement) = places.place_idle(job, &want) {
            takes.take(job);
            plan.actions.push(Action::Launch { job: key.id, placement });
            continue;
        }
        let slots = places.slots();
        let kind = failed.kind(slots.kind(&want));
        let found = if failed.knows(kind, &want) {
            None
        } else {
            let found = slots.find(&want);
            if found.is_none() {
                failed.learn(slots, kind, &want);
            }
            found
        };
        if let Some(found) = found {
            let placement = slots.place(job, &want, found);
            takes.take(job);
            plan.actions.push(Action::Launch { job: key.id, placement });
            continue;
        }
        left_waiting = true;
        // Recovered jobs wait without blocking anybody.
        let recovering = key.recovery.0;
        let blocks = match policy.backfill {
            _ if recovering => false,
            None => true,
            Some(limit) => now.since(job.queued) > limit && slots.can_ever_fit(&want),
        };
        if blocks {
            barrier = Some(Reason::Behind { job: key.id, overtaken_for: policy.backfill });
        }
        if detail == Detail::Reasons {
            let reason = failed.reason(slots, kind, &want);
            plan.waiting.push((key.id, reason));
        }
    }
    if left_waiting {
        wake_when_patience_ends(state, now, plan);
    }
}

/// A tenant that shows no activity keeps its GPU closed to those who wait, until patience ends.
fn wake_when_patience_ends(state: &State, now: Millis, plan: &mut Plan) {
    let patience = state.options().startup_patience;
    for tenant in state.gpus().iter().flat_map(|gpu| &gpu.tenants) {
        let ends = tenant.placed + patience;
        if !tenant.settled && tenant.active_since.is_none() && ends > now {
            plan.wake_at(ends);
        }
        if let Some(until) = tenant.rising_until(state.options()).filter(|until| *until > now) {
            plan.wake_at(until);
        }
    }
    let launches = |a: &Action| matches!(a, Action::Launch { .. });
    if plan.actions.iter().any(launches) {
        plan.wake_at(now + patience);
    }
}

/// The hard memory limit of an MPS client: its forecast or floor, off where caps are off or nothing
/// is known.
fn cap_for(options: &Options, job: &Job, want: &Want) -> Option<MiB> {
    if want.sharing != SharingMode::Mps || !options.caps || job.floor == Some(Floor::ExclusiveGpu) {
        return None;
    }
    // History may know better than the user how much to set aside, but a job may always take what was
    // asked for it.
    want.set_aside().map(|m| m.max(job.spec.forecasts.declared.unwrap_or_default()))
}

/// The signal that is due for a job that is to end: politely, then for good, and at last without its supervisor.
/// One that is still being launched has no command that could end politely.
fn end_due(job: &Job, now: Millis, grace: Millis) -> Option<(EndLevel, EndCause)> {
    let (ending, started) = match &job.phase {
        Phase::Running { started, ending, .. } => (ending, Some(*started)),
        Phase::Launching { ending, .. } => (ending, None),
        Phase::Pending | Phase::Held { .. } | Phase::Judging { .. } => return None,
    };
    let Some(Ending { cause, sent }) = ending else {
        let limit = job.spec.request.time_limit?;
        let over = started.is_some_and(|started| now.since(started) >= limit);
        return over.then_some((EndLevel::Terminate, EndCause::TimeLimit(limit)));
    };
    let next = match (sent, started) {
        (None, _) => return Some((EndLevel::Terminate, cause.clone())),
        (Some((EndLevel::Terminate, at)), Some(_)) => (*at, EndLevel::Kill),
        (Some((_, at)), _) => (*at, EndLevel::Abandon),
    };
    let (at, level) = next;
    (now.since(at) >= grace).then(|| (level, cause.clone()))
}

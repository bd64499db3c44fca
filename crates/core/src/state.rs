//! The state and the one way to change it.

use crate::explain::Reason;
use crate::input::{Action, Input, Observation, Rejected};
use crate::ledger::{Alone, Gpu, Growth, Promise, Tenant};
use crate::model::{
    Attempt, Computed, EndCause, EndLevel, Ending, Exit, ExitStatus, Finished, Floor, GpuId, HostUse, Job,
    JobId, JobState, NewJob, Phase, Placement, QueueKey, SeenMemory, SharingMode, User,
};
use crate::policy::{MemoryScreen, Options, Order, RecoveryMethod};
use crate::reading::GpuInfo;
use crate::recovery::{self, Around, EvidenceKind, OomFacts, Said};
use crate::slowdown::{Measured, Outlook};
use crate::units::{Fraction, MiB, Millis};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, btree_map};
use std::sync::Arc;

/// Commands whose faults are remembered at most.
const FAULT_MEMORY: usize = 10_000;
/// Launches that the machine may fail in a row before the job is given up.
const LAUNCH_TRIES: usize = 3;
/// Longest pause before another try where the machine lacked something, as a power of two of seconds: 64 s.
const LONGEST_PAUSE_LOG2: usize = 6;
/// Attempts in a row that were not launched and are kept with the job.
const KEPT_NOT_LAUNCHED: usize = 16;

/// What a message of a failed allocation says: what was wanted, and the rest.
type Message = (Option<MiB>, Said);

/// What applying an input brought to its end.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Applied {
    /// Jobs that are over and have left the state.
    pub finished: Vec<Finished>,
}

/// Everything that decisions depend on.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct State {
    now: Millis,
    options: Options,
    gpus: Vec<Gpu>,
    jobs: BTreeMap<JobId, Arc<Job>>,
    /// Pending jobs in their order; derived from `jobs`.
    #[serde(skip)]
    queue: BTreeMap<QueueKey, Arc<Job>>,
    /// Jobs in any other phase but held; derived from `jobs`.
    #[serde(skip)]
    active: BTreeSet<JobId>,
    /// Active jobs that time alone may end, or that are being ended; derived from `jobs`.
    #[serde(skip)]
    ending: BTreeSet<JobId>,
    /// Jobs that wait for a verdict; derived from `jobs`.
    #[serde(skip)]
    judging: BTreeSet<JobId>,
    /// What each user's jobs take and wait for; derived from `jobs`. Nobody is in it with nothing.
    #[serde(skip)]
    usage: BTreeMap<u32, Usage>,
    /// GPUs by index; derived from `gpus`.
    #[serde(skip)]
    order: Vec<GpuId>,
    /// GPUs that nobody is on, by index; derived from `gpus`.
    #[serde(skip)]
    idle: BTreeSet<(u32, GpuId)>,
    /// The latest fatal fault under MPS on any GPU; derived from `gpus`.
    #[serde(skip)]
    latest_fault: Option<Millis>,
    /// Faults under MPS by command key.
    faulted: BTreeMap<u64, u32>,
    /// Where the round-robin ring goes on.
    ring: u32,
    last_id: Option<JobId>,
    /// What is foreseen of jobs that wait, by job and GPU.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    outlooks: BTreeMap<JobId, BTreeMap<GpuId, Outlook>>,
}

/// What one user's jobs take and wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Jobs that wait: pending, held, or for a verdict.
    pub waiting: u32,
    /// Jobs that are starting or running.
    pub running: u32,
    /// GPUs of those, one that two of them share counted twice.
    pub gpus: u32,
}

impl Usage {
    /// What one job takes or waits for.
    pub(crate) fn of(job: &Job) -> Self {
        match job.placement() {
            Some(placed) => {
                Self { waiting: 0, running: 1, gpus: u32::try_from(placed.gpus.len()).unwrap_or(u32::MAX) }
            }
            None => Self { waiting: 1, running: 0, gpus: 0 },
        }
    }

    /// Both together.
    pub(crate) const fn with(self, other: Self) -> Self {
        Self {
            waiting: self.waiting.saturating_add(other.waiting),
            running: self.running.saturating_add(other.running),
            gpus: self.gpus.saturating_add(other.gpus),
        }
    }

    const fn without(self, other: Self) -> Self {
        Self {
            waiting: self.waiting.saturating_sub(other.waiting),
            running: self.running.saturating_sub(other.running),
            gpus: self.gpus.saturating_sub(other.gpus),
        }
    }
}

/// The pending jobs, in the order in which they are looked at.
#[derive(Debug, Clone, Copy)]
pub struct Queue<'a>(&'a BTreeMap<QueueKey, Arc<Job>>);

impl<'a> Queue<'a> {
    /// Number of jobs.
    #[must_use]
    pub fn len(self) -> usize {
        self.0.len()
    }

    /// Whether nobody waits.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    /// Keys in order.
    pub fn iter(self) -> impl Iterator<Item = &'a QueueKey> {
        self.0.keys()
    }

    /// Jobs in order.
    pub fn jobs(self) -> impl Iterator<Item = (&'a QueueKey, &'a Job)> {
        self.0.iter().map(|(key, job)| (key, &**job))
    }
}

impl State {
    /// Latest time seen. It never goes back: a clock that jumps back stands still here.
    #[must_use]
    pub const fn now(&self) -> Millis {
        self.now
    }

    /// The configuration in force.
    #[must_use]
    pub const fn options(&self) -> &Options {
        &self.options
    }

    /// All GPUs ever seen, by [`GpuId`].
    #[must_use]
    pub fn gpus(&self) -> &[Gpu] {
        &self.gpus
    }

    /// One GPU.
    #[must_use]
    pub fn gpu(&self, id: GpuId) -> Option<&Gpu> {
        self.gpus.get(id.0 as usize)
    }

    /// Handle of a GPU by UUID.
    #[must_use]
    pub fn gpu_id(&self, uuid: &str) -> Option<GpuId> {
        let at = self.gpus.iter().position(|g| &*g.info.uuid == uuid)?;
        u32::try_from(at).ok().map(GpuId)
    }

    /// Live jobs by number.
    #[must_use]
    pub const fn jobs(&self) -> &BTreeMap<JobId, Arc<Job>> {
        &self.jobs
    }

    /// One live job.
    #[must_use]
    pub fn job(&self, id: JobId) -> Option<&Job> {
        self.jobs.get(&id).map(|job| &**job)
    }

    /// Pending jobs in the order in which they are looked at.
    #[must_use]
    pub const fn queue(&self) -> Queue<'_> {
        Queue(&self.queue)
    }

    /// Jobs that are launching, running or being judged.
    #[must_use]
    pub const fn active(&self) -> &BTreeSet<JobId> {
        &self.active
    }

    /// What a user's jobs take and wait for.
    #[must_use]
    pub fn usage(&self, uid: u32) -> Usage {
        self.usage.get(&uid).copied().unwrap_or_default()
    }

    /// Number of the next job.
    #[must_use]
    pub fn next_id(&self) -> JobId {
        JobId(self.last_id.map_or(1, |id| id.0 + 1))
    }

    /// Times that a command faulted under MPS.
    #[must_use]
    pub fn faults_of(&self, command_key: u64) -> u32 {
        self.faulted.get(&command_key).copied().unwrap_or(0)
    }

    /// What is foreseen of a job that waits on a GPU, the last time that somebody looked.
    #[must_use]
    pub fn outlook(&self, job: JobId, gpu: GpuId) -> Option<&Outlook> {
        self.outlooks.get(&job)?.get(&gpu)
    }

    /// All that is foreseen.
    pub fn outlooks(&self) -> impl Iterator<Item = &Outlook> {
        self.outlooks.values().flat_map(BTreeMap::values)
    }

    pub(crate) const fn ring(&self) -> u32 {
        self.ring
    }

    /// Active jobs that time alone may end, or that are being ended.
    pub(crate) const fn ending(&self) -> &BTreeSet<JobId> {
        &self.ending
    }

    /// Jobs that wait for a verdict.
    pub(crate) const fn judging(&self) -> &BTreeSet<JobId> {
        &self.judging
    }

    /// GPUs in the order of their indices.
    pub(crate) fn order(&self) -> &[GpuId] {
        &self.order
    }

    /// Number of GPUs that nobody is on.
    #[must_use]
    pub fn idle_count(&self) -> usize {
        self.idle.len()
    }

    /// GPUs that nobody is on, in the order of their indices.
    pub(crate) fn idle(&self) -> impl Iterator<Item = GpuId> {
        self.idle.iter().map(|(_, id)| *id)
    }

    /// The latest fatal fault under MPS on any GPU.
    pub(crate) const fn latest_fault(&self) -> Option<Millis> {
        self.latest_fault
    }

    /// Restores what is derived, after loading a stored state.
    pub fn rebuild(&mut self) {
        self.queue.clear();
        self.active.clear();
        self.ending.clear();
        self.judging.clear();
        self.usage.clear();
        self.index_gpus();
        let jobs: Vec<Arc<Job>> = self.jobs.values().cloned().collect();
        for job in jobs {
            self.index(&job);
        }
    }

    /// Changes the state by one input.
    ///
    /// # Errors
    /// [`Rejected`] when the input makes no sense in this state; nothing has changed then.
    pub fn apply(&mut self, at: Millis, input: &Input) -> Result<Applied, Rejected> {
        let before = self.now;
        self.now = self.now.max(at);
        let mut applied = Applied::default();
        let result = self.dispatch(at, input, &mut applied);
        if result.is_err() {
            self.now = before;
        }
        result.map(|()| applied)
    }

    fn dispatch(&mut self, at: Millis, input: &Input, applied: &mut Applied) -> Result<(), Rejected> {
        match input {
            Input::Configured(options) => {
                self.options = (**options).clone();
                Ok(())
            }
            Input::Inventory(devices) => {
                self.inventory(devices);
                Ok(())
            }
            Input::Submitted(new) => self.submitted(new),
            Input::Observed { gpu, seen } => self.observed(at, *gpu, seen),
            Input::Unchanged(gpus) => self.unchanged(gpus),
            Input::Decided(action) => self.decided(action, applied),
            Input::Started { job, attempt, supervisor, child, sharing, note: _ } => {
                self.started(*job, *attempt, *supervisor, *child, *sharing)
            }
            Input::NotLaunched { job, attempt, why, pause } => {
                self.not_launched(*job, *attempt, why, *pause, applied)
            }
            Input::LaunchFailed { job, attempt, error, transient } => {
                self.launch_failed(*job, *attempt, error, *transient, applied)
            }
            Input::Exited { job, attempt, exit } => self.exited(*job, *attempt, exit, applied),
            Input::Forecast { job, computed } => self.forecast(*job, *computed),
            Input::Foreseen(outlooks) => self.foreseen(outlooks),
            Input::Measured { job, attempt, progress, over } => {
                self.measured(*job, *attempt, *progress, *over)
            }
            Input::Cancel { job, by } => self.cancel(*job, by, applied),
            Input::Hold { job, by } => self.hold(*job, by),
            Input::Release { job, by } => self.release(*job, by),
            Input::Requeue { job, by } => self.requeue(*job, by),
            Input::Drain { gpu, by } => self.drain(*gpu, by, Some(by.name.clone())),
            Input::Resume { gpu, by } => self.drain(*gpu, by, None),
            Input::Tick => Ok(()),
        }
    }

    // --- helpers -------------------------------------------------------------------------------

    fn index(&mut self, job: &Arc<Job>) {
        let usage = self.usage.entry(job.spec.user.uid).or_default();
        *usage = usage.with(Usage::of(job));
        match job.phase {
            Phase::Pending => {
                self.queue.insert(job.queue_key(), job.clone());
            }
            Phase::Held { .. } => {}
            Phase::Launching { ref ending, .. } => {
                self.active.insert(job.spec.id);
                if ending.is_some() {
                    self.ending.insert(job.spec.id);
                }
            }
            Phase::Running { ref ending, .. } => {
                self.active.insert(job.spec.id);
                if ending.is_some() || job.spec.request.time_limit.is_some() {
                    self.ending.insert(job.spec.id);
                }
            }
            Phase::Judging { .. } => {
                self.active.insert(job.spec.id);
                self.judging.insert(job.spec.id);
            }
        }
    }

    fn unindex(&mut self, job: &Job) {
        let id = job.spec.id;
        if let btree_map::Entry::Occupied(mut entry) = self.usage.entry(job.spec.user.uid) {
            let left = entry.get().without(Usage::of(job));
            if left == Usage::default() {
                entry.remove();
            } else {
                entry.insert(left);
            }
        }
        if matches!(job.phase, Phase::Pending) {
            self.queue.remove(&job.queue_key());
            return;
        }
        self.active.remove(&id);
        self.ending.remove(&id);
        self.judging.remove(&id);
    }

    /// Restores what is derived from the GPUs.
    fn index_gpus(&mut self) {
        self.order = (0..).map(GpuId).take(self.gpus.len()).collect();
        let gpus = &self.gpus;
        self.order.sort_by_key(|id| (gpus[id.0 as usize].info.index, *id));
        self.idle = self
            .order
            .iter()
            .map(|id| (&gpus[id.0 as usize], *id))
            .filter(|(gpu, _)| gpu.is_idle())
            .map(|(gpu, id)| (gpu.info.index, id))
            .collect();
        self.latest_fault = gpus.iter().filter_map(|gpu| gpu.last_fault).max();
    }

    /// Changes one GPU and keeps the indexes true.
    fn change_gpu<T>(
        &mut self,
        id: GpuId,
        change: impl FnOnce(&mut Gpu, &Options) -> T,
    ) -> Result<T, Rejected> {
        let gpu = self.gpus.get_mut(id.0 as usize).ok_or(Rejected::NoSuchGpu)?;
        let before = gpu.is_idle();
        let result = change(gpu, &self.options);
        let after = gpu.is_idle();
        if before != after {
            let key = (gpu.info.index, id);
            if after {
                self.idle.insert(key)
            } else {
                self.idle.remove(&key)
            };
        }
        self.latest_fault = self.latest_fault.max(gpu.last_fault);
        Ok(result)
    }

    /// Changes one job and keeps the indexes true.
    fn update(&mut self, id: JobId, change: impl FnOnce(&mut Job)) -> Result<(), Rejected> {
        let mut job = self.jobs.remove(&id).ok_or(Rejected::NoSuchJob(id))?;
        self.unindex(&job);
        change(Arc::make_mut(&mut job));
        self.index(&job);
        self.jobs.insert(id, job);
        Ok(())
    }

    fn get(&self, id: JobId) -> Result<&Job, Rejected> {
        self.job(id).ok_or(Rejected::NoSuchJob(id))
    }

    fn allowed(&self, job: &Job, by: &User) -> Result<(), Rejected> {
        if by.uid == job.spec.user.uid || self.is_admin(by) {
            return Ok(());
        }
        Err(Rejected::NotAllowed { job: job.spec.id, owner: job.spec.user.name.clone() })
    }

    /// Whether a user may do what root may.
    #[must_use]
    pub const fn is_admin(&self, by: &User) -> bool {
        by.operator || by.uid == 0 || by.uid == self.options.admin_uid
    }

    fn finish(
        &mut self,
        id: JobId,
        state: JobState,
        reason: Reason,
        exit: Option<ExitStatus>,
        applied: &mut Applied,
    ) {
        if let Some(job) = self.jobs.remove(&id) {
            self.unindex(&job);
            self.outlooks.remove(&id);
            let job = Arc::unwrap_or_clone(job);
            applied.finished.push(Finished { job, state, reason, exit, at: self.now });
        }
    }

    /// Takes a job off its GPUs and files the attempt. Returns its placement and tenancies.
    fn leave(&mut self, id: JobId, exit: Option<Exit>, verdict: Reason) -> Vec<(GpuId, Tenant)> {
        let now = self.now;
        let Some(job) = self.jobs.get(&id) else {
            return Vec::new();
        };
        let (placement, started) = match &job.phase {
            Phase::Running { placement, started, .. } => (placement.clone(), Some(*started)),
            Phase::Launching { placement, .. } => (placement.clone(), None),
            Phase::Pending | Phase::Held { .. } | Phase::Judging { .. } => return Vec::new(),
        };
        let mut left = Vec::new();
        for gpu in &placement.gpus {
            if let Ok(Some(tenant)) = self.change_gpu(*gpu, |gpu, _| gpu.remove(id, now)) {
                left.push((*gpu, tenant));
            }
        }
        let peak = left.iter().filter_map(|(_, t)| t.peak).max();
        let alone = left.iter().filter_map(|(_, t)| t.alone).reduce(Alone::with);
        let seen = left.iter().filter_map(|(_, t)| t.seen(now)).reduce(|a, b| SeenMemory {
            active: a.active.max(b.active),
            still: a.still.min(b.still),
            growing: a.growing || b.growing,
        });
        self.regrouped(&placement.gpus);
        let attempt = Attempt { placement, started, ended: now, exit, peak, alone, seen, verdict };
        // Between attempts a job is pending, until whoever called says what it is now.
        let _ = self.update(id, |job| {
            job.phase = Phase::Pending;
            job.measured = None;
            job.past.push(attempt);
        });
        left
    }

    fn set_verdict(&mut self, id: JobId, verdict: &Reason) {
        let _ = self.update(id, |job| {
            if let Some(last) = job.past.last_mut() {
                last.verdict = verdict.clone();
            }
        });
    }

    /// Back into the queue.
    fn enqueue(&mut self, id: JobId, change: impl FnOnce(&mut Job)) {
        let now = self.now;
        let _ = self.update(id, |job| {
            job.phase = Phase::Pending;
            job.queued = now;
            change(job);
        });
    }

    /// The same for a job that was ended for its neighbours' sake: without charge, and with a GPU alone if it
    /// happens again and again.
    fn requeue_free(&mut self, id: JobId) {
        let limit = self.options.max_free_retries;
        self.enqueue(id, |job| {
            job.free_retries += 1;
            if job.free_retries > limit {
                job.floor = Some(Floor::ExclusiveGpu);
            }
        });
    }

    /// The current attempt of a job, if `attempt` is it.
    fn attempt_of(&self, id: JobId, attempt: u32) -> Result<&Job, Rejected> {
        let job = self.get(id)?;
        match job.placement() {
            Some(p) if p.attempt == attempt => Ok(job),
            _ => Err(Rejected::StaleAttempt { job: id, attempt }),
        }
    }

    // --- devices -------------------------------------------------------------------------------

    fn inventory(&mut self, devices: &[GpuInfo]) {
        for gpu in &mut self.gpus {
            gpu.present = false;
        }
        for device in devices {
            match self.gpus.iter_mut().find(|g| g.info.uuid == device.uuid) {
                Some(gpu) => {
                    gpu.info = device.clone();
                    gpu.present = true;
                }
                None => self.gpus.push(Gpu::new(device.clone())),
            }
        }
        self.index_gpus();
    }

    fn observed(&mut self, at: Millis, id: GpuId, seen: &Observation) -> Result<(), Rejected> {
        // A reading is as old as the clock that took it says, also when that clock has jumped back
        // and time stands still here: else every GPU would count as stale until it catches up.
        let age = at.since(seen.at);
        let seen = Observation { at: Millis(self.now.0.saturating_sub(age.0)), ..seen.clone() };
        self.change_gpu(id, |gpu, options| gpu.observe(seen, options))
    }

    fn unchanged(&mut self, ids: &[GpuId]) -> Result<(), Rejected> {
        let now = self.now;
        // All or nothing: a refused input changes nothing.
        if ids.iter().any(|id| self.gpu(*id).is_none()) {
            return Err(Rejected::NoSuchGpu);
        }
        for id in ids {
            self.change_gpu(*id, |gpu, options| {
                if let Some(seen) = gpu.seen.take() {
                    gpu.observe(Observation { at: now, ..seen }, options);
                }
            })?;
        }
        Ok(())
    }

    fn drain(&mut self, gpu: GpuId, by: &User, to: Option<Arc<str>>) -> Result<(), Rejected> {
        if !self.is_admin(by) {
            return Err(Rejected::AdminOnly);
        }
        self.change_gpu(gpu, |gpu, _| gpu.drained_by = to)
    }

    // --- users ---------------------------------------------------------------------------------

    fn submitted(&mut self, new: &NewJob) -> Result<(), Rejected> {
        if self.last_id.is_some_and(|last| new.id <= last) {
            return Err(Rejected::Duplicate(new.id));
        }
        self.check_request(new)?;
        self.last_id = Some(new.id);
        let phase = if new.hold { Phase::Held { by: new.user.name.clone() } } else { Phase::Pending };
        let job = Job {
            spec: new.clone(),
            submitted: self.now,
            queued: self.now,
            phase,
            attempts: 0,
            charged_retries: 0,
            free_retries: 0,
            floor: None,
            not_before: None,
            measured: None,
            past: Vec::new(),
        };
        let job = Arc::new(job);
        self.index(&job);
        self.jobs.insert(new.id, job);
        Ok(())
    }

    /// All or nothing: a refused input changes nothing.
    fn foreseen(&mut self, outlooks: &[Outlook]) -> Result<(), Rejected> {
        for outlook in outlooks {
            self.gpu(outlook.gpu).ok_or(Rejected::NoSuchGpu)?;
            let job = self.get(outlook.newcomer)?;
            if !matches!(job.phase, Phase::Pending) {
                return Err(Rejected::WrongState {
                    job: outlook.newcomer,
                    state: job.state().as_str(),
                    hint: "what is foreseen is foreseen of jobs that wait",
                });
            }
        }
        for outlook in outlooks {
            self.outlooks.entry(outlook.newcomer).or_default().insert(outlook.gpu, outlook.clone());
        }
        Ok(())
    }

    /// A measurement that began before the neighbours changed tells nothing of the present ones.
    fn measured(
        &mut self,
        id: JobId,
        attempt: u32,
        progress: Fraction,
        over: Millis,
    ) -> Result<(), Rejected> {
        let now = self.now;
        let job = self.attempt_of(id, attempt)?;
        let placed = job.placement().into_iter().flat_map(|p| &p.gpus);
        let changed = placed.filter_map(|gpu| self.gpu(*gpu)?.changed).max();
        if changed.is_some_and(|at| now.since(at) < over) {
            return Err(Rejected::BadRequest(format!(
                "the neighbours of job {id} changed while its progress was measured"
            )));
        }
        let window = self.options.slowdown_window;
        self.update(id, |job| {
            let before = job.measured.filter(|before| before.over >= window).map(|before| before.progress);
            job.measured = Some(Measured { at: now, progress, over, before });
        })
    }

    /// The neighbours on these GPUs are others now: what was foreseen or measured beside the old ones is void.
    fn regrouped(&mut self, gpus: &[GpuId]) {
        let now = self.now;
        let mut there: BTreeSet<JobId> = BTreeSet::new();
        for id in gpus {
            let _ = self.change_gpu(*id, |gpu, _| {
                gpu.changed = Some(now);
                there.extend(gpu.tenants.iter().map(|t| t.job));
            });
        }
        for id in there {
            if self.job(id).is_some_and(|job| job.measured.is_some()) {
                let _ = self.update(id, |job| job.measured = None);
            }
        }
        for of_job in self.outlooks.values_mut() {
            of_job.retain(|gpu, _| !gpus.contains(gpu));
        }
        self.outlooks.retain(|_, of_job| !of_job.is_empty());
    }

    fn check_request(&self, new: &NewJob) -> Result<(), Rejected> {
        let request = &new.request;
        if request.gpus == 0 {
            return Err(Rejected::BadRequest(
                "the job asks for 0 GPUs; carma places jobs on GPUs, ask for 1 or more".into(),
            ));
        }
        if let Some(percent) = request.thread_percent
            && !(1..=100).contains(&percent)
        {
            return Err(Rejected::BadRequest(format!(
                "an MPS thread percentage of {percent} makes no sense; give 1 to 100"
            )));
        }
        let present = || self.gpus.iter().filter(|g| g.present);
        let have = present().count();
        if request.gpus as usize > have {
            return Err(Rejected::TooManyGpus { wanted: request.gpus, have });
        }
        if let Some(need) = new.forecasts.declared {
            let fitting = present().filter(|g| g.info.memory >= need).count();
            if fitting < request.gpus as usize {
                let largest = present().map(|g| g.info.memory).max().unwrap_or_default();
                return Err(Rejected::TooMuchMemory { need, wanted: request.gpus, fitting, largest });
            }
        }
        Ok(())
    }

    /// Where a job runs already, its promise follows what is seen of it.
    fn forecast(&mut self, id: JobId, computed: Computed) -> Result<(), Rejected> {
        let job = self.get(id)?;
        if !matches!(job.phase, Phase::Pending | Phase::Held { .. }) {
            return Err(Rejected::WrongState {
                job: id,
                state: job.state().as_str(),
                hint: "forecasts change while a job waits",
            });
        }
        self.update(id, |job| job.spec.forecasts.computed = Some(computed))
    }

    fn cancel(&mut self, id: JobId, by: &User, applied: &mut Applied) -> Result<(), Rejected> {
        let job = self.get(id)?;
        self.allowed(job, by)?;
        match job.phase {
            Phase::Pending | Phase::Held { .. } | Phase::Judging { .. } => {
                let reason = Reason::Cancelled { by: by.name.clone() };
                let exit = job.past.last().and_then(|a| a.exit.as_ref()).map(|e| e.status);
                self.finish(id, JobState::Cancelled, reason, exit, applied);
                Ok(())
            }
            Phase::Launching { .. } | Phase::Running { .. } => {
                self.end(id, EndCause::Cancelled { by: by.name.clone() })
            }
        }
    }

    /// Marks a launching or running job to be ended. A job that is being ended already keeps its
    /// cause, except that a cancel beats whatever puts it back into the queue.
    fn end(&mut self, id: JobId, cause: EndCause) -> Result<(), Rejected> {
        self.update(id, |job| {
            let (Phase::Launching { ending, .. } | Phase::Running { ending, .. }) = &mut job.phase else {
                return;
            };
            match ending {
                Some(e) => {
                    if matches!(e.cause, EndCause::Requeued { .. } | EndCause::Undone { .. }) {
                        e.cause = cause;
                    }
                }
                None => *ending = Some(Ending { cause, sent: None }),
            }
        })
    }

    fn hold(&mut self, id: JobId, by: &User) -> Result<(), Rejected> {
        let job = self.get(id)?;
        self.allowed(job, by)?;
        match job.phase {
            Phase::Pending => {
                let by = by.name.clone();
                self.update(id, |job| job.phase = Phase::Held { by })
            }
            Phase::Held { .. } => Ok(()),
            Phase::Launching { .. } | Phase::Running { .. } | Phase::Judging { .. } => {
                Err(Rejected::WrongState {
                    job: id,
                    state: "RUNNING",
                    hint: "only pending jobs can be held; use requeue to put it back first",
                })
            }
        }
    }

    fn release(&mut self, id: JobId, by: &User) -> Result<(), Rejected> {
        let job = self.get(id)?;
        self.allowed(job, by)?;
        if !matches!(job.phase, Phase::Held { .. }) {
            return Err(Rejected::WrongState {
                job: id,
                state: job.state().as_str(),
                hint: "it is not held",
            });
        }
        self.enqueue(id, |_| ());
        Ok(())
    }

    fn requeue(&mut self, id: JobId, by: &User) -> Result<(), Rejected> {
        let job = self.get(id)?;
        self.allowed(job, by)?;
        if job.placement().is_none() {
            return Err(Rejected::WrongState {
                job: id,
                state: "PENDING",
                hint: "it is in the queue already",
            });
        }
        self.end(id, EndCause::Requeued { by: by.name.clone() })
    }

    // --- decisions -----------------------------------------------------------------------------

    fn decided(&mut self, action: &Action, applied: &mut Applied) -> Result<(), Rejected> {
        match action {
            Action::Launch { job, placement } => self.place(*job, placement),
            Action::End { job, attempt, level, cause } => {
                let now = self.now;
                self.attempt_of(*job, *attempt)?;
                self.end(*job, cause.clone())?;
                self.update(*job, |job| {
                    if let Phase::Running { ending: Some(ending), .. }
                    | Phase::Launching { ending: Some(ending), .. } = &mut job.phase
                    {
                        ending.sent = Some((*level, now));
                    }
                })
            }
            Action::SetState { job, state, reason } => self.judged(*job, *state, reason, applied),
            Action::Note { .. } => Ok(()),
        }
    }

    /// How a job that waits would share a GPU; `None`: it would not.
    pub(crate) fn sharing_for(&self, job: &Job) -> Option<SharingMode> {
        let asked = job.spec.request.sharing.unwrap_or(self.options.sharing);
        let alone = job.spec.request.exclusive
            || job.floor == Some(Floor::ExclusiveGpu)
            || self.options.policy.order == Order::Exclusive
            || asked == SharingMode::Exclusive;
        match asked {
            _ if alone => None,
            SharingMode::Mps if self.faults_of(job.spec.command_key) > 0 => Some(SharingMode::TimeSlice),
            mode => Some(mode),
        }
    }

    /// What is set aside for a job by the policy in force: promise and the number behind it.
    #[must_use]
    pub fn promise_for(&self, job: &Job) -> (Promise, Option<MiB>) {
        let forecast = self.options.forecast(&job.spec);
        self.promise_from(forecast.map(|(m, _)| m), job.floor)
    }

    /// The same from the forecast that the policy believes.
    pub(crate) fn promise_from(&self, forecast: Option<MiB>, floor: Option<Floor>) -> (Promise, Option<MiB>) {
        let floor = match floor {
            Some(Floor::Memory(m)) => Some(m),
            Some(Floor::ExclusiveGpu) | None => None,
        };
        let forecast = forecast.max(floor);
        let promise = match (forecast, self.options.policy.memory) {
            (Some(m), MemoryScreen::Forecast { .. }) => Promise::Memory(m),
            (None, MemoryScreen::Forecast { .. }) => Promise::Whole,
            (_, MemoryScreen::None | MemoryScreen::Floor(_)) => Promise::None,
        };
        (promise, forecast)
    }

    fn place(&mut self, id: JobId, placement: &Placement) -> Result<(), Rejected> {
        let job = self.get(id)?;
        if !matches!(job.phase, Phase::Pending) {
            return Err(Rejected::WrongState {
                job: id,
                state: job.state().as_str(),
                hint: "only pending jobs are launched",
            });
        }
        if placement.gpus.iter().any(|g| self.gpu(*g).is_none()) {
            return Err(Rejected::NoSuchGpu);
        }
        let (promise, forecast) = self.promise_for(job);
        let needs = job.spec.forecasts.computed.map(|c| c.need);
        let exclusive = placement.sharing == SharingMode::Exclusive;
        let gpus: BTreeSet<GpuId> = placement.gpus.iter().copied().collect();
        let as_asked = gpus.len() == placement.gpus.len()
            && gpus.len() == job.spec.request.gpus as usize
            && placement.attempt == job.attempts + 1;
        let room = gpus.iter().filter_map(|g| self.gpu(*g)).all(|g| g.has_room(promise, exclusive));
        if !as_asked || !room {
            return Err(Rejected::WrongState {
                job: id,
                state: job.state().as_str(),
                hint: "this launch was planned for another state; plan again",
            });
        }
        for id_of_gpu in &placement.gpus {
            self.change_gpu(*id_of_gpu, |gpu, _| {
                let promise = match promise {
                    Promise::Memory(m) => Promise::Memory(m.min(gpu.info.memory)),
                    other => other,
                };
                gpu.add(Tenant {
                    job: id,
                    promise,
                    forecast,
                    exclusive,
                    observed: None,
                    peak: None,
                    placed: placement.at,
                    active_since: None,
                    settled: false,
                    shared: false,
                    alone: None,
                    needs,
                    growth: Growth::default(),
                });
            })?;
        }
        if self.options.policy.order == Order::RoundRobin
            && let Some(last) = placement.gpus.last()
        {
            self.ring = last.0 + 1;
        }
        self.outlooks.remove(&id);
        self.regrouped(&placement.gpus);
        self.update(id, |job| {
            job.attempts = placement.attempt;
            job.not_before = None;
            job.phase = Phase::Launching { placement: placement.clone(), ending: None };
        })
    }

    /// A verdict on a job that died of a fault under MPS.
    fn judged(
        &mut self,
        id: JobId,
        state: JobState,
        reason: &Reason,
        applied: &mut Applied,
    ) -> Result<(), Rejected> {
        let job = self.get(id)?;
        let Phase::Judging { exit, .. } = &job.phase else {
            return Err(Rejected::WrongState {
                job: id,
                state: job.state().as_str(),
                hint: "no verdict is due",
            });
        };
        if state == JobState::Running {
            return Err(Rejected::WrongState {
                job: id,
                state: job.state().as_str(),
                hint: "a verdict ends a job or puts it back into the queue",
            });
        }
        let (status, key) = (exit.status, job.spec.command_key);
        self.set_verdict(id, reason);
        if state == JobState::Pending {
            self.requeue_free(id);
        } else {
            if matches!(reason, Reason::FaultCulprit { .. }) {
                self.remember_fault(key);
            }
            self.finish(id, state, reason.clone(), Some(status), applied);
        }
        Ok(())
    }

    fn remember_fault(&mut self, key: u64) {
        if self.faulted.len() >= FAULT_MEMORY && !self.faulted.contains_key(&key) {
            self.faulted.pop_first();
        }
        *self.faulted.entry(key).or_default() += 1;
    }

    // --- the life of an attempt ----------------------------------------------------------------

    fn started(
        &mut self,
        id: JobId,
        attempt: u32,
        supervisor: crate::model::ProcessRef,
        child: Option<crate::model::ProcessRef>,
        sharing: SharingMode,
    ) -> Result<(), Rejected> {
        let now = self.now;
        self.attempt_of(id, attempt)?;
        self.update(id, |job| {
            let (mut placement, started, ending) = match &job.phase {
                Phase::Launching { placement, ending } => (placement.clone(), now, ending.clone()),
                Phase::Running { placement, started, ending, .. } => {
                    (placement.clone(), *started, ending.clone())
                }
                Phase::Pending | Phase::Held { .. } | Phase::Judging { .. } => return,
            };
            if placement.sharing != sharing {
                placement.sharing = sharing;
                placement.cap = None;
            }
            job.phase = Phase::Running { placement, started, supervisor, child, ending };
        })
    }

    /// It was never started. A user's wish to end it is fulfilled; otherwise it goes back into the queue.
    fn not_launched(
        &mut self,
        id: JobId,
        attempt: u32,
        why: &str,
        pause: bool,
        applied: &mut Applied,
    ) -> Result<(), Rejected> {
        let job = self.attempt_of(id, attempt)?;
        let ending = match &job.phase {
            Phase::Launching { ending, .. } | Phase::Running { ending, .. } => ending.clone(),
            Phase::Pending | Phase::Held { .. } | Phase::Judging { .. } => None,
        };
        self.leave(id, None, Reason::NotLaunched { why: why.to_owned() });
        match ending.map(|ending| ending.cause) {
            Some(EndCause::Cancelled { by }) => {
                self.finish(id, JobState::Cancelled, Reason::Cancelled { by }, None, applied);
            }
            // Whoever wanted it back in the queue has it there; nor does it wait for anything.
            Some(_) => self.enqueue(id, |_| ()),
            None => {
                let in_a_row = |job: &Job| {
                    let mut rows = job.past.iter().rev();
                    rows.by_ref().take_while(|a| matches!(a.verdict, Reason::NotLaunched { .. })).count()
                };
                let failures = in_a_row(self.get(id)?);
                let wait = Millis::secs(1 << failures.min(LONGEST_PAUSE_LOG2));
                let until = pause.then(|| self.now + wait);
                self.enqueue(id, |job| {
                    job.not_before = until;
                    // A machine that lacks something for days must not make the job grow without end.
                    if failures > KEPT_NOT_LAUNCHED {
                        job.past.remove(job.past.len() - 2);
                    }
                });
            }
        }
        Ok(())
    }

    fn launch_failed(
        &mut self,
        id: JobId,
        attempt: u32,
        error: &str,
        transient: bool,
        applied: &mut Applied,
    ) -> Result<(), Rejected> {
        let job = self.attempt_of(id, attempt)?;
        let ending = match &job.phase {
            Phase::Launching { ending, .. } | Phase::Running { ending, .. } => ending.clone(),
            Phase::Pending | Phase::Held { .. } | Phase::Judging { .. } => None,
        };
        let reason = Reason::LaunchFailed { error: error.to_owned() };
        self.leave(id, None, reason.clone());
        if let Some(Ending { cause: EndCause::Cancelled { by }, .. }) = ending {
            self.finish(id, JobState::Cancelled, Reason::Cancelled { by }, None, applied);
            return Ok(());
        }
        let job = self.get(id)?;
        let failures = job.past.iter().rev().take_while(|a| a.exit.is_none()).count();
        if transient && failures <= LAUNCH_TRIES {
            let until = self.now + Millis::secs(1 << failures.min(10));
            self.enqueue(id, |job| job.not_before = Some(until));
        } else {
            self.finish(id, JobState::Failed, reason, None, applied);
        }
        Ok(())
    }

    fn exited(
        &mut self,
        id: JobId,
        attempt: u32,
        exit: &Exit,
        applied: &mut Applied,
    ) -> Result<(), Rejected> {
        let job = self.attempt_of(id, attempt)?;
        let (placement, ending) = match &job.phase {
            Phase::Launching { placement, ending } | Phase::Running { placement, ending, .. } => {
                (placement.clone(), ending.clone())
            }
            Phase::Pending | Phase::Held { .. } | Phase::Judging { .. } => {
                return Err(Rejected::StaleAttempt { job: id, attempt });
            }
        };
        let status = exit.status;
        if let Some(why) = exit.not_started.as_ref().filter(|_| exit.machine) {
            return self.not_launched(id, attempt, why, true, applied);
        }
        if let Some(ending) = ending {
            // Done before it was asked to end: running it again would be running it twice.
            let done = status == ExitStatus::Code(0) && ending.sent.is_none();
            if !(done && matches!(ending.cause, EndCause::Requeued { .. })) {
                return self.ended(id, exit, ending.cause, applied);
            }
        }
        if let Some(why) = &exit.not_started {
            let reason = Reason::NotStarted { why: why.clone() };
            self.leave(id, Some(exit.clone()), reason.clone());
            self.finish(id, JobState::Failed, reason, Some(status), applied);
            return Ok(());
        }
        let line = exit.evidence.as_ref().map_or_else(String::new, |e| e.line.clone());
        let kind = exit.evidence.as_ref().map(|e| e.kind);
        let lost = placement.gpus.iter().find_map(|g| self.gpu(*g).and_then(Gpu::lost));
        let failed = |reason: Reason| (JobState::Failed, reason);
        let host_killed = exit.host.oom_kills > 0 && (kind.is_none() || status == ExitStatus::Signal(9));
        let (state, reason) = match (status, kind) {
            (ExitStatus::Code(0), _) => (JobState::Completed, Reason::Completed),
            // The kernel's own word, which the log cannot have.
            _ if host_killed => {
                let HostUse { memory_peak: peak, memory_limit: limit, oom_kills: killed, .. } = exit.host;
                (JobState::OutOfMemory, Reason::HostMemoryLimit { limit, peak, killed })
            }
            (ExitStatus::Unknown, _) => failed(Reason::ExitUnknown),
            (_, Some(EvidenceKind::GpuLost)) => failed(Reason::GpuLost { line }),
            (_, _) if lost.is_some() => failed(Reason::GpuLost { line: lost.unwrap_or_default() }),
            (_, Some(EvidenceKind::GpuOutOfMemory { wanted, said })) => {
                return self.out_of_memory(id, &placement, exit, (wanted, said), applied);
            }
            (ExitStatus::Code(_), None) if self.memory_was_full(id, &placement) => {
                return self.out_of_memory(id, &placement, exit, (None, Said::default()), applied);
            }
            (_, Some(EvidenceKind::HostOutOfMemory)) => failed(Reason::HostOutOfMemory { line }),
            (_, Some(EvidenceKind::FatalGpuFault | EvidenceKind::GpuError))
                if placement.sharing == SharingMode::Mps =>
            {
                self.fault(id, &placement, exit);
                return Ok(());
            }
            _ => {
                failed(Reason::CommandFailed { status: status.to_string(), evidence: exit.evidence.clone() })
            }
        };
        self.leave(id, Some(exit.clone()), reason.clone());
        self.finish(id, state, reason, Some(status), applied);
        Ok(())
    }

    /// The end of a job that was being ended.
    fn ended(
        &mut self,
        id: JobId,
        exit: &Exit,
        cause: EndCause,
        applied: &mut Applied,
    ) -> Result<(), Rejected> {
        let status = Some(exit.status);
        match cause {
            EndCause::Cancelled { by } => {
                let reason = Reason::Cancelled { by };
                self.leave(id, Some(exit.clone()), reason.clone());
                self.finish(id, JobState::Cancelled, reason, status, applied);
            }
            EndCause::TimeLimit(limit) => {
                let reason = Reason::TimeLimit { limit };
                self.leave(id, Some(exit.clone()), reason.clone());
                self.finish(id, JobState::Timeout, reason, status, applied);
            }
            EndCause::Undone { job, slowdown, limit, apart } => {
                self.leave(id, Some(exit.clone()), Reason::Undone { job, slowdown, limit, apart });
                self.requeue_free(id);
            }
            EndCause::Requeued { by } => {
                self.leave(id, Some(exit.clone()), Reason::RequeuedByUser { by });
                self.enqueue(id, |_| ());
            }
        }
        Ok(())
    }

    /// Whether the verdict on an attempt that ends so depends on the memory of its GPUs around its end, so that a look
    /// from after it is worth waiting for.
    #[must_use]
    pub fn wants_look(&self, id: JobId, attempt: u32, exit: &Exit) -> bool {
        let kind = exit.evidence.as_ref().map(|e| e.kind);
        let of_memory = match (exit.status, kind) {
            (ExitStatus::Code(0) | ExitStatus::Unknown, _) => false,
            (_, Some(EvidenceKind::GpuOutOfMemory { .. })) | (ExitStatus::Code(_), None) => true,
            _ => false,
        };
        let ends_by_itself = |job: &Job| match &job.phase {
            Phase::Launching { ending, .. } | Phase::Running { ending, .. } => ending.is_none(),
            Phase::Pending | Phase::Held { .. } | Phase::Judging { .. } => false,
        };
        of_memory && exit.not_started.is_none() && self.attempt_of(id, attempt).is_ok_and(ends_by_itself)
    }

    /// What the looks say of a job's end on one of its GPUs, told of now.
    fn around(&self, gpu: &Gpu, tenant: &Tenant) -> Around {
        gpu.recent.around(tenant.job, tenant.placed, self.now, self.options.stale_after)
    }

    /// Memory trace at death: at its cap, or on a GPU that was full.
    fn memory_was_full(&self, id: JobId, placement: &Placement) -> bool {
        placement.gpus.iter().filter_map(|g| self.gpu(*g)).any(|gpu| {
            let Some(tenant) = gpu.tenant(id) else {
                return false;
            };
            let at_cap = match (placement.cap, tenant.peak) {
                (Some(cap), Some(peak)) => peak >= cap.percent(98),
                _ => false,
            };
            let around = self.around(gpu, tenant);
            let full = around.held.is_some() && around.used.is_some_and(|u| u >= gpu.info.memory.percent(98));
            at_cap || full
        })
    }

    fn facts_on(&self, gpu: &Gpu, tenant: &Tenant, cap: Option<MiB>, message: Message) -> OomFacts {
        let around = self.around(gpu, tenant);
        // More than was set aside for it when it came, or is by now: what it left over may be a neighbour's since.
        let excess = |t: &Tenant| {
            let given = match t.promise {
                Promise::Memory(m) => t.forecast.map_or(m, |forecast| m.min(forecast)),
                Promise::Whole | Promise::None => return MiB::ZERO,
            };
            gpu.recent.most_of(t.job, self.now).or(t.observed).unwrap_or_default() - given
        };
        let others = || gpu.tenants.iter().filter(|t| t.job != tenant.job);
        let offender = others().filter(|t| excess(t) > MiB::ZERO).max_by_key(|t| (excess(t), Reverse(t.job)));
        OomFacts {
            peak: tenant.peak,
            held: around.held,
            wanted: message.0,
            said: message.1,
            forecast: tenant.forecast,
            cap,
            capacity: gpu.info.memory,
            // Where nobody looked around its end, as it was before.
            shared: others().next().is_some() || around.beside || (!around.looks && tenant.shared),
            others: around.others,
            offender: offender.map(|t| t.job),
            foreign: around.foreign.map(|f| (f.pid, f.user)),
        }
    }

    fn oom_facts(&self, id: JobId, placement: &Placement, message: Message) -> Option<OomFacts> {
        let at = placement.gpus.iter().filter_map(|g| {
            let gpu = self.gpu(*g)?;
            gpu.tenant(id).map(|tenant| self.facts_on(gpu, tenant, placement.cap, message))
        });
        let at: Vec<OomFacts> = at.collect();
        // The message numbers GPUs as they are given to the job. One that has numbered them anew is not believed where
        // the memory is another.
        let named = message.1.gpu.and_then(|n| at.get(n as usize)).filter(|facts| facts.may_be_meant());
        // Otherwise, of several, one where it exceeded what it had, or the one with the least left: of unequal GPUs the
        // small one fills first, though the job may hold more on a large one. The first of equals.
        let by_looks = || at.iter().min_by_key(|facts| (!facts.exceeds(), facts.left(), Reverse(facts.peak)));
        named.or_else(by_looks).cloned()
    }

    fn out_of_memory(
        &mut self,
        id: JobId,
        placement: &Placement,
        exit: &Exit,
        message: Message,
        applied: &mut Applied,
    ) -> Result<(), Rejected> {
        let job = self.get(id)?;
        let Some(facts) = self.oom_facts(id, placement, message) else {
            return Err(Rejected::StaleAttempt { job: id, attempt: placement.attempt });
        };
        let options = &self.options;
        let blame = recovery::blame(&facts);
        let max_retries = job.spec.request.max_retries.unwrap_or(options.max_retries);
        let have = |least: MiB| self.gpus.iter().filter(|g| g.present && g.info.memory >= least).count();
        let reached = facts.reached();
        let alone = matches!(blame, recovery::Blame::WholeGpu { .. });
        let own = blame.is_own_fault();
        let wanted_gpus = job.spec.request.gpus as usize;
        let harmed_often = job.free_retries >= options.max_free_retries;
        let had_own_gpu = job.floor == Some(Floor::ExclusiveGpu);
        let next = if alone {
            Some(Floor::Memory(facts.capacity + MiB(1)))
        } else if had_own_gpu {
            // Nothing more to give. Only a foreign process can have filled it; bounded all the same.
            (!own && !harmed_often).then_some(Floor::ExclusiveGpu)
        } else if options.recovery == RecoveryMethod::Exclusive || (!own && harmed_often) {
            Some(Floor::ExclusiveGpu)
        } else if !own {
            let seen = reached.max(facts.forecast).unwrap_or_default();
            Some(Floor::Memory(seen.min(facts.capacity)))
        } else if job.charged_retries == 0 {
            recovery::first_floor(&facts, options.margin_percent, options.margin_min)
        } else {
            let given = recovery::given(&facts).max(reached).map(Floor::Memory);
            recovery::next_floor(job.floor.max(given), facts.capacity)
        };
        // A larger GPU than any that it has had is progress, and ends with the largest.
        let spent = own && job.charged_retries >= max_retries && !(alone && max_retries > 0);
        // The last of several retries is no place for another guess.
        let last = own && max_retries > 1 && job.charged_retries + 1 >= max_retries;
        // Nor may it ask for more than there are GPUs for: it would wait for ever.
        let peaks = placement.gpus.iter().filter_map(|g| self.gpu(*g)?.tenant(id)?.peak);
        let declared = job.spec.forecasts.declared.unwrap_or_default();
        let mut least = job.least_capacity().max(peaks.max().unwrap_or_default()).max(declared);
        if alone {
            least = least.max(facts.capacity + MiB(1));
        }
        let too_large = have(least) < wanted_gpus;
        let next = match next {
            Some(_) if last => Some(Floor::ExclusiveGpu),
            Some(Floor::Memory(guess)) if have(guess.max(least)) < wanted_gpus => Some(Floor::ExclusiveGpu),
            next => next,
        };
        let next = next.filter(|_| !too_large);
        match next {
            Some(next) if !spent => {
                let retries = job.charged_retries + u32::from(own);
                let verdict = Reason::OutOfMemoryRetry { blame, next, retries, max_retries };
                self.leave(id, Some(exit.clone()), verdict);
                self.enqueue(id, |job| {
                    job.floor = Some(next);
                    job.charged_retries = retries;
                    job.free_retries += u32::from(!own);
                });
            }
            _ => {
                let why: Arc<str> = match (spent, max_retries) {
                    (true, 0) => "retries are off for it".into(),
                    (true, 1) => "its only retry is used".into(),
                    (true, n) => format!("all {n} retries are used").into(),
                    (false, _) if too_large => "there is no larger GPU to try".into(),
                    (false, _) => "it had a GPU of its own already".into(),
                };
                let reason = Reason::OutOfMemoryFinal { blame, why };
                self.leave(id, Some(exit.clone()), reason.clone());
                self.finish(id, JobState::OutOfMemory, reason, Some(exit.status), applied);
            }
        }
        Ok(())
    }

    /// A fatal fault under MPS: whose it was is decided when all who died of it are known.
    fn fault(&mut self, id: JobId, placement: &Placement, exit: &Exit) {
        let now = self.now;
        let fatal = exit.evidence.as_ref().is_some_and(|e| e.kind == EvidenceKind::FatalGpuFault);
        for gpu in placement.gpus.iter().filter(|_| fatal) {
            let _ = self.change_gpu(*gpu, |gpu, _| gpu.last_fault = Some(now));
        }
        self.leave(id, Some(exit.clone()), Reason::Judging);
        let phase = Phase::Judging { placement: placement.clone(), exit: exit.clone(), at: now };
        let _ = self.update(id, |job| job.phase = phase);
    }
}

/// What [`crate::plan()`] needs to see of a job to end it: politely, then for good, and at last without its supervisor.
/// One that is still being launched has no command that could end politely.
pub(crate) fn end_due(job: &Job, now: Millis, grace: Millis) -> Option<(EndLevel, EndCause)> {
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

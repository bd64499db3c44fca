//! What is derived from jobs and GPUs so that it need not be searched for: the queue, which jobs are active, usage by user, idle GPUs.
//!
//! Every change of a job or a GPU goes through here. What a change means is not known here.

use super::State;
use super::waiting::Waiting;
use crate::input::Rejected;
use crate::ledger::Gpu;
use crate::model::{GpuId, Job, JobId, Phase};
use crate::policy::Options;
use crate::units::{MiB, Millis};
use std::collections::{BTreeMap, BTreeSet, btree_map};
use std::sync::Arc;

/// What one user's jobs take and wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Jobs that wait: pending, held, suspended, or for a verdict.
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
            Some(placed) if !job.is_off() => {
                Self { waiting: 0, running: 1, gpus: u32::try_from(placed.gpus.len()).unwrap_or(u32::MAX) }
            }
            _ => Self { waiting: 1, running: 0, gpus: 0 },
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

/// What is derived from jobs and GPUs. It is not stored.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Index {
    /// Pending jobs in their order.
    pub(super) waiting: Waiting,
    /// Jobs in any other phase but held.
    pub(super) active: BTreeSet<JobId>,
    /// Active jobs that time alone may end, or that are being ended.
    pub(super) ending: BTreeSet<JobId>,
    /// Jobs that wait for a verdict.
    pub(super) judging: BTreeSet<JobId>,
    /// Jobs with a suspension under way.
    pub(super) halted: BTreeSet<JobId>,
    /// What each user's jobs take and wait for. Users without jobs are not in it.
    pub(super) usage: BTreeMap<u32, Usage>,
    /// GPUs by index.
    pub(super) order: Vec<GpuId>,
    /// Memory of each GPU that is present, largest first.
    sizes: Vec<MiB>,
    /// The same without MIG instances.
    whole_sizes: Vec<MiB>,
    /// Idle GPUs, by index.
    pub(super) idle: BTreeSet<(u32, GpuId)>,
    /// The latest fatal fault under MPS on any GPU.
    pub(super) latest_fault: Option<Millis>,
    /// Of each GPU, the first of its kind.
    pub(super) kinds: Vec<GpuId>,
}

impl State {
    /// Restores what is derived, after loading a stored state.
    pub fn rebuild(&mut self) {
        self.index = Index::default();
        self.index_gpus();
        let jobs: Vec<Arc<Job>> = self.jobs.values().cloned().collect();
        for job in jobs {
            self.accounts.open(&job.spec.user);
            self.index(&job);
        }
    }

    pub(super) fn index(&mut self, job: &Arc<Job>) {
        let usage = self.index.usage.entry(job.spec.user.uid).or_default();
        *usage = usage.with(Usage::of(job));
        match job.phase {
            Phase::Pending => self.wait(job),
            Phase::Held { .. } => {}
            Phase::Launching { ref ending, .. } => {
                self.index.active.insert(job.spec.id);
                if ending.is_some() {
                    self.index.ending.insert(job.spec.id);
                }
            }
            Phase::Running { ref ending, ref halt, .. } => {
                self.index.active.insert(job.spec.id);
                if halt.now.is_some() {
                    self.index.halted.insert(job.spec.id);
                }
                if ending.is_some() || job.spec.request.time_limit.is_some() {
                    self.index.ending.insert(job.spec.id);
                }
            }
            Phase::Judging { .. } => {
                self.index.active.insert(job.spec.id);
                self.index.judging.insert(job.spec.id);
            }
        }
    }

    /// A job stands in the queue.
    pub(super) fn wait(&mut self, job: &Arc<Job>) {
        let line = self.options.policy.line;
        self.index.waiting.insert(job, line);
        if line.is_by_length() {
            let uid = job.spec.user.uid;
            self.shadows.enter(uid, self.now, self.options.allowances.share_of(uid));
        }
    }

    pub(super) fn unindex(&mut self, job: &Job) {
        let id = job.spec.id;
        if let btree_map::Entry::Occupied(mut entry) = self.index.usage.entry(job.spec.user.uid) {
            let left = entry.get().without(Usage::of(job));
            if left == Usage::default() {
                entry.remove();
            } else {
                entry.insert(left);
            }
        }
        if matches!(job.phase, Phase::Pending) {
            let (line, uid) = (self.options.policy.line, job.spec.user.uid);
            self.index.waiting.remove(job, line);
            if line.is_by_length() && !self.index.waiting.has(uid) {
                self.shadows.leave(uid, self.now);
            }
            return;
        }
        self.index.active.remove(&id);
        self.index.ending.remove(&id);
        self.index.judging.remove(&id);
        self.index.halted.remove(&id);
    }

    /// Restores what is derived from the GPUs.
    pub(super) fn index_gpus(&mut self) {
        self.index.order = (0..).map(GpuId).take(self.gpus.len()).collect();
        let gpus = &self.gpus;
        self.index.order.sort_by_key(|id| (gpus[id.0 as usize].info.index, *id));
        self.index.idle = self
            .index
            .order
            .iter()
            .map(|id| (&gpus[id.0 as usize], *id))
            .filter(|(gpu, _)| gpu.is_idle())
            .map(|(gpu, id)| (gpu.info.index, id))
            .collect();
        let first = |gpu: &Gpu| gpus.iter().position(|other| other.info.name == gpu.info.name);
        let kinds = gpus.iter().map(|gpu| GpuId(u32::try_from(first(gpu).unwrap_or(0)).unwrap_or(u32::MAX)));
        self.index.kinds = kinds.collect();
        let sizes = |of: &dyn Fn(&Gpu) -> bool| {
            let present = gpus.iter().filter(|gpu| gpu.present && of(gpu));
            let mut sizes: Vec<MiB> = present.map(|gpu| gpu.info.memory).collect();
            sizes.sort_unstable_by_key(|memory| std::cmp::Reverse(*memory));
            sizes
        };
        (self.index.sizes, self.index.whole_sizes) = (sizes(&|_| true), sizes(&|gpu| !gpu.info.is_mig()));
        self.index.latest_fault = gpus.iter().flat_map(|gpu| gpu.faults.values()).copied().max();
    }

    /// The most memory that each of as many GPUs as a job asks for has; a job on several takes no MIG instances. `None`: there are too few.
    pub(crate) fn most_memory(&self, job: &Job) -> Option<MiB> {
        let gpus = job.spec.request.gpus;
        let sizes = if gpus > 1 { &self.index.whole_sizes } else { &self.index.sizes };
        sizes.get(gpus.checked_sub(1)? as usize).copied()
    }

    /// Whether GPUs have more memory than others.
    pub(crate) fn has_several_sizes(&self) -> bool {
        self.index.sizes.first() != self.index.sizes.last()
    }

    /// Memory that GPUs must have in all to be worth a try for a job: what is known of it, as far as there are GPUs enough of that size.
    pub(crate) fn least_capacity(&self, job: &Job) -> MiB {
        let known = job.spec.forecasts.known();
        let known = if self.most_memory(job) >= Some(known) { known } else { MiB::ZERO };
        known.max(job.least_capacity()).max(job.spec.forecasts.declared.unwrap_or_default())
    }

    /// Changes one GPU and keeps the indexes true.
    pub(super) fn change_gpu<T>(
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
                self.index.idle.insert(key)
            } else {
                self.index.idle.remove(&key)
            };
        }
        self.index.latest_fault = self.index.latest_fault.max(gpu.faults.values().copied().max());
        Ok(result)
    }

    /// Changes one job and keeps the indexes true.
    pub(super) fn update(&mut self, id: JobId, change: impl FnOnce(&mut Job)) -> Result<(), Rejected> {
        let mut job = self.jobs.remove(&id).ok_or(Rejected::NoSuchJob(id))?;
        self.unindex(&job);
        change(Arc::make_mut(&mut job));
        self.index(&job);
        self.jobs.insert(id, job);
        Ok(())
    }
}

//! What every baseline keeps: which jobs wait, which are on which GPU, what memory is spoken for.

use crate::event::cluster::{Cluster, demand, weight};
use crate::event::scheduler::{Decision, Fate, Left};
use crate::event::world::{GpuIndex, JobIndex, Terms};
use crate::gpu::Law;
use crate::trace::Workload;
use carma_core::model::SharingMode;
use carma_interference::share::{Demand, Mode, Scratch, Tenant};
use std::collections::BTreeSet;
use std::sync::Arc;

/// What is known of a job from profiling.
#[derive(Debug, Clone)]
pub(super) struct Profile {
    /// Number of GPUs.
    pub(super) gpus: usize,
    /// Most memory on any of its GPUs, MiB.
    pub(super) need: u64,
    /// What it does to a GPU when alone. A cluster of several types counts as one of its first.
    pub(super) tenant: Tenant,
    /// Name of its task; jobs of unnamed tasks are told apart.
    pub(super) name: Arc<str>,
}

#[derive(Debug)]
pub(super) struct Desk {
    pub(super) profiles: Vec<Profile>,
    /// Jobs on each GPU, in the order in which they came there.
    pub(super) board: Vec<Vec<JobIndex>>,
    /// GPUs of each job; empty: it waits, or is not there.
    pub(super) on: Vec<Vec<GpuIndex>>,
    /// Jobs that wait. Their order is that of arrival: a job that comes back has its old place.
    pub(super) waiting: BTreeSet<JobIndex>,
    pub(super) mode: SharingMode,
    /// Jobs that ran out of memory and must have GPUs alone.
    alone: BTreeSet<JobIndex>,
    memory: Vec<u64>,
    /// How GPUs divide among jobs. A cluster of several types counts as one of its first.
    law: Option<Law>,
}

impl Desk {
    pub(super) fn new(workload: &Workload, cluster: &Cluster, mode: SharingMode) -> Self {
        let devices = cluster.devices();
        let profile = |(index, job): (usize, &crate::trace::WorkJob)| Profile {
            gpus: job.gpus as usize,
            need: job.task.memory.iter().map(|m| m.0).max().unwrap_or(0),
            tenant: Tenant {
                weight: weight(&job.task, mode),
                steps_per_s: job.task.steps_per_s,
                ..Tenant::new(
                    devices.first().map_or(Demand::default(), |device| demand(&job.task, &device.gpu).0),
                )
            },
            name: if job.task.name.is_empty() {
                format!("#{index}").into()
            } else {
                Arc::clone(&job.task.name)
            },
        };
        Self {
            profiles: workload.jobs.iter().enumerate().map(profile).collect(),
            board: vec![Vec::new(); devices.len()],
            on: vec![Vec::new(); workload.jobs.len()],
            waiting: BTreeSet::new(),
            mode,
            alone: BTreeSet::new(),
            memory: devices.iter().map(|device| device.gpu.memory_mib).collect(),
            law: devices.first().map(|device| device.law),
        }
    }

    /// Names of the tasks on a GPU and of one more, in order.
    pub(super) fn tasks_on(&self, gpu: GpuIndex, newcomer: Option<JobIndex>) -> Vec<Arc<str>> {
        let tenants = self.board[gpu as usize].iter().copied().chain(newcomer);
        let mut names: Vec<Arc<str>> = tenants.map(|job| Arc::clone(&self.profile(job).name)).collect();
        names.sort();
        names
    }

    pub(super) fn profile(&self, job: JobIndex) -> &Profile {
        &self.profiles[job as usize]
    }

    pub(super) fn gpus(&self) -> std::ops::Range<GpuIndex> {
        0..GpuIndex::try_from(self.board.len()).unwrap_or(GpuIndex::MAX)
    }

    pub(super) fn memory(&self, gpu: GpuIndex) -> u64 {
        self.memory[gpu as usize]
    }

    pub(super) fn is_alone(&self, job: JobIndex) -> bool {
        self.alone.contains(&job)
    }

    pub(super) fn is_idle(&self, gpu: GpuIndex) -> bool {
        self.board[gpu as usize].is_empty()
    }

    /// A job came. One that the cluster can't hold is lost.
    pub(super) fn came(&mut self, job: JobIndex) -> Fate {
        let profile = self.profile(job);
        let large_enough = self.memory.iter().filter(|memory| profile.need <= **memory).count();
        if profile.gpus == 0 || large_enough < profile.gpus {
            return Fate::Lost;
        }
        self.waiting.insert(job);
        Fate::Goes
    }

    /// A job has left its GPUs; after an out-of-memory it waits for GPUs alone.
    pub(super) fn left(&mut self, job: JobIndex, how: Left) -> Fate {
        self.vacate(job);
        match how {
            Left::Completed => Fate::Goes,
            Left::OutOfMemory(_) if self.alone.insert(job) => {
                self.waiting.insert(job);
                Fate::Goes
            }
            // It had them alone: nothing will help it.
            Left::OutOfMemory(_) => Fate::Lost,
        }
    }

    fn vacate(&mut self, job: JobIndex) {
        for gpu in std::mem::take(&mut self.on[job as usize]) {
            self.board[gpu as usize].retain(|tenant| *tenant != job);
        }
    }

    /// Memory of a GPU that the peaks of its jobs leave free.
    pub(super) fn free(&self, gpu: GpuIndex) -> u64 {
        let taken = self.board[gpu as usize].iter().map(|job| self.profile(*job).need).sum();
        self.memory(gpu).saturating_sub(taken)
    }

    /// Whether a GPU has room for one more: memory for the peaks of all, and no job that must be alone.
    pub(super) fn joins(&self, job: JobIndex, gpu: GpuIndex) -> bool {
        let need = self.profile(job).need;
        let tenants = &self.board[gpu as usize];
        if tenants.is_empty() {
            return need <= self.memory(gpu);
        }
        !self.is_alone(job) && !tenants.iter().any(|t| self.is_alone(*t)) && need <= self.free(gpu)
    }

    /// GPU utilisation that its jobs show together, each as it does alone.
    pub(super) fn utilisation(&self, gpu: GpuIndex) -> f64 {
        self.board[gpu as usize].iter().map(|job| self.profile(*job).tenant.demand.gract).sum()
    }

    /// Speeds of two jobs on the same GPUs, each over its speed alone.
    pub(super) fn speeds(&self, a: JobIndex, b: JobIndex, scratch: &mut Scratch) -> Option<[f64; 2]> {
        let mode = if self.mode == SharingMode::TimeSlice { Mode::TimeSlice } else { Mode::Mps };
        let mut speeds = Vec::with_capacity(2);
        self.law?.run(mode, &[self.profile(a).tenant, self.profile(b).tenant], scratch, &mut speeds);
        speeds.try_into().ok()
    }

    /// The first GPUs that a job needs, of these in their order; `None`: there are too few.
    pub(super) fn pick(
        &self,
        job: JobIndex,
        from: impl IntoIterator<Item = GpuIndex>,
    ) -> Option<Vec<GpuIndex>> {
        let wanted = self.profile(job).gpus;
        let picked: Vec<GpuIndex> = from.into_iter().take(wanted).collect();
        (picked.len() == wanted).then_some(picked)
    }

    /// As [`Self::pick`], the least utilised first.
    pub(super) fn pick_least_utilised(
        &self,
        job: JobIndex,
        from: impl Iterator<Item = GpuIndex>,
    ) -> Option<Vec<GpuIndex>> {
        let mut ranked: Vec<(f64, GpuIndex)> = from.map(|gpu| (self.utilisation(gpu), gpu)).collect();
        ranked.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        self.pick(job, ranked.into_iter().map(|(_, gpu)| gpu))
    }

    /// How jobs share here, at a weight.
    pub(super) const fn terms(&self, weight: f64) -> Terms {
        let mut terms = Terms::plain(self.mode);
        terms.weight = weight;
        terms
    }

    pub(super) fn start(&mut self, job: JobIndex, gpus: Vec<GpuIndex>, terms: Terms) -> Decision {
        self.waiting.remove(&job);
        self.on[job as usize].clone_from(&gpus);
        for gpu in &gpus {
            self.board[*gpu as usize].push(job);
        }
        Decision::Start { job, gpus, terms }
    }

    pub(super) fn preempt(&mut self, job: JobIndex) -> Decision {
        self.vacate(job);
        self.waiting.insert(job);
        Decision::Preempt { job }
    }
}

/// Of a long queue, how many waiting jobs a baseline looks at for one that can start before its turn.
pub(super) const LOOKAHEAD: usize = 256;

#[cfg(test)]
mod tests {
    use super::super::tests::{cluster, task, workload};
    use super::*;
    use crate::event::world::Overflow;

    #[test]
    fn memory_is_spoken_for_and_too_large_jobs_are_refused() {
        let (large, small) = (task("large", 30_000, 0.1, 0.1), task("small", 10_000, 0.2, 0.1));
        let jobs = workload(&[(0, 1, 1, &large), (0, 1, 1, &small), (0, 1, 1, &small), (0, 1, 3, &small)]);
        let mut desk = Desk::new(&jobs, &cluster("1xCUSTOM-40GB+1xCUSTOM-20GB"), SharingMode::Mps);
        let fates: Vec<Fate> = (0..4).map(|job| desk.came(job)).collect();
        assert_eq!(fates, [Fate::Goes, Fate::Goes, Fate::Goes, Fate::Lost]);
        assert!(desk.joins(0, 0) && !desk.joins(0, 1));
        desk.start(0, vec![0], desk.terms(1.0));
        desk.start(1, vec![0], desk.terms(1.0));
        assert_eq!((desk.free(0), desk.joins(2, 0), desk.joins(2, 1)), (960, false, true));
        assert!((desk.utilisation(0) - 0.3).abs() < 1e-12);
        desk.preempt(0);
        assert_eq!((desk.waiting.first(), desk.joins(2, 0)), (Some(&0), true));
    }

    #[test]
    fn after_an_out_of_memory_a_job_is_alone_and_after_another_lost() {
        let small = task("small", 1000, 0.1, 0.1);
        let jobs = workload(&[(0, 1, 1, &small), (0, 1, 1, &small)]);
        let mut desk = Desk::new(&jobs, &cluster("1xCUSTOM-40GB"), SharingMode::Mps);
        let out = Left::OutOfMemory(Overflow { gpu: 0, wanted: 2000, free: 1000, held: 0, capped: false });
        desk.came(0);
        desk.came(1);
        desk.start(0, vec![0], desk.terms(1.0));
        assert!(desk.joins(1, 0));
        assert_eq!(desk.left(0, out), Fate::Goes);
        assert!(desk.is_alone(0) && desk.is_idle(0) && desk.waiting.contains(&0));
        desk.start(0, vec![0], desk.terms(1.0));
        assert!(!desk.joins(1, 0));
        assert_eq!(desk.left(0, out), Fate::Lost);
        assert!(!desk.waiting.contains(&0) && desk.joins(1, 0));
    }
}

//! The physical side of a run: jobs at work on GPUs, memory, progress, power. It knows nothing of
//! policies.
//!
//! Between two events everything is constant. A job has work left, in milliseconds of its run alone;
//! it does `rate` of them a millisecond. When other jobs compute on a GPU than before, the share law gives new
//! rates, and the jobs' next milestones (a step of memory, the end) move.

use super::cluster::{Cluster, Device, demand, weight};
use super::window::{History, Levels};
use crate::trace::{CatalogueTask, Workload};
use carma_core::model::SharingMode;
use carma_core::units::{MiB, Millis};
use carma_hardware::Startup;
use carma_interference::power::PowerLaw as _;
use carma_interference::profile::{Metrics, Stat};
use carma_interference::share::{Capacities, Demand, Mode, Scratch, Tenant, share};
use std::sync::Arc;

/// Position of a job in the workload.
pub(crate) type JobIndex = u32;
/// Position of a GPU in the cluster.
pub(crate) type GpuIndex = u32;

/// Where a job is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Not on GPUs.
    Away,
    /// On GPUs without activity: it loads and has no memory yet, or is being suspended and has all of it still.
    Starting,
    /// At work.
    Active,
}

/// A part of a GPU that a job has for itself (a MIG instance that comes and goes).
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Part {
    /// Share of the SMs.
    pub(crate) sm: f64,
    /// Share of the DRAM bandwidth.
    pub(crate) dram: f64,
    /// Memory that it holds on each GPU.
    pub(crate) memory: MiB,
}

impl Part {
    /// Speed of a job in it, over that on the whole GPU: the law for a MIG instance that it has alone.
    pub(crate) fn speed(&self, demand: &Demand) -> f64 {
        let part = Capacities { part_sm: self.sm, part_dram: self.dram, ..Capacities::prior() };
        let outcome = share(Mode::TimeSlice, &[Tenant::new(*demand)], &part);
        outcome.progress.first().copied().unwrap_or(1.0)
    }
}

/// How a job is on its GPUs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Terms {
    pub(crate) mode: SharingMode,
    /// Hard limit of its memory on each GPU.
    pub(crate) cap: Option<MiB>,
    /// Percentage of the SMs' threads.
    pub(crate) threads: Option<u8>,
    /// Weight in the division of what is scarce.
    pub(crate) weight: f64,
    /// Its kernels are launched at this share of the pace that it has alone, at most: 1 where nothing holds them back.
    pub(crate) pace: f64,
    pub(crate) part: Option<Part>,
}

impl Terms {
    pub(crate) const fn plain(mode: SharingMode) -> Self {
        Self { mode, cap: None, threads: None, weight: 1.0, pace: 1.0, part: None }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Job {
    pub(crate) stage: Stage,
    pub(crate) gpus: Vec<GpuIndex>,
    pub(crate) terms: Terms,
    pub(crate) task: Arc<CatalogueTask>,
    /// What it does to its GPUs, for the share law, and its warp occupancy.
    tenant: Tenant,
    smocc: f64,
    /// Run time alone, milliseconds, and the part of it that is start-up.
    pub(crate) solo: u64,
    pub(crate) startup: u64,
    /// Work left at `since`, milliseconds of its run alone.
    left: f64,
    since: u64,
    pub(crate) rate: f64,
    /// Counts the milestones: an event with an older count is void.
    pub(crate) version: u32,
    /// Next entry of the task's memory over time.
    step: usize,
    /// Memory that it holds on each of its GPUs, MiB.
    held: Vec<u64>,
}

/// Integrals over time: milliseconds times the quantity.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Totals {
    pub(crate) smact: f64,
    pub(crate) smocc: f64,
    pub(crate) drama: f64,
    pub(crate) memory: f64,
    pub(crate) power: f64,
    pub(crate) tenants: f64,
    /// Time with a job.
    pub(crate) busy: f64,
    /// The first five while there is a job.
    pub(crate) active: [f64; 5],
}

/// A point at which a GPU's levels changed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Point {
    pub(crate) at: u64,
    pub(crate) smact: f32,
    pub(crate) memory: f32,
    pub(crate) power: f32,
}

#[derive(Debug)]
pub(crate) struct Gpu {
    device: Device,
    /// Jobs on it, in the order in which they came.
    pub(crate) tenants: Vec<JobIndex>,
    /// Progress that this GPU alone would allow each of them; of those that load, nothing.
    allowed: Vec<f64>,
    pub(crate) used: u64,
    /// Clock over the clock without a power limit, 0 to 1.
    clock: f64,
    /// What a monitor shows: of a MIG instance shares of what it has, as its counters tell them in life.
    levels: Levels,
    /// Share of time with a kernel on it.
    gract: f64,
    power: f64,
    since: u64,
    pub(crate) history: History,
    pub(crate) totals: Totals,
    pub(crate) points: Vec<Point>,
}

/// Why a job could not have the memory that it asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Overflow {
    pub(crate) gpu: GpuIndex,
    /// What it would have held.
    pub(crate) wanted: u64,
    /// What it could have held.
    pub(crate) free: u64,
    /// What it held.
    pub(crate) held: u64,
    /// Whether its own cap stopped it.
    pub(crate) capped: bool,
}

impl Gpu {
    /// What it does now, in shares of the whole GPU: so is told what tasks do alone, on MIG instances too.
    pub(crate) fn seen(&self) -> Metrics {
        let share = |share: f64| Some(Stat::of(share * 100.0));
        let [smact, smocc, drama] = self.levels;
        let Capacities { part_sm, part_dram, .. } = self.device.law.capacities;
        Metrics {
            gract_pct: share(self.gract),
            smact_pct: share(smact * part_sm),
            smocc_pct: share(smocc * part_sm),
            drama_pct: share(drama * part_dram),
            ..Metrics::default()
        }
    }
}

/// What comes next for a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Milestone {
    pub(crate) job: JobIndex,
    pub(crate) version: u32,
    pub(crate) at: u64,
}

/// What a job reaches at a milestone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reached {
    /// It wants another amount of memory.
    Memory,
    /// It is done.
    End,
}

pub(crate) struct World {
    pub(crate) jobs: Vec<Job>,
    pub(crate) gpus: Vec<Gpu>,
    /// Window of the monitor, milliseconds.
    span: u64,
    record: bool,
    /// Milestones that moved, for the engine to collect.
    moved: Vec<Milestone>,
    /// GPUs whose activity changed, likewise.
    stirred: Vec<GpuIndex>,
    scratch: Scratch,
    tenants: Vec<Tenant>,
    progress: Vec<f64>,
    touched: Vec<GpuIndex>,
}

/// A tenant whose kernels are launched at a share of its pace: it asks for so much less of everything, and its progress is
/// that of what it asks for.
fn held_back(tenant: Tenant, pace: f64) -> Tenant {
    let Demand { gract, sm, dram, tensor, pcie } = tenant.demand;
    let demand = Demand {
        gract: gract * pace,
        sm: sm * pace,
        dram: dram * pace,
        tensor: tensor * pace,
        pcie: pcie * pace,
    };
    let steps_per_s = tenant.steps_per_s.map(|steps| steps * pace);
    if pace < 1.0 { Tenant { demand, steps_per_s, ..tenant } } else { tenant }
}

impl World {
    /// Nothing runs at `begin`.
    pub(crate) fn new(
        workload: &Workload,
        cluster: &Cluster,
        begin: Millis,
        span: Millis,
        record: bool,
    ) -> Self {
        let jobs = workload.jobs.iter().map(|job| Job {
            stage: Stage::Away,
            gpus: Vec::new(),
            terms: Terms::plain(SharingMode::Exclusive),
            task: Arc::clone(&job.task),
            tenant: Tenant::new(Demand::default()),
            smocc: 0.0,
            solo: job.duration.0,
            startup: 0,
            left: 0.0,
            since: 0,
            rate: 0.0,
            version: 0,
            step: 0,
            held: Vec::new(),
        });
        let gpus = cluster.devices().iter().map(|device| Gpu {
            device: device.clone(),
            tenants: Vec::new(),
            allowed: Vec::new(),
            used: 0,
            clock: 1.0,
            levels: [0.0; 3],
            gract: 0.0,
            power: device.gpu.empty_w,
            since: begin.0,
            history: History::default(),
            totals: Totals::default(),
            points: Vec::new(),
        });
        Self {
            jobs: jobs.collect(),
            gpus: gpus.collect(),
            span: span.0,
            record,
            moved: Vec::new(),
            stirred: Vec::new(),
            scratch: Scratch::default(),
            tenants: Vec::new(),
            progress: Vec::new(),
            touched: Vec::new(),
        }
    }

    /// Memory of a GPU, MiB.
    pub(crate) fn memory(&self, gpu: GpuIndex) -> MiB {
        MiB(self.gpus[gpu as usize].device.gpu.memory_mib)
    }

    /// How long processes load on these GPUs.
    pub(crate) fn startup(&self, gpus: &[GpuIndex]) -> &Startup {
        let gpu = gpus.first().map_or(0, |gpu| *gpu as usize);
        &self.gpus[gpu].device.gpu.startup
    }

    /// Memory that a job holds on a GPU.
    pub(crate) fn held(&self, job: JobIndex, gpu: GpuIndex) -> MiB {
        let job = &self.jobs[job as usize];
        let at = job.gpus.iter().position(|g| *g == gpu);
        MiB(at.and_then(|at| job.held.get(at)).copied().unwrap_or(0))
    }

    /// Whether a job is the only one on all of its GPUs, but for those that load and have touched none yet.
    pub(crate) fn is_alone(&self, job: JobIndex) -> bool {
        let is_absent = |other: &JobIndex| {
            let other = &self.jobs[*other as usize];
            other.stage == Stage::Starting && other.held.iter().all(|held| *held == 0)
        };
        let mut gpus = self.jobs[job as usize].gpus.iter().map(|gpu| &self.gpus[*gpu as usize]);
        gpus.all(|gpu| gpu.tenants.iter().all(|other| *other == job || is_absent(other)))
    }

    /// Milestones that moved since the last call.
    pub(crate) fn moved(&mut self) -> std::vec::Drain<'_, Milestone> {
        self.moved.drain(..)
    }

    /// GPUs whose activity changed since the last call.
    pub(crate) fn stirred(&mut self) -> std::vec::Drain<'_, GpuIndex> {
        self.stirred.drain(..)
    }

    /// Puts a job on GPUs. `fresh`: from the beginning; otherwise it goes on where it was taken off.
    pub(crate) fn start(
        &mut self,
        now: u64,
        job: JobIndex,
        gpus: Vec<GpuIndex>,
        terms: Terms,
        startup: u64,
        fresh: bool,
    ) {
        let (demand, smocc) = match gpus.first() {
            Some(gpu) => demand(&self.jobs[job as usize].task, &self.gpus[*gpu as usize].device.gpu),
            None => Default::default(),
        };
        let it = &mut self.jobs[job as usize];
        let mut tenant = Tenant::new(demand);
        tenant.weight = terms.weight * weight(&it.task, terms.mode);
        tenant.steps_per_s = it.task.steps_per_s;
        if let Some(percent) = terms.threads {
            tenant = tenant.with_threads(f64::from(percent), &it.task.mps_curve);
        }
        it.tenant = tenant;
        it.smocc = smocc;
        it.terms = terms;
        it.startup = startup;
        it.step = 0;
        if fresh {
            it.left = it.solo.saturating_sub(startup) as f64;
        }
        self.put_on(now, job, gpus);
    }

    /// Puts a job on GPUs under the terms that it has. A job that was suspended goes on there as the same attempt.
    pub(crate) fn put_on(&mut self, now: u64, job: JobIndex, gpus: Vec<GpuIndex>) {
        for gpu in &gpus {
            self.integrate(now, *gpu);
            let gpu = &mut self.gpus[*gpu as usize];
            gpu.tenants.push(job);
            gpu.allowed.push(0.0);
        }
        let it = &mut self.jobs[job as usize];
        it.stage = Stage::Starting;
        it.held.clear();
        it.held.resize(gpus.len(), 0);
        it.gpus = gpus;
        it.version += 1;
        it.rate = 0.0;
    }

    /// Whether any of these GPUs has jobs.
    pub(crate) fn is_anybody_on(&self, gpus: &[GpuIndex]) -> bool {
        gpus.iter().any(|gpu| !self.gpus[*gpu as usize].tenants.is_empty())
    }

    /// A job stands still while it is being suspended: it has its memory until it is off.
    pub(crate) fn halt(&mut self, now: u64, job: JobIndex) {
        self.settle(now, job);
        let it = &mut self.jobs[job as usize];
        it.stage = Stage::Starting;
        it.version += 1;
        it.rate = 0.0;
        let gpus = it.gpus.clone();
        self.refresh(now, &gpus);
    }

    /// A job's loading is over: it takes its memory and goes to work.
    pub(crate) fn activate(&mut self, now: u64, job: JobIndex) -> Result<(), Overflow> {
        let it = &mut self.jobs[job as usize];
        // A job that goes on needs what it had come to need.
        let work = it.solo.saturating_sub(it.startup) as f64;
        let passed = it.task.memory_over_time.iter().take_while(|(at, _)| work * (1.0 - at) >= it.left);
        it.step = passed.count().saturating_sub(1);
        self.grow(now, job)?;
        let it = &mut self.jobs[job as usize];
        it.stage = Stage::Active;
        it.since = now;
        let gpus = it.gpus.clone();
        self.refresh(now, &gpus);
        Ok(())
    }

    /// A job asks for the memory of its next step. On refusal nothing has changed, but for what it
    /// could still take before: see [`Self::fill`].
    fn grow(&mut self, now: u64, job: JobIndex) -> Result<(), Overflow> {
        let it = &self.jobs[job as usize];
        let share = it.task.memory_over_time.get(it.step).map_or(1.0, |(_, share)| *share);
        let wanted = |at: usize| {
            let peak = it.task.memory.get(at).or(it.task.memory.first()).map_or(0, |m| m.0);
            (peak as f64 * share).round() as u64
        };
        for (at, (gpu, held)) in it.gpus.iter().zip(&it.held).enumerate() {
            let free = self.memory(*gpu).0.saturating_sub(self.gpus[*gpu as usize].used) + held;
            let room = it.terms.part.map_or(free, |part| free.min(part.memory.0));
            let cap = it.terms.cap.map_or(u64::MAX, |cap| cap.0);
            if wanted(at) > room.min(cap) {
                return Err(Overflow {
                    gpu: *gpu,
                    wanted: wanted(at),
                    free: room.min(cap),
                    held: *held,
                    capped: cap < room,
                });
            }
        }
        for at in 0..it.gpus.len() {
            self.hold(now, job, at, share);
        }
        self.jobs[job as usize].step += 1;
        Ok(())
    }

    fn hold(&mut self, now: u64, job: JobIndex, at: usize, share: f64) {
        let it = &mut self.jobs[job as usize];
        let peak = it.task.memory.get(at).or(it.task.memory.first()).map_or(0, |m| m.0);
        let wanted = (peak as f64 * share).round() as u64;
        let (gpu, held) = (it.gpus[at], it.held[at]);
        it.held[at] = wanted;
        self.integrate(now, gpu);
        let used = &mut self.gpus[gpu as usize].used;
        *used = used.saturating_sub(held) + wanted;
        self.point(now, gpu);
    }

    /// A job that was refused memory took, before, what there was.
    pub(crate) fn fill(&mut self, now: u64, job: JobIndex, overflow: Overflow) {
        let it = &mut self.jobs[job as usize];
        let Some(at) = it.gpus.iter().position(|gpu| *gpu == overflow.gpu) else {
            return;
        };
        let held = std::mem::replace(&mut it.held[at], overflow.free);
        self.integrate(now, overflow.gpu);
        let used = &mut self.gpus[overflow.gpu as usize].used;
        *used = used.saturating_sub(held) + overflow.free;
    }

    /// What a job reaches at its milestone now. After [`Reached::Memory`] it asks for it.
    pub(crate) fn reach(&mut self, now: u64, job: JobIndex) -> Result<Reached, Overflow> {
        self.settle(now, job);
        let it = &self.jobs[job as usize];
        if it.left < 0.5 {
            return Ok(Reached::End);
        }
        self.grow(now, job)?;
        self.schedule(now, job);
        Ok(Reached::Memory)
    }

    /// Holds the kernels of a running job back to a share of its pace alone.
    pub(crate) fn hold_back(&mut self, now: u64, job: JobIndex, pace: f64) {
        let it = &mut self.jobs[job as usize];
        it.terms.pace = pace.clamp(0.0, 1.0);
        let gpus = it.gpus.clone();
        self.refresh(now, &gpus);
    }

    /// Takes a job off its GPUs, its memory with it.
    pub(crate) fn stop(&mut self, now: u64, job: JobIndex) {
        self.settle(now, job);
        let it = &mut self.jobs[job as usize];
        let was_active = it.stage == Stage::Active;
        it.stage = Stage::Away;
        it.rate = 0.0;
        it.version += 1;
        let gpus = std::mem::take(&mut it.gpus);
        let held = std::mem::take(&mut it.held);
        for (gpu, held) in gpus.iter().zip(&held) {
            self.integrate(now, *gpu);
            let gpu = &mut self.gpus[*gpu as usize];
            if let Some(at) = gpu.tenants.iter().position(|tenant| *tenant == job) {
                gpu.tenants.remove(at);
                gpu.allowed.remove(at);
            }
            gpu.used = gpu.used.saturating_sub(*held);
        }
        if was_active {
            self.refresh(now, &gpus);
        } else {
            // No job computes otherwise, but the GPU may be empty now, and holds less.
            gpus.iter().for_each(|gpu| self.relevel(now, *gpu));
        }
    }

    /// Work that is left of a job, milliseconds of its run alone, start-up included while it loads.
    pub(crate) fn left(&self, now: u64, job: JobIndex) -> f64 {
        let it = &self.jobs[job as usize];
        match it.stage {
            Stage::Active => (it.left - it.rate * (now - it.since) as f64).max(0.0),
            Stage::Away | Stage::Starting => it.left,
        }
    }

    /// Share of its work that a job has done since it came to its GPUs; `None`: it loads, or is off them.
    pub(crate) fn done(&self, now: u64, job: JobIndex) -> Option<f64> {
        let it = &self.jobs[job as usize];
        let work = it.solo.saturating_sub(it.startup);
        (it.stage == Stage::Active && work > 0).then(|| 1.0 - self.left(now, job) / work as f64)
    }

    fn settle(&mut self, now: u64, job: JobIndex) {
        let left = self.left(now, job);
        let it = &mut self.jobs[job as usize];
        it.left = left;
        it.since = now;
    }

    /// New shares on these GPUs, new rates for the jobs that compute there, new levels wherever those compute.
    fn refresh(&mut self, now: u64, gpus: &[GpuIndex]) {
        for gpu in gpus {
            self.share_out(*gpu);
        }
        let mut touched = std::mem::take(&mut self.touched);
        touched.clear();
        touched.extend_from_slice(gpus);
        for gpu in gpus {
            for at in 0..self.gpus[*gpu as usize].tenants.len() {
                let job = self.gpus[*gpu as usize].tenants[at];
                let it = &self.jobs[job as usize];
                if it.stage != Stage::Active {
                    continue;
                }
                let rate = it.gpus.iter().map(|gpu| self.gpus[*gpu as usize].allows(job));
                let rate = rate.fold(f64::INFINITY, f64::min);
                if rate == it.rate {
                    continue;
                }
                for gpu in &it.gpus {
                    if !touched.contains(gpu) {
                        touched.push(*gpu);
                    }
                }
                self.settle(now, job);
                self.jobs[job as usize].rate = rate;
                self.schedule(now, job);
            }
        }
        for gpu in &touched {
            self.relevel(now, *gpu);
        }
        self.touched = touched;
    }

    /// Divides a GPU among the jobs that compute there.
    fn share_out(&mut self, gpu: GpuIndex) {
        let shared = &mut self.gpus[gpu as usize];
        self.tenants.clear();
        let mut mode = Mode::Mps;
        for (job, allowed) in shared.tenants.iter().zip(&mut shared.allowed) {
            let it = &self.jobs[*job as usize];
            *allowed = match (it.stage, it.terms.part) {
                (Stage::Away | Stage::Starting, _) => 0.0,
                // A part is a GPU of its own, only smaller.
                (Stage::Active, Some(part)) => part.speed(&it.tenant.demand),
                (Stage::Active, None) => {
                    if it.terms.mode == SharingMode::TimeSlice {
                        mode = Mode::TimeSlice;
                    }
                    self.tenants.push(held_back(it.tenant, it.terms.pace));
                    f64::NAN // until the shares are known
                }
            };
        }
        shared.clock = 1.0;
        if self.tenants.is_empty() {
            return;
        }
        let law = &shared.device.law;
        shared.clock = law.run(mode, &self.tenants, &mut self.scratch, &mut self.progress).clock;
        let shares = shared.tenants.iter().zip(&mut shared.allowed);
        let unknown = shares.filter(|(_, allowed)| allowed.is_nan());
        for ((job, allowed), progress) in unknown.zip(&self.progress) {
            *allowed = *progress * self.jobs[*job as usize].terms.pace;
        }
    }

    /// Speed of a job that has fewer threads, if it were alone on its GPU, over its speed alone with all.
    pub(crate) fn alone_with_its_threads(&self, job: JobIndex) -> f64 {
        let Some(it) = self.jobs.get(job as usize) else { return 1.0 };
        let Some(gpu) = it.gpus.first().filter(|_| it.terms.threads.is_some()) else { return 1.0 };
        let law = &self.gpus[*gpu as usize].device.law;
        let mut progress = Vec::new();
        law.run(Mode::Mps, &[it.tenant], &mut Scratch::default(), &mut progress);
        progress.first().copied().filter(|alone| *alone > 0.0).unwrap_or(1.0)
    }

    /// Activity and power of a GPU from the rates of the jobs that compute there.
    fn relevel(&mut self, now: u64, gpu: GpuIndex) {
        self.integrate(now, gpu);
        let it = &mut self.gpus[gpu as usize];
        let mut used = Demand::default();
        let mut smocc = 0.0;
        let mut dram = 0.0;
        // Time without a kernel, and SM activity, of the jobs that have all of it; a part is busy on its own.
        let (mut quiet, mut whole, mut parts) = (1.0, 0.0_f64, 0.0);
        let power = it.device.law.power;
        for job in &it.tenants {
            let job = &self.jobs[*job as usize];
            if job.stage != Stage::Active {
                continue;
            }
            let (demand, rate) = (&job.tenant.demand, job.rate);
            // Under a lower clock than alone kernels are resident for longer, and count for longer.
            let longer = power.longer(demand, it.clock);
            used.sm += demand.sm * rate * longer;
            used.dram += demand.dram * rate * longer;
            used.tensor += demand.tensor * rate * longer;
            smocc += job.smocc * rate * longer;
            dram += demand.dram * rate;
            let gract = demand.gract.clamp(0.0, 1.0) * job.terms.pace;
            match job.terms.part {
                Some(part) => parts += part.sm * gract.max(demand.sm * rate * longer),
                None => {
                    quiet *= 1.0 - gract;
                    whole += demand.sm * rate * longer;
                }
            }
        }
        used.gract = ((1.0 - quiet).max(whole) + parts).min(1.0);
        it.power = if it.tenants.is_empty() { it.device.gpu.empty_w } else { power.drawn_w(&used) };
        let Capacities { part_sm, part_dram, .. } = it.device.law.capacities;
        it.levels = [used.sm / part_sm, smocc / part_sm, dram / part_dram].map(|share| share.min(1.0));
        it.gract = used.gract;
        it.history.push(now, it.levels, self.span);
        self.stirred.push(gpu);
        self.point(now, gpu);
    }

    /// Sets the next milestone of a job that computes.
    fn schedule(&mut self, now: u64, job: JobIndex) {
        let it = &mut self.jobs[job as usize];
        it.version += 1;
        if it.stage != Stage::Active || it.rate <= 0.0 {
            return;
        }
        let work = it.solo.saturating_sub(it.startup) as f64;
        // Left when the next step of memory is due; at the first step the run has just begun.
        let step = it.task.memory_over_time.get(it.step).map(|(share, _)| work * (1.0 - share));
        let to_do = it.left - step.filter(|at| *at < it.left).unwrap_or(0.0);
        let wait = (to_do / it.rate).ceil();
        let at = now.saturating_add(if wait < 1e15 { wait as u64 } else { u64::MAX / 2 });
        self.moved.push(Milestone { job, version: it.version, at });
    }

    /// Brings a GPU's totals up to now.
    fn integrate(&mut self, now: u64, gpu: GpuIndex) {
        let it = &mut self.gpus[gpu as usize];
        let span = (now - it.since) as f64;
        if span == 0.0 {
            return;
        }
        it.since = now;
        let [smact, smocc, drama] = it.levels;
        let memory = it.used as f64;
        let values = [smact, smocc, drama, memory, it.power];
        let totals = &mut it.totals;
        totals.smact += smact * span;
        totals.smocc += smocc * span;
        totals.drama += drama * span;
        totals.memory += memory * span;
        totals.power += it.power * span;
        if !it.tenants.is_empty() {
            totals.busy += span;
            totals.tenants += it.tenants.len() as f64 * span;
            for (sum, value) in totals.active.iter_mut().zip(values) {
                *sum += value * span;
            }
        }
    }

    /// Brings all totals up to the end.
    pub(crate) fn finish(&mut self, now: u64) {
        for gpu in 0..self.gpus.len() {
            self.integrate(now, gpu as GpuIndex);
        }
    }

    /// What must hold at every instant: states what doesn't, in words. For tests and debug builds.
    #[cfg(debug_assertions)]
    pub(crate) fn check(&self) -> Vec<String> {
        let mut broken = Vec::new();
        for (index, gpu) in (0..).zip(&self.gpus) {
            let held: u64 = gpu.tenants.iter().map(|job| self.held(*job, index).0).sum();
            let memory = gpu.device.gpu.memory_mib;
            if gpu.used != held || gpu.used > memory {
                broken.push(format!("GPU {index}: {} MiB in use, {held} held, {memory} there", gpu.used));
            }
            if gpu.allowed.len() != gpu.tenants.len() {
                broken.push(format!(
                    "GPU {index}: {} tenants, {} shares",
                    gpu.tenants.len(),
                    gpu.allowed.len()
                ));
            }
            for job in &gpu.tenants {
                let it = &self.jobs[*job as usize];
                let here = it.gpus.iter().filter(|gpu| **gpu == index).count();
                let there = gpu.tenants.iter().filter(|tenant| *tenant == job).count();
                if it.stage == Stage::Away || here != 1 || there != 1 {
                    broken
                        .push(format!("GPU {index}: job {job} is {:?}, {here} and {there} times", it.stage));
                }
                let (rate, starts) = (it.rate, it.stage == Stage::Starting);
                if !(0.0..=1.0).contains(&rate) || starts != (rate == 0.0) {
                    broken.push(format!("job {job} is {:?} at a rate of {rate}", it.stage));
                }
            }
        }
        broken
    }

    /// Notes the levels, for curves over time.
    fn point(&mut self, now: u64, gpu: GpuIndex) {
        if self.record {
            let it = &mut self.gpus[gpu as usize];
            let [smact, ..] = it.levels;
            it.points.push(Point {
                at: now,
                smact: smact as f32,
                memory: it.used as f32,
                power: it.power as f32,
            });
        }
    }
}

impl Gpu {
    /// Power while it is idle, watts.
    pub(crate) fn empty_w(&self) -> f64 {
        self.device.gpu.empty_w
    }

    fn allows(&self, job: JobIndex) -> f64 {
        let at = self.tenants.iter().position(|tenant| *tenant == job);
        at.and_then(|at| self.allowed.get(at)).copied().unwrap_or(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{Activity, WorkJob};
    use carma_hardware::GpuTypes;

    fn world(cluster: &str, activities: &[Activity]) -> World {
        let job = |activity: &Activity| WorkJob {
            line: 1,
            id: "x".into(),
            arrival: Millis::ZERO,
            duration: Millis::secs(100),
            gpus: 1,
            user: 0,
            threads: None,
            task: Arc::new(CatalogueTask {
                activity: *activity,
                memory: vec![MiB(3000)],
                ..CatalogueTask::default()
            }),
        };
        let jobs = activities.iter().map(job).collect();
        let workload = Workload { name: "t".into(), users: vec!["-".into()], jobs, notes: Vec::new() };
        let cluster = Cluster::parse(cluster, &GpuTypes::built_in()).unwrap();
        World::new(&workload, &cluster, Millis::ZERO, Millis::secs(30), true)
    }

    fn activity(gract: f64, smact: f64, drama: f64) -> Activity {
        Activity { gract: Some(gract), smact: Some(smact), drama: Some(drama), ..Activity::default() }
    }

    /// What is assumed of a task is compared with profiles, which are of the whole GPU.
    #[test]
    fn what_is_seen_on_an_instance_is_in_shares_of_the_whole() {
        let mut world = world("A100-40GB/1g.5gb", &[activity(0.3, 0.04, 0.03)]);
        world.start(0, 0, vec![0], Terms::plain(SharingMode::Mps), 0, true);
        world.activate(0, 0).unwrap();
        // It does not fill the seventh: it goes as fast as on the whole.
        let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-9, "{a}, not {b}");
        let [smact, _, drama] = world.gpus[0].levels;
        close(smact, 0.04 * 7.0);
        close(drama, 0.03 * 8.0);
        let seen = world.gpus[0].seen();
        close(seen.smact_pct.unwrap().mean, 4.0);
        close(seen.drama_pct.unwrap().mean, 3.0);
    }

    #[test]
    fn a_job_that_is_held_back_keeps_the_gpu_busy_for_so_much_less() {
        let power = |whole: Activity, pace: f64| {
            let mut world = world("1xA100-40GB", &[whole]);
            world.start(0, 0, vec![0], Terms::plain(SharingMode::TimeSlice), 0, true);
            world.activate(0, 0).unwrap();
            world.hold_back(0, 0, pace);
            world.gpus[0].power
        };
        let held = power(activity(0.8, 0.4, 0.2), 0.25);
        let light = power(activity(0.2, 0.1, 0.05), 1.0);
        assert!((held - light).abs() < 1e-6, "{held} {light}");
    }

    #[test]
    fn jobs_in_parts_of_a_gpu_draw_what_they_do_in_instances_of_it() {
        let job = activity(0.5, 0.1, 0.05);
        let mut parts = world("1xA100-40GB", &[job; 7]);
        let part = Some(Part { sm: 1.0 / 7.0, dram: 1.0 / 8.0, memory: MiB(4864) });
        for at in 0..7 {
            parts.start(0, at, vec![0], Terms { part, ..Terms::plain(SharingMode::Exclusive) }, 0, true);
            parts.activate(0, at).unwrap();
        }
        let mut instances = world("1xA100-40GB/7x1g.5gb", &[job; 7]);
        for at in 0..7 {
            instances.start(0, at, vec![at], Terms::plain(SharingMode::Exclusive), 0, true);
            instances.activate(0, at).unwrap();
        }
        let drawn: f64 = instances.gpus.iter().map(|gpu| gpu.power).sum();
        assert!((parts.gpus[0].power - drawn).abs() < 1e-6, "{} {drawn}", parts.gpus[0].power);
    }

    #[test]
    fn a_gpu_that_is_left_before_any_work_is_empty() {
        let mut world = world("1xH200", &[activity(0.5, 0.3, 0.1); 2]);
        let empty = world.gpus[0].power;
        for job in [0, 1] {
            world.start(0, job, vec![0], Terms::plain(SharingMode::Mps), 0, true);
        }
        world.activate(0, 0).unwrap();
        world.stop(1000, 0);
        assert!(world.gpus[0].power > empty, "one still loads");
        world.stop(2000, 1);
        assert_eq!(world.gpus[0].power, empty);
        // Suspended, and off: its memory with it.
        world.start(3000, 0, vec![0], Terms::plain(SharingMode::TimeSlice), 0, true);
        world.activate(3000, 0).unwrap();
        world.halt(4000, 0);
        world.stop(5000, 0);
        assert_eq!((world.gpus[0].power, world.gpus[0].used), (empty, 0));
        assert_eq!(world.gpus[0].points.last().map(|point| point.memory), Some(0.0));
    }
}

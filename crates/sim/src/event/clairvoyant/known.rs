//! What a clairvoyant knows: each job's class, time and memory, and how fast the jobs of any set go on one GPU.

use crate::event::cluster::{Cluster, demand, weight};
use crate::event::engine::complete;
use crate::event::knowledge::Knowledge;
use crate::event::startup::startup;
use crate::event::{Setup, SharingMode};
use crate::gpu::Law;
use crate::trace::Workload;
use carma_core::policy::Options;
use carma_core::units::{MiB, Millis};
use carma_hardware::Startup;
use carma_interference::share::{Demand, Mode, Scratch, Tenant};
use std::collections::HashMap;
use std::sync::Arc;

/// Jobs that are alike to a GPU.
#[derive(Debug, Clone, PartialEq)]
pub struct Class {
    /// Name of the first task of this kind.
    pub name: Arc<str>,
    /// What one does to a GPU when alone.
    pub tenant: Tenant,
    /// Most memory on any of its GPUs.
    pub need: MiB,
    /// Least memory that it holds on one of its GPUs while it works.
    pub least: MiB,
}

/// One job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnownJob {
    /// Position of its class.
    pub class: usize,
    /// Number of GPUs.
    pub gpus: u32,
    /// When it comes.
    pub arrival: Millis,
    /// Run time alone, start-up included.
    pub solo: Millis,
    /// Start-up of its first attempt.
    pub startup: Millis,
    /// The longest start-up that any attempt can have.
    pub longest_startup: Millis,
    /// Whether the cluster can hold it.
    pub fits: bool,
}

/// A workload on a cluster, with everything that a scheduler would like to know of it.
#[derive(Debug, Clone)]
pub struct Known {
    workload: Workload,
    cluster: Cluster,
    setup: Setup,
    mode: Mode,
    classes: Vec<Class>,
    jobs: Vec<KnownJob>,
    /// Position of each GPU's type among `types`.
    type_of: Vec<usize>,
    /// The law of each type, and its memory, MiB.
    types: Vec<(Law, u64)>,
}

impl Known {
    /// Puts together what is known. Exclusive sharing counts as MPS. A cluster of several types counts as one of its
    /// first where it matters what a task does alone.
    #[must_use]
    pub fn new(workload: &Workload, cluster: &Cluster, sharing: SharingMode, seed: u64) -> Self {
        let (sharing, mode) = match sharing {
            SharingMode::TimeSlice => (SharingMode::TimeSlice, Mode::TimeSlice),
            SharingMode::Mps | SharingMode::Exclusive => (SharingMode::Mps, Mode::Mps),
        };
        let workload = complete(workload, cluster, sharing);
        let devices = cluster.devices();
        let mut types: Vec<(Law, u64)> = Vec::new();
        let mut names: Vec<&str> = Vec::new();
        let mut type_of = Vec::with_capacity(devices.len());
        for device in devices {
            let at = names.iter().position(|name| **name == *device.gpu.name).unwrap_or_else(|| {
                names.push(&device.gpu.name);
                types.push((device.law, device.gpu.memory_mib));
                names.len() - 1
            });
            type_of.push(at);
        }
        let first = devices.first();
        let mut classes: Vec<Class> = Vec::new();
        let mut jobs = Vec::with_capacity(workload.jobs.len());
        for (index, job) in (0_u32..).zip(&workload.jobs) {
            let task = &job.task;
            let tenant = Tenant {
                weight: weight(task, sharing),
                steps_per_s: task.steps_per_s,
                ..Tenant::new(first.map_or(Demand::default(), |device| demand(task, &device.gpu).0))
            };
            let on_each = &task.memory[..task.memory.len().min(job.gpus.max(1) as usize)];
            let peak = on_each.iter().map(|m| m.0).max().unwrap_or(0) as f64;
            let least = on_each.iter().map(|m| m.0).min().unwrap_or(0) as f64;
            let shares = || task.memory_over_time.iter().map(|(_, share)| *share);
            let class = Class {
                name: Arc::clone(&task.name),
                tenant,
                need: MiB((peak * shares().reduce(f64::max).unwrap_or(1.0)).round() as u64),
                least: MiB((least * shares().reduce(f64::min).unwrap_or(1.0)).round() as u64),
            };
            let alike = |other: &Class| {
                (other.tenant, other.need, other.least) == (class.tenant, class.need, class.least)
            };
            let at = classes.iter().position(alike).unwrap_or(classes.len());
            let usual = first.map(|device| &device.gpu.startup);
            let of = |attempt| usual.map_or(0, |usual| startup(seed, index, attempt, job, usual));
            // What is not known of the task is drawn, up to the type's longest.
            let longest = task.startup.map_or_else(|| usual.map_or(0, longest), |known| known.0);
            let large_enough = devices.iter().filter(|device| class.need.0 <= device.gpu.memory_mib).count();
            jobs.push(KnownJob {
                class: at,
                gpus: job.gpus,
                arrival: job.arrival,
                solo: job.duration,
                startup: Millis(of(1)),
                longest_startup: Millis(longest.min(job.duration.0 / 2)),
                fits: job.gpus > 0 && job.gpus as usize <= large_enough,
            });
            if at == classes.len() {
                classes.push(class);
            }
        }
        let setup = Setup {
            label: "clairvoyant".to_owned(),
            options: Options { sharing, ..Options::default() },
            seed,
            record: false,
            baseline: None,
            kace: None,
            knowledge: Knowledge::default(),
        };
        Self { workload, cluster: cluster.clone(), setup, mode, classes, jobs, type_of, types }
    }

    /// The classes.
    #[must_use]
    pub fn classes(&self) -> &[Class] {
        &self.classes
    }

    /// The jobs, in the order of the workload.
    #[must_use]
    pub fn jobs(&self) -> &[KnownJob] {
        &self.jobs
    }

    /// Start-up of an attempt of a job, attempts counted from 1.
    #[must_use]
    pub fn startup(&self, job: usize, attempt: u32) -> Millis {
        let usual = self.cluster.devices().first().map(|device| &device.gpu.startup);
        let known = usual.zip(self.workload.jobs.get(job));
        Millis(known.map_or(0, |(usual, it)| startup(self.setup.seed, job as u32, attempt, it, usual)))
    }

    /// How GPUs are shared.
    #[must_use]
    pub const fn mode(&self) -> Mode {
        self.mode
    }

    /// The law and the memory of the cluster's GPUs if all are whole GPUs of one type.
    #[must_use]
    pub fn one_type(&self) -> Option<(&Law, MiB)> {
        match self.types.as_slice() {
            [(law, memory)] if self.cluster.devices().iter().all(|device| device.mig.is_none()) => {
                Some((law, MiB(*memory)))
            }
            _ => None,
        }
    }

    /// Power of a GPU of that type while it is idle, watts.
    #[must_use]
    pub fn empty_w(&self) -> f64 {
        self.cluster.devices().first().map_or(0.0, |device| device.gpu.empty_w)
    }

    /// The cluster.
    #[must_use]
    pub const fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The workload with what it leaves open filled in.
    #[must_use]
    pub const fn workload(&self) -> &Workload {
        &self.workload
    }

    pub(super) const fn setup(&self) -> &Setup {
        &self.setup
    }

    pub(super) fn type_of(&self, gpu: u32) -> usize {
        self.type_of.get(gpu as usize).copied().unwrap_or(0)
    }

    pub(super) fn memory(&self, gpu: u32) -> u64 {
        self.types.get(self.type_of(gpu)).map_or(0, |(_, memory)| *memory)
    }

    /// What jobs of these classes do together on a GPU of a type, in the order given.
    fn run(&self, kind: usize, classes: &[u16], scratch: &mut (Scratch, Vec<Tenant>, Vec<f64>)) -> Shared {
        let (scratch, tenants, progress) = scratch;
        tenants.clear();
        tenants.extend(classes.iter().filter_map(|at| self.classes.get(*at as usize)).map(|c| c.tenant));
        let Some((law, _)) = self.types.get(kind).filter(|_| !tenants.is_empty()) else {
            return Shared { progress: Box::default(), clock: 1.0 };
        };
        let clock = law.run(self.mode, tenants, scratch, progress).clock;
        Shared { progress: progress.as_slice().into(), clock }
    }
}

fn longest(usual: &Startup) -> u64 {
    (usual.at(1.0) * 1000.0).round() as u64
}

/// What jobs on one GPU do to each other.
#[derive(Debug, Clone, PartialEq)]
pub struct Shared {
    /// Progress of each over its progress alone.
    pub progress: Box<[f64]>,
    /// Clock over the clock without a power limit.
    pub clock: f64,
}

impl Shared {
    /// Progress of all.
    #[must_use]
    pub fn total(&self) -> f64 {
        self.progress.iter().sum()
    }
}

/// The most sets that are kept; beyond it starts anew.
const MOST_SETS: usize = 1 << 19;

/// Keeps what was asked before. A set is computed in the order of its classes, so that it comes out the same for every caller.
#[derive(Debug, Default)]
pub struct Rates {
    /// By type of GPU.
    sets: Vec<HashMap<Box<[u16]>, Arc<Shared>>>,
    scratch: (Scratch, Vec<Tenant>, Vec<f64>),
}

impl Rates {
    /// What jobs of these classes, sorted, do together on a GPU of the cluster's first type.
    pub fn of(&mut self, known: &Known, classes: &[u16]) -> Arc<Shared> {
        self.on(known, 0, classes)
    }

    /// The same on a GPU of a type.
    pub(super) fn on(&mut self, known: &Known, kind: usize, classes: &[u16]) -> Arc<Shared> {
        if self.sets.len() <= kind {
            self.sets.resize_with(kind + 1, HashMap::new);
        }
        let sets = &mut self.sets[kind];
        if let Some(shared) = sets.get(classes) {
            return Arc::clone(shared);
        }
        if sets.len() >= MOST_SETS {
            sets.clear();
        }
        let shared = Arc::new(known.run(kind, classes, &mut self.scratch));
        sets.insert(classes.into(), Arc::clone(&shared));
        shared
    }

    /// What jobs of these classes do together, without keeping it.
    pub fn once(&mut self, known: &Known, classes: &[u16]) -> Shared {
        known.run(0, classes, &mut self.scratch)
    }
}

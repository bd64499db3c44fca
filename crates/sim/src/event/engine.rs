//! The event engine: the time of the next thing to happen, what happens then, what is decided on it.

use super::Setup;
use super::cluster::{Cluster, demand, weight};
use super::outcome::{End, JobOutcome, Oom, RunResult, Stretch};
use super::scheduler::{Decision, Fate, Left, Scheduler};
use super::startup::{off_gpus, onto_gpus, startup};
use super::summary;
use super::world::{JobIndex, Milestone, Overflow, Reached, Stage, World};
use crate::trace::{CatalogueTask, Workload};
use carma_core::model::SharingMode;
use carma_core::units::{MiB, Millis};
use carma_interference::share::{Mode, Tenant};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;

/// What happens at a time, in this order: jobs that end leave before others come, and looks come last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    /// A job reaches a milestone.
    Milestone(JobIndex, u32),
    /// A job has loaded.
    Loaded(JobIndex, u32),
    /// Jobs come.
    Arrival,
    /// A job that was being suspended is off its GPUs.
    Off(JobIndex, u32),
    /// A job has been seen at work for a whole window, or another look may show more of it.
    Settled(JobIndex, u32),
    /// The scheduler wanted to be asked.
    Wake,
    /// A second has passed while windows move.
    Look,
}

/// One run in the making.
pub(super) struct Engine<'a> {
    workload: &'a Workload,
    setup: &'a Setup,
    world: World,
    scheduler: &'a mut dyn Scheduler,
    heap: BinaryHeap<Reverse<(u64, What)>>,
    next_arrival: usize,
    looking: bool,
    /// When the scheduler is woken, at the latest.
    wake: u64,
    ledger: Vec<Account>,
    stretches: Vec<Stretch>,
    ooms: Vec<Oom>,
    events: u64,
    over: u64,
    last_end: u64,
}

/// What is noted of a job.
#[derive(Debug, Clone, Default)]
pub(super) struct Account {
    pub(super) first_start: Option<u64>,
    pub(super) last_start: Option<u64>,
    pub(super) end: Option<u64>,
    pub(super) exec: u64,
    /// Time on GPUs of the attempt that completed, with its preempted parts.
    pub(super) last_exec: u64,
    pub(super) attempts: u32,
    pub(super) ooms: u32,
    pub(super) first_oom: Option<u64>,
    pub(super) oom_exec: u64,
    pub(super) preemptions: u32,
    pub(super) evictions: u32,
    pub(super) growth_guard: u32,
    shared: bool,
    /// When it is looked at although nothing happens, the last such look that is planned.
    look: Option<u64>,
    /// It was taken off its GPUs and goes on where it was.
    suspended: bool,
    /// Memory that it had on its GPUs when it was last suspended.
    moved: MiB,
}

impl<'a> Engine<'a> {
    pub(super) fn new(
        workload: &'a Workload,
        cluster: &Cluster,
        setup: &'a Setup,
        scheduler: &'a mut dyn Scheduler,
    ) -> Self {
        let begin = workload.jobs.first().map_or(Millis::ZERO, |job| job.arrival);
        Self {
            workload,
            setup,
            world: World::new(workload, cluster, begin, setup.options.window, setup.record),
            scheduler,
            heap: BinaryHeap::new(),
            next_arrival: 0,
            looking: false,
            wake: u64::MAX,
            ledger: vec![Account::default(); workload.jobs.len()],
            stretches: Vec::new(),
            ooms: Vec::new(),
            events: 0,
            over: 0,
            last_end: begin.0,
        }
    }

    /// Runs to the end. `report` is told now and then how many jobs are over.
    pub(super) fn run(mut self, report: &dyn Fn(u64)) -> RunResult {
        let begin = self.workload.jobs.first().map_or(0, |job| job.arrival.0);
        for gpu in 0..self.world.gpus.len() {
            self.scheduler.changed(Millis(begin), gpu as u32, &self.world);
        }
        self.next_arrival_event();
        let mut told = 0;
        while let Some(Reverse((now, _))) = self.heap.peek().copied() {
            let mut decide = false;
            while let Some(Reverse((at, what))) = self.heap.peek().copied() {
                if at != now {
                    break;
                }
                self.heap.pop();
                self.events += 1;
                decide |= self.happen(now, what);
            }
            if decide {
                self.decide(now);
            }
            #[cfg(debug_assertions)]
            self.check(now);
            if self.over - told >= 256 {
                report(self.over - told);
                told = self.over;
            }
        }
        report(self.workload.jobs.len() as u64 - told);
        self.result()
    }

    /// Debug builds check the world and the scheduler at every instant, where that is cheap.
    #[cfg(debug_assertions)]
    fn check(&self, now: u64) {
        if self.world.gpus.len() <= MOST_CHECKED {
            let broken = [self.world.check(), self.scheduler.check()].concat();
            debug_assert!(broken.is_empty(), "at {now} ms: {broken:#?}");
        }
    }

    fn next_arrival_event(&mut self) {
        if let Some(job) = self.workload.jobs.get(self.next_arrival) {
            self.heap.push(Reverse((job.arrival.0, What::Arrival)));
        }
    }

    /// Whether the scheduler should decide.
    fn happen(&mut self, now: u64, what: What) -> bool {
        match what {
            What::Milestone(job, version) => {
                if self.world.jobs[job as usize].version != version {
                    return false;
                }
                let reached = self.world.reach(now, job);
                match reached {
                    Ok(Reached::End) => self.leave(now, job, Left::Completed),
                    Ok(Reached::Memory) => {
                        self.see(now, job);
                        self.look_again(now, job);
                    }
                    Err(overflow) => self.overflow(now, job, overflow),
                }
                self.collect();
                true
            }
            What::Loaded(job, version) => {
                if self.world.jobs[job as usize].version != version {
                    return false;
                }
                match self.world.activate(now, job) {
                    Ok(()) => {
                        self.see(now, job);
                        self.look_at(now + self.setup.options.window.0, job);
                    }
                    Err(overflow) => self.overflow(now, job, overflow),
                }
                self.collect();
                true
            }
            What::Off(job, version) => {
                if self.world.jobs[job as usize].version != version {
                    return false;
                }
                let gpus = self.close(now, job, End::Preempted);
                self.show(now, &gpus);
                true
            }
            What::Arrival => {
                while let Some(job) = self.workload.jobs.get(self.next_arrival) {
                    if job.arrival.0 != now {
                        break;
                    }
                    let index = self.next_arrival as JobIndex;
                    if self.scheduler.came(Millis(now), index, &self.world) == Fate::Lost {
                        self.over += 1;
                    }
                    self.next_arrival += 1;
                    self.events += 1;
                }
                self.next_arrival_event();
                true
            }
            What::Settled(job, attempt) => {
                let still = self.world.jobs[job as usize].stage == Stage::Active
                    && self.ledger[job as usize].attempts == attempt;
                if still {
                    self.see(now, job);
                    self.look_again(now, job);
                }
                still
            }
            What::Wake => {
                if now < self.wake {
                    return false;
                }
                self.wake = u64::MAX;
                true
            }
            What::Look => {
                self.looking = false;
                let look = self.scheduler.look(Millis(now), &self.world);
                self.events += look.seen;
                self.keep_looking(now);
                look.news
            }
        }
    }

    fn keep_looking(&mut self, now: u64) {
        if !self.looking && self.scheduler.watches() {
            self.looking = true;
            self.heap.push(Reverse((now + LOOK_MS, What::Look)));
        }
    }

    /// Plans the next look at a job's GPUs that may show something, where none is planned before.
    fn look_again(&mut self, now: u64, job: JobIndex) {
        let planned = self.ledger[job as usize].look.filter(|at| *at > now);
        let next = self.scheduler.next_look(Millis(now), job);
        if let Some(Millis(at)) = next.filter(|next| planned.is_none_or(|planned| next.0 < planned)) {
            self.look_at(at, job);
        }
    }

    fn look_at(&mut self, at: u64, job: JobIndex) {
        let account = &mut self.ledger[job as usize];
        account.look = Some(at);
        self.heap.push(Reverse((at, What::Settled(job, account.attempts))));
    }

    /// Shows the scheduler the GPUs of a job.
    fn see(&mut self, now: u64, job: JobIndex) {
        let gpus = self.world.jobs[job as usize].gpus.clone();
        self.show(now, &gpus);
    }

    fn show(&mut self, now: u64, gpus: &[u32]) {
        for gpu in gpus {
            self.events += 1;
            self.scheduler.changed(Millis(now), *gpu, &self.world);
        }
    }

    fn overflow(&mut self, now: u64, job: JobIndex, overflow: Overflow) {
        self.world.fill(now, job, overflow);
        self.see(now, job);
        self.leave(now, job, Left::OutOfMemory(overflow));
    }

    /// A job leaves its GPUs.
    fn leave(&mut self, now: u64, job: JobIndex, how: Left) {
        let gpus = self.close(
            now,
            job,
            match how {
                Left::Completed => End::Completed,
                Left::OutOfMemory(_) => End::OutOfMemory,
            },
        );
        let account = &mut self.ledger[job as usize];
        match how {
            Left::Completed => {
                account.end = Some(now);
                self.over += 1;
            }
            Left::OutOfMemory(overflow) => {
                account.ooms += 1;
                account.first_oom.get_or_insert(now);
                let lost = account.last_exec;
                account.oom_exec += lost;
                account.last_exec = 0;
                self.ooms.push(Oom {
                    at: Millis(now),
                    job,
                    task: self.workload.jobs[job as usize].task.name.to_string(),
                    gpu: overflow.gpu,
                    wanted: MiB(overflow.wanted),
                    free: MiB(overflow.free.saturating_sub(overflow.held)),
                    lost: Millis(lost),
                });
            }
        }
        if self.scheduler.left(Millis(now), job, how, &self.world) == Fate::Lost {
            self.over += 1;
        }
        self.show(now, &gpus);
    }

    /// Takes a job off its GPUs and notes the stretch. Returns the GPUs.
    fn close(&mut self, now: u64, job: JobIndex, how: End) -> Vec<u32> {
        let gpus = self.world.jobs[job as usize].gpus.clone();
        self.world.stop(now, job);
        // Times only grow. What follows the last job's leaving counts for nothing.
        self.last_end = now;
        let account = &mut self.ledger[job as usize];
        let start = account.last_start.unwrap_or(now);
        account.exec += now - start;
        account.last_exec += now - start;
        self.stretches.push(Stretch {
            job,
            attempt: account.attempts,
            gpus: gpus.clone(),
            start: Millis(start),
            end: Millis(now),
            how,
            shared: account.shared,
        });
        gpus
    }

    fn decide(&mut self, now: u64) {
        self.collect();
        let decisions = self.scheduler.decide(Millis(now), &self.world);
        for decision in decisions {
            self.events += 1;
            match decision {
                Decision::Start { job, gpus, terms } => {
                    let account = &mut self.ledger[job as usize];
                    account.attempts += 1;
                    account.first_start.get_or_insert(now);
                    account.last_start = Some(now);
                    account.shared = self.world.is_anybody_on(&gpus);
                    let fresh = !std::mem::take(&mut account.suspended);
                    let task = &self.workload.jobs[job as usize];
                    let usual = self.world.startup(&gpus);
                    let load = startup(self.setup.seed, job, account.attempts, task, usual);
                    self.world.start(now, job, gpus, terms, load, fresh);
                    self.then(now + load, What::Loaded, job);
                }
                Decision::Suspend { job } => {
                    let on = &self.world.jobs[job as usize].gpus;
                    let held = on.iter().map(|gpu| self.world.held(job, *gpu)).sum();
                    let account = &mut self.ledger[job as usize];
                    account.preemptions += 1;
                    account.moved = held;
                    self.world.halt(now, job);
                    self.then(now + off_gpus(held), What::Off, job);
                }
                Decision::Resume { job, gpus } => {
                    let account = &mut self.ledger[job as usize];
                    account.last_start = Some(now);
                    account.shared = self.world.is_anybody_on(&gpus);
                    let back = onto_gpus(account.moved);
                    self.world.put_on(now, job, gpus);
                    self.then(now + back, What::Loaded, job);
                }
                Decision::Preempt { job } => {
                    let account = &mut self.ledger[job as usize];
                    account.suspended = true;
                    account.preemptions += 1;
                    let gpus = self.close(now, job, End::Preempted);
                    self.show(now, &gpus);
                }
                Decision::HoldBack { job, pace } => self.world.hold_back(now, job, pace),
                Decision::Evict { job, how } => {
                    let gpus = self.close(now, job, how);
                    let account = &mut self.ledger[job as usize];
                    account.evictions += u32::from(how == End::Evicted);
                    account.growth_guard += u32::from(how == End::GrowthGuard);
                    // What it did is lost.
                    account.last_exec = 0;
                    self.show(now, &gpus);
                }
            }
        }
        self.collect();
        if let Some(wake) = self.scheduler.wake() {
            let wake = wake.0.max(now + 1);
            if wake < self.wake {
                self.wake = wake;
                self.heap.push(Reverse((wake, What::Wake)));
            }
        }
        self.keep_looking(now);
    }

    /// Something will happen to a job, unless something else does before.
    fn then(&mut self, at: u64, what: fn(JobIndex, u32) -> What, job: JobIndex) {
        self.heap.push(Reverse((at, what(job, self.world.jobs[job as usize].version))));
    }

    /// Takes over what moved in the world.
    fn collect(&mut self) {
        for Milestone { job, version, at } in self.world.moved() {
            self.heap.push(Reverse((at, What::Milestone(job, version))));
        }
        for gpu in self.world.stirred() {
            self.scheduler.stirred(gpu);
        }
    }

    fn result(mut self) -> RunResult {
        let end = self.last_end;
        self.world.finish(end);
        let jobs = self.workload.jobs.iter().zip(&self.ledger).map(|(job, account)| JobOutcome {
            id: job.id.to_string(),
            task: job.task.name.to_string(),
            user: self.workload.users.get(job.user as usize).map_or_else(String::new, |u| u.to_string()),
            gpus: job.gpus,
            arrival: job.arrival,
            first_start: account.first_start.map(Millis),
            last_start: account.last_start.map(Millis),
            end: account.end.map(Millis),
            exec: Millis(account.exec),
            solo: job.duration,
            attempts: account.attempts,
            ooms: account.ooms,
        });
        let (step_s, series) = summary::series(&self.world, self.setup.record, end);
        RunResult {
            policy: self.setup.label.clone(),
            precondition: match self.setup.baseline {
                Some(baseline) => baseline.about().to_owned(),
                None => self.setup.options.policy.precondition(),
            },
            sharing: self.setup.options.sharing.to_string(),
            seed: self.setup.seed,
            summary: summary::summary(self.workload, &self.ledger, &self.world, end),
            events: self.events,
            jobs: jobs.collect(),
            stretches: self.stretches,
            ooms: self.ooms,
            step_s,
            series,
        }
    }
}

/// A cluster of more GPUs is not checked at every instant.
#[cfg(debug_assertions)]
const MOST_CHECKED: usize = 64;

/// Monitors of this kind look once a second.
const LOOK_MS: u64 = 1000;

/// The workload with what its tasks leave open filled in from the GPU's model: GRACT from SMACT, and
/// Lucid's sharing score. A cluster of several types counts as one of its first.
pub(super) fn complete(workload: &Workload, cluster: &Cluster, sharing: SharingMode) -> Workload {
    let mut workload = workload.clone();
    let Some(device) = cluster.devices().first() else {
        return workload;
    };
    // Position of each distinct task, by address.
    let mut known: BTreeMap<*const CatalogueTask, usize> = BTreeMap::new();
    let mut tasks: Vec<CatalogueTask> = Vec::new();
    let mut tenants = Vec::new();
    for job in &workload.jobs {
        known.entry(Arc::as_ptr(&job.task)).or_insert_with(|| {
            let mut task = (*job.task).clone();
            let (demand, _) = demand(&task, &device.gpu);
            task.activity.gract = Some(demand.gract);
            tasks.push(task);
            tenants.push(Tenant {
                weight: weight(&job.task, sharing),
                steps_per_s: job.task.steps_per_s,
                ..Tenant::new(demand)
            });
            tasks.len() - 1
        });
    }
    let mode = if sharing == SharingMode::TimeSlice { Mode::TimeSlice } else { Mode::Mps };
    let scores = super::lucid::scores(&tenants, &device.law, mode);
    let tasks: Vec<Arc<CatalogueTask>> = tasks
        .into_iter()
        .zip(scores)
        .map(|(task, score)| {
            Arc::new(CatalogueTask { lucid_score: task.lucid_score.or(Some(score)), ..task })
        })
        .collect();
    for job in &mut workload.jobs {
        if let Some(at) = known.get(&Arc::as_ptr(&job.task)) {
            job.task = Arc::clone(&tasks[*at]);
        }
    }
    workload
}

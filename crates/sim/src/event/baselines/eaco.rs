//! `EaCO` (Haghshenas and Hashemi, arXiv 2412.08294, 2024): collocation for the sake of energy.
//!
//! A job goes to GPUs that work already, as long as their utilisation stays within bounds and history
//! does not speak against the set of jobs; GPUs without jobs are taken last and could sleep. The first
//! epochs of each collocation are watched, and what makes a job miss its deadline is undone.
//!
//! Our reading:
//!  - GPUs with jobs come first, the most utilised first, where the GRACT of all jobs alone adds up to at
//!    most [`BUSY`] and their memory fits. Then GPUs without jobs, in the order of their index.
//!  - The first epochs are [`WATCH`] after all of the GPU's jobs work. No other job joins them meanwhile.
//!  - A deadline is [`ALLOWED`] times the run time alone, in time on GPUs: waiting and loading
//!    again do not count against it. Its expected end is the end at its present rate, as if its neighbours
//!    stayed: a newcomer is taken off also where it would soon be over and cost no deadline.
//!  - When a job that its neighbours slow down would end after its deadline, the job that came last is
//!    taken off and goes on later where it was. History is the sets of tasks of which that was so: they are
//!    not put together again. Nothing is foretold of other sets, not even of larger ones.
//!  - What does not fit waits in the order of arrival, and any that can start does.
//!  - The paper shares by time slicing; here the mode of the run holds.
//!  - Left out: GPUs or servers that sleep. What a GPU without jobs draws is counted as for all policies, so
//!    that energy is saved by ending sooner and by fewer GPUs at work only.

use super::desk::{Desk, LOOKAHEAD};
use crate::event::scheduler::{Decision, Fate, Left, Scheduler};
use crate::event::world::{GpuIndex, JobIndex, Stage, World};
use carma_core::units::Millis;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// GPU utilisation of the jobs alone, summed, up to which they share a GPU. It is somewhat more than the whole, because
/// kernels overlap. Our reading: no bound is known to us.
const BUSY: f64 = 1.2;
/// How long a collocation is watched before it is judged.
const WATCH: Millis = Millis::secs(60);
/// Longest run time over that alone. Our reading: no such number is known to us. Published run times grow by less
/// than 3.2 % in the mean, over jobs of which not all share all of the time; with this and [`BUSY`] they grow by
/// 0.2 to 1.9 % on the traces of the CARMA evaluation, and with a bound of 1.3 on utilisation by 0.3 to 3.1 %.
const ALLOWED: f64 = 1.2;
/// A rate from which on no other job slows a job down.
const UNDISTURBED: f64 = 1.0 - 1e-6;

/// Time that a job has had.
#[derive(Debug, Clone, Copy, Default)]
struct Spent {
    /// Since when it is on its GPUs.
    since: Millis,
    /// Milliseconds at work before it was taken off, all attempts together.
    before: u64,
    /// What its first loading took, once it has been taken off. Loading again does not count.
    loading: Option<u64>,
}

/// What a GPU has for one more job, kept so that a long queue costs little.
#[derive(Debug, Clone, Copy, Default)]
struct Room {
    utilisation: f64,
    /// Its jobs are watched: no other joins them.
    watched: bool,
    /// The change after which it is so.
    change: u64,
}

/// A job that found too few GPUs.
#[derive(Debug, Clone, Copy, Default)]
struct Refusal {
    /// The last change before it.
    change: u64,
    /// How many would have done. Others do only when they have changed.
    found: usize,
}

pub(super) struct Eaco {
    desk: Desk,
    spent: Vec<Spent>,
    /// Collocations that are watched: the job that came last, and since when all on its GPUs have been at work.
    watched: BTreeMap<JobIndex, Option<Millis>>,
    /// Sets of tasks that made one of them miss its deadline: their names, sorted.
    bad: BTreeSet<Vec<Arc<str>>>,
    rooms: Vec<Room>,
    /// Counts the changes of GPUs.
    change: u64,
    refusals: Vec<Refusal>,
    /// Whether a waiting job may start that could not before.
    news: bool,
}

impl Eaco {
    pub(super) fn new(desk: Desk) -> Self {
        Self {
            spent: vec![Spent::default(); desk.profiles.len()],
            watched: BTreeMap::new(),
            bad: BTreeSet::new(),
            rooms: vec![Room { change: 1, ..Room::default() }; desk.board.len()],
            change: 1,
            refusals: vec![Refusal::default(); desk.profiles.len()],
            news: false,
            desk,
        }
    }

    /// The jobs of these GPUs changed, or whether they are watched.
    fn renew(&mut self, gpus: &[GpuIndex]) {
        self.news = true;
        self.change += 1;
        for gpu in gpus {
            let tenants = &self.desk.board[*gpu as usize];
            self.rooms[*gpu as usize] = Room {
                utilisation: self.desk.utilisation(*gpu),
                watched: tenants.iter().any(|job| self.watched.contains_key(job)),
                change: self.change,
            };
        }
    }

    /// Milliseconds at work of a job that is on GPUs, all attempts together.
    fn at_work(&self, now: Millis, job: JobIndex, world: &World) -> u64 {
        let Spent { since, before, .. } = self.spent[job as usize];
        let here = (now.0 - since.0).saturating_sub(world.jobs[job as usize].startup);
        if world.jobs[job as usize].stage == Stage::Active { before + here } else { before }
    }

    /// Whether a job at work is slowed down and would end after its deadline if that went on.
    fn is_late(&self, now: Millis, job: JobIndex, world: &World) -> bool {
        let it = &world.jobs[job as usize];
        let loading = self.spent[job as usize].loading.unwrap_or(it.startup);
        let end = (loading + self.at_work(now, job, world)) as f64 + world.left(now.0, job) / it.rate;
        it.rate < UNDISTURBED && end > it.solo as f64 * ALLOWED
    }

    /// Judges the collocations that have been watched for long enough.
    fn judge(&mut self, now: Millis, world: &World, decisions: &mut Vec<Decision>) {
        let newcomers: Vec<JobIndex> = self.watched.keys().copied().collect();
        for job in newcomers {
            let gpus = self.desk.on[job as usize].clone();
            let tenants = |gpu: &GpuIndex| self.desk.board[*gpu as usize].iter().copied();
            // Its neighbours have left.
            let over = gpus.iter().all(|gpu| tenants(gpu).count() < 2);
            if !over {
                if gpus.iter().flat_map(tenants).any(|job| world.jobs[job as usize].stage != Stage::Active) {
                    continue;
                }
                let since = *self.watched.entry(job).or_default().get_or_insert(now);
                if now < since + WATCH {
                    continue;
                }
            }
            let misses = |gpu: &&GpuIndex| {
                tenants(gpu).count() > 1 && tenants(gpu).any(|job| self.is_late(now, job, world))
            };
            let bad: Vec<Vec<Arc<str>>> =
                gpus.iter().filter(misses).map(|gpu| self.desk.tasks_on(*gpu, None)).collect();
            self.watched.remove(&job);
            if !bad.is_empty() {
                self.bad.extend(bad);
                let before = self.at_work(now, job, world);
                let spent = &mut self.spent[job as usize];
                spent.before = before;
                spent.loading.get_or_insert(world.jobs[job as usize].startup);
                decisions.push(self.desk.preempt(job));
            }
            self.renew(&gpus);
        }
    }

    /// GPUs on which a job would start now.
    fn find(&mut self, job: JobIndex) -> Option<Vec<GpuIndex>> {
        let Refusal { change, found } = self.refusals[job as usize];
        let changed = |gpu: GpuIndex| self.rooms[gpu as usize].change > change;
        let changes = self.desk.gpus().filter(|gpu| changed(*gpu)).count();
        if found + changes < self.desk.profile(job).gpus {
            return None;
        }
        let gract = self.desk.profile(job).tenant.demand.gract;
        let will_do = |gpu: &GpuIndex| {
            let room = &self.rooms[*gpu as usize];
            let idle = self.desk.is_idle(*gpu);
            (found > 0 || changed(*gpu))
                && (idle || !room.watched && room.utilisation + gract <= BUSY)
                && self.desk.joins(job, *gpu)
                && (idle || !self.bad.contains(&self.desk.tasks_on(*gpu, Some(job))))
        };
        let mut ranked: Vec<(bool, f64, GpuIndex)> = self
            .desk
            .gpus()
            .filter(will_do)
            .map(|gpu| (self.desk.is_idle(gpu), self.rooms[gpu as usize].utilisation, gpu))
            .collect();
        ranked.sort_by(|a, b| a.0.cmp(&b.0).then(b.1.total_cmp(&a.1)).then(a.2.cmp(&b.2)));
        let gpus = self.desk.pick(job, ranked.iter().map(|(.., gpu)| *gpu));
        self.refusals[job as usize] = match gpus {
            Some(_) => Refusal::default(),
            None => Refusal { change: self.change, found: ranked.len() },
        };
        gpus
    }

    fn place(&mut self, now: Millis, decisions: &mut Vec<Decision>) {
        let waiting: Vec<JobIndex> = self.desk.waiting.iter().copied().take(LOOKAHEAD).collect();
        for job in waiting {
            let Some(gpus) = self.find(job) else { continue };
            if gpus.iter().any(|gpu| !self.desk.is_idle(*gpu)) {
                self.watched.insert(job, None);
            }
            self.spent[job as usize].since = now;
            let terms = self.desk.terms(1.0);
            decisions.push(self.desk.start(job, gpus.clone(), terms));
            self.renew(&gpus);
        }
        self.news = false;
    }
}

impl Scheduler for Eaco {
    fn came(&mut self, _now: Millis, job: JobIndex, _world: &World) -> Fate {
        self.news = true;
        self.desk.came(job)
    }

    fn left(&mut self, _now: Millis, job: JobIndex, how: Left, _world: &World) -> Fate {
        self.watched.remove(&job);
        // After an out-of-memory it begins anew.
        self.spent[job as usize] = Spent::default();
        let gpus = self.desk.on[job as usize].clone();
        let fate = self.desk.left(job, how);
        self.renew(&gpus);
        fate
    }

    fn changed(&mut self, _now: Millis, _gpu: GpuIndex, _world: &World) {}

    fn decide(&mut self, now: Millis, world: &World) -> Vec<Decision> {
        let mut decisions = Vec::new();
        self.judge(now, world, &mut decisions);
        if self.news {
            self.place(now, &mut decisions);
        }
        decisions
    }

    fn wake(&self) -> Option<Millis> {
        self.watched.values().flatten().map(|since| *since + WATCH).min()
    }
}

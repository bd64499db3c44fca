//! SJF-BSBF (Luo et al., arXiv 2407.13088, 2024): shortest job first, best sharing benefit first.
//!
//! Waiting jobs are looked at in the order of their run times. A job gets idle GPUs where there are
//! enough. Otherwise each running job that is alone on its GPUs is a possible partner: the mean time to
//! completion of the two is worked out for joining it now and for waiting until it has ended. One of the
//! two is the best of all times to start (the paper's theorem 1). Of the partners with which joining now is
//! better, the one with the greatest benefit is taken. A GPU has two jobs at most, and no job is ever
//! taken off.
//!
//! Run times, and by how much the two slow each other down, are known exactly: they are what the
//! simulator plays.
//!
//! Our reading:
//!  - Shortest is by run time alone, whatever the number of GPUs; loading counts as work.
//!  - Benefit is the mean time to completion when waiting less that when joining. It is worked out for
//!    the two as if no other job came or went. (A public implementation takes the partner with the
//!    least mean time when joining, among those with a benefit.)
//!  - A job of several GPUs takes the idle ones and as many of partners as it still needs, best partner
//!    first; each partner is judged on its own. Partners are alone on all of their GPUs.
//!  - A job that cannot start waits, and longer ones pass it. No GPUs are held for jobs of many GPUs.
//!    Of a long queue the [`LOOKAHEAD`] shortest are looked at.
//!  - Left out: sub-batches. The paper cuts a job's batch and accumulates gradients until the memory of
//!    the two fits; here it must fit as it is. What a smaller batch costs in speed and saves in memory no
//!    catalogue says.

use super::desk::{Desk, LOOKAHEAD};
use crate::event::scheduler::{Decision, Fate, Left, Scheduler};
use crate::event::world::{GpuIndex, JobIndex, Stage, World};
use carma_core::units::Millis;
use carma_interference::share::Scratch;
use std::collections::{BTreeMap, BTreeSet};

/// What a waiting job has found out about partners.
#[derive(Debug, Clone, Default)]
struct Verdicts {
    /// Those that were alone since this turn or earlier have been looked at.
    until: u64,
    /// With which job it would share, had it enough GPUs.
    good: Vec<JobIndex>,
}

pub(super) struct SjfBsbf {
    desk: Desk,
    /// Waiting jobs, shortest first.
    queue: BTreeSet<(u64, JobIndex)>,
    /// Counts how often a job came to be alone on its GPUs: the turns.
    turn: u64,
    /// Jobs that are alone on their GPUs, by the turn at which they came to be so.
    lone: BTreeMap<u64, JobIndex>,
    /// The turn of each that is in `lone`.
    since: Vec<Option<u64>>,
    /// A refusal stands for as long as the partner runs: the less it has left, the less there is to gain by not
    /// waiting for it. So each pair is refused once, however long the queue is.
    verdicts: Vec<Verdicts>,
    scratch: Scratch,
    /// Whether jobs came or went since the last decision.
    news: bool,
}

impl SjfBsbf {
    pub(super) fn new(desk: Desk) -> Self {
        let jobs = desk.profiles.len();
        Self {
            desk,
            queue: BTreeSet::new(),
            turn: 0,
            lone: BTreeMap::new(),
            since: vec![None; jobs],
            verdicts: vec![Verdicts::default(); jobs],
            scratch: Scratch::default(),
            news: false,
        }
    }

    /// Notes whether a job is a possible partner now.
    fn note(&mut self, job: JobIndex) {
        let gpus = &self.desk.on[job as usize];
        let alone = |gpu: &GpuIndex| self.desk.board[*gpu as usize].len() == 1;
        let open = !gpus.is_empty() && gpus.iter().all(alone) && !self.desk.is_alone(job);
        match (open, self.since[job as usize]) {
            (true, None) => {
                self.turn += 1;
                self.lone.insert(self.turn, job);
                self.since[job as usize] = Some(self.turn);
            }
            (false, Some(turn)) => {
                self.lone.remove(&turn);
                self.since[job as usize] = None;
            }
            _ => {}
        }
    }

    /// The partners that a job would gain by joining, the best first, and what it gains with each.
    fn partners(&mut self, now: Millis, job: JobIndex, world: &World) -> Vec<(f64, JobIndex)> {
        let Verdicts { until, good } = std::mem::take(&mut self.verdicts[job as usize]);
        let still = |partner: &JobIndex| self.since[*partner as usize].is_some_and(|turn| turn <= until);
        let news = self.lone.range(until + 1..).map(|(_, partner)| *partner);
        let run = world.jobs[job as usize].solo as f64;
        let mut scratch = std::mem::take(&mut self.scratch);
        let mut ranked: Vec<(f64, JobIndex)> = Vec::new();
        for partner in good.iter().copied().filter(still).chain(news) {
            if !self.desk.on[partner as usize].iter().any(|gpu| self.desk.joins(job, *gpu)) {
                continue;
            }
            let Some(speeds) = self.desk.speeds(job, partner, &mut scratch) else { continue };
            let gain = benefit(run, remaining(now, partner, world), speeds);
            if gain > 0.0 {
                ranked.push((gain, partner));
            }
        }
        self.scratch = scratch;
        ranked.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let good = ranked.iter().map(|(_, partner)| *partner).collect();
        self.verdicts[job as usize] = Verdicts { until: self.turn, good };
        ranked
    }

    /// GPUs on which a job would start now. `idle`: those without jobs.
    fn find(
        &mut self,
        now: Millis,
        job: JobIndex,
        idle: &BTreeSet<GpuIndex>,
        world: &World,
    ) -> Option<Vec<GpuIndex>> {
        let idle = idle.iter().copied().filter(|gpu| self.desk.joins(job, *gpu));
        let mut gpus: Vec<GpuIndex> = idle.take(self.desk.profile(job).gpus).collect();
        if gpus.len() < self.desk.profile(job).gpus && !self.desk.is_alone(job) {
            for (_, partner) in self.partners(now, job, world) {
                let there = self.desk.on[partner as usize].iter().copied();
                gpus.extend(there.filter(|gpu| self.desk.joins(job, *gpu)));
            }
        }
        self.desk.pick(job, gpus)
    }
}

/// Work that a running job has left, as time alone.
fn remaining(now: Millis, job: JobIndex, world: &World) -> f64 {
    let it = &world.jobs[job as usize];
    match it.stage {
        // It has been given its GPUs a moment ago.
        Stage::Away => it.solo as f64,
        Stage::Starting => world.left(now.0, job) + it.startup as f64,
        Stage::Active => world.left(now.0, job),
    }
}

/// By how much the mean time to completion of a job and its partner is less if it joins now than if it waits for
/// the partner's end. `run` and `left`: what each has to do, as time alone; `speeds` of the two
/// together.
fn benefit(run: f64, left: f64, [speed, partner_speed]: [f64; 2]) -> f64 {
    let waiting = 0.5 * (left + (left + run));
    let (end, partner_end) = (run / speed, left / partner_speed);
    // The job that ends last does the rest alone.
    let joining = if end <= partner_end {
        0.5 * (end + (end + left - partner_speed * end))
    } else {
        0.5 * (partner_end + (partner_end + run - speed * partner_end))
    };
    waiting - joining
}

impl Scheduler for SjfBsbf {
    fn came(&mut self, _now: Millis, job: JobIndex, world: &World) -> Fate {
        let fate = self.desk.came(job);
        if fate == Fate::Goes {
            self.news = true;
            self.queue.insert((world.jobs[job as usize].solo, job));
        }
        fate
    }

    fn left(&mut self, _now: Millis, job: JobIndex, how: Left, world: &World) -> Fate {
        self.news = true;
        let gpus = self.desk.on[job as usize].clone();
        let fate = self.desk.left(job, how);
        self.note(job);
        for gpu in gpus {
            // A job that was beside it may be alone now.
            if let [other] = self.desk.board[gpu as usize][..] {
                self.note(other);
            }
        }
        if self.desk.waiting.contains(&job) {
            self.queue.insert((world.jobs[job as usize].solo, job));
        }
        fate
    }

    fn changed(&mut self, _now: Millis, _gpu: GpuIndex, _world: &World) {}

    fn decide(&mut self, now: Millis, world: &World) -> Vec<Decision> {
        let mut decisions = Vec::new();
        if !std::mem::take(&mut self.news) {
            return decisions;
        }
        let mut idle: BTreeSet<GpuIndex> = self.desk.gpus().filter(|gpu| self.desk.is_idle(*gpu)).collect();
        let first: Vec<(u64, JobIndex)> = self.queue.iter().copied().take(LOOKAHEAD).collect();
        for (run, job) in first {
            let Some(gpus) = self.find(now, job, &idle, world) else { continue };
            self.queue.remove(&(run, job));
            self.verdicts[job as usize] = Verdicts::default();
            let terms = self.desk.terms(1.0);
            decisions.push(self.desk.start(job, gpus.clone(), terms));
            self.note(job);
            for gpu in gpus {
                idle.remove(&gpu);
                for at in 0..self.desk.board[gpu as usize].len() {
                    self.note(self.desk.board[gpu as usize][at]);
                }
            }
        }
        decisions
    }

    fn wake(&self) -> Option<Millis> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-9
    }

    #[test]
    fn the_benefit_is_the_mean_of_two_schedules() {
        // At full speed beside each other: 100 and 300, not 300 and 400.
        assert!(near(benefit(100.0, 300.0, [1.0, 1.0]), 150.0));
        // At half speed: 200 and, the partner having done 100 by then, 400.
        assert!(near(benefit(100.0, 300.0, [0.5, 0.5]), 350.0 - 300.0));
        // The partner ends first, at 100; the job has 250 left. 100 and 350, not 50 and 350.
        assert!(near(benefit(300.0, 50.0, [0.5, 0.5]), 200.0 - 225.0));
    }

    /// What refusals that stand rest on.
    #[test]
    fn what_does_not_pay_does_not_come_to_pay() {
        for (speed, partner_speed) in [(0.3, 0.3), (0.2, 0.7), (0.7, 0.2), (0.5, 0.5), (0.9, 0.4)] {
            for run in [10.0, 100.0, 1000.0] {
                let mut refused = false;
                for left in (1..=300).rev().map(|step| f64::from(step) * 10.0) {
                    let pays = benefit(run, left, [speed, partner_speed]) > 1e-9;
                    assert!(!(refused && pays), "{speed} {partner_speed} {run} {left}");
                    refused = !pays;
                }
            }
        }
    }
}

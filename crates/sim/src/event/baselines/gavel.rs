//! Gavel (Narayanan et al., OSDI 2020): max-min fairness with space sharing (section 4.1) in rounds
//! (section 5).
//!
//! A linear program gives the share of time `X` of every job alone and of every pair,
//!
//! ```text
//! maximise  min over jobs m of  z_m throughput(m, X) / throughput(m, equal share)
//! where     throughput(m, X) = sum over what m is in, alone or a pair, of  T_m X
//!           what m is in has at most all of the time;  sum of z X is at most the number of GPUs
//! ```
//!
//! with `z` the GPUs of a job and `T` its speed, alone 1. Every [`ROUND`] those with the highest
//! priority, X over the share of time received since the last solution, get the GPUs; others are
//! taken off. Jobs that stay, stay where they are.
//!
//! Our reading:
//!  - Speeds of pairs come from the GPU's model, which stands for Gavel's profiled or estimated matrix.
//!    The time that a job takes alone does not depend on the type of GPU here, so the matrix has one
//!    column, and the equal share is the same for all and falls out of the program.
//!  - Pairs are of jobs with as many GPUs each, of which the memory fits and the speeds add up to more
//!    than 1, among the [`PAIRED`] jobs that are the furthest behind (of equals the oldest): those that
//!    the next rounds will serve. The others count in the program alone. When there are others, the
//!    program is solved every round, so that every job comes to be among the first.
//!  - Of the solutions that are best for the worst-off job, one with much throughput is taken (a small
//!    weight, [`TIE`]).
//!  - Otherwise the program is solved at the first round after a job came or went. Jobs that come within a round
//!    wait for the next, and GPUs that come free stay so, unless there is no job at all.
//!  - Equal priorities (all that have received nothing): the job that is behind most in time received comes
//!    first, then the larger X, then jobs that are on GPUs already. Time at which a job loads is not received.
//!  - GPUs that are left over go to jobs that the round passed over.

use super::desk::Desk;
use crate::event::scheduler::{Decision, Fate, Left, Scheduler};
use crate::event::world::{GpuIndex, JobIndex, Stage, World};
use carma_core::units::Millis;
use carma_interference::share::Scratch;
use microlp::{ComparisonOp, OptimizationDirection, Problem, Variable};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

/// A round, as published.
const ROUND: Millis = Millis::secs(360);
/// Jobs among which pairs are formed.
const PAIRED: usize = 64;
/// Weight of the mean throughput beside the least.
const TIE: f64 = 1e-3;
/// A share of time that is none.
const NOTHING: f64 = 1e-6;

/// What gets GPUs together: a job, or two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Combo(JobIndex, Option<JobIndex>);

impl Combo {
    fn jobs(self) -> impl Iterator<Item = JobIndex> {
        std::iter::once(self.0).chain(self.1)
    }
}

pub(super) struct Gavel {
    desk: Desk,
    /// Jobs that came and are not over, oldest first.
    active: BTreeSet<JobIndex>,
    /// Whether they are others than at the last solution.
    stale: bool,
    allocation: Vec<(Combo, f64)>,
    /// Milliseconds at work since the last solution.
    received: BTreeMap<Combo, u64>,
    /// Milliseconds since the last solution.
    elapsed: u64,
    /// By how many milliseconds each job is behind its allocation.
    behind: BTreeMap<JobIndex, f64>,
    /// What this round gave GPUs to.
    chosen: Vec<Combo>,
    next_round: Option<Millis>,
}

impl Gavel {
    pub(super) const fn new(desk: Desk) -> Self {
        Self {
            desk,
            active: BTreeSet::new(),
            stale: false,
            allocation: Vec::new(),
            received: BTreeMap::new(),
            elapsed: 0,
            behind: BTreeMap::new(),
            chosen: Vec::new(),
            next_round: None,
        }
    }

    /// Notes what the round that ends gave.
    fn account(&mut self, world: &World) {
        if self.chosen.is_empty() {
            return;
        }
        let round = ROUND.0 as f64;
        self.elapsed += ROUND.0;
        for (combo, x) in &self.allocation {
            for job in combo.jobs() {
                *self.behind.entry(job).or_default() += x * round;
            }
        }
        for combo in std::mem::take(&mut self.chosen) {
            if combo.jobs().any(|job| world.jobs[job as usize].stage != Stage::Active) {
                continue;
            }
            *self.received.entry(combo).or_default() += ROUND.0;
            for job in combo.jobs() {
                *self.behind.entry(job).or_default() -= round;
            }
        }
        self.behind.retain(|job, _| self.active.contains(job));
    }

    /// Speeds of two jobs on the same GPUs; `None`: they can't, or should not, share them.
    fn pair(&self, a: JobIndex, b: JobIndex, scratch: &mut Scratch) -> Option<[f64; 2]> {
        let (one, other) = (self.desk.profile(a), self.desk.profile(b));
        let need = one.need + other.need;
        let fit = self.desk.gpus().filter(|gpu| need <= self.desk.memory(*gpu)).take(one.gpus);
        if one.gpus != other.gpus || self.desk.is_alone(a) || self.desk.is_alone(b) || fit.count() < one.gpus
        {
            return None;
        }
        let speeds = self.desk.speeds(a, b, scratch)?;
        (speeds.iter().sum::<f64>() > 1.0 + NOTHING).then_some(speeds)
    }

    /// All jobs, the furthest behind first; of equals the oldest.
    fn neediest(&self) -> Vec<JobIndex> {
        let behind = |job: &JobIndex| self.behind.get(job).copied().unwrap_or(0.0);
        let mut jobs: Vec<(f64, JobIndex)> = self.active.iter().map(|job| (behind(job), *job)).collect();
        jobs.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        jobs.into_iter().map(|(_, job)| job).collect()
    }

    fn solve(&mut self) {
        let jobs: Vec<(JobIndex, usize)> =
            self.neediest().into_iter().map(|job| (job, self.desk.profile(job).gpus)).collect();
        let first = &jobs[..jobs.len().min(PAIRED)];
        let mut scratch = Scratch::default();
        let mut pairs = Vec::new();
        for (at, (a, _)) in first.iter().enumerate() {
            for (with, (b, _)) in first.iter().enumerate().skip(at + 1) {
                if let Some(speeds) = self.pair(*a, *b, &mut scratch) {
                    pairs.push((at, with, speeds));
                }
            }
        }
        let gpus = self.desk.board.len() as f64;
        let sizes: Vec<f64> = jobs.iter().map(|(_, gpus)| *gpus as f64).collect();
        let solution = allocate(&sizes, &pairs, gpus).unwrap_or_else(|| {
            let share = (gpus / sizes.iter().sum::<f64>()).min(1.0);
            (vec![share; jobs.len()], vec![0.0; pairs.len()])
        });
        let singles = jobs.iter().zip(&solution.0).map(|((job, _), x)| (Combo(*job, None), *x));
        let paired =
            pairs.iter().zip(&solution.1).map(|((a, b, _), x)| (Combo(jobs[*a].0, Some(jobs[*b].0)), *x));
        self.allocation = singles.chain(paired).filter(|(_, x)| *x > NOTHING).collect();
        self.received.clear();
        self.elapsed = 0;
        self.stale = false;
    }

    /// Jobs and pairs by priority.
    fn ranked(&self) -> Vec<Combo> {
        struct Rank {
            priority: f64,
            behind: f64,
            x: f64,
            running: bool,
            combo: Combo,
        }
        let rank = |(combo, x): &(Combo, f64)| {
            let received = self.received.get(combo).copied().unwrap_or(0);
            let behind = combo.jobs().map(|job| self.behind.get(&job).copied().unwrap_or(0.0));
            Rank {
                priority: if received == 0 {
                    f64::INFINITY
                } else {
                    x * self.elapsed as f64 / received as f64
                },
                behind: behind.fold(f64::NEG_INFINITY, f64::max),
                x: *x,
                running: combo.jobs().any(|job| !self.desk.on[job as usize].is_empty()),
                combo: *combo,
            }
        };
        let mut ranks: Vec<Rank> = self.allocation.iter().map(rank).collect();
        ranks.sort_by(|a, b| {
            let more = |a: f64, b: f64| b.total_cmp(&a);
            more(a.priority, b.priority)
                .then_with(|| more(a.behind, b.behind))
                .then_with(|| more(a.x, b.x))
                .then_with(|| b.running.cmp(&a.running))
                .then_with(|| a.combo.cmp(&b.combo))
        });
        ranks.into_iter().map(|rank| rank.combo).collect()
    }

    /// The jobs that get GPUs in this round, and which.
    fn choose(&self) -> Vec<(Combo, Vec<GpuIndex>)> {
        let size = |combo: Combo| self.desk.profile(combo.0).gpus;
        let mut order = self.ranked();
        // After those with a share, alone: the jobs that were passed over.
        order.extend(self.neediest().into_iter().map(|job| Combo(job, None)));
        // First the jobs, so that they can stay where they are.
        let mut seen = BTreeSet::new();
        let mut free = self.desk.board.len();
        let mut stays = vec![false; self.desk.board.len()];
        for combo in &order {
            if free >= size(*combo) && !combo.jobs().any(|job| seen.contains(&job)) {
                seen.extend(combo.jobs());
                free -= size(*combo);
                for gpu in combo.jobs().flat_map(|job| &self.desk.on[job as usize]) {
                    stays[*gpu as usize] = true;
                }
            }
        }
        // Then where. A combination that finds no GPUs large enough leaves them to those after it.
        let mut placed = BTreeSet::new();
        let mut taken = vec![false; self.desk.board.len()];
        let mut chosen = Vec::new();
        for pass in [true, false] {
            for combo in &order {
                let counted = combo.jobs().all(|job| seen.contains(&job));
                if counted != pass || combo.jobs().any(|job| placed.contains(&job)) {
                    continue;
                }
                if let Some(gpus) = self.place(*combo, &taken, &stays) {
                    for gpu in &gpus {
                        taken[*gpu as usize] = true;
                    }
                    placed.extend(combo.jobs());
                    chosen.push((*combo, gpus));
                }
            }
        }
        chosen
    }

    fn place(&self, combo: Combo, taken: &[bool], stays: &[bool]) -> Option<Vec<GpuIndex>> {
        let need: u64 = combo.jobs().map(|job| self.desk.profile(job).need).sum();
        let will_do = |gpu: GpuIndex| !taken[gpu as usize] && need <= self.desk.memory(gpu);
        for job in combo.jobs() {
            let here = &self.desk.on[job as usize];
            if !here.is_empty() && here.iter().all(|gpu| will_do(*gpu)) {
                return Some(here.clone());
            }
        }
        let mut open: Vec<(bool, u64, GpuIndex)> = self
            .desk
            .gpus()
            .filter(|gpu| will_do(*gpu))
            .map(|gpu| (stays[gpu as usize], self.desk.memory(gpu), gpu))
            .collect();
        open.sort_unstable();
        self.desk.pick(combo.0, open.into_iter().map(|(.., gpu)| gpu))
    }

    fn round(&mut self) -> Vec<Decision> {
        let chosen = self.choose();
        let mut decisions = Vec::new();
        let mut goes: BTreeMap<JobIndex, &[GpuIndex]> = BTreeMap::new();
        for (combo, gpus) in &chosen {
            goes.extend(combo.jobs().map(|job| (job, gpus.as_slice())));
        }
        for job in &self.active {
            let here = &self.desk.on[*job as usize];
            if !here.is_empty() && goes.get(job) != Some(&here.as_slice()) {
                decisions.push(self.desk.preempt(*job));
            }
        }
        for (job, gpus) in goes {
            if self.desk.on[job as usize].is_empty() {
                let terms = self.desk.terms(1.0);
                decisions.push(self.desk.start(job, gpus.to_vec(), terms));
            }
        }
        self.chosen = chosen.into_iter().map(|(combo, _)| combo).collect();
        decisions
    }
}

impl Scheduler for Gavel {
    fn came(&mut self, _now: Millis, job: JobIndex, _world: &World) -> Fate {
        let fate = self.desk.came(job);
        if fate == Fate::Goes {
            self.active.insert(job);
            self.stale = true;
        }
        fate
    }

    fn left(&mut self, _now: Millis, job: JobIndex, how: Left, _world: &World) -> Fate {
        let fate = self.desk.left(job, how);
        if how == Left::Completed || fate == Fate::Lost {
            self.active.remove(&job);
        }
        self.stale = true;
        fate
    }

    fn changed(&mut self, _now: Millis, _gpu: GpuIndex, _world: &World) {}

    fn decide(&mut self, now: Millis, world: &World) -> Vec<Decision> {
        if self.active.is_empty() {
            (self.next_round, self.chosen) = (None, Vec::new());
            return Vec::new();
        }
        if self.next_round.is_some_and(|next| now.cmp(&next) == Ordering::Less) {
            return Vec::new();
        }
        self.account(world);
        if self.stale || self.active.len() > PAIRED {
            self.solve();
        }
        self.next_round = Some(now + ROUND);
        self.round()
    }

    fn wake(&self) -> Option<Millis> {
        self.next_round
    }
}

/// The linear program. `sizes`: GPUs of each job; `pairs`: two of the [`PAIRED`] first by position, and
/// their speeds. Shares of time of each job alone and of each pair; `None`: the
/// solver gave up.
fn allocate(sizes: &[f64], pairs: &[(usize, usize, [f64; 2])], gpus: f64) -> Option<(Vec<f64>, Vec<f64>)> {
    let (first, rest) = sizes.split_at(sizes.len().min(PAIRED));
    let each = TIE / first.len().max(1) as f64;
    let mut problem = Problem::new(OptimizationDirection::Maximize);
    // One of the rest is alone, so that what it needs is known: X = least / z, on z GPUs.
    let most = rest.iter().copied().fold(1e6, f64::min);
    let least = problem.add_var(1.0, (0.0, most));
    let alone: Vec<Variable> = first.iter().map(|_| problem.add_var(each, (0.0, 1.0))).collect();
    let paired: Vec<Variable> =
        pairs.iter().map(|(.., [one, other])| problem.add_var(each * (one + other), (0.0, 1.0))).collect();
    let mut throughput: Vec<Vec<(Variable, f64)>> = Vec::with_capacity(first.len());
    let mut time: Vec<Vec<(Variable, f64)>> = Vec::with_capacity(first.len());
    for (x, size) in alone.iter().zip(first) {
        throughput.push(vec![(least, -1.0), (*x, *size)]);
        time.push(vec![(*x, 1.0)]);
    }
    let mut capacity: Vec<(Variable, f64)> = alone.iter().copied().zip(first.iter().copied()).collect();
    capacity.push((least, rest.len() as f64));
    for (x, (a, b, speeds)) in paired.iter().zip(pairs) {
        for (job, speed) in [a, b].into_iter().zip(speeds) {
            throughput[*job].push((*x, first[*job] * speed));
            time[*job].push((*x, 1.0));
        }
        capacity.push((*x, first[*a]));
    }
    for (throughput, time) in throughput.iter().zip(&time) {
        problem.add_constraint(throughput.as_slice(), ComparisonOp::Ge, 0.0);
        problem.add_constraint(time.as_slice(), ComparisonOp::Le, 1.0);
    }
    problem.add_constraint(capacity.as_slice(), ComparisonOp::Le, gpus);
    let solution = problem.solve().ok()?.into_solution().ok()?;
    let share = |x: &Variable| solution.var_value(*x).clamp(0.0, 1.0);
    let least = solution.var_value(least).max(0.0);
    let singles = alone.iter().map(share).chain(rest.iter().map(|size| (least / size).min(1.0)));
    Some((singles.collect(), paired.iter().map(share).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_jobs_have_equal_time() {
        let (alone, _) = allocate(&[1.0; 4], &[], 2.0).unwrap();
        assert!(alone.iter().all(|x| (x - 0.5).abs() < 1e-6), "{alone:?}");
        // With z = 2, half of the time on two GPUs weighs as much as all of it on one.
        let (alone, _) = allocate(&[1.0, 2.0], &[], 2.0).unwrap();
        assert!((alone[0] - 1.0).abs() < 1e-6 && (alone[1] - 0.5).abs() < 1e-6, "{alone:?}");
    }

    #[test]
    fn a_pair_that_pays_gets_all_of_the_time() {
        let (alone, pairs) = allocate(&[1.0; 2], &[(0, 1, [0.8, 0.8])], 1.0).unwrap();
        assert!(alone.iter().all(|x| *x < 1e-6) && (pairs[0] - 1.0).abs() < 1e-6, "{alone:?} {pairs:?}");
    }

    /// A pair of speeds .9 and .3 on one GPU: the slower one needs time alone, y of the pair and x of
    /// it alone with y + x = 1 and .9 y = .3 y + x, so y = 1/1.6.
    #[test]
    fn the_worse_off_of_a_pair_gets_time_alone() {
        let (alone, pairs) = allocate(&[1.0; 2], &[(0, 1, [0.9, 0.3])], 1.0).unwrap();
        assert!((pairs[0] - 0.625).abs() < 1e-6, "{alone:?} {pairs:?}");
        assert!(alone[0] < 1e-6 && (alone[1] - 0.375).abs() < 1e-6, "{alone:?}");
    }

    #[test]
    fn the_others_count_one_by_one() {
        let (alone, _) = allocate(&[1.0; PAIRED + 36], &[], 10.0).unwrap();
        assert_eq!(alone.len(), PAIRED + 36);
        assert!(alone.iter().all(|x| (x - 0.1).abs() < 1e-5), "{alone:?}");
    }
}

//! Two classes of jobs, as AntMan and TGS have them: guaranteed jobs get GPUs as if there were no
//! others, in the order of arrival and one to a GPU; opportunistic jobs run beside them and on GPUs
//! that no other job wants, on what is left.
//!
//! No trace says which jobs are opportunistic: half of them are, drawn by the seed.

use super::desk::{Desk, LOOKAHEAD};
use super::tgs::RateControl;
use crate::event::scheduler::{Decision, Fate, Left, Scheduler};
use crate::event::world::{GpuIndex, JobIndex, World};
use carma_core::units::Millis;
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64;

/// What tells the two systems apart.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules {
    /// An opportunistic job joins others only where these show less GPU utilisation than this.
    pub(super) utilisation: f64,
    /// Opportunistic jobs on a GPU at most.
    pub(super) most: usize,
    /// Weight of an opportunistic job beside guaranteed ones of weight 1.
    pub(super) weight: f64,
}

pub(super) struct Tiers {
    desk: Desk,
    rules: Rules,
    /// What holds opportunistic jobs back, if the GPU's weights do not.
    control: Option<RateControl>,
    opportunistic: Vec<bool>,
    /// Whether jobs came or went since the last decision.
    news: bool,
}

impl Tiers {
    pub(super) fn new(desk: Desk, rules: Rules, seed: u64) -> Self {
        let opportunistic = half(desk.profiles.len(), seed);
        Self { desk, rules, control: None, opportunistic, news: false }
    }

    pub(super) fn controlled(self, control: RateControl) -> Self {
        Self { control: Some(control), ..self }
    }

    fn is_opportunistic(&self, job: JobIndex) -> bool {
        self.opportunistic[job as usize]
    }

    fn guests(&self, gpu: GpuIndex) -> usize {
        self.desk.board[gpu as usize].iter().filter(|job| self.is_opportunistic(**job)).count()
    }

    /// The last opportunistic job on a GPU, if a guaranteed one can't come as long as it is there.
    fn in_the_way(&self, job: JobIndex, gpu: GpuIndex) -> Option<JobIndex> {
        if self.desk.joins(job, gpu) {
            return None;
        }
        self.desk.board[gpu as usize].iter().rev().copied().find(|tenant| self.is_opportunistic(*tenant))
    }

    /// Guaranteed jobs: strictly in turn, on GPUs without another of them.
    fn guaranteed(&mut self, decisions: &mut Vec<Decision>) {
        while let Some(job) = self.desk.waiting.iter().copied().find(|job| !self.is_opportunistic(*job)) {
            let need = self.desk.profile(job).need;
            let open = |gpu: &GpuIndex| {
                need <= self.desk.memory(*gpu) && self.guests(*gpu) == self.desk.board[*gpu as usize].len()
            };
            let mut ranked: Vec<(bool, usize, GpuIndex)> = self
                .desk
                .gpus()
                .filter(open)
                .map(|gpu| (self.in_the_way(job, gpu).is_some(), self.guests(gpu), gpu))
                .collect();
            ranked.sort_unstable();
            let Some(gpus) = self.desk.pick(job, ranked.into_iter().map(|(.., gpu)| gpu)) else {
                return;
            };
            for gpu in &gpus {
                while let Some(guest) = self.in_the_way(job, *gpu) {
                    decisions.push(self.desk.preempt(guest));
                }
            }
            let terms = self.desk.terms(1.0);
            decisions.push(self.desk.start(job, gpus, terms));
        }
    }

    /// Opportunistic jobs: those that find room.
    fn fill(&mut self, decisions: &mut Vec<Decision>) {
        let waiting = self.desk.waiting.iter().copied().filter(|job| self.is_opportunistic(*job));
        let waiting: Vec<JobIndex> = waiting.take(LOOKAHEAD).collect();
        for job in waiting {
            let desk = &self.desk;
            let will_do = |gpu: &GpuIndex| {
                desk.joins(job, *gpu)
                    && (desk.is_idle(*gpu)
                        || desk.utilisation(*gpu) < self.rules.utilisation
                            && self.guests(*gpu) < self.rules.most)
            };
            let Some(gpus) = desk.pick_least_utilised(job, desk.gpus().filter(will_do)) else { continue };
            let terms = desk.terms(self.rules.weight);
            decisions.push(self.desk.start(job, gpus, terms));
        }
    }
}

impl Scheduler for Tiers {
    fn came(&mut self, _now: Millis, job: JobIndex, _world: &World) -> Fate {
        self.news = true;
        self.desk.came(job)
    }

    fn left(&mut self, _now: Millis, job: JobIndex, how: Left, _world: &World) -> Fate {
        self.news = true;
        self.desk.left(job, how)
    }

    fn changed(&mut self, _now: Millis, _gpu: GpuIndex, _world: &World) {}

    fn decide(&mut self, now: Millis, world: &World) -> Vec<Decision> {
        let mut decisions = Vec::new();
        if std::mem::take(&mut self.news) {
            self.guaranteed(&mut decisions);
            self.fill(&mut decisions);
        }
        if let Some(control) = &mut self.control {
            decisions.extend(control.step(now, &self.desk, &self.opportunistic, world));
        }
        decisions
    }

    fn wake(&self) -> Option<Millis> {
        self.control.as_ref()?.wake()
    }
}

/// Half of so many, rounded down, each half as likely as any other.
fn half(count: usize, seed: u64) -> Vec<bool> {
    let mut random = Pcg64::seed_from_u64(seed);
    let mut order: Vec<(u64, usize)> = (0..count).map(|job| (random.next_u64(), job)).collect();
    order.sort_unstable();
    let mut chosen = vec![false; count];
    for (_, job) in order.iter().take(count / 2) {
        chosen[*job] = true;
    }
    chosen
}

#[cfg(test)]
impl Tiers {
    /// With this choice of opportunistic jobs.
    pub(super) fn with(mut self, opportunistic: &[JobIndex]) -> Self {
        for (job, it) in self.opportunistic.iter_mut().enumerate() {
            *it = opportunistic.iter().any(|o| *o as usize == job);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_jobs_are_opportunistic_and_the_seed_says_which() {
        for count in [0, 1, 2, 7, 100] {
            assert_eq!(half(count, 3).iter().filter(|it| **it).count(), count / 2);
        }
        assert_eq!(half(100, 3), half(100, 3));
        assert_ne!(half(100, 3), half(100, 4));
    }
}

//! TGS (Wu et al., NSDI 2023): transparent sharing of a GPU by a production job and an opportunistic
//! one in containers.
//!
//! Adaptive rate control finds the rate of the opportunistic job's kernels at which the production
//! job's do not slow down; unified memory lets the two ask for more than there is, the production
//! job's pages first.
//!
//! Our reading:
//!  - Rate control goes by feedback alone: a step up while the production job keeps its pace, half as much
//!    when it does not ([`RateControl`]). Then it climbs again, and stays at the highest rate that cost nothing
//!    until jobs come or go; in life it goes on probing.
//!  - The two have the same priority on the GPU, as under time-slicing or MPS: nothing but the rate protects the
//!    production job.
//!  - One opportunistic job on a GPU, as in the paper's evaluation.
//!  - Left out: memory beyond the GPU's. Pages that are swapped out slow a job down by how often a step touches
//!    them, which no catalogue says. An opportunistic job comes only where the memory of both fits, and is taken
//!    off when a production job comes that needs it.

use super::desk::Desk;
use super::opportunistic::{Rules, Tiers};
use crate::event::scheduler::Decision;
use crate::event::world::{JobIndex, Stage, World};
use carma_core::units::Millis;
use std::collections::BTreeMap;

/// How often the rate is set.
const PERIOD: Millis = Millis::secs(2);
/// What is added to the rate, of the job's pace alone.
const STEP: f64 = 0.05;
/// What is left of it after it was too much.
const BACK_OFF: f64 = 0.5;
/// Where it begins, and the least that it falls to.
const LEAST: f64 = 0.02;
/// The production job keeps its pace if it has so much of it.
const KEPT: f64 = 0.98;

pub(super) fn scheduler(desk: Desk, seed: u64) -> Tiers {
    let rules = Rules { utilisation: f64::INFINITY, most: 1, weight: 1.0 };
    Tiers::new(desk, rules, seed).controlled(RateControl::default())
}

/// Sets the rates of opportunistic jobs.
#[derive(Debug, Default)]
pub(super) struct RateControl {
    held: BTreeMap<JobIndex, Held>,
}

/// An opportunistic job that runs.
#[derive(Debug)]
struct Held {
    /// Production jobs at work on its GPUs.
    beside: Vec<JobIndex>,
    pace: f64,
    /// The highest rate at which the production job kept its pace.
    kept: f64,
    /// The rate that was too much.
    hurt: Option<f64>,
    /// When the rate is set again; `None`: it stays until jobs come or go.
    due: Option<Millis>,
}

impl RateControl {
    pub(super) fn wake(&self) -> Option<Millis> {
        self.held.values().filter_map(|held| held.due).min()
    }

    /// Looks at the production jobs' rates, and sets those of the opportunistic jobs beside them.
    pub(super) fn step(
        &mut self,
        now: Millis,
        desk: &Desk,
        opportunistic: &[bool],
        world: &World,
    ) -> Vec<Decision> {
        let active = |job: &JobIndex| world.jobs[*job as usize].stage == Stage::Active;
        self.held.retain(|job, _| active(job));
        let mut decisions = Vec::new();
        for gpu in desk.gpus() {
            for job in desk.board[gpu as usize].iter().filter(|job| opportunistic[**job as usize]) {
                // One on several GPUs is seen on its first.
                if !active(job) || desk.on[*job as usize].first() != Some(&gpu) {
                    continue;
                }
                let there = desk.on[*job as usize].iter().flat_map(|gpu| &desk.board[*gpu as usize]);
                let mut beside: Vec<JobIndex> = there
                    .filter(|other| !opportunistic[**other as usize] && active(other))
                    .copied()
                    .collect();
                beside.sort_unstable();
                beside.dedup();
                let rates = beside.iter().map(|other| world.jobs[*other as usize].rate);
                let slowest = rates.fold(f64::INFINITY, f64::min);
                let held = self.held.entry(*job).or_insert(Held {
                    beside: Vec::new(),
                    pace: 1.0,
                    kept: LEAST,
                    hurt: None,
                    due: None,
                });
                let before = held.pace;
                held.set(now, beside, slowest);
                if held.pace != before {
                    decisions.push(Decision::HoldBack { job: *job, pace: held.pace });
                }
            }
        }
        decisions
    }
}

impl Held {
    /// Additive increase, multiplicative decrease. `slowest`: the least rate of a production job beside it, over its rate
    /// alone.
    fn set(&mut self, now: Millis, beside: Vec<JobIndex>, slowest: f64) {
        if self.beside != beside {
            // Slow start; and nothing to hold back for where none is there.
            let alone = beside.is_empty();
            (self.pace, self.kept, self.hurt) = (if alone { 1.0 } else { LEAST }, LEAST, None);
            self.due = (!alone).then_some(now + PERIOD);
            self.beside = beside;
            return;
        }
        if self.due.is_none_or(|due| now < due) {
            return;
        }
        let more = (self.pace + STEP).min(1.0);
        if slowest < KEPT {
            // It is not to blame where it hardly runs; and the second time it is known where it may stay.
            let hurt = self.pace;
            let settled = hurt <= LEAST || self.hurt.is_some();
            self.pace = if settled { self.kept } else { (self.pace * BACK_OFF).max(LEAST) };
            self.due = (!settled).then_some(now + PERIOD);
            self.hurt = Some(hurt);
            return;
        }
        self.kept = self.kept.max(self.pace);
        let settled = self.pace >= 1.0 || self.hurt.is_some_and(|hurt| more >= hurt);
        self.pace = if settled { self.kept } else { more };
        self.due = (!settled).then_some(now + PERIOD);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Paces that are set while the production job slows down above a rate.
    fn paces(most: f64) -> Vec<f64> {
        let mut held = Held { beside: Vec::new(), pace: 1.0, kept: LEAST, hurt: None, due: None };
        let mut now = Millis::ZERO;
        held.set(now, vec![7], 1.0);
        let mut paces = vec![held.pace];
        while let Some(due) = held.due {
            assert!(due > now && paces.len() < 200, "{paces:?}");
            // Nothing happens before it is due.
            held.set(now, vec![7], 0.0);
            now = due;
            held.set(now, vec![7], if held.pace > most { 0.9 } else { 1.0 });
            paces.push(held.pace);
        }
        paces
    }

    #[test]
    fn it_climbs_until_the_production_job_slows_down_and_settles_below() {
        let paces = paces(0.3);
        assert_eq!(paces[0], LEAST);
        let peak = paces.iter().copied().fold(0.0, f64::max);
        assert!((0.3..=0.3 + STEP).contains(&peak), "{paces:?}");
        let at = paces.iter().position(|pace| *pace == peak).unwrap();
        assert_eq!(paces[at + 1], peak * BACK_OFF);
        let last = *paces.last().unwrap();
        assert!((0.3 - 2.0 * STEP..=0.3).contains(&last), "{paces:?}");
    }

    #[test]
    fn it_is_not_held_back_where_that_costs_nothing_and_hardly_runs_where_all_of_it_costs() {
        assert_eq!(paces(1.0).last(), Some(&1.0));
        assert_eq!(paces(0.0).last(), Some(&LEAST));
    }

    #[test]
    fn jobs_that_come_or_go_begin_it_anew() {
        let mut held = Held { beside: vec![7], pace: 0.4, kept: 0.4, hurt: Some(0.45), due: None };
        held.set(Millis::secs(9), vec![7, 8], 1.0);
        assert_eq!((held.pace, held.hurt, held.due), (LEAST, None, Some(Millis::secs(9) + PERIOD)));
        held.set(Millis::secs(10), vec![], f64::INFINITY);
        assert_eq!((held.pace, held.due), (1.0, None));
    }
}

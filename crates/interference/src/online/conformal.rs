//! Bounds that hold: split-conformal quantiles of past errors of predictions that are alike.
//!
//! Every observation is predicted before it is learned from; its error over the predicted standard
//! deviation is a score that no fit has seen. The bound's factor is the quantile of the last scores
//! (Pitot's way, by number of members), shrunk to the normal distribution's while scores are few. Tasks
//! whose class is new have scores of their own: errors about a class are of another kind before and after
//! it is known. So have new ones that leave the GPU idle most of the time: nothing tells whether they queue their work
//! ahead or wait for it many times a step.

use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Scores that are kept for each number of members.
const KEPT: usize = 240;
/// Factor of 90 % bounds of a normal distribution; counts as much as this many scores.
const NORMAL: f64 = 1.645;
const NORMAL_COUNTS: f64 = 10.0;
const LEVEL: f64 = 0.9;

/// With fewer of that number of members those of all numbers are asked.
const ENOUGH: usize = 20;

/// A class is new until it was observed this often.
const NEW: u32 = 2;

/// Scores by number of members: 2, 3, 4, 5 or more.
type ByMembers = [VecDeque<f64>; 4];

/// Share of its time alone in which a light task has a kernel on the GPU, at most.
const LIGHT: f64 = 0.35;

/// What predictions have in common whose errors are alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Kind {
    members: usize,
    new: bool,
    light: bool,
}

impl Kind {
    /// Of a task among so many members, of a class that was observed so often, with that share of engine time.
    pub(crate) fn of(members: usize, seen: u32, engine: f64) -> Self {
        Self { members, new: seen < NEW, light: engine < LIGHT }
    }

    /// Of a class that is not known yet, and light.
    pub(crate) fn is_new_and_light(self) -> bool {
        self.new && self.light
    }

    fn slot(self) -> usize {
        self.members.clamp(2, 5) - 2
    }
}

/// Scores of new classes, heavy and light ones, and of known ones.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct Scores {
    new: [ByMembers; 2],
    known: ByMembers,
}

impl Scores {
    pub(crate) fn add(&mut self, kind: Kind, score: f64) {
        if !score.is_finite() {
            return;
        }
        let scores = if kind.new { &mut self.new[usize::from(kind.light)] } else { &mut self.known };
        let scores = &mut scores[kind.slot()];
        scores.push_back(score.abs().min(1e6));
        if scores.len() > KEPT {
            scores.pop_front();
        }
    }

    /// These, with the other's of known classes; of new ones the other's where there are none here.
    pub(crate) fn with_known_of(self, other: Self) -> Self {
        let none = self.new.iter().flatten().all(VecDeque::is_empty);
        Self { new: if none { other.new } else { self.new }, known: other.known }
    }

    /// Factor of the standard deviation for 90 % bounds, and how many scores it rests on.
    pub(crate) fn factor(&self, kind: Kind) -> (f64, usize) {
        let all = if kind.new { &self.new[usize::from(kind.light)] } else { &self.known };
        let own = &all[kind.slot()];
        let mut scores: Vec<f64> = if own.len() >= ENOUGH {
            own.iter().copied().collect()
        } else {
            all.iter().flatten().copied().collect()
        };
        if scores.is_empty() {
            return (NORMAL, 0);
        }
        scores.sort_by(f64::total_cmp);
        let n = scores.len();
        let seen = scores[carma_stats::conformal_rank(n, LEVEL).min(n) - 1];
        let trust = n as f64 / (n as f64 + NORMAL_COUNTS);
        (trust * seen + (1.0 - trust) * NORMAL, n)
    }

    pub(crate) fn is_sound(&self) -> bool {
        self.known
            .iter()
            .chain(self.new.iter().flatten())
            .all(|s| s.len() <= KEPT && s.iter().all(|v| v.is_finite() && *v >= 0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_follow_what_was_seen() {
        let mut scores = Scores::default();
        let known = |members| Kind::of(members, 9, 0.9);
        assert_eq!(scores.factor(known(2)), (NORMAL, 0));
        for i in 0..1000 {
            scores.add(known(2), f64::from(i % 100) / 10.0);
        }
        let (factor, n) = scores.factor(known(2));
        assert_eq!(n, KEPT);
        assert!((8.0..9.5).contains(&factor), "{factor}");
        // Few of their own: all are asked. New classes are another matter, and light ones again.
        assert_eq!(scores.factor(known(3)).1, KEPT);
        let (heavy, light) = (Kind::of(2, 0, 0.9), Kind::of(2, 0, 0.1));
        scores.add(heavy, 1.0);
        assert_eq!((scores.factor(heavy).1, scores.factor(light).1), (1, 0));
        scores.add(light, f64::NAN);
        assert_eq!(scores.factor(light).1, 0);
        assert!(scores.is_sound());
    }
}

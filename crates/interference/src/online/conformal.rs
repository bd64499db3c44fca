//! Bounds that hold: split-conformal quantiles of past errors, for each number of members.
//!
//! Every observation is predicted before it is learned from; its error over the predicted standard
//! deviation is a score that no fit has seen. The bound's factor is the quantile of the last scores
//! (Pitot's way, by number of members), shrunk to the normal distribution's while scores are few. Tasks
//! whose class is new have scores of their own: errors about a class are of another kind before and after
//! it is known.

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

/// Scores of new classes and of known ones.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct Scores {
    new: ByMembers,
    known: ByMembers,
}

fn slot(members: usize) -> usize {
    members.clamp(2, 5) - 2
}

impl Scores {
    pub(crate) fn add(&mut self, members: usize, seen: u32, score: f64) {
        if !score.is_finite() {
            return;
        }
        let scores = if seen < NEW { &mut self.new } else { &mut self.known };
        let scores = &mut scores[slot(members)];
        scores.push_back(score.abs().min(1e6));
        if scores.len() > KEPT {
            scores.pop_front();
        }
    }

    /// These, with the other's of known classes; of new ones the other's where there are none here.
    pub(crate) fn with_known_of(self, other: Self) -> Self {
        let none = self.new.iter().all(VecDeque::is_empty);
        Self { new: if none { other.new } else { self.new }, known: other.known }
    }

    /// Factor of the standard deviation for 90 % bounds, and how many scores it rests on.
    pub(crate) fn factor(&self, members: usize, seen: u32) -> (f64, usize) {
        let all = if seen < NEW { &self.new } else { &self.known };
        let own = &all[slot(members)];
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
            .chain(&self.new)
            .all(|s| s.len() <= KEPT && s.iter().all(|v| v.is_finite() && *v >= 0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_follow_what_was_seen() {
        let mut scores = Scores::default();
        assert_eq!(scores.factor(2, 9), (NORMAL, 0));
        for i in 0..1000 {
            scores.add(2, 9, f64::from(i % 100) / 10.0);
        }
        let (factor, n) = scores.factor(2, 9);
        assert_eq!(n, KEPT);
        assert!((8.0..9.5).contains(&factor), "{factor}");
        // Few of their own: all are asked. New classes are another matter.
        assert_eq!(scores.factor(3, 9).1, KEPT);
        assert_eq!(scores.factor(2, 0).1, 0);
        scores.add(3, 0, f64::NAN);
        assert!(scores.is_sound());
    }
}

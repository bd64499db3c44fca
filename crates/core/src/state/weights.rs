//! What users have had lately, held against each other: the weight of each user's jobs where the shortest goes first.
//!
//! Found anew at most once a minute, and for a user who comes in between by what was found last: the order of a long queue
//! must not change with each second, nor cost anything.

use super::State;
use crate::policy::Line;
use crate::units::Millis;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Weight of a user's jobs when nothing weighs on them.
pub(super) const UNWEIGHTED: u64 = 10_000;

/// Least and largest weight: a job of one user goes before one of another that is at most sixteen times as short.
const LEAST: u64 = UNWEIGHTED / 4;
const LARGEST: u64 = UNWEIGHTED * 4;

/// How long weights stay.
const EVERY: Millis = Millis::secs(60);

/// Time of all GPUs that each user is taken to have had besides, so that the first minutes count for little.
const BESIDES: Millis = Millis::secs(600);

/// Weights of users.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Weights {
    /// Where they are not 1.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) of: BTreeMap<u32, u64>,
    /// When they were found.
    at: Millis,
    /// What all users with jobs had had lately per share, microseconds of GPUs charged, and how many these were.
    sum: u64,
    users: u64,
}

/// 1 where a user has had as much per share as the mean, and as the square root of that otherwise.
fn weight(has: u64, sum: u64, users: u64, besides: u64) -> u64 {
    let mean = (u128::from(sum) / u128::from(users.max(1)) + u128::from(besides)).max(1);
    let has = u128::from(has) + u128::from(besides);
    let squared = has.saturating_mul(u128::from(UNWEIGHTED * UNWEIGHTED)) / mean;
    u64::try_from(squared.isqrt()).unwrap_or(u64::MAX).clamp(LEAST, LARGEST)
}

impl Weights {
    pub(super) fn is_none(&self) -> bool {
        *self == Self::default()
    }

    fn set(&mut self, uid: u32, weight: u64) {
        if weight == UNWEIGHTED {
            self.of.remove(&uid);
        } else {
            self.of.insert(uid, weight);
        }
    }
}

impl State {
    fn besides(&self) -> u64 {
        let gpus = self.gpus.iter().filter(|gpu| gpu.present).count() as u64;
        gpus.saturating_mul(BESIDES.0 * 1000)
    }

    /// Finds the weights anew, where they count and are old.
    pub(super) fn weigh(&mut self) {
        if self.options.policy.line != Line::Shortest || self.now.since(self.weights.at) < EVERY {
            return;
        }
        self.charge_all();
        let (now, usage) = (self.now, &self.usage);
        self.shadows.forget(now, |uid| usage.contains_key(&uid));
        let lately = |uid: &u32| (*uid, self.accounts.lately(*uid, now, &self.options));
        let had: Vec<(u32, u64)> = self.usage.keys().map(lately).collect();
        let sum = had.iter().map(|(_, had)| *had).fold(0, u64::saturating_add);
        let (users, besides) = (had.len() as u64, self.besides());
        let mut weights = Weights { of: BTreeMap::new(), at: now, sum, users };
        for (uid, had) in had {
            weights.set(uid, weight(had, sum, users, besides));
        }
        self.weights = weights;
    }

    /// A user who had no job has one.
    pub(super) fn weigh_newcomer(&mut self, uid: u32) {
        if self.options.policy.line != Line::Shortest {
            return;
        }
        let had = self.accounts.lately(uid, self.now, &self.options);
        let Weights { sum, users, .. } = self.weights;
        let weight = weight(had, sum.saturating_add(had), users + 1, self.besides());
        self.weights.set(uid, weight);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_users_are_equal_and_one_alone_is_one() {
        assert_eq!(weight(123_456, 123_456, 1, 600), UNWEIGHTED);
        assert_eq!(weight(500, 1500, 3, 0), UNWEIGHTED);
        assert_eq!(weight(0, 0, 0, 0), LEAST);
        // Nine times the mean is three times the weight.
        assert_eq!(weight(900, 1000, 10, 0), 3 * UNWEIGHTED);
        assert_eq!((weight(u64::MAX, u64::MAX, 100, 7), weight(0, u64::MAX, 100, 7)), (LARGEST, LEAST));
    }
}

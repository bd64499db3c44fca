//! What users have had lately, held against each other: the weight of each user's jobs where jobs go by length.
//!
//! Found anew at most once a minute, and for a user who comes in between by what was found last: the order of a long queue
//! must not change with each second, nor cost anything.

use super::State;
use crate::policy::Weighing;
use crate::units::Millis;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Weight of a user's jobs when nothing weighs on them.
pub(super) const UNWEIGHTED: u64 = 10_000;

/// How far weights go up and down by their square root: a job of one user goes before one of another that is at most
/// sixteen times as short.
const ROOT_WITHIN: u64 = 4;
/// How far they go by their square.
const SQUARE_WITHIN: u64 = 256;

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

/// 1 where a user has had as much per share as the mean.
fn weight(weighing: Weighing, has: u64, sum: u64, users: u64, besides: u64) -> u64 {
    let mean = (u128::from(sum) / u128::from(users.max(1)) + u128::from(besides)).max(1);
    let has = u128::from(has) + u128::from(besides);
    let one = u128::from(UNWEIGHTED);
    let (weight, within) = match weighing {
        Weighing::Root => ((has.saturating_mul(one * one) / mean).isqrt(), ROOT_WITHIN),
        Weighing::Square => {
            // Beyond the largest weight its square does not count either.
            let times = (has.saturating_mul(one) / mean).min(one * one);
            (times * times / one, SQUARE_WITHIN)
        }
    };
    u64::try_from(weight).unwrap_or(u64::MAX).clamp(UNWEIGHTED / within, UNWEIGHTED * within)
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
        let (before, now) = (self.weights.at, self.now);
        // With a quota period jobs may start again that waited for it.
        let same_period = self.options.period_of(before) == self.options.period_of(now);
        if !self.options.policy.line.is_by_length() || (same_period && now.since(before) < EVERY) {
            return;
        }
        self.charge_all();
        let usage = &self.index.usage;
        self.shadows.forget(now, |uid| usage.contains_key(&uid));
        let lately = |uid: &u32| (*uid, self.accounts.lately(*uid, now, &self.options));
        let had: Vec<(u32, u64)> = self.index.usage.keys().map(lately).collect();
        let sum = had.iter().map(|(_, had)| *had).fold(0, u64::saturating_add);
        let (users, besides) = (had.len() as u64, self.besides());
        let weighing = self.options.policy.weighing;
        let mut weights = Weights { of: BTreeMap::new(), at: now, sum, users };
        for (uid, had) in had {
            weights.set(uid, weight(weighing, had, sum, users, besides));
        }
        self.weights = weights;
        self.stop_clocks();
    }

    /// The clocks of users who have spent a quota stand: their jobs wait for the next period, and neither become overdue by that nor
    /// count among those who wait for GPUs.
    pub(super) fn stop_clocks(&mut self) {
        let (now, options) = (self.now, &self.options);
        let stands = |uid| self.index.usage.contains_key(&uid) && self.accounts.has_spent(uid, now, options);
        for uid in self.shadows.stand(now, stands) {
            if self.index.waiting.has(uid) {
                self.shadows.enter(uid, now, self.options.allowances.share_of(uid));
            }
        }
    }

    /// A user who had no job has one.
    pub(super) fn weigh_newcomer(&mut self, uid: u32) {
        if !self.options.policy.line.is_by_length() {
            return;
        }
        let had = self.accounts.lately(uid, self.now, &self.options);
        let Weights { sum, users, .. } = self.weights;
        let weight =
            weight(self.options.policy.weighing, had, sum.saturating_add(had), users + 1, self.besides());
        self.weights.set(uid, weight);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_users_are_equal_and_one_alone_is_one() {
        for weighing in [Weighing::Root, Weighing::Square] {
            assert_eq!(weight(weighing, 123_456, 123_456, 1, 600), UNWEIGHTED);
            assert_eq!(weight(weighing, 500, 1500, 3, 0), UNWEIGHTED);
        }
    }

    #[test]
    fn who_has_had_nine_times_the_mean_weighs_three_times_or_eighty_one() {
        assert_eq!(weight(Weighing::Root, 900, 1000, 10, 0), 3 * UNWEIGHTED);
        assert_eq!(weight(Weighing::Square, 900, 1000, 10, 0), 81 * UNWEIGHTED);
    }

    #[test]
    fn weights_have_bounds() {
        for (weighing, within) in [(Weighing::Root, 4), (Weighing::Square, 256)] {
            let of = |has, sum, users, besides| weight(weighing, has, sum, users, besides);
            assert_eq!(of(0, 0, 0, 0), UNWEIGHTED / within);
            assert_eq!(of(u64::MAX, u64::MAX, 1000, 7), UNWEIGHTED * within);
            assert_eq!(of(u64::MAX, 0, 1, 0), UNWEIGHTED * within);
            assert_eq!(of(0, u64::MAX, 100, 7), UNWEIGHTED / within);
        }
    }
}

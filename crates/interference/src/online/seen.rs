//! Which observations were learned from already.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, VecDeque};

/// Most that are remembered; beyond that the oldest are forgotten. In a file each takes some 20 bytes.
const MOST: usize = 100_000;

/// Fingerprints of observations, oldest first; in a file a list of numbers.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(from = "Vec<u64>", into = "Vec<u64>")]
pub(super) struct Seen {
    order: VecDeque<u64>,
    all: BTreeSet<u64>,
}

impl Seen {
    pub(super) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    pub(super) fn has(&self, fingerprint: u64) -> bool {
        self.all.contains(&fingerprint)
    }

    pub(super) fn add(&mut self, fingerprint: u64) {
        if !self.all.insert(fingerprint) {
            return;
        }
        self.order.push_back(fingerprint);
        if self.order.len() > MOST
            && let Some(oldest) = self.order.pop_front()
        {
            self.all.remove(&oldest);
        }
    }
}

impl From<Vec<u64>> for Seen {
    fn from(list: Vec<u64>) -> Self {
        let mut seen = Self::default();
        list.into_iter().for_each(|fingerprint| seen.add(fingerprint));
        seen
    }
}

impl From<Seen> for Vec<u64> {
    fn from(seen: Seen) -> Self {
        seen.order.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_forgotten() {
        let mut seen = Seen::from((0..MOST as u64).collect::<Vec<_>>());
        assert!(seen.has(0));
        seen.add(0);
        assert!(seen.has(0) && seen.order.len() == MOST, "what is known is not added");
        seen.add(u64::MAX);
        assert!(!seen.has(0) && seen.has(1) && seen.has(u64::MAX));
        assert_eq!((seen.order.len(), seen.all.len()), (MOST, MOST));
        let again: Seen = serde_json::from_str(&serde_json::to_string(&seen).unwrap()).unwrap();
        assert_eq!(again, seen);
    }
}

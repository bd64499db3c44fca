//! The shadow clock: when each job would start if every job had its GPUs alone and all went in the order of submission,
//! each for as long as it is expected to run.
//!
//! That time is the bound on a job's start where the shortest job goes first ([`crate::policy::Line::Shortest`]). It is
//! fixed at submission, so that no later job moves it.

use crate::units::Millis;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The GPUs of the shadow.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Shadow {
    /// From when on GPUs are free, and how many.
    free: BTreeMap<Millis, usize>,
    /// Start of the job before.
    last: Millis,
}

impl Shadow {
    pub(super) fn is_none(&self) -> bool {
        self.free.is_empty()
    }

    /// There are so many GPUs now: new ones are free, and of those that are gone the busiest go.
    fn resize(&mut self, gpus: usize, now: Millis) {
        let have: usize = self.free.values().sum();
        if have < gpus {
            *self.free.entry(now).or_default() += gpus - have;
        }
        let mut surplus = have.saturating_sub(gpus);
        while let Some(mut busiest) = self.free.last_entry().filter(|_| surplus > 0) {
            let gone = surplus.min(*busiest.get());
            surplus -= gone;
            *busiest.get_mut() -= gone;
            if *busiest.get() == 0 {
                busiest.remove();
            }
        }
    }

    /// When a job starts here that comes now and takes `wanted` of the `gpus` for so long; `None`: there are too few.
    pub(super) fn start(&mut self, now: Millis, gpus: usize, wanted: usize, run: Millis) -> Option<Millis> {
        if wanted == 0 || wanted > gpus {
            return None;
        }
        self.resize(gpus, now);
        let mut left = wanted;
        let mut start = now.max(self.last);
        while let Some(mut first) = self.free.first_entry().filter(|_| left > 0) {
            let taken = left.min(*first.get());
            left -= taken;
            start = start.max(*first.key());
            *first.get_mut() -= taken;
            if *first.get() == 0 {
                first.remove();
            }
        }
        *self.free.entry(start + run).or_default() += wanted;
        self.last = start;
        Some(start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_go_one_after_the_other_and_none_overtakes() {
        let mut shadow = Shadow::default();
        let mut start =
            |now, wanted, run| shadow.start(Millis(now), 2, wanted, Millis(run)).map(|start| start.0);
        assert_eq!(start(0, 1, 100), Some(0));
        assert_eq!(start(0, 1, 30), Some(0));
        // Two GPUs are free at 100 only; the next one waits behind that job although a GPU is idle.
        assert_eq!(start(5, 2, 10), Some(100));
        assert_eq!(start(6, 1, 10), Some(110));
        assert_eq!(start(500, 1, 10), Some(500));
        assert_eq!((start(500, 3, 10), start(500, 0, 10)), (None, None));
    }

    #[test]
    fn gpus_come_and_go() {
        let mut shadow = Shadow::default();
        assert_eq!(shadow.start(Millis(0), 1, 1, Millis(100)), Some(Millis(0)));
        assert_eq!(shadow.start(Millis(1), 2, 1, Millis(50)), Some(Millis(1)));
        // The busier one is gone.
        assert_eq!(shadow.start(Millis(2), 1, 1, Millis(10)), Some(Millis(51)));
    }
}

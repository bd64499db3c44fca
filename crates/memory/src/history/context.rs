//! CUDA contexts, learned apart from tasks: they depend on GPU, driver and framework only.

use crate::MiB;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Candidates kept, the latest.
const KEPT: usize = 64;
/// Runs that must agree before a context is believed.
const AGREE: usize = 3;
/// Candidates this close agree: allocations come in steps of 2 MiB.
const CLOSE_MIB: u64 = 4;
/// No context is smaller or larger than this, MiB; what is has another reason.
const PLAUSIBLE_MIB: std::ops::RangeInclusive<u64> = 60..=4096;

/// What is known of the context of one process on one kind of GPU.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Context {
    /// A probe measured it.
    probed_mib: Option<u64>,
    /// Measured less simulated, from front ends that are exact enough.
    candidates: VecDeque<u64>,
    /// When a run last told of it, in updates of the history.
    #[serde(default)]
    pub(super) used: u64,
}

impl Context {
    /// The size: the probe's; else the smallest that several runs agree on. The smallest, since
    /// whatever a simulation misses makes `measured - simulated` too large; several, since a
    /// simulation that is too large once must not decide. `None`: not known.
    #[must_use]
    pub fn size(&self) -> Option<MiB> {
        let agreed = || {
            let mut sorted: Vec<u64> = self.candidates.iter().copied().collect();
            sorted.sort_unstable();
            sorted.windows(AGREE).find(|w| w[AGREE - 1] - w[0] <= CLOSE_MIB).map(|w| w[0])
        };
        self.probed_mib.or_else(agreed).map(MiB)
    }

    /// Whether a probe measured it.
    #[must_use]
    pub const fn is_probed(&self) -> bool {
        self.probed_mib.is_some()
    }

    /// Leaves what a probe said. `false`: none did.
    pub(super) fn keep_probed(&mut self) -> bool {
        self.candidates.clear();
        self.is_probed()
    }

    /// Takes a probe. `false`: the number cannot be a context.
    pub(super) fn probe(&mut self, size: MiB) -> bool {
        let plausible = PLAUSIBLE_MIB.contains(&size.0);
        if plausible {
            self.probed_mib = Some(size.0);
        }
        plausible
    }

    /// Takes `measured - simulated` of a run.
    pub(super) fn candidate(&mut self, size: MiB) {
        if PLAUSIBLE_MIB.contains(&size.0) {
            self.candidates.push_back(size.0);
            if self.candidates.len() > KEPT {
                self.candidates.pop_front();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_that_runs_agree_on() {
        let mut context = Context::default();
        for mib in [524, 910, 524, 640, 130] {
            context.candidate(MiB(mib));
            assert_eq!(context.size(), None);
        }
        context.candidate(MiB(526));
        assert_eq!(context.size(), Some(MiB(524)));
        assert!(context.probe(MiB(530)) && !context.probe(MiB(0)));
        assert_eq!(context.size(), Some(MiB(530)));
    }
}

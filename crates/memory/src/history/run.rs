//! What a run that is over says: a peak, a lower bound, or nothing.

use crate::MiB;

/// What was seen of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Observed {
    /// Most memory seen on one of its GPUs.
    pub peak: Option<MiB>,
    /// How long it was seen on its GPUs, ms.
    pub active_ms: u64,
    /// How long before its end the peak was last raised, ms.
    pub still_ms: u64,
    /// The longest time between two looks, or from the last one to the end, ms.
    pub unseen_ms: u64,
    /// Whether its command returned 0.
    pub completed: bool,
    /// Whether it was ended for another cause than its memory, which stood still while it worked.
    pub settled: bool,
    /// It ran out of memory by its own doing when it had this much at its disposal.
    pub out_of_memory_at: Option<MiB>,
    /// Its hard cap.
    pub cap: Option<MiB>,
}

/// What that says of the task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It took this much.
    Peak(MiB),
    /// It takes at least this much: it was cut off before its peak.
    AtLeast(MiB),
    /// The same, but this much was enough for its steps: it may take more only later, as in an evaluation.
    Settled(MiB),
    /// Nothing: it was not seen, or it was gone before it began.
    Ignored,
}

/// Shorter than this a process may have come and gone between looks.
const SEEN_MS: u64 = 2_000;
/// With static shapes reserved memory reaches its peak in the first steps, the first evaluation and the
/// first partial batch: a run that was ended after this long, with its memory
/// still for half of it, has reached it.
const SETTLED_MS: u64 = 60_000;
const STILL_MS: u64 = 30_000;
/// This close to its cap a process was limited by it: the allocator gives back what it caches, and
/// libraries choose smaller workspaces. Less than the smallest margin, or no exact repeat would count.
const NEAR_CAP_PERCENT: u64 = 1;
const NEAR_CAP: MiB = MiB(64);

impl Observed {
    /// What it says.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        let peak = self.peak.filter(|p| !p.is_zero());
        if let Some(had) = self.out_of_memory_at {
            return Outcome::AtLeast(had.max(peak.unwrap_or_default()));
        }
        let Some(peak) = peak.filter(|_| self.active_ms >= SEEN_MS) else { return Outcome::Ignored };
        let near = |cap: MiB| cap - peak <= NEAR_CAP.max(MiB(cap.0 / 100 * NEAR_CAP_PERCENT));
        if self.cap.is_some_and(near) {
            return Outcome::AtLeast(peak);
        }
        let settled = self.active_ms >= SETTLED_MS && self.still_ms >= STILL_MS;
        // What was not looked at for most of its time may have taken more then.
        let seen = self.unseen_ms <= self.active_ms / 2;
        match seen {
            true if self.completed || settled => Outcome::Peak(peak),
            true if self.settled => Outcome::Settled(peak),
            _ => Outcome::AtLeast(peak),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ends_say() {
        let done =
            Observed { peak: Some(MiB(4000)), active_ms: 5_000, completed: true, ..Observed::default() };
        assert_eq!(done.outcome(), Outcome::Peak(MiB(4000)));
        // Killed at start, ended early, ended late, still growing when ended.
        assert_eq!(Observed { active_ms: 500, ..done }.outcome(), Outcome::Ignored);
        // The daemon was down for most of it.
        assert_eq!(Observed { unseen_ms: 3_000, ..done }.outcome(), Outcome::AtLeast(MiB(4000)));
        let ended = Observed { completed: false, ..done };
        assert_eq!(ended.outcome(), Outcome::AtLeast(MiB(4000)));
        let late = Observed { active_ms: 90_000, still_ms: 80_000, ..ended };
        assert_eq!(late.outcome(), Outcome::Peak(MiB(4000)));
        assert_eq!(Observed { still_ms: 1_000, ..late }.outcome(), Outcome::AtLeast(MiB(4000)));
        // Ended for its neighbours' sake when it made steps: not where most of its time was not looked at, nor at its cap.
        let stood = Observed { settled: true, ..ended };
        assert_eq!(stood.outcome(), Outcome::Settled(MiB(4000)));
        assert_eq!(Observed { unseen_ms: 3_000, ..stood }.outcome(), Outcome::AtLeast(MiB(4000)));
        assert_eq!(Observed { cap: Some(MiB(4040)), ..stood }.outcome(), Outcome::AtLeast(MiB(4000)));
        // At its cap, below it, and out of memory.
        assert_eq!(Observed { cap: Some(MiB(4040)), ..done }.outcome(), Outcome::AtLeast(MiB(4000)));
        assert_eq!(Observed { cap: Some(MiB(4080)), ..done }.outcome(), Outcome::Peak(MiB(4000)));
        let oom = Observed { out_of_memory_at: Some(MiB(4096)), ..ended };
        assert_eq!(oom.outcome(), Outcome::AtLeast(MiB(4096)));
        assert_eq!(Observed { peak: None, ..oom }.outcome(), Outcome::AtLeast(MiB(4096)));
        assert_eq!(Observed::default().outcome(), Outcome::Ignored);
    }
}

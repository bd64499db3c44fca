//! One job on one GPU: what is reserved for it, what was seen of it, and how its memory grows.
//!
//! What its neighbours leave it is the GPU's: [`super::Gpu`].

use crate::policy::Options;
use crate::spec::JobId;
use crate::units::{Fraction, MiB, Millis, is_zero};
use crate::windows::{Metric, WindowSummary};
use serde::{Deserialize, Serialize};

/// Memory that carma has reserved for a tenant on one GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reservation {
    /// This much.
    Memory(MiB),
    /// Everything: the need is unknown, so no other job joins before this one has settled.
    Whole,
    /// Nothing: the policy in force when it was placed ignores memory.
    None,
}

impl Reservation {
    /// The amount, where it is one.
    #[must_use]
    pub const fn memory(self) -> Option<MiB> {
        match self {
            Self::Memory(memory) => Some(memory),
            Self::Whole | Self::None => None,
        }
    }
}

/// What a job did to a GPU while it had it for itself: sums over looks whose windows were full of it,
/// basis points. A metric that was missing once is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Alone {
    /// Number of looks that are summed.
    pub looks: u32,
    /// SM activity.
    pub smact: Option<u64>,
    /// Warp occupancy.
    pub smocc: Option<u64>,
    /// DRAM activity.
    pub drama: Option<u64>,
}

impl Alone {
    /// One look.
    pub(super) fn look(window: &WindowSummary) -> Self {
        let mean = |metric| window.get(metric).map(|summary| u64::from(summary.mean.0));
        Self { looks: 1, smact: mean(Metric::Smact), smocc: mean(Metric::Smocc), drama: mean(Metric::Drama) }
    }

    /// Both together: another look, or another of the job's GPUs.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        let sum = |a: Option<u64>, b: Option<u64>| a.zip(b).map(|(a, b)| a + b);
        match (self.looks, other.looks) {
            (0, _) => other,
            (_, 0) => self,
            _ => Self {
                looks: self.looks.saturating_add(other.looks),
                smact: sum(self.smact, other.smact),
                smocc: sum(self.smocc, other.smocc),
                drama: sum(self.drama, other.drama),
            },
        }
    }

    /// Means of SMACT, SMOCC and DRAMA.
    #[must_use]
    pub fn means(&self) -> [Option<Fraction>; 3] {
        let mean = |sum: Option<u64>| {
            let mean = sum?.checked_div(u64::from(self.looks))?;
            u32::try_from(mean).ok().map(Fraction)
        };
        [mean(self.smact), mean(self.smocc), mean(self.drama)]
    }
}

/// One job on one GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tenant {
    /// Which job.
    pub job: JobId,
    /// What is reserved. Journals say "promise".
    #[serde(rename = "promise")]
    pub reservation: Reservation,
    /// The forecast or floor that the reservation was made from.
    pub forecast: Option<MiB>,
    /// Whether the job wants no neighbours.
    pub exclusive: bool,
    /// A hard limit of its memory on this GPU, under MPS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<MiB>,
    /// How long its command started up before; none: not known.
    #[serde(default, skip_serializing_if = "Millis::is_zero")]
    pub starts_up: Millis,
    /// Memory seen last.
    pub observed: Option<MiB>,
    /// Most memory seen.
    pub peak: Option<MiB>,
    /// When it was placed.
    pub placed: Millis,
    /// When it was first seen on the GPU.
    pub active_since: Option<Millis>,
    /// When the first of its steps that were seen began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stepped: Option<Millis>,
    /// Whether what it takes is known: its first window is full; where jobs of unknown memory share, its memory has stopped
    /// growing.
    pub settled: bool,
    /// Whether it ever had a neighbour (ours) or a foreign process beside it.
    pub shared: bool,
    /// What it did while it had none for a whole window.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alone: Option<Alone>,
    /// Its speed beside its neighbours over its speed alone, as it was predicted when they came together; `None`: it was not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pace: Option<Fraction>,
    /// What it needs at the least, as computed beforehand: seen below that, it has not begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub needs: Option<MiB>,
    /// What its user says that it takes, earlier runs of its command took, or it got after it had run out of memory with less: that stays
    /// reserved as long as it runs.
    #[serde(default, skip_serializing_if = "MiB::is_zero")]
    pub assured: MiB,
    /// What of a part that is its hard limit stays reserved while it has not touched the GPU for long; `None`: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub untouched: Option<MiB>,
    /// How its memory grows.
    #[serde(default, skip_serializing_if = "Growth::is_none")]
    pub growth: Growth,
}

/// How a tenant's memory grows, by looks at its peak.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Growth {
    /// Peak at the last notable rise.
    #[serde(default, skip_serializing_if = "MiB::is_zero")]
    pub to: MiB,
    /// When that was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Millis>,
    /// Notable rises after the first minute.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub late: u32,
    /// When it was last seen to take more than was reserved for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exceeded: Option<Millis>,
    /// When it was last looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub looked: Option<Millis>,
    /// The longest time between two looks.
    #[serde(default, skip_serializing_if = "Millis::is_zero")]
    pub unseen: Millis,
}

/// With static shapes memory reaches its peak within the first steps, the first evaluation and the
/// first partial batch: within about this time.
const FIRST_MINUTE: Millis = Millis::secs(60);

/// A job that makes steps has settled once its memory has not risen for so long. A look is a tenth of a second, and PyTorch's
/// allocator takes what a batch needs within it.
const STEADY: Millis = Millis::secs(5);

/// A job without visible steps has its memory after this time: start-ups of PyTorch tasks took 5 to 27 s on H200s, and their memory came at
/// the end (docs/research/h200.md).
const STARTED: Millis = Millis::secs(30);

/// So many rises after that are no evaluation and no last batch: the memory grows.
const GROWING: u32 = 3;

impl Growth {
    pub(super) fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Whether it rose again and again long after the start.
    #[must_use]
    pub const fn is_growing(&self) -> bool {
        self.late >= GROWING
    }

    pub(super) fn look(&mut self, peak: MiB, now: Millis, active_since: Option<Millis>) {
        self.unseen = self.unseen_until(now);
        self.looked = Some(now);
        if peak <= self.to || peak - self.to < MiB(16).max(self.to.percent(1)) {
            return;
        }
        let late = active_since.is_some_and(|since| now.since(since) > FIRST_MINUTE);
        *self = Self { to: peak, at: Some(now), late: self.late.saturating_add(u32::from(late)), ..*self };
    }

    /// The longest time without a look, up to now.
    fn unseen_until(&self, now: Millis) -> Millis {
        self.unseen.max(self.looked.map_or(Millis::ZERO, |looked| now.since(looked)))
    }
}

/// How an attempt's memory was seen to grow, for what is learned from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeenMemory {
    /// How long it was seen on its GPUs.
    pub active: Millis,
    /// How long before its end the peak last rose notably.
    pub still: Millis,
    /// Whether it rose again and again long after the start.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub growing: bool,
    /// The longest time without a look: the daemon was down, or its disk full.
    #[serde(default, skip_serializing_if = "Millis::is_zero")]
    pub unseen: Millis,
    /// Whether it stood still when it was looked at last, and had reason to: the job made steps, or had surely started up.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub settled: bool,
}

impl SeenMemory {
    /// As it was seen on two of its GPUs.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self {
            active: self.active.max(other.active),
            still: self.still.min(other.still),
            growing: self.growing || other.growing,
            unseen: self.unseen.max(other.unseen),
            settled: self.settled && other.settled,
        }
    }
}

impl Tenant {
    /// A job that is placed now: nothing was seen of it, and nothing is known of what it takes.
    #[must_use]
    pub(crate) fn placed(job: JobId, reservation: Reservation, at: Millis) -> Self {
        Self {
            job,
            reservation,
            forecast: None,
            exclusive: false,
            limit: None,
            starts_up: Millis::ZERO,
            observed: None,
            peak: None,
            placed: at,
            active_since: None,
            stepped: None,
            settled: false,
            shared: false,
            alone: None,
            pace: None,
            needs: None,
            assured: MiB::ZERO,
            untouched: None,
            growth: Growth::default(),
        }
    }

    /// Memory that this tenant takes from placement, on a GPU of this capacity.
    #[must_use]
    pub fn takes(&self, capacity: MiB) -> MiB {
        self.reserved(capacity).max(self.observed.unwrap_or_default())
    }

    /// What is reserved for it on a GPU of this capacity.
    pub(super) fn reserved(&self, capacity: MiB) -> MiB {
        match self.reservation {
            Reservation::Memory(m) => m,
            Reservation::Whole => capacity,
            Reservation::None => MiB::ZERO,
        }
    }

    /// What goes on top of a peak that was seen.
    pub(super) fn margin(&self, peak: MiB, options: &Options) -> MiB {
        if self.growth.is_growing() { options.growing_margin(peak) } else { options.margin(peak) }
    }

    /// Whether what it has not taken may be given to others, as far as that is not assured. Without a computed need, as soon as it has
    /// settled. With one, carma knows better when it has begun: after the first minute, once its memory
    /// is still, and not while it holds less than it can run with (it loads data, or compiles).
    pub(super) fn may_release(&self, peak: MiB, now: Millis, options: &Options) -> bool {
        let (Some(needs), Some(since)) = (self.needs, self.active_since) else { return true };
        let active = now.since(since);
        let still = self.growth.at.is_some_and(|at| now.since(at) >= options.window);
        let begun = peak >= needs.percent(75) || active >= options.startup_patience;
        active >= FIRST_MINUTE.max(options.window) && still && begun
    }

    /// How long it has had the GPU without a context on it, if that is longer than most need: its script may download or unpack for hours.
    pub(crate) fn untouched_for(&self, now: Millis, options: &Options) -> Option<Millis> {
        (self.active_since.is_none() && now >= self.comes_by(options)).then(|| now.since(self.placed))
    }

    /// Most commands have touched their GPU by then: those of docs/research/h200.md and of the made-up traces within a minute.
    fn comes_by(&self, options: &Options) -> Millis {
        self.placed + FIRST_MINUTE.max(options.window).max(self.starts_up + self.starts_up)
    }

    /// Whether what it takes is known.
    pub(super) fn has_settled(&self, now: Millis, options: &Options) -> bool {
        let Some(since) = self.active_since else { return false };
        let active = now.since(since);
        let full = active >= options.window;
        if !options.policy.blind {
            return full;
        }
        // Many have a context on the GPU and no more until their first step. Start-ups vary.
        let begun = now.since(self.placed) >= self.starts_up + self.starts_up;
        // What grows for minutes does not stop: it gets a larger margin, and others may come.
        let waited = active >= options.startup_patience;
        self.is_steady(now) || (full && (waited || (begun && self.stands_still(now, options))))
    }

    /// Whether its memory has not risen for a while.
    pub(super) fn stands_still(&self, now: Millis, options: &Options) -> bool {
        self.is_steady(now) || self.growth.at.is_none_or(|at| now.since(at) >= options.window)
    }

    /// Whether it has made steps, and its memory has not risen since for a while: with static shapes the first step takes
    /// what every step takes.
    fn is_steady(&self, now: Millis) -> bool {
        let risen = self.growth.at.or(self.active_since);
        self.stepped.zip(risen).is_some_and(|(stepped, risen)| now.since(stepped.max(risen)) >= STEADY)
    }

    /// When a look may next find that it has settled or gives memory back, if its memory does not rise before; `None`: no look will. For callers
    /// that look at GPUs on events instead of periodically, as the simulator does.
    #[must_use]
    pub fn next_look(&self, now: Millis, options: &Options) -> Option<Millis> {
        let Some((since, peak)) = self.active_since.zip(self.peak) else {
            let comes_by =
                self.untouched.filter(|_| self.active_since.is_none()).map(|_| self.comes_by(options));
            return comes_by.filter(|at| *at > now);
        };
        if self.settled && self.stands_still(now, options) && self.may_release(peak, now, options) {
            return None;
        }
        let begun = self.placed + self.starts_up + self.starts_up;
        let times = [options.window, FIRST_MINUTE, options.startup_patience].map(|time| since + time);
        let risen = self.growth.at.map(|at| [at + options.window, at + STEADY]);
        let stepped = self.stepped.map(|at| at + STEADY);
        let all = times.into_iter().chain([begun]).chain(risen.into_iter().flatten()).chain(stepped);
        all.filter(|at| *at > now).min()
    }

    /// Whether its memory is a measure for other jobs of its command: it makes steps, or has surely started up.
    pub(crate) fn is_representative(&self, now: Millis) -> bool {
        self.is_steady(now) || (self.settled && self.active_since.is_some_and(|at| now.since(at) >= STARTED))
    }

    /// Whether its memory rose notably a moment ago.
    pub(crate) fn is_rising(&self, now: Millis) -> bool {
        self.growth.at.is_some_and(|at| now.since(at) < STEADY)
    }

    /// How its memory was seen to grow, at its end.
    pub(crate) fn seen(&self, now: Millis) -> Option<SeenMemory> {
        let active = now.since(self.active_since?);
        let still = now.since(self.growth.at?);
        let unseen = self.growth.unseen_until(now);
        let growing = self.growth.is_growing();
        // Since the last look it may have risen.
        let looked = self.growth.looked.unwrap_or(now);
        let settled = !growing && self.is_representative(looked) && !self.is_rising(looked);
        Some(SeenMemory { active, still, growing, unseen, settled })
    }

    /// Until when no other job is admitted because it took more than was reserved for it.
    pub(crate) fn rising_until(&self, options: &Options) -> Option<Millis> {
        self.growth.exceeded.map(|at| at + options.window)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant() -> Tenant {
        Tenant::placed(JobId(1), Reservation::Whole, Millis::ZERO)
    }

    #[test]
    fn memory_that_stood_still_at_the_last_look_had_settled() {
        let settled = |stepped: Option<u64>, risen: u64, looked: u64| {
            let growth = Growth {
                at: Some(Millis::secs(risen)),
                looked: Some(Millis::secs(looked)),
                ..Growth::default()
            };
            let tenant = Tenant {
                active_since: Some(Millis::secs(5)),
                stepped: stepped.map(Millis::secs),
                growth,
                ..tenant()
            };
            tenant.seen(Millis::secs(100)).unwrap().settled
        };
        assert!(settled(Some(10), 11, 16));
        // It rose a moment before, made no step, or was not looked at since.
        assert!(!settled(Some(10), 12, 16) && !settled(None, 6, 99) && !settled(Some(10), 11, 15));
    }

    #[test]
    fn on_several_gpus_it_had_settled_on_all() {
        let seen = |still, settled| SeenMemory {
            active: Millis::secs(still),
            still: Millis::secs(still),
            growing: false,
            unseen: Millis::ZERO,
            settled,
        };
        assert_eq!(
            seen(9, true).with(seen(7, true)),
            SeenMemory { active: Millis::secs(9), ..seen(7, true) }
        );
        assert!(!seen(9, true).with(seen(7, false)).settled);
    }

    #[test]
    fn the_longest_time_without_a_look_is_known_up_to_the_end() {
        let mut growth = Growth::default();
        assert_eq!(growth.unseen_until(Millis::secs(9)), Millis::ZERO, "nothing was there to look at");
        for at in [10, 11, 31, 32] {
            growth.look(MiB(100), Millis::secs(at), Some(Millis::secs(10)));
        }
        assert_eq!([33, 80].map(|end| growth.unseen_until(Millis::secs(end)).0), [20_000, 48_000]);
    }
}

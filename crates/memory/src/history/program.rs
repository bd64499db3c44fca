//! What earlier runs of one program tell of the next.

use super::signature::Place;
use crate::estimate::times;
use crate::{MiB, Tier};
use serde::{Deserialize, Serialize};

/// Runs that differ in batch size, edition or place, kept of one program. The one that was used least
/// lately makes room.
const ANCHORS: usize = 32;

/// What a simulation said of a task, without the context: the part that carries over to another GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sim {
    /// Which front end: only answers of the same one are compared.
    pub source: String,
    /// What it takes when memory is free, MiB, without the context.
    pub net_mib: u64,
}

/// All runs of one program with the same batch size, edition and place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Anchor {
    /// Edition of script and model.
    pub content: u64,
    /// Samples a step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<u64>,
    /// GPU and framework that it ran on.
    pub place: Place,
    /// What a front end said of it, where there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sim: Option<Sim>,
    /// Context of one process there, MiB, as known at the last run.
    pub context_mib: u64,
    /// Runs that reached their peak.
    pub runs: u32,
    /// Their largest peak, MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_mib: Option<u64>,
    /// Their smallest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_mib: Option<u64>,
    /// It takes at least this much: runs that were cut off below their peak, by running out of memory,
    /// by a cap, or by being ended. Never lowered, and never taken for a peak.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_least_mib: Option<u64>,
    /// The most with which a run made steps and stood still when it was ended, where none that was cut off otherwise had as much.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settled_mib: Option<u64>,
    /// The smallest hard limit with which a run reached its end, or had come to its peak. Kept while it is above `at_least_mib`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enough_mib: Option<u64>,
    /// Its memory went on growing in a run.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub growing: bool,
    /// When it was last used, in updates of the history.
    pub used: u64,
}

impl Anchor {
    /// A run with this hard limit reached its end, or had come to its peak.
    pub(super) fn ended_within(&mut self, limit_mib: u64) {
        if Some(limit_mib) > self.at_least_mib {
            self.enough_mib = Some(self.enough_mib.map_or(limit_mib, |enough| enough.min(limit_mib)));
        }
    }

    /// A run that had this much was cut off.
    pub(super) fn was_cut_off(&mut self, had_mib: u64) {
        self.at_least_mib = self.at_least_mib.max(Some(had_mib));
        self.enough_mib = self.enough_mib.filter(|enough| Some(*enough) > self.at_least_mib);
        self.settled_mib = self.settled_mib.filter(|settled| *settled > had_mib);
    }

    /// A run that stood still with this much was ended.
    pub(super) fn stood_still(&mut self, had_mib: u64) {
        let settled =
            self.settled_mib.max(Some(had_mib)).filter(|settled| Some(*settled) >= self.at_least_mib);
        self.was_cut_off(had_mib);
        self.settled_mib = settled;
    }

    /// The limit to give it where its peaks are no measure: a run was out of memory with more than any that ended was seen to take, since the
    /// driver counts no managed memory for a process, while its hard limit covers it (measured on an H200, docs/sharing.md).
    fn limit_beyond_sight(&self) -> Option<u64> {
        self.enough_mib.filter(|_| self.at_least_mib > self.max_mib)
    }

    /// Largest peak without the context.
    fn net(&self) -> Option<u64> {
        Some(self.max_mib?.saturating_sub(self.context_mib))
    }

    fn is(&self, content: u64, batch: Option<u64>, place: &Place) -> bool {
        self.content == content && self.batch == batch && self.place == *place
    }
}

/// A program and what its runs took.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// Who runs it.
    pub user: u32,
    /// Its command, without what does not change memory.
    pub label: String,
    /// Its runs.
    pub anchors: Vec<Anchor>,
}

/// What is asked about.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted<'a> {
    pub(super) content: u64,
    /// Whether no edition equals another.
    pub(super) unread: bool,
    pub(super) batch: Option<u64>,
    pub(super) place: &'a Place,
    pub(super) sim: Option<&'a Sim>,
    /// Context on the GPU in question, MiB.
    pub(super) context_mib: u64,
}

/// What the runs of a program say. Without a middle, only a lower bound is known.
#[derive(Debug, Clone, PartialEq)]
pub struct Told {
    /// [`Tier::Exact`] or [`Tier::Scaled`].
    pub tier: Tier,
    /// What it takes when memory is free, context included.
    pub use_mib: MiB,
    /// What goes on top for a bound.
    pub margin_mib: MiB,
    /// The largest peak of runs of the very command there; `None`: other runs tell of it.
    pub peak: Option<MiB>,
    /// A hard limit with which a run of the very command reached its end.
    pub enough: Option<MiB>,
    /// How that came about.
    pub reason: String,
}

/// Margins on what runs of the same program say.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Margins {
    /// Exact repeats, after one or two runs.
    pub exact_few: f64,
    /// Exact repeats, from the third run on.
    pub exact_many: f64,
    /// Carried over from another batch size, edition or place.
    pub scaled: f64,
    /// Memory that goes on growing.
    pub growing: f64,
}

impl Default for Margins {
    /// Reference, sections 3.4 and 4. What is scaled gets 15 %: the 95th percentile of the error with
    /// one or two anchors (section 2.5, table).
    fn default() -> Self {
        Self { exact_few: 0.05, exact_many: 0.02, scaled: 0.15, growing: 0.40 }
    }
}

/// Slope of memory over simulated memory, from one anchor: what simulations miss grows along.
const SLOPE: f64 = 1.15;
/// Slopes between two anchors that can be; others say that the two are not comparable.
const SLOPES: std::ops::RangeInclusive<f64> = 0.5..=2.0;
/// Two anchors closer than this share of the larger say nothing of a slope.
const APART: f64 = 0.05;

impl Program {
    pub(super) fn new(user: u32, label: String) -> Self {
        Self { user, label, anchors: Vec::new() }
    }

    /// The runs like this one, made if there were none. What is simulated and the context are for the
    /// caller to bring up to date with a peak: with a run that was cut off they would be comparing a
    /// measurement with another run's simulation.
    pub(super) fn anchor(&mut self, wanted: &Wanted<'_>, now: u64) -> &mut Anchor {
        let found = self.anchors.iter().position(|a| a.is(wanted.content, wanted.batch, wanted.place));
        let at = match found {
            Some(at) => at,
            None => {
                if self.anchors.len() >= ANCHORS
                    && let Some(oldest) = (0..self.anchors.len()).min_by_key(|i| self.anchors[*i].used)
                {
                    self.anchors.swap_remove(oldest);
                }
                self.anchors.push(Anchor {
                    content: wanted.content,
                    batch: wanted.batch,
                    place: wanted.place.clone(),
                    sim: wanted.sim.cloned(),
                    context_mib: wanted.context_mib,
                    runs: 0,
                    max_mib: None,
                    min_mib: None,
                    at_least_mib: None,
                    settled_mib: None,
                    enough_mib: None,
                    growing: false,
                    used: now,
                });
                self.anchors.len() - 1
            }
        };
        let anchor = &mut self.anchors[at];
        anchor.used = now;
        anchor
    }

    /// What its runs say of another.
    pub(super) fn tell(&self, wanted: &Wanted<'_>, margins: &Margins) -> Option<Told> {
        let told = if wanted.unread {
            let told = self.scaled(wanted, margins)?;
            let reason =
                format!("{}; its script could not be read, so it may be another edition", told.reason);
            Told { reason, ..told }
        } else {
            self.exact(wanted, margins).or_else(|| self.scaled(wanted, margins))?
        };
        let is_seen = self.is_seen(wanted, |_| true);
        let growing = self.anchors.iter().any(|a| a.growing && !(is_seen && a.content != wanted.content));
        let margin_mib = times(told.use_mib - MiB(wanted.context_mib), margins.growing);
        if growing && told.margin_mib < margin_mib {
            let reason = format!("{}; its memory went on growing, hence the margin", told.reason);
            return Some(Told { margin_mib, reason, ..told });
        }
        Some(told)
    }

    fn exact(&self, wanted: &Wanted<'_>, margins: &Margins) -> Option<Told> {
        let anchor = self.anchors.iter().find(|a| a.is(wanted.content, wanted.batch, wanted.place))?;
        let enough = anchor.enough_mib.map(MiB);
        let Some((max, min)) = anchor.max_mib.zip(anchor.min_mib) else {
            // Seen at its limit alone, below which it may have kept itself.
            let (had, MiB(limit)) = (anchor.at_least_mib?, enough?);
            let reason = format!(
                "a run of this command on {} ended well with a limit of {limit} MiB",
                wanted.place.gpu
            );
            let margin_mib = MiB(limit) - MiB(had);
            return Some(Told {
                tier: Tier::Exact,
                use_mib: MiB(had),
                margin_mib,
                peak: None,
                enough,
                reason,
            });
        };
        let least = if anchor.runs >= 3 { margins.exact_many } else { margins.exact_few };
        // Runs that differ say how much runs differ. One that took less than half did something else, as where it found its work done: of the
        // others no more is known then than their largest.
        let is_other = min < max / 2;
        let spread = if is_other { margins.scaled } else { (max - min) as f64 / max.max(1) as f64 };
        let runs = if anchor.runs == 1 { "1 run".to_owned() } else { format!("{} runs", anchor.runs) };
        let seen = format!("{runs} of this command on {} took {max} MiB at most", wanted.place.gpu);
        // The margin of exact repeats is on all of it, context included.
        let margin = times(MiB(max), least.max(spread));
        let (margin_mib, reason) = match anchor.limit_beyond_sight() {
            Some(enough) => {
                let had = anchor.at_least_mib.unwrap_or_default();
                let why = format!(
                    "one that had {had} MiB was out of memory all the same, so not all that it takes is seen (managed memory is not); one with {enough} MiB was not"
                );
                (margin.max(MiB(enough) - MiB(max)), format!("{seen}; {why}"))
            }
            None => (margin, seen),
        };
        let peak = Some(MiB(max));
        Some(Told { tier: Tier::Exact, use_mib: MiB(max), margin_mib, peak, enough, reason })
    }

    fn scaled(&self, wanted: &Wanted<'_>, margins: &Margins) -> Option<Told> {
        let told = |net: u64, reason: String| Told {
            tier: Tier::Scaled,
            use_mib: MiB(net + wanted.context_mib),
            margin_mib: times(MiB(net), margins.scaled),
            peak: None,
            enough: None,
            reason,
        };
        if let Some(sim) = wanted.sim
            && let Some((net, reason)) = self.by_simulation(sim)
        {
            return Some(told(net, reason));
        }
        // Nothing simulated: another edition or place with the same batch, the largest of them ...
        let of_batch = |a: &&Anchor| a.batch == wanted.batch && a.max_mib.is_some();
        if let Some(anchor) = self.anchors.iter().filter(of_batch).max_by_key(|a| a.net()) {
            let net = anchor.net()?;
            let is_edited = anchor.place == *wanted.place && !wanted.unread;
            let what = if is_edited { "another edition of it" } else { "it" };
            return Some(told(
                net,
                format!("{what} took {net} MiB beside the context on {}", anchor.place.gpu),
            ));
        }
        // ... or the smallest larger batch: less takes no more.
        let batch = wanted.batch?;
        let larger = self.anchors.iter().filter(|a| a.max_mib.is_some() && a.batch > Some(batch));
        let anchor = larger.min_by_key(|a| (a.batch, std::cmp::Reverse(a.max_mib)))?;
        let net = anchor.net()?;
        let reason = format!(
            "with batch size {} it took {net} MiB beside the context, and a smaller one takes no more",
            anchor.batch.unwrap_or_default()
        );
        Some(told(net, reason))
    }

    /// By what a front end says of this task and said of others that were measured.
    fn by_simulation(&self, sim: &Sim) -> Option<(u64, String)> {
        let mut known: Vec<(u64, u64)> = self
            .anchors
            .iter()
            .filter_map(|a| {
                let of = a.sim.as_ref().filter(|s| s.source == sim.source)?;
                Some((of.net_mib, a.net()?))
            })
            .collect();
        // Of equal simulations the largest measurement.
        known.sort_unstable();
        known.dedup_by(|later, first| {
            let same = later.0 == first.0;
            if same {
                first.1 = first.1.max(later.1);
            }
            same
        });
        let distance = |s: u64| s.abs_diff(sim.net_mib);
        let (near, measured) = *known.iter().min_by_key(|(s, _)| distance(*s))?;
        let far_enough = |s: u64| s.abs_diff(near) as f64 > APART * s.max(near) as f64;
        let second = known.iter().filter(|(s, _)| far_enough(*s)).min_by_key(|(s, _)| distance(*s));
        let from = |slope: f64| {
            let net = measured as f64 + slope * (sim.net_mib as f64 - near as f64);
            net.max(0.0).round() as u64
        };
        if let Some((other, other_measured)) = second {
            let slope = (*other_measured as f64 - measured as f64) / (*other as f64 - near as f64);
            if SLOPES.contains(&slope) {
                let reason = format!(
                    "runs simulated at {near} and {other} MiB took {measured} and {other_measured} beside the context; this one is simulated at {}",
                    sim.net_mib
                );
                return Some((from(slope), reason));
            }
        }
        // Upwards what a simulation misses grows along; downwards the part that does not shrink stays.
        let slope = if sim.net_mib >= near { SLOPE } else { 1.0 / SLOPE };
        let reason = format!(
            "a run simulated at {near} MiB took {measured} beside the context; this one is simulated at {}",
            sim.net_mib
        );
        Some((from(slope), reason))
    }

    /// Whether a run of the present edition, one of these, has shown its peak: what older ones did says no more then.
    fn is_seen(&self, wanted: &Wanted<'_>, is_one: impl Fn(&Anchor) -> bool) -> bool {
        self.anchors.iter().any(|a| a.content == wanted.content && a.max_mib.is_some() && is_one(a))
    }

    /// With what runs of this very command there made their steps, MiB, where no run shows that it takes more.
    pub(super) fn settled(&self, wanted: &Wanted<'_>) -> Option<u64> {
        if wanted.unread {
            return None;
        }
        self.anchors.iter().find(|a| a.is(wanted.content, wanted.batch, wanted.place))?.settled_mib
    }

    /// What it takes at the very least, MiB with the context: cut-off runs with this batch size or a
    /// smaller one, on any place. Of another edition only as long as no run of this one has shown its peak: an edit may have
    /// been made for that it takes less. `own`: of no other edition at all.
    pub(super) fn at_least(&self, wanted: &Wanted<'_>, own: bool) -> Option<u64> {
        let no_larger = |a: &&Anchor| match (a.batch, wanted.batch) {
            (Some(known), Some(asked)) => known <= asked,
            (a, b) => a == b,
        };
        let of_this = |a: &&Anchor| a.content == wanted.content;
        let no_smaller = |a: &Anchor| a.batch >= wanted.batch && a.batch.is_some() == wanted.batch.is_some();
        let is_seen = self.is_seen(wanted, no_smaller);
        let counts = |a: &&Anchor| no_larger(a) && (of_this(a) || !(own || is_seen));
        let bounds = self.anchors.iter().filter(counts).filter_map(|a| {
            let net = a.at_least_mib?.saturating_sub(a.context_mib);
            Some(net + wanted.context_mib)
        });
        bounds.max()
    }
}

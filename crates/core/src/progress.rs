//! How fast jobs go beside each other, predicted and measured, in integers.
//!
//! What slowdown is allowed, and what follows from that, is in [`crate::slowdown`], which is also the public path of these
//! types.

use crate::spec::{GpuId, JobId, SharingMode};
use crate::units::{Fraction, Millis};
use serde::{Deserialize, Serialize};

/// Progress of one job of a group: its speed together over its speed alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Predicted {
    /// The job that this is predicted of.
    pub job: JobId,
    /// What is expected.
    pub expected: Fraction,
    /// Lower bound at the model's confidence, which is compared with limits. `None`: not asked for, since
    /// no limit applied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lower: Option<Fraction>,
}

/// Jobs of one class do the same alone, and so beside each other: those of one command, with one limit on their threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Class {
    /// Hash of the command ([`crate::model::NewJob::command_key`]).
    pub command: u64,
    /// Share of the SMs' threads under MPS, percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads: Option<u8>,
    /// Its user asked for that limit: its progress is of its speed alone with these threads, not with all.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub asked: bool,
}

/// Jobs together on a GPU, as far as predictions go: what kind of GPU, how they share it, which classes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Company {
    /// The first GPU of this kind: it stands for all of the same product.
    pub kind: GpuId,
    /// How they share: time-sliced as soon as one of them is.
    pub sharing: SharingMode,
    /// The classes, ascending; a class of two jobs twice.
    pub classes: Vec<Class>,
}

impl Company {
    /// The same with one more.
    #[must_use]
    pub fn with(&self, newcomer: Class) -> Self {
        let mut with = self.clone();
        let at = with.classes.partition_point(|class| *class <= newcomer);
        with.classes.insert(at, newcomer);
        with
    }

    /// Whether all of another are here, on the same kind of GPU, and share it in the same way.
    pub(crate) fn has_all_of(&self, part: &Self) -> bool {
        let mut classes = self.classes.iter();
        (self.kind, self.sharing) == (part.kind, part.sharing)
            && part.classes.iter().all(|class| classes.any(|here| here == class))
    }

    /// The same without some of them.
    #[must_use]
    pub(crate) fn without(&self, gone: impl IntoIterator<Item = Class>) -> Self {
        let mut left = self.clone();
        for class in gone {
            if let Ok(at) = left.classes.binary_search(&class) {
                left.classes.remove(at);
            }
        }
        left
    }
}

/// A question to the predictor.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Question {
    /// The jobs that are there; with the way of sharing that a newcomer would bring about.
    pub there: Company,
    /// The job that might join.
    pub newcomer: Class,
    /// Whether lower bounds are wanted, too: a limit of slowdown counts. They take several times as long.
    pub bounds: bool,
}

/// Progress that is predicted of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Pace {
    /// What is expected: its speed beside the others over its speed alone.
    pub expected: Fraction,
    /// What it is not below, with the model's confidence; `None`: not asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lower: Option<Fraction>,
}

/// What is predicted if a job joins those that are on a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outlook {
    /// The jobs that are there.
    pub there: Company,
    /// The job that would join.
    pub newcomer: Class,
    /// Of each class that is there, in order. Where something is unknown they are empty, or rest on an assumption of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paces: Vec<Pace>,
    /// Of the newcomer.
    #[serde(default)]
    pub joins: Pace,
    /// Classes of which too little is known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<Class>,
    /// Whether each command in `unknown` was seen at work beside others, so that its profile is inferred from that.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub seen_beside: bool,
    /// Sum of the expected progress of those that are there, without the newcomer.
    pub before: Fraction,
    /// What all of them get done together, as KACE predicts it, for a policy that goes by that: thousandths of the unit
    /// that its model was trained in, comparable between GPUs. A regression may say less than 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub throughput: Option<i64>,
}

impl Outlook {
    /// A job without neighbours: it keeps all of its speed.
    pub(crate) const fn alone(there: Company, newcomer: Class) -> Self {
        let joins = Pace { expected: Fraction::ONE, lower: Some(Fraction::ONE) };
        Self {
            there,
            newcomer,
            paces: Vec::new(),
            joins,
            unknown: Vec::new(),
            seen_beside: false,
            before: Fraction(0),
            throughput: None,
        }
    }

    /// Sum of the expected progress of all of them.
    #[must_use]
    pub fn after(&self) -> Fraction {
        let all = self.paces.iter().chain([&self.joins]);
        Fraction(all.map(|pace| pace.expected.0).fold(0, u32::saturating_add))
    }

    /// What the newcomer adds to the sum of progress; nothing if it costs the others more than it gains.
    #[must_use]
    pub fn gain(&self) -> Fraction {
        Fraction(self.after().0.saturating_sub(self.before.0))
    }

    /// Mean progress of the newcomer over its whole run, of which this part is start-up, without interference.
    #[must_use]
    pub fn joins_over_run(&self, start: Fraction) -> Fraction {
        let one = u64::from(Fraction::ONE.0);
        let (start, work) = self.lasts(start);
        Fraction(u32::try_from(one * one / (start + work).max(1)).unwrap_or(u32::MAX))
    }

    /// Mean gain over the newcomer's whole run: 1 during start-up, then [`Self::gain`]. Zero if the sum of progress falls once it
    /// works.
    #[must_use]
    pub fn gain_over_run(&self, start: Fraction) -> Fraction {
        let (start, work) = self.lasts(start);
        if self.after() < self.before {
            return Fraction(0);
        }
        let one = u128::from(Fraction::ONE.0);
        let sum = u128::from(start) * one + u128::from(work) * u128::from(self.gain().0);
        Fraction(u32::try_from(sum / u128::from(start + work).max(1)).unwrap_or(u32::MAX))
    }

    /// How long the newcomer starts up and works, as it would share, over its run time alone, basis points.
    fn lasts(&self, start: Fraction) -> (u64, u64) {
        let one = u64::from(Fraction::ONE.0);
        let start = u64::from(start.0).min(one);
        (start, (one - start) * one / u64::from(self.joins.expected.0.max(1)))
    }

    /// What is predicted of a tenant of this class.
    #[must_use]
    pub fn of(&self, class: Class) -> Option<Pace> {
        // Twice the same class is twice the same pace.
        let at = self.there.classes.binary_search(&class).ok()?;
        self.paces.get(at).copied()
    }

    /// Whether more than the usual floor is asked of a job of this company, which may have a lower floor of its own.
    pub(crate) const fn asks_more_of(&self, own_floor: Option<Fraction>) -> bool {
        self.seen_beside && own_floor.is_none()
    }

    /// Whether there is a pace for each class that is there.
    pub(crate) fn has_paces(&self) -> bool {
        self.paces.len() == self.there.classes.len()
    }

    /// Whether it has lower bounds, or nothing that could have one.
    pub(crate) const fn has_bounds(&self) -> bool {
        !self.unknown.is_empty() || self.joins.lower.is_some()
    }

    /// Whether there is a pace for each class that is there, or none since one of them is unknown.
    pub(crate) fn is_whole(&self) -> bool {
        self.has_paces() || (self.paces.is_empty() && !self.unknown.is_empty())
    }
}

/// Progress of a running job as it was measured, since its neighbours last changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Measured {
    /// When the measurement ended.
    pub at: Millis,
    /// Speed over the speed alone.
    pub progress: Fraction,
    /// How long was measured.
    pub over: Millis,
    /// It may be less: see [`crate::input::Input::Measured`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub at_most: bool,
    /// What was measured beside the same neighbours just before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Fraction>,
}

impl Measured {
    /// Whether it made no step in this window, or in the one before, the end of which may be in this one. Neighbours slow a job down and
    /// do not stop it, so that this says nothing of them.
    #[must_use]
    pub fn stood_still(&self) -> bool {
        self.progress == Fraction(0) || self.before == Some(Fraction(0))
    }
}

/// How a job's limit of slowdown was kept: over the full windows in which its progress beside others was measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// Windows that show whether it was.
    pub windows: u32,
    /// Those in which it was not.
    pub beyond: u32,
    /// The most of these in a row, also where the neighbours changed in between.
    pub longest: u32,
    /// How many of these the last windows were.
    pub last: u32,
    /// The least progress in a window.
    pub least: Fraction,
}

impl Kept {
    /// With one more window, of this progress where `limit` was to be kept.
    #[must_use]
    pub fn with(earlier: Option<Self>, progress: Fraction, limit: Fraction) -> Self {
        let Self { windows, beyond, longest, last, least } =
            earlier.unwrap_or(Self { windows: 0, beyond: 0, longest: 0, last: 0, least: progress });
        let is_beyond = progress < limit;
        let last = if is_beyond { last.saturating_add(1) } else { 0 };
        Self {
            windows: windows.saturating_add(1),
            beyond: beyond.saturating_add(u32::from(is_beyond)),
            longest: longest.max(last),
            last,
            least: least.min(progress),
        }
    }
}

/// How far the attempt of a running job is by its own count (steps of a known number). It may have gone on where an earlier one
/// had saved its work, so that what counts is how the share has grown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counted {
    /// The share of its work that was done when it was first told.
    pub first: Fraction,
    /// What it had got done by then, in time alone.
    pub by_then: Millis,
    /// How long the attempt takes alone in all; `None`: it was told once.
    pub run: Option<Millis>,
}

/// Counts that are less apart tell nothing: the first is told up to four seconds late, and then right before the next. On an H200 the first
/// two said that a tenth to a third was left of what was (docs/research/h200.md).
const APART: Millis = Millis::secs(3);

impl Counted {
    /// What follows from the share that is done now; `done`: what the attempt got done, in time alone.
    #[must_use]
    pub(crate) fn next(before: Option<Self>, share: Fraction, done: Millis) -> Self {
        // A smaller share than at first is of something else.
        let Some(before) = before.filter(|before| share > before.first) else {
            return Self { first: share, by_then: done, run: None };
        };
        let took = done.since(before.by_then);
        if took < APART {
            return before;
        }
        let since = u64::from(share.0 - before.first.0);
        let left = u64::from(Fraction::ONE.0.saturating_sub(share.0));
        let left = took.0.saturating_mul(left) / since;
        Self { run: Some(Millis(done.0.saturating_add(left))), ..before }
    }
}

/// Least progress within a limit: 1 over the slowdown, rounded down.
pub(crate) fn least_progress(max_slowdown: Fraction) -> Fraction {
    let one = u64::from(Fraction::ONE.0);
    let least = (one * one).checked_div(u64::from(max_slowdown.0)).unwrap_or(one);
    Fraction(u32::try_from(least.min(one)).unwrap_or(Fraction::ONE.0))
}

/// The slowdown that stands for a progress. No progress is a slowdown without end, shown as 10,000.
#[must_use]
pub fn slowdown(progress: Fraction) -> Fraction {
    let one = u64::from(Fraction::ONE.0);
    let slowdown = (one * one).checked_div(u64::from(progress.0)).unwrap_or(u64::MAX);
    Fraction(u32::try_from(slowdown.min(one * one)).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_beyond_a_limit_are_counted_and_the_most_in_a_row() {
        let mut kept = None;
        for percent in [90, 60, 50, 80, 70, 75] {
            kept = Some(Kept::with(kept, Fraction::percent(percent), Fraction::percent(75)));
        }
        let least = Fraction::percent(50);
        assert_eq!(kept, Some(Kept { windows: 6, beyond: 3, longest: 2, last: 0, least }));
    }

    #[test]
    fn start_up_is_not_slowed_down_and_costs_nobody_anything() {
        let pace = |percent| Pace { expected: Fraction::percent(percent), lower: None };
        let class = Class { command: 1, threads: None, asked: false };
        let there = Company { kind: GpuId(0), sharing: SharingMode::Mps, classes: vec![class] };
        let of = |before, after, joins| Outlook {
            there: there.clone(),
            newcomer: class,
            paces: vec![pace(after)],
            joins: pace(joins),
            unknown: Vec::new(),
            seen_beside: false,
            before: Fraction::percent(before),
            throughput: None,
        };
        let over_run = |outlook: &Outlook, start| {
            let start = Fraction::percent(start);
            (outlook.joins_over_run(start).0, outlook.gain_over_run(start).0)
        };
        // Without start-up it is what is predicted. Half of a run at half of the speed is two thirds of the time.
        let outlook = of(100, 60, 50);
        assert_eq!(over_run(&outlook, 0), (5000, 1000));
        assert_eq!(over_run(&outlook, 50), (6666, 4000));
        // One that costs more than it brings gains nothing, however long it starts up.
        assert_eq!(over_run(&of(100, 40, 50), 50), (6666, 0));
        assert_eq!(over_run(&of(100, 100, 0), 0), (1, 0));
    }

    #[test]
    fn a_count_tells_how_long_the_attempt_takes_from_how_it_grew() {
        let next = |before, percent, seconds| {
            Counted::next(before, Fraction::percent(percent), Millis::secs(seconds))
        };
        // Ten seconds of start-up; then a tenth of the work takes two.
        let first = next(None, 10, 12);
        assert_eq!(first.run, None);
        let second = next(Some(first), 50, 20);
        assert_eq!(second.run, Some(Millis::secs(30)));
        assert_eq!(next(Some(second), 100, 31).run, Some(Millis::secs(31)));
        // The first was told late.
        let soon = next(Some(first), 20, 13);
        assert_eq!((soon.run, next(Some(soon), 50, 20).run), (None, Some(Millis::secs(30))));
        // It went on where an earlier attempt had saved its work.
        assert_eq!(next(Some(next(None, 60, 12)), 80, 16).run, Some(Millis::secs(20)));
        // Less than at first: it counts something else.
        assert_eq!(next(Some(second), 5, 21), next(None, 5, 21));
        let endless = Counted::next(Some(next(None, 0, 0)), Fraction(1), Millis(u64::MAX));
        assert_eq!(endless.run, Some(Millis(u64::MAX)));
    }

    #[test]
    fn slowdown_and_progress_are_each_others_inverse() {
        assert_eq!(least_progress(Fraction(13_000)), Fraction(7692));
        assert_eq!(slowdown(Fraction(5_000)), Fraction(20_000));
        assert_eq!(least_progress(Fraction(0)), Fraction::ONE);
        // A limit of less than 1 asks for all of the speed, and no more.
        assert_eq!(least_progress(Fraction(5_000)), Fraction::ONE);
        assert_eq!(slowdown(Fraction(0)), Fraction(100_000_000));
    }
}

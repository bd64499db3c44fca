//! The fastest that jobs of commands were seen whose speed alone is not known: alone they are at least that fast.
//!
//! What a job does now is held against it: an upper bound of its progress beside others. Beside neighbours that load a job
//! goes nearly as fast as alone, so that a few seconds are enough, of which there are some on most GPUs.

use super::rows::{Key, Rows};
use super::{ADVANCES, Beside, Stored};
use carma_core::model::JobId;
use carma_core::units::Millis;
use carma_interference::profile::{Profile, Rate};
use carma_interference::rate::tally::Measured;
use std::collections::BTreeMap;

/// A job's speed is taken over stretches that are at least so long (on a busy GPU jobs are seldom alone for more than three of them: with
/// stretches of 3 s the median of twelve commands on an H200 was .6 of their speed alone, docs/research/h200.md),
const STRETCH: Millis = Millis(1_300);
/// in which its count rises so often: of fewer the ends weigh too much.
const ENOUGH: usize = 5;
/// Where it does not by then, it does something else.
const LONGEST: Millis = Millis::secs(20);

/// The speeds of jobs at their steps, stretch by stretch.
#[derive(Default)]
pub(super) struct Stretches(BTreeMap<JobId, Stretch>);

struct Stretch {
    since: Millis,
    /// When it is looked at next.
    due: Millis,
    /// When the two before began, and the speeds in them.
    before: [Option<(Millis, Rate)>; 2],
}

/// Three stretches in a row: counts that come in bursts make one or two of them faster than the job is.
pub(super) struct Steady {
    /// When the first of them began.
    pub(super) since: Millis,
    pub(super) slowest: Rate,
    pub(super) fastest: Rate,
}

impl Stretches {
    /// Looks at a job that is at its steps. `rate`: its speed from a time on until now. Returns its speed once a stretch is over.
    pub(super) fn look(
        &mut self,
        now: Millis,
        job: JobId,
        rate: impl FnOnce(Millis) -> Option<Measured>,
    ) -> Option<Steady> {
        let due = now + STRETCH;
        let stretch = self.0.entry(job).or_insert(Stretch { since: now, due, before: [None, None] });
        if now < stretch.due {
            return None;
        }
        stretch.due = due;
        let told = rate(stretch.since).filter(|rate| rate.advances >= ENOUGH && is_countable(rate));
        if told.is_none() && now.since(stretch.since) < LONGEST {
            return None;
        }
        let told = told.map(|told| (stretch.since, told.rate));
        let [first, second] = std::mem::take(&mut stretch.before);
        *stretch = Stretch { since: now, due, before: [second.clone(), told.clone()] };
        let ((since, a), (_, b), (_, c)) = (first?, second?, told?);
        if !(a.counts_like(&b) && b.counts_like(&c)) {
            return None;
        }
        let mut rates = [a, b, c];
        rates.sort_by(|a, b| a.per_s.total_cmp(&b.per_s));
        let [slowest, _, fastest] = rates;
        Some(Steady { since, slowest, fastest })
    }

    /// The job is not at its steps any more.
    pub(super) fn left(&mut self, job: JobId) {
        self.0.remove(&job);
    }
}

/// The fastest of each command.
#[derive(Default)]
pub(super) struct Fastest {
    /// As profiles of which the rate alone is known.
    rates: Rows<Profile>,
}

impl Fastest {
    /// What was stored.
    pub(super) fn restore(&mut self, key: Key, profile: Profile, beside: Beside) {
        self.rates.restore(key, profile, beside);
    }

    /// It is known now how fast the command is alone.
    pub(super) fn forget(&mut self, key: &Key) {
        self.rates.forget(key);
    }

    /// Rows that changed since the last time; `None`: one that is forgotten.
    pub(super) fn changes(&mut self) -> impl Iterator<Item = (Key, Option<Stored<'_>>)> {
        self.rates.changes(|profile| profile)
    }

    /// What it is.
    pub(super) fn of(&self, key: &Key) -> Option<&Rate> {
        self.rates.get(key)?.rate.as_ref()
    }

    /// What was faster since was no speed of the command.
    pub(super) fn take_back(&mut self, now: Millis, key: &Key, uid: u32, before: Option<Rate>) {
        self.rates.forget(key);
        before.into_iter().for_each(|before| self.raise(now, key, uid, &before));
    }

    /// A rate that was counted is that of the command, if no job of it was faster; and what share it is of the fastest.
    /// `None`: another counter was the fastest before.
    pub(super) fn share_of(&mut self, now: Millis, key: &Key, uid: u32, rate: &Rate) -> Option<f64> {
        let before = self.of(key);
        let is_other = before.is_some_and(|before| !before.counts_like(rate));
        self.raise(now, key, uid, rate);
        self.at_most(key, rate).filter(|_| !is_other)
    }

    /// What share of the fastest a rate is, 1 at most.
    pub(super) fn at_most(&self, key: &Key, rate: &Rate) -> Option<f64> {
        let fastest = self.of(key)?;
        (fastest.counts_like(rate) && fastest.per_s > 0.0).then(|| (rate.per_s / fastest.per_s).min(1.0))
    }

    /// A job of the command goes at this speed.
    pub(super) fn raise(&mut self, now: Millis, key: &Key, uid: u32, rate: &Rate) {
        if rate.per_s <= 0.0 {
            return;
        }
        let new = || Profile { name: "fastest".into(), ..Profile::default() };
        let fastest = &mut self.rates.used(now, key, Some(uid), new).rate;
        let is_more = |fastest: &Rate| !fastest.counts_like(rate) || fastest.per_s < rate.per_s;
        if fastest.as_ref().is_none_or(is_more) {
            *fastest = Some(rate.clone());
            self.rates.changed(key.clone());
        }
    }
}

/// Whether a rate is of a job's work, and counted here.
pub(super) const fn is_countable(rate: &Measured) -> bool {
    rate.is_work && !rate.is_average && !rate.rate.aside && rate.advances >= ADVANCES
}

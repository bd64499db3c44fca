//! The fastest that jobs of commands were seen whose speed alone is not known: alone they are at least that fast.
//!
//! What a job does now is held against it: an upper bound of its progress beside others. Beside neighbours that load a job
//! goes nearly as fast as alone, so that a few seconds are enough, of which there are some on most GPUs.

use super::rows::{Key, Rows};
use super::{ADVANCES, Stored};
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

/// The fastest of each command, and the jobs that are watched for it.
#[derive(Default)]
pub(super) struct Fastest {
    /// As profiles of which the rate alone is known.
    rates: Rows<Profile>,
    stretches: BTreeMap<JobId, Stretch>,
}

struct Stretch {
    since: Millis,
    /// When it is looked at next.
    due: Millis,
    /// The speeds in the two before.
    before: [Option<Rate>; 2],
}

impl Fastest {
    /// What was stored.
    pub(super) fn restore(&mut self, key: Key, profile: Profile, uid: Option<u32>) {
        self.rates.restore(key, profile, uid);
    }

    /// It is known now how fast the command is alone.
    pub(super) fn forget(&mut self, key: &Key) {
        self.rates.forget(key);
    }

    /// Rows that changed since the last time; `None`: one that is forgotten.
    pub(super) fn changes(&mut self) -> impl Iterator<Item = (Key, Option<Stored<'_>>)> {
        self.rates.changes(|profile| profile)
    }

    /// Looks at a job that is at its steps. `rate`: its speed from a time on until now.
    pub(super) fn look(
        &mut self,
        now: Millis,
        (job, key, uid): (JobId, &Key, u32),
        rate: impl FnOnce(Millis) -> Option<Measured>,
    ) {
        let due = now + STRETCH;
        let stretch = self.stretches.entry(job).or_insert(Stretch { since: now, due, before: [None, None] });
        if now < stretch.due {
            return;
        }
        stretch.due = due;
        let told = rate(stretch.since).filter(|rate| rate.advances >= ENOUGH && is_countable(rate));
        if told.is_none() && now.since(stretch.since) < LONGEST {
            return;
        }
        let told = told.map(|told| told.rate);
        let [first, second] = std::mem::take(&mut stretch.before);
        let all = [first, second.clone(), told.clone()];
        *stretch = Stretch { since: now, due, before: [second, told] };
        // Three in a row: counts that come in bursts make one or two of them faster than the job is.
        if let [Some(a), Some(b), Some(c)] = &all
            && a.counts_like(b)
            && b.counts_like(c)
        {
            let slowest = [a, b, c].into_iter().min_by(|a, b| a.per_s.total_cmp(&b.per_s));
            slowest.into_iter().for_each(|slowest| self.raise(now, key, uid, slowest));
        }
    }

    /// The job is not at its steps any more.
    pub(super) fn left(&mut self, job: JobId) {
        self.stretches.remove(&job);
    }

    /// A rate that was counted is that of the command, if no job of it was faster; and what share it is of the fastest.
    /// `None`: another counter was the fastest before.
    pub(super) fn share_of(&mut self, now: Millis, key: &Key, uid: u32, rate: &Rate) -> Option<f64> {
        let before = self.rates.get(key).and_then(|fastest| fastest.rate.as_ref());
        let is_other = before.is_some_and(|before| !before.counts_like(rate));
        self.raise(now, key, uid, rate);
        self.at_most(key, rate).filter(|_| !is_other)
    }

    /// What share of the fastest a rate is, 1 at most.
    pub(super) fn at_most(&self, key: &Key, rate: &Rate) -> Option<f64> {
        let fastest = self.rates.get(key)?.rate.as_ref()?;
        (fastest.counts_like(rate) && fastest.per_s > 0.0).then(|| (rate.per_s / fastest.per_s).min(1.0))
    }

    fn raise(&mut self, now: Millis, key: &Key, uid: u32, rate: &Rate) {
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

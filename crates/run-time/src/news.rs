//! Which jobs that wait are told what an end teaches, and when the plan hears of a running job's own count.

use crate::Class;
use carma_core::model::{Job, JobId, RunTime, RunsOf};
use carma_core::units::Millis;
use std::collections::{BTreeMap, BTreeSet};

/// Jobs at the head of the queue that hear of an end although it was of another program: those of which little is known.
const TOLD: usize = 64;
/// Jobs at the head of the queue that are looked at for that.
const LOOKED_AT: usize = 1024;
/// So many runs of other programs say what they can.
const FEW: u32 = 8;
/// How far a job is is passed on when so much more of it is done, and so often at most: a job may count whatever it likes.
const COUNT_STEP: f64 = 0.05;
/// Most times that the count of an attempt is passed on.
pub const MOST_COUNTS: u32 = 64;
/// The step of the second time, with which it is about known how long the job takes, and of the third, once it has counted for so many
/// seconds: for a job of days a twentieth is hours.
const FIRST_STEPS: [f64; 2] = [0.0005, 0.005];
const COUNTED_S: f64 = 30.0;

/// Whether the plan hears that so much of a running job is done, by its own count. `told`: the share that it heard last, and how often it heard
/// one; `counted_s`: for how long the job has counted, seconds.
#[must_use]
pub fn is_count_news(told: Option<(f64, u32)>, share: f64, counted_s: f64) -> bool {
    let Some((before, times)) = told else { return true };
    let early = times.checked_sub(1).and_then(|at| FIRST_STEPS.get(at as usize));
    let step = early.filter(|_| counted_s >= COUNTED_S).unwrap_or(&COUNT_STEP);
    times < MOST_COUNTS && (share - before).abs() >= *step
}

/// What jobs that wait heard last of how long running ones take by their own counts.
#[derive(Debug, Default)]
pub struct Heard(BTreeMap<JobId, Millis>);

impl Heard {
    /// Forgets the jobs that run no more.
    pub fn keep(&mut self, active: &BTreeSet<JobId>) {
        self.0.retain(|job, _| active.contains(job));
    }

    /// Whether jobs that wait are to hear of a running job's own count: it says more than a tenth else than when they heard of it last. They are
    /// taken to hear of it then.
    pub fn is_news(&mut self, job: &Job) -> bool {
        let Some(now) = job.counted_run() else { return false };
        let told = self.0.get(&job.spec.id);
        let is_news = told.is_none_or(|told| has_moved(told.0, now.0));
        if is_news {
            self.0.insert(job.spec.id, now);
        }
        is_news
    }
}

/// Of the jobs that wait, each with its class (`None`: not known) and in the order of the queue, those that hear what a job of the class `taught`
/// has taught: those that learn from it, and the first others of which little is known.
pub fn told<'a>(
    line: impl Iterator<Item = (&'a Job, Option<Class>)>,
    taught: Option<Class>,
) -> impl Iterator<Item = (&'a Job, Option<Class>)> {
    let mut others = 0;
    line.take(LOOKED_AT).filter(move |(job, class)| {
        if class.zip(taught).is_some_and(|(class, taught)| class.learns_from(&taught)) {
            return true;
        }
        let is_told = others < TOLD && is_little(job.spec.run_time.as_ref());
        others += usize::from(is_told);
        is_told
    })
}

/// By more than a tenth.
const fn has_moved(before: u64, now: u64) -> bool {
    before.abs_diff(now) > before / 10
}

/// Whether a forecast says so much else than before that a job that waits is told: each end of an array's jobs moves those of
/// all others a little.
#[must_use]
pub fn is_news(before: Option<&RunTime>, now: &RunTime) -> bool {
    let Some(before) = before else { return true };
    (before.basis, before.counted) != (now.basis, now.counted)
        || now.runs >= before.runs.saturating_mul(2)
        || has_moved(before.low_s, now.low_s)
        || has_moved(before.median_s, now.median_s)
        || has_moved(before.high_s, now.high_s)
}

/// Whether so little is known of a job's run time that an end of any job may tell more: nothing, or what a few runs of other
/// programs took.
fn is_little(known: Option<&RunTime>) -> bool {
    known.is_none_or(|known| matches!(known.basis, RunsOf::User | RunsOf::All) && known.runs < FEW)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_little_more_is_no_news() {
        let one = RunTime { low_s: 100, high_s: 300, runs: 4, ..RunTime::of(200, RunsOf::Command) };
        assert!(is_news(None, &one) && !is_news(Some(&one), &one));
        assert!(!is_news(Some(&one), &RunTime { median_s: 210, runs: 5, ..one }));
        for news in [
            RunTime { median_s: 230, ..one },
            RunTime { low_s: 80, ..one },
            RunTime { high_s: 400, ..one },
            RunTime { runs: 8, ..one },
            RunTime { basis: RunsOf::User, ..one },
            RunTime { counted: true, ..one },
        ] {
            assert!(is_news(Some(&one), &news), "{news:?}");
        }
    }

    #[test]
    fn few_runs_of_others_are_little() {
        let one = RunTime { runs: 7, commands: 7, ..RunTime::of(2, RunsOf::User) };
        assert!(
            is_little(None)
                && is_little(Some(&one))
                && is_little(Some(&RunTime { basis: RunsOf::All, ..one }))
        );
        assert!(!is_little(Some(&RunTime { runs: 8, ..one })));
        for basis in [RunsOf::Command, RunsOf::Program] {
            assert!(!is_little(Some(&RunTime { basis, ..one })));
        }
    }
}

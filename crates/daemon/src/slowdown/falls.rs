//! Jobs that begin with something faster than their work: a training that goes on from a checkpoint counts the steps that it passes over. What
//! it did until then is no speed of it.

use super::fastest::Steady;
use carma_core::model::JobId;
use carma_core::units::Millis;
use carma_interference::profile::Rate;
use std::collections::BTreeMap;

/// Where the fastest of its stretches is so many times slower than the slowest of earlier ones, in the same company, a job does something else.
/// Data that is passed over goes ten to a thousand times as fast as a step.
const FALL: f64 = 3.0;

/// The running attempts that are watched for it.
#[derive(Default)]
pub(super) struct Falls(BTreeMap<JobId, Watched>);

#[derive(Default)]
struct Watched {
    /// The best of what it did in its present company, and since when.
    best: Option<(Millis, Rate)>,
    /// The fastest that its command had been seen before that.
    before: Option<Rate>,
    /// It fell once. What falls again goes up and down by itself.
    is_known: bool,
}

impl Falls {
    /// Looks at a job. `company`: since when all that are there have been at their steps; `None`: not known. `fastest`: the fastest that its
    /// command was seen until now. Returns, if the job fell, the fastest that its command was seen before it.
    pub(super) fn look(
        &mut self,
        job: JobId,
        steady: &Steady,
        company: Option<Millis>,
        fastest: Option<&Rate>,
    ) -> Option<Option<Rate>> {
        let watched = self.0.entry(job).or_default();
        let in_company = |since: Millis| company.is_some_and(|company| company <= since);
        if watched.best.as_ref().is_some_and(|(since, _)| !in_company(*since)) {
            watched.best = None;
        }
        if watched.is_known || !in_company(steady.since) {
            return None;
        }
        let now = &steady.slowest;
        match &mut watched.best {
            Some((_, best)) if best.counts_like(now) => {
                if is_other(best, &steady.fastest) {
                    watched.is_known = true;
                    return Some(watched.before.take());
                }
                // One that was slow at first goes up and down by itself.
                watched.is_known |= is_other(now, best);
                if best.per_s < now.per_s {
                    *best = now.clone();
                }
            }
            best => {
                *best = Some((steady.since, now.clone()));
                watched.before = fastest.cloned();
            }
        }
        None
    }

    /// The attempt is over.
    pub(super) fn ended(&mut self, job: JobId) {
        self.0.remove(&job);
    }
}

/// Whether one speed is so much above the other that it is not of the same thing.
pub(super) fn is_other(fast: &Rate, slow: &Rate) -> bool {
    fast.counts_like(slow) && slow.per_s * FALL < fast.per_s
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOB: JobId = JobId(7);

    fn steady(since_s: u64, slowest: f64, fastest: f64) -> Steady {
        let rate = |per_s| Rate { per_s, unit: Some("step".into()), ..Rate::default() };
        Steady { since: Millis::secs(since_s), slowest: rate(slowest), fastest: rate(fastest) }
    }

    #[test]
    fn a_job_falls_once_and_only_in_the_same_company() {
        let mut falls = Falls::default();
        let company = Some(Millis::secs(10));
        let mut look = |steady: &Steady, company: Option<Millis>| {
            let fell = falls.look(JOB, steady, company, None);
            falls.0[&JOB].best.as_ref().map(|(_, best)| best.per_s).filter(|_| fell.is_none())
        };
        // Before that others came, or it is not known when they began.
        assert_eq!(look(&steady(5, 90.0, 95.0), company), None);
        assert_eq!(look(&steady(12, 90.0, 95.0), None), None);
        assert_eq!(look(&steady(12, 80.0, 95.0), company), Some(80.0));
        assert_eq!(look(&steady(14, 90.0, 95.0), company), Some(90.0));
        // Another came: what is slower since may be its doing.
        let company = Some(Millis::secs(20));
        assert_eq!(look(&steady(22, 20.0, 25.0), company), Some(20.0));
        assert_eq!(look(&steady(24, 5.0, 20.0), company), Some(20.0), "not all of it is slower");
        assert_eq!(look(&steady(26, 5.0, 6.0), company), None, "it fell");
        assert_eq!(look(&steady(28, 1.0, 1.0), company), Some(20.0), "once");
    }

    #[test]
    fn one_that_was_slow_at_first_goes_up_and_down_by_itself() {
        let mut falls = Falls::default();
        let company = Some(Millis::ZERO);
        let speeds = [10.0, 40.0, 10.0, 40.0, 10.0];
        for (at, per_s) in (1..).zip(speeds) {
            assert!(falls.look(JOB, &steady(at, per_s, per_s), company, None).is_none(), "{at}");
        }
        falls.ended(JOB);
        assert!(falls.look(JOB, &steady(9, 40.0, 40.0), company, None).is_none());
        assert!(falls.look(JOB, &steady(9, 10.0, 10.0), company, None).is_some(), "another attempt");
    }
}

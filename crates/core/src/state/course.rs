//! How far running jobs are, as far as one can tell by their expected run times ([`crate::model::NewJob::run_s`]).

use super::State;
use crate::model::Job;
use crate::units::{Fraction, Millis};

/// Of a job that takes longer than expected, this part of what it has done is taken to be left.
const LONGER: u64 = 4;

/// How far a running job is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Course {
    /// Time on its GPUs.
    on: Millis,
    /// So much time alone would have brought as much.
    done: Millis,
    /// Time that it takes alone from now on, if it takes as long as expected. Zero: it has taken longer.
    pub(crate) left: Millis,
}

impl Course {
    /// Speed over its whole run, over its speed alone, if it goes on at this pace until its end.
    pub(crate) fn whole_run(self, pace: Fraction) -> Fraction {
        let left = u128::from(self.left.0.max(self.done.0 / LONGER).max(1));
        let one = u128::from(Fraction::ONE.0);
        let alone = u128::from(self.done.0) + left;
        let took = u128::from(self.on.0) + left * one / u128::from(pace.0.max(1));
        Fraction(u32::try_from(alone * one / took.max(1)).unwrap_or(u32::MAX))
    }
}

impl State {
    /// How far a job is that has GPUs, as of when it was last charged: a minute ago at most where jobs go by length
    /// ([`super::weights`]).
    pub(crate) fn course(&self, job: &Job) -> Course {
        let gpus = job.placement().map_or(1, |placed| placed.gpus.len().max(1)) as u64;
        let had = self.accounts.had(job.spec.id);
        let (on, done) = (Millis(had.held.0 / gpus), Millis(had.progress().0 / gpus));
        Course { on, done, left: Millis::secs(job.spec.run_s()).since(done) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn course(on: u64, done: u64, left: u64) -> Course {
        Course { on: Millis::secs(on), done: Millis::secs(done), left: Millis::secs(left) }
    }

    #[test]
    fn a_slow_phase_weighs_as_much_as_it_lasts() {
        let half = Fraction::percent(50);
        // All of it at half its speed, half of it, none of it.
        assert_eq!(course(0, 0, 100).whole_run(half), half);
        assert_eq!(course(100, 100, 100).whole_run(half).0, 6666);
        assert_eq!(course(100, 100, 100).whole_run(Fraction::ONE), Fraction::ONE);
        // The same again after a slow half is still half; at full speed it is better.
        assert_eq!(course(200, 100, 100).whole_run(half), half);
        assert_eq!(course(200, 100, 100).whole_run(Fraction::ONE).0, 6666);
    }

    #[test]
    fn one_that_takes_longer_than_expected_has_a_quarter_left() {
        assert_eq!(course(100, 100, 0).whole_run(Fraction::percent(50)).0, 8333);
        assert_eq!(course(0, 0, 0).whole_run(Fraction::ONE), Fraction::ONE);
        assert_eq!(course(0, 0, 1).whole_run(Fraction(0)).0, 1);
        let most = Course { on: Millis(u64::MAX), done: Millis(u64::MAX), left: Millis(u64::MAX) };
        assert_eq!(most.whole_run(Fraction::ONE), Fraction::ONE);
    }
}

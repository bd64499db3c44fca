//! How far running jobs are: by their own counts, else by their expected run times ([`crate::model::NewJob::run_s`]).

use super::State;
use crate::input::Rejected;
use crate::model::{Job, JobId};
use crate::progress::Counted;
use crate::units::{Fraction, Millis};

/// Of a job that takes about as long as expected, this part of what it has done is taken to be left at least.
const AS_LONG: u64 = 4;
/// The same of one that takes longer: run times vary widely, and what has gone on for long goes on.
const LONGER: u64 = 2;
/// The same of one whose own count says what is left: it is seldom far off, and told again with every twentieth.
const LONGER_BY_COUNT: u64 = 32;

/// How far a running job is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Course {
    /// Time on its GPUs.
    on: Millis,
    /// So much time alone would have brought as much.
    done: Millis,
    /// Time that it takes alone from now on, if it takes as long as expected. Zero: it has taken longer.
    pub(crate) left: Millis,
    /// No less than this is likely left.
    least: Millis,
    /// The part of it that is start-up, without interference.
    start: Millis,
}

impl Course {
    /// Time that it likely takes alone from now on, also if it has taken longer than expected.
    pub(crate) fn likely_left(self) -> Millis {
        self.left.max(self.least).max(Millis(1))
    }

    /// This course if the job takes no longer than expected; of one that has taken longer, as it is likely.
    pub(crate) fn as_expected(self) -> Self {
        let least = if self.left.is_zero() { self.least } else { Millis::ZERO };
        Self { least, ..self }
    }

    /// Whether a job that stays so long beside this one is over so soon, in a fiftieth of what this one has left, that it may slow it down
    /// as much as it does; in a quarter, where that one has waited for long. What it costs over the whole run counts all the same.
    pub(crate) fn outlasts(self, stays: Millis, has_waited: bool) -> bool {
        stays.0 <= self.likely_left().0 / if has_waited { 4 } else { 50 }
    }

    /// Start-up and work that are left, alone.
    fn rest(self) -> (Millis, Millis) {
        let left = self.likely_left();
        let start = self.start.min(left);
        (start, left.since(start))
    }

    /// How long it goes on if it keeps this pace.
    pub(crate) fn ends_in(self, pace: Fraction) -> Millis {
        let (start, work) = self.rest();
        start + work.at_speed(pace)
    }

    /// Speed over its whole run, over its speed alone, if it keeps this pace from now on.
    pub(crate) fn whole_run_as_now(self, now: Fraction) -> Fraction {
        self.whole_run(now, Millis::ZERO, now, (Millis::ZERO, now))
    }

    /// Speed over its whole run, over its speed alone, with a newcomer that works `from` some time on: until then it goes on at the pace
    /// that it has `now`, and at the `joint` one beside the newcomer. `stays`: how long that is there; `after`: the pace
    /// afterwards.
    pub(crate) fn whole_run(
        self,
        now: Fraction,
        from: Millis,
        joint: Fraction,
        (stays, after): (Millis, Fraction),
    ) -> Fraction {
        let (start, work) = self.rest();
        let (start, mut work) = (u128::from(start.0), u128::from(work.0));
        let one = u128::from(Fraction::ONE.0);
        let alone = u128::from(self.done.0) + start + work;
        let mut took = u128::from(self.on.0) + start;
        let [now, joint, after] = [now, joint, after].map(|pace| u128::from(pace.0.max(1)));
        let until = u128::from(from.0).saturating_sub(start);
        for (pace, time) in [(now, until), (joint, u128::from(stays.0))] {
            let done = (time * pace / one).min(work);
            took += done * one / pace;
            work -= done;
        }
        took += work * one / after;
        Fraction(u32::try_from(alone * one / took.max(1)).unwrap_or(u32::MAX))
    }
}

/// How long a job takes alone in all: by its own count, else as expected.
pub(super) fn expected_run(job: &Job) -> Millis {
    job.counted_run().unwrap_or(Millis::secs(job.spec.run_s()))
}

impl State {
    /// How far a job is that has GPUs.
    pub(crate) fn course(&self, job: &Job) -> Course {
        let gpus = job.placement().map_or(1, |placed| placed.gpus.len().max(1)) as u64;
        let had = self.had_until_now(job);
        let (on, done) = (Millis(had.held.0 / gpus), Millis(had.progress().0 / gpus));
        let left = expected_run(job).since(done);
        let part = match left {
            _ if job.counted_run().is_some() => LONGER_BY_COUNT,
            Millis::ZERO => LONGER,
            _ => AS_LONG,
        };
        let least = Millis(done.0 / part);
        let tenants = job.placement().into_iter().flat_map(|placed| &placed.gpus);
        let tenants = tenants.filter_map(|gpu| self.gpu(*gpu)?.tenant(job.spec.id));
        let start = tenants.map(|tenant| self.starts_until(job, tenant).since(self.now())).max();
        let start = start.unwrap_or_default();
        Course { on, done, left, least, start: start.min(Millis(left.0 / 2)) }
    }

    /// A running job told the share of its work that is done.
    pub(super) fn counted(&mut self, id: JobId, attempt: u32, share: Fraction) -> Result<(), Rejected> {
        let job = self.attempt_of(id, attempt)?;
        let (uid, gpus, before) = (job.spec.user.uid, job.spec.request.gpus, self.whole_run(job));
        let counted = Counted::next(job.counted, share, self.course(job).done);
        self.update(id, |job| job.counted = Some(counted))?;
        let now = self.whole_run(self.get(id)?);
        self.shadows.heard(uid, gpus, before, now);
        self.move_bounds(uid);
        Ok(())
    }

    /// What a job on its GPUs has got done there in this attempt, as time alone.
    #[must_use]
    pub fn done(&self, job: &Job) -> Millis {
        self.course(job).done
    }

    /// Whether a job on its GPUs has done all that it was expected to, and does not count how much there is.
    pub(crate) fn is_longer_than_expected(&self, job: &Job) -> bool {
        job.counted_run().is_none() && self.course(job).left.is_zero()
    }

    /// The floor below the policy's with which a job on its GPUs was let in after a long wait, for as long as it runs no longer than was
    /// expected then: it is meant for brief jobs, and others are let in by it.
    pub(crate) fn lower_floor(&self, job: &Job) -> Option<Fraction> {
        job.placement()?.floor.filter(|_| !self.is_longer_than_expected(job))
    }

    /// How long a job on its GPUs is expected to go on, at the speed that it has beside the jobs that are there now.
    #[must_use]
    pub fn ends_in(&self, job: &Job) -> Millis {
        self.course(job).ends_in(self.pace(job).0)
    }

    /// The same, if it takes no longer than expected; of one that has taken longer, as it is likely.
    pub(crate) fn ends_as_expected_in(&self, job: &Job) -> Millis {
        self.course(job).as_expected().ends_in(self.pace(job).0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The newcomer stays until this one ends.
    const TO_THE_END: (Millis, Fraction) = (Millis(u64::MAX), Fraction::ONE);

    const fn course(on: u64, done: u64, left: u64) -> Course {
        let part = if left == 0 { LONGER } else { AS_LONG };
        let (on, done, left) = (Millis::secs(on), Millis::secs(done), Millis::secs(left));
        Course { on, done, left, least: Millis(done.0 / part), start: Millis::ZERO }
    }

    impl Course {
        fn whole_run_at(self, pace: Fraction) -> Fraction {
            self.whole_run(Fraction::ONE, Millis::ZERO, pace, TO_THE_END)
        }
    }

    #[test]
    fn until_a_neighbour_works_it_goes_on_as_now() {
        let (half, fifth) = (Fraction::percent(50), Fraction::percent(20));
        let course = course(0, 0, 100);
        assert_eq!(course.whole_run(half, Millis::secs(200), fifth, TO_THE_END), half);
        // 100 s of half the speed do half of it, and the rest takes 250.
        assert_eq!(course.whole_run(half, Millis::secs(100), fifth, TO_THE_END).0, 2857);
        let starting = Course { start: Millis::secs(50), ..course };
        assert_eq!(starting.whole_run(half, Millis::secs(50), fifth, TO_THE_END).0, 3333);
        assert_eq!(starting.whole_run(half, Millis::secs(150), fifth, TO_THE_END).0, 6666);
    }

    #[test]
    fn once_a_neighbour_is_over_it_goes_on_as_before() {
        let (one, half) = (Fraction::ONE, Fraction::percent(50));
        let with = |course: Course, from, stays| {
            course.whole_run(one, Millis::secs(from), half, (Millis::secs(stays), one)).0
        };
        // 20 s at half of its speed cost 10, whenever they come; no more than what is left is slowed down.
        assert_eq!([0, 50].map(|from| with(course(0, 0, 100), from, 20)), [9090, 9090]);
        assert_eq!(with(course(0, 0, 100), 50, u64::MAX / 1000), 6666);
        assert_eq!(with(course(0, 0, 100), 100, 20), 10_000);
        // One short neighbour after the other: what they cost so far counts.
        assert_eq!(with(course(200, 100, 100), 0, 20), 6451);
        // One that slows it down now leaves, too.
        let after =
            |pace| course(100, 100, 100).whole_run(half, Millis::secs(10), half, (Millis::secs(10), pace));
        assert_eq!([one, half].map(|pace| after(pace).0), [9523, 6666]);
    }

    #[test]
    fn the_rest_takes_as_long_as_its_pace_says() {
        let half = Fraction::percent(50);
        let ends_in = |course: Course| course.ends_in(half).0;
        assert_eq!(ends_in(course(0, 0, 10)), 20_000);
        assert_eq!(ends_in(Course { start: Millis::secs(5), ..course(0, 0, 10) }), 15_000);
        // One that takes longer than expected is not taken to be over at once.
        assert_eq!(ends_in(course(100, 100, 0)), 100_000);
        assert_eq!(course(0, 0, u64::MAX / 1000).ends_in(Fraction(0)).0, u64::MAX);
    }

    #[test]
    fn start_up_is_not_slowed_down() {
        let half = Fraction::percent(50);
        let starting = |on, left, start| Course { start: Millis::secs(start), ..course(on, on, left) };
        assert_eq!(starting(0, 20, 10).whole_run_at(half).0, 6666);
        assert_eq!(starting(10, 20, 0).whole_run_at(half).0, 6000);
        assert_eq!(starting(0, 0, 10).whole_run_at(half), Fraction::ONE);
    }

    #[test]
    fn a_slow_phase_weighs_as_much_as_it_lasts() {
        let half = Fraction::percent(50);
        // All of it at half its speed, half of it, none of it.
        assert_eq!(course(0, 0, 100).whole_run_at(half), half);
        assert_eq!(course(100, 100, 100).whole_run_at(half).0, 6666);
        assert_eq!(course(100, 100, 100).whole_run_at(Fraction::ONE), Fraction::ONE);
        // The same again after a slow half is still half; at full speed it is better.
        assert_eq!(course(200, 100, 100).whole_run_at(half), half);
        assert_eq!(course(200, 100, 100).whole_run_at(Fraction::ONE).0, 6666);
    }

    #[test]
    fn its_own_count_says_better_what_is_left() {
        let half = Fraction::percent(50);
        // 2 of 42 s are left, expected or by its own count.
        let expected = course(40, 40, 2);
        let counted = Course { least: Millis(40_000 / LONGER_BY_COUNT), ..expected };
        assert_eq!([expected, counted].map(|course| course.ends_in(half).0), [20_000, 4_000]);
    }

    #[test]
    fn one_that_takes_longer_than_expected_has_half_of_what_it_has_done_left() {
        assert_eq!(course(100, 100, 0).whole_run_at(Fraction::percent(50)).0, 7500);
        assert_eq!(course(0, 0, 0).whole_run_at(Fraction::ONE), Fraction::ONE);
        assert_eq!(course(0, 0, 1).whole_run_at(Fraction(0)).0, 1);
        let endless = Millis(u64::MAX);
        let most = Course { on: endless, done: endless, left: endless, least: endless, start: endless };
        assert_eq!(most.whole_run_at(Fraction::ONE), Fraction::ONE);
    }
}

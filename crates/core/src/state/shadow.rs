//! The shadow clocks: when each job would start if every job had its GPUs alone and a user's all went in the order of
//! submission, each for as long as it is expected to run.
//!
//! That time is the bound on a job's start where jobs go by length ([`crate::policy::Line::is_by_length`]), on the clock of the
//! job's user. No later job moves it. It is computed again when more is known of the run times of the jobs before it: bounds that rest
//! on the first estimates would be far too early or too late. While a user's jobs wait alone, that
//! clock is the common one. While jobs of several users wait, each user's clock goes as fast as the user's share of the
//! shares of all of them says: every user's line moves on as if the user had that part of the GPUs, no matter who came
//! first and how long the lines of the others are (fair queueing: Parekh and Gallager 1993, section II).

use crate::model::JobId;
use crate::units::{Fraction, Millis};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};

/// Bits behind the point of [`Turns::shared`].
const POINT: u32 = 20;

/// Bounds are computed again once estimates of run times have changed by one part in so many of their sum.
const NEWS: u64 = 20;
/// A bound is later by one part in so many of the time until all that has come is over in the shadow, the job itself included: that jobs start in
/// another order, and beside each other, delays some of them by a little.
const SLACK: u64 = 20;
/// The same where jobs of several users wait: their parts are seldom whole GPUs, so that jobs of all of them would be over exact bounds at
/// once, and go in the order of their bounds (docs/research/tried.md).
const SLACK_AMONG_USERS: u64 = 2;
/// Jobs of a user whose bounds may still move. Of more, those that came first keep theirs.
const MOST_ASKED: usize = 4096;

/// Times that are common to all users who wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
struct Times {
    /// Now.
    at: Millis,
    /// How long one user or none has waited.
    alone: Millis,
    /// How far the clock of a user with a share of 1 has gone while several have; milliseconds in fixed point.
    shared: u64,
}

/// The users who wait, and how far their clocks have gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
struct Turns {
    times: Times,
    /// Users whose jobs wait.
    users: u32,
    /// The shares of all of them.
    shares: u64,
}

impl Turns {
    fn until(self, now: Millis) -> Times {
        let span = now.since(self.times.at);
        let mut times = Times { at: self.times.at.max(now), ..self.times };
        if self.users < 2 {
            times.alone = times.alone + span;
        } else {
            let shared = (u128::from(span.0) << POINT) / u128::from(self.shares.max(1));
            times.shared = times.shared.saturating_add(u64::try_from(shared).unwrap_or(u64::MAX));
        }
        times
    }
}

/// The shadow of one user's jobs.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
struct Line {
    #[serde(default, skip_serializing_if = "Shadow::is_none")]
    shadow: Shadow,
    /// The jobs whose run times may still change, and those that came after them, in the order in which they came.
    #[serde(default, skip_serializing_if = "VecDeque::is_empty")]
    asked: VecDeque<Asked>,
    /// The shadow before these.
    #[serde(default, skip_serializing_if = "Shadow::is_none")]
    before: Shadow,
    /// Sum of the estimates for these, and of the changes of estimates since their bounds were computed; GPU-milliseconds.
    #[serde(default)]
    expected: u64,
    #[serde(default)]
    news: u64,
    /// How far the user's clock is behind the common one, as of `since`.
    lag: Millis,
    /// The times when jobs of the user began to wait, and the user's share. `None`: none waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    since: Option<(Times, u32)>,
    /// Since when the clock stands: the user has nothing to wait for, as a quota is spent. None of the user's jobs waits in the sense of
    /// `since` then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    stands: Option<Millis>,
}

impl Line {
    fn lag(&self, turns: Turns, now: Millis) -> Millis {
        if let Some(stands) = self.stands {
            return self.lag + Millis(now.since(stands).0);
        }
        let Some((since, share)) = self.since else { return self.lag };
        let times = turns.until(now);
        let gone = (u128::from(times.shared - since.shared) * u128::from(share)) >> POINT;
        let gone = Millis(u64::try_from(gone).unwrap_or(u64::MAX)) + Millis(times.alone.since(since.alone).0);
        self.lag + Millis(times.at.since(since.at).0.saturating_sub(gone.0))
    }
}

/// The shadows of all users.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Shadows {
    of: BTreeMap<u32, Line>,
    turns: Turns,
}

impl Shadows {
    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// How far a user's clock is behind the common one.
    pub(super) fn lag(&self, uid: u32, now: Millis) -> Millis {
        self.of.get(&uid).map_or(Millis::ZERO, |line| line.lag(self.turns, now))
    }

    /// When a user's clock will have gone on by so much, if the same users wait until then. `None`: it stands.
    pub(super) fn after(&self, uid: u32, now: Millis, by: Millis) -> Option<Millis> {
        if self.stands(uid) {
            return None;
        }
        Some(match self.of.get(&uid).and_then(|line| line.since) {
            Some((_, share)) if self.turns.users > 1 => {
                let span = u128::from(by.0) * u128::from(self.turns.shares);
                now + Millis(u64::try_from(span.div_ceil(u128::from(share.max(1)))).unwrap_or(u64::MAX))
            }
            _ => now + by,
        })
    }

    /// Whether the clocks of all users who wait go alike.
    pub(super) fn go_alike(&self) -> bool {
        let mut shares = self.of.values().filter_map(|line| line.since).map(|(_, share)| share);
        let first = shares.next();
        self.turns.users < 2 || shares.all(|share| Some(share) == first)
    }

    /// When a time on the clock of `later` comes before one on the clock of `sooner` that is before it by so much now, if the same
    /// users wait until then. `None`: the clock of `later` goes no faster.
    pub(super) fn overtakes(&self, sooner: u32, later: u32, now: Millis, by: Millis) -> Option<Millis> {
        let share = |uid| self.of.get(&uid).and_then(|line| line.since).map(|(_, share)| share);
        let faster = share(later)?.checked_sub(share(sooner)?).filter(|faster| *faster > 0)?;
        // Where both are equal, the job that came first is before the other.
        let span = u128::from(by.0 + 1) * u128::from(self.turns.shares);
        Some(now + Millis(u64::try_from(span.div_ceil(u128::from(faster))).unwrap_or(u64::MAX)))
    }

    /// Jobs of a user wait from now on.
    pub(super) fn enter(&mut self, uid: u32, now: Millis, share: u32) {
        let line = self.of.entry(uid).or_default();
        if line.since.is_none() && line.stands.is_none() {
            self.turns.times = self.turns.until(now);
            self.turns.users += 1;
            self.turns.shares += u64::from(share);
            line.since = Some((self.turns.times, share));
        }
    }

    /// None of a user's jobs waits any more.
    pub(super) fn leave(&mut self, uid: u32, now: Millis) {
        let Some(line) = self.of.get_mut(&uid) else { return };
        let lag = line.lag(self.turns, now);
        if let Some((_, share)) = line.since.take() {
            line.lag = lag;
            self.turns.times = self.turns.until(now);
            self.turns.users -= 1;
            self.turns.shares -= u64::from(share);
        }
    }

    /// The clocks of these users stand, as if their jobs did not wait, and those of all others go. Returned: whose clock goes again.
    pub(super) fn stand(&mut self, now: Millis, stands: impl Fn(u32) -> bool) -> Vec<u32> {
        let differs = |(uid, line): (&u32, &Line)| (stands(*uid) != line.stands.is_some()).then_some(*uid);
        let mut go_again = Vec::new();
        for uid in self.of.iter().filter_map(differs).collect::<Vec<_>>() {
            self.leave(uid, now);
            let Some(line) = self.of.get_mut(&uid) else { continue };
            line.lag = line.lag(self.turns, now);
            line.stands = line.stands.is_none().then_some(now);
            if line.stands.is_none() {
                go_again.push(uid);
            }
        }
        go_again
    }

    /// Whether a user's clock stands.
    pub(super) fn stands(&self, uid: u32) -> bool {
        self.of.get(&uid).is_some_and(|line| line.stands.is_some())
    }

    /// The policy has no such lines any more, or shares or quotas have changed: all users leave, and all clocks go.
    pub(super) fn stop(&mut self, now: Millis) {
        self.stand(now, |_| false);
        let users: Vec<u32> = self.of.keys().copied().collect();
        users.into_iter().for_each(|uid| self.leave(uid, now));
    }

    /// Forgets the shadows that are behind the clock, of users without jobs.
    pub(super) fn forget(&mut self, now: Millis, has_jobs: impl Fn(u32) -> bool) {
        let turns = self.turns;
        self.of.retain(|uid, line| {
            let past = Millis(now.0.saturating_sub(line.lag(turns, now).0));
            has_jobs(*uid) || line.since.is_some() || !line.shadow.is_over(past)
        });
        // Without lines nothing of this is stored.
        if self.of.is_empty() {
            self.turns = Turns::default();
        }
    }

    /// The bound on the start of a job that comes now, on its user's clock. `None`: there are too few GPUs.
    pub(super) fn due(&mut self, uid: u32, share: u32, now: Millis, id: JobId, ask: Ask) -> Option<Millis> {
        let lag = self.lag(uid, now);
        let others =
            self.turns.shares - self.of.get(&uid).and_then(|line| line.since).map_or(0, |s| u64::from(s.1));
        let line = self.of.entry(uid).or_default();
        if line.asked.is_empty() {
            (line.before, line.expected, line.news) = (line.shadow.clone(), 0, 0);
        }
        let clock = Millis(now.0.saturating_sub(lag.0));
        let asked = Asked { id, clock, ask, share, others, over: false, passed: false };
        let due = asked.bound(&mut line.shadow)?;
        line.expected = line.expected.saturating_add(asked.takes());
        line.asked.push_back(asked);
        if line.asked.len() > MOST_ASKED {
            line.settle_first();
        }
        Some(due)
    }

    /// The estimate of a job's run time alone has changed; `gpus`: GPUs that the job takes.
    pub(super) fn heard(&mut self, uid: u32, gpus: u32, before: Millis, now: Millis) {
        if let Some(line) = self.of.get_mut(&uid).filter(|line| !line.asked.is_empty()) {
            line.news = line.news.saturating_add(before.0.abs_diff(now.0).saturating_mul(u64::from(gpus)));
        }
    }

    /// A job of a user is over, after so long alone.
    pub(super) fn over(&mut self, uid: u32, id: JobId, run: Millis) {
        let Some(line) = self.of.get_mut(&uid) else { return };
        let mut asked = line.asked.iter_mut();
        // A job that was held is asked again when it is released.
        let Some(asked) = asked.find(|asked| asked.id == id && !asked.over) else { return };
        let off = asked.ask.run.0.abs_diff(run.0);
        line.news = line.news.saturating_add(off.saturating_mul(asked.ask.wanted as u64));
        (asked.ask.run, asked.over) = (run, true);
    }

    /// The bounds of a user's jobs by the present estimates of their run times; none where these have hardly changed. `told`: the estimate for a
    /// job, and its bound so far.
    pub(super) fn again(
        &mut self,
        uid: u32,
        now: Millis,
        told: impl Fn(JobId) -> Option<(Millis, Option<Millis>)>,
    ) -> Vec<(JobId, Millis)> {
        let clock = Millis(now.0.saturating_sub(self.lag(uid, now).0));
        let Some(line) = self.of.get_mut(&uid) else { return Vec::new() };
        if line.asked.is_empty() || line.news == 0 || line.news.saturating_mul(NEWS) < line.expected {
            return Vec::new();
        }
        for asked in line.asked.iter_mut().filter(|asked| !asked.over) {
            let Some((run, due)) = told(asked.id) else { continue };
            asked.ask.run = run;
            asked.passed |= due.is_some_and(|due| due <= clock);
        }
        while line.asked.front().is_some_and(|first| first.over) {
            line.settle_first();
        }
        line.shadow = line.before.clone();
        (line.expected, line.news) = (line.asked.iter().map(Asked::takes).fold(0, u64::saturating_add), 0);
        let Line { asked, shadow, .. } = line;
        asked.iter().filter_map(|asked| Some((asked.id, asked.bound(shadow)?))).collect()
    }
}

impl Line {
    /// The bound of the first job does not move any more: its place in the shadow is fixed.
    fn settle_first(&mut self) {
        if let Some(first) = self.asked.pop_front() {
            self.expected = self.expected.saturating_sub(first.takes());
            first.bound(&mut self.before);
        }
    }
}

/// A job, and what its bound was made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Asked {
    id: JobId,
    /// When it came, on its user's clock.
    clock: Millis,
    ask: Ask,
    /// The user's share then, and the shares of the others whose jobs waited.
    share: u32,
    others: u64,
    /// Whether it is over: `ask.run` is then what it took.
    over: bool,
    /// A bound of it has passed: it has no [`SLACK`] any more, else each longer run of another would give it some anew.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    passed: bool,
}

impl Asked {
    /// GPU-milliseconds.
    const fn takes(&self) -> u64 {
        self.ask.run.0.saturating_mul(self.ask.wanted as u64)
    }

    /// The bound on its start, after the jobs before it, and its place in the shadow. `None`: there are too few GPUs.
    fn bound(&self, shadow: &mut Shadow) -> Option<Millis> {
        let (Ask { gpus, wanted, run, stretch }, share) = (self.ask, self.share);
        let start = shadow.start(self.clock, gpus, wanted, run)?;
        let wait = u128::from(start.since(self.clock).0) * u128::from(stretch) / u128::from(Fraction::ONE.0);
        // The user's jobs have more GPUs in the shadow than the user's part of them: with that part they would run for
        // longer than they will. What counts is when they would end. In real time that is `run * (busy * all - part) / part` later, and
        // on this clock, which goes by `share / all`, the share cancels.
        let (part, all) = (gpus as u128 * u128::from(share), u128::from(self.others + u64::from(share)));
        let busy = if self.others == 0 { 0 } else { shadow.busy(start) };
        let longer =
            (busy as u128 * all).saturating_sub(part) * u128::from(run.0) / (gpus as u128 * all).max(1);
        // One that would start at once does so here.
        let exact = wait == 0 || self.passed;
        let one_in = if self.others == 0 { SLACK } else { SLACK_AMONG_USERS };
        let slack = if exact { 0 } else { u128::from(shadow.over_in(self.clock).0 / one_in) };
        Some(self.clock + Millis(u64::try_from(wait + longer + slack).unwrap_or(u64::MAX)))
    }
}

/// What a job asks of its user's shadow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ask {
    /// GPUs that there are.
    pub(super) gpus: usize,
    /// GPUs that it takes.
    pub(super) wanted: usize,
    /// How long it is expected to run.
    pub(super) run: Millis,
    /// The bound over the wait in the shadow, basis points.
    pub(super) stretch: u32,
}

/// The GPUs of the shadow.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
struct Shadow {
    /// From when on GPUs are free, and how many.
    free: BTreeMap<Millis, usize>,
    /// Start of the job before.
    last: Millis,
}

impl Shadow {
    fn is_none(&self) -> bool {
        self.free.is_empty()
    }

    /// Whether it says no more than a new one would.
    fn is_over(&self, now: Millis) -> bool {
        self.last <= now && self.free.last_key_value().is_none_or(|(until, _)| *until <= now)
    }

    /// Time until all GPUs are free.
    fn over_in(&self, now: Millis) -> Millis {
        self.free.last_key_value().map_or(Millis::ZERO, |(until, _)| until.since(now))
    }

    /// GPUs that are busy just after a time.
    fn busy(&self, at: Millis) -> usize {
        self.free.range(Millis(at.0.saturating_add(1))..).map(|(_, gpus)| gpus).sum()
    }

    /// There are so many GPUs now: new ones are free, and of those that are gone the busiest go.
    fn resize(&mut self, gpus: usize, now: Millis) {
        let have: usize = self.free.values().sum();
        if have < gpus {
            *self.free.entry(now).or_default() += gpus - have;
        }
        let mut surplus = have.saturating_sub(gpus);
        while let Some(mut busiest) = self.free.last_entry().filter(|_| surplus > 0) {
            let gone = surplus.min(*busiest.get());
            surplus -= gone;
            *busiest.get_mut() -= gone;
            if *busiest.get() == 0 {
                busiest.remove();
            }
        }
    }

    /// When a job starts here that comes now and takes `wanted` of the `gpus` for so long; `None`: there are too few.
    fn start(&mut self, now: Millis, gpus: usize, wanted: usize, run: Millis) -> Option<Millis> {
        if wanted == 0 || wanted > gpus {
            return None;
        }
        self.resize(gpus, now);
        let mut left = wanted;
        let mut start = now.max(self.last);
        while let Some(mut first) = self.free.first_entry().filter(|_| left > 0) {
            let taken = left.min(*first.get());
            left -= taken;
            start = start.max(*first.key());
            *first.get_mut() -= taken;
            if *first.get() == 0 {
                first.remove();
            }
        }
        *self.free.entry(start + run).or_default() += wanted;
        self.last = start;
        Some(start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_go_one_after_the_other_and_none_overtakes() {
        let mut shadow = Shadow::default();
        let mut start =
            |now, wanted, run| shadow.start(Millis(now), 2, wanted, Millis(run)).map(|start| start.0);
        assert_eq!(start(0, 1, 100), Some(0));
        assert_eq!(start(0, 1, 30), Some(0));
        // Two GPUs are free at 100 only; the next one waits behind that job although a GPU is idle.
        assert_eq!(start(5, 2, 10), Some(100));
        assert_eq!(start(6, 1, 10), Some(110));
        assert_eq!(start(500, 1, 10), Some(500));
        assert_eq!((start(500, 3, 10), start(500, 0, 10)), (None, None));
    }

    fn ask(wanted: usize, run: u64) -> Ask {
        Ask { gpus: 2, wanted, run: Millis(run), stretch: Fraction::ONE.0 }
    }

    #[test]
    fn one_user_alone_has_the_common_clock() {
        let (mut shadows, mut shadow) = (Shadows::default(), Shadow::default());
        for (now, wanted, run) in [(0, 1, 100), (0, 1, 30), (5, 2, 10), (6, 1, 10), (500, 1, 10)] {
            let now = Millis(now);
            let due = shadows.due(7, 3, now, JobId(1), ask(wanted, run));
            shadows.enter(7, now, 3);
            let start = shadow.start(now, 2, wanted, Millis(run));
            // A twentieth of what has come, for the user who has to wait.
            let slack = |start: Millis| if start > now { shadow.over_in(now).0 / SLACK } else { 0 };
            assert_eq!(due, start.map(|start| start + Millis(slack(start))));
        }
        assert_eq!(shadows.lag(7, Millis(10_000)), Millis::ZERO);
    }

    #[test]
    fn clocks_of_several_go_by_their_shares() {
        let mut shadows = Shadows::default();
        shadows.enter(1, Millis(0), 1);
        shadows.enter(2, Millis(1000), 3);
        let lags = |shadows: &Shadows, at| (shadows.lag(1, Millis(at)).0, shadows.lag(2, Millis(at)).0);
        assert_eq!(lags(&shadows, 1000), (0, 0));
        // Three quarters of the time are the other's, and one quarter.
        assert_eq!(lags(&shadows, 5000), (3000, 1000));
        assert_eq!(shadows.after(1, Millis(5000), Millis(100)), Some(Millis(5400)));
        shadows.leave(2, Millis(5000));
        assert_eq!(lags(&shadows, 9000), (3000, 1000));
        assert_eq!(shadows.after(1, Millis(9000), Millis(100)), Some(Millis(9100)));
        shadows.forget(Millis(9000), |_| false);
        assert_eq!(lags(&shadows, 9000), (3000, 0));
        shadows.leave(1, Millis(9000));
        shadows.forget(Millis(20_000), |_| false);
        assert_eq!(shadows, Shadows::default());
    }

    #[test]
    fn a_clock_that_stands_is_no_competitor_and_goes_on_where_it_stood() {
        let mut shadows = Shadows::default();
        shadows.enter(1, Millis(0), 1);
        shadows.enter(2, Millis(0), 1);
        assert!(shadows.stand(Millis(1000), |uid| uid == 2).is_empty());
        // The first has all of the GPUs, and jobs of the second that come do not wait for them.
        shadows.enter(2, Millis(2000), 1);
        assert_eq!((shadows.lag(1, Millis(3000)), shadows.lag(2, Millis(3000))), (Millis(500), Millis(2500)));
        assert_eq!(shadows.after(1, Millis(3000), Millis(100)), Some(Millis(3100)));
        assert_eq!(shadows.after(2, Millis(3000), Millis(100)), None);
        assert_eq!(shadows.stand(Millis(4000), |_| false), [2]);
        shadows.enter(2, Millis(4000), 1);
        assert_eq!(
            (shadows.lag(1, Millis(5000)), shadows.lag(2, Millis(5000))),
            (Millis(1000), Millis(4000))
        );
        assert_eq!(shadows.after(2, Millis(5000), Millis(100)), Some(Millis(5200)));
        // Where users have other quotas none stands, until that is looked at.
        assert!(shadows.stand(Millis(5000), |uid| uid == 2).is_empty());
        shadows.stop(Millis(6000));
        assert_eq!((shadows.lag(2, Millis(6000)), shadows.stands(2)), (Millis(5000), false));
    }

    #[test]
    fn who_has_more_of_the_gpus_comes_to_be_before_who_has_less() {
        let mut shadows = Shadows::default();
        shadows.enter(1, Millis(0), 1);
        assert!(shadows.go_alike());
        shadows.enter(2, Millis(0), 3);
        assert!(!shadows.go_alike());
        assert_eq!(shadows.overtakes(2, 1, Millis(1000), Millis(99)), None);
        // Each second the bounds of the first move on by three quarters and those of the second by one.
        let then = shadows.overtakes(1, 2, Millis(1000), Millis(99)).unwrap();
        assert_eq!(then, Millis(1200));
        let at = |uid, due, at| due + shadows.lag(uid, Millis(at)).0;
        // So far the one is at 850, and the other 99 later.
        let (sooner, later) = (100, 699);
        assert_eq!((at(1, sooner, 1000), at(2, later, 1000)), (850, 949));
        assert!(at(1, sooner, then.0) > at(2, later, then.0));
        assert!(at(1, sooner, then.0 - 4) <= at(2, later, then.0 - 4));
        shadows.leave(1, Millis(1000));
        assert!(shadows.go_alike());
    }

    #[test]
    fn a_long_line_of_another_user_moves_nobodys_bound() {
        let mut shadows = Shadows::default();
        for _ in 0..1000 {
            shadows.due(1, 1, Millis(0), JobId(1), ask(1, 100)).unwrap();
            shadows.enter(1, Millis(0), 1);
        }
        // One GPU is the part of the second user.
        assert_eq!(shadows.due(2, 1, Millis(10), JobId(2), ask(1, 100)), Some(Millis(10)));
        // Its second job would find that one busy, and end at 210, so that it has to start by 110: then its clock, which goes half
        // as fast, says 60.
        assert_eq!(shadows.due(2, 1, Millis(10), JobId(2), ask(1, 100)), Some(Millis(60)));
        // With one GPU for two it would end then as well.
        assert_eq!(shadows.due(3, 1, Millis(10), JobId(3), ask(2, 100)), Some(Millis(60)));
    }

    #[test]
    fn bounds_move_with_what_is_learned_and_not_with_who_comes_later() {
        let mut shadows = Shadows::default();
        let due = |shadows: &mut Shadows, id| {
            let due = shadows.due(1, 1, Millis(0), JobId(id), Ask { gpus: 1, ..ask(1, 100) });
            shadows.enter(1, Millis(0), 1);
            due.unwrap().0
        };
        let bounds = |moved: Vec<(JobId, Millis)>| {
            moved.into_iter().map(|(id, due)| (id.0, due.0)).collect::<Vec<_>>()
        };
        // With a twentieth of the 200 and 300 that it is until all are over.
        assert_eq!([1, 2, 3].map(|id| due(&mut shadows, id)), [0, 110, 215]);
        assert_eq!(
            bounds(shadows.again(1, Millis(0), |_| Some((Millis(900), None)))),
            [],
            "nothing was heard of"
        );
        // A fiftieth of what is expected is no news yet; then the second job takes longer, and the first is over.
        shadows.heard(1, 1, Millis(100), Millis(106));
        let run = |id: JobId| (id == JobId(2)).then_some((Millis(150), None));
        assert_eq!(bounds(shadows.again(1, Millis(0), run)), []);
        shadows.over(1, JobId(1), Millis(300));
        assert_eq!(bounds(shadows.again(1, Millis(0), run)), [(2, 322), (3, 477)]);
        // The first is settled: what is said of it later counts for nothing.
        shadows.over(1, JobId(1), Millis(999));
        shadows.over(1, JobId(2), Millis(20));
        assert_eq!(bounds(shadows.again(1, Millis(0), |_| None)), [(3, 341)]);
        assert_eq!(due(&mut shadows, 4), 446);
        // A bound that has passed is not put off by a part of what has come, only by runs that take longer.
        let passed = |id: JobId| Some((Millis(100), Some(Millis(400)).filter(|_| id == JobId(3))));
        shadows.heard(1, 1, Millis(0), Millis(500));
        assert_eq!(bounds(shadows.again(1, Millis(400), passed)), [(3, 320), (4, 446)]);
        shadows.heard(1, 1, Millis(0), Millis(500));
        assert_eq!(
            bounds(shadows.again(1, Millis(400), |_| Some((Millis(100), None)))),
            [(3, 320), (4, 446)]
        );
        // All are over, and no trace of them is left but in the shadow.
        for id in [3, 4] {
            shadows.over(1, JobId(id), Millis::ZERO);
        }
        assert_eq!(bounds(shadows.again(1, Millis(0), |_| None)), []);
        assert_eq!((shadows.of[&1].asked.len(), due(&mut shadows, 5)), (0, 341));
    }

    #[test]
    fn of_very_many_jobs_the_first_keep_their_bounds() {
        let mut shadows = Shadows::default();
        for id in 0..MOST_ASKED as u64 + 10 {
            shadows.due(1, 1, Millis(0), JobId(id), ask(1, 100)).unwrap();
        }
        let line = &shadows.of[&1];
        assert_eq!((line.asked.len(), line.asked[0].id), (MOST_ASKED, JobId(10)));
        assert_eq!(line.expected, 100 * MOST_ASKED as u64);
        shadows.over(1, JobId(10), Millis(1_000_000));
        let moved = shadows.again(1, Millis(0), |_| None);
        assert_eq!((moved.len(), moved[0]), (MOST_ASKED - 1, (JobId(11), Millis(500 + 1_000_500 / SLACK))));
    }

    #[test]
    fn shadows_of_an_older_carma_go_on() {
        let old = r#"{"of":{"7":{"shadow":{"free":{"400":1,"900":1},"last":400},"lag":0}},"turns":{"times":{"at":0,"alone":0,"shared":0},"users":0,"shares":0}}"#;
        let mut shadows: Shadows = serde_json::from_str(old).unwrap();
        assert_eq!(shadows.due(7, 1, Millis(500), JobId(9), ask(1, 100)), Some(Millis(500)));
        assert_eq!(shadows.due(7, 1, Millis(500), JobId(10), ask(1, 100)), Some(Millis(620)));
        shadows.over(7, JobId(9), Millis(350));
        assert_eq!(shadows.again(7, Millis(0), |_| None), [(JobId(10), Millis(872))]);
        let text = serde_json::to_string(&shadows).unwrap();
        assert_eq!(serde_json::from_str::<Shadows>(&text).unwrap(), shadows);
    }

    #[test]
    fn gpus_come_and_go() {
        let mut shadow = Shadow::default();
        assert_eq!(shadow.start(Millis(0), 1, 1, Millis(100)), Some(Millis(0)));
        assert_eq!(shadow.start(Millis(1), 2, 1, Millis(50)), Some(Millis(1)));
        // The busier one is gone.
        assert_eq!(shadow.start(Millis(2), 1, 1, Millis(10)), Some(Millis(51)));
    }
}

//! The shadow clocks: when each job would start if every job had its GPUs alone and a user's all went in the order of
//! submission, each for as long as it is expected to run.
//!
//! That time is the bound on a job's start where jobs go by length ([`crate::policy::Line::is_by_length`]). It is
//! fixed at submission on the clock of the job's user, so that no later job moves it. While a user's jobs wait alone, that
//! clock is the common one. While jobs of several users wait, each user's clock goes as fast as the user's share of the
//! shares of all of them says: every user's line moves on as if the user had that part of the GPUs, whoever came first and
//! however long the lines of the others are (fair queueing: Parekh and Gallager 1993, section II).

use crate::units::{Fraction, Millis};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Bits behind the point of [`Turns::shared`].
const POINT: u32 = 20;

/// Times that are common to all who wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
struct Times {
    /// Now.
    at: Millis,
    /// How long one user or none has waited.
    alone: Millis,
    /// How far the clock of a user with a share of 1 has gone while several have; milliseconds in fixed point.
    shared: u64,
}

/// Who waits, and how far their clocks have gone.
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
    /// How far the user's clock is behind the common one, as of `since`.
    lag: Millis,
    /// The times when jobs of the user began to wait, and the user's share. `None`: none waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    since: Option<(Times, u32)>,
}

impl Line {
    fn lag(&self, turns: Turns, now: Millis) -> Millis {
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

    /// When a user's clock will have gone on by so much, if the same users wait until then.
    pub(super) fn after(&self, uid: u32, now: Millis, by: Millis) -> Millis {
        match self.of.get(&uid).and_then(|line| line.since) {
            Some((_, share)) if self.turns.users > 1 => {
                let span = u128::from(by.0) * u128::from(self.turns.shares);
                now + Millis(u64::try_from(span.div_ceil(u128::from(share.max(1)))).unwrap_or(u64::MAX))
            }
            _ => now + by,
        }
    }

    /// Jobs of a user wait from now on.
    pub(super) fn enter(&mut self, uid: u32, now: Millis, share: u32) {
        let line = self.of.entry(uid).or_default();
        if line.since.is_none() {
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

    /// Nobody's jobs are in these lines any more, or users have other shares: all leave.
    pub(super) fn stop(&mut self, now: Millis) {
        let users: Vec<u32> = self.of.keys().copied().collect();
        users.into_iter().for_each(|uid| self.leave(uid, now));
    }

    /// Forgets the shadows that are behind the clock, of users without jobs.
    pub(super) fn forget(&mut self, now: Millis, has_jobs: impl Fn(u32) -> bool) {
        self.of.retain(|uid, line| {
            let past = Millis(now.0.saturating_sub(line.lag.0));
            has_jobs(*uid) || line.since.is_some() || !line.shadow.is_over(past)
        });
        // Without lines nothing of this is stored.
        if self.of.is_empty() {
            self.turns = Turns::default();
        }
    }

    /// The bound on the start of a job that comes now, on its user's clock. `stretch`: the bound over the wait in the shadow,
    /// basis points. `None`: there are too few GPUs.
    pub(super) fn due(&mut self, uid: u32, share: u32, now: Millis, job: Ask) -> Option<Millis> {
        let Ask { gpus, wanted, run, stretch } = job;
        let lag = self.lag(uid, now);
        let others =
            self.turns.shares - self.of.get(&uid).and_then(|line| line.since).map_or(0, |s| u64::from(s.1));
        let line = self.of.entry(uid).or_default();
        let clock = Millis(now.0.saturating_sub(lag.0));
        let start = line.shadow.start(clock, gpus, wanted, run)?;
        let wait = u128::from(start.since(clock).0) * u128::from(stretch) / u128::from(Fraction::ONE.0);
        // The user's jobs have more GPUs in the shadow than the user's part of them: with that part they would run for
        // longer than they will. What counts is when they would end.
        let (part, all) = (gpus as u128 * u128::from(share), u128::from(others + u64::from(share)));
        let busy = if others == 0 { 0 } else { line.shadow.busy(start) };
        let longer = (busy as u128 * all).saturating_sub(part) * u128::from(run.0) / part.max(1);
        Some(clock + Millis(u64::try_from(wait + longer).unwrap_or(u64::MAX)))
    }
}

/// What a job asks of its user's shadow.
#[derive(Debug, Clone, Copy)]
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
            let due = shadows.due(7, 3, now, ask(wanted, run));
            shadows.enter(7, now, 3);
            assert_eq!(due, shadow.start(now, 2, wanted, Millis(run)));
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
        assert_eq!(shadows.after(1, Millis(5000), Millis(100)), Millis(5400));
        shadows.leave(2, Millis(5000));
        assert_eq!(lags(&shadows, 9000), (3000, 1000));
        assert_eq!(shadows.after(1, Millis(9000), Millis(100)), Millis(9100));
        shadows.forget(Millis(9000), |_| false);
        assert_eq!(lags(&shadows, 9000), (3000, 0));
        shadows.leave(1, Millis(9000));
        shadows.forget(Millis(20_000), |_| false);
        assert_eq!(shadows, Shadows::default());
    }

    #[test]
    fn a_long_line_of_another_user_moves_nobodys_bound() {
        let mut shadows = Shadows::default();
        for _ in 0..1000 {
            shadows.due(1, 1, Millis(0), ask(1, 100)).unwrap();
            shadows.enter(1, Millis(0), 1);
        }
        // One GPU is the part of the second user.
        assert_eq!(shadows.due(2, 1, Millis(10), ask(1, 100)), Some(Millis(10)));
        // Its second job would find that one busy.
        assert_eq!(shadows.due(2, 1, Millis(10), ask(1, 100)), Some(Millis(110)));
        // With one GPU for two it would end later.
        assert_eq!(shadows.due(3, 1, Millis(10), ask(2, 100)), Some(Millis(110)));
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

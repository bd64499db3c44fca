//! Windows in which a task had not warmed up: they say nothing of its neighbours.

use super::{Combination, median};
use crate::share::Mode;
use std::collections::BTreeMap;

/// A task alone in a session, under its sharing.
type Key<'a> = (&'a str, Mode, u32);

/// When tasks had warmed up, by their solo windows without thread limits.
#[derive(Debug, Clone, Default)]
pub struct Warm<'a> {
    /// Of tasks that began slowly: when the first window at full speed began, seconds into the session.
    since: BTreeMap<Key<'a>, f64>,
}

impl<'a> Warm<'a> {
    /// Of the windows of a file. Where the first solo windows of a session are slower than half its median, the task was warm from the first
    /// one on that is not. (Decoders that had yet to give their first whole answer ran at a tenth of their speed.)
    #[must_use]
    pub fn of(windows: &'a [Combination]) -> Self {
        let mut alone: BTreeMap<Key<'a>, Vec<(f64, f64)>> = BTreeMap::new();
        for window in windows.iter().filter(|w| w.failed.is_none() && !w.is_split()) {
            if let ([task], Some(rate)) = (&window.members[..], window.rates.first()) {
                let key = (task.as_str(), window.sharing, window.session);
                alone.entry(key).or_default().push((window.at_s, *rate));
            }
        }
        let since = alone.into_iter().filter_map(|(key, windows)| {
            let usual = median(windows.iter().map(|(_, rate)| *rate).collect())?;
            let first = |slow: bool| {
                let here = windows.iter().filter(|(_, rate)| (*rate < 0.5 * usual) == slow);
                here.map(|(at, _)| *at).fold(f64::INFINITY, f64::min)
            };
            let warm = first(false);
            (first(true) < warm).then_some((key, warm))
        });
        Self { since: since.collect() }
    }

    /// Whether all members had warmed up when the window began.
    #[must_use]
    pub fn all(&self, window: &Combination) -> bool {
        self.cold(window).next().is_none()
    }

    /// Members that had not.
    pub fn cold<'w>(&self, window: &'w Combination) -> impl Iterator<Item = &'w str> {
        window.members.iter().map(String::as_str).filter(|task| {
            let since = self.since.get(&(*task, window.sharing, window.session));
            since.is_some_and(|since| window.at_s < *since)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(members: &[&str], at_s: f64, rate: f64) -> Combination {
        let members: Vec<String> = members.iter().map(|m| (*m).to_owned()).collect();
        Combination { rates: vec![rate; members.len()], members, at_s, ..Combination::default() }
    }

    #[test]
    fn windows_before_the_first_at_full_speed_are_cold() {
        let alone =
            [(1.0, 1.0), (9.0, 10.0), (20.0, 10.0), (30.0, 3.0)].map(|(at, rate)| window(&["a"], at, rate));
        let steady = [(2.0, 5.0), (25.0, 5.0)].map(|(at, rate)| window(&["b"], at, rate));
        let windows: Vec<Combination> = alone.into_iter().chain(steady).collect();
        let warm = Warm::of(&windows);
        assert_eq!(warm.cold(&window(&["b", "a"], 5.0, 1.0)).collect::<Vec<_>>(), ["a"]);
        // A slow window later is a slow window.
        assert!(warm.all(&window(&["b", "a"], 9.0, 1.0)) && warm.all(&window(&["a"], 30.0, 1.0)));
        assert!(warm.all(&window(&["b", "c"], 0.0, 1.0)));
        let elsewhere = Combination { session: 1, ..window(&["a"], 5.0, 1.0) };
        assert!(warm.all(&elsewhere));
    }
}

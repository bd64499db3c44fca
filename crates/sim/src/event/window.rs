//! What a monitor's window would show of a GPU whose activity is constant between events.
//!
//! The monitor of the daemon keeps 30 s of samples. Here the activity is known exactly, so the same
//! statistics come from the few stretches of constant activity in the window, as if sampled once a
//! second: nothing is sampled, and a GPU where nothing changes costs nothing.

use carma_core::units::Fraction;
use carma_core::windows::{Summary, WindowSummary};
use std::collections::VecDeque;

/// SMACT, SMOCC, DRAMA.
pub(crate) type Levels = [f64; 3];

/// One sample a second, as DCGM and NVML monitors take them.
const STEP_MS: u64 = 1000;

/// Activity of one GPU over the last while.
#[derive(Debug, Clone, Default)]
pub(crate) struct History {
    /// From when on the levels held, ascending. Before the first the GPU was idle.
    points: VecDeque<(u64, Levels)>,
}

impl History {
    /// From now on the activity is this. Forgets what `span` ago is over.
    pub(crate) fn push(&mut self, now: u64, levels: Levels, span: u64) {
        if self.points.back().is_some_and(|(_, last)| *last == levels) {
            return;
        }
        while self.points.len() > 1 && self.points[1].0 + span <= now {
            self.points.pop_front();
        }
        match self.points.back_mut() {
            Some(last) if last.0 == now => last.1 = levels,
            _ => self.points.push_back((now, levels)),
        }
    }

    /// Whether the whole window shows one level.
    pub(crate) fn is_steady(&self, now: u64, span: u64) -> bool {
        self.points.back().is_none_or(|(since, _)| since + span <= now)
    }

    /// The statistics of a window of `span` at this time.
    pub(crate) fn summary(&self, now: u64, span: u64) -> WindowSummary {
        let mut runs = Runs::default();
        let samples = (span / STEP_MS).max(1);
        // Samples at now, now - 1 s, ...: the oldest comes first.
        let mut at = 0; // of `points`
        let mut level = [0.0; 3];
        let mut left = samples;
        while left > 0 {
            // Before the beginning of time nothing ran.
            let back = (left - 1) * STEP_MS;
            let time = now.checked_sub(back);
            while let (Some(time), Some((since, next))) = (time, self.points.get(at)) {
                if *since > time {
                    break;
                }
                level = *next;
                at += 1;
            }
            // All samples until the next point show the same.
            let until = self.points.get(at).map_or(u64::MAX, |(since, _)| *since);
            let run = match time {
                None => left - (now / STEP_MS + 1),
                Some(_) if until == u64::MAX || until > now => left,
                Some(time) => (until - time).div_ceil(STEP_MS).clamp(1, left),
            };
            runs.push(run, level);
            left -= run;
        }
        let [smact, smocc, drama] = [0, 1, 2].map(|metric| runs.summary(metric, samples));
        WindowSummary { smact: Some(smact), smocc: Some(smocc), drama: Some(drama) }
    }
}

/// Samples in stretches of one level.
#[derive(Debug, Default)]
struct Runs(Vec<(u64, Levels)>);

impl Runs {
    fn push(&mut self, count: u64, levels: Levels) {
        match self.0.last_mut() {
            Some((n, last)) if *last == levels => *n += count,
            _ => self.0.push((count, levels)),
        }
    }

    /// The same statistics as [`carma_core::windows`] computes from single samples.
    fn summary(&self, metric: usize, samples: u64) -> Summary {
        let f = |v: f64| Fraction::from_f64(v).unwrap_or_default();
        let shown = u32::try_from(samples).unwrap_or(u32::MAX);
        if let [(_, levels)] = self.0.as_slice() {
            let v = f(levels[metric]);
            return Summary {
                samples: shown,
                mean: v,
                median: v,
                p95: v,
                ema: v,
                ema_half: v,
                cv: Fraction::default(),
                slope_micro_per_s: 0,
            };
        }
        let n = samples as f64;
        let runs = || self.0.iter().map(|(count, levels)| (*count as f64, levels[metric]));
        let mean = runs().map(|(c, v)| c * v).sum::<f64>() / n;
        let variance = runs().map(|(c, v)| c * (v - mean) * (v - mean)).sum::<f64>() / n;
        let first = self.0.first().map_or(0.0, |(_, levels)| levels[metric]);
        // Counts are at most those of a window.
        let counts = || self.0.iter().map(|(count, _)| i32::try_from(*count).unwrap_or(i32::MAX));
        let ema = |alpha: f64| {
            runs().zip(counts()).fold(first, |e, ((_, v), c)| v + (e - v) * (1.0 - alpha).powi(c))
        };
        // Sum over a run of (t - mean t) * (v - mean v), t in whole seconds from the first sample.
        let mean_t = (n - 1.0) / 2.0;
        let mut start = 0.0;
        let mut num = 0.0;
        for (c, v) in runs() {
            num += c * (start + (c - 1.0) / 2.0 - mean_t) * (v - mean);
            start += c;
        }
        let den = n * (n * n - 1.0) / 12.0;
        let slope = if den > 0.0 { num / den } else { 0.0 };
        let mut sorted: Vec<(u64, f64)> = self.0.iter().map(|(c, levels)| (*c, levels[metric])).collect();
        sorted.sort_by(|a, b| a.1.total_cmp(&b.1));
        Summary {
            samples: shown,
            mean: f(mean),
            median: f(percentile(&sorted, samples, 0.5)),
            p95: f(percentile(&sorted, samples, 0.95)),
            ema: f(ema(2.0 / (n + 1.0))),
            ema_half: f(ema(0.5)),
            cv: f(if mean > 0.0 { variance.sqrt() / mean } else { 0.0 }),
            slope_micro_per_s: (slope * 1e6).round() as i64,
        }
    }
}

/// Linear interpolation between the closest ranks, as in [`carma_core::windows`].
fn percentile(sorted: &[(u64, f64)], samples: u64, q: f64) -> f64 {
    let rank = q * (samples - 1) as f64;
    let at = |rank: u64| {
        let mut seen = 0;
        for (count, value) in sorted {
            seen += count;
            if rank < seen {
                return *value;
            }
        }
        sorted.last().map_or(0.0, |(_, value)| *value)
    };
    let (low, high) = (at(rank.floor() as u64), at(rank.ceil() as u64));
    low + (high - low) * (rank - rank.floor())
}

#[cfg(test)]
mod tests {
    use super::*;
    use carma_core::reading::Activity;
    use carma_core::units::Millis;
    use carma_core::windows::GpuWindows;
    use proptest::prelude::*;

    /// The core's own windows, fed once a second.
    fn sampled(points: &[(u64, f64)], now: u64, span: u64) -> WindowSummary {
        let mut windows = GpuWindows::new(Millis(span));
        let samples = span / STEP_MS;
        // A clock that starts far before the beginning, since the windows know no negative time.
        let shift = 1_000_000;
        for back in (0..samples).rev() {
            let time = (now + shift) - back * STEP_MS;
            let level = points.iter().rev().find(|(since, _)| since + shift <= time).map_or(0.0, |p| p.1);
            let level = Fraction::from_f64(level);
            let activity = Activity { smact: level, smocc: level, drama: level, ..Activity::default() };
            windows.push(Millis(time), &activity);
        }
        windows.summary()
    }

    proptest! {
        #[test]
        fn it_shows_what_the_core_would_have_sampled(
            mut points in proptest::collection::vec((0u64..100_000, 0u32..=100), 0..8),
            after in 0u64..60_000,
        ) {
            points.sort_by_key(|p| p.0);
            points.dedup_by_key(|p| p.0);
            let points: Vec<(u64, f64)> = points.into_iter().map(|(t, v)| (t, f64::from(v) / 100.0)).collect();
            let mut history = History::default();
            for (at, v) in &points {
                history.push(*at, [*v; 3], 30_000);
            }
            let now = points.last().map_or(0, |p| p.0) + after;
            let exact = history.summary(now, 30_000);
            let reference = sampled(&points, now, 30_000);
            for (a, b) in [(exact.smact, reference.smact), (exact.drama, reference.drama)] {
                let (a, b) = (a.unwrap(), b.unwrap());
                prop_assert_eq!(a.samples, b.samples);
                for (x, y) in [(a.mean, b.mean), (a.median, b.median), (a.p95, b.p95), (a.ema, b.ema),
                    (a.ema_half, b.ema_half), (a.cv, b.cv)] {
                    prop_assert!(x.0.abs_diff(y.0) <= 2, "{a:?} {b:?}");
                }
                prop_assert!(a.slope_micro_per_s.abs_diff(b.slope_micro_per_s) <= 2, "{a:?} {b:?}");
            }
        }
    }

    #[test]
    fn a_window_is_steady_once_the_last_change_has_left_it() {
        let mut history = History::default();
        assert!(history.is_steady(0, 30_000));
        history.push(5_000, [0.5; 3], 30_000);
        assert!(!history.is_steady(34_999, 30_000));
        assert!(history.is_steady(35_000, 30_000));
        assert_eq!(history.summary(35_000, 30_000).smact.unwrap().mean, Fraction::percent(50));
    }
}

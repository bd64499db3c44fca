//! What is expected of a run, and what is left of one that has run for a while.

use crate::Level;

/// What is expected of a run alone on its GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forecast {
    /// With 10 % probability it is over by then, seconds.
    pub low_s: u64,
    /// Half of such runs are over by then, seconds.
    pub median_s: u64,
    /// With 90 % probability it is over by then, seconds.
    pub high_s: u64,
    /// The narrowest class with a run that came to its end.
    pub level: Level,
    /// How many such runs are known there.
    pub runs: u32,
}

/// Shares of runs that are over at the three times.
const OVER: [f64; 3] = [0.1, 0.5, 0.9];

/// What is left of a run that has not ended within a time, as the median of those that have not either, seconds: from its
/// 10 % quantile, median and 90 % quantile. Between them the share of runs that are over grows with the logarithm of time;
/// beyond the last it falls off as a power of time (Pareto) that goes through the median and the 90 % quantile. 0 where all
/// runs took the same time and this one is beyond it.
#[must_use]
pub fn left_s([low_s, median_s, high_s]: [u64; 3], elapsed_s: u64) -> u64 {
    let low = low_s.max(1) as f64;
    let median = (median_s as f64).max(low);
    let high = (high_s as f64).max(median);
    let elapsed = elapsed_s as f64;
    let points = [low, median, high].map(f64::ln);
    let end = if elapsed >= high {
        // S(t) = .1 (t / high)^-a is halved at t 2^(1/a).
        elapsed * 2.0_f64.powf((high / median).ln() / 5.0_f64.ln())
    } else {
        let over = match elapsed {
            t if t < low => OVER[0] * t / low,
            t if t < median => between(t.ln(), [points[0], points[1]], [OVER[0], OVER[1]]),
            t => between(t.ln(), [points[1], points[2]], [OVER[1], OVER[2]]),
        };
        match f64::midpoint(1.0, over) {
            half if half <= OVER[2] => between(half, [OVER[1], OVER[2]], [points[1], points[2]]).exp(),
            half => high * (0.1 / (1.0 - half)).powf((high / median).ln() / 5.0_f64.ln()),
        }
    };
    (end - elapsed).max(0.0).round() as u64
}

/// A line through two points. Where the two lie on each other, the second.
fn between(x: f64, [x0, x1]: [f64; 2], [y0, y1]: [f64; 2]) -> f64 {
    if x1 > x0 { y0 + (y1 - y0) * ((x - x0) / (x1 - x0)).clamp(0.0, 1.0) } else { y1 }
}

impl Forecast {
    /// What is left after a time, see [`left_s`].
    #[must_use]
    pub fn left_s(&self, elapsed_s: u64) -> u64 {
        left_s([self.low_s, self.median_s, self.high_s], elapsed_s)
    }

    /// The same for a run that is ended at a limit.
    #[must_use]
    pub fn within(self, limit_s: Option<u64>) -> Self {
        let most = |seconds: u64| limit_s.map_or(seconds, |limit| seconds.min(limit.max(1)));
        Self { low_s: most(self.low_s), median_s: most(self.median_s), high_s: most(self.high_s), ..self }
    }

    /// What it rests on, for people.
    #[must_use]
    pub fn source(&self) -> String {
        let runs = if self.runs == 1 { "run" } else { "runs" };
        format!("{} {runs} of {}", self.runs, self.level)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_grows_where_runs_differ_and_ends_where_they_do_not() {
        let wide = [60, 600, 6000];
        // Before anything has passed, the median; then more than the median leaves.
        assert_eq!(left_s(wide, 0), 600);
        let left: Vec<u64> = [0, 60, 300, 600, 3000, 6000, 60_000].map(|t| left_s(wide, t)).to_vec();
        assert!(left.is_sorted(), "{left:?}");
        assert!(left[3] > 1000, "a run that is at its median has the longer half before it: {left:?}");
        let same = [600, 600, 600];
        assert_eq!([0, 200, 599, 600, 9000].map(|t| left_s(same, t)), [600, 400, 1, 0, 0]);
        // Numbers that no forecast has, from an older journal or another hand.
        assert_eq!(left_s([0, 0, 0], 0), 1);
        assert_eq!(left_s([9, 3, 1], 5), 4);
        assert!(left_s([1, u64::MAX, u64::MAX], u64::MAX) < u64::MAX);
    }

    #[test]
    fn a_limit_cuts_the_quantiles() {
        let forecast = Forecast { low_s: 10, median_s: 100, high_s: 1000, level: Level::User, runs: 1 };
        let within = forecast.within(Some(60));
        assert_eq!((within.low_s, within.median_s, within.high_s), (10, 60, 60));
        assert_eq!(forecast.within(None), forecast);
        assert_eq!(forecast.source(), "1 run of this user");
    }
}

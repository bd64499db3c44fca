//! What is left of a run that has gone on for a while.

/// Shares of runs that are over at the three times.
const OVER: [f64; 3] = [0.1, 0.5, 0.9];

/// What is left of a run that has not ended within a time, as the median of those that have not either, seconds: from its
/// 10 % quantile, median and 90 % quantile. Between them the share of runs that are over grows with the logarithm of time;
/// beyond the last it falls off as a power of time (Pareto) that goes through the median and the 90 % quantile. Where runs
/// differ little that says that one beyond the last is about over, however long it has gone on: as much as it is beyond the last is left at
/// least, up to half of what it has taken. Not 0 while it runs.
#[must_use]
pub fn left_s([low_s, median_s, high_s]: [u64; 3], elapsed_s: u64) -> u64 {
    let low = low_s.max(1) as f64;
    let median = (median_s as f64).max(low);
    let high = (high_s as f64).max(median);
    let elapsed = elapsed_s as f64;
    let points = [low, median, high].map(f64::ln);
    let end = if elapsed >= high {
        // S(t) = .1 (t / high)^-a is halved at t 2^(1/a).
        let falls_off = elapsed * 2.0_f64.powf((high / median).ln() / 5.0_f64.ln());
        falls_off.max(elapsed + (elapsed - high).min(elapsed / 2.0))
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
    (end - elapsed).max(1.0).round() as u64
}

/// A line through two points. Where the two lie on each other, the second.
fn between(x: f64, [x0, x1]: [f64; 2], [y0, y1]: [f64; 2]) -> f64 {
    if x1 > x0 { y0 + (y1 - y0) * ((x - x0) / (x1 - x0)).clamp(0.0, 1.0) } else { y1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_grows_where_runs_differ_and_beyond_all_of_them() {
        let wide = [60, 600, 6000];
        // Before anything has passed, the median; then more than the median leaves.
        assert_eq!(left_s(wide, 0), 600);
        let left: Vec<u64> = [0, 60, 300, 600, 3000, 6000, 60_000].map(|t| left_s(wide, t)).to_vec();
        assert!(left.is_sorted(), "{left:?}");
        assert!(left[3] > 1000, "a run that is at its median has the longer half before it: {left:?}");
        let same = [600, 600, 600];
        assert_eq!([0, 200, 599, 600].map(|t| left_s(same, t)), [600, 400, 1, 1]);
        assert_eq!([660, 900, 1200, 9000].map(|t| left_s(same, t)), [60, 300, 600, 4500]);
        // Numbers that no forecast has, from an older journal or another hand.
        assert_eq!(left_s([0, 0, 0], 0), 1);
        assert_eq!(left_s([9, 3, 1], 5), 4);
        assert!(left_s([1, u64::MAX, u64::MAX], u64::MAX) < u64::MAX);
    }
}

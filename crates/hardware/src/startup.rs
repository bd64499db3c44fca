//! How long a process takes to get going.

/// Seconds from start to the first GPU activity, as quantiles over tasks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Startup {
    /// The quickest.
    pub least_s: f64,
    /// Half of the tasks are quicker.
    pub median_s: f64,
    /// Nine of ten are quicker.
    pub p90_s: f64,
    /// Nineteen of twenty are quicker.
    pub p95_s: f64,
    /// The slowest.
    pub most_s: f64,
}

impl Startup {
    /// The time at a quantile from 0 to 1, seconds; linear between the known ones.
    #[must_use]
    pub fn at(&self, quantile: f64) -> f64 {
        let points = [
            (0.0, self.least_s),
            (0.5, self.median_s),
            (0.9, self.p90_s),
            (0.95, self.p95_s),
            (1.0, self.most_s),
        ];
        let mut from = points[0];
        for to in points {
            if quantile <= to.0 {
                let span = to.0 - from.0;
                let part = if span > 0.0 { ((quantile - from.0) / span).max(0.0) } else { 0.0 };
                return from.1 + (to.1 - from.1) * part;
            }
            from = to;
        }
        self.most_s
    }

    /// Its mean over tasks, seconds.
    #[must_use]
    pub fn mean_s(&self) -> f64 {
        // The mean of a piecewise linear quantile function: its trapezia.
        0.25 * (self.least_s + self.median_s)
            + 0.2 * (self.median_s + self.p90_s)
            + 0.025 * (self.p90_s + self.p95_s)
            + 0.025 * (self.p95_s + self.most_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_linear_between_known_ones() {
        let a100 = Startup { least_s: 4.0, median_s: 8.0, p90_s: 10.0, p95_s: 20.0, most_s: 60.0 };
        for (quantile, seconds) in [
            (-1.0, 4.0),
            (0.0, 4.0),
            (0.25, 6.0),
            (0.5, 8.0),
            (0.7, 9.0),
            (0.925, 15.0),
            (1.0, 60.0),
            (2.0, 60.0),
        ] {
            assert!((a100.at(quantile) - seconds).abs() < 1e-9, "{quantile}: {}", a100.at(quantile));
        }
        let steps = 100_000;
        let mean: f64 = (0..steps).map(|i| a100.at((f64::from(i) + 0.5) / f64::from(steps))).sum();
        assert!((a100.mean_s() - mean / f64::from(steps)).abs() < 1e-6);
    }
}

//! Windows of samples and the risk formulas computed from them.
//!
//! A ring of samples per GPU and metric lives where samples are taken (daemon or simulator); the
//! decisions see [`Summary`] values, in integers, so that the journal can hold what a decision used.
//! Formulas: CARMA's published source (arXiv 2508.19073).

use crate::reading::Activity;
use crate::units::{Fraction, Millis};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Metric that a gate can look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// SM active.
    Smact,
    /// SM occupancy.
    Smocc,
    /// DRAM active.
    Drama,
}

impl Metric {
    /// All, in the order of listings.
    pub const ALL: [Self; 3] = [Self::Smact, Self::Smocc, Self::Drama];

    /// The field's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Smact => "SMACT",
            Self::Smocc => "SMOCC",
            Self::Drama => "DRAMA",
        }
    }

    /// Picks the metric out of a reading.
    #[must_use]
    pub const fn of(self, activity: &Activity) -> Option<Fraction> {
        match self {
            Self::Smact => activity.smact,
            Self::Smocc => activity.smocc,
            Self::Drama => activity.drama,
        }
    }
}

/// Statistics of one metric over one window, in basis points.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Summary {
    /// Number of samples.
    pub samples: u32,
    /// Arithmetic mean.
    pub mean: Fraction,
    /// Median (linear interpolation).
    pub median: Fraction,
    /// 95th percentile (linear interpolation).
    pub p95: Fraction,
    /// Exponential moving average at the window's end, alpha = 2 / (samples + 1), seeded with the first sample.
    pub ema: Fraction,
    /// The same by time: each second it goes half of the way to its samples, which is alpha = 0.5 at one sample a second, as the
    /// monitors of the published policies take them.
    pub ema_half: Fraction,
    /// Coefficient of variation: population standard deviation over mean; 0 when the mean is 0.
    pub cv: Fraction,
    /// Least-squares slope in millionths per second.
    pub slope_micro_per_s: i64,
}

/// A formula that turns a window into one number on the scale of the metric. By name, as data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Risk {
    /// What CARMA executes: 0.20 mean + 0.20 median + 0.30 p95 + 0.10 p50 + 0.20 EMA.
    Carma,
    /// The mean alone (CARMA's first version).
    Mean,
    /// EMA with alpha 0.5 a second.
    Ema,
    /// The pattern study's score: 0.5 p95 + 0.3 EMA + 0.1 CV + 0.1 trend, where the trend is 1 when
    /// the slope exceeds 0.003 a sample at one sample a second.
    Pattern,
}

impl Risk {
    /// The name used in configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Carma => "carma",
            Self::Mean => "mean",
            Self::Ema => "ema",
            Self::Pattern => "pattern",
        }
    }

    /// Risk of one metric.
    #[must_use]
    pub fn of(self, s: &Summary) -> Fraction {
        match self {
            // p50 is the median, so its weight is 0.20 + 0.10.
            Self::Carma => weighted(&[(20, s.mean), (30, s.median), (30, s.p95), (20, s.ema)]),
            Self::Mean => s.mean,
            Self::Ema => s.ema_half,
            Self::Pattern => {
                let trend = if s.slope_micro_per_s > 3_000 { Fraction::ONE } else { Fraction(0) };
                weighted(&[(50, s.p95), (30, s.ema), (10, s.cv), (10, trend)])
            }
        }
    }
}

fn weighted(terms: &[(u32, Fraction)]) -> Fraction {
    let sum: u64 = terms.iter().map(|(w, f)| u64::from(*w) * u64::from(f.0)).sum();
    Fraction(u32::try_from(sum / 100).unwrap_or(u32::MAX))
}

/// The windows of one GPU at one instant. `None`: the device does not give the metric, or has not yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct WindowSummary {
    /// SM active.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub smact: Option<Summary>,
    /// SM occupancy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub smocc: Option<Summary>,
    /// DRAM active.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drama: Option<Summary>,
}

impl WindowSummary {
    /// Summary of one metric.
    #[must_use]
    pub const fn get(&self, metric: Metric) -> Option<&Summary> {
        match metric {
            Metric::Smact => self.smact.as_ref(),
            Metric::Smocc => self.smocc.as_ref(),
            Metric::Drama => self.drama.as_ref(),
        }
    }
}

/// Ring of the last samples of one metric.
#[derive(Debug, Clone, Default)]
struct Ring(VecDeque<(Millis, Fraction)>);

impl Ring {
    fn push(&mut self, at: Millis, value: Option<Fraction>, span: Millis) {
        while self.0.front().is_some_and(|(t, _)| at.since(*t) > span) {
            self.0.pop_front();
        }
        if let Some(value) = value {
            self.0.push_back((at, value));
        }
    }

    fn summary(&self) -> Option<Summary> {
        let n = self.0.len();
        let (first_at, first) = *self.0.front()?;
        let values: Vec<f64> = self.0.iter().map(|(_, v)| v.to_f64()).collect();
        let mut sorted = values.clone();
        sorted.sort_by(f64::total_cmp);
        let mean = values.iter().sum::<f64>() / n as f64;
        let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n as f64;
        let alpha = 2.0 / (n as f64 + 1.0);
        let ema = values.iter().fold(first.to_f64(), |e, v| e + alpha * (v - e));
        let seconds = |at: Millis| at.since(first_at).as_secs_f64();
        let (mut ema_half, mut last) = (first.to_f64(), first_at);
        for (t, v) in &self.0 {
            // By the time since the last sample, not by samples: how often they are taken must not change what it says.
            let left = 0.5f64.powf(t.since(last).as_secs_f64());
            ema_half = v.to_f64() + (ema_half - v.to_f64()) * left;
            last = *t;
        }
        let mean_t = self.0.iter().map(|(t, _)| seconds(*t)).sum::<f64>() / n as f64;
        let (mut num, mut den) = (0.0, 0.0);
        for (t, v) in &self.0 {
            num += (seconds(*t) - mean_t) * (v.to_f64() - mean);
            den += (seconds(*t) - mean_t).powi(2);
        }
        let slope = if den > 0.0 { num / den } else { 0.0 };
        let f = |v: f64| Fraction::from_f64(v).unwrap_or_default();
        Some(Summary {
            samples: u32::try_from(n).unwrap_or(u32::MAX),
            mean: f(mean),
            median: f(percentile(&sorted, 0.5)),
            p95: f(percentile(&sorted, 0.95)),
            ema: f(ema),
            ema_half: f(ema_half),
            cv: f(if mean > 0.0 { variance.sqrt() / mean } else { 0.0 }),
            slope_micro_per_s: (slope * 1e6).round() as i64,
        })
    }
}

/// Percentile with linear interpolation between the closest ranks. `sorted` must not be empty.
fn percentile(sorted: &[f64], q: f64) -> f64 {
    let rank = q * (sorted.len() - 1) as f64;
    let (low, high) = (rank.floor() as usize, rank.ceil() as usize);
    sorted[low] + (sorted[high] - sorted[low]) * (rank - low as f64)
}

/// The rings of one GPU.
#[derive(Debug, Clone)]
pub struct GpuWindows {
    span: Millis,
    rings: [Ring; 3],
}

impl GpuWindows {
    /// Empty windows that reach `span` back.
    #[must_use]
    pub fn new(span: Millis) -> Self {
        Self { span, rings: Default::default() }
    }

    /// Takes one sample. A metric without a value leaves its ring to run dry: old samples leave as
    /// time passes, and a dry ring has no summary.
    pub fn push(&mut self, at: Millis, activity: &Activity) {
        for (ring, metric) in self.rings.iter_mut().zip(Metric::ALL) {
            ring.push(at, metric.of(activity), self.span);
        }
    }

    /// The statistics now.
    #[must_use]
    pub fn summary(&self) -> WindowSummary {
        let [smact, smocc, drama] = &self.rings;
        WindowSummary { smact: smact.summary(), smocc: smocc.summary(), drama: drama.summary() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn filled(values: &[f64]) -> Summary {
        let mut ring = Ring::default();
        for (i, v) in values.iter().enumerate() {
            ring.push(Millis::secs(i as u64), Fraction::from_f64(*v), Millis::secs(1000));
        }
        ring.summary().unwrap()
    }

    #[test]
    fn statistics_match_a_hand_calculation() {
        let s = filled(&[0.1, 0.2, 0.3, 0.4]);
        assert_eq!(s.mean, Fraction(2500));
        assert_eq!(s.median, Fraction(2500));
        assert_eq!(s.p95, Fraction(3850));
        // alpha = 0.4: 0.1, 0.14, 0.204, 0.2824
        assert_eq!(s.ema, Fraction(2824));
        assert_eq!(s.slope_micro_per_s, 100_000);
        // population sd of 0.1..0.4 is 0.1118; over 0.25 is 0.4472
        assert_eq!(s.cv, Fraction(4472));
        // 0.2*0.25 + 0.3*0.25 + 0.3*0.385 + 0.2*0.2824
        assert_eq!(Risk::Carma.of(&s), Fraction(2969));
        // 0.5*0.385 + 0.3*0.2824 + 0.1*0.4472 + 0.1
        assert_eq!(Risk::Pattern.of(&s), Fraction(4219));
    }

    #[test]
    fn half_of_the_average_is_of_the_last_second_however_often_samples_are_taken() {
        for hz in [1, 2, 10, 50] {
            let mut ring = Ring::default();
            let step = 1000 / hz;
            // 10 s without activity, 3 s at .8, the last sample at the end.
            for i in 1..=13 * hz {
                let value = if i > 10 * hz { Fraction::percent(80) } else { Fraction(0) };
                ring.push(Millis(i * step), Some(value), Millis::secs(30));
            }
            assert_eq!(ring.summary().unwrap().ema_half, Fraction(7000), "{hz} samples a second");
        }
    }

    #[test]
    fn a_metric_that_stops_runs_dry() {
        let mut w = GpuWindows::new(Millis::secs(30));
        let active = Activity { smact: Some(Fraction::percent(50)), ..Activity::default() };
        w.push(Millis::secs(0), &active);
        assert!(w.summary().smact.is_some());
        assert!(w.summary().drama.is_none());
        w.push(Millis::secs(31), &Activity::default());
        assert!(w.summary().smact.is_none());
    }

    proptest! {
        #[test]
        fn risk_of_a_steady_load_is_the_load(level in 0u32..=10_000, n in 1usize..100) {
            let s = filled(&vec![f64::from(level) / 10_000.0; n]);
            for risk in [Risk::Carma, Risk::Mean, Risk::Ema] {
                prop_assert!(risk.of(&s).0.abs_diff(level) <= 1);
            }
        }

        #[test]
        fn statistics_stay_within_the_samples(values in proptest::collection::vec(0.0f64..=1.0, 1..200)) {
            let s = filled(&values);
            let max = values.iter().copied().fold(0.0, f64::max);
            for f in [s.mean, s.median, s.p95, s.ema, s.ema_half] {
                prop_assert!(f.to_f64() <= max + 1e-4);
            }
        }
    }
}

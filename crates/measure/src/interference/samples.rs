//! Readings of the GPU over a window, and what they come to.

use carma_core::reading::{Activity, GpuReading};
use carma_core::units::Fraction;
use carma_interference::measured::Combination;
use carma_interference::profile::{Metrics, Stat};
use std::time::Instant;

/// To six significant digits: a window gives fewer than four.
pub(super) fn rounded(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let digits = 10_f64.powf(5.0 - value.abs().log10().floor());
    (value * digits).round() / digits
}

/// Readings of the GPU over a window.
#[derive(Debug, Default)]
pub(super) struct Samples {
    /// Seconds, and what was seen over them.
    spans: Vec<(f64, GpuReading)>,
    first: Option<(Instant, GpuReading)>,
    last: Option<Instant>,
}

impl Samples {
    /// What was before the window is left out: readings are differences to the one before.
    pub(super) fn begin(&mut self, reading: Option<GpuReading>) {
        let now = Instant::now();
        self.last = Some(now);
        self.first = reading.map(|reading| (now, reading));
    }

    pub(super) fn add(&mut self, reading: Option<GpuReading>) {
        let now = Instant::now();
        if let (Some(last), Some(reading)) = (self.last, reading) {
            self.spans.push((now.duration_since(last).as_secs_f64(), reading));
        }
        self.last = Some(now);
    }

    pub(super) fn memory_of(&self, pids: &[u32]) -> Option<u64> {
        let (_, last) = self.spans.last()?;
        let held = last.processes.as_ref()?.iter().filter(|process| pids.contains(&process.pid));
        let memory: Vec<u64> = held.filter_map(|process| Some(process.memory?.0)).collect();
        (!memory.is_empty()).then(|| memory.iter().sum())
    }

    /// Mean weighted by time, and how it varied.
    fn stat(&self, pick: impl Fn(&GpuReading) -> Option<f64>) -> Option<Stat> {
        let seen: Vec<(f64, f64)> =
            self.spans.iter().filter_map(|(span, reading)| Some((*span, pick(reading)?))).collect();
        let total: f64 = seen.iter().map(|(span, _)| span).sum();
        if total <= 0.0 {
            return None;
        }
        let mean = seen.iter().map(|(span, value)| span * value).sum::<f64>() / total;
        let variance = seen.iter().map(|(span, value)| span * (value - mean).powi(2)).sum::<f64>() / total;
        let mut values: Vec<f64> = seen.iter().map(|(_, value)| *value).collect();
        values.sort_by(f64::total_cmp);
        let at = (values.len() as f64 * 0.95).ceil() as usize;
        let p95 = values.get(at.saturating_sub(1)).copied().map(rounded);
        let cv = (mean > 0.0).then(|| rounded(variance.sqrt() / mean));
        Some(Stat { mean: rounded(mean), p95, cv })
    }

    /// `speed`: virtual seconds a second, 1 on a real GPU.
    pub(super) fn tell(&self, window: &mut Combination, speed: f64) {
        let share = |pick: fn(&Activity) -> Option<Fraction>| {
            self.stat(|reading| pick(&reading.activity).map(|share| share.to_f64() * 100.0))
        };
        // NVML's own windows for these two are long: only the last reading is of this one.
        let coarse = |pick: fn(&Activity) -> Option<Fraction>| {
            let (_, last) = self.spans.last()?;
            Some(Stat::of(pick(&last.activity)?.to_f64() * 100.0))
        };
        window.activity = Metrics {
            gract_pct: share(|a| a.gract),
            smact_pct: share(|a| a.smact),
            smocc_pct: share(|a| a.smocc),
            drama_pct: share(|a| a.drama),
            tensor_pct: share(|a| a.tensor),
            fp64_pct: share(|a| a.fp64),
            fp32_pct: share(|a| a.fp32),
            fp16_pct: share(|a| a.fp16),
            pcie_rx_mib_s: self.stat(|r| r.activity.pcie_rx_mib_s.map(f64::from)),
            pcie_tx_mib_s: self.stat(|r| r.activity.pcie_tx_mib_s.map(f64::from)),
            power_w: self.stat(|r| r.power_mw.map(|mw| f64::from(mw) / 1000.0)),
            sm_clock_mhz: self.stat(|r| r.sm_clock_mhz.map(f64::from)),
            gpu_util_pct: coarse(|a| a.gpu_util),
            mem_util_pct: coarse(|a| a.mem_util),
            ..Metrics::default()
        };
        window.power_w = window.activity.power_w.map(|power| power.mean);
        let ends = self.first.as_ref().zip(self.spans.last()).zip(self.last);
        if let Some((((begin, first), (_, last)), end)) = ends
            && let (Some(before), Some(after)) = (first.energy_mj, last.energy_mj)
        {
            let span = end.duration_since(*begin).as_secs_f64();
            match after.checked_sub(before) {
                Some(mj) if span > 0.0 => {
                    let joules = mj as f64 / 1000.0;
                    window.power_w = Some(rounded(joules / span / speed));
                    window.energy_j = Some(rounded(joules / span * window.window_s));
                }
                Some(_) => {}
                None => window.remarks.push(format!(
                    "the GPU's energy counter ran backwards, from {before} to {after} mJ; power is the mean of the \
                     readings"
                )),
            }
        }
    }
}

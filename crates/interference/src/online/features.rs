//! What the predictor takes from a solo profile, and how sure it can be of it.

use crate::group::{GpuType, Mode};
use crate::law;
use crate::profile::{Metrics, Profile, Rate, RateSource, Stat};
use crate::share::curve_at;

use serde::{Deserialize, Serialize};

/// Weight features: logarithms around a middle value, 0 where unknown; of the tensor activity its fourth power.
pub(crate) const WEIGHTS: usize = 4;
/// Their names, in order.
pub(crate) const WEIGHT_NAMES: [&str; WEIGHTS] =
    ["registers", "1/(free SMs)", "1/(traffic to the GPU)", "exp(tensor activity^4)"];

/// Share of the theoretical DRAM bandwidth that can be had (0.8 on the H200 that was measured).
const ACHIEVABLE_DRAM: f64 = 0.8;
/// GRACT = SMACT^e where only SMACT is known: fitted to networks alone on one H200 (docs/research/gpu-models.md).
const GRACT_EXPONENT: f64 = 0.544;
/// MiB/s to the GPU: beyond these it says nothing of launches, or its counter is at an end.
const TRAFFIC: std::ops::RangeInclusive<f64> = 5.0..=200.0;
const MIDDLE_TRAFFIC: f64 = 80.0;
/// Standard deviation of the log of a solo rate from elsewhere: another card, other software.
pub(crate) const FROM_ELSEWHERE: f64 = 0.15;
/// Engine time is kept off 0 and 1, where its logit has no end.
const ENGINE: std::ops::RangeInclusive<f64> = 0.001..=0.985;

/// A task as the law and the learner see it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Features {
    pub engine: f64,
    pub fill: f64,
    pub dram: f64,
    pub tensor: f64,
    pub pcie: f64,
    pub weight: [f64; WEIGHTS],
    /// Steps a second alone; 0: not known.
    pub steps_per_s: f64,
    pub limit: f64,
    pub cap: f64,
    /// How unsure its class is before anything is learned, over a fully profiled one's.
    pub doubt: f64,
    /// Standard deviation of the log of its solo rate; `None`: there is no solo rate.
    pub rate: Option<(f64, f64)>,
    /// What was missing, in words.
    #[serde(skip)]
    pub remarks: Vec<String>,
}

/// The mean of a metric as a share of 100 %, if it is a number.
fn share(stat: Option<Stat>) -> Option<f64> {
    stat.map(|s| s.mean / 100.0).filter(|v| v.is_finite()).map(|v| v.clamp(0.0, 1.0))
}

fn positive(stat: Option<Stat>) -> Option<f64> {
    stat.map(|s| s.mean).filter(|v| v.is_finite() && *v > 0.0)
}

impl Features {
    pub(crate) fn of(profile: &Profile, threads_pct: Option<f64>, mode: Mode, gpu: &GpuType) -> Self {
        let m = &profile.metrics;
        let mut remarks = Vec::new();
        let name = &profile.name;
        let (engine, mut doubt) = engine(m, name, &mut remarks);
        let engine = engine.clamp(*ENGINE.start(), *ENGINE.end());
        // What keeps one type busy may leave another idle.
        let other_type = profile.gpu.as_deref().filter(|product| !gpu.is(product));
        if let Some(product) = other_type {
            doubt = doubt.max(1.5);
            remarks.push(format!(
                "{name}: it was measured on another type of GPU ({product}), and its rate alone is of that; bounds are wider"
            ));
        }
        // What is known as a mean over all time holds while kernels run in proportion.
        let while_busy = |value: Option<f64>| value.map(|v| (v / engine).clamp(0.0, 1.0));
        let known = share(m.smact_pct);
        // nvidia-smi's utilisation is no such guide: on a V100 kernels filled the SMs whatever it said. With the power of
        // the board it is one (mean error of SMACT 0.06 on H200s), and predictions got worse by it: which task fills the SMs and
        // which launches how often go together, and the second stays unknown.
        let guessed = share(m.gract_pct).map(|gract| gract.powf(1.0 / GRACT_EXPONENT));
        let fill = while_busy(known.or(guessed));
        let dram = while_busy(share(m.drama_pct).map(|d| d / ACHIEVABLE_DRAM));
        if mode == Mode::Mps {
            if known.is_none() {
                doubt = doubt.max(1.4);
                let instead = match guessed {
                    Some(_) => format!("it is guessed from engine time (GRACT = SMACT^{GRACT_EXPONENT})"),
                    None => "its kernels are taken to fill all SMs".to_owned(),
                };
                remarks.push(format!("{name}: no SM activity (SMACT); {instead}"));
            }
            if dram.is_none() && known.is_some() {
                doubt = doubt.max(1.2);
                remarks.push(format!("{name}: no DRAM activity; DRAM is taken not to bind"));
            }
        }
        // How little room its kernels leave. Kernels that keep all SMs taken let others in only when their blocks end; to
        // leave most of them free costs a task nothing. Counters near the end are noise.
        let crowded = fill.map(|f| f.clamp(0.0, 0.98)).map(|f| 1.0 / (1.0 - f));
        let registers = profile
            .kernels
            .map(|k| k.registers)
            .filter(|r| r.is_finite() && *r > 0.0)
            .map(|r| r.clamp(1e4, 1e10));
        // How often it sends the GPU work: traffic over the link while nothing is copied. Long kernels need little. What
        // copies data sends more, which says nothing of its kernels.
        let traffic = positive(m.pcie_rx_mib_s).map(|mib_s| mib_s.clamp(*TRAFFIC.start(), *TRAFFIC.end()));
        if mode == Mode::Mps && traffic.is_none() {
            doubt = doubt.max(1.2);
        }
        let tensor = while_busy(share(m.tensor_pct)).unwrap_or(0.0);
        let around = |value: Option<f64>, middle: f64| value.map_or(0.0, |v| (v / middle).ln());
        let weight = [
            // Resident registers of a launch; 15 million fill a V100's files three times.
            around(registers, 1.5e7),
            around(crowded, 1.0),
            -around(traffic, MIDDLE_TRAFFIC),
            // Products of matrices that keep the pipes busy from their first block to their last.
            tensor.powi(4),
        ];
        let pcie = [m.pcie_rx_mib_s, m.pcie_tx_mib_s];
        let pcie = pcie.into_iter().filter_map(positive).fold(0.0, f64::max) / gpu.pcie_mib_s.max(1.0);
        let (mut limit, mut cap) = (1.0, 1.0);
        if let (Mode::Mps, Some(pct)) = (mode, threads_pct.filter(|pct| pct.is_finite() && *pct < 100.0)) {
            let pct = pct.clamp(1.0, 100.0);
            cap = pct / 100.0;
            let measured = curve_at(&profile.curve(), pct);
            if measured.is_none() {
                doubt = doubt.max(1.5);
                remarks.push(format!(
                    "{name}: its speed alone by thread percentage is not known (`rate_by_threads_pct`); \
                     it is taken to lose nearly what its kernels lack in SMs"
                ));
            }
            limit = measured.unwrap_or_else(|| law::limited(engine, fill.unwrap_or(1.0), cap));
        }
        let rate = profile.rate.as_ref().filter(|r| r.per_s.is_finite() && r.per_s > 0.0).map(|r| {
            let sd = match r.source {
                Some(RateSource::Heartbeat | RateSource::Printed) => 0.02,
                Some(RateSource::Activity) => 0.1,
                None => FROM_ELSEWHERE,
            };
            (r.per_s.ln(), if other_type.is_some() { FROM_ELSEWHERE } else { sd })
        });
        Self {
            engine,
            fill: fill.unwrap_or(1.0),
            dram: dram.unwrap_or(0.0),
            tensor,
            pcie: pcie.clamp(0.0, 1.0),
            weight,
            steps_per_s: profile.rate.as_ref().and_then(steps_per_s).unwrap_or(0.0),
            limit: limit.clamp(1e-3, 1.0),
            cap,
            doubt,
            rate,
            remarks,
        }
    }
}

impl Features {
    /// Whether features from a file can be worked with.
    pub(crate) fn is_sound(&self) -> bool {
        let part = |v: f64| (0.0..=1.0).contains(&v);
        ENGINE.contains(&self.engine)
            && [self.fill, self.dram, self.tensor, self.pcie].into_iter().all(part)
            && self.weight.iter().all(|w| w.is_finite() && w.abs() < 50.0)
            && (0.0..=1e6).contains(&self.steps_per_s)
            && self.limit > 0.0
            && part(self.limit)
            && self.cap > 0.0
            && part(self.cap)
            && (0.1..=10.0).contains(&self.doubt)
            && self.rate.is_none_or(|(log, sd)| log.abs() < 500.0 && (1e-6..=10.0).contains(&sd))
    }
}

/// Steps a second, where its unit says that it is one.
pub(crate) fn steps_per_s(rate: &Rate) -> Option<f64> {
    let counted = matches!(rate.unit.as_deref(), Some("steps" | "it" | "batches" | "requests"));
    (counted && rate.per_s.is_finite() && rate.per_s > 0.0).then(|| rate.per_s.min(1e6))
}

/// Share of time with a kernel on the GPU: GRACT, else nvidia-smi's utilisation, else from SMACT, else a guess.
fn engine(m: &Metrics, name: &str, remarks: &mut Vec<String>) -> (f64, f64) {
    if let Some(gract) = share(m.gract_pct) {
        return (gract, 1.0);
    }
    if let Some(util) = share(m.gpu_util_pct) {
        if m.smact_pct.is_none() {
            remarks.push(format!("{name}: only nvidia-smi's utilisation is known; bounds are wider"));
        }
        return (util, 1.2);
    }
    if let Some(smact) = share(m.smact_pct) {
        remarks.push(format!(
            "{name}: engine time is guessed from SM activity (GRACT = SMACT^{GRACT_EXPONENT})"
        ));
        return (smact.powf(GRACT_EXPONENT), 1.4);
    }
    remarks.push(format!(
        "{name}: nothing is known of its activity; it is taken to keep the GPU busy. `carma profile` measures it"
    ));
    (0.95, 3.0)
}

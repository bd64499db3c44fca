//! Fine-grain activity from NVML's GPM counters (Hopper and newer): the difference of two samples.

use carma_core::reading::Activity;
use carma_core::units::Fraction;
use nvml_wrapper::enums::gpm::GpmMetricId::{self, *};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::gpm::gpm_metrics_get;
use nvml_wrapper::{Device, GpmSample, Nvml};
use std::time::{Duration, Instant};

const METRICS: [GpmMetricId; 10] = [
    GraphicsUtil,
    SmUtil,
    SmOccupancy,
    DramBwUtil,
    AnyTensorUtil,
    Fp64Util,
    Fp32Util,
    Fp16Util,
    PcieTxPerSec,
    PcieRxPerSec,
];

/// NVML asks for samples at least 100 ms apart; a tick that is due may come a little early.
const SPACING: Duration = Duration::from_millis(90);

/// The counters of one GPU or MIG instance.
pub(super) struct Gpm<'n> {
    nvml: &'n Nvml,
    /// The GPU, also for a MIG instance.
    gpu: Device<'n>,
    /// GPU instance id of a MIG instance.
    instance: Option<u32>,
    previous: Option<(Instant, GpmSample<'n>)>,
    last: Activity,
}

impl<'n> Gpm<'n> {
    /// `None` where the GPU has no such counters or this user may not read them.
    pub(super) fn open(nvml: &'n Nvml, gpu: Device<'n>, instance: Option<u32>) -> Option<Self> {
        if !gpu.gpm_support().unwrap_or(false) {
            return None;
        }
        let last = Activity::default();
        let gpm = Self { nvml, gpu, instance, previous: None, last };
        match gpm.sample() {
            Err(NvmlError::NotSupported | NvmlError::NoPermission) => None,
            _ => Some(gpm),
        }
    }

    fn sample(&self) -> Result<GpmSample<'n>, NvmlError> {
        match self.instance {
            None => self.gpu.gpm_sample(),
            Some(instance) => self.gpu.gpm_mig_sample(instance),
        }
    }

    /// Activity since the previous call; nothing the first time and after a failure. Called sooner
    /// than samples can be compared, it repeats its last answer.
    pub(super) fn read(&mut self) -> Result<Activity, NvmlError> {
        if self.previous.as_ref().is_some_and(|(at, _)| at.elapsed() < SPACING) {
            return Ok(self.last);
        }
        let previous = self.previous.take();
        self.last = Activity::default();
        let (at, sample) = (Instant::now(), self.sample()?);
        if let Some((_, previous)) = previous {
            let metrics = gpm_metrics_get(self.nvml, &previous, &sample, &METRICS);
            // Kept even if these two could not be compared: the next pair may be.
            self.previous = Some((at, sample));
            let metrics = metrics?;
            let value = |id| metrics.iter().flatten().find(|m| m.metric_id == id).map(|m| m.value);
            let share = |id| value(id).and_then(share);
            let rate = |id| value(id).and_then(rate);
            self.last = Activity {
                gract: share(GraphicsUtil),
                smact: share(SmUtil),
                smocc: share(SmOccupancy),
                drama: share(DramBwUtil),
                tensor: share(AnyTensorUtil),
                fp64: share(Fp64Util),
                fp32: share(Fp32Util),
                fp16: share(Fp16Util),
                pcie_tx_mib_s: rate(PcieTxPerSec),
                pcie_rx_mib_s: rate(PcieRxPerSec),
                gpu_util: None,
                mem_util: None,
            };
        } else {
            self.previous = Some((at, sample));
        }
        Ok(self.last)
    }
}

/// A percentage as a share: at most 1, counters of neighbouring cycles can add up to a bit more.
/// Not-a-number (seen where nothing ran) and negative values are no reading.
pub(super) fn share(percent: f64) -> Option<Fraction> {
    Fraction::from_f64(percent / 100.0).map(|share| share.min(Fraction::ONE))
}

fn rate(mib_per_second: f64) -> Option<u32> {
    (mib_per_second.is_finite() && mib_per_second >= 0.0).then(|| mib_per_second.round() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonsense_from_the_driver_is_no_reading() {
        assert_eq!(share(37.5), Some(Fraction(3_750)));
        assert_eq!(share(100.4), Some(Fraction::ONE));
        assert_eq!(share(f64::NAN), None);
        assert_eq!(share(-1.0), None);
        assert_eq!(rate(1e12), Some(u32::MAX));
        assert_eq!(rate(f64::INFINITY), None);
    }
}

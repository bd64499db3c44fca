//! How the daemon reads virtual GPUs.

use super::host::Shared;
use super::physics::{Rates, Sample, Totals};
use carma_core::reading::{Activity, GpuInfo, GpuReading, Health, ProcessReading, Snapshot};
use carma_core::units::{Fraction, MiB, Millis};
use carma_gpu::Probe;
use std::sync::Arc;

/// Reads virtual GPUs. GRACT, SMACT, SMOCC, DRAMA, utilisation and power are averages over the virtual time since
/// its last tick; the other activity fields are not modelled and stay `None`, as do the first four of a GPU without
/// activity.
#[derive(Debug)]
pub struct VirtualProbe {
    shared: Arc<Shared>,
    inventory: Arc<[GpuInfo]>,
    last: Vec<(f64, Totals)>,
}

impl VirtualProbe {
    pub(super) fn new(shared: Arc<Shared>, inventory: Arc<[GpuInfo]>) -> Self {
        let last = shared.sample().iter().map(|sample| (sample.at, sample.totals)).collect();
        Self { shared, inventory, last }
    }
}

impl Probe for VirtualProbe {
    fn inventory(&self) -> &[GpuInfo] {
        &self.inventory
    }

    fn tick(&mut self, at: Millis) -> Snapshot {
        let samples = self.shared.sample();
        let gpus = self
            .inventory
            .iter()
            .zip(&samples)
            .zip(&self.last)
            .map(|((gpu, sample), last)| reading(gpu, sample, *last))
            .collect();
        self.last = samples.iter().map(|sample| (sample.at, sample.totals)).collect();
        Snapshot { at, gpus }
    }
}

fn reading(gpu: &GpuInfo, sample: &Sample, last: (f64, Totals)) -> GpuReading {
    let uuid = Arc::clone(&gpu.uuid);
    if let Some(why) = &sample.lost {
        return GpuReading::empty(uuid, Health::Lost(why.to_string()));
    }
    let mean = mean(sample, last);
    let share = |value: f64| Fraction::from_f64(value.min(1.0));
    let fine = |value: f64| share(value).filter(|_| gpu.has_activity);
    GpuReading {
        uuid,
        health: Health::Ok,
        memory_used: Some(MiB(sample.memory_used)),
        activity: Activity {
            gract: fine(mean.gract),
            smact: fine(mean.smact),
            smocc: fine(mean.smocc),
            drama: fine(mean.drama),
            // The coarse counter is time with a kernel resident, which is what GRACT models.
            gpu_util: share(mean.gract),
            ..Activity::default()
        },
        power_mw: Some((mean.power_w * 1000.0).round() as u32),
        energy_mj: Some((sample.totals.energy_j * 1000.0).round() as u64),
        // Not modelled in MHz.
        sm_clock_mhz: None,
        memory_clock_mhz: None,
        processes: Some(
            sample
                .processes
                .iter()
                .map(|(&pid, &held)| ProcessReading { pid, memory: Some(MiB(held)) })
                .collect(),
        ),
    }
}

/// Averages since the last tick; the instant's values when no time has passed.
fn mean(sample: &Sample, (since, before): (f64, Totals)) -> Rates {
    let span = sample.at - since;
    if span <= 0.0 {
        return sample.rates;
    }
    let now = &sample.totals;
    Rates {
        gract: (now.gract_s - before.gract_s) / span,
        smact: (now.smact_s - before.smact_s) / span,
        smocc: (now.smocc_s - before.smocc_s) / span,
        drama: (now.drama_s - before.drama_s) / span,
        power_w: (now.energy_j - before.energy_j) / span,
    }
}

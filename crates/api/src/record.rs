//! What the daemon records of GPUs and host: one row a second, on its disk and in answers the same.
//!
//! What was not read is absent, never 0. Rows are made from looks, and rows of longer steps from rows, by [`Fold`]: a mean
//! weighs each value by the time that it was read for.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Declares the readings of a GPU once: what they are called and mean.
macro_rules! readings {
    ($($(#[$doc:meta])* $key:ident,)*) => {
        /// What was read of a GPU: means over the time. Absent: it was not read, or the GPU does not tell.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
        pub struct Readings {
            $($(#[$doc])* #[serde(default, skip_serializing_if = "Option::is_none")] pub $key: Option<f64>,)*
        }

        impl Readings {
            /// Their names.
            pub const NAMES: &[&str] = &[$(stringify!($key)),*];

            /// Their values, in the order of the names.
            #[must_use]
            pub fn values(&self) -> Vec<Option<f64>> {
                vec![$(self.$key),*]
            }

            fn fold(&mut self, values: &mut dyn FnMut(usize) -> Option<f64>) {
                let mut at = 0..;
                $(self.$key = at.next().and_then(&mut *values);)*
            }
        }
    };
}

readings! {
    /// Memory in use by anyone, MiB.
    memory_used_mib,
    /// SM active, 0 to 1 as all shares.
    smact,
    /// SM occupancy.
    smocc,
    /// DRAM active.
    drama,
    /// Graphics or compute engine active.
    gract,
    /// Any tensor pipe active.
    tensor,
    /// FP64 pipe active.
    fp64,
    /// FP32 pipe active.
    fp32,
    /// FP16 pipe active.
    fp16,
    /// NVML's coarse utilisation: time with any kernel resident.
    gpu_util,
    /// Time in which device memory was read or written.
    mem_util,
    /// PCIe traffic from the GPU, MiB/s.
    pcie_tx_mib_s,
    /// PCIe traffic to the GPU, MiB/s.
    pcie_rx_mib_s,
    /// Clock of the SMs, MHz.
    sm_clock_mhz,
    /// Clock of the memory, MHz.
    memory_clock_mhz,
    /// Power draw, watts.
    power_w,
}

/// A row: what was seen in a span of time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// End of the span, Unix time of the daemon's clock.
    pub at_ms: u64,
    /// How long it is.
    pub span_ms: u64,
    /// The machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<HostRow>,
    /// GPUs that were read.
    #[serde(default)]
    pub gpus: Vec<GpuRow>,
}

/// The machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct HostRow {
    /// Processors at work, percent of all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_pct: Option<f64>,
    /// Memory that is not available to new programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_used_mib: Option<f64>,
}

/// One GPU.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct GpuRow {
    /// Its index.
    pub gpu: u32,
    /// Of the span, how long it was read.
    pub span_ms: u64,
    /// What was read.
    #[serde(flatten)]
    pub readings: Readings,
    /// The energy counter at the end: only differences mean anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub energy_j: Option<f64>,
    /// Of a row made of several: how long jobs were on it, be it one or many.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busy_ms: Option<u64>,
    /// Jobs on it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tenants: Vec<TenantRow>,
}

impl GpuRow {
    /// How long jobs were on it, milliseconds. In a row of a second, as long as the longest of them.
    #[must_use]
    pub fn busy_ms(&self) -> u64 {
        self.busy_ms.or_else(|| self.tenants.iter().map(|tenant| tenant.span_ms).max()).unwrap_or(0)
    }
}

/// One job on one GPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct TenantRow {
    /// Its number.
    pub job: u64,
    /// Whose it is.
    pub uid: u32,
    /// Of the span, how long it was there.
    pub span_ms: u64,
    /// Memory that its processes hold, where the driver tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<f64>,
    /// Its part of what the GPU did, by what the jobs on it do alone and how fast they go (docs/fairness.md); absent: not known,
    /// or the job is another user's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activity_share: Option<f64>,
}

/// A GPU that rows are of.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedGpu {
    /// Its index.
    pub gpu: u32,
    /// UUID, as the driver says it.
    pub uuid: String,
    /// Product name.
    pub name: String,
    /// `gpu`, `mig` or `virtual`: a virtual GPU is a model, never a measurement.
    pub kind: String,
    /// Memory that it has.
    pub memory_mib: u64,
}

/// What was recorded in a span of time: `GET /v1/record`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RecordReply {
    /// Wire version.
    pub version: u32,
    /// The daemon's time, Unix.
    pub now_ms: u64,
    /// When the oldest row begins that is kept; absent: there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_ms: Option<u64>,
    /// The GPUs.
    pub gpus: Vec<RecordedGpu>,
    /// Rows by time. Where none is, nothing was recorded: the daemon did not run, or its disk took nothing.
    pub rows: Vec<Row>,
    /// There is more: ask again from this time on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_ms: Option<u64>,
    /// Looks at the GPUs that were not recorded since the daemon started: its disk was too slow.
    #[serde(default)]
    pub dropped_looks: u64,
}

/// A mean in the making.
#[derive(Debug, Clone, Copy, Default)]
struct Mean {
    sum: f64,
    weight: f64,
}

impl Mean {
    fn add(&mut self, value: Option<f64>, weight: u64) {
        if let Some(value) = value {
            self.sum += value * weight as f64;
            self.weight += weight as f64;
        }
    }

    /// To four decimals: finer than anything is read.
    fn get(self) -> Option<f64> {
        (self.weight > 0.0).then(|| (self.sum / self.weight * 1e4).round() / 1e4)
    }
}

/// Makes one row of several.
#[derive(Debug, Clone, Default)]
pub struct Fold {
    at_ms: u64,
    span_ms: u64,
    host: [Mean; 2],
    gpus: BTreeMap<u32, GpuFold>,
}

#[derive(Debug, Clone, Default)]
struct GpuFold {
    span_ms: u64,
    readings: Vec<Mean>,
    energy_j: Option<f64>,
    busy_ms: u64,
    tenants: BTreeMap<u64, TenantFold>,
}

#[derive(Debug, Clone, Copy, Default)]
struct TenantFold {
    uid: u32,
    span_ms: u64,
    memory: Mean,
    share: Mean,
}

impl Fold {
    /// Takes a row in.
    pub fn add(&mut self, row: &Row) {
        self.at_ms = self.at_ms.max(row.at_ms);
        self.span_ms = self.span_ms.saturating_add(row.span_ms);
        if let Some(host) = row.host {
            let [cpu, memory] = &mut self.host;
            cpu.add(host.cpu_pct, row.span_ms);
            memory.add(host.memory_used_mib, row.span_ms);
        }
        for gpu in &row.gpus {
            let fold = self.gpus.entry(gpu.gpu).or_default();
            fold.span_ms = fold.span_ms.saturating_add(gpu.span_ms);
            fold.readings.resize(Readings::NAMES.len(), Mean::default());
            for (mean, value) in fold.readings.iter_mut().zip(gpu.readings.values()) {
                mean.add(value, gpu.span_ms);
            }
            fold.energy_j = gpu.energy_j.or(fold.energy_j);
            fold.busy_ms = fold.busy_ms.saturating_add(gpu.busy_ms());
            for tenant in &gpu.tenants {
                let fold = fold.tenants.entry(tenant.job).or_default();
                fold.uid = tenant.uid;
                fold.span_ms = fold.span_ms.saturating_add(tenant.span_ms);
                fold.memory.add(tenant.memory_mib, tenant.span_ms);
                fold.share.add(tenant.activity_share, tenant.span_ms);
            }
        }
    }

    /// The row of all that came in, which ends at this time; `None`: nothing did.
    #[must_use]
    pub fn take(&mut self, at_ms: u64) -> Option<Row> {
        let fold = std::mem::take(self);
        if fold.span_ms == 0 {
            return None;
        }
        let [cpu_pct, memory_used_mib] = fold.host.map(Mean::get);
        let host = HostRow { cpu_pct, memory_used_mib };
        let gpus = fold.gpus.into_iter().map(|(gpu, of)| {
            let mut readings = Readings::default();
            readings.fold(&mut |at| of.readings.get(at).and_then(|mean| mean.get()));
            let tenant = |(job, of): (u64, TenantFold)| TenantRow {
                job,
                uid: of.uid,
                span_ms: of.span_ms,
                memory_mib: of.memory.get(),
                activity_share: of.share.get(),
            };
            let tenants = of.tenants.into_iter().map(tenant).collect();
            let (energy_j, busy_ms) = (of.energy_j, Some(of.busy_ms));
            GpuRow { gpu, span_ms: of.span_ms, readings, energy_j, busy_ms, tenants }
        });
        let gpus = gpus.collect();
        Some(Row { at_ms, span_ms: fold.span_ms, host: (host != HostRow::default()).then_some(host), gpus })
    }

    /// End of the latest row that came in.
    #[must_use]
    pub const fn latest_ms(&self) -> u64 {
        self.at_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(at_ms: u64, smact: Option<f64>, energy_j: f64, tenants: Vec<TenantRow>) -> Row {
        let readings = Readings { smact, power_w: Some(100.0), ..Readings::default() };
        let gpu =
            GpuRow { gpu: 1, span_ms: 1000, readings, energy_j: Some(energy_j), busy_ms: None, tenants };
        let host = Some(HostRow { cpu_pct: Some(50.0), memory_used_mib: None });
        Row { at_ms, span_ms: 1000, host, gpus: vec![gpu] }
    }

    #[test]
    fn a_mean_is_over_what_was_read() {
        let tenant =
            TenantRow { job: 7, uid: 1, span_ms: 500, memory_mib: Some(10.0), ..TenantRow::default() };
        let mut fold = Fold::default();
        assert_eq!(fold.take(0), None);
        fold.add(&row(1000, Some(0.25), 10.0, vec![]));
        fold.add(&row(2000, None, 20.0, vec![tenant]));
        fold.add(&row(3000, Some(0.75), 30.0, vec![TenantRow { job: 8, span_ms: 1000, ..tenant }, tenant]));
        let made = fold.take(3000).unwrap();
        let [gpu] = &made.gpus[..] else { panic!("{made:?}") };
        assert_eq!((gpu.readings.smact, gpu.readings.smocc, gpu.energy_j), (Some(0.5), None, Some(30.0)));
        assert_eq!((gpu.span_ms, made.host.unwrap().memory_used_mib), (3000, None));
        assert_eq!((gpu.tenants[0].span_ms, gpu.tenants[0].memory_mib), (1000, Some(10.0)));
        // One after the other, and then two at a time.
        assert_eq!((gpu.busy_ms(), gpu.tenants[1].span_ms), (1500, 1000));
        // It begins anew, and is written and read as it is.
        assert_eq!(fold.take(4000), None);
        let text = serde_json::to_string(&made).unwrap();
        assert!(!text.contains("null") && !text.contains("smocc"), "{text}");
        assert_eq!(serde_json::from_str::<Row>(&text).unwrap(), made);
    }

    #[test]
    fn names_and_values_belong_together() {
        let readings = Readings { memory_used_mib: Some(1.0), power_w: Some(2.0), ..Readings::default() };
        let values = readings.values();
        let of = |name: &str| values[Readings::NAMES.iter().position(|known| *known == name).unwrap()];
        assert_eq!((of("memory_used_mib"), of("power_w"), of("smact")), (Some(1.0), Some(2.0), None));
    }
}

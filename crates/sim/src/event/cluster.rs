//! The GPUs that a run has.

use crate::gpu::Law;
use crate::trace::CatalogueTask;
use carma_core::model::SharingMode;
use carma_core::reading::{GpuInfo, GpuKind};
use carma_core::units::MiB;
use carma_hardware::{GpuType, GpuTypes};
use carma_interference::share::Demand;
use std::sync::Arc;

/// The most GPUs in a cluster.
pub const MOST_GPUS: usize = 100_000;

/// GPUs by index. MIG instances stand where their GPU would.
#[derive(Debug, Clone, PartialEq)]
pub struct Cluster {
    spec: String,
    devices: Vec<Device>,
}

/// One GPU or MIG instance.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Device {
    pub(crate) gpu: Arc<GpuType>,
    pub(crate) law: Law,
    /// Index of the GPU that it is a slice of, and its profile.
    pub(crate) mig: Option<(u32, Arc<str>)>,
}

/// What is wrong with a cluster, and what would be right.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "cluster `{spec}`: {why}. Write <count>x<type>, several joined by `+`, MIG instances after `/`: 4xA100-40GB, 2xH200+8xV100-32GB, 1xA100-40GB/3x2g.10gb,1x1g.5gb"
)]
pub struct ClusterError {
    /// The cluster as given.
    pub spec: String,
    /// The part that is wrong, and why.
    pub why: String,
}

impl Cluster {
    /// Reads `<count>x<type>[/<count>x<profile>,...][+...]`.
    ///
    /// # Errors
    /// [`ClusterError`] names the part that makes no sense.
    pub fn parse(spec: &str, types: &GpuTypes) -> Result<Self, ClusterError> {
        let wrong = |why: String| ClusterError { spec: spec.chars().take(200).collect(), why };
        let mut devices = Vec::new();
        let mut gpus = 0_u32;
        for part in parts(spec) {
            let (whole, slices) = match part.split_once('/') {
                Some((whole, slices)) => (whole, Some(slices)),
                None => (part, None),
            };
            let (count, name) = counted(whole).map_err(wrong)?;
            let gpu = types.find(name).map_err(wrong)?;
            let mut layout: Vec<(GpuType, Arc<str>)> = Vec::new();
            for slice in slices.into_iter().flat_map(|s| s.split(',')) {
                let (n, profile) = counted(slice).map_err(wrong)?;
                let slice = types.find(&format!("{name}/{profile}")).map_err(wrong)?;
                layout.extend(std::iter::repeat_n((slice, profile.into()), n));
                gpu.holds(layout.iter().map(|(slice, _)| (1, &*slice.name))).map_err(wrong)?;
            }
            draw_for_the_rest(&gpu, &mut layout);
            let layout: Vec<(Arc<GpuType>, Arc<str>)> =
                layout.into_iter().map(|(slice, profile)| (Arc::new(slice), profile)).collect();
            let gpu = Arc::new(gpu);
            for _ in 0..count {
                if layout.is_empty() {
                    devices.push(Device { gpu: Arc::clone(&gpu), law: Law::from(&*gpu), mig: None });
                }
                for (slice, profile) in &layout {
                    let mig = Some((gpus, Arc::clone(profile)));
                    devices.push(Device { gpu: Arc::clone(slice), law: Law::from(&**slice), mig });
                }
                gpus += 1;
                if devices.len() > MOST_GPUS {
                    return Err(wrong(format!("more than {MOST_GPUS} GPUs")));
                }
            }
        }
        Ok(Self { spec: spec.trim().to_owned(), devices })
    }

    /// The cluster as written.
    #[must_use]
    pub fn spec(&self) -> &str {
        &self.spec
    }

    /// Whether some of its GPUs are of this type, or instances of it.
    #[must_use]
    pub fn has_type(&self, name: &str) -> bool {
        let whole = |device: &Device| device.gpu.name.split('/').next() == Some(name);
        self.devices.iter().any(whole)
    }

    /// Number of GPUs (or MIG instances).
    #[must_use]
    pub fn len(&self) -> usize {
        self.devices.len()
    }

    /// Whether there are none; [`Self::parse`] never makes such a cluster.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.devices.is_empty()
    }

    pub(crate) fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// The GPUs as the core knows them.
    pub(crate) fn inventory(&self) -> Vec<GpuInfo> {
        let info = |(index, device): (u32, &Device)| GpuInfo {
            uuid: format!("GPU-simulated-{index}").into(),
            index,
            name: device.gpu.name.to_string(),
            memory: MiB(device.gpu.memory_mib),
            kind: match &device.mig {
                Some((parent, profile)) => GpuKind::Mig {
                    parent: format!("GPU-simulated-parent-{parent}"),
                    profile: profile.to_string(),
                },
                None => GpuKind::Virtual,
            },
            has_activity: true,
            no_mps: None,
        };
        (0..).zip(&self.devices).map(info).collect()
    }
}

/// Slices that are in no instance draw idle power all the same: the instances draw it for them, so that an idle GPU draws as much
/// however it is cut.
fn draw_for_the_rest(whole: &GpuType, layout: &mut [(GpuType, Arc<str>)]) {
    let assigned: f64 = layout.iter().map(|(slice, _)| slice.capacities.part_sm).sum();
    for (slice, _) in layout {
        let more = whole.capacities.part_sm / assigned - 1.0;
        slice.empty_w += slice.empty_w * more;
        let idle_w = slice.power.idle_w * more;
        slice.power.idle_w += idle_w;
        // What a load asks for stays.
        slice.power.cap_w += idle_w;
    }
}

/// Parts joined by `+`; slices of a GPU are joined by `,`.
fn parts(spec: &str) -> impl Iterator<Item = &str> {
    spec.trim().split('+').map(str::trim)
}

/// `4xA100-40GB`; a name alone means one.
fn counted(part: &str) -> Result<(usize, &str), String> {
    let part = part.trim();
    if part.is_empty() {
        return Err("a part is empty".into());
    }
    let digits = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
    let (count, rest) = part.split_at(digits);
    match rest.strip_prefix(['x', 'X']) {
        Some(name) if !count.is_empty() => {
            let number = count.parse::<usize>().ok().filter(|n| (1..=MOST_GPUS).contains(n));
            let number = number
                .ok_or_else(|| format!("in `{part}` the count is no whole number from 1 to {MOST_GPUS}"))?;
            Ok((number, name.trim()))
        }
        // A MIG profile begins with a digit: 1g.5gb.
        _ if rest.starts_with('g') || count.is_empty() => Ok((1, part)),
        _ => Err(format!("`{part}` lacks an `x` between count and type")),
    }
}

/// What a task does to a GPU of this type when alone, with what is not known filled in.
pub(crate) fn demand(task: &CatalogueTask, gpu: &GpuType) -> (Demand, f64) {
    let a = &task.activity;
    let sm = a.smact.unwrap_or(0.0);
    let gract = a.gract.unwrap_or_else(|| gpu.gract_of(sm));
    let demand = Demand {
        gract,
        sm,
        dram: a.drama.unwrap_or(0.0),
        tensor: a.tensor.unwrap_or(0.0),
        pcie: a.pcie.unwrap_or(0.0),
    };
    (demand, a.smocc.unwrap_or(0.0))
}

/// A task's weight where several divide what is scarce. Time slices are alike for all.
pub(crate) fn weight(task: &CatalogueTask, mode: SharingMode) -> f64 {
    if mode == SharingMode::Mps { task.mps_weight.unwrap_or(1.0) } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_gpu_draws_as_much_however_it_is_cut() {
        let whole = GpuType::find("A100-40GB").unwrap();
        for spec in ["A100-40GB", "A100-40GB/1g.5gb", "A100-40GB/3g.20gb,2x1g.5gb", "A100-40GB/7x1g.5gb"] {
            let cluster = Cluster::parse(spec, &GpuTypes::built_in()).unwrap();
            let of = |f: fn(&GpuType) -> f64| cluster.devices().iter().map(|it| f(&it.gpu)).sum::<f64>();
            assert!((of(|gpu| gpu.empty_w) - whole.empty_w).abs() < 1e-9, "{spec}");
            assert!((of(|gpu| gpu.power.idle_w) - whole.power.idle_w).abs() < 1e-9, "{spec}");
            let span = |power: carma_hardware::Power| power.cap_w - power.idle_w;
            for device in cluster.devices() {
                assert!((span(device.law.power) - span(whole.power)).abs() < 1e-9, "{spec}");
            }
        }
    }
}

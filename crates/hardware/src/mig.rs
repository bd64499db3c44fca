//! MIG instances: a GPU cut into parts that do not share anything.

use super::{Capacities, GpuType, Power};
use std::sync::Arc;

/// Compute slices of a whole GPU.
const COMPUTE: f64 = 7.0;
/// Memory slices of a whole GPU.
const MEMORY: f64 = 8.0;

/// A kind of MIG instance.
#[derive(Debug, Clone, PartialEq)]
pub struct MigProfile {
    /// NVIDIA's name, e.g. `3g.20gb`.
    pub name: Arc<str>,
    /// Compute slices, 1 to 7 of 7.
    pub compute: u8,
    /// Memory slices, 1 to 8 of 8: DRAM bandwidth and L2.
    pub memory_slices: u8,
    /// Memory of an instance, MiB.
    pub memory_mib: u64,
    /// How many of them one GPU holds at most.
    pub most: u8,
}

impl GpuType {
    /// A MIG instance of this type; `None`: there is no such profile (upper or lower case).
    ///
    /// The part of SMs is compute/7, that of bandwidth memory/8; capacities are shares of the part. (1g has 14 of an A100's 108 SMs, 0.130 rather than 0.143;
    /// against MISO's A100 latencies compute/7 is the nearer, see `docs/research/gpu-models.md`.) PCIe is not
    /// divided.
    ///
    /// Power: the instance's share of compute in idle power, and what its activity asks for on the
    /// whole GPU, of which full GRACT keeps only the instance's part busy. The board's limit holds for
    /// all instances together, which one of them can't see: it throttles an instance only when
    /// that alone asks for more than the board may draw. An assumption; nobody publishes power by
    /// instance.
    #[must_use]
    pub fn slice(&self, profile: &str) -> Option<Self> {
        let profile = self.mig.iter().find(|known| known.name.eq_ignore_ascii_case(profile))?;
        let compute = f64::from(profile.compute) / COMPUTE;
        let memory = f64::from(profile.memory_slices) / MEMORY;
        let whole = &self.capacities;
        Some(Self {
            name: format!("{}/{}", self.name, profile.name).into(),
            memory_mib: profile.memory_mib,
            empty_w: self.empty_w * compute,
            power: Power {
                idle_w: self.power.idle_w * compute,
                cap_w: self.power.idle_w * compute + (self.power.cap_w - self.power.idle_w),
                gract: self.power.gract * compute,
                ..self.power
            },
            capacities: Capacities {
                part_sm: whole.part_sm * compute,
                part_dram: whole.part_dram * memory,
                ..*whole
            },
            mig: Vec::new(),
            ..self.clone()
        })
    }

    /// Whether a GPU can be cut into these instances (how many of each, named as [`Self::slice`] names them): at most 7
    /// compute and 8 memory slices, and of each profile as many as the driver allows. That some orders of instances
    /// leave gaps is not modelled.
    ///
    /// # Errors
    /// What there is too much of.
    pub fn holds<'a>(&self, instances: impl Iterator<Item = (usize, &'a str)> + Clone) -> Result<(), String> {
        let (mut compute, mut memory) = (0, 0);
        for profile in &self.mig {
            let name = format!("{}/{}", self.name, profile.name);
            let n: usize = instances.clone().filter(|(_, of)| **of == *name).map(|(n, _)| n).sum();
            if n > usize::from(profile.most) {
                return Err(format!("one {} holds at most {} of {}", self.name, profile.most, profile.name));
            }
            compute += n * usize::from(profile.compute);
            memory += n * usize::from(profile.memory_slices);
        }
        if compute > 7 || memory > 8 {
            return Err(format!(
                "the instances need {compute} compute and {memory} memory slices of one {}, which has 7 and 8",
                self.name
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_is_its_part_of_the_whole() {
        let whole = GpuType::find("A100-40GB").unwrap();
        assert_eq!(whole.slice("5g.1gb"), None);
        let one = whole.slice("1G.5GB").unwrap();
        assert_eq!(one.memory_mib, 4864);
        assert_eq!((one.capacities.part_sm, one.capacities.part_dram), (1.0 / 7.0, 1.0 / 8.0));
        assert!((one.power.idle_w * 7.0 - whole.power.idle_w).abs() < 1e-9);
    }

    #[test]
    fn the_largest_instance_is_the_whole() {
        for name in ["A100-40GB", "A100-80GB", "H100-80GB", "H200"] {
            let whole = GpuType::find(name).unwrap();
            let largest = whole.slice(&whole.mig.last().unwrap().name).unwrap();
            assert_eq!((largest.capacities, largest.power), (whole.capacities, whole.power), "{name}");
            assert!(whole.mig.iter().all(|p| p.memory_mib < whole.memory_mib));
        }
    }
}

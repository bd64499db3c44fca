//! Types of GPU, as the predictor knows them.

use crate::power::Power;
use crate::share::{Capacities, Mode};

/// One type of GPU: how much several tasks can use of it together, and its power.
#[derive(Debug, Clone, PartialEq)]
pub struct GpuType {
    /// Short name, e.g. `H200`; what is learned is kept under it.
    pub name: String,
    /// What several tasks can use together.
    pub capacities: Capacities,
    /// Its power; `None`: nothing is known, and no clock is lowered.
    pub power: Option<Power>,
    /// Rate of its host link in one direction, MiB/s.
    pub pcie_mib_s: f64,
    /// Whether its numbers were measured on this type.
    pub measured: bool,
}

impl GpuType {
    /// The type of that product name (`NVIDIA H200`, `Tesla V100-SXM2-32GB`, `h200`). One that was never
    /// measured gets the prior's numbers and says so in `measured`.
    #[must_use]
    pub fn named(product: &str) -> Self {
        let (name, known) = carma_hardware::predicted(product);
        match known {
            Some(known) => Self {
                name,
                capacities: known.capacities,
                power: known.power,
                pcie_mib_s: known.pcie_mib_s,
                measured: true,
            },
            None => Self {
                name,
                capacities: Capacities::prior(),
                power: None,
                pcie_mib_s: carma_hardware::Unmeasured::get().pcie_mib_s,
                measured: false,
            },
        }
    }

    /// Whether that product is of this type.
    #[must_use]
    pub fn is(&self, product: &str) -> bool {
        carma_hardware::predicted(product).0 == self.name
    }

    /// A type whose numbers come from elsewhere, e.g. from a model file of virtual GPUs.
    #[must_use]
    pub fn new(name: &str, capacities: Capacities, power: Option<Power>) -> Self {
        Self { capacities, power, measured: true, ..Self::named(name) }
    }

    /// Capacity that the tasks divide in this mode: engine time, or SM activity.
    #[must_use]
    pub fn capacity(&self, mode: Mode) -> f64 {
        let capacity = match mode {
            Mode::TimeSlice => self.capacities.time_slice_gract,
            Mode::Mps => self.capacities.mps_sm,
        };
        if capacity.is_finite() { capacity.clamp(0.1, 4.0) } else { 1.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_product_has_the_numbers_of_its_chip_and_others_the_priors() {
        for (product, name, measured, mps_sm, idle_w, pcie_mib_s) in [
            ("NVIDIA H200", "H200", true, 0.941, Some(106.0), 55_000.0),
            ("NVIDIA A100-SXM4-80GB", "A100", true, 1.24, None, 25_000.0),
            ("Tesla V100-SXM2-16GB", "V100", true, 1.15, None, 12_500.0),
            ("NVIDIA H100 PCIe", "H100", false, 1.15, None, 12_500.0),
        ] {
            let gpu = GpuType::named(product);
            assert_eq!((gpu.name.as_str(), gpu.measured), (name, measured), "{product}");
            assert_eq!((gpu.capacity(Mode::Mps), gpu.pcie_mib_s), (mps_sm, pcie_mib_s), "{product}");
            assert_eq!(gpu.power.map(|power| power.idle_w), idle_w, "{product}");
        }
    }
}

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

/// Names and numbers of the types that were measured. Sources: `docs/research/gpu-models.md` (`carma lab fit`).
const KNOWN: [(&str, Capacities, Option<Power>, f64); 3] = [
    (
        "H200",
        Capacities { time_slice_gract: 0.925, mps_sm: 0.941, ..Capacities::PRIOR },
        Some(Power {
            idle_w: 106.0,
            cap_w: 700.0,
            gract: 0.0,
            smact: 0.708,
            dram: 0.433,
            tensor: 0.786,
            clock_exponent: 1.231,
        }),
        // PCIe 5 x16; pinned copies reached 47,500 MiB/s on one H200 (bench/h200/results).
        55_000.0,
    ),
    ("A100", Capacities { time_slice_gract: 0.943, mps_sm: 1.02, ..Capacities::PRIOR }, None, 25_000.0),
    // The share law's fit says 1.057 for MPS and 0.961 for time-slicing; they stand for a law in which
    // light tasks never wait. Here they do, and published saturated sets make 1.11 to 1.21.
    ("V100", Capacities { time_slice_gract: 0.97, mps_sm: 1.15, ..Capacities::PRIOR }, None, 12_500.0),
];

/// Whether a word of a product's name is more than its maker, its line, its memory or its plug.
fn tells_types_apart(word: &str) -> bool {
    const OTHERS: [&str; 8] = ["NVIDIA", "TESLA", "GEFORCE", "VIRTUAL", "PCIE", "NVL", "SIMULATED", "GPU"];
    let counted = |unit: &str| {
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        word.strip_suffix(unit).is_some_and(digits)
    };
    let numbered =
        |name: &str| word.strip_prefix(name).is_some_and(|n| n.bytes().all(|b| b.is_ascii_digit()));
    !(word.is_empty() || OTHERS.contains(&word) || counted("GB") || numbered("HBM") || numbered("SXM"))
}

impl GpuType {
    /// The type of that product name (`NVIDIA H200`, `Tesla V100-SXM2-32GB`, `h200`). One that was never
    /// measured gets the prior's numbers and says so in `measured`.
    #[must_use]
    pub fn named(product: &str) -> Self {
        let upper = product.to_uppercase();
        let words: Vec<&str> = upper.split(|c: char| !c.is_ascii_alphanumeric()).collect();
        for (name, capacities, power, pcie_mib_s) in KNOWN {
            if words.contains(&name) {
                return Self { name: name.to_owned(), capacities, power, pcie_mib_s, measured: true };
            }
        }
        let name = words.iter().filter(|word| tells_types_apart(word)).copied();
        let name = name.collect::<Vec<_>>().join("-");
        let name = if name.is_empty() { "UNKNOWN".to_owned() } else { name };
        Self { capacities: Capacities::PRIOR, power: None, pcie_mib_s: 12_500.0, measured: false, name }
    }

    /// A type whose numbers come from elsewhere, e.g. from a model file of virtual GPUs.
    #[must_use]
    pub fn new(name: &str, capacities: Capacities, power: Option<Power>) -> Self {
        Self { capacities, power, measured: true, ..Self::named(name) }
    }

    /// Names of the types that were measured.
    pub fn known() -> impl Iterator<Item = &'static str> {
        KNOWN.iter().map(|(name, ..)| *name)
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
    fn product_names_are_known_by_their_type() {
        for (product, name, measured) in [
            ("NVIDIA H200", "H200", true),
            ("h200", "H200", true),
            ("Tesla V100-SXM2-32GB", "V100", true),
            ("NVIDIA A100-SXM4-40GB", "A100", true),
            ("NVIDIA GeForce RTX 3090", "RTX-3090", false),
            ("NVIDIA H100 80GB HBM3", "H100", false),
            ("NVIDIA H100 PCIe", "H100", false),
            ("h100", "H100", false),
            ("NVIDIA L40S", "L40S", false),
            ("", "UNKNOWN", false),
            ("H2000", "H2000", false),
        ] {
            let gpu = GpuType::named(product);
            assert_eq!((gpu.name.as_str(), gpu.measured), (name, measured), "{product}");
        }
    }
}

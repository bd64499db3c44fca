//! Constants of the laws of power and of sharing. The laws are elsewhere.

use crate::Unmeasured;

/// Power of a type: what activity asks for, and what the clock does at the limit. The law is
/// `carma_interference::power`'s.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Power {
    /// With processes that do nothing, watts.
    pub idle_w: f64,
    /// Power limit, watts.
    pub cap_w: f64,
    /// Share of `cap_w - idle_w` that full GRACT asks for.
    pub gract: f64,
    /// The same for full SMACT.
    pub smact: f64,
    /// The same for full DRAM activity.
    pub dram: f64,
    /// The same for full tensor activity.
    pub tensor: f64,
    /// `alpha` in dynamic power ~ clock^alpha.
    pub clock_exponent: f64,
}

/// How much of each resource several tasks can use together, in shares of the *whole* GPU's peak. A task
/// that is alone on a resource loses nothing: it has all of the part that there is. The law is
/// `carma_interference::share`'s.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Capacities {
    /// Engine time (GRACT) under time-slicing.
    pub time_slice_gract: f64,
    /// SM activity under MPS, counted in what the tasks would show alone.
    pub mps_sm: f64,
    /// DRAM activity under MPS.
    pub mps_dram: f64,
    /// Tensor activity under MPS.
    pub mps_tensor: f64,
    /// PCIe traffic in either mode, share of the link.
    pub pcie: f64,
    /// Part of the whole GPU's SMs and tensor pipes that there is: 1, or less on a MIG instance.
    pub part_sm: f64,
    /// Part of the whole GPU's DRAM bandwidth that there is: 1, or less on a MIG instance.
    pub part_dram: f64,
}

impl Capacities {
    /// The prior for a GPU that nobody has measured, from published co-location data on V100 and
    /// A100. Time-slicing divides engine time without loss; MPS packs more SM activity than solo
    /// counters add up to, because kernels fill each other's gaps; not all of DRAM's peak can be had. On
    /// the H200 it is up to 35 % too high (ResNet26, MPS, k=7): a level does not carry over from one GPU
    /// to another.
    #[must_use]
    pub fn prior() -> Self {
        Unmeasured::get().model.capacities
    }
}

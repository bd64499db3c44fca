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

/// How the host of a task and its waiting stretch a step in company, under one way of sharing. The law is
/// `carma_interference::law`'s.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Waiting {
    /// Share of its steps that a host queues ahead, of a task with 0.7 of the engine alone, above 0 and below 1.
    pub overlap: f64,
    /// What a whole engine more adds to the logit of that.
    pub overlap_engine: f64,
    /// Seconds that a step waits for each other before it, where it ends with an answer that is waited for.
    pub wait_s: f64,
}

/// What a GPU shared by several tasks can do: how much of each resource they can use together, in shares of
/// what there is, and how they wait for each other. A task that is alone on a resource loses nothing. The law is
/// `carma_interference::law`'s.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Capacities {
    /// Engine time (GRACT) under time-slicing.
    pub time_slice_gract: f64,
    /// SM activity under MPS, counted in what the tasks would show alone.
    pub mps_sm: f64,
    /// DRAM activity under MPS, share of the theoretical bandwidth.
    pub mps_dram: f64,
    /// Tensor activity under MPS.
    pub mps_tensor: f64,
    /// PCIe traffic in either mode, share of the link.
    pub pcie: f64,
    /// Waiting under time-slicing.
    pub time_slice: Waiting,
    /// Waiting under MPS.
    pub mps: Waiting,
    /// How much more the heavier of two MPS clients gets for each GPU's worth of SMs that is asked for beyond one.
    pub crowding: f64,
    /// Power of 1 / (share of the SMs that its kernels leave free) in the weight of an MPS client.
    pub weight_free_sms: f64,
    /// Power of e^(tensor activity^4) in it.
    pub weight_tensor: f64,
    /// Steps a second that a task is taken to make alone of which that is not known.
    pub steps_per_s: f64,
    /// Part of the whole GPU's SMs and tensor pipes that there is: 1, or less on a MIG instance.
    pub part_sm: f64,
    /// Part of the whole GPU's DRAM bandwidth that there is: 1, or less on a MIG instance.
    pub part_dram: f64,
}

impl Capacities {
    /// The prior for a GPU that nobody has measured, from published co-location data on V100 and
    /// A100. Time-slicing divides engine time without loss; MPS packs more SM activity than solo
    /// counters add up to, because kernels fill each other's gaps; not all of DRAM's peak can be had. A
    /// level does not carry over from one GPU to another. How tasks wait is the H200's, the only type on which it was
    /// measured.
    #[must_use]
    pub fn prior() -> Self {
        Unmeasured::get().model.capacities
    }
}

/// What the predictor of slowdown believes of the law's constants before it has seen any group, on any type.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prior {
    /// Waiting under time-slicing.
    pub time_slice: Waiting,
    /// Waiting under MPS.
    pub mps: Waiting,
    /// As [`Capacities::crowding`].
    pub crowding: f64,
    /// Powers in the weight of an MPS client: of the registers of a launch, of 1 / (free SMs), of 1 / (traffic to the
    /// GPU), of e^(tensor activity^4).
    pub weights: [f64; 4],
}

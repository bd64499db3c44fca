//! AntMan (Xiao et al., OSDI 2020): opportunistic jobs beside resource-guaranteed ones.
//!
//! An opportunistic job comes to a GPU where memory is free and the GPU is not busy, the least busy
//! first. Its kernels are held back for those of a guaranteed job, and when that needs its memory, it
//! moves to the host.
//!
//! Our reading:
//!  - "Not busy" is less than [`BUSY`] of GPU utilisation, of the jobs alone, summed; the paper leaves
//!    the bound to the operator.
//!  - Its local coordinator is a weight: opportunistic jobs get what guaranteed ones leave.
//!  - An opportunistic job that shrinks to the host stands still and may go on elsewhere: it is taken
//!    off, the last to come first. That happens when a guaranteed job comes; memory that one grows
//!    into later is spoken for from its start (its profiled peak), so that nobody is surprised.
//!  - Guaranteed jobs never ride as opportunistic ones while they wait for their GPUs.

use super::desk::Desk;
use super::opportunistic::{Rules, Tiers};

/// GPU utilisation from which on a GPU takes no further opportunistic job.
const BUSY: f64 = 0.8;

pub(super) fn scheduler(desk: Desk, seed: u64) -> Tiers {
    Tiers::new(desk, Rules { utilisation: BUSY, most: usize::MAX }, seed)
}

//! AntMan (Xiao et al., OSDI 2020): opportunistic jobs beside resource-guaranteed ones.
//!
//! An opportunistic job comes to a GPU where memory is free and the GPU is not busy, the least busy
//! first. Its kernels are held back for those of a guaranteed job, and when that needs its memory, it
//! moves to the host.
//!
//! Our reading:
//!  - "Not busy" is less than [`BUSY`] of GPU utilisation, of the jobs alone, summed; the paper leaves
//!    the bound to the operator.
//!  - Its local coordinator has found the idle time between the guaranteed jobs' operators: a weight gives
//!    opportunistic jobs what those leave. How it gets there, by their mini-batch times, takes no time here.
//!  - Left out: tensors that move to host memory while their job goes on, slower. How much slower depends on
//!    which tensors a step touches, which no catalogue says. An opportunistic job whose memory a guaranteed one
//!    needs is taken off instead, the last to come first, and may go on elsewhere. That happens when a
//!    guaranteed job comes; memory that one grows into later is spoken for from its start (its profiled peak).
//!  - Guaranteed jobs never ride as opportunistic ones while they wait for their GPUs.

use super::desk::Desk;
use super::opportunistic::{Rules, Tiers};

/// GPU utilisation from which on a GPU takes no further opportunistic job.
const BUSY: f64 = 0.8;

/// Weight of an opportunistic job beside guaranteed ones of weight 1: its kernels then run while theirs do not, and hardly
/// beside them.
const LEFTOVERS: f64 = 1e-3;

pub(super) fn scheduler(desk: Desk, seed: u64) -> Tiers {
    Tiers::new(desk, Rules { utilisation: BUSY, most: usize::MAX, weight: LEFTOVERS }, seed)
}

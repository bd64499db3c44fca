//! TGS (Wu et al., NSDI 2023): transparent sharing of a GPU by a production job and an opportunistic
//! one in containers.
//!
//! Adaptive rate control finds the rate of the opportunistic job's kernels at which the production
//! job's do not slow down; unified memory lets the two ask for more than there is, the production
//! job's pages first.
//!
//! Our reading:
//!  - Rate control has converged: the opportunistic job gets what the production job leaves, whatever
//!    its utilisation. A weight does that.
//!  - One opportunistic job on a GPU, as in the paper's evaluation.
//!  - Pages that are swapped out stop a job nearly; here it stops, and may go on elsewhere: it comes
//!    only where the memory of both fits, and is taken off when a production job comes that needs it.
//!    So TGS' runs with oversubscribed memory, slow but not standing, are not reproduced.

use super::desk::Desk;
use super::opportunistic::{Rules, Tiers};

pub(super) fn scheduler(desk: Desk, seed: u64) -> Tiers {
    Tiers::new(desk, Rules { utilisation: f64::INFINITY, most: 1 }, seed)
}

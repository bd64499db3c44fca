//! A model that was exported for a fixed batch, with another one: what its reshapes to fixed numbers become.

use super::sizes::Sizes;
use super::{Call, Value, Values};

impl Call<'_> {
    /// A model that was exported with a fixed batch: reshapes to fixed numbers follow the first pass.
    pub(super) fn follow(&self, made: &mut [Value], first: &Values, sizes: &Sizes<'_>) {
        let Some(fixed) = sizes.fixed else { return };
        if !matches!(self.node.op.as_str(), "Reshape" | "Expand") {
            return;
        }
        let (Some(x), Some(before), Some(out), Some(made)) = (
            self.input(0),
            self.node.input(0).and_then(|id| first.get(id)),
            self.node.outputs.first().and_then(|id| first.get(*id)),
            made.first_mut(),
        ) else {
            return;
        };
        let reshape = self.node.op == "Reshape";
        if made.known.is_some() || (reshape && x.shape == before.shape) {
            return;
        }
        let mut shape = out.shape.clone();
        let scaled = |d: u64| d.checked_mul(sizes.batch).filter(|d| d % fixed == 0).map(|d| d / fixed);
        if reshape {
            let place = place_of_batch(&before.shape, &x.shape, &shape, fixed);
            if let Some((d, size)) = place.and_then(|at| scaled(shape[at]).map(|size| (at, size))) {
                shape[d] = size;
            }
            let elements = |s: &[u64]| s.iter().try_fold(1_u64, |n, d| n.checked_mul(*d));
            if elements(&shape) == elements(&x.shape) {
                made.shape = shape;
            }
        } else if shape.first() == Some(&fixed) && fixed > 1 && x.shape.first().is_none_or(|d| *d == 1) {
            shape[0] = sizes.batch;
            made.shape = shape;
        }
    }
}

/// Where the batch goes in a reshape: into one of the dimensions that the input's grown one is split into, or
/// into that which it is folded into.
fn place_of_batch(before: &[u64], now: &[u64], out: &[u64], fixed: u64) -> Option<usize> {
    let grown = before.iter().zip(now).position(|(a, b)| a != b)?;
    let product = |dims: &[u64]| dims.iter().fold(1_u64, |n, d| n.saturating_mul(*d));
    let start = product(&before[..grown]);
    let end = start.saturating_mul(before[grown]);
    let split = || (0..out.len()).filter(|i| product(&out[..*i]) >= start && product(&out[..=*i]) <= end);
    let exact = split().find(|i| out[*i] == fixed && fixed > 1);
    let shared = || split().find(|i| out[*i].is_multiple_of(fixed));
    exact.or_else(shared).or_else(|| (0..out.len()).rev().find(|i| product(&out[..*i]) <= start))
}

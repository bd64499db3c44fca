//! Horus (Yeung et al., TPDS 2022), as GPUMemNet and CARMA computed it.
//!
//! `M = 4 (A B + P + B G)` bytes with A activations a sample, P parameters, B batch, and G = P: the
//! gradients are counted once a sample, which no framework does. There is no optimizer, no lifetime of
//! tensors, no allocator. The paper's own memory formula could not be retrieved; this is what its
//! users ran. Their numbers come in three variants:
//!
//! - [`Variant::Plain`]: the formula. The sheet of fully connected nets on MNIST holds it in GiB times
//!   1,000, which [`gib_thousands`] gives: all its 429 rows agree to the last digit.
//! - [`Variant::Plus800`]: 800 MiB added; CARMA's task files.
//! - [`Variant::Plus1000`]: 1,000 MiB added; the sheet's second column.
//!
//! On 18 real models it is 63 % under to 358 % over. The bound is 2.75 times the estimate, above
//! all of those.

use super::{Totals, answer};
use crate::{Estimate, MIB, MiB};

/// Bound over estimate: the largest published underestimate was 63 %.
const UPPER: f64 = 2.75;

/// What is added to the formula.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Variant {
    /// Nothing is added.
    Plain,
    /// 800 MiB.
    #[default]
    Plus800,
    /// 1,000 MiB.
    Plus1000,
}

impl Variant {
    /// What is added, MiB.
    #[must_use]
    pub const fn added_mib(self) -> u32 {
        match self {
            Self::Plain => 0,
            Self::Plus800 => 800,
            Self::Plus1000 => 1000,
        }
    }
}

/// The formula, bytes.
#[must_use]
pub fn bytes(totals: Totals) -> f64 {
    let (a, p, b) = (totals.activations as f64, totals.parameters as f64, totals.batch as f64);
    4.0 * (a * b + p + b * p)
}

/// The formula and what a variant adds, MiB.
#[must_use]
pub fn mib(totals: Totals, variant: Variant) -> f64 {
    bytes(totals) / MIB as f64 + f64::from(variant.added_mib())
}

/// The formula in the unit of the sheet: GiB times 1,000.
#[must_use]
pub fn gib_thousands(totals: Totals) -> f64 {
    bytes(totals) / (1024.0 * MIB as f64) * 1000.0
}

/// The estimate, in the variant of CARMA's task files.
#[must_use]
pub fn estimate(totals: Totals, family: &str) -> Estimate {
    let mib = mib(totals, Variant::Plus800);
    let reasons = vec![
        format!(
            "4 (A B + P + B P) bytes + 800 MiB with A = {} activations a sample, P = {} parameters, B = {}",
            totals.activations, totals.parameters, totals.batch
        ),
        "gradients are counted once a sample; optimizer, lifetimes and allocator are left out".to_owned(),
        format!("bound: {UPPER} times, as it was up to 63 % under on published models"),
    ];
    answer("horus", family, MiB(mib.ceil() as u64), MiB((mib * UPPER).ceil() as u64), reasons)
}

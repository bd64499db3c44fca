//! KACE as published (Han, Paul, Liu, Gandhi, "KACE: Kernel-Aware Colocation for Efficient GPU Spatial
//! Sharing", SoCC 2024, doi 10.1145/3698038.3698555), the policies that it was compared with, and the
//! protocols by which they were compared. `docs/research/kace.md` says what was found out about them. What was trained is kept
//! and asked by [`carma_interference::kace`].
//!
//! # To score a predictor of your own on the same protocols
//! ```no_run
//! use carma_lab_interference::kace::{Artifact, protocol, score};
//! # fn main() -> Result<(), carma_lab_interference::kace::Error> {
//! let artifact = Artifact::new("../shared/data/nba556677go__KACE-artifact");
//! let pairs = artifact.pairs()?;
//! let protocol = protocol::seen(&pairs, &artifact.splits(&pairs)?);
//! // One number a test row, the best the highest: here the least memory in sum.
//! let memory = pairs.feature(carma_lab_interference::kace::table::MEMCAP)?;
//! let least = score::per_case(|_train, case| {
//!     Ok(case.test.iter().map(|row| -row.members.iter().map(|m| m.features[memory]).sum::<f64>()).collect())
//! });
//! let scored = score::evaluate(&least, &protocol, 1)?;
//! println!("{:.3} of oracle", score::mean_of(&scored));
//! # Ok(()) }
//! ```
//! A [`protocol::Protocol`] is a list of [`protocol::Split`]s: what may be learned from, and the
//! [`protocol::Case`]s to decide, each a target with the test rows that hold it. A [`score::Scorer`] learns from
//! a split once and then scores the rows of each case; [`score::evaluate`] takes the row of the highest score and
//! divides the sum of throughput there by the best there is. A [`table::Collocation`] has its members in the order of the
//! file, each with its throughput (items/s) and the features of its solo profile.
//!
//! A scorer must not look at the throughput of test rows; [`score::oracle`] does.

mod artifact;
pub(crate) mod cells;
pub mod eval;
pub mod features;
pub mod forest;
#[cfg(test)]
mod fuzz;
pub mod linear;
pub mod network;
pub mod partition;
pub mod protocol;
pub mod rules;
pub mod score;
mod shuffle;
pub mod table;
pub mod trainer;
pub mod xu;

pub use artifact::{Artifact, ByWorkload, PairSplit, Reported};
pub use carma_interference::kace::Error;

/// What is said of a file that cannot be read.
#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
pub(crate) fn unread(e: carma_files::FileError) -> Error {
    Error::new(e.file.display().to_string(), e.why.to_string())
}

//! KACE as published (Han, Paul, Liu, Gandhi, "KACE: Kernel-Aware Colocation for Efficient GPU Spatial
//! Sharing", SoCC 2024, doi 10.1145/3698038.3698555), the policies that it was compared with, and the
//! protocols by which they were compared. `docs/research/kace.md` says what was found out about them.
//!
//! # To score a predictor of your own on the same protocols
//! ```no_run
//! use carma_interference::kace::{Artifact, protocol, score};
//! # fn main() -> Result<(), carma_interference::kace::Error> {
//! let artifact = Artifact::new("../shared/data/nba556677go__KACE-artifact");
//! let pairs = artifact.pairs()?;
//! let protocol = protocol::seen(&pairs, &artifact.splits(&pairs)?);
//! // One number a test row, the best the highest: here the least memory in sum.
//! let memory = pairs.feature(carma_interference::kace::table::MEMCAP)?;
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
//! divides the sum of throughput there by the best there is. A [`table::Row`] has its members in the order of the
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
pub mod predictor;
pub mod protocol;
pub mod rules;
pub mod score;
mod shuffle;
pub mod table;

pub use artifact::{Artifact, ByWorkload, PairSplit, Reported};

/// What is wrong with a file or with what is asked of it: where, and what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {what}")]
pub struct Error {
    /// File, row and column, or what was asked for.
    pub place: String,
    /// What is wrong and what to do.
    pub what: String,
}

impl From<carma_files::FileError> for Error {
    fn from(e: carma_files::FileError) -> Self {
        Self::new(e.file.display().to_string(), e.why.to_string())
    }
}

impl Error {
    /// An error at a place.
    pub fn new(place: impl Into<String>, what: impl Into<String>) -> Self {
        Self { place: place.into(), what: what.into() }
    }
}

//! KACE's prediction (Han, Paul, Liu, Gandhi, "KACE: Kernel-Aware Colocation for Efficient GPU Spatial Sharing", SoCC
//! 2024, doi 10.1145/3698038.3698555): a trained model is read from its file and asked about collocations. It is
//! trained in the laboratory (`lab/interference`), behind `carma lab kace train`.

pub mod features;
pub mod forest;
pub mod linear;
pub mod network;
pub mod row;
pub mod trained;

/// What is wrong with a file or with what is asked of it: where, and what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {what}")]
pub struct Error {
    /// File, row and column, or what was asked for.
    pub place: String,
    /// What is wrong and what to do.
    pub what: String,
}

impl Error {
    /// An error at a place.
    pub fn new(place: impl Into<String>, what: impl Into<String>) -> Self {
        Self { place: place.into(), what: what.into() }
    }
}

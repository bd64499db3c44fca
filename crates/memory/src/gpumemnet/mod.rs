//! GPUMemNet: the class of a task's memory, by ensembles of small networks (Yousefzadeh-Asl-Miandoab et al., part of
//! CARMA, arXiv 2508.19073).
//!
//! Here trained networks are run: those that carma brings along ([`estimate`]) and those of a file ([`Bundle`]).
//! `carma-lab` trains them, compares them, and runs the authors' own ([`AuthorsNetworks`]).
//!
//! The two designs are theirs: an ensemble of perceptrons over counts of the whole model, and attention over
//! its layers with perceptrons behind. What differs here:
//! - every fold trains a fresh network, and no task is tested on a network that saw it;
//! - attention runs over the layers of one model, not over the batch; there are no positions, so that equal layers
//!   can be counted instead of repeated, and no padding is seen;
//! - features are logarithms, with optimizer, precision and attention kernel among them ([`FeatureSet`]);
//! - runs that ended out of memory are lower bounds: the likelihood of such a run is that of needing more;
//! - the last layer says a distribution ([`Head`]), so that one network answers in classes of any width, and as an
//!   upper bound whose coverage is calibrated on tasks that the network did not see;
//! - the context is learned apart: what is learned is memory beside it.

mod authors;
mod ensemble;
pub mod features;
mod file;
mod measured;
mod model;
pub mod net;
pub mod network;
pub mod outlook;
pub mod published;
mod read;
mod shipped;

pub use authors::{Answer, AuthorsNetworks, Question};
pub use ensemble::Ensemble;
pub use features::FeatureSet;
pub use measured::{Fingerprint, Measured, Sample};
pub use model::{FUNCTIONS, Family, Layer, LayerKind, ModelLayers};
pub use network::Network;
pub use outlook::{Head, Outlook, class_of};
pub use shipped::{estimate, estimate_model, network, shipped};

/// Ensembles of one training, as they are kept in a file.
pub type Bundle = crate::weights::Bundle<Network>;

#[cfg(test)]
mod tests;

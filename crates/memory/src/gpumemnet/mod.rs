//! GPUMemNet: the class of a task's memory, by ensembles of small networks.

pub mod checkpoint;
mod features;
mod model;
mod net;
mod network;
mod outlook;
mod published;
mod rows;
mod score;
mod train;

pub use features::FeatureSet;
pub use model::{FUNCTIONS, Family, Kind, Layer, Model};
pub use network::Network;
pub use outlook::{Head, Outlook, class_of};
pub use published::{Ensemble, Published};
pub use rows::{Data, Fingerprint, Measured, Sample};
pub use score::{Score, score, score_published};
pub use train::{Fold, Options, cross_validate, folds, train};

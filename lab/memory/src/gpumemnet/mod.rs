//! Training and comparing GPUMemNet's ensembles, and its authors' own (Yousefzadeh-Asl-Miandoab et al., part of CARMA,
//! arXiv 2508.19073). `carma_memory::gpumemnet` runs what is trained here.

pub mod checkpoint;
mod data;
mod published;
pub(crate) mod score;
mod train;

pub use data::Data;
pub use published::{Folder, Published};
pub use score::{Score, score, score_published};
pub(crate) use train::threads;
pub use train::{Options, cross_validate, cross_validate_with, train};

#[cfg(test)]
mod tests;

//! Predictions of slowdown: how fast each task goes when several share a GPU.

pub mod kernels;
pub mod power;
pub mod profile;
pub mod rate;
pub mod share;
pub mod solo;

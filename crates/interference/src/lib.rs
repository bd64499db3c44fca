//! Predictions of slowdown: how fast each task goes when several share a GPU.

pub mod assumed;
pub mod group;
pub mod kace;
pub mod kernels;
pub mod law;
pub mod lucid;
pub mod measured;
mod mode;
pub mod online;
pub mod outlook;
pub mod power;
pub mod predict;
pub mod profile;
pub mod rate;
pub mod share;
pub mod solo;

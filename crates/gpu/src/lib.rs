//! Real GPUs: how they are read ([`Probe`]) and how they are shared ([`Sharing`]).
//!
//! Virtual GPUs implement the same two traits in `carma-virtual-gpu`.

pub mod mps;
pub mod nvml;
pub mod probe;
pub mod sharing;

pub use mps::{Mps, MpsOptions, find_program};
pub use nvml::{NvmlOptions, NvmlProbe};
pub use probe::{Probe, ProbeError};
pub use sharing::{Grant, Sharing, SharingError, SharingRequest};

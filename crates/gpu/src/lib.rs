//! Real GPUs: how they are read ([`Probe`]), how they are shared ([`Sharing`]), and how processes are taken off them and
//! put back ([`Checkpoint`]).
//!
//! Virtual GPUs implement the same three traits in `carma-virtual-gpu`.

pub mod checkpoint;
pub mod mps;
pub mod nvml;
pub mod probe;
pub mod sharing;

pub use checkpoint::{Checkpoint, CheckpointError, ProcessState};
pub use mps::{Mps, MpsOptions, find_program};
pub use nvml::{NvmlOptions, NvmlProbe};
pub use probe::{Probe, ProbeError};
pub use sharing::{Grant, Sharing, SharingError, SharingRequest};

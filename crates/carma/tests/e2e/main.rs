//! The real daemon with real processes on virtual GPUs.

mod crash;
mod faults;
mod lifecycle;
mod nvml;
mod recovery;
mod replay;
mod sharing;
mod support;
mod users;

//! The real daemon with real processes on virtual GPUs.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that fails says so by panicking")]

mod crash;
mod faults;
mod lifecycle;
mod memory;
mod nvml;
mod profile;
mod recovery;
mod replay;
mod service;
mod sharing;
mod simulated;
mod slowdown;
mod support;
mod users;
mod what_if;

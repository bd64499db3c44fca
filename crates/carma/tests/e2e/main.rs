//! The real daemon with real processes on virtual GPUs.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that fails says so by panicking")]

mod audit;
mod bench_trace;
mod connections;
mod crash;
mod explain;
mod faults;
mod journal;
mod lifecycle;
mod limits;
mod memory;
mod nvml;
mod privacy;
mod profile;
mod recovery;
mod replay;
mod report;
mod run_time;
mod saving;
mod service;
mod sharing;
mod simulated;
mod slowdown;
mod support;
mod suspending;
mod usage;
mod users;
mod what_if;

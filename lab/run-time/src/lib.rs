//! Forecasts of run time against public traces: what `carma lab runtime-bench` runs and prints.

mod bench;
mod traces;

pub use bench::{Quality, Result, Test, of};
pub use traces::{Job, Log, LogError, PUBLIC, Public, imported};

//! The service: the engine that owns the state, the journal, supervision of jobs, and HTTP.
//!
//! ```text
//!  http ──message──> engine ──inputs──> journal (SQLite)
//!                     │  ^
//!             actions │  │ inputs
//!                     v  │
//!          perform ── run/ (spawn, watch, adopt) ── supervisor processes ── jobs
//!                        ^
//!          sampler ──────┘ (probe: NVML or virtual GPUs)
//! ```

#![cfg_attr(not(test), warn(clippy::print_stderr))]

/// Writes a line to standard error, if it can: where the reader is gone or the disk is full, `eprintln!` would panic.
macro_rules! complain {
    ($($what:tt)*) => {{
        let _ = std::io::Write::write_fmt(&mut std::io::stderr().lock(), format_args!("{}\n", format_args!($($what)*)));
    }};
}

pub mod audit;
pub mod clock;
pub mod config;
pub mod engine;
mod error;
pub mod explain;
pub mod fault;
pub mod gist;
pub mod http;
pub mod journal;
mod layout;
pub mod limits;
mod logs;
pub mod memory;
pub mod messages;
pub mod news;
pub mod notify;
pub mod people;
pub mod perform;
pub mod quota;
pub mod recorder;
pub mod refused;
pub mod run;
pub mod run_time;
pub mod sampler;
pub mod serve;
pub mod slowdown;
pub mod submission;
pub mod view;
pub mod waiters;

pub use error::ServeError;
pub use run::supervise;
pub use run::suspend;
pub use serve::{ServeOptions, serve};

//! What is measured of tasks on GPUs: one alone ([`profile`]), what several do to each other ([`interference`]), how much
//! more work a GPU gets done by sharing ([`collocation`]), what policies make of a trace of them ([`trace`]), and what a bare CUDA context takes ([`context`]).
//!
//! Nothing here knows a command line: options come as plain structures, results go back as values, and what is worth
//! saying meanwhile is handed to the caller, line by line ([`Say`]).

mod child;
pub mod collocation;
pub mod context;
mod error;
pub mod interference;
pub mod profile;
pub mod service;
pub mod trace;

pub use error::{Error, FailureKind};

/// Is told what goes on, a line at a time, without its end.
pub type Say<'a> = &'a dyn Fn(&str);

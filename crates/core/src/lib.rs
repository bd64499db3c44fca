//! The decisions of carma.
//!
//! [`State::apply`] changes the state by one [`Input`]; [`plan`] looks at a state and says what to
//! do and why. Nothing here does I/O, reads a clock, starts a thread or draws a random number, so
//! the same inputs give the same actions in the daemon, in the simulator and in a replay.
//!
//! ```text
//! inputs ──> State::apply ──> State ──> plan ──> Plan { actions, reasons }
//!    ^                                             │
//!    └───────────── Input::Decided(action) ────────┘
//! ```

pub mod check;
pub mod explain;
pub mod input;
pub mod ledger;
pub mod model;
pub mod plan;
pub mod policy;
pub mod reading;
pub mod recovery;
pub mod slowdown;
pub mod state;
pub mod units;
pub mod windows;

pub use input::{Action, Input, Rejected};
pub use plan::{Plan, plan};
pub use state::{Applied, State};

//! The decisions of carma.
//!
//! [`State::apply`] changes the state by one [`Input`]; [`plan()`] looks at a state and says what to
//! do and why. Nothing here does I/O, reads a clock, starts a thread or draws a random number, so
//! the same inputs give the same actions in the daemon, in the simulator and in a replay.
//!
//! ```text
//! inputs ──> State::apply ──> State ──> plan ──> Plan { actions, reasons }
//!    ^                                             │
//!    └───────────── Input::Decided(action) ────────┘
//! ```
//!
//! # Rooms
//!
//! From bottom to top. A room uses only rooms that come before it; `tests/rooms.rs` makes sure of that.
//!
//! 1. `units`: memory, time and shares, in integers
//! 2. `reading`: what a probe reports of the GPUs
//! 3. `windows`: activity over time, and the risks computed from it
//! 4. `spec`: a job as it was asked for (public in `model`)
//! 5. `look`: a GPU as it was seen, processes matched with jobs (public in `input`)
//! 6. `progress`: how fast jobs go beside each other, predicted and measured (public in `slowdown`)
//! 7. `policy`: where a job may go, and every other rule, as data
//! 8. `recovery`: what the end of an attempt means, and what the next one gets
//! 9. `ledger`: what is reserved on each GPU, and what was seen on it
//! 10. `explain`: reasons, as data and as text
//! 11. `model`: jobs and their attempts
//! 12. `input`: what comes in, what goes out, why an input is refused
//! 13. `state`: everything that decisions depend on, and the one way to change it
//! 14. `check`: what must hold in every state
//! 15. `slowdown`: which job may join which where a slowdown is limited
//! 16. `plan`: what to do now, and why

pub mod check;
pub mod explain;
pub mod input;
pub mod ledger;
mod look;
pub mod model;
pub mod plan;
pub mod policy;
mod progress;
pub mod reading;
pub mod recovery;
pub mod slowdown;
mod spec;
pub mod state;
pub mod units;
pub mod windows;

pub use input::{Action, Input, Rejected};
pub use plan::{Plan, plan};
pub use state::{Applied, State};

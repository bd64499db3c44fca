//! Reasons: data made with the decision, rendered once for terminal, JSON and web.
//!
//! Nothing here decides: the code that decides makes the reason.

mod code;
mod public;
mod reason;
mod refusal;
#[cfg(test)]
mod tests;
mod text;

pub use reason::{Reason, UserLimit};
pub use refusal::{Holder, NoGpu, Refusal};

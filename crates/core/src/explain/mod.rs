//! Reasons: data made with the decision, rendered once for terminal, JSON and web.
//!
//! Nothing here decides: the code that decides makes the reason.

mod brief;
mod code;
mod objection;
mod public;
mod reason;
mod refusal;
mod soon;
mod sooner;
#[cfg(test)]
mod tests;
mod text;

pub use objection::Objection;
pub use reason::{Aside, Eviction, Filling, Narrowed, Reason, UserLimit};
pub use refusal::{Holder, NoGpu, OfTheGpu, Refusal};
pub use soon::Soon;
pub use sooner::{Help, Sooner};

//! Policies in the large: what no schedule can be better than ([`bound`]), what a clairvoyant search finds ([`search`]), and
//! where policies stand ([`compare`]).

pub mod bound;
pub mod compare;
pub mod figures;
pub mod gaps;
pub mod limits;
pub mod objectives;
pub mod search;
mod threads;
pub mod traces;

/// What went wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Error(pub String);

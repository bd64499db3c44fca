//! What the end of an attempt means: what its log says, what the looks around it say, whose fault it was, and what the next
//! attempt gets.
//!
//! Pure functions of facts. The state collects the facts and carries out what is said here.

mod around;
mod blame;
mod evidence;
mod ladder;

pub(crate) use around::Around;
pub use around::{Glance, Glances};
pub use blame::Blame;
pub(crate) use blame::{OomFacts, blame};
pub use evidence::{Evidence, EvidenceKind, Said, last_line, scan};
pub use ladder::Floor;
pub(crate) use ladder::{Next, Tried, after_growth, after_neighbours, kept, next_attempt};

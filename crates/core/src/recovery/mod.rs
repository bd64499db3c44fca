//! What the end of an attempt means: classification, blame, and what the next attempt gets.

pub mod evidence;
pub mod verdict;

pub use evidence::{Evidence, EvidenceKind, scan};
pub use verdict::{Blame, OomFacts, blame, first_floor, ladder, next_floor};

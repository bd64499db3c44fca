//! What the end of an attempt means: classification, blame, and what the next attempt gets.

pub mod around;
pub mod evidence;
pub mod verdict;

pub use around::{Around, Glance, Glances, Span};
pub use evidence::{Evidence, EvidenceKind, Said, scan};
pub use verdict::{Blame, OomFacts, blame, first_floor, given, ladder, next_floor};

//! Reports of simulated runs: [`json`] for programs, [`html`] for people.

pub mod html;
pub mod json;
pub mod seeds;

// The made-up runs of the tests. The browser test of the `carma` crate includes the same file, so it
// takes its types from its parent module.
#[cfg(test)]
mod example;
#[cfg(test)]
use crate::event::outcome;

//! The simulator: the core's `apply` and `plan`, driven by events on a virtual clock.

pub mod outcome;

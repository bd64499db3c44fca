//! The laboratory of memory forecasts: data sets of measured memory, training and scores of the networks that learn from
//! them, the authors' checkpoints, and the bench of all estimators. `carma-memory` is what users run; nothing there
//! depends on this.

pub mod bench;
pub mod compare;
pub mod dataset;
pub mod dnnperf;
pub mod faketensor;
pub mod gpumemnet;

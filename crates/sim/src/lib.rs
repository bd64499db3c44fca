//! The simulator: models, never measurements, and whatever shows its numbers says so.
//!
//! [`event`] plays a trace ([`trace`]) through the decision core on a virtual clock, thousands of
//! times faster than life, and [`report`] shows what came of it. It knows GPUs by their types
//! (`carma_hardware`), whose constants [`gpu`] puts to use.

pub mod event;
pub mod gpu;
pub mod report;
pub mod trace;

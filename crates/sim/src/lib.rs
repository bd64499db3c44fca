//! The simulator and the virtual GPUs: models, never measurements, and whatever shows their numbers
//! says so.
//!
//! [`event`] plays a trace ([`trace`]) through the decision core on a virtual clock, thousands of
//! times faster than life, and [`report`] shows what came of it. [`virtual_gpu`] is a host of GPUs
//! that real processes ([`virtual_task`]) can use, for tests and demos of the daemon. Both know GPUs by
//! `carma_hardware`, whose constants [`fit`] takes from measurements.

pub mod event;
pub mod fit;
pub mod report;
pub mod trace;
pub mod virtual_gpu;
pub mod virtual_task;

//! Virtual GPUs: a model of GPUs inside carma, for tests and demos on machines that have none.
//!
//! [`virtual_gpu`] is the model with its host, [`virtual_task`] the process that uses it. Both are a
//! test double. Nothing that they report is a measurement, and whatever shows it says "virtual".

pub mod virtual_gpu;
pub mod virtual_task;

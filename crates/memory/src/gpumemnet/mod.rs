//! GPUMemNet: the class of a task's memory, by ensembles of small networks.

pub mod checkpoint;

//! Training the graph model in the manner of DNNPerf, on the rows of carma's data sets. `carma_memory::dnnperf` runs it.

mod build;
mod train;

pub use build::{Cells, graph};
pub use train::{Graphs, cross_validate, read, score, train};

#[cfg(test)]
mod tests;

//! Folds of a cross-validation: which tasks a stored network did not see.

use super::Network;
use carma_nn::Rng;

/// One fold of a cross-validation: a network that never saw the tasks in `test`.
#[derive(Debug, Clone, PartialEq)]
pub struct Fold {
    /// Places of its test tasks in the data.
    pub test: Vec<usize>,
    /// The network.
    pub network: Network,
}

/// Places of the test tasks of each fold; every task is in just one.
#[must_use]
pub fn folds(tasks: usize, folds: usize, seed: u64) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..tasks).collect();
    Rng::new(seed, 1).shuffle(&mut order);
    let folds = folds.max(1);
    (0..folds).map(|f| order.iter().copied().skip(f).step_by(folds).collect()).collect()
}

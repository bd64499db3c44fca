//! Random forests for regression (Breiman, 2001): their trees, and what they predict.

use serde::{Deserialize, Serialize};

/// How a forest is grown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Number of trees.
    pub trees: usize,
    /// Features tried at each node: the square root of their number, otherwise the logarithm to base 2.
    pub square_root: bool,
    /// Most levels; `None`: any.
    pub depth: Option<usize>,
    /// Fewest rows of a node that is divided.
    pub min_split: usize,
    /// Fewest rows of a leaf.
    pub min_leaf: usize,
    /// Each tree learns from rows drawn with replacement, otherwise from all.
    pub bootstrap: bool,
}

/// One node of a tree, or a leaf.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Node {
    /// Feature, threshold, node for what is not above it, node for the rest.
    Split(u32, f64, u32, u32),
    /// The mean.
    Leaf(f64),
}

/// A tree: node 0 is the root.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Tree(pub Vec<Node>);

/// The mean of trees.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Forest {
    /// How it was grown.
    pub settings: Settings,
    /// At least one.
    pub trees: Vec<Tree>,
}

impl Forest {
    /// For one row.
    #[must_use]
    pub fn predict(&self, x: &[f64]) -> f64 {
        self.trees.iter().map(|t| t.predict(x)).sum::<f64>() / self.trees.len().max(1) as f64
    }

    /// Whether every node leads to nodes further down and every feature is one of `features`: true of what
    /// was grown, to be asked of what a file holds.
    #[must_use]
    pub fn is_whole(&self, features: usize) -> bool {
        !self.trees.is_empty()
            && self.trees.iter().all(|tree| {
                !tree.0.is_empty()
                    && tree.0.iter().enumerate().all(|(i, node)| match *node {
                        Node::Leaf(mean) => mean.is_finite(),
                        Node::Split(f, at, low, high) => {
                            let below = |n: u32| (n as usize) > i && (n as usize) < tree.0.len();
                            (f as usize) < features && at.is_finite() && below(low) && below(high)
                        }
                    })
            })
    }
}

impl Tree {
    fn predict(&self, x: &[f64]) -> f64 {
        let mut at = 0;
        loop {
            match self.0.get(at) {
                Some(Node::Split(feature, threshold, low, high)) => {
                    let value = x.get(*feature as usize).copied().unwrap_or(0.0);
                    at = if value <= *threshold { *low } else { *high } as usize;
                }
                Some(Node::Leaf(mean)) => return *mean,
                None => return 0.0,
            }
        }
    }
}

//! Policies without learning: the partner with the highest or lowest sum of one feature.

use super::Error;
use super::protocol::Case;
use super::score::{Fitted, Scorer};
use super::table::{Collocation, MEM_BUSY, MEMCAP, NCU_SM, SM_BUSY, SOLO};
use carma_interference::kace::features::Aggregation;

/// A rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    feature: usize,
    names: Vec<String>,
    highest: bool,
}

/// The published rules: name, feature, whether the highest is chosen. The first three are the paper's, the others are
/// in the artifact's logs.
pub const RULES: [(&str, &str, bool); 5] = [
    ("MEMCAP", MEMCAP, false),
    ("SM%", SM_BUSY, true),
    ("MEM%", MEM_BUSY, false),
    ("NCU-SM rule", NCU_SM, true),
    ("solo-throughput rule", SOLO, true),
];

impl Rule {
    /// For rows of these features.
    ///
    /// # Errors
    /// There is no such feature.
    pub fn new(names: &[String], feature: &str, highest: bool) -> Result<Self, Error> {
        let at = names.iter().position(|n| n == feature).ok_or_else(|| {
            Error::new(format!("rule on `{feature}`"), format!("there are: {}", names.join(", ")))
        })?;
        Ok(Self { feature: at, names: names.to_vec(), highest })
    }
}

impl Scorer for Rule {
    fn fit<'s>(&'s self, _: &[&Collocation]) -> Result<Box<dyn Fitted + 's>, Error> {
        Ok(Box::new(self.clone()))
    }
}

impl Fitted for Rule {
    fn scores(&self, case: &Case<'_>) -> Result<Vec<f64>, Error> {
        let value = |row: &&Collocation| {
            let value = Aggregation::Artifact.row(&self.names, row)[self.feature];
            if self.highest { value } else { -value }
        };
        Ok(case.test.iter().map(value).collect())
    }
}

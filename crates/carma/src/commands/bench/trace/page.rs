//! The page of a bench of policies.

use carma_measure::trace::{Play, Summary};

pub(super) fn page(_summary: &Summary, _plays: &[Play]) -> String {
    String::new()
}

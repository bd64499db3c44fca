//! `carma report`.

use crate::cli::ReportArgs;
use crate::failure::{Failure, Outcome};

/// Runs the verb.
pub(crate) fn run(_args: &ReportArgs) -> Outcome {
    Err(Failure::new("not there yet"))
}

//! `carma fit`.

use crate::cli::FitArgs;
use crate::failure::{Failure, Outcome};

/// Runs the verb.
pub(crate) fn run(_args: &FitArgs) -> Outcome {
    Err(Failure::new("not there yet"))
}

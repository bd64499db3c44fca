//! `carma simulate`.

use crate::cli::SimulateArgs;
use crate::failure::{Failure, Outcome};

/// Runs the verb.
pub(crate) fn run(_args: &SimulateArgs) -> Outcome {
    Err(Failure::new("not there yet"))
}

//! `carma trace`.

use super::Context;
use crate::cli::TraceVerb;
use crate::failure::{Failure, Outcome};

/// Runs the verb.
pub(crate) fn run(_context: &Context, _verb: &TraceVerb) -> Outcome {
    Err(Failure::new("not there yet"))
}

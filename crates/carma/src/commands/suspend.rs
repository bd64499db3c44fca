//! `carma suspend`: takes running jobs off their GPU.

use super::{Context, order};
use crate::cli::JobsArgs;
use carma_cli::failure::Outcome;

/// Gives the order for each job.
pub(crate) fn run(context: &Context, args: &JobsArgs) -> Outcome {
    order::give(context, order::Target::Jobs, &args.ids, "suspend")
}

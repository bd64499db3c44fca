//! `carma resume`: drained GPUs are used again.

use super::{Context, order};
use crate::cli::GpuIndicesArgs;
use carma_cli::failure::Outcome;

/// Gives the order for each GPU.
pub(crate) fn run(context: &Context, args: &GpuIndicesArgs) -> Outcome {
    order::give(context, order::Target::Gpus, &args.gpus, "resume")
}

//! `carma move`: a job goes on on another GPU.

use super::{Context, order};
use crate::cli::MoveArgs;
use carma_cli::failure::Outcome;

/// Gives the order.
pub(crate) fn run(context: &Context, args: &MoveArgs) -> Outcome {
    let order = match args.gpu {
        Some(gpu) => format!("move/{gpu}"),
        None => "move".to_owned(),
    };
    order::give(context, order::Target::Jobs, &[args.job.into()], &order)
}

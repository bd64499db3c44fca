//! `carma drain`: no more jobs on GPUs.

use super::{Context, order};
use crate::cli::{DrainArgs, IdRange};
use carma_api::wire::JobsReply;
use carma_cli::failure::Outcome;

/// Gives the order for each GPU, and for the jobs there.
pub(crate) fn run(context: &Context, args: &DrainArgs) -> Outcome {
    let drained = order::give(context, order::Target::Gpus, &args.gpus, "drain")?;
    if !args.move_jobs {
        return Ok(drained);
    }
    let gpus = IdRange::all(&args.gpus);
    let jobs: JobsReply = context.client()?.get("/v1/jobs")?;
    let there = jobs.jobs.iter().filter(|job| job.gpus.iter().any(|gpu| gpus.contains(&u64::from(*gpu))));
    let there: Vec<IdRange> = there.map(|job| job.id.into()).collect();
    let moved = order::give(context, order::Target::Jobs, &there, "move")?;
    Ok(if drained == 0 { moved } else { drained })
}

//! `carma drain`: no more jobs on GPUs.

use super::{Context, order};
use crate::cli::{DrainArgs, IdRange};
use carma_api::wire::{JobDetail, JobView, JobsReply};
use carma_api::{Client, ClientError};
use carma_cli::clean;
use carma_cli::failure::Outcome;
use carma_core::model::SharingMode;

/// HTTP status of an order that the job's state does not allow.
const CONFLICT: u16 = 409;

/// Gives the order for each GPU, and sees to the jobs there.
pub(crate) fn run(context: &Context, args: &DrainArgs) -> Outcome {
    if !args.move_jobs {
        return order::give(context, order::Target::Gpus, &args.gpus, "drain");
    }
    let mut client = context.client()?;
    let mut gpus = Vec::new();
    let drained = order::each(IdRange::all(&args.gpus), |gpu| {
        let done = order::ask(&mut client, order::Target::Gpus, gpu, "drain")?;
        gpus.push(gpu);
        Ok(done)
    })?;
    let jobs: JobsReply = client.get("/v1/jobs")?;
    // Jobs would come back to a GPU that could not be drained.
    let there = jobs.jobs.iter().filter(|job| job.gpus.iter().any(|gpu| gpus.contains(&u64::from(*gpu))));
    let left = order::each(there, |job| leave(&mut client, job))?;
    Ok(if drained == 0 { left } else { drained })
}

/// A job leaves a drained GPU as it can: it moves, or saves its work and goes back into the queue. Else it runs on, which a
/// drain lets it. Returns what came of it.
fn leave(client: &mut Client, job: &JobView) -> Result<String, ClientError> {
    let why = match order::ask(client, order::Target::Jobs, job.id, "move") {
        Err(ClientError::Refused { status: CONFLICT, message, .. }) => message,
        moves_or_failed => return moves_or_failed,
    };
    let detail: JobDetail = client.get(&format!("/v1/jobs/{}", job.id))?;
    if detail.job.ended_ms.is_some() {
        return Ok(format!("job {} has ended", job.id));
    }
    // A job that could be moved later does not have to begin anew for that.
    let immovable = match detail.job.sharing {
        Some(SharingMode::Mps) => "a client of MPS",
        _ if detail.job.gpus.len() > 1 => "on several GPUs",
        _ => return Ok(format!("job {} runs on until it ends ({})", job.id, clean(&why))),
    };
    if detail.checkpoint.is_some_and(|agreed| agreed.signal.is_some()) {
        return order::ask(client, order::Target::Jobs, job.id, "requeue");
    }
    Ok(format!(
        "job {} runs on until it ends (it is {immovable}, which cannot be moved, and has no --checkpoint-signal)",
        job.id
    ))
}

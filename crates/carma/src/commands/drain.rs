//! `carma drain`: no more jobs on GPUs.

use super::{Context, order};
use crate::cli::{DrainArgs, IdRange};
use carma_api::wire::{GpuView, GpusReply, JobDetail, JobView, JobsReply};
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
    let all = IdRange::all(&args.gpus).into_iter().map(|gpu| (gpu, gpu)).collect();
    let drained = order::each(order::Target::Gpus, all, |gpu| {
        let done = order::ask(&mut client, order::Target::Gpus, gpu, "drain")?;
        gpus.push(gpu);
        Ok(done)
    })?;
    let jobs: JobsReply = client.get("/v1/jobs")?;
    // Jobs would come back to a GPU that could not be drained.
    let there = jobs.jobs.iter().filter(|job| job.gpus.iter().any(|gpu| gpus.contains(&u64::from(*gpu))));
    let there = there.map(|job| (job.id, job)).collect();
    let left = order::each(order::Target::Jobs, there, |job| leave(&mut client, job))?;
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
        _ => return Ok(runs_on(job.id, &why)),
    };
    if detail.checkpoint.is_some_and(|agreed| agreed.signal.is_some()) {
        let gpus: GpusReply = client.get("/v1/gpus")?;
        if !could_begin(&detail.job, &gpus.gpus) {
            let why = format!(
                "it is {immovable}, which cannot be moved, and too few GPUs are in use that it could begin anew on; \
                 once there are, carma requeue {} has it save its work",
                job.id
            );
            return Ok(runs_on(job.id, &why));
        }
        return order::ask(client, order::Target::Jobs, job.id, "requeue");
    }
    let why = format!("it is {immovable}, which cannot be moved, and has no --checkpoint-signal");
    Ok(runs_on(job.id, &why))
}

/// That a job stays, and why: the daemon's words without the job that they begin with.
fn runs_on(job: u64, why: &str) -> String {
    let why = [format!("job {job} cannot move: "), format!("job {job} cannot be suspended: ")]
        .iter()
        .find_map(|begin| why.strip_prefix(begin.as_str()))
        .unwrap_or(why);
    format!("job {job} runs on until it ends ({})", clean(why))
}

/// Whether there are GPUs in use that a job could begin anew on, however long it waits for them. One that gives its place up for
/// nothing would have stopped for nothing.
fn could_begin(job: &JobView, gpus: &[GpuView]) -> bool {
    let least = job.memory_peak_mib.unwrap_or(0);
    let usable = gpus.iter().filter(|gpu| gpu.status == "ok" && gpu.memory_mib >= least).count();
    u32::try_from(usable).is_ok_and(|usable| usable >= job.gpus_requested)
}

#[cfg(test)]
mod tests {
    use super::super::gpus::tests::gpu;
    use super::super::queue::tests::job;
    use super::*;

    #[test]
    fn a_job_that_stays_is_named_once() {
        let said = "job 1 runs on until it ends (all other GPUs of its type are drained)";
        assert_eq!(runs_on(1, "job 1 cannot move: all other GPUs of its type are drained"), said);
        assert_eq!(runs_on(1, "job 11 is over"), "job 1 runs on until it ends (job 11 is over)");
    }

    #[test]
    fn a_job_stops_only_where_it_could_begin_anew() {
        let saves = JobView { memory_peak_mib: Some(20_480), ..job(1, "RUNNING", "PlacedShared", "x") };
        let of = |status: &str, memory_mib| GpuView { status: status.into(), memory_mib, ..gpu(0) };
        let could = |gpus: &[GpuView]| could_begin(&saves, gpus);
        assert!(could(&[of("drained", 40_960), of("ok", 40_960)]));
        assert!(!could(&[of("drained", 40_960), of("lost", 40_960), of("ok", 10_240)]));
        let wide = JobView { gpus_requested: 2, ..saves.clone() };
        assert!(!could_begin(&wide, &[of("ok", 40_960), of("drained", 40_960)]));
    }
}

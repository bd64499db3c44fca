//! `carma resume`: suspended jobs go on, drained GPUs are used again.

use super::{Context, order};
use crate::cli::{IdRange, ResumeArgs};
use carma_api::wire::{GpuView, GpusReply, JobView, JobsReply};
use carma_cli::failure::{Failure, Outcome};

/// Gives the order for each of them, jobs first.
pub(crate) fn run(context: &Context, args: &ResumeArgs) -> Outcome {
    if args.job {
        return order::give(context, order::Target::Jobs, &args.ids, "resume");
    }
    if args.gpu {
        return order::give(context, order::Target::Gpus, &args.ids, "resume");
    }
    let mut client = context.client()?;
    let jobs: JobsReply = client.get("/v1/jobs")?;
    let gpus: GpusReply = client.get("/v1/gpus")?;
    let (mut of_jobs, mut of_gpus) = (Vec::new(), Vec::new());
    for id in IdRange::all(&args.ids) {
        match about(id, &jobs.jobs, &gpus.gpus)? {
            order::Target::Jobs => of_jobs.push(id.into()),
            order::Target::Gpus => of_gpus.push(id.into()),
        }
    }
    let first = order::give(context, order::Target::Jobs, &of_jobs, "resume")?;
    let second = order::give(context, order::Target::Gpus, &of_gpus, "resume")?;
    Ok(if first == 0 { second } else { first })
}

/// What a number means: what can be resumed of a job and a GPU, else what there is.
fn about(id: u64, jobs: &[JobView], gpus: &[GpuView]) -> Result<order::Target, Failure> {
    let job = jobs.iter().find(|job| job.id == id);
    let gpu = gpus.iter().find(|gpu| u64::from(gpu.index) == id);
    let suspended = job.is_some_and(|job| job.state == "SUSPENDED" || job.reason.code == "Suspending");
    let drained = gpu.is_some_and(|gpu| gpu.status == "drained");
    match (suspended, drained) {
        (true, true) => Err(Failure::usage(format!(
            "{id} is a suspended job and a drained GPU: say which, `carma resume --job {id}` or `carma resume --gpu {id}`"
        ))),
        (true, false) => Ok(order::Target::Jobs),
        (false, true) => Ok(order::Target::Gpus),
        (false, false) if gpu.is_some() => Ok(order::Target::Gpus),
        (false, false) => Ok(order::Target::Jobs),
    }
}

#[cfg(test)]
mod tests {
    use super::super::gpus::tests::gpu;
    use super::super::queue::tests::job;
    use super::*;

    #[test]
    fn a_number_is_what_can_be_resumed() {
        let jobs = [
            job(0, "RUNNING", "Suspending", "x"),
            job(1, "SUSPENDED", "Suspended", "x"),
            job(2, "RUNNING", "x", "x"),
        ];
        let gpus = |status: &str| -> Vec<GpuView> {
            (0..3).map(|index| GpuView { status: status.into(), ..gpu(index) }).collect()
        };
        let of = |status: &str| -> Vec<_> { (0..4).map(|id| about(id, &jobs, &gpus(status)).ok()).collect() };
        let (job, gpu) = (Some(order::Target::Jobs), Some(order::Target::Gpus));
        assert_eq!(of("ok"), [job, job, gpu, job]);
        assert_eq!(of("drained"), [None, None, gpu, job]);
    }
}

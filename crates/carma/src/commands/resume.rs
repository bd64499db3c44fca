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
    let (mut of_jobs, mut of_gpus, mut code) = (Vec::new(), Vec::new(), 0);
    for id in IdRange::all(&args.ids) {
        match about(id, &jobs.jobs, &gpus.gpus) {
            Ok(order::Target::Jobs) => of_jobs.push(id.into()),
            Ok(order::Target::Gpus) => of_gpus.push(id.into()),
            // As with a refusal, the others go on.
            Err(failure) => {
                failure.tell();
                code = if code == 0 { failure.code } else { code };
            }
        }
    }
    for (target, ids) in [(order::Target::Jobs, of_jobs), (order::Target::Gpus, of_gpus)] {
        let given = order::give(context, target, &ids, "resume")?;
        code = if code == 0 { given } else { code };
    }
    Ok(code)
}

/// What a number means: what can be resumed of a job and a GPU, else the one that there is.
///
/// # Errors
/// There are a job and a GPU of this number, and it is ambiguous which is meant: both can be resumed, or neither, or the job runs.
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
        // It may be the job that was meant, and that goes on already: said twice, the order would bring back the GPU.
        (false, true) if job.is_some_and(|job| job.state == "RUNNING") => Err(Failure::usage(format!(
            "job {id} is RUNNING, not suspended, and GPU {id} is drained: `carma resume --gpu {id}` brings back the GPU"
        ))),
        (false, true) => Ok(order::Target::Gpus),
        (false, false) => match (job, gpu) {
            (Some(job), Some(_)) => Err(Failure::new(format!(
                "nothing to resume: job {id} is {}, not suspended, and GPU {id} is not drained",
                job.state
            ))),
            (None, Some(_)) => Ok(order::Target::Gpus),
            (_, None) => Ok(order::Target::Jobs),
        },
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
            job(3, "PENDING", "x", "x"),
        ];
        let gpus = |status: &str| -> Vec<GpuView> {
            (0..4).map(|index| GpuView { status: status.into(), ..gpu(index) }).collect()
        };
        let of = |status: &str| -> Vec<_> {
            (0..5).map(|id| about(id, &jobs, &gpus(status)).map_err(|e| e.code)).collect()
        };
        let (job, gpu) = (Ok(order::Target::Jobs), Ok(order::Target::Gpus));
        // There is no GPU 4 and no job 4.
        assert_eq!(of("ok"), [job, job, Err(1), Err(1), job]);
        assert_eq!(of("drained"), [Err(2), Err(2), Err(2), gpu, job]);
        let runs = about(2, &jobs, &gpus("drained")).unwrap_err().message.unwrap();
        assert!(runs.contains("job 2 is RUNNING") && runs.contains("carma resume --gpu 2"), "{runs}");
        assert_eq!(about(1, &[], &gpus("ok")).map_err(|e| e.code), gpu);
        let neither = about(2, &jobs, &gpus("ok")).unwrap_err().message.unwrap();
        assert_eq!(neither, "nothing to resume: job 2 is RUNNING, not suspended, and GPU 2 is not drained");
    }
}

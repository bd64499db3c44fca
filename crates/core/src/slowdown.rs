//! Limits of slowdown: what neighbours may cost a job, predicted before a placement and measured after it.
//!
//! A job may have a limit: the factor by which neighbours slow it down at most (`--max-slowdown`, or the
//! configuration's for all). Models that predict progress work in floats and learn all the time, so they live
//! outside: what they say comes in as [`Outlook`]s, which the journal keeps. No job joins a GPU where the lower
//! bound of predicted progress is beyond a limit, or where nothing can be predicted. What is measured afterwards
//! comes in as [`Measured`]; where a limit is exceeded the plan evicts the job that came last to that GPU. It goes
//! back into the queue without charge, and not beside the same job again.

pub use crate::progress::{Measured, Outlook, Predicted, least_progress, slowdown};

use crate::explain::Reason;
use crate::ledger::Gpu;
use crate::model::{GpuId, Job, JobId, SharingMode};
use crate::state::State;
use crate::units::Fraction;

/// Why a job may not join a GPU, as far as limits of slowdown go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Objection {
    /// A limit would be exceeded.
    Exceeded {
        /// The job whose limit it is.
        job: JobId,
        /// Predicted slowdown.
        expected: Fraction,
        /// The bound, which is what counts.
        upper: Fraction,
        /// The limit.
        limit: Fraction,
    },
    /// Nothing can be predicted because this job is not known well enough.
    Unknown(JobId),
    /// Nothing is predicted yet.
    NotYet,
    /// Processes that are not ours are there: their effect cannot be predicted.
    Foreign,
    /// They were together before, and one of them had to be evicted.
    Apart(JobId),
    /// The policy goes by what jobs get done together, and too little is known of this one; `None`: nothing is predicted
    /// yet.
    Unprofiled(Option<JobId>),
}

/// A job's limit of slowdown.
pub(crate) fn limit(state: &State, job: &Job) -> Option<Fraction> {
    job.spec.request.max_slowdown.or(state.options().max_slowdown)
}

/// The tenant that the job has been with before and may not join again.
pub(crate) fn kept_apart(state: &State, job: &Job, gpu: &Gpu) -> Option<JobId> {
    let from = |job: &Job, other: JobId| {
        job.past.iter().any(|a| matches!(&a.verdict, Reason::Evicted { apart, .. } if apart.contains(&other)))
    };
    gpu.tenants
        .iter()
        .map(|t| t.job)
        .find(|there| from(job, *there) || state.job(*there).is_some_and(|t| from(t, job.spec.id)))
}

/// Whether a tenant has a limit.
pub(crate) fn is_limited(state: &State, gpu: &Gpu) -> bool {
    gpu.tenants.iter().any(|t| state.job(t.job).is_some_and(|job| limit(state, job).is_some()))
}

/// Whether a job may join a GPU. Asked only where one of them has a limit.
pub(crate) fn objection(
    state: &State,
    job: &Job,
    id: GpuId,
    gpu: &Gpu,
    sharing: SharingMode,
) -> Option<Objection> {
    if limit(state, job).is_some() && !gpu.foreign().is_empty() {
        return Some(Objection::Foreign);
    }
    if gpu.tenants.is_empty() {
        return None;
    }
    let Some(outlook) = outlook(state, job.spec.id, id, gpu, sharing) else {
        return Some(Objection::NotYet);
    };
    if let Some(unknown) = outlook.unknown.first() {
        return Some(Objection::Unknown(*unknown));
    }
    outlook.tasks.iter().find_map(|task| {
        let limit = limit(state, state.job(task.job)?)?;
        (task.lower < least_progress(limit)).then(|| Objection::Exceeded {
            job: task.job,
            expected: slowdown(task.expected),
            upper: slowdown(task.lower),
            limit,
        })
    })
}

/// Whether a job may join a GPU under a policy that only puts together what it has a prediction of.
pub(crate) fn unprofiled(
    state: &State,
    job: JobId,
    id: GpuId,
    gpu: &Gpu,
    sharing: SharingMode,
) -> Option<Objection> {
    match outlook(state, job, id, gpu, sharing) {
        None => Some(Objection::Unprofiled(None)),
        Some(Outlook { throughput: Some(_), .. }) => None,
        Some(outlook) => Some(Objection::Unprofiled(Some(outlook.unknown.first().copied().unwrap_or(job)))),
    }
}

/// What is predicted of a job on a GPU as it is now.
pub(crate) fn outlook<'a>(
    state: &'a State,
    job: JobId,
    id: GpuId,
    gpu: &Gpu,
    sharing: SharingMode,
) -> Option<&'a Outlook> {
    state.outlook(job, id).filter(|outlook| outlook.is_of(gpu.tenants.iter().map(|t| t.job), sharing))
}

/// A question to the predictor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Question {
    /// Who might join.
    pub newcomer: JobId,
    /// The GPU that it would join.
    pub gpu: GpuId,
    /// How it would share.
    pub sharing: SharingMode,
}

/// Jobs of the queue that are asked about at a time, and questions; and jobs that are looked at for that.
const ASKED: usize = 32;
const QUESTIONS: usize = 256;
const LOOKED_AT: usize = 4096;

/// What the next plan wants to know: the first jobs of the queue of which it is not known yet, on every GPU that is in
/// use, where a limit counts or the policy goes by predictions. With the answers applied it asks of
/// the next.
#[must_use]
pub fn questions(state: &State) -> Vec<Question> {
    let predicted = state.options().policy.order.is_predicted();
    // Predictions are forgotten where neighbours change: of a job that has as many as there are GPUs to ask about, all are
    // known. A GPU that has gone may have left one behind.
    let whole = state.gpus().iter().all(|gpu| gpu.present);
    let mut shared = Vec::new();
    for (id, gpu) in (0..).map(GpuId).zip(state.gpus()) {
        if gpu.present && !gpu.tenants.is_empty() && !gpu.tenants.iter().any(|t| t.exclusive) {
            shared.push((id, gpu, is_limited(state, gpu)));
        }
    }
    let limited = shared.iter().filter(|(_, _, limited)| *limited).count();
    let mut asked = Vec::new();
    let mut jobs = 0;
    for (_, job) in state.queue().jobs().take(LOOKED_AT) {
        let before = asked.len();
        let Some(sharing) = state.sharing_for(job) else { continue };
        let of_job = predicted || limit(state, job).is_some();
        let wanted = if of_job { shared.len() } else { limited };
        if wanted == 0 || (whole && state.outlooks_of(job.spec.id) == wanted) {
            continue;
        }
        for (id, gpu, limited) in &shared {
            if (of_job || *limited) && outlook(state, job.spec.id, *id, gpu, sharing).is_none() {
                asked.push(Question { newcomer: job.spec.id, gpu: *id, sharing });
                if asked.len() == QUESTIONS {
                    return asked;
                }
            }
        }
        // Those about whom nothing is asked cost next to nothing, and the others behind them have their turn.
        jobs += usize::from(asked.len() > before);
        if jobs == ASKED {
            break;
        }
    }
    asked
}

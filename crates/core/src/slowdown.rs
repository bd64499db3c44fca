//! Promised slowdowns: what neighbours may cost a job, foreseen before a placement and measured after it.
//!
//! A job may be promised that neighbours slow it down by a factor at most (`--max-slowdown`, or the
//! configuration's for all). Models that foresee progress work in floats and learn all the time, so they live
//! outside: what they say comes in as [`Outlook`]s, which the journal keeps. Nobody joins a GPU where a promise
//! would be broken by the lower bound of the forecast, or where nothing can be foreseen. What is measured
//! afterwards comes in as [`Measured`]; for a broken promise the plan evicts the placement that broke it, the
//! latest on the GPU, which goes back into the queue without charge and not beside the same job again.

pub use crate::progress::{Foreseen, Measured, Outlook, least_progress, slowdown};

use crate::explain::Reason;
use crate::ledger::Gpu;
use crate::model::{GpuId, Job, JobId, SharingMode};
use crate::policy::Order;
use crate::state::State;
use crate::units::Fraction;

/// Why a job may not join a GPU, as far as promises go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Objection {
    /// A promise would be broken.
    Broken {
        /// Whose.
        job: JobId,
        /// Foreseen slowdown, and its bound.
        expected: Fraction,
        /// The bound, which is what counts.
        upper: Fraction,
        /// What is promised.
        limit: Fraction,
    },
    /// Nothing can be foreseen because this job is not known well enough.
    Unknown(JobId),
    /// Nothing is foreseen yet.
    NotYet,
    /// Processes that are not ours are there: their effect cannot be foreseen.
    Foreign,
    /// They were together before, and one of them had to be evicted.
    Apart(JobId),
}

/// The slowdown that a job is promised.
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

/// Whether anybody there is promised something.
pub(crate) fn is_promised(state: &State, gpu: &Gpu) -> bool {
    gpu.tenants.iter().any(|t| state.job(t.job).is_some_and(|job| limit(state, job).is_some()))
}

/// Whether a job may join a GPU. Asked only where somebody is promised something.
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
        (task.lower < least_progress(limit)).then(|| Objection::Broken {
            job: task.job,
            expected: slowdown(task.expected),
            upper: slowdown(task.lower),
            limit,
        })
    })
}

/// What is foreseen of a job on a GPU as it is now.
pub(crate) fn outlook<'a>(
    state: &'a State,
    job: JobId,
    id: GpuId,
    gpu: &Gpu,
    sharing: SharingMode,
) -> Option<&'a Outlook> {
    state.outlook(job, id).filter(|outlook| outlook.is_of(gpu.tenants.iter().map(|t| t.job), sharing))
}

/// A question to those who can foresee.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Question {
    /// Who might join.
    pub newcomer: JobId,
    /// Where.
    pub gpu: GpuId,
    /// How it would share.
    pub sharing: SharingMode,
}

/// Jobs of the queue that are asked about at a time, and questions; and jobs that are looked at for that.
const ASKED: usize = 32;
const QUESTIONS: usize = 256;
const LOOKED_AT: usize = 4096;

/// What the next plan wants to know: the first jobs of the queue of which it is not known yet, on every GPU that is in
/// use, where anybody is promised something or the policy goes by what is foreseen. With the answers applied it asks of
/// the next.
#[must_use]
pub fn questions(state: &State) -> Vec<Question> {
    let by_gain = state.options().policy.order == Order::Speedup;
    let promised: Vec<bool> = state.gpus().iter().map(|gpu| is_promised(state, gpu)).collect();
    let mut asked = Vec::new();
    let mut jobs = 0;
    for (_, job) in state.queue().jobs().take(LOOKED_AT) {
        let before = asked.len();
        let Some(sharing) = state.sharing_for(job) else { continue };
        let of_job = by_gain || limit(state, job).is_some();
        for ((id, gpu), promised) in (0..).map(GpuId).zip(state.gpus()).zip(&promised) {
            let wanted = (of_job || *promised)
                && gpu.present
                && !gpu.tenants.is_empty()
                && !gpu.tenants.iter().any(|t| t.exclusive);
            if wanted && outlook(state, job.spec.id, id, gpu, sharing).is_none() {
                asked.push(Question { newcomer: job.spec.id, gpu: id, sharing });
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

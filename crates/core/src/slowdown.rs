//! Promised slowdowns: what neighbours may cost a job, foreseen before a placement and measured after it.
//!
//! A job may be promised that neighbours slow it down by a factor at most (`--max-slowdown`, or the
//! configuration's for all). Models that foresee progress work in floats and learn all the time, so they live
//! outside: what they say comes in as [`Outlook`]s, which the journal keeps. Nobody joins a GPU where a promise
//! would be broken by the lower bound of the forecast, or where nothing can be foreseen. What is measured
//! afterwards comes in as [`Measured`]; a broken promise is undone by ending the placement that broke it, the
//! latest on the GPU, which goes back into the queue without charge and not beside the same job again.

use crate::explain::Reason;
use crate::input::Action;
use crate::ledger::Gpu;
use crate::model::{EndCause, EndLevel, GpuId, Job, JobId, Phase, SharingMode};
use crate::plan::Plan;
use crate::policy::Order;
use crate::state::State;
use crate::units::{Fraction, Millis};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Progress of one job of a group: its speed together over its speed alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Foreseen {
    /// Which.
    pub job: JobId,
    /// What is expected.
    pub expected: Fraction,
    /// What it is not below, with the model's confidence. Promises count on this one.
    pub lower: Fraction,
}

/// What is foreseen if a job that waits joins those that are on a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outlook {
    /// Who would join.
    pub newcomer: JobId,
    /// Where.
    pub gpu: GpuId,
    /// How it would share.
    pub sharing: SharingMode,
    /// The newcomer and those that are there, by job number; those in `unknown` are missing.
    pub tasks: Vec<Foreseen>,
    /// Jobs of which too little is known to foresee anything: then `tasks` is empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<JobId>,
    /// Sum of the expected progress of those that are there, without the newcomer.
    pub before: Fraction,
}

impl Outlook {
    /// What the newcomer adds to the sum of progress; nothing if it costs the others more than it gains.
    #[must_use]
    pub fn gain(&self) -> Fraction {
        let after: u32 = self.tasks.iter().map(|t| t.expected.0).fold(0, u32::saturating_add);
        Fraction(after.saturating_sub(self.before.0))
    }

    /// Whether it speaks of the newcomer beside exactly these tenants.
    fn is_of(&self, gpu: &Gpu, sharing: SharingMode) -> bool {
        let named: BTreeSet<JobId> =
            self.tasks.iter().map(|t| t.job).chain(self.unknown.iter().copied()).collect();
        let there = gpu.tenants.iter().map(|t| t.job);
        let group: BTreeSet<JobId> = there.chain([self.newcomer]).collect();
        let whole = if self.unknown.is_empty() { named == group } else { named.is_subset(&group) };
        self.sharing == sharing && whole
    }
}

/// Progress of a running job as it was measured, since its neighbours last changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Measured {
    /// When the measurement ended.
    pub at: Millis,
    /// Speed over the speed alone.
    pub progress: Fraction,
    /// How long was measured.
    pub over: Millis,
    /// What was measured beside the same neighbours just before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Fraction>,
}

/// Least progress that keeps a promise: 1 over the slowdown, rounded down.
#[must_use]
pub fn least_progress(max_slowdown: Fraction) -> Fraction {
    let one = u64::from(Fraction::ONE.0);
    let least = (one * one).checked_div(u64::from(max_slowdown.0)).unwrap_or(one);
    Fraction(u32::try_from(least.min(one)).unwrap_or(Fraction::ONE.0))
}

/// The slowdown that stands for a progress. No progress is a slowdown without end, shown as 10,000.
#[must_use]
pub fn slowdown(progress: Fraction) -> Fraction {
    let one = u64::from(Fraction::ONE.0);
    let slowdown = (one * one).checked_div(u64::from(progress.0)).unwrap_or(u64::MAX);
    Fraction(u32::try_from(slowdown.min(one * one)).unwrap_or(u32::MAX))
}

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
    /// They were together before, and it had to be undone.
    Apart(JobId),
}

/// The slowdown that a job is promised.
pub(crate) fn limit(state: &State, job: &Job) -> Option<Fraction> {
    job.spec.request.max_slowdown.or(state.options().max_slowdown)
}

/// The tenant that the job has been with before and may not join again.
pub(crate) fn kept_apart(state: &State, job: &Job, gpu: &Gpu) -> Option<JobId> {
    let from = |job: &Job, other: JobId| {
        job.past.iter().any(|a| matches!(&a.verdict, Reason::Undone { apart, .. } if apart.contains(&other)))
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
    state.outlook(job, id).filter(|outlook| outlook.is_of(gpu, sharing))
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

/// Undoes placements that broke a promise, one on a GPU at a time: the progress of the others is measured anew
/// after each.
pub(crate) fn keep_promises(state: &State, now: Millis, plan: &mut Plan) {
    let mut touched: BTreeSet<GpuId> = BTreeSet::new();
    for job in state.active().iter().filter_map(|id| state.job(*id)) {
        let (Some(limit), Some(measured)) = (limit(state, job), job.measured) else { continue };
        let Phase::Running { placement, .. } = &job.phase else { continue };
        let recent = now.since(measured.at) <= state.options().slowdown_window;
        let least = least_progress(limit);
        // Twice in a row: a job that evaluates or writes a checkpoint pauses of its own accord.
        let broken = measured.over >= state.options().slowdown_window
            && measured.progress < least
            && measured.before.is_some_and(|before| before < least)
            && recent;
        if !broken || placement.gpus.iter().any(|gpu| touched.contains(gpu)) {
            continue;
        }
        let tenants = || placement.gpus.iter().filter_map(|id| state.gpu(*id)).flat_map(|gpu| &gpu.tenants);
        let leaving = |job: &Job| {
            matches!(
                job.phase,
                Phase::Running { ending: Some(_), .. } | Phase::Launching { ending: Some(_), .. }
            )
        };
        if tenants().any(|t| state.job(t.job).is_some_and(leaving)) {
            continue;
        }
        let id = job.spec.id;
        let others: BTreeSet<JobId> = tenants().map(|t| t.job).filter(|other| *other != id).collect();
        // Alone it has all that there is: whatever slows it down is no neighbour of ours.
        if others.is_empty() {
            continue;
        }
        let Some(latest) = tenants().max_by_key(|t| (t.placed, t.job)).and_then(|t| state.job(t.job)) else {
            continue;
        };
        let Phase::Running { placement: undone, .. } = &latest.phase else { continue };
        let apart = if latest.spec.id == id { others.into_iter().collect() } else { vec![id] };
        touched.extend(placement.gpus.iter().chain(&undone.gpus));
        plan.actions.push(Action::End {
            job: latest.spec.id,
            attempt: undone.attempt,
            level: EndLevel::Terminate,
            cause: EndCause::Undone { job: id, slowdown: slowdown(measured.progress), limit, apart },
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slowdown_and_progress_are_each_others_inverse() {
        assert_eq!(least_progress(Fraction(13_000)), Fraction(7692));
        assert_eq!(slowdown(Fraction(5_000)), Fraction(20_000));
        assert_eq!(least_progress(Fraction(0)), Fraction::ONE);
        // A promise of less than 1 asks for all of the speed, and no more.
        assert_eq!(least_progress(Fraction(5_000)), Fraction::ONE);
        assert_eq!(slowdown(Fraction(0)), Fraction(100_000_000));
    }
}

//! Jobs that are to end: which signal is due, and when the next one is.
//!
//! Why a job ends is in its phase already. Only time is judged here. A job that goes back into the queue may be asked to
//! save its work first: then it has the time that its user has given it for that, and its GPUs as before.

use super::Plan;
use crate::input::Action;
use crate::model::{EndCause, EndLevel, Ending, Job, JobId, Phase, Placement};
use crate::state::State;
use crate::units::Millis;
use std::collections::BTreeSet;

/// Signals that are due, and when the next ones are.
pub(super) fn end_jobs(state: &State, now: Millis, plan: &mut Plan) {
    let grace = state.options().kill_grace;
    for job in state.ending().iter().filter_map(|id| state.job(*id)) {
        let Some(placement) = job.placement() else { continue };
        match next(job, grace) {
            Some(Next { at, level, cause }) if at <= now => {
                plan.wake_at(now + patience(job, level, grace));
                plan.actions.push(Action::End { job: job.spec.id, attempt: placement.attempt, level, cause });
            }
            Some(Next { at, .. }) => plan.wake_at(at),
            None => {}
        }
    }
}

/// Jobs that a plan takes off their GPUs, as far as it is made: of a time limit that is just over, say.
pub(super) fn leaving_by(plan: &Plan) -> BTreeSet<JobId> {
    let leaving = plan.actions.iter().filter_map(|action| match action {
        Action::End { job, .. } | Action::Suspend { job, .. } => Some(*job),
        _ => None,
    });
    leaving.collect()
}

/// Takes a job off its GPUs for the sake of others: suspended where that can be, so that its work is not lost; else ended.
pub(super) fn take_off(state: &State, job: &Job, cause: EndCause) -> Option<Action> {
    if state.may_set_aside(job) {
        let Placement { attempt, .. } = *job.placement()?;
        return Some(Action::Suspend { job: job.spec.id, attempt, cause: Some(cause) });
    }
    end(job, cause)
}

/// Ends a job for the sake of others.
pub(super) fn end(job: &Job, cause: EndCause) -> Option<Action> {
    let Placement { attempt, .. } = *job.placement()?;
    Some(Action::End { job: job.spec.id, attempt, level: first_level(job, &cause), cause })
}

/// How a job is asked first: to save its work, where there is time for it and its user wants it; else to end. One that is
/// still being launched has nothing to save.
fn first_level(job: &Job, cause: &EndCause) -> EndLevel {
    let runs = matches!(job.phase, Phase::Running { .. });
    if job.is_off() || matches!(cause, EndCause::Stuck { .. }) {
        // It stands still, and can do nothing with a signal that it could catch.
        EndLevel::Kill
    } else if runs && cause.saves() && job.spec.request.save_grace.is_some() {
        EndLevel::Checkpoint
    } else {
        EndLevel::Terminate
    }
}

/// A signal, and when it is due.
struct Next {
    at: Millis,
    level: EndLevel,
    cause: EndCause,
}

/// The next signal of a job that is to end, or that time may end: to save, politely, then for good, and at last without
/// its supervisor. One that is still being launched has no command that could end politely.
fn next(job: &Job, grace: Millis) -> Option<Next> {
    let (ending, started, halt) = match &job.phase {
        Phase::Running { started, ending, halt, .. } => (ending, Some(*started), Some(halt)),
        Phase::Launching { ending, .. } => (ending, None, None),
        Phase::Pending | Phase::Held { .. } | Phase::Judging { .. } => return None,
    };
    let Some(Ending { cause, sent, cannot_save }) = ending else {
        let limit = job.spec.request.time_limit?;
        let halt = halt.filter(|halt| halt.now.as_ref().is_none_or(|suspension| suspension.off.is_none()))?;
        let cause = EndCause::TimeLimit(limit);
        return Some(Next { at: started? + limit + halt.before, level: EndLevel::Terminate, cause });
    };
    let Some((sent, at)) = *sent else {
        return Some(Next { at: Millis::ZERO, level: first_level(job, cause), cause: cause.clone() });
    };
    let level = match sent {
        EndLevel::Checkpoint => EndLevel::Terminate,
        EndLevel::Terminate if started.is_some() => EndLevel::Kill,
        EndLevel::Terminate | EndLevel::Kill | EndLevel::Abandon => EndLevel::Abandon,
    };
    // A cancel that comes while it saves needs nothing saved.
    let wait = match sent {
        EndLevel::Checkpoint if *cannot_save || !cause.saves() => Millis::ZERO,
        sent => patience(job, sent, grace),
    };
    Some(Next { at: at + wait, level, cause: cause.clone() })
}

/// How long a signal may take to have its effect.
fn patience(job: &Job, level: EndLevel, grace: Millis) -> Millis {
    match level {
        EndLevel::Checkpoint => job.spec.request.save_grace.unwrap_or(grace),
        EndLevel::Terminate | EndLevel::Kill | EndLevel::Abandon => grace,
    }
}

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
    for job in state.ending_jobs() {
        let Some(placement) = job.placement() else { continue };
        match next(job, grace) {
            Some(Next { at, level, cause }) if at <= now => {
                plan.wake_at(waits_until(job, level, now, grace));
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

/// The first signal for a job: the checkpoint signal, where the cause leaves time and its user has agreed one; else SIGTERM. A job that is
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

/// By when a job that is to end has ended, if its next signal is its last. `None`: it is not to end.
#[must_use]
pub fn ended_by(state: &State, job: &Job) -> Option<Millis> {
    let ending = job.ending()?;
    let grace = state.options().kill_grace;
    let (level, sent) = ending.sent.unwrap_or_else(|| (first_level(job, &ending.cause), state.now()));
    let answered = next_at(job, ending, level, sent, grace);
    // What does not save in time is then asked to end.
    Some(if level == EndLevel::Checkpoint { answered + grace } else { answered })
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
    let Some(ending) = job.ending() else {
        let cause = EndCause::TimeLimit(job.spec.request.time_limit?);
        return Some(Next { at: over_limit_at(job)?, level: EndLevel::Terminate, cause });
    };
    let cause = &ending.cause;
    let Some((sent, at)) = ending.sent else {
        return Some(Next { at: Millis::ZERO, level: first_level(job, cause), cause: cause.clone() });
    };
    let level = match sent {
        EndLevel::Checkpoint => EndLevel::Terminate,
        EndLevel::Terminate if matches!(job.phase, Phase::Running { .. }) => EndLevel::Kill,
        EndLevel::Terminate | EndLevel::Kill | EndLevel::Abandon => EndLevel::Abandon,
    };
    Some(Next { at: next_at(job, ending, sent, at, grace), level, cause: cause.clone() })
}

/// When a running job is over its time limit. `None`: it has none, or time stands still while it is suspended.
fn over_limit_at(job: &Job) -> Option<Millis> {
    let Phase::Running { started, halt, .. } = &job.phase else { return None };
    let stands = halt.now.as_ref().is_some_and(|suspension| suspension.off.is_some());
    Some(*started + job.spec.request.time_limit.filter(|_| !stands)? + halt.before)
}

/// When the signal after the one that was sent is due.
fn next_at(job: &Job, ending: &Ending, sent: EndLevel, at: Millis, grace: Millis) -> Millis {
    match sent {
        // A cancel that comes while it saves needs nothing saved.
        EndLevel::Checkpoint if ending.cannot_save || !ending.cause.saves() => at,
        sent => waits_until(job, sent, at, grace),
    }
}

/// Until when a signal that was sent may take to have its effect.
fn waits_until(job: &Job, sent: EndLevel, at: Millis, grace: Millis) -> Millis {
    match sent {
        EndLevel::Checkpoint => {
            let until = at + job.spec.request.save_grace.unwrap_or(grace);
            // A job that saves runs: no longer than its limit.
            over_limit_at(job).map_or(until, |limit| until.min(limit))
        }
        EndLevel::Terminate | EndLevel::Kill | EndLevel::Abandon => at + grace,
    }
}

//! Jobs that are to end: which signal is due, and when the next one is.
//!
//! Why a job ends is in its phase already. Only time is judged here.

use super::Plan;
use crate::input::Action;
use crate::model::{EndCause, EndLevel, Ending, Job, Phase};
use crate::state::State;
use crate::units::Millis;

/// Signals that are due, and when the next ones are.
pub(super) fn end_jobs(state: &State, now: Millis, plan: &mut Plan) {
    let grace = state.options().kill_grace;
    for job in state.ending().iter().filter_map(|id| state.job(*id)) {
        let (placement, started, ending) = match &job.phase {
            Phase::Running { placement, started, ending, .. } => (placement, Some(*started), ending),
            Phase::Launching { placement, ending } => (placement, None, ending),
            Phase::Pending | Phase::Held { .. } | Phase::Judging { .. } => continue,
        };
        if let Some((level, cause)) = end_due(job, now, grace) {
            plan.actions.push(Action::End { job: job.spec.id, attempt: placement.attempt, level, cause });
            plan.wake_at(now + grace);
        } else if let Some((_, at)) = ending.as_ref().and_then(|e| e.sent) {
            plan.wake_at(at + grace);
        } else if let (Some(limit), Some(started)) = (job.spec.request.time_limit, started) {
            plan.wake_at(started + limit);
        }
    }
}

/// The signal that is due for a job that is to end: politely, then for good, and at last without its supervisor.
/// One that is still being launched has no command that could end politely.
fn end_due(job: &Job, now: Millis, grace: Millis) -> Option<(EndLevel, EndCause)> {
    let (ending, started) = match &job.phase {
        Phase::Running { started, ending, .. } => (ending, Some(*started)),
        Phase::Launching { ending, .. } => (ending, None),
        Phase::Pending | Phase::Held { .. } | Phase::Judging { .. } => return None,
    };
    let Some(Ending { cause, sent }) = ending else {
        let limit = job.spec.request.time_limit?;
        let over = started.is_some_and(|started| now.since(started) >= limit);
        return over.then_some((EndLevel::Terminate, EndCause::TimeLimit(limit)));
    };
    let next = match (sent, started) {
        (None, _) => return Some((EndLevel::Terminate, cause.clone())),
        (Some((EndLevel::Terminate, at)), Some(_)) => (*at, EndLevel::Kill),
        (Some((_, at)), _) => (*at, EndLevel::Abandon),
    };
    let (at, level) = next;
    (now.since(at) >= grace).then(|| (level, cause.clone()))
}

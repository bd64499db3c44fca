//! Room for a job that waits: others are taken off their GPUs for as long as it runs.
//!
//! Done for a job on several GPUs that is overdue, where that delays the others by less in all than it would wait, and for an
//! operator's urgent job. Those that can are suspended and come back by themselves. For an urgent job, clients of MPS that have
//! agreed to save their work are asked to, and begin anew; all others are left where they are.

use super::Plan;
use super::ending::{leaving_by, take_off};
use super::search::Slots;
use super::slot::Slot;
use super::want::Want;
use crate::model::{EndCause, Job, JobId, Phase, Suspension};
use crate::slowdown::limit;
use crate::state::State;
use crate::units::Millis;
use std::collections::BTreeSet;

/// What taking a job off and putting it back costs it, about: some GiB out and back (docs/research/h200.md).
const THERE_AND_BACK: Millis = Millis::secs(30);

/// A job that others have made room for, and that does not take it, has it for so long.
const KEPT_FOR: Millis = Millis::secs(120);

/// Jobs that make room, and the job for which they do.
fn makers(state: &State) -> impl Iterator<Item = (&Job, JobId)> {
    let jobs = state.halted_jobs().chain(state.ending_jobs());
    jobs.filter_map(|job| Some((job, makes_room_for(job)?)))
}

/// Whether jobs make room for others.
pub(super) fn is_made(state: &State) -> bool {
    makers(state).next().is_some()
}

/// Jobs for which others leave or have left their GPUs.
pub(super) fn beneficiaries(state: &State) -> BTreeSet<JobId> {
    makers(state).map(|(_, waits)| waits).collect()
}

/// Keeps the GPUs of jobs that make room; until when, at most.
pub(super) fn keep(state: &State, now: Millis, slots: &mut Slots<'_>) -> Option<Millis> {
    let mut next = None;
    for (job, waits) in makers(state) {
        let suspension = job.suspension();
        if let Some(suspension) = suspension {
            let Some(until) = kept_until(state, suspension).filter(|until| *until > now) else { continue };
            next = Some(next.map_or(until, |next: Millis| next.min(until)));
        }
        let gpus = match suspension.filter(|suspension| suspension.is_off()) {
            Some(suspension) => Some(&suspension.home),
            None => job.placement().map(|placement| &placement.gpus),
        };
        gpus.into_iter().flatten().for_each(|gpu| slots.hold_for(*gpu, waits));
    }
    next
}

/// Until when the GPU of a suspended job is kept for another that waits and that it made room for.
pub(super) fn kept_until(state: &State, suspension: &Suspension) -> Option<Millis> {
    let waits =
        state.job(suspension.makes_room_for()?).is_some_and(|job| matches!(job.phase, Phase::Pending));
    let off = suspension.off.unwrap_or_else(|| state.now());
    waits.then_some(off + KEPT_FOR)
}

/// For which job another leaves or has left its GPUs.
#[must_use]
pub fn makes_room_for(job: &Job) -> Option<JobId> {
    let ends = job.ending().and_then(|ending| ending.cause.makes_room_for());
    ends.or_else(|| job.suspension().and_then(|suspension| suspension.makes_room_for()))
}

/// Whether room is made for jobs such as this one, where it can be.
pub(super) fn is_entitled(state: &State, job: &Job, want: &Want) -> bool {
    want.holds && (job.is_urgent() || (want.gpus > 1 && state.options().suspends))
}

/// Makes room for a job that found none, if that pays; whether it does.
pub(super) fn make(state: &State, job: &Job, want: &Want, slots: &Slots<'_>, plan: &mut Plan) -> bool {
    let wanted = want.gpus as usize;
    let usable =
        |slot: &&Slot<'_>| !slot.closed && slot.does_once_empty(want) && slot.held_from(want).is_none();
    let mut left: Vec<Millis> = slots.slots.iter().filter(usable).map(Slot::likely_left).collect();
    left.sort_unstable();
    // Without room, so long until the last of its GPUs is free.
    let Some(wait) = wanted.checked_sub(1).and_then(|last| left.get(last)).copied() else { return false };
    // For so long a job that leaves would be without its GPU; an urgent job need not make up for it.
    let pause =
        if job.is_urgent() { THERE_AND_BACK } else { Millis::secs(job.spec.run_s()) + THERE_AND_BACK };
    if wait <= pause {
        return false;
    }
    let leaving = leaving_by(plan);
    let mut found: Vec<Vec<&Job>> =
        slots.slots.iter().filter(usable).filter_map(|slot| off(state, job, slot, &leaving)).collect();
    if found.len() < wanted {
        return false;
    }
    // What is suspended comes back, and what is ended begins anew: no job loses its work where others can be suspended.
    let begins_anew = |job: &&&Job| !state.may_set_aside(job);
    found.sort_by_key(|jobs| (jobs.iter().filter(begins_anew).count(), jobs.len()));
    found.truncate(wanted);
    // One on several GPUs counts once.
    let off: BTreeSet<JobId> = found.iter().flatten().map(|job| job.spec.id).collect();
    if !job.is_urgent() && wait <= Millis(pause.0.saturating_mul(off.len() as u64)) {
        return false;
    }
    let cause = EndCause::Room { job: want.job };
    for job in off.iter().filter_map(|id| state.job(*id)) {
        plan.actions.extend(take_off(state, job, cause.clone()));
    }
    true
}

/// The jobs that would have to leave a GPU, if all that are there can.
fn off<'a>(state: &'a State, job: &Job, slot: &Slot<'_>, leaving: &BTreeSet<JobId>) -> Option<Vec<&'a Job>> {
    // MPS clients cannot be suspended. If all jobs here are clients of one server, no job needs a check of its own.
    let may_go = job.is_urgent() || slot.server().is_none();
    if !may_go || slot.has_added() || !slot.gpu.foreign().is_empty() {
        return None;
    }
    let there = slot.gpu.tenants.iter().map(|tenant| {
        let there = state.job(tenant.job).filter(|there| !leaving.contains(&there.spec.id))?;
        let is_leaving = there.ending().is_some() || there.suspension().is_some();
        let lower = there.spec.request.priority < job.spec.request.priority;
        let may = if job.is_urgent() { lower } else { there.spec.request.priority <= 0 };
        // A stated limit of slowdown holds for a pause as well.
        let can = state.may_set_aside(there) || (job.is_urgent() && there.spec.request.save_grace.is_some());
        (!is_leaving && may && can && limit(state, there).is_none()).then_some(there)
    });
    there.collect()
}

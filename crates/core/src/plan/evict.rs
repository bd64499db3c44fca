//! Limits of slowdown that were exceeded: which job is evicted for it.
//!
//! What is allowed and predicted is in [`crate::slowdown`]. Here only what was measured counts.

use super::Plan;
use super::ending::{leaving_by, take_off};
use crate::ledger::Tenant;
use crate::model::{EndCause, GpuId, Job, JobId, Phase};
use crate::progress::least_progress;
use crate::slowdown::{limit, slowdown};
use crate::state::State;
use crate::units::Millis;
use std::collections::BTreeSet;

/// Evicts jobs whose placement slows another down beyond its limit, one on a GPU at a time: the progress of the others
/// is measured anew after each.
pub(super) fn evict(state: &State, now: Millis, plan: &mut Plan) {
    let mut touched: BTreeSet<GpuId> = BTreeSet::new();
    let leaves = leaving_by(plan);
    let kept = |floor| state.options().policy.progress.map(|rule| rule.with(floor).least_measured());
    for job in state.active_jobs() {
        let Some(measured) = job.measured else { continue };
        let Phase::Running { placement, .. } = &job.phase else { continue };
        if job.suspension().is_some() {
            continue;
        }
        let promised = limit(state, job);
        let Some(least) = promised.map(least_progress).or_else(|| kept(placement.floor)) else { continue };
        let recent = now.since(measured.at) <= state.options().slowdown_window;
        // Twice in a row: a job that evaluates or writes a checkpoint pauses of its own accord.
        let exceeded = measured.over >= state.options().slowdown_window
            && measured.progress < least
            && measured.before.is_some_and(|before| before < least)
            && recent;
        if !exceeded || placement.gpus.iter().any(|gpu| touched.contains(gpu)) {
            continue;
        }
        let tenants = || placement.gpus.iter().filter_map(|id| state.gpu(*id)).flat_map(|gpu| &gpu.tenants);
        let leaving =
            |job: &Job| job.ending().is_some() || job.suspension().is_some() || leaves.contains(&job.spec.id);
        if tenants().any(|t| state.job(t.job).is_some_and(leaving)) {
            continue;
        }
        let id = job.spec.id;
        let holding_up = tenants_holding_up(state, job);
        let others: BTreeSet<JobId> = holding_up.iter().map(|t| t.job).filter(|other| *other != id).collect();
        // Alone it has the whole GPU: what slows it down is none of our jobs.
        if others.is_empty() {
            continue;
        }
        let Some(latest) = latest_of(state, &holding_up) else { continue };
        let Phase::Running { placement: evicted, .. } = &latest.phase else { continue };
        if promised.is_none() && spares(state, latest, job).is_some() {
            continue;
        }
        let apart = match promised {
            Some(_) if latest.spec.id == id => others.into_iter().collect(),
            Some(_) => vec![id],
            // By the policy's floor it is the classes that are kept apart.
            None => Vec::new(),
        };
        let limit = promised.unwrap_or_else(|| slowdown(least));
        let cause = EndCause::Evicted { job: id, slowdown: slowdown(measured.progress), limit, apart };
        touched.extend(placement.gpus.iter().chain(&evicted.gpus));
        plan.actions.extend(take_off(state, latest, cause));
    }
}

/// The tenants, itself among them, of the GPUs on which a job is held up by others. None: it is alone.
fn tenants_holding_up<'a>(state: &'a State, job: &Job) -> Vec<&'a Tenant> {
    let gpus = state.held_up_on(job).into_iter().filter_map(|id| state.gpu(id));
    gpus.flat_map(|gpu| &gpu.tenants).collect()
}

/// The tenant that came last.
fn latest_of<'a>(state: &'a State, tenants: &[&Tenant]) -> Option<&'a Job> {
    tenants.iter().max_by_key(|t| (t.placed, t.job)).and_then(|t| state.job(t.job))
}

/// Why a job stays although it slows down another below what the policy keeps that one at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spared {
    /// The window before was not as bad, or this one is not full.
    Once,
    /// This one, the last to come, goes on for but a small part of what the slow one has left.
    Brief(JobId),
    /// This one, the last to come, would do again more than the slow one would win.
    Loses(JobId),
}

/// Why no neighbour is evicted although a job is measured below the floor. `None`: it is not below, has a limit of its own, or a neighbour is evicted.
#[must_use]
pub fn spared(state: &State, job: &Job) -> Option<Spared> {
    let rule = state.options().policy.progress?.with(job.placement()?.floor);
    let (least, measured) = (rule.least_measured(), job.measured?);
    if limit(state, job).is_some() || measured.progress >= least {
        return None;
    }
    let latest = latest_of(state, &tenants_holding_up(state, job))?;
    let again = measured.before.is_some_and(|before| before < least);
    if !again || measured.over < state.options().slowdown_window {
        return Some(Spared::Once);
    }
    spares(state, latest, job)
}

/// Why the last to come stays beside one that it slows down by more than the policy lets it.
fn spares(state: &State, latest: &Job, slow: &Job) -> Option<Spared> {
    let brief = is_nearly_over(state, latest, slow).then_some(Spared::Brief(latest.spec.id));
    brief.or_else(|| loses_more_than_is_won(state, latest, slow).then_some(Spared::Loses(latest.spec.id)))
}

/// When a job is expected to be over. `None`: it takes longer than expected, and may go on for as long as it likes. Half of what it has
/// done, which is likely left of such a job, would spare it for ever.
fn ends_in(state: &State, latest: &Job) -> Option<Millis> {
    (!state.is_longer_than_expected(latest)).then(|| state.ends_in(latest))
}

/// Whether a job that slows another down stays but briefly beside it.
fn is_nearly_over(state: &State, latest: &Job, slow: &Job) -> bool {
    latest.spec.id != slow.spec.id
        && ends_in(state, latest).is_some_and(|ends| state.course(slow).outlasts(ends))
}

/// Whether a job would have to do more again than the time is for which it and another go on side by side: then that other one
/// waits for less than is lost.
fn loses_more_than_is_won(state: &State, latest: &Job, slow: &Job) -> bool {
    let saves = latest.spec.request.save_grace.is_some() || state.may_set_aside(latest);
    let slow_ends = state.ends_in(slow);
    let together = ends_in(state, latest).map_or(slow_ends, |ends| ends.min(slow_ends));
    !saves && state.done(latest) > together
}

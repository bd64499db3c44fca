//! Limits of slowdown that were exceeded: which job is evicted for it.
//!
//! What is allowed and predicted is in [`crate::slowdown`]. Here only what was measured counts.

use super::Plan;
use super::ending::{leaving_by, take_off};
use crate::explain::Eviction;
use crate::ledger::Tenant;
use crate::model::{EndCause, GpuId, Job, JobId, Phase, SharingMode};
use crate::progress::least_progress;
use crate::slowdown::{limit, slowdown};
use crate::state::State;
use crate::units::{Fraction, Millis};
use std::collections::BTreeSet;

/// A job that has run for more than so many times as long as expected may go on for as long as it likes. At once, evictions cost .3 to .6 % of JCT
/// under MPS (docs/research/tried.md).
const MUCH_LONGER: u64 = 3;

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
        // Twice in a row: a job that evaluates or writes a checkpoint pauses of its own accord. One that stands still hangs, or waits for
        // what no neighbour keeps from it.
        let exceeded = measured.over >= state.options().slowdown_window
            && !measured.stood_still()
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
        let Some(latest) = latest_of(state, holding_up) else { continue };
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
        let slowdown = slowdown(measured.progress);
        let cause = EndCause::Evicted(Eviction { job: id, slowdown, limit, apart, together: None });
        touched.extend(placement.gpus.iter().chain(&evicted.gpus));
        plan.actions.extend(take_off(state, latest, cause));
    }
    part(state, now, &touched, plan);
}

/// Time-sliced jobs that were measured to do less together than this, in speeds alone, are parted. At .95 jobs were parted on made-up traces
/// that did better side by side (docs/research/tried.md).
const LEAST_TOGETHER: Fraction = Fraction(9_200);

/// Evicts the newest of time-sliced jobs that do less together than one of them alone would: one after the other they are done sooner.
fn part(state: &State, now: Millis, touched: &BTreeSet<GpuId>, plan: &mut Plan) {
    if state.options().policy.progress.is_none() {
        return;
    }
    let leaves = leaving_by(plan);
    for (id, gpu) in (0..).map(GpuId).zip(state.gpus()) {
        if gpu.tenants.len() < 2 || touched.contains(&id) {
            continue;
        }
        let jobs: Vec<&Job> = gpu.tenants.iter().filter_map(|tenant| state.job(tenant.job)).collect();
        // What one on several GPUs does, it does on each; a limit of a job's own is looked after above.
        let counts = |job: &&Job| {
            job.ending().is_none()
                && job.suspension().is_none()
                && !leaves.contains(&job.spec.id)
                && limit(state, job).is_none()
                && job.placement().is_some_and(|placed| placed.gpus.len() == 1)
        };
        if jobs.len() != gpu.tenants.len()
            || !jobs.iter().all(counts)
            || state.sharing_among(&jobs) == SharingMode::Mps
        {
            continue;
        }
        let Some(together) = measured_together(state, now, &jobs).filter(|sum| *sum < LEAST_TOGETHER) else {
            continue;
        };
        let Some(latest) = latest_of(state, &gpu.tenants) else { continue };
        let others = jobs.iter().filter(|job| job.spec.id != latest.spec.id);
        let longest = others.max_by_key(|job| (state.course(job).likely_left(), job.spec.id));
        let Some((longest, measured)) = longest.and_then(|job| Some((*job, job.measured?))) else { continue };
        if is_better_together(state, latest, longest, together)
            || would_lose_more(state, latest, longest, together)
        {
            continue;
        }
        let cause = EndCause::Evicted(Eviction {
            job: longest.spec.id,
            slowdown: slowdown(measured.progress),
            limit: slowdown(LEAST_TOGETHER),
            apart: Vec::new(),
            together: Some(together),
        });
        plan.actions.extend(take_off(state, latest, cause));
    }
}

/// What jobs on a GPU do together, in speeds alone: the more of the last two windows, since one may hold a checkpoint of a job's own. `None`:
/// it is not measured of each of them, beside just these, or one stood still.
fn measured_together(state: &State, now: Millis, jobs: &[&Job]) -> Option<Fraction> {
    let lately = |at| now.since(at) <= state.options().slowdown_window;
    let (last, before) = jobs.iter().try_fold((0_u32, 0_u32), |(last, before), job| {
        let measured = state.measured_over_window(job).filter(|m| lately(m.at))?;
        Some((last.saturating_add(measured.progress.0), before.saturating_add(measured.before?.0)))
    })?;
    Some(Fraction(last.max(before)))
}

/// Whether the newest is so much shorter than the longest of the others that the time until each is done is less in the mean if they go on
/// side by side than if it waits for that one: of two as fast, n(4 / together - 2) < o.
fn is_better_together(state: &State, latest: &Job, longest: &Job, together: Fraction) -> bool {
    let left = |job: &Job| u128::from(state.course(job).likely_left().0);
    let (one, sum) = (u128::from(Fraction::ONE.0), u128::from(together.0));
    is_nearly_over(state, latest, longest) || left(latest) * (4 * one - 2 * sum) < left(longest) * sum
}

/// Whether the newest would do again more than the GPU loses while both are there.
fn would_lose_more(state: &State, latest: &Job, longest: &Job, together: Fraction) -> bool {
    let saves = latest.spec.request.save_grace.is_some() || state.may_set_aside(latest);
    let one = u128::from(Fraction::ONE.0);
    let lost = u128::from(both_there(state, latest, longest).0) * one.saturating_sub(u128::from(together.0));
    !saves && u128::from(state.done(latest).0) * one > lost
}

/// How long two jobs are both there.
fn both_there(state: &State, latest: &Job, other: &Job) -> Millis {
    let ends = state.ends_in(other);
    ends_in(state, latest).map_or(ends, |latest| latest.min(ends))
}

/// The tenants, itself among them, of the GPUs on which a job is held up by others. None: it is alone.
fn tenants_holding_up<'a>(state: &'a State, job: &Job) -> Vec<&'a Tenant> {
    let gpus = state.held_up_on(job).into_iter().filter_map(|id| state.gpu(id));
    gpus.flat_map(|gpu| &gpu.tenants).collect()
}

/// The tenant that came last.
fn latest_of<'a>(state: &'a State, tenants: impl IntoIterator<Item = &'a Tenant>) -> Option<&'a Job> {
    tenants.into_iter().max_by_key(|t| (t.placed, t.job)).and_then(|t| state.job(t.job))
}

/// Why a job stays although it slows down another below what the policy keeps that one at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spared {
    /// It made no step in this window, or in the one before.
    StoodStill,
    /// The window before was not as bad, or this one is not full.
    Once,
    /// This one, the last to come, goes on for but a small part of what the slow one has left.
    Brief(JobId),
    /// This one, the last to come, would lose more work than the slow one would gain.
    Loses(JobId),
}

/// Why no neighbour is evicted although a job is measured below the floor. `None`: it is not below, has a limit of its own and makes steps, or a neighbour is
/// evicted.
#[must_use]
pub fn spared(state: &State, job: &Job) -> Option<Spared> {
    let (measured, rule) = (job.measured?, state.options().policy.progress);
    let is_kept = rule.is_some() || limit(state, job).is_some();
    if is_kept && measured.stood_still() {
        return (!state.held_up_on(job).is_empty()).then_some(Spared::StoodStill);
    }
    let least = rule?.with(job.placement()?.floor).least_measured();
    if limit(state, job).is_some() || measured.progress >= least {
        return None;
    }
    let latest = latest_of(state, tenants_holding_up(state, job))?;
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

/// When a job is expected to be over. `None`: it takes much longer than expected, and may go on for as long as it likes. Half of what it has
/// done, which is likely left of such a job, would spare it for ever; that it is evicted at once loses what may be nearly done.
fn ends_in(state: &State, latest: &Job) -> Option<Millis> {
    let expected = Millis::secs(latest.spec.run_s());
    let is_much_longer =
        state.is_longer_than_expected(latest) && state.done(latest).0 > MUCH_LONGER * expected.0;
    (!is_much_longer).then(|| state.ends_in(latest))
}

/// Whether a job that slows another down stays but briefly beside it.
fn is_nearly_over(state: &State, latest: &Job, slow: &Job) -> bool {
    let has_waited = latest.placement().is_some_and(|placement| placement.floor.is_some());
    latest.spec.id != slow.spec.id
        && ends_in(state, latest).is_some_and(|ends| state.course(slow).outlasts(ends, has_waited))
}

/// Whether a job would have to do more again than the time is for which it and another go on side by side: then that other one
/// waits for less than is lost.
fn loses_more_than_is_won(state: &State, latest: &Job, slow: &Job) -> bool {
    let saves = latest.spec.request.save_grace.is_some() || state.may_set_aside(latest);
    !saves && state.done(latest) > both_there(state, latest, slow)
}

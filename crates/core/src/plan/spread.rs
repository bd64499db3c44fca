//! Jobs that share a GPU while another is idle: one of them moves there.
//!
//! Jobs come to be together while there are many. When fewer are left, those that are together go on at a part of their speed beside idle
//! GPUs. Only where none waits, and for jobs that the driver can suspend.

use super::Plan;
use super::ending::leaving_by;
use super::room;
use super::slot::closed;
use crate::input::Action;
use crate::ledger::{Gpu, Tenant};
use crate::model::{EndCause, GpuId, Job, JobId, SharingMode};
use crate::slowdown::limit;
use crate::state::{MOST_SPREADS, State};
use crate::units::{Fraction, MiB, Millis};
use std::cmp::Reverse;
use std::collections::BTreeSet;

/// Time without its GPU that a move costs a job, whatever it holds, and for each GiB: 2.3 s for 2.1 GiB on H200s and H100s, 16 to 19 s for 21 GiB
/// (docs/research/h200.md).
const COST: Millis = Millis::secs(2);
const COST_OF_GIB: Millis = Millis::secs(1);
/// What it gains, and those that it leaves, is at least so many times what it costs, and so long: how long jobs go on is an estimate.
const TIMES_COST: u64 = 2;
const LEAST_GAIN: Millis = Millis::secs(20);

/// A job that had best move, and what that brings.
struct Mover {
    /// Time that it and its neighbours are done sooner in all.
    gain: Millis,
    cost: Millis,
    job: JobId,
    attempt: u32,
}

/// Whether a job might move to an idle GPU if none waits: for a caller that makes no plan where none waits.
#[must_use]
pub fn may_spread(state: &State) -> bool {
    let options = state.options();
    let spreads =
        options.suspends && options.moves && options.policy.progress.is_some() && options.policy.idle_first;
    let takes_turns = |tenant: &Tenant| {
        let placed = state.job(tenant.job).and_then(Job::placement);
        placed.is_some_and(|placed| placed.sharing == SharingMode::TimeSlice)
    };
    spreads
        && state.idle().next().is_some()
        && state.gpus().iter().any(|gpu| gpu.tenants.len() > 1 && gpu.tenants.iter().any(takes_turns))
        && !state.has_mig()
}

/// Moves jobs to GPUs that stay idle, one from each GPU at a time.
pub(super) fn spread(state: &State, now: Millis, plan: &mut Plan) {
    if !may_spread(state) || room::is_made(state) {
        return;
    }
    let options = state.options();
    let taken = taken(state, plan);
    let leaving = leaving_by(plan);
    let shared = (0..).map(GpuId).zip(state.gpus());
    let shared = shared.filter(|(id, gpu)| gpu.tenants.len() > 1 && gpu.present && !taken.contains(id));
    let mut movers: Vec<(&Gpu, Mover)> =
        shared.filter_map(|(_, gpu)| Some((gpu, mover(state, gpu, &leaving)?))).collect();
    movers.sort_by_key(|(_, mover)| (Reverse(mover.gain), mover.cost, mover.job));
    for to in state.idle().filter(|id| !taken.contains(id)) {
        if movers.is_empty() {
            return;
        }
        let Some(idle) = state.gpu(to).filter(|gpu| closed(gpu, options, now).is_none()) else { continue };
        if let Some(at) = movers.iter().position(|(gpu, _)| gpu.info.is_like(&idle.info)) {
            let (_, Mover { job, attempt, .. }) = movers.remove(at);
            plan.actions.push(Action::Suspend { job, attempt, cause: Some(EndCause::Spread { to }) });
        }
    }
}

/// GPUs on which this plan puts jobs, or to which jobs are on their way.
fn taken(state: &State, plan: &Plan) -> BTreeSet<GpuId> {
    let by_plan = plan.actions.iter().flat_map(|action| match action {
        Action::Launch { placement, .. } => &placement.gpus[..],
        Action::Resume { gpus, .. } => gpus,
        _ => &[],
    });
    let halted = state.halted_jobs().filter_map(|job| job.suspension()?.wanted.as_ref()?.to);
    by_plan.copied().chain(halted).collect()
}

/// The job of those on a GPU that had best leave it for an idle one, if that pays.
fn mover(state: &State, gpu: &Gpu, leaving: &BTreeSet<JobId>) -> Option<Mover> {
    let stays =
        |job: &&Job| job.ending().is_none() && job.suspension().is_none() && !leaving.contains(&job.spec.id);
    let there: Option<Vec<&Job>> =
        gpu.tenants.iter().map(|tenant| state.job(tenant.job).filter(stays)).collect();
    let there = there?;
    // So long they are together, if they stay as they are.
    let together = there.iter().map(|job| state.ends_in(job)).min()?;
    let lost = |job: &Job| {
        let slower = Fraction::ONE.0.saturating_sub(state.pace(job).0.0);
        Millis(together.0.saturating_mul(u64::from(slower)) / u64::from(Fraction::ONE.0))
    };
    // A user who moved a job there wants it there. Its neighbours may be others' jobs.
    let ordered =
        |job: &Job| job.halt().and_then(|halt| halt.moved.as_ref()).is_some_and(|moved| moved.ordered);
    let can = |job: &&&Job| {
        state.may_set_aside(job)
            && State::times_set_aside(job) < MOST_SPREADS
            && limit(state, job).is_none()
            && !ordered(job)
    };
    let movers = there.iter().filter(can).filter_map(|job| {
        let held = gpu.tenant(job.spec.id)?.observed.unwrap_or(MiB::ZERO);
        let cost = COST + Millis(held.0.saturating_mul(COST_OF_GIB.0) / MiB::gib(1).0);
        let own = lost(job);
        // Of several that it leaves it is not known how fast they are without it.
        let others = there.iter().filter(|other| there.len() == 2 && other.spec.id != job.spec.id);
        let gain = others.fold(own, |gain, other| gain + lost(other));
        let pays = own > cost && gain >= LEAST_GAIN.max(Millis(cost.0.saturating_mul(TIMES_COST)));
        let attempt = job.placement()?.attempt;
        pays.then_some(Mover { gain, cost, job: job.spec.id, attempt })
    });
    movers.max_by_key(|mover| (mover.gain, Reverse(mover.cost), Reverse(mover.job)))
}

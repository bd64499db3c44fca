//! Memory that grows where nothing limits it: which job leaves a GPU before it runs full.
//!
//! On a full GPU the next allocation fails, whichever job filled it. So the job that came last of those whose memory grows is taken off
//! before that, at once: memory may be full within seconds. Where no other's memory rises it may be suspended, since it
//! stands still long before its memory is free; else it goes back into the queue. A job that stays within its declared need,
//! or that has settled within its reservation, never goes.

use super::Plan;
use super::ending::{end, leaving_by, take_off};
use crate::explain::Filling;
use crate::ledger::{Gpu, Reservation, Tenant};
use crate::model::{EndCause, JobId, Placement};
use crate::state::State;
use crate::units::{MiB, Millis};
use std::collections::BTreeSet;

/// A GPU with less than this free is about to run full, percent of its memory. CUDA gives a little less than the driver
/// counts, so that jobs die with some tenths of a percent to some percent free; and the end of a job takes a second.
const MARGIN_PERCENT: u64 = 3;
/// But no less than this: PyTorch's allocator asks for about so much at a time.
const MARGIN_LEAST: MiB = MiB::gib(1);

/// Takes off jobs that would run a GPU full, one on a GPU at a time: when it has left, there may be room.
pub(super) fn guard(state: &State, now: Millis, plan: &mut Plan) {
    // Elsewhere jobs of unknown memory have GPUs of their own, and published policies stay as they were published.
    if !state.options().policy.blind {
        return;
    }
    let mut leaving = leaving_by(plan);
    for gpu in state.gpus().iter().filter(|gpu| gpu.tenants.len() > 1) {
        let Some(Leaves { job, alone, filling }) = leaves(state, gpu, &leaving, now) else { continue };
        leaving.insert(job);
        let Some(job) = state.job(job) else { continue };
        let cause = EndCause::GrowthGuard(filling);
        plan.actions.extend(if alone { take_off(state, job, cause) } else { end(job, cause) });
    }
}

/// A tenant that shares its GPU, as the guard looks at it.
struct Guarded<'a> {
    tenant: &'a Tenant,
    placement: &'a Placement,
    held: MiB,
    /// What was reserved for it, where it holds more.
    exceeded: Option<MiB>,
}

impl<'a> Guarded<'a> {
    fn new(tenant: &'a Tenant, placement: &'a Placement) -> Self {
        let given = match tenant.reservation {
            Reservation::Memory(m) => Some(m),
            Reservation::Whole | Reservation::None => placement.part,
        };
        let held = tenant.observed.unwrap_or_default();
        let exceeded = given.max(tenant.forecast).filter(|given| held > *given);
        Self { tenant, placement, held, exceeded }
    }

    /// Whether it was promised what is reserved for it: a hard limit keeps it to that, or it said so much and takes no more.
    fn is_promised(&self) -> bool {
        self.placement.cap.is_some() || self.tenant.forecast.is_some_and(|said| self.held <= said)
    }

    /// Whether it takes more than it was given, or nothing says where it stops.
    fn grows(&self, now: Millis) -> bool {
        let exceeds = self.exceeded.is_some() && self.placement.cap.is_none();
        exceeds || (!self.is_promised() && !self.tenant.settled && self.tenant.is_rising(now))
    }

    /// What others have to leave it. Not the margin of one that has settled: it is likely never taken, and where it is, the
    /// one that goes is still another, which holds more than was reserved for it.
    fn unused(&self) -> MiB {
        match self.tenant.reservation {
            Reservation::Memory(m) if self.is_promised() => m - self.held,
            _ => MiB::ZERO,
        }
    }

    const fn came(&self) -> (Millis, JobId) {
        (self.tenant.placed, self.tenant.job)
    }
}

/// The job that has to leave a GPU.
struct Leaves {
    job: JobId,
    /// The memory of no other rises now.
    alone: bool,
    filling: Filling,
}

/// The job that has to leave a GPU, if it is about to run full.
fn leaves(state: &State, gpu: &Gpu, leaving: &BTreeSet<JobId>, now: Millis) -> Option<Leaves> {
    let seen = gpu.seen.as_ref().filter(|seen| seen.processes_known)?;
    let (memory, used) = (gpu.info.memory, seen.used?);
    let stale_after = state.options().stale_after;
    if now.since(seen.at) > stale_after {
        return None;
    }
    let mut guarded = Vec::with_capacity(gpu.tenants.len());
    for tenant in &gpu.tenants {
        let job = state.job(tenant.job)?;
        if job.ending().is_some() || job.suspension().is_some() || leaving.contains(&tenant.job) {
            return None;
        }
        guarded.push(Guarded::new(tenant, job.placement()?));
    }
    let free = memory - used;
    let left = free - guarded.iter().map(Guarded::unused).sum();
    // As much again as in the last two readings.
    let since = Millis(now.0.saturating_sub(stale_after.0));
    let growing = || guarded.iter().filter(|m| m.grows(now));
    let rise = |m: &Guarded<'_>| gpu.recent.rise(m.tenant.job, since);
    let soon: MiB = growing().map(rise).sum();
    if free >= memory.percent(MARGIN_PERCENT).max(MARGIN_LEAST) && left > soon {
        return None;
    }
    // The job that came first only goes for what it took beyond what it was given.
    let first = guarded.iter().map(Guarded::came).min()?;
    let goes = |m: &&Guarded<'_>| m.exceeded.is_some() || m.came() > first;
    let last = growing().filter(goes).max_by_key(|m| m.came())?;
    let Guarded { held, exceeded, .. } = *last;
    let filling = Filling { gpu: gpu.info.index, memory, free, left, held, exceeded };
    let others_rise = guarded.iter().any(|m| m.came() != last.came() && rise(m) > MiB::ZERO);
    Some(Leaves { job: last.tenant.job, alone: !others_rise, filling })
}

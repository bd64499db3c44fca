//! Jobs that leave their GPUs for a while, and jobs that come back.
//!
//! A suspended job that is to go on goes before those that wait: it ran before them. Its GPU is kept for it. One that the
//! policy took off also takes another GPU of the type, where it is predicted to do no harm.

use super::gpus::Places;
use super::limits::Takes;
use super::search::Slots;
use super::slot::Slot;
use super::want::Want;
use super::{Detail, Plan, room};
use crate::explain::{NoGpu, Reason, Refusal};
use crate::input::Action;
use crate::ledger::{Reservation, Tenant};
use crate::model::{GpuId, Job, JobId, Placement, SuspendStep, Suspension};
use crate::policy::NeedSource;
use crate::state::{Startup, State, aside};
use crate::units::{MiB, Millis};
use std::cmp::Reverse;
use std::sync::Arc;

/// Jobs that are to leave their GPUs.
pub(super) fn suspend_jobs(state: &State, plan: &mut Plan) {
    for job in state.halted_jobs() {
        let asked = job.suspension().is_some_and(|suspension| suspension.step == SuspendStep::Asked);
        if let Some(Placement { attempt, .. }) = job.placement().filter(|_| asked && job.ending().is_none()) {
            plan.actions.push(Action::Suspend { job: job.spec.id, attempt: *attempt, cause: None });
        }
    }
}

/// A suspended job that is to go on: its number, its suspension, and when that was asked for.
fn returning(job: &Job) -> Option<(Millis, JobId, &Suspension)> {
    let suspension = job.suspension().filter(|suspension| suspension.is_off() && job.ending().is_none())?;
    Some((suspension.wanted.as_ref()?.at, job.spec.id, suspension))
}

/// Jobs that are to go on, in the order in which that was asked for.
fn back(state: &State) -> Vec<(&Job, (Millis, JobId, &Suspension))> {
    let halted = state.halted_jobs();
    let mut back: Vec<_> = halted.filter_map(|job| Some((job, returning(job)?))).collect();
    back.sort_by_key(|(_, (at, id, _))| (*at, *id));
    back
}

/// The GPU that a job on its way moves to, and the one that it must go back to if it cannot.
fn on_the_way(state: &State) -> impl Iterator<Item = (JobId, GpuId)> {
    let halted = state.halted_jobs().filter(|job| job.ending().is_none());
    halted.filter_map(|job| {
        let suspension = job.suspension()?;
        let to = suspension.wanted.as_ref().and_then(|wanted| wanted.to);
        let kept = match suspension.step {
            SuspendStep::Asked | SuspendStep::Suspending => to,
            SuspendStep::Suspended => None,
            // Where it goes back to it is already.
            SuspendStep::Resuming => {
                let there = job.placement()?.gpus.first();
                suspension.home.first().copied().filter(|home| to.is_some() && Some(home) != there)
            }
        };
        Some((job.spec.id, kept?))
    })
}

/// Takes and keeps the GPUs of suspended jobs, as a plan does before it looks at those that wait.
pub(super) fn keep(state: &State, now: Millis, slots: &mut Slots<'_>) {
    room::keep(state, now, slots);
    reserve_arrivals(slots, state, now, None);
    for (job, (.., suspension)) in back(state) {
        let pause = suspension.not_before.max(room::kept_until(state, suspension));
        if pause.is_none_or(|until| until <= now) {
            let _ = find(slots, state, job, suspension, now);
        }
    }
}

/// Puts jobs back on their GPUs, in the order in which that was asked for. Returns whether one of them waits.
pub(super) fn resume_jobs(
    state: &State,
    now: Millis,
    detail: Detail,
    (places, takes): (&mut Places<'_>, &mut Takes<'_>),
    plan: &mut Plan,
) -> bool {
    let mut waits = false;
    if room::is_made(state)
        && let Some(until) = room::keep(state, now, places.slots())
    {
        plan.wake_at(until);
    }
    if on_the_way(state).next().is_some() {
        reserve_arrivals(places.slots(), state, now, None);
    }
    for (job, (_, id, suspension)) in back(state) {
        let kept_until = room::kept_until(state, suspension);
        if let Some(until) = suspension.not_before.max(kept_until).filter(|until| *until > now) {
            plan.wake_at(until);
            continue;
        }
        // A quota that was spent meanwhile holds for what a user starts, or goes on with.
        let counts = |reason: &Reason| suspension.cause.is_none() || !reason.is_of_quota();
        let bars = takes.bars(job, true, now).filter(counts);
        takes.spent |= bars.as_ref().is_some_and(Reason::is_of_quota);
        let found = match bars {
            Some(reason) => Err(Box::new(reason)),
            None => find(places.slots(), state, job, suspension, now),
        };
        waits |= found.is_err();
        match (found, job.placement()) {
            (Ok(gpu), Some(placement)) => {
                takes.take(job);
                plan.actions.push(Action::Resume { job: id, attempt: placement.attempt, gpus: vec![gpu] });
            }
            (Ok(_), None) => {}
            (Err(mut reason), _) if detail == Detail::Reasons => {
                advise_move(state, now, job, &mut reason);
                let cause = suspension.cause.as_deref().and_then(aside);
                let reason = match cause {
                    Some(cause) => Reason::SetAside { cause, waits: Some(reason) },
                    None => *reason,
                };
                plan.waiting.push((id, reason));
            }
            (Err(_), _) => {}
        }
    }
    waits
}

/// Says of a job that waits for the GPU that it left whether it could move, by a trial: what is advised must not be refused.
fn advise_move(state: &State, now: Millis, job: &Job, reason: &mut Reason) {
    if let Reason::NoGpu { detail, .. } = reason
        && detail.left_by.is_some()
    {
        Arc::make_mut(detail).may_move = best_move(state, now, job).is_ok();
    }
}

/// Why a suspended job that is to come back does not yet: what a plan with reasons says of it, without a look at the queue. `None`: it comes
/// back, stands still for now, or is not to come back.
#[must_use]
pub fn stays_off(state: &State, now: Millis, job: JobId) -> Option<Reason> {
    let now = now.max(state.now());
    let (mut places, mut takes, mut plan) = (Places::new(state, now), Takes::new(state), Plan::default());
    resume_jobs(state, now, Detail::Reasons, (&mut places, &mut takes), &mut plan);
    plan.waiting.into_iter().find(|(id, _)| *id == job).map(|(_, reason)| reason)
}

/// A job as if it were off its GPUs; `None`: it has none.
fn as_if_off(state: &State, job: &Job) -> Option<Suspension> {
    let there = job.placement()?.gpus.iter().filter_map(|gpu| state.gpu(*gpu)?.tenant(job.spec.id));
    let mut as_if = Suspension::new(job.spec.user.name.clone());
    as_if.kept = match job.suspension().filter(|suspension| suspension.is_off()) {
        Some(suspension) => suspension.kept.clone(),
        None => there.cloned().collect(),
    };
    Some(as_if)
}

/// Why a job that runs or is suspended could not move to a GPU now; `None`: it could.
#[must_use]
pub fn bars_move(state: &State, now: Millis, job: &Job, to: GpuId) -> Option<Reason> {
    let now = now.max(state.now());
    let mut as_if = as_if_off(state, job)?;
    as_if.home = vec![to];
    find(&mut with_arrivals(state, now, job), state, job, &as_if, now).err().map(|reason| *reason)
}

/// The GPU that a job had best move to of those that it could now: an idle one, else the one with the fewest jobs, of these the one with
/// the most memory free.
///
/// # Errors
///
/// Why each of the others that is in use does not do; `None`: there is no such GPU.
pub fn best_move(state: &State, now: Millis, job: &Job) -> Result<GpuId, Option<Box<Reason>>> {
    best_of(state, now, job, None)
}

/// As [`best_move`], where a suspended job may also come back to the GPU that it left, if that is idle and no other is.
///
/// # Errors
///
/// As [`best_move`].
pub fn best_place(state: &State, now: Millis, job: &Job) -> Result<GpuId, Option<Box<Reason>>> {
    let off = job.suspension().filter(|suspension| suspension.step == SuspendStep::Suspended);
    // One that is to go elsewhere has been told so by its user.
    let off = off.filter(|suspension| suspension.wanted.as_ref().is_none_or(|wanted| wanted.to.is_none()));
    best_of(state, now, job, off.and_then(|suspension| suspension.home.first().copied()))
}

/// The best of the other GPUs of its type, and of its own (`left`) where that is idle.
fn best_of(state: &State, now: Millis, job: &Job, left: Option<GpuId>) -> Result<GpuId, Option<Box<Reason>>> {
    let Some(on) = job.placement().map(|placement| &placement.gpus) else { return Err(None) };
    let Some(from) = on.first().and_then(|gpu| state.gpu(*gpu)).map(|gpu| &gpu.info) else {
        return Err(None);
    };
    let arrived = with_arrivals(state, now.max(state.now()), job);
    let own = |slot: &Slot<'_>| left == Some(slot.id);
    let places = arrived.slots.iter().filter(|slot| {
        if on.contains(&slot.id) { own(slot) && slot.idle } else { from.is_like(&slot.gpu.info) }
    });
    let mut places: Vec<&Slot<'_>> = places.collect();
    places.sort_by_key(|slot| (!slot.idle, slot.tenants, own(slot), Reverse(slot.free), slot.id));
    let mut bars = Vec::new();
    for slot in places {
        match bars_move(state, now, job, slot.id) {
            Some(bar) if !own(slot) => bars.push(bar),
            Some(_) => {}
            None => return Ok(slot.id),
        }
    }
    Err(all_of(bars).map(Box::new))
}

/// The reasons of several GPUs as one, but for those that no job may have.
fn all_of(bars: Vec<Reason>) -> Option<Reason> {
    let mut refusals = Vec::new();
    let mut last = None;
    for mut bar in bars {
        let Reason::NoGpu { detail, .. } = &mut bar else { continue };
        let in_use =
            |(_, refusal): &&(u32, Refusal)| !matches!(refusal, Refusal::Gone | Refusal::Drained { .. });
        let before = refusals.len();
        refusals.extend(detail.refusals.iter().filter(in_use).cloned());
        if refusals.len() > before {
            last = Some(bar);
        }
    }
    if let Some(Reason::NoGpu { detail, .. }) = &mut last {
        *detail = Arc::new(NoGpu { refusals, ..NoGpu::default() });
    }
    last
}

/// All GPUs, as if the jobs on their way to another one were there, but for this job.
fn with_arrivals<'a>(state: &'a State, now: Millis, job: &Job) -> Slots<'a> {
    let mut slots = Slots::new(state, now);
    reserve_arrivals(&mut slots, state, now, Some(job.spec.id));
    slots
}

/// Reserves what jobs on their way take where they move to, and where they must go back to if they cannot, as if they were there. Several may
/// move to one GPU, and others be placed there beside them. `but`: this one is looked at by itself.
fn reserve_arrivals(slots: &mut Slots<'_>, state: &State, now: Millis, but: Option<JobId>) {
    for (id, gpu) in on_the_way(state).filter(|(id, _)| Some(*id) != but) {
        let Some(job) = state.job(id) else { continue };
        let Some(suspension) = as_if_off(state, job) else { continue };
        let want = want(state, job, &suspension, now);
        if let Some(at) = slots.slots.iter().position(|slot| slot.id == gpu) {
            slots.take(at, id, &want, None);
        }
    }
}

/// The GPU that a job comes back to: where it is to move, if that has room, else where it was. Else why it waits; its GPU
/// is kept for it.
fn find(
    slots: &mut Slots<'_>,
    state: &State,
    job: &Job,
    suspension: &Suspension,
    now: Millis,
) -> Result<GpuId, Box<Reason>> {
    let want = want(state, job, suspension, now);
    if suspension.cause.is_some() {
        return find_harmless(slots, state, suspension, &want, now);
    }
    // A move may have been asked for before a GPU was switched into MIG mode.
    let to = suspension.wanted.as_ref().and_then(|wanted| wanted.to).filter(|_| !state.has_mig());
    let home = suspension.home.first().copied();
    let mut why = None;
    for target in [to, home].into_iter().flatten() {
        let Some(at) = slots.slots.iter().position(|slot| slot.id == target) else { continue };
        let off = suspension.off.filter(|_| to != Some(target));
        let stays = off.is_some() && (to.is_some() || suspension.bound);
        let Some(bar) = slots.slots[at].bars_return(&want, off, stays) else {
            slots.take(at, job.spec.id, &want, None);
            return Ok(target);
        };
        let slot = &slots.slots[at];
        let refusals = vec![(slot.gpu.info.index, slot.refusal(bar, &want, slots.options, now))];
        let there = state.gpu(target).map(|gpu| &gpu.info);
        let others = slots.slots.iter().filter(|other| other.id != target && !other.closed);
        let moves = suspension.off.is_some() && home == Some(target) && !suspension.bound && !state.has_mig();
        let any_other = others.into_iter().any(|other| there.is_some_and(|own| own.is_like(&other.gpu.info)));
        let left_by = (moves && any_other).then_some(job.spec.id);
        let reason = slots.none_for(&want, Arc::new(NoGpu { refusals, left_by, ..NoGpu::default() }));
        why.get_or_insert(reason);
    }
    if let Some(home) = home {
        slots.hold_for(home, job.spec.id);
    }
    Err(Box::new(why.unwrap_or(Reason::NotPlannedYet)))
}

/// The same for a job that the policy took off: where it is to move, else where it was, or of all GPUs of the type the one with the most memory
/// free, but only where a job that waits could be placed, too.
fn find_harmless(
    slots: &mut Slots<'_>,
    state: &State,
    suspension: &Suspension,
    want: &Want,
    now: Millis,
) -> Result<GpuId, Box<Reason>> {
    let home = suspension.home.first().copied();
    let Some(from) = home.and_then(|home| state.gpu(home)) else {
        return Err(Box::new(Reason::NotPlannedYet));
    };
    let may_move = !suspension.bound && state.options().moves && !state.has_mig();
    let to = suspension.wanted.as_ref().and_then(|wanted| wanted.to).filter(|_| may_move);
    let moves = suspension.is_spread();
    let mut refusals = Vec::new();
    let mut best: Option<usize> = None;
    for (at, slot) in slots.slots.iter().enumerate() {
        let info = &slot.gpu.info;
        let does = Some(slot.id) == home || (may_move && from.info.is_like(info));
        if !does {
            continue;
        }
        let bar = if moves && Some(slot.id) == home {
            // It left for its own sake: where it cannot move it returns as it was, and no prediction keeps it out.
            slot.bars_return(want, suspension.off, true)
        } else if want.alone || slot.idle {
            slot.bars_idle(want)
        } else {
            slot.bars_shared(want)
        };
        match bar {
            Some(bar) => refusals.push((info.index, slot.refusal(bar, want, slots.options, now))),
            None => {
                let rank = |at: usize| {
                    let slot = &slots.slots[at];
                    (to == Some(slot.id), home == Some(slot.id), slot.free)
                };
                if best.is_none_or(|best| rank(at) > rank(best)) {
                    best = Some(at);
                }
            }
        }
    }
    if let Some(at) = best {
        slots.take(at, want.job, want, None);
        return Ok(slots.slots[at].id);
    }
    // A job that made room or was to move gets its place back, and no other job may take the GPU of one that is over the bound on its start.
    let keeps = moves
        || suspension.makes_room_for().is_some()
        || state.job(want.job).is_some_and(|job| state.is_overdue(job, now));
    if let Some(home) = home.filter(|_| keeps) {
        slots.hold_for(home, want.job);
    }
    Err(Box::new(slots.none_for(want, Arc::new(NoGpu { refusals, ..NoGpu::default() }))))
}

/// What it wants: what it had.
fn want(state: &State, job: &Job, suspension: &Suspension, now: Millis) -> Want {
    let alone = |tenant: &Tenant| tenant.exclusive || tenant.reservation == Reservation::Whole;
    let reserved = suspension.kept.iter().filter_map(|tenant| match tenant.reservation {
        Reservation::Memory(m) => Some(m.max(tenant.observed.unwrap_or_default())),
        Reservation::Whole | Reservation::None => tenant.observed,
    });
    let need = reserved.max();
    let alone = suspension.kept.iter().any(alone);
    let of = Want::of(state, job, now, None);
    Want {
        idle_only: alone,
        least_capacity: need.unwrap_or_default(),
        need,
        // What it held may be more than was said of it, and the growth guard adds to that.
        source: if need == of.need.map(|need| need - of.guard) {
            of.source
        } else {
            need.map(|_| NeedSource::Held)
        },
        guard: MiB::ZERO,
        reservation: if alone {
            Reservation::Whole
        } else {
            need.map_or(Reservation::None, Reservation::Memory)
        },
        share: None,
        particular: true,
        sharing: job.placement().map_or(of.sharing, |placement| placement.sharing),
        alone,
        floor: job.placement().and_then(|placement| placement.floor),
        overdue: true,
        // It has started up.
        start: Startup::default(),
        ..of
    }
}

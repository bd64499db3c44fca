//! The walk along the queue: who is placed, who waits, and who keeps others waiting.
//!
//! Knows no GPU by itself: [`super::gpus`] and [`super::search`] answer for them.

use super::failed::Failed;
use super::gpus::Places;
use super::limits::Takes;
use super::resume::resume_jobs;
use super::room;
use super::slot::cooldowns;
use super::spread::spread;
use super::want::Want;
use super::{Detail, Plan};
use crate::explain::Reason;
use crate::input::Action;
use crate::model::{Estimator, Job, Placement};
use crate::slowdown::ASKED;
use crate::state::{Blind, Blinds, Startup, State};
use crate::units::Millis;
use std::collections::{BTreeSet, VecDeque};

/// Jobs prefetched at a time.
const AHEAD: usize = 32;

/// A queue of no more jobs than this stays in the cache: prefetching would only cost.
const CACHED: usize = 4096;

/// Where jobs go by length, kinds of jobs that are searched for in vain before the others have to wait for the next
/// plan, but for idle GPUs: a long queue of jobs that all differ would else be searched from end to end, and no predictions are asked for further ones. At 24
/// kinds in place of 12 a simulation of Philly takes 1.5 times as long, with the same completion times (docs/research/tried.md).
pub(super) const MOST_MISSES: usize = ASKED;

/// Jobs behind these that are looked at for the sake of idle GPUs that none before them can use.
const MOST_FOR_IDLE: usize = 1024;

/// A plan for the sake of a job that will be over before another works is made no sooner than that.
const SOON: Millis = Millis(1000);

/// Reads a little of some jobs that are looked at next, so that they are in the cache. In a long queue each job is a miss;
/// reads that do not wait for each other overlap, which takes a quarter off a plan for 100,000 jobs (`cargo bench -p
/// carma-core --bench decision`).
fn prefetch<'a>(jobs: impl Iterator<Item = &'a Job>) {
    let sum = jobs.fold(0u64, |sum, job| {
        let (spec, forecasts) = (&job.spec, &job.spec.forecasts);
        let rest = [
            job.not_before.is_some(),
            job.floor.is_some(),
            forecasts.declared.is_some(),
            forecasts.estimates.of(Estimator::Gpumemnet).is_some(),
        ];
        let rest = rest.into_iter().map(u64::from).sum::<u64>();
        sum ^ u64::from(spec.request.gpus) ^ job.queued.0 ^ rest
    });
    std::hint::black_box(sum);
}

pub(super) fn place_jobs(state: &State, now: Millis, detail: Detail, plan: &mut Plan) {
    let options = state.options();
    let policy = &options.policy;
    let mut places = Places::new(state, now);
    let mut takes = Takes::new(state);
    let mut left_waiting = resume_jobs(state, now, detail, (&mut places, &mut takes), plan);
    if state.queue().is_empty() {
        if takes.spent {
            plan.wake_at(options.next_period(now));
        }
        if left_waiting {
            wake_when_patience_ends(state, now, plan);
        } else {
            spread(state, now, plan);
        }
        return;
    }
    let mut failed = Failed::default();
    // Set once a job that may not be overtaken did not fit.
    let mut barrier: Option<Reason> = None;
    if state.latest_fault().is_some_and(|at| at + options.mps_cooldown > now) {
        for (_, left) in state.gpus().iter().flat_map(|gpu| cooldowns(gpu, options, now)) {
            plan.wake_at(now + left);
        }
    }
    if detail == Detail::Reasons {
        plan.waiting.reserve(state.queue().len());
    }
    let blinds = Blinds::of(state);
    // A job waits for room of whose memory nothing at all is known. Those behind it, of whose commands more is known, do not take it away
    // bit by bit.
    let mut unknown_waits = false;
    // So does one that is over the bound on its start.
    let mut overdue_waits = false;
    let by_length = policy.line.is_by_length();
    let beneficiaries = room::beneficiaries(state);
    // How jobs that were searched for in vain start up.
    let mut starts = BTreeSet::new();
    let mut misses = 0;
    // The last of those, once there are so many.
    let mut last = None;
    // Whether one waits for a prediction that the next plan has.
    let mut awaited = false;
    // Jobs that may still be looked at where as many were searched for in vain as may be.
    let mut for_idle = MOST_FOR_IDLE;
    let mut line = state.queue().line(now);
    let mut ahead = VecDeque::with_capacity(AHEAD);
    loop {
        if ahead.is_empty() {
            ahead.extend(line.by_ref().take(AHEAD));
            if barrier.is_none() && state.queue().len() > CACHED {
                prefetch(ahead.iter().map(|(_, job)| *job));
            }
        }
        let Some((key, job)) = ahead.pop_front() else { break };
        if let Some(reason) = &barrier {
            if detail == Detail::Actions {
                break;
            }
            plan.waiting.push((key.id, reason.clone()));
            continue;
        }
        if let Some(until) = job.not_before.filter(|until| *until > now) {
            plan.wake_at(until);
            left_waiting = true;
            if detail == Detail::Reasons {
                let error = job.past.last().map_or_else(String::new, |a| match &a.verdict {
                    Reason::NotLaunched { why } => why.clone(),
                    other => other.to_string(),
                });
                plan.waiting.push((key.id, Reason::Pause { error, until }));
            }
            continue;
        }
        if let Some(reason) = takes.bars(job, key.recovery.0, now) {
            if detail == Detail::Reasons {
                plan.waiting.push((key.id, reason));
            }
            continue;
        }
        let mut want = Want::of(state, job, now, blinds.as_ref());
        if unknown_waits {
            want.blind = want.blind.map(Blind::unknown);
        }
        // GPUs are kept for it alone.
        let has_room = beneficiaries.contains(&key.id);
        want.particular |= has_room;
        if let Some(placement) = places.place_idle(job, &want) {
            launch(job, placement, &mut takes, plan);
            continue;
        }
        let slots = places.slots();
        if let Some(last) = last {
            for_idle -= 1;
            if let Some(found) = slots.find_idle(&want).and_then(|_| slots.find(&want).ok()) {
                launch(job, slots.place(job, &want, found), &mut takes, plan);
            } else if detail == Detail::Reasons {
                plan.waiting.push((key.id, Reason::Later { last }));
            }
            if for_idle == 0 || !slots.has_idle() {
                barrier = Some(Reason::Later { last });
            }
            continue;
        }
        match slots.lower_floor(job, &want) {
            Some((from, floor)) if from <= now => want.floor = Some(floor),
            Some((from, _)) => plan.wake_at(from),
            None => {}
        }
        let kind = failed.kind(slots.kind(&want));
        let mut search = |failed: &mut Failed, kind: usize, want: &Want| {
            if failed.knows(kind, want) {
                return None;
            }
            let found = slots.find(want);
            if let Err(room) = &found {
                failed.learn(kind, want, *room);
                // Those of unknown memory that fit nowhere keep none out that does, unless each has to be searched for by itself.
                misses += usize::from(!want.narrowed && (want.particular || !slots.is_full_for(want)));
            }
            found.ok()
        };
        let mut found = search(&mut failed, kind, &want).map(|found| (want, found));
        if found.is_none() && slots.limited {
            found = want.narrower().find_map(|want| {
                let kind = failed.kind(slots.kind(&want));
                Some((want, search(&mut failed, kind, &want)?))
            });
        }
        if let Some((want, found)) = found {
            launch(job, slots.place(job, &want, found), &mut takes, plan);
            continue;
        }
        left_waiting = true;
        unknown_waits = unknown_waits || want.waits_as_unknown(slots);
        starts.insert(want.start);
        if slots.awaits_prediction(&want) {
            awaited = true;
            plan.wake_at(now);
        }
        // Recovered jobs wait without blocking others.
        let recovering = key.recovery.0;
        let blocks = match policy.backfill {
            _ if recovering || by_length => false,
            None => true,
            Some(limit) => now.since(job.queued) > limit && slots.can_ever_fit(&want),
        };
        if blocks {
            barrier = Some(Reason::Behind { job: key.id, overtaken_for: policy.backfill });
        }
        if detail == Detail::Reasons {
            let reason = failed.reason(slots, kind, &want);
            plan.waiting.push((key.id, reason));
        }
        // Else jobs that go first would keep it out for ever. Those that make room come back before all that wait: for a job behind others
        // that are overdue they would take the GPUs that are kept for these.
        let makes_room =
            !has_room && (!overdue_waits || job.is_urgent()) && room::is_entitled(state, job, &want);
        let makes_room = makes_room && room::make(state, job, &want, slots, plan);
        overdue_waits = overdue_waits || want.overdue;
        if want.holds || has_room {
            // What fails is the same as long as no more is kept.
            if slots.hold(&want) {
                failed = Failed::default();
            }
            // Where others leave for it, all of its GPUs are free soon.
            if !has_room && !makes_room && slots.lend(&want) {
                failed = Failed::default();
            }
        }
        if by_length && misses >= MOST_MISSES {
            last = Some(key.id);
            // One that awaits a prediction may take an idle GPU in the next plan, and goes before those behind it.
            if awaited || !slots.has_idle() {
                barrier = Some(Reason::Later { last: key.id });
            }
        }
    }
    starts.remove(&Startup::default());
    if let Some(until) = starts.iter().filter_map(|start| places.slots().next_over_before(*start)).min() {
        plan.wake_at(now + until.max(SOON));
    }
    if by_length {
        // The next bound passes, or one job over its bound comes to be before another.
        [state.queue().next_due(now), state.queue().next_turn(now)]
            .into_iter()
            .flatten()
            .for_each(|at| plan.wake_at(at));
    }
    if takes.spent {
        plan.wake_at(options.next_period(now));
    }
    if left_waiting {
        wake_when_patience_ends(state, now, plan);
    } else {
        spread(state, now, plan);
    }
}

fn launch(job: &Job, placement: Placement, takes: &mut Takes<'_>, plan: &mut Plan) {
    takes.take(job);
    plan.actions.push(Action::Launch { job: job.spec.id, placement });
}

/// A tenant that shows no activity keeps its GPU closed to those who wait, until patience ends.
fn wake_when_patience_ends(state: &State, now: Millis, plan: &mut Plan) {
    let patience = state.options().startup_patience;
    for tenant in state.gpus().iter().flat_map(|gpu| &gpu.tenants) {
        let ends = tenant.placed + patience;
        if !tenant.settled && tenant.active_since.is_none() && ends > now {
            plan.wake_at(ends);
        }
        if let Some(until) = tenant.rising_until(state.options()).filter(|until| *until > now) {
            plan.wake_at(until);
        }
    }
    let launches = |a: &Action| matches!(a, Action::Launch { .. });
    if plan.actions.iter().any(launches) {
        plan.wake_at(now + patience);
    }
}

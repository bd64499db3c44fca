//! What each GPU answers a job that waits, with the numbers behind it: for people who ask.
//!
//! Nothing here decides: the answers are those of [`super::slot`], beside the jobs that run now.

use super::place::MOST_MISSES;
use super::search::Slots;
use super::slot::Slot;
use super::want::Want;
use super::{resume, room};
use crate::explain::Refusal;
use crate::model::{Job, JobId};
use crate::progress::Predicted;
use crate::state::{Blinds, State};
use crate::units::{Fraction, MiB, Millis};

/// Jobs before it that are looked at.
const MOST_BEFORE: usize = 1024;

/// What one GPU answers a job that waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Its index.
    pub gpu: u32,
    /// Memory free for another job; `None`: not known.
    pub free: Option<MiB>,
    /// Memory that must be free for the job, guard included; `None`: no amount is asked for.
    pub need: Option<MiB>,
    /// Jobs that are on it.
    pub jobs: Vec<JobId>,
    /// Processes on it that carma did not start.
    pub foreign: u32,
    /// Why it does not do; `None`: it would do.
    pub refusal: Option<Refusal>,
    /// Predicted progress of all jobs that would be on it, the newcomer among them; empty where nothing is predicted.
    pub predicted: Vec<Predicted>,
    /// What the newcomer would add to the sum of progress; `None`: not predicted.
    pub gain: Option<Fraction>,
}

/// What each GPU answers a job that waits, by index. GPUs that are kept for suspended jobs, for urgent ones, for those over the bound on their
/// start, or for those that others make room for are so here, too, and lent as in a plan; what the other jobs before it would take is not looked at.
#[must_use]
pub fn answers(state: &State, now: Millis, job: &Job) -> Vec<Answer> {
    let now = now.max(state.now());
    let mut slots = Slots::new(state, now);
    resume::keep(state, now, &mut slots);
    let (blinds, beneficiaries) = (Blinds::of(state, now), room::beneficiaries(state));
    let id = job.spec.id;
    // Plans pass over jobs that limits of their users keep out, and search for no more than these.
    let line = || state.queue().line(now).filter(|(key, job)| key.id == id || state.is_free_to_start(job));
    let mut misses = 0;
    for (key, before) in line().take(MOST_BEFORE) {
        let want = Want::of(state, before, now, blinds.as_ref());
        if key.id == id || !want.holds || misses == MOST_MISSES {
            break;
        }
        let want = after_waiting(&slots, before, want, now);
        if slots.find(&want).is_err() {
            misses += usize::from(!slots.is_cheap(&want));
            slots.hold(&want);
            // Where others leave for it, all of its GPUs are free soon.
            if !beneficiaries.contains(&key.id) {
                slots.lend(&want);
            }
        }
    }
    let mut want = Want::of(state, job, now, blinds.as_ref());
    if want.blind.is_some_and(|blind| !blind.is_unknown()) {
        let before = line().take_while(|(key, _)| key.id != id).take(MOST_BEFORE);
        let mut wants = before.map(|(_, before)| Want::of(state, before, now, blinds.as_ref()));
        // As in a plan.
        if let Some(before) = wants.find(|before| before.waits_as_unknown(&slots)) {
            want = want.behind_unknown(before.job);
        }
    }
    let want = after_waiting(&slots, job, want, now);
    let answer = |slot: &Slot<'_>| {
        let full = answer(slot, &want, &slots);
        if full.refusal.is_none() {
            return full;
        }
        // With fewer threads it may do where it would not with all.
        let narrower = want.narrower().filter(|want| slot.narrows(want).is_some());
        narrower.map(|want| answer(slot, &want, &slots)).find(|a| a.refusal.is_none()).unwrap_or(full)
    };
    slots.slots.iter().map(answer).collect()
}

/// What a job wants that has waited for as long as it has, as in a plan.
fn after_waiting(slots: &Slots<'_>, job: &Job, want: Want, now: Millis) -> Want {
    match slots.lower_floor(job, &want) {
        Some((from, floor)) if from <= now => want.after_waiting(job, floor),
        _ => want,
    }
}

fn answer(slot: &Slot<'_>, want: &Want, slots: &Slots<'_>) -> Answer {
    let idle = slot.bars_idle(want);
    // What a job may not share it may still have alone.
    let bar = if want.idle_only || idle.is_none() { idle } else { slot.bars_shared(want) };
    let outlook = slot.outlook(want).filter(|outlook| slot.tenants > 0 && outlook.has_paces());
    Answer {
        gpu: slot.gpu.info.index,
        free: slot.free,
        need: slot.need_of(want),
        jobs: slot.gpu.tenants.iter().map(|tenant| tenant.job).collect(),
        foreign: u32::try_from(slot.gpu.foreign().len()).unwrap_or(u32::MAX),
        refusal: bar.map(|bar| slot.refusal(bar, want, slots.options, slots.now)),
        predicted: outlook.as_ref().map(|_| slot.predicted(want)).unwrap_or_default(),
        gain: outlook.map(|outlook| outlook.gain_over_run(want.start.share)),
    }
}

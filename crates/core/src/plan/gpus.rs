//! The GPUs while a plan is made, looked at as late as possible.
//!
//! A job that takes idle GPUs is served from the state's index. Everything else goes through [`super::search`].

use super::given::Given;
use super::search::Slots;
use super::slot::{closed, cooldown};
use super::want::Want;
use crate::model::{GpuId, Job, JobId, Placement};
use crate::state::State;
use crate::units::{MiB, Millis};

/// The GPUs while a plan is made. Where jobs take idle GPUs first and there are enough, the other
/// GPUs need not be looked at at all: of thousands, most plans touch a few.
pub(super) struct Places<'a> {
    state: &'a State,
    now: Millis,
    slots: Option<Slots<'a>>,
    /// Given away before the slots were built.
    taken: Vec<(GpuId, JobId, Want, Option<MiB>)>,
}

impl<'a> Places<'a> {
    pub(super) const fn new(state: &'a State, now: Millis) -> Self {
        Self { state, now, slots: None, taken: Vec::new() }
    }

    /// All GPUs, looked at.
    pub(super) fn slots(&mut self) -> &mut Slots<'a> {
        let (state, now, taken) = (self.state, self.now, &mut self.taken);
        self.slots.get_or_insert_with(|| {
            let mut slots = Slots::new(state, now);
            for (gpu, job, want, part) in taken.drain(..) {
                slots.limited |= want.limited;
                if let Some(at) = slots.slots.iter().position(|slot| slot.id == gpu) {
                    slots.goes_on_after(at);
                    slots.take(at, job, &want, part);
                }
            }
            slots
        })
    }

    /// Gives a job idle GPUs without looking at the others, where the policy takes those first.
    pub(super) fn place_idle(&mut self, job: &Job, want: &Want) -> Option<Placement> {
        let options = self.state.options();
        if self.slots.is_some() || !(options.policy.idle_first || want.idle_only) {
            return None;
        }
        let fits = |id: &GpuId| {
            let Some(gpu) = self.state.gpu(*id) else { return false };
            want.suits(&gpu.info)
                && closed(gpu, options, self.now).is_none()
                && cooldown(gpu, want, options, self.now).is_none()
                && !self.taken.iter().any(|(taken, ..)| taken == id)
        };
        let wanted = want.gpus as usize;
        let idle = self.state.idle().filter(fits);
        let gpus: Vec<GpuId> = if want.largest_first && self.state.has_several_sizes() {
            let mut gpus: Vec<GpuId> = idle.collect();
            gpus.sort_by_key(|id| std::cmp::Reverse(self.state.gpu(*id).map(|gpu| gpu.info.memory)));
            gpus.truncate(wanted);
            gpus
        } else {
            idle.take(wanted).collect()
        };
        if gpus.len() < wanted {
            return None;
        }
        let chosen = gpus.iter().filter_map(|id| Some((*id, self.state.gpu(*id)?)));
        let given = Given::of(chosen.map(|(id, gpu)| (id, gpu, gpu.free(options.policy.reserve))), want);
        let reason = given.reason_idle(want);
        self.taken.extend(given.gpus.iter().map(|id| (*id, job.spec.id, *want, given.part)));
        Some(given.placement(options, job, want, self.now, reason))
    }
}

//! What is remembered of searches that found nothing, so that of many jobs that wait for the same only the first one is
//! searched for.
//!
//! It saves work and decides nothing: every search that is left out would have found nothing.

use super::search::Slots;
use super::want::{Want, WantKind};
use crate::explain::{NoGpu, Reason};
use crate::units::MiB;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What is remembered of failed searches while a plan is made, so that of many jobs that wait for
/// the same only the first one is searched for.
#[derive(Default)]
pub(super) struct Failed {
    kinds: Vec<FailedKind>,
    at: BTreeMap<WantKind, usize>,
    /// Number of details built.
    details: usize,
}

#[derive(Default)]
struct FailedKind {
    /// By number of GPUs, ascending: up to which need another search may succeed; `None`: none.
    room: Vec<(u32, Option<MiB>)>,
    /// By need, ascending: what each GPU says.
    details: Vec<(MiB, Arc<NoGpu>)>,
}

/// Refusals built in one plan, at most (about): beyond, jobs share the details of a similar one.
const DETAIL_BUDGET: usize = 2048;

impl Failed {
    /// Position of a kind.
    pub(super) fn kind(&mut self, kind: WantKind) -> usize {
        *self.at.entry(kind).or_insert_with(|| {
            self.kinds.push(FailedKind::default());
            self.kinds.len() - 1
        })
    }

    /// Whether a search is known to be in vain.
    pub(super) fn knows(&self, kind: usize, want: &Want) -> bool {
        let known = &self.kinds[kind].room;
        match known.binary_search_by_key(&want.gpus, |(gpus, _)| *gpus) {
            Ok(at) => known[at].1.is_none_or(|room| want.need.unwrap_or_default() > room),
            Err(_) => false,
        }
    }

    /// A search was in vain: up to this need another may succeed.
    pub(super) fn learn(&mut self, kind: usize, want: &Want, room: Option<MiB>) {
        let known = &mut self.kinds[kind].room;
        match known.binary_search_by_key(&want.gpus, |(gpus, _)| *gpus) {
            Ok(at) => known[at].1 = room,
            Err(at) => known.insert(at, (want.gpus, room)),
        }
    }

    /// Why nothing was found. Past the budget it may be the answer to a job that needs less (or,
    /// failing that, more); [`evaluate`] gives the exact one.
    pub(super) fn reason(&mut self, slots: &Slots<'_>, kind: usize, want: &Want) -> Reason {
        let need = match want.need {
            Some(need) if !want.idle_only => need,
            _ => MiB::ZERO,
        };
        let spent = self.details >= (DETAIL_BUDGET / slots.slots.len().max(1)).max(16);
        let known = &mut self.kinds[kind].details;
        let after = known.partition_point(|(at, _)| *at <= need);
        let detail = match known.get(after.saturating_sub(1)) {
            Some((at, detail)) if spent || *at == need => detail.clone(),
            _ => {
                let detail = Arc::new(slots.refusals(want));
                self.details += 1;
                known.insert(after, (need, detail.clone()));
                detail
            }
        };
        slots.none_for(want, detail)
    }
}

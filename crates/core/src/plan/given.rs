//! What a job is given of the GPUs that were chosen for it: how much of each, how it shares them, and the decision.
//!
//! Which GPUs those are is in [`super::gpus`] and [`super::search`].

use super::want::Want;
use crate::explain::Reason;
use crate::ledger::Gpu;
use crate::model::{Floor, GpuId, Job, Placement, SharingMode};
use crate::policy::{NeedSource, Options};
use crate::state::Blind;
use crate::units::{MiB, Millis};

/// What a job is given.
pub(super) struct Given {
    pub(super) gpus: Vec<GpuId>,
    /// Their indices.
    pub(super) indices: Vec<u32>,
    /// Memory of the largest of them.
    memory: MiB,
    /// How it shares them.
    pub(super) sharing: SharingMode,
    /// What it gets of each, where nothing is known of its memory: a client of MPS has one limit for all of its GPUs.
    pub(super) part: Option<MiB>,
}

impl Given {
    /// `chosen`: the GPUs, each with the memory that is free there.
    pub(super) fn of<'g>(
        chosen: impl Iterator<Item = (GpuId, &'g Gpu, Option<MiB>)> + Clone,
        want: &Want,
    ) -> Self {
        let each = || chosen.clone();
        // A process is a client of MPS on all of its GPUs or on none.
        let sharing = each().map(|(_, gpu, _)| gpu.shares_by(want.sharing)).min();
        let sharing = sharing.unwrap_or(SharingMode::Exclusive);
        let part = |blind: Blind| {
            each().filter_map(|(_, gpu, free)| Some(blind.part(free?, gpu.info.memory, sharing))).min()
        };
        Self {
            gpus: each().map(|(id, ..)| id).collect(),
            indices: each().map(|(_, gpu, _)| gpu.info.index).collect(),
            memory: each().map(|(_, gpu, _)| gpu.info.memory).max().unwrap_or_default(),
            sharing,
            part: want.blind.and_then(part),
        }
    }

    /// What is reserved for the job on each, and where that number comes from.
    pub(super) fn reserved(&self, want: &Want) -> (Option<MiB>, Option<NeedSource>) {
        match (want.reserved_on(self.memory), self.part) {
            // A job of which it is known only that it takes more than such a GPU has gets all of it.
            (Some(reserved), _) => (Some(reserved.min(self.memory)), want.source),
            (None, Some(part)) => (Some(part), want.blind.map(|blind| blind.source(self.sharing))),
            (None, None) => (None, None),
        }
    }

    /// The reason of the decision where these GPUs are idle.
    pub(super) fn reason_idle(&self, want: &Want) -> Reason {
        let (need, source) = self.reserved(want);
        let source = source.filter(NeedSource::is_news);
        Reason::PlacedIdle { gpus: self.indices.clone(), need, source }
    }

    /// The decision.
    pub(super) fn placement(
        self,
        options: &Options,
        job: &Job,
        want: &Want,
        at: Millis,
        reason: Reason,
    ) -> Placement {
        let cap = self.cap(options, job, want);
        let Self { gpus, indices: _, memory: _, sharing, part } = self;
        Placement {
            attempt: job.attempts + 1,
            gpus,
            sharing,
            cap,
            part,
            floor: want.floor,
            thread_percent: want.class.threads.filter(|_| sharing == SharingMode::Mps),
            at,
            reason,
        }
    }

    /// The hard memory limit of an MPS client: its forecast or floor, or the part that it gets; off where caps are off or
    /// nothing is known.
    fn cap(&self, options: &Options, job: &Job, want: &Want) -> Option<MiB> {
        if self.sharing != SharingMode::Mps || !options.caps || job.floor == Some(Floor::ExclusiveGpu) {
            return None;
        }
        // History may know better than the user how much to reserve, but a job may always take what was
        // asked for it.
        let reserved = self.part.or_else(|| want.reserved_on(self.memory))?;
        Some(reserved.max(job.spec.forecasts.declared.unwrap_or_default()))
    }
}

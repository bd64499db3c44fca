//! Looks at the GPUs and their energy counters, on the way to the state; and what the sampler has to know of jobs.

use super::Engine;
use crate::sampler::{Look, Placed, Roster, Tenants};
use carma_core::input::{Input, Observation};
use carma_core::ledger::Gpu;
use carma_core::model::{GpuId, Phase};
use carma_core::policy::Gate;
use carma_core::units::{Fraction, MiB, Millis};
use std::collections::BTreeMap;
use std::sync::Arc;

/// How often the state is told of energy counters if nothing else changes, on the daemon's clock, also of those of a machine without
/// jobs: what a counter that begins anew takes with it is of so long at most. Of a machine without jobs the journal takes one transaction in
/// that time, an entry for each GPU, until the next snapshot.
pub(super) const METER: Millis = Millis::secs(600);
/// The same of a GPU without jobs while jobs wait: what it drew before one of them comes is not that one's.
const METER_IDLE: Millis = Millis::secs(10);

impl Engine {
    /// Brings the state's view of the GPUs up to date where it matters: when it is older than the
    /// cadence, or differs notably. `at_once`: a verdict needs to know up to when it was so.
    pub(super) fn refresh(&mut self, at_once: bool) {
        let taken = self.parts.board.take();
        if taken.is_empty() {
            return;
        }
        let now = self.parts.clock.now();
        let mut unchanged = Vec::new();
        let gate = self.state.options().policy.gate;
        let known = (0..).map(GpuId).zip(self.state.gpus());
        let by_uuid: BTreeMap<Arc<str>, GpuId> = known.map(|(id, gpu)| (gpu.info.uuid.clone(), id)).collect();
        for looks in taken {
            for look in looks.iter() {
                let Some(id) = by_uuid.get(&look.reading.uuid).copied() else { continue };
                let Some(gpu) = self.state.gpu(id) else { continue };
                // Not by the state's time of it: what was called unchanged later was seen before that.
                if self.looked.get(&id).is_some_and(|last| *last >= look.seen.at) {
                    continue;
                }
                self.looked.insert(id, look.seen.at);
                match gpu.seen.as_ref() {
                    // A counter goes on while all else stays: now and then that is told, too.
                    Some(old) if alike(old, &look.seen, gate) && !self.meter_is_due(id, gpu, look) => {
                        if at_once || now.since(old.at) >= self.parts.cadence {
                            unchanged.push(id);
                        }
                    }
                    _ => {
                        unchanged.retain(|other| *other != id);
                        self.observed(id, look);
                    }
                }
            }
        }
        unchanged.sort_unstable();
        unchanged.dedup();
        if !unchanged.is_empty() {
            self.apply(Input::Unchanged(unchanged));
        }
    }

    fn observed(&mut self, gpu: GpuId, look: &Look) {
        self.metered.insert(gpu, look.seen.at);
        self.apply(Input::Observed { gpu, seen: Box::new(look.seen.clone()) });
    }

    /// The GPUs whose energy counter is read.
    pub(super) fn counted(&self) -> Vec<GpuId> {
        let looks = self.parts.board.looks();
        let counted = looks.iter().filter(|look| look.seen.energy_mj.is_some());
        counted.filter_map(|look| self.state.gpu_id(&look.reading.uuid)).collect()
    }

    /// Whether a counter has not been told for long.
    fn meter_is_due(&self, id: GpuId, gpu: &Gpu, look: &Look) -> bool {
        let soon = gpu.tenants.is_empty() && !self.state.queue().is_empty();
        let most = if soon { METER_IDLE } else { METER };
        let since = self.metered.get(&id).map_or(most, |last| look.seen.at.since(*last));
        look.seen.energy_mj.is_some() && since >= most
    }

    /// Tells the state of all counters where there are no jobs, at the first look and then now and then. Returns when the next time is.
    pub(super) fn meter_idle(&mut self, now: Millis) -> Option<Millis> {
        let counted = self.counted();
        let is_due = |id| self.metered.get(id).is_none_or(|last| now.since(*last) >= METER);
        if counted.iter().any(is_due) {
            self.meter(&counted);
            // Also those that could not be told: they are asked again no sooner.
            self.metered.extend(counted.iter().map(|id| (*id, now)));
        }
        counted.iter().filter_map(|id| self.metered.get(id)).min().map(|last| *last + METER)
    }

    /// Tells the state what the energy counters of some GPUs say: the accounts of their tenants depend on it, and once a GPU
    /// is idle it may not be looked at for days.
    pub(super) fn meter(&mut self, gpus: &[GpuId]) {
        self.refresh(false);
        let looks = self.parts.board.looks();
        for id in gpus {
            let Some(gpu) = self.state.gpu(*id) else { continue };
            let look = looks.iter().find(|look| look.reading.uuid == gpu.info.uuid);
            let Some(look) = look.filter(|look| look.seen.energy_mj.is_some()) else { continue };
            let told = gpu.seen.as_ref().and_then(|seen| seen.energy_mj);
            if told != look.seen.energy_mj && self.looked.get(id).is_some_and(|last| *last <= look.seen.at) {
                self.observed(*id, look);
            }
        }
    }

    /// Which jobs have which GPUs, for the recorder.
    pub(super) fn tenants(&self) -> Tenants {
        let user = |job| self.state.job(job).map(|job| job.spec.user.uid);
        let taken = (0..).map(GpuId).zip(self.state.gpus()).filter(|(_, gpu)| !gpu.tenants.is_empty());
        let of = taken.map(|(id, gpu)| {
            let shares = self.state.activity_shares(id).into_iter();
            let placed = shares.filter_map(|(job, share)| Some(Placed { job, uid: user(job)?, share }));
            (gpu.info.uuid.clone(), placed.collect())
        });
        Tenants(of.collect())
    }

    pub(super) fn update_roster(&self) {
        let jobs = self.state.active_jobs().filter_map(|job| match &job.phase {
            Phase::Running { supervisor, child, .. } => Some((job.spec.id, *supervisor, *child)),
            _ => None,
        });
        let roster = Roster { jobs: jobs.collect() };
        let supervisors = roster.jobs.iter().map(|(job, supervisor, _)| (*job, *supervisor));
        self.parts.slowdowns.paces().set_running(supervisors.collect());
        self.parts.board.set_roster(roster);
    }
}

/// Whether two looks are the same for every decision: memory within 16 MiB, means and risks of activity within 0.01.
fn alike(a: &Observation, b: &Observation, gate: Gate) -> bool {
    let close = |x: Option<MiB>, y: Option<MiB>| match (x, y) {
        (Some(x), Some(y)) => x.0.abs_diff(y.0) < 16,
        (x, y) => x == y,
    };
    a.health == b.health
        && a.processes_known == b.processes_known
        && close(a.used, b.used)
        && a.jobs.len() == b.jobs.len()
        && a.jobs.iter().zip(&b.jobs).all(|((i, x), (j, y))| i == j && close(*x, *y))
        && a.foreign.len() == b.foreign.len()
        && a.foreign.iter().zip(&b.foreign).all(|(x, y)| x.pid == y.pid && close(x.memory, y.memory))
        && gate.sees_alike(&a.window, &b.window, Fraction::percent(1))
}

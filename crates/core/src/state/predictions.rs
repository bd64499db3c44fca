//! What is predicted of jobs beside each other, and what was measured: kept as long as the neighbours stay.
//!
//! What follows from it is the plan's.

use super::State;
use crate::input::Rejected;
use crate::model::{GpuId, JobId, Phase};
use crate::progress::{Measured, Outlook};
use crate::units::{Fraction, Millis};
use std::collections::BTreeSet;

impl State {
    /// All or nothing: a refused input changes nothing.
    pub(super) fn predicted(&mut self, outlooks: &[Outlook]) -> Result<(), Rejected> {
        for outlook in outlooks {
            self.gpu(outlook.gpu).ok_or(Rejected::NoSuchGpu)?;
            let job = self.get(outlook.newcomer)?;
            if !matches!(job.phase, Phase::Pending) {
                return Err(Rejected::WrongState {
                    job: outlook.newcomer,
                    state: job.state().as_str(),
                    hint: "only jobs that wait have predictions",
                });
            }
        }
        for outlook in outlooks {
            self.outlooks.entry(outlook.newcomer).or_default().insert(outlook.gpu, outlook.clone());
        }
        Ok(())
    }

    /// A measurement that began before the neighbours changed tells nothing of the present ones.
    pub(super) fn measured(
        &mut self,
        id: JobId,
        attempt: u32,
        progress: Fraction,
        over: Millis,
    ) -> Result<(), Rejected> {
        let now = self.now;
        let job = self.attempt_of(id, attempt)?;
        let placed = job.placement().into_iter().flat_map(|p| &p.gpus);
        let changed = placed.filter_map(|gpu| self.gpu(*gpu)?.changed).max();
        if changed.is_some_and(|at| now.since(at) < over) {
            return Err(Rejected::BadRequest(format!(
                "the neighbours of job {id} changed while its progress was measured"
            )));
        }
        let window = self.options.slowdown_window;
        self.update(id, |job| {
            let before = job.measured.filter(|before| before.over >= window).map(|before| before.progress);
            job.measured = Some(Measured { at: now, progress, over, before });
        })
    }

    /// The neighbours on these GPUs are others now: what was predicted or measured beside the old ones is void.
    pub(super) fn regrouped(&mut self, gpus: &[GpuId]) {
        let now = self.now;
        let mut there: BTreeSet<JobId> = BTreeSet::new();
        for id in gpus {
            let _ = self.change_gpu(*id, |gpu, _| {
                gpu.changed = Some(now);
                there.extend(gpu.tenants.iter().map(|t| t.job));
            });
        }
        for id in there {
            if self.job(id).is_some_and(|job| job.measured.is_some()) {
                let _ = self.update(id, |job| job.measured = None);
            }
        }
        for of_job in self.outlooks.values_mut() {
            of_job.retain(|gpu, _| !gpus.contains(gpu));
        }
        self.outlooks.retain(|_, of_job| !of_job.is_empty());
    }
}

//! Hypothetical states that differ in one thing, for `carma explain` ("it would start now if ..."). Each is a copy that is thrown away.

use super::State;
use crate::input::Input;
use crate::model::{Exit, ExitStatus, GpuId, JobId, NewJob, Phase};

impl State {
    /// If a job that waits were cancelled, and submitted again as `change` makes it. `None`: it would not be accepted.
    pub(crate) fn if_submitted_again(
        &self,
        id: JobId,
        change: impl FnOnce(&mut NewJob),
    ) -> Option<(Self, JobId)> {
        let mut spec = self.job(id)?.spec.clone();
        let mut supposed = self.clone();
        supposed.apply(self.now, &Input::Cancel { job: id, by: spec.user.clone() }).ok()?;
        spec.id = supposed.next_id();
        change(&mut spec);
        let again = spec.id;
        supposed.apply(self.now, &Input::Submitted(Box::new(spec))).ok()?;
        Some((supposed, again))
    }

    /// If a running job came to its end. `None`: it does not run.
    pub(crate) fn if_ended(&self, id: JobId) -> Option<Self> {
        let Phase::Running { placement, .. } = &self.job(id)?.phase else { return None };
        let exit = Exit::of(ExitStatus::Code(0));
        let mut supposed = self.clone();
        supposed.apply(self.now, &Input::Exited { job: id, attempt: placement.attempt, exit }).ok()?;
        Some(supposed)
    }

    /// If a GPU that is drained were used again.
    pub(crate) fn if_resumed(&self, id: GpuId) -> Option<Self> {
        let mut supposed = self.clone();
        supposed.change_gpu(id, |gpu, _| gpu.drained_by.take()).ok()??;
        Some(supposed)
    }
}

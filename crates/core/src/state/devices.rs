//! The GPUs that there are, how they look, and whether they are in use: what comes from the machine and its administrator.
//!
//! What a look does to the reservations on a GPU is the ledger's.

use super::State;
use crate::input::{Observation, Rejected};
use crate::ledger::Gpu;
use crate::model::{GpuId, User};
use crate::reading::GpuInfo;
use crate::units::Millis;
use std::sync::Arc;

impl State {
    pub(super) fn inventory(&mut self, devices: &[GpuInfo]) {
        for gpu in &mut self.gpus {
            gpu.present = false;
        }
        for device in devices {
            match self.gpus.iter_mut().find(|g| g.info.uuid == device.uuid) {
                Some(gpu) => {
                    gpu.info = device.clone();
                    gpu.present = true;
                }
                None => self.gpus.push(Gpu::new(device.clone())),
            }
        }
        self.index_gpus();
        // A job that came while there were too few GPUs for it has no bound on its start.
        if self.options.policy.line.is_by_length() {
            self.rebuild_waiting();
        }
    }

    pub(super) fn observed(&mut self, at: Millis, id: GpuId, seen: &Observation) -> Result<(), Rejected> {
        // A reading is as old as the clock that took it says, also when that clock has jumped back
        // and time stands still here: else every GPU would count as stale until it catches up.
        let age = at.since(seen.at);
        let seen = Observation { at: Millis(self.now.0.saturating_sub(age.0)), ..seen.clone() };
        if self.gpu(id).is_none() {
            return Err(Rejected::NoSuchGpu);
        }
        self.charge_as_it_was(id);
        if let Some(energy_mj) = seen.energy_mj {
            self.metered(id, energy_mj);
        }
        self.change_gpu(id, |gpu, options| gpu.observe(seen, options))
    }

    pub(super) fn unchanged(&mut self, ids: &[GpuId]) -> Result<(), Rejected> {
        let now = self.now;
        // All or nothing: a refused input changes nothing.
        if ids.iter().any(|id| self.gpu(*id).is_none()) {
            return Err(Rejected::NoSuchGpu);
        }
        for id in ids {
            self.charge_as_it_was(*id);
            self.change_gpu(*id, |gpu, options| {
                if let Some(seen) = gpu.seen.take() {
                    gpu.observe(Observation { at: now, ..seen }, options);
                }
            })?;
        }
        Ok(())
    }

    pub(super) fn drain(&mut self, gpu: GpuId, by: &User, to: Option<Arc<str>>) -> Result<(), Rejected> {
        if !self.is_admin(by) {
            return Err(Rejected::AdminOnly);
        }
        self.change_gpu(gpu, |gpu, _| gpu.drained_by = to)
    }
}

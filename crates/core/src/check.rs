//! Invariants of the state. Tests run [`check`] after every step; the daemon runs it after recovery.

use crate::ledger::{Reservation, Tenant};
use crate::model::{JobId, Phase};
use crate::state::{State, Usage};
use crate::units::MiB;
use std::collections::{BTreeMap, BTreeSet};

/// States every invariant that does not hold, in words. Empty: all hold.
#[must_use]
pub fn check(state: &State) -> Vec<String> {
    let mut broken = Vec::new();
    check_jobs(state, &mut broken);
    check_gpus(state, &mut broken);
    broken
}

fn check_jobs(state: &State, broken: &mut Vec<String>) {
    let queued: BTreeSet<JobId> = state.queue().iter().map(|key| key.id).collect();
    for (id, job) in state.jobs() {
        let (in_queue, in_active) = (queued.contains(id), state.active().contains(id));
        let expected = match job.phase {
            Phase::Pending => (true, false),
            Phase::Held { .. } => (false, false),
            Phase::Launching { .. } | Phase::Running { .. } | Phase::Judging { .. } => (false, true),
        };
        if (in_queue, in_active) != expected {
            broken.push(format!("job {id}: indexes say queue {in_queue}, active {in_active}"));
        }
        let held: Vec<_> = (0..)
            .zip(state.gpus())
            .filter(|(_, gpu)| gpu.tenant(*id).is_some())
            .map(|(i, _)| crate::model::GpuId(i))
            .collect();
        let placed = job.placement().filter(|_| !job.is_off());
        let mut given = placed.map(|p| p.gpus.clone()).unwrap_or_default();
        given.sort_unstable();
        if held != given {
            broken.push(format!("job {id}: placed on {given:?} but the ledger has it on {held:?}"));
        }
    }
    let mut usage: BTreeMap<u32, Usage> = BTreeMap::new();
    for job in state.jobs().values() {
        let of_user = usage.entry(job.spec.user.uid).or_default();
        *of_user = of_user.with(Usage::of(job));
    }
    for (uid, counted) in usage {
        let indexed = state.usage(uid);
        if indexed != counted {
            broken.push(format!("user {uid}: an index says {indexed:?}, the jobs {counted:?}"));
        }
    }
    if state.queue().len() + state.active().len() > state.jobs().len() {
        broken.push("an index names a job that is gone".into());
    }
}

fn check_gpus(state: &State, broken: &mut Vec<String>) {
    for gpu in state.gpus() {
        let index = gpu.info.index;
        for tenant in &gpu.tenants {
            if state.job(tenant.job).is_none() {
                broken.push(format!("GPU {index}: tenant {} is no live job", tenant.job));
            }
        }
        let exclusive = gpu.tenants.iter().any(|t| t.exclusive);
        if exclusive && gpu.tenants.len() > 1 {
            broken.push(format!("GPU {index}: an exclusive job has company"));
        }
        // A policy that ignores memory reserves none; beside its tenants nothing can be said.
        if gpu.tenants.iter().any(|t| t.reservation == Reservation::None) {
            continue;
        }
        // One whose hard limit fell away at its start is there already.
        let given_part = |t: &Tenant| {
            state.job(t.job).and_then(|job| job.placement()).is_some_and(|placed| placed.part.is_some())
        };
        let whole = gpu.tenants.iter().any(|t| t.reservation == Reservation::Whole && !given_part(t));
        if whole && gpu.tenants.len() > 1 {
            broken.push(format!("GPU {index}: a job of unknown need has company"));
        }
        let reserved: MiB = gpu
            .tenants
            .iter()
            .map(|t| match t.reservation {
                Reservation::Memory(m) => m,
                Reservation::Whole | Reservation::None => MiB::ZERO,
            })
            .sum();
        if reserved > gpu.info.memory {
            broken.push(format!("GPU {index}: {reserved} reserved of {}", gpu.info.memory));
        }
    }
}

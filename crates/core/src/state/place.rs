//! How a job is put on its GPUs: how it shares them and what the ledger reserves for it.
//!
//! Which GPUs is the plan's to say. Here it is checked that the plan was made for this state.

use super::State;
use crate::input::Rejected;
use crate::ledger::{Gpu, Reservation, Tenant};
use crate::model::{Basis, Floor, GpuId, Job, JobId, Phase, Placement, SharingMode};
use crate::policy::{MemoryScreen, NeedSource, Order};
use crate::units::{MiB, Millis};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// After MPS could not be had for a user, that user's jobs are time-sliced for so long: what keeps a control daemon from
/// starting is seldom over in a moment, and each try takes seconds.
const MPS_RETRY: Millis = Millis::secs(600);

/// Of a job of unknown memory that has not touched its GPU for long, one in so many parts of the GPU stays reserved where too few commands
/// have run: a context and a small model. More would leave no room for another unknown one on a GPU of 40 GiB.
const UNTOUCHED: u64 = 16;

/// What a job gets that may share and whose memory nothing bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unbounded {
    /// A GPU without other jobs, which it has alone until its memory has settled.
    Alone,
    /// A part of a GPU, which is a hard limit.
    Limited,
    /// What is free of a GPU, until its memory has settled.
    Free,
}

/// A forecast that is a share of the GPU.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Share {
    /// Memory of the GPU that it was computed for.
    of: MiB,
    /// Raised by an out-of-memory: no less on any GPU.
    least: MiB,
}

impl Share {
    /// An amount for the GPU that it was computed for, on one of this much memory.
    pub(crate) fn on(share: Option<Self>, amount: MiB, memory: MiB) -> MiB {
        share.map_or(amount, |share| amount.in_proportion(memory, share.of).max(share.least))
    }
}

impl Reservation {
    /// What is reserved on a GPU of this much memory.
    fn on(self, share: Option<Share>, memory: MiB) -> Self {
        match self {
            Self::Memory(m) => Self::Memory(Share::on(share, m, memory).min(memory)),
            other => other,
        }
    }
}

impl State {
    /// How a job that waits would share a GPU; `None`: it would not.
    pub(crate) fn sharing_for(&self, job: &Job) -> Option<SharingMode> {
        if job.spec.request.is_alone() { None } else { self.sharing_if_asked(job) }
    }

    /// How it would if its user did not want it alone; `None`: it would be alone all the same.
    pub(crate) fn sharing_if_asked(&self, job: &Job) -> Option<SharingMode> {
        let own = job.spec.request.sharing.filter(|mode| *mode != SharingMode::Exclusive);
        let asked = own.unwrap_or(self.options.sharing);
        let alone = job.floor == Some(Floor::ExclusiveGpu)
            || self.options.policy.order == Order::Exclusive
            || asked == SharingMode::Exclusive;
        match asked {
            _ if alone => None,
            SharingMode::Mps
                if self.faults_of(job.spec.command_key) > 0
                    || self.lacks_mps(job)
                    || self.spares_others(job)
                    || self.may_lack_mps(job) =>
            {
                Some(SharingMode::TimeSlice)
            }
            mode => Some(mode),
        }
    }

    /// Whether a job takes turns with others wherever it may go.
    pub(super) fn takes_turns(&self, job: &Job) -> bool {
        let has_mps = |gpu: &Gpu| gpu.present && gpu.info.no_mps.is_none();
        match self.sharing_for(job) {
            Some(SharingMode::TimeSlice) => true,
            Some(SharingMode::Mps) => !self.gpus.iter().any(has_mps),
            Some(SharingMode::Exclusive) | None => false,
        }
    }

    /// Whether a job stays outside MPS since its processes' end might end others.
    fn spares_others(&self, job: &Job) -> bool {
        let asks = job.spec.request.sharing == Some(SharingMode::Mps);
        !self.options.mps_several_gpus && job.spec.request.gpus > 1 && !asks
    }

    /// Whether a job on several GPUs may get one without MPS: then it takes turns on all of them, and is predicted so on each.
    fn may_lack_mps(&self, job: &Job) -> bool {
        let lacks = |gpu: &Gpu| gpu.present && !gpu.info.is_mig() && gpu.info.no_mps.is_some();
        job.spec.request.gpus > 1 && self.gpus.iter().any(lacks)
    }

    /// Whether MPS could not be had for this user a short time ago.
    fn lacks_mps(&self, job: &Job) -> bool {
        let failed = self.mps_failed.get(&self.server_of(job));
        failed.is_some_and(|at| self.now.since(*at) < MPS_RETRY)
    }

    /// What is reserved for a job by the policy in force: reservation and the number behind it.
    pub(crate) fn reservation_for(&self, job: &Job) -> (Reservation, Option<MiB>) {
        let forecast = self.options.forecast(&job.spec);
        self.reservation_from(forecast.map(|(m, _)| m), job.floor)
    }

    /// What is reserved for a job on a GPU of this much memory.
    #[must_use]
    pub fn reservation_on(&self, job: &Job, memory: MiB) -> Reservation {
        self.reservation_for(job).0.on(self.share_for(job), memory)
    }

    /// How the forecast of a job turns on the GPU, where its program takes a share of that.
    pub(crate) fn share_for(&self, job: &Job) -> Option<Share> {
        let least = match job.floor {
            Some(Floor::Memory(m)) => m,
            Some(Floor::ExclusiveGpu) | None => MiB::ZERO,
        };
        Some(Share { of: self.options.share_of(&job.spec)?, least })
    }

    /// How the policy goes about a job that may share and whose memory nothing bounds; `None`: something does.
    #[must_use]
    pub fn unbounded(&self, job: &Job) -> Option<Unbounded> {
        if self.reservation_for(job).0 != Reservation::Whole {
            return None;
        }
        let sharing = self.sharing_for(job)?;
        Some(match sharing {
            _ if !self.options.policy.blind => Unbounded::Alone,
            SharingMode::Mps if self.options.caps => Unbounded::Limited,
            _ => Unbounded::Free,
        })
    }

    /// The reservation from the forecast that the policy believes.
    pub(crate) fn reservation_from(
        &self,
        forecast: Option<MiB>,
        floor: Option<Floor>,
    ) -> (Reservation, Option<MiB>) {
        let floor = match floor {
            Some(Floor::Memory(m)) => Some(m),
            Some(Floor::ExclusiveGpu) | None => None,
        };
        let forecast = forecast.max(floor);
        let reservation = match (forecast, self.options.policy.memory) {
            (Some(m), MemoryScreen::Forecast { .. }) => Reservation::Memory(m),
            (None, MemoryScreen::Forecast { .. }) => Reservation::Whole,
            (_, MemoryScreen::None | MemoryScreen::Floor(_)) => Reservation::None,
        };
        (reservation, forecast)
    }

    /// What a job is to have, however late it takes it: its user says so, earlier runs of its command took that, or it ran out of memory with
    /// less; where nothing is said of it, one of its command did. Under the other policies what is observed counts once a job has settled.
    fn assured(&self, job: &Job) -> MiB {
        if !self.options.policy.blind {
            return MiB::ZERO;
        }
        let said = self.said(job);
        let floor = match job.floor {
            None if said.is_zero() => self.floor_of_command(job.spec.command_key),
            own => own,
        };
        match floor {
            Some(Floor::Memory(floor)) => said.max(floor),
            Some(Floor::ExclusiveGpu) | None => said,
        }
    }

    /// What its user, or earlier runs of its command, say that a job takes; zero: nothing is said.
    pub(super) fn said(&self, job: &Job) -> MiB {
        match self.options.forecast(&job.spec) {
            Some((declared, NeedSource::Declared)) => declared,
            Some((_, NeedSource::Computed { basis: Basis::Exact, .. })) => {
                job.spec.forecasts.computed.map(|computed| computed.likely).unwrap_or_default()
            }
            _ => MiB::ZERO,
        }
    }

    pub(super) fn place(&mut self, id: JobId, placement: &Placement) -> Result<(), Rejected> {
        let job = self.get(id)?;
        if !matches!(job.phase, Phase::Pending) {
            return Err(Rejected::WrongState {
                job: id,
                state: job.state().as_str(),
                hint: "only pending jobs are launched",
            });
        }
        if placement.gpus.iter().any(|g| self.gpu(*g).is_none()) {
            return Err(Rejected::NoSuchGpu);
        }
        let (reservation, forecast) = self.reservation_for(job);
        let reservation = match placement.part {
            Some(part) if reservation == Reservation::Whole => Reservation::Memory(part),
            _ => reservation,
        };
        let (needs, assured) = (job.spec.forecasts.computed.map(|c| c.need), self.assured(job));
        let starts_up = self.starts.known(job.spec.command_key).unwrap_or_default();
        let share = self.share_for(job);
        let exclusive = placement.sharing == SharingMode::Exclusive;
        // Without a limit nothing would keep one that comes late from what others have by then.
        let is_limited_part = placement.part.is_some() && placement.cap.is_some();
        let often = if is_limited_part { self.memory_taken_often() } else { None };
        let gpus: BTreeSet<GpuId> = placement.gpus.iter().copied().collect();
        let as_asked = gpus.len() == placement.gpus.len()
            && gpus.len() == job.spec.request.gpus as usize
            && placement.attempt == job.attempts + 1;
        let has_room = |g: &Gpu| g.has_room(reservation.on(share, g.info.memory), exclusive);
        let room = self.replays || gpus.iter().filter_map(|g| self.gpu(*g)).all(has_room);
        if !as_asked || !room {
            return Err(Rejected::WrongState {
                job: id,
                state: job.state().as_str(),
                hint: "this launch was planned for another state; plan again",
            });
        }
        self.charge_around(&placement.gpus);
        for id_of_gpu in &placement.gpus {
            self.change_gpu(*id_of_gpu, |gpu, _| {
                let memory = gpu.info.memory;
                let on = |amount: MiB| Share::on(share, amount, memory);
                gpu.add(Tenant {
                    forecast: forecast.map(on),
                    exclusive,
                    limit: placement.cap,
                    starts_up,
                    needs: needs.map(on),
                    assured: on(assured),
                    untouched: is_limited_part.then(|| often.unwrap_or(MiB(memory.0 / UNTOUCHED))),
                    ..Tenant::placed(id, reservation.on(share, memory), placement.at)
                });
            })?;
        }
        if self.options.policy.order == Order::RoundRobin
            && let Some(last) = placement.gpus.last().and_then(|last| self.gpu(*last))
        {
            self.ring = last.info.index + 1;
        }
        self.regrouped(&placement.gpus);
        self.update(id, |job| {
            job.attempts = placement.attempt;
            job.not_before = None;
            job.phase = Phase::Launching { placement: placement.clone(), ending: None };
        })?;
        self.predict_paces(&placement.gpus);
        Ok(())
    }
}

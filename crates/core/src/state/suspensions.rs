//! Running jobs leave their GPUs and come back: what users ask for, what was decided, and what came of it.
//!
//! The job keeps its attempt all the while. What it had on its GPUs is kept with it, so that it comes back as it was.

use super::State;
use crate::explain::{Aside, Eviction, Reason};
use crate::input::Rejected;
use crate::ledger::{Reservation, Tenant};
use crate::model::{
    EndCause, GpuId, Halt, Job, JobId, Move, Phase, Placement, SharingMode, SuspendStep, Suspension, User,
    Wanted,
};
use crate::units::{MiB, Millis};
use std::sync::Arc;

/// The pause after a job could not be put back, doubled with each time.
const PAUSE: Millis = Millis::secs(10);
/// How often in a row a job is put back in vain, five minutes in all, until it is taken for lost. Drivers before r610 suspend
/// processes that share memory by CUDA IPC, and then refuse to restore them (docs/research/h200.md).
const TRIES: u32 = 6;
/// How often an attempt is suspended for the sake of others; after that it is ended or left where it is.
const MOST_TIMES: u32 = 3;
/// How often an attempt is moved to an idle GPU, of these: once more it may be suspended, where it would be ended else.
pub(crate) const MOST_SPREADS: u32 = 2;
/// Stands for the policy where a user is named.
const CARMA: &str = "carma";

fn wrong(job: &Job, hint: &'static str) -> Rejected {
    Rejected::WrongState { job: job.spec.id, state: job.state().as_str(), hint }
}

/// What a job that the policy took off its GPUs is told of the cause.
pub(crate) fn aside(cause: &EndCause) -> Option<Aside> {
    match cause {
        EndCause::GrowthGuard(filling) => Some(Aside::GrowthGuard(*filling)),
        EndCause::Evicted(eviction) => {
            let Eviction { job, slowdown, limit, apart: _, together } = *eviction;
            let by_policy = eviction.is_by_policy();
            Some(Aside::Evicted { job, slowdown, limit, by_policy, together })
        }
        EndCause::Room { job } => Some(Aside::Room { job: *job }),
        EndCause::Spread { .. } => Some(Aside::Spread),
        EndCause::Cancelled { .. }
        | EndCause::TimeLimit(_)
        | EndCause::Requeued { .. }
        | EndCause::Stuck { .. } => None,
    }
}

impl State {
    /// Why a job cannot be suspended now, if it cannot; what only the driver knows aside.
    #[must_use]
    pub fn bars_suspension(job: &Job) -> Option<&'static str> {
        let Phase::Running { placement, ending, .. } = &job.phase else {
            return Some(
                "only running jobs can be suspended; `carma hold` keeps one that waits from starting",
            );
        };
        let saves = job.spec.request.save_grace.is_some();
        match placement {
            _ if ending.is_some() => Some("it is being ended"),
            Placement { sharing: SharingMode::Mps, .. } => Some(if saves {
                "the driver cannot suspend a client of MPS; `carma requeue` has it save its work and start again, and with `--sharing time-slice` it could be suspended"
            } else {
                "the driver cannot suspend a client of MPS; `carma requeue` starts it again, from the beginning unless it saved its work, and with `--sharing time-slice` it could be suspended"
            }),
            Placement { gpus, .. } if gpus.len() != 1 => Some(if saves {
                "jobs on several GPUs cannot be suspended; `carma requeue` has it save its work and start again"
            } else {
                "jobs on several GPUs cannot be suspended; `carma requeue` starts it again, from the beginning unless it saved its work"
            }),
            _ => None,
        }
    }

    /// Whether a job that was started was not seen on its GPUs yet, although they were looked at since: the driver has nothing of it to
    /// take off.
    #[must_use]
    pub fn has_yet_to_use_gpus(&self, job: &Job) -> bool {
        let Some(placement) = job.placement().filter(|_| !job.is_off()) else { return false };
        placement.gpus.iter().filter_map(|gpu| self.gpu(*gpu)).all(|gpu| {
            let tenant = gpu.tenant(job.spec.id);
            // What is not matched with a job may be this one's.
            let seen = gpu.seen.as_ref().filter(|seen| seen.processes_known && seen.foreign.is_empty());
            tenant.zip(seen).is_some_and(|(tenant, seen)| {
                seen.at > tenant.placed && tenant.active_since.is_none() && tenant.peak.is_none()
            })
        })
    }

    pub(super) fn suspend(&mut self, id: JobId, by: &User) -> Result<(), Rejected> {
        let job = self.get(id)?;
        self.allowed(job, by)?;
        if let Some(hint) = Self::bars_suspension(job) {
            return Err(wrong(job, hint));
        }
        match job.suspension().map(|suspension| (suspension.step, suspension.wanted.is_some())) {
            Some((SuspendStep::Resuming, _)) => Err(wrong(job, "it is being put back on its GPU")),
            Some((SuspendStep::Suspended, false)) => Err(wrong(job, "it is suspended already")),
            Some((SuspendStep::Asked | SuspendStep::Suspending, false)) => Err(wrong(
                job,
                "its suspension has been asked for already, and it is SUSPENDED once it has left its GPU",
            )),
            _ => {
                let by = by.name.clone();
                self.change_halt(id, |halt| {
                    halt.failed = None;
                    let suspension = halt.now.get_or_insert_with(|| Box::new(Suspension::new(by.clone())));
                    // From now on it is off because its user wants that, and comes back when that one says so.
                    suspension.by = by;
                    suspension.cause = None;
                    suspension.wanted = None;
                })
            }
        }
    }

    pub(super) fn unsuspend(&mut self, id: JobId, by: &User) -> Result<(), Rejected> {
        let now = self.now;
        let job = self.get(id)?;
        self.allowed(job, by)?;
        let Some(suspension) = job.suspension().filter(|_| job.ending().is_none()) else {
            return Err(wrong(job, "it is not suspended"));
        };
        let asked = suspension.step == SuspendStep::Asked;
        let by = by.name.clone();
        self.change_halt(id, |halt| {
            if asked {
                halt.now = None;
            } else if let Some(suspension) = &mut halt.now {
                // A try that a user asks for before its time is one more.
                if suspension.not_before.take().is_some() {
                    suspension.failures = suspension.failures.saturating_sub(1);
                }
                suspension.wanted.get_or_insert(Wanted { by, at: now, to: None });
            }
        })
    }

    pub(super) fn move_to(&mut self, id: JobId, to: GpuId, by: &User) -> Result<(), Rejected> {
        let now = self.now;
        let job = self.get(id)?;
        self.allowed(job, by)?;
        if !matches!(job.phase, Phase::Running { .. }) {
            return Err(wrong(job, "it is on no GPU from which it could move"));
        }
        if let Some(hint) = Self::bars_suspension(job) {
            return Err(wrong(job, hint));
        }
        let target = self.gpu(to).filter(|gpu| gpu.present).ok_or(Rejected::NoSuchGpu)?;
        let from =
            job.suspension().filter(|suspension| suspension.is_off()).map(|suspension| &suspension.home);
        let from = from.or_else(|| job.placement().map(|placement| &placement.gpus));
        let from = from.and_then(|gpus| gpus.first()).and_then(|gpu| self.gpu(*gpu));
        let Some(from) = from else { return Err(Rejected::NoSuchGpu) };
        let hint = if from.info.uuid == target.info.uuid {
            Some(if job.is_off() {
                "it left that GPU, to which `carma resume` brings it back"
            } else {
                "it is on that GPU"
            })
        } else if [from, target].iter().any(|gpu| gpu.info.is_mig()) {
            Some("the driver moves no process between MIG instances")
        } else if !from.info.is_like(&target.info) {
            Some("a process moves between GPUs of one type only")
        } else if target.drained_by.is_some() {
            Some("that GPU is drained")
        } else {
            match job.suspension().map(|suspension| suspension.step) {
                None | Some(SuspendStep::Suspended) => None,
                Some(_) => Some("it is being suspended or put back; move it when that is done"),
            }
        };
        if let Some(hint) = hint {
            return Err(wrong(job, hint));
        }
        let by = by.name.clone();
        self.change_halt(id, |halt| {
            halt.failed = None;
            let suspension = halt.now.get_or_insert_with(|| Box::new(Suspension::new(by.clone())));
            suspension.not_before = None;
            suspension.cause = None;
            suspension.wanted = Some(Wanted { by, at: now, to: Some(to) });
        })
    }

    /// Whether any GPU of this machine is in MIG mode. No job moves from one GPU to another then: the driver wants to be told of every
    /// GPU where its processes go, and its calls name whole GPUs only.
    #[must_use]
    pub fn has_mig(&self) -> bool {
        self.gpus.iter().any(|gpu| gpu.present && gpu.info.is_mig())
    }

    /// How often the policy took a job off its GPUs in this attempt.
    pub(crate) fn times_set_aside(job: &Job) -> u32 {
        if let Phase::Running { halt, .. } = &job.phase { halt.times } else { 0 }
    }

    /// Whether the policy may take a job off its GPU for the sake of others: where the driver can do that and has not refused
    /// it, the job holds memory there, and it has not been taken off often.
    pub(crate) fn may_set_aside(&self, job: &Job) -> bool {
        let Phase::Running { placement, halt, .. } = &job.phase else { return false };
        let tenants = placement.gpus.iter().filter_map(|gpu| self.gpu(*gpu)?.tenant(job.spec.id));
        let held: MiB = tenants.filter_map(|tenant| tenant.observed).sum();
        self.options.suspends
            && Self::bars_suspension(job).is_none()
            && halt.now.is_none()
            && halt.failed.is_none()
            // It lost all of its work by it once, which no gain of others' is worth.
            && !job.past.iter().any(|attempt| matches!(attempt.verdict, Reason::Stuck { .. }))
            && halt.times < MOST_TIMES
            && held > MiB::ZERO
    }

    /// It was decided that it leaves its GPUs now: as a user has asked, or for the sake of others, in which case it comes back by
    /// itself.
    pub(super) fn suspending(
        &mut self,
        id: JobId,
        attempt: u32,
        cause: Option<&EndCause>,
    ) -> Result<(), Rejected> {
        let now = self.now;
        let Some(cause) = cause else {
            self.at_step(id, attempt, SuspendStep::Asked)?;
            let kept = self.tenancies(id);
            return self.change_suspension(id, |suspension| {
                suspension.step = SuspendStep::Suspending;
                suspension.kept = kept;
            });
        };
        let job = self.attempt_of(id, attempt)?;
        if !self.may_set_aside(job) {
            return Err(wrong(job, "this was planned for another state; plan again"));
        }
        let kept = self.tenancies(id);
        let to = if let EndCause::Spread { to } = cause { Some(*to) } else { None };
        self.change_halt(id, |halt| {
            let by: Arc<str> = CARMA.into();
            halt.times += 1;
            if let EndCause::Evicted(eviction) = cause {
                halt.apart.extend(&eviction.apart);
            }
            halt.now = Some(Box::new(Suspension {
                cause: Some(Box::new(cause.clone())),
                step: SuspendStep::Suspending,
                kept,
                wanted: Some(Wanted { by: by.clone(), at: now, to }),
                ..Suspension::new(by)
            }));
        })
    }

    /// A running job on each of its GPUs, in their order.
    fn tenancies(&self, id: JobId) -> Vec<Tenant> {
        let gpus = self.job(id).and_then(Job::placement).map(|placement| &placement.gpus);
        gpus.into_iter().flatten().filter_map(|gpu| self.gpu(*gpu)?.tenant(id).cloned()).collect()
    }

    /// It has left them.
    pub(super) fn suspended(&mut self, id: JobId, attempt: u32, host: MiB) -> Result<(), Rejected> {
        let now = self.now;
        let job = self.at_step(id, attempt, SuspendStep::Suspending)?;
        let gpus = job.placement().map(|placement| placement.gpus.clone()).unwrap_or_default();
        let grew = job.suspension().and_then(|suspension| suspension.cause.as_deref());
        let grew = matches!(grew, Some(EndCause::GrowthGuard(_)));
        // Its processes left one after the other, and less and less was seen of it.
        let before = job.suspension().map_or_else(Vec::new, |suspension| suspension.kept.clone());
        for (gpu, before) in gpus.iter().zip(before) {
            self.change_gpu(*gpu, |gpu, _| {
                if let Some(tenant) = gpu.tenants.iter_mut().find(|tenant| tenant.job == id) {
                    tenant.observed = tenant.observed.max(before.observed);
                }
            })?;
        }
        let mut kept = self.vacate(id, &gpus);
        for (tenant, gpu) in kept.iter_mut().zip(&gpus).filter(|_| grew) {
            // It will go on growing.
            if let (Reservation::Memory(m), Some(gpu)) = (&mut tenant.reservation, self.gpu(*gpu)) {
                let held = tenant.observed.unwrap_or_default();
                let most = gpu.info.memory - self.options.policy.reserve;
                *m = (*m).max((held + self.options.growing_margin(held)).min(most));
            }
        }
        self.update(id, |job| job.measured = None)?;
        self.change_suspension(id, |suspension| {
            suspension.step = SuspendStep::Suspended;
            suspension.off = Some(now);
            suspension.host = host;
            suspension.kept = kept;
            suspension.home = gpus;
        })
    }

    /// Takes a job off GPUs, and returns what it was there.
    fn vacate(&mut self, id: JobId, gpus: &[GpuId]) -> Vec<Tenant> {
        let now = self.now;
        self.charge_around(gpus);
        let take = |gpu: &GpuId| self.change_gpu(*gpu, |gpu, _| gpu.remove(id, now)).ok().flatten();
        let mut kept: Vec<Tenant> = gpus.iter().filter_map(take).collect();
        for (tenant, gpu) in kept.iter_mut().zip(gpus) {
            // It comes back with all that it held; readings may say more than there is.
            if let (Reservation::Memory(m), Some(gpu)) = (&mut tenant.reservation, self.gpu(*gpu)) {
                *m = (*m).max(tenant.observed.unwrap_or_default().min(gpu.info.memory));
            }
            // It takes nothing more meanwhile.
            tenant.growth.looked = None;
        }
        self.regrouped(gpus);
        self.predict_paces(gpus);
        kept
    }

    /// It was decided that it is put back on these GPUs now. From now on they are its own.
    pub(super) fn resuming(&mut self, id: JobId, attempt: u32, gpus: &[GpuId]) -> Result<(), Rejected> {
        let now = self.now;
        let job = self.at_step(id, attempt, SuspendStep::Suspended)?;
        let Some(suspension) = job.suspension() else { return Err(wrong(job, "it is not suspended")) };
        let tenants = suspension.kept.clone();
        let exclusive = |tenant: &Tenant| tenant.exclusive || tenant.reservation == Reservation::Whole;
        let room = |(gpu, tenant): (&GpuId, &Tenant)| {
            self.gpu(*gpu).is_some_and(|gpu| {
                let first = gpu.tenants.is_empty();
                first || (!exclusive(tenant) && gpu.has_room(tenant.reservation, false))
            })
        };
        let distinct = gpus.iter().collect::<std::collections::BTreeSet<_>>().len() == gpus.len();
        let ending = job.ending().is_some();
        let fits = self.replays || gpus.iter().zip(&tenants).all(room);
        if ending || !distinct || gpus.len() != tenants.len() || !fits {
            return Err(wrong(job, "this was planned for another state; plan again"));
        }
        self.charge_around(gpus);
        for (gpu, tenant) in gpus.iter().zip(tenants) {
            self.change_gpu(*gpu, |gpu, _| {
                gpu.add(Tenant { placed: now, active_since: None, observed: None, ..tenant });
            })?;
        }
        self.regrouped(gpus);
        self.update(id, |job| {
            if let Phase::Running { placement, halt, .. } = &mut job.phase {
                placement.gpus = gpus.to_vec();
                if let Some(suspension) = &mut halt.now {
                    suspension.step = SuspendStep::Resuming;
                    suspension.not_before = None;
                    // Elsewhere than it was: if that cannot be, it goes back there.
                    let to = gpus.first().filter(|to| Some(*to) != suspension.home.first());
                    if let (Some(wanted), Some(to)) = (&mut suspension.wanted, to) {
                        wanted.to = Some(*to);
                    }
                }
            }
        })?;
        self.predict_paces(gpus);
        Ok(())
    }

    /// It runs again.
    pub(super) fn resumed(&mut self, id: JobId, attempt: u32) -> Result<(), Rejected> {
        let now = self.now;
        let job = self.at_step(id, attempt, SuspendStep::Resuming)?;
        let on = job.placement().and_then(|placement| placement.gpus.first().copied());
        let wanted = job.suspension().and_then(|suspension| suspension.wanted.as_ref());
        let to = wanted.and_then(|wanted| wanted.to);
        // A move that was for its own sake is no reason not to suspend it for others'.
        let spread = job.suspension().is_some_and(Suspension::is_spread);
        let missed = to.is_some() && to != on && !spread;
        let from = job.suspension().and_then(|suspension| suspension.home.first().copied());
        let from = from.filter(|from| Some(*from) != on).and_then(|from| Some(self.gpu(from)?.info.index));
        let ordered = to == on && job.suspension().is_some_and(|suspension| suspension.cause.is_none());
        let gone_to = to.filter(|_| missed).and_then(|to| self.gpu(to));
        let missed = missed.then(|| {
            let why = match gone_to {
                Some(gpu) if !gpu.present => "is no longer in this machine",
                Some(gpu) if gpu.drained_by.is_some() => "was drained meanwhile",
                _ => "had no room any more",
            };
            format!("the GPU that it was to move to {why}")
        });
        let moved = from.zip(wanted).map(|(from, wanted)| Move { by: wanted.by.clone(), from, ordered });
        self.change_halt(id, |halt| {
            let moved = moved.or_else(|| halt.moved.take());
            // What kept it from moving is worth knowing once it runs again.
            let failed = missed.or_else(|| halt.failed.take());
            halt.comes_back(now);
            if spread && moved.is_none() {
                halt.times = halt.times.max(MOST_SPREADS);
            }
            (halt.failed, halt.moved) = (failed, moved);
        })
    }

    /// Whether a job that cannot be put back now was tried often enough: it is to begin anew ([`crate::input::Input::SuspendFailed`], stuck).
    #[must_use]
    pub fn is_last_try(&self, id: JobId) -> bool {
        self.job(id).and_then(Job::suspension).is_some_and(|suspension| {
            let home = suspension.wanted.as_ref().is_some_and(|wanted| wanted.to.is_none());
            suspension.step == SuspendStep::Resuming && home && suspension.failures + 1 >= TRIES
        })
    }

    /// It runs on, or stays suspended, or begins anew.
    pub(super) fn suspend_failed(
        &mut self,
        id: JobId,
        attempt: u32,
        why: &str,
        stuck: bool,
    ) -> Result<(), Rejected> {
        let now = self.now;
        let job = self.attempt_of(id, attempt)?;
        let why = why.to_owned();
        let step = job.suspension().map(|suspension| suspension.step);
        if !matches!(step, Some(SuspendStep::Suspending | SuspendStep::Resuming)) {
            return Err(wrong(job, "it is neither being suspended nor being put back"));
        }
        if stuck {
            self.end(id, EndCause::Stuck { why })?;
            // One that is being ended keeps its cause, and saves nothing any more.
            return self.update(id, |job| {
                if let Phase::Running { ending: Some(ending), .. } = &mut job.phase {
                    ending.cannot_save = true;
                }
            });
        }
        let spread = job.suspension().is_some_and(Suspension::is_spread);
        // Its user has asked for it back meanwhile: it runs, as that one wants.
        let withdrawn = job.suspension().is_some_and(|suspension| {
            let back = suspension.wanted.as_ref().is_some_and(|wanted| wanted.to.is_none());
            back && suspension.cause.is_none()
        });
        if step == Some(SuspendStep::Suspending) {
            return self.change_halt(id, |halt| {
                if spread {
                    halt.times = halt.times.max(MOST_SPREADS);
                } else if !withdrawn {
                    halt.failed = Some(why);
                }
                halt.now = None;
            });
        }
        let gpus = job.placement().map(|placement| placement.gpus.clone()).unwrap_or_default();
        self.vacate(id, &gpus);
        self.update(id, |job| {
            let Phase::Running { placement, halt, .. } = &mut job.phase else { return };
            let Some(suspension) = &mut halt.now else { return };
            suspension.step = SuspendStep::Suspended;
            placement.gpus.clone_from(&suspension.home);
            // Where it could not go it does not try to go again, but back at once.
            if let Some(wanted) = &mut suspension.wanted
                && wanted.to.take().is_some()
            {
                suspension.bound = true;
                if spread {
                    halt.times = halt.times.max(MOST_SPREADS);
                } else {
                    halt.failed = Some(why);
                }
                return;
            }
            halt.failed = Some(why);
            let pause = PAUSE.0 << suspension.failures.min(TRIES);
            suspension.not_before = Some(now + Millis(pause));
            suspension.failures = suspension.failures.saturating_add(1);
        })
    }

    /// A running job that is at this step of its suspension.
    fn at_step(&self, id: JobId, attempt: u32, step: SuspendStep) -> Result<&Job, Rejected> {
        let job = self.attempt_of(id, attempt)?;
        match job.suspension() {
            Some(suspension) if suspension.step == step => Ok(job),
            _ => Err(wrong(job, "its suspension is at another step")),
        }
    }

    fn change_halt(&mut self, id: JobId, change: impl FnOnce(&mut Halt)) -> Result<(), Rejected> {
        self.update(id, |job| {
            if let Phase::Running { halt, .. } = &mut job.phase {
                change(halt);
            }
        })
    }

    fn change_suspension(&mut self, id: JobId, change: impl FnOnce(&mut Suspension)) -> Result<(), Rejected> {
        self.change_halt(id, |halt| {
            if let Some(suspension) = &mut halt.now {
                change(suspension);
            }
        })
    }

    /// What there is to say of a job that is or was to be suspended, as far as no GPU is asked.
    #[must_use]
    pub fn reason_of_suspension(job: &Job) -> Option<Reason> {
        let Phase::Running { halt, .. } = &job.phase else { return None };
        let Some(suspension) = &halt.now else {
            let moved = || halt.moved.clone().map(|Move { by, from, .. }| Reason::Moved { by, from });
            return halt.failed.clone().map(|why| Reason::RunsOn { why }).or_else(moved);
        };
        Some(match suspension.step {
            SuspendStep::Asked | SuspendStep::Suspending => Reason::Moving { off: true },
            SuspendStep::Resuming => Reason::Moving { off: false },
            SuspendStep::Suspended => match (&suspension.wanted, &halt.failed, suspension.not_before) {
                (Some(_), Some(why), Some(until)) => Reason::NotResumed { why: why.clone(), until },
                _ => match suspension.cause.as_deref().and_then(aside) {
                    Some(cause) => Reason::SetAside { cause, waits: None },
                    None => Reason::Suspended { by: suspension.by.clone(), host: suspension.host },
                },
            },
        })
    }
}

//! What the end of an attempt means: done, failed, evicted, to be tried again, or to be judged with its neighbours.
//!
//! Out-of-memory has a room of its own, [`super::oom`].

use super::{Applied, State};
use crate::explain::Reason;
use crate::input::Rejected;
use crate::ledger::{Gpu, Suspect};
use crate::model::{
    EndCause, Exit, ExitStatus, HostUse, Job, JobId, JobState, Phase, Placement, SharingMode, SuspendStep,
    User,
};
use crate::recovery::{Evidence, EvidenceKind, Said};
use crate::spec::GpuId;
use crate::units::Millis;

/// Jobs that are suspected on one GPU at a time, at most.
const MOST_SUSPECTS: usize = 64;

/// Commands whose faults are remembered at most.
const FAULT_MEMORY: usize = 10_000;

/// Whether a fault was put down to a job, or may yet be.
pub(super) fn is_suspected(job: &Job) -> bool {
    matches!(job.phase, Phase::Judging { .. })
        || job.past.iter().any(|attempt| matches!(attempt.verdict, Reason::FaultSuspect { .. }))
}

impl State {
    /// Whether the verdict on an attempt that ends so depends on the memory of its GPUs around its end, so that a look
    /// from after it is worth waiting for.
    #[must_use]
    pub fn wants_look(&self, id: JobId, attempt: u32, exit: &Exit) -> bool {
        let kind = exit.evidence.as_ref().map(|e| e.kind);
        let of_memory = match (exit.status, kind) {
            (ExitStatus::Code(0) | ExitStatus::Unknown, _) => false,
            (_, Some(EvidenceKind::GpuOutOfMemory { .. })) | (ExitStatus::Code(_), None) => true,
            _ => false,
        };
        let ends_by_itself = |job: &Job| match &job.phase {
            Phase::Launching { ending, .. } | Phase::Running { ending, .. } => ending.is_none(),
            Phase::Pending | Phase::Held { .. } | Phase::Judging { .. } => false,
        };
        of_memory && exit.not_started.is_none() && self.attempt_of(id, attempt).is_ok_and(ends_by_itself)
    }

    pub(super) fn exited(
        &mut self,
        id: JobId,
        attempt: u32,
        exit: &Exit,
        applied: &mut Applied,
    ) -> Result<(), Rejected> {
        let job = self.attempt_of(id, attempt)?;
        let (placement, ending) = match &job.phase {
            Phase::Launching { placement, ending } | Phase::Running { placement, ending, .. } => {
                (placement.clone(), ending.clone())
            }
            Phase::Pending | Phase::Held { .. } | Phase::Judging { .. } => {
                return Err(Rejected::StaleAttempt { job: id, attempt });
            }
        };
        let moving = |step| matches!(step, SuspendStep::Suspending | SuspendStep::Resuming);
        let on_the_way = job.suspension().is_some_and(|suspension| moving(suspension.step));
        let status = exit.status;
        if let Some(why) = exit.not_started.as_ref().filter(|_| exit.machine) {
            return self.not_launched(id, attempt, why, true, applied);
        }
        if let Some(ending) = ending {
            // Done before it was asked to end, though that may have been decided: running it again would be running it twice.
            // After it was asked, 0 may mean as well that it saved its work, or ended in order.
            let unasked = ending.sent.is_none() || exit.asked == Some(false);
            if !(status == ExitStatus::Code(0) && unasked && ending.cause.requeues()) {
                return self.ended(id, exit, ending.cause, applied);
            }
        }
        // On the way off its GPUs and back, what ends it is not the command's own doing.
        if on_the_way && status != ExitStatus::Code(0) {
            let why = format!("it ended on the way ({status})");
            return self.ended(id, exit, EndCause::Stuck { why }, applied);
        }
        if let Some(gone) = &exit.user_gone {
            let User { name, uid, .. } = &self.get(id)?.spec.user;
            let reason = Reason::UserGone { user: name.clone(), uid: *uid, now: gone.now.clone() };
            self.leave(id, Some(exit.clone()), reason);
            let held = Phase::Held { by: "carma".into(), operator: false, gone: Some((**gone).clone()) };
            return self.hold_back(id, held);
        }
        if let Some(why) = &exit.not_started {
            let reason = Reason::NotStarted { why: why.clone() };
            self.leave(id, Some(exit.clone()), reason.clone());
            self.finish(id, JobState::Failed, reason, Some(status), applied);
            return Ok(());
        }
        self.ended_itself(id, &placement, exit, applied)
    }

    /// The end that a command came to by itself.
    fn ended_itself(
        &mut self,
        id: JobId,
        placement: &Placement,
        exit: &Exit,
        applied: &mut Applied,
    ) -> Result<(), Rejected> {
        let job = self.get(id)?;
        let (status, is_off, key) = (exit.status, job.is_off(), job.spec.command_key);
        let line = exit.evidence.as_ref().map_or_else(String::new, |e| e.line.clone());
        let kind = exit.evidence.as_ref().map(|e| e.kind);
        let lost = placement.gpus.iter().find_map(|g| self.gpu(*g).and_then(Gpu::lost));
        let failed = |reason: Reason| (JobState::Failed, reason);
        let host_killed = exit.host.oom_kills > 0 && (kind.is_none() || status == ExitStatus::Signal(9));
        let (state, reason) = match (status, kind) {
            (ExitStatus::Code(0), _) => {
                if placement.sharing != SharingMode::Mps {
                    self.clear_of_fault(key);
                }
                (JobState::Completed, Reason::Completed)
            }
            // The kernel's own word, which the log cannot have.
            _ if host_killed => {
                let HostUse { memory_peak: peak, memory_limit: limit, oom_kills: killed, .. } = exit.host;
                (JobState::OutOfMemory, Reason::HostMemoryLimit { limit, peak, killed })
            }
            (ExitStatus::Unknown, _) => failed(Reason::ExitUnknown),
            (_, Some(EvidenceKind::GpuLost)) => failed(Reason::GpuLost { line }),
            (_, _) if lost.is_some() => failed(Reason::GpuLost { line: lost.unwrap_or_default() }),
            // What is off its GPUs may have caught that earlier, and does not die of it.
            (_, Some(EvidenceKind::GpuOutOfMemory { wanted, said })) if !is_off => {
                return self.out_of_memory(id, placement, exit, (wanted, said), applied);
            }
            (ExitStatus::Code(_), None) if self.memory_was_full(id, placement) => {
                return self.out_of_memory(id, placement, exit, (None, Said::default()), applied);
            }
            (_, Some(EvidenceKind::HostOutOfMemory)) => failed(Reason::HostOutOfMemory { line }),
            (_, Some(EvidenceKind::FatalGpuFault | EvidenceKind::GpuError | EvidenceKind::MpsRefused))
                if placement.sharing == SharingMode::Mps =>
            {
                self.fault(id, placement, exit);
                return Ok(());
            }
            // Whatever its words for it, while others die of a fault around it.
            (_, Some(EvidenceKind::OwnError) | None) if self.faulted_lately(id, placement) => {
                self.fault(id, placement, exit);
                return Ok(());
            }
            _ => {
                let said = exit.last_line.as_deref();
                let said = said.map(|line| Evidence { kind: EvidenceKind::OwnError, line: line.to_owned() });
                let evidence = exit.evidence.clone().or(said);
                failed(Reason::CommandFailed { status: status.to_string(), evidence })
            }
        };
        self.leave(id, Some(exit.clone()), reason.clone());
        self.finish(id, state, reason, Some(status), applied);
        Ok(())
    }

    /// The end of a job that was being ended.
    fn ended(
        &mut self,
        id: JobId,
        exit: &Exit,
        cause: EndCause,
        applied: &mut Applied,
    ) -> Result<(), Rejected> {
        // What never started has no exit code of its own.
        let status = Some(exit.status).filter(|_| exit.not_started.is_none());
        if let EndCause::GrowthGuard(filling) = cause {
            return self.outgrew(id, exit, filling);
        }
        let reason = cause.reason();
        self.leave(id, Some(exit.clone()), reason.clone());
        match cause {
            EndCause::Cancelled { .. } => self.finish(id, JobState::Cancelled, reason, status, applied),
            EndCause::TimeLimit(_) => self.finish(id, JobState::Timeout, reason, status, applied),
            EndCause::Evicted(_) => self.requeue_free(id),
            EndCause::Stuck { .. } => self.enqueue(id, |job| job.free_retries += 1),
            // That of the growth guard was told above.
            EndCause::Room { .. }
            | EndCause::Spread { .. }
            | EndCause::Requeued { .. }
            | EndCause::GrowthGuard(_) => {
                self.enqueue(id, |_| ());
            }
        }
        Ok(())
    }

    /// Whether another client of its MPS server on these GPUs died of a fault so short a time ago that this one may have died of it.
    fn faulted_lately(&self, id: JobId, placement: &Placement) -> bool {
        let Some(job) = self.job(id) else { return false };
        let server = self.server_of(job);
        let lately = |at: Millis| self.now.since(at) <= self.options.fault_window;
        let on = |gpu: &Gpu| {
            gpu.faults.get(&server).is_some_and(|at| lately(*at))
                || gpu.suspects.iter().any(|s| self.options.server_of(s.uid) == server && lately(s.at))
        };
        placement.sharing == SharingMode::Mps && placement.gpus.iter().any(|g| self.gpu(*g).is_some_and(on))
    }

    /// A fatal fault under MPS: whose it was is decided when all jobs that died of it are known.
    fn fault(&mut self, id: JobId, placement: &Placement, exit: &Exit) {
        let now = self.now;
        let kind = exit.evidence.as_ref().map(|e| e.kind);
        let fatal = matches!(kind, Some(EvidenceKind::FatalGpuFault | EvidenceKind::MpsRefused));
        if let Some(server) = self.job(id).filter(|_| fatal).map(|job| self.server_of(job)) {
            for gpu in &placement.gpus {
                let _ = self.change_gpu(*gpu, |gpu, options| {
                    gpu.faults
                        .retain(|_, at| now.since(*at) <= options.fault_window.max(options.mps_cooldown));
                    gpu.faults.insert(server, now);
                });
            }
        }
        self.leave(id, Some(exit.clone()), Reason::Judging);
        let phase = Phase::Judging { placement: placement.clone(), exit: exit.clone(), at: now };
        let _ = self.update(id, |job| job.phase = phase);
    }

    /// A verdict on a job that died of a fault under MPS.
    pub(super) fn judged(
        &mut self,
        id: JobId,
        state: JobState,
        reason: &Reason,
        applied: &mut Applied,
    ) -> Result<(), Rejected> {
        let job = self.get(id)?;
        let Phase::Judging { exit, .. } = &job.phase else {
            return Err(Rejected::WrongState {
                job: id,
                state: job.state().as_str(),
                hint: "no verdict is due",
            });
        };
        if state == JobState::Running {
            return Err(Rejected::WrongState {
                job: id,
                state: job.state().as_str(),
                hint: "a verdict ends a job or puts it back into the queue",
            });
        }
        let status = exit.status;
        self.set_verdict(id, reason);
        self.remember_fault(id, reason);
        if state == JobState::Pending {
            self.requeue_free(id);
        } else {
            self.finish(id, state, reason.clone(), Some(status), applied);
        }
        Ok(())
    }

    /// Keeps the command that a fault is put down to from MPS.
    fn remember_fault(&mut self, id: JobId, verdict: &Reason) {
        let Some((job, past)) = self.job(id).and_then(|job| Some((job, job.past.last()?))) else { return };
        let (gpus, at, uid) = (past.placement.gpus.clone(), past.ended, job.spec.user.uid);
        let (key, again) = match verdict {
            Reason::FaultSuspect { .. } | Reason::FaultCulprit { .. } => (job.spec.command_key, true),
            // One that ended before is not judged itself.
            Reason::FaultVictim { culprit: Some(culprit), .. } => {
                let mut suspects = gpus.iter().filter_map(|g| self.gpu(*g)).flat_map(|gpu| &gpu.suspects);
                let Some(suspect) = suspects.find(|s| s.job == *culprit) else { return };
                let (key, job) = (suspect.command, suspect.job);
                // Its processes tore the server down, so that nothing is open.
                if !self.job(job).is_some_and(is_suspected) {
                    self.is_guilty(job);
                }
                (key, false)
            }
            _ => return,
        };
        if again {
            let suspect = Suspect { job: id, uid, command: key, at };
            self.suspect(&gpus, suspect);
        }
        if self.faulted.len() >= FAULT_MEMORY && !self.faulted.contains_key(&key) {
            self.faulted.pop_first();
        }
        let known = self.faulted.entry(key).or_default();
        // For a second time after it was cleared: not to be cleared again.
        let times = 1 + u32::from(self.cleared.contains(&key));
        *known = if again { *known + times } else { (*known).max(times) };
    }

    /// A job has shown that the fault was its own.
    pub(super) fn is_guilty(&mut self, job: JobId) {
        self.guilty.insert(job);
        if self.guilty.len() > FAULT_MEMORY {
            self.guilty.pop_first();
        }
    }

    /// A command that one fault was put down to has ended well where only its own fault could have ended it.
    fn clear_of_fault(&mut self, key: u64) {
        if self.faults_of(key) == 1 && self.cleared.insert(key) {
            self.faulted.remove(&key);
            if self.cleared.len() > FAULT_MEMORY {
                self.cleared.pop_first();
            }
        }
    }

    fn suspect(&mut self, gpus: &[GpuId], suspect: Suspect) {
        let (now, window) = (self.now, self.options.fault_window);
        for gpu in gpus {
            let _ = self.change_gpu(*gpu, |gpu, _| {
                gpu.suspects.retain(|s| now.since(s.at) <= window);
                if gpu.suspects.len() < MOST_SUSPECTS {
                    gpu.suspects.push(suspect);
                }
            });
        }
    }

    /// The end of a client of MPS on several GPUs that did not end well may be a fatal fault for others: its processes end
    /// while kernels of theirs wait for each other, and the driver tears those down as a fault (measured on H200s,
    /// docs/research/h200.md).
    pub(super) fn suspect_peers(&mut self, id: JobId, placement: &Placement, exit: Option<&Exit>) {
        let badly = exit.is_some_and(|exit| exit.status != ExitStatus::Code(0) && exit.not_started.is_none());
        let Some(job) = self.job(id) else { return };
        if badly && placement.sharing == SharingMode::Mps && placement.gpus.len() > 1 {
            let (uid, command) = (job.spec.user.uid, job.spec.command_key);
            self.suspect(&placement.gpus, Suspect { job: id, uid, command, at: self.now });
        }
    }
}

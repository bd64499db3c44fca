//! The way of an attempt from its launch to its leave, and back into the queue.
//!
//! What the end of a command means is in [`super::outcome`].

use super::outcome::is_suspected;
use super::peaks::Peak;
use super::starts::Start;
use super::{Applied, State};
use crate::explain::Reason;
use crate::input::Rejected;
use crate::ledger::{Alone, Reservation, Tenant};
use crate::model::{
    Attempt, EndCause, EndLevel, Ending, Exit, ExitStatus, Finished, GpuId, Halt, Job, JobId, JobState,
    Phase, Placement, ProcessRef, SeenMemory, SharingMode,
};
use crate::recovery::{self, Blame};
use crate::units::Millis;
use std::sync::Arc;

/// Launches that the machine may fail in a row before the job is given up.
const LAUNCH_TRIES: usize = 3;
/// Longest pause before another try where the machine lacked something, as a power of two of seconds: 64 s.
const LONGEST_PAUSE_LOG2: usize = 6;
/// Attempts in a row that were not launched and are kept with the job.
const KEPT_NOT_LAUNCHED: usize = 16;

impl State {
    /// The command runs: said by its supervisor, or found out after a restart, so that it may come twice. Where it shares
    /// otherwise than was decided, MPS could not be had: the user's next jobs do not try it for a while, a cap of MPS no
    /// longer holds, and a job that only a cap kept to its part may take all.
    pub(super) fn started(
        &mut self,
        id: JobId,
        attempt: u32,
        supervisor: ProcessRef,
        child: Option<ProcessRef>,
        sharing: SharingMode,
    ) -> Result<(), Rejected> {
        let now = self.now;
        let job = self.attempt_of(id, attempt)?;
        if let Some(placement) = job.placement().filter(|placement| placement.sharing != sharing).cloned() {
            let server = self.server_of(job);
            self.mps_failed.insert(server, now);
            self.unbound(id, &placement)?;
        }
        self.update(id, |job| {
            let (mut placement, started, ending, halt) = match &job.phase {
                Phase::Launching { placement, ending } => {
                    (placement.clone(), now, ending.clone(), Halt::default())
                }
                Phase::Running { placement, started, ending, halt, .. } => {
                    (placement.clone(), *started, ending.clone(), halt.clone())
                }
                Phase::Pending | Phase::Held { .. } | Phase::Judging { .. } => return,
            };
            if placement.sharing != sharing {
                placement.sharing = sharing;
                placement.cap = None;
            }
            job.phase = Phase::Running { placement, started, supervisor, child, ending, halt };
        })
    }

    /// No hard limit keeps a job to its memory: of unknown memory, it may take more than the part that it was given.
    fn unbound(&mut self, id: JobId, placement: &Placement) -> Result<(), Rejected> {
        for gpu in &placement.gpus {
            self.change_gpu(*gpu, |gpu, _| {
                for tenant in gpu.tenants.iter_mut().filter(|t| t.job == id) {
                    tenant.limit = None;
                    if placement.part.is_some() && !tenant.settled {
                        tenant.reservation = Reservation::Whole;
                    }
                }
            })?;
        }
        Ok(())
    }

    /// Its first steps were seen; `ago`: how long ago the first began, which is no earlier than it had memory on the GPU.
    pub(super) fn stepped(&mut self, id: JobId, attempt: u32, ago: Millis) -> Result<(), Rejected> {
        let now = self.now;
        let job = self.attempt_of(id, attempt)?;
        let (command, user) = (job.spec.command_key, Some(job.spec.user.uid));
        let gpus = job.placement().map(|p| p.gpus.clone()).unwrap_or_default();
        // One that was suspended may have been so before it worked.
        let counts = matches!(&job.phase, Phase::Running { halt, .. } if halt.until(now) == Millis::ZERO);
        let mut took = None;
        for gpu in gpus {
            self.change_gpu(gpu, |gpu, _| {
                for tenant in gpu.tenants.iter_mut().filter(|t| t.job == id && t.stepped.is_none()) {
                    let began = now.since(ago).max(tenant.active_since.unwrap_or(tenant.placed));
                    tenant.stepped = Some(began);
                    took = took.max(Some(began.since(tenant.placed)));
                }
            })?;
        }
        if let Some(took) = took.filter(|_| counts) {
            self.starts.add(Start { command, took, user });
        }
        Ok(())
    }

    /// It was to save its work, and could not be asked to.
    pub(super) fn cannot_save(&mut self, id: JobId, attempt: u32) -> Result<(), Rejected> {
        let job = self.attempt_of(id, attempt)?;
        if !matches!(job.ending(), Some(Ending { sent: Some((EndLevel::Checkpoint, _)), .. })) {
            return Err(Rejected::WrongState {
                job: id,
                state: job.state().as_str(),
                hint: "it is not saving its work",
            });
        }
        self.update(id, |job| {
            if let Phase::Running { ending: Some(ending), .. }
            | Phase::Launching { ending: Some(ending), .. } = &mut job.phase
            {
                ending.cannot_save = true;
            }
        })
    }

    /// It was never started. A user's wish to end it is fulfilled; otherwise it goes back into the queue.
    pub(super) fn not_launched(
        &mut self,
        id: JobId,
        attempt: u32,
        why: &str,
        pause: bool,
        applied: &mut Applied,
    ) -> Result<(), Rejected> {
        let ending = self.attempt_of(id, attempt)?.ending().cloned();
        self.leave(id, None, Reason::NotLaunched { why: why.to_owned() });
        match ending.map(|ending| ending.cause) {
            Some(EndCause::Cancelled { by }) => {
                self.finish(id, JobState::Cancelled, Reason::Cancelled { by }, None, applied);
            }
            // It was to go back into the queue: it is there, and needs no pause.
            Some(_) => self.enqueue(id, |_| ()),
            None => {
                let failures = self.get(id)?.not_launched_in_a_row();
                let wait = Millis::secs(1 << failures.min(LONGEST_PAUSE_LOG2));
                let until = pause.then(|| self.now + wait);
                self.enqueue(id, |job| {
                    job.not_before = until;
                    // A machine that lacks something for days must not make the job grow without end.
                    if failures > KEPT_NOT_LAUNCHED {
                        let gone = job.past.remove(job.past.len() - 2);
                        if let Some(last) = job.past.last_mut() {
                            last.had = last.had.with(gone.had);
                        }
                    }
                });
            }
        }
        Ok(())
    }

    /// The supervisor could not be spawned. What the machine lacked for the moment is tried again after a pause, a few
    /// times; a user's wish to cancel is fulfilled.
    pub(super) fn launch_failed(
        &mut self,
        id: JobId,
        attempt: u32,
        error: &str,
        transient: bool,
        applied: &mut Applied,
    ) -> Result<(), Rejected> {
        let ending = self.attempt_of(id, attempt)?.ending().cloned();
        let reason = Reason::LaunchFailed { error: error.to_owned() };
        self.leave(id, None, reason.clone());
        if let Some(Ending { cause: EndCause::Cancelled { by }, .. }) = ending {
            self.finish(id, JobState::Cancelled, Reason::Cancelled { by }, None, applied);
            return Ok(());
        }
        let job = self.get(id)?;
        let failures = job.past.iter().rev().take_while(|a| a.exit.is_none()).count();
        if transient && failures <= LAUNCH_TRIES {
            let until = self.now + Millis::secs(1 << failures.min(10));
            self.enqueue(id, |job| job.not_before = Some(until));
        } else {
            self.finish(id, JobState::Failed, reason, None, applied);
        }
        Ok(())
    }

    /// The current attempt of a job, if `attempt` is it.
    pub(super) fn attempt_of(&self, id: JobId, attempt: u32) -> Result<&Job, Rejected> {
        let job = self.get(id)?;
        match job.placement() {
            Some(p) if p.attempt == attempt => Ok(job),
            _ => Err(Rejected::StaleAttempt { job: id, attempt }),
        }
    }

    /// Takes a job off its GPUs and files the attempt.
    pub(super) fn leave(&mut self, id: JobId, exit: Option<Exit>, verdict: Reason) {
        let now = self.now;
        let Some(job) = self.jobs.get(&id) else { return };
        let (command, program) = (job.spec.command_key, job.spec.program_key);
        let user = Some(job.spec.user.uid);
        let (placement, started, halt) = match &job.phase {
            Phase::Running { placement, started, halt, .. } => {
                (placement.clone(), Some(*started), halt.clone())
            }
            Phase::Launching { placement, .. } => (placement.clone(), None, Halt::default()),
            Phase::Pending | Phase::Held { .. } | Phase::Judging { .. } => return,
        };
        let had = self.settle(id, &placement.gpus);
        let (mut left, mut gone): (Vec<Tenant>, Vec<GpuId>) = (Vec::new(), Vec::new());
        for gpu in &placement.gpus {
            if let Ok(Some(tenant)) = self.change_gpu(*gpu, |gpu, _| gpu.remove(id, now)) {
                left.push(tenant);
                gone.push(*gpu);
            }
        }
        let (suspended, absences) = (halt.until(now), halt.absences_until(now));
        // One that is suspended has left already: to the jobs that are there now nothing happens.
        if let Some(suspension) = halt.now.filter(|suspension| suspension.is_off()) {
            left.extend(suspension.kept);
        }
        let peak = left.iter().filter_map(|t| t.peak).max();
        let reserved = left.iter().filter_map(|t| t.reservation.memory()).max();
        if let (Some(peak), true) = (peak, left.iter().any(|t| t.settled)) {
            self.peaks.add(Peak { command, program, memory: peak, user });
        }
        // Its part was too little: until its command has run, at least that is known of it.
        if let (
            Some(part),
            Reason::OutOfMemoryRetry { blame: Blame::OwnCap { .. } | Blame::WholeGpu { .. }, .. }
            | Reason::OutOfMemoryFinal { blame: Blame::OwnCap { .. }, .. },
        ) = (placement.part.filter(|_| placement.cap.is_some()), &verdict)
        {
            self.peaks.add(Peak { command, program, memory: part, user });
        }
        let began = left.iter().filter_map(|t| Some(t.stepped.or(t.active_since)?.since(t.placed))).max();
        // One that was suspended may have been so before it worked.
        if let (Some(took), Reason::Completed, Millis::ZERO) = (began, &verdict, suspended) {
            self.starts.add(Start { command, took, user });
        }
        let alone = left.iter().filter_map(|t| t.alone).reduce(Alone::with);
        let seen = left.iter().filter_map(|t| t.seen(now)).reduce(SeenMemory::with);
        self.regrouped(&gone);
        self.predict_paces(&gone);
        if !matches!(verdict, Reason::Judging) {
            self.suspect_peers(id, &placement, exit.as_ref());
        }
        let began_at = started.unwrap_or(placement.at);
        let ended = exit.as_ref().and_then(|exit| exit.ended).map_or(now, |at| at.max(began_at).min(now));
        let attempt = Attempt {
            placement,
            started,
            ended,
            exit,
            reserved,
            peak,
            alone,
            seen,
            had,
            suspended,
            absences,
            apart: halt.apart,
            verdict,
        };
        // Between attempts a job is pending, until the caller says what it is now.
        let _ = self.update(id, |job| {
            job.phase = Phase::Pending;
            (job.measured, job.counted) = (None, None);
            job.past.push(attempt);
        });
    }

    pub(super) fn set_verdict(&mut self, id: JobId, verdict: &Reason) {
        let _ = self.update(id, |job| {
            if let Some(last) = job.past.last_mut() {
                last.verdict = verdict.clone();
            }
        });
    }

    /// Back into the queue. One that has no bound on its start, since it was held or the policy had none when it came, gets that of a job
    /// that comes now.
    pub(super) fn enqueue(&mut self, id: JobId, change: impl FnOnce(&mut Job)) {
        let now = self.now;
        let unbound = self.jobs.get(&id).filter(|job| job.due.is_none()).cloned();
        let due = unbound.and_then(|job| self.due(&job));
        let _ = self.update(id, |job| {
            job.phase = Phase::Pending;
            job.queued = now;
            job.due = job.due.or(due);
            change(job);
        });
    }

    /// The same for a job that was ended for its neighbours' sake: without charge, and with a GPU alone if it
    /// happens again and again.
    pub(super) fn requeue_free(&mut self, id: JobId) {
        let Some(job) = self.job(id) else { return };
        let floor = recovery::after_neighbours(job.floor, job.free_retries, &self.options);
        self.enqueue(id, |job| {
            job.free_retries += 1;
            job.floor = floor;
        });
    }

    pub(super) fn finish(
        &mut self,
        id: JobId,
        state: JobState,
        reason: Reason,
        exit: Option<ExitStatus>,
        applied: &mut Applied,
    ) {
        if let Some(job) = self.jobs.remove(&id) {
            self.unindex(&job);
            // Suspected, it ran where only its own fault could end it.
            if state == JobState::Failed && is_suspected(&job) {
                self.is_guilty(id);
            }
            self.exceeded.remove(&id);
            if job.due.is_some() {
                // Of several attempts the last one did the whole work. A job without an attempt takes no time in the shadow.
                let (uid, gpus) = (job.spec.user.uid, u64::from(job.spec.request.gpus.max(1)));
                let had = job.past.last().map_or(Millis::ZERO, |attempt| attempt.had.progress());
                self.shadows.over(uid, id, Millis(had.0 / gpus));
                self.move_bounds(uid);
            }
            // Of one that went back into the queue after that attempt it is now.
            let last = job.past.last().filter(|attempt| job.queued <= attempt.ended);
            let told_late =
                last.filter(|attempt| attempt.exit.as_ref().is_some_and(|exit| exit.ended.is_some()));
            let at = told_late.map_or(self.now, |attempt| attempt.ended);
            let job = Arc::unwrap_or_clone(job);
            applied.finished.push(Finished { job, state, reason, exit, at });
        }
    }
}

//! What becomes of attempts: launched, started, over.

use super::{Engine, remember};
use crate::fault::{self, Point};
use crate::run::launch::Outcome;
use crate::run::watch::Event;
use crate::sampler::Board;
use carma_core::input::Input;
use carma_core::model::{Exit, JobId, ProcessRef};
use carma_core::units::Millis;
use std::time::{Duration, Instant};

/// How long an end waits for a look from after it. A driver that hangs must not keep jobs from ending.
pub(super) const LOOK_PATIENCE: Duration = Duration::from_secs(2);

/// An end that waits for a look at the GPUs from after it. Its record stays on disk until it is applied, so that a
/// daemon that dies meanwhile finds it again.
pub(super) struct Dying {
    pub(super) job: JobId,
    pub(super) attempt: u32,
    pub(super) exit: Exit,
    pub(super) look: u64,
    pub(super) since: Instant,
}

impl Dying {
    /// Whether its look is there, or will not come.
    pub(super) fn is_due(&self, board: &Board) -> bool {
        board.has(self.look) || self.since.elapsed() >= LOOK_PATIENCE
    }
}

impl Engine {
    pub(super) fn launched(&mut self, job: JobId, attempt: u32, outcome: Outcome) {
        match outcome {
            Outcome::Fallback { sharing, note } => {
                self.fallbacks.insert((job, attempt), (sharing, note));
            }
            Outcome::NotSpawned { why, machine, fenced } => {
                tracing::debug!("job {job} is not launched: {why}");
                if !fenced {
                    // No supervisor will claim it, so a fence of it is needed no more.
                    self.done.push(self.parts.lives.present_records(job, attempt));
                }
                self.not_launched(job, attempt, why, machine);
            }
        }
    }

    pub(super) fn watched(&mut self, job: JobId, attempt: u32, event: Event) {
        match event {
            Event::Running { supervisor, child } => {
                if !self.started(job, attempt, supervisor, child) {
                    return;
                }
                self.launches += 1;
                if let Some(at) = self.submitted.remove(&job) {
                    remember(&mut self.spawn_us, self.launches, at.elapsed());
                }
            }
            Event::Orphaned { supervisor, child } => {
                self.started(job, attempt, supervisor, Some(child));
                self.parts.slowdowns.paces().lose(job);
            }
            Event::Exited(exit) if self.state.wants_look(job, attempt, &exit) => {
                let look = self.parts.board.ask();
                self.dying.push(Dying { job, attempt, exit, look, since: Instant::now() });
            }
            Event::Exited(exit) => self.exited(job, attempt, exit),
            Event::NeverStarted { why } => {
                self.done.push(self.parts.lives.present_records(job, attempt));
                let why = why.unwrap_or_else(|| "its supervisor died before it had started it".into());
                // After a pause: what ended one supervisor may end the next as well, and none must be started over and over.
                self.not_launched(job, attempt, why, true);
            }
        }
    }

    /// The command of an attempt runs. Whether the job has one.
    fn started(
        &mut self,
        job: JobId,
        attempt: u32,
        supervisor: ProcessRef,
        child: Option<ProcessRef>,
    ) -> bool {
        let decided = self.state.job(job).and_then(|j| j.placement()).map(|p| p.sharing);
        let Some(decided) = decided else { return false };
        let (sharing, note) = match self.fallbacks.remove(&(job, attempt)) {
            Some((sharing, note)) => (sharing, Some(note)),
            None => (decided, None),
        };
        self.apply(Input::Started { job, attempt, supervisor, child, sharing, note });
        true
    }

    /// An attempt was not launched, and never will be.
    pub(super) fn not_launched(&mut self, job: JobId, attempt: u32, why: String, pause: bool) {
        if self.apply(Input::NotLaunched { job, attempt, why, pause }) {
            self.fallbacks.remove(&(job, attempt));
            self.parts.slowdowns.ended(job, attempt);
        }
    }

    /// Applies the ends whose look is there, or will not come, as many as there is time for.
    pub(super) fn bury(&mut self) {
        let board = self.parts.board.clone();
        let (began, mut refreshed) = (Instant::now(), false);
        while let Some(at) = self.dying.iter().position(|dying| dying.is_due(&board)) {
            let Dying { job, attempt, exit, look, .. } = self.dying.remove(at);
            // The memory trace at death matters for the verdict, so it is brought up to date first.
            if board.has(look) && !std::mem::replace(&mut refreshed, true) {
                self.refresh(true);
            }
            self.over(job, attempt, exit);
            if began.elapsed() >= self.takes {
                break;
            }
        }
    }

    pub(super) fn exited(&mut self, job: JobId, attempt: u32, exit: Exit) {
        if exit.status != carma_core::model::ExitStatus::Code(0) {
            // Its GPU may have been lost.
            self.refresh(false);
        }
        self.over(job, attempt, exit);
    }

    fn over(&mut self, job: JobId, attempt: u32, exit: Exit) {
        let placement = self.state.job(job).and_then(|job| job.placement());
        let gpus = placement.filter(|p| p.attempt == attempt).map(|p| p.gpus.clone()).unwrap_or_default();
        self.meter(&gpus);
        self.close(self.parts.clock.now(), job, attempt, exit);
    }

    /// Applies the end of an attempt as of this time.
    pub(super) fn close(&mut self, at: Millis, job: JobId, attempt: u32, exit: Exit) {
        fault::inject(Point::AfterExit);
        let placement = self.state.job(job).and_then(|job| job.placement());
        let Some(placement) = placement.filter(|p| p.attempt == attempt) else { return };
        let records = self.parts.lives.records(job, placement);
        let of_earlier = self.parts.lives.of(placement.at) != *self.parts.lives.present();
        self.apply_at(at, Input::Exited { job, attempt, exit });
        self.submitted.remove(&job);
        self.fallbacks.remove(&(job, attempt));
        self.parts.slowdowns.ended(job, attempt);
        self.done.push(records);
        self.sweep_due |= of_earlier;
    }

    /// Removes what is left of attempts and lives that are over: records, fences, cgroups.
    pub(super) fn sweep(&mut self) {
        let active = self.state.active_jobs();
        let placed = active.filter_map(|job| Some((job.spec.id, job.placement()?)));
        let (mut decided, mut names) = (Vec::new(), Vec::new());
        for (id, placement) in placed {
            decided.push(placement.at);
            names.push(self.parts.lives.short(id, placement));
        }
        self.parts.lives.sweep(&decided);
        let oldest = self.parts.lives.oldest();
        if let Err(e) = self.parts.journal.forget_lives(oldest) {
            tracing::warn!("{e}");
        }
        if let Ok(hierarchy) = &self.parts.hierarchy {
            hierarchy.sweep(&names);
        }
    }
}

//! What a daemon that starts finds under way or over.

use super::Engine;
use crate::run::adopt::{self, Found, Known};
use crate::run::watch;
use carma_core::input::{Action, Input};
use carma_core::model::{EndLevel, Exit, JobId, Phase, SuspendStep};
use carma_core::units::Millis;

/// An attempt that ended longer before the daemon's start than this is ended as of the time when it did; a later one is adopted, so that a look
/// at its GPU still tells about its end.
const A_MOMENT: Millis = Millis::secs(10);

impl Engine {
    /// Takes over what the journal says is under way. `inputs` (configuration, inventory) come first, but for what ended before.
    pub fn adopt(&mut self, inputs: Vec<Input>) {
        self.bury_earlier();
        for input in inputs {
            self.apply(input);
        }
        self.count_submissions();
        self.parts.durations.told_before(&self.state);
        let active: Vec<JobId> = self.state.active().iter().copied().collect();
        let attempt = |id: &JobId| Some((*id, self.state.job(*id)?.placement()?.attempt));
        let live: Vec<_> = active.iter().filter_map(attempt).collect();
        self.parts.slowdowns.paces().clear(&live);
        for id in active {
            self.adopt_one(id);
        }
        self.adopting = true;
        self.turn_end();
        self.sweep();
        self.update_roster();
        for broken in carma_core::check::check(&self.state) {
            tracing::error!("the recovered state breaks an invariant: {broken}");
        }
    }

    /// Applies what ended while no daemon ran, as of when it did, in that order. What ended a moment ago is left to be adopted:
    /// for that one a look at its GPU still tells.
    fn bury_earlier(&mut self) {
        let jobs = self.state.active_jobs();
        let over = jobs.filter_map(|job| {
            let (id, placement) = (job.spec.id, job.placement()?);
            let records = self.parts.lives.records(id, placement);
            let exit = records.read().ok()??.exit?;
            let age = records.age().ok().filter(|age| *age > A_MOMENT)?;
            // Read after the age: what ended counts for no less than it ran.
            let now = self.parts.clock.now();
            Some((Millis(now.0.saturating_sub(age.0)), id, placement.attempt, exit))
        });
        let mut over: Vec<_> = over.collect();
        over.sort_by_key(|(at, id, ..)| (*at, *id));
        for (at, job, attempt, exit) in over {
            self.close(at, job, attempt, exit);
        }
    }

    /// Takes over one attempt, whatever became of it.
    fn adopt_one(&mut self, id: JobId) {
        let Some(job) = self.state.job(id) else { return };
        let Some(placement) = job.placement() else { return };
        let (attempt, sharing) = (placement.attempt, placement.sharing);
        let records = self.parts.lives.records(id, placement);
        let life = self.parts.lives.of(placement.at);
        let name = self.parts.lives.short(id, placement);
        let group = self.parts.hierarchy.as_ref().ok().map(|h| h.group(&name));
        let (supervisor, child) = match &job.phase {
            Phase::Running { supervisor, child, .. } => (Some(*supervisor), *child),
            _ => (None, None),
        };
        let here = self.parts.lives.present();
        let known = Known { life: &life, here, supervisor, child, group: group.as_ref() };
        let found = adopt::find(&records, known);
        let is_told = records.read().ok().flatten().is_some_and(|record| record.exit.is_some());
        let age = records.age().ok().filter(|_| is_told);
        let ended = age.map(|age| Millis(self.parts.clock.now().0.saturating_sub(age.0)));
        let watched = watch::Attempt { job: id, attempt, records, life, group, supervisor, child };
        let started =
            |supervisor, child| Input::Started { job: id, attempt, supervisor, child, sharing, note: None };
        // Also of one of which nothing is known yet: it may be found to run.
        self.parts.slowdowns.paces().open(id, name);
        match found {
            Ok(Found::Exited(exit)) => self.exited(id, attempt, Exit { ended, ..exit }),
            Ok(Found::Alive { supervisor, child, pidfd }) => {
                tracing::info!("job {id} still runs; watching it again");
                self.apply(started(supervisor, child));
                self.suspend_on(id);
                self.end_on(id);
                self.parts.watcher.adopted(watched, pidfd, false);
            }
            Ok(Found::Orphan { supervisor, child, pidfd }) => {
                tracing::warn!("job {id} still runs, unsupervised: its supervisor was killed");
                self.apply(started(supervisor, Some(child)));
                self.suspend_on(id);
                self.end_on(id);
                self.parts.slowdowns.paces().lose(id);
                self.parts.watcher.adopted(watched, pidfd, true);
            }
            Ok(Found::NeverStarted) => {
                self.not_launched(id, attempt, "the daemon stopped before it was started".into(), false);
            }
            Err(e) => {
                tracing::error!("what became of job {id} cannot be found out yet: {e}");
                self.parts.watcher.undecided(watched);
            }
        }
    }

    /// A job that was about to leave its GPUs or to come back when the daemon stopped: that is done to its end.
    pub(super) fn suspend_on(&mut self, id: JobId) {
        let Some(job) = self.state.job(id) else { return };
        let (Some(suspension), Some(placement)) = (job.suspension(), job.placement()) else { return };
        let attempt = placement.attempt;
        match suspension.step {
            SuspendStep::Suspending => self.actions.push(Action::Suspend { job: id, attempt, cause: None }),
            SuspendStep::Resuming => {
                self.actions.push(Action::Resume { job: id, attempt, gpus: placement.gpus.clone() });
            }
            SuspendStep::Asked | SuspendStep::Suspended => {}
        }
    }

    /// A job that is to end, or to save its work, and has not been told when the daemon stopped: what says so to it, or to the control daemon
    /// of MPS, is a thread of the daemon, which may have died with it.
    pub(super) fn end_on(&mut self, id: JobId) {
        let Some(job) = self.state.job(id) else { return };
        let (Some(ending), Some(placement)) = (job.ending(), job.placement()) else { return };
        let Some((level, _)) = ending.sent else { return };
        let records = self.parts.lives.records(id, placement);
        if records.was_told(level) || (level == EndLevel::Checkpoint && ending.cannot_save) {
            return;
        }
        let (attempt, cause) = (placement.attempt, ending.cause.clone());
        self.actions.push(Action::End { job: id, attempt, level, cause });
    }
}

//! What users ask for: submit, cancel, hold, release, requeue; and who may.
//!
//! A job that runs is only marked here. The plan ends it, and [`super::outcome`] says what its end means.

use super::shadow::Ask;
use super::{Applied, State};
use crate::explain::Reason;
use crate::input::Rejected;
use crate::model::{
    Computed, EndCause, Ending, Estimator, Job, JobId, JobState, NewJob, Phase, Profile, RunTime, User,
};
use crate::reading::GpuInfo;
use crate::units::{MiB, Millis};
use std::sync::Arc;

impl State {
    pub(super) fn submitted(&mut self, new: &NewJob) -> Result<(), Rejected> {
        if self.last_id.is_some_and(|last| new.id <= last) {
            return Err(Rejected::Duplicate(new.id));
        }
        self.check_request(new)?;
        self.last_id = Some(new.id);
        let by = new.user.name.clone();
        let phase = if new.hold { Phase::Held { by, operator: false, gone: None } } else { Phase::Pending };
        self.accounts.open(&new.user);
        if !self.index.usage.contains_key(&new.user.uid) {
            self.weigh_newcomer(new.user.uid);
        }
        let mut job = Job {
            spec: new.clone(),
            submitted: self.now,
            queued: self.now,
            phase,
            attempts: 0,
            charged_retries: 0,
            free_retries: 0,
            floor: None,
            not_before: None,
            due: None,
            measured: None,
            relief: None,
            kept: None,
            counted: None,
            past: Vec::new(),
        };
        if !new.hold {
            job.due = self.due(&job);
        }
        let job = Arc::new(job);
        self.index(&job);
        self.jobs.insert(new.id, job);
        Ok(())
    }

    /// The bound on the start of a job that comes now, where the policy has one.
    pub(super) fn due(&mut self, job: &Job) -> Option<Millis> {
        let policy = &self.options.policy;
        if !policy.line.is_by_length() {
            return None;
        }
        let spec = &job.spec;
        let exact = spec.run_time.is_some_and(|run| run.exact);
        let slack = if exact || !self.takes_turns(job) { 0 } else { policy.slack.0 };
        let ask = Ask {
            gpus: self.gpus.iter().filter(|gpu| gpu.present).count(),
            wanted: spec.request.gpus as usize,
            run: Millis::secs(spec.mean_run_s()),
            stretch: policy.bound.0.saturating_add(slack),
        };
        let uid = spec.user.uid;
        self.shadows.due(uid, self.options.allowances.share_of(uid), self.now, spec.id, ask)
    }

    /// Makes the bounds of a user's jobs again where more is known now of how long they take.
    pub(super) fn move_bounds(&mut self, uid: u32) {
        let mut shadows = std::mem::take(&mut self.shadows);
        let told = |id| self.job(id).map(|job| (self.whole_run(job), job.due));
        let dues = shadows.again(uid, self.now, told);
        self.shadows = shadows;
        let line = self.options.policy.line;
        for (id, due) in dues {
            let Some(job) = self.jobs.get_mut(&id).filter(|job| job.due.is_some_and(|before| before != due))
            else {
                continue;
            };
            if matches!(job.phase, Phase::Pending) {
                // Less than `update` does: thousands of bounds move at a time, and nothing else of these jobs.
                self.index.waiting.remove(job, line);
                Arc::make_mut(job).due = Some(due);
                self.index.waiting.insert(job, line);
            }
        }
    }

    /// How long a job takes alone in all, as many such in the mean; no less than it has.
    pub(super) fn whole_run(&self, job: &Job) -> Millis {
        let expected = job.counted_run().unwrap_or(Millis::secs(job.spec.mean_run_s()));
        if job.placement().is_some() { expected.max(self.done(job)) } else { expected }
    }

    /// The configuration is another one: the queue may have another order, and jobs a bound on their start.
    pub(super) fn rebuild_waiting(&mut self) {
        self.index.waiting.clear();
        let pending: Vec<JobId> = self
            .jobs
            .values()
            .filter(|job| matches!(job.phase, Phase::Pending))
            .map(|job| job.spec.id)
            .collect();
        for id in pending {
            let Some(mut job) = self.jobs.remove(&id) else { continue };
            if job.due.is_none() {
                let due = self.due(&job);
                Arc::make_mut(&mut job).due = due;
            }
            self.wait(&job);
            self.jobs.insert(id, job);
        }
    }

    /// Whether this machine could ever run such a job.
    ///
    /// # Errors
    /// What it asks for that is not there.
    pub fn check_request(&self, new: &NewJob) -> Result<(), Rejected> {
        let request = &new.request;
        if request.gpus == 0 {
            return Err(Rejected::BadRequest(
                "the job asks for 0 GPUs; carma places jobs on GPUs, ask for 1 or more".into(),
            ));
        }
        if let Some(percent) = request.thread_percent
            && !(1..=100).contains(&percent)
        {
            return Err(Rejected::BadRequest(format!(
                "an MPS thread percentage of {percent} makes no sense; give 1 to 100"
            )));
        }
        let have = self.gpus.iter().filter(|g| g.present).count();
        if request.gpus as usize > have {
            return Err(Rejected::TooManyGpus { wanted: request.gpus, have });
        }
        let serves = |info: &GpuInfo| request.gpus == 1 || !info.is_mig();
        let present = || self.gpus.iter().filter(|g| g.present && serves(&g.info));
        let whole = present().count();
        if request.gpus as usize > whole {
            return Err(Rejected::Slices { wanted: request.gpus, whole });
        }
        if let Some(need) = new.forecasts.declared {
            let fitting = present().filter(|g| g.info.memory >= need).count();
            if fitting < request.gpus as usize {
                let largest = present().map(|g| g.info.memory).max().unwrap_or_default();
                return Err(Rejected::TooMuchMemory { need, wanted: request.gpus, fitting, largest });
            }
        }
        Ok(())
    }

    /// What is computed of a job's memory. Where it runs already, its reservation follows what is seen of it.
    pub(super) fn forecast(
        &mut self,
        id: JobId,
        computed: Computed,
        measured: Option<MiB>,
    ) -> Result<(), Rejected> {
        self.expect(id, |job| {
            let forecasts = &mut job.spec.forecasts;
            forecasts.computed = Some(computed);
            if measured.is_some() {
                forecasts.estimates = forecasts.estimates.with(Estimator::Measured, measured);
            }
        })
    }

    /// While it runs, too: jobs that wait to join it depend on what it does.
    pub(super) fn profiled(&mut self, id: JobId, profile: Profile) -> Result<(), Rejected> {
        self.get(id)?;
        self.update(id, |job| job.spec.profile = profile)
    }

    /// Changes what is expected of a job that waits. Where it runs already, what is seen of it counts.
    pub(super) fn expect(&mut self, id: JobId, change: impl FnOnce(&mut Job)) -> Result<(), Rejected> {
        let job = self.get(id)?;
        if !matches!(job.phase, Phase::Pending | Phase::Held { .. }) {
            return Err(Rejected::WrongState {
                job: id,
                state: job.state().as_str(),
                hint: "forecasts change while a job waits",
            });
        }
        self.update(id, change)
    }

    /// More is known of how long a job that waits will run.
    pub(super) fn expect_run(&mut self, id: JobId, run_time: RunTime) -> Result<(), Rejected> {
        let job = self.get(id)?;
        let (uid, gpus, before) = (job.spec.user.uid, job.spec.request.gpus, job.spec.mean_run_s());
        self.expect(id, |job| job.spec.run_time = Some(run_time))?;
        let now = self.get(id)?.spec.mean_run_s();
        self.shadows.heard(uid, gpus, Millis::secs(before), Millis::secs(now));
        self.move_bounds(uid);
        Ok(())
    }

    pub(super) fn cancel(&mut self, id: JobId, by: &User, applied: &mut Applied) -> Result<(), Rejected> {
        let job = self.get(id)?;
        self.allowed(job, by)?;
        match job.phase {
            Phase::Pending | Phase::Held { .. } | Phase::Judging { .. } => {
                let reason = Reason::Cancelled { by: by.name.clone() };
                let exit = job.past.last().and_then(|a| a.exit.as_ref()).map(|e| e.status);
                self.finish(id, JobState::Cancelled, reason, exit, applied);
                Ok(())
            }
            Phase::Launching { .. } | Phase::Running { .. } => {
                self.end(id, EndCause::Cancelled { by: by.name.clone() })
            }
        }
    }

    /// Marks a launching or running job to be ended. A job that is being ended already keeps its
    /// cause, since what follows from its end depends on that, except that what ends it for good
    /// beats whatever puts it back into the queue.
    pub(super) fn end(&mut self, id: JobId, cause: EndCause) -> Result<(), Rejected> {
        self.update(id, |job| {
            let (Phase::Launching { ending, .. } | Phase::Running { ending, .. }) = &mut job.phase else {
                return;
            };
            match ending {
                Some(e) => {
                    if e.cause.requeues() && !cause.requeues() {
                        e.cause = cause;
                    }
                }
                None => *ending = Some(Ending { cause, sent: None, cannot_save: false }),
            }
        })
    }

    /// Whether a job is held already as this user would hold it. One that its own user holds an operator may hold, too.
    ///
    /// # Errors
    /// There is no such job, or the user may not hold it.
    pub fn is_held(&self, id: JobId, by: &User) -> Result<bool, Rejected> {
        let job = self.get(id)?;
        self.allowed(job, by)?;
        let Phase::Held { operator, gone, .. } = &job.phase else { return Ok(false) };
        Ok(*operator || gone.is_some() || by.is(&job.spec.user))
    }

    pub(super) fn hold(&mut self, id: JobId, by: &User) -> Result<(), Rejected> {
        if self.is_held(id, by)? {
            return Ok(());
        }
        let job = self.get(id)?;
        match job.phase {
            Phase::Pending => {
                let operator = !by.is(&job.spec.user) && !by.is_repair();
                self.hold_back(id, Phase::Held { by: by.name.clone(), operator, gone: None })
            }
            Phase::Held { .. } => self.update(id, |job| {
                job.phase = Phase::Held { by: by.name.clone(), operator: true, gone: None }
            }),
            Phase::Launching { .. } => Err(Rejected::WrongState {
                job: id,
                state: "being started",
                hint: "only a job that waits can be held; once it runs, requeue puts it back",
            }),
            Phase::Running { .. } | Phase::Judging { .. } => Err(Rejected::WrongState {
                job: id,
                state: job.state().as_str(),
                hint: "only pending jobs can be held; use requeue to put it back first",
            }),
        }
    }

    /// Holds a job that waits.
    pub(super) fn hold_back(&mut self, id: JobId, held: Phase) -> Result<(), Rejected> {
        let job = self.get(id)?;
        let uid = job.spec.user.uid;
        // When it is released it comes only then, as far as its place among the others goes.
        let had_bound = job.due.is_some();
        self.update(id, |job| (job.phase, job.due) = (held, None))?;
        if had_bound {
            self.shadows.over(uid, id, Millis::ZERO);
            self.move_bounds(uid);
        }
        Ok(())
    }

    pub(super) fn release(&mut self, id: JobId, by: &User) -> Result<(), Rejected> {
        let job = self.get(id)?;
        self.allowed(job, by)?;
        if let Phase::Held { by: holder, operator: true, .. } = &job.phase
            && !self.is_admin(by)
        {
            return Err(Rejected::HeldByOperator { job: id, by: holder.clone() });
        }
        if !matches!(job.phase, Phase::Held { .. }) {
            return Err(Rejected::WrongState {
                job: id,
                state: job.state().as_str(),
                hint: "it is not held",
            });
        }
        self.enqueue(id, |_| ());
        Ok(())
    }

    pub(super) fn requeue(&mut self, id: JobId, by: &User) -> Result<(), Rejected> {
        let job = self.get(id)?;
        self.allowed(job, by)?;
        if job.placement().is_none() {
            return Err(Rejected::WrongState {
                job: id,
                state: job.state().as_str(),
                hint: "it is in the queue already",
            });
        }
        if job.ending().is_some_and(|ending| !ending.cause.requeues()) {
            return Err(Rejected::WrongState {
                job: id,
                state: job.state().as_str(),
                hint: "it is being ended for good",
            });
        }
        self.end(id, EndCause::Requeued { by: by.name.clone() })
    }

    /// Whether a user may say what happens to a job.
    ///
    /// # Errors
    /// [`Rejected::NotAllowed`]: it is another's.
    pub fn allowed(&self, job: &Job, by: &User) -> Result<(), Rejected> {
        if by.is(&job.spec.user) || self.is_admin(by) {
            return Ok(());
        }
        Err(Rejected::NotAllowed { job: job.spec.id, owner: job.spec.user.name.clone() })
    }
}

//! The one place where actions become effects.

use crate::fault::{self, Point};
use crate::journal::Journal;
use crate::run::cgroup::{Group, Hierarchy};
use crate::run::checkpoint;
use crate::run::launch::{Launch, Launcher, Outcome, Report};
use crate::run::lives::Lives;
use crate::run::record::Claim;
use crate::run::suspend::{Subject, Suspender, What};
use crate::run::watch::{announce, signal};
use carma_core::input::Action;
use carma_core::model::{
    EndLevel, GpuId, Job, JobId, Phase, Placement, ProcessRef, SharingMode, SuspendStep,
};
use carma_core::state::State;
use carma_core::units::MiB;
use carma_gpu::Sharing;
use carma_process::process;
use rustix::process::{Pid, Signal, kill_process};
use std::sync::Arc;
use std::time::Duration;

/// Takes word of a job that cannot be asked to save its work: its attempt, and why.
pub type CannotSave = Arc<dyn Fn(JobId, u32, String) + Send + Sync>;

/// What a job is seen to hold on its GPUs, or held when it left them.
#[must_use]
pub fn held(state: &State, job: &Job) -> MiB {
    let there = job.placement().into_iter().flat_map(|placement| &placement.gpus);
    let there = there.filter_map(|gpu| state.gpu(*gpu)?.tenant(job.spec.id)?.observed);
    let kept = job.suspension().into_iter().flat_map(|suspension| &suspension.kept);
    there.sum::<MiB>().max(kept.filter_map(|tenant| tenant.observed).sum())
}

/// For how long processes that compute together stand still before they are killed: kernels that were launched end in
/// that time. Measured on H200s: `bench/h200/peers.py`.
const DRAIN: Duration = Duration::from_millis(300);

/// The processes of a job, as long as its supervisor is there to know them by.
fn living(supervisor: ProcessRef) -> Vec<u32> {
    match process::open(supervisor) {
        Ok(Some(_)) => process::descendants(supervisor.pid),
        _ => Vec::new(),
    }
}

/// Has all processes of a job stand still.
fn stop(supervisor: ProcessRef, group: Option<&Group>) {
    if let Some(group) = group {
        // Where it is gone, so are they.
        let _ = group.freeze();
        return;
    }
    for pid in living(supervisor).into_iter().filter_map(|pid| Pid::from_raw(pid.cast_signed())) {
        // It may have ended.
        let _ = kill_process(pid, Signal::STOP);
    }
}

/// Carries actions out.
pub struct Performer {
    /// Starts jobs.
    pub launcher: Launcher,
    /// MPS, for ending clients properly.
    pub sharing: Arc<dyn Sharing>,
    /// Where attempts have their cgroups.
    pub hierarchy: Option<Arc<Hierarchy>>,
    /// Where failures go.
    pub report: Report,
    /// Has jobs leave their GPUs and come back.
    pub suspender: Suspender,
    /// Where it goes that a job cannot be asked to save its work.
    pub cannot_save: CannotSave,
}

impl Performer {
    /// Carries out one action that the journal has.
    pub fn perform(&self, action: &Action, state: &State, journal: &Journal, lives: &Lives) {
        if matches!(action, Action::End { .. }) {
            fault::inject(Point::AfterEnding);
        }
        match action {
            Action::Launch { job, placement } => self.launch(*job, placement, state, journal, lives),
            Action::End { job, attempt, level: EndLevel::Checkpoint, .. } => {
                self.ask_to_save(*job, *attempt, state, journal, lives);
            }
            Action::End { job, attempt, level, .. } => self.end(*job, *attempt, *level, state, lives),
            Action::Suspend { job, .. } | Action::Resume { job, .. } => self.suspend(*job, state, lives),
            // Its effect is on the state alone.
            Action::SetState { .. } => {}
        }
    }

    fn launch(&self, job: JobId, placement: &Placement, state: &State, journal: &Journal, lives: &Lives) {
        let fail = |why: String| {
            (self.report)(job, placement.attempt, Outcome::NotSpawned { why, machine: true, fenced: false });
        };
        let Some(user) = state.job(job).map(|job| &job.spec.user) else { return };
        let stored = match journal.job(job) {
            Ok(Some(stored)) => stored,
            Ok(None) => return fail("the journal does not know what was submitted".into()),
            Err(e) => return fail(e.to_string()),
        };
        let gpus = placement.gpus.iter().filter_map(|id| state.gpu(*id)).map(|g| g.info.uuid.clone());
        self.launcher.launch(Launch {
            job,
            attempt: placement.attempt,
            stored,
            user_name: user.name.clone(),
            gpus: gpus.collect(),
            sharing: placement.sharing,
            cap: placement.cap,
            thread_percent: placement.thread_percent,
            id: lives.identify(job, placement.attempt),
            records: lives.records(job, placement),
            restarts: state.job(job).map_or(0, Job::restarts),
            not_launched: state.job(job).map_or(0, Job::not_launched_in_a_row),
        });
    }

    fn end(&self, id: JobId, attempt: u32, level: EndLevel, state: &State, lives: &Lives) {
        // One that the daemon repeats at its start may be of an attempt that is over.
        let of_attempt = |job: &&Job| job.placement().is_some_and(|placed| placed.attempt == attempt);
        let Some(job) = state.job(id).filter(of_attempt) else { return };
        let group_of = |placement| Some(self.hierarchy.as_ref()?.group(&lives.short(id, placement)));
        let (placement, supervisor, child) = match &job.phase {
            Phase::Running { placement, supervisor, child, .. } => (placement, *supervisor, *child),
            Phase::Launching { placement, .. } => return self.end_launch(id, placement, level, lives),
            Phase::Pending | Phase::Held { .. } | Phase::Judging { .. } => return,
        };
        let (group, records) = (group_of(placement), lives.records(id, placement));
        if placement.sharing != SharingMode::Mps || level != EndLevel::Terminate {
            let _ = signal(supervisor, child, group.as_ref(), level);
            return records.note_told(level);
        }
        // Ending a busy MPS client is unsafe for its neighbours. Off the engine's thread, since the control daemon may take
        // its time.
        let (sharing, uid, gpus) = (self.sharing.clone(), job.spec.user.uid, placement.gpus.len());
        let leave = move || {
            let clients = sharing.clients(uid, &living(supervisor));
            if clients.as_ref().map_or(gpus > 1, |clients| clients.len() > 1) {
                // Kernels of one process wait for those of another, and to end either, even through the control daemon, is a
                // fault for all clients around. Stopped all at once they come to rest, and can be killed.
                stop(supervisor, group.as_ref());
                std::thread::sleep(DRAIN);
                let _ = signal(supervisor, child, group.as_ref(), EndLevel::Kill);
                return records.note_told(level);
            }
            if clients.as_ref().is_ok_and(|clients| !clients.is_empty()) {
                // What it runs fails of that, and it may exit with 0 all the same.
                announce(supervisor);
            }
            if let Err(e) = clients.and_then(|clients| sharing.terminate_clients(uid, &clients)) {
                tracing::warn!("job {id} could not leave MPS before it was signalled: {e}");
            }
            let _ = signal(supervisor, child, group.as_ref(), level);
            records.note_told(level);
        };
        if let Err(e) = std::thread::Builder::new().name("leave mps".into()).spawn(leave) {
            tracing::warn!("job {id} could not leave MPS before it is signalled: no thread can be had ({e})");
            let _ = signal(supervisor, child, group_of(placement).as_ref(), level);
        }
    }

    /// Has a job leave its GPUs or come back, whichever it is about to.
    fn suspend(&self, id: JobId, state: &State, lives: &Lives) {
        let Some(job) = state.job(id) else { return };
        let Phase::Running { placement, supervisor, child, .. } = &job.phase else { return };
        let Some(suspension) = job.suspension() else { return };
        let uuid = |id: &GpuId| state.gpu(*id).map(|gpu| gpu.info.uuid.clone());
        let what = match suspension.step {
            SuspendStep::Suspending => What::Suspend(placement.gpus.iter().filter_map(uuid).collect()),
            SuspendStep::Resuming => {
                let ends = suspension.home.first().and_then(uuid).zip(placement.gpus.first().and_then(uuid));
                let Some((from, to)) = ends else { return };
                let all = state.gpus().iter().filter(|gpu| gpu.present).map(|gpu| gpu.info.uuid.clone());
                What::Resume { from, to, all: all.collect() }
            }
            SuspendStep::Asked | SuspendStep::Suspended => return,
        };
        let subject = Subject {
            job: id,
            attempt: placement.attempt,
            supervisor: *supervisor,
            child: *child,
            group: self.hierarchy.as_ref().map(|h| h.group(&lives.short(id, placement))),
            book: lives.records(id, placement).book(),
            memory: held(state, job),
        };
        fault::inject(Point::AfterSuspension);
        self.suspender.begin(subject, what);
    }

    /// Asks a job to save its work. Off the engine's thread, since all of the machine's processes are looked at.
    fn ask_to_save(&self, id: JobId, attempt: u32, state: &State, journal: &Journal, lives: &Lives) {
        let Some(Phase::Running { placement, supervisor, child, .. }) = state.job(id).map(|job| &job.phase)
        else {
            return;
        };
        let fail = |why: String| (self.cannot_save)(id, attempt, why);
        let signal = match journal.job(id) {
            Ok(stored) => stored.and_then(|stored| stored.request.checkpoint_signal),
            Err(e) => return fail(e.to_string()),
        };
        let Some(signal) = signal else { return fail("the journal does not know by which signal".into()) };
        let (supervisor, child, tell) = (*supervisor, *child, self.cannot_save.clone());
        let group = self.hierarchy.as_ref().map(|h| h.group(&lives.short(id, placement)));
        let records = lives.records(id, placement);
        let ask = move || match checkpoint::ask(supervisor, child, group.as_ref(), signal) {
            Ok(pids) => {
                records.note_told(EndLevel::Checkpoint);
                tracing::info!("job {id} is asked to save its work: {signal} to {pids:?}");
            }
            Err(why) => tell(id, attempt, why),
        };
        if let Err(e) = std::thread::Builder::new().name("ask to save".into()).spawn(ask) {
            fail(format!("no thread can be had: {e}"));
        }
    }

    /// Ends an attempt that has not been seen to run: the first to claim it, this daemon or its
    /// supervisor, decides whether it begins at all.
    fn end_launch(&self, id: JobId, placement: &Placement, level: EndLevel, lives: &Lives) {
        let records = lives.records(id, placement);
        match records.claim(&Claim::Fenced) {
            Ok(Some(_)) => {
                let why = "it was to be ended before it had begun".to_owned();
                (self.report)(
                    id,
                    placement.attempt,
                    Outcome::NotSpawned { why, machine: false, fenced: true },
                );
            }
            Ok(None) => match records.read() {
                Ok(Some(record)) => {
                    if let Claim::Supervisor(supervisor) = record.claim {
                        let group = self.hierarchy.as_ref().map(|h| h.group(&lives.short(id, placement)));
                        let _ = signal(supervisor, record.child, group.as_ref(), level);
                    }
                }
                Ok(None) => {}
                Err(e) => tracing::warn!("job {id}, which is being launched, cannot be ended now: {e}"),
            },
            Err(e) => tracing::warn!("job {id}, which is being launched, cannot be ended now: {e}"),
        }
    }
}

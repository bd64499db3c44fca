//! The one place where actions become effects.

use crate::journal::Journal;
use crate::run::launch::{Launch, Launcher, Outcome, Report, signal};
use crate::run::process;
use carma_core::input::Action;
use carma_core::model::{EndLevel, JobId, Phase, Placement, SharingMode};
use carma_core::state::State;
use carma_gpu::Sharing;
use std::sync::Arc;

/// Carries actions out.
pub struct Performer {
    /// Starts jobs.
    pub launcher: Launcher,
    /// MPS, for ending clients properly.
    pub sharing: Arc<dyn Sharing>,
    /// Where failures go.
    pub report: Report,
}

impl Performer {
    /// Carries out one action that the journal has.
    pub fn perform(&self, action: &Action, state: &State, journal: &Journal) {
        match action {
            Action::Launch { job, placement } => self.launch(*job, placement, state, journal),
            Action::End { job, level, .. } => self.end(*job, *level, state),
            // Its effect is on the state alone.
            Action::SetState { .. } => {}
            Action::Note { text } => tracing::info!("{text}"),
        }
    }

    fn launch(&self, job: JobId, placement: &Placement, state: &State, journal: &Journal) {
        let fail = |error: String| (self.report)(job, placement.attempt, Outcome::Failed { error });
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
            gpus: gpus.collect(),
            sharing: placement.sharing,
            cap: placement.cap,
            thread_percent: placement.thread_percent,
        });
    }

    fn end(&self, id: JobId, level: EndLevel, state: &State) {
        let Some(job) = state.job(id) else { return };
        let Phase::Running { placement, supervisor, child, .. } = &job.phase else { return };
        let (supervisor, child, uid) = (*supervisor, *child, job.spec.user.uid);
        let kill = level == EndLevel::Kill;
        if placement.sharing != SharingMode::Mps || kill {
            let _ = signal(supervisor, child, kill);
            return;
        }
        // Killing a busy MPS client is unsafe for its neighbours: it leaves the server first. Off
        // the engine's thread, since the control daemon may take its time.
        let sharing = self.sharing.clone();
        std::thread::spawn(move || {
            let pids = process::descendants(supervisor.pid);
            if let Err(e) = sharing.terminate_clients(uid, &pids) {
                tracing::warn!("job {id} could not leave MPS before it was signalled: {e}");
            }
            let _ = signal(supervisor, child, false);
        });
    }
}

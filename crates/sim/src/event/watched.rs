//! The core at work while a test takes notes.

use super::core::CoreScheduler;
use super::engine::Engine;
use super::outcome::RunResult;
use super::scheduler::{Decision, Fate, Left, Scheduler};
use super::world::{GpuIndex, JobIndex, World};
use super::{Cluster, Setup};
use crate::trace::Workload;
use carma_core::units::Millis;

/// What a test notes.
pub(super) trait Notes {
    /// A job came.
    fn came(&mut self, _core: &CoreScheduler<'_>, _now: Millis, _job: JobIndex) {}

    /// This was decided, and is not done yet: the world is as it was before.
    fn decided(&mut self, _core: &CoreScheduler<'_>, _now: Millis, _decisions: &[Decision], _world: &World) {}
}

struct Watched<'a, N> {
    core: CoreScheduler<'a>,
    notes: N,
}

impl<N: Notes> Scheduler for Watched<'_, N> {
    fn came(&mut self, now: Millis, job: JobIndex, world: &World) -> Fate {
        let fate = self.core.came(now, job, world);
        self.notes.came(&self.core, now, job);
        fate
    }

    fn left(&mut self, now: Millis, job: JobIndex, how: Left, world: &World) -> Fate {
        self.core.left(now, job, how, world)
    }

    fn changed(&mut self, now: Millis, gpu: GpuIndex, world: &World) {
        self.core.changed(now, gpu, world);
    }

    fn next_look(&self, now: Millis, job: JobIndex) -> Option<Millis> {
        self.core.next_look(now, job)
    }

    fn decide(&mut self, now: Millis, world: &World) -> Vec<Decision> {
        let decisions = self.core.decide(now, world);
        self.notes.decided(&self.core, now, &decisions, world);
        decisions
    }

    fn wake(&self) -> Option<Millis> {
        self.core.wake()
    }
}

/// Plays a workload, and returns the notes with the result.
pub(super) fn play<N: Notes>(
    workload: &Workload,
    cluster: &Cluster,
    setup: &Setup,
    notes: N,
) -> (RunResult, N) {
    let core = CoreScheduler::new(workload, cluster.inventory(), setup);
    let mut watched = Watched { core, notes };
    let run = Engine::new(workload, cluster, setup, &mut watched).run(&|_| ());
    (run, watched.notes)
}

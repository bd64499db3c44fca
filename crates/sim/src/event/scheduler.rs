//! What the event engine asks of a scheduler.

use super::outcome::End;
use super::world::{GpuIndex, JobIndex, Overflow, Terms, World};
use carma_core::units::Millis;

/// How a job left its GPUs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Left {
    /// Its work is done.
    Completed,
    /// It asked for memory that was not there.
    OutOfMemory(Overflow),
}

/// What becomes of a job that has left its GPUs, or has just come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It is over, or waits for its turn.
    Goes,
    /// It will never run (again).
    Lost,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Decision {
    /// Put a job that waits on GPUs.
    Start { job: JobIndex, gpus: Vec<GpuIndex>, terms: Terms },
    /// Take a job off its GPUs; it will go on where it was, after loading again.
    Preempt { job: JobIndex },
    /// Suspend a running job: its memory goes to the host's, which takes a while.
    Suspend { job: JobIndex },
    /// Put a suspended job back on GPUs, as the same attempt.
    Resume { job: JobIndex, gpus: Vec<GpuIndex> },
    /// Hold the kernels of a running job back to a share of its pace alone.
    HoldBack { job: JobIndex, pace: f64 },
    /// End a job for its neighbours' sake; it begins anew elsewhere.
    Evict { job: JobIndex, how: End },
}

/// A policy at work. Times never go back.
pub(crate) trait Scheduler {
    /// A job came.
    fn came(&mut self, now: Millis, job: JobIndex, world: &World) -> Fate;

    /// A job has left its GPUs and the world.
    fn left(&mut self, now: Millis, job: JobIndex, how: Left, world: &World) -> Fate;

    /// Memory or jobs on a GPU changed: a monitor would see it.
    fn changed(&mut self, now: Millis, gpu: GpuIndex, world: &World);

    /// When a look at the GPUs of a job at work may next show something although nothing happens; `None`: it won't.
    fn next_look(&self, _now: Millis, _job: JobIndex) -> Option<Millis> {
        None
    }

    /// The activity of a GPU changed.
    fn stirred(&mut self, _gpu: GpuIndex) {}

    /// What to do now. What comes back is done, all of it, before the next call.
    fn decide(&mut self, now: Millis, world: &World) -> Vec<Decision>;

    /// When it wants to decide again although nothing happens; asked after each decision.
    fn wake(&self) -> Option<Millis>;

    /// Whether a job waits for windows of activity to move on: then there is a look a second.
    fn watches(&self) -> bool {
        false
    }

    /// What must hold between two calls: states what doesn't, in words. For tests and debug builds.
    #[cfg(debug_assertions)]
    fn check(&self) -> Vec<String> {
        Vec::new()
    }

    /// A look at the windows that move.
    fn look(&mut self, _now: Millis, _world: &World) -> Look {
        Look { seen: 0, news: false }
    }
}

/// What a look at the windows gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Look {
    /// Windows that were looked at.
    pub(crate) seen: u64,
    /// Whether a decision may come out otherwise than before.
    pub(crate) news: bool,
}

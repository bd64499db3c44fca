//! The nouns: jobs, attempts, how they end. One type for each idea.
//!
//! Types of the rooms below that belong to a job have their public path here.

mod attempt;
mod exit;
mod job;
mod suspension;

pub use crate::ledger::SeenMemory;
pub use crate::recovery::Floor;
pub use crate::spec::{
    Basis, Computed, Estimates, Estimator, Forecasts, GpuId, JobId, NewJob, Profile, Request, RunTime,
    RunsOf, SharingMode, User,
};
pub use attempt::{Attempt, EndCause, EndLevel, Ending, Had, Placement, ProcessRef};
pub use exit::{Exit, ExitStatus, HostUse, UserGone};
pub use job::{Finished, Job, JobState, Phase, QueueKey, Relief};
pub use suspension::{Absence, Halt, Move, SuspendStep, Suspension, Wanted};

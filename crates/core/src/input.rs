//! What comes into the core ([`Input`]) and what goes out ([`Action`]).

pub use crate::look::{Foreign, Observation};

use crate::explain::Reason;
use crate::model::{
    Computed, EndCause, EndLevel, Exit, GpuId, JobId, JobState, NewJob, Placement, ProcessRef, Profile,
    RunTime, SharingMode, User,
};
use crate::policy::Options;
use crate::progress::Outlook;
use crate::reading::GpuInfo;
use crate::units::{Fraction, MiB, Millis};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Everything that can change the state. The journal is a list of these.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Input {
    /// The configuration in force.
    Configured(Box<Options>),
    /// The devices that there are now. Devices that are not named any more are gone.
    Inventory(Vec<GpuInfo>),
    /// A job was submitted.
    Submitted(Box<NewJob>),
    /// A GPU was looked at.
    Observed {
        /// Number of the GPU.
        gpu: GpuId,
        /// What was seen.
        seen: Box<Observation>,
    },
    /// GPUs were looked at and looked the same, but for the time.
    Unchanged(Vec<GpuId>),
    /// An action of a plan is taken: recorded before it is performed.
    Decided(Box<Action>),
    /// The supervisor of an attempt runs.
    Started {
        /// Number of the job.
        job: JobId,
        /// Number of the attempt, from 1.
        attempt: u32,
        /// The supervisor.
        supervisor: ProcessRef,
        /// The job's first process, once known.
        child: Option<ProcessRef>,
        /// The sharing mode it really got, and why if it differs from the one decided.
        sharing: SharingMode,
        /// Remark for the job's history, e.g. why MPS could not be had.
        note: Option<String>,
    },
    /// An attempt was not started, nothing of it runs or ever will, and that is no fault of the job's: the daemon died
    /// before it started it, the machine lacked something, or it was to be ended before it had begun. It is tried again
    /// as often as it takes.
    NotLaunched {
        /// Number of the job.
        job: JobId,
        /// Number of the attempt, from 1.
        attempt: u32,
        /// The cause, in words.
        why: String,
        /// Whether the next attempt waits a little: what was lacking may be there again then.
        pause: bool,
    },
    /// An attempt could not be started, and nothing of it runs. Written by carma before 0.2, which gave a job up after
    /// some of them; kept so that its journals replay as they were.
    LaunchFailed {
        /// Number of the job.
        job: JobId,
        /// Number of the attempt, from 1.
        attempt: u32,
        /// The error, in words.
        error: String,
        /// Whether another try makes sense (the cause lies with the machine, not with the job).
        transient: bool,
    },
    /// An attempt is over.
    Exited {
        /// Number of the job.
        job: JobId,
        /// Number of the attempt, from 1.
        attempt: u32,
        /// Exit status and evidence.
        exit: Exit,
    },
    /// More is known of the memory of a job that waits: a run of the same program is over.
    Forecast {
        /// Number of the job.
        job: JobId,
        /// What is computed now.
        computed: Computed,
        /// What runs of the same command took at most on the same kind of GPU. `None`: none was measured.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        measured: Option<MiB>,
    },
    /// More is known of what a job does alone: it, or another run of the same command, was watched.
    Profiled {
        /// Number of the job.
        job: JobId,
        /// What is known now.
        profile: Profile,
    },
    /// More is known of how long a job that waits will run: a run of the same program is over.
    RunTime {
        /// Number of the job.
        job: JobId,
        /// What is expected now.
        run_time: RunTime,
    },
    /// What is predicted if jobs that wait join others: see [`crate::slowdown::questions`].
    Predicted(Vec<Outlook>),
    /// The predictor has learned: what it said of companies that are on no GPU now is forgotten.
    Learned,
    /// Predictions as carma before 0.2 wrote them, job by job. They are asked for anew.
    Foreseen(Ignored),
    /// The progress of a running job beside its present neighbours was measured.
    Measured {
        /// Number of the job.
        job: JobId,
        /// Number of the attempt, from 1.
        attempt: u32,
        /// Its speed over its speed alone.
        progress: Fraction,
        /// How long was measured.
        over: Millis,
        /// It has no more than that: its speed alone is not known, and is at least the speed that was put in its place.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        at_most: bool,
        /// Not all on its GPUs were at work all that time: it says nothing of what they leave it once they are.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        loading: bool,
    },
    /// The command of a running job was seen to make its first steps.
    Stepped {
        /// Number of the job.
        job: JobId,
        /// Number of the attempt, from 1.
        attempt: u32,
        /// How long ago the first of them began.
        #[serde(default)]
        ago: Millis,
    },
    /// A running job told how far it is.
    Counted {
        /// Number of the job.
        job: JobId,
        /// Number of the attempt, from 1.
        attempt: u32,
        /// The share of all its work that is done.
        share: Fraction,
    },
    /// A running job that was to save its work could not be asked to: none of its processes catches the signal, say. It
    /// is not waited for.
    CannotSave {
        /// Number of the job.
        job: JobId,
        /// Number of the attempt, from 1.
        attempt: u32,
        /// The cause, in words.
        why: String,
    },
    /// A job that was to be suspended has left its GPUs.
    Suspended {
        /// Number of the job.
        job: JobId,
        /// Number of the attempt, from 1.
        attempt: u32,
        /// Memory of the host that it takes now.
        host: MiB,
    },
    /// A job that was suspended runs again.
    Resumed {
        /// Number of the job.
        job: JobId,
        /// Number of the attempt, from 1.
        attempt: u32,
    },
    /// A job could not be suspended and runs on, or could not be put back and is suspended as before.
    SuspendFailed {
        /// Number of the job.
        job: JobId,
        /// Number of the attempt, from 1.
        attempt: u32,
        /// The cause, in words.
        why: String,
        /// Whether it is neither the one nor the other: then it begins anew.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        stuck: bool,
    },
    /// A user wants a running job taken off its GPUs.
    Suspend {
        /// Number of the job.
        job: JobId,
        /// The requesting user.
        by: User,
    },
    /// A user wants a suspended job to go on.
    Unsuspend {
        /// Number of the job.
        job: JobId,
        /// The requesting user.
        by: User,
    },
    /// A user wants a running or suspended job to go on on another GPU.
    Move {
        /// Number of the job.
        job: JobId,
        /// Where to.
        gpu: GpuId,
        /// The requesting user.
        by: User,
    },
    /// A user wants a job ended.
    Cancel {
        /// Number of the job.
        job: JobId,
        /// The requesting user.
        by: User,
    },
    /// A user wants a pending job held back.
    Hold {
        /// Number of the job.
        job: JobId,
        /// The requesting user.
        by: User,
    },
    /// A user wants a held job released.
    Release {
        /// Number of the job.
        job: JobId,
        /// The requesting user.
        by: User,
    },
    /// A user wants a running job back in the queue.
    Requeue {
        /// Number of the job.
        job: JobId,
        /// The requesting user.
        by: User,
    },
    /// The administrator takes a GPU out of use: running jobs stay, no new ones come.
    Drain {
        /// Number of the GPU.
        gpu: GpuId,
        /// The requesting user.
        by: User,
    },
    /// The administrator gives a GPU back.
    Resume {
        /// Number of the GPU.
        gpu: GpuId,
        /// The requesting user.
        by: User,
    },
    /// Time passed.
    Tick,
}

/// What a plan wants done. Performed in one place by the daemon or the simulator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Start an attempt of a job.
    Launch {
        /// Number of the job.
        job: JobId,
        /// Where and how.
        placement: Placement,
    },
    /// Signal a running job to end.
    End {
        /// Number of the job.
        job: JobId,
        /// Number of the attempt, from 1.
        attempt: u32,
        /// How hard.
        level: EndLevel,
        /// Why it is to end.
        cause: EndCause,
    },
    /// Take a running job off its GPUs.
    Suspend {
        /// Number of the job.
        job: JobId,
        /// Number of the attempt, from 1.
        attempt: u32,
        /// Why the policy wants that; `None`: a user does.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cause: Option<EndCause>,
    },
    /// Put a suspended job back on GPUs.
    Resume {
        /// Number of the job.
        job: JobId,
        /// Number of the attempt, from 1.
        attempt: u32,
        /// Which, in the order of those that it had.
        gpus: Vec<GpuId>,
    },
    /// Move a job on by decision alone: back to the queue, or to its end.
    SetState {
        /// Number of the job.
        job: JobId,
        /// `Pending` puts it back into the queue; a final state ends it.
        state: JobState,
        /// Why, with the numbers behind it.
        reason: Reason,
    },
}

/// Something that an older carma wrote and that is not read any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ignored;

impl Serialize for Ignored {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        <[(); 0]>::default().serialize(to)
    }
}

impl<'de> Deserialize<'de> for Ignored {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        serde::de::IgnoredAny::deserialize(from).map(|_| Self)
    }
}

fn gpus(n: u32) -> String {
    format!("{n} GPU{}", if n == 1 { "" } else { "s" })
}

/// Why an input was refused. Nothing changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Rejected {
    /// No such live job.
    #[error("there is no live job {0}")]
    NoSuchJob(JobId),
    /// No such GPU.
    #[error("there is no GPU with that number")]
    NoSuchGpu,
    /// A job number was used before.
    #[error("job {0} exists already")]
    Duplicate(JobId),
    /// The request makes no sense.
    #[error("{0}")]
    BadRequest(String),
    /// More GPUs than there are.
    #[error("the job asks for {}; this machine has {have}", gpus(*wanted))]
    TooManyGpus {
        /// Asked for.
        wanted: u32,
        /// There are.
        have: usize,
    },
    /// More GPUs than there are beside MIG instances.
    #[error(
        "the job asks for {}; this machine has {whole} beside MIG instances, of which a process sees only one", gpus(*wanted)
    )]
    Slices {
        /// Asked for.
        wanted: u32,
        /// GPUs that are no MIG instances.
        whole: usize,
    },
    /// More memory than enough GPUs have.
    #[error(
        "the job asks for {need} of memory on {}; {} so much (the largest has {largest})",
        if *wanted == 1 { "a GPU".to_owned() } else { format!("each of {}", gpus(*wanted)) },
        match fitting { 0 => "none here has".to_owned(), 1 => "only 1 here has".to_owned(), n => format!("only {n} here have") }
    )]
    TooMuchMemory {
        /// Asked for, per GPU.
        need: MiB,
        /// Number of GPUs asked for.
        wanted: u32,
        /// GPUs that have this much.
        fitting: usize,
        /// Memory of the largest.
        largest: MiB,
    },
    /// Another user's job.
    #[error("job {job} belongs to {owner}; only {} may do that", entitled(owner))]
    NotAllowed {
        /// Number of the job.
        job: JobId,
        /// Its owner.
        owner: Arc<str>,
    },
    /// Its user may not release it.
    #[error("job {job} is held by {by}; only an operator or root may release it")]
    HeldByOperator {
        /// Number of the job.
        job: JobId,
        /// Who holds it.
        by: Arc<str>,
    },
    /// Only root and operators may do that.
    #[error("only root, an operator or the user that carma runs as may drain or resume a GPU")]
    AdminOnly,
    /// Not in this state.
    #[error("job {job} is {state}: {hint}")]
    WrongState {
        /// Number of the job.
        job: JobId,
        /// Its state.
        state: &'static str,
        /// What to do instead.
        hint: &'static str,
    },
    /// The input speaks of an attempt that is not the current one.
    #[error("job {job} has no running attempt {attempt}")]
    StaleAttempt {
        /// Number of the job.
        job: JobId,
        /// Number of the attempt, from 1.
        attempt: u32,
    },
}

/// Who may give orders about a user's job.
fn entitled(owner: &str) -> String {
    // Each name once.
    if owner == "root" { "root or an operator".to_owned() } else { format!("{owner}, root or an operator") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_named_twice() {
        let said = |owner: &str| Rejected::NotAllowed { job: JobId(1), owner: owner.into() }.to_string();
        assert_eq!(said("root"), "job 1 belongs to root; only root or an operator may do that");
        assert_eq!(said("bob"), "job 1 belongs to bob; only bob, root or an operator may do that");
    }
}

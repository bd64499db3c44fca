//! What the engine is told and answers: messages, orders, and the client at the other end.

use crate::config::limits::UserLimits;
use crate::gist::Gist;
use crate::memory::Learned;
use crate::refused::Refused;
use crate::run::launch::Outcome;
use crate::run::suspend;
use crate::run::watch::Event;
use crate::slowdown::{Subject, Told};
use crate::submission::Submission;
use carma_api::wire::{ContextProbe, DoneReply, LaunchStats, SubmitReply, UnwrittenView};
use carma_core::model::{JobId, User};
use carma_core::state::State;
use carma_core::units::MiB;
use std::sync::Arc;
use tokio::sync::oneshot;

/// The client at the other end of the socket, as the kernel says.
#[derive(Debug, Clone)]
pub struct Peer {
    /// The user who asks.
    pub user: User,
    /// Primary group.
    pub gid: u32,
    /// The process, where the kernel says; for the audit.
    pub pid: Option<i32>,
    /// What the user may have.
    pub limits: UserLimits,
}

/// An order about a job or a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// End a job.
    Cancel(JobId),
    /// Hold a pending job back.
    Hold(JobId),
    /// Let a held job go.
    Release(JobId),
    /// Put a running job back. One that is over is submitted again as a new one, which is asked for as such.
    Requeue(JobId),
    /// Take a running job off its GPU.
    Suspend(JobId),
    /// Let a suspended job go on.
    Unsuspend(JobId),
    /// Let a job go on on another GPU (by index); `None`: on any that has room.
    Move(JobId, Option<u32>),
    /// Take a GPU (by index) out of use.
    Drain(u32),
    /// Give a GPU (by index) back.
    Resume(u32),
}

/// How the engine is, beside the state.
#[derive(Debug, Clone, Default)]
pub struct Standing {
    /// Latencies of starts.
    pub launches: LaunchStats,
    /// Since when the journal cannot be written, and why.
    pub unwritten: Option<UnwrittenView>,
}

/// An answer to come.
pub type Answer<T> = oneshot::Sender<Result<T, Refused>>;

/// What came of an order for one of many jobs.
pub type OfOne = (JobId, Result<DoneReply, Refused>);

/// A request about several jobs: as much of it is done as one turn has time for.
pub enum Bulk {
    /// So many copies of a job are submitted.
    Submit(Box<Submission>, u32, Peer, Answer<SubmitReply>),
    /// An order is given to these, in their order. The answer: what came of it for the first of them.
    Order(fn(JobId) -> Order, Vec<JobId>, Peer, Answer<Vec<OfOne>>),
}

impl Bulk {
    /// Whether its client has disconnected.
    pub fn is_given_up(&self) -> bool {
        match self {
            Self::Submit(.., answer) => answer.is_closed(),
            Self::Order(.., answer) => answer.is_closed(),
        }
    }

    /// Does nothing of it, and says why.
    pub fn refuse(self, why: Refused) {
        match self {
            Self::Submit(.., answer) => drop(answer.send(Err(why))),
            Self::Order(.., answer) => drop(answer.send(Err(why))),
        }
    }
}

/// What the engine is told.
pub enum Message {
    /// A job is submitted.
    Submit(Box<Submission>, Peer, Answer<SubmitReply>),
    /// An order is given.
    Order(Order, Peer, Answer<DoneReply>),
    /// A client asks for something of many jobs.
    Bulk(Bulk),
    /// A probe measured a CUDA context.
    Context(ContextProbe, Peer, Answer<DoneReply>),
    /// A client asks what was learned of memory.
    Learned(Peer, oneshot::Sender<Learned>),
    /// A client asks what runs of a job's command take at most.
    Took(JobId, oneshot::Sender<Option<MiB>>),
    /// A client asks what is known of jobs alone, of a type of GPU if it names one, and what was learned of slowdowns.
    Slowdowns(Vec<Subject>, Option<String>, oneshot::Sender<Told>),
    /// A client reads the state.
    View(oneshot::Sender<(Arc<State>, Standing)>),
    /// A client waits for the end of a job.
    Wait(JobId, oneshot::Sender<()>),
    /// The watcher saw something.
    Watched(JobId, u32, Event),
    /// The launcher reports.
    Launched(JobId, u32, Outcome),
    /// A job that was to save its work cannot be asked to, and why.
    CannotSave(JobId, u32, String),
    /// What came of suspending a job, or of putting it back.
    Suspension(JobId, u32, suspend::Outcome),
    /// What forecasts need of a job that an earlier life of the daemon accepted.
    Gist(JobId, Box<Gist>),
    /// The sampler saw something that should not wait.
    Look,
    /// End the daemon; jobs go on.
    Stop,
}

//! What forecasts need of a submission, made once and beside the engine.
//!
//! It takes time in proportion to the submission, which may have ten thousands of words. What comes out is small, and the
//! engine keeps it for each job that is not over: an end is news to hundreds of jobs, none of which is read again for it.

use crate::journal::Journal;
use crate::memory::{self, MOST_ESTIMATES};
use crate::run_time;
use crate::submission;
use carma_api::wire::SubmitRequest;
use carma_core::model::{Estimator, JobId};
use carma_core::state::State;
use carma_core::units::MiB;
use carma_memory::Estimate;
use carma_memory::history::Signature;
use carma_run_time::Class;
use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;

/// What forecasts need of a submission.
#[derive(Debug, Clone)]
pub struct Gist {
    /// The task as the history of memory knows it, without the texts that only [`Self::class`] is made of.
    pub(crate) signature: Signature,
    /// The classes of its run time.
    pub(crate) class: Class,
    /// What the core knows the command by.
    pub(crate) command_key: u64,
    /// What the client sent of its memory. Texts are no more than it sent, so limits on submissions bound them, too.
    pub(crate) estimates: Vec<Estimate>,
    /// Of which GPU those are a share that are one, by source, MiB.
    pub(crate) shares: Vec<(String, MiB)>,
    /// What it sent by estimator, for policies.
    pub(crate) sent: Vec<(Estimator, MiB)>,
    /// Framework and version, as far as a text is kept.
    pub(crate) framework: String,
    /// Its peak has no bound that could be told beforehand.
    pub(crate) elastic: bool,
    /// Longest run, ms.
    pub(crate) time_limit_ms: Option<u64>,
    /// It may go on where an earlier attempt had saved its work.
    pub(crate) saves_its_work: bool,
}

impl Gist {
    /// Of what this user submits, environment included. It takes time in proportion to its size.
    #[must_use]
    pub fn of(request: &SubmitRequest, uid: u32) -> Self {
        let mut signature = memory::signature(request, uid);
        let class = run_time::class(&request.cwd, uid, &signature);
        (signature.length, signature.script) = (String::new(), String::new());
        let estimates: Vec<Estimate> =
            request.estimates.iter().take(MOST_ESTIMATES).filter_map(memory::from_view).collect();
        let shares = request.estimates.iter().take(MOST_ESTIMATES);
        let shares = shares.filter_map(|e| Some((memory::cut(&e.source), MiB(e.of_gpu_mib?)))).collect();
        Self {
            signature,
            class,
            command_key: submission::command_key(request, uid),
            sent: estimates.iter().filter_map(memory::number).collect(),
            estimates,
            shares,
            framework: memory::framework(request),
            // Several GPUs gather and reduce in buffers that no front end sees.
            elastic: request.task.elastic || request.gpus > Some(1),
            time_limit_ms: request.time_limit_ms,
            saves_its_work: request.saves_its_work(),
        }
    }
}

/// Makes those of the jobs that an earlier life of the daemon accepted, on a thread of its own: first of those that run, then
/// of the queue, then of those that are held. Until then such a job hears no news.
///
/// # Errors
/// When there can be no thread.
pub fn of_earlier(
    state: &State,
    journal: PathBuf,
    tell: impl Fn(JobId, Gist) + Send + 'static,
) -> io::Result<()> {
    let first = state.active().iter().copied().chain(state.queue().iter().map(|key| key.id));
    let all = first.chain(state.jobs().keys().copied());
    let mut seen = BTreeSet::new();
    let jobs: Vec<JobId> = all.filter(|id| seen.insert(*id)).collect();
    let make = move || {
        let reader = match Journal::reader(&journal) {
            Ok(reader) => reader,
            Err(e) => return tracing::warn!("{e}; earlier jobs hear no news of their forecasts"),
        };
        for id in jobs {
            // Some are over by now.
            if let Ok(Some(stored)) = reader.whole_job(id) {
                tell(id, Gist::of(&stored.request, stored.uid));
            }
        }
    };
    std::thread::Builder::new().name("read earlier jobs".into()).spawn(make).map(drop)
}

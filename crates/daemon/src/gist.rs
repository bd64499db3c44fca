//! What forecasts need of a submission, made once and beside the engine.
//!
//! It takes time in proportion to the submission, which may have ten thousands of words. What comes out is small, and the
//! engine keeps it for each job that is not over: an end is news to hundreds of jobs, none of which is read again for it.

use crate::journal::Journal;
use carma_api::wire::{EstimateView, SubmitRequest};
use carma_core::model::{Estimator, JobId};
use carma_core::state::State;
use carma_core::units::MiB;
use carma_memory::history::{Facts, SETTINGS, Signature, doing, own_program};
use carma_memory::{Estimate, Parts, Tier};
use carma_run_time::Class;
use fnv::FnvHasher;
use std::collections::BTreeSet;
use std::hash::Hasher as _;
use std::io;
use std::path::PathBuf;

/// Estimates of one submission that are looked at.
const MOST_ESTIMATES: usize = 16;
/// Reasons of one estimate that are kept, and characters of a text.
pub(crate) const MOST_REASONS: usize = 24;
pub(crate) const MOST_TEXT: usize = 400;
/// More than any GPU holds, MiB: what claims more is cut to it.
pub(crate) const MOST_MIB: u64 = 1 << 30;
/// Where a version is not known.
const UNKNOWN: &str = "unknown";

/// What forecasts need of a submission.
#[derive(Debug, Clone)]
pub struct Gist {
    /// The task as the history of memory knows it, without the texts that only [`Self::class`] is made of.
    pub(crate) signature: Signature,
    /// The classes of its run time.
    pub(crate) class: Class,
    /// What the core knows the command by.
    pub(crate) command_key: u64,
    /// What it knows the program by; `None`: the command does not name it.
    pub(crate) program_key: Option<u64>,
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
    /// What its user says of its memory.
    pub(crate) declared: Option<MiB>,
    /// Longest run, ms.
    pub(crate) time_limit_ms: Option<u64>,
    /// It may go on where an earlier attempt had saved its work.
    pub(crate) saves_its_work: bool,
}

impl Gist {
    /// Of what this user submits, environment included. It takes time in proportion to its size.
    #[must_use]
    pub fn of(request: &SubmitRequest, uid: u32) -> Self {
        let mut signature = signature(request, uid);
        let program = own_program(&request.command);
        let class = class(request, uid, &signature, program.is_some());
        (signature.length, signature.of_any_length) = (String::new(), String::new());
        signature.script = String::new();
        let estimates: Vec<Estimate> =
            request.estimates.iter().take(MOST_ESTIMATES).filter_map(from_view).collect();
        let shares = request.estimates.iter().take(MOST_ESTIMATES);
        let shares = shares.filter_map(|e| Some((cut(&e.source), MiB(e.of_gpu_mib?)))).collect();
        Self {
            signature,
            class,
            command_key: command_key(request, uid),
            program_key: program.map(|program| program_key(request, uid, program)),
            sent: estimates.iter().filter_map(number).collect(),
            estimates,
            shares,
            framework: framework(request),
            // Several GPUs gather and reduce in buffers that no front end sees.
            elastic: request.task.elastic || request.gpus > Some(1),
            declared: request.gpu_memory_mib.map(MiB),
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

/// The framework of a submission.
fn framework(request: &SubmitRequest) -> String {
    request.task.framework.as_deref().map_or_else(|| UNKNOWN.to_owned(), cut)
}

/// The estimator of an answer, and the one number that a policy gets of it: of the allocator model its bound, of all
/// others what their authors' policies went by, the estimate. A policy has a guard of its own.
fn number(estimate: &Estimate) -> Option<(Estimator, MiB)> {
    let Estimate { source, use_mib, upper_mib, .. } = estimate;
    // `allocator/summary` is the allocator by a front end; `faketensor/raw` is an estimator of its own.
    let name = source.split('/').next().unwrap_or_default();
    let estimator = Estimator::named(&source.replace('/', "-")).or_else(|| Estimator::named(name))?;
    let mib = if estimator == Estimator::Allocator { *upper_mib } else { *use_mib };
    (estimator != Estimator::Measured).then_some((estimator, mib))
}

fn signature(request: &SubmitRequest, uid: u32) -> Signature {
    let settings: Vec<(&str, &str)> =
        SETTINGS.iter().filter_map(|key| Some((*key, request.env.get(*key)?.as_str()))).collect();
    Signature::of(&Facts {
        user: uid,
        command: &request.command,
        cwd: &request.cwd,
        settings: &settings,
        gpus: request.gpus.unwrap_or(1),
        batch_size: request.task.batch_size,
        script: request.task.script.as_deref(),
        model: request.task.model.as_deref(),
        dataset: request.task.dataset.as_deref(),
    })
}

/// A text of a user at a length that is kept.
pub(crate) fn cut(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(MOST_TEXT).collect()
}

/// An estimate that came from a client: numbers within reason and in their order, texts at a length
/// that is kept. `None`: a tier that a front end cannot have, or one of another version.
#[must_use]
pub fn from_view(view: &EstimateView) -> Option<Estimate> {
    let tiers = [Tier::Share, Tier::Trace, Tier::Graph, Tier::Config, Tier::Summary, Tier::Formula];
    let tier = tiers.into_iter().find(|t| t.as_str() == view.tier)?;
    let mib = |mib: u64| MiB(mib.min(MOST_MIB));
    let use_mib = mib(view.use_mib).max(MiB(1));
    Some(Estimate {
        need_mib: mib(view.need_mib).min(use_mib),
        use_mib,
        upper_mib: mib(view.upper_mib).max(use_mib),
        tier,
        source: cut(&view.source),
        family: cut(&view.family),
        parts: view.parts.map(|p| Parts {
            context_mib: mib(p.context_mib).min(use_mib),
            allocated_mib: mib(p.allocated_mib),
            reserved_mib: mib(p.reserved_mib),
            workspace_mib: mib(p.workspace_mib),
        }),
        elastic: view.elastic,
        reasons: view.reasons.iter().take(MOST_REASONS).map(|r| cut(r)).collect(),
    })
}

/// The classes of a job. Users learn how long each other's commands take only where those run the very same: scripts and configurations
/// byte for byte, which only their client could read, with the same arguments.
fn class(request: &SubmitRequest, uid: u32, signature: &Signature, is_named: bool) -> Class {
    let program = format!("{} {}", request.cwd, signature.script);
    let batch = signature.batch.map_or_else(String::new, |batch| batch.to_string());
    let command = format!("{:016x} {batch} {}", signature.program, signature.length);
    let class = Class::of(&uid.to_string(), &program, &command);
    // `python -c`, `make` and the like run anything under one name. The key of the command, which is stored, stays what it was.
    let class = Class { program: if is_named { class.program } else { class.user }, ..class };
    let class = match signature.iterations.filter(|_| is_named) {
        Some(iterations) => {
            let any_length = format!("{:016x} {batch} {}", signature.program, signature.of_any_length);
            class.of_length(&any_length, iterations)
        }
        None => class,
    };
    match signature.shared.filter(|_| is_named) {
        Some(shared) => class.shared_as(&format!("{shared:016x} {batch} {}", signature.length)),
        None => Class { shared: class.program, ..class },
    }
}

/// FNV-1a over user, command and directory: stable across versions of carma and of the compiler, since it
/// is kept in the journal. Options that change nothing of what the command does to a GPU are left out: trainings that
/// differ in their learning rate alone have one key. What is learned of a command is believed of its user's jobs alone: another could say
/// anything of the same one.
fn command_key(request: &SubmitRequest, uid: u32) -> u64 {
    key(request, uid, &doing(&request.command))
}

/// The same over user, program and directory.
fn program_key(request: &SubmitRequest, uid: u32, program: String) -> u64 {
    key(request, uid, &[program])
}

fn key(request: &SubmitRequest, uid: u32, parts: &[String]) -> u64 {
    let mut hash = FnvHasher::default();
    hash.write(&uid.to_le_bytes());
    for part in parts.iter().chain([&request.cwd]) {
        hash.write(part.as_bytes());
        hash.write(&[0]);
    }
    // On several GPUs a command does something else to each. What is stored of commands on one keeps its key.
    if let Some(gpus) = request.gpus.filter(|gpus| *gpus > 1) {
        hash.write(&gpus.to_le_bytes());
    }
    hash.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_on_several_gpus_is_another() {
        let key = |gpus| {
            let command = vec!["t.py".into()];
            command_key(&SubmitRequest { command, cwd: "/".into(), gpus, ..Default::default() }, 7)
        };
        assert_eq!(key(None), key(Some(1)));
        assert!(key(Some(2)) != key(Some(1)) && key(Some(2)) != key(Some(4)));
        let program = |gpus| {
            let command = ["python", "t.py"].map(str::to_owned).to_vec();
            Gist::of(&SubmitRequest { command, cwd: "/".into(), gpus, ..Default::default() }, 7).program_key
        };
        assert_eq!(program(None), program(Some(1)));
        assert_ne!(program(None), program(Some(2)));
        // It is stored.
        assert_eq!(key(None), 0x5194_9bca_3b6c_1252);
    }
}

//! One line for each act and each refusal, to whom the daemon's log goes: who, what, which job, what came of it.
//!
//! The target is `audit`, so that a filter can keep or drop the lines. Nothing of a user's own is in them: no command,
//! name of a job, directory, path, environment, line of a log or text of an error.

use crate::messages::{Order, Peer};
use crate::refused::Refused;
use carma_api::parse::ranges;
use carma_core::input::Input;
use carma_core::model::{Finished, JobId, Phase};
use carma_core::state::State;
use carma_core::units::Millis;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The target of the lines.
pub const TARGET: &str = "audit";

/// How often, at most, connections of one user that are refused are told.
pub const CONNECTIONS_EVERY: Duration = Duration::from_secs(10);

/// Refusals of one user that are told one by one in [`REFUSED_EVERY`]; further ones are counted. Some thousand a second would else push all
/// other lines out of a log that is bounded.
const MOST_REFUSED: u32 = 100;
const REFUSED_EVERY: Duration = Duration::from_secs(10);

/// Users whose refusals are counted; beyond that all begin anew.
const MOST_USERS: usize = 4096;

/// What was refused to each user lately.
static REFUSED: Mutex<BTreeMap<u32, Refusals>> = Mutex::new(BTreeMap::new());

/// What was refused to a user lately.
struct Refusals {
    since: Instant,
    told: u32,
    left_out: u64,
}

impl Refusals {
    const fn new(since: Instant) -> Self {
        Self { since, told: 0, left_out: 0 }
    }

    /// Whether one more is told, and how many were left out before it.
    fn tell(&mut self, now: Instant) -> Option<u64> {
        if now.duration_since(self.since) >= REFUSED_EVERY {
            (self.since, self.told) = (now, 0);
        }
        if self.told >= MOST_REFUSED {
            self.left_out += 1;
            return None;
        }
        self.told += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

/// Whether a refusal of a user is told, and how many of that user's were left out before it.
fn tells_refusal(uid: u32) -> Option<u64> {
    let now = Instant::now();
    let mut refused = REFUSED.lock().unwrap_or_else(PoisonError::into_inner);
    if refused.len() >= MOST_USERS && !refused.contains_key(&uid) {
        refused.clear();
    }
    refused.entry(uid).or_insert(Refusals::new(now)).tell(now)
}

/// Something that a user asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// A job is submitted.
    Submit,
    /// An order is given.
    Order(Order),
    /// A probe of a CUDA context on this GPU is handed in.
    Context(u32),
}

impl Act {
    const fn name(self) -> &'static str {
        match self {
            Self::Submit => "submit",
            Self::Order(Order::Cancel(_)) => "cancel",
            Self::Order(Order::Hold(_)) => "hold",
            Self::Order(Order::Release(_)) => "release",
            Self::Order(Order::Requeue(_)) => "requeue",
            Self::Order(Order::Suspend(_)) => "suspend",
            Self::Order(Order::Unsuspend(_) | Order::Resume(_)) => "resume",
            Self::Order(Order::Move(..)) => "move",
            Self::Order(Order::Drain(_)) => "drain",
            Self::Context(_) => "context",
        }
    }

    /// The job or the GPU that it is about.
    const fn about(self) -> (Option<u64>, Option<u32>) {
        match self {
            Self::Submit => (None, None),
            Self::Order(
                Order::Cancel(job)
                | Order::Hold(job)
                | Order::Release(job)
                | Order::Requeue(job)
                | Order::Suspend(job)
                | Order::Unsuspend(job),
            ) => (Some(job.0), None),
            Self::Order(Order::Move(job, gpu)) => (Some(job.0), gpu),
            Self::Order(Order::Drain(gpu) | Order::Resume(gpu)) | Self::Context(gpu) => (None, Some(gpu)),
        }
    }
}

/// What came of something that a user asked for. `done`: the number of the job that it made or was about.
pub fn asked(peer: &Peer, act: Act, result: Result<u64, &Refused>) {
    let (job, gpu) = act.about();
    let job = match (act, result) {
        (Act::Submit | Act::Order(Order::Requeue(_)), Ok(made)) => Some(made),
        _ => job,
    };
    tell(peer, act, About { job, jobs: None, gpu }, result.err().map(how));
}

/// The same of several jobs in one request: a line for those for which it was done, and one for each way in which it was refused. A line for
/// each job would let one request push all other lines out of a log that is bounded.
pub fn asked_of_several<T>(peer: &Peer, act: Act, outcomes: &[(JobId, Result<T, Refused>)]) {
    let mut alike: BTreeMap<Option<(u16, &str)>, Vec<u64>> = BTreeMap::new();
    for (job, outcome) in outcomes {
        alike.entry(outcome.as_ref().err().map(how)).or_default().push(job.0);
    }
    for (refused, jobs) in alike {
        tell(peer, act, About { job: None, jobs: Some(ranges(jobs)), gpu: None }, refused);
    }
}

/// By which status and code something was refused.
const fn how(refused: &Refused) -> (u16, &str) {
    (refused.status, refused.code)
}

/// Copies of a job were submitted in one request.
pub fn submitted(peer: &Peer, jobs: impl Iterator<Item = u64>) {
    let jobs = Some(ranges(jobs.collect()));
    tell(peer, Act::Submit, About { job: None, jobs, gpu: None }, None);
}

/// What a line is about.
struct About {
    job: Option<u64>,
    /// Several, as ranges.
    jobs: Option<String>,
    gpu: Option<u32>,
}

fn tell(peer: &Peer, act: Act, About { job, jobs, gpu }: About, refused: Option<(u16, &str)>) {
    let (act, uid, user, pid) = (act.name(), peer.user.uid, &*peer.user.name, peer.pid);
    let operator = peer.user.operator.then_some(true);
    let Some((status, code)) = refused else {
        tracing::info!(target: TARGET, act, uid, user, pid, operator, job, jobs, gpu, outcome = "done", "audit");
        return;
    };
    let Some(left_out) = tells_refusal(uid) else { return };
    let left_out = (left_out > 0).then_some(left_out);
    tracing::warn!(
        target: TARGET, act, uid, user, pid, operator, job, jobs, gpu, outcome = "refused", code, status, left_out, "audit"
    );
}

/// What happened to jobs and is on disk: launches, exits, ends.
pub fn happened(state: &State, inputs: &[(Millis, Input)], finished: &[Finished]) {
    let owner = |job: JobId| {
        let live = state.job(job).map(|job| &job.spec.user);
        live.or_else(|| {
            finished.iter().map(|f| &f.job.spec).find(|spec| spec.id == job).map(|spec| &spec.user)
        })
    };
    // What a daemon finds running when it starts is told again with a later time.
    let found = |job: JobId, at: Millis| {
        let phase = state.job(job).map(|job| &job.phase);
        matches!(phase, Some(Phase::Running { started, .. }) if *started < at)
    };
    for (at, input) in inputs {
        let (act, job, attempt, outcome) = match input {
            Input::Started { job, attempt, .. } if found(*job, *at) => {
                ("adopt", *job, *attempt, "found running".to_owned())
            }
            Input::Started { job, attempt, .. } => ("launch", *job, *attempt, "started".to_owned()),
            Input::LaunchFailed { job, attempt, transient, .. } => {
                let outcome = if *transient { "failed, the machine's fault" } else { "failed" };
                ("launch", *job, *attempt, outcome.to_owned())
            }
            Input::Exited { job, attempt, exit } if exit.not_started.is_some() => {
                ("launch", *job, *attempt, "the command was not started".to_owned())
            }
            Input::Suspended { job, attempt, .. } => ("suspend", *job, *attempt, "suspended".to_owned()),
            Input::Resumed { job, attempt } => ("resume", *job, *attempt, "runs again".to_owned()),
            Input::SuspendFailed { job, attempt, stuck, .. } => {
                let outcome = if *stuck { "stuck" } else { "failed" };
                ("suspend", *job, *attempt, outcome.to_owned())
            }
            Input::Exited { job, attempt, exit } => ("exit", *job, *attempt, exit.status.to_string()),
            _ => continue,
        };
        let (uid, user) = owner(job).map(|user| (user.uid, &*user.name)).unzip();
        tracing::info!(target: TARGET, act, uid, user, job = job.0, attempt, outcome, "audit");
    }
    for Finished { job, state, reason, .. } in finished {
        let (user, outcome, code) = (&job.spec.user, state.as_str(), reason.code());
        tracing::info!(
            target: TARGET, act = "end", uid = user.uid, user = &*user.name, job = job.spec.id.0, outcome, code, "audit"
        );
    }
}

/// Connections of a user that were refused or closed since the last line about that user.
pub fn connections(uid: u32, pid: Option<i32>, refused: u64, closed: u64, held: usize) {
    tracing::warn!(
        target: TARGET, act = "connect", uid, pid, refused, closed, held, outcome = "refused", code = "too_many_connections",
        "audit"
    );
}

#[cfg(test)]
mod tests {
    use super::{MOST_REFUSED, REFUSED_EVERY, Refusals};
    use std::time::{Duration, Instant};

    #[test]
    fn of_very_many_refusals_some_are_told_and_the_others_counted() {
        let begin = Instant::now();
        let mut of = Refusals::new(begin);
        let told = (0..1000).filter(|_| of.tell(begin + Duration::from_secs(1)).is_some()).count();
        assert_eq!(told, MOST_REFUSED as usize);
        assert_eq!(of.tell(begin + REFUSED_EVERY), Some(900), "with the next that is told");
        assert_eq!(of.tell(begin + REFUSED_EVERY), Some(0));
    }
}

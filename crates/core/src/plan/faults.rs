//! Verdicts on fatal faults under MPS: every client of the server dies of one, so the culprit is inferred.
//!
//! What a verdict does to a job is the state's.

use super::Plan;
use crate::explain::Reason;
use crate::input::Action;
use crate::model::{Exit, Job, JobId, JobState, Phase, Placement, SharingMode};
use crate::policy::Options;
use crate::recovery::EvidenceKind;
use crate::state::State;
use crate::units::Millis;
use std::sync::Arc;

/// A job that died of a fatal fault under MPS.
struct Fallen<'a> {
    job: &'a Job,
    placement: &'a Placement,
    at: Millis,
    exit: &'a Exit,
}

/// How far ahead of all others the first to report must be for that to mean something. Measured on an
/// H200: culprit and victims report within 0.08 s of each other, victims first.
const CLEAR_LEAD: Millis = Millis::secs(1);

impl Fallen<'_> {
    fn line(&self) -> String {
        self.exit.evidence.as_ref().map_or_else(String::new, |e| e.line.clone())
    }

    /// Whether its own log names the fault, rather than an error that may be an echo of it.
    fn names_fault(&self) -> bool {
        self.exit.evidence.as_ref().is_some_and(|e| e.kind == EvidenceKind::FatalGpuFault)
    }

    /// How long it had run without fault.
    fn ran(&self) -> Millis {
        self.at.since(self.job.past.last().and_then(|a| a.started).unwrap_or(self.at))
    }
}

/// Verdicts on faults under MPS. Every client of the server dies of it, so the culprit is inferred: see
/// [`culprit`].
pub(super) fn judge_faults(state: &State, now: Millis, plan: &mut Plan) {
    let options = state.options();
    let mut fallen: Vec<Fallen<'_>> = Vec::new();
    for job in state.judging().iter().filter_map(|id| state.job(*id)) {
        if let Phase::Judging { placement, exit, at } = &job.phase {
            fallen.push(Fallen { job, placement, at: *at, exit });
        }
    }
    fallen.sort_by_key(|f| (f.at, f.job.spec.id));
    while !fallen.is_empty() {
        let first = fallen.remove(0);
        let (mut group, rest): (Vec<_>, Vec<_>) = fallen.into_iter().partition(|other| {
            same_server(options, first.job, first.placement, other.job, other.placement)
                && other.at.since(first.at) <= options.fault_window
        });
        fallen = rest;
        let still_running = state.active().iter().filter_map(|id| state.job(*id)).any(|other| {
            matches!(&other.phase, Phase::Running { placement, .. } | Phase::Launching { placement, .. }
                if same_server(options, first.job, first.placement, other, placement))
        });
        let due = first.at + options.fault_window;
        if still_running && now < due {
            plan.wake_at(due);
            continue;
        }
        group.insert(0, first);
        verdicts(state, &group, plan);
        // Victims are pending from then on: they want a plan of their own.
        plan.wake_at(now);
    }
}

/// Whether two jobs were clients of one MPS server on some GPU.
fn same_server(options: &Options, a: &Job, pa: &Placement, b: &Job, pb: &Placement) -> bool {
    pa.sharing == SharingMode::Mps
        && pb.sharing == SharingMode::Mps
        && (options.mps_multi_user || a.spec.user.uid == b.spec.user.uid)
        && pa.gpus.iter().any(|g| pb.gpus.contains(g))
}

/// The likely culprit and why: the command that has faulted before, else the first to report if it was
/// well ahead, else the job that had run for the shortest time, since the others have shown for longer
/// that they do not fault. The wording of the error tells nothing: it depends on the call that noticed.
fn culprit<'a, 'b>(state: &State, group: &'b [Fallen<'a>]) -> Option<(&'b Fallen<'a>, Arc<str>)> {
    let faults = |f: &Fallen<'_>| state.faults_of(f.job.spec.command_key);
    let most = group.iter().map(faults).max()?;
    let worst: Vec<&Fallen<'_>> = group.iter().filter(|f| faults(f) == most).collect();
    let first = *worst.first()?;
    let because: Arc<str> = match (most, group.len()) {
        (_, 1) => "no other job died with it".into(),
        (1, _) => "its command faulted once before".into(),
        (2.., _) => format!("its command faulted {most} times before").into(),
        (0, _) => {
            if worst.get(1).is_none_or(|second| second.at.since(first.at) >= CLEAR_LEAD) {
                return Some((first, "it was the first to report".into()));
            }
            let newest = *worst.iter().min_by_key(|f| f.ran())?;
            return Some((newest, format!("it had run for the shortest time, {}", newest.ran()).into()));
        }
    };
    Some((first, because))
}

fn verdicts(state: &State, group: &[Fallen<'_>], plan: &mut Plan) {
    let Some((culprit, because)) = culprit(state, group) else {
        return;
    };
    if group.len() == 1 && !culprit.names_fault() {
        // Nobody else died: it was an error of its own.
        let reason = Reason::CommandFailed {
            status: culprit.exit.status.to_string(),
            evidence: culprit.exit.evidence.clone(),
        };
        plan.actions.push(Action::SetState { job: culprit.job.spec.id, state: JobState::Failed, reason });
        return;
    }
    let id = culprit.job.spec.id;
    let victims: Vec<JobId> = group.iter().map(|f| f.job.spec.id).filter(|v| *v != id).collect();
    for fallen in group {
        let own = fallen.job.spec.id == id;
        let reason = if own {
            Reason::FaultCulprit { line: fallen.line(), victims: victims.clone(), because: because.clone() }
        } else {
            Reason::FaultVictim { culprit: id, line: fallen.line() }
        };
        plan.actions.push(Action::SetState {
            job: fallen.job.spec.id,
            state: if own { JobState::Failed } else { JobState::Pending },
            reason,
        });
    }
}

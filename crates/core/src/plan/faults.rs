//! Verdicts on fatal faults under MPS: every client of the server dies of one, so the culprit is inferred.
//!
//! What a verdict does to a job is the state's.

use super::Plan;
use crate::explain::Reason;
use crate::input::Action;
use crate::ledger::Suspect;
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

    /// Whether it is among those that may have caused the fault, rather than one that the server refused or whose
    /// log names another error.
    fn may_have_begun(&self) -> bool {
        let kind = self.exit.evidence.as_ref().map(|e| e.kind);
        matches!(kind, Some(EvidenceKind::FatalGpuFault | EvidenceKind::GpuError))
    }

    /// Whether it ran on several GPUs and its log names another error. If it has several processes, the end of one is a fault
    /// for the other clients of its server.
    fn may_be_peers(&self) -> bool {
        self.placement.gpus.len() > 1 && !self.may_have_begun() && !self.was_refused()
    }

    fn was_refused(&self) -> bool {
        self.exit.evidence.as_ref().is_some_and(|e| e.kind == EvidenceKind::MpsRefused)
    }

    /// Whether one of its GPUs had a fault so short a time before that it may have died of it.
    fn came_after_fault(&self, state: &State) -> bool {
        let (window, server) = (state.options().fault_window, state.server_of(self.job));
        let mut faults = self.placement.gpus.iter().filter_map(|gpu| state.gpu(*gpu)?.faults.get(&server));
        faults.any(|at| *at <= self.at && self.at.since(*at) <= window)
    }

    fn started(&self) -> Millis {
        self.job.past.last().and_then(|a| a.started).unwrap_or(self.at)
    }

    /// How long it had run without fault.
    fn ran(&self) -> Millis {
        self.at.since(self.started())
    }
}

/// Verdicts on faults under MPS. Every client of the server on a GPU dies of it, and through those on several GPUs the
/// clients of those: they are judged together when all jobs that died of it are known.
pub(super) fn judge_faults(state: &State, now: Millis, plan: &mut Plan) {
    let options = state.options();
    let mut fallen: Vec<Fallen<'_>> = Vec::new();
    for job in state.judging_jobs() {
        if let Phase::Judging { placement, exit, at } = &job.phase {
            fallen.push(Fallen { job, placement, at: *at, exit });
        }
    }
    fallen.sort_by_key(|f| (f.at, f.job.spec.id));
    while !fallen.is_empty() {
        let group = together(state, &mut fallen);
        let still_running = state.active_jobs().any(|other| {
            matches!(&other.phase, Phase::Running { placement, .. } | Phase::Launching { placement, .. }
                if group.iter().any(|f| same_server(options, f.job, f.placement, other, placement)))
        });
        let due = due(options, &group);
        if still_running && now < due {
            plan.wake_at(due);
            continue;
        }
        verdicts(state, &group, plan);
        // Victims are pending from then on: they want a plan of their own.
        plan.wake_at(now);
    }
}

/// The first of those that died, and all that died with it: they shared a GPU, or one job on their GPUs may have caused it.
/// Takes them out of the list.
fn together<'a>(state: &State, fallen: &mut Vec<Fallen<'a>>) -> Vec<Fallen<'a>> {
    let options = state.options();
    let mut group = vec![fallen.remove(0)];
    loop {
        let with = |one: &Fallen<'_>, other: &Fallen<'_>| {
            let apart = one.at.since(other.at).max(other.at.since(one.at));
            let suspected = || suspects(state, one).any(|a| suspects(state, other).any(|b| a.job == b.job));
            apart <= options.fault_window
                && (same_server(options, one.job, one.placement, other.job, other.placement) || suspected())
        };
        let (more, rest): (Vec<_>, Vec<_>) =
            std::mem::take(fallen).into_iter().partition(|other| group.iter().any(|one| with(one, other)));
        *fallen = rest;
        if more.is_empty() {
            group.sort_by_key(|f| (f.at, f.job.spec.id));
            return group;
        }
        group.extend(more);
    }
}

/// When the verdict is due though some clients run on. Where several have died and the log of one names the fault, it is
/// one, and the others have had time to die of it. One alone may be followed by others for longer.
fn due(options: &Options, group: &[Fallen<'_>]) -> Millis {
    let (first, last) =
        (group.first().map_or(Millis::ZERO, |f| f.at), group.last().map_or(Millis::ZERO, |f| f.at));
    let latest = first + options.fault_window;
    if group.len() > 1 && group.iter().any(Fallen::names_fault) {
        latest.min(last + options.mps_cooldown)
    } else {
        latest
    }
}

/// Whether two jobs were clients of one MPS server on some GPU.
fn same_server(options: &Options, a: &Job, pa: &Placement, b: &Job, pb: &Placement) -> bool {
    pa.sharing == SharingMode::Mps
        && pb.sharing == SharingMode::Mps
        && options.server_of(a.spec.user.uid) == options.server_of(b.spec.user.uid)
        && pa.gpus.iter().any(|g| pb.gpus.contains(g))
}

/// The likely culprit and why: the command that has faulted before, else the job that has died of most faults beside others of which none
/// has shown one of its own since, else the first to report if it was
/// well ahead, else the job that had run for the shortest time, since the others have shown for longer
/// that they do not fault. The wording of the error tells nothing: it depends on the call that noticed.
fn likeliest<'a, 'b>(state: &State, group: &[&'b Fallen<'a>]) -> Option<(&'b Fallen<'a>, Arc<str>)> {
    let faults = |f: &Fallen<'_>| state.faults_of(f.job.spec.command_key);
    let most = group.iter().map(|f| faults(f)).max()?;
    let mut worst: Vec<&Fallen<'_>> = group.iter().copied().filter(|f| faults(f) == most).collect();
    // It is there each time, and those around it are others: by how long they have run alone, the newcomer would be blamed each time.
    let died = |f: &Fallen<'_>| state.unexplained_faults_of(f.job);
    let deaths = worst.iter().map(|f| died(f)).max()?;
    worst.retain(|f| died(f) == deaths);
    let first = *worst.first()?;
    let because: Arc<str> = match (most, group.len()) {
        (_, 1) => "no other job died of it".into(),
        (1, _) => "its command faulted once before".into(),
        (2.., _) => format!("its command faulted {most} times before").into(),
        (0, _) if deaths > 0 && worst.len() == 1 => match deaths {
            1 => "it died of a fault beside others before".into(),
            _ => format!("it died of {deaths} faults beside others before").into(),
        },
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

/// Jobs that ended shortly before it or with it, and may have torn down its server: see [`Suspect`].
fn suspects<'s>(state: &'s State, f: &Fallen<'_>) -> impl Iterator<Item = &'s Suspect> {
    let options = state.options();
    let (at, started, server) = (f.at, f.started(), state.server_of(f.job));
    let gpus: Vec<_> = f.placement.gpus.iter().filter_map(|gpu| state.gpu(*gpu)).collect();
    gpus.into_iter().flat_map(|gpu| &gpu.suspects).filter(move |suspect| {
        let apart = at.since(suspect.at).max(suspect.at.since(at));
        options.server_of(suspect.uid) == server && apart <= options.fault_window && started <= suspect.at
    })
}

/// The first of those to end.
fn ended_before(state: &State, group: &[Fallen<'_>]) -> Option<JobId> {
    let all = group.iter().flat_map(|f| suspects(state, f));
    all.min_by_key(|suspect| (suspect.at, suspect.job)).map(|suspect| suspect.job)
}

/// A job that died alone of a fault has failed. Of several the culprit is not known, neither from their logs nor from the
/// server's: the likeliest runs again where only its own fault can end it, the others as before.
fn verdicts(state: &State, group: &[Fallen<'_>], plan: &mut Plan) {
    let ended_before = ended_before(state, group);
    let began: Vec<&Fallen<'_>> = group.iter().filter(|f| f.may_have_begun()).collect();
    let faulted = group.iter().any(|f| f.names_fault() || f.was_refused()) || began.len() > 1;
    let peers = group.iter().find(|f| f.may_be_peers());
    let peers = peers.map(|f| (f, "it ran on several GPUs, and its log names another error".into()));
    let likeliest = peers.or_else(|| likeliest(state, &began)).filter(|_| ended_before.is_none() && faulted);
    // A fault was seen on one of their GPUs, and the jobs whose logs name it may be judged already.
    let noticed = group.iter().any(|f| f.came_after_fault(state));
    let culprit = ended_before.or_else(|| likeliest.as_ref().map(|(f, _)| f.job.spec.id));
    for fallen in group {
        let id = fallen.job.spec.id;
        let line = fallen.line();
        let others = || group.iter().map(|f| f.job.spec.id).filter(|other| *other != id).collect();
        let only = group.iter().all(|f| f.job.spec.id == id || f.was_refused());
        let (state, reason) = match &likeliest {
            Some((one, because)) if one.job.spec.id == id && only && one.names_fault() => {
                let because = because.clone();
                (JobState::Failed, Reason::FaultCulprit { line, victims: others(), because })
            }
            Some((one, because)) if one.job.spec.id == id => {
                (JobState::Pending, Reason::FaultSuspect { line, others: others(), because: because.clone() })
            }
            _ if (culprit.is_some() && (faulted || noticed)) || fallen.was_refused() => {
                (JobState::Pending, Reason::FaultVictim { culprit, line })
            }
            // No fault was seen: the error is the job's own.
            _ => {
                let (status, evidence) = (fallen.exit.status.to_string(), fallen.exit.evidence.clone());
                (JobState::Failed, Reason::CommandFailed { status, evidence })
            }
        };
        plan.actions.push(Action::SetState { job: id, state, reason });
    }
}

//! Why a job waits and what would help, or why it went where it went and what it keeps there. Pure, as [`crate::view`] is.

use crate::journal::StoredJob;
use crate::run::pace::Counts;
use crate::run_time;
use crate::slowdown::settled_at;
use crate::view::{Asker, OfJob, Subject, attempts, indices};
use carma_api::VERSION;
use carma_api::wire::{
    EndView, ExplainReply, GpuVerdict, LeftView, NeighbourView, ProgressView, RateView, RelievedView,
    RunningView, SoonerView, TimeView, WaitingView,
};
use carma_core::explain::{Help, OfTheGpu, Reason, Refusal, Soon, Sooner, UserLimit};
use carma_core::ledger::Gpu;
use carma_core::model::{Job, JobId, Phase, Placement, SharingMode};
use carma_core::plan::{Answer, Spared, makes_room_for};
use carma_core::policy::{Line, RecoveryMethod};
use carma_core::state::State;
use carma_core::units::{Fraction, MiB, Millis};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

/// Why a job waits, or why it went where it went. `stored`: what was submitted. `took`: what runs of its command take at most, also
/// where more is declared of it; zero: not known.
#[must_use]
pub fn explain(of: OfJob<'_>, stored: Option<&StoredJob>, took: MiB) -> ExplainReply {
    let OfJob { asker, state, now, subject, rate, live } = of;
    let (job, counts) = (subject.job(), live.counts);
    let id = job.spec.id;
    let waits = subject.waits(state, now);
    let row = subject.row(asker, state, now, live, waits.as_ref());
    let may_read = asker.may_read(&job.spec.user);
    let mut reply = ExplainReply {
        version: VERSION,
        now_ms: now.0,
        policy: state.options().policy.name.clone(),
        estimate: stored.and_then(|s| s.estimate.clone()),
        waiting: None,
        gpus: Vec::new(),
        sooner: Vec::new(),
        running: None,
        attempts: attempts(asker, state, job, &row, live),
        job: row,
        // Of the engine, not of the job.
        unwritten: None,
    };
    match (&subject, &job.phase) {
        (Subject::Live(_), Phase::Pending) => {
            let mut answers = carma_core::plan::answers(state, now, job);
            answers.sort_by_key(|answer| answer.gpu);
            let unusable: BTreeSet<u32> =
                answers.iter().filter(|answer| is_unusable(answer)).map(|answer| answer.gpu).collect();
            // Where others keep it out no GPU is asked.
            let asks = !matches!(waits, Some(Reason::UserLimit { .. } | Reason::Later { .. }));
            let asked = answers.into_iter().filter(|_| asks);
            reply.gpus = asked.map(|answer| verdict(answer, may_read)).collect();
            let mut ends = ends(asker, state, now, counts);
            ends.retain(|(id, _)| waits.as_ref().is_none_or(|waits| may_help(state, *id, job, waits)));
            let order: Vec<JobId> = ends.iter().map(|(id, _)| *id).collect();
            let found = carma_core::plan::sooner(state, now, job, &order, took);
            let time = waits.as_ref().and_then(|waits| waits.soon(now)).map(time);
            // What comes by time alone needs no end.
            let end = end(state, id, &unusable, &ends, &found).filter(|end| time.is_none() || end.makes_room);
            reply.waiting =
                waiting(asker, state, now, job).map(|waiting| WaitingView { end, time, ..waiting });
            reply.sooner = found.iter().filter_map(sooner).collect();
        }
        (Subject::Live(_), Phase::Running { placement, .. }) if !job.is_off() => {
            reply.running = Some(running(state, now, job, placement, (rate.as_ref(), counts)));
        }
        (Subject::Live(_), Phase::Running { .. }) => {
            if let Some(back) = returning(asker, state, now, job, counts) {
                reply.gpus = back.answers.into_iter().map(|answer| verdict(answer, may_read)).collect();
                reply.waiting = Some(back.waiting);
            }
        }
        _ => {}
    }
    if may_read { reply } else { strangers_explanation(reply) }
}

/// What is said of a suspended job that is to come back.
struct Returning {
    /// What the GPUs say that it could come back to.
    answers: Vec<Answer>,
    waiting: WaitingView,
}

/// A suspended job that is to come back: it is in no queue, and goes before all that are. `None`: it is not to, or stands still for
/// now.
fn returning(asker: Asker<'_>, state: &State, now: Millis, job: &Job, counts: &Counts) -> Option<Returning> {
    let id = job.spec.id;
    let suspension = job.suspension().filter(|suspension| suspension.is_off())?;
    let since = suspension.wanted.as_ref()?.at;
    let reason = carma_core::plan::stays_off(state, now, id)?;
    let answers = answers_to_return(state, job, &reason);
    let asked = |job: &Job| Some((job.suspension().filter(|s| s.is_off())?.wanted.as_ref()?.at, job.spec.id));
    let halted = state.halted_jobs().filter(|job| job.ending().is_none());
    let others: Vec<_> = halted.filter_map(asked).collect();
    // Ends on other GPUs do not help it.
    let could: BTreeSet<u32> =
        answers.iter().filter(|answer| !is_unusable(answer)).map(|answer| answer.gpu).collect();
    let ends = ends(asker, state, now, counts);
    Some(Returning {
        answers,
        waiting: WaitingView {
            place: others.iter().filter(|other| **other < (since, id)).count() as u64 + 1,
            of: others.len() as u64,
            since_ms: since.0,
            order: "return".to_owned(),
            why: "suspended jobs that come back go before all that wait".to_owned(),
            run_s: job.spec.run_s(),
            end: end_for_return(state, now, job, &could, &ends),
            ..WaitingView::default()
        },
    })
}

/// What GPUs say to a job that comes back, by why the plan leaves it where it is. Those that it does not come back to, which are of another
/// type or not its own, are not among them.
fn answers_to_return(state: &State, job: &Job, reason: &Reason) -> Vec<Answer> {
    let why = match reason {
        Reason::SetAside { waits: Some(why), .. } => why,
        reason => reason,
    };
    let Reason::NoGpu { need, detail, .. } = why else { return Vec::new() };
    let answer = |(index, refusal): &(u32, Refusal)| {
        let gpu = state.gpus().iter().find(|gpu| gpu.present && gpu.info.index == *index)?;
        Some(Answer {
            gpu: *index,
            free: gpu.free(state.options().policy.reserve),
            need: *need,
            jobs: gpu.tenants.iter().map(|tenant| tenant.job).filter(|id| *id != job.spec.id).collect(),
            foreign: u32::try_from(gpu.foreign().len()).unwrap_or(u32::MAX),
            refusal: Some(refusal.clone()),
            predicted: Vec::new(),
            gain: None,
        })
    };
    let mut answers: Vec<Answer> = detail.refusals.iter().filter_map(answer).collect();
    answers.sort_by_key(|answer| answer.gpu);
    answers
}

/// The end that a job waits for that is to come back: one after which it does, else the first that is expected on the GPUs that it could have
/// (by index).
fn end_for_return(
    state: &State,
    now: Millis,
    job: &Job,
    could: &BTreeSet<u32>,
    ends: &[(JobId, Option<LeftView>)],
) -> Option<EndView> {
    let there = |id: JobId| {
        let gpus = gpus_of(state, state.job(id).filter(|job| !job.is_off())?);
        gpus.iter().any(|gpu| could.contains(gpu)).then_some(gpus)
    };
    let there: Vec<_> = ends.iter().filter_map(|(id, left)| Some((*id, there(*id)?, left))).collect();
    let order: Vec<JobId> = there.iter().map(|(id, ..)| *id).collect();
    let found = carma_core::plan::sooner(state, now, job, &order, MiB::ZERO);
    let (waits_for, starts_on) = match helpful_end(&found) {
        Some((job, starts_on)) => (there.iter().find(|(id, ..)| *id == job), starts_on.to_vec()),
        None => (there.iter().find(|(.., left)| left.is_some()), Vec::new()),
    };
    let (id, gpus, left) = waits_for?;
    // It goes before all that wait, whatever is learned of them.
    Some(EndView {
        job: id.0,
        gpus: gpus.clone(),
        makes_room: false,
        left: (*left).clone(),
        starts_on,
        unknown: 0,
    })
}

/// An explanation as others see it. Row, answers and attempts are made for the asker already; the rest is numbers and
/// carma's own words.
fn strangers_explanation(mut reply: ExplainReply) -> ExplainReply {
    let ExplainReply {
        version: _,
        now_ms: _,
        job: _,
        policy: _,
        // Its reasons may name the model and its files.
        estimate,
        waiting: _,
        gpus: _,
        sooner: _,
        running: _,
        attempts: _,
        unwritten: _,
    } = &mut reply;
    *estimate = None;
    reply
}

/// Its place in the queue, and why it has it. `None`: it is not there.
fn waiting(asker: Asker<'_>, state: &State, now: Millis, job: &Job) -> Option<WaitingView> {
    let policy = &state.options().policy;
    let (queue, id) = (state.queue(), job.spec.id);
    let before = queue.line(now).position(|(key, _)| key.id == id)?;
    let by_length = policy.line.is_by_length();
    let due = state.bound_on_start(job, now).filter(|_| by_length);
    // For one that a limit of its user keeps out no GPUs are kept.
    let free = state.is_free_to_start(job);
    Some(WaitingView {
        place: before as u64 + 1,
        of: queue.len() as u64,
        since_ms: job.queued.0,
        order: match policy.line {
            Line::Arrival => "arrival",
            Line::Shortest => "shortest",
            Line::Longest => "longest",
        }
        .to_owned(),
        why: why_there(asker, state, now, job),
        run_s: job.spec.run_s(),
        // One that rests on a guess, or on the hour that is assumed where nothing is known, is no time to tell.
        due_ms: due.filter(|_| rests_on_more_than_a_guess(job)).map(|due| due.0),
        stands: by_length && job.due.is_some() && due.is_none(),
        overdue: by_length && free && state.is_overdue(job, now),
        urgent: by_length && free && job.is_urgent(),
        end: None,
        time: None,
    })
}

/// Whether its place in the queue goes by what its own command, its program or its user says of its run time.
fn rests_on_more_than_a_guess(job: &Job) -> bool {
    match job.spec.told_run() {
        Some(run) => !run.is_guess(),
        None => job.spec.request.time_limit.is_some(),
    }
}

fn time(soon: Soon) -> TimeView {
    // What is left of a second is one, so that 0 says now.
    TimeView { text: soon.what, left_s: soon.left.map(|left| left.0.div_ceil(1000)) }
}

/// What gives it its place.
fn why_there(asker: Asker<'_>, state: &State, now: Millis, job: &Job) -> String {
    let policy = &state.options().policy;
    let key = job.queue_key(policy.line);
    let mut words = Vec::new();
    if policy.line.is_by_length() && state.is_overdue(job, now) {
        words.push("over the bound on its start, such jobs first".to_owned());
    }
    words.extend(behind(state, now, job));
    if key.recovery.0 {
        words.push("tried again, such jobs first".to_owned());
    }
    if job.spec.request.priority != 0 {
        words.push(format!("priority {}", job.spec.request.priority));
    }
    words.push(match policy.line {
        Line::Shortest | Line::Longest => {
            let first = if policy.line == Line::Shortest { "shortest" } else { "longest" };
            let gpus = job.spec.request.gpus;
            format!(
                "{first} first: {} on {gpus} GPU{} ({})",
                Millis::secs(job.spec.run_s()),
                if gpus == 1 { "" } else { "s" },
                match (job.spec.told_run(), job.spec.request.time_limit) {
                    (Some(run_time), _) if run_time.is_guess() => {
                        format!("a guess: {}", asker.source(&job.spec.user, run_time))
                    }
                    (Some(run_time), _) => asker.source(&job.spec.user, run_time),
                    (None, Some(_)) => "its time limit".to_owned(),
                    (None, None) => "taken where nothing is known".to_owned(),
                }
            )
        }
        // They wait without blocking others, however long.
        Line::Arrival if key.recovery.0 => "first come, first served".to_owned(),
        Line::Arrival => match policy.backfill {
            None => "first come, first served, none overtakes".to_owned(),
            Some(limit) => format!("first come, first served; overtaken for {limit} at most"),
        },
    });
    words.join("; ")
}

/// Of a long line, whose jobs are before it.
fn behind(state: &State, now: Millis, job: &Job) -> Option<String> {
    let line = state.queue().line(now);
    let mut users: BTreeMap<&str, usize> = BTreeMap::new();
    for (_, before) in line.take_while(|(key, _)| key.id != job.spec.id) {
        *users.entry(&before.spec.user.name).or_default() += 1;
    }
    whose(&users, &job.spec.user.name)
}

/// Whose so many jobs are, where they are many. `own`: the user of the job behind them.
fn whose(users: &BTreeMap<&str, usize>, own: &str) -> Option<String> {
    const LONG: usize = 10;
    let before: usize = users.values().sum();
    let (most_of, most) =
        users.iter().max_by_key(|(_, number)| **number).map(|(user, most)| (*user, *most))?;
    let owns = users.get(own).copied().filter(|_| most_of != own).unwrap_or(0);
    let of = if most_of == own { "its user" } else { most_of };
    let mut words = format!("behind {most} jobs of {of}");
    let rest = [(owns, "its user"), (before - most - owns, "others")];
    let rest: Vec<_> = rest.into_iter().filter(|(number, _)| *number > 0).collect();
    for (at, (number, of)) in rest.iter().enumerate() {
        let joint = if at + 1 < rest.len() { "," } else { " and" };
        let _ = write!(words, "{joint} {number} of {of}");
    }
    (before >= LONG).then_some(words)
}

/// Whether the job cannot have a GPU even if all that is on it ends.
fn is_unusable(answer: &Answer) -> bool {
    let of_the_gpu = answer.refusal.as_ref().and_then(Refusal::of_the_gpu);
    matches!(of_the_gpu, Some(OfTheGpu::OutOfUse | OfTheGpu::Unsuited))
}

fn verdict(answer: Answer, may_read: bool) -> GpuVerdict {
    let Answer { gpu, free, need, jobs, foreign, refusal, predicted, gain } = answer;
    let refusal = refusal.map(|refusal| if may_read { refusal } else { refusal.public() });
    let (fits, text, cause, brief) = match refusal {
        Some(refusal) => (false, refusal.to_string(), refusal.cause().to_owned(), refusal.brief()),
        None => {
            let text = format!("would do: {} free", free.unwrap_or_default());
            (true, text, "would do".to_owned(), "would do".to_owned())
        }
    };
    let progress = |job: JobId, progress: Fraction| ProgressView { job: job.0, progress_pct: pct(progress) };
    GpuVerdict {
        gpu,
        fits,
        text,
        cause,
        brief,
        free_mib: free.map(|m| m.0),
        need_mib: need.map(|m| m.0),
        jobs: jobs.into_iter().map(|job| job.0).collect(),
        foreign,
        predicted: predicted.into_iter().map(|task| progress(task.job, task.expected)).collect(),
        gain_pct: gain.map(pct),
    }
}

/// Whole percents.
const fn pct(fraction: Fraction) -> u32 {
    fraction.0 / 100
}

/// Whether the end of a running job may be what a job waits for: at a limit of its user only those of that user's are, and none where a quota is
/// used up.
fn may_help(state: &State, running: JobId, job: &Job, waits: &Reason) -> bool {
    match waits {
        Reason::UserLimit { limit: UserLimit::Jobs { .. } | UserLimit::Gpus { .. }, .. } => {
            state.job(running).is_some_and(|other| other.spec.user.uid == job.spec.user.uid)
        }
        Reason::UserLimit { limit: UserLimit::GpuHours { .. } | UserLimit::Energy { .. }, .. } => false,
        _ => true,
    }
}

/// Running jobs, those that are expected to end first before the others, and those of which nothing is known last.
fn ends(asker: Asker<'_>, state: &State, now: Millis, counts: &Counts) -> Vec<(JobId, Option<LeftView>)> {
    let running = state.active_jobs();
    let running = running.filter(|job| matches!(job.phase, Phase::Running { .. }));
    let left = |job: &Job| run_time::left(asker.source_for(job), state, job, counts, now);
    let mut ends: Vec<_> = running.map(|job| (job.spec.id, left(job))).collect();
    ends.sort_by_key(|(id, left)| (left.is_none(), left.as_ref().map(|left| left.left_s), *id));
    ends
}

/// The end that a job waits for: the last of those that make room for it, else one that lets it start, else the first that is
/// expected of those on GPUs that it could have. `unusable`: indices of the others.
fn end(
    state: &State,
    waits: JobId,
    unusable: &BTreeSet<u32>,
    ends: &[(JobId, Option<LeftView>)],
    found: &[Sooner],
) -> Option<EndView> {
    let helps = helpful_end(found);
    let maker = last_maker(state, waits, ends);
    let job =
        state.job(maker.or(helps.map(|(job, _)| job)).or_else(|| first_expected(state, unusable, ends))?)?;
    let id = job.spec.id;
    // One that is being suspended is off its GPU long before its own end.
    let waits_for_end = maker.is_none() || job.ending().is_some();
    let left = ends.iter().find(|(of, _)| *of == id && waits_for_end).and_then(|(_, left)| left.clone());
    Some(EndView {
        job: id.0,
        gpus: gpus_of(state, job),
        makes_room: maker.is_some(),
        left,
        starts_on: helps.filter(|(job, _)| *job == id).map(|(_, gpus)| gpus.to_vec()).unwrap_or_default(),
        unknown: unknown(state),
    })
}

/// The first job whose end lets one start, and on which GPUs.
fn helpful_end(found: &[Sooner]) -> Option<(JobId, &[u32])> {
    found.iter().find_map(|help| match help.by {
        Help::End { job } => Some((job, &help.gpus[..])),
        _ => None,
    })
}

/// How many jobs wait of which the policy goes by a memory or run time that is not known: the trial of an end supposes that they stay so.
fn unknown(state: &State) -> u64 {
    // Of the only one it gives no place.
    let by_length = state.options().policy.line.is_by_length() && state.queue().len() > 1;
    let waiting = state.queue().iter().filter_map(|key| state.job(key.id));
    let is_unknown =
        |job: &&Job| state.unbounded(job).is_some() || (by_length && job.spec.run_time.is_none());
    waiting.filter(is_unknown).count() as u64
}

/// The last to end of those that make room for a job.
fn last_maker(state: &State, waits: JobId, ends: &[(JobId, Option<LeftView>)]) -> Option<JobId> {
    let is_for_it = |job: &Job| !job.is_off() && makes_room_for(job) == Some(waits);
    ends.iter().rev().map(|(id, _)| *id).find(|id| state.job(*id).is_some_and(is_for_it))
}

/// The first that is expected to end of those on GPUs that are not among these.
fn first_expected(
    state: &State,
    unusable: &BTreeSet<u32>,
    ends: &[(JobId, Option<LeftView>)],
) -> Option<JobId> {
    let frees_one =
        |job: &Job| !job.is_off() && gpus_of(state, job).iter().any(|gpu| !unusable.contains(gpu));
    let mut expected = ends.iter().filter(|(_, left)| left.is_some()).map(|(id, _)| *id);
    expected.find(|id| state.job(*id).is_some_and(frees_one))
}

/// Indices of a job's GPUs.
fn gpus_of(state: &State, job: &Job) -> Vec<u32> {
    job.placement().map_or_else(Vec::new, |placed| indices(state, &placed.gpus))
}

/// What its user or an operator can do; ends of jobs are told apart ([`end`]).
fn sooner(found: &Sooner) -> Option<SoonerView> {
    match found.by {
        Help::End { .. } => None,
        _ => Some(SoonerView {
            code: found.by.code().to_owned(),
            text: found.to_string(),
            gpus: found.gpus.clone(),
        }),
    }
}

fn running(
    state: &State,
    now: Millis,
    job: &Job,
    placement: &Placement,
    (rate, counts): (Option<&RateView>, &Counts),
) -> RunningView {
    let gpus: Vec<&Gpu> = placement.gpus.iter().filter_map(|id| state.gpu(*id)).collect();
    let id = job.spec.id;
    let mut neighbours = Vec::new();
    let mut own: Option<Fraction> = None;
    for gpu in &gpus {
        own = gpu.tenant(id).and_then(|tenant| tenant.pace).into_iter().chain(own).min();
        for tenant in gpu.tenants.iter().filter(|tenant| tenant.job != id) {
            let Some(other) = state.job(tenant.job) else { continue };
            let measured = other.measured.filter(|_| !counts.lost.contains_key(&tenant.job));
            let limit = carma_core::slowdown::limit(state, other);
            neighbours.push(NeighbourView {
                gpu: gpu.info.index,
                job: tenant.job.0,
                user: other.spec.user.name.to_string(),
                memory_reserved_mib: tenant.reservation.memory().map(|m| m.0),
                memory_mib: tenant.observed.map(|m| m.0),
                predicted_pct: tenant.pace.map(pct),
                progress_pct: measured.map(|measured| pct(measured.progress)),
                progress_at_most: measured.is_some_and(|measured| measured.at_most),
                max_slowdown_pct: limit.map(pct),
            });
        }
    }
    let rule = state.options().policy.progress.map(|rule| rule.with(placement.floor));
    let foreign = gpus.iter().map(|gpu| gpu.foreign().len()).sum::<usize>();
    let alone = neighbours.is_empty() && foreign == 0;
    RunningView {
        placed: match State::reason_of_suspension(job) {
            Some(moved @ Reason::Moved { .. }) => moved.public_text(),
            _ => placement.reason.chosen_for().unwrap_or_else(|| placement.reason.public_text()),
        },
        unsupervised: counts.lost.contains_key(&id),
        silent_s: counts.still.get(&id).map(|still| still.0 / 1000),
        predicted_pct: own.map(pct),
        floor_pct: rule.map(|rule| pct(rule.least_measured())),
        whole_run_pct: rule.map(|rule| pct(rule.whole_run())),
        unmeasured: ((job.measured.is_none() || counts.lost.contains_key(&id)) && !alone).then(|| {
            let untouched = gpus.iter().all(|gpu| gpu.tenant(id).is_some_and(|t| t.active_since.is_none()));
            unmeasured(rate, untouched, is_window_full(state, now, &gpus)).to_owned()
        }),
        not_undone: carma_core::plan::spared(state, job).map(not_undone),
        relieved: job.relief.filter(|relief| relief.at >= placement.at).map(|relief| RelievedView {
            job: relief.evicted.0,
            suspended: relief.suspended,
            at_ms: relief.at.0,
            slowdown_pct: pct(relief.slowdown),
            limit_pct: pct(relief.limit),
            times: relief.times,
        }),
        grows: gpus.iter().any(|gpu| gpu.tenant(id).is_some_and(|tenant| tenant.growth.is_growing())),
        out_of_memory: out_of_memory(state, job, placement, alone),
        neighbours,
        foreign: u32::try_from(foreign).unwrap_or(u32::MAX),
    }
}

/// Why no neighbour leaves for a job that is slower than the policy keeps it.
fn not_undone(why: Spared) -> String {
    match why {
        Spared::StoodStill => "it stood still, which is no slowdown".to_owned(),
        Spared::Once => {
            "only if the next full window says so, too: a job that evaluates or saves pauses by itself"
                .to_owned()
        }
        Spared::Brief(job) => {
            format!(
                "job {job}, the last to come, stays: it is expected to be over after a small part of what this one has left"
            )
        }
        Spared::Loses(job) => {
            format!(
                "job {job}, the last to come, stays: it cannot save its work, and would do again more than this one would win"
            )
        }
    }
}

/// Of a job that does not say how far it is.
const TELLS_NO_STEPS: &str = "it tells no steps, as by heartbeats or printed progress";

/// Whether a window of progress beside the present tenants of these GPUs is full by now, and had as much time again to be looked at.
fn is_window_full(state: &State, now: Millis, gpus: &[&Gpu]) -> bool {
    let window = state.options().slowdown_window;
    settled_at(gpus).is_some_and(|from| now >= from + window + window)
}

/// Why the speed of a job beside its neighbours is not measured, by what is known of its rate. `untouched`: it was not seen on its GPUs.
/// `is_full`: a window beside these neighbours is full by now, whatever it does.
fn unmeasured(rate: Option<&RateView>, untouched: bool, is_full: bool) -> &'static str {
    match rate.map(|rate| (rate.per_s, rate.alone_per_s, &rate.source)) {
        None if untouched => "it has not touched its GPU yet, and tells no steps",
        None if is_full => TELLS_NO_STEPS,
        // The rate comes with the first full window, and is that of another company until then.
        None | Some((Some(_), Some(_), _)) => "no window beside these neighbours is full yet",
        Some((Some(_), None, _)) => {
            "its speed alone is not known, since its command was not alone here, or for too short a time"
        }
        Some((None, None, None)) => TELLS_NO_STEPS,
        // It loads or evaluates, or its steps are long.
        Some((None, ..)) => "it told too few steps in the last window",
    }
}

/// What the jobs on one of its GPUs can take by their hard limits, where that is more than the GPU has: a job that took less than its limit when
/// its memory settled has the rest reserved no longer.
fn most_together(state: &State, placement: &Placement) -> Option<MiB> {
    placement.gpus.iter().filter_map(|id| state.gpu(*id)).find_map(|gpu| {
        let memory = gpu.info.memory;
        let most: MiB = gpu.tenants.iter().map(|tenant| tenant.limit.unwrap_or(tenant.takes(memory))).sum();
        (most > memory).then_some(most)
    })
}

/// What happens if it runs out of GPU memory.
fn out_of_memory(state: &State, job: &Job, placement: &Placement, alone: bool) -> String {
    let options = state.options();
    let cap = placement.cap.filter(|_| placement.sharing == SharingMode::Mps);
    let mut text = match cap {
        // Kernels of its other processes may wait for the one that ends: docs/recovery.md.
        Some(cap) if placement.gpus.len() > 1 && !alone => format!(
            "fails beyond its hard limit of {cap}, and if it has several processes its neighbours may, which come back uncharged"
        ),
        Some(cap) => match most_together(state, placement) {
            Some(sum) => format!(
                "fails beyond its hard limit of {cap}; before that in a full GPU, where it fails or a neighbour (hard limits there add up to {sum})"
            ),
            None => format!("fails beyond its hard limit of {cap}, no neighbour does"),
        },
        None if alone => "fails when the GPU is full".to_owned(),
        None => {
            "no hard limit: in a full GPU it fails or a neighbour; who is over its reservation is to blame"
                .to_owned()
        }
    };
    let most = job.spec.request.max_retries.unwrap_or(options.max_retries);
    if job.charged_retries >= most {
        let _ = write!(text, "; not tried again, {most} of {most} retries are used");
    } else {
        let next = match options.recovery {
            RecoveryMethod::Graded => "with more memory",
            RecoveryMethod::Exclusive => "on a GPU alone",
        };
        let _ = write!(text, "; tried again {next}, {} of {most} retries used", job.charged_retries);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::Live;
    use crate::view::tests::{gpu, new_job, seen};
    use carma_core::input::{Action, Input, Observation};
    use carma_core::model::{EndCause, EndLevel, GpuId, NewJob, ProcessRef, Request, RunTime, RunsOf, User};
    use carma_core::policy::Options;

    const NOW: Millis = Millis::secs(60);

    /// Somebody without jobs.
    fn anybody() -> User {
        User::new(9, "i")
    }

    fn apply(state: &mut State, input: Input) {
        state.apply(NOW, &input).unwrap();
    }

    fn submit(state: &mut State, id: u64, gpus: u32, priority: i32) {
        let run_time = RunTime::of(3600, RunsOf::Command);
        let save_grace = Some(Millis::secs(120));
        let request = Request { exclusive: true, priority, save_grace, ..Request::of(gpus) };
        let new = NewJob { run_time: Some(run_time), request, ..new_job(id) };
        apply(state, Input::Submitted(Box::new(new)));
    }

    /// Jobs 1 and 2 run, each alone on a GPU for an hour, and job 3 waits, which is urgent and wants so many.
    fn two_run(wanted: u32) -> State {
        let mut state = State::default();
        apply(&mut state, Input::Inventory(vec![gpu(0), gpu(1)]));
        for id in [0, 1] {
            apply(&mut state, Input::Observed { gpu: GpuId(id), seen: Box::new(seen(NOW)) });
        }
        [1, 2].into_iter().for_each(|id| submit(&mut state, id, 1, 0));
        decide(&mut state);
        submit(&mut state, 3, wanted, 9);
        state
    }

    /// Does what is planned; what is launched runs.
    fn decide(state: &mut State) {
        for action in carma_core::plan(state, NOW).actions {
            let launched = if let Action::Launch { job, .. } = action { Some(job) } else { None };
            apply(state, Input::Decided(Box::new(action)));
            let Some(job) = launched else { continue };
            let supervisor = ProcessRef { pid: 1, start_ticks: 1 };
            let (sharing, child, note) = (SharingMode::Exclusive, None, None);
            apply(state, Input::Started { job, attempt: 1, supervisor, child, sharing, note });
        }
    }

    fn end_of(state: &State, unusable: &[u32]) -> Option<EndView> {
        let ends = ends(Asker::new(&anybody(), false), state, NOW, &Counts::default());
        let order: Vec<JobId> = ends.iter().map(|(id, _)| *id).collect();
        let job = state.job(JobId(3)).unwrap();
        let found = carma_core::plan::sooner(state, NOW, job, &order, MiB::ZERO);
        end(state, job.spec.id, &unusable.iter().copied().collect(), &ends, &found)
    }

    #[test]
    fn of_a_long_line_it_is_said_whose_jobs_go_first() {
        let mut state = two_run(1);
        let said = |state: &State, id| behind(state, NOW, state.job(JobId(id)).unwrap());
        assert_eq!(said(&state, 3), None);
        (4..=13).for_each(|id| submit(&mut state, id, 1, 0));
        assert_eq!(said(&state, 13).as_deref(), Some("behind 10 jobs of its user"));
        let told = |users: &[(&'static str, usize)]| whose(&users.iter().copied().collect(), "eve");
        assert_eq!(told(&[("eve", 3), ("bob", 6)]), None);
        assert_eq!(told(&[("bob", 12)]).as_deref(), Some("behind 12 jobs of bob"));
        assert_eq!(
            told(&[("bob", 68), ("eve", 4)]).as_deref(),
            Some("behind 68 jobs of bob and 4 of its user")
        );
        let all = [("bob", 68), ("eve", 4), ("carol", 1), ("dave", 2)];
        assert_eq!(told(&all).as_deref(), Some("behind 68 jobs of bob, 4 of its user and 3 of others"));
        assert_eq!(
            told(&[("eve", 9), ("carol", 1)]).as_deref(),
            Some("behind 9 jobs of its user and 1 of others")
        );
        assert!(
            why_there(Asker::new(&anybody(), false), &state, NOW, state.job(JobId(13)).unwrap())
                .contains("behind 10 jobs of")
        );
    }

    #[test]
    fn at_a_limit_of_its_user_only_ends_of_that_users_jobs_help() {
        let state = two_run(1);
        let job = state.job(JobId(3)).unwrap();
        let name = job.spec.user.name.clone();
        let at = |limit| Reason::UserLimit { user: name.clone(), limit };
        let jobs = at(UserLimit::Jobs { most: 2 });
        assert!(may_help(&state, JobId(1), job, &jobs));
        let mut other = job.clone();
        other.spec.user = User::new(77, "eve");
        assert!(!may_help(&state, JobId(1), &other, &jobs));
        assert!(may_help(&state, JobId(1), &other, &Reason::NotPlannedYet));
        let quota = at(UserLimit::GpuHours { used: NOW, most: 1, left: NOW });
        assert!(!may_help(&state, JobId(1), job, &quota));
    }

    /// By the window in which progress is measured, and not that of activity; and from when on the last of them had begun.
    #[test]
    fn a_window_beside_a_neighbour_is_not_full_before_that_one_has_begun() {
        let mut state = State::default();
        let options = Options { slowdown_window: Millis::secs(120), ..Options::default() };
        apply(&mut state, Input::Configured(Box::new(options)));
        apply(&mut state, Input::Inventory(vec![gpu(0)]));
        for id in [1, 2] {
            apply(&mut state, Input::Submitted(Box::new(new_job(id))));
            let (job, sharing) = (JobId(id), SharingMode::TimeSlice);
            let placement = Placement {
                attempt: 1,
                gpus: vec![GpuId(0)],
                sharing,
                cap: None,
                part: Some(MiB::gib(8)),
                floor: None,
                thread_percent: None,
                at: NOW,
                reason: Reason::NotPlannedYet,
            };
            apply(&mut state, Input::Decided(Box::new(Action::Launch { job, placement })));
            let supervisor = ProcessRef { pid: 1, start_ticks: 1 };
            apply(
                &mut state,
                Input::Started { job, attempt: 1, supervisor, child: None, sharing, note: None },
            );
        }
        let look = |state: &mut State, at: Millis, held: &[(JobId, Option<MiB>)]| {
            let used = held.iter().filter_map(|(_, held)| *held).sum();
            let seen = Observation { jobs: held.to_vec(), used: Some(used), ..seen(at) };
            state.apply(at, &Input::Observed { gpu: GpuId(0), seen: Box::new(seen) }).unwrap();
        };
        let is_full = |state: &State, at| is_window_full(state, at, &state.gpus().iter().collect::<Vec<_>>());
        let held = [1, 2].map(|id| (JobId(id), Some(MiB::gib(2))));
        look(&mut state, NOW + Millis::secs(1), &held[..1]);
        assert!(!is_full(&state, NOW + Millis::secs(3600)), "job 2 has not begun");
        let begins = NOW + Millis::secs(300);
        look(&mut state, begins, &held);
        let full = begins + carma_interference::outlook::SETTLING + Millis::secs(240);
        assert!(is_full(&state, full) && !is_full(&state, Millis(full.0 - 1)));
    }

    #[test]
    fn what_is_missing_for_a_measurement_is_said() {
        let said = |per_s, alone_per_s, source: Option<&str>| {
            let source = source.map(str::to_owned);
            unmeasured(Some(&RateView { per_s, alone_per_s, source, ..RateView::default() }), false, true)
        };
        assert!(unmeasured(None, false, false).contains("is full yet"));
        assert!(unmeasured(None, false, true).contains("it tells no steps"));
        assert!(unmeasured(None, true, true).contains("has not touched its GPU"));
        assert!(said(Some(2.0), Some(3.0), Some("heartbeat")).contains("is full yet"));
        assert!(said(Some(2.0), None, Some("heartbeat")).contains("its speed alone"));
        assert!(said(None, None, None).contains("it tells no steps"));
        assert!(said(None, Some(3.0), Some("heartbeat")).contains("too few steps"));
        assert!(said(None, None, Some("heartbeat")).contains("too few steps"));
    }

    #[test]
    fn what_forecasts_of_others_jobs_rest_on_is_not_told() {
        let state = two_run(1);
        let metered = state.metered_at(NOW, &BTreeMap::new());
        let live = Live { counts: &Counts::default(), metered: &metered };
        let told = |uid, id| {
            let user = User::new(uid, "a");
            let asker = Asker::new(&user, false);
            let subject = Subject::Live(state.job(JobId(id)).unwrap());
            let of = OfJob { asker, state: &state, now: NOW, subject, rate: None, live };
            let reply = explain(of, None, MiB::ZERO);
            assert!(reply.job.left.is_some() && reply.waiting.is_some() == (id == 3));
            let jobs = crate::view::jobs(asker, &state, NOW, live);
            serde_json::to_string(&(reply, jobs)).unwrap()
        };
        for id in [1, 3] {
            let (own, of_others) = (told(1, id), told(2, id));
            assert!(own.contains("1 run of this command") && !own.contains("earlier runs"), "{own}");
            assert!(of_others.contains("earlier runs") && !of_others.contains("run of"), "{of_others}");
        }
    }

    #[test]
    fn a_bound_that_rests_on_the_assumed_hour_is_not_told() {
        let mut state = two_run(1);
        let mut bounds = |id, time_limit| {
            let request = Request { exclusive: true, time_limit, ..Request::of(1) };
            apply(&mut state, Input::Submitted(Box::new(NewJob { request, ..new_job(id) })));
            let (user, job) = (User::new(1, "a"), state.job(JobId(id)).unwrap());
            let told = waiting(Asker::new(&user, false), &state, NOW, job).unwrap().due_ms.is_some();
            (state.bound_on_start(job, NOW).is_some(), told)
        };
        assert_eq!(bounds(4, None), (true, false));
        assert_eq!(bounds(5, Some(Millis::secs(600))), (true, true));
    }

    #[test]
    fn an_end_on_a_gpu_that_it_cannot_have_is_not_waited_for() {
        let state = two_run(2);
        let first = |unusable: &[u32]| end_of(&state, unusable).map(|end| (end.job, end.starts_on.len()));
        assert_eq!((first(&[]), first(&[0]), first(&[0, 1])), (Some((1, 0)), Some((2, 0)), None));
    }

    #[test]
    fn what_may_still_be_learned_of_those_that_wait_is_counted() {
        let mut state = two_run(1);
        let unknown = |state: &State| end_of(state, &[]).unwrap().unknown;
        assert_eq!(unknown(&state), 0, "its run time is known, and alone on a GPU its memory does not count");
        apply(&mut state, Input::Submitted(Box::new(NewJob { request: Request::of(1), ..new_job(4) })));
        assert_eq!(unknown(&state), 1);
    }

    #[test]
    fn those_that_make_room_are_waited_for_and_not_their_own_end() {
        let mut state = two_run(1);
        let waiting =
            waiting(Asker::new(&anybody(), false), &state, NOW, state.job(JobId(3)).unwrap()).unwrap();
        assert!(waiting.urgent);
        let said = |state: &State| {
            let end = end_of(state, &[]).unwrap();
            (end.job, end.makes_room, end.left.map(|left| left.left_s), end.starts_on)
        };
        assert_eq!(said(&state), (1, false, Some(3600), vec![0]));
        // One that its user ends goes before those that run on.
        let by = User::new(1, "a");
        apply(&mut state, Input::Requeue { job: JobId(2), by });
        assert_eq!(said(&state), (2, false, Some(130), vec![1]));
        let decided =
            |level| Action::End { job: JobId(1), attempt: 1, level, cause: EndCause::Room { job: JobId(3) } };
        apply(&mut state, Input::Decided(Box::new(decided(EndLevel::Checkpoint))));
        assert_eq!(said(&state), (1, true, Some(130), vec![0]));
        apply(&mut state, Input::Decided(Box::new(decided(EndLevel::Terminate))));
        assert_eq!(said(&state), (1, true, Some(10), vec![0]));
        // When one that is suspended is off its GPU is not known, and its end is none that counts.
        let mut state = two_run(1);
        let options = Options { suspends: true, ..Options::default() };
        apply(&mut state, Input::Configured(Box::new(options)));
        let there = Observation { jobs: vec![(JobId(2), Some(MiB::gib(1)))], ..seen(NOW) };
        apply(&mut state, Input::Observed { gpu: GpuId(1), seen: Box::new(there) });
        let cause = Some(EndCause::Room { job: JobId(3) });
        apply(&mut state, Input::Decided(Box::new(Action::Suspend { job: JobId(2), attempt: 1, cause })));
        assert_eq!(said(&state), (2, true, None, vec![]));
    }

    #[test]
    fn a_suspended_job_waits_for_the_end_on_a_gpu_that_it_comes_back_to() {
        let mut state = two_run(1);
        let (id, by) = (JobId(2), User::new(1, "a"));
        let there = Observation { jobs: vec![(id, Some(MiB::gib(1)))], ..seen(NOW) };
        apply(&mut state, Input::Observed { gpu: GpuId(1), seen: Box::new(there) });
        apply(&mut state, Input::Suspend { job: id, by: by.clone() });
        decide(&mut state);
        apply(&mut state, Input::Suspended { job: id, attempt: 1, host: MiB::gib(1) });
        apply(&mut state, Input::Observed { gpu: GpuId(1), seen: Box::new(seen(NOW)) });
        let nine = anybody();
        let back = |state: &State| {
            returning(Asker::new(&nine, false), state, NOW, state.job(id).unwrap(), &Counts::default())
        };
        assert!(back(&state).is_none(), "it is not to come back");
        // The urgent one takes its GPU.
        decide(&mut state);
        apply(&mut state, Input::Unsuspend { job: id, by });
        let told = back(&state).unwrap();
        let end = told.waiting.end.unwrap();
        assert_eq!((told.waiting.place, told.waiting.of), (1, 1));
        assert_eq!((end.job, end.gpus, end.starts_on), (3, vec![1], vec![1]));
        assert_eq!(told.answers.iter().map(|answer| answer.gpu).collect::<Vec<_>>(), [1]);
        let plan = carma_core::plan(&state, NOW);
        let reason = carma_core::plan::stays_off(&state, NOW, id).unwrap();
        assert_eq!(plan.waiting, [(id, reason)]);
    }

    #[test]
    fn what_a_driver_says_is_not_for_strangers() {
        let answer = Answer {
            gpu: 3,
            free: Some(MiB::gib(2)),
            need: None,
            jobs: vec![JobId(4)],
            foreign: 0,
            refusal: Some(carma_core::explain::Refusal::Unhealthy { why: "/dev/secret".into() }),
            predicted: Vec::new(),
            gain: Some(Fraction(1234)),
        };
        let own = verdict(answer.clone(), true);
        assert_eq!((own.brief.as_str(), own.gain_pct), ("not usable: /dev/secret", Some(12)));
        let of_others = verdict(answer, false);
        assert_eq!(of_others.brief, "not usable: it does not answer");
        assert!(!format!("{of_others:?}").contains("secret"));
    }
}

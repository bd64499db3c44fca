//! From the state to what clients see. Pure: runs on any thread, over a published state.

use crate::journal::StoredJob;
use crate::run;
use crate::run::pace::Counts;
use crate::run_time;
use crate::sampler::Look;
use carma_api::VERSION;
use carma_api::wire::{
    AttemptView, CheckpointView, ForeignView, GpuView, GpusReply, HostView, JobDetail, JobView, JobsReply,
    LimitKeptView, MeteredView, OthersView, RateView, ReasonView, SpellView, TenantView, UsageReply,
    UsageView,
};
use carma_core::explain::Reason;
use carma_core::ledger::{Gpu, Reservation};
use carma_core::model::{
    Absence, Attempt, EndLevel, Finished, Forecasts, GpuId, Had, HostUse, Job, JobId, JobState, Phase,
    Placement, RunTime, User,
};
use carma_core::policy::Policy;
use carma_core::reading::{GpuKind, Health};
use carma_core::state::{Account, Metered, State, Tally};
use carma_core::units::{Fraction, MiB, Millis};
use std::collections::BTreeMap;

/// What stands where a name is private.
const HIDDEN: &str = "-";
/// What a forecast of another's job rests on.
const EARLIER: &str = "earlier runs";

/// Who wants to see something. Every view is made for one.
#[derive(Debug, Clone, Copy)]
pub struct Asker<'a> {
    user: &'a User,
    /// Root, an operator, or the user that the daemon runs as.
    all: bool,
}

impl<'a> Asker<'a> {
    /// A user; `all`: may see everything.
    #[must_use]
    pub const fn new(user: &'a User, all: bool) -> Self {
        Self { user, all }
    }

    /// Whether everything of a job is shown, or what [`strangers_row`] and its like leave.
    #[must_use]
    pub fn may_read(self, owner: &User) -> bool {
        self.all || self.user.is(owner)
    }

    /// The same of accounts and recorded activity, which are kept by the number of a user.
    #[must_use]
    pub const fn may_read_of(self, uid: u32) -> bool {
        self.all || self.user.uid == uid
    }

    fn row(self, owner: &User, row: JobView) -> JobView {
        if self.may_read(owner) { row } else { strangers_row(row) }
    }

    /// What a forecast of run time rests on. Who else runs the same is nobody's to know.
    pub(crate) fn source(self, owner: &User, forecast: &RunTime) -> String {
        if self.may_read(owner) { forecast.to_string() } else { EARLIER.to_owned() }
    }

    /// The same of a job's forecasts.
    pub(crate) fn source_for(self, job: &Job) -> impl Fn(&RunTime) -> String {
        let owner = &job.spec.user;
        move |forecast| self.source(owner, forecast)
    }

    fn reason(self, owner: &User, reason: &Reason) -> ReasonView {
        let text = if self.may_read(owner) { reason.to_string() } else { reason.public_text() };
        ReasonView { code: reason.code().to_owned(), text }
    }
}

// What others may see of a job: whose it is, where, since when, its memory and how it shares. Each field is named in
// each of these, so that a new one does not compile before that is decided: `_` is shown, what is bound is taken out.

/// A row as others see it. The texts of reasons, and what forecasts rest on, are made for the asker already.
fn strangers_row(mut row: JobView) -> JobView {
    let JobView {
        id: _,
        // The program's name, or one that the user has given.
        name,
        user: _,
        state: _,
        reason: _,
        gpus: _,
        gpus_requested: _,
        sharing: _,
        memory_reserved_mib: _,
        memory_peak_mib: _,
        // What it takes of the host, and how fast it is, is its owner's to know, as in `slowdown::numbers_of`.
        host_memory_peak_mib,
        attempts: _,
        priority: _,
        max_slowdown_pct: _,
        // With the limit of slowdown it tells the latency alone.
        max_latency_ms,
        latency_alone_ms,
        limit_kept: _,
        progress_pct: _,
        progress_at_most: _,
        run_time,
        done_pct: _,
        left: _,
        // What users have had of energy is theirs to know.
        energy_j,
        energy_alone_j,
        unmetered_gpu_s,
        submitted_ms: _,
        started_ms: _,
        suspended_ms: _,
        ran_until_ms: _,
        waited_ms: _,
        waiting_since_ms: _,
        ran_ms: _,
        ended_ms: _,
        exit_code: _,
    } = &mut row;
    *name = HIDDEN.to_owned();
    *host_memory_peak_mib = None;
    (*max_latency_ms, *latency_alone_ms) = (None, None);
    // On how few commands a forecast rests is private to the job's user.
    if let Some(run_time) = run_time {
        run_time.guess = false;
    }
    (*energy_j, *energy_alone_j, *unmetered_gpu_s) = (None, None, None);
    row
}

/// All of a job as others see it. Row and attempts are made for the asker already.
fn strangers_detail(mut detail: JobDetail) -> JobDetail {
    let JobDetail {
        version: _,
        job: _,
        command,
        cwd,
        log,
        log_kept,
        pid,
        forecasts_mib: _,
        declared_overruled: _,
        // Its reasons may name the model and its files.
        estimate,
        // What it keeps of its speed stands in its row.
        rate,
        time_limit_ms: _,
        host_limits: _,
        // A path of its owner's.
        checkpoint,
        attempts: _,
    } = &mut detail;
    (*command, *cwd) = (Vec::new(), String::new());
    (*log, *log_kept, *pid) = (String::new(), false, None);
    (*estimate, *rate, *checkpoint) = (None, None, None);
    detail
}

/// Of microseconds.
fn milliseconds(us: u32) -> f64 {
    f64::from(us) / 1000.0
}

pub(crate) fn indices(state: &State, gpus: &[GpuId]) -> Vec<u32> {
    gpus.iter().filter_map(|id| state.gpu(*id)).map(|g| g.info.index).collect()
}

/// What is metered up to now: counters are read ten times a second, and the state is told of them when it matters. That nothing
/// else has changed it is told more often: a look from before that counts where its counter is ahead.
#[must_use]
pub fn metered(state: &State, now: Millis, looks: &[Look]) -> Metered {
    let counter = |look: &Look| {
        let id = state.gpu_id(&look.reading.uuid)?;
        let (told, energy_mj) = (state.gpu(id)?.seen.as_ref()?, look.seen.energy_mj?);
        let is_ahead = look.seen.at > told.at || told.energy_mj.is_some_and(|told| energy_mj > told);
        is_ahead.then_some((id, energy_mj))
    };
    state.metered_at(now, &looks.iter().filter_map(counter).collect())
}

fn joules(mj: u64) -> f64 {
    mj as f64 / 1000.0
}

/// What all attempts of a job had; `live`: its present one.
fn had(job: &Job, live: Option<Had>) -> Had {
    job.past.iter().map(|attempt| attempt.had).chain(live).fold(Had::default(), Had::with)
}

/// Of what a job had, the time that no counter tells of.
fn unmetered(had: Had) -> Option<f64> {
    (had.unmetered > Millis::ZERO).then(|| had.unmetered.as_secs_f64())
}

fn with_energy(row: JobView, job: &Job, live: Option<Had>) -> JobView {
    let had = had(job, live);
    let metered = had.energy_mj();
    let alone = job.spec.profile.power_mw.filter(|_| metered.is_some()).map(|power| had.alone_mj(power));
    JobView {
        energy_j: metered.map(joules),
        energy_alone_j: alone.map(joules),
        unmetered_gpu_s: unmetered(had),
        ..row
    }
}

/// A live job's row with how far it is by its own count.
fn live_view(
    asker: Asker<'_>,
    state: &State,
    now: Millis,
    job: &Job,
    waiting: Option<&Reason>,
    live: Live<'_>,
) -> JobView {
    let id = job.spec.id;
    let row = job_view(asker, state, job, waiting);
    // What was measured before its supervisor was killed is not its present speed.
    let measured = (row.progress_pct, row.progress_at_most);
    let (progress_pct, progress_at_most) =
        if live.counts.lost.contains_key(&id) { (None, false) } else { measured };
    let row = JobView {
        progress_pct,
        progress_at_most,
        // Whole percents that are done: all is done when it has ended.
        done_pct: live.counts.done.get(&id).map(|done| (done.share * 100.0) as u32),
        left: run_time::left(asker.source_for(job), state, job, live.counts, now),
        ..row
    };
    if asker.may_read(&job.spec.user) {
        with_energy(row, job, live.metered.jobs.get(&id).copied())
    } else {
        row
    }
}

/// What is known of running jobs beside the state.
#[derive(Debug, Clone, Copy)]
pub struct Live<'a> {
    /// How far they are by their own count.
    pub counts: &'a Counts,
    /// What they have had.
    pub metered: &'a Metered,
}

/// All live jobs: running first, then pending in queue order, then held.
#[must_use]
pub fn jobs(asker: Asker<'_>, state: &State, now: Millis, live: Live<'_>) -> JobsReply {
    let waiting: BTreeMap<JobId, Reason> = carma_core::plan(state, now).waiting.into_iter().collect();
    let active = state.active().iter().copied();
    let queued = state.queue().iter().map(|key| key.id);
    let held = state.jobs().values().filter(|j| matches!(j.phase, Phase::Held { .. })).map(|j| j.spec.id);
    let jobs = active.chain(queued).chain(held).filter_map(|id| state.job(id));
    let row = |job: &Job| live_view(asker, state, now, job, waiting.get(&job.spec.id), live);
    let rows = jobs.map(row).collect();
    JobsReply { version: VERSION, now_ms: now.0, jobs: rows, unwritten: None }
}

/// Why a live job is as it is; `waiting` is what the latest plan says of a pending one.
fn reason_of(job: &Job, waiting: Option<&Reason>) -> Reason {
    match &job.phase {
        Phase::Pending => waiting.cloned().unwrap_or(Reason::NotPlannedYet),
        Phase::Held { by, operator, gone: None } => Reason::Held { by: by.clone(), operator: *operator },
        Phase::Held { gone: Some(gone), .. } => {
            let User { name, uid, .. } = &job.spec.user;
            Reason::UserGone { user: name.clone(), uid: *uid, now: gone.now.clone() }
        }
        Phase::Launching { .. } => Reason::Launching,
        Phase::Running { placement, .. } => {
            let of_end = job.ending().map(|ending| Reason::Ending { why: Box::new(ending.cause.reason()) });
            let of_suspension = || State::reason_of_suspension(job);
            of_end
                .or_else(|| waiting.cloned())
                .or_else(of_suspension)
                .unwrap_or_else(|| placement.reason.clone())
        }
        Phase::Judging { .. } => Reason::Judging,
    }
}

fn job_view(asker: Asker<'_>, state: &State, job: &Job, waiting: Option<&Reason>) -> JobView {
    let placement = job.placement();
    let last = job.past.last();
    let gpus = placement.into_iter().flat_map(|p| &p.gpus);
    let tenants: Vec<_> = gpus.filter_map(|id| state.gpu(*id)?.tenant(job.spec.id)).collect();
    let reserved = tenants.iter().find_map(|t| t.reservation.memory());
    // One that is suspended keeps what is known of it on the GPUs that it left.
    let kept = job.suspension().filter(|s| s.is_off()).into_iter().flat_map(|s| &s.kept);
    let peak = tenants.into_iter().chain(kept).filter_map(|t| t.peak).max();
    let peak = peak.or_else(|| last.and_then(|a| a.peak));
    let (started, suspended) = match &job.phase {
        Phase::Running { started, halt, .. } => (Some(started.0), Some(halt.until(state.now()).0)),
        _ => (None, None),
    };
    let suspended = suspended.filter(|ms| *ms > 0);
    let owner = &job.spec.user;
    let row = JobView {
        id: job.spec.id.0,
        name: job.spec.name.to_string(),
        user: job.spec.user.name.to_string(),
        state: job.state().as_str().to_owned(),
        reason: asker.reason(owner, &reason_of(job, waiting)),
        gpus: placement.filter(|_| !job.is_off()).map(|p| indices(state, &p.gpus)).unwrap_or_default(),
        gpus_requested: job.spec.request.gpus,
        sharing: placement.map(|p| p.sharing),
        memory_reserved_mib: reserved.map(|m| m.0),
        memory_peak_mib: peak.map(|m| m.0),
        host_memory_peak_mib: job
            .past
            .iter()
            .filter_map(|a| a.exit.as_ref()?.host.memory_peak)
            .max()
            .map(|m| m.0),
        attempts: job.attempts,
        priority: job.spec.request.priority,
        max_slowdown_pct: carma_core::slowdown::limit(state, job).map(|f| f.0 / 100),
        max_latency_ms: job.spec.request.latency_us.map(milliseconds),
        latency_alone_ms: job.spec.request.latency_us.and(job.spec.profile.latency_us).map(milliseconds),
        limit_kept: job.kept.map(|kept| LimitKeptView {
            windows: kept.windows,
            beyond: kept.beyond,
            longest: kept.longest,
            least_progress_pct: kept.least.0 / 100,
        }),
        progress_pct: job.measured.map(|m| m.progress.0 / 100),
        progress_at_most: job.measured.is_some_and(|m| m.at_most),
        run_time: job.spec.run_time.as_ref().map(|it| run_time::to_view(it, asker.source(owner, it))),
        done_pct: None,
        left: None,
        energy_j: None,
        energy_alone_j: None,
        unmetered_gpu_s: None,
        submitted_ms: job.submitted.0,
        started_ms: started,
        suspended_ms: suspended,
        ran_until_ms: None,
        waited_ms: None,
        waiting_since_ms: waiting_since(job).map(|at| at.0),
        ran_ms: None,
        ended_ms: None,
        // What has not ended has none; its earlier attempts have theirs.
        exit_code: None,
    };
    asker.row(owner, row)
}

/// For how long a job that was over at a time had waited: before, between and after its attempts.
fn waited(job: &Job, over: Millis) -> Millis {
    let (mut waited, mut since) = (Millis::ZERO, job.submitted);
    for (started, ended) in job.past.iter().filter_map(|a| Some((a.started?, a.ended))) {
        waited = waited + started.since(since);
        since = ended;
    }
    // After the end of its last attempt a job waits only in the queue: otherwise what that end means was being judged.
    let ran_last = job.past.last().is_some_and(|a| a.started.is_some() && a.ended > job.queued);
    if ran_last { waited } else { waited + over.since(since) }
}

/// Since when a job that waits and was tried before has waited in all: its attempts are left out.
fn waiting_since(job: &Job) -> Option<Millis> {
    let took = job.past.iter().filter_map(|a| Some(a.ended.since(a.started?)));
    let since = took.fold(job.submitted, |since, took| since + took);
    (job.state() == JobState::Pending && !job.past.is_empty()).then_some(since)
}

/// For how long the attempts of a job that is over ran, without the time in which they were suspended.
fn ran(job: &Job) -> Millis {
    let ran = job.past.iter().filter_map(|a| Some(a.ended.since(a.started?).since(a.suspended)));
    ran.fold(Millis::ZERO, |sum, ran| sum + ran)
}

/// A finished job as a row.
#[must_use]
pub fn finished_view(asker: Asker<'_>, state: &State, finished: &Finished) -> JobView {
    let job = &finished.job;
    let last = job.past.last();
    let row = JobView {
        state: finished.state.as_str().to_owned(),
        reason: asker.reason(&job.spec.user, &finished.reason),
        gpus: last.map(|a| indices(state, &a.placement.gpus)).unwrap_or_default(),
        sharing: last.map(|a| a.placement.sharing),
        memory_reserved_mib: last.and_then(|a| a.reserved.or(a.placement.cap)).map(|m| m.0),
        memory_peak_mib: job.past.iter().filter_map(|a| a.peak).max().map(|m| m.0),
        started_ms: last.and_then(|a| a.started).map(|m| m.0),
        suspended_ms: last.map(|a| a.suspended.0).filter(|ms| *ms > 0),
        ran_until_ms: last.filter(|a| a.started.is_some()).map(|a| a.ended.0),
        waited_ms: Some(waited(job, finished.at).0),
        waiting_since_ms: None,
        ran_ms: Some(ran(job).0),
        ended_ms: Some(finished.at.0),
        exit_code: finished.exit.and_then(carma_core::model::ExitStatus::shell_code),
        ..job_view(asker, state, job, None)
    };
    asker.row(&job.spec.user, with_energy(row, job, None))
}

fn placement_view(asker: Asker<'_>, state: &State, owner: &User, placement: &Placement) -> AttemptView {
    AttemptView {
        attempt: placement.attempt,
        gpus: indices(state, &placement.gpus),
        sharing: placement.sharing,
        thread_pct: placement.thread_percent,
        cap_mib: placement.cap.map(|m| m.0),
        placed: asker.reason(owner, &placement.reason),
        decided_ms: placement.at.0,
        started_ms: None,
        ended_ms: None,
        suspended_ms: None,
        spells: Vec::new(),
        exit_code: None,
        memory_peak_mib: None,
        host: None,
        alone_bp: None,
        energy_j: None,
        unmetered_gpu_s: None,
        held_gpu_s: None,
        progress_gpu_s: None,
        unmeasured_gpu_s: None,
        verdict: None,
    }
}

fn with_had(asker: Asker<'_>, owner: &User, had: Had, view: AttemptView) -> AttemptView {
    let held = had.held > Millis::ZERO;
    let view = AttemptView {
        held_gpu_s: held.then(|| had.held.as_secs_f64()),
        progress_gpu_s: held.then(|| had.progress().as_secs_f64()),
        unmeasured_gpu_s: (had.unmeasured > Millis::ZERO).then(|| had.unmeasured.as_secs_f64()),
        ..view
    };
    if !asker.may_read(owner) {
        return view;
    }
    AttemptView { energy_j: had.energy_mj().map(joules), unmetered_gpu_s: unmetered(had), ..view }
}

/// When an attempt was on which GPUs, between its absences and until its end; of one that is suspended, until it left. Nothing
/// where it never was suspended.
fn spells(
    state: &State,
    started: Option<Millis>,
    ended: Option<Millis>,
    placement: &Placement,
    absences: &[Absence],
) -> Vec<SpellView> {
    let Some(started) = started.filter(|_| !absences.is_empty()) else { return Vec::new() };
    let spell = |gpus: &[GpuId], from: Millis, until: Option<Millis>| SpellView {
        gpus: indices(state, gpus),
        from_ms: from.0,
        until_ms: until.map(|until| until.0),
    };
    let began = std::iter::once(started).chain(absences.iter().map(|absence| absence.until));
    let mut spells: Vec<SpellView> =
        began.zip(absences).map(|(began, absence)| spell(&absence.left, began, Some(absence.from))).collect();
    let back = absences.last().map(|absence| absence.until);
    spells.extend(
        back.filter(|back| ended.is_none_or(|ended| ended > *back))
            .map(|back| spell(&placement.gpus, back, ended)),
    );
    spells
}

fn attempt_view(asker: Asker<'_>, state: &State, owner: &User, attempt: &Attempt) -> AttemptView {
    let host = attempt.exit.as_ref().filter(|_| asker.may_read(owner)).map(|exit| exit.host);
    let view = AttemptView {
        started_ms: attempt.started.map(|m| m.0),
        ended_ms: Some(attempt.ended.0),
        suspended_ms: Some(attempt.suspended.0).filter(|ms| *ms > 0),
        spells: spells(state, attempt.started, Some(attempt.ended), &attempt.placement, &attempt.absences),
        exit_code: attempt.exit.as_ref().and_then(|e| e.status.shell_code()),
        memory_peak_mib: attempt.peak.map(|m| m.0),
        host: host.filter(|host| !host.is_unknown()).map(host_view),
        alone_bp: attempt.alone.map(|alone| alone.means().map(|mean| mean.map(|f| f.0))),
        verdict: Some(asker.reason(owner, &attempt.verdict)),
        ..placement_view(asker, state, owner, &attempt.placement)
    };
    with_had(asker, owner, attempt.had, view)
}

fn host_view(host: HostUse) -> HostView {
    HostView {
        memory_peak_mib: host.memory_peak.map(|m| m.0),
        memory_limit_mib: host.memory_limit.map(|m| m.0),
        cpu_ms: host.cpu.map(|t| t.0),
        processes_peak: host.processes_peak,
        oom_kills: host.oom_kills,
    }
}

pub(crate) fn attempts(
    asker: Asker<'_>,
    state: &State,
    job: &Job,
    row: &JobView,
    live: Live<'_>,
) -> Vec<AttemptView> {
    let owner = &job.spec.user;
    let mut views: Vec<_> = job.past.iter().map(|a| attempt_view(asker, state, owner, a)).collect();
    if let Some(placement) = job.placement() {
        let now = state.now();
        let absences = job.halt().map(|halt| halt.absences_until(now)).unwrap_or_default();
        // One that is suspended is not on its GPUs now.
        let ended = job.suspension().and_then(|suspension| suspension.off).map(|_| now);
        let view = AttemptView {
            started_ms: row.started_ms,
            suspended_ms: row.suspended_ms,
            spells: spells(state, row.started_ms.map(Millis), ended, placement, &absences),
            memory_peak_mib: row.memory_peak_mib,
            ..placement_view(asker, state, owner, placement)
        };
        let had = live.metered.jobs.get(&job.spec.id).copied().unwrap_or_default();
        views.push(with_had(asker, owner, had, view));
    }
    views
}

/// A live or finished job.
pub enum Subject<'a> {
    /// It is in the state.
    Live(&'a Job),
    /// It is in the history.
    Over(&'a Finished),
}

impl Subject<'_> {
    pub(crate) fn job(&self) -> &Job {
        match self {
            Self::Live(job) => job,
            Self::Over(finished) => &finished.job,
        }
    }

    /// Why it waits, by a plan that is made for this: it looks at all jobs that wait, of which there may be many.
    pub(crate) fn waits(&self, state: &State, now: Millis) -> Option<Reason> {
        let Self::Live(job) = self else { return None };
        match job.phase {
            Phase::Pending => {
                let mut waiting = carma_core::plan(state, now).waiting.into_iter();
                waiting.find(|(id, _)| *id == job.spec.id).map(|(_, reason)| reason)
            }
            Phase::Running { .. } if job.suspension().is_some() => {
                carma_core::plan::stays_off(state, now, job.spec.id)
            }
            _ => None,
        }
    }

    /// `waits`: what [`Self::waits`] says.
    pub(crate) fn row(
        &self,
        asker: Asker<'_>,
        state: &State,
        now: Millis,
        live: Live<'_>,
        waits: Option<&Reason>,
    ) -> JobView {
        match self {
            Self::Live(job) => live_view(asker, state, now, job, waits, live),
            Self::Over(finished) => finished_view(asker, state, finished),
        }
    }
}

/// A job at a time, for one who asks.
pub struct OfJob<'a> {
    /// Who asks.
    pub asker: Asker<'a>,
    /// The state.
    pub state: &'a State,
    /// The time.
    pub now: Millis,
    /// The job.
    pub subject: Subject<'a>,
    /// How fast it goes.
    pub rate: Option<RateView>,
    /// What is known of running jobs.
    pub live: Live<'a>,
}

/// Everything about one job that the asker may see. `stored`: what was submitted. `journal`: its name.
#[must_use]
pub fn detail(of: OfJob<'_>, stored: Option<&StoredJob>, journal: &str) -> JobDetail {
    let OfJob { asker, state, now, subject, rate, live } = of;
    let job = subject.job();
    let row = subject.row(asker, state, now, live, subject.waits(state, now).as_ref());
    let f = &job.spec.forecasts;
    let estimates = f.estimates.iter().map(|(estimator, says)| (estimator.name(), Some(says)));
    let forecasts = [("declared", f.declared), ("computed", f.computed.map(|c| c.upper))];
    let pid = match (&subject, &job.phase) {
        (Subject::Live(_), Phase::Running { child, .. }) => child.map(|c| c.pid),
        _ => None,
    };
    let detail = JobDetail {
        version: VERSION,
        command: stored.map(|s| s.request.command.clone()).unwrap_or_default(),
        cwd: stored.map(|s| s.request.cwd.clone()).unwrap_or_default(),
        log: stored.map(|s| s.log.clone()).unwrap_or_default(),
        log_kept: stored.is_some_and(|s| s.request.output.is_none()),
        pid,
        forecasts_mib: estimates.chain(forecasts).filter_map(|(k, v)| Some((k.to_owned(), v?.0))).collect(),
        declared_overruled: is_overruled(&state.options().policy, f),
        estimate: stored.and_then(|s| s.estimate.clone()),
        rate,
        time_limit_ms: job.spec.request.time_limit.map(|m| m.0),
        host_limits: stored.map(|s| s.request.host_limits()).unwrap_or_default(),
        checkpoint: stored.and_then(|stored| checkpoint(job, stored, journal)),
        attempts: attempts(asker, state, job, &row, live),
        job: row,
    };
    if asker.may_read(&job.spec.user) { detail } else { strangers_detail(detail) }
}

/// Whether what earlier runs took goes before what was declared.
fn is_overruled(policy: &Policy, forecasts: &Forecasts) -> bool {
    let known = forecasts.computed.zip(forecasts.declared).filter(|_| policy.goes_by_runs());
    known.is_some_and(|(computed, declared)| computed.overrules(declared))
}

/// How it saves its work, if that was agreed.
fn checkpoint(job: &Job, stored: &StoredJob, journal: &str) -> Option<CheckpointView> {
    let request = &stored.request;
    let dir = run::checkpoint::directory(request, journal, job.spec.id)?;
    let saving = job.ending().and_then(|ending| ending.sent);
    Some(CheckpointView {
        signal: request.checkpoint_signal,
        grace_ms: request.save_grace_ms(),
        dir: dir.path().map(|path| path.display().to_string()),
        saving_since_ms: saving.filter(|(level, _)| *level == EndLevel::Checkpoint).map(|(_, at)| at.0),
    })
}

/// What users have had: a row for each whom the asker may see, and the others together.
#[must_use]
pub fn usage(asker: Asker<'_>, state: &State, now: Millis, looks: &[Look]) -> UsageReply {
    let metered = metered(state, now, looks);
    let options = state.options();
    let (mut users, mut others) = (Vec::new(), OthersView::default());
    for (uid, account) in metered.users {
        let row = usage_view(state, now, uid, &account);
        if asker.may_read_of(uid) {
            users.push(row);
        } else {
            others.users += 1;
            others.running += row.running;
            others.waiting += row.waiting;
            others.held_gpu_s += row.held_gpu_s;
            others.charged_gpu_s += row.charged_gpu_s;
            others.progress_gpu_s += row.progress_gpu_s;
        }
    }
    users.sort_by(|a, b| (&a.user, a.uid).cmp(&(&b.user, b.uid)));
    UsageReply {
        version: VERSION,
        now_ms: now.0,
        half_life_s: options.usage_half_life.0 / 1000,
        period_begins_ms: options.period_of(now).0,
        period_ends_ms: options.next_period(now).0,
        users,
        others: (others.users > 0).then_some(others),
        gpus: metered
            .gpus
            .iter()
            .filter_map(|(id, tally)| Some(tally_view(state.gpu(*id)?, tally)))
            .collect(),
    }
}

fn tally_view(gpu: &Gpu, tally: &Tally) -> MeteredView {
    MeteredView {
        gpu: gpu.info.index,
        since_ms: tally.since.0,
        counter_j: joules(tally.total_mj()),
        jobs_j: joules(tally.jobs_mj),
        idle_j: joules(tally.idle_mj),
        others_j: joules(tally.others_mj),
        resets: tally.resets,
    }
}

fn usage_view(state: &State, now: Millis, uid: u32, account: &Account) -> UsageView {
    let (options, has) = (state.options(), state.usage(uid));
    let may = options.allowances.of(uid);
    let (period, period_mj) = account.of_period(now, options);
    let metered = account.energy_mj > 0 || account.unmetered < account.charged;
    UsageView {
        user: account.name.to_string(),
        uid,
        running: has.running,
        waiting: has.waiting,
        held_gpu_s: account.held.as_secs_f64(),
        charged_gpu_s: account.charged.as_secs_f64(),
        progress_gpu_s: account.progress().as_secs_f64(),
        energy_j: metered.then(|| joules(account.energy_mj)),
        unmetered_gpu_s: account.unmetered.as_secs_f64(),
        energy_alone_j: (account.alone_of_mj > 0).then(|| joules(account.alone_mj)),
        energy_alone_of_j: (account.alone_of_mj > 0).then(|| joules(account.alone_of_mj)),
        share: options.allowances.share_of(uid),
        lately_gpu_s: account.decayed_at(now, options).as_secs_f64(),
        period_gpu_s: period.as_secs_f64(),
        period_energy_j: joules(period_mj),
        quota_gpu_s: may.gpu_hours.map(|hours| f64::from(hours) * 3600.0),
        quota_energy_j: may.energy_j.map(|most| most as f64),
    }
}

fn f(value: Option<Fraction>) -> Option<f64> {
    value.map(Fraction::to_f64)
}

/// All GPUs, with the latest look at each.
#[must_use]
pub fn gpus(state: &State, now: Millis, looks: &[Look]) -> GpusReply {
    let metered = metered(state, now, looks);
    let view = |(id, gpu): (GpuId, &Gpu)| GpuView {
        metered: metered.gpus.get(&id).map(|tally| tally_view(gpu, tally)),
        ..gpu_view(state, now, gpu, looks.iter().find(|l| l.reading.uuid == gpu.info.uuid))
    };
    let mut gpus: Vec<GpuView> = (0..).map(GpuId).zip(state.gpus()).map(view).collect();
    gpus.sort_by_key(|g| g.index);
    let window_ms = state.options().window.0;
    GpusReply { version: VERSION, now_ms: now.0, window_ms, gpus, unwritten: None }
}

fn gpu_view(state: &State, now: Millis, gpu: &Gpu, look: Option<&Look>) -> GpuView {
    let (status, status_text) = status(gpu, look);
    let window = look.map(|l| l.seen.window).unwrap_or_default();
    let reading = look.map(|l| &l.reading);
    let activity = reading.map(|r| r.activity).unwrap_or_default();
    let mib = |m: Option<MiB>| m.map(|m| m.0);
    let seen_of =
        |job: JobId| look.and_then(|l| l.seen.jobs.iter().find(|(j, _)| *j == job)).and_then(|(_, m)| *m);
    // The state's ledger with the latest look put in, so that the numbers of one row belong together.
    let mut ledger = gpu.clone();
    if let Some(look) = look {
        ledger.seen = Some(look.seen.clone());
        for tenant in &mut ledger.tenants {
            tenant.observed = seen_of(tenant.job).or(tenant.observed);
        }
    }
    // No job is placed beside one that has it exclusively, however little of it that one takes.
    let taken = ledger.tenants.iter().any(|t| t.exclusive);
    let free = ledger.free(state.options().policy.reserve).filter(|_| gpu.present);
    let free = free.map(|free| if taken { MiB::ZERO } else { free });
    GpuView {
        index: gpu.info.index,
        uuid: gpu.info.uuid.to_string(),
        name: gpu.info.name.clone(),
        kind: match gpu.info.kind {
            GpuKind::Whole => "gpu",
            GpuKind::Mig { .. } => "mig",
            GpuKind::Virtual => "virtual",
        }
        .to_owned(),
        status,
        status_text,
        age_ms: look.map(|l| now.since(l.seen.at).0),
        memory_mib: gpu.info.memory.0,
        memory_used_mib: mib(reading.and_then(|r| r.memory_used)),
        memory_free_for_placement_mib: mib(free),
        smact: f(window.smact.map(|s| s.mean)),
        smocc: f(window.smocc.map(|s| s.mean)),
        drama: f(window.drama.map(|s| s.mean)),
        gpu_util: f(activity.gpu_util),
        mem_util: f(activity.mem_util),
        gract: f(activity.gract),
        tensor: f(activity.tensor),
        fp64: f(activity.fp64),
        fp32: f(activity.fp32),
        fp16: f(activity.fp16),
        pcie_tx_mib_s: activity.pcie_tx_mib_s,
        pcie_rx_mib_s: activity.pcie_rx_mib_s,
        sm_clock_mhz: reading.and_then(|r| r.sm_clock_mhz),
        power_w: reading.and_then(|r| r.power_mw).map(|mw| f64::from(mw) / 1000.0),
        energy_j: reading.and_then(|r| r.energy_mj).map(joules),
        metered: None,
        sharing: Some(gpu.shares_by(state.options().sharing)),
        no_mps: gpu.info.no_mps.as_deref().map(str::to_owned),
        tenants: gpu
            .tenants
            .iter()
            .map(|t| {
                let (reservation, reserved) = match t.reservation {
                    Reservation::Memory(m) => ("memory", Some(m.0)),
                    Reservation::Whole => ("whole", None),
                    Reservation::None => ("none", None),
                };
                TenantView {
                    job: t.job.0,
                    reserved_mib: reserved,
                    reservation: reservation.to_owned(),
                    observed_mib: mib(seen_of(t.job)),
                    settled: t.settled,
                    exclusive: t.exclusive,
                }
            })
            .collect(),
        foreign: look
            .iter()
            .flat_map(|l| &l.seen.foreign)
            .map(|f| ForeignView {
                pid: f.pid,
                user: f.user.as_ref().map(ToString::to_string),
                memory_mib: mib(f.memory),
            })
            .collect(),
    }
}

fn status(gpu: &Gpu, look: Option<&Look>) -> (String, Option<String>) {
    let (word, text) = match (gpu.present, look.map(|l| &l.seen.health), &gpu.drained_by) {
        (false, ..) => ("gone", Some("no longer in this machine".to_owned())),
        (_, None, _) => ("unknown", Some("not read yet".to_owned())),
        (_, Some(Health::Lost(why)), _) => ("lost", Some(why.clone())),
        (_, Some(Health::Unreadable(why)), _) => ("unreadable", Some(why.clone())),
        (_, Some(Health::Ok), Some(by)) => ("drained", Some(format!("drained by {by}"))),
        (_, Some(Health::Ok), None) if look.is_some_and(|look| !look.seen.processes_known) => {
            let why = "the driver does not tell which processes are on it, so no job that wants a GPU alone starts there";
            ("ok", Some(why.to_owned()))
        }
        (_, Some(Health::Ok), None) => ("ok", None),
    };
    (word.to_owned(), text)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use carma_core::input::{Input, Observation};
    use carma_core::model::{Basis, Computed, Exit, ExitStatus, NewJob, Profile, Request, SharingMode, User};
    use carma_core::policy::presets;
    use carma_core::reading::{GpuInfo, GpuReading};
    use carma_core::windows::WindowSummary;

    pub(crate) fn gpu(index: u32) -> GpuInfo {
        GpuInfo {
            uuid: format!("GPU-{index}").into(),
            index,
            name: "x".into(),
            memory: MiB::gib(40),
            kind: GpuKind::Virtual,
            has_activity: true,
            no_mps: None,
        }
    }

    pub(crate) fn new_job(id: u64) -> NewJob {
        NewJob {
            id: JobId(id),
            user: User::new(1, "a"),
            name: "j".into(),
            command_key: 7,
            program_key: None,
            request: Request::of(1),
            forecasts: Forecasts::default(),
            profile: Profile::default(),
            run_time: None,
            hold: false,
        }
    }

    #[test]
    fn a_declaration_is_overruled_where_the_policy_goes_by_earlier_runs() {
        let of = |policy: &str, basis, declared| {
            let upper = MiB(2150);
            let (need, likely, coverage, elastic, of_gpu) = (upper, upper, 95, false, None);
            let computed = Some(Computed { need, likely, upper, basis, coverage, elastic, of_gpu });
            let forecasts = Forecasts { declared: Some(declared), computed, ..Forecasts::default() };
            is_overruled(&presets::by_name(policy).unwrap(), &forecasts)
        };
        let declared = MiB::gib(3);
        assert!(of("adaptive", Basis::Exact, declared) && of("carma", Basis::Scaled, declared));
        assert!(!of("est-magm:horus", Basis::Exact, declared) && !of("exclusive", Basis::Exact, declared));
        assert!(!of("adaptive", Basis::Graph, declared) && !of("adaptive", Basis::Exact, MiB(2150)));
    }

    /// An idle GPU.
    pub(crate) fn seen(at: Millis) -> Observation {
        Observation {
            at,
            health: Health::Ok,
            used: Some(MiB::gib(1)),
            jobs: Vec::new(),
            foreign: Vec::new(),
            processes_known: true,
            window: WindowSummary::default(),
            energy_mj: None,
        }
    }

    /// A job that was submitted at 100 s and cancelled while it waited.
    fn cancelled() -> (State, Finished) {
        let mut state = State::default();
        state.apply(Millis::ZERO, &Input::Inventory(vec![gpu(0)])).unwrap();
        state.apply(Millis::secs(100), &Input::Submitted(Box::new(new_job(1)))).unwrap();
        let cancel = Input::Cancel { job: JobId(1), by: User::new(1, "a") };
        let finished = state.apply(Millis::secs(140), &cancel).unwrap().finished.remove(0);
        (state, finished)
    }

    #[test]
    fn energy_does_not_fall_back_while_all_else_stays() {
        let mut state = cancelled().0;
        let uuid = state.gpus()[0].info.uuid.clone();
        let seen = |at, joules: u64| Observation { energy_mj: Some(joules * 1000), ..seen(Millis::secs(at)) };
        let look = |at, joules| Look {
            seen: seen(at, joules),
            reading: GpuReading::empty(uuid.clone(), Health::Ok),
        };
        let counted =
            |state: &State, look: Look| metered(state, look.seen.at, &[look]).gpus[&GpuId(0)].total_mj();
        for (at, joules) in [(140, 1000), (150, 1010)] {
            let seen = Box::new(seen(at, joules));
            state.apply(Millis::secs(at), &Input::Observed { gpu: GpuId(0), seen }).unwrap();
        }
        assert_eq!(counted(&state, look(155, 1030)), 30_000);
        // Later than the look, which is the latest for a moment.
        state.apply(Millis::secs(156), &Input::Unchanged(vec![GpuId(0)])).unwrap();
        assert_eq!(counted(&state, look(155, 1030)), 30_000);
        // One from before the state was told of it says nothing.
        assert_eq!(counted(&state, look(149, 1005)), 10_000);
        assert_eq!(counted(&state, look(150, 1010)), 10_000);
    }

    #[test]
    fn what_a_gpu_can_give_and_does_not_tell() {
        let mut state = cancelled().0;
        let info = state.gpus()[0].info.clone();
        let seen = |processes_known| Observation { processes_known, ..seen(Millis::secs(140)) };
        let look = |processes_known| Look {
            seen: seen(processes_known),
            reading: GpuReading::empty(info.uuid.clone(), Health::Ok),
        };
        let view = |state: &State, looks: &[Look]| gpus(state, Millis::secs(140), looks).gpus.remove(0);
        let ok = view(&state, &[look(true)]);
        assert_eq!((ok.status.as_str(), ok.status_text), ("ok", None));
        assert!(ok.memory_free_for_placement_mib.is_some());
        let silent = view(&state, &[look(false)]);
        assert_eq!(silent.status, "ok");
        assert!(silent.status_text.is_some_and(|text| text.contains("which processes are on it")));
        // Of one that is gone the last look is left.
        let last = Input::Observed { gpu: GpuId(0), seen: Box::new(seen(true)) };
        state.apply(Millis::secs(140), &last).unwrap();
        state.apply(Millis::secs(140), &Input::Inventory(Vec::new())).unwrap();
        let gone = view(&state, &[]);
        assert_eq!((gone.status.as_str(), gone.memory_free_for_placement_mib), ("gone", None));
    }

    /// One that is over and completed, of which little else is known.
    pub(crate) fn attempt(started: Option<Millis>, ended: Millis) -> Attempt {
        Attempt {
            placement: Placement {
                attempt: 1,
                gpus: vec![],
                sharing: SharingMode::TimeSlice,
                cap: None,
                part: None,
                floor: None,
                thread_percent: None,
                at: Millis::secs(100),
                reason: Reason::NotPlannedYet,
            },
            started,
            ended,
            exit: Some(Exit::of(ExitStatus::Code(0))),
            reserved: None,
            peak: None,
            alone: None,
            seen: None,
            had: Had::default(),
            suspended: Millis::ZERO,
            absences: Vec::new(),
            apart: Vec::new(),
            verdict: Reason::Completed,
        }
    }

    #[test]
    fn how_fast_a_job_is_and_what_it_takes_of_the_host_is_not_for_others() {
        let (state, mut over) = cancelled();
        let mut attempt = attempt(Some(Millis::secs(101)), Millis::secs(140));
        attempt.exit.as_mut().unwrap().host.memory_peak = Some(MiB(4711));
        over.job.past = vec![attempt];
        over.job.spec.request.latency_us = Some(4_711_000);
        over.job.spec.profile.latency_us = Some(4711);
        let (per_s, alone_per_s) = (Some(4711.0), Some(4711.5));
        let rate = RateView { per_s, alone_per_s, ..RateView::default() };
        let (counts, metered) = (Counts::default(), state.metered_at(over.at, &BTreeMap::new()));
        let told = |uid, name| {
            let user = User::new(uid, name);
            let (asker, rate) = (Asker::new(&user, false), Some(rate.clone()));
            let live = Live { counts: &counts, metered: &metered };
            let subject = Subject::Over(&over);
            let of = OfJob { asker, state: &state, now: over.at, subject, rate, live };
            serde_json::to_string(&detail(of, None, "")).unwrap()
        };
        let counted = |told: String| told.matches("4711").count() + told.matches("4.711").count();
        // Speed twice, latency as it may be and alone, memory of the host in the row and in the attempt.
        assert_eq!((counted(told(1, "a")), counted(told(2, "b"))), (6, 0));
        // Who has the number that was a's.
        assert_eq!(counted(told(1, "b")), 0);
    }

    #[test]
    fn runs_and_waits_do_not_count_each_other() {
        let (state, over) = cancelled();
        let attempt = |started: Option<u64>, ended| attempt(started.map(Millis::secs), Millis::secs(ended));
        let paused = Attempt { suspended: Millis::secs(3), ..attempt(Some(101), 105) };
        // Attempts, when it was last put into the queue, when it was over; until when it ran, how long it waited and ran, seconds.
        for (attempts, queued, over_at, until, waited, ran) in [
            (vec![], 100, 140, None, 40, 0),
            (vec![attempt(Some(101), 104)], 104, 130, Some(104), 1 + 26, 3),
            (vec![paused, attempt(Some(105), 111)], 105, 111, Some(111), 1, 4 - 3 + 6),
            // What the last end meant was being judged for 20 s.
            (vec![attempt(Some(101), 105)], 100, 125, Some(105), 1, 4),
            // The last one was decided and never began.
            (vec![attempt(Some(101), 105), attempt(None, 120)], 105, 120, None, 1 + 15, 4),
        ] {
            let mut over = over.clone();
            (over.job.past, over.job.queued, over.at) =
                (attempts, Millis::secs(queued), Millis::secs(over_at));
            let row = finished_view(Asker::new(&User::new(1, "a"), false), &state, &over);
            assert_eq!(row.ran_until_ms, until.map(|s: u64| s * 1000), "{over:?}");
            assert_eq!((row.waited_ms, row.ran_ms), (Some(waited * 1000), Some(ran * 1000)), "{over:?}");
            assert_eq!(row.ended_ms, Some(over_at * 1000));
        }
    }

    #[test]
    fn a_job_that_waits_again_has_not_waited_while_it_ran() {
        let (state, over) = cancelled();
        let since = |past| {
            let job = Job { past, ..over.job.clone() };
            job_view(Asker::new(&User::new(1, "a"), false), &state, &job, None).waiting_since_ms
        };
        assert_eq!(since(vec![]), None, "since its submission");
        let ran = attempt(Some(Millis::secs(101)), Millis::secs(104));
        assert_eq!(since(vec![ran, attempt(None, Millis::secs(120))]), Some(103_000));
    }
}

//! Limits of slowdown: what neighbours may cost a job, predicted before a placement and measured after it.
//!
//! A job may have a limit: the factor by which neighbours slow it down at most (`--max-slowdown`, or the
//! configuration's for all). Models that predict progress work in floats and learn all the time, so they live
//! outside: what they say comes in as [`Outlook`]s, which the journal keeps. No job joins a GPU where the lower
//! bound of predicted progress is beyond a limit, or where nothing can be predicted. What is measured afterwards
//! comes in as [`Measured`]; where a limit is exceeded the plan evicts the job that came last to that GPU. It goes
//! back into the queue without charge, and not beside the same job again.

pub use crate::progress::{
    Class, Company, Counted, Kept, Measured, Outlook, Pace, Predicted, Question, slowdown,
};

use crate::explain::Reason;
use crate::ledger::{Gpu, Reservation};
use crate::model::{Attempt, GpuId, Job, JobId, SharingMode};
use crate::state::{Blinds, JobKind, Newcomers, Server, State};
use crate::units::{Fraction, MiB, Millis};
use std::collections::{BTreeMap, BTreeSet};

/// A job's limit of slowdown: see [`Job::limit`].
#[must_use]
pub fn limit(state: &State, job: &Job) -> Option<Fraction> {
    job.limit(state.options().max_slowdown)
}

/// The jobs that a job was evicted from: it is not put beside them again.
pub(crate) fn parted_from(job: &Job) -> impl Iterator<Item = JobId> {
    let past = job.past.iter().flat_map(|attempt| ended_for(attempt).iter().chain(&attempt.apart));
    past.chain(job.halt().into_iter().flat_map(|halt| &halt.apart)).copied()
}

/// The jobs for the sake of which an attempt was ended.
fn ended_for(attempt: &Attempt) -> &[JobId] {
    if let Reason::Evicted(eviction) = &attempt.verdict { &eviction.apart } else { &[] }
}

/// The tenant that the job has been with before and may not join again.
pub(crate) fn kept_apart(state: &State, job: &Job, gpu: &Gpu) -> Option<JobId> {
    let from = |job: &Job, other: JobId| parted_from(job).any(|apart| apart == other);
    gpu.tenants
        .iter()
        .map(|t| t.job)
        .find(|there| from(job, *there) || state.job(*there).is_some_and(|t| from(t, job.spec.id)))
}

/// Whether a job was evicted, and kept apart from others since.
pub(crate) fn was_parted(job: &Job) -> bool {
    parted_from(job).next().is_some()
}

/// Whether a tenant has a limit.
fn is_limited(state: &State, gpu: &Gpu) -> bool {
    limited_tenant(state, gpu).is_some()
}

/// A tenant that has a limit.
pub(crate) fn limited_tenant(state: &State, gpu: &Gpu) -> Option<JobId> {
    let limited = |job: &JobId| state.job(*job).is_some_and(|job| limit(state, job).is_some());
    gpu.tenants.iter().map(|tenant| tenant.job).find(limited)
}

/// Percentages of the SMs' threads that a job without a limit of its own is tried with under MPS, where limits of the jobs that
/// are there do not let it have all.
pub(crate) const NARROWER: [u8; 2] = [50, 25];

/// Whether a job may be given fewer threads than all for the sake of others' limits: its user has said nothing of either.
pub(crate) fn may_be_narrowed(state: &State, job: &Job) -> bool {
    state.options().policy.progress.is_some()
        && job.spec.request.thread_percent.is_none()
        && limit(state, job).is_none()
}

/// Most classes of pending jobs that predictions are asked for. Plans search for no more of them in vain ([`crate::plan`]): without a
/// prediction a job is not placed beside others.
pub(crate) const ASKED: usize = 12;
/// Each waiting user gets at least this many, up to twice [`ASKED`] in total: else one user with many different jobs at the head of the queue
/// would keep the others out for as long as those wait.
pub(crate) const LEAST_OF_A_USER: usize = 2;
/// GPUs of a server, at most. On more each search costs more, and users are many.
const OF_A_SERVER: usize = 64;

/// [`ASKED`], and for users who have had less than [`LEAST_OF_A_USER`] so many in all.
pub(crate) fn most_asked(state: &State) -> usize {
    if state.gpus().len() <= OF_A_SERVER { 2 * ASKED } else { ASKED }
}

/// Kinds of jobs that are looked at for that, and jobs that are passed over, as they are like others or may not start now.
const LOOKED_AT: usize = 4096;
const PASSED: usize = 8 * LOOKED_AT;
/// Others of a user who has had enough that are passed over for the next user's.
const PASSED_BY: usize = 1024;
/// Questions at a time. Of fewer, and without limits of slowdown, there are no others once these are answered.
pub const MOST_QUESTIONS: usize = 256;
/// Companies that are asked about, those of the fewest jobs first: on many GPUs a job finds a place among them.
const COMPANIES: usize = 128;

/// A job that may join others, for which predictions are asked: the first of its class and server.
struct Candidate<'a> {
    job: &'a Job,
    class: Class,
    /// Its MPS server; `None`: it is not under MPS.
    server: Option<u32>,
    /// It has a limit of slowdown itself.
    limited: bool,
    /// Less room than this on a GPU needs no prediction.
    needs: MiB,
    /// Jobs that go on for no longer are taken to be over when it works.
    others_over_by: Millis,
}

/// Where a company is.
#[derive(Default)]
struct There {
    /// A limit counts on one of those GPUs.
    limited: bool,
    /// The most memory that is free on one.
    room: MiB,
    /// The MPS servers of those GPUs; `None`: one without such a server.
    servers: BTreeSet<Option<u32>>,
}

impl There {
    /// Whether a job of this server would find the company in this mode; `None`: it is not under MPS.
    fn is_met(&self, mode: SharingMode, server: Option<u32>) -> bool {
        self.servers.iter().any(|there| meets(*there, mode, server))
    }
}

/// Whether a job of this server finds those on a GPU of that server in this mode.
fn meets(there: Option<u32>, mode: SharingMode, server: Option<u32>) -> bool {
    let side_by_side = server.is_some() && there == server;
    side_by_side == (mode == SharingMode::Mps)
}

/// Jobs at the head of the line of which everything is asked.
const FIRST: usize = 2;

/// What the next plan wants to know: of the first classes in the queue of which it is not known yet, beside every company
/// that is on a GPU, where a limit counts or the policy goes by predictions. With the answers applied it asks of
/// the next.
#[must_use]
pub fn questions(state: &State) -> Vec<Question> {
    let by_policy = state.options().policy.goes_by_predictions();
    let candidates = candidates(state, by_policy);
    // Else it is asked only beside jobs that have a limit.
    let of_job = |candidate: &Candidate<'_>| by_policy || candidate.limited;
    let any_limited = || state.gpus().iter().any(|gpu| may_be_joined(gpu) && is_limited(state, gpu));
    let mut asked = unpredicted(state);
    if !candidates.iter().any(of_job) && !any_limited() {
        return asked.into_iter().collect();
    }
    let companies = companies(state, &candidates);
    let answered: Vec<Option<&Newcomers>> =
        companies.iter().map(|((_, company), _)| state.outlooks_of(company)).collect();
    let mut asking = 0;
    for candidate in &candidates {
        let (before, of_job) = (asked.len(), of_job(candidate));
        let Candidate { job, class, server, limited, needs, others_over_by: _ } = *candidate;
        let narrower = may_be_narrowed(state, job);
        for (((mode, company), there), answered) in companies.iter().zip(&answered) {
            if !((of_job || there.limited) && needs <= there.room && there.is_met(*mode, server)) {
                continue;
            }
            let bounds = there.limited || limited;
            let newcomer = if !has(*answered, class, bounds) {
                Some(class)
            } else if narrower && there.limited && *mode == SharingMode::Mps {
                // With fewer threads only where it is known what it would do with all.
                let mut fewer = NARROWER.into_iter().map(|percent| Class { threads: Some(percent), ..class });
                fewer.find(|class| !has(*answered, *class, bounds))
            } else {
                None
            };
            if let Some(newcomer) = newcomer {
                asked.insert(Question { there: company.clone(), newcomer, bounds });
                if asked.len() >= MOST_QUESTIONS {
                    return asked.into_iter().collect();
                }
            }
        }
        asking += usize::from(of_job || asked.len() > before);
        if asking == ASKED && !by_policy {
            break;
        }
    }
    let more = at_work(state, &candidates);
    asked.extend(more.into_iter().take(MOST_QUESTIONS.saturating_sub(asked.len())));
    asked.into_iter().collect()
}

/// What short jobs on a GPU do beside each other now, where it was not asked before: by that one knows how far they are.
fn unpredicted(state: &State) -> BTreeSet<Question> {
    if state.options().policy.progress.is_none() {
        return BTreeSet::new();
    }
    let gpus = (0..).map(GpuId).zip(state.gpus());
    gpus.filter_map(|(id, gpu)| state.unpredicted(id, gpu)).take(COMPANIES).collect()
}

/// Of newcomers that start up for a good part of their run: what they do beside the jobs that will be there once they work, where
/// some are over before.
fn at_work(state: &State, candidates: &[Candidate<'_>]) -> Vec<Question> {
    let mut asked = Vec::new();
    let of_short: Vec<_> =
        candidates.iter().filter(|candidate| candidate.others_over_by > Millis::ZERO).collect();
    if of_short.is_empty() {
        return asked;
    }
    let joined = (0..).map(GpuId).zip(state.gpus()).filter(|(_, gpu)| may_be_joined(gpu));
    for (id, gpu) in joined.take(COMPANIES) {
        let (server, [turns, by_server]) = state.companies(id, gpu);
        let server = server_of(gpu, server);
        let room = gpu.free(state.options().policy.reserve).unwrap_or_default();
        let jobs = gpu.tenants.iter().filter_map(|tenant| state.job(tenant.job));
        let ends: Vec<(Class, Millis)> = jobs.map(|job| (job.class(), state.ends_in(job))).collect();
        for candidate in of_short.iter().filter(|candidate| candidate.needs <= room) {
            let now = if meets(server, SharingMode::Mps, candidate.server) { &by_server } else { &turns };
            let over = ends.iter().filter(|(_, ends_in)| *ends_in <= candidate.others_over_by);
            let there = now.without(over.map(|(class, _)| *class));
            // Beside all present jobs it was asked above; a job without neighbours needs no prediction.
            let is_other = there.classes.len() < now.classes.len() && !there.classes.is_empty();
            if is_other && state.outlook(&there, candidate.class).is_none() {
                asked.push(Question { there, newcomer: candidate.class, bounds: false });
            }
        }
    }
    asked
}

/// Jobs for which predictions may be asked, in the order in which they are looked at.
fn candidates(state: &State, by_policy: bool) -> Vec<Candidate<'_>> {
    let halted = state.halted_jobs();
    let returning = halted.filter(|job| job.suspension().is_some_and(|s| s.is_off() && s.cause.is_some()));
    // Plans pass by the others, and search for those behind them.
    let by_user = state.options().policy.line.is_by_length();
    let may_start = move |uid| !by_user || state.allowed_more(uid).0 > 0;
    let queue = state.queue();
    let line = queue.line_of(state.now(), may_start).map(|(_, job)| job).take(PASSED);
    let line = line.filter(|job| state.is_free_to_start(job));
    let most_kinds = queue.kinds_of(may_start, LOOKED_AT);
    let by_progress = state.options().policy.progress.is_some();
    let smallest = state.gpus().iter().map(|gpu| gpu.info.memory).min().unwrap_or_default();
    let joined = state.gpus().iter().filter(|gpu| may_be_joined(gpu));
    let most_room =
        joined.filter_map(|gpu| gpu.free(state.options().policy.reserve)).max().unwrap_or_default();
    let blinds = Blinds::of(state, state.now());
    let any_turns = state.gpus().iter().any(|gpu| gpu.present && gpu.info.no_mps.is_some());
    let (mut kinds, mut known) = (BTreeSet::new(), BTreeMap::new());
    let (mut of_users, mut served, mut passed) = (BTreeMap::new(), 0, 0);
    let mut candidates = Vec::new();
    for (at, job) in returning.chain(line).enumerate() {
        // Those behind are like one before.
        if !job.is_off() && kinds.len() == most_kinds {
            break;
        }
        if !job.is_off() && !kinds.insert(JobKind::of(job)) {
            continue;
        }
        let sharing = match job.placement() {
            Some(placement) => Some(placement.sharing).filter(|sharing| *sharing != SharingMode::Exclusive),
            None => state.sharing_for(job),
        };
        // Of the first its user may ask whether it would start beside others, if it did not want to be alone.
        let asks = |job: &&Job| at < FIRST && job.placement().is_none();
        let sharing = sharing.or_else(|| state.sharing_if_asked(Some(job).filter(asks)?));
        let Some(sharing) = sharing else { continue };
        let limited = limit(state, job).is_some();
        let server = (sharing == SharingMode::Mps).then(|| state.server_of(job));
        // What has no room there needs no prediction, but for the first, whose user may ask what less memory would do.
        // A GPU without MPS limits nothing, so that others count for what it needs there.
        let modes = [sharing, SharingMode::TimeSlice].into_iter().take(if any_turns { 2 } else { 1 });
        let blind = || {
            let blinds = blinds.as_ref()?;
            modes.map(|mode| blinds.of_job(job, mode).least_on(smallest, mode)).min()
        };
        let needs =
            if at < FIRST || job.is_off() { MiB::ZERO } else { least_need(state, job, smallest, blind) };
        if needs > most_room {
            continue;
        }
        let key = (job.class(), server, by_policy || limited);
        if let Some(at) = known.get(&key) {
            let candidate: &mut Candidate<'_> = &mut candidates[*at];
            candidate.needs = candidate.needs.min(needs);
            continue;
        }
        let of_user: &mut usize = of_users.entry(job.spec.user.uid).or_default();
        if by_policy && candidates.len() >= ASKED && *of_user >= LEAST_OF_A_USER {
            passed += 1;
            if passed == PASSED_BY {
                break;
            }
            continue;
        }
        *of_user += 1;
        served += usize::from(*of_user == LEAST_OF_A_USER);
        known.insert(key, candidates.len());
        // One that comes back has started up.
        let starts_up = by_progress && !job.is_off();
        let others_over_by = if starts_up { state.startup(job).others_over_by() } else { Millis::ZERO };
        candidates.push(Candidate { job, class: job.class(), server, limited, needs, others_over_by });
        // Of each of these something is asked.
        let enough = candidates.len() >= most_asked(state) || served >= queue.users();
        if by_policy && candidates.len() >= ASKED && enough {
            break;
        }
    }
    candidates
}

/// What a job needs free on any GPU; of a program that takes a share of its GPU's memory, on the smallest one. `blind`: what it does where
/// nothing is known of its memory.
fn least_need(state: &State, job: &Job, smallest: MiB, blind: impl FnOnce() -> Option<MiB>) -> MiB {
    let need = match (state.share_for(job), state.reservation_for(job)) {
        (Some(_), _) => state.reservation_on(job, smallest).memory(),
        (None, (Reservation::Whole, _)) => blind(),
        (None, (_, need)) => need,
    };
    need.unwrap_or_default()
}

/// Whether others are on a GPU that a job might join.
fn may_be_joined(gpu: &Gpu) -> bool {
    gpu.present && !gpu.tenants.is_empty() && !gpu.tenants.iter().any(|t| t.exclusive)
}

/// The one MPS server of all jobs on a GPU; `None`: they take turns, and so does a job that joins them.
const fn server_of(gpu: &Gpu, server: Server) -> Option<u32> {
    match server {
        Server::One(server) if gpu.info.no_mps.is_none() => Some(server),
        Server::One(_) | Server::Unused | Server::Several => None,
    }
}

/// The companies that are on GPUs, as candidates find them: the jobs that take turns with them, and those of their MPS server.
fn companies(state: &State, candidates: &[Candidate<'_>]) -> Vec<((SharingMode, Company), There)> {
    let reserve = state.options().policy.reserve;
    let servers: BTreeSet<Option<u32>> = candidates.iter().map(|candidate| candidate.server).collect();
    let mut companies: BTreeMap<(SharingMode, Company), There> = BTreeMap::new();
    for (id, gpu) in (0..).map(GpuId).zip(state.gpus()).filter(|(_, gpu)| may_be_joined(gpu)) {
        let (server, found) = state.companies(id, gpu);
        let server = server_of(gpu, server);
        let (limited, room) = (is_limited(state, gpu), gpu.free(reserve).unwrap_or_default());
        for (mode, company) in [SharingMode::TimeSlice, SharingMode::Mps].into_iter().zip(found) {
            if !servers.iter().any(|of_candidate| meets(server, mode, *of_candidate)) {
                continue;
            }
            let there = companies.entry((mode, company)).or_default();
            there.limited |= limited;
            there.room = room.max(there.room);
            there.servers.insert(server);
        }
    }
    let mut companies: Vec<_> = companies.into_iter().collect();
    companies.sort_by_key(|((_, company), there)| (!there.limited, company.classes.len()));
    companies.truncate(COMPANIES.max(companies.partition_point(|(_, there)| there.limited)));
    companies
}

/// Whether it is predicted what a class does beside a company, with lower bounds where those are wanted.
fn has(answered: Option<&Newcomers>, class: Class, bounds: bool) -> bool {
    let outlook = answered.and_then(|of| of.get(class));
    outlook.is_some_and(|outlook| !bounds || outlook.has_bounds())
}

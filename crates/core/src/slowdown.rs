//! Limits of slowdown: what neighbours may cost a job, predicted before a placement and measured after it.
//!
//! A job may have a limit: the factor by which neighbours slow it down at most (`--max-slowdown`, or the
//! configuration's for all). Models that predict progress work in floats and learn all the time, so they live
//! outside: what they say comes in as [`Outlook`]s, which the journal keeps. No job joins a GPU where the lower
//! bound of predicted progress is beyond a limit, or where nothing can be predicted. What is measured afterwards
//! comes in as [`Measured`]; where a limit is exceeded the plan evicts the job that came last to that GPU. It goes
//! back into the queue without charge, and not beside the same job again.

pub use crate::progress::{
    Class, Company, Measured, Outlook, Pace, Predicted, Question, least_progress, slowdown,
};

use crate::explain::Reason;
use crate::ledger::Gpu;
use crate::model::{Attempt, GpuId, Job, JobId, SharingMode};
use crate::state::{JobKind, Server, State};
use crate::units::{Fraction, MiB};
use std::collections::{BTreeMap, BTreeSet};

/// A job's limit of slowdown: its own or the one for all; and where it says how long requests may take, no more than keeps their
/// 99th percentile below that. What that is alone has to be known for it: before, nothing may slow the job down.
#[must_use]
pub fn limit(state: &State, job: &Job) -> Option<Fraction> {
    let said = job.spec.request.max_slowdown.or(state.options().max_slowdown);
    let of_latency = job.spec.request.latency_us.map(|most| match job.spec.profile.latency_us {
        // Rounded so that it is never looser.
        Some(alone) => {
            let factor = u64::from(most) * u64::from(Fraction::ONE.0) / u64::from(alone.max(1));
            Fraction(u32::try_from(factor).unwrap_or(u32::MAX)).max(Fraction::ONE)
        }
        None => Fraction::ONE,
    });
    match (said, of_latency) {
        (Some(said), Some(of_latency)) => Some(said.min(of_latency)),
        (said, of_latency) => said.or(of_latency),
    }
}

/// The tenant that the job has been with before and may not join again.
pub(crate) fn kept_apart(state: &State, job: &Job, gpu: &Gpu) -> Option<JobId> {
    let from = |job: &Job, other: JobId| {
        let was = |a: &Attempt| matches!(&a.verdict, Reason::Evicted { apart, .. } if apart.contains(&other));
        job.past.iter().any(was) || job.halt().is_some_and(|halt| halt.apart.contains(&other))
    };
    gpu.tenants
        .iter()
        .map(|t| t.job)
        .find(|there| from(job, *there) || state.job(*there).is_some_and(|t| from(t, job.spec.id)))
}

/// Whether a job was evicted, and kept apart from others since.
pub(crate) fn was_parted(job: &Job) -> bool {
    let was = |a: &Attempt| matches!(&a.verdict, Reason::Evicted { apart, .. } if !apart.is_empty());
    job.past.iter().any(was) || job.halt().is_some_and(|halt| !halt.apart.is_empty())
}

/// Whether a tenant has a limit.
pub(crate) fn is_limited(state: &State, gpu: &Gpu) -> bool {
    gpu.tenants.iter().any(|t| state.job(t.job).is_some_and(|job| limit(state, job).is_some()))
}

/// Percentages of the SMs' threads that a job without a limit of its own is tried with under MPS, where limits of those who are
/// there do not let it have all.
pub(crate) const NARROWER: [u8; 2] = [50, 25];

/// Whether a job may be given fewer threads than all for the sake of others' limits: its user has said nothing of either.
pub(crate) fn may_be_narrowed(state: &State, job: &Job) -> bool {
    state.options().policy.progress.is_some()
        && job.spec.request.thread_percent.is_none()
        && limit(state, job).is_none()
}

/// Classes of the queue that are asked about, questions at a time, and jobs that are looked at for that.
const ASKED: usize = 24;
const QUESTIONS: usize = 256;
const LOOKED_AT: usize = 4096;
/// Companies that are asked about, those of the fewest jobs first: on many GPUs a job finds a place among them.
const COMPANIES: usize = 128;

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
        match mode {
            SharingMode::Mps => server.is_some() && self.servers.contains(&server),
            _ => server.is_none() || self.servers.iter().any(|there| *there != server),
        }
    }
}

/// Jobs at the head of the line of which everything is asked.
const FIRST: usize = 2;

/// What the next plan wants to know: of the first classes in the queue of which it is not known yet, beside every company
/// that is on a GPU, where a limit counts or the policy goes by predictions. With the answers applied it asks of
/// the next.
#[must_use]
pub fn questions(state: &State) -> Vec<Question> {
    let policy = &state.options().policy;
    let (by_policy, reserve) = (policy.goes_by_predictions(), policy.reserve);
    // The companies that are there, as those find them who take turns with them and those who share their MPS server.
    let mut companies: BTreeMap<(SharingMode, Company), There> = BTreeMap::new();
    for (id, gpu) in (0..).map(GpuId).zip(state.gpus()) {
        if gpu.present && !gpu.tenants.is_empty() && !gpu.tenants.iter().any(|t| t.exclusive) {
            let (limited, room) = (is_limited(state, gpu), gpu.free(reserve).unwrap_or_default());
            let (server, found) = state.companies(id, gpu);
            let server = match server {
                Server::One(server) if gpu.info.no_mps.is_none() => Some(server),
                Server::One(_) | Server::Unused | Server::Several => None,
            };
            for (mode, company) in [SharingMode::TimeSlice, SharingMode::Mps].into_iter().zip(found) {
                let there = companies.entry((mode, company)).or_default();
                there.limited |= limited;
                there.room = room.max(there.room);
                there.servers.insert(server);
            }
        }
    }
    let any_limited = companies.values().any(|there| there.limited);
    let mut companies: Vec<_> = companies.into_iter().collect();
    companies.sort_by_key(|((_, company), there)| (!there.limited, company.classes.len()));
    companies.truncate(COMPANIES.max(companies.partition_point(|(_, there)| there.limited)));
    let told: Vec<_> = companies.iter().map(|((_, company), _)| state.outlooks_of(company)).collect();
    let mut asked = BTreeSet::new();
    let (mut classes, mut asking) = (BTreeSet::new(), 0);
    let mut kinds = BTreeSet::new();
    let halted = state.halted().iter().filter_map(|id| state.job(*id));
    let returning = halted.filter(|job| job.suspension().is_some_and(|s| s.is_off() && s.cause.is_some()));
    let line = state.queue().line(state.now()).map(|(_, job)| job).take(LOOKED_AT);
    for (at, job) in returning.chain(line).enumerate() {
        // Those behind are like one before.
        if !job.is_off() && kinds.len() == state.queue().kinds() {
            break;
        }
        if !job.is_off() && !kinds.insert(JobKind::of(job)) {
            continue;
        }
        let sharing = match job.placement() {
            Some(placement) => Some(placement.sharing).filter(|sharing| *sharing != SharingMode::Exclusive),
            None => state.sharing_for(job),
        };
        let Some(sharing) = sharing else { continue };
        let of_job = by_policy || limit(state, job).is_some();
        let server = (sharing == SharingMode::Mps).then(|| state.server_of(job));
        if !(of_job || any_limited) || !classes.insert((job.class(), server, of_job)) {
            continue;
        }
        let before = asked.len();
        let narrower = may_be_narrowed(state, job);
        // What has no room there needs no prediction, but for the first, who may ask what less memory would do.
        let needs = if at < FIRST { MiB::ZERO } else { state.reservation_for(job).1.unwrap_or_default() };
        for (((mode, company), there), told) in companies.iter().zip(&told) {
            let bounds = there.limited || limit(state, job).is_some();
            let meets = there.is_met(*mode, server);
            if !(meets && (of_job || there.limited) && needs <= there.room) {
                continue;
            }
            let known = |class: &Class| {
                let told = told.and_then(|of| of.get(class));
                told.is_some_and(|told| !bounds || told.has_bounds())
            };
            let fewer =
                NARROWER.into_iter().filter(|_| narrower && there.limited && *mode == SharingMode::Mps);
            let fewer = fewer.map(|percent| Class { threads: Some(percent), ..job.class() });
            // With fewer threads only where it is known what it would do with all.
            let first = [job.class()].into_iter().chain(fewer).find(|class| !known(class));
            if let Some(newcomer) = first {
                asked.insert(Question { there: company.clone(), newcomer, bounds });
                if asked.len() == QUESTIONS {
                    return asked.into_iter().collect();
                }
            }
        }
        asking += usize::from(of_job || asked.len() > before);
        if asking == ASKED {
            break;
        }
    }
    asked.into_iter().collect()
}

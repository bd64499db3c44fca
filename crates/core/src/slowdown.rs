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
use crate::model::{GpuId, Job, JobId, SharingMode};
use crate::state::State;
use crate::units::{Fraction, MiB};
use std::collections::{BTreeMap, BTreeSet};

/// A job's limit of slowdown.
pub(crate) fn limit(state: &State, job: &Job) -> Option<Fraction> {
    job.spec.request.max_slowdown.or(state.options().max_slowdown)
}

/// The tenant that the job has been with before and may not join again.
pub(crate) fn kept_apart(state: &State, job: &Job, gpu: &Gpu) -> Option<JobId> {
    let from = |job: &Job, other: JobId| {
        job.past.iter().any(|a| matches!(&a.verdict, Reason::Evicted { apart, .. } if apart.contains(&other)))
    };
    gpu.tenants
        .iter()
        .map(|t| t.job)
        .find(|there| from(job, *there) || state.job(*there).is_some_and(|t| from(t, job.spec.id)))
}

/// Whether a job was evicted, and kept apart from others since.
pub(crate) fn was_parted(job: &Job) -> bool {
    job.past.iter().any(|a| matches!(&a.verdict, Reason::Evicted { apart, .. } if !apart.is_empty()))
}

/// Whether a tenant has a limit.
pub(crate) fn is_limited(state: &State, gpu: &Gpu) -> bool {
    gpu.tenants.iter().any(|t| state.job(t.job).is_some_and(|job| limit(state, job).is_some()))
}

/// Classes of the queue that are asked about, questions at a time, and jobs that are looked at for that.
const ASKED: usize = 24;
const QUESTIONS: usize = 256;
const LOOKED_AT: usize = 4096;
/// Companies that are asked about, those of the fewest jobs first: on many GPUs a job finds a place among them.
const COMPANIES: usize = 128;

/// What the next plan wants to know: of the first classes in the queue of which it is not known yet, beside every company
/// that is on a GPU, where a limit counts or the policy goes by predictions. With the answers applied it asks of
/// the next.
#[must_use]
pub fn questions(state: &State) -> Vec<Question> {
    let policy = &state.options().policy;
    let (by_policy, reserve) = (policy.goes_by_predictions(), policy.reserve);
    // Of each way of sharing, the companies that are there, whether one of them has a limit, and the most memory that is
    // free beside them.
    let mut companies: BTreeMap<(SharingMode, Company), (bool, MiB)> = BTreeMap::new();
    for (id, gpu) in (0..).map(GpuId).zip(state.gpus()) {
        if gpu.present && !gpu.tenants.is_empty() && !gpu.tenants.iter().any(|t| t.exclusive) {
            let (limited, room) = (is_limited(state, gpu), gpu.free(reserve).unwrap_or_default());
            for mode in [SharingMode::TimeSlice, SharingMode::Mps] {
                let (any, most) = companies.entry((mode, state.company(id, gpu, mode))).or_default();
                (*any, *most) = (*any | limited, room.max(*most));
            }
        }
    }
    let any_limited = companies.values().any(|(limited, _)| *limited);
    let mut companies: Vec<_> = companies.into_iter().collect();
    companies.sort_by_key(|((_, company), (limited, _))| (!limited, company.classes.len()));
    companies.truncate(COMPANIES.max(companies.partition_point(|(_, (limited, _))| *limited)));
    let mut asked = BTreeSet::new();
    let (mut classes, mut asking) = (BTreeSet::new(), 0);
    for job in state.queue().line(state.now()).map(|(_, job)| job).take(LOOKED_AT) {
        let Some(sharing) = state.sharing_for(job) else { continue };
        let of_job = by_policy || limit(state, job).is_some();
        if !(of_job || any_limited) || !classes.insert((job.class(), sharing, of_job)) {
            continue;
        }
        let before = asked.len();
        // What has no room there needs no prediction.
        let needs = state.reservation_for(job).1.unwrap_or_default();
        for ((mode, there), (limited, room)) in &companies {
            let bounds = *limited || limit(state, job).is_some();
            let known = || {
                let told = state.outlooks_of(there).and_then(|of| of.get(&job.class()));
                told.is_some_and(|told| !bounds || told.has_bounds())
            };
            if *mode == sharing && (of_job || *limited) && needs <= *room && !known() {
                asked.insert(Question { there: there.clone(), newcomer: job.class(), bounds });
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

//! Answers to the decision core: what a model says of a job that would join others on a GPU.
//!
//! The daemon and the simulator ask here alike; what they know of a job alone they find each in their own way.

use crate::group::{BadGroup, GpuType, Group, Member, Mode};
use crate::online::{Observed, SlowdownModel};
use crate::profile::Profile;
use carma_core::ledger::Gpu;
use carma_core::model::{Job, JobId, SharingMode};
use carma_core::slowdown::{Outlook, Predicted, Question};
use carma_core::state::State;
use carma_core::units::Fraction;

/// Finds what a job does alone on a GPU of this type; `None`: that is not known.
pub trait Alone: Fn(&Job, &Gpu) -> Option<Profile> {}
impl<F: Fn(&Job, &Gpu) -> Option<Profile>> Alone for F {}

/// How the predictor calls a way of sharing; a job without neighbours counts as time-sliced.
#[must_use]
pub const fn mode(sharing: SharingMode) -> Mode {
    match sharing {
        SharingMode::Mps => Mode::Mps,
        SharingMode::TimeSlice | SharingMode::Exclusive => Mode::TimeSlice,
    }
}

/// Profiles of jobs on a GPU under the jobs' numbers, or the jobs that have none.
fn profiles(jobs: &[&Job], gpu: &Gpu, alone: impl Alone) -> Result<Vec<Profile>, Vec<JobId>> {
    let mut unknown = Vec::new();
    let mut profiles = Vec::new();
    for job in jobs {
        match alone(job, gpu) {
            Some(profile) => profiles.push(Profile { name: job.spec.id.to_string(), ..profile }),
            None => unknown.push(job.spec.id),
        }
    }
    if unknown.is_empty() { Ok(profiles) } else { Err(unknown) }
}

fn members<'a>(profiles: &'a [Profile], jobs: &[&Job]) -> Vec<Member<'a>> {
    let threads = jobs.iter().map(|job| {
        let placed = job.placement().map(|p| p.thread_percent);
        placed.unwrap_or(job.spec.request.thread_percent).map(f64::from)
    });
    profiles.iter().zip(threads).map(|(profile, threads_pct)| Member { profile, threads_pct }).collect()
}

/// What is predicted if the newcomer joins the jobs that are on the GPU now. `None`: there is no such job or GPU.
#[must_use]
pub fn answer(model: &SlowdownModel, state: &State, asked: &Question, alone: impl Alone) -> Option<Outlook> {
    let gpu = state.gpu(asked.gpu)?;
    let newcomer = state.job(asked.newcomer)?;
    let there: Vec<&Job> = gpu.tenants.iter().filter_map(|t| state.job(t.job)).collect();
    let all: Vec<&Job> = there.iter().copied().chain([newcomer]).collect();
    let mut outlook = Outlook {
        newcomer: asked.newcomer,
        gpu: asked.gpu,
        sharing: asked.sharing,
        tasks: Vec::new(),
        unknown: Vec::new(),
        before: Fraction(0),
    };
    let profiles = match profiles(&all, gpu, alone) {
        Ok(profiles) => profiles,
        Err(unknown) => return Some(Outlook { unknown, ..outlook }),
    };
    let kind = GpuType::named(&gpu.info.name);
    let members = members(&profiles, &all);
    let predict =
        |members: &[Member<'_>]| model.predict(&Group { gpu: &kind, sharing: mode(asked.sharing), members });
    let (Ok(forecast), Ok(before)) = (predict(&members), predict(&members[..there.len()])) else {
        // More than the model takes together: nothing is predicted.
        return Some(Outlook { unknown: vec![asked.newcomer], ..outlook });
    };
    let fraction = |progress: f64| Fraction::from_f64(progress).unwrap_or(Fraction(0));
    let predicted = all.iter().zip(&forecast.tasks).map(|(job, task)| Predicted {
        job: job.spec.id,
        expected: fraction(task.progress.expected),
        lower: fraction(task.progress.lower),
    });
    outlook.tasks = predicted.collect();
    outlook.tasks.sort_by_key(|task| task.job);
    outlook.before = fraction(before.sum);
    Some(outlook)
}

/// Learns from jobs that share a GPU; `progress` of each, where it was measured. `None`: what one of them does alone
/// is not known.
///
/// # Errors
/// What the model refuses to learn from.
pub fn observe(
    model: &mut SlowdownModel,
    gpu: &Gpu,
    jobs: &[&Job],
    progress: Vec<Option<f64>>,
    alone: impl Alone,
) -> Option<Result<(), BadGroup>> {
    let profiles = profiles(jobs, gpu, alone).ok()?;
    let most_shared = jobs.iter().filter_map(|job| job.placement()).map(|p| p.sharing).max();
    let sharing = mode(most_shared.unwrap_or(SharingMode::Exclusive));
    let (kind, members) = (GpuType::named(&gpu.info.name), members(&profiles, jobs));
    let group = Group { gpu: &kind, sharing, members: &members };
    Some(model.observe(&group, &Observed::Progress(progress)).map(drop))
}

//! Answers to the decision core: what a model says of a job that would join others on a GPU.
//!
//! The daemon and the simulator ask here alike; what they know of a job alone they find each in their own way.

use crate::group::{BadGroup, GpuType, Group, Member, Mode};
use crate::kace::trained::Trained;
use crate::online::{Observed, SlowdownModel};
use crate::predict::policy::kace_row;
use crate::profile::Profile;
use carma_core::ledger::Gpu;
use carma_core::model::{Job, JobId, SharingMode};
use carma_core::policy::Order;
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

/// The models that are asked.
#[derive(Debug, Clone, Copy)]
pub struct Models<'a> {
    /// Of each job's progress.
    pub slowdowns: &'a SlowdownModel,
    /// Of what a group gets done, for a policy that goes by that.
    pub kace: Option<&'a Trained>,
}

/// What is predicted if the newcomer joins the jobs that are on the GPU now. `None`: there is no such job or GPU.
#[must_use]
pub fn answer(models: Models<'_>, state: &State, asked: &Question, alone: impl Alone) -> Option<Outlook> {
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
        throughput: None,
    };
    let profiles = match profiles(&all, gpu, alone) {
        Ok(profiles) => profiles,
        Err(unknown) => return Some(Outlook { unknown, ..outlook }),
    };
    let kind = GpuType::named(&gpu.info.name);
    let members = members(&profiles, &all);
    if state.options().policy.order == Order::Throughput {
        match throughput(models.kace, &kind, mode(asked.sharing), &members) {
            Ok(sum) => outlook.throughput = Some(sum),
            Err(at) => {
                let unknown = at.into_iter().filter_map(|at| Some(all.get(at)?.spec.id)).collect();
                return Some(Outlook { unknown, ..outlook });
            }
        }
    }
    let predict = |members: &[Member<'_>]| {
        models.slowdowns.predict(&Group { gpu: &kind, sharing: mode(asked.sharing), members })
    };
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

/// What KACE says that they get done together, in thousandths.
///
/// # Errors
/// Positions of those whose profiles lack a feature that the model wants; of the newcomer, who is last, where the model's
/// answer is no number.
fn throughput(
    kace: Option<&Trained>,
    gpu: &GpuType,
    sharing: Mode,
    members: &[Member<'_>],
) -> Result<i64, Vec<usize>> {
    let last = || vec![members.len().saturating_sub(1)];
    let kace = kace.ok_or_else(last)?;
    let row = |members: &[Member<'_>]| kace_row(&kace.features, &Group { gpu, sharing, members });
    let lacking: Vec<usize> = (0..members.len()).filter(|at| row(&members[*at..=*at]).is_err()).collect();
    let row = row(members).map_err(|_| if lacking.is_empty() { last() } else { lacking })?;
    let sum = kace.forecast(&row).map_err(|_| last())?;
    // Far beyond any rate, and far from the ends of the integers.
    Ok((sum * 1000.0).clamp(-1e18, 1e18) as i64)
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

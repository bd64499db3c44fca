//! Answers to the decision core: what a model says of a job that would join others on a GPU.
//!
//! The daemon and the simulator ask here alike; what they know of a job alone they find each in their own way.

use crate::group::{BadGroup, GpuType, Group, Member, Mode, TaskForecast};
use crate::kace::trained::Trained;
use crate::online::{Observed, SlowdownModel};
use crate::predict::policy::kace_row;
use crate::profile::Profile;
use carma_core::ledger::Gpu;
use carma_core::model::{Job, SharingMode};
use carma_core::policy::Order;
use carma_core::slowdown::{Outlook, Predicted, Question};
use carma_core::state::State;
use carma_core::units::Fraction;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// What is known of jobs alone.
pub trait Alone {
    /// Jobs of one number do the same alone on GPUs of one name; `None`: what this one does is not known.
    fn number(&self, job: &Job, gpu: &Gpu) -> Option<u64>;
    /// What it does. Its class says with which tasks it learns.
    fn profile(&self, job: &Job, gpu: &Gpu) -> Option<Profile>;
}

/// How the predictor calls a way of sharing; a job without neighbours counts as time-sliced.
#[must_use]
pub const fn mode(sharing: SharingMode) -> Mode {
    match sharing {
        SharingMode::Mps => Mode::Mps,
        SharingMode::TimeSlice | SharingMode::Exclusive => Mode::TimeSlice,
    }
}

fn threads(job: &Job) -> Option<u8> {
    job.placement().map_or(job.spec.request.thread_percent, |placed| placed.thread_percent)
}

/// Profiles of jobs on a GPU, with their limits on threads; `None`: one of them has none.
fn known(jobs: &[&Job], gpu: &Gpu, alone: &impl Alone) -> Option<Vec<(Profile, Option<f64>)>> {
    jobs.iter().map(|job| Some((alone.profile(job, gpu)?, threads(job).map(f64::from)))).collect()
}

fn members(known: &[(Profile, Option<f64>)]) -> Vec<Member<'_>> {
    known.iter().map(|(profile, threads_pct)| Member { profile, threads_pct: *threads_pct }).collect()
}

/// The models that are asked.
#[derive(Debug, Clone, Copy)]
pub struct Models<'a> {
    /// Of each job's progress.
    pub slowdowns: &'a SlowdownModel,
    /// Of what a group gets done, for a policy that goes by that.
    pub kace: Option<&'a Trained>,
}

/// What was answered, to be forgotten when a model or a profile changes: jobs of few commands on GPUs of few types
/// make few groups, however many jobs wait.
#[derive(Debug, Default)]
pub struct Answered {
    /// By product name of the GPU; by way of sharing, whether KACE is asked, and number and limit of each member.
    groups: BTreeMap<String, BTreeMap<Kind, Forecast>>,
}

/// Groups that are kept. Users choose commands, and neighbours change: beyond these all are forgotten.
const MOST_GROUPS: usize = 100_000;

type Kind = (Mode, bool, Vec<(u64, Option<u8>)>);

/// What is predicted of a group.
#[derive(Debug)]
struct Forecast {
    /// Expected progress of each member, and its lower bound; `None`: more than the model takes together.
    tasks: Option<Vec<(Fraction, Fraction)>>,
    /// Sum of the expected progress.
    sum: Fraction,
    /// What they get done by KACE, where that was asked; else members of whom too little is known.
    throughput: Option<Result<i64, Vec<usize>>>,
}

impl Answered {
    /// Nothing of it holds any more.
    pub fn clear(&mut self) {
        self.groups.clear();
    }

    /// The forecast of these jobs; `None`: what one of them does alone is not known.
    fn of(
        &mut self,
        models: Models<'_>,
        gpu: &Gpu,
        sharing: Mode,
        jobs: &[&Job],
        alone: &impl Alone,
    ) -> Option<&Forecast> {
        let numbers = jobs.iter().map(|job| Some((alone.number(job, gpu)?, threads(job))));
        let key = (sharing, models.kace.is_some(), numbers.collect::<Option<Vec<_>>>()?);
        if self.groups.values().map(BTreeMap::len).sum::<usize>() >= MOST_GROUPS {
            self.clear();
        }
        if !self.groups.contains_key(&gpu.info.name) {
            self.groups.insert(gpu.info.name.clone(), BTreeMap::new());
        }
        let groups = self.groups.get_mut(&gpu.info.name)?;
        match groups.entry(key) {
            Entry::Occupied(entry) => Some(entry.into_mut()),
            Entry::Vacant(entry) => {
                Some(entry.insert(Forecast::of(models, gpu, sharing, &known(jobs, gpu, alone)?)))
            }
        }
    }
}

impl Forecast {
    fn of(models: Models<'_>, gpu: &Gpu, sharing: Mode, known: &[(Profile, Option<f64>)]) -> Self {
        let gpu = &GpuType::named(&gpu.info.name);
        let members = &members(known);
        let fraction = |progress: f64| Fraction::from_f64(progress).unwrap_or(Fraction(0));
        let forecast = models.slowdowns.predict(&Group { gpu, sharing, members }).ok();
        let task = |task: &TaskForecast| (fraction(task.progress.expected), fraction(task.progress.lower));
        Self {
            tasks: forecast.as_ref().map(|forecast| forecast.tasks.iter().map(task).collect()),
            sum: fraction(forecast.map_or(0.0, |forecast| forecast.sum)),
            throughput: models.kace.map(|kace| throughput(kace, gpu, sharing, members)),
        }
    }
}

/// What is predicted if the newcomer joins the jobs that are on the GPU now. `None`: there is no such job or GPU.
#[must_use]
pub fn answer(
    models: Models<'_>,
    state: &State,
    asked: &Question,
    alone: &impl Alone,
    answered: &mut Answered,
) -> Option<Outlook> {
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
    let sharing = mode(asked.sharing);
    let by_throughput = state.options().policy.order == Order::Throughput;
    let models = Models { kace: models.kace.filter(|_| by_throughput), ..models };
    let before = answered.of(models, gpu, sharing, &there, alone).map(|forecast| forecast.sum);
    let (Some(before), Some(forecast)) = (before, answered.of(models, gpu, sharing, &all, alone)) else {
        let unknown = all.iter().filter(|job| alone.number(job, gpu).is_none());
        outlook.unknown = unknown.map(|job| job.spec.id).collect();
        return Some(outlook);
    };
    if by_throughput {
        match &forecast.throughput {
            Some(Ok(sum)) => outlook.throughput = Some(*sum),
            Some(Err(at)) => {
                outlook.unknown = at.iter().filter_map(|at| Some(all.get(*at)?.spec.id)).collect();
                return Some(outlook);
            }
            None => return Some(Outlook { unknown: vec![asked.newcomer], ..outlook }),
        }
    }
    let Some(tasks) = &forecast.tasks else {
        // More than the model takes together: nothing is predicted.
        return Some(Outlook { unknown: vec![asked.newcomer], ..outlook });
    };
    let predicted = all.iter().zip(tasks);
    outlook.tasks = predicted
        .map(|(job, (expected, lower))| Predicted { job: job.spec.id, expected: *expected, lower: *lower })
        .collect();
    outlook.tasks.sort_by_key(|task| task.job);
    outlook.before = before;
    Some(outlook)
}

/// What KACE says that they get done together, in thousandths.
///
/// # Errors
/// Positions of those whose profiles lack a feature that the model wants; of the newcomer, who is last, where the model's
/// answer is no number.
fn throughput(
    kace: &Trained,
    gpu: &GpuType,
    sharing: Mode,
    members: &[Member<'_>],
) -> Result<i64, Vec<usize>> {
    let last = || vec![members.len().saturating_sub(1)];
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
    alone: &impl Alone,
) -> Option<Result<(), BadGroup>> {
    let known = known(jobs, gpu, alone)?;
    let most_shared = jobs.iter().filter_map(|job| job.placement()).map(|p| p.sharing).max();
    let sharing = mode(most_shared.unwrap_or(SharingMode::Exclusive));
    let (kind, members) = (GpuType::named(&gpu.info.name), members(&known));
    let group = Group { gpu: &kind, sharing, members: &members };
    Some(model.observe(&group, &Observed::Progress(progress)).map(drop))
}

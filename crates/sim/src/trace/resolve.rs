//! Puts the trace's and the catalogue's word together, and says what had to be assumed.

use super::error::{TraceError, shown};
use super::{Activity, Catalogue, CatalogueTask, Trace, TraceJob, Weight, WorkJob, Workload};
use carma_core::model::{Estimator, Forecasts};
use carma_core::units::MiB;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;

/// What is assumed of a task of which nothing is known and that resembles nothing: half of the SMs, a
/// quarter of the warps, a quarter of the memory bandwidth, which lies between the CARMA evaluation's
/// light and medium tasks. In the order of [`Activity::NAMES`]; the others stay unknown.
const ASSUMED: [Option<f64>; 7] = [None, Some(0.5), Some(0.25), Some(0.25), None, None, None];

/// How many names a note lists.
const LISTED: usize = 5;

impl Workload {
    /// Makes a trace ready to be simulated. What the trace says of a job goes before what the catalogue
    /// says of its task. Activity that neither knows is taken from the catalogue's tasks of the same
    /// weight (their mean), else from all its tasks, else from a constant; [`Workload::notes`] says so.
    /// Jobs of which the same is known share one [`CatalogueTask`].
    ///
    /// # Errors
    /// A task that the catalogue does not have, or a job whose run time neither says.
    pub fn resolve(trace: &Trace, catalogue: Option<&Catalogue>) -> Result<Self, TraceError> {
        let file = trace.file.as_deref().unwrap_or(Path::new(""));
        let forecast = |catalogue: &Catalogue| {
            catalogue.tasks.values().any(|task| task.forecasts != Forecasts::default())
        };
        let mut tasks = Tasks {
            means: catalogue.map(Means::of).unwrap_or_default(),
            forecast: catalogue.is_some_and(forecast),
            ..Tasks::default()
        };
        let mut users: Vec<Arc<str>> = Vec::new();
        let mut user_at: HashMap<Arc<str>, u32> = HashMap::new();
        let mut jobs = Vec::with_capacity(trace.jobs.len());
        for job in &trace.jobs {
            let fail = |what: String| TraceError::new(file, job.line, what);
            let base = match (job.task.as_deref(), catalogue) {
                (Some(name), Some(catalogue)) => Some(catalogue.tasks.get(name).ok_or_else(|| {
                    fail(format!(
                        "job {}: the catalogue has no task {}; the nearest are {}",
                        shown(&job.id),
                        shown(name),
                        catalogue.nearest(name).join(", ")
                    ))
                })?),
                _ => None,
            };
            let duration = job.duration.or_else(|| base.and_then(|task| task.duration));
            let duration = duration.ok_or_else(|| {
                let what = match (job.task.as_deref(), catalogue) {
                    (None, _) => "give it a duration_s, or a task of the catalogue".to_owned(),
                    (Some(task), None) => {
                        format!(
                            "give it a duration_s, or name a catalogue with the task {} (--catalogue, or as NAME.tasks.csv beside \
                             the trace NAME.csv)",
                            shown(task)
                        )
                    }
                    (Some(task), Some(_)) => {
                        format!("the task {} has none in the catalogue either; add it there", shown(task))
                    }
                };
                fail(format!("job {} has no run time: {what}", shown(&job.id)))
            })?;
            let gpus = job.gpus.unwrap_or_else(|| base.map_or(1, |task| task.gpus)).max(1);
            let user = if job.user.is_empty() { Arc::from("-") } else { Arc::clone(&job.user) };
            let user = *user_at.entry(user).or_insert_with_key(|name| {
                users.push(Arc::clone(name));
                // As many users as jobs, of which a trace has at most 10 million.
                u32::try_from(users.len() - 1).unwrap_or(u32::MAX)
            });
            jobs.push(WorkJob {
                line: job.line,
                id: Arc::clone(&job.id),
                arrival: job.arrival,
                duration,
                gpus,
                threads: job.threads,
                user,
                task: tasks.get(job, base, gpus),
            });
        }
        let mut notes = trace.notes.clone();
        notes.extend(catalogue.iter().flat_map(|catalogue| catalogue.notes.iter().cloned()));
        notes.extend(tasks.notes());
        Ok(Self { name: trace.name.clone(), users, jobs, notes })
    }
}

/// All that can tell two jobs' tasks apart.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    task: Option<Arc<str>>,
    memory: Option<MiB>,
    /// The bits of the overrides.
    activity: [Option<u64>; 7],
    /// Its memory is listed for each GPU, and the job asks for another number of them.
    resized: bool,
}

/// The tasks made so far.
#[derive(Default)]
struct Tasks {
    made: HashMap<Key, usize>,
    list: Vec<(Arc<CatalogueTask>, Vec<Assumption>, u64)>,
    means: Means,
    /// The catalogue says what is forecast of memory, of some tasks at least.
    forecast: bool,
}

/// What was assumed of a task.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Assumption {
    /// The mean of the catalogue's tasks, for the field at this place.
    Mean { field: usize, of: Option<Weight>, count: usize, value: f64 },
    /// The constant.
    Constant { field: usize, value: f64 },
    /// Nothing is known of its memory.
    NoMemory,
    /// Its memory counts as measured in earlier runs, since there is no forecast of any.
    Measured,
    /// The largest of its list of memory stands for each GPU.
    Resized,
}

impl Tasks {
    fn get(&mut self, job: &TraceJob, base: Option<&Arc<CatalogueTask>>, gpus: u32) -> Arc<CatalogueTask> {
        let resized = job.memory.is_none()
            && base.is_some_and(|task| task.memory.len() > 1 && task.memory.len() != gpus as usize);
        let key = Key {
            task: job.task.clone(),
            memory: job.memory,
            activity: job.activity.fields().map(|value| value.map(f64::to_bits)),
            resized,
        };
        if let Some(at) = self.made.get(&key) {
            let (task, _, jobs) = &mut self.list[*at];
            *jobs += 1;
            return Arc::clone(task);
        }
        let (task, assumptions) = self.make(job, base, resized);
        self.made.insert(key, self.list.len());
        self.list.push((Arc::clone(&task), assumptions, 1));
        task
    }

    fn make(
        &self,
        job: &TraceJob,
        base: Option<&Arc<CatalogueTask>>,
        resized: bool,
    ) -> (Arc<CatalogueTask>, Vec<Assumption>) {
        let mut task = base.map(|task| CatalogueTask::clone(task)).unwrap_or_default();
        let mut assumptions = Vec::new();
        if base.is_none() {
            task.name = job.task.clone().unwrap_or_default();
        }
        if let Some(memory) = job.memory {
            task.memory = vec![memory];
        }
        if resized {
            task.memory = task.memory.iter().max().copied().into_iter().collect();
            assumptions.push(Assumption::Resized);
        }
        if task.memory.is_empty() {
            assumptions.push(Assumption::NoMemory);
        }
        if let Some(most) = task.memory.iter().max().filter(|_| !self.forecast) {
            task.forecasts.estimates = task.forecasts.estimates.with(Estimator::Measured, Some(*most));
            assumptions.push(Assumption::Measured);
        }
        let mut fields = task.activity.fields();
        for (field, given) in job.activity.fields().into_iter().enumerate() {
            if given.is_some() {
                fields[field] = given;
            }
            if fields[field].is_some() {
                continue;
            }
            let assumption = self.means.assume(field, task.weight);
            fields[field] = match assumption {
                Some(Assumption::Mean { value, .. } | Assumption::Constant { value, .. }) => Some(value),
                _ => None,
            };
            assumptions.extend(assumption);
        }
        task.activity = Activity::from_fields(fields);
        match base {
            // Nothing changed: the catalogue's own will do.
            Some(base) if **base == task => (Arc::clone(base), assumptions),
            _ => (Arc::new(task), assumptions),
        }
    }

    /// One sentence for each kind of assumption.
    fn notes(&self) -> Vec<String> {
        let mut kinds: BTreeMap<String, (BTreeSet<&str>, u64)> = BTreeMap::new();
        for (task, assumptions, jobs) in &self.list {
            for assumption in assumptions {
                let entry = kinds.entry(assumption.text()).or_default();
                entry.0.extend(Some(&*task.name).filter(|name| !name.is_empty()));
                entry.1 += jobs;
            }
        }
        kinds
            .into_iter()
            .map(|(text, (tasks, jobs))| {
                let named: Vec<&str> = tasks.iter().take(LISTED).copied().collect();
                let more = if tasks.len() > LISTED { ", ..." } else { "" };
                let which = match named.len() {
                    0 => String::new(),
                    _ => format!(", {}: {}{more}", counted(tasks.len() as u64, "task"), named.join(", ")),
                };
                format!("{text} ({}{which})", counted(jobs, "job"))
            })
            .collect()
    }
}

/// `1 job`, `2 jobs`.
pub(crate) fn counted(n: u64, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// How the note begins that says what policies are told of memory. It does not hold where they are told nothing.
pub const TOLD_AS_MEASURED: &str = "no forecast of GPU memory is given; policies are told what the jobs take";

impl Assumption {
    fn text(self) -> String {
        match self {
            Self::Mean { field, of: Some(weight), count, value } => format!(
                "{} is not known; assumed {value:.2}, the mean of {}",
                Activity::NAMES[field],
                counted(count as u64, &format!("{} task", weight.as_str()))
            ),
            Self::Mean { field, of: None, count, value } => format!(
                "{} is not known; assumed {value:.2}, the mean of the catalogue's {}",
                Activity::NAMES[field],
                counted(count as u64, "task")
            ),
            Self::Constant { field, value } => {
                format!("{} is not known, nor of any like task; assumed {value:.2}", Activity::NAMES[field])
            }
            Self::NoMemory => "GPU memory is not known; none is assumed, and policies that choose by free memory cannot tell GPUs apart".to_owned(),
            Self::Measured => format!("{TOLD_AS_MEASURED}, as if earlier runs had been measured"),
            Self::Resized => {
                "GPU memory is listed for another number of GPUs; the largest is taken for each".to_owned()
            }
        }
    }
}

/// Means of the catalogue: by field, of one weight or of all.
#[derive(Default)]
struct Means(BTreeMap<(usize, Option<Weight>), (f64, usize)>);

impl Means {
    fn of(catalogue: &Catalogue) -> Self {
        let mut sums: BTreeMap<(usize, Option<Weight>), (f64, usize)> = BTreeMap::new();
        for task in catalogue.tasks.values() {
            for (field, value) in task.activity.fields().into_iter().enumerate() {
                let Some(value) = value else { continue };
                // Under its weight and under none, which is all; a task without weight counts once.
                for key in [Some((field, None)), task.weight.map(|w| (field, Some(w)))].into_iter().flatten()
                {
                    let sum = sums.entry(key).or_default();
                    *sum = (sum.0 + value, sum.1 + 1);
                }
            }
        }
        Self(sums)
    }

    fn assume(&self, field: usize, weight: Option<Weight>) -> Option<Assumption> {
        let mean = |of: Option<Weight>| {
            let (sum, count) = *self.0.get(&(field, of))?;
            Some(Assumption::Mean { field, of, count, value: sum / count as f64 })
        };
        let alike = weight.and_then(|w| mean(Some(w)));
        alike.or_else(|| mean(None)).or_else(|| {
            let value = ASSUMED[field]?;
            Some(Assumption::Constant { field, value })
        })
    }
}

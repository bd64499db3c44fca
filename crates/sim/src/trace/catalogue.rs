//! The catalogue of tasks: what each kind of job needs and does when it has its GPUs alone.

use super::Weight;
use super::error::{TraceError, shown};
use super::lines::open;
use super::read::ActivityColumns;
use super::table::{Separator, Table, millis};
use carma_core::model::{Estimator, Forecasts};
use carma_core::units::{MiB, Millis};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

/// What a task does to each of its GPUs when alone: shares of the peak, 0 to 1, under the meanings of
/// DCGM's fields 1001-1005. `None`: not known.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Activity {
    /// Share of time with a kernel resident (GRACT).
    pub gract: Option<f64>,
    /// SM activity (SMACT).
    pub smact: Option<f64>,
    /// Warp occupancy (SMOCC).
    pub smocc: Option<f64>,
    /// DRAM activity (DRAMA).
    pub drama: Option<f64>,
    /// Tensor pipes.
    pub tensor: Option<f64>,
    /// PCIe traffic, share of the link.
    pub pcie: Option<f64>,
    /// Host CPU, share of the cores that belong to one GPU (cores of the machine over its GPUs).
    pub cpu: Option<f64>,
}

impl Activity {
    /// Names of the fields, as columns bear them, in the order of [`Activity::fields`].
    pub const NAMES: [&'static str; 7] = ["gract", "smact", "smocc", "drama", "tensor", "pcie", "cpu"];

    /// The fields, in the order of [`Activity::NAMES`].
    #[must_use]
    pub const fn fields(&self) -> [Option<f64>; 7] {
        [self.gract, self.smact, self.smocc, self.drama, self.tensor, self.pcie, self.cpu]
    }

    /// From the fields in the order of [`Activity::NAMES`].
    #[must_use]
    pub const fn from_fields(fields: [Option<f64>; 7]) -> Self {
        let [gract, smact, smocc, drama, tensor, pcie, cpu] = fields;
        Self { gract, smact, smocc, drama, tensor, pcie, cpu }
    }
}

/// One kind of task.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct CatalogueTask {
    /// Name in traces.
    pub name: Arc<str>,
    /// Model and data, for people.
    pub model: String,
    /// How heavy it is.
    pub weight: Option<Weight>,
    /// Number of GPUs; 0 counts as 1.
    pub gpus: u32,
    /// Run time alone, start-up included.
    pub duration: Option<Millis>,
    /// Most GPU memory on each of its GPUs. One entry stands for all of them.
    pub memory: Vec<MiB>,
    /// Memory over time: share of the active run (0 to 1) and share of the peak (0 to 1), ascending.
    /// Empty: all of it from the first activity on.
    pub memory_over_time: Vec<(f64, f64)>,
    /// What it does when alone.
    pub activity: Activity,
    /// From start to the first GPU activity.
    pub startup: Option<Millis>,
    /// What the estimators say of its memory.
    pub forecasts: Forecasts,
    /// Lucid's sharing score: 0 tiny, 1 medium, 2 jumbo.
    pub lucid_score: Option<u8>,
    /// Factor of the weight that its activity gives it where MPS clients divide what is scarce: large for tasks of long
    /// kernels, small for tasks of short ones. `None`: 1. Only ratios matter.
    pub mps_weight: Option<f64>,
    /// Steps a second alone, each of which ends with an answer that it waits for; 0: it never waits. `None`: not known.
    pub steps_per_s: Option<f64>,
    /// Rate alone by MPS thread percentage: (percent, share of the full rate), ascending.
    pub mps_curve: Vec<(f64, f64)>,
}

/// Tasks by name.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Catalogue {
    /// The tasks.
    pub tasks: BTreeMap<Arc<str>, Arc<CatalogueTask>>,
    /// What the reader has to say, for people: one sentence each.
    pub notes: Vec<String>,
}

/// Column of an estimator's forecast, MiB: `gpumemnet_mib`.
pub(super) fn forecast_column(estimator: Estimator) -> String {
    format!("{}_mib", estimator.name().replace('-', "_"))
}

impl Catalogue {
    /// Reads a catalogue from a file, gzipped or not.
    ///
    /// # Errors
    /// The file, the line, and what is wrong.
    pub fn read_file(file: &Path) -> Result<Self, TraceError> {
        Self::read(open(file)?, file)
    }

    /// Reads a catalogue from anything; `file` is for messages. The columns are those of
    /// `docs/traces.md`, or of the table of tasks that came with the CARMA evaluation.
    ///
    /// # Errors
    /// As [`Catalogue::read_file`].
    pub fn read(reader: impl Read, file: &Path) -> Result<Self, TraceError> {
        let mut table = Table::new(reader, file, Separator::Comma)?;
        let [name] = table.require([&["task", "rad"]])?;
        let model = table.column(&["model"]);
        let class = table.column(&["class"]);
        let gpus = table.column(&["gpus"]);
        let duration = table.column(&["duration_s", "solo_runtime_s"]);
        let epoch = table.column(&["readme_et_min_per_epoch"]);
        let epochs = table.column(&["epochs"]);
        let memory = table.column(&["memory_mib", "solo_peak_mib"]);
        let activity = ActivityColumns::of(&mut table, true);
        let startup = table.column(&["startup_s"]);
        let over_time = table.column(&["memory_over_time"]);
        let curve = table.column(&["mps_curve"]);
        let score = table.column(&["lucid_score"]);
        let mps_weight = table.column(&["mps_weight"]);
        let steps = table.column(&["steps_per_s"]);
        let declared = table.column(&["declared_mib"]);
        let estimates =
            Estimator::ALL.map(|estimator| (estimator, table.column(&[forecast_column(estimator).as_str()])));

        let mut catalogue = Self { tasks: BTreeMap::new(), notes: table.unused().into_iter().collect() };
        let (mut by_epochs, mut by_forecast) = (Vec::new(), Vec::new());
        while let Some(row) = table.next()? {
            let name: Arc<str> = row.name(name)?.ok_or_else(|| row.bad(name, "the name of the task"))?.into();
            let mut forecasts = Forecasts { declared: row.some_mib(declared)?, ..Forecasts::default() };
            for (estimator, column) in estimates {
                forecasts.estimates = forecasts.estimates.with(estimator, row.mib(column)?);
            }
            let mut task = CatalogueTask {
                name: Arc::clone(&name),
                model: row.name(model)?.unwrap_or_default().to_owned(),
                weight: match (row.text(class), class) {
                    (Some(text), Some(column)) => {
                        let known = Weight::ALL.into_iter().find(|w| text.eq_ignore_ascii_case(w.as_str()));
                        Some(known.ok_or_else(|| row.bad(column, "light, medium or heavy"))?)
                    }
                    _ => None,
                },
                gpus: row.gpus(gpus)?.unwrap_or_default(),
                duration: row.duration(duration)?,
                memory: memory_list(row.text(memory)).ok_or_else(|| {
                    row.bad(memory.unwrap_or_default(), "MiB, or a list of MiB for each GPU, `900;400`")
                })?,
                memory_over_time: row.pairs(
                    over_time,
                    0.0..=1.0,
                    0.0..=1.0,
                    "pairs of time and memory, both shares from 0 to 1, times ascending: `0:0.3;0.02:1`",
                )?,
                activity: activity.read(&row)?,
                startup: row.seconds(startup)?,
                forecasts,
                mps_weight: row.number(mps_weight, 0.001..=1000.0, "a weight from 0.001 to 1000")?,
                steps_per_s: row.number(steps, 0.0..=1e6, "steps a second")?,
                lucid_score: row.number(score, 0.0..=2.0, "0, 1 or 2")?.map(|score| score as u8),
                // Measured curves pass 1 now and then.
                mps_curve: row.pairs(
                    curve,
                    0.0..=100.0,
                    0.0..=2.0,
                    "pairs of percent and share of the full rate, percent ascending: `10:0.2;50:0.8;100:1`",
                )?,
            };
            if task.memory.len() > 1 && task.memory.len() != task.gpus.max(1) as usize {
                let what = format!(
                    "memory_mib lists {} GPUs, and gpus says {}",
                    task.memory.len(),
                    task.gpus.max(1)
                );
                return Err(row.fail(what));
            }
            if task.duration.is_none() {
                let epoch = row.number(epoch, 0.0..=1e6, "minutes")?;
                let epochs = row.number(epochs, 0.0..=1e6, "a number of epochs")?;
                task.duration = epoch.zip(epochs).map(|(t, n)| millis(t * n * 60.0)).filter(|t| t.0 > 0);
                if task.duration.is_some() {
                    by_epochs.push(Arc::clone(&name));
                }
            }
            if task.memory.is_empty()
                && let Some(measured) = forecasts.estimates.of(Estimator::Measured)
            {
                task.memory.push(measured);
                by_forecast.push(Arc::clone(&name));
            }
            match catalogue.tasks.entry(Arc::clone(&name)) {
                Entry::Occupied(_) => {
                    return Err(row.fail(format!("the task {} stands twice in the catalogue", shown(&name))));
                }
                Entry::Vacant(slot) => slot.insert(Arc::new(task)),
            };
        }
        if catalogue.tasks.is_empty() {
            return Err(TraceError::new(file, 0, "has a header and no task"));
        }
        let mut note = |names: &[Arc<str>], what: &str| {
            if !names.is_empty() {
                catalogue.notes.push(format!("{what}: {}", names.join(", ")));
            }
        };
        note(&by_epochs, "no run time measured; time of an epoch x epochs taken");
        note(&by_forecast, "no peak of memory measured in the solo run; measured_mib taken");
        Ok(catalogue)
    }

    /// The names that look most like this one, for messages: at most three.
    #[must_use]
    pub fn nearest(&self, name: &str) -> Vec<&str> {
        let name: Vec<char> = name.to_lowercase().chars().take(64).collect();
        let mut by_distance: Vec<(usize, &str)> = self
            .tasks
            .keys()
            .map(|task| (distance(&name, &task.to_lowercase().chars().take(64).collect::<Vec<_>>()), &**task))
            .collect();
        by_distance.sort();
        by_distance.into_iter().take(3).map(|(_, task)| task).collect()
    }
}

/// `900` or `900;400`; nothing is an empty list; `None` when it is something else.
fn memory_list(text: Option<&str>) -> Option<Vec<MiB>> {
    let Some(text) = text else { return Some(Vec::new()) };
    text.split(';')
        .map(|part| {
            let value = part.trim().parse::<f64>().ok().filter(|v| (0.0..=1e12).contains(v))?;
            Some(MiB(value.ceil() as u64))
        })
        .collect()
}

/// Letters to insert, delete or change to make one word of the other (Levenshtein).
fn distance(a: &[char], b: &[char]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let above = row[j + 1];
            row[j + 1] = (diagonal + usize::from(x != y)).min(above + 1).min(row[j] + 1);
            diagonal = above;
        }
    }
    row[b.len()]
}

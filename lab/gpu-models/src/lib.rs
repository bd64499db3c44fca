//! Fitting the constants of GPU types to measurements: least squares over few parameters, what the fit
//! does not explain, and how far off it is on what it never saw.
//!
//! [`fit`] returns a [`Fit`]: one [`Part`] for each set of rows, and the model's file with the fitted
//! values written in. `carma lab fit` prints it. What is fitted to what, and what is held out on purpose, is
//! in `docs/research/gpu-models.md`. [`reproduce`] replays published tables with the fitted types.

mod a100;
pub mod data;
mod h200;
mod replay;
pub mod reproduce;
mod search;
mod traces;
mod write;

use search::RESAMPLES;
pub use search::{Errors, Fitted};

use carma_hardware::GpuType;
use carma_interference::power::PowerLaw as _;
use carma_interference::share::{Mode, Scratch, Tenant};
use carma_sim::gpu::Law;
use data::{Powered, Together};
use search::{Key, Problem};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// What can be fitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// A100-40GB: published figures only.
    A100,
    /// H200: our own measurements.
    H200,
    /// V100: KACE's triples.
    V100,
}

impl Target {
    /// The target of a name as the command line has it.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "a100" => Some(Self::A100),
            "h200" => Some(Self::H200),
            "v100" => Some(Self::V100),
            _ => None,
        }
    }

    /// Name of the model that is fitted.
    #[must_use]
    pub const fn model(self) -> &'static str {
        match self {
            Self::A100 => "A100-40GB",
            Self::H200 => "H200",
            Self::V100 => "V100-32GB",
        }
    }
}

/// One measured row and what the model says of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FittedRow {
    /// What was measured.
    pub label: String,
    /// The measured value, in the part's unit.
    pub measured: f64,
    /// The model's.
    pub model: f64,
    /// Whether it was kept out of the fit.
    pub held_out: bool,
}

impl FittedRow {
    /// Model over measured, less 1.
    #[must_use]
    pub fn residual(&self) -> f64 {
        self.model / self.measured - 1.0
    }
}

/// Errors on rows that the fit never saw.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HeldOut {
    /// What was left out, and how.
    pub how: String,
    /// The errors there.
    pub errors: Errors,
}

/// One set of rows and the parameters that were fitted to it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Part {
    /// What it is about.
    pub title: String,
    /// Unit of the rows' values.
    pub unit: String,
    /// The parameters.
    pub parameters: Vec<Fitted>,
    /// Whether what the rows identify goes into the model's file; if not, the notes say why.
    pub taken: bool,
    /// Errors on the rows that were fitted.
    pub in_sample: Errors,
    /// Errors elsewhere.
    pub held_out: Vec<HeldOut>,
    /// The rows.
    pub rows: Vec<FittedRow>,
    /// What else has to be said.
    pub notes: Vec<String>,
}

/// What came of a fit.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Fit {
    /// The model's name.
    pub gpu: String,
    /// What was read.
    pub data: Vec<String>,
    /// The parts.
    pub parts: Vec<Part>,
    /// The model's file with the fitted values.
    #[serde(skip)]
    pub model: String,
}

/// Why nothing was fitted or replayed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Error(String);

/// Where measurements are looked for.
#[derive(Debug, Clone, Copy)]
pub struct Places<'a> {
    /// The folder that was named; `None`: the target's usual one under `root`.
    pub named: Option<&'a Path>,
    /// A checkout of the repository, with our own measurements in `bench/h200/results` and those of others
    /// beside it in `../shared/data`. Empty: the folder in which the program was started.
    pub root: &'a Path,
}

impl Places<'_> {
    /// The folder with other people's data; `None`: it is not there.
    fn shared(&self) -> Option<PathBuf> {
        data::shared(self.root)
    }
}

/// Fits a model to the measurements in these places.
///
/// # Errors
/// Data that isn't there or can't be read; a built-in model that is broken.
pub fn fit(target: Target, places: Places<'_>) -> Result<Fit, Error> {
    let model = GpuType::find(target.model()).map_err(Error)?;
    let mut fitting = Fitting { model, changes: Vec::new(), parts: Vec::new(), data: Vec::new() };
    match target {
        Target::V100 => v100(&mut fitting, places)?,
        Target::H200 => h200::fit(&mut fitting, places)?,
        Target::A100 => a100::fit(&mut fitting, places)?,
    }
    let text = carma_hardware::built_in_text(target.model())
        .ok_or_else(|| Error(format!("{} has no file", target.model())))?;
    Ok(Fit {
        gpu: target.model().to_owned(),
        data: fitting.data,
        parts: fitting.parts,
        model: write::with(text, &fitting.changes),
    })
}

struct Fitting {
    model: GpuType,
    changes: Vec<write::Change>,
    parts: Vec<Part>,
    data: Vec<String>,
}

impl Fitting {
    /// Takes a part's identified parameters into the model.
    fn take(&mut self, part: Part, source: &str) {
        for fitted in part.parameters.iter().filter(|fitted| fitted.identified) {
            set(&mut self.model, &fitted.key, fitted.value);
            self.changes.push(write::Change {
                key: fitted.key.clone(),
                value: fitted.value,
                source: source.to_owned(),
            });
        }
        self.parts.push(part);
    }

    /// Only shows a part.
    fn show(&mut self, part: Part) {
        self.parts.push(Part { taken: false, ..part });
    }

    fn key(&self, key: &'static str, low: f64, high: f64) -> Key {
        Key { key, start: get(&self.model, key).clamp(low, high), low, high }
    }
}

fn slot<'a>(model: &'a mut GpuType, key: &str) -> Option<&'a mut f64> {
    Some(match key {
        "power.idle_w" => &mut model.power.idle_w,
        "power.gract" => &mut model.power.gract,
        "power.smact" => &mut model.power.smact,
        "power.dram" => &mut model.power.dram,
        "power.tensor" => &mut model.power.tensor,
        "power.clock_exponent" => &mut model.power.clock_exponent,
        "time_slice.gract" => &mut model.capacities.time_slice_gract,
        "mps.sm" => &mut model.capacities.mps_sm,
        "mps.crowding" => &mut model.capacities.crowding,
        "mps.weight_free_sms" => &mut model.capacities.weight_free_sms,
        "mps.weight_tensor" => &mut model.capacities.weight_tensor,
        "activity.steps_per_s" => &mut model.capacities.steps_per_s,
        "mps.dram" => &mut model.capacities.mps_dram,
        "mps.tensor" => &mut model.capacities.mps_tensor,
        "activity.gract_exponent" => &mut model.gract_exponent,
        _ => return None,
    })
}

fn set(model: &mut GpuType, key: &str, value: f64) {
    if let Some(slot) = slot(model, key) {
        *slot = value;
    }
}

fn get(model: &GpuType, key: &str) -> f64 {
    slot(&mut model.clone(), key).map_or(0.0, |value| *value)
}

/// The model without what is dear to copy: fits copy it a million times.
fn light(model: &GpuType) -> GpuType {
    GpuType { mig: Vec::new(), ..model.clone() }
}

/// The model with other values for some keys.
fn with(model: &GpuType, keys: &[Key], values: &[f64]) -> GpuType {
    let mut model = model.clone();
    for (key, value) in keys.iter().zip(values) {
        set(&mut model, key.key, *value);
    }
    model
}

fn progress(model: &GpuType, mode: Mode, tenants: &[Tenant]) -> Vec<f64> {
    let mut progress = Vec::with_capacity(tenants.len());
    Law::from(model).run(mode, tenants, &mut Scratch::default(), &mut progress);
    progress
}

fn total(model: &GpuType, set: &Together) -> f64 {
    progress(model, set.mode, &set.tenants).iter().sum()
}

/// Rows that only test: how they are called, the rows, and whether they are shown.
type Held<'a, O> = (&'a str, &'a [O], bool);

/// A model's value for a row, with these values of the parameters.
type Of<'a, O> = dyn Fn(&[f64], &O) -> f64 + 'a;

/// Fits one part: `held` are sets of rows that only test.
#[allow(clippy::too_many_arguments)]
fn fit_rows<O>(
    title: &str,
    unit: &str,
    keys: Vec<Key>,
    rows: &[O],
    model: &Of<'_, O>,
    said: Option<&Of<'_, O>>,
    measured: &dyn Fn(&O) -> f64,
    families: &dyn Fn(&O) -> Vec<String>,
    label: &dyn Fn(&O) -> String,
    family: &str,
    held: &[Held<'_, O>],
) -> Part {
    let said = said.unwrap_or(model);
    let problem = Problem { keys, model, said, measured, resamples: RESAMPLES, families };
    let all: Vec<&O> = rows.iter().collect();
    let parameters = problem.fit(&all);
    let values: Vec<f64> = parameters.iter().map(|fitted| fitted.value).collect();
    let mut held_out = Vec::new();
    let left = problem.leave_one_out(&all);
    if !left.is_empty() {
        let how = format!("leave one {family} out, the others fitted");
        held_out.push(HeldOut { how, errors: Errors::of(&left) });
    }
    let row = |row: &O, held_out| FittedRow {
        label: label(row),
        measured: measured(row),
        model: said(&values, row),
        held_out,
    };
    let mut shown: Vec<FittedRow> = rows.iter().map(|r| row(r, false)).collect();
    for (how, rows, show) in held {
        let errors = Errors::of(&problem.errors(&values, *rows));
        held_out.push(HeldOut { how: (*how).to_owned(), errors });
        if *show {
            shown.extend(rows.iter().map(|r| row(r, true)));
        }
    }
    let in_sample = Errors::of(&problem.errors(&values, rows));
    Part {
        title: title.to_owned(),
        unit: unit.to_owned(),
        parameters,
        taken: true,
        in_sample,
        held_out,
        rows: shown,
        notes: Vec::new(),
    }
}

/// [`fit_rows`] for total progress of sets of tasks.
fn sharing(
    fitting: &Fitting,
    title: &str,
    keys: Vec<Key>,
    rows: &[Together],
    held: &[Held<'_, Together>],
) -> Part {
    let base = light(&fitting.model);
    let of = keys.clone();
    let mut part = fit_rows(
        title,
        "total progress, exclusive GPUs",
        keys,
        rows,
        &|values, set| total(&with(&base, &of, values), set),
        None,
        &Together::total,
        &|set| set.families.clone(),
        &|set| set.label.clone(),
        "kind of task",
        held,
    );
    let values: Vec<f64> = part.parameters.iter().map(|fitted| fitted.value).collect();
    part.notes.push(own_progress(&with(&base, &of, &values), rows));
    part
}

/// Errors of each task's own progress.
fn own_progress(model: &GpuType, sets: &[Together]) -> String {
    let each = Errors::of(&each_errors(model, sets));
    format!(
        "Of each task's own progress: MAPE {:.1} %, median {:.1} % (what the law does not know of a task decides who \
         gets more)",
        each.mape * 100.0,
        each.median * 100.0
    )
}

fn each_errors(model: &GpuType, sets: &[Together]) -> Vec<f64> {
    let of = |set: &Together| -> Vec<f64> {
        let said = progress(model, set.mode, &set.tenants);
        said.into_iter().zip(&set.progress).map(|(p, measured)| p / measured - 1.0).collect()
    };
    sets.iter().flat_map(of).collect()
}

/// [`fit_rows`] for power.
fn power(
    fitting: &Fitting,
    title: &str,
    keys: Vec<Key>,
    rows: &[Powered],
    family: &str,
    held: &[Held<'_, Powered>],
) -> Part {
    let base = light(&fitting.model);
    let of = keys.clone();
    fit_rows(
        title,
        "W",
        keys,
        rows,
        &|values, row| {
            let power = Law::from(&with(&base, &of, values)).power;
            let limited = row.watts > 0.97 * power.cap_w;
            if limited { power.drawn_w(&row.activity) } else { power.asked_w(&row.activity) }
        },
        Some(&|values, row| Law::from(&with(&base, &of, values)).power.drawn_w(&row.activity)),
        &|row| row.watts,
        &|row| row.families.clone(),
        &|row| row.label.clone(),
        family,
        held,
    )
}

fn v100(fitting: &mut Fitting, places: Places<'_>) -> Result<(), Error> {
    let folder = match places.named {
        Some(path) => path.to_owned(),
        None => places
            .shared()
            .map(|shared| shared.join("nba556677go__KACE-artifact"))
            .ok_or_else(|| Error("KACE's tables are not there; name their folder with --data".to_owned()))?,
    };
    let kace = data::kace(&folder).map_err(Error)?;
    fitting.data.push(format!("{} (KACE, SoCC 2024; V100-32GB)", folder.display()));
    if kace.triples.is_empty() || kace.time_sliced.is_empty() {
        return Err(Error(format!("{}: no sound triples or pairs in it", folder.display())));
    }
    let keys = vec![fitting.key("mps.sm", 0.5, 1.6), fitting.key("mps.dram", 0.3, 1.6)];
    let part = sharing(
        fitting,
        "MPS: KACE's triples",
        keys,
        &kace.triples,
        &[
            ("pairs of June 2024, held out on purpose", &kace.pairs_june, false),
            ("pairs of May 2024, held out on purpose", &kace.pairs_may, false),
            ("quadruples, held out on purpose", &kace.quadruples, false),
        ],
    );
    fitting.take(part, "fitted by `carma lab fit v100` to KACE's 173 sound triples under MPS (SoCC 2024)");
    let keys = vec![fitting.key("time_slice.gract", 0.5, 1.5)];
    let mut part = sharing(fitting, "Time-slice: KACE's pairs without MPS", keys, &kace.time_sliced, &[]);
    part.notes.push("That these pairs ran without MPS is inferred from their values".to_owned());
    let source = "fitted by `carma lab fit v100` to KACE's 156 sound pairs without MPS (SoCC 2024; without MPS is inferred)";
    fitting.take(part, source);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use carma_interference::share::Demand;

    /// The repository that this is in.
    pub(crate) fn here() -> Places<'static> {
        Places { named: None, root: concat!(env!("CARGO_MANIFEST_DIR"), "/../..").as_ref() }
    }

    fn written(target: Target) {
        let fit = fit(target, here()).unwrap();
        let built_in = GpuType::find(target.model()).unwrap();
        let taken = fit.parts.iter().filter(|part| part.taken);
        for fitted in taken.flat_map(|part| &part.parameters).filter(|fitted| fitted.identified) {
            let there = get(&built_in, &fitted.key);
            assert!(
                (there - fitted.value).abs() < 0.005,
                "{}: {there} in the file, {} fitted; write it anew with `carma lab fit -o`",
                fitted.key,
                fitted.value
            );
        }
    }

    #[test]
    fn the_h200_is_as_fitted() {
        written(Target::H200);
    }

    /// The built-in file holds what the command finds.
    #[test]
    fn the_a100_is_as_fitted() {
        written(Target::A100);
    }

    #[test]
    fn the_v100_is_as_fitted() {
        if here().shared().is_none_or(|shared| !shared.join("nba556677go__KACE-artifact").is_dir()) {
            println!("skipped: ../shared/data/nba556677go__KACE-artifact is not there");
            return;
        }
        written(Target::V100);
    }

    #[test]
    fn missing_data_is_said() {
        for target in [Target::V100, Target::H200] {
            let places = Places { named: Some("/nowhere".as_ref()), ..here() };
            let error = fit(target, places).unwrap_err().to_string();
            assert!(error.contains("/nowhere"), "{error}");
        }
    }

    /// Rows that the model itself made are explained by it, and by the values that made them.
    #[test]
    fn a_fit_finds_the_values_that_made_the_rows() {
        let mut truth = GpuType::find("H200").unwrap();
        truth.capacities.mps_sm = 0.95;
        truth.capacities.mps_dram = 0.6;
        let mut rows = Vec::new();
        for (at, (sm, dram)) in
            [(0.3, 0.1), (0.6, 0.2), (0.2, 0.5), (0.9, 0.1), (0.4, 0.4)].into_iter().enumerate()
        {
            for k in 2..5 {
                let tenants = vec![Tenant::new(Demand { gract: 0.9, sm, dram, ..Demand::default() }); k];
                let progress = progress(&truth, Mode::Mps, &tenants);
                let label = format!("{sm} {dram} x{k}");
                rows.push(Together {
                    label,
                    families: vec![at.to_string()],
                    mode: Mode::Mps,
                    tenants,
                    progress,
                });
            }
        }
        let fitting = Fitting {
            model: GpuType::find("H200").unwrap(),
            changes: Vec::new(),
            parts: Vec::new(),
            data: Vec::new(),
        };
        let keys = vec![fitting.key("mps.sm", 0.5, 1.6), fitting.key("mps.dram", 0.3, 1.2)];
        let part = sharing(&fitting, "made up", keys, &rows, &[]);
        assert!((part.parameters[0].value - 0.95).abs() < 2e-3, "{:?}", part.parameters);
        assert!((part.parameters[1].value - 0.6).abs() < 2e-3, "{:?}", part.parameters);
        assert!(part.in_sample.mape < 1e-3);
    }
}

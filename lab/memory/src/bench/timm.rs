//! The timm set of GPUMemNet: 1,017 models in 5 batch sizes, measured, with their peak under `FakeTensorMode`.
//!
//! **Parameters** are not in the set. They are counted here, in `timm_parameters.csv`: models built by timm
//! 1.0.31 on the `meta` device, `sum(p.numel())`. Its column `meta` marks the 449 models that timm 1.0.9
//! could build on `meta`; the figures quoted are of those.
//!
//! **Runs that look like out of memory are removed**, by measured values: a run near the capacity of the
//! 40 GB GPU (above 38,000 MiB: it may have been cut short or have squeezed itself in), a run that took
//! less than a smaller batch of its model, and a run that took less than live tensors, weights and 1,000
//! MiB of context, which must all be there at once.
//!
//! **Halves** are by model: names in order, even ones for fitting, odd ones for the test. Everything, the
//! choice of terms and of the shrinkage of families included, was chosen by cross-validation within the
//! fitting half. Variants of one family stand in both halves; a second test leaves whole families out.

use super::{Data, Pair, Target, Test};
use crate::faketensor::{TimmRun, fit, fit_all};
use carma_memory::Error;
use carma_memory::formula::faketensor::{Correction, Terms};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Above this a run may have been cut short, MiB.
const NEAR_CAPACITY_MIB: f64 = 38_000.0;
/// Less context than any run of the campaign had, MiB.
const LEAST_CONTEXT_MIB: f64 = 1_000.0;
/// Parts into which families are divided when whole families are left out.
const FAMILY_FOLDS: usize = 5;

/// Runs, in the order of the file.
#[derive(Debug, Clone, PartialEq)]
pub struct Runs {
    /// All that do not look like out of memory.
    pub rows: Vec<TimmRun>,
    /// How many look like it.
    pub removed: usize,
    /// Models that the quoted figures are of.
    pub meta: BTreeSet<String>,
}

#[derive(Debug, Deserialize)]
struct Line {
    model: String,
    batch_size: u64,
    measured_max_gpu_memory_mib: f64,
    faketensor_after_forward_mib: f64,
    faketensor_peak_mib: f64,
}

#[derive(Debug, Deserialize)]
struct Model {
    model: String,
    parameters: u64,
    meta: u8,
}

/// Reads the set and removes what looks like out of memory.
///
/// # Errors
/// The file cannot be read, or has other columns; a model without a count of parameters.
pub fn read(path: &Path) -> Result<Runs, Error> {
    let place = || path.display().to_string();
    let models: Vec<Model> = csv::Reader::from_reader(include_str!("timm_parameters.csv").as_bytes())
        .deserialize()
        .collect::<Result<_, _>>()
        .map_err(|e| Error::bad("timm_parameters.csv of carma", e.to_string()))?;
    let parameters: BTreeMap<&str, u64> = models.iter().map(|m| (m.model.as_str(), m.parameters)).collect();
    let mut all = Vec::new();
    let mut reader = csv::Reader::from_reader(carma_files::open_bounded(path, carma_files::MOST)?);
    for line in reader.deserialize() {
        let line: Line = line.map_err(|e| Error::bad(place(), e.to_string()))?;
        let count = parameters.get(line.model.as_str()).ok_or_else(|| {
            Error::bad(place(), format!("model {} is not in timm_parameters.csv", line.model))
        })?;
        all.push(TimmRun {
            batch: line.batch_size,
            peak_mib: line.faketensor_peak_mib,
            after_forward_mib: line.faketensor_after_forward_mib,
            weights_mib: *count as f64 * 4.0 / carma_memory::MIB as f64,
            measured_mib: line.measured_max_gpu_memory_mib,
            model: line.model,
        });
    }
    let mut by_model: BTreeMap<&str, Vec<(u64, f64)>> = BTreeMap::new();
    for row in &all {
        by_model.entry(&row.model).or_default().push((row.batch, row.measured_mib));
    }
    let looks_fine = |row: &&TimmRun| {
        let smaller_took_more =
            by_model[row.model.as_str()].iter().any(|(b, mib)| *b < row.batch && *mib > row.measured_mib);
        row.measured_mib <= NEAR_CAPACITY_MIB
            && !smaller_took_more
            && row.measured_mib >= row.peak_mib + row.weights_mib + LEAST_CONTEXT_MIB
    };
    let rows: Vec<TimmRun> = all.iter().filter(looks_fine).cloned().collect();
    let removed = all.len() - rows.len();
    let meta = models.into_iter().filter(|m| m.meta == 1).map(|m| m.model).collect();
    Ok(Runs { rows, removed, meta })
}

impl Runs {
    /// The half for fitting and the half for the test.
    #[must_use]
    pub fn halves(&self) -> (Vec<TimmRun>, Vec<TimmRun>) {
        // By the list of all models, so that what is removed as out of memory does not shift the halves.
        let odd: BTreeSet<&str> = include_str!("timm_parameters.csv")
            .lines()
            .skip(2)
            .step_by(2)
            .filter_map(|l| l.split(',').next())
            .collect();
        self.rows.iter().cloned().partition(|row| !odd.contains(row.model.as_str()))
    }
}

fn pairs(rows: &[TimmRun], correction: &Correction) -> Vec<Pair> {
    rows.iter()
        .filter_map(|row| {
            let mib = correction.mib(&row.inputs())?;
            Some(pair(row, mib, Some(mib * correction.upper)))
        })
        .collect()
}

fn pair(row: &TimmRun, estimated_mib: f64, upper_mib: Option<f64>) -> Pair {
    Pair {
        label: format!("{} batch {}", row.model, row.batch),
        measured_mib: row.measured_mib,
        estimated_mib,
        upper_mib,
    }
}

/// Each family estimated by a correction that saw no model of it, without names.
fn unseen_families(rows: &[TimmRun]) -> Vec<Pair> {
    let family = |row: &TimmRun| row.model.chars().take_while(char::is_ascii_lowercase).collect::<String>();
    let families: BTreeSet<String> = rows.iter().map(family).collect();
    let fold: BTreeMap<String, usize> =
        families.into_iter().enumerate().map(|(i, f)| (f, i % FAMILY_FOLDS)).collect();
    (0..FAMILY_FOLDS)
        .filter_map(|k| {
            let (out, kept): (Vec<TimmRun>, Vec<TimmRun>) =
                rows.iter().cloned().partition(|row| fold.get(&family(row)) == Some(&k));
            Some(pairs(&out, &fit(&kept, Terms::All, false)?))
        })
        .flatten()
        .collect()
}

/// The tests, or the reason why there are none.
#[must_use]
pub fn run(data: &Data) -> Vec<Test> {
    let name = "timm set, held-out models";
    let runs = match data
        .shared("gpumemnet/timm_faketensor.csv")
        .and_then(|p| read(&p).map_err(|e| e.to_string()))
    {
        Ok(runs) => runs,
        Err(reason) => return vec![Test::skipped(name, "faketensor", reason)],
    };
    let (fitting, test) = runs.halves();
    let Some(fitted) = fit_all(&fitting) else {
        return vec![Test::skipped(name, "faketensor", "too few runs to fit")];
    };
    let of_reference: Vec<TimmRun> = test.iter().filter(|r| runs.meta.contains(&r.model)).cloned().collect();
    let target = |s: &super::Score| vec![Target::new("MRE <= 5 %", s.mre <= 0.05)];
    let none = |_: &super::Score| Vec::new();
    let raw: Vec<Pair> = test.iter().map(|row| pair(row, row.peak_mib, None)).collect();
    let smaller = "timm set, held-out models, those of the reference";
    vec![
        Test::of(name, "faketensor, raw", &raw, none),
        Test::of(name, "faketensor, corrected: peak, weights", &pairs(&test, &fitted.peak_weights), none),
        Test::of(name, "faketensor, corrected: no family", &pairs(&test, &fitted.all), none),
        Test::of(name, "faketensor, corrected", &pairs(&test, &fitted.named), target),
        Test::of(
            smaller,
            "faketensor, corrected: peak, weights",
            &pairs(&of_reference, &fitted.peak_weights),
            none,
        ),
        Test::of(smaller, "faketensor, corrected", &pairs(&of_reference, &fitted.named), target),
        Test::of(
            "timm set, each family unseen",
            "faketensor, corrected: no family",
            &unseen_families(&runs.rows),
            none,
        ),
    ]
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use carma_memory::formula::faketensor::Corrections;

    #[test]
    fn corrections_reach_what_is_promised_and_are_those_that_are_shipped() {
        let path = match Data::of_repository(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")))
            .shared("gpumemnet/timm_faketensor.csv")
        {
            Ok(path) => path,
            Err(reason) => {
                eprintln!("skipped: {reason}");
                return;
            }
        };
        let runs = read(&path).unwrap();
        assert_eq!((runs.rows.len(), runs.removed, runs.meta.len()), (4187, 898, 449));
        let (fitting, test) = runs.halves();
        assert!(fitting.iter().all(|a| test.iter().all(|b| a.model != b.model)), "halves are by model");
        let fitted = fit_all(&fitting).unwrap();
        if std::env::var_os("CARMA_WRITE_FITS").is_some() {
            let file = Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("../../crates/memory/src/formula/faketensor/timm.json");
            std::fs::write(file, serde_json::to_string_pretty(&rounded(&fitted)).unwrap() + "\n").unwrap();
        }
        let score = |c: &Correction| super::super::score(&pairs(&test, c)).unwrap();
        let named = score(&fitted.named);
        assert!(named.mre <= 0.045, "{named:?}");
        assert!(
            named.mre < score(&fitted.all).mre && score(&fitted.all).mre < score(&fitted.peak_weights).mre
        );
        assert!(named.covered.unwrap() > 0.93, "{named:?}");

        let shipped = Corrections::shipped().unwrap();
        let close = |a: f64, b: f64| (a - b).abs() <= 1e-3 * b.abs() + 1e-3;
        for (a, b) in [
            (&shipped.peak, &fitted.peak),
            (&shipped.peak_weights, &fitted.peak_weights),
            (&shipped.all, &fitted.all),
            (&shipped.named, &fitted.named),
        ] {
            assert!(close(a.upper, b.upper));
            for row in test.iter().take(500) {
                let (a, b) = (a.mib(&row.inputs()).unwrap(), b.mib(&row.inputs()).unwrap());
                assert!(close(a, b), "shipped {a}, fitted {b}: run with CARMA_WRITE_FITS=1");
            }
        }
    }

    /// Six digits: what a reader can read, and more than the data bear.
    fn rounded(c: &Corrections) -> serde_json::Value {
        fn round(value: &mut serde_json::Value) {
            match value {
                serde_json::Value::Number(n) => {
                    let short = format!("{:.5e}", n.as_f64().unwrap()).parse::<f64>().unwrap();
                    *value = serde_json::json!(short);
                }
                serde_json::Value::Array(list) => list.iter_mut().for_each(round),
                serde_json::Value::Object(map) => map.values_mut().for_each(round),
                _ => {}
            }
        }
        let mut value = serde_json::to_value(c).unwrap();
        round(&mut value);
        value
    }
}

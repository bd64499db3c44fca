//! Evaluation of all ensembles on all data that is at hand: what `carma gpumemnet eval` prints.

mod authors;

pub use authors::{AuthorsFolds, Reproduced, authors_folds, reproduce};

use super::{
    Bundle, Data, Ensemble, Fold, Options, Published, Sample, Score, cross_validate, score, score_published,
};
use crate::Error;
use crate::dnnperf::{self, Graphs};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Widths of classes, MiB.
pub const WIDTHS: [u64; 3] = [1000, 2000, 8000];
/// Coverage that `upper` is asked for.
pub const COVERAGE: f64 = 0.95;
/// Folds of a cross-validation.
pub const FOLDS: usize = 3;
/// Classes beyond this are one; none of the data comes near.
const LAST: usize = 1000;

/// Where an ensemble's weights come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Weights {
    /// The networks of the folds, trained before and brought along.
    Stored,
    /// The networks of the folds, trained just now.
    Retrained,
    /// The authors', who trained them on part of these very tasks.
    Published,
}

/// Mean over folds, and deviation between them.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Spread {
    /// Mean.
    pub mean: f64,
    /// Sample deviation; 0 for one fold.
    pub sd: f64,
}

impl Spread {
    fn of(values: &[f64]) -> Self {
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n.max(1.0);
        let squares = values.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>();
        Self { mean, sd: if n > 1.0 { (squares / (n - 1.0)).sqrt() } else { 0.0 } }
    }
}

/// One row of the table: an ensemble on a data set, in classes of one width.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// Data set.
    pub data: String,
    /// Family, as the data's.
    pub family: String,
    /// Design: `mlp`, `transformer`, or `dnnperf`.
    pub ensemble: String,
    /// Where the weights come from.
    pub weights: Weights,
    /// Width of a class, MiB.
    pub width_mib: u64,
    /// Folds; 1 where all tasks were asked at once.
    pub folds: usize,
    /// Tasks with a measured peak, all folds together.
    pub tasks: usize,
    /// Share of them in the right class.
    pub accuracy: Spread,
    /// Share of them in a class below the right one.
    pub under: Spread,
    /// Share of all tasks for which `upper` is enough.
    pub covered: Spread,
    /// Median of `upper` over measured.
    pub upper_ratio: Spread,
    /// Mean relative error of `use`.
    pub mre: Spread,
    /// Tasks that ended out of memory.
    pub lower_bounds: usize,
    /// Share of these whose class is not below the bound's.
    pub bounds_met: f64,
}

/// A row of the scores of folds.
fn row(data: &str, family: &str, ensemble: &str, weights: Weights, width_mib: u64, scores: &[Score]) -> Row {
    let spread = |of: fn(&Score) -> f64| Spread::of(&scores.iter().map(of).collect::<Vec<_>>());
    let bounds: usize = scores.iter().map(|s| s.lower_bounds).sum();
    let met: f64 = scores.iter().map(|s| s.bounds_met * s.lower_bounds as f64).sum();
    Row {
        data: data.to_owned(),
        family: family.to_owned(),
        ensemble: ensemble.to_owned(),
        weights,
        width_mib,
        folds: scores.len(),
        tasks: scores.iter().map(|s| s.tasks).sum(),
        accuracy: spread(|s| s.accuracy),
        under: spread(|s| s.under),
        covered: spread(|s| s.covered),
        upper_ratio: spread(|s| s.upper_ratio),
        mre: spread(|s| s.mre),
        lower_bounds: bounds,
        bounds_met: met / bounds.max(1) as f64,
    }
}

/// Rows of the networks of some folds, each asked about the tasks that it did not see.
#[must_use]
pub fn rows_of_folds(data: &Data, folds: &[Fold], weights: Weights) -> Vec<Row> {
    let Some(first) = folds.first() else { return Vec::new() };
    let scores = |width| -> Vec<Score> {
        folds
            .iter()
            .map(|fold| {
                let test: Vec<&Sample> = fold.test.iter().map(|i| &data.samples[*i]).collect();
                score(&fold.network, &test, width, LAST, COVERAGE)
            })
            .collect()
    };
    let (family, ensemble) = (data.family.as_str(), first.network.ensemble().as_str());
    WIDTHS.iter().map(|w| row(&data.name, family, ensemble, weights, *w, &scores(*w))).collect()
}

/// Rows of stored folds.
///
/// # Errors
/// They were trained on other data than this.
pub fn stored(data: &Data, bundle: &Bundle) -> Result<Vec<Row>, Error> {
    let (now, before) = (data.fingerprint(), bundle.any().map(|n| n.trained_on().clone()));
    if before.as_ref() != Some(&now) {
        return Err(Error::bad(
            &data.name,
            format!(
                "the stored networks were trained on other measurements ({}); --retrain trains them again",
                before.map_or_else(|| "none".to_owned(), |b| format!("{} of {} tasks", b.name, b.rows))
            ),
        ));
    }
    Ok(rows_of_folds(data, &bundle.folds, Weights::Stored))
}

/// Rows of folds trained now.
///
/// # Errors
/// Too few tasks.
pub fn retrained(data: &Data, options: &Options, folds: usize) -> Result<Vec<Row>, Error> {
    Ok(rows_of_folds(data, &cross_validate(data, options, folds)?, Weights::Retrained))
}

/// Rows of a graph model's folds, a file at a time.
#[must_use]
pub fn rows_of_graphs(graphs: &Graphs, folds: &[dnnperf::Fold], weights: Weights) -> Vec<Row> {
    let mut rows = Vec::new();
    for (at, file) in graphs.files().iter().enumerate() {
        let family = file.name.trim_start_matches("dataset-").split('.').next().unwrap_or_default();
        for width in WIDTHS {
            let scores: Vec<Score> =
                folds.iter().map(|f| dnnperf::score(graphs, f, at, width, COVERAGE)).collect();
            rows.push(row(&file.name, family, "dnnperf", weights, width, &scores));
        }
    }
    rows
}

/// The row of an ensemble of the authors, in its own classes, on all tasks.
#[must_use]
pub fn published(data: &Data, network: &Published, ensemble: Ensemble) -> Row {
    let all: Vec<&Sample> = data.samples.iter().collect();
    let (low, high) = network.edges(0);
    let scores = [score_published(network, &all)];
    row(&data.name, data.family.as_str(), ensemble.as_str(), Weights::Published, high - low, &scores)
}

/// Everything that an evaluation says.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Report {
    /// Ensembles on data sets.
    pub rows: Vec<Row>,
    /// The authors' own cross-validation, for context.
    pub authors: Vec<AuthorsFolds>,
    /// Their real models, asked again.
    pub reproduced: Vec<Reproduced>,
    /// What was left out, and why.
    pub skipped: Vec<String>,
}

/// What to evaluate.
#[derive(Debug, Clone, Default)]
pub struct Request<'a> {
    /// Other people's data: the folder with `gpumemnet` and `carma`.
    pub shared: Option<PathBuf>,
    /// Folder with our own `dataset-FAMILY.csv.gz`.
    pub own: Option<PathBuf>,
    /// Stored networks.
    pub bundles: Vec<&'a Bundle>,
    /// Stored graph models.
    pub graphs: Vec<&'a dnnperf::Bundle>,
    /// Train the folds again, from this seed, instead of asking the stored ones.
    pub retrain: Option<u64>,
}

/// Evaluates all ensembles on all data that is there.
#[must_use]
pub fn run(request: &Request<'_>) -> Report {
    let mut report = Report::default();
    let weights = request.shared.as_ref().map(|s| s.join("gpumemnet/weights")).filter(|w| w.is_dir());
    if weights.is_none() {
        report.skipped.push(
            "the authors' weights: ../shared/data/gpumemnet/weights is not there (--data names its folder)"
                .to_owned(),
        );
    }
    for (folder, name) in files() {
        let folder = if folder.is_empty() { request.own.clone() } else { shared(request, folder) };
        let path = folder.map(|f| f.join(name)).filter(|p| p.exists());
        let Some(path) = path else {
            report.skipped.push(format!("{name}: not there"));
            continue;
        };
        match Data::read(&path) {
            Ok(data) => on(&data, request, weights.as_deref(), &mut report),
            Err(e) => report.skipped.push(e.to_string()),
        }
    }
    on_graphs(request, &mut report);
    if let Some(shared) = &request.shared {
        match reproduce(shared) {
            Ok(all) => report.reproduced = all,
            Err(e) => report.skipped.push(format!("the authors' real models: {e}")),
        }
        match authors_folds(&shared.join("gpumemnet/k_fold_results")) {
            Ok(all) => report.authors = all,
            Err(e) => report.skipped.push(format!("the authors' cross-validation: {e}")),
        }
    }
    report
}

/// Data sets: folder of other people's data, or empty for our own; file.
fn files() -> [(&'static str, &'static str); 5] {
    [
        ("", "dataset-mlp.csv.gz"),
        ("", "dataset-cnn.csv.gz"),
        ("", "dataset-transformer.csv.gz"),
        ("gpumemnet", "mlp_data_step1.csv"),
        ("gpumemnet", "mlp_data_step2.csv"),
    ]
}

fn shared(request: &Request<'_>, folder: &str) -> Option<PathBuf> {
    request.shared.as_ref().map(|s| s.join(folder))
}

fn on(data: &Data, request: &Request<'_>, weights: Option<&Path>, report: &mut Report) {
    for ensemble in Ensemble::ALL {
        if let Some(seed) = request.retrain {
            match retrained(data, &Options::new(ensemble, seed), FOLDS) {
                Ok(rows) => report.rows.extend(rows),
                Err(e) => report.skipped.push(e.to_string()),
            }
        } else {
            let of = |b: &&&Bundle| {
                b.any().is_some_and(|n| n.ensemble() == ensemble && n.trained_on().name == data.name)
            };
            let mut found = request.bundles.iter().filter(of).peekable();
            if found.peek().is_none() {
                report.skipped.push(format!("{}: no stored {ensemble} ensemble; --retrain", data.name));
            }
            for bundle in found {
                match stored(data, bundle) {
                    Ok(rows) => report.rows.extend(rows),
                    Err(e) => report.skipped.push(e.to_string()),
                }
            }
        }
        if let Some(weights) = weights {
            match Published::read(weights, data.family, ensemble) {
                Ok(network) => report.rows.push(published(data, &network, ensemble)),
                Err(e) => report.skipped.push(e.to_string()),
            }
        }
    }
}

/// The graph model, on our own data sets together.
fn on_graphs(request: &Request<'_>, report: &mut Report) {
    let own = files().into_iter().filter(|(folder, _)| folder.is_empty());
    let paths: Option<Vec<PathBuf>> =
        own.map(|(_, name)| request.own.as_ref().map(|f| f.join(name)).filter(|p| p.exists())).collect();
    let Some(paths) = paths else {
        report
            .skipped
            .push("dnnperf: learns from our own three data sets, which are not all there".to_owned());
        return;
    };
    let rows = dnnperf::read(&paths).and_then(|graphs| {
        if let Some(seed) = request.retrain {
            let folds = dnnperf::cross_validate(&graphs, FOLDS, seed, None)?;
            return Ok(rows_of_graphs(&graphs, &folds, Weights::Retrained));
        }
        let fits = |b: &&&dnnperf::Bundle| b.any().is_some_and(|p| p.trained_on() == graphs.files());
        let bundle = request.graphs.iter().find(fits).ok_or_else(|| {
            Error::bad("dnnperf", "no stored networks that were trained on these measurements; --retrain")
        })?;
        Ok(rows_of_graphs(&graphs, &bundle.folds, Weights::Stored))
    });
    match rows {
        Ok(rows) => report.rows.extend(rows),
        Err(e) => report.skipped.push(e.to_string()),
    }
}

//! Evaluation of the ensembles on the data that is at hand: what `carma lab gpumemnet eval` prints.
//!
//! The networks of the folds are trained on the spot, or are those that carma brings along: either way each is
//! asked about tasks that it did not see.

mod authors;

pub use authors::{AuthorsFolds, Reproduced, authors_folds, reproduce};

use crate::dnnperf::{self, Graphs};
use crate::gpumemnet::{Data, Options, Published, Score, cross_validate_with, score, score_published};
use carma_memory::Error;
use carma_memory::dnnperf::Perf;
use carma_memory::gpumemnet::{Bundle, Ensemble, Family, Network, Sample};
use carma_memory::weights::Fold;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

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
    /// Mean over the folds.
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
pub struct ScoreRow {
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
fn row(
    data: &str,
    family: &str,
    ensemble: &str,
    weights: Weights,
    width_mib: u64,
    scores: &[Score],
) -> ScoreRow {
    let spread = |of: fn(&Score) -> f64| Spread::of(&scores.iter().map(of).collect::<Vec<_>>());
    let bounds: usize = scores.iter().map(|s| s.lower_bounds).sum();
    let met: f64 = scores.iter().map(|s| s.bounds_met * s.lower_bounds as f64).sum();
    ScoreRow {
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
pub fn rows_of_folds(data: &Data, folds: &[Fold<Network>], weights: Weights) -> Vec<ScoreRow> {
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
pub fn stored(data: &Data, bundle: &Bundle) -> Result<Vec<ScoreRow>, Error> {
    let (now, before) = (data.fingerprint(), bundle.any().map(|n| n.trained_on().clone()));
    if before.as_ref() != Some(&now) {
        return Err(Error::bad(
            &data.name,
            format!(
                "the stored networks were trained on other measurements ({}); without --stored they are trained again",
                before.map_or_else(|| "none".to_owned(), |b| format!("{} of {} tasks", b.name, b.rows))
            ),
        ));
    }
    Ok(rows_of_folds(data, &bundle.folds, Weights::Stored))
}

/// Rows of a graph model's folds, a file at a time.
#[must_use]
pub fn rows_of_graphs(graphs: &Graphs, folds: &[Fold<Perf>], weights: Weights) -> Vec<ScoreRow> {
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
pub fn published(data: &Data, network: &Published, ensemble: Ensemble) -> ScoreRow {
    let all: Vec<&Sample> = data.samples.iter().collect();
    let (low, high) = network.edges(0);
    let scores = [score_published(network, &all)];
    row(&data.name, data.family.as_str(), ensemble.as_str(), Weights::Published, high - low, &scores)
}

/// Everything that an evaluation says.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Report {
    /// Ensembles on data sets.
    pub rows: Vec<ScoreRow>,
    /// The authors' own cross-validation, for context.
    pub authors: Vec<AuthorsFolds>,
    /// Their real models, asked again.
    pub reproduced: Vec<Reproduced>,
    /// What was left out, and why.
    pub skipped: Vec<String>,
}

/// How the networks of the folds are trained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Training {
    /// Everything random comes from it.
    pub seed: u64,
    /// Folds of the cross-validation.
    pub folds: usize,
    /// Passes over the data; `None`: as [`Options::brief`] has them.
    pub epochs: Option<usize>,
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
    pub graphs: Vec<&'a carma_memory::dnnperf::Bundle>,
    /// Train the folds now; `None`: the stored ones are asked.
    pub train: Option<Training>,
    /// Tasks of this family alone.
    pub family: Option<Family>,
    /// Which designs of GPUMemNet.
    pub ensembles: Vec<Ensemble>,
    /// Whether the graph model is asked, and whether it is trained now where others are: that takes minutes.
    pub dnnperf: Asked,
}

/// Whether and how a model is evaluated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Asked {
    /// Not at all.
    #[default]
    No,
    /// By its stored folds.
    Stored,
    /// As the others are.
    LikeOthers,
}

/// What a step of training costs, in units of progress: a network of each design.
const fn weight(ensemble: Ensemble) -> u64 {
    match ensemble {
        Ensemble::Mlp => 1,
        Ensemble::Transformer => 8,
    }
}

/// Counts trained networks, and tells of them.
struct Progress<'a> {
    done: AtomicU64,
    of: u64,
    tell: &'a (dyn Fn(u64, u64) + Sync),
}

impl Progress<'_> {
    fn tick(&self, units: u64) {
        (self.tell)(self.done.fetch_add(units, Ordering::Relaxed) + units, self.of);
    }
}

/// Evaluates the ensembles on all data that is there. `tell` hears how much of how much is done.
#[must_use]
pub fn run(request: &Request<'_>, tell: &(dyn Fn(u64, u64) + Sync)) -> Report {
    let mut report = Report::default();
    let weights = request.shared.as_ref().map(|s| s.join("gpumemnet/weights")).filter(|w| w.is_dir());
    if weights.is_none() && !request.ensembles.is_empty() {
        report.skipped.push(
            "the authors' weights: ../shared/data/gpumemnet/weights is not there (--data names its folder)"
                .to_owned(),
        );
    }
    let mut sets = Vec::new();
    for (folder, name, family) in files() {
        if request.ensembles.is_empty() || request.family.is_some_and(|f| f != family) {
            continue;
        }
        let folder = if folder.is_empty() { request.own.clone() } else { shared(request, folder) };
        match folder.map(|f| f.join(name)).filter(|p| p.exists()) {
            None => report.skipped.push(format!("{name}: not there")),
            Some(path) => match Data::read(&path) {
                Ok(data) => sets.push(data),
                Err(e) => report.skipped.push(e.to_string()),
            },
        }
    }
    let folds = request.train.map_or(0, |t| t.folds as u64);
    let cost = |e: &Ensemble| folds * e.members() as u64 * weight(*e);
    let of = sets.len() as u64 * request.ensembles.iter().map(cost).sum::<u64>();
    let progress = Progress { done: AtomicU64::new(0), of, tell };
    for data in &sets {
        on(data, request, weights.as_deref(), &progress, &mut report);
    }
    if request.dnnperf != Asked::No {
        on_graphs(request, &mut report);
    }
    if let Some(shared) = request.shared.as_ref().filter(|_| !request.ensembles.is_empty()) {
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

/// Data sets: folder of other people's data, or empty for our own; file; family.
fn files() -> [(&'static str, &'static str, Family); 5] {
    [
        ("gpumemnet", "mlp_data_step1.csv", Family::Mlp),
        ("gpumemnet", "mlp_data_step2.csv", Family::Mlp),
        ("", "dataset-mlp.csv.gz", Family::Mlp),
        ("", "dataset-cnn.csv.gz", Family::Cnn),
        ("", "dataset-transformer.csv.gz", Family::Transformer),
    ]
}

fn shared(request: &Request<'_>, folder: &str) -> Option<PathBuf> {
    request.shared.as_ref().map(|s| s.join(folder))
}

fn on(
    data: &Data,
    request: &Request<'_>,
    weights: Option<&Path>,
    progress: &Progress<'_>,
    report: &mut Report,
) {
    for ensemble in request.ensembles.iter().copied() {
        if let Some(training) = request.train {
            let mut options = Options::brief(ensemble, training.seed);
            options.epochs = training.epochs.unwrap_or(options.epochs);
            let tick = || progress.tick(weight(ensemble));
            match cross_validate_with(data, &options, training.folds, &tick) {
                Ok(folds) => report.rows.extend(rows_of_folds(data, &folds, Weights::Retrained)),
                Err(e) => report.skipped.push(e.to_string()),
            }
        }
        let of = |b: &&&Bundle| {
            b.any().is_some_and(|n| n.ensemble() == ensemble && n.trained_on().name == data.name)
        };
        let mut found = request.bundles.iter().filter(of).peekable();
        if found.peek().is_none() && request.train.is_none() {
            report.skipped.push(format!("{}: no stored {ensemble} ensemble", data.name));
        }
        for bundle in found {
            match stored(data, bundle) {
                Ok(rows) => report.rows.extend(rows),
                Err(e) => report.skipped.push(e.to_string()),
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
    let own = files().into_iter().filter(|(folder, ..)| folder.is_empty());
    let paths: Option<Vec<PathBuf>> =
        own.map(|(_, name, _)| request.own.as_ref().map(|f| f.join(name)).filter(|p| p.exists())).collect();
    let Some(paths) = paths else {
        report
            .skipped
            .push("dnnperf: learns from our own three data sets, which are not all there".to_owned());
        return;
    };
    let rows = dnnperf::read(&paths).and_then(|graphs| {
        if let (Some(training), Asked::LikeOthers) = (request.train, request.dnnperf) {
            let folds = dnnperf::cross_validate(&graphs, training.folds, training.seed, None)?;
            return Ok(rows_of_graphs(&graphs, &folds, Weights::Retrained));
        }
        let fits =
            |b: &&&carma_memory::dnnperf::Bundle| b.any().is_some_and(|p| p.trained_on() == graphs.files());
        let bundle = request.graphs.iter().find(fits).ok_or_else(|| {
            Error::bad("dnnperf", "no stored networks that were trained on these measurements")
        })?;
        Ok(rows_of_graphs(&graphs, &bundle.folds, Weights::Stored))
    });
    match rows {
        Ok(rows) => {
            let of_family = |r: &ScoreRow| request.family.is_none_or(|f| f.as_str() == r.family);
            report.rows.extend(rows.into_iter().filter(of_family));
        }
        Err(e) => report.skipped.push(e.to_string()),
    }
}

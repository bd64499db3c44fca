//! What the authors published of their own tests, and their real models asked again.

use super::Spread;
use crate::gpumemnet::Published;
use carma_memory::gpumemnet::{Ensemble, Family, ModelLayers};
use carma_memory::{Error, ModelTask};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// The authors' cross-validation of one ensemble: their figures, not ours. They go on training one model from
/// fold to fold, so only the first fold is a clean test.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AuthorsFolds {
    /// Family of the networks.
    pub family: Family,
    /// Design of the estimator.
    pub ensemble: Ensemble,
    /// Accuracy over their folds.
    pub accuracy: Spread,
    /// Accuracy of the first.
    pub first: f64,
    /// Share below the right class.
    pub under: Spread,
}

#[derive(Deserialize)]
struct AuthorsFold {
    accuracy: f64,
    below_diagonal_percentage: f64,
}

/// Reads the authors' figures, one file an ensemble.
///
/// # Errors
/// A file is missing or not as expected.
pub fn authors_folds(folder: &Path) -> Result<Vec<AuthorsFolds>, Error> {
    let mut all = Vec::new();
    for family in Family::ALL {
        for ensemble in Ensemble::ALL {
            let path = folder.join(format!("{ensemble}_model__{family}.json"));
            let place = path.display().to_string();
            let text = carma_files::read(&path, carma_files::MOST)?;
            let folds: Vec<AuthorsFold> =
                serde_json::from_slice(&text).map_err(|e| Error::bad(&place, e.to_string()))?;
            let of = |f: fn(&AuthorsFold) -> f64| folds.iter().map(f).collect::<Vec<_>>();
            let accuracy = of(|f| f.accuracy);
            all.push(AuthorsFolds {
                family,
                ensemble,
                first: accuracy.first().copied().unwrap_or(f64::NAN),
                accuracy: Spread::of(&accuracy),
                under: Spread::of(&of(|f| f.below_diagonal_percentage)),
            });
        }
    }
    Ok(all)
}

/// A task of the authors' figure: what their table says, and what their weights say here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Reproduced {
    /// Model and batch.
    pub task: String,
    /// Measured by them, MiB.
    pub measured_mib: u64,
    /// Upper edge of the class in their table, MiB.
    pub published_mib: u64,
    /// Upper edge of the class that their weights give here, MiB.
    pub here_mib: u64,
}

/// Real models of the authors' figure, by the words of their table and of the summaries.
const CNNS: [(&str, &str); 6] = [
    ("vgg", "vgg"),
    ("resnet", "resnet50"),
    ("Xception", "Xception"),
    ("mobilenet", "mobilenet"),
    ("efficientnet", "efficientnet"),
    ("inception", "inceptionv3"),
];
/// Summary, and its row in the authors' table (`results_plotter_data.csv`).
const LANGUAGE: [(&str, &str); 6] = [
    ("BERT_base_bs-32_sl-512", "BERT_base"),
    ("BERT_large_bs-8_sl-512", "BERT_large"),
    ("xlnet_base_cased_bs-8_sl-512", "xlnet_base"),
    ("xlnet_large_cased_bs-4_sl-512", "xlnet_large"),
    ("gpt2_large_bs-8_sl-512", "gpt2_large"),
    ("gpt2_xl_bs-2_sl-512", "gpt2_xl"),
];

/// The authors' real models, through their weights and our reader of summaries. `shared` has `gpumemnet` and
/// `carma`.
///
/// # Errors
/// A file is missing or not as expected.
pub fn reproduce(shared: &Path) -> Result<Vec<Reproduced>, Error> {
    let mut all = Vec::new();
    let ensemble = |family| Published::read(&shared.join("gpumemnet/weights"), family, Ensemble::Mlp);
    let network = ensemble(Family::Cnn)?;
    for row in table(&shared.join("gpumemnet/gpumemnet_cnn_real_models.csv"))? {
        let cell = |name: &str| row.get(name).and_then(|v| v.parse::<f64>().ok()).map(|v| v as u64);
        let name = row.get("model").map(String::as_str).unwrap_or_default();
        let Some((_, file)) = CNNS.iter().find(|(n, _)| *n == name) else { continue };
        let (Some(batch), Some(measured), Some(published)) =
            (cell("batch size"), cell("GPU memory requirement"), cell("GPUMemNet Estimate"))
        else {
            continue;
        };
        let task = ModelTask { batch_size: batch, ..ModelTask::default() };
        let path = shared.join(format!("carma/summaries/{file}_{batch}.model"));
        let here_mib = ask(&network, &path, &task)?;
        let task = format!("{name} {batch}");
        all.push(Reproduced { task, measured_mib: measured, published_mib: published, here_mib });
    }
    let network = ensemble(Family::Transformer)?;
    let rows = table(&shared.join("gpumemnet/results_plotter_data.csv"))?;
    for (file, name) in LANGUAGE {
        let row = rows.iter().find(|r| r.get("").is_some_and(|n| n == name));
        let cell = |name: &str| row.and_then(|r| r.get(name)).and_then(|v| v.parse::<u64>().ok());
        let (Some(batch), Some(measured), Some(published)) =
            (cell("batch_size"), cell("Actual GPU memory"), cell("GPUMemNet "))
        else {
            continue;
        };
        let task = ModelTask { batch_size: batch, seq_len: Some(512), ..ModelTask::default() };
        let here_mib = ask(&network, &shared.join(format!("gpumemnet/summaries/{file}.txt")), &task)?;
        let task = format!("{name} {batch}");
        all.push(Reproduced { task, measured_mib: measured, published_mib: published, here_mib });
    }
    Ok(all)
}

fn ask(network: &Published, summary: &Path, task: &ModelTask) -> Result<u64, Error> {
    let bytes = carma_files::read(summary, carma_files::MOST)?;
    let model = ModelLayers::of_summary(&carma_memory::summary::parse_bytes(&bytes)?, task)?;
    Ok(network.edges(network.class(&model, task)).1)
}

type Cells = BTreeMap<String, String>;

fn table(path: &Path) -> Result<Vec<Cells>, Error> {
    let place = path.display().to_string();
    let bad = |e: csv::Error| Error::bad(&place, e.to_string());
    csv::Reader::from_reader(carma_files::open_bounded(path, carma_files::MOST)?)
        .deserialize()
        .collect::<Result<_, _>>()
        .map_err(bad)
}

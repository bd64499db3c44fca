//! Weights that carma brings along, and the answer that rests on them.

use super::{Bundle, Ensemble, Family, ModelLayers, Network};
use crate::estimate::times;
use crate::summary::Summary;
use crate::{Error, Estimate, ModelTask, Platform};
use std::sync::OnceLock;

/// Coverage of `upper` where nothing else is asked for.
const COVERAGE: f64 = 0.95;

/// By how much the bound beside the context is widened for models that people train, which are not the random ones
/// that the networks know: the conformal quantile at 95 % of measured over bound, over the half of the real models
/// on an H200 that is for tuning (`bench::h200`). No perceptrons are among those.
const fn widening(family: Family, ensemble: Ensemble) -> f64 {
    match (family, ensemble) {
        (Family::Mlp, _) => 1.0,
        (Family::Cnn, Ensemble::Mlp) => 1.07,
        (Family::Cnn, Ensemble::Transformer) => 1.03,
        (Family::Transformer, Ensemble::Mlp) => 1.46,
        (Family::Transformer, Ensemble::Transformer) => 1.32,
    }
}

/// Name and bytes of a file of weights.
macro_rules! file {
    ($name:literal) => {
        ($name, include_bytes!(concat!("../../weights/", $name)))
    };
}

/// Files of weights. docs/research/gpumemnet.md says how they were made.
const FILES: &[(&str, &[u8])] = &[
    file!("h200-mlp-mlp.net"),
    file!("h200-mlp-transformer.net"),
    file!("h200-cnn-mlp.net"),
    file!("h200-cnn-transformer.net"),
    file!("h200-transformer-mlp.net"),
    file!("h200-transformer-transformer.net"),
    file!("a100-mlp-step1-mlp.net"),
    file!("a100-mlp-step1-transformer.net"),
    file!("a100-mlp-step2-mlp.net"),
    file!("a100-mlp-step2-transformer.net"),
];

/// The weights that carma brings along, by file.
///
/// # Errors
/// They do not fit this carma: a mistake of its makers, which a test finds.
pub fn shipped() -> Result<&'static [(&'static str, Bundle)], Error> {
    static ALL: OnceLock<Result<Vec<(&'static str, Bundle)>, String>> = OnceLock::new();
    let read = || {
        FILES
            .iter()
            .map(|(name, bytes)| Ok((*name, Bundle::read(name, bytes).map_err(|e| e.to_string())?)))
            .collect()
    };
    ALL.get_or_init(read).as_deref().map_err(|e| Error::bad("weights in carma", e.as_str()))
}

/// The network that answers for a family.
///
/// # Errors
/// There is none.
pub fn network(family: Family, ensemble: Ensemble) -> Result<&'static Network, Error> {
    let mut networks = shipped()?.iter().filter_map(|(_, bundle)| bundle.whole.as_ref());
    networks.find(|n| n.family() == family && n.ensemble() == ensemble).ok_or_else(|| Error::Missing {
        estimator: "gpumemnet",
        what: format!(
            "weights for {family} tasks, which this build has not; `carma lab gpumemnet train` makes some"
        ),
    })
}

/// How much memory a task will need, by one of our ensembles, from its summary.
///
/// # Errors
/// The summary has no layer that GPUMemNet knows, or needs the sequence length.
pub fn estimate(
    ensemble: Ensemble,
    summary: &Summary,
    task: &ModelTask,
    platform: &Platform,
) -> Result<Estimate, Error> {
    estimate_model(ensemble, &ModelLayers::of_summary(summary, task)?, task, platform)
}

/// As [`estimate`], of a model that was read already ([`ModelLayers::of_graph`]).
///
/// # Errors
/// No weights for its family.
pub fn estimate_model(
    ensemble: Ensemble,
    model: &ModelLayers,
    task: &ModelTask,
    platform: &Platform,
) -> Result<Estimate, Error> {
    let mut estimate = network(model.family, ensemble)?.estimate(model, task, platform, COVERAGE);
    let factor = widening(model.family, ensemble);
    if factor > 1.0 {
        let bound = estimate.upper_mib - platform.context_mib;
        estimate.upper_mib = platform.context_mib + times(bound, factor);
        estimate.reasons.push(format!(
            "trained on random models: upper is {factor:.2} times theirs beside the context, as real models asked for"
        ));
    }
    Ok(estimate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shipped_is_written_as_it_was() {
        for ((name, bundle), (_, bytes)) in shipped().unwrap().iter().zip(FILES) {
            assert!(bundle.write() == *bytes, "{name}");
        }
    }
}

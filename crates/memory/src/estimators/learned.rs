//! Estimators that learned from measured runs: GPUMemNet with our weights and with its authors', and DNNPerf.

use super::View;
use crate::gpumemnet::{self, Ensemble, Family, ModelLayers};
use crate::{Error, Estimate, Mode, ModelTask, Optimizer, Parallel, Precision, dnnperf, summary};

/// What none of them can answer: no run of such a kind was among those that they learned from, and no feature of
/// theirs tells it.
fn answerable(estimator: &'static str, task: &ModelTask) -> Result<(), Error> {
    let what = match task {
        ModelTask { mode: Mode::Infer, .. } => "inference",
        ModelTask { lora: Some(_), .. } => "adapters beside frozen weights",
        _ => return Ok(()),
    };
    Err(Error::bad(
        estimator,
        format!("cannot answer for {what}: it learned from runs that train all weights"),
    ))
}

/// Where the networks' view of a model is from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum From {
    /// The modules that a summary lists, as in the data that the networks learned from.
    Modules,
    /// The operators of a graph, which stand for modules.
    Operators(&'static str),
}

impl From {
    const fn front_end(self) -> &'static str {
        match self {
            Self::Modules => "summary",
            Self::Operators(front_end) => front_end,
        }
    }
}

/// The model as GPUMemNet sees it. A summary with shapes shows a language model with the length of the sample that it
/// was made with, some with tokens and samples in one dimension, and counts shared tables twice: the graph
/// knows better.
fn model(view: &View<'_>, estimator: &'static str) -> Result<(ModelLayers, From), Error> {
    let by_graph = || {
        let source = view.source(estimator)?;
        Ok((ModelLayers::of_graph(&source.graph, view.task)?, From::Operators(source.front_end)))
    };
    let Some(text) = view.known.summary.as_deref() else { return by_graph() };
    let printed = summary::parse(text).and_then(|printed| {
        let sized = printed.layers.iter().any(|layer| !layer.outputs.is_empty());
        Ok((ModelLayers::of_summary(&printed, view.task)?, sized))
    });
    match printed {
        Ok((model, sized)) => {
            if model.family == Family::Transformer
                && sized
                && view.task.seq_len.is_some()
                && let Ok(found) = by_graph()
            {
                return Ok(found);
            }
            Ok((model, From::Modules))
        }
        // A graph of the same summary would know no more.
        Err(error) if view.sources.iter().all(|(name, s)| *name == "summary" || s.is_err()) => Err(error),
        Err(_) => by_graph(),
    }
}

/// What to say of a task on several GPUs.
fn several(task: &ModelTask) -> Option<String> {
    let several = task.gpus > 1 || task.parallel != Parallel::None;
    several.then(|| "as on one GPU: it knows nothing of several".to_owned())
}

/// What the answer leaves out.
fn remarks(view: &View<'_>, from: From) -> Vec<String> {
    let mut remarks = Vec::new();
    if let From::Operators(front_end) = from {
        remarks
            .push(format!("layers are the operators of the graph by {front_end}, which stand for modules"));
    }
    remarks.extend(several(view.task));
    remarks
}

/// Our networks.
pub(super) fn by_gpumemnet(view: &View<'_>, ensemble: Ensemble) -> Result<Estimate, Error> {
    let name = match ensemble {
        Ensemble::Mlp => "gpumemnet",
        Ensemble::Transformer => "gpumemnet-transformer",
    };
    answerable(name, view.task)?;
    let (model, from) = model(view, name)?;
    let mut estimate = gpumemnet::estimate_model(ensemble, &model, view.task, view.platform)?;
    estimate.source = format!("{name}/{}", from.front_end());
    estimate.reasons.extend(remarks(view, from));
    Ok(estimate)
}

/// The authors' networks, from the folder that the user names; `carma-lab` reads it.
pub(super) fn by_published(view: &View<'_>, ensemble: Ensemble) -> Result<Estimate, Error> {
    let name = match ensemble {
        Ensemble::Mlp => "gpumemnet-published",
        Ensemble::Transformer => "gpumemnet-published-transformer",
    };
    let networks = view.known.authors.as_deref().ok_or_else(|| Error::Missing {
        estimator: name,
        what: "--gpumemnet-weights, the folder of the authors' checkpoints (mlp4cnn.ckpt and so on)"
            .to_owned(),
    })?;
    answerable(name, view.task)?;
    let (model, from) = model(view, name)?;
    let mut estimate = networks.estimate(ensemble, &model, view.task)?;
    estimate.source = format!("{name}/{}", from.front_end());
    if view.task.precision != Precision::Fp32 || view.task.optimizer != Optimizer::Adam {
        estimate.reasons.push("as with Adam in fp32: it knows neither optimizer nor precision".to_owned());
    }
    estimate.reasons.extend(remarks(view, from));
    Ok(estimate)
}

/// The graph model.
pub(super) fn by_dnnperf(view: &View<'_>) -> Result<Estimate, Error> {
    answerable("dnnperf", view.task)?;
    let source = view.source("dnnperf")?;
    let mut estimate = dnnperf::estimate(&source.graph, view.task, view.platform)?;
    estimate.source = format!("dnnperf/{}", source.front_end);
    estimate.reasons.extend(several(view.task));
    Ok(estimate)
}

//! Estimators that learned from measured runs: GPUMemNet with our weights and with its authors', and DNNPerf.

use super::View;
use crate::gpumemnet::{self, Ensemble, Model, Published};
use crate::{Error, Estimate, Mode, Optimizer, Parallel, Precision, Task, dnnperf, summary};

/// What none of them can answer: no run of such a kind was among those that they learned from, and no feature of
/// theirs tells it.
fn answerable(estimator: &'static str, task: &Task) -> Result<(), Error> {
    let what = match task {
        Task { mode: Mode::Infer, .. } => "inference",
        Task { lora: Some(_), .. } => "adapters beside frozen weights",
        _ => return Ok(()),
    };
    Err(Error::bad(
        estimator,
        format!("cannot answer for {what}: it learned from runs that train all weights"),
    ))
}

/// The model as GPUMemNet sees it, and where it is from. A summary lists what the networks learned from; the
/// operators of a graph stand for it.
fn model(view: &View<'_>, estimator: &'static str) -> Result<(Model, &'static str), Error> {
    let printed = view.known.summary.as_deref().map(|text| {
        let printed = summary::parse(text)?;
        Model::of_summary(&printed, view.task)
    });
    match printed {
        Some(Ok(model)) => Ok((model, "summary")),
        // A graph of the same summary would know no more.
        Some(Err(error)) if view.sources.iter().flatten().all(|s| s.front_end == "summary") => Err(error),
        Some(Err(_)) | None => {
            let source = view.source(estimator)?;
            Ok((Model::of_graph(&source.graph, view.task)?, source.front_end))
        }
    }
}

/// What the answer leaves out.
fn remarks(view: &View<'_>, front_end: &str) -> Vec<String> {
    let mut remarks = Vec::new();
    if front_end != "summary" {
        remarks.push(format!(
            "layers are the operators of the graph by {front_end}, not the modules of a summary"
        ));
    }
    if view.task.gpus > 1 || view.task.parallel != Parallel::None {
        remarks.push("as on one GPU: it knows nothing of several".to_owned());
    }
    remarks
}

/// Our networks.
pub(super) fn by_gpumemnet(view: &View<'_>, ensemble: Ensemble) -> Result<Estimate, Error> {
    let name = match ensemble {
        Ensemble::Mlp => "gpumemnet",
        Ensemble::Transformer => "gpumemnet-transformer",
    };
    answerable(name, view.task)?;
    let (model, front_end) = model(view, name)?;
    let mut estimate = gpumemnet::estimate_model(ensemble, &model, view.task, view.platform)?;
    estimate.source = format!("{name}/{front_end}");
    estimate.reasons.extend(remarks(view, front_end));
    Ok(estimate)
}

/// The authors' networks, from the folder that the user names.
pub(super) fn by_published(view: &View<'_>, ensemble: Ensemble) -> Result<Estimate, Error> {
    let name = match ensemble {
        Ensemble::Mlp => "gpumemnet-published",
        Ensemble::Transformer => "gpumemnet-published-transformer",
    };
    let folder = view.known.gpumemnet_weights.as_deref().ok_or_else(|| Error::Missing {
        estimator: name,
        what: "--gpumemnet-weights, the folder of the authors' checkpoints (mlp4cnn.ckpt and so on)"
            .to_owned(),
    })?;
    answerable(name, view.task)?;
    let (model, front_end) = model(view, name)?;
    let mut estimate = Published::read(folder, model.family, ensemble)?.estimate(&model, view.task);
    estimate.source = format!("{name}/{front_end}");
    if view.task.precision != Precision::Fp32 || view.task.optimizer != Optimizer::Adam {
        estimate.reasons.push("as with Adam in fp32: it knows neither optimizer nor precision".to_owned());
    }
    estimate.reasons.extend(remarks(view, front_end));
    Ok(estimate)
}

/// The graph model.
pub(super) fn by_dnnperf(view: &View<'_>) -> Result<Estimate, Error> {
    answerable("dnnperf", view.task)?;
    let source = view.source("dnnperf")?;
    let mut estimate = dnnperf::estimate(&source.graph, view.task, view.platform)?;
    estimate.source = format!("dnnperf/{}", source.front_end);
    if view.task.gpus > 1 || view.task.parallel != Parallel::None {
        estimate.reasons.push("as on one GPU: it knows nothing of several".to_owned());
    }
    Ok(estimate)
}

//! The graph of a printed summary.

mod attention;
mod block;
mod conv;
mod expand;
mod fit;
mod flow;
mod input;
mod language;
mod layers;
mod plan;
mod resolve;
mod role;
mod row;
mod shapes;

use super::{Dialect, Summary};
use crate::graph::Graph;
use crate::{Error, ModelTask};
use block::Blocks;
use flow::Flow;
use role::Role;
use row::Step;

/// Builds the graph that the rules replay: the task's batch in place of the printed one, wiring inferred,
/// what the summary hides added. Whatever was guessed stands in the graph's doubts.
///
/// # Errors
/// Absurd shapes, with the layer's name; nothing to build from.
pub fn graph(summary: &Summary, task: &ModelTask) -> Result<Graph, Error> {
    if task.batch_size == 0 {
        return Err(Error::bad("batch size", "0; give at least 1"));
    }
    if let Some(graph) = language::graph(summary, task) {
        return graph;
    }
    if summary.layers.iter().all(|l| l.outputs.is_empty()) {
        let shaped = shapes::shaped(summary).ok_or_else(|| Error::Missing {
            estimator: "summary",
            what: "shapes, which do not follow from these modules; print it with torchinfo or torchsummary"
                .to_owned(),
        })?;
        return vision(&shaped, task);
    }
    vision(summary, task)
}

fn vision(summary: &Summary, task: &ModelTask) -> Result<Graph, Error> {
    let steps = resolve::resolve(summary, row::steps(summary, task.batch_size)?, task.batch_size);
    let mut flow = Flow::new(&family(summary), task);
    flow.dropout = !transformer(summary);
    flow.timm = summary.layers.iter().any(|l| l.kind.contains("BatchNormAct"));
    for doubt in &summary.doubts {
        flow.doubt(doubt.clone());
    }
    if let Some(block) = strange(summary) {
        flow.doubt(format!("summaries of models with a {block} have not been compared with what they take"));
    }
    input::input(&mut flow, summary, &steps)?;
    let mut blocks = Blocks::default();
    let tree = summary.dialect != Dialect::Torchsummary;
    for step in &steps {
        match step {
            Step::Enter(row) => blocks.enter(&mut flow, row)?,
            Step::Exit(row) => blocks.exit(&mut flow, row, tree)?,
            Step::Leaf(row) => flow.leaf(row)?,
            Step::Hidden(row) => flow.unknown(row)?,
        }
    }
    let mut outputs = vec![flow.cur];
    // Auxiliary heads: two-dimensional, of the same classes, read by nothing.
    let classes = flow.shape(flow.cur).to_vec();
    if classes.len() == 2 {
        let main = flow.cur;
        outputs.extend(flow.open_since(0).into_iter().filter(|i| *i != main && flow.shape(*i) == classes));
    }
    let returned = flow.loss(&outputs)?;
    Ok(flow.finish(returned))
}

/// Whether dropout in such models is there but has probability 0 by default.
fn transformer(summary: &Summary) -> bool {
    let has = |f: &dyn Fn(&str) -> bool| summary.layers.iter().any(|l| f(&l.kind));
    has(&|k| k.contains("LayerNorm"))
        && has(&|k| k.contains("ttention") || k == "Mlp" || k == "MLP" || k == "CNBlock")
}

/// Beginnings of the classes of blocks that summaries were compared with measurements of, and their families.
const KNOWN: &[(&str, &str)] = &[
    ("MBConv", "efficientnet"),
    ("Inception", "inception"),
    ("_DenseLayer", "densenet"),
    ("DenseLayer", "densenet"),
    ("Fire", "squeezenet"),
    ("CNBlock", "convnext"),
    ("ConvNeXtBlock", "convnext"),
    ("SwinTransformerBlock", "swin"),
    ("Unet", "unet"),
    ("UNet", "unet"),
    ("InvertedResidual", "mobilenet"),
    ("SeparableConv2d", "xception"),
    ("ResBottleneckBlock", "regnet"),
    ("Bottleneck", "resnet"),
    ("BasicBlock", "resnet"),
    ("VGG", "vgg"),
    ("VisionTransformer", "vit"),
    ("EncoderBlock", "vit"),
];

/// A class of a block that is not among those, where the model has none that is.
fn strange(summary: &Summary) -> Option<&str> {
    if summary.layers.iter().any(|l| KNOWN.iter().any(|(part, _)| l.kind.starts_with(part))) {
        return None;
    }
    let root = summary.layers.first().filter(|l| l.depth == 0).map(|l| l.kind.as_str());
    let kinds = summary.layers.iter().map(|l| l.kind.as_str());
    kinds.into_iter().find(|kind| role::role(kind) == Role::Block && Some(*kind) != root)
}

/// A word for the family, by the classes.
fn family(summary: &Summary) -> String {
    for (part, family) in KNOWN {
        if summary.layers.iter().any(|l| l.kind.starts_with(part)) {
            return (*family).to_owned();
        }
    }
    let count = |role_wanted: fn(Role) -> bool| {
        summary.layers.iter().filter(|l| role_wanted(role::role(&l.kind))).count()
    };
    let convs = count(|r| matches!(r, Role::Conv { .. }));
    let linears = count(|r| r == Role::Linear);
    let attention = summary.layers.iter().any(|l| l.kind.contains("ttention"));
    match (convs, linears, attention) {
        (_, _, true) => "transformer",
        (0, 0, _) => "unknown",
        (0, _, _) => "mlp",
        _ => "cnn",
    }
    .to_owned()
}

//! What GPUMemNet's authors feed their networks (itu-rad/GPUMemNet, commit f01eb05): raw counts of the whole model and of its
//! layers, in the order of their checkpoints. Networks of ours can be trained on them, too.

use super::model::{FUNCTIONS, Family, LayerKind, ModelLayers};
use crate::ModelTask;
use std::f64::consts::PI;

/// Whether the authors' parser lists such a layer. It leaves containers, other pooling and flattening out.
fn listed(family: Family, kind: LayerKind) -> bool {
    match family {
        Family::Mlp => true,
        Family::Cnn => {
            !matches!(kind, LayerKind::Pool | LayerKind::Other | LayerKind::LayerNorm | LayerKind::Embedding)
        }
        Family::Transformer => {
            matches!(
                kind,
                LayerKind::Linear
                    | LayerKind::Attention
                    | LayerKind::LayerNorm
                    | LayerKind::Embedding
                    | LayerKind::Dropout
            )
        }
    }
}

/// Sine and cosine of the function's place among the known ones.
pub(super) fn circle(family: Family, model: &ModelLayers) -> [f32; 2] {
    let known: Vec<&str> =
        FUNCTIONS.into_iter().filter(|f| family == Family::Mlp || *f != "Identity").collect();
    let angle = model.function(&known) as f64 * PI / known.len() as f64;
    [angle.sin() as f32, angle.cos() as f32]
}

/// Activations as the authors count them: of language models the width of a layer's output, and only an
/// embedding's times the length of the sequence.
fn authors_activations(family: Family, kind: LayerKind, activations: u64, task: &ModelTask) -> f64 {
    match (family, kind) {
        (Family::Transformer, k) if k != LayerKind::Embedding => {
            activations as f64 / task.seq_len.unwrap_or(1).max(1) as f64
        }
        _ => activations as f64,
    }
}

fn total_activations(family: Family, model: &ModelLayers, task: &ModelTask) -> f64 {
    let layers = model.layers.iter().filter(|l| listed(family, l.kind));
    layers.map(|l| authors_activations(family, l.kind, l.activations, task)).sum()
}

/// Features of the MLP ensembles, in the order of the checkpoints.
pub fn whole(family: Family, model: &ModelLayers, task: &ModelTask) -> Vec<f32> {
    let count = |of: fn(LayerKind) -> bool| model.count(of) as f32;
    let linear = count(|k| k == LayerKind::Linear);
    let batch = task.batch_size as f32;
    let params = model.printed_params.unwrap_or(model.params) as f32;
    let acts = total_activations(family, model, task);
    let both = (acts * task.batch_size as f64) as f32;
    let acts = acts as f32;
    let (norm, drop) = (count(|k| k == LayerKind::BatchNorm), count(|k| k == LayerKind::Dropout));
    let [sin, cos] = circle(family, model);
    let depth = model.count(|k| listed(family, k)) as f32;
    match family {
        Family::Mlp => vec![linear, batch, params, acts, norm, drop, sin, cos],
        Family::Cnn => {
            let conv = count(|k| k == LayerKind::Conv);
            vec![depth, acts, both, params, batch, conv, norm, drop, sin, cos]
        }
        Family::Transformer => {
            let (attention, norms) =
                (count(|k| k == LayerKind::Attention), count(|k| k == LayerKind::LayerNorm));
            // Its depth counts the functions between the layers as well.
            let depth = model.count(|k| listed(family, k) || matches!(k, LayerKind::Function(_))) as f32;
            vec![depth, acts, both, params, batch, attention, linear, norms, drop]
        }
    }
}

/// Features beside the pooled tokens, in the order of the checkpoints.
pub fn extras(family: Family, model: &ModelLayers, task: &ModelTask) -> Vec<f32> {
    let whole = whole(family, model, task);
    match family {
        Family::Mlp => {
            let both = (f64::from(whole[3]) * task.batch_size as f64) as f32;
            vec![whole[1], whole[2], whole[3], both]
        }
        Family::Cnn => {
            vec![whole[4], whole[3], whole[1], whole[2], whole[5], whole[6], whole[7], whole[8], whole[9]]
        }
        Family::Transformer => whole,
    }
}

/// One token a listed layer: its kind, activations, parameters.
pub fn tokens(family: Family, model: &ModelLayers, task: &ModelTask) -> Vec<Vec<f32>> {
    let layers = model.layers.iter().filter(|l| listed(family, l.kind));
    layers
        .map(|l| {
            let acts = authors_activations(family, l.kind, l.activations, task);
            let mut token: Vec<f32> = match (family, l.kind) {
                (Family::Mlp, LayerKind::Linear) => vec![0.0, 1.0],
                (Family::Cnn, LayerKind::Conv) => vec![0.0, 1.0],
                (Family::Cnn, LayerKind::Linear) => vec![1.0, 1.0],
                (Family::Cnn, LayerKind::BatchNorm | LayerKind::Dropout) => vec![0.0, 0.0],
                (Family::Mlp | Family::Cnn, _) => vec![1.0, 0.0],
                (Family::Transformer, LayerKind::LayerNorm) => vec![1.0, 0.0, 0.0, 0.0],
                (Family::Transformer, LayerKind::Embedding) => vec![0.0, 1.0, 0.0, 0.0],
                (Family::Transformer, LayerKind::Dropout) => vec![0.0, 0.0, 0.0, 1.0],
                (Family::Transformer, _) => vec![0.0, 0.0, 1.0, 0.0],
            };
            token.push(match family {
                Family::Cnn => (acts * task.batch_size as f64) as f32,
                Family::Mlp | Family::Transformer => acts as f32,
            });
            token.push(l.params as f32);
            token
        })
        .collect()
}

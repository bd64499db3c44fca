//! A model as the networks see it, from a printed summary or from a graph.

use super::model::{Family, Layer, LayerKind, ModelLayers};
use crate::graph::{Graph, Keeps, Norm, Op};
use crate::summary::{self, Summary};
use crate::{Error, ModelTask};

/// Layers beyond this are not read; no model in use has as many.
const MAX_LAYERS: usize = 20_000;

impl ModelLayers {
    /// The leaves of a summary. Where no shapes are printed (modelsummary), the width of a layer's output is
    /// taken from its arguments, and the task's sequence length makes the activations of it.
    ///
    /// # Errors
    /// No layer that the networks know, or the sequence length is needed and not given.
    pub fn of_summary(summary: &Summary, task: &ModelTask) -> Result<Self, Error> {
        let leaves: Vec<(LayerKind, &summary::Layer)> = summary
            .layers
            .iter()
            .enumerate()
            .map(|(i, layer)| (i, LayerKind::of(&layer.kind), layer))
            .filter(|(i, kind, _)| *kind != LayerKind::Other && !summary.is_container(*i))
            .map(|(_, kind, layer)| (kind, layer))
            .take(MAX_LAYERS)
            .collect();
        if leaves.is_empty() {
            return Err(Error::bad("summary", "no layer in it that GPUMemNet knows (Linear, Conv2d, ...)"));
        }
        let shapes = leaves.iter().any(|(_, l)| !l.outputs.is_empty());
        let mut widths = Widths::default();
        let mut layers = Vec::with_capacity(leaves.len());
        for (kind, leaf) in &leaves {
            let activations = if shapes {
                leaf.activations().unwrap_or(0)
            } else {
                let tokens = task.seq_len.ok_or_else(|| Error::Missing {
                    estimator: "gpumemnet",
                    what: "the sequence length: this summary prints no shapes".to_owned(),
                })?;
                widths.of(*kind, leaf).saturating_mul(tokens)
            };
            let params = if leaf.recursive { 0 } else { leaf.params };
            layers.push(Layer { kind: *kind, activations, params });
        }
        let family = family(&layers);
        let mut model = Self::new(family, layers);
        // Parameters that belong to no leaf (position tables) count as well.
        model.printed_params = summary.totals.params;
        let root = summary.layers.first().filter(|root| !shapes && root.params > 0);
        if let Some(total) = root.map(|root| root.params).or(summary.totals.params) {
            model.params = total;
        }
        Ok(model)
    }

    /// The nodes of a graph.
    ///
    /// # Errors
    /// No node that the networks know.
    pub fn of_graph(graph: &Graph, task: &ModelTask) -> Result<Self, Error> {
        let batch = task.batch_size.max(1);
        let mut seen = vec![false; graph.params.len()];
        let mut layers = Vec::new();
        for node in graph.nodes.iter().take(MAX_LAYERS) {
            let kind = match &node.op {
                Op::Linear => LayerKind::Linear,
                Op::Conv { .. } => LayerKind::Conv,
                Op::Norm(Norm::Batch) => LayerKind::BatchNorm,
                Op::Norm(_) => LayerKind::LayerNorm,
                Op::Activation { keeps: Keeps::Nothing, .. } => continue,
                Op::Activation { keeps, .. } => {
                    let name = if *keeps == Keeps::Output { "ReLU" } else { "GELU" };
                    LayerKind::of(name)
                }
                Op::Softmax => LayerKind::Function(None),
                Op::Dropout { .. } => LayerKind::Dropout,
                Op::MaxPool | Op::AvgPool => LayerKind::Pool,
                Op::Embedding => LayerKind::Embedding,
                Op::Recurrent { .. } | Op::Unknown => LayerKind::Other,
                // Data sets list modules: what runs between them has no place there.
                _ => continue,
            };
            let elements: u64 =
                node.outputs.iter().fold(0, |n, t| n.saturating_add(graph.tensor(*t).elements()));
            let mut params = 0_u64;
            for id in &node.params {
                let param = graph.param(*id);
                if !param.buffer && !std::mem::replace(&mut seen[id.0 as usize], true) {
                    params = params.saturating_add(param.elements());
                }
            }
            layers.push(Layer { kind, activations: elements / batch, params });
        }
        if layers.is_empty() {
            return Err(Error::bad("graph", "no operator in it that GPUMemNet knows (Linear, Conv, ...)"));
        }
        let mut model = Self::new(family(&layers), layers);
        model.params = graph.parameters();
        Ok(model)
    }
}

/// Which networks to ask.
fn family(layers: &[Layer]) -> Family {
    let count = |of: fn(LayerKind) -> bool| layers.iter().filter(|l| of(l.kind)).count();
    let convolutions = count(|k| k == LayerKind::Conv);
    let attention =
        count(|k| matches!(k, LayerKind::LayerNorm | LayerKind::Embedding | LayerKind::Attention));
    if convolutions > attention {
        Family::Cnn
    } else if attention > 0 {
        Family::Transformer
    } else {
        Family::Mlp
    }
}

/// Widths of layers whose shapes are not printed.
#[derive(Default)]
struct Widths {
    /// Of the embedding: the model's.
    model: u64,
    /// Of the layer before.
    last: u64,
}

impl Widths {
    fn of(&mut self, kind: LayerKind, leaf: &summary::Layer) -> u64 {
        let known = match kind {
            LayerKind::Linear | LayerKind::Attention => {
                leaf.number("out_features").or_else(|| leaf.number("nf")).or_else(|| self.transposed(leaf))
            }
            LayerKind::Embedding => leaf.number("embedding_dim").or_else(|| leaf.number("1")),
            LayerKind::LayerNorm => leaf.numbers("0").last().copied(),
            // Elementwise: as wide as what came before.
            _ => None,
        };
        let width = known.unwrap_or(self.last);
        if self.model == 0 {
            self.model = width;
        }
        self.last = width;
        width
    }

    /// GPT-2's `Conv1D()` prints no width: its parameters are `(inputs + 1) * width`.
    fn transposed(&self, leaf: &summary::Layer) -> Option<u64> {
        let inputs = [self.last, self.model].into_iter().filter(|n| *n > 0);
        inputs.map(|n| n + 1).find(|n| leaf.params.is_multiple_of(*n)).map(|n| leaf.params / n)
    }
}

//! Layers with the batch of the task, in the order of the forward pass.

use super::role::{Role, role};
use crate::Error;
use crate::summary::{Dialect, Layer, Summary};
use std::collections::BTreeMap;

/// Dimensions with the task's batch.
pub(super) type Dims = Vec<u64>;

/// A layer as the flow takes it.
#[derive(Debug, Clone)]
pub(super) struct LayerRow {
    pub(super) name: String,
    pub(super) kind: String,
    pub(super) role: Role,
    /// Shape of its input, where printed.
    pub(super) input: Option<Dims>,
    /// Shape of its first output, where printed.
    pub(super) output: Option<Dims>,
    pub(super) params: u64,
    pub(super) frozen: bool,
    /// The same module again.
    pub(super) recursive: bool,
    pub(super) groups: Option<u64>,
    pub(super) attribute: String,
    /// A functional pool stands before it.
    pub(super) pooled: bool,
    /// Begins one of several branches that read the same (RepVGG).
    pub(super) branch: bool,
    /// Reads attention over a product that is not printed (BEiT).
    pub(super) attends: bool,
    /// Numbers a sample that layers inside make, where they are not printed.
    pub(super) hidden: Option<u64>,
}

impl LayerRow {
    /// Parameters of a convolution without those that scale its output (timm's `ScaledStdConv2d`).
    pub(super) fn weights(&self, outer: u64) -> u64 {
        if self.kind.starts_with("ScaledStd") { self.params.saturating_sub(outer) } else { self.params }
    }
}

/// One step of the forward pass.
#[derive(Debug, Clone)]
pub(super) enum Step {
    /// What follows lies inside.
    Enter(LayerRow),
    Leaf(LayerRow),
    /// A container whose inside is hidden.
    Hidden(LayerRow),
    Exit(LayerRow),
}

/// The batch in the text: what most layers have as first dimension.
pub(super) fn printed_batch(summary: &Summary) -> Option<i64> {
    let mut count: BTreeMap<i64, usize> = BTreeMap::new();
    for layer in &summary.layers {
        if let Some(first) = layer.outputs.first().and_then(|s| s.first()) {
            *count.entry(*first).or_default() += 1;
        }
    }
    count.into_iter().max_by_key(|(_, n)| *n).map(|(b, _)| b).filter(|b| *b != 0)
}

/// No dimension of a tensor is longer; what is computed of two of them does not overflow.
const LONGEST: u64 = 1 << 30;
/// Elements of a tensor, and parameters of a layer, that are believed (as in [`crate::graph::Builder`]).
const MOST_ELEMENTS: u64 = 1 << 44;

/// Puts the task's batch into printed shapes.
struct Batch {
    printed: Option<i64>,
    real: u64,
    tree_of_modules: bool,
}

impl Batch {
    fn dims(&self, layer: &str, shape: &[i64]) -> Result<Dims, Error> {
        let mut dims = Vec::with_capacity(shape.len());
        for (i, d) in shape.iter().enumerate() {
            let real = match (i, self.printed) {
                (0, _) if *d == -1 => Some(self.real),
                // A multiple of the batch: windows, heads.
                (0, Some(b)) if b > 0 && d % b == 0 && *d > 0 => {
                    (*d as u64 / b as u64).checked_mul(self.real)
                }
                _ => u64::try_from(*d).ok(),
            };
            let Some(real) = real else {
                return Err(Error::Absurd { layer: layer.to_owned(), what: format!("shape {shape:?}") });
            };
            dims.push(real);
        }
        let elements = dims.iter().try_fold(1_u64, |n, d| n.checked_mul(*d));
        if dims.iter().any(|d| *d > LONGEST) || elements.is_none_or(|n| n > MOST_ELEMENTS) {
            return Err(Error::Absurd {
                layer: layer.to_owned(),
                what: format!("shape {shape:?} with {} samples", self.real),
            });
        }
        Ok(dims)
    }

    /// A tree of modules counts what is inside as well, or nothing at all.
    fn params(&self, layer: &Layer) -> u64 {
        if self.tree_of_modules { super::shapes::parameters(layer).unwrap_or(0) } else { layer.params }
    }

    fn row(&self, layer: &Layer) -> Result<LayerRow, Error> {
        if layer.params > MOST_ELEMENTS {
            return Err(Error::Absurd {
                layer: layer.name.clone(),
                what: format!("{} parameters", layer.params),
            });
        }
        let first = |shapes: &[Vec<i64>]| shapes.first().map(|s| self.dims(&layer.name, s)).transpose();
        Ok(LayerRow {
            name: layer.name.clone(),
            kind: layer.kind.clone(),
            role: role(&layer.kind),
            input: first(&layer.inputs)?,
            output: first(&layer.outputs)?,
            params: self.params(layer),
            frozen: layer.trainable == Some(false),
            recursive: layer.recursive,
            groups: layer.number("groups"),
            attribute: layer.attribute.clone(),
            pooled: false,
            branch: false,
            attends: false,
            hidden: None,
        })
    }
}

/// The steps of a summary for a batch.
pub(super) fn steps(summary: &Summary, batch: u64) -> Result<Vec<Step>, Error> {
    let tree_of_modules = summary.dialect == Dialect::Modelsummary;
    let batch = Batch { printed: printed_batch(summary), real: batch, tree_of_modules };
    let mut steps = Vec::with_capacity(summary.layers.len() * 2);
    if summary.dialect == Dialect::Torchsummary {
        for (i, layer) in summary.layers.iter().enumerate() {
            let row = batch.row(layer)?;
            steps.push(match row.role {
                Role::Holder => continue,
                // Classes of the model's own end what they hold; with parameters or with nothing before
                // them to hold, they are layers of which nothing is known.
                Role::Block if row.params == 0 && i > 0 => Step::Exit(row),
                Role::Block => Step::Hidden(row),
                _ => Step::Leaf(row),
            });
            norm_first(&mut steps);
        }
        marks(&mut steps);
        return Ok(steps);
    }
    let mut open: Vec<(usize, LayerRow)> = Vec::new();
    for (i, layer) in summary.layers.iter().enumerate() {
        while let Some((depth, _)) = open.last()
            && *depth >= layer.depth
            && let Some((_, row)) = open.pop()
        {
            steps.push(Step::Exit(row));
        }
        let row = batch.row(layer)?;
        if summary.is_container(i) && matches!(row.role, Role::Block | Role::Holder) {
            steps.push(Step::Enter(row.clone()));
            open.push((layer.depth, row));
        } else if summary.is_container(i) {
            // A known layer that holds others (a norm with its activation): it runs first.
            steps.push(Step::Leaf(row));
        } else if matches!(row.role, Role::Block | Role::Holder) {
            steps.push(Step::Hidden(row));
        } else {
            steps.push(Step::Leaf(row));
        }
    }
    while let Some((_, row)) = open.pop() {
        steps.push(Step::Exit(row));
    }
    marks(&mut steps);
    Ok(steps)
}

/// A norm with its activation inside stands behind it in torchsummary, and runs before it.
fn norm_first(steps: &mut [Step]) {
    let Some(Step::Leaf(norm)) = steps.last() else { return };
    if !matches!(norm.role, Role::Norm(_)) || !norm.kind.contains("Act") {
        return;
    }
    let mut at = steps.len() - 1;
    while at > 0
        && let Step::Leaf(inner) = &steps[at - 1]
        && matches!(inner.role, Role::Identity | Role::Activation(_) | Role::Dropout)
        && steps.len() - at <= 2
    {
        at -= 1;
    }
    steps[at..].rotate_right(1);
}

/// What only the end of a block tells of the layers in it.
fn marks(steps: &mut [Step]) {
    pooled_branches(steps);
    let mut since = 0;
    let mut products: Vec<usize> = Vec::new();
    for i in 0..steps.len() {
        match &steps[i] {
            Step::Leaf(row) if row.role == Role::Linear => products.push(i),
            Step::Leaf(row) if matches!(row.role, Role::Norm(_)) && !products.is_empty() => products.clear(),
            Step::Exit(row) if row.kind.contains("RepVgg") || row.kind.contains("MobileOneBlock") => {
                branches(&mut steps[since..i]);
                since = i;
            }
            Step::Exit(row) if row.kind.ends_with("Attention") => {
                if let (&[at], false) = (products.as_slice(), row.kind.contains("Windows"))
                    && let Some(Step::Leaf(linear)) = steps.get_mut(at)
                {
                    linear.attends = true;
                }
                products.clear();
            }
            _ => {}
        }
    }
}

/// Every convolution, and a norm that follows none, begins a branch.
fn branches(steps: &mut [Step]) {
    let mut convolved = false;
    for step in steps {
        match step {
            Step::Leaf(row) if matches!(row.role, Role::Conv { .. }) => {
                row.branch = true;
                convolved = true;
            }
            Step::Leaf(row) if matches!(row.role, Role::Norm(_)) => {
                row.branch = !convolved;
                convolved = false;
            }
            _ => {}
        }
    }
}

/// torchvision's Inception modules pool by a function before their last convolution, where no pool is
/// printed just before it.
fn pooled_branches(steps: &mut [Step]) {
    let mut last: Option<usize> = None;
    let mut pool = false;
    for i in 0..steps.len() {
        match &steps[i] {
            Step::Leaf(row) if matches!(row.role, Role::Conv { .. }) => {
                let before = i.checked_sub(1).map(|j| &steps[j]);
                pool |=
                    matches!(before, Some(Step::Leaf(r)) if matches!(r.role, Role::MaxPool | Role::AvgPool));
                last = Some(i);
            }
            Step::Exit(row) if row.kind.starts_with("Inception") && !row.kind.contains("Aux") => {
                if let Some(Step::Leaf(conv)) = last.filter(|_| !pool).and_then(|at| steps.get_mut(at)) {
                    conv.pooled = true;
                }
                pool = false;
            }
            _ => {}
        }
    }
}

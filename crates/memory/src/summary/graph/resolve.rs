//! What a cut tree hides, in two ways: written out where the number of parameters tells the block; else as
//! much as the printed size of the forward pass leaves over.
//!
//! torchinfo prints `Forward/backward pass size`: twice the outputs of all layers that have parameters,
//! hidden ones included. What the visible layers do not account for belongs to the hidden ones.

use super::expand::expand;
use super::flow::elements;
use super::role::{Role, role};
use super::row::{Dims, LayerRow, Step, printed_batch};
use crate::summary::{Dialect, Summary};
use std::collections::BTreeMap;

/// Containers within containers that are written out.
const DEEPEST: u8 = 3;

/// Steps in which hidden containers are written out or have their share of the activations.
pub(super) fn resolve(summary: &Summary, steps: Vec<Step>, batch: u64) -> Vec<Step> {
    let act = usual_activation(summary);
    let written = |deepest: u8| {
        let mut out = Vec::with_capacity(steps.len());
        let mut last: Dims = Vec::new();
        for step in steps.iter().cloned() {
            take(step, &act, DEEPEST - deepest, &mut last, &mut out);
        }
        out
    };
    let mut out = written(DEEPEST);
    if summary.dialect == Dialect::Torchinfo {
        // More than is printed: a block was taken for another. What is printed is believed.
        if let Some(printed) = printed_numbers(summary)
            && known_numbers(summary, &out, batch) > 1.25 * printed
        {
            out = written(0);
        }
        share(summary, &mut out, batch, kept(summary, &act));
    }
    out
}

/// Numbers of one sample that layers with parameters make, as printed: 10^6 bytes, 4 each, twice.
fn printed_numbers(summary: &Summary) -> Option<f64> {
    let printed = summary.totals.activations_mb.filter(|mb| *mb > 0.0 && *mb < 1e9)?;
    let samples = printed_batch(summary).and_then(|b| u64::try_from(b).ok()).filter(|b| *b > 0).unwrap_or(1);
    Some(printed * 1e6 / 8.0 / samples as f64)
}

/// The same of the visible layers. torchinfo leaves out layers that hold others (timm's norms with their
/// activation) and what functions make.
fn known_numbers(summary: &Summary, steps: &[Step], batch: u64) -> f64 {
    let norms = !norms_hold_activations(summary);
    let sum: f64 = steps
        .iter()
        .map(|step| match step {
            Step::Leaf(row) if row.params > 0 => match row.role {
                Role::Conv { .. } | Role::Linear | Role::Embedding => {
                    row.output.as_deref().map_or(0, elements) as f64
                }
                Role::Norm(_) if norms => row.output.as_deref().map_or(0, elements) as f64,
                _ => 0.0,
            },
            _ => 0.0,
        })
        .sum();
    sum / batch.max(1) as f64
}

/// timm's norms hold their activation.
fn norms_hold_activations(summary: &Summary) -> bool {
    let norms = summary.layers.iter().filter(|l| matches!(role(&l.kind), Role::Norm(_)));
    let (all, holding) = norms.fold((0, 0), |(n, h), l| (n + 1, h + usize::from(l.kind.contains("Act"))));
    holding * 2 > all
}

/// Numbers that hidden layers keep for each one that is printed: with in-place activations a quarter
/// more (sums, concatenations), else twice as many (what activations and attention keep); where norms are
/// not in the printed number, one more for each.
fn kept(summary: &Summary, act: &str) -> f64 {
    let norms = if norms_hold_activations(summary) { 1.0 } else { 0.0 };
    norms + if act == "ReLU" { 1.25 } else { 2.0 }
}

fn take(step: Step, act: &str, depth: u8, last: &mut Dims, out: &mut Vec<Step>) {
    match step {
        Step::Hidden(mut row) => {
            // Lists of modules print no shapes.
            if row.output.is_none() && row.params > 0 && !last.is_empty() {
                row.output = Some(last.clone());
            }
            let input = row.input.clone().unwrap_or_else(|| last.clone());
            let inside = if depth < DEEPEST { expand(&row, &input, act) } else { None };
            let Some(inside) = inside else {
                last.clone_from(row.output.as_ref().unwrap_or(&input));
                out.push(Step::Hidden(row));
                return;
            };
            // The parameters are those of what is inside.
            let row = LayerRow { params: 0, input: row.input.clone().or(Some(input)), ..row };
            out.push(Step::Enter(row.clone()));
            for step in inside {
                take(step, act, depth + 1, last, out);
            }
            if let Some(shape) = &row.output {
                last.clone_from(shape);
            }
            out.push(Step::Exit(row));
        }
        step => {
            let shape = match &step {
                Step::Enter(row) => row.input.clone(),
                Step::Leaf(row) | Step::Exit(row) | Step::Hidden(row) => row.output.clone(),
            };
            if let Some(shape) = shape {
                *last = shape;
            }
            out.push(step);
        }
    }
}

/// Gives every hidden container that is left its share of the printed activations.
fn share(summary: &Summary, steps: &mut [Step], batch: u64, kept: f64) {
    let weights: Vec<(usize, f64)> = steps
        .iter()
        .enumerate()
        .filter_map(|(i, step)| match step {
            Step::Hidden(row) => Some((i, weight(row))),
            _ => None,
        })
        .collect();
    let sum: f64 = weights.iter().map(|(_, w)| w).sum();
    let left = printed_numbers(summary).map(|all| (all - known_numbers(summary, steps, batch)).max(0.0));
    let batch = batch.max(1) as f64;
    for (i, weight) in weights {
        if let Some(Step::Hidden(row)) = steps.get_mut(i)
            && sum > 0.0
        {
            let elements = match left {
                Some(left) => kept * left * weight / sum,
                // Without the total: as many 3 x 3 convolutions with norms as the parameters amount to.
                None => kept * weight * 0.45 / batch,
            };
            row.hidden = Some(elements as u64);
        }
    }
}

/// Activations grow with the parameters, with the places and against the width: a layer of width `c` has
/// `c^2` weights and `c` numbers a place.
fn weight(row: &LayerRow) -> f64 {
    let Some(out) = row.output.as_deref() else { return 0.0 };
    let input = row.input.as_deref().unwrap_or(out);
    let width = |s: &[u64]| if s.len() == 4 { s[1] } else { s.last().copied().unwrap_or(1) }.max(1) as f64;
    let places = |s: &[u64]| elements(s) as f64 / width(s);
    row.params as f64 * f64::midpoint(places(out), places(input)) / width(out).max(width(input))
}

/// The activation that is printed most.
fn usual_activation(summary: &Summary) -> String {
    let mut count: BTreeMap<&str, usize> = BTreeMap::new();
    for layer in &summary.layers {
        let gate = layer.kind.contains("igmoid");
        if matches!(role(&layer.kind), Role::Activation(_)) && !gate {
            *count.entry(&layer.kind).or_default() += 1;
        }
    }
    count.into_iter().max_by_key(|(_, n)| *n).map_or_else(|| "ReLU".to_owned(), |(kind, _)| kind.to_owned())
}

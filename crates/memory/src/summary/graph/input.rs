//! The batch that arrives: its shape is printed, or follows from the first layer and the printed size.

use super::fit;
use super::flow::Flow;
use super::role::Role;
use super::row::{Dims, LayerRow, Step};
use crate::Error;
use crate::graph::Number;
use crate::summary::{Dialect, Summary};

pub(super) fn input(flow: &mut Flow<'_>, summary: &Summary, steps: &[Step]) -> Result<(), Error> {
    let first = steps.iter().find_map(|s| match s {
        Step::Enter(row) | Step::Leaf(row) | Step::Hidden(row)
            if row.input.is_some() || !matches!(s, Step::Enter(_)) =>
        {
            Some(row)
        }
        _ => None,
    });
    let Some(first) = first else { return Err(Error::bad("summary", "no layer with a shape")) };
    if first.role == Role::Embedding {
        return Ok(());
    }
    let shape = match &first.input {
        Some(shape) if !shape.is_empty() => shape.clone(),
        _ => guess(flow, summary, first)?,
    };
    let id = flow.b.input("input", &shape, Number::Float)?;
    flow.push(id);
    Ok(())
}

/// Elements of one sample of the input, from to, by the printed size with two decimals.
fn printed_elements(summary: &Summary, samples: u64) -> Option<(f64, f64)> {
    let mb = summary.totals.input_mb.filter(|mb| *mb > 0.0)?;
    // torchsummary means MiB, torchinfo 10^6 bytes.
    let unit = if summary.dialect == Dialect::Torchinfo { 1e6 } else { 1_048_576.0 };
    let per = unit / 4.0 / samples.max(1) as f64;
    Some(((mb - 0.005) * per, (mb + 0.005) * per))
}

fn guess(flow: &mut Flow<'_>, summary: &Summary, row: &LayerRow) -> Result<Dims, Error> {
    let Some(out) = row.output.clone() else {
        return Err(Error::bad(row.name.clone(), "no shape is printed; the input cannot be told"));
    };
    let samples = summary
        .layers
        .iter()
        .find_map(|l| l.outputs.first()?.first().copied())
        .and_then(|b| u64::try_from(b).ok())
        .unwrap_or(1);
    match row.role {
        Role::Conv { .. } if out.len() >= 3 && out[1] > 0 => {
            let dims = out.len() - 2;
            let range = printed_elements(summary, samples);
            let mut best: Option<(f64, Dims)> = None;
            for channels in [3_u64, 1, 4, 2, 6, 8, 12, 13, 16, 32, 64, 128, 256, 512] {
                let Some(found) = fit::channels(channels, out[1], row.weights(out[1]), false) else {
                    continue;
                };
                let kernel =
                    if found.area.isqrt().pow(2) == found.area { found.area.isqrt() } else { found.area };
                for (side, cost) in sides(out[2], out[out.len() - 1] == out[2], kernel, channels, dims, range)
                {
                    let cost = cost + found.cost + if channels == 3 { 0.0 } else { 0.3 };
                    if best.as_ref().is_none_or(|(c, _)| cost < *c) {
                        let mut shape = vec![out[0], channels];
                        shape.extend(out[2..].iter().map(|d| {
                            let ratio = side as f64 / out[2] as f64;
                            if *d == out[2] { side } else { (*d as f64 * ratio).round() as u64 }
                        }));
                        best = Some((cost, shape));
                    }
                }
            }
            if let Some((_, shape)) = best {
                if range.is_none() {
                    flow.doubt(format!("the input is not printed; taken for {shape:?}"));
                }
                return Ok(shape);
            }
            flow.doubt(format!("{}: the input cannot be told; taken for its output's shape", row.name));
            Ok(out)
        }
        Role::Linear => {
            let width = out.last().copied().unwrap_or(1).max(1);
            let mut shape = out.clone();
            if let Some(last) = shape.last_mut() {
                *last = (row.params.saturating_sub(width) / width).max(1);
            }
            Ok(shape)
        }
        _ => Ok(out),
    }
}

/// Sides of images from which a kernel makes `out` cells, with a cost each.
fn sides(
    out: u64,
    square: bool,
    kernel: u64,
    channels: u64,
    dims: usize,
    range: Option<(f64, f64)>,
) -> Vec<(u64, f64)> {
    let mut found = Vec::new();
    for stride in [1_u64, 2, 4, 8, 14, 16, 32] {
        // A first layer that looks at every cell has no stride beyond its kernel.
        if stride > kernel.max(2) {
            continue;
        }
        let Some(middle) = out.checked_mul(stride) else { continue };
        for side in middle.saturating_sub(stride)..=middle.saturating_add(stride + kernel) {
            let Some(usual) = fit::side(side, out, kernel.saturating_mul(kernel)) else { continue };
            let mut cost = usual;
            if let Some((low, high)) = range
                && square
            {
                let size = (side as f64).powi(dims as i32) * channels as f64;
                if size < low - 1.0 || size > high + 1.0 {
                    continue;
                }
            } else if range.is_none() {
                // Small kernels at large sizes mean a stride.
                let likely = if kernel >= 7 || out >= 100 {
                    kernel.min(2).max(if kernel >= 11 { 4 } else { 2 })
                } else {
                    1
                };
                cost += if stride == likely || stride == kernel { 0.0 } else { 0.5 };
            }
            cost += if side == 28 {
                // MNIST: its size is printed as 0.00 MB.
                -0.15
            } else if side % 32 == 0 {
                0.0
            } else if [299, 331, 28, 300, 240, 384].contains(&side) {
                0.02
            } else if side % 2 == 0 {
                0.1
            } else {
                0.15
            };
            found.push((side, cost));
        }
    }
    found
}

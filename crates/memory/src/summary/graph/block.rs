//! Containers: what happens at their end that no line shows (additions, products, concatenations).

use super::flow::{Flow, REACH, elements};
use super::plan::Plan;
use super::role::Role;
use super::row::LayerRow;
use crate::Error;
use crate::graph::{Keeps, Number, Op, TensorId};
use std::collections::HashMap;

/// Where a container began.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    pub(super) at: usize,
    pub(super) step: usize,
}

/// What is known of containers on the way.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    open: Vec<Entry>,
    /// By class: the step of the last end, and the tensor that came out.
    last: HashMap<String, Entry>,
}

/// Classes whose output is a sum with their input, where the shapes allow it.
fn residual(kind: &str) -> bool {
    const PARTS: &[&str] = &[
        "RepVgg",
        "MobileOneBlock",
        "Bottleneck",
        "Residual",
        "MBConv",
        "BasicBlock",
        "InvertedRes",
        "ResBlock",
        "PreAct",
    ];
    const WHOLE: &[&str] =
        &["Block", "EncoderBlock", "CNBlock", "ConvNeXtBlock", "SwinTransformerBlock", "ResidualAdd"];
    PARTS.iter().any(|p| kind.contains(p)) || WHOLE.contains(&kind) || kind.ends_with("Block")
}

/// torchvision and its relatives add in place.
fn adds_in_place(kind: &str) -> bool {
    matches!(kind, "BasicBlock" | "Bottleneck" | "MBConv" | "FusedMBConv" | "Block")
}

impl Blocks {
    pub(super) fn enter(&mut self, flow: &mut Flow<'_>, row: &LayerRow) -> Result<(), Error> {
        flow.step += 1;
        // The printed input tells a branch from the main way.
        if let Some(want) = row.input.as_deref()
            && !want.is_empty()
            && !flow.seen.is_empty()
            && flow.shape(flow.cur) != want
        {
            let (_, plan) = flow.plan(want);
            if let Plan::Use(at) = plan {
                flow.cur = at;
            }
        }
        let shortcut = ["downsample", "shortcut", "skip", "branch1", "conv_proj", "proj_drop"];
        if row.input.is_none()
            && shortcut.contains(&row.attribute.as_str())
            && row.role == Role::Holder
            && let Some(entry) = self.open.last()
        {
            flow.cur = entry.at;
        }
        self.open.push(Entry { at: flow.cur, step: flow.step });
        Ok(())
    }

    pub(super) fn exit(&mut self, flow: &mut Flow<'_>, row: &LayerRow, tree: bool) -> Result<(), Error> {
        flow.step += 1;
        let entry = if tree { self.open.pop() } else { self.last.get(&row.kind).copied() };
        self.end(flow, row, entry, tree)?;
        flow.after_activation = false;
        if residual(&row.kind)
            && let Some(seen) = flow.seen.get_mut(flow.cur)
        {
            seen.block_end = true;
        }
        let now = Entry { at: flow.cur, step: flow.step + 1 };
        self.last.insert(row.kind.clone(), now);
        Ok(())
    }

    fn end(
        &self,
        flow: &mut Flow<'_>,
        row: &LayerRow,
        entry: Option<Entry>,
        tree: bool,
    ) -> Result<(), Error> {
        let Some(out) = row.output.clone() else { return Ok(()) };
        if flow.seen.is_empty() || row.role == Role::Holder {
            return Ok(());
        }
        functional_activation(flow, row)?;
        gating(flow, row, &out)?;
        if flow.shape(flow.cur) != out
            && flow.shape(flow.cur).len() == out.len()
            && elements(flow.shape(flow.cur)) == elements(&out)
        {
            // Channels last inside, first outside.
            flow.cur = flow.carry_out(&row.name, &out, &Plan::View(flow.cur))?;
        }
        let start = entry.map_or(0, |e| e.step);
        let cur = flow.cur;
        let open: Vec<usize> = flow.open_since(start).into_iter().filter(|i| *i != cur).collect();
        let same: Vec<usize> = open.iter().copied().filter(|i| flow.shape(*i) == out).collect();
        if flow.shape(cur) == out {
            if row.kind.contains("ttention") && same.len() >= 2 && flow.seen[cur].product {
                let from = same.len() - 2;
                let qkv: Vec<TensorId> = same[from..].iter().chain([&cur]).map(|i| flow.read(*i)).collect();
                flow.attend(&row.name, &qkv, &out)?;
                return Ok(());
            }
            // Without the extent of the container, an open tensor of the shape may be a branch of another.
            let sums = tree || residual(&row.kind);
            scaled(flow, row, tree)?;
            let cur = flow.cur;
            let other = same.last().copied().filter(|_| sums).or_else(|| {
                let entry = entry?;
                (residual(&row.kind) && entry.at != cur && flow.shape(entry.at) == out).then_some(entry.at)
            });
            if let Some(other) = other {
                let (x, y) = (flow.read(cur), flow.read(other));
                // The activation that is printed last runs on the sum: they share its storage.
                let op = Op::Add { inplace: flow.after_activation || adds_in_place(&row.kind) };
                let id = flow.b.like(&format!("{} (sum)", row.name), op, &[x, y])?;
                flow.push(id);
            }
            return Ok(());
        }
        if gate(flow, row, &out)? || concatenation(flow, row, &out, &open, entry)? {
            return Ok(());
        }
        // Windows: the batch of the last tensor is a multiple of what is printed.
        let (size, wanted) = (elements(flow.shape(cur)), elements(&out));
        if size > wanted
            && wanted > 0
            && size.is_multiple_of(wanted)
            && flow.shape(cur).last() == out.last()
            && out.len() > 2
        {
            return Ok(());
        }
        let (cost, plan) = flow.plan(&out);
        if cost < 10.0 || row.params > 0 || !out.is_empty() {
            flow.cur = flow.carry_out(&row.name, &out, &plan)?;
        }
        Ok(())
    }
}

/// A factor a channel before the sum, which torchsummary does not count and torchinfo counts as the
/// container's own.
fn scaled(flow: &mut Flow<'_>, row: &LayerRow, tree: bool) -> Result<(), Error> {
    let shape = flow.shape(flow.cur).to_vec();
    let channels_first = shape.get(1).copied().unwrap_or(0);
    let last = shape.last().copied().unwrap_or(0);
    let own =
        tree && row.params > 0 && (row.params == channels_first || row.params == last) && shape.len() > 2;
    let hidden = !tree && matches!(row.kind.as_str(), "CNBlock" | "ConvNeXtBlock");
    if own || hidden {
        let channels = if own { row.params } else { channels_first };
        let gamma = flow.b.param(format!("{}.scale", row.name), &[channels])?;
        let x = flow.read(flow.cur);
        let id =
            flow.b.node(&format!("{} (scale)", row.name), Op::Mul, &[x], &[gamma], &shape, Number::Float)?;
        flow.push(id);
    }
    Ok(())
}

/// gMLP's unit: one half, turned by a layer over the tokens, times the other.
fn gating(flow: &mut Flow<'_>, row: &LayerRow, out: &[u64]) -> Result<(), Error> {
    if !row.kind.contains("GatingUnit") || elements(flow.shape(flow.cur)) != elements(out) {
        return Ok(());
    }
    let other = (0..flow.seen.len()).rev().take(REACH).find(|i| {
        let shape = flow.shape(*i);
        shape.len() == out.len() && shape.last() == out.last().map(|w| w * 2).as_ref()
    });
    let Some(other) = other else { return Ok(()) };
    let turned = flow.carry_out(&row.name, out, &Plan::View(flow.cur))?;
    let half = flow.carry_out(&row.name, out, &Plan::Part(other))?;
    let (x, y) = (flow.read(half), flow.read(turned));
    let id = flow.b.like(&format!("{} (gated)", row.name), Op::Mul, &[x, y])?;
    flow.push(id);
    Ok(())
}

/// Convolution and norm in one class, as in torchvision's Inception: the ReLU is a function.
fn functional_activation(flow: &mut Flow<'_>, row: &LayerRow) -> Result<(), Error> {
    if matches!(row.kind.as_str(), "BasicConv2d" | "BasicConv") && flow.after_norm {
        let x = flow.read(flow.cur);
        let id = flow.b.activation(&format!("{} (relu)", row.name), Keeps::Output, true, x)?;
        flow.push(id);
    }
    Ok(())
}

/// A gate for each channel: squeeze and excitation.
fn gate(flow: &mut Flow<'_>, row: &LayerRow, out: &[u64]) -> Result<bool, Error> {
    let cur = flow.shape(flow.cur);
    let channels = out.get(1).copied().unwrap_or(0);
    let each = out.first().copied().unwrap_or(0).saturating_mul(channels);
    if out.len() < 3 || elements(cur) != each || elements(out) <= each {
        return Ok(false);
    }
    let Some(at) = (0..flow.seen.len()).rev().take(REACH).find(|i| flow.shape(*i) == out) else {
        return Ok(false);
    };
    let gate = flow.read(flow.cur);
    let gate = if flow.after_product {
        // The sigmoid is a function.
        flow.b.activation(&format!("{} (gate)", row.name), Keeps::Output, false, gate)?
    } else {
        gate
    };
    let x = flow.read(at);
    let id = flow.b.node(&format!("{} (scaled)", row.name), Op::Mul, &[x, gate], &[], out, Number::Float)?;
    flow.push(id);
    Ok(true)
}

/// Branches side by side: Inception, Fire, dense layers, ShuffleNet.
fn concatenation(
    flow: &mut Flow<'_>,
    row: &LayerRow,
    out: &[u64],
    open: &[usize],
    entry: Option<Entry>,
) -> Result<bool, Error> {
    if out.len() < 3 {
        return Ok(false);
    }
    let fits = |s: &[u64]| s.len() == out.len() && s[0] == out[0] && s[2..] == out[2..];
    let cur = flow.cur;
    if !fits(flow.shape(cur)) {
        return Ok(false);
    }
    let mut parts = vec![cur];
    let mut sum = flow.shape(cur)[1];
    for i in open.iter().rev().copied() {
        let channels = flow.shape(i).get(1).copied().unwrap_or(0);
        if sum < out[1] && fits(flow.shape(i)) && sum + channels <= out[1] {
            sum += channels;
            parts.push(i);
        }
    }
    if sum < out[1] {
        // The rest is what went in, pooled where it is larger, or half of it (ShuffleNet).
        let missing = out[1] - sum;
        let half =
            entry.map(|e| e.at).filter(|at| flow.seen[*at].halves && flow.shape(*at)[1] == missing * 2);
        let from = half.or_else(|| {
            (0..flow.seen.len()).rev().take(200).find(|i| {
                let s = flow.shape(*i);
                *i != cur && !parts.contains(i) && s.len() == out.len() && s[1] == missing && s[0] == out[0]
            })
        });
        let from =
            from.or_else(|| entry.map(|e| e.at).filter(|at| flow.shape(*at).get(1) == Some(&(missing * 2))));
        let Some(from) = from else { return Ok(false) };
        let x = flow.read(from);
        let mut want = out.to_vec();
        want[1] = missing;
        let id = if fits(flow.shape(from)) && flow.shape(from)[1] == missing {
            x
        } else if elements(flow.shape(from)) > elements(&want) && flow.shape(from)[1] == missing {
            flow.b.node(&format!("{} (pool)", row.name), Op::MaxPool, &[x], &[], &want, Number::Float)?
        } else {
            flow.b.view(&format!("{} (half)", row.name), x, &want)?
        };
        let at = flow.push(id);
        parts.push(at);
        sum = out[1];
    }
    if sum != out[1] {
        return Ok(false);
    }
    parts.reverse();
    let ids: Vec<TensorId> = parts.iter().map(|i| flow.read(*i)).collect();
    let id = flow.b.node(&format!("{} (concatenation)", row.name), Op::Cat, &ids, &[], out, Number::Float)?;
    flow.push(id);
    if row.kind == "InvertedResidual" {
        // ShuffleNet mixes the halves: a copy.
        let x = flow.read(flow.cur);
        let id = flow.b.node(&format!("{} (shuffle)", row.name), Op::Copy, &[x], &[], out, Number::Float)?;
        let at = flow.push(id);
        flow.seen[at].halves = true;
    }
    Ok(true)
}

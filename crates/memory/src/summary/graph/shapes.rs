//! Shapes for trees of modules, which print none: computed from the layers' arguments, for an image whose
//! size is assumed.
//!
//! A tree stands in the order of construction. That is the order of the forward pass in most models;
//! where a layer's channels do not follow from the last tensor, it reads what came into a block around it
//! (shortcuts, branches).

use super::role::{Role, role};
use crate::summary::{Layer, Shape, Summary};

/// Sides of images that are tried; the first for which flattening fits the linear layers is taken, else
/// the first.
const SIDES: &[i64] = &[224, 32, 28, 299, 64, 96, 128, 256, 48, 227, 512];

/// The summary with shapes and what had to be assumed; `None` where no layer tells what comes in, or layers
/// do not fit what stands before them: then the order of the text is not that of the forward pass.
pub(super) fn shaped(summary: &Summary) -> Option<Summary> {
    let first = summary.layers.iter().find(|l| {
        matches!(role(&l.kind), Role::Conv { .. } | Role::Linear | Role::Embedding)
            && !l.attributes.is_empty()
    })?;
    let mut best: Option<(usize, Walk<'_>, Shape)> = None;
    let inception = summary.layers.iter().any(|l| l.kind.starts_with("Inception") && l.kind != "Inception");
    for side in inception.then_some(&299).into_iter().chain(SIDES) {
        let input: Shape = match role(&first.kind) {
            Role::Conv { .. } => {
                let channels = i64::try_from(first.number("0")?).ok()?;
                let dims = if first.kind.contains("1d") {
                    1
                } else if first.kind.contains("3d") {
                    3
                } else {
                    2
                };
                let mut shape = vec![-1, channels];
                shape.extend(std::iter::repeat_n(*side, dims));
                shape
            }
            Role::Linear => vec![-1, i64::try_from(first.number("in_features")?).ok()?],
            _ => return None,
        };
        let mut walk =
            Walk { layers: &summary.layers, out: summary.layers.clone(), misfits: 0, tokens: false };
        walk.walk(0, usize::MAX, &input, &mut Vec::new());
        let misfits = walk.misfits;
        // Another size than the first only where everything fits.
        if best.is_none() || misfits == 0 {
            best = Some((misfits, walk, input.clone()));
        }
        if misfits == 0 || input.len() == 2 {
            break;
        }
    }
    let (misfits, walk, input) = best?;
    let mut doubts = summary.doubts.clone();
    doubts.push(format!("the text has no shapes: samples of {:?} are assumed", &input[1..]));
    if misfits > 0 || walk.tokens {
        return None;
    }
    Some(Summary { layers: walk.out, doubts, ..summary.clone() })
}

struct Walk<'a> {
    layers: &'a [Layer],
    out: Vec<Layer>,
    misfits: usize,
    /// Images were cut into patches: maps turn into tokens.
    tokens: bool,
}

impl Walk<'_> {
    /// Layers from `at` that lie deeper than the limit's children; the next one behind and the shape.
    fn walk(&mut self, at: usize, end: usize, input: &Shape, entries: &mut Vec<Shape>) -> Shape {
        let mut cur = input.clone();
        let mut i = at;
        let end = end.min(self.layers.len());
        while i < end {
            let layer = &self.layers[i];
            let inside = self.layers[i + 1..end].iter().take_while(|l| l.depth > layer.depth).count();
            let next = i + 1 + inside;
            if layer.kind.contains("Aux") {
                // Heads at the side, out of order.
                i = next;
                continue;
            }
            let kind = role(&layer.kind);
            if layer.kind.contains("AdaptivePool")
                || layer.kind.contains("GlobalAvgPool")
                || layer.kind.contains("GlobalPool")
            {
                // timm's choice of global pools; it may hold one.
                self.out[i].inputs = vec![cur.clone()];
                if cur.len() == 4 {
                    cur = vec![cur[0], cur[1], 1, 1];
                }
                self.out[i].outputs = vec![cur.clone()];
                i = next;
                continue;
            }
            let block = matches!(kind, Role::Block | Role::Holder);
            if inside > 0 && block {
                let side = ["downsample", "shortcut", "skip", "proj"].contains(&layer.attribute.as_str());
                let from = if side { entries.last().unwrap_or(&cur).clone() } else { cur.clone() };
                self.out[i].inputs = vec![from.clone()];
                entries.push(from.clone());
                let inner = self.walk(i + 1, next, &from, entries);
                entries.pop();
                let gate =
                    ["Squeeze", "SEModule", "SEBlock", "SELayer"].iter().any(|k| layer.kind.contains(k));
                cur = if gate { from } else { inner };
                self.out[i].outputs = vec![cur.clone()];
            } else {
                let from = self.input(layer, kind, &cur, entries);
                let shape = Self::output(layer, kind, &from);
                self.out[i].inputs = vec![from];
                self.out[i].outputs = vec![shape.clone()];
                cur = shape;
                // A norm with its activation inside: they keep the shape.
                for inner in i + 1..next {
                    self.out[inner].inputs = vec![cur.clone()];
                    self.out[inner].outputs = vec![cur.clone()];
                }
            }
            i = next;
        }
        cur
    }

    /// What a layer reads: the last shape, that of a block around it, or what its arguments ask for.
    fn input(&mut self, layer: &Layer, kind: Role, cur: &Shape, entries: &[Shape]) -> Shape {
        let wanted = |key: &str| layer.number(key).and_then(|n| i64::try_from(n).ok()).filter(|n| *n > 0);
        match kind {
            Role::Conv { .. } => {
                let Some(channels) = wanted("0") else { return cur.clone() };
                // Tokens as a map again.
                if cur.len() == 3 && cur[2] == channels && layer.kind.contains("2d") {
                    let side = (cur[1].max(0) as u64).isqrt() as i64;
                    return vec![cur[0], channels, side, side];
                }
                if cur.get(1) == Some(&channels) {
                    return cur.clone();
                }
                let around =
                    entries.iter().rev().find(|e| e.len() == cur.len() && e.get(1) == Some(&channels));
                around.cloned().unwrap_or_else(|| self.with_channels(cur, channels))
            }
            Role::Norm(_) => {
                let Some(width) = wanted("0").or_else(|| wanted("normalized_shape")) else {
                    return cur.clone();
                };
                let map = cur.len() == 4 && cur[1] == width;
                if map && layer.kind == "LayerNorm" {
                    self.tokens = true;
                    return vec![cur[0], cur[2].saturating_mul(cur[3]), width];
                }
                if cur.get(1) == Some(&width) || cur.last() == Some(&width) {
                    return cur.clone();
                }
                self.with_channels(cur, width)
            }
            Role::Linear => {
                let Some(width) = wanted("in_features") else { return cur.clone() };
                if cur.last() == Some(&width) {
                    return cur.clone();
                }
                if cur.len() == 4 && cur[1] == width {
                    let cells = cur[2].saturating_mul(cur[3]);
                    // A mean over the map, or tokens.
                    return if self.tokens && cells > 1 {
                        vec![cur[0], cells, width]
                    } else {
                        vec![cur[0], width]
                    };
                }
                let all = cur.iter().skip(1).fold(1_i64, |n, d| n.saturating_mul(*d));
                if all != width {
                    self.misfits += 1;
                }
                if all == width || cur.len() == 4 {
                    return vec![cur[0], width];
                }
                let mut shape = cur.clone();
                if let Some(last) = shape.last_mut() {
                    *last = width;
                }
                shape
            }
            _ => cur.clone(),
        }
    }

    fn with_channels(&mut self, cur: &Shape, channels: i64) -> Shape {
        self.misfits += usize::from(cur.len() < 2);
        let mut shape = cur.clone();
        if let Some(c) = shape.get_mut(1) {
            *c = channels;
        }
        shape
    }

    fn output(layer: &Layer, kind: Role, from: &Shape) -> Shape {
        let mut shape = from.clone();
        let numbers = |key: &str| -> Vec<i64> {
            layer
                .numbers(key)
                .into_iter()
                .filter_map(|n| i64::try_from(n).ok())
                .filter(|n| *n < 1 << 20)
                .collect()
        };
        let at =
            |values: &[i64], i: usize, usual: i64| values.get(i).or(values.first()).copied().unwrap_or(usual);
        match kind {
            Role::Conv { transposed } => {
                let (kernel, stride) = (numbers("kernel_size"), numbers("stride"));
                let (padding, dilation) = (numbers("padding"), numbers("dilation"));
                let same = layer.attributes.get("padding").is_some_and(|p| p.contains("same"));
                if let Some(c) = shape.get_mut(1) {
                    *c = at(&numbers("1"), 0, *c);
                }
                for (i, side) in shape.iter_mut().skip(2).enumerate() {
                    let (k, s) = (at(&kernel, i, 1), at(&stride, i, 1).max(1));
                    let reach = at(&dilation, i, 1) * (k - 1) + 1;
                    let p = at(&padding, i, 0);
                    *side = if same {
                        (*side + s - 1) / s
                    } else if transposed {
                        (*side - 1).saturating_mul(s) - 2 * p + reach + at(&numbers("output_padding"), i, 0)
                    } else {
                        (*side + 2 * p - reach) / s + 1
                    }
                    .clamp(1, 1 << 20);
                }
            }
            Role::MaxPool | Role::AvgPool => {
                let target = layer
                    .attributes
                    .get("output_size")
                    .or_else(|| layer.attributes.get("0").filter(|_| layer.kind.contains("Adaptive")));
                if layer.kind.contains("Adaptive") || target.is_some() {
                    let sizes = if layer.attributes.contains_key("output_size") {
                        numbers("output_size")
                    } else {
                        numbers("0")
                    };
                    for (i, side) in shape.iter_mut().skip(2).enumerate() {
                        *side = at(&sizes, i, 1).max(1);
                    }
                    return shape;
                }
                let (kernel, padding) = (numbers("kernel_size"), numbers("padding"));
                let stride =
                    if layer.attributes.contains_key("stride") { numbers("stride") } else { kernel.clone() };
                for (i, side) in shape.iter_mut().skip(2).enumerate() {
                    let (k, s) = (at(&kernel, i, 2), at(&stride, i, 2).max(1));
                    let up = if layer.flag("ceil_mode") == Some(true) { s - 1 } else { 0 };
                    *side = ((*side + 2 * at(&padding, i, 0) - k + up) / s + 1).clamp(1, 1 << 20);
                }
            }
            Role::Linear => {
                if let (Some(last), Some(width)) = (shape.last_mut(), layer.number("out_features")) {
                    *last = i64::try_from(width).unwrap_or(*last);
                }
            }
            Role::Reshape if layer.kind == "Flatten" && shape.len() > 2 => {
                let all = shape.iter().skip(1).fold(1_i64, |n, d| n.saturating_mul(*d));
                return vec![shape[0], all];
            }
            Role::Move if layer.kind.starts_with("Upsampl") => {
                let scale = numbers("scale_factor").first().copied().unwrap_or(2).clamp(1, 64);
                for side in shape.iter_mut().skip(2) {
                    *side = side.saturating_mul(scale).min(1 << 20);
                }
            }
            _ => {}
        }
        shape
    }
}

/// Parameters of a layer by its arguments, where the text does not count them.
pub(super) fn parameters(layer: &Layer) -> Option<u64> {
    let n = |key: &str| layer.number(key);
    let bias = u64::from(layer.flag("bias") != Some(false));
    match role(&layer.kind) {
        Role::Conv { .. } => {
            let area = layer.numbers("kernel_size").iter().try_fold(1_u64, |a, k| a.checked_mul(*k))?;
            let (inner, outer, groups) = (n("0")?, n("1")?, n("groups").unwrap_or(1).max(1));
            (inner / groups).checked_mul(outer)?.checked_mul(area)?.checked_add(bias.checked_mul(outer)?)
        }
        Role::Linear => {
            let outer = n("out_features")?;
            n("in_features")?.checked_mul(outer)?.checked_add(bias.checked_mul(outer)?)
        }
        Role::Norm(_) => {
            let affine =
                layer.flag("affine") != Some(false) && layer.flag("elementwise_affine") != Some(false);
            if affine { n("0")?.checked_mul(2) } else { Some(0) }
        }
        Role::Embedding => n("0")?.checked_mul(n("1")?),
        _ => None,
    }
}

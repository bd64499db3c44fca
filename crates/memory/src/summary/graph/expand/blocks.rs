//! Blocks of convolutions.

use super::Writer;
use crate::summary::graph::fit;
use crate::summary::graph::role::Role;
use crate::summary::graph::row::{Dims, LayerRow, Step};

/// One convolution, with or without norm.
pub(super) fn conv_norm(row: &LayerRow, input: &[u64], out: &[u64], act: &str) -> Option<Vec<Step>> {
    let (ci, co) = (input[1], out[1]);
    let known = row.input.is_some();
    for norm in [true, false] {
        let Some(weights) = row.params.checked_sub(if norm { 2 * co } else { 0 }).filter(|w| *w > 0) else {
            continue;
        };
        let fit = fit::channels(ci, co, weights, true).filter(|f| f.cost < 0.5 || f.groups > 1 && norm);
        let named = ["ConvNormAct", "ConvBn", "BasicConv", "NormActivation", "ConvBNReLU"]
            .iter()
            .any(|k| row.kind.contains(k));
        let mut w = Writer::new(row, input.to_vec(), act);
        match fit {
            Some(fit) => {
                w.leaf("Conv2d", out.to_vec(), weights, fit.groups);
            }
            // What it reads is not printed and will be looked for.
            None if named && norm && !known => {
                w.leaf("Conv2d", out.to_vec(), weights, 0);
                if let Some(Step::Leaf(conv)) = w.steps.last_mut() {
                    (conv.input, conv.groups) = (None, None);
                }
            }
            None => continue,
        }
        if norm {
            w.norm();
        }
        // A shortcut has no activation, other blocks do.
        let one = fit.is_some_and(|f| f.area == 1);
        let shortcut = row.role == Role::Holder && one || row.attribute == "downsample";
        if !shortcut && row.kind != "SeparableConv2d" {
            w.act();
        }
        return w.done();
    }
    None
}

/// Squeeze and excitation alone.
pub(super) fn squeeze_alone(row: &LayerRow, input: &[u64], out: &[u64], act: &str) -> Option<Vec<Step>> {
    let c = input[1];
    if input != out || !(row.kind.contains("SE") || row.kind.contains("Squeeze")) {
        return None;
    }
    let inner = row.params.checked_sub(c)? / (2 * c + 1);
    if inner == 0 || squeeze_params(c, inner) != row.params {
        return None;
    }
    let mut w = Writer::new(row, input.to_vec(), act);
    w.squeeze(inner);
    w.done()
}

/// Depthwise, then pointwise; with norms, with squeeze and excitation, or bare.
pub(super) fn separable(row: &LayerRow, input: &[u64], out: &[u64], act: &str) -> Option<Vec<Step>> {
    let (ci, co) = (input[1], out[1]);
    for kernel in [3, 5, 7] {
        let bare = ci * kernel * kernel + ci * co;
        if bare == row.params {
            let mut w = Writer::new(row, input.to_vec(), act);
            w.conv(ci, kernel, ci, &with(out, ci), false).conv(co, 1, 1, out, false);
            return w.done();
        }
        let norms = bare + 2 * ci + 2 * co;
        for squeeze in std::iter::once(0).chain(squeezes(ci, ci)) {
            if norms + squeeze_params(ci, squeeze) == row.params {
                let mut w = Writer::new(row, input.to_vec(), act);
                w.conv(ci, kernel, ci, &with(out, ci), false).norm().act().squeeze(squeeze);
                w.conv(co, 1, 1, out, false).norm();
                if row.kind.starts_with("ConvNormAct") || row.kind.starts_with("SeparableConvNormAct") {
                    w.act();
                }
                return w.done();
            }
        }
    }
    None
}

fn with(shape: &[u64], channels: u64) -> Dims {
    let mut shape = shape.to_vec();
    if let Some(c) = shape.get_mut(1) {
        *c = channels;
    }
    shape
}

/// Inner widths of squeeze and excitation that are usual for `hidden` channels of a block with `inner`.
fn squeezes(inner: u64, hidden: u64) -> impl Iterator<Item = u64> {
    // `make_divisible` of MobileNet: to multiples of 8, never below 90 %.
    let rounded = |v: u64| {
        let n = ((v + 4) / 8 * 8).max(8);
        if n * 10 < v * 9 { n + 8 } else { n }
    };
    [
        inner / 4,
        rounded(hidden / 4),
        hidden / 4,
        hidden / 16,
        inner / 16,
        rounded(hidden / 16),
        (inner + 2) / 4,
    ]
    .into_iter()
    .filter(|s| *s > 0)
}

fn squeeze_params(channels: u64, inner: u64) -> u64 {
    if inner == 0 { 0 } else { 2 * channels * inner + channels + inner }
}

/// MobileNet's and EfficientNet's block: widen, depthwise, squeeze and excitation, narrow.
pub(super) fn inverted_residual(row: &LayerRow, input: &[u64], out: &[u64], act: &str) -> Option<Vec<Step>> {
    let (ci, co) = (input[1], out[1]);
    let widths = [6, 4, 3, 1, 2, 5, 8].into_iter().map(|e| ci * e);
    let others = (1..=(ci * 8 / 4).min(2048)).map(|n| n * 4);
    for hidden in widths.chain(others) {
        for kernel in [3, 5, 7] {
            let widen = if hidden == ci { 0 } else { ci * hidden + 2 * hidden };
            let base = widen + hidden * kernel * kernel + 2 * hidden + hidden * co + 2 * co;
            if base > row.params {
                continue;
            }
            for squeeze in std::iter::once(0).chain(squeezes(ci, hidden)) {
                if base + squeeze_params(hidden, squeeze) != row.params {
                    continue;
                }
                let mut w = Writer::new(row, input.to_vec(), act);
                if hidden != ci {
                    w.conv(hidden, 1, 1, &with(input, hidden), false).norm().act();
                }
                w.conv(hidden, kernel, hidden, &with(out, hidden), false).norm().act().squeeze(squeeze);
                w.conv(co, 1, 1, out, false).norm();
                return w.done();
            }
        }
    }
    None
}

/// EfficientNetV2's block: a full convolution widens, another narrows.
pub(super) fn fused(row: &LayerRow, input: &[u64], out: &[u64], act: &str) -> Option<Vec<Step>> {
    let (ci, co) = (input[1], out[1]);
    for e in [4, 6, 1, 2, 3, 5, 8] {
        let hidden = ci * e;
        let base = 9 * ci * hidden + 2 * hidden + hidden * co + 2 * co;
        for squeeze in std::iter::once(0).chain(squeezes(ci, hidden)) {
            if base + squeeze_params(hidden, squeeze) == row.params {
                let mut w = Writer::new(row, input.to_vec(), act);
                w.conv(hidden, 3, 1, &with(out, hidden), false).norm().act().squeeze(squeeze);
                w.conv(co, 1, 1, out, false).norm();
                return w.done();
            }
        }
    }
    None
}

/// What a shortcut with a convolution would cost, if the shapes need or allow one.
fn shortcuts(input: &[u64], out: &[u64]) -> impl Iterator<Item = (bool, u64)> {
    let changed = input != out;
    let cost = input[1] * out[1] + 2 * out[1];
    [(false, 0), (true, cost)].into_iter().filter(move |(with, _)| *with || !changed || cost == 0)
}

/// ResNet's block of two convolutions.
pub(super) fn basic(row: &LayerRow, input: &[u64], out: &[u64], act: &str) -> Option<Vec<Step>> {
    let (ci, co) = (input[1], out[1]);
    let main = 9 * ci * co + 9 * co * co + 4 * co;
    for (shortcut, cost) in shortcuts(input, out) {
        for squeeze in std::iter::once(0).chain(squeezes(co, co)) {
            if main + cost + squeeze_params(co, squeeze) == row.params {
                let mut w = Writer::new(row, input.to_vec(), act);
                w.conv(co, 3, 1, out, false).norm().act().conv(co, 3, 1, out, false).norm();
                w.squeeze(squeeze).residual(shortcut, input, out);
                return w.done();
            }
        }
    }
    None
}

/// ResNet's block of three convolutions, ResNeXt's groups, RegNet's widths, squeeze and excitation.
pub(super) fn bottleneck(row: &LayerRow, input: &[u64], out: &[u64], act: &str) -> Option<Vec<Step>> {
    let (ci, co) = (input[1], out[1]);
    for (shortcut, cost) in shortcuts(input, out) {
        for width in [co / 4, co / 2, co, ci / 4, ci / 2, co * 2, co * 3 / 8] {
            if width == 0 {
                continue;
            }
            let groups = [1, 2, 4, 8, 16, 32, 64, 128]
                .into_iter()
                .chain([8, 16, 24, 40, 48, 56, 64, 112, 120, 128, 168, 232, 264, 328].map(|g| width / g));
            for groups in groups.filter(|g| *g > 0 && width.is_multiple_of(*g)) {
                let main = ci * width + 9 * width * (width / groups) + width * co + 4 * width + 2 * co + cost;
                if main > row.params {
                    continue;
                }
                // Squeeze before the last convolution (RegNet) or after it (SENet).
                for (channels, squeeze) in std::iter::once((width, 0))
                    .chain(squeezes(ci, width).map(|s| (width, s)))
                    .chain(squeezes(co, co).map(|s| (co, s)))
                {
                    if main + squeeze_params(channels, squeeze) != row.params {
                        continue;
                    }
                    let mut w = Writer::new(row, input.to_vec(), act);
                    w.conv(width, 1, 1, &with(input, width), false).norm().act();
                    let (inside, behind) = if channels == width { (squeeze, 0) } else { (0, squeeze) };
                    w.conv(width, 3, groups, &with(out, width), false).norm().act().squeeze(inside);
                    w.conv(co, 1, 1, out, false).norm().squeeze(behind).residual(shortcut, input, out);
                    return w.done();
                }
            }
        }
    }
    None
}

/// ResNet v2: norms before convolutions.
pub(super) fn preactivated(row: &LayerRow, input: &[u64], out: &[u64], act: &str) -> Option<Vec<Step>> {
    let (ci, co) = (input[1], out[1]);
    let width = co / 4;
    let main = 2 * ci + ci * width + 2 * width + 9 * width * width + 2 * width + width * co;
    for (shortcut, cost) in [(false, 0), (true, ci * co)] {
        if width == 0 || main + cost != row.params {
            continue;
        }
        let mut w = Writer::new(row, input.to_vec(), act);
        w.norm().act();
        w.conv(width, 1, 1, &with(input, width), false).norm().act();
        w.conv(width, 3, 1, &with(out, width), false).norm().act();
        w.conv(co, 1, 1, out, false);
        if shortcut {
            w.shortcut(input, out, false);
        }
        return w.done();
    }
    None
}

/// DenseNet's layer; its input is a concatenation, whose width follows from the parameters.
pub(super) fn dense_layer(row: &LayerRow, input: &[u64], out: &[u64], act: &str) -> Option<Vec<Step>> {
    if !row.kind.contains("Dense") {
        return None;
    }
    let growth = out[1];
    let inner = 4 * growth;
    let rest = row.params.checked_sub(2 * inner + 9 * inner * growth)?;
    let channels = rest / (2 + inner);
    if channels == 0 || rest % (2 + inner) != 0 {
        return None;
    }
    let mut w = Writer::new(row, with(input, channels), act);
    w.norm().act().conv(inner, 1, 1, &with(out, inner), false).norm().act().conv(growth, 3, 1, out, false);
    w.done()
}

/// SqueezeNet's Fire module.
pub(super) fn fire(row: &LayerRow, input: &[u64], out: &[u64], act: &str) -> Option<Vec<Step>> {
    let (ci, expand) = (input[1], out[1] / 2);
    let squeeze = row.params.checked_sub(2 * expand)? / (ci + 1 + 10 * expand);
    if squeeze == 0 || squeeze > ci || squeeze * (ci + 1 + 10 * expand) + 2 * expand != row.params {
        return None;
    }
    let mut w = Writer::new(row, input.to_vec(), act);
    let inner = with(out, squeeze);
    w.conv(squeeze, 1, 1, &inner, true).act();
    w.conv(expand, 1, 1, out, true).act();
    w.shape = inner;
    w.conv(expand, 3, 1, out, true).act();
    w.done()
}

/// Two convolutions with norms (U-Net); the input may have been joined with a skip.
pub(super) fn double(row: &LayerRow, input: &[u64], out: &[u64], act: &str) -> Option<Vec<Step>> {
    let co = out[1];
    for (bias, norm) in [(false, true), (true, true), (true, false)] {
        let extra = (if bias { 2 * co } else { 0 }) + if norm { 4 * co } else { 0 };
        let Some(rest) = row.params.checked_sub(9 * co * co + extra) else { continue };
        let channels = rest / (9 * co);
        if channels < input[1] || rest % (9 * co) != 0 || channels > 8 * input[1].max(co) {
            continue;
        }
        let mut w = Writer::new(row, with(out, channels), act);
        for _ in 0..2 {
            w.conv(co, 3, 1, out, bias);
            if norm {
                w.norm();
            }
            w.act();
        }
        return w.done();
    }
    None
}

/// ConvNeXt's block: depthwise 7 x 7, norm, two linear layers over the channels, a factor for each.
pub(super) fn convnext(row: &LayerRow, input: &[u64], out: &[u64], _act: &str) -> Option<Vec<Step>> {
    let c = input[1];
    let block = 49 * c + c + 2 * c + 8 * c * c + 5 * c;
    let scaled = row.params == block + c;
    if input != out || !(scaled || row.params == block) {
        return None;
    }
    let mut w = Writer::new(row, input.to_vec(), "GELU");
    w.conv(c, 7, c, out, true);
    let last = vec![out[0], out[2], out[3], c];
    w.leaf("Permute", last, 0, 1).layer_norm().linear(4 * c, true).same("GELU", 0).linear(c, true);
    w.leaf("Permute", out.to_vec(), 0, 1);
    if scaled {
        w.same("LayerScale", c);
    }
    w.done()
}

/// A row of equal blocks after a first one that changes the shape.
pub(super) fn several(row: &LayerRow, input: &[u64], out: &[u64], act: &str) -> Option<Vec<Step>> {
    let (ci, co) = (input[1], out[1]);
    let first = |main: u64, own: u64| if input == out { own } else { main };
    let short = ci * co + 2 * co;
    let width = co / 4;
    let candidates: [(&str, u64, u64); 5] = [
        ("BasicBlock", 9 * ci * co + 9 * co * co + 4 * co + short, 18 * co * co + 4 * co),
        (
            "Bottleneck",
            ci * width + 9 * width * width + width * co + 4 * width + 2 * co + short,
            2 * co * width + 9 * width * width + 4 * width + 2 * co,
        ),
        (
            "PreActBottleneck",
            2 * ci + ci * width + 4 * width + 9 * width * width + width * co + ci * co,
            2 * co + 2 * co * width + 4 * width + 9 * width * width,
        ),
        ("ConvNeXtBlock", 0, 58 * co + 8 * co * co),
        ("CNBlock", 0, 58 * co + 8 * co * co),
    ];
    for (kind, main, own) in candidates {
        for start in [first(main, own), main] {
            if own == 0 || start == 0 {
                continue;
            }
            let Some(rest) = row.params.checked_sub(start) else { continue };
            let more = rest / own;
            if rest % own != 0 || more > 200 || more == 0 && start == row.params && row.role != Role::Holder {
                continue;
            }
            let mut w = Writer::new(row, input.to_vec(), act);
            w.hidden(kind, input.to_vec(), out.to_vec(), start);
            for _ in 0..more {
                w.hidden(kind, out.to_vec(), out.to_vec(), own);
            }
            return w.done();
        }
    }
    None
}

//! Containers whose inside is not printed (torchinfo cuts at depth 3): the inside of the usual blocks,
//! told by shapes and the number of parameters, which must come out exactly.

mod blocks;
mod tokens;

use super::role::role;
use super::row::{Dims, LayerRow, Step};
use blocks::{
    basic, bottleneck, conv_norm, convnext, dense_layer, double, fire, fused, inverted_residual,
    preactivated, separable, several, squeeze_alone,
};
use tokens::{tokens, windows};

/// Writes steps, each with its shapes.
struct Writer<'a> {
    name: &'a str,
    frozen: bool,
    steps: Vec<Step>,
    shape: Dims,
    act: &'a str,
    count: usize,
}

impl<'a> Writer<'a> {
    fn new(row: &'a LayerRow, shape: Dims, act: &'a str) -> Self {
        Self { name: &row.name, frozen: row.frozen, steps: Vec::new(), shape, act, count: 0 }
    }

    fn row(&mut self, kind: &str, input: Dims, output: Dims, params: u64, groups: u64) -> LayerRow {
        self.count += 1;
        LayerRow {
            name: format!("{}/{kind}-{}", self.name, self.count),
            kind: kind.to_owned(),
            role: role(kind),
            input: Some(input),
            output: Some(output),
            params,
            frozen: self.frozen,
            recursive: false,
            groups: Some(groups),
            attribute: String::new(),
            pooled: false,
            branch: false,
            attends: false,
            hidden: None,
        }
    }

    fn leaf(&mut self, kind: &str, output: Dims, params: u64, groups: u64) -> &mut Self {
        let row = self.row(kind, self.shape.clone(), output.clone(), params, groups);
        self.steps.push(Step::Leaf(row));
        self.shape = output;
        self
    }

    fn same(&mut self, kind: &str, params: u64) -> &mut Self {
        let shape = self.shape.clone();
        self.leaf(kind, shape, params, 1)
    }

    /// Convolution to `channels` with cells of `like` beyond the channels.
    fn conv(&mut self, channels: u64, kernel: u64, groups: u64, like: &[u64], bias: bool) -> &mut Self {
        let inner = self.shape.get(1).copied().unwrap_or(1) / groups.max(1);
        let mut out = like.to_vec();
        if let Some(c) = out.get_mut(1) {
            *c = channels;
        }
        let params = inner * channels * kernel * kernel + if bias { channels } else { 0 };
        self.leaf("Conv2d", out, params, groups)
    }

    fn norm(&mut self) -> &mut Self {
        let channels = self.shape.get(1).copied().unwrap_or(1);
        self.same("BatchNorm2d", 2 * channels)
    }

    fn act(&mut self) -> &mut Self {
        let act = self.act.to_owned();
        self.same(&act, 0)
    }

    fn linear(&mut self, width: u64, bias: bool) -> &mut Self {
        let inner = self.shape.last().copied().unwrap_or(1);
        let mut out = self.shape.clone();
        if let Some(last) = out.last_mut() {
            *last = width;
        }
        self.leaf("Linear", out, inner * width + if bias { width } else { 0 }, 1)
    }

    fn layer_norm(&mut self) -> &mut Self {
        let width = self.shape.last().copied().unwrap_or(1);
        self.same("LayerNorm", 2 * width)
    }

    /// Squeeze and excitation through `inner` channels; through 0 there is none.
    fn squeeze(&mut self, inner: u64) -> &mut Self {
        if inner == 0 {
            return self;
        }
        let full = self.shape.clone();
        let mut one = full.clone();
        one[2..].fill(1);
        let enter = self.row("SqueezeExcitation", full.clone(), full.clone(), 0, 1);
        self.steps.push(Step::Enter(enter.clone()));
        let channels = full[1];
        self.leaf("AdaptiveAvgPool2d", one.clone(), 0, 1);
        self.conv(inner, 1, 1, &one, true).same("ReLU", 0);
        self.conv(channels, 1, 1, &one, true).same("Sigmoid", 0);
        self.steps.push(Step::Exit(enter));
        self.shape = full;
        self
    }

    /// The way past the block: its own input.
    fn shortcut(&mut self, from: &[u64], to: &[u64], norm: bool) -> &mut Self {
        self.shape = from.to_vec();
        self.conv(to[1], 1, 1, to, false);
        if norm {
            self.norm();
        }
        self
    }

    /// The end of a residual block: the way past it, if that has a convolution, and the activation of the sum.
    fn residual(&mut self, shortcut: bool, from: &[u64], to: &[u64]) -> &mut Self {
        if shortcut {
            self.shortcut(from, to, true);
        }
        self.act()
    }

    fn hidden(&mut self, kind: &str, input: Dims, output: Dims, params: u64) -> &mut Self {
        let row = self.row(kind, input, output.clone(), params, 1);
        self.steps.push(Step::Hidden(row));
        self.shape = output;
        self
    }

    fn done(self) -> Option<Vec<Step>> {
        Some(self.steps)
    }
}

/// The inside of a hidden container, without its end. `act` is the model's usual activation.
pub(super) fn expand(row: &LayerRow, input: &[u64], act: &str) -> Option<Vec<Step>> {
    let out = row.output.clone()?;
    let small = |s: &[u64]| s.iter().all(|d| *d > 0 && *d < 1 << 24);
    if row.params == 0 || row.params > 1 << 40 || !small(&out) || !small(input) {
        return None;
    }
    if input.len() == 4 && out.len() == 4 && row.params < 1 << 34 {
        let found = convolutional(row, input, &out, act);
        if found.is_some() {
            return found;
        }
    }
    // Maps with the channels last: wider than they are high.
    let last = |s: &[u64]| s.len() != 4 || s[3] > s[1] && s[3] > s[2];
    if input.len() >= 2 && out.len() == input.len() && last(input) && last(&out) {
        return tokens(row, input, &out);
    }
    None
}

/// A template: the steps, if shapes and parameters are those of its block.
type Template = fn(&LayerRow, &[u64], &[u64], &str) -> Option<Vec<Step>>;

fn convolutional(row: &LayerRow, input: &[u64], out: &[u64], act: &str) -> Option<Vec<Step>> {
    let kind = row.kind.as_str();
    let dense = kind.contains("DenseLayer");
    let inverted =
        ["Inverted", "MBConv", "DepthwiseSep", "EdgeRes", "UniversalInv"].iter().any(|k| kind.contains(k));
    let in_front: &[Template] = if dense {
        &[dense_layer]
    } else if inverted {
        &[inverted_residual, fused, separable]
    } else if kind.contains("SeparableConv") {
        &[separable]
    } else if kind.contains("CNBlock") || kind.contains("ConvNeXt") {
        &[convnext]
    } else {
        &[]
    };
    let all: &[Template] = &[
        squeeze_alone,
        conv_norm,
        separable,
        basic,
        bottleneck,
        preactivated,
        convnext,
        fire,
        inverted_residual,
        fused,
        double,
        windows,
        dense_layer,
        several,
    ];
    in_front.iter().chain(all).find_map(|template| template(row, input, out, act))
}

//! Convolutional networks.

use super::{Dice, Model, element, float};
use std::fmt::Write as _;

pub(super) const COLUMNS: [&str; 9] =
    ["image", "in_channels", "classes", "blocks", "head", "activation", "inplace", "batch_norm", "dropout"];

const ACTIVATIONS: [&str; 10] =
    ["ELU", "GELU", "LeakyReLU", "Mish", "PReLU", "ReLU", "SELU", "SiLU", "Softplus", "Tanh"];

/// What a block costs, summed while the blocks are chosen.
struct Sum {
    e: f64,
    /// Copies of a block's output that are kept: before the norm, after it, after the activation, after dropout.
    copies: f64,
    kernels: f64,
    params: f64,
    saved: f64,
    flops: f64,
}

impl Sum {
    fn conv(&mut self, ins: u64, outs: u64, kernel: u64, side: u64, groups: u64) {
        let weight = float(ins / groups * outs * kernel * kernel);
        let out = float(outs * side * side);
        self.params += weight + 3.0 * float(outs);
        // A depthwise convolution does few operations a byte, and none on tensor cores.
        let slow = if groups > 1 { 200.0 } else { 1.0 };
        self.flops += 6.0 * weight * float(side * side) * slow;
        self.saved += out * self.e * self.copies;
        self.kernels += 1.0;
    }
}

pub(super) fn draw(dice: &mut Dice) -> Model {
    let precision = dice.precision();
    let image = dice.pick(&[
        28, 32, 32, 40, 48, 64, 64, 80, 96, 112, 128, 128, 160, 192, 224, 224, 224, 256, 299, 320, 384,
    ]);
    let in_channels = if dice.chance(0.9) { 3 } else { 1 };
    let classes = dice.size(2.0, 1_000.0);
    let activation = if dice.chance(0.3) { "ReLU" } else { dice.pick(&ACTIVATIONS) };
    let inplace = activation == "ReLU" && dice.chance(0.6);
    let batch_norm = dice.chance(0.7);
    let dropout = dice.dropout(0.35);
    let arch = dice.weighted(&[
        ("uniform", 0.17),
        ("pyramid", 0.22),
        ("gradual", 0.12),
        ("hourglass", 0.14),
        ("residual", 0.15),
        ("dense", 0.08),
        ("separable", 0.12),
    ]);
    let keeps_dropout = !dropout.is_empty() && !matches!(arch, "residual" | "dense");
    let mut sum = Sum {
        e: element(precision),
        copies: 1.0
            + f64::from(u8::from(batch_norm))
            + f64::from(u8::from(!inplace))
            + if keeps_dropout { 1.3 } else { 0.0 },
        kernels: 0.0,
        params: 0.0,
        saved: float(in_channels * image * image) * 4.0,
        flops: 0.0,
    };
    let (blocks, channels) = blocks(dice, arch, image, in_channels, &mut sum);
    let head = if dice.chance(0.25) { vec![dice.size(32.0, 4_096.0)] } else { Vec::new() };
    let mut before = float(channels);
    for &width in head.iter().chain([&classes]) {
        sum.params += before * float(width);
        sum.flops += 6.0 * before * float(width);
        before = float(width);
    }
    Model {
        arch,
        cells: vec![
            image.to_string(),
            in_channels.to_string(),
            classes.to_string(),
            blocks,
            head.iter().map(u64::to_string).collect::<Vec<_>>().join("-"),
            activation.to_owned(),
            inplace.to_string(),
            batch_norm.to_string(),
            dropout,
        ],
        precision,
        params: sum.params,
        sample_bytes: sum.saved * 1.25,
        sample_flops: sum.flops,
        // cuDNN's convolutions in fp32 use TF32 by default.
        rate: if precision == "fp32" { 100e12 } else { 200e12 },
        batches: (2.0, 1_024.0),
    }
}

/// The blocks in words (docs/research/datasets.md), and the channels after the last.
fn blocks(dice: &mut Dice, arch: &str, image: u64, ins: u64, sum: &mut Sum) -> (String, u64) {
    let base = dice.size(8.0, 128.0);
    let stages = dice.int(1, 5);
    let (mut text, mut channels, mut side) = (String::new(), ins, image);
    let kernel = dice.weighted(&[(3, 0.75), (5, 0.15), (1, 0.04), (7, 0.06)]);
    let by_stride = dice.chance(0.5);
    if matches!(arch, "residual" | "dense" | "separable") || dice.chance(0.3) {
        // A stem, as most real networks have.
        let (k, s) = if image >= 96 { (dice.pick(&[3, 7]), 2) } else { (3, 1) };
        side = side.div_ceil(s);
        let _ = write!(text, "c{base}k{k}s{s}");
        sum.conv(channels, base, k, side, 1);
        channels = base;
    }
    for stage in 0..stages {
        let many = dice.int(1, if stages > 3 { 5 } else { 9 });
        for at in 0..many {
            let first = at == 0 && stage > 0 && side >= 4;
            let joint = if text.is_empty() { "" } else { "-" };
            if first && !by_stride && !matches!(arch, "residual" | "dense") {
                let _ = write!(text, "{joint}p");
                side /= 2;
                sum.saved += float(channels * side * side) * (8.0 + sum.e);
            }
            let stride =
                if first && by_stride && arch != "dense" || first && arch == "residual" { 2 } else { 1 };
            let joint = if text.is_empty() { "" } else { "-" };
            let outs = width(arch, base, stage, stages, at, many);
            match arch {
                "residual" => {
                    side = side.div_ceil(stride);
                    let _ = write!(text, "{joint}r{outs}s{stride}");
                    sum.conv(channels, outs, 3, side, 1);
                    sum.conv(outs, outs, 3, side, 1);
                    if outs != channels || stride != 1 {
                        sum.conv(channels, outs, 1, side, 1);
                    }
                    channels = outs;
                }
                "dense" => {
                    if first {
                        let half = (channels / 2).max(4);
                        let _ = write!(text, "{joint}t{half}-d{base}");
                        sum.conv(channels, half, 1, side, 1);
                        side /= 2;
                        channels = half;
                    } else {
                        let _ = write!(text, "{joint}d{base}");
                    }
                    // The norm and the activation before the convolution, and the concatenation after it.
                    sum.saved += float(channels * side * side) * sum.e * sum.copies;
                    sum.conv(channels, base, 3, side, 1);
                    channels += base;
                }
                "separable" => {
                    side = side.div_ceil(stride);
                    let _ = write!(text, "{joint}s{outs}k{kernel}s{stride}");
                    sum.conv(channels, channels, kernel, side, channels);
                    sum.conv(channels, outs, 1, side, 1);
                    channels = outs;
                }
                _ => {
                    side = side.div_ceil(stride);
                    let _ = write!(text, "{joint}c{outs}k{kernel}s{stride}");
                    sum.conv(channels, outs, kernel, side, 1);
                    channels = outs;
                }
            }
        }
    }
    (text, channels)
}

/// Channels: equal, doubled each stage, in steps over a stage, or up to the middle stage and down again.
fn width(arch: &str, base: u64, stage: u64, stages: u64, at: u64, many: u64) -> u64 {
    match arch {
        "pyramid" | "residual" | "separable" => base << stage,
        "gradual" => base + base * (stage * many + at) / many,
        "hourglass" => base << stage.min(stages - 1 - stage),
        _ => base,
    }
}

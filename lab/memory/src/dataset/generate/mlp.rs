//! Fully connected networks.

use super::{Dice, Model, element, float, matmul_rate};

pub(super) const COLUMNS: [&str; 7] =
    ["inputs", "outputs", "widths", "activation", "inplace", "batch_norm", "dropout"];

/// The activations of GPUMemNet's second MLP set.
const ACTIVATIONS: [&str; 11] =
    ["ELU", "GELU", "Identity", "LeakyReLU", "Mish", "PReLU", "ReLU", "SELU", "SiLU", "Softplus", "Tanh"];

pub(super) fn draw(dice: &mut Dice) -> Model {
    let precision = dice.precision();
    let (inputs, outputs) = (dice.size(8.0, 16_384.0), dice.size(2.0, 4_096.0));
    let depth = dice.int(1, 12);
    let widest = dice.size(16.0, 16_384.0);
    let arch = dice.pick(&["uniform", "pyramid", "gradual", "bottleneck"]);
    let widths: Vec<u64> = (0..depth).map(|at| width(arch, widest, at, depth)).collect();
    let activation = dice.pick(&ACTIVATIONS);
    let inplace = activation == "ReLU" && dice.chance(0.4);
    let batch_norm = dice.chance(0.5);
    let dropout = dice.dropout(0.5);

    let e = element(precision);
    let (mut params, mut saved, mut flops, mut before) = (0.0, 4.0 * float(inputs), 0.0, float(inputs));
    for &width in &widths {
        let w = float(width);
        params += before * w + w * if batch_norm { 3.0 } else { 1.0 };
        flops += 6.0 * before * w;
        let copies =
            1.0 + f64::from(u8::from(batch_norm)) + f64::from(u8::from(!inplace && activation != "Identity"));
        saved += w * (copies * e + if dropout.is_empty() { 0.0 } else { e + 1.0 });
        before = w;
    }
    let out = float(outputs);
    params += before * out + out;
    flops += 6.0 * before * out;
    saved += out * 16.0;
    Model {
        arch,
        cells: vec![
            inputs.to_string(),
            outputs.to_string(),
            widths.iter().map(u64::to_string).collect::<Vec<_>>().join("-"),
            activation.to_owned(),
            inplace.to_string(),
            batch_norm.to_string(),
            dropout,
        ],
        precision,
        params,
        sample_bytes: saved * 1.15,
        sample_flops: flops,
        rate: matmul_rate(precision),
        batches: (2.0, 131_072.0),
    }
}

/// Width of a layer: equal, halved each time, in equal steps down, or down to the middle and up again.
fn width(arch: &str, widest: u64, at: u64, depth: u64) -> u64 {
    match arch {
        "pyramid" => (widest >> at.min(20)).max(4),
        "gradual" => (widest * (depth - at) / depth).max(4),
        "bottleneck" => (widest >> at.min(depth - 1 - at).min(20)).max(4),
        _ => widest,
    }
}

//! Networks of attention.

use super::{Dice, Model, element, float, matmul_rate};

pub(super) const COLUMNS: [&str; 14] = [
    "vocab",
    "seq_len",
    "embedding",
    "layers",
    "heads",
    "kv_heads",
    "ff",
    "activation",
    "dropout",
    "norm_first",
    "classes",
    "tied",
    "attention",
    "gradient_checkpointing",
];

pub(super) fn draw(dice: &mut Dice) -> Model {
    let precision = dice.precision();
    let arch =
        dice.weighted(&[("encoder", 0.35), ("decoder", 0.30), ("llama", 0.20), ("encoder-decoder", 0.15)]);
    let own_blocks = matches!(arch, "decoder" | "llama");
    let head_dim = dice.weighted(&[(32, 0.25), (64, 0.55), (128, 0.20)]);
    let heads = dice.size(1.0, 2_048.0 / float(head_dim)).max(1);
    let embedding = heads * head_dim;
    let kv_heads =
        if arch == "llama" && heads.is_multiple_of(4) { heads / dice.pick(&[1, 2, 4]) } else { heads };
    let layers = dice.size(1.0, if arch == "encoder-decoder" { 12.0 } else { 36.0 });
    let ff = match dice.int(0, 3) {
        0 => embedding * 2,
        1 => embedding * 8 / 3 / 8 * 8,
        2 => dice.size(float(embedding), float(embedding) * 5.0),
        _ => embedding * 4,
    };
    let vocab = dice.size(1_000.0, 300_000.0);
    let seq_len = if dice.chance(0.6) {
        dice.pick(&[32, 64, 128, 256, 384, 512, 768, 1024, 2048])
    } else {
        dice.int(16, 1_100)
    };
    let classes = if dice.chance(0.35) { dice.size(2.0, 1_000.0) } else { 0 };
    let tied = classes == 0 && dice.chance(0.4);
    let dropout = if arch == "llama" { String::new() } else { dice.dropout(0.65) };
    let norm_first = arch == "llama" || dice.chance(0.5);
    let activation = match arch {
        "llama" => "SwiGLU",
        "decoder" => dice.weighted(&[("GELU", 0.6), ("ReLU", 0.25), ("SiLU", 0.15)]),
        _ => dice.pick(&["GELU", "ReLU"]),
    };
    let attention = if own_blocks && dice.chance(0.3) { "eager" } else { "sdpa" };
    let checkpointing = dice.chance(0.12);

    let (h, f, s, v) = (float(embedding), float(ff), float(seq_len), float(vocab));
    let e = element(precision);
    let stacks = if arch == "encoder-decoder" { 2.5 } else { 1.0 };
    let gates = if arch == "llama" { 3.0 } else { 2.0 };
    let blocks = float(layers) * stacks;
    let params =
        v * h * if classes > 0 || tied { 1.0 } else { 2.0 } + s * h + blocks * (4.0 * h * h + gates * h * f);
    let masks = if dropout.is_empty() { 0.0 } else { 2.0 };
    // Tokens' activations of a block; layer norms keep fp32 under autocast.
    let wide =
        if arch == "llama" { 20.0 } else { 10.0 } + if precision == "bf16-autocast" { 4.0 } else { 0.0 };
    let block = s * e * (wide * h + (gates + 0.5) * f)
        + s * h * masks
        + if attention == "eager" { float(heads) * s * s * (2.0 * e + 5.0) } else { 0.0 };
    let kept = if checkpointing { blocks * s * h * e + block } else { blocks * block };
    let logits = if classes > 0 { 0.0 } else { s * v * (e + 12.0) };
    let tokens_flops = params - if classes > 0 || !tied { v * h } else { 0.0 };
    let flops = 6.0 * s * tokens_flops * if checkpointing { 1.33 } else { 1.0 } + 12.0 * blocks * s * s * h;
    Model {
        arch,
        cells: vec![
            vocab.to_string(),
            seq_len.to_string(),
            embedding.to_string(),
            layers.to_string(),
            heads.to_string(),
            kv_heads.to_string(),
            ff.to_string(),
            activation.to_owned(),
            dropout,
            norm_first.to_string(),
            if classes > 0 { classes.to_string() } else { String::new() },
            tied.to_string(),
            attention.to_owned(),
            checkpointing.to_string(),
        ],
        precision,
        params,
        sample_bytes: (kept + logits) * 1.1,
        sample_flops: flops,
        rate: matmul_rate(precision),
        batches: (2.0, 512.0),
    }
}

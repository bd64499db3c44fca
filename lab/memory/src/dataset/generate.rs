//! Random models of three families, within practical limits and deterministic by seed.
//!
//! A row is drawn in two steps: the model, then the batch that brings its memory near a target drawn
//! log-uniformly, so that small and large tasks are equally frequent on a logarithmic scale. The formula behind
//! `predicted_mib` is crude on purpose: it decides which rows run beside each other, and nothing is learned from it.

mod cnn;
mod mlp;
mod transformer;

use super::file::Table;
use carma_memory::gpumemnet::Family;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

const fn columns(family: Family) -> &'static [&'static str] {
    match family {
        Family::Mlp => &mlp::COLUMNS,
        Family::Cnn => &cnn::COLUMNS,
        Family::Transformer => &transformer::COLUMNS,
    }
}

/// Log-uniform targets lie between these, MiB.
const fn targets(family: Family) -> (f64, f64) {
    match family {
        Family::Mlp => (750.0, 32_000.0),
        Family::Cnn => (800.0, 60_000.0),
        Family::Transformer => (850.0, 60_000.0),
    }
}

fn draw(family: Family, dice: &mut Dice) -> Model {
    match family {
        Family::Mlp => mlp::draw(dice),
        Family::Cnn => cnn::draw(dice),
        Family::Transformer => transformer::draw(dice),
    }
}

const MIB: f64 = 1_048_576.0;
/// Context, workspaces and the smallest segments.
const BASE_MIB: f64 = 740.0;
/// What PyTorch's allocator may hold, MiB. No run may take more, and a run that would is censored there.
const CAP_MIB: u64 = 65_536;
/// One in so many rows gets a cap near its predicted size, so that some are censored at every size.
const CAPPED_SHARE: f64 = 0.12;
/// A step may take that long on an H200, roughly: thousands of rows are to be measured within minutes.
const STEP_S: f64 = 0.08;
const COMMON: [&str; 7] = ["id", "family", "arch", "batch_size", "samples", "optimizer", "precision"];
const LAST: [&str; 2] = ["cap_mib", "predicted_mib"];

/// What a family draws: a model without its batch.
struct Model {
    /// Shape of the whole: `pyramid`, `uniform`, ...
    arch: &'static str,
    /// Cells of the family's columns.
    cells: Vec<String>,
    precision: &'static str,
    /// Bytes that each parameter takes, activations that a sample leaves, bytes that peak briefly a sample.
    params: f64,
    sample_bytes: f64,
    /// Floating-point operations of a sample, forward and backward, and how many a second.
    sample_flops: f64,
    rate: f64,
    /// Least and most samples a batch.
    batches: (f64, f64),
}

/// Random choices.
struct Dice(Pcg64);

impl Dice {
    fn unit(&mut self) -> f64 {
        self.0.random_range(0.0..1.0)
    }

    fn chance(&mut self, share: f64) -> bool {
        self.unit() < share
    }

    /// Both ends included.
    fn int(&mut self, low: u64, high: u64) -> u64 {
        self.0.random_range(low..=high)
    }

    fn log(&mut self, low: f64, high: f64) -> f64 {
        (low.ln() + self.unit() * (high / low).ln()).exp()
    }

    /// Log-uniform, whole; half of the time a multiple of 8 where it is large enough.
    fn size(&mut self, low: f64, high: f64) -> u64 {
        let value = self.log(low, high);
        if value >= 32.0 && self.chance(0.5) { whole(value / 8.0) * 8 } else { whole(value) }
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.0.random_range(0..of.len())]
    }

    /// By weights.
    fn weighted<T: Copy>(&mut self, of: &[(T, f64)]) -> T {
        let mut left = self.unit() * of.iter().map(|(_, w)| w).sum::<f64>();
        for &(value, weight) in of {
            left -= weight;
            if left < 0.0 {
                return value;
            }
        }
        of[of.len() - 1].0
    }

    fn precision(&mut self) -> &'static str {
        self.weighted(&[("fp32", 0.45), ("bf16-autocast", 0.35), ("bf16", 0.20)])
    }

    fn dropout(&mut self, share: f64) -> String {
        if self.chance(share) { format!("{:.2}", 0.05 + self.unit() * 0.5) } else { String::new() }
    }
}

/// A positive number, rounded.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive, and far below 2^53")]
fn whole(value: f64) -> u64 {
    value.round().max(1.0) as u64
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
const fn float(value: u64) -> f64 {
    value as f64
}

/// Bytes of an element that is kept for the backward pass.
fn element(precision: &str) -> f64 {
    if precision == "fp32" { 4.0 } else { 2.0 }
}

/// Bytes a parameter takes with its gradient, the optimizer's states and what the step needs for a moment.
fn parameter_bytes(optimizer: &str, precision: &str) -> f64 {
    let numbers = match optimizer {
        "sgd" => 2.0,
        "sgd-momentum" => 3.0,
        "rmsprop" | "adam-fused" | "adagrad" => 4.0,
        _ => 5.0,
    };
    numbers * if precision == "bf16" { 2.0 } else { 4.0 }
        + if precision == "bf16-autocast" { 2.0 } else { 0.0 }
}

/// Operations a second of matrix products.
fn matmul_rate(precision: &str) -> f64 {
    if precision == "fp32" { 40e12 } else { 300e12 }
}

/// Draws `count` rows of a family. The same seed gives the same rows, whatever the count.
#[must_use]
pub fn generate(family: Family, count: usize, seed: u64) -> Table {
    let mut dice = Dice(Pcg64::seed_from_u64(seed));
    Table {
        columns: COMMON.iter().chain(columns(family)).chain(&LAST).map(|c| (*c).to_owned()).collect(),
        rows: (1..=count).map(|number| row(family, number, &mut dice)).collect(),
    }
}

fn row(family: Family, number: usize, dice: &mut Dice) -> Vec<String> {
    let (low, high) = targets(family);
    loop {
        let target = dice.log(low, high);
        // A few models a target, lest targets that are hard to meet become rare.
        for _ in 0..40 {
            let model = draw(family, dice);
            let optimizer = dice.weighted(&[
                ("sgd", 0.08),
                ("sgd-momentum", 0.22),
                ("adam", 0.25),
                ("adamw", 0.20),
                ("adam-fused", 0.12),
                ("rmsprop", 0.08),
                ("adagrad", 0.05),
            ]);
            let fixed = BASE_MIB + model.params * parameter_bytes(optimizer, model.precision) / MIB;
            let batch = (target - fixed) * MIB / model.sample_bytes;
            if batch < model.batches.0 || batch > model.batches.1 {
                continue;
            }
            let batch = nice(batch, dice);
            let seconds = float(batch) * (model.sample_flops / model.rate + model.sample_bytes * 5.0 / 3e12)
                + model.params * 60.0 / 3e12;
            if seconds > STEP_S {
                continue;
            }
            let predicted = fixed + float(batch) * model.sample_bytes / MIB;
            return cells(family, number, &model, optimizer, batch, predicted, dice);
        }
    }
}

/// Batches as people choose them, mostly.
fn nice(batch: f64, dice: &mut Dice) -> u64 {
    let batch = whole(batch);
    if batch >= 16 && dice.chance(0.6) {
        batch / 8 * 8
    } else if batch >= 4 && dice.chance(0.5) {
        batch / 2 * 2
    } else {
        batch
    }
    .max(2)
}

fn cells(
    family: Family,
    number: usize,
    model: &Model,
    optimizer: &str,
    batch: u64,
    predicted: f64,
    dice: &mut Dice,
) -> Vec<String> {
    // The last batch of an epoch: at least 2 samples, because batch norm refuses one.
    let samples = if batch >= 4 && dice.chance(0.5) {
        (batch * dice.int(3, 40) + dice.int(2, batch - 1)).to_string()
    } else {
        String::new()
    };
    let cap = if dice.chance(CAPPED_SHARE) {
        (whole((predicted - BASE_MIB) * (0.3 + 0.7 * dice.unit()) / 64.0) * 64).clamp(128, CAP_MIB)
    } else {
        CAP_MIB
    };
    let mut cells = vec![
        format!("{}-{number:05}", family.as_str()),
        family.as_str().to_owned(),
        model.arch.to_owned(),
        batch.to_string(),
        samples,
        optimizer.to_owned(),
        model.precision.to_owned(),
    ];
    cells.extend(model.cells.iter().cloned());
    cells.push(cap.to_string());
    cells.push(whole(predicted).to_string());
    cells
}

#[cfg(test)]
mod tests;

//! GPUMemNet's two sets of multi-layer perceptrons: 3,000 runs each on one A100.
//!
//! The networks come from the column `Activations-Params`; the rules and the allocator's model say what
//! PyTorch reserves. Against the measured values stands one constant, the context of that campaign.

use super::{Data, Outcome, Pair, Target, Test};
use crate::alloc::Settings;
use crate::graph::{Builder, Graph, Keeps, Norm, Number, Op, Script, replay_script};
use crate::{Error, Gpu, MIB, Platform, Task};
use std::collections::HashMap;
use std::path::Path;

/// CUDA context of the campaign, MiB (reference, section 4: eager loading, whole-GPU reading).
const CONTEXT_MIB: u64 = 1429;
/// Samples of the generated data sets.
const SAMPLES: u64 = 4096;
/// `torchsummary.summary` runs the model with so many samples first.
const SUMMARY_BATCH: u64 = 2;

/// A run of the set.
#[derive(Debug, Clone)]
pub struct Run {
    /// Name of its log, which tells the configuration.
    pub name: String,
    /// Network.
    pub graph: Graph,
    /// How it was trained.
    pub task: Task,
    /// Most memory that the GPU showed, MiB.
    pub measured_mib: u64,
}

/// A run's numbers from the allocator's model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Simulated {
    /// Reserved at most, MiB.
    pub reserved_mib: u64,
    /// Allocated at most, MiB.
    pub allocated_mib: f64,
}

impl Run {
    /// Plays what the set's program does.
    ///
    /// # Errors
    /// As for [`replay_script`].
    pub fn simulate(&self) -> Result<Simulated, Error> {
        let script = Script { dummy_batch: Some(SUMMARY_BATCH), ..Script::default() };
        let peak = replay_script(&self.graph, &self.task, &platform(), &script)?.peak;
        Ok(Simulated {
            reserved_mib: peak.max_reserved.div_ceil(MIB),
            allocated_mib: peak.max_allocated as f64 / MIB as f64,
        })
    }
}

fn platform() -> Platform {
    Platform {
        gpu: Gpu { name: "A100-40GB".to_owned(), compute_capability: (8, 0), total_mib: 40_960 },
        torch: (2, 1),
        context_mib: CONTEXT_MIB,
        context_source: "as in the campaign of the set".to_owned(),
        alloc: Settings::default(),
    }
}

/// Reads one of the two sets.
///
/// # Errors
/// The file cannot be read, or a row is not as described.
pub fn read(file: &Path) -> Result<Vec<Run>, Error> {
    let place = |line: usize| format!("{}, row {line}", file.display());
    let mut reader =
        csv::Reader::from_path(file).map_err(|e| Error::bad(file.display().to_string(), e.to_string()))?;
    let headers = reader.headers().map_err(|e| Error::bad(place(1), e.to_string()))?.clone();
    let column = |name: &str| {
        headers
            .iter()
            .position(|h| h == name)
            .ok_or_else(|| Error::bad(place(1), format!("no column `{name}`")))
    };
    let columns = [
        column("Filename")?,
        column("Activations-Params")?,
        column("Batch Size")?,
        column("Max GPU Memory (MiB)")?,
    ];
    let mut runs = Vec::new();
    for (at, record) in reader.records().enumerate() {
        let record = record.map_err(|e| Error::bad(place(at + 2), e.to_string()))?;
        let [name, layers, batch, measured] = columns.map(|c| record.get(c).unwrap_or_default());
        let number = |text: &str, what: &str| {
            text.parse::<u64>()
                .map_err(|_| Error::bad(place(at + 2), format!("{what}: expected a number, found `{text}`")))
        };
        let batch_size = number(batch, "batch size")?;
        let task = Task { batch_size, samples: Some(SAMPLES), ..Task::default() };
        let graph = network(
            &layers_of(layers).ok_or_else(|| {
                Error::bad(place(at + 2), "expected a list of (type, activations, parameters)")
            })?,
            batch_size,
        )?;
        runs.push(Run { name: name.to_owned(), graph, task, measured_mib: number(measured, "memory")? });
    }
    Ok(runs)
}

/// `[('linear', 629, 792540), ('ReLU', 629, 0), ...]`
fn layers_of(text: &str) -> Option<Vec<(String, u64, u64)>> {
    let list = text.trim().strip_prefix('[')?.strip_suffix(']')?;
    let items = list.split('(').skip(1);
    items
        .map(|item| {
            let mut parts = item.split(')').next()?.split(',').map(str::trim);
            let name = parts.next()?.trim_matches('\'').to_owned();
            Some((name, parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
        })
        .collect()
}

/// The network with its loss. A linear layer of `n` outputs and `p` parameters has `p / n - 1` inputs.
fn network(layers: &[(String, u64, u64)], batch: u64) -> Result<Graph, Error> {
    let mut b = Builder::new("mlp");
    let inner = |outputs: u64, params: u64| (params / outputs.max(1)).saturating_sub(1).max(1);
    let first = layers.first().map_or(1, |(_, outputs, params)| inner(*outputs, *params));
    let mut x = b.input("input", &[batch, first], Number::Float)?;
    let labels = b.input("labels", &[batch], Number::Int64)?;
    for (at, (kind, width, _)) in layers.iter().enumerate() {
        let name = format!("{at}");
        x = match kind.as_str() {
            "linear" => b.linear(&name, x, *width, true)?,
            "batch_normalization" => b.norm(&name, Norm::Batch, x, *width, true)?,
            "dropout" => b.like(&name, Op::Dropout { inplace: false }, &[x])?,
            "ReLU" | "Tanh" | "Sigmoid" => b.activation(&name, Keeps::Output, false, x)?,
            "Softmax" => b.like(&name, Op::Softmax, &[x])?,
            "Identity" => x,
            "PReLU" => {
                let slope = b.param(format!("{name}.weight"), &[1])?;
                let shape = b.shape(x).to_vec();
                let op = Op::Activation { keeps: Keeps::Input, inplace: false };
                b.node(&name, op, &[x], &[slope], &shape, Number::Float)?
            }
            _ => b.activation(&name, Keeps::Input, false, x)?,
        };
    }
    if !layers.iter().any(|(kind, ..)| matches!(kind.as_str(), "Softmax" | "Sigmoid")) {
        x = b.like("softmax", Op::Softmax, &[x])?;
    }
    let loss = b.node("loss", Op::CrossEntropy, &[x, labels], &[], &[], Number::Float)?;
    let _ = loss;
    Ok(b.finish(vec![x]))
}

/// The prototype's numbers by name: test vectors of the allocator's model.
///
/// # Errors
/// The file cannot be read, or a row is not as described.
pub fn read_vectors(file: &Path) -> Result<HashMap<String, Simulated>, Error> {
    let bad = |what: String| Error::bad(file.display().to_string(), what);
    let mut reader = csv::Reader::from_path(file).map_err(|e| bad(e.to_string()))?;
    let mut vectors = HashMap::new();
    for record in reader.records() {
        let record = record.map_err(|e| bad(e.to_string()))?;
        let number = |at: usize| record.get(at).and_then(|text| text.parse::<f64>().ok());
        let (Some(name), Some(reserved), Some(allocated_mib)) = (record.get(0), number(2), number(3)) else {
            return Err(bad(format!("expected name, measured, reserved, allocated; found {record:?}")));
        };
        vectors.insert(name.to_owned(), Simulated { reserved_mib: reserved as u64, allocated_mib });
    }
    Ok(vectors)
}

/// Both sets: against the vectors, and against what was measured.
#[must_use]
pub fn tests(data: &Data) -> Vec<Test> {
    (1..=2).flat_map(|set| one_set(data, set)).collect()
}

fn one_set(data: &Data, set: u32) -> Vec<Test> {
    let names = [
        format!("allocator model against its vectors, MLP set {set}"),
        format!("MLP set {set}, 3,000 runs on an A100-40GB, measured"),
    ];
    let run = || -> Result<Vec<Test>, String> {
        let runs =
            read(&data.shared(&format!("gpumemnet/mlp_data_step{set}.csv"))?).map_err(|e| e.to_string())?;
        let vectors = read_vectors(&data.shared(&format!("gpumemnet/proto_sim_mlp_step{set}.csv"))?)
            .map_err(|e| e.to_string())?;
        let (mut reserved, mut allocated, mut seen) = (0, 0, 0);
        let mut pairs = Vec::with_capacity(runs.len());
        for run in &runs {
            let simulated = run.simulate().map_err(|e| format!("{}: {e}", run.name))?;
            if let Some(vector) = vectors.get(&run.name) {
                seen += 1;
                reserved += usize::from(vector.reserved_mib == simulated.reserved_mib);
                allocated += usize::from((vector.allocated_mib - simulated.allocated_mib).abs() <= 0.1);
            }
            pairs.push(Pair {
                label: run.name.clone(),
                measured_mib: run.measured_mib as f64,
                estimated_mib: (CONTEXT_MIB + simulated.reserved_mib) as f64,
                upper_mib: None,
            });
        }
        let figures = vec![
            ("rows".to_owned(), seen.to_string()),
            ("reserved equal".to_owned(), reserved.to_string()),
            ("allocated within 0.1 MiB".to_owned(), allocated.to_string()),
        ];
        Ok(vec![
            Test {
                name: names[0].clone(),
                estimator: "allocator".to_owned(),
                outcome: Outcome::Figures { figures },
                targets: vec![Target::new("reserved equal on every row", reserved == seen && seen > 0)],
            },
            Test::of(&names[1], "allocator", &pairs, |score| {
                vec![
                    Target::new("MRE <= 0.3 %", score.mre <= 0.003),
                    Target::new("60 % exact to the MiB", score.exact >= 0.6),
                ]
            }),
        ])
    };
    run()
        .unwrap_or_else(|reason| names.iter().map(|name| Test::skipped(name, "allocator", &reason)).collect())
}

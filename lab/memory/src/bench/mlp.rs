//! GPUMemNet's two sets of multi-layer perceptrons: 3,000 runs each on one A100.
//!
//! The networks come from the column `Activations-Params`; the rules and the allocator's model say what
//! PyTorch reserves. Against the measured values stands one constant, the context of that campaign.

use super::{Data, Outcome, Pair, Target, Test, vectors};
use carma_memory::alloc::Settings;
use carma_memory::graph::{Builder, Graph, Keeps, Norm, Number, Op, Script, replay_script};
use carma_memory::{Error, Gpu, MIB, MiB, ModelTask, Platform};
use std::path::Path;

/// CUDA context of the campaign, MiB (eager loading, whole-GPU reading).
const CONTEXT_MIB: u64 = 1429;
/// Samples of the generated data sets.
pub(super) const SAMPLES: u64 = 4096;
/// `torchsummary.summary` runs the model with so many samples first.
pub(super) const SUMMARY_BATCH: u64 = 2;

/// A run of the set.
#[derive(Debug, Clone)]
pub struct Run {
    /// Name of its log, which tells the configuration.
    pub name: String,
    /// Layers, as listed.
    pub layers: Vec<Layer>,
    /// Graph of the network.
    pub graph: Graph,
    /// How it was trained.
    pub task: ModelTask,
    /// Most memory that the GPU showed, MiB.
    pub measured_mib: u64,
}

impl Run {
    /// What the allocator reserves at most, MiB, when it does what the set's program does.
    ///
    /// # Errors
    /// As for [`replay_script`].
    pub fn reserved_mib(&self) -> Result<u64, Error> {
        let script = Script { dummy_batch: Some(SUMMARY_BATCH), ..Script::default() };
        Ok(replay_script(&self.graph, &self.task, &platform(), &script)?.peak.max_reserved.div_ceil(MIB))
    }
}

fn platform() -> Platform {
    Platform {
        gpu: Gpu { name: "A100-40GB".to_owned(), compute_capability: (8, 0), total_mib: MiB(40_960) },
        torch: (2, 1),
        context_mib: MiB(CONTEXT_MIB),
        context_saves: carma_memory::ContextSaves::default(),
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
    let mut reader = csv::Reader::from_reader(carma_files::open_bounded(file, carma_files::MOST)?);
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
        let task = ModelTask { batch_size, samples: Some(SAMPLES), ..ModelTask::default() };
        let layers = layers_of(layers)
            .ok_or_else(|| Error::bad(place(at + 2), "expected a list of (type, activations, parameters)"))?;
        let graph = network(&layers, batch_size)?;
        let measured_mib = number(measured, "memory")?;
        runs.push(Run { name: name.to_owned(), layers, graph, task, measured_mib });
    }
    Ok(runs)
}

/// What a layer does, as far as memory goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerOp {
    /// With a bias.
    Linear,
    /// Over features.
    BatchNorm,
    /// With p > 0.
    Dropout,
    /// A function that keeps its output: ReLU, Tanh, Sigmoid, Softmax.
    OfOutput,
    /// A function that keeps its input: GELU, ELU, ...
    OfInput,
    /// PReLU: keeps its input, and has one trained slope.
    Slope,
    /// Nothing happens.
    Identity,
}

/// A layer of the column `Activations-Params`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layer {
    /// What it does.
    pub kind: LayerOp,
    /// As in the column.
    pub name: String,
    /// Width of its output.
    pub outputs: u64,
    /// Number of parameters.
    pub params: u64,
}

impl Layer {
    /// Width of its input: a linear layer of `n` outputs and `p` parameters has `p / n - 1`.
    #[must_use]
    pub fn inputs(&self) -> u64 {
        match self.kind {
            LayerOp::Linear => (self.params / self.outputs.max(1)).saturating_sub(1).max(1),
            _ => self.outputs,
        }
    }

    /// Its trained parameters, bytes each.
    #[must_use]
    pub fn trained(&self) -> Vec<u64> {
        match self.kind {
            LayerOp::Linear => vec![4 * self.outputs * self.inputs(), 4 * self.outputs],
            LayerOp::BatchNorm => vec![4 * self.outputs; 2],
            LayerOp::Slope => vec![4],
            LayerOp::Dropout | LayerOp::OfOutput | LayerOp::OfInput | LayerOp::Identity => Vec::new(),
        }
    }

    /// Its buffers, bytes each.
    #[must_use]
    pub fn buffers(&self) -> Vec<u64> {
        match self.kind {
            LayerOp::BatchNorm => vec![4 * self.outputs, 4 * self.outputs, 8],
            _ => Vec::new(),
        }
    }
}

/// `[('linear', 629, 792540), ('ReLU', 629, 0), ...]`
fn layers_of(text: &str) -> Option<Vec<Layer>> {
    let list = text.trim().strip_prefix('[')?.strip_suffix(']')?;
    list.split('(')
        .skip(1)
        .map(|item| {
            let mut parts = item.split(')').next()?.split(',').map(str::trim);
            let name = parts.next()?.trim_matches('\'').to_owned();
            let kind = match name.as_str() {
                "linear" => LayerOp::Linear,
                "batch_normalization" => LayerOp::BatchNorm,
                "dropout" => LayerOp::Dropout,
                "ReLU" | "Tanh" | "Sigmoid" | "Softmax" => LayerOp::OfOutput,
                "PReLU" => LayerOp::Slope,
                "Identity" => LayerOp::Identity,
                _ => LayerOp::OfInput,
            };
            Some(Layer {
                kind,
                name,
                outputs: parts.next()?.parse().ok()?,
                params: parts.next()?.parse().ok()?,
            })
        })
        .collect()
}

/// The network with its loss.
fn network(layers: &[Layer], batch: u64) -> Result<Graph, Error> {
    let mut b = Builder::new("mlp");
    let first = layers.first().map_or(1, Layer::inputs);
    let mut x = b.input("input", &[batch, first], Number::Float)?;
    let labels = b.input("labels", &[batch], Number::Int64)?;
    for (at, layer) in layers.iter().enumerate() {
        let name = format!("{at}");
        x = match layer.kind {
            LayerOp::Linear => b.linear(&name, x, layer.outputs, true)?,
            LayerOp::BatchNorm => b.norm(&name, Norm::Batch, x, layer.outputs, true)?,
            LayerOp::Dropout => b.like(&name, Op::Dropout { inplace: false }, &[x])?,
            LayerOp::OfOutput => b.activation(&name, Keeps::Output, false, x)?,
            LayerOp::OfInput => b.activation(&name, Keeps::Input, false, x)?,
            LayerOp::Slope => {
                let slope = b.param(format!("{name}.weight"), &[1])?;
                let shape = b.shape(x).to_vec();
                let op = Op::Activation { keeps: Keeps::Input, inplace: false };
                b.node(&name, op, &[x], &[slope], &shape, Number::Float)?
            }
            LayerOp::Identity => x,
        };
    }
    b.node("loss", Op::CrossEntropy, &[x, labels], &[], &[], Number::Float)?;
    Ok(b.finish(vec![x]))
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
        let file = |name: &str| data.shared(&format!("gpumemnet/{name}{set}.csv"));
        let runs = read(&file("mlp_data_step")?).map_err(|e| e.to_string())?;
        let expected = vectors::read(&file("proto_sim_mlp_step")?).map_err(|e| e.to_string())?;
        let (mut reserved, mut allocated) = (0, 0);
        let mut pairs = Vec::with_capacity(runs.len());
        for run in &runs {
            let of_run = |e: Error| format!("{}: {e}", run.name);
            let peak = vectors::play(&run.layers, run.task.batch_size).map_err(of_run)?;
            let vector =
                expected.get(&run.name).ok_or_else(|| format!("{} is not among the vectors", run.name))?;
            let differs = |mib: f64, bytes: u64| (mib - bytes as f64 / MIB as f64).abs();
            reserved += usize::from(differs(vector.reserved_mib, peak.max_reserved) < 0.5);
            allocated += usize::from(differs(vector.allocated_mib, peak.max_allocated) <= 0.1);
            pairs.push(Pair {
                label: run.name.clone(),
                measured_mib: run.measured_mib as f64,
                estimated_mib: (CONTEXT_MIB + run.reserved_mib().map_err(of_run)?) as f64,
                upper_mib: None,
            });
        }
        let all = |n: usize| n == runs.len() && n > 0;
        let figures =
            [("rows", runs.len()), ("reserved equal", reserved), ("allocated within 0.1 MiB", allocated)];
        Ok(vec![
            Test {
                name: names[0].clone(),
                estimator: "allocator".to_owned(),
                outcome: Outcome::Figures {
                    figures: figures.map(|(name, n)| (name.to_owned(), n.to_string())).to_vec(),
                },
                targets: vec![
                    Target::new("reserved equal on every row", all(reserved)),
                    Target::new("allocated within 0.1 MiB on every row", all(allocated)),
                ],
                pairs: Vec::new(),
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

//! All estimators by name, over whatever is known of a task.

mod learned;

use crate::activity::Activity;
use crate::allocator::{self, Footprint};
use crate::command::Taker;
use crate::formula::{self, Totals, faketensor};
use crate::gpumemnet::{AuthorsNetworks, Ensemble};
use crate::graph::{Graph, Replay, StorageKind, replay};
use crate::summary::Summary;
use crate::{
    Error, Estimate, MIB, MiB, ModelTask, Platform, Tier, Uses, gpumemnet, hf, onnx, summary, trace,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What is known of a task's model. Each part is as read from a file, unparsed.
#[derive(Debug, Clone, Default)]
pub struct Known {
    /// Text of a printed summary.
    pub summary: Option<String>,
    /// `config.json` of Hugging Face.
    pub hf_config: Option<String>,
    /// Names and shapes of weights.
    pub safetensors: Option<hf::safetensors::Weights>,
    /// An ONNX model.
    pub onnx: Option<Vec<u8>>,
    /// Log of a traced run.
    pub trace: Option<Vec<u8>>,
    /// Paths of the files that the parts are from, by the name of what reads them: `onnx`, `hf-config`, `summary`, `trace`.
    pub files: BTreeMap<&'static str, String>,
    /// What the user asks for.
    pub declared_mib: Option<MiB>,
    /// Peak under FakeTensorMode, MiB.
    pub faketensor_mib: Option<f64>,
    /// Networks of GPUMemNet's authors, where there are some to ask.
    pub authors: Option<Arc<dyn AuthorsNetworks>>,
    /// The command's program takes memory by its settings.
    pub taker: Option<Taker>,
    /// What a trace is asked for.
    pub asked: trace::Asked,
    /// What the command says that no front end sees: by how much it widens a bound, and why.
    pub caveats: Vec<(f64, String)>,
    /// Processes of the command on one GPU; 0 and 1 are the same.
    pub processes: u32,
}

impl Known {
    /// Whether anything describes the model.
    #[must_use]
    pub fn has_model(&self) -> bool {
        self.summary.is_some()
            || self.hf_config.is_some()
            || self.safetensors.is_some()
            || self.onnx.is_some()
            || self.trace.is_some()
    }

    /// Leaves out what describes the model: without the size of a batch it is not to be used.
    pub fn forget_model(&mut self) {
        (self.summary, self.hf_config, self.safetensors) = (None, None, None);
        (self.onnx, self.trace) = (None, None);
    }

    /// Looks whether each file is what it is given as. One that is, and of which no estimate can be made, passes.
    ///
    /// # Errors
    /// A file that is something else, cut or empty, with its path.
    pub fn check(&self) -> Result<(), Error> {
        let of = |reader, checked: Option<Result<(), Error>>| self.in_file(reader, checked.unwrap_or(Ok(())));
        of("summary", self.summary.as_deref().map(|text| summary::parse(text).map(|_| ())))?;
        of("hf-config", self.hf_config.as_deref().map(hf::check))?;
        of("onnx", self.onnx.as_deref().map(onnx::check))?;
        of("trace", self.trace.as_deref().map(|log| trace::read(log).map(|_| ())))
    }

    /// Has an error name the file that a reader is given, where it is from one.
    fn in_file<T>(&self, reader: &str, result: Result<T, Error>) -> Result<T, Error> {
        result.map_err(|error| match self.files.get(reader) {
            Some(path) => Error::bad(path, error.to_string()),
            None => error,
        })
    }

    /// Whether anything can be said of its memory.
    #[must_use]
    pub fn says_something(&self) -> bool {
        self.has_model() || self.taker.is_some()
    }

    /// What a front end says of one process, with what the command says beside it.
    fn beside(&self, mut estimate: Estimate, platform: &Platform) -> Estimate {
        // What widens nothing is about a description of the model, and a trace shows it.
        let traced = estimate.tier == Tier::Trace;
        for (share, why) in self.caveats.iter().filter(|(share, _)| !traced || *share > 0.0) {
            estimate.widen(*share, why);
        }
        allocator::within_fraction(&mut estimate, platform);
        self.by_processes(&mut estimate);
        if traced {
            trace::within_gpu(&mut estimate, platform);
        }
        estimate
    }

    /// As often as there are processes on one GPU.
    fn by_processes(&self, estimate: &mut Estimate) {
        let processes = u64::from(self.processes.max(1));
        if processes > 1 {
            let all = |mib: MiB| MiB(mib.0.saturating_mul(processes));
            (estimate.need_mib, estimate.use_mib) = (all(estimate.need_mib), all(estimate.use_mib));
            estimate.upper_mib = all(estimate.upper_mib);
            estimate.parts = None;
            estimate.reasons.push(format!("{processes} processes on one GPU take it so many times"));
        }
    }
}

/// An estimator's name and its answer.
#[derive(Debug)]
pub struct Answer {
    /// Name: `allocator`, `horus`, ...
    pub estimator: &'static str,
    /// The estimate, or why there is none.
    pub result: Result<Estimate, Error>,
}

/// A graph and where it comes from.
struct Source {
    front_end: &'static str,
    tier: Tier,
    graph: Graph,
    replay: Replay,
}

/// What is known, parsed once for all estimators.
struct View<'a> {
    known: &'a Known,
    task: &'a ModelTask,
    platform: &'a Platform,
    /// Graphs by front end, best first; one that failed says why instead.
    sources: Vec<(&'static str, Result<Source, Error>)>,
}

impl<'a> View<'a> {
    fn new(known: &'a Known, task: &'a ModelTask, platform: &'a Platform) -> Self {
        let source = |front_end, tier, graph: Result<Graph, Error>| {
            // What a file is blamed for is in it: options and sizes are said of what it describes.
            let mut graph = known.in_file(front_end, graph)?;
            let replay = replay(&graph, task, platform)?;
            if replay.phase.is_empty() {
                let nothing = Err(Error::bad(
                    "the model",
                    "nothing in it takes memory; is a dimension 0? give its sizes",
                ));
                return known.in_file(front_end, nothing);
            }
            graph.doubts.extend(graph.targets_without_layer(task));
            Ok(Source { front_end, tier, graph, replay })
        };
        let graphs = graphs(known, task).into_iter();
        let sources = graphs.map(|(name, tier, graph)| (name, source(name, tier, graph))).collect();
        Self { known, task, platform, sources }
    }

    /// The best graph.
    ///
    /// # Errors
    /// None was given, or none could be read.
    fn source(&self, estimator: &'static str) -> Result<&Source, Error> {
        if let Some(source) = self.sources.iter().find_map(|(_, source)| source.as_ref().ok()) {
            return Ok(source);
        }
        Err(match self.sources.first() {
            Some((_, Err(error))) => error.told_by(estimator),
            _ => undescribed(estimator),
        })
    }

    fn replayed(&self, source: &Source) -> Estimate {
        let footprint = Footprint {
            front_end: source.front_end,
            tier: source.tier,
            family: source.graph.family.clone(),
            uses: Uses::of(self.task.mode),
            peak: source.replay.peak,
            convolution_bytes: source.replay.convolution_bytes,
            convolutional: source.replay.convolution_bytes > 0,
            doubts: source.graph.doubts.clone(),
            notes: source.replay.notes(),
        };
        self.known.beside(allocator::estimate(&footprint, self.task, self.platform), self.platform)
    }

    /// Totals as a summary prints them, else as the graph has them.
    fn totals(&self, estimator: &'static str) -> Result<(Totals, &str), Error> {
        let source = self.source(estimator)?;
        let family = source.graph.family.as_str();
        let printed = self.known.summary.as_deref().and_then(|text| {
            let parsed: Summary = summary::parse(text).ok()?;
            printed_totals(&parsed, self.task)
        });
        Ok((printed.unwrap_or_else(|| Totals::from_graph(&source.graph, self.task)), family))
    }
}

/// What the task does to a GPU that it has for itself, by the best graph of its model; a trace has none.
///
/// # Errors
/// No description of the model, or one that cannot be read; a GPU that was not measured.
pub fn activity(known: &Known, task: &ModelTask, platform: &Platform) -> Result<Activity, Error> {
    crate::activity::activity(&graph(known, task)?, task, platform)
}

/// The best graph of what is known of a model.
///
/// # Errors
/// No description of the model, or one that cannot be read.
pub fn graph(known: &Known, task: &ModelTask) -> Result<Graph, Error> {
    let mut first_error = None;
    for (name, _, graph) in graphs(known, task) {
        match known.in_file(name, graph) {
            Ok(graph) => return Ok(graph),
            Err(error) => first_error = first_error.or(Some(error)),
        }
    }
    Err(first_error.unwrap_or_else(|| undescribed("graph")))
}

fn undescribed(estimator: &'static str) -> Error {
    Error::Missing { estimator, what: "--summary, --hf-config, --safetensors or --onnx".into() }
}

/// What each front end makes of what is known, the best first.
fn graphs(known: &Known, task: &ModelTask) -> Vec<(&'static str, Tier, Result<Graph, Error>)> {
    let mut graphs = Vec::new();
    if let Some(bytes) = &known.onnx {
        graphs.push(("onnx", Tier::Graph, onnx::graph(bytes, task)));
    }
    if let Some(graph) = hugging_face(known, task) {
        graphs.push(("hf-config", Tier::Config, graph));
    }
    if let Some(text) = &known.summary {
        let graph = summary::parse(text).and_then(|summary| summary::graph(&summary, task));
        graphs.push(("summary", Tier::Summary, graph));
    }
    graphs
}

/// Totals as GPUMemNet's authors take them from a summary: of layers that they know, without containers.
fn printed_totals(summary: &Summary, task: &ModelTask) -> Option<Totals> {
    let model = gpumemnet::ModelLayers::of_summary(summary, task).ok()?;
    let activations = model.activations(|kind| kind != gpumemnet::LayerKind::Other);
    (activations > 0).then_some(Totals { activations, parameters: model.params, batch: task.batch_size })
}

fn hugging_face(known: &Known, task: &ModelTask) -> Option<Result<Graph, Error>> {
    let config = match (&known.hf_config, &known.safetensors) {
        (None, None) => return None,
        (Some(text), _) => hf::Config::parse(text),
        (None, Some(weights)) => hf::Config::of_weights(weights),
    };
    Some(config.and_then(|config| match &known.safetensors {
        Some(weights) => hf::graph_with(&config, weights, task),
        None => hf::graph(&config, task),
    }))
}

/// What the program's settings say that it takes.
fn by_share(view: &View<'_>) -> Result<Estimate, Error> {
    let taker = view.known.taker.as_ref().ok_or_else(|| Error::Missing {
        estimator: "share",
        what: "a command whose program takes a share of the GPU: vLLM, SGLang, JAX, TensorFlow".into(),
    })?;
    let mut estimate = taker.estimate(view.platform).ok_or_else(|| {
        Error::bad(taker.program, format!("{}; how far is not known beforehand", taker.why))
    })?;
    view.known.by_processes(&mut estimate);
    let most = view.platform.gpu.total_mib;
    for mib in [&mut estimate.need_mib, &mut estimate.use_mib, &mut estimate.upper_mib] {
        *mib = (*mib).min(most);
    }
    Ok(estimate)
}

fn by_trace(view: &View<'_>, log: &[u8]) -> Result<Estimate, Error> {
    let estimate = trace::estimate_for(log, &view.known.asked, view.task, view.platform);
    Ok(view.known.beside(view.known.in_file("trace", estimate)?, view.platform))
}

/// The main estimator, by the best front end that works; those that do not are among the reasons.
fn by_allocator(view: &View<'_>) -> Result<Estimate, Error> {
    let mut failed = Vec::new();
    if let Some(log) = &view.known.trace {
        match by_trace(view, log) {
            Ok(estimate) => return Ok(estimate),
            Err(error) => failed.push(error),
        }
    }
    let mut estimate = match view.source("allocator") {
        Ok(source) => view.replayed(source),
        Err(error) => return Err(failed.pop().unwrap_or(error)),
    };
    let others = view.sources.iter().filter_map(|(_, source)| source.as_ref().err());
    estimate.reasons.extend(failed.iter().chain(others).map(|error| format!("not used: {error}")));
    Ok(estimate)
}

/// The allocator by one front end, and no other: it was asked for by name.
fn by_front_end(view: &View<'_>, estimator: &'static str, what: &str) -> Result<Estimate, Error> {
    let named = |name: &str| estimator.strip_prefix("allocator/") == Some(name);
    match view.sources.iter().find(|(name, _)| named(name)) {
        Some((_, Ok(source))) => Ok(view.replayed(source)),
        Some((_, Err(error))) => Err(error.told_by(estimator)),
        None => Err(Error::Missing { estimator, what: what.into() }),
    }
}

fn by_horus(view: &View<'_>) -> Result<Estimate, Error> {
    let (totals, family) = view.totals("horus")?;
    Ok(formula::horus::estimate(totals, family))
}

fn by_quick(view: &View<'_>) -> Result<Estimate, Error> {
    let (totals, family) = view.totals("quick")?;
    Ok(formula::quick::estimate(totals, family, view.task, view.platform))
}

/// FakeTensor's peak as the user measured it, else the live tensors of our replay that it would count.
fn faketensor_inputs(view: &View<'_>) -> Result<faketensor::Inputs<'static>, Error> {
    let graph = view.source("faketensor").ok();
    let counted = |source: &Source| {
        let held = &source.replay.holdings;
        let beside =
            [StorageKind::Parameters, StorageKind::Optimizer].map(|kind| held.of(kind)).iter().sum::<u64>();
        held.total().saturating_sub(beside) as f64 / MIB as f64
    };
    let peak_mib =
        view.known.faketensor_mib.or_else(|| graph.map(counted)).ok_or_else(|| Error::Missing {
            estimator: "faketensor",
            what: "--faketensor-peak, or a model whose live tensors can be counted".into(),
        })?;
    let weights = graph.map(|source| source.graph.parameters() as f64 * 4.0 / MIB as f64);
    Ok(faketensor::Inputs {
        model: "",
        batch: view.task.batch_size,
        peak_mib,
        after_forward_mib: None,
        weights_mib: weights,
    })
}

/// Says so where the peak is ours and not FakeTensor's.
fn with_origin(mut estimate: Estimate, view: &View<'_>) -> Estimate {
    if view.known.faketensor_mib.is_none() {
        estimate
            .reasons
            .insert(0, "the peak of live tensors was counted by carma's rules, not by PyTorch".into());
    }
    estimate
}

fn by_faketensor_raw(view: &View<'_>) -> Result<Estimate, Error> {
    Ok(with_origin(faketensor::raw(&faketensor_inputs(view)?, view.platform)?, view))
}

fn by_faketensor(view: &View<'_>) -> Result<Estimate, Error> {
    Ok(with_origin(faketensor::corrected(&faketensor_inputs(view)?, view.platform)?, view))
}

fn by_deepspeed(view: &View<'_>) -> Result<Estimate, Error> {
    let graph = &view.source("deepspeed")?.graph;
    let setup = formula::deepspeed::Setup::from_graph(graph, view.task);
    Ok(formula::deepspeed::estimate(&setup, &graph.family, view.task, view.platform))
}

fn by_llmem(view: &View<'_>) -> Result<Estimate, Error> {
    let graph = &view.source("llmem")?.graph;
    let decoder = formula::llmem::Decoder::from_graph(graph, view.task)?;
    formula::llmem::estimate(&decoder, &graph.family, view.task, view.platform)
}

fn by_accelerate(view: &View<'_>) -> Result<Estimate, Error> {
    let graph = &view.source("accelerate")?.graph;
    let sizes = formula::accelerate::from_graph(graph, view.task);
    Ok(formula::accelerate::estimate(sizes, &graph.family, view.task, view.platform))
}

fn by_dnnmem(view: &View<'_>) -> Result<Estimate, Error> {
    if view.known.onnx.is_none() {
        return Err(Error::Missing { estimator: "dnnmem", what: "--onnx".into() });
    }
    let source = view.source("dnnmem")?;
    if source.front_end != "onnx" {
        return Err(Error::bad("dnnmem", "the ONNX file could not be used"));
    }
    Ok(formula::dnnmem::estimate(&source.graph, &source.replay, view.task, view.platform))
}

fn by_declared(view: &View<'_>) -> Result<Estimate, Error> {
    let mib = view
        .known
        .declared_mib
        .ok_or_else(|| Error::Missing { estimator: "declared", what: "--gpu-memory".into() })?;
    Ok(Estimate {
        need_mib: mib,
        use_mib: mib,
        upper_mib: mib,
        tier: Tier::Declared,
        source: "declared".into(),
        family: "unknown".into(),
        parts: None,
        elastic: false,
        reasons: vec!["as you say".into()],
    })
}

/// The best that is known without history: the daemon adds that.
fn by_auto(view: &View<'_>) -> Result<Estimate, Error> {
    // What takes a share of the GPU does so whatever its model.
    let mut estimate = by_share(view)
        .or_else(|share| {
            let taken = view.known.taker.is_some() && !view.known.has_model();
            by_allocator(view).map_err(|error| if taken { share } else { error })
        })
        .or_else(|error| by_declared(view).map_err(|_| error))?;
    estimate
        .reasons
        .push("without earlier runs: the daemon adds what they teach when the job is submitted".into());
    Ok(estimate)
}

/// An estimator: a name and a function of what is known.
type Estimator = (&'static str, fn(&View<'_>) -> Result<Estimate, Error>);

/// All of them, in the order of the listing.
const ESTIMATORS: &[Estimator] = &[
    ("auto", by_auto),
    ("allocator", by_allocator),
    ("share", by_share),
    ("horus", by_horus),
    ("quick", by_quick),
    ("faketensor-raw", by_faketensor_raw),
    ("faketensor", by_faketensor),
    ("deepspeed", by_deepspeed),
    ("llmem", by_llmem),
    ("accelerate", by_accelerate),
    ("dnnmem", by_dnnmem),
    ("gpumemnet", |view| learned::by_gpumemnet(view, Ensemble::Mlp)),
    ("gpumemnet-transformer", |view| learned::by_gpumemnet(view, Ensemble::Transformer)),
    ("gpumemnet-published", |view| learned::by_published(view, Ensemble::Mlp)),
    ("gpumemnet-published-transformer", |view| learned::by_published(view, Ensemble::Transformer)),
    ("dnnperf", learned::by_dnnperf),
    ("declared", by_declared),
];

/// Front ends of the allocator, by which it may be asked for: `allocator/summary`.
const FRONT_ENDS: &[Estimator] = &[
    ("allocator/trace", |view| {
        let log = view
            .known
            .trace
            .as_deref()
            .ok_or_else(|| Error::Missing { estimator: "allocator/trace", what: "--trace".into() })?;
        by_trace(view, log)
    }),
    ("allocator/onnx", |view| by_front_end(view, "allocator/onnx", "--onnx")),
    ("allocator/hf-config", |view| by_front_end(view, "allocator/hf-config", "--hf-config or --safetensors")),
    ("allocator/summary", |view| by_front_end(view, "allocator/summary", "--summary")),
];

/// Names of all estimators.
pub fn names() -> impl Iterator<Item = &'static str> {
    ESTIMATORS.iter().chain(FRONT_ENDS).map(|(name, _)| *name)
}

/// Answers of all estimators, or of the one that is named.
///
/// # Errors
/// A name that no estimator has.
pub fn run(which: &str, known: &Known, task: &ModelTask, platform: &Platform) -> Result<Vec<Answer>, Error> {
    let chosen: Vec<&Estimator> = match which {
        "all" => ESTIMATORS.iter().collect(),
        name => ESTIMATORS.iter().chain(FRONT_ENDS).filter(|(known, _)| *known == name).collect(),
    };
    if chosen.is_empty() {
        let names: Vec<_> = names().collect();
        return Err(Error::bad(
            format!("estimator `{which}`"),
            format!("there is none of this name; there are all, {}", names.join(", ")),
        ));
    }
    let view = View::new(known, task, platform);
    Ok(chosen.into_iter().map(|(estimator, f)| Answer { estimator, result: f(&view) }).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Taken;

    #[test]
    fn a_front_end_asked_for_by_name_answers_itself_or_not_at_all() {
        let known = Known {
            hf_config: Some(r#"{"model_type": "bert", "num_hidden_layers": 2}"#.into()),
            onnx: Some(b"no model".to_vec()),
            ..Known::default()
        };
        let task = ModelTask { seq_len: Some(128), ..ModelTask::default() };
        let platform = Platform::lookup("H200", (2, 11)).unwrap();
        let asked = |name: &str, known: &Known| {
            run(name, known, &task, &platform).unwrap().remove(0).result.map_err(|e| e.to_string())
        };
        assert_eq!(asked("allocator/hf-config", &known).unwrap().source, "allocator/hf-config");
        let error = asked("allocator/summary", &known).unwrap_err();
        assert_eq!(error, "allocator/summary needs --summary");
        let error = asked("allocator/onnx", &known).unwrap_err();
        assert!(error.starts_with("allocator/onnx: "), "{error}");
        let error = asked("allocator/onnx", &Known { onnx: None, ..known }).unwrap_err();
        assert_eq!(error, "allocator/onnx needs --onnx");
    }

    #[test]
    fn a_wrong_option_is_no_mistake_of_a_file() {
        let known = Known {
            hf_config: Some(r#"{"model_type": "bert", "num_hidden_layers": 2}"#.into()),
            files: [("hf-config", "/models/config.json".to_owned())].into(),
            ..Known::default()
        };
        let platform = Platform::lookup("H200", (2, 11)).unwrap();
        let asked = |targets: &[&str]| {
            let targets = targets.iter().map(|name| (*name).to_owned()).collect();
            let task = ModelTask {
                seq_len: Some(128),
                lora: Some(crate::Lora { rank: 4, targets }),
                ..ModelTask::default()
            };
            run("allocator", &known, &task, &platform).unwrap().remove(0).result
        };
        let error = asked(&["nope"]).unwrap_err();
        assert!(error.is_of_option() && error.to_string().starts_with("--lora-targets: "), "{error}");
        // Of several that one is there is enough, but it is told.
        let reasons = asked(&["query", "nope"]).unwrap().reasons.join("\n");
        assert!(reasons.contains("`nope`") && !reasons.contains("`query`"), "{reasons}");
    }

    #[test]
    fn a_share_is_taken_by_each_process() {
        let platform = Platform::lookup("H200", (2, 11)).unwrap();
        let taken = |processes| {
            let share = Taken::Share { likely: 0.2, upper: 0.22, context: true };
            let taker = Taker { program: "JAX", taken: share, why: String::new() };
            let known = Known { taker: Some(taker), processes, ..Known::default() };
            let estimate =
                |name| run(name, &known, &ModelTask::default(), &platform).unwrap().remove(0).result.unwrap();
            assert_eq!(estimate("share").upper_mib, estimate("auto").upper_mib);
            estimate("share")
        };
        let (one, two, nine) = (taken(1), taken(2), taken(9));
        assert_eq!((two.use_mib.0, two.upper_mib.0), (2 * one.use_mib.0, 2 * one.upper_mib.0));
        assert_eq!((nine.need_mib, nine.upper_mib), (platform.gpu.total_mib, platform.gpu.total_mib));
    }
}

//! From ONNX's operators to those that the rules of training know.

mod emit;

use super::model::{Id, NumberKind, OnnxModel};
use super::pattern::{self, Fused, Group, Groups};
use super::shape::{Values, elements};
use crate::graph::{Builder, Graph, Norm, Number, Op, ParamId, TensorId};
use crate::{Attention, Error, Mode, ModelTask};
use std::collections::{BTreeMap, BTreeSet};

/// Where a value comes from.
#[derive(Debug, Clone)]
enum Source {
    /// A tensor of the graph.
    Tensor(TensorId),
    /// Weights alone, perhaps reshaped.
    Weights(Vec<Id>),
    /// Nothing that takes memory.
    Constant,
}

struct Lower<'m> {
    model: &'m OnnxModel,
    values: &'m Values,
    task: &'m ModelTask,
    b: Builder,
    sources: BTreeMap<Id, Source>,
    params: BTreeMap<Id, ParamId>,
    /// Tables of embeddings, by rows and width.
    tables: BTreeMap<(u64, u64), (Id, ParamId)>,
    /// Matrices of which it cannot be told whether they are such a table.
    perhaps_tied: usize,
    /// Values whose elements do not lie in the order of their dimensions.
    permuted: BTreeSet<Id>,
    /// Values that exactly one node reads, and what convolutions, batch normalisations and sums make.
    overwritable: BTreeSet<Id>,
    /// Values that a ReLU reads.
    rectified: BTreeSet<Id>,
    unknown: BTreeMap<String, usize>,
    restored: usize,
    unnormed: usize,
    attentions: usize,
    dropouts: usize,
}

/// The graph.
pub(super) fn lower(model: &OnnxModel, values: &Values, task: &ModelTask) -> Result<Graph, Error> {
    let groups = pattern::find(model, values, task.attention == Attention::Sdpa);
    let b = Builder::new(family(model));
    let mut lower = Lower {
        model,
        values,
        task,
        b,
        sources: BTreeMap::new(),
        params: BTreeMap::new(),
        tables: BTreeMap::new(),
        perhaps_tied: 0,
        permuted: BTreeSet::new(),
        overwritable: overwritable(model),
        rectified: model.nodes.iter().filter(|n| n.op == "Relu").filter_map(|n| n.input(0)).collect(),
        unknown: BTreeMap::new(),
        restored: 0,
        unnormed: 0,
        attentions: 0,
        dropouts: 0,
    };
    lower.inputs()?;
    lower.nodes(&groups)?;
    let returned = lower.outputs()?;
    lower.doubts();
    Ok(lower.b.finish(returned))
}

/// Values that PyTorch's own models and timm let a ReLU write over: what a convolution, a normalisation or a
/// sum makes and no other node reads.
fn overwritable(model: &OnnxModel) -> BTreeSet<Id> {
    let mut readers: BTreeMap<Id, usize> = BTreeMap::new();
    for id in model.nodes.iter().flat_map(|n| n.inputs.iter().flatten()) {
        *readers.entry(*id).or_default() += 1;
    }
    let makers =
        model.nodes.iter().filter(|n| matches!(n.op.as_str(), "Conv" | "BatchNormalization" | "Add"));
    makers.filter_map(|n| n.outputs.first().copied()).filter(|id| readers.get(id) == Some(&1)).collect()
}

/// The kind of model, from names and operators.
fn family(model: &OnnxModel) -> &'static str {
    let named = |words: &[&str]| model.names.iter().any(|n| words.iter().any(|w| n.contains(w)));
    let has = |ops: &[&str]| model.nodes.iter().any(|n| ops.contains(&n.op.as_str()));
    if named(&["bert.", "bert/"]) {
        "bert"
    } else if named(&["transformer.h.", "transformer.wte"]) {
        "gpt2"
    } else if has(&["LSTM", "GRU", "RNN"]) {
        "rnn"
    } else if has(&["Softmax", "Attention"]) && has(&["LayerNormalization", "Attention"]) {
        "transformer"
    } else if has(&["Conv", "ConvTranspose"]) {
        "cnn"
    } else if has(&["Gemm", "MatMul"]) {
        "mlp"
    } else {
        "unknown"
    }
}

/// Whether a constant of the file bears the name of a parameter, not of something the exporter computed.
fn is_param_name(name: &str) -> bool {
    let made = ["val_", "onnx::", "/", "Constant", "const", "_"];
    !made.iter().any(|m| name.starts_with(m)) && !name.chars().all(|c| c.is_ascii_digit())
}

const fn number(kind: NumberKind) -> Number {
    match kind {
        NumberKind::Float => Number::Float,
        NumberKind::Int => Number::Int64,
        NumberKind::Bool => Number::Bool,
    }
}

impl Lower<'_> {
    fn shape(&self, id: Id) -> &[u64] {
        self.values.get(id).map_or(&[], |v| &v.shape)
    }

    fn kind(&self, id: Id) -> NumberKind {
        self.values.get(id).map_or(NumberKind::Float, |v| v.kind)
    }

    fn inputs(&mut self) -> Result<(), Error> {
        for (id, stated) in &self.model.inputs {
            let shape = self.shape(*id).to_vec();
            let tensor = self.b.input(self.model.name(*id), &shape, number(stated.kind))?;
            self.sources.insert(*id, Source::Tensor(tensor));
        }
        Ok(())
    }

    /// Where a value comes from; constants of the file are weights where their names and sizes say so.
    fn source(&self, id: Id) -> Source {
        if let Some(source) = self.sources.get(&id) {
            return source.clone();
        }
        match self.model.constants.get(&id) {
            Some(c) if c.kind == NumberKind::Float && elements(&c.shape) > 1 => {
                if is_param_name(self.model.name(id)) { Source::Weights(vec![id]) } else { Source::Constant }
            }
            _ => Source::Constant,
        }
    }

    fn tensor(&self, id: Id) -> Option<TensorId> {
        match self.source(id) {
            Source::Tensor(t) => Some(t),
            _ => None,
        }
    }

    /// A weight by its role: whatever its name, it is trained.
    fn weight(&mut self, id: Id) -> Result<Option<ParamId>, Error> {
        if let Some(param) = self.params.get(&id) {
            return Ok(Some(*param));
        }
        let Some(value) = self.values.get(id).filter(|v| !v.varies) else { return Ok(None) };
        let shape = value.shape.clone();
        // A matrix that the exporter turned round is the table that it was tied to.
        if let [inner, rows] = shape[..]
            && !is_param_name(self.model.name(id))
            && let Some((table, param)) = self.tables.get(&(rows, inner)).copied().filter(|_| rows > 1)
        {
            match self.same_ends(id, table) {
                Some(true) => return Ok(Some(param)),
                Some(false) => {}
                // Without the data: these families tie them.
                None if matches!(family(self.model), "bert" | "gpt2") => return Ok(Some(param)),
                None => self.perhaps_tied += 1,
            }
        }
        let param = self.b.param(self.model.name(id), &shape)?;
        self.params.insert(id, param);
        Ok(Some(param))
    }

    /// Whether two weights begin and end with the same numbers; `None` where that is not in the file or
    /// says nothing.
    fn same_ends(&self, a: Id, b: Id) -> Option<bool> {
        let ends = |id: Id| self.model.constants.get(&id)?.ends.as_ref();
        let (a, b) = (ends(a)?, ends(b)?);
        let zero = |bytes: &[u8]| bytes.iter().all(|b| *b == 0);
        if a == b && zero(&a.0) && zero(&a.1) { None } else { Some(a == b) }
    }

    fn buffer(&mut self, id: Id) -> Result<Option<ParamId>, Error> {
        if let Some(param) = self.params.get(&id) {
            return Ok(Some(*param));
        }
        let shape = self.shape(id).to_vec();
        let param = self.b.buffer(self.model.name(id), &shape)?;
        self.params.insert(id, param);
        Ok(Some(param))
    }

    fn weights(&mut self, ids: impl IntoIterator<Item = Id>) -> Result<Vec<ParamId>, Error> {
        let mut params = Vec::new();
        for id in ids {
            params.extend(self.weight(id)?);
        }
        params.dedup();
        Ok(params)
    }

    /// Adds a node whose output is the value.
    fn put(
        &mut self,
        name: &str,
        op: Op,
        inputs: &[TensorId],
        params: &[ParamId],
        out: Id,
    ) -> Result<TensorId, Error> {
        let shape = self.shape(out).to_vec();
        let tensor = self.b.node(name, op, inputs, params, &shape, number(self.kind(out)))?;
        self.sources.insert(out, Source::Tensor(tensor));
        Ok(tensor)
    }

    fn nodes(&mut self, groups: &Groups) -> Result<(), Error> {
        for n in 0..self.model.nodes.len() {
            if let Some(group) = groups.by_last.get(&n) {
                self.group(group)?;
            } else if !groups.taken.contains(&n) {
                self.emit(n)?;
            }
        }
        Ok(())
    }

    fn group(&mut self, group: &Group) -> Result<(), Error> {
        let node = &self.model.nodes[group.last];
        let Some(out) = node.outputs.first().copied() else { return Ok(()) };
        let inputs: Vec<TensorId> = group.inputs.iter().filter_map(|id| self.tensor(*id)).collect();
        let name = node.name.clone();
        if inputs.is_empty() {
            let ids = group.inputs.iter().chain(match &group.fused {
                Fused::LayerNorm(ids) | Fused::RmsNorm(ids) | Fused::GroupNorm(ids) => ids.as_slice(),
                _ => &[],
            });
            let sources: Vec<Source> = ids.map(|id| self.source(*id)).collect();
            self.sources.insert(out, union(sources));
            return Ok(());
        }
        let (op, params) = match &group.fused {
            Fused::Linear { weight, bias } => (Op::Linear, vec![*weight, *bias]),
            Fused::Attention { heads, mask, dropout } => {
                self.attentions += 1;
                self.dropouts += usize::from(*dropout);
                let dropout = *dropout && self.task.mode == Mode::Train;
                (Op::Attention { heads: *heads, dropout, mask: *mask }, Vec::new())
            }
            Fused::Activation => {
                let op = Op::Activation { keeps: crate::graph::Keeps::Input, inplace: false };
                (op, Vec::new())
            }
            Fused::LayerNorm(ids) => (Op::Norm(Norm::Layer), ids.clone()),
            Fused::RmsNorm(ids) => (Op::Norm(Norm::Rms), ids.clone()),
            Fused::GroupNorm(ids) => (Op::Norm(Norm::Group), ids.clone()),
        };
        let params = self.weights(params)?;
        self.put(&name, op, &inputs, &params, out)?;
        Ok(())
    }

    /// What the model returns, and its loss.
    fn outputs(&mut self) -> Result<Vec<TensorId>, Error> {
        let model = self.model;
        let returned: Vec<(Id, TensorId)> =
            model.outputs.iter().filter_map(|id| Some((*id, self.tensor(*id)?))).collect();
        if returned.is_empty() {
            return Err(Error::bad("ONNX file", "no output depends on an input"));
        }
        let scores = returned.iter().find(|(id, _)| self.kind(*id) == NumberKind::Float);
        if let Some((id, tensor)) = scores.copied().filter(|_| self.task.mode == Mode::Train) {
            self.loss(id, tensor)?;
        }
        Ok(returned.into_iter().map(|(_, t)| t).collect())
    }

    fn loss(&mut self, id: Id, scores: TensorId) -> Result<(), Error> {
        let shape = self.shape(id).to_vec();
        if elements(&shape) <= 1 {
            // The file has its loss in it.
            return Ok(());
        }
        let tokens = self.model.inputs.iter().any(|(_, s)| s.kind == NumberKind::Int);
        let rank = shape.len();
        let classes_last = rank == 2 || (rank == 3 && tokens);
        let classes = if classes_last { shape.last() } else { shape.get(1) }.copied().unwrap_or(1);
        if classes <= 1 || (rank != 4 && !classes_last) {
            let targets = self.b.input("targets", &shape, Number::Float32)?;
            self.b.node("loss", Op::Loss, &[scores, targets], &[], &[1], Number::Float32)?;
            return Ok(());
        }
        let mut labels = shape;
        let mut scores = scores;
        if classes_last {
            labels.pop();
        } else {
            labels.remove(1);
            let last = [labels.as_slice(), &[classes]].concat();
            scores = self.b.view("scores", scores, &last)?;
        }
        let labels = self.b.input("labels", &labels, Number::Int64)?;
        self.b.node("loss", Op::CrossEntropy, &[scores, labels], &[], &[1], Number::Float32)?;
        Ok(())
    }

    fn doubts(&mut self) {
        for (op, count) in std::mem::take(&mut self.unknown) {
            let what = if count == 1 { "once".to_owned() } else { format!("{count} times") };
            self.b
                .doubt(format!("operator {op} ({what}) is not known; taken to keep what it reads and makes"));
        }
        for doubt in &self.values.doubts {
            self.b.doubt(doubt.clone());
        }
        if self.task.mode == Mode::Infer {
            return;
        }
        if self.perhaps_tied > 0 {
            self.b.doubt(
                "an output matrix as large as the embedding, whose data is not in the file: counted apart, \
                 though it may be tied to it",
            );
        }
        if self.restored > 0 {
            self.b.doubt(format!(
                "batch normalisation was folded into {} convolutions when the file was exported; put back",
                self.restored
            ));
        }
        let normed = self.model.nodes.iter().any(|n| n.op.ends_with("Normalization"));
        if self.unnormed > 1 && !normed {
            self.b.doubt(format!(
                "{} convolutions with a bias of unknown origin and no normalisation anywhere: if batch \
                 normalisation was folded into them, training takes more",
                self.unnormed
            ));
        }
        if self.attentions > 0 && self.dropouts == 0 {
            self.b.doubt("a transformer without dropout: if the export dropped it, training takes more");
        }
        if self.task.gradient_checkpointing {
            self.b.doubt("gradient checkpointing: ONNX has no blocks; all activations are counted");
        }
        if self.task.lora.is_some() {
            self.b.doubt("adapters are not put into ONNX graphs; full training is counted");
        }
    }
}

/// Weights of several sources; no tensor is among them.
fn union(sources: impl IntoIterator<Item = Source>) -> Source {
    let mut all = Vec::new();
    for source in sources {
        if let Source::Weights(ids) = source {
            all.extend(ids);
        }
    }
    all.sort_unstable();
    all.dedup();
    if all.is_empty() { Source::Constant } else { Source::Weights(all) }
}

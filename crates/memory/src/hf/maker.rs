//! The parts that transformers are made of, written as the operators that transformers 5 runs.

use super::{Act, Config, Family, Head, NormKind};
use crate::graph::{Builder, Graph, Keeps, Norm, Number, Op, ParamId, TensorId};
use crate::{Attention, Error, Mode, ModelTask, Precision};

/// A model under construction.
pub(super) struct Maker<'a> {
    pub(super) b: Builder,
    pub(super) c: &'a Config,
    pub(super) task: &'a ModelTask,
    pub(super) batch: u64,
    /// Tokens of the sequence that is being worked on.
    pub(super) seq: u64,
    /// What the model returns and its user keeps: logits, keys and values.
    pub(super) kept: Vec<TensorId>,
    /// Keys and values of the layers being built go through a cache.
    pub(super) remembers: bool,
    /// Ends of the names of layers that get adapters.
    adapters: Vec<String>,
}

/// A tensor of hidden states.
pub(super) type Made = Result<TensorId, Error>;

impl<'a> Maker<'a> {
    pub(super) fn new(c: &'a Config, task: &'a ModelTask, seq: u64) -> Self {
        let adapters = match &task.lora {
            Some(lora) if lora.targets.is_empty() => super::names::adapted(c.family),
            Some(lora) => lora.targets.clone(),
            None => Vec::new(),
        };
        let b = Builder::new(c.family.as_str());
        Self { b, c, task, batch: task.batch_size, seq, kept: Vec::new(), remembers: true, adapters }
    }

    pub(super) fn finish(self) -> Graph {
        let mut graph = self.b.finish(self.kept);
        if self.task.lora.is_some() {
            // The model itself is frozen.
            for param in &mut graph.params {
                param.trainable = param.name.contains(".lora_");
                if param.trainable {
                    // PEFT keeps adapters in 32 bits (`autocast_adapter_dtype`).
                    param.number = Number::Float32;
                }
            }
        }
        graph.doubts.extend(self.c.doubts.iter().cloned());
        graph
    }

    pub(super) fn training(&self) -> bool {
        self.task.mode == Mode::Train
    }

    /// Matrix products run in 16 bits.
    pub(super) fn half(&self) -> bool {
        self.task.precision != Precision::Fp32
    }

    pub(super) fn autocast(&self) -> bool {
        matches!(self.task.precision, Precision::Bf16Autocast | Precision::Fp16Autocast)
    }

    /// Attention written out: because it was asked for, or because transformers has nothing else for the
    /// family (`_supports_sdpa`).
    pub(super) fn eager(&self) -> bool {
        self.task.attention == Attention::Eager
            || self.c.attention == Some(Attention::Eager)
            || self.c.scores_softcap
            || matches!(self.c.family, Family::GptJ | Family::GptNeo | Family::Bloom)
            || matches!(
                self.c.model_type.as_str(),
                "megatron-bert"
                    | "mpnet"
                    | "openai-gpt"
                    | "imagegpt"
                    | "rembert"
                    | "mpt"
                    | "longt5"
                    | "switch_transformers"
                    | "gpt_neox_japanese"
            )
    }

    /// Type of what an elementwise operator makes of a 16-bit and a 32-bit tensor: under autocast the larger
    /// one wins; in pure 16 bits there is none.
    pub(super) fn mixed(&self) -> Number {
        if self.autocast() { Number::Float32 } else { Number::Float }
    }

    /// `x`, with others that a function's variables keep alive until here.
    pub(super) fn until(&mut self, x: TensorId, others: &[TensorId]) -> Made {
        let shape = self.b.shape(x).to_vec();
        let inputs = [&[x], others].concat();
        self.b.node("variables", Op::View, &inputs, &[], &shape, self.b.number(x))
    }

    /// Under autocast a copy in 32 bits, as operators that it runs in 32 bits make for themselves.
    fn widened(&mut self, x: TensorId) -> Made {
        if !self.autocast() {
            return Ok(x);
        }
        let shape = self.b.shape(x).to_vec();
        self.b.node("autocast", Op::Copy, &[x], &[], &shape, Number::Float32)
    }

    /// Keys and values are kept: transformers switches that off under checkpointing, BART when it is given
    /// labels.
    pub(super) fn caches(&self) -> bool {
        let off = self.task.gradient_checkpointing || self.c.family == Family::Bart;
        self.remembers && self.c.cache && !(self.training() && off)
    }

    /// Hidden states `[batch, tokens]` and what follows.
    pub(super) fn states(&self, rest: &[u64]) -> Vec<u64> {
        [&[self.batch, self.seq], rest].concat()
    }

    /// One elementwise operator with a constant, or a sign, or a cast within the type: a new tensor, nothing
    /// kept.
    pub(super) fn scale(&mut self, name: &str, x: TensorId) -> Made {
        self.b.activation(name, Keeps::Nothing, false, x)
    }

    /// A linear layer over an existing matrix.
    pub(super) fn product(&mut self, name: &str, x: TensorId, params: &[ParamId], out: u64) -> Made {
        let mut shape = self.b.shape(x).to_vec();
        if let Some(last) = shape.last_mut() {
            *last = out;
        }
        self.b.node(name, Op::Linear, &[x], params, &shape, Number::Float)
    }

    /// A linear layer; with an adapter beside it where the task says so.
    ///
    /// PEFT (`tuners/lora/layer.py`): the input is cast to the adapter's type, which is 32 bits; two small
    /// products, a scaling, a sum.
    pub(super) fn linear(&mut self, name: &str, x: TensorId, out: u64, bias: bool) -> Made {
        let y = self.b.linear(name, x, out, bias)?;
        let Some(lora) = &self.task.lora else { return Ok(y) };
        let adapted = self.adapters.iter().any(|end| {
            name.strip_suffix(end.as_str()).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
        });
        if !adapted {
            return Ok(y);
        }
        let pure = matches!(self.task.precision, Precision::Bf16 | Precision::Fp16);
        let mut x = x;
        if pure {
            let shape = self.b.shape(x).to_vec();
            x = self.b.node("lora_cast", Op::Copy, &[x], &[], &shape, Number::Float32)?;
        }
        let rank = u64::from(lora.rank);
        let low = self.b.linear(&format!("{name}.lora_A"), x, rank, false)?;
        let high = self.b.linear(&format!("{name}.lora_B"), low, out, false)?;
        let scaled = self.scale("lora_scale", high)?;
        if pure {
            // 16 and 32 bits add up to 32, and are cast back.
            let shape = self.b.shape(y).to_vec();
            let sum = Op::Add { inplace: false };
            let sum = self.b.node("lora_sum", sum, &[y, scaled], &[], &shape, Number::Float32)?;
            return self.b.node("lora_cast_back", Op::Copy, &[sum], &[], &shape, Number::Float);
        }
        let sum = self.add("lora_sum", y, scaled)?;
        Ok(sum)
    }

    pub(super) fn add(&mut self, name: &str, x: TensorId, y: TensorId) -> Made {
        self.b.like(name, Op::Add { inplace: false }, &[x, y])
    }

    pub(super) fn multiply(&mut self, name: &str, x: TensorId, y: TensorId) -> Made {
        self.b.like(name, Op::Mul, &[x, y])
    }

    pub(super) fn dropout(&mut self, on: bool, x: TensorId) -> Made {
        if on && self.training() {
            return self.b.like("dropout", Op::Dropout { inplace: false }, &[x]);
        }
        Ok(x)
    }

    pub(super) fn norm(&mut self, name: &str, x: TensorId) -> Made {
        let features = self.b.shape(x).last().copied().unwrap_or(1);
        match self.c.norm {
            NormKind::Layer => self.b.norm(name, Norm::Layer, x, features, true),
            NormKind::Rms => {
                let pure = matches!(self.task.precision, Precision::Bf16 | Precision::Fp16);
                let x = if pure && self.c.family == Family::T5 { self.t5_scaled(x)? } else { x };
                self.b.norm(name, Norm::Rms, x, features, false)
            }
        }
    }

    /// T5 scales the states as they come, not their copy in 32 bits: in 16 bits both are kept.
    fn t5_scaled(&mut self, x: TensorId) -> Made {
        let mut row = self.b.shape(x).to_vec();
        if let Some(last) = row.last_mut() {
            *last = 1;
        }
        let root = self.b.node("rms_root", Op::Copy, &[x], &[], &row, Number::Float)?;
        self.multiply("rms_scaled", x, root)
    }

    pub(super) fn layer_norm(&mut self, name: &str, x: TensorId) -> Made {
        let features = self.b.shape(x).last().copied().unwrap_or(1);
        self.b.norm(name, Norm::Layer, x, features, true)
    }

    /// The MLP's function, as it is run.
    pub(super) fn act(&mut self, act: Act, x: TensorId) -> Made {
        match act {
            Act::KeepsOutput => self.b.activation("act", Keeps::Output, false, x),
            Act::KeepsInput | Act::Bloom => self.b.activation("act", Keeps::Input, false, x),
            // 0.5 x (1 + tanh(c (x + 0.044715 x^3))), `activations.py`.
            // Autocast takes powers in 32 bits, and what follows stays there.
            Act::GeluNew => {
                let half = self.scale("gelu_half", x)?;
                let wide = self.widened(x)?;
                let shape = self.b.shape(x).to_vec();
                let power = Op::Activation { keeps: Keeps::Input, inplace: false };
                let cube = self.b.node("gelu_cube", power, &[wide], &[], &shape, self.mixed())?;
                let cube = self.scale("gelu_scaled", cube)?;
                let sum = self.add("gelu_sum", x, cube)?;
                let sum = self.scale("gelu_scaled", sum)?;
                let tanh = self.b.activation("gelu_tanh", Keeps::Output, false, sum)?;
                let one = self.scale("gelu_one", tanh)?;
                self.multiply("gelu_product", half, one)
            }
            // x sigmoid(1.702 x)
            Act::QuickGelu => {
                let scaled = self.scale("gelu_scaled", x)?;
                let gate = self.b.activation("gelu_sigmoid", Keeps::Output, false, scaled)?;
                self.multiply("gelu_product", x, gate)
            }
            Act::ReluSquared => {
                let relu = self.b.activation("relu", Keeps::Output, false, x)?;
                self.b.activation("square", Keeps::Input, false, relu)
            }
        }
    }

    /// Token ids `[batch, tokens]`.
    pub(super) fn ids(&mut self, name: &str) -> Made {
        let shape = self.states(&[]);
        self.b.input(name, &shape, Number::Int64)
    }

    /// Positions `[1, tokens]` or `[batch, tokens]`: made on the GPU in each step.
    pub(super) fn positions(&mut self, batch: u64) -> Made {
        let seq = self.seq;
        self.b.input("position_ids", &[batch, seq], Number::Int64)
    }

    /// A table whose rows are looked up; the table's id is what a tied output matrix shares.
    pub(super) fn embedding(
        &mut self,
        name: &str,
        ids: TensorId,
        rows: u64,
        width: u64,
    ) -> Result<(TensorId, ParamId), Error> {
        let table = self.b.param(format!("{name}.weight"), &[rows, width])?;
        let mut shape = self.b.shape(ids).to_vec();
        shape.push(width);
        let made = self.b.node(name, Op::Embedding, &[ids], &[table], &shape, Number::Float)?;
        Ok((made, table))
    }

    /// An additive mask `[batch, 1, tokens, tokens]`, made of positions: no gradient.
    pub(super) fn mask(&mut self, shape: &[u64]) -> Made {
        let ids = self.b.input("mask_positions", &[self.seq], Number::Int64)?;
        self.b.node("attention_mask", Op::Copy, &[ids], &[], shape, Number::Float)
    }

    /// Logits over the vocabulary, and the loss in training.
    pub(super) fn vocabulary(&mut self, x: TensorId, tied: Option<ParamId>, bias: bool) -> Result<(), Error> {
        let (vocab, inner) = (self.c.vocab, self.b.shape(x).last().copied().unwrap_or(1));
        let logits = match tied {
            Some(table) => {
                let mut params = vec![table];
                if bias {
                    params.push(self.b.param("lm_head.bias", &[vocab])?);
                }
                self.product("lm_head", x, &params, vocab)?
            }
            None => {
                let mut params = vec![self.b.param("lm_head.weight", &[vocab, inner])?];
                if bias {
                    params.push(self.b.param("lm_head.bias", &[vocab])?);
                }
                self.product("lm_head", x, &params, vocab)?
            }
        };
        let mut logits = logits;
        if self.c.family == Family::Bart {
            // `final_logits_bias`, a buffer in 32 bits.
            let bias = self.b.buffer("final_logits_bias", &[1, vocab])?;
            let shape = self.b.shape(logits).to_vec();
            let nothing = Op::Activation { keeps: Keeps::Nothing, inplace: false };
            logits = self.b.node("logits_sum", nothing, &[logits], &[bias], &shape, self.mixed())?;
        }
        if self.c.softcap {
            logits = self.squash(logits)?;
        }
        self.kept.push(logits);
        if !self.training() {
            return Ok(());
        }
        // `ForCausalLMLoss` casts logits to 32 bits; others leave them as they are. Labels are shifted, not
        // the logits.
        let mut scores = logits;
        let upcast = self.c.family.is_decoder() || self.c.family == Family::Unknown;
        if upcast && self.half() {
            let shape = self.b.shape(logits).to_vec();
            scores = self.b.node("loss_upcast", Op::Copy, &[logits], &[], &shape, Number::Float32)?;
        }
        let labels = self.ids("labels")?;
        self.loss(scores, labels)
    }

    /// `cap * tanh(x / cap)`
    pub(super) fn squash(&mut self, x: TensorId) -> Made {
        let small = self.scale("softcap", x)?;
        let tanh = self.b.activation("softcap_tanh", Keeps::Output, false, small)?;
        self.scale("softcap", tanh)
    }

    pub(super) fn loss(&mut self, scores: TensorId, labels: TensorId) -> Result<(), Error> {
        let loss = self.b.node("loss", Op::CrossEntropy, &[scores, labels], &[], &[1], Number::Float32)?;
        // It is computed inside of the model: what the last step returned lives until it is there.
        self.kept.push(loss);
        Ok(())
    }

    /// A classifier over one state a sample (`[batch, width]`), and the loss in training.
    pub(super) fn classes(&mut self, name: &str, x: TensorId, bias: bool) -> Result<(), Error> {
        let labels = self.c.labels;
        let logits = self.linear(name, x, labels, bias)?;
        self.kept.push(logits);
        if self.training() {
            let mut shape = self.b.shape(logits).to_vec();
            shape.pop();
            let target = self.b.input("labels", &shape, Number::Int64)?;
            self.loss(logits, target)?;
        }
        Ok(())
    }

    /// The hidden states are what the model returns; a training has a loss of their size.
    pub(super) fn bare(&mut self, x: TensorId) -> Result<(), Error> {
        self.kept.push(x);
        if self.training() {
            let loss = self.b.node("loss", Op::Loss, &[x], &[], &[1], Number::Float32)?;
            self.kept.push(loss);
        }
        Ok(())
    }

    /// State of one token a sample.
    pub(super) fn first(&mut self, x: TensorId) -> Made {
        let width = self.b.shape(x).last().copied().unwrap_or(1);
        let batch = self.batch;
        self.b.node("first_token", Op::Copy, &[x], &[], &[batch, width], Number::Float)
    }

    /// The heads that are the same for all families.
    pub(super) fn plain_head(&mut self, x: TensorId, head: Head) -> Result<(), Error> {
        match head {
            Head::TokenClassification => {
                let x = self.dropout(self.c.dropout.classifier, x)?;
                self.classes("classifier", x, true)
            }
            Head::QuestionAnswering => {
                let logits = self.linear("qa_outputs", x, 2, true)?;
                self.kept.push(logits);
                if self.training() {
                    // Start and end are split; each is made contiguous and has a loss of its own.
                    let (batch, seq) = (self.batch, self.seq);
                    for name in ["start", "end"] {
                        let one =
                            self.b.node(name, Op::Copy, &[logits], &[], &[batch, seq], Number::Float)?;
                        let at = self.b.input(name, &[batch], Number::Int64)?;
                        self.loss(one, at)?;
                    }
                }
                Ok(())
            }
            _ => self.bare(x),
        }
    }
}

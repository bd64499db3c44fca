//! LLMem (Kim et al., IJCAI 2024): fine-tuning of decoders with ColossalAI's Gemini.
//!
//! Half-precision weights, Adam with 32-bit masters, gradient checkpointing. Formulas as in its
//! `size_estimator.py`, with sizes rounded up to 2 MiB:
//!
//! ```text
//! peak  = base + param + in + out + lm [+ tp]
//! param = sum over linear and embedding tensors w but the last: gathered(w) + 2 R(4 |w| / n), + R(2 |w_last|)
//!         gathered: n GPUs, data parallel   R(2 |w| (n - 1) / n)
//!                   tensor parallel tp < n  R(2 |w| ((n - tp) / n - 1 / n))
//! in    = R(8 B S);  out = sum over embedding and decoder blocks R(2 B S H)
//! lm    = R(b B S V) + 2 R(b B (S - 1) V), b bytes a logit
//! tp    = sum over blocks R(2 B S H (tp - 1) / tp)
//! ```
//!
//! Its base is measured on the GPU after the model was loaded. Here it is computed: the CUDA context, the
//! half-precision chunks and the 32-bit masters, both sharded. Its authors report errors of 1.6 % on one
//! GPU and 3 % on several, with the measured base; the bound here is 15 %. Not for adapters, nor for
//! models that are no decoders.

use super::answer;
use crate::estimate::times;
use crate::graph::{Graph, Op};
use crate::{Error, Estimate, MIB, MiB, ModelTask, Parallel, Platform, Precision};

/// To which sizes are rounded up.
const ROUND: u64 = 2 * MIB;
/// Bound over the part that is not context: five times the published error on several GPUs.
const UPPER: f64 = 1.15;
/// Batches are looked for below this.
const MOST_BATCH: u64 = 1 << 20;

/// A decoder, and how it is fine-tuned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decoder {
    /// Elements of the weights of linear and embedding layers, in order; the last is the head.
    pub weights: Vec<u64>,
    /// Hidden size.
    pub hidden: u64,
    /// Embeddings and decoder blocks: each keeps one output.
    pub blocks: u64,
    /// Size of the vocabulary, tokens.
    pub vocabulary: u64,
    /// Bytes of a logit: 4 where the head runs in 32 bits.
    pub logit_bytes: u64,
}

/// How the model is spread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Strategy {
    /// Number of GPUs.
    pub gpus: u64,
    /// GPUs among which each tensor is split; 1: data parallel only.
    pub tensor_parallel: u64,
}

/// Parts of the peak, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Peak {
    /// Context, chunks, masters.
    pub base: u64,
    /// Gathered shards, Adam's states.
    pub param: u64,
    /// Token ids.
    pub input: u64,
    /// One output a block.
    pub output: u64,
    /// Bytes of the logits.
    pub head: u64,
    /// Gathered gradients of tensor parallelism.
    pub tensor: u64,
}

impl Peak {
    /// All of it.
    #[must_use]
    pub const fn total(&self) -> u64 {
        let mut sum = self.base;
        let parts = [self.param, self.input, self.output, self.head, self.tensor];
        let mut i = 0;
        while i < parts.len() {
            sum = sum.saturating_add(parts[i]);
            i += 1;
        }
        sum
    }
}

/// Rounds up to 2 MiB.
fn r(bytes: u128) -> u64 {
    let rounded = bytes.div_ceil(u128::from(ROUND)).saturating_mul(u128::from(ROUND));
    u64::try_from(rounded).unwrap_or(u64::MAX)
}

fn product(factors: &[u64]) -> u128 {
    factors.iter().fold(1_u128, |n, f| n.saturating_mul(u128::from(*f)))
}

fn sum(sizes: impl Iterator<Item = u64>) -> u64 {
    sizes.fold(0, u64::saturating_add)
}

impl Decoder {
    /// A decoder from its graph: weights of linear and embedding nodes, the last of which is the head.
    ///
    /// # Errors
    /// The graph has no linear layer, or no attention.
    pub fn from_graph(graph: &Graph, task: &ModelTask) -> Result<Self, Error> {
        let missing = |what: &str| Error::Missing { estimator: "llmem", what: what.to_owned() };
        let layers: Vec<_> =
            graph.nodes.iter().filter(|node| matches!(node.op, Op::Linear | Op::Embedding)).collect();
        let weight = |node: &&crate::graph::Node| {
            node.params.iter().map(|id| graph.param(*id)).max_by_key(|p| p.elements())
        };
        let head = layers
            .iter()
            .rev()
            .find(|node| node.op == Op::Linear)
            .ok_or_else(|| missing("a model with linear layers"))?;
        let out = head.outputs.first().map(|id| graph.tensor(*id));
        let vocabulary = out.and_then(|t| t.shape.last().copied()).unwrap_or(1);
        let hidden = head.inputs.first().and_then(|id| graph.tensor(*id).shape.last().copied()).unwrap_or(1);
        // Written out, it is the softmax over a matrix of scores for each head.
        let four = |node: &crate::graph::Node| {
            node.outputs.first().is_some_and(|id| graph.tensor(*id).shape.len() == 4)
        };
        let is_attention = |node: &&crate::graph::Node| match node.op {
            Op::Attention { .. } => true,
            Op::Softmax => four(node),
            _ => false,
        };
        let attentions = graph.nodes.iter().filter(is_attention).count();
        if attentions == 0 {
            return Err(missing("a decoder: this model has no attention"));
        }
        let embeddings = layers.iter().filter(|node| node.op == Op::Embedding).count();
        Ok(Self {
            weights: layers.iter().filter_map(weight).map(crate::graph::Param::elements).collect(),
            hidden,
            blocks: (attentions + embeddings) as u64,
            vocabulary,
            logit_bytes: if task.precision == Precision::Fp32 { 4 } else { 2 },
        })
    }

    /// The peak for a batch of sequences of so many tokens.
    #[must_use]
    pub fn peak(&self, strategy: Strategy, batch: u64, tokens: u64, context: MiB) -> Peak {
        let n = u128::from(strategy.gpus.max(1));
        let tp = u128::from(strategy.tensor_parallel.clamp(1, strategy.gpus.max(1)));
        let all: u128 = self.weights.iter().map(|w| u128::from(*w)).sum();
        let base =
            u128::from(context.0) * u128::from(MIB) + u128::from(r(2 * all / n)) + u128::from(r(4 * all / n));
        // Between DP and pure TP the shards of the other data-parallel ranks are gathered.
        let others = if tp == 1 { n - 1 } else { (n - tp).saturating_sub(1) };
        let (last, rest) = self.weights.split_last().map_or((0, &[][..]), |(last, rest)| (*last, rest));
        let param = sum(rest.iter().map(|w| {
            let w = u128::from(*w);
            r(2 * w * others / n).saturating_add(r(4 * w / n).saturating_mul(2))
        }))
        .saturating_add(r(2 * u128::from(last)));
        let b = self.logit_bytes;
        let a_block = product(&[2, batch, tokens, self.hidden]);
        Peak {
            base: u64::try_from(base).unwrap_or(u64::MAX),
            param,
            input: r(product(&[8, batch, tokens])),
            output: r(a_block).saturating_mul(self.blocks),
            head: r(product(&[b, batch, tokens, self.vocabulary])).saturating_add(
                r(product(&[b, batch, tokens.saturating_sub(1), self.vocabulary])).saturating_mul(2),
            ),
            tensor: if tp > 1 { r(a_block / tp * (tp - 1)).saturating_mul(self.blocks) } else { 0 },
        }
    }

    /// The largest batch whose peak is within a GPU's memory; 0 where none is.
    #[must_use]
    pub fn largest_batch(&self, strategy: Strategy, tokens: u64, platform: &Platform) -> u64 {
        let room = platform.gpu.total_mib.0.saturating_mul(MIB);
        let fits = |batch| self.peak(strategy, batch, tokens, platform.context_mib).total() <= room;
        // The peak grows with the batch, so halving finds what LLMem finds by counting up.
        let (mut low, mut high) = (0, MOST_BATCH);
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            if fits(middle) {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        low
    }
}

/// The estimate for a task; its several GPUs are data parallel.
///
/// # Errors
/// No sequence length.
pub fn estimate(
    decoder: &Decoder,
    family: &str,
    task: &ModelTask,
    platform: &Platform,
) -> Result<Estimate, Error> {
    let tokens = task.seq_len.ok_or_else(|| Error::Missing {
        estimator: "llmem",
        what: "the sequence length (--seq-len)".to_owned(),
    })?;
    let gpus = if task.parallel == Parallel::None { 1 } else { u64::from(task.gpus) };
    let strategy = Strategy { gpus, tensor_parallel: 1 };
    let peak = decoder.peak(strategy, task.batch_size, tokens, platform.context_mib);
    let mib = |bytes: u64| bytes.div_ceil(MIB);
    let total = MiB::from_bytes(peak.total());
    let reasons = vec![
        format!(
            "base {} MiB (context, half-precision weights and masters; computed where LLMem measures it), \
             Adam and gathered weights {} MiB, block outputs {} MiB, logits {} MiB",
            mib(peak.base),
            mib(peak.param),
            mib(peak.output),
            mib(peak.head)
        ),
        "for ColossalAI's Gemini in half precision with gradient checkpointing, whatever the task says"
            .to_owned(),
        format!("largest batch on this GPU: {}", decoder.largest_batch(strategy, tokens, platform)),
        format!("bound: {:.0} %, five times the published error", (UPPER - 1.0) * 100.0),
    ];
    let upper = platform.context_mib + times(total - platform.context_mib, UPPER);
    Ok(answer("llmem", family, total, upper, reasons))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn decoder() -> Decoder {
        // Embedding and head of 4 Mi elements, one weight of 2 Mi.
        Decoder {
            weights: vec![4 * MIB, 2 * MIB, 4 * MIB],
            hidden: 1024,
            blocks: 3,
            vocabulary: 4096,
            logit_bytes: 2,
        }
    }

    #[test]
    fn parts_on_one_gpu_and_on_four() {
        let one = Strategy { gpus: 1, tensor_parallel: 1 };
        let p = decoder().peak(one, 2, 1024, MiB(500));
        // 10 Mi weights: 20 MiB in half precision, 40 MiB of masters.
        assert_eq!(p.base, 560 * MIB);
        // Nothing to gather; 2 x (16 + 8) MiB of states; the head's 8 MiB.
        assert_eq!(p.param, 56 * MIB);
        assert_eq!(p.input, 2 * MIB);
        assert_eq!(p.output, 3 * 4 * MIB);
        assert_eq!(p.head, 16 * MIB + 2 * 16 * MIB);
        assert_eq!(p.tensor, 0);

        let dp = decoder().peak(Strategy { gpus: 4, tensor_parallel: 1 }, 2, 1024, MiB(0));
        // Gathered 6 + 3 -> 4; states 2 x (4 + 2); head 8.
        assert_eq!(dp.param, (6 + 4 + 12 + 8) * MIB);
        let tp = decoder().peak(Strategy { gpus: 4, tensor_parallel: 2 }, 2, 1024, MiB(0));
        // (4 - 2) / 4 - 1 / 4 of 8 and 4 MiB.
        assert_eq!(tp.param, (2 + 2 + 12 + 8) * MIB);
        assert_eq!(tp.tensor, 3 * 2 * MIB);
    }

    #[test]
    fn the_largest_batch_fits_and_the_next_does_not() {
        let platform = Platform::lookup("A100-40GB", (2, 6)).unwrap();
        let one = Strategy { gpus: 1, tensor_parallel: 1 };
        let b = decoder().largest_batch(one, 1024, &platform);
        let room = platform.gpu.total_mib.0 * MIB;
        assert!(decoder().peak(one, b, 1024, platform.context_mib).total() <= room);
        assert!(decoder().peak(one, b + 1, 1024, platform.context_mib).total() > room);
        let huge = Decoder { weights: vec![u64::MAX / 8; 3], ..decoder() };
        assert_eq!(huge.largest_batch(one, 1024, &platform), 0);
    }
}

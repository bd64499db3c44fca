//! Forward rules: what each operator allocates, keeps for its backward pass, and lets go.
//!
//! Source: `derivatives.yaml` for what is kept, the CUDA kernels for what else they allocate,
//! `autocast_mode.h` for types under autocast. Checked against what whole runs held at their peak (`tests/replay.rs`,
//! `carma lab estimate-bench`), not operator by operator.

use super::plan::Types;
use super::player::Player;
use super::store::Storage;
use crate::Error;
use crate::Mode;
use crate::alloc::Event;
use crate::graph::{Keeps, Node, Norm, Number, Op, TensorId};

impl Player<'_, '_> {
    /// Runs the forward rule of a node.
    pub(super) fn rule(&mut self, at: usize) -> Result<(), Error> {
        let graph = self.graph;
        let node = &graph.nodes[at];
        let train = self.task.mode == Mode::Train;
        match node.op {
            Op::Input => Ok(()),
            Op::Linear => self.linear(at, node),
            Op::Conv { groups } => self.conv(at, node, groups),
            Op::MatMul => self.matmul(at, node),
            Op::Norm(Norm::Rms) => self.rms_norm(at, node),
            Op::Norm(norm) => self.norm(at, node, norm),
            Op::Activation { keeps, inplace: true } => self.activation_inplace(at, node, keeps),
            Op::Activation { keeps, inplace: false } => self.activation(at, node, keeps),
            Op::Softmax => self.softmax(at, node),
            Op::Dropout { .. } if !train => self.alias(node),
            Op::Dropout { inplace: true } => {
                // noise, of the input's type, multiplies the input in place.
                let noise = self.temporary(node.inputs[0], self.width_of(node.inputs[0]))?;
                self.keep(at, noise);
                self.store.release(noise)?;
                self.alias(node)
            }
            Op::Dropout { inplace: false } => {
                let out = self.output(node, self.width_of(node.inputs[0]))?;
                let mask = self.bytes_new(self.elements_of(node.inputs[0]))?;
                self.keep(at, mask);
                self.store.release(mask)?;
                self.give(node, out)
            }
            Op::MaxPool => {
                let out = self.output(node, self.width_of(node.inputs[0]))?;
                let indices = self.bytes_new(8 * self.elements_of(node.outputs[0]))?;
                self.keep_value(at, node.inputs[0]);
                self.keep(at, indices);
                self.store.release(indices)?;
                self.give(node, out)
            }
            Op::AvgPool => {
                let out = self.output(node, self.width_of(node.inputs[0]))?;
                if !self.is_mean(node) {
                    self.keep_value(at, node.inputs[0]);
                }
                self.give(node, out)
            }
            Op::Add { inplace: true } => self.alias(node),
            Op::Add { inplace: false } | Op::Cat => {
                let out = self.output(node, self.promoted(node))?;
                self.give(node, out)
            }
            Op::Mul => {
                let out = self.output(node, self.promoted(node))?;
                let a = node.inputs[0];
                if let Some(b) = node.inputs.get(1).copied() {
                    if self.plan.needs(b) {
                        self.keep_value(at, a);
                    }
                    if self.plan.needs(a) {
                        self.keep_value(at, b);
                    }
                } else if node.params.iter().any(|p| self.trainable(*p)) {
                    // A factor that is trained (layer scale): its gradient needs what it multiplied.
                    self.keep_value(at, a);
                }
                self.give(node, out)
            }
            Op::View => {
                let storage = self.value_of(node.inputs[0])?;
                for out in &node.outputs {
                    let alias = self.store.hold(storage);
                    self.width[out.0 as usize] = self.width_of(node.inputs[0]);
                    self.set(*out, alias)?;
                }
                Ok(())
            }
            Op::Copy => {
                // A cast back from 32 bits, and numbers made of integers (a mask of positions), are of the
                // model's type.
                let x = node.inputs[0];
                let same = self.graph.tensor(x).number == Number::Float;
                let width = if same { self.width_of(x) } else { self.plan.types.weight };
                let out = self.output(node, width)?;
                self.give(node, out)
            }
            Op::Embedding => {
                let width = node.params.first().map_or(self.plan.types.weight, |p| self.param_width(*p));
                let out = self.output(node, width)?;
                self.keep_value(at, node.inputs[0]);
                self.give(node, out)
            }
            Op::Attention { heads, dropout, mask } => self.attention(at, node, heads, dropout, mask),
            Op::Recurrent { gates, hidden, layers } => self.recurrent(at, node, gates, hidden, layers),
            Op::CrossEntropy => self.cross_entropy(at, node),
            Op::Loss => {
                let width = self.width_in_32(node.inputs[0]);
                let casts = node
                    .inputs
                    .iter()
                    .map(|t| if self.is_float(*t) { self.cast(*t, width) } else { self.hold_value(*t) })
                    .collect::<Result<Vec<_>, _>>()?;
                let out = self.output(node, width)?;
                for cast in &casts {
                    self.keep(at, *cast);
                }
                self.store.release_all(casts)?;
                self.give(node, out)
            }
            Op::Unknown => {
                let out = self.output(node, self.width_of(node.inputs[0]))?;
                self.keep_value(at, node.inputs[0]);
                self.keep(at, out);
                self.give(node, out)
            }
        }
    }

    fn linear(&mut self, at: usize, node: &Node) -> Result<(), Error> {
        let x = node.inputs[0];
        let width = self.width_in_gemm(x);
        let input = self.cast(x, width)?;
        let weights = self.weights(node, width)?;
        let out = self.output(node, width)?;
        self.gemm()?;
        if weights.len() > 1 {
            // The bias is added by cuBLASLt, which has a workspace of its own in older releases.
            let workspace = self.bytes_new(self.lt_workspace)?;
            self.store.release(workspace)?;
        }
        if node.params.first().is_none_or(|p| self.trainable(*p)) {
            self.keep(at, input);
        }
        if self.plan.needs(x)
            && let Some(weight) = weights.first()
        {
            self.keep(at, *weight);
        }
        self.store.release(input)?;
        self.store.release_all(weights)?;
        self.give(node, out)
    }

    fn conv(&mut self, at: usize, node: &Node, groups: u64) -> Result<(), Error> {
        let width = self.width_in_gemm(node.inputs[0]);
        let input = self.cast(node.inputs[0], width)?;
        let weights = self.weights(node, width)?;
        let out = self.output(node, width)?;
        self.conv_workspace(node, groups, width)?;
        self.keep(at, input);
        if let Some(weight) = weights.first() {
            self.keep(at, *weight);
        }
        self.store.release(input)?;
        self.store.release_all(weights)?;
        self.give(node, out)
    }

    /// cuDNN's workspace, where tensors are not in NHWC already: its kernels for tensor cores copy input
    /// (channels rounded up to 8 in 16 bits), output and weight to NHWC; those for kernels of size 1 the
    /// larger of input and output. Read off the peaks of allocated memory of twelve vision models on an
    /// H200 in inference (the half to tune on): in 32 bits eleven agree to 0.2 %. In training the backward
    /// pass adds workspaces that are not known; there the largest convolution is a bound beside the
    /// replay.
    fn conv_workspace(&mut self, node: &Node, groups: u64, width: u64) -> Result<(), Error> {
        if self.task.channels_last {
            return Ok(());
        }
        let (input, output) = (self.elements_of(node.inputs[0]), self.elements_of(node.outputs[0]));
        let shape = node.params.first().map_or(&[][..], |p| self.graph.param(*p).shape.as_slice());
        let weight: u64 = shape.iter().product();
        if self.task.mode == Mode::Train {
            // Grouped kernels do without.
            if groups <= 1 {
                let bytes = (input + output + weight).saturating_mul(width);
                self.store.event(&Event::Convolution { bytes })?;
            }
            return Ok(());
        }
        let channels = shape.get(1).copied().unwrap_or(1).max(1);
        let out_channels = shape.first().copied().unwrap_or(1);
        let one = shape.iter().skip(2).all(|size| *size == 1);
        // Depthwise kernels, and those for odd numbers of output channels (ShuffleNet's 24), copy nothing.
        if groups > 1 && channels == 1 || !one && !out_channels.is_multiple_of(16) {
            return Ok(());
        }
        let elements = if one {
            input.max(output)
        } else {
            let padded = if width == 2 { channels.next_multiple_of(8) } else { channels };
            (input / channels).saturating_mul(padded) + output + weight
        };
        let workspace = self.bytes_new(elements.saturating_mul(width))?;
        self.store.release(workspace)
    }

    fn matmul(&mut self, at: usize, node: &Node) -> Result<(), Error> {
        let (a, b) = (node.inputs[0], node.inputs[1]);
        // A product inside of an operator is out of autocast's reach; its type is written down.
        let said = Types::fixed(self.graph.tensor(node.outputs[0]).number);
        let width = said.unwrap_or_else(|| self.width_in_gemm(a));
        let left = self.cast(a, width)?;
        let right = self.cast(b, width)?;
        let out = self.output(node, width)?;
        self.gemm()?;
        if self.plan.needs(b) {
            self.keep(at, left);
        }
        if self.plan.needs(a) {
            self.keep(at, right);
        }
        self.store.release_all([left, right])?;
        self.give(node, out)
    }

    fn norm(&mut self, at: usize, node: &Node, norm: Norm) -> Result<(), Error> {
        let x = node.inputs[0];
        // Batch normalisation takes what comes; under autocast the others run in 32 bits.
        let width = if norm == Norm::Batch { self.width_of(x) } else { self.width_in_32(x) };
        let input = self.cast(x, width)?;
        let out = self.output(node, width)?;
        self.keep(at, input);
        if norm != Norm::Batch || self.task.mode == Mode::Train {
            let statistics = 4 * self.statistics(node, norm);
            for _ in 0..2 {
                let one = self.bytes_new(statistics)?;
                self.keep(at, one);
                self.store.release(one)?;
            }
        }
        self.store.release(input)?;
        self.give(node, out)
    }

    /// Written out: `x.float()`, `pow(2).mean(-1)`, `rsqrt`, product, cast back, product with the weight.
    fn rms_norm(&mut self, at: usize, node: &Node) -> Result<(), Error> {
        let x = node.inputs[0];
        let (elements, width) = (self.elements_of(x), self.width_of(x));
        let rows = 4 * self.statistics(node, Norm::Rms);
        let input = self.cast(x, 4)?;
        let squares = self.bytes_new(4 * elements)?;
        let mean = self.bytes_new(rows)?;
        self.store.release(squares)?;
        let root = self.bytes_new(rows)?;
        self.store.release(mean)?;
        let mut scaled = self.bytes_new(4 * elements)?;
        self.keep(at, input);
        self.keep(at, root);
        self.store.release_all([input, root])?;
        if width != 4 {
            let cast = self.bytes_new(width * elements)?;
            self.store.release(scaled)?;
            scaled = cast;
        }
        let weight = node.params.first().map_or(width, |p| self.param_width(*p));
        let out = self.output(node, width.max(weight))?;
        if node.params.first().is_none_or(|p| self.trainable(*p)) {
            self.keep(at, scaled);
        }
        self.store.release(scaled)?;
        self.give(node, out)
    }

    fn activation(&mut self, at: usize, node: &Node, keeps: Keeps) -> Result<(), Error> {
        let out = self.output(node, self.width_of(node.inputs[0]))?;
        match keeps {
            Keeps::Output => self.keep(at, out),
            Keeps::Input => self.keep_value(at, node.inputs[0]),
            Keeps::Nothing => {}
        }
        self.give(node, out)
    }

    fn activation_inplace(&mut self, at: usize, node: &Node, keeps: Keeps) -> Result<(), Error> {
        match keeps {
            Keeps::Output => self.keep_value(at, node.inputs[0]),
            // What it needs is about to be written over: autograd clones it first.
            Keeps::Input if self.records(at) => {
                let clone = self.temporary(node.inputs[0], self.width_of(node.inputs[0]))?;
                self.keep(at, clone);
                self.store.release(clone)?;
            }
            Keeps::Input | Keeps::Nothing => {}
        }
        self.alias(node)
    }

    fn softmax(&mut self, at: usize, node: &Node) -> Result<(), Error> {
        let x = node.inputs[0];
        let width = self.width_in_32(x);
        let input = self.softmax_input(x, width)?;
        let out = self.output(node, width)?;
        self.keep(at, out);
        self.store.release(input)?;
        self.give(node, out)
    }

    /// float16 is read as it is by a softmax in 32 bits; bfloat16 is copied first.
    fn softmax_input(&mut self, x: TensorId, width: u64) -> Result<Storage, Error> {
        if self.plan.types.bfloat { self.cast(x, width) } else { self.hold_value(x) }
    }

    fn cross_entropy(&mut self, at: usize, node: &Node) -> Result<(), Error> {
        let x = node.inputs[0];
        let width = self.width_in_32(x);
        let input = self.softmax_input(x, width)?;
        let log = self.temporary(x, width)?;
        self.store.release(input)?;
        let out = self.output(node, width)?;
        let total_weight = self.bytes_new(width)?;
        self.keep(at, total_weight);
        self.keep(at, log);
        if let Some(labels) = node.inputs.get(1) {
            self.keep_value(at, *labels);
        }
        self.store.release_all([total_weight, log])?;
        self.give(node, out)
    }

    /// cuDNN's LSTM, GRU and RNN: the reserve space holds gates, cells and hidden states of each layer
    /// and step (its exact size is the library's; this is what the backward pass needs at least).
    fn recurrent(
        &mut self,
        at: usize,
        node: &Node,
        gates: u64,
        hidden: u64,
        layers: u64,
    ) -> Result<(), Error> {
        let x = node.inputs[0];
        let width = self.width_in_gemm(x);
        let input = self.cast(x, width)?;
        let weights = self.weights(node, width)?;
        let features = self.graph.tensor(x).shape.last().copied().unwrap_or(1).max(1);
        let rows = self.elements_of(x) / features;
        let per_row = hidden.saturating_mul(layers).saturating_mul(gates + 2);
        let out = self.output(node, width)?;
        self.gemm()?;
        let reserve = self.bytes_new(rows.saturating_mul(per_row).saturating_mul(width))?;
        for kept in [input, out, reserve].into_iter().chain(weights.iter().copied()) {
            self.keep(at, kept);
        }
        self.store.release_all([input, reserve])?;
        self.store.release_all(weights)?;
        self.give(node, out)
    }
}

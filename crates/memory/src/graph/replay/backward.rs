//! The backward pass: nodes in reverse, gradients that add up, kept tensors that go.

use super::player::{Player, named};
use super::store::{Storage, StorageKind};
use crate::Error;
use crate::graph::{Node, Norm, Op, ParamId, TensorId};
use std::ops::Range;

/// Where a gradient goes.
enum Target {
    Tensor(TensorId),
    Param(ParamId),
}

/// A gradient on its way, in numbers of so many bytes.
struct Gradient {
    target: Target,
    storage: Storage,
    width: u64,
}

impl Player<'_, '_> {
    /// `loss.backward()`.
    pub(super) fn run_backward(&mut self) -> Result<(), Error> {
        self.seed()?;
        let mut at = self.graph.nodes.len();
        while at > 0 {
            at -= 1;
            if self.checkpoints[at].is_empty() {
                self.backward_node(at)?;
            } else {
                // The last node of a checkpointed block: its start is where the block begins.
                let block = self.graph.nodes[at].block;
                let start = self.graph.nodes[..at]
                    .iter()
                    .rposition(|n| n.block != block)
                    .map_or(0, |before| before + 1);
                self.backward_block(start..at + 1)?;
                at = start;
            }
        }
        for at in 0..self.grads.len() {
            if let Some(storage) = self.grads[at].take() {
                self.store.release(storage)?;
            }
        }
        self.gradients_done()
    }

    /// The first gradient: a one for each loss, or as large as the outputs where there is no loss.
    fn seed(&mut self) -> Result<(), Error> {
        let seeds =
            if self.plan.losses.is_empty() { self.plan.outputs.clone() } else { self.plan.losses.clone() };
        for tensor in seeds {
            if self.plan.needs(tensor) && self.grads[tensor.0 as usize].is_none() {
                let ones = self.temporary(tensor, self.width_of(tensor))?;
                self.grads[tensor.0 as usize] = Some(ones);
            }
        }
        Ok(())
    }

    /// A block runs without autograd and keeps only what it reads from outside.
    pub(super) fn checkpoint(&mut self, nodes: Range<usize>) -> Result<(), Error> {
        let graph = self.graph;
        let last = nodes.end - 1;
        let needed = graph.nodes[nodes.clone()].iter().flat_map(|n| &n.outputs).any(|t| self.plan.needs(*t));
        if needed {
            let mut kept: Vec<(TensorId, Storage)> = Vec::new();
            for input in graph.nodes[nodes.clone()].iter().flat_map(|n| &n.inputs) {
                if let Some(storage) = self.value[input.0 as usize]
                    && kept.iter().all(|(t, _)| t != input)
                {
                    kept.push((*input, self.store.hold(storage)));
                }
            }
            self.checkpoints[last] = kept;
        }
        self.recording = false;
        for at in nodes {
            self.run_node(at)?;
        }
        self.recording = true;
        Ok(())
    }

    /// The block runs again, with autograd, then backward.
    fn backward_block(&mut self, nodes: Range<usize>) -> Result<(), Error> {
        let graph = self.graph;
        let kept = std::mem::take(&mut self.checkpoints[nodes.end - 1]);
        let block = &graph.nodes[nodes.clone()];
        for node in block {
            for out in &node.outputs {
                // What leaves the block is a variable of the function that runs again.
                let outside = self.plan.readers[out.0 as usize]
                    > block.iter().flat_map(|n| &n.inputs).filter(|t| *t == out).count() as u32;
                self.readers[out.0 as usize] = u32::from(outside);
            }
        }
        for (tensor, _) in &kept {
            self.readers[tensor.0 as usize] = 1;
        }
        for input in block.iter().flat_map(|n| &n.inputs) {
            self.readers[input.0 as usize] += 1;
        }
        for (tensor, storage) in &kept {
            self.value[tensor.0 as usize] = Some(*storage);
        }
        self.recording = true;
        // The forward pass of the block runs on autograd's thread.
        for at in nodes.clone() {
            self.run_node(at)?;
        }
        for at in nodes.clone().rev() {
            self.backward_node(at)?;
        }
        for node in block {
            for out in &node.outputs {
                self.read(*out)?;
            }
        }
        for (tensor, _) in &kept {
            self.read(*tensor)?;
        }
        self.end_of_autocast()
    }

    fn backward_node(&mut self, at: usize) -> Result<(), Error> {
        let graph = self.graph;
        let node = &graph.nodes[at];
        if node.op == Op::Input {
            return Ok(());
        }
        let mut incoming = Vec::with_capacity(1);
        for out in &node.outputs {
            incoming.extend(self.grads[out.0 as usize].take());
        }
        let Some(grad) = incoming.first().copied() else {
            return self.forget(at);
        };
        self.gather(at)?;
        let mut gradients = Vec::with_capacity(3);
        self.backward_rule(node, grad, &mut gradients).map_err(|error| named(error, &node.name))?;
        self.store.release_all(incoming)?;
        self.forget(at)?;
        gradients.into_iter().try_for_each(|gradient| self.deliver(gradient))
    }

    /// What the node's backward pass allocates, in PyTorch's order.
    fn backward_rule(&mut self, node: &Node, grad: Storage, to: &mut Vec<Gradient>) -> Result<(), Error> {
        let x = node.inputs[0];
        match node.op {
            Op::Input => Ok(()),
            Op::Linear | Op::Recurrent { .. } | Op::Conv { .. } => {
                let width = self.width_of(node.outputs[0]);
                self.like_input(x, width, to)?;
                if self.plan.needs(x) && !matches!(node.op, Op::Conv { .. }) {
                    self.gemm()?;
                }
                for param in &node.params {
                    self.of_param(*param, width, to)?;
                    if !matches!(node.op, Op::Conv { .. }) {
                        self.gemm()?;
                    }
                }
                Ok(())
            }
            Op::MatMul => {
                let width = self.width_of(node.outputs[0]);
                for input in &node.inputs[..2] {
                    self.like_input(*input, width, to)?;
                    self.gemm()?;
                }
                Ok(())
            }
            Op::Norm(Norm::Rms) => self.rms_backward(node, to),
            Op::Norm(_) => {
                let width = self.width_of(node.outputs[0]);
                self.like_input(x, width, to)?;
                for param in &node.params {
                    self.of_param(*param, self.param_width(*param), to)?;
                }
                Ok(())
            }
            Op::Activation { .. } => {
                let width = self.width_of(node.outputs[0]);
                self.like_input(x, width, to)?;
                // PReLU's slope: a product of the input's size is summed.
                for param in &node.params {
                    if !self.trainable(*param) {
                        continue;
                    }
                    let product = self.temporary(x, width)?;
                    self.of_param(*param, self.param_width(*param), to)?;
                    self.store.release(product)?;
                }
                Ok(())
            }
            Op::Softmax | Op::Dropout { .. } | Op::MaxPool | Op::AvgPool | Op::Copy => {
                self.like_input(x, self.width_of(node.outputs[0]), to)
            }
            Op::Add { .. } => {
                for input in &node.inputs {
                    self.passed_on(node, *input, grad, to)?;
                }
                self.of_params(node, self.width_of(node.outputs[0]), to)
            }
            Op::Cat => {
                self.of_params(node, self.width_of(node.outputs[0]), to)?;
                // Each input's gradient is a part of the whole, in the same storage.
                for input in &node.inputs {
                    if self.plan.needs(*input) {
                        let storage = self.store.hold(grad);
                        to.push(Gradient {
                            target: Target::Tensor(*input),
                            storage,
                            width: self.width_of(*input),
                        });
                    }
                }
                Ok(())
            }
            Op::Mul => {
                // All products first; what was broadcast is summed after the node (`validate_outputs`).
                let width = self.width_of(node.outputs[0]);
                let mut products = Vec::with_capacity(2);
                for input in &node.inputs {
                    if self.plan.needs(*input) {
                        products.push((Target::Tensor(*input), self.temporary(node.outputs[0], width)?));
                    }
                }
                for param in &node.params {
                    if self.trainable(*param) {
                        products.push((Target::Param(*param), self.temporary(node.outputs[0], width)?));
                    }
                }
                for (target, product) in products {
                    let elements = match target {
                        Target::Tensor(t) => self.elements_of(t),
                        Target::Param(p) => self.graph.param(p).elements(),
                    };
                    let mut storage = product;
                    if elements < self.elements_of(node.outputs[0]) {
                        storage = self.bytes_new(elements * width)?;
                        self.store.release(product)?;
                    }
                    to.push(Gradient { target, storage, width });
                }
                Ok(())
            }
            Op::View if node.outputs.len() == 1 => self.passed_on(node, x, grad, to),
            // Parts of a tensor: their gradients are put together.
            Op::View => self.like_input(x, self.width_of(x), to),
            Op::Embedding => {
                for param in &node.params {
                    self.of_param(*param, self.param_width(*param), to)?;
                }
                Ok(())
            }
            Op::Attention { heads, dropout, mask } => {
                for (tensor, storage, width) in self.attention_backward(node, heads, dropout, mask)? {
                    to.push(Gradient { target: Target::Tensor(tensor), storage, width });
                }
                Ok(())
            }
            Op::CrossEntropy => {
                let width = self.width_in_32(x);
                let of_log = self.temporary(x, width)?;
                self.like_input(x, width, to)?;
                self.store.release(of_log)
            }
            Op::Loss => {
                let width = self.width_of(node.outputs[0]);
                for input in &node.inputs {
                    self.like_input(*input, width, to)?;
                }
                Ok(())
            }
            Op::Unknown => {
                let width = self.width_of(node.outputs[0]);
                for input in &node.inputs {
                    self.like_input(*input, width, to)?;
                }
                for param in &node.params {
                    self.of_param(*param, self.param_width(*param), to)?;
                }
                Ok(())
            }
        }
    }

    /// A gradient of the input's size.
    fn like_input(&mut self, input: TensorId, width: u64, to: &mut Vec<Gradient>) -> Result<(), Error> {
        if self.plan.needs(input) {
            let storage = self.temporary(input, width)?;
            to.push(Gradient { target: Target::Tensor(input), storage, width });
        }
        Ok(())
    }

    /// Gradients of a node's parameters, of the width in which it ran.
    fn of_params(&mut self, node: &Node, width: u64, to: &mut Vec<Gradient>) -> Result<(), Error> {
        node.params.iter().try_for_each(|param| self.of_param(*param, width, to))
    }

    fn of_param(&mut self, param: ParamId, width: u64, to: &mut Vec<Gradient>) -> Result<(), Error> {
        if self.trainable(param) {
            let storage = self.bytes_new(self.graph.param(param).elements() * width)?;
            to.push(Gradient { target: Target::Param(param), storage, width });
        }
        Ok(())
    }

    /// The gradient goes on as it is, or is summed over what was broadcast, or put into zeros of the
    /// input's size where the output is a part of it.
    fn passed_on(
        &mut self,
        node: &Node,
        input: TensorId,
        grad: Storage,
        to: &mut Vec<Gradient>,
    ) -> Result<(), Error> {
        if !self.plan.needs(input) {
            return Ok(());
        }
        let width = self.width_of(node.outputs[0]);
        let storage = if self.elements_of(input) == self.elements_of(node.outputs[0]) {
            self.store.hold(grad)
        } else {
            self.temporary(input, width)?
        };
        to.push(Gradient { target: Target::Tensor(input), storage, width });
        Ok(())
    }

    fn rms_backward(&mut self, node: &Node, to: &mut Vec<Gradient>) -> Result<(), Error> {
        let x = node.inputs[0];
        let width = self.width_of(x);
        let elements = self.elements_of(x);
        let rows = 4 * self.statistics(node, Norm::Rms);
        let mut of_scaled = self.bytes_new(elements * width)?;
        if let Some(param) = node.params.first().filter(|p| self.trainable(**p)) {
            let product = self.bytes_new(elements * self.width_of(node.outputs[0]))?;
            self.of_param(*param, self.param_width(*param), to)?;
            self.store.release(product)?;
        }
        if !self.plan.needs(x) {
            return self.store.release(of_scaled);
        }
        if width != 4 {
            let cast = self.bytes_new(4 * elements)?;
            self.store.release(of_scaled)?;
            of_scaled = cast;
        }
        let of_x = self.bytes_new(4 * elements)?;
        let product = self.bytes_new(4 * elements)?;
        let of_root = self.bytes_new(rows)?;
        self.store.release_all([product, of_scaled])?;
        // mean: spread over the row; pow: the input twice, times what arrived.
        let spread = self.bytes_new(4 * elements)?;
        self.store.release(of_root)?;
        let doubled = self.bytes_new(4 * elements)?;
        let of_square = self.bytes_new(4 * elements)?;
        self.store.release_all([doubled, spread])?;
        // The two gradients of the input add up in place.
        self.store.release(of_square)?;
        to.push(Gradient { target: Target::Tensor(x), storage: of_x, width: 4 });
        Ok(())
    }

    /// Brings a gradient to where it belongs, in the type of what it is a gradient of; adds it to one
    /// that is there already, in place where nothing else sees that one (`InputBuffer::accumulate`).
    fn deliver(&mut self, gradient: Gradient) -> Result<(), Error> {
        let Gradient { target, mut storage, width } = gradient;
        let (bytes, wanted) = match target {
            Target::Tensor(t) => (self.elements_of(t).saturating_mul(self.width_of(t)), self.width_of(t)),
            Target::Param(p) => (self.param_bytes(p), self.param_width(p)),
        };
        if width != wanted {
            let cast = self.bytes_new(bytes)?;
            self.store.release(storage)?;
            storage = cast;
        }
        let old = match target {
            Target::Tensor(t) => self.grads[t.0 as usize].take(),
            Target::Param(p) => self.param_grads[p.0 as usize].take(),
        };
        if let Some(old) = old {
            if self.store.sole(old) && self.store.bytes(old) == bytes {
                self.store.release(storage)?;
                storage = old;
            } else {
                let sum = self.bytes_new(bytes)?;
                self.store.release_all([old, storage])?;
                storage = sum;
            }
        }
        match target {
            Target::Tensor(t) => self.grads[t.0 as usize] = Some(storage),
            Target::Param(p) => {
                self.store.turn_into(storage, StorageKind::Gradients);
                self.param_grads[p.0 as usize] = Some(storage);
                self.gradient_ready(p)?;
            }
        }
        Ok(())
    }
}

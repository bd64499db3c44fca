//! What rules are made of: storages made, cast, kept and handed on, and the widths of numbers.

use super::plan::Types;
use super::player::Player;
use super::store::{Storage, StorageKind};
use crate::Error;
use crate::graph::{Node, Norm, ParamId, TensorId};

impl Player<'_, '_> {
    /// Whether autograd makes a node of it.
    pub(super) fn records(&self, at: usize) -> bool {
        self.recording && self.graph.nodes[at].outputs.iter().any(|t| self.plan.needs(*t))
    }

    /// Autograd keeps the storage until the node's backward pass is done.
    pub(super) fn keep(&mut self, at: usize, storage: Storage) {
        if self.records(at) {
            let kept = self.store.hold(storage);
            self.saved[at].push(kept);
        }
    }

    pub(super) fn keep_value(&mut self, at: usize, tensor: TensorId) {
        if let Some(storage) = self.value[tensor.0 as usize] {
            self.keep(at, storage);
        }
    }

    /// The tensor's storage; inputs are there while they have readers.
    pub(super) fn value_of(&self, tensor: TensorId) -> Result<Storage, Error> {
        self.value[tensor.0 as usize]
            .ok_or_else(|| Error::bad("replay", format!("tensor {} is gone before it is read", tensor.0)))
    }

    pub(super) fn hold_value(&mut self, tensor: TensorId) -> Result<Storage, Error> {
        let storage = self.value_of(tensor)?;
        Ok(self.store.hold(storage))
    }

    /// The tensor with numbers of another width: a new storage, or the same with one more reference.
    pub(super) fn cast(&mut self, tensor: TensorId, width: u64) -> Result<Storage, Error> {
        if self.width_of(tensor) == width || !self.is_float(tensor) {
            self.hold_value(tensor)
        } else {
            self.temporary(tensor, width)
        }
    }

    /// A new storage of the tensor's size.
    pub(super) fn temporary(&mut self, tensor: TensorId, width: u64) -> Result<Storage, Error> {
        self.bytes_new(self.elements_of(tensor).saturating_mul(width))
    }

    pub(super) fn bytes_new(&mut self, bytes: u64) -> Result<Storage, Error> {
        self.new_storage(bytes, if self.backward { StorageKind::Backward } else { StorageKind::Activations })
    }

    /// Parameters (not buffers) of a node for a matrix product in so many bytes; to be released.
    pub(super) fn weights(&mut self, node: &Node, width: u64) -> Result<Vec<Storage>, Error> {
        let graph = self.graph;
        node.params.iter().filter(|p| !graph.param(**p).buffer).map(|p| self.weight(*p, width)).collect()
    }

    /// A weight; under autocast a copy in 16 bits, cached until autocast ends where the weight asks for
    /// a gradient, even where nothing is recorded (`autocast_mode.cpp`, `cached_cast`).
    pub(super) fn weight(&mut self, param: ParamId, width: u64) -> Result<Storage, Error> {
        let at = param.0 as usize;
        if self.plan.param_width[at] == width || self.plan.types.auto.is_none() {
            return Ok(self.store.hold(self.resident(param)));
        }
        if let Some(cast) = self.casts[at] {
            return Ok(self.store.hold(cast));
        }
        let cast = self.bytes_new(self.graph.param(param).elements() * width)?;
        if self.trainable(param) {
            self.casts[at] = Some(self.store.hold(cast));
        }
        Ok(cast)
    }

    /// The node's first output as a new storage.
    pub(super) fn output(&mut self, node: &Node, width: u64) -> Result<Storage, Error> {
        let out = node.outputs[0];
        let width = Types::fixed(self.graph.tensor(out).number).unwrap_or(width);
        self.width[out.0 as usize] = width;
        self.temporary(out, width)
    }

    /// The storage becomes the node's first output; further outputs that no rule makes get storages of
    /// their own.
    pub(super) fn give(&mut self, node: &Node, storage: Storage) -> Result<(), Error> {
        self.set(node.outputs[0], storage)?;
        let width = self.width_of(node.outputs[0]);
        for out in &node.outputs[1..] {
            let width = Types::fixed(self.graph.tensor(*out).number).unwrap_or(width);
            self.width[out.0 as usize] = width;
            let storage = self.temporary(*out, width)?;
            self.set(*out, storage)?;
        }
        Ok(())
    }

    /// The tensor refers to this storage from now on.
    pub(super) fn set(&mut self, tensor: TensorId, storage: Storage) -> Result<(), Error> {
        match self.value[tensor.0 as usize].replace(storage) {
            Some(old) => self.store.release(old),
            None => Ok(()),
        }
    }

    /// The node's output is its first input under another name.
    pub(super) fn alias(&mut self, node: &Node) -> Result<(), Error> {
        let storage = self.hold_value(node.inputs[0])?;
        self.width[node.outputs[0].0 as usize] = self.width_of(node.inputs[0]);
        self.give(node, storage)
    }

    pub(super) fn trainable(&self, param: ParamId) -> bool {
        self.graph.param(param).trainable
    }

    pub(super) fn elements_of(&self, tensor: TensorId) -> u64 {
        self.elements[tensor.0 as usize]
    }

    pub(super) fn width_of(&self, tensor: TensorId) -> u64 {
        self.width[tensor.0 as usize]
    }

    pub(super) fn param_width(&self, param: ParamId) -> u64 {
        self.plan.param_width[param.0 as usize]
    }

    pub(super) fn is_float(&self, tensor: TensorId) -> bool {
        use crate::graph::Number::{Float, Float32};
        matches!(self.graph.tensor(tensor).number, Float | Float32)
    }

    /// Width in matrix products and convolutions.
    pub(super) fn width_in_gemm(&self, tensor: TensorId) -> u64 {
        self.plan.types.auto.unwrap_or_else(|| self.width_of(tensor))
    }

    /// Width in operators that autocast runs in 32 bits.
    pub(super) fn width_in_32(&self, tensor: TensorId) -> u64 {
        if self.plan.types.auto.is_some() { 4 } else { self.width_of(tensor) }
    }

    /// Type promotion over the inputs.
    pub(super) fn promoted(&self, node: &Node) -> u64 {
        let floats = node.inputs.iter().filter(|t| self.is_float(**t));
        floats.map(|t| self.width_of(*t)).max().unwrap_or_else(|| self.width_of(node.inputs[0]))
    }

    /// Whether a pool leaves one element a channel: PyTorch then takes a mean, which keeps nothing.
    pub(super) fn is_mean(&self, node: &Node) -> bool {
        let shape = &self.graph.tensor(node.outputs[0]).shape;
        shape.iter().skip(2).all(|d| *d == 1)
    }

    /// Means, or inverse deviations, of a normalisation.
    pub(super) fn statistics(&self, node: &Node, norm: Norm) -> u64 {
        let x = &self.graph.tensor(node.inputs[0]).shape;
        let elements = self.elements_of(node.inputs[0]);
        match norm {
            Norm::Batch => x.get(1).copied().unwrap_or(1),
            Norm::Layer | Norm::Rms => {
                let features = node.params.first().map(|p| self.graph.param(*p).elements());
                let features = features.filter(|f| *f > 0).or_else(|| x.last().copied()).unwrap_or(1);
                elements / features.max(1)
            }
            // Groups are not in the graph; 32 is the usual number, channels the most.
            Norm::Group => {
                let per_sample: u64 = x.iter().skip(1).product();
                let samples = elements / per_sample.max(1);
                samples * x.get(1).copied().unwrap_or(1).min(32)
            }
        }
    }
}

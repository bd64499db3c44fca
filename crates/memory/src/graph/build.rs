//! Builds a [`Graph`], with shapes inferred and absurd ones refused.

use super::{Graph, Keeps, Node, Norm, Number, Op, Param, ParamId, Tensor, TensorId};
use crate::Error;

/// Elements of the largest tensor that is believed: 2^44, 64 TiB in 32 bits.
const MOST_ELEMENTS: u64 = 1 << 44;

/// Builds a graph node by node. Convenience methods exist for what models are made of; [`Builder::node`]
/// does the rest.
#[derive(Debug, Default)]
pub struct Builder {
    graph: Graph,
    block: Option<u32>,
    blocks: u32,
}

impl Builder {
    /// An empty graph of a family.
    #[must_use]
    pub fn new(family: &str) -> Self {
        Self { graph: Graph { family: family.to_owned(), ..Graph::default() }, ..Self::default() }
    }

    /// The graph, with what the model returns.
    #[must_use]
    pub fn finish(mut self, outputs: Vec<TensorId>) -> Graph {
        self.graph.outputs = outputs;
        self.graph
    }

    /// Shape of a tensor.
    #[must_use]
    pub fn shape(&self, id: TensorId) -> &[u64] {
        &self.graph.tensor(id).shape
    }

    /// Type of a tensor.
    #[must_use]
    pub fn number(&self, id: TensorId) -> Number {
        self.graph.tensor(id).number
    }

    /// Something was not understood: it is listed and widens the bound.
    pub fn doubt(&mut self, what: impl Into<String>) {
        self.graph.doubts.push(what.into());
    }

    /// From here on nodes belong to a new block for gradient checkpointing.
    pub fn begin_block(&mut self) {
        self.block = Some(self.blocks);
        self.blocks += 1;
    }

    /// From here on nodes belong to no block.
    pub fn end_block(&mut self) {
        self.block = None;
    }

    /// A parameter.
    ///
    /// # Errors
    /// An absurd shape.
    pub fn param(&mut self, name: impl Into<String>, shape: &[u64]) -> Result<ParamId, Error> {
        self.add_param(name.into(), shape, false)
    }

    /// A buffer.
    ///
    /// # Errors
    /// An absurd shape.
    pub fn buffer(&mut self, name: impl Into<String>, shape: &[u64]) -> Result<ParamId, Error> {
        self.add_param(name.into(), shape, true)
    }

    fn add_param(&mut self, name: String, shape: &[u64], buffer: bool) -> Result<ParamId, Error> {
        check(&name, shape)?;
        let id = ParamId(self.graph.params.len() as u32);
        self.graph.params.push(Param {
            name,
            shape: shape.to_vec(),
            number: Number::Float,
            trainable: !buffer,
            buffer,
        });
        Ok(id)
    }

    /// The parameter is not trained.
    pub fn freeze(&mut self, id: ParamId) {
        if let Some(param) = self.graph.params.get_mut(id.0 as usize) {
            param.trainable = false;
        }
    }

    /// A buffer of a type of its own, as a table of booleans is.
    ///
    /// # Errors
    /// An absurd shape.
    pub fn buffer_of(
        &mut self,
        name: impl Into<String>,
        shape: &[u64],
        number: Number,
    ) -> Result<ParamId, Error> {
        let id = self.buffer(name, shape)?;
        self.graph.params[id.0 as usize].number = number;
        Ok(id)
    }

    /// Parameters of these names, of those that were made last.
    #[must_use]
    pub fn named(&self, names: &[&str]) -> Vec<ParamId> {
        let last = |name: &&str| self.graph.params.iter().rposition(|p| p.name == *name);
        names.iter().filter_map(|name| last(name).map(|at| ParamId(at as u32))).collect()
    }

    /// How many parameters and buffers there are so far.
    #[must_use]
    pub fn params(&self) -> usize {
        self.graph.params.len()
    }

    /// The parameters from `repeated` on are those from `first` on, one by one: a layer that is run again
    /// with the same weights. They are taken back, and their nodes use the first ones.
    pub fn share(&mut self, first: usize, repeated: usize) {
        for id in self.graph.nodes.iter_mut().flat_map(|node| &mut node.params) {
            if let Some(offset) = (id.0 as usize).checked_sub(repeated) {
                *id = ParamId((first + offset) as u32);
            }
        }
        self.graph.params.truncate(repeated);
    }

    /// A batch that arrives on the GPU.
    ///
    /// # Errors
    /// An absurd shape.
    pub fn input(&mut self, name: &str, shape: &[u64], number: Number) -> Result<TensorId, Error> {
        self.node(name, Op::Input, &[], &[], shape, number)
    }

    /// Any node with one output.
    ///
    /// # Errors
    /// An absurd shape.
    pub fn node(
        &mut self,
        name: &str,
        op: Op,
        inputs: &[TensorId],
        params: &[ParamId],
        shape: &[u64],
        number: Number,
    ) -> Result<TensorId, Error> {
        check(name, shape)?;
        let id = TensorId(self.graph.tensors.len() as u32);
        self.graph.tensors.push(Tensor { shape: shape.to_vec(), number });
        self.graph.nodes.push(Node {
            name: name.to_owned(),
            op,
            inputs: inputs.to_vec(),
            outputs: vec![id],
            params: params.to_vec(),
            block: self.block,
        });
        Ok(id)
    }

    /// `x W^T + b` over the last dimension.
    ///
    /// # Errors
    /// An absurd shape.
    pub fn linear(&mut self, name: &str, x: TensorId, out: u64, bias: bool) -> Result<TensorId, Error> {
        let mut shape = self.shape(x).to_vec();
        let inner = shape.pop().unwrap_or(1);
        shape.push(out);
        let mut params = vec![self.param(format!("{name}.weight"), &[out, inner])?];
        if bias {
            params.push(self.param(format!("{name}.bias"), &[out])?);
        }
        self.node(name, Op::Linear, &[x], &params, &shape, Number::Float)
    }

    /// Convolution whose output shape the caller knows: `[batch, channels, ...]`.
    ///
    /// # Errors
    /// An absurd shape.
    pub fn conv(
        &mut self,
        name: &str,
        x: TensorId,
        out_shape: &[u64],
        kernel: &[u64],
        groups: u64,
        bias: bool,
    ) -> Result<TensorId, Error> {
        let channels = out_shape.get(1).copied().unwrap_or(1);
        let inner = self.shape(x).get(1).copied().unwrap_or(1) / groups.max(1);
        let mut weight = vec![channels, inner.max(1)];
        weight.extend_from_slice(kernel);
        let mut params = vec![self.param(format!("{name}.weight"), &weight)?];
        if bias {
            params.push(self.param(format!("{name}.bias"), &[channels])?);
        }
        self.node(name, Op::Conv { groups }, &[x], &params, out_shape, Number::Float)
    }

    /// Normalisation over `features` channels or the last dimension; batch normalisation has its
    /// running statistics as buffers.
    ///
    /// # Errors
    /// An absurd shape.
    pub fn norm(
        &mut self,
        name: &str,
        norm: Norm,
        x: TensorId,
        features: u64,
        bias: bool,
    ) -> Result<TensorId, Error> {
        let mut params = vec![self.param(format!("{name}.weight"), &[features])?];
        if bias {
            params.push(self.param(format!("{name}.bias"), &[features])?);
        }
        if norm == Norm::Batch {
            params.push(self.buffer(format!("{name}.running_mean"), &[features])?);
            params.push(self.buffer(format!("{name}.running_var"), &[features])?);
            params.push(self.buffer(format!("{name}.num_batches_tracked"), &[2])?);
        }
        let shape = self.shape(x).to_vec();
        self.node(name, Op::Norm(norm), &[x], &params, &shape, Number::Float)
    }

    /// Elementwise function.
    ///
    /// # Errors
    /// None beyond those of [`Builder::node`].
    pub fn activation(
        &mut self,
        name: &str,
        keeps: Keeps,
        inplace: bool,
        x: TensorId,
    ) -> Result<TensorId, Error> {
        let shape = self.shape(x).to_vec();
        self.node(name, Op::Activation { keeps, inplace }, &[x], &[], &shape, Number::Float)
    }

    /// A node of its first input's shape: Add, Mul, Dropout, Softmax, Copy.
    ///
    /// # Errors
    /// None beyond those of [`Builder::node`].
    pub fn like(&mut self, name: &str, op: Op, inputs: &[TensorId]) -> Result<TensorId, Error> {
        let shape = inputs.first().map(|x| self.shape(*x).to_vec()).unwrap_or_default();
        self.node(name, op, inputs, &[], &shape, Number::Float)
    }

    /// The same storage under another shape.
    ///
    /// # Errors
    /// None beyond those of [`Builder::node`].
    pub fn view(&mut self, name: &str, x: TensorId, shape: &[u64]) -> Result<TensorId, Error> {
        let number = self.graph.tensor(x).number;
        self.node(name, Op::View, &[x], &[], shape, number)
    }

    /// Parts of a storage under shapes of their own, as `split` and `chunk` make them.
    ///
    /// # Errors
    /// None beyond those of [`Builder::node`].
    pub fn parts(&mut self, name: &str, x: TensorId, shapes: &[&[u64]]) -> Result<Vec<TensorId>, Error> {
        let number = self.graph.tensor(x).number;
        let mut outputs = Vec::with_capacity(shapes.len());
        for shape in shapes {
            check(name, shape)?;
            outputs.push(TensorId(self.graph.tensors.len() as u32));
            self.graph.tensors.push(Tensor { shape: shape.to_vec(), number });
        }
        self.graph.nodes.push(Node {
            name: name.to_owned(),
            op: Op::View,
            inputs: vec![x],
            outputs: outputs.clone(),
            params: Vec::new(),
            block: self.block,
        });
        Ok(outputs)
    }

    /// Rows of a table for each token.
    ///
    /// # Errors
    /// An absurd shape.
    pub fn embedding(&mut self, name: &str, ids: TensorId, rows: u64, width: u64) -> Result<TensorId, Error> {
        let table = self.param(format!("{name}.weight"), &[rows, width])?;
        let mut shape = self.shape(ids).to_vec();
        shape.push(width);
        self.node(name, Op::Embedding, &[ids], &[table], &shape, Number::Float)
    }
}

/// Refuses shapes that no GPU holds and products that overflow, with the layer's name.
fn check(name: &str, shape: &[u64]) -> Result<(), Error> {
    let elements = shape.iter().try_fold(1_u64, |n, d| n.checked_mul(*d));
    match elements {
        Some(n) if n <= MOST_ELEMENTS => Ok(()),
        _ => Err(Error::Absurd { layer: name.to_owned(), what: format!("shape {shape:?}") }),
    }
}

//! The forward graph of a model: what every front end builds and what the rules replay.
//!
//! A node takes tensors and makes tensors; nodes stand in the order in which they run. The rules
//! know what autograd keeps of each, what its backward pass allocates, and what the
//! optimizer adds (PyTorch's `derivatives.yaml` and the kernels' saved tensors).

mod adapters;
mod build;
pub mod kernels;
mod replay;

pub use build::Builder;
pub use replay::{Holdings, Phase, Replay, Script, Sink, StorageKind, events, replay, replay_script};

/// A tensor of a [`Graph`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TensorId(pub u32);

/// A parameter or buffer of a [`Graph`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ParamId(pub u32);

/// Type of a tensor's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Number {
    /// Follows the task's precision: what the node's operator makes of it (under autocast a matrix
    /// product makes 16 bits, a norm 32).
    Float,
    /// 32 bits whatever the precision.
    Float32,
    /// 64-bit integers: token ids, labels, indices.
    Int64,
    /// A byte each: masks.
    Bool,
}

/// An activation, input or label; its shape includes the batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    /// Its dimensions, outermost first.
    pub shape: Vec<u64>,
    /// Type of its elements.
    pub number: Number,
}

impl Tensor {
    /// Number of elements. Builders refuse shapes for which this would overflow.
    #[must_use]
    pub fn elements(&self) -> u64 {
        self.shape.iter().product()
    }
}

/// A parameter or buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Param {
    /// As in the model, where known: `layer1.0.conv1.weight`.
    pub name: String,
    /// Dimensions; one dimension where only the number of elements is known.
    pub shape: Vec<u64>,
    /// Type: [`Number::Float`] follows the task's precision.
    pub number: Number,
    /// Whether it gets a gradient and optimizer state.
    pub trainable: bool,
    /// A buffer (running mean): never a gradient, and not in the optimizer.
    pub buffer: bool,
}

impl Param {
    /// Number of elements.
    #[must_use]
    pub fn elements(&self) -> u64 {
        self.shape.iter().product()
    }
}

/// What an elementwise function keeps for its backward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keeps {
    /// Its output: ReLU, Tanh, Sigmoid.
    Output,
    /// Its input: GELU, SiLU, ELU, LeakyReLU, Mish, Softplus, Hardswish, ReLU6.
    Input,
    /// Nothing: identity, scaling by a constant.
    Nothing,
}

/// Kind of a normalisation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Norm {
    /// Batch normalisation: input, mean and inverse deviation per channel.
    Batch,
    /// Layer normalisation: input, mean and inverse deviation per row.
    Layer,
    /// Group or instance normalisation: input, two numbers a group and sample.
    Group,
    /// RMS normalisation written out in elementwise operators, as in Hugging Face's Llama family.
    Rms,
}

/// An operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// A batch arrives on the GPU, anew in each step.
    Input,
    /// `x W^T + b`.
    Linear,
    /// Convolution of any dimension, transposed or not.
    Conv {
        /// Groups; as many as channels: depthwise.
        groups: u64,
    },
    /// Product of two activations (attention written out).
    MatMul,
    /// A normalisation.
    Norm(Norm),
    /// Elementwise function of one tensor.
    Activation {
        /// What it keeps.
        keeps: Keeps,
        /// Writes over its input.
        inplace: bool,
    },
    /// Softmax or log-softmax: keeps its output.
    Softmax,
    /// Dropout with p > 0: keeps a mask of one byte an element.
    Dropout {
        /// Writes over its input.
        inplace: bool,
    },
    /// Maximum over windows: keeps its input and 64-bit indices.
    MaxPool,
    /// Mean over windows: keeps its input.
    AvgPool,
    /// Sum or difference of two tensors: keeps nothing.
    Add {
        /// Writes over its first input (`+=`).
        inplace: bool,
    },
    /// Elementwise product or quotient: keeps both inputs. With a parameter in place of the second (layer
    /// scale): keeps the first.
    Mul,
    /// Concatenation: a new tensor, keeps nothing.
    Cat,
    /// The same storage under another shape.
    View,
    /// A new tensor with the same or other shape, keeps nothing: permutations made contiguous, padding,
    /// rolls, interpolation, casts.
    Copy,
    /// Rows of a table: keeps the indices; the gradient is as large as the table.
    Embedding,
    /// Scaled dot-product attention over query, key and value; the task says by which kernel.
    Attention {
        /// Heads of the query.
        heads: u64,
        /// Dropout on the probabilities.
        dropout: bool,
        /// A mask is added (which rules the flash kernel out, not the memory-efficient one).
        mask: bool,
    },
    /// LSTM, GRU or RNN by cuDNN: keeps input, output and a reserve space.
    Recurrent {
        /// Gates of a cell: 4, 3 or 1.
        gates: u64,
        /// Size of the hidden state.
        hidden: u64,
        /// Layers, times directions.
        layers: u64,
    },
    /// Cross entropy over the last dimension of its first input, against labels.
    CrossEntropy,
    /// Another loss of the size of its input (mean squared error and the like): keeps its inputs.
    Loss,
    /// Something the front end does not understand: keeps input and output, and widens the bound.
    Unknown,
}

/// One operator at its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Layer's name as the input says, for messages.
    pub name: String,
    /// What it does.
    pub op: Op,
    /// What it reads.
    pub inputs: Vec<TensorId>,
    /// What it makes.
    pub outputs: Vec<TensorId>,
    /// Its parameters and buffers.
    pub params: Vec<ParamId>,
    /// With gradient checkpointing: which block it belongs to; `None` outside blocks.
    pub block: Option<u32>,
}

/// A model with its inputs and its loss.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Graph {
    /// Family: `resnet`, `bert`, `mlp`, `cnn`, `unknown`.
    pub family: String,
    /// All tensors, by number.
    pub tensors: Vec<Tensor>,
    /// Parameters and buffers, in the order of the model's construction.
    pub params: Vec<Param>,
    /// Operators in the order of the forward pass.
    pub nodes: Vec<Node>,
    /// What the model returns; its user keeps it until the next step.
    pub outputs: Vec<TensorId>,
    /// Layers that the front end did not understand, and anything else that widens the bound.
    pub doubts: Vec<String>,
}

impl Graph {
    /// Elements of all parameters, without buffers.
    #[must_use]
    pub fn parameters(&self) -> u64 {
        self.params.iter().filter(|p| !p.buffer).map(Param::elements).sum()
    }

    /// The tensor.
    #[must_use]
    pub fn tensor(&self, id: TensorId) -> &Tensor {
        &self.tensors[id.0 as usize]
    }

    /// The parameter.
    #[must_use]
    pub fn param(&self, id: ParamId) -> &Param {
        &self.params[id.0 as usize]
    }
}

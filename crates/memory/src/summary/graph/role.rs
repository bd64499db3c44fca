//! What a class does, told by its name.

use crate::graph::{Keeps, Norm};

/// What a layer does with its input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Conv {
        transposed: bool,
    },
    Linear,
    Norm(Norm),
    Activation(Keeps),
    Softmax,
    Dropout,
    /// Drops whole samples: a new tensor, and a number a sample.
    DropPath,
    MaxPool,
    AvgPool,
    /// Nothing happens.
    Identity,
    /// The same numbers under another shape.
    Reshape,
    /// A new tensor of the printed shape that keeps nothing.
    Move,
    Embedding,
    Recurrent {
        gates: u64,
    },
    /// `nn.MultiheadAttention`: projections inside.
    MultiHead,
    /// torchvision's `ShiftedWindowAttention`.
    Windows,
    /// A factor for each channel.
    Scale,
    /// A loss as a layer.
    Loss,
    /// Holds others and does nothing itself: `Sequential`.
    Holder,
    /// A class of the model's own.
    Block,
}

/// Elementwise functions of which autograd keeps the output.
const OUTPUT: &[&str] = &["ReLU", "Tanh", "Sigmoid"];
/// Those of which it keeps the input.
const INPUT: &[&str] = &[
    "ReLU6",
    "LeakyReLU",
    "ELU",
    "SELU",
    "CELU",
    "RReLU",
    "Threshold",
    "GELU",
    "SiLU",
    "Swish",
    "SwishMe",
    "Mish",
    "MishMe",
    "Hardswish",
    "HardSwish",
    "HardSwishMe",
    "Hardsigmoid",
    "HardSigmoid",
    "HardSigmoidMe",
    "Softplus",
    "Softsign",
    "PReLU",
    "Hardtanh",
    "LogSigmoid",
    "Hardshrink",
    "Softshrink",
    "Tanhshrink",
    "GELUTanh",
    "QuickGELU",
    "GELUActivation",
    "NewGELUActivation",
    "FastGELUActivation",
    "QuickGELUActivation",
    "PytorchGELUTanh",
    "SiLUActivation",
    "HardMish",
    "GLU",
    "Swish1",
    "MemoryEfficientSwish",
    "H_Swish",
    "h_swish",
    "H_Sigmoid",
    "h_sigmoid",
    "hswish",
    "hsigmoid",
];

/// The role of a class.
pub(super) fn role(kind: &str) -> Role {
    if let Some(role) = exact(kind) {
        return role;
    }
    if OUTPUT.contains(&kind) {
        return Role::Activation(Keeps::Output);
    }
    if INPUT.contains(&kind) {
        return Role::Activation(Keeps::Input);
    }
    if let Some(role) = convolution(kind) {
        return role;
    }
    // Norms with an activation inside (timm's BatchNormAct2d) print the activation as a child.
    for (part, norm) in [
        ("BatchNorm", Norm::Batch),
        ("GroupNorm", Norm::Group),
        ("InstanceNorm", Norm::Group),
        ("RMSNorm", Norm::Rms),
        ("RmsNorm", Norm::Rms),
        ("LayerNorm", Norm::Layer),
    ] {
        let rest = kind.split(part).nth(1);
        if rest.is_some_and(|r| {
            r.len() <= 10 && !r.contains("Conv") && !r.contains("Linear") && !r.contains("Mlp")
        }) {
            return Role::Norm(norm);
        }
    }
    for (part, role) in [
        ("AdaptiveAvgPool", Role::AvgPool),
        ("AdaptiveMaxPool", Role::MaxPool),
        ("MaxPool", Role::MaxPool),
        ("AvgPool", Role::AvgPool),
        ("LPPool", Role::AvgPool),
        ("Upsample", Role::Move),
        ("UpsamplingNearest", Role::Move),
        ("UpsamplingBilinear", Role::Move),
        ("PixelShuffle", Role::Move),
        ("PixelUnshuffle", Role::Move),
        ("Pad1d", Role::Move),
        ("Pad2d", Role::Move),
        ("Pad3d", Role::Move),
        ("Dropout", Role::Dropout),
    ] {
        if kind.ends_with(part) || kind.contains(part) && kind.len() <= part.len() + 10 {
            return role;
        }
    }
    Role::Block
}

fn exact(kind: &str) -> Option<Role> {
    Some(match kind {
        "Linear"
        | "NonDynamicallyQuantizableLinear"
        | "LazyLinear"
        | "Conv1D"
        | "NormLinear"
        | "LinearNd" => Role::Linear,
        "Identity" | "FeatureInfo" | "QuantStub" | "DeQuantStub" => Role::Identity,
        "Softmax" | "LogSoftmax" | "Softmax2d" | "Softmin" => Role::Softmax,
        "StochasticDepth" | "DropPath" | "DropBlock2d" | "TimmDropPath" => Role::DropPath,
        "Flatten" | "Unflatten" | "View" | "Reshape" | "Squeeze" | "Unsqueeze" | "Rearrange" | "Permute" => {
            Role::Reshape
        }
        "ChannelShuffle" | "Interpolate" | "Roll" | "Fold" | "Unfold" => Role::Move,
        "Embedding" | "EmbeddingBag" => Role::Embedding,
        "LSTM" => Role::Recurrent { gates: 4 },
        "GRU" => Role::Recurrent { gates: 3 },
        "RNN" => Role::Recurrent { gates: 1 },
        "ShiftedWindowAttention" | "ShiftedWindowAttentionV2" => Role::Windows,
        "MultiheadAttention" => Role::MultiHead,
        "LayerScale" | "LayerScale2d" | "Scale" | "Affine" | "FrozenBatchNorm2d" | "FrozenBatchNormAct2d" => {
            Role::Scale
        }
        "Sequential" | "ModuleList" | "ModuleDict" | "DataParallel" | "DistributedDataParallel" => {
            Role::Holder
        }
        "Sin" | "Cos" => Role::Activation(Keeps::Input),
        k if k.ends_with("Loss") => Role::Loss,
        _ => return None,
    })
}

/// `Conv2d` and its relatives by other names (`StdConv2dSame`), but not blocks that hold one
/// (`Conv2dNormActivation`, `BasicConv2d`, `SeparableConv2d`).
fn convolution(kind: &str) -> Option<Role> {
    let at = ["Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d"]
        .iter()
        .find_map(|c| kind.find(c).map(|at| (at, c.len(), c.contains("Transpose"))));
    let (at, length, transposed) = at?;
    let before = &kind[..at];
    let behind = &kind[at + length..];
    let known_before =
        ["", "Lazy", "Std", "ScaledStd", "WS", "Bias", "Deform", "Ws", "Scaled", "Masked", "Causal"]
            .contains(&before);
    let known_behind =
        ["", "Same", "Pad", "Bias", "StaticSamePadding", "DynamicSamePadding"].contains(&behind);
    (known_before && known_behind).then_some(Role::Conv { transposed })
}

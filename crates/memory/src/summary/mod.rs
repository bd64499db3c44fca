//! Printed summaries of models: torchsummary, torchinfo, modelsummary and the representation that
//! PyTorch prints of a module.
//!
//! [`parse`] reads the text into a [`Summary`]: a list of layers as printed, nothing added. What a
//! summary hides (functional operators, residual additions, flags) is added when a graph is built of it.

mod graph;
mod info;
mod repr;
mod table;
mod text;

use crate::Error;
use std::collections::BTreeMap;

pub use graph::graph;

/// Texts longer than this are refused: a summary of a model with 10,000 layers has about 2 MiB.
pub const MAX_BYTES: usize = 16 << 20;
/// More layers than this are not read; the rest is a doubt.
pub const MAX_LAYERS: usize = 50_000;
/// So many lines that were not understood are kept; the others are counted.
const MAX_SKIPPED: usize = 50;

/// Which tool printed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// `torchsummary`: a table; a container stands behind what it contains.
    Torchsummary,
    /// `torchinfo` (formerly `torch-summary`): a tree in a table; a container stands before.
    Torchinfo,
    /// `modelsummary`, or `print(model)`: nested representations, without shapes of activations.
    Modelsummary,
}

/// Dimensions as printed; -1 stands for the batch.
pub type Shape = Vec<i64>;

/// One layer as printed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Layer {
    /// As printed: `Conv2d-1`, `Conv2d: 2-1`, or the path `encoder.layer.0.output` in a tree with names.
    pub name: String,
    /// Name of the class: `Conv2d`.
    pub kind: String,
    /// Name of the attribute that holds it (`conv1`), where printed.
    pub attribute: String,
    /// Distance from the root, which is 0. torchsummary does not tell: always 1.
    pub depth: usize,
    /// Shapes of its inputs, where printed.
    pub inputs: Vec<Shape>,
    /// Shapes of its outputs, where printed.
    pub outputs: Vec<Shape>,
    /// Parameters as printed: its own; in a tree cut at a depth, and in modelsummary, with those of
    /// everything inside.
    pub params: u64,
    /// Whether `params` was printed at all.
    pub params_known: bool,
    /// Whether it is trained, where printed.
    pub trainable: Option<bool>,
    /// The same module ran before; its parameters count there.
    pub recursive: bool,
    /// Multiplications and additions, where printed (torchinfo; for the printed batch).
    pub mult_adds: Option<u64>,
    /// Shape of the kernel, where printed; arguments of the representation: `in_features` or the
    /// position, and the value as text.
    pub attributes: BTreeMap<String, String>,
    /// Line of the text, from 1.
    pub line: usize,
}

impl Layer {
    /// Elements of its first output, without the batch; `None` where no shape is printed or it
    /// overflows.
    #[must_use]
    pub fn activations(&self) -> Option<u64> {
        let shape = self.outputs.first()?;
        shape.iter().skip(1).try_fold(1_u64, |n, d| n.checked_mul(u64::try_from(*d).ok()?))
    }

    /// Refuses sizes that no layer has. One that is lazy has none before it has run.
    fn check(&self) -> Result<(), Error> {
        const SIZES: [&str; 7] = [
            "embedding_dim",
            "in_channels",
            "in_features",
            "num_embeddings",
            "num_features",
            "out_channels",
            "out_features",
        ];
        let is_given = |key: &str| match key {
            "0" | "1" => self.kind.starts_with("Conv") || self.kind == "Embedding",
            key => SIZES.contains(&key),
        };
        let is_number = |value: &str| value.parse::<f64>().is_ok();
        let is_size = |value: &str| value.parse::<u64>().is_ok_and(|size| size > 0);
        let wrong =
            self.attributes.iter().find(|(key, value)| is_given(key) && is_number(value) && !is_size(value));
        match wrong.filter(|_| !self.kind.starts_with("Lazy")) {
            None => Ok(()),
            Some((key, value)) => {
                let what = if key.len() > 1 {
                    format!("{key} is {value}")
                } else {
                    format!("{}({value}, ...)", self.kind)
                };
                Err(Error::bad(
                    format!("summary, line {}", self.line),
                    format!(
                        "{what}, which no layer has; sizes are whole numbers from 1: print the summary anew"
                    ),
                ))
            }
        }
    }

    /// A number among the attributes: `in_features`.
    #[must_use]
    pub fn number(&self, key: &str) -> Option<u64> {
        text::first_number(self.attributes.get(key)?)
    }

    /// The numbers of an attribute: `kernel_size=(3, 3)`.
    #[must_use]
    pub fn numbers(&self, key: &str) -> Vec<u64> {
        self.attributes.get(key).map(|v| text::numbers(v)).unwrap_or_default()
    }

    /// A flag among the attributes: `inplace=True`.
    #[must_use]
    pub fn flag(&self, key: &str) -> Option<bool> {
        match self.attributes.get(key)?.as_str() {
            "True" | "true" => Some(true),
            "False" | "false" | "None" => Some(false),
            _ => None,
        }
    }
}

/// What stands below the table.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Totals {
    /// Number of parameters.
    pub params: Option<u64>,
    /// Those that are trained.
    pub trainable: Option<u64>,
    /// Those that are not.
    pub frozen: Option<u64>,
    /// Input size, as printed (MB).
    pub input_mb: Option<f64>,
    /// Forward and backward pass, as printed (MB).
    pub activations_mb: Option<f64>,
}

/// A printed summary.
#[derive(Debug, Clone, PartialEq)]
pub struct Summary {
    /// Which tool printed it.
    pub dialect: Dialect,
    /// The layers in the order of the text.
    pub layers: Vec<Layer>,
    /// What stands below.
    pub totals: Totals,
    /// What was not understood or is missing: a line each.
    pub doubts: Vec<String>,
}

impl Summary {
    /// Whether entry `i` contains others. torchsummary does not say; there only what the other
    /// dialects print is known, and the answer is `false`.
    #[must_use]
    pub fn is_container(&self, i: usize) -> bool {
        self.dialect != Dialect::Torchsummary
            && match (self.layers.get(i), self.layers.get(i + 1)) {
                (Some(a), Some(b)) => b.depth > a.depth,
                _ => false,
            }
    }
}

/// Collects what is read, within the limits.
#[derive(Debug)]
struct Collector {
    summary: Summary,
    skipped: usize,
    /// Whether the limit of layers was reached.
    full: bool,
}

impl Collector {
    fn new(dialect: Dialect) -> Self {
        let summary = Summary { dialect, layers: Vec::new(), totals: Totals::default(), doubts: Vec::new() };
        Self { summary, skipped: 0, full: false }
    }

    fn layer(&mut self, layer: Layer) {
        if self.summary.layers.len() < MAX_LAYERS {
            self.summary.layers.push(layer);
        } else {
            self.full = true;
        }
    }

    fn skip(&mut self, line: usize, text: &str) {
        self.skipped += 1;
        if self.skipped <= MAX_SKIPPED {
            let shown: String = text.trim().chars().take(80).collect();
            self.summary.doubts.push(format!("line {line} is not understood: {shown}"));
        }
    }

    fn doubt(&mut self, what: impl Into<String>) {
        self.summary.doubts.push(what.into());
    }

    fn finish(mut self) -> Result<Summary, Error> {
        if self.summary.layers.is_empty() {
            return Err(Error::bad("summary", "no layers were found; is the text complete?"));
        }
        self.summary.layers.iter().try_for_each(Layer::check)?;
        if self.skipped > MAX_SKIPPED {
            let more = self.skipped - MAX_SKIPPED;
            self.doubt(format!("{more} more lines are not understood"));
        }
        if self.full {
            self.doubt(format!("more than {MAX_LAYERS} layers; the rest was not read"));
        }
        Ok(self.summary)
    }
}

/// Reads a summary; which tool printed it is found out.
///
/// # Errors
/// The text is longer than [`MAX_BYTES`], or no layer could be read. What was read of a damaged text is
/// returned with its doubts.
pub fn parse(text: &str) -> Result<Summary, Error> {
    if text.len() > MAX_BYTES {
        return Err(Error::bad(
            "summary",
            format!("{} MiB of text; at most {} are read", text.len() >> 20, MAX_BYTES >> 20),
        ));
    }
    match text::detect(text) {
        Some(Dialect::Torchsummary) => table::parse(text),
        Some(Dialect::Torchinfo) => info::parse(text),
        Some(Dialect::Modelsummary) => repr::parse(text),
        None => Err(Error::bad(
            "summary",
            "neither a table of torchsummary (`Layer (type)  Output Shape  Param #`) or torchinfo \
             (`Layer (type:depth-idx)`), nor a tree of modules (`Model(` and `(name): Layer(...)`)",
        )),
    }
}

/// The same for bytes; what is not UTF-8 is replaced.
///
/// # Errors
/// As [`parse`].
pub fn parse_bytes(bytes: &[u8]) -> Result<Summary, Error> {
    let limit = MAX_BYTES + 1;
    parse(&String::from_utf8_lossy(bytes.get(..limit).unwrap_or(bytes)))
}

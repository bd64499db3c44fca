//! Hugging Face models: `config.json` and the header of a safetensors file become a [`Graph`].
//!
//! A [`Config`] holds the dimensions under one set of names; [`graph()`] writes down which operators
//! transformers 5 runs on a GPU for that family, in their order: what is a view, what copies, which
//! functions are written out in elementwise steps. Facts were read in transformers 5.23 and in traces of its
//! models on torch's `meta` device.

mod adapter;
mod attention;
mod block;
mod build;
mod config;
mod decoder;
mod encoder;
mod fields;
mod habits;
mod infer;
mod maker;
mod names;
mod parse;
pub mod safetensors;
mod seq2seq;
mod speech;
mod towers;
mod vision;
mod xlnet;

pub use adapter::adapter;
pub use config::{Act, Config, Dropout, Experts, Family, Head, Image, NormKind, Waveform};

use crate::graph::Graph;
use crate::{Error, ModelTask};
use safetensors::Weights;

impl Config {
    /// Reads a `config.json`.
    ///
    /// # Errors
    /// Not JSON, a field of the wrong type or an absurd number, fields missing: the message names the field.
    pub fn parse(text: &str) -> Result<Self, Error> {
        parse::config(text)
    }

    /// Reads the dimensions off names and shapes of weights.
    ///
    /// # Errors
    /// Names that no family has, an index without shapes.
    pub fn of_weights(weights: &Weights) -> Result<Self, Error> {
        infer::config(weights)
    }
}

/// Whether the text is a configuration at all, be it one of a model that no template knows.
///
/// # Errors
/// Too long, not JSON, or not an object.
pub fn check(text: &str) -> Result<(), Error> {
    parse::fields(text).map(|_| ())
}

/// Operators of the model as the task runs it.
///
/// # Errors
/// A tensor that no GPU holds, dimensions that do not fit together.
pub fn graph(config: &Config, task: &ModelTask) -> Result<Graph, Error> {
    build::graph(config, task)
}

/// As [`graph()`], with as many parameters as the weights have: what the template lacks is added.
///
/// # Errors
/// As [`graph()`].
pub fn graph_with(config: &Config, weights: &Weights, task: &ModelTask) -> Result<Graph, Error> {
    let mut graph = build::graph(config, task)?;
    build::reconcile(&mut graph, weights);
    Ok(graph)
}

//! Options of `carma lab gpumemnet`.

use super::family;
use carma_memory::gpumemnet::{Ensemble, Family};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use std::path::PathBuf;

/// `carma lab gpumemnet`.
#[derive(Debug, Subcommand)]
pub(crate) enum GpumemnetVerb {
    /// Train networks on measured tasks, and say how good they are on tasks that they did not see
    Train(GpumemnetTrainArgs),
    /// Compare ensembles on all data at hand: carma's, and the authors' published weights
    Eval(GpumemnetEvalArgs),
    /// Answer one question of `carma estimate --gpumemnet-weights`: JSON in, JSON out
    #[command(hide = true)]
    Ask(GpumemnetAskArgs),
}

/// `carma lab gpumemnet ask`.
#[derive(Debug, Args)]
pub(crate) struct GpumemnetAskArgs {
    /// Folder of the authors' checkpoints
    #[arg(long, value_name = "DIR")]
    pub(crate) weights: PathBuf,
}

/// Designs that can be trained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Design {
    /// GPUMemNet's.
    Gpumemnet(Ensemble),
    /// A graph model.
    Dnnperf,
}

impl Design {
    fn named(name: &str) -> Self {
        match name {
            "mlp" => Self::Gpumemnet(Ensemble::Mlp),
            "transformer" => Self::Gpumemnet(Ensemble::Transformer),
            _ => Self::Dnnperf,
        }
    }
}

/// `carma lab gpumemnet train`.
#[derive(Debug, Args)]
pub(crate) struct GpumemnetTrainArgs {
    /// Measured tasks: a data set of `carma lab dataset`, or one of GPUMemNet's MLP sets; dnnperf learns from several
    /// data sets of carma together
    #[arg(long, value_name = "FILE", required = true)]
    pub(crate) data: Vec<PathBuf>,
    /// Family of the tasks; refused if the file holds another [default: the file's]
    #[arg(long, value_parser = family())]
    pub(crate) family: Option<Family>,
    /// Design of the networks: perceptrons over counts, attention over layers, or the graph model after DNNPerf
    #[arg(long, default_value = "mlp", value_parser = PossibleValuesParser::new(["mlp", "transformer", "dnnperf"])
        .map(|s| Design::named(&s)))]
    pub(crate) kind: Design,
    /// Learn classes of so many GB, as published, instead of a distribution that fits any width
    #[arg(long, value_name = "GB", value_parser = clap::value_parser!(u64).range(1..=64))]
    pub(crate) classes: Option<u64>,
    /// Feed the networks raw counts, as published
    #[arg(long)]
    pub(crate) published_features: bool,
    /// Folds of the cross-validation
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(2..=20))]
    pub(crate) folds: u8,
    /// Keep the networks of the folds only, not one trained on all tasks
    #[arg(long)]
    pub(crate) folds_only: bool,
    /// Everything random comes from it
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Most passes over the data [default: as for the networks that carma brings along]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) epochs: Option<u32>,
    /// Where to write the weights
    #[arg(long, value_name = "FILE")]
    pub(crate) out: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `carma lab gpumemnet eval`.
#[derive(Debug, Args)]
pub(crate) struct GpumemnetEvalArgs {
    /// Folder with the data of others, as `gpumemnet/` and `carma/` [default: ../shared/data]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) data: Option<PathBuf>,
    /// Weights of `carma lab gpumemnet train`, beside those that carma brings along
    #[arg(long, value_name = "FILE")]
    pub(crate) weights: Vec<PathBuf>,
    /// Ask the networks that carma brings along alone, those of their folds; train none now
    #[arg(long, conflicts_with_all = ["folds", "seed", "epochs"])]
    pub(crate) stored: bool,
    /// Tasks of this family alone
    #[arg(long, value_parser = family())]
    pub(crate) family: Option<Family>,
    /// This design alone [default: both of GPUMemNet, and dnnperf without training it: that takes long]
    #[arg(long, value_parser = PossibleValuesParser::new(["mlp", "transformer", "dnnperf"]).map(|s| Design::named(&s)))]
    pub(crate) ensemble: Option<Design>,
    /// Folds of the cross-validation
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(2..=20))]
    pub(crate) folds: u8,
    /// Everything random comes from it
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Most passes over the data [default: 250 for perceptrons as in `train`, 20 for attention instead of 60]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) epochs: Option<u32>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

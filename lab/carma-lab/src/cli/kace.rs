//! Options of `carma lab kace`.

use carma_interference::group::Mode;
use carma_interference::kace::features::{Aggregation, Target};
use carma_lab_interference::kace::trainer::RegressionKind;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use std::path::PathBuf;

/// `carma lab kace`.
#[derive(Debug, Subcommand)]
pub(crate) enum KaceVerb {
    /// Learn the sum of throughput of collocations from measured ones
    Train(KaceTrainArgs),
    /// Predict the throughput of collocations with a model of `train`, the best first
    Predict(KacePredictArgs),
    /// Repeat the experiments of KACE's artifact: every policy, protocol and size, beside what was published
    Eval(KaceEvalArgs),
}

/// How rows are divided and normalised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Splits {
    /// As the artifact.
    Artifact,
    /// Without a look at test rows.
    Honest,
    /// Both of them.
    Both,
}

impl Splits {
    fn named(name: &str) -> Self {
        match name {
            "artifact" => Self::Artifact,
            "honest" => Self::Honest,
            _ => Self::Both,
        }
    }
}

fn splits() -> impl TypedValueParser<Value = Splits> {
    PossibleValuesParser::new(["artifact", "honest", "both"]).map(|s| Splits::named(&s))
}

fn kind() -> impl TypedValueParser<Value = RegressionKind> {
    PossibleValuesParser::new(["lr", "rf", "nn"]).map(|s| match s.as_str() {
        "lr" => RegressionKind::Lr,
        "rf" => RegressionKind::Rf,
        _ => RegressionKind::Nn,
    })
}

fn target() -> impl TypedValueParser<Value = Target> {
    PossibleValuesParser::new(["throughput", "progress"]).map(|s| match s.as_str() {
        "throughput" => Target::SumThroughput,
        _ => Target::SumProgress,
    })
}

fn sharing() -> impl TypedValueParser<Value = Mode> {
    PossibleValuesParser::new(["mps", "time-slice"]).map(|s| match s.as_str() {
        "mps" => Mode::Mps,
        _ => Mode::TimeSlice,
    })
}

fn percentages() -> impl TypedValueParser<Value = Aggregation> {
    PossibleValuesParser::new(["artifact", "averaged"]).map(|s| match s.as_str() {
        "artifact" => Aggregation::Artifact,
        _ => Aggregation::PercentagesAveraged,
    })
}

/// `carma lab kace train`.
#[derive(Debug, Args)]
pub(crate) struct KaceTrainArgs {
    /// Folder with KACE's artifact, a CSV table of measured collocations in its format (docs/research/kace.md), or what
    /// `carma bench interference` measured
    #[arg(long, value_name = "DIR|FILE")]
    pub(crate) data: PathBuf,
    /// Learn from these features alone: `sm%,mem%,memcap` [default: all that the data have]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) features: Vec<String>,
    /// Of what `carma bench interference` measured, the windows under this sharing
    #[arg(long, value_name = "MODE", default_value = "mps", value_parser = sharing())]
    pub(crate) sharing: Mode,
    /// Where to write the model
    #[arg(long, short, value_name = "MODEL.json")]
    pub(crate) out: PathBuf,
    /// Linear regression, random forest, or neural network
    #[arg(long, default_value = "lr", value_parser = kind())]
    pub(crate) model: RegressionKind,
    /// What is predicted: the sum of items a second, or of progress (throughput over throughput alone)
    #[arg(long, default_value = "throughput", value_parser = target())]
    pub(crate) target: Target,
    /// Percentages of Nsight Compute: summed as in the artifact, or averaged as all others
    #[arg(long, default_value = "artifact", value_parser = percentages())]
    pub(crate) percentages: Aggregation,
    /// Learn from four fifths of the rows as the artifact, or from all (honest)
    #[arg(long, default_value = "honest", value_parser = PossibleValuesParser::new(["artifact", "honest"])
        .map(|s| Splits::named(&s)))]
    pub(crate) splits: Splits,
    /// Of the artifact's tables that of so many members a collocation
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(2..=4))]
    pub(crate) members: u8,
    /// Everything random comes from it
    #[arg(long, value_name = "N", default_value_t = 42)]
    pub(crate) seed: u64,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `carma lab kace predict`.
#[derive(Debug, Args)]
pub(crate) struct KacePredictArgs {
    /// Model that `carma lab kace train` wrote
    #[arg(long, value_name = "MODEL.json")]
    pub(crate) model: PathBuf,
    /// CSV table of collocations in the format of `train`; throughput may be left out
    #[arg(long, value_name = "FILE")]
    pub(crate) data: PathBuf,
    /// Only collocations with this workload: its partners, ranked
    #[arg(long, value_name = "WORKLOAD")]
    pub(crate) target: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `carma lab kace eval`.
#[derive(Debug, Args)]
pub(crate) struct KaceEvalArgs {
    /// Folder with KACE's artifact
    #[arg(long, value_name = "DIR", default_value = "../shared/data/nba556677go__KACE-artifact")]
    pub(crate) data: PathBuf,
    /// KACE as the artifact divides and normalises rows, honestly (training rows alone decide), or both
    #[arg(long, default_value = "both", value_parser = splits())]
    pub(crate) splits: Splits,
    /// Threads to work on; results do not depend on it [default: all cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

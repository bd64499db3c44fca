//! The command line, as data. What the verbs do is in [`crate::commands`].

pub(crate) mod dataset;
pub(crate) mod gpumemnet;
pub(crate) mod kace;
pub(crate) mod policies;

use carma_lab_gpu_models::reproduce::TABLES;
use carma_lab_interference::bench::PARTS;
use carma_memory::gpumemnet::Family;
use carma_sim::trace::import::Format;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;

/// The laboratory of carma: data sets, training, benches and fits.
#[derive(Debug, Parser)]
#[command(
    name = "carma-lab",
    bin_name = "carma lab",
    version,
    max_term_width = 100,
    after_help = "Data of others is looked for in ../shared/data, our own in bench/h200/results, below the folder where \
                  the command is given; --data names another folder. Exit codes: 0; 2 usage; 1 otherwise."
)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

/// The verbs.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Compare all estimators of GPU memory with what was measured
    EstimateBench(EstimateBenchArgs),
    /// Train and compare GPUMemNet, the networks that say the class of a task's memory
    #[command(subcommand)]
    Gpumemnet(gpumemnet::GpumemnetVerb),
    /// Make, measure and check data sets of GPU memory
    #[command(subcommand)]
    Dataset(dataset::DatasetVerb),
    /// Compare the predictor of slowdown and its baselines with what was measured
    InterferenceBench(InterferenceBenchArgs),
    /// Train KACE, which predicts the throughput of collocations, or compare it and its baselines with what was published
    #[command(subcommand)]
    Kace(kace::KaceVerb),
    /// Compare forecasts of run time and their baselines on public traces
    RuntimeBench(RuntimeBenchArgs),
    /// Fit the model of a GPU type to measurements, and say how far off it is
    Fit(FitArgs),
    /// Replay published tables through the simulator, and print both in Markdown
    Reproduce(ReproduceArgs),
    /// Bound what any schedule of a trace can reach, and search for good ones with everything known
    Bound(policies::BoundArgs),
    /// Compare all policies on CARMA's traces with bound and search, on made-up traces by load, and on days of Philly
    Policies(policies::PoliciesArgs),
}

/// `carma lab estimate-bench`.
#[derive(Debug, Args)]
pub(crate) struct EstimateBenchArgs {
    /// Folder with the data of others, as `gpumemnet/` and `carma/` [default: ../shared/data]
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// Print JSON
    #[arg(long, conflicts_with = "markdown")]
    pub(crate) json: bool,
    /// Print tables in Markdown, as in docs/research/memory-estimation.md
    #[arg(long)]
    pub(crate) markdown: bool,
    /// Run the tests of one group alone
    #[arg(long, value_name = "GROUP", value_parser = PossibleValuesParser::new(carma_lab_memory::bench::groups()))]
    pub(crate) only: Option<String>,
    /// Write every single estimate to this file, as CSV: what was measured, what was said
    #[arg(long, value_name = "FILE")]
    pub(crate) rows: Option<PathBuf>,
    /// Write the kernels of each described model and what it did alone to this file, as bench/h200/activity_fit.py reads it
    #[arg(long, value_name = "FILE")]
    pub(crate) kernels: Option<PathBuf>,
}

/// `carma lab interference-bench`.
#[derive(Debug, Clone, Args)]
pub(crate) struct InterferenceBenchArgs {
    /// Folder with the data of others [default: ../shared/data]
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// Run this part only
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(PARTS))]
    pub(crate) only: Option<String>,
    /// Instead, learn from the repository's own records of an H200 and write the model that comes with carma
    #[arg(long, value_name = "FILE", conflicts_with_all = ["only", "json", "markdown"])]
    pub(crate) learn: Option<PathBuf>,
    /// Print JSON
    #[arg(long, conflicts_with = "markdown")]
    pub(crate) json: bool,
    /// Exit with 1 where a number falls short of what is to be reached
    #[arg(long)]
    pub(crate) check: bool,
    /// Print tables in Markdown, as in docs/research/interference.md
    #[arg(long)]
    pub(crate) markdown: bool,
}

/// `carma lab runtime-bench`.
#[derive(Debug, Args)]
pub(crate) struct RuntimeBenchArgs {
    /// Folder with the data of others [default: ../shared/data]
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// Instead, a job trace of yours: as `carma trace` writes it, or in the format of --format
    #[arg(long, value_name = "FILE", conflicts_with = "data")]
    pub(crate) trace: Option<PathBuf>,
    /// Format of --trace, one that `carma trace import` takes
    #[arg(long, value_name = "FORMAT", requires = "trace", value_parser = format())]
    pub(crate) format: Option<Format>,
    /// Exit with 1 where a baseline has a smaller loss on the later half
    #[arg(long)]
    pub(crate) check: bool,
    /// Print JSON
    #[arg(long, conflicts_with = "markdown")]
    pub(crate) json: bool,
    /// Print the page in Markdown: docs/research/runtime.md
    #[arg(long)]
    pub(crate) markdown: bool,
}

/// `carma lab fit`.
#[derive(Debug, Args)]
pub(crate) struct FitArgs {
    /// What to fit: a100, h200 or v100
    #[arg(value_parser = PossibleValuesParser::new(["a100", "h200", "v100"]))]
    pub(crate) gpu: String,
    /// The measurements (folder or file; docs/research/gpu-models.md says which)
    #[arg(long, value_name = "PATH")]
    pub(crate) data: Option<PathBuf>,
    /// Write the fitted model here
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Print as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `carma lab reproduce`.
#[derive(Debug, Args)]
pub(crate) struct ReproduceArgs {
    /// Folder with the data of others, with CARMA's traces in `carma/` [default: ../shared/data]
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// Make this table only
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(TABLES))]
    pub(crate) only: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// A format of job traces.
fn format() -> impl TypedValueParser<Value = Format> {
    PossibleValuesParser::new(Format::ALL.map(Format::as_str))
        .try_map(|word| Format::parse(&word).ok_or_else(|| format!("no format `{word}`")))
}

/// A family of models.
fn family() -> impl TypedValueParser<Value = Family> {
    PossibleValuesParser::new(Family::ALL.map(Family::as_str))
        .try_map(|word| Family::named(&word).ok_or_else(|| format!("no family `{word}`")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }
}

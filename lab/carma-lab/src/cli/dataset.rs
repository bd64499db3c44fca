//! Options of `carma lab dataset`.

use super::family;
use carma_memory::gpumemnet::Family;
use clap::{Args, Subcommand};
use std::ffi::OsString;
use std::path::PathBuf;

/// `carma lab dataset`.
#[derive(Debug, Subcommand)]
pub(crate) enum DatasetVerb {
    /// Make random models of a family, to be measured
    Generate(DatasetGenerateArgs),
    /// Train models on a GPU, several at once, and write what memory each took
    Measure(DatasetMeasureArgs),
    /// Check what was measured, describe it and draw it
    Clean(DatasetCleanArgs),
}

/// `carma lab dataset generate`.
#[derive(Debug, Args)]
pub(crate) struct DatasetGenerateArgs {
    /// Family of the models
    #[arg(long, value_parser = family())]
    pub(crate) family: Family,
    /// How many
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) count: u32,
    /// The same seed makes the same models
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Where to write them; compressed if the name ends in .gz
    #[arg(long, short, value_name = "FILE.csv")]
    pub(crate) output: PathBuf,
}

/// `carma lab dataset measure`.
#[derive(Debug, Args)]
pub(crate) struct DatasetMeasureArgs {
    /// Models of `carma lab dataset generate`, or rows of the family `model` for --models
    #[arg(value_name = "FILE.csv")]
    pub(crate) rows: PathBuf,
    /// Where to append what each took; rows that are there already are not measured again
    #[arg(long, short, value_name = "FILE.csv")]
    pub(crate) output: PathBuf,
    /// A Python that has PyTorch
    #[arg(long, value_name = "PYTHON", default_value = "python3")]
    pub(crate) python: OsString,
    /// Processes that measure at once; each holds 0.6 to 0.9 GiB of the GPU beside the models
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) workers: u16,
    /// GPU memory for all models at once, MiB [default: that of the GPU, less 5 % and the workers' contexts]
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) memory_budget: Option<u64>,
    /// Python file whose `case(row)` builds the models of the family `model`
    #[arg(long, value_name = "FILE.py")]
    pub(crate) models: Option<PathBuf>,
    /// A new process for every model: slow, to check what resident ones say
    #[arg(long)]
    pub(crate) fresh: bool,
    /// Start no model after so many seconds
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) budget: Option<u32>,
    /// A rehearsal without a GPU: on `meta` shapes only, on `cpu` numbers, too; no memory is measured
    #[arg(long, value_name = "DEVICE", value_parser = ["meta", "cpu"])]
    pub(crate) rehearse: Option<String>,
    /// Another program instead of the worker, for tests
    #[arg(long, value_name = "COMMAND", hide = true)]
    pub(crate) worker_command: Option<String>,
}

/// `carma lab dataset clean`.
#[derive(Debug, Args)]
pub(crate) struct DatasetCleanArgs {
    /// What was measured; several files become one
    #[arg(value_name = "FILE.csv", required = true)]
    pub(crate) files: Vec<PathBuf>,
    /// Some of the same runs, measured with `measure --fresh`: what CUDA contexts take without a worker's past
    #[arg(long, value_name = "FILE.csv")]
    pub(crate) fresh: Option<PathBuf>,
    /// Where to write what is left; compressed if the name ends in .gz
    #[arg(long, value_name = "FILE.csv")]
    pub(crate) out: Option<PathBuf>,
    /// Draw the tasks by what is known before they run, coloured by the class of their memory
    #[arg(long, value_name = "FILE.svg")]
    pub(crate) picture: Option<PathBuf>,
    /// Width of the classes in the picture
    #[arg(long, value_name = "GB", default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=64))]
    pub(crate) class_gb: u64,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

//! `carma lab bound` and `carma lab policies`.

use carma_core::model::SharingMode;
use carma_lab_policies::compare::TABLES;
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use std::path::PathBuf;

/// `carma lab bound`.
#[derive(Debug, Args)]
pub(crate) struct BoundArgs {
    /// Folder with the data of others, with CARMA's traces in `carma/` [default: ../shared/data]
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// Instead, a job trace of yours
    #[arg(long, value_name = "FILE", conflicts_with = "data")]
    pub(crate) trace: Option<PathBuf>,
    /// What its tasks do alone
    #[arg(long, value_name = "FILE", requires = "trace")]
    pub(crate) catalogue: Option<PathBuf>,
    /// GPUs [default: 4xA100-40GB]
    #[arg(long, value_name = "SPEC")]
    pub(crate) cluster: Option<String>,
    /// One way of sharing only
    #[arg(long, value_name = "MODE", value_parser = sharing())]
    pub(crate) sharing: Option<SharingMode>,
    /// Runs of the simulator for each objective of each trace
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) evaluations: u64,
    /// Seed of the start-up times and of the search
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Threads [default: one a processor]
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<usize>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// A way of sharing in which jobs share.
fn sharing() -> impl TypedValueParser<Value = SharingMode> {
    PossibleValuesParser::new(["mps", "time-slice"])
        .map(|word| if word == "mps" { SharingMode::Mps } else { SharingMode::TimeSlice })
}

/// `carma lab policies`.
#[derive(Debug, Args)]
pub(crate) struct PoliciesArgs {
    /// Folder with the data of others, with CARMA's traces in `carma/` [default: ../shared/data]
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// Make this table only
    #[arg(long, value_name = "TABLE", value_parser = PossibleValuesParser::new(TABLES))]
    pub(crate) only: Option<String>,
    /// What `carma lab bound --json` printed for CARMA's traces, in place of new searches
    #[arg(long, value_name = "FILE")]
    pub(crate) bound: Option<PathBuf>,
    /// Runs of the simulator for each objective of each search
    #[arg(long, value_name = "N", conflicts_with = "bound", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) evaluations: Option<u64>,
    /// Seed of the start-up times, of what is drawn and of the search
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Threads [default: one a processor]
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<usize>,
    /// Fewer and smaller runs: for a try, not for results
    #[arg(long)]
    pub(crate) quick: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

//! Options of `carma predict` and `carma lab interference-bench`.

use carma_interference::group::{Mode, Objective};
use carma_interference::predict::policy::NAMES;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{ArgGroup, Args};
use std::path::PathBuf;

/// `carma predict`.
#[derive(Debug, Clone, Args)]
#[command(group = ArgGroup::new("what").args(["jobs", "members", "target", "observe"]).required(true))]
pub(crate) struct PredictArgs {
    /// Jobs of the daemon that would share a GPU, running, waiting or finished: numbers
    #[arg(value_name = "JOB", conflicts_with = "profiles")]
    pub(crate) jobs: Vec<u64>,
    /// Solo profiles, as `carma profile` or `carma bench interference` write them (docs/interference.md) [default:
    /// what the daemon knows; names are numbers of jobs then]
    #[arg(long, value_name = "FILE")]
    pub(crate) profiles: Option<PathBuf>,
    /// The tasks that share a GPU
    #[arg(long = "group", value_name = "NAME,NAME...", value_delimiter = ',')]
    pub(crate) members: Vec<String>,
    /// The task that partners are ranked for
    #[arg(long, value_name = "NAME", requires = "candidates")]
    pub(crate) target: Option<String>,
    /// Partners to rank; `b+c` is both together
    #[arg(long, value_name = "NAME,NAME...", value_delimiter = ',', requires = "target")]
    pub(crate) candidates: Vec<String>,
    /// Type of the GPU [default: that of the profiles]
    #[arg(long, value_name = "NAME")]
    pub(crate) gpu: Option<String>,
    /// How they share it [default: mps, or as the daemon's jobs do]
    #[arg(long, value_name = "MODE", value_parser = sharing())]
    pub(crate) sharing: Option<Mode>,
    /// MPS thread percentages: `a=50,b=50`, for a name given twice in order; `best` looks for the best split in steps
    /// of 10 % (--policy online)
    #[arg(long, value_name = "NAME=PCT,...", conflicts_with_all = ["target", "observe"])]
    pub(crate) threads: Option<String>,
    /// What predicts
    #[arg(long, value_name = "NAME", default_value = "online", value_parser = PossibleValuesParser::new(NAMES))]
    pub(crate) policy: String,
    /// What is to be large: the sum of progress, the least progress (its lower bound), or the sum of rates
    #[arg(long, value_name = "WHAT", default_value = "sum", value_parser = objective())]
    pub(crate) objective: Objective,
    /// What the predictor has learned; with --observe it is made or brought up to date
    #[arg(long, value_name = "FILE")]
    pub(crate) model: Option<PathBuf>,
    /// For --policy kace: what `carma lab kace train` wrote [default: the model that carma ships]
    #[arg(long, value_name = "FILE")]
    pub(crate) kace_model: Option<PathBuf>,
    /// For --policy oracle: what `carma bench interference` measured
    #[arg(long, value_name = "FILE")]
    pub(crate) measured: Option<PathBuf>,
    /// Learn from what `carma bench interference` measured, and keep it in --model; windows that it knows are not
    /// learned twice
    #[arg(long, value_name = "FILE", requires = "model")]
    pub(crate) observe: Option<PathBuf>,
    /// With --observe: a new model begins with nothing learned, not with what comes with carma
    #[arg(long, requires = "observe")]
    pub(crate) from_nothing: bool,
    /// With --observe: keep what holds for every task of the GPU type, and no task
    #[arg(long, requires = "observe")]
    pub(crate) no_classes: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

fn sharing() -> impl TypedValueParser<Value = Mode> {
    PossibleValuesParser::new(["mps", "time-slice"]).map(|word| match word.as_str() {
        "mps" => Mode::Mps,
        _ => Mode::TimeSlice,
    })
}

fn objective() -> impl TypedValueParser<Value = Objective> {
    PossibleValuesParser::new(["sum", "min", "rate"]).map(|word| match word.as_str() {
        "min" => Objective::MaxMin,
        "rate" => Objective::Throughput,
        _ => Objective::WeightedSpeedup,
    })
}

//! Options of `carma bench`.

use carma_api::parse;
use carma_core::model::SharingMode;
use carma_core::policy::presets;
use carma_core::units::Millis;
use carma_interference::share::Mode;
use carma_measure::trace::Wanted;
use carma_sim::event::baselines;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use std::path::PathBuf;

/// `carma bench`.
#[derive(Debug, Subcommand)]
pub(crate) enum BenchVerb {
    /// Measure what tasks do to each other: alone, in pairs, triples, quadruples
    Interference(Box<InterferenceArgs>),
    /// Measure how much more work a GPU gets done when several trainings share it, by way and number
    Collocation(Box<CollocationArgs>),
    /// Measure what policies make of a trace of tasks, one after the other on the same GPUs
    Trace(Box<TraceArgs>),
}

/// `carma bench interference`.
#[derive(Debug, Args)]
pub(crate) struct InterferenceArgs {
    /// The tasks: TOML (docs/measuring-interference.md)
    #[arg(long, value_name = "FILE")]
    pub(crate) tasks: PathBuf,
    /// Where the results go; beside it, NAME.log.jsonl grows a line a window, and the same command goes on from there
    #[arg(long, short, value_name = "FILE.json", default_value = "interference.json")]
    pub(crate) output: PathBuf,
    /// Only these tasks of the file
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    pub(crate) only: Vec<String>,
    /// Each task alone; always done, since everything else is compared with it
    #[arg(long, help_heading = "What to run [default: --solo --pairs]")]
    pub(crate) solo: bool,
    /// All pairs; with itself, a task that has two copies
    #[arg(long, help_heading = "What to run [default: --solo --pairs]")]
    pub(crate) pairs: bool,
    /// So many random triples, in which each task occurs about equally often
    #[arg(
        long,
        value_name = "N",
        default_value_t = 0,
        help_heading = "What to run [default: --solo --pairs]"
    )]
    pub(crate) triples: usize,
    /// So many random quadruples
    #[arg(
        long,
        value_name = "N",
        default_value_t = 0,
        help_heading = "What to run [default: --solo --pairs]"
    )]
    pub(crate) quads: usize,
    /// Groups from a file: one a line, names separated by commas
    #[arg(long, value_name = "FILE", help_heading = "What to run [default: --solo --pairs]")]
    pub(crate) groups: Option<PathBuf>,
    /// Each task alone under MPS with these shares of the threads; 100 for no limit
    #[arg(long, value_name = "PCT,...", value_delimiter = ',', value_parser = clap::value_parser!(u8).range(1..=100),
        help_heading = "What to run [default: --solo --pairs]")]
    pub(crate) threads: Vec<u8>,
    /// Pairs under MPS with the threads divided so: 50/50,25/75
    #[arg(long, value_name = "P/Q,...", value_delimiter = ',', value_parser = split,
        help_heading = "What to run [default: --solo --pairs]")]
    pub(crate) splits: Vec<(u8, u8)>,
    /// How many pairs, drawn at random, for --splits
    #[arg(
        long,
        value_name = "N",
        default_value_t = 20,
        help_heading = "What to run [default: --solo --pairs]"
    )]
    pub(crate) split_pairs: usize,
    /// How the tasks share the GPU [default: the file's, else time-slice]
    #[arg(long, value_name = "MODE,...", value_delimiter = ',', value_parser = mode())]
    pub(crate) sharing: Vec<Mode>,
    /// How often each task runs alone: at the start, at the end, and evenly between
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(2..=100))]
    pub(crate) solo_rounds: u8,
    /// Measure every combination so often
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) repeat: u32,
    /// Seed of what is drawn and of the order
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Length of a window [default: the file's, else 1.5]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) window: Option<f64>,
    /// Stop in time to be over after so many seconds, and say what is left
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) budget: Option<f64>,
    /// Measure again what failed
    #[arg(long)]
    pub(crate) retry_failed: bool,
    /// Folder for what the tasks print [default: kept only until the end]
    #[arg(long, value_name = "DIR")]
    pub(crate) logs: Option<PathBuf>,
    /// The GPUs: nvml, or a model such as virtual:1xH200
    #[arg(long, value_name = "SPEC", default_value = "nvml")]
    pub(crate) gpus: String,
    /// Which of them: index or UUID [default: the file's, else the first]
    #[arg(long, value_name = "GPU")]
    pub(crate) gpu: Option<String>,
    /// Let time pass N times faster; for virtual GPUs only
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) speed: Option<u32>,
    /// NVIDIA's control program for MPS
    #[arg(long, value_name = "PROGRAM", default_value = "nvidia-cuda-mps-control")]
    pub(crate) mps_control: PathBuf,
    /// Print the results as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `carma bench collocation`.
#[derive(Debug, Args)]
pub(crate) struct CollocationArgs {
    /// The trainings: TOML as for interference, with `copies` [default: residual networks that come with carma, which need
    /// PyTorch and timm]
    #[arg(long, value_name = "FILE")]
    pub(crate) tasks: Option<PathBuf>,
    /// Only these
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    pub(crate) only: Vec<String>,
    /// How they share the GPU: streams (of one process), time-slice, mps, threads (MPS with the threads divided)
    #[arg(long, value_name = "WAY,...", value_delimiter = ',', default_value = "streams,time-slice,mps,threads",
        value_parser = PossibleValuesParser::new(["streams", "time-slice", "mps", "threads"]))]
    pub(crate) ways: Vec<String>,
    /// How many at a time; one alone is always measured [default: 2 to 7, and no more than 4 of those of 224 pixels, which is
    /// what 40 GB hold]
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = clap::value_parser!(u8).range(2..=64))]
    pub(crate) counts: Option<Vec<u8>>,
    /// Measure each so often
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) repeat: u32,
    /// Length of a window, seconds
    #[arg(long, value_name = "SECONDS", default_value = "4", value_parser = seconds)]
    pub(crate) window: f64,
    /// Stop in time to be over after this long, and say how much is left; the same command goes on there
    #[arg(long, value_name = "TIME", value_parser = parse::duration)]
    pub(crate) budget: Option<Millis>,
    /// Folder of the results; what is there is not measured again
    #[arg(long, short, value_name = "DIR", default_value = "bench-collocation")]
    pub(crate) output: PathBuf,
    /// The GPUs: nvml, or a model such as virtual:1xH200
    #[arg(long, value_name = "SPEC", default_value = "nvml")]
    pub(crate) gpus: String,
    /// Which of them: index or UUID [default: the first]
    #[arg(long, value_name = "GPU")]
    pub(crate) gpu: Option<String>,
    /// Let time pass N times faster; for virtual GPUs only
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) speed: Option<u32>,
    /// NVIDIA's control program for MPS
    #[arg(long, value_name = "PROGRAM", default_value = "nvidia-cuda-mps-control")]
    pub(crate) mps_control: PathBuf,
    /// Print the figures as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `carma bench trace`.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit code 1: a job did not complete that was not meant to fail (--add), no play was over, or the bench was interrupted; 75: another process uses the GPUs."
)]
pub(crate) struct TraceArgs {
    /// The tasks: TOML (docs/bench-trace.md) [default: those that come with carma, which need PyTorch]
    #[arg(long, value_name = "FILE")]
    pub(crate) tasks: Option<PathBuf>,
    /// Only these tasks of the file
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    pub(crate) only: Vec<String>,
    /// A policy; may be repeated. NAME+history plays once more with what the play before taught, NAME+declared tells what
    /// memory tasks need, NAME@time-slice and NAME@mps share so [default: exclusive, or-magm, adaptive, adaptive+history]
    #[arg(long, value_name = "POLICY,...", value_delimiter = ',', value_parser = wanted)]
    pub(crate) policy: Vec<Wanted>,
    /// Play each policy so often, beginning with another one each time
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) repeat: u32,
    /// Number of jobs; of a trace file the first N
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000), help_heading = "The trace")]
    pub(crate) jobs: Option<u32>,
    /// How jobs come: poisson, uniform, bursty, batch, or the arrivals of a trace (CSV, as for carma simulate)
    #[arg(long, value_name = "PROCESS|FILE", default_value = "poisson", help_heading = "The trace")]
    pub(crate) arrivals: String,
    /// Which trace, where the file holds several
    #[arg(long, value_name = "NAME", help_heading = "The trace")]
    pub(crate) trace_name: Option<String>,
    /// Mean time between two arrivals: 30s, 5m; a bare number is minutes, as of all TIMEs. Those of a file are stretched or
    /// compressed to it [default: 2s, of a file its own]
    #[arg(long, value_name = "TIME", value_parser = parse::duration, help_heading = "The trace")]
    pub(crate) mean_gap: Option<Millis>,
    /// Take the tasks that the trace file names, not those of the file in turn
    #[arg(long, help_heading = "The trace")]
    pub(crate) named: bool,
    /// A job of each of these tasks as well, spread evenly over the trace; beside the file's own there are two that come with
    /// carma to fail: out_of_memory, illegal_address
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', help_heading = "The trace")]
    pub(crate) add: Vec<String>,
    /// The limit of a task's jobs: how much neighbours may slow them down (resnet50=1.3), or within what 99 of 100 of their
    /// requests are to be answered (distilbert_serve=20ms)
    #[arg(long, value_name = "NAME=FACTOR|TIME,...", value_delimiter = ',', value_parser = limit, help_heading = "The trace")]
    pub(crate) limit: Vec<(String, String)>,
    /// Seed of the arrivals and of the order of the tasks
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "The trace")]
    pub(crate) seed: u64,
    /// Multiply the steps of the tasks
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = factor, help_heading = "The trace")]
    pub(crate) work: f64,
    /// How jobs share a GPU where the policy does not say
    #[arg(long, value_name = "MODE", value_parser = super::sharing(), default_value = "mps")]
    pub(crate) sharing: SharingMode,
    /// Configuration of the daemon [default: none, not the machine's either]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Kill the daemon when this share of the jobs has come, and start it again
    #[arg(long, value_name = "SHARE", value_parser = share)]
    pub(crate) kill_daemon: Option<f64>,
    /// Folder of the results; what is there is not played again
    #[arg(long, short, value_name = "DIR", default_value = "bench-trace")]
    pub(crate) output: PathBuf,
    /// Stop in time to be over after this long, and say what is left; the same command goes on there. 15 s of it are kept to end
    /// and to write, so that the least is 16s
    #[arg(long, value_name = "TIME", value_parser = parse::duration)]
    pub(crate) budget: Option<Millis>,
    /// The longest that one play may take, in seconds of the trace: at --speed 60 one of the clock's is 60
    #[arg(long, value_name = "TIME", value_parser = parse::duration, default_value = "6h")]
    pub(crate) longest: Millis,
    /// The GPUs: nvml (of them those in CUDA_VISIBLE_DEVICES), or a model such as virtual:4xA100-40GB
    #[arg(long, value_name = "SPEC", default_value = "nvml")]
    pub(crate) gpus: String,
    /// Let time pass N times faster; for virtual GPUs only
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) speed: Option<u32>,
    /// Play nothing: put the results of earlier calls together into one table
    #[arg(long, value_name = "DIR", num_args = 1.., conflicts_with_all = ["tasks", "policy", "budget"])]
    pub(crate) merge: Vec<PathBuf>,
    /// Print the figures as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// A policy of the daemon; those that only the simulator plays are told apart.
fn wanted(text: &str) -> Result<Wanted, String> {
    let name = text.split(['+', '@']).next().unwrap_or_default();
    if baselines::baseline(name).is_some() {
        let here = presets::NAMES.iter().filter(|name| name.parse::<Wanted>().is_ok());
        return Err(format!(
            "{name} is a policy of the simulator alone, since it needs powers that the daemon does not have: `carma simulate` plays \
             it; here there are: {}",
            here.copied().collect::<Vec<_>>().join(", ")
        ));
    }
    text.parse()
}

fn factor(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(factor) if (1e-4..=1e4).contains(&factor) => Ok(factor),
        _ => Err(format!("'{text}' is no factor from 0.0001 to 10000")),
    }
}

fn share(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err(format!("'{text}' is no share from 0 to 1")),
    }
}

fn limit(text: &str) -> Result<(String, String), String> {
    let (name, limit) =
        text.rsplit_once('=').ok_or_else(|| format!("'{text}' is no NAME=FACTOR and no NAME=TIME"))?;
    Ok((name.to_owned(), limit.to_owned()))
}

fn mode() -> impl TypedValueParser<Value = Mode> {
    PossibleValuesParser::new(["time-slice", "mps"]).map(|word| match word.as_str() {
        "mps" => Mode::Mps,
        _ => Mode::TimeSlice,
    })
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds <= 1e6 => Ok(seconds),
        _ => Err(format!("'{text}' is no number of seconds above 0")),
    }
}

fn split(text: &str) -> Result<(u8, u8), String> {
    let bad = || format!("'{text}' is no division of the threads; write 50/50 or 25/75");
    let (p, q) = text.split_once('/').ok_or_else(bad)?;
    let pct = |t: &str| t.trim().parse::<u8>().ok().filter(|pct| (1..=100).contains(pct)).ok_or_else(bad);
    Ok((pct(p)?, pct(q)?))
}

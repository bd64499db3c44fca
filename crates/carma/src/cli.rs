//! The command line, as data. What the verbs do is in [`crate::commands`].

pub(crate) mod bench;
pub(crate) mod journal;
pub(crate) mod memory;
pub(crate) mod predict;
pub(crate) mod profile;
#[cfg(test)]
mod reference;

use carma_api::parse;
use carma_api::wire::CheckpointSignal;
use carma_core::model::SharingMode;
use carma_core::units::{MiB, Millis};
use clap::builder::{OsStringValueParser, PossibleValuesParser, Resettable, TypedValueParser};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgMatches, Args, CommandFactory, Parser, Subcommand};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;

/// The verbs that users need, by what they want to do, in the order of the help.
const GROUPS: [(&str, &[&str]); 5] = [
    (
        "Jobs",
        &[
            "submit", "run", "cancel", "wait", "logs", "hold", "release", "requeue", "suspend", "resume",
            "move",
        ],
    ),
    ("Looking", &["queue", "show", "explain", "gpus", "history", "usage", "report"]),
    ("Before a job runs", &["estimate", "dry-run", "profile", "predict"]),
    ("The machine", &["serve", "doctor", "drain"]),
    ("Research (demo and simulate: models, not measurements)", &["demo", "simulate", "bench", "lab"]),
];

/// The others, which are named in one line.
const ALSO: [&str; 5] = ["config", "journal", "trace", "trace-model", "virtual-task"];

/// The parser, with a help that groups the verbs.
pub(crate) fn command() -> clap::Command {
    let mut command = Cli::command();
    command.build();
    let mut help = String::from("{about}\n\n{usage-heading} {usage}\n");
    for (heading, verbs) in GROUPS {
        let _ = write!(help, "\n{heading}:\n");
        for verb in verbs {
            if let Some(sub) = command.find_subcommand(verb) {
                let about = sub.get_about().map(ToString::to_string).unwrap_or_default();
                let _ = writeln!(help, "  {verb:<9} {about}");
            }
        }
    }
    let _ = write!(help, "\nAlso: {}; `carma help VERB` says more\n", ALSO.join(", "));
    help.push_str("\nOptions:\n{options}{after-help}");
    takes_minus(Cli::command().help_template(help))
}

/// What options that take a number, a size or a time call it.
const NUMBERS: [&str; 11] =
    ["N", "TIME", "SIZE", "SHARE", "SECONDS", "S", "FACTOR", "PCT", "RANK", "MIB", "WHEN"];

/// Gives values that begin with a minus to the options' own parsers, which say what they expect. clap would take them for
/// options, and advise to write `--` before them, behind which a job's command begins.
fn takes_minus(command: clap::Command) -> clap::Command {
    let is_number = |arg: &clap::Arg| {
        let one = arg.get_num_args().is_none_or(|values| values.min_values() == 1);
        let named = arg.get_value_names().is_some_and(|names| names.iter().all(|n| NUMBERS.contains(&&**n)));
        one && named && !arg.is_positional()
    };
    command
        .mut_args(|arg| if is_number(&arg) { arg.allow_hyphen_values(true) } else { arg })
        .mut_subcommands(takes_minus)
}

/// What the command line says.
///
/// # Errors
/// A mistake in it, or a help that was asked for.
pub(crate) fn matches() -> Result<ArgMatches, clap::Error> {
    command().try_get_matches().map_err(|error| with_hint(without_value(without_environment(error))))
}

/// What others call a verb of carma's.
const CALLED: [(&str, &str); 2] = [("top", "carma gpus --watch"), ("ps", "carma queue")];

/// A word that means something elsewhere, with what it is here.
fn with_hint(mut error: clap::Error) -> clap::Error {
    let known = match error.get(ContextKind::InvalidSubcommand) {
        Some(ContextValue::String(word)) => CALLED.iter().find(|(called, _)| called == word),
        _ => None,
    };
    if let Some((_, here)) = known {
        error.remove(ContextKind::SuggestedSubcommand);
        let tip = format!("that is `{here}`").into();
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip]));
    }
    error
}

/// A mistake as it is told where no variable is set: clap counts options from the environment among those that were written, and puts them
/// into the usage as if they had to be.
fn without_environment(error: clap::Error) -> clap::Error {
    if !error.use_stderr() {
        return error;
    }
    let bare = command().mut_arg("socket", |arg| arg.env(Resettable::Reset));
    bare.try_get_matches().err().unwrap_or(error)
}

/// Where an option took the next one for its value, it has none.
fn without_value(error: clap::Error) -> clap::Error {
    let value = error.get(ContextKind::InvalidValue);
    let option = matches!(value, Some(ContextValue::String(value)) if value.starts_with("--"));
    let arg =
        error.get(ContextKind::InvalidArg).filter(|_| option && error.kind() == ErrorKind::ValueValidation);
    let Some(arg) = arg else { return error };
    let mut told = clap::Error::new(ErrorKind::InvalidValue).with_cmd(&command());
    told.insert(ContextKind::InvalidArg, arg.clone());
    told.insert(ContextKind::InvalidValue, ContextValue::String(String::new()));
    told
}

/// Runs GPU jobs, several on one GPU where that is safe and pays, and explains every decision.
#[derive(Debug, Parser)]
#[command(
    name = "carma",
    version,
    max_term_width = 100,
    after_help = "Exit codes: 0; a job's own (run, wait); 2 usage; 69 no daemon; 75 no capacity now; 77 not allowed; 1 otherwise."
)]
pub(crate) struct Cli {
    /// Socket of the daemon [default: /run/carma/carma.sock if there, else that of your own daemon]
    // Below all others: few need it.
    #[arg(
        long,
        global = true,
        env = "CARMA_SOCKET",
        value_name = "PATH",
        hide_env_values = true,
        display_order = 998
    )]
    pub(crate) socket: Option<PathBuf>,
    /// What to do.
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

/// The verbs.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Submit a job and return at once
    Submit(Box<SubmitArgs>),
    /// Submit a job, follow its output and return its exit code
    Run(Box<RunArgs>),
    /// Show running and waiting jobs
    Queue(QueueArgs),
    /// Show everything about a job
    Show(ShowArgs),
    /// Say why a job waits, or why it went where it went
    Explain(ShowArgs),
    /// Cancel jobs
    Cancel(JobsArgs),
    /// Print a job's output
    Logs(LogsArgs),
    /// Wait for jobs to end and return their exit code
    Wait(WaitArgs),
    /// Show the GPUs and what is on them
    Gpus(GpusArgs),
    /// Show finished jobs, newest first
    History(HistoryArgs),
    /// Show what users have had of the GPUs, and what is left of their quotas
    Usage(UsageArgs),
    /// Keep waiting jobs from starting
    Hold(JobsArgs),
    /// Let held jobs go
    Release(JobsArgs),
    /// End running jobs and put them back into the queue, or submit finished ones again
    Requeue(JobsArgs),
    /// Let a running or suspended job go on on another GPU
    Move(MoveArgs),
    /// Start no more jobs on GPUs; those that run go on, or move away
    Drain(DrainArgs),
    /// Take running jobs off their GPU for a while, with their GPU memory in the host's
    Suspend(JobsArgs),
    /// Let suspended jobs go on, or use drained GPUs again
    Resume(ResumeArgs),
    /// Check the configuration
    #[command(subcommand)]
    Config(ConfigVerb),
    /// Check what carma needs on this machine, and say what to do
    Doctor(DoctorArgs),
    /// Start the daemon
    Serve(ServeArgs),
    /// Check, copy or repair the journal, the file that all of the daemon's state comes from
    #[command(subcommand)]
    Journal(journal::JournalVerb),
    /// Say how much GPU memory a task will need, by one estimator or all of them
    Estimate(Box<EstimateArgs>),
    /// Run a training script without a GPU for a few steps, and say how much GPU memory it will need
    DryRun(Box<memory::DryRunArgs>),
    /// Trace a model, a batch and an optimizer from a Python function, and say how much GPU memory they need
    TraceModel(Box<memory::TraceModelArgs>),
    /// Say how far tasks that share a GPU will slow each other down, or which go well together
    Predict(Box<predict::PredictArgs>),
    /// Measure what a task does alone on a GPU, and how fast it goes
    Profile(Box<profile::ProfileArgs>),
    /// Measure GPUs and tasks
    #[command(subcommand)]
    Bench(bench::BenchVerb),
    /// Play a trace under one or more policies, thousands of times faster than life, and compare
    Simulate(Box<SimulateArgs>),
    /// Report on what ran in the last hours, or make a page of a simulation
    Report(Box<ReportArgs>),
    /// Import, make, look at and export traces
    #[command(subcommand)]
    Trace(TraceVerb),
    /// Data sets, training, benches and fits: runs `carma-lab`
    #[command(disable_help_flag = true)]
    Lab(LabArgs),
    /// Play a short mix of tasks on virtual GPUs, exclusive and shared, and compare
    Demo,
    /// Use virtual GPUs as a training script uses real ones: a model that does no work
    VirtualTask(VirtualTaskArgs),
}

/// `carma estimate`.
#[derive(Debug, Clone, Args)]
#[command(
    override_usage = "carma estimate [OPTIONS] --summary FILE | --hf-config FILE | ... --batch-size N\n       carma estimate [OPTIONS] -- CMD [ARGS]..."
)]
pub(crate) struct EstimateArgs {
    /// A command as you would submit it, after `--`: python train.py. It is run for a few steps without a GPU, as
    /// `carma dry-run` does
    #[arg(value_name = "CMD", trailing_var_arg = true, value_parser = clap::value_parser!(OsString))]
    pub(crate) command: Vec<OsString>,
    /// Which estimator, or `all` side by side
    #[arg(long, value_name = "NAME", default_value = "auto")]
    pub(crate) estimator: String,
    /// Number of GPUs [default: 1, or one for each process that the command starts]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) gpus: Option<u32>,
    /// Memory that you would ask for yourself
    #[arg(long, value_name = "SIZE", value_parser = parse::memory)]
    pub(crate) gpu_memory: Option<MiB>,
    /// Peak of a run under FakeTensorMode, for the estimator of that name
    #[arg(long, value_name = "SIZE", value_parser = parse::memory)]
    pub(crate) faketensor_peak: Option<MiB>,
    /// Folder of GPUMemNet's published weights, to run them beside ours
    #[arg(long, value_name = "DIR")]
    pub(crate) gpumemnet_weights: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// The model.
    #[command(flatten)]
    pub(crate) model: memory::ModelArgs,
    /// How it is run.
    #[command(flatten)]
    pub(crate) task: memory::TaskArgs,
    /// Where it runs.
    #[command(flatten)]
    pub(crate) platform: memory::PlatformArgs,
    /// The dry run of a command.
    #[command(flatten)]
    pub(crate) tracer: memory::TracerArgs,
}

/// `carma lab`.
#[derive(Debug, Args)]
pub(crate) struct LabArgs {
    /// What `carma-lab` is to do
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
    pub(crate) words: Vec<OsString>,
}

/// What a job is and wants.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct JobArgs {
    /// Program and its arguments, after `--`; started without a shell
    #[arg(value_name = "CMD", trailing_var_arg = true, value_parser = clap::value_parser!(OsString),
        required_unless_present_any = ["wrap", "file", "rad"], conflicts_with_all = ["wrap", "rad"])]
    pub(crate) command: Vec<OsString>,
    /// A line for /bin/sh instead of a program
    #[arg(long, value_name = "LINE", conflicts_with = "rad", value_parser = line())]
    pub(crate) wrap: Option<OsString>,
    /// Read the job from a TOML file with the words of these options, which go before the file's
    #[arg(long, value_name = "JOB.toml", conflicts_with = "rad")]
    pub(crate) file: Option<PathBuf>,
    /// Name in listings [default: the program's]
    #[arg(long, visible_alias = "job-name", short = 'J', value_parser = parse::filled)]
    pub(crate) name: Option<String>,
    /// Directory to start in [default: this one]
    #[arg(long, short = 'D', value_name = "DIR")]
    pub(crate) chdir: Option<PathBuf>,
    /// File for standard output and error, relative to the job's directory; %j in it is the job's number, %x its name, %u its
    /// user, %% a percent sign [default: one of the daemon's]
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Set a variable of the job's environment, on top of yours; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = variable)]
    pub(crate) env: Vec<(String, String)>,
    /// Longest run time: 2h, 90m, 1-12:00:00; a bare number is minutes
    #[arg(long, short, value_parser = time_limit)]
    pub(crate) time: Option<Millis>,
    /// Higher goes first
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) priority: Option<i32>,
    /// How often running out of GPU memory may be retried with more
    #[arg(long, value_name = "N")]
    pub(crate) max_retries: Option<u32>,
    /// How much neighbours may slow it down: 1.3 is 1.3 times its time alone. Beyond that the latest neighbour is evicted
    #[arg(long, value_name = "FACTOR", value_parser = parse::slowdown)]
    pub(crate) max_slowdown: Option<u32>,
    /// What the 99th percentile of its requests' latency must not exceed while others share its GPU: 20ms, 500us, 1.5s. It prints
    /// or sends them (docs/slowdown.md)
    #[arg(long, value_name = "TIME", value_parser = parse::latency)]
    pub(crate) latency: Option<u32>,
    /// Ask it to save its work before it goes back into the queue (evicted, by `carma requeue` or `carma drain --move`), by the signal that it
    /// catches: USR1, USR2, HUP, INT or TERM
    #[arg(long, value_name = "SIGNAL", help_heading = "Saving its work")]
    pub(crate) checkpoint_signal: Option<CheckpointSignal>,
    /// How long that may take, 1h at most [default: 2m]
    #[arg(long, value_name = "TIME", help_heading = "Saving its work", value_parser = parse::grace)]
    pub(crate) grace: Option<Millis>,
    /// Directory for what it saves, relative to the job's directory; the job finds it in CARMA_CHECKPOINT_DIR [default, with
    /// a signal: one in your home, for this job alone]
    #[arg(long, value_name = "DIR", help_heading = "Saving its work")]
    pub(crate) checkpoint_dir: Option<PathBuf>,
    /// Number of GPUs, all given at once [default: 1]
    #[arg(long, short = 'G', value_name = "N", help_heading = "GPUs", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) gpus: Option<u32>,
    /// Memory needed on each GPU: 20G, 512M (binary units)
    #[arg(long, value_name = "SIZE", help_heading = "GPUs", value_parser = parse::memory)]
    pub(crate) gpu_memory: Option<MiB>,
    /// No neighbours on its GPUs
    #[arg(long, help_heading = "GPUs", conflicts_with = "shared")]
    pub(crate) exclusive: bool,
    /// Neighbours are welcome, whatever the job file says
    #[arg(long, help_heading = "GPUs")]
    pub(crate) shared: bool,
    /// How to share them [default: the daemon's]
    #[arg(long, value_name = "MODE", help_heading = "GPUs", value_parser = sharing())]
    pub(crate) sharing: Option<SharingMode>,
    /// Share of the SMs' threads under MPS, percent
    #[arg(long, value_name = "PCT", help_heading = "GPUs", value_parser = clap::value_parser!(u8).range(1..=100))]
    pub(crate) mps_threads: Option<u8>,
    /// Memory of the host that all its processes may have together: 32G
    #[arg(long, value_name = "SIZE", help_heading = "The host", value_parser = parse::memory)]
    pub(crate) mem: Option<MiB>,
    /// Processors of the host that it may use: 4, 0.5
    #[arg(long, value_name = "N", help_heading = "The host", value_parser = parse::cpus)]
    pub(crate) cpus: Option<u32>,
    /// Processes and threads that it may have at once
    #[arg(long, value_name = "N", help_heading = "The host", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) pids: Option<u32>,
    /// Run it by your login shell, which reads your profile first (conda, modules)
    #[arg(long, help_heading = "The host")]
    pub(crate) login: bool,
    /// First run the command for a few steps without a GPU (`carma dry-run`), here and now, and reserve what that
    /// shows. A job whose dry run fails is not submitted; with `try` it is, without what a dry run would have shown
    #[arg(long, value_name = "WHEN", num_args = 0..=1, require_equals = true, default_missing_value = "needed",
        conflicts_with = "trace", help_heading = "The model",
        value_parser = PossibleValuesParser::new(["needed", "try"]).map(|word| word == "try"))]
    pub(crate) dry_run: Option<bool>,
    /// The model, for what is expected of its memory.
    #[command(flatten)]
    pub(crate) model: memory::ModelArgs,
    /// How it is run, likewise.
    #[command(flatten)]
    pub(crate) task: memory::TaskArgs,
}

/// `carma submit`.
#[derive(Debug, Args)]
#[command(
    override_usage = "carma submit [OPTIONS] -- CMD [ARGS]...\n       carma submit [OPTIONS] --wrap LINE | --file JOB.toml | --rad FILE..."
)]
pub(crate) struct SubmitArgs {
    /// Read the job from a .rad file of the original CARMA; may be repeated
    #[arg(long, value_name = "FILE")]
    pub(crate) rad: Vec<PathBuf>,
    /// Accept the job, but start it only when it is released
    #[arg(long)]
    pub(crate) hold: bool,
    /// Submit the same job N times, at most 100,000
    #[arg(long, value_name = "N", default_value_t = 1, hide_default_value = true, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) repeat: u32,
    /// Print the job's number and nothing else
    #[arg(long, conflicts_with = "json")]
    pub(crate) parsable: bool,
    /// Print the daemon's answer as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// The job.
    #[command(flatten)]
    pub(crate) job: JobArgs,
}

/// `carma run`.
#[derive(Debug, Args)]
#[command(
    override_usage = "carma run [OPTIONS] -- CMD [ARGS]...\n       carma run [OPTIONS] --wrap LINE | --file JOB.toml | --rad FILE",
    after_help = "Ctrl-C cancels the job and waits for its end; a second one leaves at once. Closing the terminal leaves the job alone: `carma logs -f` finds it again."
)]
pub(crate) struct RunArgs {
    /// Read the job from a .rad file of the original CARMA
    #[arg(long, value_name = "FILE")]
    pub(crate) rad: Option<PathBuf>,
    /// The job.
    #[command(flatten)]
    pub(crate) job: JobArgs,
}

/// `carma queue`.
#[derive(Debug, Args)]
#[command(
    after_help = "TIME is how long a job has run; for a waiting one, how long it has waited since its submission, without what earlier attempts took."
)]
pub(crate) struct QueueArgs {
    /// Also show jobs that ended in the last hour
    #[arg(long, short)]
    pub(crate) all: bool,
    /// Only jobs of this user
    #[arg(long, short, value_name = "NAME")]
    pub(crate) user: Option<String>,
    /// Only jobs in these states: RUNNING, pd, FAILED,TO; may be repeated
    #[arg(long, short, value_name = "STATE", value_delimiter = ',', value_parser = state)]
    pub(crate) state: Vec<String>,
    /// Show reasons in full, however long, and a row for each job
    #[arg(long, short)]
    pub(crate) wide: bool,
    /// Show a row for each job that waits, however many there are
    #[arg(long)]
    pub(crate) each: bool,
    /// Print the daemon's answer as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `carma show` and `carma explain`.
#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// The job
    #[arg(value_parser = job)]
    pub(crate) id: u64,
    /// Print the daemon's answer as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Verbs that give an order about jobs.
#[derive(Debug, Args)]
pub(crate) struct JobsArgs {
    /// Jobs: 7, 3-7, 3,5,9-11
    #[arg(value_name = "ID", required = true, value_delimiter = ',')]
    pub(crate) ids: Vec<IdRange>,
}

/// `carma logs`.
#[derive(Debug, Args)]
pub(crate) struct LogsArgs {
    /// The job
    #[arg(value_parser = job)]
    pub(crate) id: u64,
    /// Go on until the job is over
    #[arg(long, short)]
    pub(crate) follow: bool,
    /// Begin with the last N lines [default: from the start]
    #[arg(long, short = 'n', value_name = "N")]
    pub(crate) tail: Option<u64>,
}

/// `carma wait`.
#[derive(Debug, Args)]
#[command(
    after_help = "Returns the job's exit code; of several, that of the last one in the list that failed."
)]
pub(crate) struct WaitArgs {
    /// The jobs.
    #[command(flatten)]
    pub(crate) jobs: JobsArgs,
    /// Print how they ended as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `carma gpus`.
#[derive(Debug, Args)]
#[command(
    after_help = "FREE is what carma could give to another job: the capacity less what is reserved or used, whichever is more, less a headroom. A narrow terminal gets fewer columns."
)]
pub(crate) struct GpusArgs {
    /// Look again every so often, until it is interrupted, also past a daemon that restarts; a second where no time is given
    #[arg(long, value_name = "TIME", num_args = 0..=1, default_missing_value = "1s", value_parser = parse::duration, conflicts_with = "json")]
    pub(crate) watch: Option<Millis>,
    /// Print the daemon's answer as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `carma history`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct HistoryArgs {
    /// What to do instead of listing jobs.
    #[command(subcommand)]
    pub(crate) verb: Option<HistoryVerb>,
    /// How many jobs
    #[arg(long, short = 'n', value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) limit: u32,
    /// Only jobs of this user
    #[arg(long, short, value_name = "NAME")]
    pub(crate) user: Option<String>,
    /// Only jobs that ended in these states: FAILED, oom, CANCELLED,TO; may be repeated
    #[arg(long, short, value_name = "STATE", value_delimiter = ',', value_parser = state)]
    pub(crate) state: Vec<String>,
    /// Show reasons in full, however long
    #[arg(long, short)]
    pub(crate) wide: bool,
    /// Print the daemon's answer as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `carma usage`.
#[derive(Debug, Args)]
#[command(
    after_help = "Shows your own account and the others together; root and operators see all. docs/fairness.md says what counts."
)]
pub(crate) struct UsageArgs {
    /// Only this user
    #[arg(long, short, value_name = "NAME")]
    pub(crate) user: Option<String>,
    /// Print the daemon's answer as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `carma history` with a verb of its own.
#[derive(Debug, Subcommand)]
pub(crate) enum HistoryVerb {
    /// Print what was learned of GPU memory from runs: peaks, how far estimates are off, CUDA contexts
    Export(HistoryExportArgs),
}

/// `carma history export`.
#[derive(Debug, Args)]
#[command(
    after_help = "Prints your own runs; root gets those of all users. Ratios and contexts are of all runs. CSV holds the runs alone."
)]
pub(crate) struct HistoryExportArgs {
    /// Print JSON, which is what happens anyway
    #[arg(long, conflicts_with = "csv")]
    pub(crate) json: bool,
    /// Print the runs as CSV
    #[arg(long)]
    pub(crate) csv: bool,
}

/// `carma resume`.
#[derive(Debug, Args)]
#[command(
    after_help = "A number means the suspended job or the drained GPU that has it; where it is both, or the GPU is drained and the job runs, --job or --gpu says which."
)]
pub(crate) struct ResumeArgs {
    /// Suspended jobs or drained GPUs by their numbers: 7, 0-3, 1,4
    #[arg(value_name = "ID", required = true, value_delimiter = ',')]
    pub(crate) ids: Vec<IdRange>,
    /// They are jobs
    #[arg(long)]
    pub(crate) job: bool,
    /// They are GPUs
    #[arg(long, conflicts_with = "job")]
    pub(crate) gpu: bool,
}

/// `carma move`.
#[derive(Debug, Args)]
pub(crate) struct MoveArgs {
    /// Number of the job
    #[arg(value_name = "JOB", value_parser = job)]
    pub(crate) job: u64,
    /// Index of the GPU in `carma gpus` [default: of those of the same type that have room an idle one, else the one with the fewest jobs]
    #[arg(value_name = "GPU", value_parser = gpu)]
    pub(crate) gpu: Option<u32>,
}

/// `carma drain`.
#[derive(Debug, Args)]
pub(crate) struct DrainArgs {
    /// Empty them: jobs move to another GPU of the same type where they can; clients of MPS and jobs on several GPUs that have a
    /// --checkpoint-signal save their work and go back into the queue; the others run on until they end
    #[arg(long = "move")]
    pub(crate) move_jobs: bool,
    /// GPUs by their index in `carma gpus`: 0, 0-3, 1,4
    #[arg(value_name = "GPU", required = true, value_delimiter = ',')]
    pub(crate) gpus: Vec<IdRange>,
}

/// `carma config`.
#[derive(Debug, Subcommand)]
pub(crate) enum ConfigVerb {
    /// Read a configuration file and say what is wrong with it
    Check(ConfigCheckArgs),
}

/// `carma config check`.
#[derive(Debug, Args)]
pub(crate) struct ConfigCheckArgs {
    /// The file [default: the one that `carma serve` would read]
    pub(crate) file: Option<PathBuf>,
}

/// `carma doctor`.
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Measure the CUDA context of one process on each GPU with PyTorch, and tell the daemon
    #[arg(long)]
    pub(crate) probe_context: bool,
    /// The Python that has PyTorch
    #[arg(long, value_name = "PROGRAM", default_value = "python3", requires = "probe_context")]
    pub(crate) python: PathBuf,
    /// Print the findings as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `carma serve`.
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// The GPUs: auto, nvml, or a model such as virtual:4xA100-40GB or virtual:4xA100-40GB@no-activity, which tells
    /// utilisation, memory and power alone [default: auto]
    #[arg(long, value_name = "SPEC")]
    pub(crate) gpus: Option<String>,
    /// Directory of the journal and the logs
    #[arg(long, value_name = "DIR")]
    pub(crate) state: Option<PathBuf>,
    /// Name of the policy
    #[arg(long, value_name = "NAME")]
    pub(crate) policy: Option<String>,
    /// How jobs share GPUs that do not ask for a mode
    #[arg(long, value_name = "MODE", value_parser = sharing())]
    pub(crate) sharing: Option<SharingMode>,
    /// Let time pass N times faster; for virtual GPUs only
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) speed: Option<u32>,
    /// Configuration file
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Cancel all jobs and end when standard input ends: of daemons that a bench starts for itself
    #[arg(long, hide = true)]
    pub(crate) until_eof: bool,
    /// How the log on standard error is written: text, or a JSON object a line
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = LogFormat::Text)]
    pub(crate) log_format: LogFormat,
}

/// How the daemon's log is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LogFormat {
    /// For people.
    Text,
    /// For programs.
    Json,
}

/// `carma virtual-task`.
#[derive(Debug, Args)]
#[command(next_help_heading = "Virtual GPUs (a model, not a measurement)")]
pub(crate) struct VirtualTaskArgs {
    /// Memory that it takes on each of its GPUs, its context of 450 MiB included
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = parse::memory)]
    pub(crate) memory: MiB,
    /// SM activity when alone, 0 to 1
    #[arg(long, value_name = "SHARE", default_value_t = 0.5)]
    pub(crate) sm: f64,
    /// Share of time with a kernel resident when alone, 0 to 1 [default: follows --sm]
    #[arg(long, value_name = "SHARE")]
    pub(crate) gract: Option<f64>,
    /// Warp occupancy when alone, 0 to 1 [default: follows --sm]
    #[arg(long, value_name = "SHARE")]
    pub(crate) occupancy: Option<f64>,
    /// DRAM activity when alone, 0 to 1 [default: follows --sm]
    #[arg(long, value_name = "SHARE")]
    pub(crate) dram: Option<f64>,
    /// Time that the work takes when alone
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = span_or_nothing)]
    pub(crate) work: Millis,
    /// Time until the memory is full and the work begins
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = span_or_nothing)]
    pub(crate) startup: Millis,
    /// Take the GPU's context after two fifths of that and the memory in its last tenth, as PyTorch tasks do, rather than
    /// step by step from the start on
    #[arg(long)]
    pub(crate) loads_late: bool,
    /// Raise a fatal GPU fault after this much work
    #[arg(long, value_name = "TIME", value_parser = span_or_nothing)]
    pub(crate) fault_after: Option<Millis>,
    /// Hold this much memory later
    #[arg(long, value_name = "SIZE", value_parser = parse::memory, requires = "grow_after")]
    pub(crate) grow_to: Option<MiB>,
    /// After how much work it grows
    #[arg(long, value_name = "TIME", value_parser = span_or_nothing, requires = "grow_to")]
    pub(crate) grow_after: Option<Millis>,
    /// ... and over how much work, step by step
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = span_or_nothing, requires = "grow_to")]
    pub(crate) grow_over: Millis,
    /// Exit code at the end; other than 0 it comes with a Python traceback
    #[arg(long, value_name = "CODE", default_value_t = 0)]
    pub(crate) exit_code: u8,
    /// How it tells of its steps, ten a second of work when alone: lines now and then, a bar, a datagram each to
    /// CARMA_PROGRESS, the count in the file CARMA_HEARTBEAT, or not at all [default: lines; of a server: silent]
    #[arg(long, value_name = "HOW",
        value_parser = PossibleValuesParser::new(["lines", "bar", "datagrams", "file", "silent"]))]
    pub(crate) progress: Option<String>,
    /// Be a server: print how long each request took, ten a second when alone, each this long then
    #[arg(long, value_name = "TIME", value_parser = parse::latency)]
    pub(crate) latency: Option<u32>,
    /// Let SIGTERM pass without effect
    #[arg(long)]
    pub(crate) ignore_term: bool,
}

/// One number or a range of them: `7`, `3-7`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct IdRange(pub(crate) RangeInclusive<u64>);

impl IdRange {
    /// The most numbers in one range: more is a slip of the finger.
    const MOST: u64 = 100_000;

    /// All numbers of several ranges, in order, each once.
    pub(crate) fn all(ranges: &[Self]) -> Vec<u64> {
        let mut seen = std::collections::BTreeSet::new();
        ranges.iter().flat_map(|r| r.0.clone()).filter(|id| seen.insert(*id)).collect()
    }
}

impl From<u64> for IdRange {
    fn from(id: u64) -> Self {
        Self(id..=id)
    }
}

impl FromStr for IdRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("'{text}' is not a number or a range such as 3-7");
        let number = |t: &str| t.trim().parse::<u64>().map_err(|_| bad());
        let (first, last) = match text.split_once('-') {
            Some((first, last)) => (number(first)?, number(last)?),
            None => (number(text)?, number(text)?),
        };
        if first > last {
            return Err(format!("'{text}' runs backwards; write {last}-{first}"));
        }
        if last - first >= Self::MOST {
            return Err(format!("'{text}' names more than {} numbers", Self::MOST));
        }
        Ok(Self(first..=last))
    }
}

/// The number of a job.
fn job(text: &str) -> Result<u64, String> {
    let bad =
        || format!("'{text}' is not the number of a job; `carma queue` and `carma history` show the numbers");
    text.trim().parse().map_err(|_| bad())
}

/// The index of a GPU.
fn gpu(text: &str) -> Result<u32, String> {
    text.trim().parse().map_err(|_| format!("'{text}' is not the index of a GPU; `carma gpus` shows them"))
}

fn sharing() -> impl TypedValueParser<Value = SharingMode> {
    PossibleValuesParser::new(["time-slice", "mps", "exclusive"]).map(|word| match word.as_str() {
        "mps" => SharingMode::Mps,
        "exclusive" => SharingMode::Exclusive,
        _ => SharingMode::TimeSlice,
    })
}

/// A line that does something; what is not UTF-8 is refused elsewhere.
fn line() -> impl TypedValueParser<Value = OsString> {
    OsStringValueParser::new().try_map(|line| match line.to_str().map(parse::filled) {
        Some(Err(empty)) => Err(empty),
        _ => Ok(line),
    })
}

/// A time limit. Slurm has none with 0.
fn time_limit(text: &str) -> Result<Millis, String> {
    match text.trim() {
        "0" => Err("'0' is no time limit: leave --time out for none".to_owned()),
        _ => parse::duration(text),
    }
}

fn variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(format!("'{text}' is not KEY=VALUE")),
    }
}

/// A state by Slurm's word or short code.
fn state(text: &str) -> Result<String, String> {
    const STATES: [(&str, &str); 8] = [
        ("PD", "PENDING"),
        ("R", "RUNNING"),
        ("S", "SUSPENDED"),
        ("CD", "COMPLETED"),
        ("F", "FAILED"),
        ("CA", "CANCELLED"),
        ("TO", "TIMEOUT"),
        ("OOM", "OUT_OF_MEMORY"),
    ];
    let word = text.trim().to_ascii_uppercase();
    match STATES.iter().find(|(short, long)| *short == word || *long == word) {
        Some((_, long)) => Ok((*long).to_owned()),
        None => {
            let known: Vec<String> = STATES.iter().map(|(short, long)| format!("{long} ({short})")).collect();
            Err(format!("'{text}' is no state; there are {}", known.join(", ")))
        }
    }
}

/// A span of time that may be zero.
fn span_or_nothing(text: &str) -> Result<Millis, String> {
    match text.trim() {
        "0" | "0s" => Ok(Millis::ZERO),
        text => parse::duration(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_call_a_verb_is_known() {
        let said = |words: &[&str]| {
            let error = command().try_get_matches_from(words).unwrap_err();
            with_hint(error).render().to_string()
        };
        assert!(
            said(&["carma", "top"]).contains("tip: that is `carma gpus --watch`"),
            "{}",
            said(&["carma", "top"])
        );
        assert!(!said(&["carma", "frobnicate"]).contains("that is"));
    }

    #[test]
    fn a_length_of_rows_is_of_a_report_that_has_rows() {
        let parse = |words: &[&str]| {
            let report = ["carma", "report", "--last", "1h", "--step", "1m"];
            command().try_get_matches_from(report.iter().chain(words)).map_err(|error| error.kind())
        };
        for rows in [&["--csv"][..], &["--json"], &["--parquet"], &["--html"]] {
            assert!(parse(rows).is_ok(), "{rows:?}");
        }
        assert_eq!(parse(&[]).unwrap_err(), ErrorKind::MissingRequiredArgument);
    }

    #[test]
    fn empty_values_are_refused() {
        for words in [
            &["submit", "-J", "", "true"][..],
            &["submit", "--name= ", "true"],
            &["submit", "--wrap", ""],
            &["run", "-J", "", "true"],
            &["run", "--wrap", " "],
            &["history", "-n", "0"],
        ] {
            let error = parsed(words).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{words:?}: {error}");
        }
        let said = parsed(&["submit", "--wrap", ""]).unwrap_err().to_string();
        assert!(said.contains("for '--wrap <LINE>': expected some text"), "{said}");
        let odd = <OsString as std::os::unix::ffi::OsStringExt>::from_vec(vec![b'x', 0xff]);
        let words = ["carma", "submit", "--wrap"].map(OsString::from).into_iter().chain([odd.clone()]);
        let Ok(Cli { verb: Verb::Submit(args), .. }) = Cli::try_parse_from(words) else { panic!() };
        assert_eq!(args.job.wrap, Some(odd));
    }

    fn parsed(words: &[&str]) -> Result<Verb, clap::Error> {
        Cli::try_parse_from([&["carma"], words].concat()).map(|cli| cli.verb)
    }

    fn submit(words: &[&str]) -> SubmitArgs {
        match parsed(&[&["submit"], words].concat()) {
            Ok(Verb::Submit(args)) => *args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_help_names_every_verb_and_shows_few() {
        let help = command().render_help().to_string();
        let shown = GROUPS.iter().flat_map(|(_, verbs)| *verbs);
        assert!(GROUPS.len() <= 6 && shown.clone().count() <= 29);
        for verb in shown.clone() {
            assert!(help.contains(&format!("\n  {verb} ")), "{verb} is missing:\n{help}");
        }
        for verb in Cli::command().get_subcommands().map(clap::Command::get_name) {
            assert!(
                shown.clone().chain(&ALSO).any(|named| *named == verb),
                "{verb} is named nowhere:\n{help}"
            );
        }
    }

    #[test]
    fn a_job_file_has_the_words_of_the_options() {
        let file = std::path::Path::new("j.toml");
        let known = carma_api::job_file::toml::parse(file, "no-such-key = 1").unwrap_err().what;
        // What is about files or the call, and `--shared`, which takes back what a file says.
        let others = ["file", "rad", "shared", "repeat", "parsable", "json", "dry-run"];
        let submit = Cli::command().find_subcommand("submit").unwrap().clone();
        for option in submit.get_arguments().filter_map(clap::Arg::get_long) {
            assert!(known.contains(&format!("`{option}`")) != others.contains(&option), "{option}: {known}");
        }
    }

    #[test]
    fn a_command_keeps_its_own_options() {
        let args =
            submit(&["--gpu-memory", "20G", "-J", "x", "--", "python", "t.py", "--gpus", "3", "--", "-x"]);
        assert_eq!(args.job.command, ["python", "t.py", "--gpus", "3", "--", "-x"]);
        assert_eq!(args.job.gpu_memory, Some(MiB::gib(20)));
        assert_eq!(args.job.gpus, None);
        let args = submit(&["python", "t.py", "--gpus", "3"]);
        assert_eq!(args.job.command, ["python", "t.py", "--gpus", "3"]);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for bad in [
            &["submit"][..],
            &["submit", "--gpu-mem", "20G", "x"],
            &["submit", "--gpus", "0", "x"],
            &["submit", "--gpu-memory", "20", "x"],
            &["submit", "--exclusive", "--shared", "x"],
            &["submit", "--sharing", "sometimes", "x"],
            &["submit", "--mps-threads", "101", "x"],
            &["submit", "--wrap", "a", "x"],
            &["submit", "--checkpoint-signal", "KILL", "x"],
            &["submit", "--checkpoint-signal", "USR1", "--grace", "2h", "x"],
            &["submit", "--rad", "a.rad", "x"],
            &["submit", "--rad", "a.rad", "--file", "b.toml"],
            &["submit", "--env", "NOPE", "x"],
            &["submit", "--parsable", "--json", "x"],
            &["submit", "--repeat", "0", "x"],
            &["submit", "--repeat", "1000000", "x"],
            &["run"],
            &["cancel"],
            &["cancel", "7-3"],
            &["cancel", "x"],
            &["cancel", "1-99999999"],
            &["queue", "--state", "asleep"],
            &["nonsense"],
        ] {
            let error = parsed(bad).expect_err(&bad.join(" "));
            assert_eq!(error.exit_code(), 2, "{bad:?}");
        }
    }

    #[test]
    fn reports_of_no_file_and_of_steps_too_short_are_refused() {
        for (words, part) in [
            (&["report", "/no/such.json"][..], "there is no such file"),
            (&["report", "--last", "1h", "--csv", "--step", "0.5s"], "the shortest is 1s"),
        ] {
            let error = parsed(words).expect_err(&words.join(" ")).to_string();
            assert!(error.contains(part), "{words:?}: {error}");
        }
    }

    #[test]
    fn a_value_with_a_minus_is_judged_by_its_own_parser() {
        for (words, part) in [
            (&["submit", "--gpu-memory", "-5G", "--", "true"][..], "'-5G' is not a size"),
            (&["submit", "-t", "-5", "--", "true"], "'-5' is not a time span"),
            (&["submit", "-t", "0", "--", "true"], "'0' is no time limit: leave --time out for none"),
            (&["submit", "-t", "0s", "--", "true"], "'0s' is too short: the shortest time is 1ms"),
            (&["submit", "--gpus", "-1", "--", "true"], "-1 is not in 1.."),
            (&["submit", "--max-retries", "-1", "--", "true"], "-1 is not in 0.."),
            (&["history", "-n", "-5"], "-5 is not in 1.."),
            (&["submit", "--time", "--name", "x", "true"], "a value is required for '--time <TIME>'"),
            (&["submit", "--gpu-memory", "0", "--", "true"], "'0' is not a sensible size"),
        ] {
            let error = command().try_get_matches_from([&["carma"], words].concat()).map_err(without_value);
            let error = error.expect_err(&words.join(" "));
            let said = error.to_string();
            assert!(said.contains(part) && !said.contains("tip:"), "{words:?}: {said}");
            assert_eq!(error.exit_code(), 2);
        }
        // An option whose value may be left out takes no other option for it.
        assert!(command().try_get_matches_from(["carma", "gpus", "--watch", "--socket", "s"]).is_ok());
    }

    #[test]
    fn a_file_or_a_line_or_rad_files_take_the_place_of_a_command() {
        assert!(submit(&["--file", "a.toml"]).job.command.is_empty());
        assert_eq!(submit(&["--file", "a.toml", "--", "x"]).job.command, ["x"]);
        assert_eq!(submit(&["--wrap", "a | b"]).job.wrap, Some("a | b".into()));
        assert_eq!(submit(&["--rad", "a.rad", "--rad", "b.rad"]).rad.len(), 2);
        assert_eq!(submit(&["--priority", "-3", "x"]).job.priority, Some(-3));
    }

    #[test]
    fn ranges() {
        let ids = |words: &[&str]| match parsed(&[&["cancel"], words].concat()) {
            Ok(Verb::Cancel(args)) => IdRange::all(&args.ids),
            other => panic!("{other:?}"),
        };
        assert_eq!(ids(&["7"]), [7]);
        assert_eq!(ids(&["3-5", "9"]), [3, 4, 5, 9]);
        assert_eq!(ids(&["9,3-4", "4-5"]), [9, 3, 4, 5]);
    }

    #[test]
    fn states_have_two_spellings() {
        assert_eq!(state("oom"), Ok("OUT_OF_MEMORY".into()));
        assert_eq!(state("Running"), Ok("RUNNING".into()));
        assert!(state("zombie").is_err());
    }
}

/// `carma simulate`.
#[derive(Debug, Args)]
pub(crate) struct SimulateArgs {
    /// The trace: CSV, also gzipped (docs/simulation.md)
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: PathBuf,
    /// Which trace, where the file holds several (column `trace`)
    #[arg(long, value_name = "NAME")]
    pub(crate) trace_name: Option<String>,
    /// The tasks that the trace names: CSV [default: TRACE.tasks.csv beside TRACE.csv, if there]
    #[arg(long, value_name = "FILE")]
    pub(crate) catalogue: Option<PathBuf>,
    /// The GPUs: 4xA100-40GB, 2xH200+4xV100-32GB, 1xA100-40GB/7x1g.5gb for MIG instances
    #[arg(long, value_name = "SPEC")]
    pub(crate) cluster: String,
    /// A policy; may be repeated, and the first is what the others are compared with
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', required = true)]
    pub(crate) policy: Vec<String>,
    /// How jobs share a GPU
    #[arg(long, value_name = "MODE", value_parser = sharing(), default_value = "mps")]
    pub(crate) sharing: SharingMode,
    /// Another order among the GPUs that would do; speedup, packed and throughput go by predictions (docs/slowdown.md)
    #[arg(long, value_name = "ORDER", value_parser = PossibleValuesParser::new([
        "round-robin", "first-fit", "best-fit", "magm", "lug", "least-load", "speedup", "packed",
        "throughput"]))]
    pub(crate) order: Option<String>,
    /// For the policy kace: the model by which it predicts, a file of `carma lab kace train` [default: the one that
    /// carma ships]
    #[arg(long, value_name = "FILE")]
    pub(crate) kace_model: Option<PathBuf>,
    /// Nothing is known of a task's memory and activity before a job of it has run, as if no user declared anything
    #[arg(long)]
    pub(crate) undeclared: bool,
    /// What policies that go by run times know of them: what the trace's own earlier jobs teach, that and what running jobs
    /// count (`step 300/1000`), or each job's own
    #[arg(long, value_name = "HOW", value_parser = PossibleValuesParser::new(["learned", "counted", "true"]), default_value = "learned")]
    pub(crate) run_times: String,
    /// What follows an out-of-memory: graded or exclusive [default: what the policy's authors did]
    #[arg(long, value_name = "METHOD", value_parser = PossibleValuesParser::new(["graded", "exclusive"]))]
    pub(crate) recovery: Option<String>,
    /// Seed of what is drawn (start-up times)
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Runs of each policy, with seeds N, N+1, ...; the table shows means
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) seeds: u32,
    /// Try a range of a policy's number: gate.smact=0.5..0.9:0.05; may be repeated, for a grid
    #[arg(long, value_name = "KEY=FROM..TO:STEP")]
    pub(crate) sweep: Vec<String>,
    /// Threads [default: all cores]; the result does not depend on it
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) threads: Option<u32>,
    /// File with the model of a GPU type, instead of the built-in one; may be repeated
    #[arg(long, value_name = "FILE")]
    pub(crate) gpu_model: Vec<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// With --json: also every job, every stretch on a GPU and the activity of the GPUs over time
    #[arg(long, requires = "json")]
    pub(crate) detail: bool,
    /// Write a page that opens offline in a browser
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
}

/// `carma report`.
#[derive(Debug, Args)]
#[command(
    group(clap::ArgGroup::new("what").required(true).multiple(true).args(["file", "last", "since"])),
    group(clap::ArgGroup::new("rows").multiple(true).args(["html", "csv", "parquet", "json"])),
    after_help = "Of a FILE it makes a page. Of recorded time it prints what that came to, without --html, --csv, --parquet or --json. What is recorded, and how much of it is kept: docs/recording.md."
)]
pub(crate) struct ReportArgs {
    /// Make the page of what `carma simulate --json --detail` printed; `-` is standard input
    #[arg(value_name = "FILE", value_parser = simulated, conflicts_with_all = ["last", "since", "until", "csv", "json", "parquet", "step"])]
    pub(crate) file: Option<PathBuf>,
    /// Report on what the daemon recorded in the last so long: 1h, 7d; a bare number is minutes
    #[arg(long, value_name = "TIME", value_parser = parse::duration, conflicts_with = "since")]
    pub(crate) last: Option<Millis>,
    /// ... or from this time on: 2026-03-01, '2026-03-01 14:30'
    #[arg(long, value_name = "WHEN", value_parser = crate::commands::moment)]
    pub(crate) since: Option<u64>,
    /// ... up to this time
    #[arg(long, value_name = "WHEN", value_parser = crate::commands::moment)]
    pub(crate) until: Option<u64>,
    /// Make a page of it; where no file is named, carma-report.html
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = false, conflicts_with_all = ["csv", "json", "parquet"])]
    pub(crate) html: Option<Option<PathBuf>>,
    /// Write the same as Parquet; where no file is named, carma-report.parquet
    #[arg(long, value_name = "FILE", num_args = 0..=1, conflicts_with_all = ["csv", "json"])]
    pub(crate) parquet: Option<Option<PathBuf>>,
    /// Print a line for each GPU and second
    #[arg(long, conflicts_with = "json")]
    pub(crate) csv: bool,
    /// Print the daemon's rows as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Length of a row, in whole seconds, 1s at least; of a page, as suits the drawing
    // What is printed without rows has no use for it.
    #[arg(long, value_name = "TIME", value_parser = step, requires = "rows")]
    pub(crate) step: Option<Millis>,
    /// Where it goes: to this file
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

/// Says that a file is absent before anything else: a page is not what was asked for.
fn simulated(text: &str) -> Result<PathBuf, String> {
    let file = PathBuf::from(text);
    match file.try_exists() {
        Ok(false) if text != "-" => Err("there is no such file".into()),
        _ => Ok(file),
    }
}

/// The daemon keeps a row a second.
fn step(text: &str) -> Result<Millis, String> {
    let step = parse::duration(text)?;
    if step < Millis::secs(1) { Err("the shortest is 1s, as it is recorded".into()) } else { Ok(step) }
}

/// `carma trace`.
#[derive(Debug, Subcommand)]
pub(crate) enum TraceVerb {
    /// Turn a public trace or an accounting dump into a trace
    Import(TraceImportArgs),
    /// Make a trace by drawing arrivals and tasks
    Synthesize(TraceSynthesizeArgs),
    /// Describe a trace
    Show(TraceShowArgs),
    /// Write the daemon's own history as a trace and a catalogue
    ExportHistory(TraceExportArgs),
}

/// `carma trace import`.
#[derive(Debug, Args)]
pub(crate) struct TraceImportArgs {
    /// Where it comes from
    #[arg(value_parser = PossibleValuesParser::new(["philly", "alibaba-openb", "gavel", "helios", "lucid", "slurm-sacct"]))]
    pub(crate) format: String,
    /// The file, also gzipped
    pub(crate) file: PathBuf,
    /// The trace to write; its catalogue, if any, goes to NAME.tasks.csv beside NAME.csv
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: PathBuf,
    /// Draw a task for each job from this catalogue, as the CARMA evaluation did with Philly
    #[arg(long, value_name = "FILE")]
    pub(crate) catalogue: Option<PathBuf>,
    /// With --catalogue: percentages of light, medium and heavy tasks
    #[arg(long, value_name = "L/M/H", default_value = "65/27/8", requires = "catalogue")]
    pub(crate) mix: String,
    /// With --catalogue: seed of the draw
    #[arg(long, value_name = "N", default_value_t = 1, requires = "catalogue")]
    pub(crate) seed: u64,
    /// Leave out what came earlier than this after the first job: 30d, 12h
    #[arg(long, value_name = "TIME", value_parser = parse::duration)]
    pub(crate) from: Option<Millis>,
    /// Leave out what came later than this after that
    #[arg(long, value_name = "TIME", value_parser = parse::duration)]
    pub(crate) span: Option<Millis>,
    /// Only the first N jobs (of those)
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<std::num::NonZeroUsize>,
}

/// `carma trace synthesize`.
#[derive(Debug, Args)]
pub(crate) struct TraceSynthesizeArgs {
    /// Tasks to draw from
    #[arg(long, value_name = "FILE")]
    pub(crate) catalogue: PathBuf,
    /// Number of jobs
    #[arg(long, value_name = "N", default_value_t = 60)]
    pub(crate) jobs: u32,
    /// Percentages of light, medium and heavy tasks
    #[arg(long, value_name = "L/M/H", default_value = "65/27/8")]
    pub(crate) mix: String,
    /// How jobs arrive
    #[arg(long, value_name = "PROCESS", default_value = "poisson",
        value_parser = PossibleValuesParser::new(["poisson", "uniform", "bursty", "batch"]))]
    pub(crate) arrivals: String,
    /// Mean time between two arrivals: 30s, 5m; a bare number is minutes
    #[arg(long, value_name = "TIME", default_value = "150s", value_parser = parse::duration)]
    pub(crate) mean_gap: Millis,
    /// Users to spread the jobs over
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) users: u32,
    /// Seed
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// The trace to write; its catalogue goes to NAME.tasks.csv beside NAME.csv
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: PathBuf,
}

/// `carma trace show`.
#[derive(Debug, Args)]
pub(crate) struct TraceShowArgs {
    /// The trace
    pub(crate) file: PathBuf,
    /// Which trace, where the file holds several
    #[arg(long, value_name = "NAME")]
    pub(crate) trace_name: Option<String>,
    /// The tasks that it names: CSV [default: TRACE.tasks.csv beside TRACE.csv, if there]
    #[arg(long, value_name = "FILE")]
    pub(crate) catalogue: Option<PathBuf>,
    /// Print as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `carma trace export-history`.
#[derive(Debug, Args)]
pub(crate) struct TraceExportArgs {
    /// The trace to write; the catalogue goes to NAME.tasks.csv beside NAME.csv
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: PathBuf,
    /// Only jobs submitted within this time: 7d, 36h
    #[arg(long, value_name = "TIME", value_parser = parse::duration)]
    pub(crate) last: Option<Millis>,
}

//! The command line of `carma profile`.

use clap::Args;
use std::ffi::OsString;
use std::path::PathBuf;

/// `carma profile`.
#[derive(Debug, Clone, Args)]
#[command(
    override_usage = "carma profile [OPTIONS] -- CMD [ARGS]...",
    after_help = "Runs the command alone on one GPU, waits for its first activity, lets it warm up until its activity is steady, watches it, and ends it. Its output passes through. The rate comes from heartbeats, else from the progress it prints, else from the GPU's activity (docs/profiling.md)."
)]
pub(crate) struct ProfileArgs {
    /// Program and its arguments, after `--`; started without a shell
    #[arg(value_name = "CMD", trailing_var_arg = true, required = true, value_parser = clap::value_parser!(OsString))]
    pub(crate) command: Vec<OsString>,
    /// Name in the profile [default: the program's]
    #[arg(long, short = 'J', value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Tasks of one class share what is learned of them [default: the name]
    #[arg(long, value_name = "NAME")]
    pub(crate) class: Option<String>,
    /// How long to watch the steady state
    #[arg(long, value_name = "S", default_value_t = 20.0, value_parser = seconds)]
    pub(crate) seconds: f64,
    /// Time between the first activity and the window [default: until the activity is steady]
    #[arg(long, value_name = "S", value_parser = seconds_or_none)]
    pub(crate) warmup: Option<f64>,
    /// How long to wait for the first activity
    #[arg(long, value_name = "S", default_value_t = 600.0, value_parser = seconds)]
    pub(crate) patience: f64,
    /// Which GPU: index or UUID [default: the first that is free]
    #[arg(long, value_name = "GPU", help_heading = "GPUs")]
    pub(crate) gpu: Option<String>,
    /// The GPUs: auto, nvml, or a model such as virtual:1xH200
    #[arg(long, value_name = "SPEC", default_value = "auto", help_heading = "GPUs")]
    pub(crate) gpus: String,
    /// Measure even if others use the GPU; the profile says so
    #[arg(long, help_heading = "GPUs")]
    pub(crate) shared_ok: bool,
    /// Also measure the rate under MPS with these shares of the threads, percent: 25,50,75. The command runs once for
    /// each
    #[arg(long, value_name = "PCT", value_delimiter = ',', value_parser = clap::value_parser!(u8).range(1..=100), help_heading = "GPUs")]
    pub(crate) rates_by_threads: Vec<u8>,
    /// Let the command go on after the window, to its own end
    #[arg(long, conflicts_with_all = ["rates_by_threads", "kernels"])]
    pub(crate) keep_running: bool,
    /// How long the command may take to end after SIGTERM, before SIGKILL
    #[arg(long, value_name = "S", default_value_t = 10.0, value_parser = seconds_or_none)]
    pub(crate) grace: f64,
    /// Write the profile to a file
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Add it to the tasks in that file, in place of one of the same name
    #[arg(long, requires = "output")]
    pub(crate) append: bool,
    /// Print JSON; the command's standard output then goes to standard error
    #[arg(long)]
    pub(crate) json: bool,
    /// Also run the command under Nsight Compute: threads, registers, shared memory and throughputs of its kernels
    #[arg(long, help_heading = "Kernels")]
    pub(crate) kernels: bool,
    /// Kernel launches to let pass first
    #[arg(long, value_name = "N", default_value_t = 1000, requires = "kernels", help_heading = "Kernels")]
    pub(crate) kernel_skip: u32,
    /// Kernel launches to look at
    #[arg(long, value_name = "N", default_value_t = 300, requires = "kernels", help_heading = "Kernels",
        value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) kernel_count: u32,
    /// Nsight Compute's command line [default: ncu on PATH or in its usual places]
    #[arg(long, value_name = "PROGRAM", requires = "kernels", help_heading = "Kernels")]
    pub(crate) ncu: Option<PathBuf>,
}

/// A time above nothing, at most an hour.
fn seconds(text: &str) -> Result<f64, String> {
    match seconds_or_none(text)? {
        0.0 => Err("it must be above 0".to_owned()),
        seconds => Ok(seconds),
    }
}

fn seconds_or_none(text: &str) -> Result<f64, String> {
    match text.trim().trim_end_matches('s').parse::<f64>() {
        Ok(seconds) if (0.0..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err(format!("'{text}' is not a number of seconds from 0 to 3600")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_seconds() {
        assert_eq!(seconds("2.5"), Ok(2.5));
        assert_eq!(seconds("30s"), Ok(30.0));
        assert_eq!(seconds_or_none("0"), Ok(0.0));
        for bad in ["0", "-1", "NaN", "inf", "4000", "", "2m"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }
}

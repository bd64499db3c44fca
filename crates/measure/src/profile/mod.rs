//! What a task does alone on a GPU, and how fast it goes.
//!
//! Needs no daemon: it reads the GPU itself, and only asks a daemon, if there is one, whether the GPU is free.

mod file;
mod interrupts;
mod kernels;
mod machine;
mod output;
mod runs;
mod task;
mod watch;

pub use file::{check, save};
pub use interrupts::Interrupts;
pub use kernels::{Kernels, find as find_ncu};
pub use output::{Outlet, Outlets};
pub use runs::Profiler;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// What to profile, on what, and how.
#[derive(Debug, Clone)]
pub struct Options {
    /// Program and its arguments; started without a shell.
    pub command: Vec<OsString>,
    /// Name in the profile.
    pub name: String,
    /// Class in the profile.
    pub class: Option<String>,
    /// Time between the first activity and the window, seconds; `None`: until the activity is steady.
    pub warm_up_s: Option<f64>,
    /// How long to watch the steady state, seconds, above 0.
    pub window_s: f64,
    /// How long to wait for the first activity, seconds.
    pub patience_s: f64,
    /// How long the command may take to end after SIGTERM, before SIGKILL.
    pub grace: Duration,
    /// Let the command go on after the window, to its own end.
    pub keep_running: bool,
    /// Also measure the rate under MPS with these shares of the threads, percent, 1 to 100: one more run for each.
    pub rates_by_threads: Vec<u8>,
    /// Also run the command under Nsight Compute.
    pub kernels: Option<Kernels>,
    /// The GPUs: `auto` or `nvml`, or a model such as `virtual:1xH200`.
    pub gpus: String,
    /// Which of them, by index or the beginning of its UUID; `None`: the first that is free.
    pub gpu: Option<String>,
    /// Measure even if others use the GPU; the profile says so.
    pub shared_ok: bool,
    /// Socket of the daemon that is asked whether the GPU is free. It need not be there.
    pub socket: PathBuf,
    /// Where the command's output goes on to.
    pub outlets: Outlets,
}

//! Runs the tracer: Python files inside this binary that record a program's allocations without a GPU.

use super::estimate;
use crate::cli::memory::TracerArgs;
use carma_cli::failure::{Failure, GENERAL};
use carma_cli::{Screen, print, print_json};
use carma_files::{Folder, MOST};
use carma_memory::estimators::Answer;
use carma_memory::trace::{self, Replay, Status, TRACER};
use carma_memory::{ModelTask, Platform};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, BufReader};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// The tracer stops itself at its limit. Code that does not return to Python is ended so much later.
const GRACE: Duration = Duration::from_secs(30);

/// What the tracer is to run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Launch {
    /// The interpreter.
    pub(crate) python: OsString,
    /// Options of the interpreter: `-u`.
    pub(crate) interpreter: Vec<OsString>,
    /// The tracer's own words: what to run, after its options.
    pub(crate) words: Vec<OsString>,
    /// Variables on top of the environment.
    pub(crate) env: Vec<(OsString, OsString)>,
}

/// Traces and replays.
///
/// # Errors
/// No Python, no PyTorch, or a program that fails; with the reason.
pub(crate) fn trace(launch: &Launch, args: &TracerArgs, platform: &Platform) -> Result<Replay, Failure> {
    let folder = Folder::with(&TRACER).map_err(|e| Failure::new(e.to_string()))?;
    let log = args.output.clone().unwrap_or_else(|| folder.0.join("log"));
    // What lay there is not taken for this run's.
    File::create(&log).map_err(|e| Failure::usage(format!("cannot write {}: {e}", log.display())))?;
    let python = args.python.as_ref().unwrap_or(&launch.python);
    let (major, minor) = platform.gpu.compute_capability;
    let (first, rest) =
        launch.words.split_first().map_or((None, &[][..]), |(first, rest)| (Some(first), rest));
    let child = Command::new(python)
        .args(&launch.interpreter)
        .arg(folder.0.join(TRACER[0].0))
        .args(first)
        .arg("-o")
        .arg(&log)
        .arg(format!("--timeout={}", args.timeout))
        .arg(format!("--gpu={}", platform.gpu.name))
        .arg(format!("--capability={major}.{minor}"))
        .arg(format!("--total-mib={}", platform.gpu.total_mib.0))
        .args(rest)
        .envs(launch.env.iter().map(|(key, value)| (key, value)))
        .env("CUDA_VISIBLE_DEVICES", "")
        .stdin(Stdio::null())
        // The program's own output is not ours.
        .stdout(io::stderr())
        .spawn()
        .map_err(|e| {
            Failure::new(format!("cannot start {}: {e}", python.display()))
                .hint("--python names a Python that has PyTorch 2.1 or newer")
        })?;
    let status = wait(child, Duration::from_secs(args.timeout.into()) + GRACE)
        .map_err(|e| Failure::new(format!("cannot wait for {}: {e}", python.display())))?;
    read(&log, platform, status)
}

fn read(log: &Path, platform: &Platform, status: ExitStatus) -> Result<Replay, Failure> {
    // The program that was traced can put anything in its place.
    let file = carma_files::open_bounded(log, MOST).map_err(|e| Failure::new(e.to_string()))?;
    let bad = |e: carma_memory::Error| Failure::new(format!("the log of the trace: {e}"));
    if file.get_ref().metadata().is_ok_and(|m| m.len() == 0) {
        return Err(Failure::new(format!("the tracer wrote nothing ({status})"))
            .hint("what it printed is above; --python names a Python that has PyTorch 2.1 or newer"));
    }
    let mut reader = trace::read(BufReader::new(file)).map_err(bad)?;
    let replay = trace::replay(&mut reader, platform).map_err(bad)?;
    if replay.end.status == Status::Failed {
        let why = replay.end.reason.as_deref().unwrap_or("no reason given");
        return Err(Failure {
            code: GENERAL,
            ..Failure::new(format!("the program failed in the dry run: {why}"))
        });
    }
    Ok(replay)
}

/// Waits for the child; ends it after `limit`.
fn wait(mut child: Child, limit: Duration) -> io::Result<ExitStatus> {
    // Signals go to a handle of the process: its id may be another's by then.
    let handle = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())?;
    let (done, ended) = channel::<()>();
    let watcher = std::thread::spawn(move || {
        for signal in [Signal::TERM, Signal::KILL] {
            let limit = if signal == Signal::TERM { limit } else { GRACE };
            if ended.recv_timeout(limit) != Err(RecvTimeoutError::Timeout) {
                return;
            }
            // It may have ended by itself just now.
            let _ = pidfd_send_signal(&handle, signal);
        }
    });
    let status = child.wait();
    drop(done);
    let _ = watcher.join();
    status
}

/// Prints the estimate of a replay.
///
/// # Errors
/// A trace without an estimate.
pub(crate) fn tell(
    replay: &Replay,
    task: &ModelTask,
    platform: &Platform,
    json: bool,
) -> Result<(), Failure> {
    let estimate = replay.estimate(task, platform).map_err(|e| Failure::new(e.to_string()))?;
    let answers = [Answer { estimator: "allocator", result: Ok(estimate) }];
    if json {
        let mut value = estimate::json(&answers, task, platform);
        value["trace"] = serde_json::json!({
            "what": replay.header.what,
            "torch": replay.header.torch,
            "events": replay.events,
            "peak_at": replay.peak_at,
            "end": replay.end,
        });
        print_json(&value)?;
    } else {
        print(&estimate::render(&answers, platform, &Screen::stdout()))?;
    }
    Ok(())
}

/// An option of the tracer.
pub(crate) fn option(name: &str, value: impl AsRef<OsStr>) -> OsString {
    let mut word = OsString::from(format!("--{name}="));
    word.push(value);
    word
}

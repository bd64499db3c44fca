//! Runs the tracer: Python files inside this binary that record a program's allocations without a GPU.

use super::estimate;
use crate::cli::memory::TracerArgs;
use carma_cli::failure::{Failure, GENERAL};
use carma_cli::{Screen, print, print_json};
use carma_files::MOST;
use carma_memory::estimators::Answer;
use carma_memory::trace::{self, Replay, Status, TRACER};
use carma_memory::{Platform, Task};
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, BufReader};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
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
    let folder = Folder::with(&TRACER)?;
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
        .arg(format!("--total-mib={}", platform.gpu.total_mib))
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
pub(crate) fn tell(replay: &Replay, task: &Task, platform: &Platform, json: bool) -> Result<(), Failure> {
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

/// A folder of our own that goes when we go. It is locked meanwhile, or it would be taken for one that a killed process
/// left behind.
pub(super) struct Folder(pub(super) PathBuf, #[expect(dead_code, reason = "held")] Option<File>);

impl Folder {
    /// Makes one in the temporary folder, with files of these names and texts.
    pub(super) fn with(files: &[(&str, &str)]) -> Result<Self, Failure> {
        let folder = Self::new("carma-trace", &std::env::temp_dir())?;
        for (name, text) in files {
            let file = folder.0.join(name);
            std::fs::write(&file, text)
                .map_err(|e| Failure::new(format!("cannot write {}: {e}", file.display())))?;
        }
        Ok(folder)
    }

    /// Makes an empty one in memory where there is such a place, for small files that change often.
    pub(super) fn in_memory(name: &str) -> Result<Self, Failure> {
        let (memory, temporary) = (Path::new("/dev/shm"), std::env::temp_dir());
        sweep(name, memory);
        sweep(name, &temporary);
        Self::new(name, memory).or_else(|_| Self::new(name, &temporary))
    }

    fn new(name: &str, base: &Path) -> Result<Self, Failure> {
        let mut last = None;
        for attempt in 0..100 {
            let path = base.join(format!("{name}-{}-{attempt}", std::process::id()));
            // Fails if anything is there: nobody else prepares it for us.
            match std::fs::DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => {
                    let lock = File::open(&path).ok();
                    if let Some(lock) = &lock {
                        let _ = flock(lock, FlockOperation::NonBlockingLockExclusive);
                    }
                    return Ok(Self(path, lock));
                }
                Err(e) => last = Some(e),
            }
        }
        let why = last.map(|e| e.to_string()).unwrap_or_default();
        Err(Failure::new(format!("cannot make a folder in {}: {why}", base.display())))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What stays behind in the temporary folder harms nobody.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Removes our user's folders of this name whose processes were killed. A process that is not seen may live in another
/// container; it then holds its lock.
fn sweep(name: &str, base: &Path) {
    for entry in std::fs::read_dir(base).into_iter().flatten().flatten() {
        let file_name = entry.file_name();
        let numbers =
            file_name.to_str().and_then(|n| n.strip_prefix(name)?.strip_prefix('-')?.split_once('-'));
        let Some((Ok(pid), Ok(_))) = numbers.map(|(pid, n)| (pid.parse::<u32>(), n.parse::<u32>())) else {
            continue;
        };
        let is_ours =
            entry.metadata().is_ok_and(|m| m.is_dir() && m.uid() == rustix::process::geteuid().as_raw());
        if !is_ours || Path::new(&format!("/proc/{pid}")).exists() {
            continue;
        }
        let path = entry.path();
        if File::open(&path)
            .is_ok_and(|folder| flock(&folder, FlockOperation::NonBlockingLockExclusive).is_ok())
        {
            // What cannot be removed harms nobody.
            let _ = std::fs::remove_dir_all(&path);
        }
    }
}

/// An option of the tracer.
pub(crate) fn option(name: &str, value: impl AsRef<OsStr>) -> OsString {
    let mut word = OsString::from(format!("--{name}="));
    word.push(value);
    word
}

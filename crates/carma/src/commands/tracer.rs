//! Runs the tracer: Python files inside this binary that record a program's allocations without a GPU.

use super::signals::{INTERRUPTED, times_caught};
use super::stream::Events;
use crate::cli::memory::TracerArgs;
use carma_cli::failure::{Failure, GENERAL};
use carma_files::{Folder, MOST};
use carma_memory::Platform;
use carma_memory::trace::{self, Asked, Replay, Status, TRACER};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::Value;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use tokio::signal::unix::SignalKind;

/// The tracer stops itself at its limit. Code that does not return to Python is ended so much later.
const GRACE: Duration = Duration::from_secs(30);
/// Lines of a program's output that are shown where it failed.
const TAIL: usize = 15;
/// Of the tracer's files the one that puts back what the program would have lost.
const PUT_BACK: &str = "carma_trace_files.py";
/// Its status where it has told what it could not put back.
const NOT_ALL: i32 = 3;

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
    /// Directory and whole environment of a job; `None`: this process's.
    pub(crate) job: Option<(PathBuf, BTreeMap<String, String>)>,
}

impl Launch {
    /// Script and arguments, or `-m`, module and arguments.
    pub(crate) fn program(&self) -> Vec<String> {
        let after = self.words.iter().skip_while(|word| *word != "--").skip(1);
        after.map(|word| word.to_string_lossy().into_owned()).collect()
    }

    /// Tells the tracer how many GPUs the program has, and which edition of it is traced.
    pub(crate) fn tell(&mut self, gpus: u32, asked: &Asked) {
        let edition = asked.edition.as_ref().map(|edition| option("edition", edition));
        let gpus = option("gpus", gpus.to_string());
        self.words.splice(1..1, edition.into_iter().chain([gpus]));
    }
}

/// What a dry run shows while it goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shows {
    /// The program's output, on standard error.
    Output,
    /// How long it has taken, where a terminal shows it; the end of the program's output if it fails.
    Progress,
    /// Nothing but that.
    Nothing,
}

/// What a traced run left.
#[derive(Debug)]
pub(crate) struct Traced {
    /// The log.
    pub(crate) log: Vec<u8>,
    /// What it amounts to.
    pub(crate) replay: Replay,
    /// The user stopped it.
    pub(crate) interrupted: bool,
    /// How long it took.
    pub(crate) took: Duration,
}

/// Traces and replays.
///
/// # Errors
/// No Python, no PyTorch, or a program that fails; with the reason.
pub(crate) fn trace(
    launch: &Launch,
    args: &TracerArgs,
    platform: &Platform,
    shows: Shows,
) -> Result<Traced, Failure> {
    name_left();
    let folder = Folder::with(&TRACER).map_err(|e| Failure::new(e.to_string()))?;
    let log = args.output.clone().unwrap_or_else(|| folder.0.join("log"));
    // What lay there is not taken for this run's.
    File::create(&log).map_err(|e| Failure::usage(format!("cannot write {}: {e}", log.display())))?;
    // The run may have a directory of its own.
    let log = std::path::absolute(&log).unwrap_or(log);
    let notes = folder.0.join("notes");
    let notes = std::path::absolute(&notes).unwrap_or(notes);
    File::create(&notes).map_err(|e| Failure::new(format!("cannot write {}: {e}", notes.display())))?;
    let output = folder.0.join("output");
    let mut command = command(launch, args, platform, &folder.0, &log, &notes);
    let quiet = shows != Shows::Output;
    if quiet {
        let file = File::create(&output)
            .and_then(|file| Ok((file.try_clone()?, file)))
            .map_err(|e| Failure::new(format!("cannot write {}: {e}", output.display())))?;
        command.stdout(file.0).stderr(file.1);
    } else {
        // The program's own output is not ours.
        command.stdout(io::stderr());
    }
    let python = command.get_program().to_owned();
    let child = command.spawn().map_err(|e| {
        Failure::new(format!("cannot start {}: {e}", python.display()))
            .hint("--python names a Python that has PyTorch 2.1 or newer")
    })?;
    let limit = Duration::from_secs(args.timeout.into()) + GRACE;
    let began = Instant::now();
    // However it ended, and before a signal may end this process.
    let over = || put_back(by_another(launch, args, &notes), &notes);
    let (status, interrupted, put_back) = wait(child, limit, shows == Shows::Progress, over)
        .map_err(|e| Failure::new(format!("cannot wait for {}: {e}", python.display())))?;
    let took = began.elapsed();
    if let Err(why) = put_back {
        let by_hand = by_hand(&folder.0);
        folder.keep();
        return Err(Failure::new(format!("what the program changed was not put back: {why}"))
            .hint(format!("to put it back: {by_hand}")));
    }
    let read = read(&log, platform, status);
    if quiet && read.is_err() && !interrupted {
        show_tail(&output);
    }
    match read {
        Ok((log, replay)) => Ok(Traced { log, replay, interrupted, took }),
        Err(failure) if interrupted => Err(Failure { code: INTERRUPTED, ..failure }),
        Err(failure) => Err(failure),
    }
}

/// The Python of a run, in its directory and environment.
fn interpreter(launch: &Launch, args: &TracerArgs) -> Command {
    let mut python = args.python.as_ref().unwrap_or(&launch.python).clone();
    if let Some((cwd, _)) = &launch.job
        && Path::new(&python).components().count() > 1
    {
        // A path, which means what it means in the job's directory.
        python = cwd.join(&python).into_os_string();
    }
    let mut command = Command::new(python);
    if let Some((cwd, env)) = &launch.job {
        command.current_dir(cwd).env_clear().envs(env);
    }
    command.envs(launch.env.iter().map(|(key, value)| (key, value))).stdin(Stdio::null());
    command
}

fn command(
    launch: &Launch,
    args: &TracerArgs,
    platform: &Platform,
    tracer: &Path,
    log: &Path,
    notes: &Path,
) -> Command {
    let (major, minor) = platform.gpu.compute_capability;
    let (first, rest) =
        launch.words.split_first().map_or((None, &[][..]), |(first, rest)| (Some(first), rest));
    let mut command = interpreter(launch, args);
    command
        .args(&launch.interpreter)
        .arg(tracer.join(TRACER[0].0))
        .args(first)
        .arg("-o")
        .arg(log)
        .arg("--notes")
        .arg(notes)
        .arg(format!("--timeout={}", args.timeout))
        .arg(format!("--gpu={}", platform.gpu.name))
        .arg(format!("--capability={major}.{minor}"))
        .arg(format!("--total-mib={}", platform.gpu.total_mib.0))
        .args(rest)
        .env("CUDA_VISIBLE_DEVICES", "");
    command
}

/// Puts back what was noted. The program may have removed or renamed its directory.
fn by_another(launch: &Launch, args: &TracerArgs, notes: &Path) -> Command {
    let command = interpreter(launch, args);
    let mut python = command.get_program().to_owned();
    if Path::new(&python).components().count() > 1 {
        python = std::path::absolute(&python).map_or(python, PathBuf::into_os_string);
    }
    let mut absolute = Command::new(python);
    if launch.job.is_some() {
        absolute.env_clear();
    }
    absolute.envs(command.get_envs().filter_map(|(key, value)| Some((key, value?))));
    absolute.current_dir("/").stdin(Stdio::null()).arg("-I").arg(notes.with_file_name(PUT_BACK)).arg(notes);
    absolute
}

/// The command that does so, for the user.
fn by_hand(folder: &Path) -> String {
    let notes = ["notes.taken", "notes"].map(|name| folder.join(name));
    let notes = notes.iter().find(|notes| notes.exists()).unwrap_or(&notes[1]);
    format!("python3 {} {}", folder.join(PUT_BACK).display(), notes.display())
}

/// Names what dry runs that were killed have left to be put back, unless their programs still run.
fn name_left() {
    let is_noted = |folder: &PathBuf| {
        ["notes", "notes.taken"]
            .iter()
            .any(|name| folder.join(name).metadata().is_ok_and(|found| found.len() > 0))
    };
    let left: Vec<PathBuf> = Folder::left().into_iter().filter(is_noted).collect();
    if left.is_empty() {
        return;
    }
    let running: Vec<Vec<u8>> = std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|process| carma_files::read(&process.path().join("cmdline"), MOST).ok())
        .collect();
    for folder in left {
        let name = [folder.as_os_str().as_bytes(), b"/"].concat();
        if !running.iter().any(|words| words.windows(name.len()).any(|part| part == name)) {
            say(&format!(
                "a dry run was killed before it had put back what its program changed; to put it back: {} && rm -r {}",
                by_hand(&folder),
                folder.display()
            ));
        }
    }
}

/// Undoes what the program did to older files; says where they are if that fails, and why.
fn put_back(mut command: Command, notes: &Path) -> Result<(), String> {
    let taken = notes.with_extension("taken");
    match std::fs::metadata(notes) {
        // Nothing was noted.
        Ok(found) if found.len() == 0 => return Ok(()),
        Ok(_) => {}
        // The program has removed them, or an earlier put-back has taken them and was cut off.
        Err(e) => {
            say(&format!(
                "{}: {e}: what the program replaced may still be in .carma-dry-run-*",
                notes.display()
            ));
            name_kept(&taken);
            return Ok(());
        }
    }
    // Ctrl-C reaches all of a terminal's group.
    let status = command.process_group(0).stdout(io::stderr()).status();
    let why = match status {
        Ok(status) if status.success() => return Ok(()),
        // It has said what.
        Ok(status) if status.code() == Some(NOT_ALL) => {
            say("not all that the program changed was put back");
            return Ok(());
        }
        Ok(status) => format!("{} ended: {status}", command.get_program().display()),
        Err(e) => format!("cannot start {}: {e}", command.get_program().display()),
    };
    name_kept(if taken.exists() { &taken } else { notes });
    Err(why)
}

/// Older files that are still where the dry run keeps them.
fn name_kept(notes: &Path) {
    let bytes = carma_files::read(notes, MOST).unwrap_or_default();
    for line in bytes.split(|byte| *byte == b'\n') {
        let Ok(Value::Array(words)) = serde_json::from_slice(line) else { continue };
        if let [Value::String(what), Value::String(path), Value::String(kept), ..] = &words[..]
            && matches!(what.as_str(), "aside" | "copied")
            && Path::new(kept).symlink_metadata().is_ok()
        {
            say(&format!("{path} was not put back: it is {kept}"));
        }
    }
}

fn say(text: &str) {
    let _ = writeln!(io::stderr(), "carma: {}", carma_cli::clean(text));
}

/// The end of what the program printed.
fn show_tail(output: &Path) {
    let Ok(bytes) = carma_files::read(output, MOST) else { return };
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    for line in &lines[lines.len().saturating_sub(TAIL)..] {
        // What a program prints may move a terminal's text.
        let _ = writeln!(io::stderr(), "| {}", carma_cli::clean(line));
    }
}

fn read(log: &Path, platform: &Platform, status: ExitStatus) -> Result<(Vec<u8>, Replay), Failure> {
    // The program that was traced can put anything in its place.
    let bytes = carma_files::read(log, MOST).map_err(|e| Failure::new(e.to_string()))?;
    let bad = |e: carma_memory::Error| Failure::new(format!("the log of the trace: {e}"));
    if let (true, None) = (bytes.is_empty(), status.signal()) {
        return Err(Failure::new(format!("the tracer wrote nothing ({status})"))
            .hint("what it printed is above; --python names a Python that has PyTorch 2.1 or newer"));
    }
    let ended = || match status.signal() {
        Some(signal) => {
            Failure::new(format!("the program was killed by signal {signal} before a trace was written"))
        }
        None => {
            Failure::new(format!("the program ended itself (os._exit, {status}) before a trace was written"))
                .hint("let it end as a script does: what os._exit leaves out is the trace, too")
        }
    };
    if bytes.is_empty() {
        return Err(ended());
    }
    let mut reader = trace::read(&bytes[..]).map_err(bad)?;
    let replay = trace::replay(&mut reader, platform).map_err(bad)?;
    if replay.events == 0 && reader.end().is_none() {
        return Err(ended());
    }
    let started: Vec<String> = replay.end.started.iter().map(|name| format!("`{name}`")).collect();
    if !started.is_empty() {
        say(&format!("the program started {}: what they did is not put back", started.join(", ")));
    }
    if replay.end.status == Status::Failed {
        let why = replay.end.reason.as_deref().unwrap_or("no reason given");
        return Err(Failure {
            code: GENERAL,
            ..Failure::new(format!("the program failed in the dry run: {why}"))
        });
    }
    Ok((bytes, replay))
}

/// Waits for the child; ends it after `limit`, or when the user wants out, who is told so: politely first, and the
/// tracer then writes what it has seen. Says whether the user did. `over` is called while signals end nothing yet.
fn wait<T>(
    mut child: Child,
    limit: Duration,
    progress: bool,
    over: impl FnOnce() -> T,
) -> io::Result<(ExitStatus, bool, T)> {
    // Signals go to a handle of the process: its id may be another's by then.
    let handle = Arc::new(pidfd_open(Pid::from_child(&child), PidfdFlags::empty())?);
    let interrupts = until_interrupted(Arc::clone(&handle))?;
    let (done, ended) = channel::<()>();
    let progress = progress && rustix::termios::isatty(io::stderr());
    let watcher = std::thread::spawn(move || {
        let began = Instant::now();
        let mut killed_at = [Some(limit), Some(limit + GRACE)];
        while ended.recv_timeout(Duration::from_secs(1)) == Err(RecvTimeoutError::Timeout) {
            for (at, signal) in killed_at.iter_mut().zip([Signal::TERM, Signal::KILL]) {
                if at.is_some_and(|at| began.elapsed() >= at) {
                    *at = None;
                    // It may have ended by itself just now.
                    let _ = pidfd_send_signal(&*handle, signal);
                }
            }
            if progress {
                let _ = write!(io::stderr(), "\rdry run: {} s", began.elapsed().as_secs());
            }
        }
        if progress {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    });
    let status = child.wait();
    drop(done);
    let _ = watcher.join();
    let over = over();
    Ok((status?, interrupts.over(), over))
}

/// Signals that ask for an end, on their way to the traced program.
struct Interrupts {
    count: Arc<AtomicU32>,
    over: Arc<AtomicBool>,
}

impl Interrupts {
    /// The program is over; from now on a signal ends this process, as before. Says whether there was one before.
    fn over(self) -> bool {
        self.over.store(true, Ordering::SeqCst);
        self.count.load(Ordering::SeqCst) > 0
    }
}

/// The first signal is passed on as SIGTERM, the second as SIGKILL.
fn until_interrupted(handle: Arc<OwnedFd>) -> io::Result<Interrupts> {
    let events = Events::new();
    events.catch_signals(&[SignalKind::hangup(), SignalKind::quit()])?;
    let mine = times_caught();
    let interrupts = Interrupts { count: Arc::default(), over: Arc::default() };
    let (count, over) = (Arc::clone(&interrupts.count), Arc::clone(&interrupts.over));
    std::thread::Builder::new().name("interrupts".into()).spawn(move || {
        while events.next().is_some() {
            if over.load(Ordering::SeqCst) {
                // Unless what came after has a meaning of its own for it.
                if times_caught() == mine {
                    std::process::exit(INTERRUPTED.into());
                }
                continue;
            }
            let first = count.fetch_add(1, Ordering::SeqCst) == 0;
            let _ = pidfd_send_signal(&*handle, if first { Signal::TERM } else { Signal::KILL });
        }
    })?;
    Ok(interrupts)
}

/// An option of the tracer.
pub(crate) fn option(name: &str, value: impl AsRef<OsStr>) -> OsString {
    let mut word = OsString::from(format!("--{name}="));
    word.push(value);
    word
}

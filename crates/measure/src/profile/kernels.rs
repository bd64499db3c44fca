//! A run of the command under Nsight Compute.

use super::task::Task;
use super::{Interrupts, Options};
use crate::Error;
use carma_files::{FileError, Why};
use carma_interference::kernels::{Summary, Unreadable, read};
use carma_process::process;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Longest that it may run: each launch is repeated some ten times, and its memory is saved and put back each time.
const MOST: Duration = Duration::from_secs(1800);
/// Most pieces of output that are taken in at a time.
const MOST_PIECES: usize = 64;
/// Largest log that is read, bytes.
const MOST_LOG: u64 = 256 << 20;

/// Which kernels to look at, and with what.
#[derive(Debug, Clone)]
pub struct Kernels {
    /// Nsight Compute's command line ([`find_ncu`](super::find_ncu)).
    pub ncu: PathBuf,
    /// Launches to let pass first.
    pub skip: u32,
    /// Launches to look at, 1 or more.
    pub count: u32,
}

/// Where Nsight Compute is: at the path `given`, else on PATH or in its usual places.
///
/// # Errors
/// It is not there; how to get it.
pub fn find(given: Option<&Path>) -> Result<PathBuf, Error> {
    let is_program = |path: &PathBuf| {
        std::fs::metadata(path).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
    };
    if let Some(given) = given {
        return Some(given.to_owned()).filter(is_program).ok_or_else(|| {
            Error::usage(format!("--ncu {}: there is no program of that name", given.display()))
        });
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places: Vec<PathBuf> = std::env::split_paths(&path).map(|dir| dir.join("ncu")).collect();
    places.push("/usr/local/cuda/bin/ncu".into());
    // The newest of those that NVIDIA's own installer puts side by side.
    let mut versions: Vec<PathBuf> = std::fs::read_dir("/opt/nvidia/nsight-compute")
        .map(|entries| entries.flatten().map(|entry| entry.path().join("ncu")).collect())
        .unwrap_or_default();
    versions.sort();
    places.extend(versions.into_iter().rev());
    places.into_iter().find(is_program).ok_or_else(|| {
        Error::new("--kernels needs Nsight Compute, and there is no `ncu` here").hint(
            "it comes with the CUDA toolkit, or alone as nsight-compute in NVIDIA's package repository and from developer.nvidia.com/nsight-compute; --ncu names it where it is not on PATH",
        )
    })
}

/// Runs the command under it and sums up what it saw.
///
/// # Errors
/// A profiler that fails, or that saw no launch.
pub(super) fn measure(
    kernels: &Kernels,
    options: &Options,
    env: &[(String, String)],
    dir: &Path,
    interrupts: &Interrupts,
) -> Result<Summary, Error> {
    let bell = interrupts.bell();
    let log = dir.join("ncu.csv");
    let mut words: Vec<OsString> = vec![kernels.ncu.clone().into()];
    words.extend(
        ["--csv", "--page", "details", "--section", "SpeedOfLight", "--section", "LaunchStats"]
            .map(OsString::from),
    );
    words.extend(["--target-processes", "all", "--kill", "yes"].map(OsString::from));
    words.extend(["--launch-skip".into(), kernels.skip.to_string().into()]);
    words.extend(["--launch-count".into(), kernels.count.to_string().into()]);
    words.extend(["--log-file".into(), log.clone().into_os_string()]);
    words.extend(options.command.iter().cloned());
    let before: BTreeSet<u32> = process::descendants(std::process::id()).into_iter().collect();
    let mut task =
        Task::start(&words, env, options.outlets, bell, Box::new(move |pid| before.contains(&pid)))?;
    let started = Instant::now();
    let mut told: Option<Instant> = None;
    while task.status().is_none() {
        let fds = &mut [PollFd::new(bell, PollFlags::IN), PollFd::new(&task, PollFlags::IN)];
        let timeout = rustix::time::Timespec { tv_sec: 0, tv_nsec: 200_000_000 };
        let _ = poll(fds, Some(&timeout));
        bell.hush();
        // Nothing of it tells progress here; what is too much is passed over.
        for _ in 0..MOST_PIECES {
            if task.piece(Duration::ZERO).is_none() {
                break;
            }
        }
        let unwanted = interrupts.count() > 0 || started.elapsed() > MOST;
        match told {
            None if unwanted => {
                task.signal(Signal::TERM);
                told = Some(Instant::now());
            }
            Some(since) if since.elapsed() > options.grace => task.signal(Signal::KILL),
            _ => {}
        }
    }
    task.signal(Signal::KILL);
    let text = match carma_files::read(&log, MOST_LOG) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(FileError { why: Why::Io(_), .. }) => String::new(),
        Err(e) => {
            let what = format!("what Nsight Compute wrote: {}", e.why);
            return Err(Error::new(what).hint("lower --kernel-count"));
        }
    };
    read(&text).map_err(|why| {
        let failure = Error::new(format!("--kernels: {why}"));
        match &why {
            Unreadable::NoTable(words) if words.contains("ERR_NVGPUCTRPERM") => failure.hint(
                "the driver lets only root read these counters: run this as root, or load the nvidia module with NVreg_RestrictProfilingToAdminUsers=0",
            ),
            Unreadable::NoTable(_) | Unreadable::NoLaunch => failure.hint(format!(
                "the first {} launches were let pass; if the command makes fewer, lower --kernel-skip",
                kernels.skip
            )),
            Unreadable::Missing(_) => failure.hint("another version of Nsight Compute may have it"),
        }
    })
}

//! NVIDIA's Multi-Process Service: kernels of several processes run at the same time on one GPU.
//!
//! A *control daemon* listens in a pipe directory and starts one *server* a user; CUDA programs that
//! find the directory in their environment become *clients* of that server. One server serves one
//! user at a time: the second user of a common daemon waits until the first has left. Hence one
//! daemon a user here, run as that user, each with its own directories; or, if the operator gives up
//! what separates users, one daemon with `-multiuser-server` for all.
//!
//! A daemon outlives carma, so that jobs survive a restart: whatever answers in a pipe directory is
//! taken over, never doubled.

mod control;
mod exec;
mod files;

use crate::sharing::{Grant, Sharing, SharingError, SharingRequest};
use carma_core::reading::{GpuInfo, GpuKind};
use control::Daemon;
use files::make_dir;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Longest pipe directory, bytes: a socket address holds 108, and MPS adds its own names.
const LONGEST_PIPE_DIR: usize = 80;
/// The directory of the daemon that all users share.
const SHARED: &str = "all";
/// A control daemon that answered within this time but does not answer now is taken to be busy: it answers no request while it
/// starts the server of its first client (1.2 s on four H200s, docs/research/h200.md). A launch does not wait for that, since a
/// program needs seconds before it first calls CUDA.
const LATELY: Duration = Duration::from_secs(10);

/// How [`Mps`] runs its daemons.
#[derive(Debug, Clone)]
pub struct MpsOptions {
    /// The control program: a name looked up on `PATH`, or a path.
    pub control: PathBuf,
    /// Where the daemons' directories go. Keep it short, and searchable by every user who shares
    /// GPUs: the directory itself and its parents need the `x` permission for others.
    pub dir: PathBuf,
    /// One daemon with `-multiuser-server` for all users in place of one a user. Users then share a
    /// server: its faults and its log are common to them.
    pub multi_user: bool,
    /// The devices that an outer limit (a Slurm allocation, a container) leaves to carma; empty: no
    /// limit. Daemons get it as `CUDA_VISIBLE_DEVICES`, which renumbers the devices for clients, so
    /// it is set only then.
    pub gpus: Vec<Arc<str>>,
    /// The longest that any one call may talk to a daemon (it may wait as long for another call
    /// about the same user).
    pub timeout: Duration,
    /// How long a launch waits for a daemon that answered within the last ten seconds, before it takes the daemon to be busy.
    pub patience: Duration,
}

impl MpsOptions {
    /// The usual: `nvidia-cuda-mps-control` from `PATH`, a daemon a user, every device, 5 s and .1 s: a daemon that is not busy answers within 10 ms.
    #[must_use]
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self {
            control: "nvidia-cuda-mps-control".into(),
            dir: dir.into(),
            multi_user: false,
            gpus: Vec::new(),
            timeout: Duration::from_secs(5),
            patience: Duration::from_millis(100),
        }
    }
}

/// MPS through NVIDIA's control program. Never changes the compute or persistence mode.
///
/// Calls for different users do not wait for each other. Clones share what they know of the daemons.
#[derive(Debug, Clone)]
pub struct Mps {
    options: Arc<MpsOptions>,
    /// Effective uid of carma itself.
    me: u32,
    /// By the name of the daemon's directory.
    requests: Arc<Mutex<BTreeMap<String, Arc<Requests>>>>,
}

/// The requests to one daemon.
#[derive(Debug, Default)]
struct Requests {
    /// Locked during a request, so that two launches do not both start the daemon.
    turn: Mutex<()>,
    /// When it last answered.
    answered: Mutex<Option<Instant>>,
}

impl Requests {
    fn has_answered(&self) {
        *self.answered.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    fn answered_lately(&self) -> bool {
        let answered = *self.answered.lock().unwrap_or_else(PoisonError::into_inner);
        answered.is_some_and(|at| at.elapsed() < LATELY)
    }
}

/// One control daemon: whose it is and where it lives.
#[derive(Clone)]
struct Seat {
    name: String,
    uid: u32,
    gid: u32,
    pipe: PathBuf,
    log: PathBuf,
}

impl Mps {
    /// Starts nothing yet.
    #[must_use]
    pub fn new(mut options: MpsOptions) -> Self {
        // Clients have working directories of their own.
        if let Ok(dir) = std::path::absolute(&options.dir) {
            options.dir = dir;
        }
        Self { options: Arc::new(options), me: rustix::process::geteuid().as_raw(), requests: Arc::default() }
    }

    /// The daemon that serves `uid`.
    fn seat(&self, uid: u32, gid: u32) -> Seat {
        if self.options.multi_user {
            return self.seat_at(SHARED.to_owned(), self.me, rustix::process::getegid().as_raw());
        }
        self.seat_at(uid.to_string(), uid, gid)
    }

    fn seat_at(&self, name: String, uid: u32, gid: u32) -> Seat {
        let home = self.options.dir.join(&name);
        Seat { uid, gid, pipe: home.join("pipe"), log: home.join("log"), name }
    }

    /// A daemon that may run already; `None` if its directories were never made.
    fn existing(&self, name: String) -> Option<Seat> {
        let mut seat = self.seat_at(name, 0, 0);
        let pipe = fs::symlink_metadata(&seat.pipe).ok().filter(fs::Metadata::is_dir)?;
        (seat.uid, seat.gid) = (pipe.uid(), pipe.gid());
        (self.me == 0 || self.me == seat.uid).then_some(seat)
    }

    fn requests(&self, seat: &Seat) -> Arc<Requests> {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(requests.entry(seat.name.clone()).or_default())
    }

    /// Runs `act` alone for this seat, with the time by which it must be over.
    fn alone<T>(&self, seat: &Seat, act: impl FnOnce(Instant) -> T) -> T {
        let requests = self.requests(seat);
        let _held = requests.turn.lock().unwrap_or_else(PoisonError::into_inner);
        act(Instant::now() + self.options.timeout)
    }

    /// Whether it is up, or was lately and is busy.
    fn is_up_or_busy(&self, seat: &Seat) -> bool {
        if !self.requests(seat).answered_lately() {
            return false;
        }
        let patience = self.options.patience;
        let (tell, told) = mpsc::channel();
        let (mps, seat) = (self.clone(), seat.clone());
        // A late answer still tells later launches that the daemon is alive.
        let ask = move || {
            let found = mps.alone(&seat, |deadline| mps.servers(&seat, deadline));
            let _ = tell.send(matches!(found, Ok(Daemon::Up(_))));
        };
        match std::thread::Builder::new().name("ask mps".into()).spawn(ask) {
            Ok(_) => told.recv_timeout(patience).unwrap_or_else(|e| e == RecvTimeoutError::Timeout),
            Err(_) => false,
        }
    }

    /// Makes the directories. What is above the user's own two stays ours, so that a user cannot
    /// put a link where root is about to change an owner.
    fn make_dirs(&self, seat: &Seat) -> Result<(), SharingError> {
        if self.me != 0 && seat.uid != self.me {
            return Err(error(
                format!("MPS for {seat}"),
                format!("carma runs as uid {}, and only root can start it for others", self.me),
            ));
        }
        if seat.pipe.as_os_str().len() > LONGEST_PIPE_DIR {
            return Err(error(
                format!("MPS pipe directory {}", seat.pipe.display()),
                format!(
                    "longer than {LONGEST_PIPE_DIR} bytes, which sockets do not allow: choose a shorter state directory"
                ),
            ));
        }
        // MPS itself opens the shared pipes to all; users pass through to them, and need no right to
        // put files beside them.
        let leaf = if self.options.multi_user { 0o711 } else { 0o700 };
        let ours = (self.me, rustix::process::getegid().as_raw());
        let user = (seat.uid, seat.gid);
        let home = self.options.dir.join(&seat.name);
        let failed =
            |dir: &Path, e: io::Error| error(format!("MPS directory {}", dir.display()), e.to_string());
        fs::create_dir_all(&self.options.dir).map_err(|e| failed(&self.options.dir, e))?;
        for (dir, owner, mode) in [
            (&self.options.dir, ours, 0o711),
            (&home, ours, 0o711),
            (&seat.pipe, user, leaf),
            (&seat.log, user, leaf),
        ] {
            make_dir(dir, owner, mode).map_err(|e| failed(dir, e))?;
        }
        Ok(())
    }

    fn env(&self, seat: &Seat, request: &SharingRequest) -> Vec<(String, String)> {
        let mut env = vec![
            ("CUDA_MPS_PIPE_DIRECTORY", seat.pipe.to_string_lossy().into_owned()),
            ("CUDA_MPS_LOG_DIRECTORY", seat.log.to_string_lossy().into_owned()),
        ];
        if let Some(cap) = request.cap
            && !request.gpus.is_empty()
        {
            // One entry for each device that the client sees, by its own ordinals, and never one
            // more: driver 580 drops every cap without a word if a single entry names a device
            // that CUDA_VISIBLE_DEVICES hides from the client (docs/sharing.md).
            let caps: Vec<_> = (0..request.gpus.len()).map(|n| format!("{n}={}M", cap.0)).collect();
            env.push(("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", caps.join(",")));
        }
        if let Some(percent) = request.thread_percent {
            let percent = percent.clamp(1, 100).to_string();
            env.push(("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", percent));
        }
        env.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }
}

impl Sharing for Mps {
    fn obstacle(&self, gpu: &GpuInfo) -> Option<String> {
        let control = &self.options.control;
        match gpu.kind {
            GpuKind::Mig { .. } => Some("MPS inside MIG instances is untried".to_owned()),
            _ if find_program(control).is_none() => Some(format!(
                "{} is not there: it comes with the NVIDIA driver (on Debian and Ubuntu in nvidia-compute-utils)",
                control.display()
            )),
            GpuKind::Whole | GpuKind::Virtual => None,
        }
    }

    fn prepare(&self, request: &SharingRequest) -> Result<Grant, SharingError> {
        let seat = self.seat(request.uid, request.gid);
        if !self.is_up_or_busy(&seat) {
            self.alone(&seat, |deadline| {
                self.make_dirs(&seat)?;
                if let Daemon::Down(why) = self.servers(&seat, deadline)? {
                    tracing::info!(daemon = %seat, why, "starting MPS");
                    self.start(&seat, deadline)?;
                }
                Ok(())
            })?;
        }
        Ok(Grant { env: self.env(&seat, request) })
    }

    fn clients(&self, uid: u32, pids: &[u32]) -> Result<Vec<u32>, SharingError> {
        let Some(seat) = self.existing(self.seat(uid, 0).name) else { return Ok(Vec::new()) };
        let found = self.alone(&seat, |deadline| self.clients_among(&seat, pids, deadline))?;
        Ok(found.into_iter().map(|(_, pid)| pid).collect())
    }

    fn terminate_clients(&self, uid: u32, pids: &[u32]) -> Result<usize, SharingError> {
        match self.existing(self.seat(uid, 0).name) {
            Some(seat) => self.alone(&seat, |deadline| self.terminate(&seat, pids, deadline)),
            None => Ok(0),
        }
    }

    /// By the kernel's name of the process, which has 15 bytes: server and control program both
    /// read `nvidia-cuda-mps`, of any user. A name is no proof, and neither is the program: its user can load code into it.
    /// Hence jobs are asked first, and what takes the name outside of jobs is not listed; its memory counts as used.
    fn is_own_process(&self, pid: u32) -> bool {
        fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim_end() == "nvidia-cuda-mps")
    }

    /// Also daemons that an earlier carma left, found by their directories. Those with clients stay.
    fn shutdown(&self, users_at_work: &[u32]) {
        let kept: Vec<String> = users_at_work.iter().map(|uid| self.seat(*uid, 0).name).collect();
        let names = fs::read_dir(&self.options.dir).into_iter().flatten().flatten();
        let names = names.filter_map(|entry| entry.file_name().into_string().ok());
        let names = names.filter(|name| !kept.contains(name));
        let (tell, told) = mpsc::channel::<()>();
        // All at once, so that hanging daemons cost one timeout together.
        for seat in names.filter_map(|name| self.existing(name)) {
            let (mps, tell) = (self.clone(), tell.clone());
            let quit = move || {
                match mps.alone(&seat, |deadline| mps.quit_idle(&seat, deadline)) {
                    Ok(gone) => tracing::info!(daemon = %seat, gone, "MPS at shutdown"),
                    Err(e) => tracing::warn!(daemon = %seat, error = %e, "MPS did not stop"),
                }
                drop(tell);
            };
            if let Err(e) = std::thread::Builder::new().name("quit mps".into()).spawn(quit) {
                tracing::warn!(error = %e, "MPS is not asked to stop");
            }
        }
        drop(tell);
        // A call may wait for another one first. The user database is asked for the groups of a daemon's user, and may hang for longer.
        if let Err(RecvTimeoutError::Timeout) = told.recv_timeout(self.options.timeout * 2) {
            tracing::warn!("MPS is left as it is: it, or the user database, does not answer");
        }
    }
}

impl std::fmt::Display for Seat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.name == SHARED { f.write_str("all users") } else { write!(f, "uid {}", self.name) }
    }
}

/// The file of a program: itself where it is a path, else looked up on `PATH`.
#[must_use]
pub fn find_program(program: &Path) -> Option<PathBuf> {
    let runs =
        |file: &PathBuf| fs::metadata(file).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0);
    if program.components().count() > 1 {
        return Some(program.to_owned()).filter(runs);
    }
    std::env::split_paths(&std::env::var_os("PATH")?).map(|dir| dir.join(program)).find(runs)
}

fn error(what: String, why: String) -> SharingError {
    SharingError { what, why }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As a user database that hangs while a daemon is asked for something.
    #[test]
    fn shutdown_does_not_wait_for_ever() {
        let dir = tempfile::tempdir().unwrap();
        let timeout = Duration::from_millis(50);
        let mps = Mps::new(MpsOptions { timeout, ..MpsOptions::new(dir.path()) });
        let name = mps.me.to_string();
        fs::create_dir_all(dir.path().join(&name).join("pipe")).unwrap();
        let requests = mps.requests(&mps.existing(name).unwrap());
        let _held = requests.turn.lock().unwrap();
        mps.shutdown(&[]);
    }
}

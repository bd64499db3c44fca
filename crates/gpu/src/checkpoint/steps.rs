//! All processes of a job are suspended or resumed together: either all of them are, or none.
//!
//! Both begin by asking where each process is, and do only what is missing. So what was cut off in the middle is done to
//! its end by doing it again.

use super::{Checkpoint, CheckpointError, Pair, ProcessState};
use serde::{Deserialize, Serialize};
use std::io::ErrorKind;
use std::time::{Duration, Instant};

/// How often a process is looked at that is between two states.
const AGAIN: Duration = Duration::from_millis(20);
/// How long a process may stay between two states: the calls that brought it there have come back.
const BETWEEN: Duration = Duration::from_secs(60);

/// How long the calls took, all processes together, milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Took {
    /// Lock.
    pub lock_ms: u64,
    /// Checkpoint.
    pub checkpoint_ms: u64,
    /// Restore.
    pub restore_ms: u64,
    /// Unlock.
    pub unlock_ms: u64,
}

/// Why it was not done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failed {
    /// What went wrong first, in words.
    pub why: String,
    /// What could not be undone: the processes are in no state in which they could stay.
    pub stuck: Option<String>,
}

/// Takes processes off their GPUs: locks all of them, then moves their memory to the host's. `lock`: how long each may
/// take to finish its work on the GPU. Processes that end meanwhile are no failure.
///
/// # Errors
/// What went wrong. Unless it is stuck, all of them run on where they were.
pub fn suspend(driver: &dyn Checkpoint, pids: &[u32], lock: Duration) -> Result<Took, Failed> {
    suspend_again(driver, pids, &[], lock)
}

/// The same once it was begun: `touched` are those of the processes that may be off their GPUs by now, or locked. Where the
/// driver does not tell of one of them, it is not known to run.
///
/// # Errors
/// What went wrong. Unless it is stuck, all of them run on where they were.
pub fn suspend_again(
    driver: &dyn Checkpoint,
    pids: &[u32],
    touched: &[u32],
    lock: Duration,
) -> Result<Took, Failed> {
    let mut took = Took::default();
    // One that the driver does not know is found before anything is done to the others.
    let states: Vec<_> = pids.iter().map(|pid| (*pid, state(driver, *pid))).collect();
    let known = |(pid, state): &(u32, Result<_, _>)| (state.is_ok() || touched.contains(pid)).then_some(*pid);
    let pids: Vec<u32> = states.iter().filter_map(known).collect();
    let unknown = states.into_iter().find_map(|(_, state)| state.err());
    let done = || -> Result<(), CheckpointError> {
        unknown.map_or(Ok(()), Err)?;
        let started = Instant::now();
        for pid in &pids {
            step(driver, *pid, ProcessState::Running, || driver.lock(*pid, lock))?;
        }
        took.lock_ms = millis(started);
        let started = Instant::now();
        for pid in &pids {
            step(driver, *pid, ProcessState::Locked, || driver.checkpoint(*pid))?;
        }
        took.checkpoint_ms = millis(started);
        expect(driver, &pids, ProcessState::Checkpointed)
    }();
    done.map(|()| took).map_err(|e| {
        let stuck = run_on(driver, &pids).err().map(|e| e.to_string());
        Failed { why: e.to_string(), stuck }
    })
}

/// Puts processes back on their GPUs, or on others ([`Checkpoint::restore`]), and lets them go on. Processes that end
/// meanwhile are no failure.
///
/// # Errors
/// What went wrong. Unless it is stuck, all of them are suspended as before.
pub fn resume(driver: &dyn Checkpoint, pids: &[u32], pairs: &[Pair]) -> Result<Took, Failed> {
    let mut took = Took::default();
    let started = Instant::now();
    let restored = || -> Result<(), CheckpointError> {
        for pid in pids {
            step(driver, *pid, ProcessState::Checkpointed, || driver.restore(*pid, pairs))?;
        }
        Ok(())
    }();
    took.restore_ms = millis(started);
    if let Err(e) = restored {
        // One half of a job on its GPU is of no use, and holds memory there.
        let again = pids
            .iter()
            .try_for_each(|pid| step(driver, *pid, ProcessState::Locked, || driver.checkpoint(*pid)))
            .and_then(|()| expect(driver, pids, ProcessState::Checkpointed));
        return Err(Failed { why: e.to_string(), stuck: again.err().map(|e| e.to_string()) });
    }
    let started = Instant::now();
    let unlocked =
        pids.iter().try_for_each(|pid| step(driver, *pid, ProcessState::Locked, || driver.unlock(*pid)));
    took.unlock_ms = millis(started);
    match unlocked.and_then(|()| expect(driver, pids, ProcessState::Running)) {
        Ok(()) => Ok(took),
        Err(e) => Err(Failed { why: e.to_string(), stuck: Some("it cannot go on".to_owned()) }),
    }
}

/// All of them go on where they were, wherever they are now.
fn run_on(driver: &dyn Checkpoint, pids: &[u32]) -> Result<(), CheckpointError> {
    let mut first = Ok(());
    for pid in pids {
        let back = || -> Result<(), CheckpointError> {
            if to_bring_back(driver, *pid)?.is_none() {
                return Ok(());
            }
            step(driver, *pid, ProcessState::Checkpointed, || driver.restore(*pid, &[]))?;
            step(driver, *pid, ProcessState::Locked, || driver.unlock(*pid))
        };
        first = first.and(back());
    }
    first.and_then(|()| expect_all(pids, ProcessState::Running, |pid| to_bring_back(driver, pid)))
}

/// What cut-off calls may have begun is undone: all of them go on where they were. One that does not use a GPU has nothing
/// that could be brought back.
///
/// # Errors
/// What could not be undone.
pub fn undo(driver: &dyn Checkpoint, pids: &[u32]) -> Result<Took, Failed> {
    let stuck = |e: CheckpointError| Failed { why: e.to_string(), stuck: Some("it cannot go on".to_owned()) };
    run_on(driver, pids).map(|()| Took::default()).map_err(stuck)
}

/// Where a process is that may have to be brought back; `None`: it has not to.
fn to_bring_back(driver: &dyn Checkpoint, pid: u32) -> Result<Option<ProcessState>, CheckpointError> {
    state(driver, pid).or_else(|e| if e.uses_no_gpu() { Ok(None) } else { Err(e) })
}

/// Does a step with a process that is in the state for it.
fn step(
    driver: &dyn Checkpoint,
    pid: u32,
    from: ProcessState,
    act: impl FnOnce() -> Result<(), CheckpointError>,
) -> Result<(), CheckpointError> {
    match state(driver, pid)? {
        Some(state) if state == from => act().or_else(|e| if is_gone(pid) { Ok(()) } else { Err(e) }),
        _ => Ok(()),
    }
}

/// Where a process is that is between no two states; `None`: it is over.
fn state(driver: &dyn Checkpoint, pid: u32) -> Result<Option<ProcessState>, CheckpointError> {
    let until = Instant::now() + BETWEEN;
    loop {
        match driver.state(pid) {
            _ if is_gone(pid) => return Ok(None),
            Ok(ProcessState::Between) if Instant::now() < until => std::thread::sleep(AGAIN),
            other => return other.map(Some),
        }
    }
}

fn expect(driver: &dyn Checkpoint, pids: &[u32], wanted: ProcessState) -> Result<(), CheckpointError> {
    expect_all(pids, wanted, |pid| state(driver, pid))
}

fn expect_all(
    pids: &[u32],
    wanted: ProcessState,
    state: impl Fn(u32) -> Result<Option<ProcessState>, CheckpointError>,
) -> Result<(), CheckpointError> {
    for pid in pids {
        if let Some(state) = state(*pid)?.filter(|state| *state != wanted) {
            let why = format!("it is {state:?} and not {wanted:?}").to_lowercase();
            return Err(CheckpointError { call: "state", pid: *pid, code: None, why });
        }
    }
    Ok(())
}

/// Whether a process is over, or waits for its parent to notice. One that this user may not look at is there.
fn is_gone(pid: u32) -> bool {
    std::fs::read_link(format!("/proc/{pid}/exe")).is_err_and(|e| e.kind() == ErrorKind::NotFound)
}

fn millis(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}

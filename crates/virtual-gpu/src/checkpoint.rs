//! Virtual tasks are suspended and brought back by their host, as the driver does it with real ones.

use super::RECONNECT;
use super::control::exchange;
use super::physics::NO_CONTEXT;
use super::protocol::{CheckpointCall, ClientMessage, HostMessage, VERSION};
use carma_gpu::checkpoint::{NOT_INITIALISED, Pair};
use carma_gpu::{Checkpoint, CheckpointError, ProcessState};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How often a task is looked at that has yet to take in what it was told.
const AGAIN: Duration = Duration::from_millis(5);
/// How long a task may take for that, beyond the time to lock: it does nothing but answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// The checkpoint calls of virtual GPUs. Any process may make them that may control their host.
#[derive(Debug)]
pub struct VirtualCheckpoint {
    socket: PathBuf,
}

impl VirtualCheckpoint {
    /// Makes its calls at a host's socket.
    #[must_use]
    pub fn new(socket: &Path) -> Self {
        Self { socket: socket.to_owned() }
    }

    fn ask(
        &self,
        call: CheckpointCall,
        name: &'static str,
        pid: u32,
        pairs: &[Pair],
    ) -> Result<Option<ProcessState>, CheckpointError> {
        let fail = |why: String| {
            let code = (why == NO_CONTEXT).then_some(NOT_INITIALISED);
            Err(CheckpointError { call: name, pid, code, why })
        };
        let pairs = pairs.iter().map(|pair| (pair.from.clone(), pair.to.clone())).collect();
        match exchange(&self.socket, &ClientMessage::Checkpoint { v: VERSION, call, pid, pairs }) {
            Ok(Some(HostMessage::State { state })) => Ok(Some(state)),
            Ok(Some(HostMessage::Done)) => Ok(None),
            Ok(Some(HostMessage::Error { message })) => fail(message),
            Ok(other) => fail(format!("the host of the virtual GPUs answered {other:?}")),
            Err(e) => fail(format!("no host of virtual GPUs answers at {}: {e}", self.socket.display())),
        }
    }

    /// Makes a call, and waits until the task has taken it in.
    fn step(
        &self,
        call: CheckpointCall,
        name: &'static str,
        pid: u32,
        pairs: &[Pair],
        timeout: Duration,
    ) -> Result<(), CheckpointError> {
        self.ask(call, name, pid, pairs)?;
        let until = Instant::now() + timeout;
        while self.ask(CheckpointCall::State, name, pid, &[])? == Some(ProcessState::Between) {
            if Instant::now() >= until {
                let why = format!("no answer within {:.1} s", timeout.as_secs_f64());
                return Err(CheckpointError { call: name, pid, code: None, why });
            }
            std::thread::sleep(AGAIN);
        }
        Ok(())
    }
}

impl Checkpoint for VirtualCheckpoint {
    /// A task whose host was away is given the time to come back.
    fn state(&self, pid: u32) -> Result<ProcessState, CheckpointError> {
        let until = Instant::now() + RECONNECT * 10;
        loop {
            match self.ask(CheckpointCall::State, "state", pid, &[]) {
                Ok(Some(state)) => return Ok(state),
                Err(e) if Instant::now() >= until => return Err(e),
                Ok(None) | Err(_) => std::thread::sleep(AGAIN),
            }
        }
    }

    fn lock(&self, pid: u32, timeout: Duration) -> Result<(), CheckpointError> {
        self.step(CheckpointCall::Lock, "lock", pid, &[], timeout).inspect_err(|_| {
            // As with the driver, it runs on then.
            let _ = self.ask(CheckpointCall::Unlock, "unlock", pid, &[]);
        })
    }

    fn checkpoint(&self, pid: u32) -> Result<(), CheckpointError> {
        self.step(CheckpointCall::Checkpoint, "checkpoint", pid, &[], PATIENCE)
    }

    fn restore(&self, pid: u32, pairs: &[Pair]) -> Result<(), CheckpointError> {
        self.step(CheckpointCall::Restore, "restore", pid, pairs, PATIENCE)
    }

    fn unlock(&self, pid: u32) -> Result<(), CheckpointError> {
        self.step(CheckpointCall::Unlock, "unlock", pid, &[], PATIENCE)
    }
}

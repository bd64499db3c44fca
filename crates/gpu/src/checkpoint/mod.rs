//! Processes are taken off their GPUs and put back, by the driver, without their help: *suspended*, *resumed*, and
//! *moved* where they come back on another GPU.
//!
//! The driver does it process by process, in four calls: lock, checkpoint, restore, unlock ([`Checkpoint`]). What is done
//! with all processes of a job, and what is undone where one of them fails, is in [`steps`]. A call can hang, with no way
//! to interrupt it: callers make them in a process of their own that they can give up.

pub mod cuda;
pub mod steps;

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Where a process is on its way off its GPUs and back (`CUprocessState` of the CUDA driver).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProcessState {
    /// It uses its GPUs.
    Running,
    /// Its work on them is done, and its next call waits. It holds its memory.
    Locked,
    /// Its GPU memory is in the host's; it holds none on a GPU.
    Checkpointed,
    /// A call has gone wrong in a way that the driver cannot mend.
    Failed,
    /// A checkpoint or a restore is under way.
    Between,
}

/// Why a call did not succeed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{call} of process {pid}: {why}")]
pub struct CheckpointError {
    /// What was tried.
    pub call: &'static str,
    /// The process.
    pub pid: u32,
    /// The driver's own number, where it answered.
    pub code: Option<i32>,
    /// What went wrong, in words.
    pub why: String,
}

/// The driver's number for a process that does not use a GPU ("not initialised").
pub const NOT_INITIALISED: i32 = 3;

impl CheckpointError {
    /// Whether the driver says that the process does not use a GPU: nothing of it was taken off one.
    #[must_use]
    pub fn uses_no_gpu(&self) -> bool {
        self.code == Some(NOT_INITIALISED)
    }
}

/// A GPU by the 16 bytes of its UUID.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Uuid(pub [u8; 16]);

/// No UUID of a whole GPU.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not the UUID of a whole GPU")]
pub struct NotAGpu(String);

impl FromStr for Uuid {
    type Err = NotAGpu;

    /// Reads `GPU-` and 32 hexadecimal digits, with dashes anywhere between them.
    fn from_str(text: &str) -> Result<Self, NotAGpu> {
        let parsed = || {
            let digits: Vec<u32> = text
                .strip_prefix("GPU-")?
                .chars()
                .filter(|c| *c != '-')
                .map(|c| c.to_digit(16))
                .collect::<Option<_>>()?;
            let pairs: Vec<u8> = digits
                .chunks_exact(2)
                .map(|pair| u8::try_from(pair[0] * 16 + pair[1]).ok())
                .collect::<Option<_>>()?;
            pairs.try_into().ok().filter(|_| digits.len() == 32)
        };
        parsed().map(Self).ok_or_else(|| NotAGpu(text.chars().take(80).collect()))
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GPU")?;
        for (at, byte) in self.0.iter().enumerate() {
            let dash = if matches!(at, 0 | 4 | 6 | 8 | 10) { "-" } else { "" };
            write!(f, "{dash}{byte:02x}")?;
        }
        Ok(())
    }
}

/// What was on one GPU comes back on another, or on the same. GPUs by their UUIDs, as NVML writes them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pair {
    /// Where it was.
    pub from: String,
    /// Where it comes back.
    pub to: String,
}

/// What moves a process from one GPU to another: the driver wants to be told of every GPU of the machine, so that the
/// two change places and the others stay (measured on two H200: with one pair alone it answers "invalid value").
/// `all`: UUIDs of all GPUs of the machine.
#[must_use]
pub fn swap<'a>(all: impl IntoIterator<Item = &'a str>, from: &str, to: &str) -> Vec<Pair> {
    let goes = |gpu: &str| match gpu {
        gpu if gpu == from => to.to_owned(),
        gpu if gpu == to => from.to_owned(),
        gpu => gpu.to_owned(),
    };
    all.into_iter().map(|gpu| Pair { from: gpu.to_owned(), to: goes(gpu) }).collect()
}

/// What a driver does with one process. The process is another one than the caller, whose rights must allow it: root, or
/// (with CUDA) the same user.
pub trait Checkpoint {
    /// Where the process is.
    ///
    /// # Errors
    /// When it does not use this driver, or may not be looked at.
    fn state(&self, pid: u32) -> Result<ProcessState, CheckpointError>;

    /// Lets it finish what it has begun on its GPUs, and holds its further calls back. Running to locked.
    ///
    /// # Errors
    /// When it is not done within `timeout`, or cannot be suspended: it runs on then.
    fn lock(&self, pid: u32, timeout: Duration) -> Result<(), CheckpointError>;

    /// Moves its GPU memory to the host's. Locked to checkpointed.
    ///
    /// # Errors
    /// When the host has no memory for it, say.
    fn checkpoint(&self, pid: u32) -> Result<(), CheckpointError>;

    /// Brings it back. Checkpointed to locked. `pairs`: where to, of all GPUs of the machine (see [`swap`]); none: where
    /// it was.
    ///
    /// # Errors
    /// When the GPU has no memory for it, say.
    fn restore(&self, pid: u32, pairs: &[Pair]) -> Result<(), CheckpointError>;

    /// Lets it go on. Locked to running.
    ///
    /// # Errors
    /// When it is not locked, say.
    fn unlock(&self, pid: u32) -> Result<(), CheckpointError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "GPU-eae2da8a-0011-2233-4455-66778899aabb";
    const B: &str = "GPU-00000000-0000-0000-0000-000000000001";
    const C: &str = "GPU-00000000-0000-0000-0000-000000000002";

    #[test]
    fn uuids_are_read_and_written() {
        let uuid: Uuid = A.parse().unwrap();
        assert_eq!((uuid.0[0], uuid.0[15]), (0xea, 0xbb));
        assert_eq!(uuid.to_string(), A);
        for none in
            ["", "GPU-", "MIG-eae2da8a-0011-2233-4455-66778899aabb", &A[..39], "GPU-\u{e9}", &format!("{A}0")]
        {
            assert!(none.parse::<Uuid>().is_err(), "{none}");
        }
    }

    #[test]
    fn two_gpus_change_places_and_all_others_are_named() {
        let pairs = swap([A, B, C], A, C);
        let expected = [(A, C), (B, B), (C, A)].map(|(from, to)| Pair { from: from.into(), to: to.into() });
        assert_eq!(pairs, expected);
    }
}

//! What tasks and host say to each other: one JSON object a line, over a Unix socket.
//!
//! A connection is a task (its first message is `hello`) or a control client (`drop`, `restore`,
//! `mps`). The first message carries the version `v`. Which process is speaking the kernel says, not the
//! message. Unknown keys are ignored, unknown types are an error, and after an error the host closes.

use super::physics::TaskDemand;
use carma_gpu::ProcessState;
use serde::{Deserialize, Serialize};

/// Version of the protocol.
pub const VERSION: u32 = 1;

/// Longest line that either side reads, bytes. A `hello` that names 4096 GPUs fits.
pub const MOST_LINE: usize = 512 * 1024;

/// From a client to the host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ClientMessage {
    /// A task comes, or comes back after the host was away. Answered by `welcome` or `error`.
    Hello {
        /// Protocol version.
        v: u32,
        /// GPUs as `CUDA_VISIBLE_DEVICES` names them: UUIDs or indices.
        gpus: Vec<String>,
        /// What it uses of each of them when alone.
        demand: TaskDemand,
        /// Whether it is an MPS client.
        #[serde(default)]
        mps: bool,
        /// Limit on its share of the SMs, percent.
        #[serde(default)]
        thread_percent: Option<u8>,
        /// Limit on its memory per GPU, MiB; shorter than `gpus`: no limit on the rest.
        #[serde(default)]
        caps_mib: Vec<Option<u64>>,
        /// Memory that it holds already per GPU, MiB.
        #[serde(default)]
        held_mib: Vec<u64>,
        /// Whether it computes already.
        #[serde(default)]
        active: bool,
        /// Where it is on its way off its GPUs and back; `None`: it runs.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        hold: Option<ProcessState>,
    },
    /// Asks for memory. Answered by `allocated`, `out_of_memory` or `error`.
    Alloc {
        /// Repeated in the answer.
        id: u64,
        /// Ordinal in the task's list of GPUs.
        gpu: usize,
        /// How much more, MiB.
        mib: u64,
    },
    /// The task begins (or stops) to compute. From then on `rate` messages come.
    Active {
        /// Whether it computes.
        active: bool,
    },
    /// The task has a fatal fault, e.g. an illegal address.
    Fault,
    /// The task has taken in a `hold`.
    Holds {
        /// Where it is now.
        state: ProcessState,
    },
    /// Control: one of the driver's checkpoint calls. Answered by `state`, `done` or `error`.
    Checkpoint {
        /// Protocol version.
        v: u32,
        /// Which.
        call: CheckpointCall,
        /// The process that it is about.
        pid: u32,
        /// With `restore`: where to, as pairs of UUIDs; none: where it was.
        #[serde(default)]
        pairs: Vec<(String, String)>,
    },
    /// Control: a GPU falls off the bus. Answered by `done` or `error`.
    Drop {
        /// Protocol version.
        v: u32,
        /// UUID or index.
        gpu: String,
    },
    /// Control: a GPU that was dropped comes back, empty.
    Restore {
        /// Protocol version.
        v: u32,
        /// UUID or index.
        gpu: String,
    },
    /// Control: whether virtual MPS can be had from now on.
    Mps {
        /// Protocol version.
        v: u32,
        /// `false`: preparing MPS fails.
        available: bool,
    },
}

/// A checkpoint call of the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names are the calls'")]
pub enum CheckpointCall {
    State,
    Lock,
    Checkpoint,
    Restore,
    Unlock,
}

/// From the host to a client.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum HostMessage {
    /// The task is known.
    Welcome {
        /// Protocol version.
        v: u32,
        /// Virtual seconds per real second.
        speed: f64,
        /// Its GPUs, in the order of its list.
        gpus: Vec<GpuNote>,
    },
    /// Memory was given.
    Allocated {
        /// Of the request.
        id: u64,
        /// What the task now holds on that GPU, MiB.
        held_mib: u64,
    },
    /// Memory was refused.
    OutOfMemory {
        /// Of the request.
        id: u64,
        /// Memory that the task can see at most: its cap if that refused it, otherwise the GPU's, MiB.
        total_mib: u64,
        /// Of that, free, MiB.
        free_mib: u64,
        /// What the task holds on that GPU, MiB.
        held_mib: u64,
        /// Whether its own cap refused it.
        capped: bool,
        /// Some of the other processes on that GPU.
        others: Vec<ProcessNote>,
    },
    /// The task's progress changed.
    Rate {
        /// Speed over its speed alone, in (0, 1].
        progress: f64,
    },
    /// An MPS neighbour's fatal fault took the task's context.
    Fault,
    /// The task's MPS client was terminated.
    Terminated,
    /// A GPU of the task is gone.
    Lost {
        /// Its UUID.
        gpu: String,
    },
    /// The task is to stop computing, or may go on. Answered by `holds`.
    Hold {
        /// Where it is from now on.
        state: ProcessState,
        /// Its GPUs from now on.
        gpus: Vec<String>,
    },
    /// Where a process is on its way off its GPUs and back.
    State {
        /// There.
        state: ProcessState,
    },
    /// A control request was carried out.
    Done,
    /// The last message was wrong, or is not allowed; the host closes.
    Error {
        /// What and why.
        message: String,
    },
}

/// A GPU in a `welcome`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuNote {
    /// UUID, as the driver says it.
    pub uuid: String,
    /// Name, e.g. `Virtual H200`.
    pub name: String,
    /// Memory, MiB.
    pub memory_mib: u64,
}

/// A process in an `out_of_memory`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessNote {
    /// Process id.
    pub pid: u32,
    /// What it holds on the GPU, MiB.
    pub mib: u64,
}

/// A message as a line.
pub(crate) fn line<M: Serialize>(message: &M) -> Vec<u8> {
    // These types have string keys and finite numbers only, which always serialise.
    let mut bytes = serde_json::to_vec(message).unwrap_or_default();
    bytes.push(b'\n');
    bytes
}

/// Takes whole lines out of what was read so far.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    buffer: Vec<u8>,
    /// How much of the buffer has been searched for a line end.
    searched: usize,
}

impl Lines {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole line without its end; `Err` when a line is longer than [`MOST_LINE`].
    pub(crate) fn next(&mut self) -> Result<Option<Vec<u8>>, ()> {
        match self.buffer[self.searched..].iter().position(|&byte| byte == b'\n') {
            Some(at) => {
                let end = self.searched + at;
                self.searched = 0;
                let mut line: Vec<u8> = self.buffer.drain(..=end).collect();
                line.pop();
                if line.len() > MOST_LINE { Err(()) } else { Ok(Some(line)) }
            }
            None if self.buffer.len() > MOST_LINE => Err(()),
            None => {
                self.searched = self.buffer.len();
                Ok(None)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn messages_look_like_this() {
        let hello = ClientMessage::Hello {
            v: 1,
            gpus: vec!["GPU-virtual-h200-0".into()],
            demand: TaskDemand { gract: 0.5, sm: 0.25, occupancy: 0.1, dram: 0.1 },
            mps: true,
            thread_percent: None,
            caps_mib: vec![Some(3072)],
            held_mib: vec![0],
            active: false,
            hold: None,
        };
        let text = r#"{"type":"hello","v":1,"gpus":["GPU-virtual-h200-0"],"demand":{"gract":0.5,"sm":0.25,"occupancy":0.1,"dram":0.1},"mps":true,"thread_percent":null,"caps_mib":[3072],"held_mib":[0],"active":false}"#;
        assert_eq!(line(&hello), format!("{text}\n").into_bytes());
        assert_eq!(serde_json::from_str::<ClientMessage>(text).unwrap(), hello);
        assert_eq!(line(&HostMessage::Rate { progress: 0.5 }), b"{\"type\":\"rate\",\"progress\":0.5}\n");
        assert_eq!(line(&ClientMessage::Fault), b"{\"type\":\"fault\"}\n");
    }

    #[test]
    fn a_line_without_end_is_refused() {
        let mut lines = Lines::default();
        lines.push(&vec![b'x'; MOST_LINE]);
        assert_eq!(lines.next(), Ok(None));
        lines.push(b"xx");
        assert_eq!(lines.next(), Err(()));
    }

    proptest! {
        #[test]
        fn lines_come_out_whole_however_they_arrive(
            lines in prop::collection::vec("[a-z]{0,20}", 0..10), cuts in prop::collection::vec(1..7_usize, 1..50),
        ) {
            let bytes: Vec<u8> = lines.iter().flat_map(|line| format!("{line}\n").into_bytes()).collect();
            let mut reader = Lines::default();
            let mut seen = Vec::new();
            let mut rest = &bytes[..];
            for cut in cuts.into_iter().chain(std::iter::once(usize::MAX)) {
                let (now, later) = rest.split_at(cut.min(rest.len()));
                reader.push(now);
                rest = later;
                while let Some(line) = reader.next().unwrap() { seen.push(String::from_utf8(line).unwrap()); }
            }
            prop_assert_eq!(seen, lines);
        }
    }
}

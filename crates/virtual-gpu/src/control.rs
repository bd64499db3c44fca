//! Fault injection from outside: what `carma virtual-gpu` sends to a running host.

use super::protocol::{ClientMessage, HostMessage, Lines, VERSION, line};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Why a control request failed.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// No host there, or it went away.
    #[error("no host of virtual GPUs answers at {}: {why}", .socket.display())]
    Unreachable {
        /// Path of the socket.
        socket: PathBuf,
        /// What failed.
        why: String,
    },
    /// The host refused: unknown GPU, or another user's host.
    #[error("the host of the virtual GPUs refused: {0}")]
    Refused(String),
}

/// A host that does not answer within this is taken for dead.
const DEADLINE: Duration = Duration::from_secs(5);

/// A GPU (UUID or index) falls off the bus: it reads as lost and its tasks fail.
///
/// # Errors
/// When no host answers at the socket, it has no such GPU, or it belongs to another user.
pub fn drop_gpu(socket: &Path, gpu: &str) -> Result<(), ControlError> {
    ask(socket, &ClientMessage::Drop { v: VERSION, gpu: gpu.to_owned() })
}

/// A GPU that fell off comes back, empty.
///
/// # Errors
/// As [`drop_gpu`].
pub fn restore_gpu(socket: &Path, gpu: &str) -> Result<(), ControlError> {
    ask(socket, &ClientMessage::Restore { v: VERSION, gpu: gpu.to_owned() })
}

/// Whether virtual MPS can be had from now on, for jobs that start.
///
/// # Errors
/// When no host answers at the socket, or it belongs to another user.
pub fn set_mps(socket: &Path, available: bool) -> Result<(), ControlError> {
    ask(socket, &ClientMessage::Mps { v: VERSION, available })
}

fn ask(socket: &Path, message: &ClientMessage) -> Result<(), ControlError> {
    let unreachable = |why: String| ControlError::Unreachable { socket: socket.to_owned(), why };
    let answer = exchange(socket, message).map_err(|e| unreachable(e.to_string()))?;
    match answer {
        Some(HostMessage::Done) => Ok(()),
        Some(HostMessage::Error { message }) => Err(ControlError::Refused(message)),
        Some(other) => Err(ControlError::Refused(format!("unexpected answer {other:?}"))),
        None => Err(unreachable("it closed the connection without an answer".to_owned())),
    }
}

pub(super) fn exchange(socket: &Path, message: &ClientMessage) -> std::io::Result<Option<HostMessage>> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(DEADLINE))?;
    stream.set_write_timeout(Some(DEADLINE))?;
    stream.write_all(&line(message))?;
    let mut lines = Lines::default();
    let mut buffer = [0; 4096];
    loop {
        let too_long = |()| std::io::Error::other("its answer is too long");
        if let Some(answer) = lines.next().map_err(too_long)? {
            return serde_json::from_slice(&answer).map(Some).map_err(std::io::Error::other);
        }
        match stream.read(&mut buffer)? {
            0 => return Ok(None),
            n => lines.push(&buffer[..n]),
        }
    }
}

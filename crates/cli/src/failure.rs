//! How a command fails: one line on standard error, perhaps a hint, and an exit code with a meaning.

use crate::clean;
use carma_api::ClientError;
use std::io::{self, ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

/// Anything that has no code of its own.
pub const GENERAL: u8 = 1;
/// The command line or a file on it makes no sense.
pub const USAGE: u8 = 2;
/// No daemon answers (`EX_UNAVAILABLE`).
pub const NO_DAEMON: u8 = 69;
/// Not now, perhaps later (`EX_TEMPFAIL`).
pub const NO_CAPACITY: u8 = 75;
/// Not for this user (`EX_NOPERM`).
pub const NOT_ALLOWED: u8 = 77;

/// Why a command failed.
#[derive(Debug)]
pub struct Failure {
    /// Exit code.
    pub code: u8,
    /// What, where, why; `None`: there is nobody to tell.
    pub message: Option<String>,
    /// What to do.
    pub hint: Option<String>,
}

/// What a command returns: its exit code.
pub type Outcome = Result<u8, Failure>;

impl Failure {
    /// Fails with code 1.
    pub fn new(message: impl Into<String>) -> Self {
        Self { code: GENERAL, message: Some(message.into()), hint: None }
    }

    /// Fails because of what the user wrote.
    pub fn usage(message: impl Into<String>) -> Self {
        Self { code: USAGE, ..Self::new(message) }
    }

    /// Adds what to do about it.
    pub fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    /// Whether standard output was closed by its reader.
    pub fn is_closed_pipe(&self) -> bool {
        self.message.is_none()
    }

    /// Says it on standard error.
    pub fn tell(&self) {
        let mut stderr = io::stderr().lock();
        // When even that fails, the exit code must do.
        if let Some(message) = &self.message {
            let _ = writeln!(stderr, "carma: {}", clean(message));
        }
        if let Some(hint) = &self.hint {
            let _ = writeln!(stderr, "hint: {}", clean(hint));
        }
    }

    /// Says it and gives the exit code.
    pub fn report(&self) -> ExitCode {
        self.tell();
        ExitCode::from(self.code)
    }
}

/// Failures to print. Other I/O is turned into a message where it happens, since only there it is
/// known what it was about.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        if error.kind() == ErrorKind::BrokenPipe {
            // The reader (`| head`) has what it wanted.
            return Self { code: 0, message: None, hint: None };
        }
        Self::new(format!("cannot write the output: {error}"))
    }
}

/// Bytes of the path of a socket at most (unix(7)).
const LONGEST_SOCKET: usize = 107;

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::NoDaemon { socket, why } => {
                // The client's error has no kind; asking again tells a locked door from no house.
                let denied =
                    UnixStream::connect(&socket).is_err_and(|e| e.kind() == ErrorKind::PermissionDenied);
                if denied {
                    let text = format!("you may not use the carma daemon at {}", socket.display());
                    return Self { code: NOT_ALLOWED, ..Self::new(text) }
                        .hint("ask the administrator for access to the socket, or start a daemon of your own with `carma serve`");
                }
                let length = socket.as_os_str().len();
                if length > LONGEST_SOCKET {
                    return Self::usage(format!(
                        "{} is no socket: paths of sockets have at most {LONGEST_SOCKET} bytes, and this has {length}",
                        socket.display()
                    ))
                    .hint("name another with --socket or CARMA_SOCKET");
                }
                Self {
                    code: NO_DAEMON,
                    ..Self::new(format!("no carma daemon answers at {}: {why}", socket.display()))
                }
                .hint("start one with `carma serve`, or name its socket with --socket or CARMA_SOCKET")
            }
            ClientError::Silent { socket, waited } => Self {
                code: NO_DAEMON,
                ..Self::new(format!(
                    "the carma daemon at {} has not answered for {} s",
                    socket.display(),
                    waited.as_secs()
                ))
            }
            .hint("`carma doctor` looks at what is wrong with it; jobs that run go on"),
            ClientError::Refused { status, code, message } => {
                let exit = match (status, code.as_str()) {
                    (403, _) | (_, "not_allowed") => NOT_ALLOWED,
                    (429 | 503, _) | (_, "no_capacity") => NO_CAPACITY,
                    (_, "bad_request") => USAGE,
                    _ => GENERAL,
                };
                Self { code: exit, ..Self::new(message) }
            }
            ClientError::Broken { socket, why } => Self::new(format!(
                "the daemon at {} broke off or sent something unexpected: {why}",
                socket.display()
            ))
            .hint("`carma doctor` looks at what answers there"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(status: u16, code: &str) -> u8 {
        Failure::from(ClientError::Refused { status, code: code.into(), message: "m".into() }).code
    }

    #[test]
    fn refusals_have_codes_with_a_meaning() {
        assert_eq!(refused(403, "not_allowed"), 77);
        assert_eq!(refused(503, "no_capacity"), 75);
        assert_eq!(refused(429, "limit"), 75);
        assert_eq!(refused(409, "no_capacity"), 75);
        assert_eq!(refused(400, "bad_request"), 2);
        assert_eq!(refused(404, "not_found"), 1);
        assert_eq!(refused(500, "internal"), 1);
    }

    #[test]
    fn a_daemon_that_is_silent_counts_as_none() {
        let waited = std::time::Duration::from_secs(10);
        let failure = Failure::from(ClientError::Silent { socket: "/s".into(), waited });
        assert_eq!(failure.code, 69);
        assert!(failure.hint.unwrap().contains("carma doctor"));
    }

    #[test]
    fn a_closed_pipe_is_no_error() {
        let failure = Failure::from(io::Error::from(ErrorKind::BrokenPipe));
        assert!(failure.is_closed_pipe());
        assert_eq!(failure.code, 0);
        assert_eq!(Failure::from(io::Error::from(ErrorKind::StorageFull)).code, 1);
    }
}

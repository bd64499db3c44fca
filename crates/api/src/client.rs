//! The client over the Unix socket: one connection, requests one after another, each with a deadline. A daemon that is
//! stopped or stuck must not stop whoever asks it.

use crate::wire::ErrorReply;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::SendRequest;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::runtime::Runtime;

/// Largest answer that the client reads: a listing of a million jobs is below it.
const MAX_ANSWER: usize = 1 << 30;

/// How long an answer may take where nothing else is said.
const PATIENCE: Duration = Duration::from_secs(10);
/// The same for a submission: it waits for the daemon's disk.
const SUBMISSION: Duration = Duration::from_secs(30);
/// The same for a long listing, of more than a thousand jobs.
const LISTING: Duration = Duration::from_secs(30);
/// Longest that the daemon waits for a job where the client does not say.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// Pause between tries to connect to a daemon that has too many at the door.
const KNOCK: Duration = Duration::from_millis(20);

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody answers.
    #[error(
        "no carma daemon answers at {socket}: {why}; start one with `carma serve`, or name its socket with --socket or CARMA_SOCKET"
    )]
    NoDaemon {
        /// Socket that was tried.
        socket: PathBuf,
        /// Why it failed.
        why: String,
    },
    /// Somebody is there and does not answer.
    #[error(
        "the carma daemon at {socket} has not answered for {} s; `carma doctor` looks at what is wrong with it",
        waited.as_secs()
    )]
    Silent {
        /// Socket.
        socket: PathBuf,
        /// How long it was waited for.
        waited: Duration,
    },
    /// The daemon refused.
    #[error("{message}")]
    Refused {
        /// HTTP status.
        status: u16,
        /// Stable word.
        code: String,
        /// What it said.
        message: String,
    },
    /// The connection broke or what came over it is not understood.
    #[error("the daemon at {socket} broke off or sent something unexpected: {why}")]
    Broken {
        /// Socket.
        socket: PathBuf,
        /// What happened.
        why: String,
    },
}

/// A connection to the daemon.
pub struct Client {
    runtime: Runtime,
    socket: PathBuf,
    sender: SendRequest<Full<Bytes>>,
}

impl Client {
    /// Connects.
    ///
    /// # Errors
    /// [`ClientError::NoDaemon`] when nobody answers.
    pub fn connect(socket: &Path) -> Result<Self, ClientError> {
        let failed = |why: String| ClientError::NoDaemon { socket: socket.to_owned(), why };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|e| failed(e.to_string()))?;
        let sender = runtime.block_on(open(socket))?;
        Ok(Self { runtime, socket: socket.to_owned(), sender })
    }

    /// Asks for something.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn get<T: DeserializeOwned>(&mut self, path: &str) -> Result<T, ClientError> {
        self.request(Method::GET, path, Bytes::new())
    }

    /// Orders something.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn post<T: DeserializeOwned>(&mut self, path: &str, body: &impl Serialize) -> Result<T, ClientError> {
        let body = serde_json::to_vec(body).map_err(|e| self.broken(e.to_string()))?;
        self.request(Method::POST, path, body.into())
    }

    fn broken(&self, why: String) -> ClientError {
        ClientError::Broken { socket: self.socket.clone(), why }
    }

    fn request<T: DeserializeOwned>(
        &mut self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<T, ClientError> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "carma")
            .header("content-type", "application/json")
            .body(Full::new(body))
            .map_err(|e| self.broken(e.to_string()))?;
        let patience = patience(request.method(), path);
        // Closed while it was idle, or left behind by a request that took too long.
        if self.sender.is_closed() || !self.sender.is_ready() {
            self.sender = self.runtime.block_on(open(&self.socket))?;
        }
        let sender = &mut self.sender;
        let asked = async {
            sender.ready().await.map_err(|e| e.to_string())?;
            let response = sender.send_request(request).await.map_err(|e| e.to_string())?;
            let status = response.status();
            let body = Limited::new(response.into_body(), MAX_ANSWER);
            let bytes = body.collect().await.map_err(|e| e.to_string())?.to_bytes();
            Ok::<_, String>((status, bytes))
        };
        let answer = self.runtime.block_on(async { tokio::time::timeout(patience, asked).await });
        let Ok(answer) = answer else {
            return Err(ClientError::Silent { socket: self.socket.clone(), waited: patience });
        };
        let (status, bytes) = answer.map_err(|why| self.broken(why))?;
        if status == StatusCode::OK {
            return serde_json::from_slice(&bytes).map_err(|e| self.broken(e.to_string()));
        }
        let (code, message) = match serde_json::from_slice::<ErrorReply>(&bytes) {
            Ok(reply) => (reply.code, reply.error),
            Err(_) => ("internal".into(), String::from_utf8_lossy(&bytes).into_owned()),
        };
        Err(ClientError::Refused { status: status.as_u16(), code, message })
    }
}

/// How long an answer to this may take.
fn patience(method: &Method, path: &str) -> Duration {
    let (place, query) = path.split_once('?').unwrap_or((path, ""));
    let asked = |key: &str| {
        let value = query.split('&').find_map(|pair| pair.strip_prefix(key)?.strip_prefix('='));
        value.and_then(|value| value.parse::<u64>().ok())
    };
    match place {
        "/v1/jobs" if method == Method::POST => SUBMISSION,
        "/v1/jobs" if query.contains("all=true") => LISTING,
        "/v1/history" if asked("limit").is_some_and(|limit| limit > 1000) => LISTING,
        _ if place.ends_with("/wait") => {
            let wait = asked("timeout_ms").map_or(LONGEST_WAIT, Duration::from_millis).min(LONGEST_WAIT);
            wait + PATIENCE
        }
        _ => PATIENCE,
    }
}

/// Connects. While a daemon has more at the door than it can take in, the system says at once that it would block.
async fn open(socket: &Path) -> Result<SendRequest<Full<Bytes>>, ClientError> {
    let failed = |why: String| ClientError::NoDaemon { socket: socket.to_owned(), why };
    let started = tokio::time::Instant::now();
    let stream = loop {
        match UnixStream::connect(socket).await {
            Ok(stream) => break stream,
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                if started.elapsed() >= PATIENCE {
                    return Err(ClientError::Silent { socket: socket.to_owned(), waited: PATIENCE });
                }
                tokio::time::sleep(KNOCK).await;
            }
            Err(e) => return Err(failed(e.to_string())),
        }
    };
    let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|e| failed(e.to_string()))?;
    tokio::spawn(async move {
        // The request that is in flight reports the same failure.
        let _ = connection.await;
    });
    Ok(sender)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn every_request_has_a_deadline() {
        for (method, path, seconds) in [
            (Method::GET, "/v1/status", 10),
            (Method::GET, "/v1/jobs/7", 10),
            (Method::POST, "/v1/jobs/7/cancel", 10),
            (Method::POST, "/v1/jobs", 30),
            (Method::GET, "/v1/jobs", 10),
            (Method::GET, "/v1/jobs?all=true", 30),
            (Method::GET, "/v1/history?limit=50", 10),
            (Method::GET, "/v1/history?limit=50000", 30),
            (Method::GET, "/v1/jobs/7/wait?timeout_ms=25000", 35),
            (Method::GET, "/v1/jobs/7/wait", 70),
            (Method::GET, "/v1/jobs/7/wait?timeout_ms=99999999999999", 70),
        ] {
            assert_eq!(patience(&method, path), Duration::from_secs(seconds), "{path}");
        }
    }

    /// A daemon that is stopped: the kernel takes the connection in its name, and nothing comes back.
    #[test]
    fn a_daemon_that_does_not_answer_is_given_up_and_tried_anew() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        let _listener = UnixListener::bind(&socket).unwrap();
        let mut client = Client::connect(&socket).unwrap();
        for _ in 0..2 {
            let error = client.get::<serde_json::Value>("/v1/jobs/1/wait?timeout_ms=0").unwrap_err();
            assert!(matches!(error, ClientError::Silent { .. }), "{error}");
            let text = error.to_string();
            assert!(text.contains("has not answered for 10 s") && text.contains("carma doctor"), "{text}");
        }
    }
}

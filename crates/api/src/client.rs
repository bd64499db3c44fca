//! The client over the Unix socket: one connection, requests one after another, each with a deadline. A daemon that is
//! stopped or stuck must not stop its clients.

use crate::wire::{ErrorReply, LOG_AT, LOG_END};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::SendRequest;
use hyper::{HeaderMap, Method, Request, StatusCode};
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
/// The same for a submission, and for an order about several jobs: they wait for the daemon's disk, and for their turn.
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
    /// A daemon is there and does not answer.
    #[error(
        "the carma daemon at {socket} has not answered for {} s; `carma doctor` looks at what is wrong with it",
        waited.as_secs()
    )]
    Silent {
        /// Path of the socket.
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
        /// Path of the socket.
        socket: PathBuf,
        /// What happened.
        why: String,
    },
}

impl ClientError {
    /// Whether the daemon answered, and said no. After any other error the next request fails as well.
    #[must_use]
    pub const fn is_refusal(&self) -> bool {
        matches!(self, Self::Refused { .. })
    }
}

/// A piece of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogPiece {
    /// Offset of its first byte: beyond what was asked for where something was cut out of the log.
    pub at: u64,
    /// How long the log was then.
    pub end: u64,
    /// The bytes; none at the end.
    pub bytes: Bytes,
}

/// A connection to the daemon.
pub struct Client {
    runtime: Runtime,
    socket: PathBuf,
    /// `None`: the connection is of no more use.
    sender: Option<SendRequest<Full<Bytes>>>,
}

impl Client {
    /// Opens a connection.
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
        Ok(Self { runtime, socket: socket.to_owned(), sender: Some(sender) })
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

    /// Asks for a piece of a job's log, which carma keeps: at most `length` bytes from offset `from` on.
    ///
    /// # Errors
    /// See [`ClientError`]; refused with `no_log` while there is none.
    pub fn log(&mut self, job: u64, from: u64, length: u64) -> Result<LogPiece, ClientError> {
        let path = format!("/v1/jobs/{job}/log?from={from}&length={length}");
        let (headers, bytes) = self.ask(Method::GET, &path, Bytes::new())?;
        let number = |name: &str| headers.get(name)?.to_str().ok()?.parse().ok();
        match (number(LOG_AT), number(LOG_END)) {
            (Some(at), Some(end)) => Ok(LogPiece { at, end, bytes }),
            _ => Err(self.broken("a piece of a log without its place".into())),
        }
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
        let (_, bytes) = self.ask(method, path, body)?;
        serde_json::from_slice(&bytes).map_err(|e| self.broken(e.to_string()))
    }

    fn ask(&mut self, method: Method, path: &str, body: Bytes) -> Result<(HeaderMap, Bytes), ClientError> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "carma")
            .header("content-type", "application/json")
            .body(Full::new(body))
            .map_err(|e| self.broken(e.to_string()))?;
        let patience = patience(request.method(), path);
        let (socket, sender) = (&self.socket, &mut self.sender);
        let asked = exchange(socket, sender, request);
        let answer = self.runtime.block_on(async { tokio::time::timeout(patience, asked).await });
        let Ok(answer) = answer else {
            // What comes later would be taken for the next answer.
            self.sender = None;
            return Err(ClientError::Silent { socket: self.socket.clone(), waited: patience });
        };
        let (status, headers, bytes) = answer.inspect_err(|_| self.sender = None)?;
        if status == StatusCode::OK {
            return Ok((headers, bytes));
        }
        let (code, message) = match serde_json::from_slice::<ErrorReply>(&bytes) {
            Ok(reply) => (reply.code, reply.error),
            Err(_) => ("internal".into(), String::from_utf8_lossy(&bytes).into_owned()),
        };
        Err(ClientError::Refused { status: status.as_u16(), code, message })
    }
}

/// Sends a request and reads the answer. The daemon closes connections that are idle for long: what was not sent before
/// that goes over a new one, and so does a question that the daemon may have missed. An order is never sent twice.
async fn exchange(
    socket: &Path,
    kept: &mut Option<SendRequest<Full<Bytes>>>,
    request: Request<Full<Bytes>>,
) -> Result<(StatusCode, HeaderMap, Bytes), ClientError> {
    let broken = |why: String| ClientError::Broken { socket: socket.to_owned(), why };
    let mut fresh = kept.is_none();
    loop {
        let sender = match kept {
            Some(sender) => sender,
            None => kept.insert(open(socket).await?),
        };
        let failure = match sender.ready().await {
            Err(e) => e,
            Ok(()) => match sender.try_send_request(request.clone()).await {
                Ok(response) => {
                    let (status, headers) = (response.status(), response.headers().clone());
                    let body = Limited::new(response.into_body(), MAX_ANSWER);
                    let body = body.collect().await.map_err(|e| broken(e.to_string()))?;
                    return Ok((status, headers, body.to_bytes()));
                }
                Err(mut e) => {
                    let sent = e.take_message().is_none();
                    let e = e.into_error();
                    if sent && request.method() != Method::GET {
                        return Err(broken(e.to_string()));
                    }
                    e
                }
            },
        };
        if fresh {
            return Err(broken(failure.to_string()));
        }
        (*kept, fresh) = (None, true);
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
        _ if place.starts_with("/v1/orders/") => SUBMISSION,
        "/v1/jobs" if query.contains("all=true") => LISTING,
        "/v1/record" => LISTING,
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
            (Method::POST, "/v1/orders/cancel", 30),
            (Method::POST, "/v1/jobs", 30),
            (Method::POST, "/v1/jobs?count=7", 30),
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

    fn read_head(stream: &mut std::os::unix::net::UnixStream) {
        use std::io::Read;
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
    }

    /// Two answers over each connection, then it is closed: before the next request is written, or after that.
    #[test]
    fn a_connection_is_kept_and_one_that_was_closed_is_replaced() {
        use std::io::Write;
        for missed in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let socket = dir.path().join("s");
            let listener = UnixListener::bind(&socket).unwrap();
            let daemon = std::thread::spawn(move || {
                for connection in 0..2 {
                    let (mut stream, _) = listener.accept().unwrap();
                    for _ in 0..2 {
                        read_head(&mut stream);
                        write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n{connection}").unwrap();
                    }
                    if missed && connection == 0 {
                        read_head(&mut stream);
                    }
                }
            });
            let mut client = Client::connect(&socket).unwrap();
            let answers: Vec<u8> = (0..4).map(|_| client.get("/v1/status").unwrap()).collect();
            assert_eq!(answers, [0, 0, 1, 1]);
            daemon.join().unwrap();
        }
    }

    /// The daemon takes in an order and goes away: what became of it is not known, so it is not given once more.
    #[test]
    fn an_order_is_not_sent_twice() {
        use std::io::Write;
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        let listener = UnixListener::bind(&socket).unwrap();
        let daemon = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            read_head(&mut stream);
            write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n0").unwrap();
            read_head(&mut stream);
            listener
        });
        let mut client = Client::connect(&socket).unwrap();
        assert_eq!(client.get::<u8>("/v1/status").unwrap(), 0);
        let error = client.post::<u8>("/v1/jobs", &"a job").unwrap_err();
        assert!(matches!(error, ClientError::Broken { .. }), "{error}");
        let listener = daemon.join().unwrap();
        listener.set_nonblocking(true).unwrap();
        assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
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

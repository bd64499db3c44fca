//! The client over the Unix socket: one connection, requests one after another.

use crate::wire::{ErrorReply, LOG_AT, LOG_END};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::SendRequest;
use hyper::{HeaderMap, Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::runtime::Runtime;

/// Largest answer that the client reads: a listing of a million jobs is below it.
const MAX_ANSWER: usize = 1 << 30;

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
        let sender = runtime.block_on(open(socket)).map_err(failed)?;
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

    /// Asks for a piece of a job's log, which carma keeps: at most `length` bytes from offset `from` on.
    ///
    /// # Errors
    /// See [`ClientError`]; refused with `no_log` while there is none.
    pub fn log(&mut self, job: u64, from: u64, length: u64) -> Result<LogPiece, ClientError> {
        let path = format!("/v1/jobs/{job}/log?from={from}&length={length}");
        let (headers, bytes) = self.exchange(Method::GET, &path, Bytes::new())?;
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
        let (_, bytes) = self.exchange(method, path, body)?;
        serde_json::from_slice(&bytes).map_err(|e| self.broken(e.to_string()))
    }

    fn exchange(&mut self, method: Method, path: &str, body: Bytes) -> Result<(HeaderMap, Bytes), ClientError> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "carma")
            .header("content-type", "application/json")
            .body(Full::new(body))
            .map_err(|e| self.broken(e.to_string()))?;
        let sender = &mut self.sender;
        let answer = self.runtime.block_on(async {
            // The daemon may have closed an idle connection; say so rather than hang.
            tokio::time::timeout(Duration::from_secs(10), sender.ready())
                .await
                .map_err(|_| "no answer for 10 s".to_owned())?
                .map_err(|e| e.to_string())?;
            let response = sender.send_request(request).await.map_err(|e| e.to_string())?;
            let (status, headers) = (response.status(), response.headers().clone());
            let body = Limited::new(response.into_body(), MAX_ANSWER);
            let bytes = body.collect().await.map_err(|e| e.to_string())?.to_bytes();
            Ok::<_, String>((status, headers, bytes))
        });
        let (status, headers, bytes) = answer.map_err(|why| self.broken(why))?;
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

async fn open(socket: &Path) -> Result<SendRequest<Full<Bytes>>, String> {
    let stream = UnixStream::connect(socket).await.map_err(|e| e.to_string())?;
    let (sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|e| e.to_string())?;
    tokio::spawn(async move {
        // The request that is in flight reports the same failure.
        let _ = connection.await;
    });
    Ok(sender)
}

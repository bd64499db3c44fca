//! The client over the Unix socket: one connection, requests one after another.

use crate::wire::ErrorReply;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::SendRequest;
use hyper::{Method, Request, StatusCode};
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
        let sender = &mut self.sender;
        let answer = self.runtime.block_on(async {
            // The daemon may have closed an idle connection; say so rather than hang.
            tokio::time::timeout(Duration::from_secs(10), sender.ready())
                .await
                .map_err(|_| "no answer for 10 s".to_owned())?
                .map_err(|e| e.to_string())?;
            let response = sender.send_request(request).await.map_err(|e| e.to_string())?;
            let status = response.status();
            let body = Limited::new(response.into_body(), MAX_ANSWER);
            let bytes = body.collect().await.map_err(|e| e.to_string())?.to_bytes();
            Ok::<_, String>((status, bytes))
        });
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

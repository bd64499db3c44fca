//! HTTP over the Unix socket: one file per verb, named as the command is.

mod explain;
mod gpus;
mod history;
mod log;
mod memory;
mod order;
mod queue;
mod show;
mod slowdowns;
mod status;
mod submit;
mod wait;

use crate::clock::Clock;
use crate::engine::{Message, Peer, Refused};
use crate::journal::{Journal, JournalError, Reader};
use crate::run::process::user_name;
use crate::sampler::Board;
use crate::slowdown::Rates;
use axum::extract::connect_info::Connected;
use axum::extract::{ConnectInfo, DefaultBodyLimit, FromRequestParts};
use axum::http::{StatusCode, request::Parts};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::serve::IncomingStream;
use axum::{Json, Router};
use carma_api::wire::{ErrorReply, LaunchStats};
use carma_api::{MAX_BODY, VERSION};
use carma_core::model::User;
use carma_core::state::State as CoreState;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use tokio::net::UnixListener;
use tokio::sync::oneshot;

/// What every handler needs.
pub struct App {
    /// The engine's inbox.
    pub engine: mpsc::Sender<Message>,
    /// The latest looks at the GPUs.
    pub board: Arc<Board>,
    /// How fast running jobs go.
    pub rates: Rates,
    /// The clock.
    pub clock: Clock,
    /// The journal's file.
    pub journal: PathBuf,
    /// Where carma's state lives.
    pub state_dir: PathBuf,
    /// Where jobs find the sockets that they need.
    pub runtime_dir: PathBuf,
    /// What the GPUs are.
    pub gpus: String,
    /// How much faster than life the clock runs.
    pub speed: u32,
    /// The user that the daemon runs as.
    pub uid: u32,
}

type Shared = axum::extract::State<Arc<App>>;
type Answered<T> = Result<Json<T>, Failure>;

/// A refusal on its way to the client.
pub struct Failure(Refused);

impl From<Refused> for Failure {
    fn from(refused: Refused) -> Self {
        Self(refused)
    }
}

impl From<JournalError> for Failure {
    fn from(e: JournalError) -> Self {
        Self(Refused::new(500, "internal", e.to_string()))
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let Refused { status, code, text } = self.0;
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let reply = ErrorReply { version: VERSION, code: code.to_owned(), error: text };
        (status, Json(reply)).into_response()
    }
}

/// The connection's other end, as the kernel says.
#[derive(Debug, Clone, Copy)]
pub struct Credentials {
    uid: Option<(u32, u32)>,
}

impl Connected<IncomingStream<'_, UnixListener>> for Credentials {
    fn connect_info(stream: IncomingStream<'_, UnixListener>) -> Self {
        Self { uid: stream.io().peer_cred().ok().map(|c| (c.uid(), c.gid())) }
    }
}

impl FromRequestParts<Arc<App>> for Peer {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &Arc<App>) -> Result<Self, Failure> {
        let unknown = || Failure(Refused::new(403, "not_allowed", "the kernel does not say who you are"));
        let ConnectInfo(credentials) =
            ConnectInfo::<Credentials>::from_request_parts(parts, state).await.map_err(|_| unknown())?;
        let (uid, gid) = credentials.uid.ok_or_else(unknown)?;
        // The login group, as after a login: the client may run under another one.
        let gid = uzers::get_user_by_uid(uid).map_or(gid, |u| u.primary_group_id());
        Ok(Self { user: User { uid, name: user_name(uid).into() }, gid })
    }
}

impl App {
    async fn ask<T>(&self, message: impl FnOnce(oneshot::Sender<T>) -> Message) -> Result<T, Failure> {
        let stopping = || Failure(Refused::new(503, "internal", "the daemon is stopping; jobs go on"));
        let (answer, answered) = oneshot::channel();
        self.engine.send(message(answer)).map_err(|_| stopping())?;
        answered.await.map_err(|_| stopping())
    }

    async fn view(&self) -> Result<(Arc<CoreState>, LaunchStats), Failure> {
        self.ask(Message::View).await
    }

    fn reader(&self) -> Result<Reader, Failure> {
        Ok(Journal::reader(&self.journal)?)
    }

    /// Whether a peer may read what a user's job is and says.
    fn may_read(&self, peer: &Peer, owner: u32) -> bool {
        peer.user.uid == owner || peer.user.uid == 0 || peer.user.uid == self.uid
    }
}

/// The routes.
pub fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/v1/status", get(status::status))
        .route("/v1/jobs", get(queue::queue).post(submit::submit))
        .route("/v1/jobs/{id}", get(show::show))
        .route("/v1/jobs/{id}/explain", get(explain::explain))
        .route("/v1/jobs/{id}/log", get(log::log))
        .route("/v1/jobs/{id}/wait", get(wait::wait))
        .route("/v1/jobs/{id}/{verb}", post(order::job))
        .route("/v1/gpus", get(gpus::gpus))
        .route("/v1/gpus/{index}/{verb}", post(order::gpu))
        .route("/v1/slowdowns", get(slowdowns::slowdowns))
        .route("/v1/history", get(history::history))
        .route("/v1/memory", get(memory::memory))
        .route("/v1/memory/contexts", post(memory::context))
        .fallback(async || {
            Failure(Refused::new(
                404,
                "not_found",
                "there is no such address; is the client newer than the daemon?",
            ))
        })
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .with_state(app)
}

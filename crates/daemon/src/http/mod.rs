//! HTTP over the Unix socket: one file per verb, named as the command is.

mod connections;
mod explain;
mod gpus;
mod history;
mod log;
mod memory;
mod order;
mod queue;
mod readers;
mod record;
mod show;
mod slowdowns;
mod status;
mod submit;
mod usage;
mod wait;

pub(crate) use connections::serve;
pub use readers::Readers;

use crate::clock::Clock;
use crate::journal::JournalError;
use crate::limits::Descriptors;
use crate::messages::{Message, Peer, Standing};
use crate::people::{People, Person};
use crate::recorder::Recorder;
use crate::refused::Refused;
use crate::run::pace::Paces;
use crate::sampler::Board;
use crate::slowdown::Rates;
use crate::view::Asker;
use axum::extract::{ConnectInfo, DefaultBodyLimit, FromRequestParts, Path, Query};
use axum::http::{StatusCode, request::Parts};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use carma_api::VERSION;
use carma_api::wire::{CgroupsView, ErrorReply};
use carma_core::model::{JobId, User};
use carma_core::state::State as CoreState;
use connections::Turns;
use readers::{Listed, Listing};
use serde::de::DeserializeOwned;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use tokio::sync::oneshot;

/// What every handler needs.
pub struct App {
    /// The engine's inbox.
    pub engine: mpsc::Sender<Message>,
    /// The latest looks at the GPUs.
    pub board: Arc<Board>,
    /// What is recorded of them; `None`: nothing is.
    pub recorder: Option<Arc<Recorder>>,
    /// How fast running jobs go.
    pub rates: Rates,
    /// What running jobs count.
    pub paces: Arc<Paces>,
    /// The clock.
    pub clock: Clock,
    /// Readers of the journal.
    pub readers: Arc<Readers>,
    /// Who users are.
    pub people: Arc<People>,
    /// How descriptors are divided.
    pub descriptors: Descriptors,
    /// Where carma's state lives.
    pub state_dir: PathBuf,
    /// Directory of the logs that carma keeps.
    pub log_dir: PathBuf,
    /// Name of the journal.
    pub journal_id: String,
    /// Whether jobs have cgroups of their own.
    pub cgroups: CgroupsView,
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
/// An answer that may be long.
type Long<T> = Result<(Option<Extension<Listed>>, Json<T>), Failure>;

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

impl Refused {
    /// As clients read it.
    fn reply(self) -> ErrorReply {
        ErrorReply { version: VERSION, code: self.code.to_owned(), error: self.text }
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        (status, Json(self.0.reply())).into_response()
    }
}

impl From<Refused> for Response {
    fn from(refused: Refused) -> Self {
        Failure(refused).into_response()
    }
}

/// The connection's other end, as the kernel says.
#[derive(Debug, Clone, Copy)]
pub struct Credentials {
    uid: u32,
    gid: u32,
    pid: Option<i32>,
}

impl FromRequestParts<Arc<App>> for Peer {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &Arc<App>) -> Result<Self, Failure> {
        let unknown = || Failure(Refused::new(403, "not_allowed", "the kernel does not say who you are"));
        let ConnectInfo(Credentials { uid, gid, pid }) =
            ConnectInfo::<Credentials>::from_request_parts(parts, state).await.map_err(|_| unknown())?;
        let Some(Person { name, gid: login, operator, limits }) = state.people.who(uid).await else {
            let text = "the user database of this machine does not say who you are: try again in a moment";
            return Err(Refused::new(503, "busy", text).into());
        };
        Ok(Self { user: User { uid, name, operator }, gid: login.unwrap_or(gid), pid, limits })
    }
}

/// Words of the address's path; a mistake is answered in words.
struct Words<T>(T);

impl<T: DeserializeOwned + Send> FromRequestParts<Arc<App>> for Words<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Failure> {
        match Path::from_request_parts(parts, app).await {
            Ok(Path(words)) => Ok(Self(words)),
            Err(e) => Err(Refused::new(400, "bad_request", e.body_text()).into()),
        }
    }
}

/// What the address asks for beside its path; a mistake is answered in words.
struct Asked<T>(T);

impl<T: DeserializeOwned> FromRequestParts<Arc<App>> for Asked<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<App>) -> Result<Self, Failure> {
        match Query::try_from_uri(&parts.uri) {
            Ok(Query(asked)) => Ok(Self(asked)),
            Err(e) => Err(Refused::new(400, "bad_request", e.body_text()).into()),
        }
    }
}

/// The turns of the user who asks.
struct MyTurns(Arc<Turns>);

impl FromRequestParts<Arc<App>> for MyTurns {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<App>) -> Result<Self, Failure> {
        let missing = || Failure(Refused::new(500, "internal", "the connection is not known"));
        parts.extensions.get::<Arc<Turns>>().cloned().map(Self).ok_or_else(missing)
    }
}

/// The number of a job as an address names it.
fn job_id(word: &str) -> Result<JobId, Failure> {
    let id: u64 = word.parse().map_err(|_| {
        Failure(Refused::new(400, "bad_request", format!("'{}' is no number of a job", short(word))))
    })?;
    // Numbers are given one after the other: the journal never gets to those that it cannot write.
    if i64::try_from(id).is_err() {
        return Err(no_such_job(JobId(id), JobId(0)));
    }
    Ok(JobId(id))
}

/// `next`: the number that the next job gets.
fn no_such_job(id: JobId, next: JobId) -> Failure {
    Refused::no_such_job(id, next).into()
}

/// A word of a client's in a message to that client: as much as helps.
fn short(word: &str) -> String {
    word.chars().take(40).collect()
}

impl App {
    async fn ask<T>(&self, message: impl FnOnce(oneshot::Sender<T>) -> Message) -> Result<T, Failure> {
        let stopping = || Failure(Refused::new(503, "internal", "the daemon is stopping; jobs go on"));
        let (answer, answered) = oneshot::channel();
        self.engine.send(message(answer)).map_err(|_| stopping())?;
        answered.await.map_err(|_| stopping())
    }

    async fn view(&self) -> Result<(Arc<CoreState>, Standing), Failure> {
        self.ask(Message::View).await
    }

    /// What a peer may see.
    fn asker<'a>(&self, peer: &'a Peer) -> Asker<'a> {
        let all = peer.user.operator || peer.user.uid == 0 || peer.user.uid == self.uid;
        Asker::new(&peer.user, all)
    }
}

/// The routes.
fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/v1/status", get(status::status))
        .route("/v1/jobs", get(queue::queue).post(submit::submit))
        .route("/v1/jobs/{id}", get(show::show))
        .route("/v1/jobs/{id}/explain", get(explain::explain))
        .route("/v1/jobs/{id}/log", get(log::log))
        .route("/v1/jobs/{id}/wait", get(wait::wait))
        .route("/v1/jobs/{id}/{verb}", post(order::job))
        .route("/v1/jobs/{id}/move/{index}", post(order::move_to))
        .route("/v1/orders/{verb}", post(order::jobs))
        .route("/v1/gpus", get(gpus::gpus))
        .route("/v1/gpus/{index}/{verb}", post(order::gpu))
        .route("/v1/slowdowns", get(slowdowns::slowdowns))
        .route("/v1/record", get(record::record))
        .route("/v1/history", get(history::history))
        .route("/v1/usage", get(usage::usage))
        .route("/v1/memory", get(memory::memory))
        .route("/v1/memory/contexts", post(memory::context))
        .method_not_allowed_fallback(async || {
            Failure(Refused::new(
                405,
                "method_not_allowed",
                "this address has no such method; docs/reference/http-api.md has those that there are",
            ))
        })
        .fallback(async || {
            Failure(Refused::new(
                404,
                "not_found",
                "there is no such address; is the client newer than the daemon?",
            ))
        })
        // The connection has read the body already, as much as may be.
        .layer(DefaultBodyLimit::disable())
        .with_state(app)
}

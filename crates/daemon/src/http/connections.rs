//! Connections: how many a user may hold, for how long, and what happens to the rest.
//!
//! One user's connections, idle, slow or full of garbage, must not cost another user an answer, nor a job its
//! descriptors. So there is a budget ([`Descriptors`]); within it each user has a number of places, and a newcomer
//! beyond them takes the place of the same user's oldest idle connection, or is told why not. Root and the user that
//! the daemon runs as have places that no other user gets.

use super::{App, Credentials, Failure, Listed, router};
use crate::audit;
use crate::limits::Descriptors;
use crate::refused::Refused;
use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::{Request, StatusCode};
use axum::response::{IntoResponse, Response};
use carma_api::MAX_BODY;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::{Body as _, Incoming};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tower_service::Service;

/// From the first byte that may come to the end of a request's head; also how long a connection may be idle.
const HEAD: Duration = Duration::from_secs(30);
/// From the head to the end of the body.
const BODY: Duration = Duration::from_secs(15);
/// How long a client may take to read an answer.
const ANSWER: Duration = Duration::from_secs(60);
/// After this long, a client that does not read its answer counts as idle.
const UNREAD: Duration = Duration::from_secs(5);
/// Requests of one user that are worked on at a time; more wait. Those that wait for a job do not count from when they
/// have come until it is over.
const AT_ONCE: usize = 16;
/// How long a request waits for its turn.
pub(super) const TURN: Duration = Duration::from_secs(5);
/// Refusals told at a time; beyond, a connection is closed without a word.
const REFUSING: usize = 32;
/// How long a refusal may take.
const REFUSAL: Duration = Duration::from_secs(1);
/// Pause after the system had no descriptor for a connection.
const NO_DESCRIPTOR: Duration = Duration::from_millis(50);
/// Users of which something is remembered without a connection.
const USERS: usize = 1024;
/// The largest head, with what is read ahead.
const BUFFER: usize = 64 << 10;

/// What all connections of a user share.
pub(super) struct Turns {
    /// Requests that are worked on.
    requests: Arc<Semaphore>,
    /// Long listings.
    pub(super) listings: Arc<Semaphore>,
}

/// A user's turn of having a request worked on. An answer that bears one is told in it.
pub(super) type Turn = Arc<OwnedSemaphorePermit>;

impl Turns {
    /// The turn of a request, when it has come.
    pub(super) async fn request(&self) -> Result<Turn, Failure> {
        match timeout(TURN, self.requests.clone().acquire_owned()).await {
            Ok(Ok(permit)) => Ok(Arc::new(permit)),
            Ok(Err(_)) | Err(_) => {
                let text = format!(
                    "carma works on {AT_ONCE} requests of yours already: try again when some are answered"
                );
                Err(Refused::new(503, "busy", text).into())
            }
        }
    }
}

tokio::task_local! {
    /// The turn of the request that a task works on.
    static MINE: Option<Turn>;
}

/// Works on a request that has this turn.
pub(super) async fn in_turn<T>(turn: Option<Turn>, work: impl Future<Output = T>) -> T {
    MINE.scope(turn, work).await
}

/// Does a part of the work on a request on a thread that may block. The request's turn is held until it is done, also when
/// its client has disconnected.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Failure> {
    let turn = MINE.try_with(Clone::clone).ok().flatten();
    let task = tokio::task::spawn_blocking(move || {
        let _turn = turn;
        work()
    });
    task.await.map_err(|e| Refused::new(500, "internal", e.to_string()).into())
}

/// What a connection is doing.
enum Stage {
    /// It waits for a request, or for the rest of a head.
    Idle { since: Instant },
    /// Its request is worked on.
    Busy,
    /// Its answer is on the way. The turns are held until the client has it: what it does not read takes memory.
    Answering { since: Instant, _turns: (Option<Turn>, Option<Listed>) },
}

struct Connection {
    id: u64,
    credentials: Credentials,
    turns: Arc<Turns>,
    stage: Mutex<Stage>,
    /// Told when it has lost its place.
    lost: Notify,
}

impl Connection {
    fn stage(&self) -> MutexGuard<'_, Stage> {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Since when it is idle, if it is.
    fn idle_since(&self) -> Option<Instant> {
        match *self.stage() {
            Stage::Idle { since } => Some(since),
            Stage::Answering { since, .. } if since.elapsed() >= UNREAD => Some(since),
            Stage::Busy | Stage::Answering { .. } => None,
        }
    }

    fn is_stuck(&self) -> bool {
        matches!(*self.stage(), Stage::Answering { since, .. } if since.elapsed() >= ANSWER)
    }

    /// Everything written so far is with the client's kernel.
    fn flushed(&self) {
        let mut stage = self.stage();
        if matches!(*stage, Stage::Answering { .. }) {
            *stage = Stage::Idle { since: Instant::now() };
        }
    }
}

/// The connections of one user.
struct User {
    turns: Arc<Turns>,
    open: BTreeMap<u64, Arc<Connection>>,
    refused: u64,
    closed: u64,
    told: Option<Instant>,
}

impl User {
    fn new() -> Self {
        let turns =
            Turns { requests: Arc::new(Semaphore::new(AT_ONCE)), listings: Arc::new(Semaphore::new(1)) };
        Self { turns: Arc::new(turns), open: BTreeMap::new(), refused: 0, closed: 0, told: None }
    }

    fn oldest_idle(&self) -> Option<(Instant, Arc<Connection>)> {
        let idle = self.open.values().filter_map(|c| Some((c.idle_since()?, c)));
        idle.min_by_key(|(since, _)| *since).map(|(since, connection)| (since, connection.clone()))
    }

    /// Whether nothing needs to be remembered.
    fn is_forgettable(&self) -> bool {
        self.open.is_empty() && self.told.is_none_or(|at| at.elapsed() >= audit::CONNECTIONS_EVERY)
    }
}

#[derive(Default)]
struct Inner {
    next: u64,
    users: HashMap<u32, User>,
    /// Places taken, and those of them that count against what all ordinary users have together.
    taken: usize,
    ordinary: usize,
    /// Connections that have lost their place and still have a descriptor.
    leaving: usize,
    refusing: usize,
}

/// All connections.
pub(super) struct Table {
    budget: Descriptors,
    /// The user that the daemon runs as.
    me: u32,
    inner: Mutex<Inner>,
}

/// A place in the table, given back when dropped.
struct Place {
    table: Arc<Table>,
    connection: Arc<Connection>,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut inner = self.table.inner();
        let inner = &mut *inner;
        let uid = self.connection.credentials.uid;
        let user = inner.users.get_mut(&uid);
        if user.is_some_and(|user| user.open.remove(&self.connection.id).is_some()) {
            self.table.uncount(inner, uid);
        } else {
            inner.leaving -= 1;
        }
        if inner.users.len() > USERS {
            inner.users.retain(|_, user| !user.is_forgettable());
        }
    }
}

/// A refusal that is being told.
struct Refusing(Arc<Table>);

impl Drop for Refusing {
    fn drop(&mut self) {
        self.0.inner().refusing -= 1;
    }
}

impl Table {
    pub(super) fn new(budget: Descriptors, me: u32) -> Arc<Self> {
        Arc::new(Self { budget, me, inner: Mutex::default() })
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    const fn is_admin(&self, uid: u32) -> bool {
        uid == 0 || uid == self.me
    }

    fn uncount(&self, inner: &mut Inner, uid: u32) {
        inner.taken -= 1;
        inner.ordinary -= usize::from(!self.is_admin(uid));
    }

    /// Takes the place of a connection away.
    fn evict(&self, inner: &mut Inner, connection: &Connection) {
        let uid = connection.credentials.uid;
        if let Some(user) = inner.users.get_mut(&uid)
            && user.open.remove(&connection.id).is_some()
        {
            user.closed += 1;
            self.uncount(inner, uid);
            inner.leaving += 1;
            connection.lost.notify_one();
        }
    }

    /// A place for a new connection, made free where that may be.
    fn admit(self: &Arc<Self>, credentials: Credentials) -> Result<Place, Refused> {
        let uid = credentials.uid;
        let admin = self.is_admin(uid);
        let most = if admin { self.budget.per_admin } else { self.budget.per_user };
        let mut inner = self.inner();
        let inner = &mut *inner;
        let user = inner.users.entry(uid).or_insert_with(User::new);
        let held = user.open.len();
        if held >= most {
            let Some((_, oldest)) = user.oldest_idle() else {
                user.refused += 1;
                return Err(Refused::new(
                    503,
                    "too_many_connections",
                    format!(
                        "you hold {held} connections to carma and all of them are in use; one user may hold {most}: try again when some are done"
                    ),
                ));
            };
            self.evict(inner, &oldest);
        }
        let full = |inner: &Inner| {
            inner.taken >= self.budget.connections
                || !admin && inner.ordinary >= self.budget.connections - self.budget.kept
        };
        if full(inner) {
            // From the user who has most of them; never from root for another's sake.
            let greedy = inner.users.iter().filter(|(uid, _)| admin || !self.is_admin(**uid));
            let greedy = greedy.filter_map(|(_, user)| Some((user.open.len(), user.oldest_idle()?.1)));
            if let Some((_, oldest)) = greedy.max_by_key(|(held, _)| *held) {
                self.evict(inner, &oldest);
            }
        }
        if full(inner) {
            if let Some(user) = inner.users.get_mut(&uid) {
                user.refused += 1;
            }
            return Err(Refused::new(
                503,
                "too_many_connections",
                format!(
                    "carma answers {} connections at a time and all of them are in use: try again in a moment",
                    self.budget.connections
                ),
            ));
        }
        let id = inner.next;
        inner.next += 1;
        let user = inner.users.entry(uid).or_insert_with(User::new);
        let connection = Arc::new(Connection {
            id,
            credentials,
            turns: user.turns.clone(),
            stage: Mutex::new(Stage::Idle { since: Instant::now() }),
            lost: Notify::new(),
        });
        user.open.insert(id, connection.clone());
        inner.taken += 1;
        inner.ordinary += usize::from(!admin);
        Ok(Place { table: self.clone(), connection })
    }

    /// Says in the audit what became of a user's connections, now and then.
    fn tell(&self, credentials: Credentials) {
        let mut inner = self.inner();
        let Some(user) = inner.users.get_mut(&credentials.uid) else { return };
        let due = user.told.is_none_or(|at| at.elapsed() >= audit::CONNECTIONS_EVERY);
        if user.refused + user.closed > 0 && due {
            let (refused, closed) = (std::mem::take(&mut user.refused), std::mem::take(&mut user.closed));
            user.told = Some(Instant::now());
            audit::connections(credentials.uid, credentials.pid, refused, closed, user.open.len());
        }
    }

    fn may_refuse(self: &Arc<Self>) -> Option<Refusing> {
        let mut inner = self.inner();
        (inner.refusing < REFUSING).then(|| {
            inner.refusing += 1;
            Refusing(self.clone())
        })
    }

    /// Gives up the oldest idle connection of all, for its descriptor.
    fn make_room(&self) {
        let mut inner = self.inner();
        let oldest = inner.users.values().filter_map(User::oldest_idle).min_by_key(|(since, _)| *since);
        if let Some((_, oldest)) = oldest {
            self.evict(&mut inner, &oldest);
        }
    }
}

/// Accepts and answers, for as long as the daemon lives.
pub(crate) async fn serve(listener: UnixListener, app: Arc<App>) {
    let table = Table::new(app.descriptors, app.uid);
    let router = router(app);
    let mut warned: Option<Instant> = None;
    loop {
        // Those that lost their place have a descriptor until their task has run.
        while table.inner().leaving > REFUSING {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        match listener.accept().await {
            Ok((stream, _)) => take(&table, &router, stream),
            Err(e) => {
                let none_left = matches!(
                    e.raw_os_error(),
                    Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM)
                );
                if warned.is_none_or(|at| at.elapsed() >= audit::CONNECTIONS_EVERY) {
                    warned = Some(Instant::now());
                    tracing::warn!("a connection cannot be taken: {e}; an idle one is closed, trying again");
                }
                if none_left {
                    table.make_room();
                }
                tokio::time::sleep(NO_DESCRIPTOR).await;
            }
        }
    }
}

/// Takes a connection in, or refuses it.
fn take(table: &Arc<Table>, router: &Router, stream: UnixStream) {
    // Without a word on who it is, nothing may be done for it.
    let Ok(peer) = stream.peer_cred() else { return };
    let credentials = Credentials { uid: peer.uid(), gid: peer.gid(), pid: peer.pid() };
    match table.admit(credentials) {
        Ok(place) => drop(tokio::spawn(answer_all(place, router.clone(), stream))),
        Err(refused) => {
            if let Some(refusing) = table.may_refuse() {
                tokio::spawn(async move {
                    let _ = timeout(REFUSAL, refuse(stream, refused)).await;
                    drop(refusing);
                });
            }
        }
    }
    table.tell(credentials);
}

/// Tells a client why it gets no connection. Its request is read first: closing before would lose the answer.
async fn refuse(mut stream: UnixStream, refused: Refused) -> io::Result<()> {
    let mut head = Vec::new();
    while head.len() < BUFFER && !head.windows(4).any(|end| end == b"\r\n\r\n") {
        if stream.read_buf(&mut head).await? == 0 {
            break;
        }
    }
    let status = StatusCode::from_u16(refused.status).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
    let body = serde_json::to_vec(&refused.reply()).unwrap_or_default();
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(&body).await?;
    stream.shutdown().await
}

/// Answers what comes over a connection until it ends, is idle for too long or loses its place.
async fn answer_all(place: Place, router: Router, stream: UnixStream) {
    let connection = place.connection.clone();
    let of_request = connection.clone();
    let service = service_fn(move |request| answer(of_request.clone(), router.clone(), request));
    let io = Noticed { io: TokioIo::new(stream), connection: connection.clone() };
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_buf_size(BUFFER)
        .serve_connection(io, service);
    tokio::pin!(served);
    let mut look = tokio::time::interval(UNREAD);
    loop {
        tokio::select! {
            // How it ended is the client's business.
            _ = &mut served => break,
            () = connection.lost.notified() => break,
            _ = look.tick() => if connection.is_stuck() { break },
        }
    }
}

/// Answers one request.
async fn answer(
    connection: Arc<Connection>,
    router: Router,
    request: Request<Incoming>,
) -> Result<Response, Infallible> {
    *connection.stage() = Stage::Busy;
    let waits = request.uri().path().ends_with("/wait");
    let mut turn = match connection.turns.request().await {
        Ok(turn) => Some(turn),
        Err(failure) => return Ok(answering(&connection, None, failure)),
    };
    let mut response = match whole(request).await {
        Err(failure) => return Ok(answering(&connection, turn, failure)),
        Ok(mut request) => {
            if waits {
                // What waits for a job holds no turn, nor a body: while that came it took memory, and held a turn.
                turn = None;
                *request.body_mut() = Body::empty();
            }
            request.extensions_mut().insert(ConnectInfo(connection.credentials));
            request.extensions_mut().insert(connection.turns.clone());
            let mut router = router;
            let answer = in_turn(turn.clone(), router.call(request)).await;
            answer.unwrap_or_else(|never| match never {})
        }
    };
    let turn = turn.or_else(|| response.extensions_mut().remove::<Turn>());
    let turns = (turn, response.extensions_mut().remove::<Listed>());
    *connection.stage() = Stage::Answering { since: Instant::now(), _turns: turns };
    Ok(response)
}

fn answering(connection: &Connection, turn: Option<Turn>, failure: Failure) -> Response {
    *connection.stage() = Stage::Answering { since: Instant::now(), _turns: (turn, None) };
    failure.into_response()
}

/// The request with all of its body, if that comes in time and is not too large.
async fn whole(request: Request<Incoming>) -> Result<Request<Body>, Failure> {
    let too_large = || {
        let text = format!("the request is larger than {} KiB", MAX_BODY / 1024);
        Failure::from(Refused::new(413, "bad_request", text))
    };
    let (head, body) = request.into_parts();
    if body.size_hint().lower() > MAX_BODY as u64 {
        return Err(too_large());
    }
    let bytes = match timeout(BODY, Limited::new(body, MAX_BODY).collect()).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(e)) if e.is::<LengthLimitError>() => return Err(too_large()),
        Ok(Err(e)) => {
            let text = format!("the request broke off: {e}");
            return Err(Refused::new(400, "bad_request", text).into());
        }
        Err(_) => {
            let text = format!("the request did not come within {} s", BODY.as_secs());
            return Err(Refused::new(408, "bad_request", text).into());
        }
    };
    Ok(Request::from_parts(head, Body::from(bytes)))
}

/// A stream that tells its connection when everything is written.
struct Noticed {
    io: TokioIo<UnixStream>,
    connection: Arc<Connection>,
}

impl Read for Noticed {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl Write for Noticed {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.io).poll_flush(cx);
        if flushed.is_ready() {
            self.connection.flushed();
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, bufs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALICE: u32 = 1001;
    const BOB: u32 = 1002;

    fn table() -> Arc<Table> {
        // 64 places: 8 a user, 4 kept, 32 for root.
        Table::new(Descriptors::of(256), 0)
    }

    fn from(uid: u32) -> Credentials {
        Credentials { uid, gid: uid, pid: None }
    }

    /// Places taken, those of ordinary users, and connections that lost theirs.
    fn counts(table: &Table) -> (usize, usize, usize) {
        let inner = table.inner();
        (inner.taken, inner.ordinary, inner.leaving)
    }

    #[tokio::test]
    async fn a_user_over_the_number_loses_the_oldest_idle_connection_and_nobody_else_does() {
        let table = table();
        let alice = table.admit(from(ALICE)).ok().unwrap();
        let mut places: Vec<Place> = (0..8).map(|_| table.admit(from(BOB)).ok().unwrap()).collect();
        *places[0].connection.stage() = Stage::Busy;
        places.push(table.admit(from(BOB)).ok().unwrap());
        assert!(timeout(Duration::from_secs(5), places[1].connection.lost.notified()).await.is_ok());
        for (n, place) in places.iter().enumerate() {
            let open = table.inner().users[&BOB].open.contains_key(&place.connection.id);
            assert_eq!(open, n != 1, "connection {n}");
            *place.connection.stage() = Stage::Busy;
        }
        let refused = table.admit(from(BOB)).err().unwrap();
        assert_eq!((refused.status, refused.code), (503, "too_many_connections"));
        assert!(refused.text.contains("hold 8 connections"), "{}", refused.text);
        assert!(table.inner().users[&ALICE].open.contains_key(&alice.connection.id));
        assert_eq!(counts(&table), (9, 9, 1));
        drop((places, alice));
        assert_eq!(counts(&table), (0, 0, 0));
    }

    #[test]
    fn many_users_together_leave_places_for_root_and_one_with_few_gets_in() {
        let table = table();
        let mut places = Vec::new();
        for uid in 2000..2007 {
            places.extend((0..8).map(|_| table.admit(from(uid)).ok().unwrap()));
        }
        places.extend((0..4).map(|_| table.admit(from(2007)).ok().unwrap()));
        assert_eq!(counts(&table), (60, 60, 0));
        places.push(table.admit(from(ALICE)).ok().unwrap());
        assert_eq!(counts(&table), (60, 60, 1));
        assert!(table.inner().users.iter().filter(|(uid, _)| **uid != ALICE).any(|(_, u)| u.open.len() == 7));
        for place in &places {
            *place.connection.stage() = Stage::Busy;
        }
        assert!(table.admit(from(BOB)).is_err(), "all are in use");
        let root: Vec<_> = (0..4).map(|_| table.admit(from(0)).ok().unwrap()).collect();
        assert_eq!((root.len(), counts(&table)), (4, (64, 60, 1)));
    }

    #[tokio::test]
    async fn a_request_that_waits_for_a_job_holds_a_turn_until_its_body_is_there() {
        let place = table().admit(from(BOB)).ok().unwrap();
        let free = place.connection.turns.requests.clone();
        let waiting = Arc::new(Notify::new());
        let told = waiting.clone();
        let wait = async move |request: Request<Body>| {
            assert_eq!(request.into_body().size_hint().exact(), Some(0));
            told.notify_one();
            std::future::pending::<()>().await;
        };
        let router = Router::new().route("/v1/jobs/5/wait", axum::routing::get(wait));
        let (mut client, server) = UnixStream::pair().unwrap();
        let served = tokio::spawn(answer_all(place, router, server));
        client.write_all(b"GET /v1/jobs/5/wait HTTP/1.1\r\ncontent-length: 9\r\n\r\n12345678").await.unwrap();
        let patience = Duration::from_secs(5);
        let taken = async {
            while free.available_permits() == AT_ONCE {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(patience, taken).await.expect("a body that is on the way holds a turn");
        client.write_all(b"9").await.unwrap();
        timeout(patience, waiting.notified()).await.expect("it waits");
        assert_eq!(free.available_permits(), AT_ONCE);
        served.abort();
    }

    #[tokio::test]
    async fn a_client_that_leaves_gives_no_turn_back_while_its_work_goes_on() {
        let place = table().admit(from(BOB)).ok().unwrap();
        let free = place.connection.turns.requests.clone();
        let (go, may_go) = std::sync::mpsc::channel::<()>();
        let (begun, may_go) = (Arc::new(Notify::new()), Arc::new(Mutex::new(may_go)));
        let told = begun.clone();
        let work = async move || {
            let done = blocking(move || {
                told.notify_one();
                may_go.lock().unwrap().recv().unwrap();
            });
            done.await.ok().unwrap();
        };
        let router = Router::new().route("/v1/jobs", axum::routing::get(work));
        let (mut client, server) = UnixStream::pair().unwrap();
        let served = tokio::spawn(answer_all(place, router, server));
        client.write_all(b"GET /v1/jobs HTTP/1.1\r\n\r\n").await.unwrap();
        let patience = Duration::from_secs(5);
        timeout(patience, begun.notified()).await.expect("it is worked on");
        drop(client);
        timeout(patience, served).await.expect("the connection is closed").unwrap();
        assert_eq!(free.available_permits(), AT_ONCE - 1);
        go.send(()).unwrap();
        let given_back = async {
            while free.available_permits() < AT_ONCE {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(patience, given_back).await.expect("the turn is given back when the work is done");
    }

    #[test]
    fn an_answer_that_nobody_reads_keeps_its_turn_and_soon_counts_as_idle() {
        let table = table();
        let place = table.admit(from(BOB)).ok().unwrap();
        let turn = Arc::new(place.connection.turns.requests.clone().try_acquire_owned().unwrap());
        let long_ago = Instant::now().checked_sub(UNREAD).unwrap();
        *place.connection.stage() = Stage::Answering { since: long_ago, _turns: (Some(turn), None) };
        assert_eq!(place.connection.turns.requests.available_permits(), AT_ONCE - 1);
        assert!(place.connection.idle_since().is_some() && !place.connection.is_stuck());
        place.connection.flushed();
        assert_eq!(place.connection.turns.requests.available_permits(), AT_ONCE);
    }
}

//! `POST /v1/orders/{cancel|hold|release|suspend|resume}`, `POST /v1/jobs/{id}/{cancel|hold|release|requeue|suspend|resume|move}`, `POST /v1/jobs/{id}/move/{index}`, `POST /v1/gpus/{index}/{drain|resume}`

use super::connections::blocking;
use super::{Answered, App, Failure, Shared, Words, job_id, no_such_job, short};
use crate::audit::{self, Act};
use crate::journal::JournalError;
use crate::messages::{Bulk, Message, Order, Peer};
use crate::quota;
use crate::refused::Refused;
use crate::submission::Submission;
use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use carma_api::VERSION;
use carma_api::wire::{DoneReply, MOST_AT_ONCE, OrderOutcome, OrdersReply, OrdersRequest, RefusedView};
use carma_core::model::JobId;
use std::collections::BTreeSet;
use std::sync::Arc;

fn unknown(verb: &str) -> Failure {
    Refused::new(404, "not_found", format!("there is no order '{}'", short(verb))).into()
}

async fn give(app: &App, order: Order, peer: Peer) -> Answered<DoneReply> {
    let result = ask(app, order, &peer).await?;
    told(&peer, order, result)
}

async fn ask(app: &App, order: Order, peer: &Peer) -> Result<Result<DoneReply, Refused>, Failure> {
    let peer = peer.clone();
    app.ask(|answer| Message::Order(order, peer, answer)).await
}

fn told(peer: &Peer, order: Order, result: Result<DoneReply, Refused>) -> Answered<DoneReply> {
    audit::asked(peer, Act::Order(order), result.as_ref().map(|reply| reply.id));
    Ok(Json(result?))
}

/// Puts a job back into the queue. One that is over is submitted again, as a new one.
async fn requeue(app: &Arc<App>, id: JobId, peer: Peer) -> Answered<DoneReply> {
    let (mut state, _) = app.view().await?;
    if state.job(id).is_some() {
        let result = ask(app, Order::Requeue(id), &peer).await?;
        if result.is_err() {
            (state, _) = app.view().await?;
        }
        // Else it has ended since the first look.
        if result.is_ok() || state.job(id).is_some() {
            return told(&peer, Order::Requeue(id), result);
        }
    }
    let may = quota::may_wait(&peer.limits, state.usage(peer.user.uid));
    let next = state.next_id();
    drop(state);
    let result = match may {
        Ok(()) => resubmit(app, id, next, &peer).await,
        Err(refused) => Err(refused.into()),
    };
    let outcome = result.as_ref().map(|reply| reply.id).map_err(|failure| &failure.0);
    audit::asked(&peer, Act::Order(Order::Requeue(id)), outcome);
    Ok(Json(result?))
}

/// Submits a job that is over again; `next`: the number that the next job gets. It is read and checked here: a large one takes its time, and the engine has none for it.
async fn resubmit(app: &Arc<App>, id: JobId, next: JobId, peer: &Peer) -> Result<DoneReply, Failure> {
    let (user, limits) = (peer.user.clone(), peer.limits);
    let read = app.readers.read(move |reader| {
        let over = reader.finished(id)?.ok_or_else(|| no_such_job(id, next))?;
        // Its environment is that of whoever had this number then.
        if !user.is(&over.job.spec.user) {
            let text = format!("job {id} belongs to another user, who must submit it again");
            return Err(Refused::new(403, "not_allowed", text).into());
        }
        let stored = reader.whole_job(id).map_err(|e| match e {
            JournalError::NoEnvironment(_) => Refused::new(409, "conflict", e.to_string()).into(),
            e => Failure::from(e),
        })?;
        let mut stored = stored.ok_or_else(|| no_such_job(id, next))?;
        // It was released, or cancelled; who submits it again wants it to run, as with a job that is live.
        stored.request.hold = false;
        Ok(Submission::check(stored.request, user.uid, &limits)?)
    });
    let submission = Box::new(read.await?);
    let asks = peer.clone();
    let reply = app.ask(|answer| Message::Submit(submission, asks, answer)).await??;
    let text = format!("job {id} is submitted again as job {}", reply.id);
    Ok(DoneReply { version: VERSION, id: reply.id, text })
}

/// An order about a job.
pub(super) async fn job(
    State(app): Shared,
    peer: Peer,
    Words((id, verb)): Words<(String, String)>,
) -> Answered<DoneReply> {
    let id = job_id(&id)?;
    let order = match verb.as_str() {
        "requeue" => return requeue(&app, id, peer).await,
        "move" => Order::Move(id, None),
        verb => of_several(verb).ok_or_else(|| unknown(verb))?(id),
    };
    give(&app, order, peer).await
}

/// Orders that are given to several jobs at once, too. One of `requeue` may be a submission, and each `move` looks for a place.
fn of_several(verb: &str) -> Option<fn(JobId) -> Order> {
    Some(match verb {
        "cancel" => Order::Cancel,
        "hold" => Order::Hold,
        "release" => Order::Release,
        "suspend" => Order::Suspend,
        "resume" => Order::Unsuspend,
        _ => return None,
    })
}

/// An order about several jobs. The answer comes when it is on disk.
pub(super) async fn jobs(
    State(app): Shared,
    peer: Peer,
    Words(verb): Words<String>,
    body: Bytes,
) -> Answered<OrdersReply> {
    let order = of_several(&verb).ok_or_else(|| {
        let text = format!(
            "'{}' is no order that is given to several jobs at once: cancel, hold, release, suspend and resume are",
            short(&verb)
        );
        Refused::new(404, "not_found", text)
    })?;
    let jobs = blocking(move || several(&body)).await??;
    let asks = peer.clone();
    let outcomes = app.ask(|answer| Message::Bulk(Bulk::Order(order, jobs, asks, answer))).await??;
    if let Some((first, _)) = outcomes.first() {
        audit::asked_of_several(&peer, Act::Order(order(*first)), &outcomes);
    }
    let outcomes = outcomes.into_iter().map(|(job, done)| outcome(job, done));
    Ok(Json(OrdersReply { version: VERSION, outcomes: outcomes.collect() }))
}

/// Reads to which jobs an order is to be given.
fn several(body: &[u8]) -> Result<Vec<JobId>, Refused> {
    let bad = |text: String| Refused::new(400, "bad_request", text);
    let OrdersRequest { ids } =
        serde_json::from_slice(body).map_err(|e| bad(format!("the order is not understood: {e}")))?;
    if !(1..=MOST_AT_ONCE as usize).contains(&ids.len()) {
        return Err(bad(format!("an order is about 1 to {MOST_AT_ONCE} jobs, not {} (ids)", ids.len())));
    }
    let mut seen = BTreeSet::new();
    match ids.iter().find(|id| !seen.insert(**id)) {
        Some(id) => Err(bad(format!("job {id} is named twice (ids)"))),
        None => Ok(ids.into_iter().map(JobId).collect()),
    }
}

fn outcome(job: JobId, done: Result<DoneReply, Refused>) -> OrderOutcome {
    match done {
        Ok(DoneReply { text, .. }) => OrderOutcome { id: job.0, text, refused: None },
        Err(Refused { status, code, text }) => {
            OrderOutcome { id: job.0, text, refused: Some(RefusedView { status, code: code.to_owned() }) }
        }
    }
}

/// A job is to go on on this GPU.
pub(super) async fn move_to(
    State(app): Shared,
    peer: Peer,
    Words((id, index)): Words<(String, String)>,
) -> Answered<DoneReply> {
    let order = Order::Move(job_id(&id)?, Some(gpu_index(&index)?));
    give(&app, order, peer).await
}

fn gpu_index(index: &str) -> Result<u32, Failure> {
    index.parse().map_err(|_| {
        let text = format!("'{}' is no number of a GPU; see `carma gpus`", short(index));
        Refused::new(400, "bad_request", text).into()
    })
}

/// An order about a GPU.
pub(super) async fn gpu(
    State(app): Shared,
    peer: Peer,
    Words((index, verb)): Words<(String, String)>,
) -> Answered<DoneReply> {
    let index = gpu_index(&index)?;
    let order = match verb.as_str() {
        "drain" => Order::Drain(index),
        "resume" => Order::Resume(index),
        _ => return Err(unknown(&verb)),
    };
    give(&app, order, peer).await
}

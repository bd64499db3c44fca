//! `POST /v1/jobs/{id}/{cancel|hold|release|requeue|suspend|resume|move}`, `POST /v1/jobs/{id}/move/{index}`, `POST /v1/gpus/{index}/{drain|resume}`

use super::{Answered, App, Failure, Shared, Words, job_id, short};
use crate::audit::{self, Act};
use crate::messages::{Message, Order, Peer};
use crate::refused::Refused;
use axum::Json;
use axum::extract::State;
use carma_api::wire::DoneReply;

fn unknown(verb: &str) -> Failure {
    Refused::new(404, "not_found", format!("there is no order '{}'", short(verb))).into()
}

async fn give(app: &App, order: Order, peer: Peer) -> Answered<DoneReply> {
    let asks = peer.clone();
    let result = app.ask(|answer| Message::Order(order, asks, answer)).await?;
    audit::asked(&peer, Act::Order(order), result.as_ref().map(|reply| reply.id));
    Ok(Json(result?))
}

/// An order about a job.
pub(super) async fn job(
    State(app): Shared,
    peer: Peer,
    Words((id, verb)): Words<(String, String)>,
) -> Answered<DoneReply> {
    let id = job_id(&id)?;
    let order = match verb.as_str() {
        "cancel" => Order::Cancel(id),
        "hold" => Order::Hold(id),
        "release" => Order::Release(id),
        "requeue" => Order::Requeue(id),
        "suspend" => Order::Suspend(id),
        "resume" => Order::Unsuspend(id),
        "move" => Order::Move(id, None),
        _ => return Err(unknown(&verb)),
    };
    give(&app, order, peer).await
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

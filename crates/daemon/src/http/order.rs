//! `POST /v1/jobs/{id}/{cancel|hold|release|requeue}`, `POST /v1/gpus/{index}/{drain|resume}`

use super::{Answered, App, Failure, Shared};
use crate::engine::{Message, Order, Peer, Refused};
use axum::Json;
use axum::extract::{Path, State};
use carma_api::wire::DoneReply;
use carma_core::model::JobId;

fn unknown(verb: &str) -> Failure {
    Refused::new(404, "not_found", format!("there is no order '{verb}'")).into()
}

async fn give(app: &App, order: Order, peer: Peer) -> Answered<DoneReply> {
    Ok(Json(app.ask(|answer| Message::Order(order, peer, answer)).await??))
}

/// An order about a job.
pub(super) async fn job(
    State(app): Shared,
    peer: Peer,
    Path((id, verb)): Path<(u64, String)>,
) -> Answered<DoneReply> {
    let id = JobId(id);
    let order = match verb.as_str() {
        "cancel" => Order::Cancel(id),
        "hold" => Order::Hold(id),
        "release" => Order::Release(id),
        "requeue" => Order::Requeue(id),
        _ => return Err(unknown(&verb)),
    };
    give(&app, order, peer).await
}

/// An order about a GPU.
pub(super) async fn gpu(
    State(app): Shared,
    peer: Peer,
    Path((index, verb)): Path<(u32, String)>,
) -> Answered<DoneReply> {
    let order = match verb.as_str() {
        "drain" => Order::Drain(index),
        "resume" => Order::Resume(index),
        _ => return Err(unknown(&verb)),
    };
    give(&app, order, peer).await
}

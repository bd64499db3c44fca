//! `POST /v1/jobs`

use super::{Answered, Failure, Shared};
use crate::audit::{self, Act};
use crate::messages::{Message, Peer, Refused};
use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use carma_api::wire::{SubmitReply, SubmitRequest};

/// Takes a job. The answer comes when it is on disk.
pub(super) async fn submit(State(app): Shared, peer: Peer, body: Bytes) -> Answered<SubmitReply> {
    let request: SubmitRequest = serde_json::from_slice(&body).map_err(|e| {
        Failure::from(Refused::new(400, "bad_request", format!("the submission is not understood: {e}")))
    })?;
    let asks = peer.clone();
    let result = app.ask(|answer| Message::Submit(Box::new(request), asks, answer)).await?;
    audit::asked(&peer, Act::Submit, result.as_ref().map(|reply| reply.id));
    Ok(Json(result?))
}

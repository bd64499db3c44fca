//! `GET /v1/memory` and `POST /v1/memory/contexts`

use super::connections::blocking;
use super::{Answered, Failure, Long, MyTurns, Shared};
use crate::audit::{self, Act};
use crate::messages::{Message, Peer};
use crate::refused::Refused;
use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use carma_api::wire::{ContextProbe, DoneReply, MemoryReply};

/// Tells what was learned of memory: one's own runs; all users' to root.
pub(super) async fn memory(State(app): Shared, peer: Peer, MyTurns(turns): MyTurns) -> Long<MemoryReply> {
    let listing = app.readers.listing(&turns).await?;
    let learned = app.ask(|answer| Message::Learned(peer, answer)).await?;
    let turn = listing.clone();
    let reply = blocking(move || {
        let _turn = turn;
        learned.tell()
    });
    Ok((Some(listing.over()), Json(reply.await?)))
}

/// Takes a probe of a CUDA context, from root or the user whom carma runs as.
pub(super) async fn context(State(app): Shared, peer: Peer, body: Bytes) -> Answered<DoneReply> {
    let probe: ContextProbe = serde_json::from_slice(&body).map_err(|e| {
        Failure::from(Refused::new(400, "bad_request", format!("the probe is not understood: {e}")))
    })?;
    let (gpu, asks) = (probe.gpu, peer.clone());
    let result = app.ask(|answer| Message::Context(probe, asks, answer)).await?;
    audit::asked(&peer, Act::Context(gpu), result.as_ref().map(|reply| reply.id));
    Ok(Json(result?))
}

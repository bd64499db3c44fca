//! `GET /v1/jobs/{id}/explain`

use super::{Answered, Shared, Words, job_id, show};
use crate::explain;
use crate::messages::{Message, Peer};
use axum::Json;
use axum::extract::State;
use carma_api::wire::ExplainReply;

/// Says why a job waits, or why it went where it went.
pub(super) async fn explain(
    State(app): Shared,
    peer: Peer,
    Words(id): Words<String>,
) -> Answered<ExplainReply> {
    let id = job_id(&id)?;
    let (state, standing) = app.view().await?;
    let took = app.ask(|answer| Message::Took(id, answer)).await?.unwrap_or_default();
    let reply = show::of_job(&app, state, peer, id, move |reader, of| {
        Ok(explain::explain(of, reader.job(id)?.as_ref(), took))
    });
    Ok(Json(ExplainReply { unwritten: standing.unwritten, ..reply.await? }))
}

//! `GET /v1/jobs/{id}/explain`

use super::{Answered, Shared, Words, job_id, show};
use crate::explain;
use crate::messages::Peer;
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
    let (state, _) = app.view().await?;
    let asker = app.asker(&peer);
    let now = app.clock.now();
    let paces = app.paces.clone();
    let reply = app.readers.read(move |reader| {
        let over = show::find(reader, &state, id)?;
        let subject = show::subject(&state, over.as_ref(), id)?;
        let stored = reader.job(id)?;
        Ok(explain::explain(asker, &state, now, &subject, stored.as_ref(), &paces.done()))
    });
    Ok(Json(reply.await?))
}

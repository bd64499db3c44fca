//! `GET /v1/jobs/{id}/explain`

use super::{Answered, Shared, Words, job_id, show};
use crate::explain::{self, Beside};
use crate::messages::{Message, Peer};
use crate::view::{self, Live};
use axum::Json;
use axum::extract::State;
use carma_api::wire::ExplainReply;
use std::sync::PoisonError;

/// Says why a job waits, or why it went where it went.
pub(super) async fn explain(
    State(app): Shared,
    peer: Peer,
    Words(id): Words<String>,
) -> Answered<ExplainReply> {
    let id = job_id(&id)?;
    let (state, standing) = app.view().await?;
    let took = app.ask(|answer| Message::Took(id, answer)).await?.unwrap_or_default();
    let now = app.clock.now();
    let rate = app.rates.lock().unwrap_or_else(PoisonError::into_inner).get(&id).cloned();
    let (paces, looks, of) = (app.paces.clone(), app.board.looks(), app.clone());
    let reply = app.readers.read(move |reader| {
        let over = show::find(reader, &state, id)?;
        let subject = show::subject(&state, over.as_ref(), id)?;
        let stored = reader.job(id)?;
        let (counts, metered) = (paces.counts_of_all(&state, now), view::metered(&state, now, &looks));
        let live = Live { counts: &counts, metered: &metered };
        let beside = Beside { stored: stored.as_ref(), rate: rate.as_ref(), took, live };
        Ok(explain::explain(of.asker(&peer), &state, now, &subject, beside))
    });
    Ok(Json(ExplainReply { unwritten: standing.unwritten, ..reply.await? }))
}

//! `GET /v1/jobs/{id}/explain`

use super::{Answered, Shared, show};
use crate::view;
use axum::Json;
use axum::extract::{Path, State};
use carma_api::wire::ExplainReply;
use carma_core::model::JobId;

/// Says why a job waits, or why it went where it went.
pub(super) async fn explain(State(app): Shared, Path(id): Path<u64>) -> Answered<ExplainReply> {
    let (state, _) = app.view().await?;
    let over = show::find(&app, &state, JobId(id))?;
    let subject = show::subject(&state, over.as_ref(), JobId(id))?;
    let stored = app.reader()?.job(JobId(id))?;
    Ok(Json(view::explain(&state, app.clock.now(), &subject, stored.as_ref())))
}

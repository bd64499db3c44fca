//! `GET /v1/history`

use super::{Answered, Shared};
use crate::view;
use axum::Json;
use axum::extract::{Query, State};
use carma_api::VERSION;
use carma_api::wire::JobsReply;
use carma_core::units::Millis;
use serde::Deserialize;

#[derive(Deserialize)]
pub(super) struct Options {
    limit: Option<u64>,
}

/// Lists finished jobs, the latest first.
pub(super) async fn history(State(app): Shared, Query(options): Query<Options>) -> Answered<JobsReply> {
    let (state, _) = app.view().await?;
    let finished = app.reader()?.history(Millis::ZERO, options.limit.unwrap_or(1000))?;
    let jobs = finished.iter().map(|f| view::finished_view(&state, f)).collect();
    Ok(Json(JobsReply { version: VERSION, now_ms: app.clock.now().0, jobs }))
}

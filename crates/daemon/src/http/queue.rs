//! `GET /v1/jobs`

use super::{Answered, Failure, Shared};
use crate::engine::Refused;
use crate::view;
use axum::Json;
use axum::extract::{Query, State};
use carma_api::wire::JobsReply;
use carma_core::units::Millis;
use serde::Deserialize;

/// How long a finished job stays in the long listing.
const RECENT: Millis = Millis::secs(3600);

#[derive(Deserialize)]
pub(super) struct Options {
    /// Include jobs that ended within the last hour.
    #[serde(default)]
    all: bool,
}

/// Lists live jobs.
pub(super) async fn queue(State(app): Shared, Query(options): Query<Options>) -> Answered<JobsReply> {
    let (state, _) = app.view().await?;
    let task = tokio::task::spawn_blocking(move || {
        let now = app.clock.now();
        let mut reply = view::jobs(&state, now);
        if options.all {
            let since = Millis(now.since(RECENT).0);
            let recent = app.reader()?.history(since, 100_000)?;
            reply.jobs.extend(recent.iter().map(|f| view::finished_view(&state, f)));
        }
        Ok(Json(reply))
    });
    task.await.map_err(|e| Failure::from(Refused::new(500, "internal", e.to_string())))?
}

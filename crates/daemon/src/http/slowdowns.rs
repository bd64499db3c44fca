//! `GET /v1/slowdowns`

use super::{Answered, Failure, Shared};
use crate::engine::{Message, Refused};
use axum::Json;
use axum::extract::{Query, State};
use carma_api::wire::SlowdownsReply;
use carma_core::model::JobId;
use serde::Deserialize;

/// Jobs asked about at a time.
const MOST: usize = 64;

/// What is asked.
#[derive(Deserialize)]
pub(super) struct Asked {
    /// Numbers of jobs, with commas between.
    jobs: String,
}

/// Tells what is known of jobs alone, live ones and finished ones, and what was learned of slowdowns.
pub(super) async fn slowdowns(State(app): Shared, Query(asked): Query<Asked>) -> Answered<SlowdownsReply> {
    let bad = |text: String| Failure::from(Refused::new(400, "bad_request", text));
    let (state, _) = app.view().await?;
    let mut jobs = Vec::new();
    for word in asked.jobs.split(',').filter(|word| !word.is_empty()).take(MOST + 1) {
        let id = JobId(word.parse().map_err(|_| bad(format!("'{word}' is no number of a job")))?);
        let command = match state.job(id) {
            Some(job) => Some(job.spec.command_key),
            None => app.reader()?.finished(id)?.map(|over| over.job.spec.command_key),
        };
        let command = command
            .ok_or_else(|| Failure::from(Refused::new(404, "not_found", format!("there is no job {id}"))))?;
        jobs.push((id, command));
    }
    if jobs.is_empty() || jobs.len() > MOST {
        return Err(bad(format!("name 1 to {MOST} jobs, e.g. jobs=3,4")));
    }
    Ok(Json(app.ask(|answer| Message::Slowdowns(jobs, answer)).await?))
}

//! `GET /v1/slowdowns`

use super::connections::blocking;
use super::{Answered, Asked, Failure, Shared, job_id, no_such_job};
use crate::messages::{Message, Peer};
use crate::refused::Refused;
use crate::slowdown::Subject;
use axum::Json;
use axum::extract::State;
use carma_api::wire::SlowdownsReply;
use serde::Deserialize;

/// Jobs asked about at a time.
const MOST: usize = 64;

/// What is asked.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Options {
    /// Numbers of jobs, with commas between.
    jobs: String,
    /// Type of GPU.
    gpu: Option<String>,
}

/// Tells what is known of jobs alone, live ones and finished ones, and what was learned of slowdowns.
pub(super) async fn slowdowns(
    State(app): Shared,
    peer: Peer,
    Asked(asked): Asked<Options>,
) -> Answered<SlowdownsReply> {
    let asker = app.asker(&peer);
    let bad = |text: String| Failure::from(Refused::new(400, "bad_request", text));
    let (state, _) = app.view().await?;
    let mut jobs = Vec::new();
    for word in asked.jobs.split(',').filter(|word| !word.is_empty()).take(MOST + 1) {
        let id = job_id(word)?;
        let spec = match state.job(id) {
            Some(job) => Some((job.spec.command_key, job.spec.user.clone())),
            None => {
                let over = app.readers.read(move |reader| Ok(reader.finished(id)?));
                over.await?.map(|over| (over.job.spec.command_key, over.job.spec.user))
            }
        };
        let (command, owner) = spec.ok_or_else(|| no_such_job(id, state.next_id()))?;
        jobs.push(Subject { id, command, readable: asker.may_read(&owner) });
    }
    if jobs.is_empty() || jobs.len() > MOST {
        return Err(bad(format!("name 1 to {MOST} jobs, e.g. jobs=3,4")));
    }
    let told = app.ask(|answer| Message::Slowdowns(jobs, asked.gpu, answer)).await?;
    Ok(Json(blocking(move || told.reply()).await?))
}

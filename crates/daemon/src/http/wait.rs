//! `GET /v1/jobs/{id}/wait`

use super::connections::{Turn, in_turn};
use super::{Asked, Failure, MyTurns, Shared, Words, job_id, show};
use crate::messages::{Message, Peer};
use axum::extract::State;
use axum::{Extension, Json};
use carma_api::wire::JobDetail;
use serde::Deserialize;
use std::time::Duration;

/// Longest that one request waits; the client asks again.
const LONGEST: u64 = 60_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Options {
    timeout_ms: Option<u64>,
}

/// Waits for a job's end, or for the time that the client gives.
pub(super) async fn wait(
    State(app): Shared,
    peer: Peer,
    MyTurns(turns): MyTurns,
    Words(id): Words<String>,
    Asked(options): Asked<Options>,
) -> Result<(Extension<Turn>, Json<JobDetail>), Failure> {
    let patience = Duration::from_millis(options.timeout_ms.unwrap_or(LONGEST).min(LONGEST));
    let id = job_id(&id)?;
    if patience > Duration::ZERO {
        let over = app.ask(|answer| Message::Wait(id, answer));
        // Either way the job is shown as it is then.
        let _ = tokio::time::timeout(patience, over).await;
    }
    // What it waited in held none.
    let turn = turns.request().await?;
    let detail = in_turn(Some(turn.clone()), show::detail(&app, peer, id)).await?;
    Ok((Extension(turn), detail))
}

//! `GET /v1/jobs`

use super::{Answered, Asked, Failure, MyTurns, Shared, history};
use crate::messages::{Peer, Refused};
use crate::view::{self, Live};
use axum::Json;
use axum::extract::State;
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
pub(super) async fn queue(
    State(app): Shared,
    peer: Peer,
    MyTurns(turns): MyTurns,
    Asked(options): Asked<Options>,
) -> Answered<JobsReply> {
    let (state, _) = app.view().await?;
    let asker = app.asker(&peer);
    let now = app.clock.now();
    let (of_state, paces, looks) = (state.clone(), app.paces.clone(), app.board.looks());
    let task = tokio::task::spawn_blocking(move || {
        let (done, metered) = (paces.done(&of_state, now), view::metered(&of_state, now, &looks));
        view::jobs(asker, &of_state, now, Live { done: &done, metered: &metered })
    });
    let mut reply = task.await.map_err(|e| Failure::from(Refused::new(500, "internal", e.to_string())))?;
    if options.all {
        let _turn = app.readers.listing(&turns).await?;
        let since = Millis(now.since(RECENT).0);
        let recent = app.readers.read(move |reader| {
            let recent = reader.history(since, history::MOST)?;
            Ok(recent.iter().map(|f| view::finished_view(asker, &state, f)).collect::<Vec<_>>())
        });
        reply.jobs.extend(recent.await?);
    }
    Ok(Json(reply))
}

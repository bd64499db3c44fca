//! `GET /v1/history`

use super::{Asked, Listing, Long, MyTurns, Shared};
use crate::journal::Which;
use crate::messages::Peer;
use crate::view;
use axum::Json;
use axum::extract::State;
use carma_api::VERSION;
use carma_api::wire::JobsReply;
use carma_core::units::Millis;
use serde::Deserialize;

/// Jobs in one answer where the request does not say how many.
pub(super) const USUAL: u64 = 1000;
/// Jobs in one answer at most; who asks for more gets so many.
pub(super) const MOST: u64 = 100_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Options {
    limit: Option<u64>,
    /// Only jobs of this user.
    user: Option<String>,
    /// Only jobs that ended in one of these states, with commas between.
    state: Option<String>,
}

/// Lists finished jobs, the latest first.
pub(super) async fn history(
    State(app): Shared,
    peer: Peer,
    MyTurns(turns): MyTurns,
    Asked(options): Asked<Options>,
) -> Long<JobsReply> {
    let limit = options.limit.unwrap_or(USUAL).min(MOST);
    let states = options.state.as_deref().unwrap_or_default().split(',').map(str::trim);
    let states = states.filter(|state| !state.is_empty()).map(str::to_owned).collect();
    let which = Which { user: options.user, states };
    // Those of one user may be anywhere.
    let listing =
        if limit > USUAL || !which.is_all() { Some(app.readers.listing(&turns).await?) } else { None };
    let (state, standing) = app.view().await?;
    let (turn, of) = (listing.clone(), app.clone());
    let jobs = app.readers.read(move |reader| {
        let _turn = turn;
        let finished = reader.history(Millis::ZERO, limit, &which)?;
        let asker = of.asker(&peer);
        Ok(finished.iter().map(|f| view::finished_view(asker, &state, f)).collect())
    });
    let (now_ms, jobs) = (app.clock.now().0, jobs.await?);
    let reply = JobsReply { version: VERSION, now_ms, jobs, unwritten: standing.unwritten };
    Ok((listing.map(Listing::over), Json(reply)))
}

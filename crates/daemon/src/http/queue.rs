//! `GET /v1/jobs`

use super::connections::blocking;
use super::{Asked, Listing, Long, MyTurns, Shared, history};
use crate::journal::Which;
use crate::messages::Peer;
use crate::view::{self, Live};
use axum::Json;
use axum::extract::State;
use carma_api::wire::{JobView, JobsReply};
use carma_core::units::Millis;
use serde::Deserialize;
use std::collections::BTreeSet;

/// How long a finished job stays in the long listing.
const RECENT: Millis = Millis::secs(3600);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
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
) -> Long<JobsReply> {
    // Its turn comes first: a job may end meanwhile.
    let mut listing = if options.all { Some(app.readers.listing(&turns).await?) } else { None };
    let (state, standing) = app.view().await?;
    if listing.is_none() && state.jobs().len() as u64 > history::USUAL {
        listing = Some(app.readers.listing(&turns).await?);
    }
    let now = app.clock.now();
    let (of_state, paces, looks) = (state.clone(), app.paces.clone(), app.board.looks());
    let (turn, asks, of) = (listing.clone(), peer.clone(), app.clone());
    let live = blocking(move || {
        let _turn = turn;
        let (counts, metered) = (paces.counts_of_all(&of_state, now), view::metered(&of_state, now, &looks));
        view::jobs(of.asker(&asks), &of_state, now, Live { counts: &counts, metered: &metered })
    });
    let mut reply = JobsReply { unwritten: standing.unwritten, ..live.await? };
    if let Some(turn) = listing.clone().filter(|_| options.all) {
        let since = Millis(now.since(RECENT).0);
        let of = app.clone();
        let recent = app.readers.read(move |reader| {
            let _turn = turn;
            let recent = reader.history(since, history::MOST, &Which::default())?;
            let asker = of.asker(&peer);
            Ok(recent.iter().map(|f| view::finished_view(asker, &state, f)).collect::<Vec<_>>())
        });
        add(&mut reply.jobs, recent.await?);
    }
    Ok((listing.map(Listing::over), Json(reply)))
}

/// Adds jobs that are over to those that were live a moment before: one that ended in between is over.
fn add(jobs: &mut Vec<JobView>, over: Vec<JobView>) {
    let ended: BTreeSet<u64> = over.iter().map(|job| job.id).collect();
    jobs.retain(|job| !ended.contains(&job.id));
    jobs.extend(over);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_job_that_ends_meanwhile_is_listed_once() {
        let job = |id: u64, state: &str| -> JobView {
            serde_json::from_value(json!({
                "id": id, "name": "x", "user": "a", "state": state, "reason": {"code": "X", "text": "x"},
                "gpus": [], "gpus_requested": 1, "sharing": null, "memory_reserved_mib": null,
                "memory_peak_mib": null, "attempts": 1, "priority": 0, "submitted_ms": 0, "started_ms": null,
                "ended_ms": null, "exit_code": null,
            }))
            .unwrap()
        };
        let mut jobs = vec![job(3, "RUNNING"), job(4, "PENDING")];
        add(&mut jobs, vec![job(3, "COMPLETED"), job(2, "FAILED")]);
        let listed: Vec<_> = jobs.iter().map(|job| (job.id, job.state.as_str())).collect();
        assert_eq!(listed, [(4, "PENDING"), (3, "COMPLETED"), (2, "FAILED")]);
    }
}

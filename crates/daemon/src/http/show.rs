//! `GET /v1/jobs/{id}`

use super::{Answered, App, Failure, Shared, Words, job_id, no_such_job};
use crate::journal::Reader;
use crate::messages::Peer;
use crate::run::launch::kept_log;
use crate::view::{self, Beside, Live, Subject};
use axum::Json;
use axum::extract::State;
use carma_api::wire::JobDetail;
use carma_core::model::{Finished, JobId};
use carma_core::state::State as CoreState;
use std::sync::{Arc, PoisonError};

/// Tells everything about one job.
pub(super) async fn show(State(app): Shared, peer: Peer, Words(id): Words<String>) -> Answered<JobDetail> {
    detail(&app, peer, job_id(&id)?).await
}

pub(super) async fn detail(app: &Arc<App>, peer: Peer, id: JobId) -> Answered<JobDetail> {
    let (state, _) = app.view().await?;
    let now = app.clock.now();
    let rate = app.rates.lock().unwrap_or_else(PoisonError::into_inner).get(&id).cloned();
    let (paces, journal, looks) = (app.paces.clone(), app.journal_id.clone(), app.board.looks());
    let of = app.clone();
    let kept = kept_log(&app.log_dir, id).display().to_string();
    let reply = app.readers.read(move |reader| {
        let mut stored = reader.job(id)?;
        if stored.as_ref().is_some_and(|stored| stored.request.saves_at_home()) {
            // Its home is in its environment, which may be gone.
            stored = reader.whole_job(id).unwrap_or(stored);
        }
        if let Some(stored) = stored.as_mut().filter(|stored| stored.request.output.is_none()) {
            stored.log = kept;
        }
        let over = find(reader, &state, id)?;
        let subject = subject(&state, over.as_ref(), id)?;
        let (counts, metered) = (paces.counts_of_all(&state, now), view::metered(&state, now, &looks));
        let live = Live { counts: &counts, metered: &metered };
        let beside = Beside { stored: stored.as_ref(), journal: &journal, rate, live };
        Ok(view::detail(of.asker(&peer), &state, now, &subject, beside))
    });
    Ok(Json(reply.await?))
}

/// The job's end, if it is not live.
pub(super) fn find(reader: &Reader, state: &CoreState, id: JobId) -> Result<Option<Finished>, Failure> {
    if state.job(id).is_some() {
        return Ok(None);
    }
    Ok(reader.finished(id)?)
}

pub(super) fn subject<'a>(
    state: &'a CoreState,
    over: Option<&'a Finished>,
    id: JobId,
) -> Result<Subject<'a>, Failure> {
    match (state.job(id), over) {
        (Some(job), _) => Ok(Subject::Live(job)),
        (None, Some(finished)) => Ok(Subject::Over(finished)),
        (None, None) => Err(no_such_job(id, state.next_id())),
    }
}

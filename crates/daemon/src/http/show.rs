//! `GET /v1/jobs/{id}`

use super::{Answered, App, Failure, Shared};
use crate::engine::{Peer, Refused};
use crate::view::{self, Subject};
use axum::Json;
use axum::extract::{Path, State};
use carma_api::wire::JobDetail;
use carma_core::model::{Finished, JobId};
use carma_core::state::State as CoreState;
use std::sync::PoisonError;

/// Tells everything about one job.
pub(super) async fn show(State(app): Shared, peer: Peer, Path(id): Path<u64>) -> Answered<JobDetail> {
    detail(&app, &peer, JobId(id)).await
}

pub(super) async fn detail(app: &App, peer: &Peer, id: JobId) -> Answered<JobDetail> {
    let (state, _) = app.view().await?;
    let stored = app.reader()?.job(id)?;
    let may_read = stored.as_ref().is_some_and(|s| app.may_read(peer, s.uid));
    let over = find(app, &state, id)?;
    let subject = subject(&state, over.as_ref(), id)?;
    let rates = app.rates.lock().unwrap_or_else(PoisonError::into_inner).get(&id).cloned();
    Ok(Json(view::detail(&state, app.clock.now(), &subject, stored.as_ref(), rates, may_read)))
}

/// The job's end, if it is not live.
pub(super) fn find(app: &App, state: &CoreState, id: JobId) -> Result<Option<Finished>, Failure> {
    if state.job(id).is_some() {
        return Ok(None);
    }
    Ok(app.reader()?.finished(id)?)
}

pub(super) fn subject<'a>(
    state: &'a CoreState,
    over: Option<&'a Finished>,
    id: JobId,
) -> Result<Subject<'a>, Failure> {
    match (state.job(id), over) {
        (Some(job), _) => Ok(Subject::Live(job)),
        (None, Some(finished)) => Ok(Subject::Over(finished)),
        (None, None) => Err(Refused::new(404, "not_found", format!("there is no job {id}")).into()),
    }
}

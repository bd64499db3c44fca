//! `GET /v1/jobs/{id}`

use super::{Answered, App, Failure, Shared, Words, job_id, no_such_job};
use crate::journal::Reader;
use crate::messages::Peer;
use crate::run::launch::kept_log;
use crate::view::{self, Live, OfJob, Subject};
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
    let (journal, kept) = (app.journal_id.clone(), kept_log(&app.log_dir, id).display().to_string());
    let reply = of_job(app, state, peer, id, move |reader, of| {
        let mut stored = reader.job(id)?;
        if stored.as_ref().is_some_and(|stored| stored.request.saves_at_home()) {
            // Its home is in its environment, which may be gone.
            stored = reader.whole_job(id).unwrap_or(stored);
        }
        if let Some(stored) = stored.as_mut().filter(|stored| stored.request.output.is_none()) {
            stored.log = kept;
        }
        Ok(view::detail(of, stored.as_ref(), &journal))
    });
    Ok(Json(reply.await?))
}

/// What is made of a job, on a thread that reads the journal.
pub(super) async fn of_job<T: Send + 'static>(
    app: &Arc<App>,
    state: Arc<CoreState>,
    peer: Peer,
    id: JobId,
    make: impl FnOnce(&Reader, OfJob<'_>) -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let now = app.clock.now();
    let rate = app.rates.lock().unwrap_or_else(PoisonError::into_inner).get(&id).cloned();
    let (looks, of) = (app.board.looks(), app.clone());
    let made = app.readers.read(move |reader| {
        let over = find(reader, &state, id)?;
        let subject = subject(&state, over.as_ref(), id)?;
        let (counts, metered) = (of.paces.counts_of_all(&state, now), view::metered(&state, now, &looks));
        let live = Live { counts: &counts, metered: &metered };
        make(reader, OfJob { asker: of.asker(&peer), state: &state, now, subject, rate, live })
    });
    made.await
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

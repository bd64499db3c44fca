//! `GET /v1/status`

use super::{Answered, Shared};
use axum::Json;
use axum::extract::State;
use carma_api::VERSION;
use carma_api::wire::StatusReply;
use std::collections::BTreeMap;

/// Says how the daemon is.
pub(super) async fn status(State(app): Shared) -> Answered<StatusReply> {
    let (state, standing) = app.view().await?;
    let mut jobs: BTreeMap<String, u64> = BTreeMap::new();
    for job in state.jobs().values() {
        *jobs.entry(job.state().as_str().to_owned()).or_default() += 1;
    }
    Ok(Json(StatusReply {
        version: VERSION,
        carma: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        policy: state.options().policy.name.clone(),
        sharing: state.options().sharing,
        jobs,
        state_dir: app.state_dir.display().to_string(),
        cgroups: app.cgroups.clone(),
        runtime_dir: app.runtime_dir.display().to_string(),
        gpus: app.gpus.clone(),
        speed: app.speed,
        unwritten: standing.unwritten,
        launches: standing.launches,
    }))
}

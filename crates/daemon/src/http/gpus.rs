//! `GET /v1/gpus`

use super::{Answered, Shared};
use crate::view;
use axum::Json;
use axum::extract::State;
use carma_api::wire::GpusReply;

/// Lists the GPUs.
pub(super) async fn gpus(State(app): Shared) -> Answered<GpusReply> {
    let (state, standing) = app.view().await?;
    let reply = view::gpus(&state, app.clock.now(), &app.board.looks());
    Ok(Json(GpusReply { unwritten: standing.unwritten, ..reply }))
}

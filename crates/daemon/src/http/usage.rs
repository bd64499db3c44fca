//! `GET /v1/usage`

use super::{Answered, Asked, Shared, short};
use crate::messages::Peer;
use crate::refused::Refused;
use crate::view;
use axum::Json;
use axum::extract::State;
use carma_api::wire::UsageReply;
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Options {
    /// Only this user.
    user: Option<String>,
}

/// Says what users have had of the GPUs: the asker, and all of them to root and operators.
pub(super) async fn usage(
    State(app): Shared,
    peer: Peer,
    Asked(options): Asked<Options>,
) -> Answered<UsageReply> {
    let (state, _) = app.view().await?;
    let mut reply = view::usage(app.asker(&peer), &state, app.clock.now(), &app.board.looks());
    if let Some(user) = options.user {
        reply.users.retain(|row| row.user == user);
        reply.others = None;
        reply.gpus.clear();
        if reply.users.is_empty() {
            // The same words whether there is none or it is another's.
            let text = format!("there is no account of '{}' that you may see", short(&user));
            return Err(Refused::new(404, "not_found", text).into());
        }
    }
    Ok(Json(reply))
}

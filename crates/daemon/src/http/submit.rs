//! `POST /v1/jobs`

use super::connections::blocking;
use super::{Answered, Shared};
use crate::audit::{self, Act};
use crate::messages::{Message, Peer};
use crate::submission::Submission;
use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use carma_api::wire::SubmitReply;

/// Takes a job. The answer comes when it is on disk.
pub(super) async fn submit(State(app): Shared, peer: Peer, body: Bytes) -> Answered<SubmitReply> {
    // A large one takes its time, and what is refused must take none of the engine's.
    let (uid, limits) = (peer.user.uid, peer.limits);
    let result = match blocking(move || Submission::read(&body, uid, &limits)).await? {
        Ok(submission) => {
            let asks = peer.clone();
            app.ask(|answer| Message::Submit(Box::new(submission), asks, answer)).await?
        }
        Err(refused) => Err(refused),
    };
    audit::asked(&peer, Act::Submit, result.as_ref().map(|reply| reply.id));
    Ok(Json(result?))
}

//! `POST /v1/jobs[?count=N]`

use super::connections::blocking;
use super::{Answered, Asked, Shared};
use crate::audit::{self, Act};
use crate::messages::{Bulk, Message, Peer};
use crate::refused::Refused;
use crate::submission::Submission;
use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use carma_api::wire::{MOST_AT_ONCE, SubmitReply};
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Copies {
    count: Option<u32>,
}

/// Takes a job, or some copies of it. The answer comes when they are on disk.
pub(super) async fn submit(
    State(app): Shared,
    peer: Peer,
    Asked(Copies { count }): Asked<Copies>,
    body: Bytes,
) -> Answered<SubmitReply> {
    let count = count.unwrap_or(1);
    if !(1..=MOST_AT_ONCE).contains(&count) {
        let text = format!("a submission is of 1 to {MOST_AT_ONCE} jobs, not {count} (count)");
        return Err(Refused::new(400, "bad_request", text).into());
    }
    // A large one takes its time, and what is refused must take none of the engine's.
    let (uid, limits) = (peer.user.uid, peer.limits);
    let result = match blocking(move || Submission::read(&body, uid, &limits)).await? {
        Ok(submission) => {
            let (asks, submission) = (peer.clone(), Box::new(submission));
            let message = |answer| match count {
                1 => Message::Submit(submission, asks, answer),
                _ => Message::Bulk(Bulk::Submit(submission, count, asks, answer)),
            };
            app.ask(message).await?
        }
        Err(refused) => Err(refused),
    };
    match &result {
        Ok(reply) if !reply.copies.is_empty() => {
            let copies = reply.copies.iter().map(|copy| copy.id);
            audit::submitted(&peer, std::iter::once(reply.id).chain(copies));
        }
        result => audit::asked(&peer, Act::Submit, result.as_ref().map(|reply| reply.id)),
    }
    Ok(Json(result?))
}

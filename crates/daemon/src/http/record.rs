//! `GET /v1/record`

use super::connections::blocking;
use super::{Asked, Failure, Long, MyTurns, Shared};
use crate::messages::Peer;
use crate::refused::Refused;
use axum::Json;
use axum::extract::State;
use carma_api::VERSION;
use carma_api::record::{RecordReply, Row};
use carma_core::units::Millis;
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Options {
    /// Rows that end after this, Unix time; an hour ago where it is absent.
    since_ms: Option<u64>,
    /// ... and not after this; now.
    until_ms: Option<u64>,
    /// Length of a row: those of a second are put together.
    #[serde(default)]
    step_ms: u64,
}

/// How far back rows go that are asked for without a time.
const USUAL: Millis = Millis::secs(3600);

/// Hands out what was recorded, a part of it where it is much. Which jobs were on a GPU and what memory they held is for all to
/// see, as in the listings; what each of them did is its user's.
pub(super) async fn record(
    State(app): Shared,
    peer: Peer,
    MyTurns(turns): MyTurns,
    Asked(options): Asked<Options>,
) -> Long<RecordReply> {
    let Some(recorder) = app.recorder.clone() else {
        let text =
            "this carma records nothing: [recorder] enabled = false, or its log says what kept it from it";
        return Err(Refused::new(404, "not_found", text).into());
    };
    let now = app.clock.now();
    let since = options.since_ms.map_or(Millis(now.since(USUAL).0), Millis);
    let until = Millis(options.until_ms.unwrap_or(now.0).min(now.0));
    let turn = app.readers.listing(&turns).await?;
    let (reader, step, held) = (recorder.clone(), Millis(options.step_ms), turn.clone());
    let page = blocking(move || {
        let _held = held;
        reader.read(since, until, step)
    });
    let page = page.await?.map_err(|e| Failure::from(Refused::new(500, "internal", e.to_string())))?;
    let mut rows = page.rows;
    let asker = app.asker(&peer);
    hide(&mut rows, |uid| asker.may_read_of(uid));
    let reply = RecordReply {
        version: VERSION,
        now_ms: now.0,
        first_ms: page.first.map(|first| first.0),
        gpus: page.gpus,
        rows,
        next_ms: page.next.map(|next| next.0),
        dropped_looks: recorder.dropped(),
    };
    Ok((Some(turn.over()), Json(reply)))
}

fn hide(rows: &mut [Row], may_read: impl Fn(u32) -> bool) {
    for tenant in rows.iter_mut().flat_map(|row| &mut row.gpus).flat_map(|gpu| &mut gpu.tenants) {
        if !may_read(tenant.uid) {
            tenant.activity_share = None;
        }
    }
}

//! Checksums of rows: CRC-32, as a column beside what it covers. SQLite checks the structure of its file and not the
//! content of its rows: without these, a flipped byte in an environment would go unseen into a job.

use super::{JournalError, sql};
use carma_core::units::Millis;
use rusqlite::{Connection, params};

/// CRC-32 over fields, each with its length, so that bytes cannot move from one to the next.
fn crc(kind: u8, fields: &[&[u8]]) -> i64 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&[kind]);
    for field in fields {
        hasher.update(&(field.len() as u64).to_le_bytes());
        hasher.update(field);
    }
    i64::from(hasher.finalize())
}

/// Of an input.
pub(super) fn input(seq: i64, at: Millis, body: &str) -> i64 {
    crc(b'i', &[&seq.to_le_bytes(), &at.0.to_le_bytes(), body.as_bytes()])
}

/// Of a snapshot.
pub(super) fn snapshot(seq: i64, at: Millis, body: &str) -> i64 {
    crc(b's', &[&seq.to_le_bytes(), &at.0.to_le_bytes(), body.as_bytes()])
}

/// Of an environment.
pub(super) fn environment(id: i64, hash: i64, body: &str) -> i64 {
    crc(b'e', &[&id.to_le_bytes(), &hash.to_le_bytes(), body.as_bytes()])
}

/// Of what was submitted as a job, but for its estimate, which changes.
pub(super) fn job(id: u64, uid: u32, gid: u32, environment: i64, log: &str, spec: &str) -> i64 {
    let numbers = [&id.to_le_bytes()[..], &uid.to_le_bytes(), &gid.to_le_bytes(), &environment.to_le_bytes()];
    crc(b'j', &[numbers[0], numbers[1], numbers[2], numbers[3], log.as_bytes(), spec.as_bytes()])
}

/// Of a job's estimate.
pub(super) fn estimate(id: u64, estimate: Option<&str>) -> i64 {
    let body = estimate.map_or(&[][..], str::as_bytes);
    crc(b'f', &[&id.to_le_bytes(), &[u8::from(estimate.is_some())], body])
}

/// Of a job that is over.
pub(super) fn ended(id: u64, uid: u32, at: Millis, state: &str, body: &str) -> i64 {
    let numbers = [&id.to_le_bytes()[..], &uid.to_le_bytes(), &at.0.to_le_bytes()];
    crc(b'h', &[numbers[0], numbers[1], numbers[2], state.as_bytes(), body.as_bytes()])
}

/// Of a row of what was learned.
pub(super) fn learned(kind: &str, key: &str, body: &str) -> i64 {
    crc(b'm', &[kind.as_bytes(), key.as_bytes(), body.as_bytes()])
}

/// Of a life of the daemon.
pub(super) fn life(started: Millis, life: &str, host: &str, boot: &str) -> i64 {
    crc(b'l', &[&started.0.to_le_bytes(), life.as_bytes(), host.as_bytes(), boot.as_bytes()])
}

/// Of the row about the journal as a whole.
pub(super) fn meta(id: &str, numbers: &[i64]) -> i64 {
    let bytes: Vec<[u8; 8]> = numbers.iter().map(|n| n.to_le_bytes()).collect();
    crc(b't', &[id.as_bytes(), bytes.as_flattened()])
}

/// Computes the sums of rows that an older carma wrote without.
pub(super) fn fill(db: &Connection) -> Result<(), JournalError> {
    let failed = sql("brought up to date");
    let set = |table: &str, rows: Vec<(i64, i64)>| -> rusqlite::Result<()> {
        let mut update = db.prepare(&format!("UPDATE {table} SET sum = ?2 WHERE rowid = ?1"))?;
        rows.into_iter().try_for_each(|(id, sum)| update.execute(params![id, sum]).map(drop))
    };
    let text = |row: &rusqlite::Row<'_>, at| row.get::<_, String>(at);
    let numbered = |table: &str, sum: fn(i64, Millis, &str) -> i64| -> rusqlite::Result<()> {
        let mut query = db.prepare(&format!("SELECT seq, at_ms, body FROM {table}"))?;
        let rows = query.query_map([], |row| {
            let seq = row.get(0)?;
            Ok((seq, sum(seq, Millis(row.get(1)?), &text(row, 2)?)))
        })?;
        set(table, rows.collect::<Result<_, _>>()?)
    };
    let all = || -> rusqlite::Result<()> {
        numbered("inputs", input)?;
        numbered("snapshots", snapshot)?;
        let mut query = db.prepare("SELECT id, hash, body FROM environments")?;
        let rows = query.query_map([], |row| {
            let id = row.get(0)?;
            Ok((id, environment(id, row.get(1)?, &text(row, 2)?)))
        })?;
        set("environments", rows.collect::<Result<_, _>>()?)?;
        let mut query = db.prepare("SELECT id, uid, gid, environment, log, spec, estimate FROM jobs")?;
        let mut update = db.prepare("UPDATE jobs SET sum = ?2, estimate_sum = ?3 WHERE id = ?1")?;
        let rows = query.query_map([], |row| {
            let (id, estimated): (u64, Option<String>) = (row.get(0)?, row.get(6)?);
            let sum = job(id, row.get(1)?, row.get(2)?, row.get(3)?, &text(row, 4)?, &text(row, 5)?);
            Ok((id, sum, estimate(id, estimated.as_deref())))
        })?;
        for row in rows.collect::<Result<Vec<_>, _>>()? {
            update.execute(row)?;
        }
        let mut query = db.prepare("SELECT id, uid, ended_ms, state, body FROM history")?;
        let rows = query.query_map([], |row| {
            let id: u64 = row.get(0)?;
            let sum = ended(id, row.get(1)?, Millis(row.get(2)?), &text(row, 3)?, &text(row, 4)?);
            Ok((id.cast_signed(), sum))
        })?;
        set("history", rows.collect::<Result<_, _>>()?)?;
        let mut query = db.prepare("SELECT kind, key, body FROM memory")?;
        let mut update = db.prepare("UPDATE memory SET sum = ?3 WHERE kind = ?1 AND key = ?2")?;
        let rows = query.query_map([], |row| {
            let (kind, key) = (text(row, 0)?, text(row, 1)?);
            let sum = learned(&kind, &key, &text(row, 2)?);
            Ok((kind, key, sum))
        })?;
        for row in rows.collect::<Result<Vec<_>, _>>()? {
            update.execute(row)?;
        }
        Ok(())
    };
    all().map_err(failed)
}

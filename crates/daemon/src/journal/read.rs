//! What is read from the journal.

use super::ended::{self, Ended};
use super::environments::Environments;
use super::{
    Journal, JournalError, Keep, Life, NEEDED, RUN_TIMES, SLOWDOWNS, StoredJob, check, or_full, sql, sums,
};
use carma_api::wire::{EstimateView, SubmitRequest};
use carma_core::input::Input;
use carma_core::model::{Finished, JobId};
use carma_core::state::State;
use carma_core::units::Millis;
use carma_memory::history::{HistoryRow, Table};
use rusqlite::{Connection, OptionalExtension, params};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

impl Journal {
    /// The state that the journal describes.
    ///
    /// # Errors
    /// When an entry cannot be read or understood, or is missing.
    pub fn recover(&mut self) -> Result<State, JournalError> {
        let refused = |e| match or_full(&self.path, NEEDED, e) {
            // SQLite found it only when it came to that part of the file.
            e @ (JournalError::Damaged(_) | JournalError::Sqlite { .. } | JournalError::Entry { .. }) => {
                JournalError::Refused { journal: self.path.clone(), why: e.to_string() }
            }
            e => e,
        };
        let (state, replayed) = replay(&self.db, self.meta.seq).map_err(refused)?;
        let missing = check::needed(&self.db, &state)?;
        if !missing.is_empty() {
            return Err(refused(JournalError::Damaged(missing.join("; "))));
        }
        self.environments = Environments::find(&self.db, &state, self.settings.environments)?;
        self.ended = Ended::find(&self.db, &state, self.settings.keep)?;
        self.since_snapshot = replayed;
        Ok(state)
    }

    /// What was submitted as a job, environment included.
    ///
    /// # Errors
    /// When the file cannot be read, or the row is not what was written.
    pub fn job(&self, id: JobId) -> Result<Option<StoredJob>, JournalError> {
        whole_job(&self.db, id)
    }

    /// Whether a job's submission is kept.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn has_job(&self, id: JobId) -> Result<bool, JournalError> {
        let mut query = self.db.prepare_cached("SELECT 1 FROM jobs WHERE id = ?1").map_err(sql("read"))?;
        query.exists([id.0]).map_err(sql("read"))
    }

    /// What was learned of memory, by table and key. Rows of tables that this version does not know
    /// are left where they are.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn learned(&self) -> Result<Vec<HistoryRow>, JournalError> {
        let failed = sql("read");
        let mut query =
            self.db.prepare("SELECT kind, key, body FROM memory ORDER BY kind, key").map_err(&failed)?;
        let mut rows = query.query([]).map_err(&failed)?;
        let mut found = Vec::new();
        while let Some(row) = rows.next().map_err(&failed)? {
            let kind: String = row.get(0).map_err(&failed)?;
            let Some(table) = Table::parse(&kind) else { continue };
            let (key, body) = (row.get(1).map_err(&failed)?, row.get(2).map_err(&failed)?);
            found.push(HistoryRow { table, key, body: Some(body) });
        }
        Ok(found)
    }

    /// What was learned of slowdowns, by key.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn slowdowns(&self) -> Result<Vec<(String, String)>, JournalError> {
        self.rows_of(SLOWDOWNS)
    }

    /// What was learned of run times, by key.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn run_times(&self) -> Result<Vec<(String, String)>, JournalError> {
        self.rows_of(RUN_TIMES)
    }

    fn rows_of(&self, kind: &str) -> Result<Vec<(String, String)>, JournalError> {
        let failed = sql("read");
        let mut query =
            self.db.prepare("SELECT key, body FROM memory WHERE kind = ?1 ORDER BY key").map_err(&failed)?;
        let rows = query.query_map([kind], |row| Ok((row.get(0)?, row.get(1)?))).map_err(&failed)?;
        rows.collect::<Result<_, _>>().map_err(&failed)
    }

    /// The lives of the daemon that are remembered, in order.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn lives(&self) -> Result<Vec<Life>, JournalError> {
        let read = || -> rusqlite::Result<Vec<Life>> {
            let mut query =
                self.db.prepare("SELECT started_ms, life, host, boot FROM lives ORDER BY started_ms")?;
            let rows = query.query_map([], |row| {
                let started = Millis(row.get(0)?);
                Ok(Life { started, life: row.get(1)?, host: row.get(2)?, boot: row.get(3)? })
            })?;
            rows.collect()
        };
        read().map_err(sql("read"))
    }

    /// The environments of the jobs from `oldest` on: for each environment the jobs that have it.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn environments(&self, oldest: JobId) -> Result<Vec<Environment>, JournalError> {
        let failed = sql("read");
        let mut query = self
            .db
            .prepare(
                "SELECT id, uid, environment, octet_length(spec) FROM jobs WHERE id >= ?1 ORDER BY environment, id",
            )
            .map_err(&failed)?;
        let mut bodies = self.db.prepare("SELECT body FROM environments WHERE id = ?1").map_err(&failed)?;
        let mut rows = query.query([oldest.0]).map_err(&failed)?;
        let mut found: Vec<Environment> = Vec::new();
        let mut last = None;
        while let Some(row) = rows.next().map_err(&failed)? {
            let columns = || Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?));
            let (id, uid, of, rest): (u64, u32, i64, u64) = columns().map_err(&failed)?;
            if last != Some(of) {
                // Those of jobs that are over may be gone.
                let body: Option<String> =
                    bodies.query_row([of], |row| row.get(0)).optional().map_err(&failed)?;
                let Some(body) = body else { continue };
                let env = serde_json::from_str(&body)
                    .map_err(|e| JournalError::Entry { seq: of, why: e.to_string() })?;
                found.push(Environment { env, jobs: Vec::new() });
                last = Some(of);
            }
            if let Some(environment) = found.last_mut() {
                environment.jobs.push((JobId(id), uid, rest));
            }
        }
        Ok(found)
    }

    /// A second, read-only connection for other threads.
    ///
    /// # Errors
    /// When the file cannot be opened.
    pub fn reader(path: &Path) -> Result<Reader, JournalError> {
        Ok(Reader { db: open_to_read(path).map_err(sql("opened"))? })
    }
}

/// A connection that changes nothing. On closing it leaves what is not yet in the main file where it is.
pub(super) fn open_to_read(path: &Path) -> rusqlite::Result<Connection> {
    let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY | rusqlite::OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let db = Connection::open_with_flags(path, flags)?;
    db.busy_timeout(Duration::from_secs(5))?;
    Ok(db)
}

/// The state after the inputs up to `last`, and how many of them came after the newest snapshot.
pub(super) fn replay(db: &Connection, last: i64) -> Result<(State, u64), JournalError> {
    let read = sql("read");
    let snapshot: Option<(i64, u64, String, i64)> = db
        .query_row("SELECT seq, at_ms, body, sum FROM snapshots ORDER BY seq DESC LIMIT 1", [], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
        })
        .optional()
        .map_err(&read)?;
    let (from, mut state) = match snapshot {
        Some((seq, at, body, sum)) => {
            if sums::snapshot(seq, Millis(at), &body) != sum {
                let text = format!("the snapshot of the state after entry {seq} is not what was written");
                return Err(JournalError::Damaged(text));
            }
            let mut state: State =
                serde_json::from_str(&body).map_err(|e| JournalError::Entry { seq, why: e.to_string() })?;
            state.rebuild();
            (seq, state)
        }
        None => (0, State::default()),
    };
    let mut query =
        db.prepare("SELECT seq, at_ms, body, sum FROM inputs WHERE seq > ?1 ORDER BY seq").map_err(&read)?;
    let mut rows = query.query([from]).map_err(&read)?;
    let mut expected = from + 1;
    while let Some(row) = rows.next().map_err(&read)? {
        let seq: i64 = row.get(0).map_err(&read)?;
        let at = Millis(row.get(1).map_err(&read)?);
        let body: String = row.get(2).map_err(&read)?;
        let sum: i64 = row.get(3).map_err(&read)?;
        if seq != expected {
            return Err(JournalError::Damaged(missing(expected, seq - 1)));
        }
        if sums::input(seq, at, &body) != sum {
            return Err(JournalError::Damaged(format!("entry {seq} is not what was written")));
        }
        let fail = |why: String| JournalError::Entry { seq, why };
        let input: Input = serde_json::from_str(&body).map_err(|e| fail(e.to_string()))?;
        state.replay(at, &input).map_err(|e| fail(e.to_string()))?;
        expected += 1;
    }
    if expected <= last {
        return Err(JournalError::Damaged(missing(expected, last)));
    }
    Ok((state, u64::try_from(expected - 1 - from).unwrap_or(0)))
}

/// Says which entries are missing.
pub(super) fn missing(from: i64, to: i64) -> String {
    if from == to {
        format!("entry {from} is missing")
    } else {
        format!("entries {from} to {to} are missing")
    }
}

/// An environment, and the jobs that have it.
pub struct Environment {
    /// The variables.
    pub env: BTreeMap<String, String>,
    /// Jobs with their users, and what the rest of their submissions takes, bytes.
    pub jobs: Vec<(JobId, u32, u64)>,
}

/// Which jobs are asked for that are over.
#[derive(Debug, Clone, Default)]
pub struct Which {
    /// Those of the user of this name; `None`: of all.
    pub user: Option<String>,
    /// Those that ended in one of these states; empty: in any.
    pub states: Vec<String>,
}

impl Which {
    /// Whether all jobs are.
    #[must_use]
    pub const fn is_all(&self) -> bool {
        self.user.is_none() && self.states.is_empty()
    }
}

/// A read-only view of the journal.
pub struct Reader {
    db: Connection,
}

impl Reader {
    /// What was submitted as a job, without its environment.
    ///
    /// # Errors
    /// When the file cannot be read, or the row is not what was written.
    pub fn job(&self, id: JobId) -> Result<Option<StoredJob>, JournalError> {
        Ok(stored_job(&self.db, id)?.map(|(stored, _)| stored))
    }

    /// The same with its environment.
    ///
    /// # Errors
    /// When the file cannot be read, or a row is not what was written or is gone.
    pub fn whole_job(&self, id: JobId) -> Result<Option<StoredJob>, JournalError> {
        whole_job(&self.db, id)
    }

    /// The numbers of all jobs that the journal knows, and how many of them are over, with what these take.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn known(&self) -> Result<(BTreeSet<u64>, Keep), JournalError> {
        let read = || -> rusqlite::Result<_> {
            let mut query = self.db.prepare("SELECT id FROM jobs")?;
            let ids = query.query_map([], |row| row.get::<_, i64>(0).map(i64::cast_unsigned))?;
            Ok((ids.collect::<rusqlite::Result<_>>()?, ended::all(&self.db)?))
        };
        read().map_err(sql("read"))
    }

    /// The end of a job, if it is over.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn finished(&self, id: JobId) -> Result<Option<Finished>, JournalError> {
        Ok(self.select("SELECT id, body FROM history WHERE id = ?1", params![id.0])?.pop())
    }

    /// Jobs that ended at or after `since`, latest first, at most `limit`.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn history(&self, since: Millis, limit: u64, which: &Which) -> Result<Vec<Finished>, JournalError> {
        if !which.is_all() {
            let states = format!(",{},", which.states.join(","));
            return self.select(
                "SELECT id, body FROM history WHERE ended_ms >= ?1
                 AND (?3 IS NULL OR json_extract(body, '$.job.spec.user.name') = ?3)
                 AND (?4 = ',,' OR instr(?4, ',' || json_extract(body, '$.state') || ',') > 0)
                 ORDER BY ended_ms DESC, id DESC LIMIT ?2",
                params![since.0, limit, which.user, states],
            );
        }
        self.select(
            "SELECT id, body FROM history WHERE ended_ms >= ?1 ORDER BY ended_ms DESC, id DESC LIMIT ?2",
            params![since.0, limit],
        )
    }

    fn select(&self, query: &str, params: impl rusqlite::Params) -> Result<Vec<Finished>, JournalError> {
        let mut query = self.db.prepare_cached(query).map_err(sql("read"))?;
        let mut rows = query.query(params).map_err(sql("read"))?;
        let mut found = Vec::new();
        while let Some(row) = rows.next().map_err(sql("read"))? {
            let seq: i64 = row.get(0).map_err(sql("read"))?;
            let body: String = row.get(1).map_err(sql("read"))?;
            found.push(
                serde_json::from_str(&body).map_err(|e| JournalError::Entry { seq, why: e.to_string() })?,
            );
        }
        Ok(found)
    }
}

/// What was submitted as a job, environment included.
fn whole_job(db: &Connection, id: JobId) -> Result<Option<StoredJob>, JournalError> {
    let Some((mut stored, environment)) = stored_job(db, id)? else { return Ok(None) };
    let row: Option<(i64, String, i64)> = db
        .prepare_cached("SELECT hash, body, sum FROM environments WHERE id = ?1")
        .map_err(sql("read"))?
        .query_row([environment], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
        .optional()
        .map_err(sql("read"))?;
    let (hash, body, sum) = row.ok_or(JournalError::NoEnvironment(id))?;
    if sums::environment(environment, hash, &body) != sum {
        return Err(JournalError::Damaged(format!("the environment of job {id} is not what was written")));
    }
    stored.request.env = serde_json::from_str(&body)
        .map_err(|e| JournalError::Entry { seq: id.0.cast_signed(), why: e.to_string() })?;
    Ok(Some(stored))
}

/// What was submitted as a job but for its environment, and the number of that.
fn stored_job(db: &Connection, id: JobId) -> Result<Option<(StoredJob, i64)>, JournalError> {
    type Found = (u32, u32, i64, String, String, Option<String>, i64, i64);
    let row: Option<Found> = db
        .prepare_cached(
            "SELECT uid, gid, environment, log, spec, estimate, sum, estimate_sum FROM jobs WHERE id = ?1",
        )
        .map_err(sql("read"))?
        .query_row([id.0], |row| {
            Ok((
                row.get(0)?,
                row.get(1)?,
                row.get(2)?,
                row.get(3)?,
                row.get(4)?,
                row.get(5)?,
                row.get(6)?,
                row.get(7)?,
            ))
        })
        .optional()
        .map_err(sql("read"))?;
    let Some((uid, gid, environment, log, spec, estimate, sum, estimate_sum)) = row else { return Ok(None) };
    if sums::job(id.0, uid, gid, environment, &log, &spec) != sum
        || sums::estimate(id.0, estimate.as_deref()) != estimate_sum
    {
        return Err(JournalError::Damaged(format!("what was submitted as job {id} is not what was written")));
    }
    let fail = |e: serde_json::Error| JournalError::Entry { seq: id.0.cast_signed(), why: e.to_string() };
    let request: SubmitRequest = serde_json::from_str(&spec).map_err(fail)?;
    let estimate: Option<EstimateView> =
        estimate.map(|text| serde_json::from_str(&text)).transpose().map_err(fail)?;
    Ok(Some((StoredJob { request, uid, gid, log, estimate }, environment)))
}

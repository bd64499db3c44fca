//! The journal: one SQLite file that holds every input in order, snapshots of the state, what jobs
//! were submitted, and the history.
//!
//! Replaying the inputs after the last snapshot is crash recovery; replaying them elsewhere is audit.

use crate::config::Sync;
use carma_api::wire::{EstimateView, SubmitRequest};
use carma_core::input::Input;
use carma_core::model::{Finished, JobId};
use carma_core::state::State;
use carma_core::units::Millis;
use carma_memory::history::{Row, Table};
use rusqlite::{Connection, OptionalExtension, params};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::time::Duration;

/// Inputs between snapshots at least.
const SNAPSHOT_EVERY: u64 = 20_000;

/// Kind of the rows about slowdowns, beside those about memory.
const SLOWDOWNS: &str = "slowdown";

/// The schema, one step a version (`PRAGMA user_version`). Steps are only ever added.
const SCHEMA: &[&str] = &[
    "
    CREATE TABLE inputs (seq INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL, body TEXT NOT NULL) STRICT;
    CREATE TABLE snapshots (seq INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL, body TEXT NOT NULL) STRICT;
    CREATE TABLE environments (id INTEGER PRIMARY KEY, hash INTEGER NOT NULL, body TEXT NOT NULL) STRICT;
    CREATE INDEX environments_by_hash ON environments (hash);
    CREATE TABLE jobs (id INTEGER PRIMARY KEY, uid INTEGER NOT NULL, gid INTEGER NOT NULL,
        environment INTEGER NOT NULL, log TEXT NOT NULL, spec TEXT NOT NULL) STRICT;
    CREATE TABLE history (id INTEGER PRIMARY KEY, uid INTEGER NOT NULL, ended_ms INTEGER NOT NULL,
        state TEXT NOT NULL, body TEXT NOT NULL) STRICT;
    CREATE INDEX history_by_end ON history (ended_ms);
",
    "
    ALTER TABLE jobs ADD COLUMN estimate TEXT;
    CREATE TABLE memory (kind TEXT NOT NULL, key TEXT NOT NULL, body TEXT NOT NULL,
        PRIMARY KEY (kind, key)) STRICT, WITHOUT ROWID;
",
];

/// The journal failed.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// SQLite or the disk.
    #[error("the journal cannot be {doing}: {source}")]
    Sqlite {
        /// What was tried.
        doing: &'static str,
        /// What SQLite says.
        source: rusqlite::Error,
    },
    /// An entry is not understood.
    #[error(
        "entry {seq} of the journal is not understood ({why}); it was written by another version of carma, or the file is damaged"
    )]
    Entry {
        /// Which.
        seq: i64,
        /// What is wrong.
        why: String,
    },
    /// The file is newer than this program.
    #[error("the journal has format {found}, this carma knows up to {known}; start the newer carma")]
    TooNew {
        /// Its format.
        found: usize,
        /// Ours.
        known: usize,
    },
}

fn sql(doing: &'static str) -> impl Fn(rusqlite::Error) -> JournalError {
    move |source| JournalError::Sqlite { doing, source }
}

/// What the daemon keeps of a submission, beside what the core knows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredJob {
    /// The submission; its environment is stored apart, once for all jobs that share it.
    pub request: SubmitRequest,
    /// User to run as.
    pub uid: u32,
    /// Primary group to run as.
    pub gid: u32,
    /// File of the output.
    pub log: String,
    /// What was expected of its memory at submission, with reasons.
    pub estimate: Option<EstimateView>,
}

/// What one commit writes.
#[derive(Default)]
pub struct Batch {
    /// Inputs in order.
    pub inputs: Vec<(Millis, Input)>,
    /// New jobs.
    pub jobs: Vec<(JobId, StoredJob)>,
    /// Jobs that are over.
    pub finished: Vec<Finished>,
    /// What was learned of memory.
    pub learned: Vec<Row>,
    /// What was learned of slowdowns: key, and JSON or nothing where the row goes.
    pub slowdowns: Vec<(String, Option<String>)>,
    /// What is expected now of jobs that wait.
    pub expected: Vec<(JobId, EstimateView)>,
}

impl Batch {
    /// Whether there is nothing to write.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.inputs.is_empty()
            && self.jobs.is_empty()
            && self.finished.is_empty()
            && self.learned.is_empty()
            && self.slowdowns.is_empty()
            && self.expected.is_empty()
    }
}

/// The open journal. One writer; readers open their own with [`Journal::reader`].
pub struct Journal {
    db: Connection,
    next_seq: i64,
    since_snapshot: u64,
    keep_inputs: u64,
    keep_jobs: u64,
}

impl Journal {
    /// Opens or creates the file.
    ///
    /// # Errors
    /// When the disk, the file or its version does not allow it.
    pub fn open(path: &Path, sync: Sync, keep_inputs: u64, keep_jobs: u64) -> Result<Self, JournalError> {
        let db = Connection::open(path).map_err(sql("opened"))?;
        let sync = match sync {
            Sync::Full => "FULL",
            Sync::Normal => "NORMAL",
        };
        db.busy_timeout(Duration::from_secs(5)).map_err(sql("opened"))?;
        db.execute_batch(&format!("PRAGMA journal_mode = WAL; PRAGMA synchronous = {sync};"))
            .map_err(sql("opened"))?;
        let version: u32 = db.query_row("PRAGMA user_version", [], |row| row.get(0)).map_err(sql("read"))?;
        let version = version as usize;
        if version > SCHEMA.len() {
            return Err(JournalError::TooNew { found: version, known: SCHEMA.len() });
        }
        for (i, step) in SCHEMA.iter().enumerate().skip(version) {
            db.execute_batch(&format!("BEGIN; {step} PRAGMA user_version = {}; COMMIT;", i + 1))
                .map_err(sql("brought up to date"))?;
        }
        let next_seq: i64 = db
            .query_row(
                "SELECT max((SELECT coalesce(max(seq), 0) FROM inputs), (SELECT coalesce(max(seq), 0) FROM snapshots))",
                [],
                |row| row.get(0),
            )
            .map_err(sql("read"))?;
        Ok(Self { db, next_seq: next_seq + 1, since_snapshot: 0, keep_inputs, keep_jobs })
    }

    /// The state that the journal describes, and its latest time.
    ///
    /// # Errors
    /// When an entry cannot be read or understood.
    pub fn recover(&mut self) -> Result<State, JournalError> {
        let snapshot: Option<(i64, String)> = self
            .db
            .query_row("SELECT seq, body FROM snapshots ORDER BY seq DESC LIMIT 1", [], |row| {
                Ok((row.get(0)?, row.get(1)?))
            })
            .optional()
            .map_err(sql("read"))?;
        let (from, mut state) = match snapshot {
            Some((seq, body)) => {
                let mut state: State = serde_json::from_str(&body)
                    .map_err(|e| JournalError::Entry { seq, why: e.to_string() })?;
                state.rebuild();
                (seq, state)
            }
            None => (0, State::default()),
        };
        let mut query = self
            .db
            .prepare("SELECT seq, at_ms, body FROM inputs WHERE seq > ?1 ORDER BY seq")
            .map_err(sql("read"))?;
        let mut rows = query.query([from]).map_err(sql("read"))?;
        let mut replayed = 0;
        while let Some(row) = rows.next().map_err(sql("read"))? {
            let read = |e| JournalError::Sqlite { doing: "read", source: e };
            let seq: i64 = row.get(0).map_err(read)?;
            let at: u64 = row.get(1).map_err(read)?;
            let body: String = row.get(2).map_err(read)?;
            let fail = |why: String| JournalError::Entry { seq, why };
            let input: Input = serde_json::from_str(&body).map_err(|e| fail(e.to_string()))?;
            state.apply(Millis(at), &input).map_err(|e| fail(e.to_string()))?;
            replayed += 1;
        }
        self.since_snapshot = replayed;
        Ok(state)
    }

    /// Writes a batch in one transaction: all of it is on disk afterwards, or nothing.
    ///
    /// # Errors
    /// When the disk does not take it (it may be full). Nothing was written then.
    pub fn commit(&mut self, batch: &Batch) -> Result<(), JournalError> {
        let failed = sql("written");
        let first_seq = self.next_seq;
        let mut next_seq = first_seq;
        let tx = self.db.transaction().map_err(&failed)?;
        {
            let mut insert = tx
                .prepare_cached("INSERT INTO inputs (seq, at_ms, body) VALUES (?1, ?2, ?3)")
                .map_err(&failed)?;
            for (at, input) in &batch.inputs {
                let body = to_json(next_seq, input)?;
                insert.execute(params![next_seq, at.0, body]).map_err(&failed)?;
                next_seq += 1;
            }
            for (id, job) in &batch.jobs {
                insert_job(&tx, *id, job)?;
            }
            let mut insert = tx
                .prepare_cached("INSERT OR REPLACE INTO history (id, uid, ended_ms, state, body) VALUES (?1, ?2, ?3, ?4, ?5)")
                .map_err(&failed)?;
            for finished in &batch.finished {
                let spec = &finished.job.spec;
                let body = to_json(next_seq, finished)?;
                insert
                    .execute(params![spec.id.0, spec.user.uid, finished.at.0, finished.state.as_str(), body])
                    .map_err(&failed)?;
            }
            for (id, estimate) in &batch.expected {
                tx.prepare_cached("UPDATE jobs SET estimate = ?2 WHERE id = ?1")
                    .map_err(&failed)?
                    .execute(params![id.0, to_json(0, estimate)?])
                    .map_err(&failed)?;
            }
            for row in &batch.learned {
                write_learned(&tx, row.table.as_str(), &row.key, row.body.as_deref())?;
            }
            for (key, body) in &batch.slowdowns {
                write_learned(&tx, SLOWDOWNS, key, body.as_deref())?;
            }
        }
        tx.commit().map_err(&failed)?;
        self.next_seq = next_seq;
        self.since_snapshot += batch.inputs.len() as u64;
        Ok(())
    }

    /// Folds old inputs into a snapshot, if enough have come since the last. Bounds the file.
    ///
    /// # Errors
    /// When the disk does not take it. The journal is as before then.
    pub fn fold(&mut self, state: &State) -> Result<(), JournalError> {
        // A snapshot costs time in proportion to the jobs, so it is taken less often when there are many.
        if self.since_snapshot < SNAPSHOT_EVERY.max(2 * state.jobs().len() as u64) {
            return Ok(());
        }
        let failed = sql("folded");
        let seq = self.next_seq - 1;
        let body = to_json(seq, state)?;
        let oldest = seq - i64::try_from(self.keep_inputs).unwrap_or(i64::MAX);
        let tx = self.db.transaction().map_err(&failed)?;
        tx.execute(
            "INSERT OR REPLACE INTO snapshots (seq, at_ms, body) VALUES (?1, ?2, ?3)",
            params![seq, state.now().0, body],
        )
        .map_err(&failed)?;
        tx.execute("DELETE FROM snapshots WHERE seq < ?1 AND seq < ?2", params![seq, oldest])
            .map_err(&failed)?;
        // Inputs older than the oldest snapshot kept cannot be replayed by anybody.
        tx.execute(
            "DELETE FROM inputs WHERE seq <= min(?1, (SELECT min(seq) FROM snapshots))",
            [oldest.max(0)],
        )
        .map_err(&failed)?;
        tx.execute(
            "DELETE FROM history WHERE id NOT IN (SELECT id FROM history ORDER BY ended_ms DESC LIMIT ?1)",
            [self.keep_jobs],
        )
        .map_err(&failed)?;
        let oldest_live = state.jobs().keys().next().copied().unwrap_or_else(|| state.next_id());
        tx.execute("DELETE FROM jobs WHERE id < ?1 AND id NOT IN (SELECT id FROM history)", [oldest_live.0])
            .map_err(&failed)?;
        tx.execute("DELETE FROM environments WHERE id NOT IN (SELECT environment FROM jobs)", [])
            .map_err(&failed)?;
        tx.commit().map_err(&failed)?;
        self.since_snapshot = 0;
        Ok(())
    }

    /// What was submitted as a job, environment included.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn job(&self, id: JobId) -> Result<Option<StoredJob>, JournalError> {
        stored_job(&self.db, id)
    }

    /// What was learned of memory, by table and key. Rows of tables that this version does not know
    /// are left where they are.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn learned(&self) -> Result<Vec<Row>, JournalError> {
        let failed = sql("read");
        let mut query =
            self.db.prepare("SELECT kind, key, body FROM memory ORDER BY kind, key").map_err(&failed)?;
        let mut rows = query.query([]).map_err(&failed)?;
        let mut found = Vec::new();
        while let Some(row) = rows.next().map_err(&failed)? {
            let kind: String = row.get(0).map_err(&failed)?;
            let Some(table) = Table::parse(&kind) else { continue };
            let (key, body) = (row.get(1).map_err(&failed)?, row.get(2).map_err(&failed)?);
            found.push(Row { table, key, body: Some(body) });
        }
        Ok(found)
    }

    /// What was learned of slowdowns, by key.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn slowdowns(&self) -> Result<Vec<(String, String)>, JournalError> {
        let failed = sql("read");
        let mut query =
            self.db.prepare("SELECT key, body FROM memory WHERE kind = ?1 ORDER BY key").map_err(&failed)?;
        let rows = query.query_map([SLOWDOWNS], |row| Ok((row.get(0)?, row.get(1)?))).map_err(&failed)?;
        rows.collect::<Result<_, _>>().map_err(&failed)
    }

    /// The environments of the jobs from `oldest` on: for each environment the jobs that have it, with their users.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn environments(&self, oldest: JobId) -> Result<Vec<Environment>, JournalError> {
        let failed = sql("read");
        let mut query = self
            .db
            .prepare("SELECT id, uid, environment FROM jobs WHERE id >= ?1 ORDER BY environment, id")
            .map_err(&failed)?;
        let mut bodies = self.db.prepare("SELECT body FROM environments WHERE id = ?1").map_err(&failed)?;
        let mut rows = query.query([oldest.0]).map_err(&failed)?;
        let mut found: Vec<Environment> = Vec::new();
        let mut last = None;
        while let Some(row) = rows.next().map_err(&failed)? {
            let (id, uid, of): (u64, u32, i64) =
                (row.get(0).map_err(&failed)?, row.get(1).map_err(&failed)?, row.get(2).map_err(&failed)?);
            if last != Some(of) {
                let body: String = bodies.query_row([of], |row| row.get(0)).map_err(&failed)?;
                let env = serde_json::from_str(&body)
                    .map_err(|e| JournalError::Entry { seq: of, why: e.to_string() })?;
                found.push(Environment { env, jobs: Vec::new() });
                last = Some(of);
            }
            if let Some(environment) = found.last_mut() {
                environment.jobs.push((JobId(id), uid));
            }
        }
        Ok(found)
    }

    /// A second, read-only connection for other threads.
    ///
    /// # Errors
    /// When the file cannot be opened.
    pub fn reader(path: &Path) -> Result<Reader, JournalError> {
        let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY | rusqlite::OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let db = Connection::open_with_flags(path, flags).map_err(sql("opened"))?;
        db.busy_timeout(Duration::from_secs(5)).map_err(sql("opened"))?;
        Ok(Reader { db })
    }
}

/// An environment, and the jobs that have it.
pub struct Environment {
    /// The variables.
    pub env: BTreeMap<String, String>,
    /// Jobs with their users.
    pub jobs: Vec<(JobId, u32)>,
}

/// A read-only view of the journal.
pub struct Reader {
    db: Connection,
}

impl Reader {
    /// What was submitted as a job, environment included.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn job(&self, id: JobId) -> Result<Option<StoredJob>, JournalError> {
        stored_job(&self.db, id)
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
    pub fn history(&self, since: Millis, limit: u64) -> Result<Vec<Finished>, JournalError> {
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

fn to_json(seq: i64, value: &impl Serialize) -> Result<String, JournalError> {
    serde_json::to_string(value).map_err(|e| JournalError::Entry { seq, why: e.to_string() })
}

fn write_learned(
    tx: &rusqlite::Transaction<'_>,
    kind: &str,
    key: &str,
    body: Option<&str>,
) -> Result<(), JournalError> {
    let failed = sql("written");
    match body {
        Some(body) => tx
            .prepare_cached("INSERT OR REPLACE INTO memory (kind, key, body) VALUES (?1, ?2, ?3)")
            .map_err(&failed)?
            .execute(params![kind, key, body]),
        None => tx
            .prepare_cached("DELETE FROM memory WHERE kind = ?1 AND key = ?2")
            .map_err(&failed)?
            .execute(params![kind, key]),
    }
    .map_err(&failed)?;
    Ok(())
}

fn insert_job(tx: &rusqlite::Transaction<'_>, id: JobId, job: &StoredJob) -> Result<(), JournalError> {
    let failed = sql("written");
    let body = to_json(0, &job.request.env)?;
    let mut hasher = DefaultHasher::new();
    body.hash(&mut hasher);
    let hash = hasher.finish().cast_signed();
    let known: Option<i64> = tx
        .prepare_cached("SELECT id FROM environments WHERE hash = ?1 AND body = ?2")
        .map_err(&failed)?
        .query_row(params![hash, body], |row| row.get(0))
        .optional()
        .map_err(&failed)?;
    let environment = match known {
        Some(id) => id,
        None => {
            tx.execute("INSERT INTO environments (hash, body) VALUES (?1, ?2)", params![hash, body])
                .map_err(&failed)?;
            tx.last_insert_rowid()
        }
    };
    let spec = SubmitRequest { env: BTreeMap::new(), ..job.request.clone() };
    let estimate = job.estimate.as_ref().map(|e| to_json(0, e)).transpose()?;
    tx.prepare_cached(
        "INSERT INTO jobs (id, uid, gid, environment, log, spec, estimate) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
    )
    .map_err(&failed)?
    .execute(params![id.0, job.uid, job.gid, environment, job.log, to_json(0, &spec)?, estimate])
    .map_err(&failed)?;
    Ok(())
}

fn stored_job(db: &Connection, id: JobId) -> Result<Option<StoredJob>, JournalError> {
    type Row = (u32, u32, String, String, String, Option<String>);
    let row: Option<Row> = db
        .prepare_cached(
            "SELECT uid, gid, log, spec, body, estimate FROM jobs JOIN environments ON environments.id = environment WHERE jobs.id = ?1",
        )
        .map_err(sql("read"))?
        .query_row([id.0], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?, row.get(5)?)))
        .optional()
        .map_err(sql("read"))?;
    let Some((uid, gid, log, spec, env, estimate)) = row else { return Ok(None) };
    let fail = |e: serde_json::Error| JournalError::Entry { seq: id.0.cast_signed(), why: e.to_string() };
    let mut request: SubmitRequest = serde_json::from_str(&spec).map_err(fail)?;
    request.env = serde_json::from_str(&env).map_err(fail)?;
    let estimate = estimate.map(|text| serde_json::from_str(&text)).transpose().map_err(fail)?;
    Ok(Some(StoredJob { request, uid, gid, log, estimate }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use carma_core::model::{Forecasts, NewJob, Request, User};

    fn submitted(id: u64) -> Input {
        Input::Submitted(Box::new(NewJob {
            id: JobId(id),
            user: User::new(1, "a"),
            name: "j".into(),
            command_key: 7,
            request: Request {
                gpus: 1,
                exclusive: false,
                sharing: None,
                thread_percent: None,
                time_limit: None,
                priority: 0,
                max_retries: None,
                max_slowdown: None,
            },
            forecasts: Forecasts::default(),
            profile: carma_core::model::Profile::default(),
            hold: false,
        }))
    }

    fn gpu() -> Input {
        Input::Inventory(vec![carma_core::reading::GpuInfo {
            uuid: "GPU-a".into(),
            index: 0,
            name: "x".into(),
            memory: carma_core::units::MiB::gib(40),
            kind: carma_core::reading::GpuKind::Virtual,
            has_activity: true,
        }])
    }

    fn open(dir: &tempfile::TempDir) -> Journal {
        Journal::open(&dir.path().join("j.db"), Sync::Normal, 100, 10).unwrap()
    }

    fn write(journal: &mut Journal, state: &mut State, inputs: impl IntoIterator<Item = Input>) {
        let mut batch = Batch::default();
        for input in inputs {
            let at = state.now() + Millis(1);
            batch.finished.extend(state.apply(at, &input).unwrap().finished);
            batch.inputs.push((at, input));
        }
        journal.commit(&batch).unwrap();
    }

    #[test]
    fn old_inputs_are_folded_and_nothing_changes() {
        let dir = tempfile::tempdir().unwrap();
        let (mut journal, mut state) = (open(&dir), State::default());
        write(&mut journal, &mut state, [gpu(), submitted(1)]);
        for _ in 0..2 {
            write(&mut journal, &mut state, (0..SNAPSHOT_EVERY).map(|_| Input::Tick));
            journal.fold(&state).unwrap();
        }
        write(&mut journal, &mut state, [submitted(2)]);
        drop(journal);
        let mut journal = open(&dir);
        assert_eq!(journal.recover().unwrap(), state);
        let inputs: u64 = journal.db.query_row("SELECT count(*) FROM inputs", [], |r| r.get(0)).unwrap();
        assert!(inputs <= SNAPSHOT_EVERY + 101, "{inputs} inputs are left");
    }

    #[test]
    fn environments_are_stored_once() {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = open(&dir);
        let env = BTreeMap::from([("A".to_owned(), "b".repeat(1000))]);
        let request = SubmitRequest { command: vec!["x".into()], env, ..SubmitRequest::default() };
        let job = |n: u64| {
            (
                JobId(n),
                StoredJob { request: request.clone(), uid: 1, gid: 1, log: n.to_string(), estimate: None },
            )
        };
        journal.commit(&Batch { jobs: (1..=50).map(job).collect(), ..Batch::default() }).unwrap();
        let rows: u64 = journal.db.query_row("SELECT count(*) FROM environments", [], |r| r.get(0)).unwrap();
        assert_eq!(rows, 1);
        assert_eq!(journal.job(JobId(50)).unwrap(), Some(job(50).1));
        assert_eq!(journal.job(JobId(51)).unwrap(), None);
        let of = journal.environments(JobId(30)).unwrap();
        assert_eq!((of.len(), of[0].jobs.len(), of[0].jobs[0]), (1, 21, (JobId(30), 1)));
        assert_eq!(of[0].env, request.env);
    }

    #[test]
    fn what_was_learned_is_written_with_the_batch_that_taught_it() {
        let dir = tempfile::tempdir().unwrap();
        let row = |key: &str, body: Option<&str>| Row {
            table: Table::Context,
            key: key.into(),
            body: body.map(str::to_owned),
        };
        let mut journal = open(&dir);
        let learned = vec![row("a", Some("1")), row("b", Some("2"))];
        journal.commit(&Batch { learned, ..Batch::default() }).unwrap();
        let learned = vec![row("a", None), row("b", Some("3"))];
        journal.commit(&Batch { learned, ..Batch::default() }).unwrap();
        // A batch that does not go through takes what it taught with it.
        let again = |n: u64| {
            let request = SubmitRequest::default();
            (JobId(n), StoredJob { request, uid: 1, gid: 1, log: String::new(), estimate: None })
        };
        let failing =
            Batch { jobs: vec![again(1), again(1)], learned: vec![row("c", Some("4"))], ..Batch::default() };
        assert!(journal.commit(&failing).is_err());
        drop(journal);
        assert_eq!(open(&dir).learned().unwrap(), [row("b", Some("3"))]);
    }

    #[test]
    fn a_file_of_the_first_version_opens() {
        let dir = tempfile::tempdir().unwrap();
        let db = Connection::open(dir.path().join("j.db")).unwrap();
        db.execute_batch(&format!("{} PRAGMA user_version = 1;", SCHEMA[0])).unwrap();
        db.execute_batch(
            "INSERT INTO environments VALUES (1, 0, '{}');
             INSERT INTO jobs VALUES (1, 1, 1, 1, '/log', '{\"command\":[\"x\"],\"cwd\":\"/\"}');",
        )
        .unwrap();
        drop(db);
        let mut journal = open(&dir);
        assert_eq!(journal.job(JobId(1)).unwrap().unwrap().request.command, ["x"]);
        assert!(journal.learned().unwrap().is_empty());
        let learned = vec![Row { table: Table::Ratio, key: "k".into(), body: Some("{}".into()) }];
        journal.commit(&Batch { learned, ..Batch::default() }).unwrap();
        assert_eq!(journal.learned().unwrap().len(), 1);
    }

    #[test]
    fn a_damaged_or_newer_file_is_refused_in_words() {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = open(&dir);
        journal.db.execute("INSERT INTO inputs VALUES (1, 5, '{\"no_such_input\": 1}')", []).unwrap();
        let error = journal.recover().unwrap_err().to_string();
        assert!(error.contains("entry 1") && error.contains("no_such_input"), "{error}");
        journal.db.execute_batch("PRAGMA user_version = 99").unwrap();
        drop(journal);
        let error = Journal::open(&dir.path().join("j.db"), Sync::Normal, 1, 1).err().unwrap().to_string();
        assert!(error.contains("format 99"), "{error}");
    }
}

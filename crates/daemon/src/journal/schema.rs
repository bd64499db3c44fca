//! The tables, and how older files are brought up to date.

use super::{JournalError, sql, sums};
use rusqlite::{Connection, OptionalExtension, params};

/// The schema, one step a version (`PRAGMA user_version`). Steps are only ever added.
pub(super) const SCHEMA: &[&str] = &[
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
    // The sums of rows that are there already are computed in the same transaction.
    "
    ALTER TABLE inputs ADD COLUMN sum INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE snapshots ADD COLUMN sum INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE environments ADD COLUMN sum INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE jobs ADD COLUMN sum INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE jobs ADD COLUMN estimate_sum INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE history ADD COLUMN sum INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE memory ADD COLUMN sum INTEGER NOT NULL DEFAULT 0;
    CREATE TABLE meta (one INTEGER PRIMARY KEY CHECK (one = 1), journal TEXT NOT NULL, seq INTEGER NOT NULL,
        next_job INTEGER NOT NULL, next_environment INTEGER NOT NULL, jobs INTEGER NOT NULL,
        jobs_sum INTEGER NOT NULL, ended INTEGER NOT NULL, ended_sum INTEGER NOT NULL,
        sum INTEGER NOT NULL) STRICT;
    CREATE TABLE lives (started_ms INTEGER PRIMARY KEY, life TEXT NOT NULL, host TEXT NOT NULL,
        boot TEXT NOT NULL, sum INTEGER NOT NULL) STRICT;
",
];

/// The version from which on there are sums and a row about the whole.
pub(super) const WITH_SUMS: usize = 3;

/// What is known of the journal as a whole: one row, written with each commit, so that rows that are missing are
/// noticed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Meta {
    /// Name of the journal: 128 random bits, in hex, drawn when it is made.
    pub(super) id: String,
    /// Number of the last input.
    pub(super) seq: i64,
    /// No job has this number or a larger one.
    pub(super) next_job: u64,
    /// No environment ever had this number or a larger one. Numbers are not used again: a job of which the environment
    /// was deleted must not get another's.
    pub(super) next_environment: i64,
    /// Rows of `jobs`, and the sum of their sums.
    pub(super) jobs: Tally,
    /// Rows of `history`, and the sum of their sums.
    pub(super) ended: Tally,
}

/// How many rows a table has, and the sum of their sums: a row that is deleted or comes back from the past shows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Tally {
    /// Number of rows of the table.
    pub(super) rows: i64,
    /// Sum of sums.
    pub(super) sum: i64,
}

impl Tally {
    /// What a table holds.
    pub(super) fn of(db: &Connection, table: &str) -> rusqlite::Result<Self> {
        let query = format!("SELECT count(*), coalesce(sum(sum), 0) FROM {table}");
        db.query_row(&query, [], |row| Ok(Self { rows: row.get(0)?, sum: row.get(1)? }))
    }

    /// One row more.
    pub(super) const fn add(&mut self, sum: i64) {
        self.rows += 1;
        self.sum += sum;
    }

    /// One row less.
    pub(super) const fn remove(&mut self, sum: i64) {
        self.rows -= 1;
        self.sum -= sum;
    }
}

impl Meta {
    fn numbers(&self) -> [i64; 7] {
        [
            self.seq,
            self.next_job.cast_signed(),
            self.next_environment,
            self.jobs.rows,
            self.jobs.sum,
            self.ended.rows,
            self.ended.sum,
        ]
    }

    /// Reads the row. `None`: it is not there, or its own sum does not fit.
    pub(super) fn read(db: &Connection) -> rusqlite::Result<Option<Self>> {
        let row = db
            .query_row(
                "SELECT journal, seq, next_job, next_environment, jobs, jobs_sum, ended, ended_sum, sum FROM meta",
                [],
                |row| {
                    let meta = Self {
                        id: row.get(0)?,
                        seq: row.get(1)?,
                        next_job: row.get::<_, i64>(2)?.cast_unsigned(),
                        next_environment: row.get(3)?,
                        jobs: Tally { rows: row.get(4)?, sum: row.get(5)? },
                        ended: Tally { rows: row.get(6)?, sum: row.get(7)? },
                    };
                    Ok((meta, row.get::<_, i64>(8)?))
                },
            )
            .optional()?;
        Ok(row.and_then(|(meta, sum)| (sums::meta(&meta.id, &meta.numbers()) == sum).then_some(meta)))
    }

    /// Writes the row.
    pub(super) fn write(&self, db: &Connection) -> rusqlite::Result<()> {
        let [seq, next_job, next_environment, jobs, jobs_sum, ended, ended_sum] = self.numbers();
        let sum = sums::meta(&self.id, &self.numbers());
        let query = "INSERT OR REPLACE INTO meta (one, journal, seq, next_job, next_environment, jobs, jobs_sum, ended, \
                     ended_sum, sum) VALUES (1, ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)";
        db.prepare_cached(query)?.execute(params![
            self.id,
            seq,
            next_job,
            next_environment,
            jobs,
            jobs_sum,
            ended,
            ended_sum,
            sum
        ])?;
        Ok(())
    }

    /// Counts what is there. `id`: the name to go on with, or a new one.
    pub(super) fn count(db: &Connection, id: Option<String>) -> rusqlite::Result<Self> {
        let number = |query: &str| db.query_row(query, [], |row| row.get::<_, i64>(0));
        let id = match id {
            Some(id) => id,
            None => db.query_row("SELECT lower(hex(randomblob(16)))", [], |row| row.get(0))?,
        };
        Ok(Self {
            id,
            seq: number(
                "SELECT max((SELECT coalesce(max(seq), 0) FROM inputs), (SELECT coalesce(max(seq), 0) FROM snapshots))",
            )?,
            next_job: number(
                "SELECT 1 + max((SELECT coalesce(max(id), 0) FROM jobs), (SELECT coalesce(max(id), 0) FROM history))",
            )?
            .cast_unsigned(),
            next_environment: number("SELECT 1 + coalesce(max(id), 0) FROM environments")?,
            jobs: Tally::of(db, "jobs")?,
            ended: Tally::of(db, "history")?,
        })
    }
}

/// The version of a file.
pub(super) fn version(db: &Connection) -> rusqlite::Result<usize> {
    db.query_row("PRAGMA user_version", [], |row| row.get::<_, u32>(0)).map(|version| version as usize)
}

/// Brings a file up to date, one transaction a step.
pub(super) fn migrate(db: &mut Connection) -> Result<(), JournalError> {
    let failed = sql("brought up to date");
    let found = version(db).map_err(sql("read"))?;
    if found > SCHEMA.len() {
        return Err(JournalError::TooNew { found, known: SCHEMA.len() });
    }
    for (i, step) in SCHEMA.iter().enumerate().skip(found) {
        let tx = db.transaction().map_err(&failed)?;
        tx.execute_batch(step).map_err(&failed)?;
        if i + 1 == WITH_SUMS {
            sums::fill(&tx)?;
            Meta::count(&tx, None).and_then(|meta| meta.write(&tx)).map_err(&failed)?;
        }
        tx.pragma_update(None, "user_version", i + 1).map_err(&failed)?;
        tx.commit().map_err(&failed)?;
    }
    Ok(())
}

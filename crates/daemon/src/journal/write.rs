//! What is written to the journal.

use super::schema::Meta;
use super::{
    Batch, Journal, JournalError, Keep, RUN_TIMES, SLOWDOWNS, StoredJob, ended, head, sql, sums, to_json,
    with_ending,
};
use carma_api::wire::SubmitRequest;
use carma_core::model::{Finished, JobId};
use carma_core::state::State;
use carma_core::units::Millis;
use rusqlite::{OptionalExtension, Transaction, params};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Inputs between snapshots at least.
pub(super) const SNAPSHOT_EVERY: u64 = 20_000;

/// How often environments are deleted at most: that is a commit of its own.
const SWEEP_PACE: Duration = Duration::from_secs(1);
/// How many at a time.
const MOST_SWEPT: usize = 4096;
/// How often a piece of free space goes back to the disk while there is much.
const SHRINK_PACE: Duration = Duration::from_millis(100);
/// How many pages at a time: 4 MiB.
const SHRINK_PAGES: u64 = 1024;
/// Free pages that are much, however large the file is: 8 MiB.
const FREE_ANYHOW: u64 = 2048;
/// Free pages that stay.
const FREE_LEFT: u64 = 256;
/// Pages from which on a file that is mostly free is written anew at the start: 32 MiB.
const COMPACT_FROM: u64 = 8192;

impl Journal {
    /// Writes a batch in one transaction: all of it is on disk afterwards, or nothing.
    ///
    /// # Errors
    /// When the disk does not take it (it may be full). Nothing was written then.
    /// [`JournalError::Gone`]: it was written, and to a file that no later daemon will find.
    pub fn commit(&mut self, batch: &Batch) -> Result<(), JournalError> {
        match self.try_commit(batch) {
            Err(e) if e.is_full() && self.reserve.release(&self.log()) => self.try_commit(batch)?,
            other => other?,
        }
        if !batch.jobs.is_empty()
            && let Err(e) = self.head.accepted(&self.meta)
        {
            tracing::warn!("how far the journal goes cannot be noted beside it: {e}");
        }
        self.still_there()
    }

    /// Where SQLite writes first.
    pub(super) fn log(&self) -> PathBuf {
        with_ending(&self.path, "-wal")
    }

    fn try_commit(&mut self, batch: &Batch) -> Result<(), JournalError> {
        let failed = sql("written");
        let mut meta = self.meta.clone();
        let tx = self.db.transaction().map_err(&failed)?;
        {
            let mut insert = tx
                .prepare_cached("INSERT INTO inputs (seq, at_ms, body, sum) VALUES (?1, ?2, ?3, ?4)")
                .map_err(&failed)?;
            for (at, input) in &batch.inputs {
                let seq = meta.seq + 1;
                let body = to_json(seq, input)?;
                let sum = sums::input(seq, *at, &body);
                insert.execute(params![seq, at.0, body, sum]).map_err(&failed)?;
                meta.seq = seq;
            }
        }
        let mut new = Vec::new();
        for (id, job) in &batch.jobs {
            let (environment, bytes) = insert_job(&tx, &mut meta, *id, job)?;
            new.push((*id, environment, bytes));
        }
        let mut over = Vec::new();
        for finished in &batch.finished {
            over.push(insert_ended(&tx, &mut meta, finished)?);
        }
        for (id, estimate) in &batch.expected {
            let estimate = to_json(0, estimate)?;
            let sum = sums::estimate(id.0, Some(&estimate));
            tx.prepare_cached("UPDATE jobs SET estimate = ?2, estimate_sum = ?3 WHERE id = ?1")
                .and_then(|mut update| update.execute(params![id.0, estimate, sum]))
                .map_err(&failed)?;
        }
        for row in &batch.learned {
            write_learned(&tx, row.table.as_str(), &row.key, row.body.as_deref()).map_err(&failed)?;
        }
        for (kind, rows) in [(SLOWDOWNS, &batch.slowdowns), (RUN_TIMES, &batch.run_times)] {
            for (key, body) in rows {
                write_learned(&tx, kind, key, body.as_deref()).map_err(&failed)?;
            }
        }
        meta.write(&tx).map_err(&failed)?;
        tx.commit().map_err(&failed)?;
        self.meta = meta;
        for (id, environment, bytes) in new {
            self.environments.submitted(id, environment, bytes);
        }
        for (finished, bytes) in batch.finished.iter().zip(over) {
            let spec = &finished.job.spec;
            self.environments.ended(spec.id, spec.user.uid);
            self.ended.add(spec.id, spec.user.uid, bytes);
        }
        self.since_snapshot += batch.inputs.len() as u64;
        Ok(())
    }

    /// Folds old inputs into a snapshot, if enough have come since the last. Bounds the file. Returns whether it did.
    ///
    /// # Errors
    /// When the disk does not take it. The journal is as before then.
    pub fn fold(&mut self, state: &State) -> Result<bool, JournalError> {
        // A snapshot costs time in proportion to the jobs, so it is taken less often when there are many.
        if self.since_snapshot < SNAPSHOT_EVERY.max(2 * state.jobs().len() as u64) {
            return Ok(false);
        }
        self.snapshot(state).map(|()| true)
    }

    /// Takes a snapshot now. At a polite stop, so that another version of carma need not replay what this one decided.
    ///
    /// # Errors
    /// When the disk does not take it. The journal is as before then.
    pub fn snapshot(&mut self, state: &State) -> Result<(), JournalError> {
        if self.since_snapshot == 0 {
            return Ok(());
        }
        let seq = self.meta.seq;
        let body = to_json(seq, state)?;
        let oldest = seq - i64::try_from(self.settings.inputs).unwrap_or(i64::MAX);
        let live = to_json(seq, &state.jobs().keys().collect::<Vec<_>>())?;
        self.ended.trim();
        let doomed = self.ended.doomed(usize::MAX);
        let mut meta = self.meta.clone();
        let mut fold = || -> rusqlite::Result<()> {
            let tx = self.db.transaction()?;
            let (at, sum) = (state.now(), sums::snapshot(seq, state.now(), &body));
            tx.execute(
                "INSERT OR REPLACE INTO snapshots (seq, at_ms, body, sum) VALUES (?1, ?2, ?3, ?4)",
                params![seq, at.0, body, sum],
            )?;
            tx.execute("DELETE FROM snapshots WHERE seq < ?1 AND seq < ?2", params![seq, oldest])?;
            // Inputs older than the oldest snapshot kept cannot be replayed.
            tx.execute(
                "DELETE FROM inputs WHERE seq <= min(?1, (SELECT min(seq) FROM snapshots))",
                [oldest.max(0)],
            )?;
            ended::forget(&tx, &mut meta, &doomed)?;
            // What an older carma or a repair left. Later numbers are of jobs that the state may not know yet.
            tx.prepare(
                "DELETE FROM jobs WHERE id < ?1 AND id NOT IN (SELECT id FROM history) \
                 AND id NOT IN (SELECT value FROM json_each(?2)) RETURNING sum",
            )?
            .query_map(params![state.next_id().0, live], |row| row.get(0))?
            .try_for_each(|sum| sum.map(|sum| meta.jobs.remove(sum)))?;
            meta.write(&tx)?;
            tx.commit()
        };
        fold().map_err(sql("folded"))?;
        self.meta = meta;
        self.ended.forgotten(doomed.len());
        self.since_snapshot = 0;
        self.shrinking = true;
        Ok(())
    }

    /// How much is kept of jobs that are over.
    #[must_use]
    pub const fn keeps(&self) -> Keep {
        self.settings.keep
    }

    /// How long until [`Self::tend`] has something to do, if nothing else happens.
    #[must_use]
    pub fn due(&self) -> Option<Duration> {
        let space = self.has_space().then(|| self.pace_of_space().saturating_sub(self.swept.elapsed()));
        [space, self.head.due(&self.meta), self.reserve.due()].into_iter().flatten().min()
    }

    /// Whether there is space that can be given back.
    fn has_space(&self) -> bool {
        self.shrinking || self.environments.has_doomed() || self.ended.has_doomed()
    }

    /// How long from one piece of space that is given back to the next.
    const fn pace_of_space(&self) -> Duration {
        if self.shrinking { SHRINK_PACE } else { SWEEP_PACE }
    }

    /// Does a little of what is not urgent: notes how far the journal goes, gives space back, takes the reserve again.
    ///
    /// # Errors
    /// When something that must stay is gone. Else the log says what failed; it is tried again.
    pub fn tend(&mut self) -> Result<(), JournalError> {
        self.still_there()?;
        if self.head.due(&self.meta) == Some(Duration::ZERO)
            && let Err(e) = self.head.write(&self.db, &self.meta)
        {
            tracing::debug!("how far the journal goes cannot be noted: {e}");
        }
        if self.reserve.due() == Some(Duration::ZERO) {
            self.reserve.retake();
        }
        if self.has_space() && self.swept.elapsed() >= self.pace_of_space() {
            if let Err(e) = self.sweep() {
                tracing::warn!("space of the journal cannot be given back: {e}; it is tried again");
            }
            self.swept = Instant::now();
        }
        Ok(())
    }

    /// Deletes jobs that are forgotten and environments that no job uses, and gives a piece of the free space back to the disk.
    fn sweep(&mut self) -> rusqlite::Result<()> {
        let doomed = self.environments.take_doomed(MOST_SWEPT);
        let forgotten = self.ended.doomed(MOST_SWEPT);
        if !doomed.is_empty() || !forgotten.is_empty() {
            let mut meta = self.meta.clone();
            let mut delete = || -> rusqlite::Result<()> {
                let tx = self.db.transaction()?;
                {
                    let mut delete = tx.prepare_cached("DELETE FROM environments WHERE id = ?1")?;
                    doomed.iter().try_for_each(|id| delete.execute([id]).map(drop))?;
                }
                if !forgotten.is_empty() {
                    ended::forget(&tx, &mut meta, &forgotten)?;
                    meta.write(&tx)?;
                }
                tx.commit()
            };
            if let Err(e) = delete() {
                self.environments.put_back(doomed);
                return Err(e);
            }
            self.meta = meta;
            self.ended.forgotten(forgotten.len());
        }
        let (pages, free) = self.pages()?;
        // What is free now and then is used again; a large part is not.
        let enough = if self.shrinking { FREE_LEFT } else { (pages / 4).max(FREE_ANYHOW) };
        self.shrinking = free > enough;
        if self.shrinking {
            let mut give = self.db.prepare(&format!("PRAGMA incremental_vacuum({SHRINK_PAGES})"))?;
            let mut rows = give.query([])?;
            while rows.next()?.is_some() {}
            drop(rows);
            drop(give);
            head::checkpoint(&self.db)?;
            let left = self.pages()?.1;
            // A file of an older carma gives nothing back but as a whole: see `compact`.
            self.shrinking = left < free && left > FREE_LEFT;
        }
        Ok(())
    }

    /// Pages of the file, and how many of them are free.
    fn pages(&self) -> rusqlite::Result<(u64, u64)> {
        let number = |pragma: &str| self.db.query_row(pragma, [], |row| row.get::<_, u64>(0));
        Ok((number("PRAGMA page_count")?, number("PRAGMA freelist_count")?))
    }

    /// Writes the file anew where most of it is free. Only at the start: it takes seconds.
    pub(super) fn compact(&mut self) {
        let compact = || -> rusqlite::Result<()> {
            let (pages, free) = self.pages()?;
            if pages > COMPACT_FROM && free > pages / 2 {
                tracing::info!("the journal has {} MiB of free space, which go back to the disk", free / 256);
                self.db.execute_batch("PRAGMA auto_vacuum = INCREMENTAL; VACUUM;")?;
                head::checkpoint(&self.db)?;
            }
            Ok(())
        };
        if let Err(e) = compact() {
            tracing::warn!("the journal cannot be made smaller: {e}");
        }
    }

    /// Says that a life of the daemon begins, which must be later than everything in the journal: see
    /// [`Self::latest`].
    ///
    /// # Errors
    /// When it is not, or the disk does not take it.
    pub fn begin_life(
        &mut self,
        started: Millis,
        life: &str,
        host: &str,
        boot: &str,
    ) -> Result<(), JournalError> {
        let latest = self.latest()?;
        if started <= latest {
            return Err(JournalError::NotLater { started: started.0, latest: latest.0 });
        }
        let sum = sums::life(started, life, host, boot);
        self.db
            .execute(
                "INSERT INTO lives (started_ms, life, host, boot, sum) VALUES (?1, ?2, ?3, ?4, ?5)",
                params![started.0, life, host, boot, sum],
            )
            .map_err(sql("written"))?;
        Ok(())
    }

    /// Forgets the lives that began before a time.
    ///
    /// # Errors
    /// When the disk does not take it.
    pub fn forget_lives(&mut self, before: Millis) -> Result<(), JournalError> {
        self.db.execute("DELETE FROM lives WHERE started_ms < ?1", [before.0]).map_err(sql("written"))?;
        Ok(())
    }

    /// The latest time that the journal has, of an input, a snapshot or the beginning of a life.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn latest(&self) -> Result<Millis, JournalError> {
        // Times rise with the numbers.
        let query = "SELECT max(coalesce((SELECT at_ms FROM inputs ORDER BY seq DESC LIMIT 1), 0), \
                            coalesce((SELECT at_ms FROM snapshots ORDER BY seq DESC LIMIT 1), 0), \
                            coalesce((SELECT max(started_ms) FROM lives), 0))";
        self.db.query_row(query, [], |row| row.get(0)).map(Millis).map_err(sql("read"))
    }
}

fn write_learned(tx: &Transaction<'_>, kind: &str, key: &str, body: Option<&str>) -> rusqlite::Result<()> {
    match body {
        Some(body) => tx
            .prepare_cached("INSERT OR REPLACE INTO memory (kind, key, body, sum) VALUES (?1, ?2, ?3, ?4)")?
            .execute(params![kind, key, body, sums::learned(kind, key, body)])?,
        None => tx
            .prepare_cached("DELETE FROM memory WHERE kind = ?1 AND key = ?2")?
            .execute(params![kind, key])?,
    };
    Ok(())
}

/// Returns what the job takes, bytes.
fn insert_ended(tx: &Transaction<'_>, meta: &mut Meta, finished: &Finished) -> Result<u64, JournalError> {
    let spec = &finished.job.spec;
    let body = to_json(meta.seq, finished)?;
    let state = finished.state.as_str();
    let sum = sums::ended(spec.id.0, spec.user.uid, finished.at, state, &body);
    let mut write = || -> rusqlite::Result<u64> {
        let row = params![spec.id.0, spec.user.uid, finished.at.0, state, body, sum];
        let insert = "INTO history (id, uid, ended_ms, state, body, sum) VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
        if tx.prepare_cached(&format!("INSERT OR IGNORE {insert}"))?.execute(row)? == 0 {
            // After a repair the history may know of an end that the state did not.
            let old: i64 =
                tx.query_row("SELECT sum FROM history WHERE id = ?1", [spec.id.0], |row| row.get(0))?;
            tx.execute(&format!("INSERT OR REPLACE {insert}"), row)?;
            meta.ended.sum += sum - old;
        } else {
            meta.ended.add(sum);
        }
        ended::bytes_of(tx, spec.id)
    };
    write().map_err(sql("written"))
}

/// Returns the number of the environment, and its bytes.
fn insert_job(
    tx: &Transaction<'_>,
    meta: &mut Meta,
    id: JobId,
    job: &StoredJob,
) -> Result<(i64, u64), JournalError> {
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
        Some(known) => known,
        None => {
            let new = meta.next_environment;
            tx.prepare_cached("INSERT INTO environments (id, hash, body, sum) VALUES (?1, ?2, ?3, ?4)")
                .and_then(|mut insert| {
                    insert.execute(params![new, hash, body, sums::environment(new, hash, &body)])
                })
                .map_err(&failed)?;
            meta.next_environment = new + 1;
            new
        }
    };
    let spec = SubmitRequest { env: BTreeMap::new(), ..job.request.clone() };
    let spec = to_json(0, &spec)?;
    let estimate = job.estimate.as_ref().map(|e| to_json(0, e)).transpose()?;
    let sum = sums::job(id.0, job.uid, job.gid, environment, &job.log, &spec);
    let estimate_sum = sums::estimate(id.0, estimate.as_deref());
    let row = params![id.0, job.uid, job.gid, environment, job.log, spec, estimate, sum, estimate_sum];
    tx.prepare_cached(
        "INSERT INTO jobs (id, uid, gid, environment, log, spec, estimate, sum, estimate_sum) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
    )
    .and_then(|mut insert| insert.execute(row))
    .map_err(&failed)?;
    meta.jobs.add(sum);
    meta.next_job = meta.next_job.max(id.0 + 1);
    Ok((environment, body.len() as u64))
}

//! What the journal has of jobs that are over, by user: it keeps so many jobs, and so many bytes. Beyond, the oldest of the
//! user who has most go. With a job goes its log, and one user's jobs must not cost another's.

use super::schema::Meta;
use super::{JournalError, sql};
use carma_core::model::JobId;
use carma_core::state::State;
use rusqlite::{Connection, OptionalExtension};
use std::collections::{BTreeMap, VecDeque};

/// How much is kept of jobs that are over.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Keep {
    /// Jobs.
    pub jobs: u64,
    /// Bytes of what was submitted, what was expected and what became of them.
    pub bytes: u64,
}

/// Bytes that are deleted at a time: what overflows a page is read for that.
const AT_ONCE: u64 = 64 << 20;

/// What a job takes in `history` and `jobs`, bytes. The lengths are in the heads of the rows: nothing long is read.
const BYTES: &str = "octet_length(history.body) + coalesce(octet_length(jobs.log) + octet_length(jobs.spec) \
                     + coalesce(octet_length(jobs.estimate), 0), 0) AS bytes";
const FROM: &str = "FROM history LEFT JOIN jobs ON jobs.id = history.id";

/// What a job that is over takes, bytes.
pub(super) fn bytes_of(db: &Connection, job: JobId) -> rusqlite::Result<u64> {
    db.prepare_cached(&format!("SELECT {BYTES} {FROM} WHERE history.id = ?1"))?
        .query_row([job.0], |row| row.get(0))
}

/// How many jobs are over, and what they take.
pub(super) fn all(db: &Connection) -> rusqlite::Result<Keep> {
    let query = format!("SELECT count(*), coalesce(sum(bytes), 0) FROM (SELECT {BYTES} {FROM})");
    db.query_row(&query, [], |row| Ok(Keep { jobs: row.get(0)?, bytes: row.get(1)? }))
}

/// Deletes all that there is of jobs that are over.
pub(super) fn forget(db: &Connection, meta: &mut Meta, jobs: &[JobId]) -> rusqlite::Result<()> {
    for (table, tally) in [("jobs", &mut meta.jobs), ("history", &mut meta.ended)] {
        let mut delete = db.prepare_cached(&format!("DELETE FROM {table} WHERE id = ?1 RETURNING sum"))?;
        for job in jobs {
            if let Some(sum) = delete.query_row([job.0], |row| row.get(0)).optional()? {
                tally.remove(sum);
            }
        }
    }
    Ok(())
}

/// The jobs that are over.
#[derive(Debug, Default)]
pub(super) struct Ended {
    keep: Keep,
    has: Keep,
    users: BTreeMap<u32, OfUser>,
    /// They are forgotten, and still in the file, with their bytes.
    doomed: VecDeque<(JobId, u64)>,
}

#[derive(Debug, Default)]
struct OfUser {
    /// The oldest first, with their bytes.
    jobs: VecDeque<(JobId, u64)>,
    bytes: u64,
}

impl Ended {
    pub(super) fn new(keep: Keep) -> Self {
        Self { keep, ..Self::default() }
    }

    /// Looks at all that is there.
    pub(super) fn find(db: &Connection, state: &State, keep: Keep) -> Result<Self, JournalError> {
        let mut found = Self::new(keep);
        let mut read = || -> rusqlite::Result<()> {
            let query =
                format!("SELECT history.id, history.uid, {BYTES} {FROM} ORDER BY ended_ms, history.id");
            let mut query = db.prepare(&query)?;
            let mut rows = query.query([])?;
            while let Some(row) = rows.next()? {
                let job = JobId(row.get(0)?);
                // After a repair the history may know of an end that the state does not.
                if state.job(job).is_none() {
                    found.add(job, row.get(1)?, row.get(2)?);
                }
            }
            Ok(())
        };
        read().map_err(sql("read"))?;
        Ok(found)
    }

    /// A job of this user's is over. Bytes that are too many go soon, jobs with the next snapshot.
    pub(super) fn add(&mut self, job: JobId, uid: u32, bytes: u64) {
        let user = self.users.entry(uid).or_default();
        user.jobs.push_back((job, bytes));
        user.bytes += bytes;
        self.has.jobs += 1;
        self.has.bytes += bytes;
        while self.has.bytes > self.keep.bytes && self.drop_oldest(|user| user.bytes) {}
    }

    /// Drops jobs that are too many.
    pub(super) fn trim(&mut self) {
        while self.has.jobs > self.keep.jobs && self.drop_oldest(|user| user.jobs.len() as u64) {}
    }

    /// Drops the oldest job of the user who has most. Returns whether there was one.
    fn drop_oldest(&mut self, has: impl Fn(&OfUser) -> u64) -> bool {
        let Some((uid, user)) = self.users.iter_mut().max_by_key(|(_, user)| has(user)) else { return false };
        let uid = *uid;
        if let Some((job, bytes)) = user.jobs.pop_front() {
            user.bytes -= bytes;
            self.has.jobs -= 1;
            self.has.bytes -= bytes;
            self.doomed.push_back((job, bytes));
        }
        if user.jobs.is_empty() {
            self.users.remove(&uid);
        }
        true
    }

    /// Whether there is something to delete.
    pub(super) fn has_doomed(&self) -> bool {
        !self.doomed.is_empty()
    }

    /// The first of those to be deleted: at most so many, and not more bytes than are deleted in a moment.
    pub(super) fn doomed(&self, most: usize) -> Vec<JobId> {
        let mut before = 0;
        let piece = self.doomed.iter().take(most).take_while(|(_, bytes)| {
            let more = before < AT_ONCE;
            before += bytes;
            more
        });
        piece.map(|(job, _)| *job).collect()
    }

    /// The first of them are deleted.
    pub(super) fn forgotten(&mut self, jobs: usize) {
        self.doomed.drain(..jobs);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_user_s_bytes_cost_another_nothing() {
        let mut ended = Ended::new(Keep { jobs: 6, bytes: 1000 });
        ended.add(JobId(1), 1, 10);
        for job in 2..=20 {
            ended.add(JobId(job), 2, 300);
        }
        assert_eq!(ended.doomed(100), (2..=17).map(JobId).collect::<Vec<_>>());
        assert_eq!(ended.doomed(2), [2, 3].map(JobId));
        for job in 21..=26 {
            ended.add(JobId(job), 1, 1);
        }
        ended.forgotten(16);
        assert!(!ended.has_doomed());
        ended.trim();
        assert_eq!(ended.doomed(100), [1, 21, 22, 23].map(JobId));
        assert_eq!(ended.has, Keep { jobs: 6, bytes: 903 });
        // Large ones are deleted in pieces: three small ones go before two of them.
        for job in 30..40 {
            ended.add(JobId(job), 2, AT_ONCE / 2 + 1);
        }
        ended.forgotten(4);
        assert_eq!(ended.doomed(100).len(), 5, "{ended:?}");
    }
}

//! Which environments are needed: those of jobs that are not over, and those of the latest that are, for `requeue`.
//! They are most of the file: one may have megabytes, and each is stored once for all jobs that share it. Where they are too
//! many, those go whose user has most of them: what one user's jobs leave behind costs no other user a `requeue`.

use super::{JournalError, sql};
use carma_core::model::JobId;
use carma_core::state::State;
use rusqlite::Connection;
use std::collections::{BTreeMap, VecDeque};

/// What the environments of jobs that are over may take together, bytes.
const MOST_KEPT: u64 = 16 << 20;

/// Counts the jobs that need each environment.
#[derive(Debug, Default)]
pub(super) struct Environments {
    /// Of how many jobs that are over they are kept.
    most: usize,
    /// Of each job that is not over.
    of: BTreeMap<JobId, i64>,
    /// Jobs that are not over, and bytes, of each environment.
    live: BTreeMap<i64, Users>,
    /// Of the latest jobs that are over, by user.
    kept: BTreeMap<u32, Kept>,
    /// No job needed them when they came here.
    doomed: Vec<i64>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Users {
    jobs: usize,
    bytes: u64,
}

/// Of a user's jobs that are over.
#[derive(Debug, Default)]
struct Kept {
    /// Of each job, the oldest first.
    done: VecDeque<i64>,
    /// The same, of each environment.
    by: BTreeMap<i64, Users>,
    bytes: u64,
}

impl Kept {
    fn add(&mut self, environment: i64, bytes: u64) {
        self.done.push_back(environment);
        let users = self.by.entry(environment).or_insert_with(|| {
            self.bytes += bytes;
            Users { jobs: 0, bytes }
        });
        users.jobs += 1;
    }

    /// Drops the oldest. Returns its environment, where no other job of the user's has it.
    fn drop_oldest(&mut self) -> Option<i64> {
        let oldest = self.done.pop_front()?;
        let users = self.by.get_mut(&oldest)?;
        users.jobs -= 1;
        if users.jobs > 0 {
            return None;
        }
        self.bytes -= users.bytes;
        self.by.remove(&oldest);
        Some(oldest)
    }
}

impl Environments {
    /// Looks at all that is there. `most`: of how many jobs that are over they are kept.
    pub(super) fn find(db: &Connection, state: &State, most: usize) -> Result<Self, JournalError> {
        let pairs = |query: &str| -> rusqlite::Result<Vec<(i64, i64)>> {
            let mut query = db.prepare(query)?;
            let rows = query.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
            rows.collect()
        };
        let failed = sql("read");
        let sizes: BTreeMap<i64, i64> =
            pairs("SELECT id, octet_length(body) FROM environments").map_err(&failed)?.into_iter().collect();
        let of: BTreeMap<i64, i64> =
            pairs("SELECT id, environment FROM jobs").map_err(&failed)?.into_iter().collect();
        let ended = pairs("SELECT id, uid FROM history ORDER BY ended_ms").map_err(&failed)?;
        let mut found = Self { most, ..Self::default() };
        let bytes = |environment: i64| sizes.get(&environment).map_or(0, |bytes| bytes.unsigned_abs());
        for job in state.jobs().keys() {
            if let Some(environment) = of.get(&job.0.cast_signed()) {
                found.submitted(*job, *environment, bytes(*environment));
            }
        }
        for (job, uid) in ended {
            let live = found.of.contains_key(&JobId(job.cast_unsigned()));
            if let Some(environment) = of.get(&job).filter(|e| !live && sizes.contains_key(e)) {
                found.keep(u32::try_from(uid).unwrap_or_default(), *environment, bytes(*environment));
            }
        }
        found.doomed = sizes.into_keys().collect();
        Ok(found)
    }

    /// A job was submitted with an environment.
    pub(super) fn submitted(&mut self, job: JobId, environment: i64, bytes: u64) {
        self.of.insert(job, environment);
        let users = self.live.entry(environment).or_default();
        users.jobs += 1;
        users.bytes = bytes;
    }

    /// A job of this user's is over.
    pub(super) fn ended(&mut self, job: JobId, uid: u32) {
        let Some(environment) = self.of.remove(&job) else { return };
        let Some(users) = self.live.get_mut(&environment) else { return };
        let bytes = users.bytes;
        users.jobs -= 1;
        if users.jobs == 0 {
            self.live.remove(&environment);
        }
        self.keep(uid, environment, bytes);
    }

    fn keep(&mut self, uid: u32, environment: i64, bytes: u64) {
        self.kept.entry(uid).or_default().add(environment, bytes);
        loop {
            let many = self.kept.values().map(|kept| kept.done.len()).sum::<usize>() > self.most;
            let much = self.kept.values().map(|kept| kept.bytes).sum::<u64>() > MOST_KEPT;
            if !many && !much {
                return;
            }
            let has = |kept: &Kept| if many { kept.done.len() as u64 } else { kept.bytes };
            let Some((uid, kept)) = self.kept.iter_mut().max_by_key(|(_, kept)| has(kept)) else { return };
            let uid = *uid;
            // Another user's job may still keep it: that is looked at when it is to be deleted.
            self.doomed.extend(kept.drop_oldest());
            if kept.done.is_empty() {
                self.kept.remove(&uid);
            }
        }
    }

    /// Whether there is something that may go.
    pub(super) fn has_doomed(&self) -> bool {
        !self.doomed.is_empty()
    }

    /// Up to `most` of those that no job needs.
    pub(super) fn take_doomed(&mut self, most: usize) -> Vec<i64> {
        let from = self.doomed.len().saturating_sub(most);
        let doomed = self.doomed.split_off(from);
        let needed =
            |e: &i64| self.live.contains_key(e) || self.kept.values().any(|kept| kept.by.contains_key(e));
        doomed.into_iter().filter(|e| !needed(e)).collect()
    }

    /// Puts back what could not be deleted.
    pub(super) fn put_back(&mut self, doomed: Vec<i64>) {
        self.doomed.extend(doomed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_job_needs_stays_and_the_rest_goes_oldest_first() {
        let mut environments = Environments { most: 2, ..Environments::default() };
        for (job, environment) in [(1, 10), (2, 20), (3, 20), (4, 40), (5, 50)] {
            environments.submitted(JobId(job), environment, 100);
        }
        for job in [1, 2, 4] {
            environments.ended(JobId(job), 1);
        }
        assert_eq!(environments.take_doomed(10), [10], "the oldest of three");
        environments.ended(JobId(5), 1);
        assert_eq!(environments.take_doomed(10), [0_i64; 0], "20 is needed by job 3");
        environments.ended(JobId(3), 1);
        assert_eq!(environments.take_doomed(10), [40]);
        // It came back before it was deleted.
        environments.submitted(JobId(6), 60, 100);
        environments.ended(JobId(6), 1);
        environments.submitted(JobId(7), 50, 100);
        assert_eq!(environments.take_doomed(10), [0_i64; 0]);
        // Large ones are kept for fewer jobs.
        for job in 100..102 {
            environments.submitted(JobId(job), job.cast_signed(), 12 << 20);
        }
        environments.ended(JobId(100), 1);
        environments.ended(JobId(101), 1);
        let doomed = environments.take_doomed(10);
        assert!(doomed.contains(&100) && !doomed.contains(&101), "{doomed:?}");
    }

    #[test]
    fn one_user_costs_another_no_environment() {
        for (most, bytes) in [(5, 100), (1000, 3 << 20)] {
            let mut environments = Environments { most, ..Environments::default() };
            // Job 1 is another user's, and so is job 3, with an environment that both users have.
            for job in 1..100 {
                let environment = if job == 3 { 4 } else { job };
                environments.submitted(JobId(job), environment.cast_signed(), bytes);
                environments.ended(JobId(job), if [1, 3].contains(&job) { 2 } else { 1 });
            }
            let mut left: Vec<i64> = (1..100).filter(|e| *e != 3).collect();
            for doomed in environments.take_doomed(1000) {
                left.retain(|e| *e != doomed);
            }
            assert_eq!(left, [1, 4, 97, 98, 99], "{most} jobs, {bytes} bytes each");
        }
    }
}

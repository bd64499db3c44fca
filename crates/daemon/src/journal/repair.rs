//! Saves what can be read of a damaged journal, and goes on with an older one where that is accepted.
//!
//! The new file is written beside the old one and checked before it takes its place. Where entries are lost, nothing
//! that may have run already is started again: jobs that wait are held, and jobs that were under way and left no record
//! end as failed.

use super::schema::{self, Meta};
use super::{JournalError, NEEDED, check, head, or_full, read, sql, sums, to_json, with_ending};
use crate::clock::utc;
use crate::error::ServeError;
use crate::layout;
use carma_core::input::Input;
use carma_core::model::{Exit, ExitStatus, Finished, JobId, Phase, Placement, User};
use carma_core::state::State;
use carma_core::units::Millis;
use rusqlite::{Connection, Row, Transaction, params};
use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Numbers between rows that are asked for one by one where a scan stops: a broken page hides those behind it.
const GAP: i64 = 200_000;

/// What came of a repair.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Repair {
    /// What is lost. Not empty: nothing was done unless that was accepted.
    pub lost: Vec<String>,
    /// What was done, or would be.
    pub done: Vec<String>,
    /// Where the damaged files are. `None`: nothing was changed.
    pub saved: Option<PathBuf>,
}

/// Why nothing was repaired.
#[derive(Debug, thiserror::Error)]
pub enum RepairError {
    /// The directory is in use, or cannot be used.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// The journal.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// What it holds cannot be told now, or not by this carma.
    #[error("{0}")]
    Unseen(String),
    /// A file.
    #[error("{}: {why}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// What happened.
        why: io::Error,
    },
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> RepairError {
    let path = path.to_owned();
    move |why| RepairError::File { path, why }
}

/// Repairs the journal of a state directory that no daemon uses.
///
/// # Errors
/// When a daemon uses it, or the disk does not allow it. The journal is as before then.
pub fn repair(state_dir: &Path, accept_loss: bool) -> Result<Repair, RepairError> {
    let journal = state_dir.join("carma.db");
    try_repair(state_dir, &journal, accept_loss).map_err(|e| {
        let size = |ending| fs::metadata(with_ending(&journal, ending)).map_or(0, |meta| meta.len());
        let e = match e {
            RepairError::Journal(e) => e,
            RepairError::File { path, why } => JournalError::File { path, why },
            e @ (RepairError::Serve(_) | RepairError::Unseen(_)) => return e,
        };
        // The copy that is read, and then the new file, are as large as all that there is.
        or_full(&journal, size("") + size("-wal") + NEEDED, e).into()
    })
}

fn try_repair(state_dir: &Path, journal: &Path, accept_loss: bool) -> Result<Repair, RepairError> {
    if !state_dir.is_dir() {
        return Err(at(state_dir)(io::Error::other("there is no such directory; name it with --state")));
    }
    // New files would be ours, and the daemon of that user could not open them.
    let owner = fs::metadata(state_dir).map_err(at(state_dir))?.uid();
    if owner != rustix::process::geteuid().as_raw() {
        let why = format!("it belongs to user {owner}: repair it as that user");
        return Err(at(state_dir)(io::Error::other(why)));
    }
    let _lock = layout::lock(state_dir)?;
    if !journal.exists() && head::read(journal).is_none() && check::largest_job(journal) == 0 {
        return Err(at(journal)(io::Error::other("there is no journal, and there was none")));
    }
    let repaired = journal.with_added_extension("repaired");
    if repaired.exists() {
        if is_sound(&repaired)? {
            let done = vec!["a repair that was interrupted is completed".to_owned()];
            put_in_place(journal, &repaired)?;
            return Ok(Repair { done, saved: newest_saved(state_dir), ..Repair::default() });
        }
        fs::remove_file(&repaired).map_err(at(&repaired))?;
    }
    let sound = is_sound(journal)?;
    let new = journal.with_added_extension("repairing");
    let _unfinished = Unfinished(state_dir.join("repair.tmp"), new.clone());
    let mut salvage = Salvage::of(state_dir, journal)?;
    if sound && !salvage.records_are_gone(state_dir) {
        return Ok(Repair::default());
    }
    let mut report = Repair::default();
    salvage.settle(state_dir, &mut report);
    if !report.lost.is_empty() && !accept_loss {
        return Ok(report);
    }
    salvage.write(&new)?;
    let broken: Vec<_> = check::check(&new).into_iter().filter(|finding| !finding.ok).collect();
    if let Some(first) = broken.first() {
        let text = format!("what was saved of it makes no sound journal: {}: {}", first.about, first.text);
        return Err(JournalError::Damaged(text).into());
    }
    report.saved = Some(save(state_dir, journal)?);
    fs::rename(&new, &repaired).map_err(at(&repaired))?;
    put_in_place(journal, &repaired)?;
    if salvage.records_are_gone(state_dir) {
        let run = state_dir.join("run");
        DirBuilder::new().mode(0o700).create(&run).map_err(at(&run))?;
    }
    Ok(report)
}

/// Whether a file holds what was written to it. An error: that cannot be told, so that a repair would throw away what is
/// sound.
fn is_sound(journal: &Path) -> Result<bool, RepairError> {
    let findings = check::check(journal);
    match findings.iter().find(|finding| finding.instead.is_some()) {
        Some(unseen) => Err(RepairError::Unseen(unseen.text.clone())),
        None => Ok(findings.iter().all(|finding| finding.ok)),
    }
}

/// What is no longer needed once a repair is over, however it ends.
struct Unfinished(PathBuf, PathBuf);

impl Drop for Unfinished {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
        let _ = remove_files(&self.1, &["", "-journal", "-wal", "-shm"]);
    }
}

/// Keeps the files as they were.
fn save(state_dir: &Path, journal: &Path) -> Result<PathBuf, RepairError> {
    let since = std::time::UNIX_EPOCH.elapsed().unwrap_or_default().as_secs();
    let mut number = since;
    let dir = loop {
        let dir = state_dir.join(format!("damaged-{number}"));
        match DirBuilder::new().mode(0o700).create(&dir) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => number += 1,
            made => break made.map(|()| dir.clone()).map_err(at(&dir))?,
        }
    };
    save_to(&dir, journal).inspect_err(|_| drop(fs::remove_dir_all(&dir)))?;
    Ok(dir)
}

fn save_to(dir: &Path, journal: &Path) -> Result<(), RepairError> {
    for ending in ["", "-wal", ".head"] {
        let (from, to) = (with_ending(journal, ending), dir.join(format!("carma.db{ending}")));
        // The head is written in place, so it is copied.
        if !from.exists() || (ending != ".head" && fs::hard_link(&from, &to).is_ok()) {
            continue;
        }
        fs::copy(&from, &to).and_then(|_| File::open(&to)?.sync_all()).map_err(at(&to))?;
    }
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(at(dir))
}

fn newest_saved(state_dir: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(state_dir).ok()?.flatten().map(|entry| entry.path());
    entries.filter(|path| path.file_name().is_some_and(|n| n.to_string_lossy().starts_with("damaged-"))).max()
}

/// Removes those of a journal's files that are there.
fn remove_files(journal: &Path, endings: &[&str]) -> Result<(), RepairError> {
    for ending in endings {
        let name = with_ending(journal, ending);
        match fs::remove_file(&name) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(at(&name)(e)),
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
}

/// Puts the new file in the place of the old one. Whatever of this is interrupted is completed by the next repair, and
/// no daemon starts before.
fn put_in_place(journal: &Path, repaired: &Path) -> Result<(), RepairError> {
    let db = read::open_to_read(repaired).map_err(sql("opened"))?;
    let meta = check::whole(&db)?;
    drop(db);
    head::replace(journal, &head::Claim::of(&meta)).map_err(at(&head::path_of(journal)))?;
    remove_files(journal, &["-wal", "-shm"])?;
    fs::rename(repaired, journal).map_err(at(journal))?;
    let dir = journal.parent().unwrap_or(Path::new("."));
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(at(dir))
}

/// A row of `jobs`.
struct Submission {
    uid: u32,
    gid: u32,
    environment: i64,
    log: String,
    spec: String,
    estimate: Option<String>,
}

/// A row of `history`.
struct Ended {
    uid: u32,
    at: u64,
    state: String,
    body: String,
}

/// What can be read.
#[derive(Default)]
struct Salvage {
    meta: Option<Meta>,
    claim: Option<head::Claim>,
    inputs: BTreeMap<i64, (u64, String)>,
    snapshots: BTreeMap<i64, (u64, String)>,
    environments: BTreeMap<i64, (i64, String)>,
    jobs: BTreeMap<i64, Submission>,
    history: BTreeMap<i64, Ended>,
    memory: Vec<(String, String, String)>,
    lives: BTreeMap<i64, (String, String, String)>,
    /// Rows that can be read and are not what was written, and tables that end early.
    broken: Vec<String>,
    /// Number of the last entry of the state that can be had, and the state.
    end: i64,
    state: State,
    /// The first of the entries that lead to it without a gap.
    first: i64,
    /// Entries that are added, to make the state fit to go on with.
    added: Vec<(Millis, Input)>,
    finished: Vec<Finished>,
    next_job: u64,
}

impl Salvage {
    /// Reads what can be read, from a copy.
    fn of(state_dir: &Path, journal: &Path) -> Result<Self, RepairError> {
        let mut salvage = Self { claim: head::read(journal), ..Self::default() };
        let dir = state_dir.join("repair.tmp");
        let clear = || match fs::remove_dir_all(&dir) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(at(&dir)(e)),
            Ok(()) | Err(_) => Ok(()),
        };
        clear()?;
        if journal.metadata().is_ok_and(|meta| meta.len() > 0) {
            DirBuilder::new().mode(0o700).create(&dir).map_err(at(&dir))?;
            let copy = dir.join("carma.db");
            fs::copy(journal, &copy).map_err(at(&copy))?;
            let (wal, wal_copy) = (with_ending(journal, "-wal"), with_ending(&copy, "-wal"));
            if wal.exists() {
                fs::copy(&wal, &wal_copy).map_err(at(&wal_copy))?;
            }
            mend_header(&copy).map_err(at(&copy))?;
            // A disk without room for SQLite's index of the copy would pass for a journal without a row, and of what a newer
            // carma wrote only what this one knows would be kept.
            let format =
                read::open_to_read(&copy).map_err(sql("opened")).and_then(|db| check::format_of(&db));
            if let Err(e @ (JournalError::Full { .. } | JournalError::TooNew { .. })) =
                format.map_err(|e| or_full(&copy, NEEDED, e))
            {
                return Err(e.into());
            }
            if let Err(e) = read::open_to_read(&copy).and_then(|db| salvage.read(&db)) {
                salvage.broken.push(format!("the file cannot be read ({e})"));
            }
            clear()?;
        }
        salvage.replay();
        Ok(salvage)
    }

    fn read(&mut self, db: &Connection) -> rusqlite::Result<()> {
        // Not by the version in the header, which may be what is damaged.
        let summed = db.prepare("SELECT sum FROM inputs").is_ok();
        self.meta = if summed { Meta::read(db).unwrap_or(None) } else { Meta::count(db, None).ok() };
        let sum = if summed { "sum" } else { "NULL" };
        let fits = |sum: Option<i64>, found: i64| sum.is_none_or(|sum| sum == found);
        let numbered = |table: &'static str, of: fn(i64, Millis, &str) -> i64, broken: &mut Vec<String>| {
            rows(db, table, &format!("seq, at_ms, body, {sum}"), "seq", broken, |row| {
                let (seq, at, body): (i64, u64, String) = (row.get(0)?, row.get(1)?, row.get(2)?);
                Ok(fits(row.get(3)?, of(seq, Millis(at), &body)).then_some((at, body)))
            })
        };
        self.inputs = numbered("inputs", sums::input, &mut self.broken);
        self.snapshots = numbered("snapshots", sums::snapshot, &mut self.broken);
        let columns = format!("id, hash, body, {sum}");
        self.environments = rows(db, "environments", &columns, "id", &mut self.broken, |row| {
            let (id, hash, body): (i64, i64, String) = (row.get(0)?, row.get(1)?, row.get(2)?);
            Ok(fits(row.get(3)?, sums::environment(id, hash, &body)).then_some((hash, body)))
        });
        let estimated = db.prepare("SELECT estimate FROM jobs").is_ok();
        let (estimate, of_estimate) =
            (if estimated { "estimate" } else { "NULL" }, if summed { "estimate_sum" } else { "NULL" });
        let columns = format!("id, uid, gid, environment, log, spec, {sum}, {estimate}, {of_estimate}");
        self.jobs = rows(db, "jobs", &columns, "id", &mut self.broken, |row| {
            let id: u64 = row.get(0)?;
            let mut job = Submission {
                uid: row.get(1)?,
                gid: row.get(2)?,
                environment: row.get(3)?,
                log: row.get(4)?,
                spec: row.get(5)?,
                estimate: row.get(7)?,
            };
            if !fits(row.get(8)?, sums::estimate(id, job.estimate.as_deref())) {
                // It is for people to read; the job is as good without.
                job.estimate = None;
            }
            let found = sums::job(id, job.uid, job.gid, job.environment, &job.log, &job.spec);
            Ok(fits(row.get(6)?, found).then_some(job))
        });
        let columns = format!("id, uid, ended_ms, state, body, {sum}");
        self.history = rows(db, "history", &columns, "id", &mut self.broken, |row| {
            let id: u64 = row.get(0)?;
            let ended = Ended { uid: row.get(1)?, at: row.get(2)?, state: row.get(3)?, body: row.get(4)? };
            let found = sums::ended(id, ended.uid, Millis(ended.at), &ended.state, &ended.body);
            let good = fits(row.get(5)?, found) && serde_json::from_str::<Finished>(&ended.body).is_ok();
            Ok(good.then_some(ended))
        });
        if summed {
            let columns = "started_ms, life, host, boot, sum";
            self.lives = rows(db, "lives", columns, "started_ms", &mut self.broken, |row| {
                let (life, host, boot): (String, String, String) = (row.get(1)?, row.get(2)?, row.get(3)?);
                let found = sums::life(Millis(row.get(0)?), &life, &host, &boot);
                Ok(fits(row.get(4)?, found).then_some((life, host, boot)))
            });
        }
        self.read_memory(db, sum, fits);
        Ok(())
    }

    /// This table has no numbers: it is read from both ends.
    fn read_memory(&mut self, db: &Connection, sum: &str, fits: impl Fn(Option<i64>, i64) -> bool) {
        let mut found = BTreeMap::new();
        let mut whole = true;
        for order in ["ASC", "DESC"] {
            let mut walk = || -> rusqlite::Result<()> {
                let query =
                    format!("SELECT kind, key, body, {sum} FROM memory ORDER BY kind {order}, key {order}");
                let mut query = db.prepare(&query)?;
                let mut rows = query.query([])?;
                while let Some(row) = rows.next()? {
                    let (kind, key, body): (String, String, String) = (row.get(0)?, row.get(1)?, row.get(2)?);
                    if fits(row.get(3)?, sums::learned(&kind, &key, &body)) {
                        found.insert((kind, key), body);
                    } else {
                        whole = false;
                    }
                }
                Ok(())
            };
            if walk().is_ok() {
                break;
            }
            whole = false;
        }
        self.memory = found.into_iter().map(|((kind, key), body)| (kind, key, body)).collect();
        if !whole {
            self.broken.push("part of what was learned of memory and slowdowns".into());
        }
    }

    /// Finds the state: the newest snapshot that can be read, and the entries after it up to the first gap.
    fn replay(&mut self) {
        let snapshots = self.snapshots.iter().rev().map(|(seq, (_, body))| (*seq, Some(body)));
        for (seq, body) in snapshots.chain([(0, None)]) {
            let state = match body {
                Some(body) => serde_json::from_str(body).map(|mut state: State| {
                    state.rebuild();
                    state
                }),
                None => Ok(State::default()),
            };
            let Ok(mut state) = state else { continue };
            let mut end = seq;
            while let Some((at, body)) = self.inputs.get(&(end + 1)) {
                let Ok(input) = serde_json::from_str::<Input>(body) else { break };
                // An input that is refused changes nothing.
                if state.replay(Millis(*at), &input).is_err() {
                    break;
                }
                end += 1;
            }
            (self.end, self.state) = (end, state);
            break;
        }
        self.first = self.end + 1;
        while self.inputs.contains_key(&(self.first - 1)) {
            self.first -= 1;
        }
    }

    /// Whether the directory of the records was deleted while jobs were under way.
    fn records_are_gone(&self, state_dir: &Path) -> bool {
        !state_dir.join("run").is_dir() && !self.state.active().is_empty()
    }

    /// Decides what to go on with, and says what is lost and what is done about it.
    fn settle(&mut self, state_dir: &Path, report: &mut Repair) {
        let lost = &mut report.lost;
        let of_meta = self.meta.as_ref().map_or((0, 1), |meta| (meta.seq, meta.next_job));
        let of_claim = self.claim.as_ref().map_or((0, 1), |claim| (claim.seq, claim.next_job));
        let largest = |numbers: Option<&i64>| numbers.map_or(0, |id| id.cast_unsigned()) + 1;
        let another = match (&self.meta, &self.claim) {
            (Some(meta), Some(claim)) if meta.id != claim.id => {
                let jobs = claim.next_job.saturating_sub(1);
                lost.push(format!(
                    "the journal that was here before, {}: {} entries and jobs up to {jobs}",
                    claim.id, claim.seq
                ));
                true
            }
            _ => false,
        };
        let known = of_meta
            .0
            .max(if another { 0 } else { of_claim.0 })
            .max(self.inputs.keys().next_back().copied().unwrap_or(0));
        let beside = check::largest_job(&state_dir.join("carma.db")) + 1;
        self.next_job = of_meta
            .1
            .max(of_claim.1)
            .max(self.state.next_id().0)
            .max(largest(self.jobs.keys().next_back()))
            .max(largest(self.history.keys().next_back()))
            .max(beside);
        // Without the row about the whole and without the file beside it, it is not known how many there were.
        let cut = self.end < known || self.meta.is_none() || another;
        if self.end < known {
            lost.push(format!(
                "entries {} to {known}: what happened after {}",
                self.end + 1,
                if self.end == 0 { "the beginning".to_owned() } else { utc(self.state.now()) }
            ));
        } else if self.meta.is_none() {
            lost.push(format!(
                "how far the journal went: the last entry that can be read is {} of {}",
                self.end,
                utc(self.state.now())
            ));
        }
        lost.append(&mut self.broken);
        if let Some(meta) = &self.meta {
            for (what, there, were) in [
                ("submissions", self.jobs.len(), meta.jobs.rows),
                ("ends of jobs in the history", self.history.len(), meta.ended.rows),
            ] {
                let gone = were - i64::try_from(there).unwrap_or(were);
                if gone > 0 {
                    lost.push(format!("{gone} of {were} {what}"));
                }
            }
        }
        let unknown =
            |id: &&i64| !self.history.contains_key(id) && self.state.job(JobId(id.cast_unsigned())).is_none();
        let forgotten: Vec<String> = self.jobs.keys().filter(unknown).map(ToString::to_string).collect();
        if cut && !forgotten.is_empty() {
            lost.push(format!(
                "what became of jobs {}: they were submitted, and it is not known whether they ran; submit them again \
                 if they did not",
                forgotten.join(", ")
            ));
        }
        let no_records = self.records_are_gone(state_dir);
        if no_records {
            lost.push("the records of attempts".into());
        }
        self.settle_jobs(state_dir, cut, no_records, report);
        report.done.push(format!("the next job gets number {}", self.next_job));
    }

    /// Makes the state fit to go on with: nothing that may have run is started again.
    fn settle_jobs(&mut self, state_dir: &Path, cut: bool, no_records: bool, report: &mut Repair) {
        let by = User::repair();
        let (mut held, mut failed, mut over) = (Vec::new(), Vec::new(), Vec::new());
        let latest = self.lives.keys().next_back().map_or(Millis(0), |at| Millis(at.unsigned_abs()));
        let ids: Vec<JobId> = self.state.jobs().keys().copied().collect();
        for id in ids {
            let Some(job) = self.state.job(id) else { continue };
            let ended = self.history.contains_key(&id.0.cast_signed());
            let submission = self.jobs.get(&id.0.cast_signed());
            let complete = submission.is_some_and(|job| self.environments.contains_key(&job.environment));
            if !complete {
                report.lost.push(format!("what was submitted as job {id}, or its environment"));
            }
            let recorded = |placement: &Placement| self.is_recorded(state_dir, id, placement);
            let input = match &job.phase {
                Phase::Pending | Phase::Held { .. } if ended || !complete => {
                    over.push(id);
                    Some(Input::Cancel { job: id, by: by.clone() })
                }
                Phase::Pending if cut || no_records => {
                    held.push(id);
                    Some(Input::Hold { job: id, by: by.clone() })
                }
                Phase::Pending | Phase::Held { .. } => None,
                Phase::Judging { .. } if ended || !complete || cut => {
                    failed.push(id);
                    Some(Input::Cancel { job: id, by: by.clone() })
                }
                Phase::Judging { .. } => None,
                Phase::Launching { placement, .. } | Phase::Running { placement, .. } => {
                    let unknown = ended || !complete || ((cut || no_records) && !recorded(placement));
                    unknown.then(|| {
                        failed.push(id);
                        let exit = Exit::of(ExitStatus::Unknown);
                        Input::Exited { job: id, attempt: placement.attempt, exit }
                    })
                }
            };
            let Some(input) = input else { continue };
            let exited = matches!(input, Input::Exited { .. });
            self.add(id, latest, input, report);
            // One that was suspended or was to begin anew is back in the queue by now.
            if exited && self.state.job(id).is_some() {
                self.add(id, latest, Input::Cancel { job: id, by: by.clone() }, report);
            }
        }
        // What the history knows of an end is better than what can be guessed.
        self.finished.retain(|finished| !self.history.contains_key(&finished.job.spec.id.0.cast_signed()));
        for (jobs, what) in [
            (
                held,
                "held, since they may have run after the last entry: look, then `carma release` or `carma cancel`",
            ),
            (failed, "ended, since what became of them cannot be found out; their processes may still run"),
            (over, "taken out of the queue: they are over, or cannot be started any more"),
        ] {
            if !jobs.is_empty() {
                let jobs: Vec<String> = jobs.iter().map(ToString::to_string).collect();
                report.done.push(format!("jobs {} are {what}", jobs.join(", ")));
            }
        }
    }

    /// Adds an entry about a job, later than all that was.
    fn add(&mut self, id: JobId, latest: Millis, input: Input, report: &mut Repair) {
        let at = self.state.now().max(latest) + Millis(1);
        match self.state.apply(at, &input) {
            Ok(applied) => {
                self.added.push((at, input));
                self.finished.extend(applied.finished);
            }
            Err(e) => report.lost.push(format!("what became of job {id}: {e}")),
        }
    }

    /// Whether an attempt left a record, in the life in which it was decided.
    fn is_recorded(&self, state_dir: &Path, id: JobId, placement: &Placement) -> bool {
        let decided = i64::try_from(placement.at.0).unwrap_or(i64::MAX);
        let life = self.lives.range(..=decided).next_back();
        let run = state_dir.join("run");
        let name = life.map_or("", |(_, (life, _, _))| life.as_str());
        let file = run.join(name).join(format!("{id}.{}.record", placement.attempt));
        std::fs::symlink_metadata(file).is_ok_and(|meta| meta.is_file() && meta.len() > 0)
    }

    /// Writes what was saved to a new file.
    fn write(&self, new: &Path) -> Result<(), RepairError> {
        remove_files(new, &["", "-journal", "-wal", "-shm"])?;
        let failed = sql("written");
        let mut db = Connection::open(new).map_err(&failed)?;
        db.execute_batch("PRAGMA auto_vacuum = INCREMENTAL; PRAGMA synchronous = FULL;").map_err(&failed)?;
        schema::migrate(&mut db)?;
        let tx = db.transaction().map_err(&failed)?;
        self.write_rows(&tx).map_err(&failed)?;
        self.write_state(&tx)?;
        let id = self.meta.as_ref().map(|meta| meta.id.clone());
        let id = id.or_else(|| self.claim.as_ref().map(|claim| claim.id.clone()));
        let mut meta = Meta::count(&tx, id).map_err(&failed)?;
        meta.next_job = meta.next_job.max(self.next_job);
        meta.next_environment =
            meta.next_environment.max(self.meta.as_ref().map_or(1, |meta| meta.next_environment));
        let named = self.jobs.values().map(|job| job.environment + 1).max();
        meta.next_environment = meta.next_environment.max(named.unwrap_or(1));
        meta.write(&tx).map_err(&failed)?;
        tx.commit().map_err(&failed)?;
        drop(db);
        File::open(new).and_then(|file| file.sync_all()).map_err(at(new))
    }

    fn write_rows(&self, tx: &Transaction<'_>) -> rusqlite::Result<()> {
        let mut insert =
            tx.prepare("INSERT INTO environments (id, hash, body, sum) VALUES (?1, ?2, ?3, ?4)")?;
        for (id, (hash, body)) in &self.environments {
            insert.execute(params![id, hash, body, sums::environment(*id, *hash, body)])?;
        }
        let mut insert = tx.prepare(
            "INSERT INTO jobs (id, uid, gid, environment, log, spec, estimate, sum, estimate_sum) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
        )?;
        for (id, job) in &self.jobs {
            let number = id.cast_unsigned();
            let sum = sums::job(number, job.uid, job.gid, job.environment, &job.log, &job.spec);
            let of_estimate = sums::estimate(number, job.estimate.as_deref());
            let Submission { uid, gid, environment, log, spec, estimate } = job;
            insert.execute(params![id, uid, gid, environment, log, spec, estimate, sum, of_estimate])?;
        }
        let mut insert = tx.prepare(
            "INSERT INTO history (id, uid, ended_ms, state, body, sum) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        )?;
        for (id, ended) in &self.history {
            let sum = sums::ended(id.cast_unsigned(), ended.uid, Millis(ended.at), &ended.state, &ended.body);
            insert.execute(params![id, ended.uid, ended.at, ended.state, ended.body, sum])?;
        }
        let mut insert = tx.prepare("INSERT INTO memory (kind, key, body, sum) VALUES (?1, ?2, ?3, ?4)")?;
        for (kind, key, body) in &self.memory {
            insert.execute(params![kind, key, body, sums::learned(kind, key, body)])?;
        }
        let mut insert =
            tx.prepare("INSERT INTO lives (started_ms, life, host, boot, sum) VALUES (?1, ?2, ?3, ?4, ?5)")?;
        for (started, (life, host, boot)) in &self.lives {
            let sum = sums::life(Millis(started.cast_unsigned()), life, host, boot);
            insert.execute(params![started, life, host, boot, sum])?;
        }
        Ok(())
    }

    fn write_state(&self, tx: &Transaction<'_>) -> Result<(), JournalError> {
        let failed = sql("written");
        let mut insert = tx
            .prepare("INSERT INTO snapshots (seq, at_ms, body, sum) VALUES (?1, ?2, ?3, ?4)")
            .map_err(&failed)?;
        for (seq, (at, body)) in self.snapshots.range(self.first - 1..self.end + 1) {
            insert
                .execute(params![seq, at, body, sums::snapshot(*seq, Millis(*at), body)])
                .map_err(&failed)?;
        }
        let mut insert = tx
            .prepare("INSERT INTO inputs (seq, at_ms, body, sum) VALUES (?1, ?2, ?3, ?4)")
            .map_err(&failed)?;
        let mut enter = |seq: i64, at: Millis, body: &str| {
            insert.execute(params![seq, at.0, body, sums::input(seq, at, body)]).map_err(&failed)
        };
        for (seq, (at, body)) in self.inputs.range(self.first..self.end + 1) {
            enter(*seq, Millis(*at), body)?;
        }
        for (seq, (at, input)) in (self.end + 1..).zip(&self.added) {
            enter(seq, *at, &to_json(seq, input)?)?;
        }
        let mut insert = tx
            .prepare(
                "INSERT INTO history (id, uid, ended_ms, state, body, sum) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
            )
            .map_err(&failed)?;
        for finished in &self.finished {
            let spec = &finished.job.spec;
            let (state, body) = (finished.state.as_str(), to_json(0, finished)?);
            let sum = sums::ended(spec.id.0, spec.user.uid, finished.at, state, &body);
            insert
                .execute(params![spec.id.0, spec.user.uid, finished.at.0, state, body, sum])
                .map_err(&failed)?;
        }
        Ok(())
    }
}

/// Puts what is the same in each journal into the header of a copy.
fn mend_header(copy: &Path) -> io::Result<()> {
    let file = File::options().read(true).write(true).open(copy)?;
    let mut bytes = [0_u8; 100];
    file.read_exact_at(&mut bytes, 0)?;
    if check::mend_header(&mut bytes) {
        file.write_all_at(&bytes, 0)?;
    }
    Ok(())
}

/// Reads a table by number: from the beginning up to where that fails, from the end down, and one by one between. `read`
/// gives nothing for a row that is not what was written.
fn rows<T>(
    db: &Connection,
    table: &'static str,
    columns: &str,
    number: &str,
    broken: &mut Vec<String>,
    read: impl Fn(&Row<'_>) -> rusqlite::Result<Option<T>>,
) -> BTreeMap<i64, T> {
    let mut found = BTreeMap::new();
    let mut bad = 0;
    // The number of the last row that could be read, and whether the scan came to its end.
    let mut walk = |condition: &str| -> (Option<i64>, bool) {
        let mut last = None;
        let mut scan = || -> rusqlite::Result<()> {
            let mut query = db.prepare(&format!("SELECT {columns} FROM {table} {condition}"))?;
            let mut rows = query.query([])?;
            while let Some(row) = rows.next()? {
                let id: i64 = row.get(0)?;
                last = Some(id);
                match read(row) {
                    Ok(Some(value)) => drop(found.insert(id, value)),
                    Ok(None) | Err(_) => bad += 1,
                }
            }
            Ok(())
        };
        let whole = scan().is_ok();
        (last, whole)
    };
    let (up, whole) = walk(&format!("ORDER BY {number}"));
    if !whole {
        let (down, _) = walk(&format!("WHERE {number} > {} ORDER BY {number} DESC", up.unwrap_or(i64::MIN)));
        broken.push(format!("part of the table {table}"));
        // Where neither end can be read, the way to every row is lost.
        if let Some(from) = up.or(down.map(|to| to.saturating_sub(GAP)))
            && let Ok(mut query) = db.prepare(&format!("SELECT {columns} FROM {table} WHERE {number} = ?1"))
        {
            for id in from + 1..down.unwrap_or(i64::MAX).min(from.saturating_add(GAP)) {
                let Ok(mut rows) = query.query([id]) else { continue };
                if let Ok(Some(value)) = rows.next().and_then(|row| row.map_or(Ok(None), &read)) {
                    found.insert(id, value);
                }
            }
        }
    }
    if bad > 0 {
        broken.push(format!("{bad} rows of the table {table}, which are not what was written"));
    }
    found
}

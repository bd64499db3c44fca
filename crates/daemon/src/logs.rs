//! The logs that carma keeps, for as long as it keeps their jobs, and within their limits.

use crate::journal::{Journal, JournalError, Keep, Reader};
use crate::run::launch::log_limit;
use crate::run::supervise;
use carma_api::MAX_BODY;
use carma_core::model::JobId;
use std::collections::HashMap;
use std::fs::{self, DirEntry};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Between two looks at the sizes of all logs, at least; of very many logs a hundred times what a look takes.
const EVERY: Duration = Duration::from_secs(5);
/// What any log may take on the disk without a look at its limit, bytes.
const FREE: u64 = 2 << 20;
/// What the journal may have of one job, bytes: what was submitted, and as much again of what became of it.
const LARGEST: u64 = 2 * MAX_BODY as u64;

/// Holds logs to their limits, for as long as the daemon lives. Supervisors do so while their jobs run; afterwards what holds a
/// log open, such as another process of its user's, can still write to it.
pub(crate) fn watch(dir: PathBuf, journal: PathBuf) -> io::Result<()> {
    let run = move || {
        let (mut limits, mut told) = (HashMap::new(), false);
        loop {
            let began = Instant::now();
            let held = hold(&dir, &journal, &mut limits);
            if let (Err(e), false) = (&held, told) {
                tracing::warn!(
                    "logs of jobs that are over are not held to their limits for the present: {e}"
                );
            }
            told = held.is_err();
            std::thread::sleep(EVERY.max(began.elapsed() * 100));
        }
    };
    std::thread::Builder::new().name("logs".into()).spawn(run).map(drop)
}

/// Cuts logs that take far more than their limits. `limits`: those of the large ones, from one look to the next.
fn hold(dir: &Path, journal: &Path, limits: &mut HashMap<u64, u64>) -> Result<(), JournalError> {
    let (mut reader, mut large): (Option<Reader>, _) = (None, HashMap::new());
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let Some(job) = job_of(&entry) else { continue };
        let taken = entry.metadata().map_or(0, |meta| meta.blocks().saturating_mul(512));
        if taken <= FREE {
            continue;
        }
        let limit = match limits.get(&job) {
            Some(limit) => *limit,
            None => {
                let reader = match &mut reader {
                    Some(reader) => reader,
                    None => reader.insert(Journal::reader(journal)?),
                };
                // The journal may not know it yet, and a row that is damaged is told of elsewhere.
                let Ok(Some(stored)) = reader.job(JobId(job)) else { continue };
                log_limit(&stored.request)
            }
        };
        large.insert(job, limit);
        match supervise::shorten(&entry.path(), limit) {
            Ok(true) => tracing::debug!("the log of job {job} was longer than its limit"),
            Ok(false) => {}
            Err(e) => tracing::debug!("the log of job {job} is not held to its limit for the present: {e}"),
        }
    }
    *limits = large;
    Ok(())
}

/// Whose log a file is.
fn job_of(entry: &DirEntry) -> Option<u64> {
    entry.file_name().to_str()?.strip_suffix(".log")?.parse().ok()
}

/// Removes the logs of jobs that the journal has forgotten because it keeps so much of them: of those below a number, since
/// later ones may not be on the disk yet. A journal that has less has forgotten none, and may have lost some.
pub(crate) fn sweep(dir: &Path, journal: &Path, keep: Keep, below: JobId) {
    let known = Journal::reader(journal).and_then(|reader| reader.known());
    let (known, over) = match known {
        Ok(known) => known,
        Err(e) => return tracing::warn!("logs of forgotten jobs stay for the present: {e}"),
    };
    if over.jobs < keep.jobs && over.bytes <= keep.bytes.saturating_sub(LARGEST) {
        return;
    }
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if job_of(&entry).is_some_and(|job| job < below.0 && !known.contains(&job))
            && let Err(e) = fs::remove_file(entry.path())
        {
            tracing::warn!("the log {} of a forgotten job stays: {e}", entry.file_name().display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::JournalConfig;
    use crate::journal::tests::{gpu, submitted};
    use crate::journal::{Batch, Settings, StoredJob};
    use carma_api::wire::SubmitRequest;
    use carma_core::input::Input;
    use carma_core::model::User;
    use carma_core::state::State;
    use carma_core::units::Millis;
    use std::io::Write;

    #[test]
    fn logs_go_when_their_jobs_are_forgotten_and_not_when_they_are_lost() {
        let dir = tempfile::tempdir().unwrap();
        let (file, logs) = (dir.path().join("carma.db"), dir.path().join("logs"));
        drop(Journal::open(&file, &Settings::from(&JournalConfig::default())).unwrap());
        fs::create_dir(&logs).unwrap();
        for name in ["3.log", "8.log", "notes.log", "3.txt"] {
            fs::write(logs.join(name), "").unwrap();
        }
        let left = || {
            let mut names: Vec<_> = fs::read_dir(&logs).unwrap().flatten().map(|e| e.file_name()).collect();
            names.sort();
            names
        };
        // It keeps one, and has none: so none was forgotten.
        let keep = |jobs| Keep { jobs, bytes: 64 << 20 };
        sweep(&logs, &file, keep(1), JobId(8));
        assert_eq!(left().len(), 4);
        sweep(&logs, &file, keep(0), JobId(8));
        assert_eq!(left(), ["3.txt", "8.log", "notes.log"]);
        // Those of jobs that were forgotten for their size go, too.
        fs::write(logs.join("3.log"), "").unwrap();
        let mut journal = Journal::open(&file, &Settings::from(&JournalConfig::default())).unwrap();
        let (mut state, mut batch) = (State::default(), Batch::default());
        let request = SubmitRequest { command: vec!["x".repeat(1 << 20)], ..SubmitRequest::default() };
        let stored = StoredJob { request, uid: 1, gid: 1, log: String::new(), estimate: None };
        batch.jobs.push((JobId(1), stored));
        let (job, by) = (JobId(1), User::new(1, "a"));
        for input in [gpu(), submitted(1), Input::Cancel { job, by }] {
            batch.finished.extend(state.apply(Millis(1), &input).unwrap().finished);
        }
        journal.commit(&batch).unwrap();
        sweep(&logs, &file, Keep { jobs: 10, bytes: LARGEST + (2 << 20) }, JobId(8));
        assert!(left().contains(&"3.log".into()), "there was room for more");
        sweep(&logs, &file, Keep { jobs: 10, bytes: LARGEST + (1 << 20) }, JobId(8));
        assert_eq!(left(), ["3.txt", "8.log", "notes.log"]);
    }

    #[test]
    fn logs_of_jobs_that_are_over_stay_within_their_limits() {
        let dir = tempfile::tempdir().unwrap();
        let (file, logs) = (dir.path().join("carma.db"), dir.path().join("logs"));
        let mut journal = Journal::open(&file, &Settings::from(&JournalConfig::default())).unwrap();
        fs::create_dir(&logs).unwrap();
        let mut batch = Batch::default();
        for (id, log_limit_mib) in [(1, Some(1)), (2, None), (3, Some(4))] {
            let request = SubmitRequest { log_limit_mib, ..SubmitRequest::default() };
            let log = logs.join(format!("{id}.log")).display().to_string();
            batch.jobs.push((JobId(id), StoredJob { request, uid: 1, gid: 1, log, estimate: None }));
        }
        journal.commit(&batch).unwrap();
        let text = vec![b'x'; 6 << 20];
        for name in ["1.log", "2.log", "3.log", "4.log", "notes.log"] {
            fs::write(logs.join(name), &text).unwrap();
        }
        let mut limits = HashMap::new();
        let mut taken = || {
            hold(&logs, &file, &mut limits).unwrap();
            let mib = |name: &str| fs::metadata(logs.join(name)).unwrap().blocks() >> 11;
            ["1.log", "2.log", "3.log", "4.log", "notes.log"].map(mib)
        };
        assert_eq!(taken(), [1, 6, 6, 6, 6]);
        fs::OpenOptions::new().append(true).open(logs.join("3.log")).unwrap().write_all(&text).unwrap();
        assert_eq!(taken(), [1, 6, 4, 6, 6]);
        assert_eq!(limits, [(2, u64::MAX), (3, 4 << 20)].into());
    }
}

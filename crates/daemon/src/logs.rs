//! The logs that carma keeps, for as long as it keeps their jobs.

use crate::journal::Journal;
use carma_core::model::JobId;
use std::fs;
use std::path::Path;

/// Removes the logs of jobs that the journal has forgotten because it keeps `keep` of them: of those below a number, since
/// later ones may not be on the disk yet. A journal that has fewer has forgotten none, and may have lost some.
pub(crate) fn sweep(dir: &Path, journal: &Path, keep: u64, below: JobId) {
    let known = Journal::reader(journal).and_then(|reader| reader.known());
    let (known, over) = match known {
        Ok(known) => known,
        Err(e) => return tracing::warn!("logs of forgotten jobs stay for the present: {e}"),
    };
    if over < keep {
        return;
    }
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let job = name.to_str().and_then(|name| name.strip_suffix(".log")?.parse::<u64>().ok());
        if job.is_some_and(|job| job < below.0 && !known.contains(&job))
            && let Err(e) = fs::remove_file(entry.path())
        {
            tracing::warn!("the log {} of a forgotten job stays: {e}", name.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::JournalConfig;
    use crate::journal::Settings;

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
        sweep(&logs, &file, 1, JobId(8));
        assert_eq!(left().len(), 4);
        sweep(&logs, &file, 0, JobId(8));
        assert_eq!(left(), ["3.txt", "8.log", "notes.log"]);
    }
}

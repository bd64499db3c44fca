//! The lives of the daemon whose attempts are still under way, and the directories of their records.

use super::identity::{AttemptId, Life, short};
use super::record::Records;
use carma_core::model::{JobId, Placement};
use carma_core::units::Millis;
use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// File in the directory of a life that says in which state directory it was ([`Life::place`]): copied with it, and wrong then.
const PLACE: &str = "place";

/// The present life and earlier ones.
#[derive(Debug)]
pub struct Lives {
    run: PathBuf,
    journal: String,
    /// By time, the present one last.
    lives: Vec<Life>,
    present: Life,
}

impl Lives {
    /// Begins the present life: its directory is on the disk before anything is decided in it.
    ///
    /// # Errors
    /// When the directory cannot be made, or the mark of an earlier one cannot be read now.
    pub fn begin(run: PathBuf, journal: String, mut earlier: Vec<Life>, present: Life) -> io::Result<Self> {
        for life in earlier.iter_mut().filter(|life| !life.name.is_empty()) {
            life.place = marked(&run.join(&life.name).join(PLACE))?;
        }
        let lives =
            Self { run, journal, lives: earlier.into_iter().chain([present.clone()]).collect(), present };
        let dir = lives.dir(&lives.present);
        DirBuilder::new().mode(0o700).create(&dir)?;
        // A start that fails, each time it is tried on a full disk, leaves nothing behind.
        lives.mark(&dir).inspect_err(|_| drop(fs::remove_dir_all(&dir)))?;
        Ok(lives)
    }

    fn mark(&self, dir: &Path) -> io::Result<()> {
        if let Some(place) = &self.present.place {
            let mut mark = File::options().write(true).create_new(true).mode(0o600).open(dir.join(PLACE))?;
            // Not waited for: a daemon that has lost it with the power is of another boot.
            mark.write_all(place.as_bytes())?;
        }
        File::open(&self.run)?.sync_all()
    }

    fn dir(&self, life: &Life) -> PathBuf {
        // Joining with nothing adds a slash, which is harmless.
        self.run.join(&life.name)
    }

    /// The present life.
    #[must_use]
    pub const fn present(&self) -> &Life {
        &self.present
    }

    /// Whether any earlier life was that of another state directory, of which this one is a copy.
    #[must_use]
    pub fn is_copy(&self) -> bool {
        self.lives.iter().any(|life| life.is_elsewhere(&self.present))
    }

    /// Earlier lives of daemons that kept no mark of their state directory, as names of attempts have them.
    #[must_use]
    pub fn unmarked(&self) -> Vec<String> {
        let unmarked = self.lives.iter().filter(|life| life.place.is_none() && !life.name.is_empty());
        unmarked.map(|life| short(&life.name).to_owned()).collect()
    }

    /// Directory of the records of the present life.
    #[must_use]
    pub fn present_dir(&self) -> PathBuf {
        self.dir(&self.present)
    }

    /// The life in which something was decided.
    #[must_use]
    pub fn of(&self, decided: Millis) -> Life {
        let life = self.lives.iter().rev().find(|life| life.started <= decided);
        life.cloned().unwrap_or_else(Life::nameless)
    }

    /// Identity of an attempt that is decided now.
    #[must_use]
    pub fn identify(&self, job: JobId, attempt: u32) -> AttemptId {
        self.id_in(&self.present, job, attempt)
    }

    fn id_in(&self, life: &Life, job: JobId, attempt: u32) -> AttemptId {
        AttemptId {
            journal: self.journal.clone(),
            life: life.name.clone(),
            host: life.host.clone(),
            boot: life.boot.clone(),
            job,
            attempt,
        }
    }

    /// The records of an attempt, in whichever life it was decided.
    #[must_use]
    pub fn records(&self, job: JobId, placement: &Placement) -> Records {
        let life = self.of(placement.at);
        let dir = self.dir(&life);
        if life.name.is_empty() {
            return Records::nameless(&dir, job, placement.attempt);
        }
        Records::new(&dir, self.id_in(&life, job, placement.attempt))
    }

    /// The records of an attempt of the present life.
    #[must_use]
    pub fn present_records(&self, job: JobId, attempt: u32) -> Records {
        Records::new(&self.present_dir(), self.identify(job, attempt))
    }

    /// Short names of attempts ([`AttemptId::short`]), in whichever life they were decided.
    #[must_use]
    pub fn short(&self, job: JobId, placement: &Placement) -> String {
        self.id_in(&self.of(placement.at), job, placement.attempt).short()
    }

    /// Removes what is left of lives of which nothing is under way any more: no supervisor of theirs can claim
    /// anything then. `decided`: when the attempts were decided that are under way.
    pub fn sweep(&mut self, decided: &[Millis]) {
        let needed: Vec<Life> = decided.iter().map(|at| self.of(*at)).collect();
        self.lives.retain(|life| *life == self.present || needed.contains(life));
        let nameless = needed.iter().any(|life| life.name.is_empty());
        for entry in fs::read_dir(&self.run).into_iter().flatten().flatten() {
            let name = entry.file_name();
            if self.lives.iter().any(|life| !life.name.is_empty() && name == *life.name) {
                continue;
            }
            let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
            let removed = if is_dir {
                fs::remove_dir_all(entry.path())
            } else if nameless {
                continue;
            } else {
                fs::remove_file(entry.path())
            };
            if let Err(e) = removed {
                tracing::warn!("{} is left behind: {e}", entry.path().display());
            }
        }
    }

    /// When the oldest life began of which something is under way.
    #[must_use]
    pub fn oldest(&self) -> Millis {
        self.lives.first().map_or(self.present.started, |life| life.started)
    }
}

/// What a mark says. `None`: there is none of use.
fn marked(path: &Path) -> io::Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(place) => Ok(Some(place).filter(|place| !place.is_empty())),
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::InvalidData) => Ok(None),
        Err(e) => Err(io::Error::new(e.kind(), format!("{}: {e}", path.display()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::adopt::{Found, Known, find};
    use crate::run::record::Claim;
    use carma_core::explain::Reason;
    use carma_core::model::SharingMode;
    use carma_core::model::{Exit, ExitStatus, ProcessRef};
    use carma_process::process;

    fn placed(at: u64) -> Placement {
        Placement {
            attempt: 1,
            gpus: Vec::new(),
            sharing: SharingMode::TimeSlice,
            cap: None,
            floor: None,
            thread_percent: None,
            part: None,
            at: Millis(at),
            reason: Reason::Launching,
        }
    }

    #[test]
    fn a_life_is_swept_with_its_fences_once_nothing_of_it_is_under_way() {
        let dir = tempfile::tempdir().unwrap();
        let run = dir.path().to_owned();
        let begin = |earlier, at| {
            let life = Life::begin(Millis(at), "1-2").unwrap();
            Lives::begin(run.clone(), "j".into(), earlier, life).unwrap()
        };
        fs::write(run.join("3.1.record"), "of before").unwrap();
        let first = begin(Vec::new(), 100);
        first.records(JobId(1), &placed(100)).claim(&Claim::Fenced).unwrap().unwrap();
        let old = first.lives.clone();
        let mut second = begin(old, 200);
        let (before, now) = (second.records(JobId(1), &placed(150)), second.records(JobId(1), &placed(200)));
        assert!(before.read().unwrap().is_some());
        assert_eq!(now.read().unwrap(), None, "the same job and attempt of a later life");
        second.sweep(&[Millis(150), Millis(20)]);
        assert!(
            before.read().unwrap().is_some() && run.join("3.1.record").exists() && second.lives.len() == 2
        );
        second.sweep(&[Millis(220)]);
        assert_eq!(fs::read_dir(&run).unwrap().count(), 1, "the present life's directory");
        assert_eq!(second.lives.len(), 1);
        // A supervisor of that life that comes late starts nothing.
        assert!(before.claim(&Claim::Fenced).unwrap().is_none());
    }

    /// What was found in a state directory of a job that runs, by a daemon of this place.
    fn adopted(run: &Path, life: &Life, place: &str, supervisor: ProcessRef) -> (Lives, Found) {
        let earlier = vec![Life { place: None, ..life.clone() }];
        let here = Life::begin(Millis(200), place).unwrap();
        let lives = Lives::begin(run.to_owned(), "j".into(), earlier, here).unwrap();
        let (records, life) = (lives.records(JobId(1), &placed(150)), lives.of(Millis(150)));
        let known = Known {
            life: &life,
            here: lives.present(),
            supervisor: Some(supervisor),
            child: None,
            group: None,
        };
        let found = find(&records, known).unwrap();
        (lives, found)
    }

    /// `cp -a state copy`, while a job runs: it is the first daemon's. `mv state moved`: it is still that one's.
    #[test]
    fn what_was_started_from_a_state_directory_is_not_that_of_a_copy() {
        let dir = tempfile::tempdir().unwrap();
        let (run, copy) = (dir.path().join("run"), dir.path().join("copy"));
        fs::create_dir(&run).unwrap();
        let life = Life::begin(Millis(100), "1-2").unwrap();
        let first = Lives::begin(run.clone(), "j".into(), Vec::new(), life.clone()).unwrap();
        let me = process::identify(std::process::id()).unwrap();
        first.records(JobId(1), &placed(150)).claim(&Claim::Supervisor(me)).unwrap().unwrap();
        let copied = |from: &Path, to: &Path| {
            fs::create_dir_all(to.join(&life.name)).unwrap();
            for file in fs::read_dir(from.join(&life.name)).unwrap().flatten() {
                fs::copy(file.path(), to.join(&life.name).join(file.file_name())).unwrap();
            }
        };
        copied(&run, &copy);
        let (lives, found) = adopted(&copy, &life, "1-3", me);
        assert!(matches!(found, Found::Exited(Exit { status: ExitStatus::Unknown, .. })), "{found:?}");
        assert!(lives.is_copy() && lives.unmarked().is_empty());
        let (lives, found) = adopted(&run, &life, "1-2", me);
        assert!(matches!(found, Found::Alive { .. }) && !lives.is_copy(), "{found:?}");
        // Of a daemon that left no mark: an upgrade goes on.
        fs::remove_file(run.join(&life.name).join(PLACE)).unwrap();
        let (lives, found) = adopted(&run, &life, "1-2", me);
        assert!(matches!(found, Found::Alive { .. }) && !lives.is_copy(), "{found:?}");
        assert_eq!(lives.unmarked(), [short(&life.name)]);
    }
}

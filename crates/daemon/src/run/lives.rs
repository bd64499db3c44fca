//! The lives of the daemon whose attempts are still under way, and the directories of their records.

use super::identity::{AttemptId, Life};
use super::record::Records;
use carma_core::model::{JobId, Placement};
use carma_core::units::Millis;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

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
    /// When the directory cannot be made.
    pub fn begin(run: PathBuf, journal: String, earlier: Vec<Life>, present: Life) -> io::Result<Self> {
        let lives =
            Self { run, journal, lives: earlier.into_iter().chain([present.clone()]).collect(), present };
        DirBuilder::new().mode(0o700).create(lives.dir(&lives.present))?;
        File::open(&lives.run)?.sync_all()?;
        Ok(lives)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::record::Claim;
    use carma_core::explain::Reason;
    use carma_core::model::SharingMode;

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
            let life = Life::begin(Millis(at)).unwrap();
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
}

//! How long running jobs take by their own counts.

use crate::{Class, LONGEST_S, levels};
use carma_core::model::RunsOf;
use std::collections::BTreeMap;

/// What running jobs count, by job and by class. It is not stored: jobs that go on tell it again.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Counts {
    jobs: BTreeMap<u64, (Class, u64)>,
    /// The jobs of a class, with their seconds. Users learn nothing from what jobs of others only say of themselves, so that there is
    /// no class of all.
    classes: BTreeMap<(RunsOf, u64), BTreeMap<u64, u64>>,
}

impl Counts {
    /// Whether the class's jobs are told otherwise than before: by more than a tenth.
    pub(crate) fn set(&mut self, job: u64, count: Option<(Class, u64)>) -> bool {
        let count = count.map(|(class, seconds)| (class, seconds.clamp(1, LONGEST_S)));
        let before = self.jobs.get(&job).copied();
        let is_news = match (before, count) {
            (None, None) => false,
            (Some((_, before)), Some((_, now))) => before.abs_diff(now) > before / 10,
            _ => true,
        };
        if !is_news {
            return false;
        }
        if let Some((class, _)) = before {
            self.jobs.remove(&job);
            for key in levels(&class) {
                if let Some(jobs) = self.classes.get_mut(&key) {
                    jobs.remove(&job);
                    if jobs.is_empty() {
                        self.classes.remove(&key);
                    }
                }
            }
        }
        if let Some((class, seconds)) = count {
            self.jobs.insert(job, (class, seconds));
            for key in levels(&class).filter(|(level, _)| *level != RunsOf::All) {
                self.classes.entry(key).or_default().insert(job, seconds);
            }
        }
        true
    }

    /// What the running jobs of a class count, seconds alone.
    pub(crate) fn of(&self, level: RunsOf, key: u64) -> impl Iterator<Item = u64> {
        self.classes.get(&(level, key)).into_iter().flat_map(|jobs| jobs.values().copied())
    }
}

//! Jobs that wait and have yet to hear what ends taught.

use carma_core::model::JobId;
use std::collections::{HashMap, VecDeque};

/// What there is to hear.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum News {
    /// The daemon has read the job's submission after its start: its rules for memory may be others now.
    OfStart,
    /// A job of another program came to its end: it says something of run times.
    OfOthers,
    /// One of the same program did: it says something of memory, too.
    OfProgram,
}

/// The jobs, in the order in which news came for them. Each is there once, however many ends there were: it hears of all at
/// once.
#[derive(Debug, Default)]
pub struct Untold {
    order: VecDeque<JobId>,
    news: HashMap<JobId, News>,
}

impl Untold {
    /// There is news for this job.
    pub fn add(&mut self, job: JobId, news: News) {
        match self.news.get_mut(&job) {
            Some(known) if *known == news => {}
            // Each two of them say all that there is.
            Some(known) => *known = News::OfProgram,
            None => {
                self.news.insert(job, news);
                self.order.push_back(job);
            }
        }
    }

    /// Takes the one that has waited longest.
    pub fn take(&mut self) -> Option<(JobId, News)> {
        let job = self.order.pop_front()?;
        Some((job, self.news.remove(&job)?))
    }

    /// Whether all have heard.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_hears_once_and_in_turn() {
        let mut untold = Untold::default();
        for (job, news) in
            [(3, News::OfOthers), (1, News::OfProgram), (3, News::OfStart), (1, News::OfOthers)]
        {
            untold.add(JobId(job), news);
        }
        assert_eq!(untold.take(), Some((JobId(3), News::OfProgram)));
        untold.add(JobId(3), News::OfOthers);
        assert_eq!(untold.take(), Some((JobId(1), News::OfProgram)));
        assert_eq!(untold.take(), Some((JobId(3), News::OfOthers)));
        assert!(untold.take().is_none() && untold.is_empty());
    }
}

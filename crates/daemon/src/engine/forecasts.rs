//! What runs teach, and what jobs that wait hear of it.

use super::{Engine, waits};
use crate::gist::Gist;
use crate::journal::JournalError;
use crate::memory::{self, Expected};
use crate::news::News;
use carma_core::input::Input;
use carma_core::model::{Estimator, JobId};
use carma_core::units::{MiB, Millis};
use carma_run_time::{Running, news};
use std::sync::Arc;
use std::time::Instant;

impl Engine {
    /// Learns what an attempt that is over took. It goes to the disk with the input that ended it: once,
    /// however often the daemon is killed.
    pub(super) fn learn(&mut self, id: JobId, number: u32) {
        let gist = match self.gist(id) {
            Ok(Some(gist)) => gist,
            Ok(None) => return,
            Err(e) => return tracing::warn!("nothing is learned of job {id}: {e}"),
        };
        let over = || self.batch.finished.iter().rev().map(|f| &f.job).find(|job| job.spec.id == id);
        let job = self.state.job(id).or_else(over);
        let attempt = job.and_then(|job| job.past.iter().rev().find(|a| a.placement.attempt == number));
        let Some(attempt) = attempt.filter(|attempt| attempt.started.is_some()) else { return };
        let gpus: Vec<_> =
            attempt.placement.gpus.iter().filter_map(|gpu| Some(&self.state.gpu(*gpu)?.info)).collect();
        if memory::teaches(attempt) {
            self.parts.memory.learn(&gist, attempt, &gpus);
            self.batch.learned.extend(self.parts.memory.changes());
        }
        self.parts.durations.learn(&gist, attempt);
        self.batch.run_times.extend(self.parts.durations.changes());
        self.spread_news(id);
    }

    /// What forecasts need of a job. The engine reads the submission only where the job ends before the thread that reads earlier jobs has come to it.
    fn gist(&mut self, id: JobId) -> Result<Option<Arc<Gist>>, JournalError> {
        if let Some(known) = self.parts.memory.gist(id) {
            return Ok(Some(known));
        }
        let Some(stored) = self.parts.journal.job(id)? else { return Ok(None) };
        let gist = Arc::new(self.parts.memory.counted(Gist::of(&stored.request, stored.uid)));
        self.parts.memory.await_news(id, gist.clone());
        Ok(Some(gist))
    }

    /// A job taught something. Jobs that wait are to hear of it: all of the same program, and of the first in the queue those of
    /// the same script, whatever its arguments, those of the same command of other users, and some of whose command too little is known.
    fn spread_news(&mut self, teacher: JobId) {
        self.taught = true;
        let state = &self.state;
        let waits = |id| state.job(id).is_some_and(waits);
        for id in self.parts.memory.news_to(teacher, waits) {
            self.untold.add(id, News::OfProgram);
        }
        let memory = &self.parts.memory;
        let class = |job| memory.gist(job).map(|gist| gist.class);
        let line = state.queue().line(state.now()).map(|(_, job)| (job, class(job.spec.id)));
        for (job, _) in news::told(line, class(teacher)) {
            self.untold.add(job.spec.id, News::OfOthers);
        }
    }

    /// Tells jobs that wait what is expected of them now, as many as there is time for.
    pub(super) fn tell(&mut self) {
        if self.untold.is_empty() {
            return;
        }
        let (began, running) = (Instant::now(), self.running());
        while let Some((id, news)) = self.untold.take() {
            self.tell_one(id, news, &running);
            if began.elapsed() >= self.takes {
                break;
            }
        }
    }

    fn tell_one(&mut self, id: JobId, news: News, running: &[Running]) {
        let Some(job) = self.state.job(id).filter(|job| waits(job)) else { return };
        let (before, run_before) = (job.spec.forecasts, job.spec.run_time);
        let Some(gist) = self.parts.memory.gist(id) else { return };
        if news != News::OfOthers {
            let gpus = self.state.gpus().iter().filter(|gpu| gpu.present).map(|gpu| &gpu.info);
            let mut expected = self.parts.memory.expect(&gist, gpus);
            if let Some(expected) = expected.as_mut().filter(|_| self.state.options().policy.goes_by_runs()) {
                expected.name_declared(before.declared);
            }
            if let Some(Expected { computed, view, measured }) = expected {
                let known = before.computed == Some(computed)
                    && (measured.is_none() || before.estimates.of(Estimator::Measured) == measured);
                if !known && self.apply(Input::Forecast { job: id, computed, measured }) {
                    self.batch.expected.push((id, view));
                }
            }
        }
        // That the daemon starts anew says nothing of how long jobs take: those that run have run on, and what that moves would be
        // bounds on starts, those that have passed among them.
        let is_told = news != News::OfStart || run_before.is_none();
        let run_time = self.parts.durations.expect(&gist, running).filter(|_| is_told);
        let job = self.state.job(id);
        if let Some(run_time) = job.zip(run_time).map(|(job, told)| job.takes_beyond_its_attempts(told))
            && news::is_news(run_before.as_ref(), &run_time)
        {
            self.apply(Input::RunTime { job: id, run_time });
        }
    }

    /// The jobs that run, as forecasts of run time learn from them.
    pub(super) fn running(&mut self) -> Vec<Running> {
        let memory = &self.parts.memory;
        self.parts.durations.running(&self.state, |id| memory.gist(id))
    }

    /// What runs of a waiting job's command take at most, whatever its user declares. `None`: nothing is known, or it does not wait.
    pub(super) fn took(&self, job: JobId) -> Option<MiB> {
        self.state.job(job).filter(|job| waits(job))?;
        let gist = self.parts.memory.gist(job)?;
        let gpus = self.state.gpus().iter().filter(|gpu| gpu.present).map(|gpu| &gpu.info);
        self.parts.memory.took(&gist, gpus)
    }

    /// Takes in how fast jobs go, and answers what the plan wants to have predicted.
    pub(super) fn predict(&mut self, now: Millis) {
        let looks = self.parts.board.looks();
        let memory = &self.parts.memory;
        let iterations = |job| memory.gist(job)?.signature.iterations;
        for input in self.parts.slowdowns.look(now, &self.state, &looks, iterations) {
            let counted = match &input {
                Input::Counted { job, .. } => Some(*job),
                _ => None,
            };
            self.apply(input);
            let job = counted.and_then(|id| self.state.job(id));
            if let Some(id) = job.filter(|job| self.parts.durations.is_news(job)).map(|job| job.spec.id) {
                self.spread_news(id);
            }
        }
        for input in self.parts.slowdowns.news_of_profiles(&self.state) {
            self.apply(input);
        }
        for input in self.parts.slowdowns.profiles_of_running(&self.state) {
            self.apply(input);
        }
        for input in self.parts.slowdowns.answers(&self.state) {
            self.apply(input);
        }
        self.batch.slowdowns.extend(self.parts.slowdowns.changes(now));
    }
}

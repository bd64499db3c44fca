//! What happens when the journal takes nothing.

use super::Engine;
use crate::journal::JournalError;
use crate::messages::Message;
use crate::news::News;
use crate::refused::Refused;
use crate::run_time::Durations;
use carma_api::wire::UnwrittenView;
use carma_core::input::Input;
use std::time::{Duration, Instant};

/// How often the log hears that the journal cannot be written: that is tried several times a second where there is something to write.
pub(super) const COMPLAIN_AGAIN: Duration = Duration::from_secs(600);
/// How long a daemon without a journal tells users so.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Exit code of a daemon that can keep nothing (`EX_IOERR`).
const NO_JOURNAL: i32 = 74;

impl Engine {
    /// The journal did not take the batch: nothing of it happened. Users are told; what cannot be
    /// told again is kept; the state goes back to what is on disk.
    pub(super) fn give_up(&mut self, why: &JournalError) {
        if matches!(why, JournalError::Gone(_)) {
            return self.leave(why);
        }
        let is_news = self.unwritten.as_ref().is_none_or(|(of, _)| of.why != why.to_string());
        if is_news || self.complained.is_none_or(|at| at.elapsed() >= COMPLAIN_AGAIN) {
            tracing::error!("{why}; nothing was accepted or started, trying again");
            self.complained = Some(Instant::now());
        }
        let advice = if why.is_locked() {
            "Another program keeps it locked: end that one".to_owned()
        } else {
            let dir = self.parts.journal_file.parent().unwrap_or(&self.parts.journal_file);
            format!("If the disk of {} is full, make room there", dir.display())
        };
        let refused = Refused::new(507, "internal", format!("{why}; nothing was accepted. {advice}"));
        for answer in std::mem::take(&mut self.answers) {
            answer(Err(refused.clone()));
        }
        let since_ms = self.unwritten.as_ref().map_or(self.parts.clock.now().0, |(of, _)| of.since_ms);
        self.unwritten = Some((UnwrittenView { since_ms, why: why.to_string(), advice }, Instant::now()));
        self.actions.clear();
        let batch = std::mem::take(&mut self.batch);
        // They have heard of it, and it is lost.
        for (_, input) in &batch.inputs {
            if let Input::Forecast { job, .. } | Input::RunTime { job, .. } = input {
                self.untold.add(*job, News::OfProgram);
            }
        }
        self.retry.extend(batch.inputs.into_iter().filter(|(_, input)| {
            matches!(
                input,
                Input::Started { .. }
                    | Input::Exited { .. }
                    | Input::NotLaunched { .. }
                    | Input::CannotSave { .. }
                    | Input::Suspended { .. }
                    | Input::Resumed { .. }
                    | Input::SuspendFailed { .. }
                    | Input::Configured(_)
                    | Input::Inventory(_)
            )
        }));
        let journal = &mut self.parts.journal;
        let recovered = journal
            .recover()
            .and_then(|state| Ok((state, journal.learned()?, journal.run_times()?, journal.slowdowns()?)));
        match recovered {
            Ok((state, learned, run_times, slowdowns)) => {
                self.state = state;
                self.parts.memory.restore(&learned);
                self.parts.durations = Durations::new(&run_times);
                self.parts.slowdowns.restore(&slowdowns);
                self.parts.slowdowns.tell_again(&self.state);
                self.count_submissions();
                self.submitted.retain(|id, _| self.state.job(*id).is_some());
                if self.adopting {
                    // Their errands and signals were dropped with the failed commit, and no plan issues them again. A job that has ended
                    // meanwhile needs none.
                    for id in self.state.active().iter().copied().collect::<Vec<_>>() {
                        self.suspend_on(id);
                        self.end_on(id);
                    }
                }
            }
            Err(e) => {
                // Neither writing nor reading works: going on would mean to decide on guesses.
                tracing::error!("{e}; the daemon stops, jobs go on");
                std::process::exit(NO_JOURNAL);
            }
        }
        self.view = None;
    }

    /// The journal was deleted: nothing can be kept any more, so nothing is accepted or started. Those who ask in the
    /// meantime are told why.
    fn leave(&mut self, why: &JournalError) {
        tracing::error!("{why}. The daemon stops, jobs go on");
        let refused = Refused::new(507, "internal", format!("{why}. Nothing was accepted; the daemon stops"));
        for answer in std::mem::take(&mut self.answers) {
            answer(Err(refused.clone()));
        }
        self.viewers.clear();
        std::mem::take(&mut self.bulk).into_iter().for_each(|bulk| bulk.refuse(refused.clone()));
        let end = Instant::now() + LAST_WORDS;
        while let Ok(message) = self.inbox.recv_timeout(end.saturating_duration_since(Instant::now())) {
            match message {
                Message::Submit(_, _, answer) => drop(answer.send(Err(refused.clone()))),
                Message::Bulk(bulk) => bulk.refuse(refused.clone()),
                Message::Order(_, _, answer) | Message::Context(_, _, answer) => {
                    drop(answer.send(Err(refused.clone())));
                }
                // Other requests are answered: the daemon stops.
                _ => {}
            }
        }
        std::process::exit(NO_JOURNAL);
    }
}

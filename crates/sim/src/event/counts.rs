//! What running jobs count of themselves, as `step 300/1000`, and when the core hears of it: as often as from the daemon.

use super::core::index;
use super::world::World;
use carma_core::input::Input;
use carma_core::model::JobId;
use carma_core::state::State;
use carma_core::units::{Fraction, Millis};
use carma_run_time::news::{Heard, is_count_news};
use std::collections::BTreeMap;

/// What was told of the jobs that run.
#[derive(Debug, Default)]
pub(super) struct Counts {
    told: BTreeMap<JobId, Told>,
    pub(super) heard: Heard,
}

#[derive(Debug, Clone, Copy)]
struct Told {
    attempt: u32,
    first: Millis,
    /// The last share, and how often one was told.
    last: Option<(f64, u32)>,
}

impl Counts {
    /// What is news to the core.
    pub(super) fn news(&mut self, now: Millis, state: &State, world: &World) -> Vec<Input> {
        let active = state.active();
        self.told.retain(|job, _| active.contains(job));
        self.heard.keep(active);
        let mut news = Vec::new();
        for job in state.active_jobs() {
            let id = job.spec.id;
            let Some(attempt) = job.placement().map(|placement| placement.attempt) else { continue };
            let Some(share) = world.done(now.0, index(id)) else { continue };
            let new = Told { attempt, first: now, last: None };
            let told = self.told.entry(id).or_insert(new);
            if told.attempt != attempt {
                *told = new;
            }
            if is_count_news(told.last, share, now.since(told.first).as_secs_f64()) {
                told.last = Some((share, told.last.map_or(1, |(_, times)| times + 1)));
                let share = Fraction::from_f64(share).unwrap_or(Fraction::ONE);
                news.push(Input::Counted { job: id, attempt, share });
            }
        }
        news
    }
}

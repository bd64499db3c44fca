//! What running jobs count of themselves, as `step 300/1000`, and when the core hears of it: as often as from the daemon.

use super::core::index;
use super::world::World;
use carma_core::input::Input;
use carma_core::model::JobId;
use carma_core::state::State;
use carma_core::units::{Fraction, Millis};
use std::collections::BTreeMap;

/// The daemon's: a count is told at first, the second and the third time when so much more is done and so much time has passed, then with
/// each of the larger steps.
const FIRST_STEPS: [f64; 2] = [0.0005, 0.005];
const COUNTED: Millis = Millis::secs(30);
const STEP: f64 = 0.05;

/// What was told of the jobs that run.
#[derive(Debug, Default)]
pub(super) struct Counts {
    told: BTreeMap<JobId, Told>,
    /// What those that wait heard of a job's run time.
    runs: BTreeMap<JobId, Millis>,
}

#[derive(Debug, Clone, Copy)]
struct Told {
    attempt: u32,
    first: Millis,
    share: f64,
    times: u32,
}

impl Counts {
    /// What is news to the core.
    pub(super) fn news(&mut self, now: Millis, state: &State, world: &World) -> Vec<Input> {
        let active = state.active();
        self.told.retain(|job, _| active.contains(job));
        self.runs.retain(|job, _| active.contains(job));
        let mut news = Vec::new();
        for job in state.active_jobs() {
            let id = job.spec.id;
            let Some(attempt) = job.placement().map(|placement| placement.attempt) else { continue };
            let Some(share) = world.done(now.0, index(id)) else { continue };
            let told = self.told.entry(id).or_insert(Told { attempt, first: now, share, times: 0 });
            if told.attempt != attempt {
                *told = Told { attempt, first: now, share, times: 0 };
            }
            let early = told.times.checked_sub(1).and_then(|at| FIRST_STEPS.get(at as usize));
            let step = early.filter(|_| now.since(told.first) >= COUNTED).unwrap_or(&STEP);
            if told.times == 0 || share - told.share >= *step {
                (told.share, told.times) = (share, told.times + 1);
                let share = Fraction::from_f64(share).unwrap_or(Fraction::ONE);
                news.push(Input::Counted { job: id, attempt, share });
            }
        }
        news
    }

    /// Whether those that wait are to hear how long a job takes by its count: it says more than a tenth else than when they heard last.
    pub(super) fn teaches(&mut self, job: JobId, run: Option<Millis>) -> bool {
        let Some(run) = run else { return false };
        let told = self.runs.get(&job);
        let is_news = told.is_none_or(|told| told.0.abs_diff(run.0) > told.0 / 10);
        if is_news {
            self.runs.insert(job, run);
        }
        is_news
    }
}

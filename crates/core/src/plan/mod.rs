//! The plan: what to do now, and why.
//!
//! A pure function of state and time. It does not change the state: each action taken comes back as
//! [`crate::Input::Decided`]. Each room below makes one part of it; here is their order.

mod answers;
mod beside;
mod ending;
mod evict;
mod failed;
mod faults;
mod given;
mod gpus;
mod growth;
mod limits;
mod place;
mod resume;
mod room;
mod search;
mod slot;
mod sooner;
mod spread;
mod want;

pub use answers::{Answer, answers};
pub use ending::ended_by;
pub use evict::{Spared, spared};
pub use resume::{bars_move, best_move, best_place, stays_off};
pub use room::makes_room_for;
pub use sooner::sooner;
pub use spread::may_spread;

use crate::explain::Reason;
use crate::input::Action;
use crate::model::{Job, JobId};
use crate::state::{Blinds, State};
use crate::units::Millis;
use ending::end_jobs;
use evict::evict;
use faults::judge_faults;
use growth::guard;
use place::place_jobs;
use resume::suspend_jobs;
use search::Slots;
use std::sync::Arc;
use want::Want;

/// What to do now.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    /// In order.
    pub actions: Vec<Action>,
    /// Why each job that stays pending does, in queue order.
    pub waiting: Vec<(JobId, Reason)>,
    /// When, at the latest, another plan is due without another input: because of the time alone, or
    /// at once where this one requeues jobs.
    pub wake: Option<Millis>,
}

/// What a plan says besides what to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// Why each other job waits.
    Reasons,
    /// Nothing: [`Plan::waiting`] stays empty. The actions are the same, and a long queue costs less.
    Actions,
}

/// Decides what to do in this state at this time.
#[must_use]
pub fn plan(state: &State, now: Millis) -> Plan {
    plan_in(state, now, Detail::Reasons)
}

/// The same with a choice of detail.
#[must_use]
pub fn plan_in(state: &State, now: Millis, detail: Detail) -> Plan {
    let now = now.max(state.now());
    let mut plan = ends(state, now);
    place_jobs(state, now, detail, &mut plan);
    plan
}

/// The first part of [`plan_in`]: what is to end; no job is placed. For a caller that knows of no change since the last
/// whole plan that could let a job start.
#[must_use]
pub fn ends(state: &State, now: Millis) -> Plan {
    let now = now.max(state.now());
    let mut plan = Plan::default();
    end_jobs(state, now, &mut plan);
    evict(state, now, &mut plan);
    guard(state, now, &mut plan);
    suspend_jobs(state, &mut plan);
    judge_faults(state, now, &mut plan);
    plan
}

/// Why a job waits, looked at alone: what each GPU says to it now.
#[must_use]
pub fn evaluate(state: &State, now: Millis, job: &Job) -> Reason {
    let now = now.max(state.now());
    let slots = Slots::new(state, now);
    let want = Want::of(state, job, now, Blinds::of(state, now).as_ref());
    match slots.find(&want) {
        Ok(found) => found.reason,
        Err(_) => slots.none_for(&want, Arc::new(slots.refusals(&want))),
    }
}

impl Plan {
    fn wake_at(&mut self, at: Millis) {
        self.wake = Some(self.wake.map_or(at, |w| w.min(at)));
    }
}

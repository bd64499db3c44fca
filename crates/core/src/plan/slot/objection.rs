//! Progress: what predictions, limits of slowdown and earlier experience have against a job on a GPU.
//!
//! What is predicted is in [`crate::plan::beside`].

use super::Slot;
use crate::explain::{Narrowed, Objection};
use crate::model::JobId;
use crate::plan::beside::{Beside, Neighbour};
use crate::plan::want::Want;
use crate::policy::{Order, Progress};
use crate::progress::{Outlook, Pace, least_progress, slowdown};
use crate::slowdown::{kept_apart, limit};
use crate::state::{Course, Startup};
use crate::units::{Fraction, Millis};

impl Slot<'_> {
    /// Why predictions or earlier experience keep a job off this one.
    pub(super) fn objection(&self, want: &Want) -> Option<Objection> {
        let policy = &self.state.options().policy;
        let limited = if want.limited { Some(want.job) } else { self.limited };
        if !want.particular && limited.is_none() && !policy.goes_by_predictions() {
            return None;
        }
        if (want.particular || self.any_parted)
            && let Some(apart) = kept_apart(self.state, self.state.job(want.job)?, self.gpu)
        {
            return Some(Objection::Apart { job: apart });
        }
        if want.limited && !self.gpu.foreign().is_empty() {
            return Some(Objection::Uncontrolled);
        }
        if self.tenants == 0 {
            return None;
        }
        let by_throughput = policy.order == Order::Throughput;
        if limited.is_none() && !by_throughput && policy.progress.is_none() {
            return None;
        }
        let Some((beside, outlook)) = self.outlook_now(want) else {
            return Some(limited.map_or(Objection::Unprofiled { job: None }, not_predicted));
        };
        let unknown = outlook.unknown.first().map(|class| beside.who(want.job, want.class, *class));
        if by_throughput && outlook.throughput.is_none() {
            return Some(Objection::Unprofiled { job: unknown.or(Some(want.job)) });
        }
        if let Some(rule) = policy.progress.filter(|_| outlook.has_paces()) {
            let outlook = &*beside.outlook_at_work(outlook, self.server_for(want), want.start);
            let already = self.too_slow_already(beside, outlook, rule);
            if let Some(objection) = already.or_else(|| self.unmeasured()) {
                return Some(objection);
            }
            let rule = if outlook.seen_beside { rule.unsure() } else { rule };
            // One that waits for too long already is not there for the gain.
            let least = if want.overdue || want.floor.is_some() { Fraction(0) } else { rule.gain };
            if let Some(floor) = below(rule.with(want.floor), outlook, want.start) {
                let (expected, unsure) = (outlook.joins.expected, outlook.asks_more_of(want.floor));
                return Some(Objection::Floor { job: want.job, expected, floor, unsure });
            }
            if let Some(objection) = slowed_down(beside, outlook, want, rule) {
                return Some(objection);
            }
            let gain = outlook.gain_over_run(want.start.share);
            if gain < least {
                return Some(Objection::Gain { gain, least });
            }
            // One that has waited for long is let in again where it is brief.
            let is_let_in = want.floor.is_some()
                && beside.paces(outlook).all(|(neighbour, _)| is_brief(beside, neighbour, outlook, want));
            if !is_let_in && self.state.is_bad(&outlook.there, want.class) {
                return Some(Objection::Bad);
            }
        }
        match (unknown, limited) {
            (Some(unknown), _) if policy.progress.is_some() && !outlook.has_paces() => {
                Some(Objection::Unprofiled { job: Some(unknown) })
            }
            (_, None) => None,
            // One that is over the bound on its start is tried where others have limits: on a machine of such jobs it would never run, and
            // nothing would ever be known of it. A limit that it breaks sends it away.
            (Some(job), Some(limited)) if want.overdue && job == want.job && limited != job => None,
            (Some(job), Some(_)) => Some(Objection::Unpredicted { job: Some(job), limited }),
            (None, Some(_)) => self.by_limits(want, beside, outlook),
        }
    }

    /// A job here that is measured to keep less than the policy asks for: a newcomer would slow it down further.
    fn too_slow_already(&self, beside: &Beside, outlook: &Outlook, rule: Progress) -> Option<Objection> {
        let held =
            beside.paces(outlook).filter(|(neighbour, pace)| beside.is_held_elsewhere(neighbour, *pace));
        let held: Vec<JobId> = held.map(|(neighbour, _)| neighbour.job).collect();
        // What was measured beside others than these is void already.
        self.gpu.tenants.iter().filter(|tenant| !held.contains(&tenant.job)).find_map(|tenant| {
            let job = self.state.job(tenant.job)?;
            let least = rule.with(self.state.lower_floor(job)).least_measured();
            let measured = self.state.measured_over_window(job)?;
            let is_slow = measured.progress < least;
            is_slow.then_some(Objection::TooSlow { job: tenant.job, measured: measured.progress, least })
        })
    }

    /// A job that another was sent away from lately, and of which it is not measured whether that was enough. With a newcomer in its place
    /// it would go on as before, and be sent more away for.
    fn unmeasured(&self) -> Option<Objection> {
        let until = self.gpu.relieved_until(self.state.options())?;
        if self.now >= until {
            return None;
        }
        let jobs = self.gpu.tenants.iter().filter_map(|tenant| self.state.job(tenant.job));
        let mut unmeasured = jobs.filter(|job| self.state.measured_over_window(job).is_none());
        unmeasured.next().map(|job| Objection::Unmeasured { job: job.spec.id })
    }

    /// What limits of slowdown have against a job beside these.
    fn by_limits(&self, want: &Want, beside: &Beside, outlook: &Outlook) -> Option<Objection> {
        beside.predicted(want.job, outlook, Startup::default()).into_iter().find_map(|task| {
            let limit = limit(self.state, self.state.job(task.job)?)?;
            let Some(lower) = task.lower else {
                return Some(not_predicted(task.job));
            };
            (lower < least_progress(limit)).then(|| Objection::Slowdown {
                job: task.job,
                expected: slowdown(task.expected),
                upper: slowdown(lower),
                limit,
            })
        })
    }

    /// Why a job that would get fewer threads is to have them here: whose limit it would break with all. `None`: it would break none.
    pub(in crate::plan) fn narrows(&self, want: &Want) -> Option<Narrowed> {
        self.limited?;
        let percent = want.class.threads.filter(|_| want.narrowed)?;
        let all = want.with_all_threads();
        let (beside, outlook) = self.outlook_now(&all)?;
        let Objection::Slowdown { job, upper, limit, .. } = self.by_limits(&all, beside, outlook)? else {
            return None;
        };
        let with_all = self.predicted(&all);
        let keeps = with_all.iter().find(|task| task.job == want.job).map(|task| task.expected);
        Some(Narrowed { percent, job, limit, upper: Some(upper), keeps })
    }

    /// The floor with which a job joins since it has waited for long, where it could not else.
    pub(in crate::plan) fn joins_at_lower_floor(&self, want: &Want) -> Option<Fraction> {
        let without = || self.objection(&Want { floor: None, ..*want });
        want.floor.filter(|_| matches!(without(), Some(Objection::Floor { .. } | Objection::Bad)))
    }
}

/// A job has a limit, and nothing is predicted yet.
pub(super) const fn not_predicted(limited: JobId) -> Objection {
    Objection::Unpredicted { job: None, limited: Some(limited) }
}

/// What a newcomer that starts up like this must keep and would not, if there is such: over its run, or while it works.
fn below(rule: Progress, outlook: &Outlook, start: Startup) -> Option<Fraction> {
    let over_run = (outlook.joins_over_run(start.share) < rule.floor).then_some(rule.floor);
    over_run.or_else(|| (outlook.joins.expected < rule.dip()).then_some(rule.dip()))
}

/// What a newcomer may cost a job over its whole run that keeps too little for others to join, as long as it keeps the floor.
const LITTLE: Fraction = Fraction(Fraction::ONE.0 / 100);
/// The same of one that does not keep the floor as it is: a newcomer of seconds beside one of hours. Light ones that stay do not
/// join it.
const NEXT_TO_NOTHING: Fraction = Fraction(Fraction::ONE.0 / 1000);

/// How long a newcomer works beside these.
fn stays(outlook: &Outlook, want: &Want) -> Millis {
    want.takes_at_most().since(want.start.takes).at_speed(outlook.joins.expected)
}

/// Whether that is but a small part of what one that is there has left.
fn is_brief(beside: &Beside<'_>, neighbour: &Neighbour, outlook: &Outlook, want: &Want) -> bool {
    let course = beside.course(neighbour);
    course.is_some_and(|course| course.outlasts(stays(outlook, want), want.floor.is_some()))
}

/// What a newcomer would do to the jobs that are there, if that is too much: at any time unless its stay is brief, or over a whole run. A
/// job that is over before it works is not slowed down by it, and one that goes on when it is over only until then.
fn slowed_down(beside: &Beside<'_>, outlook: &Outlook, want: &Want, rule: Progress) -> Option<Objection> {
    let start = want.start;
    // At what it is to keep over its whole run a job gets no slower, whatever it has kept so far.
    if outlook.paces.iter().all(|pace| pace.expected >= rule.whole_run()) {
        return None;
    }
    let there = || {
        let asked =
            beside.paces(outlook).map(|(neighbour, pace)| (neighbour, pace, rule.with(neighbour.floor)));
        let slow = asked.filter(|(_, pace, rule)| pace.expected < rule.whole_run());
        slow.filter(|(neighbour, ..)| !beside.is_over_before(neighbour, start))
    };
    let stays = stays(outlook, want);
    let below = there().filter(|(neighbour, pace, rule)| {
        pace.expected < rule.dip() && !is_brief(beside, neighbour, outlook, want)
    });
    if let Some((neighbour, Pace { expected, .. }, rule)) = below.min_by_key(|(_, pace, _)| pace.expected) {
        let unsure = outlook.asks_more_of(neighbour.floor);
        return Some(Objection::Floor { job: neighbour.job, expected, floor: rule.dip(), unsure });
    }
    let after = |neighbour: &Neighbour, now| beside.pace_among(neighbour, &outlook.there).unwrap_or(now);
    there().filter(|(neighbour, pace, _)| !beside.is_held_elsewhere(neighbour, *pace)).find_map(
        |(neighbour, pace, rule)| {
            let now = beside.pace_now(neighbour).unwrap_or(pace.expected);
            let stays = (stays, after(neighbour, now));
            let over_run = |course: Course| course.whole_run(now, start.takes, pace.expected, stays);
            let whole = beside.course(neighbour).map_or(pace.expected, over_run);
            // How long one stays that is tried is not known: it is not kept out for the whole run of a job that it leaves the floor.
            let least = if want.is_tried { rule.floor } else { rule.whole_run() };
            // One that costs it little would else wait for its end, if it keeps too little as it is.
            let costs_little = |course: Course| {
                let may_cost = match whole >= rule.floor {
                    true => LITTLE,
                    false if course.outlasts(stays.0, false) => NEXT_TO_NOTHING,
                    false => return false,
                };
                course.whole_run_as_now(now).0.saturating_sub(whole.0) <= may_cost.0
            };
            if beside.course(neighbour).is_some_and(costs_little) {
                return None;
            }
            let unsure = outlook.asks_more_of(neighbour.floor);
            (whole < least).then_some(Objection::WholeRun { job: neighbour.job, whole, least, unsure })
        },
    )
}

//! The walk along the queue: which jobs are placed, which wait, and which keep others waiting.
//!
//! Knows no GPU by itself: [`super::gpus`] and [`super::search`] answer for them.

use super::failed::Failed;
use super::gpus::Places;
use super::limits::Takes;
use super::resume::resume_jobs;
use super::room;
use super::search::Found;
use super::slot::cooldowns;
use super::spread::spread;
use super::want::Want;
use super::{Detail, Plan};
use crate::explain::Reason;
use crate::input::Action;
use crate::ledger::Gpu;
use crate::model::{Estimator, Job, JobId, Placement, QueueKey};
use crate::progress::Class;
use crate::slowdown::{ASKED, LEAST_OF_A_USER, most_asked};
use crate::state::{Blinds, Startup, State};
use crate::units::{MiB, Millis};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Jobs prefetched at a time.
const AHEAD: usize = 32;

/// A queue of no more jobs than this stays in the cache: prefetching would only cost.
const CACHED: usize = 4096;

/// Where jobs go by length, kinds of jobs that have room, and are searched for in vain before the others have to wait for the next
/// plan, but for idle GPUs: a long queue of jobs that all differ would else be searched from end to end, and no predictions are asked for further ones. At 24
/// kinds in place of 12 a simulation of Philly takes 1.5 times as long, with the same completion times (docs/research/tried.md).
pub(super) const MOST_MISSES: usize = ASKED;

/// Jobs behind these that are looked at for the sake of idle GPUs that none before them can use.
const MOST_FOR_IDLE: usize = 1024;

/// Where jobs go by length, jobs that have no room and are looked at in one plan for all that, on few GPUs: they share the answer, and a job
/// costs about two microseconds. Each user who waits has an equal part of them.
const MOST_FULL: usize = 512;

/// GPUs that are looked at for them, about.
const MOST_LOOKS: usize = 65_536;

/// Jobs that are passed over for those of other users.
const MOST_PASSED: usize = 16_384;

/// A plan for the sake of a job that will be over before another works is made no sooner than that.
const SOON: Millis = Millis(1000);

/// Reads a little of some jobs that are looked at next, so that they are in the cache. In a long queue each job is a miss;
/// reads that do not wait for each other overlap, which takes a quarter off a plan for 100,000 jobs (`cargo bench -p
/// carma-core --bench decision`).
fn prefetch<'a>(jobs: impl Iterator<Item = &'a Job>) {
    let sum = jobs.fold(0u64, |sum, job| {
        let (spec, forecasts) = (&job.spec, &job.spec.forecasts);
        let rest = [
            job.not_before.is_some(),
            job.floor.is_some(),
            forecasts.declared.is_some(),
            forecasts.estimates.of(Estimator::Gpumemnet).is_some(),
        ];
        let rest = rest.into_iter().map(u64::from).sum::<u64>();
        sum ^ u64::from(spec.request.gpus) ^ job.queued.0 ^ rest
    });
    std::hint::black_box(sum);
}

/// Puts suspended jobs back and places those that wait.
pub(super) fn place_jobs(state: &State, now: Millis, detail: Detail, plan: &mut Plan) {
    let options = state.options();
    let mut places = Places::new(state, now);
    let mut takes = Takes::new(state);
    let mut left_waiting = resume_jobs(state, now, detail, (&mut places, &mut takes), plan);
    if !state.queue().is_empty() {
        if state.latest_fault().is_some_and(|at| at + options.mps_cooldown > now) {
            for (_, left) in state.gpus().iter().flat_map(|gpu| cooldowns(gpu, options, now)) {
                plan.wake_at(now + left);
            }
        }
        let mut walk = Walk::new((state, now, detail), (&mut places, &mut takes), plan);
        walk.along_the_queue();
        walk.wake_for_those_that_wait();
        left_waiting |= walk.left_waiting;
    }
    if takes.spent {
        plan.wake_at(options.next_period(now));
    }
    if left_waiting {
        wake_when_patience_ends(state, now, plan);
    } else {
        spread(state, now, plan);
    }
}

/// What was searched for in vain for a user.
#[derive(Default)]
struct InVain {
    /// Kinds of jobs that have room.
    misses: usize,
    /// Jobs that have none, those that are like the one before not counted.
    full: usize,
    like: Option<(Class, Option<MiB>)>,
}

/// The walk along the queue, and what of the jobs so far counts for those behind them.
struct Walk<'a, 'p> {
    state: &'a State,
    now: Millis,
    detail: Detail,
    places: &'p mut Places<'a>,
    takes: &'p mut Takes<'a>,
    plan: &'p mut Plan,
    blinds: Option<Blinds<'a>>,
    /// Jobs that others make room for.
    beneficiaries: BTreeSet<JobId>,
    failed: Failed,
    /// Why none behind is looked at: a job that may not be overtaken did not fit, or as many as may be were searched for in vain.
    barrier: Option<Reason>,
    /// The first job that waits for room of whose memory nothing at all is known. Those behind it, of whose commands more is known, do not
    /// take it away bit by bit.
    unknown_waits: Option<JobId>,
    /// A job waits that is over the bound on its start.
    overdue_waits: bool,
    /// A job waits for a prediction that the next plan has.
    awaited: bool,
    /// A job waits for other than its user's limits.
    left_waiting: bool,
    /// How jobs that were searched for in vain start up.
    starts: BTreeSet<Startup>,
    /// Kinds of jobs that were searched for in vain.
    misses: usize,
    /// What was searched for in vain for each user.
    in_vain: BTreeMap<u32, InVain>,
    /// The last job that was searched for.
    last: Option<JobId>,
    /// For no user more is searched for than idle GPUs.
    all_served: bool,
    /// Idle GPUs are left.
    has_idle: bool,
    /// Jobs that may still be looked at for those.
    for_idle: usize,
    /// Jobs that may still be passed over.
    may_pass: usize,
}

impl<'a, 'p> Walk<'a, 'p> {
    fn new(
        (state, now, detail): (&'a State, Millis, Detail),
        (places, takes): (&'p mut Places<'a>, &'p mut Takes<'a>),
        plan: &'p mut Plan,
    ) -> Self {
        if detail == Detail::Reasons {
            plan.waiting.reserve(state.queue().len());
        }
        Self {
            state,
            now,
            detail,
            places,
            takes,
            plan,
            blinds: Blinds::of(state, now),
            beneficiaries: room::beneficiaries(state),
            failed: Failed::default(),
            barrier: None,
            unknown_waits: None,
            overdue_waits: false,
            awaited: false,
            left_waiting: false,
            starts: BTreeSet::new(),
            misses: 0,
            in_vain: BTreeMap::new(),
            last: None,
            all_served: false,
            has_idle: true,
            for_idle: MOST_FOR_IDLE,
            may_pass: MOST_PASSED,
        }
    }

    fn along_the_queue(&mut self) {
        let mut line = self.state.queue().line(self.now);
        let mut ahead = VecDeque::with_capacity(AHEAD);
        loop {
            if ahead.is_empty() {
                ahead.extend(line.by_ref().take(AHEAD));
                if self.barrier.is_none() && self.state.queue().len() > CACHED {
                    prefetch(ahead.iter().map(|(_, job)| *job));
                }
            }
            let Some((key, job)) = ahead.pop_front() else { break };
            match &self.barrier {
                None => self.look_at(key, job),
                Some(_) if self.detail == Detail::Actions => break,
                // Limits are known without a search.
                Some(reason) => {
                    let bars = self.takes.bars(job, key.recovery.0, self.now);
                    self.plan.waiting.push((key.id, bars.unwrap_or_else(|| reason.clone())));
                }
            }
        }
    }

    /// Places a job, or says why it waits.
    fn look_at(&mut self, key: &QueueKey, job: &'a Job) {
        let for_idle = self.last.filter(|_| self.is_served(job));
        if let Some(last) = for_idle.filter(|_| !self.has_idle) {
            self.pass_over(job, last);
            return;
        }
        if self.is_kept_back(key, job) {
            return;
        }
        let mut want = Want::of(self.state, job, self.now, self.blinds.as_ref());
        if let Some(waits) = self.unknown_waits {
            want = want.behind_unknown(waits);
        }
        // GPUs are kept for it alone.
        want.particular |= self.beneficiaries.contains(&key.id);
        if let Some(placement) = self.places.place_idle(job, &want) {
            self.launch(job, placement);
        } else if let Some(last) = for_idle {
            self.look_for_idle(job, &want, last);
        } else {
            self.search_for(key, job, want);
        }
    }

    /// Whether a job waits whatever is free: for a pause after a launch that failed, or for its user's limits.
    fn is_kept_back(&mut self, key: &QueueKey, job: &Job) -> bool {
        if let Some(until) = job.not_before.filter(|until| *until > self.now) {
            self.plan.wake_at(until);
            self.left_waiting = true;
            self.waits(key.id, |_| {
                let error = job.past.last().map_or_else(String::new, |a| match &a.verdict {
                    Reason::NotLaunched { why } => why.clone(),
                    other => other.to_string(),
                });
                Reason::Pause { error, until }
            });
            return true;
        }
        let bars = self.takes.bars(job, key.recovery.0, self.now);
        let is_barred = bars.is_some();
        if let Some(reason) = bars {
            self.takes.spent |= reason.is_of_quota();
            self.waits(key.id, |_| reason);
        }
        is_barred
    }

    /// Leaves a job for the next plan: as much as may be was searched for in vain for its user, and `last` of all.
    fn pass_over(&mut self, job: &Job, last: JobId) {
        self.waits(job.spec.id, |_| Reason::Later { last });
        self.may_pass -= 1;
        if self.may_pass == 0 {
            self.barrier = Some(Reason::Later { last });
        }
    }

    /// Places a job on idle GPUs if it may have those: as much as may be was searched for in vain for its user, and `last` of all.
    fn look_for_idle(&mut self, job: &Job, want: &Want, last: JobId) {
        self.for_idle -= 1;
        let slots = self.places.slots();
        let found = if slots.has_idle_for(want) { slots.find(want).ok() } else { None };
        if let Some(found) = found {
            let placement = slots.place(job, want, found);
            self.launch(job, placement);
        } else {
            self.waits(job.spec.id, |_| Reason::Later { last });
        }
        self.has_idle = self.for_idle > 0 && self.places.slots().has_idle();
        self.stop_if_in_vain(last);
    }

    /// Places a job on the GPUs that do for it and are the best of those, with fewer threads if need be.
    fn search_for(&mut self, key: &QueueKey, job: &Job, mut want: Want) {
        let slots = self.places.slots();
        match slots.lower_floor(job, &want) {
            Some((from, floor)) if from <= self.now => want = want.after_waiting(job, floor),
            Some((from, _)) => self.plan.wake_at(from),
            None => {}
        }
        let kind = self.failed.kind(slots.kind(&want));
        let limited = slots.limited;
        let uid = job.spec.user.uid;
        let mut found = self.search(kind, &want, uid).map(|found| (want, found));
        if found.is_none() && limited {
            found = want.narrower().find_map(|want| {
                let kind = self.failed.kind(self.places.slots().kind(&want));
                Some((want, self.search(kind, &want, uid)?))
            });
        }
        match found {
            Some((want, found)) => {
                let placement = self.places.slots().place(job, &want, found);
                self.launch(job, placement);
            }
            None => self.not_found(key, job, &want, kind),
        }
    }

    /// GPUs for a job of this kind, if it is not known that there are none.
    fn search(&mut self, kind: usize, want: &Want, uid: u32) -> Option<Found> {
        if self.failed.knows(kind, want) {
            return None;
        }
        let slots = self.places.slots();
        let found = slots.find(want);
        if let Err(room) = &found {
            self.failed.learn(kind, want, *room);
            // Those that fit nowhere keep none out that does.
            if !want.narrowed && !slots.is_cheap(want) {
                self.misses += 1;
                self.in_vain.entry(uid).or_default().misses += 1;
            }
        }
        found.ok()
    }

    /// What follows from it that nothing was found for a job.
    fn not_found(&mut self, key: &QueueKey, job: &Job, want: &Want, kind: usize) {
        let slots = self.places.slots();
        self.left_waiting = true;
        self.unknown_waits = self.unknown_waits.or_else(|| want.waits_as_unknown(slots).then_some(key.id));
        self.starts.insert(want.start);
        let blinds = self.blinds.as_ref().filter(|_| want.blind.is_some());
        if let Some(at) = blinds.and_then(|blinds| blinds.tries_with_less_at(job)) {
            self.plan.wake_at(at);
        }
        if slots.awaits_prediction(want) {
            self.awaited = true;
            self.plan.wake_at(self.now);
        }
        if self.blocks_others(key, job, want) {
            let overtaken_for = self.state.options().policy.backfill;
            self.barrier = Some(Reason::Behind { job: key.id, overtaken_for });
        }
        self.waits(key.id, |walk| walk.failed.reason(walk.places.slots(), kind, want));
        self.keep_gpus(job, want);
        self.count_in_vain(job, want);
    }

    /// Whether a job that waits may not be overtaken.
    fn blocks_others(&mut self, key: &QueueKey, job: &Job, want: &Want) -> bool {
        let policy = &self.state.options().policy;
        match policy.backfill {
            // Recovered jobs wait without blocking others.
            _ if key.recovery.0 || policy.line.is_by_length() => false,
            None => true,
            Some(limit) => self.now.since(job.queued) > limit && self.places.slots().can_ever_fit(want),
        }
    }

    /// Keeps GPUs for a job that jobs behind it would else keep out for ever, and makes room for it where that pays.
    fn keep_gpus(&mut self, job: &Job, want: &Want) {
        let slots = self.places.slots();
        let has_room = self.beneficiaries.contains(&want.job);
        // Those that make room come back before all that wait: for a job behind others that are overdue they would take the
        // GPUs that are kept for these.
        let may_make_room =
            !has_room && (!self.overdue_waits || job.is_urgent()) && room::is_entitled(self.state, job, want);
        let makes_room = may_make_room && room::make(self.state, job, want, slots, self.plan);
        self.overdue_waits = self.overdue_waits || want.overdue;
        if !(want.holds || has_room) {
            return;
        }
        // What fails is the same as long as no more is kept.
        if slots.hold(want) {
            self.failed = Failed::default();
        }
        // Where others leave for it, all of its GPUs are free soon.
        if !has_room && !makes_room && slots.lend(want) {
            self.failed = Failed::default();
        }
    }

    /// Where jobs go by length, so many are searched for in vain in one plan, and then only idle GPUs are given away.
    fn count_in_vain(&mut self, job: &Job, want: &Want) {
        if !self.state.options().policy.line.is_by_length() {
            return;
        }
        let slots = self.places.slots();
        if slots.is_cheap(want) {
            let in_vain = self.in_vain.entry(job.spec.user.uid).or_default();
            let like = Some((want.class, want.need));
            in_vain.full += usize::from(in_vain.like != like);
            in_vain.like = like;
        }
        self.has_idle = self.for_idle > 0 && slots.has_idle();
        self.last = Some(job.spec.id);
        let served = self.in_vain.values().filter(|of| self.is_enough(of)).count();
        self.all_served = self.misses >= most_asked(self.state) || served >= self.state.queue().users();
        self.stop_if_in_vain(job.spec.id);
    }

    /// Whether as much as may be was searched for in vain for the user of a job.
    fn is_served(&self, job: &Job) -> bool {
        self.all_served || self.in_vain.get(&job.spec.user.uid).is_some_and(|of| self.is_enough(of))
    }

    fn is_enough(&self, in_vain: &InVain) -> bool {
        let most_full = (MOST_LOOKS / self.state.gpus().len().max(1)).clamp(MOST_MISSES, MOST_FULL);
        let least = if self.misses >= MOST_MISSES { LEAST_OF_A_USER } else { MOST_MISSES };
        in_vain.misses >= least || in_vain.full > most_full / self.state.queue().users().max(1)
    }

    /// Nothing is looked for any more once all users have had enough, and no idle GPU is left for another.
    fn stop_if_in_vain(&mut self, last: JobId) {
        // One that awaits a prediction may take an idle GPU in the next plan, and goes before those behind it.
        if self.all_served && (self.awaited || !self.has_idle) {
            self.barrier = Some(Reason::Later { last });
        }
    }

    fn launch(&mut self, job: &Job, placement: Placement) {
        self.takes.take(job);
        self.plan.actions.push(Action::Launch { job: job.spec.id, placement });
    }

    /// Says why a job waits, if that is asked.
    fn waits(&mut self, id: JobId, why: impl FnOnce(&mut Self) -> Reason) {
        if self.detail == Detail::Reasons {
            let reason = why(self);
            self.plan.waiting.push((id, reason));
        }
    }

    /// When time alone lets one of those that wait start, or go before another.
    fn wake_for_those_that_wait(&mut self) {
        let (state, now) = (self.state, self.now);
        self.starts.remove(&Startup::default());
        let starts = std::mem::take(&mut self.starts);
        let over = starts.iter().filter_map(|start| self.places.slots().next_over_before(*start)).min();
        if let Some(until) = over {
            self.plan.wake_at(now + until.max(SOON));
        }
        if state.options().policy.line.is_by_length() {
            // The next bound passes, or one job over its bound comes to be before another.
            let next = [state.queue().next_due(now), state.queue().next_turn(now)];
            next.into_iter().flatten().for_each(|at| self.plan.wake_at(at));
        }
    }
}

/// A tenant that shows no activity keeps its GPU closed to jobs that wait, until patience ends. So do the jobs that are left after an eviction
/// and tell nothing; and what is not ours is given time to leave.
fn wake_when_patience_ends(state: &State, now: Millis, plan: &mut Plan) {
    let policy = &state.options().policy;
    // Only there one job is in the way of others.
    if policy.line.is_by_length() || policy.backfill.is_some() {
        let passes = state.gpus().iter().filter_map(Gpu::passes_until).filter(|until| *until > now);
        passes.for_each(|until| plan.wake_at(until));
    }
    let patience = state.options().startup_patience;
    let relieved = state.gpus().iter().filter_map(|gpu| gpu.relieved_until(state.options()));
    relieved.filter(|until| *until > now).for_each(|until| plan.wake_at(until));
    for tenant in state.gpus().iter().flat_map(|gpu| &gpu.tenants) {
        let ends = tenant.placed + patience;
        if !tenant.settled && tenant.active_since.is_none() && ends > now {
            plan.wake_at(ends);
        }
        if let Some(until) = tenant.rising_until(state.options()).filter(|until| *until > now) {
            plan.wake_at(until);
        }
    }
    let launches = |a: &Action| matches!(a, Action::Launch { .. });
    if plan.actions.iter().any(launches) {
        plan.wake_at(now + patience);
    }
}

//! The scheduler that counts: carma's own core, the same that the daemon runs.
//!
//! It is given the inputs that the daemon would give it, and its plans are carried out. What differs
//! from life: a launch takes no time beyond the task's own start-up, a GPU is looked at exactly when
//! something changes on it, and readings never go stale.

use super::Setup;
use super::counts::Counts;
use super::knowledge::{Known, RunTimesKnown};
use super::outcome::End;
use super::outlooks::Outlooks;
use super::scheduler::{Decision, Fate, Left, Look, Scheduler};
use super::world::{GpuIndex, JobIndex, Stage, Terms, World};
use crate::trace::{CatalogueTask, WorkJob, Workload};
use carma_core::input::Observation;
use carma_core::model::{
    EndCause, Exit, ExitStatus, GpuId, Job, JobId, NewJob, Phase, Placement, ProcessRef, Profile, Request,
    RunTime, SuspendStep, User,
};
use carma_core::plan::{Detail, Plan, ends, may_spread, plan_in};
use carma_core::policy::{Gate, GateVerdict, Order};
use carma_core::reading::{GpuInfo, Health};
use carma_core::recovery::{Evidence, EvidenceKind, Said};
use carma_core::units::{Fraction, MiB, Millis};
use carma_core::windows::WindowSummary;
use carma_core::{Action, Input, State};
use carma_run_time::{Class, Run, RunTimes, Running, news};
use std::cell::LazyCell;
use std::collections::BTreeMap;
use std::sync::Arc;

pub(crate) struct CoreScheduler<'a> {
    pub(super) state: State,
    workload: &'a Workload,
    users: Vec<User>,
    /// Of each job, the first of its task, which stands for its command.
    commands: Vec<u64>,
    known: Known,
    /// Whether what the windows show can matter to the policy, and whether its exact value does.
    reads_windows: bool,
    ranks_windows: bool,
    /// What the gate last said of each GPU, and the GPUs whose windows are still moving.
    verdicts: Vec<GateVerdict>,
    moving: Vec<GpuIndex>,
    wake: Option<Millis>,
    /// Whether something has changed since the last plan that could let a job start, and when time alone may.
    changed: bool,
    due: Option<Millis>,
    /// A GPU with several jobs looks different, and it matters to the policy whether it is about to run full.
    crowded: bool,
    /// What the trace's own earlier jobs teach of those that come.
    run_times: RunTimes,
    /// What running jobs count, where they do.
    counts: Option<Counts>,
    /// Where slowdown is limited, or the order goes by it.
    outlooks: Option<Outlooks>,
    /// Inputs that the core refused: a bug, reported with the result.
    pub(crate) refused: Vec<String>,
}

impl<'a> CoreScheduler<'a> {
    pub(crate) fn new(workload: &'a Workload, inventory: Vec<GpuInfo>, setup: &Setup) -> Self {
        let mut options = setup.options.clone();
        // A GPU is looked at when something changes: a reading is as good as the day it was taken.
        options.stale_after = Millis(u64::MAX / 4);
        let gated = options.policy.gate != Gate::None;
        let ranks_windows = options.policy.order == Order::Lug;
        let gpus = inventory.len();
        let outlooks = Outlooks::wanted(setup, gpus, workload.jobs.len());
        let users = (0..).zip(&workload.users).map(|(uid, name)| User::new(1000 + uid, Arc::clone(name)));
        let known = Known::new(setup.knowledge);
        let mut it = Self {
            state: State::default(),
            workload,
            users: users.collect(),
            commands: commands(workload, known.learns_tasks()),
            reads_windows: gated || ranks_windows,
            ranks_windows,
            verdicts: vec![GateVerdict::Open; gpus],
            moving: Vec::new(),
            wake: None,
            changed: true,
            due: None,
            crowded: false,
            run_times: RunTimes::default(),
            counts: (known.run_times() == RunTimesKnown::Counted).then(Counts::default),
            outlooks,
            known,
            refused: Vec::new(),
        };
        it.apply(Millis::ZERO, &Input::Configured(Box::new(options)));
        it.apply(Millis::ZERO, &Input::Inventory(inventory));
        it
    }

    fn apply(&mut self, now: Millis, input: &Input) -> Option<carma_core::Applied> {
        match self.state.apply(now, input) {
            Ok(applied) => Some(applied),
            Err(error) => {
                self.refused.push(format!("at {now}: {error}"));
                None
            }
        }
    }

    /// The class of a job in forecasts of run time: its task is its command, which other users run, too. Tasks without a name are told
    /// apart by their GPUs alone.
    fn class(&self, job: JobIndex) -> Class {
        let it = &self.workload.jobs[job as usize];
        let (user, gpus) = (&self.workload.users[it.user as usize], it.gpus.to_string());
        match it.task.name.is_empty() {
            true => Class::of(user, &gpus, ""),
            false => Class::of(user, &it.task.name, &gpus).shared_as(&format!("{} {gpus}", it.task.name)),
        }
    }

    /// How long a job is expected to run.
    fn expected(&self, job: JobIndex) -> Option<RunTime> {
        let told = self.known.run_time(self.command(job), &self.workload.jobs[job as usize]);
        let running = LazyCell::new(|| self.running());
        told.or_else(|| self.forecast(job, &self.class(job), || &running))
    }

    /// What runs that are over, and those at work, say of a job's run time.
    fn forecast<'r>(
        &self,
        job: JobIndex,
        class: &Class,
        running: impl Fn() -> &'r [Running],
    ) -> Option<RunTime> {
        let forecast = self.run_times.forecast(class, running)?;
        let told = self.known.learned(self.command(job), forecast);
        Some(self.state.job(id(job)).map_or(told, |job| job.takes_beyond_its_attempts(told)))
    }

    /// The jobs that run, as far as forecasts of run time learn from them.
    fn running(&self) -> Vec<Running> {
        let jobs = self.state.active_jobs();
        let running = |job: &Job| Running {
            class: self.class(index(job.spec.id)),
            done_s: self.state.done(job).0 / 1000,
            count_s: job.counted_run().map(|run| run.0.div_ceil(1000)),
        };
        jobs.map(running).collect()
    }

    fn command(&self, job: JobIndex) -> u64 {
        self.commands.get(job as usize).copied().unwrap_or_default()
    }

    /// Tells the core how far running jobs are by their own counts, where that is news.
    fn count(&mut self, now: Millis, world: &World) {
        let Some(counts) = &mut self.counts else { return };
        let mut teachers = Vec::new();
        for input in counts.news(now, &self.state, world) {
            let Input::Counted { job, .. } = input else { continue };
            self.apply(now, &input);
            if let (Some(counts), Some(job)) = (&mut self.counts, self.state.job(job))
                && counts.heard.is_news(job)
            {
                teachers.push(job.spec.id);
            }
        }
        for job in teachers {
            self.tell_run_times(now, index(job));
        }
    }

    /// A job is over, or counts: of the first that wait, those of its task, of any user, and those of which little is known hear what it takes,
    /// as the daemon's do.
    fn tell_run_times(&mut self, now: Millis, teacher: JobIndex) {
        let by_length = self.state.options().policy.line.is_by_length();
        if !by_length || self.known.run_times() == RunTimesKnown::True {
            return;
        }
        let running = LazyCell::new(|| self.running());
        let line = self.state.queue().line(now);
        let line = line.map(|(_, job)| (job, Some(self.class(index(job.spec.id)))));
        let news = news::told(line, Some(self.class(teacher))).filter_map(|(job, class)| {
            let run_time = self.forecast(index(job.spec.id), &class?, || &running)?;
            news::is_news(job.spec.run_time.as_ref(), &run_time).then_some((job.spec.id, run_time))
        });
        let news: Vec<_> = news.collect();
        for (job, run_time) in news {
            self.apply(now, &Input::RunTime { job, run_time });
        }
    }

    /// A job is over: where that is how memory is learned, the others of its task hear of it.
    fn learn_memory(&mut self, now: Millis, job: JobIndex) {
        let command = self.command(job);
        let most = self.workload.jobs[job as usize].task.memory.iter().max().copied();
        let Some(computed) = most.and_then(|most| self.known.ran(command, most)) else { return };
        let measured = Some(computed.likely);
        let waits = |job: &&Arc<Job>| {
            job.spec.command_key == command && matches!(job.phase, Phase::Pending | Phase::Held { .. })
        };
        let waiting: Vec<JobId> = self.state.jobs().values().filter(waits).map(|job| job.spec.id).collect();
        for job in waiting {
            self.apply(now, &Input::Forecast { job, computed, measured });
        }
    }

    /// Shows the core a GPU as it is now.
    fn observe(&mut self, now: Millis, gpu: GpuIndex, world: &World) {
        let here = &world.gpus[gpu as usize];
        // A policy that does not read windows gets none: most of an observation's cost is theirs.
        let window = if self.reads_windows {
            let window = here.history.summary(now.0, self.state.options().window.0);
            self.verdicts[gpu as usize] = self.state.options().policy.gate.judge(&window);
            window
        } else {
            WindowSummary::default()
        };
        // A job that ran out of memory while it loaded was there, with what it got.
        let held = here.tenants.iter().map(|job| (*job, world.held(*job, gpu)));
        let on_it =
            held.filter(|(job, held)| world.jobs[*job as usize].stage == Stage::Active || *held > MiB::ZERO);
        let jobs = on_it.map(|(job, held)| (id(job), Some(held))).collect();
        let seen = Observation {
            at: now,
            health: Health::Ok,
            used: Some(MiB(here.used)),
            jobs,
            foreign: Vec::new(),
            processes_known: true,
            window,
            energy_mj: None,
        };
        self.apply(now, &Input::Observed { gpu: GpuId(gpu), seen: Box::new(seen) });
        self.crowded |= self.state.options().policy.blind && here.tenants.len() > 1;
    }

    /// Looks at the GPUs whose windows are moving, and shows the core those that look different.
    fn refresh_windows(&mut self, now: Millis, world: &World) -> Look {
        let span = self.state.options().window.0;
        let gate = self.state.options().policy.gate;
        let moving = std::mem::take(&mut self.moving);
        let mut look = Look { seen: moving.len() as u64, news: false };
        let mut still = Vec::with_capacity(moving.len());
        for gpu in moving {
            let history = &world.gpus[gpu as usize].history;
            if !history.is_steady(now.0, span) {
                still.push(gpu);
            }
            let same = || {
                let verdict = gate.judge(&history.summary(now.0, span));
                (verdict == GateVerdict::Open) == (self.verdicts[gpu as usize] == GateVerdict::Open)
            };
            if self.ranks_windows || !same() {
                self.observe(now, gpu, world);
                look.news = true;
            }
        }
        self.moving = still;
        look
    }

    /// Tells the core what was measured, if that is due; whether it was, and when something is next measured or learned.
    fn measure(&mut self, now: Millis, world: &World) -> (bool, Option<Millis>) {
        let Some(outlooks) = &mut self.outlooks else { return (false, None) };
        let learns = outlooks.learn(now, &self.state, self.workload, &mut self.known, world);
        let (due, next) = outlooks.measure(now, &self.state, world);
        let next = [learns, next].into_iter().flatten().min();
        for input in &due {
            self.apply(now, input);
        }
        (!due.is_empty(), next)
    }

    /// Whether the model has learned: the core hears of it.
    fn learned(&mut self, now: Millis) -> bool {
        let news = self.outlooks.as_mut().is_some_and(|outlooks| outlooks.news(now));
        if news {
            self.apply(now, &Input::Learned);
        }
        news
    }

    /// Tells the core what it wants to know of placements that it may think of; whether that is all of it.
    fn predict(&mut self, now: Millis) -> bool {
        for _ in 0..ROUNDS {
            let Some(outlooks) = &mut self.outlooks else { return true };
            let (answers, more) = outlooks.answers(&self.state, self.workload, &self.known);
            if answers.is_empty() {
                return true;
            }
            self.apply(now, &Input::Predicted(answers));
            if !more {
                return true;
            }
        }
        false
    }

    /// What is to be done now. Where nothing has changed that could let a job start (a measurement cannot), no placement is
    /// searched for.
    fn plan(&mut self, now: Millis) -> Plan {
        let plan = if self.changed || self.due.is_some_and(|due| due <= now) {
            // What running jobs have done until now counts.
            self.apply(now, &Input::Tick);
            let told_all = self.predict(now);
            let plan = plan_in(&self.state, now, Detail::Actions);
            let waits = self.outlooks.is_some() && !self.state.queue().is_empty();
            let again = waits.then_some(now + LOOKS_AGAIN);
            (self.changed, self.due) = (!told_all, [plan.wake, again].into_iter().flatten().min());
            plan
        } else {
            ends(&self.state, now)
        };
        self.changed |= !plan.actions.is_empty();
        plan
    }

    /// A launch was decided: in the world it takes no time.
    fn launched(&mut self, now: Millis, job: JobId, placement: Placement) -> Decision {
        let started = Input::Started {
            job,
            attempt: placement.attempt,
            supervisor: SUPERVISOR,
            child: None,
            sharing: placement.sharing,
            note: None,
        };
        self.apply(now, &started);
        let terms = Terms {
            cap: placement.cap,
            threads: placement.thread_percent,
            ..Terms::plain(placement.sharing)
        };
        let gpus = self.loads_on(&placement.gpus);
        Decision::Start { job: index(job), gpus, terms }
    }

    /// A job comes to GPUs, and loads there.
    fn loads_on(&mut self, gpus: &[GpuId]) -> Vec<GpuIndex> {
        let gpus: Vec<GpuIndex> = gpus.iter().map(|gpu| gpu.0).collect();
        if let Some(outlooks) = &mut self.outlooks {
            gpus.iter().for_each(|gpu| outlooks.unsettled(*gpu));
        }
        gpus
    }

    /// A job leaves its GPUs, which takes a while: what its neighbours do meanwhile they do not do beside it.
    fn stands_still(&mut self, job: JobId) {
        let gpus = self.state.job(job).and_then(Job::placement).map(|placement| &placement.gpus);
        if let (Some(gpus), Some(outlooks)) = (gpus, &mut self.outlooks) {
            gpus.iter().for_each(|gpu| outlooks.unsettled(gpu.0));
        }
    }

    /// A job is to end: it does so at once, and there is more to plan.
    fn ended(&mut self, now: Millis, job: JobId, attempt: u32, cause: &EndCause) -> Decision {
        let how = match cause {
            EndCause::GrowthGuard(_) => End::GrowthGuard,
            _ => End::Evicted,
        };
        let exit = Exit::of(ExitStatus::Signal(TERMINATED));
        let ran = self.state.job(job).map(|job| self.state.done(job));
        self.apply(now, &Input::Exited { job, attempt, exit });
        if let Some(ran) = ran {
            let run = Run { seconds: ran.0.div_ceil(1000), cut: true };
            self.run_times.learn(&self.class(index(job)), run);
            self.tell_run_times(now, index(job));
        }
        self.wake = Some(now + Millis(1));
        Decision::Evict { job: index(job), how }
    }

    /// Jobs of a GPU that are off it now, or at work on it again, after a decision to suspend or to resume them.
    fn halted(&mut self, now: Millis, gpu: GpuIndex, world: &World) {
        let mut done = Vec::new();
        for job in self.state.halted_jobs() {
            let (Some(suspension), Some(placement)) = (job.suspension(), job.placement()) else { continue };
            if !placement.gpus.contains(&GpuId(gpu)) {
                continue;
            }
            let (job, attempt) = (job.spec.id, placement.attempt);
            match (suspension.step, world.jobs[index(job) as usize].stage) {
                (SuspendStep::Suspending, Stage::Away) => {
                    let tenants = self.state.gpus().iter().filter_map(|gpu| gpu.tenant(job));
                    let host = tenants.filter_map(|tenant| tenant.observed).sum();
                    done.push(Input::Suspended { job, attempt, host });
                }
                (SuspendStep::Resuming, Stage::Active) => done.push(Input::Resumed { job, attempt }),
                _ => {}
            }
        }
        for input in &done {
            self.apply(now, input);
        }
    }

    /// Whether the job at the head finds idle GPUs, so that no job's activity matters.
    fn idle_will_do(&self) -> bool {
        let queue = self.state.queue();
        let head = queue.jobs().next().map_or(0, |(_, job)| job.spec.request.gpus as usize);
        self.state.options().policy.idle_first && queue.len() == 1 && self.state.idle_count() >= head
    }
}

/// Of each job, the first of its task. `of_user`: of its user's jobs of that task, as the daemon learns what a command does for its user
/// alone.
fn commands(workload: &Workload, of_user: bool) -> Vec<u64> {
    let mut first: BTreeMap<(*const CatalogueTask, Option<u32>), u64> = BTreeMap::new();
    let of = |(at, job): (u64, &WorkJob)| {
        *first.entry((Arc::as_ptr(&job.task), of_user.then_some(job.user))).or_insert(at)
    };
    (0..).zip(&workload.jobs).map(of).collect()
}

pub(super) const fn id(job: JobIndex) -> JobId {
    JobId(job as u64 + 1)
}

pub(super) fn index(job: JobId) -> JobIndex {
    u32::try_from(job.0.saturating_sub(1)).unwrap_or(u32::MAX)
}

/// What is known of a task beforehand.
fn profile(task: &CatalogueTask) -> Profile {
    let gpu_util = task.activity.gract.and_then(Fraction::from_f64);
    Profile { gpu_util, score: task.lucid_score, ..Profile::default() }
}

/// How often the core may ask on at one instant; the daemon's asks on with each of its turns.
const ROUNDS: usize = 4;

/// While jobs wait their places are looked for this often, also where nothing happens: what running jobs have left is an estimate that
/// moves with time, and the daemon looks all the time.
const LOOKS_AGAIN: Millis = Millis::secs(60);

/// Number of SIGTERM.
const TERMINATED: i32 = 15;

const SUPERVISOR: ProcessRef = ProcessRef { pid: 1, start_ticks: 0 };

impl Scheduler for CoreScheduler<'_> {
    fn came(&mut self, now: Millis, job: JobIndex, _world: &World) -> Fate {
        let it = &self.workload.jobs[job as usize];
        let command = self.command(job);
        let run_time = self.expected(job);
        let new = NewJob {
            id: id(job),
            user: self.users[it.user as usize].clone(),
            name: Arc::clone(&it.task.name),
            command_key: command,
            program_key: None,
            request: Request { thread_percent: it.threads, ..Request::of(it.gpus) },
            forecasts: self.known.forecasts(command, &it.task, self.state.options()),
            profile: profile(&it.task),
            run_time,
            hold: false,
        };
        self.changed = true;
        // A job that the cluster can't hold is refused at submission, as in life.
        match self.state.apply(now, &Input::Submitted(Box::new(new))) {
            Ok(_) => Fate::Goes,
            Err(_) => Fate::Lost,
        }
    }

    fn left(&mut self, now: Millis, job: JobIndex, how: Left, world: &World) -> Fate {
        let attempt =
            self.state.job(id(job)).and_then(Job::placement).map_or(0, |placement| placement.attempt);
        let exit = match how {
            Left::Completed => Exit::of(ExitStatus::Code(0)),
            Left::OutOfMemory(overflow) => Exit {
                evidence: Some(Evidence {
                    // PyTorch names the block that it could not have, not what the model needs in all.
                    kind: EvidenceKind::GpuOutOfMemory {
                        wanted: Some(MiB((overflow.wanted - overflow.free).min(BLOCK_MIB))),
                        // Of two messages, the one that says less: the core must manage without the numbers.
                        said: Said::default(),
                    },
                    line: String::from("CUDA out of memory"),
                }),
                ..Exit::of(ExitStatus::Code(1))
            },
        };
        let applied = self.apply(now, &Input::Exited { job: id(job), attempt, exit });
        self.changed = true;
        if how == Left::Completed {
            // As the daemon measures it: what was lost to neighbours is taken out.
            let seconds = world.jobs[job as usize].solo.div_ceil(1000);
            self.run_times.learn(&self.class(job), Run { seconds, cut: false });
            self.tell_run_times(now, job);
            self.learn_memory(now, job);
        }
        let over = applied.is_none_or(|applied| !applied.finished.is_empty());
        match how {
            Left::OutOfMemory(_) if over => Fate::Lost,
            Left::Completed | Left::OutOfMemory(_) => Fate::Goes,
        }
    }

    fn changed(&mut self, now: Millis, gpu: GpuIndex, world: &World) {
        if let Some(outlooks) = &mut self.outlooks {
            outlooks.changed(now, gpu, world);
        }
        self.changed = true;
        self.halted(now, gpu, world);
        self.observe(now, gpu, world);
    }

    fn next_look(&self, now: Millis, job: JobIndex) -> Option<Millis> {
        let placement = self.state.job(id(job)).and_then(Job::placement)?;
        let tenants = placement.gpus.iter().filter_map(|gpu| self.state.gpu(*gpu)?.tenant(id(job)));
        tenants.filter_map(|tenant| tenant.next_look(now, self.state.options())).min()
    }

    fn stirred(&mut self, gpu: GpuIndex) {
        if self.reads_windows && !self.moving.contains(&gpu) {
            self.moving.push(gpu);
        }
    }

    fn decide(&mut self, now: Millis, world: &World) -> Vec<Decision> {
        let (measured, next) = self.measure(now, world);
        let crowded = std::mem::take(&mut self.crowded);
        let none_waits = self.state.queue().is_empty() && self.state.halted().is_empty() && !measured;
        // What is measured may show that a move pays.
        let spreads = (self.changed || measured) && may_spread(&self.state);
        self.changed |= spreads;
        let none_waits = none_waits && !spreads;
        if none_waits && !crowded {
            self.wake = next;
            return Vec::new();
        }
        let plan = if none_waits {
            self.due = None;
            ends(&self.state, now)
        } else {
            if !self.idle_will_do() {
                self.changed |= self.refresh_windows(now, world).news;
            }
            self.changed |= self.learned(now);
            self.count(now, world);
            self.plan(now)
        };
        // By predictions a plan starts a job where nothing is asked of others yet that would join it: the daemon's next turn asks.
        let more =
            self.outlooks.is_some() && plan.actions.iter().any(|it| matches!(it, Action::Launch { .. }));
        let again = more.then_some(now + Millis(1));
        self.wake = [self.due, plan.wake, next, again].into_iter().flatten().min();
        let mut decisions = Vec::with_capacity(plan.actions.len());
        for action in plan.actions {
            let action = Box::new(action);
            let input = Input::Decided(action);
            if self.apply(now, &input).is_none() {
                continue;
            }
            let Input::Decided(action) = input else { continue };
            match *action {
                Action::Launch { job, placement } => decisions.push(self.launched(now, job, placement)),
                Action::End { job, attempt, cause, .. } => {
                    decisions.push(self.ended(now, job, attempt, &cause));
                }
                Action::Suspend { job, .. } => {
                    self.stands_still(job);
                    decisions.push(Decision::Suspend { job: index(job) });
                }
                Action::Resume { job, gpus, .. } => {
                    let gpus = self.loads_on(&gpus);
                    decisions.push(Decision::Resume { job: index(job), gpus });
                }
                Action::SetState { .. } => {}
            }
        }
        decisions
    }

    fn wake(&self) -> Option<Millis> {
        self.wake
    }

    fn watches(&self) -> bool {
        !self.moving.is_empty() && !self.state.queue().is_empty()
    }

    #[cfg(debug_assertions)]
    fn check(&self) -> Vec<String> {
        // Every job that waits is looked at: of thousands at every instant that would take hours.
        if self.state.jobs().len() > MOST_CHECKED {
            Vec::new()
        } else {
            carma_core::check::check(&self.state)
        }
    }

    fn look(&mut self, now: Millis, world: &World) -> Look {
        let look = self.refresh_windows(now, world);
        self.changed |= look.news;
        look
    }
}

/// A state with more jobs is not checked at every instant.
#[cfg(debug_assertions)]
const MOST_CHECKED: usize = 128;

/// What PyTorch's allocator asks the driver for at a time, about; large tensors take more.
const BLOCK_MIB: u64 = 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::engine::complete;
    use crate::event::knowledge::{Errors, Knowledge, TasksKnown};
    use crate::event::watched::{Notes, play};
    use crate::event::{Cluster, Setup};
    use crate::trace::Activity;
    use carma_core::model::{RunsOf, SharingMode};
    use carma_core::policy::{Order, Policy, presets};
    use carma_hardware::GpuTypes;

    /// What the core was told of each job's run time.
    #[derive(Default)]
    struct Told(Vec<Option<RunTime>>);

    impl Notes for Told {
        fn came(&mut self, core: &CoreScheduler<'_>, _: Millis, job: JobIndex) {
            self.0.push(core.state.job(id(job)).unwrap().spec.run_time);
        }
    }

    /// What is known and assumed of each task's SMs, whenever something is decided.
    #[derive(Default)]
    struct Activities(Vec<(Millis, Tasks)>);

    /// Of each: whether it is known, and what is assumed, percent.
    type Tasks = Vec<(bool, Option<f64>)>;

    impl Notes for Activities {
        fn decided(&mut self, core: &CoreScheduler<'_>, now: Millis, _: &[Decision], _: &World) {
            let guesses = &core.outlooks.as_ref().unwrap().activity.guesses;
            let of = |command: &u64| {
                let assumed =
                    guesses.get(command).and_then(|guess| Some(guess.profile().metrics.smact_pct?.mean));
                (core.known.is_active_known(*command), assumed)
            };
            self.0.push((now, core.commands.iter().map(of).collect()));
        }
    }

    fn job(task: &Arc<CatalogueTask>, arrival: u64, duration: u64) -> WorkJob {
        WorkJob {
            line: 0,
            id: "x".into(),
            arrival: Millis::secs(arrival),
            duration: Millis::secs(duration),
            gpus: 1,
            user: 0,
            threads: None,
            task: Arc::clone(task),
        }
    }

    /// Since when all jobs on the first GPU are at work, at each decision to suspend one.
    #[derive(Default)]
    struct Suspensions(Vec<Option<Millis>>);

    impl Notes for Suspensions {
        fn decided(&mut self, core: &CoreScheduler<'_>, _: Millis, decisions: &[Decision], _: &World) {
            if decisions.iter().any(|decision| matches!(decision, Decision::Suspend { .. })) {
                self.0.push(core.outlooks.as_ref().unwrap().company[0].1);
            }
        }
    }

    /// The younger of two jobs of unknown memory grows, and is suspended.
    #[test]
    fn what_jobs_do_while_one_of_them_leaves_is_not_measured() {
        let task = |name: &str, peak: u64, steps: [(f64, f64); 2]| {
            let activity = Activity { smact: Some(0.2), drama: Some(0.1), ..Activity::default() };
            Arc::new(CatalogueTask {
                name: name.into(),
                memory: vec![MiB(peak)],
                memory_over_time: steps.to_vec(),
                activity,
                startup: Some(Millis(1000)),
                ..CatalogueTask::default()
            })
        };
        let jobs = vec![
            job(&task("a", 6_000, [(0.0, 0.8), (0.5, 1.0)]), 0, 1000),
            job(&task("b", 36_000, [(0.0, 0.7), (0.02, 1.0)]), 0, 1000),
        ];
        let workload = Workload { users: vec!["u".into()], jobs, ..Workload::default() };
        let cluster = Cluster::parse("1xA100-40GB", &GpuTypes::built_in()).unwrap();
        let mut setup = Setup::new(presets::by_name("adaptive").unwrap(), SharingMode::TimeSlice, None, 1);
        setup.options.suspends = true;
        let workload = complete(&workload, &cluster, SharingMode::TimeSlice);
        let (_, Suspensions(since)) = play(&workload, &cluster, &setup, Suspensions::default());
        assert_eq!(since, [None]);
    }

    #[test]
    fn what_a_task_does_is_assumed_until_it_was_alone() {
        let task = |name: &str, smact: f64| {
            let activity = Activity {
                smact: Some(smact),
                smocc: Some(smact / 4.0),
                drama: Some(smact / 4.0),
                ..Activity::default()
            };
            Arc::new(CatalogueTask { name: name.into(), activity, ..CatalogueTask::default() })
        };
        let jobs = vec![
            job(&task("a", 0.2), 0, 400),
            job(&task("b", 0.1), 60, 500),
            job(&task("c", 0.5), 2000, 100),
        ];
        let workload = Workload { users: vec!["u".into()], jobs, ..Workload::default() };
        let cluster = Cluster::parse("1xH200", &GpuTypes::built_in()).unwrap();
        let knowledge = Knowledge { tasks: TasksKnown::Learned, ..Knowledge::default() };
        let policy = presets::by_name("adaptive").unwrap();
        let setup = Setup { knowledge, ..Setup::new(policy, SharingMode::Mps, None, 1) };
        let workload = complete(&workload, &cluster, SharingMode::Mps);
        let (_, Activities(seen)) = play(&workload, &cluster, &setup, Activities::default());
        // The first was alone until the second came, whose part of what the GPU does is 10 points, where a typical task does 40.
        let mut assumed = seen.iter().rev().filter_map(|(_, seen)| match seen[..] {
            [(true, None), (false, Some(second)), (false, None)] => Some(second),
            _ => None,
        });
        let last = assumed.next().unwrap_or_else(|| panic!("{seen:?}"));
        assert!((9.5..10.5).contains(&last), "{last}");
        // The second is alone when the first has ended, and so is the third.
        assert_eq!(seen.last().unwrap().1[..], [(true, None); 3]);
    }

    /// What is learned of a task alone does not wait for something else to happen, and is not held up by a neighbour that still loads.
    #[test]
    fn a_task_is_known_as_soon_as_it_was_alone_for_long_enough() {
        let task = |name: &str, startup| {
            let activity =
                Activity { smact: Some(0.1), smocc: Some(0.05), drama: Some(0.05), ..Activity::default() };
            let startup = Some(Millis::secs(startup));
            Arc::new(CatalogueTask { name: name.into(), activity, startup, ..CatalogueTask::default() })
        };
        let (first, second) = (job(&task("a", 10), 0, 400), job(&task("b", 30), 12, 400));
        let cluster = Cluster::parse("1xH200", &GpuTypes::built_in()).unwrap();
        let knowledge = Knowledge { tasks: TasksKnown::Learned, ..Knowledge::default() };
        let policy = presets::by_name("adaptive").unwrap();
        let setup = Setup { knowledge, ..Setup::new(policy, SharingMode::Mps, None, 1) };
        for jobs in [vec![first.clone()], vec![first, second]] {
            let workload = Workload { users: vec!["u".into()], jobs, ..Workload::default() };
            let workload = complete(&workload, &cluster, SharingMode::Mps);
            let (run, Activities(seen)) = play(&workload, &cluster, &setup, Activities::default());
            assert!(run.jobs.iter().all(|job| job.first_start < Some(Millis::secs(20))), "together");
            let known = seen.iter().find(|(_, tasks)| tasks[0].0).map(|(at, _)| *at);
            assert_eq!(known, Some(Millis::secs(10 + 15)));
        }
    }

    /// What is known of how long the first job takes, whenever something is decided while the second waits, and what the second is told.
    #[derive(Default)]
    struct Counted(Vec<(Option<Millis>, Option<u64>)>);

    impl Notes for Counted {
        fn decided(&mut self, core: &CoreScheduler<'_>, _: Millis, _: &[Decision], _: &World) {
            let counted = core.state.job(id(0)).and_then(|job| job.counted_run());
            let waits = core.state.job(id(1)).map(|job| job.spec.run_time.map(|run| run.median_s));
            self.0.extend(waits.map(|told| (counted, told)));
        }
    }

    #[test]
    fn a_job_that_counts_says_how_long_it_takes_and_how_long_others_of_its_task_do() {
        let task = Arc::new(CatalogueTask { name: "a".into(), ..CatalogueTask::default() });
        let jobs = vec![job(&task, 0, 20_000), job(&task, 10, 300)];
        let workload = Workload { users: vec!["u".into()], jobs, ..Workload::default() };
        let cluster = Cluster::parse("1xA100-40GB", &GpuTypes::built_in()).unwrap();
        let policy = Policy { order: Order::FirstFit, ..presets::by_name("adaptive").unwrap() };
        for (run_times, counts) in [(RunTimesKnown::Counted, true), (RunTimesKnown::Learned, false)] {
            let mut setup = Setup::new(policy.clone(), SharingMode::Exclusive, None, 1);
            setup.knowledge.run_times = run_times;
            let workload = complete(&workload, &cluster, SharingMode::Exclusive);
            let (_, Counted(seen)) = play(&workload, &cluster, &setup, Counted::default());
            let known = seen.iter().find_map(|(counted, told)| Some((counted.as_ref()?.0, (*told)?)));
            assert_eq!(known.is_some(), counts, "{seen:?}");
            if let Some((counted_ms, told_s)) = known {
                assert!((19_000_000..21_000_000).contains(&counted_ms), "{counted_ms}");
                assert!((19_000..21_000).contains(&told_s), "{told_s}");
            }
        }
    }

    #[test]
    fn a_job_is_forecast_from_those_of_its_task_that_are_over() {
        let task = Arc::new(CatalogueTask { name: "a".into(), ..CatalogueTask::default() });
        let workload = Workload {
            users: vec!["u".into()],
            jobs: vec![job(&task, 0, 100), job(&task, 50, 100), job(&task, 1000, 9999)],
            ..Workload::default()
        };
        let cluster = Cluster::parse("1xA100-40GB", &GpuTypes::built_in()).unwrap();
        let policy = presets::by_name("exclusive").unwrap();
        let setup = Setup::new(policy, SharingMode::Exclusive, None, 1);
        let workload = complete(&workload, &cluster, SharingMode::Exclusive);
        let (_, Told(told)) = play(&workload, &cluster, &setup, Told::default());
        // Neither of the first two was over when they came, and the third does not know its own time.
        let [None, None, Some(third)] = told[..] else { panic!("{told:?}") };
        let median = f64::from(u32::try_from(third.median_s).unwrap());
        assert!((100.0..=101.0).contains(&median), "{third:?}");
        assert_eq!((third.high_s, third.basis, third.runs), (third.median_s, RunsOf::Command, 2));
        // Off by a factor of 2, up or down, where that is asked for.
        let wrong = Errors { run_time: 1.0, ..Errors::default() };
        let setup = Setup { knowledge: Knowledge { errors: wrong, ..setup.knowledge }, ..setup };
        let (_, Told(told)) = play(&workload, &cluster, &setup, Told::default());
        let median = told[2].as_ref().unwrap().median_s as f64;
        assert!([0.5, 2.0].iter().any(|off| (median - 100.0 * off).abs() <= 2.0), "{told:?}");
    }
}

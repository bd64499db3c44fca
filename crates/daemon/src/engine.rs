//! The engine: the one owner of the state.
//!
//! A turn: take the messages that wait, apply what they bring, plan, write everything to the journal
//! in one transaction, and only then answer the users and carry out the actions.

use crate::audit;
use crate::clock::Clock;
use crate::config::limits::UserLimits;
use crate::fault::{self, Point};
use crate::gist::Gist;
use crate::journal::{Batch, Journal, JournalError, StoredJob};
use crate::logs;
use crate::memory::{self, Expected, Memory};
use crate::messages::{Answer, Message, Order, Peer, Standing};
use crate::news::{News, Untold};
use crate::notify::Watchdog;
use crate::perform::{Performer, held};
use crate::quota::{self, Submissions};
use crate::refused::Refused;
use crate::run::adopt::{self, Found, Known};
use crate::run::cgroup::{Hierarchy, HostLimits, MOST_MEMORY};
use crate::run::launch::{Outcome, kept_log};
use crate::run::lives::Lives;
use crate::run::record::Records;
use crate::run::suspend;
use crate::run::suspend::host::Host;
use crate::run::watch::{self, Event, Watcher};
use crate::run_time::Durations;
use crate::sampler::{Board, Look, Placed, Roster, Tenants};
use crate::slowdown::Slowdowns;
use crate::submission::{Submission, new_job, output_file};
use crate::waiters::Waiters;
use carma_api::VERSION;
use carma_api::wire::{ContextProbe, DoneReply, LaunchStats, SubmitReply, SubmitRequest, UnwrittenView};
use carma_core::explain::Reason;
use carma_core::input::{Action, Input, Observation, Rejected};
use carma_core::ledger::Gpu;
use carma_core::model::{
    EndLevel, Estimator, Exit, GpuId, Job, JobId, Phase, ProcessRef, SharingMode, SuspendStep,
};
use carma_core::plan::{Detail, bars_move, best_place, plan_in};
use carma_core::policy::Gate;
use carma_core::state::State;
use carma_core::units::{Fraction, MiB, Millis};
use carma_run_time::{Running, news};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Messages taken in one turn at most, so that answers do not wait for ever: clients that are refused ask again within the turn.
const TURN: usize = 512;
/// How long each part of a turn may take that grows with what users do, about: what is left of it comes next turn.
const TURN_TAKES: Duration = Duration::from_millis(20);
/// How long an end waits for a look from after it. A driver that hangs must not keep jobs from ending.
const LOOK_PATIENCE: Duration = Duration::from_secs(2);
/// What ended no longer before the daemon's start than this is told of then, as of when it did: the energy counter says what it took.
const A_MOMENT: Millis = Millis::secs(10);
/// How often the state is told of energy counters if nothing else changes, on the daemon's clock, also of those of a machine without
/// jobs: what a counter that begins anew takes with it is of so long at most. Of a machine without jobs the journal takes one transaction in
/// that time, an entry for each GPU, until the next snapshot.
const METER: Millis = Millis::secs(600);
/// The same of a GPU without jobs while jobs wait: what it drew before one of them comes is not that one's.
const METER_IDLE: Millis = Millis::secs(10);
/// How often the journal is looked after.
const TEND: Duration = Duration::from_millis(100);
/// How often a journal that could not be written is tried again where there is nothing to write: users are told that it cannot.
const TRY_AGAIN: Duration = Duration::from_secs(5);
/// How often the log hears of that: it is tried several times a second where there is something to write.
const COMPLAIN_AGAIN: Duration = Duration::from_secs(600);
/// How long a daemon without a journal tells users so.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Exit code of a daemon that can keep nothing (`EX_IOERR`).
const NO_JOURNAL: i32 = 74;
/// Latencies kept for statistics.
const LATENCIES: usize = 4096;

/// What the engine needs beside the state.
pub struct Parts {
    /// The journal.
    pub journal: Journal,
    /// What is known of memory.
    pub memory: Memory,
    /// What is known of run times.
    pub durations: Durations,
    /// How fast jobs go, and what is known of slowdowns.
    pub slowdowns: Slowdowns,
    /// The clock.
    pub clock: Clock,
    /// The latest looks at the GPUs.
    pub board: Arc<Board>,
    /// Carries actions out.
    pub performer: Performer,
    /// Watches supervisors.
    pub watcher: Arc<Watcher>,
    /// The lives of the daemon, and the records of their attempts.
    pub lives: Lives,
    /// Where attempts have their cgroups; or why they have none.
    pub hierarchy: Result<Arc<Hierarchy>, String>,
    /// Directory of the logs.
    pub log_dir: PathBuf,
    /// The journal's file, for readers of its own.
    pub journal_file: PathBuf,
    /// `Some`: jobs of this user only. `None`: we are root.
    pub only_uid: Option<u32>,
    /// How often GPUs are looked at while jobs wait or run, on the daemon's clock.
    pub cadence: Millis,
    /// Tells the service manager that the engine's loop comes round.
    pub watchdog: Watchdog,
}

/// An end that waits for a look at the GPUs from after it. Its record stays on disk until it is applied, so that a
/// daemon that dies meanwhile finds it again.
struct Dying {
    job: JobId,
    attempt: u32,
    exit: Exit,
    look: u64,
    since: Instant,
}

impl Dying {
    /// Whether its look is there, or will not come.
    fn is_due(&self, board: &Board) -> bool {
        board.has(self.look) || self.since.elapsed() >= LOOK_PATIENCE
    }
}

/// An answer that waits for the commit.
type Deferred = Box<dyn FnOnce(Result<(), Refused>) + Send>;

/// The engine.
pub struct Engine {
    state: State,
    parts: Parts,
    inbox: mpsc::Receiver<Message>,
    batch: Batch,
    /// Answers to give once the batch is on disk.
    answers: Vec<Deferred>,
    /// Actions to carry out once the batch is on disk.
    actions: Vec<Action>,
    /// Records to remove once the batch is on disk.
    done: Vec<Records>,
    /// An attempt of an earlier life is over: that life may be, too.
    sweep_due: bool,
    /// Set until the disk has taken what was found at the start: jobs that were about to leave their GPUs or to come back then
    /// wait for it.
    adopting: bool,
    waiters: Waiters,
    /// What the submissions of live jobs take.
    submissions: Submissions,
    viewers: Vec<oneshot::Sender<(Arc<State>, Standing)>>,
    /// Set while the journal does not take what is to be written, with when that was tried last.
    unwritten: Option<(UnwrittenView, Instant)>,
    /// When the log was told so last.
    complained: Option<Instant>,
    /// Inputs that could not be written to the journal and that no client sends again, with the time at which each came.
    retry: Vec<(Millis, Input)>,
    /// Ends that wait for a look, in their order.
    dying: Vec<Dying>,
    /// When the looks were taken that the state has last heard of.
    looked: BTreeMap<GpuId, Millis>,
    /// When it was last told what their energy counters say.
    metered: BTreeMap<GpuId, Millis>,
    fallbacks: BTreeMap<(JobId, u32), (SharingMode, String)>,
    /// Jobs that have yet to hear what ends taught.
    untold: Untold,
    /// Set once anything was taught in this life of the daemon.
    taught: bool,
    /// See [`TURN_TAKES`].
    takes: Duration,
    view: Option<Arc<State>>,
    wake: Option<Millis>,
    submitted: BTreeMap<JobId, Instant>,
    tended: Instant,
    spawn_us: Vec<u64>,
    plan_us: Vec<u64>,
    plans: u64,
    launches: u64,
}

impl Engine {
    /// An engine with a recovered state.
    #[must_use]
    pub fn new(state: State, parts: Parts, inbox: mpsc::Receiver<Message>) -> Self {
        Self {
            state,
            parts,
            inbox,
            batch: Batch::default(),
            answers: Vec::new(),
            actions: Vec::new(),
            done: Vec::new(),
            sweep_due: false,
            adopting: false,
            waiters: Waiters::default(),
            submissions: Submissions::default(),
            viewers: Vec::new(),
            unwritten: None,
            complained: None,
            retry: Vec::new(),
            dying: Vec::new(),
            looked: BTreeMap::new(),
            metered: BTreeMap::new(),
            fallbacks: BTreeMap::new(),
            untold: Untold::default(),
            taught: false,
            takes: TURN_TAKES,
            view: None,
            wake: None,
            submitted: BTreeMap::new(),
            tended: Instant::now(),
            spawn_us: Vec::new(),
            plan_us: Vec::new(),
            plans: 0,
            launches: 0,
        }
    }

    /// The state.
    #[must_use]
    pub const fn state(&self) -> &State {
        &self.state
    }

    /// Takes over what the journal says is under way. `inputs` (configuration, inventory) come first, but for what ended before.
    pub fn adopt(&mut self, inputs: Vec<Input>) {
        self.bury_earlier();
        for input in inputs {
            self.apply(input);
        }
        self.count_submissions();
        self.parts.durations.told_before(&self.state);
        let active: Vec<JobId> = self.state.active().iter().copied().collect();
        let attempt = |id: &JobId| Some((*id, self.state.job(*id)?.placement()?.attempt));
        let live: Vec<_> = active.iter().filter_map(attempt).collect();
        self.parts.slowdowns.paces().clear(&live);
        for id in active {
            self.adopt_one(id);
        }
        self.adopting = true;
        self.turn_end();
        self.sweep();
        self.update_roster();
        for broken in carma_core::check::check(&self.state) {
            tracing::error!("the recovered state breaks an invariant: {broken}");
        }
    }

    /// Applies what ended while no daemon ran, as of when it did, in that order. What ended a moment ago is left to be adopted:
    /// for that one a look at its GPU still tells.
    fn bury_earlier(&mut self) {
        let jobs = self.state.active_jobs();
        let over = jobs.filter_map(|job| {
            let (id, placement) = (job.spec.id, job.placement()?);
            let records = self.parts.lives.records(id, placement);
            let exit = records.read().ok()??.exit?;
            let age = records.age().ok().filter(|age| *age > A_MOMENT)?;
            // Read after the age: what ended counts for no less than it ran.
            let now = self.parts.clock.now();
            Some((Millis(now.0.saturating_sub(age.0)), id, placement.attempt, exit))
        });
        let mut over: Vec<_> = over.collect();
        over.sort_by_key(|(at, id, ..)| (*at, *id));
        for (at, job, attempt, exit) in over {
            self.close(at, job, attempt, exit);
        }
    }

    /// Takes over one attempt, whatever became of it.
    fn adopt_one(&mut self, id: JobId) {
        let Some(job) = self.state.job(id) else { return };
        let Some(placement) = job.placement() else { return };
        let (attempt, sharing) = (placement.attempt, placement.sharing);
        let records = self.parts.lives.records(id, placement);
        let life = self.parts.lives.of(placement.at);
        let name = self.parts.lives.short(id, placement);
        let group = self.parts.hierarchy.as_ref().ok().map(|h| h.group(&name));
        let (supervisor, child) = match &job.phase {
            Phase::Running { supervisor, child, .. } => (Some(*supervisor), *child),
            _ => (None, None),
        };
        let here = self.parts.lives.present();
        let known = Known { life: &life, here, supervisor, child, group: group.as_ref() };
        let found = adopt::find(&records, known);
        let is_told = records.read().ok().flatten().is_some_and(|record| record.exit.is_some());
        let age = records.age().ok().filter(|_| is_told);
        let ended = age.map(|age| Millis(self.parts.clock.now().0.saturating_sub(age.0)));
        let watched = watch::Attempt { job: id, attempt, records, life, group, supervisor, child };
        let started =
            |supervisor, child| Input::Started { job: id, attempt, supervisor, child, sharing, note: None };
        match found {
            Ok(Found::Exited(exit)) => self.exited(id, attempt, Exit { ended, ..exit }),
            Ok(Found::Alive { supervisor, child, pidfd }) => {
                tracing::info!("job {id} still runs; watching it again");
                self.apply(started(supervisor, child));
                self.suspend_on(id);
                self.end_on(id);
                self.parts.slowdowns.paces().open(id, name);
                self.parts.watcher.adopted(watched, pidfd, false);
            }
            Ok(Found::Orphan { supervisor, child, pidfd }) => {
                tracing::warn!("job {id} still runs, unsupervised: its supervisor was killed");
                self.apply(started(supervisor, Some(child)));
                self.suspend_on(id);
                self.end_on(id);
                self.parts.slowdowns.paces().open(id, name);
                self.parts.slowdowns.paces().lose(id);
                self.parts.watcher.adopted(watched, pidfd, true);
            }
            Ok(Found::NeverStarted) => {
                self.not_launched(id, attempt, "the daemon stopped before it was started".into(), false);
            }
            Err(e) => {
                tracing::error!("what became of job {id} cannot be found out yet: {e}");
                self.parts.watcher.undecided(watched);
            }
        }
    }

    /// A job that was about to leave its GPUs or to come back when the daemon stopped: that is done to its end.
    fn suspend_on(&mut self, id: JobId) {
        let Some(job) = self.state.job(id) else { return };
        let (Some(suspension), Some(placement)) = (job.suspension(), job.placement()) else { return };
        let attempt = placement.attempt;
        match suspension.step {
            SuspendStep::Suspending => self.actions.push(Action::Suspend { job: id, attempt, cause: None }),
            SuspendStep::Resuming => {
                self.actions.push(Action::Resume { job: id, attempt, gpus: placement.gpus.clone() });
            }
            SuspendStep::Asked | SuspendStep::Suspended => {}
        }
    }

    /// A job that is to end, or to save its work, and has not been told when the daemon stopped: what says so to it, or to the control daemon
    /// of MPS, is a thread of the daemon, which may have died with it.
    fn end_on(&mut self, id: JobId) {
        let Some(job) = self.state.job(id) else { return };
        let (Some(ending), Some(placement)) = (job.ending(), job.placement()) else { return };
        let Some((level, _)) = ending.sent else { return };
        let records = self.parts.lives.records(id, placement);
        if records.was_told(level) || (level == EndLevel::Checkpoint && ending.cannot_save) {
            return;
        }
        let (attempt, cause) = (placement.attempt, ending.cause.clone());
        self.actions.push(Action::End { job: id, attempt, level, cause });
    }

    /// Removes what is left of attempts and lives that are over: records, fences, cgroups.
    fn sweep(&mut self) {
        let active = self.state.active_jobs();
        let placed = active.filter_map(|job| Some((job.spec.id, job.placement()?)));
        let (mut decided, mut names) = (Vec::new(), Vec::new());
        for (id, placement) in placed {
            decided.push(placement.at);
            names.push(self.parts.lives.short(id, placement));
        }
        self.parts.lives.sweep(&decided);
        let oldest = self.parts.lives.oldest();
        if let Err(e) = self.parts.journal.forget_lives(oldest) {
            tracing::warn!("{e}");
        }
        if let Ok(hierarchy) = &self.parts.hierarchy {
            hierarchy.sweep(&names);
        }
    }

    /// An attempt was not launched, and never will be.
    fn not_launched(&mut self, job: JobId, attempt: u32, why: String, pause: bool) {
        if self.apply(Input::NotLaunched { job, attempt, why, pause }) {
            self.fallbacks.remove(&(job, attempt));
            self.parts.slowdowns.ended(job, attempt);
        }
    }

    /// Finds out what the submissions of live jobs take.
    fn count_submissions(&mut self) {
        self.submissions = Submissions::default();
        let Some(oldest) = self.state.jobs().keys().next() else { return };
        let found = match self.parts.journal.environments(*oldest) {
            Ok(found) => found,
            Err(e) => {
                return tracing::warn!("{e}; environments and commands of earlier jobs count for no limit");
            }
        };
        for environment in found {
            for (job, uid, rest) in environment.jobs.iter().filter(|(job, ..)| self.state.job(*job).is_some())
            {
                self.submissions.add(*job, *uid, &environment.env, *rest);
            }
        }
    }

    /// Users with jobs under MPS.
    fn users_of_mps(&self) -> Vec<u32> {
        let jobs = self.state.active_jobs();
        let under_mps = |job: &&Job| job.placement().is_some_and(|placed| placed.sharing == SharingMode::Mps);
        jobs.filter(under_mps).map(|job| job.spec.user.uid).collect()
    }

    /// Runs until told to stop. Returns the users whose jobs go on under MPS, and whether any jobs go on.
    pub fn run(mut self) -> (Vec<u32>, bool) {
        loop {
            self.parts.watchdog.alive();
            let patience = self.patience();
            let patience = self.parts.watchdog.patience().map_or(patience, |ping| patience.min(ping));
            if self.turn(patience) {
                self.batch.slowdowns.extend(self.parts.slowdowns.last_changes());
                // The counter of a virtual GPU begins anew, and so does a real one's where the machine does.
                self.meter(&self.counted());
                self.turn_end();
                if let Err(e) = self.parts.journal.snapshot(&self.state) {
                    tracing::warn!("{e}; the next start replays what came since the last snapshot");
                }
                return (self.users_of_mps(), !self.state.active().is_empty());
            }
        }
    }

    /// One turn, which waits so long for a message; `true`: stop.
    fn turn(&mut self, patience: Duration) -> bool {
        let first = self.inbox.recv_timeout(patience);
        let mut stop = matches!(first, Err(mpsc::RecvTimeoutError::Disconnected));
        for (at, input) in std::mem::take(&mut self.retry) {
            self.apply_at(at, input);
        }
        let (mut taken, began) = (0, Instant::now());
        let mut next = first.ok();
        while let Some(message) = next {
            stop |= self.handle(message);
            taken += 1;
            let more = taken < TURN && began.elapsed() < self.takes;
            next = if more { self.inbox.try_recv().ok() } else { None };
        }
        self.bury();
        self.tell();
        self.plan();
        self.turn_end();
        self.show();
        stop
    }

    /// How long to wait for a message: until time alone may change something.
    fn patience(&self) -> Duration {
        if !self.retry.is_empty() {
            return Duration::from_secs(1);
        }
        // What there was no time for.
        if !self.untold.is_empty() || self.dying.iter().any(|dying| dying.is_due(&self.parts.board)) {
            return Duration::ZERO;
        }
        let journal = self.parts.journal.due().map(|due| due.max(TEND));
        let now = self.parts.clock.now();
        let busy = !self.state.queue().is_empty() || !self.state.active().is_empty();
        let cadence = busy.then(|| now + self.parts.cadence);
        let next = match cadence.into_iter().chain(self.wake).min() {
            Some(at) => self.parts.clock.until(at).max(Duration::from_millis(1)),
            None => Duration::from_secs(3600),
        };
        let looked = self.dying.iter().map(|dying| LOOK_PATIENCE.saturating_sub(dying.since.elapsed())).min();
        let looked = looked.map(|looked| looked.max(Duration::from_millis(1)));
        let unwritten = self.unwritten.is_some().then_some(TRY_AGAIN);
        [journal, looked, unwritten].into_iter().flatten().fold(next, Duration::min)
    }

    // --- applying ------------------------------------------------------------------------------

    /// Applies an input and puts it into the batch.
    fn try_apply(&mut self, input: Input) -> Result<(), Rejected> {
        self.try_apply_at(self.parts.clock.now(), input)
    }

    /// The same as of a time, which is not before what the state knows already.
    fn try_apply_at(&mut self, at: Millis, input: Input) -> Result<(), Rejected> {
        let applied = self.state.apply(at, &input)?;
        self.view = None;
        let exited = match &input {
            Input::Exited { job, attempt, .. } => Some((*job, *attempt)),
            _ => None,
        };
        let over: Vec<JobId> = applied.finished.iter().map(|finished| finished.job.spec.id).collect();
        self.batch.inputs.push((self.state.now(), input));
        self.batch.finished.extend(applied.finished);
        if let Some((job, attempt)) = exited {
            self.learn(job, attempt);
        }
        for id in over {
            self.submissions.over(id);
            self.submitted.remove(&id);
        }
        Ok(())
    }

    /// Learns what an attempt that is over took. It goes to the disk with the input that ended it: once,
    /// however often the daemon is killed.
    fn learn(&mut self, id: JobId, number: u32) {
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
    fn tell(&mut self) {
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
    fn running(&mut self) -> Vec<Running> {
        let memory = &self.parts.memory;
        self.parts.durations.running(&self.state, |id| memory.gist(id))
    }

    /// The same for inputs that no client waits for: a refusal is logged.
    fn apply(&mut self, input: Input) -> bool {
        self.apply_at(self.parts.clock.now(), input)
    }

    fn apply_at(&mut self, at: Millis, input: Input) -> bool {
        match self.try_apply_at(at, input) {
            Ok(()) => true,
            Err(e) => {
                tracing::debug!("input refused: {e}");
                false
            }
        }
    }

    /// What runs of a waiting job's command take at most, whatever its user declares. `None`: nothing is known, or it does not wait.
    fn took(&self, job: JobId) -> Option<MiB> {
        self.state.job(job).filter(|job| waits(job))?;
        let gist = self.parts.memory.gist(job)?;
        let gpus = self.state.gpus().iter().filter(|gpu| gpu.present).map(|gpu| &gpu.info);
        self.parts.memory.took(&gist, gpus)
    }

    /// Handles a message; `true`: stop.
    fn handle(&mut self, message: Message) -> bool {
        match message {
            Message::Submit(submission, peer, answer) => self.submit(*submission, &peer, answer),
            Message::Order(order, peer, answer) => self.order(order, &peer, answer),
            Message::Context(probe, peer, answer) => match self.context(&probe, &peer) {
                Ok(reply) => self.defer(answer, reply),
                Err(refused) => drop(answer.send(Err(refused))),
            },
            Message::Learned(peer, answer) => {
                let all = self.state.is_admin(&peer.user);
                let _ = answer.send(self.parts.memory.learned((!all).then_some(peer.user.uid)));
            }
            Message::Took(job, answer) => {
                let _ = answer.send(self.took(job));
            }
            Message::Slowdowns(jobs, gpu, answer) => {
                let _ = answer.send(self.parts.slowdowns.tell(&self.state, &jobs, gpu.as_deref()));
            }
            // Readers see what is on disk: a job that left the state is in the history by then.
            Message::View(answer) => self.viewers.push(answer),
            Message::Wait(job, answer) => match self.state.job(job) {
                Some(_) => self.waiters.add(job, answer),
                None => drop(answer.send(())),
            },
            Message::Watched(job, attempt, event) => self.watched(job, attempt, event),
            Message::Launched(job, attempt, outcome) => self.launched(job, attempt, outcome),
            Message::CannotSave(job, attempt, why) => {
                if self.apply(Input::CannotSave { job, attempt, why: why.clone() }) {
                    tracing::warn!("job {job} is ended without saving its work: {why}");
                }
            }
            Message::Suspension(job, attempt, outcome) => {
                self.apply(match outcome {
                    suspend::Outcome::Suspended(host) => Input::Suspended { job, attempt, host },
                    suspend::Outcome::Resumed => Input::Resumed { job, attempt },
                    suspend::Outcome::Failed { why, stuck } => {
                        Input::SuspendFailed { job, attempt, why, stuck }
                    }
                });
            }
            Message::Gist(job, gist) => {
                if let Some(known) = self.state.job(job) {
                    // What was taught until now it could not hear.
                    if waits(known) {
                        self.untold.add(job, if self.taught { News::OfProgram } else { News::OfStart });
                    }
                    let gist = self.parts.memory.counted(*gist);
                    self.parts.memory.await_news(job, Arc::new(gist));
                }
            }
            Message::Look => {}
            Message::Stop => return true,
        }
        false
    }

    fn submit(&mut self, submission: Submission, peer: &Peer, answer: Answer<SubmitReply>) {
        match self.try_submit(submission, peer) {
            Ok(reply) => self.defer(answer, reply),
            Err(refused) => drop(answer.send(Err(refused))),
        }
    }

    fn try_submit(&mut self, submission: Submission, peer: &Peer) -> Result<SubmitReply, Refused> {
        if let Some(uid) = self.parts.only_uid
            && peer.user.uid != uid
        {
            let text = format!("this carma runs as user {uid} and takes that user's jobs only");
            return Err(Refused::new(403, "not_allowed", text));
        }
        self.check_host_limits(submission.request())?;
        let uid = peer.user.uid;
        quota::may_now(
            (submission.request(), submission.rest()),
            uid,
            &peer.limits,
            self.state.usage(uid),
            &self.submissions,
        )?;
        let rest = submission.rest();
        let (mut request, gist) = submission.into_parts();
        // Above what the journal knows to be used, too: after a repair it may know of more than the state does.
        let id = self.state.next_id().max(self.parts.journal.next_job());
        let mut new = new_job(id, &request, peer.user.clone(), &gist);
        // Before any forecast, for clients that ask again and again.
        self.state.check_request(&new)?;
        self.allow(uid, &peer.limits);
        let most = peer.limits.log_size.map(|most| most.0);
        request.log_limit_mib = request.log_limit_mib.into_iter().chain(most).min();
        let log = match &request.output {
            Some(pattern) => output_file(pattern, &new)?,
            None => kept_log(&self.parts.log_dir, id).display().to_string(),
        };
        let gist = Arc::new(self.parts.memory.counted(gist));
        let gpus = self.state.gpus().iter().filter(|gpu| gpu.present).map(|gpu| &gpu.info);
        let mut expected = self.parts.memory.expect(&gist, gpus);
        if let Some(expected) = expected.as_mut().filter(|_| self.state.options().policy.goes_by_runs()) {
            expected.name_declared(request.gpu_memory_mib.map(MiB));
        }
        new.forecasts = memory::forecasts(&request, &gist, expected.as_ref());
        let estimate = expected.map(|expected| expected.view);
        new.profile = self.parts.slowdowns.known(&self.state, new.command_key, None);
        let running = self.running();
        new.run_time = self.parts.durations.expect(&gist, &running);
        self.try_apply(Input::Submitted(Box::new(new)))?;
        let unbounded = self.state.job(id).and_then(|job| self.state.unbounded(job));
        self.parts.memory.await_news(id, gist);
        self.submissions.add(id, uid, &request.env, rest);
        self.submitted.insert(id, Instant::now());
        let log_kept = request.output.is_none();
        let stored = StoredJob {
            request,
            uid: peer.user.uid,
            gid: peer.gid,
            log: log.clone(),
            estimate: estimate.clone(),
        };
        self.batch.jobs.push((id, stored));
        Ok(SubmitReply { version: VERSION, id: id.0, log, log_kept, estimate, unbounded })
    }

    /// Limits on the host must hold: what cannot be enforced is refused.
    fn check_host_limits(&self, request: &SubmitRequest) -> Result<(), Refused> {
        let bad = |text: &str| Err(Refused::new(400, "bad_request", text));
        if request.host_memory_mib.is_some_and(|mib| mib > MOST_MEMORY.0) {
            return bad(&format!(
                "--mem is more than a limit in bytes can be, which is {} MiB; leave it out to have no limit",
                MOST_MEMORY.0
            ));
        }
        if request.host_memory_mib == Some(0)
            || request.host_cpu_pct == Some(0)
            || request.host_processes == Some(0)
        {
            return bad("a limit of nothing would let nothing run; leave --mem, --cpus or --pids out");
        }
        for controller in HostLimits::from(request.host_limits()).needs() {
            let name = controller.name();
            let why = match &self.parts.hierarchy {
                Ok(hierarchy) if hierarchy.has(controller) => continue,
                Ok(hierarchy) => format!("{} has no controller '{name}'", hierarchy.dir().display()),
                Err(why) => why.clone(),
            };
            let text = format!(
                "this carma cannot limit what a job takes of the host: {why}; leave --mem, --cpus and --pids out, or see `carma doctor`"
            );
            return Err(Refused::new(400, "bad_request", text));
        }
        Ok(())
    }

    /// Tells the core what a user may have at once, where that is news.
    fn allow(&mut self, uid: u32, limits: &UserLimits) {
        if self.state.options().allowances.of(uid) != limits.allowance() {
            let mut options = self.state.options().clone();
            options.allowances.set(uid, limits.allowance());
            self.apply(Input::Configured(Box::new(options)));
        }
    }

    fn context(&mut self, probe: &ContextProbe, peer: &Peer) -> Result<DoneReply, Refused> {
        if !self.state.is_admin(&peer.user) {
            let text =
                "only root, an operator or the user that carma runs as may say what a CUDA context takes";
            return Err(Refused::new(403, "not_allowed", text));
        }
        let gpu = self.gpu_by_index(probe.gpu)?;
        let Some(gpu) = self.state.gpu(gpu) else { return Err(Rejected::NoSuchGpu.into()) };
        if !self.parts.memory.probe(&gpu.info, &probe.framework, probe.context_mib) {
            let text = format!("a CUDA context of {} MiB cannot be; measure again", probe.context_mib);
            return Err(Refused::new(400, "bad_request", text));
        }
        self.batch.learned.extend(self.parts.memory.changes());
        let text = format!("a CUDA context on {} takes {} MiB from now on", gpu.info.name, probe.context_mib);
        Ok(DoneReply { version: VERSION, id: probe.gpu.into(), text })
    }

    fn order(&mut self, order: Order, peer: &Peer, answer: Answer<DoneReply>) {
        match self.try_order(order, peer) {
            Ok((id, text)) => self.defer(answer, DoneReply { version: VERSION, id, text }),
            Err(refused) => drop(answer.send(Err(refused))),
        }
    }

    fn try_order(&mut self, order: Order, peer: &Peer) -> Result<(u64, String), Refused> {
        let by = peer.user.clone();
        // Before the driver and the host are asked: what these say of a job is for those who may.
        if let Order::Suspend(id) | Order::Move(id, _) = order
            && let Some(job) = self.state.job(id)
        {
            self.state.allowed(job, &by)?;
        }
        let (input, id, text) = match order {
            Order::Cancel(job) => (Input::Cancel { job, by }, job.0, format!("job {job} is being cancelled")),
            Order::Hold(job) => (Input::Hold { job, by }, job.0, format!("job {job} is held")),
            Order::Release(job) => (Input::Release { job, by }, job.0, format!("job {job} is released")),
            Order::Requeue(job) => {
                let runs = self.state.job(job).filter(|job| matches!(job.phase, Phase::Running { .. }));
                let runs = runs.filter(|job| job.suspension().is_none());
                let asks = runs.map(|job| &job.spec.request).and_then(|asks| Some((asks.save_grace?, asks)));
                let text = match asks {
                    Some((grace, asks)) => {
                        let within = if asks.time_limit.is_some() { " within its time limit" } else { "" };
                        format!(
                            "job {job} is asked to save its work, for which it has {grace}{within}, and is then put back into the queue"
                        )
                    }
                    None => format!("job {job} is being put back into the queue"),
                };
                (Input::Requeue { job, by }, job.0, text)
            }
            Order::Suspend(job) => {
                self.check_suspension(job)?;
                (Input::Suspend { job, by }, job.0, format!("job {job} is being suspended"))
            }
            Order::Unsuspend(job) => (Input::Unsuspend { job, by }, job.0, self.told_of_return(job)),
            Order::Move(job, index) => {
                let gpu = self.check_move(job, index)?;
                if index.is_none() && self.left(job) == Some(gpu) {
                    (Input::Unsuspend { job, by }, job.0, self.told_of_return(job))
                } else {
                    let index = self.state.gpu(gpu).map_or(0, |gpu| gpu.info.index);
                    (Input::Move { job, gpu, by }, job.0, format!("job {job} moves to GPU {index}"))
                }
            }
            Order::Drain(index) => {
                let text = format!("GPU {index} is drained: its jobs go on, no new ones come");
                (Input::Drain { gpu: self.gpu_by_index(index)?, by }, index.into(), text)
            }
            Order::Resume(index) => {
                let gpu = self.gpu_by_index(index)?;
                let drained = self.state.gpu(gpu).is_some_and(|gpu| gpu.drained_by.is_some());
                let text = if drained { "is in use again" } else { "was not drained" };
                (Input::Resume { gpu, by }, index.into(), format!("GPU {index} {text}"))
            }
        };
        match self.try_apply(input) {
            Err(Rejected::NoSuchJob(job)) => Err(self.no_such_job(job)),
            Err(rejected) => Err(rejected.into()),
            Ok(()) => Ok((id, text)),
        }
    }

    /// What is said of a job that is to come back.
    fn told_of_return(&self, id: JobId) -> String {
        match self.left(id).and_then(|home| self.state.gpu(home)) {
            None => format!("job {id} goes on as soon as its GPU has room"),
            Some(home) if home.present => {
                format!("job {id} goes on as soon as GPU {}, which it left, has room", home.info.index)
            }
            Some(gone) => format!(
                "job {id} cannot go on where it was: once GPU {}, it is no longer in this machine. \
                 `carma move {id}` has it go on on another GPU of that type that has room for it",
                gone.info.index
            ),
        }
    }

    /// The GPU that a suspended job left.
    fn left(&self, id: JobId) -> Option<GpuId> {
        let off = self.state.job(id)?.suspension().filter(|suspension| suspension.is_off())?;
        off.home.first().copied()
    }

    /// Whether a job can be suspended as far as the driver and the host's memory go. One that is off its GPU has what it takes of
    /// the host already.
    fn check_suspension(&self, id: JobId) -> Result<(), Refused> {
        let conflict = |text: String| Err(Refused::new(409, "conflict", text));
        let suspender = &self.parts.performer.suspender;
        let driver = match &suspender.driver {
            Ok(driver) => driver,
            Err(why) => {
                return conflict(format!("jobs cannot be suspended here: {why}; see `carma doctor`"));
            }
        };
        if let Some(job) = self.state.job(id)
            && State::bars_suspension(job).is_none()
            && self.state.has_yet_to_use_gpus(job)
        {
            return conflict(format!(
                "job {id} cannot be suspended yet: none of its processes has used its GPU so far; \
                 `carma requeue {id}` puts it back into the queue"
            ));
        }
        let running = self.state.job(id).filter(|job| driver.takes_host_memory() && !job.is_off());
        let Some((job, placement)) = running.and_then(|job| Some((job, job.placement()?))) else {
            return Ok(());
        };
        let leaving = |job: &&Job| {
            let step = job.suspension().map(|suspension| suspension.step);
            job.spec.id != id && matches!(step, Some(SuspendStep::Asked | SuspendStep::Suspending))
        };
        let others = self.state.halted_jobs().filter(leaving);
        let promised = others.map(|job| held(&self.state, job)).sum();
        let group =
            self.parts.hierarchy.as_ref().ok().map(|h| h.group(&self.parts.lives.short(id, placement)));
        let Some(host) = Host::now() else {
            return conflict("the memory of this machine cannot be read (/proc/meminfo)".into());
        };
        host.has_room(held(&self.state, job), promised, group.as_ref())
            .or_else(|why| conflict(format!("job {id} cannot be suspended: {why}")))
    }

    /// The GPU that a job moves to, and whether it can as far as the driver, the host and that GPU's memory go. What the
    /// state refuses anyway passes.
    fn check_move(&self, id: JobId, index: Option<u32>) -> Result<GpuId, Refused> {
        self.check_suspension(id)?;
        let conflict = |text: String| Err(Refused::new(409, "conflict", text));
        if self.state.has_mig() {
            return conflict(
                "jobs cannot be moved here: this machine has GPUs in MIG mode, beside which moves are untried"
                    .into(),
            );
        }
        if self.parts.performer.suspender.driver.as_ref().is_ok_and(|driver| !driver.moves()) {
            return conflict("jobs cannot be moved here: that needs a driver of r580 or newer".into());
        }
        let now = self.parts.clock.now();
        let wanted = index.map(|index| self.gpu_by_index(index)).transpose()?;
        let Some((job, placement)) = self.state.job(id).and_then(|job| Some((job, job.placement()?))) else {
            return Ok(wanted.unwrap_or(GpuId(0)));
        };
        if let Some(to) = wanted {
            let there = placement.gpus.contains(&to) && !job.is_off();
            // That it cannot go there at all says more than what it would need there.
            if there || !self.may_move_to(job, to) {
                return Ok(to);
            }
            return match bars_move(&self.state, now, job, to) {
                Some(reason) => conflict(format!("job {id} cannot move: {reason}")),
                None => Ok(to),
            };
        }
        match best_place(&self.state, now, job) {
            Ok(to) => Ok(to),
            Err(bars) => conflict(match State::bars_suspension(job) {
                Some(why) => format!("job {id} cannot move: {why}"),
                None => format!("job {id} cannot move: {}", self.nowhere(job, bars.as_deref())),
            }),
        }
    }

    /// Whether a GPU is of the type of the one that a job is on, or left, and not drained. What it has is another matter.
    fn may_move_to(&self, job: &Job, to: GpuId) -> bool {
        let Some((from, to)) = self.from(job).zip(self.state.gpu(to)) else { return true };
        from.info.is_like(&to.info) && to.drained_by.is_none()
    }

    /// The GPU that a job is on, or left.
    fn from(&self, job: &Job) -> Option<&Gpu> {
        let home = job.suspension().filter(|suspension| suspension.is_off()).map(|of| &of.home);
        let gpus = home.or_else(|| job.placement().map(|placement| &placement.gpus))?;
        self.state.gpu(*gpus.first()?)
    }

    /// Why there is no GPU that a job could move to. `bars`: what those say that are not drained.
    fn nowhere(&self, job: &Job, bars: Option<&Reason>) -> String {
        let from = self.from(job);
        let others = self.state.gpus().iter().filter(|gpu| gpu.present);
        let others: Vec<&Gpu> = others
            .filter(|gpu| {
                from.is_some_and(|from| from.info.is_like(&gpu.info) && gpu.info.uuid != from.info.uuid)
            })
            .collect();
        let drained = others.iter().filter(|gpu| gpu.drained_by.is_some()).count();
        match (others.len(), drained) {
            (0, _) => "there is no other GPU of its type".to_owned(),
            (1, 1) => "the other GPU of its type is drained".to_owned(),
            (all, drained) if all == drained => "all other GPUs of its type are drained".to_owned(),
            (_, drained) => {
                let which = if drained == 0 { "" } else { " that is not drained" };
                match bars {
                    Some(bars) => format!("no other GPU of its type{which} would do: {bars}"),
                    None => format!("no other GPU of its type{which} would do"),
                }
            }
        }
    }

    fn no_such_job(&self, job: JobId) -> Refused {
        let next = self.state.next_id();
        // What cannot be read is shown no better.
        if job < next && self.parts.journal.has_job(job).unwrap_or(true) {
            let text = format!("job {job} is over already; see `carma show {job}`");
            return Refused::new(409, "conflict", text);
        }
        Refused::no_such_job(job, next)
    }

    fn gpu_by_index(&self, index: u32) -> Result<GpuId, Refused> {
        let at = self.state.gpus().iter().position(|g| g.present && g.info.index == index);
        at.and_then(|at| u32::try_from(at).ok()).map(GpuId).ok_or_else(|| {
            Refused::new(404, "not_found", format!("there is no GPU {index}; see `carma gpus`"))
        })
    }

    fn launched(&mut self, job: JobId, attempt: u32, outcome: Outcome) {
        match outcome {
            Outcome::Fallback { sharing, note } => {
                self.fallbacks.insert((job, attempt), (sharing, note));
            }
            Outcome::NotSpawned { why, machine, fenced } => {
                tracing::debug!("job {job} is not launched: {why}");
                if !fenced {
                    // No supervisor will claim it, so a fence of it is needed no more.
                    self.done.push(self.parts.lives.present_records(job, attempt));
                }
                self.not_launched(job, attempt, why, machine);
            }
        }
    }

    fn watched(&mut self, job: JobId, attempt: u32, event: Event) {
        match event {
            Event::Running { supervisor, child } => {
                if !self.started(job, attempt, supervisor, child) {
                    return;
                }
                self.launches += 1;
                if let Some(at) = self.submitted.remove(&job) {
                    remember(&mut self.spawn_us, self.launches, at.elapsed());
                }
            }
            Event::Orphaned { supervisor, child } => {
                self.started(job, attempt, supervisor, Some(child));
                self.parts.slowdowns.paces().lose(job);
            }
            Event::Exited(exit) if self.state.wants_look(job, attempt, &exit) => {
                let look = self.parts.board.ask();
                self.dying.push(Dying { job, attempt, exit, look, since: Instant::now() });
            }
            Event::Exited(exit) => self.exited(job, attempt, exit),
            Event::NeverStarted { why } => {
                self.done.push(self.parts.lives.present_records(job, attempt));
                let why = why.unwrap_or_else(|| "its supervisor died before it had started it".into());
                // After a pause: what ended one supervisor may end the next as well, and none must be started over and over.
                self.not_launched(job, attempt, why, true);
            }
        }
    }

    /// The command of an attempt runs. Whether the job has one.
    fn started(
        &mut self,
        job: JobId,
        attempt: u32,
        supervisor: ProcessRef,
        child: Option<ProcessRef>,
    ) -> bool {
        let decided = self.state.job(job).and_then(|j| j.placement()).map(|p| p.sharing);
        let Some(decided) = decided else { return false };
        let (sharing, note) = match self.fallbacks.remove(&(job, attempt)) {
            Some((sharing, note)) => (sharing, Some(note)),
            None => (decided, None),
        };
        self.apply(Input::Started { job, attempt, supervisor, child, sharing, note });
        true
    }

    /// Applies the ends whose look is there, or will not come, as many as there is time for.
    fn bury(&mut self) {
        let board = self.parts.board.clone();
        let (began, mut refreshed) = (Instant::now(), false);
        while let Some(at) = self.dying.iter().position(|dying| dying.is_due(&board)) {
            let Dying { job, attempt, exit, look, .. } = self.dying.remove(at);
            // The memory trace at death matters for the verdict, so it is brought up to date first.
            if board.has(look) && !std::mem::replace(&mut refreshed, true) {
                self.refresh(true);
            }
            self.over(job, attempt, exit);
            if began.elapsed() >= self.takes {
                break;
            }
        }
    }

    fn exited(&mut self, job: JobId, attempt: u32, exit: Exit) {
        if exit.status != carma_core::model::ExitStatus::Code(0) {
            // Its GPU may have been lost.
            self.refresh(false);
        }
        self.over(job, attempt, exit);
    }

    /// Whether a counter has not been told for long.
    fn meter_is_due(&self, id: GpuId, gpu: &Gpu, look: &Look) -> bool {
        let soon = gpu.tenants.is_empty() && !self.state.queue().is_empty();
        let most = if soon { METER_IDLE } else { METER };
        let since = self.metered.get(&id).map_or(most, |last| look.seen.at.since(*last));
        look.seen.energy_mj.is_some() && since >= most
    }

    /// The GPUs whose energy counter is read.
    fn counted(&self) -> Vec<GpuId> {
        let looks = self.parts.board.looks();
        let counted = looks.iter().filter(|look| look.seen.energy_mj.is_some());
        counted.filter_map(|look| self.state.gpu_id(&look.reading.uuid)).collect()
    }

    /// Tells the state of all counters where there are no jobs, at the first look and then now and then. Returns when the next time is.
    fn meter_idle(&mut self, now: Millis) -> Option<Millis> {
        let counted = self.counted();
        let is_due = |id| self.metered.get(id).is_none_or(|last| now.since(*last) >= METER);
        if counted.iter().any(is_due) {
            self.meter(&counted);
            // Also those that could not be told: they are asked again no sooner.
            self.metered.extend(counted.iter().map(|id| (*id, now)));
        }
        counted.iter().filter_map(|id| self.metered.get(id)).min().map(|last| *last + METER)
    }

    /// Tells the state what the energy counters of some GPUs say: the accounts of their tenants depend on it, and once a GPU
    /// is idle it may not be looked at for days.
    fn meter(&mut self, gpus: &[GpuId]) {
        self.refresh(false);
        let looks = self.parts.board.looks();
        for id in gpus {
            let Some(gpu) = self.state.gpu(*id) else { continue };
            let look = looks.iter().find(|look| look.reading.uuid == gpu.info.uuid);
            let Some(look) = look.filter(|look| look.seen.energy_mj.is_some()) else { continue };
            let told = gpu.seen.as_ref().and_then(|seen| seen.energy_mj);
            if told != look.seen.energy_mj && self.looked.get(id).is_some_and(|last| *last <= look.seen.at) {
                self.observed(*id, look);
            }
        }
    }

    fn observed(&mut self, gpu: GpuId, look: &Look) {
        self.metered.insert(gpu, look.seen.at);
        self.apply(Input::Observed { gpu, seen: Box::new(look.seen.clone()) });
    }

    fn over(&mut self, job: JobId, attempt: u32, exit: Exit) {
        let placement = self.state.job(job).and_then(|job| job.placement());
        let gpus = placement.filter(|p| p.attempt == attempt).map(|p| p.gpus.clone()).unwrap_or_default();
        self.meter(&gpus);
        self.close(self.parts.clock.now(), job, attempt, exit);
    }

    /// Applies the end of an attempt as of this time.
    fn close(&mut self, at: Millis, job: JobId, attempt: u32, exit: Exit) {
        fault::inject(Point::AfterExit);
        let placement = self.state.job(job).and_then(|job| job.placement());
        let Some(placement) = placement.filter(|p| p.attempt == attempt) else { return };
        let records = self.parts.lives.records(job, placement);
        let of_earlier = self.parts.lives.of(placement.at) != *self.parts.lives.present();
        self.apply_at(at, Input::Exited { job, attempt, exit });
        self.submitted.remove(&job);
        self.fallbacks.remove(&(job, attempt));
        self.parts.slowdowns.ended(job, attempt);
        self.done.push(records);
        self.sweep_due |= of_earlier;
    }

    // --- looking and planning ------------------------------------------------------------------

    /// Brings the state's view of the GPUs up to date where it matters: when it is older than the
    /// cadence, or differs notably. `at_once`: a verdict needs to know up to when it was so.
    fn refresh(&mut self, at_once: bool) {
        let taken = self.parts.board.take();
        if taken.is_empty() {
            return;
        }
        let now = self.parts.clock.now();
        let mut unchanged = Vec::new();
        let gate = self.state.options().policy.gate;
        let known = (0..).map(GpuId).zip(self.state.gpus());
        let by_uuid: BTreeMap<Arc<str>, GpuId> = known.map(|(id, gpu)| (gpu.info.uuid.clone(), id)).collect();
        for looks in taken {
            for look in looks.iter() {
                let Some(id) = by_uuid.get(&look.reading.uuid).copied() else { continue };
                let Some(gpu) = self.state.gpu(id) else { continue };
                // Not by the state's time of it: what was called unchanged later was seen before that.
                if self.looked.get(&id).is_some_and(|last| *last >= look.seen.at) {
                    continue;
                }
                self.looked.insert(id, look.seen.at);
                match gpu.seen.as_ref() {
                    // A counter goes on while all else stays: now and then that is told, too.
                    Some(old) if alike(old, &look.seen, gate) && !self.meter_is_due(id, gpu, look) => {
                        if at_once || now.since(old.at) >= self.parts.cadence {
                            unchanged.push(id);
                        }
                    }
                    _ => {
                        unchanged.retain(|other| *other != id);
                        self.observed(id, look);
                    }
                }
            }
        }
        unchanged.sort_unstable();
        unchanged.dedup();
        if !unchanged.is_empty() {
            self.apply(Input::Unchanged(unchanged));
        }
    }

    fn plan(&mut self) {
        let now = self.parts.clock.now();
        let idle = self.state.queue().is_empty() && self.state.active().is_empty();
        if idle {
            self.wake = self.meter_idle(now);
            // The rest matters to jobs alone.
            drop(self.parts.board.take());
            return;
        }
        self.refresh(false);
        self.predict(now);
        let started = Instant::now();
        // Why others wait is said to those who ask, of the state as it is then.
        let plan = plan_in(&self.state, now, Detail::Actions);
        self.plans += 1;
        remember(&mut self.plan_us, self.plans, started.elapsed());
        self.wake = plan.wake;
        for action in plan.actions {
            let cannot = match &action {
                Action::Suspend { job, attempt, cause: Some(_) } => {
                    self.check_suspension(*job).err().map(|refused| (*job, *attempt, refused.text))
                }
                _ => None,
            };
            if !self.apply(Input::Decided(Box::new(action.clone()))) {
                continue;
            }
            match cannot {
                // Then the next plan does without.
                Some((job, attempt, why)) => {
                    self.apply(Input::SuspendFailed { job, attempt, why, stuck: false });
                    self.wake = Some(now);
                }
                None => self.actions.push(action),
            }
        }
    }

    /// Takes in how fast jobs go, and answers what the plan wants to have predicted.
    fn predict(&mut self, now: Millis) {
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

    /// Writes the batch; then, and only then, answers and acts.
    fn turn_end(&mut self) {
        // An empty one says whether the disk takes anything again.
        let again = self.unwritten.as_ref().is_some_and(|(_, tried)| tried.elapsed() >= TRY_AGAIN);
        if !self.batch.is_empty() || again {
            // Without jobs there are only the energy counters of the start.
            if !self.state.jobs().is_empty() {
                fault::inject(Point::BeforeCommit);
            }
            if let Err(e) = self.parts.journal.commit(&self.batch) {
                return self.give_up(&e);
            }
            if self.unwritten.take().is_some() {
                tracing::info!("the journal is written again");
            }
            if self.actions.iter().any(|a| matches!(a, Action::Launch { .. })) {
                fault::inject(Point::AfterDecision);
            }
        }
        self.adopting = false;
        let batch = std::mem::take(&mut self.batch);
        audit::happened(&self.state, &batch.inputs, &batch.finished);
        for finished in &batch.finished {
            // Now that it is on the disk: otherwise it may go on waiting, and hears news.
            self.parts.memory.over(finished.job.spec.id);
            self.waiters.tell(finished.job.spec.id);
        }
        // At a stop the end that they tell of may be one that the journal has not taken yet.
        if self.retry.is_empty() {
            for records in std::mem::take(&mut self.done) {
                records.remove();
            }
        }
        let moved = batch.inputs.iter().any(|(_, input)| {
            matches!(input, Input::Started { .. } | Input::Exited { .. } | Input::NotLaunched { .. })
        });
        if moved {
            self.update_roster();
        }
        if !batch.inputs.is_empty() {
            self.parts.board.set_tenants(self.tenants());
        }
        for action in std::mem::take(&mut self.actions) {
            self.parts.performer.perform(&action, &self.state, &self.parts.journal, &self.parts.lives);
        }
        // Afterwards: nothing starts of a job once its cancel is answered.
        for answer in std::mem::take(&mut self.answers) {
            answer(Ok(()));
        }
        if std::mem::take(&mut self.sweep_due) {
            self.sweep();
        }
        match self.parts.journal.fold(&self.state) {
            Ok(false) => {}
            Ok(true) => {
                let (journal, keep) = (self.parts.journal_file.clone(), self.parts.journal.keeps());
                let (logs, below) = (self.parts.log_dir.clone(), self.state.next_id());
                // A directory of a hundred thousand files takes its time.
                let sweep = move || logs::sweep(&logs, &journal, keep, below);
                if let Err(e) = std::thread::Builder::new().name("sweep logs".into()).spawn(sweep) {
                    tracing::warn!("logs of forgotten jobs stay for the present: {e}");
                }
            }
            Err(e) => tracing::warn!("{e}; the journal grows until the disk takes a snapshot again"),
        }
        self.tend();
    }

    /// What the journal needs now and then, and a look whether it is still there.
    fn tend(&mut self) {
        if self.tended.elapsed() < TEND {
            return;
        }
        self.tended = Instant::now();
        if let Err(e) = self.parts.journal.tend() {
            self.give_up(&e);
        }
    }

    /// Answers requests to read the state.
    fn show(&mut self) {
        if self.viewers.is_empty() {
            return;
        }
        let view = self.view.get_or_insert_with(|| Arc::new(self.state.clone())).clone();
        let unwritten = self.unwritten.as_ref().map(|(unwritten, _)| unwritten.clone());
        let standing = Standing { launches: self.stats(), unwritten };
        for viewer in std::mem::take(&mut self.viewers) {
            let _ = viewer.send((view.clone(), standing.clone()));
        }
    }

    /// The journal did not take the batch: nothing of it happened. Users are told; what cannot be
    /// told again is kept; the state goes back to what is on disk.
    fn give_up(&mut self, why: &JournalError) {
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
        let end = Instant::now() + LAST_WORDS;
        while let Ok(message) = self.inbox.recv_timeout(end.saturating_duration_since(Instant::now())) {
            match message {
                Message::Submit(_, _, answer) => drop(answer.send(Err(refused.clone()))),
                Message::Order(_, _, answer) | Message::Context(_, _, answer) => {
                    drop(answer.send(Err(refused.clone())));
                }
                // Other requests are answered: the daemon stops.
                _ => {}
            }
        }
        std::process::exit(NO_JOURNAL);
    }

    /// Which jobs have which GPUs, for the recorder.
    fn tenants(&self) -> Tenants {
        let user = |job| self.state.job(job).map(|job| job.spec.user.uid);
        let taken = (0..).map(GpuId).zip(self.state.gpus()).filter(|(_, gpu)| !gpu.tenants.is_empty());
        let of = taken.map(|(id, gpu)| {
            let shares = self.state.activity_shares(id).into_iter();
            let placed = shares.filter_map(|(job, share)| Some(Placed { job, uid: user(job)?, share }));
            (gpu.info.uuid.clone(), placed.collect())
        });
        Tenants(of.collect())
    }

    fn update_roster(&self) {
        let jobs = self.state.active_jobs().filter_map(|job| match &job.phase {
            Phase::Running { supervisor, child, .. } => Some((job.spec.id, *supervisor, *child)),
            _ => None,
        });
        let roster = Roster { jobs: jobs.collect() };
        let supervisors = roster.jobs.iter().map(|(job, supervisor, _)| (*job, *supervisor));
        self.parts.slowdowns.paces().set_running(supervisors.collect());
        self.parts.board.set_roster(roster);
    }

    fn defer<T: Send + 'static>(&mut self, answer: Answer<T>, reply: T) {
        self.answers.push(Box::new(move |result| {
            let _ = answer.send(result.map(|()| reply));
        }));
    }

    fn stats(&self) -> LaunchStats {
        LaunchStats {
            count: self.launches,
            submit_to_spawn_p50_us: percentile(&self.spawn_us, 50),
            submit_to_spawn_p99_us: percentile(&self.spawn_us, 99),
            plan_p99_us: percentile(&self.plan_us, 99),
        }
    }
}

fn waits(job: &Job) -> bool {
    matches!(job.phase, Phase::Pending | Phase::Held { .. })
}

/// Keeps the latest values, the oldest overwritten first. `n` counts from 1.
fn remember(values: &mut Vec<u64>, n: u64, took: Duration) {
    let took = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
    if values.len() < LATENCIES {
        values.push(took);
    } else {
        values[(n as usize) % LATENCIES] = took;
    }
}

fn percentile(values: &[u64], percent: usize) -> u64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    carma_stats::nearest_rank(&sorted, percent).unwrap_or(0)
}

/// Whether two looks are the same for every decision: memory within 16 MiB, means and risks of activity within 0.01.
fn alike(a: &Observation, b: &Observation, gate: Gate) -> bool {
    let close = |x: Option<MiB>, y: Option<MiB>| match (x, y) {
        (Some(x), Some(y)) => x.0.abs_diff(y.0) < 16,
        (x, y) => x == y,
    };
    a.health == b.health
        && a.processes_known == b.processes_known
        && close(a.used, b.used)
        && a.jobs.len() == b.jobs.len()
        && a.jobs.iter().zip(&b.jobs).all(|((i, x), (j, y))| i == j && close(*x, *y))
        && a.foreign.len() == b.foreign.len()
        && a.foreign.iter().zip(&b.foreign).all(|(x, y)| x.pid == y.pid && close(x.memory, y.memory))
        && gate.sees_alike(&a.window, &b.window, Fraction::percent(1))
}

#[cfg(test)]
mod tests;

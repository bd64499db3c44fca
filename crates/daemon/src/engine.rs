//! The engine: the one owner of the state.
//!
//! A turn: take the messages that wait, apply what they bring, plan, write everything to the journal
//! in one transaction, and only then answer the users and carry out the actions. The turn is here; what its parts do is in
//! `requests`, `attempts`, `looks`, `forecasts`, `adoption` (at the start) and `outage` (of the journal).

use self::attempts::{Dying, LOOK_PATIENCE};
use crate::clock::Clock;
use crate::fault::{self, Point};
use crate::journal::{Batch, Journal};
use crate::memory::Memory;
use crate::messages::{Answer, Bulk, Message, Standing};
use crate::news::{News, Untold};
use crate::notify::Watchdog;
use crate::perform::Performer;
use crate::quota::Submissions;
use crate::refused::Refused;
use crate::run::cgroup::Hierarchy;
use crate::run::lives::Lives;
use crate::run::record::Records;
use crate::run::suspend;
use crate::run::watch::Watcher;
use crate::run_time::Durations;
use crate::sampler::Board;
use crate::slowdown::Slowdowns;
use crate::waiters::Waiters;
use crate::{audit, logs};
use carma_api::wire::{LaunchStats, UnwrittenView};
use carma_core::input::{Action, Input, Rejected};
use carma_core::model::{GpuId, Job, JobId, Phase, SharingMode};
use carma_core::plan::{Detail, plan_in};
use carma_core::state::State;
use carma_core::units::Millis;
use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Messages taken in one turn at most, so that answers do not wait for ever: clients that are refused ask again within the turn.
const TURN: usize = 512;
/// How long each part of a turn may take that grows with what users do, about: what is left of it comes next turn.
const TURN_TAKES: Duration = Duration::from_millis(20);
/// How often the journal is looked after.
const TEND: Duration = Duration::from_millis(100);
/// How often a journal that could not be written is tried again where there is nothing to write: users are told that it cannot.
const TRY_AGAIN: Duration = Duration::from_secs(5);
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

/// An answer that waits for the commit.
type Deferred = Box<dyn FnOnce(Result<(), Refused>) + Send>;

/// The engine.
pub struct Engine {
    state: State,
    parts: Parts,
    inbox: mpsc::Receiver<Message>,
    /// What asks something of many jobs: a piece of one is done in a turn, after all that is asked of single jobs.
    bulk: VecDeque<Bulk>,
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
            bulk: VecDeque::new(),
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
        self.work_on_bulk();
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
        if !self.bulk.is_empty()
            || !self.untold.is_empty()
            || self.dying.iter().any(|dying| dying.is_due(&self.parts.board))
        {
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

    /// Handles a message; `true`: stop.
    fn handle(&mut self, message: Message) -> bool {
        match message {
            Message::Submit(submission, peer, answer) => {
                let reply = self.try_submit(*submission, 1, &peer);
                self.reply(answer, reply);
            }
            Message::Order(order, peer, answer) => {
                let done = self.try_order(order, &peer);
                self.reply(answer, done);
            }
            Message::Bulk(bulk) => self.bulk.push_back(bulk),
            Message::Context(probe, peer, answer) => {
                let done = self.context(&probe, &peer);
                self.reply(answer, done);
            }
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
                        let stuck = stuck || self.state.is_last_try(job);
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

mod adoption;
mod attempts;
mod forecasts;
mod looks;
mod outage;
mod requests;
#[cfg(test)]
mod tests;

//! What the core is told of slowdowns in a run: forecasts before a placement, measurements after it.
//!
//! The same model and the same answers as in the daemon. What differs: what every task does alone is known from the
//! start, from its activity in the catalogue, unless nothing is to be known of tasks ([`super::activity`]); progress is measured
//! exactly; and an answer holds for half an hour, also if the model learns meanwhile.

use super::Setup;
use super::activity::{Guesses, Learner};
use super::core::index;
use super::knowledge::{Errors, Known};
use super::world::{GpuIndex, JobIndex, Stage, World};
use crate::trace::{CatalogueTask, Workload};
use carma_core::model::{GpuId, Job};
use carma_core::policy::Progress;
use carma_core::slowdown::{Class, MOST_QUESTIONS, Outlook, Pace, questions};
use carma_core::units::{Fraction, Millis};
use carma_core::{Input, State};
use carma_interference::assumed::Guess;
use carma_interference::kace::trained::Trained;
use carma_interference::online::SlowdownModel;
use carma_interference::outlook::{self, Answered, Models, News, SETTLING, Together};
use carma_interference::profile::{Metrics, Profile, Rate, RateSource, Stat};
use std::collections::BTreeSet;
use std::sync::Arc;

pub(crate) struct Outlooks {
    model: SlowdownModel,
    kace: Option<Arc<Trained>>,
    answered: Answered,
    pub(super) activity: Learner,
    /// What was learned since the last answers.
    learned: News,
    /// News of which what was answered of companies that are there is to be answered again.
    again: News,
    holds_until: Millis,
    /// Of each GPU: the jobs that are there, and since when all of them compute; `None`: one still loads.
    pub(super) company: Vec<(Vec<JobIndex>, Option<Millis>)>,
    /// GPUs whose company is new: what its members do to each other is not learned yet.
    new: BTreeSet<GpuIndex>,
    /// Of each job: beside the company of when its progress was measured, and how often. A limit asks for twice.
    measured: Vec<(Millis, u32)>,
    /// When the next measurement is due; `None`: which job computes where has changed since that was found.
    next: Option<Option<Millis>>,
}

/// Answers hold for so long whatever the model learns meanwhile: with thousands of jobs it learns all the time.
const HOLDS: Millis = Millis::secs(1800);

impl Outlooks {
    /// `None`: it is not asked for.
    pub(crate) fn wanted(setup: &Setup, gpus: usize, jobs: usize) -> Option<Self> {
        let options = &setup.options;
        let wanted = options.policy.goes_by_predictions() || options.max_slowdown.is_some();
        wanted.then(|| Self {
            model: SlowdownModel::shipped(),
            kace: setup.kace.clone().or_else(|| Trained::shipped().map(Arc::new)),
            answered: Answered::default(),
            activity: Learner::new(gpus),
            learned: News::default(),
            again: News::default(),
            holds_until: Millis::ZERO,
            company: vec![(Vec::new(), None); gpus],
            new: BTreeSet::new(),
            measured: vec![(Millis::ZERO, 0); jobs],
            next: None,
        })
    }

    /// A job was put on a GPU, where it loads now, or is about to leave it.
    pub(crate) fn unsettled(&mut self, gpu: GpuIndex) {
        self.company[gpu as usize] = (Vec::new(), None);
        self.next = None;
    }

    /// Something changed on a GPU: perhaps which jobs compute there.
    pub(crate) fn changed(&mut self, now: Millis, gpu: GpuIndex, world: &World) {
        self.next = None;
        let tenants = &world.gpus[gpu as usize].tenants;
        let all = tenants.iter().all(|job| world.jobs[*job as usize].stage == Stage::Active);
        let (there, since) = &mut self.company[gpu as usize];
        if !all {
            *since = None;
        } else if since.is_none() || there != tenants {
            there.clone_from(tenants);
            *since = Some(now);
            self.new.insert(gpu);
        }
    }

    /// Learns from companies that are new, and where nothing is said of tasks, what they do. When there is more to learn, if nothing changes.
    pub(crate) fn learn(
        &mut self,
        now: Millis,
        state: &State,
        workload: &Workload,
        known: &mut Known,
        world: &World,
    ) -> Option<Millis> {
        let mut next = None;
        if known.learns_tasks() {
            let (news, more) = self.activity.look(now, (state, world), workload, known, &self.model);
            next = more;
            self.learned.commands.extend(news);
        }
        let alone = FromTrace { workload, known, guesses: &self.activity.guesses };
        for gpu in std::mem::take(&mut self.new) {
            let (Some(there), Some(since)) = (state.gpu(GpuId(gpu)), self.company[gpu as usize].1) else {
                continue;
            };
            if there.tenants.len() < 2 {
                continue;
            }
            // The first measurement of progress beside each other.
            let due = since + SETTLING + state.options().slowdown_window;
            if now < due {
                self.new.insert(gpu);
                next = Some(next.map_or(due, |next: Millis| next.min(due)));
                continue;
            }
            let jobs: Vec<&Job> = there.tenants.iter().filter_map(|t| state.job(t.job)).collect();
            // A job on several GPUs goes as fast as the slowest of them lets it.
            let progress = |job: &&Job| {
                let it = world.jobs.get(index(job.spec.id) as usize)?;
                (it.gpus.len() == 1 && it.rate > 0.0).then(|| progress(job, world))
            };
            let progress: Vec<Option<f64>> = jobs.iter().map(progress).collect();
            // Nothing is measured with noise here: what was predicted teaches nothing.
            let there = Together::of(state, there, &jobs);
            if outlook::is_off(&self.model, there, &progress, &alone) == Some(true) {
                // What it refuses to learn from it does without.
                let learned = outlook::observe(&mut self.model, there, progress, &alone);
                self.learned.model |= matches!(learned, Some(Ok(())));
            }
        }
        next
    }

    /// Whether answers are to be made anew: more is known of tasks, or the model has learned and they have held for a while.
    pub(crate) fn news(&mut self, now: Millis) -> bool {
        let mut news = std::mem::take(&mut self.learned);
        if news.model && now < self.holds_until {
            (news.model, self.learned.model) = (false, true);
        }
        if news.is_empty() {
            return false;
        }
        if news.model {
            self.holds_until = now + HOLDS;
        }
        self.answered.forget(&news);
        self.again.add(news);
        true
    }

    /// Answers to what the core asks now, and whether it may ask more once it has them.
    pub(crate) fn answers(
        &mut self,
        state: &State,
        workload: &Workload,
        known: &Known,
    ) -> (Vec<Outlook>, bool) {
        let questions = questions(state);
        let more = questions.len() >= MOST_QUESTIONS || state.options().max_slowdown.is_some();
        let models = Models { slowdowns: &self.model, kace: self.kace.as_deref() };
        let alone = FromTrace { workload, known, guesses: &self.activity.guesses };
        let answered = &mut self.answered;
        let answer = |asked| outlook::answer(models, state, asked, &alone, answered);
        let mut answers: Vec<Outlook> = questions.iter().filter_map(answer).collect();
        let again = std::mem::take(&mut self.again);
        if !again.is_empty() {
            answers.extend(outlook::again(models, state, &alone, answered, &again));
        }
        (answers.into_iter().map(|outlook| wrong(outlook, known.errors())).collect(), more)
    }

    /// Measurements of jobs with a limit that are due now, and when the next will be.
    pub(crate) fn measure(
        &mut self,
        now: Millis,
        state: &State,
        world: &World,
    ) -> (Vec<Input>, Option<Millis>) {
        let (mut due, mut next) = (Vec::new(), None);
        if state.options().max_slowdown.is_none() && state.options().policy.progress.is_none() {
            return (due, next);
        }
        if let Some(next) = self.next
            && next.is_none_or(|at| now < at)
        {
            return (due, next);
        }
        let window = state.options().slowdown_window;
        let least = state.options().policy.progress.map(Progress::least_measured);
        for job in state.active_jobs() {
            let Some(placement) = job.placement().filter(|_| job.suspension().is_none()) else { continue };
            let company = || placement.gpus.iter().filter_map(|gpu| self.company.get(gpu.0 as usize));
            let since: Option<Vec<Millis>> = company().map(|(_, since)| *since).collect();
            let Some(since) = since.and_then(|all| all.into_iter().max()) else { continue };
            let alone = company().all(|(there, _)| there.len() < 2);
            let Some(measured) = self.measured.get_mut(index(job.spec.id) as usize) else { continue };
            let times = if measured.0 == since { measured.1 } else { 0 };
            let rate = || progress(job, world);
            // The daemon measures all the time. What is as it is to be is not otherwise later, while the same jobs are there; what is spared for
            // being brief may turn out not to be.
            if alone || times >= 2 && !least.is_some_and(|least| rate() < least.to_f64()) {
                continue;
            }
            let ends = |times: u32| since + Millis((window.0 as f64 * windows(times)) as u64);
            let at = ends(times);
            if now < at {
                next = earlier(next, at);
                continue;
            }
            *measured = (since, times + 1);
            next = earlier(next, ends(times + 1));
            due.push(Input::Measured {
                job: job.spec.id,
                attempt: placement.attempt,
                progress: Fraction::from_f64(rate()).unwrap_or(Fraction::ONE),
                over: now.since(if times == 0 { since } else { ends(times - 1) }),
                at_most: false,
                loading: false,
            });
        }
        self.next = Some(next);
        (due, next)
    }
}

/// After so many windows, from when a company is together, the measurement of this number ends: after each, and later after a quarter more than
/// the one before, so that a slow job of days costs few events.
fn windows(times: u32) -> f64 {
    f64::from(times + 1).max(1.25_f64.powf(f64::from(times)))
}

fn earlier(next: Option<Millis>, at: Millis) -> Option<Millis> {
    Some(next.map_or(at, |next| next.min(at)))
}

/// A job's speed over its speed alone: with the threads that it asked for, as the daemon measures it. With fewer than that it is slower
/// since others are there.
fn progress(job: &Job, world: &World) -> f64 {
    let at = index(job.spec.id);
    let rate = world.jobs.get(at as usize).map_or(1.0, |job| job.rate);
    let asked = job.spec.request.thread_percent;
    let as_asked = asked.is_some() && job.placement().and_then(|placed| placed.thread_percent) == asked;
    if as_asked { rate / world.alone_with_its_threads(at) } else { rate }
}

/// A prediction with the errors that are asked for: the same for each task of the same company.
fn wrong(mut outlook: Outlook, errors: &Errors) -> Outlook {
    if errors.progress == 0.0 {
        return outlook;
    }
    let all = outlook.there.with(outlook.newcomer);
    let number = |classes: &[Class], of: Class| {
        let mix = |sum: u64, class: &Class| sum.wrapping_mul(0x0100_0000_01B3) ^ (class.command + 1);
        classes.iter().fold(of.command + 1, mix)
    };
    let off = |classes: &[Class], of: Class, progress| errors.progress(number(classes, of), progress);
    let both = |pace: Pace, of| Pace {
        expected: off(&all.classes, of, pace.expected),
        lower: pace.lower.map(|lower| off(&all.classes, of, lower)),
    };
    outlook.joins = both(outlook.joins, outlook.newcomer);
    let there = outlook.there.classes.iter();
    outlook.paces = there.zip(&outlook.paces).map(|(of, pace)| both(*pace, *of)).collect();
    outlook
}

/// What jobs do alone, from their tasks: a command is the first job of a task.
pub(super) struct FromTrace<'a> {
    pub(super) workload: &'a Workload,
    pub(super) known: &'a Known,
    /// What is assumed of tasks of which nothing is known.
    pub(super) guesses: &'a Guesses,
}

impl outlook::Alone for FromTrace<'_> {
    fn knows(&self, command: u64, _: &str) -> bool {
        self.known.is_active_known(command)
    }

    fn profile(&self, command: u64, gpu: &str) -> Option<Profile> {
        let job = self.workload.jobs.get(command as usize).filter(|_| self.knows(command, gpu));
        job.map(|job| profile(&job.task, command))
    }

    fn assumed(&self, command: u64, _: &str) -> Option<&Profile> {
        self.guesses.get(&command).map(Guess::profile)
    }
}

/// What a profile of it alone would show. `nvidia-smi`'s two numbers are not in a catalogue: where KACE wants them, time
/// with a kernel on the GPU stands for the one, and DRAM activity for the other.
fn profile(task: &CatalogueTask, command: u64) -> Profile {
    let share = |value: Option<f64>| value.map(|share| Stat::of(share * 100.0));
    let activity = &task.activity;
    // Tasks that nobody named have nothing in common.
    let name = if task.name.is_empty() { format!("#{command}") } else { task.name.to_string() };
    Profile {
        class: Some(name.clone()),
        name,
        rate: Some(Rate { per_s: 1.0, source: Some(RateSource::Heartbeat), ..Rate::default() }),
        metrics: Metrics {
            gract_pct: share(activity.gract),
            smact_pct: share(activity.smact),
            smocc_pct: share(activity.smocc),
            drama_pct: share(activity.drama),
            tensor_pct: share(activity.tensor),
            memory_mib: task.memory.iter().max().map(|memory| Stat::of(memory.0 as f64)),
            ..Metrics::default()
        },
        ..Profile::default()
    }
}

//! How fast jobs go, what that teaches, and what is predicted of groups.
//!
//! A job that has its GPUs for itself is profiled: what it uses, and its rate alone. Beside others its progress is
//! measured against that, window by window; the decision core hears of it, and the predictor learns from it. What
//! the core wants to have predicted is answered from the profiles and the predictor, in integers.
//!
//! Jobs of one command are one class: what was learned of a command serves its next run.

mod assumed;
mod falls;
mod fastest;
mod rows;
mod told;

use crate::run::pace::{HostLook, Paces};
use crate::sampler::Look;
use assumed::Assumptions;
use carma_api::wire::RateView;
use carma_core::input::Input;
use carma_core::ledger::{Gpu, Tenant};
use carma_core::model::{self as spec, Job, JobId, Phase, SharingMode};
use carma_core::policy::Pack;
use carma_core::slowdown::Outlook;
use carma_core::state::State;
use carma_core::units::{Fraction, Millis};
use carma_interference::assumed::Going;
use carma_interference::group::GpuType;
use carma_interference::kace::trained::Trained;
use carma_interference::online::SlowdownModel;
use carma_interference::outlook::{Answered, Models, News, PROFILE, SETTLING, Together, WARM_UP};
use carma_interference::profile::{self, Metrics, Pauses, Profile, Profiles, Rate, RateSource, Stat};
use carma_interference::rate::latency::P99;
use carma_interference::rate::tally::{Done, Measured};
use carma_interference::{lucid, outlook};
use carma_run_time::news::is_count_news;
use falls::Falls;
use fastest::{Fastest, Stretches, is_countable};
use rows::{Key, Rows};
use serde::{Deserialize, Serialize};
use std::cell::LazyCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
pub use told::Told;

/// After the first step of a job, before it counts what it does alone: the first ones compile and try kernels.
const FIRST_STEPS: Millis = Millis::secs(2);
/// Activity below which a GPU does nothing, percent.
const IDLE: f64 = 0.1;
/// Mean activity below which next to nothing is done, percent.
const LIGHT: f64 = 3.0;
/// A job that does nothing on its GPUs for so long holds them idle: that is what it does.
const LOADING: Millis = Millis::secs(300);
/// A job that has begun to count, and has not counted on a few times, is still at its first steps: for so long at most, since some
/// count epochs. So is one that does next to nothing and has told of no step: it has a context, and loads.
const FIRST_COUNTS: Millis = Millis::secs(60);
/// Longest time back that a rate is taken over: some tasks print once a minute.
const LOOK_BACK: Millis = Millis::secs(600);
/// How fast jobs are beside others is seen over this time at most, where what they do is assumed by it.
const LATELY: Millis = Millis::secs(10);
/// Times that a count must have risen for a rate to count.
const ADVANCES: usize = 3;
/// A job that had memory for longer before the first look at it was adopted: when its steps began is not known.
const ADOPTED: Millis = Millis::secs(5);
/// A job that was silent for so many times as long as it was between two counts alone is slow, or stands still: its speed is told without a
/// third count.
const SILENCE: f64 = 10.0;
/// The same without any count, for a job that stands still: neighbours left jobs a fiftieth of their speed at the least
/// (docs/research/interference.md), so that one that is slowed down makes a step meanwhile.
const STANDSTILL: f64 = 100.0;
/// A job moves for at least this share of the time, or its silences are no pauses.
const MOVING: f64 = 0.25;
/// A first measurement whose first half is much faster than its second starts again from its middle, until so many times its length have passed.
const TRIES: u64 = 4;
/// Commands whose profiles are kept; of the user who has the most, the one used least lately is forgotten.
const MOST_PROFILES: usize = 2048;
/// The model is stored so often at most: its state is large, and what a crash loses is seen again.
const STORE_EVERY: Millis = Millis::secs(60);
/// Key of the model's row; the others are `profile/COMMAND/GPU`, and the same with `assumed` and `fastest`.
const MODEL: &str = "model";
/// Samples kept for a profile: two minutes at one a second.
const MOST_SAMPLES: usize = 120;

/// The body of a row.
#[derive(Serialize)]
struct Stored<'a> {
    #[serde(flatten)]
    profile: &'a Profile,
    #[serde(flatten)]
    beside: Beside,
}

/// What a row has beside the profile. It is read by itself: numbers that are keys do not come through what is flattened.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
struct Beside {
    /// Whose command it is. `None`: an older version stored it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    uid: Option<u32>,
    /// When the command was last seen; less than [`rows::STORED_EVERY`] more, as it is stored.
    #[serde(default)]
    used: Millis,
}

/// What is published for readers.
pub type Rates = Arc<Mutex<BTreeMap<JobId, RateView>>>;

/// Profiles, the predictor, and the jobs under watch.
pub struct Slowdowns {
    paces: Arc<Paces>,
    model: SlowdownModel,
    /// The same before it learned anything: a score of a command must not depend on which jobs shared with which.
    fresh: SlowdownModel,
    /// For a policy that goes by what jobs get done together.
    kace: Option<Trained>,
    /// What is known of commands alone.
    profiles: Rows<Profile>,
    /// Of commands without a profile.
    assumed: Assumptions,
    /// Of commands whose speed alone is not known.
    fastest: Fastest,
    stretches: Stretches,
    falls: Falls,
    watched: BTreeMap<JobId, Watch>,
    rates: Rates,
    model_changed: bool,
    model_stored: Millis,
    /// What was learned since the last answers.
    news: News,
    answered: Answered,
    /// Sharing scores by command and product name of the GPU, and of how many profiles each was made.
    scores: BTreeMap<Key, (u8, usize)>,
    /// Profiles changed since the core was told.
    untold: bool,
    /// Running jobs may be of commands whose profile is another one now.
    powers: bool,
    /// The type of GPU that jobs with GPUs have, where the core was told what they do there.
    told: BTreeMap<JobId, String>,
}

/// One running attempt.
struct Watch {
    attempt: u32,
    /// When it was first looked at.
    first_look: Millis,
    /// Since when it is looked at without a break.
    began: Millis,
    /// Time alone that the samples cover; begins anew when others have begun on its GPUs.
    alone: Option<Alone>,
    /// A rate of the count of its work, as far as that is known: the last one.
    own: Option<Rate>,
    /// Rate alone of this very process; of that count, if it is one of its work.
    rate: Option<Rate>,
    /// Seconds between two counts, alone.
    gap_s: Option<f64>,
    /// What was measured of it beside others.
    windows: Windows,
    /// Since when it is known to have settled.
    settled: Option<Millis>,
    /// The share that it said was done, as it was last passed on, and how often that was.
    counted: Option<(f64, u32)>,
}

/// A window over which a job was measured beside others.
#[derive(Debug, Clone, Copy)]
struct Window {
    progress: f64,
    /// Whether that is an upper bound.
    at_most: bool,
    from: Millis,
    until: Millis,
}

/// The last windows of a job beside others: of its steps, and of its latency. Each is full in its own time.
struct Windows {
    /// Since when it is measured.
    since: Millis,
    steps: Option<Window>,
    latency: Option<Window>,
    /// Where the last one ended that the core was told.
    told: Millis,
}

struct Alone {
    since: Millis,
    /// When the profile is made (again).
    due: Millis,
    samples: Samples,
}

/// What one look at all jobs gathers.
#[derive(Default)]
struct Found {
    /// What the core should know.
    inputs: Vec<Input>,
    /// Progress that the model is to learn from.
    observed: BTreeMap<JobId, f64>,
    /// Jobs that count, though when their first step began is not known yet.
    counting: BTreeSet<JobId>,
}

/// Activity samples of a job's GPUs, for means and percentiles.
#[derive(Default)]
struct Samples {
    values: VecDeque<Metrics>,
    last: Millis,
    /// When the host was last seen: one look counts once.
    host: Option<Instant>,
}

impl Slowdowns {
    /// With what was stored. Rows that are not understood are left out, and the log says so.
    #[must_use]
    pub fn new(paces: Arc<Paces>, kace: Option<Trained>, rows: &[(String, String)]) -> Self {
        let mut slowdowns = Self {
            paces,
            model: SlowdownModel::shipped(),
            fresh: SlowdownModel::shipped(),
            kace,
            profiles: Rows::default(),
            assumed: Assumptions::default(),
            fastest: Fastest::default(),
            stretches: Stretches::default(),
            falls: Falls::default(),
            watched: BTreeMap::new(),
            rates: Rates::default(),
            model_changed: false,
            model_stored: Millis::ZERO,
            news: News { model: true, ..News::default() },
            answered: Answered::default(),
            scores: BTreeMap::new(),
            untold: true,
            powers: false,
            told: BTreeMap::new(),
        };
        slowdowns.restore(rows);
        slowdowns
    }

    /// Goes back to what was stored.
    pub fn restore(&mut self, rows: &[(String, String)]) {
        self.model = SlowdownModel::shipped();
        self.profiles = Rows::default();
        (self.assumed, self.fastest) = (Assumptions::default(), Fastest::default());
        for (key, body) in rows {
            let read = if key == MODEL {
                SlowdownModel::read(body).map(|model| self.model = model).map_err(|e| e.to_string())
            } else {
                self.restore_profile(key, body)
            };
            if let Err(e) = read {
                tracing::warn!("what was learned of slowdowns as '{key}' is left out: {e}");
            }
        }
        // An older carma may have seen them alone, and left what was assumed of them.
        for (key, profile) in self.profiles.iter() {
            self.assumed.forget(key);
            if profile.rate.is_some() {
                self.fastest.forget(key);
            }
        }
        self.model_changed = false;
        self.news.model = true;
        self.scores.clear();
        self.untold = true;
    }

    /// The core is back at this state and does not know what it was told since.
    pub fn tell_again(&mut self, state: &State) {
        (self.untold, self.powers) = (true, true);
        let active = state.active_jobs();
        let on = active.filter_map(|job| Some((job.spec.id, placed(state, job)?.to_owned())));
        self.told = on.collect();
        for watch in self.watched.values_mut() {
            // Whatever it says next is news.
            watch.counted = watch.counted.map(|(_, times)| (f64::INFINITY, times));
        }
    }

    fn restore_profile(&mut self, key: &str, body: &str) -> Result<(), String> {
        let words: Vec<&str> = key.splitn(3, '/').collect();
        let [kind @ ("profile" | "assumed" | "fastest"), command, gpu] = words[..] else {
            return Err("no such row is known".into());
        };
        let command = u64::from_str_radix(command, 16).map_err(|e| e.to_string())?;
        let profile: Profile = serde_json::from_str(body).map_err(|e| e.to_string())?;
        let beside: Beside = serde_json::from_str(body).map_err(|e| e.to_string())?;
        profile.check().map_err(|e| e.to_string())?;
        let key = (command, gpu.to_owned());
        match kind {
            "profile" => self.profiles.restore(key, profile, beside),
            "assumed" => self.assumed.restore(key, profile, beside),
            _ => self.fastest.restore(key, profile, beside),
        }
        Ok(())
    }

    /// The meters.
    #[must_use]
    pub const fn paces(&self) -> &Arc<Paces> {
        &self.paces
    }

    /// What is published of rates.
    #[must_use]
    pub fn rates(&self) -> Rates {
        self.rates.clone()
    }

    /// The predictor.
    #[must_use]
    pub const fn model(&self) -> &SlowdownModel {
        &self.model
    }

    /// What is known of a command alone on a type of GPU.
    #[must_use]
    pub fn profile(&self, command_key: u64, gpu: &str) -> Option<&Profile> {
        self.profiles.get(&(command_key, gpu.to_owned()))
    }

    /// Rows that changed since the last time; the model's now and then.
    pub fn changes(&mut self, now: Millis) -> Vec<(String, Option<String>)> {
        let mut rows = self.profile_rows();
        if self.model_changed && now.since(self.model_stored) >= STORE_EVERY {
            self.model_stored = now;
            rows.extend(self.model_row());
        }
        rows
    }

    /// Rows that changed, at the daemon's end.
    pub fn last_changes(&mut self) -> Vec<(String, Option<String>)> {
        let mut rows = self.profile_rows();
        rows.extend(self.model_row());
        rows
    }

    fn model_row(&mut self) -> Option<(String, Option<String>)> {
        if !std::mem::take(&mut self.model_changed) {
            return None;
        }
        match self.model.to_json() {
            Ok(body) => Some((MODEL.to_owned(), Some(body))),
            Err(e) => {
                tracing::warn!("what was learned of slowdowns cannot be stored: {e}");
                None
            }
        }
    }

    fn profile_rows(&mut self) -> Vec<(String, Option<String>)> {
        let mut rows = rows_of("profile", self.profiles.changes(|profile| profile));
        rows.extend(rows_of("assumed", self.assumed.changes()));
        rows.extend(rows_of("fastest", self.fastest.changes()));
        rows
    }

    /// Keeps a profile in place of an earlier one of the command. Less of it than was seen before tells nothing new,
    /// unless it is otherwise.
    fn keep(&mut self, spec: &spec::NewJob, gpu: &str, mut profile: Profile, now: Millis) {
        let (key, uid) = ((spec.command_key, gpu.to_owned()), Some(spec.user.uid));
        if let Some(oldest) = self.profiles.make_room(&key, uid) {
            // It may be known on another type of GPU.
            if !self.profiles.has_command(oldest.0) {
                self.model.forget(&class(oldest.0));
            }
            self.scores.remove(&oldest);
            self.news.commands.insert(oldest.0);
        }
        let known = self.profiles.used(now, &key, uid, Profile::default);
        // Slow steps take longer to count than a first profile does.
        profile.rate = profile.rate.or_else(|| known.rate.clone());
        profile.latency_p99_ms = profile.latency_p99_ms.or(known.latency_p99_ms);
        if profile.watched_s < known.watched_s && alike(&profile, known) {
            return;
        }
        let has_rate = profile.rate.is_some();
        *known = profile;
        self.news.commands.insert(key.0);
        (self.untold, self.powers) = (true, true);
        self.scores.remove(&key);
        self.assumed.forget(&key);
        if has_rate {
            self.fastest.forget(&key);
        }
        self.profiles.changed(key);
    }

    /// An attempt is over.
    pub fn ended(&mut self, job: JobId, attempt: u32) {
        self.paces.close(job, attempt);
        self.watched.remove(&job);
        self.stretches.left(job);
        self.falls.ended(job);
        self.publish(job, None);
    }

    fn publish(&self, job: JobId, view: Option<RateView>) {
        let mut rates = self.rates.lock().unwrap_or_else(PoisonError::into_inner);
        match view {
            Some(view) => drop(rates.insert(job, view)),
            None => drop(rates.remove(&job)),
        }
    }

    /// What was measured of a job beside others is not so any more.
    fn unmeasure(&self, job: JobId) {
        if let Some(view) = self.rates.lock().unwrap_or_else(PoisonError::into_inner).get_mut(&job) {
            view.progress = None;
        }
    }

    // --- looking -------------------------------------------------------------------------------

    /// Looks at all running jobs. Returns what the core should know. `iterations`: how many steps or epochs a job's command says that it is
    /// to do.
    pub fn look(
        &mut self,
        now: Millis,
        state: &State,
        looks: &[Look],
        iterations: impl Fn(JobId) -> Option<u64>,
    ) -> Vec<Input> {
        let mut found = Found::default();
        // How far jobs are counts where they are judged over their whole run.
        let done = state.options().policy.progress.map(|_| self.paces.done(state, now)).unwrap_or_default();
        for job in state.active_jobs() {
            self.look_at(now, state, (job, done.get(&job.spec.id)), &iterations, looks, &mut found);
        }
        let Found { inputs, observed, counting } = found;
        if !observed.is_empty() {
            self.learn(state, &observed);
        }
        self.look_at_steps(now, state, &iterations);
        let Self { paces, profiles, fastest, watched, .. } = self;
        let going = |job: &Job, gpu: &str, from: Millis| {
            if is_narrowed(job) {
                return None;
            }
            let from = from.max(Millis(now.0.saturating_sub(LATELY.0)));
            let own = watched.get(&job.spec.id).and_then(|watch| watch.own.as_ref());
            let rate = paces.rate(job.spec.id, from, now, own).filter(is_countable)?;
            let rate = of_length(rate, iterations(job.spec.id)).rate;
            let key = (job.spec.command_key, gpu.to_owned());
            let alone = profiles.get(&key).and_then(|profile| profile.rate.as_ref());
            match alone.filter(|alone| alone.counts_like(&rate) && alone.per_s > 0.0) {
                Some(alone) => Some(Going::At(rate.per_s / alone.per_s)),
                None => fastest.at_most(&key, &rate).map(Going::AtMost),
            }
        };
        let speed = |job: JobId, from: Millis, until: Millis| {
            let own = watched.get(&job).and_then(|watch| watch.own.as_ref());
            let rate = paces.rate(job, from, until, own).filter(is_countable)?;
            Some((rate.rate.per_s, rate.advances))
        };
        let how_fast = (&going, &speed as assumed::Speed<'_>);
        let assumed = self.assumed.look(now, state, (looks, &counting), how_fast, &self.model, profiles);
        self.news.commands.extend(assumed);
        inputs
    }

    /// Looks at one job. `done`: how far it is by its own count.
    fn look_at(
        &mut self,
        now: Millis,
        state: &State,
        (job, done): (&Job, Option<&Done>),
        iterations: impl Fn(JobId) -> Option<u64>,
        looks: &[Look],
        found: &mut Found,
    ) {
        let Phase::Running { placement, .. } = &job.phase else { return };
        let (id, attempt) = (job.spec.id, placement.attempt);
        let gpus: Vec<&Gpu> = placement.gpus.iter().filter_map(|id| state.gpu(*id)).collect();
        // While it is suspended it stands still, which is no neighbour's doing.
        let is_on = job.suspension().is_none();
        let Some(neighbourhood) = Neighbourhood::of(id, &gpus).filter(|_| is_on) else {
            // The speed that it had before is not the present one.
            let counts = self.paces.counts(id).filter(|_| is_on);
            self.publish(id, counts.map(|_| rate_view(None, None, None, counts)));
            if let Some(watch) = self.watched.get_mut(&id) {
                watch.breaks(now);
                if is_on {
                    self.show_latency(now, state, job);
                }
            }
            return;
        };
        let watch = self.watched.entry(id).or_insert_with(|| Watch::new(attempt, now));
        if watch.attempt != attempt {
            *watch = Watch::new(attempt, now);
        }
        let active = stepless_since(id, &gpus);
        if let Some(active) = active.filter(|active| watch.first_look <= *active + ADOPTED) {
            let counted = self.paces.rate(id, active, now, None);
            let counted = counted.filter(|rate| rate.advances > 0 && !rate.prepares);
            found.counting.extend(counted.as_ref().map(|_| id));
            let began = counted.filter(|rate| rate.advances >= ADVANCES).map(|rate| first_step(&rate));
            let stepped = began.map(|began| Input::Stepped { job: id, attempt, ago: now.since(began) });
            found.inputs.extend(stepped);
        }
        // While it starts up it does nothing of what it counts.
        let works = |gpu: &Gpu| gpu.tenant(id).is_some_and(|t| t.settled || t.stepped.is_some());
        let counts = gpus.iter().all(|gpu| works(gpu)) && self.paces.is_heard(id, now);
        if watch.settled.is_none() && gpus.iter().all(|gpu| gpu.tenant(id).is_some_and(|t| t.settled)) {
            watch.settled = Some(now);
        }
        let share = counts.then(|| watch.counts(done)).flatten();
        found.inputs.extend(share.map(|share| Input::Counted { job: id, attempt, share }));
        let length = iterations(id);
        // With fewer threads than it asked for it is not as it is alone.
        let narrowed = is_narrowed(job) && placement.thread_percent != job.spec.request.thread_percent;
        if any_passing(state, &gpus) || (neighbourhood.alone && narrowed) {
            watch.breaks(now);
            self.unmeasure(id);
        } else if neighbourhood.alone {
            let window = state.options().slowdown_window;
            self.look_alone(now, (job, length), &gpus, &neighbourhood, window, looks);
        } else {
            let job = (job, attempt, length);
            let news = self.look_beside(now, state, job, &gpus, &neighbourhood, &mut found.observed);
            found.inputs.extend(news);
        }
        self.show_latency(now, state, job);
    }

    /// Looks how fast jobs are at their steps: the fastest of those whose speed alone is not known, and which begin with something else.
    fn look_at_steps(&mut self, now: Millis, state: &State, iterations: impl Fn(JobId) -> Option<u64>) {
        for job in state.active_jobs() {
            let (id, uid) = (job.spec.id, job.spec.user.uid);
            let gpus = job.placement().into_iter().flat_map(|placed| &placed.gpus);
            let gpus: Option<Vec<&Gpu>> = gpus.map(|gpu| state.gpu(*gpu)).collect();
            let gpus = gpus.unwrap_or_default();
            let stepped = gpus.iter().map(|gpu| gpu.tenant(id)?.stepped).collect::<Option<Vec<_>>>();
            let steps = stepped.and_then(|at| at.into_iter().max()).map(|at| at + FIRST_STEPS);
            let is_at_steps = steps.is_some_and(|at| at <= now) && job.suspension().is_none();
            let key = placed(state, job).map(|gpu| (job.spec.command_key, gpu.to_owned()));
            let Some(key) = key.filter(|_| is_at_steps) else {
                self.stretches.left(id);
                continue;
            };
            let own = self.watched.get(&id).and_then(|watch| watch.own.as_ref());
            let rate = |from| Some(of_length(self.paces.rate(id, from, now, own)?, iterations(id)));
            let Some(steady) = self.stretches.look(now, id, rate) else { continue };
            let fell = self.falls.look(id, &steady, at_steps_since(&gpus), self.fastest.of(&key));
            let knows = self.profiles.get(&key).is_some_and(|profile| profile.rate.is_some());
            if let Some(before) = fell {
                self.forget_what_was_passed_over(now, (job, uid), &key, &gpus, before);
            } else if !knows {
                self.fastest.raise(now, &key, uid, &steady.slowest);
            }
        }
    }

    /// What a job did until now was no work. `before`: the fastest that its command was seen before.
    fn forget_what_was_passed_over(
        &mut self,
        now: Millis,
        (job, uid): (&Job, u32),
        key: &Key,
        gpus: &[&Gpu],
        before: Option<Rate>,
    ) {
        let id = job.spec.id;
        tracing::debug!("job {id} counts several times slower than at first: what it did before is left out");
        let Some(watch) = self.watched.get_mut(&id) else { return };
        let is_alone = Neighbourhood::of(id, gpus).is_some_and(|neighbourhood| neighbourhood.alone);
        if is_alone {
            watch.breaks(now);
            // A profile of this command may have been made of it.
            if watch.rate.take().is_some() && !is_narrowed(job) {
                let known = self.profiles.used(now, key, Some(uid), Profile::default);
                known.rate = None;
                self.profiles.changed(key.clone());
                self.news.commands.insert(key.0);
                self.scores.remove(key);
            }
            watch.gap_s = None;
        } else if watch.rate.is_none() && self.profiles.get(key).is_none_or(|profile| profile.rate.is_none())
        {
            watch.windows = Windows::new(now);
            self.fastest.take_back(now, key, uid, before);
        }
    }

    /// Looks at a job beside others: what of its speed the core should know. What the model is to learn is put into `observed`.
    fn look_beside(
        &mut self,
        now: Millis,
        state: &State,
        (job, attempt, iterations): (&Job, u32, Option<u64>),
        gpus: &[&Gpu],
        neighbourhood: &Neighbourhood,
        observed: &mut BTreeMap<JobId, f64>,
    ) -> Option<Input> {
        let id = job.spec.id;
        self.look_at_latency(now, state, job, neighbourhood);
        let steps = self.look_together(now, state, (job, iterations), gpus, neighbourhood);
        let news = self.watched.get_mut(&id).and_then(|watch| {
            let tells = |window: &Window| !window.at_most || tells(window.progress, job, gpus);
            watch.windows.news(now, neighbourhood.measurable(), tells)
        });
        let loading = |window: Window| !self.all_work(state, gpus, window.from);
        // Of one that asked for fewer threads it is a part of its speed alone with these: the predictor's is one of that with all.
        let of_all = |watch: &Watch| !is_narrowed(job) || watch.rate.is_none();
        if let Some(steps) = steps.filter(|steps| !steps.at_most)
            && self.watched.get(&id).is_some_and(of_all)
            && neighbourhood.settled_at.is_some_and(|at| at <= steps.from)
            && !loading(steps)
        {
            observed.insert(id, steps.progress);
        }
        news.map(|window| Input::Measured {
            job: id,
            attempt,
            progress: Fraction::from_f64(window.progress).unwrap_or(Fraction(0)),
            over: window.over(),
            at_most: window.at_most,
            loading: loading(window),
        })
    }

    /// Whether all jobs on these GPUs were at work from this time on. What one that loads leaves the others says nothing of how they go
    /// together.
    fn all_work(&self, state: &State, gpus: &[&Gpu], from: Millis) -> bool {
        let works = |gpu: &Gpu, tenant: &Tenant| {
            let began = tenant.stepped.or_else(|| self.paces.began(tenant.job));
            let job = state.job(tenant.job);
            let profile = job.and_then(|job| self.profile(job.spec.command_key, &gpu.info.name));
            match began {
                Some(began) => began + FIRST_STEPS <= from,
                // It settles while it loads, and its steps are still to come.
                None if profile.is_some_and(|profile| profile.rate.is_some()) => false,
                None => {
                    let settled = self.watched.get(&tenant.job).and_then(|watch| watch.settled);
                    settled.is_some_and(|at| at <= from)
                }
            }
        };
        gpus.iter().all(|gpu| gpu.tenants.iter().all(|tenant| works(gpu, tenant)))
    }

    /// Publishes the latency of a server over the last window.
    fn show_latency(&self, now: Millis, state: &State, job: &Job) {
        if job.spec.request.latency_us.is_none() {
            return;
        }
        let from = Millis(now.0.saturating_sub(state.options().slowdown_window.0));
        let p99 = self.paces.p99(job.spec.id, from, now);
        let mut rates = self.rates.lock().unwrap_or_else(PoisonError::into_inner);
        let view = rates.entry(job.spec.id).or_default();
        (view.latency_p99_ms, view.requests) = (p99.map(|p99| p99.ms), p99.and_then(|p99| p99.requests));
    }

    fn look_alone(
        &mut self,
        now: Millis,
        (job, iterations): (&Job, Option<u64>),
        gpus: &[&Gpu],
        neighbourhood: &Neighbourhood,
        window: Millis,
        looks: &[Look],
    ) {
        let id = job.spec.id;
        self.unmeasure(id);
        let (Some(watch), Some(gpu)) = (self.watched.get_mut(&id), gpus.first()) else { return };
        let key = (job.spec.command_key, gpu.info.name.clone());
        watch.windows = Windows::new(now);
        // While it loads it does nothing of what it will do: to its first step where it tells of steps, else to its first activity.
        let stepped = gpus.iter().filter_map(|gpu| gpu.tenant(id)?.stepped).max();
        let works = stepped.map_or(Millis::ZERO, |at| at + FIRST_STEPS);
        let begins = neighbourhood.since.max(watch.began) + WARM_UP;
        let alone = watch.alone.get_or_insert_with(|| Alone::new(begins.max(works)));
        if alone.since < works {
            *alone = Alone::new(works);
        }
        if now < alone.since {
            return;
        }
        alone.samples.take(gpus, looks, self.paces.host(id));
        // Before Hopper NVML tells no more than utilisation.
        let fine = gpus.iter().all(|gpu| gpu.info.has_activity);
        let loads = match alone.samples.are_idle(fine) {
            true => LOADING,
            false if self.paces.counts(id).is_some() || alone.samples.are_light(fine) => FIRST_COUNTS,
            false => Millis::ZERO,
        };
        if stepped.is_none() && now.since(neighbourhood.since) < loads {
            *alone = Alone::new(now);
            return;
        }
        let since = alone.since;
        let from = since.max(Millis(now.0.saturating_sub(LOOK_BACK.0)));
        if now < alone.due {
            return;
        }
        let own = watch.own.as_ref();
        // Bounded: counts that come in bursts look like this again and again.
        let is_early = since.since(begins.max(works)).0 < TRIES * PROFILE.0;
        if watch.rate.is_none() && is_early && begins_with_other(&self.paces, id, (since, now), own) {
            *alone = Alone::new(midway(since, now));
            return;
        }
        // Again when twice as much was seen.
        alone.due = now + now.since(since).max(PROFILE);
        let known = || self.profiles.get(&key)?.rate.as_ref();
        let rate = self.paces.rate(id, from, now, watch.own.as_ref());
        let rate = rate.filter(|rate| is_work(rate, watch.rate.as_ref().or_else(known)));
        let rate = rate.map(|rate| between_pauses(&self.paces, id, (from, now), window, rate));
        let rate = rate.map(|rate| of_length(rate, iterations));
        let counted = rate.as_ref().filter(|r| r.advances >= ADVANCES).map(|r| r.rate.clone());
        let mut profile = Profile {
            name: job.spec.name.to_string(),
            class: Some(class(job.spec.command_key)),
            gpu: Some(key.1.clone()),
            rate: counted.clone(),
            metrics: alone.samples.metrics(),
            latency_p99_ms: self.paces.p99(id, from, now).filter(P99::is_enough).map(|p99| p99.ms),
            watched_s: Some(now.since(since).as_secs_f64()),
            ..Profile::default()
        };
        profile.metrics.memory_mib =
            gpus.iter().filter_map(|gpu| gpu.tenant(id)?.peak).max().map(|peak| Stat::of(peak.0 as f64));
        if let (Some(counted), Some(rate)) = (&counted, &rate) {
            watch.rate = Some(counted.clone());
            if !counted.aside {
                watch.own = Some(counted.clone());
            }
            watch.gap_s = (rate.advances > 0).then(|| rate.live_s / rate.advances as f64);
        }
        let busy = if fine { profile.metrics.smact_pct } else { profile.metrics.gpu_util_pct };
        if busy.is_none() || profile.check().is_err() {
            return;
        }
        let view = rate_view(counted.as_ref(), counted.as_ref(), None, self.paces.counts(id));
        self.publish(id, Some(view));
        // A profile is of a command with all threads: what fewer of them cost is predicted from it, and another run may have more.
        if is_narrowed(job) {
            return;
        }
        self.keep(&job.spec, &key.1, profile, now);
    }

    /// What neighbours leave a server by its latency, if a window beside them is full: its 99th percentile alone over that beside them.
    fn look_at_latency(
        &mut self,
        now: Millis,
        state: &State,
        job: &Job,
        neighbourhood: &Neighbourhood,
    ) -> Option<Window> {
        job.spec.request.latency_us?;
        let alone_ms = f64::from(job.spec.profile.latency_us?) / 1000.0;
        let window = state.options().slowdown_window;
        let watch = self.watched.get_mut(&job.spec.id)?;
        let from = neighbourhood.measurable().max(watch.windows.end(watch.windows.latency));
        let from = from.max(Millis(now.0.saturating_sub(LOOK_BACK.0)));
        let over = now.since(from);
        if over < window {
            return None;
        }
        // One that is slowed down may answer few: the window goes on until there are enough, or no more will come.
        let p99 = self.paces.p99(job.spec.id, from, now)?;
        if !(p99.is_enough() || over >= LOOK_BACK) {
            return None;
        }
        let window = Window { progress: alone_ms / p99.ms, at_most: false, from, until: now };
        watch.windows.latency = Some(window);
        Some(window)
    }

    /// Progress of a job beside others, if a window of it is full. For want of its speed alone, it is compared with the fastest that its
    /// command was seen: an upper bound.
    fn look_together(
        &mut self,
        now: Millis,
        state: &State,
        (job, iterations): (&Job, Option<u64>),
        gpus: &[&Gpu],
        neighbourhood: &Neighbourhood,
    ) -> Option<Window> {
        let id = job.spec.id;
        let window = state.options().slowdown_window;
        let key = (job.spec.command_key, gpus.first()?.info.name.clone());
        // What others of its command do with all threads is no measure of it.
        let asks_for_fewer = job.spec.request.thread_percent.is_some_and(|percent| percent < 100);
        let known = self.profiles.get(&key).and_then(|profile| profile.rate.clone());
        let earlier = known.filter(|rate| !asks_for_fewer && rate.per_s > 0.0);
        let watch = self.watched.get_mut(&id)?;
        watch.alone = None;
        let from = neighbourhood.measurable().max(watch.windows.end(watch.windows.steps));
        let from = from.max(Millis(now.0.saturating_sub(LOOK_BACK.0)));
        let over = now.since(from);
        if over < window {
            return None;
        }
        let is_known = watch.rate.is_some() || earlier.is_some();
        let is_early = from.since(neighbourhood.measurable()).0 < TRIES * window.0;
        if !is_known
            && is_early
            && watch.windows.steps.is_none()
            && begins_with_other(&self.paces, id, (from, now), watch.own.as_ref())
        {
            watch.windows.since = midway(from, now);
            return None;
        }
        // It may not have come to a pause yet in this run.
        let known = || watch.rate.iter().chain(&earlier);
        let pauses = known().find_map(|rate| rate.pauses);
        let rate = self.paces.rate_between(id, from, now, pauses, watch.own.as_ref());
        let rate = rate.map(|rate| of_length(rate, iterations));
        // It loads, or evaluates.
        let does_other = rate.as_ref().is_some_and(|rate| !is_work(rate, known().next()));
        let rate = rate.filter(|_| !does_other);
        let together = rate.as_ref().filter(|rate| rate.advances >= ADVANCES).map(|rate| rate.rate.clone());
        if let Some(now) = together.clone().filter(|now| !now.aside) {
            // Another count has taken the place of that which was seen alone.
            if watch.rate.as_ref().is_some_and(|alone| !alone.counts_like(&now)) {
                (watch.rate, watch.gap_s) = (None, None);
            }
            watch.own = Some(now);
        }
        // A rate is compared with one of the same count alone, or with none.
        let is_like = |alone: &&Rate| rate.as_ref().is_none_or(|now| now.rate.counts_like(alone));
        let alone = watch.rate.iter().chain(&earlier).find(is_like);
        // What it did in a window at the end of which it has been silent for long.
        let counted = rate.as_ref().filter(|rate| rate.advances > 0).map_or(0.0, |rate| rate.counted);
        let is_silent = || {
            let silence = self.paces.silence(id, watch.own.as_ref(), now).map(|silence| silence.min(over));
            let gaps = if counted > 0.0 { SILENCE } else { STANDSTILL };
            let is_longer = |(gap_s, silence): (f64, Millis)| {
                silence.as_secs_f64() >= longest_silence(gaps * gap_s, pauses)
            };
            watch.gap_s.zip(silence).is_some_and(is_longer) && self.paces.is_heard(id, from)
        };
        let progress = match (&together, alone) {
            (Some(now), Some(alone)) => Some(now.per_s / alone.per_s),
            (None, Some(alone)) if !does_other && is_silent() => {
                Some(counted / over.as_secs_f64() / alone.per_s)
            }
            _ => None,
        };
        let view = rate_view(together.as_ref(), alone, progress, self.paces.counts(id));
        let comparable = together.filter(|_| alone.is_none() && !asks_for_fewer);
        self.publish(id, Some(view));
        // Slow steps want a longer window.
        let (at_most, progress) = match progress {
            Some(progress) => (false, progress),
            None => (true, self.fastest.share_of(now, &key, job.spec.user.uid, &comparable?)?),
        };
        let window = Window { progress, at_most, from, until: now };
        self.watched.get_mut(&id)?.windows.steps = Some(window);
        Some(window)
    }

    // --- learning and predicting ---------------------------------------------------------------

    /// Learns from groups in which a job's progress was measured.
    fn learn(&mut self, state: &State, observed: &BTreeMap<JobId, f64>) {
        for gpu in state.gpus() {
            if gpu.tenants.len() < 2 || !gpu.tenants.iter().any(|t| observed.contains_key(&t.job)) {
                continue;
            }
            let jobs: Vec<&Job> = gpu.tenants.iter().filter_map(|t| state.job(t.job)).collect();
            // A job on several GPUs goes as fast as the slowest of them lets it.
            let own = |job: &&Job| job.placement().is_some_and(|p| p.gpus.len() == 1);
            let progress = |job: &&Job| {
                observed.get(&job.spec.id).copied().filter(|progress| *progress > 0.0 && own(job))
            };
            let progress: Vec<Option<f64>> = jobs.iter().map(progress).collect();
            let alone = KnownAlone { profiles: &self.profiles, assumed: &self.assumed };
            let there = Together::of(state, gpu, &jobs);
            let off = outlook::is_off(&self.model, there, &progress, &alone) == Some(true);
            match outlook::observe(&mut self.model, there, progress, &alone) {
                Some(Ok(())) => {
                    self.model_changed = true;
                    self.news.model |= off;
                }
                Some(Err(e)) => tracing::debug!("nothing is learned on GPU {}: {e}", gpu.info.index),
                None => {}
            }
        }
    }

    /// What is known of jobs alone on one type of GPU, and what was learned. The type is the first on which all were seen: of
    /// the asked type where there are such GPUs, else of any.
    #[must_use]
    pub fn tell(&self, state: &State, jobs: &[Subject], asked: Option<&str>) -> Told {
        let mut types: Vec<&str> = Vec::new();
        for gpu in state.gpus().iter().filter(|gpu| gpu.present) {
            if !types.contains(&&*gpu.info.name) {
                types.push(&gpu.info.name);
            }
        }
        if let Some(asked) = asked {
            let of_type = GpuType::named(asked);
            // Of one chip there may be several products.
            let is = |name: &&str| name.eq_ignore_ascii_case(asked);
            let of_asked = types.iter().copied().filter(is);
            let of_chip = types.iter().copied().filter(|name| !is(name) && of_type.is(name));
            let meant: Vec<&str> = of_asked.chain(of_chip).collect();
            if !meant.is_empty() {
                types = meant;
            }
        }
        let knows_all = |gpu: &&&str| jobs.iter().all(|job| self.profile(job.command, gpu).is_some());
        let gpu = types.iter().find(knows_all).or(types.first()).copied().unwrap_or_default().to_owned();
        let mut tasks = Vec::new();
        let mut unknown = Vec::new();
        for Subject { id, command, readable } in jobs {
            match self.profile(*command, &gpu) {
                Some(profile) => {
                    let profile = if *readable { profile.clone() } else { numbers_of(profile) };
                    tasks.push(Profile { name: id.to_string(), ..profile });
                }
                None => unknown.push(id.0),
            }
        }
        let profiles = Profiles { version: profile::VERSION, gpu: Some(gpu.clone()), tasks };
        // What was observed of others' jobs holds their speeds and commands.
        let classes = jobs.iter().filter(|job| job.readable).map(|job| class(job.command)).collect();
        Told {
            gpu,
            sharing: state.options().sharing,
            profiles,
            unknown,
            model: self.model.of_classes(&classes),
        }
    }

    // --- what the core is told of jobs alone ----------------------------------------------------

    /// What is known of a command alone, in the core's words, on the type of GPU that it was placed on. Before that, and where it was never
    /// seen alone there: of several types the larger numbers, which say nothing of the power on that one.
    #[must_use]
    pub fn known(&mut self, state: &State, command_key: u64, placed: Option<&str>) -> spec::Profile {
        self.known_on(&types_of(state), state, command_key, placed)
    }

    /// The same with the types of GPUs that there are, for callers that ask for many commands.
    fn known_on(
        &mut self,
        types: &BTreeSet<&str>,
        state: &State,
        command_key: u64,
        placed: Option<&str>,
    ) -> spec::Profile {
        let seen = placed.filter(|gpu| self.profile(command_key, gpu).is_some());
        let known = self.largest(types, state, command_key, seen);
        let power_mw = known.power_mw.filter(|_| placed == seen);
        spec::Profile { power_mw, ..known }
    }

    fn largest(
        &mut self,
        types: &BTreeSet<&str>,
        state: &State,
        command_key: u64,
        only: Option<&str>,
    ) -> spec::Profile {
        let mut known = spec::Profile::default();
        for gpu in types.iter().copied().filter(|gpu| only.is_none_or(|only| *gpu == only)) {
            let Some(profile) = self.profile(command_key, gpu) else { continue };
            let busy = profile.metrics.gpu_util_pct.or(profile.metrics.gract_pct);
            let gpu_util = busy.and_then(|busy| Fraction::from_f64(busy.mean / 100.0));
            known.gpu_util = known.gpu_util.max(gpu_util);
            let smact = profile.metrics.smact_pct.and_then(|smact| Fraction::from_f64(smact.mean / 100.0));
            known.smact = known.smact.max(smact);
            let power_mw = profile.metrics.power_w.map(|power| (power.mean * 1000.0).round() as u32);
            known.power_mw = known.power_mw.max(power_mw);
            let latency_us = profile.latency_p99_ms.map(|ms| (ms * 1000.0).round() as u32);
            known.latency_us = known.latency_us.max(latency_us);
            if matches!(state.options().policy.pack, Pack::Scores { .. }) {
                known.score = known.score.max(self.score(command_key, gpu, state.options().sharing));
            }
        }
        known
    }

    /// Lucid's score of a command. Made again when there are others to pair it with; once there are more than it is paired
    /// with, when they are twice as many, and no sooner: a turn of the daemon is short.
    fn score(&mut self, command_key: u64, gpu: &str, sharing: SharingMode) -> Option<u8> {
        let key = (command_key, gpu.to_owned());
        let of_type = self.profiles.iter().filter(|((_, name), _)| name == gpu);
        let all: Vec<&Profile> = of_type.map(|(_, profile)| profile).collect();
        if let Some((score, of)) = self.scores.get(&key)
            && (all.len() == *of || (*of >= lucid::MOST_PARTNERS && all.len() < 2 * of))
        {
            return Some(*score);
        }
        let task = self.profile(command_key, gpu)?;
        let score = lucid::score(&self.fresh, &GpuType::named(gpu), outlook::mode(sharing), task, &all)?;
        let made = (score, all.len());
        self.scores.insert(key, made);
        Some(score)
    }

    /// News of what jobs do alone, where the policy goes by that, or a job's latency.
    pub fn news_of_profiles(&mut self, state: &State) -> Vec<Input> {
        let serves = |job: &Job| job.spec.request.latency_us.is_some();
        let of_all = state.options().policy.pack != Pack::Any;
        if !std::mem::take(&mut self.untold) || !(of_all || state.jobs().values().any(|job| serves(job))) {
            return Vec::new();
        }
        let types = types_of(state);
        // Many jobs may be of one command.
        let mut by_command: BTreeMap<(u64, Option<&str>), spec::Profile> = BTreeMap::new();
        let jobs = state.jobs().values().filter(|job| of_all || serves(job));
        let news = jobs.filter_map(|job| {
            let (command, placed) = (job.spec.command_key, placed(state, job));
            let known = || self.known_on(&types, state, command, placed);
            let profile = *by_command.entry((command, placed)).or_insert_with(known);
            let news = profile != job.spec.profile && profile != spec::Profile::default();
            news.then_some(Input::Profiled { job: job.spec.id, profile })
        });
        news.collect()
    }

    /// Profiles of running jobs where none was known, or another power: their energy is divided and compared by what they do alone on
    /// GPUs of the type that they have. Those that wait again are known by the larger numbers.
    pub fn profiles_of_running(&mut self, state: &State) -> Vec<Input> {
        let any = std::mem::take(&mut self.powers);
        let mut told = std::mem::take(&mut self.told);
        let mut news = Vec::new();
        // In most turns no job asks.
        let types = LazyCell::new(|| types_of(state));
        let mut asks = |slowdowns: &mut Self, job: &Job| {
            let profile = slowdowns.known_on(&types, state, job.spec.command_key, placed(state, job));
            if profile.power_mw != job.spec.profile.power_mw {
                news.push(Input::Profiled { job: job.spec.id, profile });
            }
        };
        let is_active = |id: &JobId| state.active().contains(id);
        let waits = told.extract_if(.., |id, _| !is_active(id)).filter_map(|(id, _)| state.job(id));
        waits.for_each(|job| asks(self, job));
        for job in state.active_jobs() {
            let on = placed(state, job);
            let before = told.get(&job.spec.id).map(String::as_str);
            if any || job.spec.profile.power_mw.is_none() || before != on {
                asks(self, job);
            }
            if let Some(on) = on.filter(|_| before != on) {
                told.insert(job.spec.id, on.to_owned());
            }
        }
        self.told = told;
        news
    }

    /// Answers to what the core asks, and to what it was told before where the answer is another one now.
    pub fn answers(&mut self, state: &State) -> Vec<Input> {
        let news = std::mem::take(&mut self.news);
        let mut inputs = Vec::new();
        if !news.is_empty() {
            self.answered.forget(&news);
            if state.outlooks().next().is_some() {
                inputs.push(Input::Learned);
            }
        }
        let models = Models { slowdowns: &self.model, kace: self.kace.as_ref() };
        let alone = KnownAlone { profiles: &self.profiles, assumed: &self.assumed };
        let answer = |asked| outlook::answer(models, state, &asked, &alone, &mut self.answered);
        let mut outlooks: Vec<Outlook> =
            carma_core::slowdown::questions(state).into_iter().filter_map(answer).collect();
        if !news.is_empty() {
            outlooks.extend(outlook::again(models, state, &alone, &mut self.answered, &news));
        }
        if !outlooks.is_empty() {
            inputs.push(Input::Predicted(outlooks));
        }
        inputs
    }
}

/// What is known of jobs alone, and assumed of those of which that is not known: jobs of one command do the same.
struct KnownAlone<'a> {
    profiles: &'a Rows<Profile>,
    assumed: &'a Assumptions,
}

impl outlook::Alone for KnownAlone<'_> {
    fn knows(&self, command: u64, gpu: &str) -> bool {
        self.profiles.get(&(command, gpu.to_owned())).is_some()
    }

    fn profile(&self, command: u64, gpu: &str) -> Option<Profile> {
        self.profiles.get(&(command, gpu.to_owned())).cloned()
    }

    fn assumed(&self, command: u64, gpu: &str) -> Option<&Profile> {
        self.assumed.get(&(command, gpu.to_owned()))
    }
}

/// Product names of the GPUs that there are.
fn types_of(state: &State) -> BTreeSet<&str> {
    state.gpus().iter().filter(|gpu| gpu.present).map(|gpu| gpu.info.name.as_str()).collect()
}

/// Product name of the GPUs that a job has.
fn placed<'a>(state: &'a State, job: &Job) -> Option<&'a str> {
    let gpu = job.placement()?.gpus.first()?;
    Some(&state.gpu(*gpu)?.info.name)
}

/// Rows to store of profiles of this kind; `None`: one that is forgotten.
fn rows_of<'a>(
    kind: &str,
    profiles: impl Iterator<Item = (Key, Option<Stored<'a>>)>,
) -> Vec<(String, Option<String>)> {
    let row = |((command, gpu), stored): (Key, Option<Stored<'_>>)| {
        let name = format!("{kind}/{command:016x}/{gpu}");
        match stored.as_ref().map(serde_json::to_string).transpose() {
            Ok(body) => Some((name, body)),
            Err(e) => {
                tracing::warn!("{name} cannot be stored: {e}");
                None
            }
        }
    };
    profiles.filter_map(row).collect()
}

impl Watch {
    const fn new(attempt: u32, now: Millis) -> Self {
        Self {
            attempt,
            first_look: now,
            began: now,
            alone: None,
            own: None,
            rate: None,
            gap_s: None,
            windows: Windows::new(now),
            settled: None,
            counted: None,
        }
    }

    /// The share of its work that it says is done, where that is news. Where its count proved to be of something else nothing is, once.
    fn counts(&mut self, done: Option<&Done>) -> Option<Fraction> {
        let share = done.map_or(0.0, |done| done.share);
        let is_news = match done {
            Some(done) => is_count_news(self.counted, share, done.took_s),
            None => self.counted.is_some_and(|(before, _)| before > 0.0),
        };
        if !is_news {
            return None;
        }
        self.counted = Some((share, self.counted.map_or(1, |(_, times)| times + 1)));
        Fraction::from_f64(share)
    }

    /// What it does now is not to be measured.
    fn breaks(&mut self, now: Millis) {
        (self.began, self.windows, self.alone) = (now, Windows::new(now), None);
    }
}

impl Window {
    const fn over(&self) -> Millis {
        self.until.since(self.from)
    }
}

impl Windows {
    const fn new(since: Millis) -> Self {
        Self { since, steps: None, latency: None, told: Millis::ZERO }
    }

    /// Up to when it is measured, by a kind of windows with this last one.
    fn end(&self, last: Option<Window>) -> Millis {
        last.map_or(self.since, |last| last.until)
    }

    /// The worse of the last windows, by which its limit goes, if the core is to hear of it. The better kind says nothing while the worse
    /// one goes on: else the core, which wants two bad windows in a row, would hear a good one after each. Nor does it hear of windows that
    /// overlap: one pause would be two. `from`: since when the neighbours are the present ones.
    fn news(&mut self, now: Millis, from: Millis, tells: impl Fn(&Window) -> bool) -> Option<Window> {
        let goes_on = |window: &Window| now.since(window.until).0 <= 2 * window.over().0;
        let last = [self.steps, self.latency].into_iter().flatten();
        let present = last.filter(|window| window.from >= from && goes_on(window) && tells(window));
        let worse = present.min_by(|a, b| a.progress.total_cmp(&b.progress))?;
        (worse.from >= self.told).then(|| self.told = worse.until)?;
        Some(worse)
    }
}

impl Alone {
    fn new(since: Millis) -> Self {
        Self { since, due: since + PROFILE, samples: Samples::default() }
    }
}

/// What is beside a job on its GPUs.
struct Neighbourhood {
    /// Nothing: no other tenant has begun there, and no process that is not ours.
    alone: bool,
    /// Since when the job is active; not before another last came or went.
    since: Millis,
    /// When another last came or went.
    changed: Millis,
    /// When the last of all of them had begun and settled a little; `None`: one has not begun yet.
    settled_at: Option<Millis>,
}

impl Neighbourhood {
    /// From when on progress beside the present neighbours can be measured.
    fn measurable(&self) -> Millis {
        self.settled_at.unwrap_or(self.changed)
    }

    /// `None`: the job has not begun, or strangers are there, whose part is not known.
    fn of(id: JobId, gpus: &[&Gpu]) -> Option<Self> {
        let own = gpus.iter().filter_map(|gpu| gpu.tenant(id)?.active_since).max()?;
        if gpus.iter().any(|gpu| !gpu.foreign().is_empty()) {
            return None;
        }
        let changed = gpus.iter().filter_map(|gpu| gpu.changed).max().unwrap_or(own);
        Some(Self {
            alone: gpus.iter().all(|gpu| gpu.tenants.iter().all(|t| t.job == id || is_absent(gpu, t))),
            since: own.max(changed),
            changed,
            settled_at: settled_at(gpus),
        })
    }
}

/// When the last tenant of these GPUs had begun and settled a little, or the last one that left had been gone for as long; `None`: one has not
/// begun yet. From then on progress beside all of them is measured, over windows of `slowdown_window`.
pub(crate) fn settled_at(gpus: &[&Gpu]) -> Option<Millis> {
    all_since(gpus, |tenant| tenant.active_since).map(|at| at + SETTLING)
}

/// Since when all tenants of these GPUs have been at their steps, with none coming or going; `None`: one has reported no step.
fn at_steps_since(gpus: &[&Gpu]) -> Option<Millis> {
    all_since(gpus, |tenant| Some(tenant.stepped? + FIRST_STEPS))
}

/// The latest of a time of each tenant, and of when one last came or went; `None`: it is not known of one of them.
fn all_since(gpus: &[&Gpu], of: impl Fn(&Tenant) -> Option<Millis>) -> Option<Millis> {
    let times: Option<Vec<Millis>> = gpus.iter().flat_map(|gpu| &gpu.tenants).map(of).collect();
    let changed = gpus.iter().filter_map(|gpu| gpu.changed);
    times?.into_iter().chain(changed).max()
}

/// Whether a job was placed on a GPU and has no process there yet.
fn is_absent(gpu: &Gpu, tenant: &Tenant) -> bool {
    tenant.active_since.is_none() && gpu.seen.as_ref().is_some_and(|seen| seen.processes_known)
}

impl Samples {
    /// One sample of the GPUs, their mean; once a second of the daemon's clock at most.
    fn take(&mut self, gpus: &[&Gpu], looks: &[Look], host: Option<HostLook>) {
        let mine = gpus.iter().filter_map(|gpu| looks.iter().find(|l| l.reading.uuid == gpu.info.uuid));
        let mine: Vec<&Look> = mine.collect();
        let Some(at) = mine.iter().map(|look| look.seen.at).min() else { return };
        if mine.len() < gpus.len() || at.since(self.last) < Millis(900) {
            return;
        }
        self.last = at;
        if self.values.len() >= MOST_SAMPLES {
            self.values.pop_front();
        }
        let all: Vec<Metrics> = mine.iter().map(|look| Metrics::from(&look.reading)).collect();
        let mut metrics = Metrics::mean_of_all(&all);
        if let Some(HostLook { at, host }) = host.filter(|look| self.host != Some(look.at)) {
            self.host = Some(at);
            metrics.cpu_pct = host.cpu_pct.map(Stat::of);
            metrics.host_memory_mib = Some(Stat::of(host.memory_mib));
        }
        self.values.push_back(metrics);
    }

    /// Whether none of them shows any activity. `fine`: the driver tells of SM activity.
    fn are_idle(&self, fine: bool) -> bool {
        self.shares(fine).all(|share| share < IDLE)
    }

    /// Whether they show little activity in the mean.
    fn are_light(&self, fine: bool) -> bool {
        let (sum, known) =
            self.shares(fine).fold((0.0, 0.0), |(sum, known), share| (sum + share, known + 1.0));
        sum < LIGHT * known
    }

    fn shares(&self, fine: bool) -> impl Iterator<Item = f64> {
        let share = move |sample: &Metrics| if fine { sample.smact_pct } else { sample.gpu_util_pct };
        self.values.iter().filter_map(share).map(|share| share.mean)
    }

    fn metrics(&mut self) -> Metrics {
        Metrics::over(self.values.make_contiguous())
    }
}

/// Whether a job on these GPUs is to end, or leaves its GPU or comes back. One that is to end may save its work for minutes, and the other gets
/// nothing done: that is not how they go together.
fn any_passing(state: &State, gpus: &[&Gpu]) -> bool {
    let passing = |tenant: &Tenant| {
        let there = state.job(tenant.job);
        there.is_some_and(|job| job.ending().is_some() || job.suspension().is_some())
    };
    gpus.iter().any(|gpu| gpu.tenants.iter().any(passing))
}

/// Since when a job is on its GPUs of whose steps nothing is known yet. It may have settled: memory can stand still for a while
/// before the first of them, and the start-up of its command is to be known all the same.
fn stepless_since(id: JobId, gpus: &[&Gpu]) -> Option<Millis> {
    let tenants = || gpus.iter().filter_map(|gpu| gpu.tenant(id));
    let open = tenants().any(|t| t.stepped.is_none());
    tenants().filter_map(|t| t.active_since).max().filter(|_| open)
}

/// When the first step began: the count is told when steps are done, about as long after their beginning as between two counts. Data that
/// a resume passes over is counted in one step, which is much longer.
fn first_step(rate: &Measured) -> Millis {
    let (first, last) = rate.span_s;
    let advances = rate.advances.max(1) as f64;
    let step_s = if rate.is_average { (last - first) / advances } else { rate.gaps_s.0 };
    let began = (last - (advances + 1.0) * step_s).max(first - step_s);
    Millis((began.max(0.0) * 1000.0) as u64)
}

/// A rate of a job that is to do so many steps or epochs, by which the length of its bar may go.
fn of_length(mut rate: Measured, iterations: Option<u64>) -> Measured {
    if let Some(bar) = rate.rate.bar.as_mut().filter(|bar| bar.total.is_some()) {
        bar.iterations = iterations.map(|n| n as f64);
    }
    rate
}

/// Whether a rate is of a job's work. An evaluation is not, where an earlier run has counted that.
fn is_work(rate: &Measured, known: Option<&Rate>) -> bool {
    rate.is_work && !(rate.rate.aside && known.is_some_and(|known| !known.aside))
}

/// A rate alone without the pauses of the job's own that are in it: beside others it is measured over windows that may be shorter than one.
/// Those below a third of a window average out.
fn between_pauses(
    paces: &Paces,
    id: JobId,
    (from, to): (Millis, Millis),
    window: Millis,
    rate: Measured,
) -> Measured {
    let ((gap_s, longest_s), window_s) = (rate.gaps_s, window.as_secs_f64());
    if longest_s <= (SILENCE * gap_s).max(window_s / 3.0) {
        return rate;
    }
    // The beginning or end of a pause in a window is one, too.
    let over_s = (3.0 * gap_s).max(window_s / 5.0);
    let pauses = Some(Pauses { over_s, longest_s });
    let moving = paces.rate_between(id, from, to, pauses, Some(&rate.rate));
    // What is left may be the ends of bursts in which its output comes, which say nothing.
    match moving.filter(|moving| moving.live_s >= MOVING * rate.live_s) {
        Some(moving) => Measured { rate: Rate { pauses, ..moving.rate }, ..moving },
        None => rate,
    }
}

/// Half of the time between two.
const fn midway(from: Millis, to: Millis) -> Millis {
    Millis(from.0.midpoint(to.0))
}

/// Whether a job counted several times faster in the first half of a time than in the second, as one that passes over what it has done already.
fn begins_with_other(paces: &Paces, id: JobId, (from, to): (Millis, Millis), own: Option<&Rate>) -> bool {
    let middle = midway(from, to);
    let rate = |from, to| paces.rate(id, from, to, own).filter(is_countable);
    let halves = rate(from, middle).zip(rate(middle, to));
    halves.is_some_and(|(first, then)| falls::is_other(&first.rate, &then.rate))
}

/// How long a job is silent at most before that tells something, seconds: of its pauses more than the longest was seldom seen. `steps_s`: the time
/// that some steps take.
fn longest_silence(steps_s: f64, pauses: Option<Pauses>) -> f64 {
    pauses.map_or(0.0, |pauses| 2.0 * pauses.longest_s).max(steps_s)
}

/// Whether an upper bound of a job's progress says more than what is predicted of it, or corrects one that did.
fn tells(at_most: f64, job: &Job, gpus: &[&Gpu]) -> bool {
    let predicted = gpus.iter().filter_map(|gpu| gpu.tenant(job.spec.id)?.pace).min();
    job.measured.is_some() || predicted.is_none_or(|pace| at_most < pace.to_f64())
}

/// Whether an attempt has a part of the threads alone.
fn is_narrowed(job: &Job) -> bool {
    job.placement().and_then(|placement| placement.thread_percent).is_some_and(|percent| percent < 100)
}

/// Whether two profiles of a command say the same: rates within a tenth, activity within ten points.
fn alike(a: &Profile, b: &Profile) -> bool {
    let rates = match (&a.rate, &b.rate) {
        (Some(a), Some(b)) => a.counts_like(b) && (0.9..=1.1).contains(&(a.per_s / b.per_s)),
        (a, b) => a.is_none() && b.is_none(),
    };
    let busy = |p: &Profile| p.metrics.smact_pct.or(p.metrics.gpu_util_pct).map_or(0.0, |s| s.mean);
    rates && (busy(a) - busy(b)).abs() <= 10.0
}

/// Class of a command in the predictor.
fn class(command_key: u64) -> String {
    format!("{command_key:016x}")
}

/// `counts`: where the job has counted anything.
fn rate_view(
    now: Option<&Rate>,
    alone: Option<&Rate>,
    progress: Option<f64>,
    counts: Option<RateSource>,
) -> RateView {
    let any = now.or(alone);
    RateView {
        per_s: now.map(|rate| rate.per_s),
        alone_per_s: alone.map(|rate| rate.per_s),
        unit: any.and_then(|rate| rate.unit.clone()),
        source: any.and_then(|rate| rate.source).or(counts).map(|source| source.to_string()),
        progress,
        latency_p99_ms: None,
        requests: None,
    }
}

/// A job that is asked about.
#[derive(Debug, Clone, Copy)]
pub struct Subject {
    /// Its number.
    pub id: JobId,
    /// Its command.
    pub command: u64,
    /// Whether the asker may read what the job itself says.
    pub readable: bool,
}

/// A profile without the words that come from the job, and of its numbers what predictions beside others go by: what it does
/// on the GPU. Each field is named, so that a new one does not compile before that is decided.
fn numbers_of(profile: &Profile) -> Profile {
    let Profile {
        name,
        class: _,
        gpu,
        rate,
        metrics,
        rate_by_threads_pct,
        kernels: _,
        latency_p99_ms: _,
        watched_s: _,
        memory_over_time,
        remarks: _,
    } = profile.clone();
    // By how much fewer threads slow it down, and not how fast it is.
    let full =
        rate_by_threads_pct.get(&100).copied().or(rate.map(|rate| rate.per_s)).filter(|full| *full > 0.0);
    let curve = full.filter(|_| !rate_by_threads_pct.is_empty()).map(|full| {
        let of_full = rate_by_threads_pct.into_iter().map(|(pct, rate)| (pct, rate / full));
        of_full.chain([(100, 1.0)]).collect()
    });
    Profile {
        name,
        class: None,
        gpu,
        rate: None,
        metrics: Metrics { power_w: None, cpu_pct: None, host_memory_mib: None, ..metrics },
        rate_by_threads_pct: curve.unwrap_or_default(),
        kernels: None,
        latency_p99_ms: None,
        watched_s: None,
        memory_over_time,
        remarks: Vec::new(),
    }
}

#[cfg(test)]
mod tests;

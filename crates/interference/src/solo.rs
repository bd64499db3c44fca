//! A solo profile from looks at a task that runs alone: waits for its first activity, lets it warm up until its
//! activity is steady, watches it for a window, and says what of that can be trusted.
//!
//! No clock and no GPU in here: the caller samples, pushes [`Look`]s, and asks for the phase after each.

use crate::profile::{Metrics, Profile, RateSource, Stat};
use crate::rate::tally::{Quality, Tally};
use std::fmt;

/// Activity below this is none, percent: a driver that wakes up shows some.
const ACTIVE_PCT: f64 = 1.0;
/// Memory of the task from which on it uses a GPU that tells of no activity, MiB: a context takes more.
const CONTEXT_MIB: f64 = 16.0;
/// Warm-up is judged by this many means in a row ...
const BLOCKS: usize = 3;
/// ... over this long each, seconds.
const BLOCK_S: f64 = 2.0;
/// Means that differ by less than this share of theirs, or by this many points, are steady.
const STEADY: (f64, f64) = (0.10, 2.0);
/// Memory that changes by less than this share is steady.
const STEADY_MEMORY: f64 = 0.02;
/// A GPU that is idle for so long during the warm-up was only touched, by the making of a context say, and what
/// follows is a new beginning, seconds.
const IDLE_S: f64 = 5.0;
/// After so many times the longest warm-up since the very first activity there are no more new beginnings.
const MOST_BEGINNINGS: f64 = 5.0;
/// After its first count, before a task is taken to do what it will do: the first steps compile and try kernels, seconds.
const FIRST_STEPS_S: f64 = 2.0;
/// Shortest window that makes a profile, seconds.
const SHORTEST_S: f64 = 2.0;
/// Most points of memory over time.
const MOST_POINTS: usize = 64;

/// How to watch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Options {
    /// Time between first activity and window; `None`: until the activity is steady.
    pub warm_up_s: Option<f64>,
    /// After so long the window begins even if the activity is not steady.
    pub most_warm_up_s: f64,
    /// The window.
    pub window_s: f64,
    /// Time between two looks.
    pub pace_s: f64,
}

impl Default for Options {
    /// 20 s of steady state, after a minute of warm-up at most, ten looks a second.
    fn default() -> Self {
        Self { warm_up_s: None, most_warm_up_s: 60.0, window_s: 20.0, pace_s: 0.1 }
    }
}

/// One look at the GPU and the host.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Look {
    /// When, seconds on the caller's clock.
    pub at_s: f64,
    /// Values at that moment, as means. What was not read is `None`.
    pub metrics: Metrics,
    /// Why the GPU could not be read.
    pub trouble: Option<String>,
}

/// How far it has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Nothing has used the GPU yet.
    Waiting,
    /// Active, and not steady yet.
    WarmingUp,
    /// The window.
    Measuring,
    /// The window is over, or the task is.
    Over,
}

/// Why there is no profile.
#[derive(Debug, Clone, PartialEq)]
pub enum NoProfile {
    /// The GPU was never active.
    NeverUsed {
        /// How long it was watched, seconds.
        watched_s: f64,
    },
    /// The task was active for too short a time.
    TooShort {
        /// From first to last activity, seconds.
        active_s: f64,
    },
    /// The GPU could not be read.
    Blind(String),
}

impl fmt::Display for NoProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NeverUsed { watched_s } => write!(f, "the command never used the GPU in {watched_s:.1} s"),
            Self::TooShort { active_s } => write!(
                f,
                "the command used the GPU for {active_s:.1} s only, and a profile needs {SHORTEST_S:.0} s at least"
            ),
            Self::Blind(why) => write!(f, "the GPU could not be read: {why}"),
        }
    }
}

impl std::error::Error for NoProfile {}

/// A window that was given up for a new beginning.
#[derive(Debug, Clone, Copy)]
struct GivenUp {
    /// Its own beginning, seconds.
    began_s: f64,
    /// As [`Recorder::window`].
    window: (bool, f64),
    /// The new beginning: the first count, seconds.
    counted_s: f64,
}

/// Watches one task.
#[derive(Debug, Clone)]
pub struct Recorder {
    options: Options,
    started_s: f64,
    /// All from the beginning on, or from that of what was given up.
    looks: Vec<Look>,
    began_s: Option<f64>,
    /// The very first and the last activity.
    active_s: Option<(f64, f64)>,
    /// Whether the window began because the activity was steady, and when.
    window: Option<(bool, f64)>,
    /// What there is if the task ends before the window has begun anew.
    given_up: Option<GivenUp>,
    over_s: Option<f64>,
    /// Whether the task ended by itself.
    ended: bool,
    last_s: Option<f64>,
    read: usize,
    /// Whether any look told of activity.
    told: bool,
    trouble: Option<String>,
    peak_mib: Option<f64>,
    memory: Vec<(f64, f64)>,
    work: Option<(&'static str, f64)>,
}

impl Recorder {
    /// From now on.
    #[must_use]
    pub fn new(options: Options, now_s: f64) -> Self {
        Self {
            options,
            started_s: now_s,
            looks: Vec::new(),
            began_s: None,
            active_s: None,
            window: None,
            given_up: None,
            over_s: None,
            ended: false,
            last_s: None,
            read: 0,
            told: false,
            trouble: None,
            peak_mib: None,
            memory: Vec::new(),
            work: None,
        }
    }

    /// Takes in a look. Looks come in order; one that does not is passed over.
    pub fn look(&mut self, look: Look) {
        if self.over_s.is_some()
            || self.last_s.is_some_and(|last| look.at_s <= last)
            || !look.at_s.is_finite()
        {
            return;
        }
        let since = look.at_s - self.last_s.replace(look.at_s).unwrap_or(look.at_s);
        match &look.trouble {
            Some(why) => self.trouble = Some(why.clone()),
            None => self.read += 1,
        }
        self.remember_memory(&look);
        if let Some((unit, pct)) = level(&look.metrics) {
            self.told = true;
            // What happened between looks is not known.
            let span = since.min(self.longest_step());
            let done = self.work.map_or(0.0, |(_, done)| done);
            self.work = Some((unit, done + pct / 100.0 * span));
        }
        if self.is_active(&look.metrics) {
            self.began_s.get_or_insert(look.at_s);
            self.active_s = Some((self.active_s.map_or(look.at_s, |(first, _)| first), look.at_s));
        }
        let now = look.at_s;
        self.begin_anew_if_idle(now);
        if self.began_s.is_some() || self.given_up.is_some() {
            self.looks.push(look);
        }
        let Some(began) = self.began_s else { return };
        if self.window.is_none() {
            let steady = match self.options.warm_up_s {
                Some(warm_up) => (now - began >= warm_up).then_some(true),
                None if self.is_steady(now) => Some(true),
                None => (now - began >= self.options.most_warm_up_s).then_some(false),
            };
            self.window = steady.map(|steady| (steady, now));
            if self.window.is_some() && self.given_up.take().is_some() {
                self.looks.retain(|look| look.at_s > began);
            }
        }
        if self.window.is_some_and(|(_, from)| now - from >= self.options.window_s) {
            self.over_s = Some(now);
        }
    }

    /// The task first counted something itself then. What it did before was its start-up, however steady that was: a window
    /// that has begun by then begins anew, so that the rate and what was read are of one time. A task may also tell late of
    /// what it has long done: where it ends soon, the window was the right one.
    pub fn counted(&mut self, first_s: f64) {
        let (Some((active, _)), Some(began_s), Some(window), Some(now)) =
            (self.active_s, self.began_s, self.window, self.last_s)
        else {
            return;
        };
        let is_open = self.over_s.is_none() && self.options.warm_up_s.is_none() && !self.is_late(active, now);
        if is_open && first_s <= now && window.1 < first_s + FIRST_STEPS_S {
            self.given_up = Some(GivenUp { began_s, window, counted_s: first_s });
            self.window = None;
            self.began_s = Some(first_s);
        }
    }

    /// Whether the time of new beginnings is over.
    fn is_late(&self, first: f64, now: f64) -> bool {
        now - first >= MOST_BEGINNINGS * self.options.most_warm_up_s
    }

    fn begin_anew_if_idle(&mut self, now: f64) {
        let Some((first, last)) = self.active_s else { return };
        if self.is_late(first, now) {
            // It is as active as it will ever be.
            self.began_s.get_or_insert(first);
        } else if self.window.is_none() && self.options.warm_up_s.is_none() && now - last >= IDLE_S {
            self.began_s = None;
            if self.given_up.is_none() {
                self.looks.clear();
            }
        }
    }

    /// Whether the GPU has ever been active.
    #[must_use]
    pub const fn was_active(&self) -> bool {
        self.active_s.is_some()
    }

    /// Whether the task used the GPU in a look. One that tells of no activity (a MIG instance before Hopper) is used once the task
    /// has memory there.
    fn is_active(&self, metrics: &Metrics) -> bool {
        match level(metrics) {
            Some((_, pct)) => pct >= ACTIVE_PCT,
            None => !self.told && metrics.memory_mib.is_some_and(|memory| memory.mean >= CONTEXT_MIB),
        }
    }

    /// The task has ended by itself.
    pub fn end(&mut self, now_s: f64) {
        if self.over_s.is_none() {
            self.ended = true;
            self.over_s = Some(now_s);
        }
    }

    /// The caller does not wait any longer.
    pub fn stop(&mut self, now_s: f64) {
        self.over_s.get_or_insert(now_s);
    }

    /// How far it has come.
    #[must_use]
    pub const fn phase(&self) -> Phase {
        match (self.over_s, self.window, self.began_s) {
            (Some(_), _, _) => Phase::Over,
            (None, Some(_), _) => Phase::Measuring,
            (None, None, Some(_)) => Phase::WarmingUp,
            (None, None, None) => Phase::Waiting,
        }
    }

    /// What the GPU has done for the task so far, for [`Tally::activity`]: the unit, and the integral of its finest
    /// activity that can be read.
    #[must_use]
    pub const fn work(&self) -> Option<(&'static str, f64)> {
        self.work
    }

    /// A longer step between two looks is a gap.
    fn longest_step(&self) -> f64 {
        (3.0 * self.options.pace_s).max(0.5)
    }

    fn remember_memory(&mut self, look: &Look) {
        let Some(now) = look.metrics.memory_mib.map(|stat| stat.mean).filter(|mib| mib.is_finite()) else {
            return;
        };
        let peak = self.peak_mib.unwrap_or(0.0).max(now);
        self.peak_mib = Some(peak);
        let notable = (peak * 0.01).max(8.0);
        if self.memory.last().is_none_or(|(_, last)| (now - last).abs() >= notable) {
            if self.memory.len() >= MOST_POINTS {
                let mut index = 0;
                self.memory.retain(|_| {
                    index += 1;
                    index % 2 == 1
                });
            }
            self.memory.push((((look.at_s - self.started_s) * 100.0).round() / 100.0, now));
        }
    }

    fn is_steady(&self, now: f64) -> bool {
        let span = BLOCK_S * BLOCKS as f64;
        if self.began_s.is_none_or(|began| now - began < span) {
            return false;
        }
        let recent = || self.looks.iter().rev().take_while(|look| now - look.at_s < span);
        let memory = || recent().filter_map(|look| look.metrics.memory_mib).map(|stat| stat.mean);
        let (least, most) = (memory().fold(f64::INFINITY, f64::min), memory().fold(0.0, f64::max));
        if most > 0.0 && most - least > STEADY_MEMORY * most {
            return false;
        }
        let mut blocks = [(0.0, 0_u32); BLOCKS];
        for look in recent() {
            let block = ((now - look.at_s) / BLOCK_S) as usize;
            if let (Some((_, pct)), Some(block)) = (level(&look.metrics), blocks.get_mut(block)) {
                *block = (block.0 + pct, block.1 + 1);
            }
        }
        let means: Vec<f64> =
            blocks.iter().filter(|(_, n)| *n > 0).map(|(sum, n)| sum / f64::from(*n)).collect();
        // A GPU that tells of no activity at all is steady when its memory is.
        if means.is_empty() {
            return true;
        }
        let (low, high) =
            (means.iter().copied().fold(f64::INFINITY, f64::min), means.iter().copied().fold(0.0, f64::max));
        means.len() == BLOCKS && high >= ACTIVE_PCT && high - low <= (STEADY.0 * high).max(STEADY.1)
    }

    /// The profile.
    ///
    /// # Errors
    /// A GPU that was never used, for too short a time, or could not be read.
    pub fn profile(&self, name: &str, tally: &Tally) -> Result<Profile, NoProfile> {
        let end = self.over_s.or(self.last_s).unwrap_or(self.started_s);
        if self.read == 0 {
            let why = self.trouble.clone().unwrap_or_else(|| "there was no time for a look".to_owned());
            return Err(NoProfile::Blind(why));
        }
        let Some((first, last)) = self.active_s else {
            return Err(NoProfile::NeverUsed { watched_s: end - self.started_s });
        };
        let active = self.looks.iter().rev().find(|look| self.is_active(&look.metrics)).map(|look| look.at_s);
        // What comes after the last activity of a task that ended is its end.
        let to = active.filter(|_| self.ended).map_or(end, |active| active.min(end));
        // The new beginning counts where it showed more than what was given up for it.
        let given_up = self.given_up.filter(|given_up| {
            let worked = self.began_s.map_or(0.0, |began| to - began);
            worked < SHORTEST_S.max(given_up.counted_s - given_up.window.1)
        });
        let began = given_up.map(|given_up| given_up.began_s).or(self.began_s);
        let (Some(active), Some(began)) = (active, began) else {
            return Err(NoProfile::TooShort { active_s: last - first });
        };
        let mut remarks = Vec::new();
        if !self.told {
            remarks.push(
                "this GPU tells no activity: that it was used is known by the task's memory on it, and a profile says little".into(),
            );
        }
        let window = given_up.map(|given_up| given_up.window).or(self.window);
        let (steady, mut from) = window.unwrap_or((false, f64::INFINITY));
        if to - from < SHORTEST_S.min(self.options.window_s) {
            if to - began < SHORTEST_S {
                return Err(NoProfile::TooShort { active_s: (active - began).max(0.0) });
            }
            from = began + (to - began) / 2.0;
            remarks.push(format!(
                "the task was over {:.1} s after its first {}: these are the last {:.1} s of it, warm-up included",
                to - began,
                if tally.began_s() == Some(began) { "count" } else { "activity" },
                to - from
            ));
        } else if self.ended && to - from < self.options.window_s {
            remarks.push(format!(
                "the task ended {:.1} s into the window of {:.1} s",
                to - from,
                self.options.window_s
            ));
        } else if !steady {
            remarks.push(format!(
                "its activity was not steady after {:.0} s of warm-up; a longer window averages over more of it",
                from - began
            ));
        }
        // What a look tells is of the time before it.
        let inside: Vec<&Look> =
            self.looks.iter().filter(|look| look.at_s > from && look.at_s <= to).collect();
        let unseen = self.unseen_s(&inside, from, to);
        if unseen > 0.05 * (to - from) {
            let why = self.trouble.as_deref().map_or_else(String::new, |why| format!(": {why}"));
            remarks.push(format!("there are no readings for {unseen:.1} of these {:.1} s{why}", to - from));
        }
        let samples: Vec<Metrics> =
            inside.iter().filter(|look| look.trouble.is_none()).map(|look| look.metrics).collect();
        let mut metrics = Metrics::over(&samples);
        metrics.memory_mib = self.peak_mib.map(Stat::of);
        if let Some(first) = tally.began_s().filter(|first| *first > from && *first <= to) {
            remarks.push(format!(
                "it first counted {:.1} s into the window: what was read before that may be of its start-up",
                first - from
            ));
        }
        let rate = tally.best(from, to);
        remarks.extend(rate.as_ref().map_or_else(
            || Some("no progress was seen, so its rate is not known".to_owned()),
            |rate| match (rate.rate.source, rate.is_average, rate.quality) {
                (Some(RateSource::Activity), _, _) => None,
                (_, true, _) => {
                    Some("the rate is an average that the task prints, not a count of carma's".to_owned())
                }
                (_, _, Quality::Poor) => Some(format!(
                    "the rate comes from {} of the task's counter only; a longer window gives a better one",
                    if rate.advances == 1 {
                        "one advance".to_owned()
                    } else {
                        format!("{} advances", rate.advances)
                    }
                )),
                _ => None,
            },
        ));
        Ok(Profile {
            name: name.to_owned(),
            rate: rate.map(|rate| rate.rate),
            metrics,
            watched_s: Some(((to - from) * 1000.0).round() / 1000.0),
            memory_over_time: self.memory.clone(),
            remarks,
            ..Profile::default()
        })
    }

    /// Time of a window that no reading speaks of.
    fn unseen_s(&self, inside: &[&Look], from: f64, to: f64) -> f64 {
        let mut last = from;
        let mut unseen = 0.0;
        let read = inside.iter().filter(|look| look.trouble.is_none()).map(|look| look.at_s);
        for at in read.chain(std::iter::once(to)) {
            let step = at - last;
            if step > self.longest_step() {
                unseen += step - self.options.pace_s;
            }
            last = at;
        }
        unseen
    }
}

/// The finest activity that a look tells of: what it is called when summed over time, percent.
fn level(metrics: &Metrics) -> Option<(&'static str, f64)> {
    let finest = [
        ("SM-seconds", metrics.smact_pct),
        ("busy-seconds", metrics.gract_pct),
        ("busy-seconds", metrics.gpu_util_pct),
    ];
    finest.into_iter().find_map(|(unit, stat)| Some((unit, stat?.mean))).filter(|(_, pct)| pct.is_finite())
}

#[cfg(test)]
#[path = "solo_tests.rs"]
mod tests;

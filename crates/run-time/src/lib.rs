//! How long a job will run, from what earlier runs took: pure, without a file or a clock.
//!
//! A job belongs to a class on each of five levels, from narrow to wide: its very command, the same command of any user, its program,
//! its user, all jobs of the machine. A class keeps the time of its latest runs, alone on their GPUs. A forecast is three quantiles of all of
//! them together, in which a narrow class outweighs the wider ones as soon as it has a few runs.
//!
//! Of runs that differ from a job in their number of steps or epochs alone the times are scaled by it, without the start-up: what a run of one
//! epoch took says how long a hundred take.
//!
//! A run that was cut off (cancelled, failed, out of memory, at its time limit, put back into the queue) says that the job
//! takes *at least* so long: it is censored, as in Kaplan and Meier (JASA 53, 1958), and moves its weight to the runs that
//! took longer.
//!
//! A job that runs now takes at least as long as it has worked. Without those a class looks shorter than it is: its short jobs are
//! over first. While no run of a class has come to its end, what running jobs count (`step 300/1000`) stands in for it.
//!
//! What the numbers below were chosen on, and how good the forecasts are: docs/research/runtime.md.

mod forecast;
mod lengths;
pub mod news;
mod quantile;

pub use forecast::left_s;

use carma_core::model::{RunTime, RunsOf};
use fnv::FnvHasher;
use quantile::{Weighted, quantiles};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::Hasher as _;

/// Runs of a class that are kept: so many that came to their end, and half as many that were cut off.
const KEPT: usize = 32;
/// Runs of all jobs that are kept: no narrow class stands in for these.
const KEPT_OF_ALL: usize = 64;
/// A run has half the weight of one of its class that so many ends are later.
const HALF_LIFE: f64 = 8.0;
/// Classes that are remembered at most; of the user who has the most, the one that was used least lately is forgotten.
const CLASSES: usize = 8192;
/// Where the bounds are read from the weighted runs: further out than the 10 and 90 % that they are to hold, since the next
/// run is less like the latest ones than they are like each other.
const TAIL: f64 = 0.05;
/// No run is longer, seconds: a hundred years.
pub const LONGEST_S: u64 = 3_155_760_000;

/// From narrow to wide.
const LEVELS: [RunsOf; 5] = [RunsOf::Command, RunsOf::Shared, RunsOf::Program, RunsOf::User, RunsOf::All];

/// The name of a level where its classes are stored.
const fn word(level: RunsOf) -> &'static str {
    match level {
        RunsOf::Command => "command",
        RunsOf::Shared => "shared",
        RunsOf::Program => "program",
        RunsOf::User => "user",
        RunsOf::All => "all",
    }
}

/// How many runs the wider levels together count for beside a level's own. One run of the very command says more than all
/// else that is known, and those of one other user who runs the same as much as all that is wider.
const fn wider(level: RunsOf) -> f64 {
    match level {
        RunsOf::Command => 0.5,
        RunsOf::Shared => 1.0,
        RunsOf::Program | RunsOf::User | RunsOf::All => 3.0,
    }
}

/// Commands of one user that count among those of all jobs: of three users or more are five, by which a forecast is no guess.
const COMMANDS_OF_ONE: usize = 2;
/// Parts of a forecast that differ by less are equal.
const ALIKE: f64 = 1e-9;

/// The same of runs of the program that differ in their length alone, which stand behind those of the very command.
const SCALED_WIDER: f64 = 0.5;

const fn kept(level: RunsOf) -> usize {
    match level {
        RunsOf::All => KEPT_OF_ALL,
        RunsOf::Command | RunsOf::Shared | RunsOf::Program | RunsOf::User => KEPT,
    }
}

/// Weight of a run by how many of its class came to their end after it.
fn weight(level: RunsOf, age: usize) -> f64 {
    match level {
        // Which job ran last says nothing of one that nothing else is known of.
        RunsOf::All => 1.0,
        RunsOf::Command | RunsOf::Shared | RunsOf::Program | RunsOf::User => {
            0.5_f64.powf(age as f64 / HALF_LIFE)
        }
    }
}

/// The classes of a job: a key for each level but the widest. A level that says nothing new bears the key of the wider one
/// and then counts once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Class {
    /// Of user, program and all words that change how long it runs.
    pub command: u64,
    /// The same of any user, [`Self::shared_as`]; else the program's.
    pub shared: u64,
    /// Of user and program.
    pub program: u64,
    /// Of the user.
    pub user: u64,
    /// How long its command is, where it says so.
    pub length: Option<Length>,
}

/// How long a command is, by its own words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Length {
    /// Of program and all words that change how long it runs but this number.
    of: u64,
    /// Steps or epochs that it is to do.
    n: u64,
}

impl Class {
    /// The class of a user's program and its command, by anything that names them. Where there is no name for the program
    /// or the command, `""`, the level is that of the wider one. Keys are stored: they are the same in every version.
    #[must_use]
    pub fn of(user: &str, program: &str, command: &str) -> Self {
        let mut hash = FnvHasher::default();
        let mut next = |word: &str, wider: Option<u64>| match wider {
            Some(wider) if word.is_empty() => wider,
            _ => {
                hash.write(word.as_bytes());
                hash.write(&[0]);
                hash.finish()
            }
        };
        let user = next(user, None);
        let program = next(program, Some(user));
        Self { user, program, shared: program, command: next(command, Some(program)), length: None }
    }

    /// The same job, which is to do so many steps or epochs of what `what` says.
    #[must_use]
    pub fn of_length(self, what: &str, iterations: u64) -> Self {
        let mut hash = FnvHasher::default();
        hash.write(&self.program.to_le_bytes());
        hash.write(what.as_bytes());
        let length = Length { of: hash.finish(), n: iterations };
        Self { length: Some(length).filter(|length| length.n > 0), ..self }
    }

    /// The same job, which runs what `what` says byte for byte, as jobs of other users may.
    #[must_use]
    pub fn shared_as(self, what: &str) -> Self {
        let mut hash = FnvHasher::default();
        hash.write(what.as_bytes());
        Self { shared: hash.finish(), ..self }
    }

    /// Whether an end of that job tells more of this one than that of any job of the user.
    #[must_use]
    pub const fn learns_from(&self, over: &Self) -> bool {
        self.program == over.program || self.shared == over.shared
    }

    /// Whose the class of a level is; that of all jobs is no user's, and what users share is the last one's.
    const fn owner(&self, level: RunsOf) -> u64 {
        match level {
            RunsOf::Command | RunsOf::Shared | RunsOf::Program | RunsOf::User => self.user,
            RunsOf::All => 0,
        }
    }

    const fn key(&self, level: RunsOf) -> u64 {
        match level {
            RunsOf::Command => self.command,
            RunsOf::Shared => self.shared,
            RunsOf::Program => self.program,
            RunsOf::User => self.user,
            RunsOf::All => 0,
        }
    }
}

/// How long one run took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// Time alone on its GPUs, seconds; what was shared counts as much as it got done.
    #[serde(rename = "s")]
    pub seconds: u64,
    /// It was cut off: the job takes at least so long.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cut: bool,
}

/// A job that runs now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Running {
    /// Its class.
    pub class: Class,
    /// What it has done, as time alone on its GPUs, seconds.
    pub done_s: u64,
    /// How long it takes alone in all by its own count, seconds, where it counts.
    pub count_s: Option<u64>,
}

impl Running {
    /// What it says of a class that it belongs to. `counts`: its count stands in for runs that are over, unless it has run for longer.
    fn run(&self, counts: bool) -> Run {
        let count = self.count_s.filter(|count_s| counts && *count_s >= self.done_s);
        let count = count.map(|seconds| Run { seconds, cut: false });
        let run = count.unwrap_or(Run { seconds: self.done_s, cut: true });
        Run { seconds: run.seconds.min(LONGEST_S), ..run }
    }
}

/// A run as a class keeps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Kept {
    #[serde(flatten)]
    run: Run,
    /// The user, where it counts who it was: where users share a class. Else 0, and for all jobs in what older versions stored.
    #[serde(default, skip_serializing_if = "is_zero")]
    by: u64,
    /// The command, where a class has several. Else 0, and in what older versions stored.
    #[serde(default, skip_serializing_if = "is_zero")]
    of: u64,
    /// How long that is, where a class is of one program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    length: Option<Length>,
}

impl Kept {
    fn new(run: Run, level: RunsOf, class: &Class) -> Self {
        let (by, of) = match level {
            RunsOf::Command => (0, 0),
            RunsOf::Shared => (class.user, 0),
            RunsOf::Program | RunsOf::User => (0, class.command),
            RunsOf::All => (class.user, class.command),
        };
        Self { run, by, of, length: class.length.filter(|_| level == RunsOf::Program) }
    }
}

/// Of how many commands the runs are that came to their end, or count. Where they are of all jobs, those of one user alone are few: they
/// say little of another's.
fn commands(runs: &[(Kept, f64)], level: RunsOf) -> u32 {
    let mut of: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
    for (kept, _) in runs.iter().filter(|(kept, _)| !kept.run.cut) {
        of.entry(kept.by).or_default().insert(kept.of);
    }
    let most = if level == RunsOf::All { COMMANDS_OF_ONE } else { usize::MAX };
    let commands = of.values().map(|commands| commands.len().min(most)).sum::<usize>();
    u32::try_from(commands).unwrap_or(u32::MAX)
}

fn is_zero(by: &u64) -> bool {
    *by == 0
}

/// The latest runs of a class, the newest last.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Runs {
    runs: VecDeque<Kept>,
    /// When it was last used, in updates.
    used: u64,
    /// Whose it is, 0 where an older version stored it.
    #[serde(default)]
    user: u64,
}

impl Runs {
    /// Drops the oldest, of the user who has most. Runs that were cut off, however many, drop none that came to their end.
    fn bound(&mut self, level: RunsOf) {
        for (cut, most) in [(false, kept(level)), (true, kept(level) / 2)] {
            while self.runs.iter().filter(|kept| kept.run.cut == cut).count() > most {
                let mut of: BTreeMap<u64, usize> = BTreeMap::new();
                for kept in self.runs.iter().filter(|kept| kept.run.cut == cut) {
                    *of.entry(kept.by).or_default() += 1;
                }
                let by = of.into_iter().max_by_key(|(_, runs)| *runs).map(|(by, _)| by);
                let oldest = self.runs.iter().position(|kept| kept.run.cut == cut && Some(kept.by) == by);
                let Some(oldest) = oldest else { break };
                self.runs.remove(oldest);
            }
        }
    }

    /// The weight of each run. Only ends make earlier runs older: what was cut off says too little to stand in their place.
    fn weights(&self, level: RunsOf) -> Vec<f64> {
        let mut age = 0;
        let latest_first = self.runs.iter().rev().map(|kept| {
            let weight = weight(level, age);
            age += usize::from(!kept.run.cut);
            weight
        });
        let mut weights: Vec<f64> = latest_first.collect();
        weights.reverse();
        weights
    }
}

/// A class: its level, and its key there.
type ClassKey = (RunsOf, u64);

/// What is learned of run times.
#[derive(Debug, Clone, Default)]
pub struct RunTimes {
    classes: BTreeMap<ClassKey, Runs>,
    /// By user, and by when it was last used.
    by_use: BTreeMap<u64, BTreeSet<(u64, ClassKey)>>,
    updates: u64,
    changed: BTreeSet<ClassKey>,
}

impl RunTimes {
    /// Puts a stored row back.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub fn load(&mut self, key: &str, body: &str) -> Result<(), String> {
        let key = parse(key).ok_or_else(|| format!("'{key}' is no class"))?;
        let mut runs: Runs = serde_json::from_str(body).map_err(|e| e.to_string())?;
        runs.runs.retain(|kept| kept.run.seconds <= LONGEST_S);
        runs.bound(key.0);
        self.updates = self.updates.max(runs.used);
        let (used, user) = (runs.used, runs.user);
        if let Some(old) = self.classes.insert(key, runs) {
            self.unlist(old.user, old.used, key);
        }
        self.by_use.entry(user).or_default().insert((used, key));
        self.make_room(user);
        Ok(())
    }

    /// Rows that changed since the last time: key, and JSON or nothing where the row goes.
    ///
    /// # Errors
    /// What cannot be written as JSON, which nothing here should be.
    pub fn changes(&mut self) -> Result<Vec<(String, Option<String>)>, String> {
        let changed = std::mem::take(&mut self.changed);
        let row = |key: ClassKey| {
            let body = self.classes.get(&key).map(serde_json::to_string).transpose();
            Ok((name(key), body.map_err(|e| e.to_string())?))
        };
        changed.into_iter().map(row).collect()
    }

    /// Learns from a run that is over. One of no time at all says nothing.
    pub fn learn(&mut self, class: &Class, run: Run) {
        let run = Run { seconds: run.seconds.min(LONGEST_S), ..run };
        if run.seconds == 0 {
            return;
        }
        self.updates = self.updates.saturating_add(1);
        for key in levels(class) {
            let runs = self.classes.entry(key).or_default();
            let old = (runs.user, runs.used);
            runs.runs.push_back(Kept::new(run, key.0, class));
            runs.bound(key.0);
            (runs.user, runs.used) = (class.owner(key.0), self.updates);
            self.unlist(old.0, old.1, key);
            self.by_use.entry(class.owner(key.0)).or_default().insert((self.updates, key));
            self.changed.insert(key);
        }
        self.make_room(class.user);
    }

    /// What is expected of a job's next run; `None` where no run is known that came to its end, and none that counts.
    /// `running`: the jobs that run now; asked where they count.
    #[must_use]
    pub fn forecast<'a>(&self, class: &Class, running: impl Fn() -> &'a [Running]) -> Option<RunTime> {
        let mut mixed = Mixed::new();
        for (level, key) in levels(class) {
            let mut runs: Vec<(Kept, f64)> = Vec::new();
            if let Some(known) = self.classes.get(&(level, key)) {
                runs.extend(known.runs.iter().copied().zip(known.weights(level)));
            }
            let ended = runs.iter().filter(|(kept, _)| !kept.run.cut).count();
            // Users learn nothing from what jobs of others only say of themselves, nor does one program from what another's do: those that
            // are at work are the long ones.
            let counts = ended == 0 && matches!(level, RunsOf::Command | RunsOf::Program);
            // All that ever came to their end, were cut off or run are one cohort. Once the first are forgotten, the latest ends stand
            // for all jobs, and those that run, the long ones, would count too much.
            if ended < kept(level) {
                let there = running().iter().filter(|job| job.class.key(level) == key);
                runs.extend(there.map(|job| (Kept::new(job.run(counts), level, &job.class), 1.0)));
            }
            if level == RunsOf::Shared {
                each_user_once(&mut runs);
            }
            if let Some(length) = class.length.filter(|_| level == RunsOf::Program) {
                let alike = lengths::take_scaled(&mut runs, length);
                mixed.add(level, alike, Source { counted: ended == 0, scaled: true });
            }
            mixed.add(level, runs, Source { counted: ended == 0, scaled: false });
        }
        mixed.forecast()
    }

    fn unlist(&mut self, user: u64, used: u64, key: ClassKey) {
        if let Some(classes) = self.by_use.get_mut(&user) {
            classes.remove(&(used, key));
            if classes.is_empty() {
                self.by_use.remove(&user);
            }
        }
    }

    /// Forgets what is too much: no user drives out what others have. Of users who have as many, it is this one's.
    fn make_room(&mut self, by: u64) {
        while self.classes.len() > CLASSES
            && let Some((user, classes)) = self.by_use.iter().max_by_key(|(user, c)| (c.len(), **user == by))
            && let Some((used, key)) = classes.first().copied()
        {
            let user = *user;
            self.unlist(user, used, key);
            self.classes.remove(&key);
            self.changed.insert(key);
        }
    }
}

/// Where runs of a level come from.
#[derive(Clone, Copy)]
struct Source {
    /// None has come to its end: running jobs' counts stand in.
    counted: bool,
    /// Their times are scaled by their length.
    scaled: bool,
}

/// What a forecast may be named after: the level that it comes from for the largest part, of equal ones the narrowest.
struct Named {
    level: RunsOf,
    source: Source,
    /// How many of its runs came to their end, or count.
    known: usize,
    /// Of how many commands those are.
    commands: u32,
    /// What part of the forecast comes from runs that no narrower level has.
    part: f64,
    /// What part of the runs of the widest level so far those are.
    of: f64,
}

/// Runs of all levels, the narrow ones first.
struct Mixed {
    weighted: Vec<Weighted>,
    /// The levels with runs that came to their end, or count.
    named: Vec<Named>,
    /// What all narrower levels leave to the wider ones.
    left: f64,
}

impl Mixed {
    const fn new() -> Self {
        Self { weighted: Vec::new(), named: Vec::new(), left: 1.0 }
    }

    fn add(&mut self, level: RunsOf, runs: Vec<(Kept, f64)>, source: Source) {
        // By the ends alone: however many runs were cut off, they move no weight from one level to another.
        let ended = || runs.iter().filter(|(kept, _)| !kept.run.cut);
        let own: f64 = ended().map(|(_, weight)| weight).sum();
        let wider = if source.scaled { SCALED_WIDER } else { wider(level) };
        // The widest level takes what is left.
        let all = if level == RunsOf::All { own } else { own + wider };
        if all == 0.0 {
            return;
        }
        let known = ended().count();
        if known > 0 {
            self.name(
                Named { level, source, known, commands: commands(&runs, level), part: 0.0, of: 1.0 },
                self.left * own / all,
            );
        }
        self.weighted.extend(runs.iter().map(|(kept, weight)| Weighted {
            seconds: kept.run.seconds,
            cut: kept.run.cut,
            weight: self.left * weight / all,
        }));
        self.left *= 1.0 - own / all;
    }

    /// Adds a level from which such a part of the forecast comes. Runs of narrower levels are among its own, and count as those of the
    /// narrowest.
    fn name(&mut self, level: Named, part: f64) {
        let before = self.named.last().map_or(0, |narrower| narrower.known);
        let theirs = before.min(level.known) as f64 / level.known as f64;
        for narrower in &mut self.named {
            narrower.of *= theirs;
        }
        self.named.push(Named { of: 1.0 - theirs, ..level });
        for level in &mut self.named {
            level.part += part * level.of;
        }
    }

    fn forecast(mut self) -> Option<RunTime> {
        let mut largest: Option<&Named> = None;
        for level in &self.named {
            if largest.is_none_or(|largest| level.part > largest.part + ALIKE) {
                largest = Some(level);
            }
        }
        let Named { level: basis, source: Source { counted, scaled }, known: runs, commands, .. } = *largest?;
        let [low_s, median_s, high_s] = quantiles(&mut self.weighted, [TAIL, 0.5, 1.0 - TAIL])?;
        let runs = u32::try_from(runs).unwrap_or(u32::MAX);
        Some(RunTime { low_s, median_s, high_s, basis, runs, commands, counted, scaled, exact: false })
    }
}

/// Runs of one user, cut off or not, count for one together, however many there are: what users share, each could fill with runs of a
/// second.
fn each_user_once(runs: &mut [(Kept, f64)]) {
    let mut of: BTreeMap<u64, f64> = BTreeMap::new();
    for (kept, weight) in &*runs {
        *of.entry(kept.by).or_default() += weight;
    }
    for (kept, weight) in runs {
        *weight /= of.get(&kept.by).copied().unwrap_or(1.0);
    }
}

/// The classes of a job from narrow to wide, each once.
fn levels(class: &Class) -> impl Iterator<Item = ClassKey> {
    let mut last = None;
    LEVELS
        .into_iter()
        .rev()
        .filter_map(move |level| {
            let key = class.key(level);
            (last.replace(key) != Some(key)).then_some((level, key))
        })
        .collect::<Vec<_>>()
        .into_iter()
        .rev()
}

fn name((level, key): ClassKey) -> String {
    format!("{}/{key:016x}", word(level))
}

fn parse(name: &str) -> Option<ClassKey> {
    let (level, key) = name.split_once('/')?;
    let level = LEVELS.into_iter().find(|known| word(*known) == level)?;
    Some((level, u64::from_str_radix(key, 16).ok()?))
}

#[cfg(test)]
mod tests;

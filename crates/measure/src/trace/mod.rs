//! The same trace of tasks under several policies in turn, on the same machine.
//!
//! Each play has a daemon of its own and runs the tasks as jobs. What a play was goes into a file of its own, so that a call
//! with too little time for all goes on where the last one ended, and results of several calls become one table.

mod bundled;
mod play;
mod policies;
mod rows;
mod summary;
mod tasks;
mod watch;

use crate::{Error, Say};
pub use bundled::bundled;
use carma_api::parse;
use carma_core::model::SharingMode;
use carma_core::policy::Options as Defaults;
pub use policies::Wanted;
use policies::{Planned, Told, order};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_pcg::Pcg64;
pub use rows::{Arrival, Attempt, Conditions, GpuSample, Job, Kind, Machine, Play, Said, Sample, Trace};
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
pub use summary::{BASE, Figures, Policy, Summary, run_s};
use tasks::{Here, Played, TaskFile};
use watch::Gpus;

/// What is kept of a budget: a daemon and its jobs take so long to end, and the results are to be written.
const CLEAN_UP: Duration = Duration::from_secs(15);
/// What passes of a budget before the first play can begin, where it is not known better.
const PLANNING: Duration = Duration::from_secs(1);
/// The most that is read of a daemon's configuration, bytes.
const LARGEST_CONFIG: u64 = 1 << 20;

/// In a folder of results: locked by the call that writes there.
const LOCK: &str = "lock";

/// What to play, on what, and where the results go.
#[derive(Debug, Clone)]
pub struct Options {
    /// carma's program: the daemon, and the tasks of virtual GPUs.
    pub carma: PathBuf,
    /// Says what is wrong with the options of `carma virtual-task`, of which nothing is known here.
    pub check_virtual: fn(&[String]) -> Result<(), String>,
    /// The file of tasks, TOML.
    pub tasks: PathBuf,
    /// Only these tasks of the file; all, if there are none.
    pub only: Vec<String>,
    /// A job of each of these tasks as well, spread evenly over the trace: what is meant to fail has weight 0, and comes so.
    pub add: Vec<String>,
    /// Limits of the jobs of a task, by its name: a factor of slowdown (`1.3`) or a latency (`20ms`).
    pub limits: Vec<(String, String)>,
    /// The policies.
    pub policies: Vec<Wanted>,
    /// How often each is played.
    pub repeats: u32,
    /// When jobs come, seconds, ascending; with the task of each where the trace says it.
    pub arrivals: Vec<(f64, Option<String>)>,
    /// Of the order of the tasks.
    pub seed: u64,
    /// Steps are multiplied with this.
    pub work: f64,
    /// How jobs share a GPU where the policy does not say.
    pub sharing: SharingMode,
    /// The daemon's configuration; `None`: its defaults, not what the machine's file says.
    pub config: Option<PathBuf>,
    /// Kill the daemon when this share of the jobs is submitted, 0 to 1.
    pub kill_after: Option<f64>,
    /// Folder of the results. What is there is not played again.
    pub output: PathBuf,
    /// All is over after so long, as far as that can be predicted.
    pub budget: Option<Duration>,
    /// The longest that one play may take, seconds on its own clock.
    pub longest_s: f64,
    /// The GPUs: `nvml` or `auto`, or a model such as `virtual:4xA100-40GB`.
    pub gpus: String,
    /// Virtual seconds a second; for virtual GPUs only.
    pub speed: Option<u32>,
}

/// A bench that is planned; nothing runs yet.
pub struct Bench {
    options: Options,
    began: Instant,
    gpus: Gpus,
    tasks: Vec<Played>,
    trace: Trace,
    warm_up: Option<(Vec<String>, PathBuf)>,
    plan: Vec<Planned>,
}

/// What became of a bench.
#[derive(Debug)]
pub struct Outcome {
    /// All plays of the folder, those of earlier calls among them.
    pub plays: Vec<Play>,
    /// Plays that are still to be played.
    pub left: Vec<String>,
}

impl Bench {
    /// Reads the tasks, finds the GPUs and plans the plays. The budget counts from here.
    ///
    /// # Errors
    /// What is wrong in a file; no GPU; no task that can run here.
    pub fn plan(options: Options, say: Say<'_>) -> Result<Self, Error> {
        let began = Instant::now();
        suffices(options.budget)?;
        let mut file = TaskFile::read(&options.tasks)?;
        bundled::lend(&mut file, &options.add, &options.output)?;
        file.choose(&options.only, &options.add)?;
        file.limit(&options.limits)?;
        let gpus = Gpus::open(&options.gpus, options.speed)?;
        let here = Here {
            gpus: gpus.count(),
            memory_mib: gpus.largest_mib,
            is_virtual: gpus.machine.is_virtual,
            work: options.work,
        };
        let mut tasks = file.played(&here, say)?;
        let trace = trace(&file, &tasks, &options)?;
        tasks.retain(|task| trace.kinds.contains(&task.kind));
        for task in &tasks {
            task.check(options.check_virtual)
                .map_err(|why| file.bad(format!("task `{}`: {why}", task.kind.name)))?;
        }
        if let Some(caveat) =
            rows::caveat(&trace.unmodelled(), gpus.machine.speed).filter(|_| here.is_virtual)
        {
            say(&format!("warning: {caveat}"));
        }
        if !file.warm_up.is_empty() && gpus.machine.is_virtual {
            say("`warm_up` is not run on virtual GPUs");
        }
        let warm_up = (!file.warm_up.is_empty() && !gpus.machine.is_virtual)
            .then(|| (file.warm_up.clone(), file.folder.clone()));
        let plan = order(&options.policies, options.repeats)?;
        Ok(Self { options, began, gpus, tasks, trace, warm_up, plan })
    }

    /// Plays what is not in the folder of results yet, until all is done, the budget is used up or `stopped` is set.
    /// `sockets` is a short path to a folder of our own.
    ///
    /// # Errors
    /// Results of another trace in the folder, GPUs that others use, a daemon that fails. What was played stays.
    pub fn run(mut self, sockets: &Path, stopped: &AtomicBool, say: Say<'_>) -> Result<Outcome, Error> {
        let results = self.options.output.clone();
        std::fs::create_dir_all(&results)
            .map_err(|e| Error::usage(format!("--output {}: {e}", results.display())))?;
        // The daemon looks at it from another folder, and its journal needs the place for itself.
        let results = std::fs::canonicalize(&results)
            .map_err(|e| Error::usage(format!("--output {}: {e}", results.display())))?;
        let _held = hold(&results)?;
        let mut plays = self.earlier(&results)?;
        let (config, text) = self.config(sockets)?;
        let deadline = self.options.budget.and_then(|budget| self.began.checked_add(budget));
        let speed = self.gpus.machine.speed;
        let mut stage = play::Stage {
            carma: &self.options.carma,
            gpus: &mut self.gpus,
            spec: &self.options.gpus,
            trace: &self.trace,
            tasks: &self.tasks,
            peaks: peaks(&plays),
            sharing: self.options.sharing,
            config: &config,
            config_is: rows::fingerprint(text.as_bytes()),
            sockets,
            results: &results,
            deadline: deadline.map(|deadline| deadline.checked_sub(CLEAN_UP).unwrap_or(self.began)),
            budget: self.options.budget,
            planning: self.began.elapsed(),
            longest_s: self.options.longest_s,
            kill_after: self.options.kill_after,
            stopped,
            grace: grace(&text) / speed.max(1),
            say,
            has_played: false,
        };
        check(&self.plan, &plays, &stage)?;
        let mut warm_up = self.warm_up.take();
        let mut left = Vec::new();
        for (at, planned) in self.plan.iter().enumerate() {
            let is_teacher = teaches(planned, &self.plan, &plays);
            let is_taught = stage.taught(planned).exists();
            // What another play is to go on from may be gone, though its rows are there.
            let again = is_done(planned, &plays);
            if again && (is_taught || !is_teacher) {
                continue;
            }
            stage.peaks = peaks(&plays);
            if let Some(why) = stage.keeps(planned, &plays) {
                left.push(format!("{planned}: {why}"));
                continue;
            }
            if let Some((words, folder)) = warm_up.take() {
                run_warm_up(&words, &folder, &stage, say);
            }
            say(&format!("{} of {}: {planned}", at + 1, self.plan.len()));
            let is_first = !stage.has_played;
            let mut play = stage.play(planned)?;
            if let Some(why) = play.cut.as_mut().filter(|why| is_first && *why == play::USED_UP) {
                // Nothing was played before it, so that the same command would end the same way.
                why.push_str(", all of which it had: name a greater --budget");
            }
            if again {
                // It was played only for what it teaches, and counts as one more.
                let alike = plays.iter().filter(|p| p.policy == play.policy).map(|p| p.repeat);
                play.repeat = alike.max().unwrap_or(0).max(self.options.repeats) + 1;
            }
            play.write(&results)?;
            match &play.cut {
                Some(why) => {
                    say(&format!("{planned}: broken off, {why}"));
                    left.push(format!("{planned}: {why}"));
                }
                None => say(&format!("{planned}: {:.1} s", makespan_s(&play))),
            }
            if is_teacher && play.cut.is_none() {
                let taught = stage.taught(planned);
                std::fs::write(&taught, "")
                    .map_err(|e| Error::new(format!("cannot write {}: {e}", taught.display())))?;
            }
            plays.retain(|p| (&p.policy, p.repeat) != (&play.policy, play.repeat));
            plays.push(play);
            if !stage.taught(planned).exists() {
                stage.discard(planned, has_failed(planned, &plays));
            }
        }
        Ok(Outcome { plays, left })
    }

    /// The plays that the folder of results has.
    fn earlier(&self, results: &Path) -> Result<Vec<Play>, Error> {
        let plays = rows::together(vec![(results.to_owned(), rows::read(results)?)])?;
        let differ = |other: &Play| {
            other.machine.differ(&self.gpus.machine).or_else(|| other.trace.differ(&self.trace))
        };
        match plays.first().and_then(differ) {
            None => Ok(plays),
            Some(what) => Err(Error::usage(format!(
                "{} has plays with {}",
                results.display(),
                what.said("there", "here")
            ))
            .hint("name another --output for another trace, other tasks, GPUs or speed")),
        }
    }

    /// The daemon's configuration and its text: an empty one in `sockets`, where none was named.
    fn config(&self, sockets: &Path) -> Result<(PathBuf, String), Error> {
        if let Some(config) = &self.options.config {
            let text = carma_files::read_text(config, LARGEST_CONFIG)
                .map_err(|e| Error::usage(format!("--config {}: {}", config.display(), e.why)))?;
            return Ok((config.clone(), text));
        }
        let empty = sockets.join("carma.toml");
        std::fs::write(&empty, "").map_err(|e| Error::new(format!("{}: {e}", empty.display())))?;
        Ok((empty, String::new()))
    }
}

/// Checks that plays of this plan can go into one table with those that were played before, and that each policy can be told what it must know.
fn check(plan: &[Planned], plays: &[Play], stage: &play::Stage<'_>) -> Result<(), Error> {
    // What a policy is told of memory parts only plays that are told it.
    for (planned, play) in plan.iter().flat_map(|planned| plays.iter().map(move |p| (planned, p))) {
        let known = play.conditions.as_ref();
        if let Some(what) = known.and_then(|known| known.differ(&stage.conditions(planned))) {
            return Err(Error::usage(format!(
                "{} has plays with {what} than this call's",
                stage.results.display()
            ))
            .hint("name another --output for other options or variables"));
        }
    }
    if let Some((planned, untold)) = plan.iter().find_map(|p| Some((p, stage.untold(p)?)))
        && plan.iter().all(|planned| planned.policy.label != BASE)
    {
        return Err(Error::usage(format!("{planned}: {untold}"))
            .hint("write `memory` into their tables, or play `exclusive` too: peaks that are seen count"));
    }
    Ok(())
}

/// Whether a budget leaves any time to play.
fn suffices(budget: Option<Duration>) -> Result<(), Error> {
    let least = CLEAN_UP + PLANNING;
    match budget.filter(|budget| *budget < least) {
        None => Ok(()),
        Some(budget) => Err(Error::usage(format!(
            "--budget {} s leaves no time to play: {} s of it are kept to end the daemon and its jobs and to write the results",
            budget.as_secs_f64(),
            CLEAN_UP.as_secs()
        ))
        .hint(format!("the least is {} s, and what a play takes comes on top", least.as_secs()))),
    }
}

/// How long jobs of a daemon with this configuration may take to end, on its clock.
fn grace(config: &str) -> Duration {
    let file: Option<toml::Table> = toml::from_str(config).ok();
    let said = file.as_ref().and_then(|file| file.get("jobs")?.get("kill-grace")?.as_str());
    let grace = said.and_then(|said| parse::duration(said).ok()).unwrap_or(Defaults::default().kill_grace);
    Duration::from_millis(grace.0)
}

/// Whether a play was played to its end.
fn is_done(planned: &Planned, plays: &[Play]) -> bool {
    let is = |play: &Play| {
        (&play.policy, play.repeat) == (&planned.policy.label, planned.repeat) && play.cut.is_none()
    };
    plays.iter().any(is)
}

/// Whether a job failed in a play, or in the one that it goes on from.
fn has_failed(planned: &Planned, plays: &[Play]) -> bool {
    let labels = [&planned.policy.label, &planned.policy.teacher().label];
    let mut counted = plays.iter().filter(|play| play.cut.is_none() && play.repeat == planned.repeat);
    counted.any(|play| labels.contains(&&play.policy) && play.jobs.iter().any(|job| job.state != "COMPLETED"))
}

/// Whether a play that is still to come goes on from the state of this one.
fn teaches(planned: &Planned, plan: &[Planned], plays: &[Play]) -> bool {
    plan.iter().any(|other| {
        other.policy.history
            && other.policy.teacher() == planned.policy
            && other.repeat == planned.repeat
            && !is_done(other, plays)
    })
}

/// Locks the folder of the results as long as what is returned lives.
fn hold(results: &Path) -> Result<File, Error> {
    let path = results.join(LOCK);
    let failed = |e: std::io::Error| Error::new(format!("cannot write {}: {e}", path.display()));
    let file = File::options().create(true).append(true).open(&path).map_err(failed)?;
    match file.try_lock() {
        Err(std::fs::TryLockError::WouldBlock) => {
            Err(Error::busy(format!("another carma writes into {}", results.display()))
                .hint("wait for it, or name another --output"))
        }
        // A file system without locks is no reason to measure nothing.
        _ => Ok(file),
    }
}

/// Removes a folder of results in which nothing was played: one that a refused call has made.
pub fn discard(results: &Path) {
    // Another call may have begun there.
    let Ok(_held) = hold(results) else { return };
    let Ok(entries) = std::fs::read_dir(results) else { return };
    if entries.flatten().all(|entry| [LOCK, bundled::FOLDER].iter().any(|name| entry.file_name() == *name)) {
        // Where it cannot be removed, it stays.
        let _ = std::fs::remove_dir_all(results);
    }
}

/// Plays of several folders of results, put together.
///
/// # Errors
/// A folder or a file that cannot be read; plays of other tasks, arrivals or machines.
pub fn merge(folders: &[PathBuf]) -> Result<Vec<Play>, Error> {
    let mut read = Vec::new();
    for folder in folders {
        let plays = rows::read(folder)?;
        if plays.is_empty() {
            return Err(Error::usage(format!("{} has no plays", folder.display()))
                .hint("it is to be the --output of an earlier `carma bench trace`"));
        }
        read.push((folder.clone(), plays));
    }
    rows::together(read)
}

/// Which tasks come when: those that the trace names, else each as often as its weight says, in an order drawn.
fn trace(file: &TaskFile, tasks: &[Played], options: &Options) -> Result<Trace, Error> {
    let weight = |task: &Played| file.tasks.iter().find(|t| t.name == task.kind.name).map_or(0, |t| t.weight);
    let weights: Vec<u32> = tasks.iter().map(weight).collect();
    let unnamed = options.arrivals.iter().filter(|(_, name)| name.is_none()).count();
    if unnamed > 0 && weights.iter().all(|weight| *weight == 0) {
        return Err(Error::usage(format!("{}: all tasks have weight 0", options.tasks.display())));
    }
    let mut drawn = draw(&weights, unnamed, options.seed).into_iter();
    let named = |name: &str| {
        tasks.iter().find(|task| task.kind.name == name).ok_or_else(|| {
            Error::usage(format!(
                "the trace has a job of `{}`, and no such task of {} can run here",
                name.escape_debug(),
                options.tasks.display()
            ))
        })
    };
    let mut arrivals = Vec::with_capacity(options.arrivals.len() + options.add.len());
    for (at_s, name) in &options.arrivals {
        let task = match name {
            Some(name) => named(name)?,
            None => match drawn.next().and_then(|at| tasks.get(at)) {
                Some(task) => task,
                None => continue,
            },
        };
        arrivals.push(Arrival { at_s: *at_s, kind: task.kind.name.clone() });
    }
    if arrivals.is_empty() {
        return Err(Error::usage("the trace has no jobs"));
    }
    arrivals.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
    let times: Vec<f64> = arrivals.iter().map(|arrival| arrival.at_s).collect();
    for (at, name) in options.add.iter().enumerate() {
        let at_s = times[(at + 1) * times.len() / (options.add.len() + 1)];
        if !tasks.iter().any(|task| task.kind.name == *name) {
            return Err(Error::usage(format!("--add {name}: that task cannot run here; see above why")));
        }
        arrivals.push(Arrival { at_s, kind: name.clone() });
    }
    arrivals.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
    let occurs = |task: &&Played| arrivals.iter().any(|arrival| arrival.kind == task.kind.name);
    let kinds = tasks.iter().filter(occurs).map(|task| task.kind.clone()).collect();
    Ok(Trace { kinds, arrivals })
}

/// `jobs` indices of `weights`, each as often as its share says (what is left over goes to the largest remainders), shuffled.
fn draw(weights: &[u32], jobs: usize, seed: u64) -> Vec<usize> {
    let mut dice = Pcg64::seed_from_u64(seed);
    let total: u64 = weights.iter().map(|w| u64::from(*w)).sum();
    let quota = |weight: u32| u128::from(weight) * jobs as u128;
    let total = u128::from(total.max(1));
    let mut drawn: Vec<usize> = Vec::with_capacity(jobs);
    for (at, weight) in weights.iter().enumerate() {
        drawn.extend(std::iter::repeat_n(at, (quota(*weight) / total) as usize));
    }
    // Of equal remainders the dice choose.
    let mut rest: Vec<usize> = (0..weights.len()).filter(|at| weights[*at] > 0).collect();
    rest.shuffle(&mut dice);
    rest.sort_by_key(|at| std::cmp::Reverse(quota(weights[*at]) % total));
    let missing = jobs.saturating_sub(drawn.len());
    drawn.extend(rest.into_iter().cycle().take(missing));
    drawn.shuffle(&mut dice);
    drawn
}

/// The most memory that each kind was seen to take, MiB.
fn peaks(plays: &[Play]) -> BTreeMap<String, u64> {
    let mut peaks = BTreeMap::new();
    for job in plays.iter().filter(|play| play.policy == BASE).flat_map(|play| &play.jobs) {
        if let Some(mib) = job.peak_mib.filter(|_| job.state == "COMPLETED") {
            let most = peaks.entry(job.kind.clone()).or_insert(0);
            *most = mib.max(*most);
        }
    }
    peaks
}

fn makespan_s(play: &Play) -> f64 {
    play.jobs.iter().filter_map(|job| job.ended_s).fold(0.0, f64::max)
}

impl play::Stage<'_> {
    /// What keeps a play from being begun.
    fn keeps(&self, planned: &Planned, plays: &[Play]) -> Option<String> {
        if self.stopped.load(Ordering::Relaxed) {
            return Some("interrupted".to_owned());
        }
        if planned.policy.history && !self.taught(planned).exists() {
            return Some(format!("{} has to be played before it", planned.policy.teacher().label));
        }
        self.untold(planned).or_else(|| self.too_long(planned, plays))
    }

    /// Why a policy cannot be played yet: kinds of whose memory it has to be told, and nothing is known.
    fn untold(&self, planned: &Planned) -> Option<String> {
        let unknown: Vec<&str> = self
            .tasks
            .iter()
            .filter(|task| {
                planned.policy.told != Told::Nothing && self.told(planned.policy.told, task).is_none()
            })
            .map(|task| task.kind.name.as_str())
            .collect();
        (!unknown.is_empty()).then(|| {
            format!(
                "it has to be told what memory the tasks need, and that of {} is not known: no run of them under {BASE} came to its end; say `memory = \"8G\"` of them in the file",
                unknown.join(", ")
            )
        })
    }

    /// Why a play does not fit into what is left of the budget.
    fn too_long(&self, planned: &Planned, plays: &[Play]) -> Option<String> {
        let (needs, deadline) = self.forecast(planned, plays).zip(self.deadline)?;
        (Instant::now() + needs > deadline)
            .then(|| too_long(needs, self.planning, self.budget.unwrap_or_default()))
    }

    /// How long a play will take, in real time: as the same policy did, else as it did without history, else as exclusive did,
    /// else by what the tasks say that they take alone.
    fn forecast(&self, planned: &Planned, plays: &[Play]) -> Option<Duration> {
        let machine = &self.gpus.machine;
        let of = |policy: &str| {
            let done = plays.iter().filter(|play| play.cut.is_none() && play.policy == policy);
            done.map(makespan_s).reduce(f64::max)
        };
        let teacher = planned.policy.teacher().label;
        let seconds = of(&planned.policy.label)
            .or_else(|| of(&teacher))
            .or_else(|| of(BASE))
            .or_else(|| alone_s(self.trace, self.tasks, machine.gpus.len()))?;
        Duration::try_from_secs_f64(seconds / f64::from(machine.speed.max(1))).ok()
    }
}

/// About how long a play takes by what its tasks take alone, seconds on its own clock: on GPUs that are never idle, but not less than
/// until each job has come and run. `None`: of a task that is not known.
fn alone_s(trace: &Trace, tasks: &[Played], gpus: usize) -> Option<f64> {
    let (mut work, mut last) = (0.0, 0.0f64);
    for arrival in &trace.arrivals {
        let task = tasks.iter().find(|task| task.kind.name == arrival.kind)?;
        let solo = task.solo_s?;
        work += solo * f64::from(task.kind.gpus);
        last = last.max(arrival.at_s + solo);
    }
    Some(last.max(work / gpus.max(1) as f64))
}

/// What is said of a play that does not fit into what is left of a budget: one that would not fit into all of it is not promised.
fn too_long(needs: Duration, planning: Duration, budget: Duration) -> String {
    let takes = format!("it takes about {:.0} s, and the budget has less left", needs.as_secs_f64());
    let least = needs + CLEAN_UP + planning.max(PLANNING);
    if least <= budget {
        return format!("{takes}; the same command goes on with it");
    }
    format!(
        "{takes}, of which {} s are kept to end and to write; it needs --budget {}s or more",
        CLEAN_UP.as_secs(),
        least.as_secs_f64().ceil()
    )
}

fn run_warm_up(words: &[String], folder: &Path, stage: &play::Stage<'_>, say: Say<'_>) {
    let Some((program, rest)) = words.split_first() else { return };
    let began = Instant::now();
    let mut command = Command::new(program);
    command.args(rest).current_dir(folder).stdin(Stdio::null()).stdout(Stdio::null());
    let kinds: Vec<&str> = stage.tasks.iter().map(|task| task.kind.name.as_str()).collect();
    command.env("CARMA_BENCH_TASKS", kinds.join(" "));
    if let Some(task) = stage.tasks.first() {
        command.envs(&task.env);
    }
    match command.status() {
        Ok(status) if status.success() => say(&format!("warm-up: {:.0} s", began.elapsed().as_secs_f64())),
        Ok(status) => say(&format!("warning: the warm-up ended with {status}")),
        Err(e) => say(&format!("warning: the warm-up {program} cannot be started: {e}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_that_cannot_do_is_not_said_to_go_on() {
        let s = Duration::from_secs;
        let refused = suffices(Some(s(14))).unwrap_err();
        assert!(
            refused.message.contains("--budget 14 s") && refused.message.contains("15 s of it"),
            "{refused}"
        );
        assert!(refused.hint.unwrap().contains("the least is 16 s"));
        assert!(suffices(Some(s(16))).is_ok() && suffices(None).is_ok());
        assert!(too_long(s(20), s(0), s(60)).ends_with("the same command goes on with it"));
        let never = too_long(Duration::from_millis(20_200), s(0), s(30));
        assert!(!never.contains("goes on") && never.contains("--budget 37s or more"), "{never}");
        // Modules that are looked for take their time in every call.
        assert!(too_long(s(20), s(9), s(40)).contains("--budget 44s"));
    }

    #[test]
    fn a_play_is_not_forecast_to_be_over_before_its_last_job_has_come_and_run() {
        let played = |name: &str, solo_s| Played {
            kind: rows::Kind { name: name.into(), gpus: 1, ..rows::Kind::default() },
            is_modelled: false,
            cwd: "/".into(),
            env: BTreeMap::new(),
            memory_mib: None,
            solo_s,
        };
        let tasks = [played("long", Some(60.0)), played("short", Some(6.0)), played("unknown", None)];
        let forecast = |jobs: &[(f64, &str)], gpus| {
            let arrivals =
                jobs.iter().map(|(at_s, kind)| Arrival { at_s: *at_s, kind: (*kind).into() }).collect();
            alone_s(&Trace { kinds: Vec::new(), arrivals }, &tasks, gpus)
        };
        assert_eq!(forecast(&[(0.0, "long"), (3600.0, "short")], 4), Some(3606.0));
        assert_eq!(forecast(&[(0.0, "long"), (1.0, "short")], 4), Some(60.0));
        assert_eq!(forecast(&[(0.0, "long"), (0.0, "long"), (1.0, "short")], 2), Some(63.0));
        assert_eq!(forecast(&[(0.0, "long"), (0.0, "unknown")], 2), None);
    }

    #[test]
    fn the_grace_is_that_of_the_configuration() {
        let s = |config| grace(config).as_secs();
        assert_eq!((s(""), s("[jobs]\nkill-grace = '30s'\n"), s("no configuration")), (10, 30, 10));
    }

    #[test]
    fn kinds_occur_as_their_weights_say() {
        let drawn = draw(&[2, 1, 0, 1], 10, 7);
        let counts: Vec<usize> = (0..4).map(|at| drawn.iter().filter(|d| **d == at).count()).collect();
        assert_eq!((counts[0], counts[2], drawn.len()), (5, 0, 10));
        assert!(counts[1] + counts[3] == 5 && counts[1].abs_diff(counts[3]) == 1);
        assert_eq!(draw(&[2, 1, 0, 1], 10, 7), drawn);
        assert_ne!(draw(&[1; 20], 20, 1), draw(&[1; 20], 20, 2));
        assert_eq!(draw(&[u32::MAX, u32::MAX], 3, 1).len(), 3);
    }
}

//! The raw rows: one file a play, complete in itself, so that plays of several calls can be put together.

use crate::Error;
use carma_api::wire::LimitKeptView;
use carma_core::model::JobState;
use fnv::FnvHasher;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::hash::Hasher as _;
use std::path::{Path, PathBuf};

/// Version of the format.
pub(super) const VERSION: u32 = 1;
/// The most that is read of one play, bytes: an hour of eight GPUs has a hundredth of it.
const LARGEST: u64 = 256 << 20;
/// Folder of the plays, in that of the results.
const PLAYS: &str = "plays";

/// One policy, once. Times are seconds after the first submission, on the daemon's clock: virtual ones on virtual GPUs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Play {
    /// Version of the format.
    pub version: u32,
    /// The policy as it was asked for: `adaptive+history`, `or-magm@time-slice`.
    pub policy: String,
    /// Which of its plays, from 1.
    pub repeat: u32,
    /// When it began, RFC 3339.
    pub began: String,
    /// carma's version.
    pub carma: String,
    /// Where.
    pub machine: Machine,
    /// What was played.
    pub trace: Trace,
    /// Under which conditions; absent in files of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conditions: Option<Conditions>,
    /// Why it was broken off; such a play counts for nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cut: Option<String>,
    /// The jobs, in the order of the trace.
    pub jobs: Vec<Job>,
    /// What the GPUs were read to do.
    pub samples: Vec<Sample>,
    /// Time of one plan of the daemon, 99th percentile, microseconds.
    pub plan_p99_us: u64,
    /// Number of commands that the daemon started.
    pub launches: u64,
    /// How often the daemon was killed on purpose.
    #[serde(default)]
    pub kills: u32,
}

/// Where plays were played. Only those of one machine are compared.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Product name of each GPU. A virtual one says so.
    pub gpus: Vec<String>,
    /// Memory of the first, MiB.
    pub gpu_memory_mib: u64,
    /// Whether the GPUs are a model: never a measurement.
    pub is_virtual: bool,
    /// Virtual seconds a second; 1 on real GPUs.
    pub speed: u32,
    /// Version of the driver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// Processors.
    pub cpus: usize,
    /// Version of the kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
}

impl Machine {
    /// What makes two of them incomparable: another kernel does not, another GPU does.
    pub(super) fn differ(&self, other: &Self) -> Option<Difference> {
        let mib = |machine: &Self| format!("{} MiB", machine.gpu_memory_mib);
        unless(self.gpus == other.gpus, "other GPUs", self.describe(), other.describe())
            .or_else(|| {
                let are_equal = self.gpu_memory_mib == other.gpu_memory_mib;
                unless(are_equal, "another memory of a GPU", mib(self), mib(other))
            })
            .or_else(|| unless(self.speed == other.speed, "another --speed", self.speed, other.speed))
            .or_else(|| {
                unless(self.cpus == other.cpus, "another number of processors", self.cpus, other.cpus)
            })
    }

    /// In few words.
    #[must_use]
    pub fn describe(&self) -> String {
        let mut counts: Vec<(&str, usize)> = Vec::new();
        for name in &self.gpus {
            match counts.last_mut() {
                Some((last, n)) if *last == name => *n += 1,
                _ => counts.push((name, 1)),
            }
        }
        counts.iter().map(|(name, n)| format!("{n} x {name}")).collect::<Vec<_>>().join(", ")
    }
}

/// What two calls, or their plays, have not the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Difference {
    what: String,
    first: String,
    second: String,
}

/// `None` where two values are equal; else both in words.
fn unless(
    are_equal: bool,
    what: impl Into<String>,
    first: impl ToString,
    second: impl ToString,
) -> Option<Difference> {
    (!are_equal).then(|| Difference {
        what: what.into(),
        first: first.to_string(),
        second: second.to_string(),
    })
}

impl Difference {
    /// In words, with the place of each: `another --speed (60 there, 20 here)`.
    pub(super) fn said(&self, first: &str, second: &str) -> String {
        format!("{} ({} {first}, {} {second})", self.what, self.first, self.second)
    }
}

/// What a call says besides policies, tasks and GPUs, as far as it changes what comes out.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Conditions {
    /// How jobs share where the policy does not say.
    pub sharing: String,
    /// A fingerprint of the daemon's configuration.
    pub config: String,
    /// When the daemon is killed, a share of the jobs submitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kill_after: Option<f64>,
    /// Fingerprints of the variables of each kind that has some: these may hold what nobody else is to know.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Memory of each kind by hand, MiB; absent: the policy is told nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<BTreeMap<String, u64>>,
}

impl Conditions {
    /// What differs; `None`: plays of both can be compared.
    pub(super) fn differ(&self, other: &Self) -> Option<String> {
        let memory = self.memory_mib.as_ref().zip(other.memory_mib.as_ref());
        if self.sharing != other.sharing {
            return Some(format!("another --sharing ({}, {})", self.sharing, other.sharing));
        }
        if self.config != other.config {
            return Some("another configuration (--config)".into());
        }
        if self.kill_after != other.kill_after {
            return Some("another --kill-daemon".into());
        }
        if let Some(kind) = unlike(&self.env, &other.env) {
            return Some(format!("another environment of {kind}"));
        }
        let kind = memory.and_then(|(ours, theirs)| unlike(ours, theirs))?;
        Some(format!("another `memory` of {kind}"))
    }
}

/// A key of which two maps have not the same.
fn unlike<'a, V: PartialEq>(a: &'a BTreeMap<String, V>, b: &'a BTreeMap<String, V>) -> Option<&'a str> {
    a.keys().chain(b.keys()).find(|key| a.get(*key) != b.get(*key)).map(String::as_str)
}

/// A number that differs where the bytes do, the same in every version of carma.
pub(super) fn fingerprint(bytes: &[u8]) -> String {
    let mut hasher = FnvHasher::default();
    hasher.write(bytes);
    format!("{:016x}", hasher.finish())
}

/// What is played: which tasks come when.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Trace {
    /// The kinds of tasks that occur.
    pub kinds: Vec<Kind>,
    /// When each job is to come, and its kind.
    pub arrivals: Vec<Arrival>,
}

impl Trace {
    /// The kinds that no virtual task stands in for: on virtual GPUs they run as they are there, beside the model.
    pub(super) fn unmodelled(&self) -> Vec<String> {
        let models = |kind: &&Kind| kind.command.iter().any(|word| word.contains("virtual-task"));
        self.kinds.iter().filter(|kind| !models(kind)).map(|kind| kind.name.clone()).collect()
    }
}

impl Trace {
    /// What of two traces differs: the tasks, else when they come.
    pub(super) fn differ(&self, other: &Self) -> Option<Difference> {
        let kind = |trace: &Self, name: &str| trace.kinds.iter().find(|kind| kind.name == name).cloned();
        for name in self.kinds.iter().chain(&other.kinds).map(|kind| &kind.name) {
            let (ours, theirs) = (kind(self, name), kind(other, name));
            if let (Some(ours), Some(theirs)) = (&ours, &theirs) {
                if let Some(differs) = ours.differ(theirs) {
                    return Some(differs);
                }
                continue;
            }
            let is = |there: Option<Kind>| if there.is_some() { "played" } else { "missing" };
            return unless(false, format!("another set of tasks, task `{name}`"), is(ours), is(theirs));
        }
        let names =
            |trace: &Self| trace.kinds.iter().map(|kind| kind.name.as_str()).collect::<Vec<_>>().join(", ");
        let (ours, theirs) = (&self.arrivals, &other.arrivals);
        let words = |arrival: &Arrival| format!("{} at {:.3} s", arrival.kind, arrival.at_s);
        let unlike = ours.iter().zip(theirs).enumerate().find(|(_, (a, b))| a != b);
        unless(ours.len() == theirs.len(), "another number of jobs", ours.len(), theirs.len())
            .or_else(|| {
                let (at, (a, b)) = unlike?;
                unless(false, format!("another job {}", at + 1), words(a), words(b))
            })
            .or_else(|| unless(self == other, "another order of the tasks", names(self), names(other)))
    }
}

/// What kinds of tasks that are not modelled make of results on virtual GPUs, whose seconds pass `speed` times as fast; `None`
/// of none.
pub(super) fn caveat(unmodelled: &[String], speed: u32) -> Option<String> {
    let (kinds, have, they, whose) = match unmodelled.len() {
        0 => return None,
        1 => ("kind", "has", "it runs as it is and does", "its"),
        _ => ("kinds", "have", "they run as they are and do", "their"),
    };
    // A real second is `speed` of the daemon's, by whose clock all times are taken.
    let counted = if speed > 1 {
        format!(
            "; at --speed {speed} each of {whose} seconds counts as {speed} s in run time, JCT and makespan"
        )
    } else {
        String::new()
    };
    Some(format!(
        "{} {kinds} {have} no `virtual` options ({}): {they} not use the virtual GPUs, so that results say nothing of how such tasks share a GPU{counted}",
        unmodelled.len(),
        unmodelled.join(", ")
    ))
}

/// A kind of task, as it is played.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kind {
    /// Its name.
    pub name: String,
    /// What it is, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub what: Option<String>,
    /// Its class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// GPUs that it asks for.
    pub gpus: u32,
    /// Program and arguments, steps filled in.
    pub command: Vec<String>,
    /// The limit of slowdown that its jobs have, percent: 130 is 1.3 times the time alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_slowdown_pct: Option<u32>,
    /// The limit of the 99th percentile of its requests' latency, microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_us: Option<u32>,
}

impl Kind {
    /// What of two kinds of one name differs.
    fn differ(&self, other: &Self) -> Option<Difference> {
        let unless = |are_equal, what: &str, first: String, second: String| {
            unless(are_equal, format!("another {what} of task `{}`", self.name), first, second)
        };
        let (ours, theirs) = (&self.command, &other.command);
        let word = |of: Option<&String>| of.map_or_else(|| "missing".to_owned(), |word| format!("`{word}`"));
        if let Some(at) = (0..ours.len().max(theirs.len())).find(|at| ours.get(*at) != theirs.get(*at)) {
            let what = format!("word {} of the command", at + 1);
            return unless(false, &what, word(ours.get(at)), word(theirs.get(at)));
        }
        let (gpus, limit) = (self.gpus == other.gpus, self.limit() == other.limit());
        let text = |of: &Option<String>| of.clone().unwrap_or_else(|| "none".to_owned());
        unless(gpus, "number of GPUs", self.gpus.to_string(), other.gpus.to_string())
            .or_else(|| unless(limit, "limit", text(&self.limit()), text(&other.limit())))
            .or_else(|| unless(self.class == other.class, "class", text(&self.class), text(&other.class)))
            .or_else(|| unless(self == other, "description", text(&self.what), text(&other.what)))
    }

    /// The limit of its jobs, as `--limit` takes it.
    #[must_use]
    pub fn limit(&self) -> Option<String> {
        let factor = self.max_slowdown_pct.map(|pct| format!("{:.2}", f64::from(pct) / 100.0));
        let latency = self.latency_us.map(|us| format!("{}ms", f64::from(us) / 1000.0));
        let limits: Vec<String> = factor.into_iter().chain(latency).collect();
        (!limits.is_empty()).then(|| limits.join(" "))
    }

    /// Whether its jobs have a limit.
    #[must_use]
    pub const fn is_limited(&self) -> bool {
        self.max_slowdown_pct.is_some() || self.latency_us.is_some()
    }
}

/// A job that is to come.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Arrival {
    /// Seconds after the first.
    pub at_s: f64,
    /// Name of its kind.
    pub kind: String,
}

/// What became of a job.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// Name of its kind.
    pub kind: String,
    /// When it was accepted.
    pub submitted_s: f64,
    /// Memory that carma was told, MiB; absent: nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub told_mib: Option<u64>,
    /// `COMPLETED`, `FAILED`, ...
    pub state: String,
    /// Why it is in that state; of a failed one with the last lines that it printed.
    pub reason: String,
    /// When it was over; absent: it was not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_s: Option<f64>,
    /// Most memory that it was seen to take on a GPU, MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_mib: Option<u64>,
    /// When its last attempt first told of a step; absent: it did not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_step_s: Option<f64>,
    /// How its limit was kept; absent: it has none, or it was never measured beside others for a whole window.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_kept: Option<LimitKeptView>,
    /// 99th percentile of its latency alone, milliseconds, of a job with a limit of it; absent: it was not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_alone_ms: Option<f64>,
    /// Its attempts.
    pub attempts: Vec<Attempt>,
    /// The reasons that carma gave, a row each time that more than numbers changed: why it waited, why it was placed where it was.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub said: Vec<Said>,
}

/// A reason that carma gave for a job's state.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Said {
    /// When it was first read.
    pub at_s: f64,
    /// The job's state then: `PENDING`, `RUNNING`, ...
    pub state: String,
    /// A word of docs/reference/exit-codes-and-reasons.md.
    pub code: String,
    /// The same in words, as it was first said.
    pub text: String,
}

impl Job {
    /// How long it waited for each reason, the longest first: seconds. That a job has its GPUs is read later than it is decided, and
    /// may never be: only time in which it had none counts.
    #[must_use]
    pub fn waited_for(&self) -> Vec<(&str, f64)> {
        let ends = self.said.iter().skip(1).map(|said| said.at_s).chain(self.ended_s);
        let mut waited: Vec<(&str, f64)> = Vec::new();
        for (said, end) in
            self.said.iter().zip(ends).filter(|(said, _)| said.state == JobState::Pending.as_str())
        {
            let took = self.in_queue_s(said.at_s, end);
            if took <= 0.0 {
                continue;
            }
            match waited.iter_mut().find(|(code, _)| *code == said.code) {
                Some((_, s)) => *s += took,
                None => waited.push((&said.code, took)),
            }
        }
        waited.sort_by(|a, b| b.1.total_cmp(&a.1));
        waited
    }

    /// How much of a span no attempt of it was under way, seconds.
    fn in_queue_s(&self, from_s: f64, to_s: f64) -> f64 {
        let until = |attempt: &Attempt| attempt.ended_s.or(self.ended_s).unwrap_or(f64::INFINITY);
        let within = |attempt: &Attempt| until(attempt).min(to_s) - attempt.decided_s.max(from_s);
        let under_way: f64 = self.attempts.iter().map(|attempt| within(attempt).max(0.0)).sum();
        (to_s - from_s - under_way).max(0.0)
    }

    /// Why its last attempt was placed where it ran, in words; `None`: it was never seen running.
    #[must_use]
    pub fn placed_for(&self) -> Option<&str> {
        let last = self.said.iter().rfind(|said| said.state == JobState::Running.as_str())?;
        Some(&last.text)
    }
}

/// An attempt to run a job.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Attempt {
    /// When it was decided.
    pub decided_s: f64,
    /// When the command ran; absent: it never did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_s: Option<f64>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_s: Option<f64>,
    /// How much of that it was suspended for, seconds.
    #[serde(default, skip_serializing_if = "is_nothing")]
    pub suspended_s: f64,
    /// Indices of its GPUs.
    pub gpus: Vec<u32>,
    /// `mps`, `time-slice` or `exclusive`.
    pub sharing: String,
    /// Hard limit on its memory, MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cap_mib: Option<u64>,
    /// How it ended, a word of docs/reference/exit-codes-and-reasons.md; empty: it had not.
    pub code: String,
    /// The same in words.
    pub text: String,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_nothing(seconds: &f64) -> bool {
    *seconds == 0.0
}

/// All GPUs at one time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// When.
    pub at_s: f64,
    /// Each GPU.
    pub gpus: Vec<GpuSample>,
}

/// One GPU at one time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct GpuSample {
    /// SM active, share since the sample before; on virtual GPUs over the daemon's window.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub smact: Option<f64>,
    /// Power, W.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_w: Option<f64>,
    /// Energy counter, J; only differences mean anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub energy_j: Option<f64>,
    /// Memory in use, MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_mib: Option<u64>,
}

/// In the reason of a job that failed, before the last lines that it printed.
pub(super) const LAST_WORDS: &str = "; its last words: ";

/// A text without its numbers.
pub(super) fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| c.is_ascii_digit() || c == '.').filter(|part| !part.is_empty())
}

/// How many jobs there are, of how many kinds.
pub(super) fn counted(jobs: usize, kinds: usize) -> String {
    let s = |n| if n == 1 { "" } else { "s" };
    format!("{jobs} job{} of {kinds} kind{}", s(jobs), s(kinds))
}

impl Play {
    /// The name of its file.
    #[must_use]
    pub fn file_name(&self) -> String {
        file_name(&self.policy, self.repeat)
    }

    /// Writes it.
    pub(super) fn write(&self, results: &Path) -> Result<PathBuf, Error> {
        let path = results.join(PLAYS).join(self.file_name());
        let failed = |e: std::io::Error| Error::new(format!("cannot write {}: {e}", path.display()));
        std::fs::create_dir_all(results.join(PLAYS)).map_err(failed)?;
        let text = serde_json::to_vec(self).map_err(|e| failed(e.into()))?;
        carma_files::replace(&path, &text).map_err(failed)?;
        Ok(path)
    }
}

/// The file of a play: the policy's own characters, which [`super::policies`] bounds, and the repeat.
pub(super) fn file_name(policy: &str, repeat: u32) -> String {
    format!("{}-{repeat}.json", policy.replace(':', "="))
}

/// Reads the plays of a folder of results; none, where there are none yet.
pub(super) fn read(results: &Path) -> Result<Vec<Play>, Error> {
    let folder = results.join(PLAYS);
    let bad = |path: &Path, why: String| Error::usage(format!("{}: {why}", path.display()));
    let entries = match std::fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(bad(&folder, e.to_string())),
    };
    let mut plays = Vec::new();
    let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    // What begins with a dot is being written, or was when its writer died.
    let is_row = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or(".");
        !name.starts_with('.') && Path::new(name).extension().is_some_and(|e| e == "json")
    };
    for path in paths.into_iter().filter(is_row) {
        let bytes = carma_files::read(&path, LARGEST).map_err(|e| bad(&path, e.why.to_string()))?;
        let play: Play = serde_json::from_slice(&bytes).map_err(|e| {
            bad(&path, format!("is no play: {e}"))
                .hint("delete the file, and the command that wrote it plays this play anew")
        })?;
        if play.version != VERSION {
            return Err(bad(&path, format!("has version {}, this carma reads {VERSION}", play.version)));
        }
        plays.push(play);
    }
    Ok(plays)
}

/// Puts plays of several folders together. Of two of the same policy and number the complete one counts; where both are,
/// the second gets the next free number.
///
/// # Errors
/// Plays of other tasks, arrivals or machines, which cannot be compared.
pub(super) fn together(folders: Vec<(PathBuf, Vec<Play>)>) -> Result<Vec<Play>, Error> {
    let mut all: BTreeMap<(String, u32), Play> = BTreeMap::new();
    let mut first: Option<(PathBuf, Play)> = None;
    // Not of the first alone, which may be of an older version.
    let mut conditions: Vec<(PathBuf, Conditions)> = Vec::new();
    for (folder, plays) in folders {
        for play in plays {
            let (at, model) = first.get_or_insert_with(|| (folder.clone(), play.clone()));
            let same = |at: &Path, difference: Difference| {
                let file = format!("in {} of {}", play.file_name(), folder.display());
                difference.said(&format!("in {}", at.display()), &file)
            };
            let differs =
                match model.machine.differ(&play.machine).or_else(|| model.trace.differ(&play.trace)) {
                    Some(difference) => Some((&*at, same(at, difference))),
                    None => {
                        let differ = |known: &Conditions| known.differ(play.conditions.as_ref()?);
                        conditions
                            .iter()
                            .find_map(|(at, known)| Some((at, differ(known)?)))
                            .map(|(at, what)| (at, format!("{} of {what}", play.file_name())))
                    }
                };
            if let Some((at, what)) = differs {
                return Err(Error::usage(format!(
                    "{} and {} cannot be compared: {what}",
                    at.display(),
                    folder.display(),
                ))
                .hint(
                    "results of one trace on one machine go into one table; name another --output for others",
                ));
            }
            conditions.extend(play.conditions.clone().map(|known| (folder.clone(), known)));
            let mut key = (play.policy.clone(), play.repeat);
            // Of another machine one may have begun in the same second.
            let is_it = |known: &Play| {
                (&known.policy, &known.began) == (&play.policy, &play.began)
                    && *known == Play { repeat: known.repeat, ..play.clone() }
            };
            if all.values().any(is_it) {
                continue;
            }
            while play.cut.is_none() && all.get(&key).is_some_and(|known| known.cut.is_none()) {
                key.1 += 1;
            }
            if play.cut.is_none() || !all.contains_key(&key) {
                let repeat = key.1;
                all.insert(key, Play { repeat, ..play });
            }
        }
    }
    let mut all: Vec<Play> = all.into_values().collect();
    all.sort_by(|a, b| a.began.cmp(&b.began));
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_waits_for_a_reason_until_the_next_one() {
        let said = |at_s, state: &str, code: &str, text: &str| Said {
            at_s,
            state: state.into(),
            code: code.into(),
            text: text.into(),
        };
        let rows = vec![
            said(1.0, "PENDING", "GpuMemory", "need 9 GiB"),
            said(3.0, "PENDING", "GpuBusy", "below the floor"),
            said(13.0, "PENDING", "GpuMemory", "need 9 GiB"),
            said(14.0, "RUNNING", "PlacedShared", "GPU 1 shared"),
        ];
        let job = Job { said: rows.clone(), ended_s: Some(40.0), ..Job::default() };
        assert_eq!(job.waited_for(), [("GpuBusy", 10.0), ("GpuMemory", 3.0)]);
        assert_eq!(job.placed_for(), Some("GPU 1 shared"));
        // It ended while it waited.
        let job = Job { said: rows[..2].to_vec(), ended_s: Some(5.5), ..Job::default() };
        assert_eq!(job.waited_for(), [("GpuBusy", 2.5), ("GpuMemory", 2.0)]);
        assert_eq!(job.placed_for(), None);
    }

    #[test]
    fn no_job_waits_while_it_has_its_gpus() {
        let attempt = |decided_s, ended_s| Attempt { decided_s, ended_s, ..Attempt::default() };
        let waits =
            |at_s, code: &str| Said { at_s, state: "PENDING".into(), code: code.into(), ..Said::default() };
        // It ran from 4 to 9 and from 12 on, and was never read running.
        let mut job = Job {
            said: vec![waits(1.0, "GpuMemory"), waits(3.0, "GpuBusy"), waits(11.5, "GpuMemory")],
            ended_s: Some(20.0),
            attempts: vec![attempt(4.0, Some(9.0)), attempt(12.0, Some(20.0))],
            ..Job::default()
        };
        assert_eq!(job.waited_for(), [("GpuBusy", 3.5), ("GpuMemory", 2.5)]);
        // Of one that ran at once, what was read too late is no wait.
        (job.said, job.attempts) = (vec![waits(4.5, "GpuMemory")], vec![attempt(4.0, None)]);
        assert_eq!(job.waited_for(), []);
    }

    fn play(policy: &str, conditions: Option<Conditions>) -> Play {
        Play {
            version: VERSION,
            policy: policy.into(),
            repeat: 1,
            began: "2026-01-01T00:00:00Z".into(),
            carma: String::new(),
            machine: Machine::default(),
            trace: Trace::default(),
            conditions,
            cut: None,
            jobs: Vec::new(),
            samples: Vec::new(),
            plan_p99_us: 0,
            launches: 0,
            kills: 0,
        }
    }

    #[test]
    fn plays_under_other_conditions_are_not_put_together() {
        let of = |change: &dyn Fn(&mut Conditions)| {
            let mut conditions = Conditions {
                sharing: "mps".into(),
                config: fingerprint(b""),
                env: [("a".to_owned(), fingerprint(b"SEED=1"))].into(),
                memory_mib: Some([("a".to_owned(), 4000)].into()),
                ..Conditions::default()
            };
            change(&mut conditions);
            Some(conditions)
        };
        let put = |second: Option<Conditions>| {
            let folder = |name: &str, conditions| (PathBuf::from(name), vec![play(name, conditions)]);
            // One of an older version first.
            together(vec![folder("old", None), folder("one", of(&|_| {})), folder("two", second)])
        };
        assert_eq!(put(of(&|_| {})).unwrap().len(), 3);
        assert_eq!(put(of(&|c| c.memory_mib = None)).unwrap().len(), 3, "it is told nothing");
        for (second, what) in [
            (of(&|c| c.sharing = "time-slice".into()), "another --sharing (mps, time-slice)"),
            (of(&|c| c.config = fingerprint(b"[jobs]")), "another configuration"),
            (of(&|c| c.kill_after = Some(0.5)), "another --kill-daemon"),
            (of(&|c| c.env.clear()), "another environment of a"),
            (of(&|c| c.memory_mib = Some([("b".to_owned(), 1)].into())), "another `memory` of a"),
        ] {
            let why = put(second).unwrap_err().message;
            assert!(why.contains("one and two") && why.contains(what), "{why}");
        }
        // What is in files must be the same in every version.
        assert_eq!(fingerprint(b"carma"), "afb58a3b098ae1df");
    }

    #[test]
    fn what_differs_is_named_with_both_values() {
        let kind = |name: &str, work: &str| Kind {
            name: name.into(),
            gpus: 1,
            command: ["carma", "virtual-task", work].map(str::to_owned).into(),
            ..Kind::default()
        };
        let arrival = |at_s, kind: &str| Arrival { at_s, kind: kind.into() };
        let model = Play {
            machine: Machine { gpus: vec!["Virtual H200".into(); 2], speed: 60, ..Machine::default() },
            trace: Trace {
                kinds: vec![kind("a", "--work=1s"), kind("b", "--work=1s")],
                arrivals: vec![arrival(0.0, "a"), arrival(1.0, "b")],
            },
            ..play("adaptive", None)
        };
        let put = |change: &dyn Fn(&mut Play)| {
            let mut second = Play { policy: "exclusive".into(), ..model.clone() };
            change(&mut second);
            let folders = vec![("one".into(), vec![model.clone()]), ("two".into(), vec![second])];
            together(folders).map(|all| all.len()).map_err(|e| e.message)
        };
        assert_eq!(put(&|play| play.machine.kernel = Some("6.1".into())), Ok(2));
        type Change<'a> = (&'a dyn Fn(&mut Play), &'a str);
        let changes: [Change<'_>; 10] = [
            (&|p| p.machine.speed = 20, "another --speed (60 in one, 20 in exclusive-1.json of two)"),
            (&|p| p.machine.cpus = 8, "another number of processors (0 in one, 8 in"),
            (&|p| drop(p.machine.gpus.pop()), "other GPUs (2 x Virtual H200 in one, 1 x Virtual H200 in"),
            (&|p| p.machine.gpu_memory_mib = 9, "another memory of a GPU (0 MiB in one, 9 MiB in"),
            (&|p| drop(p.trace.kinds.pop()), "another set of tasks, task `b` (played in one, missing in"),
            (
                &|p| p.trace.kinds[1] = kind("b", "--work=2s"),
                "another word 3 of the command of task `b` (`--work=1s` in one, `--work=2s` in",
            ),
            (
                &|p| p.trace.kinds[0].max_slowdown_pct = Some(150),
                "another limit of task `a` (none in one, 1.50 in",
            ),
            (&|p| p.trace.kinds.reverse(), "another order of the tasks (a, b in one, b, a in"),
            (&|p| drop(p.trace.arrivals.pop()), "another number of jobs (2 in one, 1 in"),
            (
                &|p| p.trace.arrivals[1].at_s = 3.0,
                "another job 2 (b at 1.000 s in one, b at 3.000 s in exclusive-1.json of two)",
            ),
        ];
        for (change, what) in changes {
            let why = put(change).unwrap_err();
            assert!(why.starts_with(&format!("one and two cannot be compared: {what}")), "{why}");
        }
    }

    #[test]
    fn only_the_same_play_is_left_out() {
        let folder = |launches| {
            let play = Play { launches, ..play("adaptive", None) };
            (PathBuf::from("results"), vec![play])
        };
        // The second was played elsewhere in the same second, and the last ones are copies of both.
        let all = together(vec![folder(1), folder(2), folder(1), folder(2)]).unwrap();
        let of: Vec<_> = all.iter().map(|play| (play.repeat, play.launches)).collect();
        assert_eq!(of, [(1, 1), (2, 2)]);
    }

    #[test]
    fn seconds_of_what_is_no_model_are_said_to_count_as_many() {
        let kinds = ["a".to_owned(), "b".to_owned()];
        assert_eq!(caveat(&[], 60), None);
        assert!(!caveat(&kinds, 1).unwrap().contains("--speed"));
        let said = caveat(&kinds, 60).unwrap();
        assert!(
            said.contains("each of their seconds counts as 60 s in run time, JCT and makespan"),
            "{said}"
        );
    }

    #[test]
    fn files_of_older_versions_are_read() {
        let text = serde_json::to_value(play("adaptive", None)).unwrap();
        assert!(text.get("conditions").is_none());
        assert_eq!(serde_json::from_value::<Play>(text).unwrap(), play("adaptive", None));
    }
}

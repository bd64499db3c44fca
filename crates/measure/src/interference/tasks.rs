//! The file of tasks.

use crate::Error;
use carma_interference::measured::TaskNote;
use carma_interference::share::Mode;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The file: what is common to all, and the tasks.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TaskFile {
    /// Index or UUID of the GPU.
    #[serde(default)]
    pub(super) gpu: Option<Which>,
    /// How the tasks share it.
    #[serde(default)]
    pub(super) sharing: Vec<Mode>,
    /// Length of a window, seconds.
    #[serde(default = "window")]
    pub(super) window_s: f64,
    /// Together, but not counted yet, seconds.
    #[serde(default = "settle")]
    pub(super) settle_s: f64,
    /// Longest that a task may take until it is ready, seconds.
    #[serde(default = "startup")]
    pub(super) startup_s: f64,
    /// Longest that a task may take to answer after a window, seconds: its longest step.
    #[serde(default = "answer")]
    pub(super) answer_s: f64,
    /// How many tasks start at once.
    #[serde(default = "eight")]
    pub(super) start_at_once: usize,
    /// Processors of its own for each member of a window; `None`: all run where the kernel puts them.
    #[serde(default)]
    pub(super) processors_each: Option<usize>,
    /// Variables for all tasks.
    #[serde(default)]
    pub(super) env: BTreeMap<String, String>,
    /// The tasks.
    #[serde(rename = "task", default)]
    pub(super) tasks: Vec<Task>,
}

/// A GPU by index or UUID.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged)]
pub(super) enum Which {
    Index(u32),
    Name(String),
}

impl std::fmt::Display for Which {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Index(index) => write!(f, "{index}"),
            Self::Name(name) => f.write_str(name),
        }
    }
}

/// How a task is kept idle and counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Hold {
    /// It takes part: `carma_bench`, or the protocol of its own accord.
    #[default]
    Pace,
    /// By SIGSTOP; counted by heartbeats or by what it prints.
    Stop,
}

/// A task.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Task {
    /// Name, unique in the file.
    pub(super) name: String,
    #[serde(default)]
    family: Option<String>,
    #[serde(default)]
    class: Option<String>,
    #[serde(default)]
    kind: Option<String>,
    #[serde(default)]
    batch: Option<u32>,
    #[serde(default)]
    streams: Option<u32>,
    #[serde(default)]
    what: Option<String>,
    /// Program and arguments.
    pub(super) command: Vec<String>,
    /// Where it starts, relative to the file's folder.
    #[serde(default)]
    pub(super) cwd: Option<PathBuf>,
    /// Its variables, on top of the file's.
    #[serde(default)]
    pub(super) env: BTreeMap<String, String>,
    /// How it is kept idle.
    #[serde(default)]
    pub(super) hold: Hold,
    /// The most processes of it: with two it is paired with itself.
    #[serde(default = "one")]
    pub(super) copies: usize,
}

const fn one() -> usize {
    1
}
const fn window() -> f64 {
    1.5
}
const fn settle() -> f64 {
    0.3
}
const fn startup() -> f64 {
    180.0
}
const fn answer() -> f64 {
    20.0
}
const fn eight() -> usize {
    8
}

impl Task {
    /// What the results say of it.
    pub(super) fn note(&self) -> TaskNote {
        TaskNote {
            name: self.name.clone(),
            family: self.family.clone(),
            class: self.class.clone(),
            kind: self.kind.clone(),
            batch: self.batch,
            streams: self.streams,
            what: self.what.clone(),
            command: self.command.clone(),
        }
    }
}

/// The most processes of a task.
const MOST_COPIES: usize = 64;

/// The largest file of tasks or groups that is read, bytes: that of a campaign of 24 tasks has five thousand.
const LARGEST: u64 = 1 << 20;

impl TaskFile {
    /// Reads a file and keeps those named in `only`, all if it is empty. Folders become absolute.
    ///
    /// # Errors
    /// What is wrong in the file, or a name that is not there.
    pub(super) fn read(path: &Path, only: &[String]) -> Result<Self, Error> {
        let bad = |why: String| Error::usage(format!("{}: {why}", path.display()));
        let text = carma_files::read_text(path, LARGEST).map_err(|e| bad(e.why.to_string()))?;
        let mut file: Self = toml::from_str(&text).map_err(|e| {
            bad(carma_files::mistake(&text, e.span().map_or(0, |s| s.start), e.message()))
                .hint("docs/measuring-interference.md shows such a file")
        })?;
        file.check().map_err(bad)?;
        if let Some(unknown) = only.iter().find(|name| file.tasks.iter().all(|task| task.name != **name)) {
            let known: Vec<&str> = file.tasks.iter().map(|task| task.name.as_str()).collect();
            return Err(bad(format!("no task is named `{unknown}`; there are: {}", known.join(", "))));
        }
        file.tasks.retain(|task| only.is_empty() || only.contains(&task.name));
        let folder = std::path::absolute(path).map_err(|e| bad(e.to_string()))?;
        let folder = folder.parent().unwrap_or(Path::new("/"));
        for task in &mut file.tasks {
            task.cwd = Some(task.cwd.as_ref().map_or_else(|| folder.to_owned(), |cwd| folder.join(cwd)));
        }
        Ok(file)
    }

    fn check(&self) -> Result<(), String> {
        if self.tasks.is_empty() {
            return Err("it has no tasks; each begins with [[task]]".into());
        }
        let mut names = BTreeSet::new();
        for task in &self.tasks {
            let name = &task.name;
            // Names are joined by commas in files of groups, and name files.
            if name.is_empty() || name.contains(|c: char| c == ',' || c == '/' || c.is_control()) {
                return Err(format!("`{name}` is no name: no comma, slash or control character, please"));
            }
            if !names.insert(name) {
                return Err(format!("two tasks are named `{name}`; names must differ"));
            }
            if task.command.first().is_none_or(String::is_empty) {
                return Err(format!("task `{name}` has no command"));
            }
            if task.streams == Some(0) {
                return Err(format!(
                    "task `{name}` has 0 streams, expected 1 or more; without the key it has 1"
                ));
            }
            if !(1..=MOST_COPIES).contains(&task.copies) {
                return Err(format!("task `{name}` has {} copies, expected 1 to {MOST_COPIES}", task.copies));
            }
        }
        for (name, seconds, least) in [
            ("window_s", self.window_s, 0.05),
            ("settle_s", self.settle_s, 0.0),
            ("startup_s", self.startup_s, 1.0),
            ("answer_s", self.answer_s, 1.0),
        ] {
            if !(least..=86_400.0).contains(&seconds) {
                return Err(format!("{name} is {seconds}, expected {least} to 86400"));
            }
        }
        if self.start_at_once == 0 {
            return Err("start_at_once is 0, expected 1 or more".into());
        }
        Ok(())
    }
}

/// Groups from a file: one a line, names separated by commas; `#` begins a remark.
pub(super) fn read_groups(path: &Path, tasks: &[Task]) -> Result<Vec<Vec<usize>>, Error> {
    let bad = |why: String| Error::usage(format!("{}: {why}", path.display()));
    let text = carma_files::read_text(path, LARGEST).map_err(|e| bad(e.why.to_string()))?;
    let mut groups = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let bad = |why: String| bad(format!("line {}: {why}", number + 1));
        let mut group = Vec::new();
        for name in line.split(',').map(str::trim) {
            let at = tasks.iter().position(|task| task.name == name);
            group.push(at.ok_or_else(|| bad(format!("no task is named `{name}`")))?);
        }
        if group.len() < 2 {
            return Err(bad(format!(
                "`{line}` is one task; each is measured alone anyway, and a group needs two"
            )));
        }
        for &at in &group {
            let times = group.iter().filter(|&&other| other == at).count();
            if times > tasks[at].copies {
                let task = &tasks[at];
                return Err(bad(format!(
                    "`{}` occurs {times} times and has {} copies",
                    task.name, task.copies
                )));
            }
        }
        groups.push(group);
    }
    Ok(groups)
}

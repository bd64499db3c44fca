//! The file of tasks, and which of them can run here.

use super::rows::Kind;
use crate::Error;
use carma_api::parse;
use serde::de::value::SeqAccessDeserializer;
use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Formatter;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Stands in a command for the number of steps.
const STEPS: &str = "{steps}";
/// Stands in a command for how long it works alone, seconds.
const WORK: &str = "{work_s}";
/// Most bytes that are read of a file of tasks.
const LARGEST: u64 = 4 << 20;
/// The most GPUs that a task asks for.
const MOST_GPUS: u32 = 64;
/// The most steps and the highest weight of a task.
const MOST: u64 = 1_000_000_000;

/// The file: what is common to all, and the tasks.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TaskFile {
    /// Variables for all tasks.
    #[serde(default)]
    pub(super) env: BTreeMap<String, String>,
    /// Run once before the first play on real GPUs, e.g. to read from disk what the tasks import.
    #[serde(default, deserialize_with = "words")]
    pub(super) warm_up: Vec<String>,
    /// About how long a task takes to its first step, seconds: nothing but the forecast of a budget goes by it.
    #[serde(default)]
    start_s: f64,
    /// The tasks.
    #[serde(rename = "task", default)]
    pub(super) tasks: Vec<Task>,
    /// As it was named.
    #[serde(skip)]
    pub(super) path: PathBuf,
    /// Where the file lies.
    #[serde(skip)]
    pub(super) folder: PathBuf,
}

/// A kind of task.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Task {
    /// Name, unique in the file.
    pub(super) name: String,
    #[serde(default)]
    what: Option<String>,
    /// Light, medium, heavy, or what its owner calls it.
    #[serde(default)]
    class: Option<String>,
    /// Program and arguments; `{steps}` stands for the number of steps.
    #[serde(deserialize_with = "words")]
    command: Vec<String>,
    /// Where it starts, relative to the file's folder.
    #[serde(default)]
    cwd: Option<PathBuf>,
    /// Its variables, on top of the file's.
    #[serde(default)]
    pub(super) env: BTreeMap<String, String>,
    /// GPUs that it asks for.
    #[serde(default = "one")]
    pub(super) gpus: u32,
    /// GPU memory that it needs on each, by hand: told to policies that have to know.
    #[serde(default)]
    memory: Option<String>,
    /// How much neighbours may slow it down: 1.3 is 1.3 times its time alone.
    #[serde(default)]
    max_slowdown: Option<f64>,
    /// What 99 of 100 of its requests must not take longer than beside others: `20ms`.
    #[serde(default)]
    latency: Option<String>,
    /// What stands for `{steps}` in its command, at `--work 1`.
    #[serde(default)]
    steps: Option<u64>,
    /// About how long it works alone, seconds, at `--work 1`; `{work_s}` in its command stands for it.
    #[serde(default)]
    solo_s: Option<f64>,
    /// How often it occurs, against the others.
    #[serde(default = "one")]
    pub(super) weight: u32,
    /// Modules that its Python must have; without them it is left out.
    #[serde(default)]
    pub(super) modules: Vec<String>,
    /// On virtual GPUs: options of `carma virtual-task`, which is run in its place.
    #[serde(default, rename = "virtual", deserialize_with = "words")]
    model: Vec<String>,
}

/// A list of words; of a line it says how it would be written.
fn words<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    struct Words;
    impl<'de> Visitor<'de> for Words {
        type Value = Vec<String>;

        fn expecting(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
            f.write_str("a list of words")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Self::Value, A::Error> {
            Vec::deserialize(SeqAccessDeserializer::new(seq))
        }

        fn visit_str<E: serde::de::Error>(self, line: &str) -> Result<Self::Value, E> {
            let words: Vec<&str> = line.split_whitespace().collect();
            Err(E::custom(format!("no shell reads this line; write a list of words: {words:?}")))
        }
    }
    from.deserialize_any(Words)
}

const fn one() -> u32 {
    1
}

/// A task as it is played.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Played {
    pub(super) kind: Kind,
    /// Whether carma's own program stands in for it.
    pub(super) is_modelled: bool,
    /// Absolute.
    pub(super) cwd: PathBuf,
    pub(super) env: BTreeMap<String, String>,
    /// By hand.
    pub(super) memory_mib: Option<u64>,
    /// About how long it takes alone, start-up included.
    pub(super) solo_s: Option<f64>,
}

impl Played {
    /// What of it can be known to fail before it is played: its folder, its program, the options of what stands in for it.
    pub(super) fn check(&self, check_virtual: fn(&[String]) -> Result<(), String>) -> Result<(), String> {
        let folder = std::fs::metadata(&self.cwd);
        let folder = folder.map_err(|e| format!("it is to start in {}: {e}", self.cwd.display()))?;
        if !folder.is_dir() {
            return Err(format!("it is to start in {}, which is no folder", self.cwd.display()));
        }
        if self.is_modelled {
            let options = self.kind.command.get(2..).unwrap_or_default();
            return check_virtual(options).map_err(|why| format!("virtual: {why}"));
        }
        let Some(program) = self.kind.command.first() else { return Ok(()) };
        let runs = |file: &PathBuf| {
            std::fs::metadata(file).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
        };
        if program.contains('/') {
            let file = self.cwd.join(program);
            return match std::fs::metadata(&file) {
                Ok(_) if runs(&file) => Ok(()),
                Ok(_) => Err(format!("its command {program} is no program that can be executed")),
                Err(why) => Err(format!("its command {program}: {why}")),
            };
        }
        // As the kernel is asked for it: by the task's own variables.
        let path = self.env.get("PATH").map_or_else(|| std::env::var_os("PATH"), |path| Some(path.into()));
        let Some(path) = path else { return Ok(()) };
        if std::env::split_paths(&path).map(|folder| self.cwd.join(folder).join(program)).any(|at| runs(&at))
        {
            return Ok(());
        }
        Err(format!("its command {program} is no program on the PATH"))
    }
}

impl TaskFile {
    /// Reads it.
    ///
    /// # Errors
    /// What is wrong, and in which file.
    pub(super) fn read(path: &Path) -> Result<Self, Error> {
        let bad = |why: String| Error::usage(format!("{}: {why}", path.display()));
        let text = carma_files::read_text(path, LARGEST).map_err(|e| bad(e.why.to_string()))?;
        let mut file: Self = toml::from_str(&text).map_err(|e| {
            bad(carma_files::mistake(&text, e.span().map_or(0, |s| s.start), e.message()))
                .hint("docs/bench-trace.md shows such a file")
        })?;
        file.check().map_err(bad)?;
        file.path = path.to_owned();
        let absolute = std::path::absolute(path).map_err(|e| bad(e.to_string()))?;
        file.folder = absolute.parent().unwrap_or(Path::new("/")).to_owned();
        Ok(file)
    }

    /// What is wrong with it, with its path.
    pub(super) fn bad(&self, why: impl std::fmt::Display) -> Error {
        Error::usage(format!("{}: {why}", self.path.display()))
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.tasks.iter().any(|task| task.name == name)
    }

    /// Takes a task of another file, to run as it does there.
    pub(super) fn borrow(&mut self, from: &Self, name: &str) {
        for task in from.tasks.iter().filter(|task| task.name == name) {
            let mut env = from.env.clone();
            env.extend(task.env.clone());
            let cwd = task.cwd.as_ref().map_or_else(|| from.folder.clone(), |cwd| from.folder.join(cwd));
            self.tasks.push(Task { env, cwd: Some(cwd), ..task.clone() });
        }
    }

    /// Leaves of its tasks only those in `only`, if any are named, and those in `also`.
    ///
    /// # Errors
    /// A name of no task.
    pub(super) fn choose(&mut self, only: &[String], also: &[String]) -> Result<(), Error> {
        if let Some(name) = only.iter().chain(also).find(|name| !self.has(name)) {
            let known: Vec<&str> = self.tasks.iter().map(|task| task.name.as_str()).collect();
            return Err(self.bad(format!("no task is named `{name}`; there are: {}", known.join(", "))));
        }
        let is_meant = |task: &Task| only.is_empty() || only.contains(&task.name);
        for task in self.tasks.iter_mut().filter(|task| !is_meant(task)) {
            task.weight = 0;
        }
        self.tasks.retain(|task| is_meant(task) || also.contains(&task.name));
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        if self.tasks.is_empty() {
            return Err("it has no tasks; each begins with [[task]]".into());
        }
        if !(0.0..=1e6).contains(&self.start_s) {
            return Err(format!("start_s is {}, expected a number of seconds", self.start_s));
        }
        let mut names = BTreeSet::new();
        for task in &self.tasks {
            let name = &task.name;
            if name.is_empty() || name.len() > 100 || name.contains(|c: char| c.is_control() || c == ',') {
                return Err(format!(
                    "`{}` is no name: 1 to 100 bytes without commas and control characters",
                    name.escape_debug()
                ));
            }
            if !names.insert(name) {
                return Err(format!("two tasks are named `{name}`; names must differ"));
            }
            task.check().map_err(|why| format!("task `{name}`: {why}"))?;
        }
        for (key, value) in self.tasks.iter().flat_map(|task| &task.env).chain(&self.env) {
            if key.is_empty() || key.contains(['=', '\0']) || value.contains('\0') {
                return Err(format!("`{}` is no variable of an environment", key.escape_debug()));
            }
        }
        Ok(())
    }

    /// Gives tasks a limit, as `--limit` says it: a factor of slowdown (`1.3`), or a latency (`20ms`).
    ///
    /// # Errors
    /// A task that is not there, a limit that is none.
    pub(super) fn limit(&mut self, limits: &[(String, String)]) -> Result<(), Error> {
        for (name, limit) in limits {
            let bad = |why: String| Error::usage(format!("--limit {name}={limit}: {why}"));
            let task = self.tasks.iter_mut().find(|task| task.name == *name);
            let task = task.ok_or_else(|| bad("there is no such task".into()))?;
            match limit.parse::<f64>() {
                Ok(factor) => task.max_slowdown = Some(factor),
                Err(_) => task.latency = Some(limit.clone()),
            }
            task.check().map_err(bad)?;
        }
        Ok(())
    }

    /// What the tasks are here: left out is what asks for more GPUs or memory than there is, and, on real GPUs, what lacks a module.
    pub(super) fn played(&self, here: &Here, say: crate::Say<'_>) -> Result<Vec<Played>, Error> {
        // By all that decides which Python is asked, and where it looks.
        let mut lacking = BTreeMap::new();
        let mut tasks = Vec::new();
        for task in &self.tasks {
            if task.gpus > here.gpus {
                let there = if here.gpus == 1 { "is one".to_owned() } else { format!("are {}", here.gpus) };
                say(&format!("{} is left out: it asks for {} GPUs, there {there}", task.name, task.gpus));
                continue;
            }
            let played = task.played(self, here)?;
            if let Some(mib) = played.memory_mib.filter(|mib| here.memory_mib.is_some_and(|most| *mib > most))
            {
                let most = here.memory_mib.unwrap_or_default();
                say(&format!(
                    "{} is left out: its memory is {mib} MiB by the file, and the GPUs have {most}",
                    task.name
                ));
                continue;
            }
            let python = python_of(&played.kind.command).to_owned();
            let modules = if task.is_modelled(here) { &[][..] } else { &task.modules };
            let missing = modules.iter().find(|module| {
                let known = (python.clone(), module.as_str(), played.cwd.clone(), played.env.clone());
                *lacking.entry(known).or_insert_with(|| !has_module(&python, module, &played))
            });
            match missing {
                Some(module) => say(&format!("{} is left out: {python} has no module {module}", task.name)),
                None => tasks.push(played),
            }
        }
        if tasks.is_empty() {
            return Err(Error::usage("no task of the file can run here; see above why"));
        }
        Ok(tasks)
    }
}

/// The Python that has to have a task's modules: the one that its command names, else, behind a shell or a launcher, the one that the PATH finds.
fn python_of(command: &[String]) -> &str {
    let first = command.first().map_or("", String::as_str);
    let is_python =
        Path::new(first).file_name().is_some_and(|name| name.to_string_lossy().starts_with("python"));
    if is_python { first } else { "python3" }
}

/// Where tasks are played.
pub(super) struct Here {
    pub(super) gpus: u32,
    /// Memory of the largest, if that is known.
    pub(super) memory_mib: Option<u64>,
    /// Whether the GPUs are a model.
    pub(super) is_virtual: bool,
    /// Steps are multiplied with this.
    pub(super) work: f64,
}

impl Task {
    fn check(&self) -> Result<(), String> {
        let words = || self.command.iter().chain(&self.model);
        if self.command.first().is_none_or(String::is_empty) {
            return Err("it has no command".into());
        }
        if words().any(|word| word.contains('\0')) {
            return Err("a word of its command has a NUL byte in it".into());
        }
        if !(1..=MOST_GPUS).contains(&self.gpus) {
            return Err(format!("gpus is {}, expected 1 to {MOST_GPUS}", self.gpus));
        }
        if u64::from(self.weight) > MOST {
            return Err(format!("weight is {}, expected 0 to {MOST}", self.weight));
        }
        let asks = words().any(|word| word.contains(STEPS));
        match self.steps {
            None if asks => return Err(format!("its command has {STEPS}, and it has no steps")),
            Some(_) if !asks => return Err(format!("it has steps, and its command has no {STEPS}")),
            Some(steps) if !(1..=MOST).contains(&steps) => {
                return Err(format!("steps is {steps}, expected 1 to {MOST}"));
            }
            _ => {}
        }
        if self.solo_s.is_none() && words().any(|word| word.contains(WORK)) {
            return Err(format!("its command has {WORK}, and it has no solo_s"));
        }
        if self.solo_s.is_some_and(|s| !(s > 0.0 && s <= 1e6)) {
            return Err("solo_s is no number of seconds above 0".into());
        }
        self.max_slowdown_pct().and(self.latency_us()).and(self.memory_mib()).map(drop)
    }

    fn max_slowdown_pct(&self) -> Result<Option<u32>, String> {
        let pct = |factor: f64| parse::slowdown(&factor.to_string());
        self.max_slowdown.map(pct).transpose().map_err(|why| format!("max_slowdown: {why}"))
    }

    fn latency_us(&self) -> Result<Option<u32>, String> {
        self.latency.as_deref().map(parse::latency).transpose().map_err(|why| format!("latency: {why}"))
    }

    fn memory_mib(&self) -> Result<Option<u64>, String> {
        self.memory.as_deref().map(|text| parse::memory(text).map(|size| size.0)).transpose()
    }

    fn is_modelled(&self, here: &Here) -> bool {
        here.is_virtual && !self.model.is_empty()
    }

    fn played(&self, file: &TaskFile, here: &Here) -> Result<Played, Error> {
        let steps = self.steps.map(|steps| ((steps as f64 * here.work).round().max(1.0) as u64).to_string());
        let words = if self.is_modelled(here) {
            // Not its path, so that results of two builds can be compared.
            ["carma", "virtual-task"].map(str::to_owned).into_iter().chain(self.model.clone()).collect()
        } else {
            self.command.clone()
        };
        let work_s = self.solo_s.map(|solo| solo * here.work);
        let fill = |word: &String| {
            let work = work_s.map_or_else(|| WORK.to_owned(), |s| s.to_string());
            word.replace(STEPS, steps.as_deref().unwrap_or(STEPS)).replace(WORK, &work)
        };
        let command = words.iter().map(fill).collect();
        let mut env = file.env.clone();
        env.extend(self.env.clone());
        Ok(Played {
            kind: Kind {
                name: self.name.clone(),
                what: self.what.clone(),
                class: self.class.clone(),
                gpus: self.gpus,
                command,
                max_slowdown_pct: self.max_slowdown_pct().map_err(Error::usage)?,
                latency_us: self.latency_us().map_err(Error::usage)?,
            },
            is_modelled: self.is_modelled(here),
            cwd: self.cwd.as_ref().map_or_else(|| file.folder.clone(), |cwd| file.folder.join(cwd)),
            env,
            memory_mib: self.memory_mib().map_err(Error::usage)?,
            solo_s: work_s.map(|work| work + file.start_s),
        })
    }
}

/// Whether an interpreter of Python finds a module. What is no interpreter has none.
fn has_module(python: &str, module: &str, played: &Played) -> bool {
    let code = "import importlib.util as u, sys; sys.exit(u.find_spec(sys.argv[1]) is None)";
    let mut command = Command::new(python);
    command.args(["-c", code, module]).current_dir(&played.cwd).envs(&played.env).stdin(Stdio::null());
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    fn read(text: &str) -> Result<TaskFile, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tasks.toml");
        std::fs::write(&path, text).unwrap();
        TaskFile::read(&path).map_err(|e| e.message)
    }

    fn here(gpus: u32, is_virtual: bool, work: f64) -> Here {
        Here { gpus, memory_mib: Some(40_960), is_virtual, work }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let task = |more: &str| format!("[[task]]\nname = 'a'\ncommand = ['true']\n{more}");
        for (text, part) in [
            (String::new(), "no tasks"),
            ("[[task]]\nname = 'a'".into(), "missing field `command`"),
            ("[[task]]\nname = ''\ncommand = ['x']".into(), "is no name"),
            ("[[task]]\nname = \"a\\u0007\"\ncommand = ['x']".into(), "is no name"),
            ("[[task]]\nname = 'a'\ncommand = []".into(), "task `a`: it has no command"),
            ("[[task]]\nname = 'a'\ncommand = ['x\\u0000']".replace('\'', "\""), "NUL"),
            (
                "[[task]]\nname = 'a'\ncommand = 'python3 train.py'".into(),
                "line 3, `command = 'python3 train.py'`: no shell reads this line; write a list of words: [\"python3\", \"train.py\"]",
            ),
            ("[[task]]\nname = 'a'\ncommand = 7".into(), "expected a list of words"),
            (task("gpus = 0"), "gpus is 0"),
            (task("gpus = 65"), "gpus is 65"),
            (task("gpus = -1"), "gpus"),
            (task("steps = 5"), "no {steps}"),
            (task("virtual = ['{steps}']"), "it has no steps"),
            (task("virtual = ['{steps}']\nsteps = 0"), "steps is 0"),
            (task("virtual = ['--work={work_s}s']"), "no solo_s"),
            (format!("start_s = -1\n{}", task("")), "start_s is -1"),
            (task("memory = '20'"), "no unit"),
            (task("max_slowdown = 0.5"), "task `a`: max_slowdown: '0.5' is not a slowdown"),
            (task("latency = '5'"), "task `a`: latency: '5' is not a latency"),
            (task("solo_s = 0"), "solo_s"),
            (task("solo_s = nan"), "solo_s"),
            (task("colour = 'red'"), "unknown field `colour`"),
            (task("env = { 'A=B' = 'c' }"), "no variable"),
            (task("[[task]]\nname = 'a'\ncommand = ['true']"), "two tasks are named `a`"),
        ] {
            let why = read(&text).expect_err(&text);
            assert!(why.contains(part) && why.contains("tasks.toml"), "{text}: {why}");
        }
    }

    #[test]
    fn work_is_multiplied_and_models_stand_in() {
        let text = "[env]\nA = '1'\n[[task]]\nname = 'a'\ncommand = ['t', '--steps={steps}']\nsteps = 9\ncwd = 'x'\n\
                    virtual = ['--work', '3s']\nmemory = '1.5G'\nenv = { A = '2' }\n";
        let file = read(text).unwrap();
        let real = file.played(&here(1, false, 0.5), &|_| {}).unwrap();
        assert_eq!(real[0].kind.command, ["t", "--steps=5"]);
        assert_eq!((real[0].memory_mib, real[0].env["A"].as_str()), (Some(1536), "2"));
        assert!(real[0].cwd.is_absolute() && real[0].cwd.ends_with("x"));
        let model = file.played(&here(1, true, 0.001), &|_| {}).unwrap();
        assert_eq!(model[0].kind.command, ["carma", "virtual-task", "--work", "3s"]);
    }

    #[test]
    fn what_cannot_begin_is_known_before_it_is_played() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name).display().to_string();
        std::fs::write(at("text"), "").unwrap();
        let check = |more: &str, is_virtual| {
            let file = read(&format!("[[task]]\nname = 'a'\n{more}")).unwrap();
            let mut played = file.played(&here(1, is_virtual, 1.0), &|_| {}).unwrap().remove(0);
            if played.cwd == file.folder {
                played.cwd = dir.path().to_owned();
            }
            played.check(|options| match options {
                [one] if one == "--work=2s" => Ok(()),
                other => Err(format!("what is {other:?}")),
            })
        };
        for (more, is_virtual, part) in [
            ("command = ['sh']".to_owned(), false, ""),
            ("command = ['/bin/sh']".to_owned(), false, ""),
            ("command = ['/no/such/prog']".to_owned(), false, "its command /no/such/prog: No such file"),
            ("command = ['./text']".to_owned(), false, "./text is no program that can be executed"),
            ("command = ['/tmp']".to_owned(), false, "no program that can"),
            ("command = ['no_such_prog']".to_owned(), true, "no_such_prog is no program on the PATH"),
            ("command = ['sh']\nenv = { PATH = '/no' }".to_owned(), false, "on the PATH"),
            ("command = ['sh']\ncwd = '/no/such'".to_owned(), false, "it is to start in /no/such: No such"),
            (format!("command = ['sh']\ncwd = '{}'", at("text")), false, "which is no folder"),
            ("command = ['/no/such']\nvirtual = ['--work={work_s}s']\nsolo_s = 2".to_owned(), true, ""),
            ("command = ['sh']\nvirtual = ['--x']".to_owned(), true, "virtual: what is [\"--x\"]"),
            ("command = ['sh']\nvirtual = ['--x']".to_owned(), false, ""),
        ] {
            match check(&more, is_virtual) {
                Ok(()) => assert_eq!(part, "", "{more}"),
                Err(why) => assert!(!part.is_empty() && why.contains(part), "{more}: {why}"),
            }
        }
    }

    #[test]
    fn limits_are_of_the_file_or_of_the_call() {
        let text = "[[task]]\nname = 'a'\ncommand = ['t']\nmax_slowdown = 1.5\n[[task]]\nname = 'b'\ncommand = ['t']\n";
        let mut file = read(text).unwrap();
        let limit = |name: &str, limit: &str| (name.to_owned(), limit.to_owned());
        file.limit(&[limit("a", "20ms"), limit("b", "1.25")]).unwrap();
        let played = file.played(&here(1, false, 1.0), &|_| {}).unwrap();
        let limits = |at: usize| (played[at].kind.max_slowdown_pct, played[at].kind.latency_us);
        assert_eq!((limits(0), limits(1)), ((Some(150), Some(20_000)), (Some(125), None)));
        for (name, said, part) in [
            ("c", "2", "--limit c=2: there is no such task"),
            ("b", "0.5", "is not a slowdown"),
            ("b", "5", ""),
            ("b", "fast", "is not a latency"),
        ] {
            match file.limit(&[limit(name, said)]) {
                Ok(()) => assert_eq!(part, ""),
                Err(e) => assert!(!part.is_empty() && e.message.contains(part), "{}", e.message),
            }
        }
    }

    #[test]
    fn what_cannot_run_here_is_left_out_and_named() {
        let text = "[[task]]\nname = 'two'\ncommand = ['true']\ngpus = 2\n\
                    [[task]]\nname = 'lacks'\ncommand = ['/no/python']\nmodules = ['torch']\n\
                    virtual = ['--work=1s']\n[[task]]\nname = 'runs'\ncommand = ['true']\n\
                    [[task]]\nname = 'shell'\ncommand = ['bash', '-c', 'python3 t.py']\nmodules = ['no_such_module']\n";
        let file = read(text).unwrap();
        let said = RefCell::new(Vec::new());
        let names = |is_virtual| -> Vec<String> {
            let say = |line: &str| said.borrow_mut().push(line.to_owned());
            let played = file.played(&here(1, is_virtual, 1.0), &say).unwrap();
            played.into_iter().map(|task| task.kind.name).collect()
        };
        assert_eq!(names(false), ["runs"]);
        assert_eq!(names(true), ["lacks", "runs"]);
        let said = said.into_inner();
        assert_eq!(said[2], "shell is left out: python3 has no module no_such_module");
        assert_eq!(said[0], "two is left out: it asks for 2 GPUs, there is one");
        assert_eq!(said[1], "lacks is left out: /no/python has no module torch");
        let alone = read("[[task]]\nname = 'two'\ncommand = ['true']\ngpus = 2").unwrap();
        assert!(alone.played(&here(1, true, 1.0), &|_| {}).is_err());
    }

    #[test]
    fn modules_are_looked_for_by_each_tasks_own_environment_and_folder() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name).display().to_string();
        for (venv, exit) in [("has", 0), ("lacks", 1)] {
            std::fs::create_dir(at(venv)).unwrap();
            let python = dir.path().join(venv).join("python");
            std::fs::write(&python, format!("#!/bin/sh\nexit {exit}\n")).unwrap();
            std::fs::set_permissions(&python, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        let by_path = |venv: &str| {
            format!("command = ['python', 't.py']\ncwd = '/'\nenv = {{ PATH = '{}' }}\n", at(venv))
        };
        let by_folder = |venv: &str| format!("command = ['./python', 't.py']\ncwd = '{}'\n", at(venv));
        let ways: [&dyn Fn(&str) -> String; 2] = [&by_path, &by_folder];
        for how in ways {
            for order in [["has", "lacks"], ["lacks", "has"]] {
                let task =
                    |venv: &str| format!("[[task]]\nname = '{venv}'\nmodules = ['torch']\n{}", how(venv));
                let file = read(&order.map(task).concat()).unwrap();
                let played = file.played(&here(1, false, 1.0), &|_| {}).unwrap();
                let names: Vec<&str> = played.iter().map(|task| task.kind.name.as_str()).collect();
                assert_eq!(names, ["has"], "{order:?}");
            }
        }
    }
}

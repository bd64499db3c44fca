//! What a command starts: behind a shell, variables and programs that only start another.

use super::{Command, is_module, is_script, launcher, stem};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

type Env = BTreeMap<String, String>;

/// Bytes of a line's surroundings that are copied at most: what is shared while one of its commands has it is copied where another changes
/// it, and in 128 KiB nine thousand may. A thousand commands that each set a variable of a usual environment copy half of that.
const MOST_COPIED: usize = 64 << 20;
/// What an entry takes beside its text.
const ENTRY: usize = 100;

/// What was copied of the surroundings of one line. Once that is too much they are no longer followed: what its commands have from then on
/// only its shell can tell.
#[derive(Debug, Clone, Default)]
struct Copied(Rc<Cell<usize>>);

impl Copied {
    /// Whether so much more may be copied.
    fn may(&self, bytes: usize) -> bool {
        self.0.set(self.0.get().saturating_add(bytes));
        !self.is_too_much()
    }

    fn is_too_much(&self) -> bool {
        self.0.get() > MOST_COPIED
    }

    /// A map, to be changed; a copy where others have it, too. `None`: too much was copied.
    fn own<'a, V: Clone>(
        &self,
        shared: &'a mut Arc<BTreeMap<String, V>>,
        text: impl Fn(&V) -> usize,
    ) -> Option<&'a mut BTreeMap<String, V>> {
        if Arc::strong_count(shared) > 1 && !self.is_too_much() {
            self.may(shared.iter().map(|(name, value)| name.len() + text(value) + ENTRY).sum());
        }
        (!self.is_too_much()).then(|| Arc::make_mut(shared))
    }
}

/// What surrounds a program: what those before it in the command leave it. Each command of a line begins with a copy, so that all
/// that may be large is shared until one changes it.
#[derive(Debug, Clone, Default)]
pub(super) struct Around {
    copied: Copied,
    env: Arc<Env>,
    /// Directories that are changed to, one below the other.
    folder: PathBuf,
    /// It changes to one that only its shell can tell.
    lost: bool,
    packages: Option<Packages>,
    shell: Shell,
}

/// What a shell knows, so far as its words tell it.
#[derive(Debug, Clone, Default)]
pub struct Shell {
    /// Those that its words set.
    variables: Arc<BTreeMap<String, Variable>>,
    /// How often all of them were forgotten, with those of its environment: it may have set any.
    forgotten: usize,
    /// What its script is given.
    given: Arc<Vec<String>>,
    /// That has changed since.
    is_shifted: bool,
    /// Folder of its script.
    script: Option<PathBuf>,
    /// Where it starts.
    start: PathBuf,
}

/// A variable of a shell.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Variable {
    /// `None`: it is given several, or one that only the shell can tell.
    value: Option<String>,
    /// How often all had been forgotten when it was set.
    since: usize,
}

impl Shell {
    /// One that starts here, with a script of this folder that is given these words.
    #[must_use]
    pub fn new(start: PathBuf, script: Option<PathBuf>, given: Vec<String>) -> Self {
        Self { start, script, given: Arc::new(given), ..Self::default() }
    }
}

/// One command of several.
#[derive(Debug, Clone)]
pub struct Each {
    /// Taken apart.
    pub command: Command,
    /// All its words, with what comes before its program.
    pub words: Vec<String>,
}

impl Each {
    /// Each command of a command: of a line for a shell all that it starts, where each starts it.
    #[must_use]
    pub fn of(command: &[String], env: &Env, shell: Shell) -> Vec<Self> {
        let mut all = Vec::new();
        each(command, &mut Around::of(env, shell), 0, &mut all);
        all
    }

    /// Each command of a script for a shell.
    #[must_use]
    pub fn of_script(text: &str, env: &Env, shell: Shell) -> Vec<Self> {
        let mut text = text.to_owned();
        if let Some(folder) = shell.script.as_ref().and_then(|folder| folder.to_str()) {
            for own in OWN_FOLDER {
                text = text.replace(own, folder);
            }
            for around in [format!("$(cd \"{folder}\" && pwd)"), format!("$(cd {folder} && pwd)")] {
                text = text.replace(&around, folder);
            }
        }
        let mut all = Vec::new();
        each_of_line(&text.replace("$(pwd)", "$PWD"), &mut Around::of(env, shell), 0, &mut all);
        all
    }
}

/// How a script calls the folder that it lies in.
const OWN_FOLDER: &[&str] = &[
    "$(dirname \"$0\")",
    "$(dirname $0)",
    "$(dirname -- \"$0\")",
    "$(dirname \"${0}\")",
    "$(dirname \"${BASH_SOURCE[0]}\")",
    "$(dirname -- \"${BASH_SOURCE[0]}\")",
    "$(dirname ${BASH_SOURCE[0]})",
    "$(dirname \"$BASH_SOURCE\")",
    "$(dirname \"${BASH_SOURCE}\")",
    "`dirname $0`",
    "`dirname \"$0\"`",
    "${0%/*}",
    "${BASH_SOURCE[0]%/*}",
];

fn each(command: &[String], around: &mut Around, depth: usize, all: &mut Vec<Each>) {
    let mut own = around.clone();
    let words = unwrapped(command, &mut own);
    if let Some(at) = line_of(words) {
        // Its shell is another: what it changes stays there.
        own.shell.given = Arc::new(words.get(at + 2..).unwrap_or_default().to_vec());
        own.shell.script = None;
        return each_of_line(&words[at].replace("$(pwd)", "$PWD"), &mut own, depth, all);
    }
    all.push(Each { command: program_in(words, own), words: flat(command) });
}

fn each_of_line(line: &str, around: &mut Around, depth: usize, all: &mut Vec<Each>) {
    let mut subshells = Subshells::default();
    for part in parts(line) {
        match part.as_slice() {
            part if is_bracket(part) => subshells.pass(part, around),
            _ => {
                let part: Vec<String> = part.iter().flat_map(|word| around.expanded(word)).collect();
                if only_sets(&part) {
                    part.iter().for_each(|word| around.assign(word));
                    continue;
                }
                let mut own = around.clone();
                match unwrapped(&part, &mut own) {
                    [] => {
                        drop(own);
                        part.iter().for_each(|word| around.assign(word));
                    }
                    [export, variables @ ..]
                        if matches!(export.as_str(), "export" | "declare" | "readonly" | "local") =>
                    {
                        drop(own);
                        variables.iter().for_each(|word| around.assign(word));
                        around.export(variables);
                    }
                    [cd, folder @ ..] if matches!(cd.as_str(), "cd" | "pushd") => around.change(folder),
                    [popd, ..] if popd == "popd" => around.lost = true,
                    [repeat, name, ..] if matches!(repeat.as_str(), "for" | "select" | "read") => {
                        drop(own);
                        around.take(name.clone(), None);
                    }
                    words => {
                        // What it sets is not known, nor where it goes.
                        let is_activated = words.get(1).is_some_and(|file| file.ends_with("bin/activate"));
                        if matches!(words[0].as_str(), "." | "source" | "eval" | "shift" | "getopts")
                            && !is_activated
                        {
                            around.forget();
                        }
                        if depth < DEEPEST {
                            each(&part, around, depth + 1, all);
                        } else {
                            around.lost = true;
                        }
                    }
                }
            }
        }
    }
}

impl Around {
    fn of(env: &Env, shell: Shell) -> Self {
        Self { env: Arc::new(env.clone()), shell, ..Self::default() }
    }

    /// A word as its shell takes it, as far as that is known: what is not keeps its sign.
    fn expanded(&self, word: &str) -> Vec<String> {
        if matches!(word, "$@" | "$*" | "${@}") && !self.shell.is_shifted && !self.copied.is_too_much() {
            let given = &self.shell.given;
            if self.copied.may(given.iter().map(|word| word.len() + ENTRY).sum()) {
                return given.to_vec();
            }
        }
        let (mut text, mut rest) = (String::new(), word);
        while let Some((before, after)) = rest.split_once('$') {
            text.push_str(before);
            let (name, end) = match after.strip_prefix('{').and_then(|after| after.split_once('}')) {
                Some((name, end)) => (name, end),
                None if after.starts_with(|c: char| c.is_ascii_digit()) => after.split_at(1),
                None => {
                    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
                    after.split_at(after.find(|c| !is_name(c)).unwrap_or(after.len()))
                }
            };
            match self.value(name).filter(|value| self.copied.may(value.len())) {
                Some(value) => text.push_str(&value),
                // The sign stays.
                None => text.push_str(&rest[before.len()..rest.len() - end.len()]),
            }
            if text.len() > LONGEST {
                return vec![word.to_owned()];
            }
            rest = end;
        }
        text.push_str(rest);
        vec![text]
    }

    fn value(&self, name: &str) -> Option<String> {
        if self.copied.is_too_much() {
            return None;
        }
        if let Some((name, default)) = name.split_once(":-") {
            let is_known = self.env.contains_key(name) || self.shell.variables.contains_key(name);
            let is_plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
            let own = || self.value(name).map(|own| if own.is_empty() { default.to_owned() } else { own });
            let is_given = name.parse::<usize>().is_ok();
            return if is_known || is_given { own() } else { is_plain.then(|| default.to_owned()) };
        }
        if name == "PWD" {
            let folder = self.shell.start.join(&self.folder);
            return (!self.lost).then(|| folder.to_str().map(str::to_owned)).flatten();
        }
        if let Ok(at) = name.parse::<usize>() {
            let word = || Some(self.shell.given.get(at.checked_sub(1)?).cloned().unwrap_or_default());
            return (!self.shell.is_shifted).then(word).flatten();
        }
        match self.variable(name) {
            Some(value) => value.cloned(),
            None => self.env.get(name).cloned(),
        }
    }

    /// What a variable was set to, if it was; also of one that was forgotten.
    fn variable(&self, name: &str) -> Option<Option<&String>> {
        // The home is taken to stay.
        let is_known = |since| since == self.shell.forgotten || name == "HOME";
        match self.shell.variables.get(name) {
            Some(Variable { value, since }) => Some(value.as_ref().filter(|_| is_known(*since))),
            None => (!is_known(0) && self.env.contains_key(name)).then_some(None),
        }
    }

    /// Sets variables in its environment.
    fn set(&mut self, variables: impl IntoIterator<Item = (String, String)>) {
        let mut variables = variables.into_iter().peekable();
        if variables.peek().is_some()
            && let Some(env) = self.copied.own(&mut self.env, String::len)
        {
            env.extend(variables);
        }
    }

    /// Takes a variable out of its environment.
    fn unset(&mut self, name: &str) {
        if self.env.contains_key(name)
            && let Some(env) = self.copied.own(&mut self.env, String::len)
        {
            env.remove(name);
        }
    }

    /// Gives what follows variables in its environment.
    fn export(&mut self, variables: &[String]) {
        self.set(variables.iter().filter_map(|word| assignment(word)));
    }

    /// Takes a variable. Where it has another value already, either may be the one that counts.
    fn assign(&mut self, word: &str) {
        let Some((name, value)) = assignment(word) else { return };
        let is_other = self.variable(&name).is_some_and(|known| known != Some(&value));
        let value = Some(value).filter(|value| !is_other && !value.contains(['$', '`']));
        self.take(name, value);
    }

    fn take(&mut self, name: String, value: Option<String>) {
        let text = |variable: &Variable| variable.value.as_ref().map_or(0, String::len);
        if let Some(variables) = self.copied.own(&mut self.shell.variables, text) {
            variables.insert(name, Variable { value, since: self.shell.forgotten });
        }
    }

    /// Forgets variables and what a script is given.
    fn forget(&mut self) {
        self.shell.is_shifted = true;
        self.shell.forgotten += 1;
    }

    /// Goes where `cd` with these words does.
    fn change(&mut self, words: &[String]) {
        let folder = words.iter().find(|word| !matches!(word.as_str(), "-P" | "-L" | "--"));
        let home = self.env.get("HOME").map_or("~", String::as_str);
        let folder = folder.map_or("~", String::as_str);
        let below = ["~", "$HOME", "${HOME}"].iter().find_map(|home| folder.strip_prefix(home));
        let folder = match below {
            Some(below) if below.is_empty() || below.starts_with('/') => format!("{home}{below}"),
            _ => folder.to_owned(),
        };
        let is_absolute = folder.starts_with('/');
        self.lost = folder.contains(|c| "$`~*?[{\\".contains(c))
            || folder.starts_with('-')
            || self.lost && !is_absolute;
        self.folder.push(folder);
        if self.folder.as_os_str().len() > LONGEST {
            (self.folder, self.lost) = (PathBuf::new(), true);
        }
    }
}

/// Longest folder that can be, bytes, and subshells within each other that are followed: a line may have very many of both.
const LONGEST: usize = 4096;
const DEEPEST: usize = 32;

/// A program that starts another in an environment of packages: `conda run -n NAME`, `uv run`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Packages {
    /// As it was called: `/opt/conda/bin/conda`.
    pub program: String,
    /// The environment by its name (`-n`).
    pub name: Option<String>,
    /// The environment by its folder (`-p` of conda), or the folder of the project (`--project`).
    pub folder: Option<String>,
}

impl Packages {
    /// `conda`, `mamba`, `micromamba`, `uv`, `poetry` or `pdm`.
    #[must_use]
    pub fn tool(&self) -> &str {
        stem(&self.program)
    }

    /// Whether it is conda or one of its relatives, whose environments have names.
    #[must_use]
    pub fn is_conda(&self) -> bool {
        matches!(self.tool(), "conda" | "mamba" | "micromamba")
    }

    /// Takes an option; `Some`: the directory that it changes to.
    fn option<'a>(&mut self, option: &str, value: &'a str) -> Option<&'a str> {
        match (self.tool(), option) {
            (_, "-n" | "--name") if self.is_conda() => self.name = Some(value.to_owned()),
            (_, "-p" | "--prefix") if self.is_conda() => self.folder = Some(value.to_owned()),
            ("uv" | "poetry" | "pdm", "--project") | ("poetry", "-P") | ("pdm", "-p") => {
                self.folder = Some(value.to_owned());
            }
            (_, "--cwd") | ("uv" | "poetry", "--directory") | ("poetry", "-C") => return Some(value),
            _ => {}
        }
        None
    }
}

/// The one program of a command, for a caller that starts it otherwise.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Start {
    /// What starts several processes of it, with its options: `torchrun -n 2`; of several the last. Empty: nothing does.
    pub launcher: Vec<String>,
    /// The program and its arguments as they were given; behind a launcher or `uv run` also `-m MODULE` or a script.
    pub words: Vec<String>,
    /// Its environment.
    pub env: BTreeMap<String, String>,
    /// Where the command changes to before it starts the program, from where the command starts.
    pub folder: PathBuf,
    /// What it is started in.
    pub packages: Option<Packages>,
}

impl Start {
    /// Of a command. `None`: a line for a shell that does more than that, or what only a shell can read.
    #[must_use]
    pub fn of(command: &[String], env: &BTreeMap<String, String>) -> Option<Self> {
        let mut around = Around::of(env, Shell::default());
        let words = unwrapped(command, &mut around);
        let words = match line_of(words) {
            Some(at) => one(&words[at], &mut around)?,
            None => words.to_vec(),
        };
        let mut here = Command { words, ..Command::default() };
        let mut launcher = Vec::new();
        loop {
            let inner = here.inner();
            if inner == 0 {
                break;
            }
            around.set(launcher::variables(&here.words[..inner]));
            let words = unwrapped(&here.words[inner..], &mut around).to_vec();
            here.words.truncate(inner);
            launcher = std::mem::replace(&mut here.words, words);
        }
        let Around { env, folder, packages, .. } = around;
        Some(Self { launcher, words: here.words, env: Arc::unwrap_or_clone(env), folder, packages })
    }
}

/// The program of a line that starts one and does no more than to change directories and variables before.
fn one(line: &str, around: &mut Around) -> Option<Vec<String>> {
    // What a shell takes otherwise than it stands, and a word that is empty.
    let is_read = line.contains(|c| "|<>()$`\\*?[]~{}!".contains(c));
    if is_read || line.replace("&&", ";").contains('&') || line.contains("''") || line.contains("\"\"") {
        return None;
    }
    let mut program = None;
    for part in parts(line) {
        if part.is_empty() {
            continue;
        }
        if program.is_some() {
            return None;
        }
        match unwrapped(&part, around) {
            [export, variables @ ..] if export == "export" => {
                around.export(variables);
            }
            [set, options @ ..] if set == "set" && options.iter().all(|word| word.starts_with('-')) => {}
            [cd, folder] if cd == "cd" && !folder.starts_with('-') => around.folder.push(folder),
            words => program = Some(words.to_vec()),
        }
    }
    program
}

/// A program that starts another, its options that take the next word, and how many words of its own come before the other.
type Wrapper = (&'static str, &'static [&'static str], usize);

/// Programs that start another in an environment of packages, by `run`, with their options that take the next word.
const PACKAGES: &[(&str, &[&str])] = &[
    ("conda", CONDA),
    ("mamba", CONDA),
    ("micromamba", CONDA),
    (
        "uv",
        &[
            "-C",
            "-P",
            "-f",
            "-i",
            "-p",
            "-w",
            "--allow-insecure-host",
            "--cache-dir",
            "--config-file",
            "--config-setting",
            "--config-settings",
            "--config-settings-package",
            "--default-index",
            "--directory",
            "--env-file",
            "--exclude-newer",
            "--exclude-newer-package",
            "--extra",
            "--extra-index-url",
            "--find-links",
            "--fork-strategy",
            "--group",
            "--index",
            "--index-strategy",
            "--index-url",
            "--keyring-provider",
            "--link-mode",
            "--no-binary-package",
            "--no-build-isolation-package",
            "--no-build-package",
            "--no-extra",
            "--no-group",
            "--only-group",
            "--package",
            "--prerelease",
            "--project",
            "--python",
            "--python-platform",
            "--python-preference",
            "--refresh-package",
            "--reinstall-package",
            "--resolution",
            "--upgrade-group",
            "--upgrade-package",
            "--with",
            "--with-editable",
            "--with-requirements",
        ],
    ),
    ("poetry", &["-C", "-P", "--directory", "--project"]),
    ("pdm", &["-c", "-p", "--config", "--project", "--venv"]),
];

const CONDA: &[&str] = &[
    "-a",
    "-e",
    "-n",
    "-p",
    "-r",
    "--attach",
    "--cwd",
    "--env",
    "--label",
    "--name",
    "--prefix",
    "--rc-file",
    "--root-prefix",
];

const WRAPPERS: &[Wrapper] = &[
    ("exec", &["-a"], 0),
    ("nohup", &[], 0),
    ("setsid", &[], 0),
    ("env", &["-u", "--unset", "-C", "--chdir"], 0),
    ("nice", &["-n", "--adjustment"], 0),
    ("ionice", &["-c", "-n", "--class", "--classdata"], 0),
    ("stdbuf", &["-i", "-o", "-e", "--input", "--output", "--error"], 0),
    ("time", &["-f", "-o", "--format", "--output"], 0),
    ("timeout", &["-k", "-s", "--kill-after", "--signal"], 1),
    ("taskset", &[], 1),
    (
        "numactl",
        &[
            "-m",
            "-N",
            "-C",
            "-p",
            "-i",
            "--membind",
            "--cpunodebind",
            "--physcpubind",
            "--preferred",
            "--interleave",
        ],
        0,
    ),
    // Words of a shell before a command.
    ("then", &[], 0),
    ("else", &[], 0),
    ("do", &[], 0),
    ("if", &[], 0),
    ("while", &[], 0),
    ("!", &[], 0),
    ("{", &[], 0),
];

/// The program that a command starts. Of a line for a shell: the first launcher of several processes, else the first Python or server
/// of language models, else the whole line.
pub(super) fn started(command: &[String], env: &Env) -> Command {
    started_in(command, Around::of(env, Shell::default()))
}

fn started_in(command: &[String], mut around: Around) -> Command {
    let words = unwrapped(command, &mut around);
    let Some(at) = line_of(words) else { return program_in(words, around) };
    let parts = parts(&words[at]);
    let (mut first, mut script, mut subshells) = (None, None, Subshells::default());
    for part in &parts {
        match part.as_slice() {
            part if is_bracket(part) => subshells.pass(part, &mut around),
            // Its shell alone has them, and no environment is copied.
            part if only_sets(part) => {}
            part => {
                let mut own = around.clone();
                match unwrapped(part, &mut own) {
                    [export, variables @ ..] if export == "export" => {
                        drop(own);
                        around.export(variables);
                    }
                    [cd, folder @ ..] if matches!(cd.as_str(), "cd" | "pushd") => around.change(folder),
                    [popd, ..] if popd == "popd" => around.lost = true,
                    words => {
                        let folder = (own.folder.clone(), own.lost);
                        let here = program_in(words, own);
                        if launcher::launcher(&here).is_some() {
                            return here;
                        }
                        let program = here.program();
                        if program.starts_with("python")
                            || program.ends_with(".py")
                            || matches!(program, "vllm" | "sglang")
                        {
                            first.get_or_insert(here);
                        } else if script.is_none() && here.script(is_script).is_some() {
                            script = Some(folder);
                        }
                    }
                }
            }
        }
    }
    first.unwrap_or_else(|| {
        let all: Vec<String> = parts.iter().filter(|part| !is_bracket(part)).flatten().cloned().collect();
        let words = unwrapped(&all, &mut around);
        // Of several of its commands the one with a script counts.
        if let Some(folder) = script {
            (around.folder, around.lost) = folder;
        }
        program_in(words, around)
    })
}

/// A program, with what comes before it. Behind a launcher, too, directories may be changed.
fn program_in(words: &[String], mut around: Around) -> Command {
    let mut here = Command { words: flat(words), ..Command::default() };
    let inner = here.inner();
    if inner > 0 {
        around.set(launcher::variables(&here.words[..inner]));
        here.env = std::mem::take(&mut around.env);
        let _ = unwrapped(&here.words[inner..], &mut around);
    } else {
        here.env = around.env;
    }
    here.packages = around.packages;
    if around.copied.is_too_much() {
        here.env = Arc::default();
    } else {
        here.folder = Some(around.folder).filter(|_| !around.lost);
    }
    here
}

/// Where a line was when it entered each of the subshells that it is in: where one goes, what follows it does not.
#[derive(Default)]
struct Subshells(Vec<(PathBuf, bool)>);

impl Subshells {
    /// Enters one, or leaves it.
    fn pass(&mut self, bracket: &[String], around: &mut Around) {
        if bracket[0] == ")" {
            if let Some(folder) = self.0.pop() {
                (around.folder, around.lost) = folder;
            }
        } else if self.0.len() == DEEPEST {
            self.0.clear();
            around.lost = true;
        } else {
            self.0.push((around.folder.clone(), around.lost));
        }
    }
}

fn is_bracket(part: &[String]) -> bool {
    matches!(part, [sign] if sign == "(" || sign == ")")
}

/// Words within words as well, without quotes.
fn flat(words: &[String]) -> Vec<String> {
    let words = words.iter().flat_map(|word| word.split_whitespace());
    words.map(|word| word.trim_matches(['\'', '"']).to_owned()).collect()
}

/// Whether a word names a shell whose lines and scripts are read.
#[must_use]
pub fn is_shell(word: &str) -> bool {
    matches!(stem(word), "sh" | "bash" | "dash" | "zsh")
}

/// Where the line is that a shell is to run, if these words are one that is.
fn line_of(words: &[String]) -> Option<usize> {
    let mut at = 1;
    words.first().filter(|word| is_shell(word))?;
    while let Some(option) = words.get(at).filter(|word| word.starts_with('-')) {
        at += 1;
        if runs_a_line(option) {
            return Some(at).filter(|at| *at < words.len());
        }
        // `-euo pipefail -c LINE`
        at += usize::from(option.to_ascii_lowercase().ends_with('o') && !option.starts_with("--"));
    }
    None
}

/// Where the shell and its line are in a command that runs one (`timeout 60 bash -lc LINE`).
pub(crate) fn line_at(command: &[String]) -> Option<(usize, usize)> {
    let words = unwrapped(command, &mut Around::default());
    let shell = command.len() - words.len();
    line_of(words).map(|at| (shell, shell + at))
}

/// `-c`, `-lc`, `-ec`.
fn runs_a_line(option: &str) -> bool {
    option.strip_prefix('-').is_some_and(|letters| {
        letters.ends_with('c') && letters.bytes().all(|letter| letter.is_ascii_alphabetic())
    })
}

/// Whether a part sets variables and starts nothing.
fn only_sets(part: &[String]) -> bool {
    part.iter().all(|word| assignment(word).is_some())
}

fn assignment(word: &str) -> Option<(String, String)> {
    let (key, value) = word.split_once('=')?;
    let is_name = !key.is_empty()
        && key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        && !key.as_bytes()[0].is_ascii_digit();
    is_name.then(|| (key.to_owned(), value.trim_matches(['\'', '"']).to_owned()))
}

/// The words from the program on, with the variables before it.
pub(super) fn unwrapped<'a>(mut words: &'a [String], around: &mut Around) -> &'a [String] {
    while let Some((word, rest)) = words.split_first() {
        let name = stem(word);
        if let Some((key, value)) = assignment(word) {
            around.set([(key, value)]);
            words = rest;
        } else if let Some((_, valued, own)) = WRAPPERS.iter().find(|(wrapper, ..)| *wrapper == name) {
            words = after_options(rest, valued, |option, value| {
                if name == "env" {
                    environment(option, value, around);
                }
            });
            words = words.get(*own..).unwrap_or_default();
        } else if let Some((_, valued)) = PACKAGES.iter().find(|(tool, _)| *tool == name) {
            let mut packages = Packages { program: word.clone(), ..Packages::default() };
            let mut option = |option: &str, value: Option<&str>| {
                around.folder.extend(value.and_then(|value| packages.option(option, value)));
            };
            let [run, rest @ ..] = after_options(rest, valued, &mut option) else { break };
            if run != "run" {
                break;
            }
            words = after_options(rest, valued, option);
            around.packages = Some(packages);
        } else {
            break;
        }
    }
    words
}

/// The words after the options of a program, each of which is told with its value. `-m` names a module to run, as what comes after
/// options names a program.
fn after_options<'a>(
    mut words: &'a [String],
    valued: &[&str],
    mut tell: impl FnMut(&str, Option<&str>),
) -> &'a [String] {
    while let Some((word, mut rest)) = words.split_first() {
        if !word.starts_with('-') || is_module(word) && !valued.contains(&word.as_str()) {
            break;
        }
        let (option, mut value) = match word.split_once('=') {
            Some((option, value)) => (option, Some(value)),
            None => (word.as_str(), None),
        };
        if valued.contains(&word.as_str()) {
            value = rest.first().map(String::as_str);
            rest = rest.get(1..).unwrap_or_default();
        }
        tell(option, value);
        words = rest;
        if word == "--" {
            break;
        }
    }
    words
}

/// What an option of `env` takes from the environment, or where it goes.
fn environment(option: &str, value: Option<&str>, around: &mut Around) {
    match (option, value) {
        ("-" | "-i" | "--ignore-environment", _) => around.env = Arc::default(),
        ("-u" | "--unset", Some(name)) => around.unset(name),
        ("-C" | "--chdir", Some(folder)) => around.folder.push(folder),
        _ => option.strip_prefix("-u").into_iter().for_each(|name| around.unset(name)),
    }
}

/// The commands of a line for a shell, each as its words, and the brackets of subshells, each by itself. Quotes hold words together; what is in `$()` is not looked into.
fn parts(line: &str) -> Vec<Vec<String>> {
    let (mut parts, mut words, mut word) = (Vec::new(), Vec::new(), String::new());
    let (mut quote, mut signs) = (None, line.chars().peekable());
    while let Some(sign) = signs.next() {
        match (quote, sign) {
            (Some(open), _) if open == sign => quote = None,
            (None, '"' | '\'') => quote = Some(sign),
            // A comment: an apostrophe in it opens no quote.
            (None, '#') if word.is_empty() => while signs.next_if(|sign| *sign != '\n').is_some() {},
            // A line that goes on in the next.
            (None, '\\') if signs.next_if_eq(&'\n').is_some() => {}
            (None, ';' | '&' | '|' | '\n' | ' ' | '\t' | '(' | ')') => {
                words.extend(Some(std::mem::take(&mut word)).filter(|word| !word.is_empty()));
                if !matches!(sign, ' ' | '\t') {
                    parts.push(std::mem::take(&mut words));
                }
                if matches!(sign, '(' | ')') {
                    parts.push(vec![sign.to_string()]);
                }
            }
            _ => word.push(sign),
        }
    }
    words.extend(Some(word).filter(|word| !word.is_empty()));
    parts.push(words);
    parts
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn of(words: &[&str]) -> (String, Env) {
        let words: Vec<String> = words.iter().map(ToString::to_string).collect();
        let started = started(&words, &[("A".to_owned(), "0".to_owned())].into());
        (started.words.join(" "), started.env.as_ref().clone())
    }

    #[test]
    fn programs_behind_others() {
        for (line, program) in [
            ("nice -n 5 torchrun t.py -n 3", "torchrun t.py -n 3"),
            ("nice -5 torchrun t.py", "torchrun t.py"),
            ("timeout -k 5 3600 torchrun t.py", "torchrun t.py"),
            ("timeout --signal=INT 3600 nohup python t.py", "python t.py"),
            ("/usr/bin/time -v numactl -N 0 --membind=0 python t.py", "python t.py"),
            ("stdbuf -oL ionice -c 2 -n0 taskset -c 0-3 python t.py", "python t.py"),
            ("env -u A B=1 exec conda run -n x python t.py", "python t.py"),
            ("uv run --with deepspeed torchrun --nproc-per-node 4 t.py", "torchrun --nproc-per-node 4 t.py"),
            ("uv run -n --extra cu12 --group dev --env-file .env -p 3.12 python t.py", "python t.py"),
            ("uv --directory /w run --project=/p python t.py", "python t.py"),
            ("uv run -m pkg.train --x", "-m pkg.train --x"),
            ("uv run -- python t.py", "python t.py"),
            ("conda run --cwd /w -s -p /env python t.py", "python t.py"),
            ("micromamba -r /m run -e A=1 -n x python t.py", "python t.py"),
            ("poetry -C /w run python t.py", "python t.py"),
            ("pdm run -p /w --venv x python t.py", "python t.py"),
            ("uv pip install torch", "uv pip install torch"),
            ("timeout", ""),
            ("conda run -n", ""),
        ] {
            assert_eq!(of(&line.split(' ').collect::<Vec<_>>()).0, program, "{line}");
        }
    }

    #[test]
    fn lines_for_a_shell() {
        for (line, program) in [
            ("cd /w && torchrun -n 4 t.py | tee log", "torchrun -n 4 t.py"),
            ("python prep.py; torchrun -n 4 t.py", "torchrun -n 4 t.py"),
            ("set -e\nmodule load x\nexec python t.py \\\n --a 'b c;d'", "python t.py --a b c;d"),
            ("if true; then (nice python t.py); fi", "python t.py"),
            ("./train -n 3", "./train -n 3"),
            ("A=1 B='x y' python t.py", "python t.py"),
            ("cd /w; vllm serve m && echo", "vllm serve m"),
            ("# it's all\npython t.py # it's\necho", "python t.py"),
            ("echo a#b '# it' $#; python t.py", "python t.py"),
            ("# not python\n./train -n 3", "./train -n 3"),
        ] {
            for option in ["-c", "-lc", "-ec"] {
                assert_eq!(of(&["bash", option, line]).0, program, "{line}");
            }
        }
        assert_eq!(of(&["nice", "/bin/sh", "-c", "python t.py"]).0, "python t.py");
        assert_eq!(of(&["bash", "run.sh", "-c"]).0, "bash run.sh -c");
    }

    #[test]
    fn the_folder_of_what_counts() {
        let env = Env::from([("HOME".to_owned(), "/h".to_owned())]);
        let of = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(ToString::to_string).collect();
            started(&words, &env).folder
        };
        for (line, folder) in [
            ("python t.py > log", Some("")),
            ("cd exp && python train.py --config c.yaml > log 2>&1", Some("exp")),
            ("cd exp; cd -P 'v x' || exit; torchrun t.py | tee $LOG", Some("exp/v x")),
            ("(cd data && python3 get.sh; ./get) ; cd exp; python t.py", Some("data")),
            ("(cd data && ./get); cd exp; python t.py", Some("exp")),
            ("x=$(cd data; pwd); python t.py", Some("")),
            ("if true; then cd exp; env -C v python t.py; fi", Some("exp/v")),
            ("cd exp && srun env -C v python t.py > log", Some("exp/v")),
            ("cd exp && bash run.sh > log; cd ..", Some("exp")),
            ("cd ~/exp && python t.py | cat", Some("/h/exp")),
            ("cd \"${HOME}/exp\"; python t.py | cat", Some("/h/exp")),
            ("cd; python t.py", Some("/h")),
            ("cd $X && python t.py", None),
            ("cd ~you && python t.py", None),
            ("cd $(dirname $0); python t.py", None),
            ("for d in a b; do cd $d; python t.py; done", None),
            ("cd $X; cd exp; python t.py", None),
            ("cd $X; cd /exp; python t.py", Some("/exp")),
            ("cd exp; cd -; python t.py", None),
            ("pushd exp; popd; python t.py", None),
        ] {
            assert_eq!(of(&["bash", "-c", line]), folder.map(PathBuf::from), "{line}");
        }
        assert_eq!(of(&["env", "-C", "exp", "python", "t.py"]), Some("exp".into()));
        assert_eq!(of(&["env", "-C", "exp", "sh", "-c", "cd v; ./a"]), Some("exp/v".into()));
    }

    #[test]
    fn one_program_to_start() {
        let start = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(ToString::to_string).collect();
            Start::of(&words, &[("A".to_owned(), "0".to_owned())].into())
        };
        let line = |line: &str| start(&["bash", "-lc", line]);
        // Words stay as they are.
        let env =
            start(&["env", "-uA", "-C", "/w", "B=x y", "nice", "python", "t.py", "a b", "'c'"]).unwrap();
        assert_eq!(env.words, ["python", "t.py", "a b", "'c'"]);
        assert_eq!(env.env, Env::from([("B".to_owned(), "x y".to_owned())]));
        assert_eq!(env.folder, PathBuf::from("/w"));
        let shell =
            line("set -e; export B=1 # it's\ncd w && cd 'v x' && C=2 python t.py --a 'b c'\n").unwrap();
        assert_eq!(shell.words, ["python", "t.py", "--a", "b c"]);
        assert_eq!(shell.env.into_iter().map(|(key, value)| key + &value).collect::<String>(), "A0B1C2");
        assert_eq!(shell.folder, PathBuf::from("w/v x"));
        let given = line("mpirun -np 2 -x A=b -x HOME --genv=C=d -genv B c python t.py").unwrap().env;
        assert_eq!((given["A"].as_str(), given["B"].as_str()), ("b", "c"));
        let spread = line("srun -n 2 nice torchrun t.py 1").unwrap();
        assert_eq!((spread.launcher.join(" "), spread.words.join(" ")), ("torchrun".into(), "t.py 1".into()));
        let spread =
            start(&["uv", "run", "--project", "/p", "torchrun", "-n", "2", "-m", "pkg", "-n", "3"]).unwrap();
        assert_eq!(
            (spread.launcher.join(" "), spread.words.join(" ")),
            ("torchrun -n 2".into(), "-m pkg -n 3".into())
        );
        let uv = Packages { program: "uv".to_owned(), name: None, folder: Some("/p".to_owned()) };
        assert_eq!(spread.packages, Some(uv));
        let conda =
            start(&["/opt/bin/conda", "run", "--name=x", "python", "t.py"]).unwrap().packages.unwrap();
        assert_eq!(
            (conda.tool(), conda.name.as_deref(), conda.folder.as_deref()),
            ("conda", Some("x"), None)
        );
        for more in [
            "python a.py > out",
            "python a.py && b",
            "python a.py; cd x",
            "python a.py &",
            "python a.py | b",
            "python '*.py'",
            "python $X.py",
            "python t.py --name ''",
            "if true; then python t.py; fi",
            "source a; python t.py",
            "cd -; python t.py",
            "cd x",
            "",
        ] {
            assert_eq!(line(more), None, "{more}");
        }
    }

    #[test]
    fn the_environment_of_what_is_started() {
        let variable = |words: &[&str]| of(words).1.get("A").cloned().unwrap_or_default();
        let line = |line: &str| variable(&["sh", "-c", line]);
        assert_eq!(variable(&["env", "-u", "B", "A=2", "python", "t.py"]), "2");
        assert_eq!(variable(&["env", "-uA", "python", "t.py"]), "");
        assert_eq!(variable(&["env", "-i", "python", "t.py"]), "");
        assert_eq!(line("export B=1 A='.2'; python t.py"), ".2");
        assert_eq!(line("export A=1 && A=3 nice python t.py"), "3");
        // Of another command of the line.
        assert_eq!(line("A=3 echo x; python t.py"), "0");
    }

    /// Bytes that all variables of an environment take.
    fn size(env: &Env) -> usize {
        env.iter().map(|(name, value)| name.len() + value.len() + ENTRY).sum()
    }

    /// The commands of a command, and what was copied for them.
    fn each_in(command: &[String], env: &Env, shell: Shell) -> (Vec<Each>, usize) {
        let (mut around, mut all) = (Around::of(env, shell), Vec::new());
        each(command, &mut around, 0, &mut all);
        (all, around.copied.0.get())
    }

    fn of_bash(line: String) -> [String; 3] {
        ["bash".to_owned(), "-c".to_owned(), line]
    }

    fn long_env() -> Env {
        (0..200).map(|i| (format!("VARIABLE_{i}"), "x".repeat(40))).collect()
    }

    /// A line of the length that one argument may have, of very many parts: each used to copy all that was set before it.
    #[test]
    fn the_parts_of_a_line_share_what_surrounds_them() {
        let env = long_env();
        for line in [
            (0..9_000).map(|i| format!("export a{i}=;")).collect::<String>(),
            (0..16_000).map(|i| format!("a{i}=;")).collect(),
            "a;".repeat(60_000),
            "cd x;".repeat(26_000),
            "eval x;".repeat(18_000),
        ] {
            let command = of_bash(line + "python t.py");
            let around = Around::of(&env, Shell::default());
            let copied = around.copied.clone();
            assert_eq!(started_in(&command, around).words, ["python", "t.py"]);
            assert_eq!(copied.0.get(), 0);
            let (all, copied) = each_in(&command, &env, Shell::default());
            assert_eq!(all.last().unwrap().words, ["python", "t.py"]);
            assert!(all.iter().all(|each| Arc::ptr_eq(&each.command.env, &all[0].command.env)));
            // The line's shell has one of its own.
            assert!(copied <= size(&env), "{copied}");
        }
    }

    #[test]
    fn what_would_be_copied_too_often_is_unknown_from_then_on() {
        let env = long_env();
        let given: Vec<String> = (0..20_000).map(|i| format!("--option-{i}")).collect();
        for line in [
            (0..9_000).map(|i| format!("export a{i}=;x;")).collect::<String>(),
            (0..7_000).map(|i| format!("a{i}=;bash -c b=;")).collect(),
            "a=1 x;".repeat(20_000),
            "mpirun -x a=1 x;".repeat(8_000),
            "x $@;".repeat(20_000),
        ] {
            let line = format!("b=2;x $b;{line}b=3;cd /w;python $b t.py");
            let shell = Shell::new("/w".into(), None, given.clone());
            let mut around = Around::of(&env, shell);
            let mut all = Vec::new();
            each_of_line(&line, &mut around, 0, &mut all);
            let maps: BTreeMap<_, _> =
                all.iter().map(|each| (Arc::as_ptr(&each.command.env), size(&each.command.env))).collect();
            let (maps, words): (usize, usize) =
                (maps.values().sum(), all.iter().flat_map(|each| &each.words).map(String::len).sum());
            assert!(around.copied.is_too_much() && maps + words < MOST_COPIED + (1 << 20), "{maps} {words}");
            let (first, last) = (&all[0], all.last().unwrap());
            assert_eq!((first.words.join(" ").as_str(), first.command.env.len()), ("x 2", 200));
            assert_eq!(first.command.folder, Some(PathBuf::new()));
            assert_eq!((last.words.join(" ").as_str(), last.command.env.len()), ("python $b t.py", 0));
            assert_eq!(last.command.folder, None);
        }
        let here = started(&of_bash("a=1 x;".repeat(20_000) + "python t.py"), &env);
        assert_eq!((here.words.len(), here.env.len(), here.folder), (2, 0, None));
    }

    #[test]
    fn what_is_sourced_may_set_what_was_known() {
        let env = Env::from([("HOME", "/h"), ("B", "1")].map(|(name, value)| (name.into(), value.into())));
        let line = "C=2;a $B $C $HOME;. x;a $B $C $HOME ${D:-4} ${B:-5};B=3;export C=2 D=4;a $B $C $D";
        let (all, _) = each_in(&of_bash(line.to_owned()), &env, Shell::default());
        let said: Vec<String> = all.iter().map(|each| each.words.join(" ")).collect();
        assert_eq!(said, ["a 1 2 /h", ". x", "a $B $C /h 4 ${B:-5}", "a $B $C 4"]);
    }
}

//! What a command, its environment and its script's text say of memory before anything runs.
//!
//! Pure: the caller reads files and hands their texts in. Nothing here understands Python: a script is searched for
//! import lines and for settings that are written as literals, and what it decides otherwise is not seen.

mod launcher;
mod started;
mod taker;

pub use launcher::{Processes, Sharding};
pub(crate) use started::line_at;
pub use started::{Each, Packages, Shell, Start, is_shell};
pub use taker::{Taken, Taker};

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Longest text of a script that is searched, bytes.
const MOST_TEXT: usize = 4 << 20;

/// A command, taken apart.
#[derive(Debug, Clone, Default)]
pub struct Command {
    /// Its words; those of a line for the shell, and without assignments before the program.
    words: Vec<String>,
    /// Shared by those of a line, of which there may be very many.
    env: Arc<BTreeMap<String, String>>,
    folder: Option<PathBuf>,
    packages: Option<Packages>,
    /// Lines of the script, without indentation and comments.
    script: Vec<String>,
}

impl Command {
    /// Takes a command apart.
    #[must_use]
    pub fn new(command: &[String], env: &BTreeMap<String, String>) -> Self {
        started::started(command, env)
    }

    /// Where it changes to before it starts its program, from where it starts. `None`: only its shell can tell.
    #[must_use]
    pub fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// The environment of packages that it starts its program in.
    #[must_use]
    pub const fn packages(&self) -> Option<&Packages> {
        self.packages.as_ref()
    }

    /// Its environment, with what it sets before its program.
    #[must_use]
    pub fn env(&self) -> &BTreeMap<String, String> {
        &self.env
    }

    /// The Python that it starts, or a launcher that lies beside its Python: `venv/bin/python`, `torchrun`.
    #[must_use]
    pub fn python(&self) -> Option<&str> {
        self.words.iter().map(String::as_str).find(|word| {
            let name = stem(word);
            name.starts_with("python") && !name.ends_with(".py")
                || matches!(name, "torchrun" | "accelerate" | "deepspeed")
        })
    }

    /// With the text of its script, which lies in one of [`Self::scripts`].
    #[must_use]
    pub fn with_script(self, text: &[u8]) -> Self {
        let text = String::from_utf8_lossy(&text[..text.len().min(MOST_TEXT)]);
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        Self { script: lines.map(str::to_owned).collect(), ..self }
    }

    /// Files that may be its script, that of what it launches where it is a launcher. The first that is there is the script.
    #[must_use]
    pub fn scripts(&self) -> Vec<String> {
        let path = module_of(self.launched()).map(|module| module.replace('.', "/"));
        let folders =
            self.env.get("PYTHONPATH").map_or("", String::as_str).split(':').filter(|f| !f.is_empty());
        let below = ["".to_owned()].into_iter().chain(folders.map(|folder| format!("{folder}/")));
        let mut files = Vec::new();
        for (folder, path) in below.flat_map(|folder| path.as_ref().map(|path| (folder, path))) {
            files.extend([format!("{folder}{path}.py"), format!("{folder}{path}/__main__.py")]);
        }
        // Also of a module that is installed, which may run it (`-m cProfile t.py`).
        files.extend(self.named().map(str::to_owned));
        files
    }

    /// The script that it names.
    fn named(&self) -> Option<&str> {
        let is_name = |word: &&str| is_script(word) && !word.starts_with('-') && !word.contains("://");
        self.launched().iter().map(String::as_str).find(is_name)
    }

    /// The file that it runs by being given it, whatever its ending: what Python, a shell or a launcher of Python is given, or a program of
    /// the user's that is named by its path.
    #[must_use]
    pub fn file(&self) -> Option<&str> {
        let words = self.launched();
        let (program, given) = words.split_first()?;
        let name = stem(program);
        if is_sourced(name) {
            return given.first().map(String::as_str);
        }
        if name.starts_with("python") && !name.ends_with(".py") {
            return first_file(given, &['W', 'X'], &['m', 'c']);
        }
        if is_shell(program) {
            return first_file(given, &['o', 'O'], &['c', 's']);
        }
        let is_of_python = matches!(launcher::launcher(self), Some("torchrun" | "accelerate" | "deepspeed"));
        let is_file = is_of_python && self.inner() > 0 && !program.starts_with('-') || self.is_own_program();
        is_file.then_some(program)
    }

    /// Whether it is a shell that runs what it is given.
    #[must_use]
    pub fn is_shell(&self) -> bool {
        self.launched().first().is_some_and(|word| is_shell(word))
    }

    /// Whether its own shell reads what it is given (`source env.sh`).
    #[must_use]
    pub fn is_sourced(&self) -> bool {
        is_sourced(self.program())
    }

    /// The words that this script of it is given.
    #[must_use]
    pub fn given(&self, script: &str) -> &[String] {
        let words = self.launched();
        words.iter().position(|word| word == script).map_or(&[], |at| &words[at + 1..])
    }

    /// Whether it runs a program of the user's, as far as its words tell.
    #[must_use]
    pub fn runs(&self) -> bool {
        let program = self.program();
        !self.is_tool()
            && (self.file().is_some()
                || launcher::launcher(self).is_some()
                || program.starts_with("python")
                || self.script(is_script).is_some())
    }

    /// Whether it is a program that runs nothing of what it names.
    #[must_use]
    pub fn is_tool(&self) -> bool {
        self.only_writes() || TOOLS.contains(&self.program())
    }

    /// Whether it is a program that only writes.
    #[must_use]
    pub fn only_writes(&self) -> bool {
        WRITERS.contains(&self.program())
    }

    /// Whether it runs a script or a module whose text is not known. `read`: which of [`Self::scripts`] was read; `is_installed`: whether
    /// a package of this name is installed in its Python: such code is not edited.
    #[must_use]
    pub fn is_unread(&self, read: Option<&str>, is_installed: impl FnOnce(&str) -> bool) -> bool {
        let named = self.named();
        let Some(module) = module_of(self.launched()) else { return named.is_some() && read.is_none() };
        let is_its_own = read.is_some() && read != named;
        let package = module.split('.').next().unwrap_or_default();
        let runs_others = || RUNNERS.contains(&package) || is_installed(package);
        !is_its_own && (named.is_some() && read.is_none() || !runs_others())
    }

    /// The script or module that it runs, as it is named: by what is told to be one, else by its ending.
    pub(crate) fn script(&self, is_script: impl Fn(&str) -> bool) -> Option<&str> {
        let words = self.launched();
        module_of(words).or_else(|| words.iter().map(String::as_str).find(|word| is_script(word)))
    }

    /// Whether it runs a program by its path that is neither the system's nor runs what its words say.
    #[must_use]
    pub fn is_own_program(&self) -> bool {
        let by_path =
            |word: &&String| word.contains('/') && !SYSTEM.iter().any(|folder| word.starts_with(folder));
        let runs_words = |word: &String| stem(word).starts_with("python") || is_shell(word);
        self.launched().first().filter(by_path).is_some_and(|word| !runs_words(word))
    }

    /// The user's program that it runs, by all that names it: where it changes to, a module, a script, a program's path. `None`: it runs
    /// what its words say (`python -c`), or an installed program.
    pub(crate) fn own_program(&self) -> Option<String> {
        let folder = self.folder()?.to_string_lossy();
        let words = self.launched();
        let is_installed = |file: &str| {
            let parent = Path::new(file).parent().and_then(Path::file_name);
            parent.is_some_and(|parent| parent == "bin" || parent == "sbin")
        };
        let script = words.iter().map(String::as_str).find(|word| is_script(word));
        let file = self.file().filter(|file| !is_installed(file));
        let names: Vec<&str> = [module_of(words), file, script].into_iter().flatten().collect();
        (!names.is_empty()).then(|| format!("{folder} {}", names.join(" ")))
    }

    /// Where the words of what a launcher starts begin; 0 where it is none.
    fn inner(&self) -> usize {
        launcher::launcher(self).map_or(0, |launcher| launcher::inner(self, launcher))
    }

    /// What a launcher starts, if it is one, else what the command starts.
    fn launched(&self) -> &[String] {
        started::unwrapped(&self.words[self.inner()..], &mut started::Around::default())
    }

    /// Name of the program without its folder: `torchrun`.
    pub(crate) fn program(&self) -> &str {
        program(&self.words)
    }

    /// What Python is told to run by `-m`.
    fn module(&self) -> Option<&str> {
        self.module_at().map(|(module, _)| module)
    }

    /// The same, and where the words for it begin.
    fn module_at(&self) -> Option<(&str, usize)> {
        module_at(&self.words)
    }

    /// Value of the last option of one of these names, as in `--name value` and `--name=value`; `-` and `_` are the
    /// same.
    fn option<'a>(words: &'a [String], names: &[&str]) -> Option<&'a str> {
        let mut found = None;
        for (at, word) in words.iter().enumerate() {
            let Some(bare) = word.strip_prefix('-') else { continue };
            let (name, value) = match bare.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (bare, None),
            };
            let name = name.trim_start_matches('-').replace('_', "-");
            if names.contains(&name.as_str()) {
                found = value.or_else(|| words.get(at + 1).map(String::as_str)).or(found);
            }
        }
        found
    }

    /// Whether one of these options is there, with a value or without, but for one that means no (`--use_peft False`).
    fn has(words: &[String], names: &[&str]) -> bool {
        let options = words.iter().enumerate().filter_map(|(at, word)| Some((at, word.strip_prefix("--")?)));
        options.into_iter().any(|(at, word)| {
            let (name, value) = match word.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (word, words.get(at + 1).map(String::as_str)),
            };
            names.contains(&name.replace('_', "-").as_str()) && !value.is_some_and(is_false)
        })
    }

    /// A variable: as the script sets it by a literal (`os.environ["X"] = "y"`), else as it finds it, else the script's
    /// default (`setdefault`).
    fn variable(&self, name: &str) -> Option<&str> {
        let set = self.script.iter().find_map(|line| set(line, name));
        let default = || self.script.iter().find_map(|line| default(line, name));
        set.or_else(|| self.env.get(name).map(String::as_str)).or_else(default)
    }

    /// Whether the script imports a package, anywhere in it.
    fn imports(&self, package: &str) -> bool {
        let is = |path: &str| path.trim().split(['.', ' ']).next() == Some(package);
        self.script.iter().any(|line| {
            if let Some(rest) = line.strip_prefix("from ") {
                return is(rest);
            }
            line.strip_prefix("import ").is_some_and(|rest| rest.split(',').any(is))
        })
    }

    /// Whether a line of the script holds this.
    fn mentions(&self, text: &str) -> bool {
        self.script.iter().any(|line| line.contains(text))
    }

    /// The number that the script gives to a keyword, where it is a literal: `gpu_memory_utilization=0.5`.
    fn keyword(&self, name: &str) -> Option<f64> {
        self.script.iter().find_map(|line| {
            let after = line.split_once(name)?.1.trim_start().strip_prefix('=')?.trim_start();
            let end = after.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(after.len());
            after[..end].parse().ok()
        })
    }

    /// Whether the script compiles its model (`torch.compile`).
    #[must_use]
    pub fn compiles(&self) -> bool {
        self.mentions("torch.compile(")
            || self.mentions("@torch.compile")
            || Self::has(&self.words, &["torch-compile"])
            || self.script.iter().any(|line| line.ends_with(".compile()") && self.imports("torch"))
    }

    /// Rank of low-rank adapters, where the command says that it trains such (`--use_peft --lora_r 16`).
    #[must_use]
    pub fn lora(&self) -> Option<u32> {
        let rank = Self::option(&self.words, &["lora-r", "lora-rank"])?.parse().ok()?;
        // TRL has a rank by default, which counts with `--use_peft` only.
        (rank > 0 && (Self::has(&self.words, &["use-peft", "use-lora", "lora"]) || self.imports("peft")))
            .then_some(rank)
    }

    /// Whether the script imports PEFT, so that it may train adapters only.
    #[must_use]
    pub fn uses_peft(&self) -> bool {
        self.imports("peft")
    }
}

/// Where programs of the system lie.
const SYSTEM: &[&str] = &["/bin/", "/sbin/", "/usr/"];
/// Modules of Python's own that run a script.
const RUNNERS: &[&str] = &["cProfile", "pdb", "profile", "runpy", "trace"];

/// Programs that write what they name, or only tell of it.
const WRITERS: &[&str] = &[
    "chmod", "date", "echo", "exit", "kill", "ls", "mkdir", "printf", "rm", "rmdir", "set", "sleep", "tee",
    "touch", "trap", "wait",
];
/// Programs that read what they name and run none of it, and words of a shell before a condition.
const TOOLS: &[&str] = &[
    "[", "[[", "awk", "cat", "cp", "elif", "grep", "head", "ln", "mv", "rsync", "sed", "sort", "tail",
    "test", "wc",
];

fn is_sourced(program: &str) -> bool {
    matches!(program, "." | "source")
}

/// The first word that is neither an option nor the value of one of these letters; none behind one that runs something else.
fn first_file<'a>(words: &'a [String], valued: &[char], others: &[char]) -> Option<&'a str> {
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let Some(letters) = word.strip_prefix(['-', '+']) else { return Some(word) };
        if letters.is_empty() {
            return None;
        }
        if letters == "-" {
            return words.next().map(String::as_str);
        }
        if letters.starts_with('-') {
            continue;
        }
        match letters.find(|letter| valued.contains(&letter) || others.contains(&letter)) {
            Some(at) if letters[at..].starts_with(|letter| others.contains(&letter)) => return None,
            Some(at) if at + 1 == letters.len() => drop(words.next()),
            _ => {}
        }
    }
    None
}

/// Name of the program of some words without its folder.
fn program(words: &[String]) -> &str {
    words.first().map_or("", |word| stem(word))
}

/// What Python is told to run by `-m`, and where the words for it begin. Letters of Python's options stand together until one takes
/// a value.
fn module_at(words: &[String]) -> Option<(&str, usize)> {
    if !program(words).starts_with("python") {
        return None;
    }
    let mut words = words.iter().enumerate().skip(1);
    while let Some((at, word)) = words.next() {
        let option = word.strip_prefix('-')?;
        let valued = option.find(['m', 'c', 'W', 'X']).filter(|_| !option.starts_with('-'));
        let value = valued.map_or("", |letter| &option[letter + 1..]);
        match valued.map(|letter| option.as_bytes()[letter]) {
            Some(b'm') if value.is_empty() => return Some((words.next()?.1, at + 2)),
            Some(b'm') => return Some((value, at + 1)),
            Some(b'c') => return None,
            Some(_) if value.is_empty() => drop(words.next()),
            None if option == "-check-hash-based-pycs" => drop(words.next()),
            _ => {}
        }
    }
    None
}

/// The module that words behind a launcher, or those for Python, run.
fn module_of(words: &[String]) -> Option<&str> {
    match words {
        [option, module, ..] if is_module(option) => Some(module),
        _ => module_at(words).map(|(module, _)| module),
    }
}

/// How launchers and `uv run` are told to run a module.
fn is_module(option: &str) -> bool {
    matches!(option, "-m" | "--module")
}

/// What comes before and after a name in quotes, wherever it is in a line.
fn around<'a>(line: &'a str, name: &str) -> Vec<(&'a str, &'a str)> {
    let find = |quote: char| {
        let quoted = format!("{quote}{name}{quote}");
        line.match_indices(&quoted)
            .map(|(at, _)| (&line[..at], &line[at + quoted.len()..]))
            .collect::<Vec<_>>()
    };
    [find('"'), find('\'')].concat()
}

/// What follows if it is a literal: a text in quotes.
fn literal(text: &str) -> Option<&str> {
    let text = text.trim_start();
    let quote = text.chars().next().filter(|first| matches!(first, '"' | '\''))?;
    text[1..].split(quote).next()
}

/// What follows a sign.
fn after(text: &str, sign: char) -> Option<&str> {
    text.trim_start().strip_prefix(sign)
}

/// The literal that a line of a script sets a variable to, whatever it was. A comparison sets nothing.
fn set<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let by_key = around(line, name).into_iter().find_map(|(before, rest)| {
        if before.ends_with("environ[") {
            literal(after(after(rest, ']')?, '=')?)
        } else if before.ends_with("putenv(") {
            literal(after(rest, ',')?)
        } else if before.contains("environ.update(") {
            literal(after(rest, ':')?)
        } else {
            None
        }
    });
    by_key.or_else(|| {
        let keywords = line.split_once("environ.update(")?.1;
        keywords
            .split([',', '(', '*'])
            .find_map(|word| literal(after(word.trim_start().strip_prefix(name)?, '=')?))
    })
}

/// The literal that a line of a script sets a variable to where it is not set.
fn default<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let around = around(line, name);
    // `os.environ["X"] = os.environ.get("X", "y")`. To look a variable up without that sets nothing.
    let is_set = around.iter().any(|(before, rest)| {
        before.ends_with("environ[") && after(rest, ']').and_then(|rest| after(rest, '=')).is_some()
    });
    let gets = |before: &str| is_set && (before.ends_with("environ.get(") || before.ends_with("getenv("));
    let given = |before: &str| before.ends_with("environ.setdefault(") || gets(before);
    around.into_iter().find_map(|(before, rest)| literal(after(rest, ',').filter(|_| given(before))?))
}

/// Whether a word names a program's text, by its ending.
pub(crate) fn is_script(word: &str) -> bool {
    matches!(ending(word), Some("py" | "sh" | "bash" | "jl" | "R" | "lua" | "pl" | "rb" | "js"))
}

/// Ending of a file's name.
pub(crate) fn ending(word: &str) -> Option<&str> {
    Path::new(word).extension().and_then(|end| end.to_str())
}

fn stem(word: &str) -> &str {
    word.rsplit('/').next().unwrap_or(word)
}

/// Whether a variable's text means yes.
fn is_true(text: &str) -> bool {
    matches!(text.trim().to_ascii_lowercase().as_str(), "1" | "true" | "yes" | "on")
}

/// Whether the value of an option means no.
fn is_false(text: &str) -> bool {
    matches!(text.trim().to_ascii_lowercase().as_str(), "0" | "false" | "f" | "no" | "n" | "off")
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A command with variables before it, and a script.
    pub(super) fn command(line: &str, script: &str) -> Command {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        Command::new(&words, &BTreeMap::new()).with_script(script.as_bytes())
    }

    #[test]
    fn variables_before_the_program_and_in_the_script() {
        let line =
            ["/bin/sh".to_owned(), "-c".to_owned(), "A=1 B='x y' python t.py --a_b=3 --c 4".to_owned()];
        let read = Command::new(&line, &[("C".to_owned(), "c".to_owned())].into());
        assert_eq!(
            (read.variable("A"), read.variable("C"), read.variable("D")),
            (Some("1"), Some("c"), None)
        );
        let read = command(
            "env A=1 python t.py",
            "import os\nos.environ['A'] = '2'\nos.environ.setdefault(\"B\", \"3\")",
        );
        assert_eq!(
            (read.variable("A"), read.variable("B"), read.program()),
            (Some("2"), Some("3"), "python")
        );
        // A default of the script is below what it finds; what is only looked up or compared is not set.
        for (line, a) in [
            ("os.environ['A'] = \"2\"", "2"),
            ("import os; os.environ[ 'A'] = '2'", "1"),
            ("os.putenv('A', '2')", "2"),
            ("os.environ.update(B='3', A='2')", "2"),
            ("os.environ.update({'B': '3', 'A': '2'})", "2"),
            ("os.environ.setdefault('A', '2')", "1"),
            ("os.environ['A'] = os.environ.get('A', '2')", "1"),
            ("x = os.environ.get('A', '2')", "1"),
            ("if os.environ['A'] == '2': x('3')", "1"),
            ("print(os.environ['A'], '2')", "1"),
            ("os.environ['A'] = str(x) + '2'", "1"),
        ] {
            assert_eq!(command("env A=1 python t.py", line).variable("A"), Some(a), "{line}");
        }
        for (line, c) in [
            ("os.environ.setdefault('C', '2')", Some("2")),
            ("os.environ['C'] = os.getenv('C', '2')", Some("2")),
            ("x = os.environ.get('C', '2')", None),
            ("os.environ['C'] == '2'", None),
        ] {
            assert_eq!(command("python t.py", line).variable("C"), c, "{line}");
        }
        let read = command("/opt/conda/bin/conda run --no-capture-output -n tf python -m vllm.x --y 1", "");
        assert_eq!((read.program(), read.module()), ("python", Some("vllm.x")));
        for (line, module) in [
            ("python3 -u -W ignore -Xdev -m vllm -m x", Some("vllm")),
            ("python3 -um vllm", Some("vllm")),
            ("python3 -mvllm", Some("vllm")),
            ("python3 train.py -m vllm", None),
            ("python3 -c m -m vllm", None),
            ("python3 -m", None),
            ("./run -m vllm", None),
        ] {
            assert_eq!(command(line, "").module(), module, "{line}");
        }
        assert_eq!(command("conda run -n", "").program(), "");
        let words: Vec<String> = ["--a_b=3", "--c", "4", "--d"].map(str::to_owned).to_vec();
        assert_eq!(Command::option(&words, &["a-b"]), Some("3"));
        assert_eq!((Command::option(&words, &["c"]), Command::option(&words, &["d"])), (Some("4"), None));
        assert!(Command::has(&words, &["d"]) && !Command::has(&words, &["a"]));
    }

    #[test]
    fn the_script_is_that_of_the_program_that_counts() {
        for (line, scripts) in [
            ("python jt.py --config a.py", "jt.py"),
            ("python jt.py; echo done", "jt.py"),
            ("python \"jt.py\"", "jt.py"),
            ("(python jt.py)", "jt.py"),
            ("for i in 1 2; do python jt.py; done", "jt.py"),
            ("cat a.py; ./jt.py; echo done", "./jt.py"),
            ("cd x; bash run.sh t.py > log", "run.sh"),
            ("srun julia --project=x.jl t.jl", "t.jl"),
            (
                "PYTHONPATH=src:/y python -m pk",
                "pk.py pk/__main__.py src/pk.py src/pk/__main__.py /y/pk.py /y/pk/__main__.py",
            ),
            ("python prep.py && torchrun --nproc-per-node 2 plain.py", "plain.py"),
            ("numactl -m 0 python -m pkg.train a.py", "pkg/train.py pkg/train/__main__.py a.py"),
            ("python -mpkg.train", "pkg/train.py pkg/train/__main__.py"),
            ("python -um pkg.train", "pkg/train.py pkg/train/__main__.py"),
            ("torchrun --nproc-per-node 2 -m pkg.train", "pkg/train.py pkg/train/__main__.py"),
            ("python -m torch.distributed.run --nproc-per-node 2 t.py -m a", "t.py"),
            ("mpirun -np 2 numactl -m 0 python -m pkg.train", "pkg/train.py pkg/train/__main__.py"),
            ("srun python t.py -m a", "t.py"),
            ("srun", ""),
            ("vllm serve m", ""),
        ] {
            let words = ["bash", "-c", line].map(str::to_owned);
            assert_eq!(Command::new(&words, &BTreeMap::new()).scripts().join(" "), scripts, "{line}");
        }
    }

    #[test]
    fn what_is_not_read_is_known() {
        let installed = |package: &str| package == "axolotl";
        let is_unread = |line: &str, read| command(line, "").is_unread(read, installed);
        for (line, read) in [
            ("python t.py", "t.py"),
            ("bash run.sh", "run.sh"),
            ("torchrun -n 2 t.py cfg.py", "t.py"),
            ("python -m torch.distributed.run t.py", "t.py"),
            ("accelerate launch -m axolotl.train t.py", "t.py"),
            ("python -m cProfile t.py", "t.py"),
        ] {
            assert!(!is_unread(line, Some(read)) && is_unread(line, None), "{line}");
        }
        for line in
            ["python -m axolotl.train c.yaml", "./a.out --x=t.py", "vllm serve m", "torchrun", "python -c x"]
        {
            assert!(!is_unread(line, None), "{line}");
        }
        for read in [None, Some("cfg.py")] {
            assert!(is_unread("python -m pk.tr cfg.py", read));
            assert!(is_unread("env PYTHONPATH=src torchrun -m pk.tr cfg.py", read));
        }
        assert!(!is_unread("python -m pk.tr cfg.py", Some("pk/tr.py")));
        assert!(!is_unread("env PYTHONPATH=src python -m pk.tr", Some("src/pk/tr.py")));
    }

    #[test]
    fn imports_are_those_of_the_top_level_package() {
        let read = command(
            "python t.py",
            "import os, jax.numpy as jnp\n    from flax import linen\n# import vllm\n",
        );
        assert!(
            read.imports("jax") && read.imports("flax") && !read.imports("vllm") && !read.imports("numpy")
        );
        assert!(!command("python t.py", "import jaxtyping\nfrom .jax import x").imports("jax"));
    }

    #[test]
    fn compilers_and_adapters() {
        assert!(command("python t.py", "model = torch.compile(model)").compiles());
        assert!(command("python t.py --torch_compile", "").compiles());
        assert!(!command("python t.py", "re.compile(x)\n# torch.compile(model)").compiles());
        assert_eq!(command("python sft.py --use_peft --lora_r 16", "").lora(), Some(16));
        for line in ["--lora_r 16", "--use_peft False --lora_r 16", "--lora_r 16 --use-peft=no"] {
            assert_eq!(command(&format!("python sft.py {line}"), "").lora(), None, "{line}");
        }
        assert_eq!(command("python sft.py --use_peft True --lora_r 16", "").lora(), Some(16));
        assert!(!command("python t.py --torch_compile 0", "").compiles());
        assert_eq!(command("python t.py --lora-rank=8", "from peft import LoraConfig").lora(), Some(8));
    }
}

//! What makes two runs the same task: the command without what does not change memory.

use crate::command::{Command, ending, is_script, line_at};
use fnv::FnvHasher;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::hash::Hasher as _;

/// Where a task runs, as far as memory depends on it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Place {
    /// Type of the GPU, as the driver names it.
    pub gpu: String,
    /// Framework and version, `unknown` where it was not said.
    pub framework: String,
    /// Version of the driver, `unknown` where it was not said.
    pub driver: String,
}

/// What is known of a task beside its numbers. Borrowed: made for one question.
#[derive(Debug, Clone, Copy, Default)]
pub struct Facts<'a> {
    /// Who runs it. Users do not learn from each other's commands: one could spoil another's bounds.
    pub user: u32,
    /// Program and arguments.
    pub command: &'a [String],
    /// Directory that it starts in.
    pub cwd: &'a str,
    /// Settings from its environment that change memory, see [`SETTINGS`].
    pub settings: &'a [(&'a str, &'a str)],
    /// GPUs that it asks for.
    pub gpus: u32,
    /// Samples a step, where it was said; else it is looked for in the command.
    pub batch_size: Option<u64>,
    /// Fingerprint of the script and of its [`configurations`], where they could be read; [`UNREAD`]: what it runs could not.
    pub script: Option<&'a str>,
    /// Name or fingerprint of the model's description.
    pub model: Option<&'a str>,
    /// The data set, where it was said.
    pub dataset: Option<&'a str>,
}

/// In place of a fingerprint where there is a script that could not be read: it may be another edition at every run.
pub const UNREAD: &str = "unread";

/// Environment variables that change how much memory a task takes. They are hashed in this order, and where they are set: a new one
/// comes last, so that what is stored keeps its key.
pub const SETTINGS: [&str; 14] = [
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_MODULE_LOADING",
    "NVIDIA_TF32_OVERRIDE",
    "TORCH_CUDNN_V8_API_DISABLED",
    // What JAX and TensorFlow take of a GPU, and whether they use one.
    "XLA_CLIENT_MEM_FRACTION",
    "XLA_PYTHON_CLIENT_MEM_FRACTION",
    "XLA_PYTHON_CLIENT_PREALLOCATE",
    "XLA_PYTHON_CLIENT_ALLOCATOR",
    "JAX_PLATFORMS",
    "JAX_PLATFORM_NAME",
    "TF_FORCE_GPU_ALLOW_GROWTH",
    "KERAS_BACKEND",
];

/// A task as history knows it. Its levels, from narrow to wide: everything equal; the program with
/// another batch size, another edition of the script or another place; the family (see
/// [`super::ratio`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signature {
    /// User, directory, command without batch size and without what does not change memory, settings,
    /// number of GPUs, data set.
    pub program: u64,
    /// The same without user and directory, but with the editions of script and model: what any user may run. `None`: its text is not
    /// known.
    pub shared: Option<u64>,
    /// Editions of script and model.
    pub content: u64,
    /// Its text could not be read: that two runs have the same edition is never known.
    pub unread: bool,
    /// Samples a step.
    pub batch: Option<u64>,
    /// Who runs it.
    pub user: u32,
    /// The command as it was compared, for people.
    pub label: String,
    /// Options of the command that change how long it runs and not what it takes, with their values: `epochs 3`.
    pub length: String,
    /// How many steps or epochs it is to do, where one of those options says it.
    pub iterations: Option<u64>,
    /// [`Self::length`] with that option but without its number: what runs of one command have in common that go on for longer or shorter.
    pub of_any_length: String,
    /// What runs, whatever its arguments: `python train.py`.
    pub script: String,
}

/// Options that take a value and do not change memory: how long, how fast, at random from where,
/// written to where. A name is not among them when scripts use it for the model as well (`--name`,
/// `--tag`), nor one that is a size of the model in some (`--iters`: refinements that are unrolled;
/// `--num-steps`: of a buffer on the GPU): taking two tasks for one is worse than not knowing that they are the same.
const NEUTRAL: &[&str] = &[
    "checkpoint-dir",
    "checkpoint-path",
    "ckpt-dir",
    "epoch",
    "epochs",
    "eval-every",
    "eval-interval",
    "exp-name",
    "experiment-name",
    "iterations",
    "job-id",
    "job-name",
    "learning-rate",
    "log",
    "log-dir",
    "log-every",
    "log-file",
    "log-freq",
    "log-interval",
    "log-level",
    "log-path",
    "logdir",
    "logging-dir",
    "logging-steps",
    "lr",
    "master-addr",
    "master-port",
    "max-epochs",
    "max-iter",
    "max-iters",
    "max-steps",
    "n-epochs",
    "num-epochs",
    "num-train-epochs",
    "num-workers",
    "o",
    "out",
    "out-dir",
    "outdir",
    "output",
    "output-dir",
    "output-file",
    "output-path",
    "patience",
    "port",
    "print-freq",
    "random-seed",
    "rdzv-endpoint",
    "rdzv-id",
    "run-id",
    "run-name",
    "save",
    "save-dir",
    "save-every",
    "save-freq",
    "save-name",
    "save-path",
    "save-steps",
    "seed",
    "steps",
    "total-steps",
    "train-steps",
    "wandb-name",
    "wandb-project",
    "warmup",
    "warmup-ratio",
    "warmup-steps",
    "wd",
    "weight-decay",
    "workers",
];

/// Those of [`NEUTRAL`] that change how long a task runs. Not among them: how often it evaluates or saves, which is a small
/// part of the time as a rule.
const LENGTH: &[&str] = &[
    "epoch",
    "epochs",
    "iterations",
    "max-epochs",
    "max-iter",
    "max-iters",
    "max-steps",
    "n-epochs",
    "num-epochs",
    "num-train-epochs",
    "num-workers",
    "patience",
    "steps",
    "total-steps",
    "train-steps",
    "workers",
];

/// Those of [`LENGTH`] that are no number of steps or epochs.
const NOT_ITERATIONS: &[&str] = &["num-workers", "patience", "workers"];

/// Those of [`NEUTRAL`] that change how busy a task keeps its GPU.
const FEEDING: &[&str] = &["num-workers", "workers"];

/// Groups of options that are of the training and not of the model: a dotted name is one of [`NEUTRAL`] only in these.
const GROUPS: &[&str] =
    &["hydra", "init_args", "logger", "optim", "optimizer", "train", "trainer", "training"];

/// Options that give the batch size.
const BATCH: &[&str] = &[
    "b",
    "batch",
    "batch-size",
    "batchsize",
    "bs",
    "micro-batch-size",
    "per-device-train-batch-size",
    "per-gpu-train-batch-size",
    "train-batch-size",
    "train-bs",
];

/// Words in a part of a dotted name that say that it is of an evaluation, but for one that is of a training, too (`train_val`).
const EVALUATION: &[&str] = &["eval", "evaluation", "test", "val", "valid", "validation"];

/// Longest label that is kept, bytes.
const LABEL: usize = 200;

impl Signature {
    /// Of a task.
    #[must_use]
    pub fn of(facts: &Facts<'_>) -> Self {
        let sizes = sizes(facts.command);
        let Words { kept, mut length } = normalise(&words(facts.command), sizes.agree());
        // In whatever order they stand.
        length.sort();
        let iterations = iterations(&length);
        let of_any_length = length.iter().map(|(name, given)| match iterations {
            Some((by, _)) if by == name => name.clone(),
            _ => format!("{name} {given}"),
        });
        let of_any_length = of_any_length.collect::<Vec<_>>().join(" ");
        let iterations = iterations.map(|(_, number)| number);
        let length: Vec<String> = length.iter().map(|(name, given)| format!("{name} {given}")).collect();
        let mut program = Hash::default();
        program.number(u64::from(facts.user)).number(u64::from(facts.gpus)).text(facts.cwd);
        for word in &kept {
            program.text(word);
        }
        program.number(u64::MAX).text(facts.dataset.unwrap_or_default());
        for (key, value) in facts.settings {
            program.text(key).text(value);
        }
        let mut content = Hash::default();
        content.text(facts.script.unwrap_or_default()).text(facts.model.unwrap_or_default());
        let content = content.finish();
        let script = script(facts.command);
        let known = facts.script.is_some_and(|text| text != UNREAD);
        let shared = known.then(|| shared(facts, &kept, &script, content));
        let mut label = kept.join(" ");
        while label.len() > LABEL {
            label.pop();
        }
        Self {
            program: program.finish(),
            shared,
            content,
            unread: facts.script == Some(UNREAD),
            batch: facts.batch_size.or(sizes.most()),
            user: facts.user,
            label,
            length: length.join(" "),
            iterations,
            of_any_length,
            script,
        }
    }
}

/// [`Signature::shared`] of a command whose text is known. Where program and script lie does not count: each user has a place.
fn shared(facts: &Facts<'_>, kept: &[String], script: &str, content: u64) -> u64 {
    let mut shared = Hash::default();
    shared.number(content).number(u64::from(facts.gpus));
    let runs: Vec<&str> = script.split(' ').map(file_name).collect();
    for word in kept {
        let name = file_name(word);
        shared.text(if runs.contains(&name) { name } else { word });
    }
    shared.number(u64::MAX).text(facts.dataset.unwrap_or_default());
    for (key, value) in facts.settings {
        shared.text(key).text(value);
    }
    shared.finish()
}

fn file_name(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(_, name)| name)
}

/// A command taken apart.
struct Words {
    /// Words that count.
    kept: Vec<String>,
    /// Options of [`LENGTH`] with their values.
    length: Vec<(String, String)>,
}

/// How many steps or epochs a command is to do, and by which option. `None`: none says so, or several do, of which one may be a part of
/// another or its bound.
fn iterations(length: &[(String, String)]) -> Option<(&String, u64)> {
    let said = length.iter().filter(|(name, _)| !NOT_ITERATIONS.contains(&name.as_str()));
    // `--max-steps -1` says nothing.
    let said = said.filter_map(|(name, given)| Some((name, given.parse().ok().filter(|n| *n > 0)?)));
    let mut said = said.fuse();
    said.next().filter(|_| said.next().is_none())
}

/// The program and the script or module that it is given.
fn script(command: &[String]) -> String {
    let command = Command::new(command, &BTreeMap::new());
    let program = command.program();
    command.script(is_script).map_or_else(|| program.to_owned(), |script| format!("{program} {script}"))
}

/// The user's program that a command runs, by what names it. What runs another's words (`python -c`, `docker run`, `make`) may do anything
/// under one name, and has none. Of a line for a shell only scripts and modules are found.
#[must_use]
pub fn own_program(command: &[String]) -> Option<String> {
    Command::new(command, &BTreeMap::new()).own_program()
}

/// A file that a command names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    /// As it is named.
    pub name: String,
    /// It is a script or a configuration by its ending; else whatever it is: it counts if it is a small text.
    pub is_sure: bool,
}

/// Files of a command that may configure what it does, in their order, scripts among them: what they say belongs to the task. Not among
/// them: what is named as a place of output, and data by another ending than a configuration's. `None`: only its shell can tell one of
/// them.
#[must_use]
pub fn configurations(command: &[String]) -> Option<Vec<Named>> {
    let mut files = Vec::new();
    let mut before = None;
    let mut is_target = false;
    for word in normalise(&words(command), false).kept {
        // Where a shell sends output.
        if std::mem::take(&mut is_target) {
            continue;
        }
        if let Some((descriptor, target)) = word.split_once('>')
            && descriptor.bytes().all(|b| b.is_ascii_digit())
        {
            is_target = target.trim_start_matches('>').is_empty();
            continue;
        }
        let value = if word.contains("://") {
            &word
        } else {
            word.split_once('=').map_or(&*word, |(_, value)| value)
        };
        let (name, own) = option(&word).unzip();
        let (of, carries) = match &own {
            Some(Some(_)) => (name.as_deref(), true),
            Some(None) => (None, false),
            None => (before.as_deref(), false),
        };
        let is_result = of.is_some_and(|name| names_result(name, carries));
        let is_data = of.is_some_and(names_data);
        let is_bare = own.is_none() && of.is_none();
        // `--x=a=c.yaml`, `c.yaml,d.yaml`.
        for value in value.split(',').filter_map(|value| value.rsplit('=').next()) {
            let value = value.trim_matches(['\'', '"', ';', ')']).trim_start_matches(['@', '<']);
            let is_sure = is_script(value) || is_configuration(value);
            let counts = is_script(value) || !is_result;
            let may_be = || is_bare || of.is_some_and(names_configuration);
            if value.contains(['$', '`'])
                && counts
                && (is_sure && !is_data || !value.contains('.') && may_be())
            {
                return None;
            }
            let is_text = || !is_data && own != Some(None) && !value.contains("://") && !is_written(value);
            if counts && !value.is_empty() && (is_sure || is_text()) {
                let is_sure = is_script(value) || is_sure && !is_data;
                files.push(Named { name: value.to_owned(), is_sure });
            }
        }
        before = name.filter(|_| own == Some(None));
    }
    Some(files)
}

/// Whether an option names what is read or written and does not configure: data, and the states of earlier runs.
fn names_data(name: &str) -> bool {
    const DATA: &[&str] = &[
        "cache",
        "checkpoint",
        "checkpoints",
        "ckpt",
        "corpus",
        "data",
        "dataset",
        "datasets",
        "dir",
        "eval",
        "folder",
        "hostfile",
        "image",
        "images",
        "input",
        "inputs",
        "machinefile",
        "out",
        "pid",
        "resume",
        "root",
        "split",
        "tensorboard",
        "test",
        "train",
        "val",
        "valid",
        "validation",
        "weights",
    ];
    !names_configuration(name) && name.split(['-', '_', '.']).any(|part| DATA.contains(&part))
}

fn names_configuration(name: &str) -> bool {
    name.split(['-', '_', '.'])
        .any(|part| matches!(part, "args" | "config" | "configs" | "configuration" | "conf" | "cfg"))
}

/// Whether a file is a log or a table by its ending, which is written by runs or is data.
fn is_written(word: &str) -> bool {
    let end = ending(word).map(str::to_ascii_lowercase);
    matches!(end.as_deref(), Some("csv" | "err" | "jsonl" | "lock" | "log" | "out" | "pid" | "tsv"))
}

/// Whether an option of this name names what a run writes, which is another text each time. `carries`: its value stands in the same
/// word; `--log` and `--save` may be flags.
fn names_result(name: &str, carries: bool) -> bool {
    let has = |words: &[&str]| name.split(['-', '_', '.']).any(|part| words.contains(&part));
    let is_result =
        has(&["metric", "metrics", "result", "results", "report", "reports", "history", "output", "outputs"]);
    let may_be_flag = !carries && matches!(name, "log" | "save");
    !names_configuration(name) && (is_result || has(&["log", "logs", "save"]) && !may_be_flag)
}

fn is_configuration(word: &str) -> bool {
    let end = ending(word).map(str::to_ascii_lowercase);
    matches!(
        end.as_deref(),
        Some("yaml" | "yml" | "json" | "jsonnet" | "toml" | "cfg" | "conf" | "ini" | "gin")
    )
}

/// Options that are flags in some scripts: then what is to be done follows (`--save resnet18`).
const FLAGS: &[&str] = &["log", "patience", "port", "save", "warmup"];

/// Whether a word after an option may be its value. Of what may be a flag a number or a path is; only what names a place of output may be
/// a file that configures or runs.
fn may_be_value(name: &str, word: &str) -> bool {
    if FLAGS.contains(&name) && !word.contains('/') && word.parse::<f64>().is_err() {
        return false;
    }
    let is_place =
        name == "o" || name.starts_with("out") || name.ends_with("-file") || name.ends_with("-path");
    option(word).is_none() && !is_script(word) && (is_place || !is_configuration(word))
}

/// Whether a number is no place of output, as an option of this name has it: it may be a size of the model (`--out 256`).
fn is_size(name: &str, value: &str) -> bool {
    const PLACES: &[&str] = &["log", "o", "out", "output", "save"];
    PLACES.contains(&name) && value.trim_matches(['\'', '"', ')']).parse::<f64>().is_ok()
}

/// The batch sizes that a command gives.
#[derive(Debug, Default)]
struct Sizes {
    /// Of each of its commands those of one process, where they are said, else all. `None`: known only when it runs.
    counting: Vec<Option<u64>>,
    all: Vec<Option<u64>>,
}

impl Sizes {
    /// The one that is reckoned with: where it is not clear which counts, the largest.
    fn most(&self) -> Option<u64> {
        self.counting.iter().copied().collect::<Option<Vec<u64>>>()?.into_iter().max()
    }

    /// Whether they are one number. Of several each may decide what a task takes, so they belong to the program.
    fn agree(&self) -> bool {
        self.all.windows(2).all(|two| two[0] == two[1])
    }
}

fn sizes(command: &[String]) -> Sizes {
    let mut sizes = Sizes::default();
    let mut add = |words: &[String]| {
        let mut given: Vec<(String, Option<u64>)> = Vec::new();
        without(words, |name, value| {
            if let (Ok(_), Some(value)) = (BATCH.binary_search(&name), value) {
                match value.trim_matches(['\'', '"', ')']).parse::<u64>() {
                    Ok(size) if size > 0 => given.push((name.to_owned(), Some(size))),
                    _ if value.contains('$') => given.push((name.to_owned(), None)),
                    _ => {}
                }
            }
            false
        });
        let of_process: Vec<_> = given.iter().filter(|(name, _)| is_of_process(name)).map(|g| g.1).collect();
        let of_all = given.iter().map(|g| g.1);
        sizes.all.extend(of_all.clone());
        if of_process.is_empty() { sizes.counting.extend(of_all) } else { sizes.counting.extend(of_process) }
    };
    match Line::of(command) {
        Some(Line { line, after, .. }) => {
            line.split([';', '&', '|', '\n']).for_each(|part| add(&split(part)));
            add(after);
        }
        None => add(command),
    }
    sizes
}

/// Whether a batch size is what one process takes at once, and not of all processes or several steps.
fn is_of_process(name: &str) -> bool {
    name.starts_with("micro-") || name.starts_with("per-")
}

/// `one_size`: all batch sizes are the same number, which is compared apart from the words.
fn normalise(words: &[String], one_size: bool) -> Words {
    let mut length = Vec::new();
    let kept = without(words, |name, given| {
        let is_size = |v: &&str| one_size && v.parse::<u64>().is_ok_and(|n| n > 0);
        let size = given.filter(|_| BATCH.binary_search(&name).is_ok()).filter(is_size);
        let Some(given) = given.filter(|given| size.is_some() || is_neutral(name, given)) else {
            return false;
        };
        if LENGTH.binary_search(&name).is_ok() {
            length.push((name.to_owned(), given.to_owned()));
        }
        true
    });
    Words { kept, length }
}

fn is_neutral(name: &str, value: &str) -> bool {
    NEUTRAL.binary_search(&name).is_ok() && !is_size(name, value)
}

/// The words without the options that are to be dropped, by name and value; the value of a dropped option goes with it.
fn without(words: &[String], mut drops: impl FnMut(&str, Option<&str>) -> bool) -> Vec<String> {
    let (mut kept, mut rest) = (Vec::with_capacity(words.len()), words.iter());
    while let Some(word) = rest.next() {
        let Some((name, value)) = option(word) else {
            kept.push(word.clone());
            continue;
        };
        // `key=value` without dashes carries its value; so does `--key=value`.
        let following = rest.as_slice().first().filter(|next| may_be_value(&name, next));
        if !drops(&name, value.as_ref().or(following).map(String::as_str)) {
            kept.push(word.clone());
        } else if value.is_none() {
            let _ = rest.next();
        }
    }
    kept
}

/// The words of a command that say what it does to a GPU while it runs. What is left out are options that say how long it runs, how fast
/// it learns, at random from where, and where it writes: the trainings of a search for a learning rate are alike. A line for a shell is
/// taken apart only where something is left out of it.
#[must_use]
pub fn doing(command: &[String]) -> Vec<String> {
    let doing = |words: &[String]| {
        without(words, |name, given| {
            given.is_some_and(|given| is_neutral(name, given)) && !FEEDING.contains(&name)
        })
    };
    let Some(Line { before, line, after, .. }) = Line::of(command) else { return doing(command) };
    let words = [&split(line), after].concat();
    let kept = doing(&words);
    if kept.len() == words.len() { command.to_vec() } else { [before, &kept].concat() }
}

/// A command with a line for a shell, which is what --wrap makes.
struct Line<'a> {
    /// What starts the shell: `timeout 60`.
    outside: &'a [String],
    /// All that comes before the line: `timeout 60 bash -lc`.
    before: &'a [String],
    line: &'a str,
    /// What the shell hands to it.
    after: &'a [String],
}

impl<'a> Line<'a> {
    fn of(command: &'a [String]) -> Option<Self> {
        let (shell, at) = line_at(command)?;
        let (before, [line, after @ ..]) = command.split_at(at) else { return None };
        Some(Self { outside: &command[..shell], before, line, after })
    }
}

/// The words of a command, those of a line for a shell in place of the shell: it is compared word by word as well.
fn words(command: &[String]) -> Cow<'_, [String]> {
    match Line::of(command) {
        Some(Line { outside, line, after, .. }) => [outside, &split(line), after].concat().into(),
        None => command.into(),
    }
}

fn split(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

/// Name of an option in one spelling, and the value that stands in the same word. Of a dotted name (`trainer.max_epochs=3` of Hydra,
/// `--data.batch_size 8`) the last part where that says it all, else the whole.
fn option(word: &str) -> Option<(String, Option<String>)> {
    if let Some(size) = word.strip_prefix("-b").filter(|size| !size.is_empty())
        && size.bytes().all(|b| b.is_ascii_digit())
    {
        return Some(("b".to_owned(), Some(size.to_owned())));
    }
    let dashed = word.starts_with('-') && word.parse::<f64>().is_err() && word.len() > 1;
    let (name, value) = match word.split_once('=') {
        Some((name, value)) => (name, Some(value.to_owned())),
        None if dashed => (word, None),
        None => return None,
    };
    // `+seed=1` of Hydra.
    let whole = name.trim_start_matches(['-', '+']);
    let (groups, name) = whole.rsplit_once('.').map_or((None, whole), |(groups, name)| (Some(groups), name));
    if name.is_empty() || name.contains('/') {
        return None;
    }
    // `-O` and `-B` of Python are not `-o` and `-b`.
    let name = if name.len() == 1 { name.to_owned() } else { name.to_ascii_lowercase().replace('_', "-") };
    let Some(groups) = groups.map(str::to_ascii_lowercase) else { return Some((name, value)) };
    let counts = if BATCH.binary_search(&&*name).is_ok() {
        // What an evaluation takes at once (`val.batch_size=8`) is not what training does.
        !groups.split('.').any(|part| {
            let has = |words: &[&str]| part.split('_').any(|word| words.contains(&word));
            has(EVALUATION) && !has(&["train", "training"])
        })
    } else {
        groups.split('.').all(|part| GROUPS.contains(&part))
    };
    Some((if counts { name } else { whole.to_owned() }, value))
}

/// FNV-1a over parts that are kept apart: the same in every version of carma, since it is stored.
#[derive(Default)]
pub(super) struct Hash(FnvHasher);

impl Hash {
    pub(super) fn text(&mut self, text: &str) -> &mut Self {
        self.0.write(text.as_bytes());
        self.0.write(&[0]);
        self
    }

    pub(super) fn number(&mut self, number: u64) -> &mut Self {
        self.0.write(&number.to_le_bytes());
        self
    }

    pub(super) fn finish(&self) -> u64 {
        self.0.finish()
    }
}

/// Fingerprint of a file's content, as [`Facts::script`] wants it.
#[must_use]
pub fn fingerprint(content: &[u8]) -> String {
    let mut hash = Hash::default();
    hash.0.write(content);
    format!("{:016x}", hash.number(content.len() as u64).finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Signature {
        let command: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        Signature::of(&Facts { command: &command, cwd: "/w", gpus: 1, ..Facts::default() })
    }

    #[test]
    fn the_lists_are_sorted_for_the_search() {
        assert!(NEUTRAL.is_sorted() && BATCH.is_sorted() && LENGTH.is_sorted());
        assert!(
            LENGTH.iter().all(|name| NEUTRAL.contains(name)),
            "what counts for memory counts for time anyway"
        );
    }

    #[test]
    fn what_does_not_change_memory_does_not_count() {
        let one = of("python train.py --model r50 --epochs 3 --seed=7 --output_dir /a -b 32");
        for same in [
            "python train.py --epochs=90 --model r50 --batch_size 32",
            "python train.py --model r50 --lr 0.1 --batch-size=32 --run-name x --steps 9",
            "python train.py --model r50 --bs 32 trainer.max_epochs=4 +seed=3",
            "python train.py --save out/a --model r50 --bs 32 --log ./b --warmup 100 --patience 3 --port 29500",
        ] {
            // All but how long it runs.
            let Signature { length, iterations, of_any_length, .. } = one.clone();
            assert_eq!(Signature { length, iterations, of_any_length, ..of(same) }, one, "{same}");
        }
        assert_eq!((one.batch, one.label.as_str()), (Some(32), "python train.py --model r50"));
    }

    #[test]
    fn what_may_be_of_the_model_counts() {
        for (a, b) in [
            ("./train.sh --iters 6", "./train.sh --iters 24"),
            ("python ppo.py --num-steps 128", "python ppo.py --num-steps 2048"),
            ("python t.py --num_iters=3", "python t.py --num_iters=4"),
            ("python t.py num_steps=3", "python t.py num_steps=4"),
            ("python t.py model.iterations=3", "python t.py model.iterations=4"),
            ("python t.py model.out=256", "python t.py model.out=512"),
            ("python t.py --decoder.output 256", "python t.py --decoder.output 512"),
            ("python t.py trainer.model.out=256", "python t.py trainer.model.out=512"),
            ("python t.py --out 256", "python t.py --out 512"),
            ("python t.py --output=256", "python t.py --output=512"),
            ("python t.py -o 256", "python t.py -o 512"),
            ("python t.py out=256", "python t.py out=512"),
            ("python t.py --save resnet18", "python t.py --save resnet152"),
            ("python t.py --log small", "python t.py --log large"),
            ("python t.py --warmup fit", "python t.py --warmup predict"),
            ("python t.py --ep 2", "python t.py --ep 4"),
        ] {
            let words = |line: &str| -> Vec<String> { line.split(' ').map(str::to_owned).collect() };
            assert_ne!(of(a).program, of(b).program, "{a}");
            assert_ne!(doing(&words(a)), doing(&words(b)), "{a}");
            assert_eq!(of(a).length, "", "{a}");
        }
        let one = of("python t.py fit");
        for same in [
            "--optimizer.lr 0.1",
            "--optimizer.init_args.lr=0.1",
            "--trainer.max_epochs 3",
            "hydra.output_dir=/a",
            "++train.optim.weight_decay=0.1",
        ] {
            assert_eq!(of(&format!("python t.py fit {same}")).program, one.program, "{same}");
        }
    }

    fn sure(command: &[String]) -> String {
        let files = configurations(command).unwrap();
        files.into_iter().filter(|file| file.is_sure).map(|file| file.name).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn files_that_may_configure() {
        let of = |line: &str| {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            let files = configurations(&words)?.into_iter();
            Some(files.filter(|file| !file.is_sure).map(|file| file.name).collect::<Vec<_>>().join(" "))
        };
        for (line, files) in [
            ("t.py --config args.txt", "args.txt"),
            ("t.py --config=conf/base @a.txt", "conf/base a.txt"),
            ("t.py --x a.txt,b.txt --y=a=c.txt", "a.txt b.txt c.txt"),
            ("t.py --data x.txt --train-dataset d.json --resume c.txt --dir d", "d.json"),
            ("t.py --log-file a.txt --metrics m.txt --csv x.csv y.jsonl z.log > o.txt 2> e.txt", ""),
            ("t.py --output o.txt --data-config d.txt", "d.txt"),
        ] {
            assert_eq!(of(line).as_deref(), Some(files), "{line}");
        }
        assert_eq!(
            sure(&["t.py", "C.YAML", "c.yaml,d.yaml", "@e.jsonnet"].map(str::to_owned)),
            "t.py C.YAML c.yaml d.yaml e.jsonnet"
        );
        for line in [
            "python $D/t.py",
            "t.py --config conf/$1.yaml",
            "t.py $CFG",
            "t.py --config $CFG",
            "t.py x=$(a).toml",
        ] {
            assert_eq!(of(line), None, "{line}");
        }
        for line in ["t.py --seed $SEED", "t.py --output $X.json", "t.py --data-dir $D --lr=$LR"] {
            assert!(of(line).is_some(), "{line}");
        }
    }

    #[test]
    fn files_that_configure() {
        let of = |words: &[&str]| sure(&words.iter().map(ToString::to_string).collect::<Vec<_>>());
        let line = |line: &str| of(&line.split(' ').collect::<Vec<_>>());
        assert_eq!(
            line("python t.py --config c.yaml b.toml --seed 1 --x=a/d.json"),
            "t.py c.yaml b.toml a/d.json"
        );
        assert_eq!(line("accelerate launch --config_file a.yaml t.py model=b.yml"), "a.yaml t.py b.yml");
        assert_eq!(line("python t.py --out r.json -o s.yaml --log-file=l.json --output_dir x"), "t.py");
        assert_eq!(line("tools/run.sh --data x.csv --config=t.cfg.py"), "tools/run.sh t.cfg.py");
        assert_eq!(
            of(&["sh", "-c", "python a.py --c 'a.yaml'; python b.py --c=b.ini;"]),
            "a.py a.yaml b.py b.ini"
        );
    }

    #[test]
    fn files_of_results_configure_nothing() {
        let files = |line: &str| {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            sure(&words)
        };
        for line in [
            "./run --metrics metrics.json",
            "./run --metrics-file=m.json --results r.json",
            "./run --save_history h.json --eval.report_to r.yaml",
            "./run --save=s.json --log=l.json",
            "./run output.metrics=m.json",
        ] {
            assert_eq!(files(line), "", "{line}");
        }
        // What follows a flag, and what is a configuration by name.
        assert_eq!(files("./run --save c.json --log d.yaml"), "c.json d.yaml");
        assert_eq!(files("./run --metrics-config m.yaml --history_cfg=h.yaml"), "m.yaml h.yaml");
        assert_eq!(files("./run --metrics m.json c.yaml --results=r.json d.yaml"), "c.yaml d.yaml");
        assert_eq!(files("./run --metrics c.py"), "c.py");
    }

    #[test]
    fn batch_sizes_of_groups_and_letters() {
        let one = of("python t.py --batch-size 64").program;
        for line in ["-b32", "--data.batch_size 32", "--data.init_args.batch_size=32", "data.batch_size=32"] {
            let of = of(&format!("python t.py {line}"));
            assert_eq!((of.batch, of.program), (Some(32), one), "{line}");
        }
        for line in ["-b", "-bb", "-b3x", "-bs32", "--b32", "--data.val.batch_size 8", "-B32"] {
            assert_eq!(of(&format!("python t.py {line}")).batch, None, "{line}");
        }
    }

    #[test]
    fn the_script_is_what_the_program_is_told_to_run() {
        for (line, script) in [
            ("python train.py -m resnet50", "python train.py"),
            ("python eval.py -m resnet50", "python eval.py"),
            ("python -um pkg --x", "python pkg"),
            ("python3 -W ignore -mpkg.a t.py", "python3 pkg.a"),
            ("torchrun -n 2 -m pkg.a t.py", "torchrun pkg.a"),
            ("torchrun -n 2 t.py -m a", "torchrun t.py"),
            ("nice env A=1 python t.py", "python t.py"),
            ("bash run.sh -m a", "bash run.sh"),
            ("julia t.jl", "julia t.jl"),
        ] {
            assert_eq!(of(line).script, script, "{line}");
        }
        let command = ["/bin/sh", "-c", "cd x && python t.py -m a"].map(str::to_owned);
        assert_eq!(Signature::of(&Facts { command: &command, ..Facts::default() }).script, "python t.py");
    }

    #[test]
    fn a_program_is_named_by_what_runs_and_not_by_what_runs_it() {
        let program = |line: &str| own_program(&line.split(' ').map(str::to_owned).collect::<Vec<_>>());
        for (line, name) in [
            ("python a.py --lr 1", " a.py a.py"),
            ("python -m pkg.a", " pkg.a"),
            ("python -m cProfile a.py", " cProfile a.py"),
            ("torchrun -n 2 a.py", " a.py a.py"),
            ("mpirun -n 2 ./a", " ./a"),
            ("bash run.sh 3", " run.sh run.sh"),
            ("nice ./x/train 3", " ./x/train"),
            ("/home/a/train", " /home/a/train"),
        ] {
            assert_eq!(program(line).as_deref(), Some(name), "{line}");
        }
        for line in [
            "python -c pass",
            "venv/bin/python3 -c pass",
            "bash -c a",
            "make b",
            "docker run x",
            "/usr/bin/make b",
            "/opt/conda/bin/ipython -c pass",
            "./bash -c a",
            "",
        ] {
            assert_eq!(program(line), None, "{line}");
        }
        let shell = |line: &str| own_program(&["/bin/sh", "-c", line].map(str::to_owned));
        assert_eq!(shell("cd x && python a.py --lr 1").as_deref(), Some("x a.py a.py"));
        assert_eq!(shell("cd $X && python a.py"), None);
    }

    #[test]
    fn trainings_that_differ_in_rates_seeds_and_places_do_the_same() {
        let of = |words: &[&str]| doing(&words.iter().map(ToString::to_string).collect::<Vec<_>>()).join(" ");
        let line = |line: &str| of(&line.split(' ').collect::<Vec<_>>());
        let one = line("python train.py --model r50 --lr 0.1 --epochs=3 -b 32 --workers 4");
        assert_eq!(one, "python train.py --model r50 -b 32 --workers 4");
        assert_eq!(line("python train.py --model r50 trainer.seed=7 -b 32 -o /x --workers 4"), one);
        for other in ["-b 64 --workers 4", "-b 32 --workers 8"] {
            assert_ne!(line(&format!("python train.py --model r50 {other}")), one);
        }
        // What has no such option is as it was given; a flag without a value stays.
        for same in ["python t.py --amp x  y", "./run --seed --fast", "sh -c x"] {
            assert_eq!(line(same), same);
        }
        assert_eq!(of(&["/bin/sh", "-c", "exec  a 'b  c'"]), "/bin/sh -c exec  a 'b  c'");
        assert_eq!(of(&["/bin/sh", "-c", "python t.py --lr 1  --x"]), "/bin/sh -c python t.py --x");
        assert_eq!(of(&[]), "");
    }

    #[test]
    fn scripts_and_configurations_are_no_values_of_options() {
        for (a, b) in [
            ("python -O a.py", "python -O b.py"),
            ("python -B 32 a.py", "python -B 64 a.py"),
            ("python t.py --log big.yaml", "python t.py --log small.yaml"),
            ("python t.py --save big.json", "python t.py --save small.json"),
            ("./run -o a.sh", "./run -o b.sh"),
        ] {
            let words = |line: &str| -> Vec<String> { line.split(' ').map(str::to_owned).collect() };
            assert_ne!(of(a).program, of(b).program, "{a}");
            assert_ne!(doing(&words(a)), doing(&words(b)), "{a}");
        }
        let one = of("python t.py").program;
        for same in ["--out a.json", "-o b.yaml", "--log-file c.json", "--save=d.json", "--log ./x"] {
            assert_eq!(of(&format!("python t.py {same}")).program, one, "{same}");
        }
    }

    #[test]
    fn runs_of_one_command_may_be_of_another_length() {
        let said = |line: &str| {
            let of = of(&format!("python train.py {line}"));
            (of.iterations, of.of_any_length)
        };
        let by = |name: &str| name.to_owned();
        assert_eq!(said("--workers 4 --epochs 3"), (Some(3), by("epochs workers 4")));
        assert_eq!(said("trainer.max_epochs=90 -b 32"), (Some(90), by("max-epochs")));
        assert_eq!(said("--max-steps -1 --epochs 3"), (Some(3), by("epochs max-steps -1")));
        for neither in ["--epochs 3 --steps 100", "--epochs 0", "--epochs all", "--patience 3", ""] {
            assert_eq!(said(neither).0, None, "{neither}");
        }
    }

    #[test]
    fn what_changes_how_long_it_runs_is_kept_apart() {
        let one = of("python -u train.py --epochs 3 --seed=7 --num_workers=4 -b 32 --lr 0.1");
        assert_eq!((one.length.as_str(), one.script.as_str()), ("epochs 3 num-workers 4", "python train.py"));
        let other = of("python -u train.py --num-workers 4 --seed=9 trainer.epochs=3 -b 32 --out /x");
        assert_eq!((other.length, other.program), (one.length, one.program));
        assert_eq!(of("/usr/bin/python3 -m pkg.train --epochs 3").script, "python3 pkg.train");
        assert_eq!(of("torchrun --nproc 2 run.py x.py").script, "torchrun run.py");
        assert_eq!(
            (of("./train 3").script, Signature::of(&Facts::default()).script),
            ("train".into(), String::new())
        );
    }

    #[test]
    fn another_batch_is_the_same_program_and_another_model_is_not() {
        let (a, b) = (of("python t.py --bs 32"), of("python t.py --bs 64"));
        assert_eq!((a.program, a.batch, b.batch), (b.program, Some(32), Some(64)));
        assert_ne!(of("python t.py --model a").program, of("python t.py --model b").program);
        assert_ne!(of("python t.py --amp").program, of("python t.py").program);
        // An option that could be the batch size and is none stays.
        assert_ne!(of("python t.py -b x.yml").program, of("python t.py -b y.yml").program);
    }

    #[test]
    fn of_several_batch_sizes_none_is_left_out() {
        let wrap = |text: &str| {
            let command = ["/bin/sh", "-c", text].map(str::to_owned);
            Signature::of(&Facts { command: &command, cwd: "/w", gpus: 1, ..Facts::default() })
        };
        for (line, batch) in [
            ("python t.py --micro-batch-size 4 --batch-size 256", Some(4)),
            ("python t.py --per_device_train_batch_size 64 --batch-size 8", Some(64)),
            ("python t.py train.batch_size=64 val.batch_size=8", Some(64)),
            ("python t.py val.batch_size=8 train.batch_size=64", Some(64)),
            ("python t.py data.val_loader.batch_size=8", None),
            ("python t.py train_val.batch_size=32 val_dataloader.batch_size=64", Some(32)),
            ("python t.py --batch-size 64 --bs 8", Some(64)),
            ("python t.py --batch-size 64 -b 64", Some(64)),
        ] {
            assert_eq!(of(line).batch, batch, "{line}");
        }
        for (line, batch) in [
            ("python3 t.py --batch-size 64; python3 e.py -b 1", Some(64)),
            ("python3 e.py --micro-batch-size 1&&python3 t.py --batch-size 64", Some(64)),
            ("cd x && torchrun t.py --per-device-train-batch-size 4 --batch-size 64", Some(4)),
            ("python3 t.py --batch-size '64'\npython3 e.py -b 1 | tee log", Some(64)),
            ("python3 t.py --batch-size $B; python3 e.py -b 1", None),
        ] {
            assert_eq!(wrap(line).batch, batch, "{line}");
        }
        // Either number may be the one that decides.
        let program = |line: &str| of(line).program;
        for (a, b) in [
            (
                "python t.py --micro-batch-size 4 --batch-size 256",
                "python t.py --micro-batch-size 32 --batch-size 256",
            ),
            (
                "python t.py train.batch_size=64 val.batch_size=8",
                "python t.py train.batch_size=64 val.batch_size=9",
            ),
        ] {
            assert_ne!(program(a), program(b), "{a}");
        }
        // One number is compared apart, as ever, however often it is said.
        assert_eq!(program("python t.py --bs 8 --batch-size 8"), program("python t.py --bs 64"));
    }

    #[test]
    fn a_line_for_the_shell_is_compared_by_its_words() {
        let line = |text: &str| {
            let command = ["/bin/sh", "-c", text].map(str::to_owned);
            Signature::of(&Facts { command: &command, gpus: 1, ..Facts::default() })
        };
        let (one, other) = (line("python t.py --epochs 2 --bs 8"), line("python t.py --bs 8 --epochs 30"));
        let Signature { length, iterations, of_any_length, .. } = one.clone();
        assert_eq!(Signature { length, iterations, of_any_length, ..other }, one);
    }

    #[test]
    fn a_line_is_found_behind_what_starts_its_shell() {
        let words = |words: &[&str]| words.iter().map(ToString::to_string).collect::<Vec<_>>();
        let signature = |command: &[String]| Signature::of(&Facts { command, ..Facts::default() });
        let plain = words(&["sh", "-c", "python t.py --bs 8 --seed 1 -c c.yaml"]);
        let line = "python t.py --bs 8 --seed 7 -c c.yaml";
        for shell in [
            &["bash", "-lc", line][..],
            &["bash", "-ec", line],
            &["/bin/bash", "-euo", "pipefail", "-c", line],
            &["bash", "--login", "-c", line],
        ] {
            assert_eq!(signature(&words(shell)), signature(&plain), "{shell:?}");
        }
        let timed = words(&["timeout", "3600", "bash", "-lc", line]);
        assert_eq!((sure(&timed).as_str(), signature(&timed).batch), ("t.py c.yaml", Some(8)));
        let doing_of = |line: &str| doing(&words(&["timeout", "60", "bash", "-lc", line]));
        assert_eq!(doing_of("python t.py --lr 1 -b 8"), doing_of("python t.py --lr 2 -b 8"));
        assert_eq!(doing_of("python t.py --lr 1").join(" "), "timeout 60 bash -lc python t.py");
        // What comes before and after a line counts.
        let around =
            |before: &str, after: &str| signature(&words(&["env", before, "bash", "-c", line, "_", after]));
        assert_ne!(around("B=1", "1").program, around("B=2", "1").program);
        assert_ne!(around("B=1", "1").program, around("B=1", "2").program);
        assert_eq!(around("B=1", "--bs=64").batch, Some(64));
        for none in [&["bash", "run.sh", "-c", line][..], &["bash", "-c"], &["timeout", "1"], &["bash"]] {
            assert_eq!(doing(&words(none)), words(none));
        }
    }

    #[test]
    fn users_directories_and_settings_count() {
        let command = ["python".to_owned(), "t.py".to_owned()];
        let facts = Facts { command: &command, cwd: "/a", gpus: 1, ..Facts::default() };
        let base = Signature::of(&facts).program;
        for other in [
            Facts { user: 5, ..facts },
            Facts { cwd: "/b", ..facts },
            Facts { gpus: 2, ..facts },
            Facts { dataset: Some("cifar100"), ..facts },
            Facts { settings: &[("PYTORCH_ALLOC_CONF", "expandable_segments:True")], ..facts },
            Facts { settings: &[("XLA_PYTHON_CLIENT_MEM_FRACTION", ".2")], ..facts },
        ] {
            assert_ne!(Signature::of(&other).program, base, "{other:?}");
        }
        let edited = Facts { script: Some("1"), ..facts };
        assert_eq!(Signature::of(&edited).program, base);
        assert_ne!(Signature::of(&edited).content, Signature::of(&facts).content);
    }
}

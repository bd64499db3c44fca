//! What a command says of its memory by itself: its launcher, its settings, its script's text. Read by the client,
//! with its user's rights and no more bytes than are allowed here.

use super::dry_run;
use super::packages::Installed;
use crate::cli::memory::TaskArgs;
use carma_memory::command::{Command, Each, Processes, Sharding, Shell, Taker, is_shell};
use carma_memory::estimators::Known;
use carma_memory::history::{UNREAD, configurations, fingerprint};
use carma_memory::trace::COMPILED;
use carma_memory::{Lora, ModelTask, Parallel};
use std::collections::BTreeMap;
use std::fs;
use std::io::{ErrorKind, Read as _};
use std::path::{Path, PathBuf};

/// Largest script whose text is looked at, bytes.
const MOST_SCRIPT: u64 = 4 << 20;
/// Largest file of settings (DeepSpeed's JSON, accelerate's YAML), bytes.
const MOST_SETTINGS: u64 = 1 << 20;
/// Largest file that is looked at for what it configures, bytes: larger ones are data.
const MOST_CONFIGURATION: u64 = 1 << 20;
/// Bytes by which such a file is known as a text, where its name does not say so.
const HEAD: u64 = 4 << 10;
/// Largest script for a shell that is taken apart, bytes.
const MOST_SHELL: usize = 64 << 10;
/// Most files of a command, and most scripts for a shell that start each other.
const MOST_FILES: usize = 32;
/// Bound where several processes, or several GPUs, are not modelled.
const SEVERAL: f64 = 0.40;

/// A command that was looked at.
#[derive(Debug, Default)]
pub(crate) struct Spoken {
    command: Command,
    processes: Processes,
    /// Text of its script, where it could be read.
    pub(crate) script: Option<Vec<u8>>,
    /// Fingerprint of the script and of the files that configure it; `None`: none could be read. [`UNREAD`]: what it runs could not be.
    pub(crate) edition: Option<String>,
    /// Where its program starts; `None`: only its shell can tell.
    folder: Option<PathBuf>,
    /// Script and arguments as a dry run would start them; empty: it is no Python program.
    program: Vec<String>,
}

impl Spoken {
    /// Looks at a command with the environment and the directory that it runs in.
    pub(crate) fn of(command: &[String], env: &BTreeMap<String, String>, cwd: &Path) -> Self {
        let program = dry_run::launch(command, env, cwd).map(|launch| launch.program()).unwrap_or_default();
        let edition = Texts::of(command, env, cwd).edition();
        let command = Command::new(command, env);
        // `cd exp && python train.py`: what it names lies there.
        let folder = command.folder().map(|folder| cwd.join(folder));
        let mut spoken = Self { command, program, folder, edition, ..Self::default() };
        let text =
            |name: String| carma_files::read(&place(spoken.folder.as_deref(), &name)?, MOST_SCRIPT).ok();
        let by_name = spoken.command.scripts().into_iter().find_map(text);
        // Whatever its ending, if it is one.
        let given =
            || text(spoken.command.file()?.to_owned()).filter(|text| std::str::from_utf8(text).is_ok());
        let script = by_name.or_else(given);
        spoken.command = spoken.command.with_script(script.as_deref().unwrap_or_default());
        let read =
            |name: &str| carma_files::read_text(&place(spoken.folder.as_deref(), name)?, MOST_SETTINGS).ok();
        spoken.processes = Processes::of(&spoken.command, &read);
        spoken.script = script;
        spoken
    }

    /// The packages of its Python.
    pub(crate) fn installed(&self) -> Installed {
        // Where the folder is not known: nothing relative is found.
        Installed::of(&self.command, self.folder.as_deref().unwrap_or(Path::new("/")))
    }

    /// GPUs where the user does not say how many: one for each process of a launcher.
    pub(crate) fn gpus(&self) -> u32 {
        self.processes.count.unwrap_or(1)
    }

    /// Processes on one machine, where a launcher starts them on so many GPUs.
    fn all_processes(&self, gpus: u32) -> u32 {
        if self.processes.launcher.is_none() { 1 } else { self.processes.count.unwrap_or(gpus) }
    }

    /// What is worth telling beside an estimate: more processes than GPUs.
    pub(crate) fn warning(&self, gpus: u32) -> Option<String> {
        let (launcher, count) = (self.processes.launcher?, self.processes.count?);
        (count > gpus).then(|| {
            format!(
                "{launcher} starts {count} processes, and the job asks for {gpus} GPU{}; --gpus {count} gives each its own",
                if gpus == 1 { "" } else { "s" }
            )
        })
    }

    /// Lays what the command says under what its user says, for a job on so many GPUs.
    pub(crate) fn lay_under(&self, known: &mut Known, task: &mut ModelTask, said: &TaskArgs) {
        known.taker = Taker::of(&self.command);
        known.asked.program.clone_from(&self.program);
        known.asked.edition = self.edition.clone().filter(|edition| edition != UNREAD);
        known.asked.unread = self.program.is_empty() || self.edition.as_deref() == Some(UNREAD);
        known.processes = self.processes.on_one_gpu(task.gpus);
        let all = self.all_processes(task.gpus);
        let mut caveat = |share: f64, why: String| known.caveats.push((share, why));
        if all > 1 {
            let launcher = self.processes.launcher.unwrap_or("the command");
            match &self.processes.sharding {
                Some(Sharding { parallel, said: sharding }) => {
                    if said.parallel.is_none() {
                        task.parallel = parallel.unwrap_or(Parallel::Ddp);
                    }
                    let how = if known.trace.is_some() || parallel.is_none() {
                        ", reckoned as one that keeps everything"
                    } else {
                        ""
                    };
                    caveat(SEVERAL, format!("{sharding} over {all} processes of {launcher}{how}"));
                }
                None => {
                    if said.parallel.is_none() {
                        task.parallel = Parallel::Ddp;
                    }
                    caveat(
                        SEVERAL,
                        format!("{all} processes of {launcher}: NCCL's buffers are not modelled"),
                    );
                }
            }
        } else if task.gpus > 1 && said.parallel.is_none() {
            // What the text was printed of.
            if known.summary.as_deref().is_some_and(|text| text.trim_start().starts_with("DataParallel")) {
                task.parallel = Parallel::DataParallel;
            } else {
                caveat(
                    SEVERAL,
                    format!("{} GPUs, and the command does not say how they are used", task.gpus),
                );
            }
        }
        if self.command.compiles() {
            caveat(SEVERAL, COMPILED.to_owned());
        }
        if said.lora.is_none() && known.trace.is_none() {
            if let Some(rank) = self.command.lora() {
                task.lora = Some(Lora { rank, targets: said.lora_targets.clone() });
            } else if self.command.uses_peft() {
                caveat(
                    0.0,
                    "the script imports peft: adapters take less, which --lora RANK would count".to_owned(),
                );
            }
        }
    }
}

/// The file that is named so in this folder. `None`: the folder is not known.
fn place(folder: Option<&Path>, name: &str) -> Option<PathBuf> {
    folder.map(|folder| folder.join(name)).or_else(|| Path::new(name).is_absolute().then(|| name.into()))
}

/// The texts of what a command runs, and of what configures it.
#[derive(Debug, Default)]
struct Texts {
    /// The first script that it runs.
    script: Option<PathBuf>,
    /// Each file and its text; `None`: there is none of that name.
    files: Vec<(PathBuf, Option<Vec<u8>>)>,
    /// Scripts for a shell that were taken apart.
    shells: usize,
    /// Something of it could not be read, or only its shell can tell what it is.
    is_unread: bool,
}

impl Texts {
    fn of(command: &[String], env: &BTreeMap<String, String>, cwd: &Path) -> Self {
        let mut texts = Self::default();
        texts.all(&Each::of(command, env, Shell::new(cwd.to_owned(), None, Vec::new())), cwd);
        texts
    }

    /// Fingerprint of them all. Of a script alone it is the script's own, under which earlier versions have stored what they learned.
    fn edition(&self) -> Option<String> {
        if self.is_unread {
            return Some(UNREAD.to_owned());
        }
        let (scripts, others): (Vec<_>, Vec<_>) =
            self.files.iter().partition(|(path, _)| Some(path) == self.script.as_ref());
        let mut all: Vec<u8> =
            scripts.iter().filter_map(|(_, text)| text.as_deref()).flatten().copied().collect();
        let is_configured = others.iter().any(|(_, text)| text.is_some());
        if scripts.is_empty() && !is_configured {
            return None;
        }
        for (_, text) in others.iter().filter(|_| is_configured) {
            // One that is not there is kept apart from one that is empty.
            all.extend(text.as_ref().map_or(u64::MAX, |text| text.len() as u64).to_le_bytes());
            all.extend(text.iter().flatten());
        }
        Some(fingerprint(&all))
    }

    /// Looks at commands that a shell starts in this folder.
    fn all(&mut self, commands: &[Each], start: &Path) {
        for each in commands {
            if self.is_unread {
                return;
            }
            self.one(each, start);
        }
    }

    fn one(&mut self, Each { command, words }: &Each, start: &Path) {
        if command.only_writes() {
            return;
        }
        let folder = command.folder().map(|folder| start.join(folder));
        let place = |name: &str| place(folder.as_deref(), name);
        if command.runs() {
            let is_there = |name: &String| place(name).is_some_and(|path| path.is_file());
            let script = command.scripts().into_iter().find(is_there);
            // Where the folder is not known: nothing relative is found.
            let installed = || Installed::of(command, folder.as_deref().unwrap_or(Path::new("/")));
            self.is_unread |= command.is_unread(script.as_deref(), |package| installed().has(package));
            let given = command.file().filter(|file| script.as_deref() != Some(file));
            // What is given is what runs; a script behind it is an argument.
            for name in given.into_iter().chain(script.as_deref()) {
                match place(name) {
                    Some(path) => self.run(path, name, command, start),
                    None => self.is_unread = true,
                }
            }
        }
        let Some(files) = configurations(words) else {
            self.is_unread |= !command.is_tool();
            return;
        };
        for file in files {
            match place(&file.name) {
                Some(path) if file.is_sure => self.configuration(path),
                Some(path) if !command.is_tool() && is_small_text(&path) => self.configuration(path),
                Some(_) => {}
                // Where it lies only its shell can tell.
                None => self.is_unread |= file.is_sure && !command.is_tool(),
            }
        }
    }

    /// Looks at what a command runs.
    fn run(&mut self, path: PathBuf, name: &str, command: &Command, start: &Path) {
        // Python runs a folder by what lies in it.
        let path = if path.is_dir() { path.join("__main__.py") } else { path };
        if command.is_own_program()
            && command.file() == Some(name)
            && !name.ends_with(".py")
            && !is_text(&path)
        {
            return self.binary(path);
        }
        let Ok(text) = carma_files::read(&path, MOST_SCRIPT) else {
            self.is_unread = true;
            return;
        };
        let first = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
        let first = String::from_utf8_lossy(first);
        let is_for_shell = !command.is_sourced()
            && (command.is_shell()
                || [".sh", ".bash"].iter().any(|end| name.ends_with(end))
                || first.starts_with("#!") && first.split(['/', ' ']).any(|word| is_shell(word.trim())));
        if is_for_shell {
            self.shells += 1;
            if self.shells > MOST_FILES || text.len() > MOST_SHELL {
                self.is_unread = true;
                return;
            }
        }
        self.script.get_or_insert_with(|| path.clone());
        let there = is_for_shell.then(|| command.folder().map(|folder| start.join(folder))).flatten();
        let line = there.as_ref().map(|_| String::from_utf8_lossy(&text).into_owned());
        let own = path.parent().map(Path::to_owned);
        self.add(path, Some(text));
        if let Some((there, line)) = there.zip(line) {
            let shell = Shell::new(there.clone(), own, command.given(name).to_vec());
            self.all(&Each::of_script(&line, command.env(), shell), &there);
        } else {
            self.is_unread |= is_for_shell;
        }
    }

    /// A program that is no text, which may be long: another has another size or time.
    fn binary(&mut self, path: PathBuf) {
        let made = fs::metadata(&path).ok().filter(fs::Metadata::is_file);
        let Some((made, time)) = made.and_then(|made| Some((made.len(), made.modified().ok()?))) else {
            self.is_unread = true;
            return;
        };
        let time = time.duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_nanos();
        self.add(path, Some([&made.to_le_bytes()[..], &time.to_le_bytes()].concat()));
    }

    fn configuration(&mut self, path: PathBuf) {
        match fs::metadata(&path) {
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                self.add(path, None);
            }
            Ok(kind) if kind.is_dir() => {}
            _ => match carma_files::read(&path, MOST_CONFIGURATION) {
                Ok(text) => self.add(path, Some(text)),
                Err(_) => self.is_unread = true,
            },
        }
    }

    fn add(&mut self, path: PathBuf, text: Option<Vec<u8>>) {
        if self.files.iter().all(|(known, _)| *known != path) {
            self.is_unread |= self.files.len() == MOST_FILES;
            self.files.push((path, text));
        }
    }
}

/// Whether a file begins as a text does.
fn is_text(path: &Path) -> bool {
    // What is no file may wait for its other end.
    if !path.is_file() {
        return false;
    }
    let mut head = Vec::new();
    let read = fs::File::open(path).and_then(|file| file.take(HEAD).read_to_end(&mut head));
    let text = std::str::from_utf8(&head);
    // A letter may be cut at the end.
    let is_utf8 = text.is_ok() || text.is_err_and(|error| error.error_len().is_none());
    read.is_ok() && is_utf8 && !head.contains(&0)
}

fn is_small_text(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|file| file.is_file() && file.len() <= MOST_CONFIGURATION) && is_text(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn laid(line: &str, script: &str, gpus: u32) -> (Known, ModelTask, Spoken) {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("t.py"), script).unwrap();
        fs::write(dir.path().join("ds.json"), "{\"zero_optimization\": {\"stage\": 3}}").unwrap();
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let spoken = Spoken::of(&words, &BTreeMap::new(), dir.path());
        let (mut known, mut task) = (Known::default(), ModelTask { gpus, ..ModelTask::default() });
        spoken.lay_under(&mut known, &mut task, &TaskArgs::default());
        (known, task, spoken)
    }

    #[test]
    fn processes_and_what_they_share_out() {
        let (known, task, spoken) = laid("torchrun -n 2 t.py", "model = FullyShardedDataParallel(model)", 2);
        assert_eq!((task.parallel, known.processes, spoken.gpus()), (Parallel::Zero3, 1, 2));
        assert_eq!(known.caveats, [(SEVERAL, "FSDP FULL_SHARD over 2 processes of torchrun".to_owned())]);
        assert_eq!(spoken.warning(2), None);
        let (known, task, spoken) = laid("torchrun -n 4 t.py", "", 1);
        assert_eq!((task.parallel, known.processes), (Parallel::Ddp, 4));
        assert!(spoken.warning(1).unwrap().contains("4 processes, and the job asks for 1 GPU; --gpus 4"));
        let (_, task, _) = laid("deepspeed --num_gpus 2 t.py --deepspeed_config ds.json", "", 2);
        assert_eq!(task.parallel, Parallel::Zero3);
        // One process shards nothing.
        let (known, task, _) = laid("torchrun t.py", "model = FullyShardedDataParallel(model)", 1);
        assert_eq!((task.parallel, known.caveats.len()), (Parallel::None, 0));
        let (known, _, _) = laid("python t.py", "", 2);
        assert!(known.caveats[0].1.contains("does not say how they are used"));
    }

    #[test]
    fn a_summary_of_data_parallel_on_two_gpus_is_that() {
        let spoken = Spoken::of(&["python".to_owned(), "t.py".to_owned()], &BTreeMap::new(), Path::new("/"));
        let mut known = Known { summary: Some("DataParallel(\n  (module): X(".into()), ..Known::default() };
        let mut task = ModelTask { gpus: 2, ..ModelTask::default() };
        spoken.lay_under(&mut known, &mut task, &TaskArgs::default());
        assert_eq!((task.parallel, known.caveats.len()), (Parallel::DataParallel, 0));
        let said = TaskArgs { parallel: Some(Parallel::None), ..TaskArgs::default() };
        let mut task = ModelTask { gpus: 2, ..ModelTask::default() };
        spoken.lay_under(&mut known, &mut task, &said);
        assert_eq!(task.parallel, Parallel::None);
    }

    #[test]
    fn the_script_that_is_read_is_that_of_the_program_that_counts() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("pkg")).unwrap();
        for (file, text) in [
            ("jt.py", "import jax"),
            ("pkg/train.py", "import jax"),
            ("prep.py", "import tensorflow"),
            ("plain.py", ""),
        ] {
            fs::write(dir.path().join(file), text).unwrap();
        }
        let taker = |command: &[&str]| {
            let words: Vec<String> = command.iter().map(ToString::to_string).collect();
            let spoken = Spoken::of(&words, &BTreeMap::new(), dir.path());
            let mut known = Known::default();
            spoken.lay_under(&mut known, &mut ModelTask::default(), &TaskArgs::default());
            (known.taker.map(|taker| taker.program), spoken.script.is_some())
        };
        let jax = (Some("JAX"), true);
        for (line, found) in [
            ("python jt.py", jax),
            ("python jt.py; echo done", jax),
            ("python \"jt.py\"", jax),
            ("(python jt.py)", jax),
            ("for i in 1 2; do python jt.py; done", jax),
            ("python prep.py && torchrun --nproc-per-node 2 plain.py", (None, true)),
            ("python plain.py && torchrun --nproc-per-node 2 jt.py", jax),
            ("python prep.py", (Some("TensorFlow"), true)),
            ("python absent.py; cat jt.py", (None, false)),
        ] {
            assert_eq!(taker(&["bash", "-c", line]), found, "{line}");
        }
        for line in [
            "numactl -m 0 python -m pkg.train",
            "python -mpkg.train --config plain.py",
            "python -um pkg.train",
            "torchrun -n 2 -m pkg.train",
            "python -m cProfile -o out jt.py",
        ] {
            assert_eq!(taker(&line.split(' ').collect::<Vec<_>>()), jax, "{line}");
        }
    }

    #[test]
    fn compilers_adapters_and_takers() {
        let (known, task, _) = laid("python t.py --use_peft --lora_r 8", "m = torch.compile(m)", 1);
        assert_eq!(task.lora.map(|lora| lora.rank), Some(8));
        assert_eq!(known.caveats, [(SEVERAL, COMPILED.to_owned())]);
        assert_eq!(known.asked.program, ["t.py", "--use_peft", "--lora_r", "8"]);
        let (known, ..) = laid("python t.py", "import jax", 1);
        assert_eq!(known.taker.unwrap().program, "JAX");
        let (known, ..) = laid("python t.py", "from peft import LoraConfig", 1);
        assert!(known.caveats[0].1.contains("--lora RANK"));
    }
}

//! What a command says of its memory by itself: its launcher, its settings, its script's text. Read by the client,
//! with its user's rights and no more bytes than are allowed here.

use super::dry_run;
use super::packages::Installed;
use crate::cli::memory::TaskArgs;
use carma_memory::command::{Command, Processes, Sharding, Taker};
use carma_memory::estimators::Known;
use carma_memory::history::{UNREAD, configurations, fingerprint};
use carma_memory::trace::COMPILED;
use carma_memory::{Lora, ModelTask, Parallel};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Largest script whose text is looked at, bytes.
const MOST_SCRIPT: u64 = 4 << 20;
/// Largest file of settings (DeepSpeed's JSON, accelerate's YAML), bytes.
const MOST_SETTINGS: u64 = 1 << 20;
/// Largest file that is looked at for what it configures, bytes: larger ones are data.
const MOST_CONFIGURATION: u64 = 1 << 20;
/// Most such files of a command.
const MOST_CONFIGURATIONS: usize = 32;
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
        let mut files = configurations(command);
        let command = Command::new(command, env);
        // `cd exp && python train.py`: what it names lies there.
        let folder = command.folder().map(|folder| cwd.join(folder));
        let mut spoken = Self { command, program, folder, ..Self::default() };
        let text = |name: String| Some((carma_files::read(&spoken.place(&name)?, MOST_SCRIPT).ok()?, name));
        let (script, name) = spoken.command.scripts().into_iter().find_map(text).unzip();
        spoken.command = spoken.command.with_script(script.as_deref().unwrap_or_default());
        let read = |name: &str| carma_files::read_text(&spoken.place(name)?, MOST_SETTINGS).ok();
        spoken.processes = Processes::of(&spoken.command, &read);
        if let (Some(text), Some(name)) = (&script, &name)
            && [".sh", ".bash"].iter().any(|end| name.ends_with(end))
        {
            files.extend(named_in(&String::from_utf8_lossy(text), spoken.command.env()));
        }
        spoken.script = script;
        spoken.edition = spoken.edition_with(name.as_deref(), &files);
        spoken
    }

    /// The packages of its Python.
    pub(crate) fn installed(&self) -> Installed {
        // Where the folder is not known: nothing relative is found.
        Installed::of(&self.command, self.folder.as_deref().unwrap_or(Path::new("/")))
    }

    /// Its edition, where its script has this name. Without files that configure it, it is the script's own, under which earlier versions
    /// have stored what they learned.
    fn edition_with(&self, name: Option<&str>, files: &[String]) -> Option<String> {
        if self.command.is_unread(name, |package| self.installed().has(package)) {
            return Some(UNREAD.to_owned());
        }
        let files = files.iter().filter(|file| Some(file.as_str()) != name);
        let text = |file: &String| carma_files::read(&self.place(file)?, MOST_CONFIGURATION).ok();
        let texts: Vec<_> = files.take(MOST_CONFIGURATIONS).map(text).collect();
        if name.is_none() && texts.iter().all(Option::is_none) {
            return None;
        }
        let mut all = self.script.clone().unwrap_or_default();
        if texts.iter().any(Option::is_some) {
            for text in texts {
                // One that cannot be read is kept apart from one that is empty.
                all.extend(text.as_ref().map_or(u64::MAX, |text| text.len() as u64).to_le_bytes());
                all.extend(text.unwrap_or_default());
            }
        }
        Some(fingerprint(&all))
    }

    /// The file that it names so.
    fn place(&self, name: &str) -> Option<PathBuf> {
        let is_absolute = Path::new(name).is_absolute();
        self.folder.as_ref().map(|folder| folder.join(name)).or_else(|| is_absolute.then(|| name.into()))
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

/// Scripts and configurations of the program that a shell script starts, as they are named from where it starts.
fn named_in(script: &str, env: &BTreeMap<String, String>) -> Vec<String> {
    let line = ["sh", "-c", script].map(str::to_owned);
    let command = Command::new(&line, env);
    let Some(folder) = command.folder() else { return Vec::new() };
    let names = command.scripts().into_iter().chain(configurations(&line));
    names.filter_map(|name| folder.join(name).into_os_string().into_string().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

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

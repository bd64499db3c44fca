//! How many processes a command starts, and what they share out among them.

use super::{Command, is_false, is_true, stem};
use crate::Parallel;
use serde_json::Value;

/// Processes of a command on one machine.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Processes {
    /// What starts them: `torchrun`; `None`: the program is started by itself.
    pub launcher: Option<&'static str>,
    /// How many on one machine; `None`: one for each GPU, or not said.
    pub count: Option<u32>,
    /// What they share out, where more than one of them is, or may be.
    pub sharding: Option<Sharding>,
}

/// What the processes of one training share out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sharding {
    /// As the rules of several GPUs know it; `None`: a word that they do not know.
    pub parallel: Option<Parallel>,
    /// As it was said: `FSDP FULL_SHARD`, `DeepSpeed ZeRO stage 2 (ds.json)`.
    pub said: String,
}

/// Most GPUs of a machine that a number of processes is believed for.
const MOST: u32 = 1024;

impl Processes {
    /// Of a command. `read` gives the text of a file that the command names, if it can be read.
    #[must_use]
    pub fn of(command: &Command, read: &dyn Fn(&str) -> Option<String>) -> Self {
        let words = &command.words;
        let launcher = launcher(command);
        let inner = launcher.map_or(0, |launcher| inner(command, launcher));
        // A launcher's own words come before its script, the script's after it.
        let (own, its) = words.split_at(inner);
        let number = |text: &str| text.parse::<u32>().ok().filter(|n| (1..=MOST).contains(n));
        let accelerate =
            (launcher == Some("accelerate")).then(|| accelerate_config(command, own, read)).flatten();
        let count = match launcher {
            None => None,
            Some("torchrun") => {
                let said = Command::option(own, &["nproc-per-node", "n"])
                    .or_else(|| command.variable("PET_NPROC_PER_NODE"));
                // `gpu` and `auto`: one for each GPU.
                said.map_or(Some(1), number)
            }
            Some("accelerate") => Command::option(own, &["num-processes"])
                .or_else(|| yaml(accelerate.as_deref()?, "num_processes"))
                .and_then(number),
            Some("deepspeed") => Command::option(own, &["num-gpus"]).and_then(number).or_else(|| {
                let slots = Command::option(own, &["include"])?.split_once(':')?.1;
                Some(u32::try_from(slots.split(',').count()).unwrap_or(MOST))
            }),
            Some(_) => Command::option(own, &["np", "n", "ntasks", "ntasks-per-node"]).and_then(number),
        };
        let sharding = sharding(command, own, its, accelerate.as_deref(), read);
        Self { launcher, count, sharding }
    }

    /// Processes that come to one GPU, where the job has so many.
    #[must_use]
    pub fn on_one_gpu(&self, gpus: u32) -> u32 {
        self.count.unwrap_or(1).div_ceil(gpus.max(1)).max(1)
    }
}

/// Options of launchers that take the next word.
const VALUED: &[&str] = &[
    // torchrun
    "nnodes",
    "nproc-per-node",
    "rdzv-backend",
    "rdzv-endpoint",
    "rdzv-id",
    "rdzv-conf",
    "max-restarts",
    "monitor-interval",
    "start-method",
    "role",
    "log-dir",
    "r",
    "redirects",
    "t",
    "tee",
    "local-ranks-filter",
    "node-rank",
    "master-addr",
    "master-port",
    "local-addr",
    // accelerate, deepspeed
    "config-file",
    "num-processes",
    "num-machines",
    "machine-rank",
    "main-process-ip",
    "main-process-port",
    "mixed-precision",
    "gpu-ids",
    "dynamo-backend",
    "zero-stage",
    "hostfile",
    "include",
    "i",
    "exclude",
    "e",
    "num-nodes",
    "num-gpus",
    "launcher",
    // mpirun, mpiexec, srun
    "np",
    "n",
    "c",
    "N",
    "npernode",
    "ppn",
    "host",
    "hosts",
    "H",
    "f",
    "machinefile",
    "rankfile",
    "rf",
    "x",
    "map-by",
    "bind-to",
    "rank-by",
    "wdir",
    "wd",
    "path",
    "prefix",
    "output-filename",
    "timeout",
    "iface",
    "ntasks",
    "ntasks-per-node",
    "cpus-per-task",
    "nodes",
    "gpus",
    "gpus-per-node",
    "gpus-per-task",
    "gres",
    "mem",
    "partition",
    "p",
    "account",
    "A",
    "job-name",
    "J",
    "time",
    "o",
    "output",
    "error",
    "w",
    "nodelist",
    "G",
    "C",
    "constraint",
    "D",
    "chdir",
    "mpi",
    "cpu-bind",
    "distribution",
    "qos",
    "export",
];

/// Where the program of a launcher begins among the words: a script, `-m`, or the first word that is neither an option nor a
/// value of one.
pub(super) fn inner(command: &Command, launcher: &str) -> usize {
    let words = &command.words;
    let first = command.module_at().map_or(if launcher == "accelerate" { 2 } else { 1 }, |(_, at)| at);
    let mut at = first;
    while let Some(word) = words.get(at) {
        let is_module = matches!(word.as_str(), "-m" | "--module");
        if word.ends_with(".py") || is_module && !matches!(launcher, "mpirun" | "mpiexec" | "srun") {
            return at;
        }
        let Some(name) = word.strip_prefix('-').map(|name| name.trim_start_matches('-').replace('_', "-"))
        else {
            break;
        };
        at += match &*name {
            // A name and a value.
            "mca" | "gmca" | "env" | "genv" => 3,
            // A number is a value of whatever comes before it.
            name if VALUED.contains(&name)
                || words.get(at + 1).is_some_and(|next| next.parse::<u32>().is_ok()) =>
            {
                2
            }
            _ => 1,
        };
    }
    // Behind an option that is not known its value may have been taken for the program: a script is one for sure.
    let script =
        || words.iter().skip(first).position(|word| word.ends_with(".py")).map(|script| first + script);
    let starts_scripts = matches!(launcher, "torchrun" | "accelerate" | "deepspeed");
    Some(at).filter(|_| !starts_scripts).or_else(script).unwrap_or(at).min(words.len())
}

/// Variables that the words of a launcher of MPI set for its program: `-x A=b`, `-genv A b`.
pub(super) fn variables(own: &[String]) -> Vec<(String, String)> {
    if !matches!(own.first().map_or("", |word| stem(word)), "mpirun" | "mpiexec") {
        return Vec::new();
    }
    let set = |(at, word): (usize, &String)| {
        let next = own.get(at + 1)?;
        match word.trim_start_matches('-') {
            "x" => next.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned())),
            "env" | "genv" => Some((next.clone(), own.get(at + 2)?.clone())),
            _ => None,
        }
    };
    own.iter().enumerate().filter_map(set).collect()
}

pub(super) fn launcher(command: &Command) -> Option<&'static str> {
    match command.module() {
        Some("torch.distributed.run" | "torch.distributed.launch") => return Some("torchrun"),
        Some("accelerate.commands.launch") => return Some("accelerate"),
        Some("deepspeed.launcher.runner") => return Some("deepspeed"),
        _ => {}
    }
    let program = command.program();
    let known = ["torchrun", "deepspeed", "mpirun", "mpiexec", "srun"];
    if program == "accelerate" {
        return (command.words.get(1).map(String::as_str) == Some("launch")).then_some("accelerate");
    }
    known.into_iter().find(|name| *name == program)
}

/// Text of the file that `accelerate launch` takes its settings from.
fn accelerate_config(
    command: &Command,
    own: &[String],
    read: &dyn Fn(&str) -> Option<String>,
) -> Option<String> {
    if let Some(named) = Command::option(own, &["config-file"]) {
        return read(named);
    }
    let home = || Some(format!("{}/.cache", command.variable("HOME")?));
    let folder = command.variable("HF_HOME").map(str::to_owned).or_else(|| {
        let cache = command.variable("XDG_CACHE_HOME").map(str::to_owned).or_else(home)?;
        Some(format!("{cache}/huggingface"))
    })?;
    read(&format!("{folder}/accelerate/default_config.yaml"))
}

/// Value of a key of a flat YAML file, at whatever depth: names of accelerate's keys are there once.
fn yaml<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let value = line.trim().strip_prefix(key)?.strip_prefix(':')?;
        Some(value.trim().trim_matches(['\'', '"'])).filter(|value| !value.is_empty())
    })
}

fn sharding(
    command: &Command,
    own: &[String],
    its: &[String],
    accelerate: Option<&str>,
    read: &dyn Fn(&str) -> Option<String>,
) -> Option<Sharding> {
    let on = |name| command.variable(name).is_some_and(is_true);
    // Accelerate: its options, its file, its variables.
    let kind = accelerate.and_then(|text| yaml(text, "distributed_type"));
    if Command::has(own, &["use-fsdp"]) || kind == Some("FSDP") || on("ACCELERATE_USE_FSDP") {
        let said = Command::option(own, &["fsdp-sharding-strategy"])
            .or_else(|| yaml(accelerate?, "fsdp_sharding_strategy"))
            .or_else(|| command.variable("FSDP_SHARDING_STRATEGY"));
        // The second edition of FSDP says it otherwise.
        let reshard = Command::option(own, &["fsdp-reshard-after-forward"])
            .or_else(|| yaml(accelerate?, "fsdp_reshard_after_forward"));
        let strategy = match (said, reshard) {
            (Some(said), _) => said,
            (None, Some(text)) if !text.contains('_') => {
                if is_true(text) {
                    "FULL_SHARD"
                } else {
                    "SHARD_GRAD_OP"
                }
            }
            (None, said) => said.unwrap_or("FULL_SHARD"),
        };
        return Some(fsdp(strategy));
    }
    let by_accelerate =
        Command::has(own, &["use-deepspeed"]) || kind == Some("DEEPSPEED") || on("ACCELERATE_USE_DEEPSPEED");
    let file = Command::option(its, &["deepspeed", "deepspeed-config", "ds-config"])
        .or_else(|| Command::option(own, &["deepspeed-config-file"]))
        .or_else(|| yaml(accelerate?, "deepspeed_config_file"))
        .filter(|name| name.ends_with(".json"));
    if let Some(file) = file {
        return Some(match read(file) {
            Some(text) => deepspeed(stage(&text), stem(file)),
            None => {
                Sharding { parallel: None, said: format!("DeepSpeed by {file}, which could not be read") }
            }
        });
    }
    if by_accelerate {
        let said = Command::option(own, &["zero-stage"])
            .or_else(|| yaml(accelerate?, "zero_stage"))
            .or_else(|| command.variable("ACCELERATE_DEEPSPEED_ZERO_STAGE"));
        return Some(deepspeed(said.map_or(Some(2), |text| text.parse().ok()), "accelerate"));
    }
    // transformers' Trainer: --fsdp "full_shard auto_wrap".
    if let Some(said) = Command::option(its, &["fsdp"]).filter(|said| !said.is_empty() && !is_false(said)) {
        return Some(fsdp(said));
    }
    if let Some(strategy) = command.script.iter().find_map(|line| line.split_once("ShardingStrategy.")) {
        let end =
            strategy.1.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(strategy.1.len());
        return Some(fsdp(&strategy.1[..end]));
    }
    if ["FullyShardedDataParallel", "fully_shard("].iter().any(|text| command.mentions(text)) {
        return Some(fsdp("FULL_SHARD"));
    }
    if command.imports("deepspeed") {
        return Some(Sharding {
            parallel: None,
            said: "DeepSpeed, whose stage the command does not tell".to_owned(),
        });
    }
    None
}

fn fsdp(strategy: &str) -> Sharding {
    let word = strategy.to_ascii_uppercase();
    let parallel = match word.split_whitespace().next().unwrap_or_default() {
        "FULL_SHARD" | "1" | "HYBRID_SHARD" | "4" => Some(Parallel::Zero3),
        "SHARD_GRAD_OP" | "2" | "HYBRID_SHARD_ZERO2" | "_HYBRID_SHARD_ZERO2" | "5" => Some(Parallel::Zero2),
        "NO_SHARD" | "3" => Some(Parallel::Ddp),
        _ => None,
    };
    Sharding { parallel, said: format!("FSDP {strategy}") }
}

fn deepspeed(stage: Option<u64>, from: &str) -> Sharding {
    let parallel = match stage {
        // The first shards the optimizer's states only: reckoned as if it did not, which is more.
        Some(0 | 1) => Some(Parallel::Ddp),
        Some(2) => Some(Parallel::Zero2),
        Some(3) => Some(Parallel::Zero3),
        _ => None,
    };
    let stage = stage.map_or_else(|| "of an unknown stage".to_owned(), |stage| format!("stage {stage}"));
    Sharding { parallel, said: format!("DeepSpeed ZeRO {stage} ({from})") }
}

/// The stage that a configuration of DeepSpeed names; 0 where it names none.
fn stage(text: &str) -> Option<u64> {
    let config: Value = serde_json::from_str(text).ok()?;
    match config.get("zero_optimization").and_then(|zero| zero.get("stage")) {
        None => Some(0),
        Some(stage) => stage.as_u64(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::command;
    use super::*;

    fn of(line: &str, script: &str, files: &[(&str, &str)]) -> Processes {
        let read =
            |name: &str| files.iter().find(|(file, _)| *file == name).map(|(_, text)| (*text).to_owned());
        Processes::of(&command(line, script), &read)
    }

    #[test]
    fn numbers_of_processes() {
        for (line, launcher, count) in [
            ("python t.py --n 4", None, None),
            ("torchrun --nproc-per-node 4 t.py --nproc-per-node 9", Some("torchrun"), Some(4)),
            ("torchrun --nproc_per_node=gpu t.py", Some("torchrun"), None),
            ("torchrun t.py", Some("torchrun"), Some(1)),
            ("torchrun -n 2 t.py", Some("torchrun"), Some(2)),
            ("PET_NPROC_PER_NODE=8 torchrun t.py", Some("torchrun"), Some(8)),
            ("python -m torch.distributed.run --nproc-per-node=2 t.py", Some("torchrun"), Some(2)),
            ("python -m torch.distributed.launch --nproc_per_node 3 t.py", Some("torchrun"), Some(3)),
            ("accelerate launch --num_processes 2 t.py", Some("accelerate"), Some(2)),
            ("accelerate launch t.py", Some("accelerate"), None),
            ("accelerate config", None, None),
            ("deepspeed --num_gpus 2 t.py", Some("deepspeed"), Some(2)),
            ("deepspeed --include localhost:1,3,5 t.py", Some("deepspeed"), Some(3)),
            ("mpirun -np 4 python t.py", Some("mpirun"), Some(4)),
            ("torchrun --nproc-per-node 99999999 t.py", Some("torchrun"), None),
            ("nice torchrun --nproc-per-node 4 t.py", Some("torchrun"), Some(4)),
            ("timeout 3600 torchrun --nproc-per-node 4 t.py", Some("torchrun"), Some(4)),
            ("mpirun -np 2 ./train -n 200", Some("mpirun"), Some(2)),
            ("mpirun --mca btl tcp -x A -np 2 --oversubscribe ./train -n 200", Some("mpirun"), Some(2)),
            ("mpirun -np 2 python -m pkg.train -n 200", Some("mpirun"), Some(2)),
            ("torchrun --nproc-per-node 2 -m pkg.train -n 200", Some("torchrun"), Some(2)),
            (
                "torchrun --standalone --new-option a --nproc-per-node 2 t.py -n 200",
                Some("torchrun"),
                Some(2),
            ),
            ("torchrun --nproc-per-node 2 --no-python ./train -n 200", Some("torchrun"), Some(2)),
            (
                "python -m torch.distributed.run --nproc-per-node=2 -m pkg.train -n 9",
                Some("torchrun"),
                Some(2),
            ),
            ("python -m accelerate.commands.launch --num_processes 2 t.py", Some("accelerate"), Some(2)),
            ("srun -n 4 --gres gpu:1 ./train -n 200", Some("srun"), Some(4)),
        ] {
            let read = of(line, "", &[]);
            assert_eq!((read.launcher, read.count), (launcher, count), "{line}");
        }
        let line = |option: &str, line: &str| {
            let words = ["bash", option, line].map(str::to_owned);
            Processes::of(&Command::new(&words, &std::collections::BTreeMap::new()), &|_| None).count
        };
        assert_eq!(line("-lc", "torchrun --nproc-per-node 4 train.py"), Some(4));
        assert_eq!(line("-c", "cd /w && torchrun --nproc-per-node 4 train.py > log"), Some(4));
        let two = of("torchrun -n 4 t.py", "", &[]);
        assert_eq!((two.on_one_gpu(4), two.on_one_gpu(2), two.on_one_gpu(0)), (1, 2, 4));
    }

    #[test]
    fn what_is_sharded() {
        let yaml = "distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: SHARD_GRAD_OP\nnum_processes: 4\n";
        let zero = |stage: u32| format!("{{\"zero_optimization\": {{\"stage\": {stage}}}}}");
        let (two, three) = (zero(2), zero(3));
        let files = [
            ("a.yaml", yaml),
            ("d.json", &*three),
            ("ds/e.json", &*two),
            ("none.json", "{}"),
            ("bad.json", "["),
        ];
        let fsdp = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\nmodel = FSDP(model)";
        let strategy = "model = FSDP(model, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)";
        for (line, script, parallel) in [
            ("torchrun -n 2 t.py", "", None),
            ("torchrun -n 2 t.py", fsdp, Some(Some(Parallel::Zero3))),
            ("torchrun -n 2 t.py", strategy, Some(Some(Parallel::Zero2))),
            ("torchrun -n 2 t.py --fsdp full_shard", "", Some(Some(Parallel::Zero3))),
            ("accelerate launch --use_fsdp --fsdp_sharding_strategy 2 t.py", "", Some(Some(Parallel::Zero2))),
            (
                "accelerate launch --use_fsdp --fsdp_reshard_after_forward false t.py",
                "",
                Some(Some(Parallel::Zero2)),
            ),
            ("accelerate launch --config_file a.yaml t.py", "", Some(Some(Parallel::Zero2))),
            ("accelerate launch --use_deepspeed --zero_stage 3 t.py", "", Some(Some(Parallel::Zero3))),
            ("deepspeed t.py --deepspeed --deepspeed_config d.json", "", Some(Some(Parallel::Zero3))),
            ("python t.py --deepspeed ds/e.json", "", Some(Some(Parallel::Zero2))),
            ("deepspeed t.py --deepspeed_config none.json", "", Some(Some(Parallel::Ddp))),
            ("deepspeed t.py --deepspeed_config bad.json", "", Some(None)),
            ("deepspeed t.py --deepspeed_config absent.json", "", Some(None)),
            ("python t.py", "import deepspeed", Some(None)),
        ] {
            let read = of(line, script, &files);
            assert_eq!(read.sharding.as_ref().map(|s| s.parallel), parallel, "{line}: {read:?}");
        }
        let of_file = of("accelerate launch --config_file a.yaml t.py", "", &files);
        assert_eq!(of_file.count, Some(4));
        let named = of("deepspeed t.py --deepspeed_config d.json", "", &files).sharding.map(|s| s.said);
        assert_eq!(named.as_deref(), Some("DeepSpeed ZeRO stage 3 (d.json)"));
        let home = [("/home/a/.cache/huggingface/accelerate/default_config.yaml", yaml)];
        assert_eq!(of("HOME=/home/a accelerate launch t.py", "", &home).count, Some(4));
    }
}

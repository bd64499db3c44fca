//! `carma dry-run`: the user's unmodified script for a few steps, without a GPU; and how a command is taken apart for it.

use super::Context;
use super::estimate;
use super::tracer::Launch;
use crate::cli::EstimateArgs;
use crate::cli::memory::DryRunArgs;
use carma_cli::failure::{Failure, Outcome};
use carma_memory::command::{Packages, Start};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Runs the verb: `carma estimate -- COMMAND` by a name of its own.
pub(crate) fn run(context: &Context, args: &DryRunArgs) -> Outcome {
    let args = EstimateArgs {
        command: args.command.clone(),
        estimator: "auto".to_owned(),
        gpus: args.gpus,
        gpu_memory: None,
        faketensor_peak: None,
        gpumemnet_weights: None,
        json: args.json,
        model: args.model.clone(),
        task: args.task.clone(),
        platform: args.platform.clone(),
        tracer: args.tracer.clone(),
    };
    estimate::run(context, &args)
}

/// Programs that start others, which nothing would trace: they would run as they are, and overwrite what earlier runs saved.
const STARTERS: &[&str] = &["axolotl", "horovodrun", "llamafactory-cli", "torchrun", "tune", "uvx"];

/// The same, where modules of their packages do so as well (`python -m wandb agent`).
const STARTING: &[&str] = &[
    "accelerate",
    "composer",
    "conda",
    "deepspeed",
    "dvc",
    "fabric",
    "guild",
    "hatch",
    "horovod",
    "lightning",
    "mamba",
    "micromamba",
    "mlflow",
    "nox",
    "pdm",
    "pipenv",
    "pixi",
    "poetry",
    "ray",
    "rye",
    "snakemake",
    "tox",
    "uv",
    "wandb",
];

/// Finds Python and the program in a command, with the environment and the directory that it runs in.
///
/// # Errors
/// A command that runs no Python program as far as can be told, or starts it in a way that a dry run cannot follow.
pub(crate) fn launch(
    command: &[String],
    env: &BTreeMap<String, String>,
    cwd: &Path,
) -> Result<Launch, Failure> {
    let start = Start::of(command, env).ok_or_else(|| {
        let shell = command.first().map_or("", |word| file_name(word));
        Failure::usage(format!("the line for `{shell}` does more than to start one program")).hint(TYPE)
    })?;
    let cwd = cwd.join(&start.folder);
    let mut env = start.env;
    if let Some(packages) = &start.packages {
        enter(packages, &mut env, &cwd)?;
    }
    let mut launch = Launch { python: "python3".into(), ..Launch::default() };
    if let Some((program, words)) = start.launcher.split_first() {
        one_process(&mut launch);
        if is_python(program) {
            launch.python = program.into();
            let _ = python_options(&mut launch, words);
        } else if let Some(python) = find(program, &env, &cwd).and_then(|file| shebang_python(&file)) {
            launch.python = python;
        }
    }
    let launch = of_words(launch, &start.words, &env, &cwd)?;
    Ok(Launch { job: Some((cwd, env)), ..launch })
}

/// Programs that read lines from a file.
const SHELLS: &[&str] = &["bash", "dash", "ksh", "sh", "zsh"];

/// What is to be typed where a command cannot be followed.
const TYPE: &str = "a dry run needs the command that starts Python, as in: -- python train.py";

fn of_words(
    mut launch: Launch,
    words: &[String],
    env: &BTreeMap<String, String>,
    cwd: &Path,
) -> Result<Launch, Failure> {
    let Some((program, rest)) = words.split_first() else {
        return Err(Failure::usage("no program in the command"));
    };
    if is_python(program) {
        launch.python = program.into();
        return after_python(launch, rest);
    }
    // Behind a launcher, or `uv run`.
    if matches!(program.as_str(), "-m" | "--module") {
        return of_module(launch, rest);
    }
    let name = file_name(program);
    refuse_starter(name, false)?;
    if name.ends_with(".py") {
        launch.words = program_words(program, rest);
        return Ok(launch);
    }
    let file = find(program, env, cwd);
    match file.as_deref().and_then(shebang_python).zip(file) {
        Some((python, file)) => {
            launch.python = python;
            launch.words = program_words(&file.to_string_lossy(), rest);
            Ok(launch)
        }
        None => {
            let failure = Failure::usage(format!("`{name}` is no Python program"));
            let script = if SHELLS.contains(&name) {
                rest.iter().find(|word| !word.starts_with('-'))
            } else {
                Some(program).filter(|program| program.ends_with(".sh"))
            };
            Err(match script {
                Some(script) => failure
                    .hint(format!("give the line in {script} that starts Python, as in: -- python train.py")),
                None => failure.hint(TYPE),
            })
        }
    }
}

fn refuse_starter(name: &str, is_package: bool) -> Result<(), Failure> {
    if STARTING.contains(&name) || !is_package && STARTERS.contains(&name) {
        return Err(Failure::usage(format!("`{name}` starts programs that a dry run cannot trace"))
            .hint("name the program that it starts, as in: -- python train.py"));
    }
    Ok(())
}

fn file_name(word: &str) -> &str {
    word.rsplit('/').next().unwrap_or(word)
}

fn is_python(program: &str) -> bool {
    let name = file_name(program);
    (name.starts_with("python") || name.starts_with("pypy")) && !name.ends_with(".py")
}

/// Goes into an environment of packages: its programs are found first.
///
/// # Errors
/// It is not found.
pub(crate) fn enter(
    packages: &Packages,
    env: &mut BTreeMap<String, String>,
    cwd: &Path,
) -> Result<(), Failure> {
    let variable = |key: &str| env.get(key).filter(|text| !text.is_empty()).map(|text| cwd.join(text));
    let mut prefixes = Vec::new();
    if !packages.is_conda() {
        let project = packages.folder.as_ref().map_or_else(|| cwd.to_owned(), |folder| cwd.join(folder));
        prefixes.extend(project.ancestors().map(|folder| folder.join(".venv")));
        if packages.tool() == "uv" {
            // A project's own goes before the one that is active; with the others it is the other way.
            prefixes.splice(0..0, variable("UV_PROJECT_ENVIRONMENT"));
            prefixes.extend(variable("VIRTUAL_ENV"));
        } else {
            prefixes.splice(0..0, variable("VIRTUAL_ENV"));
        }
    } else if let Some(folder) = &packages.folder {
        prefixes.push(cwd.join(folder));
    } else if let Some(name) = &packages.name {
        let above = |file: PathBuf| Some(file.canonicalize().ok()?.parent()?.parent()?.to_owned());
        let programs = [find(&packages.program, env, cwd), variable("CONDA_EXE")];
        let roots = programs.into_iter().flatten().filter_map(above).chain(variable("MAMBA_ROOT_PREFIX"));
        prefixes.extend(roots.map(|root| if name == "base" { root } else { root.join("envs").join(name) }));
        prefixes.extend(variable("HOME").map(|home| home.join(".conda/envs").join(name)));
    } else {
        prefixes.extend(variable("CONDA_PREFIX"));
    }
    let has_python = |bin: &PathBuf| bin.join("python").is_file() || bin.join("python3").is_file();
    let bin = prefixes.into_iter().map(|prefix| prefix.join("bin")).find(has_python).ok_or_else(|| {
        let tool = packages.tool();
        Failure::usage(format!("the environment of `{tool} run` is not found")).hint(format!(
            "activate it, and give the command without `{tool} run`, as in: -- python train.py"
        ))
    })?;
    let path = env.get("PATH").map_or_else(String::new, |path| format!(":{path}"));
    env.insert("PATH".to_owned(), format!("{}{path}", bin.display()));
    Ok(())
}

fn program_words(program: &str, words: &[String]) -> Vec<OsString> {
    let all = ["run", "--", program].into_iter().chain(words.iter().map(String::as_str));
    all.map(OsString::from).collect()
}

/// `[-u] [-X dev] SCRIPT ARGS`, `-m MODULE ARGS`, `-umMODULE ARGS`.
fn after_python(mut launch: Launch, words: &[String]) -> Result<Launch, Failure> {
    let (option, words) = python_options(&mut launch, words);
    match option {
        Some('m') => of_module(launch, &words),
        Some(option) => {
            let option = format!("-{option}");
            let option = option.trim_end_matches(' ');
            Err(Failure::usage(format!("a dry run of `python {option}` is not possible"))
                .hint("put the program into a file"))
        }
        None => {
            let (script, rest) =
                words.split_first().ok_or_else(|| Failure::usage("Python is started without a program"))?;
            refuse_starter(file_name(script), false)?;
            launch.words = program_words(script, rest);
            Ok(launch)
        }
    }
}

/// Takes Python's own options. What ends them (`m`, `c`; a blank: `-`), and the words from the module or the script on.
fn python_options(launch: &mut Launch, mut words: &[String]) -> (Option<char>, Vec<String>) {
    while let Some((word, rest)) = words.split_first() {
        let Some(option) = word.strip_prefix('-') else { break };
        // Letters stand together until one takes a value, which may follow in the same word.
        let valued = option.find(['m', 'c', 'W', 'X']).filter(|_| !option.starts_with('-'));
        let (flags, value) = valued.map_or((option, ""), |at| (&option[..at], &option[at + 1..]));
        match valued.map(|at| option.as_bytes()[at]) {
            Some(b'm') => {
                if !flags.is_empty() {
                    launch.interpreter.push(format!("-{flags}").into());
                }
                let joined = Some(value.to_owned()).filter(|value| !value.is_empty());
                return (Some('m'), joined.into_iter().chain(rest.iter().cloned()).collect());
            }
            Some(b'c') => return (Some('c'), rest.to_vec()),
            None if option.is_empty() => return (Some(' '), rest.to_vec()),
            _ => {}
        }
        let with_value = (valued.is_some() && value.is_empty()) || word == "--check-hash-based-pycs";
        let taken = if with_value { 2.min(words.len()) } else { 1 };
        launch.interpreter.extend(words[..taken].iter().map(OsString::from));
        words = &words[taken..];
    }
    (None, words.to_vec())
}

/// A module and its arguments.
fn of_module(mut launch: Launch, words: &[String]) -> Result<Launch, Failure> {
    let module = words.first().filter(|word| !word.starts_with('-'));
    let module = module.ok_or_else(|| Failure::usage("-m is given no module").hint(TYPE))?;
    refuse_starter(module.split('.').next().unwrap_or_default(), true)?;
    launch.words = program_words("-m", words);
    Ok(launch)
}

/// A launcher's program is run as the one process of a world of one.
fn one_process(launch: &mut Launch) {
    for (key, value) in [
        ("RANK", "0"),
        ("LOCAL_RANK", "0"),
        ("WORLD_SIZE", "1"),
        ("LOCAL_WORLD_SIZE", "1"),
        ("MASTER_ADDR", "127.0.0.1"),
        ("MASTER_PORT", "29500"),
    ] {
        launch.env.push((key.into(), value.into()));
    }
}

/// The file that a word names, as a shell finds it.
pub(crate) fn find(program: &str, env: &BTreeMap<String, String>, cwd: &Path) -> Option<PathBuf> {
    if program.contains('/') {
        return Some(cwd.join(program));
    }
    let path = env.get("PATH")?;
    std::env::split_paths(path).map(|folder| cwd.join(folder).join(program)).find(|file| file.is_file())
}

/// The interpreter of a script whose first line names a Python.
fn shebang_python(file: &Path) -> Option<OsString> {
    let mut start = Vec::new();
    carma_files::open(file).ok()?.take(512).read_to_end(&mut start).ok()?;
    let line = start.strip_prefix(b"#!")?.split(|b| *b == b'\n').next()?;
    let mut words = line.split(|b| b.is_ascii_whitespace()).filter(|word| !word.is_empty());
    let mut program = words.next()?;
    if program.ends_with(b"/env") {
        program = words.next()?;
    }
    let name = program.rsplit(|b| *b == b'/').next()?;
    name.starts_with(b"python").then(|| OsStr::from_bytes(program).to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn words(text: &str) -> Vec<OsString> {
        text.split(' ').map(OsString::from).collect()
    }

    fn of(text: &str) -> Result<Launch, Failure> {
        let command: Vec<String> = text.split(' ').map(str::to_owned).collect();
        launch(&command, &BTreeMap::from([("X".into(), "0".into())]), Path::new("/w"))
    }

    fn job(launch: &Launch) -> (&Path, String) {
        let (cwd, env) = launch.job.as_ref().unwrap();
        (cwd, env.iter().map(|(key, value)| format!("{key}={value} ")).collect())
    }

    fn is_one_of_one(launch: &Launch) -> bool {
        launch.env.contains(&("WORLD_SIZE".into(), "1".into()))
    }

    #[test]
    fn commands() {
        let plain = of("python train.py --lr 1 -m x").unwrap();
        assert_eq!((plain.python.as_os_str(), plain.interpreter.len()), (OsStr::new("python"), 0));
        assert_eq!(plain.words, words("run -- train.py --lr 1 -m x"));
        let options = of("env A=1 B=x=y /opt/bin/python3.11 -u -X dev -W ignore -m pkg.train -v").unwrap();
        assert_eq!(options.interpreter, words("-u -X dev -W ignore"));
        assert_eq!(options.words, words("run -- -m pkg.train -v"));
        assert_eq!(job(&options), (Path::new("/w"), "A=1 B=x=y X=0 ".to_owned()));
        assert_eq!(of("./train.py 3").unwrap().words, words("run -- ./train.py 3"));
        let joined = of("python -Wignore -uBmpkg.train -m x").unwrap();
        assert_eq!(
            (joined.interpreter, joined.words),
            (words("-Wignore -uB"), words("run -- -m pkg.train -m x"))
        );
        let behind = of("nice timeout -k 5 60 env -u X -C v srun -n 2 python t.py 1").unwrap();
        assert_eq!(
            (behind.python.as_os_str(), &behind.words),
            (OsStr::new("python"), &words("run -- t.py 1"))
        );
        assert_eq!(job(&behind), (Path::new("/w/v"), String::new()));
        assert!(is_one_of_one(&behind) && !is_one_of_one(&plain));
        for bad in [
            "bash run.sh",
            "python",
            "python -u",
            "python -c print()",
            "python -uc print()",
            "python -um",
            "python -",
            "env A=1",
            "torchrun",
            "torchrun -m",
            "torchrun --no-python bash run.sh",
            "python -m",
        ] {
            let failure = of(bad).unwrap_err();
            assert_eq!(failure.code, carma_cli::failure::USAGE, "{bad}");
        }
        for line in ["bash -x exp/run.sh 3", "exp/run.sh"] {
            assert!(of(line).unwrap_err().hint.unwrap().contains("the line in exp/run.sh"), "{line}");
        }
    }

    #[test]
    fn launchers_of_several_processes() {
        for (line, program) in [
            ("torchrun --nproc-per-node 4 train.py --a b", "train.py --a b"),
            ("torchrun --nproc-per-node 4 -m pkg.train cfg.py", "-m pkg.train cfg.py"),
            ("torchrun -m pkg", "-m pkg"),
            (
                "accelerate launch --num_processes 2 -m pkg.train --config cfg.py",
                "-m pkg.train --config cfg.py",
            ),
            ("deepspeed --num_gpus 2 --module pkg.train cfg.py", "-m pkg.train cfg.py"),
            ("python -m torch.distributed.run --x t.py 1", "t.py 1"),
            ("python -m torch.distributed.run -m pkg.train cfg.py", "-m pkg.train cfg.py"),
            ("python -m torch.distributed.launch t.py 1", "t.py 1"),
            ("python -mtorch.distributed.run t.py 1", "t.py 1"),
            ("python -um accelerate.commands.launch --num_processes 2 t.py 1", "t.py 1"),
            ("python -m deepspeed.launcher.runner --num_gpus 2 t.py 1", "t.py 1"),
            ("mpirun -np 2 python -m pkg.train -n 2", "-m pkg.train -n 2"),
        ] {
            let one = of(line).unwrap();
            assert_eq!(one.words, words(&format!("run -- {program}")), "{line}");
            assert!(is_one_of_one(&one), "{line}");
        }
        let python = of("/opt/bin/python3 -um torch.distributed.run t.py").unwrap();
        assert_eq!(
            (python.python.as_os_str(), python.interpreter),
            (OsStr::new("/opt/bin/python3"), words("-u"))
        );
    }

    #[test]
    fn lines_for_a_shell() {
        let line = |text: &str| {
            launch(&["/bin/sh".into(), "-c".into(), text.into()], &BTreeMap::new(), Path::new("/w"))
        };
        assert_eq!(line("python train.py --lr 1").unwrap().words, words("run -- train.py --lr 1"));
        let there = line("export B=1; cd v && A=1 torchrun -n 2 t.py").unwrap();
        assert_eq!(
            (job(&there), &there.words),
            ((Path::new("/w/v"), "A=1 B=1 ".to_owned()), &words("run -- t.py"))
        );
        for more in ["python a.py > out", "python a.py && b", "python '*.py'", "python $X.py"] {
            assert!(line(more).unwrap_err().message.unwrap().contains("`sh`"), "{more}");
        }
    }

    #[test]
    fn programs_that_would_start_others_untraced_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["conda", "poetry", "wandb", "composer", "tool"] {
            std::fs::write(dir.path().join(name), "#!/opt/x/bin/python3\n").unwrap();
        }
        let env = BTreeMap::from([("PATH".to_owned(), dir.path().display().to_string())]);
        let of = |text: &str| {
            let command: Vec<String> = text.split(' ').map(str::to_owned).collect();
            launch(&command, &env, dir.path())
        };
        for (line, name) in [
            ("conda run -n absent python t.py", "conda"),
            ("conda run python t.py", "conda"),
            ("uv run python t.py", "uv"),
            ("poetry shell t.py", "poetry"),
            ("wandb agent a/b/c", "wandb"),
            ("composer -n 2 t.py", "composer"),
            ("python -m wandb agent a/b/c", "wandb"),
            ("python ./conda run python t.py", "conda"),
            ("python /opt/bin/torchrun t.py", "torchrun"),
            ("accelerate test", "accelerate"),
        ] {
            let failure = of(line).unwrap_err();
            assert!(failure.message.unwrap().contains(&format!("`{name}")), "{line}");
            assert!(failure.hint.unwrap().ends_with("-- python train.py"), "{line}");
        }
        assert!(of("tool").is_ok());
    }

    #[test]
    fn environments_of_packages() {
        let dir = tempfile::tempdir().unwrap();
        let at = |path: &str| dir.path().join(path).display().to_string();
        for bin in ["c/bin", "c/envs/x/bin", "p/.venv/bin", "p/w", "v/bin"] {
            std::fs::create_dir_all(at(bin)).unwrap();
            std::fs::write(at(&format!("{bin}/python")), "").unwrap();
        }
        std::fs::write(at("c/bin/conda"), "#!/usr/bin/python3\n").unwrap();
        std::fs::write(at("p/.venv/bin/torchrun"), "#!/p/python\n").unwrap();
        let bin = |line: &str, env: &[(&str, &str)]| {
            let command: Vec<String> = line.split(' ').map(str::to_owned).collect();
            let mut env: BTreeMap<String, String> =
                env.iter().map(|(key, value)| ((*key).to_owned(), at(value))).collect();
            env.insert("PATH".to_owned(), "/bin".to_owned());
            let launch = launch(&command, &env, &dir.path().join("p/w")).unwrap();
            let path = &launch.job.as_ref().unwrap().1["PATH"];
            let first = path.strip_suffix(":/bin").unwrap().to_owned();
            (first, launch.python.to_str().unwrap().to_owned(), launch.program().join(" "))
        };
        let python = |folder: &str| (at(folder), "python".to_owned(), "t.py".to_owned());
        let exe = [("CONDA_EXE", "c/bin/conda")];
        assert_eq!(bin("conda run -n x python t.py", &exe), python("c/envs/x/bin"));
        assert_eq!(bin("conda run -n base python t.py", &exe), python("c/bin"));
        let conda = format!("{} run --name=x python t.py", at("c/bin/conda"));
        assert_eq!(bin(&conda, &[]), python("c/envs/x/bin"));
        assert_eq!(bin(&format!("conda run -p {} python t.py", at("v")), &exe), python("v/bin"));
        assert_eq!(bin("conda run python t.py", &[("CONDA_PREFIX", "v")]), python("v/bin"));
        let active = [("VIRTUAL_ENV", "v")];
        assert_eq!(bin("uv run python t.py", &active), python("p/.venv/bin"));
        assert_eq!(bin(&format!("uv run --project {} python t.py", at("")), &active), python("v/bin"));
        assert_eq!(bin("poetry run python t.py", &active), python("v/bin"));
        assert_eq!(bin("poetry run python t.py", &[]), python("p/.venv/bin"));
        let spread = (at("p/.venv/bin"), "/p/python".to_owned(), "t.py".to_owned());
        assert_eq!(bin("uv run --with deepspeed torchrun -n 4 t.py", &[]), spread);
        let module = (at("p/.venv/bin"), "python3".to_owned(), "-m pkg".to_owned());
        assert_eq!(bin("uv run -m pkg", &[]), module);
    }

    #[test]
    fn programs_in_python_are_found_by_their_first_line() {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in [
            ("tool", "#!/opt/x/bin/python3\nimport x\n"),
            ("other", "#!/usr/bin/env python3\n"),
            ("sh", "#!/bin/sh\n"),
        ] {
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        let env = BTreeMap::from([("PATH".to_owned(), dir.path().display().to_string())]);
        let of = |text: &str| {
            let command: Vec<String> = text.split(' ').map(str::to_owned).collect();
            launch(&command, &env, Path::new("/w"))
        };
        assert_eq!(of("tool fit --x").unwrap().python, "/opt/x/bin/python3");
        assert_eq!(of("other").unwrap().python, "python3");
        assert!(of("sh x").is_err());
        assert!(of("absent").is_err());
    }
}

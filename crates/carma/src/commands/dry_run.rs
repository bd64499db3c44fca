//! `carma dry-run`: the user's unmodified script for a few steps, without a GPU; and how a command is taken apart for it.

use super::Context;
use super::estimate;
use super::tracer::Launch;
use crate::cli::EstimateArgs;
use crate::cli::memory::DryRunArgs;
use carma_cli::failure::{Failure, Outcome};
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

/// Finds Python and the program in a command.
///
/// # Errors
/// A command that runs no Python program as far as can be told.
pub(crate) fn launch(command: &[OsString], path: Option<&OsStr>) -> Result<Launch, Failure> {
    let plain;
    let mut rest = match command {
        // A line for the shell that is nothing but words.
        [shell, c, line] if c == "-c" && is_shell(shell) && is_plain(line) => {
            plain = line.to_string_lossy().split_whitespace().map(OsString::from).collect::<Vec<_>>();
            &plain[..]
        }
        words => words,
    };
    let mut launch = Launch::default();
    if rest.first().is_some_and(|word| word == "env") {
        rest = &rest[1..];
        while let Some((key, value)) = rest.first().and_then(|word| assignment(word)) {
            launch.env.push((key.to_owned(), value.to_owned()));
            rest = &rest[1..];
        }
    }
    let Some((program, words)) = rest.split_first() else {
        return Err(Failure::usage("no program in the command"));
    };
    let name = Path::new(program).file_name().unwrap_or_default().to_string_lossy().into_owned();
    if name.starts_with("python") || name.starts_with("pypy") {
        launch.python = program.clone();
        return after_python(launch, words);
    }
    if name.ends_with(".py") {
        launch.python = "python3".into();
        launch.words = program_words(program, words);
        return Ok(launch);
    }
    let file = find(program, path);
    let python = file.as_deref().and_then(shebang_python);
    if matches!(name.as_str(), "torchrun" | "accelerate" | "deepspeed" | "torch.distributed.run") {
        launch.python = python.unwrap_or_else(|| "python3".into());
        return one_process(launch, words, &name);
    }
    match (file, python) {
        (Some(file), Some(python)) => {
            launch.python = python;
            launch.words = program_words(file.as_os_str(), words);
            Ok(launch)
        }
        _ => Err(Failure::usage(format!("`{name}` is no Python program"))
            .hint("a dry run needs the command that starts Python, as in: -- python train.py")),
    }
}

fn is_shell(program: &OsStr) -> bool {
    let name = Path::new(program).file_name().and_then(OsStr::to_str);
    matches!(name, Some("sh" | "bash" | "dash" | "zsh"))
}

/// Whether a shell would take a line word by word.
fn is_plain(line: &OsStr) -> bool {
    line.to_str().is_some_and(|line| {
        !line.contains(|c| "|&;<>()$`\\\"'*?[]#~{}!\n".contains(c)) && !line.contains('=')
    })
}

fn program_words(program: &OsStr, words: &[OsString]) -> Vec<OsString> {
    let mut all = vec!["run".into(), "--".into(), program.to_owned()];
    all.extend(words.iter().cloned());
    all
}

fn assignment(word: &OsStr) -> Option<(&OsStr, &OsStr)> {
    let bytes = word.as_bytes();
    let equals = bytes.iter().position(|b| *b == b'=').filter(|at| *at > 0)?;
    Some((OsStr::from_bytes(&bytes[..equals]), OsStr::from_bytes(&bytes[equals + 1..])))
}

/// `[-u] [-X dev] SCRIPT ARGS`, `-m MODULE ARGS`, `-umMODULE ARGS`.
fn after_python(mut launch: Launch, mut words: &[OsString]) -> Result<Launch, Failure> {
    while let Some((word, rest)) = words.split_first() {
        let text = word.to_string_lossy();
        let Some(option) = text.strip_prefix('-') else {
            launch.words = program_words(word, rest);
            return Ok(launch);
        };
        // Letters stand together until one takes a value, which may follow in the same word.
        let valued = option.find(['m', 'c', 'W', 'X']).filter(|_| !option.starts_with('-'));
        let (flags, value) = valued.map_or((option, ""), |at| (&option[..at], &option[at + 1..]));
        match valued.map(|at| option.as_bytes()[at]) {
            Some(b'm') => {
                if !flags.is_empty() {
                    launch.interpreter.push(format!("-{flags}").into());
                }
                let joined = OsString::from(value);
                let (module, arguments) = match rest.split_first() {
                    _ if !value.is_empty() => (&joined, rest),
                    Some(split) => split,
                    None => break,
                };
                return of_module(launch, module, arguments);
            }
            Some(b'c') => return Err(not_a_file("-c")),
            None if option.is_empty() => return Err(not_a_file("-")),
            _ => {}
        }
        let with_value = (valued.is_some() && value.is_empty()) || &*text == "--check-hash-based-pycs";
        let taken = if with_value { 2.min(words.len()) } else { 1 };
        launch.interpreter.extend(words[..taken].iter().cloned());
        words = &words[taken..];
    }
    Err(Failure::usage("Python is started without a program"))
}

fn not_a_file(option: &str) -> Failure {
    Failure::usage(format!("a dry run of `python {option}` is not possible"))
        .hint("put the program into a file")
}

/// `python -m MODULE`; a launcher would start processes that nothing traces, so its script is taken.
fn of_module(mut launch: Launch, module: &OsString, arguments: &[OsString]) -> Result<Launch, Failure> {
    let name = module.to_string_lossy();
    if matches!(
        &*name,
        "torch.distributed.run"
            | "torch.distributed.launch"
            | "accelerate.commands.launch"
            | "deepspeed.launcher.runner"
    ) {
        return one_process(launch, arguments, &name);
    }
    launch.words = program_words(OsStr::new("-m"), &[std::slice::from_ref(module), arguments].concat());
    Ok(launch)
}

/// The script of a launcher of several processes, as the one process of a world of one.
fn one_process(mut launch: Launch, words: &[OsString], launcher: &str) -> Result<Launch, Failure> {
    let script = words.iter().position(|word| word.as_bytes().ends_with(b".py")).ok_or_else(|| {
        Failure::usage(format!("no script in the command of {launcher}"))
            .hint("name the script itself, as in: -- python train.py")
    })?;
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
    launch.words = program_words(&words[script], &words[script + 1..]);
    Ok(launch)
}

/// The file that a word names, as a shell finds it.
fn find(program: &OsStr, path: Option<&OsStr>) -> Option<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(program));
    }
    std::env::split_paths(path?).map(|folder| folder.join(program)).find(|file| file.is_file())
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

    #[test]
    fn commands() {
        let of = |text: &str| launch(&words(text), None);
        let plain = of("python train.py --lr 1 -m x").unwrap();
        assert_eq!((plain.python.as_os_str(), plain.interpreter.len()), (OsStr::new("python"), 0));
        assert_eq!(plain.words, words("run -- train.py --lr 1 -m x"));
        let options = of("env A=1 B=x=y /opt/bin/python3.11 -u -X dev -W ignore -m pkg.train -v").unwrap();
        assert_eq!(options.interpreter, words("-u -X dev -W ignore"));
        assert_eq!(options.words, words("run -- -m pkg.train -v"));
        assert_eq!(options.env, [("A".into(), "1".into()), ("B".into(), "x=y".into())]);
        assert_eq!(of("./train.py 3").unwrap().words, words("run -- ./train.py 3"));
        let spread = of("torchrun --nproc-per-node 4 train.py --a b").unwrap();
        assert_eq!(spread.words, words("run -- train.py --a b"));
        assert!(spread.env.contains(&("WORLD_SIZE".into(), "1".into())));
        assert_eq!(of("python -m torch.distributed.run --x t.py 1").unwrap().words, words("run -- t.py 1"));
        for launcher in [
            "-m torch.distributed.launch",
            "-mtorch.distributed.run",
            "-um accelerate.commands.launch --num_processes 2",
            "-m deepspeed.launcher.runner --num_gpus 2",
        ] {
            let one = of(&format!("python {launcher} t.py 1")).unwrap();
            assert_eq!(one.words, words("run -- t.py 1"), "{launcher}");
            assert!(one.env.contains(&("WORLD_SIZE".into(), "1".into())), "{launcher}");
        }
        let joined = of("python -Wignore -uBmpkg.train -m x").unwrap();
        assert_eq!(
            (joined.interpreter, joined.words),
            (words("-Wignore -uB"), words("run -- -m pkg.train -m x"))
        );
        let line = |text: &str| launch(&["/bin/sh".into(), "-c".into(), text.into()], None);
        assert_eq!(
            line("python train.py --lr 1").unwrap(),
            launch(&words("python train.py --lr 1"), None).unwrap()
        );
        for shell in
            ["python a.py > out", "A=1 python a.py", "python a.py && b", "python '*.py'", "python $X.py"]
        {
            assert!(line(shell).unwrap_err().message.unwrap().contains("`sh`"), "{shell}");
        }
        for bad in [
            "bash run.sh",
            "python",
            "python -u",
            "python -c print()",
            "python -uc print()",
            "python -um",
            "python -",
            "env A=1",
            "torchrun -m x",
            "python -m",
        ] {
            let failure = of(bad).unwrap_err();
            assert_eq!(failure.code, carma_cli::failure::USAGE, "{bad}");
        }
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
        let of = |text: &str| launch(&words(text), Some(dir.path().as_os_str()));
        assert_eq!(of("tool fit --x").unwrap().python, "/opt/x/bin/python3");
        assert_eq!(of("other").unwrap().python, "python3");
        assert!(of("sh x").is_err());
        assert!(of("absent").is_err());
    }
}
